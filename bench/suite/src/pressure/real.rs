//! The comparison on a real cluster with real clients, and on a redis-server.
//!
//! First it measures a task's transfers alone and generates the jobs from them. The jobs then run with all
//! the memory that they need. This run measures their peak, and how much longer transfers take with
//! concurrent tasks, so that computing can be lengthened until transfers have their fraction again. Then each
//! policy runs with each capacity.

use super::figures::{Point, Slowdown};
use super::keep::{Held, Ours, Reservations, Theirs};
use super::objects::Objects;
use super::sizing::Sizing;
use super::world::Conditions;
use super::{Load, Policy, PressureArgs, figures};
use crate::cluster::Cluster;
use crate::disk::{self, Folder};
use crate::process::Pinning;
use crate::redis::{self, Redis};
use crate::trace::{bar, steps};
use crate::{Pool, Transport, Waiting};
use honeycomb::failure::{CommandResult, Failure};
use honeycomb::say;
use honeycomb::size;
use honeycomb_client::Client;
use honeycomb_env::Clock;
use honeycomb_types::Time;
use honeycomb_types::limits::{
    BELOW_BYTES, BELOW_FRACTION, REPORT_INTERVAL, RESERVE_BLOCKS_MIN, RESERVE_FRACTION, TIER_PIECE,
    WARM_BLOCKS_MIN, WARM_FRACTION,
};
use honeycomb_wire::Status;
use honeycomb_workload::{
    Carried, JobPlan, Keep, Pace, Read, StagePlan, TRANSFER_SHARE, TaskPlan, TransferCost, carry,
};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Threads that run the tasks, which mostly sleep: more than run at a time, even when jobs pile up.
const THREADS: usize = 128;
/// How long a run continues after the last arrival.
const PATIENCE: Duration = Duration::from_secs(8);
/// Range of the transfers' fraction of a task's time for which no second calibration is needed.
const SHARE: (f64, f64) = (0.27, 0.33);
/// Interval of memory samples.
const EVERY: Duration = Duration::from_millis(20);
/// Number of files in the measurement of transfers alone.
const PROBES: u32 = 24;
/// Bytes in the measurement of the disk alone.
const DISK_BYTES: u64 = 256 << 20;
/// Fraction of tasks' time waiting for a thread above which the run prints a warning.
const QUEUED: f64 = 0.01;

/// The system that runs the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Our cluster.
    Ours(Policy),
    /// A redis-server, with the object store as its overflow.
    Redis,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Who::Ours(policy) => policy.name(),
            Who::Redis => "redis",
        }
    }

    /// The reason why it cannot be measured here, if any.
    fn lacks(self) -> Option<String> {
        match self {
            Who::Ours(policy) => lacks(policy).map(str::to_owned),
            Who::Redis => match redis::version() {
                Some(_) => None,
                None => Some("there is no redis-server on the path".to_owned()),
            },
        }
    }

    fn run(
        self,
        args: &PressureArgs,
        load: &Load,
        compute: f64,
        memory: u64,
        what: &str,
    ) -> CommandResult<Ran> {
        match self {
            Who::Ours(policy) => run_ours(args, load, policy, compute, Some(memory), what),
            Who::Redis => run_redis(args, load, compute, memory, what),
        }
    }
}

/// Results that cannot be measured, and the reason.
pub struct Missing {
    /// Policy or system.
    pub who: &'static str,
    /// Capacities.
    pub capacities: Vec<u32>,
    /// Reason.
    pub why: String,
}

/// The results of a comparison on a real cluster.
pub struct Measured {
    /// The load.
    pub load: Load,
    /// The arithmetic of the load.
    pub sizing: Sizing,
    /// The results by policy and capacity.
    pub points: Vec<Point>,
    /// Results that could not be measured.
    pub missing: Vec<Missing>,
    /// Bytes of a capacity of 100 %.
    pub peak: u64,
    /// Cost of a task's transfers alone.
    pub cost: TransferCost,
    /// Time of `block` at 100 % over that of the calibration, which is the same run with spare memory: the
    /// variation of the machine.
    pub twice: Option<f64>,
    /// Bytes per second of the disk alone.
    pub disk: f64,
}

/// One run.
struct Ran {
    carried: Carried,
    /// Integral of bytes in memory while jobs arrived: live data, as counted by clients (a server reports
    /// four times a second, which is as long as a file lives).
    used: f64,
    /// The same for owned blocks, or for the memory that redis-server counts against its limit.
    allocated: f64,
    peak_blocks: u64,
    peak_bytes: u64,
    /// Bytes that servers wrote to their disks, as counted by the servers.
    spilled_disk: u64,
    spilled_object: u64,
}

/// Integrals over the time during which jobs arrive, and a sum.
#[derive(Clone, Copy, Debug, Default)]
struct Looked {
    used: f64,
    allocated: f64,
}

/// The reason why a policy cannot be measured; `None` if it can.
fn lacks(policy: Policy) -> Option<&'static str> {
    match policy {
        Policy::Static | Policy::JobPeak | Policy::Block => None,
        Policy::StaticKeeps | Policy::BlockMaxMin | Policy::BlockKarma => {
            Some("it exists in virtual time only")
        }
    }
}

/// Refuses policies that are named on the command line but cannot be measured.
fn refuse(args: &PressureArgs) -> CommandResult {
    let lacking = args.policy.iter().find_map(|policy| Some((policy, lacks(*policy)?)));
    lacking.map_or(Ok(()), |(policy, why)| {
        let text = format!("{} cannot be measured: {why}", policy.name());
        Err(Failure::new(Status::InvalidArgument, text))
    })
}

/// Runs the measurement. `make` creates the load for the measured cost.
pub fn measure(
    args: &PressureArgs,
    make: impl Fn(TransferCost) -> CommandResult<Load>,
) -> CommandResult<Measured> {
    refuse(args)?;
    let (disk, _) = disk::alone(&Folder::new(None)?, DISK_BYTES, TIER_PIECE, TIER_PIECE)?;
    let nominal = make(super::nominal(args))?;
    let cost = probe(args, &nominal)?;
    let mut load = make(cost)?;
    let mut compute = 1.0;
    let mut free = run_ours(args, &load, Policy::Block, 1.0, None, "calibration")?;
    let share = free.carried.transfer_share();
    if !(SHARE.0..=SHARE.1).contains(&share) {
        // New jobs are generated from the cost of transfers with concurrent tasks. Lengthening the same jobs
        // would run more of them at a time, and that would make their transfers longer again.
        compute = share / (1.0 - share) * (1.0 - TRANSFER_SHARE) / TRANSFER_SHARE;
        let TransferCost { read, write, file_s } = cost;
        load = make(TransferCost {
            read: read / compute,
            write: write / compute,
            file_s: file_s * compute,
        })?;
        free = run_ours(args, &load, Policy::Block, 1.0, None, "calibration again")?;
    }
    let sizing = Sizing::measured(&load, &free.carried, free.summary(&load), compute);
    if !args.output.json {
        say!("{}", sizing.text());
        if let Some(why) = sizing.unsound() {
            say!("{why}");
        }
    }
    let peak = free.peak_blocks * load.conditions.block;
    let mut points = Vec::new();
    let mut missing: Vec<Missing> = Vec::new();
    let beside = (!args.no_redis && args.policy.is_empty()).then_some(Who::Redis);
    let mut ours = None;
    for who in args.policies().into_iter().map(Who::Ours).chain(beside) {
        let mut base: Option<Vec<f64>> = None;
        for pct in args.capacities() {
            if let Some(why) = who.lacks() {
                let same = |told: &&mut Missing| told.who == who.name() && told.why == why;
                match missing.iter_mut().find(same) {
                    Some(told) => told.capacities.push(pct),
                    None => missing.push(Missing { who: who.name(), capacities: vec![pct], why }),
                }
                continue;
            }
            let memory = peak * u64::from(pct) / 100;
            let ran = who.run(args, &load, compute, memory, &format!("{} at {pct} %", who.name()));
            let ran = match ran {
                Ok(ran) => ran,
                // The point is reported as missing with its reason. At 100 % it is an error, because the
                // other points are relative to it.
                Err(failure) if pct < 100 => {
                    let why = failure.to_string();
                    missing.push(Missing { who: who.name(), capacities: vec![pct], why });
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let seconds = ran.carried.seconds.clone();
            if who == Who::Ours(Policy::Block) && pct == 100 {
                ours = Some(seconds.clone());
            }
            let base = base.get_or_insert(seconds);
            points.push(ran.point(&load, who.name(), pct, memory, base));
        }
    }
    let twice = ours.as_ref().map(|ours| Slowdown::of(ours, &free.carried.seconds).sums);
    let ours = ours.unwrap_or_else(|| free.carried.seconds.clone());
    for point in &mut points {
        point.to_block = Some(Slowdown::of(&point.seconds, &ours).sums);
    }
    Ok(Measured { load, cost, sizing, points, missing, peak, twice, disk })
}

/// Measures transfers alone: of some files, one after the other, each read by the task that writes the next
/// one.
fn probe(args: &PressureArgs, load: &Load) -> CommandResult<TransferCost> {
    let times = |bytes: u64| -> CommandResult<(f64, f64)> {
        let reads = |number| vec![Read { stage: number - 1, task: 0, offset: 0, bytes }];
        let stages = (0..PROBES).map(|number| StagePlan {
            tasks: vec![TaskPlan {
                bytes,
                reads: if number == 0 { vec![] } else { reads(number) },
                compute_s: 0.0,
            }],
            inputs: if number == 0 { vec![] } else { vec![number - 1] },
        });
        let job = JobPlan { tenant: 0, arrival: 0.0, width: 1, stages: stages.collect() };
        let ran = run_jobs(args, load, &[job], Policy::Block, 1.0, None, "transfers alone")?;
        let files = f64::from(PROBES);
        Ok((ran.carried.write_s / files, ran.carried.read_s / (files - 1.0)))
    };
    // Two sizes, to separate the cost of a file from the cost of its bytes.
    let (small, large) = (load.file / 16, load.file);
    let ((write_small, read_small), (write, read)) = (times(small)?, times(large)?);
    let bytes = (large - small) as f64;
    let rate = |small: f64, large: f64| bytes / (large - small).max(bytes / 20e9);
    let cost =
        TransferCost { read: rate(read_small, read), write: rate(write_small, write), file_s: 0.0 };
    let file_s =
        (write_small - small as f64 / cost.write + read_small - small as f64 / cost.read) / 2.0;
    Ok(TransferCost { file_s: file_s.max(0.0), ..cost })
}

fn run_ours(
    args: &PressureArgs,
    load: &Load,
    policy: Policy,
    compute: f64,
    memory: Option<u64>,
    what: &str,
) -> CommandResult<Ran> {
    run_jobs(args, load, &load.jobs, policy, compute, memory, what)
}

/// Runs jobs on a new cluster with this memory for data, plus the blocks that are reserved for moves.
fn run_jobs(
    args: &PressureArgs,
    load: &Load,
    jobs: &[JobPlan],
    policy: Policy,
    compute: f64,
    memory: Option<u64>,
    what: &str,
) -> CommandResult<Ran> {
    let block = load.conditions.block;
    let all: u64 = jobs.iter().map(JobPlan::written).sum::<u64>() / block;
    let files: usize = jobs.iter().map(|job| job.tasks().count()).sum();
    let blocks = match memory {
        Some(memory) => memory / block,
        None => all + 2 * files as u64,
    };
    let below = matches!(policy, Policy::Block | Policy::JobPeak) && memory.is_some();
    let disk = below.then(|| Folder::new(None)).transpose()?;
    let reservations =
        (policy == Policy::JobPeak).then(|| Reservations::of(blocks, load.conditions.cost));
    let blocks = with_reserve(blocks, disk.is_some(), reservations.is_some());
    let pool = Pool { memory: blocks * block, block_size: block };
    // As much as a server accepts with so little memory, but not more than all written data.
    let most = blocks * block / BELOW_FRACTION / BELOW_BYTES;
    let more = disk.as_ref().map_or_else(Vec::new, |disk| {
        let shape = (!args.unshaped).then_some(load.conditions);
        flags(disk, most.min(all + 1) * block, shape)
    });
    let pinning = Pinning::default();
    let cluster = Cluster::with(Transport::Tcp, 1, pool, Waiting::Sleeping, pinning, &more)?;
    let objects = match policy {
        Policy::Static => {
            let made = Objects::new(!args.unshaped);
            Some(made.map_err(|e| Failure::io("cannot create a folder for objects", &e))?)
        }
        _ => None,
    };
    let held = Held::default();
    let client = |token: &[u8]| cluster.client(token);
    let keep = Ours {
        admin: cluster.client(cluster.token()),
        client: &client,
        name: "pressure".into(),
        block,
        objects: objects.as_ref(),
        clock: Clock::start(),
        reservations: reservations.as_ref(),
        held: &held,
    };
    let admin = cluster.client(cluster.token());
    let look = || seen(&admin, block);
    let ran = observe(args, jobs, &keep, compute, &held, &look, what)?;
    let spilled_disk = if disk.is_some() { written_below(&admin)? } else { 0 };
    let spilled_object = objects.as_ref().map_or(0, Objects::written);
    Ok(Ran { spilled_disk, spilled_object, ..ran })
}

/// One sample of the bytes in memory and in lower tiers.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Bytes of owned blocks in memory, or the memory that redis-server counts against its limit.
    allocated: f64,
    /// Bytes of blocks in lower tiers.
    below: f64,
}

fn seen(admin: &Client, block: u64) -> CommandResult<Seen> {
    let status = admin.status()?;
    let below: u64 = status.tiers.iter().map(|tier| tier.used * block).sum();
    Ok(Seen { allocated: status.bytes_allocated as f64, below: below as f64 })
}

/// Bytes that servers wrote to lower tiers, after all of them have reported.
fn written_below(admin: &Client) -> CommandResult<u64> {
    let clock = Clock::start();
    // Long enough for a report that was being sent, and one more.
    clock.sleep_until(clock.now() + 2 * REPORT_INTERVAL);
    let status = admin.status()?;
    Ok(status.tiers.iter().map(|tier| tier.bytes_written).sum())
}

/// The number of blocks for `blocks` blocks of data: plus the blocks that are reserved for moves, plus the
/// write cache for a disk. If `promised` data must stay in memory, plus the blocks that the controller keeps
/// free by demoting others.
pub fn with_reserve(blocks: u64, disk: bool, promised: bool) -> u64 {
    let through = |all: u64| {
        let warm = u64::from(WARM_BLOCKS_MIN).max(all / u64::from(WARM_FRACTION));
        let free = (all / 32).max(2) + 1;
        u64::from(disk) * warm + u64::from(promised) * free
    };
    let kept = |all: u64| u64::from(RESERVE_BLOCKS_MIN).max(all / u64::from(RESERVE_FRACTION));
    let mut all = blocks;
    while all < through(all) + kept(all) + blocks {
        all += 1;
    }
    all
}

/// The arguments of `start` for a disk and its shape.
fn flags(folder: &Folder, bytes: u64, shape: Option<Conditions>) -> Vec<String> {
    let mut flags = folder.flags(bytes);
    if let Some(Conditions { disk, disk_request_s, .. }) = shape {
        flags.push("--disk-shape".into());
        flags.push(format!("{}:{}", disk / 1e6, disk_request_s * 1e3));
    }
    flags
}

fn run_redis(
    args: &PressureArgs,
    load: &Load,
    compute: f64,
    memory: u64,
    what: &str,
) -> CommandResult<Ran> {
    let server = Redis::within(Pinning::default(), Transport::Tcp, Some(memory))?;
    let objects = Objects::new(!args.unshaped)
        .map_err(|e| Failure::io("cannot create a folder for objects", &e))?;
    let held = Held::default();
    let idle = Mutex::default();
    let keep = Theirs { address: server.address(), idle, objects: &objects, held: &held };
    let admin =
        Mutex::new(server.client(Duration::ZERO).map_err(|e| Failure::io("redis-server", &e))?);
    let look = || {
        let mut admin = admin.lock().expect("no other thread holds the lock");
        let used = admin.used_memory().map_err(|e| Failure::io("redis-server", &e))?;
        Ok(Seen { allocated: used as f64, below: 0.0 })
    };
    let ran = observe(args, &load.jobs, &keep, compute, &held, &look, what)?;
    Ok(Ran { spilled_object: objects.written(), ..ran })
}

/// Runs jobs and samples the memory meanwhile.
fn observe<K: Keep>(
    args: &PressureArgs,
    jobs: &[JobPlan],
    keep: &K,
    compute: f64,
    held: &Held,
    look: &(dyn Fn() -> CommandResult<Seen> + Sync),
    what: &str,
) -> CommandResult<Ran> {
    let last = jobs.last().map_or(0.0, |job| job.arrival);
    let progress = bar(what, steps(last.max(0.1)));
    let done = AtomicBool::new(false);
    let pace = Pace { threads: THREADS, compute, patience: PATIENCE, seed: args.seed };
    let (carried, areas) = thread::scope(|scope| {
        let looking = scope.spawn(|| -> CommandResult<Looked> {
            let clock = Clock::start();
            let (mut looked, mut before) = (Looked::default(), 0.0);
            for turn in 1.. {
                if done.load(Relaxed) {
                    break;
                }
                let (seen, wanted) = (look()?, held.bytes() as f64);
                // Live data is in memory in proportion to its blocks.
                let in_memory = seen.allocated / (seen.allocated + seen.below).max(1.0);
                let now = clock.now().since(Time::ZERO).as_secs_f64();
                let step = now.min(last) - before;
                if step > 0.0 {
                    looked.used += wanted * in_memory * step;
                    looked.allocated += seen.allocated * step;
                    before = now;
                }
                progress.set_position(steps(now));
                clock.sleep_until(Time::ZERO + EVERY * turn);
            }
            Ok(looked)
        });
        let carried = carry(jobs, keep, pace);
        done.store(true, Relaxed);
        (carried, looking.join().expect("looking does not panic"))
    });
    progress.finish_and_clear();
    let carried = carried.map_err(|e| Failure::new(Status::Internal, format!("{what}: {e}")))?;
    let Looked { used, allocated } = areas?;
    let waited = carried.queued_s / (carried.transfer_s + carried.compute_s).max(1e-9);
    if waited > QUEUED && !args.output.json {
        let share = waited * 100.0;
        say!("{what}: tasks waited {share:.1} % of their time for one of the {THREADS} threads");
    }
    Ok(Ran {
        carried,
        used,
        allocated,
        peak_blocks: held.peak_blocks(),
        peak_bytes: held.peak_bytes(),
        spilled_disk: 0,
        spilled_object: 0,
    })
}

impl Ran {
    /// Mean and peak of bytes and blocks, for the arithmetic.
    fn summary(&self, load: &Load) -> super::sizing::Summary {
        let last = load.jobs.last().map_or(0.0, |job| job.arrival);
        super::sizing::Summary {
            window: last,
            mean: self.used / last.max(1e-9),
            peak: self.peak_bytes,
            peak_blocks: self.peak_blocks,
        }
    }

    fn point(
        &self,
        load: &Load,
        policy: &'static str,
        capacity_pct: u32,
        memory: u64,
        base: &[f64],
    ) -> Point {
        let window = load.jobs.last().map_or(0.0, |job| job.arrival).max(1e-9);
        let of = |area: f64| area / window / memory.max(1) as f64;
        Point {
            policy,
            capacity_pct,
            slowdown: figures::Slowdown::of(&self.carried.seconds, base),
            seconds: self.carried.seconds.clone(),
            to_block: None,
            utilisation: of(self.used),
            allocated: Some(of(self.allocated)),
            spilled_disk: self.spilled_disk,
            spilled_object: self.spilled_object,
            written: self.carried.written,
            jobs: self.carried.seconds.len() - self.carried.unfinished,
            unfinished: self.carried.unfinished,
            compared: Some(self.carried.compared),
            transfer_share: self.carried.transfer_share(),
        }
    }
}

/// One line for results that could not be measured.
pub fn told(missing: &Missing) -> String {
    let capacities: Vec<String> = missing.capacities.iter().map(|pct| format!("{pct} %")).collect();
    format!("not measured: {} at {}: {}", missing.who, capacities.join(", "), missing.why)
}

/// A cost for people.
pub fn cost(cost: TransferCost) -> String {
    format!(
        "a task alone writes {}/s and reads {}/s; each file costs another {:.2} ms",
        size::show(cost.write as u64),
        size::show(cost.read as u64),
        cost.file_s * 1e3
    )
}
