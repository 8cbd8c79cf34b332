//! Leases: renewals, timers, and the end of a prefix.
//!
//! Every live prefix that is not pinned has one timer, set no later than its lease can end. A renewal moves
//! no timer: when one fires, the prefix's real deadline is computed, and the timer is set again or the prefix
//! expires. A prefix whose timer is not due causes no work.

use crate::dag::{AncestorRenewals, Life};
use crate::flush::JobEnd;
use crate::pool::Presence;
use crate::slab::NONE;
use crate::tombstones::{Cause, Gone, Tombstone};
use crate::{Actor, Catalog, CatalogError, Effect, LeaseInfo, Loss, Reply};
use honeycomb_types::limits::{BATCH_MAX, EDGES_PER_JOB_MAX, JOB_LINGER, LEASE_EDGES_MAX};
use honeycomb_types::{Bug, JobId, PrefixId, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Timer {
    at: Time,
    node: u32,
    /// The low half of the prefix's id, by which a timer recognizes that its prefix was replaced.
    id: u32,
}

/// Most timers examined in one tick, and edges followed for one of them alone, after which the rest stay due,
/// so that requests are served in between. Edges that serve several timers are followed once in a tick.
const TIMERS_PER_TICK: u64 = 16_384;
const EDGES_PER_TICK: u64 = 1 << 18;

/// Number of paths of a renewal that are looked up together.
const TOGETHER: usize = 32;

/// The timers of all prefixes. Stale timers, of prefixes that ended, stay until they are due or until they
/// are the majority.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<Timer>>,
    stale: usize,
    pub(crate) examined: u64,
}

impl Timers {
    /// Number of stale timers under which no sweep is made.
    const STALE_MIN: usize = 1024;

    pub(crate) fn set(&mut self, at: Time, node: u32, id: PrefixId) {
        self.heap.push(Reverse(Timer { at, node, id: id.0 as u32 }));
    }

    /// The timers of a recovered catalog.
    pub(crate) fn recovered(due: Vec<(Time, u32, PrefixId)>) -> Timers {
        let timer = |(at, node, id): (Time, u32, PrefixId)| Timer { at, node, id: id.0 as u32 };
        let heap = due.into_iter().map(|due| Reverse(timer(due))).collect();
        Timers { heap, ..Timers::default() }
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(timer)| timer.at)
    }

    fn due(&mut self, now: Time) -> Option<Timer> {
        if self.next()? > now {
            return None;
        }
        self.examined += 1;
        self.heap.pop().map(|Reverse(timer)| timer)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Time, u32, u32)> {
        self.heap.iter().map(|Reverse(timer)| (timer.at, timer.node, timer.id))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.heap.capacity() * size_of::<Timer>()
    }
}

/// Whole milliseconds from `now` to `deadline`, rounded towards zero; negative when it has passed.
pub(crate) fn remaining_ms(deadline: Time, now: Time) -> i64 {
    let left = deadline.since(now).as_millis() as i64;
    if left > 0 { left } else { -(now.since(deadline).as_millis() as i64) }
}

impl Catalog {
    pub(crate) fn renew_leases(
        &mut self,
        actor: Actor,
        job: JobId,
        paths: &[&str],
    ) -> Result<Reply, CatalogError> {
        let j = self.admit(actor, job)?;
        if paths.len() > BATCH_MAX {
            let what = "paths of one renewal";
            return Err(CatalogError::LimitExceeded { what, limit: BATCH_MAX as u64 });
        }
        // INV-14: each path succeeds or fails alone.
        let mut results: Vec<_> = Vec::with_capacity(paths.len());
        for some in paths.chunks(TOGETHER) {
            let likely = self.likely(j, some);
            for (path, likely) in some.iter().zip(likely) {
                let stop = Bug::RenewalStopsAtBadPath.active();
                match results.last() {
                    Some(Err(e)) if stop => results.push(Err(CatalogError::clone(e))),
                    _ => results.push(self.renew(actor, j, path, likely)),
                }
            }
        }
        Ok(Reply::Renewed(results))
    }

    /// The prefixes at these paths, as far as they are found directly. With a million prefixes, each look-up
    /// has three cache misses; a batch that looks up all paths step by step overlaps these misses.
    fn likely(&self, j: u32, paths: &[&str]) -> [Option<u32>; TOGETHER] {
        let root = self.jobs[j].root;
        let mut likely = [(NONE, ""); TOGETHER];
        for (place, path) in likely.iter_mut().zip(paths) {
            let path = path.strip_prefix('/').unwrap_or(path);
            let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
            let above = match above {
                "" => Some(root),
                above => self.dag.walk(root, above.split('/')),
            };
            let child = above.and_then(|above| self.dag.likely_child(above, name));
            *place = (child.unwrap_or(NONE), name);
        }
        let named = likely.map(|(n, name)| {
            let node = (n != NONE).then(|| &self.dag.nodes[n]);
            node.filter(|node| node.name.len() == name.len()).map(|node| (n, &*node.name, name))
        });
        named.map(|found| found.filter(|(_, is, name)| is == name).map(|(n, ..)| n))
    }

    fn renew(
        &mut self,
        actor: Actor,
        j: u32,
        path: &str,
        likely: Option<u32>,
    ) -> Result<u32, CatalogError> {
        let n = match likely.filter(|&n| self.dag.nodes[n].live()) {
            Some(n) => n,
            // For an unknown name, the other paths that end with it are not searched, because one request has
            // many paths.
            None => self.live_at(j, path)?,
        };
        self.need_own(actor, n, "renew", path)?;
        let node = &mut self.dag.nodes[n];
        node.stamp = self.now;
        Ok(node.lease_ms)
    }

    pub(crate) fn renew_by_id(
        &mut self,
        job: JobId,
        prefix: PrefixId,
        ago_ms: u32,
    ) -> Result<Reply, CatalogError> {
        if let (Some(j), Some(n)) = (self.jobs.find(job), self.dag.by_id(prefix)) {
            let node = &mut self.dag.nodes[n];
            if node.job == j && node.live() {
                let seen = self.now - Duration::from_millis(ago_ms as u64);
                node.stamp = node.stamp.max(seen);
            }
        }
        Ok(Reply::Done)
    }

    pub(crate) fn lease_info(
        &mut self,
        actor: Actor,
        job: JobId,
        path: &str,
    ) -> Result<Reply, CatalogError> {
        let j = self.admit(actor, job)?;
        let n = self.live_prefix(j, path)?;
        let (renewed, is_exact) = self.dag.renewed_within(n, LEASE_EDGES_MAX);
        let deadline = self.lease_end(n, renewed.max(self.floor));
        // A live prefix has at least no time left.
        let deadline = if is_exact { deadline } else { deadline.max(self.now) };
        let node = &self.dag.nodes[n];
        let remaining_ms = if node.pinned { i64::MAX } else { remaining_ms(deadline, self.now) };
        let (prefix, lease_ms, pinned) = (node.id, node.lease_ms, node.pinned);
        Ok(Reply::Lease(LeaseInfo { prefix, lease_ms, remaining_ms, pinned }))
    }

    pub(crate) fn lease(&self, n: u32) -> Duration {
        let lease = Duration::from_millis(self.dag.nodes[n].lease_ms as u64);
        if Bug::EarlyExpiry.active() { lease / 2 } else { lease }
    }

    /// The time at which the lease of `n` ends if its last renewal was at this time.
    pub(crate) fn lease_end(&self, n: u32, renewed: Time) -> Time {
        renewed + self.lease(n) + self.stalls.since(renewed)
    }

    pub(crate) fn set_timer(&mut self, n: u32) {
        let node = &self.dag.nodes[n];
        if !node.pinned {
            self.timers.set(node.stamp + self.lease(n), n, node.id);
        }
    }

    /// Expires leases and servers due at `heard`; every request that arrived before it has been applied.
    pub(crate) fn tick(
        &mut self,
        heard: Time,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        // Servers first, so that leases that end in the same tick send no request to a lost server.
        if self.silence <= heard {
            self.end_silence(heard, effects);
        }
        if self.recovering() {
            return Ok(Reply::Done);
        }
        let mut found = AncestorRenewals::default();
        let timers = self.timers.examined + TIMERS_PER_TICK;
        let edges = self.dag.followed + EDGES_PER_TICK;
        while self.timers.examined < timers
            && self.dag.followed < edges + found.shared().min(EDGES_PER_JOB_MAX as u64)
            && let Some(timer) = self.timers.due(heard)
        {
            if !self.timer_is_current(timer.node, timer.id) {
                assert!(self.timers.stale > 0, "INV-13: {timer:?} is stale, and was not counted");
                self.timers.stale -= 1;
                continue;
            }
            let n = timer.node;
            // A lower bound of half a lease suffices: the timer fires again before the end, and the relatives
            // of a prefix are not all visited each time.
            let enough = self.now - self.lease(n) / 2;
            let renewed = match self.floor >= enough {
                true => self.floor,
                false => self.dag.renewed(n, enough, &mut found).max(self.floor),
            };
            let deadline = self.lease_end(n, renewed);
            let id = self.dag.nodes[n].id;
            let deadline = match deadline > heard || !self.is_being_copied(id) {
                true => deadline,
                // A flush in progress renews the prefix.
                false => {
                    self.dag.nodes[n].stamp = self.now;
                    found.renewed();
                    self.now + self.lease(n)
                }
            };
            if deadline > heard {
                self.timers.set(deadline, n, self.dag.nodes[n].id);
                continue;
            }
            let late_ms = self.now.since(deadline).as_millis() as u64;
            let lease_ms = self.dag.nodes[n].lease_ms;
            self.end_prefix(n, Cause::Expired { lease_ms, late_ms }, deadline, effects);
        }
        self.retry_flushes(effects);
        while let Some(j) = self.jobs.linger_due(self.now) {
            self.end_job(j, JobEnd::Closed, effects);
        }
        self.cancel_overdue(effects);
        self.end_idle_appends(effects);
        Ok(Reply::Done)
    }

    /// Whether a timer is still the one of the live prefix that set it.
    pub(crate) fn timer_is_current(&self, n: u32, id: u32) -> bool {
        self.dag.nodes.get(n).is_some_and(|node| node.live() && node.id.0 as u32 == id)
    }

    pub(crate) fn amnesty(&mut self) -> Result<Reply, CatalogError> {
        if !Bug::AmnestyForgotten.active() {
            self.floor = self.now;
        }
        for server in self.pool.servers_mut() {
            server.last_seen = self.now;
        }
        self.watch_silence();
        Ok(Reply::Done)
    }

    /// Extends all running leases by the length of a stall.
    pub(crate) fn stalled(&mut self, length: Duration) -> Result<Reply, CatalogError> {
        self.stalls.add(self.now, length);
        for server in self.pool.servers_mut() {
            server.last_seen = (server.last_seen + length).min(self.now);
        }
        self.watch_silence();
        Ok(Reply::Done)
    }

    /// Declares servers lost that were silent for too long, and suspects those that have been silent for a
    /// while (INV-56).
    fn end_silence(&mut self, heard: Time, effects: &mut Vec<Effect>) {
        let loss = self.server_loss();
        let servers = self.pool.servers().filter(|(_, server)| server.is_overdue(loss, heard));
        let lost: Vec<_> = servers.map(|(id, _)| id).collect();
        self.lose_servers(&lost, Loss::Silence, effects);
        for server in self.pool.servers_mut() {
            if server.presence == Presence::Here && server.silent_at(loss) <= heard {
                server.presence = Presence::Suspected;
            }
        }
        self.watch_silence();
    }

    /// Ends a live prefix: its structures are freed, and the reasons recorded. It keeps its place and name,
    /// for its descendants and for requests that ask why it ended.
    pub(crate) fn end_prefix(
        &mut self,
        n: u32,
        cause: Cause,
        deadline: Time,
        effects: &mut Vec<Effect>,
    ) {
        let left = if let Cause::Read { .. } = cause { self.readers.left(n) } else { 0 };
        assert_eq!(left, 0, "INV-37: a prefix is freed while {left} of its readers may read");
        let path: Arc<str> = self.dag.path_of(n).into();
        let held = self.dag.nodes[n].first_structure != NONE;
        self.begin_flush(n, &cause, &path, effects);
        let kept = match cause {
            Cause::Removed => false,
            Cause::Read { .. } => self.dag.special.get(&n).is_some_and(|s| s.persist) && held,
            Cause::Expired { .. } | Cause::Lost { .. } => held,
        };
        if !kept {
            self.drop_journal(n, effects);
        }
        while self.dag.nodes[n].first_structure != NONE {
            let s = self.dag.nodes[n].first_structure;
            self.end_structure(s, cause.clone(), &path, effects);
        }
        self.unclaim(n);
        self.unbound_prefix(n);
        let life = match cause {
            Cause::Expired { .. } => Life::Expired,
            Cause::Read { .. } => Life::Read,
            Cause::Removed | Cause::Lost { .. } => Life::Removed,
        };
        self.readers.withdraw(n);
        if life != Life::Read {
            self.readers.lose(n);
        }
        let node = &mut self.dag.nodes[n];
        assert!(node.live(), "INV-13: prefix {} ends twice", node.id);
        assert_eq!(node.structures, 0, "INV-13: prefix {} ends and keeps structures", node.id);
        node.life = life;
        node.carried_below = deadline;
        self.dag.dirty.mark(n);
        let node = &self.dag.nodes[n];
        let (id, j, pinned) = (node.id, node.job, node.pinned);
        if life != Life::Expired && !node.pinned {
            self.orphan_timers(1);
        }
        let job = &mut self.jobs[j];
        let counted = (self.live_prefixes, job.live_prefixes, job.pinned);
        let covers = counted.0 > 0 && counted.1 > 0 && counted.2 >= u64::from(pinned);
        assert!(covers, "INV-13: prefix {id} ends, and {counted:?} are counted");
        self.live_prefixes -= 1;
        job.live_prefixes -= 1;
        job.pinned -= u64::from(pinned);
        // A prefix that ends at the moment of the reopening belongs to the new life of the job.
        let at = self.now.max(job.opened);
        if job.live_prefixes == 0 {
            self.jobs.linger(j, self.now + JOB_LINGER);
        }
        let gone = Gone::Prefix(id);
        self.remember(j, Tombstone { gone, prefix: id, path, name: "".into(), cause, at });
    }

    /// Counts timers of prefixes that ended, and drops them when they are the majority.
    pub(crate) fn orphan_timers(&mut self, count: usize) {
        self.timers.stale += count;
        let Timers { stale, heap, .. } = &self.timers;
        if *stale > Timers::STALE_MIN && *stale > heap.len() / 2 {
            let mut heap = std::mem::take(&mut self.timers.heap);
            heap.retain(|Reverse(timer)| self.timer_is_current(timer.node, timer.id));
            self.timers.heap = heap;
            self.timers.stale = 0;
        }
    }

    /// Adds a tombstone; a dead prefix whose tombstone is discarded for it leaves the DAG if nothing depends
    /// on it.
    pub(crate) fn remember(&mut self, j: u32, tombstone: Tombstone) {
        self.journal.tombstone(j, self.jobs[j].id, &tombstone);
        let forgotten = self.jobs[j].tombstones.push(self.key, self.tombstone_limit, tombstone);
        if let Some(Tombstone { gone: Gone::Prefix(id), .. }) = forgotten
            && let Some(n) = self.dag.by_id(id)
        {
            self.collect(n);
        }
    }

    /// Removes a dead prefix from the DAG when it has no children and no tombstone, and then any parent for
    /// which the same became true.
    pub(crate) fn collect(&mut self, n: u32) {
        let mut candidates = vec![n];
        while let Some(n) = candidates.pop() {
            let Some(node) = self.dag.nodes.get(n) else { continue };
            let j = node.job;
            let job = &self.jobs[j];
            let named = self.dag.has_parents(n);
            let remembered = job.tombstones.find(self.key, Gone::Prefix(node.id)).is_some();
            if node.live() || self.dag.has_children(n) || n == job.root || (named && remembered) {
                continue;
            }
            candidates.extend(self.dag.parents(n));
            self.dag.detach(n, |_| true);
            let job = &mut self.jobs[j];
            job.nodes -= 1;
            self.readers.lose(n);
            self.dag.remove(n, &mut job.first_node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Config, PrefixOptions};

    fn apply(catalog: &mut Catalog, ms: u64, command: Command<'_>) -> Result<Reply, CatalogError> {
        let reply = catalog.apply(Time::from_millis(ms), command, &mut Vec::new());
        catalog.check_invariants().unwrap();
        reply
    }

    fn job(catalog: &mut Catalog) -> JobId {
        let (actor, name) = (Actor::CLUSTER, "job");
        let register = Command::RegisterJob {
            actor,
            name,
            lease_ms: 0,
            quota_blocks: 0,
            hints: Default::default(),
            claim: Default::default(),
        };
        match apply(catalog, 0, register) {
            Ok(Reply::Job { job, .. }) => job,
            other => panic!("{other:?}"),
        }
    }

    fn create(job: JobId, path: &str, lease_ms: u32) -> Command<'_> {
        let options = PrefixOptions { lease_ms, ..PrefixOptions::default() };
        Command::CreatePrefix { actor: Actor::driver(job), job, path, parents: &[], options }
    }

    fn remove(job: JobId, path: &str) -> Command<'_> {
        Command::RemovePrefix { actor: Actor::driver(job), job, path }
    }

    #[test]
    fn dead_prefixes_stay_until_they_are_forgotten_and_nothing_hangs_on_them() {
        let mut catalog = Catalog::new(Config { lease_ms: 1000, ..Config::default() });
        catalog.tombstone_limit = 2;
        let job = job(&mut catalog);
        for path in ["a", "a/b", "x", "y", "z"] {
            apply(&mut catalog, 0, create(job, path, 900)).unwrap();
        }
        for path in ["a", "a/b"] {
            apply(&mut catalog, 1, remove(job, path)).unwrap();
        }
        assert_eq!(catalog.dag.nodes.len(), 6);
        // The tombstone of `a` is gone, but its child `a/b` has one.
        apply(&mut catalog, 2, remove(job, "x")).unwrap();
        assert_eq!(catalog.dag.nodes.len(), 6);
        let gone = CatalogError::PrefixNotFound { path: "a".into(), at: vec![] };
        assert_eq!(apply(&mut catalog, 2, remove(job, "a")), Err(gone));
        // Without the tombstone of `a/b`, both are removed.
        apply(&mut catalog, 3, remove(job, "y")).unwrap();
        assert_eq!(catalog.dag.nodes.len(), 4);
        // Renewals granted by the removed prefixes to their parents stay: root was renewed at 0 only, by the
        // creation of its children at 0.
        apply(&mut catalog, 999, Command::Tick).unwrap();
        assert!(catalog.dag.nodes[catalog.jobs[0].root].live());
        apply(&mut catalog, 1000, Command::Tick).unwrap();
        assert!(!catalog.dag.nodes[catalog.jobs[0].root].live());
    }

    #[test]
    fn a_forgotten_child_leaves_what_it_granted_to_its_parent() {
        let mut catalog = Catalog::new(Config { lease_ms: 1000, ..Config::default() });
        catalog.tombstone_limit = 1;
        let job = job(&mut catalog);
        for path in ["p", "p/c", "q"] {
            apply(&mut catalog, 0, create(job, path, 1000)).unwrap();
        }
        let (actor, paths) = (Actor::driver(job), &["p/c"][..]);
        apply(&mut catalog, 800, Command::RenewLeases { actor, job, paths }).unwrap();
        apply(&mut catalog, 801, remove(job, "p/c")).unwrap();
        apply(&mut catalog, 802, remove(job, "q")).unwrap();
        assert_eq!(catalog.dag.nodes.len(), 3, "p/c is forgotten and gone");
        apply(&mut catalog, 1799, Command::Tick).unwrap();
        assert!(apply(&mut catalog, 1799, create(job, "p/d", 0)).is_ok(), "INV-12");
    }

    #[test]
    fn timers_of_removed_prefixes_do_not_pile_up() {
        let mut catalog = Catalog::new(Config { lease_ms: 1000, ..Config::default() });
        let job = job(&mut catalog);
        let mut effects = Vec::new();
        for i in 0..20_000 {
            for command in [create(job, "t", 600_000_000), remove(job, "t")] {
                catalog.apply(Time::from_millis(i / 1000), command, &mut effects).unwrap();
            }
        }
        assert!(catalog.timers.heap.len() <= 2 * Timers::STALE_MIN + 2);
        catalog.check_invariants().unwrap();
    }

    #[test]
    fn a_tick_is_bounded_and_says_that_it_is_due_again() {
        let mut catalog = Catalog::new(Config { lease_ms: 1000, ..Config::default() });
        let job = job(&mut catalog);
        let mut effects = Vec::new();
        let names: Vec<String> = (0..TIMERS_PER_TICK + 100).map(|i| format!("t{i}")).collect();
        for name in &names {
            catalog.apply(Time::ZERO, create(job, name, 0), &mut effects).unwrap();
        }
        let now = Time::from_millis(1000);
        catalog.apply(now, Command::Tick, &mut effects).unwrap();
        assert_eq!(catalog.live_prefixes, 101);
        assert_eq!(catalog.next_deadline(), Some(now));
        catalog.apply(now, Command::Tick, &mut effects).unwrap();
        assert_eq!(catalog.live_prefixes, 0);
        catalog.check_invariants().unwrap();
    }
}
