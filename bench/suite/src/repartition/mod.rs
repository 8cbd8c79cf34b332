//! `bench repartition`: the time of block splits, and their effect on clients (Figure 11b).

mod keys;
mod moves;
mod round;

use super::cluster::Cluster;
use super::plot::{Panel, Series, Shape, draw};
use super::process::{Pinning, machine};
use super::report::{Table, number};
use super::trace::{bar, write_csv};
use super::{Pool, Waiting};
use clap::Args;
use honeycomb::failure::{CommandResult, Failure};
use honeycomb::output::Output;
use honeycomb::say;
use honeycomb::size;
use honeycomb_structures::splits_from;
use honeycomb_types::Marks;
use honeycomb_wire::Status;
use keys::{VALUE_MIN, Values, Wrong};
use round::{Round, Seen};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// Blocks of the pool: those for a split, and the reserved ones.
const BLOCKS: u64 = 12;
/// Block size of a quick run, unless its values need larger blocks.
const QUICK_BLOCK: u64 = 1 << 20;
/// Number of splits in a quick run.
const QUICK_SPLITS: u32 = 3;
/// The run ends after this many rounds more than the requested splits, even with too few splits.
const ROUNDS_MORE: u32 = 3;

/// Measures the time of splits of key-value blocks, and the latency of gets meanwhile.
///
/// In each round, a block is filled almost to its high mark. Readers and writers work on it for a while
/// (before), then the writers continue with new keys until it splits (during). The latencies of all rounds
/// are combined. At the end of each round, every key is read, and the store is scanned for duplicate keys. A
/// split lasts from the allocation of its new block by the controller until the store's map contains that
/// block, to a millisecond.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench repartition --quick --sizes 1KiB
  honeycomb bench repartition --quick --sizes 64 --json
  honeycomb bench repartition --quick --sizes 1KiB --readers 2 --out figures")]
pub struct RepartitionArgs {
    /// Sizes of values to measure
    #[arg(long, value_delimiter = ',', value_parser = size::parse, default_value = "1MiB,100KiB,1KiB,64")]
    sizes: Vec<u64>,
    /// Number of splits for each size
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    splits: u32,
    /// Size of a block
    #[arg(long, value_parser = size::parse, default_value = "128MiB")]
    block_size: u64,
    /// Percent of the block to fill before the measurement, slowly above 60 [default: slightly less than the
    /// level at which these writers cause a split, 63 to 85]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=92))]
    fill: Option<u32>,
    /// Seconds of the measurement before each split
    #[arg(long, default_value_t = 0.5)]
    window: f64,
    /// Number of writer threads, before and during
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    writers: u32,
    /// Number of reader threads, before and during; with 0, only the times of splits are measured
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(..=64))]
    readers: u32,
    /// Size of one request of a writer, at least one value
    #[arg(long, value_parser = size::parse, default_value = "16KiB")]
    write_size: u64,
    /// Pause of a writer after each request, in microseconds
    #[arg(long, default_value_t = 1000)]
    pause_us: u64,
    /// Seed of the keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run only a few splits of small blocks: a check that it works, not a measurement
    #[arg(long)]
    quick: bool,
    /// Folder for the figures: a PNG and its data as CSV for each size
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Number of cores that serve requests
    #[arg(long, default_value_t = 2)]
    shards: u8,
    #[command(flatten)]
    output: Output,
}

/// The results for one size of values.
struct Found {
    value: u64,
    block: u64,
    split_ms: Vec<f64>,
    before_us: Vec<f64>,
    during_us: Vec<f64>,
    longest: Duration,
    wrong: Wrong,
    keys: u64,
    rounds: u32,
    /// Percent of the block in use when its split began.
    full: Vec<f64>,
}

/// `honeycomb bench repartition`.
pub fn run(args: &RepartitionArgs) -> CommandResult {
    let about = machine();
    if !(args.window > 0.0 && args.window <= 3600.0) {
        return Err(Failure::invalid("--window must be above 0 and at most 3600 seconds"));
    }
    let mut all = Vec::new();
    for value in &args.sizes {
        let found = measure(args, *value)?;
        write_figure(args, &found)?;
        if args.output.json {
            say!("{}", json_of(args, &about, &found));
        }
        all.push(found);
    }
    if !args.output.json {
        print(args, &about, &all);
    }
    let wrong = all.iter().fold(Wrong::default(), |sum, found| sum.and(found.wrong));
    if wrong == Wrong::default() {
        return Ok(());
    }
    let Wrong { lost, doubled, stale } = wrong;
    let text = format!("splits damaged keys: {lost} lost, {doubled} doubled, {stale} stale");
    Err(Failure::new(Status::Internal, text))
}

fn measure(args: &RepartitionArgs, value: u64) -> CommandResult<Found> {
    let quick =
        QUICK_BLOCK.max((2 * honeycomb_types::limits::LARGE_FRACTION * value).next_power_of_two());
    let block = if args.quick { quick.min(args.block_size) } else { args.block_size };
    let limit = block / honeycomb_types::limits::LARGE_FRACTION;
    if value < VALUE_MIN as u64 || value > limit {
        let (given, limit) = (size::show(value), size::show(limit));
        return Err(Failure::invalid(format!(
            "values of {given} are not possible: with blocks of {} they have {VALUE_MIN} B to \
                {limit}",
            size::show(block)
        )));
    }
    let wanted = if args.quick { args.splits.min(QUICK_SPLITS) } else { args.splits };
    let window = if args.quick { args.window.min(0.1) } else { args.window };
    let pool = Pool { memory: block * BLOCKS * args.shards as u64, block_size: block };
    let cluster = Cluster::on(args.shards, pool, Waiting::Sleeping, Pinning::default())?;
    let values = Values::new(value as usize);
    let mut found = Found {
        value,
        block,
        split_ms: Vec::new(),
        before_us: Vec::new(),
        during_us: Vec::new(),
        longest: Duration::ZERO,
        wrong: Wrong::default(),
        keys: 0,
        rounds: 0,
        full: Vec::new(),
    };
    let progress = bar(&format!("values of {}", size::show(value)), wanted as u64);
    while (found.split_ms.len() as u32) < wanted && found.rounds < wanted + ROUNDS_MORE {
        let round = Round {
            value: value as usize,
            block,
            fill: args.fill.map_or_else(|| fill_of(args, block, value), |f| f as f64 / 100.0),
            window: Duration::from_secs_f64(window),
            writers: args.writers,
            readers: args.readers,
            write: args.write_size as usize,
            pause: Duration::from_micros(args.pause_us),
            seed: args.seed + found.rounds as u64,
        };
        found.add(round::run(&cluster, round, &values, found.rounds)?);
        progress.set_position(found.split_ms.len() as u64);
        progress.set_message(format!("{:.0} ms", found.split_ms.last().copied().unwrap_or(0.0)));
    }
    progress.finish_and_clear();
    found.sort();
    Ok(found)
}

/// The fraction of a block to fill before: the writes of the window then take it close to the level at which
/// it requests a split, at their rate.
fn fill_of(args: &RepartitionArgs, block: u64, value: u64) -> f64 {
    let request = args.write_size.max(value) as f64;
    let rate = args.writers as f64 * request * 1e6 / args.pause_us.max(1) as f64;
    let latest = Marks::default().split_at(block as usize);
    let asks = splits_from(block as usize, rate as u64, Duration::ZERO, latest);
    (asks as f64 / block as f64).min(0.92) - 0.07
}

impl Found {
    fn add(&mut self, seen: Seen) {
        let us = |d: Duration| d.as_nanos() as f64 / 1000.0;
        let ms = seen.splits.iter().map(|s| s.ended.since(s.begun).as_secs_f64() * 1000.0);
        self.split_ms.extend(ms);
        self.before_us.extend(seen.before.into_iter().map(us));
        self.during_us.extend(seen.during.into_iter().map(us));
        self.longest = self.longest.max(seen.longest);
        self.wrong = self.wrong.and(seen.wrong);
        self.keys += seen.keys;
        self.rounds += 1;
        self.full.extend(seen.full.map(|part| part * 100.0));
    }

    fn sort(&mut self) {
        for list in [&mut self.split_ms, &mut self.before_us, &mut self.during_us, &mut self.full] {
            list.sort_by(f64::total_cmp);
        }
    }

    fn longest_ms(&self) -> f64 {
        self.longest.as_secs_f64() * 1000.0
    }
}

/// A quantile of a sorted list; NaN when it is empty.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let at = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(at.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

fn print(args: &RepartitionArgs, about: &str, all: &[Found]) {
    say!("{about}; not pinned: the kernel places both sides");
    say!(
        "{} writer(s) of {} every {} us, {} reader(s), in both windows; {} core(s) serve\n",
        args.writers,
        size::show(args.write_size),
        args.pause_us,
        args.readers,
        args.shards
    );
    let head = [
        "value",
        "block",
        "splits",
        "full % (least)",
        "split ms p50",
        "max",
        "get p99 us before",
        "during",
        "p50 before",
        "during",
        "gets during",
        "longest wait ms",
        "lost, doubled, stale of keys",
    ];
    let mut table = Table::new(&head);
    for f in all {
        let Wrong { lost, doubled, stale } = f.wrong;
        table.row(vec![
            size::show(f.value),
            size::show(f.block),
            f.split_ms.len().to_string(),
            format!("{} ({})", number(quantile(&f.full, 0.5)), number(quantile(&f.full, 0.0))),
            number(quantile(&f.split_ms, 0.5)),
            number(quantile(&f.split_ms, 1.0)),
            number(quantile(&f.before_us, 0.99)),
            number(quantile(&f.during_us, 0.99)),
            number(quantile(&f.before_us, 0.5)),
            number(quantile(&f.during_us, 0.5)),
            f.during_us.len().to_string(),
            number(f.longest_ms()),
            format!("{lost}, {doubled}, {stale} of {}", number(f.keys as f64)),
        ]);
    }
    table.print();
}

fn json_of(args: &RepartitionArgs, about: &str, f: &Found) -> Value {
    let cut = |v: f64| (v * 1000.0).round() / 1000.0;
    json!({
        "bench": "repartition", "value_size": f.value, "block_bytes": f.block,
        "splits": f.split_ms.len(), "full_percent_p50": cut(quantile(&f.full, 0.5)),
        "full_percent_min": cut(quantile(&f.full, 0.0)), "split_ms_p50": cut(quantile(&f.split_ms, 0.5)),
        "split_ms_max": cut(quantile(&f.split_ms, 1.0)),
        "get_p99_us_before": cut(quantile(&f.before_us, 0.99)),
        "get_p99_us_during": cut(quantile(&f.during_us, 0.99)),
        "max_wait_ms": cut(f.longest_ms()), "lost": f.wrong.lost, "doubled": f.wrong.doubled,
        "stale": f.wrong.stale,
        "get_p50_us_before": cut(quantile(&f.before_us, 0.5)),
        "get_p50_us_during": cut(quantile(&f.during_us, 0.5)), "gets_before": f.before_us.len(),
        "gets_during": f.during_us.len(), "keys_checked": f.keys, "rounds": f.rounds,
        "writers": args.writers, "readers": args.readers, "shards": args.shards, "machine": about,
    })
}

/// A step for each percent: enough for a figure of thousands of latencies.
fn steps(sorted: &[f64]) -> Vec<(f64, f64)> {
    (0..=200)
        .map(|i| i as f64 / 200.0)
        .map(|part| (quantile(sorted, part), part))
        .filter(|(value, _)| value.is_finite())
        .collect()
}

fn write_figure(args: &RepartitionArgs, f: &Found) -> CommandResult {
    let Some(folder) = &args.out else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(|e| Failure::io(folder.display(), &e))?;
    let name = format!("repartition-{}", f.value);
    let rows = (0..=200).map(|i| {
        let part = i as f64 / 200.0;
        let of = |list: &[f64]| quantile(list, part);
        vec![part, of(&f.split_ms), of(&f.before_us), of(&f.during_us)]
    });
    let head = "part,split_ms,get_us_before,get_us_during";
    write_csv(&folder.join(format!("{name}.csv")), head, rows)?;
    let series = |name: &str, points| Series { name: name.into(), shape: Shape::Line, points };
    let mut panels = vec![Panel {
        title: format!("{} splits of {}", f.split_ms.len(), size::show(f.block)),
        x: "milliseconds".into(),
        y: "part of the splits".into(),
        series: vec![series("split", steps(&f.split_ms))],
        logarithmic: true,
        logarithmic_y: false,
    }];
    if args.readers > 0 {
        panels.push(Panel {
            title: format!("gets of {}", size::show(f.value)),
            x: "microseconds".into(),
            y: "part of the gets".into(),
            series: vec![
                series("before", steps(&f.before_us)),
                series("during a split", steps(&f.during_us)),
            ],
            logarithmic: true,
            logarithmic_y: false,
        });
    }
    draw(&folder.join(format!("{name}.png")), &panels).map_err(Failure::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_of_the_list() {
        let list: Vec<f64> = (1..=100).map(f64::from).collect();
        for (part, value) in [(0.0, 1.0), (0.5, 50.0), (0.99, 99.0), (1.0, 100.0)] {
            assert_eq!(quantile(&list, part), value);
        }
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
