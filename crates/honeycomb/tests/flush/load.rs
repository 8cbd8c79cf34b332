//! Loading what was flushed, by the program: into another prefix, another cluster, blocks of another size.

use super::live::{at, fill, flush, prefix, table_of};
use super::{NO_WAIT, Root, all_free, cluster, flushing};
use crate::common::{Cluster, KIB, eventually, file, kv, noise};
use honeycomb_client::{Client, Error, JobTicket};
use honeycomb_tiers::FlushRoot;
use honeycomb_types::PrefixId;
use honeycomb_wire::Status;
use honeycomb_wire::messages::PrefixOptions;
use serde_json::Value;
use std::collections::BTreeMap;
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
    let mut command = Command::new(env!("CARGO_BIN_EXE_honeycomb"));
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

/// What can be read of a prefix and stays.
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

/// What one cluster flushes another loads, and flushes again: all three hold the same.
fn comes_back(root: &FlushRoot, environment: &[(&'static str, String)]) {
    let first = flushing(root.clone(), 2);
    let (client, job) = first.job("my job");
    prefix(&client, &job, "t", 60_000);
    let f = file(&client, &job, "t:text");
    f.write_all(&noise(1, 300_000)).unwrap();
    f.seal().unwrap();
    let q = client.create_queue(job.job, "t:work", 500, 0, false).unwrap();
    let items: Vec<Vec<u8>> = (0..400).map(|i| noise(i, 200 + i as usize)).collect();
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
        load.args(["--lease-ms", "60000"]).envs(environment.iter().cloned());
        let told = told(&load.output().unwrap()).unwrap();
        assert_eq!(told["structures"], 4);
        assert!(told["bytes"].as_u64().unwrap() > 600_000, "{told}");
        assert!(content(&client, &job, "l/t") == before, "{servers} servers, {block} KiB");
        let lease = client.lease(job.job, "l/t").unwrap();
        assert_eq!(lease.lease_ms, 60_000);
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
    let Some(gateway) = honeycomb_weather::Gateway::start() else { return };
    let variables = honeycomb_weather::Gateway::variables(gateway.address());
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
    prefix(&client, &job, "t", 60_000);
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
    // One that was not finished: nobody opens it, and only who says so takes its place.
    let options = PrefixOptions { loading: true, lease_ms: 60_000, ..PrefixOptions::default() };
    client.create_prefix(job.job, "l", &[], options).unwrap();
    file(&client, &job, "l:text").append(b"half").unwrap();
    let opened = client.open_file(job.job, "l:text").map(drop);
    assert!(matches!(opened, Err(Error { status: Status::Loading, .. })), "{opened:?}");
    let (status, message) = run(&at, "l", &[]).unwrap_err();
    assert!(status == "Loading" && message.contains("begin again"), "{status}: {message}");
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
    assert!(status == "Internal" && message.contains("is damaged"), "{status}: {message}");
    assert_eq!(client.open_file(job.job, "l:text").map(drop).unwrap_err().status, Status::Removed);
    client.deregister_job(job.job).unwrap();
    eventually("all blocks free", || all_free(&watcher));
}
