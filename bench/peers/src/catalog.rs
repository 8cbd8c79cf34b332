//! `catalog`: operations of the controller per second of its core, from `honeycomb bench catalog`.

use crate::contract::System;
use crate::matrix::{Bar, Bound, Figure, Scale};
use crate::report::{Missing, Verdict};
use crate::run::Runner;
use honeycomb_bench::measure::Spread;
use honeycomb_bench::report::{number, spread};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// Name of the group for `--rows` and `--list`.
pub const NAME: &str = "catalog mix";

/// The JSON of the catalog benchmark.
pub struct Catalog(Value);

/// Runs the benchmark.
pub fn measure(runner: &Runner<'_>, scale: Scale) -> Result<Catalog, String> {
    let effort = runner.effort;
    let mut command = Command::new(&runner.own.program);
    command.args(["bench", "catalog", "--json"]);
    command.args(["--rounds", &effort.rounds.to_string()]);
    command.args(["--seconds", &effort.seconds.to_string()]);
    if scale == Scale::Quick {
        command.args(["--quick", "--ops", "200"]);
    }
    // The benchmark places its sides on both cores itself.
    runner.pinning.lift();
    let output = command.stderr(Stdio::inherit()).output();
    runner.pinning.for_client();
    let output = output.map_err(|e| e.to_string())?;
    let told: Value = serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())?;
    Ok(Catalog(told))
}

fn read(of: &Value) -> Result<Spread, String> {
    let part = |name: &str| of[name].as_f64().ok_or("bench catalog reported no figure".to_owned());
    Ok(Spread { median: part("median")?, min: part("min")?, max: part("max")? })
}

impl Catalog {
    fn rows(&self) -> impl Iterator<Item = (&str, bool, &Value)> {
        let rows = self.0["rows"].as_array().into_iter().flatten();
        rows.map(|row| {
            let name = row["operations"].as_str().unwrap_or_default();
            (name, row["log"] == true, &row["controller_cpu_us_per_op"])
        })
    }

    /// Operations per second of the controller's core, without a log.
    fn per_core(&self, operations: &str) -> Result<Spread, String> {
        let mut rows = self.rows().filter(|(name, log, _)| *name == operations && !*log);
        let (_, _, cost) =
            rows.next().ok_or(format!("bench catalog reported no '{operations}'"))?;
        let cost = read(cost)?;
        Ok(Spread { median: 1e6 / cost.median, min: 1e6 / cost.max, max: 1e6 / cost.min })
    }

    /// Capacity of two controller shards over that of one.
    fn two_shards(&self) -> Result<Spread, String> {
        let of = |shards: usize| read(&self.0["shards"][shards - 1]["capacity"]);
        let (one, two) = (of(1)?, of(2)?);
        let over = |two: f64, one: f64| two / one;
        Ok(Spread {
            median: over(two.median, one.median),
            min: over(two.min, one.max),
            max: over(two.max, one.min),
        })
    }

    /// A line for each row.
    pub fn lines(&self) -> Vec<Value> {
        let line = |(name, log, cost): (&str, bool, &Value)| {
            let us = cost["median"].as_f64().unwrap_or(f64::NAN);
            json!({
                "bench": "catalog", "group": NAME, "system": System::Honeycomb.name(), "op": name,
                "log": log, "transport": "tcp", "client": "rust",
                "ops_per_server_core_s": (1e6 / us).round(), "server_cpu_us_per_op": us,
            })
        };
        self.rows().map(line).collect()
    }

    /// The rows for people.
    pub fn show(&self) -> Vec<(String, String)> {
        let one = |(name, log, cost): (&str, bool, &Value)| {
            let log = if log { ", with a log" } else { "" };
            (format!("{name}{log}"), number(1e6 / cost["median"].as_f64().unwrap_or(f64::NAN)))
        };
        let mut all: Vec<(String, String)> = self.rows().map(one).collect();
        if let Ok(ratio) = self.two_shards() {
            all.push(("two shards over one".into(), spread(ratio)));
        }
        all
    }
}

/// The verdicts on the requirements for the catalog.
pub fn verdicts(catalog: &Result<Catalog, String>) -> Vec<Verdict> {
    let bar = |row: &str, bar: f64, stretch: Option<f64>| Bar {
        row: format!("{NAME}: {row}"),
        figure: Figure::PerServerCore,
        ours: 0,
        others: Vec::new(),
        bar: Some(Bound::AtLeast(bar)),
        stretch: stretch.map(Bound::AtLeast),
    };
    let of = |what: &dyn Fn(&Catalog) -> Result<Spread, String>, against: &str| match catalog {
        Ok(catalog) => match what(catalog) {
            Ok(found) => Ok((against.to_owned(), found)),
            Err(why) => Err(Missing::Failed(why)),
        },
        Err(why) => Err(Missing::Failed(why.clone())),
    };
    let nobody = "nobody: a number";
    vec![
        Verdict {
            bar: bar("one at a time", 90_000.0, None),
            ratio: of(&|c| c.per_core("mix, one at a time"), nobody),
        },
        Verdict {
            bar: bar("pipelined", 400_000.0, None),
            ratio: of(&|c| c.per_core("mix, pipelined"), nobody),
        },
        Verdict {
            bar: bar("batched", 400_000.0, Some(1_000_000.0)),
            ratio: of(&|c| c.per_core("batched"), nobody),
        },
        Verdict {
            bar: bar("two shards against one", 1.8, None),
            ratio: of(&Catalog::two_shards, "one shard"),
        },
    ]
}
