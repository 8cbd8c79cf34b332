//! The arithmetic of a comparison, from its conditions.
//!
//! It uses Little's law: live bytes = bytes written per second * seconds that a byte lives. Transfers are 30
//! % of a task's time, so that a running task moves bytes at 30 % of the rate of its transfers. The rate at
//! which all tasks move bytes thus gives the number of tasks that run at a time.

use super::world::{Run, Setup, simulate};
use super::{Load, Policy, RATE_MOST};
use crate::report::number;
use honeycomb::size;
use honeycomb_workload::{Carried, TRANSFER_SHARE};
use serde_json::{Value, json};

/// If jobs continue after the window for longer than this fraction of it plus these seconds, they arrive
/// faster than they end, and measurements are meaningless.
const PILE_UP: (f64, f64) = (0.25, 3.0);

/// The arithmetic of a comparison.
pub struct Sizing {
    jobs: usize,
    files: usize,
    servers: u32,
    file: u64,
    block: u64,
    window: f64,
    /// Seconds of a task's transfers of the median file, written and read, alone.
    transfer_s: f64,
    /// Factor by which computing was lengthened, to compensate for concurrent tasks.
    compute: f64,
    share: f64,
    written: u64,
    /// Bytes per second, reads and writes.
    pub rate: f64,
    /// Peak bytes in memory.
    pub peak: u64,
    peak_blocks: u64,
    /// Mean over peak of all data.
    pub mean: f64,
    /// Mean over peak of one job's data.
    job_mean: f64,
    tasks_at_a_time: f64,
    jobs_at_a_time: f64,
    tail: f64,
    /// Times of all jobs with no data in memory, over those with all data in memory.
    all_disk: f64,
    all_object: f64,
}

/// Figures of a run with unlimited memory.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// Seconds from the first arrival to the last.
    pub window: f64,
    /// Mean bytes in memory.
    pub mean: f64,
    /// Peak bytes in memory.
    pub peak: u64,
    /// Peak blocks in memory.
    pub peak_blocks: u64,
}

/// Totals of a run, in virtual time or on a cluster.
struct Did<'a> {
    seconds: &'a [f64],
    written: u64,
    moved: u64,
    transfer_s: f64,
    compute_s: f64,
}

impl Sizing {
    /// The arithmetic of a load, from a run in virtual time with unlimited memory.
    pub fn simulated(load: &Load, run: &Run, compute: f64) -> Sizing {
        let summary = Summary {
            window: run.window,
            mean: run.mean(),
            peak: run.peak,
            peak_blocks: run.peak_blocks,
        };
        let did = Did {
            seconds: &run.seconds,
            written: run.written,
            moved: run.moved,
            transfer_s: run.transfer_s,
            compute_s: run.compute_s,
        };
        Sizing::of(load, did, summary, compute)
    }

    /// The same from a run on a cluster.
    pub fn measured(load: &Load, run: &Carried, summary: Summary, compute: f64) -> Sizing {
        let did = Did {
            seconds: &run.seconds,
            written: run.written,
            moved: run.written + run.read,
            transfer_s: run.transfer_s,
            compute_s: run.compute_s,
        };
        Sizing::of(load, did, summary, compute)
    }

    fn of(load: &Load, did: Did<'_>, summary: Summary, compute: f64) -> Sizing {
        let cost = load.conditions.cost;
        let count = load.jobs.len().max(1) as f64;
        let profiles = load.jobs.iter().map(|job| job.profile(cost));
        let job_mean = profiles.map(|p| p.mean / p.peak.max(1) as f64).sum::<f64>() / count;
        let window = summary.window.max(1e-9);
        let all: f64 = did.seconds.iter().sum();
        // Always in virtual time, where only transfers count.
        let without = |policy, memory| {
            let setup = Setup { memory, compute, ..Setup::of(policy) };
            simulate(&load.jobs, load.conditions, setup).seconds.iter().sum::<f64>()
        };
        let with = without(Policy::Block, None).max(1e-9);
        let ends = did.seconds.iter().zip(&load.jobs).map(|(took, job)| job.arrival + took);
        Sizing {
            jobs: load.jobs.len(),
            files: load.jobs.iter().map(|job| job.tasks().count()).sum(),
            servers: load.conditions.servers,
            file: load.file,
            block: load.conditions.block,
            window,
            transfer_s: cost.writes(load.file) + cost.reads(load.file, 1),
            compute,
            share: did.transfer_s / (did.transfer_s + did.compute_s).max(1e-12),
            written: did.written,
            rate: did.moved as f64 / window,
            peak: summary.peak,
            peak_blocks: summary.peak_blocks,
            mean: summary.mean / summary.peak.max(1) as f64,
            job_mean,
            tasks_at_a_time: (did.transfer_s + did.compute_s) / window,
            jobs_at_a_time: all / window,
            tail: ends.fold(0.0, f64::max) - load.jobs.last().map_or(0.0, |job| job.arrival),
            all_disk: without(Policy::JobPeak, Some(0)) / with,
            all_object: without(Policy::Static, Some(0)) / with,
        }
    }

    /// The reason why the figures would mean little, if any.
    pub fn unsound(&self) -> Option<String> {
        if self.piles_up() {
            return Some(format!(
                "jobs pile up: with unlimited memory, they continue for {:.1} s after the window \
                 of {:.1} s; use fewer bytes (--peak), or an idle machine",
                self.tail, self.window
            ));
        }
        (self.jobs < 20 || self.peak_blocks < 100).then(|| {
            format!(
                "{} jobs with {} blocks at the peak are too few: a single job changes the result",
                self.jobs, self.peak_blocks
            )
        })
    }

    fn piles_up(&self) -> bool {
        self.tail > self.window * PILE_UP.0 + PILE_UP.1
    }

    /// The text for people.
    pub fn text(&self) -> String {
        let lives = self.mean * self.peak as f64 / (self.written as f64 / self.window);
        let mb = |v: f64| format!("{} MB", number(v / 1e6));
        let each = self.rate / f64::from(self.servers);
        let verdict = if each <= RATE_MOST * 1.05 { "within" } else { "OVER" };
        format!(
            "files of {} (median) in blocks of {}; {} jobs of {:.1} files in {:.0} s on {} \
             server(s)\na task: transfers of {:.1} ms are {:.0} % of its time, so it takes {:.0} \
             ms; computing takes {:.2} times what its transfers alone would ask for\nrate: {}/s \
             both ways, {}/s for each disk's server ({verdict} the {}/s at which a disk can still \
             keep up); so {:.1} tasks of {:.1} jobs run at a time\nalive: a byte lives {:.2} s, so \
             {} on average and {} ({} blocks) at the peak: mean use {:.0} % of the peak for all, \
             {:.0} % for a job alone\nbounds: without any memory all jobs together take {:.2} \
             times as long on disk and {:.2} times as long in the object store",
            size::show(self.file),
            size::show(self.block),
            self.jobs,
            self.files as f64 / self.jobs.max(1) as f64,
            self.window,
            self.servers,
            self.transfer_s * 1e3,
            self.share * 100.0,
            self.transfer_s / TRANSFER_SHARE * 1e3,
            self.compute,
            mb(self.rate),
            mb(each),
            mb(RATE_MOST),
            self.tasks_at_a_time,
            self.jobs_at_a_time,
            lives,
            mb(self.mean * self.peak as f64),
            mb(self.peak as f64),
            self.peak_blocks,
            self.mean * 100.0,
            self.job_mean * 100.0,
            self.all_disk,
            self.all_object,
        )
    }

    /// The JSON fields that are added to each line of results.
    pub fn json(&self) -> Value {
        json!({
            "servers": self.servers, "file_median_bytes": self.file, "block_bytes": self.block,
            "peak_bytes": self.peak, "rate_bytes_per_s": self.rate.round(),
            "mean_of_peak": cut(self.mean), "job_mean_of_peak": cut(self.job_mean),
            "tasks_at_a_time": cut(self.tasks_at_a_time), "all_on_disk": cut(self.all_disk),
            "all_in_object_store": cut(self.all_object), "seconds": cut(self.window),
            "piles_up": self.piles_up(), "compute_lengthened": cut(self.compute),
        })
    }
}

/// Rounds to four digits after the point.
pub fn cut(v: f64) -> f64 {
    (v * 1e4).round() / 1e4
}
