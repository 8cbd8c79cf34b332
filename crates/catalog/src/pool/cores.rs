//! One core of a memory server: its blocks, with their owners and tiers.

use honeycomb_types::{BlockUnits, Epoch, TierIx, TierSpec, Time};

/// The state of one block: 24 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) epoch: Epoch,
    /// `FREE` and the next free index, `QUARANTINED`, or the index of the owning structure.
    pub(super) state: u32,
    /// Bytes of data as last reported; `UNOPENED` until the server has opened the block.
    pub(super) used: u32,
    /// The capacity, in units; 1 for a free block.
    pub(super) units: u32,
}

const _: () = assert!(size_of::<Slot>() == 24);

pub(super) const FREE: u32 = 1 << 31;
pub(super) const LAST_FREE: u32 = u32::MAX;
pub(super) const QUARANTINED: u32 = u32::MAX - 1;
pub(super) const UNOPENED: u32 = u32::MAX;

/// The owner of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotOwner {
    Free,
    Quarantined,
    By(u32),
}

impl Slot {
    pub(super) fn held(&self) -> SlotOwner {
        match self.state {
            QUARANTINED => SlotOwner::Quarantined,
            state if state & FREE != 0 => SlotOwner::Free,
            structure => SlotOwner::By(structure),
        }
    }

    pub(super) fn bytes_used(&self) -> u64 {
        if self.used == UNOPENED { 0 } else { self.used as u64 }
    }
}

/// The room of a core in one tier: in memory in units, in a lower tier in places, of which each holds one
/// block of any capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CoreRoom {
    pub(crate) total: u32,
    /// Occupied: by blocks that are there, arrive or leave.
    pub(crate) out: u32,
    /// The part of it that leaves.
    pub(crate) leaving: u32,
}

impl CoreRoom {
    pub(crate) fn free(&self) -> u32 {
        self.total.saturating_sub(self.out)
    }
}

/// The tiers of a block, on a server that has lower ones: 12 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Where {
    pub(crate) tier: TierIx,
    /// The tier to which it is moving; the same when it is not moving.
    pub(crate) to: TierIx,
    /// The time of its last use, as reported, and the time when its server last refused to demote it; in
    /// `tick_of`.
    pub(crate) used: u32,
    pub(crate) refused: u32,
}

/// Quarters of a second since the clock's start, from 1 on: 0 is never.
pub(crate) fn tick_of(now: Time) -> u32 {
    (now.as_millis() / 250) as u32 + 1
}

/// Blocks that are being demoted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Going {
    /// From memory to a disk.
    pub(crate) down: u32,
    /// Their units.
    pub(crate) units_down: u32,
    /// To a store, from memory or from a disk: these may take long, and delay no others.
    pub(crate) sinking: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Core {
    pub(super) slots: Box<[Slot]>,
    pub(super) free_head: u32,
    pub(super) free: u32,
    /// Units of all tiers.
    capacity: u32,
    /// Units of the blocks that are not free.
    held: u32,
    /// Units of the others that are lent to other controller shards.
    pub(super) unlent: u32,
    /// Memory, and the lower tiers.
    pub(super) rooms: Box<[CoreRoom]>,
    /// The tiers of each block; empty on a server with memory only.
    pub(super) places: Box<[Where]>,
    /// The tiers that are stores, one bit each: no block begins there.
    stores: u16,
    pub(super) going: Going,
}

impl Where {
    /// Whether it counts as in memory: it is there, or on its way to or from there.
    pub(super) fn in_memory(&self) -> bool {
        !self.tier.is_below() || !self.to.is_below()
    }
}

impl Core {
    /// A core with memory for this many whole blocks.
    pub(super) fn new(frames: u32, tiers: &[TierSpec], units: BlockUnits) -> Core {
        let below: u32 = tiers.iter().map(|tier| tier.blocks).sum();
        let blocks = units.names(frames) + below;
        let next = |index| if index + 1 < blocks { FREE | (index + 1) } else { LAST_FREE };
        let slots =
            (0..blocks).map(|i| Slot { epoch: Epoch(0), state: next(i), used: 0, units: 1 });
        let free_head = if blocks > 0 { FREE } else { LAST_FREE };
        let totals = [units.units(frames)].into_iter().chain(tiers.iter().map(|tier| tier.blocks));
        let places = if tiers.is_empty() { 0 } else { blocks as usize };
        let stores = (1..).zip(tiers).filter(|(_, tier)| tier.class.takes_final_only());
        Core {
            slots: slots.collect(),
            free_head,
            free: blocks,
            capacity: units.units(frames + below),
            held: 0,
            unlent: 0,
            rooms: totals.map(|total| CoreRoom { total, out: 0, leaving: 0 }).collect(),
            places: vec![Where::default(); places].into(),
            stores: stores.map(|(n, _)| 1 << n).sum(),
            going: Going::default(),
        }
    }

    /// The server is known from the log only: until it has reported its blocks, none of them is free, and
    /// there is no room in any tier.
    pub(super) fn is_unknown(&mut self) {
        (self.free, self.free_head, self.held) = (0, LAST_FREE, self.blocks());
        self.rooms.iter_mut().for_each(|room| room.out = room.total);
        self.slots.iter_mut().for_each(|slot| slot.state = QUARANTINED);
    }

    /// Whether this tier is for blocks only that accept no more writes.
    pub(crate) fn is_store(&self, tier: TierIx) -> bool {
        self.stores & 1 << tier.0 != 0
    }

    /// Adds a block with these tiers and this capacity to the counts, or subtracts it.
    fn count(&mut self, place: Where, units: u32, sign: i32) {
        let Where { tier, to, .. } = place;
        let is_store = self.is_store(to);
        // Saturating, because blocks of a disconnected server are counted only when all of them are known.
        let count = |n: &mut u32, by: u32| *n = n.saturating_add_signed(sign * by as i32);
        let takes = |tier: TierIx| if tier.is_below() { 1 } else { units };
        count(&mut self.rooms[tier.0 as usize].out, takes(tier));
        if to == tier {
            return;
        }
        count(&mut self.rooms[tier.0 as usize].leaving, takes(tier));
        count(&mut self.rooms[to.0 as usize].out, takes(to));
        if to > tier && is_store {
            count(&mut self.going.sinking, 1);
        } else if to > tier {
            count(&mut self.going.down, 1);
            count(&mut self.going.units_down, units);
        }
    }

    /// Number of its block names.
    pub(crate) fn blocks(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Whether no block is allocated or quarantined.
    pub(crate) fn is_unused(&self) -> bool {
        self.free == self.blocks()
    }

    /// Units of all tiers.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Units of the blocks that are not free.
    pub(crate) fn out(&self) -> u32 {
        self.held
    }

    /// Units available in memory.
    pub(crate) fn room(&self) -> u32 {
        self.rooms[0].free().saturating_sub(self.unlent)
    }

    /// Units available in memory beyond whole blocks.
    pub(super) fn begun(&self, whole: u32) -> u32 {
        self.room() % whole
    }

    /// Number of blocks of this capacity that can be allocated in this tier.
    pub(super) fn fits(&self, tier: TierIx, units: u32) -> u32 {
        let room = self.room_in(tier) / if tier.is_below() { 1 } else { units };
        room.min(self.free)
    }

    /// The room available in this tier: units of memory, or places.
    pub(crate) fn room_in(&self, tier: TierIx) -> u32 {
        match self.rooms.get(tier.0 as usize) {
            Some(_) if !tier.is_below() => self.room(),
            Some(room) => room.free(),
            None => 0,
        }
    }

    /// Whether a block in memory could be demoted to a disk with room.
    pub(crate) fn could_lower(&self) -> bool {
        let disks = (1..self.rooms.len()).map(|n| TierIx(n as u8));
        let mut disks = disks.filter(|tier| !self.is_store(*tier));
        self.rooms[0].out > 0 && disks.any(|disk| self.room_in(disk) > 0)
    }

    /// Units that this controller shard may use.
    pub(crate) fn lent(&self) -> u32 {
        self.capacity - self.unlent
    }

    pub(super) fn place(&self, index: u32) -> Where {
        self.places.get(index as usize).copied().unwrap_or_default()
    }

    pub(super) fn take(
        &mut self,
        (epoch, structure): (Epoch, u32),
        units: u32,
        (tier, now): (TierIx, Time),
    ) -> u32 {
        assert!(
            self.fits(tier, units) > 0,
            "INV-40, INV-42: a block was taken from a core that has no room in {tier}"
        );
        let index = self.free_head & !FREE;
        let slot = &mut self.slots[index as usize];
        assert_eq!(
            slot.held(),
            SlotOwner::Free,
            "INV-03: block {index} is on the free list and owned"
        );
        assert!(epoch > slot.epoch, "INV-01: the epoch of block {index} was used before");
        self.free_head = slot.state;
        assert!(self.free > 0, "INV-02: block {index} is listed as free, and none is counted");
        self.free -= 1;
        *slot = Slot { epoch, state: structure, used: UNOPENED, units };
        let place = Where { tier, to: tier, used: tick_of(now), refused: 0 };
        self.count(place, units, 1);
        self.holds(units);
        if let Some(known) = self.places.get_mut(index as usize) {
            *known = place;
        }
        index
    }

    /// This many more units belong to blocks that are not free.
    fn holds(&mut self, units: u32) {
        self.held += units;
        let Core { capacity, held, unlent, .. } = *self;
        assert!(
            held + unlent <= capacity,
            "INV-40: {held} of {capacity} units are held, and {unlent} are not lent"
        );
    }

    /// Sets the capacity of a block. A larger one needs room in its tier.
    pub(super) fn resize(&mut self, index: u32, units: u32) {
        let place = self.place(index);
        let before = std::mem::replace(&mut self.slots[index as usize].units, units);
        self.count(place, before, -1);
        self.count(place, units, 1);
        self.held -= before;
        self.holds(units);
    }

    pub(super) fn put_back(&mut self, index: u32) {
        let units = self.slots[index as usize].units;
        self.count(self.place(index), units, -1);
        assert!(self.held >= units, "INV-02: block {index} has {units} of {} units", self.held);
        self.held -= units;
        self.unname(index);
    }

    /// Puts a block on the free list, without changing the counts.
    pub(super) fn unname(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        assert_eq!(slot.held(), SlotOwner::Quarantined, "INV-03: block {index} was freed twice");
        slot.state = self.free_head;
        (slot.used, slot.units) = (0, 1);
        self.free_head = FREE | index;
        self.free += 1;
        let (free, blocks) = (self.free, self.slots.len());
        assert!(free as usize <= blocks, "INV-02: {free} of {blocks} blocks are free");
        if let Some(place) = self.places.get_mut(index as usize) {
            *place = Where::default();
        }
    }

    /// A block is in another tier, or on its way there.
    pub(super) fn moves(&mut self, index: usize, to: Where) {
        let was = std::mem::replace(&mut self.places[index], to);
        let units = self.slots[index].units;
        self.count(was, units, -1);
        self.count(to, units, 1);
    }

    /// Recounts the held units, the occupied room of each tier, and the demotions.
    pub(super) fn count_anew(&mut self) {
        (self.going, self.held) = (Going::default(), 0);
        self.rooms.iter_mut().for_each(|room| (room.out, room.leaving) = (0, 0));
        for index in 0..self.blocks() {
            let slot = self.slots[index as usize];
            if slot.held() != SlotOwner::Free {
                self.count(self.place(index), slot.units, 1);
                self.held += slot.units;
            }
        }
    }

    /// The difference between the counts and a recount, if any.
    pub(super) fn miscounted(&self) -> Option<String> {
        let mut anew = self.clone();
        anew.count_anew();
        let told = |core: &Core| (core.rooms.clone(), core.going, core.held);
        (told(&anew) != told(self)).then(|| format!("{:?}, not {:?}", told(&anew), told(self)))
    }
}
