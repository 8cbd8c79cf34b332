//! The ledger of a memory server: how much memory of each core every controller shard may use, in units.
//!
//! The ledger counts units and names no blocks: each controller shard has names of its own for the blocks, so
//! that one shard can use a block that another has returned without knowledge of it (ADR 0021).
//! The shares never exceed the capacity. A shard keeps its share until it returns a part of it: only the
//! shard knows the blocks that it has allocated (INV-40).

use honeycomb_types::Bug;

/// Blocks in the shares, by controller shard and core.
#[derive(Clone, Debug)]
pub struct Lots {
    /// Blocks of each core.
    capacity: Vec<u32>,
    /// The share of each controller shard.
    lent: Vec<Vec<u32>>,
}

impl Lots {
    /// Empty shares of this many cores with this many blocks each.
    pub fn new(cores: usize, blocks: u32) -> Lots {
        Lots { capacity: vec![blocks; cores], lent: Vec::new() }
    }

    /// The share of a controller shard.
    pub fn lent(&self, controller: u16) -> Vec<u32> {
        let lent = self.lent.get(controller as usize);
        lent.cloned().unwrap_or_else(|| vec![0; self.capacity.len()])
    }

    /// Blocks of a core that are in no share.
    pub fn free(&self, core: usize) -> u32 {
        if Bug::LotsLentTwice.active() {
            return self.capacity[core]
                - self.lent.iter().map(|lent| lent[core]).max().unwrap_or(0);
        }
        let lent = self.lent.iter().map(|lent| lent[core]).sum::<u32>();
        let all = self.capacity[core];
        assert!(lent <= all, "INV-40: {lent} blocks of core {core} are lent, of {all}");
        all - lent
    }

    /// Sets the total that a controller shard requests: a surplus is returned, and an increase is granted as
    /// far as blocks are free. Returns the share then; `None` if the number of cores is wrong.
    pub fn set(&mut self, controller: u16, wanted: &[u32]) -> Option<Vec<u32>> {
        if wanted.len() != self.capacity.len() {
            return None;
        }
        let none = vec![0; self.capacity.len()];
        let shards = self.lent.len().max(controller as usize + 1);
        self.lent.resize(shards, none);
        for (core, &wanted) in wanted.iter().enumerate() {
            let (has, free) = (self.lent[controller as usize][core], self.free(core));
            if Bug::LotsLost.active() {
                self.capacity[core] -= has.saturating_sub(wanted);
            }
            self.lent[controller as usize][core] = wanted.min(has + free);
            let (lent, all) = (self.lent.iter().map(|l| l[core]).sum::<u32>(), self.capacity[core]);
            assert!(lent <= all, "INV-40: {lent} blocks of core {core} are lent, of {all}");
        }
        Some(self.lent(controller))
    }

    /// Clears the share of a controller shard that does not know this server, or no longer exists.
    pub fn clear(&mut self, controller: u16) {
        if let Some(lent) = self.lent.get_mut(controller as usize) {
            lent.fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_is_what_there_is_at_most() {
        let mut lots = Lots::new(2, 10);
        assert_eq!(lots.set(0, &[7, 0]), Some(vec![7, 0]));
        assert_eq!(lots.set(1, &[7, 20]), Some(vec![3, 10]));
        assert_eq!((lots.free(0), lots.free(1)), (0, 0));
        assert_eq!(lots.set(0, &[2, 4]), Some(vec![2, 0]));
        assert_eq!(lots.set(1, &[7, 5]), Some(vec![7, 5]));
        lots.clear(1);
        assert_eq!((lots.lent(1), lots.free(0), lots.free(1)), (vec![0, 0], 8, 10));
        assert_eq!(lots.set(0, &[1]), None);
    }
}
