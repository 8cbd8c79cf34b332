//! Stores and queues that do not fit in memory: blocks that do not fit are on a disk, and all operations work
//! on them, until their server is drained and after that.

use honeycomb_client::{Client, ClientOptions, JobTicket, Kv};
use honeycomb_e2e::{Cluster, KIB, Scratch, disk, eventually, kv, noise};
use honeycomb_server::Departure;
use honeycomb_types::TierClass;
use honeycomb_wire::Status;
use honeycomb_wire::messages::TierUse;
use std::time::Duration;

const BLOCK: u64 = 64 * KIB;
const MEMORY: u64 = 2 << 20;
const DISK: u64 = 14 << 20;
/// Number of keys: three times the memory.
const KEYS: u32 = 6_000;
const VALUE: usize = 1000;

struct World {
    cluster: Cluster,
    client: Client,
    job: JobTicket,
    scratch: Scratch,
}

fn key(n: u32) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

fn value(n: u32, round: u32) -> Vec<u8> {
    let mut value = noise(u64::from(n) << 8 | u64::from(round), VALUE - 4);
    value.extend(n.to_le_bytes());
    value
}

/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(20);

impl World {
    fn new() -> World {
        let scratch = Scratch::new();
        std::fs::create_dir_all(&scratch.0).unwrap();
        let tiers = vec![disk(&scratch.0, DISK, TierClass::Ssd)];
        let cluster = Cluster::with_tiers(MEMORY, BLOCK, tiers);
        let (client, job) = cluster.job("stores");
        World { cluster, client, job, scratch }
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
    // No write is refused: it waits at most until a block has been demoted.
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

/// Values of these sizes fill blocks of 64 KiB so that a split ends with large values at the end of its
/// source: the remaining entries end earlier than the copy on the disk.
#[test]
fn store_that_splits_while_blocks_are_on_disk_reads_back() {
    for size in [6_000, 7_800, 8_000] {
        let scratch = Scratch::new();
        std::fs::create_dir_all(&scratch.0).unwrap();
        let tiers = vec![disk(&scratch.0, 64 << 20, TierClass::Ssd)];
        let cluster = Cluster::with_tiers(16 << 20, BLOCK, tiers);
        let (client, job) = cluster.job("stores");
        let store = kv(&client, &job, ":s", 1);
        let value = |n: u32| noise(u64::from(n), size);
        for n in 0..5_000 {
            store.put(&key(n), &value(n)).unwrap_or_else(|e| panic!("{size} bytes, key {n}: {e}"));
        }
        let mut got = Vec::new();
        for n in 0..5_000 {
            let found = store.get(&key(n), &mut got);
            assert!(found.unwrap_or_else(|e| panic!("{size} bytes, key {n}: {e}")), "key {n}");
            assert!(got == value(n), "{size} bytes, key {n}");
        }
    }
}

/// Writers in batches and readers of many keys, several at a time: each operation waits for room as a single
/// one does, and every key is read, most of them from the disk.
#[test]
fn batches_wait_for_room_and_many_keys_are_read_at_once() {
    let world = World::new();
    let store = kv(&world.client, &world.job, ":s", 1);
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let store = &store;
            scope.spawn(move || {
                for first in (writer * 500..KEYS).step_by(1000) {
                    let entries: Vec<_> =
                        (first..first + 500).map(|n| (key(n), value(n, 0))).collect();
                    let entries: Vec<_> =
                        entries.iter().map(|(key, value)| (&key[..], &value[..])).collect();
                    for (n, done) in store.multi_put(&entries).into_iter().enumerate() {
                        done.unwrap_or_else(|e| panic!("key {} of {first}: {e}", n));
                    }
                }
            });
        }
    });
    assert!(world.disk().used > 0, "something went down");
    let keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    for round in 0..2 {
        std::thread::scope(|scope| {
            for part in keys.chunks(1000).enumerate() {
                let store = &store;
                scope.spawn(move || {
                    let (part, keys) = part;
                    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                    for (n, got) in store.multi_get(&keys).into_iter().enumerate() {
                        let n = (part * 1000 + n) as u32;
                        let got = got.unwrap_or_else(|e| panic!("key {n}, round {round}: {e}"));
                        assert!(got == Some(value(n, 0)), "key {n}");
                    }
                });
            }
        });
    }
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
    // A batch answers each operation on its own; one that needs no room takes effect all the same.
    let large = vec![1; 8000];
    let entries: Vec<(Vec<u8>, &[u8])> = (0..40).map(|n| (key(n + 500_000), &large[..])).collect();
    let entries: Vec<(&[u8], &[u8])> =
        entries.iter().map(|(key, value)| (&key[..], *value)).collect();
    let told = store.multi_put(&entries);
    assert!(told.iter().any(Result::is_err), "there is no room for all of them");
    for e in told.into_iter().filter_map(Result::err) {
        assert_eq!(e.status, Status::OutOfMemory, "{}", e.message);
    }
    // A caller whose deadline is shorter than the wait of writers gets the same error.
    let mut options =
        ClientOptions::new(world.cluster.controller.address().to_string(), &world.job.token[..]);
    options.timeout = Duration::from_millis(1500);
    let hurried = Client::new(options).open_kv(world.job.job, ":s").unwrap();
    let late = (0..40).find_map(|n| hurried.put(&key(n + 600_000), &large).err());
    let late = late.expect("there is no room for all of them");
    assert_eq!(late.status, Status::OutOfMemory, "{}", late.message);
    let mut got = Vec::new();
    for n in (0..kept).step_by(7) {
        assert!(store.get(&key(n), &mut got).unwrap() && got == value(n, 0), "key {n} is there");
    }
}

fn item(n: u32) -> Vec<u8> {
    value(n, 7)[..200 + n as usize % 600].to_vec()
}

#[test]
fn a_queue_longer_than_memory_is_consumed_in_its_order() {
    const ITEMS: u32 = 12_000;
    let world = World::new();
    let queue = world.client.create_queue(world.job.job, ":q", 0, 0, false).unwrap();
    for n in (0..ITEMS).step_by(20) {
        let items: Vec<Vec<u8>> = (n..n + 20).map(item).collect();
        let items: Vec<&[u8]> = items.iter().map(|item| &item[..]).collect();
        queue.put_many(&items, PATIENCE).unwrap();
    }
    assert!(world.disk().used > 10, "something went down: {:?}", world.disk());
    assert_eq!(queue.peek(1).unwrap(), [item(0)]);
    // One takes for good, and one takes some that it gives back: they come again before the others.
    let mut next = 0;
    while next < ITEMS {
        let reserved = queue.reserve(1, PATIENCE, PATIENCE).unwrap();
        assert_eq!(reserved[0].item, item(next));
        queue.give_back(&[&reserved[0]]).unwrap();
        for got in queue.get_many(50, Duration::ZERO).unwrap() {
            assert_eq!(got, item(next), "item {next}");
            next += 1;
        }
    }
    assert_eq!(queue.get(Duration::ZERO).unwrap(), None);
    // A waiting get is served, in whichever tier the block with the item is.
    let late = std::thread::scope(|scope| {
        let waits = scope.spawn(|| queue.get(PATIENCE).unwrap());
        queue.put(b"late", PATIENCE).unwrap();
        waits.join().unwrap()
    });
    assert_eq!(late.as_deref(), Some(&b"late"[..]));
    world.client.remove_structure(world.job.job, ":q").unwrap();
    eventually("places come back", || world.disk().used == 0);
}

#[test]
fn large_values_have_room_as_long_as_a_disk_has() {
    const LARGE: usize = 30_000;
    let world = World::new();
    let store = kv(&world.client, &world.job, ":s", 1);
    let large = |n: u32, round| noise(u64::from(n) << 8 | round, LARGE);
    for n in 0..300 {
        store.put(&key(n), &large(n, 0)).unwrap();
    }
    assert!(world.disk().used > 50, "most went down: {:?}", world.disk());
    for n in (0..300).step_by(3) {
        store.put(&key(n), &large(n, 1)).unwrap();
    }
    let mut got = Vec::new();
    for n in 0..300 {
        assert!(store.get(&key(n), &mut got).unwrap());
        assert!(got == large(n, u64::from(n % 3 == 0)), "value {n}");
    }
    for n in 0..300 {
        assert!(store.delete(&key(n)).unwrap());
    }
    // Blocks of which all is dropped are given back, wherever they are.
    eventually("places come back", || world.disk().used <= 2);
}

/// Most data of the server is on its disk; all of it is migrated to another server, whose memory has room for
/// less than half of it.
#[test]
fn what_is_below_leaves_a_server_that_is_taken_out() {
    let mut world = World::new();
    let store = kv(&world.client, &world.job, ":s", 1);
    put_all(&store, 0, 2000);
    let file = world.client.create_file(world.job.job, ":f", 1, false).unwrap();
    for n in 0..1500 {
        file.append(&value(n, 2)).unwrap();
    }
    let queue = world.client.create_queue(world.job.job, ":q", 0, 0, false).unwrap();
    for n in 0..2500 {
        queue.put(&item(n), PATIENCE).unwrap();
    }
    let below = world.disk().used;
    assert!(below > 30, "{:?}", world.disk());
    let departures = world.cluster.servers[0].departures().unwrap();
    let address = world.cluster.servers[0].address().to_string();
    let second = disk(&world.scratch.0, DISK, TierClass::Ssd);
    world.cluster.add_with(MEMORY, BLOCK, vec![second]);
    let watcher = world.cluster.client(world.cluster.controller.token(), Default::default());
    watcher.drain_server(&address, false).unwrap();
    // It is used meanwhile.
    put_all(&store, 1, 500);
    file.append(b"the end").unwrap();
    assert_eq!(
        departures.recv_timeout(3 * PATIENCE),
        Ok(Departure::Released),
        "{:?}",
        watcher.status()
    );
    world.cluster.servers.remove(0).wait();
    let mut got = Vec::new();
    for n in 0..2000 {
        assert!(store.get(&key(n), &mut got).unwrap() && got == value(n, u32::from(n < 500)));
    }
    let mut read = vec![0; VALUE];
    for n in 0..1500u32 {
        assert_eq!(file.read_into(u64::from(n) * VALUE as u64, &mut read).unwrap(), VALUE);
        assert!(read == value(n, 2), "record {n}");
    }
    for n in 0..2500 {
        assert_eq!(queue.get(Duration::ZERO).unwrap(), Some(item(n)), "item {n}");
    }
}

/// Large values leave a server on whose disk most of them lie, and with them the blocks of their keys.
#[test]
fn large_values_that_are_below_leave_a_server_that_is_taken_out() {
    const LARGE: usize = 30_000;
    let mut world = World::new();
    let store = kv(&world.client, &world.job, ":s", 1);
    let large = |n: u32| noise(u64::from(n), LARGE);
    for n in 0..150 {
        store.put(&key(n), &large(n)).unwrap();
    }
    for n in 150..3000 {
        store.put(&key(n), &value(n, 0)).unwrap();
    }
    assert!(world.disk().used > 50, "most of it is on the disk: {:?}", world.disk());
    let departures = world.cluster.servers[0].departures().unwrap();
    let address = world.cluster.servers[0].address().to_string();
    let second = disk(&world.scratch.0, DISK, TierClass::Ssd);
    world.cluster.add_with(MEMORY, BLOCK, vec![second]);
    let watcher = world.cluster.client(world.cluster.controller.token(), Default::default());
    watcher.drain_server(&address, false).unwrap();
    let left = departures.recv_timeout(3 * PATIENCE);
    assert_eq!(left, Ok(Departure::Released), "{:?}", watcher.status());
    world.cluster.servers.remove(0).wait();
    let mut got = Vec::new();
    for n in 0..3000 {
        assert!(store.get(&key(n), &mut got).unwrap(), "value {n}");
        assert!(got == if n < 150 { large(n) } else { value(n, 0) }, "value {n}");
    }
}
