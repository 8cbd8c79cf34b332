//! A shard with a small disk that does its part in any order, and whoever sends requests to its blocks.
#![allow(dead_code)] // Each test uses what it needs of it.

use super::common::{access, config, owner, shard};
use honeycomb_env::{Entropy, MemoryVolume};
use honeycomb_server::{BlockOwner, Effect, Io, IoDone, IoId, MoveWord, Shard, ShardConfig};
use honeycomb_structures::{Answer, Outcome, Payload, Ticket};
use honeycomb_types::{
    BlockAt, BlockId, Epoch, Kind, LaneId, Sequence, ServerId, ShardIx, TierClass, TierIx,
    TierSpec, Time,
};
use honeycomb_wire::{Op, RequestHeader, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub const DISK: TierIx = TierIx(1);
pub const BLOCKS: u32 = 3;
/// The last of the hashes that are a block's.
pub const END: u64 = u64::MAX - 1;

pub struct Below {
    pub shard: Shard,
    pub kind: Kind,
    pub disk: Arc<MemoryVolume>,
    pub rng: Entropy,
    pub now: Time,
    /// What the disk has not begun, in any order.
    pub doing: Vec<Io>,
    /// What it has done, and nobody was told.
    pub done: Vec<(IoId, IoDone)>,
    ticket: u64,
    /// The number that comes next in each lane.
    lanes: BTreeMap<u32, u64>,
    /// Blocks that would come up.
    pub wishes: BTreeSet<BlockAt>,
    /// Answers that were waited for.
    pub came: BTreeMap<Ticket, Answer>,
    /// Blocks that ask for a move, which the controller refuses in a while, if it answers.
    pub moves: Vec<BlockAt>,
    pub answers_moves: bool,
    /// Every other effect, in order.
    pub effects: Vec<Effect>,
}

pub fn at(block: u32) -> BlockAt {
    BlockAt { block: BlockId::new(ServerId(1), ShardIx(0), block), epoch: Epoch(1) }
}

impl Below {
    /// `BLOCKS` blocks of a kind, with room for so many of them to be written to while they are below.
    pub fn new(kind: Kind, size: usize, warm: u32, seed: u64) -> Below {
        Below::with_buffers(kind, size, warm, 2 * size, seed)
    }

    /// The same with buffers of so many bytes.
    pub fn with_buffers(kind: Kind, size: usize, warm: u32, buffers: usize, seed: u64) -> Below {
        let mut below = Below::empty(
            kind,
            seed,
            ShardConfig {
                frames: BLOCKS,
                warm,
                disks: vec![TierSpec { class: TierClass::Ssd, blocks: BLOCKS + 1 }],
                buffers,
                ..config(size, BLOCKS)
            },
        );
        // Each has a part of the slots, as they have where there are more blocks than one: it would merge.
        let part = |block| BlockOwner { end: END, ..owner(at(block), kind, true) };
        (0..BLOCKS).for_each(|block| below.shard.open(part(block)).unwrap());
        below
    }

    /// A shard without blocks.
    pub fn empty(kind: Kind, seed: u64, config: ShardConfig) -> Below {
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
            wishes: BTreeSet::new(),
            came: BTreeMap::new(),
            moves: Vec::new(),
            answers_moves: true,
            effects: Vec::new(),
        }
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    /// Something that is under way ends, and time passes.
    pub fn step(&mut self) {
        self.now = self.now + Duration::from_micros(200);
        self.doing.extend(self.shard.take_io());
        // Often it has done something long before it is said.
        if !self.doing.is_empty() && (self.done.is_empty() || self.below(2) == 0) {
            let n = self.below(self.doing.len() as u64) as usize;
            self.done.push(self.doing.swap_remove(n).carry_out(&*self.disk, 0));
        } else if !self.done.is_empty() {
            let n = self.below(self.done.len() as u64) as usize;
            let (id, done) = self.done.swap_remove(n);
            self.shard.io_done(self.now, id, done);
        }
        self.shard.tick(self.now);
        for effect in self.shard.take_effects() {
            match effect {
                Effect::Raise { at, .. } => drop(self.wishes.insert(at)),
                Effect::BeginMove { at, .. } => {
                    self.moves.push(at);
                    self.effects.push(effect);
                }
                other => self.effects.push(other),
            }
        }
        if self.answers_moves && self.below(8) == 0 {
            for at in std::mem::take(&mut self.moves) {
                let alone = MoveWord::Refused(Status::OutOfMemory, "it has no neighbour".into());
                self.shard.move_word(self.now, at, alone);
            }
        }
        while let Some((ticket, answer)) = self.shard.completed() {
            assert!(self.came.insert(ticket, answer).is_none(), "it is answered once");
        }
    }

    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            self.step();
            self.doing.extend(self.shard.take_io());
            if self.doing.is_empty() && self.done.is_empty() {
                return;
            }
        }
        panic!("the disk is never idle");
    }

    /// Begins an operation: its answer, or by which ticket it comes.
    pub fn begin(
        &mut self,
        block: u32,
        op: Op,
        args: &[u8],
        payload: &[u8],
    ) -> Result<Answer, Ticket> {
        self.begin_within(Duration::ZERO, block, op, args, payload)
    }

    /// One that may wait for so long.
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
        // Who waits has a lane to itself; the others come one after the other, as those of a client do.
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

    /// What another shard asks of a block, which is answered at once.
    pub fn peer(&mut self, block: u32, op: Op, args: &[u8]) -> Answer {
        self.ticket += 1;
        let header = RequestHeader { at: at(block), ..RequestHeader::new(op) };
        let ticket = Ticket(self.ticket);
        match self.shard.apply(self.now, &access(true), &header, args, &[], ticket) {
            Outcome::Done(answer) => answer,
            Outcome::Parked => panic!("{op:?} waits"),
        }
    }

    /// Runs an operation to its end, as a client does that is told to come again.
    pub fn run(&mut self, block: u32, op: Op, args: &[u8], payload: &[u8]) -> (Answer, Vec<u8>) {
        for _ in 0..10_000 {
            let answer = match self.begin(block, op, args, payload) {
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
                return (answer, bytes);
            }
            (0..3).for_each(|_| self.step());
        }
        let last = self.begin(block, op, args, payload);
        panic!("{op:?} is busy for ever: {last:?}");
    }

    pub fn is_below(&mut self, block: u32) -> bool {
        !self.shard.has_frame_for(at(block))
    }

    pub fn lower(&mut self, block: u32) {
        for _ in 0..1000 {
            let _ = self.shard.lower(at(block), DISK);
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
