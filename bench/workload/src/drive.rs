//! Runs a demand: each task creates a prefix, stores its data in a structure, and frees it.

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

/// Interval at which a worker updates its tasks.
const TURN: Duration = Duration::from_millis(5);
/// Maximum time for one task before the worker continues with the others.
const SHARE: Duration = Duration::from_millis(10);
/// Maximum number of attempts of a request with an unknown outcome.
const TRIES: u32 = 8;

/// How a task frees its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The lease is no longer renewed, as when a task has ended or died.
    Lease,
    /// The prefix is removed, as when a job is closed.
    Removal,
    /// All of this number of declared readers commit.
    Commits(u32),
}

impl Ending {
    fn readers(self, path: &str) -> Vec<String> {
        let readers = if let Ending::Commits(readers) = self { readers } else { 0 };
        (0..readers).map(|i| format!("{path}/reader-{i}")).collect()
    }
}

/// The options of running a demand.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Kinds of structures: task number i uses `holdings[i % holdings.len()]`.
    pub holdings: Vec<Holding>,
    /// How tasks free their data.
    pub ending: Ending,
    /// Options of each task's prefix; the lease must be set.
    pub prefix: PrefixOptions,
    /// Number of worker threads; worker w has the tenants whose number modulo the workers is w.
    pub workers: usize,
    /// Sizes of writes.
    pub sizes: Sizes,
    /// Seed of contents and keys.
    pub seed: u64,
}

/// A tenant: a client with its job's token, and the job.
pub struct Tenant {
    /// The client, which renews the leases.
    pub client: Client,
    /// The job.
    pub ticket: JobTicket,
}

/// The present data of the tasks, and counts of their operations, over all workers.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes that tasks have written and still use, as counted by users: keys and values, without index.
    pub used: AtomicU64,
    /// Bytes that tasks no longer use, but whose leases have not expired.
    pub lapsing: AtomicU64,
    /// Number of structures with used data, or with a lease that has not expired.
    pub structures: AtomicU64,
    /// Number of ended tasks.
    pub ended: AtomicU64,
    /// Number of data requests.
    pub requests: AtomicU64,
    /// Bytes written.
    pub written: AtomicU64,
    /// Number of requests that were retried because their outcome was unknown.
    pub repeated: AtomicU64,
}

/// The error that ended the run of a demand.
#[derive(Debug, Error)]
#[error("task {task} of tenant {tenant} ({what}): {cause}")]
pub struct LoadError {
    /// Tenant of the task.
    pub tenant: u32,
    /// Number of the task in the demand.
    pub task: usize,
    /// The failed operation.
    pub what: &'static str,
    /// The cause.
    pub cause: Error,
}

/// Runs a demand in real time until the last lease has expired, or until `stop`. All read data is compared
/// with the written data. The first error ends the run.
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
    /// Values of the task that are included in the counters.
    counted: (u64, u64, u64),
}

/// Unused data with the end of its lease.
struct Lapse {
    until: Time,
    bytes: u64,
}

struct Worker<'a> {
    plan: &'a Plan,
    tenants: &'a [Tenant],
    counters: &'a Counters,
    clock: Clock,
    /// Future tasks, the next one last.
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
        let held = made.expect("the structure was created");
        Ok(Running { number, task, path, held, counted: (0, 0, 0) })
    }

    /// Retries a request while its outcome is unknown. A second attempt may find that the first one
    /// succeeded.
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

    /// Brings a task's data to its target level, within the task's share of time; false when the task has
    /// ended.
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
            // A late task completes its work before its data is freed: a queue is emptied.
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
                // The last renewal may have happened just now.
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

    /// Checks that no renewed lease has expired.
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
    /// Adds the changes since the last call to the counters.
    fn count(&mut self, counters: &Counters) {
        let now = (self.held.bytes, self.held.requests, self.held.written);
        let before = std::mem::replace(&mut self.counted, now);
        // Wrapping, because the used bytes may decrease.
        counters.used.fetch_add(now.0.wrapping_sub(before.0), Relaxed);
        counters.requests.fetch_add(now.1 - before.1, Relaxed);
        counters.written.fetch_add(now.2 - before.2, Relaxed);
    }
}
