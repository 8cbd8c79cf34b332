//! A store that is filled from empty in batches, and emptied again, in turns with redis-server.

use super::empty;
use crate::cluster::Cluster;
use crate::kv::noise;
use crate::measure::Spread;
use crate::plot::{self, Panel, Shape};
use crate::process::{Pinning, Watched, machine};
use crate::redis::{self, Redis, RedisClient};
use crate::report::{Table, number, spread};
use crate::trace::{bar, write_csv};
use crate::{Pool, Transport, Waiting};
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use honeycomb::failure::{CommandResult, Failure};
use honeycomb::{fitting_block_size, say, size};
use honeycomb_client::{Client, Kv};
use honeycomb_env::Clock;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Entries of a batch.
const BATCH: usize = 1000;
/// Bytes of a key: a number in decimal digits.
const KEY: usize = 10;
/// The least stored bytes at which the resident memory is compared with them.
const RESIDENT_FROM: u64 = 64 << 20;
/// Number of intervals of the filling of which the longest batch is kept, for the plot.
const INTERVALS: u64 = 400;
/// Time after the last deletion before the resident memory is read.
const SETTLE: Duration = Duration::from_secs(2);
/// The same after the last put: a block that rests for a second moves its content together.
const AT_REST: Duration = Duration::from_secs(4);
/// A longer batch is counted: a client notices it.
const NOTICED: Duration = Duration::from_millis(100);
/// Time for one batch: one that needs longer is an error.
const PATIENCE: Duration = Duration::from_secs(60);

/// The options of the filling.
#[derive(Args)]
pub(super) struct FillArgs {
    /// Bytes of keys and values with which a store is filled
    #[arg(long, value_parser = size::parse, default_value = "1GiB")]
    size: u64,
    /// Bytes of a value; one store for each
    #[arg(long, value_parser = size::parse, value_delimiter = ',', default_value = "1000,64")]
    values: Vec<u64>,
    /// Also fill this peer, in turns
    #[arg(long, value_enum)]
    beside: Option<Peer>,
    /// Number of times that each store is filled
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    fills: u32,
    /// Memory of the filled cluster [default: twice the size]
    #[arg(long, value_parser = size::parse)]
    memory: Option<u64>,
    /// Block size of the filled cluster [default: that of `honeycomb start` with this memory]
    #[arg(long, value_parser = size::parse)]
    store_block_size: Option<u64>,
    /// Folder for the figure: the longest batches over the size of the store, as PNG and CSV
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peer {
    Redis,
}

/// A system that is filled.
enum Side {
    Honeycomb { kv: Box<Kv>, _client: Client, cluster: Cluster },
    Redis { client: RedisClient, redis: Redis },
}

type Entry<'a> = (&'a [u8], &'a [u8]);

impl Side {
    fn honeycomb(args: &FillArgs, bytes: u64) -> CommandResult<Side> {
        let memory = args.memory.unwrap_or((2 * bytes).max(256 << 20));
        let block_size = args.store_block_size.unwrap_or_else(|| fitting_block_size(memory));
        let shards = std::thread::available_parallelism().map_or(1, |n| n.get().min(64)) as u8;
        let pool = Pool { memory, block_size };
        let cluster = Cluster::on(shards, pool, Waiting::Polling, Pinning::default())?;
        let token = cluster.job("fill")?.1;
        let client = cluster.client_within(&token.token, PATIENCE);
        client.create_prefix(token.job, "/fill", &[], Default::default())?;
        let kv = client.create_kv(token.job, "/fill", 1, false)?;
        Ok(Side::Honeycomb { kv: Box::new(kv), _client: client, cluster })
    }

    fn redis() -> CommandResult<Side> {
        let redis = Redis::start(Pinning::default(), Transport::Tcp)?;
        let client = redis.client(Waiting::Polling.spin());
        let client = client.map_err(|e| Failure::io(redis.address(), &e))?;
        Ok(Side::Redis { client, redis })
    }

    fn put(&mut self, entries: &[Entry<'_>]) -> CommandResult {
        match self {
            Side::Honeycomb { kv, .. } => {
                kv.multi_put(entries).into_iter().try_for_each(|done| done.map(drop))?;
            }
            Side::Redis { client, redis } => {
                client.set_many(entries).map_err(|e| Failure::io(redis.address(), &e))?;
            }
        }
        Ok(())
    }

    fn delete(&mut self, keys: &[&[u8]]) -> CommandResult {
        match self {
            Side::Honeycomb { kv, .. } => {
                kv.multi_delete(keys).into_iter().try_for_each(|done| done.map(drop))?;
            }
            Side::Redis { client, redis } => {
                client.unlink_many(keys).map_err(|e| Failure::io(redis.address(), &e))?;
            }
        }
        Ok(())
    }

    fn resident(&self) -> u64 {
        let pid = match self {
            Side::Honeycomb { cluster, .. } => cluster.pid(),
            Side::Redis { redis, .. } => redis.pid(),
        };
        Watched::process(pid).resident_anonymous()
    }
}

/// The figures of one filling and emptying.
struct Fill {
    seconds: f64,
    batches: Histogram<u64>,
    /// Batches that took longer than `NOTICED`.
    noticed: u64,
    /// Bytes stored, and the longest batch since the previous point, in milliseconds.
    longest: Vec<(f64, f64)>,
    /// The most resident bytes for each byte stored, and those at the end.
    resident_most: f64,
    resident_full: f64,
    /// Resident bytes for each entry, `AT_REST` after the last.
    resident_per_entry: f64,
    emptying_seconds: f64,
    emptying: Histogram<u64>,
    /// Resident bytes after the store was emptied, beyond those before.
    resident_empty: f64,
}

/// The entries of a store, made batch by batch.
struct Entries {
    value: Vec<u8>,
    keys: Vec<u8>,
    count: u64,
}

impl Entries {
    fn new(bytes: u64, value: u64) -> Entries {
        let count = bytes / (KEY as u64 + value);
        Entries { value: noise(value as usize), keys: Vec::new(), count }
    }

    fn batches(&self) -> u64 {
        self.count / BATCH as u64
    }

    fn bytes_of(&self, batches: u64) -> u64 {
        batches * (BATCH * (KEY + self.value.len())) as u64
    }

    /// The keys of a batch.
    fn keys(&mut self, batch: u64) -> Vec<&[u8]> {
        use std::io::Write;
        self.keys.clear();
        for i in 0..BATCH as u64 {
            let number = batch * BATCH as u64 + i;
            write!(self.keys, "{number:0KEY$}").expect("a vector takes everything");
        }
        self.keys.chunks(KEY).collect()
    }
}

fn fill(mut side: Side, bytes: u64, value: u64, progress: &ProgressBar) -> CommandResult<Fill> {
    let mut entries = Entries::new(bytes, value);
    let (count, clock, at_rest) = (entries.batches(), Clock::start(), side.resident());
    let constant = entries.value.clone();
    let mut found = Fill::new();
    let (mut since, begun) = (0.0, clock.now());
    let every = (count / INTERVALS).max(1);
    let mut aside = Duration::ZERO;
    for batch in 0..count {
        let keys = entries.keys(batch);
        let batch_of: Vec<Entry<'_>> = keys.iter().map(|key| (*key, &constant[..])).collect();
        let from = clock.now();
        side.put(&batch_of)?;
        let took = clock.now().since(from);
        found.batches.saturating_record(took.as_nanos() as u64);
        found.noticed += u64::from(took > NOTICED);
        since = f64::max(since, took.as_secs_f64() * 1e3);
        if (batch + 1) % every == 0 {
            let from = clock.now();
            let stored = entries.bytes_of(batch + 1);
            found.longest.push((stored as f64, std::mem::take(&mut since)));
            found.compare(side.resident().saturating_sub(at_rest), stored);
            progress.set_position(batch + 1);
            aside += clock.now().since(from);
        }
    }
    found.seconds = clock.now().since(begun).saturating_sub(aside).as_secs_f64();
    let full = entries.bytes_of(count);
    found.resident_full = side.resident().saturating_sub(at_rest) as f64 / full as f64;
    clock.sleep_until(clock.now() + AT_REST);
    let stored = (count * BATCH as u64) as f64;
    found.resident_per_entry = side.resident().saturating_sub(at_rest) as f64 / stored;
    let begun = clock.now();
    for batch in 0..count {
        let keys = entries.keys(batch);
        let from = clock.now();
        side.delete(&keys)?;
        found.emptying.saturating_record(clock.now().since(from).as_nanos() as u64);
        progress.set_position(count - batch - 1);
    }
    found.emptying_seconds = clock.now().since(begun).as_secs_f64();
    clock.sleep_until(clock.now() + SETTLE);
    found.resident_empty = side.resident().saturating_sub(at_rest) as f64;
    Ok(found)
}

impl Fill {
    fn new() -> Fill {
        Fill {
            seconds: 0.0,
            batches: empty(),
            noticed: 0,
            longest: Vec::new(),
            resident_most: 0.0,
            resident_full: 0.0,
            resident_per_entry: 0.0,
            emptying_seconds: 0.0,
            emptying: empty(),
            resident_empty: 0.0,
        }
    }

    fn compare(&mut self, resident: u64, stored: u64) {
        if stored >= RESIDENT_FROM {
            self.resident_most = self.resident_most.max(resident as f64 / stored as f64);
        }
    }
}

fn ms(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e6
}

/// The fillings of one side with values of one size.
struct Found {
    side: &'static str,
    value: u64,
    fills: Vec<Fill>,
}

impl Found {
    fn spread(&self, of: impl Fn(&Fill) -> f64) -> Spread {
        Spread::of(self.fills.iter().map(of))
    }

    /// The figures, under the names of the JSON form.
    fn figures(&self) -> [(&'static str, Spread); 12] {
        let longest = |histogram: &Histogram<u64>| histogram.max() as f64 / 1e6;
        [
            ("seconds", self.spread(|f| f.seconds)),
            ("batch_ms_p50", self.spread(|f| ms(&f.batches, 0.5))),
            ("batch_ms_p99", self.spread(|f| ms(&f.batches, 0.99))),
            ("batch_ms_max", self.spread(|f| longest(&f.batches))),
            ("batches_over_100_ms", self.spread(|f| f.noticed as f64)),
            ("resident_per_byte_most", self.spread(|f| f.resident_most)),
            ("resident_per_byte_full", self.spread(|f| f.resident_full)),
            ("resident_bytes_per_entry_at_rest", self.spread(|f| f.resident_per_entry)),
            ("emptying_seconds", self.spread(|f| f.emptying_seconds)),
            ("emptying_batch_ms_p99", self.spread(|f| ms(&f.emptying, 0.99))),
            ("emptying_batch_ms_max", self.spread(|f| longest(&f.emptying))),
            ("resident_mib_empty", self.spread(|f| f.resident_empty / (1 << 20) as f64)),
        ]
    }

    fn json(&self, bytes: u64, about: &str) -> Value {
        let mut out = json!({
            "bench": "growth", "structure": "kv", "side": self.side, "bytes": bytes,
            "value_bytes": self.value, "batch": BATCH, "fills": self.fills.len(), "machine": about,
        });
        for (name, spread) in self.figures() {
            out[name] = spread.json();
        }
        out
    }
}

/// Fills and empties stores, and prints the figures.
pub(super) fn run(args: &FillArgs, quick: bool, json: bool) -> CommandResult {
    let most = args.values.iter().max().copied().unwrap_or(0);
    if args.size < 2 * BATCH as u64 * (KEY as u64 + most) || args.values.contains(&0) {
        let text = "--size must hold two batches of 1000 entries, and --values be above 0";
        return Err(Failure::invalid(text));
    }
    let about = machine();
    let (bytes, fills) = if quick { (args.size.min(64 << 20), 1) } else { (args.size, args.fills) };
    if args.beside.is_some() && redis::version().is_none() {
        return Err(Failure::invalid("--beside redis needs redis-server on the path"));
    }
    for &value in &args.values {
        let mut sides = vec![Found { side: "honeycomb", value, fills: Vec::new() }];
        if args.beside.is_some() {
            sides.push(Found { side: "redis", value, fills: Vec::new() });
        }
        for _ in 0..fills {
            for found in &mut sides {
                let progress =
                    bar(&format!("{} {value} B", found.side), Entries::new(bytes, value).batches());
                let side = match found.side {
                    "redis" => Side::redis()?,
                    _ => Side::honeycomb(args, bytes)?,
                };
                found.fills.push(fill(side, bytes, value, &progress)?);
                progress.finish_and_clear();
            }
        }
        if let Some(folder) = &args.out {
            figure(folder, value, &sides)?;
        }
        match json {
            true => sides.iter().for_each(|found| say!("{}", found.json(bytes, &about))),
            false => print(&sides, bytes, &about),
        }
    }
    Ok(())
}

fn print(sides: &[Found], bytes: u64, about: &str) {
    say!("{about}; not pinned: the kernel places both sides");
    let value = sides[0].value;
    say!("{} in batches of {BATCH} entries of {KEY} + {value} B\n", size::show(bytes));
    let names = sides.iter().map(|found| found.side);
    let ratio = (sides.len() > 1).then_some("ratio");
    let head: Vec<&str> = std::iter::once("").chain(names).chain(ratio).collect();
    let mut table = Table::new(&head);
    let columns: Vec<_> = sides.iter().map(Found::figures).collect();
    for (row, (name, _)) in columns[0].iter().enumerate() {
        let mut cells = vec![name.replace('_', " ")];
        cells.extend(columns.iter().map(|column| spread(column[row].1)));
        if let [own, peer] = &columns[..] {
            cells.push(number(own[row].1.median / peer[row].1.median));
        }
        table.row(cells);
    }
    table.print();
    say!();
}

/// The longest batches over the size of the store, in the first filling of each side.
fn figure(folder: &Path, value: u64, sides: &[Found]) -> CommandResult {
    std::fs::create_dir_all(folder).map_err(|e| Failure::io(folder.display(), &e))?;
    let gib = |bytes: f64| bytes / (1u64 << 30) as f64;
    let rows = sides.iter().enumerate().flat_map(|(i, found)| {
        let points = &found.fills[0].longest;
        points.iter().map(move |&(stored, ms)| vec![i as f64, stored, ms])
    });
    write_csv(&folder.join(format!("growth-{value}.csv")), "side,bytes,longest_batch_ms", rows)?;
    let series = sides.iter().map(|found| plot::Series {
        name: found.side.to_owned(),
        shape: Shape::Points,
        points: found.fills[0].longest.iter().map(|&(at, ms)| (gib(at), ms)).collect(),
    });
    let panel = Panel {
        title: format!("Batches of {BATCH} entries of {KEY} + {value} B"),
        x: "GiB stored".into(),
        y: "longest batch, ms".into(),
        series: series.collect(),
        logarithmic: false,
        logarithmic_y: true,
    };
    plot::draw(&folder.join(format!("growth-{value}.png")), &[panel]).map_err(Failure::from)
}
