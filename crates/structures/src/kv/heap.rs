//! The bytes of a block: extents for its regions and its large values, and how they get room.
//!
//! Cheap methods are tried first: drop dead entries, grow into a hole, move to a larger hole. In a nearly
//! full block the free space is scattered: in holes, in dead entries and in the spare room of regions. Then a
//! stretch of neighbouring extents, the smallest that has enough free space, is packed (`pack.rs`), which
//! collects the space in one place. Pinned extents are never moved and divide the block for this purpose.
//! Totals are checked before any change: they decide whether there is room, and after that only a pin can
//! prevent the operation.

use super::arena::{Arena, ExtentSizes, Owner, round_up};
use super::at_rest::AtRest;
use super::capacity::Surplus;
use super::large_values::{Large, LargeValues, large_room};
use super::pack::Squeeze;
use super::patches::Unsent;
use super::region::{Above, HEADER, Region, packed_len};
use super::regions::Regions;
use super::shrink::Shrink;
use crate::CapacityRequest;
use honeycomb_block::{Backing, HUGE_FROM};
use honeycomb_types::limits::{CAPACITY_HUGE, REGION_MAX, REGION_MIN};
use honeycomb_types::{Bug, Time};
use std::ops::Range;

/// Bytes charged for each extent, for its bookkeeping outside of the block.
pub(super) const EXTENT_COST: usize = 128;
/// The size of a block divided by this stays free for the moves that make room. With less free space, each of
/// these would have to move half of the block.
pub(super) const RESERVE_FRACTION: usize = 32;

/// A region is divided before it is 1 / this of its block, three quarters of a 64th.
const REGION_FRACTION: usize = 85;

/// Most bytes that an entry adds to its region's index, or to a large value's bookkeeping.
pub(super) const WORD_COST: usize = 16;

/// All methods except the last resort may move this many times the bytes for which they make room.
const EFFORT: usize = 8;

/// The extents of a block with their owners.
pub(super) struct Heap {
    pub capacity: CapacityRequest,
    pub arena: Arena,
    pub regions: Regions,
    pub values: LargeValues,
    pub(super) shrink: Shrink,
    pub(super) at_rest: AtRest,
    pub(super) surplus: Surplus,
}

impl Heap {
    /// A heap with one empty region, which has the capacity of its block.
    pub fn new(capacity: CapacityRequest) -> Heap {
        let (size, surplus) = (capacity.bytes(), Surplus::of(&capacity));
        Heap {
            capacity,
            arena: Arena::new(size),
            regions: Regions::new(),
            values: LargeValues::default(),
            shrink: Shrink::default(),
            at_rest: AtRest::default(),
            surplus,
        }
    }

    /// The size of regions from which they are divided: a part of a whole block, and at most an eighth of the
    /// heap.
    pub fn region_max(&self) -> usize {
        let (min, max) = (REGION_MIN as usize, REGION_MAX as usize);
        let part = (self.capacity.most() / REGION_FRACTION).clamp(min, max);
        part.min((self.size() / 8).max(min))
    }

    /// Bytes of the heap.
    #[inline]
    pub fn size(&self) -> usize {
        self.capacity.bytes()
    }

    /// Bytes in use or reserved, with the bookkeeping.
    #[inline]
    pub fn taken(&self) -> usize {
        self.regions.packed()
            + self.values.bytes()
            + self.arena.zombie_bytes()
            + self.arena.extents() * EXTENT_COST
    }

    /// Bytes that are not taken.
    #[inline]
    pub fn free(&self) -> usize {
        self.size().saturating_sub(self.taken())
    }

    /// Whether an operation fits into `free` bytes that takes `gross` and then releases `replaces`. Only an
    /// operation with no net growth may use the reserve, which a full block needs for its own split.
    #[inline]
    pub fn affords(&self, free: usize, gross: usize, replaces: usize) -> bool {
        let net = gross.saturating_sub(replaces);
        let anew = net == 0 || Bug::ReserveTaken.active();
        let keeps = if anew { 0 } else { self.size() / RESERVE_FRACTION };
        gross <= free && net + keeps <= free
    }

    /// Whether a region can give its upper part to a new one, at little cost.
    pub fn can_split(&self, block: &mut Backing, id: u32) -> bool {
        let reserve = self.size() / RESERVE_FRACTION + EXTENT_COST + HEADER + WORD_COST;
        let region = self.regions.get(id);
        self.taken() + reserve <= self.size()
            && self.arena.largest_hole() >= region.packed() / 3
            && !block.is_pinned(&region.extent())
    }

    /// Moves the upper part of a region to a new one, whose id it returns; `None` if there is no cheap room.
    pub fn split_region(&mut self, block: &mut Backing, id: u32, above: &Above) -> Option<u32> {
        let room = self.room(packed_len(above.count, above.live));
        let new = self.regions.add();
        let Some(to) = self.arena.alloc_some(&room, Owner::Region(new)) else {
            self.regions.release(new);
            return None;
        };
        let left = self.regions.get(id);
        let from = left.at;
        let keeps = packed_len(left.count - above.count, left.live - above.live);
        let keeps = self.room(keeps).want.min(left.size);
        let right = self.regions.change(id, |left| left.split_off(block, above, to, keeps));
        self.arena.resize(from, keeps);
        self.regions.set(new, right);
        Some(new)
    }

    /// Divides a region at a hash, in place, once it has room for two headers there. A full block need not
    /// have a hole for one of the parts. Returns the id of the upper part; `None` if there is no room.
    pub fn divide_region(&mut self, block: &mut Backing, id: u32, hash: u64) -> Option<u32> {
        if self.regions.get(id).size == 0 {
            let new = self.regions.add();
            self.regions.get_mut(new).unsent = Unsent::all();
            return Some(new);
        }
        let parts = match block.is_pinned(&self.regions.get(id).extent()) {
            true => return None,
            false => self.regions.get(id).parts(block, hash),
        };
        let needed = parts.needs();
        if needed > self.regions.get(id).size {
            self.arena.sweep(block);
            let added = needed - self.regions.get(id).packed() + EXTENT_COST;
            let fits = self.taken() + added <= self.size();
            if !fits || !self.grow_among_neighbours(block, id, needed, (0, false)) {
                return None;
            }
        }
        let new = self.regions.add();
        let at = self.regions.get(id).at;
        let right = self.regions.change(id, |region| region.divide(block, parts));
        self.arena.divide(at, right.at - at, Owner::Region(new));
        self.regions.set(new, right);
        Some(new)
    }

    /// Frees a region that has no hashes any more.
    pub fn forget_region(&mut self, block: &mut Backing, id: u32) {
        let region = self.regions.take(id);
        if region.size > 0 {
            self.arena.retire(block, region.at);
        }
        self.regions.release(id);
    }

    /// The bytes that a large value takes, with its bookkeeping.
    pub fn value_cost(len: usize) -> usize {
        large_room(len) + EXTENT_COST + WORD_COST
    }

    /// Allocates an extent for a value, for which the totals have room. `None` if a pin is in the way.
    pub fn alloc_value(&mut self, block: &mut Backing, len: usize) -> Option<u32> {
        let pinned = self.pinned(block);
        let id = self.values.add();
        let Some(at) = self.find_hole(block, large_room(len), Owner::Large(id)) else {
            assert!(pinned, "a block whose totals have room and that has no pins has room");
            self.values.cancel(id);
            return None;
        };
        self.values.set(id, at, len);
        Some(id)
    }

    /// Frees the rest of a large value: its first `skip` bytes, and everything after `len` more.
    pub fn trim_value(&mut self, block: &mut Backing, id: u32, skip: usize, len: usize) {
        let at = self.values.get(id).at;
        block.copy_within(at + skip..at + skip + len, at);
        self.values.trim(id, len);
        self.arena.resize(at, large_room(len));
    }

    /// Frees a large value.
    pub fn free_value(&mut self, block: &mut Backing, id: u32) {
        let large = self.values.remove(id);
        self.arena.retire(block, large.at);
    }

    /// Turns the extent of a large value into that of a region, of which the first `end` bytes have arrived
    /// in it. The large value no longer exists. `false` if the bytes are not a region; then the extent is
    /// freed.
    pub fn turn_into_region(
        &mut self,
        block: &mut Backing,
        large: u32,
        id: u32,
        end: usize,
    ) -> bool {
        let Large { at, len } = self.values.get(large);
        let Some(region) = Region::arrived(block, at, end, large_room(len)) else {
            self.free_value(block, large);
            return false;
        };
        self.values.convert(large);
        self.arena.give_to(at, Owner::Region(id));
        self.regions.set(id, region);
        // The rest of the region must find room in its place.
        let room = self.size().saturating_sub(self.taken() + self.size() / RESERVE_FRACTION);
        let more = self.arena.hole_after(at).min(len / 8).min(room) / 8 * 8;
        let size = self.regions.change(id, |region| {
            region.size += more;
            region.size
        });
        self.arena.resize(at, size);
        true
    }

    /// Moves a region that has arrived into the extent of a large value, which no longer exists.
    pub fn enlarge_arrived(&mut self, block: &mut Backing, id: u32, large: u32) -> bool {
        let old = self.regions.take(id);
        let place = self.values.place(large);
        block.copy_within(old.contents(), place.start);
        self.arena.retire(block, old.at);
        self.turn_into_region(block, large, id, old.contents().len())
    }

    /// The length to allocate for a region that needs `needed` bytes: with room to grow while memory is
    /// plenty. In blocks of huge pages a hole is resident, so a hole of about the right size is taken whole;
    /// in smaller blocks unused bytes may not even be resident.
    fn room(&self, needed: usize) -> ExtentSizes {
        let tight = needed + needed / 8;
        if self.arena.free_bytes() < self.size() / 4 {
            return ExtentSizes {
                least: round_up(tight),
                want: round_up(tight),
                most: round_up(tight),
            };
        }
        let first = (self.size() / 64).clamp(1024, 4096);
        let small_pages = self.capacity.most() < HUGE_FROM || self.size() <= CAPACITY_HUGE as usize;
        let (least, want, most) = match small_pages {
            true => (tight, tight, tight),
            false => (needed + needed / 12, needed + needed / 5, needed + needed / 5 * 2),
        };
        let limit = self.region_max().max(tight);
        let some = |len: usize| round_up(len.max(first).min(limit));
        let [least, want, most] = [least, want, most].map(some);
        ExtentSizes { least, want, most }
    }

    /// Gives a region room for an entry, in place or elsewhere. The totals have room: `false` if a pin is in
    /// the way.
    pub fn grow(&mut self, block: &mut Backing, id: u32, entry: usize, new: bool) -> bool {
        let pinned = self.pinned(block);
        let region = self.regions.get(id);
        let (size, extent) = (region.size, region.extent());
        let needed = region.packed_with(entry, new);
        let movable = size > 0 && !block.is_pinned(&extent);
        if movable && size >= needed + size / 8 {
            self.relay(block, id, extent, entry, new);
            return true;
        }
        let room = self.room(needed);
        if size > 0 && self.extend(block, id, &room, (entry, new), movable) {
            return true;
        }
        let tight = round_up(needed + needed / 8);
        for room in [room, ExtentSizes { least: tight, want: tight, most: tight }] {
            if let Some(to) = self.arena.alloc_some(&room, Owner::Region(id)) {
                self.move_region(block, id, to, entry, new);
                return true;
            }
        }
        if movable && self.grow_among_neighbours(block, id, needed, (entry, new)) {
            return true;
        }
        // Pins hold the region or its neighbours in place.
        let len = round_up(needed);
        let Some(at) = self.find_hole(block, len, Owner::Region(id)) else {
            assert!(pinned, "a block whose totals have room and that has no pins has room");
            return false;
        };
        self.move_region(block, id, at..at + len, entry, new);
        true
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
        let region = self.regions.get(id);
        let (at, most) = (region.at, region.size + self.arena.hole_after(region.at));
        let size = room.of(most).max(region.size);
        if most >= room.least && region.extends(entry, new, size) {
            // Only the log was too short: no bytes have to move.
            self.regions.change(id, |region| region.size = size);
        } else if movable && most >= room.least {
            self.relay(block, id, at..at + size, entry, new);
        } else if movable && most + self.arena.hole_before(at) >= room.least {
            let from = at - self.arena.hole_before(at);
            self.arena.begin_at(at, from);
            self.relay(block, id, from..from + room.of(most + at - from), entry, new);
        } else {
            return false;
        }
        let Region { at, size, .. } = *self.regions.get(id);
        self.arena.resize(at, size);
        true
    }

    /// Rebuilds a region in an extent that it has.
    pub fn relay(
        &mut self,
        block: &mut Backing,
        id: u32,
        to: Range<usize>,
        entry: usize,
        new: bool,
    ) {
        self.regions.change(id, |region| region.relay(block, to, entry, new));
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
        let Region { at, size, .. } = *self.regions.get(id);
        self.relay(block, id, to, entry, new);
        if size > 0 {
            self.arena.retire(block, at);
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
        let free = self.free();
        let len = round_up(needed + needed * free / self.size());
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
    fn find_hole(&mut self, block: &mut Backing, len: usize, owner: Owner) -> Option<usize> {
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
    fn pinned(&self, block: &mut Backing) -> bool {
        block.is_pinned(&(0..self.size())) || self.arena.zombie_bytes() > 0
    }

    /// Checks whether there is memory to return to the operating system.
    #[inline]
    pub fn look_at_slack(&mut self, now: Time) {
        self.shrink.look(&self.arena, self.size(), now);
        self.at_rest.look(self.arena.allocated(), now);
    }

    /// When memory or capacity is to be returned.
    pub fn return_due(&self) -> Option<Time> {
        [self.shrink.due(), self.at_rest.due(), self.surplus.due()].into_iter().flatten().min()
    }

    /// The block's memory was freed: its content is in a lower tier.
    pub fn demoted(&mut self) {
        self.arena.forget_slack();
        self.shrink = self.shrink.anew();
        self.at_rest = AtRest::after(self.arena.allocated());
        self.surplus.demoted();
    }
}
