//! The end of a cluster: all jobs end, and prefixes with `flush_to` or `persist` are flushed first.
//!
//! `StopCluster` is one step of this procedure; the client repeats it until no job and no flush is left:
//!
//! 1. No job is registered and no live flush begins from the first step on.
//! 2. Each step ends up to `JOBS_AT_A_TIME` jobs as the end of their leases would: prefixes with `flush_to`
//!    or `persist` are flushed. A job with a live flush ends when that flush is complete.
//! 3. Flushes that fail are retried within `RETRY_AFTER`, so that a store that is available again is noticed
//!    while a caller waits for it.
//!
//! Ended jobs are removed from the log before the reply: a restarted controller does not know them. `discard`
//! cancels all flushes, except those whose manifest is being written: deleting their parts could leave a
//! manifest without them. It deletes no journals: these and the objects of earlier flushes stay in their
//! store.

use super::{Again, FlushState};
use crate::reply::{FlushProgress, StopProgress, Unflushed};
use crate::{Actor, Catalog, CatalogError, Effect, Reply};
use honeycomb_types::{Bug, JobId};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

/// Most jobs that one command ends.
const JOBS_AT_A_TIME: usize = 1024;
/// Most places that a reply names.
const PLACES_NAMED: usize = 32;
/// The longest pause between two attempts of a flush while the cluster is being stopped.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The manner in which a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobEnd {
    /// Its owner closed it: prefixes with `persist` are flushed.
    Closed,
    /// The cluster ends: prefixes with `persist` or `flush_to` are flushed.
    Stopped,
    /// The cluster ends, and nothing is flushed.
    Discarded,
}

/// A cluster that is being stopped.
#[derive(Debug)]
pub(crate) struct Stop {
    /// Number of flushes that were lost before.
    lost_before: u64,
}

impl Catalog {
    /// Refuses new jobs and live flushes while the cluster ends.
    pub(crate) fn need_going(&self, what: &'static str) -> Result<(), CatalogError> {
        match self.stop.is_some() && !Bug::StopTakesJobs.active() {
            true => Err(CatalogError::Stopping { what }),
            false => Ok(()),
        }
    }

    pub(crate) fn stop_cluster(
        &mut self,
        actor: Actor,
        discard: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        self.need_cluster(actor, "stop the cluster")?;
        let first = self.stop.is_none();
        if first {
            self.stop = Some(Stop { lost_before: self.flushes.lost });
        }
        if discard {
            self.discard_flushes(effects);
        }
        let busy: BTreeSet<JobId> = self.flushes.live.values().map(|live| live.job).collect();
        let ends = self.jobs.iter().filter(|(_, job)| !busy.contains(&job.id));
        let ends: Vec<u32> = ends.map(|(j, _)| j).take(JOBS_AT_A_TIME).collect();
        let how = if discard { JobEnd::Discarded } else { JobEnd::Stopped };
        for j in ends {
            self.end_job(j, how, effects);
        }
        self.hasten_all(if first { Duration::ZERO } else { RETRY_AFTER });
        Ok(Reply::Stopping(self.stop_progress()))
    }

    /// Cancels all flushes that can be cancelled, and records them as lost.
    fn discard_flushes(&mut self, effects: &mut Vec<Effect>) {
        let lost = || FlushState::Lost("the cluster was stopped with --discard".into());
        while let Some(number) = self.flushes.live.keys().next().copied() {
            self.give_up_live(number, lost(), effects);
        }
        let numbers: Vec<u64> = self.flush_numbers().collect();
        for number in numbers {
            let known = self.flushes.all.get(&number);
            if known.is_some_and(|flush| flush.committing.is_none()) {
                self.end_flush(number, lost(), effects);
            }
        }
    }

    /// Retries flushes that failed within this time.
    fn hasten_all(&mut self, after: Duration) {
        let by = self.now + after;
        if self.flushes.retries.iter().any(|Reverse((at, ..))| *at > by) {
            let waiting = std::mem::take(&mut self.flushes.retries).into_iter();
            let hastened = waiting.map(|Reverse((at, number, again))| {
                let at = if again == Again::Sweep { at } else { at.min(by) };
                Reverse((at, number, again))
            });
            self.flushes.retries = hastened.collect();
        }
    }

    fn stop_progress(&self) -> StopProgress {
        let lost_before = self.stop.as_ref().map_or(0, |stop| stop.lost_before);
        let lost = self.flushes.lost - lost_before;
        let mut sum = StopProgress { jobs: self.jobs.len() as u64, lost, ..Default::default() };
        let mut places: Vec<(bool, Unflushed)> = Vec::new();
        let all = self.flushes.all.values().map(|flush| (&flush.directory, flush.progress()));
        let live = self.flushes.live.values().map(|live| (&live.directory, live.progress()));
        for (directory, progress) in all.chain(live) {
            let FlushProgress { state, parts, done, bytes } = progress;
            if Bug::StopSkipsManifest.active() && parts == done {
                continue;
            }
            sum.flushes += 1;
            sum.parts += u64::from(parts);
            sum.done += u64::from(done);
            sum.bytes += bytes;
            let written = format!("{done} of {parts} blocks are written");
            let why = match &state {
                FlushState::Failing(why) => format!("{written}; {why}"),
                _ => written,
            };
            let fails = matches!(state, FlushState::Failing(_));
            sum.failing += u64::from(fails);
            let directory = directory.clone();
            places.push((fails, Unflushed { directory, why: why.into() }));
        }
        let gone = self.flushes.lost_at.iter().rev().take(lost as usize);
        places.extend(gone.map(|(directory, why)| {
            (true, Unflushed { directory: directory.clone(), why: (**why).into() })
        }));
        places.sort_by_key(|(fails, _)| !fails);
        sum.unflushed = places.into_iter().map(|(_, place)| place).take(PLACES_NAMED).collect();
        sum
    }
}
