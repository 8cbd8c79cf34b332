//! Memory that the blocks of a core use, in units.

use honeycomb_types::BlockUnits;

/// The units that blocks use, by their capacities: never more than there are.
#[derive(Debug, Default)]
pub(super) struct UnitsInUse {
    size: BlockUnits,
    used: u32,
    most: u32,
    /// The invariant that bounds them.
    invariant: &'static str,
}

impl UnitsInUse {
    /// None, where this many whole blocks have room.
    pub fn new(size: BlockUnits, blocks: u32, invariant: &'static str) -> UnitsInUse {
        UnitsInUse { size, used: 0, most: size.units(blocks), invariant }
    }

    /// Whether another block of this capacity has room.
    pub fn has_room(&self, capacity: u64) -> bool {
        self.used + self.size.capacity_for(capacity) <= self.most
    }

    /// A block of this capacity takes its memory.
    pub fn take(&mut self, capacity: u64) {
        self.used += self.size.capacity_for(capacity);
        let UnitsInUse { used, most, invariant, .. } = *self;
        assert!(used <= most, "{invariant}: {used} of {most} units are used");
    }

    /// The memory of a block of this capacity is free.
    pub fn give(&mut self, capacity: u64) {
        let (units, used, invariant) =
            (self.size.capacity_for(capacity), self.used, self.invariant);
        assert!(used >= units, "{invariant}: {units} units are freed, of {used}");
        self.used -= units;
    }

    /// The same in whole blocks, with begun ones included.
    pub fn blocks(&self) -> u32 {
        self.used.div_ceil(self.size.whole())
    }
}
