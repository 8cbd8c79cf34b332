//! Demand generated from published facts about Snowflake's tenants.
//!
//! Published facts (Honeycomb, section 1 and Figure 1; the Snowset paper, NSDI '20): over an hour, the peak
//! of a tenant's intermediate data is 10 to 100 times its mean and rises and falls within minutes. Over all
//! of the more than 2000 tenants, mean use is about 19 % of the peak; the four tenants in the figure stay
//! under 10 %. The distributions of sizes and lengths of single queries are not published. They are drawn
//! log-normally, as they look in the trace, and fitted so that the facts hold.

use crate::demand::{Demand, Task};
use crate::draw::Draw;

/// Minimum of a tenant's mean use, as a fraction of its peak: 1 to 100.
pub const UTILISATION_MIN: f64 = 0.01;
/// Maximum of a tenant's mean use. With fractions spread evenly on a logarithmic scale between minimum and
/// maximum, their mean is 19 %, and half of the tenants are between 1 to 100 and 1 to 10.
pub const UTILISATION_MAX: f64 = 0.855;
/// Seconds of the published window.
const WINDOW: f64 = 3600.0;
/// Tolerance of a tenant's use, as a fraction of its target.
const CLOSE: f64 = 0.02;

/// The parameters of a generated demand.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    /// Seed of the demand.
    pub seed: u64,
    /// Number of tenants.
    pub tenants: u32,
}

/// An hour of tenants. Their fractions of use are spread over the published range, one in each part of it, so
/// that even a few tenants cover the range.
pub fn fitted(fit: Fit) -> Demand {
    let mut draw = Draw::seeded(fit.seed);
    let count = fit.tenants.max(1);
    let mut parts: Vec<u32> = (0..count).collect();
    for i in (1..parts.len()).rev() {
        parts.swap(i, draw.below(i as u64 + 1) as usize);
    }
    let mut tasks = Vec::new();
    for (tenant, part) in parts.into_iter().enumerate() {
        // In the middle half of its part, so that tenants with equal parts differ.
        let place = (part as f64 + draw.between(0.25, 0.75)) / count as f64;
        let share = UTILISATION_MIN * (UTILISATION_MAX / UTILISATION_MIN).powf(place);
        let size = draw.around(1.0, 0.5);
        tasks.extend(tenant_of(&mut draw, tenant as u32, share, size));
    }
    let source = format!("fitted to the published facts, seed {}", fit.seed);
    Demand::new(WINDOW, count, tasks, source)
}

/// Several such hours of the same tenants, one after the other; each hour is drawn independently.
pub fn fitted_hours(fit: Fit, hours: u32) -> Demand {
    let mut tasks = Vec::new();
    for hour in 0..hours {
        let seed = fit.seed.wrapping_add(u64::from(hour) << 32);
        let one = fitted(Fit { seed, ..fit });
        let later = f64::from(hour) * WINDOW;
        tasks.extend(one.tasks.into_iter().map(|task| Task { start: task.start + later, ..task }));
    }
    let source = format!("{hours} hours fitted to the published facts, seed {}", fit.seed);
    Demand::new(f64::from(hours) * WINDOW, fit.tenants.max(1), tasks, source)
}

/// The tasks of a tenant whose mean is `share` of its peak of `size` GiB.
fn tenant_of(draw: &mut Draw, tenant: u32, share: f64, size: f64) -> Vec<Task> {
    // Bursts contribute a part of the mean, the rest is steady, so that tenants differ in shape.
    let of_bursts = (share * draw.between(0.3, 0.9)).max(UTILISATION_MIN * 0.8);
    let mut tasks = bursts(draw, tenant, of_bursts);
    let profile = Demand::new(WINDOW, 1, tasks.clone(), String::new()).profile();
    let level = (share * profile.peak - profile.mean) / (1.0 - share);
    if level > 0.0 {
        tasks.extend(steady(draw, tenant, level));
    }
    let peak = Demand::new(WINDOW, 1, tasks.clone(), String::new()).profile().peak;
    let scale = size * (1u64 << 30) as f64 / peak;
    tasks.iter_mut().for_each(|task| task.bytes *= scale);
    tasks
}

/// A few bursts of queries, and queries in between, whose mean is `share` of their peak. Sizes are raised to
/// the power that gives this mean; if no power suffices, all queries are shortened.
fn bursts(draw: &mut Draw, tenant: u32, share: f64) -> Vec<Task> {
    let mut tasks = Vec::new();
    for _ in 0..1 + draw.below(4) {
        let around = draw.between(0.05, 0.9) * WINDOW;
        for _ in 0..4 + draw.below(9) {
            let start = around + draw.between(0.0, 40.0);
            tasks.push(query(draw, tenant, start, 3.0));
        }
    }
    for _ in 0..12 + draw.below(25) {
        let start = draw.between(0.0, 0.95) * WINDOW;
        tasks.push(query(draw, tenant, start, 1.0));
    }
    loop {
        let with = |power: f64| -> Vec<Task> {
            let raised = |t: &Task| Task { bytes: t.bytes.powf(power), ..*t };
            tasks.iter().map(raised).collect()
        };
        let use_of = |tasks: Vec<Task>| Demand::new(WINDOW, 1, tasks, String::new()).profile();
        // A larger power gives a smaller mean: almost every fraction is possible between these two.
        let (mut low, mut high) = (0.0, 8.0);
        if use_of(with(high)).utilisation() > share * (1.0 + CLOSE) {
            tasks.iter_mut().for_each(shorten);
            continue;
        }
        while high - low > 1e-3 {
            let middle = (low + high) / 2.0;
            if use_of(with(middle)).utilisation() > share {
                low = middle;
            } else {
                high = middle;
            }
        }
        return with(high);
    }
}

fn shorten(task: &mut Task) {
    for time in [&mut task.grow, &mut task.hold, &mut task.shrink] {
        *time *= 0.8;
    }
}

/// A query of about a minute.
fn query(draw: &mut Draw, tenant: u32, start: f64, median: f64) -> Task {
    let length = draw.around(70.0, 0.6).clamp(10.0, 480.0);
    let (grow, shrink) = (draw.between(0.15, 0.4), draw.between(0.1, 0.3));
    Task {
        tenant,
        start,
        grow: length * grow,
        hold: length * (1.0 - grow - shrink),
        shrink: length * shrink,
        bytes: draw.around(median, 0.8),
    }
}

/// Consecutive queries, each writing while the data of the previous one is dropped: a constant level.
fn steady(draw: &mut Draw, tenant: u32, level: f64) -> Vec<Task> {
    let mut tasks = Vec::new();
    let (mut start, mut turn) = (-60.0, 60.0);
    while start < WINDOW {
        let hold = draw.between(240.0, 900.0);
        let next = draw.between(30.0, 90.0);
        tasks.push(Task { tenant, start, grow: turn, hold, shrink: next, bytes: level });
        (start, turn) = (start + turn + hold, next);
    }
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hour(seed: u64, tenants: u32) -> Demand {
        fitted(Fit { seed, tenants })
    }

    #[test]
    fn mean_use_over_all_tenants_is_19_percent_of_the_peak() {
        let demand = hour(1, 400);
        let shares: Vec<f64> = (0..400).map(|t| demand.tenant(t).utilisation()).collect();
        let mean = shares.iter().sum::<f64>() / 400.0;
        assert!((0.17..0.21).contains(&mean), "mean use is {mean}");
        // It also holds for the few tenants of a benchmark.
        for seed in 0..20 {
            let demand = hour(seed, 8);
            let mean = (0..8).map(|t| demand.tenant(t).utilisation()).sum::<f64>() / 8.0;
            assert!((0.14..0.24).contains(&mean), "seed {seed}: mean use is {mean}");
        }
    }

    #[test]
    fn half_of_the_tenants_have_peaks_of_10_to_100_times_their_mean() {
        let demand = hour(2, 400);
        let ratios: Vec<f64> = (0..400).map(|t| 1.0 / demand.tenant(t).utilisation()).collect();
        let bursty = ratios.iter().filter(|r| (10.0..=130.0).contains(*r)).count();
        assert!((160..=260).contains(&bursty), "{bursty} of 400");
        assert!(ratios.iter().all(|r| (1.0..=130.0).contains(r)), "{ratios:?}");
        assert!(ratios.iter().any(|r| *r > 70.0), "the most bursty one has 100 to 1");
    }

    /// "Can vary by two orders of magnitude over a period of minutes": a bursty tenant rises from less than
    /// its mean to its peak, and falls back, within minutes.
    #[test]
    fn bursts_come_and_go_within_minutes() {
        let demand = hour(3, 100);
        let mut bursty = 0;
        for tenant in 0..100 {
            let profile = demand.tenant(tenant);
            if profile.utilisation() > 0.1 {
                continue;
            }
            bursty += 1;
            let of = |at: f64| -> f64 {
                let tasks = demand.tasks.iter().filter(|t| t.tenant == tenant);
                tasks.map(|t| t.level(at)).sum()
            };
            let low = |step: f64| {
                (1..).map(|i| i as f64 * 5.0).find(|after| {
                    let at = profile.peak_at + step * after;
                    of(at) <= profile.mean || !(0.0..WINDOW).contains(&at)
                })
            };
            let (before, after) = (low(-1.0).unwrap(), low(1.0).unwrap());
            assert!(before + after <= 1200.0, "tenant {tenant}: {before} s and {after} s");
        }
        assert!(bursty >= 40, "{bursty}");
    }

    #[test]
    fn a_seed_decides_everything_and_another_seed_something_else() {
        assert_eq!(hour(7, 5).tasks, hour(7, 5).tasks);
        assert_ne!(hour(7, 5).tasks, hour(8, 5).tasks);
    }
}
