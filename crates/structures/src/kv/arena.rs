//! The extents of a block: which bytes belong to a region or a large value, and which are free.
//!
//! Only bookkeeping: no bytes move here. Lengths and offsets are multiples of 8.

use honeycomb_block::Backing;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// Retired extents that one step of sweeping inspects.
const SWEEP_STEP: usize = 4;

/// The content of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The region with this id.
    Region(u32),
    /// The large value with this id.
    Large(u32),
    /// A dropped content that a pin still reads.
    Zombie,
}

/// A run of bytes in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub at: usize,
    pub len: usize,
    pub owner: Owner,
}

/// The allowed lengths of an extent in bytes, all multiples of 8.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentSizes {
    /// The least length: a shorter extent would soon have to grow again.
    pub least: usize,
    /// The length to take if much memory is free.
    pub want: usize,
    /// The longest hole to take whole, because no other extent could use the remainder.
    pub most: usize,
}

impl ExtentSizes {
    /// The length to take from a hole of this many bytes, which are `least` or more.
    pub fn of(&self, hole: usize) -> usize {
        if hole <= self.most { hole } else { self.want }
    }
}

/// The extents of one block.
///
/// Extents are disjoint and, with the holes between them, cover the whole block. A hole is the space between
/// two neighbours, so no two holes are adjacent.
pub(crate) struct Arena {
    size: usize,
    used: BTreeMap<usize, (usize, Owner)>,
    /// The holes by (length, offset), for the best fit.
    holes: BTreeSet<(usize, usize)>,
    used_bytes: usize,
    /// Bytes that were ever allocated, at any offset.
    allocated: u64,
    /// `used_bytes` and `allocated` at the last `forget_slack`.
    forgotten: (usize, u64),
    zombies: VecDeque<usize>,
    zombie_bytes: usize,
}

/// Rounds up to the granularity of the arena.
pub(crate) fn round_up(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

impl Arena {
    pub fn new(size: usize) -> Arena {
        Arena {
            size,
            used: BTreeMap::new(),
            holes: BTreeSet::from([(size, 0)]),
            used_bytes: 0,
            allocated: 0,
            forgotten: (0, 0),
            zombies: VecDeque::new(),
            zombie_bytes: 0,
        }
    }

    /// Covers more bytes of the block.
    pub fn enlarge(&mut self, size: usize) {
        let (end, before) = (self.end(), self.size);
        assert!(size >= before, "INV-60: an arena of {before} bytes gets {size}");
        self.remove_hole(end, before);
        self.size = size;
        self.add_hole(end, size);
    }

    /// Covers fewer bytes of the block, in which its extents are.
    pub fn reduce(&mut self, size: usize) {
        let (end, before) = (self.end(), self.size);
        assert!(end <= size && size <= before, "INV-60: {end} bytes of {before} are used, {size}");
        self.remove_hole(end, before);
        self.size = size;
        self.add_hole(end, size);
    }

    pub fn free_bytes(&self) -> usize {
        self.size - self.used_bytes
    }

    pub fn extents(&self) -> usize {
        self.used.len()
    }

    pub fn zombie_bytes(&self) -> usize {
        self.zombie_bytes
    }

    /// Whether no retired extent has pins left.
    pub fn is_swept(&self) -> bool {
        self.zombies.is_empty()
    }

    /// The end of the last extent.
    pub fn end(&self) -> usize {
        self.end_before(self.size)
    }

    pub fn largest_hole(&self) -> usize {
        self.holes.last().map_or(0, |(len, _)| *len)
    }

    /// Allocates from the smallest hole that is large enough.
    pub fn alloc(&mut self, len: usize, owner: Owner) -> Option<usize> {
        assert!(len > 0 && len.is_multiple_of(8), "an extent of {len} bytes");
        let (hole, at) = *self.holes.range((len, 0)..).next()?;
        self.holes.remove(&(hole, at));
        self.add_hole(at + len, at + hole);
        self.used.insert(at, (len, owner));
        self.used_bytes += len;
        self.allocated += len as u64;
        Some(at)
    }

    /// As `alloc`, from any hole of at least `least` bytes: all of a hole of `most` bytes or less, or `want`
    /// bytes of a larger one. Returns the range.
    pub fn alloc_some(&mut self, room: &ExtentSizes, owner: Owner) -> Option<Range<usize>> {
        let (hole, _) = *self.holes.range((room.least, 0)..).next()?;
        let len = room.of(hole);
        let at = self.alloc(len, owner).expect("the hole was seen just now");
        Some(at..at + len)
    }

    /// Frees an extent.
    pub fn free(&mut self, at: usize) {
        let (len, owner) = self.used.remove(&at).expect("only extents in use are freed");
        if owner == Owner::Zombie {
            self.zombie_bytes -= len;
        }
        self.used_bytes -= len;
        let (before, after) = (self.end_before(at), self.start_after(at));
        self.remove_hole(before, at);
        self.remove_hole(at + len, after);
        self.add_hole(before, after);
    }

    /// Divides an extent: it keeps `len` bytes, and the rest gets another owner.
    pub fn divide(&mut self, at: usize, len: usize, owner: Owner) {
        let (old, _) = self.used[&at];
        assert!(len > 0 && len < old && len.is_multiple_of(8), "{len} of {old} bytes at {at}");
        self.used.get_mut(&at).expect("looked up just now").0 = len;
        self.used.insert(at + len, (old - len, owner));
    }

    /// Changes the owner of an extent.
    pub fn give_to(&mut self, at: usize, owner: Owner) {
        self.used.get_mut(&at).expect("only extents in use change hands").1 = owner;
    }

    /// The holes of at least `least` bytes.
    pub fn holes(&self, least: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        self.holes.range((least, 0)..).map(|(len, at)| *at..*at + *len)
    }

    /// Bytes that were in use at some time and are free now, since `forget_slack`. Bytes that were used twice
    /// count twice, up to the size of the block.
    pub fn slack(&self) -> usize {
        let (used, allocated) = self.forgotten;
        let touched = used as u64 + self.allocated - allocated;
        touched.min(self.size as u64) as usize - self.used_bytes
    }

    /// Bytes that were ever allocated; reused bytes count again.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Notes that the holes have no resident memory any more.
    pub fn forget_slack(&mut self) {
        self.forgotten = (self.used_bytes, self.allocated);
    }

    /// Frees an extent as soon as no pin reads it any more.
    pub fn retire(&mut self, block: &mut Backing, at: usize) {
        let (len, owner) = self.used.get_mut(&at).expect("only extents in use are retired");
        if !block.is_pinned(&(at..at + *len)) {
            return self.free(at);
        }
        *owner = Owner::Zombie;
        self.zombie_bytes += *len;
        self.zombies.push_back(at);
    }

    /// Inspects the next few retired extents and frees those without pins.
    pub fn sweep_some(&mut self, block: &mut Backing) {
        for _ in 0..self.zombies.len().min(SWEEP_STEP) {
            let at = self.zombies.pop_front().expect("a counted zombie is in the list");
            let len = self.used[&at].0;
            if block.is_pinned(&(at..at + len)) {
                self.zombies.push_back(at);
            } else {
                self.free(at);
            }
        }
    }

    /// Frees every retired extent without pins.
    pub fn sweep(&mut self, block: &mut Backing) {
        for _ in 0..self.zombies.len().div_ceil(SWEEP_STEP) {
            self.sweep_some(block);
        }
    }

    /// Bytes of the hole after an extent.
    pub fn hole_after(&self, at: usize) -> usize {
        self.start_after(at) - (at + self.used[&at].0)
    }

    /// Bytes of the hole before an extent.
    pub fn hole_before(&self, at: usize) -> usize {
        at - self.end_before(at)
    }

    /// Extends an extent to the front, within the hole before it.
    pub fn begin_at(&mut self, at: usize, from: usize) {
        let before = self.end_before(at);
        assert!(from.is_multiple_of(8) && before <= from && from <= at, "no room from {from}");
        self.remove_hole(before, at);
        self.add_hole(before, from);
        let (len, owner) = self.used.remove(&at).expect("only extents in use are moved");
        self.used.insert(from, (len + at - from, owner));
        self.used_bytes += at - from;
        self.allocated += (at - from) as u64;
    }

    /// Changes an extent's length in place, within the hole after it.
    pub fn resize(&mut self, at: usize, len: usize) {
        let after = self.start_after(at);
        let (old, _) = self.used[&at];
        assert!(len.is_multiple_of(8) && at + len <= after, "no room for {len} bytes at {at}");
        self.remove_hole(at + old, after);
        self.add_hole(at + len, after);
        self.used.get_mut(&at).expect("the allocation was just found").0 = len;
        self.used_bytes = self.used_bytes - old + len;
        self.allocated += len.saturating_sub(old) as u64;
    }

    /// The extents in order of offset.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Extent> + '_ {
        self.used.iter().map(|(at, (len, owner))| Extent { at: *at, len: *len, owner: *owner })
    }

    /// Replaces the extents of a stretch, in order of offset. The stretch reaches from one extent that stays
    /// (or an end of the block) to the next.
    pub fn relay(&mut self, stretch: Range<usize>, extents: &[Extent]) {
        let (before, mut from) = (self.used_bytes, stretch.start);
        while let Some((&at, &(len, _))) = self.used.range(from..stretch.end).next() {
            self.remove_hole(from, at);
            self.used.remove(&at);
            self.used_bytes -= len;
            from = at + len;
        }
        self.remove_hole(from, stretch.end);
        let holes = stretch.len() - (before - self.used_bytes);
        from = stretch.start;
        for extent in extents {
            assert!(from <= extent.at && extent.at + extent.len <= stretch.end, "they overlap");
            self.add_hole(from, extent.at);
            self.used.insert(extent.at, (extent.len, extent.owner));
            self.used_bytes += extent.len;
            from = extent.at + extent.len;
        }
        self.add_hole(from, stretch.end);
        self.allocated += holes as u64;
    }

    fn end_before(&self, at: usize) -> usize {
        self.used.range(..at).next_back().map_or(0, |(at, (len, _))| at + len)
    }

    fn start_after(&self, at: usize) -> usize {
        self.used.range(at + 1..).next().map_or(self.size, |(at, _)| *at)
    }

    fn add_hole(&mut self, from: usize, to: usize) {
        if from < to {
            self.holes.insert((to - from, from));
        }
    }

    fn remove_hole(&mut self, from: usize, to: usize) {
        if from < to {
            let known = self.holes.remove(&(to - from, from));
            assert!(known, "the hole {from}..{to} was not listed");
        }
    }

    /// Panics unless extents and holes cover the block exactly.
    pub fn check(&self) {
        let (mut from, mut used, mut holes, mut zombies) = (0, 0, 0, 0);
        for Extent { at, len, owner } in self.iter() {
            assert!(from <= at && len > 0 && at % 8 == 0 && len % 8 == 0, "extent at {at}");
            if from < at {
                holes += 1;
                assert!(self.holes.contains(&(at - from, from)), "hole {from}..{at}");
            }
            if owner == Owner::Zombie {
                zombies += len;
                assert!(self.zombies.contains(&at), "zombie {at}");
            }
            used += len;
            from = at + len;
        }
        if from < self.size {
            holes += 1;
            assert!(self.holes.contains(&(self.size - from, from)), "hole {from}..");
        }
        assert!(from <= self.size, "an extent ends outside the block");
        assert_eq!((used, holes), (self.used_bytes, self.holes.len()));
        assert_eq!(zombies, self.zombie_bytes);
    }
}
