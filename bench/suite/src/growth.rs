//! `bench growth`: the effect on writers when a structure grows.

mod fill;
mod outgrow;

use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use honeycomb::failure::CommandResult;
use honeycomb::output::Output;

/// Upper bound of the histograms, in nanoseconds.
const LATENCY_MAX: u64 = 60_000_000_000;

/// Measures the effect of growth on the latency of writes.
///
/// For files and queues it alternates the same writes between two clusters: one with blocks large enough for
/// a whole round, so that nothing grows, and one with small blocks, where every few hundred writes fill a
/// block. Both use fresh memory in every round. Growth has no effect if latencies are equal up to p99.9.
///
/// A store (`--structure kv`) is filled to --size from empty in batches of 1000 entries, and emptied again,
/// on a new cluster each time, and with --beside redis in turns with a new redis-server.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench growth --quick
  honeycomb bench growth --quick --structure queue --item 1KiB --json
  honeycomb bench growth --quick --structure kv --beside redis --out figures")]
pub struct GrowthArgs {
    /// Kinds of structures to write to
    #[arg(long, value_enum, value_delimiter = ',', default_value = "file,queue,kv")]
    structure: Vec<Structure>,
    #[command(flatten)]
    outgrow: outgrow::OutgrowArgs,
    #[command(flatten)]
    fill: fill::FillArgs,
    /// Run for only a few seconds: a check that it works, not a measurement
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Structure {
    File,
    Queue,
    Kv,
}

/// `honeycomb bench growth`.
pub fn run(args: &GrowthArgs) -> CommandResult {
    let kinds = args.structure.iter().filter_map(|structure| match structure {
        Structure::File => Some(outgrow::Kind::File),
        Structure::Queue => Some(outgrow::Kind::Queue),
        Structure::Kv => None,
    });
    let kinds: Vec<_> = kinds.collect();
    if !kinds.is_empty() {
        outgrow::run(&args.outgrow, &kinds, args.quick, args.output.json)?;
    }
    if args.structure.contains(&Structure::Kv) {
        fill::run(&args.fill, args.quick, args.output.json)?;
    }
    Ok(())
}

fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX, 3).expect("sound bounds")
}
