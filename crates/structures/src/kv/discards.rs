//! The data of ranges that have moved to another block, freed in steps.

use super::large_values::values_of;
use super::table::Table;
use honeycomb_block::Backing;
use honeycomb_types::Bug;

/// Work of one step: regions freed, and values.
const SWEEP_REGIONS: usize = 1;
const SWEEP_VALUES: usize = 32;

/// Regions and values to be freed.
#[derive(Default)]
pub(super) struct Discards {
    regions: Vec<u32>,
    values: Vec<u32>,
}

impl Discards {
    /// Adds regions that have no hashes any more.
    pub fn add(&mut self, regions: Vec<u32>) {
        self.regions.extend(regions);
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty() && self.values.is_empty()
    }

    /// The regions, with their content or without a part of their values.
    pub fn regions(&self) -> &[u32] {
        &self.regions
    }

    /// Frees some of the data, so that no operation waits for all of it; returns whether there may be more.
    #[inline]
    pub fn sweep(&mut self, table: &mut Table, block: &mut Backing) -> bool {
        !self.is_empty() && self.sweep_some(table, block)
    }

    fn sweep_some(&mut self, table: &mut Table, block: &mut Backing) -> bool {
        for _ in 0..SWEEP_VALUES.min(self.values.len()) {
            let value = self.values.pop().expect("counted");
            table.heap.free_value(block, value);
        }
        if !self.values.is_empty() {
            return true;
        }
        for _ in 0..SWEEP_REGIONS {
            let Some(id) = self.regions.pop() else { return false };
            let region = table.heap.regions.get(id);
            if region.large > 0 {
                let values = values_of(block, region);
                self.values = values.into_iter().map(|(_, value)| value).collect();
            }
            if Bug::MoveDropsExtents.active() {
                table.drop_extents_of(block, id);
            }
            table.heap.forget_region(block, id);
        }
        true
    }
}
