//! The ledger of a memory server: to which controller shard it has lent how much of each core.
//!
//! Room is counted, not named: each controller shard has names of its own for the blocks, so that one
//! it gave back can be used by another without either knowing the other (ADR 0021). What is lent never
//! exceeds what there is, and what a shard has it keeps until it says that it has no use for it: only
//! it knows what it has given out (INV-40).

use honeycomb_types::Bug;

/// Blocks lent, by controller shard and core.
#[derive(Clone, Debug)]
pub struct Lots {
    /// Blocks of each core.
    capacity: Vec<u32>,
    /// What each controller shard has.
    lent: Vec<Vec<u32>>,
}

impl Lots {
    /// Nothing is lent of so many cores with so many blocks each.
    pub fn new(cores: usize, blocks: u32) -> Lots {
        Lots { capacity: vec![blocks; cores], lent: Vec::new() }
    }

    /// What a controller shard has.
    pub fn lent(&self, controller: u16) -> Vec<u32> {
        let lent = self.lent.get(controller as usize);
        lent.cloned().unwrap_or_else(|| vec![0; self.capacity.len()])
    }

    /// Blocks of a core that nobody has.
    pub fn free(&self, core: usize) -> u32 {
        if Bug::LotsLentTwice.active() {
            return self.capacity[core]
                - self.lent.iter().map(|lent| lent[core]).max().unwrap_or(0);
        }
        self.capacity[core] - self.lent.iter().map(|lent| lent[core]).sum::<u32>()
    }

    /// A controller shard wants to have so much in all: what is less comes back, what is more it gets
    /// as far as there is any. Answers what it has then; `None` when it speaks of other cores.
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
        }
        Some(self.lent(controller))
    }

    /// A controller shard has nothing any more: it does not know this server, or is not there.
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
