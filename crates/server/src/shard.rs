//! One core's blocks as a state machine: `apply(now, request) -> answer`, no I/O, no clock.
//!
//! An operation on a block is atomic because one thread runs it. `RequestWork::admit` decides whether a
//! request may run: its block must be here, its grant must cover it (`authorize`), and a mutation must be
//! the next of its lane (`RequestWork::recall`). The structure then does its work, and `Shard::conclude`
//! keeps the result for retries.
//!
//! The parts of a shard own their state, and reach each other by `*Work` types, which borrow only the parts
//! that they need: requests (`waiting`), owners (`owners`, `lifecycle`), exports and imports (`export`,
//! `import`), tiers (`tiers`, `residency`), journals, extents, memory that is lent, reports. A part that
//! changes a block lists it (`Agenda::changed`), and the shard then processes the consequences (`events`).

mod agenda;
mod blocks;
mod capabilities;
mod capacity;
mod connections;
mod deltas;
mod events;
mod export;
mod extents;
mod fetching;
mod full;
mod import;
mod journals;
mod lending;
mod lifecycle;
mod on_disk;
mod outbox;
mod owners;
mod pending;
mod promotion;
mod reading;
mod reports;
mod request;
mod residency;
mod successor;
mod tiers;
mod units;
mod waiting;
mod write_cache;

pub use connections::{PeerEvent, PeerKey, Post, PostPayload};
pub use events::BlockMessage;
pub use export::{ExportWork, MoveKey, MoveWord, NewUse, PresentUse};
pub use extents::ExtentsWork;
pub use import::ImportWork;
pub use journals::{JournalBegin, JournalWork, JournalWrite};
pub use lending::Lending;
pub use outbox::{Effect, Outbox};
pub use owners::Owners;
pub use reports::Reports;
pub use tiers::{TierCounts, TierWork};
pub use waiting::RequestWork;

use crate::authorize::{peers_only, routed_here};
use crate::holdings::ReportedState;
use crate::pace::{Delay, Pace};
use crate::watch::Watchers;
use agenda::{Agenda, Attention};
use blocks::Blocks;
use capacity::EnlargeState;
use deltas::ChangedBelow;
use export::{Checkpoints, Exports, MoveTurns, Overlaps};
use extents::Extents;
use honeycomb_block::{Backing, Pin, Reclaimer, Shared};
use honeycomb_structures::{
    Answer, Arrival, LaneRoom, Lanes, Outcome, Registered, Registry, Structure, Ticket,
};
use honeycomb_types::limits::{RETRY_RECORD_BYTES_MAX, gathered_max};
use honeycomb_types::{
    BlockAt, BlockUnits, Bug, Generation, JobId, Kind, Marks, PrefixId, SessionId, ShardIx,
    StructureId, TierIx, TierSpec, Time,
};
use honeycomb_wire::{Auth, Grant, Op, RequestHeader, Status};
use lending::LentCopies;
use lifecycle::Stage;
use pending::AllPending;
use request::{Request, acknowledge, next_block, operation, record_hash, subscribe};
use residency::Residency;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use successor::SuccessorState;
use tiers::Tiers;
use units::UnitsInUse;
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
    /// Bytes that the block may hold now.
    pub capacity: u64,
}

/// The configuration of a shard.
#[derive(Clone)]
pub struct ShardConfig {
    /// The number of its core.
    pub shard: ShardIx,
    /// Bytes of each block.
    pub block_size: usize,
    /// Most whole blocks in memory.
    pub frames: u32,
    /// Room for the retry records of its blocks.
    pub lane_room: LaneRoom,
    /// Most blocks of a job that are divided or merged at a time.
    pub moving: usize,
    /// In addition, most blocks of lower tiers whose ends are in the write cache.
    pub warm: u32,
    /// Bytes of memory for changes of blocks in lower tiers that are not written there; 0 to read such a
    /// block back for each change.
    pub deltas: usize,
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
    attention: Attention,
    successor: SuccessorState,
    enlarging: EnlargeState,
    /// How fast it is written.
    pace: Pace,
    stage: Stage,
    /// Messages of the controller that the structure has not got yet, in order.
    inbox: VecDeque<BlockMessage>,
    watchers: Watchers,
    exports: Exports,
    /// The move whose content the block receives.
    import: Option<u64>,
    told: ReportedState,
    /// The copy that clients map, which then serves the block as well.
    shared: Option<Shared>,
    /// Where the block's bytes are.
    residency: Residency,
    /// The journal of a block whose changes are answered only when they are stored in it.
    journal: Option<Box<journals::Journal>>,
    /// Memory of its deltas, as counted in the pool.
    deltas: usize,
}

impl ShardConfig {
    /// The units of its blocks.
    fn units(&self) -> BlockUnits {
        BlockUnits::of(self.block_size as u64)
    }

    /// Most blocks of any capacity that a controller shard may name, in all tiers.
    fn names(&self) -> u32 {
        self.units().names(self.frames) + self.below()
    }

    /// Most blocks in lower tiers.
    fn below(&self) -> u32 {
        self.disks.iter().map(|tier| tier.blocks).sum()
    }
}

/// One core's share of a memory server.
pub struct Shard {
    config: ShardConfig,
    blocks: Blocks,
    agenda: Agenda,
    out: Outbox,
    pending: AllPending,
    /// The state of the lower tiers.
    tiers: Tiers,
    /// Adoptions and drops of extents at other shards.
    extents: Extents,
    checkpoints: Checkpoints,
    overlaps: Overlaps,
    turns: MoveTurns,
    lent: LentCopies,
    /// How long the controller takes to grant a block.
    grow_delay: Delay,
    /// The controller's clock minus the local one, in milliseconds.
    clock_offset_ms: i64,
    /// Whether any block has, or had, a journal.
    has_journals: bool,
}

impl Shard {
    /// A shard without a name: it has no blocks until `Owners::reset` assigns one.
    pub fn new(config: ShardConfig) -> Shard {
        let used = |blocks, invariant| UnitsInUse::new(config.units(), blocks, invariant);
        let held = used(config.frames + config.below(), "INV-40");
        let frames = used(config.frames, "INV-42");
        Shard {
            blocks: Blocks::new(config.shard, config.names(), held),
            agenda: Agenda::default(),
            out: Outbox::default(),
            pending: AllPending::default(),
            tiers: Tiers::new(&config.disks, config.block_size, frames),
            turns: MoveTurns::new(config.moving),
            config,
            extents: Extents::default(),
            checkpoints: Checkpoints::default(),
            overlaps: Overlaps::default(),
            lent: LentCopies::default(),
            grow_delay: Delay::default(),
            clock_offset_ms: 0,
            has_journals: false,
        }
    }

    /// Its pending messages.
    #[inline]
    pub fn out(&mut self) -> &mut Outbox {
        &mut self.out
    }

    /// Sets the difference of the controller's clock to the local one.
    pub fn set_clock_offset(&mut self, offset_ms: i64) {
        self.clock_offset_ms = offset_ms;
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
                    self.on_extents(now, |work| work.extent_part(header.op, args))
                }
                Ok(()) => {
                    let request = Request::of_a_peer(access, header, args, ticket);
                    let operation = operation(now, clock_ms, &request);
                    self.on_imports(now, |work| work.part(header, args, payload, &operation))
                }
                Err(refusal) => refusal,
            };
            return Outcome::Done(answer);
        }
        let (index, attributes) = match self.requests().admit(now, clock_ms, access, header) {
            Ok(admitted) => admitted,
            Err(answer) => return Outcome::Done(answer),
        };
        let slot = self.blocks.found_mut(index);
        if header.op == Op::Subscribe {
            let grant = access.grant.expect("authorized by one");
            let answer = subscribe(slot, ticket, grant, args);
            // A caller that reaches a sealed block must not wait here for data after the seal.
            if let (Status::Ok, Some((length, next))) = (answer.status, slot.stage.continuation()) {
                slot.watchers.hand_over_to(ticket, length, next, &mut self.out.notices);
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
        if attributes.mutates && self.blocks.found(index).backing.floor() > 0 {
            let changed = self.tiers().change_below((now, clock_ms), index, &request, payload);
            match changed {
                ChangedBelow::NotTaken => {}
                ChangedBelow::Waits => return Outcome::Parked,
                ChangedBelow::Done(answer) => {
                    return self.conclude(now, index, &request, Outcome::Done(answer));
                }
            }
        }
        let slot = self.blocks.found_mut(index);
        if !slot.residency.is_plain()
            && let Err(answer) = self.tiers().admit(now, index, &request)
        {
            return self.conclude(now, index, &request, Outcome::Done(answer));
        }
        let slot = self.blocks.found_mut(index);
        if !self.config.disks.is_empty() {
            // With lower tiers, each use is reported to the controller.
            self.agenda.touch(index, &mut slot.attention);
        }
        slot.pace.wrote(now, payload.len());
        if !attributes.mutates && slot.backing.floor() > 0 && slot.is_whole() {
            return match self.tiers().reads().read_below((now, clock_ms), index, &request, payload)
            {
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
        gathered_max(block as u64) as usize
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
            let operation = operation(now, clock_ms, &request);
            self.on_imports(now, |work| work.begin_part(header, &operation))?;
            self.requests().park(Pending::of(clock_ms, &request, None, true));
            return Ok(());
        }
        let (index, attributes) = self.requests().admit(now, clock_ms, access, header)?;
        let length = header.payload_len as usize;
        let request = Request { access, header, args, ticket, attributes };
        let changes = match attributes.mutates {
            true => self.may_change(now, index),
            false => Ok(()),
        };
        let plain = self.blocks.found(index).residency.is_plain();
        let changes = match changes {
            Ok(()) if !plain => self.tiers().admit(now, index, &request),
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
                self.requests().park(Pending::of(clock_ms, &request, hash, true));
                Ok(())
            }
            Err(answer) => match self.conclude(now, index, &request, Outcome::Done(answer)) {
                Outcome::Done(answer) => Err(answer),
                Outcome::Parked => unreachable!("a refusal is final"),
            },
        }
    }

    /// Whether no events, answers or effects are pending: the common case.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.out.is_empty() && self.tiers.is_settled()
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

    /// The controller's clock, by which grants expire.
    fn clock_ms(&self, now: Time) -> u64 {
        now.as_millis().saturating_add_signed(self.clock_offset_ms)
    }
}
