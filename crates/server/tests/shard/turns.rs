//! The turns of moves: how many blocks of one job move at a time, and which is the next.

use crate::common::{access, config, owner, shard};
use honeycomb_server::{Effect, MoveKey, MoveWord, PeerEvent, PeerKey, Post, Shard};
use honeycomb_structures::{Outcome, Ticket};
use honeycomb_types::limits::MOVING_MAX;
use honeycomb_types::{
    BlockAt, BlockId, Epoch, JobId, Kind, LaneId, Sequence, ServerId, ShardIx, Time,
};
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::{Op, RequestHeader, Status};
use std::time::Duration;

const SIZE: usize = 1 << 20;
const SERVER: ServerId = ServerId(1);
/// Blocks of a job that move at a time.
const AT_ONCE: u32 = MOVING_MAX as u32;

/// A shard with many stores, each of one block, of two jobs.
struct World {
    shard: Shard,
    now: Time,
    sequence: u64,
}

fn block(n: u32) -> BlockAt {
    BlockAt { block: BlockId::new(SERVER, ShardIx(0), n), epoch: Epoch(1) }
}

impl World {
    fn new(blocks: u32) -> World {
        let mut shard = shard(SERVER, config(SIZE, 16));
        for n in 0..blocks {
            shard.open(owner(block(n), Kind::Kv, true), None).unwrap();
        }
        World { shard, now: Time::from_millis(5000), sequence: 0 }
    }

    fn open_for(&mut self, job: JobId, n: u32) {
        let mut owner = owner(block(n), Kind::Kv, true);
        owner.job = job;
        self.shard.open(owner, None).unwrap();
    }

    /// A put to a block of this job; whether the block had room.
    fn put(&mut self, job: JobId, n: u32, key: u32) -> bool {
        let args = [&[0], &key.to_le_bytes()[..]].concat();
        let payload = [7; 500];
        let mut header = RequestHeader { at: block(n), grant: 1, ..RequestHeader::new(Op::KvPut) };
        (header.args_len, header.payload_len) = (args.len() as u32, payload.len() as u32);
        self.sequence += 1;
        (header.lane, header.sequence) = (LaneId(self.sequence as u32), Sequence(1));
        let mut access = access(false);
        access.grant.as_mut().unwrap().job = job;
        let ticket = Ticket(self.sequence);
        let outcome = self.shard.apply(self.now, &access, &header, &args, &payload, ticket);
        let Outcome::Done(answer) = outcome else { panic!("a put was parked") };
        assert!(matches!(answer.status, Status::Ok | Status::Busy), "{:?}", answer.status);
        answer.status == Status::Ok
    }

    /// Puts keys until the block has no room; returns their number.
    fn fill(&mut self, job: JobId, n: u32) -> u32 {
        (0..4000).find(|key| !self.put(job, n, *key)).expect("a block has an end")
    }

    /// Puts keys until the block requests a split; returns where it divides.
    fn starts_to_split(&mut self, n: u32) -> u64 {
        let start = (0..4000).find_map(|key| {
            assert!(self.put(JobId(1), n, key), "the block is full");
            match self.shard.out().take_effects()[..] {
                [Effect::BeginMove { start, .. }] => Some(start),
                _ => None,
            }
        });
        start.expect("a block requests a split before it is full")
    }

    /// The blocks that have requested a target since the last call.
    fn begun(&mut self) -> Vec<u32> {
        let begins = |effect| match effect {
            Effect::BeginMove { at, .. } => Some(at.block.index()),
            _ => None,
        };
        self.shard.out().take_effects().into_iter().filter_map(begins).collect()
    }

    /// The target that a block has requested is ready. Returns the parts that are sent before an answer.
    fn let_begin(&mut self, n: u32, start: u64) -> usize {
        let BlockAt { block: target, epoch } = block(15);
        let (target, epoch) = (target.0, epoch.0);
        let entry = MapEntry { start, end: u64::MAX, block: target, epoch, address: "s:1".into() };
        let address = Ok("127.0.0.1:1".parse().unwrap());
        let word = MoveWord::Begin { id: 1, entry, address };
        self.shard.on_exports(self.now, |work| work.move_word(block(n), word));
        self.parts()
    }

    /// The parts that are sent now.
    fn parts(&mut self) -> usize {
        while self.shard.step(self.now) {}
        let posts = self.shard.out().take_posts();
        posts.iter().filter(|post| matches!(post, Post::Send { .. })).count()
    }

    fn refuse(&mut self, n: u32) {
        let word = MoveWord::Refused(Status::OutOfMemory, "no block is free".into());
        self.shard.on_exports(self.now, |work| work.move_word(block(n), word));
        self.pass(Duration::ZERO);
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.shard.tick(self.now);
    }
}

#[test]
fn few_blocks_of_a_job_move_at_a_time_and_the_fullest_is_next() {
    let (job, blocks) = (JobId(1), AT_ONCE + 3);
    let mut world = World::new(blocks);
    let mut full = 0;
    for n in 0..AT_ONCE {
        full = world.fill(job, n);
        assert_eq!(world.begun(), [n]);
    }
    // Filled to different levels, at which each requests a split.
    for (n, keys) in (AT_ONCE..blocks).zip([full - 20, full - 4, full - 12]) {
        assert!((0..keys).all(|key| world.put(job, n, key)), "block {n} is full");
    }
    assert!(world.begun().is_empty(), "{AT_ONCE} blocks move already");
    world.refuse(3);
    assert_eq!(world.begun(), [AT_ONCE + 1], "the fullest is next");
    world.refuse(5);
    assert_eq!(world.begun(), [AT_ONCE + 2]);
}

#[test]
fn move_for_which_others_wait_has_more_parts_in_flight() {
    let mut world = World::new(AT_ONCE + 1);
    let start = world.starts_to_split(0);
    // No writer is faster than the move.
    world.pass(Duration::from_secs(1));
    let few = world.let_begin(0, start);
    assert!((1..10).contains(&few), "{few} parts of 1/64 of a block");
    for n in 1..=AT_ONCE {
        world.fill(JobId(1), n);
    }
    let key = PeerKey::Move(MoveKey { source: block(0), id: 1 });
    world.shard.peer_event(world.now, key, PeerEvent::Answered(Status::Ok));
    let more = world.parts();
    assert!(more > 2 * few, "{few} parts were in flight, and {more} are sent for one answer");
}

/// The writers of this world are as fast as can be.
#[test]
fn move_of_a_block_that_will_be_full_before_it_ends_has_more_parts_in_flight() {
    let mut world = World::new(1);
    let start = world.starts_to_split(0);
    let many = world.let_begin(0, start);
    assert!(many > 20, "{many} parts of 1/64 of a block");
}

#[test]
fn block_that_leaves_its_server_needs_no_turn() {
    let mut world = World::new(AT_ONCE + 1);
    for n in 0..AT_ONCE {
        world.fill(JobId(1), n);
    }
    assert_eq!(world.begun().len(), AT_ONCE as usize);
    world.shard.on_exports(world.now, |work| work.evacuate(block(AT_ONCE))).unwrap();
    world.pass(Duration::ZERO);
    assert_eq!(world.begun(), [AT_ONCE]);
}

#[test]
fn moves_of_one_job_delay_no_other_job() {
    let mut world = World::new(AT_ONCE + 1);
    for n in 0..=AT_ONCE {
        world.fill(JobId(1), n);
    }
    assert_eq!(world.begun().len(), AT_ONCE as usize);
    world.open_for(JobId(2), AT_ONCE + 1);
    world.fill(JobId(2), AT_ONCE + 1);
    assert_eq!(world.begun(), [AT_ONCE + 1]);
}

#[test]
fn blocks_wait_neither_for_a_move_without_progress_nor_for_one_whose_block_has_ended() {
    let mut world = World::new(AT_ONCE + 2);
    for n in 0..AT_ONCE + 2 {
        world.fill(JobId(1), n);
    }
    assert_eq!(world.begun().len(), AT_ONCE as usize);
    assert!(world.shard.owners().free(block(0)));
    world.pass(Duration::from_millis(260));
    let mut begun = world.begun();
    begun.sort_unstable();
    assert_eq!(begun, [AT_ONCE, AT_ONCE + 1]);
}
