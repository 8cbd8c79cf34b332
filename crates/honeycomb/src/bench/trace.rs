//! The load that the elastic benchmarks share: where it comes from, and how large it is.

use super::Pool;
use crate::failure::{Failure, Outcome};
use crate::size;
use clap::Args;
use honeycomb_load::{Demand, Ending, Fit, Holding, Plan, Sizes, fitted, snowset};
use honeycomb_wire::messages::PrefixOptions;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fs::File;
use std::io::{BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Shortest run that means anything.
const SECONDS_MIN: f64 = 1.0;
/// What a quick run lasts, at most.
const QUICK: f64 = 4.0;
/// Peak of a quick run, at most.
const QUICK_PEAK: u64 = 24 << 20;
/// How uneven the keys of stores are: what YCSB takes.
const SKEW: f64 = 0.99;

/// An hour of tenants' intermediate data, and how it is compressed.
#[derive(Args, Clone)]
pub struct Trace {
    /// Seconds into which the hour is compressed (120; of sensitivity, for each of its runs, 40)
    #[arg(long)]
    seconds: Option<f64>,
    /// Most bytes that all tenants together want at a time
    #[arg(long, value_parser = size::parse, default_value = "512MiB")]
    peak: u64,
    /// Tenants
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tenants: u32,
    /// Decides the load, contents and keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The public Snowset to take the hour from: its main dataset as CSV; - for standard input.
    /// Without it the hour is made from the facts that were published of it
    #[arg(long, value_name = "CSV")]
    snowset: Option<PathBuf>,
    /// A few seconds in all: to see that it runs, not to quote
    #[arg(long)]
    pub quick: bool,
    /// Folder for the figures: a PNG and its data as CSV
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Cores that serve
    #[arg(long, default_value_t = 1)]
    pub shards: u8,
    /// Threads that write and read
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    workers: u32,
}

impl Trace {
    /// The load, compressed into `usual` seconds unless it is said.
    pub fn demand(&self, usual: f64) -> Outcome<Demand> {
        let seconds = self.seconds.unwrap_or(usual);
        if !(SECONDS_MIN..=86_400.0).contains(&seconds) {
            return Err(Failure::invalid("--seconds takes 1 to 86400"));
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

    fn read(&self, path: &Path) -> Outcome<Demand> {
        let from: Box<dyn Read> = if path == Path::new("-") {
            Box::new(std::io::stdin().lock())
        } else {
            let file = File::open(path);
            Box::new(file.map_err(|e| Failure::io(path.display(), &e))?)
        };
        snowset(BufReader::with_capacity(1 << 20, from), self.seed, self.tenants)
            .map_err(|e| Failure::invalid(e.to_string()))
    }

    /// Blocks for a load: what is wanted at most, four times over, for stores whose blocks are half
    /// empty, and the first blocks of each structure; resident only where written.
    pub fn pool(&self, demand: &Demand, block_size: u64, first_blocks: u32) -> Pool {
        let peak = demand.profile().peak as u64;
        let blocks = (demand.tasks.len() as u64 + 16) * (3 + first_blocks as u64);
        Pool { memory: 4 * peak + block_size * blocks, block_size }
    }

    /// How the load is carried out.
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

    /// The place of a file for the figures; makes the folder.
    pub fn file(&self, name: &str) -> Outcome<Option<PathBuf>> {
        let Some(folder) = &self.out else { return Ok(None) };
        std::fs::create_dir_all(folder).map_err(|e| Failure::io(folder.display(), &e))?;
        Ok(Some(folder.join(name)))
    }
}

/// Writes rows of numbers under a head.
pub fn write_csv(path: &Path, head: &str, rows: impl Iterator<Item = Vec<f64>>) -> Outcome {
    let mut text = format!("{head}\n");
    for row in rows {
        let cells: Vec<String> = row.into_iter().map(plain).collect();
        text += &cells.join(",");
        text.push('\n');
    }
    std::fs::write(path, text).map_err(|e| Failure::io(path.display(), &e))
}

/// Bytes without a fraction, the rest with four digits of it.
fn plain(v: f64) -> String {
    let text = format!("{v:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A bar on standard error, when somebody watches, that knows how long it will take.
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
