//! `bench elasticity`: used, allocated and resident memory over time (Figure 11a).

use super::cluster::Cluster;
use super::measure::Spread;
use super::plot::{Panel, Series, Shape, draw};
use super::process::{Pinning, machine};
use super::report::{Table, number};
use super::trace::{Trace, bar, steps, write_csv};
use super::watch::{Observed, Sample, observe, resident_of};
use super::{Pool, Waiting};
use clap::{Args, ValueEnum};
use honeycomb::failure::{CommandResult, Failure};
use honeycomb::output::Output;
use honeycomb::say;
use honeycomb::size;
use honeycomb_env::Clock;
use honeycomb_types::Time;
use honeycomb_types::limits::LEASE_DEFAULT_MS;
use honeycomb_wire::Status;
use honeycomb_workload::{Demand, Ending, Held, Holding, Plan};
use serde_json::{Value, json};
use std::time::Duration;

/// Maximum of allocated over used bytes for files and queues, not counting one block per structure.
const LIMIT: f64 = 1.15;
/// The same maximum for stores with Zipf-distributed keys.
const LIMIT_KV: f64 = 1.6;
/// Maximum bytes by which resident memory may exceed allocated memory.
const ABOVE_ALLOCATED: f64 = (64u64 << 20) as f64;
/// Default seconds of a run.
const SECONDS: f64 = 120.0;
/// Maximum seconds until freed memory is returned to the kernel.
const BACK: f64 = 0.1;
/// Blocks that each trial of returning memory fills.
const TRIAL_BLOCKS: u64 = 8;
/// Time after which a trial fails if its memory is still resident.
const PATIENCE: Duration = Duration::from_secs(20);

/// Measures used, allocated and resident memory over time, for files, queues and key-value stores.
///
/// The load is an hour of tenants' intermediate data, compressed. Each task creates a prefix, fills a
/// structure, and ends the prefix as `--end` says: it lets the lease expire, or frees the data early, so that
/// long leases cost no memory. An ended prefix counts as unused, even while its lease still retains it. Used
/// bytes are the keys and values of users. Resident bytes are all memory of the cluster's process, as counted
/// by the kernel. Then it measures for single structures the time from the end of the prefix until the memory
/// is returned to the kernel.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench elasticity --quick --structure file,queue
  honeycomb bench elasticity --quick --structure file --json
  honeycomb bench elasticity --quick --structure queue --out figures
  honeycomb bench elasticity --quick --structure file --end close,commit,readers
  honeycomb bench elasticity --structure kv --quick --tenants 2 --peak 2MiB
  honeycomb bench elasticity --quick --structure file --snowset queries.csv")]
pub struct ElasticityArgs {
    /// Kinds of structures to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "file,queue,kv")]
    structure: Vec<StructureArg>,
    /// Size of a block
    #[arg(long, value_parser = size::parse, default_value = "1MiB")]
    block_size: u64,
    /// How tasks free their data
    #[arg(long, value_enum, value_delimiter = ',', default_value = "lapse")]
    end: Vec<End>,
    /// The lease of each task's prefix, in milliseconds (500 for `--end lapse`, otherwise 10000)
    #[arg(long)]
    lease_ms: Option<u32>,
    /// Number of trials of returning memory
    #[arg(long, default_value_t = 20)]
    trials: u32,
    /// Size of a store's values
    #[arg(long, value_parser = size::parse, default_value = "4KiB")]
    value_size: u64,
    /// Initial number of blocks of a store
    #[arg(long, default_value_t = 1)]
    kv_blocks: u32,
    #[command(flatten)]
    trace: Trace,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StructureArg {
    File,
    Queue,
    Kv,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum End {
    /// The lease is no longer renewed and expires
    Lapse,
    /// The prefix is removed, as when a job is closed
    Close,
    /// The one declared reader commits
    Commit,
    /// Three declared readers commit
    Readers,
}

impl End {
    fn ending(self) -> Ending {
        match self {
            End::Lapse => Ending::Lease,
            End::Close => Ending::Removal,
            End::Commit => Ending::Commits(1),
            End::Readers => Ending::Commits(3),
        }
    }

    fn name(self) -> &'static str {
        match self {
            End::Lapse => "lapse",
            End::Close => "close",
            End::Commit => "commit",
            End::Readers => "readers",
        }
    }

    /// The default lease: short for runs that wait until leases expire.
    fn lease_ms(self) -> u32 {
        if self == End::Lapse { 500 } else { LEASE_DEFAULT_MS }
    }
}

impl StructureArg {
    fn holding(self) -> Holding {
        match self {
            StructureArg::File => Holding::File,
            StructureArg::Queue => Holding::Queue,
            StructureArg::Kv => Holding::Kv,
        }
    }

    fn limit(self) -> f64 {
        if self == StructureArg::Kv { LIMIT_KV } else { LIMIT }
    }
}

/// The results of one kind of structure.
struct Found {
    structure: StructureArg,
    end: End,
    lease_ms: u32,
    pool: Pool,
    observed: Observed,
    /// Milliseconds from the end of a prefix, by expiry or earlier, until its memory was returned.
    reclaim: Vec<f64>,
}

/// The figures that are printed.
struct Figures {
    overshoot: f64,
    overshoot_limit: f64,
    beyond_lease: f64,
    utilisation: f64,
    followed: f64,
    resident_ratio: f64,
    above_allocated: f64,
    reclaim: Spread,
}

/// `honeycomb bench elasticity`.
pub fn run(args: &ElasticityArgs) -> CommandResult {
    let demand = args.trace.demand(SECONDS)?;
    let about = machine();
    if !args.output.json {
        say!("{about}; not pinned: the kernel places both sides");
        say!("load: {}\n", describe(&demand));
    }
    let mut all = Vec::new();
    let each = args.structure.iter().flat_map(|s| args.end.iter().map(|end| (*s, *end)));
    for (structure, end) in each {
        let found = measure(args, &demand, structure, end)?;
        write_figure(args, &demand, &found)?;
        if args.output.json {
            say!("{}", json_of(&demand, &about, &found));
        }
        all.push(found);
    }
    if !args.output.json {
        print(&all);
    }
    Ok(())
}

/// The load in one line.
pub fn describe(demand: &Demand) -> String {
    let profile = demand.profile();
    let count = demand.tenants as f64;
    let each: f64 = (0..demand.tenants).map(|t| demand.tenant(t).utilisation()).sum();
    format!(
        "{}; {} tenants, {} tasks in {:.0} s, at most {} at a time; mean use {:.0} % of the peak \
         for each tenant, {:.0} % for all together",
        demand.source,
        demand.tenants,
        demand.tasks.len(),
        demand.window,
        size::show(profile.peak as u64),
        each / count * 100.0,
        profile.utilisation() * 100.0
    )
}

fn measure(
    args: &ElasticityArgs,
    demand: &Demand,
    structure: StructureArg,
    end: End,
) -> CommandResult<Found> {
    let lease_ms = args.lease_ms.unwrap_or(end.lease_ms());
    let holding = structure.holding();
    let pool = args.trace.pool(demand, args.block_size, args.kv_blocks);
    let unpinned = Pinning::default();
    let cluster = Cluster::on(args.trace.shards, pool, Waiting::Sleeping, unpinned)?;
    let mut plan = args.trace.plan(holding, lease_ms);
    plan.ending = end.ending();
    plan.sizes.value = args.value_size as usize;
    plan.sizes.kv_blocks = args.kv_blocks;
    let progress = bar(holding.name(), steps(demand.window));
    let tell = |sample: &Sample| {
        progress.set_position(steps(sample.seconds));
        progress.set_message(size::show(sample.used as u64));
    };
    let observed = observe(&cluster, demand, &plan, &tell)?;
    progress.finish_and_clear();
    let trials = if args.trace.quick { args.trials.min(3) } else { args.trials };
    let progress = bar("giving memory back", trials as u64);
    let mut reclaim = Vec::new();
    for trial in 0..trials.max(1) {
        progress.set_position(trial as u64);
        reclaim.push(reclaimed(&cluster, &plan, pool.block_size, trial)?);
    }
    progress.finish_and_clear();
    Ok(Found { structure, end, lease_ms, pool, observed, reclaim })
}

/// Fills a structure, ends its prefix, and waits until the resident memory is as low as before. Answers the
/// milliseconds from the end of the prefix, by expiry or earlier.
fn reclaimed(cluster: &Cluster, plan: &Plan, block_size: u64, trial: u32) -> CommandResult<f64> {
    let (client, ticket) = cluster.job(&format!("trial-{trial}"))?;
    client.create_prefix(ticket.job, "/trial", &[], plan.prefix.clone())?;
    client.keep(ticket.job, &["/trial".to_owned()]);
    let (holding, seed) = (plan.holdings[0], plan.seed + trial as u64);
    // All the data must fit in a store of one block.
    let most = match holding {
        Holding::Kv => block_size / 2,
        _ => block_size * TRIAL_BLOCKS,
    };
    let rest = resident_of(cluster)?;
    let made = Held::create(&client, ticket.job, "/trial", holding, plan.sizes, most, seed);
    let mut held = made?;
    while held.grow(most)? {}
    let full = resident_of(cluster)?;
    // Written pages count in full; an eighth may remain for other memory of the process.
    let back = rest + (full - rest.min(full)) / 8;
    client.release(ticket.job, &["/trial".to_owned()]);
    let clock = Clock::start();
    let ends = match plan.ending {
        Ending::Lease => {
            let lease = client.lease(ticket.job, "/trial")?;
            clock.now() + Duration::from_millis(lease.remaining_ms.max(0) as u64)
        }
        Ending::Removal => {
            client.remove_prefix(ticket.job, "/trial")?;
            clock.now()
        }
        Ending::Commits(_) => {
            client.create_prefix(ticket.job, "/reader", &[], plan.prefix.clone())?;
            client.declare_readers(ticket.job, "/trial", &["/reader".to_owned()], true)?;
            client.commit_task(ticket.job, "/reader")?;
            clock.now()
        }
    };
    loop {
        let now = clock.now();
        if resident_of(cluster)? <= back {
            cluster.client(cluster.token()).deregister_job(ticket.job)?;
            return Ok(now.since(ends).as_secs_f64() * 1000.0);
        }
        if now > ends + PATIENCE {
            let text = format!(
                "the memory of a {} is still resident {} s after the end of its lease",
                holding.name(),
                PATIENCE.as_secs()
            );
            return Err(Failure::new(Status::DeadlineExceeded, text));
        }
        clock.sleep_until(now.max(Time::ZERO) + Duration::from_micros(200));
    }
}

impl Found {
    fn figures(&self) -> Figures {
        let o = &self.observed;
        let block = self.pool.block_size as f64;
        let (used, allocated) = (o.integral(|s| s.used), o.integral(|s| s.allocated));
        let one_each = o.integral(|s| s.structures) * block;
        Figures {
            overshoot: allocated / used,
            overshoot_limit: self.structure.limit() + one_each / used,
            beyond_lease: allocated / o.integral(|s| s.used + s.lapsing),
            utilisation: used / allocated,
            followed: used / o.integral(|s| s.demand),
            resident_ratio: o.integral(|s| s.resident) / (used + one_each),
            above_allocated: above(&o.samples),
            reclaim: Spread::of(self.reclaim.iter().copied()),
        }
    }
}

/// The maximum by which resident memory exceeded the highest allocated memory of the last 100 ms: freed
/// memory may take so long to return to the kernel.
fn above(samples: &[Sample]) -> f64 {
    let mut most = 0.0f64;
    for (i, now) in samples.iter().enumerate() {
        let recent = samples[..=i].iter().rev().take_while(|s| s.seconds >= now.seconds - BACK);
        let allocated = recent.map(|s| s.allocated).fold(now.allocated, f64::max);
        most = most.max(now.resident - allocated);
    }
    most
}

fn print(all: &[Found]) {
    let head = [
        "structure",
        "end",
        "lease ms",
        "allocated / used",
        "asked",
        "within leases",
        "resident / (used + a block each)",
        "resident above allocated, at most",
        "memory back after ms (min..max)",
    ];
    let mut table = Table::new(&head);
    for found in all {
        let f = found.figures();
        let verdict = if f.overshoot <= f.overshoot_limit { "reached" } else { "MISSED" };
        table.row(vec![
            found.structure.holding().name().into(),
            found.end.name().into(),
            found.lease_ms.to_string(),
            number(f.overshoot),
            format!("{} {verdict}", number(f.overshoot_limit)),
            number(f.beyond_lease),
            number(f.resident_ratio),
            size::show(f.above_allocated.max(0.0) as u64),
            super::report::spread(f.reclaim),
        ]);
    }
    table.print();
    for found in all.iter().filter(|found| found.figures().followed < 0.9) {
        let (name, part) = (found.structure.holding().name(), found.figures().followed * 100.0);
        say!("\n{name}: only {part:.0} % of the load was carried out: the machine was too slow");
    }
}

fn json_of(demand: &Demand, about: &str, found: &Found) -> Value {
    let (f, o) = (found.figures(), &found.observed);
    let cut = |v: f64| (v * 1e4).round() / 1e4;
    let profile = demand.profile();
    json!({
        "bench": "elasticity", "structure": found.structure.holding().name(),
        "overshoot": cut(f.overshoot), "reclaim_ms": cut(f.reclaim.median),
        "resident_ratio": cut(f.resident_ratio),
        "overshoot_limit": cut(f.overshoot_limit), "overshoot_beyond_lease": cut(f.beyond_lease),
        "within": f.overshoot <= f.overshoot_limit,
        "reclaim_ms_max": cut(f.reclaim.max), "trials": found.reclaim.len(),
        "resident_above_allocated_bytes": f.above_allocated,
        "resident_within": f.above_allocated <= ABOVE_ALLOCATED,
        "resident_at_rest_bytes": o.at_rest, "resident_counted_apart_bytes": o.counted_apart,
        "utilisation": cut(f.utilisation), "followed": cut(f.followed),
        "peak_bytes": profile.peak as u64, "mean_bytes": profile.mean as u64,
        "load": demand.source, "tenants": demand.tenants, "tasks": demand.tasks.len(),
        "seconds": cut(o.seconds), "compressed": cut(3600.0 / demand.window),
        "end": found.end.name(), "lease_ms": found.lease_ms, "block_bytes": found.pool.block_size, "machine": about,
    })
}

fn write_figure(args: &ElasticityArgs, demand: &Demand, found: &Found) -> CommandResult {
    let name = match found.end {
        End::Lapse => found.structure.holding().name().to_owned(),
        end => format!("{}-{}", found.structure.holding().name(), end.name()),
    };
    let samples = &found.observed.samples;
    if let Some(path) = args.trace.file(&format!("elasticity-{name}.csv"))? {
        let head = "seconds,demand_bytes,used_bytes,allocated_bytes,resident_bytes,structures";
        let row = |s: &Sample| {
            vec![s.seconds, s.demand.round(), s.used, s.allocated, s.resident, s.structures]
        };
        // At most about as many as a figure has pixels.
        let every = samples.len().div_ceil(2000).max(1);
        write_csv(&path, head, samples.iter().step_by(every).map(row))?;
    }
    let Some(path) = args.trace.file(&format!("elasticity-{name}.png"))? else { return Ok(()) };
    let mib = |of: fn(&Sample) -> f64| -> Vec<(f64, f64)> {
        samples.iter().map(|s| (s.seconds, of(s) / (1u64 << 20) as f64)).collect()
    };
    let series = |name: &str, shape, points| Series { name: name.into(), shape, points };
    let panel = Panel {
        title: format!(
            "{name}: an hour of {} tenants in {:.0} s, blocks of {}",
            demand.tenants,
            demand.window,
            size::show(found.pool.block_size)
        ),
        x: "seconds".into(),
        y: "MiB".into(),
        series: vec![
            series("allocated", Shape::Area, mib(|s| s.allocated)),
            series("resident", Shape::Line, mib(|s| s.resident)),
            series("used", Shape::Area, mib(|s| s.used)),
        ],
        logarithmic: false,
        logarithmic_y: false,
    };
    draw(&path, &[panel]).map_err(Failure::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_memory_has_a_moment_to_go_back() {
        let sample = |seconds, allocated, resident| Sample {
            seconds,
            allocated,
            resident,
            ..Sample::default()
        };
        let fast = [sample(0.0, 90.0, 95.0), sample(0.02, 10.0, 93.0), sample(0.2, 10.0, 14.0)];
        assert_eq!(above(&fast), 5.0);
        let slow = [sample(0.0, 90.0, 95.0), sample(0.02, 10.0, 93.0), sample(0.2, 10.0, 60.0)];
        assert_eq!(above(&slow), 50.0);
    }
}
