//! Changes of stores in a lower tier, which become deltas: their content is that of a map, however little
//! memory deltas have, whatever the order of the disk's operations, and whichever of them fail.

use crate::below::{BLOCKS, Below, DISK, END, at};
use crate::kv_below::{Map, entries};
use honeycomb_env::Entropy;
use honeycomb_server::{IoDone, IoWhat};
#[cfg(feature = "bug-bank")]
use honeycomb_types::Bug;
use honeycomb_types::{TierIx, sizes};
use honeycomb_wire::batch::{BatchOp, put_batch, results};
use honeycomb_wire::data::{Brings, PutMode, ScanArgs, scan_entries};
use honeycomb_wire::{Op, Status};

const SIZE: usize = 256 << 10;

struct World {
    below: Below,
    maps: Vec<Map>,
}

impl World {
    fn new(warm: u32, deltas: usize, seed: u64) -> World {
        let below = Below::with_deltas(SIZE, warm, deltas, seed);
        World { below, maps: vec![Map::new(); BLOCKS as usize] }
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key {}", self.below.below(40)).into_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        // Often of the same length as the one before, so that it is written in place.
        let length = match self.below.below(8) {
            0 => sizes::size(self.below.rng.next_u64(), SIZE, 0, SIZE / 64),
            1 => 0,
            2 => self.below.below(200) as usize,
            _ => 100,
        };
        let mut noise = Entropy::seeded(self.below.rng.next_u64());
        (0..length).map(|_| noise.next_u64() as u8).collect()
    }

    /// One operation that changes a key, with its answer.
    fn change(&mut self, block: u32) {
        let (key, value, way) = (self.key(), self.value(), self.below.below(6));
        let map = &self.maps[block as usize];
        let (old, bytes) = (map.get(&key).cloned(), map.values().map(Vec::len).sum::<usize>());
        if bytes + value.len() > SIZE / 2 {
            return self.delete(block, &key);
        }
        let (there, found) = (old.is_some() as u64, old.clone().unwrap_or_default());
        let with_mode = |mode: u8| [&[mode], &key[..]].concat();
        let (op, args, due) = match way {
            0 => (Op::KvPut, with_mode(0), Ok((there, vec![]))),
            1 => (Op::KvPut, with_mode(PutMode::Blind as u8), Ok((0, vec![]))),
            2 if old.is_some() => (Op::KvPut, with_mode(1), Err(Status::KeyExists)),
            2 => (Op::KvPut, with_mode(1), Ok((0, vec![]))),
            3 => (Op::KvUpsert, key.clone(), Ok((there, found))),
            4 if old.is_none() => (Op::KvUpdate, key.clone(), Err(Status::KeyNotFound)),
            4 => (Op::KvUpdate, key.clone(), Ok((0, found))),
            _ => return self.batch(block),
        };
        let (answer, told) = self.below.run(block, op, &args, &value);
        match due {
            Ok(due) => {
                assert!(
                    (answer.status, answer.value, told) == (Status::Ok, due.0, due.1),
                    "{op:?}"
                );
                self.maps[block as usize].insert(key, value);
            }
            Err(due) => assert_eq!(answer.status, due),
        }
    }

    fn delete(&mut self, block: u32, key: &[u8]) {
        let gives = self.below.below(2) as u8;
        let (answer, told) = self.below.run(block, Op::KvDelete, &[&[gives], key].concat(), &[]);
        match self.maps[block as usize].remove(key) {
            Some(old) => {
                let due = if gives == 1 { old } else { vec![] };
                assert!((answer.status, told) == (Status::Ok, due), "another value");
            }
            None => assert_eq!(answer.status, Status::KeyNotFound),
        }
    }

    fn batch(&mut self, block: u32) {
        let pairs: Vec<(Vec<u8>, Vec<u8>)> =
            (0..self.below.below(90)).map(|_| (self.key(), vec![7; 64])).collect();
        self.batch_of(block, &pairs);
    }

    fn batch_of(&mut self, block: u32, pairs: &[(Vec<u8>, Vec<u8>)]) {
        let mut rest: Vec<BatchOp<'_>> = Vec::new();
        for (key, value) in pairs {
            rest.push(match self.below.below(9) {
                0 | 1 => BatchOp::Insert { key, value },
                2 => BatchOp::Delete { key },
                3 => BatchOp::Swap { key, expected: Some(value), new: b"swapped" },
                4 => BatchOp::Get { key },
                5..8 => BatchOp::Set { key, value },
                _ => BatchOp::Put { key, value },
            });
        }
        while !rest.is_empty() {
            let (answer, told) = self.below.run(block, Op::KvBatch, &[0], &put_batch(&rest));
            assert!(answer.status == Status::Ok && answer.value > 0, "{answer:?}");
            let count = answer.value as usize;
            let map = &mut self.maps[block as usize];
            for (op, result) in rest.drain(..count).zip(results(&told, count).unwrap()) {
                let old = map.get(op.key()).cloned();
                let due = match op {
                    BatchOp::Insert { .. } if old.is_some() => Status::KeyExists,
                    BatchOp::Delete { .. } | BatchOp::Get { .. } if old.is_none() => {
                        Status::KeyNotFound
                    }
                    BatchOp::Swap { expected, .. } if old.as_deref() != expected => {
                        Status::CompareFailed
                    }
                    _ => Status::Ok,
                };
                assert_eq!(result.status, due, "{op:?}");
                let shown = matches!(op, BatchOp::Get { .. } | BatchOp::Swap { .. });
                let is_swapped = matches!(op, BatchOp::Swap { .. }) && due == Status::Ok;
                assert!(
                    !is_swapped || result.bytes.is_empty(),
                    "a swap does not return the old value"
                );
                let is_get = matches!(op, BatchOp::Get { .. });
                if shown && (due == Status::CompareFailed || is_get && due == Status::Ok) {
                    assert_eq!(result.bytes, old.unwrap_or_default());
                }
                if due == Status::Ok {
                    match op {
                        BatchOp::Insert { key, value }
                        | BatchOp::Put { key, value }
                        | BatchOp::Set { key, value } => {
                            _ = map.insert(key.to_vec(), value.to_vec());
                        }
                        BatchOp::Swap { key, new, .. } => {
                            _ = map.insert(key.to_vec(), new.to_vec())
                        }
                        BatchOp::Delete { key } => _ = map.remove(key),
                        _ => {}
                    }
                }
            }
        }
    }

    /// Moves the first block out of memory: the second one gets the only place of the write cache.
    fn leave(&mut self) {
        for _ in 0..2 {
            let (key, value) = (b"leave".to_vec(), vec![self.below.below(256) as u8; 1000]);
            let args = [&[PutMode::Always as u8], &key[..]].concat();
            let (answer, _) = self.below.run(1, Op::KvPut, &args, &value);
            assert_eq!(answer.status, Status::Ok);
            self.maps[1].insert(key, value);
            (0..2).for_each(|block| self.below.lower(block));
        }
        self.check(1);
        self.below.settle();
    }

    fn get(&mut self, block: u32) {
        let key = self.key();
        let (answer, value) = self.below.run(block, Op::KvGet, &key, &[]);
        match self.maps[block as usize].get(&key) {
            Some(due) => assert!(answer.status == Status::Ok && value == *due, "another value"),
            None => assert_eq!(answer.status, Status::KeyNotFound),
        }
    }

    fn check_copy(&mut self, block: u32) {
        let copy = entries(&self.below.copied(block));
        assert!(copy == self.maps[block as usize], "a copy has other entries");
    }

    /// A scan needs all of the block in memory, where its deltas are merged.
    fn check(&mut self, block: u32) {
        self.check_copy(block);
        let map = &self.maps[block as usize];
        let (answer, _) = self.below.run(block, Op::KvLength, &[], &[]);
        assert_eq!(answer.value, map.len() as u64);
        let (mut cursor, mut found) = (0, Map::new());
        loop {
            let mut args = Vec::new();
            let brings = Brings::keys(false);
            ScanArgs { cursor, bytes: 16 << 10, brings, prefix: b"" }.put(&mut args);
            let (answer, page) = self.below.run(block, Op::KvScan, &args, &[]);
            let page = scan_entries(&page).unwrap();
            found.extend(page.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
            cursor = answer.value;
            if cursor == 0 || cursor > END {
                break;
            }
        }
        assert!(found == self.maps[block as usize], "a scan finds other entries");
    }

    /// Lets the disk complete some operations; with `fails`, writes fail now and then.
    fn steps(&mut self, fails: bool) {
        for _ in 0..self.below.below(4) {
            if fails && self.below.below(4) == 0 {
                let io = self.below.shard.tiers().take_io();
                self.below.doing.extend(io);
                let is_write = |what: &IoWhat| matches!(what, IoWhat::Write { .. });
                let write = self.below.doing.iter().position(|io| is_write(&io.what));
                if let Some(at) = write {
                    let io = self.below.doing.swap_remove(at);
                    self.below.done.push((io.id, IoDone::Failed("it is full".to_owned())));
                }
            }
            self.below.step();
        }
    }
}

/// Returns how many blocks gave capacity back.
fn is_what_maps_are(seeds: std::ops::Range<u64>) -> u32 {
    let mut given = 0;
    for seed in seeds {
        let deltas = [1 << 10, 8 << 10, 64 << 10][seed as usize % 3];
        let mut world = World::new(1 + seed as u32 % 2, deltas, seed);
        for _ in 0..500 {
            let block = world.below.below(BLOCKS.into()) as u32;
            match world.below.below(24) {
                0..9 => world.change(block),
                9..11 => {
                    let key = world.key();
                    world.delete(block, &key);
                }
                11..15 => world.get(block),
                15..18 => drop(world.below.shard.tiers().change_tier(at(block), DISK)),
                18 if world.below.below(4) == 0 => {
                    drop(world.below.shard.tiers().change_tier(at(block), TierIx::MEMORY));
                }
                18 => world.check_copy(block),
                _ if world.below.below(8) == 0 => world.check(block),
                _ => world.steps(seed % 2 == 1),
            }
        }
        (0..BLOCKS).for_each(|block| world.check(block));
        world.below.settle();
        (0..BLOCKS).for_each(|block| assert!(world.below.shard.owners().free(at(block))));
        world.below.settle();
        assert!(world.below.shard.reports().tiers_are_quiet(), "seed {seed}: nothing is left");
        assert_eq!(world.below.shard.reports().in_memory(), (0, 0));
        given += world.below.given_back;
    }
    given
}

/// Any operations, with any order of the disk's operations, on blocks of any capacity.
#[test]
fn store_with_deltas_is_what_a_map_is() {
    let given = is_what_maps_are(0..100);
    assert!(given > 0, "no block gave capacity back");
}

/// The block was read back for each larger capacity.
#[test]
fn block_below_memory_grows_where_it_is() {
    let below = Below::with_capacity(4 * SIZE, 64 << 10, 64 << 10, 1);
    let mut world = World { below, maps: vec![Map::new(); BLOCKS as usize] };
    let set = |world: &mut World, n: usize| {
        let (key, value) = (format!("key {n}"), vec![n as u8; 1000]);
        let args = [&[PutMode::Blind as u8], key.as_bytes()].concat();
        let (answer, _) = world.below.run(0, Op::KvPut, &args, &value);
        assert_eq!(answer.status, Status::Ok, "{answer:?}");
        world.maps[0].insert(key.into_bytes(), value);
    };
    (0..28).for_each(|n| set(&mut world, n));
    world.below.lower(0);
    let before = world.below.shard.reports().tier_counts();
    let grown = (28..60).find(|n| {
        set(&mut world, *n);
        world.below.grown_below > 0
    });
    let after = world.below.shard.reports().tier_counts();
    assert!(grown.is_some() && after.read == before.read, "key {grown:?}: {after:?}");
    assert!(world.below.is_below(0));
    world.check(0);
}

/// A change of an entry wrote and read its whole block.
#[test]
fn changes_of_a_block_below_memory_are_written_as_runs() {
    let mut world = World::new(1, 8 << 10, 1);
    for n in 0..100 {
        let (key, value) = (format!("key {n}"), vec![n as u8; 1000]);
        let (answer, _) = world.below.run(0, Op::KvPut, &[&[0], key.as_bytes()].concat(), &value);
        assert_eq!(answer.status, Status::Ok);
        world.maps[0].insert(key.into_bytes(), value);
    }
    world.below.lower(0);
    let before = world.below.shard.reports().tier_counts();
    for n in 0..40 {
        let (key, value) = (format!("key {n}"), vec![255 - n as u8; 1000]);
        let (answer, _) = world.below.run(0, Op::KvPut, &[&[0], key.as_bytes()].concat(), &value);
        assert_eq!((answer.status, answer.value), (Status::Ok, 1), "it replaces an entry");
        world.maps[0].insert(key.into_bytes(), value);
    }
    world.below.settle();
    let after = world.below.shard.reports().tier_counts();
    let written = after.written - before.written;
    assert!((1..=3 * 40 * 1000).contains(&written), "{written} bytes are written for 40,000");
    assert!(world.below.is_below(0));
    (0..100).for_each(|_| world.get(0));
    world.check(0);
}

/// A change that asks nothing reads nothing, and counts as a new entry: a block that is almost full is read
/// back before it has too many of them.
fn sets_read_nothing_and_have_room(seed: u64) {
    let mut world = World::new(1, 64 << 10, seed);
    let set = |world: &mut World, n: u64, byte: u8, mode: PutMode| {
        let (key, value) = (format!("key {n}"), vec![byte; 1000]);
        let args = [&[mode as u8], key.as_bytes()].concat();
        let (answer, _) = world.below.run(0, Op::KvPut, &args, &value);
        if answer.status == Status::Ok {
            world.maps[0].insert(key.into_bytes(), value);
        }
        answer.status == Status::Ok
    };
    let full = SIZE as u64 / 1000 * (55 + seed) / 100;
    (0..full).for_each(|n| assert!(set(&mut world, n, 1, PutMode::Always)));
    world.leave();
    let before = world.below.shard.reports().tier_counts();
    assert!(set(&mut world, 0, 2, PutMode::Blind));
    let after = world.below.shard.reports().tier_counts();
    assert_eq!(after.read, before.read, "nothing is read");
    let mut n = full;
    while set(&mut world, n, 3, PutMode::Blind) {
        assert!(n < SIZE as u64 / 1000, "the block takes more than its size");
        n += 1;
    }
    world.check(0);
    (0..full).for_each(|n| assert!(set(&mut world, n, 4, PutMode::Blind)));
    world.check(0);
}

#[test]
fn sets_of_a_block_below_memory_read_nothing_and_have_room() {
    (0..15).for_each(sets_read_nothing_and_have_room);
}

/// A set that was planned without a read, and for which an insert of the same batch left no room, made the
/// batch run again after the insert.
#[test]
fn batch_with_an_insert_and_a_set_runs_once() {
    batch_runs_once();
}

fn batch_runs_once() {
    let mut world = World::new(1, 256 << 10, 5);
    let set = |world: &mut World, n: u64| {
        let (key, value) = (format!("key {n}"), vec![n as u8; 1000]);
        let args = [&[PutMode::Blind as u8], key.as_bytes()].concat();
        let before = world.below.shard.reports().tier_counts().read;
        let (answer, _) = world.below.run(0, Op::KvPut, &args, &value);
        assert_eq!(answer.status, Status::Ok);
        world.maps[0].insert(key.into_bytes(), value);
        world.below.shard.reports().tier_counts().read > before
    };
    let all = SIZE as u64 * 67 / 100 / 1030;
    (0..all).for_each(|n| _ = set(&mut world, n));
    world.leave();
    // The sets for which there is room.
    let room = (0..all).find(|n| set(&mut world, *n)).expect("room for some");
    assert!(room > 5, "{room} sets");
    world.check(0);
    world.leave();
    (0..room - 1).for_each(|n| assert!(!set(&mut world, n), "set {n} reads"));
    let (new, old) = (b"a new key".to_vec(), format!("key {}", all - 1).into_bytes());
    let value = vec![7; 1000];
    let ops =
        [BatchOp::Insert { key: &new, value: &value }, BatchOp::Set { key: &old, value: &value }];
    let (answer, told) = world.below.run(0, Op::KvBatch, &[0], &put_batch(&ops));
    let count = answer.value as usize;
    assert_eq!(results(&told, count).unwrap()[0].status, Status::Ok, "it was inserted once");
    for op in &ops[..count] {
        world.maps[0].insert(op.key().to_vec(), value.clone());
    }
    world.check(0);
}

/// A block that was long when it left memory kept the room of a whole block on the disk.
#[test]
fn block_that_became_short_takes_little_of_the_disk() {
    let below = Below::with_deltas(4 * SIZE, 1, 8 << 10, 4);
    let mut world = World { below, maps: vec![Map::new(); BLOCKS as usize] };
    let put = |world: &mut World, block: u32, n: usize, byte: u8| {
        let (key, value) = (format!("key {n}"), vec![byte; 8000]);
        let args = [&[PutMode::Blind as u8], key.as_bytes()].concat();
        let (answer, _) = world.below.run(block, Op::KvPut, &args, &value);
        assert_eq!(answer.status, Status::Ok);
        world.maps[block as usize].insert(key.into_bytes(), value);
    };
    let leave = |world: &mut World| {
        world.leave();
        world.below.disk.taken()
    };
    (0..100).for_each(|n| put(&mut world, 0, n, 1));
    let long = leave(&mut world);
    assert!(long >= 800_000, "{long} bytes");
    (0..97).for_each(|n| world.delete(0, format!("key {n}").as_bytes()));
    world.check(0);
    let short = leave(&mut world);
    // The rest is for deltas.
    assert!(2 * short <= long, "3 entries take {short} bytes, and 100 took {long}");
    (0..60).for_each(|n| put(&mut world, 0, 97 + n % 3, n as u8));
    world.below.settle();
    let changed = world.below.disk.taken();
    assert!(2 * changed <= long, "3 entries with their deltas take {changed} bytes");
    world.check(0);
}

/// A block that became empty in the write cache leaves it without a write: its copy is stale, and its deltas
/// come after it.
#[test]
fn empty_block_that_leaves_the_write_cache_gets_deltas() {
    let mut world = World::new(1, 1 << 10, 2);
    let put = |world: &mut World, block: u32, n: usize| {
        let (key, value) = (format!("key {n}"), vec![n as u8; 300]);
        let args = [&[0], key.as_bytes()].concat();
        let (answer, _) = world.below.run(block, Op::KvPut, &args, &value);
        assert_eq!(answer.status, Status::Ok);
        world.maps[block as usize].insert(key.into_bytes(), value);
    };
    for block in 0..2 {
        (0..20).for_each(|n| put(&mut world, block, n));
        world.below.lower(block);
    }
    put(&mut world, 0, 0);
    world.check(0);
    (0..20).for_each(|n| world.delete(0, format!("key {n}").as_bytes()));
    assert!(world.maps[0].is_empty());
    // The other one gets the only place of the write cache.
    put(&mut world, 1, 0);
    world.check(1);
    world.below.settle();
    (0..20).for_each(|n| put(&mut world, 0, n));
    world.below.settle();
    let counts = world.below.shard.reports().tier_counts();
    assert!(counts.runs.0 > 0, "its deltas are written: {counts:?}");
    world.check(0);
    world.check(1);
}

/// Runs were tried again without a pause, and a block with one that failed was never read back.
#[test]
fn disk_that_writes_no_run_keeps_no_scan_waiting() {
    let mut world = World::new(1, 1 << 10, 3);
    let put = |world: &mut World, n: usize, byte: u8| {
        let (key, value) = (format!("key {n}"), vec![byte; 300]);
        let args = [&[0], key.as_bytes()].concat();
        let (answer, _) = world.below.run(0, Op::KvPut, &args, &value);
        assert_eq!(answer.status, Status::Ok);
        world.maps[0].insert(key.into_bytes(), value);
    };
    (0..20).for_each(|n| put(&mut world, n, 1));
    world.below.lower(0);
    world.below.fails_writes = true;
    (0..5).for_each(|n| put(&mut world, n, 2));
    world.below.settle();
    let counts = world.below.shard.reports().tier_counts();
    assert!(counts.runs.0 == 0 && (1..10).contains(&counts.runs.1), "{counts:?}");
    world.check(0);
    world.below.fails_writes = false;
    (0..20).for_each(|n| put(&mut world, n, 3));
    world.below.settle();
    world.check(0);
}

/// A defect makes some check fail, whichever comes first.
#[cfg(feature = "bug-bank")]
#[test]
fn planted_defects_of_deltas_are_caught() {
    for bug in [
        Bug::DeltasHidden,
        Bug::DeltasMergedBackwards,
        Bug::RunLost,
        Bug::DeltasUncopied,
        Bug::DeltasUnjudged,
        Bug::FailedRunCounts,
        Bug::BlindUncounted,
        Bug::BlindPlannedAlone,
    ] {
        let caught = std::thread::spawn(move || {
            Bug::arm(Some(bug));
            is_what_maps_are(0..400);
            (0..15).for_each(sets_read_nothing_and_have_room);
            batch_runs_once();
        });
        assert!(caught.join().is_err(), "{bug:?} is not caught");
    }
}
