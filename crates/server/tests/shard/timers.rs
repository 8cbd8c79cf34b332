//! Timers of many blocks that are due at the same time: requests come in between.

use crate::common::{access, config, owner, shard};
use honeycomb_structures::{Outcome, Ticket};
use honeycomb_types::{BlockAt, BlockId, Epoch, Kind, LaneId, Sequence, ServerId, ShardIx, Time};
use honeycomb_wire::queue::GetArgs;
use honeycomb_wire::{Op, RequestHeader, Status};
use std::time::Duration;

const BLOCKS: u32 = 50;
/// Blocks whose timers are handled in one tick.
const AT_ONCE: usize = 16;

#[test]
fn one_tick_handles_the_timers_of_few_blocks_and_the_others_are_due_at_once() {
    let mut shard = shard(ServerId(1), config(64 << 10, BLOCKS));
    let (now, wait) = (Time::from_millis(5000), Duration::from_secs(1));
    let mut args = Vec::new();
    GetArgs { items: 1, bytes: 100, reserve_ms: 0, stay: false }.put(&mut args);
    for n in 0..BLOCKS {
        let block = BlockId::new(ServerId(1), ShardIx(0), n);
        let at = BlockAt { block, epoch: Epoch(1) };
        shard.open(owner(at, Kind::Queue, true), None).unwrap();
        let header = RequestHeader {
            at,
            grant: 1,
            lane: LaneId(1 + n),
            sequence: Sequence(1),
            deadline_ms: wait.as_millis() as u32,
            ..RequestHeader::new(Op::QueueGet)
        };
        let ticket = Ticket(u64::from(n));
        let outcome = shard.apply(now, &access(false), &header, &args, &[], ticket);
        assert!(matches!(outcome, Outcome::Parked), "the queue is empty: {outcome:?}");
    }
    let (end, mut left) = (now + wait, BLOCKS as usize);
    while left > 0 {
        assert!(shard.deadline().is_some_and(|due| due <= end), "{left} wait without end");
        shard.tick(end);
        let mut answered = 0;
        while let Some((_, answer)) = shard.out().completed() {
            assert_eq!(answer.status, Status::QueueEmpty);
            answered += 1;
        }
        assert_eq!(answered, left.min(AT_ONCE), "{left} were left");
        left -= answered;
    }
}
