//! Crashes during a flush of a prefix: of the controller, which restarts with its log, and of a memory
//! server, which does not restart.

use super::processes::{Cluster, eventually};
use honeycomb_client::{Client, JobTicket};
use honeycomb_e2e::noise;
use honeycomb_tiers::Flushed;
use honeycomb_wire::Status;
use honeycomb_wire::messages::{PrefixInfo, PrefixOptions};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

const BLOCK: u64 = 64 << 10;
const LEASE_MS: u32 = 2000;
const NO_WAIT: Duration = Duration::ZERO;
/// `PrefixInfo::flush`.
const DONE: u8 = 3;
const LOST: u8 = 4;

/// One crash.
pub struct Cell {
    /// Where the controller dies, to be started again; empty for nowhere.
    controller: &'static str,
    /// The request at which one of the memory servers dies permanently.
    server: &'static str,
    /// That server is killed while the controller is away.
    with_it: bool,
    /// All of the data is on disk afterwards.
    whole: bool,
}

const fn controller(at: &'static str) -> Cell {
    Cell { controller: at, server: "", with_it: false, whole: true }
}

pub const CELLS: &[Cell] = &[
    controller("sending:FlushBlock:1"),
    controller("sent:FlushBlock:1"),
    controller("sent:FlushBlock:5"),
    controller("heard:FlushBlock:1"),
    controller("heard:FlushBlock:6"),
    controller("sending:CommitFlush:1"),
    controller("sent:CommitFlush:1"),
    controller("heard:CommitFlush:1"),
    controller("heard:CommitFlush:1,sending:FreeBlock:1"),
    controller("heard:CommitFlush:1,heard:FreeBlock:2"),
    Cell { whole: false, with_it: true, ..controller("sending:FlushBlock:1") },
    Cell { server: "handling:FlushBlock:1", whole: false, ..controller("") },
    Cell { server: "handling:CommitFlush:1", ..controller("") },
    Cell { server: "answering:CommitFlush:1", ..controller("") },
];

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { controller, server, with_it, whole } = self;
        let promise = if *whole { "Lives" } else { "Lost" };
        let with = if *with_it { "and a server" } else { "" };
        write!(f, "Flush     {controller:<43} {server:<24} {promise:<6} {with:<13}")
    }
}

/// The data of the prefix.
struct Data {
    text: Vec<u8>,
    items: Vec<Vec<u8>>,
    table: BTreeMap<Vec<u8>, Vec<u8>>,
}

fn fill(client: &Client, job: &JobTicket) -> Data {
    let options =
        PrefixOptions { lease_ms: LEASE_MS, flush_to: "out".into(), ..PrefixOptions::default() };
    client.create_prefix(job.job, "t", &[], options).unwrap();
    let renew = || drop(client.renew(job.job, &["t".to_owned()]).unwrap());
    let text = noise(1, 300_000);
    let f = client.create_file(job.job, "t:text", 1, false).unwrap();
    f.write_all(&text).unwrap();
    renew();
    let items: Vec<Vec<u8>> = (0..300).map(|i| noise(i, 300)).collect();
    let q = client.create_queue(job.job, "t:work", 0, 0, false).unwrap();
    for item in &items {
        q.put(item, NO_WAIT).unwrap();
    }
    renew();
    let k = client.create_kv(job.job, "t:table", 4, false).unwrap();
    let entry = |i: u64| (format!("key-{i}").into_bytes(), noise(i, (i as usize * 7) % 300));
    let table: BTreeMap<_, _> = (0..200).map(entry).collect();
    for (key, value) in &table {
        k.put(key, value).unwrap();
    }
    Data { text, items, table }
}

fn prefix(client: &Client, job: &JobTicket) -> PrefixInfo {
    let tree = client.tree(job.job).unwrap();
    tree.into_iter().find(|prefix| prefix.name == "t").unwrap()
}

/// Runs a cell; answers its outcome in one word.
pub fn run(cell: &Cell) -> &'static str {
    let mut cluster = Cluster::start(BLOCK, cell.controller);
    cluster.add_server(64, cell.server);
    cluster.add_server(64, "");
    let admin = cluster.admin();
    let job = admin.register_job("job", 3_600_000, 0).unwrap();
    let client = cluster.client(&job.token);
    let data = fill(&client, &job);
    let directory = cluster.flush_root().join("job/out");
    if !cell.controller.is_empty() {
        eventually("the controller dies", || cluster.controller.process.died());
        if cell.with_it {
            drop(cluster.servers.remove(0));
        }
        cluster.restart_controller();
    } else if !cell.whole {
        eventually("the server dies", || cluster.servers[0].process.died());
    }
    if cell.whole {
        eventually("the flush", || prefix(&client, &job).flush == DONE);
        let flushed = Flushed::open(&directory).unwrap();
        flushed.check().unwrap();
        assert!(flushed.file("text").unwrap() == data.text, "the file differs");
        let items: Vec<_> = flushed.queue("work").unwrap().map(Result::unwrap).collect();
        assert!(items == data.items, "the queue differs: {} items", items.len());
        let table: BTreeMap<_, _> = flushed.kv("table").unwrap().map(Result::unwrap).collect();
        assert!(table == data.table, "the table differs: {} entries", table.len());
        let gone = client.open_kv(job.job, "t:table").err().unwrap();
        assert_eq!(gone.status, Status::LeaseExpired, "{gone}");
    } else {
        eventually("the loss", || prefix(&client, &job).flush == LOST);
        assert!(Flushed::open(&directory).is_err(), "there is no manifest");
        let left = || std::fs::read_dir(&directory).map_or(0, |entries| entries.count());
        eventually("what others had written is deleted", || left() == 0);
        let gone = client.open_kv(job.job, "t:table").err().unwrap();
        assert_eq!(gone.status, Status::DataLost, "{gone}");
    }
    eventually("all blocks free", || {
        let status = admin.status().unwrap();
        status.free == status.blocks && status.quarantined == 0 && status.flushing == 0
    });
    // Another job has the whole of the memory, and none of it from before.
    let other = admin.register_job("other", 3_600_000, 0).unwrap();
    let f = cluster.client(&other.token).create_file(other.job, "", 1, false).unwrap();
    f.write_all(&data.text).unwrap();
    let mut text = vec![0; data.text.len()];
    f.read_into(0, &mut text).unwrap();
    assert!(text == data.text);
    if cell.whole { "whole" } else { "lost" }
}
