//! Blocks that hide changes until they are stored: a shard as its loop drives it, with an object store that
//! is slow and fails.

use crate::common::{access, owner};
use honeycomb_server::{BlockMessage, JournalWrite, Shard};
use honeycomb_structures::{Answer, Outcome, Payload, Successor, Ticket};
use honeycomb_tiers::RecordEnds;
use honeycomb_types::limits::LARGE_FRACTION;
use honeycomb_types::{
    BlockAt, BlockId, Epoch, Kind, LaneId, Sequence, ServerId, SessionId, ShardIx, Time,
};
use honeycomb_wire::data::{MovedArgs, ReadArgs};
use honeycomb_wire::messages::{JournalAt, MapEntry};
use honeycomb_wire::{Durability, Op, RequestHeader, Status, flags};
use std::time::Duration;

const SIZE: usize = 64 << 10;
const SERVER: ServerId = ServerId(1);

fn block(n: u32) -> BlockAt {
    BlockAt { block: BlockId::new(SERVER, ShardIx(0), n), epoch: Epoch(n as u64 + 1) }
}

fn place() -> JournalAt {
    let (directory, tag) = ("job/t".into(), "tag".into());
    let (job_name, address, name) = ("job".into(), "t".into(), "log".into());
    JournalAt { directory, tag, job_name, address, name }
}

struct World {
    shard: Shard,
    now: Time,
    tickets: u64,
    /// The number of the next mutation of each session.
    sequences: [u64; 4],
}

impl World {
    fn new() -> World {
        let shard = crate::common::shard(SERVER, crate::common::config(SIZE, 8));
        World { shard, now: Time::from_millis(5000), tickets: 0, sequences: [0; 4] }
    }

    /// With a block whose journal is begun.
    fn begun() -> World {
        let mut world = World::new();
        let begin = world.shard.open(owner(block(0), Kind::File, true), Some(place()));
        let begin = begin.unwrap().unwrap();
        assert_eq!((begin.structure.block, &*begin.structure.name), (block(0).block.0, "log"));
        assert_eq!((&*begin.directory, &*begin.owner.tag), ("job/t", "tag"));
        world.shard.on_journals(world.now, |work| work.begun(block(0)));
        world
    }

    fn header(&mut self, op: Op, session: usize) -> RequestHeader {
        self.sequences[session] += 1;
        let (lane, sequence) = (LaneId(1), Sequence(self.sequences[session]));
        let header = RequestHeader { at: block(0), lane, sequence, ..RequestHeader::new(op) };
        // The client has not received the last answer yet.
        RequestHeader { grant: 1, ack_lag: 1, ..header }
    }

    fn run(
        &mut self,
        header: &RequestHeader,
        session: usize,
        args: &[u8],
        payload: &[u8],
    ) -> (Ticket, Outcome) {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let mut who = access(false);
        who.session = SessionId(session as u128 + 1);
        let outcome = self.shard.apply(self.now, &who, header, args, payload, ticket);
        (ticket, outcome)
    }

    fn append(&mut self, session: usize, bytes: &[u8]) -> (Ticket, Outcome) {
        let header = self.header(Op::FileAppend, session);
        self.run(&header, session, &[], bytes)
    }

    /// The number of bytes that a reader finds from an offset on.
    fn read(&mut self) -> usize {
        let mut args = Vec::new();
        ReadArgs { offset: 0, length: SIZE as u32 }.put(&mut args);
        let header = RequestHeader { at: block(0), grant: 1, ..RequestHeader::new(Op::FileRead) };
        match self.run(&header, 0, &args, &[]).1 {
            Outcome::Done(Answer { status: Status::Ok, payload, .. }) => match payload {
                Payload::Block(range) => range.len(),
                _ => 0,
            },
            other => panic!("{other:?}"),
        }
    }

    fn one_write(&mut self) -> JournalWrite {
        let mut writes = self.shard.out().take_journal_writes();
        assert_eq!(writes.len(), 1, "one record at a time");
        writes.pop().unwrap()
    }

    fn stored(&mut self, write: &JournalWrite) -> Vec<(Ticket, Answer)> {
        self.shard
            .on_journals(self.now, |work| work.written(write.at, write.record.number, Ok(())));
        std::iter::from_fn(|| self.shard.out().completed()).collect()
    }
}

fn bytes(write: &JournalWrite) -> &[u8] {
    write.bytes.as_ref().map_or(&[], |pin| pin.bytes())
}

#[test]
fn nothing_counts_before_it_is_stored() {
    let mut world = World::begun();
    let (first, outcome) = world.append(0, b"first");
    assert_eq!(outcome, Outcome::Parked);
    let write = world.one_write();
    assert_eq!((bytes(&write), write.record.number, write.record.start), (&b"first"[..], 0, 0));
    // All changes meanwhile form the next record.
    let (second, _) = world.append(1, b"second");
    let (third, _) = world.append(2, b"third");
    assert!(world.shard.out().take_journal_writes().is_empty());
    assert_eq!(world.read(), 0);
    assert!(world.shard.out().completed().is_none());

    let answers = world.stored(&write);
    assert_eq!(answers, [(first, Answer::ok(0))]);
    assert_eq!(world.read(), 5);
    let header = RequestHeader { at: block(0), ..RequestHeader::new(Op::FileAppend) };
    assert_eq!(world.shard.durability_of(&header), Durability::Flushed);
    let header = RequestHeader { at: block(0), ..RequestHeader::new(Op::FileRead) };
    assert_eq!(world.shard.durability_of(&header), Durability::Memory);
    let write = world.one_write();
    assert_eq!((bytes(&write), write.record.start), (&b"secondthird"[..], 5));
    // A repeated report counts once.
    world.shard.on_journals(world.now, |work| work.written(write.at, 0, Ok(())));
    assert_eq!(world.read(), 5);
    let mut answers = world.stored(&write);
    answers.sort_by_key(|(ticket, _)| ticket.0);
    assert_eq!(answers, [(second, Answer::ok(5)), (third, Answer::ok(11))]);

    // A repeated append gets the recorded answer, and a seal is a record too.
    let lane = LaneId(1);
    let again = RequestHeader {
        at: block(0),
        lane,
        sequence: Sequence(1),
        grant: 1,
        ack_lag: 1,
        flags: flags::RETRY,
        ..RequestHeader::new(Op::FileAppend)
    };
    assert_eq!(world.run(&again, 0, &[], b"first").1, Outcome::Done(Answer::ok(0)));
    let header = world.header(Op::FileSeal, 0);
    let (seal, outcome) = world.run(&header, 0, &[], &[]);
    assert_eq!(outcome, Outcome::Parked);
    let (_, outcome) = world.append(1, b"late");
    assert!(matches!(outcome, Outcome::Done(Answer { status: Status::Busy, .. })));
    world.sequences[1] -= 1;
    let write = world.one_write();
    assert_eq!((bytes(&write), write.record.ends), (&b""[..], RecordEnds::Final));
    assert_eq!(world.stored(&write), [(seal, Answer::ok(16))]);
    let (_, outcome) = world.append(1, b"late");
    assert!(matches!(outcome, Outcome::Done(Answer { status: Status::Sealed, .. })));
}

#[test]
fn a_record_is_written_again_under_its_name_with_its_bytes() {
    let mut world = World::begun();
    let (ticket, _) = world.append(0, b"precious");
    let write = world.one_write();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        world.append(1, b"more");
        world.sequences[1] -= 1; // In progress: the same request again.
        world.shard.on_journals(world.now, |work| work.written(write.at, 0, Err("away".into())));
        assert!(world.shard.out().take_journal_writes().is_empty());
        let failed = world.now;
        world.now = world.shard.deadline().unwrap();
        world.shard.tick(world.now);
        pauses.push(world.now.since(failed));
        let again = world.one_write();
        assert_eq!((&again.object, again.record), (&write.object, write.record));
        assert_eq!(bytes(&again), b"precious");
        assert!(world.shard.out().completed().is_none());
        assert_eq!(world.read(), 0);
    }
    assert!(pauses.is_sorted() && pauses[0] >= Duration::from_millis(100), "{pauses:?}");
    assert_eq!(*pauses.last().unwrap(), Duration::from_secs(2));
    assert_eq!(world.stored(&write), [(ticket, Answer::ok(0))]);
    assert_eq!(world.read(), 8);
}

#[test]
fn who_is_sent_on_finds_the_end_of_the_block_stored() {
    let mut world = World::begun();
    let piece = vec![7; SIZE / LARGE_FRACTION as usize];
    for _ in 0..LARGE_FRACTION {
        assert_eq!(world.append(0, &piece).1, Outcome::Parked);
        let write = world.one_write();
        assert_eq!(world.stored(&write).len(), 1);
    }
    let next = block(3);
    let entry = MapEntry {
        start: 0,
        end: u64::MAX,
        block: next.block.0,
        epoch: next.epoch.0,
        address: "127.0.0.1:1".into(),
    };
    let moved = MovedArgs { version: 2, entry }.encode();
    let ready = BlockMessage::Successor(Successor::Ready(moved.clone()));
    world.shard.receive(world.now, block(0), ready);
    let busy = |outcome: &Outcome| {
        matches!(outcome, Outcome::Done(Answer { status: Status::Busy, value: 5000.., .. }))
    };
    let (_, outcome) = world.append(0, b"x");
    assert!(busy(&outcome), "{outcome:?}");
    world.sequences[0] -= 1;
    let write = world.one_write();
    assert_eq!(write.record.ends, RecordEnds::Continues(next));
    assert_eq!(write.record.start, SIZE as u64);
    let (_, outcome) = world.append(0, b"x");
    assert!(busy(&outcome), "no redirection before: {outcome:?}");
    world.sequences[0] -= 1;
    world.stored(&write);
    let (_, outcome) = world.append(0, b"x");
    match outcome {
        Outcome::Done(Answer { status: Status::Moved, value, args, .. }) => {
            assert_eq!((value, args), (SIZE as u64, moved));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_kind_that_cannot_hold_back_is_refused_and_a_block_stays_where_it_is() {
    let mut world = World::new();
    for (n, kind) in [(1, Kind::Kv), (4, Kind::Queue)] {
        let refused = world.shard.open(owner(block(n), kind, true), Some(place()));
        assert_eq!(refused.map(|_| ()).unwrap_err().status, Status::WrongKind);
    }
    assert_eq!(world.shard.reports().inventory().count(), 0);
    // Not the first: another block began the journal. Repeated, it is unchanged.
    let begun = world.shard.open(owner(block(2), Kind::File, false), Some(place()));
    assert!(begun.unwrap().is_none());
    let refused = world.shard.on_exports(world.now, |work| work.evacuate(block(2))).unwrap_err();
    assert_eq!(refused.status, Status::WrongKind, "{:?}", String::from_utf8_lossy(&refused.args));
    // Nothing is written before the journal is begun, however often the shard is called.
    let first = owner(block(0), Kind::File, true);
    assert!(world.shard.open(first, Some(place())).unwrap().is_some());
    assert!(world.shard.open(first, Some(place())).unwrap().is_some());
    assert_eq!(world.append(0, b"early").1, Outcome::Parked);
    assert!(world.shard.out().take_journal_writes().is_empty());
    world.shard.on_journals(world.now, |work| work.begun(block(0)));
    assert_eq!(bytes(&world.one_write()), b"early");
    assert!(world.shard.open(first, Some(place())).unwrap().is_none());
}
