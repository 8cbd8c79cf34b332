//! `catalog`: operations of the controller for each second of its core, by `honeycomb bench controller`.

use crate::contract::System;
use crate::matrix::{Bar, Bound, Figure, Scale};
use crate::report::{Missing, Verdict};
use crate::run::Effort;
use honeycomb::bench::measure::Spread;
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// The group, as `--rows` and `--list` name it.
pub const NAME: &str = "catalog mix";

/// What one core does in a second.
pub struct Catalog {
    /// Each operation one at a time, and pipelined: its name and how many.
    operations: Vec<(&'static str, String, f64)>,
    /// The controller's core over the whole mix, each operation as often as any other.
    mixes: [(&'static str, f64); 2],
}

const ALONE: &str = "synchronous";
const PIPELINED: &str = "pipelined";

/// Runs the benchmark of the controller and reads what it says.
pub fn measure(effort: Effort, scale: Scale) -> Result<Catalog, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(program);
    command.args(["bench", "controller", "--json", "--waiting", "sleeping"]);
    command.args(["--prefixes", "2000", "--blocks", "20000"]);
    command.args(["--rounds", &effort.rounds.to_string()]);
    command.args(["--seconds", &effort.seconds.to_string()]);
    if scale == Scale::Quick {
        command.args(["--quick", "--ops", "50"]);
    }
    let output = command.stderr(Stdio::inherit()).output().map_err(|e| e.to_string())?;
    let told: Value = serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())?;
    let mut operations = Vec::new();
    let mut mixes = [(ALONE, 0.0), (PIPELINED, 0.0)];
    for (way, mix) in &mut mixes {
        let rows = told[*way].as_array().ok_or("bench controller told nothing")?;
        let mut us = 0.0;
        for row in rows {
            let cost = match *way {
                ALONE => &row["figures"]["server_cpu_us_per_op"],
                _ => &row["controller_cpu_us_per_op"],
            };
            let cost = cost["median"].as_f64().ok_or("bench controller told no CPU")?;
            let name = row["operation"].as_str().unwrap_or_default().to_owned();
            operations.push((*way, name, 1e6 / cost));
            us += cost;
        }
        *mix = rows.len() as f64 * 1e6 / us;
    }
    Ok(Catalog { operations, mixes })
}

impl Catalog {
    /// A line for each operation.
    pub fn lines(&self) -> Vec<Value> {
        let line = |(way, operation, rate): &(&str, String, f64)| {
            json!({
                "bench": "catalog", "group": NAME, "system": System::Honeycomb.name(),
                "op": operation, "way": way, "transport": "tcp", "client": "rust",
                "ops_per_server_core_s": rate.round(), "server_cpu_us_per_op": 1e6 / rate,
            })
        };
        self.operations.iter().map(line).collect()
    }

    /// For people.
    pub fn show(&self) -> Vec<(String, String)> {
        let one = |(way, operation, rate): &(&str, String, f64)| {
            (format!("{operation}, {way}"), honeycomb::bench::report::number(*rate))
        };
        self.operations.iter().map(one).collect()
    }
}

/// What is asked of the catalog, met or not.
pub fn verdicts(catalog: &Result<Catalog, String>) -> Vec<Verdict> {
    let bar = |row: &str, bar: f64, stretch: Option<f64>| Bar {
        row: format!("{NAME}: {row}"),
        figure: Figure::PerServerCore,
        ours: 0,
        others: Vec::new(),
        bar: Some(Bound::AtLeast(bar)),
        stretch: stretch.map(Bound::AtLeast),
    };
    let of = |at: usize| match catalog {
        Ok(catalog) => {
            let rate = catalog.mixes[at].1;
            Ok(("nobody: a number".to_owned(), Spread { median: rate, min: rate, max: rate }))
        }
        Err(why) => Err(Missing::Failed(why.clone())),
    };
    let shards = "a controller has one shard in this build".to_owned();
    vec![
        Verdict { bar: bar("one at a time", 90_000.0, None), ratio: of(0) },
        Verdict { bar: bar("pipelined", 400_000.0, Some(1_000_000.0)), ratio: of(1) },
        Verdict {
            bar: bar("two shards against one", 1.8, None),
            ratio: Err(Missing::NotInBuild(shards)),
        },
    ]
}
