//! Karma (Vuppalapati et al., OSDI '23): max-min over time, by credits.
//!
//! Every holder is guaranteed `1 / GUARANTEED` of its fair part of memory at any time. The rest is shared by
//! all, and every holder gets credits for it in each quantum. A holder that wants less than its guaranteed
//! part lends the difference to others and earns one credit for each block and quantum, the poorest first. A
//! holder that wants more borrows, for one credit for each block and quantum, the richest first. So a holder
//! that left memory to others gets memory when it needs it, and a holder with constantly high demand pays for
//! it.
//!
//! Credits may be negative; the paper instead starts with a supply that is never used up. Only the order of
//! credits matters, and memory is never idle while a holder requests it (Pareto efficiency). They are soft
//! state: after a restart all holders begin with the same number.

use super::{MemoryHolder, Policy, Share};
use honeycomb_types::PolicyKind;
use std::collections::BTreeMap;

/// Every holder is guaranteed its fair part divided by this: half, as in the paper's evaluation.
const GUARANTEED: u128 = 2;

/// Karma's credits.
#[derive(Clone, Debug, Default)]
pub struct Karma {
    credits: BTreeMap<MemoryHolder, i64>,
}

/// For each holder: the used part of its guarantee, the borrowed blocks, and the blocks left to others.
struct Dealt {
    own: Vec<u64>,
    borrowed: Vec<u64>,
    left: Vec<u64>,
    /// The memory beyond all guaranteed parts.
    shared: u64,
}

impl Karma {
    fn of(&self, holder: MemoryHolder) -> i64 {
        self.credits.get(&holder).copied().unwrap_or_else(|| self.mean())
    }

    /// The initial credits of a new holder.
    fn mean(&self) -> i64 {
        let sum: i128 = self.credits.values().map(|&credits| i128::from(credits)).sum();
        (sum / self.credits.len().max(1) as i128) as i64
    }

    fn deal(&self, shares: &[Share], memory: u64) -> Dealt {
        let weights: u128 = shares.iter().map(|share| u128::from(share.weight)).sum();
        let part = |share: &Share| {
            let fair = u128::from(memory) * u128::from(share.weight) / weights.max(1);
            (fair / GUARANTEED) as u64
        };
        let own: Vec<u64> = shares.iter().map(|share| share.wants.min(part(share))).collect();
        let left = shares.iter().zip(&own).map(|(share, own)| part(share) - own).collect();
        let shared = memory - shares.iter().map(part).sum::<u64>();
        let wants = shares.iter().zip(&own).map(|(share, own)| share.wants - own);
        let mean = self.mean();
        let rich = shares.iter().map(|s| self.credits.get(&s.holder).copied().unwrap_or(mean));
        let borrowers: Vec<(i64, u64)> = rich.zip(wants).collect();
        let borrowed = richest_first(&borrowers, memory - own.iter().sum::<u64>());
        Dealt { own, borrowed, left, shared }
    }
}

impl Policy for Karma {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Karma
    }

    fn entitle(&self, shares: &mut [Share], memory: u64) {
        let Dealt { own, borrowed, .. } = self.deal(shares, memory);
        for (share, entitled) in shares.iter_mut().zip(own.iter().zip(borrowed)) {
            share.entitled = entitled.0 + entitled.1;
        }
    }

    fn quantum(&mut self, shares: &[Share], memory: u64) {
        let credits = shares.iter().map(|share| (share.holder, self.of(share.holder)));
        self.credits = credits.collect();
        let Dealt { borrowed, left, shared, .. } = self.deal(shares, memory);
        // Blocks left by others are used before the shared rest.
        let paid = borrowed.iter().sum::<u64>().min(left.iter().sum());
        let lenders = shares.iter().zip(&left).map(|(share, left)| (-self.of(share.holder), *left));
        let paid = richest_first(&lenders.collect::<Vec<_>>(), paid);
        let weights: u128 = shares.iter().map(|share| u128::from(share.weight)).sum();
        for (i, share) in shares.iter().enumerate() {
            let minted = u128::from(shared) * u128::from(share.weight) / weights;
            let credits = self.credits.get_mut(&share.holder).expect("all were entered above");
            *credits += minted as i64 + paid[i] as i64 - borrowed[i] as i64;
        }
    }

    fn credits(&self, holder: MemoryHolder) -> i64 {
        self.of(holder)
    }
}

/// Distributes this many blocks one by one, each to the holder with the most credits among those with unmet
/// demand, the first of equals, which then has one credit less. Returns the number of blocks of each holder.
fn richest_first(all: &[(i64, u64)], many: u64) -> Vec<u64> {
    if all.iter().map(|&(_, wants)| u128::from(wants)).sum::<u128>() <= u128::from(many) {
        return all.iter().map(|&(_, wants)| wants).collect();
    }
    // Above a certain level of credits all holders get their whole demand; at that level some do not.
    let above = |level: i128, &(credits, wants): &(i64, u64)| {
        (i128::from(credits) - level).clamp(0, i128::from(wants)) as u64
    };
    let dealt = |level: i128| all.iter().map(|one| u128::from(above(level, one))).sum::<u128>();
    let (mut low, mut high) = (i128::from(i64::MIN) - i128::from(u64::MAX), i128::from(i64::MAX));
    // The lowest level for which the blocks suffice: they suffice for `high`, and not for `low`.
    while low + 1 < high {
        let level = low + (high - low) / 2;
        if dealt(level) <= u128::from(many) { high = level } else { low = level }
    }
    let mut got: Vec<u64> = all.iter().map(|one| above(high, one)).collect();
    let mut left = many - got.iter().sum::<u64>();
    for (got, &(credits, wants)) in got.iter_mut().zip(all) {
        let on_level = i128::from(credits) - i128::from(*got) == high;
        if left > 0 && on_level && *got < wants {
            *got += 1;
            left -= 1;
        }
    }
    got
}

#[cfg(test)]
mod tests {
    use super::super::shares;
    use super::*;
    use proptest::prelude::*;

    fn wants(karma: &Karma, memory: u64, wants: &[u64]) -> Vec<u64> {
        let weighted: Vec<(u64, u64)> = wants.iter().map(|&wants| (wants, 1)).collect();
        let mut all = shares(&weighted);
        karma.entitle(&mut all, memory);
        all.iter().map(|share| share.entitled).collect()
    }

    /// Runs a quantum in which every holder uses its entitlement; returns the entitlements.
    fn pass(karma: &mut Karma, memory: u64, demands: &[u64]) -> Vec<u64> {
        let weighted: Vec<(u64, u64)> = demands.iter().map(|&wants| (wants, 1)).collect();
        let entitled = wants(karma, memory, demands);
        karma.quantum(&shares(&weighted), memory);
        entitled
    }

    /// The paper's procedure, one block at a time.
    fn one_by_one(all: &[(i64, u64)], many: u64) -> Vec<u64> {
        let mut got = vec![0; all.len()];
        for _ in 0..many {
            let wanting = (0..all.len()).filter(|&i| got[i] < all[i].1);
            let richest = |&i: &usize| (all[i].0 - got[i] as i64, std::cmp::Reverse(i));
            let Some(i) = wanting.max_by_key(richest) else { break };
            got[i] += 1;
        }
        got
    }

    #[test]
    fn who_left_memory_to_others_has_more_later() {
        let mut karma = Karma::default();
        // For ten quanta the first leaves its part to the second, and the third borrows nothing.
        for _ in 0..10 {
            assert_eq!(pass(&mut karma, 12, &[0, 10, 2]), [0, 10, 2]);
        }
        // Then all of them want everything: max-min has no memory, and would give each 4.
        assert_eq!(wants(&karma, 12, &[12, 12, 12]), [8, 2, 2]);
        // After some time it has paid that back.
        for _ in 0..40 {
            pass(&mut karma, 12, &[12, 12, 12]);
        }
        let sums = (0..30).map(|_| pass(&mut karma, 12, &[12, 12, 12]));
        let sums =
            sums.fold([0; 3], |sum, got| [sum[0] + got[0], sum[1] + got[1], sum[2] + got[2]]);
        assert!(sums.iter().all(|sum| (115..=125).contains(sum)), "{sums:?}");
    }

    #[test]
    fn a_newcomer_has_as_many_credits_as_there_are_on_average_and_who_goes_is_forgotten() {
        let mut karma = Karma::default();
        for _ in 0..8 {
            pass(&mut karma, 12, &[0, 12]);
        }
        let [left, took] = [0, 1].map(|n| karma.credits(super::super::holder(n)));
        assert!(left > took, "{left} {took}");
        assert_eq!(karma.credits(super::super::holder(2)), (left + took) / 2);
        pass(&mut karma, 12, &[0]);
        assert_eq!(karma.credits.len(), 1);
    }

    #[test]
    fn a_guaranteed_part_is_there_at_once() {
        let mut karma = Karma::default();
        for _ in 0..1000 {
            pass(&mut karma, 40, &[40, 0]);
        }
        // However poor, it gets its guaranteed half of its half.
        assert_eq!(wants(&karma, 40, &[40, 40]), [10, 30]);
    }

    proptest! {
        #[test]
        fn dealing_at_once_is_dealing_one_by_one(
            all in prop::collection::vec((-30..30i64, 0..20u64), 0..8),
            many in 0..120u64,
        ) {
            prop_assert_eq!(richest_first(&all, many), one_by_one(&all, many));
        }

        #[test]
        fn what_somebody_wants_is_not_idle_and_credits_are_conserved(
            memory in 0..60u64,
            quanta in prop::collection::vec(prop::collection::vec(0..40u64, 4), 1..30),
            weights in prop::collection::vec(1..4u64, 4),
        ) {
            let mut karma = Karma::default();
            for demands in quanta {
                let weighted: Vec<(u64, u64)> =
                    demands.iter().copied().zip(weights.iter().copied()).collect();
                let mut all = shares(&weighted);
                karma.entitle(&mut all, memory);
                let entitled: u64 = all.iter().map(|share| share.entitled).sum();
                prop_assert_eq!(entitled, memory.min(demands.iter().sum()));
                prop_assert!(all.iter().all(|share| share.entitled <= share.wants));
                let before: i64 = all.iter().map(|share| karma.credits(share.holder)).sum();
                let Dealt { borrowed, left, shared, .. } = karma.deal(&all, memory);
                karma.quantum(&all, memory);
                let after: i64 = all.iter().map(|share| karma.credits(share.holder)).sum();
                let sum: u64 = weights.iter().sum();
                let minted: u64 = weights.iter().map(|weight| shared * weight / sum).sum();
                let borrowed: u64 = borrowed.iter().sum();
                let of_shared = borrowed - borrowed.min(left.iter().sum());
                prop_assert_eq!(after - before, minted as i64 - of_shared as i64);
            }
        }

        /// Overstating the demand in one quantum never increases the blocks that a holder needs and gets,
        /// except by one, because blocks cannot be divided.
        #[test]
        fn nothing_is_gained_by_asking_for_too_much(
            quanta in prop::collection::vec([0..24u64, 0..24u64, 0..24u64], 1..20),
            at in 0..20usize,
            more in 1..24u64,
        ) {
            prop_assert!(useful(&quanta, at, more) <= useful(&quanta, at, 0) + 1);
        }
    }

    /// The number of needed blocks that the first holder gets, when it overstates its demand in one quantum.
    fn useful(quanta: &[[u64; 3]], at: usize, more: u64) -> u64 {
        let mut karma = Karma::default();
        let pass = |(q, demands): (usize, &[u64; 3])| {
            let mut told = *demands;
            told[0] += if q == at % quanta.len() { more } else { 0 };
            pass(&mut karma, 24, &told)[0].min(demands[0])
        };
        quanta.iter().enumerate().map(pass).sum()
    }

    /// One of 30,000 cases.
    #[test]
    fn the_block_that_was_gained_by_asking_for_too_much() {
        let quanta = [
            [5, 19, 0],
            [0, 10, 11],
            [3, 0, 0],
            [0, 3, 0],
            [0, 9, 15],
            [8, 1, 9],
            [8, 1, 15],
            [16, 4, 4],
            [11, 9, 4],
            [13, 5, 3],
            [5, 9, 10],
            [8, 10, 6],
            [0, 9, 0],
            [11, 4, 10],
        ];
        assert_eq!((useful(&quanta, 8, 0), useful(&quanta, 8, 3)), (87, 88));
    }
}
