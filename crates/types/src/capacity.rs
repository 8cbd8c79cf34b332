//! Capacities of blocks: how much of a block's address range its structure may use.
//!
//! A block begins with one unit of memory, and its capacity is multiplied in place while it fills, until it
//! is the block size. Memory is allocated, shared, and counted towards quotas in units, so that a structure
//! of little content takes little, and one of much content has few blocks.

use crate::limits::{BLOCK_NAMES_MIN, CAPACITY_HUGE, CAPACITY_STEP, CAPACITY_UNIT};

/// Units of a huge page.
const HUGE: u32 = (CAPACITY_HUGE / CAPACITY_UNIT) as u32;

/// The units of the blocks of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockUnits {
    block_size: u64,
}

impl BlockUnits {
    /// Of blocks of this many bytes, a power of two.
    pub const fn of(block_size: u64) -> BlockUnits {
        BlockUnits { block_size }
    }

    /// Bytes of a unit: a block smaller than that is one unit.
    pub const fn bytes(self) -> u64 {
        if self.block_size < CAPACITY_UNIT { self.block_size } else { CAPACITY_UNIT }
    }

    /// Units of a whole block.
    pub const fn whole(self) -> u32 {
        if self.block_size <= CAPACITY_UNIT { 1 } else { (self.block_size / CAPACITY_UNIT) as u32 }
    }

    /// The least capacity, in units, for this many bytes: 1, 4, then a huge page times a power of 4, or a
    /// whole block.
    pub fn capacity_for(self, bytes: u64) -> u32 {
        let whole = self.whole();
        let mut units = 1;
        while units < whole && u64::from(units) * self.bytes() < bytes {
            let next = units * CAPACITY_STEP;
            units = if next > CAPACITY_STEP { next.max(HUGE) } else { next };
        }
        units.min(whole)
    }

    /// Blocks of any capacity that can have names where this many whole blocks have room: fewer than units,
    /// because each name takes memory of its own.
    pub fn names(self, blocks: u32) -> u32 {
        self.units(blocks).min(blocks.max(BLOCK_NAMES_MIN))
    }

    /// Units of this many whole blocks.
    pub fn units(self, blocks: u32) -> u32 {
        blocks.saturating_mul(self.whole())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{BLOCK_SIZE_MIN, KIB, MIB};

    #[test]
    fn capacities_are_some_units_or_a_huge_page_times_a_power_of_four_or_a_whole_block() {
        let units = BlockUnits::of(64 * MIB);
        assert_eq!((units.bytes(), units.whole()), (64 * KIB, 1024));
        let capacity = |bytes| units.capacity_for(bytes);
        assert_eq!([0, 1, 64 * KIB].map(capacity), [1, 1, 1]);
        assert_eq!([64 * KIB + 1, 256 * KIB].map(capacity), [4, 4]);
        assert_eq!([256 * KIB + 1, 2 * MIB].map(capacity), [32, 32]);
        assert_eq!([2 * MIB + 1, 8 * MIB, 9 * MIB].map(capacity), [128, 128, 512]);
        assert_eq!([32 * MIB + 1, 64 * MIB, 65 * MIB].map(capacity), [1024, 1024, 1024]);
        assert_eq!(BlockUnits::of(MIB).capacity_for(256 * KIB + 1), 16);
    }

    #[test]
    fn smallest_block_is_one_unit() {
        for size in [0, 1, BLOCK_SIZE_MIN] {
            let units = BlockUnits::of(size);
            assert_eq!((units.whole(), units.capacity_for(1 << 40)), (1, 1));
            assert_eq!((units.bytes(), units.names(7), units.units(7)), (size, 7, 7));
        }
    }

    #[test]
    fn names_are_units_as_far_as_there_are_few() {
        let units = BlockUnits::of(64 * MIB);
        assert_eq!(units.names(2), 2048);
        assert_eq!(units.names(160), BLOCK_NAMES_MIN);
        assert_eq!(units.names(100_000), 100_000);
    }
}
