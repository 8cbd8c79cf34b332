//! A log is as elastic as the built-in structures: it grows, is flushed and loaded, is demoted to a disk,
//! leaves a draining server, and reports its changes.

use super::{append, at, scan, stats, trim, with_log};
use honeycomb_client::{
    Client, Custom, CustomOptions, Error, Heard, JobClient, JobTicket, Listener,
};
use honeycomb_e2e::{
    Cluster, KIB, LEASE_MS, Scratch, disk, eventually, noise, prefix, server_options,
};
use honeycomb_server::{Departure, MemoryServer, ServerOptions};
use honeycomb_structures::Registry;
use honeycomb_tiers::{Access, FlushRoot, Flushed, Place};
use honeycomb_transfer::{Load, Loaded, load};
use honeycomb_types::{PrefixId, TierClass};
use honeycomb_wire::Status;
use honeycomb_wire::messages::PrefixOptions;
use honeycomb_wire::notice::{Filter, kinds};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u64 = 64 * KIB;
const PATIENCE: Duration = Duration::from_secs(20);

/// Adds a server that serves the log.
fn add(cluster: &mut Cluster, memory: u64, change: impl FnOnce(ServerOptions) -> ServerOptions) {
    let (controller, token) = (cluster.controller.address(), cluster.controller.token());
    let options = server_options(controller, token, memory, BLOCK);
    let options = change(ServerOptions { kinds: with_log(), ..options });
    cluster.servers.push(MemoryServer::start(&options, PATIENCE).unwrap());
}

fn flushing(directory: &Path) -> Cluster {
    flushing_with(directory, with_log())
}

/// A cluster with one server, which serves these kinds and can flush.
pub fn flushing_with(directory: &Path, kinds: Arc<Registry>) -> Cluster {
    let mut cluster = Cluster::start_with(Vec::new(), 4096 * KIB, BLOCK);
    let place = Place::Directory(directory.into());
    let flush_root = Some(FlushRoot { place, access: Access::none() });
    add(&mut cluster, 4096 * KIB, |options| ServerOptions { flush_root, kinds, ..options });
    cluster
}

pub fn log(client: &Client, job: &JobTicket, address: &str) -> Custom {
    client.create_custom(job.job, address, "log", CustomOptions::default()).unwrap()
}

/// A record that differs from all others.
fn record(number: u64) -> Vec<u8> {
    [&number.to_le_bytes()[..], &noise(number, 700)].concat()
}

pub fn fill(log: &Custom, count: u64) {
    for number in 0..count {
        let tag: &[u8] = if number.is_multiple_of(2) { b"even" } else { b"odd" };
        assert_eq!(append(log, tag, &record(number)), number);
    }
}

/// The log has these records, numbered from a number on.
fn has(log: &Custom, from: u64, records: std::ops::Range<u64>) {
    let found = scan(log, 0, b"");
    assert_eq!(found.len() as u64, records.end - records.start);
    for (at, (found, number)) in (from..).zip(found.iter().zip(records)) {
        assert_eq!(found.number, at);
        assert!(found.bytes == record(number), "record {number}");
    }
}

#[test]
fn log_grows_over_the_blocks_of_several_servers() {
    let mut cluster = Cluster::start_with(Vec::new(), 0, BLOCK);
    (0..2).for_each(|_| add(&mut cluster, 2048 * KIB, |options| options));
    let (client, job) = cluster.job("grows");
    prefix(&client, &job, "task", LEASE_MS);
    let log = log(&client, &job, "task:log");
    fill(&log, 1000);
    let blocks = stats(&log);
    let (last, full) = blocks.split_last().unwrap();
    assert!(full.len() > 8 && full.iter().all(|block| block.sealed) && !last.sealed);
    has(&log, 0, 0..1000);
    let late = client.open_custom(job.job, "task:log", "log").unwrap();
    assert_eq!(late.call("read", at(777)).unwrap().payload, record(777));
}

/// Waits for a flush, and returns its place.
pub fn flush(client: &Client, job: &JobTicket, path: &str, name: &str) -> Place {
    let ticket = client.begin_flush(job.job, path, name).unwrap();
    eventually("the flush is done", || client.flush_progress(job.job, ticket.number).unwrap().done);
    Place::parse(&ticket.place).unwrap()
}

pub fn load_from(
    client: &Client,
    job: &JobTicket,
    place: &Place,
    path: &str,
) -> Result<Loaded, Error> {
    let on = JobClient { client, job: job.job };
    let options = Load { path: path.into(), lease_ms: LEASE_MS, ..Load::default() };
    load(on, place, &Access::none(), &options, &|_, _| {})
}

fn load_at(client: &Client, job: &JobTicket, place: &Place, path: &str) {
    assert_eq!(load_from(client, job, place, path).unwrap().structures, 1);
}

#[test]
fn log_is_flushed_and_loaded_into_another_cluster() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(&scratch.0).unwrap();
    let cluster = flushing(&scratch.0);
    let (client, job) = cluster.job("flushes");
    prefix(&client, &job, "task", LEASE_MS);
    let first = log(&client, &job, "task:log");
    fill(&first, 400);
    // A part of a block, and whole blocks.
    assert_eq!(trim(&first, 130), 130);
    let place = flush(&client, &job, "task", "copy");
    // Later records are not in the flush.
    append(&first, b"", b"late");
    load_at(&client, &job, &place, "again");
    let again = client.open_custom(job.job, "again:log", "log").unwrap();
    has(&again, 0, 130..400);
    assert_eq!(scan(&again, 0, b"odd").len(), 135);
    append(&again, b"", b"more");

    // Also by a barrier, and by the end of the prefix, into a cluster of its own.
    let ticket = client.begin_barrier_flush(job.job, "again", "barrier", &[]).unwrap();
    eventually("the flush is done", || client.flush_progress(job.job, ticket.number).unwrap().done);
    let options = PrefixOptions { lease_ms: 300, flush_to: "end".into(), ..Default::default() };
    client.create_prefix(job.job, "short", &[], options).unwrap();
    fill(&log(&client, &job, "short:log"), 200);
    let end = scratch.0.join("flushes/end");
    eventually("the flush at its end is complete", || Flushed::open(&end).is_ok());
    let end = Place::Directory(end);
    let other = flushing(&scratch.0);
    let (client, job) = other.job("loads");
    load_at(&client, &job, &end, "back");
    has(&client.open_custom(job.job, "back:log", "log").unwrap(), 0, 0..200);
}

#[test]
fn log_that_does_not_fit_in_memory_is_demoted_and_read_back() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(&scratch.0).unwrap();
    let mut cluster = Cluster::start_with(Vec::new(), 0, BLOCK);
    let disks = vec![disk(&scratch.0, 16 << 20, TierClass::Nvme)];
    add(&mut cluster, 2048 * KIB, |options| ServerOptions { disks, ..options });
    let (client, job) = cluster.job("spills");
    prefix(&client, &job, "task", LEASE_MS);
    let log = log(&client, &job, "task:log");
    let count = 8000;
    fill(&log, count);
    let whole = cluster.client(cluster.controller.token(), PrefixId(0));
    let status = whole.status().unwrap();
    assert!(status.tiers[0].used * BLOCK >= 3 << 20, "{:?}", status.tiers[0]);
    has(&log, 0, 0..count);
    for number in [0, 1, 4321, count - 1] {
        let found = log.call("read", at(number)).unwrap();
        assert!((found.value, found.payload) == (number, record(number)));
    }
    assert_eq!(stats(&log).iter().map(|block| block.records).sum::<u64>(), count);
    // Trimmed blocks free their room on the disk.
    assert_eq!(trim(&log, count - 10), count - 10);
    has(&log, count - 10, count - 10..count);
    eventually("the disk is empty", || whole.status().unwrap().tiers[0].used <= 2);
}

#[test]
fn log_leaves_a_draining_server_while_it_is_written_and_followed() {
    let mut cluster = Cluster::start_with(Vec::new(), 0, BLOCK);
    (0..2).for_each(|_| add(&mut cluster, 4096 * KIB, |options| options));
    let (client, job) = cluster.job("drains");
    prefix(&client, &job, "task", LEASE_MS);
    let log = log(&client, &job, "task:log");
    fill(&log, 300);
    assert_eq!(trim(&log, 5), 5);
    let departures = cluster.servers[0].departures().unwrap();
    let whole = cluster.client(cluster.controller.token(), PrefixId(0));
    whole.drain_server(&cluster.servers[0].address().to_string(), false).unwrap();
    let mut count = 300;
    let departure = loop {
        append(&log, b"", &record(count));
        count += 1;
        if let Ok(departure) = departures.recv_timeout(Duration::from_millis(5)) {
            break departure;
        }
        assert!(count < 4000, "the server does not become empty");
    };
    assert_eq!(departure, Departure::Released);
    cluster.servers.remove(0).wait();
    append(&log, b"", &record(count));
    has(&log, 5, 5..count + 1);
}

/// The next notice of a subscription: the number of a record, or `None` for a gap.
fn reported(listener: &mut Listener) -> Option<u64> {
    let notice = listener.next(PATIENCE).unwrap().expect("a record was appended");
    match notice.heard {
        Heard::Append { offset, length: 1 } => Some(offset),
        Heard::Gap { .. } => None,
        other => panic!("a log does not report {other:?}"),
    }
}

/// Appends records, from this number on, until one of them is reported: a record that is appended before the
/// listener subscribes to its block is in a gap. Returns the number after the last one, which is reported.
fn append_until_reported(log: &Custom, listener: &mut Listener, from: u64) -> u64 {
    let mut next = from;
    let mut last = loop {
        assert!(next < from + 1000, "no record is reported");
        assert_eq!(append(log, b"", &record(next)), next);
        next += 1;
        let notice = listener.next(Duration::from_millis(20)).unwrap();
        if let Some(Heard::Append { offset, .. }) = notice.map(|notice| notice.heard) {
            break offset;
        }
    };
    assert!(last >= from, "record {last} was not appended now");
    while last + 1 < next {
        let number = reported(listener);
        assert_eq!(number, Some(last + 1));
        last += 1;
    }
    next
}

#[test]
fn log_reports_its_records_to_subscribers() {
    let mut cluster = Cluster::start_with(Vec::new(), 0, BLOCK);
    (0..2).for_each(|_| add(&mut cluster, 2048 * KIB, |options| options));
    let (client, job) = cluster.job("reports");
    prefix(&client, &job, "task", LEASE_MS);
    let log = log(&client, &job, "task:log");
    fill(&log, 10);
    let mut listener = log.listen(kinds::APPEND, Filter::All).unwrap();
    let mut others = log.listen(kinds::PUT, Filter::All).unwrap();
    (10..40).for_each(|number| assert_eq!(append(&log, b"", &record(number)), number));
    (10..40).for_each(|number| assert_eq!(reported(&mut listener), Some(number)));
    assert!(others.next(Duration::ZERO).unwrap().is_none(), "no record is a put");
    // The listener subscribes to a further block when it reads, and reports the records before that as a gap.
    (40..400).for_each(|number| assert_eq!(append(&log, b"", &record(number)), number));
    let rest: Vec<u64> = std::iter::from_fn(|| reported(&mut listener)).collect();
    assert!(rest.iter().copied().eq(40..40 + rest.len() as u64), "the rest of the block: {rest:?}");
    let next = append_until_reported(&log, &mut listener, 400);
    // A block that moves to another server reports its records there.
    let departures = cluster.servers[0].departures().unwrap();
    let whole = cluster.client(cluster.controller.token(), PrefixId(0));
    whole.drain_server(&cluster.servers[0].address().to_string(), false).unwrap();
    assert_eq!(departures.recv_timeout(PATIENCE), Ok(Departure::Released));
    cluster.servers.remove(0).wait();
    append_until_reported(&log, &mut listener, next);
}

#[test]
fn listener_that_comes_late_to_the_next_block_gets_a_gap() {
    let mut cluster = Cluster::start_with(Vec::new(), 0, BLOCK);
    add(&mut cluster, 2048 * KIB, |options| options);
    let (client, job) = cluster.job("late");
    prefix(&client, &job, "task", LEASE_MS);
    let log = log(&client, &job, "task:log");
    let mut listener = log.listen(kinds::APPEND, Filter::All).unwrap();
    let mut next = 0;
    // The listener subscribes to the next block when it reads.
    let first = loop {
        assert_eq!(append(&log, b"", &record(next)), next);
        next += 1;
        match stats(&log)[..] {
            [first, .., last] if last.records > 0 => break first.records,
            _ => {}
        }
    };
    (0..first).for_each(|number| assert_eq!(reported(&mut listener), Some(number)));
    assert_eq!(reported(&mut listener), None, "records of the next block were not reported");
    append_until_reported(&log, &mut listener, next);
}

#[test]
fn log_is_refused_in_a_prefix_that_acknowledges_when_flushed() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(&scratch.0).unwrap();
    let cluster = flushing(&scratch.0);
    let (client, job) = cluster.job("refuses");
    let options = PrefixOptions { lease_ms: LEASE_MS, acknowledge: 2, ..Default::default() };
    client.create_prefix(job.job, "journal", &[], options).unwrap();
    let options = CustomOptions::default();
    let refused = client.create_custom(job.job, "journal:log", "log", options).map(drop);
    let refused = refused.unwrap_err();
    assert_eq!(refused.status, Status::WrongKind);
    assert!(refused.message.contains("acknowledged as flushed"), "{refused}");
    // Other options of a prefix are served.
    let options = PrefixOptions { lease_ms: LEASE_MS, persist: true, ..Default::default() };
    client.create_prefix(job.job, "persists", &[], options).unwrap();
    log(&client, &job, "persists:log");
}
