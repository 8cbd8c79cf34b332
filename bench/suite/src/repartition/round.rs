//! One round: a block is filled, measured without a split, and then filled until it splits.

use super::super::cluster::Cluster;
use super::keys::{KEY, Values, Wrong, check, key};
use super::moves::{Split, Splits};
use honeycomb::failure::{CommandResult, Failure};
use honeycomb::size;
use honeycomb_client::{Client, Kv};
use honeycomb_env::{Clock, Entropy};
use honeycomb_structures::splits_from;
use honeycomb_types::limits::REPORT_INTERVAL;
use honeycomb_types::{JobId, Marks, Time};
use honeycomb_wire::Status;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How long a full block may take to split, and reports may take to arrive.
const PATIENCE: Duration = Duration::from_secs(20);
/// A store that has accepted data for this many blocks without a split never splits.
const BLOCKS_MOST: u64 = 3;

/// Percent of a block that is filled at full speed: less than any block needs to request a split.
const FAST: u64 = 60;
/// Maximum bytes per second for the rest of the block.
const PACE: f64 = 24e6;
/// Seconds after which a block's estimate of its fill rate no longer includes the fast part.
const FORGETS: f64 = 0.25;
/// Minimum bytes per second for the rest of the block.
const PACE_LEAST: f64 = 1e6;

/// The parameters of a round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Bytes of a value.
    pub value: usize,
    /// Bytes of a block.
    pub block: u64,
    /// Fraction of the block to fill before the measurement.
    pub fill: f64,
    /// Duration of the measurement before the split.
    pub window: Duration,
    /// Number of writer threads.
    pub writers: u32,
    /// Number of reader threads.
    pub readers: u32,
    /// Bytes of one request of a writer.
    pub write: usize,
    /// Pause of a writer after each request.
    pub pause: Duration,
    /// Seed of the keys.
    pub seed: u64,
}

/// An operation: its start and its duration.
pub type Took = (Time, Duration);

/// The results of a round.
pub struct Seen {
    /// The splits.
    pub splits: Vec<Split>,
    /// Gets that began in the window before the split.
    pub before: Vec<Duration>,
    /// Gets that overlapped with a split.
    pub during: Vec<Duration>,
    /// The longest get or put that overlapped with a split.
    pub longest: Duration,
    /// Errors in the store at the end.
    pub wrong: Wrong,
    /// Number of checked keys.
    pub keys: u64,
    /// Fraction of the block in use when its split began, if it split.
    pub full: Option<f64>,
}

/// The shared state of a round's threads.
struct Stage<'a> {
    round: Round,
    client: &'a Client,
    job: JobId,
    clock: Clock,
    values: &'a Values,
    /// False while writers write existing keys, true when they write new ones.
    pushing: AtomicBool,
    stop: AtomicBool,
    /// Number of existing keys of each writer.
    known: Vec<AtomicU32>,
    written: AtomicU64,
    /// Bytes of an entry in the block.
    each: u64,
}

const PATH: &str = "/split";

/// Runs one round on an empty cluster.
pub fn run(cluster: &Cluster, round: Round, values: &Values, number: u32) -> CommandResult<Seen> {
    await_empty(cluster)?;
    let (client, ticket) = cluster.job(&format!("split-{}-{number}", round.value))?;
    client.create_prefix(ticket.job, PATH, &[], Default::default())?;
    let kv = client.create_kv(ticket.job, PATH, 1, false)?;
    let mut stage = Stage {
        round,
        client: &client,
        job: ticket.job,
        clock: Clock::start(),
        values,
        pushing: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        known: (0..round.writers).map(|_| AtomicU32::new(0)).collect(),
        written: AtomicU64::new(0),
        each: 0,
    };
    stage.fill(cluster, &kv)?;
    let seen = stage.watch(cluster)?;
    cluster.client(cluster.token()).deregister_job(ticket.job)?;
    Ok(seen)
}

/// Waits until the blocks of the previous round are free.
fn await_empty(cluster: &Cluster) -> CommandResult {
    let (admin, clock) = (cluster.client(cluster.token()), Clock::start());
    loop {
        let status = admin.status()?;
        if status.free == status.blocks && status.quarantined == 0 {
            return Ok(());
        }
        if clock.now() > Time::ZERO + PATIENCE {
            let text = format!(
                "the blocks of the last round were not freed: {} of {} are free",
                status.free, status.blocks
            );
            return Err(Failure::new(Status::DeadlineExceeded, text));
        }
        clock.sleep_until(clock.now() + Duration::from_millis(2));
    }
}

/// The state of one writer.
struct Writer {
    number: u32,
    /// Number of acknowledged writes of each of its keys.
    times: Vec<u32>,
    took: Vec<Took>,
    draw: Entropy,
}

impl Stage<'_> {
    /// The number of a writer's key at this index.
    fn number(&self, writer: u32, place: u32) -> u32 {
        place * self.round.writers + writer
    }

    /// Fills the block: first with an estimate of an entry's size, then with the measured size, and so slowly
    /// that the block does not request a split yet.
    fn fill(&mut self, cluster: &Cluster, kv: &Kv) -> CommandResult {
        let Round { block, fill, value, write, .. } = self.round;
        let target = (block as f64 * fill) as u64;
        let thought = (KEY + value + 48) as u64;
        let first = ((target.min(block * FAST / 100) / thought) as u32).max(1);
        self.put_all(kv, 0..first, usize::MAX, Duration::ZERO)?;
        let least = first as u64 * (KEY + value) as u64;
        self.each = (self.used(cluster, least)? / first as u64).max(1);
        let all = first.max((target / self.each) as u32);
        // Half the rate at which the block would request a split at this level.
        let latest = Marks::default().split_at(block as usize);
        let asks = |pace: f64| splits_from(block as usize, 2 * pace as u64, Duration::ZERO, latest);
        let mut paces = std::iter::successors(Some(PACE), |pace| Some(pace / 1.2));
        let slow = |pace: &f64| *pace < PACE_LEAST || asks(*pace) as u64 > target;
        let pace = paces.find(slow).expect("the paces end");
        // Long enough that the block's estimate no longer includes the fast part.
        let rest = target.saturating_sub(block * FAST / 100) as f64;
        let pace = pace.min((rest / FORGETS).max(1.0));
        let pause =
            Duration::from_secs_f64(self.values.batch(write) as f64 * self.each as f64 / pace);
        self.put_all(kv, first..all, write, pause)?;
        for (writer, known) in self.known.iter().enumerate() {
            let of_all = all.saturating_sub(writer as u32);
            known.store(of_all.div_ceil(self.round.writers), Relaxed);
        }
        self.written.store(all as u64, Relaxed);
        if kv.structure().blocks() > 1 {
            let text = format!(
                "the block split before it was {:.0} % full: use a smaller --fill",
                self.round.fill * 100.0
            );
            return Err(Failure::invalid(text));
        }
        Ok(())
    }

    /// Writes these keys for the first time, in requests of `bytes` bytes, with a pause after each.
    fn put_all(&self, kv: &Kv, all: Range<u32>, bytes: usize, pause: Duration) -> CommandResult {
        let step = self.values.batch(bytes);
        for begin in all.clone().step_by(step) {
            let next = self.clock.now() + pause;
            let numbers = begin..all.end.min(begin + step as u32);
            let entries: Vec<_> =
                numbers.map(|number| (key(number), self.values.value(number, 1))).collect();
            let refs: Vec<(&[u8], &[u8])> = entries.iter().map(|(k, v)| (&k[..], &v[..])).collect();
            for done in kv.multi_put(&refs) {
                done?;
            }
            if pause > Duration::ZERO {
                self.clock.sleep_until(next);
            }
        }
        Ok(())
    }

    /// The used bytes that the servers report, once these reach `least` and no longer change: an earlier
    /// report includes only a part.
    fn used(&self, cluster: &Cluster, least: u64) -> CommandResult<u64> {
        let admin = cluster.client(cluster.token());
        let until = self.clock.now() + PATIENCE;
        let mut since = (0, self.clock.now());
        loop {
            let (used, now) = (admin.status()?.bytes_used, self.clock.now());
            if used != since.0 {
                since = (used, now);
            }
            if used >= least && now.since(since.1) > 2 * REPORT_INTERVAL {
                return Ok(used);
            }
            if now > until {
                let text =
                    format!("{least} bytes were written, but only {used} are reported as used");
                return Err(Failure::new(Status::DeadlineExceeded, text));
            }
            self.clock.sleep_until(now + Duration::from_millis(10));
        }
    }

    fn watch(&self, cluster: &Cluster) -> CommandResult<Seen> {
        let splits = Splits::default();
        let (steered, watched, writers, gets) = std::thread::scope(|scope| {
            let splits = &splits;
            let ended = |result: &CommandResult| {
                if result.is_err() {
                    self.stop.store(true, Relaxed);
                }
            };
            let watching = scope.spawn(move || {
                let result =
                    splits.watch(cluster, self.client, self.job, PATH, self.clock, &self.stop);
                ended(&result);
                result
            });
            let writing: Vec<_> =
                (0..self.round.writers).map(|n| scope.spawn(move || self.write(n))).collect();
            let reading: Vec<_> =
                (0..self.round.readers).map(|n| scope.spawn(move || self.read(n))).collect();
            let steered = self.steer(splits);
            self.stop.store(true, Relaxed);
            let done = "a thread of a round does not panic";
            let writers: Vec<_> = writing.into_iter().map(|t| t.join().expect(done)).collect();
            let gets: Vec<_> = reading.into_iter().map(|t| t.join().expect(done)).collect();
            (steered, watching.join().expect(done), writers, gets)
        });
        let writers = writers.into_iter().collect::<CommandResult<Vec<Writer>>>();
        let writers = writers.map_err(|e| self.explained(e))?;
        let gets: Vec<Took> = gets.into_iter().collect::<CommandResult<Vec<_>>>()?.concat();
        watched?;
        let (pushed_at, full) = steered?;
        self.judge(splits.done(), pushed_at, full, &writers, &gets)
    }

    /// Explains the error of a full block that should have split.
    fn explained(&self, e: Failure) -> Failure {
        if e.status() != Some(Status::BlockFull) {
            return e;
        }
        e.with(&no_split(self.round.block))
    }

    /// Lets the writers continue for the window, then lets them write new keys until a split is complete.
    /// Answers the time when the new keys began, and the fraction of the block in use when the split began.
    fn steer(&self, splits: &Splits) -> CommandResult<(Time, Option<f64>)> {
        let clock = self.clock;
        let rest_until = clock.now() + self.round.window;
        while clock.now() < rest_until && !self.stop.load(Relaxed) {
            clock.sleep_until(rest_until.min(clock.now() + Duration::from_millis(5)));
        }
        let pushed_at = clock.now();
        self.pushing.store(true, Relaxed);
        let most = BLOCKS_MOST * self.round.block / (KEY + self.round.value) as u64;
        let mut written_then = None;
        while !self.stop.load(Relaxed) {
            let over = !splits.done().is_empty();
            if over || splits.under_way() {
                written_then.get_or_insert_with(|| self.written.load(Relaxed));
            }
            if over && !splits.under_way() {
                break;
            }
            let late = clock.now() > pushed_at + PATIENCE;
            if late || self.written.load(Relaxed) > most {
                return Err(Failure::new(Status::DeadlineExceeded, no_split(self.round.block)));
            }
            clock.sleep_until(clock.now() + Duration::from_millis(1));
        }
        let part = |written| (written * self.each) as f64 / self.round.block as f64;
        Ok((pushed_at, written_then.map(part)))
    }

    fn write(&self, number: u32) -> CommandResult<Writer> {
        let kv = self.client.open_kv(self.job, PATH)?;
        let known = self.known[number as usize].load(Relaxed);
        let draw = Entropy::seeded(self.round.seed ^ (number as u64) << 32);
        let mut writer = Writer { number, times: vec![1; known as usize], took: Vec::new(), draw };
        let result = self.write_on(&kv, &mut writer);
        if result.is_err() {
            self.stop.store(true, Relaxed);
        }
        result.map(|()| writer)
    }

    fn write_on(&self, kv: &Kv, writer: &mut Writer) -> CommandResult {
        let count = self.values.batch(self.round.write);
        while !self.stop.load(Relaxed) {
            let mut places = Vec::with_capacity(count);
            for _ in 0..count {
                if self.pushing.load(Relaxed) {
                    writer.times.push(0);
                    places.push(writer.times.len() as u32 - 1);
                } else {
                    places.push(writer.draw.below(writer.times.len() as u64) as u32);
                }
            }
            // Each request writes a key at most once.
            places.sort_unstable();
            places.dedup();
            let entries: Vec<_> = places
                .iter()
                .map(|place| {
                    let number = self.number(writer.number, *place);
                    let times = writer.times[*place as usize] + 1;
                    (key(number), self.values.value(number, times))
                })
                .collect();
            let refs: Vec<(&[u8], &[u8])> = entries.iter().map(|(k, v)| (&k[..], &v[..])).collect();
            let begun = self.clock.now();
            let done = kv.multi_put(&refs);
            writer.took.push((begun, self.clock.now().since(begun)));
            for (place, done) in places.iter().zip(done) {
                done?;
                writer.times[*place as usize] += 1;
            }
            self.written.fetch_add(
                if self.pushing.load(Relaxed) { places.len() as u64 } else { 0 },
                Relaxed,
            );
            self.known[writer.number as usize].store(writer.times.len() as u32, Relaxed);
            self.clock.sleep_until(self.clock.now() + self.round.pause);
        }
        Ok(())
    }

    fn read(&self, number: u32) -> CommandResult<Vec<Took>> {
        let kv = self.client.open_kv(self.job, PATH)?;
        let mut draw = Entropy::seeded(self.round.seed ^ 0xBEE ^ (number as u64) << 40);
        let (mut took, mut value) = (Vec::new(), Vec::with_capacity(self.round.value + 64));
        let result = loop {
            if self.stop.load(Relaxed) {
                break Ok(());
            }
            let writer = draw.below(self.round.writers as u64) as u32;
            let known = self.known[writer as usize].load(Relaxed);
            let number = self.number(writer, draw.below(known.max(1) as u64) as u32);
            let begun = self.clock.now();
            let found = kv.get(&key(number), &mut value);
            took.push((begun, self.clock.now().since(begun)));
            match found {
                Ok(true) if self.values.times(number, &value).is_some() => {}
                Ok(there) => {
                    let what = if there { "another value" } else { "nothing" };
                    let text = format!("a get of the written key {number} answered {what}");
                    break Err(Failure::new(Status::Internal, text));
                }
                Err(e) => break Err(e.into()),
            }
        };
        if result.is_err() {
            self.stop.store(true, Relaxed);
        }
        result.map(|()| took)
    }

    fn judge(
        &self,
        splits: Vec<Split>,
        pushed_at: Time,
        full: Option<f64>,
        writers: &[Writer],
        gets: &[Took],
    ) -> CommandResult<Seen> {
        let in_a_split = |(begun, took): &&Took| {
            splits.iter().any(|s| *begun <= s.ended && *begun + *took >= s.begun)
        };
        let rested = |(begun, took): &&Took| *begun + *took < pushed_at;
        let of = |list: Vec<&Took>| -> Vec<Duration> { list.into_iter().map(|t| t.1).collect() };
        let before = of(gets.iter().filter(rested).collect());
        let during = of(gets.iter().filter(in_a_split).collect());
        let puts = writers.iter().flat_map(|w| &w.took);
        let all = gets.iter().chain(puts).filter(in_a_split);
        let longest = all.map(|t| t.1).max().unwrap_or_default();
        let count = writers.iter().map(|w| self.number(w.number, w.times.len() as u32));
        let mut written = vec![0; count.max().unwrap_or(0) as usize];
        for writer in writers {
            for (place, times) in writer.times.iter().enumerate() {
                written[self.number(writer.number, place as u32) as usize] = *times;
            }
        }
        let kv = self.client.open_kv(self.job, PATH)?;
        let wrong = check(&kv, self.values, &written)?;
        let keys = written.iter().filter(|times| **times > 0).count() as u64;
        Ok(Seen { splits, before, during, longest, wrong, keys, full })
    }
}

fn no_split(block: u64) -> String {
    format!(
        "no block split: a store with a block of {} was filled and still has one block. This build \
         or cluster does not split blocks, or has no free block",
        size::show(block)
    )
}
