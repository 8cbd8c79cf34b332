//! The stores that `bench spill --writes` changes: the trait of all of them, and the store of a cluster.

use super::traffic::Traffic;
use crate::cluster::Cluster;
use crate::disk::Folder;
use crate::kv::noise;
use crate::process::Pinning;
use crate::trace::bar;
use crate::{Pool, Transport, Waiting};
use hdrhistogram::Histogram;
use honeycomb::failure::{CommandResult, Failure};
use honeycomb::fitting_block_size;
use honeycomb_client::{Client, JobTicket, Kv};
use honeycomb_env::Clock;
use honeycomb_types::Time;
use honeycomb_workload::{Draw, Ranks};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Bytes of a key: a number in decimal digits.
pub const KEY: usize = 10;
/// Entries of a batch.
pub const BATCH: usize = 1000;
/// The skew of the keys that are drawn by a Zipf distribution.
pub const SKEW: f64 = 0.99;
/// Upper bound of the histograms, in nanoseconds.
const LATENCY_MAX: u64 = 60_000_000_000;
/// Time for one call.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest time until a store is settled.
pub const SETTLE_MAX: Duration = Duration::from_secs(60);
/// The time without traffic after which a store is settled.
const STILL: Duration = Duration::from_millis(100);
/// Points of the curve of a filling.
pub const POINTS: u64 = 40;

/// The distribution of the keys that are changed.
#[derive(Clone, Copy, PartialEq)]
pub enum Keys {
    Uniform,
    Zipf,
}

/// The clients that change the store, and how.
#[derive(Clone, Copy)]
pub struct Way {
    pub name: &'static str,
    pub clients: u32,
    pub batch: usize,
    pub keys: Keys,
    /// Whether the answers say if an entry was replaced: `put` instead of `set`.
    pub asks: bool,
}

/// The result of some seconds of changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changed {
    pub puts: u64,
    pub seconds: f64,
    /// The p99 of single reads meanwhile, in microseconds; 0 without a reader.
    pub reads_p99: f64,
}

/// The size of a store, and of the memory that it has.
#[derive(Clone, Copy)]
pub struct Size {
    pub memory: u64,
    pub entries: u64,
    pub value: usize,
}

impl Size {
    /// Bytes of all keys and values.
    pub fn bytes(&self) -> u64 {
        self.entries * (KEY + self.value) as u64
    }
}

/// A filled store.
pub trait Side {
    fn name(&self) -> &'static str;

    /// Whether it has an operation for this.
    fn can(&self, way: &Way) -> bool;

    /// Bytes that were stored, and entries per second at that point of the filling.
    fn filling(&self) -> &[(f64, f64)];

    /// Changes the store for some seconds; without a way, leaves it alone. With `reads`, one client reads
    /// single entries meanwhile.
    fn change(&mut self, way: Option<&Way>, seconds: f64, reads: bool) -> CommandResult<Changed>;

    /// Waits for the end of the store's own work: it would disturb the next measurement.
    fn settle(&mut self) -> CommandResult;

    fn traffic(&self) -> Traffic;
}

/// A store of a cluster with a disk.
pub struct Honeycomb {
    cluster: Cluster,
    job: JobTicket,
    size: Size,
    value: Vec<u8>,
    filling: Vec<(f64, f64)>,
    /// The number of the next client, which is the seed of its keys.
    clients: AtomicU64,
}

const PREFIX: &str = "/writes";

impl Honeycomb {
    /// Starts a cluster and fills a store in it.
    pub fn fill(size: Size, folder: &Folder) -> CommandResult<Honeycomb> {
        let pool = Pool { memory: size.memory, block_size: fitting_block_size(size.memory) };
        let shards = thread::available_parallelism().map_or(1, |n| n.get().min(64)) as u8;
        let more = folder.flags(2 * size.bytes());
        let (waiting, pinning) = (Waiting::Polling, Pinning::default());
        let cluster = Cluster::with(Transport::Tcp, shards, pool, waiting, pinning, &more)?;
        let (_, job) = cluster.job("writes")?;
        let client = cluster.client_within(&job.token, PATIENCE);
        client.create_prefix(job.job, PREFIX, &[], Default::default())?;
        let kv = client.create_kv(job.job, PREFIX, 1, false)?;
        let (value, clients) = (noise(size.value), AtomicU64::new(1));
        let mut store = Honeycomb { cluster, job, size, value, filling: Vec::new(), clients };
        store.filling = store.fill_all(&kv)?;
        Ok(store)
    }

    fn fill_all(&self, kv: &Kv) -> CommandResult<Vec<(f64, f64)>> {
        let entries = self.size.entries;
        let (clock, progress) = (Clock::start(), bar("honeycomb: fill", entries));
        let mut points = Vec::new();
        let every = (entries / POINTS).max(BATCH as u64);
        let (mut since, mut from) = (0, clock.now());
        for first in (0..entries).step_by(BATCH) {
            let numbers = first..(first + BATCH as u64).min(entries);
            let end = numbers.end;
            let keys: Vec<String> = numbers.map(key).collect();
            set_all(kv, &keys, &self.value)?;
            since += keys.len() as u64;
            if since >= every || end == entries {
                let took = clock.now().since(from).as_secs_f64();
                let stored = (end * (KEY + self.value.len()) as u64) as f64;
                points.push((stored, since as f64 / took));
                (since, from) = (0, clock.now());
            }
            progress.set_position(first);
        }
        progress.finish_and_clear();
        Ok(points)
    }

    fn open(&self) -> CommandResult<(Client, Kv)> {
        let client = self.cluster.client_within(&self.job.token, PATIENCE);
        let kv = client.open_kv(self.job.job, PREFIX)?;
        Ok((client, kv))
    }

    fn chosen(&self, keys: Keys) -> Chosen {
        Chosen::new(self.size.entries, keys, self.clients.fetch_add(1, Relaxed))
    }

    /// One client changes the store for some time; returns the number of puts.
    fn work(&self, way: &Way, seconds: f64) -> CommandResult<u64> {
        let (_client, kv) = self.open()?;
        let (clock, mut keys, mut count) = (Clock::start(), self.chosen(way.keys), 0);
        while clock.now().since(Time::ZERO).as_secs_f64() < seconds {
            let batch: Vec<String> = (0..way.batch).map(|_| key(keys.next())).collect();
            match (&batch[..], way.asks) {
                ([one], false) => kv.set(one.as_bytes(), &self.value)?,
                ([one], true) => drop(kv.put(one.as_bytes(), &self.value)?),
                (many, false) => set_all(&kv, many, &self.value)?,
                (many, true) => put_all(&kv, many, &self.value)?,
            }
            count += way.batch as u64;
        }
        Ok(count)
    }

    /// All clients change the store for some time.
    fn work_all(&self, way: &Way, seconds: f64) -> CommandResult<(u64, f64)> {
        let clock = Clock::start();
        let counts: CommandResult<Vec<u64>> = thread::scope(|scope| {
            let work = || self.work(way, seconds);
            let running: Vec<_> = (0..way.clients).map(|_| scope.spawn(work)).collect();
            running.into_iter().map(|t| t.join().expect("no thread panics")).collect()
        });
        Ok((counts?.iter().sum(), clock.now().since(Time::ZERO).as_secs_f64()))
    }

    /// Reads single entries while `over` is not set; returns the p99 in microseconds.
    fn read(&self, over: &AtomicBool) -> CommandResult<f64> {
        let (_client, kv) = self.open()?;
        let mut keys = self.chosen(Keys::Uniform);
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
}

impl Side for Honeycomb {
    fn name(&self) -> &'static str {
        "honeycomb"
    }

    fn can(&self, _: &Way) -> bool {
        true
    }

    fn filling(&self) -> &[(f64, f64)] {
        &self.filling
    }

    fn change(&mut self, way: Option<&Way>, seconds: f64, reads: bool) -> CommandResult<Changed> {
        let over = AtomicBool::new(!reads);
        let this = &*self;
        thread::scope(|scope| {
            let reading = reads.then(|| scope.spawn(|| this.read(&over)));
            let worked = match way {
                Some(way) => this.work_all(way, seconds),
                None => {
                    Clock::start().sleep_until(Time::ZERO + Duration::from_secs_f64(seconds));
                    Ok((0, seconds))
                }
            };
            over.store(true, Relaxed);
            let read = reading.map(|reading| reading.join().expect("reading does not panic"));
            let reads_p99 = read.transpose()?.unwrap_or(0.0);
            let (puts, seconds) = worked?;
            Ok(Changed { puts, seconds, reads_p99 })
        })
    }

    /// Until nothing is read from the disk and nothing is written to it for a while.
    fn settle(&mut self) -> CommandResult {
        let clock = Clock::start();
        let mut before = self.traffic();
        loop {
            clock.sleep_until(clock.now() + STILL);
            let now = self.traffic();
            if (now.written, now.read) == (before.written, before.read) {
                return Ok(());
            }
            if clock.now() > Time::ZERO + SETTLE_MAX {
                return Err(Failure::from(format!("the disk is busy for {SETTLE_MAX:?}")));
            }
            before = now;
        }
    }

    fn traffic(&self) -> Traffic {
        Traffic::of_unnamed(self.cluster.pid())
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

fn set_all(kv: &Kv, keys: &[String], value: &[u8]) -> CommandResult {
    Ok(kv.multi_set(&pairs(keys, value)).into_iter().collect::<Result<_, _>>()?)
}

fn put_all(kv: &Kv, keys: &[String], value: &[u8]) -> CommandResult {
    Ok(kv.multi_put(&pairs(keys, value)).into_iter().try_for_each(|done| done.map(drop))?)
}

fn pairs<'a>(keys: &'a [String], value: &'a [u8]) -> Vec<(&'a [u8], &'a [u8])> {
    keys.iter().map(|key| (key.as_bytes(), value)).collect()
}
