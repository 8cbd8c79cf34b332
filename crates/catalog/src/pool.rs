//! Memory servers and their blocks: the allocation mechanism.
//!
//! A block is free, allocated to a structure, or quarantined: taken back, but its server has not confirmed
//! that no content of it can be read any more. These three always add up to the number of blocks that the
//! server registered (INV-02). Every allocation is a new epoch (INV-01), and only the confirmation of the
//! epoch that was taken back frees a block again, once (INV-03).
//!
//! Memory is allocated in units (`BlockUnits`): a block has a capacity, which grows in place, and a core has
//! more block names than memory for whole blocks. Room is counted in each tier: a block on its way from one
//! tier to another counts in both, from before it begins until its arrival is reported, so that no count is
//! ever less than the actual use (INV-42).

use crate::durable::Dirty;
use crate::policy::{Chooser, Policy, ServerRoom, ShardRoom};
use crate::staying::Staying;
use crate::{Effect, NewServer};
use cores::{FREE, LAST_FREE, QUARANTINED, Slot, UNOPENED};
use hashbrown::HashMap;
use honeycomb_types::{BlockAt, BlockId, Bug, Epoch, Kind, ServerId, ShardIx, TierIx, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

mod cores;
mod metered;
mod places;
mod recovery;
mod server;
#[cfg(test)]
mod tests;

pub(crate) use cores::{Core, CoreRoom, Going, SlotOwner, Where, tick_of};
pub(crate) use metered::{Meter, PLACES};
pub(crate) use server::{Presence, Server};

/// The free blocks that an allocation may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Draw {
    /// Blocks beyond each server's reserve.
    Ordinary,
    /// All blocks: a move frees memory, or makes room that no other allocation can make.
    Reserve,
}

/// The blocks that an allocation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) blocks: u32,
    /// The capacity of each, in units.
    pub(crate) units: u32,
}

impl Wanted {
    /// One block of this capacity.
    pub(crate) fn one(units: u32) -> Wanted {
        Wanted { blocks: 1, units }
    }

    /// Units of all of them.
    pub(crate) fn all(self) -> u32 {
        self.blocks.saturating_mul(self.units)
    }
}

/// The error of a request for which there is not enough room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// All live servers.
#[derive(Debug)]
pub(crate) struct Pool {
    servers: BTreeMap<ServerId, Server>,
    /// The controller shard: the top bits of the numbers that it assigns.
    shard: u16,
    last_server: u32,
    term: u32,
    last_epoch: u64,
    rooms: Vec<ServerRoom>,
    shard_rooms: Vec<ShardRoom>,
    /// Servers that lend and whose number of spare blocks changed.
    stirred: Vec<ServerId>,
    /// Blocks in lower tiers or on their way there, by owner.
    pub(crate) staying: Staying,
    /// The use of lower tiers, for bills.
    pub(crate) meter: Meter,
    /// Servers that joined or left.
    pub(crate) dirty: Dirty,
}

impl Pool {
    pub(crate) fn new(shard: u16, term: u32) -> Pool {
        Pool {
            servers: BTreeMap::new(),
            shard,
            last_server: 0,
            term,
            last_epoch: 0,
            rooms: Vec::new(),
            shard_rooms: Vec::new(),
            stirred: Vec::new(),
            staying: Staying::default(),
            meter: Meter::default(),
            dirty: Dirty::default(),
        }
    }

    pub(crate) fn join(&mut self, new: NewServer<'_>, now: Time) -> ServerId {
        self.last_server += 1;
        let id = ServerId::new(self.shard, self.last_server);
        let before = self.servers.insert(id, Server::new(new, now));
        assert!(before.is_none(), "INV-01: server number {id} was given twice");
        self.dirty.mark(id.0);
        id
    }

    pub(crate) fn leave(&mut self, server: ServerId) -> Option<Server> {
        self.dirty.mark(server.0);
        let below: Vec<(u32, u32)> = self.below_on(server).map(|(_, staying)| staying).collect();
        below.into_iter().for_each(|s| self.staying.change(Some(s), None));
        for lying in self.lying_on(server) {
            self.meter.change(Some(lying), None);
        }
        self.servers.remove(&server)
    }

    pub(crate) fn servers(&self) -> impl Iterator<Item = (ServerId, &Server)> {
        self.servers.iter().map(|(&id, server)| (id, server))
    }

    pub(crate) fn servers_mut(&mut self) -> impl Iterator<Item = &mut Server> {
        self.servers.values_mut()
    }

    pub(crate) fn server(&self, server: ServerId) -> Option<&Server> {
        self.servers.get(&server)
    }

    /// Records that the number of the server's spare blocks changed: the loan is evaluated before the command
    /// ends.
    pub(crate) fn stir(&mut self, server: ServerId) {
        let lends = self.servers.get(&server).is_some_and(|server| server.lending.is_some());
        if lends && !self.stirred.contains(&server) {
            self.stirred.push(server);
        }
    }

    pub(crate) fn is_stirred(&self) -> bool {
        !self.stirred.is_empty()
    }

    pub(crate) fn take_stirred(&mut self) -> Vec<ServerId> {
        std::mem::take(&mut self.stirred)
    }

    pub(crate) fn servers_mut_by_id(&mut self) -> impl Iterator<Item = (ServerId, &mut Server)> {
        self.servers.iter_mut().map(|(&id, server)| (id, server))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// The number of servers.
    pub(crate) fn len(&self) -> usize {
        self.servers.len()
    }

    pub(crate) fn server_mut(&mut self, server: ServerId) -> Option<&mut Server> {
        self.servers.get_mut(&server)
    }

    pub(crate) fn is_draining(&self, server: ServerId) -> bool {
        self.servers.get(&server).is_some_and(|server| server.draining)
    }

    /// Whether blocks may be allocated on a server.
    pub(crate) fn takes_blocks(&self, server: ServerId) -> bool {
        self.servers.get(&server).is_some_and(Server::takes_blocks)
    }

    /// The last assigned number.
    pub(crate) fn last_server(&self) -> u32 {
        self.last_server
    }

    pub(crate) fn address(&self, server: ServerId) -> Arc<str> {
        let server = self.servers.get(&server);
        server.expect("structures have blocks on live servers only").address.clone()
    }

    fn slot(&self, block: BlockId) -> Option<&Slot> {
        let core = self.servers.get(&block.server())?.cores.get(block.shard().0 as usize)?;
        core.slots.get(block.index() as usize)
    }

    /// The epoch of the last allocation.
    pub(crate) fn last_epoch(&self) -> Epoch {
        Epoch::new(self.term, self.last_epoch)
    }

    /// The owner of the block in this epoch; `None` when the epoch has ended or the server is lost.
    pub(crate) fn held(&self, at: BlockAt) -> Option<SlotOwner> {
        let slot = self.slot(at.block).filter(|slot| slot.epoch == at.epoch)?;
        Some(slot.held()).filter(|held| *held != SlotOwner::Free)
    }

    /// The owner of a block in its present epoch; `None` when the server is lost.
    pub(crate) fn owner(&self, block: BlockId) -> Option<SlotOwner> {
        self.slot(block).map(Slot::held)
    }

    /// The block with its present epoch. Its server is live.
    pub(crate) fn at(&self, block: BlockId) -> BlockAt {
        let slot = self.slot(block).expect("structures have blocks on live servers only");
        BlockAt { block, epoch: slot.epoch }
    }

    /// The capacity of a block, in units; 0 when its server is lost.
    pub(crate) fn units(&self, block: BlockId) -> u32 {
        self.slot(block).map_or(0, |slot| slot.units)
    }

    pub(crate) fn bytes_used(&self, block: BlockId) -> u64 {
        self.slot(block).map_or(0, Slot::bytes_used)
    }

    /// Whether the server has confirmed that it opened the block.
    pub(crate) fn is_open(&self, at: BlockAt) -> bool {
        self.slot(at.block).is_some_and(|slot| slot.epoch == at.epoch && slot.used != UNOPENED)
    }

    pub(crate) fn opened(&mut self, at: BlockAt) {
        let Some(server) = self.servers.get_mut(&at.block.server()) else { return };
        let Some(slot) = server.slot(at.block).filter(|slot| slot.epoch == at.epoch) else {
            return;
        };
        if matches!(slot.held(), SlotOwner::By(_)) && slot.used == UNOPENED {
            slot.used = 0;
        }
    }

    /// Records the bytes of data in a block; returns its owner and the change, when the report is current.
    pub(crate) fn usage(&mut self, at: BlockAt, bytes: u64) -> Option<(u32, i64)> {
        let before = self.lying(at.block);
        let server = self.servers.get_mut(&at.block.server())?;
        let slot = server.slot(at.block).filter(|slot| slot.epoch == at.epoch)?;
        let SlotOwner::By(structure) = slot.held() else { return None };
        let bytes = bytes.min(UNOPENED as u64 - 1);
        let change = bytes as i64 - slot.bytes_used() as i64;
        slot.used = bytes as u32;
        let all = server.bytes_used;
        let sum = all.checked_add_signed(change);
        assert!(sum.is_some(), "INV-02: {at:?} changes the {all} bytes of its server by {change}");
        server.bytes_used = sum.unwrap_or(all);
        if before.is_some() {
            self.meter.change(before, self.lying(at.block));
        }
        Some((structure, change))
    }

    /// The units of memory available to ordinary allocation, all free units, and the reserved ones.
    pub(crate) fn room(&self) -> (u64, u64, u64) {
        self.servers.values().fold((0, 0, 0), |(ordinary, free, reserved), server| {
            let own = server.room(Draw::Ordinary) as u64;
            let all = server.room(Draw::Reserve) as u64;
            (ordinary + own, free + all, reserved + all - own)
        })
    }

    /// Allocates blocks of this number and capacity in one tier to a structure, or none (`NoRoom`): on the
    /// servers chosen by the weights, if those name one with room, else on the servers chosen by the policy.
    pub(crate) fn allocate(
        &mut self,
        mut chooser: Chooser<'_>,
        (structure, kind): (u32, Kind),
        Wanted { blocks: asked, units }: Wanted,
        draw: Draw,
        (tier, now): (TierIx, Time),
    ) -> Result<Vec<BlockAt>, NoRoom> {
        assert!(structure & FREE == 0, "a structure's index leaves the top bit to the free list");
        let able = self.servers.values().filter(|server| server.kinds.serves(kind));
        let available: u64 = able.map(|server| server.fits(tier, draw, units) as u64).sum();
        if available < asked as u64 {
            return Err(NoRoom);
        }
        let mut rooms = std::mem::take(&mut self.rooms);
        rooms.clear();
        // A server that does not serve the kind, or has no room for a block, has no room.
        let room_of = |server: &Server| {
            let able = server.kinds.serves(kind) && server.fits(tier, draw, units) > 0;
            if able { server.room_in(tier, draw) } else { 0 }
        };
        rooms.extend(
            self.servers().map(|(id, server)| ServerRoom { server: id, free: room_of(server) }),
        );
        let mut taken: HashMap<BlockId, u32> = HashMap::new();
        let mut blocks: Vec<BlockAt> = Vec::with_capacity(asked as usize);
        for _ in 0..asked {
            if rooms.iter().all(|room| room.free == 0) {
                // A core has no more names for blocks of little capacity. No server knows of these.
                for at in blocks {
                    self.keep(at.block, structure);
                    self.confirm(at);
                }
                self.rooms = rooms;
                return Err(NoRoom);
            }
            let chosen = chooser.server(&rooms);
            let room = &mut rooms[chosen];
            assert!(room.free > 0, "a policy chose a server without room");
            let server = room.server;
            let shard = self.choose_shard(chooser.policy, server, (tier, units, draw), &taken);
            blocks.push(self.take((server, shard), structure, units, (tier, now)));
            room.free = room_of(&self.servers[&server]);
            if asked > 1 {
                *taken.entry(BlockId::new(server, shard, 0)).or_default() += 1;
            }
        }
        self.rooms = rooms;
        Ok(blocks)
    }

    fn choose_shard(
        &mut self,
        policy: &dyn Policy,
        server: ServerId,
        (tier, units, draw): (TierIx, u32, Draw),
        taken: &HashMap<BlockId, u32>,
    ) -> ShardIx {
        let mut rooms = std::mem::take(&mut self.shard_rooms);
        rooms.clear();
        let server_state = &self.servers[&server];
        rooms.extend(server_state.cores.iter().enumerate().map(|(n, core)| {
            let ix = ShardIx(n as u8);
            let taken = taken.get(&BlockId::new(server, ix, 0)).copied().unwrap_or(0);
            let gives = tier.is_below() || server_state.gives(n, draw, units);
            let able = gives && core.fits(tier, units) > 0;
            let free = if able { core.room_in(tier) } else { 0 };
            ShardRoom { shard: ix, free, taken }
        }));
        let chosen = rooms[policy.shard(&rooms)];
        assert!(chosen.free > 0, "a policy chose a shard without room");
        self.shard_rooms = rooms;
        chosen.shard
    }

    fn take(
        &mut self,
        (server, shard): (ServerId, ShardIx),
        structure: u32,
        units: u32,
        (tier, now): (TierIx, Time),
    ) -> BlockAt {
        self.last_epoch += 1;
        let epoch = Epoch::new(self.term, self.last_epoch);
        let state = self.servers.get_mut(&server).expect("a room names a live server");
        assert!(!state.draining, "INV-46: server {server} drains and was given a block");
        assert!(!state.is_away(), "INV-27: server {server} is away and was given a block");
        assert!(
            !state.is_suspected(),
            "INV-56: server {server} is suspected and was given a block"
        );
        let core = &mut state.cores[shard.0 as usize];
        let index = core.take((epoch, structure), units, (tier, now));
        self.stir(server);
        let block = BlockId::new(server, shard, index);
        self.staying.change(None, self.staying_for(block));
        self.meter.change(None, self.lying(block));
        BlockAt { block, epoch }
    }

    /// Takes a block back from its owner. Returns the bytes that it held.
    pub(crate) fn release(
        &mut self,
        block: BlockId,
        structure: u32,
        effects: &mut Vec<Effect>,
    ) -> u64 {
        let bytes = self.keep(block, structure);
        let at = self.at(block);
        effects.push(Effect::FreeBlock { server: block.server(), at });
        if Bug::FreeUnconfirmed.active() {
            self.confirm(at);
        }
        bytes
    }

    /// Takes a block from its owner and retains it until `free_kept`. Returns the bytes that it held.
    pub(crate) fn keep(&mut self, block: BlockId, structure: u32) -> u64 {
        let id = block.server();
        self.staying.change(self.staying_for(block), None);
        self.meter.change(self.lying(block), None);
        let server =
            self.servers.get_mut(&id).expect("structures have blocks on live servers only");
        let slot = server.slot(block).expect("a structure's blocks exist");
        assert_eq!(
            slot.held(),
            SlotOwner::By(structure),
            "INV-03: {block} is not this owner's to free"
        );
        let bytes = slot.bytes_used();
        slot.state = QUARANTINED;
        slot.used = 0;
        server.quarantined += 1;
        let all = server.bytes_used;
        assert!(all >= bytes, "INV-02: {block} held {bytes} of the {all} bytes of its server");
        server.bytes_used -= bytes;
        bytes
    }

    /// Requests the free of a retained block, unless the block was lost with its server.
    pub(crate) fn free_kept(&self, at: BlockAt, effects: &mut Vec<Effect>) {
        if self.held(at) == Some(SlotOwner::Quarantined) {
            effects.push(Effect::FreeBlock { server: at.block.server(), at });
        }
    }

    /// Whether the block is free, or was at any time since this epoch.
    pub(crate) fn is_free(&self, at: BlockAt) -> bool {
        self.slot(at.block).is_some() && self.held(at) != Some(SlotOwner::Quarantined)
    }

    /// The server confirmed a free. Late, repeated and misdirected confirmations change nothing.
    pub(crate) fn confirm(&mut self, at: BlockAt) {
        if self.held(at) != Some(SlotOwner::Quarantined) {
            return;
        }
        let server = self.servers.get_mut(&at.block.server()).expect("held() found the server");
        let core = &mut server.cores[at.block.shard().0 as usize];
        core.put_back(at.block.index());
        assert!(server.quarantined > 0, "INV-02: {at:?} is freed, and no block is quarantined");
        server.quarantined -= 1;
        self.stir(at.block.server());
    }

    /// Allocated blocks with their owners, in order.
    pub(crate) fn allocated(&self) -> impl Iterator<Item = (BlockAt, u32)> {
        self.servers().flat_map(|(id, server)| {
            server.cores.iter().enumerate().flat_map(move |(shard, state)| {
                state.slots.iter().enumerate().filter_map(move |(index, slot)| match slot.held() {
                    SlotOwner::By(owner) => {
                        let block = BlockId::new(id, ShardIx(shard as u8), index as u32);
                        Some((BlockAt { block, epoch: slot.epoch }, owner))
                    }
                    _ => None,
                })
            })
        })
    }

    /// Quarantined blocks of servers that are not draining, in order.
    pub(crate) fn quarantined(&self) -> impl Iterator<Item = BlockId> {
        let some = |(_, s): &(ServerId, &Server)| s.quarantined > 0 && !s.draining;
        self.servers().filter(some).flat_map(|(id, server)| {
            server.cores.iter().enumerate().flat_map(move |(shard, core)| {
                let slots = core.slots.iter().enumerate();
                let held = slots.filter(|(_, slot)| slot.held() == SlotOwner::Quarantined);
                held.map(move |(n, _)| BlockId::new(id, ShardIx(shard as u8), n as u32))
            })
        })
    }

    /// Recounts every server's blocks by walking free lists and slots (INV-02, INV-42).
    pub(crate) fn recount(&self) -> Result<(), String> {
        self.staying.check(self.servers.keys().flat_map(|&id| self.below_on(id)))?;
        self.check_metered()?;
        for (id, server) in self.servers() {
            let mut quarantined = 0;
            for core in &server.cores {
                let free = core.slots.iter().filter(|s| s.held() == SlotOwner::Free).count();
                quarantined +=
                    core.slots.iter().filter(|s| s.held() == SlotOwner::Quarantined).count();
                let mut next = core.free_head;
                let mut length = 0;
                while next != LAST_FREE && length <= core.slots.len() {
                    next = core.slots[(next & !FREE) as usize].state;
                    length += 1;
                }
                if length != core.free as usize || length != free {
                    let counted = core.free;
                    return Err(format!(
                        "server {id}: {free} free, {length} listed, not {counted}"
                    ));
                }
                if let Some(wrong) = core.miscounted().filter(|_| !server.is_away()) {
                    return Err(format!("server {id}: out by tier: {wrong}"));
                }
            }
            if quarantined != server.quarantined as usize {
                let counted = server.quarantined;
                return Err(format!("server {id}: {quarantined} in quarantine, not {counted}"));
            }
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> usize {
        let per_server = |server: &Server| {
            let of = |core: &Core| size_of_val(&*core.slots) + size_of_val(&*core.places);
            let slots: usize = server.cores.iter().map(of).sum();
            slots + size_of_val(&*server.cores) + server.address.len() + size_of::<Server>() + 24
        };
        let rooms = self.rooms.capacity() * size_of::<ServerRoom>();
        let shard_rooms = self.shard_rooms.capacity() * size_of::<ShardRoom>();
        let lists = rooms + shard_rooms + self.staying.bytes() + self.meter.bytes();
        self.servers.values().map(per_server).sum::<usize>() + lists
    }
}
