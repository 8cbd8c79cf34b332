//! Latency against throughput of the mix, with an increasing number of requests in flight, on one and on two
//! controller shards (paper, Figure 13).

use super::{CatalogArgs, POOL, Way, prepare, queue};
use crate::measure::{Limit, Spread};
use crate::nodes::Nodes;
use crate::plot::{Panel, Series, Shape, draw};
use crate::process::{Pinning, machine};
use crate::report::{Progress, Table, spread};
use crate::trace::write_csv;
use crate::wire::Wire;
use crate::{Common, Waiting};
use honeycomb::failure::{CommandResult, Failure};
use honeycomb::say;
use honeycomb_client::JobTicket;
use honeycomb_env::Clock;
use honeycomb_types::{JobId, Time};
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Requests in flight, of both loads together: the offered load.
const IN_FLIGHT: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const SHARDS: [usize; 2] = [1, 2];
/// Maximum number of jobs to register until each shard has one.
const JOBS_MAX: usize = 64;

/// One round with a number of requests in flight.
#[derive(Clone, Copy)]
struct Point {
    ops_s: f64,
    p50_us: f64,
    p99_us: f64,
}

/// The rounds with one number of requests in flight on one number of shards.
struct Offered {
    shards: usize,
    in_flight: usize,
    rounds: Vec<Point>,
}

impl Offered {
    fn of(&self, figure: fn(&Point) -> f64) -> Spread {
        Spread::of(self.rounds.iter().map(figure))
    }
}

/// `honeycomb bench catalog --curve`.
pub(super) fn run(args: &CatalogArgs, common: &Common) -> CommandResult {
    let progress = Progress::new();
    let all = SHARDS
        .into_iter()
        .flat_map(|shards| IN_FLIGHT.into_iter().map(move |in_flight| (shards, in_flight)));
    let mut found: Vec<Offered> =
        all.map(|(shards, in_flight)| Offered { shards, in_flight, rounds: Vec::new() }).collect();
    for round in 0..common.rounds {
        for of_shards in found.chunks_mut(IN_FLIGHT.len()) {
            let shards = of_shards[0].shards;
            progress.tell(&format!("{shards} controller shards, round {}", round + 1));
            let nodes = Nodes::start(POOL, Waiting::Polling, Pinning::default(), None, shards)?;
            let jobs = two_jobs(&nodes, shards)?;
            for offered in of_shards {
                let point = measure(&nodes, &jobs, offered.in_flight, common.limit())?;
                offered.rounds.push(point);
            }
        }
    }
    drop(progress);
    let about = machine();
    match common.output.json {
        true => say!("{}", json_of(common, &about, &found)),
        false => print(common, &about, &found),
    }
    write_figure(args, &found)
}

/// Two jobs prepared for the mix: both on the same shard, or one on each.
pub(super) fn two_jobs(nodes: &Nodes, shards: usize) -> Result<Vec<JobTicket>, String> {
    let mut jobs: Vec<JobTicket> = Vec::new();
    for n in 0..JOBS_MAX {
        let (client, ticket) = nodes.job(&format!("scale-{n}"))?;
        if shards == 1 || jobs.iter().all(|job| job.job.controller() != ticket.job.controller()) {
            prepare(&client, ticket.job)?;
            jobs.push(ticket);
        }
        if jobs.len() == 2 {
            return Ok(jobs);
        }
    }
    Err(format!("cannot place a job on each controller shard: {JOBS_MAX} jobs are all on one"))
}

/// Keeps a number of requests in flight, half of them for each job.
fn measure(
    nodes: &Nodes,
    jobs: &[JobTicket],
    in_flight: usize,
    limit: Limit,
) -> Result<Point, String> {
    let clock = Clock::start();
    let begun = clock.now();
    let halves = [in_flight.div_ceil(2), in_flight / 2];
    let runs = std::thread::scope(|scope| {
        let busy = jobs.iter().zip(halves).filter(|(_, window)| *window > 0);
        let runs: Vec<_> = busy
            .map(|(ticket, window)| {
                scope.spawn(move || {
                    let wire = Wire::connect(nodes.address(), &ticket.token)?;
                    keep_in_flight(wire, window, limit, ticket.job)
                })
            })
            .collect();
        let runs = runs.into_iter().map(|run| run.join().expect("a load does not panic"));
        runs.collect::<Result<Vec<_>, String>>()
    })?;
    let seconds = clock.now().since(begun).as_secs_f64();
    let mut waits: Vec<u64> = runs.concat();
    waits.sort_unstable();
    let at = |share: usize| waits[(waits.len() * share / 100).min(waits.len() - 1)] as f64 / 1000.0;
    Ok(Point { ops_s: waits.len() as f64 / seconds, p50_us: at(50), p99_us: at(99) })
}

/// One connection: it sends a new request for each answer received. Answers the latencies in nanoseconds,
/// from before a request is sent until its answer is read.
fn keep_in_flight(
    mut wire: Wire,
    window: usize,
    limit: Limit,
    job: JobId,
) -> Result<Vec<u64>, String> {
    let clock = Clock::start();
    let begun = clock.now();
    let (mut sent, mut waits) = (0, Vec::new());
    let mut since: VecDeque<Time> = VecDeque::with_capacity(window);
    loop {
        let now = clock.now();
        // It ends after a whole mix, so that every created prefix is removed.
        let more = sent % super::KINDS != 0 || sent < limit.ops && now.since(begun) < limit.time;
        while more && since.len() < window {
            queue(&mut wire, Way::Pipelined, job, 0, sent);
            since.push_back(now);
            sent += 1;
        }
        if since.is_empty() {
            return Ok(waits);
        }
        wire.flush()?;
        // Answers on a connection arrive in the order of the requests.
        let answered = wire.some_replies()?;
        let now = clock.now();
        waits.extend(since.drain(..answered).map(|at| now.since(at).as_nanos() as u64));
    }
}

fn print(common: &Common, about: &str, found: &[Offered]) {
    say!("{about}; not pinned: the kernel places both sides");
    say!("{} rounds of {} s; medians of the rounds\n", common.rounds, common.seconds);
    let head = ["shards", "in flight", "ops/s (min..max)", "p50 us", "p99 us"];
    let mut table = Table::new(&head);
    for offered in found {
        table.row(vec![
            offered.shards.to_string(),
            offered.in_flight.to_string(),
            spread(offered.of(|p| p.ops_s)),
            spread(offered.of(|p| p.p50_us)),
            spread(offered.of(|p| p.p99_us)),
        ]);
    }
    table.print();
}

fn json_of(common: &Common, about: &str, found: &[Offered]) -> Value {
    let row = |offered: &Offered| {
        json!({
            "shards": offered.shards, "in_flight": offered.in_flight,
            "ops_per_s": offered.of(|p| p.ops_s).json(),
            "p50_us": offered.of(|p| p.p50_us).json(), "p99_us": offered.of(|p| p.p99_us).json(),
        })
    };
    json!({
        "bench": "catalog-curve", "machine": about, "rounds": common.rounds,
        "seconds": common.seconds, "rows": found.iter().map(row).collect::<Vec<Value>>(),
    })
}

fn write_figure(args: &CatalogArgs, found: &[Offered]) -> CommandResult {
    let Some(folder) = &args.out else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(|e| Failure::io(folder.display(), &e))?;
    let row = |offered: &Offered| {
        let figures = [offered.of(|p| p.ops_s), offered.of(|p| p.p50_us), offered.of(|p| p.p99_us)];
        let medians = figures.map(|figure| figure.median);
        [&[offered.shards as f64, offered.in_flight as f64][..], &medians].concat()
    };
    let head = "shards,in_flight,ops_per_s,p50_us,p99_us";
    write_csv(&folder.join("catalog-curve.csv"), head, found.iter().map(row))?;
    let panel = |title: &str, figure: fn(&Point) -> f64| Panel {
        title: title.into(),
        x: "thousands of operations in a second".into(),
        y: "microseconds".into(),
        series: found.chunks(IN_FLIGHT.len()).map(|of_shards| line(of_shards, figure)).collect(),
        logarithmic: false,
        logarithmic_y: false,
    };
    let panels = [
        panel("half of the operations wait less", |p| p.p50_us),
        panel("99 of 100 wait less", |p| p.p99_us),
    ];
    draw(&folder.join("catalog-curve.png"), &panels).map_err(Failure::from)
}

/// Points sorted by the offered load, because throughput may fall beyond saturation.
fn line(of_shards: &[Offered], figure: fn(&Point) -> f64) -> Series {
    let name = if of_shards[0].shards == 1 { "one shard" } else { "two shards" }.to_owned();
    let point =
        |offered: &Offered| (offered.of(|p| p.ops_s).median / 1000.0, offered.of(figure).median);
    Series { name, shape: Shape::Marked, points: of_shards.iter().map(point).collect() }
}
