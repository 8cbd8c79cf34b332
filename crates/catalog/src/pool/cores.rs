//! One core of a memory server: its blocks, who has them and where they are.

use honeycomb_types::{Epoch, TierIx, TierSpec, Time};

/// What the catalog knows of one block: 16 bytes.
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

/// Who has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Free,
    Quarantined,
    By(u32),
}

impl Slot {
    pub(super) fn held(&self) -> Held {
        match self.state {
            QUARANTINED => Held::Quarantined,
            state if state & FREE != 0 => Held::Free,
            structure => Held::By(structure),
        }
    }

    pub(super) fn bytes_used(&self) -> u64 {
        if self.used == UNOPENED { 0 } else { self.used as u64 }
    }
}

/// What a core has room for in one tier, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) total: u32,
    /// Taken: by blocks that are there, go there, or leave it.
    pub(crate) out: u32,
    /// Those of them that leave it.
    pub(crate) leaving: u32,
}

impl Room {
    pub(crate) fn free(&self) -> u32 {
        self.total.saturating_sub(self.out)
    }
}

/// Where a block is, on a server that has tiers: 12 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Where {
    pub(crate) tier: TierIx,
    /// Where it is on its way to; the same when it is on none.
    pub(crate) to: TierIx,
    /// When it was used last, as far as reports say, and when its server last refused to lower it; in
    /// `tick_of`.
    pub(crate) used: u32,
    pub(crate) refused: u32,
}

/// Quarters of a second since the clock's start, from 1 on: 0 is never.
pub(crate) fn tick_of(now: Time) -> u32 {
    (now.as_millis() / 250) as u32 + 1
}

/// Blocks that are on their way down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Going {
    /// Out of memory, to a disk.
    pub(crate) down: u32,
    /// To a store, out of memory or from a disk: these may take long, and hold up nobody else.
    pub(crate) sinking: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Core {
    pub(super) slots: Box<[Slot]>,
    pub(super) free_head: u32,
    pub(super) free: u32,
    /// Of the free ones, so many have no room: it is lent to other controller shards.
    pub(super) unlent: u32,
    /// Memory, and the tiers below it.
    pub(super) rooms: Box<[Room]>,
    /// Of each block; none where memory is all there is.
    pub(super) places: Box<[Where]>,
    /// The tiers that are stores, a bit each: no block has its place there from the start.
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
            rooms: totals.map(|total| Room { total, out: 0, leaving: 0 }).collect(),
            places: vec![Where::default(); places].into(),
            stores: stores.map(|(n, _)| 1 << n).sum(),
            going: Going::default(),
        }
    }

    /// Whether only blocks go to this tier that take no more.
    pub(crate) fn is_store(&self, tier: TierIx) -> bool {
        self.stores & 1 << tier.0 != 0
    }

    /// So many blocks more, or fewer, are like this one.
    pub(super) fn count(&mut self, place: Where, change: i32) {
        let Where { tier, to, .. } = place;
        let is_store = self.is_store(to);
        // One of a server that is away is counted when all of its blocks are known.
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

    /// Blocks that it has names for.
    pub(crate) fn blocks(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Those that are not free.
    pub(crate) fn out(&self) -> u32 {
        self.blocks() - self.free
    }

    /// Blocks that it could give in memory.
    pub(crate) fn room(&self) -> u32 {
        self.rooms[0].free().saturating_sub(self.unlent)
    }

    /// Blocks that it could give in this tier.
    pub(crate) fn room_in(&self, tier: TierIx) -> u32 {
        match self.rooms.get(tier.0 as usize) {
            Some(_) if !tier.is_below() => self.room(),
            Some(room) => room.free(),
            None => 0,
        }
    }

    /// Whether a block in memory could go to a disk that has room.
    pub(crate) fn could_lower(&self) -> bool {
        let disks = (1..self.rooms.len()).map(|n| TierIx(n as u8));
        let mut disks = disks.filter(|tier| !self.is_store(*tier));
        self.rooms[0].out > 0 && disks.any(|disk| self.room_in(disk) > 0)
    }

    /// Those that there is room for, free or not.
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
        assert_eq!(slot.held(), Held::Free, "INV-03: block {index} is on the free list and owned");
        assert!(epoch > slot.epoch, "INV-01: the epoch of block {index} was used before");
        self.free_head = slot.state;
        self.free -= 1;
        *slot = Slot { epoch, state: structure, used: UNOPENED };
        self.rooms[tier.0 as usize].out += 1;
        if let Some(place) = self.places.get_mut(index as usize) {
            *place = Where { tier, to: tier, used: tick_of(now), refused: 0 };
        }
        index
    }

    pub(super) fn put_back(&mut self, index: u32) {
        self.count(self.place(index), -1);
        self.unname(index);
    }

    /// Puts a block on the free list again, whatever it is counted for.
    pub(super) fn unname(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        assert_eq!(slot.held(), Held::Quarantined, "INV-03: block {index} was freed twice");
        slot.state = self.free_head;
        slot.used = 0;
        self.free_head = FREE | index;
        self.free += 1;
        if let Some(place) = self.places.get_mut(index as usize) {
            *place = Where::default();
        }
    }

    /// A block is elsewhere, or on its way there.
    pub(super) fn moves(&mut self, index: usize, to: Where) {
        let was = std::mem::replace(&mut self.places[index], to);
        self.count(was, -1);
        self.count(to, 1);
    }

    /// Counts anew what is taken of each tier, and what is on its way.
    pub(super) fn count_anew(&mut self) {
        self.going = Going::default();
        self.rooms.iter_mut().for_each(|room| (room.out, room.leaving) = (0, 0));
        for index in 0..self.blocks() {
            if self.slots[index as usize].held() != Held::Free {
                self.count(self.place(index), 1);
            }
        }
    }

    /// Whether that would change anything: what is counted, and what there is.
    pub(super) fn miscounted(&self) -> Option<String> {
        let mut anew = self.clone();
        anew.count_anew();
        let same = anew.rooms == self.rooms && anew.going == self.going;
        (!same).then(|| {
            format!("{:?}, {:?}, not {:?}, {:?}", anew.rooms, anew.going, self.rooms, self.going)
        })
    }
}
