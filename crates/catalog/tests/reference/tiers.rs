//! Where blocks are, of servers that have a tier below memory.

use super::{Cluster, File, Outcome};
use honeycomb_types::{BlockAt, Kind, PrefixId, ServerId, TierIx};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of tiers: at most one below memory is modelled.
#[derive(Clone, Debug, Default)]
pub struct Tiers {
    /// Blocks that each server has room for below, where it has a tier.
    pub below: BTreeMap<ServerId, u64>,
    /// Where blocks are and where they are on their way to, of those that are not simply in memory.
    pub places: BTreeMap<BlockAt, (TierIx, TierIx)>,
}

impl Tiers {
    pub fn place(&self, at: BlockAt) -> (TierIx, TierIx) {
        self.places.get(&at).copied().unwrap_or_default()
    }

    /// Whether it counts as in memory.
    pub fn in_memory(&self, at: BlockAt) -> bool {
        let (tier, to) = self.place(at);
        !tier.is_below() || !to.is_below()
    }

    /// Blocks that are on their way to another tier.
    pub fn moving(&self) -> Vec<BlockAt> {
        let moving = self.places.iter().filter(|(_, (tier, to))| tier != to);
        moving.map(|(at, _)| *at).collect()
    }

    /// A block was opened, or a server has told where it is.
    pub fn put(&mut self, at: BlockAt, place: (TierIx, TierIx)) {
        self.places.remove(&at);
        if place != Default::default() {
            self.places.insert(at, place);
        }
    }

    /// A block has come where it was to go, or stays where it was.
    pub fn arrives(&mut self, at: BlockAt, tier: TierIx) {
        let (from, to) = self.place(at);
        if from != to && (tier == from || tier == to) {
            self.put(at, (tier, tier));
        }
    }
}

impl Cluster {
    /// Blocks that are free below, on servers for which `counts` holds.
    fn below(&self, counts: impl Fn(&ServerId) -> bool) -> u64 {
        let there = self.tiers.below.iter().filter(|(id, _)| counts(id));
        let free = there.map(|(&server, &total)| {
            let below = |at: &BlockAt| {
                let (tier, to) = self.tiers.place(*at);
                tier.is_below() || to.is_below()
            };
            total.saturating_sub(self.out(server).filter(below).count() as u64)
        });
        free.sum()
    }

    /// Blocks that are free below, whether they may be given or not.
    pub fn free_below(&self) -> u64 {
        self.below(|id| !self.away.contains(id))
    }

    /// Blocks that may be given below.
    pub fn room_below(&self) -> u64 {
        self.below(|id| !self.away.contains(id) && !self.drains.contains_key(id))
    }

    /// Whether a structure of this kind may have so many blocks, in memory or else below.
    pub fn may_have(
        &self,
        job: usize,
        counts: &BTreeSet<PrefixId>,
        blocks: u64,
        kind: Kind,
    ) -> Outcome<()> {
        match self.may_take(job, counts, blocks) {
            Err("OutOfMemory" | "Recovering")
                if kind == Kind::File
                    && self.room_below() >= blocks
                    && self.within_quotas(job, counts, blocks).is_ok() =>
            {
                Ok(())
            }
            other => other,
        }
    }

    /// The catalog wants a block to go down for a prefix that asked for memory: what is wrong with that
    /// (INV-42, INV-43).
    pub fn lowers(
        &mut self,
        at: BlockAt,
        tier: TierIx,
        asker: Option<(usize, usize)>,
    ) -> Result<(), String> {
        if !tier.is_below() {
            return Err(format!("{at:?} comes up, and nobody asked for it"));
        }
        let has = |file: &&File| file.held().contains(&at);
        let of = self.jobs.iter().enumerate().find_map(|(j, job)| {
            job.files.iter().find(has).map(|file| ((j, file.prefix), file.kind))
        });
        // One that is kept for a flush is nobody's, and may be of any kind.
        let kept = self.quarantined.contains(&at);
        let Some((prefix, kind)) = of.or(asker.filter(|_| kept).map(|who| (who, Kind::File)))
        else {
            return Err(format!("{at:?} is nobody's, and goes down"));
        };
        self.gives(at, prefix, asker)?;
        if kind != Kind::File || self.tiers.place(at) != Default::default() {
            return Err(format!("{at:?} of a {kind} at {:?} cannot go down", self.tiers.place(at)));
        }
        if self.drains.contains_key(&at.block.server()) {
            return Err(format!("{at:?} goes down on a server that is taken out"));
        }
        if self.room_below() == 0 {
            return Err(format!("{at:?} goes down, where there is no room (INV-42)"));
        }
        self.tiers.put(at, (TierIx::MEMORY, tier));
        Ok(())
    }

    /// The catalog wants a block to come up that is read often: what is wrong with that. There has to be
    /// room that is nobody's, and neither reserved (INV-42).
    pub fn raises(&mut self, at: BlockAt) -> Result<(), String> {
        let (tier, to) = self.tiers.place(at);
        if !tier.is_below() || tier != to {
            return Err(format!("{at:?} at {tier} on its way to {to} cannot come up"));
        }
        let server = at.block.server();
        if self.drains.contains_key(&server) || self.away.contains(&server) {
            return Err(format!("{at:?} comes up on a server that is taken out or away"));
        }
        if self.room().0 == 0 {
            return Err(format!("{at:?} comes up, where there is no room to spare (INV-42)"));
        }
        self.tiers.put(at, (tier, TierIx::MEMORY));
        Ok(())
    }
}
