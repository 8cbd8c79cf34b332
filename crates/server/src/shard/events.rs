//! The consequences of a change of a block, of a message to it, and of the passing of time.

use super::{BlockOwner, BlockSlot, Effect, Shard};
use crate::refusals::expired;
use honeycomb_structures::{Event, Successor};
use honeycomb_types::limits::SUCCESSOR_IDLE;
use honeycomb_types::{BlockAt, Bug, Kind, Time};
use honeycomb_wire::Status;
use std::cmp::Reverse;
use std::time::Duration;

/// Operations of one batch are inspected together until they have changed 1 / this of a block.
const LOOK_FRACTION: usize = 256;
/// How often a block that was refused a successor requests again, except for lack of room.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// How often a block to be retired checks whether it can be, and requests it again.
const RETIRE_AGAIN: Duration = Duration::from_millis(100);

/// A message of the controller to a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockMessage {
    /// The answer to `Effect::Grow`.
    Successor(Successor),
    /// The current content of the blocks before this one.
    Ahead {
        /// Items.
        items: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// The controller has received the last `Effect::Taken`.
    TakenReceived,
}

/// The status with which a block refuses an operation after a refusal of the controller. If the structure no
/// longer exists, the caller gets `WrongEpoch` and asks the controller, which answers why.
pub(super) fn refusal_at_block(status: Status) -> Status {
    if status == Status::NotFound { Status::WrongEpoch } else { status }
}

impl BlockSlot {
    /// When the block is to be looked at, for anything but its lanes.
    fn due(&mut self) -> Option<Time> {
        let again = self.journal.as_ref().and_then(|journal| journal.due());
        let own = [self.deadline(), self.retire_at, self.idle_at, self.exports_due()];
        let due = own.into_iter().chain([again]).flatten().min();
        self.exports.checkpoint.as_ref().map_or(due, |checkpoint| checkpoint.due(due))
    }
}

impl Shard {
    /// Passes a message of the controller to a block. A message for a freed block, or for one of a kind
    /// without `Growth`, is dropped.
    pub fn receive(&mut self, now: Time, at: BlockAt, message: BlockMessage) {
        let Some(index) = self.blocks.index(at.block) else { return };
        let grows = |slot: &mut BlockSlot| slot.owner.at == at && slot.structure.growth().is_some();
        if !self.blocks.get_mut(index).is_some_and(grows) {
            return;
        }
        if self.may_change(now, index).is_err() {
            return self.defer(index, message);
        }
        let message = match message {
            BlockMessage::Successor(successor) => {
                BlockMessage::Successor(self.growth_answered(now, index, successor))
            }
            message => message,
        };
        let slot = self.blocks.found_mut(index);
        let growth = slot.structure.growth().expect("looked up just now");
        match message {
            BlockMessage::Successor(successor) => {
                growth.successor(&mut slot.backing, now, successor);
            }
            BlockMessage::Ahead { items, bytes } => {
                growth.ahead(&mut slot.backing, now, items, bytes);
            }
            BlockMessage::TakenReceived => growth.taken_received(&mut slot.backing, now),
        }
        self.after(now, at);
    }

    /// Records the controller's answer to the request for a successor, and returns it with the status for
    /// the block's callers.
    fn growth_answered(&mut self, now: Time, index: usize, successor: Successor) -> Successor {
        let slot = self.blocks.found_mut(index);
        slot.told.granted(&successor);
        match successor {
            Successor::Denied(Status::OutOfMemory, why) => {
                let asked = slot.asked_at.take().unwrap_or(now);
                slot.ask_after = slot.full.denied(asked, now);
                Successor::Denied(Status::OutOfMemory, why)
            }
            Successor::Denied(status, why) => {
                slot.ask_after = now + ASK_AGAIN;
                if status == Status::Busy {
                    slot.full.ends(); // Memory is being freed.
                }
                Successor::Denied(refusal_at_block(status), why)
            }
            Successor::Ready(moved) => {
                if let Some(asked) = slot.asked_at.take() {
                    self.grow_delay.took(now.since(asked));
                }
                slot.idle_at = Some(now + SUCCESSOR_IDLE);
                slot.full.ends();
                Successor::Ready(moved)
            }
        }
    }

    /// Handles the passing of time: waits end, reservations expire, and unused blocks are retired.
    pub fn tick(&mut self, now: Time) {
        for index in std::mem::take(&mut self.unseen) {
            if let Some(slot) = self.blocks.get_mut(index as usize) {
                slot.unseen = false;
                self.look_at(now, index as usize);
            }
        }
        self.tier_work().tick_tiers(now);
        if self.extents.due().is_some_and(|due| due <= now) {
            self.on_extents(now, |work| work.tick_extents(now));
        }
        while let Some(Reverse((due, index))) = self.timers.peek().copied() {
            if due > now {
                return;
            }
            self.timers.pop();
            let Some(slot) = self.blocks.get_mut(index as usize) else { continue };
            let (timer, at) = (slot.timer, slot.owner.at);
            let listed = timer.is_none_or(|timer| timer >= due);
            assert!(listed, "INV-33: {at:?} has a timer at {timer:?}, which is not listed");
            if timer != Some(due) {
                continue;
            }
            slot.timer = None;
            let of_lanes = slot.lanes.due();
            if of_lanes.is_some_and(|due| due <= now) {
                slot.lanes.expire_idle(now);
            }
            // The end of lanes is no use of the block.
            if of_lanes == Some(due) && slot.due().is_none_or(|due| due > now) {
                self.arm(index as usize);
                continue;
            }
            let due = slot.deadline();
            let checkpoint = slot.exports.checkpoint.as_ref();
            let skips = checkpoint.is_some_and(|checkpoint| checkpoint.skips(due, now));
            if !skips && self.may_change(now, index as usize).is_err() {
                self.arm(index as usize);
                continue;
            }
            let slot = self.blocks.found_mut(index as usize);
            if !skips && let Some(waits) = slot.structure.waits() {
                waits.tick(&mut slot.backing, now);
            }
            let at = slot.owner.at;
            self.write_again(now, index as usize);
            self.sweep_exported(now, index as usize);
            self.after(now, at);
        }
    }

    /// When `tick` is due next. May be too early, never too late.
    pub fn deadline(&self) -> Option<Time> {
        if !self.unseen.is_empty() {
            return Some(Time::ZERO);
        }
        let timers = self.timers.peek().map(|Reverse((due, _))| *due);
        timers.into_iter().chain(self.extents.due()).chain(self.tiers.deadline()).min()
    }

    /// The work after every change of a block: its events, growth, timers, usage.
    pub(super) fn after(&mut self, now: Time, at: BlockAt) {
        let index = self.blocks.index(at.block).expect("an operation just ran on it");
        self.hear(now, index);
        self.look_at(now, index);
    }

    /// As above, for one operation of a batch. The consequences are inspected when the operations have
    /// changed enough together, or in the next `tick`, which is due at once.
    pub(super) fn after_one(&mut self, now: Time, index: usize) {
        self.hear(now, index);
        let enough = self.config.block_size / LOOK_FRACTION;
        let Some(slot) = self.blocks.get_mut(index) else { return };
        let (looked, bytes) = slot.looked;
        if looked != now || slot.structure.bytes_used().abs_diff(bytes) as usize >= enough {
            self.look_at(now, index);
        } else if !slot.unseen {
            slot.unseen = true;
            self.unseen.push(index as u32);
        }
    }

    /// Handles the events of a block.
    fn hear(&mut self, now: Time, index: usize) {
        let Some(slot) = self.blocks.get_mut(index) else { return };
        if !slot.touched {
            slot.touched = true;
            self.touched.push(index as u32);
        }
        while let Some(event) = self.blocks.get_mut(index).and_then(|s| s.structure.event()) {
            self.event(now, index, event);
        }
        self.write_journal(index);
    }

    /// Checks the consequences of a change of a block: growth, moves, retirement, its timer.
    fn look_at(&mut self, now: Time, index: usize) {
        let delay = self.grow_delay.expected();
        let Some(slot) = self.blocks.get_mut(index) else { return };
        slot.looked = (now, slot.structure.bytes_used());
        let owner = slot.owner;
        if let Some(growth) = slot.structure.growth() {
            growth.expect_bytes(slot.pace.bytes_in(now, delay));
            if now >= slot.ask_after && growth.wants_successor() {
                let (at, open) = (owner.at, slot.sealed.is_none());
                debug_assert!(open, "INV-20: {at:?} is sealed, and requests a successor");
                slot.asked_at = Some(now);
                self.out.effects.push(Effect::Grow { structure: owner.structure, at });
            }
        }
        if slot.idle_at.is_some_and(|due| due <= now) {
            let idle_from = slot.pace.last() + SUCCESSOR_IDLE;
            slot.idle_at = (idle_from > now).then_some(idle_from);
            if slot.idle_at.is_none()
                && let Some(successor) =
                    slot.structure.growth().and_then(|growth| growth.give_back())
            {
                let BlockOwner { at, structure, .. } = owner;
                slot.told.gave_back();
                self.out.effects.push(Effect::Return { structure, at, successor });
            }
        }
        if slot.retire_at.is_some_and(|due| due <= now) {
            if slot.lanes.is_quiet(now) {
                self.out.effects.push(Effect::Retire { structure: owner.structure, at: owner.at });
            }
            slot.retire_at = Some(now + RETIRE_AGAIN);
        }
        self.look_at_exports(now, index);
        self.tier_work().write_back_final(index);
        self.arm(index);
    }

    /// Sets a block's timer to its next deadline.
    pub(super) fn arm(&mut self, index: usize) {
        let Some(slot) = self.blocks.get_mut(index) else { return };
        let due = slot.due().into_iter().chain(slot.lanes.due()).min();
        if let Some(due) = due
            && slot.timer.is_none_or(|timer| due < timer)
        {
            slot.timer = Some(due);
            self.timers.push(Reverse((due, index as u32)));
        }
    }

    fn event(&mut self, now: Time, index: usize, event: Event) {
        let clock_ms = self.clock_ms(now);
        let slot = self.blocks.found_mut(index);
        let BlockOwner { at, structure, .. } = slot.owner;
        match event {
            Event::Answered(ticket, answer) => {
                self.extents.answered(ticket);
                let found = self.pending.get(ticket);
                let Some(pending) = found else {
                    let planted = Bug::QueueFeedsTheDead.active();
                    assert!(planted, "INV-16: {ticket:?} is answered, and is not pending");
                    return;
                };
                let waited = matches!(
                    answer.status,
                    Status::QueueEmpty | Status::QueueFull | Status::NotYet
                );
                let ended = pending.until_grant_ends && waited;
                let answer = slot.patiently(now, if ended { expired() } else { answer });
                self.finish(pending, answer);
            }
            Event::Changed(change) => {
                slot.watchers.changed(change, clock_ms, &mut self.out.notices);
            }
            Event::Sealed { length, bytes, successor } => {
                let last = successor.is_none();
                let before = slot.sealed.as_ref().map(|(length, _)| *length);
                let same = before.is_none_or(|before| before == length);
                assert!(same, "INV-23: {at:?} is sealed at {length}, and was at {before:?}");
                slot.told.sealed(length, bytes, last);
                if let Some(successor) = successor {
                    slot.watchers.hand_over(length, &successor, &mut self.out.notices);
                    slot.sealed = Some((length, successor.into()));
                }
                self.out.effects.push(Effect::Sealed { structure, at, length, bytes, last });
            }
            Event::Taken { items, bytes } => {
                slot.told.taken(items, bytes);
                self.out.effects.push(Effect::Taken { structure, at, items, bytes });
            }
            Event::Drained => {
                // Extents have no successor: their block is closed when it has been empty for long enough.
                let ends = slot.sealed.is_some() || slot.owner.kind == Kind::Extents;
                debug_assert!(ends, "INV-06: {at:?} is drained, and was not sealed");
                slot.retire_at = Some(now);
            }
            Event::Adopt(ticket, list) => {
                let waits = self.pending.get(ticket).is_some();
                debug_assert!(waits, "INV-39: {ticket:?} requests extents, and is not pending");
                let adopts = slot.structure.adopts().is_some();
                assert!(adopts, "INV-39: {at:?} requests extents, and cannot get them");
                self.on_extents(now, |work| work.adopt_extents(now, at, structure, ticket, list));
            }
            Event::DropExtents(owner, list) => {
                self.on_extents(now, |work| work.drop_extents(now, structure, owner, list));
            }
        }
    }
}
