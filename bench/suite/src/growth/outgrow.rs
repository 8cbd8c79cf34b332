//! Files and queues that outgrow small blocks, beside the same writes to blocks that hold everything.

use super::empty;
use crate::cluster::Cluster;
use crate::kv::noise;
use crate::process::{Pinning, machine};
use crate::report::{Table, number};
use crate::trace::bar;
use crate::{Pool, Waiting};
use clap::Args;
use hdrhistogram::Histogram;
use honeycomb::failure::{CommandResult, Failure};
use honeycomb::say;
use honeycomb::size;
use honeycomb_client::{Client, Error};
use honeycomb_env::Clock;
use honeycomb_types::JobId;
use serde_json::{Value, json};
use std::time::Duration;

/// Maximum ratio between the p99.9 of a growing and of a resting structure at which growth counts as not
/// noticeable: two runs of the same structure differ by as much.
const SAME: f64 = 1.2;

/// The options of the comparison.
#[derive(Args)]
pub(super) struct OutgrowArgs {
    /// Size of each append to a file, and of each item of a queue
    #[arg(long, value_parser = size::parse, default_value = "4KiB")]
    item: u64,
    /// Size of the small blocks of files and queues
    #[arg(long, value_parser = size::parse, default_value = "1MiB")]
    block_size: u64,
    /// Number of blocks to fill in a round
    #[arg(long, default_value_t = 48, value_parser = clap::value_parser!(u64).range(2..=10_000))]
    blocks: u64,
    /// Number of rounds on each cluster
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
}

/// A kind of structure that continues in further blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Queue,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Queue => "queue",
        }
    }
}

/// Latencies of writes to one structure.
struct Found {
    kind: Kind,
    rest: Histogram<u64>,
    growing: Histogram<u64>,
    /// Number of blocks that were filled.
    grown: u64,
}

impl Found {
    fn us(histogram: &Histogram<u64>, quantile: f64) -> f64 {
        histogram.value_at_quantile(quantile) as f64 / 1000.0
    }

    fn unnoticed(&self) -> bool {
        Found::us(&self.growing, 0.999) <= SAME * Found::us(&self.rest, 0.999)
    }
}

/// Compares writes to structures of these kinds, and prints the figures.
pub(super) fn run(args: &OutgrowArgs, kinds: &[Kind], quick: bool, json: bool) -> CommandResult {
    let limit = args.block_size / (2 * honeycomb_types::limits::LARGE_FRACTION);
    if args.item == 0 || args.item > limit {
        let (given, limit) = (size::show(args.item), size::show(limit));
        return Err(Failure::invalid(format!("--item {given} is not between 1 B and {limit}")));
    }
    let about = machine();
    let (blocks, rounds) = match quick {
        true => (args.blocks.min(8), args.rounds.min(2)),
        false => (args.blocks, args.rounds),
    };
    let bytes = blocks * args.block_size;
    let roomy = (2 * bytes).next_power_of_two();
    let start = |block_size: u64| {
        let pool = Pool { memory: 4 * bytes + 12 * block_size, block_size };
        Cluster::on(1, pool, Waiting::Sleeping, Pinning::default())
    };
    let (rest, growing) = (start(roomy)?, start(args.block_size)?);
    let mut all = Vec::new();
    for &kind in kinds {
        let mut found = Found { kind, rest: empty(), growing: empty(), grown: 0 };
        let progress = bar(kind.name(), rounds as u64);
        // The first round is not counted: connections are new in it.
        for round in 0..=rounds {
            let mut unread = empty();
            let counted = round > 0;
            let into = if counted { &mut found.rest } else { &mut unread };
            write(args, &rest, kind, round, bytes, into)?;
            let into = if counted { &mut found.growing } else { &mut unread };
            let grown = write(args, &growing, kind, round, bytes, into)?;
            found.grown += if counted { grown } else { 0 };
            progress.set_position(round as u64);
        }
        progress.finish_and_clear();
        if json {
            say!("{}", json_of(args, &about, &found));
        }
        all.push(found);
    }
    if !json {
        print(args, &about, &all);
    }
    Ok(())
}

/// One round on one cluster; answers the number of filled blocks.
fn write(
    args: &OutgrowArgs,
    cluster: &Cluster,
    kind: Kind,
    round: u32,
    bytes: u64,
    into: &mut Histogram<u64>,
) -> CommandResult<u64> {
    let (client, ticket) = cluster.job(&format!("{}-{round}", kind.name()))?;
    client.create_prefix(ticket.job, "/grow", &[], Default::default())?;
    let item = noise(args.item as usize);
    let mut work = writer(&client, ticket.job, kind, &item)?;
    let clock = Clock::start();
    for _ in 0..bytes / args.item {
        let begun = clock.now();
        work()?;
        into.saturating_record(clock.now().since(begun).as_nanos() as u64);
    }
    drop(work);
    let grown = client.open(ticket.job, "/grow")?.blocks() as u64 - 1;
    cluster.client(cluster.token()).deregister_job(ticket.job)?;
    Ok(grown)
}

type Work<'a> = Box<dyn FnMut() -> Result<(), Error> + 'a>;

fn writer<'a>(client: &Client, job: JobId, kind: Kind, item: &'a [u8]) -> Result<Work<'a>, Error> {
    Ok(match kind {
        Kind::File => {
            let file = client.create_file(job, "/grow", 1, false)?;
            Box::new(move || file.append(item).map(drop))
        }
        Kind::Queue => {
            let queue = client.create_queue(job, "/grow", 0, 0, false)?;
            Box::new(move || queue.put(item, Duration::ZERO))
        }
    })
}

fn print(args: &OutgrowArgs, about: &str, all: &[Found]) {
    say!("{about}; not pinned: the kernel places both sides");
    say!("writes of {}, blocks of {}\n", size::show(args.item), size::show(args.block_size));
    let head =
        ["structure", "writes", "blocks outgrown", "", "p50 us", "p99", "p99.9", "max", "noticed"];
    let mut table = Table::new(&head);
    for found in all {
        for (what, histogram) in [("at rest", &found.rest), ("growing", &found.growing)] {
            let growing = what == "growing";
            table.row(vec![
                found.kind.name().into(),
                histogram.len().to_string(),
                if growing { found.grown.to_string() } else { "0".into() },
                what.into(),
                number(Found::us(histogram, 0.5)),
                number(Found::us(histogram, 0.99)),
                number(Found::us(histogram, 0.999)),
                number(histogram.max() as f64 / 1000.0),
                match (growing, found.unnoticed()) {
                    (false, _) => "",
                    (true, true) => "no",
                    (true, false) => "YES",
                }
                .into(),
            ]);
        }
    }
    table.print();
}

fn json_of(args: &OutgrowArgs, about: &str, found: &Found) -> Value {
    let us = |histogram: &Histogram<u64>, quantile| Found::us(histogram, quantile);
    json!({
        "bench": "growth", "structure": found.kind.name(), "write_bytes": args.item,
        "block_bytes": args.block_size, "writes": found.growing.len(), "grown": found.grown,
        "p50_us_rest": us(&found.rest, 0.5), "p50_us_growing": us(&found.growing, 0.5),
        "p99_us_rest": us(&found.rest, 0.99), "p99_us_growing": us(&found.growing, 0.99),
        "p999_us_rest": us(&found.rest, 0.999), "p999_us_growing": us(&found.growing, 0.999),
        "max_us_rest": found.rest.max() as f64 / 1000.0,
        "max_us_growing": found.growing.max() as f64 / 1000.0,
        "unnoticed": found.unnoticed(), "machine": about,
    })
}
