//! Reduction of a block's capacity to the needs of the content: after a split, after deletions, and after
//! content has moved to a block that was opened with its whole size.

use super::heap::Heap;
use super::partition::Partition;
use crate::{Capacity, CapacityRequest};
use honeycomb_block::Backing;
use honeycomb_types::Time;
use std::time::Duration;

/// The time for which a block keeps unused capacity at first ...
const KEPT: Duration = Duration::from_millis(50);
/// ... and at most, in a block that often needs the capacity again. The time doubles with each such growth.
const KEPT_LONGEST: Duration = Duration::from_secs(5);
/// The time for which a granted capacity is kept. The server delays a writer that lacked room by less.
const KEPT_FOR_WRITER: Duration = Duration::from_millis(300);
/// The time for which a block keeps the capacity for content of a move that did not fit. The source repeats
/// the move earlier.
const KEPT_FOR_MOVE: Duration = Duration::from_secs(2);
/// A structure's owner may request whole blocks in advance. Such a block keeps its capacity until the content
/// has shrunk by this part of its largest size.
const LIGHTER: usize = 8;

/// The progress of a reduction.
#[derive(Clone, Copy, Debug, Default)]
enum Reduction {
    /// The block has no unused capacity, as far as is known.
    #[default]
    Idle,
    /// The block keeps unused capacity until then. `taken` bytes were in use at the begin.
    Waiting { until: Time, taken: usize },
    /// The time is over: the block reduces its capacity as soon as no move or export prevents that.
    Due { taken: usize },
}

/// The unused capacity of a block.
#[derive(Debug, Default)]
pub(super) struct Surplus {
    reduction: Reduction,
    /// The end of the time for which a larger capacity is kept.
    kept_until: Time,
    /// The time for which unused capacity is kept.
    pause: Duration,
    /// Whether the capacity was reduced since the last grant.
    has_reduced: bool,
    /// The largest content so far, in bytes, of a block whose capacity was requested in advance.
    in_advance: Option<usize>,
}

impl Surplus {
    /// Of a block with this first capacity.
    pub fn of(capacity: &CapacityRequest) -> Surplus {
        let in_advance = (capacity.bytes() == capacity.most()).then_some(0);
        Surplus { pause: KEPT, in_advance, ..Surplus::default() }
    }

    /// When the block has kept unused capacity for long enough.
    pub fn due(&self) -> Option<Time> {
        match self.reduction {
            Reduction::Waiting { until, .. } => Some(until),
            Reduction::Idle | Reduction::Due { .. } => None,
        }
    }

    fn keep(&mut self, taken: usize, now: Time) {
        let until = (now + self.pause).max(self.kept_until);
        self.reduction = Reduction::Waiting { until, taken };
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

    /// Inspects whether a block with so many bytes taken has unused capacity.
    #[inline]
    pub fn inspect(&mut self, capacity: &CapacityRequest, taken: usize, now: Time) {
        let is_idle = matches!(self.reduction, Reduction::Idle);
        if is_idle && !self.is_in_advance(taken) && capacity.reduced(taken).is_some() {
            self.keep(taken, now);
        }
    }

    /// Keeps the capacity for content of a move that did not fit.
    pub fn keep_for_move(&mut self, now: Time) {
        self.kept_until = now + KEPT_FOR_MOVE;
    }

    /// Content has moved from the block or to the block.
    pub fn moved(&mut self) {
        (self.pause, self.has_reduced, self.in_advance) = (KEPT, false, None);
    }

    /// The capacity has grown.
    fn grown(&mut self, now: Time) {
        self.kept_until = self.kept_until.max(now + KEPT_FOR_WRITER);
        if std::mem::take(&mut self.has_reduced) {
            self.pause = (2 * self.pause).min(KEPT_LONGEST);
        }
    }

    /// The block's memory was freed, because the content is in a lower tier.
    pub fn demoted(&mut self) {
        self.reduction = Reduction::Idle;
    }

    /// Handles the passing of time.
    pub fn tick(&mut self, now: Time) {
        if let Reduction::Waiting { until, taken } = self.reduction
            && until <= now
        {
            self.reduction = Reduction::Due { taken };
        }
    }
}

impl Heap {
    /// Reduces the capacity if the reduction is due and the block still does not need the capacity. Returns
    /// the new capacity.
    fn reduce_capacity(&mut self, block: &mut Backing, now: Time) -> Option<usize> {
        let Reduction::Due { taken: before } = self.surplus.reduction else { return None };
        self.surplus.reduction = Reduction::Idle;
        let (taken, free) = (self.taken(), self.free());
        let kept = self.capacity.reduced(self.arena.end().max(taken))?;
        // While holes are being closed, or the content grows fast, the block keeps the capacity.
        let grows = taken.saturating_sub(before) > free / 2;
        let stays = self.shrink.due().is_some() || grows || now < self.surplus.kept_until;
        if stays || !block.reduce(kept) {
            self.surplus.keep(taken, now);
            return None;
        }
        self.capacity.give(kept);
        self.arena.reduce(kept);
        self.surplus.has_reduced = true;
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
        heap.surplus.inspect(&heap.capacity, heap.taken(), now);
        let is_due = matches!(heap.surplus.reduction, Reduction::Due { .. });
        if !is_due || self.is_changing_place() || self.store.deltas.is_some() {
            return None;
        }
        self.store.table.heap.reduce_capacity(block, now)
    }
}
