//! One core's blocks as a state machine: `apply(now, request) -> answer`, no I/O, no clock.
//!
//! An operation on a block is atomic because one thread runs it. `Shard::admit` decides whether a request may
//! run: its block must be here, its grant must cover it (`authorize`), and a mutation must be the next of its
//! lane (`Shard::recall`). The structure then does its work, and `Shard::conclude` keeps the result for
//! retries.

mod blocks;
mod capabilities;
mod events;
mod export;
mod extents;
mod fetching;
mod full;
mod import;
mod journals;
mod lending;
mod lines;
mod on_disk;
mod outbox;
mod owners;
mod pending;
mod promotion;
mod reading;
mod request;
mod residency;
mod tiers;
mod waiting;
mod write_cache;

pub use events::BlockMessage;
pub use export::{MoveKey, MoveWord, NewUse, PresentUse};
pub use journals::{JournalBegin, JournalWrite};
pub use lines::{LineKey, Post, PostPayload};
pub use outbox::Effect;
pub use tiers::TierCounts;

use crate::authorize::{authorize, peers_only, routed_here};
use crate::holdings::ReportedState;
use crate::pace::{Delay, Pace};
use crate::refusals::{unknown_block, wrong_epoch};
use crate::watch::Watchers;
use blocks::Blocks;
use export::{Checkpoints, Exports, Overlaps};
use honeycomb_block::{Backing, Pin, Reclaimer, Shared};
use honeycomb_structures::{
    Answer, Arrival, Attributes, LaneRoom, Lanes, Outcome, Registered, Registry, Rest, Structure,
    Ticket, large_limit,
};
use honeycomb_types::limits::RETRY_RECORD_BYTES_MAX;
use honeycomb_types::{
    BlockAt, Bug, Generation, JobId, Kind, Marks, PrefixId, SessionId, ShardIx, StructureId,
    TierIx, TierSpec, Time,
};
use honeycomb_wire::notice::Notice;
use honeycomb_wire::{Auth, Grant, Op, RequestHeader, Status};
use outbox::Outbox;
use pending::AllPending;
use request::{Request, acknowledge, next_block, operation, record_hash, subscribe};
use residency::Residency;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use tiers::Tiers;
use waiting::Pending;

/// The caller: the facts that the connection's handshake and grants have proven.
#[derive(Clone, Copy, Debug)]
pub struct CallerAccess {
    /// Scope of retries.
    pub session: SessionId,
    /// Most results that a lane of this session keeps.
    pub window: u16,
    /// The grant that the request names, if the connection has presented it.
    pub grant: Option<Grant>,
    /// Another memory server, which presented the unattenuated token of the cluster.
    pub peer: bool,
}

/// The owner of a block, as the controller assigned it.
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
    /// The kind of structure.
    pub kind: Kind,
    /// First hash of a kv's range.
    pub start: u64,
    /// Last hash of it, inclusive.
    pub end: u64,
    /// Most items of a queue; 0 for no bound.
    pub max_items: u64,
    /// Most bytes of a queue; 0 for no bound.
    pub max_bytes: u64,
    /// The structure's first block.
    pub first: bool,
    /// The marks at which the block grows or splits, and merges.
    pub marks: Marks,
    /// The move that will fill it; 0 for none.
    pub importing: u64,
    /// Its tier at the start: memory, or a lower one.
    pub tier: TierIx,
}

/// The configuration of a shard.
#[derive(Clone)]
pub struct ShardConfig {
    /// The number of its core.
    pub shard: ShardIx,
    /// Bytes of each block.
    pub block_size: usize,
    /// Most blocks, in all tiers.
    pub blocks: u32,
    /// Most blocks in memory; all of them, if there is no lower tier.
    pub frames: u32,
    /// Room for the retry records of its blocks.
    pub lane_room: LaneRoom,
    /// In addition, most blocks of lower tiers whose ends are in the write cache.
    pub warm: u32,
    /// The lower tiers.
    pub disks: Vec<TierSpec>,
    /// Most bytes of buffers for data that was read from lower tiers and is not sent yet.
    pub buffers: usize,
    /// Reclaims freed memory.
    pub reclaimer: Reclaimer,
    /// The kinds of structure that it serves.
    pub kinds: Arc<Registry>,
}

struct BlockSlot {
    owner: BlockOwner,
    backing: Backing,
    structure: Box<dyn Structure>,
    /// The block's kind, with the attributes of its operations.
    kind: Arc<Registered>,
    lanes: Lanes,
    /// Whether the block changed since usage was last reported.
    touched: bool,
    /// The time at which the consequences of changes were last processed, and the used bytes at that time.
    looked: (Time, u64),
    /// Whether the block has changed slightly since then.
    unseen: bool,
    /// When a block that was refused a successor may request one again.
    ask_after: Time,
    /// When it requested one, until the answer arrives.
    asked_at: Option<Time>,
    /// The time for which there was no room for a successor.
    full: full::FullSince,
    /// When to check whether its granted successor is still needed.
    idle_at: Option<Time>,
    /// How fast it is written.
    pace: Pace,
    /// When to call `tick` of the structure, if a timer is set.
    timer: Option<Time>,
    /// For a drained block, the time of the next check whether it can be retired.
    retire_at: Option<Time>,
    watchers: Watchers,
    /// For a sealed block, its length and the arguments of `Moved` to its successor.
    sealed: Option<(u64, Box<[u8]>)>,
    exports: Exports,
    /// The move whose content the block receives.
    import: Option<u64>,
    told: ReportedState,
    /// The copy that clients map, which then serves the block as well.
    shared: Option<Shared>,
    /// The tier of the block's bytes, and their place in it.
    place: Residency,
    /// The journal of a block whose changes are answered only when they are stored in it.
    journal: Option<Box<journals::Journal>>,
}

/// One core's share of a memory server.
pub struct Shard {
    config: ShardConfig,
    blocks: Blocks,
    /// The state of the lower tiers.
    tiers: Tiers,
    /// How long the controller takes to grant a block.
    grow_delay: Delay,
    pending: AllPending,
    touched: Vec<u32>,
    /// Blocks that have changed since they were inspected: each once.
    unseen: Vec<u32>,
    /// Blocks whose exports continue in steps, in turn: each once.
    steps: VecDeque<u32>,
    out: Outbox,
    /// When the timers of blocks are due.
    timers: BinaryHeap<Reverse<(Time, u32)>>,
    /// The controller's clock minus the local one, in milliseconds.
    clock_offset_ms: i64,
    /// Backings that a planted defect reuses unscrubbed.
    stale: Vec<Backing>,
    /// Whether any block has, or had, a journal.
    has_journals: bool,
    /// Copies of freed blocks that clients may still map.
    owed: Vec<lending::OwedCopy>,
    /// Adoptions and drops of extents at other shards.
    extents: extents::Extents,
    checkpoints: Checkpoints,
    overlaps: Overlaps,
}

impl Shard {
    /// A shard without a name: it has no blocks until `reset` assigns one.
    pub fn new(config: ShardConfig) -> Shard {
        let tiers = Tiers::new(&config.disks);
        Shard {
            blocks: Blocks::new(config.shard, config.blocks),
            config,
            tiers,
            grow_delay: Delay::default(),
            pending: AllPending::default(),
            touched: Vec::new(),
            unseen: Vec::new(),
            steps: VecDeque::new(),
            out: Outbox::default(),
            timers: BinaryHeap::new(),
            clock_offset_ms: 0,
            stale: Vec::new(),
            has_journals: false,
            owed: Vec::new(),
            extents: extents::Extents::default(),
            checkpoints: Checkpoints::default(),
            overlaps: Overlaps::default(),
        }
    }

    /// Sets the difference of the controller's clock to the local one.
    pub fn set_clock_offset(&mut self, offset_ms: i64) {
        self.clock_offset_ms = offset_ms;
    }

    /// Ends a subscription whose connection is closed.
    pub fn unsubscribe(&mut self, at: BlockAt, ticket: Ticket) {
        if let Some(slot) = self.blocks.at(at)
            && slot.watchers.remove(ticket)
            && let Some(changes) = slot.structure.changes()
        {
            changes.watch(false);
        }
    }

    /// The pending notices: the subscription of each, its number within the block, and its content.
    pub fn take_notices(&mut self) -> Vec<(Ticket, u64, Notice)> {
        std::mem::take(&mut self.out.notices)
    }

    /// Announces a request that will run after others of its batch: see `Ops::prefetch`. It is
    /// authorized later; this call reveals nothing to the caller.
    #[inline]
    pub fn prefetch(&self, header: &RequestHeader, args: &[u8]) -> Option<u64> {
        let slot = self.blocks.get(self.blocks.index(header.at.block)?)?;
        if slot.backing.floor() > 0 {
            return None;
        }
        slot.structure.prefetch(&slot.backing, header.op, args)
    }

    /// See `Ops::prefetch_more`.
    #[inline]
    pub fn prefetch_more(&self, header: &RequestHeader, hint: u64) {
        if let Some(index) = self.blocks.index(header.at.block)
            && let Some(slot) = self.blocks.get(index)
            && slot.backing.floor() == 0
        {
            slot.structure.prefetch_more(&slot.backing, hint);
        }
    }

    /// Runs a request with a complete payload. `ticket` must be fresh; it identifies the answer if the
    /// outcome is `Parked`.
    pub fn apply(
        &mut self,
        now: Time,
        access: &CallerAccess,
        header: &RequestHeader,
        args: &[u8],
        payload: &[u8],
        ticket: Ticket,
    ) -> Outcome {
        let clock_ms = self.clock_ms(now);
        if header.op.info().auth == Auth::Peer {
            let answer = match peers_only(access) {
                Ok(()) if matches!(header.op, Op::ExtentAdopt | Op::ExtentDrop) => {
                    self.on_extents(now, |work| work.extent_part(now, header.op, args))
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
        let (index, attributes) = match self.admit(now, access, header) {
            Ok(admitted) => admitted,
            Err(answer) => return Outcome::Done(answer),
        };
        let slot = self.blocks.found_mut(index);
        if header.op == Op::Subscribe {
            let grant = access.grant.expect("authorized by one");
            let answer = subscribe(slot, ticket, grant, args);
            // A caller that reaches a sealed block must not wait here for data after the seal.
            if let (Status::Ok, Some((length, successor))) = (answer.status, &slot.sealed) {
                slot.watchers.hand_over_to(ticket, *length, successor, &mut self.out.notices);
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
        let request = Request { access, header, args, ticket, attributes };
        if attributes.mutates
            && let Err(answer) = self.may_change(now, index)
        {
            return self.conclude(now, index, &request, Outcome::Done(answer));
        }
        let slot = self.blocks.found_mut(index);
        if !slot.place.is_plain()
            && let Err(answer) = self.allows(now, index, &request)
        {
            return self.conclude(now, index, &request, Outcome::Done(answer));
        }
        self.used(index);
        let slot = self.blocks.found_mut(index);
        slot.pace.wrote(now, payload.len());
        if !attributes.mutates && slot.backing.floor() > 0 && slot.is_whole() {
            return match self.tier_work().reads().read_below(now, index, &request, payload) {
                Some(answer) => self.conclude(now, index, &request, Outcome::Done(answer)),
                None => Outcome::Parked,
            };
        }
        let outcome = match routed_here(&slot.owner, header, attributes.route, args) {
            Ok(()) => {
                let operation = operation(now, clock_ms, &request);
                slot.structure.apply(&mut slot.backing, &operation, payload)
            }
            Err(refusal) => Outcome::Done(refusal),
        };
        self.conclude(now, index, &request, outcome)
    }

    /// Whether a request can run on a block that is not completely in memory; otherwise the answer.
    fn allows(&mut self, now: Time, index: usize, request: &Request<'_>) -> Result<(), Answer> {
        if request.header.op == Op::FileMap {
            return Err(Answer::refuse(
                Status::NotShared,
                "the block is on a disk, or is being demoted",
            ));
        }
        let slot = self.blocks.found(index);
        let op = request.header.op;
        let needs = match slot.rests() {
            Rest::Pieces(_) if request.attributes.payload => {
                let text = "the block is in a lower tier, or is being demoted, and accepts no data";
                return Err(Answer::refuse(Status::BlockFull, text));
            }
            Rest::Pieces(_) => false,
            _ if !request.attributes.mutates => false,
            // Without a payload an operation changes none of their bytes.
            Rest::Open(_) | Rest::Final(_) => request.attributes.payload,
            Rest::Whole(_) | Rest::Busy => {
                slot.lower_tier_reads().is_none_or(|reads| reads.needs_bytes(op))
            }
        };
        if needs { self.tier_work().prepare_change(now, index) } else { Ok(()) }
    }

    /// Records the use of a block; with lower tiers, the use is also reported to the controller.
    #[inline]
    fn used(&mut self, index: usize) {
        if !self.config.disks.is_empty()
            && let Some(slot) = self.blocks.get_mut(index)
            && !slot.touched
        {
            slot.touched = true;
            self.touched.push(index as u32);
        }
    }

    /// Whether a large payload of this request goes straight into its block (`reserve`). Otherwise it is
    /// gathered and passed to `apply`. For a request that will be refused, either is right; `reserve` refuses
    /// it earlier.
    pub fn streams(&mut self, header: &RequestHeader) -> bool {
        let Some(slot) = self.blocks.at(header.at) else { return true };
        if header.op.info().auth == Auth::Peer {
            // Retry records are not stored in a block, so they are gathered.
            let movable = slot.structure.movable();
            let whole = movable.is_some_and(|m| m.takes(header.op) == Some(Arrival::Whole));
            return !whole && header.op != Op::MoveLanes;
        }
        if header.op.kind_code() != slot.owner.kind.code() {
            return true;
        }
        slot.kind.operation(header.op.number()).is_none_or(|known| known.streams || !known.payload)
    }

    /// The largest payload in bytes that is gathered for this request. A client's payload is no larger than
    /// an entry of the block. A part of a move may be all results of one lane.
    pub fn gathers_most(&self, header: &RequestHeader) -> usize {
        let block = self.config.block_size;
        if header.op.info().auth == Auth::Peer && !Bug::PartsLimitedAsEntries.active() {
            return 2 * block.max(RETRY_RECORD_BYTES_MAX);
        }
        2 * large_limit(block) + 64
    }

    /// Begins a request whose payload of `header.payload_len` bytes is still arriving.
    pub fn reserve(
        &mut self,
        now: Time,
        access: &CallerAccess,
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
        let length = header.payload_len as usize;
        let request = Request { access, header, args, ticket, attributes };
        let changes = match attributes.mutates {
            true => self.may_change(now, index),
            false => Ok(()),
        };
        let plain = self.blocks.found(index).place.is_plain();
        let changes = match changes {
            Ok(()) if !plain => self.allows(now, index, &request),
            other => other,
        };
        if let Err(answer) = changes {
            return match self.conclude(now, index, &request, Outcome::Done(answer)) {
                Outcome::Done(answer) => Err(answer),
                Outcome::Parked => unreachable!("a refusal is final"),
            };
        }
        let slot = self.blocks.found_mut(index);
        slot.pace.wrote(now, length);
        let held = routed_here(&slot.owner, header, attributes.route, args).and_then(|()| {
            let operation = operation(now, clock_ms, &request);
            let (streaming, backing) = slot.streaming();
            streaming.reserve(backing, &operation, length)
        });
        match held {
            Ok(()) => {
                let hash = record_hash(slot, &request);
                let pending = self.pending(now, &request, hash);
                self.pending.push(Pending { until_grant_ends: false, filling: true, ..pending });
                Ok(())
            }
            Err(answer) => match self.conclude(now, index, &request, Outcome::Done(answer)) {
                Outcome::Done(answer) => Err(answer),
                Outcome::Parked => unreachable!("a refusal is final"),
            },
        }
    }

    /// The place of the next bytes of a reserved payload; `None` if the block was freed meanwhile.
    pub fn fill(&mut self, ticket: Ticket) -> Option<&mut [u8]> {
        let at = self.pending.get(ticket)?.at;
        let (streaming, backing) = self.blocks.at(at)?.streaming();
        Some(streaming.fill(backing, ticket))
    }

    /// Notes that `n` bytes of the part returned by `fill` were written.
    pub fn filled(&mut self, ticket: Ticket, n: usize) {
        if let Some(pending) = self.pending.get(ticket)
            && let Some(slot) = self.blocks.at(pending.at)
        {
            slot.streaming().0.filled(ticket, n);
        }
    }

    /// Makes a complete payload visible. `completed` returns the answer.
    pub fn commit(&mut self, now: Time, ticket: Ticket) {
        let Some(pending) = self.pending.get(ticket) else { return };
        assert!(pending.filling, "INV-07: {ticket:?} is committed, and no payload of it arrives");
        let Some(slot) = self.blocks.at(pending.at) else { return };
        let (streaming, backing) = slot.streaming();
        if let Outcome::Done(answer) = streaming.commit(backing, now, ticket) {
            self.finish(pending, answer);
        }
        self.after(now, pending.at);
    }

    /// Cancels a reservation whose connection is closed.
    pub fn abort(&mut self, now: Time, ticket: Ticket) {
        let Some(pending) = self.pending.remove(ticket) else { return };
        assert!(pending.filling, "INV-07: {ticket:?} is aborted, and no payload of it arrives");
        if let Some(slot) = self.blocks.at(pending.at) {
            let (streaming, backing) = slot.streaming();
            streaming.abort(backing, now, ticket);
            if pending.mutates {
                slot.lanes.abandon(pending.session, pending.lane);
            }
            self.after(now, pending.at);
        }
    }

    /// The next answer to a request that was parked.
    pub fn completed(&mut self) -> Option<(Ticket, Answer)> {
        self.out.completed.pop()
    }

    /// Whether no events, answers or effects are pending: the common case.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.out.is_empty() && self.tiers.is_settled()
    }

    /// The pending effects.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.out.effects)
    }

    /// Whether any effects are pending.
    pub fn has_effects(&self) -> bool {
        !self.out.effects.is_empty()
    }

    /// The bytes of an answer's `Payload::Block`.
    pub fn bytes(&self, at: BlockAt, range: Range<usize>) -> &[u8] {
        let index = self.blocks.index(at.block).expect("this block gave the answer");
        let slot = self.blocks.found(index);
        slot.backing.slice(range)
    }

    /// Pins the bytes of an answer's `Payload::Block` until they are sent.
    pub fn pin(&mut self, at: BlockAt, range: Range<usize>) -> Pin {
        self.blocks.at(at).expect("this block gave the answer").backing.pin(range)
    }

    /// Locates the block, checks the grant, and looks up an earlier result: the index of the block and the
    /// attributes of the operation if the structure is to run the request; otherwise the answer.
    fn admit(
        &mut self,
        now: Time,
        access: &CallerAccess,
        header: &RequestHeader,
    ) -> Result<(usize, Attributes), Answer> {
        let index = self.blocks.index(header.at.block).ok_or_else(|| unknown_block(header.at))?;
        let clock_ms = self.clock_ms(now);
        let slot = self.blocks.get_mut(index).ok_or_else(|| wrong_epoch(header.at))?;
        if slot.owner.at.epoch != header.at.epoch && !Bug::EpochUnchecked.active() {
            return Err(wrong_epoch(header.at));
        }
        let attributes = authorize(&slot.owner, &slot.kind, access, header, clock_ms)?;
        let (owner, grant) = (&slot.owner, access.grant.as_ref().expect("authorized by one"));
        let (of, given) = ((owner.job, owner.structure), (grant.job, grant.structure));
        assert_eq!(of, given, "INV-28: a block serves a grant of another structure");
        let (least, given) = (owner.generation, grant.generation);
        assert!(
            given >= least,
            "INV-29: a grant of {given:?} is served, and {least:?} is the least"
        );
        if attributes.mutates {
            self.recall(index, now, access, header)?;
        }
        Ok((index, attributes))
    }

    /// The controller's clock, by which grants expire.
    fn clock_ms(&self, now: Time) -> u64 {
        now.as_millis().saturating_add_signed(self.clock_offset_ms)
    }
}
