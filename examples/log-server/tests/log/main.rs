//! The log in a cluster: through the generic client, and with raw requests.
#![allow(clippy::unwrap_used)]

mod elastic;
mod faulty;
mod isolation;
mod kinds;
mod process;
mod ranges;
mod received;
mod retry;

use honeycomb_client::{Ask, Client, Custom, CustomOptions, JobTicket};
use honeycomb_e2e::{Cluster, KIB, eventually, prefix};
use honeycomb_structures::Registry;
use honeycomb_wire::Status;
use log_structure::{Log, Page, Record, ScanArgs, Stats, TRIMMED, page_records};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

fn with_log() -> Arc<Registry> {
    Arc::new(Registry::builtin().with(Log).unwrap())
}

fn cluster() -> Cluster {
    Cluster::start_with(vec![with_log(), with_log()], 8192 * KIB, 64 * KIB)
}

fn create(client: &Client, job: &JobTicket) -> Custom {
    prefix(client, job, "task", 60_000);
    client.create_custom(job.job, "task:log", "log", CustomOptions::default()).unwrap()
}

fn append(log: &Custom, tag: &[u8], bytes: &[u8]) -> u64 {
    log.call("append", Ask { args: tag, payload: bytes, ..Ask::default() }).unwrap().value
}

fn at(position: u64) -> Ask<'static> {
    Ask { position: Some(position), ..Ask::default() }
}

fn scan(log: &Custom, from: u64, tag: &[u8]) -> Vec<Record> {
    let args = ScanArgs { records: 1000, bytes: 1 << 16, tag }.encode();
    let (mut from, mut out) = (from, Vec::new());
    loop {
        let ask = Ask { args: &args, ..at(from) };
        let answered = log.call("scan", ask).unwrap();
        out.extend(page_records(answered.value, &answered.payload).unwrap());
        let page = Page::decode(&answered.args).unwrap();
        if page.end {
            return out;
        }
        from = answered.value + page.next;
    }
}

fn stats(log: &Custom) -> Vec<Stats> {
    let answers = log.call_each("stats", Ask::default()).unwrap();
    answers.iter().map(|answered| Stats::decode(&answered.args).unwrap()).collect()
}

/// Trims, and returns how many records were trimmed.
fn trim(log: &Custom, through: u64) -> u64 {
    log.call_each("trim", at(through)).unwrap().iter().map(|answered| answered.value).sum()
}

fn free_blocks(cluster: &Cluster) -> u64 {
    let client = cluster.client(cluster.controller.token(), honeycomb_types::PrefixId(0));
    client.status().unwrap().free
}

#[test]
fn writers_and_readers_of_a_log_over_many_blocks() {
    let cluster = cluster();
    let (client, job) = cluster.job("log");
    let log = create(&client, &job);
    let per_writer = 300;
    let numbers: Vec<Vec<u64>> = thread::scope(|scope| {
        let writers = ["a", "b", "c"].map(|tag| {
            let (cluster, job) = (&cluster, &job);
            scope.spawn(move || {
                let client = cluster.client(&job.token, honeycomb_types::PrefixId(0));
                let log = client.open_custom(job.job, "task:log", "log").unwrap();
                let record = |i: u32| [tag.as_bytes(), &i.to_le_bytes(), &[7; 500]].concat();
                (0..per_writer).map(|i| append(&log, tag.as_bytes(), &record(i))).collect()
            })
        });
        writers.map(|writer| writer.join().unwrap()).into()
    });
    assert!(numbers.iter().all(|own| own.is_sorted_by(|a, b| a < b)), "in the order of each");
    let all: BTreeSet<u64> = numbers.iter().flatten().copied().collect();
    assert_eq!(all, (0..3 * per_writer as u64).collect(), "unique, and without gaps");

    // A client with the first version of the map also finds all records.
    let found = scan(&log, 0, b"");
    assert_eq!(found.len(), all.len());
    assert!(found.iter().zip(0..).all(|(record, number)| record.number == number));
    for (tag, own) in [b"a", b"b", b"c"].iter().zip(&numbers) {
        let found = scan(&log, 0, *tag);
        assert_eq!(found.iter().map(|record| record.number).collect::<Vec<_>>(), *own);
        let counted = |record: &Record| u32::from_le_bytes(record.bytes[1..5].try_into().unwrap());
        assert!(found.iter().map(counted).eq(0..per_writer), "each exactly once");
    }
    let read = log.call("read", at(777)).unwrap();
    assert_eq!((read.value, &read.payload), (777, &found[777].bytes));
    let stats = stats(&log);
    assert!(stats.len() > 5, "{} blocks", stats.len());
    assert_eq!(stats.iter().map(|block| block.appended).sum::<u64>(), all.len() as u64);
}

#[test]
fn a_trim_gives_whole_blocks_back_to_the_cluster() {
    let cluster = cluster();
    let (client, job) = cluster.job("log");
    let before = free_blocks(&cluster);
    let log = create(&client, &job);
    for i in 0..1000_u32 {
        append(&log, b"", &[&i.to_le_bytes()[..], &[3; 600]].concat());
    }
    let blocks = stats(&log).len();
    assert!(blocks >= 9, "{blocks} blocks");
    assert_eq!(trim(&log, 990), 990);
    assert_eq!(trim(&log, 500), 0, "what is gone is gone once");
    // The tail, its pre-allocated successor, and the block of the last records.
    eventually("trimmed blocks are free", || before - free_blocks(&cluster) <= 3);
    let refused = log.call("read", at(989)).unwrap_err();
    assert_eq!((refused.status, refused.code), (Status::Refused, TRIMMED));
    // The first remaining records, for this client and for a client that opens the log now.
    let late = client.open_custom(job.job, "task:log", 0x80).unwrap();
    for log in [&log, &late] {
        let found = scan(log, 0, b"");
        assert_eq!(
            found.iter().map(|r| r.number).collect::<Vec<_>>(),
            (990..1000).collect::<Vec<_>>()
        );
    }
    assert_eq!(append(&late, b"", b"on"), 1000);
    drop((log, late));
    client.remove_structure(job.job, "task:log").unwrap();
    eventually("everything is free", || free_blocks(&cluster) == before);
}

#[test]
fn followers_see_what_is_appended_also_in_blocks_to_come() {
    let cluster = cluster();
    let (client, job) = cluster.job("log");
    let log = create(&client, &job);
    let count = 400_u64;
    thread::scope(|scope| {
        let (cluster, job) = (&cluster, &job);
        let follower = scope.spawn(move || {
            let client = cluster.client(&job.token, honeycomb_types::PrefixId(0));
            let log = client.open_custom(job.job, "task:log", "log").unwrap();
            let args = ScanArgs { records: 100, bytes: 1 << 16, tag: b"odd" }.encode();
            let (mut from, mut seen) = (0, Vec::new());
            while seen.len() < count as usize / 2 {
                let wait = Duration::from_secs(20);
                let answered = log.call("follow", Ask { args: &args, wait, ..at(from) }).unwrap();
                let page = Page::decode(&answered.args).unwrap();
                let found = page_records(answered.value, &answered.payload).unwrap();
                seen.extend(found.iter().map(|record| record.number));
                from = answered.value + page.next;
            }
            seen
        });
        for i in 0..count {
            append(&log, if i % 2 == 1 { b"odd" } else { b"even" }, &[1; 800]);
        }
        let odd: Vec<u64> = (0..count).filter(|i| i % 2 == 1).collect();
        assert_eq!(follower.join().unwrap(), odd);
    });
    // No record arrives: the caller's timeout ends the wait, not the server's.
    let args = ScanArgs { records: 1, bytes: 1000, tag: b"" }.encode();
    let clock = honeycomb_env::Clock::start();
    let wait = Duration::from_millis(300);
    let nothing = log.call("follow", Ask { args: &args, wait, ..at(count) }).unwrap_err();
    assert_eq!(nothing.status, Status::NotYet);
    assert!(clock.now().as_millis() >= 300);
    let nothing = log.call("follow", Ask { args: &args, ..at(count) }).unwrap_err();
    assert_eq!(nothing.status, Status::NotYet);
}

#[test]
fn large_records_come_whole() {
    let cluster = Cluster::start_with(vec![with_log()], 16 << 20, 1 << 20);
    let (client, job) = cluster.job("log");
    let log = create(&client, &job);
    let limit = (1 << 20) / 8 - 4 - 1;
    let large = honeycomb_e2e::noise(7, limit);
    for number in 0..12 {
        assert_eq!(append(&log, b"", &large), number);
    }
    assert!((0..12).all(|number| log.call("read", at(number)).unwrap().payload == large));
    let ask = Ask { payload: &vec![1; limit + 1], ..Ask::default() };
    assert_eq!(log.call("append", ask).unwrap_err().status, Status::ValueTooLarge);
    let ask = Ask { payload: &vec![1; 1 << 20], ..Ask::default() };
    assert_eq!(log.call("append", ask).unwrap_err().status, Status::ValueTooLarge);
    assert_eq!(append(&log, b"", b"on"), 12);
}

#[test]
fn what_is_asked_wrongly_is_refused_before_it_is_sent() {
    let cluster = cluster();
    let (client, job) = cluster.job("log");
    let log = create(&client, &job);
    let wrong = |operation: &str, ask: Ask<'_>| log.call(operation, ask).unwrap_err();
    let unknown = wrong("put", Ask::default());
    assert_eq!(unknown.status, Status::UnknownOpcode);
    assert!(unknown.message.contains("append, read, scan, follow, trim, stats"), "{unknown}");
    let (none, key) = (Ask::default(), Ask { key: Some(b"k"), ..Ask::default() });
    let wait = Ask { wait: Duration::from_secs(1), ..at(0) };
    for (operation, ask, why) in [
        ("read", none, "needs a position"),
        ("append", at(0), "takes no position"),
        ("append", key, "takes no key"),
        ("read", Ask { payload: b"x", ..at(0) }, "takes no payload"),
        ("read", wait, "never waits"),
        ("trim", at(0), "call_each"),
        ("append", Ask { args: &[0; 65_536], ..none }, "arguments of 65536 bytes"),
    ] {
        let e = wrong(operation, ask);
        assert_eq!(e.status, Status::InvalidArgument, "{operation}: {e}");
        assert!(e.message.contains(why) && e.message.contains("task:log"), "{e}");
    }
    let e = log.call_each("append", none).unwrap_err();
    assert!(e.message.contains("runs on one block"), "{e}");
    assert!(log.call_each("trim", none).unwrap_err().message.contains("needs a position"));
    // Other calls fail: no subscription is for no changes, and a log is not a file.
    assert_eq!(
        log.structure().listen(0, honeycomb_wire::notice::Filter::All).err().unwrap().status,
        Status::InvalidArgument
    );
    assert_eq!(client.open_file(job.job, "task:log").err().unwrap().status, Status::WrongKind);
}
