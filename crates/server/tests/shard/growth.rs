//! Growth before it is needed, and the retained content of blocks that are flushed: a shard as its loop
//! drives it, with a slow controller.

use crate::common::{access, owner};
use honeycomb_server::{BlockMessage, BlockOwner, Effect, KeptFault, Shard, VolumeParts};
use honeycomb_structures::{Answer, Capacity, Outcome, Successor, Ticket};
use honeycomb_types::limits::SUCCESSOR_IDLE;
use honeycomb_types::{
    BlockAt, BlockId, Epoch, Kind, LaneId, Marks, Sequence, ServerId, ShardIx, Time,
};
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::{Op, RequestHeader, Status};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const SIZE: usize = 64 << 10;
const SERVER: ServerId = ServerId(1);

/// One writer, one structure, one shard.
struct World {
    shard: Shard,
    now: Time,
    kind: Kind,
    marks: Marks,
    tail: BlockAt,
    opened: u32,
    /// The block that requested a successor, and when the controller answers.
    asked: Option<(BlockAt, Time)>,
    delay: Duration,
    sequence: u64,
    /// Answers that made the writer wait.
    waits: u64,
    blocks: u64,
    returned: Vec<BlockAt>,
    /// Free bytes of the tail at each request.
    free_at_ask: Vec<usize>,
    used: usize,
}

fn block(n: u32) -> BlockAt {
    BlockAt { block: BlockId::new(SERVER, ShardIx(0), n % 512), epoch: Epoch(n as u64 + 1) }
}

impl World {
    fn new(kind: Kind, marks: Marks, delay: Duration) -> World {
        let mut world = World {
            shard: crate::common::shard(SERVER, crate::common::config(SIZE, 512)),
            now: Time::from_millis(5000),
            kind,
            marks,
            tail: block(0),
            opened: 0,
            asked: None,
            delay,
            sequence: 0,
            waits: 0,
            blocks: 0,
            returned: Vec::new(),
            free_at_ask: Vec::new(),
            used: 0,
        };
        world.open();
        world
    }

    fn open(&mut self) -> BlockAt {
        let at = block(self.opened);
        let owner = owner(at, self.kind, self.opened == 0);
        let owner = BlockOwner { marks: self.marks, ..owner };
        self.shard.open(owner, None).unwrap();
        self.opened += 1;
        at
    }

    fn run(&mut self, op: Op, args: &[u8], payload: &[u8]) -> Answer {
        let mut header = RequestHeader { at: self.tail, grant: 1, ..RequestHeader::new(op) };
        header.payload_len = payload.len() as u32;
        header.args_len = args.len() as u32;
        if op.info().lane {
            header.lane = LaneId(1);
            header.sequence = Sequence(self.sequence + 1);
        }
        let ticket = Ticket(self.sequence + 1);
        match self.shard.apply(self.now, &access(false), &header, args, payload, ticket) {
            Outcome::Done(answer) => answer,
            Outcome::Parked => panic!("{op:?} was parked"),
        }
    }

    /// Lets time pass, in which the controller answers.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.effects();
            let answered = self.asked.map(|(_, at)| at);
            let due = [answered, self.shard.deadline()].into_iter().flatten().min();
            let Some(due) = due.filter(|due| *due <= end) else { break };
            self.now = self.now.max(due);
            if let Some((asker, at)) = self.asked.filter(|(_, at)| *at <= self.now) {
                self.asked = None;
                let _ = at;
                let next = self.open();
                let entry = MapEntry {
                    start: 0,
                    end: u64::MAX,
                    block: next.block.0,
                    epoch: next.epoch.0,
                    address: "s:1".into(),
                };
                let moved = MovedArgs { version: 2, entry }.encode();
                self.shard.receive(
                    self.now,
                    asker,
                    BlockMessage::Successor(Successor::Ready(moved)),
                );
            }
            self.shard.tick(self.now);
        }
        self.now = end;
    }

    fn effects(&mut self) {
        for effect in self.shard.out().take_effects() {
            match effect {
                Effect::Grow { at, .. } => {
                    assert_eq!(self.asked, None, "one request at a time");
                    self.asked = Some((at, self.now + self.delay));
                    self.free_at_ask.push(SIZE - self.used);
                }
                Effect::Return { at, successor, .. } => {
                    assert_eq!(at, self.tail);
                    let entry = MovedArgs::decode(&successor).unwrap().entry;
                    let at = entry.at();
                    assert!(self.shard.owners().free(at));
                    self.returned.push(at);
                }
                Effect::Sealed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Appends or puts, at the present tail.
    fn write(&mut self, bytes: usize) {
        let payload = vec![7; bytes];
        for _ in 0..200 {
            let answer = match self.kind {
                Kind::File => self.run(Op::FileAppend, &[], &payload),
                _ => self.run(Op::QueuePut, &(bytes as u32).to_le_bytes(), &payload),
            };
            match answer.status {
                Status::Ok => {
                    self.sequence += 1;
                    self.used += bytes + if self.kind == Kind::Queue { 4 } else { 0 };
                    return self.effects();
                }
                Status::Moved => {
                    self.sequence += u64::from(answer.executed());
                    let entry = MovedArgs::decode(&answer.args).unwrap().entry;
                    self.tail = entry.at();
                    (self.used, self.sequence) = (0, 0);
                    self.blocks += 1;
                }
                Status::Busy => {
                    self.waits += 1;
                    self.effects();
                    self.pass(Duration::from_micros(answer.value));
                }
                other => panic!("{other:?}: {}", String::from_utf8_lossy(&answer.args)),
            }
        }
        panic!("the writer waits for ever");
    }
}

/// A writer with a constant rate never waits at a block's end, as long as less than a block arrives during
/// the controller's delay.
#[test]
fn a_steady_writer_never_waits_for_the_next_block() {
    for kind in [Kind::File, Kind::Queue] {
        for (bytes, every_us, delay_us) in [
            (1000, 20, 400),
            (8000, 250, 500),
            (100, 5, 1000),
            (4000, 1000, 3000),
            (1000, 60, 2000),
        ] {
            let mut world = World::new(kind, Marks::default(), Duration::from_micros(delay_us));
            for _ in 0..30 * SIZE / bytes {
                world.write(bytes);
                world.pass(Duration::from_micros(every_us));
            }
            assert!(world.blocks >= 25, "{} blocks", world.blocks);
            assert_eq!(
                world.waits, 0,
                "{kind:?}: {bytes} bytes every {every_us} us, {delay_us} us"
            );
        }
    }
}

/// The early request is made no earlier than the largest of the three bounds requires.
#[test]
fn nobody_asks_long_before_there_is_need() {
    let mut world = World::new(Kind::File, Marks::default(), Duration::from_micros(300));
    for _ in 0..20 * SIZE / 500 {
        world.write(500);
        world.pass(Duration::from_millis(5));
    }
    assert!(world.free_at_ask.len() >= 19);
    for free in &world.free_at_ask[1..] {
        // 5 % of the block; at 500 bytes in 5 ms the rate adds nothing.
        assert!(
            *free <= SIZE / 20 + 1 && *free + 500 > SIZE / 20,
            "requested with {free} bytes free"
        );
    }
}

#[test]
fn the_high_mark_of_the_prefix_decides() {
    let marks = Marks::new(50, 10, Marks::default()).unwrap();
    let mut world = World::new(Kind::File, marks, Duration::from_micros(300));
    for _ in 0..SIZE / 500 {
        world.write(500);
        world.pass(Duration::from_millis(5));
    }
    let free = world.free_at_ask[0];
    assert!(free <= SIZE / 2 && free + 500 > SIZE / 2, "requested with {free} bytes free");
}

#[test]
fn a_successor_that_nobody_needs_is_given_back_and_asked_for_again() {
    let mut world = World::new(Kind::File, Marks::default(), Duration::from_micros(300));
    while world.opened == 1 {
        world.write(500);
        world.pass(Duration::from_millis(1));
    }
    world.pass(SUCCESSOR_IDLE - Duration::from_millis(10));
    assert_eq!(world.returned, [], "not before its time");
    // A write shows that it may be needed after all.
    world.write(10);
    world.pass(SUCCESSOR_IDLE - Duration::from_millis(10));
    assert_eq!(world.returned, []);
    world.pass(Duration::from_millis(50));
    assert_eq!(world.returned.len(), 1);
    assert_eq!(world.opened, 2);
    // Small writes do not request it again at once; 1/64 of the block does.
    world.write(10);
    world.pass(Duration::from_millis(1));
    assert_eq!(world.opened, 2);
    world.write(SIZE / 64);
    world.pass(Duration::from_millis(1));
    assert_eq!(world.opened, 3);
    // And the file continues in it.
    for _ in 0..8 {
        world.write(500);
    }
    assert_eq!((world.blocks, world.waits), (1, 0));
}

#[test]
fn who_writes_again_after_the_successor_went_back_waits_once_at_most() {
    let mut world = World::new(Kind::Queue, Marks::default(), Duration::from_micros(300));
    while world.opened == 1 {
        world.write(500);
        world.pass(Duration::from_millis(1));
    }
    world.pass(2 * SUCCESSOR_IDLE);
    assert_eq!(world.returned.len(), 1);
    world.write(SIZE / 10);
    assert_eq!(world.blocks, 1);
    assert!(world.waits <= 2, "{} waits", world.waits);
}

/// A block that is being flushed is unreachable, and its bytes stay as they were, whatever owner the block
/// has afterwards (INV-04).
#[test]
fn a_block_that_is_flushed_is_reached_by_nobody_and_its_bytes_stay() {
    let mut world = World::new(Kind::File, Marks::default(), Duration::from_micros(300));
    world.write(1000);
    let at = world.tail;
    let kept = world.shard.owners().retain(at, (0, u64::MAX)).unwrap();
    assert_eq!(world.run(Op::FileRead, &[0; 12], &[]).status, Status::WrongEpoch);
    assert_eq!(world.run(Op::FileAppend, &[], b"x").status, Status::WrongEpoch);
    let again = world.shard.owners().retain(at, (0, u64::MAX)).unwrap();
    assert_eq!(world.shard.reports().inventory().count(), 1, "it is still held");
    let disks: VolumeParts = Arc::new([]);
    for kept in [&kept, &again] {
        let mut bytes = Vec::new();
        assert_eq!(kept.write(&disks, &mut bytes).unwrap(), 1000);
        assert_eq!(bytes, [7; 1000]);
    }
    assert!(world.shard.owners().free(at));
    assert_eq!(world.shard.reports().inventory().count(), 0);
    assert!(world.shard.owners().retain(at, (0, u64::MAX)).is_err(), "it is gone");

    // The next owner gets memory of its own, and the flush of the old bytes finds none of them.
    let next = BlockAt { epoch: Epoch(99), ..at };
    world.opened = 98;
    let opened = world.open();
    assert_eq!(opened.epoch, next.epoch);
    world.tail = opened;
    world.sequence = 0;
    assert!(world.shard.bytes(opened, 0..SIZE).iter().all(|b| *b == 0));
    let gone = kept.write(&disks, &mut Vec::new());
    assert!(matches!(gone, Err(KeptFault::Gone)), "{gone:?}");
}

#[test]
fn a_get_that_waits_at_a_block_that_is_flushed_is_answered() {
    let mut world = World::new(Kind::Queue, Marks::default(), Duration::from_micros(300));
    // One item, 100 bytes, taken permanently, without staying.
    let args = [&1u32.to_le_bytes()[..], &100u32.to_le_bytes(), &0u32.to_le_bytes(), &[0]].concat();
    let mut header = RequestHeader { at: world.tail, grant: 1, ..RequestHeader::new(Op::QueueGet) };
    (header.lane, header.sequence, header.deadline_ms) = (LaneId(1), Sequence(1), 5000);
    let (now, access) = (world.now, access(false));
    let outcome = world.shard.apply(now, &access, &header, &args, &[], Ticket(5));
    assert_eq!(outcome, Outcome::Parked);
    world.shard.owners().retain(world.tail, (0, u64::MAX)).unwrap();
    let (ticket, answer) = world.shard.out().completed().unwrap();
    assert_eq!((ticket, answer.status), (Ticket(5), Status::WrongEpoch));
}

proptest! {
    /// Whatever the writer does, growth continues, every wait ends, and blocks do not accumulate.
    #[test]
    fn growth_goes_on_whatever_the_writer_does(
        steps in prop::collection::vec((1usize..8000, 0u64..3_000_000), 1..200),
        delay_us in 50u64..20_000,
        queue in any::<bool>(),
    ) {
        let kind = if queue { Kind::Queue } else { Kind::File };
        let mut world = World::new(kind, Marks::default(), Duration::from_micros(delay_us));
        for (bytes, pause_us) in steps {
            world.write(bytes);
            // Mostly short pauses, and sometimes one in which a successor is returned.
            let pause_us = if pause_us > 2_900_000 { pause_us } else { pause_us % 700 };
            world.pass(Duration::from_micros(pause_us));
            let ahead = world.opened as u64 - 1 - world.blocks - world.returned.len() as u64;
            prop_assert!(ahead <= 1, "at most one block ahead of the writer");
        }
    }
}

/// A structure that has ended is `NotFound` at the controller. A caller of one of its blocks would take that
/// for a missing key: it gets `WrongEpoch`, and asks the controller. Room that comes later is used.
#[test]
fn a_block_that_is_denied_a_larger_capacity_refuses_as_the_controller_did() {
    const LARGE: usize = 1 << 20;
    let at = block(0);
    let mut shard = crate::common::shard(SERVER, crate::common::config(LARGE, 4));
    let owner = BlockOwner { capacity: SIZE as u64, ..owner(at, Kind::File, true) };
    shard.open(owner, None).unwrap();
    shard.out().take_effects();
    let mut now = Time::from_millis(5000);
    let payload = vec![7; LARGE / 8];
    let mut sequence = 1;
    let mut append = |shard: &mut Shard, now: Time| {
        let mut header = RequestHeader { at, grant: 1, ..RequestHeader::new(Op::FileAppend) };
        (header.payload_len, header.lane) = (payload.len() as u32, LaneId(1));
        header.sequence = Sequence(sequence);
        match shard.apply(now, &access(false), &header, &[], &payload, Ticket(1)) {
            Outcome::Done(answer) => {
                sequence += u64::from(answer.executed());
                answer.status
            }
            Outcome::Parked => panic!("an append was parked"),
        }
    };
    let answers = [
        (Status::Busy, Status::Busy),
        (Status::QuotaExceeded, Status::QuotaExceeded),
        (Status::NotFound, Status::WrongEpoch),
    ];
    for (told, expected) in answers {
        // An earlier refusal by a quota is no answer to a request that is made now.
        assert_eq!(append(&mut shard, now), Status::Busy, "before {told:?}");
        shard.tick(now);
        let asked = shard.out().take_effects();
        let bytes = asked.iter().find_map(|effect| match effect {
            Effect::Enlarge { at: block, bytes, .. } if *block == at => Some(*bytes),
            _ => None,
        });
        assert!(bytes.is_some_and(|bytes| bytes >= payload.len() as u64), "{asked:?}");
        let denied = Capacity::Denied(told, "no".into());
        shard.receive(now, at, BlockMessage::Capacity(denied));
        assert_eq!(append(&mut shard, now), expected, "{told:?}");
        now = now + Duration::from_secs(2);
    }
    shard.receive(now, at, BlockMessage::Capacity(Capacity::Granted(LARGE)));
    assert_eq!(append(&mut shard, now), Status::Ok);
}
