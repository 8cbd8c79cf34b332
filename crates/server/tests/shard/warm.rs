//! The write cache with more writers than room: every writer makes progress, data is written to the disk
//! about once, and a failing disk is retried with pauses.

use crate::common::{access, owner};
use honeycomb_env::MemoryVolume;
use honeycomb_server::{BlockOwner, Io, Shard, ShardConfig};
use honeycomb_structures::{Outcome, Ticket};
use honeycomb_types::{
    BlockAt, BlockId, Epoch, Kind, LaneId, Sequence, ServerId, ShardIx, TierClass, TierIx,
    TierSpec, Time,
};
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

/// A shard whose files are all in a lower tier, with a disk that executes one operation after the other.
struct World {
    shard: Shard,
    disk: Arc<MemoryVolume>,
    now: Time,
    /// The operations of the disk, and when each ends.
    doing: Vec<(Time, Io)>,
    asked: u64,
    ticket: u64,
}

impl World {
    fn new(files: u32) -> World {
        let mut shard = crate::common::shard(
            ServerId(1),
            ShardConfig {
                frames: 1,
                warm: WARM,
                disks: vec![TierSpec { class: TierClass::Ssd, blocks: files }],
                buffers: 8 * SIZE,
                ..crate::common::config(SIZE, 1 + files)
            },
        );
        for file in 0..files {
            let open = owner(at(file), Kind::File, true);
            shard.open(BlockOwner { tier: TierIx(1), ..open }).unwrap();
        }
        World {
            shard,
            disk: Arc::new(MemoryVolume::new()),
            now: Time::from_millis(5000),
            doing: Vec::new(),
            asked: 0,
            ticket: 0,
        }
    }

    /// Lets time pass, in which the disk completes the operations that are due.
    fn pass(&mut self, until: Time) {
        loop {
            for io in self.shard.take_io() {
                let free = self.doing.iter().map(|(end, _)| *end).max().unwrap_or(self.now);
                self.asked += 1;
                self.doing.push((free.max(self.now) + DISK, io));
            }
            let ended = self.doing.iter().map(|(end, _)| *end).min();
            let due = [ended, self.shard.deadline()].into_iter().flatten().min();
            let Some(due) = due.filter(|due| *due <= until) else { break };
            self.now = self.now.max(due);
            if let Some(n) = self.doing.iter().position(|(end, _)| *end <= self.now) {
                let (_, io) = self.doing.swap_remove(n);
                let (id, done) = io.carry_out(&*self.disk, 0);
                self.shard.io_done(self.now, id, done);
            }
            self.shard.tick(self.now);
            self.shard.take_effects();
            while self.shard.completed().is_some() {}
        }
        self.now = self.now.max(until);
    }

    /// How long the writer has to wait, if at all.
    fn append(&mut self, file: u32, length: usize) -> Option<Duration> {
        self.ticket += 1;
        let mut header =
            RequestHeader { at: at(file), grant: 1, ..RequestHeader::new(Op::FileAppend) };
        (header.payload_len, header.lane) = (length as u32, LaneId(self.ticket as u32));
        header.sequence = Sequence(1);
        let payload = vec![file as u8; length];
        let ticket = Ticket(self.ticket);
        let args = [];
        let outcome = self.shard.apply(self.now, &access(false), &header, &args, &payload, ticket);
        let Outcome::Done(answer) = outcome else { panic!("an append waits") };
        match answer.status {
            Status::Ok => None,
            Status::Busy => Some(Duration::from_micros(answer.value)),
            other => panic!("{other:?}: {answer:?}"),
        }
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
    let written = world.shard.tier_counts().written;
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
