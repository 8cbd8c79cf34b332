//! Sizes of values, items and appends for tests: log-uniform, and at every limit with both its neighbours.
//!
//! Defects sit at edges that a uniform draw never hits. Property tests, soaks and the simulator
//! draw from here, so that a new limit is added in one place. Pure functions of a random number:
//! the caller has its own source (`Entropy`, `proptest`), and a seed repeats the draw.

use crate::limits::{
    EXTENT_OWNER, EXTENT_REF, KIB, LARGE_FRACTION, MIB, REGION_MAX, REGION_MIN, TIER_CHUNK,
    TIER_PIECE, inline_max,
};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Bytes of a region that are patched together while it moves.
const PATCH: u64 = 128;
/// A payload above this is streamed into its block.
const STREAMED: u64 = 64 * KIB;
/// Headers and keys keep a payload by fewer bytes than this from a limit.
const OVERHEAD: u64 = 64;

/// Where behaviour changes in blocks of this size: limits of values and regions, pages, chunks, pieces.
/// Ascending, none above the block size.
pub fn edges(block_size: usize) -> Vec<usize> {
    let block = block_size as u64;
    let large = block / LARGE_FRACTION;
    let mut edges = vec![
        EXTENT_OWNER as u64,
        EXTENT_REF as u64,
        PATCH,
        KIB,
        inline_max(block),
        PAGE,
        REGION_MIN,
        TIER_CHUNK as u64,
        REGION_MAX,
        STREAMED,
        TIER_PIECE as u64,
        MIB,
        large / 2,
        large,
        block / 2,
        block,
    ];
    edges.retain(|edge| *edge <= block);
    edges.sort_unstable();
    edges.dedup();
    edges.into_iter().map(|edge| edge as usize).collect()
}

/// A size between `least` and `most`, both included, for blocks of this size. Half of the draws are
/// log-uniform; the others are an edge, a multiple of a page or chunk, or `most`, each also one byte less,
/// one byte more, or less by the size of a header.
pub fn size(random: u64, block_size: usize, least: usize, most: usize) -> usize {
    let mut rest = Digits(random);
    let size = match rest.below(8) {
        0 => {
            let edges = edges(block_size);
            let edge = edges[rest.below(edges.len() as u64) as usize];
            beside(&mut rest, edge)
        }
        1 => {
            let unit = [PATCH as usize, PAGE as usize, TIER_CHUNK][rest.below(3) as usize];
            let edge = unit * (1 + rest.below((most / unit).max(1) as u64) as usize);
            beside(&mut rest, edge)
        }
        2 => beside(&mut rest, most.max(1)),
        3 => beside(&mut rest, least.max(1)),
        _ => {
            let octave = rest.below(u64::from(most.max(1).ilog2()) + 1);
            (1usize << octave) + rest.below(1 << octave) as usize
        }
    };
    size.clamp(least, most)
}

/// An edge, the bytes next to it, or the length that reaches the edge with a header.
fn beside(rest: &mut Digits, edge: usize) -> usize {
    match rest.below(4) {
        0 => edge - 1,
        1 => edge,
        2 => edge + 1,
        _ => edge.saturating_sub(rest.below(OVERHEAD) as usize),
    }
}

/// Several small numbers out of one random number.
struct Digits(u64);

impl Digits {
    fn below(&mut self, most: u64) -> u64 {
        // SplitMix64: a simple random number yields independent ones.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ (mixed >> 31)) * u128::from(most)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn sizes_drawn_often_enough_reach_every_edge_and_both_its_neighbours() {
        for block in [64 << 10, 1 << 20, 128 << 20] {
            let most = block / LARGE_FRACTION as usize;
            let drawn: BTreeSet<usize> = (0..60_000).map(|n| size(n, block, 1, most)).collect();
            assert!(drawn.iter().all(|size| (1..=most).contains(size)));
            for edge in edges(block).into_iter().filter(|edge| *edge < most) {
                for near in [edge - 1, edge, edge + 1] {
                    assert!(drawn.contains(&near), "{near} in blocks of {block}");
                }
            }
            assert!(drawn.contains(&most) && drawn.contains(&(most - 1)) && drawn.contains(&1));
        }
    }

    #[test]
    fn size_whose_bounds_are_equal_is_that_bound() {
        assert!((0..1000).all(|n| size(n, 64 << 10, 7, 7) == 7 && size(n, 64 << 10, 0, 0) == 0));
    }
}
