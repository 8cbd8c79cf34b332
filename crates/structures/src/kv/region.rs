//! One region: a self-contained run of bytes that holds the entries of a range of hashes.
//!
//! ```text
//! header   magic u32, slots u32, count u32, end u32, live u32, 0 u32 x 3
//! index    slots x u64: low 32 bits of the hash, then (offset of the entry / 4) + 1; 0 is empty
//! log      entries, each: head, key, value (or the id of a large one, u32), padding to 4 and to at least 8
//! head     flags u8, key length u8, value length u16; or, for longer keys or values, with the flag `LONG`:
//!          flags u8, 0 u8, key length u16, value length u32
//! ```
//! Offsets count from the start of the region, so that moving one is copying its bytes. `index.rs` has the
//! index. An entry that was deleted or replaced stays in the log, flagged dead, until the region is rebuilt.

mod received;

pub(super) use received::Received;

use super::index::{Index, slots_for};
use super::patches::Unsent;
use crate::Bytes;
use honeycomb_block::Backing;
use honeycomb_types::limits::TIER_CHUNK;
use honeycomb_wire::key_hash;
use std::cell::Cell;
use std::ops::Range;

/// Bytes of a region's header.
pub(super) const HEADER: usize = 32;
/// Bytes at the beginning of an entry that contain its head. No entry has fewer.
pub(super) const ENTRY: usize = 8;
/// Bytes of a head without the flag `LONG`.
const SHORT_HEAD: usize = 4;
/// The offsets of entries in their region are multiples of this.
pub(super) const ENTRY_ALIGN: usize = 4;
/// Bytes of a large value's id in its entry.
pub(super) const LARGE_REF: usize = 4;

/// Bytes of an entry that are prefetched before it is read: all of a small one.
const PREFETCH: usize = 96;

/// A region of up to this many bytes is read from a lower tier as a whole.
const WHOLE_MAX: usize = 32 * 1024;

const MAGIC: u32 = u32::from_le_bytes(*b"HCR3");
const DEAD: u8 = 1;
const LARGE: u8 = 2;
/// Written by an atomic batch that is not decided yet. Does not exist between two operations.
const STAGED: u8 = 4;
/// The value is a list of extents in blocks of their own (`large.rs`).
const EXTENTS: u8 = 8;
/// The head has 8 bytes and not 4.
const LONG: u8 = 16;
const FLAGS_AT: usize = 0;

/// The part of an entry before its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub key_len: usize,
    pub value_len: usize,
    flags: u8,
}

impl Head {
    pub fn new(key_len: usize, value_len: usize, large: bool) -> Head {
        let is_long = key_len > u8::MAX as usize || value_len > u16::MAX as usize;
        let flags = if large { LARGE } else { 0 } | if is_long { LONG } else { 0 };
        Head { key_len, value_len, flags }
    }

    #[inline]
    pub fn read(bytes: &[u8]) -> Head {
        let b: &[u8; ENTRY] = bytes.first_chunk().expect("the log holds whole entries");
        let flags = b[FLAGS_AT];
        let second = u16::from_le_bytes([b[2], b[3]]) as usize;
        let (key_len, value_len) = match flags & LONG != 0 {
            false => (b[1] as usize, second),
            true => (second, u32::from_le_bytes([b[4], b[5], b[6], b[7]]) as usize),
        };
        Head { key_len, value_len, flags }
    }

    #[inline]
    pub fn write(&self, bytes: &mut [u8]) {
        bytes[FLAGS_AT] = self.flags;
        if self.flags & LONG == 0 {
            bytes[1] = self.key_len as u8;
            bytes[2..4].copy_from_slice(&(self.value_len as u16).to_le_bytes());
        } else {
            bytes[1] = 0;
            bytes[2..4].copy_from_slice(&(self.key_len as u16).to_le_bytes());
            bytes[4..8].copy_from_slice(&(self.value_len as u32).to_le_bytes());
        }
    }

    /// Bytes of the head.
    #[inline]
    pub fn len(&self) -> usize {
        if self.flags & LONG == 0 { SHORT_HEAD } else { ENTRY }
    }

    /// The place of the key of an entry at `at`.
    #[inline]
    pub fn key(&self, at: usize) -> Range<usize> {
        let key = at + self.len();
        key..key + self.key_len
    }

    /// The place of the value of an entry at `at`, or of the id of a large one.
    #[inline]
    pub fn stored(&self, at: usize) -> Range<usize> {
        let stored = self.key(at).end;
        stored..stored + self.stored_len()
    }

    /// The hash of the key of an entry with this head, at `at` in the block.
    pub fn hash(&self, block: &impl Bytes, at: usize) -> u64 {
        key_hash(block.slice(self.key(at)))
    }

    /// Whether an entry with this head can be written over one with the other: its key stays.
    pub fn has_room_of(&self, other: &Head) -> bool {
        self.size() == other.size() && self.len() == other.len()
    }

    pub fn dead(&self) -> bool {
        self.flags & DEAD != 0
    }

    pub fn large(&self) -> bool {
        self.flags & LARGE != 0
    }

    /// Whether the stored value is a list of extents.
    pub fn extents(&self) -> bool {
        self.flags & EXTENTS != 0
    }

    /// This head, for a value that is a list of extents.
    pub fn of_extents(self) -> Head {
        Head { flags: self.flags | EXTENTS, ..self }
    }

    #[inline]
    pub fn staged(&self) -> bool {
        self.flags & STAGED != 0
    }

    /// This head, hidden until `publish`.
    pub fn stage(self) -> Head {
        Head { flags: self.flags | STAGED, ..self }
    }

    /// Bytes of the value in the log itself.
    pub fn stored_len(&self) -> usize {
        if self.large() { LARGE_REF } else { self.value_len }
    }

    /// Bytes of the entry.
    #[inline]
    pub fn size(&self) -> usize {
        let bytes = self.len() + self.key_len + self.stored_len();
        bytes.next_multiple_of(ENTRY_ALIGN).max(ENTRY)
    }

    /// Bytes of the value outside of the region.
    pub fn beside(&self) -> usize {
        if self.large() { self.value_len } else { 0 }
    }
}

/// The place of one region, and how full it is. Mirrors the header in the block.
#[derive(Clone, Debug, Default)]
pub(super) struct Region {
    /// Start of the region's extent. Undefined while `size` is 0, because the region has no extent yet.
    pub at: usize,
    /// Bytes of its extent.
    pub size: usize,
    index: Index,
    /// Live entries.
    pub count: usize,
    /// End of the log, from the start of the region.
    end: usize,
    /// Bytes of the live entries.
    pub live: usize,
    /// Bytes of the live entries' values outside of the region.
    pub large: usize,
    /// Operations on its keys, weighted by age.
    pub load: Cell<u32>,
    /// The bytes that a copy of the region in another block lacks.
    pub unsent: Unsent,
    /// Whether the region is being received with the layout of its source: it is then moved unchanged instead
    /// of rebuilt, so that later changes at the source can be patched in.
    pub fixed: bool,
}

impl Region {
    /// Its bytes in the block.
    pub fn extent(&self) -> Range<usize> {
        self.at..self.at + self.size
    }

    /// The bytes that the region's entries would need in another block, including their values outside of the
    /// region.
    pub fn weight(&self) -> usize {
        self.packed() + self.large
    }

    /// Bytes to send so that a copy in another block is up to date.
    pub fn unsent(&self) -> usize {
        self.unsent.bytes(self.contents().len())
    }

    /// The bytes with its whole content: a move of the region moves these.
    pub fn contents(&self) -> Range<usize> {
        self.at..self.at + self.end
    }

    /// Its size without dead entries and room to grow.
    #[inline]
    pub fn packed(&self) -> usize {
        match self.size {
            0 => 0,
            size if self.fixed => size,
            _ => packed_len(self.count, self.live),
        }
    }

    /// As `packed`, with another entry of `entry` bytes, which replaces one or is `new`.
    pub fn packed_with(&self, entry: usize, new: bool) -> usize {
        packed_len(self.count + new as usize, self.live + entry)
    }

    /// Whether an entry can be appended without a change of the layout.
    #[inline]
    pub fn fits(&self, entry: usize, new: bool) -> bool {
        self.size - self.end >= entry && !(new && self.index.is_full(self.count))
    }

    /// Whether an entry would fit if only the log had more room.
    pub fn extends(&self, entry: usize, new: bool, size: usize) -> bool {
        self.size > 0 && size - self.end >= entry && !(new && self.index.is_full(self.count))
    }

    /// The slot and offset in the block of the entry for which `same` holds, among those with this half of a
    /// hash.
    #[inline]
    pub fn find(
        &self,
        block: &impl Bytes,
        low: u32,
        mut same: impl FnMut(&Head, usize) -> bool,
    ) -> Option<(usize, usize, Head)> {
        if self.count == 0 {
            return None;
        }
        self.index.probe(block.slice(self.words()), low).find_map(|(slot, offset)| {
            let at = self.at + offset;
            let head = Head::read(block.slice(at..at + ENTRY));
            same(&head, at).then_some((slot, at, head))
        })
    }

    /// Whether all bytes are present that `find` may read for a key of so many bytes. Of a small region these
    /// are all bytes; of a large region first its index, and then the entries with this half of a hash.
    #[inline]
    pub fn can_find(&self, block: &impl Bytes, low: u32, key_len: usize) -> bool {
        all_of(block) || self.wants_found(block, low, key_len)
    }

    fn wants_found(&self, block: &impl Bytes, low: u32, key_len: usize) -> bool {
        let all = self.contents();
        if self.count == 0 || block.has(&all) {
            return true;
        }
        if all.len() <= WHOLE_MAX {
            return block.wants(&all);
        }
        if !block.wants(&self.words()) {
            return false;
        }
        let mut there = true;
        for (_, offset) in self.index.probe(block.slice(self.words()), low) {
            let at = self.at + offset;
            there &= block.wants(&(at..(at + ENTRY + key_len + LARGE_REF).min(all.end)));
        }
        there
    }

    /// Estimate of the bytes that a lookup reads from a lower tier.
    pub fn lookup_bytes(&self) -> usize {
        let all = self.contents().len();
        if all <= WHOLE_MAX { all } else { self.index.len() + TIER_CHUNK }
    }

    /// Prefetches the words of the index with which `find` begins.
    #[inline]
    pub fn prefetch_index(&self, block: &impl Bytes, low: u32) {
        if self.count > 0 {
            let near = self.index.near_home(low);
            block.prefetch(self.at + HEADER + near.start..self.at + HEADER + near.end);
        }
    }

    /// Prefetches the first entry with this half of a hash, if it is near its home slot.
    #[inline]
    pub fn prefetch_entry(&self, block: &impl Bytes, low: u32) {
        if let Some(at) = self.entry_near_home(block, low) {
            block.prefetch(at..at + PREFETCH);
        }
    }

    /// The offset of the first entry with this half of a hash, if `prefetch_index` has prefetched its word.
    #[inline]
    pub fn entry_near_home(&self, block: &impl Bytes, low: u32) -> Option<usize> {
        if self.count == 0 {
            return None;
        }
        let offset = self.index.look_near_home(block.slice(self.words()), low)?;
        Some(self.at + offset)
    }

    /// Appends an entry to the log. The caller fills in the index and the counts.
    #[inline]
    pub fn append(&mut self, block: &mut Backing, head: Head, key: &[u8], stored: &[u8]) -> usize {
        let (at, size) = (self.at + self.end, head.size());
        assert!(self.end + size <= self.size, "an entry would leave its region");
        let bytes = block.slice_mut(at..at + size);
        head.write(bytes);
        bytes[head.key(0)].copy_from_slice(key);
        bytes[head.stored(0)].copy_from_slice(stored);
        self.end += size;
        self.touch(at, size);
        at
    }

    /// Notes changed bytes, by their offset in the block.
    #[inline]
    pub fn touch(&mut self, at: usize, length: usize) {
        self.unsent.add(at - self.at..at - self.at + length);
    }

    /// Counts an appended entry as new and adds it to the index.
    pub fn link(&mut self, block: &mut Backing, low: u32, at: usize, head: &Head) {
        let offset = at - self.at;
        let slot = self.index.insert(block.slice_mut(self.words()), low, offset);
        self.unsent.add(slot_bytes(slot));
        self.count += 1;
        self.live += head.size();
        self.large += head.beside();
        self.write_header(block);
    }

    /// Replaces the entry at `slot`, whose size was `old`, by an appended entry.
    pub fn relink(
        &mut self,
        block: &mut Backing,
        slot: usize,
        old_at: usize,
        old: &Head,
        at: usize,
    ) {
        let new = Head::read(block.slice(at..at + ENTRY));
        self.index.replace(block.slice_mut(self.words()), slot, at - self.at);
        self.unsent.add(slot_bytes(slot));
        self.kill(block, old_at);
        self.live = self.live - old.size() + new.size();
        self.large = self.large - old.beside() + new.beside();
        self.write_header(block);
    }

    /// Removes the entry at `slot`.
    pub fn unlink(&mut self, block: &mut Backing, slot: usize, at: usize, head: &Head) {
        self.kill(block, at);
        let words = block.slice_mut(self.words());
        self.index.remove(words, slot, |slot| self.unsent.add(slot_bytes(slot)));
        self.count -= 1;
        self.live -= head.size();
        self.large -= head.beside();
        if self.count == 0 && !block.is_pinned(&self.extent()) {
            self.end = self.log_start();
        }
        self.write_header(block);
    }

    /// The entries in the log, dead ones included, with their offsets in the block.
    pub fn walk<'b, B: Bytes>(
        &self,
        block: &'b B,
    ) -> impl Iterator<Item = (usize, Head)> + use<'b, B> {
        let (mut at, end) = (self.at + self.log_start(), self.at + self.end);
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let head = Head::read(block.slice(at..at + ENTRY));
                let here = at;
                at += head.size();
                (here, head)
            })
        })
    }

    /// Rebuilds the region in `to`: without its dead entries, with an index that suits the room. `entry` is
    /// the size of the entry that will be appended next.
    ///
    /// `to` may overlap the old place, which must then be free of pins; everything else in `to` is
    /// overwritten.
    pub fn relay(&mut self, block: &mut Backing, to: Range<usize>, entry: usize, new: bool) {
        let index = Index::fitting(to.len(), self.count + new as usize, self.live + entry);
        self.relay_with(block, to, index);
    }

    /// As `relay`, into as little room as it needs or, without dead entries, unchanged.
    pub fn slide(&mut self, block: &mut Backing, to: Range<usize>) {
        if to.len() >= self.size {
            block.copy_within(self.at..self.at + self.end, to.start);
            (self.at, self.size) = (to.start, to.len());
        } else {
            self.relay_with(block, to.clone(), Index::fitting(to.len(), self.count, self.live));
        }
    }

    fn relay_with(&mut self, block: &mut Backing, to: Range<usize>, index: Index) {
        assert!(!self.fixed, "INV-19: a region that is being sent changes its layout");
        let from = self.at + self.log_start()..self.at + self.end;
        let log = to.start + HEADER + index.len();
        let mut words = None;
        let end = if self.live == 0 {
            log
        } else if self.dead() == 0 {
            words = Some(self.index.used(block.slice(self.words())));
            block.copy_within(from.clone(), log);
            log + from.len()
        } else if log <= from.start || to.start >= self.extent().end || to.end <= self.at {
            // The writes are at lower offsets than the bytes that are still to be read, or in another place.
            copy_live(block, from, log)
        } else {
            let packed = from.start..copy_live(block, from.clone(), from.start);
            block.copy_within(packed.clone(), log);
            log + packed.len()
        };
        assert!(end <= to.end, "a region of {} bytes does not fit {to:?}", end - to.start);
        assert_eq!(end - log, self.live, "the log has the counted bytes");
        self.unsent = Unsent::all();
        let moved = (log - to.start).wrapping_sub(self.log_start());
        (self.at, self.size) = (to.start, to.len());
        (self.index, self.end) = (index, end - to.start);
        match words {
            Some(words) => self.index.refill(block.slice_mut(self.words()), &words, moved),
            None => self.build_index(block),
        }
        self.write_header(block);
    }

    /// The parts of the region after a division at a hash.
    pub fn parts(&self, block: &Backing, hash: u64) -> RegionHalves {
        let mut parts = RegionHalves::default();
        parts.lower.log.reserve(self.live);
        parts.upper.log.reserve(self.live);
        for (at, head) in self.walk(block).filter(|(_, head)| !head.dead()) {
            let part =
                if head.hash(block, at) < hash { &mut parts.lower } else { &mut parts.upper };
            part.take(block.slice(at..at + head.size()), &head);
        }
        parts
    }

    /// Divides the region in place, into parts that were computed from it and fit into it; returns the upper
    /// one, which follows the lower one.
    pub fn divide(&mut self, block: &mut Backing, parts: RegionHalves) -> Region {
        let RegionHalves { lower, upper } = parts;
        let (left, right) = (lower.needs(), upper.needs());
        let spare = self.size.checked_sub(left + right).expect("the caller has made room for both");
        // The rest is shared in proportion to the entries.
        let more = (spare as u128 * right as u128 / (left + right) as u128) as usize / 8 * 8;
        let (at, size, cut) = (self.at, self.size, self.size - right - more);
        let upper = upper.lay(block, at + cut..at + size);
        let load = self.load.take();
        *self = lower.lay(block, at..at + cut);
        self.share_load(&upper, load);
        upper
    }

    /// Moves the upper entries to a new region in `to`, and keeps the first `keeps` bytes of its own extent
    /// for the others.
    pub fn split_off(
        &mut self,
        block: &mut Backing,
        above: &Above,
        to: Range<usize>,
        keeps: usize,
    ) -> Region {
        let (all, log) = (self.count, self.log());
        let Above { count, live, .. } = *above;
        // The region has fewer entries than before, so that its log begins no later than before, and no write
        // reaches bytes that are still to be read.
        let index = Index::fitting(keeps, self.count - count, self.live - live).min(self.index);
        let mut left = Region { at: self.at, size: keeps, index, ..self.clone() };
        let index = Index::fitting(to.len(), count, live);
        let mut right = Region { at: to.start, size: to.len(), index, ..Region::default() };
        for part in [&mut left, &mut right] {
            (part.count, part.live, part.large) = (0, 0, 0);
            (part.end, part.unsent) = (part.log_start(), Unsent::all());
            block.slice_mut(part.words()).fill(0);
        }
        let mut at = log.start;
        while at < log.end {
            let head = Head::read(block.slice(at..at + ENTRY));
            if !head.dead() {
                let hash = head.hash(block, at);
                let part = if hash >= above.hash { &mut right } else { &mut left };
                part.take(block, at, hash as u32, &head);
            }
            at += head.size();
        }
        assert_eq!((right.count, right.live, left.count + count), (count, live, all));
        left.write_header(block);
        right.write_header(block);
        let load = self.load.take();
        *self = left;
        self.share_load(&right, load);
        right
    }

    /// Appends an entry from another, later place.
    fn take(&mut self, block: &mut Backing, at: usize, low: u32, head: &Head) {
        let (to, size) = (self.end, head.size());
        assert!(to + size <= self.size, "a part of a region holds its entries");
        if self.at + to != at {
            block.copy_within(at..at + size, self.at + to);
        }
        self.index.insert(block.slice_mut(self.words()), low, to);
        self.end += size;
        self.count += 1;
        self.live += size;
        self.large += head.beside();
    }

    /// Divides the load of both between the two parts of a region, by their entries.
    fn share_load(&self, right: &Region, load: u32) {
        let all = (self.count + right.count).max(1) as u64;
        let theirs = (load as u64 * right.count as u64 / all) as u32;
        right.load.set(theirs);
        self.load.set(load - theirs);
    }

    /// The range of its log in the block.
    pub fn log(&self) -> Range<usize> {
        self.at + self.log_start()..self.at + self.end
    }

    fn kill(&mut self, block: &mut Backing, at: usize) {
        block.slice_mut(at + FLAGS_AT..at + FLAGS_AT + 1)[0] |= DEAD;
        self.touch(at + FLAGS_AT, 1);
    }

    /// Makes a staged entry an ordinary one.
    pub fn publish(&mut self, block: &mut Backing, at: usize) {
        block.slice_mut(at + FLAGS_AT..at + FLAGS_AT + 1)[0] &= !STAGED;
        self.touch(at + FLAGS_AT, 1);
    }

    /// Reads the header of a region that arrived from another block into an extent of `size` bytes, of which
    /// the first `end` are its own. `None` if they are not a region. The caller counts the values beside it.
    pub fn arrived(block: &Backing, at: usize, end: usize, size: usize) -> Option<Region> {
        let bytes = block.slice(at..at + end);
        let field = |i: usize| -> Option<usize> {
            let bytes = bytes.get(4 * i..4 * i + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize)
        };
        let (slots, count, live) = (field(1)?, field(2)?, field(4)?);
        let (index, unsent) = (Index::of(slots), Unsent::all());
        let whole = Region { fixed: true, unsent, ..Region::default() };
        let region = Region { at, size, index, count, end, live, ..whole };
        let log = HEADER.checked_add(slots.checked_mul(8)?)?;
        let sound = bytes.get(..HEADER)? == region.header()
            && log <= end
            && live <= end - log
            && slots_for(count) <= slots
            && (end - log).is_multiple_of(ENTRY_ALIGN);
        sound.then_some(region)
    }

    fn log_start(&self) -> usize {
        if self.size == 0 { 0 } else { HEADER + self.index.len() }
    }

    fn dead(&self) -> usize {
        self.end - self.log_start() - self.live
    }

    /// The words of the index.
    fn words(&self) -> Range<usize> {
        self.at + HEADER..self.at + HEADER + self.index.len()
    }

    fn build_index(&self, block: &mut Backing) {
        let bytes = block.slice_mut(self.at + HEADER..self.at + self.end);
        let (words, log) = bytes.split_at_mut(self.index.len());
        words.fill(0);
        let mut at = 0;
        while at < log.len() {
            let head = Head::read(&log[at..]);
            let low = key_hash(&log[head.key(at)]) as u32;
            self.index.insert(words, low, self.log_start() + at);
            at += head.size();
        }
    }

    fn write_header(&mut self, block: &mut Backing) {
        self.touch(self.at, HEADER);
        let bytes = block.slice_mut(self.at..self.at + HEADER);
        bytes.copy_from_slice(&self.header());
    }

    fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let fields = [
            MAGIC,
            self.index.slots() as u32,
            self.count as u32,
            self.end as u32,
            self.live as u32,
        ];
        for (bytes, field) in header.chunks_exact_mut(4).zip(fields) {
            bytes.copy_from_slice(&field.to_le_bytes());
        }
        header
    }

    /// Panics unless header, index and log agree.
    pub fn check(&self, block: &Backing) {
        if self.size == 0 {
            assert_eq!((self.count, self.live), (0, 0));
            return;
        }
        assert_eq!(block.slice(self.at..self.at + HEADER), self.header(), "header in the block");
        assert!(slots_for(self.count) <= self.index.slots() && self.end <= self.size);
        let (mut count, mut live, mut large) = (0, 0, 0);
        let mut end = self.at + self.log_start();
        for (at, head) in self.walk(block) {
            end = at + head.size();
            if !head.dead() {
                assert!(!head.staged(), "INV-38: no batch is half applied between operations");
                count += 1;
                live += head.size();
                large += head.beside();
                let low = head.hash(block, at) as u32;
                assert!(self.find(block, low, |_, found| found == at).is_some());
            }
        }
        assert_eq!((count, live, end), (self.count, self.live, self.at + self.end));
        assert_eq!(large, self.large, "values beside the region");
        let words = self.index.used(block.slice(self.words()));
        assert_eq!(words.len(), self.count, "words in the index");
    }
}

/// The upper entries of a region: those from a hash on, with their bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Above {
    pub hash: u64,
    pub count: usize,
    pub live: usize,
}

/// The entries of a region that is about to be divided, before a hash and from there on.
#[derive(Default)]
pub(super) struct RegionHalves {
    lower: Laid,
    upper: Laid,
}

impl RegionHalves {
    /// Bytes of both.
    pub fn needs(&self) -> usize {
        self.lower.needs() + self.upper.needs()
    }
}

/// Entries that will form a region.
#[derive(Default)]
struct Laid {
    log: Vec<u8>,
    count: usize,
    large: usize,
}

impl Laid {
    fn take(&mut self, entry: &[u8], head: &Head) {
        self.log.extend_from_slice(entry);
        self.count += 1;
        self.large += head.beside();
    }

    fn needs(&self) -> usize {
        packed_len(self.count, self.log.len()).next_multiple_of(8)
    }

    fn lay(self, block: &mut Backing, to: Range<usize>) -> Region {
        let (count, live, large) = (self.count, self.log.len(), self.large);
        let (index, unsent) = (Index::fitting(to.len(), count, live), Unsent::all());
        let (at, size, end) = (to.start, to.len(), HEADER + index.len() + live);
        let mut region =
            Region { at, size, index, count, end, live, large, unsent, ..Region::default() };
        let log = at + region.log_start();
        block.slice_mut(log..log + live).copy_from_slice(&self.log);
        region.build_index(block);
        region.write_header(block);
        region
    }
}

/// Bytes of a region without spare room.
pub(super) fn packed_len(count: usize, live: usize) -> usize {
    HEADER + 8 * slots_for(count) + live
}

fn copy_live(block: &mut Backing, from: Range<usize>, to: usize) -> usize {
    let (mut at, mut to) = (from.start, to);
    while at < from.end {
        let run = at;
        let mut dead = 0;
        while at < from.end {
            let head = Head::read(block.slice(at..at + ENTRY));
            if head.dead() {
                dead = head.size();
                break;
            }
            at += head.size();
        }
        if run != to && run < at {
            block.copy_within(run..at, to);
        }
        to += at - run;
        at += dead;
    }
    to
}

/// Whether all of the bytes are always present.
#[inline]
fn all_of<B: Bytes>(_: &B) -> bool {
    B::ALL
}

/// The word of a slot, by its offset in the region.
fn slot_bytes(slot: usize) -> Range<usize> {
    HEADER + 8 * slot..HEADER + 8 * slot + 8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each length is drawn at the limits of the short form.
    #[test]
    fn head_is_read_as_it_was_written_and_is_short_if_its_lengths_fit() {
        for key_len in [1, 2, 254, 255, 256, 4096] {
            for value_len in [0, 1, 3, 8, 65_534, 65_535, 65_536, 1 << 24] {
                for large in [false, true] {
                    let head = Head::new(key_len, value_len, large);
                    let mut bytes = [0xff; ENTRY];
                    head.write(&mut bytes);
                    let read = Head::read(&bytes);
                    assert_eq!((read.key_len, read.value_len), (key_len, value_len));
                    assert_eq!((read.large(), read.dead(), read.staged()), (large, false, false));
                    assert_eq!(read.len(), if key_len < 256 && value_len < 65_536 { 4 } else { 8 });
                    let (key, stored) = (read.key(8), read.stored(8));
                    assert_eq!((key.start, key.len()), (8 + read.len(), key_len));
                    let due = if large { LARGE_REF } else { value_len };
                    assert_eq!((stored.start, stored.len()), (key.end, due));
                    let rest = 8 + read.size() - stored.end;
                    assert!(rest < ENTRY_ALIGN || read.size() == ENTRY);
                    assert!(read.size() >= ENTRY && read.size().is_multiple_of(ENTRY_ALIGN));
                }
            }
        }
    }

    /// An entry of a short value and one that names a long one take the same room, with heads of different
    /// lengths: the key stays in its place only if they agree.
    #[test]
    fn entry_is_written_over_one_with_a_head_of_the_same_length_only() {
        let (short, long) = (Head::new(10, 8, false), Head::new(10, 70_000, true));
        assert_eq!(short.size(), long.size());
        assert!(!short.has_room_of(&long) && !long.has_room_of(&short));
        assert!(short.has_room_of(&Head::new(10, 7, false)));
        assert!(!short.has_room_of(&Head::new(10, 4, false)));
    }
}
