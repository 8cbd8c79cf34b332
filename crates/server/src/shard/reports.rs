//! The reports of a shard about its blocks.

use super::blocks::Blocks;
use super::export::{NewUse, Overlaps, PresentUse, RetainedBlock, TierExport};
use super::residency::{MemoryRoom, Residency};
use super::tiers::{TierCounts, Tiers};
use super::{BlockOwner, Shard};
use crate::holdings::ReportedState;
use honeycomb_types::BlockAt;
use honeycomb_wire::messages::HeldBlock;

/// The parts of a shard that are reported.
pub struct Reports<'a> {
    blocks: &'a Blocks,
    tiers: &'a Tiers,
    overlaps: &'a Overlaps,
}

impl Shard {
    /// Reports about its blocks.
    pub fn reports(&self) -> Reports<'_> {
        let Shard { blocks, tiers, overlaps, .. } = self;
        Reports { blocks, tiers, overlaps }
    }
}

impl<'a> Reports<'a> {
    /// The report for a controller that may have lost some of this state: every block that is held, with its
    /// seal, its successor, and the items taken from it. A block that is being flushed is held too.
    pub fn holdings(&self) -> Vec<HeldBlock> {
        let open = self.blocks.in_use().map(|slot| {
            let (tier, to) = self.tiers.tiers_of(slot.owner.at, &slot.residency);
            let told = slot.told.of(&slot.owner, slot.structure.bytes_used());
            HeldBlock { tier: tier.0, to: to.0, ..told }
        });
        let retained = self.blocks.all_retained().map(|retained| {
            let RetainedBlock { owner, residency, .. } = retained;
            let (tier, to) = self.tiers.tiers_of(owner.at, residency);
            HeldBlock { tier: tier.0, to: to.0, ..ReportedState::default().of(owner, 0) }
        });
        open.chain(retained).collect()
    }

    /// The blocks in use and their owners.
    pub fn inventory(&self) -> impl Iterator<Item = &'a BlockOwner> + use<'a> {
        let open = self.blocks.in_use().map(|slot| &slot.owner);
        open.chain(self.blocks.all_retained().map(|retained| &retained.owner))
    }

    /// The pairs of a present use of a block's content and a new export that have occurred, begun or refused,
    /// for checkers.
    pub fn overlaps(&self) -> impl Iterator<Item = (PresentUse, NewUse)> + use<'a> {
        self.overlaps.seen()
    }

    /// The traffic between tiers since the start.
    pub fn tier_counts(&self) -> TierCounts {
        self.tiers.counts
    }

    /// Whether no block is on its way to or from a disk, and every used slot belongs to a block. For tests.
    pub fn tiers_are_quiet(&self) -> bool {
        let residencies = self.blocks.in_use().map(|slot| &slot.residency);
        let residencies =
            residencies.chain(self.blocks.all_retained().map(|retained| &retained.residency));
        let of = |residency: &Residency| {
            let extra = residency.export().and_then(TierExport::extra_slot);
            usize::from(residency.copy().is_some()) + usize::from(extra.is_some())
        };
        self.tiers.is_quiet(residencies.map(of).sum())
    }

    /// Memory in use, in whole blocks with begun ones included, and places of the write cache in use. For
    /// tests.
    pub fn in_memory(&self) -> (u32, u32) {
        (self.tiers.frames.blocks(), self.tiers.write_cache.taken)
    }

    /// Whether so many more bytes of capacity have room in memory. For tests.
    pub fn has_room_in_memory(&self, bytes: u64) -> bool {
        self.tiers.frames.has_room(bytes)
    }

    /// Whether a block has a frame. For tests.
    pub fn has_frame_for(&self, at: BlockAt) -> bool {
        let mut in_use = self.blocks.in_use();
        in_use.any(|slot| slot.owner.at == at && slot.residency.room() == MemoryRoom::Frame)
    }
}
