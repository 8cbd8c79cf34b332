//! The report of a block to a controller after a reconnection.

use crate::shard::BlockOwner;
use honeycomb_structures::Successor;
use honeycomb_types::{BlockAt, Bug};
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::messages::HeldBlock;

/// The state exchanged between a block and a controller that the controller may have lost, or never received.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReportedState {
    /// Length, bytes, and whether the structure was sealed with the block.
    sealed: Option<(u64, u64, bool)>,
    /// Items and bytes that were taken.
    taken: (u64, u64),
    /// The successor that it was granted: block and epoch.
    next: Option<(u64, u64)>,
}

impl ReportedState {
    pub(crate) fn granted(&mut self, successor: &Successor) {
        if let Successor::Ready(moved) = successor
            && let Ok(MovedArgs { entry, .. }) = MovedArgs::decode(moved)
        {
            self.next = Some((entry.block, entry.epoch));
        }
    }

    pub(crate) fn sealed(&mut self, length: u64, bytes: u64, last: bool) {
        let (before, now) = (self.sealed, (length, bytes, last));
        let same = before.is_none_or(|before| before == now);
        debug_assert!(same, "INV-23: {before:?} was reported as the seal, and then {now:?}");
        self.sealed = Some(now);
    }

    /// Forgets the successor, which was returned: the next owner of its block is not this block's successor.
    pub(crate) fn gave_back(&mut self) {
        debug_assert!(self.next.is_some(), "INV-20: a successor is returned that was not granted");
        if !Bug::GivenBackStaysNamed.active() {
            self.next = None;
        }
    }

    pub(crate) fn taken(&mut self, items: u64, bytes: u64) {
        let before = self.taken;
        let grows = before.0 <= items && before.1 <= bytes;
        assert!(grows, "INV-22: {before:?} were taken, and then {:?}", (items, bytes));
        self.taken = (items, bytes);
    }

    pub(crate) fn of(&self, owner: &BlockOwner, bytes_used: u64) -> HeldBlock {
        let (length, bytes, last) = self.sealed.unwrap_or_default();
        let (next, next_epoch) = self.next.unwrap_or_default();
        let BlockAt { block, epoch } = owner.at;
        HeldBlock {
            block: block.0,
            epoch: epoch.0,
            structure: owner.structure.0,
            generation: owner.generation.0,
            bytes_used,
            state: if self.sealed.is_none() { 0 } else { 1 + u8::from(last) },
            length,
            bytes,
            taken_items: self.taken.0,
            taken_bytes: self.taken.1,
            next,
            next_epoch,
            // The shard fills in the tier.
            tier: 0,
            to: 0,
            capacity: owner.capacity,
        }
    }
}
