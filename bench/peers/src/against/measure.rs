//! The compared figures of two builds, and the pairing of their rounds.

use super::statistics::{Estimate, Verdict, ratio};
use std::ops::Range;

/// The builds of a pair: the judged build, and the build that it is compared with.
pub const SIDES: [&str; 2] = ["this build", "that build"];

/// A figure of both builds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// Name in the report.
    pub name: &'static str,
    /// Unit of its values.
    pub unit: &'static str,
    /// Whether a larger value is better.
    pub rises: bool,
    /// Whether the figure is judged, or only reported.
    pub judged: bool,
}

/// The values of one measure.
#[derive(Clone, Debug)]
pub struct Compared {
    /// The measure.
    pub measure: Measure,
    /// Values of this build and of that build, pair by pair.
    pub values: [Vec<f64>; 2],
}

/// The reason why a row has no pairs.
#[derive(Clone, Debug, PartialEq)]
pub enum Unpaired {
    /// That build lacks the row; this one has it.
    NotThere(String),
    /// A round failed, in this build or after both had begun.
    Failed(String),
}

impl Compared {
    /// The estimate from the paired ratios.
    fn estimate(&self) -> Estimate {
        let pairs = self.values[0].iter().zip(&self.values[1]);
        Estimate::of(pairs.map(|(this, that)| ratio(*this, *that, self.measure.rises)))
    }

    /// The median of a build's values.
    fn median(&self, side: usize) -> f64 {
        Estimate::of(self.values[side].iter().copied()).median
    }
}

/// Rounds of both builds in pairs. The build that goes first changes from pair to pair, so that drift of the
/// machine favours neither. An error of this build is a failure. An error of that build in the first pair
/// means that it lacks the row.
pub fn in_turn<T>(
    pairs: Range<u32>,
    mut round: impl FnMut(u32, usize) -> Result<T, String>,
) -> Result<Vec<[T; 2]>, Unpaired> {
    let mut all = Vec::new();
    for pair in pairs {
        let (this, that) = match pair % 2 {
            0 => (round(pair, 0), round(pair, 1)),
            _ => {
                let that = round(pair, 1);
                (round(pair, 0), that)
            }
        };
        let failed = |side: usize, why: String| Unpaired::Failed(format!("{}: {why}", SIDES[side]));
        let this = this.map_err(|why| failed(0, why))?;
        let that = that.map_err(|why| match pair {
            0 => Unpaired::NotThere(why),
            _ => failed(1, why),
        })?;
        all.push([this, that]);
    }
    Ok(all)
}

/// A measure with the estimates from its pairs.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The measure.
    pub measure: Measure,
    /// Medians of this build and of that build.
    pub medians: [f64; 2],
    /// Estimate of the deciding series: the second series if there is one.
    pub estimate: Estimate,
    /// Estimate of the first series, if the row was measured again.
    pub first: Option<Estimate>,
    /// The verdict of both series.
    pub verdict: Verdict,
}

/// Whether a row must be measured again.
pub fn seems_worse(series: &[Compared]) -> bool {
    series.iter().any(|c| c.measure.judged && c.estimate().verdict() == Verdict::Worse)
}

/// Judges the measures of a row.
///
/// Of some hundred intervals a few miss their median by chance, and the processes of a series may have had
/// bad luck with their memory. Therefore a row that seems worse is measured a second time, with new
/// processes and twice as many pairs, and a measure is worse when both series say so.
pub fn judge(first: &[Compared], again: Option<&[Compared]>) -> Vec<Judged> {
    let one = |compared: &Compared| {
        let before = compared.estimate();
        let series =
            again.and_then(|all| all.iter().find(|c| c.measure.name == compared.measure.name));
        let decides = series.unwrap_or(compared);
        let estimate = decides.estimate();
        let verdict = match (before.verdict(), again.is_some(), series) {
            (verdict, false, _) => verdict,
            // The second series lacks the figure, such as the p99 of too few operations.
            (_, true, None) => Verdict::Undecided,
            (Verdict::Worse, true, Some(_)) => estimate.verdict(),
            (_, true, Some(_)) => estimate.verdict().min(Verdict::Undecided),
        };
        Judged {
            measure: compared.measure,
            medians: [decides.median(0), decides.median(1)],
            estimate,
            first: series.map(|_| before),
            verdict,
        }
    };
    first.iter().map(one).collect()
}

/// The verdict of a row: that of the worst measure that judges.
pub fn verdict(measures: &[Judged]) -> Verdict {
    let judged = measures.iter().filter(|judged| judged.measure.judged);
    judged.map(|judged| judged.verdict).max().unwrap_or(Verdict::Undecided)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: Measure = Measure { name: "p50", unit: "us", rises: false, judged: true };

    /// A series in which this build takes `times` times as long as that build.
    fn series(measure: Measure, times: f64) -> Compared {
        Compared { measure, values: [vec![10.0 * times; 15], vec![10.0; 15]] }
    }

    #[test]
    fn build_that_goes_first_changes_from_pair_to_pair() {
        let mut order = Vec::new();
        let pairs = in_turn(0..3, |pair, side| {
            order.push((pair, side));
            Ok((pair, side))
        });
        assert_eq!(order, [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1)]);
        // This build's value is the first of its pair in either order.
        assert_eq!(pairs.unwrap()[1], [(1, 0), (1, 1)]);
    }

    #[test]
    fn row_that_only_that_build_lacks_is_not_there() {
        let lacks = |sides: &'static [usize], from: u32| {
            in_turn(0..3, move |pair, side| match sides.contains(&side) && pair >= from {
                true => Err("no such row".to_owned()),
                false => Ok(()),
            })
        };
        assert_eq!(lacks(&[1], 0), Err(Unpaired::NotThere("no such row".into())));
        // An error of this build is a failure, and so is one of that build after its first pair.
        for (sides, from) in [(&[0][..], 0), (&[0, 1], 0), (&[1], 1), (&[0], 2)] {
            assert!(
                matches!(lacks(sides, from), Err(Unpaired::Failed(_))),
                "{sides:?} from {from}"
            );
        }
    }

    #[test]
    fn measure_is_worse_when_two_series_say_so() {
        let judged = |first: f64, again: Option<f64>| {
            let again = again.map(|times| vec![series(LATENCY, times)]);
            verdict(&judge(&[series(LATENCY, first)], again.as_deref()))
        };
        assert_eq!(judged(1.0, None), Verdict::NotWorse);
        assert_eq!(judged(1.1, None), Verdict::Worse);
        assert_eq!(judged(1.1, Some(1.1)), Verdict::Worse);
        assert_eq!(judged(1.1, Some(1.0)), Verdict::NotWorse);
        assert_eq!(judged(1.0, Some(1.1)), Verdict::Undecided);
    }

    #[test]
    fn row_is_as_its_worst_measure_that_is_judged() {
        let cpu = Measure { name: "client CPU", judged: false, ..LATENCY };
        let rate = Measure { name: "MB/s", rises: true, ..LATENCY };
        let row = [series(LATENCY, 1.0), series(cpu, 2.0)];
        assert!(!seems_worse(&row));
        assert_eq!(verdict(&judge(&row, None)), Verdict::NotWorse);
        // A rate that is half as high is worse, one that is twice as high is not.
        for (times, expected) in [(0.5, Verdict::Worse), (2.0, Verdict::NotWorse)] {
            let row = [series(LATENCY, 1.0), series(rate, times)];
            assert_eq!(seems_worse(&row), expected == Verdict::Worse);
            assert_eq!(verdict(&judge(&row, None)), expected);
        }
    }

    #[test]
    fn measure_that_the_second_series_lacks_is_undecided() {
        let p99 = Measure { name: "p99", ..LATENCY };
        let first = [series(LATENCY, 1.0), series(p99, 2.0)];
        let judged = judge(&first, Some(&[series(LATENCY, 1.0)]));
        assert_eq!(verdict(&judged), Verdict::Undecided);
    }
}
