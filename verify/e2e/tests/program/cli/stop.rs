//! The end of a cluster: prefixes with a flush are written before it, or named in the error.

use super::home::{Home, Running};
use honeycomb_env::Clock;
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SMALL: [&str; 8] =
    ["--listen", "127.0.0.1:0", "--memory", "16MiB", "--block-size", "64KiB", "--shards", "1"];

/// Waits for something that happens by itself, and fails when it does not.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let clock = Clock::start();
    while !done() {
        assert!(clock.now().as_millis() < 60_000, "never happened: {what}");
        clock.sleep_until(clock.now() + Duration::from_millis(10));
    }
}

/// A home with a place to flush to.
fn home() -> (Home, PathBuf) {
    let home = Home::new();
    let root = home.dir.join("kept");
    std::fs::create_dir(&root).unwrap();
    (home, root)
}

fn start_arguments<'a>(root: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let own = ["--flush-root", root.to_str().unwrap()];
    [&["start"][..], &SMALL, &own, more].concat()
}

/// A cluster in the foreground.
fn running(home: &Home, root: &Path, more: &[&str]) -> Running {
    let mut cluster = home.spawn(&start_arguments(root, more));
    assert!(cluster.line().contains("honeycomb is running at"));
    cluster
}

/// A prefix that persists and one that is flushed at the end of its lease.
fn fill(home: &Home, there: &[&str]) {
    home.ok(&[&["prefix", "results", "--persist"][..], there].concat());
    home.ok(&[&["prefix", "out", "--flush-to", "runs/1"][..], there].concat());
    home.ok(&[&["put", "results:kv", "a", "1"][..], there].concat());
    home.ok(&[&["put", "out:kv", "a", "1"][..], there].concat());
}

fn is_kept(root: &Path) -> [bool; 2] {
    ["cli/results", "cli/runs/1"].map(|place| root.join(place).join("manifest.json").exists())
}

/// Makes the store of a cluster unreachable: a file is where its folder was.
fn take_away(root: &Path) -> PathBuf {
    let aside = root.with_extension("aside");
    std::fs::rename(root, &aside).unwrap();
    std::fs::write(root, "no folder").unwrap();
    aside
}

fn give_back(root: &Path, aside: &Path) {
    std::fs::remove_file(root).unwrap();
    std::fs::rename(aside, root).unwrap();
}

#[test]
fn cluster_that_is_stopped_keeps_what_has_a_place() {
    let (home, root) = home();
    home.ok(&start_arguments(&root, &["--background"]));
    fill(&home, &[]);
    let stopped = home.json(&["stop"]);
    assert!(stopped["stopped"].as_i64().is_some(), "{stopped}");
    assert_eq!(is_kept(&root), [true, true]);
    assert_eq!(std::fs::read_dir(home.dir.join("run/honeycomb")).unwrap().count(), 1);
    let left = std::fs::read_dir(home.dir.join("run/honeycomb/sockets")).unwrap().count();
    assert_eq!(left, 0, "neither sockets nor their lock are left");
    // And it is found again.
    home.ok(&start_arguments(&root, &["--background"]));
    home.ok(&["load", "--persisted", "results"]);
    assert_eq!(home.ok(&["get", "results:kv", "a"]).trim_end(), "1");
    home.ok(&["stop", "--discard"]);
}

#[test]
fn cluster_that_gets_any_signal_keeps_what_has_a_place() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let (home, root) = home();
        let cluster = running(&home, &root, &[]);
        fill(&home, &[]);
        cluster.signalled(signal);
        let ended = cluster.end();
        assert_eq!(ended.code, 0, "{signal:?}: {}", ended.err);
        assert_eq!(is_kept(&root), [true, true], "{signal:?}");
        assert!(!home.cluster_file().exists());
    }
}

#[test]
fn embedded_cluster_whose_parent_ends_keeps_what_has_a_place() {
    let (home, root) = home();
    let mut cluster = home.spawn(&start_arguments(&root, &["--embedded", "--json"]));
    let told: Value = serde_json::from_str(&cluster.line()).unwrap();
    let text = |name: &str| told[name].as_str().unwrap().to_owned();
    let (address, token) = (text("address"), text("token"));
    fill(&home, &["--address", &address, "--token", &token]);
    cluster.end_input();
    let ended = cluster.end();
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert_eq!(is_kept(&root), [true, true]);
}

#[test]
fn controller_without_a_log_keeps_what_has_a_place_when_it_is_signalled() {
    let (home, root) = home();
    let mut controller = home.spawn(&["controller", "--listen", "127.0.0.1:0", "--json"]);
    let told: Value = serde_json::from_str(&controller.line()).unwrap();
    assert_eq!((&told["durable"], &told["log"]), (&false.into(), &Value::Null));
    let text = |name: &str| told[name].as_str().unwrap().to_owned();
    let (address, token) = (text("address"), text("token"));
    let place = root.to_str().unwrap();
    let args = ["server", "--controller", &address, "--token", &token, "--flush-root", place];
    let mut server = home.spawn(&[&args[..], &SMALL[2..], &["--json"]].concat());
    assert!(server.line().contains("address"));
    fill(&home, &["--address", &address, "--token", &token]);
    controller.signalled(Signal::TERM);
    let ended = controller.end();
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert_eq!(is_kept(&root), [true, true]);
}

#[test]
fn stop_is_refused_while_the_store_does_not_answer_and_loses_nothing() {
    let (home, root) = home();
    home.ok(&start_arguments(&root, &["--background"]));
    fill(&home, &[]);
    let aside = take_away(&root);
    let refused = home.run(&["stop", "--stop-wait", "0.2"]);
    assert_eq!(refused.code, 8, "{}", refused.err);
    for named in ["NotFlushed", "cli/results", "cli/runs/1", "--discard"] {
        assert!(refused.err.contains(named), "{named}: {}", refused.err);
    }
    let again = home.run(&["stop", "--stop-wait", "0.2", "--json"]);
    let last: Value = serde_json::from_str(again.err.lines().last().unwrap()).unwrap();
    assert_eq!((again.code, &last["error"]["status"]), (8, &"NotFlushed".into()), "{}", again.err);
    // It takes no new work, because that would be lost.
    let late = home.run(&["put", "--job", "late", "x:kv", "a", "1"]);
    assert!(late.code == 5 && late.err.contains("being stopped"), "{} {}", late.code, late.err);
    give_back(&root, &aside);
    home.ok(&["stop"]);
    assert_eq!(is_kept(&root), [true, true]);
}

#[test]
fn stop_that_discards_waits_for_no_store() {
    let (home, root) = home();
    home.ok(&start_arguments(&root, &["--background", "--stop-wait", "3600"]));
    fill(&home, &[]);
    let aside = take_away(&root);
    home.ok(&["stop", "--discard", "--stop-wait", "3600"]);
    assert!(!home.cluster_file().exists());
    give_back(&root, &aside);
    assert_eq!(is_kept(&root), [false, false]);
}

#[test]
fn signal_with_an_unreachable_store_ends_the_cluster_after_a_bounded_wait_and_names_what_is_lost() {
    let (home, root) = home();
    let cluster = running(&home, &root, &["--stop-wait", "0.2"]);
    fill(&home, &[]);
    take_away(&root);
    cluster.signalled(Signal::TERM);
    let ended = cluster.end();
    assert_eq!(ended.code, 8, "{}", ended.err);
    for named in ["NotFlushed", "cli/results", "cli/runs/1"] {
        assert!(ended.err.contains(named), "{named}: {}", ended.err);
    }
}

#[test]
fn second_signal_ends_a_cluster_at_once_and_says_what_is_lost() {
    let (home, root) = home();
    let mut cluster = running(&home, &root, &["--stop-wait", "3600"]);
    fill(&home, &[]);
    take_away(&root);
    cluster.signalled(Signal::INT);
    let mut line = String::new();
    while !line.contains("flushing 2 prefixes") {
        line = cluster.err_line();
        assert!(!line.is_empty(), "it ended without a second signal");
    }
    cluster.signalled(Signal::INT);
    let ended = cluster.end();
    assert_eq!(ended.code, 8, "{}", ended.err);
    assert!(ended.err.contains("ending at once after a second signal"), "{}", ended.err);
    assert!(ended.err.contains("cli/results"), "{}", ended.err);
    assert!(!home.cluster_file().exists());
}

#[test]
fn jobs_of_a_cluster_that_was_stopped_do_not_come_back_with_its_log() {
    let (home, root) = home();
    let log = home.dir.join("log");
    let start = start_arguments(&root, &["--background", "--data-dir", log.to_str().unwrap()]);
    home.ok(&start);
    let (_, token) = home.place();
    home.ok(&["put", "t:kv", "a", "1"]);
    home.ok(&["stop"]);
    home.ok(&start);
    assert_eq!(home.place().1, token, "it is the same cluster");
    assert_eq!(home.json(&["jobs"])["jobs"], serde_json::json!([]));
    home.ok(&["put", "t:kv", "a", "2"]);
    home.ok(&["stop"]);
}

#[test]
fn of_clusters_that_start_at_the_same_time_one_runs_and_the_others_say_so() {
    let (home, root) = home();
    let args = start_arguments(&root, &["--background", "--json"]);
    let started: Vec<Running> = (0..6).map(|_| home.spawn(&args)).collect();
    let ended: Vec<_> = started.into_iter().map(Running::end).collect();
    let won = ended.iter().filter(|ran| ran.code == 0).count();
    assert_eq!(won, 1, "{:?}", ended.iter().map(|ran| (ran.code, &ran.err)).collect::<Vec<_>>());
    for lost in ended.iter().filter(|ran| ran.code != 0) {
        assert_eq!((lost.code, &lost.error()["status"]), (8, &"AlreadyExists".into()));
    }
    home.ok(&["status"]);
    home.ok(&["stop"]);
    eventually("its files are gone", || {
        std::fs::read_dir(home.dir.join("run/honeycomb")).unwrap().count() == 1
    });
}

#[test]
fn lock_that_a_killed_cluster_left_behind_stops_no_other() {
    let (home, root) = home();
    let cluster = running(&home, &root, &[]);
    assert!(home.dir.join("run/honeycomb/cluster.lock").exists());
    cluster.signalled(Signal::KILL);
    assert_eq!(cluster.signal(), Some(9));
    assert!(home.dir.join("run/honeycomb/cluster.lock").exists(), "as it was left");
    let next = running(&home, &root, &[]);
    next.signalled(Signal::TERM);
    assert_eq!(next.end().code, 0);
}

#[test]
fn controller_keeps_its_log_below_the_state_folder_of_its_user() {
    let home = Home::new();
    // A port that was free a moment ago; another process may take it, which is refused as such.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let start = ["controller", "--listen", &address, "--json"];
    let mut token = None;
    for _ in 0..2 {
        let mut controller = home.spawn(&start);
        let told: Value = serde_json::from_str(&controller.line()).unwrap();
        assert_eq!(told["durable"], true);
        let log = home.dir.join("state/honeycomb/controller").join(&address);
        assert_eq!(told["log"].as_str().unwrap(), log.to_str().unwrap());
        assert!(log.join("cluster.key").exists());
        let same = token.get_or_insert_with(|| told["token"].clone());
        assert_eq!(*same, told["token"], "it goes on");
        controller.signalled(Signal::TERM);
        assert_eq!(controller.end().code, 0);
    }
    let mut volatile = home.spawn(&[&start[..], &["--volatile"]].concat());
    let told: Value = serde_json::from_str(&volatile.line()).unwrap();
    assert_eq!((&told["durable"], told["token"] == token.unwrap()), (&false.into(), false));
    volatile.signalled(Signal::TERM);
    assert_eq!(volatile.end().code, 0);
    let both = home.run(&[&start[..], &["--volatile", "--data-dir", "x"]].concat());
    assert_eq!((both.code, both.error()["status"].as_str()), (2, Some("InvalidArgument")));
}

#[test]
fn controller_refuses_a_damaged_key_by_name() {
    let home = Home::new();
    let start = ["controller", "--listen", "127.0.0.1:0", "--data-dir", "log", "--json"];
    let mut controller = home.spawn(&start);
    assert!(controller.line().contains("token"));
    controller.signalled(Signal::TERM);
    assert_eq!(controller.end().code, 0);
    let path = home.dir.join("log/cluster.key");
    let mut key = std::fs::read(&path).unwrap();
    key[20] ^= 1;
    std::fs::write(&path, key).unwrap();
    let refused = home.run(&start);
    assert_ne!(refused.code, 0);
    for named in ["LogFailed", "cluster.key", "checksum", "copy"] {
        assert!(refused.err.contains(named), "{named}: {}", refused.err);
    }
}
