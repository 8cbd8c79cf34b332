//! Bursts of writes into new memory, or into memory that the same job has just used and freed. And the limit
//! beside them: touching new memory without storing anything.

use crate::contract::{Client, Measured, Meter, Op, Round, Spec, key};
use crate::pages::Untouched;
use crate::stores::{PATH, Store, said};
use honeycomb_bench::noise;
use honeycomb_env::Clock;
use std::time::Duration;

/// Pause before a burst into new memory: longer than a server keeps freed memory, and than it takes to touch
/// a reserve of 128 MiB at 3 ms a MiB.
const PAUSE: Duration = Duration::from_millis(400);
/// The same before a burst that no reserve can serve. Hosts that get memory back from their guests do so
/// after two seconds; memory that was free for less time costs a fortieth of that to touch.
const COLD: Duration = Duration::from_millis(2500);
/// The smallest burst of that kind, in bytes.
const SUSTAINED_MIN: u64 = 256 << 20;
/// Most bytes before a burst, after which connections are as fast as they become.
const WARM_UP: u64 = 64 << 20;

/// Bursts into a store or a file. Only writes are timed.
pub struct Bursts {
    spec: Spec,
    value: Vec<u8>,
    store: Store,
}

impl Bursts {
    /// Bursts of `total` bytes.
    pub fn new(spec: Spec) -> Result<Bursts, String> {
        if spec.size == 0 || spec.size > spec.total {
            return Err(format!("a burst of {} bytes has no value of {}", spec.total, spec.size));
        }
        let (value, store) = (noise(spec.size as usize), Store::make(&spec)?);
        Ok(Bursts { spec, value, store })
    }

    fn is_file(&self) -> bool {
        matches!(self.spec.op, Op::AppendNew | Op::AppendAgain)
    }

    /// Writes so many bytes into the empty structure; the time of each write is passed to `count`.
    fn write(
        &self,
        bytes: u64,
        clock: Clock,
        count: &mut dyn FnMut(Duration),
    ) -> Result<(), String> {
        let (client, job) = (self.store.client(), self.store.job());
        let writes = bytes / self.spec.size;
        let mut timed = |work: &mut dyn FnMut() -> Result<(), String>| {
            let began = clock.now();
            work()?;
            count(clock.now().since(began));
            Ok(())
        };
        if self.is_file() {
            let file = client.open_file(job, PATH).map_err(said)?;
            let mut append = || file.write_all(&self.value).map(drop).map_err(said);
            return (0..writes).try_for_each(|_| timed(&mut append));
        }
        let kv = client.open_kv(job, PATH).map_err(said)?;
        (0..writes).try_for_each(|n| {
            let key = key(self.spec.size, n);
            timed(&mut || kv.put(&key, &self.value).map(drop).map_err(said))
        })
    }

    /// Replaces the structure by an empty one: its memory is free then.
    fn empty(&self) -> Result<(), String> {
        let (client, job) = (self.store.client(), self.store.job());
        client.remove_structure(job, PATH).map_err(said)?;
        match self.is_file() {
            true => client.create_file(job, PATH, 1, false).map(drop),
            false => client.create_kv(job, PATH, self.spec.blocks, false).map(drop),
        }
        .map_err(said)
    }
}

impl Client for Bursts {
    fn about(&self) -> String {
        "honeycomb-client, bursts after others".into()
    }

    fn round(&mut self, round: Round) -> Result<Measured, String> {
        let clock = Clock::start();
        let mut meter = Meter::begin(clock, round);
        let (mut writes, mut spent) = (0, Duration::ZERO);
        loop {
            self.write(self.spec.total.min(WARM_UP), clock, &mut drop)?;
            self.empty()?;
            rest_before(&self.spec, clock);
            self.write(self.spec.total, clock, &mut |took| {
                meter.count(took);
                (writes, spent) = (writes + 1, spent + took);
            })?;
            self.empty()?;
            if clock.now() >= meter.until || writes >= round.ops {
                let measured = meter.end(writes);
                return Ok(Measured { wall_ns: spent.as_nanos() as u64, ..measured });
            }
        }
    }
}

/// Waits until memory that was used just before is no longer the job's.
fn rest_before(spec: &Spec, clock: Clock) {
    if matches!(spec.op, Op::PutNew | Op::AppendNew) {
        let pause = if spec.total < SUSTAINED_MIN { PAUSE } else { COLD };
        clock.sleep_until(clock.now() + pause);
    }
}

/// Touches new memory as large as a burst, in steps as large as its writes. Only that is timed.
pub struct Touching {
    spec: Spec,
}

impl Touching {
    /// A client without a server.
    pub fn new(spec: Spec) -> Touching {
        Touching { spec }
    }
}

impl Client for Touching {
    fn about(&self) -> String {
        "one write to each page of a new mapping, in huge pages if the system has them".into()
    }

    fn round(&mut self, round: Round) -> Result<Measured, String> {
        let clock = Clock::start();
        let mut meter = Meter::begin(clock, round);
        let (mut steps, mut spent) = (0, Duration::ZERO);
        loop {
            rest_before(&self.spec, clock);
            let mut pages = Untouched::map(self.spec.total as usize).map_err(|e| e.to_string())?;
            for _ in 0..self.spec.total / self.spec.size {
                let began = clock.now();
                pages.touch(self.spec.size as usize);
                let took = clock.now().since(began);
                meter.count(took);
                (steps, spent) = (steps + 1, spent + took);
            }
            drop(pages);
            if clock.now() >= meter.until || steps >= round.ops {
                let measured = meter.end(steps);
                return Ok(Measured { wall_ns: spent.as_nanos() as u64, ..measured });
            }
        }
    }
}
