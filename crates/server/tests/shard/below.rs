//! A shard with a small disk that completes operations in any order, and the clients of its blocks.
#![allow(dead_code)] // Each test uses what it needs of it.

use super::common::{access, config, owner, shard};
use honeycomb_env::{Entropy, MemoryVolume, Volume};
use honeycomb_server::{
    BlockMessage, BlockOwner, Effect, Io, IoDone, IoId, IoWhat, KeptBytes, MoveWord, Shard,
    ShardConfig, VolumeParts,
};
use honeycomb_structures::{Answer, Capacity, Outcome, Payload, Ticket};
use honeycomb_types::{
    BlockAt, BlockId, BlockUnits, Epoch, Kind, LaneId, Sequence, ServerId, ShardIx, TierClass,
    TierIx, TierSpec, Time,
};
use honeycomb_wire::{Op, RequestHeader, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub const DISK: TierIx = TierIx(1);
pub const BLOCKS: u32 = 3;
/// Bytes of the volume from one lower tier to the next.
const TIER: u64 = 1 << 30;
/// The last hash that a block can own.
pub const END: u64 = u64::MAX - 1;

pub struct Below {
    pub shard: Shard,
    pub kind: Kind,
    pub disk: Arc<MemoryVolume>,
    pub rng: Entropy,
    pub now: Time,
    /// Operations that the disk has not begun, in any order.
    pub doing: Vec<Io>,
    /// Completed operations that were not reported.
    pub done: Vec<(IoId, IoDone)>,
    ticket: u64,
    /// The next number in each lane.
    lanes: BTreeMap<u32, u64>,
    /// Blocks that requested a promotion.
    pub promotions: BTreeSet<BlockAt>,
    /// Answers of parked operations.
    pub came: BTreeMap<Ticket, Answer>,
    /// Blocks that requested a move, which the controller refuses later, if it answers.
    pub moves: Vec<BlockAt>,
    pub answers_moves: bool,
    /// Capacities that blocks requested, which the controller grants later or refuses for now.
    capacities: Vec<(BlockAt, u64)>,
    /// How many blocks in the lower tier have grown, and how many blocks have given capacity back.
    pub grown_below: u32,
    pub given_back: u32,
    units: BlockUnits,
    /// Whether every write fails.
    pub fails_writes: bool,
    /// Every other effect, in order.
    pub effects: Vec<Effect>,
}

pub fn at(block: u32) -> BlockAt {
    BlockAt { block: BlockId::new(ServerId(1), ShardIx(0), block), epoch: Epoch(1) }
}

impl Below {
    /// `BLOCKS` blocks of a kind, with room to write to so many of them in a lower tier.
    pub fn new(kind: Kind, size: usize, warm: u32, seed: u64) -> Below {
        Below::with_buffers(kind, size, warm, 2 * size, seed)
    }

    /// As above, with buffers of so many bytes.
    pub fn with_buffers(kind: Kind, size: usize, warm: u32, buffers: usize, seed: u64) -> Below {
        let mut below = Below::without_blocks(kind, size, warm, buffers, seed);
        (0..BLOCKS).for_each(|block| below.open(block, TierIx::MEMORY));
        below
    }

    /// As `new`, with each block opened in memory or in the lower tier, as the controller places it.
    pub fn placed_anywhere(kind: Kind, size: usize, warm: u32, seed: u64) -> Below {
        let mut below = Below::without_blocks(kind, size, warm, 2 * size, seed);
        for block in 0..BLOCKS {
            let tier = if below.below(2) == 0 { DISK } else { TierIx::MEMORY };
            below.open(block, tier);
        }
        below
    }

    fn without_blocks(kind: Kind, size: usize, warm: u32, buffers: usize, seed: u64) -> Below {
        let config = ShardConfig {
            frames: BLOCKS,
            warm,
            disks: vec![TierSpec { class: TierClass::Ssd, blocks: BLOCKS + 1 }],
            buffers,
            ..config(size, BLOCKS)
        };
        Below::empty(kind, seed, config)
    }

    /// As `placed_anywhere`, of stores whose deltas have so many bytes of memory.
    pub fn with_deltas(size: usize, warm: u32, deltas: usize, seed: u64) -> Below {
        let mut below = Below::of_stores(size, warm, deltas, seed);
        for block in 0..BLOCKS {
            let tier = if below.below(2) == 0 { DISK } else { TierIx::MEMORY };
            let bytes = below.below(2 * size as u64);
            below.open_with(block, tier, below.units.capacity_bytes_for(bytes));
        }
        below
    }

    /// A store with deltas of one block in memory, with its first capacity.
    pub fn with_capacity(size: usize, capacity: u64, deltas: usize, seed: u64) -> Below {
        let mut below = Below::of_stores(size, 1, deltas, seed);
        below.open_with(0, TierIx::MEMORY, capacity);
        below
    }

    fn of_stores(size: usize, warm: u32, deltas: usize, seed: u64) -> Below {
        let config = ShardConfig {
            frames: BLOCKS,
            warm,
            deltas,
            disks: vec![TierSpec { class: TierClass::Ssd, blocks: BLOCKS + 2 }],
            buffers: 2 * size,
            ..config(size, BLOCKS)
        };
        Below::empty(Kind::Kv, seed, config)
    }

    fn open(&mut self, block: u32, tier: TierIx) {
        self.open_with(block, tier, 0);
    }

    fn open_with(&mut self, block: u32, tier: TierIx, capacity: u64) {
        // Each has a part of the slots, as in a store of several blocks: otherwise it would merge.
        let part = BlockOwner { end: END, tier, capacity, ..owner(at(block), self.kind, true) };
        self.shard.open(part, None).unwrap();
    }

    /// A shard without blocks.
    pub fn empty(kind: Kind, seed: u64, config: ShardConfig) -> Below {
        let units = BlockUnits::of(config.block_size as u64);
        Below {
            shard: shard(ServerId(1), config),
            kind,
            disk: Arc::new(MemoryVolume::new()),
            rng: Entropy::seeded(seed),
            now: Time::from_millis(5000),
            doing: Vec::new(),
            done: Vec::new(),
            ticket: 0,
            lanes: BTreeMap::new(),
            promotions: BTreeSet::new(),
            came: BTreeMap::new(),
            moves: Vec::new(),
            answers_moves: true,
            capacities: Vec::new(),
            grown_below: 0,
            given_back: 0,
            units,
            fails_writes: false,
            effects: Vec::new(),
        }
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    /// Completes an operation in progress, and lets time pass.
    pub fn step(&mut self) {
        self.now = self.now + Duration::from_micros(200);
        self.doing.extend(self.shard.tiers().take_io());
        // Often an operation is complete long before it is reported.
        if !self.doing.is_empty() && (self.done.is_empty() || self.below(2) == 0) {
            let n = self.below(self.doing.len() as u64) as usize;
            let io = self.doing.swap_remove(n);
            let base = io.tier.below().unwrap() as u64 * TIER;
            self.done.push(match io.what {
                IoWhat::Write { .. } if self.fails_writes => {
                    (io.id, IoDone::Failed("the disk is full".to_owned()))
                }
                _ => io.carry_out(&*self.disk, base),
            });
        } else if !self.done.is_empty() {
            let n = self.below(self.done.len() as u64) as usize;
            let (id, done) = self.done.swap_remove(n);
            self.shard.tiers().io_done(self.now, id, done);
        }
        self.shard.tick(self.now);
        for effect in self.shard.out().take_effects() {
            match effect {
                Effect::Promote { at, .. } => drop(self.promotions.insert(at)),
                Effect::Enlarge { at, bytes, .. } => self.capacities.push((at, bytes)),
                Effect::BeginMove { at, .. } => {
                    self.moves.push(at);
                    self.effects.push(effect);
                }
                other => self.effects.push(other),
            }
        }
        if !self.capacities.is_empty() && self.below(4) == 0 {
            let n = self.below(self.capacities.len() as u64) as usize;
            let (at, bytes) = self.capacities.swap_remove(n);
            let answer = match self.below(8) {
                0 => Capacity::Denied(Status::Busy, "not now".into()),
                _ => self.decide(at, bytes),
            };
            self.shard.receive(self.now, at, BlockMessage::Capacity(answer));
        }
        if self.answers_moves && self.below(8) == 0 {
            for at in std::mem::take(&mut self.moves) {
                let alone = MoveWord::Refused(Status::OutOfMemory, "it has no neighbour".into());
                self.shard.on_exports(self.now, |work| work.move_word(at, alone));
            }
        }
        while let Some((ticket, answer)) = self.shard.out().completed() {
            assert!(self.came.insert(ticket, answer).is_none(), "it is answered once");
        }
    }

    /// The controller's decision on a requested capacity.
    fn decide(&mut self, at: BlockAt, bytes: u64) -> Capacity {
        let held = self.shard.reports().inventory().find(|held| held.at == at);
        let before = held.map_or(0, |held| held.capacity);
        let is_below = before > 0 && self.is_below(at.block.index());
        let capacity = self.units.capacity_bytes_for(bytes);
        let more = capacity.saturating_sub(before);
        if more > 0 && !self.shard.reports().has_room_in_memory(more) {
            return Capacity::Denied(Status::OutOfMemory, "memory is full".into());
        }
        self.grown_below += u32::from(is_below && more > 0);
        self.given_back += u32::from(more == 0);
        Capacity::Granted(capacity as usize)
    }

    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            self.step();
            self.doing.extend(self.shard.tiers().take_io());
            if self.doing.is_empty() && self.done.is_empty() {
                return;
            }
        }
        panic!("the disk is never idle");
    }

    /// Begins an operation: returns its answer, or the ticket of the later answer.
    pub fn begin(
        &mut self,
        block: u32,
        op: Op,
        args: &[u8],
        payload: &[u8],
    ) -> Result<Answer, Ticket> {
        self.begin_within(Duration::ZERO, block, op, args, payload)
    }

    /// As `begin`, for an operation that may wait for so long.
    pub fn begin_within(
        &mut self,
        wait: Duration,
        block: u32,
        op: Op,
        args: &[u8],
        payload: &[u8],
    ) -> Result<Answer, Ticket> {
        self.ticket += 1;
        let mut header = RequestHeader { at: at(block), grant: 1, ..RequestHeader::new(op) };
        header.payload_len = payload.len() as u32;
        header.deadline_ms = wait.as_millis() as u32;
        // A waiting operation has a lane to itself; the others follow each other, as those of a client do.
        let lane = match wait.is_zero() {
            true => block,
            false => BLOCKS + self.ticket as u32,
        };
        if op.info().lane {
            let next = Sequence(*self.lanes.entry(lane).or_insert(1));
            (header.lane, header.sequence, header.ack_lag) = (LaneId(1 + lane), next, 1);
        }
        let ticket = Ticket(self.ticket);
        match self.shard.apply(self.now, &access(false), &header, args, payload, ticket) {
            Outcome::Done(answer) => {
                if op.info().lane && answer.status != Status::Busy {
                    *self.lanes.get_mut(&lane).unwrap() += 1;
                }
                Ok(answer)
            }
            Outcome::Parked => Err(ticket),
        }
    }

    /// A request of another shard to a block, answered at once.
    pub fn peer(&mut self, block: u32, op: Op, args: &[u8]) -> Answer {
        self.ticket += 1;
        let header = RequestHeader { at: at(block), ..RequestHeader::new(op) };
        let ticket = Ticket(self.ticket);
        match self.shard.apply(self.now, &access(true), &header, args, &[], ticket) {
            Outcome::Done(answer) => answer,
            Outcome::Parked => panic!("{op:?} waits"),
        }
    }

    /// Runs an operation to its end, with the retries of a client.
    pub fn run(&mut self, block: u32, op: Op, args: &[u8], payload: &[u8]) -> (Answer, Vec<u8>) {
        for _ in 0..10_000 {
            let begun = self.begin(block, op, args, payload);
            let waited = begun.is_err();
            let answer = match begun {
                Ok(answer) => answer,
                Err(ticket) => loop {
                    self.step();
                    if let Some(answer) = self.came.remove(&ticket) {
                        break answer;
                    }
                },
            };
            if answer.status != Status::Busy {
                let bytes = bytes(&mut self.shard, block, &answer.payload);
                if waited && op.info().lane {
                    *self.lanes.get_mut(&block).unwrap() += 1;
                }
                return (answer, bytes);
            }
            (0..3).for_each(|_| self.step());
        }
        let last = self.begin(block, op, args, payload);
        panic!("{op:?} is busy for ever: {last:?}");
    }

    /// The content of a block in the form of a flush, which is copied while the block is served.
    pub fn copied(&mut self, block: u32) -> Vec<u8> {
        const FLUSH: u64 = 1;
        let (copy, _) = self
            .shard
            .on_exports(self.now, |work| work.copy(at(block), (0, u64::MAX), FLUSH))
            .unwrap();
        let content = self.written(&copy);
        self.shard.on_exports(self.now, |work| work.end_copies(0, FLUSH));
        content
    }

    /// The content of a copy, or of a retained block.
    pub fn written(&self, copy: &KeptBytes) -> Vec<u8> {
        let parts = [0, TIER, 2 * TIER].map(|base| (self.disk.clone() as Arc<dyn Volume>, base));
        let (parts, mut content): (VolumeParts, _) = (Arc::from(parts), Vec::new());
        copy.write(&parts, &mut content).unwrap();
        content
    }

    pub fn is_below(&mut self, block: u32) -> bool {
        !self.shard.reports().has_frame_for(at(block))
    }

    pub fn lower(&mut self, block: u32) {
        for _ in 0..1000 {
            let _ = self.shard.tiers().change_tier(at(block), DISK);
            self.settle();
            if self.is_below(block) {
                return;
            }
        }
        panic!("it does not go down");
    }
}

/// The bytes of an answer's payload.
pub fn bytes(shard: &mut Shard, block: u32, payload: &Payload) -> Vec<u8> {
    match payload {
        Payload::None => Vec::new(),
        Payload::Bytes(bytes) => bytes.to_vec(),
        Payload::Pinned(pin) => pin.bytes().to_vec(),
        Payload::Block(range) => shard.pin(at(block), range.clone()).bytes().to_vec(),
        Payload::Parts(_) => unreachable!("a store makes none"),
    }
}
