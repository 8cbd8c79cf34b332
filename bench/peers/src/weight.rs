//! `memory`: resident memory of a server per stored byte, as counted by the kernel.

use crate::build::Build;
use crate::contract::{Op, System};
use crate::matrix::{Bar, Bound, Cell, Figure, Scale, With};
use crate::report::{Missing, Verdict};
use crate::run::{Absent, Runner};
use honeycomb_bench::measure::Spread;
use serde_json::{Value, json};

/// Bytes of a value.
const VALUE: u64 = 64;
/// Bytes of a key.
const KEY: u64 = 16;

/// Name of the group for `--rows` and `--list`.
pub const NAME: &str = "memory 64 B";

/// Resident bytes per byte of keys and values, for each filling.
pub struct Weights {
    system: System,
    entries: u64,
    found: Result<Vec<f64>, Absent>,
}

/// Fills both systems in turn, each time with a new server.
pub fn measure(runner: &mut Runner<'_>, scale: Scale) -> Vec<Weights> {
    let entries = entries(scale);
    let fillings = match scale {
        Scale::Quick => 1,
        Scale::Usual => 3,
        Scale::Full => 5,
    };
    let mut all = [System::Honeycomb, System::Redis, System::Memcached].map(|system| Weights {
        system,
        entries,
        found: Ok(Vec::new()),
    });
    for _ in 0..fillings {
        for weights in &mut all {
            let Ok(found) = &mut weights.found else { continue };
            match filling(runner, weights.system, runner.own, entries) {
                Ok(weight) => found.push(weight),
                Err(absent) => weights.found = Err(absent),
            }
        }
    }
    all.into()
}

/// The number of entries that fill a server.
pub fn entries(scale: Scale) -> u64 {
    match scale {
        Scale::Quick => 20_000,
        Scale::Usual => 500_000,
        Scale::Full => 1_000_000,
    }
}

/// Fills a new server; answers its resident bytes per byte of keys and values.
pub fn filling(
    runner: &mut Runner<'_>,
    system: System,
    build: &Build,
    entries: u64,
) -> Result<f64, Absent> {
    let cell = Cell::new(system, With::Flood, Op::Get, VALUE);
    let bytes = runner.grown(cell, build, entries)?;
    Ok(bytes as f64 / (entries * (KEY + VALUE)) as f64)
}

/// A line for each system.
pub fn lines(all: &[Weights]) -> Vec<Value> {
    let line = |weights: &Weights| {
        let mut line = json!({
            "bench": "memory", "group": NAME, "system": weights.system.name(), "op": "put",
            "size": VALUE, "key_bytes": KEY, "entries": weights.entries, "transport": "tcp",
            "client": "rust",
        });
        let fields = line.as_object_mut().expect("an object");
        match &weights.found {
            Ok(found) => {
                let spread = Spread::of(found.iter().copied());
                fields.insert("resident_bytes_per_stored_byte".into(), spread.json());
            }
            Err(absent) => {
                let (verdict, why) = absent.verdict();
                fields.extend([("absent".into(), json!(verdict)), ("why".into(), json!(why))]);
            }
        }
        line
    };
    all.iter().map(line).collect()
}

/// The rows for people: system and figure.
pub fn show(all: &[Weights]) -> Vec<(String, String)> {
    let one = |weights: &Weights| {
        let text = match &weights.found {
            Ok(found) => honeycomb_bench::report::spread(Spread::of(found.iter().copied())),
            Err(absent) => absent.to_string(),
        };
        (weights.system.name().to_owned(), text)
    };
    all.iter().map(one).collect()
}

/// The ratio of our figure to that of Redis.
pub fn verdict(all: &[Weights]) -> Verdict {
    let bar = Bar {
        row: format!("{NAME} values, 16 B keys: resident per stored byte"),
        figure: Figure::Resident,
        ours: 0,
        others: vec![1],
        bar: Some(Bound::AtMost(0.7)),
        stretch: Some(Bound::AtMost(0.6)),
    };
    let ratio = match (&all[0].found, &all[1].found) {
        (Ok(ours), Ok(theirs)) => {
            let rounds = ours.iter().zip(theirs).map(|(a, b)| a / b);
            Ok(("redis".to_owned(), Spread::of(rounds)))
        }
        (Err(absent), _) | (_, Err(absent)) => Err(Missing::from(absent)),
    };
    Verdict { bar, ratio }
}
