//! The synchronous clients in Rust: Honeycomb's client, and minimal clients of the peers for operations that
//! their usual clients do not support.

use crate::bursts::{Bursts, Touching};
use crate::contract::{Client, Draw, Measured, Meter, Op, Round, Spec, System, key};
use crate::memcached::Memcached;
use crate::stores::{PATH, SPLITS_AT, Store, said};
use honeycomb_bench::measure::{Limit, Pause, wake_ups};
use honeycomb_bench::process::Watched;
use honeycomb_bench::redis::RedisClient;
use honeycomb_bench::{measure, noise};
use honeycomb_client::Done;
use honeycomb_env::Clock;
use honeycomb_wire::batch::BatchOp;
use honeycomb_wire::key_hash;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A wake-up that takes longer than this counts as lost.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause before each wake-up: long enough that all threads sleep.
const ASLEEP: Duration = Duration::from_micros(300);
/// Pause before each wake-up: short enough that polling threads still poll.
const AWAKE: Duration = Duration::from_micros(20);
/// Name of the list in Redis.
const LIST: &[u8] = b"queue";

type Work = Box<dyn FnMut(u64) -> Result<(), String>>;

struct Sync {
    work: Work,
    /// A round ends after a multiple of this many operations.
    pair: u64,
    about: &'static str,
    /// The store of the work, dropped after it.
    _store: Option<Store>,
}

impl Client for Sync {
    fn about(&self) -> String {
        self.about.into()
    }

    fn round(&mut self, round: Round) -> Result<Measured, String> {
        let clock = Clock::start();
        let mut meter = Meter::begin(clock, round);
        let (mut before, mut i) = (clock.now(), 0);
        loop {
            (self.work)(i)?;
            let now = clock.now();
            meter.count(now.since(before));
            i += 1;
            if (now >= meter.until || i >= round.ops) && i.is_multiple_of(self.pair) {
                return Ok(meter.end(i));
            }
            before = now;
        }
    }
}

/// Sets up the client of a specification.
pub fn set_up(spec: Spec) -> Result<Box<dyn Client>, String> {
    match spec.op {
        Op::Wake => return Ok(Box::new(Waker::new(spec)?)),
        Op::Split | Op::Trickle => return Ok(Box::new(Neighbour::new(spec)?)),
        _ if spec.system == System::Pages => return Ok(Box::new(Touching::new(spec))),
        op if op.is_burst() => return Ok(Box::new(Bursts::new(spec)?)),
        Op::Get | Op::Put if spec.pipeline > 1 => return Ok(Box::new(Piped::new(spec)?)),
        _ => {}
    }
    let pair = if spec.op == Op::Queue { 2 } else { 1 };
    let ((work, store), about) = match spec.system {
        System::Honeycomb => (ours(&spec)?, "honeycomb-client"),
        System::Redis => (redis(&spec)?, "minimal client"),
        System::Memcached => (memcached(&spec)?, "minimal client"),
        _ => return Err("raw sockets have a separate client".into()),
    };
    Ok(Box::new(Sync { work, pair, about, _store: store }))
}

fn ours(spec: &Spec) -> Result<(Work, Option<Store>), String> {
    let store = Store::make(spec)?;
    store.fill(spec)?;
    let (client, job) = (store.client().clone(), store.job());
    let Spec { op, size, keys, batch, total, .. } = *spec;
    let value = noise(size as usize);
    let mut draw = Draw::new(1);
    let table: Vec<Vec<u8>> = (0..keys).map(|n| key(size, n)).collect();
    let mut out = vec![0; size as usize];
    let work: Work = match op {
        // This client always gets into a buffer.
        Op::Get | Op::GetInto => {
            let kv = client.open_kv(job, PATH).map_err(said)?;
            Box::new(move |_| {
                let key = &table[draw.below(keys) as usize];
                let got = kv.get_into(key, &mut out).map_err(said)?;
                whole(got, size)
            })
        }
        Op::Put => {
            let kv = client.open_kv(job, PATH).map_err(said)?;
            Box::new(move |_| {
                let key = &table[draw.below(keys) as usize];
                kv.put(key, &value).map(drop).map_err(said)
            })
        }
        Op::MultiGet => {
            let kv = client.open_kv(job, PATH).map_err(said)?;
            Box::new(move |_| {
                let chosen: Vec<&[u8]> =
                    (0..batch).map(|_| &table[draw.below(keys) as usize][..]).collect();
                for got in kv.multi_get(&chosen) {
                    whole(got.map_err(said)?.map(|value| value.len()), size)?;
                }
                Ok(())
            })
        }
        Op::MultiPut => {
            let kv = client.open_kv(job, PATH).map_err(said)?;
            Box::new(move |_| {
                let entries: Vec<(&[u8], &[u8])> = (0..batch)
                    .map(|_| (&table[draw.below(keys) as usize][..], &value[..]))
                    .collect();
                kv.multi_put(&entries).into_iter().try_for_each(|r| r.map(drop)).map_err(said)
            })
        }
        Op::Queue => {
            let queue = client.open_queue(job, PATH).map_err(said)?;
            Box::new(move |i| {
                if i % 2 == 0 {
                    return queue.put(&value, Duration::ZERO).map_err(said);
                }
                let got = queue.get(Duration::ZERO).map_err(said)?;
                whole(got.map(|item| item.len()), size)
            })
        }
        Op::Append => {
            let mut file = client.open_file(job, PATH).map_err(said)?;
            let mut written = 0;
            Box::new(move |_| {
                if written + size > total {
                    client.remove_structure(job, PATH).map_err(said)?;
                    file = client.create_file(job, PATH, 1, false).map_err(said)?;
                    written = 0;
                }
                written += size;
                file.write_all(&value).map(drop).map_err(said)
            })
        }
        Op::Read => {
            let file = client.open_file(job, PATH).map_err(said)?;
            Box::new(move |_| {
                let at = draw.below(total / size) * size;
                whole(Some(file.read_into(at, &mut out).map_err(said)?), size)
            })
        }
        Op::Wake | Op::Split | Op::Trickle => unreachable!("it has a separate client"),
        Op::PutNew | Op::PutAgain | Op::AppendNew | Op::AppendAgain => {
            unreachable!("bursts have a separate client")
        }
        Op::Pass => return Err("only the client in Python supports 'pass'".into()),
    };
    Ok((work, Some(store)))
}

fn whole(got: Option<usize>, size: u64) -> Result<(), String> {
    match got {
        Some(length) if length as u64 == size => Ok(()),
        Some(length) => Err(format!("a get answered a value of {length} bytes")),
        None => Err("a get found no value".into()),
    }
}

fn redis(spec: &Spec) -> Result<(Work, Option<Store>), String> {
    let said = |e: std::io::Error| e.to_string();
    let spin = Duration::from_micros(spec.spin_us);
    let mut redis = RedisClient::connect(&spec.address, spin).map_err(said)?;
    let Spec { op, size, keys, .. } = *spec;
    let value = noise(size as usize);
    let mut draw = Draw::new(1);
    let table: Vec<Vec<u8>> = (0..keys).map(|n| key(size, n)).collect();
    let mut out = Vec::with_capacity(size as usize + 2);
    if matches!(op, Op::Get | Op::Put) {
        table.iter().try_for_each(|key| redis.set(key, &value)).map_err(said)?;
    }
    let work: Work = match op {
        Op::Get => Box::new(move |_| {
            let key = &table[draw.below(keys) as usize];
            whole(Some(redis.get(key, &mut out).map_err(said)?), size)
        }),
        Op::Put => {
            Box::new(move |_| redis.set(&table[draw.below(keys) as usize], &value).map_err(said))
        }
        Op::Queue => Box::new(move |i| {
            if i % 2 == 0 {
                return redis.push(LIST, &[&value]).map_err(said);
            }
            let there = redis.pop(LIST, &mut out).map_err(said)?;
            whole(there.then_some(out.len()), size)
        }),
        other => return Err(format!("the minimal client does not support '{}'", other.name())),
    };
    Ok((work, None))
}

fn memcached(spec: &Spec) -> Result<(Work, Option<Store>), String> {
    let said = |e: std::io::Error| e.to_string();
    let spin = Duration::from_micros(spec.spin_us);
    let mut memcached = Memcached::connect(&spec.address, spin).map_err(said)?;
    let Spec { op, size, keys, .. } = *spec;
    let value = noise(size as usize);
    let mut draw = Draw::new(1);
    let table: Vec<Vec<u8>> = (0..keys).map(|n| key(size, n)).collect();
    let mut out = Vec::with_capacity(size as usize + 16);
    table.iter().try_for_each(|key| memcached.set(key, &value)).map_err(said)?;
    let work: Work = match op {
        Op::Get => Box::new(move |_| {
            let key = &table[draw.below(keys) as usize];
            whole(Some(memcached.get(key, &mut out).map_err(said)?), size)
        }),
        Op::Put => Box::new(move |_| {
            memcached.set(&table[draw.below(keys) as usize], &value).map_err(said)
        }),
        other => return Err(format!("memcached has no '{}'", other.name())),
    };
    Ok((work, None))
}

/// Two threads: one waits for an event that the other causes.
struct Waker {
    spec: Spec,
    wait: Box<dyn FnMut() -> Result<usize, String> + Send>,
    set_off: Box<dyn FnMut() -> Result<(), String> + Send>,
}

impl Waker {
    fn new(spec: Spec) -> Result<Waker, String> {
        let spin = Duration::from_micros(spec.spin_us);
        let item = noise(spec.size as usize);
        if spec.system == System::Redis {
            let said = |e: std::io::Error| e.to_string();
            // The peer has no polling, as for its users.
            let mut consumer = RedisClient::connect(&spec.address, spin).map_err(said)?;
            let mut producer = RedisClient::connect(&spec.address, spin).map_err(said)?;
            let mut got = Vec::new();
            return Ok(Waker {
                spec,
                wait: Box::new(move || {
                    consumer.pop_when_there(LIST, &mut got).map_err(said)?;
                    Ok(got.len())
                }),
                set_off: Box::new(move || producer.push(LIST, &[&item]).map_err(said)),
            });
        }
        let store = Store::make(&spec)?;
        let consumer = store.other_client(spin).open_queue(store.job(), PATH).map_err(said)?;
        // Only the consumer polls.
        let producer = store.other_client(Duration::ZERO);
        let producer = producer.open_queue(store.job(), PATH).map_err(said)?;
        Ok(Waker {
            spec,
            wait: Box::new(move || {
                let _ = &store;
                let got = consumer.get(PATIENCE).map_err(said)?;
                Ok(got.ok_or("the consumer was not woken in time")?.len())
            }),
            set_off: Box::new(move || producer.put(&item, Duration::ZERO).map_err(said)),
        })
    }
}

impl Client for Waker {
    fn about(&self) -> String {
        "one waits, the other puts".into()
    }

    fn round(&mut self, round: Round) -> Result<Measured, String> {
        let limit = Limit { time: Duration::from_secs_f64(round.seconds), ops: round.ops };
        let pause = match self.spec.spin_us {
            0 => Pause::Asleep(ASLEEP),
            _ => Pause::Yielding(AWAKE),
        };
        let woken = AtomicU64::new(0);
        let nobody = Watched::process(0);
        let (meter, size) = (Meter::begin(Clock::start(), round), self.spec.size);
        let wait: measure::Work<'_> = Box::new(|_| {
            let got = (self.wait)()?;
            woken.fetch_add(1, Relaxed);
            whole(Some(got), size)
        });
        let set_off: measure::Work<'_> = Box::new(|_| (self.set_off)());
        let figures = wake_ups(&nobody, limit, pause, wait, set_off)?;
        let measured = meter.end(woken.load(Relaxed));
        Ok(Measured { latency_us: figures.latency, ..measured })
    }
}

/// Sends some operations together and awaits all their answers, through the client's pipeline.
struct Piped {
    store: Store,
    spec: Spec,
    table: Vec<Vec<u8>>,
    value: Vec<u8>,
    draw: Draw,
}

impl Piped {
    fn new(spec: Spec) -> Result<Piped, String> {
        if spec.system != System::Honeycomb {
            return Err("the minimal clients have no pipelines".into());
        }
        let store = Store::make(&spec)?;
        store.fill(&spec)?;
        let table = (0..spec.keys).map(|n| key(spec.size, n)).collect();
        let value = noise(spec.size as usize);
        Ok(Piped { store, spec, table, value, draw: Draw::new(1) })
    }
}

impl Client for Piped {
    fn about(&self) -> String {
        "Kv::pipeline".into()
    }

    fn round(&mut self, round: Round) -> Result<Measured, String> {
        let kv = self.store.client().open_kv(self.store.job(), PATH).map_err(said)?;
        let clock = Clock::start();
        let mut meter = Meter::begin(clock, round);
        let mut pipeline = kv.pipeline();
        let mut done = 0;
        loop {
            let began = clock.now();
            for _ in 0..self.spec.pipeline {
                let key = &self.table[self.draw.below(self.spec.keys) as usize][..];
                pipeline.ask(match self.spec.op {
                    Op::Put => BatchOp::Put { key, value: &self.value },
                    _ => BatchOp::Get { key },
                });
            }
            while let Some(answer) = pipeline.next() {
                if let Done::Read(value) = answer.map_err(said)? {
                    whole(value.map(|value| value.len()), self.spec.size)?;
                }
                done += 1;
            }
            let now = clock.now();
            meter.count(now.since(began));
            if now >= meter.until || done >= round.ops {
                drop(pipeline);
                return Ok(meter.end(done));
            }
        }
    }
}

/// Puts values into a store of several blocks, one block after the other: each of them splits, or none does.
///
/// It puts one value at a time, so slowly that the puts alone are a small load. The data that a split moves
/// is stored before, outside of measurements.
struct Neighbour {
    spec: Spec,
    store: Store,
    kv: honeycomb_client::Kv,
    value: Vec<u8>,
    /// Numbers of keys, by their initial block.
    keys: Vec<Vec<u64>>,
    /// Number of stored keys, by block.
    stored: Vec<usize>,
}

/// Interval between two puts of `Neighbour`: with values of 1 KiB, some 5 MB/s. One at a time, because many
/// requests together would delay others more than a split may.
const PACE: Duration = Duration::from_micros(200);
/// Number of keys for each block: more than fit.
const KEYS_EACH: usize = 10_000;
/// Values stored together before a round.
const FILLED: usize = 50;
/// Used part of a block before a measurement, in thousandths: just below the high mark.
const NEARLY_FULL: u64 = 10 * SPLITS_AT as u64 - 5;
/// Used part of a block that shall not split, in thousandths.
const HALF_FULL: u64 = 350;
/// Bytes of an entry besides its key and value.
const ENTRY: u64 = 32;
/// Number of puts into one block when none splits.
const PUTS_EACH: u64 = 75;

impl Neighbour {
    fn new(spec: Spec) -> Result<Neighbour, String> {
        assert!(spec.blocks.is_power_of_two(), "bits of the hash select the range of a block");
        let store = Store::make(&spec)?;
        let kv = store.client().open_kv(store.job(), PATH).map_err(said)?;
        let value = noise(spec.size as usize);
        let mut keys = vec![Vec::with_capacity(KEYS_EACH); spec.blocks as usize];
        let shift = u64::BITS - spec.blocks.trailing_zeros();
        for number in 0.. {
            let block = &mut keys[(key_hash(&key(0, number)) >> shift) as usize];
            if block.len() < KEYS_EACH {
                block.push(number);
            } else if keys.iter().all(|block| block.len() == KEYS_EACH) {
                break;
            }
        }
        let stored = vec![0; keys.len()];
        let mut neighbour = Neighbour { spec, store, kv, value, keys, stored };
        neighbour.fill()?;
        Ok(neighbour)
    }

    /// Fills every block of the store to its level before a round.
    fn fill(&mut self) -> Result<(), String> {
        let thousandths = if self.spec.op == Op::Split { NEARLY_FULL } else { HALF_FULL };
        let of_block = self.kv.structure().block_size() / 1000 * thousandths;
        let each = (of_block / (ENTRY + 16 + self.spec.size)) as usize;
        for (block, keys) in self.keys.iter().enumerate() {
            for numbers in keys[..each].chunks(FILLED) {
                let keys: Vec<Vec<u8>> = numbers.iter().map(|n| key(0, *n)).collect();
                let entries: Vec<(&[u8], &[u8])> =
                    keys.iter().map(|key| (&key[..], &self.value[..])).collect();
                let mut results = self.kv.multi_put(&entries).into_iter();
                results.try_for_each(|r| r.map(drop)).map_err(said)?;
            }
            self.stored[block] = each;
        }
        Ok(())
    }

    /// Replaces the store by a new one with the same filling.
    fn begin_anew(&mut self) -> Result<(), String> {
        let (client, job) = (self.store.client(), self.store.job());
        client.remove_structure(job, PATH).map_err(said)?;
        self.kv = client.create_kv(job, PATH, self.spec.blocks, false).map_err(said)?;
        self.fill()
    }
}

impl Client for Neighbour {
    fn about(&self) -> String {
        "one put after the other".into()
    }

    fn round(&mut self, round: Round) -> Result<Measured, String> {
        let clock = Clock::start();
        let mut meter = Meter::begin(clock, round);
        let splits = self.spec.op == Op::Split;
        let at_first = self.kv.structure().blocks();
        let (mut block, mut seen, mut puts) = (0, at_first, 0);
        loop {
            let began = clock.now();
            // The keys repeat, so that a block that never splits is not filled without limit.
            let number = self.keys[block][self.stored[block] % KEYS_EACH];
            self.stored[block] += 1;
            self.kv.put(&key(0, number), &self.value).map_err(said)?;
            puts += 1;
            let blocks = self.kv.structure().blocks();
            let next = if splits { blocks > seen } else { puts % PUTS_EACH == 0 };
            if next {
                (block, seen) = ((block + 1) % self.keys.len(), blocks);
            }
            let now = clock.now();
            meter.count(now.since(began));
            if now >= meter.until {
                break;
            }
            clock.sleep_until(began + PACE);
        }
        let divided = self.kv.structure().blocks().saturating_sub(at_first) as u64;
        let measured = Measured { splits: divided, ..meter.end(puts) };
        if splits {
            // Before the answer, so that no measurement runs meanwhile.
            self.begin_anew()?;
        }
        Ok(measured)
    }
}
