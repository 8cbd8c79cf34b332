//! Lives of a job: its holder, and the fate of its handles after the lease of its root expired.
//!
//! A life begins when the root prefix is made, and ends with the root's lease. A token that was attenuated to
//! a life is refused in every other one, so that no handle finds an empty successor under a name that it
//! knew.

use crate::slab::{NONE, chain};
use crate::tombstones::{Cause, Gone};
use crate::{Actor, Catalog, CatalogError, Effect, Hints};
use honeycomb_types::limits::FORMER_JOBS_MAX;
use honeycomb_types::{Bug, JobId, PrefixId, Time};
use std::collections::VecDeque;

/// The process that holds a job; process 0 for a job without a holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// The host name of its machine, for messages.
    pub host: Box<str>,
    /// Identifies the machine since its start, and the namespace that numbers its processes.
    pub scope: u64,
    /// Its number there.
    pub process: u32,
    /// Its start time, because process numbers are reused.
    pub started: u64,
}

impl Holder {
    /// Its name in errors; empty without a holder.
    pub(crate) fn shown(&self) -> Box<str> {
        match self.process {
            0 => Box::default(),
            process => format!(", held by process {process} on {}", self.host).into(),
        }
    }
}

/// The handling of a live job of the same name by a registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim<'a> {
    /// The host name of the holder's machine.
    pub host: &'a str,
    /// As in [`Holder`].
    pub scope: u64,
    /// As in [`Holder`].
    pub process: u32,
    /// As in [`Holder`].
    pub started: u64,
    /// The live job that the caller has inspected; any other job keeps the name.
    pub over: Option<JobId>,
    /// That job continues with a new holder; otherwise it ends.
    pub adopt: bool,
}

impl Claim<'_> {
    pub(crate) fn holder(&self) -> Holder {
        let Claim { host, scope, process, started, .. } = *self;
        Holder { host: host.into(), scope, process, started }
    }
}

/// The contents of a registration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewJob<'a> {
    pub(crate) name: &'a str,
    pub(crate) lease_ms: u32,
    pub(crate) quota_blocks: u64,
    pub(crate) hints: Hints,
    pub(crate) claim: Claim<'a>,
}

/// A job that was deregistered after its leases had ended.
#[derive(Clone, Copy, Debug)]
struct Former {
    job: JobId,
    lease_ms: u32,
    late_ms: u64,
    at: Time,
}

/// Jobs that were deregistered after their leases had expired, the oldest first. Soft state.
#[derive(Debug, Default)]
pub(crate) struct FormerJobs(VecDeque<Former>);

impl FormerJobs {
    pub(crate) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<Former>()
    }
}

impl Catalog {
    /// Records a deregistered job whose leases had expired: its handles continue to receive `LeaseExpired`.
    pub(crate) fn remember_former(&mut self, j: u32) {
        let job = &self.jobs[j];
        let root = (job.root != NONE).then(|| self.dag.nodes[job.root].id);
        let tombstone = root.and_then(|root| job.tombstones.find(self.key, Gone::Prefix(root)));
        let ended = tombstone.and_then(|tombstone| tombstone.expired());
        if let Some((lease_ms, late_ms, at)) = ended {
            if self.former.0.len() >= FORMER_JOBS_MAX {
                self.former.0.pop_front();
            }
            self.former.0.push_back(Former { job: job.id, lease_ms, late_ms, at });
        }
    }

    /// The job is replaced: prefixes that flush when their lease expires do so, as without the replacement.
    pub(crate) fn expire_flushing(&mut self, j: u32, effects: &mut Vec<Effect>) {
        let nodes = chain(self.jobs[j].first_node, |n| self.dag.nodes[n].job_next);
        let flushes = |n: &u32| {
            let special = self.dag.special.get(n);
            special.is_some_and(|special| !special.persist && !special.flush_to.is_empty())
        };
        let live = |n: &u32| self.dag.nodes[*n].live();
        let flushing: Vec<u32> = nodes.filter(flushes).filter(live).collect();
        for n in flushing {
            let lease_ms = self.dag.nodes[n].lease_ms;
            self.end_prefix(n, Cause::Expired { lease_ms, late_ms: 0 }, self.now, effects);
        }
    }

    /// The error for a job that does not exist.
    pub(crate) fn unknown_job(&self, job: JobId) -> CatalogError {
        match self.former.0.iter().rev().find(|former| former.job == job) {
            Some(former) => CatalogError::LeaseExpired {
                path: "".into(),
                lease_ms: former.lease_ms,
                late_ms: former.late_ms,
                ago_ms: self.now.since(former.at).as_millis() as u64,
                reopen: true,
            },
            None => CatalogError::UnknownJob { job },
        }
    }

    /// Refuses a token that belongs to an ended life of the job.
    pub(crate) fn need_life(&self, actor: Actor, j: u32) -> Result<(), CatalogError> {
        let root = self.dag.nodes[self.jobs[j].root].id;
        match actor.life {
            Some(life) if life != root && !Bug::SuccessorServed.active() => {
                Err(self.why_over(j, life))
            }
            _ => Ok(()),
        }
    }

    fn why_over(&self, j: u32, life: PrefixId) -> CatalogError {
        let tombstone = self.jobs[j].tombstones.find(self.key, Gone::Prefix(life));
        match tombstone.map(|tombstone| tombstone.error(self.now, true)) {
            Some(expired @ CatalogError::LeaseExpired { .. }) => expired,
            _ => CatalogError::LifeOver,
        }
    }

    /// Whether the root prefix of the job is dead: nothing can be created before the root is made again.
    pub(crate) fn needs_reopening(&self, j: u32) -> bool {
        !self.dag.nodes[self.jobs[j].root].live()
    }
}
