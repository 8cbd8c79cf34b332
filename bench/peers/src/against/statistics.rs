//! The median of paired ratios, its interval, and the verdict.

use serde_json::{Value, json};

/// A median ratio beyond this is worse.
pub const WORSE: f64 = 1.03;
/// Probability with which the interval must contain the true median.
const CONFIDENCE: f64 = 0.95;

/// The median of paired ratios with its interval.
///
/// The interval is between two order statistics: the ratios of rank k and n + 1 - k. Each ratio is below
/// the true median with probability one half, so the number of ratios below it is binomial, and the
/// interval misses the true median with probability 2 P(B < k). No shape of the distribution is assumed,
/// and outliers, of which benchmarks are full, count no more than any other ratio. Ties only make the
/// interval hold more often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// Ends of its interval; `None` with too few ratios.
    pub bounds: Option<(f64, f64)>,
}

/// The verdict of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The interval ends at 1.03 or before.
    NotWorse,
    /// The interval contains 1.03, or there is no interval: this number of pairs cannot decide.
    Undecided,
    /// The whole interval is beyond 1.03.
    Worse,
}

impl Verdict {
    /// The name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::NotWorse => "not worse",
            Verdict::Undecided => "undecided",
            Verdict::Worse => "WORSE",
        }
    }
}

impl Estimate {
    /// The estimate of at least one ratio.
    pub fn of(ratios: impl IntoIterator<Item = f64>) -> Estimate {
        let mut sorted: Vec<f64> = ratios.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (count, middle) = (sorted.len(), sorted.len() / 2);
        let median = match count % 2 {
            0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
            _ => sorted[middle],
        };
        let bounds = rank(count).map(|k| (sorted[k - 1], sorted[count - k]));
        Estimate { median, bounds }
    }

    /// The verdict of its interval.
    pub fn verdict(&self) -> Verdict {
        match self.bounds {
            Some((low, _)) if low > WORSE => Verdict::Worse,
            Some((_, high)) if high <= WORSE => Verdict::NotWorse,
            _ => Verdict::Undecided,
        }
    }

    /// `median (low..high)`.
    pub fn show(&self) -> String {
        match self.bounds {
            Some((low, high)) => format!("{:.3} ({low:.3}..{high:.3})", self.median),
            None => format!("{:.3} (no interval)", self.median),
        }
    }

    /// The JSON form.
    pub fn json(&self) -> Value {
        let cut = |v: f64| (v * 1e4).round() / 1e4;
        json!({
            "median": cut(self.median), "low": self.bounds.map(|b| cut(b.0)),
            "high": self.bounds.map(|b| cut(b.1)),
        })
    }
}

/// The ratio of a pair, inverted if needed so that more than 1 is worse. With `rises`, a larger value is
/// better.
pub fn ratio(this: f64, that: f64, rises: bool) -> f64 {
    match (this == that, rises) {
        // Two zeros are equal, too.
        (true, _) => 1.0,
        (false, false) => this / that,
        (false, true) => that / this,
    }
}

/// The largest rank k for which the interval from rank k to rank n + 1 - k contains the median of the
/// distribution with `CONFIDENCE`; `None` when even minimum and maximum do not, which is so for fewer than
/// six ratios.
fn rank(count: usize) -> Option<usize> {
    let mut term = 0.5f64.powi(count as i32);
    let (mut below, mut rank) = (0.0, 0);
    // `below` is P(B < k) for k = rank + 1, and `term` is P(B = rank).
    while rank < count / 2 {
        below += term;
        if 2.0 * below > 1.0 - CONFIDENCE {
            break;
        }
        rank += 1;
        term *= (count - rank + 1) as f64 / rank as f64;
    }
    (rank > 0).then_some(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_the_printed_tables() {
        // From the two-sided sign test at 5 %; the rank is one more than its critical value.
        let known = [
            (5, None),
            (6, Some(1)),
            (8, Some(1)),
            (9, Some(2)),
            (10, Some(2)),
            (12, Some(3)),
            (15, Some(4)),
            (20, Some(6)),
            (25, Some(8)),
            (30, Some(10)),
            (50, Some(18)),
            (100, Some(40)),
        ];
        for (count, rank_known) in known {
            assert_eq!(rank(count), rank_known, "{count} pairs");
        }
        // Close to n / 2 - 0.98 sqrt(n), and finite for all numbers of pairs.
        assert_eq!(rank(1000), Some(469));
    }

    #[test]
    fn interval_of_fifteen_is_from_the_fourth_to_the_twelfth() {
        let shuffled = [8, 1, 15, 4, 12, 3, 9, 14, 2, 7, 13, 5, 11, 6, 10];
        let estimate = Estimate::of(shuffled.map(f64::from));
        assert_eq!(estimate, Estimate { median: 8.0, bounds: Some((4.0, 12.0)) });
    }

    #[test]
    fn median_of_an_even_number_is_between_the_middle_two() {
        let estimate = Estimate::of([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(estimate, Estimate { median: 3.5, bounds: Some((1.0, 6.0)) });
    }

    #[test]
    fn ties_give_an_interval_of_no_width() {
        assert_eq!(Estimate::of([1.0; 15]), Estimate { median: 1.0, bounds: Some((1.0, 1.0)) });
        // Twelve equal ratios and three outliers: the interval ends at rank twelve.
        let ratios = [[1.0; 12].as_slice(), &[9.0; 3]].concat();
        assert_eq!(Estimate::of(ratios).bounds, Some((1.0, 1.0)));
    }

    #[test]
    fn ratio_that_is_infinite_is_the_largest() {
        let ratios = [[1.0; 14].as_slice(), &[ratio(1.0, 0.0, false)]].concat();
        assert_eq!(Estimate::of(ratios).bounds, Some((1.0, 1.0)));
    }

    #[test]
    fn few_ratios_have_no_interval_and_no_verdict() {
        let estimate = Estimate::of([9.0; 5]);
        assert_eq!((estimate.bounds, estimate.verdict()), (None, Verdict::Undecided));
    }

    #[test]
    fn verdict_turns_just_beyond_the_bound() {
        let verdict = |low, high| Estimate { median: 1.0, bounds: Some((low, high)) }.verdict();
        let beyond = WORSE.next_up();
        assert_eq!(verdict(beyond, 2.0), Verdict::Worse);
        assert_eq!(verdict(WORSE, 2.0), Verdict::Undecided);
        assert_eq!(verdict(0.5, beyond), Verdict::Undecided);
        assert_eq!(verdict(0.5, WORSE), Verdict::NotWorse);
        assert_eq!(verdict(WORSE, WORSE), Verdict::NotWorse);
        assert_eq!(verdict(0.5, 0.6), Verdict::NotWorse);
    }

    #[test]
    fn more_than_one_is_worse_whichever_way_the_figure_goes() {
        assert_eq!(ratio(3.0, 2.0, false), 1.5);
        assert_eq!(ratio(2.0, 3.0, true), 1.5);
        assert_eq!(ratio(0.0, 0.0, false), 1.0);
        assert_eq!(ratio(0.0, 0.0, true), 1.0);
    }

    /// The coverage of the interval, on a skewed distribution with a known median, with a fixed seed.
    #[test]
    fn interval_holds_the_true_median_in_95_of_100_series() {
        let mut draw = crate::contract::Draw::new(7);
        let series = 4000;
        let holds = (0..series).filter(|_| {
            // 2^u for u between -1 and 1, cubed: skewed to the right, with a median of 1.
            let mut one = || {
                let u = f64::from(draw.below(1 << 30) as u32) / f64::from(1u32 << 29) - 1.0;
                u.exp2().powi(3)
            };
            let estimate = Estimate::of((0..15).map(|_| one()));
            estimate.bounds.is_some_and(|(low, high)| low <= 1.0 && 1.0 <= high)
        });
        let part = holds.count() as f64 / f64::from(series);
        // For fifteen ratios, the coverage is 1 - 2 * 576 / 2^15 = 0.965.
        assert!((part - 0.965).abs() < 0.012, "{part}");
    }
}
