//! The entries of a block: regions in order of hash, and large values outside of them.

use super::arena::{Arena, Owner, round_up};
use super::export::Sent;
use super::region::{ENTRY, Head, LARGE_REF, Region};
use super::room::pinned_down;
use crate::{Answer, Bytes};
use honeycomb_block::Backing;
use honeycomb_types::limits::{EXTENT_OWNER, REGION_MAX, REGION_MIN};
use honeycomb_types::{BlockId, Bug};
use honeycomb_wire::Status;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes charged for each extent, for its bookkeeping outside of the block.
pub(super) const EXTENT_COST: usize = 128;
/// The size of a block divided by this stays free for the moves that make room. With less free space, each of
/// these would have to move half of the block.
pub(super) const RESERVE_FRACTION: usize = 32;

/// A region is divided before it is 1 / this of its block, three quarters of a 64th.
const REGION_FRACTION: usize = 85;

/// Most bytes that an entry adds to its region's index, or to a large value's bookkeeping.
pub(super) const WORD_COST: usize = 16;

/// The place of a large value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Large {
    pub at: usize,
    pub len: usize,
}

/// A found entry. Valid until the next change of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    pub region: u32,
    slot: usize,
    /// The entry's offset in the block.
    pub at: usize,
    pub head: Head,
}

/// Bytes of the extent for a large value. An empty value has an extent too: it may be a payload that is still
/// to be checked.
fn large_room(len: usize) -> usize {
    round_up(len.max(1))
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
    /// The block's name in errors.
    pub block: BlockId,
    pub size: usize,
    pub region_max: usize,
    pub regions_max: usize,
    pub arena: Arena,
    /// First hash of each region in order, and the region's id beside it.
    pub starts: Vec<u64>,
    pub order: Vec<u32>,
    pub regions: Vec<Region>,
    pub spare_regions: Vec<u32>,
    larges: Vec<Large>,
    spare_larges: Vec<u32>,
    /// Bytes of all regions without waste.
    pub packed: usize,
    pub large_bytes: usize,
    pub length: u64,
    /// The values that another block already has, while a range of hashes moves there.
    pub sent: Option<Box<Sent>>,
    /// Regions of a range that is moving here, not visible yet: by first hash, with the last.
    pub incoming: BTreeMap<u64, (u64, u32)>,
    /// Regions and values of ranges that have moved to another block, to be freed in steps.
    pub leaving: Vec<u32>,
    pub leaving_values: Vec<u32>,
    /// The request to give a part to another block: until it is answered, entries without room wait.
    pub relief: Relief,
    /// Why the last split was refused for lack of memory; `None` after a move begins, another reply, or
    /// 300 ms without a request for a split: memory may have been freed since.
    pub lacking: Option<String>,
    /// Lists of extents of deleted entries: to be dropped.
    pub dropped: Vec<Box<[u8]>>,
}

/// Whether a full block will soon have room because a part of it moves to another block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Relief {
    /// Not by giving a part of it away.
    #[default]
    None,
    /// No move can make room, because these keys fill the block.
    Indivisible(Arc<str>),
    /// A move may be possible; no operation has needed it yet.
    Possible,
    /// A move may be possible; an operation had no room, and waits for the decision.
    Wanted,
    /// A part of the block is about to move.
    Coming,
    /// No other block is available, for this reason.
    Denied(Status, String),
}

impl Table {
    pub fn new(size: usize, start: u64) -> Table {
        Table {
            block: BlockId::default(),
            size,
            region_max: (size / REGION_FRACTION).clamp(REGION_MIN as usize, REGION_MAX as usize),
            regions_max: size / REGION_MIN as usize,
            arena: Arena::new(size),
            starts: vec![start],
            order: vec![0],
            regions: vec![Region::default()],
            spare_regions: Vec::new(),
            larges: Vec::new(),
            spare_larges: Vec::new(),
            packed: 0,
            large_bytes: 0,
            length: 0,
            sent: None,
            incoming: BTreeMap::new(),
            leaving: Vec::new(),
            leaving_values: Vec::new(),
            relief: Relief::None,
            lacking: None,
            dropped: Vec::new(),
        }
    }

    /// Bytes in use or reserved, with the bookkeeping.
    pub fn taken(&self) -> usize {
        self.packed
            + self.large_bytes
            + self.arena.zombie_bytes()
            + self.arena.extents() * EXTENT_COST
    }

    /// Bytes that are not taken.
    pub fn free(&self) -> usize {
        self.size.saturating_sub(self.taken())
    }

    /// Place of a hash in the order of regions.
    #[inline]
    pub fn place_of(&self, hash: u64) -> usize {
        self.place_if_any(hash).expect("INV-17: a hash of the block's range has a region")
    }

    #[inline]
    fn place_if_any(&self, hash: u64) -> Option<usize> {
        self.starts.partition_point(|start| *start <= hash).checked_sub(1)
    }

    #[inline]
    pub fn region_of(&self, hash: u64) -> u32 {
        self.order[self.place_of(hash)]
    }

    /// The region of any hash, also one outside of the block's range.
    #[inline]
    pub fn region_if_any(&self, hash: u64) -> Option<u32> {
        self.place_if_any(hash).map(|place| self.order[place])
    }

    #[inline]
    pub fn find(&self, block: &impl Bytes, hash: u64, key: &[u8]) -> Option<Hit> {
        self.look_up(block, self.region_of(hash), hash as u32, key, false)
    }

    /// As `find`, if the region of the key's hash is known; `low` is the hash's lower half.
    #[inline]
    pub fn find_in(&self, block: &impl Bytes, region: u32, low: u32, key: &[u8]) -> Option<Hit> {
        self.look_up(block, region, low, key, false)
    }

    /// Whether all bytes are present that `find` may read.
    #[inline]
    pub fn can_find(&self, block: &impl Bytes, hash: u64, key: &[u8]) -> bool {
        let region = &self.regions[self.region_of(hash) as usize];
        region.can_find(block, hash as u32, key.len())
    }

    /// The entry that an atomic batch has staged for a key.
    pub(super) fn find_staged(&self, block: &Backing, hash: u64, key: &[u8]) -> Option<Hit> {
        self.look_up(block, self.region_of(hash), hash as u32, key, true)
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
        let region = &self.regions[id as usize];
        region.load.set(region.load.get().saturating_add(1));
        let found = region.find(block, low, |head, at| {
            head.key_len == key.len()
                && head.staged() == staged
                && block.slice(at + ENTRY..at + ENTRY + key.len()) == key
        });
        found.map(|(slot, at, head)| Hit { region: id, slot, at, head })
    }

    /// The bytes of an entry's value, in its region or outside of it.
    #[inline]
    pub fn value(&self, block: &impl Bytes, at: usize, head: &Head) -> Range<usize> {
        let stored = at + ENTRY + head.key_len;
        if !head.large() {
            return stored..stored + head.value_len;
        }
        let large = self.larges[self.large_id(block, at, head) as usize];
        assert_eq!(large.len, head.value_len, "an entry and its large value agree");
        large.at..large.at + large.len
    }

    fn large_id(&self, block: &impl Bytes, at: usize, head: &Head) -> u32 {
        let stored = at + ENTRY + head.key_len;
        let bytes = block.slice(stored..stored + LARGE_REF);
        u32::from_le_bytes(bytes.try_into().expect("four bytes"))
    }

    /// The id of the large value of an entry, if it has one.
    fn large_of(&self, block: &Backing, hit: &Hit) -> Option<u32> {
        hit.head.large().then(|| self.large_id(block, hit.at, &hit.head))
    }

    /// Notes the extents of an entry that is about to be removed.
    fn drop_extents(&mut self, block: &Backing, hit: &Hit) {
        if hit.head.extents() && !Bug::ExtentsKept.active() {
            self.dropped.push(block.slice(self.value(block, hit.at, &hit.head)).into());
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
        let entries = self.regions[id as usize].walk(block).filter(live);
        entries.map(|(at, head)| self.value(block, at, &head)).collect()
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
        if let Some(hit) = &old
            && hit.head.size() == head.size()
            && !block.is_pinned(&(hit.at..hit.at + head.size()))
        {
            self.overwrite(block, hit, head, stored);
            return Ok(());
        }
        let mut region = self.region_of(hash);
        let fits = self.regions[region as usize].fits(head.size(), old.is_none());
        let replaces = old.map_or(0, |hit| hit.head.size() + WORD_COST);
        if !fits || !self.affords(self.free(), head.size() + WORD_COST, replaces) {
            self.make_room(block, hash, head.size(), old.is_none(), replaces)?;
            region = self.region_of(hash);
            if old.is_some() {
                old = self.find(block, hash, key);
                assert!(old.is_some(), "INV-06: making room loses no entry");
            }
        }
        let replaced = old.and_then(|hit| self.large_of(block, &hit));
        if let Some(hit) = &old {
            self.drop_extents(block, hit);
        }
        let region = &mut self.regions[region as usize];
        let before = region.packed();
        let at = region.append(block, head, key, stored);
        match &old {
            Some(hit) => region.relink(block, hit.slot, hit.at, &hit.head, at),
            None => {
                region.link(block, hash as u32, at, &head);
                self.length += 1;
            }
        }
        self.packed = self.packed - before + region.packed();
        if let Some(id) = replaced {
            self.free_large(block, id);
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
                (Head::new(key.len(), self.larges[id as usize].len, true), reference)
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
        let fits = self.regions[self.region_of(hash) as usize].fits(head.size(), true);
        if !fits || !self.affords(self.free(), head.size() + WORD_COST, replaces) {
            self.make_room(block, hash, head.size(), true, replaces)?;
        }
        let region = self.region_of(hash) as usize;
        let region = &mut self.regions[region];
        let before = region.packed();
        let at = region.append(block, head, key, stored);
        region.link(block, hash as u32, at, &head);
        self.packed = self.packed - before + region.packed();
        self.length += 1;
        Ok(())
    }

    /// Replaces the present entry of a key, if any, by the staged one.
    pub fn publish(&mut self, block: &mut Backing, hash: u64, key: &[u8]) {
        if let Some(old) = self.find(block, hash, key) {
            self.remove(block, &old);
        }
        let staged = self.find_staged(block, hash, key).expect("INV-38: it was staged");
        self.regions[staged.region as usize].publish(block, staged.at);
    }

    /// Whether an inline value can be written over an entry in place, without more room.
    pub fn overwrites(&self, block: &mut Backing, old: &Hit, key: &[u8], value: &[u8]) -> bool {
        let head = Head::new(key.len(), value.len(), false);
        head.size() == old.head.size() && !block.is_pinned(&(old.at..old.at + head.size()))
    }

    /// Writes an inline value over an entry for which `overwrites` held.
    pub fn overwrite_with(&mut self, block: &mut Backing, old: &Hit, key: &[u8], value: &[u8]) {
        let head = Head::new(key.len(), value.len(), false);
        self.overwrite(block, old, head, value);
    }

    /// Writes a value of the same encoded size over the old one.
    fn overwrite(&mut self, block: &mut Backing, old: &Hit, head: Head, stored: &[u8]) {
        let replaced = self.large_of(block, old);
        self.drop_extents(block, old);
        let region = &mut self.regions[old.region as usize];
        region.large = region.large - old.head.beside() + head.beside();
        region.touch(old.at, head.size());
        let bytes = block.slice_mut(old.at..old.at + head.size());
        head.write(bytes);
        bytes[ENTRY + head.key_len..][..stored.len()].copy_from_slice(stored);
        if let Some(id) = replaced {
            self.free_large(block, id);
        }
    }

    /// Removes an entry. `hit` must be fresh.
    pub fn remove(&mut self, block: &mut Backing, hit: &Hit) {
        let large = self.large_of(block, hit);
        self.drop_extents(block, hit);
        let region = &mut self.regions[hit.region as usize];
        let before = region.packed();
        region.unlink(block, hit.slot, hit.at, &hit.head);
        self.packed = self.packed - before + region.packed();
        self.length -= 1;
        let empty = region.count == 0;
        if let Some(id) = large {
            self.free_large(block, id);
        }
        // While a range moves away, its regions keep their bounds.
        if empty && self.order.len() > 1 && self.sent.is_none() {
            // Its bytes are unchanged, except that the entry is dead.
            self.drop_region(block, hit.head.hash(block, hit.at));
        } else {
            self.shrink_region(block, hit.region);
        }
    }

    /// Gives the range of an empty region to its neighbour.
    pub(super) fn drop_region(&mut self, block: &mut Backing, hash: u64) {
        let place = self.place_of(hash);
        let id = self.order.remove(place);
        // The range of the previous region is extended; the first region has no predecessor, so the next
        // region gets its start.
        self.starts.remove(if place == 0 { 1 } else { place });
        self.forget_region(block, id);
    }

    /// Frees a region that has no hashes any more.
    pub(super) fn forget_region(&mut self, block: &mut Backing, id: u32) {
        let region = std::mem::take(&mut self.regions[id as usize]);
        if region.size > 0 {
            self.packed -= region.packed();
            self.arena.retire(block, region.at);
        }
        self.spare_regions.push(id);
    }

    /// An id for a new region.
    pub fn new_region(&mut self) -> u32 {
        self.spare_regions.pop().unwrap_or_else(|| {
            self.regions.push(Region::default());
            self.regions.len() as u32 - 1
        })
    }

    /// Allocates an extent for a value. `replaces` bytes will be released when it is stored.
    pub fn alloc_large(
        &mut self,
        block: &mut Backing,
        len: usize,
        replaces: usize,
    ) -> Result<u32, Answer> {
        let room = large_room(len);
        let gross = room + EXTENT_COST + WORD_COST;
        self.check_budget(block, gross, replaces)?;
        let pinned = self.pinned(block);
        let id = match self.spare_larges.pop() {
            Some(id) => id,
            None => {
                self.larges.push(Large { at: 0, len: 0 });
                self.larges.len() as u32 - 1
            }
        };
        let Some(at) = self.find_hole(block, room, Owner::Large(id)) else {
            assert!(pinned, "a block whose totals have room and that has no pins has room");
            self.spare_larges.push(id);
            return Err(pinned_down());
        };
        self.larges[id as usize] = Large { at, len };
        self.large_bytes += room;
        Ok(id)
    }

    /// Frees the rest of a large value: its first `skip` bytes, and everything after `len` more.
    pub fn trim_large(&mut self, block: &mut Backing, id: u32, skip: usize, len: usize) {
        let large = &mut self.larges[id as usize];
        block.copy_within(large.at + skip..large.at + skip + len, large.at);
        self.large_bytes = self.large_bytes - large_room(large.len) + large_room(len);
        large.len = len;
        self.arena.resize(large.at, large_room(len));
    }

    /// Frees a large value.
    pub fn free_large(&mut self, block: &mut Backing, id: u32) {
        let large = self.larges[id as usize];
        self.large_bytes -= large_room(large.len);
        self.arena.retire(block, large.at);
        self.spare_larges.push(id);
        if let Some(sent) = &mut self.sent {
            sent.freed(id, large.len);
        }
    }

    /// Turns the extent of a large value into that of a region whose bytes have arrived in it. The large
    /// value no longer exists. `false` if the bytes are not a region; then the extent is freed.
    pub fn turn_into_region(&mut self, block: &mut Backing, large: u32, id: u32) -> bool {
        let Large { len, .. } = self.larges[large as usize];
        self.turn_into_region_of(block, large, id, len)
    }

    /// As above, if only the first `end` bytes of the extent are the region's.
    pub fn turn_into_region_of(
        &mut self,
        block: &mut Backing,
        large: u32,
        id: u32,
        end: usize,
    ) -> bool {
        let Large { at, len } = self.larges[large as usize];
        let Some(mut region) = Region::arrived(block, at, end, large_room(len)) else {
            self.free_large(block, large);
            return false;
        };
        self.large_bytes -= large_room(len);
        self.spare_larges.push(large);
        self.arena.give_to(at, Owner::Region(id));
        self.packed += region.packed();
        // The rest of the region must find room in its place.
        let room = self.size.saturating_sub(self.taken() + self.size / RESERVE_FRACTION);
        let more = self.arena.hole_after(at).min(len / 8).min(room) / 8 * 8;
        region.size += more;
        self.packed += more;
        self.arena.resize(at, region.size);
        self.regions[id as usize] = region;
        true
    }

    /// Ids of the values beside a region's entries, with the offsets in the block at which the entries store
    /// them.
    pub fn larges_of(&self, block: &Backing, id: u32) -> Vec<(usize, u32)> {
        let region = &self.regions[id as usize];
        let entries = region.walk(block).filter(|(_, head)| !head.dead() && head.large());
        entries
            .map(|(at, head)| (at + ENTRY + head.key_len, self.large_id(block, at, &head)))
            .collect()
    }

    /// The bytes of a large value.
    pub fn large(&self, id: u32) -> Range<usize> {
        let large = self.larges[id as usize];
        large.at..large.at + large.len
    }

    /// The place of each large value, by its id; meaningless for an unused id.
    pub fn larges(&self) -> Vec<Range<usize>> {
        self.larges.iter().map(|large| large.at..large.at + large.len).collect()
    }

    pub fn move_large(&mut self, block: &mut Backing, id: u32, to: usize) {
        let from = self.large(id);
        block.copy_within(from, to);
        self.larges[id as usize].at = to;
    }

    /// Regions that are arriving or leaving: they have no hashes.
    fn beside(&self) -> impl Iterator<Item = u32> + '_ {
        let coming = self.incoming.values().map(|(_, id)| *id);
        coming.chain(self.leaving.iter().copied())
    }

    /// Panics unless all parts of the table agree.
    pub fn check(&self, block: &Backing) {
        self.arena.check();
        assert!(self.starts.is_sorted() && self.starts.len() == self.order.len());
        let (mut packed, mut large_bytes, mut length) = (0, 0, 0);
        for (place, id) in self.order.iter().enumerate() {
            let region = &self.regions[*id as usize];
            region.check(block);
            let end = self.starts.get(place + 1).copied();
            for (at, head) in region.walk(block).filter(|(_, head)| !head.dead()) {
                // INV-17 within the block: every entry is in the region that owns its hash.
                let hash = head.hash(block, at);
                assert!(self.starts[place] <= hash && end.is_none_or(|e| hash < e));
                assert!(self.value(block, at, &head).len() == head.value_len);
            }
            packed += region.packed();
            length += region.count as u64;
        }
        for id in self.beside() {
            packed += self.regions[id as usize].packed();
        }
        for extent in self.arena.iter() {
            match extent.owner {
                Owner::Zombie => {}
                Owner::Large(id) => {
                    let large = self.larges[id as usize];
                    assert_eq!((extent.at, extent.len), (large.at, large_room(large.len)));
                    large_bytes += extent.len;
                }
                Owner::Region(id) => {
                    assert!(self.order.contains(&id) || self.beside().any(|other| other == id));
                    let region = &self.regions[id as usize];
                    assert_eq!((extent.at, extent.len), (region.at, region.size));
                }
            }
        }
        assert_eq!((packed, large_bytes, length), (self.packed, self.large_bytes, self.length));
    }
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
        let mut table = Table::new(SIZE, 0);
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
            let region = &table.regions[hit.region as usize];
            // Another key may have the same half of a hash.
            found += usize::from(region.entry_near_home(&block, hash as u32) == Some(hit.at));
        }
        assert!(found * 10 > KEYS * 9, "{found} of {KEYS}");
    }
}
