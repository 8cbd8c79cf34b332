//! Queues whose blocks are demoted and promoted: every item is delivered in order, as often as required, in
//! whatever tier its block is and whatever the disk does.

use crate::below::{BLOCKS, Below, DISK, at, bytes};
use honeycomb_structures::Answer;
use honeycomb_types::{Kind, TierIx, Time, sizes};
use honeycomb_wire::queue::{AckAction, AckArgs, Counts, GetArgs, Items};
use honeycomb_wire::{Field, Op, Status};
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

const SIZE: usize = 256 << 10;
const RESERVE_MS: u32 = 50;

/// The content of a block of a queue.
#[derive(Default)]
struct Model {
    put: u64,
    left: VecDeque<(u64, Vec<u8>)>,
    /// Delivered items: until when, and how often.
    out: BTreeMap<u64, (Vec<u8>, Time, u32)>,
    returned: BTreeMap<u64, (Vec<u8>, u32)>,
}

impl Model {
    fn expire(&mut self, now: Time) {
        for (number, (item, _, deliveries)) in self.out.extract_if(.., |_, (_, due, _)| *due <= now)
        {
            self.returned.insert(number, (item, deliveries));
        }
    }

    fn holds(&self) -> usize {
        let out = self.out.values().map(|(item, ..)| item);
        let returned = self.returned.values().map(|(item, _)| item);
        self.left.iter().map(|(_, item)| item).chain(out).chain(returned).map(Vec::len).sum()
    }
}

struct World {
    below: Below,
    queues: Vec<Model>,
    /// Bytes that were put since the block last started again empty.
    filled: Vec<usize>,
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

fn get_args(items: u32, reserve_ms: u32) -> Vec<u8> {
    let mut args = Vec::new();
    GetArgs { items, bytes: 64 << 10, reserve_ms, stay: false }.put(&mut args);
    args
}

impl World {
    fn new(warm: u32, seed: u64) -> World {
        World::of(Below::new(Kind::Queue, SIZE, warm, seed))
    }

    fn placed_anywhere(warm: u32, seed: u64) -> World {
        World::of(Below::placed_anywhere(Kind::Queue, SIZE, warm, seed))
    }

    fn of(below: Below) -> World {
        let queues = (0..BLOCKS).map(|_| Model::default()).collect();
        World { below, queues, filled: vec![0; BLOCKS as usize] }
    }

    fn item(&mut self) -> Vec<u8> {
        let length = match self.below(12) {
            0 => 16 * 1024 + self.below(8 << 10),
            1 => sizes::size(self.rng.next_u64(), SIZE, 0, SIZE / 8) as u64,
            n => self.below(40 * n + 1),
        };
        let seed = self.rng.next_u64() as u8;
        (0..length).map(|n| (n as u8).wrapping_add(seed)).collect()
    }

    /// Puts some items if the block has room for them: full blocks are not the subject of this test.
    fn put(&mut self, block: u32) -> bool {
        let items: Vec<Vec<u8>> = (0..1 + self.below(3)).map(|_| self.item()).collect();
        let payload = items.concat();
        let queue = &mut self.queues[block as usize];
        if queue.left.is_empty() && queue.out.is_empty() && queue.returned.is_empty() {
            self.filled[block as usize] = 0;
        }
        self.filled[block as usize] += payload.len() + 100;
        if self.filled[block as usize] > SIZE / 2 || payload.len() > SIZE / 10 {
            self.filled[block as usize] -= payload.len() + 100;
            return false;
        }
        let mut args = Vec::new();
        items.iter().for_each(|item| (item.len() as u32).put(&mut args));
        let (answer, _) = self.run(block, Op::QueuePut, &args, &payload);
        let queue = &mut self.queues[block as usize];
        assert_eq!((answer.status, answer.value), (Status::Ok, queue.put), "{answer:?}");
        for item in items {
            queue.left.push_back((queue.put, item));
            queue.put += 1;
        }
        true
    }

    /// Compares the answer to a get with the model.
    fn gave(&mut self, block: u32, answer: &Answer, bytes: &[u8], reserve_ms: u32) {
        let now = self.now;
        let queue = &mut self.queues[block as usize];
        queue.expire(now);
        if answer.status == Status::QueueEmpty {
            assert!(queue.left.is_empty() && queue.returned.is_empty());
            return;
        }
        assert_eq!(answer.status, Status::Ok, "{answer:?}");
        let given = Items::decode(&answer.args, bytes.len()).unwrap();
        let returned = queue.returned.pop_first();
        let mut rest = bytes;
        for (n, length) in given.lengths.iter().enumerate() {
            let (number, item, deliveries) = match &returned {
                Some((number, (item, deliveries))) => (*number, item.clone(), deliveries + 1),
                None => {
                    let (number, item) = queue.left.pop_front().unwrap();
                    (number, item, 1)
                }
            };
            assert_eq!((given.first + n as u64, given.deliveries), (number, deliveries));
            let (this, others) = rest.split_at(*length as usize);
            assert_eq!(this, item);
            rest = others;
            if reserve_ms > 0 {
                let until = now + Duration::from_millis(reserve_ms as u64);
                queue.out.insert(number, (item, until, deliveries));
            }
        }
        assert!(given.lengths.len() == 1 || returned.is_none());
    }

    fn get(&mut self, block: u32, items: u32, reserve_ms: u32) {
        let (answer, bytes) = self.run(block, Op::QueueGet, &get_args(items, reserve_ms), &[]);
        self.gave(block, &answer, &bytes, reserve_ms);
    }

    fn ack(&mut self, block: u32) {
        let now = self.now;
        let queue = &mut self.queues[block as usize];
        queue.expire(now);
        let Some((&number, &(_, until, deliveries))) = queue.out.first_key_value() else { return };
        if until < now + Duration::from_millis(RESERVE_MS as u64 / 2) {
            return; // It may return while this waits for its block.
        }
        let action = if self.below.below(2) == 0 { AckAction::Done } else { AckAction::GiveBack };
        let args = AckArgs { action, timeout_ms: 0, items: vec![(number, deliveries)] }.encode();
        let (answer, _) = self.run(block, Op::QueueAck, &args, &[]);
        let queue = &mut self.queues[block as usize];
        let held = answer.args == [1];
        assert!(held || until <= self.below.now, "it was held: {answer:?}");
        if !held {
            return;
        }
        let (item, _, deliveries) = queue.out.remove(&number).unwrap();
        if action == AckAction::GiveBack {
            queue.returned.insert(number, (item, deliveries));
        }
    }

    /// A peek returns the present items.
    fn check(&mut self, block: u32) {
        let (answer, _) = self.run(block, Op::QueueLength, &[0], &[]);
        let counts = Counts::decode(&answer.args).unwrap();
        let now = self.now;
        let queue = &mut self.queues[block as usize];
        queue.expire(now);
        let held = queue.left.len() + queue.out.len() + queue.returned.len();
        assert_eq!((answer.value - counts.taken, answer.value), (held as u64, queue.put));
        let due = queue.out.values().map(|(_, due, _)| *due).min();
        let mut args = Vec::new();
        2u32.put(&mut args);
        (64u32 << 10).put(&mut args);
        let (answer, bytes) = self.run(block, Op::QueuePeek, &args, &[]);
        if due.is_some_and(|due| due <= self.now) {
            return; // It returned while this waited for the disk, before or after the peek.
        }
        let queue = &mut self.queues[block as usize];
        let next = queue.returned.iter().next().map(|(number, (item, _))| (*number, item.clone()));
        match next.or_else(|| queue.left.front().cloned()) {
            None => assert_eq!(answer.status, Status::QueueEmpty),
            Some((number, item)) => {
                let items = Items::decode(&answer.args, bytes.len()).unwrap();
                assert_eq!(items.first, number);
                assert_eq!(bytes[..items.lengths[0] as usize], item);
            }
        }
    }

    /// A flush copies the items that are not acknowledged, in their order.
    fn check_copy(&mut self, block: u32) {
        let queue = &self.queues[block as usize];
        let out = queue.out.iter().map(|(number, (item, ..))| (*number, item));
        let returned = queue.returned.iter().map(|(number, (item, _))| (*number, item));
        let left = queue.left.iter().map(|(number, item)| (*number, item));
        let items: BTreeMap<u64, &Vec<u8>> = out.chain(returned).chain(left).collect();
        let form = |item: &&Vec<u8>| [&(item.len() as u32).to_le_bytes(), &item[..]].concat();
        let due = items.values().flat_map(form).collect::<Vec<u8>>();
        assert!(self.copied(block) == due, "other items are copied (INV-11)");
    }

    /// All items are delivered.
    fn empty(&mut self, block: u32) {
        self.now = self.now + Duration::from_millis(2 * RESERVE_MS as u64);
        self.step();
        for _ in 0..10_000 {
            let queue = &mut self.queues[block as usize];
            queue.expire(self.below.now);
            if queue.holds() == 0 && queue.left.is_empty() && queue.returned.is_empty() {
                return self.get(block, 1, 0);
            }
            self.get(block, 100, 0);
        }
        panic!("it is never empty");
    }
}

#[test]
fn a_consumer_reads_each_block_once_and_what_is_empty_is_not_written() {
    let mut world = World::new(1, 5);
    while world.put(0) {}
    world.lower(0);
    assert_eq!(world.shard.reports().in_memory(), (BLOCKS - 1, 0), "it has no memory");
    world.check(0);
    assert_eq!(world.shard.reports().in_memory().1, 0, "nothing was read back for a peek");
    let before = world.shard.reports().tier_counts();
    world.empty(0);
    let after = world.shard.reports().tier_counts();
    assert_eq!(after.read - before.read, SIZE as u64, "all of it, once");
    // Another block takes its room: nothing has to be kept.
    world.put(1);
    world.lower(1);
    let before = world.shard.reports().tier_counts();
    world.get(1, 1, 0);
    world.check(0);
    assert_eq!(world.shard.reports().tier_counts().written, before.written);
}

/// The controller places a new block in a lower tier when memory is full, and a flush may copy it before
/// its first item: it has no slot of the disk then.
#[test]
fn queue_that_is_placed_below_is_copied_before_its_first_item() {
    let mut world = World::placed_anywhere(1, 7);
    assert!((0..BLOCKS).any(|block| world.is_below(block)));
    for block in 0..BLOCKS {
        world.check_copy(block);
        while !world.put(block) {}
        world.check_copy(block);
        world.empty(block);
        world.check_copy(block);
    }
}

/// With more queues than room to write to them, consumers that wait at empty ones keep no room from others.
#[test]
fn who_waits_for_items_waits_without_memory() {
    let mut world = World::new(1, 6);
    for block in 0..BLOCKS {
        while !world.put(block) {}
        world.lower(block);
        world.empty(block);
    }
    let waits = |world: &mut World, block| {
        let wait = Duration::from_secs(5);
        world.begin_within(wait, block, Op::QueueGet, &get_args(1, 0), &[])
    };
    let tickets: Vec<_> = (0..BLOCKS).map(|b| waits(&mut world, b).unwrap_err()).collect();
    for block in 0..BLOCKS {
        let seed = world.rng.next_u64() as u8;
        let (answer, _) = world.run(block, Op::QueuePut, &[], &[seed; 99]);
        assert_eq!(answer.status, Status::Ok, "{answer:?}");
        world.step();
        let answer = world.came.remove(&tickets[block as usize]).unwrap();
        assert_eq!(bytes(&mut world.shard, block, &answer.payload), [seed; 99]);
    }
    assert!(world.shard.reports().in_memory().1 <= 1);
}

/// Any operations, with any order of the disk's operations.
#[test]
fn a_queue_gives_what_was_put_in_its_order_wherever_its_blocks_are() {
    for seed in 0..60 {
        let mut world = World::placed_anywhere(1 + (seed % 2) as u32, seed);
        for _ in 0..400 {
            let block = world.below(BLOCKS as u64) as u32;
            match world.below(21) {
                0..6 => drop(world.put(block)),
                6..9 => world.get(block, 1, 0),
                9 => world.get(block, 5, 0),
                10..12 => world.get(block, 2, RESERVE_MS),
                12..14 => world.ack(block),
                14..16 => drop(world.below.shard.tiers().change_tier(at(block), DISK)),
                16 => drop(world.below.shard.tiers().change_tier(at(block), TierIx::MEMORY)),
                17 => world.check(block),
                20 => world.check_copy(block),
                18 => {
                    world.below.now = world.below.now + Duration::from_millis(20);
                    world.step();
                }
                _ => world.step(),
            }
        }
        (0..BLOCKS).for_each(|block| world.check(block));
        (0..BLOCKS).for_each(|block| world.empty(block));
        world.settle();
        (0..BLOCKS).for_each(|block| assert!(world.shard.owners().free(at(block))));
        world.settle();
        assert!(world.shard.reports().tiers_are_quiet(), "seed {seed}: nothing is left of them");
        assert_eq!(world.shard.reports().in_memory(), (0, 0));
    }
}
