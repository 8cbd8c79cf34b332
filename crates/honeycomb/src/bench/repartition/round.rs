//! One round: a block is filled, watched at rest, and pushed over the edge.

use super::super::cluster::Cluster;
use super::keys::{KEY, Values, Wrong, check, key};
use super::moves::{Split, Splits};
use crate::failure::{Failure, Outcome};
use crate::size;
use honeycomb_client::{Client, Kv};
use honeycomb_env::{Clock, Entropy};
use honeycomb_structures::splits_from;
use honeycomb_types::limits::REPORT_INTERVAL;
use honeycomb_types::{JobId, Marks, Time};
use honeycomb_wire::Status;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How long a full block may take to split, and counts may take to arrive.
const PATIENCE: Duration = Duration::from_secs(20);
/// A store that has taken so many blocks' worth of data without a split has none.
const BLOCKS_MOST: u64 = 3;

/// Percent of a block that are filled as fast as it goes: below what any block waits for.
const FAST: u64 = 60;
/// Bytes a second at which the rest of the block is filled, at the most.
const PACE: f64 = 24e6;
/// Seconds in which a block forgets how fast it was filled.
const FORGETS: f64 = 0.25;
/// And at the least, whatever the block thinks of it.
const PACE_LEAST: f64 = 1e6;

/// What a round is.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Bytes of a value.
    pub value: usize,
    /// Bytes of a block.
    pub block: u64,
    /// Part of the block that is filled before anything is watched.
    pub fill: f64,
    /// How long it is watched at rest.
    pub window: Duration,
    /// Threads that write.
    pub writers: u32,
    /// Threads that read.
    pub readers: u32,
    /// Bytes of one request of a writer.
    pub write: usize,
    /// How long a writer rests after each request.
    pub pause: Duration,
    /// Decides keys.
    pub seed: u64,
}

/// An operation: when it was begun, and how long it took.
pub type Took = (Time, Duration);

/// What a round showed.
pub struct Seen {
    /// The splits.
    pub splits: Vec<Split>,
    /// Gets that were begun while nothing but the writers went on.
    pub before: Vec<Duration>,
    /// Gets that were under way while a block was being split.
    pub during: Vec<Duration>,
    /// The longest that any operation, get or put, took that was under way during a split.
    pub longest: Duration,
    /// What was wrong with the store at the end.
    pub wrong: Wrong,
    /// Keys that were checked.
    pub keys: u64,
    /// Which part of the block was taken when its split began, if one did.
    pub full: Option<f64>,
}

/// What the threads of a round share.
struct Stage<'a> {
    round: Round,
    client: &'a Client,
    job: JobId,
    clock: Clock,
    values: &'a Values,
    /// Writers write keys that are there; then new ones.
    pushing: AtomicBool,
    stop: AtomicBool,
    /// Keys of each writer that are there.
    known: Vec<AtomicU32>,
    written: AtomicU64,
    /// Bytes that an entry takes in the block.
    each: u64,
}

const PATH: &str = "/split";

/// Runs one round on a cluster that holds nothing.
pub fn run(cluster: &Cluster, round: Round, values: &Values, number: u32) -> Outcome<Seen> {
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

/// The last round's blocks come back first.
fn await_empty(cluster: &Cluster) -> Outcome {
    let (admin, clock) = (cluster.client(cluster.token()), Clock::start());
    loop {
        let status = admin.status()?;
        if status.free == status.blocks && status.quarantined == 0 {
            return Ok(());
        }
        if clock.now() > Time::ZERO + PATIENCE {
            let text = format!("{} of {} blocks are free", status.free, status.blocks);
            return Err(Failure::new(Status::DeadlineExceeded, text));
        }
        clock.sleep_until(clock.now() + Duration::from_millis(2));
    }
}

/// What one writer knows.
struct Writer {
    number: u32,
    /// How often each of its keys was written with an acknowledgement.
    times: Vec<u32>,
    took: Vec<Took>,
    draw: Entropy,
}

impl Stage<'_> {
    /// The key with this place among the keys of a writer.
    fn number(&self, writer: u32, place: u32) -> u32 {
        place * self.round.writers + writer
    }

    /// Fills the block: some of it by what an entry is thought to take, the rest by what entries
    /// turned out to take, and so slowly that the block does not yet ask for another one.
    fn fill(&mut self, cluster: &Cluster, kv: &Kv) -> Outcome {
        let Round { block, fill, value, write, .. } = self.round;
        let target = (block as f64 * fill) as u64;
        let thought = (KEY + value + 48) as u64;
        let first = ((target.min(block * FAST / 100) / thought) as u32).max(1);
        self.put_all(kv, 0..first, usize::MAX, Duration::ZERO)?;
        let least = first as u64 * (KEY + value) as u64;
        self.each = (self.used(cluster, least)? / first as u64).max(1);
        let all = first.max((target / self.each) as u32);
        // Half as fast as the block would have to fill to ask for another one already.
        let asks = |pace: f64| splits_from(block as usize, 2 * pace as u64, Marks::default());
        let mut paces = std::iter::successors(Some(PACE), |pace| Some(pace / 1.2));
        let slow = |pace: &f64| *pace < PACE_LEAST || asks(*pace) as u64 > target;
        let pace = paces.find(slow).expect("they end");
        // And for so long that it has forgotten how fast the first part came.
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
                "the block split before it was {:.0} % full: give a smaller --fill",
                self.round.fill * 100.0
            );
            return Err(Failure::invalid(text));
        }
        Ok(())
    }

    /// Writes these keys for the first time, in requests of so many bytes, with a pause after each.
    fn put_all(&self, kv: &Kv, all: Range<u32>, bytes: usize, pause: Duration) -> Outcome {
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

    /// What the servers report as used, once they have heard of at least so much and report nothing
    /// new: an earlier report knows of a part only.
    fn used(&self, cluster: &Cluster, least: u64) -> Outcome<u64> {
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
                let text = format!("{least} bytes were written, and {used} are reported as used");
                return Err(Failure::new(Status::DeadlineExceeded, text));
            }
            self.clock.sleep_until(now + Duration::from_millis(10));
        }
    }

    fn watch(&self, cluster: &Cluster) -> Outcome<Seen> {
        let splits = Splits::default();
        let (steered, watched, writers, gets) = std::thread::scope(|scope| {
            let splits = &splits;
            let ended = |result: &Outcome| {
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
        let writers = writers.into_iter().collect::<Outcome<Vec<Writer>>>();
        let writers = writers.map_err(|e| self.explained(e))?;
        let gets: Vec<Took> = gets.into_iter().collect::<Outcome<Vec<_>>>()?.concat();
        watched?;
        let (pushed_at, full) = steered?;
        self.judge(splits.done(), pushed_at, full, &writers, &gets)
    }

    /// A block that is full where it should have split is what this is about.
    fn explained(&self, e: Failure) -> Failure {
        if e.status() != Some(Status::BlockFull) {
            return e;
        }
        e.with(&no_split(self.round.block))
    }

    /// Lets the writers go on as they are for the window, then pushes until a split is over. When it
    /// began to push, and what part of the block was taken when it began to split.
    fn steer(&self, splits: &Splits) -> Outcome<(Time, Option<f64>)> {
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

    fn write(&self, number: u32) -> Outcome<Writer> {
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

    fn write_on(&self, kv: &Kv, writer: &mut Writer) -> Outcome {
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
            // One writing of a key in each request.
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

    fn read(&self, number: u32) -> Outcome<Vec<Took>> {
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
                    let text = format!("key {number} was there and came back as {what}");
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
    ) -> Outcome<Seen> {
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
        "no block split: a store was filled, with a block of {}, and it was still one block, so there \
         is nothing to measure. This build or this cluster does not split, or has no block to spare",
        size::show(block)
    )
}
