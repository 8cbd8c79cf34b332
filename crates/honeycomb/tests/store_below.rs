//! Stores that do not fit into memory: what has no room there lies on a disk, and everything works on it.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Cluster, KIB, Scratch, disk, eventually, kv, noise};
use honeycomb_client::{Client, JobTicket, Kv};
use honeycomb_types::TierClass;
use honeycomb_wire::Status;
use honeycomb_wire::messages::TierUse;

const BLOCK: u64 = 64 * KIB;
const MEMORY: u64 = 2 << 20;
const DISK: u64 = 14 << 20;
/// Three times what memory has.
const KEYS: u32 = 6_000;
const VALUE: usize = 1000;

struct World {
    cluster: Cluster,
    client: Client,
    job: JobTicket,
    _scratch: Scratch,
}

fn key(n: u32) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

fn value(n: u32, round: u32) -> Vec<u8> {
    let mut value = noise(u64::from(n) << 8 | u64::from(round), VALUE - 4);
    value.extend(n.to_le_bytes());
    value
}

impl World {
    fn new() -> World {
        let scratch = Scratch::new();
        std::fs::create_dir_all(&scratch.0).unwrap();
        let tiers = vec![disk(&scratch.0, DISK, TierClass::Ssd)];
        let cluster = Cluster::with_tiers(MEMORY, BLOCK, tiers);
        let (client, job) = cluster.job("stores");
        World { cluster, client, job, _scratch: scratch }
    }

    fn disk(&self) -> TierUse {
        let watcher = self.cluster.client(self.cluster.controller.token(), Default::default());
        watcher.status().unwrap().tiers.remove(0)
    }
}

/// Four writers put their share of the keys.
fn put_all(store: &Kv, round: u32, keys: u32) {
    std::thread::scope(|scope| {
        for writer in 0..4 {
            scope.spawn(move || {
                for n in (writer..keys).step_by(4) {
                    store.put(&key(n), &value(n, round)).unwrap();
                }
            });
        }
    });
}

fn check(store: &Kv, round: impl Fn(u32) -> Option<u32>) {
    let mut got = Vec::new();
    for n in 0..KEYS {
        let found = store.get(&key(n), &mut got).unwrap();
        match round(n) {
            Some(round) => assert!(found && got == value(n, round), "key {n} of round {round}"),
            None => assert!(!found, "key {n} was deleted"),
        }
    }
}

#[test]
fn a_store_three_times_as_large_as_memory_reads_back() {
    let world = World::new();
    let store = kv(&world.client, &world.job, ":s", 1);
    // Nobody is refused: a write waits at most until something has gone down.
    put_all(&store, 0, KEYS);
    assert!(world.disk().used > 0, "something went down");
    check(&store, |_| Some(0));
    assert_eq!(store.length().unwrap(), u64::from(KEYS));
    // Some are written again, and some go, wherever they are.
    put_all(&store, 1, 1000);
    for n in 1000..1200 {
        assert!(store.delete(&key(n)).unwrap(), "it was there");
    }
    let round = |n| match n {
        0..1000 => Some(1),
        1000..1200 => None,
        _ => Some(0),
    };
    check(&store, round);
    world.client.remove_structure(world.job.job, ":s").unwrap();
    eventually("places come back", || world.disk().used == 0);
}

#[test]
fn a_store_that_fits_nowhere_is_refused_and_keeps_what_it_has() {
    let world = World::new();
    let store = kv(&world.client, &world.job, ":s", 1);
    let mut kept = 0;
    let refused = (0..200_000).find_map(|n| match store.put(&key(n), &value(n, 0)) {
        Ok(_) => {
            kept += 1;
            None
        }
        Err(e) => Some(e),
    });
    let refused = refused.expect("memory and disk are full some time");
    assert_eq!(refused.status, Status::OutOfMemory, "{}", refused.message);
    assert!(kept > KEYS, "{kept} had room");
    let mut got = Vec::new();
    for n in (0..kept).step_by(7) {
        assert!(store.get(&key(n), &mut got).unwrap() && got == value(n, 0), "key {n} is there");
    }
}
