//! Returning memory during the life of a block: regions that have emptied become smaller, and the memory of
//! holes is returned to the operating system.

use super::arena::Arena;
use super::heap::Heap;
use super::pack::Squeeze;
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
/// Holes between extents that are at most this part of a block are kept while so much is allocated that they
/// will be used again within this many times the time for which free memory is kept.
const HOLES_FRACTION: usize = 8;
const REUSED_WITHIN: usize = 8;
/// Extents are moved together if the free memory between and behind them is at least this part of theirs.
const PACK_FRACTION: usize = 2;
/// Bytes that are moved in one step.
const PACK_STEP: usize = 2 << 20;
/// Bytes that are returned in one step, and the pause between two steps, in which other operations run.
const STEP: usize = 8 << 20;
const PAUSE: Duration = Duration::from_millis(1);

/// The state of returning memory.
pub(crate) struct Shrink {
    /// The time for which free memory is kept.
    kept_free: Duration,
    /// When to begin, or to continue.
    due: Option<Time>,
    /// The arena's total of allocated bytes at the last inspection, without those of moved extents.
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

    /// Whether memory is to be returned now.
    pub fn is_due(&mut self, arena: &Arena, size: usize, now: Time) -> bool {
        if self.due.is_none_or(|due| due > now) {
            return false;
        }
        if self.from.is_some() {
            return true;
        }
        if arena.slack() <= size / SLACK_FRACTION {
            // The free memory was used again.
            self.due = None;
            return false;
        }
        if arena.allocated() - self.allocated >= arena.free_bytes() as u64 {
            // At this rate all free memory will soon be reused, so that returning it would be wasted work.
            self.wait(arena, now);
            return false;
        }
        true
    }

    /// Continues a moment later, after other operations. Moving extents allocated this many bytes.
    fn pause(&mut self, moved: u64, now: Time) {
        self.due = Some(now + PAUSE);
        self.allocated += moved;
    }

    /// Returns some memory, which is due.
    pub fn give_back(&mut self, arena: &mut Arena, size: usize, block: &mut Backing, now: Time) {
        let from = *self.from.get_or_insert(0);
        if from == 0 {
            arena.forget_slack();
        }
        let (end, least) = (arena.end(), least_hole(size));
        if end + least <= block.written() && shed_some(block, end, Backing::shed) {
            return self.pause(0, now);
        }
        let among = end - (size - arena.free_bytes());
        let grown = arena.allocated() - self.allocated;
        if among <= size / HOLES_FRACTION && grown > 0 && grown >= (among / REUSED_WITHIN) as u64 {
            // Growing regions will use these holes, whose pages would be faulted in one by one.
            return self.wait(arena, now);
        }
        let mut holes: Vec<Range<usize>> =
            arena.holes(least).filter(|hole| hole.end > from && hole.start < end).collect();
        holes.sort_unstable_by_key(|hole| hole.start);
        let mut given = 0;
        for hole in holes {
            let part = hole.start.max(from)..hole.end.min(hole.start.max(from) + STEP - given);
            if !block.is_pinned(&part) {
                block.discard(part.clone());
            }
            given += part.len();
            if given >= STEP {
                self.from = Some(part.end);
                return self.pause(0, now);
            }
        }
        *self = self.anew();
    }
}

/// Returns the memory behind `end`, some of it at a time, unless a pin reads a part of that. Returns whether
/// more is left.
pub(super) fn shed_some(
    block: &mut Backing,
    end: usize,
    shed: impl FnOnce(&mut Backing, usize),
) -> bool {
    let part = end.max(block.written().saturating_sub(STEP));
    // The memory may reach beyond the heap, while an answer about the capacity is under way.
    if block.is_pinned(&(part..block.capacity())) {
        return false;
    }
    shed(block, part);
    end < part
}

/// The least hole of a block whose memory is returned.
fn least_hole(size: usize) -> usize {
    (size / HOLE_FRACTION).clamp(*HOLE_MIN.start(), *HOLE_MIN.end())
}

impl Heap {
    /// Returns memory to the operating system, if due. If much of the block is free, its extents are moved
    /// together first: whole chunks at its end can be used by other blocks.
    pub fn return_memory(&mut self, block: &mut Backing, now: Time) {
        self.surplus.tick(now);
        if !self.shrink.is_due(&self.arena, self.size(), now) {
            return self.pack_at_rest(block, now);
        }
        let used = self.size() - self.arena.free_bytes();
        let free = block.written().max(self.arena.end()) - used;
        let before = self.arena.allocated();
        let least = least_hole(self.size());
        if free >= used / PACK_FRACTION && self.pack_some(block, least, PACK_STEP, Squeeze::Gently)
        {
            return self.shrink.pause(self.arena.allocated() - before, now);
        }
        let size = self.size();
        self.shrink.give_back(&mut self.arena, size, block, now);
    }

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
    use super::super::table::{Table, Value};
    use super::*;
    use honeycomb_block::Reclaimer;
    use honeycomb_wire::key_hash;

    /// As after a split: the regions of half of the hashes have left. The others are moved together around
    /// a pinned one, and the memory behind them is returned.
    #[test]
    fn extents_of_a_block_that_lost_half_are_moved_together() {
        const SIZE: usize = 16 << 20;
        for pinned in [false, true] {
            let mut block = Backing::map(SIZE, &Reclaimer::inline()).expect("16 MiB can be mapped");
            let mut table = Table::new(crate::CapacityRequest::new(SIZE, SIZE), 0);
            let keys: Vec<String> = (0..60_000).map(|i| format!("key:{i}")).collect();
            let value = |i: usize| [i as u8; 150];
            for (i, key) in keys.iter().enumerate() {
                let (hash, value) = (key_hash(key.as_bytes()), value(i));
                let stored =
                    table.store(&mut block, hash, key.as_bytes(), None, Value::Inline(&value));
                stored.expect("the table has room");
            }
            let stays = |key: &str| key_hash(key.as_bytes()) < u64::MAX / 2;
            for key in keys.iter().filter(|key| !stays(key)) {
                let hit = table.find(&block, key_hash(key.as_bytes()), key.as_bytes());
                table.remove(&mut block, &hit.expect("it was stored"));
            }
            let ids: Vec<u32> = (0..table.map.len()).map(|place| table.map.region(place)).collect();
            for id in ids {
                table.heap.shrink_region(&mut block, id);
            }
            let before = table.heap.arena.end();
            let middle = table.heap.arena.iter().nth(table.heap.arena.extents() / 2);
            let place = middle.expect("there are extents").at;
            let pin = pinned.then(|| block.pin(place..place + 8));
            let mut now = Time(1);
            table.heap.look_at_slack(now);
            for _ in 0..1000 {
                let Some(due) = table.heap.return_due() else { break };
                now = due;
                table.heap.return_memory(&mut block, now);
            }
            assert_eq!(table.heap.return_due(), None, "it ends");
            let (end, used) = (table.heap.arena.end(), SIZE - table.heap.arena.free_bytes());
            assert!(end < before && (pinned || end < used + used / 8), "{used} of {end} bytes");
            assert!(block.written() < end + least_hole(SIZE) + 4096, "{}", block.written());
            drop(pin);
            table.check(&block, &[]);
            for (i, key) in keys.iter().enumerate().filter(|(_, key)| stays(key)) {
                let hit = table.find(&block, key_hash(key.as_bytes()), key.as_bytes());
                let found = table.value_of(&block, &hit.expect("it stays"));
                assert_eq!(block.slice(found), value(i), "{key}");
            }
        }
    }

    /// The block has more memory than its heap knows of: it was pinned there, and the heap asked only for
    /// pins of its own part.
    #[test]
    fn memory_is_not_returned_while_a_pin_reads_some_behind_the_heap() {
        const SIZE: usize = 4 << 20;
        let mut block = Backing::map(2 * SIZE, &Reclaimer::inline()).expect("8 MiB can be mapped");
        block.slice_mut(0..2 * SIZE).fill(7);
        let pin = block.pin(2 * SIZE - 8..2 * SIZE);
        let mut heap = Heap::new(crate::CapacityRequest::new(SIZE, 2 * SIZE));
        let extent = heap.arena.alloc(SIZE / 2, Owner::Large(0)).expect("it is empty");
        heap.arena.free(extent);
        let mut returns = |block: &mut Backing, mut now: Time| {
            heap.look_at_slack(now);
            while let Some(due) = heap.return_due() {
                now = due;
                heap.return_memory(block, now);
            }
            let extent = heap.arena.alloc(SIZE / 2, Owner::Large(0)).expect("it is empty");
            heap.arena.free(extent);
            now
        };
        let now = returns(&mut block, Time(1));
        assert!(block.slice(SIZE..2 * SIZE).iter().all(|byte| *byte == 7));
        drop(pin);
        returns(&mut block, now);
        assert_eq!(block.written(), 0);
    }

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
            assert!(!shrink.is_due(&arena, SIZE, now), "it was used again");
            assert!(block.slice(0..SIZE / 2).iter().all(|byte| *byte == 7));
        }
        now = shrink.due().expect("the arena is inspected again");
        assert!(shrink.is_due(&arena, SIZE, now));
        shrink.give_back(&mut arena, SIZE, &mut block, now);
        assert!(block.slice(0..SIZE / 2).iter().all(|byte| *byte == 0));
        assert_eq!((shrink.due(), arena.slack()), (None, 0));
    }
}
