//! Packing at rest: the extents of a block in which nothing was allocated for a while are moved together, and
//! the memory behind them is returned.
//!
//! While a store is written, a tenth of a block is holes between regions, which growing regions use. A block
//! that rests needs none.

use super::heap::Heap;
use super::pack::Squeeze;
use super::shrink::shed_some;
use honeycomb_block::Backing;
use honeycomb_types::Time;
use std::time::Duration;

/// A block rests if nothing was allocated in it for this time.
const REST: Duration = Duration::from_secs(1);
/// The extents of a block at rest are moved together if the free memory between them is at least this part of
/// theirs.
const HOLES_FRACTION: usize = 32;
/// Smaller holes stay.
const HOLE_MIN: usize = 4096;
/// Bytes that are moved in one step. Longer extents stay where they are.
const STEP: usize = 1 << 20;
/// The pause between two steps, in which other operations run.
const PAUSE: Duration = Duration::from_millis(1);

/// When to look whether a block rests.
#[derive(Debug, Default)]
pub(super) struct AtRest {
    due: Option<Time>,
    /// The arena's total of allocated bytes at the last look, with those of moved extents.
    allocated: u64,
    /// Whether extents are being moved.
    moves: bool,
}

impl AtRest {
    /// Nothing is to be done until more is allocated than this.
    pub fn after(allocated: u64) -> AtRest {
        AtRest { due: None, allocated, moves: false }
    }

    pub fn due(&self) -> Option<Time> {
        self.due
    }

    /// Looks again later if something was allocated since the last look.
    #[inline]
    pub fn look(&mut self, allocated: u64, now: Time) {
        if self.due.is_none() && allocated != self.allocated {
            *self = AtRest { due: Some(now + REST), allocated, moves: false };
        }
    }

    fn continues(&mut self, allocated: u64, now: Time) {
        *self = AtRest { due: Some(now + PAUSE), allocated, moves: true };
    }
}

impl Heap {
    fn has_many_holes(&self) -> bool {
        let used = self.size() - self.arena.free_bytes();
        self.arena.end() - used >= (used / HOLES_FRACTION).max(HOLE_MIN)
    }

    /// Moves the extents of a block that is about to leave memory together.
    pub(super) fn pack_to_leave(&mut self, block: &mut Backing) {
        // Each step moves at least one extent, and none twice.
        for _ in 0..self.arena.extents() {
            let packs = self.has_many_holes();
            if !packs || !self.pack_some(block, HOLE_MIN, STEP, Squeeze::AtRest) {
                return;
            }
        }
    }

    /// If this is due and the block rests, moves some of its extents.
    pub(super) fn pack_at_rest(&mut self, block: &mut Backing, now: Time) {
        if self.at_rest.due.is_none_or(|due| due > now) {
            return;
        }
        let AtRest { allocated: before, moves, .. } = self.at_rest;
        let allocated = self.arena.allocated();
        self.at_rest = AtRest::after(before);
        if allocated != before || self.values.copies().is_some() {
            return self.at_rest = AtRest { due: Some(now + REST), allocated, moves: false };
        }
        let packs = moves || self.has_many_holes();
        if packs && self.pack_some(block, HOLE_MIN, STEP, Squeeze::AtRest) {
            return self.at_rest.continues(self.arena.allocated(), now);
        }
        if shed_some(block, self.arena.end(), Backing::shed_rest) {
            self.at_rest.continues(allocated, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::{Table, Value};
    use super::*;
    use honeycomb_block::Reclaimer;
    use honeycomb_wire::key_hash;

    const SIZE: usize = 16 << 20;
    const ENTRIES: usize = 100_000;

    fn key(n: usize) -> String {
        format!("{n:010}")
    }

    fn put(table: &mut Table, block: &mut Backing, n: usize, byte: u8) {
        let key = key(n);
        let hash = key_hash(key.as_bytes());
        let old = table.find(block, hash, key.as_bytes());
        let stored = table.store(block, hash, key.as_bytes(), old, Value::Inline(&[byte; 64]));
        stored.expect("the table has room");
    }

    fn filled(entries: usize) -> (Backing, Table) {
        let mut block = Backing::map(SIZE, &Reclaimer::inline()).expect("16 MiB can be mapped");
        let mut table = Table::new(crate::CapacityRequest::new(SIZE, SIZE), 0);
        (0..entries).for_each(|n| put(&mut table, &mut block, n, n as u8));
        (block, table)
    }

    /// Ticks whenever memory is due to be returned, until then.
    fn ticks(table: &mut Table, block: &mut Backing, now: &mut Time, until: Time) {
        table.heap.look_at_slack(*now);
        while let Some(due) = table.heap.return_due().filter(|due| *due <= until) {
            *now = due.max(*now);
            table.heap.return_memory(block, *now);
        }
        *now = until;
    }

    /// Resident bytes of the block, as the kernel counts them.
    fn resident(block: &Backing) -> usize {
        use std::os::unix::fs::FileExt;
        const PAGE: usize = 4096;
        const PRESENT: u64 = 1 << 63;
        let map = std::fs::File::open("/proc/self/pagemap").expect("the kernel tells");
        let mut words = vec![0; SIZE / PAGE * 8];
        let at = block.slice(0..1).as_ptr() as usize / PAGE * 8;
        map.read_exact_at(&mut words, at as u64).expect("each page has a word");
        let word = |word: &[u8]| u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        words.chunks_exact(8).filter(|page| word(page) & PRESENT != 0).count() * PAGE
    }

    /// Resident bytes were 108 for each of these entries, of which 74 are its key and its value.
    #[test]
    fn block_that_rests_has_no_holes() {
        // The last extent and the last written byte are in one huge page after some, in two after others.
        let numbers = (50_000..=ENTRIES).step_by(10_000);
        for (entries, pinned) in numbers.flat_map(|n| [(n, false), (n, true)]) {
            let (mut block, mut table) = filled(entries);
            let holes =
                |table: &Table| table.heap.arena.end() + table.heap.arena.free_bytes() - SIZE;
            let (before, mut now) = (holes(&table), Time(1));
            assert!(before > 80 * entries / 20, "{before} bytes of holes");
            let middle = table.heap.arena.iter().nth(table.heap.arena.extents() / 2);
            let place = middle.expect("there are extents").at;
            let pin = pinned.then(|| block.pin(place..place + 8));
            ticks(&mut table, &mut block, &mut now, Time(1) + 10 * REST);
            assert_eq!(table.heap.return_due(), None, "it ends");
            table.check(&block, &[]);
            for n in 0..entries {
                let (key, due) = (key(n), [n as u8; 64]);
                let hit = table.find(&block, key_hash(key.as_bytes()), key.as_bytes());
                let found = table.value_of(&block, &hit.expect("it stays"));
                assert_eq!(block.slice(found), due, "{key}");
            }
            match pinned {
                false => {
                    assert!(holes(&table) < SIZE / 100, "{} of {before}", holes(&table));
                    let (resident, end) = (resident(&block), table.heap.arena.end());
                    assert!(resident <= end.next_multiple_of(4096), "{resident} of {end}");
                    let each = resident / entries;
                    assert!((74..100).contains(&each), "{each} bytes for each entry");
                }
                true => assert!(holes(&table) < before),
            }
            drop(pin);
        }
    }

    #[test]
    fn block_that_is_written_keeps_its_holes() {
        let (mut block, mut table) = filled(ENTRIES);
        let mut now = Time(1);
        for n in 0..20 {
            // New entries, for which regions need room.
            (0..500).for_each(|m| put(&mut table, &mut block, ENTRIES + 500 * n + m, 1));
            let until = now + REST / 2;
            ticks(&mut table, &mut block, &mut now, until);
        }
        let holes = table.heap.arena.end() + table.heap.arena.free_bytes() - SIZE;
        assert!(holes > SIZE / 50, "{holes}");
        assert!(table.heap.return_due().is_some(), "it is looked at again");
    }
}
