//! Blocks of many pieces that are demoted from a disk to an object store: they are read from the disk until
//! all pieces are in the store, whatever happens meanwhile.

use crate::common::{access, owner};
use honeycomb_env::{MemoryVolume, Volume};
use honeycomb_server::{BlockOwner, Effect, Io, IoWhat, Shard, ShardConfig, VolumeParts};
use honeycomb_structures::{Outcome, Payload, Ticket};
use honeycomb_types::{
    BlockAt, BlockId, Bug, Epoch, Kind, LaneId, Sequence, ServerId, ShardIx, TierClass, TierIx,
    TierSpec, Time,
};
use honeycomb_wire::data::ReadArgs;
use honeycomb_wire::{Op, RequestHeader, Status};
use std::sync::Arc;
use std::time::Duration;

const SIZE: usize = 8 << 20;
const LENGTH: usize = (5 << 20) + 4097;
const APPEND: usize = SIZE / 8;
const DISK: TierIx = TierIx(1);
const STORE: TierIx = TierIx(2);

fn at(block: u32) -> BlockAt {
    let block = BlockId::new(ServerId(1), ShardIx(0), block);
    BlockAt { block, epoch: Epoch(1) }
}

struct World {
    shard: Shard,
    volumes: [Arc<MemoryVolume>; 2],
    now: Time,
    pending: Vec<Io>,
    ticket: u64,
    told: Vec<(BlockAt, TierIx)>,
    bytes: Vec<u8>,
}

impl World {
    /// Two sealed files, each a block on the disk.
    fn new() -> World {
        let class = |class| TierSpec { class, blocks: 2 };
        let shard = crate::common::shard(
            ServerId(1),
            ShardConfig {
                frames: 1,
                warm: 2,
                disks: vec![class(TierClass::Ssd), class(TierClass::Object)],
                buffers: SIZE,
                ..crate::common::config(SIZE, 5)
            },
        );
        let bytes = (0..LENGTH).map(|n| (n / 4096) as u8 ^ (n as u8)).collect();
        let volumes = [Arc::default(), Arc::default()];
        let mut world = World {
            shard,
            volumes,
            now: Time::from_millis(5000),
            pending: Vec::new(),
            ticket: 0,
            told: Vec::new(),
            bytes,
        };
        for block in 0..2 {
            let open = owner(at(block), Kind::File, true);
            world.shard.open(BlockOwner { tier: DISK, ..open }, None).unwrap();
            for piece in world.bytes.clone().chunks(APPEND) {
                assert_eq!(world.ask(block, Op::FileAppend, &[], piece), Some(Status::Ok));
                world.carry_out_all();
            }
            assert_eq!(world.ask(block, Op::FileSeal, &[], &[]), Some(Status::Ok));
            world.carry_out_all();
        }
        assert_eq!(world.shard.reports().in_memory(), (0, 0));
        world.told.clear();
        world
    }

    /// Sends a request, and carries out the reads; returns the status if it is answered at once.
    fn ask(&mut self, block: u32, op: Op, args: &[u8], payload: &[u8]) -> Option<Status> {
        self.ticket += 1;
        let mut header = RequestHeader { at: at(block), grant: 1, ..RequestHeader::new(op) };
        header.payload_len = payload.len() as u32;
        if op.info().lane {
            header.lane = LaneId(self.ticket as u32);
            header.sequence = Sequence(1);
        }
        let ticket = Ticket(self.ticket);
        let outcome = self.shard.apply(self.now, &access(false), &header, args, payload, ticket);
        self.settle();
        match outcome {
            Outcome::Done(answer) => Some(answer.status),
            Outcome::Parked => None,
        }
    }

    /// Begins to read from an offset on: it waits for its disk or its object store.
    fn begin_read(&mut self, block: u32, offset: usize) -> Ticket {
        let mut args = Vec::new();
        ReadArgs { offset: offset as u64, length: 100_000 }.put(&mut args);
        assert_eq!(self.ask(block, Op::FileRead, &args, &[]), None, "it is in a lower tier");
        Ticket(self.ticket)
    }

    fn answered(&mut self, ticket: Ticket, offset: usize) {
        let (of, answer) = self.shard.out().completed().unwrap();
        assert_eq!((of, answer.status), (ticket, Status::Ok), "{answer:?}");
        let Payload::Pinned(pin) = answer.payload else { panic!("{answer:?}") };
        assert!(pin.bytes() == &self.bytes[offset..offset + pin.bytes().len()]);
    }

    fn settle(&mut self) {
        self.pending.extend(self.shard.tiers().take_io());
        for effect in self.shard.out().take_effects() {
            match effect {
                Effect::TierChanged { at, tier, .. } => self.told.push((at, tier)),
                Effect::BlockFailed { why, .. } => panic!("{why}"),
                _ => {}
            }
        }
    }

    fn carry_out(&mut self, n: usize) {
        let io = self.pending.remove(n);
        let volume = &self.volumes[io.tier.below().unwrap()];
        let (id, done) = io.carry_out(&**volume, 0);
        self.shard.tiers().io_done(self.now, id, done);
        self.settle();
    }

    fn carry_out_all(&mut self) {
        for _ in 0..3 {
            while !self.pending.is_empty() {
                self.carry_out(0);
            }
            self.pass();
        }
    }

    fn pass(&mut self) {
        self.now = self.now + Duration::from_secs(1);
        self.shard.tick(self.now);
        self.settle();
    }

    fn on(&self, tier: TierIx) -> Vec<usize> {
        let all = self.pending.iter().enumerate();
        all.filter(|(_, io)| io.tier == tier).map(|(n, _)| n).collect()
    }

    /// Frees everything, and checks that nothing is left anywhere.
    fn ends(mut self) {
        for block in 0..2 {
            self.shard.owners().free(at(block));
        }
        self.settle();
        self.carry_out_all();
        assert!(self.shard.reports().tiers_are_quiet());
        assert_eq!([self.volumes[0].taken(), self.volumes[1].taken()], [0, 0]);
    }
}

#[test]
fn a_block_is_read_from_its_disk_until_all_of_it_is_in_the_store() {
    goes_to_the_store();
}

#[cfg(feature = "bug-bank")]
#[test]
#[should_panic]
fn demotion_that_ends_before_its_last_piece_is_caught() {
    Bug::arm(Some(Bug::DemotionEndsEarly));
    goes_to_the_store();
}

fn goes_to_the_store() {
    let mut world = World::new();
    world.shard.tiers().change_tier(at(0), STORE).unwrap();
    world.shard.tiers().change_tier(at(0), STORE).unwrap(); // In progress.
    world.settle();
    // Readers have half of the buffers.
    assert_eq!(world.pending.len(), 4);
    let refused = world.shard.tiers().change_tier(at(0), TierIx::MEMORY).unwrap_err();
    assert_eq!(refused.status, Status::Busy);
    // The last first.
    let held = world
        .shard
        .reports()
        .holdings()
        .into_iter()
        .find(|held| held.block == at(0).block.0)
        .unwrap();
    assert_eq!((held.tier, held.to), (1, 2));
    for _ in 0..4 {
        let read = world.on(DISK).pop().unwrap();
        world.carry_out(read);
    }
    // A read is answered after the block has moved.
    let asked = world.begin_read(0, 1_000_000);
    let reader = world.pending.len() - 1;
    assert_eq!(world.pending[reader].tier, DISK);
    let reader = world.pending.remove(reader);
    while world.told.is_empty() {
        let some = world.pending.len() - 1;
        world.carry_out(some);
    }
    assert_eq!(world.told, [(at(0), STORE)]);
    world.pending.push(reader);
    let last = world.pending.len() - 1;
    world.carry_out(last);
    world.answered(asked, 1_000_000);
    world.carry_out_all();
    assert_eq!(world.volumes[0].taken() as usize, LENGTH.next_multiple_of(4096), "the other's");
    let asked = world.begin_read(0, LENGTH - 5000);
    assert_eq!(world.pending[0].tier, STORE);
    world.carry_out(0);
    world.answered(asked, LENGTH - 5000);
    // It is promoted from there.
    world.told.clear();
    world.shard.tiers().change_tier(at(0), TierIx::MEMORY).unwrap();
    world.settle();
    world.carry_out_all();
    assert_eq!(
        (world.told.as_slice(), world.volumes[1].taken()),
        (&[(at(0), TierIx::MEMORY)][..], 0)
    );
    // From memory it is demoted to the object store directly.
    world.told.clear();
    world.shard.tiers().change_tier(at(0), STORE).unwrap();
    world.settle();
    assert!(world.pending.iter().all(|io| matches!(io.what, IoWhat::Write { .. })));
    world.carry_out_all();
    assert_eq!(world.told, [(at(0), STORE)]);
    world.ends();
}

#[test]
fn readers_have_the_buffers_first_and_it_goes_on_when_there_are_some() {
    let mut world = World::new();
    // Two blocks at a time: the second has no buffers, and waits.
    for block in 0..2 {
        world.shard.tiers().change_tier(at(block), STORE).unwrap();
    }
    world.settle();
    assert_eq!(world.pending.len(), 4);
    assert!(world.shard.deadline().is_some_and(|due| due <= world.now));
    world.carry_out_all();
    world.told.sort();
    assert_eq!(world.told, [(at(0), STORE), (at(1), STORE)]);
    world.ends();
}

#[test]
fn one_whose_store_is_away_stays_and_leaves_nothing_there() {
    let mut world = World::new();
    world.shard.tiers().change_tier(at(0), STORE).unwrap();
    world.settle();
    for _ in 0..4 {
        let read = world.on(DISK)[0];
        world.carry_out(read);
    }
    let first = world.on(STORE)[0];
    world.carry_out(first);
    world.volumes[1].set_away(true);
    while world.told.is_empty() {
        world.carry_out(0);
    }
    assert_eq!(world.told, [(at(0), DISK)], "it stays where it was");
    // The place must be freed, which is impossible now.
    for _ in 0..5 {
        while !world.pending.is_empty() {
            world.carry_out(0);
        }
        assert!(!world.shard.reports().tiers_are_quiet() && world.volumes[1].taken() > 0);
        world.pass();
    }
    let asked = world.begin_read(0, 0);
    let reader = world.on(DISK)[0];
    world.carry_out(reader);
    world.answered(asked, 0);
    world.volumes[1].set_away(false);
    world.carry_out_all();
    assert_eq!(world.volumes[1].taken(), 0);
    // Data in the object store is not lost while the store cannot be reached, and is read when it can.
    world.shard.tiers().change_tier(at(0), STORE).unwrap();
    world.settle();
    world.carry_out_all();
    world.volumes[1].set_away(true);
    let asked = world.begin_read(0, 0);
    world.carry_out(0);
    let (of, answer) = world.shard.out().completed().unwrap();
    assert_eq!((of, answer.status), (asked, Status::Busy));
    let text = String::from_utf8(answer.args.to_vec()).unwrap();
    assert!(text.ends_with("cannot be read now: the store cannot be reached"), "{text}");
    world.volumes[1].set_away(false);
    let asked = world.begin_read(0, 0);
    world.carry_out(0);
    world.answered(asked, 0);
    world.ends();
}

#[test]
fn one_that_is_freed_or_flushed_on_its_way_leaves_nothing_and_loses_nothing() {
    let mut world = World::new();
    for block in 0..2 {
        world.shard.tiers().change_tier(at(block), STORE).unwrap();
        world.settle();
        let read = world.on(DISK)[0];
        world.carry_out(read);
        let written = world.on(STORE)[0];
        world.carry_out(written);
        if block == 0 {
            assert!(world.shard.owners().free(at(0)));
            world.settle();
            world.carry_out_all();
        }
    }
    assert_eq!(world.told, []);
    // From here on it is retained for a flush, and continues to the object store.
    let kept = world.shard.owners().retain(at(1), (0, u64::MAX)).unwrap();
    let parts = |world: &World| -> VolumeParts {
        let volume = |n: usize| -> (Arc<dyn Volume>, u64) { (world.volumes[n].clone(), 0) };
        Arc::new([volume(0), volume(1)])
    };
    let mut written = Vec::new();
    kept.write(&parts(&world), &mut written).unwrap();
    assert!(written == world.bytes);
    world.carry_out_all();
    assert_eq!((world.told.as_slice(), world.volumes[0].taken()), (&[(at(1), STORE)][..], 0));
    let mut written = Vec::new();
    kept.write(&parts(&world), &mut written).unwrap();
    assert!(written == world.bytes);
    drop(kept);
    world.ends();
}
