//! Giving back the capacity that the content of a block does not need: after a split, after deletions, and
//! after content has moved to a block that was opened with its whole size.

use super::heap::Heap;
use super::partition::Partition;
use crate::{Capacity, CapacityRequest};
use honeycomb_block::Backing;
use honeycomb_types::Time;
use std::time::Duration;

/// Capacity is given back if it was not needed at the begin and at the end of this time, and for longer in a
/// block that gave some back and needed it again.
const KEPT: Duration = Duration::from_millis(50);
const KEPT_LONGEST: Duration = Duration::from_secs(5);
/// A larger capacity is kept for this time: the write that lacked it is delayed by less (`FULL_PATIENCE`).
const KEPT_FOR_WRITER: Duration = Duration::from_millis(300);
/// The capacity that content needs which did not fit is kept for this time: its move is repeated by then.
const KEPT_FOR_MOVE: Duration = Duration::from_secs(2);
/// A block that was opened with its whole size, which its owner requested in advance, keeps that until its
/// content is so many parts of itself less than it was.
const LIGHTER: usize = 8;

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
    /// The time for which capacity is kept that is not needed.
    pause: Duration,
    /// Whether capacity was given back since the last grant.
    has_given: bool,
    /// The most bytes that were taken by a block whose capacity was requested in advance.
    in_advance: Option<usize>,
}

impl Surplus {
    /// Of a block with this first capacity.
    pub fn of(capacity: &CapacityRequest) -> Surplus {
        let in_advance = (capacity.bytes() == capacity.most()).then_some(0);
        Surplus { pause: KEPT, in_advance, ..Surplus::default() }
    }

    pub fn due(&self) -> Option<Time> {
        self.due
    }

    fn wait(&mut self, taken: usize, now: Time) {
        self.due = Some((now + self.pause).max(self.kept_until));
        (self.is_due, self.taken) = (false, taken);
    }

    /// Whether the block keeps a capacity that was requested in advance.
    fn is_in_advance(&mut self, taken: usize) -> bool {
        let Some(most) = &mut self.in_advance else { return false };
        *most = taken.max(*most);
        if taken < *most - *most / LIGHTER {
            self.in_advance = None;
        }
        self.in_advance.is_some()
    }

    /// Checks whether there is capacity to give back, with so many bytes taken.
    #[inline]
    pub fn look(&mut self, capacity: &CapacityRequest, taken: usize, now: Time) {
        let waits = self.due.is_some() || self.is_due || self.is_in_advance(taken);
        if !waits && capacity.reduced(taken).is_some() {
            self.wait(taken, now);
        }
    }

    /// The content that a move has sent did not fit: the capacity that it needs is kept for the next attempt.
    pub fn keep_for_move(&mut self, now: Time) {
        self.kept_until = now + KEPT_FOR_MOVE;
    }

    /// Content has left the block or has arrived in it, for good.
    pub fn moved(&mut self) {
        (self.pause, self.has_given, self.in_advance) = (KEPT, false, None);
    }

    /// The capacity has grown.
    fn grown(&mut self, now: Time) {
        self.kept_until = self.kept_until.max(now + KEPT_FOR_WRITER);
        if std::mem::take(&mut self.has_given) {
            self.pause = (2 * self.pause).min(KEPT_LONGEST);
        }
    }

    /// The block's memory was freed: its content is in a lower tier.
    pub fn demoted(&mut self) {
        (self.due, self.is_due) = (None, false);
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
        let grows = taken.saturating_sub(self.surplus.taken) > free / 2;
        if self.shrink.due().is_some() || grows || now < self.surplus.kept_until {
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
        self.surplus.has_given = true;
        Some(kept)
    }

    /// The controller's answer to a request for another capacity.
    pub fn set_capacity(&mut self, now: Time, answer: Capacity) {
        if self.capacity.answered(answer) {
            self.arena.enlarge(self.size());
            self.surplus.grown(now);
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
