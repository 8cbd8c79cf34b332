//! The tiers in which the blocks of a job with hints begin: weights, computed from its expected traffic and
//! the load of the disks.
//!
//! The rules are Pocket's ("Rightsizing Application Allocation", and its controller): a job that is sensitive
//! to latency fills memory first, and the rest of its blocks begin in lower tiers; a job that is not
//! sensitive leaves memory to others. Pocket assumes that its flash provides the throughput that a job needs,
//! because it adds servers until this is true. Here the number of servers is fixed: for a job with a hint of
//! its traffic, the slowest tier that can serve this traffic receives the blocks. If no tier alone can serve
//! it, each tier receives the part that it can serve, the fastest first, and the rest begins in memory, as
//! long as memory is not short.
//!
//! Weights decide where blocks begin. A tier without room is skipped, and no request is refused that would
//! succeed without weights. `pressure` moves blocks later, independent of hints.

use crate::Catalog;
use crate::hints::Hints;
use crate::pool::{Draw, Server};
use honeycomb_types::limits::{
    LOAD_SMOOTHED, RAISE_MARKS, STEER_EVERY, TIER_HDD_BYTES_PER_S, TIER_NVME_BYTES_PER_S,
    TIER_SSD_BYTES_PER_S, TIERS_MAX,
};
use honeycomb_types::{TierClass, TierIx, Time};

/// The sum of a job's weights, in thousandths.
const WHOLE: u64 = 1000;

/// The assumed read and write rate of a tier of a server, in bytes per second. No block begins in an object
/// store.
fn speed(class: TierClass) -> u64 {
    match class {
        TierClass::Nvme => TIER_NVME_BYTES_PER_S,
        TierClass::Ssd => TIER_SSD_BYTES_PER_S,
        TierClass::Hdd => TIER_HDD_BYTES_PER_S,
        TierClass::Object => 0,
    }
}

/// The traffic of a tier of a server, from its reports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flow {
    /// Bytes since its start, by the last report.
    moved: u64,
    /// Smoothed rate in bytes per second.
    rate: u64,
    heard: Option<Time>,
}

impl Flow {
    /// A report gives the bytes moved since the start of the server.
    pub(crate) fn heard(&mut self, moved: u64, now: Time) {
        let whole = LOAD_SMOOTHED.as_millis() as u64;
        if let Some(before) = self.heard {
            let passed = now.since(before).as_millis() as u64;
            if passed == 0 {
                return;
            }
            let bytes = u128::from(moved.saturating_sub(self.moved));
            let rate = (bytes * 1000 / u128::from(passed)) as u64;
            let passed = passed.min(whole);
            let sum = u128::from(self.rate) * u128::from(whole - passed)
                + u128::from(rate) * u128::from(passed);
            self.rate = (sum / u128::from(whole)) as u64;
        }
        (self.moved, self.heard) = (moved, Some(now));
    }
}

/// The weight of one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierWeight {
    /// The class of the device; `None` for memory.
    pub class: Option<TierClass>,
    /// Thousandths of the job's next blocks that begin there.
    pub weight: u64,
    /// Number of blocks available there.
    pub free: u64,
    /// Bytes per second not used by others now; 0 for memory, where traffic is not measured.
    pub bytes_per_s: u64,
}

/// Divides a job's next blocks over memory, which is the first, and the lower tiers.
fn divide(hints: &Hints, moves: u64, is_short: bool, tiers: &mut [TierWeight]) {
    tiers.iter_mut().for_each(|tier| tier.weight = 0);
    let with_room = |tier: &TierWeight| tier.free > 0;
    let below: Vec<usize> = (1..tiers.len()).filter(|&at| with_room(&tiers[at])).collect();
    let Some(&nearest) = below.first().filter(|_| hints.not_sensitive || !with_room(&tiers[0]))
    else {
        tiers[0].weight = WHOLE;
        return;
    };
    // A job that is sensitive, or gives no hint of its traffic, takes the nearest tier with room.
    if !hints.not_sensitive || hints.tasks == 0 && hints.bytes_per_s == 0 {
        tiers[nearest].weight = WHOLE;
        return;
    }
    let rate = |at: &usize| tiers[*at].bytes_per_s;
    let serves = below.iter().copied().filter(|at| rate(at) >= moves);
    // Of two equally fast tiers, the nearer one.
    if let Some(slowest) = serves.min_by_key(rate) {
        tiers[slowest].weight = WHOLE;
        return;
    }
    let mut by_rate = below.clone();
    by_rate.sort_by_key(|at| std::cmp::Reverse(rate(at)));
    let mut left = WHOLE;
    for &at in &by_rate {
        let part = u128::from(tiers[at].bytes_per_s) * u128::from(WHOLE) / u128::from(moves.max(1));
        tiers[at].weight = left.min(part as u64);
        left -= tiers[at].weight;
    }
    let rest = if with_room(&tiers[0]) && !is_short { 0 } else { by_rate[0] };
    tiers[rest].weight += left;
}

/// The weights of tiers for a job, and the balance of each.
#[derive(Clone, Debug, Default)]
pub(crate) struct TierWeights {
    all: Vec<TierWeight>,
    owed: [i64; TIERS_MAX + 1],
    made: Option<Time>,
}

impl TierWeights {
    /// The tier in which these blocks begin. As for servers, the balance of each tier grows by its weight for
    /// every block, and the tier with the largest balance receives all of them.
    fn choose(&mut self, blocks: u32) -> TierIx {
        let mut best: Option<(i64, usize)> = None;
        for (at, (tier, owed)) in self.all.iter().zip(&mut self.owed).enumerate() {
            *owed += (tier.weight * u64::from(blocks)) as i64;
            if tier.weight > 0 && best.is_none_or(|(most, _)| *owed > most) {
                best = Some((*owed, at));
            }
        }
        let Some((_, at)) = best else { return TierIx::MEMORY };
        self.owed[at] -= (WHOLE * u64::from(blocks)) as i64;
        TierIx(at as u8)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<TierWeight>()
    }
}

/// The order in which tiers are tried for a block of a job that need not be in memory: the tier chosen by the
/// weights, then the lower tiers in their order, memory last.
pub(crate) fn memory_last(first: TierIx, turn: u8, count: u8) -> TierIx {
    let others = (1..count).chain([0]).filter(|tier| *tier != first.0);
    TierIx([first.0].into_iter().chain(others).nth(turn.into()).unwrap_or(0))
}

impl Catalog {
    /// The weights of the tiers for the next block of this job, memory first.
    pub(crate) fn tier_weights_of(&self, j: u32) -> Vec<TierWeight> {
        let job = &self.jobs[j];
        if !job.hints.given() {
            return Vec::new();
        }
        let able = |(_, server): &(_, &Server)| !server.is_away() && server.takes_blocks();
        let mut all =
            vec![TierWeight { class: None, weight: 0, free: self.pool.room().0, bytes_per_s: 0 }];
        let moves = crate::Estimate::of(&job.hints, &self.supply()).bytes_per_s;
        let mut taken: Vec<u64> = vec![0];
        for (_, server) in self.pool.servers().filter(able) {
            for (n, spec) in server.tiers.iter().enumerate() {
                if all.len() == n + 1 {
                    let class = Some(spec.class);
                    all.push(TierWeight { class, weight: 0, free: 0, bytes_per_s: 0 });
                    taken.push(0);
                }
                let tier = &mut all[n + 1];
                tier.free += u64::from(server.room_in(TierIx(n as u8 + 1), Draw::Ordinary));
                tier.bytes_per_s += speed(spec.class);
                taken[n + 1] += server.flows.get(n).map_or(0, |flow| flow.rate);
            }
        }
        // The job's own traffic must not move its blocks to another tier.
        let own = if self.pool.staying.of_job(j) > 0 { moves } else { 0 };
        for (tier, taken) in all.iter_mut().zip(taken) {
            tier.bytes_per_s = tier.bytes_per_s.saturating_sub(taken.saturating_sub(own));
        }
        let is_short = self.pool.room().0 <= RAISE_MARKS * self.kept_free();
        divide(&job.hints, moves, is_short, &mut all);
        all
    }

    /// The tier in which these blocks of a job that need not be in memory begin.
    pub(crate) fn first_tier(&mut self, j: u32, blocks: u32) -> TierIx {
        let mut weights = self.jobs[j].tier_weights.take().unwrap_or_default();
        let stale = |made: Time| self.now.since(made) >= STEER_EVERY;
        // Weights are recomputed as soon as a tier has no room.
        let full = weights.all.iter().enumerate().any(|(at, tier)| {
            let room = |s: &Server| u64::from(s.room_in(TierIx(at as u8), Draw::Ordinary));
            tier.weight > 0 && self.pool.servers().map(|(_, s)| room(s)).sum::<u64>() == 0
        });
        if weights.made.is_none_or(stale) || full {
            weights.all = self.tier_weights_of(j);
            weights.made = Some(self.now);
        }
        let first = weights.choose(blocks);
        self.jobs[j].tier_weights = Some(weights);
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn tiers(free: &[u64], rates: &[u64]) -> Vec<TierWeight> {
        let tier = |(&free, &bytes_per_s): (&u64, &u64)| TierWeight {
            class: None,
            weight: 0,
            free,
            bytes_per_s,
        };
        free.iter().zip(rates).map(tier).collect()
    }

    /// Memory and three disks: 1000, 500 and 100 MB/s.
    fn divided(hints: Hints, moves: u64, is_short: bool, free: [u64; 4]) -> Vec<u64> {
        let mut all = tiers(&free, &[0, 1000 * MB, 500 * MB, 100 * MB]);
        divide(&hints, moves, is_short, &mut all);
        assert_eq!(all.iter().map(|tier| tier.weight).sum::<u64>(), WHOLE);
        all.iter().map(|tier| tier.weight).collect()
    }

    #[test]
    fn who_is_sensitive_fills_memory_first() {
        let hints = Hints { tasks: 40, ..Hints::default() };
        assert_eq!(divided(hints, 3000 * MB, true, [1, 9, 9, 9]), [1000, 0, 0, 0]);
        assert_eq!(divided(hints, 3000 * MB, true, [0, 9, 9, 9]), [0, 1000, 0, 0]);
        assert_eq!(divided(hints, 3000 * MB, true, [0, 0, 9, 9]), [0, 0, 1000, 0]);
        assert_eq!(divided(hints, 3000 * MB, true, [0, 0, 0, 0]), [1000, 0, 0, 0]);
    }

    #[test]
    fn who_is_not_takes_the_slowest_tier_that_serves_what_it_moves() {
        let hints = Hints { not_sensitive: true, bytes_per_s: 1, ..Hints::default() };
        let of = |moves: u64, free| divided(hints, moves * MB, false, free);
        assert_eq!(of(80, [9; 4]), [0, 0, 0, 1000]);
        assert_eq!(of(101, [9; 4]), [0, 0, 1000, 0]);
        assert_eq!(of(501, [9; 4]), [0, 1000, 0, 0]);
        // A full tier serves nothing.
        assert_eq!(of(80, [9, 9, 9, 0]), [0, 0, 1000, 0]);
        assert_eq!(of(80, [9, 0, 0, 0]), [1000, 0, 0, 0]);
        // A job without these hints takes the nearest tier.
        let silent = Hints { not_sensitive: true, bytes: 7, ..Hints::default() };
        assert_eq!(divided(silent, 80 * MB, false, [9; 4]), [0, 1000, 0, 0]);
        assert_eq!(divided(silent, 80 * MB, false, [9, 0, 9, 9]), [0, 0, 1000, 0]);
    }

    #[test]
    fn what_no_disk_serves_begins_in_memory_unless_that_is_short() {
        let hints = Hints { not_sensitive: true, tasks: 50, ..Hints::default() };
        assert_eq!(divided(hints, 2000 * MB, false, [9; 4]), [200, 500, 250, 50]);
        assert_eq!(divided(hints, 2000 * MB, true, [9; 4]), [0, 700, 250, 50]);
        assert_eq!(divided(hints, 2000 * MB, false, [0, 9, 9, 9]), [0, 700, 250, 50]);
        assert_eq!(divided(hints, 1300 * MB, false, [9; 4])[1..3], [769, 231]);
    }

    #[test]
    fn every_run_of_choices_is_as_near_to_the_weights_as_blocks_can_be() {
        let mut all = tiers(&[9; 4], &[0; 4]);
        for (tier, weight) in all.iter_mut().zip([200, 500, 250, 50]) {
            tier.weight = weight;
        }
        let mut weights = TierWeights { all, owed: [0; TIERS_MAX + 1], made: None };
        let mut given = [0; 4];
        for n in 1..=4000i64 {
            given[weights.choose(1).0 as usize] += 1;
            for (given, weight) in given.iter().zip([200, 500, 250, 50]) {
                assert!((given * 1000 - n * weight).abs() <= 1000, "{given} of {n}, {weight}");
            }
        }
        // Several at once count as several.
        for _ in 0..1000 {
            given[weights.choose(4).0 as usize] += 4;
        }
        assert_eq!(given, [1600, 4000, 2000, 400]);
    }

    #[test]
    fn a_flow_is_smoothed_over_reports() {
        let mut flow = Flow::default();
        flow.heard(5_000, Time::from_millis(0));
        assert_eq!(flow.rate, 0, "what came before is of no time");
        // Half of the smoothing time covers half of the difference.
        flow.heard(1_005_000, Time::from_millis(1000));
        assert_eq!(flow.rate, 500_000);
        flow.heard(1_005_000, Time::from_millis(1000));
        flow.heard(3_005_000, Time::from_millis(3000));
        assert_eq!(flow.rate, 1_000_000);
        // The server was restarted and counts from 0.
        flow.heard(0, Time::from_millis(5000));
        assert_eq!(flow.rate, 0);
    }

    #[test]
    fn memory_is_asked_last_wherever_it_began() {
        let order = |first| -> Vec<u8> {
            (0..4).map(|turn| memory_last(TierIx(first), turn, 4).0).collect()
        };
        assert_eq!([order(1), order(3), order(0)], [[1, 2, 3, 0], [3, 1, 2, 0], [0, 1, 2, 3]]);
    }
}
