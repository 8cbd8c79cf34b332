//! Memory of a freed block that the next one of the same job reuses, and no other job (INV-04).

use crate::common::{access, owner};
use honeycomb_block::Reclaimer;
use honeycomb_server::{BlockOwner, Shard, ShardConfig};
use honeycomb_structures::{Outcome, Ticket};
use honeycomb_types::limits::MOVING_MAX;
use honeycomb_types::{
    BlockAt, BlockId, Epoch, JobId, Kind, LaneId, Sequence, ServerId, ShardIx, Time,
};
use honeycomb_wire::data::ReadArgs;
use honeycomb_wire::{Op, RequestHeader, Status};

const SIZE: usize = 64 << 10;
const SECRET: [u8; 4000] = [0xEE; 4000];

fn block(server: ServerId, index: u32, epoch: u64) -> BlockAt {
    BlockAt { block: BlockId::new(server, ShardIx(0), index), epoch: Epoch(epoch) }
}

fn open(shard: &mut Shard, at: BlockAt, kind: Kind, job: u64) -> Vec<u8> {
    let owner = BlockOwner { job: JobId(job), ..owner(at, kind, true) };
    shard.open(owner, None).unwrap();
    shard.bytes(at, 0..SIZE).to_vec()
}

/// Writes into a file's block, and frees the block.
fn write_and_free(shard: &mut Shard, at: BlockAt) {
    let header = RequestHeader {
        at,
        grant: 1,
        lane: LaneId(1),
        sequence: Sequence(1),
        payload_len: SECRET.len() as u32,
        ..RequestHeader::new(Op::FileAppend)
    };
    let done =
        shard.apply(Time::from_millis(5000), &access(false), &header, &[], &SECRET, Ticket(1));
    assert!(matches!(done, Outcome::Done(answer) if answer.status == Status::Ok));
    assert!(shard.owners().free(at));
}

/// A server whose reclaimer keeps nothing reuses no memory, as in the simulator.
#[test]
fn nothing_is_handed_on_that_was_not_kept() {
    let server = ServerId(1);
    let mut shard = crate::common::shard(server, crate::common::config(SIZE, 16));
    for epoch in 1..4 {
        let at = block(server, 0, epoch);
        assert!(open(&mut shard, at, Kind::File, 1).iter().all(|byte| *byte == 0));
        write_and_free(&mut shard, at);
    }
}

#[test]
fn what_one_job_frees_is_no_other_jobs() {
    // The worker does not run: nothing is reclaimed in the background.
    let (reclaimer, _worker) = Reclaimer::with_worker(1 << 20, usize::MAX, None);
    let server = ServerId(1);
    let config = ShardConfig {
        shard: ShardIx(0),
        block_size: SIZE,
        frames: 16,
        lane_room: Default::default(),
        moving: MOVING_MAX,
        warm: 0,
        deltas: 0,
        disks: Vec::new(),
        buffers: 0,
        reclaimer,
        kinds: Default::default(),
    };
    let mut shard = Shard::new(config);
    shard.owners().reset(server);
    let clean = |bytes: Vec<u8>| bytes.iter().all(|byte| *byte == 0);

    let first = block(server, 0, 1);
    assert!(clean(open(&mut shard, first, Kind::File, 1)));
    write_and_free(&mut shard, first);
    // The same block, and others, of every kind: of another job.
    for (n, kind) in [Kind::File, Kind::Queue, Kind::Kv, Kind::Extents].into_iter().enumerate() {
        assert!(clean(open(&mut shard, block(server, n as u32, 2), kind, 2)), "{kind:?}");
    }
    // The same job gets the memory, in any block, and a file shows nothing of it: it has no bytes yet.
    let again = block(server, 5, 3);
    assert!(!clean(open(&mut shard, again, Kind::File, 1)), "nothing was handed on: no test");
    let mut range = Vec::new();
    ReadArgs { offset: 0, length: SIZE as u32 }.put(&mut range);
    let header = RequestHeader {
        at: again,
        grant: 1,
        args_len: range.len() as u32,
        ..RequestHeader::new(Op::FileRead)
    };
    let read =
        shard.apply(Time::from_millis(5000), &access(false), &header, &range, &[], Ticket(2));
    let Outcome::Done(read) = read else { panic!("a read waits for nothing") };
    assert_eq!((read.status, read.value), (Status::Ok, 0));
    assert_eq!(read.payload, honeycomb_structures::Payload::None);

    // Under another number of the server, a job with this number is another one.
    write_and_free(&mut shard, again);
    let renamed = ServerId(2);
    shard.owners().reset(renamed);
    assert!(clean(open(&mut shard, block(renamed, 5, 1), Kind::File, 1)));
}
