//! Capacities of blocks: how much of a block's address range its structure may use.
//!
//! A block begins with one unit of memory, and its capacity grows in place while it fills, until it is the
//! block size; that of a store's block also shrinks. Memory is allocated, shared, and counted towards quotas
//! in units, so that a structure of little content takes little, and one of much content has few blocks.

use crate::limits::{
    BLOCK_NAMES_MIN, CAPACITY_FIRST, CAPACITY_HUGE, CAPACITY_PARTS, CAPACITY_UNIT,
};

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

    /// The least capacity, in units, for this many bytes: 1, 4, a huge page, that times powers of 4 below an
    /// eighth of a block, then eighths. A block of less than eight huge pages has 1, 4, then eighths.
    pub fn capacity_for(self, bytes: u64) -> u32 {
        let whole = self.whole();
        let units = u32::try_from(bytes.div_ceil(self.bytes().max(1))).unwrap_or(u32::MAX);
        let part = (whole / CAPACITY_PARTS).max(1);
        let powers = (0..).map(|n| HUGE << (2 * n)).take_while(|size| *size < part);
        let mut small = [1, CAPACITY_FIRST].into_iter().chain(powers);
        let least = small.find(|size| units <= *size);
        least.unwrap_or_else(|| units.min(whole).next_multiple_of(part)).min(whole)
    }

    /// The same in bytes.
    pub fn capacity_bytes_for(self, bytes: u64) -> u64 {
        u64::from(self.capacity_for(bytes)) * self.bytes()
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
    fn capacities_of_large_blocks_are_some_units_or_huge_pages_or_eighths() {
        let units = BlockUnits::of(64 * MIB);
        assert_eq!((units.bytes(), units.whole()), (64 * KIB, 1024));
        let capacity = |bytes| units.capacity_for(bytes);
        assert_eq!([0, 1, 64 * KIB].map(capacity), [1, 1, 1]);
        assert_eq!([64 * KIB + 1, 256 * KIB].map(capacity), [4, 4]);
        assert_eq!([256 * KIB + 1, 2 * MIB].map(capacity), [32, 32]);
        assert_eq!([2 * MIB + 1, 8 * MIB, 9 * MIB].map(capacity), [128, 128, 256]);
        assert_eq!([56 * MIB, 56 * MIB + 1, 65 * MIB].map(capacity), [896, 1024, 1024]);
        assert_eq!(units.capacity_bytes_for(8 * MIB + 1), 16 * MIB);
        let largest = |mib| BlockUnits::of(1024 * MIB).capacity_bytes_for(mib * MIB) / MIB;
        assert_eq!([2, 3, 9, 33, 128, 129, 1000].map(largest), [2, 8, 32, 128, 128, 256, 1024]);
    }

    #[test]
    fn capacities_of_blocks_of_less_than_eight_huge_pages_are_some_units_or_eighths() {
        let capacity = |block, bytes| BlockUnits::of(block).capacity_for(bytes);
        assert_eq!([1, 2, 3, 8].map(|mib| capacity(16 * MIB, mib * MIB)), [32, 32, 64, 128]);
        assert_eq!([1, 2, 3, 8].map(|mib| capacity(8 * MIB, mib * MIB)), [16, 32, 48, 128]);
        assert_eq!([1, 2].map(|mib| capacity(2 * MIB, mib * MIB)), [16, 32]);
        assert_eq!([256, 257, 385, 1024].map(|kib| capacity(MIB, kib * KIB)), [4, 6, 8, 16]);
        assert_eq!([64, 65, 257, 321].map(|kib| capacity(512 * KIB, kib * KIB)), [1, 4, 5, 6]);
        assert_eq!([64, 65].map(|kib| capacity(128 * KIB, kib * KIB)), [1, 2]);
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
