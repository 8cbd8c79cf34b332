//! One core of a memory server: its blocks, with their owners and tiers.

use honeycomb_types::{Epoch, TierIx, TierSpec, Time};

/// The state of one block: 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) epoch: Epoch,
    /// `FREE` and the next free index, `QUARANTINED`, or the index of the owning structure.
    pub(super) state: u32,
    /// Bytes of data as last reported; `UNOPENED` until the server has opened the block.
    pub(super) used: u32,
}

const _: () = assert!(size_of::<Slot>() == 16);

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

/// The room of a core in one tier, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CoreRoom {
    pub(crate) total: u32,
    /// Occupied: by blocks that are there, arrive or leave.
    pub(crate) out: u32,
    /// Blocks among them that leave.
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
    /// To a store, from memory or from a disk: these may take long, and delay no others.
    pub(crate) sinking: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Core {
    pub(super) slots: Box<[Slot]>,
    pub(super) free_head: u32,
    pub(super) free: u32,
    /// Free blocks without room, because the room is lent to other controller shards.
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
    pub(super) fn new(frames: u32, tiers: &[TierSpec]) -> Core {
        let below: u32 = tiers.iter().map(|tier| tier.blocks).sum();
        let blocks = frames + below;
        let next = |index| if index + 1 < blocks { FREE | (index + 1) } else { LAST_FREE };
        let slots = (0..blocks).map(|i| Slot { epoch: Epoch(0), state: next(i), used: 0 });
        let free_head = if blocks > 0 { FREE } else { LAST_FREE };
        let totals = [frames].into_iter().chain(tiers.iter().map(|tier| tier.blocks));
        let places = if tiers.is_empty() { 0 } else { blocks as usize };
        let stores = (1..).zip(tiers).filter(|(_, tier)| tier.class.takes_final_only());
        Core {
            slots: slots.collect(),
            free_head,
            free: blocks,
            unlent: 0,
            rooms: totals.map(|total| CoreRoom { total, out: 0, leaving: 0 }).collect(),
            places: vec![Where::default(); places].into(),
            stores: stores.map(|(n, _)| 1 << n).sum(),
            going: Going::default(),
        }
    }

    /// Whether this tier is for blocks only that accept no more writes.
    pub(crate) fn is_store(&self, tier: TierIx) -> bool {
        self.stores & 1 << tier.0 != 0
    }

    /// Adds `change` blocks with these tiers to the counts.
    pub(super) fn count(&mut self, place: Where, change: i32) {
        let Where { tier, to, .. } = place;
        let is_store = self.is_store(to);
        // Saturating, because blocks of a disconnected server are counted only when all of them are known.
        let count = |n: &mut u32| *n = n.saturating_add_signed(change);
        count(&mut self.rooms[tier.0 as usize].out);
        if to == tier {
            return;
        }
        count(&mut self.rooms[tier.0 as usize].leaving);
        count(&mut self.rooms[to.0 as usize].out);
        if to > tier {
            count(if is_store { &mut self.going.sinking } else { &mut self.going.down });
        }
    }

    /// Number of its block names.
    pub(crate) fn blocks(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Number of blocks that are not free.
    pub(crate) fn out(&self) -> u32 {
        self.blocks() - self.free
    }

    /// Number of blocks available in memory.
    pub(crate) fn room(&self) -> u32 {
        self.rooms[0].free().saturating_sub(self.unlent)
    }

    /// Number of blocks available in this tier.
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

    /// Number of blocks with room, free or not.
    pub(crate) fn lent(&self) -> u32 {
        self.blocks() - self.unlent
    }

    pub(super) fn place(&self, index: u32) -> Where {
        self.places.get(index as usize).copied().unwrap_or_default()
    }

    pub(super) fn take(&mut self, epoch: Epoch, structure: u32, tier: TierIx, now: Time) -> u32 {
        let room = self.room_in(tier);
        assert!(
            room > 0,
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
        *slot = Slot { epoch, state: structure, used: UNOPENED };
        self.rooms[tier.0 as usize].out += 1;
        let (free, unlent) = (self.free, self.unlent);
        assert!(free >= unlent, "INV-40: {free} blocks are free and {unlent} are not lent");
        if let Some(place) = self.places.get_mut(index as usize) {
            *place = Where { tier, to: tier, used: tick_of(now), refused: 0 };
        }
        index
    }

    pub(super) fn put_back(&mut self, index: u32) {
        self.count(self.place(index), -1);
        self.unname(index);
    }

    /// Puts a block on the free list, without changing the counts.
    pub(super) fn unname(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        assert_eq!(slot.held(), SlotOwner::Quarantined, "INV-03: block {index} was freed twice");
        slot.state = self.free_head;
        slot.used = 0;
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
        self.count(was, -1);
        self.count(to, 1);
    }

    /// Recounts the occupied room of each tier, and the demotions.
    pub(super) fn count_anew(&mut self) {
        self.going = Going::default();
        self.rooms.iter_mut().for_each(|room| (room.out, room.leaving) = (0, 0));
        for index in 0..self.blocks() {
            if self.slots[index as usize].held() != SlotOwner::Free {
                self.count(self.place(index), 1);
            }
        }
    }

    /// The difference between the counts and a recount, if any.
    pub(super) fn miscounted(&self) -> Option<String> {
        let mut anew = self.clone();
        anew.count_anew();
        let same = anew.rooms == self.rooms && anew.going == self.going;
        (!same).then(|| {
            format!("{:?}, {:?}, not {:?}, {:?}", anew.rooms, anew.going, self.rooms, self.going)
        })
    }
}
