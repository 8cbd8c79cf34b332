//! Kvs whose blocks are demoted and promoted: every read returns the content of a plain map, in whatever tier
//! the block is and whatever its disk does, and every write takes effect once.

use crate::below::{BLOCKS, Below, DISK, END, at, bytes};
use honeycomb_env::Entropy;
use honeycomb_structures::Ticket;
#[cfg(feature = "bug-bank")]
use honeycomb_types::Bug;
use honeycomb_types::{Kind, TierIx, sizes};
use honeycomb_wire::batch::{put_keys, results};
use honeycomb_wire::data::{Brings, ScanArgs, scan_entries};
use honeycomb_wire::{Field, Op, Status};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// Regions of such a block are too large to be read as a whole.
const LARGE: usize = 8 << 20;
const SMALL: usize = 256 << 10;

pub type Map = HashMap<Vec<u8>, Vec<u8>>;

struct World {
    below: Below,
    /// The content of each block.
    maps: Vec<Map>,
}

impl Deref for World {
    type Target = Below;

    fn deref(&self) -> &Below {
        &self.below
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Below {
        &mut self.below
    }
}

impl World {
    fn new(size: usize, warm: u32, seed: u64) -> World {
        World::of(Below::new(Kind::Kv, size, warm, seed))
    }

    fn placed_anywhere(warm: u32, seed: u64) -> World {
        World::of(Below::placed_anywhere(Kind::Kv, SMALL, warm, seed))
    }

    /// As above, with buffers of so many bytes.
    fn with_buffers(size: usize, buffers: usize, seed: u64) -> World {
        World::of(Below::with_buffers(Kind::Kv, size, 1, buffers, seed))
    }

    fn of(below: Below) -> World {
        World { below, maps: vec![Map::new(); BLOCKS as usize] }
    }

    fn put(&mut self, block: u32, key: &[u8], value: &[u8]) {
        let args = [&[0], key].concat();
        let (answer, _) = self.run(block, Op::KvPut, &args, value);
        assert_eq!(answer.status, Status::Ok, "{answer:?}");
        self.maps[block as usize].insert(key.to_vec(), value.to_vec());
    }

    fn delete(&mut self, block: u32, key: &[u8]) {
        let (answer, _) = self.run(block, Op::KvDelete, &[&[0], key].concat(), &[]);
        let there = self.maps[block as usize].remove(key).is_some();
        let due = if there { Status::Ok } else { Status::KeyNotFound };
        assert_eq!(answer.status, due, "{answer:?}");
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key {}", self.below(400)).into_bytes()
    }

    fn value(&mut self, size: usize) -> Vec<u8> {
        // Mostly small; some have extents of their own in the block.
        let length = match self.below(10) {
            0 => size / 64 + self.below(size as u64 / 64) as usize,
            1 => 0,
            2 => sizes::size(self.rng.next_u64(), size, 0, size / 16),
            _ => self.below(200) as usize,
        };
        let seed = self.rng.next_u64();
        let mut noise = Entropy::seeded(seed);
        (0..length).map(|_| noise.next_u64() as u8).collect()
    }

    /// A flush copies the content.
    fn check_copy(&mut self, block: u32) {
        let content = self.copied(block);
        assert!(
            entries(&content) == self.maps[block as usize],
            "other entries are copied (INV-11)"
        );
    }

    /// Every way of reading a block returns the content of its map.
    fn check(&mut self, block: u32) {
        let map = self.maps[block as usize].clone();
        let (answer, _) = self.run(block, Op::KvLength, &[], &[]);
        assert_eq!(answer.value, map.len() as u64);
        for keys_only in [false, true] {
            let (mut cursor, mut found) = (0, Map::new());
            loop {
                let mut args = Vec::new();
                ScanArgs { cursor, bytes: 16 << 10, brings: Brings::keys(keys_only), prefix: b"" }
                    .put(&mut args);
                let (answer, page) = self.run(block, Op::KvScan, &args, &[]);
                assert_eq!(answer.status, Status::Ok, "{answer:?}");
                for (key, value) in scan_entries(&page).unwrap() {
                    let twice = found.insert(key.to_vec(), value.to_vec());
                    assert!(twice.is_none(), "a scan gives an entry once");
                }
                assert!(answer.value == 0 || answer.value > cursor, "a page advances the cursor");
                cursor = answer.value;
                if cursor == 0 || cursor > END {
                    break;
                }
            }
            let due =
                map.iter().map(|(k, v)| (k.clone(), if keys_only { vec![] } else { v.clone() }));
            assert_eq!(found, due.collect::<Map>());
        }
        let keys: Vec<Vec<u8>> = map.keys().cloned().chain([b"none".to_vec()]).collect();
        let mut rest: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        while !rest.is_empty() {
            let most = rest.len().min(300);
            let payload = put_keys(&rest[..most]);
            let mut args = Vec::new();
            (1u32 << 20).put(&mut args);
            let (answer, told) = self.run(block, Op::KvMultiGet, &args, &payload);
            assert!(answer.status == Status::Ok && answer.value > 0, "{answer:?}");
            let count = answer.value as usize;
            for (key, result) in rest[..count].iter().zip(results(&told, count).unwrap()) {
                match map.get(*key) {
                    Some(value) => {
                        assert_eq!((result.status, result.bytes), (Status::Ok, &value[..]))
                    }
                    None => assert_eq!(result.status, Status::KeyNotFound),
                }
            }
            rest.drain(..count);
        }
        for key in keys.iter().take(40) {
            let (answer, value) = self.run(block, Op::KvGet, key, &[]);
            let (there, _) = self.run(block, Op::KvExists, key, &[]);
            match map.get(key) {
                Some(due) => {
                    assert_eq!((answer.status, &value), (Status::Ok, due));
                    assert_eq!(
                        (there.value, there.args),
                        (1, (due.len() as u64).to_le_bytes().to_vec())
                    );
                }
                None => assert_eq!((answer.status, there.value), (Status::KeyNotFound, 0)),
            }
        }
    }
}

/// The entries of a flush's form.
pub fn entries(mut content: &[u8]) -> Map {
    let mut map = Map::new();
    while !content.is_empty() {
        let (lengths, rest) = content.split_at(8);
        let length = |at: usize| u32::from_le_bytes(lengths[at..at + 4].try_into().unwrap());
        let (key, rest) = rest.split_at(length(0) as usize);
        let (value, rest) = rest.split_at(length(4) as usize);
        let twice = map.insert(key.to_vec(), value.to_vec());
        assert!(twice.is_none(), "a copy has an entry once");
        content = rest;
    }
    map
}

/// The controller places a new block in a lower tier when memory is full, and a flush may copy it before
/// its first entry: it has no slot of the disk then.
#[test]
fn store_that_is_placed_below_is_copied_before_its_first_entry() {
    let mut world = World::placed_anywhere(1, 7);
    assert!((0..BLOCKS).any(|block| world.is_below(block)));
    for block in 0..BLOCKS {
        world.check_copy(block);
        world.put(block, b"k", b"first");
        world.check_copy(block);
        world.delete(block, b"k");
        world.check_copy(block);
    }
}

#[test]
fn a_block_below_memory_is_read_by_parts() {
    for size in [SMALL, LARGE] {
        let mut world = World::new(size, 1, 7);
        let entries = if size == SMALL { 300 } else { 30_000 };
        for n in 0..entries {
            let value = world.value(size).into_iter().take(400).collect::<Vec<u8>>();
            world.put(0, format!("entry {n}").as_bytes(), &value);
        }
        // Some have extents of their own in the block.
        for n in 0..4 {
            let value = vec![n; size / 16];
            world.put(0, &[b'l', n], &value);
        }
        world.lower(0);
        assert_eq!(world.shard.reports().in_memory(), (BLOCKS - 1, 0), "it has no memory");
        let before = world.shard.reports().tier_counts().read;
        let key = b"entry 17";
        let (answer, value) = world.run(0, Op::KvGet, key, &[]);
        assert_eq!((answer.status, &value), (Status::Ok, &world.maps[0][&key[..]]));
        let read = world.shard.reports().tier_counts().read - before;
        assert!(read <= size as u64 / 8, "one lookup read {read} bytes of {size}");
        world.check(0);
        assert_eq!(world.shard.reports().in_memory().1, 0, "nothing was read back for a write");
    }
}

#[test]
fn what_is_written_below_memory_is_there_when_it_comes_up_and_goes_down_again() {
    let mut world = World::new(SMALL, 1, 3);
    for block in 0..BLOCKS {
        for n in 0..50 {
            world.put(block, format!("k{n}").as_bytes(), format!("{block} {n}").as_bytes());
        }
        world.lower(block);
    }
    // Only one of them has room to be written at a time: they take turns.
    for round in 0..6 {
        for block in 0..BLOCKS {
            world.put(block, b"k7", format!("round {round}").as_bytes());
            world.delete(block, b"k8");
            assert!(world.shard.reports().in_memory().1 <= 1);
        }
    }
    (0..BLOCKS).for_each(|block| world.check(block));
    // One is promoted to memory.
    world.settle();
    while world.shard.tiers().change_tier(at(1), TierIx::MEMORY).is_err() {
        world.put(0, b"other", b"takes the turn");
        world.put(2, b"other", b"takes the turn");
    }
    world.settle();
    assert!(!world.is_below(1));
    (0..BLOCKS).for_each(|block| world.check(block));
}

#[test]
fn what_is_written_often_stays_up_when_there_is_room() {
    let mut world = World::new(SMALL, 1, 5);
    for block in 0..BLOCKS {
        world.put(block, b"k", b"first");
        world.lower(block);
    }
    let mut round = 0u32;
    while !world.promotions.contains(&at(0)) {
        // They take turns in the write cache, and are read back each time.
        for block in [0, 1] {
            world.put(block, b"k", &round.to_le_bytes());
        }
        round += 1;
        assert!(round < 50, "a block that is read back so often would stay");
    }
    // The controller grants it while the block is in memory.
    let mut tries = 0;
    while world.shard.tiers().change_tier(at(0), TierIx::MEMORY).is_err() {
        world.put(0, b"k", b"once more");
        tries += 1;
        assert!(tries < 50, "it is there now and then");
    }
    world.settle();
    assert!(!world.is_below(0));
    let read = world.shard.reports().tier_counts().read;
    for n in 0..20u32 {
        world.put(0, b"k", &n.to_le_bytes());
    }
    assert_eq!(world.shard.reports().tier_counts().read, read, "it is in memory");
    world.put(1, b"k", b"the room in the pool is another's");
    (0..BLOCKS).for_each(|block| world.check(block));
    (0..BLOCKS).for_each(|block| assert!(world.shard.owners().free(at(block))));
    world.settle();
    assert!(world.shard.reports().tiers_are_quiet());
    assert_eq!(world.shard.reports().in_memory(), (0, 0));
}

/// One request for many keys needs more than the buffers have, and so do all of many such requests that
/// arrive together: each is answered, one after the other, and none is answered `Busy` for ever.
#[test]
fn requests_for_many_keys_that_need_more_than_the_buffers_all_end() {
    for buffers in [32 << 10, 64 << 10] {
        let mut world = World::with_buffers(SMALL, buffers, 21);
        for block in 0..BLOCKS {
            for n in 0..150 {
                world.put(block, format!("k{n}").as_bytes(), &vec![n as u8; 700 + n]);
            }
            world.lower(block);
        }
        let keys: Vec<Vec<u8>> = (0..150).map(|n| format!("k{n}").into_bytes()).collect();
        let mut args = Vec::new();
        (1u32 << 20).put(&mut args);
        // Each caller requests the rest until it has all keys.
        let mut callers: Vec<(u32, usize, Option<Ticket>)> =
            (0..9).map(|n| (n % BLOCKS, 0, None)).collect();
        let mut turns = 0;
        while callers.iter().any(|(_, had, _)| *had < keys.len()) {
            turns += 1;
            assert!(turns < 20_000, "{callers:?} never end");
            for (block, had, waits) in &mut callers {
                if *had == keys.len() {
                    continue;
                }
                let rest: Vec<&[u8]> = keys[*had..].iter().map(|key| &key[..]).collect();
                let answer = match waits.take() {
                    None => world.begin(*block, Op::KvMultiGet, &args, &put_keys(&rest)),
                    Some(ticket) => world.came.remove(&ticket).ok_or(ticket),
                };
                let answer = match answer {
                    Ok(answer) if answer.status == Status::Busy => continue,
                    Ok(answer) => answer,
                    Err(ticket) => {
                        *waits = Some(ticket);
                        continue;
                    }
                };
                assert_eq!(answer.status, Status::Ok, "{answer:?}");
                let told = bytes(&mut world.shard, *block, &answer.payload);
                let count = answer.value as usize;
                for (n, result) in (*had..).zip(results(&told, count).unwrap()) {
                    assert_eq!(result.bytes, vec![n as u8; 700 + n], "key {n}");
                }
                *had += count;
            }
            world.step();
        }
        world.settle();
        (0..BLOCKS).for_each(|block| assert!(world.shard.owners().free(at(block))));
        world.settle();
        assert!(world.shard.reports().tiers_are_quiet());
    }
}

/// Even if all blocks are written all the time, one is demoted.
#[test]
fn a_block_that_is_written_on_its_way_down_stays_once() {
    let mut world = World::new(SMALL, 1, 9);
    world.put(0, b"k", b"first");
    let write = |world: &mut World| world.begin(0, Op::KvPut, b"\0k", b"meanwhile");
    world.shard.tiers().change_tier(at(0), DISK).unwrap();
    assert_eq!(write(&mut world).unwrap().status, Status::Busy);
    world.settle();
    assert!(!world.is_below(0), "it was written to");
    world.shard.tiers().change_tier(at(0), DISK).unwrap();
    assert_eq!(write(&mut world).unwrap().status, Status::Busy);
    world.settle();
    assert!(world.is_below(0), "it stayed before");
    // In the cache it is demoted when its turn is over, whichever block needs the room.
    world.put(0, b"k", b"in the pool");
    world.put(1, b"k", b"other");
    world.lower(1);
    let taken = world.begin(1, Op::KvPut, b"\0k", b"waits");
    assert_eq!(taken.unwrap().status, Status::Busy);
    let mut tries = 0;
    while world.shard.reports().in_memory() != (BLOCKS - 2, 1)
        || write(&mut world).unwrap().status == Status::Ok
    {
        world.step();
        tries += 1;
        assert!(tries < 5000, "its turn is never over");
    }
    world.put(1, b"k", b"has its turn");
    world.put(0, b"k", b"has another");
    (0..BLOCKS).for_each(|block| world.check(block));
}

/// Seed 8676867181227 of the simulator: while a block in the write cache had requested a move, a delete,
/// which has no payload, was not noticed, and the deleted entry came back with the next read.
#[test]
fn a_delete_while_its_block_asks_for_a_move_is_no_less_a_change() {
    let mut world = World::new(SMALL, 1, 11);
    for n in 0..80 {
        world.put(0, format!("much {n}").as_bytes(), &[7; 2000]);
    }
    for n in 0..80 {
        world.delete(0, format!("much {n}").as_bytes());
    }
    world.put(0, b"k", b"is deleted");
    (0..20).for_each(|n| world.put(0, format!("stays {n}").as_bytes(), b"with the others"));
    world.put(1, b"k", b"other");
    world.lower(0);
    world.lower(1);
    let delete = [&[0], &b"k"[..]].concat();
    assert_eq!(world.begin(0, Op::KvDelete, &delete, &[]).unwrap().status, Status::Busy);
    world.settle();
    assert_eq!(
        world.shard.reports().in_memory(),
        (1, 1),
        "it is in the pool, and was not written to"
    );
    // It was full, and is nearly empty: after a while it looks again for a neighbour to merge with.
    world.now = world.now + Duration::from_secs(10);
    world.answers_moves = false;
    world.step();
    assert_eq!(world.moves.last(), Some(&at(0)), "it requests a move");
    world.delete(0, b"k");
    world.answers_moves = true;
    // The turn of another block.
    world.put(1, b"k", b"takes the pool");
    world.check(0);
    world.check(1);
}

/// Any operations, with any order of the disk's operations.
#[test]
fn a_store_is_what_a_map_is_wherever_its_blocks_are() {
    for seed in 0..60 {
        let mut world = World::placed_anywhere(1 + (seed % 2) as u32, seed);
        for _ in 0..400 {
            let block = world.below(BLOCKS as u64) as u32;
            let key = world.key();
            match world.below(21) {
                0..8 => {
                    let value = world.value(SMALL);
                    let bytes: usize = world.maps[block as usize].values().map(Vec::len).sum();
                    // Values that would not fit are not the subject of this test.
                    if bytes + value.len() < SMALL / 2 {
                        world.put(block, &key, &value);
                    }
                }
                8..10 => {
                    world.delete(block, &key);
                }
                10..14 => {
                    let (answer, value) = world.run(block, Op::KvGet, &key, &[]);
                    match world.maps[block as usize].get(&key) {
                        Some(due) => assert_eq!((answer.status, &value), (Status::Ok, due)),
                        None => assert_eq!(answer.status, Status::KeyNotFound),
                    }
                }
                14..17 => drop(world.shard.tiers().change_tier(at(block), DISK)),
                17 => drop(world.shard.tiers().change_tier(at(block), TierIx::MEMORY)),
                18 => world.step(),
                19 => world.check_copy(block),
                _ => {
                    // A block that is written before its disk has answered a read.
                    world.settle();
                    if let Err(ticket) = world.begin(block, Op::KvGet, &key, &[]) {
                        // The read returns the present content, and is answered when everything is done.
                        let reads = world.shard.tiers().take_io();
                        let disk = world.disk.clone();
                        let late = world.below(2) == 0;
                        let read = reads.into_iter().map(|io| io.carry_out(&*disk, 0));
                        let held: Vec<_> = read.collect();
                        let old = world.maps[block as usize].get(&key).cloned();
                        let value = world.value(SMALL / 4);
                        world.put(block, &key, &value);
                        // The other one is demoted for it, if there is room for only one.
                        if world.below(2) == 0 {
                            world.put((block + 1) % BLOCKS, b"turn", b"");
                        }
                        if late {
                            world.settle();
                        }
                        world.done.extend(held);
                        world.settle();
                        let answer = world.came.remove(&ticket).unwrap();
                        let read = bytes(&mut world.shard, block, &answer.payload);
                        match answer.status {
                            Status::Ok => {
                                assert!(read == value || Some(read) == old, "seed {seed}")
                            }
                            Status::KeyNotFound => assert_eq!(old, None),
                            status => assert_eq!(status, Status::Busy),
                        }
                    }
                }
            }
        }
        (0..BLOCKS).for_each(|block| world.check(block));
        world.settle();
        (0..BLOCKS).for_each(|block| assert!(world.shard.owners().free(at(block))));
        world.settle();
        assert!(world.shard.reports().tiers_are_quiet(), "seed {seed}: nothing is left of them");
        assert_eq!(world.shard.reports().in_memory(), (0, 0));
    }
}

#[test]
fn block_keeps_its_layout_until_its_demotion_is_reported() {
    returns_memory_while_demoted();
}

#[cfg(feature = "bug-bank")]
#[test]
#[should_panic]
fn layout_that_changes_under_its_copy_is_caught() {
    Bug::arm(Some(Bug::PackedWhileDemoted));
    returns_memory_while_demoted();
}

/// Between the end of the write and the report of it, the bytes were not pinned: a block that was returning
/// memory moved its regions, and was then read from the disk by its new layout. Keys were missing.
fn returns_memory_while_demoted() {
    let mut world = World::new(SMALL, 1, 1);
    for n in 0..150 {
        world.put(0, format!("key {n}").as_bytes(), &[n; 1000]);
    }
    for n in (0..150).filter(|n| n % 4 > 0) {
        world.delete(0, format!("key {n}").as_bytes());
    }
    // It requests a merge first, which is refused.
    while world.shard.tiers().change_tier(at(0), DISK).is_err() {
        world.step();
    }
    let (writes, disk) = (world.shard.tiers().take_io(), world.disk.clone());
    assert!(!writes.is_empty());
    let written: Vec<_> = writes.into_iter().map(|io| io.carry_out(&*disk, 0)).collect();
    for _ in 0..1000 {
        world.now = world.now + Duration::from_millis(1);
        let now = world.now;
        world.shard.tick(now);
    }
    world.done.extend(written);
    world.settle();
    assert!(world.is_below(0));
    world.check(0);
    world.check_copy(0);
    for n in 0..150 {
        world.put(0, format!("more {n}").as_bytes(), &[n; 500]);
    }
    world.check(0);
}
