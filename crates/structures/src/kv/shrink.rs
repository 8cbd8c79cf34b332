//! Returning memory during the life of a block: regions that have emptied become smaller, and the memory of
//! holes is returned to the operating system.

use super::arena::Arena;
use super::heap::Heap;
use honeycomb_block::Backing;
use honeycomb_types::Time;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

/// Smaller regions are left unchanged.
const SHRINK_FROM: usize = 8 * 1024;
/// Memory is returned only when this part of a block has become free.
const SLACK_FRACTION: usize = 16;
/// Free memory of regions is returned after this time, because it is often reused soon. The memory of dropped
/// extents, which is reused less often, is returned after the same time as an empty block of extents.
const KEPT_FREE: Duration = Duration::from_millis(50);
/// Holes smaller than this part of a block are not returned, because each costs a system call. A region is
/// about an 85th.
const HOLE_FRACTION: usize = 128;
/// The bounds of that part: holes of 8 KiB are returned in small blocks, and holes of 128 KiB in large ones.
const HOLE_MIN: RangeInclusive<usize> = 8 * 1024..=128 * 1024;
/// Bytes that are returned in one step, and the pause between two steps, in which other operations run.
const STEP: usize = 8 << 20;
const PAUSE: Duration = Duration::from_millis(1);

/// The state of returning memory.
pub(crate) struct Shrink {
    /// The time for which free memory is kept.
    kept_free: Duration,
    /// When to begin, or to continue.
    due: Option<Time>,
    /// The arena's total of allocated bytes at the last inspection.
    allocated: u64,
    /// The offset from which holes are still to be returned; `None` before the first step.
    from: Option<usize>,
}

impl Default for Shrink {
    fn default() -> Shrink {
        Shrink::after(KEPT_FREE)
    }
}

impl Shrink {
    /// The state for a block that keeps free memory for this time.
    pub fn after(kept_free: Duration) -> Shrink {
        Shrink { kept_free, due: None, allocated: 0, from: None }
    }

    /// The same, with nothing to return.
    pub fn anew(&self) -> Shrink {
        Shrink::after(self.kept_free)
    }

    pub fn due(&self) -> Option<Time> {
        self.due
    }

    /// Checks whether there is memory to return.
    pub fn look(&mut self, arena: &Arena, size: usize, now: Time) {
        if self.due.is_none() && arena.slack() > size / SLACK_FRACTION {
            self.wait(arena, now);
        }
    }

    fn wait(&mut self, arena: &Arena, now: Time) {
        (self.due, self.allocated) = (Some(now + self.kept_free), arena.allocated());
    }

    /// Returns some of it, if due.
    pub fn give_back(&mut self, arena: &mut Arena, size: usize, block: &mut Backing, now: Time) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        if self.from.is_none() && arena.slack() <= size / SLACK_FRACTION {
            // The free memory was used again.
            self.due = None;
            return;
        }
        if self.from.is_none() && arena.allocated() - self.allocated >= arena.free_bytes() as u64 {
            // At this rate all free memory will soon be reused, so that returning it would be wasted work.
            return self.wait(arena, now);
        }
        let from = *self.from.get_or_insert(0);
        if from == 0 {
            arena.forget_slack();
        }
        let least = (size / HOLE_FRACTION).clamp(*HOLE_MIN.start(), *HOLE_MIN.end());
        let mut holes: Vec<Range<usize>> = arena.holes(least).filter(|h| h.end > from).collect();
        holes.sort_unstable_by_key(|hole| hole.start);
        let mut given = 0;
        for hole in holes {
            let part = hole.start.max(from)..hole.end.min(hole.start.max(from) + STEP - given);
            // A pin that was dropped since may have read a part of it.
            if !block.is_pinned(&part) {
                block.discard(part.clone());
            }
            given += part.len();
            if given >= STEP {
                self.from = Some(part.end);
                self.due = Some(now + PAUSE);
                return;
            }
        }
        *self = self.anew();
    }
}

impl Heap {
    /// Reduces the room of a region that is mostly empty.
    pub(super) fn shrink_region(&mut self, block: &mut Backing, id: u32) {
        let region = self.regions.get(id);
        let wanted = (2 * region.packed()).next_multiple_of(8).max(SHRINK_FROM / 4);
        if region.size < SHRINK_FROM || region.packed() > region.size / 4 || wanted >= region.size {
            return;
        }
        let extent = region.extent();
        if !block.is_pinned(&extent) {
            self.relay(block, id, extent.start..extent.start + wanted, 0, false);
            self.arena.resize(extent.start, wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::arena::Owner;
    use super::*;
    use honeycomb_block::Reclaimer;

    /// If large values are written again and again, each write would fault in the memory that was just
    /// returned.
    #[test]
    fn what_is_used_again_all_the_time_is_given_back_when_that_ends() {
        const SIZE: usize = 1 << 20;
        let mut block = Backing::map(SIZE, &Reclaimer::inline()).expect("1 MiB can be mapped");
        let (mut arena, mut shrink) = (Arena::new(SIZE), Shrink::default());
        let churn = |arena: &mut Arena, block: &mut Backing| {
            let at = arena
                .alloc(SIZE / 2, Owner::Large(0))
                .expect("an empty arena has room for half of it");
            block.slice_mut(at..at + SIZE / 2).fill(7);
            arena.free(at);
        };
        churn(&mut arena, &mut block);
        let mut now = Time(1);
        shrink.look(&arena, SIZE, now);
        for _ in 0..3 {
            churn(&mut arena, &mut block);
            churn(&mut arena, &mut block);
            now = shrink.due().expect("half of it is free");
            shrink.give_back(&mut arena, SIZE, &mut block, now);
            assert!(block.slice(0..SIZE / 2).iter().all(|byte| *byte == 7));
        }
        now = shrink.due().expect("the arena is inspected again");
        shrink.give_back(&mut arena, SIZE, &mut block, now);
        assert!(block.slice(0..SIZE / 2).iter().all(|byte| *byte == 0));
        assert_eq!((shrink.due(), arena.slack()), (None, 0));
    }
}
