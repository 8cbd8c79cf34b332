//! `bench leases`: renewals of many prefixes in one message, the cost of idle prefixes, and the time until
//! the operating system has the memory of an ended lease.

use super::cluster::Cluster;
use super::process::{Pinning, Watched, machine};
use super::report::Progress;
use super::wire::Wire;
use super::{Common, Pool, Waiting};
use clap::Args;
use honeycomb::failure::CommandResult;
use honeycomb::say;
use honeycomb::size;
use honeycomb_env::Clock;
use honeycomb_types::JobId;
use honeycomb_types::limits::{BATCH_MAX, PREFIXES_PER_JOB_MAX};
use honeycomb_wire::Op;
use honeycomb_wire::messages::{CreatePrefixRequest, RenewLeasesRequest};
use serde_json::json;
use std::time::Duration;

/// Prefixes under each top-level prefix.
const SIBLINGS: u64 = 1000;
/// Requests in flight while prefixes are created.
const WINDOW: u64 = 256;
/// Batches in flight: the controller always has the next one.
const IN_FLIGHT: usize = 4;
/// Required renewals per second of one core.
const REQUIRED: f64 = 1_000_000.0;
/// A small pool: no data is stored.
const POOL: Pool = Pool { memory: 64 << 20, block_size: 64 << 10 };

/// Measures lease renewals in batches, and the CPU time of idle prefixes.
///
/// Each message renews many prefixes by their paths, in an order that defeats caches. Rates are per second of
/// the controller's CPU time, which is the capacity of one core, and per second of real time. The
/// controller's CPU time is then measured while no request arrives. Finally, a file is written and freed,
/// with small and with large blocks, to measure the time until the operating system has its memory.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench leases --quick --prefixes 20000 --idle 0.2")]
pub struct LeasesArgs {
    /// Number of prefixes, each with its own lease
    #[arg(long, default_value_t = 1_000_000)]
    prefixes: u64,
    /// Number of paths in one message
    #[arg(long, default_value_t = 4096)]
    batch: usize,
    /// Seconds of the idle measurement
    #[arg(long, default_value_t = 10.0)]
    idle: f64,
    /// Bytes to write and free
    #[arg(long, value_parser = size::parse, default_value = "256MiB")]
    freed: u64,
    #[command(flatten)]
    common: Common,
}

/// The time until freed memory was returned.
struct Freed {
    block_size: u64,
    written: u64,
    resident: u64,
    time: Duration,
    allowed: Duration,
}

/// One round of renewals.
struct Rate {
    renewed: u64,
    cpu: Duration,
    wall: Duration,
}

/// The idle measurement.
struct Idle {
    cpu: Duration,
    wall: Duration,
}

/// `honeycomb bench leases`.
pub fn run(args: &LeasesArgs) -> CommandResult {
    let common = args.common.settled()?;
    let most = PREFIXES_PER_JOB_MAX as u64 - 2 - args.prefixes.div_ceil(SIBLINGS);
    if args.prefixes == 0 || args.prefixes > most {
        return Err(format!("--prefixes must be 1 to {most}, the limit of one job").into());
    }
    if args.batch == 0 || args.batch > BATCH_MAX / IN_FLIGHT {
        return Err(format!("--batch must be 1 to {}", BATCH_MAX / IN_FLIGHT).into());
    }
    if !(args.idle > 0.0 && args.idle < 3600.0) {
        return Err("--idle must be above 0 and below 3600 seconds".into());
    }
    let pinning = Pinning::choose(!common.no_pin);
    let progress = Progress::new();
    let cluster = Cluster::start(&common, POOL, Waiting::Sleeping, pinning)?;
    let (_client, ticket) = cluster.job("leases")?;
    let mut wire = Wire::connect(cluster.address(), cluster.token())?;
    progress.tell("creating prefixes");
    create(&mut wire, ticket.job, args.prefixes)?;
    let mut rates = Vec::new();
    for round in 0..common.rounds {
        progress.tell(&format!("renewing, round {}", round + 1));
        rates.push(renew(&cluster, &mut wire, ticket.job, args, &common)?);
    }
    progress.tell("idle");
    let idle = rest(&cluster, Duration::from_secs_f64(args.idle));
    drop((wire, cluster));
    let mut freed = Vec::new();
    for block_size in [64 << 10, 128 << 20] {
        progress.tell(&format!("freeing blocks of {}", size::show(block_size)));
        freed.push(free(args, &common, pinning, block_size)?);
    }
    drop(progress);
    print(args, &common, pinning, &rates, &idle, &freed);
    Ok(())
}

fn path(i: u64) -> String {
    format!("/{:08}/task-{i:07}", i / SIBLINGS)
}

fn create(wire: &mut Wire, job: JobId, count: u64) -> Result<(), String> {
    let parents = (0..count.div_ceil(SIBLINGS)).map(|parent| format!("/{parent:08}"));
    let mut waiting = 0;
    for path in parents.chain((0..count).map(path)) {
        let body = CreatePrefixRequest { job: job.0, path, ..Default::default() };
        wire.queue(Op::CreatePrefix, &body);
        waiting += 1;
        if waiting == WINDOW {
            wire.exchange(waiting as usize)?;
            waiting = 0;
        }
    }
    wire.exchange(waiting as usize)
}

/// The paths of one message. A stride that is coprime to the number of prefixes visits every prefix once
/// before any repeats, and never the neighbour of the previous one.
fn frontier(first: u64, batch: usize, prefixes: u64) -> Vec<String> {
    let stride = (1..).map(|n| 7919 * n + 1).find(|s| gcd(*s, prefixes) == 1).unwrap_or(1);
    (0..batch as u64).map(|i| path((first + i) % prefixes * stride % prefixes)).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn renew(
    cluster: &Cluster,
    wire: &mut Wire,
    job: JobId,
    args: &LeasesArgs,
    common: &Common,
) -> Result<Rate, String> {
    let limit = common.limit();
    let controller = cluster.controller_thread();
    let clock = Clock::start();
    let (cpu, begun) = (controller.cpu(), clock.now());
    let (mut renewed, mut in_flight, mut first) = (0, 0, 0);
    loop {
        let more = renewed < limit.ops && clock.now().since(begun) < limit.time;
        while more && in_flight < IN_FLIGHT {
            let paths = frontier(first, args.batch, args.prefixes);
            first = (first + args.batch as u64) % args.prefixes;
            wire.queue(Op::RenewLeases, &RenewLeasesRequest { job: job.0, paths });
            wire.flush()?;
            in_flight += 1;
        }
        if in_flight == 0 {
            break;
        }
        wire.replies(1)?;
        in_flight -= 1;
        renewed += args.batch as u64;
    }
    let cpu = Duration::from_nanos(controller.cpu() - cpu);
    Ok(Rate { renewed, cpu, wall: clock.now().since(begun) })
}

fn rest(cluster: &Cluster, time: Duration) -> Idle {
    let controller = cluster.controller_thread();
    let clock = Clock::start();
    // Work left over from the last renewals must not count as idle time.
    clock.sleep_until(clock.now() + Duration::from_millis(100));
    let (cpu, begun) = (controller.cpu(), clock.now());
    clock.sleep_until(begun + time);
    Idle { cpu: Duration::from_nanos(controller.cpu() - cpu), wall: clock.now().since(begun) }
}

/// Writes a file, removes its prefix, and measures the process's resident memory.
fn free(
    args: &LeasesArgs,
    common: &Common,
    pinning: Pinning,
    block_size: u64,
) -> Result<Freed, String> {
    let said = |e: honeycomb_client::Error| e.to_string();
    let written = args.freed.next_multiple_of(block_size);
    // Room for the written data, the reserved blocks and the next block.
    let pool = Pool { memory: written / 8 * 9 + 16 * block_size, block_size };
    let cluster = Cluster::start(common, pool, Waiting::Sleeping, pinning)?;
    let (client, ticket) = cluster.job("freed")?;
    client.create_prefix(ticket.job, "/f", &[], Default::default()).map_err(said)?;
    let process = Watched::process(cluster.pid());
    let before = process.resident_anonymous();
    let file = client.create_file(ticket.job, "f", 1, false).map_err(said)?;
    let piece = vec![7; file.append_limit().min(8 << 20)];
    let mut left = args.freed as usize;
    while left > 0 {
        file.append(&piece[..piece.len().min(left)]).map_err(said)?;
        left -= piece.len().min(left);
    }
    let resident = process.resident_anonymous() - before;
    let clock = Clock::start();
    let begun = clock.now();
    client.remove_prefix(ticket.job, "/f").map_err(said)?;
    // The allocator may retain memory of bookkeeping (some 2.5 KiB per block), which is not block memory.
    let slack = (4 << 20) + resident / 16;
    while process.resident_anonymous() > before + slack {
        if clock.now().since(begun) > Duration::from_secs(20) {
            let left = process.resident_anonymous().saturating_sub(before);
            let text = format!(
                "{} of {} were not returned to the operating system within 20 s",
                size::show(left),
                size::show(resident)
            );
            return Err(text);
        }
        clock.sleep_until(clock.now() + Duration::from_micros(500));
    }
    let time = clock.now().since(begun);
    let further = args.freed.div_ceil(128 << 20).saturating_sub(1) as u32;
    let allowed = Duration::from_millis(100) + further * Duration::from_millis(10);
    Ok(Freed { block_size, written: args.freed, resident, time, allowed })
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn print(
    args: &LeasesArgs,
    common: &Common,
    pinning: Pinning,
    rates: &[Rate],
    idle: &Idle,
    freed: &[Freed],
) {
    let per = |time: fn(&Rate) -> Duration| {
        median(rates.iter().map(|r| r.renewed as f64 / time(r).as_secs_f64().max(1e-9)).collect())
    };
    let (core, clock) = (per(|r| r.cpu), per(|r| r.wall));
    let share = idle.cpu.as_secs_f64() / idle.wall.as_secs_f64();
    if common.output.json {
        let rounds: Vec<_> = rates
            .iter()
            .map(|r| {
                json!({
                    "renewed": r.renewed, "cpu_s": r.cpu.as_secs_f64(),
                    "wall_s": r.wall.as_secs_f64(),
                })
            })
            .collect();
        say!(
            "{}",
            json!({
                "bench": "leases", "machine": machine(), "pinning": pinning.show(),
                "prefixes": args.prefixes, "batch": args.batch, "rounds": rounds,
                "renewed_per_s_per_core": core, "renewed_per_s": clock,
                "required_per_s_per_core": REQUIRED,
                "idle": {
                    "prefixes": args.prefixes, "seconds": idle.wall.as_secs_f64(),
                    "cpu_ms": idle.cpu.as_secs_f64() * 1e3, "cpu_share": share,
                },
                "freed": freed.iter().map(|f| json!({
                    "block_size": f.block_size, "written": f.written, "resident": f.resident,
                    "ms": f.time.as_secs_f64() * 1e3, "allowed_ms": f.allowed.as_secs_f64() * 1e3,
                })).collect::<Vec<_>>(),
            })
        );
        return;
    }
    say!("{}\n{}", machine(), pinning.show());
    say!(
        "{} prefixes, {} paths in a message: {core:.0} leases renewed per second of one core \
         ({REQUIRED:.0} required), {clock:.0} per second",
        args.prefixes,
        args.batch
    );
    say!(
        "idle: {:.2} ms of CPU in {:.1} s, {:.4} % of a core",
        idle.cpu.as_secs_f64() * 1e3,
        idle.wall.as_secs_f64(),
        share * 100.0
    );
    for f in freed {
        say!(
            "{} in blocks of {} returned to the operating system {:.1} ms after the request to \
             free them ({:.0} ms allowed)",
            size::show(f.resident),
            size::show(f.block_size),
            f.time.as_secs_f64() * 1e3,
            f.allowed.as_secs_f64() * 1e3
        );
    }
}
