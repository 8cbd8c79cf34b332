//! Loads of flushes by the program: into another prefix, another cluster, blocks of another size.

use super::live::{at, fill, flush, prefix, table_of};
use super::{NO_WAIT, Root, all_free, cluster, flushing, item};
use honeycomb_client::{Client, Error, JobTicket};
use honeycomb_e2e::{Cluster, KIB, LEASE_MS, eventually, file, kv, noise};
use honeycomb_tiers::FlushRoot;
use honeycomb_types::{FLUSH_EXTENTS, PrefixId};
use honeycomb_wire::Status;
use honeycomb_wire::messages::PrefixOptions;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// `honeycomb load` with the job's token.
pub(super) fn command(address: &str, job: &JobTicket, place: &str, path: &str) -> Command {
    let mut command = program(address, job);
    command.args(["load", place, path, "--json"]);
    command
}

/// `honeycomb` with the job's token.
pub(super) fn program(address: &str, job: &JobTicket) -> Command {
    let token: String = job.token.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = Command::new(honeycomb_e2e::program("honeycomb"));
    command.stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HONEYCOMB_")) {
        command.env_remove(name);
    }
    command.env("HONEYCOMB_CONFIG", "/dev/null");
    command.env("HONEYCOMB_ADDRESS", address).env("HONEYCOMB_TOKEN", token);
    command
}

pub(super) fn told(output: &Output) -> Result<Value, (String, String)> {
    if output.status.success() {
        return Ok(serde_json::from_slice(&output.stdout).unwrap());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    let last: Value = serde_json::from_str(error.lines().last().unwrap()).unwrap();
    let text = |name: &str| last["error"][name].as_str().unwrap().to_owned();
    Err((text("status"), text("message")))
}

/// The readable data of a prefix.
#[derive(PartialEq)]
pub(super) struct Content {
    text: Vec<u8>,
    sealed: bool,
    length: u64,
    table: BTreeMap<Vec<u8>, Vec<u8>>,
}

pub(super) fn content(client: &Client, job: &JobTicket, path: &str) -> Content {
    let f = client.open_file(job.job, &format!("{path}:text")).unwrap();
    let mut text = vec![0; f.size().unwrap() as usize];
    assert_eq!(f.read_into(0, &mut text).unwrap(), text.len());
    let q = client.open_queue(job.job, &format!("{path}:work")).unwrap();
    let length = q.counts().unwrap().items;
    let k = client.open_kv(job.job, path).unwrap();
    let (mut table, mut from) = (BTreeMap::new(), Some(0));
    while let Some(start) = from {
        let page = k.scan(start, b"", true, 16 << 10).unwrap();
        for (key, _) in page.entries {
            let mut value = Vec::new();
            assert!(k.get(&key, &mut value).unwrap());
            table.insert(key, value);
        }
        from = page.next;
    }
    Content { text, sealed: f.sealed().unwrap(), length, table }
}

/// A second cluster loads the flush of a first, and flushes it again: all three have the same data.
fn comes_back(root: &FlushRoot, environment: &[(&'static str, String)]) {
    let first = flushing(root.clone(), 2);
    let (client, job) = first.job("my job");
    prefix(&client, &job, "t", LEASE_MS);
    let f = file(&client, &job, "t:text");
    f.write_all(&noise(1, 300_000)).unwrap();
    f.seal().unwrap();
    let q = client.create_queue(job.job, "t:work", 500, 0, false).unwrap();
    let items: Vec<Vec<u8>> = (0..400).map(item).collect();
    items.iter().for_each(|item| q.put(item, NO_WAIT).unwrap());
    q.close().unwrap();
    let k = kv(&client, &job, "t", 8);
    let table = fill(&k);
    file(&client, &job, "t:empty");
    let before = content(&client, &job, "t");
    assert!(before.table == table && before.length == 400 && before.sealed);
    flush(&client, &job, "t", "out");
    let place = root.place.join("my=20job/out").to_string();

    for (servers, block) in [(1, 1024), (3, 64)] {
        let cluster = Cluster::flushing(servers, 12 * 1024 * KIB, block * KIB, Some(root.clone()));
        let (client, job) = cluster.job("other");
        let address = cluster.controller.address().to_string();
        let mut load = command(&address, &job, &place, "l/t");
        load.args(["--lease-ms", &LEASE_MS.to_string()]).envs(environment.iter().cloned());
        let told = told(&load.output().unwrap()).unwrap();
        assert_eq!(told["structures"], 4);
        assert!(told["bytes"].as_u64().unwrap() > 600_000, "{told}");
        assert!(content(&client, &job, "l/t") == before, "{servers} servers, {block} KiB");
        let lease = client.lease(job.job, "l/t").unwrap();
        assert_eq!(lease.lease_ms, LEASE_MS);
        let q = client.open_queue(job.job, "l/t:work").unwrap();
        assert_eq!(q.bounds(), (500, 0));
        assert_eq!(q.put(b"x", NO_WAIT).unwrap_err().status, Status::QueueClosed);
        // And out again.
        flush(&client, &job, "l/t", "again");
        let again = at(root, "other/again");
        assert!(again.file("text").unwrap() == before.text);
        assert!(table_of(&again, "") == table);
        let there: Vec<Vec<u8>> = again.queue("work").unwrap().map(Result::unwrap).collect();
        assert!(there == items);
        for item in &items {
            assert_eq!(q.get(NO_WAIT).unwrap().as_ref(), Some(item));
        }
    }
}

#[test]
fn a_load_of_a_flush_is_what_was_there_in_a_cluster_of_another_shape() {
    comes_back(&Root::new("load-all").flush(), &[]);
}

#[test]
fn a_load_from_a_bucket_is_what_was_there() {
    let Some(gateway) = honeycomb_faultstore::Gateway::start() else { return };
    let variables = honeycomb_faultstore::Gateway::variables(gateway.address());
    let variables: Vec<_> =
        variables.iter().map(|(name, value)| (*name, value.to_string())).collect();
    comes_back(&super::s3::bucket(&gateway, "a"), &variables);
}

#[test]
fn what_cannot_be_loaded_leaves_nothing_and_is_told_by_name() {
    let root = Root::new("load-refused");
    let cluster = cluster(&root, 1);
    let watcher = cluster.client(cluster.controller.token(), PrefixId(0));
    let (client, job) = cluster.job("job");
    prefix(&client, &job, "t", LEASE_MS);
    let f = file(&client, &job, "t:text");
    f.write_all(&noise(1, 300_000)).unwrap();
    flush(&client, &job, "t", "out");
    let address = cluster.controller.address().to_string();
    let place = root.0.join("job/out");
    let run = |place: &str, path: &str, more: &[&str]| {
        told(&command(&address, &job, place, path).args(more).output().unwrap())
    };
    let at = place.display().to_string();
    let none = root.0.join("job/none").display().to_string();
    assert_eq!(run(&none, "l", &[]).unwrap_err().0, "NotFound");
    assert_eq!(run(&at, "t", &[]).unwrap_err().0, "AlreadyExists");
    assert_eq!(run(&at, "t", &["--again"]).unwrap_err().0, "AlreadyExists", "it is whole");
    // An unfinished load: it cannot be opened, and only a load with --again replaces it.
    let options = PrefixOptions { loading: true, lease_ms: LEASE_MS, ..PrefixOptions::default() };
    client.create_prefix(job.job, "l", &[], options).unwrap();
    file(&client, &job, "l:text").append(b"half").unwrap();
    let opened = client.open_file(job.job, "l:text").map(drop);
    assert!(matches!(opened, Err(Error { status: Status::Loading, .. })), "{opened:?}");
    let (status, message) = run(&at, "l", &[]).unwrap_err();
    assert!(status == "Loading" && message.contains("--again"), "{status}: {message}");
    run(&at, "l", &["--again"]).unwrap();
    assert_eq!(client.open_file(job.job, "l:text").unwrap().size().unwrap(), 300_000);
    client.remove_prefix(job.job, "l").unwrap();
    // One byte of the last part is another.
    let mut parts: Vec<_> =
        std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).collect();
    parts.retain(|path| path.extension().is_some_and(|end| end == "part"));
    parts.sort();
    let last = parts.last().unwrap();
    let mut bytes = std::fs::read(last).unwrap();
    bytes[0] ^= 1;
    std::fs::write(last, &bytes).unwrap();
    let (status, message) = run(&at, "l", &[]).unwrap_err();
    assert!(status == "DataLost" && message.contains("is damaged"), "{status}: {message}");
    assert_eq!(client.open_file(job.job, "l:text").map(drop).unwrap_err().status, Status::Removed);
    client.deregister_job(job.job).unwrap();
    eventually("all blocks free", || all_free(&watcher));
}

/// How an object is damaged.
#[derive(Clone, Copy, Debug)]
enum Damage {
    First,
    Middle,
    Last,
    Shorter,
    Empty,
    Longer,
    Gone,
}

impl Damage {
    const ALL: [Damage; 7] = [
        Damage::First,
        Damage::Middle,
        Damage::Last,
        Damage::Shorter,
        Damage::Empty,
        Damage::Longer,
        Damage::Gone,
    ];

    fn inflict(self, path: &Path, good: &[u8]) {
        let flipped = |at: usize| {
            let mut bytes = good.to_vec();
            bytes[at] ^= 0x10;
            bytes
        };
        let bytes = match self {
            Damage::First => flipped(0),
            Damage::Middle => flipped(good.len() / 2),
            Damage::Last => flipped(good.len() - 1),
            Damage::Shorter => good[..good.len() - 1].to_vec(),
            Damage::Empty => Vec::new(),
            Damage::Longer => [good, b"x"].concat(),
            Damage::Gone => return std::fs::remove_file(path).unwrap(),
        };
        std::fs::write(path, bytes).unwrap();
    }
}

/// Any damage of any object was `Internal`.
#[test]
fn damaged_object_of_any_kind_is_data_lost_and_named() {
    let root = Root::new("load-damaged");
    let cluster = cluster(&root, 1);
    let (client, job) = cluster.job("job");
    prefix(&client, &job, "t", LEASE_MS);
    file(&client, &job, "t:text").write_all(&noise(1, 5_000)).unwrap();
    client.create_queue(job.job, "t:work", 0, 0, false).unwrap().put(b"item", NO_WAIT).unwrap();
    fill(&kv(&client, &job, "t", 1));
    flush(&client, &job, "t", "out");
    let place = root.0.join("job/out");
    let address = cluster.controller.address().to_string();
    let at = place.display().to_string();
    let mut objects: Vec<_> =
        std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).collect();
    objects.sort();
    assert!(objects.iter().any(|object| object.to_string_lossy().ends_with(FLUSH_EXTENTS)));
    let load = || told(&command(&address, &job, &at, "l").output().unwrap());
    for object in objects {
        let (good, name) = (std::fs::read(&object).unwrap(), object.file_name().unwrap());
        let name = name.to_str().unwrap();
        let all = if name == "manifest.json" || name.ends_with(FLUSH_EXTENTS) { 7 } else { 3 };
        for damage in Damage::ALL.into_iter().rev().take(all) {
            damage.inflict(&object, &good);
            let (status, message) = load().unwrap_err();
            let expected = match (name, damage) {
                // Without its manifest a directory is no flush.
                ("manifest.json", Damage::Gone) => "NotFound",
                _ => "DataLost",
            };
            assert_eq!(status, expected, "{name} {damage:?}: {message}");
            assert!(status == "NotFound" || message.contains(name), "{damage:?}: {message}");
            assert!(client.open_kv(job.job, "l").is_err(), "nothing is there after {damage:?}");
        }
        std::fs::write(&object, good).unwrap();
    }
    load().unwrap();
}
