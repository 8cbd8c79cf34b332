//! Blocks that are frozen for a snapshot: changes wait, reads are served, and the written content is that of
//! the freeze, whatever changed since (INV-49).

use crate::common::{access, owner};
use honeycomb_server::{BlockMessage, KeptBytes, Shard, VolumeParts};
use honeycomb_structures::{Answer, Outcome, Successor, Ticket};
use honeycomb_types::limits::FLUSH_COPIES_AT_ONCE;
use honeycomb_types::{BlockAt, BlockId, Epoch, Kind, LaneId, Sequence, ServerId, ShardIx, Time};
use honeycomb_wire::data::{MovedArgs, ReadArgs};
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::{Op, RequestHeader, Status};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

const SIZE: usize = 64 << 10;
const SERVER: ServerId = ServerId(1);
const ALL: (u64, u64) = (0, u64::MAX);
const HOLD: Duration = Duration::from_millis(200);
const FLUSH: u64 = 9;

struct World {
    shard: Shard,
    now: Time,
    sequences: HashMap<BlockAt, u64>,
    tickets: u64,
}

fn block(n: u32) -> BlockAt {
    BlockAt { block: BlockId::new(SERVER, ShardIx(0), n), epoch: Epoch(n as u64 + 1) }
}

impl World {
    fn new(kind: Kind, blocks: u32) -> World {
        let mut shard = crate::common::shard(SERVER, crate::common::config(SIZE, 64));
        (0..blocks).for_each(|n| drop(shard.open(owner(block(n), kind, true), None).unwrap()));
        World { shard, now: Time::from_millis(5000), sequences: HashMap::new(), tickets: 0 }
    }

    fn run(&mut self, at: BlockAt, op: Op, args: &[u8], payload: &[u8]) -> Answer {
        let mut header = RequestHeader { at, grant: 1, ..RequestHeader::new(op) };
        header.payload_len = payload.len() as u32;
        header.args_len = args.len() as u32;
        let next = self.sequences.entry(at).or_insert(1);
        if op.info().lane {
            (header.lane, header.sequence) = (LaneId(1), Sequence(*next));
        }
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        match self.shard.apply(self.now, &access(false), &header, args, payload, ticket) {
            Outcome::Done(answer) => {
                // A mutation that was refused for now is repeated under its number.
                *next += u64::from(op.info().lane && answer.executed());
                answer
            }
            Outcome::Parked => panic!("{op:?} was parked"),
        }
    }

    fn put(&mut self, at: BlockAt, key: &[u8], value: &[u8]) -> Status {
        self.run(at, Op::KvPut, &[&[0], key].concat(), value).status
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.shard.tick(self.now);
    }

    fn stop(&mut self, at: BlockAt) -> Result<bool, Answer> {
        self.shard.on_exports(self.now, |work| work.checkpoint(at, ALL, FLUSH, HOLD))
    }

    fn cut(&mut self, at: BlockAt) -> Arc<KeptBytes> {
        self.shard.on_exports(self.now, |work| work.checkpoint_content(at, FLUSH)).unwrap().0
    }
}

fn written(bytes: &KeptBytes) -> Vec<u8> {
    let parts: VolumeParts = Arc::from(Vec::new());
    let mut out = Vec::new();
    bytes.write(&parts, &mut out).unwrap();
    out
}

#[test]
fn changes_wait_reads_go_on_and_the_cut_is_what_was_there() {
    let mut w = World::new(Kind::File, 1);
    let at = block(0);
    assert_eq!(w.run(at, Op::FileAppend, &[], b"before").status, Status::Ok);
    assert_eq!(w.stop(at), Ok(false));
    let refused = w.run(at, Op::FileAppend, &[], b"meanwhile");
    assert_eq!(refused.status, Status::Busy);
    assert!(refused.value > 0, "the refusal has a retry delay");
    let mut read = Vec::new();
    ReadArgs { offset: 0, length: 6 }.put(&mut read);
    assert_eq!(w.run(at, Op::FileRead, &read, &[]).status, Status::Ok);
    assert!(
        w.shard.on_exports(w.now, |work| work.checkpoint_content(at, FLUSH)).is_err(),
        "there is no snapshot before all are frozen"
    );
    assert!(w.shard.on_exports(w.now, |work| work.thaw(at, FLUSH)));
    assert_eq!(w.run(at, Op::FileAppend, &[], b" and after").status, Status::Ok);
    assert_eq!(written(&w.cut(at)), b"before");
    // As often as requested.
    assert_eq!(written(&w.cut(at)), b"before");
    w.shard.on_exports(w.now, |work| work.end_copies(0, FLUSH));
    assert_eq!(
        w.shard.on_exports(w.now, |work| work.checkpoint_content(at, FLUSH)).unwrap_err().status,
        Status::NotFound
    );
}

/// A frozen block gets the controller's messages when it continues, in their order.
#[test]
fn messages_to_a_frozen_block_are_received_in_order_when_it_continues() {
    let mut w = World::new(Kind::File, 1);
    let at = block(0);
    assert_eq!(w.run(at, Op::FileAppend, &[], b"before").status, Status::Ok);
    assert_eq!(w.stop(at), Ok(false));
    let held = format!("{:?}", w.shard.reports().holdings());
    let entry = MapEntry { block: 1, epoch: 2, end: u64::MAX, ..MapEntry::default() };
    let granted = Successor::Ready(MovedArgs { version: 2, entry }.encode());
    let denied = Successor::Denied(Status::OutOfMemory, "full".into());
    for successor in [denied, granted] {
        w.shard.receive(w.now, at, BlockMessage::Successor(successor));
    }
    assert_eq!(
        format!("{:?}", w.shard.reports().holdings()),
        held,
        "nothing changes while it is frozen"
    );
    assert!(w.shard.on_exports(w.now, |work| work.thaw(at, FLUSH)));
    assert_ne!(format!("{:?}", w.shard.reports().holdings()), held, "it has the successor");
    let filling = vec![7; SIZE - 100];
    assert_eq!(w.run(at, Op::FileAppend, &[], &filling).status, Status::Ok);
    assert_eq!(w.run(at, Op::FileAppend, &[], &[7; 200]).status, Status::Moved);
}

#[test]
fn a_block_goes_on_by_itself_and_says_so() {
    let mut w = World::new(Kind::File, 1);
    let at = block(0);
    w.run(at, Op::FileAppend, &[], b"before");
    w.stop(at).unwrap();
    w.pass(HOLD - Duration::from_millis(1));
    assert_eq!(w.run(at, Op::FileAppend, &[], b"x").status, Status::Busy);
    // A repeated request does not extend the freeze.
    w.stop(at).unwrap();
    w.pass(Duration::from_millis(1));
    assert_eq!(w.run(at, Op::FileAppend, &[], b"x").status, Status::Ok);
    assert!(!w.shard.on_exports(w.now, |work| work.thaw(at, FLUSH)));
    assert_eq!(
        w.shard.on_exports(w.now, |work| work.checkpoint_content(at, FLUSH)).unwrap_err().status,
        Status::NotFound
    );
    // Also if the block has not changed since: the time is over.
    w.stop(at).unwrap();
    w.now = w.now + HOLD;
    assert!(!w.shard.on_exports(w.now, |work| work.thaw(at, FLUSH)));
    // A block that is released without a snapshot continues at once.
    w.stop(at).unwrap();
    w.shard.on_exports(w.now, |work| work.end_copies(0, FLUSH));
    assert_eq!(w.run(at, Op::FileAppend, &[], b"x").status, Status::Ok);
    // Another flush has its turn later.
    w.stop(at).unwrap();
    let other = w.shard.on_exports(w.now, |work| work.checkpoint(at, ALL, FLUSH + 1, HOLD));
    assert_eq!(other.unwrap_err().status, Status::Busy);
    w.shard.on_exports(w.now, |work| work.forget_copies(0));
    assert_eq!(w.run(at, Op::FileAppend, &[], b"x").status, Status::Ok);
}

#[test]
fn what_is_arriving_is_waited_for() {
    let mut w = World::new(Kind::File, 1);
    let at = block(0);
    let mut header = RequestHeader { at, grant: 1, ..RequestHeader::new(Op::FileAppend) };
    (header.payload_len, header.lane, header.sequence) = (4, LaneId(2), Sequence(1));
    let ticket = Ticket(900);
    w.shard.reserve(w.now, &access(false), &header, &[], ticket).unwrap();
    assert_eq!(w.stop(at).unwrap_err().status, Status::Busy);
    assert_eq!(w.run(at, Op::FileAppend, &[], b"x").status, Status::Busy, "the block is frozen");
    w.shard.requests().fill(ticket).unwrap().copy_from_slice(b"late");
    w.shard.requests().filled(ticket, 4);
    w.shard.end_payload(w.now, ticket, true);
    assert_eq!(w.shard.out().completed().unwrap().1.status, Status::Ok);
    assert_eq!(w.stop(at), Ok(false));
    let mut next = RequestHeader { lane: LaneId(3), ..header };
    next.payload_len = 4;
    let refused = w.shard.reserve(w.now, &access(false), &next, &[], Ticket(901)).unwrap_err();
    assert_eq!(refused.status, Status::Busy);
    assert!(w.shard.on_exports(w.now, |work| work.thaw(at, FLUSH)));
    assert_eq!(written(&w.cut(at)), b"late");
}

#[test]
fn nobody_who_waits_is_served_while_it_stands_still() {
    let mut w = World::new(Kind::Queue, 1);
    let at = block(0);
    let put = |w: &mut World, item: &[u8]| {
        w.run(at, Op::QueuePut, &(item.len() as u32).to_le_bytes(), item).status
    };
    assert_eq!(put(&mut w, b"one"), Status::Ok);
    w.stop(at).unwrap();
    assert_eq!(put(&mut w, b"two"), Status::Busy);
    assert!(w.shard.on_exports(w.now, |work| work.thaw(at, FLUSH)));
    assert_eq!(put(&mut w, b"two"), Status::Ok);
    let cut = written(&w.cut(at));
    assert_eq!(cut, [&3u32.to_le_bytes()[..], b"one"].concat());
}

#[test]
fn a_store_owes_what_it_held_until_it_is_changed_or_asked() {
    let blocks = 12;
    let mut w = World::new(Kind::Kv, blocks);
    let all: Vec<BlockAt> = (0..blocks).map(block).collect();
    let value = vec![7; 6000];
    for &at in &all {
        (0..8u8).for_each(|key| assert_eq!(w.put(at, &[key], &value), Status::Ok));
    }
    let before: Vec<Vec<u8>> = all
        .iter()
        .map(|at| written(&w.shard.on_exports(w.now, |work| work.copy(*at, ALL, 77)).unwrap().0))
        .collect();
    w.shard.on_exports(w.now, |work| work.end_copies(0, 77));
    all.iter().for_each(|at| assert!(w.stop(*at).is_ok()));
    assert_eq!(w.put(all[0], b"x", b"1"), Status::Busy);
    all.iter().for_each(|at| assert!(w.shard.on_exports(w.now, |work| work.thaw(*at, FLUSH))));
    // The first changes have the blocks copied, as far as there is room; the others stay frozen a little
    // longer.
    let changed: Vec<bool> = all.iter().map(|at| w.put(*at, b"x", b"1") == Status::Ok).collect();
    let room = changed.iter().filter(|changed| **changed).count();
    assert!((FLUSH_COPIES_AT_ONCE..blocks as usize).contains(&room), "{changed:?}");
    // Each written object makes room for others, and has the old content.
    for (at, before) in all.iter().zip(&before) {
        let cut = w.cut(*at);
        assert!(written(&cut) == *before, "{at:?} is not as it was");
    }
    w.shard.on_exports(w.now, |work| work.end_copies(0, FLUSH));
    for at in &all {
        assert_eq!(w.put(*at, b"x", b"2"), Status::Ok);
    }
}
