//! Retained blocks and lower tiers: while an object store is unavailable, they are demoted before all other
//! blocks; a block lost by its disk ends its flush.

use super::{Flushes, PartState};
use crate::pool::{Where, tick_of};
use crate::reply::FlushState;
use crate::tombstones::Cause;
use crate::{Catalog, CatalogError, Effect, Loss, NewStructure};
use honeycomb_types::limits::{LOWER_AGAIN, LOWER_LOOKS};
use honeycomb_types::{BlockAt, BlockId, Bug, KindAttributes, TierIx};
use std::sync::Arc;

impl Flushes {
    /// A block is retained from now on, in whatever tier it is.
    pub(crate) fn keeps(&mut self, at: BlockAt) {
        self.high.push_back(at);
    }
}

impl Catalog {
    /// A retained block to demote, and its target tier, from a flush whose store fails. No client can reach
    /// it, and the length of its wait is unknown.
    pub(crate) fn kept_to_lower(&mut self) -> Option<(BlockId, TierIx)> {
        let looks = self.flushes.high.len().min(LOWER_LOOKS);
        for _ in 0..looks {
            let at = self.flushes.high.pop_front().expect("counted above");
            let Some((number, _)) = self.flushes.blocks.get(&at) else { continue };
            let waits = self.flushes.all.get(number).is_some_and(|flush| flush.error.is_some());
            let Where { tier, to, refused, .. } = self.pool.place(at.block);
            if tier.is_below() {
                continue; // It is in a lower tier already.
            }
            // It is considered again until it has arrived: the demotion may be refused.
            self.flushes.keeps(at);
            let again = (LOWER_AGAIN.as_millis() / 250) as u32;
            let lately = refused > 0 && refused + again > tick_of(self.now);
            if !waits || to.is_below() || lately {
                continue;
            }
            if let Some(tier) = self.pool.room_below(at.block, true) {
                return Some((at.block, tier));
            }
        }
        None
    }

    /// Refuses a structure that could not be flushed in a prefix whose end flushes it: its blocks would be
    /// retained for flush for ever, and with them those of its neighbours.
    pub(crate) fn need_flushable(
        &self,
        n: u32,
        new: &NewStructure<'_>,
        attributes: KindAttributes,
    ) -> Result<(), CatalogError> {
        let flushed = self.dag.special.get(&n).is_some_and(|s| !s.flush_to.is_empty());
        if !flushed || attributes.flushes || Bug::UnflushableAccepted.active() {
            return Ok(());
        }
        let (path, name) = (new.path.into(), new.name.into());
        Err(CatalogError::NotFlushable { path, name, kind: new.kind })
    }

    /// Refuses a requested flush of a prefix with a structure that cannot be flushed, or whose map is
    /// damaged: the manifest would omit it (INV-10).
    pub(super) fn need_content(&self, n: u32) -> Result<(), CatalogError> {
        self.need_sound_maps(n)?;
        let lacks = |s: &u32| !self.structures[*s].attributes().flushes;
        let Some(s) = self.structures_of(n).find(lacks) else { return Ok(()) };
        let structure = &self.structures[s];
        let (path, name) = (self.dag.path_of(n).into(), structure.name.clone());
        Err(CatalogError::HasUnflushable { path, name, kind: structure.kind })
    }

    /// The reason why a structure cannot be flushed at the end of its prefix, if there is one: earlier
    /// versions allowed its kind there, or the map of a quarantined structure is damaged.
    pub(crate) fn unflushable(&self, s: u32) -> Option<Loss> {
        if !self.structures[s].attributes().flushes {
            return Some(Loss::Unflushable);
        }
        self.need_sound_map(s).err().map(|_| Loss::Quarantined)
    }

    /// Ends a structure that cannot be flushed. Its neighbours are flushed without it, and its users get
    /// `DataLost`.
    pub(crate) fn end_unflushable(
        &mut self,
        s: u32,
        how: Loss,
        address: &Arc<str>,
        effects: &mut Vec<Effect>,
    ) {
        let servers = self.structures[s].blocks().map(|block| block.server());
        let server = servers.filter(|server| self.pool.server(*server).is_some()).min();
        let server = server.map_or_else(|| "a server".into(), |server| self.pool.address(server));
        self.flushes.lost += 1;
        self.end_structure(s, Cause::Lost { server, how }, address, effects);
    }

    /// The same for a part that is being flushed. Returns false when it can be written.
    pub(crate) fn is_unflushable(&self, number: u64, part: usize) -> bool {
        let flush = &self.flushes.all[&number];
        let (structure, _) = flush.parts[part].place;
        !flush.structures[structure].flushes
    }

    /// A disk lost the content of a retained block: its flush fails, unless the block is already written.
    /// Returns false when the block is not retained.
    pub(crate) fn kept_failed(&mut self, at: BlockAt, effects: &mut Vec<Effect>) -> bool {
        let Some(&(number, part)) = self.flushes.blocks.get(&at) else { return false };
        if self.flushes.all[&number].parts[part].state != PartState::Waits {
            return true;
        }
        let server = self.pool.address(at.block.server());
        let why = format!("the disk of {server} lost the data; there is no manifest");
        self.flushes.lost += 1;
        self.bury_as_lost(number, Cause::Lost { server, how: Loss::Disk });
        self.end_flush(number, FlushState::Lost(why.into()), effects);
        true
    }
}
