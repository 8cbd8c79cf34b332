//! `bench pressure`: jobs with less memory than they need, under three policies (Figure 9).
//!
//! Only the policy differs: the assignment of memory, the place of data that does not fit, and the time when
//! memory is freed. `sizing` computes the expected figures from the conditions. `world` runs the jobs in
//! virtual time, where `blocks` gets blocks from the catalog; `real` runs them on a cluster. `figures` prints
//! and draws the results.

mod blocks;
mod figures;
mod keep;
mod objects;
mod real;
mod sizing;
mod world;

use super::process::machine;
use super::trace::{QUICK, bar};
use clap::{Args, ValueEnum};
use figures::{Found, Point};
use honeycomb::failure::{CommandResult, Failure};
use honeycomb::output::Output;
use honeycomb::say;
use honeycomb::size;
use honeycomb_types::PolicyKind;
use honeycomb_workload::{Demand, Fit, JobPlan, Shape, TransferCost, fitted_hours, mapreduce};
use sizing::Sizing;
use std::path::PathBuf;
use std::thread;
use world::{Conditions, Run, Setup, simulate};

/// Capacities, as shares of the peak.
const CAPACITIES: [u32; 6] = [100, 80, 60, 40, 20, 10];
/// Capacities of a quick run.
const CAPACITIES_QUICK: [u32; 3] = [100, 60, 20];
/// The disk: bytes per second of reads and writes together, and seconds for each request.
const DISK: (f64, f64) = (500e6, 0.1e-3);
/// The object store, as ATC '18 measured S3: seconds until a read and a write begin, and bytes per
/// second of one connection.
const OBJECT: (f64, f64, f64) = (12.1e-3, 25.8e-3, 70e6);
/// Bytes per second of a simulated server's network: 10 Gb/s.
const NETWORK: f64 = 1.25e9;
/// Bytes per second of a memory server on this machine, which shares two cores with its clients.
const LOOPBACK: f64 = 1.2e9;
/// Factor by which the reservation of a job exceeds its peak.
const HEADROOM: f64 = 1.05;
/// Maximum peak of a quick run's level.
const QUICK_PEAK: u64 = 24 << 20;
/// Maximum bytes per second, reads and writes together, for each disk: with more, no policy that uses the
/// disk can keep up when little memory is left.
const RATE_MOST: f64 = 0.8 * DISK.0;
/// Seconds of a file besides its transfers: to create it and to find it.
const FILE_S: f64 = 0.4e-3;
/// Hours of a full-scale run: the paper's window.
const HOURS: u32 = 5;
const SECONDS_HOUR: f64 = 3600.0;

/// Compares three ways to share too little memory among MapReduce-like jobs.
///
/// The load is an hour of tenants' intermediate data, compressed: jobs with stages whose tasks read, compute
/// and write files. Transfers take 30 % of a task's time when all data is in memory. `static` is one pool
/// with an object store as lower tier (like ElastiCache). `job-peak` reserves each job's peak until the job
/// ends, with disks as lower tier (like Pocket). `block` is Honeycomb's policy: memory is assigned block by
/// block, with the servers' disks as lower tier. In virtual time, the catalog's code assigns the blocks.
/// Capacities are fractions of the peak use of all jobs together; slowdowns are relative to the policy's own
/// run at 100 %. On a cluster, a redis-server also runs the same jobs, with the object store for values that
/// it refuses. The disk and the object store are folders in the system's temporary directory with a fixed
/// speed, so that results are comparable; with `--unshaped` they run at their own speed.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench pressure --quick --policy static --capacity 60
  honeycomb bench pressure --simulate --quick
  honeycomb bench pressure --simulate --quick --json
  honeycomb bench pressure --simulate --quick --out figures
  honeycomb bench pressure --simulate --quick --full --jobs 500")]
pub struct PressureArgs {
    /// Run in virtual time, without a cluster: shows the limit that the conditions set
    #[arg(long)]
    simulate: bool,
    /// Run nothing: draw the figure of an earlier run from its CSV data
    #[arg(long, value_name = "CSV", conflicts_with_all = ["simulate", "unshaped"])]
    redraw: Option<PathBuf>,
    /// Run the disk and the object store at this machine's speed
    #[arg(long, conflicts_with = "simulate")]
    unshaped: bool,
    /// Run the paper's experiment, as far as it is published: 100 tenants, 5 hours, blocks of 128 MiB, and as
    /// many servers as the load needs
    #[arg(
        long,
        requires = "simulate",
        conflicts_with_all = ["seconds", "peak", "tenants", "file", "block_size"]
    )]
    full: bool,
    /// Approximate number of jobs at full scale
    #[arg(long, default_value_t = 50_000, requires = "full")]
    jobs: u32,
    /// Policies to compare (default: static,job-peak,block)
    #[arg(long, value_enum, value_delimiter = ',')]
    policy: Vec<Policy>,
    /// Do not run the same jobs on a redis-server with the object store as its overflow
    #[arg(long)]
    no_redis: bool,
    /// Capacities in percent of the peak; 100 always runs, because slowdowns are relative to it
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100))]
    capacity: Vec<u32>,
    /// Seconds into which the hour is compressed
    #[arg(long, default_value_t = 18.0)]
    seconds: f64,
    /// Peak of the load's target level
    #[arg(long, value_parser = size::parse, default_value = "44MiB")]
    peak: u64,
    /// Number of tenants
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tenants: u32,
    /// Seed of the load
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Median size of a file
    #[arg(long, value_parser = size::parse, default_value = "4MiB")]
    file: u64,
    /// Size of a block; at most a sixteenth of the median file
    #[arg(long, value_parser = size::parse, default_value = "256KiB")]
    block_size: u64,
    /// In virtual time, bytes per second of one task's reads from memory (default: 1000MiB)
    #[arg(long, value_parser = size::parse)]
    read_rate: Option<u64>,
    /// In virtual time, bytes per second of one task's writes to memory (default: 300MiB; 1000MiB at full
    /// scale)
    #[arg(long, value_parser = size::parse)]
    write_rate: Option<u64>,
    /// Run for at most a minute: a check that it works, not a measurement
    #[arg(long)]
    quick: bool,
    /// Folder for the figures: a PNG and its data as CSV
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// The assignment of memory, the place of data that does not fit, and the time when memory is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// One pool; files that do not fit go to the object store
    Static,
    /// The same, but files stay until their job ends, as without lifetimes
    StaticKeeps,
    /// A job's peak is reserved until it ends; a job that does not fit goes to disk
    JobPeak,
    /// Memory is assigned block by block; blocks that do not fit go to the servers' disks
    Block,
    /// The same with max-min fair shares of tenants
    BlockMaxMin,
    /// The same with Karma: a tenant that used less than its share earlier may use more
    BlockKarma,
}

impl Policy {
    /// The name on the command line.
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

    /// The catalog's policy, if the catalog assigns the blocks.
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
pub fn run(args: &PressureArgs) -> CommandResult {
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
    // Concurrent tasks make transfers longer: computing is lengthened to keep the fraction of transfers.
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

/// Measures on a cluster, and prints the results of virtual time beside it.
fn on_a_cluster(args: &PressureArgs) -> CommandResult {
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
                "the same run twice, with room to spare and with just enough: {twice:.2} times as \
                    long"
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
    // Virtual time has its own calibration, because its tasks interfere differently.
    let bare = Setup::of(Policy::Block);
    let again = simulate(&load.jobs, load.conditions, bare).compute_for_share();
    let predicted = predict(&args.policies(), &args.capacities(), load, again, *peak);
    say!("\nmean slowdown of the same jobs in virtual time, with these transfer costs:");
    for policy in args.policies() {
        let mine = predicted.iter().filter(|point| point.policy == policy.name());
        let all: Vec<String> =
            mine.map(|p| format!("{:.2} at {} %", p.slowdown.mean, p.capacity_pct)).collect();
        say!("{}: {}", policy.name(), all.join(", "));
    }
    Ok(())
}

/// The cost of transfers in virtual time.
fn nominal(args: &PressureArgs) -> TransferCost {
    let write = if args.full { 1000 << 20 } else { 300 << 20 };
    let (read, write) = (args.read_rate.unwrap_or(1000 << 20), args.write_rate.unwrap_or(write));
    TransferCost { read: read as f64, write: write as f64, file_s: FILE_S }
}

fn check(args: &PressureArgs) -> CommandResult {
    if !(1.0..=86_400.0).contains(&args.seconds) {
        return Err(Failure::invalid("--seconds must be 1 to 86400"));
    }
    if !args.simulate && (args.read_rate.is_some() || args.write_rate.is_some()) {
        let text =
            "--read-rate and --write-rate need --simulate: on a cluster the rates are measured";
        return Err(Failure::invalid(text));
    }
    let cost = nominal(args);
    if cost.read <= 0.0 || cost.write <= 0.0 || (!args.full && args.peak < args.file) {
        return Err(Failure::invalid("rates must be above 0, and --peak at least one file"));
    }
    if !args.full && (args.block_size == 0 || args.file / 16 < args.block_size) {
        let text = format!(
            "blocks of {} are too large for files of {}: use at most a sixteenth of the median \
                file",
            size::show(args.block_size),
            size::show(args.file)
        );
        return Err(Failure::invalid(text));
    }
    Ok(())
}

/// The jobs, and the costs of their operations.
fn load(args: &PressureArgs, cost: TransferCost) -> CommandResult<Load> {
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
            let seconds = if args.quick { args.seconds.min(QUICK) } else { args.seconds };
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

/// About the requested number of jobs, over five hours of a hundred tenants. A first, small run estimates the
/// number of jobs for a level.
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

    /// The capacities: 100 first, then the others, each once.
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

/// Runs every policy at every capacity in virtual time, with a thread for each policy.
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
