//! Flushes of all of a prefix, or of a subtree, as it was at one moment.

use super::live::{at, fill, prefix, table_of};
use super::load::{program, told};
use super::{NO_WAIT, Root, all_free, cluster};
use honeycomb_client::{Client, JobTicket};
use honeycomb_e2e::{Cluster, KIB, LEASE_MS, eventually, file, kv, noise};
use honeycomb_types::PrefixId;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

const WRITERS: u64 = 3;

/// Where each writer writes its counter, in this order: two stores, a file and a queue.
struct Places<'a> {
    first: &'a str,
    second: &'a str,
    third: &'a str,
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

fn name(kind: &str, writer: u64) -> String {
    format!("{kind}-{writer}")
}

/// Each writer raises its counter in one store, then in the other, then in a file and in a queue. At one
/// moment the first is ahead of the last by one at most, and nothing that comes later is ahead of anything
/// that comes earlier: as a transfer from one account to another has left the first before it is in the
/// other, and is nowhere at most once.
fn counters_agree(
    (client, job): (&Client, &JobTicket),
    places: &Places<'_>,
    flushes: u32,
    mut flush: impl FnMut(u32) -> [honeycomb_tiers::Flushed; 3],
) {
    let first = kv(client, job, &format!("{}:first", places.first), 4);
    let second = kv(client, job, &format!("{}:second", places.second), 4);
    // They take a while to copy, one block after the other.
    let tables = [fill(&first), fill(&second)];
    for writer in 0..WRITERS {
        let key = writer.to_le_bytes();
        for store in [&first, &second] {
            store.put(&key, &0u64.to_le_bytes()).unwrap();
        }
    }
    let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (first, second, over, done) = (&first, &second, &over, &done);
            let log = file(client, job, &format!("{}:{}", places.third, name("log", writer)));
            let address = format!("{}:{}", places.third, name("work", writer));
            let work = client.create_queue(job.job, &address, 0, 0, false).unwrap();
            scope.spawn(move || {
                let key = writer.to_le_bytes();
                for n in 1u64..4000 {
                    if over.load(SeqCst) {
                        break;
                    }
                    let n = n.to_le_bytes();
                    first.put(&key, &n).unwrap();
                    second.put(&key, &n).unwrap();
                    log.append(&n).unwrap();
                    work.put(&n, NO_WAIT).unwrap();
                    done.fetch_add(1, SeqCst);
                }
            });
        }
        for round in 0..flushes {
            let before = done.load(SeqCst);
            eventually("some are written", || done.load(SeqCst) > before || before >= 11_000);
            let [one, two, three] = flush(round);
            let (one, two) = (table_of(&one, "first"), table_of(&two, "second"));
            let told = tables.iter().zip([&one, &two]);
            assert!(told.into_iter().all(|(all, there)| {
                there.len() == all.len() + WRITERS as usize
                    && all.iter().all(|(key, value)| there.get(key) == Some(value))
            }));
            for writer in 0..WRITERS {
                let key = writer.to_le_bytes();
                let (a, b) = (number(&one[&key[..]]), number(&two[&key[..]]));
                let log = three.file(&name("log", writer)).unwrap();
                let log: Vec<u64> = log.chunks(8).map(number).collect();
                let work = three.queue(&name("work", writer)).unwrap();
                let work: Vec<u64> = work.map(|item| number(&item.unwrap())).collect();
                let (c, d) = (log.len() as u64, work.len() as u64);
                assert!(log.into_iter().eq(1..=c) && work.into_iter().eq(1..=d));
                let all = [a, b, c, d];
                assert!(
                    all.is_sorted_by(|early, late| early >= late) && a - d <= 1,
                    "round {round}: not of one moment: {all:?}"
                );
            }
        }
        over.store(true, SeqCst);
    });
}

fn at_once(client: &Client, job: &JobTicket, below: &[String], to: &str) {
    let ticket = client.begin_barrier_flush(job.job, "t", to, below).unwrap();
    let progress = client.await_flush(job.job, &ticket, &mut |_| true).unwrap();
    assert!(progress.done && progress.failing.is_none(), "{progress:?}");
}

fn all_is_given_back(cluster: &Cluster, client: &Client, job: &JobTicket) {
    let watcher = cluster.client(cluster.controller.token(), PrefixId(0));
    client.deregister_job(job.job).unwrap();
    eventually("all blocks free", || all_free(&watcher));
}

#[test]
fn what_is_written_meanwhile_is_there_up_to_one_moment() {
    let root = Root::new("barrier");
    let cluster = cluster(&root, 2);
    let (client, job) = cluster.job("job");
    prefix(&client, &job, "t", LEASE_MS);
    let places = Places { first: "t", second: "t", third: "t" };
    counters_agree((&client, &job), &places, 6, |round| {
        at_once(&client, &job, &[], &format!("out/{round}"));
        [(); 3].map(|()| at(&root.flush(), &format!("job/out/{round}")))
    });
    all_is_given_back(&cluster, &client, &job);
}

#[test]
fn a_subtree_is_of_one_moment() {
    let root = Root::new("barrier-subtree");
    let cluster = cluster(&root, 2);
    let (client, job) = cluster.job("job");
    ["t", "t/a", "t/b"].iter().for_each(|path| prefix(&client, &job, path, LEASE_MS));
    let places = Places { first: "t/a", second: "t/b", third: "t" };
    counters_agree((&client, &job), &places, 4, |round| {
        at_once(&client, &job, &["a".into(), "b".into()], "out");
        let there = ["job/out/a", "job/out/b", "job/out"].map(|path| at(&root.flush(), path));
        assert_eq!(there[2].manifest().below, ["a", "b"], "round {round}");
        there
    });
    // The same from the command line, including structures created since, and back.
    prefix(&client, &job, "t/b/empty", LEASE_MS);
    let run = |arguments: &[&str]| {
        let mut command = program(&cluster.controller.address().to_string(), &job);
        told(&command.args(arguments).arg("--json").output().unwrap()).unwrap()
    };
    let flushed = run(&["flush", "t", "all", "--subtree", "--barrier"]);
    assert_eq!(flushed["prefixes"].as_array().unwrap().len(), 4, "{flushed}");
    let place = flushed["place"].as_str().unwrap().to_owned();
    run(&["load", &place, "copy", "--subtree"]);
    let (from, to) =
        (client.open_kv(job.job, "t/b:second"), client.open_kv(job.job, "copy/b:second"));
    let (from, to) = (from.unwrap(), to.unwrap());
    let key = 0u64.to_le_bytes();
    let [mut had, mut has] = [Vec::new(), Vec::new()];
    assert!(from.get(&key, &mut had).unwrap() && to.get(&key, &mut has).unwrap());
    assert_eq!(had, has);
    let mut command = program(&cluster.controller.address().to_string(), &job);
    command.args(["flush", "t/a", "one", "--cancel", "--json"]);
    let (status, why) = told(&command.output().unwrap()).unwrap_err();
    assert_eq!(status, "NotFound", "nothing is begun: {why}");
    assert!(why.contains("cannot cancel the flush of t/a"), "{why}");
    assert!(!root.0.join("job/one").exists());
    let one = run(&["flush", "t/a", "one", "--barrier"]);
    assert_eq!(one["done"], true, "{one}");
    all_is_given_back(&cluster, &client, &job);
}

#[test]
fn what_is_below_memory_is_of_that_moment_too() {
    let (root, disk) = (Root::new("barrier-below"), Root::new("barrier-below-disk"));
    let (memory, below) = (4 << 20, 32 << 20);
    let cluster = Cluster::flushing_with_disk(memory, 64 * KIB, (&disk.0, below), root.flush());
    let watcher = cluster.client(cluster.controller.token(), PrefixId(0));
    let (client, job) = cluster.job("job");
    prefix(&client, &job, "t", LEASE_MS);
    let ballast = file(&client, &job, "t:ballast");
    let bytes = noise(5, 6 << 20);
    for piece in bytes.chunks(8000) {
        ballast.append(piece).unwrap();
    }
    let places = Places { first: "t", second: "t", third: "t" };
    counters_agree((&client, &job), &places, 3, |round| {
        at_once(&client, &job, &[], &format!("out/{round}"));
        [(); 3].map(|()| at(&root.flush(), &format!("job/out/{round}")))
    });
    assert!(watcher.status().unwrap().tiers[0].used > 0, "much of it is on the disk");
    assert!(at(&root.flush(), "job/out/0").file("ballast").unwrap() == bytes);
    all_is_given_back(&cluster, &client, &job);
}
