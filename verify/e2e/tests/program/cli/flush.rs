//! Data that cannot be flushed when its lease ends: the messages for the user, the retention of the data, and
//! the automatic retry when the cause is fixed.

use super::home::Home;
use honeycomb_env::Clock;
use honeycomb_faultstore::Gateway;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const BYTES: usize = 150_000;

/// Waits for something that the cluster does by itself, and fails when it does not.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let clock = Clock::start();
    while !done() {
        assert!(clock.now().as_millis() < 60_000, "never happened: {what}");
        clock.sleep_until(clock.now() + Duration::from_millis(20));
    }
}

/// A cluster that flushes to `disk`.
fn home() -> Home {
    let home = Home::new();
    std::fs::create_dir(home.dir.join("disk")).unwrap();
    let root = home.dir.join("disk").to_str().unwrap().to_owned();
    home.started(&["--flush-root", &root])
}

fn precious() -> Vec<u8> {
    (0..BYTES).map(|i| (i * i % 251) as u8).collect()
}

/// Writes the data to flush, in blocks of 64 KiB.
fn fill(home: &Home) {
    home.ok(&["prefix", "results", "--lease-ms", "3000", "--flush-to", "runs/1"]);
    let path = home.write("precious", precious());
    home.ok(&["append", "results", path.to_str().unwrap()]);
}

fn results(home: &Home) -> Value {
    let tree = home.json(&["tree", "cli"]);
    let prefixes = tree["prefixes"].as_array().unwrap();
    prefixes.iter().find(|prefix| prefix["name"] == "results").unwrap().clone()
}

/// The flush fails for one of these reasons, every status command reports it, and nothing is lost.
fn fails(home: &Home, reasons: &[&str]) {
    eventually("a failure", || results(home)["flush"] == "failing");
    let told = |text: &str| reasons.iter().any(|reason| text.contains(reason));
    let message = results(home)["flush_message"].as_str().unwrap().to_owned();
    assert!(told(&message), "{message}");
    let tree = home.ok(&["tree"]);
    assert!(tree.contains("flush to runs/1 failing: ") && told(&tree), "{tree}");
    let status = home.ok(&["status"]);
    let line = "flushes 1 running, 1 failing, 0 done";
    assert!(status.contains(line) && told(&status), "{status}");
    let status = home.json(&["status"]);
    assert!(status["quarantined"].as_u64().unwrap() >= 3, "{status}");
    assert_eq!((&status["flushing"], &status["flush_failing"]), (&1.into(), &1.into()));
    // A read of the data fails with the reason.
    let gone = home.run(&["cat", "results"]);
    assert_eq!((gone.code, gone.err.contains("LeaseExpired")), (6, true), "{}", gone.err);
    let flushed = home.run(&["flushed", "disk/cli/runs/1"]);
    assert_ne!(flushed.code, 0, "there is no manifest: {}", flushed.out);
}

/// It is mended: without anybody's doing all of it is on disk, and its memory is free.
fn comes_right(home: &Home) {
    eventually("the flush", || results(home)["flush"] == "done");
    home.ok(&["flushed", "disk/cli/runs/1", "--check"]);
    let flushed = honeycomb_tiers::Flushed::open(home.dir.join("disk/cli/runs/1")).unwrap();
    assert!(flushed.file("").unwrap() == precious(), "the file differs");
    let parts = flushed.manifest().structures.iter().map(|s| s.parts.len()).sum::<usize>();
    let objects = std::fs::read_dir(home.dir.join("disk/cli/runs/1")).unwrap().count();
    assert_eq!(objects, parts + 1, "what was begun and not ended is not left behind");
    eventually("all blocks free", || {
        let status = home.json(&["status"]);
        status["quarantined"] == 0 && status["free"] == status["blocks"]
    });
}

/// A process that may not write more than so much into a file: the write that is too much is refused
/// as by a full disk, and at the same place.
fn limit(home: &Home, bytes: Option<u64>) {
    let pid = Pid::from_raw(home.pid()).unwrap();
    let maximum = getrlimit(Resource::Fsize).maximum;
    let limit = Rlimit { current: bytes.or(maximum), maximum };
    prlimit(Some(pid), Resource::Fsize, limit).unwrap();
}

#[test]
fn a_disk_that_is_full_keeps_the_data_in_memory_until_there_is_room() {
    let home = home();
    limit(&home, Some(20_000));
    fill(&home);
    fails(&home, &["File too large"]);
    limit(&home, None);
    comes_right(&home);
}

#[test]
fn a_directory_without_permission_keeps_the_data_in_memory_until_there_is_some() {
    let home = home();
    // A place where no directory can be created, even by root.
    let job = home.dir.join("disk/cli");
    std::os::unix::fs::symlink(Path::new("/sys/kernel"), &job).unwrap();
    fill(&home);
    fails(&home, &["not permitted", "ermission denied", "Read-only"]);
    std::fs::remove_file(&job).unwrap();
    comes_right(&home);
}

#[test]
fn what_went_to_a_bucket_is_shown_and_checked_by_its_url() {
    let Some(gateway) = Gateway::start() else { return };
    let mut home = Home::new();
    home.variables = Gateway::variables(gateway.address()).to_vec();
    let home = home.started(&["--flush-root", "s3://lake/disk/"]);
    fill(&home);
    eventually("the flush", || results(&home)["flush"] == "done");
    let there = home.json(&["flushed", "s3://lake/disk/cli/runs/1", "--check"]);
    assert_eq!(there["place"], "s3://lake/disk/cli/runs/1");
    assert_eq!(there["structures"][0]["bytes"], BYTES);
    home.ok(&["flushed", "s3://lake/disk/cli/runs/1", "--copy", "copy"]);
    let copy = honeycomb_tiers::Flushed::open(home.dir.join("copy")).unwrap();
    assert!(copy.file("").unwrap() == precious(), "the copy differs");
    let again = home.run(&["flushed", "s3://lake/disk/cli/runs/1", "--copy", "copy"]);
    assert_eq!((again.code, again.err.contains("not empty")), (1, true), "{}", again.err);
    let part = gateway.objects("disk/cli/runs/1").into_iter().find(|name| name.ends_with(".part"));
    std::fs::write(gateway.directory("disk/cli/runs/1").join(part.unwrap()), b"other").unwrap();
    let damaged = home.run(&["flushed", "s3://lake/disk/cli/runs/1", "--check"]);
    assert_eq!(damaged.code, 6);
    assert!(damaged.err.contains("is damaged"), "{}", damaged.err);
    let none = home.run(&["flushed", "s3://lake/disk/cli/runs/2"]);
    assert_eq!(none.code, 3, "{}", none.err);
    let wrong = home.run(&["flushed", "ftp://lake/disk"]);
    assert_eq!(wrong.code, 2, "{}", wrong.err);
}
