//! Moves between blocks: the source block's side, and how parts reach the target block.
//!
//! The stages are those of docs/design-notes.md, "Moves". A source block requests a move from the
//! controller (`Asked`), copies while it serves (`Copying`), is frozen for the rest (`Frozen`), waits until
//! the target has counted the data (`Counted`), and then for the controller's decision (`Committing`). From
//! there on only that decision counts, unless the first request for it could not be sent. Every step before
//! that can be undone, and is if the connection breaks, the target refuses, or the move takes too long. A
//! request without an answer is repeated only to cancel the move that it may have begun (`Unknown`).
//!
//! No I/O here: outgoing requests leave as `Post`, in order, and answers are passed in.

use super::events::refusal_at_block;
use super::lines::{LineKey, Post, PostPayload};
use super::{BlockOwner, BlockSlot, Effect, Shard};
use crate::refusals::{unknown_block, wrong_epoch};
use honeycomb_structures::{Answer, Outcome, Parcel, Prepared, Wish};
use honeycomb_types::limits::EXTENTS_LEAVE_FOR;
use honeycomb_types::{BlockAt, Bug, Time};
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::messages::{MapEntry, MoveDoneRequest, MoveLanesRequest};
use honeycomb_wire::{Field, Op, RequestHeader, Status};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that are on their way to the other block before the next part follows: one part at a time
/// but for the smallest, so that both ends work by turns. A core that sends or receives without a
/// pause makes everybody wait whom the kernel has put on it, for milliseconds.
const WINDOW: usize = 64 << 10;
const WINDOW_SHARE: usize = 16;
/// Bytes of what is to be sent that are looked at in one step, between two looks at who else has come:
/// some microseconds' work. Of a block no more than a part, so that a small one is not sent in one go.
const STEP: usize = 16 << 10;
const STEP_SHARE: usize = 512;
/// And while the range stands still: then all others wait for this.
const WINDOW_FROZEN: usize = 2 << 20;
/// Parts on their way at a time, however small.
const FLIGHTS_MAX: usize = 64;
/// The range stands still when no more than this is left to send, and no more than so many parts of
/// a block: what a small block has shall not all count as little.
const FREEZE_AT: u64 = 1 << 20;
const FREEZE_SHARE: u64 = 64;
/// Or than this, when as much as the range had was sent twice and writers are as fast as the move.
const FREEZE_LATE: u64 = 8 << 20;
const FREEZE_LATE_SHARE: u64 = 8;
/// It stands still no longer than this before it is changed again, the first time.
const FROZEN_MAX: Duration = Duration::from_millis(40);
/// A move that had to let go so often is given up.
const THAWS_MAX: u32 = 5;
/// Without a sign of the other block for this long a move is given up.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How often the controller is asked for its word on a commit, and whether it has begun a move.
const ASK_CONTROLLER_AGAIN: Duration = Duration::from_millis(100);
/// Bytes of retry records in one part, about: they are sent whole.
const LANES_PART: usize = 32 * 1024;
/// How long a step of giving back what has departed is put off: others come first.
const SWEEP_AFTER: Duration = Duration::from_micros(200);
/// Steps of it at a time.
const SWEEP_STEPS: usize = 4;

/// A block that is to leave its server, and could not, tries again after this, and after twice as long
/// each time.
const LEAVE_AGAIN_MIN: Duration = Duration::from_millis(20);
const LEAVE_AGAIN_MAX: Duration = Duration::from_secs(1);

/// A block that is to leave its server.
pub(super) struct DueRelocation {
    /// When it asks next for a block elsewhere.
    at: Time,
    /// How long it waits when it cannot have one.
    rest: Duration,
}

/// Names one move at the block that gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MoveKey {
    /// The block that gives.
    pub source: BlockAt,
    /// The controller's number for the move.
    pub id: u64,
}

/// What the controller says of a move to the block that asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveWord {
    /// Begin: this block is ready to take this range.
    Begin {
        /// The move.
        id: u64,
        /// The range that moves, and the block that takes it.
        entry: MapEntry,
        /// The address of that block's server, or why it cannot be resolved.
        address: Result<SocketAddr, String>,
    },
    /// There is nobody to move to.
    Refused(Status, String),
    /// The range is the other block's from this map version on.
    Committed(MovedArgs),
    /// The range is not the other block's, or the controller cannot answer.
    NotCommitted(Status, String),
    /// The request to begin has no usable answer: the connection has ended, for example. The controller may
    /// have begun the move, and then its target waits for it.
    Unanswered,
    /// The last question about a commit was not sent: there is no controller to ask.
    NotAsked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MovePhase {
    Asked,
    /// The block has given up the move, which the controller may have begun. The request is repeated until it
    /// is answered, and a move in the answer is cancelled.
    Unknown {
        /// When to repeat it; `None` while its answer can still arrive.
        again: Option<Time>,
    },
    Copying,
    Frozen {
        since: Time,
    },
    /// As `Frozen`, and everything was sent; the answer to this flight counts.
    Counted {
        since: Time,
        by: u64,
    },
    Committing {
        again: Time,
        /// The controller may have been asked: an earlier question was not called back.
        asked: bool,
    },
}

/// A move from the giving block's side.
pub(super) struct Moving {
    wish: Wish,
    phase: MovePhase,
    id: u64,
    target: BlockAt,
    entry: MapEntry,
    /// Bytes of the parts that were not answered, in order.
    flights: VecDeque<usize>,
    unanswered: usize,
    /// Parts that were sent, and those that were answered.
    sent: u64,
    answered: u64,
    sent_bytes: u64,
    /// What the range had when it began.
    at_first: u64,
    /// Retry records that are still to be sent, once the range stands still.
    lanes: Option<VecDeque<Vec<u8>>>,
    /// It is listed for a step.
    steps: bool,
    thaws: u32,
    /// Last sign of the other block.
    heard: Time,
}

impl Moving {
    fn asked(now: Time, wish: Wish) -> Moving {
        Moving {
            wish,
            phase: MovePhase::Asked,
            id: 0,
            target: BlockAt::default(),
            entry: MapEntry::default(),
            flights: VecDeque::new(),
            unanswered: 0,
            sent: 0,
            answered: 0,
            sent_bytes: 0,
            at_first: 0,
            lanes: None,
            steps: false,
            thaws: 0,
            heard: now,
        }
    }

    /// Whether another part may be sent, with blocks of this size.
    fn has_room(&self, block: usize) -> bool {
        let copying = WINDOW.min(block / WINDOW_SHARE);
        let window = if self.phase == MovePhase::Copying { copying } else { WINDOW_FROZEN };
        self.flights.len() < FLIGHTS_MAX && self.unanswered < window
    }

    fn has_begun(&self) -> bool {
        !matches!(self.phase, MovePhase::Asked | MovePhase::Unknown { .. })
    }

    fn due(&self) -> Option<Time> {
        match self.phase {
            MovePhase::Asked => None,
            MovePhase::Unknown { again } => again,
            MovePhase::Copying => Some(self.heard + SILENCE_MAX),
            // Each time for longer: on a machine that is short of time it would never end otherwise.
            MovePhase::Frozen { since } | MovePhase::Counted { since, .. } => {
                Some(since + FROZEN_MAX * (1 << self.thaws))
            }
            MovePhase::Committing { again, .. } => Some(again),
        }
    }

    /// How much may be left when the range stands still, with blocks of this size.
    fn freezes_at(&self, block: usize) -> u64 {
        let block = block as u64;
        match self.sent_bytes {
            sent if sent < 2 * self.at_first => FREEZE_AT.min(block / FREEZE_SHARE),
            sent if sent < 8 * self.at_first => FREEZE_LATE.min(block / FREEZE_LATE_SHARE),
            // Writers who are faster than the move wait for it.
            _ => u64::MAX,
        }
    }
}

impl BlockSlot {
    /// When a move, or what is left of one, wants to be looked at.
    pub(super) fn move_due(&mut self) -> Option<Time> {
        let moving = self.moving.as_ref().and_then(|moving| moving.due());
        let wish = match &self.moving {
            None if self.place.is_workable(&self.backing) => {
                self.structure.movable().and_then(|m| m.wish_at())
            }
            _ => None,
        };
        let leaves = self.leaving.as_ref().filter(|_| self.moving.is_none()).map(|l| l.at);
        [moving, wish, leaves, self.sweep_at].into_iter().flatten().min()
    }

    /// The wish of a block that is to leave this server, when it is time and it can.
    fn wants_to_leave(&mut self, now: Time) -> Option<Wish> {
        let leaving = self.leaving.as_mut().filter(|leaving| leaving.at <= now)?;
        let here = self.place.is_workable(&self.backing);
        if here && self.structure.movable().is_some_and(|m| m.can_leave()) {
            return Some(Wish::Relocate);
        }
        leaving.at = now + LEAVE_AGAIN_MIN;
        None
    }

    /// Whether a move that the block takes part in, or has requested, needs it as it is in memory.
    pub(super) fn is_held_by_move(&self) -> bool {
        let unknown = |moving: &Moving| matches!(moving.phase, MovePhase::Unknown { .. });
        self.moving.as_deref().is_some_and(|moving| !unknown(moving))
    }

    /// The controller does not begin the move that the block requested.
    fn refused(&mut self, now: Time, wish: Wish, status: Status, why: String) {
        if status == Status::Busy {
            self.full.ends(); // Memory is being freed.
        }
        match wish {
            // The server stays, and the block with it.
            Wish::Relocate if status == Status::Removed => self.leaving = None,
            Wish::Relocate => self.put_off_leaving(now),
            _ => self.movable().refused(now, wish, refusal_at_block(status), why),
        }
    }

    /// It could not leave: again in a while, and in longer ones each time.
    fn put_off_leaving(&mut self, now: Time) {
        if let Some(leaving) = &mut self.leaving {
            leaving.at = now + leaving.rest;
            leaving.rest = (2 * leaving.rest).min(LEAVE_AGAIN_MAX);
        }
    }
}

impl Shard {
    /// The controller has something to say about a move of a block.
    pub fn move_word(&mut self, now: Time, at: BlockAt, word: MoveWord) {
        let Some(index) = self.index(at.block) else { return };
        let Some(slot) = self.slot_at(at) else { return };
        let Some(moving) = &slot.moving else { return };
        match (word, moving.phase) {
            (MoveWord::Begin { id, entry, address }, MovePhase::Asked) => {
                slot.full.ends();
                self.begin_move(now, index, id, entry, address);
            }
            (MoveWord::Refused(status, why), MovePhase::Asked) => {
                let wish = moving.wish;
                slot.moving = None;
                slot.refused(now, wish, status, why);
            }
            (MoveWord::Unanswered, MovePhase::Asked) => {
                let wish = moving.wish;
                let phase = MovePhase::Unknown { again: Some(now + ASK_CONTROLLER_AGAIN) };
                let unknown = Moving { phase, ..Moving::asked(now, wish) };
                slot.moving = (!Bug::BeginNotRepeated.active()).then(|| Box::new(unknown));
                slot.refused(
                    now,
                    wish,
                    Status::Unavailable,
                    "the controller did not answer".into(),
                );
            }
            (word, MovePhase::Unknown { .. }) => self.answer_to_unknown(now, index, word),
            (MoveWord::Committed(moved), MovePhase::Committing { .. }) => {
                self.depart(now, index, &moved);
            }
            // Nobody took the range: the move was cancelled, or structure or block are no more.
            // The block is another one by now, or was taken out of its structure: the first answer got
            // lost. It serves nobody again.
            (MoveWord::NotCommitted(Status::WrongEpoch, _), MovePhase::Committing { .. })
                if slot.movable().as_it_lies() =>
            {
                let moving = slot.moving.take().expect("looked at above");
                slot.movable().depart(now, Vec::new());
                let post = hang_up(slot, &moving);
                self.out.posts.push(post);
            }
            (
                MoveWord::NotCommitted(Status::Removed | Status::NotFound | Status::WrongEpoch, _),
                MovePhase::Committing { .. },
            ) => self.give_up(now, index, false),
            // Nobody has decided, and nobody will: who wants to change the range need not wait until
            // the controller is back.
            (MoveWord::NotAsked, MovePhase::Committing { asked: false, .. }) => {
                self.give_up(now, index, true)
            }
            // Anything else leaves it open. The question comes again; the range waits for the
            // answer, whoever gets it.
            _ => {}
        }
        self.after(now, at);
    }

    /// The controller's word about a move that a block has given up, and that may have begun.
    fn answer_to_unknown(&mut self, now: Time, index: usize, word: MoveWord) {
        let slot = self.slots[index].as_mut().expect("the caller has found the move");
        slot.moving = match word {
            MoveWord::Begin { id, .. } => {
                slot.last_move = slot.last_move.max(id);
                let (structure, at) = (slot.owner.structure, slot.owner.at);
                self.out.effects.push(Effect::CancelMove { structure, at, id });
                None
            }
            // The controller is away, and the question remains.
            MoveWord::Unanswered | MoveWord::Refused(Status::Unavailable, _) => {
                let phase = MovePhase::Unknown { again: Some(now + ASK_CONTROLLER_AGAIN) };
                slot.moving.take().map(|moving| Box::new(Moving { phase, ..*moving }))
            }
            MoveWord::Refused(..) => None,
            // About an earlier move.
            MoveWord::Committed(_) | MoveWord::NotCommitted(..) | MoveWord::NotAsked => return,
        };
    }

    /// A request of a move was answered.
    pub(super) fn move_answered(&mut self, now: Time, key: MoveKey, status: Status) {
        let Some(index) = self.move_of(key) else { return };
        let moving = self.slots[index].as_mut().and_then(|s| s.moving.as_mut()).expect("found");
        moving.heard = now;
        moving.answered += 1;
        moving.unanswered -= moving.flights.pop_front().unwrap_or(0);
        let answered = moving.answered;
        match (status, moving.phase) {
            (_, MovePhase::Committing { .. }) => {}
            (Status::Ok, MovePhase::Counted { by, .. }) if by == answered => {
                self.commit_move(now, index)
            }
            (Status::Ok, _) => self.send_parts(now, index),
            (status, _) => {
                let all = moving.wish == Wish::Relocate;
                self.give_up(now, index, true);
                if all && status == Status::BlockFull {
                    let slot = self.slots[index].as_deref_mut().expect("looked up above");
                    slot.movable().did_not_fit();
                }
            }
        }
        self.after(now, key.source);
    }

    /// The connection of a move could not be made, or broke.
    pub(super) fn move_lost(&mut self, now: Time, key: MoveKey) {
        let Some(index) = self.move_of(key) else { return };
        let moving = self.slots[index].as_ref().and_then(|s| s.moving.as_ref()).expect("found");
        if !matches!(moving.phase, MovePhase::Committing { .. }) {
            self.give_up(now, index, true);
            self.after(now, key.source);
        }
    }

    /// A block is to leave this server.
    pub fn evacuate(&mut self, now: Time, at: BlockAt) -> Result<(), Answer> {
        let slot = self.slot_at(at).ok_or_else(|| wrong_epoch(at))?;
        let content = slot.structure.content_mut();
        if content.is_some_and(|content| content.refuse_content_until(now + EXTENTS_LEAVE_FOR)) {
            let BlockOwner { job, structure, at, .. } = slot.owner;
            self.out.effects.push(Effect::ValuesLeave { job, structure, at });
            return Ok(());
        }
        if slot.structure.movable().is_none() {
            return Err(cannot_move());
        }
        slot.leaving.get_or_insert(DueRelocation { at: now, rest: LEAVE_AGAIN_MIN });
        self.after(now, at);
        Ok(())
    }

    /// A neighbour of a block will send it its range.
    pub fn begin_import(
        &mut self,
        at: BlockAt,
        id: u64,
        start: u64,
        end: u64,
    ) -> Result<(), Answer> {
        let slot = self.slot_at(at).ok_or_else(|| wrong_epoch(at))?;
        let Some(movable) = slot.structure.movable() else { return Err(cannot_move()) };
        if !slot.place.is_workable(&slot.backing) {
            return Err(Answer::refuse(
                Status::Busy,
                "the block is in a lower tier, or is being demoted",
            ));
        }
        movable.begin_import(id, start, end)
    }

    /// What a block was sent is its own from now on, or is dropped.
    pub fn end_import(
        &mut self,
        now: Time,
        at: BlockAt,
        id: u64,
        commit: bool,
    ) -> Result<(), Answer> {
        let slot = self.slot_at(at).ok_or_else(|| wrong_epoch(at))?;
        let Some(movable) = slot.structure.movable() else { return Err(cannot_move()) };
        if let (Some((start, end)), true) = (movable.imports(id), commit) {
            slot.owner.start = slot.owner.start.min(start);
            slot.owner.end = slot.owner.end.max(end);
        }
        movable.end_import(&mut slot.backing, now, id, commit);
        self.after(now, at);
        Ok(())
    }

    /// A part of a move, whole, from the server of the block that gives.
    pub(super) fn part(
        &mut self,
        now: Time,
        header: &RequestHeader,
        args: &[u8],
        payload: &[u8],
        operation: &honeycomb_structures::Operation<'_>,
    ) -> Answer {
        let slot = match self.takes_parts(header) {
            Ok(slot) => slot,
            Err(refusal) => return refusal,
        };
        if header.op == Op::MoveLanes {
            return adopt(slot, now, args, payload).unwrap_or_else(|refusal| refusal);
        }
        let outcome = slot.structure.apply(&mut slot.backing, operation, payload);
        self.after(now, header.at);
        match outcome {
            Outcome::Done(answer) => answer,
            Outcome::Parked => unreachable!("a part of a move does not wait"),
        }
    }

    /// Makes room for a part of a move that is still arriving.
    pub(super) fn begin_part(
        &mut self,
        header: &RequestHeader,
        operation: &honeycomb_structures::Operation<'_>,
    ) -> Result<(), Answer> {
        let slot = self.takes_parts(header)?;
        let length = header.payload_len as usize;
        let Some(streaming) = slot.structure.streaming() else { return Err(cannot_move()) };
        streaming.reserve(&mut slot.backing, operation, length)
    }

    /// The block that such a part is for, if it takes such parts.
    fn takes_parts(&mut self, header: &RequestHeader) -> Result<&mut BlockSlot, Answer> {
        let (at, op) = (header.at, header.op);
        if self.index(at.block).is_none() {
            return Err(unknown_block(at));
        }
        let slot = self.slot_at(at).ok_or_else(|| wrong_epoch(at))?;
        let Some(movable) = slot.structure.movable() else { return Err(cannot_move()) };
        // Records for retries are the same for blocks of all kinds.
        if op != Op::MoveLanes && movable.takes(op).is_none() {
            let text = format!("{} does not apply to blocks of this kind", op.name());
            return Err(Answer::refuse(Status::WrongKind, text));
        }
        Ok(slot)
    }

    /// Asks for a move that a block would like.
    pub(super) fn look_at_moves(&mut self, now: Time, index: usize) {
        let Some(slot) = self.slots[index].as_deref_mut() else { return };
        if let Some(moving) = &slot.moving {
            let still = matches!(moving.phase, MovePhase::Frozen { .. }) && moving.lanes.is_none();
            if still && slot.structure.movable().is_some_and(|movable| movable.stands_still()) {
                self.send_parts(now, index);
            }
            return self.look_at_clock(now, index);
        }
        let Some(movable) = slot.structure.movable() else { return };
        // What a block needs itself comes first: others wait for that.
        let own = match slot.place.is_workable(&slot.backing) {
            true => movable.wish(&slot.backing, now),
            false => None,
        };
        let leaves = slot.leaving.as_ref().is_some_and(|leaving| leaving.at <= now);
        let wish = own.or_else(|| slot.wants_to_leave(now));
        if leaves && wish.is_none() {
            return self.come_up_to_leave(now, index);
        }
        let slot = self.slots[index].as_deref_mut().expect("looked up above");
        if let Some(wish) = wish {
            slot.moving = Some(Box::new(Moving::asked(now, wish)));
            self.ask_to_begin(index);
        }
    }

    fn ask_to_begin(&mut self, index: usize) {
        let slot = self.slots[index].as_ref().expect("the caller has found the block");
        let moving = slot.moving.as_ref().expect("the caller has found the move");
        let start = match moving.wish {
            Wish::Split { start } => start,
            Wish::Merge | Wish::Relocate => slot.owner.start,
        };
        let (structure, at, way) = (slot.owner.structure, slot.owner.at, moving.wish.way());
        self.out.effects.push(Effect::BeginMove { structure, at, start, way });
    }

    /// Gives back a little of what has departed.
    pub(super) fn sweep_moved(&mut self, now: Time, index: usize) {
        let Some(slot) = self.slots[index].as_deref_mut() else { return };
        if slot.sweep_at.is_none_or(|due| due > now) {
            return;
        }
        let movable = slot.structure.movable().expect("only what can move is swept");
        let more = (0..SWEEP_STEPS).all(|_| movable.sweep(&mut slot.backing));
        slot.sweep_at = more.then_some(now + SWEEP_AFTER);
    }

    fn look_at_clock(&mut self, now: Time, index: usize) {
        let slot = self.slots[index].as_mut().expect("looked up by the caller");
        let moving = slot.moving.as_mut().expect("looked up by the caller");
        if moving.due().is_none_or(|due| due > now) {
            return;
        }
        match moving.phase {
            MovePhase::Asked => {}
            MovePhase::Unknown { .. } => {
                moving.phase = MovePhase::Unknown { again: None };
                self.ask_to_begin(index);
            }
            MovePhase::Copying => self.give_up(now, index, true),
            MovePhase::Frozen { .. } | MovePhase::Counted { .. } if moving.thaws < THAWS_MAX => {
                moving.thaws += 1;
                moving.phase = MovePhase::Copying;
                slot.movable().thaw();
                // Others get in before it goes on: a part or the count is still unanswered.
            }
            MovePhase::Frozen { .. } | MovePhase::Counted { .. } => self.give_up(now, index, true),
            MovePhase::Committing { .. } => self.ask_for_commit(now, index),
        }
    }

    fn move_of(&self, key: MoveKey) -> Option<usize> {
        let index = self.index(key.source.block)?;
        let slot = self.slots[index].as_ref().filter(|slot| slot.owner.at == key.source)?;
        let moving = slot.moving.as_ref().filter(|m| m.has_begun() && m.id == key.id);
        moving.map(|_| index)
    }

    fn begin_move(
        &mut self,
        now: Time,
        index: usize,
        id: u64,
        entry: MapEntry,
        address: Result<SocketAddr, String>,
    ) {
        let slot = self.slots[index].as_deref_mut().expect("the caller found it");
        // One that was given up here, of whose end the controller has not heard, is not begun anew:
        // parts of the first try may still be on their way, and would count as new ones (INV-19).
        let again = id <= slot.last_move && !Bug::MoveBegunTwice.active();
        slot.last_move = slot.last_move.max(id);
        let movable = slot.structure.movable().expect("a block that requested a move is movable");
        let moving = slot.moving.as_mut().expect("the caller found it");
        moving.id = id;
        let address = address.ok().filter(|_| !again);
        let begun = |_: &SocketAddr| {
            movable.begin_export(&mut slot.backing, entry.start, entry.end).is_ok()
        };
        let Some(address) = address.filter(begun) else { return self.give_up(now, index, true) };
        moving.target = entry.at();
        moving.entry = entry;
        moving.phase = MovePhase::Copying;
        moving.at_first = movable.unsent();
        moving.heard = now;
        let (key, target) = (LineKey::Move(MoveKey { source: slot.owner.at, id }), moving.target);
        self.out.posts.push(Post::Dial { key, address, target });
        self.send_parts(now, index);
    }

    /// Whether `step` has something to do.
    #[inline]
    pub fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Does a little of what a move is: some microseconds' work, which is to wait for everything that
    /// somebody waits for.
    pub fn step(&mut self, now: Time) {
        let Some(index) = self.steps.pop_front() else { return };
        let Some(slot) = self.slots[index as usize].as_deref_mut() else { return };
        let at = slot.owner.at;
        if let Some(moving) = slot.moving.as_deref_mut().filter(|moving| moving.steps) {
            moving.steps = false;
            self.send_parts(now, index as usize);
            self.after(now, at);
        }
    }

    /// The move goes on with the next step.
    fn later(&mut self, index: usize) {
        let moving = self.slots[index].as_mut().and_then(|slot| slot.moving.as_mut());
        let moving = moving.expect("the caller has found the move");
        if !moving.steps {
            moving.steps = true;
            self.steps.push_back(index as u32);
        }
    }

    /// Sends what the window has room for, and as much as one step is; lets the range stand still when
    /// little is left.
    fn send_parts(&mut self, now: Time, index: usize) {
        let step = (self.config.block_size / STEP_SHARE).clamp(1024, STEP);
        let mut looked_at = 0;
        loop {
            let slot = self.slots[index].as_deref_mut().expect("the caller has found the move");
            let moving = slot.moving.as_deref_mut().expect("the caller has found the move");
            if !moving.has_room(self.config.block_size) {
                return;
            }
            if looked_at >= step {
                return self.later(index);
            }
            let movable = slot.structure.movable().expect("a block that moves is movable");
            if moving.phase == MovePhase::Copying
                && movable.unsent() <= moving.freezes_at(self.config.block_size)
            {
                if !moving.flights.is_empty() {
                    return; // Who is shut out should wait for what is left, and for nothing else.
                }
                movable.freeze(now);
                moving.phase = MovePhase::Frozen { since: now };
                moving.lanes = None;
            }
            if matches!(moving.phase, MovePhase::Frozen { .. }) && moving.lanes.is_none() {
                if !movable.stands_still() {
                    return; // What is still arriving is followed by a look at the block.
                }
                let MapEntry { start, end, .. } = moving.entry;
                let whole = moving.wish.way().gives_all();
                let lanes = slot.lanes.export(start, end, whole, LANES_PART);
                let leaves = moving.wish == Wish::Relocate && Bug::RelocateForgetsLanes.active();
                let forgotten = leaves || Bug::MoveForgetsRecords.active();
                moving.lanes = Some(if forgotten { VecDeque::new() } else { lanes.into() });
            }
            let id = moving.id;
            if !matches!(moving.phase, MovePhase::Copying | MovePhase::Frozen { .. }) {
                return;
            }
            let parcel = match movable.prepare(&mut slot.backing, step - looked_at) {
                Prepared::Parcel(parcel) => Some(parcel),
                Prepared::Partly => return self.later(index),
                Prepared::Nothing => None,
            };
            if let Some(parcel) = parcel {
                // What is little is a request all the same.
                looked_at += parcel.payload_len().max(1024);
                let (op, args) = parcel.request(id);
                let payload = match parcel {
                    Parcel::Region { bytes, .. }
                    | Parcel::Patch { runs: bytes, .. }
                    | Parcel::State { bytes, .. } => PostPayload::Bytes(bytes),
                    Parcel::Value { bytes, .. } => PostPayload::Pinned(bytes),
                    Parcel::Drops(_) => PostPayload::Bytes(Arc::new([])),
                };
                self.send(index, op, args, payload);
                continue;
            }
            let MovePhase::Frozen { since } = moving.phase else {
                unreachable!("what has nothing left to send stands still");
            };
            if let Some(lanes) = moving.lanes.as_mut().and_then(VecDeque::pop_front) {
                looked_at += lanes.len();
                let args = MoveLanesRequest { move_id: id }.encode();
                self.send(index, Op::MoveLanes, args, PostPayload::Bytes(lanes.into()));
                continue;
            }
            let totals = movable.totals();
            let (entries, bytes) = (totals.entries, totals.bytes);
            moving.phase = MovePhase::Counted { since, by: moving.sent + 1 };
            let done = MoveDoneRequest { move_id: id, entries, bytes };
            self.send(index, Op::MoveDone, done.encode(), PostPayload::Bytes(Arc::new([])));
        }
    }

    fn send(&mut self, index: usize, op: Op, args: Vec<u8>, payload: PostPayload) {
        let slot = self.slots[index].as_mut().expect("the caller has found the move");
        let moving = slot.moving.as_mut().expect("the caller has found the move");
        let bytes = payload.bytes().len() + args.len();
        moving.flights.push_back(bytes);
        moving.unanswered += bytes;
        moving.sent += 1;
        moving.sent_bytes += bytes as u64;
        let key = LineKey::Move(MoveKey { source: slot.owner.at, id: moving.id });
        self.out.posts.push(Post::Send { key, op, args, payload });
    }

    /// The other block has everything. From here on only the controller's word counts.
    fn commit_move(&mut self, now: Time, index: usize) {
        let slot = self.slots[index].as_deref_mut().expect("the caller has found the move");
        slot.movable().hand_over();
        let whole = slot.movable().as_it_lies();
        let moving = slot.moving.as_ref().expect("the caller has found the move");
        // Who listens to a range can be there before the first change happens there. A block that moves
        // whole ends here, and is not to be left before it has.
        if !whole {
            let to = MovedArgs { version: 0, entry: moving.entry.clone() };
            slot.watchers.hand_over(0, &to.encode(), &mut self.out.notices);
        }
        self.ask_for_commit(now, index);
    }

    fn ask_for_commit(&mut self, now: Time, index: usize) {
        let slot = self.slots[index].as_mut().expect("the caller has found the move");
        let moving = slot.moving.as_mut().expect("the caller has found the move");
        let asked = matches!(moving.phase, MovePhase::Committing { .. });
        moving.phase = MovePhase::Committing { again: now + ASK_CONTROLLER_AGAIN, asked };
        let (structure, at) = (slot.owner.structure, slot.owner.at);
        let (id, target, bytes) = (moving.id, moving.target, moving.sent_bytes);
        self.out.effects.push(Effect::CommitMove { structure, at, id, target, bytes });
    }

    fn depart(&mut self, now: Time, index: usize, moved: &MovedArgs) {
        let slot = self.slots[index].as_mut().expect("the caller has found the move");
        let moving = slot.moving.take().expect("the caller has found the move");
        slot.movable().depart(now, moved.encode());
        if slot.movable().as_it_lies() {
            slot.watchers.hand_over(0, &moved.encode(), &mut self.out.notices);
        }
        if moving.entry.start > slot.owner.start {
            slot.owner.end = moving.entry.start - 1;
        }
        slot.sweep_at = Some(now + SWEEP_AFTER);
        self.out.posts.push(hang_up(slot, &moving));
    }

    /// Takes a move back; `tell` the controller, which does not know yet.
    fn give_up(&mut self, now: Time, index: usize, tell: bool) {
        let slot = self.slots[index].as_deref_mut().expect("the caller has found the move");
        let moving = slot.moving.take().expect("the caller has found the move");
        let movable = slot.structure.movable().expect("a block that moves is movable");
        movable.cancel_export(&mut slot.backing, now);
        slot.put_off_leaving(now);
        if tell {
            let (structure, at, id) = (slot.owner.structure, slot.owner.at, moving.id);
            self.out.effects.push(Effect::CancelMove { structure, at, id });
        }
        self.out.posts.push(hang_up(slot, &moving));
    }

    /// A block goes: so does its move.
    pub(super) fn end_move(&mut self, slot: &BlockSlot) {
        if let Some(moving) = slot.moving.as_ref().filter(|moving| moving.has_begun()) {
            self.out.posts.push(hang_up(slot, moving));
        }
    }
}

fn adopt(slot: &mut BlockSlot, now: Time, args: &[u8], payload: &[u8]) -> Result<Answer, Answer> {
    let id = MoveLanesRequest::decode(args)?.move_id;
    if slot.movable().imports(id).is_none() {
        let text = "the block is not part of this move";
        return Err(Answer::refuse(Status::WrongEpoch, text));
    }
    match slot.movable().as_it_lies() {
        true => slot.lanes.take_over(now, payload)?,
        false => slot.lanes.adopt(now, payload)?,
    }
    Ok(Answer::ok(0))
}

fn hang_up(slot: &BlockSlot, moving: &Moving) -> Post {
    Post::HangUp(LineKey::Move(MoveKey { source: slot.owner.at, id: moving.id }))
}

fn cannot_move() -> Answer {
    Answer::refuse(Status::WrongKind, "blocks of this kind cannot be moved")
}
