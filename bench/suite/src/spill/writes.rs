//! `bench spill --writes`: changes of a store that is larger than memory.

use crate::cluster::Cluster;
use crate::disk::{self, Folder};
use crate::kv::noise;
use crate::process::{Pinning, machine};
use crate::report::{Table, number};
use crate::trace::bar;
use crate::{Pool, Transport, Waiting};
use clap::Args;
use hdrhistogram::Histogram;
use honeycomb::failure::CommandResult;
use honeycomb::output::Output;
use honeycomb::{fitting_block_size, say, size};
use honeycomb_client::{Client, JobTicket, Kv};
use honeycomb_env::Clock;
use honeycomb_types::Time;
use honeycomb_workload::{Draw, Ranks};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Entries of a batch.
const BATCH: usize = 1000;
/// Bytes of a key: a number in decimal digits.
const KEY: usize = 10;
/// The skew of the keys that are drawn by a Zipf distribution.
const SKEW: f64 = 0.99;
/// Clients of the measurements with many.
const CLIENTS: u32 = 16;
/// Upper bound of the histograms, in nanoseconds.
const LATENCY_MAX: u64 = 60_000_000_000;
/// Time for one call.
const PATIENCE: Duration = Duration::from_secs(60);

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
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

/// The distribution of the keys that are changed.
#[derive(Clone, Copy, PartialEq)]
enum Keys {
    Uniform,
    Zipf,
}

/// The clients that change the store, and how.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    clients: u32,
    batch: usize,
    keys: Keys,
}

const WAYS: [Way; 6] = [
    Way { name: "1 client", clients: 1, batch: 1, keys: Keys::Uniform },
    Way { name: "16 clients", clients: CLIENTS, batch: 1, keys: Keys::Uniform },
    Way { name: "batches of 1000", clients: 1, batch: BATCH, keys: Keys::Uniform },
    Way { name: "1 client, Zipf", clients: 1, batch: 1, keys: Keys::Zipf },
    Way { name: "16 clients, Zipf", clients: CLIENTS, batch: 1, keys: Keys::Zipf },
    Way { name: "batches of 1000, Zipf", clients: 1, batch: BATCH, keys: Keys::Zipf },
];

/// The figures of one way.
struct Rate {
    way: Way,
    puts_per_s: f64,
    /// Bytes written to the disk, and read from it, for each byte put.
    written: f64,
    read: f64,
    /// Bytes on the disk for each byte of keys and values.
    space: f64,
    /// The p99 of one reader meanwhile, in microseconds.
    reads_p99: f64,
}

/// The figures of one store.
struct Found {
    value: u64,
    entries: u64,
    /// Stored bytes, and entries per second at that point.
    filling: Vec<(f64, f64)>,
    /// The p99 of a reader when nothing is written, in microseconds.
    alone_p99: f64,
    rates: Vec<Rate>,
}

/// A filled store.
struct Store<'a> {
    cluster: &'a Cluster,
    job: JobTicket,
    name: String,
    entries: u64,
    value: Vec<u8>,
    /// The number of the next client, which is the seed of its keys.
    clients: AtomicU64,
}

impl Store<'_> {
    fn open(&self) -> CommandResult<(Client, Kv)> {
        let client = self.cluster.client_within(&self.job.token, PATIENCE);
        let kv = client.open_kv(self.job.job, &self.name)?;
        Ok((client, kv))
    }

    fn fill(&self, kv: &Kv) -> CommandResult<Vec<(f64, f64)>> {
        let (clock, progress) = (Clock::start(), bar("fill", self.entries));
        let mut points = Vec::new();
        let every = (self.entries / 40).max(BATCH as u64);
        let (mut since, mut from) = (0, clock.now());
        for first in (0..self.entries).step_by(BATCH) {
            let numbers = first..(first + BATCH as u64).min(self.entries);
            let keys: Vec<String> = numbers.map(key).collect();
            put(kv, &keys, &self.value)?;
            since += keys.len() as u64;
            if since >= every {
                let took = clock.now().since(from).as_secs_f64();
                let stored = (first * (KEY + self.value.len()) as u64) as f64;
                points.push((stored, since as f64 / took));
                (since, from) = (0, clock.now());
            }
            progress.set_position(first);
        }
        progress.finish_and_clear();
        Ok(points)
    }

    /// Changes the store for some time; returns the number of puts and the seconds.
    fn change(&self, way: Way, seconds: f64) -> CommandResult<(u64, f64)> {
        let clock = Clock::start();
        let work = || -> CommandResult<u64> {
            let (_client, kv) = self.open()?;
            let mut keys = Chosen::new(self.entries, way.keys, self.clients.fetch_add(1, Relaxed));
            let mut count = 0;
            while clock.now().since(Time::ZERO).as_secs_f64() < seconds {
                let batch: Vec<String> = (0..way.batch).map(|_| key(keys.next())).collect();
                match &batch[..] {
                    [one] => drop(kv.put(one.as_bytes(), &self.value)?),
                    many => put(&kv, many, &self.value)?,
                }
                count += way.batch as u64;
            }
            Ok(count)
        };
        let counts: CommandResult<Vec<u64>> = thread::scope(|scope| {
            let running: Vec<_> = (0..way.clients).map(|_| scope.spawn(work)).collect();
            running.into_iter().map(|t| t.join().expect("no thread panics")).collect()
        });
        Ok((counts?.iter().sum(), clock.now().since(Time::ZERO).as_secs_f64()))
    }

    /// Reads single entries while `over` is not set; returns the p99 in microseconds.
    fn read(&self, over: &AtomicBool) -> CommandResult<f64> {
        let (_client, kv) = self.open()?;
        let mut keys = Chosen::new(self.entries, Keys::Uniform, self.clients.fetch_add(1, Relaxed));
        let mut took = Histogram::<u64>::new_with_max(LATENCY_MAX, 3).expect("three digits");
        let (clock, mut value) = (Clock::start(), Vec::new());
        while !over.load(Relaxed) {
            let (key, from) = (key(keys.next()), clock.now());
            let found = kv.get(key.as_bytes(), &mut value)?;
            took.saturating_record(clock.now().since(from).as_nanos() as u64);
            assert!(found && value == self.value, "{key} has another value");
        }
        Ok(took.value_at_quantile(0.99) as f64 / 1e3)
    }

    /// Runs work while a client reads; returns the p99 of the reads as well.
    fn read_beside<T>(&self, work: impl FnOnce() -> CommandResult<T>) -> CommandResult<(T, f64)> {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let reading = scope.spawn(|| self.read(&over));
            let worked = work();
            over.store(true, Relaxed);
            let p99 = reading.join().expect("reading does not panic")?;
            Ok((worked?, p99))
        })
    }
}

/// Numbers of keys in the order in which they are changed.
struct Chosen {
    draw: Draw,
    entries: u64,
    zipf: Option<Ranks>,
}

impl Chosen {
    fn new(entries: u64, keys: Keys, seed: u64) -> Chosen {
        let zipf = (keys == Keys::Zipf).then(|| Ranks::new(entries, SKEW));
        Chosen { draw: Draw::seeded(seed), entries, zipf }
    }

    fn next(&mut self) -> u64 {
        match &self.zipf {
            // Frequent keys are not neighbours.
            Some(zipf) => self.draw.zipf(zipf).wrapping_mul(0x9e37_79b1) % self.entries,
            None => self.draw.below(self.entries),
        }
    }
}

fn key(number: u64) -> String {
    format!("{number:0KEY$}")
}

fn put(kv: &Kv, keys: &[String], value: &[u8]) -> CommandResult {
    let entries: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (key.as_bytes(), value)).collect();
    kv.multi_put(&entries).into_iter().try_for_each(|done| done.map(drop))?;
    Ok(())
}

/// Bytes that a process has written to disks and read from them, and that its unnamed files have there.
#[derive(Clone, Copy)]
struct Traffic {
    written: u64,
    read: u64,
    space: u64,
}

impl Traffic {
    fn of(pid: u32) -> Traffic {
        let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let unnamed = files.filter(|file| {
            fs::read_link(file.path()).is_ok_and(|to| to.to_string_lossy().contains("(deleted)"))
        });
        let space = unnamed.filter_map(|file| fs::metadata(file.path()).ok());
        Traffic {
            written: field("write_bytes:"),
            read: field("read_bytes:"),
            space: space.map(|of| of.blocks() * 512).sum(),
        }
    }
}

/// `honeycomb bench spill --writes`.
pub(super) fn run(
    args: &WritesArgs,
    memory: u64,
    directory: Option<PathBuf>,
    quick: bool,
    output: &Output,
) -> CommandResult {
    let memory = if quick { memory.min(64 << 20) } else { memory };
    let seconds = if quick { 0.2 } else { args.seconds };
    let folder = Folder::new(directory)?;
    let disk = disk::alone(&folder, memory.min(1 << 30), 1 << 20, 1 << 20)?;
    let mut found = Vec::new();
    for value in &args.values {
        found.push(store(args.times, seconds, (memory, *value), &folder)?);
    }
    tell(&found, memory, disk, output.json);
    Ok(())
}

fn store(times: u64, seconds: f64, size: (u64, u64), folder: &Folder) -> CommandResult<Found> {
    let (memory, value) = size;
    let bytes = times * memory;
    let pool = Pool { memory, block_size: fitting_block_size(memory) };
    let shards = thread::available_parallelism().map_or(1, |n| n.get().min(64)) as u8;
    let more = folder.flags(2 * bytes);
    let waiting = Waiting::Polling;
    let pinning = Pinning::default();
    let cluster = Cluster::with(Transport::Tcp, shards, pool, waiting, pinning, &more)?;
    let (_, job) = cluster.job("writes")?;
    let client = cluster.client_within(&job.token, PATIENCE);
    client.create_prefix(job.job, "/writes", &[], Default::default())?;
    let kv = client.create_kv(job.job, "/writes", 1, false)?;
    let entries = bytes / (KEY as u64 + value);
    let name = "/writes".to_owned();
    let value_bytes = noise(value as usize);
    let clients = AtomicU64::new(1);
    let store = Store { cluster: &cluster, job, name, entries, value: value_bytes, clients };
    let filling = store.fill(&kv)?;
    let rest = || -> CommandResult {
        let clock = Clock::start();
        clock.sleep_until(clock.now() + Duration::from_secs_f64(seconds));
        Ok(())
    };
    let ((), alone_p99) = store.read_beside(rest)?;
    let mut rates = Vec::new();
    for way in WAYS {
        let before = Traffic::of(cluster.pid());
        let (puts, took) = store.change(way, seconds)?;
        let after = Traffic::of(cluster.pid());
        let (_, reads_p99) = store.read_beside(|| store.change(way, seconds / 2.0))?;
        let changed = (puts * (KEY as u64 + value)) as f64;
        rates.push(Rate {
            way,
            puts_per_s: puts as f64 / took,
            written: (after.written - before.written) as f64 / changed,
            read: (after.read - before.read) as f64 / changed,
            space: after.space as f64 / bytes as f64,
            reads_p99,
        });
    }
    Ok(Found { value, entries, filling, alone_p99, rates })
}

fn tell(found: &[Found], memory: u64, disk: (f64, f64), as_json: bool) {
    if as_json {
        let stores: Vec<Value> = found.iter().map(Found::json).collect();
        let about = machine();
        say!(
            "{}",
            json!({"bench": "spill --writes", "machine": about, "memory_bytes": memory,
                   "disk_write_bytes_per_s": disk.0, "disk_read_bytes_per_s": disk.1,
                   "stores": stores})
        );
        return;
    }
    say!("{}; memory {}", machine(), size::show(memory));
    say!("the disk alone: writes {:.0} MB/s, reads {:.0} MB/s", disk.0 / 1e6, disk.1 / 1e6);
    for Found { value, entries, filling, alone_p99, rates } in found {
        let slowest = filling.iter().map(|(_, rate)| *rate).fold(f64::INFINITY, f64::min);
        let first = filling.first().map_or(f64::NAN, |(_, rate)| *rate);
        say!(
            "{entries} entries of {}: filled at {} to {} entries/s; p99 of reads alone {} us",
            size::show(*value),
            number(first),
            number(slowest),
            number(*alone_p99)
        );
        let head = ["", "puts/s", "written/byte", "read/byte", "space/byte", "reads p99 us"];
        let mut table = Table::new(&head);
        for rate in rates {
            let figures =
                [rate.puts_per_s, rate.written, rate.read, rate.space, rate.reads_p99].map(number);
            let name = rate.way.name.to_owned();
            table.row([name].into_iter().chain(figures).collect());
        }
        table.print();
    }
}

impl Found {
    fn json(&self) -> Value {
        let Found { value, entries, filling, alone_p99, rates } = self;
        let rates: Vec<Value> = rates
            .iter()
            .map(|rate| {
                json!({"what": rate.way.name, "puts_per_s": rate.puts_per_s,
                       "written_per_byte": rate.written, "read_per_byte": rate.read,
                       "space_per_byte": rate.space, "reads_p99_us": rate.reads_p99})
            })
            .collect();
        json!({"value_bytes": value, "entries": entries, "filling": filling,
               "reads_alone_p99_us": alone_p99, "rates": rates})
    }
}
