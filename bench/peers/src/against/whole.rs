//! Benchmarks of whole processes, `honeycomb bench NAME --json`: one run is one round.
//!
//! A row is one line of `ROWS`: the benchmark's arguments, chosen so that a run takes about ten seconds, and
//! the compared figures of its JSON. A revision that lacks the benchmark, an argument or all figures is
//! reported as lacking the row.

use super::measure::{Compared, Measure, Unpaired, in_turn};
use crate::build::Build;
use serde_json::Value;
use std::process::{Command, Stdio};

/// One benchmark with its arguments.
pub struct Whole {
    /// Name for `--rows` and the report.
    pub name: &'static str,
    /// Arguments after `bench`; `--json` is appended.
    words: &'static [&'static str],
    /// Seconds of one run.
    pub seconds: f64,
    figures: &'static [Figure],
}

/// A figure and its path in the JSON object.
struct Figure {
    /// Steps from the outermost object inwards: a field, a number in a list, or the element of a list
    /// that has these values (`what=write`, `log=false&operations=batched`).
    path: &'static [&'static str],
    measure: Measure,
}

const fn falls(name: &'static str, unit: &'static str, path: &'static [&'static str]) -> Figure {
    Figure { path, measure: Measure { name, unit, rises: false, judged: true } }
}

const fn rises(name: &'static str, unit: &'static str, path: &'static [&'static str]) -> Figure {
    Figure { path, measure: Measure { name, unit, rises: true, judged: true } }
}

/// A figure that is reported and not judged: the worst of a few values, or a figure of another row.
const fn shows(name: &'static str, unit: &'static str, path: &'static [&'static str]) -> Figure {
    Figure { path, measure: Measure { name, unit, rises: false, judged: false } }
}

const SPLITS: &[Figure] = &[
    falls("split p50", "ms", &["split_ms_p50"]),
    falls("get p50 meanwhile", "us", &["get_p50_us_during"]),
    falls("get p99 meanwhile", "us", &["get_p99_us_during"]),
    shows("get p99 before", "us", &["get_p99_us_before"]),
    shows("longest wait", "ms", &["max_wait_ms"]),
];

const MEMORY: &[Figure] = &[
    falls("allocated over used", "", &["overshoot"]),
    falls("memory back", "ms", &["reclaim_ms"]),
    falls("resident over used", "", &["resident_ratio"]),
    shows("allocated over used, within leases", "", &["overshoot_beyond_lease"]),
];

const FILLING: &[Figure] = &[
    falls("filling", "s", &["seconds", "median"]),
    falls("batch p99", "ms", &["batch_ms_p99", "median"]),
    falls("longest batch", "ms", &["batch_ms_max", "median"]),
    falls("emptying", "s", &["emptying_seconds", "median"]),
    falls("resident over stored", "", &["resident_per_byte_full", "median"]),
    falls("resident at rest", "", &["resident_bytes_per_entry_at_rest", "median"]),
];

const GROWTH: &[Figure] = &[
    falls("p50", "us", &["p50_us_growing"]),
    falls("p99", "us", &["p99_us_growing"]),
    shows("p99.9", "us", &["p999_us_growing"]),
];

const SPILL: &[Figure] = &[
    rises("write", "MB/s", &["median_least_most", "what=write", "with", "0"]),
    rises("read", "MB/s", &["median_least_most", "what=read", "with", "0"]),
    falls("neighbour p99", "us", &["median_least_most", "what=neighbour's p99", "with", "0"]),
    falls(
        "neighbour p99, paced",
        "us",
        &["median_least_most", "what=neighbour's p99, paced", "with", "0"],
    ),
];

const FLUSH: &[Figure] = &[
    rises("plain", "MB/s", &["median_least_most", "format=plain", "flush", "0"]),
    rises("prefix", "MB/s", &["median_least_most", "format=prefix", "flush", "0"]),
];

macro_rules! catalog {
    ($name:literal, $operations:literal, $log:literal) => {
        falls(
            $name,
            "controller us/op",
            &[
                "rows",
                concat!("operations=", $operations, "&log=", $log),
                "controller_cpu_us_per_op",
                "median",
            ],
        )
    };
}

const CATALOG: &[Figure] = &[
    catalog!("one at a time", "mix, one at a time", "false"),
    catalog!("pipelined", "mix, pipelined", "false"),
    catalog!("batched", "batched", "false"),
    catalog!("new prefixes", "new prefixes, pipelined", "false"),
    catalog!("one at a time, with a log", "mix, one at a time", "true"),
    catalog!("pipelined, with a log", "mix, pipelined", "true"),
    catalog!("batched, with a log", "batched", "true"),
    catalog!("new prefixes, with a log", "new prefixes, pipelined", "true"),
    rises("capacity of two shards", "ops/s", &["shards", "1", "capacity", "median"]),
];

macro_rules! repartition {
    ($name:literal, $size:literal, $block:literal, $seconds:literal) => {
        Whole {
            name: $name,
            words: &["repartition", "--sizes", $size, "--splits", "3", "--block-size", $block],
            seconds: $seconds,
            figures: SPLITS,
        }
    };
}

/// All benchmarks. Arguments whose default may differ between revisions are explicit, so that both builds do
/// the same.
pub const ROWS: &[Whole] = &[
    Whole {
        name: "catalog mix",
        words: &["catalog", "--rounds", "1", "--seconds", "0.12"],
        seconds: 2.0,
        figures: CATALOG,
    },
    repartition!("repartition 64 B", "64", "16MiB", 7.0),
    repartition!("repartition 1 KiB", "1KiB", "32MiB", 9.0),
    repartition!("repartition 100 KiB", "100KiB", "32MiB", 6.0),
    repartition!("repartition 1 MiB", "1MiB", "64MiB", 6.0),
    Whole {
        name: "spill",
        words: &["spill", "--bytes", "256MiB", "--rounds", "1"],
        seconds: 11.0,
        figures: SPILL,
    },
    Whole {
        name: "flush",
        words: &["flush", "--bytes", "256MiB", "--rounds", "1"],
        seconds: 10.0,
        figures: FLUSH,
    },
    elastic("elasticity file", &elastic_words("file")),
    elastic("elasticity queue", &elastic_words("queue")),
    elastic("elasticity kv", &elastic_words("kv")),
    Whole {
        name: "growth file",
        words: &["growth", "--structure", "file", "--rounds", "3"],
        seconds: 2.0,
        figures: GROWTH,
    },
    Whole {
        name: "growth queue",
        words: &["growth", "--structure", "queue", "--rounds", "3"],
        seconds: 2.0,
        figures: GROWTH,
    },
    Whole {
        name: "growth kv",
        words: &[
            "growth",
            "--structure",
            "kv",
            "--size",
            "1GiB",
            "--values",
            "1000",
            "--fills",
            "1",
        ],
        seconds: 14.0,
        figures: FILLING,
    },
];

const fn elastic(name: &'static str, words: &'static [&'static str]) -> Whole {
    Whole { name, words, seconds: 12.0, figures: MEMORY }
}

const fn elastic_words(structure: &'static str) -> [&'static str; 11] {
    [
        "elasticity",
        "--structure",
        structure,
        "--seconds",
        "8",
        "--peak",
        "64MiB",
        "--trials",
        "5",
        "--lease-ms",
        "500",
    ]
}

impl Whole {
    /// Pairs of runs, one of each build, in turn.
    pub fn pairs(
        &self,
        builds: [&Build; 2],
        pairs: u32,
        quick: bool,
        progress: &mut dyn FnMut(u32),
    ) -> Result<Vec<Compared>, Unpaired> {
        let found = in_turn(0..pairs, |pair, side| {
            progress(pair);
            self.run(builds[side], quick)
        })?;
        let compared: Vec<Compared> =
            self.figures.iter().filter_map(|figure| figure.compared(&found)).collect();
        let lacks =
            |side: usize| found.iter().all(|pair| self.figures[0].of(&pair[side]).is_none());
        match (compared.is_empty(), lacks(0)) {
            (false, _) => Ok(compared),
            (true, true) => Err(Unpaired::Failed(format!(
                "bench {} reports none of the figures of this row",
                self.words[0]
            ))),
            (true, false) => {
                Err(Unpaired::NotThere(format!("bench {} reports other figures", self.words[0])))
            }
        }
    }

    /// One run; answers the object that it prints.
    fn run(&self, build: &Build, quick: bool) -> Result<Value, String> {
        let mut command = Command::new(&build.program);
        command.arg("bench").args(self.words).arg("--json").stdin(Stdio::null());
        if quick {
            command.arg("--quick");
        }
        let output = command.output();
        let output = output.map_err(|e| format!("{}: {e}", build.program.display()))?;
        let last = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("").to_owned()
        };
        let what = || format!("bench {}", self.words.join(" "));
        if !output.status.success() {
            return Err(format!("{}: {}: {}", what(), output.status, first_cause(&output.stderr)));
        }
        serde_json::from_str(&last(&output.stdout)).map_err(|e| format!("{}: {e}", what()))
    }
}

/// The line of an error message with the cause; usage and hints follow it.
fn first_cause(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let named = lines.clone().find(|line| line.contains("error"));
    named.or_else(|| lines.next()).unwrap_or("no message").to_owned()
}

impl Figure {
    fn of(&self, object: &Value) -> Option<f64> {
        pick(object, self.path)
    }

    /// The values of all pairs, if both builds report the figure in each of them.
    fn compared(&self, found: &[[Value; 2]]) -> Option<Compared> {
        let side = |side: usize| -> Option<Vec<f64>> {
            found.iter().map(|pair| self.of(&pair[side])).collect()
        };
        Some(Compared { measure: self.measure, values: [side(0)?, side(1)?] })
    }
}

/// The number at the end of a path.
fn pick(object: &Value, path: &[&str]) -> Option<f64> {
    let mut at = object;
    for step in path {
        at = match at {
            Value::Array(list) => match step.parse::<usize>() {
                Ok(number) => list.get(number)?,
                Err(_) => list.iter().find(|element| has(element, step))?,
            },
            _ => at.get(step)?,
        };
    }
    at.as_f64()
}

/// Whether an element has all values of `field=value&field=value`.
fn has(element: &Value, wanted: &str) -> bool {
    wanted.split('&').all(|pair| {
        let (field, value) = pair.split_once('=').unwrap_or((pair, ""));
        match &element[field] {
            Value::String(text) => text == value,
            other => value.parse::<Value>().is_ok_and(|value| value == *other),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_are_found_by_field_number_and_value() {
        let object = json!({
            "split_ms": 3.5,
            "rows": [{"what": "read", "with": [1, 2]}, {"what": "write", "log": true, "with": [7, 8]}],
        });
        assert_eq!(pick(&object, &["split_ms"]), Some(3.5));
        assert_eq!(pick(&object, &["rows", "what=write", "with", "1"]), Some(8.0));
        assert_eq!(pick(&object, &["rows", "what=write&log=true", "with", "0"]), Some(7.0));
        for absent in [["rows", "what=write&log=false"], ["rows", "9"], ["split_ms", "x"]] {
            assert_eq!(pick(&object, &absent), None, "{absent:?}");
        }
    }

    #[test]
    fn figure_that_one_build_lacks_is_not_compared() {
        let figure = falls("p50", "us", &["p50"]);
        let pair = |that: Value| [json!({"p50": 1.0}), that];
        assert!(figure.compared(&[pair(json!({"p50": 2.0}))]).is_some());
        assert!(figure.compared(&[pair(json!({"p50": 2.0})), pair(json!({}))]).is_none());
    }

    #[test]
    fn cause_of_a_refused_word_is_its_error_and_not_its_usage() {
        let stderr = b"NO STORE: x\nerror: unexpected argument '--end' found\n\nUsage: honeycomb\n";
        assert_eq!(first_cause(stderr), "error: unexpected argument '--end' found");
    }
}
