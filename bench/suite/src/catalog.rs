//! `bench catalog`: a mix of catalog operations, one at a time, pipelined and in batches, with and without a
//! log.

mod curve;

use super::measure::{Limit, Spread};
use super::nodes::{Folder, Nodes};
use super::process::{Pinning, Watched, machine, thread_cpu};
use super::report::{Progress, Table, number, spread};
use super::wire::Wire;
use super::{Common, Pool, Waiting};
use clap::Args;
use honeycomb::failure::CommandResult;
use honeycomb::say;
use honeycomb_client::{Client, JobTicket};
use honeycomb_controller::{LogCensus, census};
use honeycomb_env::Clock;
use honeycomb_types::JobId;
use honeycomb_wire::Op;
use honeycomb_wire::messages::*;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Prefixes on each of three levels that operations choose from.
const FAN_OUT: u64 = 10;
/// Operations of a batch.
const BATCH: u64 = 64;
/// Number of kinds of operations. The operation that undoes another one follows within this distance.
const KINDS: u64 = 5;
const POOL: Pool = Pool { memory: 64 << 20, block_size: 64 << 10 };

/// Measures a mix of catalog operations on one core of a controller.
///
/// The mix has equal parts of creating a prefix, opening a structure, renewing a lease, looking up a prefix,
/// and removing a prefix. *One at a time* uses many connections with one request in flight each; *pipelined*
/// has a window in flight on each; *batched* sends plans of 64 prefixes (a quarter) and renewals of 64 paths
/// (three quarters). With a log, every change is on disk before it is acknowledged. Meanwhile a witness with
/// its own job renews one lease at a time: its latency shows whether the disk delays other jobs.
///
/// It then compares one and two controller shards, both under two pipelined loads of different jobs. The
/// capacity is the sum over shards of operations per second of the shard thread's CPU time, because on a
/// machine of two cores the loads use both cores, too. The rate per second of real time is shown beside it.
///
/// With --curve, it measures only latency against throughput: the mix with 1 to 256 requests in flight, from
/// two connections of different jobs, on one and on two shards. It shows operations per second and the p50
/// and p99 of the latency, in less than a minute.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench catalog --quick
  honeycomb bench catalog --quick --curve --out figures")]
pub struct CatalogArgs {
    /// Connections with one request in flight each
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Connections with a window in flight
    #[arg(long, default_value_t = 4)]
    pipelines: usize,
    /// Requests in flight on each of those
    #[arg(long, default_value_t = 64)]
    window: usize,
    /// Folder for the log: selects the disk to measure
    #[arg(long)]
    within: Option<PathBuf>,
    /// Measure only latency against throughput
    #[arg(long)]
    curve: bool,
    /// Folder for a plot of the curve and its data
    #[arg(long, requires = "curve")]
    out: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// How operations are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    OneAtATime,
    Pipelined,
    Batched,
    /// Only new prefixes, to measure the log.
    Changes,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::OneAtATime => "mix, one at a time",
            Way::Pipelined => "mix, pipelined",
            Way::Batched => "batched",
            Way::Changes => "new prefixes, pipelined",
        }
    }

    /// The required rate, per second and core.
    fn bar(self) -> Option<f64> {
        match self {
            Way::OneAtATime => Some(90_000.0),
            Way::Pipelined | Way::Batched => Some(400_000.0),
            Way::Changes => None,
        }
    }

    /// Operations of one request.
    fn operations(self) -> u64 {
        if self == Way::Batched { BATCH } else { 1 }
    }
}

const WAYS: [Way; 4] = [Way::OneAtATime, Way::Pipelined, Way::Batched, Way::Changes];

/// One round of one way.
#[derive(Clone, Copy)]
struct Rate {
    ops: u64,
    ops_s: f64,
    controller_us: f64,
    client_us: f64,
    /// The p50 and p99 of the witness's renewals.
    witness: [f64; 2],
    /// Counters of the log.
    log: LogCensus,
}

/// One round of the same load on one number of shards.
#[derive(Clone, Copy)]
struct Scale {
    ops_s: f64,
    /// Operations per second of a shard's CPU time, of all shards together.
    capacity: f64,
}

/// `honeycomb bench catalog`.
pub fn run(args: &CatalogArgs) -> CommandResult {
    let common = args.common.settled()?;
    if args.connections == 0 || args.pipelines == 0 || args.window == 0 {
        return Err("--connections, --pipelines and --window must be at least 1".into());
    }
    if args.curve {
        return curve::run(args, &common);
    }
    let pinning = Pinning::choose(!common.no_pin);
    let about = machine();
    let progress = Progress::new();
    let mut found: Vec<(bool, Way, Vec<Rate>)> = Vec::new();
    for log in [false, true] {
        found.extend(WAYS.map(|way| (log, way, Vec::new())));
    }
    for round in 0..common.rounds {
        for (log, way, rates) in &mut found {
            let kept = if *log { "with a log" } else { "without" };
            progress.tell(&format!("{}, {kept}, round {}", way.name(), round + 1));
            rates.push(measure(args, &common, pinning, *way, *log)?);
        }
    }
    let mut scales = [Vec::new(), Vec::new()];
    for round in 0..common.rounds {
        for (n, rounds) in scales.iter_mut().enumerate() {
            progress.tell(&format!("{} controller shards, round {}", n + 1, round + 1));
            rounds.push(scale(args, &common, n + 1)?);
        }
    }
    drop(progress);
    if common.output.json {
        say!("{}", json_of(args, &common, pinning, &about, &found, &scales));
    } else {
        print(args, &common, pinning, &about, &found);
        print_scales(&scales);
    }
    Ok(())
}

/// One measurement on a new controller.
fn measure(
    args: &CatalogArgs,
    common: &Common,
    pinning: Pinning,
    way: Way,
    log: bool,
) -> Result<Rate, String> {
    let folder = log.then(|| Folder::new(args.within.as_deref()));
    let data = folder.as_ref().map(Folder::path);
    let nodes = Nodes::start(POOL, Waiting::Polling, pinning, data, 1)?;
    let (client, ticket) = nodes.job("mix")?;
    prepare(&client, ticket.job)?;
    let (connections, window) = match way {
        Way::OneAtATime => (args.connections, 1),
        _ => (args.pipelines, args.window),
    };
    let connect = || Wire::connect(nodes.address(), &ticket.token);
    let wires = (0..connections).map(|_| connect()).collect::<Result<Vec<_>, _>>()?;
    let (_, other) = nodes.job("witness")?;
    let mut witness = Wire::connect(nodes.address(), &other.token)?;
    let before = data.map(census).transpose()?.unwrap_or_default();
    let watched = nodes.controller_thread(0);
    let over = AtomicBool::new(false);
    let (rate, waited) = std::thread::scope(|scope| {
        let looking = scope.spawn(|| watch(&mut witness, other.job, &over));
        let rate = load(&watched, wires, window, common.limit(), way, ticket.job);
        over.store(true, Ordering::Release);
        (rate, looking.join().expect("the witness does not panic"))
    });
    let after = data.map(census).transpose()?.unwrap_or_default();
    Ok(Rate { witness: waited?, log: after.since(&before), ..rate? })
}

/// Two pipelined loads of different jobs, on one shard or on two. Nothing is pinned.
fn scale(args: &CatalogArgs, common: &Common, shards: usize) -> Result<Scale, String> {
    let nodes = Nodes::start(POOL, Waiting::Polling, Pinning::default(), None, shards)?;
    let jobs = curve::two_jobs(&nodes, shards)?;
    let watched: Vec<Watched> = (0..shards).map(|shard| nodes.controller_thread(shard)).collect();
    let before: Vec<u64> = watched.iter().map(Watched::cpu).collect();
    let rates = std::thread::scope(|scope| {
        let run = |ticket: &JobTicket| {
            let connect = || Wire::connect(nodes.address(), &ticket.token);
            let wires = (0..args.pipelines).map(|_| connect()).collect::<Result<_, String>>()?;
            let window = args.window;
            load(&watched[0], wires, window, common.limit(), Way::Pipelined, ticket.job)
        };
        let runs: Vec<_> = jobs.iter().map(|ticket| scope.spawn(move || run(ticket))).collect();
        let end = |run: std::thread::ScopedJoinHandle<'_, _>| {
            run.join().expect("the thread does not panic")
        };
        runs.into_iter().map(end).collect::<Result<Vec<Rate>, String>>()
    })?;
    let cpu = watched.iter().zip(before).map(|(w, before)| (w.cpu() - before) as f64 / 1e9);
    let done = |rate: &Rate| rate.ops as f64;
    let each: Vec<f64> = match shards {
        1 => vec![rates.iter().map(done).sum()],
        _ => jobs_by_shard(&jobs, &rates),
    };
    let capacity = each.iter().zip(cpu).map(|(ops, seconds)| ops / seconds).sum();
    Ok(Scale { ops_s: rates.iter().map(|rate| rate.ops_s).sum(), capacity })
}

/// Operations of each of two shards.
fn jobs_by_shard(jobs: &[JobTicket], rates: &[Rate]) -> Vec<f64> {
    let mut each = vec![0.0; jobs.len()];
    for (job, rate) in jobs.iter().zip(rates) {
        each[job.job.controller() as usize] += rate.ops as f64;
    }
    each
}

fn print_scales(scales: &[Vec<Scale>; 2]) {
    say!("\nController shards under two pipelined loads, nothing pinned\n");
    let mut table =
        Table::new(&["shards", "ops/s (min..max)", "capacity, ops/core-s of all shards", "of one"]);
    let of = |n: usize, f: fn(&Scale) -> f64| Spread::of(scales[n].iter().map(f));
    let one = of(0, |s| s.capacity).median;
    for n in 0..2 {
        let capacity = of(n, |s| s.capacity);
        table.row(vec![
            (n + 1).to_string(),
            spread(of(n, |s| s.ops_s)),
            spread(capacity),
            format!("{:.2}", capacity.median / one),
        ]);
    }
    table.print();
}

/// Three levels of prefixes, and a structure under each of the first.
fn prepare(client: &Client, job: JobId) -> Result<(), String> {
    let mut nodes = Vec::new();
    let mut node = |name: String, parent: Option<String>| {
        nodes.push(DagNode { name, parents: parent.into_iter().collect(), ..DagNode::default() });
    };
    for a in 0..FAN_OUT {
        node(format!("a{a}"), None);
        for b in 0..FAN_OUT {
            node(format!("b{a}{b}"), Some(format!("a{a}")));
            for c in 0..FAN_OUT {
                node(format!("c{a}{b}{c}"), Some(format!("b{a}{b}")));
            }
        }
    }
    client.create_hierarchy(job, nodes).map_err(|e| e.to_string())?;
    for a in 0..FAN_OUT {
        client.create_file(job, &format!("/a{a}"), 1, false).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn path(i: u64) -> String {
    let (a, b, c) = (i % FAN_OUT, i / FAN_OUT % FAN_OUT, i / FAN_OUT / FAN_OUT % FAN_OUT);
    format!("/a{a}/b{a}{b}/c{a}{b}{c}")
}

/// The request of this number on this connection.
fn queue(wire: &mut Wire, way: Way, job: JobId, connection: usize, i: u64) {
    let job = job.0;
    let new = |i: u64| format!("{}/n{connection}-{i}", path(i));
    let paths = |i: u64| (0..BATCH).map(|n| path(i * BATCH + n)).collect();
    match way {
        Way::OneAtATime | Way::Pipelined => match i % KINDS {
            0 => {
                let path = new(i / KINDS);
                wire.queue(
                    Op::CreatePrefix,
                    &CreatePrefixRequest { job, path, ..Default::default() },
                );
            }
            1 => {
                let path = format!("/a{}", i / KINDS % FAN_OUT);
                wire.queue(Op::OpenStructure, &OpenStructureRequest { job, path, name: "".into() });
            }
            2 => wire.queue(Op::RenewLeases, &RenewLeasesRequest { job, paths: vec![path(i)] }),
            3 => wire.queue(Op::LeaseInfo, &LeaseInfoRequest { job, path: path(i) }),
            _ => {
                let path = new(i / KINDS);
                wire.queue(Op::RemovePrefix, &RemovePrefixRequest { job, path });
            }
        },
        Way::Changes => {
            let path = new(i);
            wire.queue(Op::CreatePrefix, &CreatePrefixRequest { job, path, ..Default::default() });
        }
        Way::Batched if i.is_multiple_of(4) => {
            let parent = path(i);
            let node = |n: u64| DagNode {
                name: format!("p{connection}-{i}-{n}"),
                parents: vec![parent.clone()],
                ..DagNode::default()
            };
            let nodes = (0..BATCH).map(node).collect();
            wire.queue(Op::CreateHierarchy, &CreateHierarchyRequest { job, nodes });
        }
        Way::Batched => wire.queue(Op::RenewLeases, &RenewLeasesRequest { job, paths: paths(i) }),
    }
}

/// Keeps every connection's window full, so that the controller never waits.
fn load(
    watched: &Watched,
    mut wires: Vec<Wire>,
    window: usize,
    limit: Limit,
    way: Way,
    job: JobId,
) -> Result<Rate, String> {
    let clock = Clock::start();
    let (server_before, client_before, begun) = (watched.cpu(), thread_cpu(), clock.now());
    let (mut sent, mut answered, mut batch) = (0, 0, 0);
    while sent > answered || batch == 0 {
        let more = sent < limit.ops && clock.now().since(begun) < limit.time;
        for (n, wire) in wires.iter_mut().enumerate() {
            if batch > 0 {
                wire.replies(window)?;
                answered += window as u64;
            }
            if more {
                let first = batch * window as u64;
                (first..first + window as u64).for_each(|i| queue(wire, way, job, n, i));
                wire.flush()?;
                sent += window as u64;
            }
        }
        batch += 1;
    }
    let operations = answered * way.operations();
    let us = |ns: u64| ns as f64 / 1000.0 / operations as f64;
    Ok(Rate {
        ops: operations,
        ops_s: operations as f64 / clock.now().since(begun).as_secs_f64(),
        controller_us: us(watched.cpu() - server_before),
        client_us: us(thread_cpu() - client_before),
        witness: [0.0; 2],
        log: LogCensus::default(),
    })
}

/// Renews one lease at a time until `over`; answers the p50 and p99 in microseconds.
fn watch(wire: &mut Wire, job: JobId, over: &AtomicBool) -> Result<[f64; 2], String> {
    let clock = Clock::start();
    let mut waits = Vec::new();
    while !over.load(Ordering::Acquire) || waits.is_empty() {
        let begun = clock.now();
        let body = RenewLeasesRequest { job: job.0, paths: vec!["/".into()] };
        wire.queue(Op::RenewLeases, &body);
        wire.exchange(1)?;
        waits.push(clock.now().since(begun).as_secs_f64() * 1e6);
        // With a pause, so that the witness does not disturb the measured load.
        clock.sleep_until(clock.now() + std::time::Duration::from_millis(1));
    }
    waits.sort_by(f64::total_cmp);
    Ok([waits[waits.len() / 2], waits[(waits.len() * 99 / 100).min(waits.len() - 1)]])
}

fn print(
    args: &CatalogArgs,
    common: &Common,
    pinning: Pinning,
    about: &str,
    found: &[(bool, Way, Vec<Rate>)],
) {
    say!("{about}; {}", pinning.show());
    say!("{} rounds of {} s; medians of the rounds", common.rounds, common.seconds);
    say!(
        "one at a time: {} connections; pipelined: {} connections with {} requests in flight\n",
        args.connections,
        args.pipelines,
        args.window
    );
    let head = [
        "operations",
        "log",
        "ops/s (min..max)",
        "controller us/op",
        "ops/core-s",
        "client us/op",
        "witness p50 us",
        "p99",
        "changes/sync",
        "bar",
    ];
    let mut table = Table::new(&head);
    for (log, way, rates) in found {
        let of = |f: fn(&Rate) -> f64| Spread::of(rates.iter().map(f));
        let per_core = 1e6 / of(|r| r.controller_us).median;
        let verdict = match way.bar().filter(|_| !log) {
            None => "",
            Some(bar) if per_core >= bar => "reached",
            Some(_) => "MISSED",
        };
        let per_sync = of(|r| r.log.records as f64 / r.log.syncs.max(1) as f64).median;
        table.row(vec![
            way.name().into(),
            if *log { "disk" } else { "none" }.into(),
            spread(of(|r| r.ops_s)),
            spread(of(|r| r.controller_us)),
            number(per_core),
            number(of(|r| r.client_us).median),
            number(of(|r| r.witness[0]).median),
            number(of(|r| r.witness[1]).median),
            if *log { number(per_sync) } else { "-".into() },
            verdict.into(),
        ]);
    }
    table.print();
}

fn json_of(
    args: &CatalogArgs,
    common: &Common,
    pinning: Pinning,
    about: &str,
    found: &[(bool, Way, Vec<Rate>)],
    scales: &[Vec<Scale>; 2],
) -> Value {
    let row = |(log, way, rates): &(bool, Way, Vec<Rate>)| {
        let of = |f: fn(&Rate) -> f64| Spread::of(rates.iter().map(f)).json();
        json!({
            "operations": way.name(), "log": log, "ops_per_s": of(|r| r.ops_s),
            "controller_cpu_us_per_op": of(|r| r.controller_us),
            "client_cpu_us_per_op": of(|r| r.client_us),
            "witness_p50_us": of(|r| r.witness[0]), "witness_p99_us": of(|r| r.witness[1]),
            "changes_per_sync": of(|r| r.log.records as f64 / r.log.syncs.max(1) as f64),
            "groups_per_sync": of(|r| r.log.groups as f64 / r.log.syncs.max(1) as f64),
        })
    };
    json!({
        "bench": "catalog", "machine": about, "pinning": pinning.show(),
        "rounds": common.rounds, "seconds": common.seconds, "connections": args.connections,
        "pipelines": args.pipelines, "window": args.window, "batch": BATCH,
        "rows": found.iter().map(row).collect::<Vec<Value>>(),
        "shards": scales.iter().map(|rounds| json!({
            "ops_per_s": Spread::of(rounds.iter().map(|s| s.ops_s)).json(),
            "capacity": Spread::of(rounds.iter().map(|s| s.capacity)).json(),
        })).collect::<Vec<Value>>(),
    })
}
