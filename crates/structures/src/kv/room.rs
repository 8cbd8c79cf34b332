//! Making room for an entry or a large value that does not fit.
//!
//! Cheap methods are tried first: drop dead entries, split, grow into a hole, move to a larger hole. In a
//! nearly full block the free space is scattered: in holes, in dead entries and in the spare room of regions.
//! Then a stretch of neighbouring extents, the smallest that has enough free space, is packed, which collects
//! the space in one place. Pinned extents are never moved and divide the block for this purpose. Totals are
//! checked before any change: they decide whether there is room, and after that only a pin can prevent the
//! operation.

use super::arena::{ExtentSizes, Owner, round_up};
use super::pack::Squeeze;
use super::patches::Unsent;
use super::region::{Above, HEADER, Region, packed_len};
use super::table::{EXTENT_COST, RESERVE_FRACTION, Relief, Table, WORD_COST};
use crate::Answer;
use honeycomb_block::{Backing, HUGE_FROM};
use honeycomb_types::Bug;
use honeycomb_wire::Status;
use std::ops::Range;

/// Retry delay while a pinned range is in the way, in microseconds.
const RETRY_PINNED_US: u64 = 300;

/// Retry delay while a part of the block is being moved away, in microseconds.
pub(super) const RETRY_MOVING_US: u64 = 1000;

/// Spreads the first hashes of regions, an odd number of many bits.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// All methods except the last resort may move this many times the bytes for which they make room.
const EFFORT: usize = 8;

/// The refusal when only a pinned range is in the way.
pub(super) fn pinned_down() -> Answer {
    Answer { value: RETRY_PINNED_US, ..Answer::refuse(Status::Busy, "") }
}

impl Table {
    /// Whether an operation fits into `free` bytes that takes `gross` and then releases `replaces`. Only an
    /// operation with no net growth may use the reserve, which a full block needs for its own split.
    #[inline]
    pub(super) fn affords(&self, free: usize, gross: usize, replaces: usize) -> bool {
        let net = gross.saturating_sub(replaces);
        let anew = net == 0 || Bug::ReserveTaken.active();
        let keeps = if anew { 0 } else { self.size / RESERVE_FRACTION };
        gross <= free && net + keeps <= free
    }

    /// Admits an operation that takes `gross` bytes and then releases `replaces`, or returns why it has to
    /// wait or is refused. A refusal has changed nothing, except that unpinned memory was swept.
    pub(super) fn check_budget(
        &mut self,
        block: &mut Backing,
        gross: usize,
        replaces: usize,
    ) -> Result<(), Answer> {
        let reserve = self.size / RESERVE_FRACTION;
        if self.affords(self.free(), gross, replaces) {
            return Ok(());
        }
        self.arena.sweep(block);
        let free = self.free();
        if self.affords(free, gross, replaces) {
            return Ok(());
        }
        if self.affords(free + self.arena.zombie_bytes(), gross, replaces) {
            return Err(pinned_down());
        }
        match &self.relief {
            Relief::None | Relief::Indivisible(_) => {}
            Relief::Possible => {
                self.relief = Relief::Wanted;
                return Err(self.awaits_split());
            }
            Relief::Wanted | Relief::Coming => return Err(self.awaits_split()),
            Relief::Denied(status, why) => return Err(self.indivisible(*status, why)),
        }
        Err(Answer::refuse(
            Status::BlockFull,
            format!(
                "block {} has no room for {gross} more bytes ({} of {} are free){}; \
                 existing data is unharmed",
                self.block,
                free.saturating_sub(reserve),
                self.size,
                match &self.relief {
                    Relief::Indivisible(why) => format!(" and cannot be split: {why}"),
                    _ => String::new(),
                }
            ),
        ))
    }

    /// The refusal when a part of the block is about to move away. If the last split was refused for lack of
    /// memory, the next request for one may wait for seconds, and the writer learns the reason meanwhile.
    fn awaits_split(&self) -> Answer {
        match &self.lacking {
            Some(why) => self.indivisible(Status::OutOfMemory, why),
            None => {
                let text = format!("block {} is full and waits for a split", self.block);
                Answer { value: RETRY_MOVING_US, ..Answer::refuse(Status::Busy, text) }
            }
        }
    }

    fn indivisible(&self, status: Status, why: &str) -> Answer {
        Answer::refuse(status, format!("block {} is full and cannot be split: {why}", self.block))
    }

    /// Makes room for an entry of `size` bytes with this hash. A `new` entry has a place of its own in the
    /// index; `replaces` bytes will be released.
    pub(super) fn make_room(
        &mut self,
        block: &mut Backing,
        hash: u64,
        size: usize,
        new: bool,
        replaces: usize,
    ) -> Result<(), Answer> {
        let id = self.region_of(hash) as usize;
        let begin = if self.regions[id].size == 0 { HEADER + EXTENT_COST } else { 0 };
        let gross = size + WORD_COST + begin;
        self.check_budget(block, gross, replaces)?;
        self.arena.sweep(block);
        self.split_while_large(block, hash, size);
        let id = self.region_of(hash);
        if self.regions[id as usize].fits(size, new) {
            return Ok(());
        }
        self.grow(block, id, size, new)
    }

    /// Divides the region of `hash` until it fits into its largest allowed size.
    fn split_while_large(&mut self, block: &mut Backing, hash: u64, entry: usize) {
        loop {
            let id = self.region_of(hash);
            let region = &self.regions[id as usize];
            let needed = region.packed_with(entry, true);
            if needed + needed / 8 <= self.region_max || !self.split(block, hash) {
                return;
            }
        }
    }

    /// Moves the upper part of a region to a new one. `false` if it cannot be divided, or there is no cheap
    /// room.
    fn split(&mut self, block: &mut Backing, hash: u64) -> bool {
        let place = self.place_of(hash);
        let id = self.order[place] as usize;
        let reserve = self.size / RESERVE_FRACTION + EXTENT_COST + HEADER + WORD_COST;
        if self.order.len() >= self.regions_max
            || self.taken() + reserve > self.size
            || self.arena.largest_hole() < self.regions[id].packed() / 3
            || block.is_pinned(&self.regions[id].extent())
        {
            return false;
        }
        let cut = cut(&self.regions[id], self.starts[place], block);
        let Some(above) = cut else { return false };
        let room = self.room(packed_len(above.count, above.live));
        let new = self.new_region();
        let Some(to) = self.arena.alloc_some(&room, Owner::Region(new)) else {
            self.spare_regions.push(new);
            return false;
        };
        let left = &self.regions[id];
        let (from, before) = (left.at, left.packed());
        let keeps = packed_len(left.count - above.count, left.live - above.live);
        let keeps = self.room(keeps).want.min(left.size);
        let right = self.regions[id].split_off(block, &above, to, keeps);
        self.arena.resize(from, keeps);
        self.packed = self.packed - before + self.regions[id].packed() + right.packed();
        self.regions[new as usize] = right;
        self.starts.insert(place + 1, above.hash);
        self.order.insert(place + 1, new);
        true
    }

    /// Divides a region at a hash, so that one begins there: `Ok` also if one already does. It takes no more
    /// room than a header; `Err` if pins prevent that in one piece.
    pub(super) fn divide_at(&mut self, block: &mut Backing, hash: u64) -> Result<(), Answer> {
        let place = self.place_of(hash);
        if self.starts[place] == hash {
            return Ok(());
        }
        let id = self.order[place];
        let new = self.new_region();
        if self.regions[id as usize].size == 0 {
            self.regions[new as usize].unsent = Unsent::all();
        } else {
            let Some(right) = self.divide_region(block, id, hash, new) else {
                self.spare_regions.push(new);
                return Err(pinned_down());
            };
            self.regions[new as usize] = right;
        }
        self.starts.insert(place + 1, hash);
        self.order.insert(place + 1, new);
        Ok(())
    }

    /// Divides a region in place, once it has room for two headers there. A full block need not have a hole
    /// for one of the parts. `None` if there is no room.
    fn divide_region(
        &mut self,
        block: &mut Backing,
        id: u32,
        hash: u64,
        new: u32,
    ) -> Option<Region> {
        let parts = match block.is_pinned(&self.regions[id as usize].extent()) {
            true => return None,
            false => self.regions[id as usize].parts(block, hash),
        };
        let needed = parts.needs();
        if needed > self.regions[id as usize].size {
            self.arena.sweep(block);
            let added = needed - self.regions[id as usize].packed() + EXTENT_COST;
            let fits = self.taken() + added <= self.size;
            if !fits || !self.grow_among_neighbours(block, id, needed, (0, false)) {
                return None;
            }
        }
        let region = &mut self.regions[id as usize];
        let (at, before) = (region.at, region.packed());
        let right = region.divide(block, parts);
        let added = region.packed() + right.packed();
        self.arena.divide(at, right.at - at, Owner::Region(new));
        self.packed = self.packed - before + added;
        Some(right)
    }

    /// The length to allocate for a region that needs `needed` bytes: with room to grow while memory is
    /// plenty. In blocks of huge pages a hole is resident, so a hole of about the right size is taken whole;
    /// in smaller blocks unused bytes may not even be resident.
    fn room(&self, needed: usize) -> ExtentSizes {
        let tight = needed + needed / 8;
        if self.arena.free_bytes() < self.size / 4 {
            return ExtentSizes {
                least: round_up(tight),
                want: round_up(tight),
                most: round_up(tight),
            };
        }
        let first = (self.size / 64).clamp(1024, 4096);
        let (least, want, most) = match self.size < HUGE_FROM {
            true => (tight, tight, tight),
            false => (needed + needed / 12, needed + needed / 5, needed + needed / 5 * 2),
        };
        let limit = self.region_max.max(tight);
        let some = |len: usize| round_up(len.max(first).min(limit));
        let [least, want, most] = [least, want, most].map(some);
        ExtentSizes { least, want, most }
    }

    /// Gives a region room for an entry, in place or elsewhere.
    fn grow(
        &mut self,
        block: &mut Backing,
        id: u32,
        entry: usize,
        new: bool,
    ) -> Result<(), Answer> {
        let pinned = self.pinned(block);
        let region = &self.regions[id as usize];
        let (size, extent) = (region.size, region.extent());
        let needed = region.packed_with(entry, new);
        let movable = size > 0 && !block.is_pinned(&extent);
        if movable && size >= needed + size / 8 {
            self.relay(block, id, extent, entry, new);
            return Ok(());
        }
        let room = self.room(needed);
        if size > 0 && self.extend(block, id, &room, (entry, new), movable) {
            return Ok(());
        }
        let tight = round_up(needed + needed / 8);
        for room in [room, ExtentSizes { least: tight, want: tight, most: tight }] {
            if let Some(to) = self.arena.alloc_some(&room, Owner::Region(id)) {
                self.move_region(block, id, to, entry, new);
                return Ok(());
            }
        }
        if movable && self.grow_among_neighbours(block, id, needed, (entry, new)) {
            return Ok(());
        }
        // Pins hold the region or its neighbours in place.
        let len = round_up(needed);
        let Some(at) = self.find_hole(block, len, Owner::Region(id)) else {
            assert!(pinned, "a block whose totals have room and that has no pins has room");
            return Err(pinned_down());
        };
        self.move_region(block, id, at..at + len, entry, new);
        Ok(())
    }

    /// Extends a region into the adjacent holes, if that is worth while.
    fn extend(
        &mut self,
        block: &mut Backing,
        id: u32,
        room: &ExtentSizes,
        (entry, new): (usize, bool),
        movable: bool,
    ) -> bool {
        let region = &self.regions[id as usize];
        let (at, most) = (region.at, region.size + self.arena.hole_after(region.at));
        let size = room.of(most).max(region.size);
        if most >= room.least && region.extends(entry, new, size) {
            // Only the log was too short: no bytes have to move.
            self.regions[id as usize].size = size;
        } else if movable && most >= room.least {
            self.relay(block, id, at..at + size, entry, new);
        } else if movable && most + self.arena.hole_before(at) >= room.least {
            let from = at - self.arena.hole_before(at);
            self.arena.begin_at(at, from);
            self.relay(block, id, from..from + room.of(most + at - from), entry, new);
        } else {
            return false;
        }
        let Region { at, size, .. } = self.regions[id as usize];
        self.arena.resize(at, size);
        true
    }

    pub(super) fn relay(
        &mut self,
        block: &mut Backing,
        id: u32,
        to: Range<usize>,
        entry: usize,
        new: bool,
    ) {
        let region = &mut self.regions[id as usize];
        let before = region.packed();
        region.relay(block, to, entry, new);
        self.packed = self.packed - before + region.packed();
    }

    /// Moves a region into an extent that was allocated for it.
    fn move_region(
        &mut self,
        block: &mut Backing,
        id: u32,
        to: Range<usize>,
        entry: usize,
        new: bool,
    ) {
        let old = self.regions[id as usize].clone();
        self.relay(block, id, to, entry, new);
        if old.size > 0 {
            self.arena.retire(block, old.at);
        }
    }

    /// Packs the extents around a region until it has room in its place.
    fn grow_among_neighbours(
        &mut self,
        block: &mut Backing,
        id: u32,
        needed: usize,
        (entry, new): (usize, bool),
    ) -> bool {
        let free = self.size.saturating_sub(self.taken());
        let len = round_up(needed + needed * free / self.size);
        for squeeze in [Squeeze::Gently, Squeeze::Fairly, Squeeze::Fully] {
            if self.widen(block, id, len, EFFORT * needed, squeeze, (entry, new)) {
                return true;
            }
            if squeeze != Squeeze::Fully && self.gather(block, len, EFFORT * needed, squeeze) {
                let at = self
                    .arena
                    .alloc(len, Owner::Region(id))
                    .expect("the space for the region was gathered");
                self.move_region(block, id, at..at + len, entry, new);
                return true;
            }
        }
        self.widen(block, id, round_up(needed), usize::MAX, Squeeze::Fully, (entry, new))
    }

    /// Finds a hole of `len` bytes, and packs a part of the block if there is none. If the totals have room
    /// for it, `None` can only be caused by a pin.
    pub(super) fn find_hole(
        &mut self,
        block: &mut Backing,
        len: usize,
        owner: Owner,
    ) -> Option<usize> {
        if let Some(at) = self.arena.alloc(len, owner) {
            return Some(at);
        }
        self.arena.sweep(block);
        let ways = [
            (Squeeze::Gently, EFFORT * len),
            (Squeeze::Fairly, EFFORT * len),
            (Squeeze::Fully, usize::MAX),
        ];
        for (squeeze, effort) in ways {
            if self.gather(block, len, effort, squeeze) {
                break;
            }
        }
        self.arena.alloc(len, owner)
    }

    /// Whether any range is pinned. Call this before the search for room: other threads drop pins at any
    /// time, and only a pin that existed at the start explains a failure.
    pub(super) fn pinned(&self, block: &mut Backing) -> bool {
        block.is_pinned(&(0..self.size)) || self.arena.zombie_bytes() > 0
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
    use honeycomb_block::Reclaimer;
    use honeycomb_wire::key_hash;

    /// A block of huge pages is resident up to the end of its extents.
    #[test]
    fn regions_lie_densely_however_many_there_are() {
        const SIZE: usize = 32 << 20;
        let mut block = Backing::map(SIZE, &Reclaimer::inline()).expect("32 MiB can be mapped");
        let mut table = Table::new(SIZE, 0);
        let (mut worst, mut sizes) = (0.0f64, 0);
        for i in 0..200_000 {
            let key = format!("key:{i:012}");
            let hash = key_hash(key.as_bytes());
            let stored =
                table.store(&mut block, hash, key.as_bytes(), None, Value::Inline(&[7; 64]));
            stored.expect("the table has room");
            if i >= 60_000 && i % 1000 == 0 {
                let end = table.arena.iter().last().map_or(0, |last| last.at + last.len);
                worst = worst.max(end as f64 / table.packed as f64);
                sizes = sizes.max(size_classes(&table));
            }
        }
        table.check(&block);
        assert!(table.regions.iter().all(|region| region.size <= table.region_max));
        assert!(worst < 1.4, "{worst} times the used bytes");
        assert!(sizes >= 4, "regions of {sizes} sizes that differ by a quarter");
    }

    /// The number of sizes of regions, each a quarter larger than the one before.
    fn size_classes(table: &Table) -> usize {
        let mut sizes: Vec<usize> = table.regions.iter().map(Region::packed).collect();
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
