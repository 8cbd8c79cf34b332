//! Max-min: the smallest share is as large as possible, then the next, and so on.

use super::{Policy, Share};
use honeycomb_types::PolicyKind;

/// Weighted max-min fairness: no share can grow without reducing a share that is not larger, relative to its
/// weight.
#[derive(Clone, Copy, Debug, Default)]
pub struct MaxMin;

impl Policy for MaxMin {
    fn kind(&self) -> PolicyKind {
        PolicyKind::MaxMin
    }

    /// The demands that are smallest relative to their weight are met completely. If the rest does not
    /// suffice for the next demand, it is divided by weight. The first holders get one of the remaining
    /// blocks each.
    fn entitle(&self, shares: &mut [Share], memory: u64) {
        let mut order: Vec<usize> = (0..shares.len()).collect();
        let wide = |a: u64, b: u64| u128::from(a) * u128::from(b);
        order.sort_by(|&a, &b| {
            let (a, b) = (&shares[a], &shares[b]);
            wide(a.wants, b.weight).cmp(&wide(b.wants, a.weight))
        });
        let (mut left, mut weights) = (memory, shares.iter().map(|s| s.weight).sum::<u64>());
        let mut rest = order.into_iter();
        for i in rest.by_ref() {
            let share = &mut shares[i];
            if wide(share.wants, weights) > wide(left, share.weight) {
                divide(shares, std::iter::once(i).chain(rest).collect(), left, weights);
                return;
            }
            share.entitled = share.wants;
            left -= share.wants;
            weights -= share.weight;
        }
    }
}

/// Divides memory that suffices for none of `among`, by weight.
fn divide(shares: &mut [Share], mut among: Vec<usize>, memory: u64, weights: u64) {
    among.sort_unstable();
    let mut left = memory;
    for &i in &among {
        let part = u128::from(memory) * u128::from(shares[i].weight) / u128::from(weights);
        shares[i].entitled = part as u64;
        left -= part as u64;
    }
    for i in among.into_iter().take(left as usize) {
        shares[i].entitled += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::shares;
    use super::*;
    use proptest::prelude::*;

    fn entitled(memory: u64, wants: &[(u64, u64)]) -> Vec<u64> {
        let mut all = shares(wants);
        MaxMin.entitle(&mut all, memory);
        all.iter().map(|share| share.entitled).collect()
    }

    /// Of all divisions of memory, the one whose smallest share is the largest, then the next.
    fn brute(memory: u64, wants: &[u64]) -> Vec<u64> {
        fn deal(memory: u64, wants: &[u64], so_far: &mut Vec<u64>, best: &mut Vec<u64>) {
            let Some((&first, rest)) = wants.split_first() else {
                let mut sorted = so_far.clone();
                sorted.sort_unstable();
                if sorted > *best {
                    *best = sorted;
                }
                return;
            };
            for part in 0..=first.min(memory) {
                so_far.push(part);
                deal(memory - part, rest, so_far, best);
                so_far.pop();
            }
        }
        let mut best = Vec::new();
        deal(memory, wants, &mut Vec::new(), &mut best);
        best
    }

    #[test]
    fn who_wants_little_has_it_and_the_rest_is_shared_by_weight() {
        assert_eq!(entitled(12, &[(2, 1), (9, 1), (20, 1)]), [2, 5, 5]);
        assert_eq!(entitled(12, &[(20, 1), (20, 3)]), [3, 9]);
        assert_eq!(entitled(12, &[(20, 1), (4, 3)]), [8, 4]);
        assert_eq!(entitled(7, &[(9, 1), (9, 1), (0, 1)]), [4, 3, 0]);
        assert_eq!(entitled(0, &[(9, 1)]), [0]);
        assert_eq!(entitled(5, &[]), [0; 0]);
        let most = u64::MAX;
        assert_eq!(entitled(most, &[(most, most / 2), (most, most / 2)]), [most / 2 + 1, most / 2]);
    }

    proptest! {
        #[test]
        fn it_is_what_trying_everything_finds(
            memory in 0..14u64,
            wants in prop::collection::vec(0..9u64, 1..6),
        ) {
            let weighted: Vec<(u64, u64)> = wants.iter().map(|&wants| (wants, 1)).collect();
            let mut found = entitled(memory, &weighted);
            found.sort_unstable();
            prop_assert_eq!(found, brute(memory, &wants));
        }

        #[test]
        fn nothing_is_idle_and_nobody_has_more_for_its_weight_than_who_lacks(
            memory in 0..100_000u64,
            wants in prop::collection::vec((0..50_000u64, 1..20u64), 1..40),
        ) {
            let found = entitled(memory, &wants);
            let wanted: u64 = wants.iter().map(|(wants, _)| wants).sum();
            prop_assert_eq!(found.iter().sum::<u64>(), memory.min(wanted));
            for (&has, &(wants_a, weight_a)) in found.iter().zip(&wants) {
                prop_assert!(has <= wants_a);
                for (&other, &(_, weight_b)) in found.iter().zip(&wants) {
                    // Taking one block from the other would leave that one with less than this one then has.
                    let envied = has < wants_a && other > 0;
                    prop_assert!(!envied || (other - 1) * weight_a < (has + 1) * weight_b);
                }
            }
        }

        #[test]
        fn who_wants_more_takes_nothing_from_who_has_less(
            memory in 0..60u64,
            wants in prop::collection::vec((0..20u64, 1..4u64), 2..6),
            more in 1..20u64,
        ) {
            let before = entitled(memory, &wants);
            let mut greedy = wants.clone();
            greedy[0].0 += more;
            let after = entitled(memory, &greedy);
            for i in 1..wants.len() {
                // A share that was smaller for its weight than the greedy holder's stays, except for the
                // indivisible block.
                let lesser = before[i] * wants[0].1 + wants[0].1 < before[0] * wants[i].1;
                prop_assert!(!lesser || after[i] == before[i] || before[i] < wants[i].0);
            }
        }
    }
}
