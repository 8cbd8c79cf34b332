//! Making room for an entry or a large value that does not fit: whether the block has room at all, and the
//! division of regions that have become too large.

use super::heap::{EXTENT_COST, Heap, RESERVE_FRACTION, WORD_COST};
use super::overflow::Relief;
use super::region::{Above, HEADER, Region};
use super::table::Table;
use crate::Answer;
use honeycomb_block::Backing;
use honeycomb_types::limits::REGION_MIN;
use honeycomb_wire::Status;

/// Retry delay while a pinned range is in the way, in microseconds.
const RETRY_PINNED_US: u64 = 300;

/// Retry delay while a part of the block is being moved away, in microseconds.
pub(super) const RETRY_MOVING_US: u64 = 1000;

/// Spreads the first hashes of regions, an odd number of many bits.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// The refusal when only a pinned range is in the way.
pub(super) fn pinned_down() -> Answer {
    Answer { value: RETRY_PINNED_US, ..Answer::refuse(Status::Busy, "") }
}

impl Table {
    /// Admits an operation that takes `gross` bytes and then releases `replaces`, or returns why it has to
    /// wait or is refused. A refusal has changed nothing, except that unpinned memory was swept.
    fn check_budget(
        &mut self,
        block: &mut Backing,
        gross: usize,
        replaces: usize,
    ) -> Result<(), Answer> {
        let reserve = self.heap.size() / RESERVE_FRACTION;
        if self.heap.affords(self.heap.free(), gross, replaces) {
            return Ok(());
        }
        self.heap.arena.sweep(block);
        let free = self.heap.free();
        if self.heap.affords(free, gross, replaces) {
            return Ok(());
        }
        if self.heap.affords(free + self.heap.arena.zombie_bytes(), gross, replaces) {
            return Err(pinned_down());
        }
        // The target of a move has the capacity for it, or refuses it.
        if *self.overflow.relief() != Relief::None
            && let Some(answer) = self.heap.capacity.refuse(gross + reserve)
        {
            return Err(answer);
        }
        let refusal = self.overflow.refuse(gross, free.saturating_sub(reserve), self.heap.size());
        // A block that cannot be divided could hold it with a larger capacity.
        let is_full = refusal.status == Status::BlockFull;
        Err(self.heap.capacity.denial().filter(|_| is_full).unwrap_or(refusal))
    }

    /// Allocates an extent for a value. `replaces` bytes will be released when it is stored.
    pub fn alloc_large(
        &mut self,
        block: &mut Backing,
        len: usize,
        replaces: usize,
    ) -> Result<u32, Answer> {
        self.check_budget(block, Heap::value_cost(len), replaces)?;
        self.heap.alloc_value(block, len).ok_or_else(pinned_down)
    }

    /// As above, for content that moves here. A lack of room is no reason to split this block.
    pub fn alloc_for_part(&mut self, block: &mut Backing, length: usize) -> Result<u32, Answer> {
        let relief = self.overflow.set_relief(Relief::None);
        let extent = self.alloc_large(block, length, 0);
        self.overflow.set_relief(relief);
        if extent.as_ref().is_err_and(|refusal| refusal.status != Status::Busy) {
            self.heap.capacity.await_move();
        }
        extent
    }

    /// Makes room for an entry of `size` bytes with this hash. A `new` entry has a place of its own in the
    /// index; `replaces` bytes will be released.
    pub fn make_room(
        &mut self,
        block: &mut Backing,
        hash: u64,
        size: usize,
        new: bool,
        replaces: usize,
    ) -> Result<(), Answer> {
        let id = self.map.region_of(hash);
        let begin = if self.heap.regions.get(id).size == 0 { HEADER + EXTENT_COST } else { 0 };
        let gross = size + WORD_COST + begin;
        self.check_budget(block, gross, replaces)?;
        self.heap.arena.sweep(block);
        self.split_while_large(block, hash, size);
        let id = self.map.region_of(hash);
        if self.heap.regions.get(id).fits(size, new) {
            return Ok(());
        }
        if self.heap.grow(block, id, size, new) { Ok(()) } else { Err(pinned_down()) }
    }

    /// Divides the region of `hash` until it fits into its largest allowed size.
    fn split_while_large(&mut self, block: &mut Backing, hash: u64, entry: usize) {
        loop {
            let id = self.map.region_of(hash);
            let region = self.heap.regions.get(id);
            let needed = region.packed_with(entry, true);
            if needed + needed / 8 <= self.heap.region_max() || !self.split(block, hash) {
                return;
            }
        }
    }

    /// Moves the upper part of a region to a new one. `false` if it cannot be divided, or there is no cheap
    /// room.
    fn split(&mut self, block: &mut Backing, hash: u64) -> bool {
        let place = self.map.place_of(hash);
        let id = self.map.region(place);
        let most = self.heap.size() / REGION_MIN as usize;
        if self.map.len() >= most || !self.heap.can_split(block, id) {
            return false;
        }
        let cut = cut(self.heap.regions.get(id), self.map.start(place), block);
        let Some(above) = cut else { return false };
        let Some(new) = self.heap.split_region(block, id, &above) else { return false };
        self.map.insert(place + 1, above.hash, new);
        true
    }

    /// Divides a region at a hash, so that one begins there: `Ok` also if one already does. It takes no more
    /// room than a header; `Err` if pins prevent that in one piece.
    pub fn divide_at(&mut self, block: &mut Backing, hash: u64) -> Result<(), Answer> {
        let place = self.map.place_of(hash);
        if self.map.start(place) == hash {
            return Ok(());
        }
        let id = self.map.region(place);
        let new = self.heap.divide_region(block, id, hash).ok_or_else(pinned_down)?;
        self.map.insert(place + 1, hash, new);
        Ok(())
    }
}

/// Where a region whose first hash is `start` divides into two parts, each with between a third and two
/// thirds of it, about. Equal hashes stay together; `None` if all are equal.
///
/// Keys are spread evenly. If all regions were divided into halves, they would always be of one size and grow
/// at the same time: the old place of one would be too small for all others.
fn cut(region: &Region, start: u64, block: &Backing) -> Option<Above> {
    let live = region.walk(block).filter(|(_, head)| !head.dead());
    let mut entries: Vec<(u64, usize)> =
        live.map(|(at, head)| (head.hash(block, at), head.size())).collect();
    let part = start.wrapping_mul(SPREAD) >> (u64::BITS - 8);
    let at = entries.len() * (256 + part as usize) / (3 * 256);
    if at == 0 {
        return None;
    }
    let (_, &mut (hash, _), _) = entries.select_nth_unstable_by_key(at, |entry| entry.0);
    let upper = entries.iter().filter(|entry| entry.0 >= hash);
    let (count, live) = upper.fold((0, 0), |(count, live), entry| (count + 1, live + entry.1));
    if (region.live / 4..=region.live / 4 * 3).contains(&live) {
        return Some(Above { hash, count, live });
    }
    // Some are much larger than others, or many hashes are equal.
    entries.sort_unstable();
    let mut best: Option<(usize, usize, usize)> = None;
    let mut below = 0;
    for (i, pair) in entries.windows(2).enumerate() {
        below += pair[0].1;
        let lopsided = (2 * below).abs_diff(region.live);
        if pair[0].0 != pair[1].0 && best.is_none_or(|(least, ..)| lopsided < least) {
            best = Some((lopsided, i + 1, below));
        }
    }
    let (_, i, below) = best?;
    Some(Above { hash: entries[i].0, count: entries.len() - i, live: region.live - below })
}

#[cfg(test)]
mod tests {
    use super::super::table::Value;
    use super::*;
    use crate::CapacityRequest;
    use honeycomb_block::Reclaimer;
    use honeycomb_wire::key_hash;

    /// A block of huge pages is resident up to the end of its extents.
    #[test]
    fn regions_lie_densely_however_many_there_are() {
        const SIZE: usize = 32 << 20;
        let mut block = Backing::map(SIZE, &Reclaimer::inline()).expect("32 MiB can be mapped");
        let mut table = Table::new(CapacityRequest::new(SIZE, SIZE), 0);
        let (mut worst, mut sizes) = (0.0f64, 0);
        for i in 0..200_000 {
            let key = format!("key:{i:012}");
            let hash = key_hash(key.as_bytes());
            let stored =
                table.store(&mut block, hash, key.as_bytes(), None, Value::Inline(&[7; 64]));
            stored.expect("the table has room");
            if i >= 60_000 && i % 1000 == 0 {
                let end = table.heap.arena.iter().last().map_or(0, |last| last.at + last.len);
                worst = worst.max(end as f64 / table.heap.regions.packed() as f64);
                sizes = sizes.max(size_classes(&table));
            }
        }
        table.check(&block, &[]);
        assert!(table.heap.regions.iter().all(|region| region.size <= table.heap.region_max()));
        assert!(worst < 1.4, "{worst} times the used bytes");
        assert!(sizes >= 4, "regions of {sizes} sizes that differ by a quarter");
    }

    /// The number of sizes of regions, each a quarter larger than the one before.
    fn size_classes(table: &Table) -> usize {
        let mut sizes: Vec<usize> = table.heap.regions.iter().map(Region::packed).collect();
        sizes.sort_unstable();
        let mut last = 0;
        sizes.retain(|size| {
            let more = *size >= last + last / 4;
            if more {
                last = *size;
            }
            more
        });
        sizes.len()
    }
}
