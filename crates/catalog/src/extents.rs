//! Blocks in which a structure keeps the extents of its large values (ADR 0018).
//!
//! These blocks belong to the structure like its other blocks: they are logged, listed in inventories,
//! counted in quotas, and lost and freed with it. They have no range and are in no map, because entries name
//! them. A client requests a block with room; the catalog returns the fullest, so that the other blocks
//! become empty. A block that has been empty for a while accepts no more extents, reports so, and is freed.

use crate::pool::{Draw, SlotOwner, Wanted, Where};
use crate::structures::StructureRecord;
use crate::{Actor, Catalog, CatalogError, Effect, MapEntry, Reply};
use honeycomb_types::limits::{BATCH_MAX, LARGE_FRACTION};
use honeycomb_types::{
    BlockAt, BlockId, Demotion, JobId, Kind, KindAttributes, MoveId, StructureId,
};

impl StructureRecord {
    /// The ways in which it is used.
    pub(crate) fn attributes(&self) -> KindAttributes {
        self.kind.attributes_with(self.capabilities)
    }

    /// The kind of its next block, and how that reaches lower tiers.
    pub(crate) fn placed_as(&self) -> (Kind, Demotion) {
        (self.kind, self.attributes().demotion)
    }

    /// The ways in which one of its blocks is used.
    pub(crate) fn attributes_of(&self, block: BlockId) -> KindAttributes {
        self.kind_of(block).attributes_with(self.capabilities)
    }

    /// The kind of content of one of its blocks.
    pub(crate) fn kind_of(&self, block: BlockId) -> Kind {
        match self.extents.contains(&block) {
            true => self.kind.attributes().extents.expect("INV-39: the kind has blocks of extents"),
            false => self.kind,
        }
    }
}

impl Catalog {
    pub(crate) fn extent_blocks(
        &mut self,
        actor: Actor,
        (job, id): (JobId, StructureId),
        bytes: u64,
        full: &[BlockId],
        value: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let s = self.identified(actor, job, id)?;
        let Some(kind) = self.structures[s].attributes().extents else {
            return Err(self.wrong_kind(s, "structure with large values"));
        };
        self.verbs_at(actor, self.structures[s].prefix)?;
        if bytes == 0 {
            let entries = self.structures[s].extents.iter().map(|&b| self.extent_entry(b));
            return Ok(Reply::Extents(entries.collect()));
        }
        self.need_write_at(actor, self.structures[s].prefix, "store a large value")?;
        let most = self.block_size / LARGE_FRACTION;
        if bytes > most {
            let (what, given) = ("the length of an extent", bytes);
            let allowed = "an extent holds at most an eighth of a block";
            return Err(CatalogError::InvalidArgument { what, given, allowed });
        }
        if let Some(limit) = self.all_bytes().filter(|all| value > *all) {
            // No byte is written, and nobody waits for memory.
            return Err(CatalogError::ValueTooLarge { bytes: value, limit });
        }
        let room = |block: &BlockId| {
            let used = self.pool.bytes_used(*block);
            let takes = self.pool.takes_blocks(block.server()) && !self.leaves_or_left(*block);
            (takes && !full.contains(block) && used + bytes <= self.block_size).then_some(used)
        };
        let known = self.structures[s].extents.iter().filter_map(|b| Some((room(b)?, *b)));
        // The fullest; among equally full ones, always the same.
        let block = match known.max().map(|(_, block)| block) {
            Some(block) => block,
            None => self.add_extent_block(s, kind, effects)?,
        };
        Ok(Reply::Extents(vec![self.extent_entry(block)]))
    }

    fn add_extent_block(
        &mut self,
        s: u32,
        kind: Kind,
        effects: &mut Vec<Effect>,
    ) -> Result<BlockId, CatalogError> {
        if self.structures[s].extents.len() >= BATCH_MAX {
            let (what, limit) = ("blocks of extents of one structure", BATCH_MAX as u64);
            return Err(CatalogError::LimitExceeded { what, limit });
        }
        let StructureRecord { job: j, prefix, .. } = self.structures[s];
        let kind = (kind, kind.attributes().demotion);
        let wanted = Wanted::one(self.units().whole());
        let block = self.take_blocks((j, prefix), s, kind, wanted, Draw::Ordinary)?[0].block;
        self.structures[s].extents.push(block);
        self.structures.extents_change(s, self.pool.at(block), true);
        effects.push(self.open_effect(s, block, (0, u64::MAX), MoveId::NONE));
        Ok(block)
    }

    /// A map entry whose range is replaced by the number of free bytes.
    fn extent_entry(&self, block: BlockId) -> MapEntry {
        let free = self.block_size.saturating_sub(self.pool.bytes_used(block));
        self.entry(block, 0, if self.leaves_or_left(block) { 0 } else { free })
    }

    /// Whether a block is in a lower tier or being demoted: it then accepts no extents.
    fn leaves_or_left(&self, block: BlockId) -> bool {
        let Where { tier, to, .. } = self.pool.place(block);
        tier.is_below() || to.is_below()
    }

    /// Whether a block holds extents.
    pub(crate) fn holds_extents(&self, at: BlockAt) -> bool {
        let held = self.pool.held(at);
        matches!(held, Some(SlotOwner::By(s)) if self.structures[s].extents.contains(&at.block))
    }

    /// Frees a block of extents that is empty and accepts no more.
    pub(crate) fn retire_extents(
        &mut self,
        id: StructureId,
        at: BlockAt,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let s = self.held_by(id, at)?;
        self.structures.extents_change(s, at, false);
        let structure = &mut self.structures[s];
        let before = structure.extents.len();
        structure.extents.retain(|block| *block != at.block);
        let times = before - structure.extents.len();
        assert_eq!(times, 1, "INV-39: {at:?} is listed {times} times as a block of extents");
        let (j, version) = (structure.job, structure.version);
        self.give_back(j, s, at.block, effects);
        self.awaits_fewer(s, effects);
        Ok(Reply::Sealed { version: honeycomb_types::MapVersion(version) })
    }
}
