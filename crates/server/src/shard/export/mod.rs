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

pub(super) use checkpoint::{Checkpoint, Checkpoints};
pub(super) use overlap::Overlaps;
pub use overlap::{NewUse, PresentUse};
pub use peer::{MoveKey, MoveWord};
pub(super) use store::RetainedBlock;
pub(super) use tier::TierExport;

use super::full::FullSince;
use super::outbox::Outbox;
use super::{BlockOwner, BlockSlot, Effect, Shard};
use crate::refusals::wrong_epoch;
use honeycomb_block::Backing;
use honeycomb_structures::{Answer, Lanes, Movable, Structure, Wish};
use honeycomb_types::limits::EXTENTS_LEAVE_FOR;
use honeycomb_types::{BlockAt, Time};
use honeycomb_wire::Status;
use peer::PeerExport;
use std::collections::VecDeque;
use std::time::Duration;

use super::events::refusal_at_block;
use crate::watch::Watchers;

/// Delay of a step that frees departed data: requests come first.
const SWEEP_AFTER: Duration = Duration::from_micros(200);
/// Number of these steps at a time.
const SWEEP_STEPS: usize = 4;

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
    full: &'a mut FullSince,
    /// Whether a move can begin: see `BlockSlot::may_move`.
    may_move: bool,
    out: &'a mut Outbox,
    index: usize,
    steps: &'a mut VecDeque<u32>,
}

impl Source<'_> {
    /// Lists the block for a step.
    fn continue_in_steps(&mut self) {
        self.steps.push_back(self.index as u32);
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
    /// A target was requested.
    Requested,
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
    pub(super) checkpoint: Option<Box<Checkpoint>>,
}

impl Exports {
    /// When the exports of a block with this structure need attention. `may_move` as in `Source`.
    fn due(&self, structure: &mut dyn Structure, may_move: bool) -> Option<Time> {
        let export = self.peer.as_ref().and_then(|peer| peer.due());
        let wish = match &self.peer {
            None if may_move => structure.movable().and_then(|m| m.wish_at()),
            _ => None,
        };
        let departure = self.departure.filter(|_| self.peer.is_none()).map(|d| d.at);
        [export, wish, departure, self.sweep_at].into_iter().flatten().min()
    }

    /// Whether an export, or the request for one, needs the block as it is in memory.
    pub fn needs_memory(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| !peer.is_unknown())
    }

    /// Whether the block has cancelled a move that may have begun.
    fn is_cancelling(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.is_unknown())
    }

    /// Whether the block must leave its server.
    pub fn is_departing(&self) -> bool {
        self.departure.is_some()
    }

    /// Continues the export, or requests one that the block needs.
    fn look(&mut self, source: &mut Source<'_>) -> Look {
        if self.peer.is_some() {
            self.look_at_peer(source);
            return Look::Nothing;
        }
        let Some(movable) = source.structure.movable() else { return Look::Nothing };
        // The block's own needs come first: requests wait for them.
        let own = match source.may_move {
            true => movable.wish(source.backing, source.now),
            false => None,
        };
        let departs = self.departure.is_some_and(|departure| departure.at <= source.now);
        let Some(wish) = own.or_else(|| self.wish_to_leave(source)) else {
            return if departs { Look::CannotLeave } else { Look::Nothing };
        };
        self.peer = Some(Box::new(PeerExport::chosen(source.now, wish)));
        self.request_target(source);
        Look::Requested
    }

    /// The wish of a block that must leave its server, when it is due and possible.
    fn wish_to_leave(&mut self, source: &mut Source<'_>) -> Option<Wish> {
        let now = source.now;
        let departure = self.departure.as_mut().filter(|departure| departure.at <= now)?;
        if source.may_move && source.structure.movable().is_some_and(|m| m.can_leave()) {
            return Some(Wish::Relocate);
        }
        departure.at = now + LEAVE_AGAIN_MIN;
        None
    }

    /// Handles a refusal of the controller to begin the requested move.
    fn refused(&mut self, source: &mut Source<'_>, wish: Wish, status: Status, why: String) {
        let now = source.now;
        if status == Status::Busy {
            source.full.ends(); // Memory is being freed.
        }
        match wish {
            // The server stays, and the block with it.
            Wish::Relocate if status == Status::Removed => self.departure = None,
            Wish::Relocate => self.postpone_departure(now),
            _ => movable(source.structure).refused(now, wish, refusal_at_block(status), why),
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
        self.exports.due(&mut *self.structure, may_move)
    }

    /// Whether all bytes of the block are in memory, and no present use of them refuses a move.
    fn may_move(&self) -> bool {
        self.place.is_workable(&self.backing) && self.lets_move()
    }
}

impl Shard {
    /// The exports of the block at `index`, and the rest of the block.
    fn exporting(&mut self, now: Time, index: usize) -> Option<(&mut Exports, Source<'_>)> {
        let Shard { blocks, config, out, steps, .. } = self;
        let slot = blocks.get_mut(index)?;
        let may_move = slot.may_move();
        let BlockSlot { owner, backing, structure, lanes, watchers, full, exports, .. } = slot;
        let source = Source {
            now,
            block_size: config.block_size,
            owner,
            structure: &mut **structure,
            backing,
            lanes,
            watchers,
            full,
            may_move,
            out,
            index,
            steps,
        };
        Some((exports, source))
    }

    /// Continues the exports of a block, after a change of the block or when they are due.
    pub(super) fn look_at_exports(&mut self, now: Time, index: usize) {
        let Some((exports, mut source)) = self.exporting(now, index) else { return };
        match exports.look(&mut source) {
            Look::Nothing => {}
            Look::Requested => {
                self.overlaps.begun_at(&self.blocks, index, NewUse::Peer);
            }
            Look::CannotLeave => self.tier_work().read_back_to_leave(now, index),
        }
    }

    /// The pairs of a present use of a block's content and a new export that have occurred, begun or refused,
    /// for checkers.
    pub fn overlaps(&self) -> impl Iterator<Item = (PresentUse, NewUse)> {
        self.overlaps.seen()
    }

    /// Frees some of the data that has left a block, when this is due.
    pub(super) fn sweep_exported(&mut self, now: Time, index: usize) {
        if let Some((exports, mut source)) = self.exporting(now, index) {
            exports.sweep(&mut source);
        }
    }

    /// Handles a message of the controller about a move of a block.
    pub fn move_word(&mut self, now: Time, at: BlockAt, word: MoveWord) {
        let Some(index) = self.blocks.index(at.block).filter(|_| self.blocks.at(at).is_some())
        else {
            return;
        };
        if let Some((exports, mut source)) = self.exporting(now, index)
            && exports.word(&mut source, word)
        {
            self.after(now, at);
        }
    }

    /// Handles the answer to a part of a move.
    pub(super) fn move_answered(&mut self, now: Time, key: MoveKey, status: Status) {
        if let Some((exports, mut source)) = self.source_of(now, key)
            && exports.answered(&mut source, key.id, status)
        {
            self.after(now, key.source);
        }
    }

    /// Handles the loss of the connection of a move.
    pub(super) fn move_lost(&mut self, now: Time, key: MoveKey) {
        if let Some((exports, mut source)) = self.source_of(now, key)
            && exports.lost(&mut source, key.id)
        {
            self.after(now, key.source);
        }
    }

    /// The source of a move.
    fn source_of(&mut self, now: Time, key: MoveKey) -> Option<(&mut Exports, Source<'_>)> {
        let found = self.exporting(now, self.blocks.index(key.source.block)?)?;
        (found.1.owner.at == key.source).then_some(found)
    }

    /// Makes a block leave this server.
    pub fn evacuate(&mut self, now: Time, at: BlockAt) -> Result<(), Answer> {
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
        self.after(now, at);
        Ok(())
    }

    /// Whether `step` has something to do.
    #[inline]
    pub fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Continues one export for some microseconds. Everything that a caller waits for comes first.
    pub fn step(&mut self, now: Time) {
        let Some(index) = self.steps.pop_front() else { return };
        let index = index as usize;
        let Some((exports, mut source)) = self.exporting(now, index) else { return };
        let at = source.owner.at;
        if exports.step(&mut source) {
            self.after(now, at);
        }
    }

    /// Ends the exports of a block that is being freed.
    pub(super) fn end_exports(&mut self, slot: &BlockSlot) {
        let ended = slot.exports.peer.as_ref().and_then(|peer| peer.hang_up(slot.owner.at));
        self.out.posts.extend(ended);
    }
}

/// The refusal for a block of a kind that does not move.
pub(super) fn cannot_move() -> Answer {
    Answer::refuse(Status::WrongKind, "blocks of this kind cannot be moved")
}
