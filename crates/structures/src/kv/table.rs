//! The entries of a block: regions in order of hash, and large values outside of them.

use super::arena::Owner;
use super::heap::{Heap, WORD_COST};
use super::large_values::{large_id, large_room};
use super::overflow::Overflow;
use super::ranges::RangeMap;
use super::region::{Head, LARGE_REF, Region};
use crate::adopting::list_of;
use crate::{Answer, Bytes, CapacityRequest};
use honeycomb_block::Backing;
use honeycomb_types::Bug;
use honeycomb_types::limits::EXTENT_OWNER;
use honeycomb_wire::extents::value_length;
use std::ops::Range;

/// A found entry. Valid until the next change of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    pub region: u32,
    slot: usize,
    /// The entry's offset in the block.
    pub at: usize,
    pub head: Head,
}

/// The value of a new entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Inline(&'a [u8]),
    Large(u32),
    /// A list of extents, with their owner.
    Extents(&'a [u8]),
}

/// All entries of a block.
pub(super) struct Table {
    pub map: RangeMap,
    pub heap: Heap,
    pub overflow: Overflow,
    /// Entries of the regions that have hashes.
    pub length: u64,
    /// Whether an entry may be a list of extents.
    pub may_have_lists: bool,
    /// Lists of extents of deleted entries: to be dropped.
    pub dropped: Vec<Box<[u8]>>,
}

impl Table {
    pub fn new(capacity: CapacityRequest, start: u64) -> Table {
        Table {
            map: RangeMap::new(start, 0),
            heap: Heap::new(capacity),
            overflow: Overflow::default(),
            length: 0,
            may_have_lists: false,
            dropped: Vec::new(),
        }
    }

    /// The region at a place in the order of hashes.
    #[inline]
    pub fn region_at(&self, place: usize) -> &Region {
        self.heap.regions.get(self.map.region(place))
    }

    /// The regions from a place on, in order of hashes.
    pub fn regions_from(&self, place: usize) -> impl DoubleEndedIterator<Item = &Region> + Clone {
        self.map.regions()[place..].iter().map(|id| self.heap.regions.get(*id))
    }

    /// Prefetches the index words for this hash; returns its region.
    #[inline]
    pub fn prefetch_index(&self, block: &impl Bytes, hash: u64) -> Option<u32> {
        // The block's ownership of the key is not checked yet: a block whose whole range has moved away has
        // no region for it.
        let region = self.map.region_if_any(hash)?;
        self.heap.regions.get(region).prefetch_index(block, hash as u32);
        Some(region)
    }

    #[inline]
    pub fn find(&self, block: &impl Bytes, hash: u64, key: &[u8]) -> Option<Hit> {
        self.look_up(block, self.map.region_of(hash), hash as u32, key, false)
    }

    /// As `find`, if the region of the key's hash is known; `low` is the hash's lower half.
    #[inline]
    pub fn find_in(&self, block: &impl Bytes, region: u32, low: u32, key: &[u8]) -> Option<Hit> {
        self.look_up(block, region, low, key, false)
    }

    /// Whether all bytes are present that `find` may read.
    #[inline]
    pub fn can_find(&self, block: &impl Bytes, hash: u64, key: &[u8]) -> bool {
        let region = self.heap.regions.get(self.map.region_of(hash));
        region.can_find(block, hash as u32, key.len())
    }

    /// The entry of a key, and the list of extents if that is its value. The outer `None`: bytes that are
    /// needed to find it are missing.
    #[inline]
    pub fn reach(&self, bytes: &impl Bytes, hash: u64, key: &[u8]) -> Option<Option<Hit>> {
        if !self.can_find(bytes, hash, key) {
            return None;
        }
        let hit = self.find(bytes, hash, key);
        let listed = hit.as_ref().filter(|hit| hit.head.extents());
        match listed {
            Some(hit) if !bytes.wants(&self.value_of(bytes, hit)) => None,
            _ => Some(hit),
        }
    }

    /// The entry that an atomic batch has staged for a key.
    pub fn find_staged(&self, block: &Backing, hash: u64, key: &[u8]) -> Option<Hit> {
        self.look_up(block, self.map.region_of(hash), hash as u32, key, true)
    }

    #[inline]
    fn look_up(
        &self,
        block: &impl Bytes,
        id: u32,
        low: u32,
        key: &[u8],
        staged: bool,
    ) -> Option<Hit> {
        let region = self.heap.regions.get(id);
        region.load.set(region.load.get().saturating_add(1));
        let found = region.find(block, low, |head, at| {
            head.key_len == key.len() && head.staged() == staged && block.slice(head.key(at)) == key
        });
        found.map(|(slot, at, head)| Hit { region: id, slot, at, head })
    }

    /// The bytes of an entry's value, in its region or outside of it.
    #[inline]
    pub fn value_of(&self, block: &impl Bytes, hit: &Hit) -> Range<usize> {
        self.heap.values.of_entry(block, hit.at, &hit.head)
    }

    /// The length of a value, in its region or outside of it.
    pub fn length_of(&self, block: &impl Bytes, hit: &Hit) -> u64 {
        match hit.head.extents() {
            true => value_length(list_of(block.slice(self.value_of(block, hit)))),
            false => hit.head.value_len as u64,
        }
    }

    /// Whether an entry's value is this list. No list occurs twice.
    pub fn has_list(&self, block: &Backing, hit: &Hit, list: &[u8]) -> bool {
        hit.head.extents() && list_of(block.slice(self.value_of(block, hit))) == list
    }

    /// Notes the extents of an entry that is about to be removed.
    fn drop_extents(&mut self, block: &Backing, hit: &Hit) {
        assert!(self.may_have_lists || !hit.head.extents(), "INV-61: lists of extents are known");
        if hit.head.extents() && !Bug::ExtentsKept.active() {
            self.dropped.push(block.slice(self.value_of(block, hit)).into());
        }
    }

    /// A planted defect: drops the extents of a region's entries.
    pub fn drop_extents_of(&mut self, block: &Backing, id: u32) {
        for stored in self.lists_of(block, id) {
            self.dropped.push(block.slice(stored).into());
        }
    }

    /// A planted defect: forgets the owners of the extents of a region's entries.
    pub fn forget_owners(&self, block: &mut Backing, id: u32) {
        for stored in self.lists_of(block, id) {
            block.slice_mut(stored.start..stored.start + EXTENT_OWNER).fill(0);
        }
    }

    /// The places of the lists of extents in a region.
    fn lists_of(&self, block: &Backing, id: u32) -> Vec<Range<usize>> {
        let live = |(_, head): &(usize, Head)| head.extents() && !head.dead();
        let entries = self.heap.regions.get(id).walk(block).filter(live);
        entries.map(|(at, head)| self.heap.values.of_entry(block, at, &head)).collect()
    }

    /// Stores an entry, in place of `old` if there is one. `old` must be fresh.
    ///
    /// On refusal nothing has changed, and a new large value remains the caller's.
    pub fn store(
        &mut self,
        block: &mut Backing,
        hash: u64,
        key: &[u8],
        mut old: Option<Hit>,
        value: Value<'_>,
    ) -> Result<(), Answer> {
        debug_assert_eq!(
            self.find(block, hash, key).map(|hit| hit.at),
            old.map(|hit| hit.at),
            "INV-15: a change was decided by an entry that is not the present one"
        );
        let mut reference = [0; LARGE_REF];
        let (head, stored) = self.lay_out(key, value, &mut reference);
        self.may_have_lists |= head.extents();
        if let Some(hit) = &old
            && head.has_room_of(&hit.head)
            && !block.is_pinned(&(hit.at..hit.at + head.size()))
        {
            self.overwrite(block, hit, head, stored);
            return Ok(());
        }
        let mut region = self.map.region_of(hash);
        let fits = self.heap.regions.get(region).fits(head.size(), old.is_none());
        let replaces = old.map_or(0, |hit| hit.head.size() + WORD_COST);
        if !fits || !self.heap.affords(self.heap.free(), head.size() + WORD_COST, replaces) {
            self.make_room(block, hash, head.size(), old.is_none(), replaces)?;
            region = self.map.region_of(hash);
            if old.is_some() {
                old = self.find(block, hash, key);
                assert!(old.is_some(), "INV-06: making room loses no entry");
            }
        }
        let replaced = old.and_then(|hit| large_of(block, &hit));
        if let Some(hit) = &old {
            self.drop_extents(block, hit);
        }
        self.heap.regions.change(region, |region| {
            let at = region.append(block, head, key, stored);
            match &old {
                Some(hit) => region.relink(block, hit.slot, hit.at, &hit.head, at),
                None => region.link(block, hash as u32, at, &head),
            }
        });
        self.length += old.is_none() as u64;
        if let Some(id) = replaced {
            self.heap.free_value(block, id);
        }
        Ok(())
    }

    /// The head of an entry and the bytes after its key.
    fn lay_out<'b>(
        &self,
        key: &[u8],
        value: Value<'b>,
        reference: &'b mut [u8; LARGE_REF],
    ) -> (Head, &'b [u8]) {
        match value {
            Value::Inline(bytes) => (Head::new(key.len(), bytes.len(), false), bytes),
            Value::Large(id) => {
                *reference = id.to_le_bytes();
                (Head::new(key.len(), self.heap.values.get(id).len, true), reference)
            }
            Value::Extents(list) => (Head::new(key.len(), list.len(), false).of_extents(), list),
        }
    }

    /// Writes an entry that is hidden until it is published, beside the one with the same key, which will
    /// release `replaces` bytes. On refusal nothing has changed, and a new large value remains the caller's.
    pub fn stage(
        &mut self,
        block: &mut Backing,
        hash: u64,
        key: &[u8],
        value: Value<'_>,
        replaces: usize,
    ) -> Result<(), Answer> {
        let mut reference = [0; LARGE_REF];
        let (head, stored) = self.lay_out(key, value, &mut reference);
        let head = head.stage();
        let fits = self.heap.regions.get(self.map.region_of(hash)).fits(head.size(), true);
        if !fits || !self.heap.affords(self.heap.free(), head.size() + WORD_COST, replaces) {
            self.make_room(block, hash, head.size(), true, replaces)?;
        }
        self.heap.regions.change(self.map.region_of(hash), |region| {
            let at = region.append(block, head, key, stored);
            region.link(block, hash as u32, at, &head);
        });
        self.length += 1;
        Ok(())
    }

    /// Replaces the present entry of a key, if any, by the staged one.
    pub fn publish(&mut self, block: &mut Backing, hash: u64, key: &[u8]) {
        if let Some(old) = self.find(block, hash, key) {
            self.remove(block, &old);
        }
        let staged = self.find_staged(block, hash, key).expect("INV-38: it was staged");
        self.heap.regions.get_mut(staged.region).publish(block, staged.at);
    }

    /// Whether an inline value can be written over an entry in place, without more room.
    pub fn overwrites(&self, block: &mut Backing, old: &Hit, key: &[u8], value: &[u8]) -> bool {
        let head = Head::new(key.len(), value.len(), false);
        head.has_room_of(&old.head) && !block.is_pinned(&(old.at..old.at + head.size()))
    }

    /// Writes an inline value over an entry for which `overwrites` held.
    pub fn overwrite_with(&mut self, block: &mut Backing, old: &Hit, key: &[u8], value: &[u8]) {
        let head = Head::new(key.len(), value.len(), false);
        self.overwrite(block, old, head, value);
    }

    /// Writes a value of the same encoded size over the old one.
    fn overwrite(&mut self, block: &mut Backing, old: &Hit, head: Head, stored: &[u8]) {
        let replaced = large_of(block, old);
        self.drop_extents(block, old);
        let region = self.heap.regions.get_mut(old.region);
        region.large = region.large - old.head.beside() + head.beside();
        region.touch(old.at, head.size());
        let bytes = block.slice_mut(old.at..old.at + head.size());
        head.write(bytes);
        bytes[head.stored(0)].copy_from_slice(stored);
        if let Some(id) = replaced {
            self.heap.free_value(block, id);
        }
    }

    /// Removes an entry. `hit` must be fresh.
    pub fn remove(&mut self, block: &mut Backing, hit: &Hit) {
        let large = large_of(block, hit);
        self.drop_extents(block, hit);
        let empty = self.heap.regions.change(hit.region, |region| {
            region.unlink(block, hit.slot, hit.at, &hit.head);
            region.count == 0
        });
        self.length -= 1;
        if let Some(id) = large {
            self.heap.free_value(block, id);
        }
        // While a range moves away, its regions keep their bounds.
        if empty && self.map.len() > 1 && self.heap.values.copies().is_none() {
            // Its bytes are unchanged, except that the entry is dead.
            self.drop_region(block, self.map.place_of(hit.head.hash(block, hit.at)));
        } else {
            self.heap.shrink_region(block, hit.region);
        }
    }

    /// Gives the range of an empty region to its neighbour.
    fn drop_region(&mut self, block: &mut Backing, place: usize) {
        let id = self.map.remove(place);
        self.heap.forget_region(block, id);
    }

    /// Gives the ranges of all empty regions to their neighbours.
    pub fn drop_empty_regions(&mut self, block: &mut Backing) {
        while self.map.len() > 1 {
            let empty = self.regions_from(0).position(|region| region.count == 0);
            let Some(place) = empty else { return };
            self.drop_region(block, place);
        }
    }

    /// Removes the regions from a hash on, at which one begins; returns them, with their content.
    pub fn remove_from(&mut self, hash: u64) -> Vec<u32> {
        let gone = self.map.split_off(self.map.place_of(hash));
        for id in &gone {
            self.length -= self.heap.regions.get(*id).count as u64;
        }
        gone
    }

    /// The number of entries with hashes from `from` to `last`. `None` if bytes that it needs are missing.
    pub fn count(&self, block: &impl Bytes, from: u64, last: u64) -> Option<u64> {
        let place = self.map.place_of(from);
        let first = self.region_at(place);
        let whole = from == self.map.start(place);
        if !whole && !block.wants(&first.contents()) {
            return None;
        }
        let mut count = match whole {
            true => first.count,
            false => first
                .walk(block)
                .filter(|(at, head)| !head.dead() && head.hash(block, *at) >= from)
                .count(),
        } as u64;
        for next in place + 1..self.map.len() {
            if self.map.start(next) > last {
                break;
            }
            count += self.region_at(next).count as u64;
        }
        Some(count)
    }

    /// Panics unless all parts of the table agree. `beside` are the regions that are arriving or leaving,
    /// which have no hashes.
    pub fn check(&self, block: &Backing, beside: &[u32]) {
        self.heap.arena.check();
        self.map.check();
        let (mut packed, mut large_bytes, mut length) = (0, 0, 0);
        for place in 0..self.map.len() {
            let region = self.region_at(place);
            region.check(block);
            let (start, end) = (self.map.start(place), self.map.end(place, u64::MAX));
            for (at, head) in region.walk(block).filter(|(_, head)| !head.dead()) {
                // INV-17 within the block: every entry is in the region that owns its hash.
                let hash = head.hash(block, at);
                assert!(start <= hash && hash <= end);
                assert!(self.may_have_lists || !head.extents(), "INV-61: lists are known");
                assert!(self.heap.values.of_entry(block, at, &head).len() == head.value_len);
            }
            packed += region.packed();
            length += region.count as u64;
        }
        for id in beside {
            packed += self.heap.regions.get(*id).packed();
        }
        for extent in self.heap.arena.iter() {
            match extent.owner {
                Owner::Zombie => {}
                Owner::Large(id) => {
                    let large = self.heap.values.get(id);
                    assert_eq!((extent.at, extent.len), (large.at, large_room(large.len)));
                    large_bytes += extent.len;
                }
                Owner::Region(id) => {
                    assert!(self.map.regions().iter().chain(beside).any(|other| *other == id));
                    let region = self.heap.regions.get(id);
                    assert_eq!((extent.at, extent.len), (region.at, region.size));
                }
            }
        }
        let totals = (self.heap.regions.packed(), self.heap.values.bytes(), self.length);
        assert_eq!((packed, large_bytes, length), totals);
    }
}

/// The id of the large value of an entry, if it has one.
fn large_of(block: &Backing, hit: &Hit) -> Option<u32> {
    hit.head.large().then(|| large_id(block, hit.at, &hit.head))
}

#[cfg(test)]
mod tests {
    use super::*;
    use honeycomb_block::Reclaimer;
    use honeycomb_wire::key_hash;

    /// Two keys in five are not in their home slot. A prefetch that skipped them made each of their lookups
    /// wait for memory in turn.
    #[test]
    fn a_look_ahead_finds_nearly_every_entry() {
        const SIZE: usize = 4 << 20;
        const KEYS: usize = 20_000;
        let mut block = Backing::map(SIZE, &Reclaimer::inline()).expect("4 MiB can be mapped");
        let mut table = Table::new(crate::CapacityRequest::new(SIZE, SIZE), 0);
        let mut found = 0;
        let key = |i| {
            let key = format!("key:{i:012}");
            let hash = key_hash(key.as_bytes());
            (key, hash)
        };
        for i in 0..KEYS {
            let (key, hash) = key(i);
            let stored =
                table.store(&mut block, hash, key.as_bytes(), None, Value::Inline(&[7; 64]));
            stored.expect("the table has room");
        }
        for i in 0..KEYS {
            let (key, hash) = key(i);
            let hit = table.find(&block, hash, key.as_bytes()).expect("the entry was stored");
            let region = table.heap.regions.get(hit.region);
            // Another key may have the same half of a hash.
            found += usize::from(region.entry_near_home(&block, hash as u32) == Some(hit.at));
        }
        assert!(found * 10 > KEYS * 9, "{found} of {KEYS}");
    }
}
