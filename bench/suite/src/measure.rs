//! Bounded measurement loops and their figures.

use super::process::{Watched, thread_cpu};
use hdrhistogram::Histogram;
use honeycomb_env::Clock;
use honeycomb_types::Time;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Upper bound of the histogram, in nanoseconds.
const LATENCY_MAX: u64 = 60_000_000_000;
/// Operations between two checks of a loop's time limit.
const LOOK: u64 = 16;

/// The limits of a loop; the first that is reached ends it.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Time.
    pub time: Duration,
    /// Operations of all threads together.
    pub ops: u64,
}

/// The operation of one thread, called with 0, 1, 2, ...
pub type Work<'a> = Box<dyn FnMut(u64) -> Result<(), String> + Send + 'a>;

/// The figures of one measurement.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Latencies in microseconds: p50, p90, p99, p99.9, maximum.
    pub latency: [f64; 5],
    /// Operations per second.
    pub ops_s: f64,
    /// Payload megabytes (1,000,000 bytes) per second.
    pub mb_s: f64,
    /// Server CPU per operation in microseconds.
    pub server_us: f64,
    /// Client CPU per operation in microseconds.
    pub client_us: f64,
}

struct Thread {
    latencies: Histogram<u64>,
    cpu: u64,
}

/// Runs one loop for each thread and times every operation.
pub fn run(
    server: &Watched,
    limit: Limit,
    bytes: u64,
    threads: Vec<Work<'_>>,
) -> Result<Figures, String> {
    let clock = Clock::start();
    let ops = (limit.ops / threads.len() as u64).max(1);
    let limit = Limit { ops, ..limit };
    let server_before = server.cpu();
    let begun = clock.now();
    let done: Vec<Result<Thread, String>> = match <[Work<'_>; 1]>::try_from(threads) {
        Ok([work]) => vec![run_thread(clock, limit, work)],
        Err(threads) => std::thread::scope(|scope| {
            let running: Vec<_> = threads
                .into_iter()
                .map(|work| scope.spawn(move || run_thread(clock, limit, work)))
                .collect();
            running.into_iter().map(|t| t.join().expect("a loop does not panic")).collect()
        }),
    };
    let wall = clock.now().since(begun);
    let server_ns = server.cpu() - server_before;
    let mut all = histogram();
    let mut client_ns = 0;
    for thread in done {
        let thread = thread?;
        all.add(thread.latencies).expect("all histograms have the same bounds");
        client_ns += thread.cpu;
    }
    Ok(figures(&all, wall, bytes, server_ns, client_ns))
}

fn figures(
    all: &Histogram<u64>,
    wall: Duration,
    bytes: u64,
    server_ns: u64,
    client_ns: u64,
) -> Figures {
    let wall = wall.as_secs_f64();
    let us = |ns: u64| ns as f64 / 1000.0;
    let at = |quantile| us(all.value_at_quantile(quantile));
    let count = all.len() as f64;
    Figures {
        latency: [at(0.5), at(0.9), at(0.99), at(0.999), us(all.max())],
        ops_s: count / wall,
        mb_s: count * bytes as f64 / wall / 1e6,
        server_us: us(server_ns) / count,
        client_us: us(client_ns) / count,
    }
}

/// Measures wake-ups: one thread waits for an event that another thread causes, repeatedly. The latency is
/// from just before the cause until the waiting thread returns. `pause` is the time before each cause.
pub fn wake_ups(
    server: &Watched,
    limit: Limit,
    pause: Pause,
    mut wait: Work<'_>,
    mut set_off: Work<'_>,
) -> Result<Figures, String> {
    let clock = Clock::start();
    let server_before = server.cpu();
    let sent = AtomicU64::new(0);
    let (ready, awaited) = channel();
    let (waited, cause) = std::thread::scope(|scope| {
        let sent = &sent;
        let waiting = scope.spawn(move || {
            let mut latencies = histogram();
            let (cpu_before, until) = (thread_cpu(), clock.now() + limit.time);
            for i in 0..limit.ops {
                // If the receiver is gone, its thread has failed and reports why.
                let _ = ready.send(());
                wait(i)?;
                let now = clock.now();
                latencies.saturating_record(now.0 - sent.load(Relaxed));
                if now >= until {
                    break;
                }
            }
            Ok::<Thread, String>(Thread { latencies, cpu: thread_cpu() - cpu_before })
        });
        let cpu_before = thread_cpu();
        let mut set_off_all = || {
            for (i, ()) in awaited.iter().enumerate() {
                pause.pass(clock);
                sent.store(clock.now().0, Relaxed);
                set_off(i as u64)?;
            }
            Ok::<(), String>(())
        };
        let cause = set_off_all().map(|()| thread_cpu() - cpu_before);
        (waiting.join().expect("a loop does not panic"), cause)
    });
    // An error of the causing thread explains why the other one got no wake-up.
    let (cause, thread) = (cause?, waited?);
    let server_ns = server.cpu() - server_before;
    Ok(figures(&thread.latencies, clock.now().since(Time::ZERO), 0, server_ns, thread.cpu + cause))
}

/// The idle time before each wake-up.
#[derive(Clone, Copy, Debug)]
pub enum Pause {
    /// Sleep, long enough that all other threads sleep, too.
    Asleep(Duration),
    /// Yield the core, for times shorter than a sleep of the kernel can be.
    Yielding(Duration),
}

impl Pause {
    fn pass(self, clock: Clock) {
        let now = clock.now();
        match self {
            Pause::Asleep(time) => clock.sleep_until(now + time),
            Pause::Yielding(time) => {
                while clock.now() < now + time {
                    std::thread::yield_now();
                }
            }
        }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX, 3).expect("sound bounds")
}

fn run_thread(clock: Clock, limit: Limit, mut work: Work<'_>) -> Result<Thread, String> {
    let mut latencies = histogram();
    let until = clock.now() + limit.time;
    let cpu_before = thread_cpu();
    let mut before = clock.now();
    for i in 0..limit.ops {
        work(i)?;
        let now = clock.now();
        latencies.saturating_record(now.since(before).as_nanos() as u64);
        before = now;
        if i % LOOK == LOOK - 1 && now >= until {
            break;
        }
    }
    Ok(Thread { latencies, cpu: thread_cpu() - cpu_before })
}

/// Median, minimum and maximum of several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

impl Spread {
    /// The spread of at least one value.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => (values[middle - 1] + values[middle]) / 2.0,
            _ => values[middle],
        };
        Spread { median, min: values[0], max: values[values.len() - 1] }
    }

    /// The JSON form.
    pub fn json(&self) -> Value {
        let cut = |v: f64| (v * 1000.0).round() / 1000.0;
        json!({ "median": cut(self.median), "min": cut(self.min), "max": cut(self.max) })
    }
}

/// The figures of all rounds of one kind.
#[derive(Clone, Debug)]
pub struct Series(Vec<Figures>);

impl Series {
    /// The series of at least one round.
    pub fn of(rounds: Vec<Figures>) -> Series {
        assert!(!rounds.is_empty(), "a series has rounds");
        Series(rounds)
    }

    /// The spread of one figure.
    pub fn spread(&self, figure: impl Fn(&Figures) -> f64) -> Spread {
        Spread::of(self.0.iter().map(figure))
    }

    /// This series' figure over another's, round by round.
    pub fn ratio(&self, other: &Series, figure: impl Fn(&Figures) -> f64) -> Spread {
        Spread::of(self.0.iter().zip(&other.0).map(|(a, b)| figure(a) / figure(b)))
    }

    /// The JSON form.
    pub fn json(&self) -> Value {
        let latency = |i: usize| self.spread(|f| f.latency[i]).json();
        json!({
            "latency_us": {
                "p50": latency(0), "p90": latency(1), "p99": latency(2), "p99.9": latency(3),
                "max": latency(4),
            },
            "ops_per_s": self.spread(|f| f.ops_s).json(),
            "mb_per_s": self.spread(|f| f.mb_s).json(),
            "server_cpu_us_per_op": self.spread(|f| f.server_us).json(),
            "client_cpu_us_per_op": self.spread(|f| f.client_us).json(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_ends_at_its_number_of_operations() {
        let limit = Limit { time: Duration::from_secs(3600), ops: 100 };
        let me = Watched::process(std::process::id());
        let mut counts = [0u64; 2];
        let threads: Vec<Work<'_>> = counts
            .iter_mut()
            .map(|count| -> Work<'_> {
                Box::new(move |_| {
                    *count += 1;
                    Ok(())
                })
            })
            .collect();
        run(&me, limit, 0, threads).unwrap();
        assert_eq!(counts, [50, 50]);
    }

    #[test]
    fn the_spread_is_that_of_the_rounds() {
        let spread = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([1.0, 2.0]).median, 1.5);
    }
}
