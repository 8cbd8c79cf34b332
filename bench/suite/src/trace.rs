//! The load of the elasticity benchmarks: its source and its size.

use super::Pool;
use clap::Args;
use honeycomb::failure::{CommandResult, Failure};
use honeycomb::size;
use honeycomb_wire::messages::PrefixOptions;
use honeycomb_workload::{Demand, Ending, Fit, Holding, Plan, Sizes, fitted, snowset};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fs::File;
use std::io::{BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Seconds of the shortest meaningful run.
const SECONDS_MIN: f64 = 1.0;
/// Maximum seconds of a quick run.
pub const QUICK: f64 = 2.0;
/// Maximum peak of a quick run.
const QUICK_PEAK: u64 = 24 << 20;
/// Skew of the stores' keys, as in YCSB.
const SKEW: f64 = 0.99;

/// An hour of tenants' intermediate data, and how it is compressed.
#[derive(Args, Clone)]
pub struct Trace {
    /// Seconds into which the hour is compressed (default: 120; for each run of sensitivity 40)
    #[arg(long)]
    seconds: Option<f64>,
    /// Peak demand of all tenants together
    #[arg(long, value_parser = size::parse, default_value = "512MiB")]
    peak: u64,
    /// Number of tenants
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tenants: u32,
    /// Seed of the load, contents and keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Main dataset of the public Snowset as CSV, to take the hour from; - for standard input. Without it,
    /// the hour is generated from published facts about Snowset
    #[arg(long, value_name = "CSV")]
    snowset: Option<PathBuf>,
    /// Run for only a few seconds: a check that it works, not a measurement
    #[arg(long)]
    pub quick: bool,
    /// Folder for the figures: a PNG and its data as CSV
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Number of cores that serve requests
    #[arg(long, default_value_t = 1)]
    pub shards: u8,
    /// Number of threads that write and read
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    workers: u32,
}

impl Trace {
    /// The load, compressed into `--seconds`, by default `usual`.
    pub fn demand(&self, usual: f64) -> CommandResult<Demand> {
        let seconds = self.seconds.unwrap_or(usual);
        if !(SECONDS_MIN..=86_400.0).contains(&seconds) {
            return Err(Failure::invalid("--seconds must be 1 to 86400"));
        }
        let hour = match &self.snowset {
            None => fitted(Fit { seed: self.seed, tenants: self.tenants }),
            Some(path) => self.read(path)?,
        };
        let (seconds, peak) = match self.quick {
            true => (seconds.min(QUICK), self.peak.min(QUICK_PEAK)),
            false => (seconds, self.peak),
        };
        Ok(hour.scaled(seconds, peak))
    }

    fn read(&self, path: &Path) -> CommandResult<Demand> {
        let from: Box<dyn Read> = if path == Path::new("-") {
            Box::new(std::io::stdin().lock())
        } else {
            let file = File::open(path);
            Box::new(file.map_err(|e| Failure::io(path.display(), &e))?)
        };
        snowset(BufReader::with_capacity(1 << 20, from), self.seed, self.tenants)
            .map_err(|e| Failure::invalid(e.to_string()))
    }

    /// The pool for a load: four times its peak, for stores with half-empty blocks, plus the first blocks of
    /// each structure. Only written pages become resident.
    pub fn pool(&self, demand: &Demand, block_size: u64, first_blocks: u32) -> Pool {
        let peak = demand.profile().peak as u64;
        let blocks = (demand.tasks.len() as u64 + 16) * (3 + first_blocks as u64);
        Pool { memory: 4 * peak + block_size * blocks, block_size }
    }

    /// The plan of the load.
    pub fn plan(&self, holding: Holding, lease_ms: u32) -> Plan {
        Plan {
            holdings: vec![holding],
            ending: Ending::Lease,
            prefix: PrefixOptions { lease_ms, ..PrefixOptions::default() },
            workers: self.workers as usize,
            sizes: Sizes { piece: 64 << 10, value: 4 << 10, kv_blocks: 1, skew: SKEW },
            seed: self.seed,
        }
    }

    /// The path of a figure's file; creates the folder.
    pub fn file(&self, name: &str) -> CommandResult<Option<PathBuf>> {
        let Some(folder) = &self.out else { return Ok(None) };
        std::fs::create_dir_all(folder).map_err(|e| Failure::io(folder.display(), &e))?;
        Ok(Some(folder.join(name)))
    }
}

/// Writes rows of numbers under a head.
pub fn write_csv(path: &Path, head: &str, rows: impl Iterator<Item = Vec<f64>>) -> CommandResult {
    let mut text = format!("{head}\n");
    for row in rows {
        let cells: Vec<String> = row.into_iter().map(plain).collect();
        text += &cells.join(",");
        text.push('\n');
    }
    std::fs::write(path, text).map_err(|e| Failure::io(path.display(), &e))
}

/// A number with up to four digits after the point.
fn plain(v: f64) -> String {
    let text = format!("{v:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A progress bar of known length on standard error, if that is a terminal.
pub fn bar(what: &str, length: u64) -> ProgressBar {
    let shown = std::io::stderr().is_terminal();
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{prefix:<22} {bar:32} {percent:>3} %  {msg}");
    let bar = ProgressBar::with_draw_target(Some(length), target);
    bar.set_style(style.expect("a sound template"));
    bar.set_prefix(what.to_owned());
    bar
}

/// Seconds as a bar's steps.
pub fn steps(seconds: f64) -> u64 {
    Duration::from_secs_f64(seconds).as_millis() as u64
}
