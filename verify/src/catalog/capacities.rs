//! Capacities of blocks.

use super::{CatalogModel, agree};
use crate::catalog::reference::{Verdict, require};
use honeycomb_catalog::{CatalogError, Command, Reply};
use honeycomb_types::{BlockAt, BlockUnits, StructureId};

impl CatalogModel {
    /// The units that a command requests.
    pub(super) fn units_asked(&self, command: &Command<'_>) -> u64 {
        match *command {
            Command::CreateStructure { structure, .. } => {
                let (blocks, units) = self.cluster.first_memory(structure.kind, structure.blocks);
                blocks * units
            }
            Command::ShortOf { units } => units.into(),
            Command::GrowBlock { at, bytes, .. } => {
                let units = BlockUnits::of(self.cluster.block.0).capacity_for(bytes);
                u64::from(units).saturating_sub(self.cluster.units(at))
            }
            Command::GrowStructure { structure, at } => self.capacity_after(structure, at),
            Command::BeginAppend { bytes, .. } => self.cluster.private_units(bytes),
            Command::BeginMove { at, .. } => self.cluster.units(at),
            _ => self.cluster.whole(),
        }
    }

    /// The capacity of the last block of a chain, which its successor gets: that of the structure, or the
    /// private one of this block.
    pub(super) fn capacity_after(&self, structure: StructureId, at: BlockAt) -> u64 {
        let place = self.cluster.find(structure);
        if place.is_some_and(|place| self.cluster.file(place).private_of(at).is_some()) {
            return self.cluster.units(at);
        }
        let last = place.and_then(|place| self.cluster.file(place).chain.last().copied());
        last.map_or(self.cluster.whole(), |at| self.cluster.units(at))
    }

    /// A block requests a larger capacity.
    pub(super) fn enlarge(
        &mut self,
        structure: StructureId,
        at: BlockAt,
        bytes: u64,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        self.cluster.hear(at.block.server());
        let Some(place) = self.cluster.find(structure) else {
            return require(reply.is_err(), || format!("{structure} is gone, and {at:?} grows"));
        };
        let expected = self.cluster.larger(place, at, bytes);
        let units = expected.unwrap_or_default().saturating_sub(self.cluster.units(at));
        // Memory that is left belongs to holders within their share.
        let leaves = self.cluster.shares.policy.is_fair()
            && matches!(reply, Err(CatalogError::OutOfMemory { .. }))
            && !self.cluster.is_within_share(place.0, units);
        if leaves && expected.is_ok() {
            return Ok(());
        }
        agree("a larger capacity", reply, &expected)?;
        let (Ok(Reply::Capacity { bytes }), Ok(units)) = (reply, expected) else { return Ok(()) };
        self.cluster.holds(at, *bytes);
        require(self.cluster.units(at) == units, || {
            format!("{at:?} has {bytes} bytes, and should have {units} units (INV-60)")
        })
    }
}
