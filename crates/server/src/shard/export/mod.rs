//! Exports: the content of a block on its way to another place, while the block is served.
//!
//! A block exports to one peer at a time (`peer`): a part of its range (split), all of its range (merge), or
//! the whole block (relocation). `Exports` is the state of a block's exports, and decides when one begins. It
//! reaches the rest of the block, and of the shard, as `Source`: messages leave by the outbox, and long work
//! continues in steps, between requests.

mod checkpoint;
mod flight;
mod overlap;
mod peer;
mod store;
mod tier;
mod turns;

pub(super) use checkpoint::{Checkpoint, Checkpoints};
pub(super) use overlap::Overlaps;
pub use overlap::{NewUse, PresentUse};
pub use peer::{MoveKey, MoveWord};
pub(super) use store::RetainedBlock;
pub(super) use tier::TierExport;
pub(super) use turns::MoveTurns;

use super::agenda::Agenda;
use super::blocks::Blocks;
use super::extents::{Extents, ExtentsWork};
use super::outbox::Outbox;
use super::pending::AllPending;
use super::successor::SuccessorState;
use super::tiers::{TierWork, Tiers};
use super::{BlockOwner, BlockSlot, Effect, Shard, ShardConfig};
use crate::refusals::wrong_epoch;
use honeycomb_block::Backing;
use honeycomb_structures::{Answer, Lanes, Movable, MoveRequest, Structure};
use honeycomb_types::limits::EXTENTS_LEAVE_FOR;
use honeycomb_types::{BlockAt, JobId, Kind, Time};
use honeycomb_wire::Status;
use peer::PeerExport;
use std::time::Duration;

use super::events::refusal_at_block;
use crate::shard::connections::Post;
use crate::watch::Watchers;

/// Delay of a step that frees departed data: requests come first.
const SWEEP_AFTER: Duration = Duration::from_micros(200);
/// Number of these steps at a time.
const SWEEP_STEPS: usize = 4;

/// A block is almost full when less than this part of it is free, beyond the bytes that are expected before
/// its export ends.
const ALMOST_FULL: u64 = 32;

/// A block that cannot leave its server tries again after this time, which doubles with each refusal.
const LEAVE_AGAIN_MIN: Duration = Duration::from_millis(20);
/// The longest such time.
const LEAVE_AGAIN_MAX: Duration = Duration::from_secs(1);

/// The parts of a block and of its shard that the exports of the block read and change.
pub(super) struct Source<'a> {
    now: Time,
    block_size: usize,
    owner: &'a mut BlockOwner,
    structure: &'a mut dyn Structure,
    backing: &'a mut Backing,
    lanes: &'a mut Lanes,
    watchers: &'a mut Watchers,
    successor: &'a mut SuccessorState,
    /// Whether a move can begin: see `BlockSlot::may_move`.
    may_move: bool,
    /// Whether writers wait for the end of the move, or will: the block is almost full, or others wait for
    /// their turn.
    is_awaited: bool,
    out: &'a mut Outbox,
    index: usize,
    agenda: &'a mut Agenda,
}

impl Source<'_> {
    /// Lists the block for a step.
    fn continue_in_steps(&mut self) {
        self.agenda.continue_in_step(self.index);
    }
}

/// The structure's `Movable`. Only for a block with an export to a peer, or the remains of one.
fn movable(structure: &mut dyn Structure) -> &mut dyn Movable {
    structure.movable().expect("a block that takes part in a move is movable")
}

/// The departure of a block from its server.
#[derive(Clone, Copy, Debug)]
struct Departure {
    /// When the block requests a target next.
    at: Time,
    /// The delay after a refusal.
    pause: Duration,
}

/// The outcome of a look at the exports of a block.
enum Look {
    Nothing,
    /// A move begins.
    Begun,
    /// A move begins when it is the block's turn.
    Queued,
    /// The block has waited for its turn for some time.
    StillQueued,
    /// The block must leave, and cannot yet: it may have to be read back into memory first.
    CannotLeave,
}

/// The exports of a block, and the work that remains of earlier ones.
#[derive(Default)]
pub(super) struct Exports {
    peer: Option<Box<PeerExport>>,
    /// Number of the last move that this block began.
    last_move: u64,
    /// When to continue freeing departed data.
    sweep_at: Option<Time>,
    /// Set if the block must leave its server.
    departure: Option<Departure>,
    /// The block's part in a checkpoint.
    checkpoint: Option<Box<Checkpoint>>,
}

impl Exports {
    /// When the exports of a block with this structure need attention. `may_move` as in `Source`.
    fn due(&self, kind: Kind, structure: &mut dyn Structure, may_move: bool) -> Option<Time> {
        let export = self.peer.as_ref().and_then(|peer| peer.due());
        let request = match &self.peer {
            None if may_move && kind.attributes().splits => {
                structure.movable().and_then(|m| m.move_request_due())
            }
            _ => None,
        };
        let departure = self.departure.filter(|_| self.peer.is_none()).map(|d| d.at);
        [export, request, departure, self.sweep_at].into_iter().flatten().min()
    }

    /// Whether an export, or the request for one, needs the block as it is in memory.
    pub fn needs_memory(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| !peer.is_unknown())
    }

    /// Whether an export to a peer waits for its turn.
    fn is_queued(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.is_queued())
    }

    /// Whether other blocks wait for an export of this one to a peer.
    fn has_turn(&self, now: Time) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.has_turn(now))
    }

    /// Whether the block has cancelled a move that may have begun.
    fn is_cancelling(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.is_unknown())
    }

    /// Whether the block must leave its server.
    pub fn is_departing(&self) -> bool {
        self.departure.is_some()
    }

    /// When the block needs attention: `due` is the time at which the rest of it does.
    pub fn checkpoint_due(&self, due: Option<Time>) -> Option<Time> {
        self.checkpoint.as_ref().map_or(due, |checkpoint| checkpoint.due(due))
    }

    /// Whether a tick has nothing to do for the structure, which is due at this time.
    pub fn skips_tick(&self, due: Option<Time>, now: Time) -> bool {
        self.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.skips(due, now))
    }

    /// Whether the block must not change before its part in a checkpoint allows it.
    #[inline]
    pub fn has_checkpoint(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// The connection to close when the block is freed.
    pub fn hang_up(&self, at: BlockAt) -> Option<Post> {
        self.peer.as_ref().and_then(|peer| peer.hang_up(at))
    }

    /// Continues the export, or requests one that the block needs. `delay` is the time after which it would
    /// have its turn.
    fn look(&mut self, source: &mut Source<'_>, delay: Duration) -> Look {
        if self.peer.is_some() {
            return self.look_at_peer(source);
        }
        let Some(movable) = source.structure.movable() else { return Look::Nothing };
        // The block's own needs come first: requests wait for them. The controller grants them only to kinds
        // that split; of others, also one whose blocks contain a kv's, a full block refuses writes.
        let own = match source.may_move && source.owner.kind.attributes().splits {
            true => {
                movable.expect_delay(delay);
                movable.move_request(source.backing, source.now)
            }
            false => None,
        };
        let departs = self.departure.is_some_and(|departure| departure.at <= source.now);
        let Some(request) = own.or_else(|| self.request_to_leave(source)) else {
            return if departs { Look::CannotLeave } else { Look::Nothing };
        };
        self.peer = Some(Box::new(PeerExport::queued(source.now, request)));
        if request == MoveRequest::Relocate {
            self.take_turn(source); // No writer waits for its end.
            return Look::Begun;
        }
        Look::Queued
    }

    /// The request of a block that must leave its server, when it is due and possible.
    fn request_to_leave(&mut self, source: &mut Source<'_>) -> Option<MoveRequest> {
        let now = source.now;
        let departure = self.departure.as_mut().filter(|departure| departure.at <= now)?;
        if source.may_move && source.structure.movable().is_some_and(|m| m.can_leave()) {
            return Some(MoveRequest::Relocate);
        }
        departure.at = now + LEAVE_AGAIN_MIN;
        None
    }

    /// Handles a refusal of the controller to begin the requested move.
    fn refused(
        &mut self,
        source: &mut Source<'_>,
        request: MoveRequest,
        status: Status,
        why: String,
    ) {
        let now = source.now;
        if status == Status::Busy {
            source.successor.full.ends(); // Memory is being freed.
        }
        match request {
            // The server stays, and the block with it.
            MoveRequest::Relocate if status == Status::Removed => self.departure = None,
            MoveRequest::Relocate => self.postpone_departure(now),
            _ => movable(source.structure).refused(now, request, refusal_at_block(status), why),
        }
    }

    fn postpone_departure(&mut self, now: Time) {
        if let Some(departure) = &mut self.departure {
            departure.at = now + departure.pause;
            departure.pause = (2 * departure.pause).min(LEAVE_AGAIN_MAX);
        }
    }

    /// Frees some of the departed data.
    fn sweep(&mut self, source: &mut Source<'_>) {
        if self.sweep_at.is_none_or(|due| due > source.now) {
            return;
        }
        let movable = movable(source.structure);
        let more = (0..SWEEP_STEPS).all(|_| movable.sweep(source.backing));
        self.sweep_at = more.then_some(source.now + SWEEP_AFTER);
    }
}

impl BlockSlot {
    /// When the exports of the block need attention.
    pub(super) fn exports_due(&mut self) -> Option<Time> {
        let may_move = self.may_move();
        self.exports.due(self.owner.kind, &mut *self.structure, may_move)
    }

    /// Whether all bytes of the block are in memory, and no present use of them refuses a move.
    fn may_move(&self) -> bool {
        self.residency.is_workable(&self.backing) && self.lets_move()
    }
}

/// The parts of a shard that export blocks.
pub struct ExportWork<'a> {
    now: Time,
    config: &'a ShardConfig,
    blocks: &'a mut Blocks,
    agenda: &'a mut Agenda,
    out: &'a mut Outbox,
    tiers: &'a mut Tiers,
    extents: &'a mut Extents,
    checkpoints: &'a mut Checkpoints,
    overlaps: &'a mut Overlaps,
    turns: &'a mut MoveTurns,
    pending: &'a mut AllPending,
}

impl Shard {
    /// Runs work on exports, and then the consequences for the blocks that it has changed.
    pub fn on_exports<T>(&mut self, now: Time, work: impl FnOnce(&mut ExportWork<'_>) -> T) -> T {
        let Shard {
            config,
            blocks,
            agenda,
            out,
            tiers,
            extents,
            checkpoints,
            overlaps,
            turns,
            pending,
            ..
        } = self;
        let outcome = work(&mut ExportWork {
            now,
            config,
            blocks,
            agenda,
            out,
            tiers,
            extents,
            checkpoints,
            overlaps,
            turns,
            pending,
        });
        self.consequences(now);
        outcome
    }

    /// Whether a block may be changed; otherwise the answer. Its owed content is copied first.
    #[inline]
    pub(super) fn may_change(&mut self, now: Time, index: usize) -> Result<(), Answer> {
        match self.blocks.get(index) {
            Some(slot) if slot.exports.has_checkpoint() => {
                self.on_exports(now, |work| work.may_change(index))
            }
            _ => Ok(()),
        }
    }

    /// Continues one export for some microseconds. Everything that a caller waits for comes first. False if
    /// no export can be continued now.
    #[inline]
    pub fn step(&mut self, now: Time) -> bool {
        let next = self.agenda.take_step();
        if let Some(index) = next {
            self.on_exports(now, |work| work.step(index));
        }
        next.is_some()
    }
}

impl ExportWork<'_> {
    /// The exports of the block at `index`, and the rest of the block.
    fn exporting(&mut self, index: usize) -> Option<(&mut Exports, Source<'_>)> {
        let slot = self.blocks.get_mut(index)?;
        let may_move = slot.may_move();
        let size = self.config.block_size as u64;
        let is_awaited = slot.exports.peer.as_ref().is_some_and(|peer| {
            let free = size.saturating_sub(slot.structure.bytes_used());
            let coming = slot.pace.bytes_in(self.now, 2 * peer.expects(self.now));
            free < (size / ALMOST_FULL).saturating_add(coming as u64)
                || self.turns.are_awaited(slot.owner.job)
        });
        let BlockSlot { owner, backing, structure, lanes, watchers, successor, exports, .. } = slot;
        let source = Source {
            now: self.now,
            block_size: self.config.block_size,
            owner,
            structure: &mut **structure,
            backing,
            lanes,
            watchers,
            successor,
            may_move,
            is_awaited,
            out: self.out,
            index,
            agenda: self.agenda,
        };
        Some((exports, source))
    }

    /// The flush of a controller shard copies nothing any more.
    pub fn end_copies(&mut self, controller: u16, flush: u64) {
        self.end_checkpoints(controller, flush);
        self.extents_work().end_copies(controller, flush);
    }

    /// The connection to a controller shard is new: the controller repeats the copies that it still needs.
    pub fn forget_copies(&mut self, controller: u16) {
        self.forget_checkpoints(controller);
        self.extents_work().forget_copies(controller);
    }

    fn extents_work(&mut self) -> ExtentsWork<'_> {
        let ExportWork { now, config, blocks, agenda, extents, out, .. } = self;
        ExtentsWork { now: *now, config, blocks, agenda, extents, out }
    }

    /// The parts of the shard that move blocks between tiers.
    fn tier_work(&mut self) -> TierWork<'_> {
        let ExportWork { config, blocks, agenda, pending, tiers, out, overlaps, .. } = self;
        TierWork { config, blocks, agenda, pending, tiers, out, overlaps }
    }

    /// Continues the exports of a block, after a change of the block or when they are due.
    pub(super) fn inspect(&mut self, index: usize) {
        let Some(slot) = self.blocks.get(index) else { return };
        let delay = self.turns.delay(slot.owner.job);
        let (exports, mut source) = self.exporting(index).expect("found above");
        let (job, at) = (source.owner.job, source.owner.at);
        let look = exports.look(&mut source, delay);
        let has_turn = exports.has_turn(source.now);
        let ends_turn = !has_turn && self.turns.is_awaited(job, at);
        match look {
            Look::Nothing | Look::StillQueued => {}
            Look::Begun => self.overlaps.begun_at(self.blocks, index, NewUse::Peer),
            Look::Queued => {
                self.turns.queue(job, at, self.blocks, self.now);
                self.overlaps.begun_at(self.blocks, index, NewUse::Peer);
            }
            Look::CannotLeave => {
                let now = self.now;
                self.tier_work().read_back_to_leave(now, index);
            }
        }
        if ends_turn || matches!(look, Look::Queued | Look::StillQueued) {
            self.give_turns(job);
        }
    }

    /// Begins the exports of a job whose turn it is.
    fn give_turns(&mut self, job: JobId) {
        while let Some(next) = self.turns.next(job, self.blocks, self.now) {
            let (exports, mut source) = self.exporting_at(next).expect("a queued block is in use");
            exports.take_turn(&mut source);
        }
    }

    /// Frees some of the data that has left a block, when this is due.
    pub(super) fn sweep(&mut self, index: usize) {
        if let Some((exports, mut source)) = self.exporting(index) {
            exports.sweep(&mut source);
        }
    }

    /// Continues the export of a block for some microseconds.
    fn step(&mut self, index: usize) {
        let Some((exports, mut source)) = self.exporting(index) else { return };
        let at = source.owner.at;
        if exports.step(&mut source) {
            self.agenda.changed(at);
        }
    }

    /// Handles a message of the controller about a move of a block.
    pub fn move_word(&mut self, at: BlockAt, word: MoveWord) {
        if self.blocks.at(at).is_none() {
            return;
        }
        if let Some((exports, mut source)) = self.exporting_at(at)
            && exports.word(&mut source, word)
        {
            self.agenda.changed(at);
        }
    }

    /// Handles the answer to a part of a move.
    pub(super) fn move_answered(&mut self, key: MoveKey, status: Status) {
        if let Some((exports, mut source)) = self.source_of(key)
            && exports.answered(&mut source, key.id, status)
        {
            self.agenda.changed(key.source);
        }
    }

    /// Handles the loss of the connection of a move.
    pub(super) fn move_lost(&mut self, key: MoveKey) {
        if let Some((exports, mut source)) = self.source_of(key)
            && exports.lost(&mut source, key.id)
        {
            self.agenda.changed(key.source);
        }
    }

    fn exporting_at(&mut self, at: BlockAt) -> Option<(&mut Exports, Source<'_>)> {
        let index = self.blocks.index(at.block)?;
        self.exporting(index)
    }

    /// The source of a move.
    fn source_of(&mut self, key: MoveKey) -> Option<(&mut Exports, Source<'_>)> {
        let found = self.exporting_at(key.source)?;
        (found.1.owner.at == key.source).then_some(found)
    }

    /// Makes a block leave this server.
    pub fn evacuate(&mut self, at: BlockAt) -> Result<(), Answer> {
        let now = self.now;
        let slot = self.blocks.at(at).ok_or_else(|| wrong_epoch(at))?;
        let content = slot.structure.content_mut();
        if content.is_some_and(|content| content.refuse_content_until(now + EXTENTS_LEAVE_FOR)) {
            let BlockOwner { job, structure, at, .. } = slot.owner;
            self.out.effects.push(Effect::ValuesLeave { job, structure, at });
            return Ok(());
        }
        if slot.structure.movable().is_none() {
            return Err(cannot_move());
        }
        slot.exports.departure.get_or_insert(Departure { at: now, pause: LEAVE_AGAIN_MIN });
        self.agenda.changed(at);
        Ok(())
    }
}

/// The refusal for a block of a kind that does not move.
pub(super) fn cannot_move() -> Answer {
    Answer::refuse(Status::WrongKind, "blocks of this kind cannot be moved")
}
