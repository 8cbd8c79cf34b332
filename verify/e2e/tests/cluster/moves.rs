//! Stores that split and merge under load, without an effect on their clients.

use honeycomb_client::{Client, JobTicket, Kv};
use honeycomb_e2e::{Cluster, KIB, LEASE_MS, eventually, kv, noise, prefix};
use honeycomb_env::Clock;
use honeycomb_types::JobId;
use honeycomb_wire::Status;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const MIB: u64 = 1024 * KIB;

fn blocks(client: &Client, job: JobId) -> u32 {
    client.tree(job).unwrap().iter().flat_map(|p| &p.structures).map(|s| s.blocks).sum()
}

fn start(name: &str) -> (Cluster, Client, JobTicket) {
    let cluster = Cluster::start(2, 64 * MIB, MIB);
    let (client, job) = cluster.job(name);
    prefix(&client, &job, "/t", LEASE_MS);
    (cluster, client, job)
}

fn all(kv: &Kv) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let page = kv.scan(at, b"", false, 1 << 20).unwrap();
        for (key, value) in page.entries {
            assert!(found.insert(key, value).is_none(), "an entry was told twice");
        }
        cursor = page.next;
    }
    found
}

#[test]
fn a_store_grows_by_splits_and_shrinks_by_merges() {
    let (cluster, client, job) = start("grows");
    let store = kv(&client, &job, "/t", 1);
    let value = |n: u64, round: u64| noise(n * 7 + round, 100 + (n % 40) as usize * 100);
    for n in 0..4000u64 {
        store.put(format!("key-{n}").as_bytes(), &value(n, 0)).unwrap();
    }
    let grown = blocks(&client, job.job);
    assert!(grown >= 8, "{grown} blocks hold 8 MB");
    assert_eq!(store.length().unwrap(), 4000);
    let found = all(&store);
    assert_eq!(found.len(), 4000);
    // A new client sees the same data.
    let other = client.open_kv(job.job, "/t").unwrap();
    let mut out = Vec::new();
    for n in 0..4000u64 {
        let key = format!("key-{n}");
        assert!(other.get(key.as_bytes(), &mut out).unwrap());
        assert_eq!(out, value(n, 0), "{key}");
        assert_eq!(found[key.as_bytes()], out);
        out.clear();
    }
    for n in 100..4000u64 {
        assert!(store.delete(format!("key-{n}").as_bytes()).unwrap());
    }
    eventually("the store is small again", || blocks(&client, job.job) <= 2);
    assert_eq!(store.length().unwrap(), 100);
    assert_eq!(all(&store).len(), 100);
    client.remove_structure(job.job, "/t").unwrap();
    eventually("all blocks are free", || {
        let status = cluster.client(cluster.controller.token(), Default::default()).status();
        status.is_ok_and(|s| s.free == s.blocks)
    });
}

/// Blocks of a store are bounded by memory and not by its slots: the fullest of 1024 slots ended it at
/// 36 MiB.
#[test]
fn store_of_small_blocks_grows_until_memory_ends() {
    let cluster = Cluster::start(1, 128 * MIB, 64 * KIB);
    let (client, job) = cluster.job("grows");
    prefix(&client, &job, "/t", LEASE_MS);
    let store = kv(&client, &job, "/t", 1);
    let full = |n: u64| store.put(format!("k{n}").as_bytes(), &[n as u8; 4096]).err();
    let (stored, error) = (0..1u64 << 20).find_map(|n| full(n).map(|e| (n, e))).unwrap();
    assert_eq!(error.status, Status::OutOfMemory, "{error}");
    assert!(stored * 4096 > 64 * MIB, "{stored} values fill 128 MiB");
    assert_eq!(store.length().unwrap(), stored);
}

#[test]
fn one_tag_that_fills_its_block_is_named() {
    let cluster = Cluster::start(1, 16 * MIB, 64 * KIB);
    let (client, job) = cluster.job("hot");
    prefix(&client, &job, "/t", LEASE_MS);
    let store = kv(&client, &job, "/t", 1);
    let full = |n: u64| store.put(format!("{{hot}}{n}").as_bytes(), &[n as u8; 1000]).err();
    let error = (0..1000).find_map(full).unwrap();
    assert_eq!(error.status, Status::BlockFull, "{error}");
    let text = error.to_string();
    assert!(text.contains("block B") && text.contains("the tag '{hot}'"), "{text}");
}

#[test]
fn writers_of_every_kind_go_on_while_the_store_splits_and_merges() {
    let (_cluster, client, job) = start("writers");
    let store = kv(&client, &job, "/t", 1);
    let stop = AtomicBool::new(false);
    let clock = Clock::start();
    std::thread::scope(|threads| {
        let mut counters = Vec::new();
        for thread in 0..3u64 {
            let (client, stop) = (&client, &stop);
            let store = client.open_kv(job.job, "/t").unwrap();
            // All writers add to shared counters: lost or repeated operations change the sum.
            counters.push(threads.spawn(move || {
                let mut done = 0i64;
                while !stop.load(Relaxed) {
                    let key = format!("sum-{}", done % 17);
                    store.add(key.as_bytes(), 1).unwrap();
                    let own = format!("own-{thread}-{}", done % 50);
                    store.put(own.as_bytes(), &done.to_le_bytes()).unwrap();
                    let mut out = Vec::new();
                    assert!(store.get(own.as_bytes(), &mut out).unwrap());
                    assert_eq!(out, done.to_le_bytes(), "a writer reads what it wrote");
                    done += 1;
                }
                done
            }));
        }
        for round in 0..3u64 {
            for n in 0..1500u64 {
                store.put(format!("fill-{n}").as_bytes(), &noise(n + round, 2000)).unwrap();
            }
            assert!(blocks(&client, job.job) >= 3);
            for n in 0..1500u64 {
                let mut out = Vec::new();
                assert!(store.get(format!("fill-{n}").as_bytes(), &mut out).unwrap());
                assert_eq!(out, noise(n + round, 2000));
                assert!(store.delete(format!("fill-{n}").as_bytes()).unwrap());
            }
            eventually("the store is small again", || blocks(&client, job.job) <= 2);
        }
        stop.store(true, Relaxed);
        let done: i64 = counters.into_iter().map(|t| t.join().unwrap()).sum();
        let sums = (0..17).map(|n| store.add(format!("sum-{n}").as_bytes(), 0).unwrap());
        assert_eq!(sums.sum::<i64>(), done, "after {}", clock.now());
    });
}

/// Regression: batches to a store of small blocks got `Busy` until their deadline: a full block could not be
/// split, and did not retry.
#[test]
fn batches_to_small_blocks_find_room() {
    let cluster = Cluster::start(2, 32 * MIB, 256 * KIB);
    let (client, job) = cluster.job("small");
    prefix(&client, &job, "/t", LEASE_MS);
    let store = kv(&client, &job, "/t", 1);
    let value = noise(3, 1024);
    let keys: Vec<String> = (0..6000).map(|n| format!("small-{n}")).collect();
    for batch in keys.chunks(48) {
        let entries: Vec<(&[u8], &[u8])> =
            batch.iter().map(|key| (key.as_bytes(), &value[..])).collect();
        for done in store.multi_put(&entries) {
            assert!(!done.unwrap(), "every key is new");
        }
    }
    assert_eq!(store.length().unwrap(), 6000);
    assert!(blocks(&client, job.job) >= 24);
}

/// The first request to a block, where it filled the block, was refused with `BlockFull`; any later one
/// waited until a part of the block had moved.
#[test]
fn a_first_batch_that_fills_its_block_finds_room() {
    let cluster = Cluster::start(2, 32 * MIB, 64 * KIB);
    let (client, job) = cluster.job("first");
    let keys: Vec<String> = (0..4000).map(|n| format!("key-{n}")).collect();
    // Of each size a first request has a little more than has room in its block.
    for size in [600, 700, 730] {
        let path = format!("/t{size}");
        prefix(&client, &job, &path, LEASE_MS);
        let store = kv(&client, &job, &path, 8);
        let value = noise(3, size);
        let entries: Vec<(&[u8], &[u8])> =
            keys.iter().map(|key| (key.as_bytes(), &value[..])).collect();
        let refused = store.multi_put(&entries).into_iter().filter_map(Result::err);
        let refused: Vec<String> = refused.map(|e| e.to_string()).collect();
        assert_eq!(refused, Vec::<String>::new(), "of {size} bytes");
        assert_eq!(store.length().unwrap(), 4000);
    }
}
