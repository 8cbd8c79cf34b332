//! `bench pressure`: jobs that have less memory than they need, under three policies (Figure 9).
//!
//! Only the policy differs: who gets memory, where data goes that has none, and when memory is given
//! back. `sizing` says what follows from the conditions before anything runs, `world` carries the
//! jobs out in virtual time, where `blocks` asks the catalog for them, `real` on a cluster; `figures`
//! tells and draws what came out.

mod blocks;
mod figures;
mod keep;
mod objects;
mod real;
mod sizing;
mod world;

use super::process::machine;
use super::trace::bar;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::size;
use clap::{Args, ValueEnum};
use figures::{Found, Point};
use honeycomb_load::{Demand, Fit, JobPlan, Shape, TransferCost, fitted_hours, mapreduce};
use honeycomb_types::PolicyKind;
use sizing::Sizing;
use std::path::PathBuf;
use std::thread;
use world::{Conditions, Run, Setup, simulate};

/// Capacities, as shares of the peak.
const CAPACITIES: [u32; 6] = [100, 80, 60, 40, 20, 10];
/// Those of a quick run.
const CAPACITIES_QUICK: [u32; 3] = [100, 60, 20];
/// The disk: bytes per second both ways together, and seconds for each request.
const DISK: (f64, f64) = (500e6, 0.1e-3);
/// The object store, as ATC '18 measured S3: seconds until a read and a write begin, and bytes per
/// second of one connection.
const OBJECT: (f64, f64, f64) = (12.1e-3, 25.8e-3, 70e6);
/// Bytes per second of a server's network, where servers are simulated: 10 Gb/s.
const NETWORK: f64 = 1.25e9;
/// Of a memory server on this machine, which shares two cores with its clients.
const LOOPBACK: f64 = 1.2e9;
/// What a reservation of a job's peak is given besides.
const HEADROOM: f64 = 1.05;
/// Peak of a quick run's level, at most.
const QUICK_PEAK: u64 = 24 << 20;
/// Most bytes per second, both ways, for each disk: more, and no policy that uses the disk can keep
/// up when little memory is left.
const RATE_MOST: f64 = 0.8 * DISK.0;
/// Seconds that a file costs besides its bytes: to make it and to find it.
const FILE_S: f64 = 0.4e-3;
/// What full scale is: the paper's window.
const HOURS: u32 = 5;
const SECONDS_HOUR: f64 = 3600.0;

/// Compares three ways to share too little memory among MapReduce-like jobs.
///
/// An hour of tenants' intermediate data, compressed, as jobs of stages whose tasks read, compute and
/// write files; transfers are 30 % of a task's time when all data is in memory. `static` is one pool
/// with the object store below it (the way of ElastiCache), `job-peak` reserves each job's peak until
/// the job ends and has disks below (the way of Pocket), `block` is Honeycomb's: block by block, with
/// the servers' disks for what finds no memory. In virtual time the catalog's own code gives the blocks.
/// Capacities are shares of the most that all jobs together hold; slowdowns are relative to the
/// policy's own run at 100 %. On a cluster, beside it, a redis-server gets the same jobs, with the
/// object store for what it refuses. The disk and the object store are shaped, so that they are the same
/// everywhere: both are folders of the system's temporary ones, and with `--unshaped` as fast as
/// these.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench pressure --quick --policy static --capacity 60
  honeycomb bench pressure --simulate --quick
  honeycomb bench pressure --simulate --quick --json
  honeycomb bench pressure --simulate --quick --out figures
  honeycomb bench pressure --simulate --quick --full --jobs 500")]
pub struct PressureArgs {
    /// In virtual time, without a cluster: what the conditions allow
    #[arg(long)]
    simulate: bool,
    /// Run nothing: draw the figure of an earlier run again, beside the data that it left
    #[arg(long, value_name = "CSV", conflicts_with_all = ["simulate", "unshaped"])]
    redraw: Option<PathBuf>,
    /// Leave the disk and the object store as fast as this machine has them
    #[arg(long, conflicts_with = "simulate")]
    unshaped: bool,
    /// The size of the paper's experiment, as far as it is published: 100 tenants, 5 hours, blocks
    /// of 128 MiB, and as many servers as the load needs
    #[arg(
        long,
        requires = "simulate",
        conflicts_with_all = ["seconds", "peak", "tenants", "file", "block_size"]
    )]
    full: bool,
    /// About how many jobs at full scale
    #[arg(long, default_value_t = 50_000, requires = "full")]
    jobs: u32,
    /// Policies to compare (static,job-peak,block)
    #[arg(long, value_enum, value_delimiter = ',')]
    policy: Vec<Policy>,
    /// Leave out the redis-server that gets the same jobs, with the object store as its overflow
    #[arg(long)]
    no_redis: bool,
    /// Memory, in percent of the peak; 100 always runs, because slowdowns are relative to it
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100))]
    capacity: Vec<u32>,
    /// Seconds into which the hour is compressed
    #[arg(long, default_value_t = 18.0)]
    seconds: f64,
    /// Peak of the level that the jobs' data follows
    #[arg(long, value_parser = size::parse, default_value = "44MiB")]
    peak: u64,
    /// Tenants
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tenants: u32,
    /// Decides the load
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Median of a file's bytes
    #[arg(long, value_parser = size::parse, default_value = "4MiB")]
    file: u64,
    /// Bytes of a block; at most a sixteenth of the median file
    #[arg(long, value_parser = size::parse, default_value = "256KiB")]
    block_size: u64,
    /// In virtual time, bytes per second of one task that reads from memory (1000MiB)
    #[arg(long, value_parser = size::parse)]
    read_rate: Option<u64>,
    /// In virtual time, bytes per second of one task that writes to memory (300MiB; blocks of full scale 1000MiB)
    #[arg(long, value_parser = size::parse)]
    write_rate: Option<u64>,
    /// A minute at most: to see that it runs, not to quote
    #[arg(long)]
    quick: bool,
    /// Folder for the figures: a PNG and its data as CSV
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// Who gets memory, where data goes that has none, and when memory is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// One pool; what finds no room in it goes to the object store
    Static,
    /// The same, and what was read stays until its job ends, as without lifetimes
    StaticKeeps,
    /// A job's peak is reserved until it ends; a job for which there is no room goes to disk
    JobPeak,
    /// Block by block; what finds no memory goes to the servers' disks
    Block,
    /// The same under max-min fair shares of tenants
    BlockMaxMin,
    /// The same under Karma: who held less than its share before may hold more
    BlockKarma,
}

impl Policy {
    /// As on the command line.
    fn name(self) -> &'static str {
        match self {
            Policy::Static => "static",
            Policy::StaticKeeps => "static-keeps",
            Policy::JobPeak => "job-peak",
            Policy::Block => "block",
            Policy::BlockMaxMin => "block-max-min",
            Policy::BlockKarma => "block-karma",
        }
    }

    /// By which the catalog shares memory out, where blocks are its to give.
    fn sharing(self) -> Option<PolicyKind> {
        match self {
            Policy::Static | Policy::StaticKeeps | Policy::JobPeak => None,
            Policy::Block => Some(PolicyKind::FirstCome),
            Policy::BlockMaxMin => Some(PolicyKind::MaxMin),
            Policy::BlockKarma => Some(PolicyKind::Karma),
        }
    }
}

/// The load of a comparison, and its conditions.
struct Load {
    demand: Demand,
    jobs: Vec<JobPlan>,
    file: u64,
    conditions: Conditions,
}

/// `honeycomb bench pressure`.
pub fn run(args: &PressureArgs) -> Outcome {
    if let Some(data) = &args.redraw {
        return figures::redraw(data);
    }
    check(args)?;
    if !args.simulate {
        return on_a_cluster(args);
    }
    let load = load(args, nominal(args))?;
    let bare = Setup::of(Policy::Block);
    let first = simulate(&load.jobs, load.conditions, bare);
    // What tasks do to each other makes transfers longer: computing is lengthened to match.
    let compute = first.compute_for_share();
    let unconstrained = simulate(&load.jobs, load.conditions, Setup { compute, ..bare });
    let sizing = Sizing::simulated(&load, &unconstrained, compute);
    if !args.output.json {
        say!("{}", sizing.text());
        if let Some(why) = sizing.unsound() {
            say!("{why}");
        }
    }
    let peak = unconstrained.peak_blocks * load.conditions.block;
    let points = predict(&args.policies(), &args.capacities(), &load, compute, peak);
    let about = machine();
    let found = Found {
        simulated: true,
        shaped: true,
        twice: None,
        disk: None,
        load: &load,
        sizing: &sizing,
        points: &points,
        peak,
        about: &about,
    };
    found.tell(args.output, args.out.as_deref())
}

/// Measures, and says beside it what virtual time would have said.
fn on_a_cluster(args: &PressureArgs) -> Outcome {
    let about = machine();
    if !args.output.json {
        say!("{about}; not pinned: the kernel places all sides");
    }
    let measured = real::measure(args, |cost| load(args, cost))?;
    let real::Measured { load, cost, sizing, points, missing, peak, twice, disk } = &measured;
    if !args.output.json {
        say!("{}", real::cost(*cost));
        missing.iter().for_each(|missing| say!("{}", real::told(missing)));
        if let Some(twice) = twice {
            say!(
                "the same run twice, with room to spare and with just enough: {twice:.2} times as long"
            );
        }
        let slow = *disk < DISK.0 && !args.unshaped;
        let slow = if slow { ", SLOWER THAN ITS SHAPE: runs took its time" } else { "" };
        say!("the disk of {} alone: {:.0} MB/s{slow}", std::env::temp_dir().display(), disk / 1e6);
    }
    let found = Found {
        simulated: false,
        shaped: !args.unshaped,
        twice: *twice,
        disk: Some(*disk),
        load,
        sizing,
        points,
        peak: *peak,
        about: &about,
    };
    found.tell(args.output, args.out.as_deref())?;
    if args.output.json || args.unshaped {
        return Ok(());
    }
    // The world's own calibration: its tasks meet each other in another way.
    let bare = Setup::of(Policy::Block);
    let again = simulate(&load.jobs, load.conditions, bare).compute_for_share();
    let predicted = predict(&args.policies(), &args.capacities(), load, again, *peak);
    say!("\nof the same jobs in virtual time, by these transfers, mean slowdown:");
    for policy in args.policies() {
        let mine = predicted.iter().filter(|point| point.policy == policy.name());
        let all: Vec<String> =
            mine.map(|p| format!("{:.2} at {} %", p.slowdown.mean, p.capacity_pct)).collect();
        say!("{}: {}", policy.name(), all.join(", "));
    }
    Ok(())
}

/// What transfers take where nothing is measured.
fn nominal(args: &PressureArgs) -> TransferCost {
    let write = if args.full { 1000 << 20 } else { 300 << 20 };
    let (read, write) = (args.read_rate.unwrap_or(1000 << 20), args.write_rate.unwrap_or(write));
    TransferCost { read: read as f64, write: write as f64, file_s: FILE_S }
}

fn check(args: &PressureArgs) -> Outcome {
    if !(1.0..=86_400.0).contains(&args.seconds) {
        return Err(Failure::invalid("--seconds takes 1 to 86400"));
    }
    if !args.simulate && (args.read_rate.is_some() || args.write_rate.is_some()) {
        let text =
            "--read-rate and --write-rate are for --simulate: on a cluster they are measured";
        return Err(Failure::invalid(text));
    }
    let cost = nominal(args);
    if cost.read <= 0.0 || cost.write <= 0.0 || (!args.full && args.peak < args.file) {
        return Err(Failure::invalid("rates are above 0, and --peak has room for a file"));
    }
    if !args.full && (args.block_size == 0 || args.file / 16 < args.block_size) {
        let text = format!(
            "blocks of {} for files of {}: a block is at most a sixteenth of the median file",
            size::show(args.block_size),
            size::show(args.file)
        );
        return Err(Failure::invalid(text));
    }
    Ok(())
}

/// The jobs, and what everything costs.
fn load(args: &PressureArgs, cost: TransferCost) -> Outcome<Load> {
    let (file, block) = match args.full {
        true => (2 << 30, 128 << 20),
        false => (args.file, args.block_size),
    };
    let shape = Shape {
        file,
        file_spread: 0.5,
        stages: (4, 12),
        tasks_spread: 1.0,
        width: 2,
        sources: 0.3,
        joins: 0.5,
        job: 7.0 * file as f64,
        job_spread: 1.0,
    };
    let (demand, jobs) = match args.full {
        false => {
            let hour = fitted_hours(Fit { seed: args.seed, tenants: args.tenants }, 1);
            let seconds = if args.quick { args.seconds.min(4.0) } else { args.seconds };
            let peak = if args.quick { args.peak.min(QUICK_PEAK) } else { args.peak };
            let demand = hour.scaled(seconds, peak);
            let jobs = mapreduce(&demand, cost, shape, args.seed);
            (demand, jobs)
        }
        true => full(args, cost, shape),
    };
    let mut conditions = Conditions {
        block,
        servers: 1,
        cost,
        network: LOOPBACK,
        disk: DISK.0,
        disk_request_s: DISK.1,
        object_read_s: OBJECT.0,
        object_write_s: OBJECT.1,
        object: OBJECT.2,
    };
    if args.full {
        let moved: u64 = jobs.iter().map(|job| job.written() + job.read()).sum();
        let rate = moved as f64 / demand.window;
        conditions.servers = (rate / RATE_MOST).ceil().max(1.0) as u32;
        conditions.network = NETWORK;
    }
    Ok(Load { demand, jobs, file, conditions })
}

/// About as many jobs as are asked for, over five hours of a hundred tenants. A first, small try
/// tells how many jobs a level makes.
fn full(args: &PressureArgs, cost: TransferCost, shape: Shape) -> (Demand, Vec<JobPlan>) {
    let fit = Fit { seed: args.seed, tenants: 100 };
    let hours = fitted_hours(fit, HOURS);
    let seconds = f64::from(HOURS) * SECONDS_HOUR;
    let wanted = if args.quick { args.jobs.min(500) } else { args.jobs };
    let mut peak = 64.0 * shape.file as f64;
    for _ in 0..4 {
        let jobs = mapreduce(&hours.scaled(seconds, peak as u64), cost, shape, args.seed).len();
        peak *= f64::from(wanted) / jobs.max(1) as f64;
        peak = peak.max(4.0 * shape.file as f64);
    }
    let demand = hours.scaled(seconds, peak as u64);
    let jobs = mapreduce(&demand, cost, shape, args.seed);
    (demand, jobs)
}

impl PressureArgs {
    fn policies(&self) -> Vec<Policy> {
        match self.policy.is_empty() {
            true => vec![Policy::Static, Policy::JobPeak, Policy::Block],
            false => self.policy.clone(),
        }
    }

    /// 100 first, then the others, each once.
    fn capacities(&self) -> Vec<u32> {
        let mut capacities = match (self.capacity.is_empty(), self.quick) {
            (true, true) => CAPACITIES_QUICK.to_vec(),
            (true, false) => CAPACITIES.to_vec(),
            (false, _) => self.capacity.clone(),
        };
        capacities.push(100);
        capacities.sort_by(|a, b| b.cmp(a));
        capacities.dedup();
        capacities
    }
}

/// Every policy at every capacity, in virtual time: a thread for each policy.
fn predict(
    policies: &[Policy],
    capacities: &[u32],
    load: &Load,
    compute: f64,
    peak: u64,
) -> Vec<Point> {
    let progress = bar("in virtual time", (policies.len() * capacities.len()) as u64);
    let of_policy = |policy: Policy| -> Vec<(u64, Run)> {
        let run = |pct: &u32| {
            let memory = peak * u64::from(*pct) / 100;
            let setup = Setup { memory: Some(memory), compute, ..Setup::of(policy) };
            let run = simulate(&load.jobs, load.conditions, setup);
            progress.inc(1);
            (memory, run)
        };
        capacities.iter().map(run).collect()
    };
    let runs: Vec<(Policy, Vec<(u64, Run)>)> = thread::scope(|scope| {
        let of_policy = &of_policy;
        let threads: Vec<_> =
            policies.iter().map(|p| (*p, scope.spawn(move || of_policy(*p)))).collect();
        let joined = threads.into_iter().map(|(p, t)| (p, t.join().expect("a run does not panic")));
        joined.collect()
    });
    progress.finish_and_clear();
    let ours = runs.iter().find(|(policy, _)| *policy == Policy::Block);
    let ours: Option<Vec<f64>> = ours.map(|(_, runs)| runs[0].1.seconds.clone());
    let mut points = Vec::new();
    for (policy, runs) in &runs {
        let base = &runs[0].1.seconds;
        for (pct, (memory, run)) in capacities.iter().zip(runs) {
            points.push(Point {
                policy: policy.name(),
                capacity_pct: *pct,
                slowdown: figures::Slowdown::of(&run.seconds, base),
                seconds: run.seconds.clone(),
                to_block: ours.as_ref().map(|ours| figures::Slowdown::of(&run.seconds, ours).sums),
                utilisation: run.mean() / (*memory).max(1) as f64,
                allocated: None,
                spilled_disk: run.disk_written,
                spilled_object: run.object_written,
                written: run.written,
                jobs: run.seconds.len(),
                unfinished: 0,
                compared: None,
                transfer_share: run.transfer_share(),
            });
        }
    }
    points
}

#[cfg(test)]
mod tests;
