//! The tiers of blocks, on servers that have lower ones.

use super::cores::{Core, Going, Slot, SlotOwner, Where, tick_of};
use super::{Draw, NoRoom, Pool, Server};
use honeycomb_types::limits::SINKING_MAX;
use honeycomb_types::{BlockAt, BlockId, Bug, ServerId, ShardIx, TierIx, Time};

impl Pool {
    /// The tiers of a block.
    pub(crate) fn place(&self, block: BlockId) -> Where {
        let server = self.servers.get(&block.server());
        let core = server.and_then(|server| server.cores.get(block.shard().0 as usize));
        core.map_or(Where::default(), |core| core.place(block.index()))
    }

    /// Whether a block is in memory, and not being demoted.
    pub(crate) fn stays_in_memory(&self, block: BlockId) -> bool {
        let Where { tier, to, .. } = self.place(block);
        !tier.is_below() && !to.is_below()
    }

    /// The structure of a block that is in a lower tier, or moves there.
    pub(super) fn below_for(&self, block: BlockId) -> Option<u32> {
        match self.slot(block)?.held() {
            SlotOwner::By(s) if self.place(block).to.is_below() => Some(s),
            _ => None,
        }
    }

    /// The same, with the capacity of the block.
    pub(super) fn staying_for(&self, block: BlockId) -> Option<(u32, u32)> {
        Some((self.below_for(block)?, self.units(block)))
    }

    /// Blocks of a server that are in lower tiers, or move there, with their structures and capacities.
    pub(super) fn below_on(&self, id: ServerId) -> impl Iterator<Item = (BlockId, (u32, u32))> {
        let cores = self.servers.get(&id).into_iter().flat_map(|server| server.cores.iter());
        cores.enumerate().flat_map(move |(ix, core)| {
            let blocks = (0..).map(move |index| BlockId::new(id, ShardIx(ix as u8), index));
            let below = |place: &Where, slot: &Slot| match slot.held() {
                SlotOwner::By(s) if place.to.is_below() => Some((s, slot.units)),
                _ => None,
            };
            let all = core.places.iter().zip(&core.slots).zip(blocks);
            all.filter_map(move |((place, slot), block)| Some((block, below(place, slot)?)))
        })
    }

    /// All blocks of a server.
    pub(super) fn blocks_of(&self, id: ServerId) -> impl Iterator<Item = BlockId> {
        let cores = self.servers.get(&id).into_iter().flat_map(|server| server.cores.iter());
        let of = |(ix, core): (usize, &Core)| (core.slots.len() as u32, ShardIx(ix as u8));
        let cores: Vec<(u32, ShardIx)> = cores.enumerate().map(of).collect();
        let blocks = move |(n, shard)| (0..n).map(move |index| BlockId::new(id, shard, index));
        cores.into_iter().flat_map(blocks)
    }

    fn core_mut(&mut self, block: BlockId) -> Option<(&mut Core, usize)> {
        let server = self.servers.get_mut(&block.server())?;
        let core = server.cores.get_mut(block.shard().0 as usize)?;
        let index = block.index() as usize;
        core.places.get(index)?;
        Some((core, index))
    }

    /// Servers that respond. Requests to the others may take as long as their silence.
    fn heard(&self) -> impl Iterator<Item = &Server> {
        self.servers.values().filter(|server| server.is_heard())
    }

    /// Blocks that are being demoted, on servers that respond.
    pub(crate) fn going(&self) -> Going {
        self.heard().flat_map(|server| &server.cores).fold(Going::default(), |sum, core| Going {
            down: sum.down + core.going.down,
            units_down: sum.units_down + core.going.units_down,
            sinking: sum.sinking + core.going.sinking,
        })
    }

    /// Whether blocks are being demoted on any server.
    pub(crate) fn lowers(&self) -> bool {
        self.servers.values().any(Server::lowers)
    }

    /// Units of blocks that leave memory, on servers that respond: their memory becomes available soon.
    pub(crate) fn leaving_memory(&self) -> u32 {
        self.heard().flat_map(|server| &server.cores).map(|core| core.rooms[0].leaving).sum()
    }

    /// The next lower tier that has room for this block. Stores accept only blocks that accept no more
    /// writes, while not too many are on their way there.
    pub(crate) fn room_below(&self, block: BlockId, is_final: bool) -> Option<TierIx> {
        let server = self.servers.get(&block.server());
        // Memory of a draining server is available to nobody; a suspected one does not respond.
        let server = server.filter(|server| !server.is_away() && server.takes_blocks())?;
        let core = &server.cores[block.shard().0 as usize];
        let from = core.place(block.index()).tier.0 as usize;
        let may_sink = is_final && self.going().sinking < SINKING_MAX * self.heard().count() as u32;
        let tiers = (from + 1..core.rooms.len()).map(|n| TierIx(n as u8));
        let mut with_room =
            tiers.filter(|tier| core.room_in(*tier) > 0 && (may_sink || !core.is_store(*tier)));
        with_room.next()
    }

    /// A block is used.
    pub(crate) fn touch(&mut self, block: BlockId, now: Time) {
        if let Some((core, index)) = self.core_mut(block) {
            core.places[index].used = tick_of(now);
        }
    }

    /// A block starts to move to another tier: it counts in both from now on.
    pub(crate) fn begins(&mut self, block: BlockId, to: TierIx) {
        let before = self.staying_for(block);
        let (core, index) = self.core_mut(block).expect("a block of a server with tiers");
        let place = core.places[index];
        let held = core.slots[index].held();
        assert_ne!(held, SlotOwner::Free, "INV-42: {block} has no owner and changes its tier");
        assert_eq!(place.tier, place.to, "INV-42: {block} is on its way already");
        assert_ne!(place.tier, to, "INV-42: {block} is in {to} already");
        core.moves(index, Where { to, ..place });
        let room = core.rooms[to.0 as usize];
        assert!(room.out <= room.total, "INV-42: {to} has no room for {block}");
        self.staying.change(before, self.staying_for(block));
    }

    /// Gives a block that stays where it is a larger capacity, if its core has room for that.
    pub(crate) fn enlarge(&mut self, block: BlockId, units: u32, draw: Draw) -> Result<(), NoRoom> {
        let Where { tier, to, .. } = self.place(block);
        assert_eq!(tier, to, "INV-42: {block} is on its way and gets another capacity");
        let server = self.servers.get_mut(&block.server()).expect("its structure is live");
        let core = &server.cores[block.shard().0 as usize];
        let held = core.slots[block.index() as usize];
        let more = units.checked_sub(held.units).expect("a capacity only grows");
        let has_room = match tier.is_below() {
            // The place there is that of a whole block.
            true => core.lent() - core.out() >= more,
            false => server.grows(block.shard().0 as usize, draw, more),
        };
        if !has_room {
            return Err(NoRoom);
        }
        self.resize(block, units);
        Ok(())
    }

    /// Reduces the capacity of a block, which has freed the memory behind the new capacity.
    pub(crate) fn reduce(&mut self, block: BlockId, units: u32) {
        let before = self.units(block);
        assert!(0 < units && units < before, "INV-60: {block} of {before} units keeps {units}");
        self.resize(block, units);
    }

    fn resize(&mut self, block: BlockId, units: u32) {
        let (before, lay) = (self.staying_for(block), self.lying(block));
        let server = self.servers.get_mut(&block.server()).expect("its structure is live");
        server.cores[block.shard().0 as usize].resize(block.index(), units);
        self.stir(block.server());
        self.staying.change(before, self.staying_for(block));
        self.meter.change(lay, self.lying(block));
    }

    /// A block has arrived in a tier, or stays in its own. Returns whether that changed anything.
    pub(crate) fn arrives(&mut self, block: BlockId, tier: TierIx) -> bool {
        let (before, lay) = (self.staying_for(block), self.lying(block));
        let Some((core, index)) = self.core_mut(block) else { return false };
        let place = core.places[index];
        if place.tier == place.to || tier != place.tier && tier != place.to {
            return false;
        }
        core.moves(index, Where { tier, to: tier, ..place });
        self.staying.change(before, self.staying_for(block));
        if tier != place.tier {
            self.meter.change(lay, self.lying(block));
            self.count_arrival(block);
        }
        true
    }

    /// A server cannot demote a block now.
    pub(crate) fn refused(&mut self, block: BlockId, now: Time) {
        let tier = self.place(block).tier;
        self.arrives(block, tier);
        if let Some((core, index)) = self.core_mut(block) {
            core.places[index].refused = tick_of(now);
        }
    }

    /// A block that was never opened is opened again, and the log does not record the tier of its grant. It
    /// was a lower one if the core has more blocks in memory than room (INV-42).
    pub(crate) fn place_unopened(&mut self, block: BlockId) {
        let (before, lay) = (self.staying_for(block), self.lying(block));
        let Some((core, index)) = self.core_mut(block) else { return };
        let place = core.places[index];
        let has_room = core.rooms[0].out <= core.rooms[0].total;
        if has_room || !place.in_memory() || Bug::UnopenedInMemory.active() {
            return;
        }
        let disks = (1..core.rooms.len()).map(|n| TierIx(n as u8));
        let mut with_room = disks.filter(|tier| !core.is_store(*tier) && core.room_in(*tier) > 0);
        let Some(tier) = with_room.next() else { return };
        core.moves(index, Where { tier, to: tier, ..place });
        self.staying.change(before, self.staying_for(block));
        self.meter.change(lay, self.lying(block));
    }

    /// A reconnected server reports the tiers of a block. The rooms of a disconnected one are counted when
    /// all blocks are known.
    pub(crate) fn found(&mut self, at: BlockAt, (tier, to): (TierIx, TierIx)) {
        let block = at.block;
        if self
            .slot(block)
            .is_none_or(|slot| slot.held() == SlotOwner::Free || slot.epoch > at.epoch)
        {
            return;
        }
        let away = self.servers.get(&block.server()).is_none_or(|server| server.is_away());
        let (before, lay) = (self.staying_for(block), self.lying(block));
        let Some((core, index)) = self.core_mut(block) else { return };
        if [tier, to].iter().any(|tier| tier.0 as usize >= core.rooms.len()) {
            return;
        }
        let place = Where { tier, to, ..core.places[index] };
        match away {
            true => core.places[index] = place,
            false => core.moves(index, place),
        }
        self.staying.change(before, self.staying_for(block));
        self.meter.change(lay, self.lying(block));
    }
}
