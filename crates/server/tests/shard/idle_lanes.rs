//! Lanes of blocks that get no requests: they leave the memory that all blocks of a core share for lanes.

use crate::common::{access, config, owner, shard};
use honeycomb_server::{Shard, ShardConfig};
use honeycomb_structures::{LaneRoom, Outcome, Ticket};
use honeycomb_types::limits::RETRY_WINDOW_MS;
use honeycomb_types::{BlockAt, BlockId, Epoch, Kind, LaneId, Sequence, ServerId, ShardIx, Time};
use honeycomb_wire::{Op, RequestHeader, Status};
use std::time::Duration;

fn at(block: u32) -> BlockAt {
    BlockAt { block: BlockId::new(ServerId(1), ShardIx(0), block), epoch: Epoch(1) }
}

fn append(shard: &mut Shard, now: Time, block: u32, lane: u32) -> Status {
    let header = RequestHeader {
        at: at(block),
        grant: 1,
        lane: LaneId(lane),
        sequence: Sequence(1),
        payload_len: 1,
        ..RequestHeader::new(Op::FileAppend)
    };
    let ticket = Ticket(u64::from(lane));
    match shard.apply(now, &access(false), &header, &[], b"x", ticket) {
        Outcome::Done(answer) => answer.status,
        Outcome::Parked => panic!("an append waits"),
    }
}

#[test]
fn lanes_of_a_block_without_requests_give_their_room_to_others() {
    let lane_room = LaneRoom::of(64 << 10);
    let mut shard =
        shard(ServerId(1), ShardConfig { lane_room: lane_room.clone(), ..config(64 << 10, 2) });
    for block in [0, 1] {
        shard.open(owner(at(block), Kind::File, true), None).unwrap();
    }
    let mut now = Time::from_millis(5000);
    let mut lanes = 1..;
    while append(&mut shard, now, 0, lanes.next().unwrap()) == Status::Ok {}
    assert_eq!(append(&mut shard, now, 1, 1), Status::Busy, "the room is shared");
    // From now on the first block gets no requests. Time passes as its shard asks for it.
    let end = now + Duration::from_millis(3 * RETRY_WINDOW_MS);
    let mut ticks = 0;
    while let Some(due) = shard.deadline().filter(|due| *due <= end) {
        now = now.max(due);
        shard.tick(now);
        shard.out().take_effects();
        ticks += 1;
        assert!(ticks < 100, "the shard wakes up without end");
    }
    assert_eq!(append(&mut shard, end, 1, 1), Status::Ok);
    assert!(lane_room.taken() < 4096, "{}", lane_room.taken());
}
