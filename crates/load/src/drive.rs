//! Carries a demand out: tasks make a prefix each, keep their data in a structure, and let it go.

use crate::demand::{Demand, Task};
use crate::hold::{Held, Holding, Sizes};
use honeycomb_client::{Client, Error, JobTicket, LostLease};
use honeycomb_env::Clock;
use honeycomb_types::Time;
use honeycomb_wire::Status;
use honeycomb_wire::messages::PrefixOptions;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use thiserror::Error;

/// How often a worker looks at what its tasks should hold.
const TURN: Duration = Duration::from_millis(5);
/// The longest that one task has its worker's attention before the others have theirs.
const SHARE: Duration = Duration::from_millis(10);
/// How often something is asked again that may have been done already.
const TRIES: u32 = 8;

/// How a task lets its data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nobody renews the lease any more, as when a task has ended or has died.
    Lease,
    /// Its prefix is removed, as those of a job are that is closed.
    Removal,
    /// So many tasks were declared as its readers, and all of them commit.
    Commits(u32),
}

impl Ending {
    fn readers(self, path: &str) -> Vec<String> {
        let readers = if let Ending::Commits(readers) = self { readers } else { 0 };
        (0..readers).map(|i| format!("{path}/reader-{i}")).collect()
    }
}

/// How a demand is carried out.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What task number i keeps its data in: `holdings[i % holdings.len()]`.
    pub holdings: Vec<Holding>,
    /// How tasks let go.
    pub ending: Ending,
    /// How each task's prefix lives; the lease must be set.
    pub prefix: PrefixOptions,
    /// Threads that work; each has the tenants whose number it is, modulo their count.
    pub workers: usize,
    /// Sizes of what is written.
    pub sizes: Sizes,
    /// Decides contents and keys.
    pub seed: u64,
}

/// A tenant: a client with its job's token, and the job.
pub struct Tenant {
    /// The client, which keeps the leases.
    pub client: Client,
    /// The job.
    pub ticket: JobTicket,
}

/// What the tasks hold at this moment, and have done. Counts of all workers.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes that tasks have written and still want, as users count them: keys and values, no index.
    pub used: AtomicU64,
    /// Bytes that tasks have let go, whose lease is not over.
    pub lapsing: AtomicU64,
    /// Structures with data that is wanted, or whose lease is not over.
    pub structures: AtomicU64,
    /// Tasks that have ended.
    pub ended: AtomicU64,
    /// Requests for data.
    pub requests: AtomicU64,
    /// Bytes written.
    pub written: AtomicU64,
    /// Requests that had to be asked again because their outcome was unknown.
    pub repeated: AtomicU64,
}

/// Why a demand could not be carried out.
#[derive(Debug, Error)]
#[error("task {task} of tenant {tenant} ({what}): {cause}")]
pub struct LoadError {
    /// Whose.
    pub tenant: u32,
    /// Which, in the order of the demand.
    pub task: usize,
    /// What it was about to do.
    pub what: &'static str,
    /// Why not.
    pub cause: Error,
}

/// Carries a demand out in real time, from now until the last lease is over, or until `stop`. All
/// data that is read is compared with what was written. The first error ends it.
pub fn carry_out(
    demand: &Demand,
    plan: &Plan,
    tenants: &[Tenant],
    counters: &Counters,
    stop: &AtomicBool,
) -> Result<(), LoadError> {
    assert_eq!(tenants.len(), demand.tenants as usize, "a client for each tenant");
    assert!(plan.workers > 0 && !plan.holdings.is_empty() && plan.prefix.lease_ms > 0);
    let clock = Clock::start();
    let failed = AtomicBool::new(false);
    let work = |worker: usize| {
        let mine = |task: &Task| task.tenant as usize % plan.workers == worker;
        let waiting = demand.tasks.iter().enumerate().filter(|(_, task)| mine(task)).rev();
        let waiting = waiting.map(|(number, task)| (number, *task)).collect();
        let mut worker =
            Worker { plan, tenants, counters, clock, waiting, running: vec![], lapses: vec![] };
        let result = worker.work(|| stop.load(Relaxed) || failed.load(Relaxed));
        if result.is_err() {
            failed.store(true, Relaxed);
        }
        result
    };
    std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..plan.workers).map(|n| scope.spawn(move || work(n))).collect();
        let results: Vec<_> =
            workers.into_iter().map(|w| w.join().expect("a worker does not panic")).collect();
        results.into_iter().collect()
    })
}

/// A task with its structure.
struct Running {
    number: usize,
    task: Task,
    path: String,
    held: Held,
    /// What the counters know of it.
    counted: (u64, u64, u64),
}

/// Data that was let go, until when its lease is.
struct Lapse {
    until: Time,
    bytes: u64,
}

struct Worker<'a> {
    plan: &'a Plan,
    tenants: &'a [Tenant],
    counters: &'a Counters,
    clock: Clock,
    /// The next one last.
    waiting: Vec<(usize, Task)>,
    running: Vec<Running>,
    lapses: Vec<Lapse>,
}

impl Worker<'_> {
    fn work(&mut self, stopped: impl Fn() -> bool) -> Result<(), LoadError> {
        let mut next_look = Time::ZERO;
        while !stopped() {
            let turn = self.clock.now();
            while let Some((number, task)) = self.waiting.pop_if(|(_, t)| due(t, turn)) {
                let begun = self.begin(number, task)?;
                self.running.push(begun);
            }
            let mut i = 0;
            while i < self.running.len() {
                if self.advance(i)? {
                    i += 1;
                } else {
                    let over = self.running.swap_remove(i);
                    self.let_go(over)?;
                }
            }
            self.lapse();
            if turn >= next_look {
                next_look = turn + Duration::from_millis(100);
                self.look_at_leases()?;
            }
            if self.waiting.is_empty() && self.running.is_empty() && self.lapses.is_empty() {
                break;
            }
            self.clock.sleep_until(turn + TURN);
        }
        Ok(())
    }

    fn begin(&self, number: usize, task: Task) -> Result<Running, LoadError> {
        let Tenant { client, ticket } = &self.tenants[task.tenant as usize];
        let path = format!("/task-{number}");
        let error =
            |what| move |cause| LoadError { tenant: task.tenant, task: number, what, cause };
        self.insist(true, || {
            client.create_prefix(ticket.job, &path, &[], self.plan.prefix.clone()).map(drop)
        })
        .map_err(error("create its prefix"))?;
        let readers = self.plan.ending.readers(&path);
        for reader in &readers {
            self.insist(true, || {
                client.create_prefix(ticket.job, reader, &[], self.plan.prefix.clone()).map(drop)
            })
            .map_err(error("create a reader's prefix"))?;
        }
        if !readers.is_empty() {
            let declare = || client.declare_readers(ticket.job, &path, &readers, true).map(drop);
            self.insist(false, declare).map_err(error("declare its readers"))?;
        }
        client.keep(ticket.job, std::slice::from_ref(&path));
        let plan = self.plan;
        let holding = plan.holdings[number % plan.holdings.len()];
        let seed = plan.seed.wrapping_add(number as u64);
        let most = task.bytes as u64;
        let mut made = None;
        self.insist(false, || {
            made = Some(Held::create(client, ticket.job, &path, holding, plan.sizes, most, seed)?);
            Ok(())
        })
        .map_err(error("create its structure"))?;
        self.counters.structures.fetch_add(1, Relaxed);
        let held = made.expect("it was made");
        Ok(Running { number, task, path, held, counted: (0, 0, 0) })
    }

    /// Asks again while nobody knows whether it was done. When it was, a second try finds it there.
    fn insist(&self, once: bool, mut ask: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            match ask() {
                Err(e) if e.status == Status::Unavailable && tries < TRIES => {
                    self.counters.repeated.fetch_add(1, Relaxed);
                }
                Err(e) if once && tries > 1 && e.status == Status::AlreadyExists => return Ok(()),
                result => return result,
            }
        }
    }

    /// Brings a task's data to what it should be, as far as its share of time goes; false when the
    /// task is over.
    fn advance(&mut self, i: usize) -> Result<bool, LoadError> {
        let clock = self.clock;
        let until = clock.now() + SHARE;
        let running = &mut self.running[i];
        let task = running.task;
        let (result, over) = loop {
            let now = clock.now();
            let at = now.since(Time::ZERO).as_secs_f64();
            let target = task.level(at) as u64;
            let growing = at < task.start + task.grow + task.hold;
            let over = !growing && at >= task.end();
            let more = match growing {
                true => running.held.grow(target),
                false => running.held.shrink(target),
            };
            match more {
                Ok(true) if now < until => {}
                other => break (other, over),
            }
        };
        running.count(self.counters);
        match result {
            // What is late is finished before it is let go: a queue is emptied.
            Ok(more) => Ok(more || !over),
            Err(cause) => {
                let (tenant, task) = (task.tenant, running.number);
                Err(LoadError { tenant, task, what: "write or read its data", cause })
            }
        }
    }

    fn let_go(&mut self, mut over: Running) -> Result<(), LoadError> {
        let Tenant { client, ticket } = &self.tenants[over.task.tenant as usize];
        let bytes = over.held.bytes;
        let (tenant, task) = (over.task.tenant, over.number);
        over.held.bytes = 0;
        over.count(self.counters);
        self.counters.ended.fetch_add(1, Relaxed);
        client.release(ticket.job, std::slice::from_ref(&over.path));
        match self.plan.ending {
            Ending::Removal => {
                let error = |cause| LoadError { tenant, task, what: "remove its prefix", cause };
                let mut tries = 0;
                self.insist(false, || {
                    tries += 1;
                    match client.remove_prefix(ticket.job, &over.path) {
                        Err(e) if tries > 1 && e.status == Status::Removed => Ok(()),
                        result => result,
                    }
                })
                .map_err(error)?;
                self.counters.structures.fetch_sub(1, Relaxed);
            }
            Ending::Commits(_) => {
                for reader in self.plan.ending.readers(&over.path) {
                    let what = "commit a reader";
                    self.insist(false, || client.commit_task(ticket.job, &reader).map(drop))
                        .map_err(|cause| LoadError { tenant, task, what, cause })?;
                }
                self.counters.structures.fetch_sub(1, Relaxed);
            }
            Ending::Lease => {
                // Its last renewal may be as young as this.
                let lease = Duration::from_millis(self.plan.prefix.lease_ms as u64);
                self.counters.lapsing.fetch_add(bytes, Relaxed);
                self.lapses.push(Lapse { until: self.clock.now() + lease, bytes });
            }
        }
        Ok(())
    }

    fn lapse(&mut self) {
        let now = self.clock.now();
        let counters = self.counters;
        self.lapses.retain(|lapse| {
            let over = lapse.until <= now;
            if over {
                counters.lapsing.fetch_sub(lapse.bytes, Relaxed);
                counters.structures.fetch_sub(1, Relaxed);
            }
            !over
        });
    }

    /// A lease that was kept and lost all the same is an error.
    fn look_at_leases(&self) -> Result<(), LoadError> {
        for running in &self.running {
            let Tenant { client, .. } = &self.tenants[running.task.tenant as usize];
            for LostLease { path, status, message, .. } in client.lost_leases() {
                if let Some(lost) = self.running.iter().find(|r| r.path == path) {
                    let (tenant, task) = (lost.task.tenant, lost.number);
                    let cause = Error::new(status, message);
                    return Err(LoadError { tenant, task, what: "keep its lease", cause });
                }
            }
        }
        Ok(())
    }
}

fn due(task: &Task, now: Time) -> bool {
    task.start <= now.since(Time::ZERO).as_secs_f64()
}

impl Running {
    /// Tells the counters what is new since they were last told.
    fn count(&mut self, counters: &Counters) {
        let now = (self.held.bytes, self.held.requests, self.held.written);
        let before = std::mem::replace(&mut self.counted, now);
        // Wrapping, because what is used may become less.
        counters.used.fetch_add(now.0.wrapping_sub(before.0), Relaxed);
        counters.requests.fetch_add(now.1 - before.1, Relaxed);
        counters.written.fetch_add(now.2 - before.2, Relaxed);
    }
}
