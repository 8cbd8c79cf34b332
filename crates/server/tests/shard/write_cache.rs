//! The write cache with more writers than room: every writer makes progress, data is written to the disk
//! about once, and a failing disk is retried with pauses.

use crate::common::{access, owner};
use honeycomb_env::MemoryVolume;
use honeycomb_server::{BlockOwner, Io, IoWhat, Shard, ShardConfig};
use honeycomb_structures::{Answer, LaneRoom, Outcome, Payload, Ticket};
#[cfg(feature = "bug-bank")]
use honeycomb_types::Bug;
use honeycomb_types::limits::{RETRY_WINDOW_MS, WARM_READ_MAX};
use honeycomb_types::{
    BlockAt, BlockId, Epoch, Kind, LaneId, Sequence, ServerId, ShardIx, TierClass, TierIx,
    TierSpec, Time,
};
use honeycomb_wire::queue::GetArgs;
use honeycomb_wire::{Op, RequestHeader, Status};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const SIZE: usize = 256 << 10;
const PIECE: usize = 32 << 10;
const WRITERS: u32 = 6;
const WARM: u32 = 2;
/// The duration of one append, or of one write to the disk.
const APPEND: Duration = Duration::from_micros(50);
const DISK: Duration = Duration::from_micros(600);

/// A shard whose blocks are all in a lower tier, with a disk that executes one operation after the other.
struct World {
    shard: Shard,
    /// The duration of one operation of the disk.
    disk_time: Duration,
    disk: Arc<MemoryVolume>,
    now: Time,
    /// The operations of the disk, and when each ends.
    doing: Vec<(Time, Io)>,
    asked: u64,
    /// The number of blocks that were read from the disk.
    raised: u64,
    ticket: u64,
}

impl World {
    fn new(files: u32) -> World {
        World::of_kinds(&vec![Kind::File; files as usize], DISK, WARM, LaneRoom::default())
    }

    /// Blocks of these kinds, and room in the cache for so many of them.
    fn of_kinds(kinds: &[Kind], disk_time: Duration, warm: u32, lane_room: LaneRoom) -> World {
        let blocks = kinds.len() as u32;
        let mut shard = crate::common::shard(
            ServerId(1),
            ShardConfig {
                frames: 1,
                warm,
                lane_room,
                disks: vec![TierSpec { class: TierClass::Ssd, blocks }],
                buffers: 8 * SIZE,
                ..crate::common::config(SIZE, 1 + blocks)
            },
        );
        for (block, kind) in (0..).zip(kinds) {
            // Each has a part of the hashes: otherwise it would merge.
            let open = BlockOwner { end: u64::MAX - 1, ..owner(at(block), *kind, true) };
            shard.open(BlockOwner { tier: TierIx(1), ..open }, None).unwrap();
        }
        World {
            shard,
            disk_time,
            disk: Arc::new(MemoryVolume::new()),
            now: Time::from_millis(5000),
            doing: Vec::new(),
            asked: 0,
            raised: 0,
            ticket: 0,
        }
    }

    /// Lets time pass, in which the disk completes the operations that are due.
    fn pass(&mut self, until: Time) {
        loop {
            for io in self.shard.tiers().take_io() {
                let free = self.doing.iter().map(|(end, _)| *end).max().unwrap_or(self.now);
                self.asked += 1;
                self.raised += u64::from(matches!(io.what, IoWhat::ReadBlock { .. }));
                self.doing.push((free.max(self.now) + self.disk_time, io));
            }
            let ended = self.doing.iter().map(|(end, _)| *end).min();
            let due = [ended, self.shard.deadline()].into_iter().flatten().min();
            let Some(due) = due.filter(|due| *due <= until) else { break };
            self.now = self.now.max(due);
            if let Some(n) = self.doing.iter().position(|(end, _)| *end <= self.now) {
                let (_, io) = self.doing.swap_remove(n);
                let (id, done) = io.carry_out(&*self.disk, 0);
                self.shard.tiers().io_done(self.now, id, done);
            }
            self.shard.tick(self.now);
            self.shard.out().take_effects();
            while self.shard.out().completed().is_some() {}
        }
        self.now = self.now.max(until);
    }

    /// How long the writer has to wait, if at all.
    fn append(&mut self, file: u32, length: usize) -> Option<Duration> {
        self.write(file, Op::FileAppend, &[], &vec![file as u8; length])
    }

    fn put(&mut self, block: u32, key: &str, value: &[u8]) -> Option<Duration> {
        self.write(block, Op::KvPut, &[&[0], key.as_bytes()].concat(), value)
    }

    fn delete(&mut self, block: u32, key: &str) -> Option<Duration> {
        self.write(block, Op::KvDelete, &[&[0], key.as_bytes()].concat(), &[])
    }

    fn write(&mut self, block: u32, op: Op, args: &[u8], payload: &[u8]) -> Option<Duration> {
        let answer = self.run(block, op, args, payload);
        match answer.status {
            Status::Ok => None,
            Status::Busy => Some(Duration::from_micros(answer.value)),
            other => panic!("{other:?}: {answer:?}"),
        }
    }

    fn run(&mut self, block: u32, op: Op, args: &[u8], payload: &[u8]) -> Answer {
        self.ticket += 1;
        let mut header = RequestHeader { at: at(block), grant: 1, ..RequestHeader::new(op) };
        header.payload_len = payload.len() as u32;
        if op.info().lane {
            (header.lane, header.sequence) = (LaneId(self.ticket as u32), Sequence(1));
        }
        let ticket = Ticket(self.ticket);
        let outcome = self.shard.apply(self.now, &access(false), &header, args, payload, ticket);
        let Outcome::Done(answer) = outcome else { panic!("{op:?} waits") };
        answer
    }
}

fn at(file: u32) -> BlockAt {
    BlockAt { block: BlockId::new(ServerId(1), ShardIx(0), file), epoch: Epoch(1) }
}

#[test]
fn with_more_writers_than_room_blocks_go_down_about_once_and_nobody_starves() {
    let mut world = World::new(WRITERS);
    // The next append of each writer, and the bytes that it has written.
    let mut next: BTreeMap<u32, Time> = (0..WRITERS).map(|file| (file, world.now)).collect();
    let mut left: BTreeMap<u32, usize> = (0..WRITERS).map(|file| (file, SIZE / PIECE)).collect();
    let began = world.now;
    while let Some((&file, &due)) = next.iter().min_by_key(|(_, due)| **due) {
        world.pass(due);
        match world.append(file, PIECE) {
            None => {
                let left = left.get_mut(&file).unwrap();
                *left -= 1;
                if *left == 0 {
                    next.remove(&file);
                } else {
                    next.insert(file, world.now + APPEND);
                }
            }
            Some(delay) => {
                next.insert(file, world.now + delay);
            }
        }
        assert!(world.now.since(began) < Duration::from_secs(1), "they wait for ever: {left:?}");
    }
    world.pass(world.now + Duration::from_millis(200));
    let all = WRITERS as usize * SIZE;
    // Blocks in the cache at the end need not be demoted.
    let written = world.shard.reports().tier_counts().written;
    assert!(written <= all as u64, "{written} bytes were written of {all}");
    // Six blocks of 0.4 ms of appends each and as many writes, two at a time, and the rest time of the full
    // ones, which were not sealed.
    assert!(world.now.since(began) < Duration::from_millis(300), "{:?}", world.now.since(began));
}

#[test]
fn writers_that_write_now_and_then_take_turns() {
    let mut world = World::new(WRITERS);
    let mut wrote = [0; WRITERS as usize];
    // Every writer would append a line every 3 ms: no block is ever full, and none rests.
    for _ in 0..400 {
        for file in 0..WRITERS {
            wrote[file as usize] += u32::from(world.append(file, 100).is_none());
        }
        world.pass(world.now + Duration::from_millis(3));
    }
    let least = *wrote.iter().min().unwrap();
    assert!(least > 60, "in 400 turns with room for a third they wrote {wrote:?} times");
}

/// The time of a disk that transfers a block for longer than an idle block stays in the cache.
const SLOW: Duration = Duration::from_millis(120);
const CLIENTS: u64 = 2;
const ROUNDS: u32 = 6;

/// Each client puts a key in every kv block, then deletes it, and so on for some rounds. It begins a round
/// when the one before has ended, and the parts of a round at once. The disk is slow.
fn rounds_over_more_blocks_than_room() {
    let kinds = [Kind::Kv; WRITERS as usize];
    let mut world = World::of_kinds(&kinds, SLOW, WARM, LaneRoom::default());
    let began = world.now;
    let parts = |client, now| (0..WRITERS).map(move |block| ((client, block), now));
    let mut due: BTreeMap<(u64, u32), Time> =
        (0..CLIENTS).flat_map(|client| parts(client, began)).collect();
    let mut rounds = [0; CLIENTS as usize];
    while let Some((&(client, block), &time)) = due.iter().min_by_key(|(_, time)| **time) {
        world.pass(time);
        assert!(world.now.since(began) < Duration::from_secs(60), "some starve: {rounds:?}");
        let round = &mut rounds[client as usize];
        let key = format!("key of {client}");
        let delay = match *round % 2 {
            0 => world.put(block, &key, &[7; PIECE]),
            _ => world.delete(block, &key),
        };
        if let Some(delay) = delay {
            due.insert((client, block), world.now + delay);
            continue;
        }
        due.remove(&(client, block));
        if !due.keys().any(|(of, _)| *of == client) {
            *round += 1;
            if *round < ROUNDS {
                due.extend(parts(client, world.now));
            }
        }
    }
    assert_eq!(rounds, [ROUNDS; CLIENTS as usize]);
    // A block that is brought up serves every request that waits for it: those of both clients, and then
    // some more.
    let (read, requests) = (world.raised, CLIENTS * u64::from(ROUNDS * WRITERS));
    assert!(read <= requests / 2, "{read} blocks were read for {requests} requests");
}

#[test]
fn batches_over_more_blocks_than_room_end_on_a_slow_disk() {
    rounds_over_more_blocks_than_room();
}

#[cfg(feature = "bug-bank")]
#[test]
#[should_panic(expected = "blocks were read for")]
fn stay_that_is_counted_from_the_request_is_caught() {
    Bug::arm(Some(Bug::StayCountedFromRequest));
    rounds_over_more_blocks_than_room();
}

/// A writer that tries again at once, beside another one that waits for room, on a slow disk: its block
/// leaves for the other all the same.
fn writer_that_never_rests() {
    let mut world = World::of_kinds(&[Kind::File; 2], SLOW, 1, LaneRoom::default());
    let mut wrote = [0, 0];
    for _ in 0..4000 {
        for file in [0, 1] {
            // The second file is written once: its writer has no other chance.
            if file == 0 || wrote[1] == 0 {
                wrote[file as usize] += u32::from(world.append(file, 10).is_none());
            }
        }
        world.pass(world.now + Duration::from_micros(500));
    }
    assert!(wrote[0] > 0 && wrote[1] == 1, "in two seconds they wrote {wrote:?} times");
}

#[test]
fn writer_that_never_rests_lets_others_have_its_room() {
    writer_that_never_rests();
}

#[cfg(feature = "bug-bank")]
#[test]
#[should_panic(expected = "in two seconds they wrote")]
fn leaving_block_that_stays_for_its_writer_is_caught() {
    Bug::arm(Some(Bug::LeavingBlockStays));
    writer_that_never_rests();
}

/// An item of a queue that is nearly of the largest length.
const ITEM: usize = PIECE - 64;

/// A consumer takes an item and does not come back. Then two files are written, one after the other if the
/// cache has room for one block.
fn consumer_that_is_gone(warm: u32, lane_room: LaneRoom) -> World {
    let mut world = World::of_kinds(&[Kind::Queue, Kind::File, Kind::File], DISK, warm, lane_room);
    // The last item of a block would be copied.
    for item in [1, 2] {
        while world.write(0, Op::QueuePut, &[], &[item; ITEM]).is_some() {
            world.pass(world.now + Duration::from_millis(1));
        }
    }
    let mut args = Vec::new();
    GetArgs { items: 1, bytes: u32::MAX, reserve_ms: 0, stay: false }.put(&mut args);
    assert_eq!(world.write(0, Op::QueueGet, &args, &[]), None);
    let began = world.now;
    for file in [1, 2] {
        while world.append(file, 10).is_some() {
            assert!(world.now < began + Duration::from_secs(1), "file {file} has no room");
            world.pass(world.now + Duration::from_millis(1));
        }
    }
    world
}

#[test]
fn reply_that_is_read_slowly_holds_a_place_for_a_second_only() {
    let mut world = World::of_kinds(&[Kind::Kv, Kind::File], DISK, 1, LaneRoom::default());
    while world.put(0, "key", &[1; ITEM]).is_some() {
        world.pass(world.now + Duration::from_millis(1));
    }
    let answer = world.run(0, Op::KvGet, b"key", &[]);
    let Payload::Block(range) = answer.payload else { panic!("{answer:?}") };
    let reply = world.shard.pin(at(0), range);
    let began = world.now;
    while world.append(1, 10).is_some() {
        world.pass(world.now + Duration::from_millis(1));
        assert!(world.now < began + 2 * WARM_READ_MAX, "the file has no room");
    }
    assert!(world.now >= began + WARM_READ_MAX, "{:?}", world.now.since(began));
    assert!(reply.bytes().iter().all(|byte| *byte == 1));
    drop(reply);
    world.pass(world.now + Duration::from_millis(200));
    assert_eq!(world.shard.reports().in_memory(), (0, 1));
}

#[test]
fn result_of_a_consumer_that_is_gone_leaves_the_memory_of_its_block() {
    let mut world = consumer_that_is_gone(1, LaneRoom::default());
    world.pass(world.now + Duration::from_millis(200));
    assert_eq!(world.shard.reports().in_memory(), (0, 1));
}

#[cfg(feature = "bug-bank")]
#[test]
#[should_panic(expected = "has no room")]
fn result_that_stays_in_its_block_is_caught() {
    Bug::arm(Some(Bug::ResultsStayInBlock));
    consumer_that_is_gone(1, LaneRoom::default());
}

#[test]
fn result_that_is_too_large_for_a_copy_holds_one_place_until_its_lane_is_forgotten() {
    let mut world = consumer_that_is_gone(2, LaneRoom::of(ITEM * 5 / 4));
    world.pass(world.now + Duration::from_secs(1));
    assert_eq!(world.shard.reports().in_memory(), (0, 2));
    // Nobody sends a request to the block.
    world.pass(world.now + Duration::from_millis(3 * RETRY_WINDOW_MS));
    assert_eq!(world.shard.reports().in_memory(), (0, 1));
}

#[test]
fn a_disk_that_fails_is_not_asked_without_pause() {
    let mut world = World::new(WRITERS);
    world.disk.fail_writes(u32::MAX);
    for file in 0..WARM {
        while world.append(file, PIECE).is_some() {
            world.pass(world.now + Duration::from_millis(1));
        }
    }
    // Another block needs room, for a second.
    let before = world.asked;
    for _ in 0..1000 {
        assert!(world.append(WARM, PIECE).is_some(), "nothing can go down");
        world.pass(world.now + Duration::from_millis(1));
    }
    let asked = world.asked - before;
    assert!((2..100).contains(&asked), "the disk was tried {asked} times in a second");
    world.disk.fail_writes(0);
    while world.append(WARM, PIECE).is_some() {
        world.pass(world.now + Duration::from_millis(1));
    }
}
