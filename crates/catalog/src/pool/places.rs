//! Where blocks are, on servers that have tiers below memory.

use super::Pool;
use super::cores::{Held, Room, Slot, Where, tick_of};
use honeycomb_types::{BlockId, ServerId, ShardIx, TierIx, Time};

impl Pool {
    /// Where a block is.
    pub(crate) fn place(&self, block: BlockId) -> Where {
        let server = self.servers.get(&block.server());
        let core = server.and_then(|server| server.cores.get(block.shard().0 as usize));
        core.map_or(Where::default(), |core| core.place(block.index()))
    }

    /// The structure for which a block is below memory, or goes there.
    pub(super) fn below_for(&self, block: BlockId) -> Option<u32> {
        match self.slot(block)?.held() {
            Held::By(s) if self.place(block).to.is_below() => Some(s),
            _ => None,
        }
    }

    /// Blocks of a server that are below memory, or go there, and for which structures.
    pub(super) fn below_on(&self, id: ServerId) -> impl Iterator<Item = (BlockId, u32)> {
        let cores = self.servers.get(&id).into_iter().flat_map(|server| server.cores.iter());
        cores.enumerate().flat_map(move |(ix, core)| {
            let blocks = (0..).map(move |index| BlockId::new(id, ShardIx(ix as u8), index));
            let below = |place: &Where, slot: &Slot| match slot.held() {
                Held::By(s) if place.to.is_below() => Some(s),
                _ => None,
            };
            let all = core.places.iter().zip(&core.slots).zip(blocks);
            all.filter_map(move |((place, slot), block)| Some((block, below(place, slot)?)))
        })
    }

    fn place_mut(&mut self, block: BlockId) -> Option<(&mut Where, &mut [Room], &mut u32)> {
        let server = self.servers.get_mut(&block.server())?;
        let core = server.cores.get_mut(block.shard().0 as usize)?;
        let place = core.places.get_mut(block.index() as usize)?;
        Some((place, &mut core.rooms, &mut self.moving))
    }

    /// Blocks that are on their way below memory.
    pub(crate) fn moving(&self) -> u32 {
        self.moving
    }

    /// The same, counted anew.
    pub(super) fn count_moving(&self) -> u32 {
        let cores = self.servers.values().flat_map(|server| &server.cores);
        let places = cores.flat_map(|core| &core.places);
        places.filter(|place| place.goes_down()).count() as u32
    }

    /// The first tier below memory with room for this block, if it could go there.
    pub(crate) fn room_below(&self, block: BlockId) -> Option<TierIx> {
        let server = self.servers.get(&block.server());
        // Memory of a server that is taken out is nobody's to have.
        let server = server.filter(|server| !server.away && !server.draining)?;
        let core = &server.cores[block.shard().0 as usize];
        let tiers = (1..core.rooms.len()).map(|n| TierIx(n as u8));
        let mut with_room = tiers.filter(|tier| core.room_in(*tier) > 0);
        with_room.next()
    }

    /// A block is used.
    pub(crate) fn touch(&mut self, block: BlockId, now: Time) {
        if let Some((place, ..)) = self.place_mut(block) {
            place.used = tick_of(now);
        }
    }

    /// A block is to go to another tier: it counts in both from now on.
    pub(crate) fn begins(&mut self, block: BlockId, to: TierIx) {
        let before = self.below_for(block);
        let (place, rooms, moving) = self.place_mut(block).expect("a block of a server with tiers");
        assert_eq!(place.tier, place.to, "INV-42: {block} is on its way already");
        let room = &mut rooms[to.0 as usize];
        room.out += 1;
        assert!(room.out <= room.total, "INV-42: {to} has no room for {block}");
        place.to = to;
        *moving += u32::from(place.goes_down());
        self.staying.change(before, self.below_for(block));
    }

    /// A block has come to a tier, or stays where it was. Whether that changed anything.
    pub(crate) fn arrives(&mut self, block: BlockId, tier: TierIx) -> bool {
        let before = self.below_for(block);
        let Some((place, rooms, moving)) = self.place_mut(block) else { return false };
        if place.tier == place.to || tier != place.tier && tier != place.to {
            return false;
        }
        let left = if tier == place.to { place.tier } else { place.to };
        rooms[left.0 as usize].out -= 1;
        *moving -= u32::from(place.goes_down());
        (place.tier, place.to) = (tier, tier);
        self.staying.change(before, self.below_for(block));
        true
    }

    /// A server does not let a block go down now.
    pub(crate) fn refused(&mut self, block: BlockId, now: Time) {
        let tier = self.place(block).tier;
        self.arrives(block, tier);
        if let Some((place, ..)) = self.place_mut(block) {
            place.refused = tick_of(now);
        }
    }

    /// A server that came back says where a block is. One that is away has its rooms counted when all
    /// of that is known.
    pub(crate) fn found(&mut self, block: BlockId, (tier, to): (TierIx, TierIx)) {
        if self.slot(block).is_none_or(|slot| slot.held() == Held::Free) {
            return;
        }
        let away = self.servers.get(&block.server()).is_none_or(|server| server.away);
        let before = self.below_for(block);
        let Some((place, rooms, moving)) = self.place_mut(block) else { return };
        let known = [tier, to].iter().all(|tier| (tier.0 as usize) < rooms.len());
        if !known {
            return;
        }
        let old = std::mem::replace(place, Where { tier, to, ..*place });
        *moving -= u32::from(old.goes_down());
        *moving += u32::from(place.goes_down());
        if away {
            self.staying.change(before, self.below_for(block));
            return;
        }
        let mut count = |tier: TierIx, change: i32| {
            let room = &mut rooms[tier.0 as usize];
            room.out = room.out.saturating_add_signed(change);
        };
        count(tier, 1);
        if to != tier {
            count(to, 1);
        }
        count(old.tier, -1);
        if old.to != old.tier {
            count(old.to, -1);
        }
        self.staying.change(before, self.below_for(block));
    }
}
