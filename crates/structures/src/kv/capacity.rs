//! Giving back the capacity that the content of a block does not need: after a split, after deletions, and
//! after content has moved to a block that was opened with its whole size.

use super::heap::Heap;
use super::partition::Partition;
use crate::{Capacity, CapacityRequest};
use honeycomb_block::Backing;
use honeycomb_types::Time;
use std::time::Duration;

/// Capacity is given back if it was not needed for this time.
const KEPT: Duration = Duration::from_millis(50);
/// The capacity that content needs which did not fit is kept for this time: its move is repeated by then.
const KEPT_FOR_MOVE: Duration = Duration::from_secs(1);

/// When to give capacity back.
#[derive(Debug, Default)]
pub(super) struct Surplus {
    due: Option<Time>,
    /// Whether that has come: the capacity is given back as soon as the block may.
    is_due: bool,
    /// Bytes taken when it was set.
    taken: usize,
    /// The capacity is kept until then.
    kept_until: Time,
}

impl Surplus {
    pub fn due(&self) -> Option<Time> {
        self.due
    }

    fn wait(&mut self, taken: usize, now: Time) {
        let due = Some((now + KEPT).max(self.kept_until));
        *self = Surplus { due, is_due: false, taken, ..*self };
    }

    /// Checks whether there is capacity to give back, with so many bytes taken.
    #[inline]
    pub fn look(&mut self, capacity: &CapacityRequest, taken: usize, now: Time) {
        let waits = self.due.is_some() || self.is_due;
        if !waits && capacity.reduced(taken).is_some() {
            self.wait(taken, now);
        }
    }

    /// The content that a move has sent did not fit: the capacity that it needs is kept for the next attempt.
    pub fn keep_for_move(&mut self, now: Time) {
        self.kept_until = now + KEPT_FOR_MOVE;
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        if self.due.take_if(|due| *due <= now).is_some() {
            self.is_due = true;
        }
    }
}

impl Heap {
    /// Reduces the capacity, if that is due and the block still does not need it. Returns the new one.
    fn reduce_capacity(&mut self, block: &mut Backing, now: Time) -> Option<usize> {
        self.surplus.is_due = false;
        let (taken, free) = (self.taken(), self.free());
        if self.shrink.due().is_some() || taken.saturating_sub(self.surplus.taken) > free / 2 {
            // Holes are being closed, or the block will need the capacity soon.
            self.surplus.wait(taken, now);
            return None;
        }
        let kept = self.capacity.reduced(self.arena.end().max(taken))?;
        if !block.reduce(kept) {
            self.surplus.wait(taken, now);
            return None;
        }
        self.capacity.give(kept);
        self.arena.reduce(kept);
        Some(kept)
    }

    /// The controller's answer to a request for another capacity.
    pub fn set_capacity(&mut self, answer: Capacity) {
        if self.capacity.answered(answer) {
            self.arena.enlarge(self.size());
        }
    }
}

impl Partition {
    /// See `Enlarge::give_capacity`.
    pub fn give_capacity(&mut self, block: &mut Backing, now: Time) -> Option<usize> {
        let heap = &mut self.store.table.heap;
        heap.surplus.look(&heap.capacity, heap.taken(), now);
        if !heap.surplus.is_due || self.is_changing_place() || self.store.deltas.is_some() {
            return None;
        }
        self.store.table.heap.reduce_capacity(block, now)
    }
}
