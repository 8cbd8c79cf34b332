//! The lease keeper: one thread that renews the prefixes that the driver keeps.

use crate::context::Context;
use honeycomb_env::AbortOnPanic;
use honeycomb_types::JobId;
use honeycomb_types::limits::{LEASE_DEFAULT_MS, LOST_LEASES_MAX};
use honeycomb_wire::messages::{RenewLeasesReply, RenewLeasesRequest};
use honeycomb_wire::{Op, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// A lease is renewed four times in its period, so that three renewals may get lost.
const RENEWALS_PER_LEASE: u32 = 4;

/// Paths of one renewal, and their bytes: well within the limits of a request and its reply.
const RENEWAL_PATHS: usize = 8192;
const RENEWAL_BYTES: usize = 1 << 20;

/// Longest pause between two renewals.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// A prefix that the keeper could not renew and no longer keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostLease {
    /// The job.
    pub job: JobId,
    /// The path of the prefix; empty for the root.
    pub path: String,
    /// `LeaseExpired` when the lease had ended, otherwise why the prefix cannot be renewed.
    pub status: Status,
    /// Text for people.
    pub message: String,
}

/// Called for each loss until it returns false.
type LossObserver = Box<dyn FnMut(&LostLease) -> bool + Send>;

#[derive(Default)]
struct KeeperState {
    kept: BTreeMap<JobId, BTreeSet<String>>,
    /// Shortest lease among the kept prefixes, by the controller's last reply.
    shortest_ms: u32,
    /// Prefixes that could not be renewed and are no longer kept.
    lost: Vec<LostLease>,
    running: bool,
    changed: bool,
}

#[derive(Default)]
struct KeeperShared {
    state: Mutex<KeeperState>,
    wake: Condvar,
    /// Never locked while `state` is held: an observer may call the client.
    observers: Mutex<Vec<LossObserver>>,
    warned: AtomicBool,
}

impl KeeperShared {
    fn state(&self) -> MutexGuard<'_, KeeperState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn observers(&self) -> MutexGuard<'_, Vec<LossObserver>> {
        self.observers.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn report(&self, lost: &LostLease) {
        let mut observers = std::mem::take(&mut *self.observers());
        let nobody = observers.is_empty();
        observers.retain_mut(|observer| observer(lost));
        let mut added = self.observers();
        observers.append(&mut added);
        *added = observers;
        if nobody && lost.status == Status::LeaseExpired && !self.warned.swap(true, Relaxed) {
            eprintln!("honeycomb: leases of this process were lost: {}", lost.message);
        }
    }
}

/// The prefixes that are kept. The thread that renews them ends with its owner.
pub(crate) struct Keeper {
    context: Arc<Context>,
    shared: Arc<KeeperShared>,
}

impl Keeper {
    /// A keeper without prefixes; it has no thread until it has a prefix.
    pub fn new(context: Arc<Context>) -> Keeper {
        Keeper { context, shared: Arc::default() }
    }

    /// Starts to keep these prefixes. The first renewal is sent at once.
    pub fn keep(&self, job: JobId, paths: &[String]) {
        if paths.is_empty() {
            return;
        }
        let mut state = self.shared.state();
        state.kept.entry(job).or_default().extend(paths.iter().cloned());
        state.changed = true;
        if !state.running {
            state.running = true;
            let (context, shared) = (self.context.clone(), Arc::downgrade(&self.shared));
            let spawned = std::thread::Builder::new()
                .name("honeycomb-keeper".into())
                .spawn(move || run(&context, &shared));
            // Without a thread no lease would be renewed and data would be lost, so the process
            // panics instead.
            spawned.expect("a thread can be started");
        }
        drop(state);
        self.shared.wake.notify_all();
    }

    /// Records that this client made a prefix with this lease. If the keeper keeps prefixes of the
    /// job, the new one may be among them and need its renewals in time.
    pub fn created(&self, job: JobId, lease_ms: u32) {
        let mut state = self.shared.state();
        if lease_ms != 0 && state.kept.contains_key(&job) {
            state.changed = true;
            drop(state);
            self.shared.wake.notify_all();
        }
    }

    /// Stops keeping these prefixes; with no paths, all of the job's.
    pub fn release(&self, job: JobId, paths: &[String]) {
        let mut state = self.shared.state();
        let Some(kept) = state.kept.get_mut(&job) else { return };
        for path in paths {
            kept.remove(path);
        }
        if paths.is_empty() || kept.is_empty() {
            state.kept.remove(&job);
        }
    }

    /// Adds an observer that is called for every later loss.
    pub fn observe(&self, observer: LossObserver) {
        self.shared.observers().push(observer);
    }

    /// Prefixes whose leases were lost since the last call.
    pub fn take_lost(&self) -> Vec<LostLease> {
        std::mem::take(&mut self.shared.state().lost)
    }
}

fn run(context: &Context, shared: &Weak<KeeperShared>) {
    let _guard = AbortOnPanic("lease keeper's");
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let work: Vec<_> = {
            let mut state = shared.state();
            assert!(state.running, "INV-33: a keeper has a thread that it did not start");
            debug_assert!(
                state.kept.values().all(|paths| !paths.is_empty()),
                "INV-14: the keeper has a job, and keeps no prefix of it"
            );
            state.changed = false;
            if state.kept.is_empty() {
                state.running = false;
                return;
            }
            state.kept.iter().map(|(job, paths)| (*job, paths.clone())).collect()
        };
        let mut shortest = u32::MAX;
        for (job, paths) in work {
            for part in requests(paths) {
                shortest = shortest.min(renew(context, &shared, job, part));
            }
        }
        let mut state = shared.state();
        if shortest != u32::MAX {
            state.shortest_ms = shortest;
        }
        let lease = if state.shortest_ms == 0 { LEASE_DEFAULT_MS } else { state.shortest_ms };
        let pause = Duration::from_millis((lease / RENEWALS_PER_LEASE).max(1) as u64);
        // No longer than this, because other clients may have made a prefix with a shorter lease
        // since, and this thread must end soon after its client is dropped.
        let pause = pause.min(PAUSE_MAX);
        if !state.changed {
            let waited = shared.wake.wait_timeout(state, pause);
            drop(waited);
        }
    }
}

/// Divides the paths of a job into the requests that renew them.
fn requests(paths: BTreeSet<String>) -> Vec<Vec<String>> {
    let mut parts: Vec<Vec<String>> = Vec::new();
    let mut bytes = 0;
    for path in paths {
        bytes += path.len();
        match parts.last_mut() {
            Some(part) if part.len() < RENEWAL_PATHS && bytes <= RENEWAL_BYTES => part.push(path),
            _ => {
                bytes = path.len();
                parts.push(vec![path]);
            }
        }
    }
    parts
}

/// Renews some prefixes of a job; returns their shortest lease.
fn renew(context: &Context, shared: &KeeperShared, job: JobId, paths: Vec<String>) -> u32 {
    assert!(!paths.is_empty(), "INV-14: a renewal for {job} names no prefix");
    let body = RenewLeasesRequest { job: job.0, paths };
    let reply: Result<RenewLeasesReply, _> =
        context.ask(Op::RenewLeases, &body, context.deadline());
    let mut shortest = u32::MAX;
    match reply {
        Ok(reply) => {
            let within = if reply.shortest_ms == 0 { u32::MAX } else { reply.shortest_ms };
            for (path, result) in body.paths.iter().zip(reply.results) {
                match Status::from_code(result.status) {
                    // Renewing a prefix also renews its descendants, whose leases may be shorter.
                    Some(Status::Ok) => shortest = shortest.min(result.lease_ms.min(within)),
                    status => {
                        let status = status.unwrap_or(Status::Internal);
                        lose(shared, job, path, status, &result.message);
                    }
                }
            }
        }
        // The controller is unreachable: the next turn retries.
        Err(e) if e.status == Status::Unavailable => {}
        Err(e) => {
            for path in &body.paths {
                lose(shared, job, path, e.status, &e.message);
            }
        }
    }
    shortest
}

fn lose(shared: &KeeperShared, job: JobId, path: &str, status: Status, message: &str) {
    let mut state = shared.state();
    let Some(kept) = state.kept.get_mut(&job) else { return };
    // The caller released it while the renewal was under way.
    if !kept.remove(path) {
        return;
    }
    if kept.is_empty() {
        state.kept.remove(&job);
    }
    let (path, message) = (path.to_owned(), message.to_owned());
    let lost = LostLease { job, path, status, message };
    state.lost.push(lost.clone());
    let excess = state.lost.len().saturating_sub(LOST_LEASES_MAX);
    state.lost.drain(..excess);
    drop(state);
    shared.report(&lost);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More paths than a request may have lost all of their leases.
    #[test]
    fn paths_of_a_job_are_renewed_in_requests_of_bounded_size() {
        let long = "p".repeat(RENEWAL_BYTES / 4);
        for (count, tail, least) in [
            (1, "", 1),
            (RENEWAL_PATHS, "", 1),
            (RENEWAL_PATHS + 1, "", 2),
            (70_000, "", 9),
            (9, &long[..], 3),
            (2, &"p".repeat(2 * RENEWAL_BYTES)[..], 2),
        ] {
            let paths: BTreeSet<String> = (0..count).map(|n| format!("{n:06}{tail}")).collect();
            let parts = requests(paths.clone());
            assert_eq!(parts.len(), least, "{count} paths");
            for part in &parts {
                let bytes: usize = part.iter().map(String::len).sum();
                assert!(part.len() <= RENEWAL_PATHS, "{} paths", part.len());
                assert!(bytes <= RENEWAL_BYTES || part.len() == 1, "{bytes} bytes");
            }
            assert!(parts.into_iter().flatten().eq(paths), "each path once, in order");
        }
    }
}
