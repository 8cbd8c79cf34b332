//! Where a block divides: by its bytes, unless one half is much busier than the other.

use super::KvBlock;
use super::region::Region;
use honeycomb_block::Backing;
use honeycomb_types::Time;
use std::time::Duration;

/// Of the weight of a block, each half has at least 1 / this: with less, dividing it is no relief.
const LEAST_HALF: usize = 16;
/// One half is much busier than the other when it has this many times its operations.
const MUCH_BUSIER: u64 = 4;
/// Fewer operations say nothing about where a block is busy.
const SEEN_LEAST: u64 = 1000;
/// Wherever it is busy, each half has at least 1 / this of a block's weight, so that the one which
/// stays full is not divided again soon.
const LEAST_OF_BUSY: usize = 4;
/// Operations count half as much after this.
const HALVES_AFTER: Duration = Duration::from_secs(1);
/// When nobody has looked for long, what was counted meanwhile is halved this often and not more:
/// a block that is only read is looked at seldom.
const HALVINGS_MAX: u64 = 3;

impl KvBlock {
    /// Lets operations that were counted long ago count less.
    pub(super) fn cool(&mut self, now: Time) {
        let passed = now.since(self.asking.cooled);
        if passed < HALVES_AFTER {
            return;
        }
        let halvings = (passed.as_millis() / HALVES_AFTER.as_millis()) as u64;
        self.asking.cooled = now;
        for region in &self.table.regions {
            region.load.set(region.load.get() >> halvings.min(HALVINGS_MAX));
        }
    }

    /// Where the block divides: the first hash of the upper half, at the boundary of a slot. `None`
    /// when no boundary gives relief.
    pub(super) fn middle(&self, block: &Backing) -> Option<u64> {
        let total = self.upto(self.table.order.len(), weight);
        let place = self.place_where(total / 2, weight);
        let weighed = self.weigh_below(block, self.boundaries(place));
        let (off, hash) =
            weighed.into_iter().map(|(hash, below)| ((2 * below).abs_diff(total), hash)).min()?;
        // Both halves together: `off` is what the heavier one has more.
        let relief = total.saturating_sub(off) / 2 >= total / LEAST_HALF as u64;
        relief.then(|| self.middle_of_load(block, total, hash).unwrap_or(hash))
    }

    /// Where the load divides as evenly as bytes allow, when the middle by bytes leaves one half much
    /// busier than the other.
    fn middle_of_load(&self, block: &Backing, total: u64, middle: u64) -> Option<u64> {
        let all = self.upto(self.table.order.len(), load);
        let below = self.upto(self.table.place_of(middle), load);
        let (more, less) = (below.max(all - below), below.min(all - below));
        if all < SEEN_LEAST || more <= MUCH_BUSIER * less {
            return None;
        }
        let least = total / LEAST_OF_BUSY as u64;
        let (first, last) =
            (self.place_where(least, weight), self.place_where(total - least, weight));
        let place = self.place_where(all / 2, load).clamp(first, last);
        let weighed = self.weigh_below(block, self.boundaries(place));
        let fair = weighed.into_iter().filter(|(_, below)| {
            // A slot more or less than where it was meant to be.
            (least - least / 4..=total - least + least / 4).contains(below)
        });
        fair.map(|(hash, below)| (self.load_below(hash, below).abs_diff(all - all / 2), hash))
            .min()
            .map(|(_, hash)| hash)
    }

    /// About how much of the load is below a hash, below which `weight_below` lies.
    fn load_below(&self, hash: u64, weight_below: u64) -> u64 {
        let place = self.table.place_of(hash);
        let region = &self.table.regions[self.table.order[place] as usize];
        let within = weight_below.saturating_sub(self.upto(place, weight));
        self.upto(place, load) + load(region) * within / weight(region).max(within).max(1)
    }

    /// What the regions before a place have.
    fn upto(&self, place: usize, of: impl Fn(&Region) -> u64) -> u64 {
        let table = &self.table;
        table.order[..place].iter().map(|id| of(&table.regions[*id as usize])).sum()
    }

    /// The place of the region with which there is more than this.
    fn place_where(&self, much: u64, of: impl Fn(&Region) -> u64) -> usize {
        let table = &self.table;
        let mut sum = 0;
        let reaches = table.order.iter().position(|id| {
            sum += of(&table.regions[*id as usize]);
            sum > much
        });
        reaches.unwrap_or(table.order.len() - 1)
    }

    /// The boundaries of slots within the region at a place, and the next ones on both sides: one
    /// slot may be more than a region.
    fn boundaries(&self, place: usize) -> Vec<u64> {
        let shift = u64::BITS - self.slots.trailing_zeros();
        let (first, last) = (self.table.starts[place], self.end_of(place));
        let slots = (first >> shift)..=(last >> shift) + 1;
        let hashes = slots.filter_map(|slot| u64::try_from(slot as u128 * (1u128 << shift)).ok());
        hashes.filter(|hash| *hash > self.start && *hash <= self.end).collect()
    }

    /// What lies below each of some hashes, which are in order.
    fn weigh_below(&self, block: &Backing, hashes: Vec<u64>) -> Vec<(u64, u64)> {
        let table = &self.table;
        let mut weighed = Vec::with_capacity(hashes.len());
        let (mut place, mut before) = (0, 0);
        for of_one in hashes.chunk_by(|a, b| table.place_of(*a) == table.place_of(*b)) {
            let to = table.place_of(of_one[0]);
            let regions = table.order[place..to].iter().map(|id| &table.regions[*id as usize]);
            before += regions.map(weight).sum::<u64>();
            place = to;
            let region = &table.regions[table.order[place] as usize];
            // By the first of the hashes that it lies below.
            let mut below = vec![0; of_one.len() + 1];
            for (at, head) in region.walk(block).filter(|(_, head)| !head.dead()) {
                let hash = head.hash(block, at);
                let at = of_one.partition_point(|boundary| *boundary <= hash);
                below[at] += (head.size() + head.beside()) as u64;
            }
            let mut sum = before;
            for (hash, weight) in of_one.iter().zip(below) {
                sum += weight;
                weighed.push((*hash, sum));
            }
        }
        weighed
    }
}

fn weight(region: &Region) -> u64 {
    region.weight() as u64
}

fn load(region: &Region) -> u64 {
    region.load.get() as u64
}
