//! Making room: where an entry or a large value goes when it does not fit as things are.
//!
//! Cheap ways come first: drop dead entries, split, grow into a hole, move to a larger one. When
//! the block is nearly full, what is free lies scattered: in holes, in dead entries and in room that
//! regions keep for growth. Then a stretch of neighbouring extents, the smallest that has enough of
//! it, is packed, and the room comes together in one place. Pinned extents are never moved and
//! divide the block for this purpose. Totals are checked before anything is touched: they decide
//! whether there is room, and only a pin can then stand in the way.

use super::arena::{Owner, round_up};
use super::pack::Squeeze;
use super::region::{HEADER, Region, packed_len};
use super::table::{EXTENT_COST, RESERVE_FRACTION, Relief, Table, WORD_COST};
use crate::Answer;
use honeycomb_block::{Backing, HUGE_FROM};
use honeycomb_wire::Status;
use std::ops::Range;

/// Delay told when a pinned range is in the way, in microseconds.
const RETRY_PINNED_US: u64 = 300;

/// Delay told while a part of the block moves elsewhere, in microseconds.
pub(super) const RETRY_MOVING_US: u64 = 1000;

/// Ways short of the last resort may move this many times the bytes that they make room for.
const EFFORT: usize = 8;

/// The refusal when only a pinned range stands in the way.
pub(super) fn pinned_down() -> Answer {
    Answer { value: RETRY_PINNED_US, ..Answer::refuse(Status::Busy, "") }
}

/// The refusal when a part of the block is about to move elsewhere.
pub(super) fn relief_comes() -> Answer {
    Answer { value: RETRY_MOVING_US, ..Answer::refuse(Status::Busy, "") }
}

impl Table {
    /// Whether `gross` more bytes fit, of which `replaces` will be given back. Existing data may
    /// change its size within the reserve; only what adds to it is kept out.
    pub(super) fn check_budget(
        &mut self,
        block: &mut Backing,
        gross: usize,
        replaces: usize,
    ) -> Result<(), Answer> {
        let reserve = self.size / RESERVE_FRACTION;
        let net = gross.saturating_sub(replaces);
        let fits = |free: usize| gross <= free && (net == 0 || net + reserve <= free);
        let free = self.size.saturating_sub(self.taken());
        if fits(free) {
            return Ok(());
        }
        self.arena.sweep(block);
        let free = self.size.saturating_sub(self.taken());
        if fits(free) {
            return Ok(());
        }
        if fits(free + self.arena.zombie_bytes()) {
            return Err(pinned_down());
        }
        match &self.relief {
            Relief::None => {}
            Relief::Possible => {
                self.relief = Relief::Wanted;
                return Err(relief_comes());
            }
            Relief::Wanted | Relief::Coming => return Err(relief_comes()),
            Relief::Denied(status, why) => {
                let text = format!("the block is full and there is none to give a part to: {why}");
                return Err(Answer::refuse(*status, text));
            }
        }
        Err(Answer::refuse(
            Status::BlockFull,
            format!(
                "the block has no room for {gross} more bytes ({} of {} are free); \
                 existing data is unharmed",
                free.saturating_sub(reserve),
                self.size
            ),
        ))
    }

    /// Makes room for an entry of `size` bytes with this hash, which has a place of its own in the
    /// index when it is `new`, and for which `replaces` bytes will be given back.
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

    /// Divides the region of `hash` until it is no longer so full that it had to outgrow its
    /// largest size.
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

    /// Moves the upper part of a region to a new one. `false` when it cannot be divided, or there
    /// is no room to do so cheaply.
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
        let Some((start, count, live)) = middle(&self.regions[id], block) else { return false };
        let needed = packed_len(count, live);
        let new = self.new_region();
        let placed = [self.generous(needed), round_up(needed + needed / 8)]
            .into_iter()
            .find_map(|len| Some((self.arena.alloc(len, Owner::Region(new))?, len)));
        let Some((at, len)) = placed else {
            self.spare_regions.push(new);
            return false;
        };
        let left = &self.regions[id];
        let (from, before) = (left.at, left.packed());
        let keeps = self.generous(packed_len(left.count - count, left.live - live)).min(left.size);
        let right = self.regions[id].split_off(block, start, at..at + len, keeps);
        self.arena.resize(from, keeps);
        self.packed = self.packed - before + self.regions[id].packed() + right.packed();
        self.regions[new as usize] = right;
        self.starts.insert(place + 1, start);
        self.order.insert(place + 1, new);
        true
    }

    /// Divides a region at a hash, so that one begins there: `Ok` also when one does already. It costs
    /// no more room than a header; `Err` when pins keep the block from having that in one piece.
    pub(super) fn divide_at(&mut self, block: &mut Backing, hash: u64) -> Result<(), Answer> {
        let place = self.place_of(hash);
        if self.starts[place] == hash {
            return Ok(());
        }
        let id = self.order[place];
        let new = self.new_region();
        if self.regions[id as usize].size == 0 {
            self.regions[new as usize].changed = true;
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

    /// Divides a region where it lies, once it has room for two headers there. A hole for one of the
    /// parts would be too much to ask of a full block. `None` when there is no room.
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

    /// Bytes for a region that needs `needed`: room to grow while memory is plenty. In blocks of huge
    /// pages room that is not used costs nothing, because the page around it is resident anyway; in
    /// smaller ones it is memory.
    fn generous(&self, needed: usize) -> usize {
        let tight = needed + needed / 8;
        if self.arena.free_bytes() < self.size / 4 {
            return round_up(tight);
        }
        let roomy = if self.size < HUGE_FROM { tight } else { 2 * needed };
        let first = (self.size / 64).clamp(1024, 4096);
        round_up(roomy.max(first).min(self.region_max.max(tight)))
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
        let roomy = self.generous(needed);
        if size > 0 && self.extend(block, id, roomy, (entry, new), movable) {
            return Ok(());
        }
        for len in [roomy, round_up(needed + needed / 8)] {
            if let Some(at) = self.arena.alloc(len, Owner::Region(id)) {
                self.move_region(block, id, at..at + len, entry, new);
                return Ok(());
            }
        }
        if movable && self.grow_among_neighbours(block, id, needed, (entry, new)) {
            return Ok(());
        }
        // Pins hold it in its place, or its neighbours.
        let len = round_up(needed);
        let Some(at) = self.find_hole(block, len, Owner::Region(id)) else {
            assert!(pinned, "a block whose totals have room and that has no pins has room");
            return Err(pinned_down());
        };
        self.move_region(block, id, at..at + len, entry, new);
        Ok(())
    }

    /// Lets a region grow into the hole behind it, when that is worth while.
    fn extend(
        &mut self,
        block: &mut Backing,
        id: u32,
        roomy: usize,
        (entry, new): (usize, bool),
        movable: bool,
    ) -> bool {
        let region = &self.regions[id as usize];
        let needed = region.packed_with(entry, new);
        let most = region.size + self.arena.hole_after(region.at);
        let size = roomy.max(region.size).min(most);
        if size < needed + needed / 8 {
            return false;
        }
        let at = region.at;
        if region.extends(entry, new, size) {
            // Only the log was short: nothing needs to move.
            self.regions[id as usize].size = size;
        } else if movable {
            self.relay(block, id, at..at + size, entry, new);
        } else {
            return false;
        }
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

    /// Packs the extents around a region until there is room for it where it is.
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
                let at = self.arena.alloc(len, Owner::Region(id)).expect("it was gathered");
                self.move_region(block, id, at..at + len, entry, new);
                return true;
            }
        }
        self.widen(block, id, round_up(needed), usize::MAX, Squeeze::Fully, (entry, new))
    }

    /// Takes a hole of `len` bytes, packing a part of the block when there is none. When the totals
    /// have room for it, only a pin can be why there is `None`.
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

    /// Whether anything is pinned. Ask before looking for room: other threads drop pins at any
    /// time, and only one that was there at the start excuses that no room was found.
    pub(super) fn pinned(&self, block: &mut Backing) -> bool {
        block.is_pinned(&(0..self.size)) || self.arena.zombie_bytes() > 0
    }
}

/// Where a region divides into halves of equal bytes: the first hash of the upper one, with its
/// entries and their bytes. Equal hashes stay together; `None` when all are equal.
fn middle(region: &Region, block: &Backing) -> Option<(u64, usize, usize)> {
    let live = region.walk(block).filter(|(_, head)| !head.dead());
    let mut entries: Vec<(u64, usize)> = live.map(|(_, head)| (head.hash, head.size())).collect();
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
    Some((entries[i].0, entries.len() - i, region.live - below))
}
