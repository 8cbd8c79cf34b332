//! The pool of a recovered catalog: first the content of the log, then the reports of servers.

use super::cores::{Core, QUARANTINED, Slot, SlotOwner, UNOPENED};
use super::{Pool, Presence, Server};
use crate::NewServer;
use crate::durable::ServerImage;
use hashbrown::HashSet;
use honeycomb_types::{BlockAt, BlockId, Bug, ServerId, ShardIx, Time};

impl Pool {
    /// Adopts the members of a recovered catalog, all of them disconnected: none of their blocks is free.
    pub(crate) fn recover(
        &mut self,
        last: u32,
        images: impl Iterator<Item = ServerImage>,
        (block_size, now): (u64, Time),
    ) {
        self.last_server = last;
        for image in images {
            let new = NewServer {
                address: &image.address,
                incarnation: image.incarnation,
                shards: image.shards,
                blocks_per_shard: image.blocks_per_shard,
                tiers: &image.tiers,
                block_size,
                // It reports this when it reconnects.
                flush_root: "",
                kinds: &[],
            };
            let mut server = Server::new(new, now);
            server.presence = Presence::Away;
            server.cores.iter_mut().for_each(Core::is_unknown);
            self.servers.insert(image.id, server);
        }
    }

    /// Assigns a block to the structure that had it, with its first capacity: its server reports the present
    /// one. Returns false when there is no such block, or it has an owner.
    pub(crate) fn recover_owner(&mut self, at: BlockAt, structure: u32, units: u32) -> bool {
        let Some(server) = self.servers.get_mut(&at.block.server()) else { return false };
        let Some(slot) = server.slot(at.block) else { return false };
        if slot.state != QUARANTINED || at.epoch <= slot.epoch {
            return false;
        }
        *slot = Slot { epoch: at.epoch, state: structure, used: UNOPENED, units };
        true
    }

    /// Retains a block that was retained before: it is quarantined in its epoch. Returns false when there is
    /// no such block, or it has an owner.
    pub(crate) fn recover_kept(&mut self, at: BlockAt) -> bool {
        let Some(server) = self.servers.get_mut(&at.block.server()) else { return false };
        let Some(slot) = server.slot(at.block) else { return false };
        if slot.state != QUARANTINED || at.epoch <= slot.epoch {
            return false;
        }
        slot.epoch = at.epoch;
        true
    }

    /// Counts the blocks that are neither free nor owned, once every owner is known.
    pub(crate) fn finish_recovery(&mut self) {
        for server in self.servers.values_mut() {
            let slots = server.cores.iter().flat_map(|core| &core.slots);
            server.quarantined =
                slots.filter(|s| s.held() == SlotOwner::Quarantined).count() as u32;
        }
    }

    /// Assigns to the structure a granted successor that is not in the log. Returns false when the block has
    /// another owner, or had one since.
    pub(crate) fn adopt(&mut self, at: BlockAt, structure: u32) -> bool {
        let Some(server) = self.servers.get_mut(&at.block.server()) else { return false };
        let Some(slot) = server.slot(at.block) else { return false };
        if slot.held() != SlotOwner::Quarantined || at.epoch < slot.epoch {
            return false;
        }
        *slot = Slot { epoch: at.epoch, state: structure, used: UNOPENED, units: slot.units };
        assert!(server.quarantined > 0, "INV-02: {at:?} is adopted, and no block is quarantined");
        server.quarantined -= 1;
        self.staying.change(None, self.staying_for(at.block));
        self.meter.change(None, self.lying(at.block));
        true
    }

    /// A reconnected server reports the capacity of a block. Returns its owner, and the capacity before and
    /// now, if it is current. Of a server that was known all the time, no larger one is believed (INV-60).
    pub(crate) fn found_capacity(&mut self, at: BlockAt, units: u32) -> Option<(u32, u32, u32)> {
        let block = at.block;
        let (lies, lay) = (self.staying_for(block), self.lying(block));
        let server = self.servers.get_mut(&block.server())?;
        let away = server.is_away();
        let core = server.cores.get_mut(block.shard().0 as usize)?;
        let slot = core.slots.get_mut(block.index() as usize)?;
        let (held, before) = (slot.held(), slot.units);
        if held == SlotOwner::Free || slot.epoch > at.epoch || !away && units > before {
            return None;
        }
        match away {
            true => slot.units = units,
            false => core.resize(block.index(), units),
        }
        self.staying.change(lies, self.staying_for(block));
        self.meter.change(lay, self.lying(block));
        let SlotOwner::By(s) = held else { return None };
        Some((s, before, units))
    }

    /// A server holds a block without an owner: it stays quarantined, under the epoch that its confirmation
    /// will name. Returns false when its epoch has ended.
    pub(crate) fn unowned(&mut self, at: BlockAt) -> bool {
        let Some(server) = self.servers.get_mut(&at.block.server()) else { return false };
        match server.slot(at.block) {
            Some(slot) if slot.held() == SlotOwner::Quarantined && slot.epoch <= at.epoch => {
                slot.epoch = at.epoch;
                true
            }
            _ => false,
        }
    }

    /// A server has reported all of its blocks: blocks that are neither owned nor held are free. Returns the
    /// owned blocks that it does not hold.
    pub(crate) fn returned(
        &mut self,
        id: ServerId,
        held: &HashSet<BlockId>,
    ) -> Vec<(BlockAt, u32)> {
        let mut missing = Vec::new();
        let Some(server) = self.servers.get_mut(&id) else { return missing };
        server.presence = Presence::Here;
        for (ix, core) in server.cores.iter_mut().enumerate() {
            // The lowest index is allocated first, as with a new server.
            for index in (0..core.blocks()).rev() {
                let block = BlockId::new(id, ShardIx(ix as u8), index);
                let slot = &core.slots[index as usize];
                match slot.held() {
                    _ if held.contains(&block) => {}
                    SlotOwner::Quarantined => {
                        core.unname(index);
                        assert!(server.quarantined > 0, "INV-02: {block} was not counted");
                        server.quarantined -= 1;
                    }
                    SlotOwner::By(owner) => {
                        missing.push((BlockAt { block, epoch: slot.epoch }, owner))
                    }
                    SlotOwner::Free => {}
                }
            }
            core.count_anew();
        }
        let server = self.servers.get_mut(&id).expect("looked up above");
        let told = server.lending.as_mut().and_then(|lending| lending.told.take());
        if let Some(told) = told.filter(|_| !Bug::LotsForgottenAtRejoin.active()) {
            // A server that reports less than it holds is not believed: its blocks that are out are lent.
            let cores = server.cores.iter().zip(&told);
            let lent = cores.map(|(core, lent)| core.out().max(*lent).min(core.capacity()));
            let lent: Vec<u32> = lent.collect();
            server.set_lent(&lent);
            self.stir(id);
        }
        missing
    }
}
