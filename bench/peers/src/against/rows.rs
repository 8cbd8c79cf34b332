//! The rows of a comparison of two builds: every cell of the matrix that is Honeycomb's, the weight of a
//! stored byte, and benchmarks of whole processes.

use super::measure::{Compared, Measure, Unpaired, in_turn};
use super::statistics::Estimate;
use super::whole::{self, Whole};
use crate::build::Build;
use crate::contract::System;
use crate::matrix::{Cell, Figure, Scale, With, groups};
use crate::report::who;
use crate::run::{Effort, Runner};
use crate::weight;
use honeycomb_bench::measure::Figures;

/// Number of pairs with the same server and client of each build. Then new processes are started, because the
/// placement of a process in memory is random and constant for its lifetime.
const LIFE: u32 = 5;
/// Minimum number of latencies in a round for a p99: then ten are slower.
const P99_LEAST: f64 = 1000.0;
/// Seconds to start and fill a server and a client of each build.
const SET_UP: f64 = 1.0;
/// Seconds of one filling of `memory`.
const FILLING: f64 = 1.5;

/// One row of the comparison.
pub struct Row {
    /// Name for `--rows`, `--list` and the report.
    pub name: String,
    kind: Kind,
}

enum Kind {
    Cell(Box<Cell>),
    Weight,
    Whole(&'static Whole),
}

/// The builds of a comparison, and its length.
#[derive(Clone, Copy)]
pub struct Series<'a> {
    /// This build and that build.
    pub builds: [&'a Build; 2],
    /// Number of pairs of rounds.
    pub pairs: u32,
    /// Part of the matrix.
    pub scale: Scale,
}

/// All rows of a scale.
pub fn rows(scale: Scale) -> Vec<Row> {
    let mut all = Vec::new();
    for group in groups(scale) {
        for cell in group.cells.iter().filter(|cell| cell.system == System::Honeycomb) {
            // `--rows` is split at commas.
            let ours = who(cell).replace(',', "");
            let name = match ours.strip_prefix("honeycomb").unwrap_or(&ours).trim() {
                "" => group.name.clone(),
                how => format!("{}: {how}", group.name),
            };
            all.push(Row { name, kind: Kind::Cell(Box::new(*cell)) });
        }
    }
    all.push(Row { name: weight::NAME.into(), kind: Kind::Weight });
    let whole = |whole: &'static Whole| Row { name: whole.name.into(), kind: Kind::Whole(whole) };
    all.extend(whole::ROWS.iter().map(whole));
    all
}

impl Row {
    /// Whether the client in Python measures it.
    pub fn in_python(&self) -> bool {
        matches!(&self.kind, Kind::Cell(cell) if cell.with == With::Python)
    }

    /// About how long it takes, in seconds.
    pub fn seconds(&self, effort: Effort, pairs: u32) -> f64 {
        let each = f64::from(pairs) * 2.0;
        match &self.kind {
            Kind::Cell(cell) => {
                let lives = f64::from(lives(pairs));
                (each + lives * 2.0) * effort.seconds(cell) + lives * SET_UP
            }
            Kind::Weight => each * FILLING,
            Kind::Whole(whole) => each * whole.seconds,
        }
    }

    /// Measures it once with each build, pair by pair.
    pub fn measure(
        &self,
        runner: &mut Runner<'_>,
        series: Series<'_>,
        progress: &mut dyn FnMut(u32),
    ) -> Result<Vec<Compared>, Unpaired> {
        let Series { builds, pairs, scale } = series;
        match &self.kind {
            Kind::Cell(cell) => of_cell(runner, cell, series, progress),
            Kind::Weight => {
                let entries = weight::entries(scale);
                let found = in_turn(0..pairs, |pair, side| {
                    progress(pair);
                    let filled = weight::filling(runner, System::Honeycomb, builds[side], entries);
                    filled.map_err(|absent| absent.to_string())
                })?;
                let values = [0, 1].map(|side| found.iter().map(|pair| pair[side]).collect());
                let (name, unit) = (Figure::Resident.name(), "B/B");
                Ok(vec![Compared {
                    measure: Measure { name, unit, rises: false, judged: true },
                    values,
                }])
            }
            Kind::Whole(whole) => {
                runner.pinning.lift();
                let compared = whole.pairs(builds, pairs, scale == Scale::Quick, progress);
                runner.pinning.for_client();
                compared
            }
        }
    }
}

/// Number of server and client processes of each build.
fn lives(pairs: u32) -> u32 {
    (pairs / LIFE).max(1)
}

fn of_cell(
    runner: &mut Runner<'_>,
    cell: &Cell,
    Series { builds, pairs, .. }: Series<'_>,
    progress: &mut dyn FnMut(u32),
) -> Result<Vec<Compared>, Unpaired> {
    let mut found = Vec::new();
    for life in 0..lives(pairs) {
        let first = |life: u32| pairs * life / lives(pairs);
        found.extend(runner.pairs(*cell, builds, first(life)..first(life + 1), progress)?);
    }
    // Clients notice throughput, p50 and p99; the server's CPU limits the load of a core.
    // The client's CPU is reported only.
    let figures: [(Figure, &str, bool); 5] = [
        (Figure::P50, "us", true),
        (Figure::P99, "us", true),
        (Figure::MbPerS, "", true),
        (Figure::ServerCpu, "us", true),
        (Figure::ClientCpu, "us", false),
    ];
    let seconds = runner.effort.seconds(cell);
    let latencies = found.iter().flatten().map(|f| f.ops_s * seconds / cell.pipeline as f64);
    let has_p99 = Estimate::of(latencies).median >= P99_LEAST;
    let compared = |(figure, unit, judged): (Figure, &'static str, bool)| {
        let of = |side: usize| found.iter().map(move |pair: &[Figures; 2]| figure.of(&pair[side]));
        let measure = Measure { name: figure.name(), unit, rises: figure.rises(), judged };
        Compared { measure, values: [of(0).collect(), of(1).collect()] }
    };
    let there = figures.into_iter().filter(|(figure, ..)| *figure != Figure::P99 || has_p99);
    Ok(there.map(compared).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn rows_have_names_of_their_own_without_commas() {
        for scale in [Scale::Quick, Scale::Usual, Scale::Full] {
            let rows = rows(scale);
            let names: HashSet<&str> = rows.iter().map(|row| &row.name[..]).collect();
            assert_eq!(names.len(), rows.len());
            assert!(names.iter().all(|name| !name.contains(',')));
        }
        let names: Vec<String> = rows(Scale::Usual).into_iter().map(|row| row.name).collect();
        for name in ["kv sync get 64 B: rust both poll", "kv many get 64 B x16 p1 tcp", "spill"] {
            assert!(names.iter().any(|n| n == name), "{name}");
        }
    }

    #[test]
    fn pairs_are_divided_among_lives_of_five_or_more() {
        for (pairs, expected) in [(1, 1), (4, 1), (9, 1), (15, 3), (16, 3), (31, 6)] {
            assert_eq!(lives(pairs), expected);
            let ends: Vec<u32> = (0..=expected).map(|life| pairs * life / expected).collect();
            assert_eq!((ends[0], ends[expected as usize]), (0, pairs));
            assert!(ends.windows(2).all(|two| two[1] - two[0] >= pairs.min(LIFE)));
        }
    }
}
