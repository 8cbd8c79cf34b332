//! The consequences of a change of a block, of a message to it, and of the passing of time.

use super::agenda::Agenda;
use super::lifecycle::BlockSeal;
use super::outbox::Outbox;
use super::{BlockOwner, BlockSlot, Effect, Shard};
use crate::refusals::expired;
use honeycomb_structures::{Capacity, Event, Successor};
use honeycomb_types::{BlockAt, Bug, Time};
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::{Malformed, Status};

/// Operations of one batch are inspected together until they have changed 1 / this of a block.
const LOOK_FRACTION: usize = 256;

/// Blocks whose timers are handled in one tick: each may move 2 MiB of its content.
const TIMERS_AT_ONCE: usize = 16;

/// A message of the controller to a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockMessage {
    /// The answer to `Effect::Grow`.
    Successor(Successor),
    /// The answer to `Effect::Enlarge`.
    Capacity(Capacity),
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
    /// When the block is to be inspected, for anything but its lanes.
    fn due(&mut self) -> Option<Time> {
        let again = self.journal.as_ref().and_then(|journal| journal.due());
        let own = [self.deadline(), self.stage.due(), self.successor.due(), self.exports_due()];
        let due = own.into_iter().chain([again, self.capacity_due()]).flatten().min();
        self.exports.checkpoint_due(due)
    }

    /// Sets the block's timer to its next deadline.
    pub(super) fn arm(&mut self, index: usize, agenda: &mut Agenda) {
        if let Some(due) = self.due().into_iter().chain(self.lanes.due()).min() {
            agenda.arm(index, &mut self.attention, due);
        }
    }

    /// The block is sealed, or repeats the report of its seal.
    fn sealed(&mut self, length: u64, bytes: u64, successor: Option<MovedArgs>, out: &mut Outbox) {
        let (BlockOwner { at, structure, .. }, last) = (self.owner, successor.is_none());
        self.told.sealed(length, bytes, last);
        if let Some(successor) = &successor {
            self.watchers.hand_over(length, successor, &mut out.notices);
        }
        self.stage.seals(at, BlockSeal { length, successor: successor.map(Box::new) });
        out.effects.push(Effect::Sealed { structure, at, length, bytes, last });
    }

    /// The block's kind gave bytes for a successor that are none: it is defective, or has restored the state
    /// of another block unchecked. The blocks after this one are unreachable, so that the block is reported
    /// as lost.
    fn names_no_successor(&self, error: Malformed, out: &mut Outbox) {
        let (BlockOwner { at, structure, .. }, kind) = (self.owner, &self.kind.spec().name);
        let why = format!(
            "block {} names an invalid successor: {error}; this is a defect of the kind '{kind}'",
            at.block
        );
        out.effects.push(Effect::BlockFailed { structure, at, why });
    }

    /// Records the controller's answer to the request for a successor, and returns it with the status for
    /// the block's callers.
    fn successor_answered(&mut self, now: Time, answer: Successor) -> Successor {
        self.told.granted(&answer);
        match answer {
            Successor::Denied(status, why) => {
                self.successor.denied(now, status);
                self.successor.quota.answered(now, status);
                Successor::Denied(refusal_at_block(status), why)
            }
            Successor::Ready(moved) => {
                self.successor.quota.answered(now, Status::Ok);
                Successor::Ready(moved)
            }
        }
    }
}

impl Shard {
    /// Passes a message of the controller to a block, in the order of arrival. A message for a freed block,
    /// or for one of a kind without the capability that takes it, is dropped. A block that must not change
    /// gets it later.
    pub fn receive(&mut self, now: Time, at: BlockAt, message: BlockMessage) {
        let Some(index) = self.blocks.index(at.block) else { return };
        let Some(slot) = self.blocks.exactly(index, at) else { return };
        let takes = match message {
            BlockMessage::Capacity(_) => slot.structure.enlarge().is_some(),
            _ => slot.structure.growth().is_some(),
        };
        if let BlockMessage::Capacity(Capacity::Granted(bytes)) = message
            && takes
        {
            self.owners().enlarge(index, bytes as u64);
        }
        let slot = self.blocks.found_mut(index);
        if takes {
            slot.inbox.push_back(message);
            self.deliver(now, index);
        }
    }

    /// Delivers the messages to a block, as long as it may change.
    fn deliver(&mut self, now: Time, index: usize) {
        loop {
            let waits = |slot: &BlockSlot| !slot.inbox.is_empty();
            if !self.blocks.get(index).is_some_and(waits) || self.may_change(now, index).is_err() {
                return;
            }
            let slot = self.blocks.found_mut(index);
            let Some(message) = slot.inbox.pop_front() else { return };
            let at = slot.owner.at;
            match message {
                BlockMessage::Successor(answer) => {
                    let answer = slot.successor_answered(now, answer);
                    if matches!(answer, Successor::Ready(_))
                        && let Some(took) = slot.successor.granted(now)
                    {
                        self.grow_delay.took(took);
                    }
                    let (growth, backing) = slot.growth();
                    growth.successor(backing, now, answer);
                }
                BlockMessage::Capacity(answer) => {
                    slot.enlarge_memory();
                    slot.capacity_answered(now, answer);
                }
                BlockMessage::Ahead { items, bytes } => {
                    let (growth, backing) = slot.growth();
                    growth.ahead(backing, now, items, bytes);
                }
                BlockMessage::TakenReceived => {
                    let (growth, backing) = slot.growth();
                    growth.taken_received(backing, now);
                }
            }
            self.after(now, at);
        }
    }

    /// Processes the consequences for the blocks that a part of the shard has changed.
    pub(super) fn consequences(&mut self, now: Time) {
        while let Some(at) = self.agenda.take_changed() {
            if let Some(index) = self.blocks.index(at.block)
                && self.blocks.at(at).is_some()
            {
                self.deliver(now, index);
                self.after(now, at);
            }
        }
    }

    /// Handles the passing of time: waits end, reservations expire, and unused blocks are retired.
    pub fn tick(&mut self, now: Time) {
        self.consequences(now);
        for index in self.agenda.take_uninspected() {
            if let Some(slot) = self.blocks.get_mut(index as usize) {
                slot.attention.is_inspected();
                self.inspect(now, index as usize);
            }
        }
        self.tiers().tick_tiers(now);
        if self.extents.due().is_some_and(|due| due <= now) {
            self.on_extents(now, |work| work.tick_extents());
        }
        // The others are due at once, after the requests that have arrived meanwhile.
        for _ in 0..TIMERS_AT_ONCE {
            let Some((due, index)) = self.agenda.take_timer(now) else { break };
            let Some(slot) = self.blocks.get_mut(index) else { continue };
            if slot.attention.ends_timer(slot.owner.at, due) {
                self.tick_block(now, index, due);
            }
        }
    }

    /// The timer of a block is due.
    fn tick_block(&mut self, now: Time, index: usize, timer: Time) {
        let slot = self.blocks.found_mut(index);
        let of_lanes = slot.lanes.due();
        if of_lanes.is_some_and(|due| due <= now) {
            slot.lanes.expire_idle(now);
        }
        // The end of lanes is no use of the block.
        if of_lanes == Some(timer) && slot.due().is_none_or(|due| due > now) {
            return slot.arm(index, &mut self.agenda);
        }
        let due = slot.deadline();
        let skips = slot.exports.skips_tick(due, now);
        if !skips && self.may_change(now, index).is_err() {
            return self.blocks.found_mut(index).arm(index, &mut self.agenda);
        }
        let slot = self.blocks.found_mut(index);
        if !skips && let Some(waits) = slot.structure.waits() {
            waits.tick(&mut slot.backing, now);
        }
        let at = slot.owner.at;
        slot.write_again(now, &mut self.out);
        self.on_exports(now, |work| work.sweep(index));
        self.after(now, at);
    }

    /// When `tick` is due next. May be too early, never too late.
    pub fn deadline(&self) -> Option<Time> {
        let parts = [self.agenda.due(), self.extents.due(), self.tiers.deadline()];
        parts.into_iter().flatten().min()
    }

    /// The work after every change of a block: its events, growth, timers, usage.
    pub(super) fn after(&mut self, now: Time, at: BlockAt) {
        let index = self.blocks.index(at.block).expect("an operation just ran on it");
        self.take_events(now, index);
        self.inspect(now, index);
    }

    /// As above, for one operation of a batch. The consequences are inspected when the operations have
    /// changed enough together, or in the next `tick`, which is due at once.
    pub(super) fn after_one(&mut self, now: Time, index: usize) {
        self.take_events(now, index);
        let Some(slot) = self.blocks.get_mut(index) else { return };
        let enough = slot.owner.capacity as usize / LOOK_FRACTION;
        if slot.attention.is_recent(now, slot.structure.bytes_used(), enough) {
            self.agenda.inspect_later(index, &mut slot.attention);
        } else {
            self.inspect(now, index);
        }
    }

    /// Handles the events of a block.
    fn take_events(&mut self, now: Time, index: usize) {
        while let Some(slot) = self.blocks.get_mut(index) {
            self.agenda.touch(index, &mut slot.attention);
            let Some(event) = slot.structure.event() else {
                return slot.write_journal(&mut self.out);
            };
            self.event(now, index, event);
        }
    }

    /// Checks the consequences of a change of a block: growth, moves, retirement, its timer.
    fn inspect(&mut self, now: Time, index: usize) {
        let delay = self.grow_delay.expected();
        let Some(slot) = self.blocks.get_mut(index) else { return };
        slot.attention.inspect(now, slot.structure.bytes_used());
        let BlockOwner { at, structure, .. } = slot.owner;
        let expected = slot.pace.bytes_in(now, delay);
        self.owners().adjust_capacity(now, index, expected);
        let (slot, out) = (self.blocks.found_mut(index), &mut self.out);
        if let Some(growth) = slot.structure.growth() {
            growth.expect_bytes(expected);
            if slot.successor.may_request(now) && growth.wants_successor() {
                let open = slot.stage.seal().is_none();
                debug_assert!(open, "INV-20: {at:?} is sealed, and requests a successor");
                slot.successor.requested(now);
                out.effects.push(Effect::Grow { structure, at });
            }
        }
        if slot.successor.is_idle(now, &slot.pace)
            && let Some(successor) = slot.structure.growth().and_then(|growth| growth.give_back())
        {
            match MovedArgs::decode(&successor) {
                Ok(_) => {
                    slot.told.gave_back();
                    out.effects.push(Effect::Return { structure, at, successor });
                }
                Err(e) => slot.names_no_successor(e, out),
            }
        }
        if slot.stage.takes_request(now) && slot.lanes.is_quiet(now) {
            out.effects.push(Effect::Retire { structure, at });
        }
        self.on_exports(now, |work| work.inspect(index));
        self.tiers().write_back_final(index);
        if let Some(slot) = self.blocks.get_mut(index) {
            slot.arm(index, &mut self.agenda);
        }
    }

    fn event(&mut self, now: Time, index: usize, event: Event) {
        let clock_ms = self.clock_ms(now);
        let slot = self.blocks.found_mut(index);
        let BlockOwner { at, structure, kind, .. } = slot.owner;
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
                self.requests().finish(pending, answer);
            }
            Event::Changed(change) => {
                slot.watchers.changed(change, clock_ms, &mut self.out.notices);
            }
            Event::Sealed { length, bytes, successor } => {
                match successor.as_deref().map(MovedArgs::decode).transpose() {
                    Ok(successor) => slot.sealed(length, bytes, successor, &mut self.out),
                    Err(e) => slot.names_no_successor(e, &mut self.out),
                }
            }
            Event::Taken { items, bytes } => {
                slot.told.taken(items, bytes);
                self.out.effects.push(Effect::Taken { structure, at, items, bytes });
            }
            Event::Drained => slot.stage.drains(at, kind, now),
            Event::Adopt(ticket, list) => {
                let waits = self.pending.get(ticket).is_some();
                debug_assert!(waits, "INV-39: {ticket:?} requests extents, and is not pending");
                let adopts = slot.structure.adopts().is_some();
                assert!(adopts, "INV-39: {at:?} requests extents, and cannot get them");
                self.on_extents(now, |work| work.adopt_extents(at, structure, ticket, list));
            }
            Event::DropExtents(owner, list) => {
                self.on_extents(now, |work| work.drop_extents(structure, owner, list));
            }
        }
    }
}
