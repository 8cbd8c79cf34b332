//! Stores whose blocks free unused capacity: the shard as its loop drives it. Each test answers as the
//! controller.

use crate::common::{access, owner};
use honeycomb_server::{BlockMessage, BlockOwner, Effect, MoveWord, Shard};
use honeycomb_structures::{Answer, Capacity, Outcome, Ticket};
#[cfg(feature = "bug-bank")]
use honeycomb_types::Bug;
use honeycomb_types::{
    BlockAt, BlockId, BlockUnits, Epoch, Kind, LaneId, Sequence, ServerId, ShardIx, Time,
};
use honeycomb_wire::{Op, RequestHeader, Status};
use std::time::Duration;

const SIZE: usize = 1 << 20;
const SERVER: ServerId = ServerId(1);
const VALUE: [u8; 500] = [7; 500];

fn block(n: u32) -> BlockAt {
    BlockAt { block: BlockId::new(SERVER, ShardIx(0), n), epoch: Epoch(1) }
}

/// A store of one block, on a core with memory for one block.
struct World {
    shard: Shard,
    now: Time,
    sequence: u64,
}

impl World {
    fn new() -> World {
        let mut shard = crate::common::shard(SERVER, crate::common::config(SIZE, 1));
        shard.open(owner(block(0), Kind::Kv, true), None).unwrap();
        World { shard, now: Time::from_millis(5000), sequence: 0 }
    }

    fn run(&mut self, op: Op, key: u32) -> Answer {
        let key = key.to_le_bytes();
        let (args, payload) = match op {
            Op::KvPut => ([&[0], &key[..]].concat(), &VALUE[..]),
            Op::KvDelete => ([&[0], &key[..]].concat(), &[][..]),
            _ => (key.to_vec(), &[][..]),
        };
        let mut header = RequestHeader { at: block(0), grant: 1, ..RequestHeader::new(op) };
        (header.args_len, header.payload_len) = (args.len() as u32, payload.len() as u32);
        if op != Op::KvGet {
            (header.lane, header.sequence) = (LaneId(1), Sequence(self.sequence + 1));
        }
        let ticket = Ticket(self.sequence + 1);
        let outcome = self.shard.apply(self.now, &access(false), &header, &args, payload, ticket);
        let Outcome::Done(answer) = outcome else { panic!("{op:?} was parked") };
        self.sequence += u64::from(op != Op::KvGet && answer.executed());
        answer
    }

    /// Puts so many keys, and deletes all of them but the first `left`.
    fn fill_and_delete(&mut self, keys: u32, left: u32) {
        for key in 0..keys {
            assert_eq!(self.run(Op::KvPut, key).status, Status::Ok, "key {key}");
        }
        for key in left..keys {
            assert_eq!(self.run(Op::KvDelete, key).status, Status::Ok, "key {key}");
        }
        self.requests();
    }

    /// Lets so much time pass, with the timers that are due.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = self.shard.deadline().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.shard.tick(self.now);
        }
        self.now = until;
    }

    /// The capacities that the block has requested since the last call.
    fn requests(&mut self) -> Vec<u64> {
        let effects = self.shard.out().take_effects();
        let bytes = effects.into_iter().filter_map(|effect| match effect {
            Effect::Enlarge { at, bytes, .. } if at == block(0) => Some(bytes),
            _ => None,
        });
        bytes.collect()
    }

    fn answer(&mut self, answer: Capacity) {
        self.shard.receive(self.now, block(0), BlockMessage::Capacity(answer));
    }

    /// Opens a second block of this capacity.
    fn open_beside(&mut self, capacity: usize) -> Result<(), Status> {
        let owner = BlockOwner { capacity: capacity as u64, ..owner(block(1), Kind::Kv, true) };
        self.shard.open(owner, None).map(drop).map_err(|refusal| refusal.status)
    }
}

#[test]
fn store_that_was_emptied_gives_memory_back_and_informs_the_controller() {
    let mut world = World::new();
    world.fill_and_delete(1400, 200);
    assert_eq!(world.open_beside(64 << 10), Err(Status::OutOfMemory));
    world.pass(Duration::from_secs(1));
    let asked = world.requests();
    let [kept] = asked[..] else { panic!("{asked:?}") };
    assert!(kept >= 200 * 500 && kept <= SIZE as u64 / 2, "{kept}");
    assert_eq!(BlockUnits::of(SIZE as u64).capacity_bytes_for(kept), kept);
    // Others can use the memory behind it, before the controller is informed.
    assert_eq!(world.open_beside(SIZE - kept as usize), Ok(()));
    world.answer(Capacity::Granted(kept as usize));
    for key in 0..300 {
        let expected = if key < 200 { Status::Ok } else { Status::KeyNotFound };
        assert_eq!(world.run(Op::KvGet, key).status, expected, "key {key}");
    }
    // The block requests a larger capacity when the store fills up again.
    world.shard.owners().free(block(1));
    let full = (300..1400).find(|key| world.run(Op::KvPut, *key).status == Status::Busy);
    let full = full.expect("the puts need more than the capacity");
    world.shard.tick(world.now);
    let asked = world.requests();
    assert!(matches!(asked[..], [bytes] if bytes > kept), "{asked:?} after {kept}");
    world.answer(Capacity::Granted(SIZE));
    assert_eq!(world.run(Op::KvPut, full).status, Status::Ok);
    for key in (0..200).chain(300..=full) {
        assert_eq!(world.run(Op::KvGet, key).status, Status::Ok, "key {key}");
    }
}

#[cfg(feature = "bug-bank")]
#[test]
fn controller_that_is_not_informed_is_seen() {
    Bug::arm(Some(Bug::CapacityNotTold));
    let mut world = World::new();
    world.fill_and_delete(1400, 200);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.requests().len(), 0);
    Bug::arm(None);
}

/// Nothing else would repeat the request, because no operation uses the block.
#[test]
fn controller_that_cannot_be_informed_is_informed_later() {
    let mut world = World::new();
    world.fill_and_delete(1400, 200);
    world.pass(Duration::from_secs(1));
    let mut told = world.requests();
    for _ in 0..20 {
        assert_eq!(told.len(), 1, "{told:?}");
        world.answer(Capacity::Denied(Status::Unavailable, "it is away".into()));
        world.pass(Duration::from_secs(1));
        // A block at rest is packed, and frees more capacity.
        let again = world.requests();
        assert!(again <= told, "{again:?} after {told:?}");
        told = again;
    }
    world.answer(Capacity::Granted(told[0] as usize));
    world.pass(Duration::from_secs(10));
    assert_eq!(world.requests().len(), 0);
}

#[test]
fn structure_that_has_ended_is_not_informed_again() {
    let mut world = World::new();
    world.fill_and_delete(1400, 200);
    // A block at rest is packed, and frees more capacity.
    for _ in 0..2 {
        world.pass(Duration::from_secs(5));
        assert!(world.requests().len() <= 1);
        world.answer(Capacity::Denied(Status::NotFound, "it has ended".into()));
    }
    world.pass(Duration::from_secs(10));
    assert_eq!(world.requests().len(), 0);
}

/// A block expects more writes after each write. A block that is written now and then would reduce its
/// capacity and request the same capacity again without an end.
#[test]
fn block_that_is_written_now_and_then_seldom_changes_its_capacity() {
    let units = BlockUnits::of(SIZE as u64);
    let most = (300..700).step_by(10).map(|left| {
        let mut world = World::new();
        world.fill_and_delete(1400, left);
        let mut requests = 0;
        for round in 0..100 {
            let keys = (0..40).map(|key| (40 * round + key) % left);
            keys.for_each(|key| drop(world.run(Op::KvPut, key)));
            world.pass(Duration::from_millis(100));
            for bytes in world.requests() {
                world.answer(Capacity::Granted(units.capacity_bytes_for(bytes) as usize));
                requests += 1;
            }
        }
        requests
    });
    let most = most.max().unwrap();
    assert!((1..30).contains(&most), "{most} requests in ten seconds");
}

/// A structure that is created with several blocks has their memory when they are filled.
#[test]
fn memory_that_was_requested_in_advance_stays_until_content_leaves() {
    let mut world = World::new();
    for key in 0..100 {
        assert_eq!(world.run(Op::KvPut, key).status, Status::Ok);
    }
    world.pass(Duration::from_secs(10));
    assert_eq!(world.requests().len(), 0);
    world.fill_and_delete(100, 50);
    world.pass(Duration::from_secs(10));
    assert!(!world.requests().is_empty());
}

/// A block that has reduced its capacity and has requested more; its reduced capacity, and the key for which
/// it had no room.
fn needs_capacity_again() -> (World, u64, u32) {
    let mut world = World::new();
    world.fill_and_delete(1400, 200);
    world.pass(Duration::from_secs(1));
    let kept = world.requests()[0];
    world.answer(Capacity::Granted(kept as usize));
    let full = (300..1400).find(|key| world.run(Op::KvPut, *key).status == Status::Busy);
    world.shard.tick(world.now);
    assert_eq!(world.requests().len(), 1);
    (world, kept, full.expect("the block is full before 1400 keys"))
}

/// A refused request delays the next one. The timer of that request also informs the controller of a
/// reduction in the meantime.
#[test]
fn reduction_after_a_refused_growth_is_reported_without_another_operation() {
    let (mut world, kept, full) = needs_capacity_again();
    world.answer(Capacity::Denied(Status::OutOfMemory, "memory is full".into()));
    assert_eq!(world.run(Op::KvPut, full).status, Status::Busy, "it requests a split");
    let word = MoveWord::Refused(Status::OutOfMemory, "memory is full".into());
    world.shard.on_exports(world.now, |work| work.move_word(block(0), word));
    for key in 300..full {
        world.run(Op::KvDelete, key);
    }
    for key in 2..200 {
        assert_eq!(world.run(Op::KvDelete, key).status, Status::Ok);
    }
    world.pass(Duration::from_secs(10));
    let asked = world.requests();
    assert!(matches!(asked[..], [bytes] if bytes < kept), "{asked:?} after {kept}");
}

/// The writer that lacked the capacity returns within 100 ms.
#[test]
fn granted_capacity_stays_until_its_writer_returns() {
    let (mut world, _, full) = needs_capacity_again();
    world.answer(Capacity::Granted(SIZE));
    world.pass(Duration::from_millis(200));
    assert_eq!(world.requests().len(), 0);
    assert_eq!(world.run(Op::KvPut, full).status, Status::Ok);
    world.pass(Duration::from_secs(5));
    assert!(matches!(world.requests()[..], [bytes] if bytes < SIZE as u64));
}
