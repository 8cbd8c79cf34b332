//! `bench controller`: catalog operations over the network, and the memory of catalog records.

use super::cluster::Cluster;
use super::measure::{self, Limit, Series, Spread, Work};
use super::memory::{self, Cost, Costs};
use super::process::{Pinning, machine, thread_cpu};
use super::report::{Progress, SERIES, Table, number, spread};
use super::wire::Wire;
use super::{Common, Pool, Waiting};
use clap::Args;
use honeycomb::failure::CommandResult;
use honeycomb::say;
use honeycomb_client::{Client, Error};
use honeycomb_env::Clock;
use honeycomb_types::{JobId, Kind};
use honeycomb_wire::Op;
use honeycomb_wire::messages::*;
use serde_json::{Value, json};

/// Prefixes on each of three levels that operations choose from.
const FAN_OUT: u64 = 10;
/// The rate of the paper's controller on one core (Jiffy, 6.4), which is required of ours.
const REQUIRED: f64 = 45_000.0;
/// Many small blocks: each created structure takes one.
const POOL: Pool = Pool { memory: 256 << 20, block_size: 64 << 10 };

/// Measures catalog operations on one core, and the memory of a prefix and a block.
///
/// It measures rates of pipelined requests over several connections, latencies of single requests, and the
/// memory in bytes per prefix and block, on its own cluster.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench controller --quick --prefixes 20000 --blocks 100000")]
pub struct ControllerArgs {
    /// Number of connections
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Requests in flight on each connection
    #[arg(long, default_value_t = 64)]
    window: usize,
    /// Number of prefixes in the memory measurement
    #[arg(long, default_value_t = 200_000)]
    prefixes: u64,
    /// Number of blocks in the memory measurement
    #[arg(long, default_value_t = 1_000_000)]
    blocks: u32,
    #[command(flatten)]
    common: Common,
}

/// A kind of request to the catalog.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Renew,
    Lookup,
    CreatePrefix,
    Open,
    CreateRemove,
}

const ALL: [Request; 5] =
    [Request::Renew, Request::Lookup, Request::CreatePrefix, Request::Open, Request::CreateRemove];

impl Request {
    fn name(self) -> &'static str {
        match self {
            Request::Renew => "renew a lease",
            Request::Lookup => "look a prefix up",
            Request::CreatePrefix => "create a prefix",
            Request::Open => "open a structure",
            Request::CreateRemove => "create or remove a structure",
        }
    }

    fn required(self) -> bool {
        matches!(self, Request::Renew | Request::Lookup | Request::CreatePrefix)
    }
}

/// The identity of a request: its connection, its batch, and its place in the batch.
#[derive(Clone, Copy)]
struct Place {
    wire: usize,
    batch: u64,
    slot: usize,
}

/// Throughput of one round.
#[derive(Clone, Copy)]
struct Rate {
    ops_s: f64,
    controller_us: f64,
    client_us: f64,
}

struct Found {
    rates: Vec<(Request, Vec<Rate>)>,
    latencies: Vec<(Waiting, Request, Series)>,
    costs: Costs,
}

/// `honeycomb bench controller`.
pub fn run(args: &ControllerArgs) -> CommandResult {
    let common = args.common.settled()?;
    if args.connections == 0 || args.window == 0 {
        return Err("--connections and --window must be at least 1".into());
    }
    let pinning = Pinning::choose(!common.no_pin);
    let about = machine();
    let progress = Progress::new();
    let cluster = Cluster::start(&common, POOL, Waiting::Polling, pinning)?;
    let rates = throughput(args, &common, &cluster, &progress)?;
    drop(cluster);
    let mut latencies = Vec::new();
    for &waiting in common.waitings() {
        let cluster = Cluster::start(&common, POOL, waiting, pinning)?;
        for kind in ALL {
            progress.tell(&format!("{}, one at a time, {}", kind.name(), waiting.name()));
            latencies.push((waiting, kind, latency(&common, &cluster, kind)?));
        }
    }
    progress.tell("memory of prefixes and blocks");
    let cluster = Cluster::start(&common, POOL, Waiting::Sleeping, pinning)?;
    let scale = if common.quick { 10 } else { 1 };
    let costs = memory::measure(&cluster, args.prefixes / scale, args.blocks / scale as u32)?;
    drop((cluster, progress));
    let found = Found { rates, latencies, costs };
    if common.output.json {
        say!("{}", json_of(args, &common, pinning, &about, &found));
    } else {
        print(args, &common, pinning, &about, &found);
    }
    Ok(())
}

/// A job with three levels of prefixes and a structure under each of the first level.
fn prepare(cluster: &Cluster, name: &str) -> Result<(Client, JobId), String> {
    let said = |e: Error| e.to_string();
    let (client, ticket) = cluster.job(name)?;
    let create = |path: String| {
        client.create_prefix(ticket.job, &path, &[], PrefixOptions::default()).map_err(said)
    };
    for a in 0..FAN_OUT {
        create(format!("/a{a}"))?;
        client.create_kv(ticket.job, &format!("/a{a}"), 1, true).map_err(said)?;
        for b in 0..FAN_OUT {
            create(format!("/a{a}/b{b}"))?;
            for c in 0..FAN_OUT {
                create(format!("/a{a}/b{b}/c{c}"))?;
            }
        }
    }
    Ok((client, ticket.job))
}

fn path(i: u64) -> String {
    let (a, b, c) = (i % FAN_OUT, i / FAN_OUT % FAN_OUT, i / FAN_OUT / FAN_OUT % FAN_OUT);
    format!("/a{a}/b{b}/c{c}")
}

fn throughput(
    args: &ControllerArgs,
    common: &Common,
    cluster: &Cluster,
    progress: &Progress,
) -> Result<Vec<(Request, Vec<Rate>)>, String> {
    let mut wires = (0..args.connections)
        .map(|_| Wire::connect(cluster.address(), cluster.token()))
        .collect::<Result<Vec<_>, _>>()?;
    let mut found: Vec<(Request, Vec<Rate>)> = ALL.map(|kind| (kind, Vec::new())).into();
    for round in 0..common.rounds {
        for (kind, rates) in &mut found {
            progress.tell(&format!("{}, pipelined, round {}", kind.name(), round + 1));
            // A job for each round, so that its prefixes end with it.
            let (_, job) = prepare(cluster, &format!("rate-{round}-{}", *kind as u8))?;
            let rate = pipelined(cluster, &mut wires, args.window, common.limit(), |wire, at| {
                queue(wire, *kind, job, at);
            })?;
            rates.push(rate);
            cluster.client(cluster.token()).deregister_job(job).map_err(|e| e.to_string())?;
        }
    }
    Ok(found)
}

fn queue(wire: &mut Wire, kind: Request, job: JobId, at: Place) {
    let job = job.0;
    let i = at.batch * 64 + at.slot as u64 * 7 + at.wire as u64;
    match kind {
        Request::Renew => {
            wire.queue(Op::RenewLeases, &RenewLeasesRequest { job, paths: vec![path(i)] });
        }
        Request::Lookup => wire.queue(Op::LeaseInfo, &LeaseInfoRequest { job, path: path(i) }),
        Request::CreatePrefix => {
            let path = format!("{}/n{}-{}-{}", path(i), at.wire, at.batch, at.slot);
            wire.queue(Op::CreatePrefix, &CreatePrefixRequest { job, path, ..Default::default() });
        }
        Request::Open => {
            let path = format!("/a{}", i % FAN_OUT);
            wire.queue(Op::OpenStructure, &OpenStructureRequest { job, path, name: "".into() });
        }
        Request::CreateRemove => {
            let (path, name) = (path(i % 64), format!("s{}-{}", at.wire, at.slot));
            if at.batch.is_multiple_of(2) {
                let kind = Kind::File.code();
                let body = CreateStructureRequest { job, path, name, kind, ..Default::default() };
                wire.queue(Op::CreateStructure, &body);
            } else {
                wire.queue(Op::RemoveStructure, &RemoveStructureRequest { job, path, name });
            }
        }
    }
}

/// Keeps a window of requests in flight on every connection, so that the server never waits.
fn pipelined(
    cluster: &Cluster,
    wires: &mut [Wire],
    window: usize,
    limit: Limit,
    mut queue: impl FnMut(&mut Wire, Place),
) -> Result<Rate, String> {
    let server = cluster.controller_thread();
    let clock = Clock::start();
    let (server_before, client_before, begun) = (server.cpu(), thread_cpu(), clock.now());
    let (mut sent, mut answered, mut batch) = (0, 0, 0);
    while sent > answered || batch == 0 {
        let more = sent < limit.ops && clock.now().since(begun) < limit.time;
        for (n, wire) in wires.iter_mut().enumerate() {
            if batch > 0 {
                wire.replies(window)?;
                answered += window as u64;
            }
            if more {
                (0..window).for_each(|slot| queue(wire, Place { wire: n, batch, slot }));
                wire.flush()?;
                sent += window as u64;
            }
        }
        batch += 1;
    }
    let wall = clock.now().since(begun).as_secs_f64();
    let us = |ns: u64| ns as f64 / 1000.0 / answered as f64;
    Ok(Rate {
        ops_s: answered as f64 / wall,
        controller_us: us(server.cpu() - server_before),
        client_us: us(thread_cpu() - client_before),
    })
}

/// The same operations one at a time, through the client library.
fn latency(common: &Common, cluster: &Cluster, kind: Request) -> Result<Series, String> {
    let mut rounds = Vec::new();
    for round in 0..common.rounds {
        let (client, job) = prepare(cluster, &format!("latency-{round}-{}", kind as u8))?;
        let work: Work<'_> = Box::new(|i| one(&client, kind, job, i).map_err(|e| e.to_string()));
        let server = cluster.controller_thread();
        rounds.push(measure::run(&server, common.limit(), 0, vec![work])?);
        cluster.client(cluster.token()).deregister_job(job).map_err(|e| e.to_string())?;
    }
    Ok(Series::of(rounds))
}

fn one(client: &Client, kind: Request, job: JobId, i: u64) -> Result<(), Error> {
    match kind {
        Request::Renew => client.renew(job, &[path(i)]).map(drop),
        Request::Lookup => client.lease(job, &path(i)).map(drop),
        Request::CreatePrefix => {
            let path = format!("{}/n{i}", path(i));
            client.create_prefix(job, &path, &[], PrefixOptions::default()).map(drop)
        }
        Request::Open => client.open(job, &format!("/a{}", i % FAN_OUT)).map(drop),
        Request::CreateRemove if i.is_multiple_of(2) => {
            client.create_file(job, "/a0:s", 1, false).map(drop)
        }
        Request::CreateRemove => client.remove_structure(job, "/a0:s"),
    }
}

fn print(args: &ControllerArgs, common: &Common, pinning: Pinning, about: &str, found: &Found) {
    say!("{about}; {}; over {}", pinning.show(), common.transport.name());
    say!("{} rounds of {} s; medians of the rounds\n", common.rounds, common.seconds);
    say!(
        "Pipelined: {} connections with {} requests in flight each; one controller thread\n",
        args.connections,
        args.window
    );
    let head = ["operation", "ops/s (min..max)", "controller us/op", "client us/op", "45,000/s"];
    let mut table = Table::new(&head);
    for (kind, rates) in &found.rates {
        let of = |f: fn(&Rate) -> f64| Spread::of(rates.iter().map(f));
        let ops = of(|r| r.ops_s);
        let verdict = match (kind.required(), ops.median >= REQUIRED) {
            (false, _) => "",
            (true, true) => "reached",
            (true, false) => "MISSED",
        };
        table.row(vec![
            kind.name().into(),
            spread(ops),
            spread(of(|r| r.controller_us)),
            number(of(|r| r.client_us).median),
            verdict.into(),
        ]);
    }
    table.print();
    say!("\nOne at a time, through the client library\n");
    let mut table = Table::new(&[&["waiting", "operation"][..], &SERIES].concat());
    for (waiting, kind, series) in &found.latencies {
        table.series(&[waiting.name(), kind.name()], series);
    }
    table.print();
    say!("\nMemory of the controller\n");
    let head = ["of each", "count", "resident bytes", "counted bytes", "aim", "paper"];
    let mut table = Table::new(&head);
    let mut cost = |name: &str, c: &Cost, aim: &str, paper: &str| {
        let (count, resident) = (number(c.count as f64), number(c.resident));
        let cells = [name, &count, &resident, &number(c.counted), aim, paper];
        table.row(cells.map(str::to_owned).into());
    };
    cost("prefix", &found.costs.prefix, "256", "64");
    cost("block, free", &found.costs.free_block, "24", "8");
    cost("block, held by a structure", &found.costs.held_block, "24", "8");
    table.print();
}

fn json_of(
    args: &ControllerArgs,
    common: &Common,
    pinning: Pinning,
    about: &str,
    found: &Found,
) -> Value {
    let rates: Vec<Value> = found
        .rates
        .iter()
        .map(|(kind, rates)| {
            let of = |f: fn(&Rate) -> f64| Spread::of(rates.iter().map(f)).json();
            json!({
                "operation": kind.name(), "ops_per_s": of(|r| r.ops_s),
                "controller_cpu_us_per_op": of(|r| r.controller_us),
                "client_cpu_us_per_op": of(|r| r.client_us),
            })
        })
        .collect();
    let latencies: Vec<Value> = found
        .latencies
        .iter()
        .map(|(waiting, kind, series)| {
            json!({
                "waiting": waiting.name(), "operation": kind.name(), "figures": series.json(),
            })
        })
        .collect();
    let costs = &found.costs;
    json!({
        "bench": "controller", "transport": common.transport.name(), "machine": about, "pinning": pinning.show(),
        "rounds": common.rounds, "seconds": common.seconds, "connections": args.connections,
        "window": args.window, "pipelined": rates, "synchronous": latencies,
        "memory": {
            "prefix": costs.prefix.json(), "free_block": costs.free_block.json(),
            "held_block": costs.held_block.json(),
        },
    })
}
