//! The tiers of blocks, on servers that have a lower tier.

use super::{Cluster, File, Outcome};
use honeycomb_types::{BlockAt, Kind, PrefixId, ServerId, TierIx};
use std::collections::{BTreeMap, BTreeSet};

/// The tier of every server's disk.
const DISK: TierIx = TierIx(1);
/// The tier of its object store, below the disk.
const STORE: TierIx = TierIx(2);

/// The state of tiers: a disk below memory, and a store below that.
#[derive(Clone, Debug, Default)]
pub struct Tiers {
    /// Room for blocks on the disk of each server that has one.
    pub below: BTreeMap<ServerId, u64>,
    /// The same in a store.
    pub stores: BTreeMap<ServerId, u64>,
    /// The tier and the target tier of blocks that are not simply in memory.
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

    /// A block was opened, or a server has reported its tiers.
    pub fn put(&mut self, at: BlockAt, place: (TierIx, TierIx)) {
        self.places.remove(&at);
        if place != Default::default() {
            self.places.insert(at, place);
        }
    }

    /// A block has arrived in its target tier, or stays in its tier.
    pub fn arrives(&mut self, at: BlockAt, tier: TierIx) {
        let (from, to) = self.place(at);
        if from != to && (tier == from || tier == to) {
            self.put(at, (tier, tier));
        }
    }
}

impl Cluster {
    /// Free blocks of a lower tier, on servers for which `counts` holds.
    fn below(&self, tier: TierIx, counts: impl Fn(&ServerId) -> bool) -> u64 {
        let all = if tier == STORE { &self.tiers.stores } else { &self.tiers.below };
        let there = all.iter().filter(|(id, _)| counts(id));
        let free = there.map(|(&server, &total)| {
            let below = |at: &BlockAt| {
                let (from, to) = self.tiers.place(*at);
                from == tier || to == tier
            };
            total.saturating_sub(self.out(server).filter(below).count() as u64)
        });
        free.sum()
    }

    /// Free blocks of lower tiers, available or not.
    pub fn free_below(&self) -> u64 {
        let there = |id: &ServerId| !self.away.contains(id);
        self.below(DISK, there) + self.below(STORE, there)
    }

    /// Blocks available in lower tiers: on disks, and none in stores.
    pub fn room_below(&self) -> u64 {
        self.below(DISK, |id| !self.away.contains(id) && self.takes_blocks(*id))
    }

    /// Whether a structure of this kind may have this many blocks, in memory or else in a lower tier.
    pub fn may_have(
        &self,
        job: usize,
        counts: &BTreeSet<PrefixId>,
        (blocks, units): (u64, u64),
        kind: Kind,
    ) -> Outcome<()> {
        match self.may_take(job, counts, (blocks, units)) {
            Err("OutOfMemory" | "Recovering")
                if matches!(kind, Kind::File | Kind::Kv | Kind::Queue)
                    && self.room_below() >= blocks
                    && self.within_quotas(job, counts, blocks * units).is_ok() =>
            {
                Ok(())
            }
            other => other,
        }
    }

    /// Checks the demotion of a block for a prefix that requested memory (INV-42, INV-43).
    pub fn lowers(
        &mut self,
        at: BlockAt,
        tier: TierIx,
        asker: Option<(usize, usize)>,
    ) -> Result<(), String> {
        if !tier.is_below() {
            return Err(format!("{at:?} is promoted without a request"));
        }
        let has = |file: &&File| file.held().contains(&at);
        // Any block of a kv or of a queue may be written to. A block of extents accepts nothing in a lower
        // tier.
        let is_final = |file: &File| {
            let takes_more = file.chain.last() == Some(&at) && !file.seals.contains_key(&at);
            file.kind == Kind::File && !takes_more || file.extents.contains(&at)
        };
        let of = self.jobs.iter().enumerate().find_map(|(j, job)| {
            let file = job.files.iter().find(has)?;
            let kind = if file.extents.contains(&at) { Kind::Extents } else { file.kind };
            Some(((j, file.prefix), kind, is_final(file)))
        });
        // A block retained for a flush has no owner, and may have any kind.
        let kept = self.quarantined.contains(&at);
        let kept = asker.filter(|_| kept).map(|who| (who, Kind::File, true));
        let Some((prefix, kind, is_final)) = of.or(kept) else {
            return Err(format!("{at:?} has no owner, and is demoted"));
        };
        let (from, on_its_way) = self.tiers.place(at);
        // Room on a disk is not divided into shares.
        if !from.is_below() {
            self.gives(at, prefix, asker)?;
        }
        let works_below = matches!(kind, Kind::File | Kind::Kv | Kind::Queue | Kind::Extents);
        if !works_below || from != on_its_way || from >= tier {
            return Err(format!("{at:?} of a {kind} at {:?} cannot go down", self.tiers.place(at)));
        }
        if tier == STORE && !is_final {
            return Err(format!("{at:?} may be written to, and goes to a store"));
        }
        if !self.takes_blocks(at.block.server()) {
            return Err(format!("{at:?} is demoted on a draining or suspected server"));
        }
        if self.below(tier, |id| *id == at.block.server()) == 0 {
            return Err(format!("{at:?} goes to {tier}, where there is no room (INV-42)"));
        }
        self.tiers.put(at, (from, tier));
        Ok(())
    }

    /// Checks the promotion of a block that is read often. The room must be neither owned nor reserved
    /// (INV-42).
    pub fn raises(&mut self, at: BlockAt) -> Result<(), String> {
        let (tier, to) = self.tiers.place(at);
        if !tier.is_below() || tier != to {
            return Err(format!("{at:?} at {tier} on its way to {to} cannot come up"));
        }
        let server = at.block.server();
        if !self.takes_blocks(server) || self.away.contains(&server) {
            return Err(format!("{at:?} is promoted on a draining or disconnected server"));
        }
        if self.room().0 == 0 {
            return Err(format!("{at:?} is promoted without spare room (INV-42)"));
        }
        self.tiers.put(at, (tier, TierIx::MEMORY));
        Ok(())
    }
}
