//! One core's blocks as a state machine: `apply(now, request) -> answer`, no I/O, no clock.
//!
//! An operation on a block is atomic because one thread runs it. The stages of a request are those
//! of `Stage`, in that order; logs, metrics and failpoints use these words.

mod extents;
mod moving;
mod request;

pub use moving::{MoveKey, MoveWord, Post, PostPayload};

use crate::authorize::{authorize, peers_only, routed_here};
use crate::holdings::Told;
use crate::pace::{Delay, Pace};
use crate::refusals::{expired, in_progress, refusal_of, revoked, unknown_block, wrong_epoch};
use crate::watch::Watchers;
use honeycomb_block::{Backing, Pin, Reclaimer};
use honeycomb_structures::{
    Answer, Attributes, Event, LaneVerdict, Lanes, News, Opening, Outcome, Registered, Registry,
    Snapshot, Structure, Successor, Ticket,
};
use honeycomb_types::limits::{SUCCESSOR_IDLE, WAIT_MAX_MS};
use honeycomb_types::{
    BlockAt, BlockId, Bug, Epoch, Generation, JobId, Kind, LaneId, Marks, PrefixId, Sequence,
    ServerId, SessionId, ShardIx, StructureId, Time,
};
use honeycomb_wire::messages::HeldBlock;
use honeycomb_wire::notice::Notice;
use honeycomb_wire::{Auth, Grant, Op, RequestHeader, Status};
use request::{
    Request, acknowledge, generation_of, next_block, operation, record_hash, subscribe, verdict_of,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How often a block that was refused a successor asks again.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// How often a block that is to be retired looks whether it can be, and asks again.
const RETIRE_AGAIN: Duration = Duration::from_millis(100);

/// The stages of a data request, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Is (block, epoch) ours?
    Locate,
    /// Does the grant cover this structure and operation?
    Authorize,
    /// Was this mutation executed before, is it this lane's turn?
    Recall,
    /// The structure does its work.
    Execute,
    /// The result is kept for retries.
    Record,
}

/// Who asks: what the connection's handshake and grants have proven.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Scope of retries.
    pub session: SessionId,
    /// Results that a lane of this session keeps.
    pub window: u16,
    /// The grant that the request names, when the connection has presented it.
    pub grant: Option<Grant>,
    /// Another memory server: it came with the cluster's own token, which nobody has narrowed.
    pub peer: bool,
}

/// To whom a block belongs, as the controller said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockOwner {
    /// The block and its epoch.
    pub at: BlockAt,
    /// The job.
    pub job: JobId,
    /// The prefix.
    pub prefix: PrefixId,
    /// The structure.
    pub structure: StructureId,
    /// Grants of an earlier generation are refused.
    pub generation: Generation,
    /// What it holds.
    pub kind: Kind,
    /// First hash of a kv's range.
    pub start: u64,
    /// Last hash of it, inclusive.
    pub end: u64,
    /// Hash slots of a kv.
    pub slots: u32,
    /// Most items of a queue; 0 for no bound.
    pub max_items: u64,
    /// Most bytes of a queue; 0 for no bound.
    pub max_bytes: u64,
    /// The structure's first block.
    pub first: bool,
    /// When the block grows or splits, and when it merges.
    pub marks: Marks,
    /// The move that will fill it; 0 for none.
    pub importing: u64,
}

/// What a shard wants done elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask the controller for the block that follows this one.
    Grow {
        /// The structure.
        structure: StructureId,
        /// The block that asks.
        at: BlockAt,
    },
    /// Tell the controller that this block was sealed.
    Sealed {
        /// The structure.
        structure: StructureId,
        /// The block.
        at: BlockAt,
        /// Its length for good: bytes of a file's, items of a queue's.
        length: u64,
        /// Bytes of a queue's items.
        bytes: u64,
        /// The structure was sealed with it.
        last: bool,
    },
    /// Tell the controller how much was taken from a queue's block; answered by
    /// `News::TakenHeard`.
    Taken {
        /// The structure.
        structure: StructureId,
        /// The block.
        at: BlockAt,
        /// Items, since it began.
        items: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// Give the controller back the successor that it granted: nobody was told of it.
    Return {
        /// The structure.
        structure: StructureId,
        /// The block that was granted it.
        at: BlockAt,
        /// Arguments of `Moved` by which it came.
        successor: Vec<u8>,
    },
    /// Ask the controller for a block to move to; answered by `MoveWord::Begin` or `Refused`.
    BeginMove {
        /// The structure.
        structure: StructureId,
        /// The block that asks.
        at: BlockAt,
        /// The first hash that shall move.
        start: u64,
        /// Everything shall, to a neighbour.
        merge: bool,
    },
    /// Tell the controller that another block has all of a move; answered by `MoveWord::Committed`
    /// or `NotCommitted`. Repeated until then.
    CommitMove {
        /// The structure.
        structure: StructureId,
        /// The block that gives.
        at: BlockAt,
        /// The move.
        id: u64,
        /// The block that takes.
        target: BlockAt,
    },
    /// Tell the controller that a move was given up.
    CancelMove {
        /// The structure.
        structure: StructureId,
        /// The block that was to give.
        at: BlockAt,
        /// The move.
        id: u64,
    },
    /// Ask the controller where another server is; answered by `Shard::server_located`.
    LocateServer {
        /// The shard that asks.
        shard: ShardIx,
        /// The server.
        server: ServerId,
    },
    /// Ask the controller to take the block out of its structure. Repeated until it is freed.
    Retire {
        /// The structure.
        structure: StructureId,
        /// The block.
        at: BlockAt,
    },
}

/// What a shard is made of.
#[derive(Clone)]
pub struct ShardConfig {
    /// Which core.
    pub shard: ShardIx,
    /// Bytes of each block.
    pub block_size: usize,
    /// How many blocks there are.
    pub blocks: u32,
    /// Takes freed memory.
    pub reclaimer: Reclaimer,
    /// The kinds of structure that it serves.
    pub kinds: Arc<Registry>,
}

struct Slot {
    owner: BlockOwner,
    backing: Backing,
    structure: Box<dyn Structure>,
    /// What its operations are like.
    kind: Arc<Registered>,
    lanes: Lanes,
    /// Touched since usage was last reported.
    touched: bool,
    /// When a refused block may ask for a successor again.
    ask_after: Time,
    /// When it asked for one, until the answer comes.
    asked_at: Option<Time>,
    /// When to look whether the successor that it has is of use.
    idle_at: Option<Time>,
    /// How fast it is written.
    pace: Pace,
    /// When the structure is to be told that time has passed, if a timer is set for it.
    timer: Option<Time>,
    /// It is drained: when to look next whether it can be retired.
    retire_at: Option<Time>,
    watchers: Watchers,
    /// Its length, and arguments of `Moved` to its successor, once it has one.
    sealed: Option<(u64, Box<[u8]>)>,
    /// A move from it.
    moving: Option<Box<moving::Moving>>,
    /// When to go on giving back what has moved away.
    sweep_at: Option<Time>,
    told: Told,
}

/// A block that nobody reaches any more and that is to be written elsewhere before it is freed.
struct Kept {
    owner: BlockOwner,
    snapshot: Arc<Snapshot>,
}

/// A mutation whose answer is still to come: where its result must be kept.
#[derive(Clone, Copy)]
struct Pending {
    ticket: Ticket,
    at: BlockAt,
    session: SessionId,
    lane: LaneId,
    sequence: Sequence,
    hash: Option<u64>,
    /// Its result is to be kept; a read has none, nor has a part of a move.
    mutates: bool,
    /// Of the grant under which it came.
    generation: Generation,
    /// It may wait until that grant ends, and no longer.
    until_grant_ends: bool,
    /// Its payload is still arriving, or waits for those before it: it cannot be given up.
    filling: bool,
}

/// One core's share of a memory server.
pub struct Shard {
    config: ShardConfig,
    server: ServerId,
    slots: Vec<Option<Box<Slot>>>,
    /// Blocks that are being flushed, by their index; they have no slot.
    kept: BTreeMap<usize, Kept>,
    /// How long the controller takes to grant a block.
    grow_delay: Delay,
    /// Epoch of the last owner of each block: a late open or free is recognised by it.
    last_epoch: Vec<Epoch>,
    pending: Vec<Pending>,
    touched: Vec<u32>,
    effects: Vec<Effect>,
    completed: Vec<(Ticket, Answer)>,
    notices: Vec<(Ticket, u64, Notice)>,
    /// When blocks want to know that time has passed.
    timers: BinaryHeap<Reverse<(Time, u32)>>,
    /// What the controller's clock shows minus what ours does, in milliseconds.
    clock_offset_ms: i64,
    /// Backings that a planted defect hands on unscrubbed.
    stale: Vec<Backing>,
    posts: Vec<Post>,
    /// What is to be done about extents at other shards.
    extents: extents::Extents,
}

impl Shard {
    /// A shard without a name: it has no blocks until `reset` gives it one.
    pub fn new(config: ShardConfig) -> Shard {
        let blocks = config.blocks as usize;
        Shard {
            config,
            server: ServerId(0),
            slots: (0..blocks).map(|_| None).collect(),
            kept: BTreeMap::new(),
            grow_delay: Delay::default(),
            last_epoch: vec![Epoch(0); blocks],
            pending: Vec::new(),
            touched: Vec::new(),
            effects: Vec::new(),
            completed: Vec::new(),
            notices: Vec::new(),
            timers: BinaryHeap::new(),
            clock_offset_ms: 0,
            stale: Vec::new(),
            posts: Vec::new(),
            extents: extents::Extents::default(),
        }
    }

    /// Takes the name under which the server joined. Everything held before is gone: blocks of an
    /// earlier name are `DataLost`.
    pub fn reset(&mut self, server: ServerId) {
        self.reset_extents();
        self.server = server;
        self.kept.clear();
        for index in 0..self.slots.len() {
            if let Some(slot) = &self.slots[index] {
                let at = slot.owner.at;
                self.close(index, at);
            }
            self.last_epoch[index] = Epoch(0);
        }
        self.touched.clear();
        self.effects.clear();
    }

    /// Sets how far the controller's clock is ahead of ours.
    pub fn set_clock_offset(&mut self, offset_ms: i64) {
        self.clock_offset_ms = offset_ms;
    }

    /// Gives a block to its owner. Repeating it does nothing; an owner older than the block has
    /// seen is refused (INV-01). The memory is new: no byte of an earlier owner is in it (INV-04).
    pub fn open(&mut self, owner: BlockOwner) -> Result<(), Answer> {
        let index = self.index(owner.at.block).ok_or_else(|| unknown_block(owner.at))?;
        if let Some(slot) = &self.slots[index]
            && slot.owner.at.epoch == owner.at.epoch
        {
            return Ok(());
        }
        if owner.at.epoch <= self.last_epoch[index] {
            let text = format!("{} has seen a later epoch than {}", owner.at.block, owner.at.epoch);
            return Err(Answer::refuse(Status::WrongEpoch, text));
        }
        let kind = self.config.kinds.get(owner.kind).cloned().ok_or_else(|| {
            let text = format!("this server serves no {}", owner.kind);
            Answer::refuse(Status::UnknownKind, text)
        })?;
        if let Some(slot) = &self.slots[index] {
            let at = slot.owner.at;
            self.close(index, at);
        }
        self.kept.remove(&index);
        let backing = self.new_backing().map_err(|e| {
            let text = format!("{} cannot be mapped: {e}", owner.at.block);
            Answer::refuse(Status::OutOfMemory, text)
        })?;
        let mut structure = kind.open(&Opening {
            block_size: self.config.block_size,
            start: owner.start,
            end: owner.end,
            slots: owner.slots,
            max_items: owner.max_items,
            max_bytes: owner.max_bytes,
            first: owner.first,
            importing: owner.importing,
        });
        structure.set_marks(owner.marks);
        self.last_epoch[index] = owner.at.epoch;
        self.slots[index] = Some(Box::new(Slot {
            owner,
            backing,
            structure,
            kind,
            lanes: Lanes::new(),
            touched: false,
            ask_after: Time::ZERO,
            asked_at: None,
            idle_at: None,
            pace: Pace::default(),
            timer: None,
            retire_at: None,
            watchers: Watchers::default(),
            sealed: None,
            moving: None,
            sweep_at: None,
            told: Told::default(),
        }));
        self.arm(index);
        Ok(())
    }

    fn new_backing(&mut self) -> std::io::Result<Backing> {
        match self.stale.pop() {
            Some(backing) if Bug::StaleBytes.active() => Ok(backing),
            _ => Backing::map(self.config.block_size, &self.config.reclaimer),
        }
    }

    /// Takes a block from its owner. True when nothing of that epoch can be read any more, which
    /// includes the case that it was free already.
    pub fn free(&mut self, at: BlockAt) -> bool {
        let Some(index) = self.index(at.block) else { return false };
        // A free that overtakes its open must win: the open is then refused as too old.
        self.last_epoch[index] = self.last_epoch[index].max(at.epoch);
        self.close(index, at);
        true
    }

    /// Lets nobody reach a block any more, and answers what it holds. The block stays what it was
    /// until `free`, however often this comes.
    /// Of a kv the hashes of `range`, ends included: what else it has moves, or has moved, to others.
    pub fn flush(&mut self, at: BlockAt, range: (u64, u64)) -> Result<Arc<Snapshot>, Answer> {
        let index = self.index(at.block).ok_or_else(|| unknown_block(at))?;
        if let Some(kept) = self.kept.get(&index).filter(|kept| kept.owner.at == at) {
            return Ok(kept.snapshot.clone());
        }
        let slot = self.slots[index].as_mut().filter(|slot| slot.owner.at == at);
        let slot = slot.ok_or_else(|| wrong_epoch(at))?;
        let owner = slot.owner;
        let Some(snapshot) = slot.structure.snapshot(&mut slot.backing, range) else {
            let text = format!("a structure of the kind {} cannot be flushed", owner.kind.name());
            return Err(Answer::refuse(Status::WrongKind, text));
        };
        let snapshot = Arc::new(snapshot);
        self.close(index, at);
        self.kept.insert(index, Kept { owner, snapshot: snapshot.clone() });
        Ok(snapshot)
    }

    fn close(&mut self, index: usize, at: BlockAt) {
        if self.kept.get(&index).is_some_and(|kept| kept.owner.at.epoch == at.epoch) {
            self.kept.remove(&index);
        }
        if self.slots[index].as_ref().is_none_or(|s| s.owner.at.epoch != at.epoch) {
            return;
        }
        let mut slot = self.slots[index].take().expect("checked above");
        let text = "the block went to another owner, or to none";
        slot.watchers.end(Status::WrongEpoch, text, &mut self.notices);
        self.end_move(&slot);
        if Bug::StaleBytes.active() {
            self.stale.push(slot.backing);
        }
        let gone = self.pending.extract_if(.., |p| p.at == at).collect::<Vec<_>>();
        for pending in gone {
            self.completed.push((pending.ticket, wrong_epoch(at)));
        }
    }

    /// Refuses grants of a prefix that are older than this, from now on. What was let wait under one
    /// of them waits no longer, and its subscriptions end (INV-29).
    pub fn set_generation(&mut self, prefix: PrefixId, generation: Generation) {
        for index in 0..self.slots.len() {
            let Some(slot) = &mut self.slots[index] else { continue };
            if slot.owner.prefix != prefix {
                continue;
            }
            slot.owner.generation = slot.owner.generation.max(generation);
            let (at, current) = (slot.owner.at, slot.owner.generation);
            slot.watchers.revoke(current, &mut self.notices);
            self.revoke_waiting(at, current);
        }
    }

    fn revoke_waiting(&mut self, at: BlockAt, current: Generation) {
        let old = |p: &&Pending| p.at == at && p.generation < current;
        let old: Vec<Pending> = self.pending.iter().filter(old).copied().collect();
        for pending in old {
            if self.give_up_waiting(pending) {
                self.completed.push((pending.ticket, revoked()));
            }
        }
    }

    /// Brings what the controller has to say to a block: its answer to `Effect::Grow` or
    /// `Effect::Taken`, or what is ahead of it. A block that is gone hears nothing.
    pub fn tell(&mut self, now: Time, at: BlockAt, news: News) {
        if let Some(index) = self.index(at.block)
            && let Some(slot) = &mut self.slots[index]
            && slot.owner.at == at
        {
            match &news {
                News::Successor(Successor::Denied(..)) => slot.ask_after = now + ASK_AGAIN,
                News::Successor(Successor::Ready(_)) => {
                    if let Some(asked) = slot.asked_at.take() {
                        self.grow_delay.took(now.since(asked));
                    }
                    slot.idle_at = Some(now + SUCCESSOR_IDLE);
                }
                _ => {}
            }
            slot.told.hears(&news);
            slot.structure.tell(&mut slot.backing, now, news);
            self.after(now, at);
        }
    }

    /// Time has passed: waits end, reservations run out, blocks that nobody needs are retired.
    pub fn tick(&mut self, now: Time) {
        if self.extents.due().is_some_and(|due| due <= now) {
            self.tick_extents(now);
        }
        while let Some(Reverse((due, index))) = self.timers.peek().copied() {
            if due > now {
                return;
            }
            self.timers.pop();
            let Some(slot) = &mut self.slots[index as usize] else { continue };
            if slot.timer != Some(due) {
                continue;
            }
            slot.timer = None;
            slot.structure.tick(&mut slot.backing, now);
            let at = slot.owner.at;
            self.sweep_moved(now, index as usize);
            self.after(now, at);
        }
    }

    /// When `tick` is due next. May be early, never late.
    pub fn deadline(&self) -> Option<Time> {
        let timers = self.timers.peek().map(|Reverse((due, _))| *due);
        timers.into_iter().chain(self.extents.due()).min()
    }

    /// The caller of a parked operation is gone: it waits no longer, unless it is under way.
    pub fn hang_up(&mut self, ticket: Ticket) {
        if let Some(pending) = self.pending.iter().find(|p| p.ticket == ticket).copied() {
            self.give_up_waiting(pending);
        }
    }

    /// Takes an operation back that waits. False when it is under way.
    fn give_up_waiting(&mut self, pending: Pending) -> bool {
        let Some(slot) = self.slot_at(pending.at) else { return false };
        if pending.filling || !slot.structure.cancel(pending.ticket) {
            return false;
        }
        if pending.mutates {
            slot.lanes.abandon(pending.session, pending.lane);
        }
        self.pending.retain(|p| p.ticket != pending.ticket);
        // Those who waited behind it may have what they waited for.
        self.arm(self.index(pending.at.block).expect("it waited at one of ours"));
        true
    }

    /// Ends a subscription: its connection is gone.
    pub fn unsubscribe(&mut self, at: BlockAt, ticket: Ticket) {
        if let Some(slot) = self.slot_at(at)
            && slot.watchers.remove(ticket)
        {
            slot.structure.watch(false);
        }
    }

    /// The next notice: of which subscription, its number within the block, and what it says.
    pub fn take_notices(&mut self) -> Vec<(Ticket, u64, Notice)> {
        std::mem::take(&mut self.notices)
    }

    /// Runs a request whose payload is here. `ticket` must be fresh; it names the answer when the
    /// outcome is `Parked`.
    pub fn apply(
        &mut self,
        now: Time,
        access: &Access,
        header: &RequestHeader,
        args: &[u8],
        payload: &[u8],
        ticket: Ticket,
    ) -> Outcome {
        let clock_ms = self.clock_ms(now);
        if header.op.info().auth == Auth::Peer {
            let answer = match peers_only(access) {
                Ok(()) if matches!(header.op, Op::ExtentAdopt | Op::ExtentDrop) => {
                    self.extent_part(now, header.op, args)
                }
                Ok(()) => {
                    let request = Request::of_a_peer(access, header, args, ticket);
                    let operation = operation(now, clock_ms, &request);
                    self.part(now, header, args, payload, &operation)
                }
                Err(refusal) => refusal,
            };
            return Outcome::Done(answer);
        }
        let (slot, attributes) = match self.admit(now, access, header) {
            Ok((index, attributes)) => (self.slots[index].as_mut().expect("admitted"), attributes),
            Err(answer) => return Outcome::Done(answer),
        };
        if header.op == Op::Subscribe {
            let grant = access.grant.expect("authorized by one");
            let answer = subscribe(slot, ticket, grant, args);
            // Who comes to a block that was sealed before must not wait here for what follows.
            if let (Status::Ok, Some((length, successor))) = (answer.status, &slot.sealed) {
                slot.watchers.hand_over_to(ticket, *length, successor, &mut self.notices);
            }
            return Outcome::Done(answer);
        }
        if header.op == Op::AckResults {
            let answer = acknowledge(slot, access.session, args);
            self.after(now, header.at);
            return Outcome::Done(answer);
        }
        if header.op == Op::NextBlock {
            return Outcome::Done(next_block(slot, args));
        }
        slot.pace.wrote(now, payload.len());
        let request = Request { access, header, args, ticket, attributes };
        let outcome = match routed_here(&slot.owner, header, attributes.route, args) {
            Ok(()) => {
                let operation = operation(now, clock_ms, &request);
                slot.structure.apply(&mut slot.backing, &operation, payload)
            }
            Err(refusal) => Outcome::Done(refusal),
        };
        self.conclude(now, &request, outcome)
    }

    /// Whether a large payload of this request goes straight into its block (`reserve`). One that does
    /// not is to be gathered, and handed to `apply`. Of a request that will be refused it does not
    /// matter; its refusal comes sooner by `reserve`.
    pub fn streams(&self, header: &RequestHeader) -> bool {
        let slot = self.index(header.at.block).and_then(|index| self.slots[index].as_deref());
        let Some(slot) = slot.filter(|slot| slot.owner.at == header.at) else { return true };
        if header.op.kind_code() != slot.owner.kind.code() {
            return true;
        }
        slot.kind.operation(header.op.number()).is_none_or(|known| known.streams || !known.payload)
    }

    /// Begins a request whose payload of `header.payload_len` bytes is still arriving.
    pub fn reserve(
        &mut self,
        now: Time,
        access: &Access,
        header: &RequestHeader,
        args: &[u8],
        ticket: Ticket,
    ) -> Result<(), Answer> {
        let clock_ms = self.clock_ms(now);
        if header.op.info().auth == Auth::Peer {
            peers_only(access)?;
            let request = Request::of_a_peer(access, header, args, ticket);
            self.begin_part(header, &operation(now, clock_ms, &request))?;
            self.pending.push(Pending {
                ticket,
                at: header.at,
                session: access.session,
                lane: header.lane,
                sequence: header.sequence,
                hash: None,
                generation: Generation(0),
                until_grant_ends: false,
                filling: true,
                mutates: false,
            });
            return Ok(());
        }
        let (index, attributes) = self.admit(now, access, header)?;
        let slot = self.slots[index].as_mut().expect("admitted");
        let length = header.payload_len as usize;
        slot.pace.wrote(now, length);
        let request = Request { access, header, args, ticket, attributes };
        let held = routed_here(&slot.owner, header, attributes.route, args).and_then(|()| {
            let operation = operation(now, clock_ms, &request);
            slot.structure.reserve(&mut slot.backing, &operation, length)
        });
        match held {
            Ok(()) => {
                let hash = record_hash(slot, &request);
                let pending = self.pending(now, &request, hash);
                self.pending.push(Pending { until_grant_ends: false, filling: true, ..pending });
                Ok(())
            }
            Err(answer) => match self.conclude(now, &request, Outcome::Done(answer)) {
                Outcome::Done(answer) => Err(answer),
                Outcome::Parked => unreachable!("a refusal is final"),
            },
        }
    }

    /// Where the next bytes of a reserved payload go; `None` when the block was freed meanwhile.
    pub fn fill(&mut self, ticket: Ticket) -> Option<&mut [u8]> {
        let at = self.pending.iter().find(|p| p.ticket == ticket)?.at;
        let slot = self.slot_at(at)?;
        Some(slot.structure.fill(&mut slot.backing, ticket))
    }

    /// Says that `n` bytes of what `fill` gave were written.
    pub fn filled(&mut self, ticket: Ticket, n: usize) {
        if let Some(pending) = self.pending.iter().find(|p| p.ticket == ticket) {
            let at = pending.at;
            if let Some(slot) = self.slot_at(at) {
                slot.structure.filled(ticket, n);
            }
        }
    }

    /// Makes a complete payload visible. Its answer comes through `completed`.
    pub fn commit(&mut self, now: Time, ticket: Ticket) {
        let Some(pending) = self.pending.iter().find(|p| p.ticket == ticket).copied() else {
            return;
        };
        let Some(slot) = self.slot_at(pending.at) else { return };
        if let Outcome::Done(answer) = slot.structure.commit(&mut slot.backing, now, ticket) {
            self.finish(pending, answer);
        }
        self.after(now, pending.at);
    }

    /// Gives a reservation up: its connection is gone.
    pub fn abort(&mut self, now: Time, ticket: Ticket) {
        let Some(found) = self.pending.iter().position(|p| p.ticket == ticket) else { return };
        let pending = self.pending.swap_remove(found);
        if let Some(slot) = self.slot_at(pending.at) {
            slot.structure.abort(&mut slot.backing, now, ticket);
            if pending.mutates {
                slot.lanes.abandon(pending.session, pending.lane);
            }
            self.after(now, pending.at);
        }
    }

    /// The next answer to a request that was parked.
    pub fn completed(&mut self) -> Option<(Ticket, Answer)> {
        self.completed.pop()
    }

    /// What the shard wants done elsewhere.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Whether `take_effects` has something.
    pub fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    /// The bytes of an answer's `Payload::Block`.
    pub fn bytes(&self, at: BlockAt, range: Range<usize>) -> &[u8] {
        let index = self.index(at.block).expect("the answer came from this block");
        let slot = self.slots[index].as_ref().expect("the answer came from this block");
        slot.backing.slice(range)
    }

    /// Keeps the bytes of an answer's `Payload::Block` until they are sent.
    pub fn pin(&mut self, at: BlockAt, range: Range<usize>) -> Pin {
        self.slot_at(at).expect("the answer came from this block").backing.pin(range)
    }

    /// Calls `report` with the usage of every block that changed since the last call.
    pub fn usage(&mut self, mut report: impl FnMut(BlockAt, u64)) {
        for index in std::mem::take(&mut self.touched) {
            if let Some(slot) = &mut self.slots[index as usize] {
                slot.touched = false;
                report(slot.owner.at, slot.structure.bytes_used());
            }
        }
    }

    /// What a controller is told that may have lost some of it: every block that is held, with its
    /// seal, its successor, and what was taken from it.
    pub fn holdings(&self) -> Vec<HeldBlock> {
        let slots = self.slots.iter().flatten();
        slots.map(|slot| slot.told.of(&slot.owner, slot.structure.bytes_used())).collect()
    }

    /// The blocks in use and to whom they belong.
    pub fn inventory(&self) -> impl Iterator<Item = &BlockOwner> {
        let open = self.slots.iter().flatten().map(|slot| &slot.owner);
        open.chain(self.kept.values().map(|kept| &kept.owner))
    }

    /// `Stage::Locate`, `Authorize` and `Recall`: the index of the block when the structure shall
    /// run the request, and what the operation is like; the answer when it shall not.
    fn admit(
        &mut self,
        now: Time,
        access: &Access,
        header: &RequestHeader,
    ) -> Result<(usize, Attributes), Answer> {
        let index = self.index(header.at.block).ok_or_else(|| unknown_block(header.at))?;
        let clock_ms = self.clock_ms(now);
        let slot = self.slots[index].as_deref_mut().ok_or_else(|| wrong_epoch(header.at))?;
        if slot.owner.at.epoch != header.at.epoch && !Bug::EpochUnchecked.active() {
            return Err(wrong_epoch(header.at));
        }
        let attributes = authorize(&slot.owner, &slot.kind, access, header, clock_ms)?;
        if attributes.mutates {
            self.recall(index, now, access, header)?;
        }
        Ok((index, attributes))
    }

    /// `Stage::Recall`. A repeated request whose first try only waits takes that one's place: the
    /// caller has lost the connection on which the answer would have come.
    fn recall(
        &mut self,
        index: usize,
        now: Time,
        access: &Access,
        header: &RequestHeader,
    ) -> Result<(), Answer> {
        let slot = self.slots[index].as_mut().expect("located");
        let mut verdict = verdict_of(slot, now, access, header);
        if verdict == LaneVerdict::InProgress {
            let earlier = self.pending.iter().find(|p| {
                let this = (header.at, access.session, header.lane, header.sequence);
                (p.at, p.session, p.lane, p.sequence) == this
            });
            if let Some(earlier) = earlier.copied()
                && self.give_up_waiting(earlier)
            {
                let text = "the request came again on another connection";
                self.completed.push((earlier.ticket, in_progress(text)));
                let slot = self.slots[index].as_mut().expect("located");
                verdict = verdict_of(slot, now, access, header);
            }
        }
        refusal_of(verdict)
    }

    /// `Stage::Record` and the answer.
    fn conclude(&mut self, now: Time, request: &Request<'_>, outcome: Outcome) -> Outcome {
        let at = request.header.at;
        let outcome = match outcome {
            Outcome::Done(answer) if !request.attributes.mutates => {
                // Of extents there is no second execution to be kept from: no lane, and a change.
                if matches!(request.header.op, Op::ExtentPut | Op::ExtentKeep) {
                    self.after(now, at);
                }
                return Outcome::Done(answer);
            }
            outcome => outcome,
        };
        let slot = self.slot_at(at).expect("it just ran");
        let hash = record_hash(slot, request);
        let pending = self.pending(now, request, hash);
        let outcome = match outcome {
            Outcome::Done(answer) => Outcome::Done(self.record(pending, answer)),
            Outcome::Parked => {
                self.pending.push(pending);
                Outcome::Parked
            }
        };
        self.after(now, at);
        outcome
    }

    fn pending(&self, now: Time, request: &Request<'_>, hash: Option<u64>) -> Pending {
        let Request { access, header, ticket, attributes, .. } = *request;
        Pending {
            ticket,
            at: header.at,
            session: access.session,
            lane: header.lane,
            sequence: header.sequence,
            hash,
            mutates: attributes.mutates,
            generation: generation_of(access),
            until_grant_ends: self.grant_ends_first(now, access, header),
            filling: false,
        }
    }

    fn record(&mut self, pending: Pending, answer: Answer) -> Answer {
        if pending.mutates
            && let Some(slot) = self.slot_at(pending.at)
        {
            let Pending { session, lane, sequence, hash, .. } = pending;
            if answer.executed() {
                slot.lanes.record(session, lane, sequence, hash, &answer);
            } else {
                slot.lanes.abandon(session, lane);
            }
        }
        answer
    }

    fn finish(&mut self, pending: Pending, answer: Answer) {
        self.pending.retain(|p| p.ticket != pending.ticket);
        let answer = self.record(pending, answer);
        self.completed.push((pending.ticket, answer));
    }

    /// What follows every change of a block: its events, growth, timers, usage.
    fn after(&mut self, now: Time, at: BlockAt) {
        let index = self.index(at.block).expect("an operation just ran on it");
        let Some(slot) = &mut self.slots[index] else { return };
        if !slot.touched {
            slot.touched = true;
            self.touched.push(index as u32);
        }
        while let Some(event) = self.slots[index].as_mut().and_then(|s| s.structure.event()) {
            self.event(now, index, event);
        }
        let delay = self.grow_delay.expected();
        let Some(slot) = &mut self.slots[index] else { return };
        let owner = slot.owner;
        slot.structure.expect(slot.pace.bytes_in(now, delay));
        if now >= slot.ask_after && slot.structure.wants_successor() {
            slot.asked_at = Some(now);
            self.effects.push(Effect::Grow { structure: owner.structure, at: owner.at });
        }
        if slot.idle_at.is_some_and(|due| due <= now) {
            let idle_from = slot.pace.last() + SUCCESSOR_IDLE;
            slot.idle_at = (idle_from > now).then_some(idle_from);
            if slot.idle_at.is_none()
                && let Some(successor) = slot.structure.give_back()
            {
                let BlockOwner { at, structure, .. } = owner;
                self.effects.push(Effect::Return { structure, at, successor });
            }
        }
        if slot.retire_at.is_some_and(|due| due <= now) {
            if slot.lanes.is_quiet(now) {
                self.effects.push(Effect::Retire { structure: owner.structure, at: owner.at });
            }
            slot.retire_at = Some(now + RETIRE_AGAIN);
        }
        self.look_at_moves(now, index);
        self.arm(index);
    }

    /// Sets a block's timer to when it is due.
    fn arm(&mut self, index: usize) {
        let Some(slot) = &mut self.slots[index] else { return };
        let due = [slot.structure.deadline(), slot.retire_at, slot.idle_at, slot.move_due()];
        let due = due.into_iter().flatten().min();
        if let Some(due) = due
            && slot.timer.is_none_or(|timer| due < timer)
        {
            slot.timer = Some(due);
            self.timers.push(Reverse((due, index as u32)));
        }
    }

    fn event(&mut self, now: Time, index: usize, event: Event) {
        let clock_ms = self.clock_ms(now);
        let slot = self.slots[index].as_mut().expect("it just spoke");
        let BlockOwner { at, structure, .. } = slot.owner;
        match event {
            Event::Answered(ticket, answer) => {
                let found = self.pending.iter().find(|p| p.ticket == ticket).copied();
                let Some(pending) = found else {
                    let planted = Bug::QueueFeedsTheDead.active();
                    assert!(planted, "a parked operation is pending until it is answered");
                    return;
                };
                let waited = matches!(
                    answer.status,
                    Status::QueueEmpty | Status::QueueFull | Status::NotYet
                );
                let ended = pending.until_grant_ends && waited;
                self.finish(pending, if ended { expired() } else { answer });
            }
            Event::Changed(change) => {
                slot.watchers.changed(change, clock_ms, &mut self.notices);
            }
            Event::Sealed { length, bytes, successor } => {
                let last = successor.is_none();
                slot.told.sealed(length, bytes, last);
                if let Some(successor) = successor {
                    slot.watchers.hand_over(length, &successor, &mut self.notices);
                    slot.sealed = Some((length, successor.into()));
                }
                self.effects.push(Effect::Sealed { structure, at, length, bytes, last });
            }
            Event::Taken { items, bytes } => {
                slot.told.taken(items, bytes);
                self.effects.push(Effect::Taken { structure, at, items, bytes });
            }
            Event::Drained => slot.retire_at = Some(now),
            Event::Adopt(ticket, list) => self.adopt_extents(now, at, structure, ticket, list),
            Event::DropExtents(owner, list) => self.drop_extents(now, structure, owner, list),
        }
    }

    fn grant_ends_first(&self, now: Time, access: &Access, header: &RequestHeader) -> bool {
        let wait_ms = header.deadline_ms.min(WAIT_MAX_MS) as u64;
        access.grant.is_some_and(|grant| grant.expires_ms < self.clock_ms(now) + wait_ms)
    }

    /// What the controller's clock shows, by which grants are judged.
    fn clock_ms(&self, now: Time) -> u64 {
        now.as_millis().saturating_add_signed(self.clock_offset_ms)
    }

    fn index(&self, block: BlockId) -> Option<usize> {
        let ours = block.server() == self.server
            && block.shard() == self.config.shard
            && (block.index() as usize) < self.slots.len()
            && self.server != ServerId(0);
        ours.then_some(block.index() as usize)
    }

    fn slot_at(&mut self, at: BlockAt) -> Option<&mut Slot> {
        let index = self.index(at.block)?;
        let slot = self.slots[index].as_deref_mut()?;
        (slot.owner.at.epoch == at.epoch || Bug::EpochUnchecked.active()).then_some(slot)
    }
}
