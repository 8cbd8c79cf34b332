//! The sizes of a seed: of its blocks, and of the values, items, appends and reads. They are drawn
//! log-uniformly and at the limits of the product, because defects sit at edges.
//!
//! The draws have their own random stream. The limits come from the constants of the product, not
//! from copies.

use honeycomb_env::Entropy;
use honeycomb_types::limits::{
    BLOCK_SIZE_MIN, KIB, KV_BATCH_BYTES_MAX, LARGE_FRACTION, MIB, REGION_MAX, REGION_MIN,
    TIER_CHUNK, TIER_PIECE, inline_max,
};

/// Approximate bytes that one seed writes: more would cost time that further seeds use better.
const BYTES_MAX: usize = 8 << 20;
/// The longest value, item or append after these bytes are used up.
const SMALL: usize = 64;
/// Bytes of a page.
const PAGE: usize = 4096;
/// Bytes of a region that are patched together while it moves.
const PATCH: usize = 128;
/// Bytes of entries and headers between a length and its limit.
const OVERHEAD: u64 = 64;
/// The largest blocks that are drawn.
const LARGEST_BLOCK: u64 = MIB;

/// A seed's source of sizes.
pub struct Sizes {
    rng: Entropy,
    /// Bytes of a block.
    pub block: usize,
    /// Whether sizes are drawn here; otherwise every kind has a few fixed ones.
    pub drawn: bool,
    /// Whether one kind of structure gets most of the bytes and memory is small, so that most of the data is
    /// in lower tiers.
    pub deep: bool,
    /// Buffers of each core for reads from lower tiers, in blocks.
    pub buffers: usize,
    /// Bytes that may still be drawn.
    left: usize,
    edges: Vec<usize>,
}

impl Sizes {
    /// The sizes of a seed; `scarce` if it has disks and little memory.
    pub fn draw(seed: u64, scarce: bool) -> Sizes {
        let mut rng = Entropy::seeded(seed ^ 0x0005_12e5);
        let drawn = rng.below(3) > 0;
        // Half of the seeds have the smallest blocks: they fill and split with the least work.
        let octaves = (LARGEST_BLOCK / BLOCK_SIZE_MIN).ilog2() as u64;
        let octave = (rng.below(2) * (1 + rng.below(octaves))) * u64::from(drawn);
        let block = (BLOCK_SIZE_MIN << octave) as usize;
        let deep = drawn && scarce;
        // As few as the product has with the smallest memory, or more.
        let buffers = if drawn { [1, 4][rng.below(2) as usize] } else { 4 };
        Sizes { rng, block, drawn, deep, buffers, left: BYTES_MAX, edges: edges(block) }
    }

    /// Whether few small values fill a block, in memory.
    pub fn is_shallow(&self) -> bool {
        self.block as u64 == BLOCK_SIZE_MIN && !self.deep
    }

    /// The longest extent, and the longest value, item or append without extents.
    pub fn limit(&self) -> usize {
        self.block / LARGE_FRACTION as usize
    }

    /// A size between the two, for a write.
    pub fn written(&mut self, least: usize, most: usize) -> usize {
        let most = if self.left == 0 { most.min(least.max(SMALL)) } else { most };
        let size = self.size(least, most);
        self.left = self.left.saturating_sub(size);
        size
    }

    /// A size between the two.
    pub fn size(&mut self, least: usize, most: usize) -> usize {
        let size = match self.rng.below(6) {
            0 => {
                let edge = self.edges[self.rng.below(self.edges.len() as u64) as usize];
                self.beside(edge)
            }
            1 => {
                let unit = [PATCH, PAGE, TIER_CHUNK][self.rng.below(3) as usize];
                let edge = unit * (1 + self.rng.below((most / unit).max(1) as u64) as usize);
                self.beside(edge)
            }
            2 => self.beside(most),
            _ => {
                let octave = self.rng.below(most.max(1).ilog2() as u64 + 1);
                (1 << octave) + self.rng.below(1 << octave) as usize
            }
        };
        size.clamp(least, most)
    }

    /// An edge, the bytes next to it, or the length that reaches the edge with a header.
    fn beside(&mut self, edge: usize) -> usize {
        match self.rng.below(4) {
            0 => edge - 1,
            1 => edge,
            2 => edge + 1,
            _ => edge.saturating_sub(self.rng.below(OVERHEAD) as usize),
        }
    }

    /// The size of a value that is too large for a block.
    pub fn large(&mut self) -> usize {
        let limit = self.limit();
        let pieces = if self.left == 0 { 1 } else { 1 + self.rng.below(2) as usize };
        let size = match self.rng.below(3) {
            0 => pieces * limit + 1,
            1 => (pieces + 1) * limit - self.rng.below(2) as usize,
            _ => pieces * limit + 1 + self.rng.below(limit as u64) as usize,
        };
        self.left = self.left.saturating_sub(size);
        size
    }

    /// The size of an append that is too large for a block, sometimes for two.
    pub fn append(&mut self) -> usize {
        if self.left == 0 || !self.one_in(3) {
            return self.large();
        }
        let blocks = 1 + self.rng.below(2) as usize;
        let size = self.beside(blocks * self.block) + self.size(0, self.block / 2);
        self.left = self.left.saturating_sub(size);
        size
    }

    /// True one time in so many.
    pub fn one_in(&mut self, many: u64) -> bool {
        self.rng.below(many) == 0
    }

    /// A number below this.
    pub fn below(&mut self, most: u64) -> u64 {
        self.rng.below(most)
    }
}

/// The limits of the product within blocks of this size.
fn edges(block: usize) -> Vec<usize> {
    let block = block as u64;
    let mut edges = vec![
        PATCH as u64,
        inline_max(block),
        PAGE as u64,
        TIER_CHUNK as u64,
        REGION_MIN,
        REGION_MAX,
        KV_BATCH_BYTES_MAX as u64,
        TIER_PIECE as u64,
        block / LARGE_FRACTION,
        block / LARGE_FRACTION / 2,
        block / 2,
        block,
        KIB,
    ];
    edges.retain(|edge| *edge <= block);
    edges.sort_unstable();
    edges.dedup();
    edges.into_iter().map(|edge| edge as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_many_seeds_reach_every_limit_and_both_its_neighbours() {
        let mut seen = std::collections::BTreeSet::new();
        let mut blocks = std::collections::BTreeSet::new();
        for seed in 0..3000 {
            let mut sizes = Sizes::draw(seed, false);
            blocks.insert(sizes.block);
            if !sizes.drawn || sizes.block != BLOCK_SIZE_MIN as usize {
                continue;
            }
            let limit = sizes.limit();
            for _ in 0..50 {
                let size = sizes.written(8, limit);
                assert!((8..=limit).contains(&size), "{size}");
                seen.insert(size);
            }
        }
        assert_eq!(blocks.len(), 5, "64 KiB to 1 MiB");
        let limit = (BLOCK_SIZE_MIN / LARGE_FRACTION) as usize;
        for edge in edges(BLOCK_SIZE_MIN as usize).into_iter().filter(|edge| *edge < limit) {
            assert!([edge - 1, edge, edge + 1].iter().all(|size| seen.contains(size)), "{edge}");
        }
        assert!(seen.contains(&limit) && seen.contains(&(limit - 1)));
    }

    #[test]
    fn a_seed_draws_no_more_bytes_than_it_may() {
        let mut sizes = Sizes::draw(1, false);
        let limit = sizes.limit();
        let sum: usize = (0..100_000).map(|_| sizes.written(8, limit)).sum();
        assert!(sum < BYTES_MAX + limit + 100_000 * SMALL, "{sum}");
    }
}
