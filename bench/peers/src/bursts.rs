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

    /// Writes so many bytes into the empty structure; each write is passed to `timed`.
    fn write(&self, bytes: u64, timed: &mut Timed<'_>) -> Result<(), String> {
        let (client, job) = (self.store.client(), self.store.job());
        let writes = bytes / self.spec.size;
        if matches!(self.spec.op, Op::AppendNew | Op::AppendAgain) {
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
}

/// Times a step, or only runs it.
type Timed<'a> = dyn FnMut(&mut dyn FnMut() -> Result<(), String>) -> Result<(), String> + 'a;

/// A round of bursts, whose time is that of their timed steps alone.
fn bursts(
    round: Round,
    clock: Clock,
    mut burst: impl FnMut(&mut Timed<'_>) -> Result<(), String>,
) -> Result<Measured, String> {
    let mut meter = Meter::begin(clock, round);
    let (mut steps, mut spent) = (0, Duration::ZERO);
    while steps == 0 || clock.now() < meter.until && steps < round.ops {
        burst(&mut |step| {
            let began = clock.now();
            step()?;
            let took = clock.now().since(began);
            meter.count(took);
            (steps, spent) = (steps + 1, spent + took);
            Ok(())
        })?;
    }
    let measured = meter.end(steps);
    Ok(Measured { wall_ns: spent.as_nanos() as u64, ..measured })
}

impl Client for Bursts {
    fn about(&self) -> String {
        "honeycomb-client, bursts after others".into()
    }

    fn round(&mut self, round: Round) -> Result<Measured, String> {
        let clock = Clock::start();
        bursts(round, clock, |timed| {
            self.write(self.spec.total.min(WARM_UP), &mut |step| step())?;
            self.store.empty(&self.spec)?;
            rest_before(&self.spec, clock);
            self.write(self.spec.total, timed)?;
            self.store.empty(&self.spec)
        })
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
        bursts(round, clock, |timed| {
            rest_before(&self.spec, clock);
            let mut pages = Untouched::map(self.spec.total as usize).map_err(|e| e.to_string())?;
            (0..self.spec.total / self.spec.size).try_for_each(|_| {
                timed(&mut || {
                    pages.touch(self.spec.size as usize);
                    Ok(())
                })
            })
        })
    }
}
