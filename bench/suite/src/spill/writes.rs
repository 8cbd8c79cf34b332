//! `bench spill --writes`: changes of a store that is larger than memory.

use super::rocksdb::RocksDb;
use super::side::{BATCH, Honeycomb, KEY, Keys, POINTS, Side, Size, Way};
use crate::disk::{self, Folder};
use crate::measure::Spread;
use crate::plot::{self, Panel, Shape};
use crate::process::machine;
use crate::report::{Table, number, spread};
use crate::trace::{bar, write_csv};
use clap::{Args, ValueEnum};
use honeycomb::failure::{CommandResult, Failure};
use honeycomb::output::Output;
use honeycomb::{say, size};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Clients of the measurements with many.
const CLIENTS: u32 = 16;

/// The options of the changes.
#[derive(Args)]
pub(super) struct WritesArgs {
    /// Measure changes of a store that is larger than memory instead of files
    #[arg(long)]
    pub writes: bool,
    /// Bytes of a value; one store for each
    #[arg(long, value_parser = size::parse, value_delimiter = ',')]
    #[arg(default_value = "100,1KiB,16KiB")]
    values: Vec<u64>,
    /// Bytes of keys and values as a multiple of the memory
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    times: u64,
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Change another store in turns: RocksDB, in a process of its own and without a socket, with its log off
    /// and as much memory
    #[arg(long)]
    beside: Option<Peer>,
    /// Folder for the figure: the rate of filling through the edge of memory, as PNG and CSV
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peer {
    Rocksdb,
}

/// The options of `spill` for these measurements.
pub(super) struct Asked<'a> {
    pub memory: u64,
    pub directory: Option<PathBuf>,
    pub rounds: u32,
    pub quick: bool,
    pub output: &'a Output,
}

const fn way(name: &'static str, clients: u32, batch: usize, keys: Keys, asks: bool) -> Way {
    Way { name, clients, batch, keys, asks }
}

const WAYS: [Way; 9] = [
    way("1 client", 1, 1, Keys::Uniform, false),
    way("16 clients", CLIENTS, 1, Keys::Uniform, false),
    way("batches of 1000", 1, BATCH, Keys::Uniform, false),
    way("1 client, Zipf", 1, 1, Keys::Zipf, false),
    way("16 clients, Zipf", CLIENTS, 1, Keys::Zipf, false),
    way("batches of 1000, Zipf", 1, BATCH, Keys::Zipf, false),
    way("1 client, put", 1, 1, Keys::Uniform, true),
    way("16 clients, put", CLIENTS, 1, Keys::Uniform, true),
    way("batches of 1000, multi_put", 1, BATCH, Keys::Uniform, true),
];

/// The figures of one round of a way.
#[derive(Clone, Copy)]
struct Rate {
    puts_per_s: f64,
    /// Bytes written to the disk, and read from it, for each byte put.
    written: f64,
    read: f64,
    /// Bytes on the disk for each byte of keys and values.
    space: f64,
    /// The p99 of one reader meanwhile, in microseconds.
    reads_p99: f64,
}

/// A figure of a round, with its name in tables and in JSON.
type Figure = (&'static str, &'static str, fn(&Rate) -> f64);

const FIGURES: [Figure; 5] = [
    ("puts/s", "puts_per_s", |rate| rate.puts_per_s),
    ("written/byte", "written_per_byte", |rate| rate.written),
    ("read/byte", "read_per_byte", |rate| rate.read),
    ("space/byte", "space_per_byte", |rate| rate.space),
    ("reads p99 us", "reads_p99_us", |rate| rate.reads_p99),
];

/// A store with its figures.
struct Found {
    side: Box<dyn Side>,
    size: Size,
    /// The p99 of a reader when nothing is written, in microseconds, in each round.
    alone: Vec<f64>,
    /// The rounds of each way; empty if the store does not have it.
    rates: [Vec<Rate>; WAYS.len()],
}

/// `honeycomb bench spill --writes`.
pub(super) fn run(args: &WritesArgs, asked: &Asked<'_>) -> CommandResult {
    if args.values.contains(&0) {
        return Err(Failure::invalid("--values must be above 0"));
    }
    let (memory, seconds, rounds) = match asked.quick {
        true => (asked.memory.min(64 << 20), 0.2, 1),
        false => (asked.memory, args.seconds, asked.rounds),
    };
    let folder = Folder::new(asked.directory.clone())?;
    let disk = disk::alone(&folder, memory.min(1 << 30), 1 << 20, 1 << 20)?;
    let mut all = Vec::new();
    for value in &args.values {
        let entries = args.times * memory / (KEY as u64 + value);
        let size = Size { memory, entries, value: *value as usize };
        let mut sides: Vec<Box<dyn Side>> = vec![Box::new(Honeycomb::fill(size, &folder)?)];
        if args.beside.is_some() {
            sides.push(Box::new(RocksDb::fill(size, &folder)?));
        }
        let found = sides.into_iter().map(|side| Found::new(side, size));
        let mut found: Vec<Found> = found.collect();
        measure(&mut found, rounds, seconds)?;
        if let Some(folder) = &args.out {
            figure(folder, &found)?;
        }
        if !asked.output.json {
            tell(&found, disk);
        }
        all.extend(found.iter().map(Found::json));
    }
    if asked.output.json {
        say!(
            "{}",
            json!({"bench": "spill --writes", "machine": machine(), "memory_bytes": memory,
                   "disk_write_bytes_per_s": disk.0, "disk_read_bytes_per_s": disk.1,
                   "stores": all})
        );
    }
    Ok(())
}

/// All rounds of all ways, the stores in turns.
fn measure(found: &mut [Found], rounds: u32, seconds: f64) -> CommandResult {
    let progress = bar("rounds", u64::from(rounds) * WAYS.len() as u64);
    found.iter_mut().try_for_each(|one| one.side.settle())?;
    for round in 0..rounds {
        if round > 0 {
            // Each store is the first one in turns.
            found.reverse();
        }
        for one in &mut *found {
            one.alone.push(one.side.change(None, seconds, true)?.reads_p99);
        }
        for (number, way) in WAYS.iter().enumerate() {
            for one in found.iter_mut().filter(|one| one.side.can(way)) {
                let rate = one.round(way, seconds)?;
                one.rates[number].push(rate);
            }
            progress.inc(1);
        }
    }
    found.sort_by_key(|one| one.side.name());
    progress.finish_and_clear();
    Ok(())
}

impl Found {
    fn new(side: Box<dyn Side>, size: Size) -> Found {
        Found { side, size, alone: Vec::new(), rates: Default::default() }
    }

    fn round(&mut self, way: &Way, seconds: f64) -> CommandResult<Rate> {
        let before = self.side.traffic();
        let changed = self.side.change(Some(way), seconds, false)?;
        self.side.settle()?;
        let after = self.side.traffic();
        let read = self.side.change(Some(way), seconds / 2.0, true)?;
        self.side.settle()?;
        let bytes = (changed.puts.max(1) * (KEY + self.size.value) as u64) as f64;
        Ok(Rate {
            puts_per_s: changed.puts as f64 / changed.seconds,
            written: (after.written - before.written) as f64 / bytes,
            read: (after.read - before.read) as f64 / bytes,
            space: after.space as f64 / self.size.bytes() as f64,
            reads_p99: read.reads_p99,
        })
    }

    fn spread(&self, number: usize, figure: impl Fn(&Rate) -> f64) -> Option<Spread> {
        let rates = &self.rates[number];
        (!rates.is_empty()).then(|| Spread::of(rates.iter().map(figure)))
    }

    fn json(&self) -> Value {
        let rates = WAYS.iter().enumerate().filter_map(|(n, way)| {
            let mut out = json!({"what": way.name});
            for (_, name, figure) in FIGURES {
                out[name] = self.spread(n, figure)?.json();
            }
            Some(out)
        });
        json!({"side": self.side.name(), "value_bytes": self.size.value,
               "entries": self.size.entries, "filling": self.side.filling(),
               "reads_alone_p99_us": Spread::of(self.alone.iter().copied()).json(),
               "rates": rates.collect::<Vec<_>>()})
    }
}

fn tell(found: &[Found], disk: (f64, f64)) {
    let Size { memory, entries, value } = found[0].size;
    say!("{}; memory {}", machine(), size::show(memory));
    say!("the disk alone: writes {:.0} MB/s, reads {:.0} MB/s", disk.0 / 1e6, disk.1 / 1e6);
    say!("{entries} entries of {KEY} + {} bytes", value);
    for one in found {
        let rates = || one.side.filling().iter().map(|(_, rate)| *rate);
        say!(
            "{}: filled at {} to {} entries/s; p99 of reads alone {} us",
            one.side.name(),
            number(rates().fold(0.0, f64::max)),
            number(rates().fold(f64::INFINITY, f64::min)),
            spread(Spread::of(one.alone.iter().copied()))
        );
    }
    let mut table =
        Table::new(&["", "store"].into_iter().chain(FIGURES.map(|f| f.0)).collect::<Vec<_>>());
    for (n, way) in WAYS.iter().enumerate() {
        for one in found.iter().filter(|one| one.side.can(way)) {
            let figures =
                FIGURES.iter().filter_map(|(.., figure)| one.spread(n, figure).map(spread));
            let head = [way.name, one.side.name()].map(str::to_owned);
            table.row(head.into_iter().chain(figures).collect());
        }
    }
    table.print();
    if let [ours, theirs] = found {
        for (n, way) in WAYS.iter().enumerate().filter(|(_, way)| theirs.side.can(way)) {
            let pairs = ours.rates[n].iter().zip(&theirs.rates[n]);
            let ratio = Spread::of(pairs.map(|(a, b)| a.puts_per_s / b.puts_per_s));
            say!("{}: {} of the puts of {}", way.name, spread(ratio), theirs.side.name());
        }
    }
}

fn figure(folder: &Path, found: &[Found]) -> CommandResult {
    std::fs::create_dir_all(folder).map_err(|e| Failure::io(folder.display(), &e))?;
    let Size { memory, value, .. } = found[0].size;
    let rows = found.iter().enumerate().flat_map(|(i, one)| {
        let points = one.side.filling().iter();
        points.map(move |&(stored, rate)| vec![i as f64, stored, rate])
    });
    let name = format!("spill-writes-{value}");
    write_csv(&folder.join(format!("{name}.csv")), "side,bytes,entries_per_s", rows)?;
    let series = found.iter().map(|one| plot::Series {
        name: one.side.name().to_owned(),
        shape: Shape::Marked,
        points: one.side.filling().iter().map(|&(at, rate)| (at / memory as f64, rate)).collect(),
    });
    let panel = Panel {
        title: format!(
            "Filling in batches of {BATCH} entries of {KEY} + {value} B, {POINTS} points"
        ),
        x: "stored bytes over memory".into(),
        y: "entries/s".into(),
        series: series.collect(),
        logarithmic: false,
        logarithmic_y: true,
    };
    plot::draw(&folder.join(format!("{name}.png")), &[panel]).map_err(Failure::from)
}
