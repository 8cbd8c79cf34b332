//! `--against`: is this build worse than another one?
//!
//! Both builds are measured in one run, round by round in turn, so that other load of the machine affects
//! both. A row is judged by the interval of the median of its paired ratios (`statistics`). The matrix
//! without `--against` compares systems; a stored ratio of it is no evidence for the effect of a change.

pub mod measure;
mod rows;
mod statistics;
mod whole;

use crate::build::Build;
use crate::matrix::Scale;
use crate::run::{Effort, Runner};
use crate::tools::Tools;
use honeycomb_bench::process::{Pinning, machine};
use honeycomb_bench::report::{Progress, number};
use measure::{Judged, SIDES, Unpaired, judge, seems_worse, verdict};
use rows::{Row, Series, rows};
use serde_json::{Value, json};
use statistics::{Verdict, WORSE};
use std::path::PathBuf;

/// Minimum number of pairs of a row, except with `--quick`.
pub const PAIRS: u32 = 15;
/// Pairs of a row with `--quick`: no interval, and no verdict.
const PAIRS_QUICK: u32 = 2;

/// The other build.
pub enum That {
    /// The build of a revision of this repository.
    Revision(String),
    /// A `honeycomb-compare` that is already built.
    Binary(PathBuf),
}

/// A comparison requested on the command line.
pub struct Asked<'a> {
    /// The other build.
    pub that: That,
    /// Words, one of which the name of a row must contain; all rows if there is none.
    pub rows: &'a [String],
    /// Part of the matrix.
    pub scale: Scale,
    /// Number of pairs of each row.
    pub pairs: Option<u32>,
    /// Seconds of a round.
    pub seconds: f64,
    /// Whether each side has its own core.
    pub pin: bool,
    /// Whether to print lines of JSON instead of text.
    pub json: bool,
    /// Whether to print only the names of the rows.
    pub list: bool,
}

/// The result of a row.
struct Outcome {
    name: String,
    found: Result<Vec<Judged>, Unpaired>,
}

/// Compares two builds. Fails when a row of this build is worse, or has no figures.
pub fn run(asked: &Asked<'_>) -> Result<(), String> {
    let mut rows = asked.chosen();
    let pairs = asked.pairs()?;
    let effort = Effort { rounds: pairs, seconds: asked.seconds };
    let seconds: f64 = rows.iter().map(|row| row.seconds(effort, pairs)).sum();
    if asked.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        eprintln!("bench/compare: {} rows, about {} minutes", rows.len(), minutes(seconds));
        return Ok(());
    }
    if rows.is_empty() {
        return Err("no row matches --rows; --list prints the names".into());
    }
    if matches!(asked.that, That::Binary(_)) && rows.iter().any(Row::in_python) {
        eprintln!("bench/compare: NO PYTHON ROWS: --against-binary has no Python package");
        rows.retain(|row| !row.in_python());
    }
    let own = Build::own()?;
    let that = asked.build(&own, rows.iter().any(Row::in_python))?;
    let (tools, pinning) = (Tools::gather()?, Pinning::choose(asked.pin));
    asked.introduce(&that, pinning, pairs, minutes(seconds));
    pinning.for_client();
    let mut runner = Runner::new(&own, &tools, pinning, effort);
    let progress = Progress::new();
    let series = Series { builds: [&own, &that], pairs, scale: asked.scale };
    let mut outcomes = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let report = |again: &'static str| {
            let (progress, of, name) = (&progress, rows.len(), &row.name);
            move |pair: u32| {
                progress.tell(&format!("{}/{of}: {name}{again}: pair {}", at + 1, pair + 1))
            }
        };
        let first = row.measure(&mut runner, series, &mut report(""));
        let found = first.and_then(|first| match asked.judges() && seems_worse(&first) {
            false => Ok(judge(&first, None)),
            true => {
                let twice = Series { pairs: 2 * pairs, ..series };
                let again = row.measure(&mut runner, twice, &mut report(", again"))?;
                Ok(judge(&first, Some(&again)))
            }
        });
        progress.tell("");
        let outcome = Outcome { name: row.name.clone(), found };
        match asked.json {
            true => println!("{}", outcome.json(pairs, asked.judges())),
            false => outcome.print(asked.judges()),
        }
        outcomes.push(outcome);
    }
    conclude(&outcomes, asked)
}

impl Asked<'_> {
    fn chosen(&self) -> Vec<Row> {
        let wants = |row: &Row| {
            self.rows.is_empty() || self.rows.iter().any(|word| row.name.contains(word.trim()))
        };
        rows(self.scale).into_iter().filter(wants).collect()
    }

    /// Whether the comparison has a verdict; `--quick` has none.
    fn judges(&self) -> bool {
        self.scale != Scale::Quick
    }

    fn pairs(&self) -> Result<u32, String> {
        match (self.pairs, self.judges()) {
            (Some(pairs), true) if pairs < PAIRS => Err(format!(
                "--pairs must be {PAIRS} or more: fewer pairs cannot decide (with --quick, which \
                 has no verdict, any number)"
            )),
            (Some(pairs), _) => Ok(pairs),
            (None, judges) => Ok(if judges { PAIRS } else { PAIRS_QUICK }),
        }
    }

    fn build(&self, own: &Build, python: bool) -> Result<Build, String> {
        match &self.that {
            That::Binary(path) => Build::binary(path),
            That::Revision(_) if cfg!(debug_assertions) && self.judges() => {
                Err("this build has debug assertions, but the other build would have none: run \
                 bench/compare, which builds with the profile release"
                    .into())
            }
            That::Revision(revision) => {
                let that = Build::revision(revision)?;
                if python {
                    own.prepare_python()?;
                    that.prepare_python()?;
                }
                Ok(that)
            }
        }
    }

    fn introduce(&self, that: &Build, pinning: Pinning, pairs: u32, minutes: String) {
        let named = match &self.that {
            That::Revision(revision) => format!("{revision} ({})", that.program.display()),
            That::Binary(path) => path.display().to_string(),
        };
        let about = format!(
            "{}; {}; {pairs} pairs of rounds of {} s; about {minutes} minutes",
            machine(),
            pinning.show(),
            self.seconds
        );
        if self.json {
            println!("{}", json!({ "about": about, "against": named, "worse_beyond": WORSE }));
            return;
        }
        println!("{about}\nthis build against {named}");
        println!(
            "median of the paired ratios (95 % interval by order statistics), inverted where \
             needed so that more than 1 is worse;\na row is worse if its whole interval exceeds \
             {WORSE}; figures in brackets are not judged\n"
        );
    }
}

fn minutes(seconds: f64) -> String {
    number((seconds / 60.0).ceil().max(1.0)).split('.').next().unwrap_or("1").to_owned()
}

impl Outcome {
    /// The outcome in one word.
    fn word(&self, judges: bool) -> &'static str {
        match &self.found {
            Err(Unpaired::NotThere(_)) => "NOT IN THAT REVISION",
            Err(Unpaired::Failed(_)) => "FAILED",
            Ok(_) if !judges => "not judged",
            Ok(measures) => verdict(measures).name(),
        }
    }

    fn is(&self, wanted: Verdict) -> bool {
        self.found.as_ref().is_ok_and(|measures| verdict(measures) == wanted)
    }

    fn print(&self, judges: bool) {
        println!("{:<60} {}", self.name, self.word(judges));
        match &self.found {
            Err(Unpaired::NotThere(why) | Unpaired::Failed(why)) => println!("    {why}"),
            Ok(measures) => {
                let all: Vec<String> = measures.iter().map(|m| m.show(judges)).collect();
                println!("    {}", all.join("   "));
            }
        }
    }

    fn json(&self, pairs: u32, judges: bool) -> Value {
        let mut line = json!({ "row": self.name, "pairs": pairs, "verdict": self.word(judges) });
        let fields = line.as_object_mut().expect("an object");
        match &self.found {
            Ok(measures) => {
                let measures: Vec<Value> = measures.iter().map(|m| m.json(judges)).collect();
                fields.insert("measures".into(), json!(measures));
            }
            Err(Unpaired::NotThere(why) | Unpaired::Failed(why)) => {
                fields.insert("why".into(), json!(why));
            }
        }
        line
    }
}

impl Judged {
    fn show(&self, judges: bool) -> String {
        let mut text = format!("{} {}", self.measure.name, self.estimate.show());
        if let Some(first) = &self.first {
            text += &format!(", at first {}", first.show());
        }
        if judges && self.measure.judged && self.verdict == Verdict::Worse {
            text += " WORSE";
        }
        if self.measure.judged { text } else { format!("[{text}]") }
    }

    fn json(&self, judges: bool) -> Value {
        let [this, that] = self.medians;
        let verdict = (judges && self.measure.judged).then(|| self.verdict.name());
        json!({
            "measure": self.measure.name, "unit": self.measure.unit, "judged": self.measure.judged,
            "ratio": self.estimate.json(), "first_ratio": self.first.map(|first| first.json()),
            "this": this, "that": that, "verdict": verdict,
        })
    }
}

/// Prints the last lines; an error becomes the program's exit code.
fn conclude(outcomes: &[Outcome], asked: &Asked<'_>) -> Result<(), String> {
    let names = |wanted: &dyn Fn(&Outcome) -> bool| -> Vec<&str> {
        outcomes.iter().filter(|o| wanted(o)).map(|o| &o.name[..]).collect()
    };
    let absent = names(&|o| matches!(o.found, Err(Unpaired::NotThere(_))));
    if !absent.is_empty() {
        eprintln!("bench/compare: NOT IN THAT REVISION: {}", absent.join("; "));
    }
    let failed = names(&|o| matches!(o.found, Err(Unpaired::Failed(_))));
    let compared = outcomes.len() - absent.len() - failed.len();
    if !failed.is_empty() {
        return Err(format!("FAILED, without a verdict: {}", failed.join("; ")));
    }
    if compared == 0 {
        return Err(format!("{} has none of these rows", SIDES[1]));
    }
    if !asked.judges() {
        return Ok(());
    }
    let worse = names(&|o| o.is(Verdict::Worse));
    if !worse.is_empty() {
        return Err(format!("{} of {compared} rows are WORSE: {}", worse.len(), worse.join("; ")));
    }
    let undecided = names(&|o| o.is(Verdict::Undecided)).len();
    let mut text = format!("not worse: no row of {compared} is worse");
    if undecided > 0 {
        text += &format!(
            "; {undecided} of them undecided: their intervals extend beyond {WORSE}; use more \
             --pairs or a quieter machine"
        );
    }
    match asked.json {
        true => eprintln!("bench/compare: {text}"),
        false => println!("\n{text}"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use measure::{Compared, Measure};

    fn asked<'a>(scale: Scale, pairs: Option<u32>) -> Asked<'a> {
        let that = That::Binary("x".into());
        let (rows, pin, json, list) = (&[][..], false, false, false);
        Asked { that, rows, scale, pairs, seconds: 0.1, pin, json, list }
    }

    fn outcome(times: f64) -> Outcome {
        let measure = Measure { name: "p50", unit: "us", rises: false, judged: true };
        let series = Compared { measure, values: [vec![times; 15], vec![1.0; 15]] };
        Outcome { name: format!("row {times}"), found: Ok(judge(&[series], None)) }
    }

    #[test]
    fn fewer_pairs_than_decide_are_refused_unless_quick() {
        assert_eq!(asked(Scale::Usual, None).pairs(), Ok(15));
        assert!(asked(Scale::Usual, Some(14)).pairs().unwrap_err().contains("15 or more"));
        assert_eq!(asked(Scale::Full, Some(15)).pairs(), Ok(15));
        assert_eq!(asked(Scale::Quick, Some(1)).pairs(), Ok(1));
    }

    #[test]
    fn run_fails_when_a_row_is_worse_or_failed_and_not_when_that_build_lacks_it() {
        let ended = |outcomes: &[Outcome]| conclude(outcomes, &asked(Scale::Usual, None));
        let lacks = |why: Unpaired| Outcome { name: "new row".into(), found: Err(why) };
        let absent = || lacks(Unpaired::NotThere("unknown".into()));
        let failed = lacks(Unpaired::Failed("broken".into()));
        assert_eq!(ended(&[outcome(1.0), outcome(1.03)]), Ok(()));
        assert_eq!(ended(&[outcome(1.0), absent()]), Ok(()));
        let worse = ended(&[outcome(1.0), outcome(1.04)]).unwrap_err();
        assert!(worse.contains("1 of 2 rows are WORSE: row 1.04"), "{worse}");
        assert!(ended(&[outcome(1.0), failed]).unwrap_err().contains("FAILED"));
        assert!(ended(&[absent()]).is_err());
        // A quick run has no verdict, so that it cannot be worse.
        assert_eq!(conclude(&[outcome(9.0)], &asked(Scale::Quick, None)), Ok(()));
    }
}
