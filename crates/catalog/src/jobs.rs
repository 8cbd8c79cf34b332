//! Jobs, and the rights of actors on them.

use crate::bill::Bill;
use crate::command::{ACKNOWLEDGE_FLUSHED, ACKNOWLEDGE_MEMORY};
use crate::dag::{Life, Node, Ways};
use crate::durable::{Dirty, JobImage};
use crate::flush::JobEnd;
use crate::hash::HashKey;
use crate::lease::remaining_ms;
use crate::lives::{Holder, NewJob};
use crate::quota::{Allowance, Bound};
use crate::slab::{NONE, Slab, chain};
use crate::tier_weights::TierWeights;
use crate::tombstones::Tombstones;
use crate::weights::Weights;
use crate::{
    Actor, Catalog, CatalogError, Effect, Estimate, FlushState, Hints, JobInfo, PrefixInfo,
    PrefixOptions, PrefixState, Reply, Spent, Supply,
};
use hashbrown::{HashMap, HashTable};
use honeycomb_types::limits::{BATCH_MAX, JOBS_MAX, LEASE_MAX_MS, LEASE_MIN_MS, NAME_MAX};
use honeycomb_types::{Bug, IdOf, JobId, PrefixId, Time, Verbs, check_job_name};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::{Index, IndexMut};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) name: Box<str>,
    pub(crate) root: u32,
    pub(crate) lease_ms: u32,
    /// The shortest lease of any prefix that the job ever had: a bound for a client that renews all prefixes.
    pub(crate) shortest_ms: u32,
    /// Its quota of blocks.
    pub(crate) quota: Bound,
    /// The weight of its share, when it has no tenant.
    pub(crate) weight: u32,
    /// Index of its tenant, if it has one.
    pub(crate) tenant: u32,
    /// Number of its live prefixes that have a quota.
    pub(crate) bounded_prefixes: u32,
    /// Its hints.
    pub(crate) hints: Hints,
    /// The servers that receive its blocks according to its hints; computed when a block is placed.
    pub(crate) weights: Option<Box<Weights>>,
    /// The tiers in which its blocks begin; computed likewise.
    pub(crate) tier_weights: Option<Box<TierWeights>>,
    pub(crate) registered: Time,
    /// The time when its root prefix was made: the beginning of its life.
    pub(crate) opened: Time,
    pub(crate) holder: Holder,
    pub(crate) first_node: u32,
    /// Number of its prefixes in the DAG, including dead ones.
    pub(crate) nodes: usize,
    pub(crate) live_prefixes: u64,
    /// Number of live prefixes that never expire.
    pub(crate) pinned: u64,
    pub(crate) structures: u64,
    pub(crate) units: u64,
    pub(crate) bytes_used: u64,
    pub(crate) tombstones: Tombstones,
    /// Its bill.
    pub(crate) bill: Bill,
    /// The time at which it is removed, because it has no live prefix.
    pub(crate) lingers_until: Option<Time>,
}

impl Job {
    /// A job from its image, new or recovered. Its holdings are counted as they are added.
    pub(crate) fn new(image: JobImage, tombstones: Tombstones) -> Job {
        Job {
            id: image.id,
            name: image.name,
            root: image.root,
            lease_ms: image.lease_ms,
            shortest_ms: image.shortest_ms,
            quota: Bound::new(image.allowed),
            weight: image.allowed.weight,
            tenant: NONE,
            bounded_prefixes: 0,
            hints: image.hints,
            weights: None,
            tier_weights: None,
            registered: image.registered,
            opened: image.opened,
            holder: image.holder,
            first_node: NONE,
            nodes: 0,
            live_prefixes: 0,
            pinned: 0,
            structures: 0,
            units: 0,
            bytes_used: 0,
            tombstones,
            bill: Bill::default(),
            lingers_until: image.lingers_until,
        }
    }
}

impl Job {
    /// Its quota, soft quota and weight.
    pub(crate) fn allowed(&self) -> Allowance {
        Allowance { most: self.quota.most, soft: self.quota.soft, weight: self.weight }
    }

    fn bytes(&self) -> usize {
        let weights = self.weights.as_ref().map_or(0, |weights| weights.bytes());
        let tiers = self.tier_weights.as_ref();
        let tiers = tiers.map_or(0, |tiers| size_of::<TierWeights>() + tiers.bytes());
        self.name.len() + self.holder.host.len() + self.tombstones.bytes() + weights + tiers
    }
}

#[derive(Debug)]
pub(crate) struct Jobs {
    jobs: Slab<Job>,
    ids: HashTable<u32>,
    names: HashTable<u32>,
    linger: BinaryHeap<Reverse<(Time, JobId)>>,
    key: HashKey,
    last: u64,
    /// Jobs whose durable state changed.
    pub(crate) dirty: Dirty,
}

impl Index<u32> for Jobs {
    type Output = Job;
    fn index(&self, j: u32) -> &Job {
        &self.jobs[j]
    }
}

impl IndexMut<u32> for Jobs {
    fn index_mut(&mut self, j: u32) -> &mut Job {
        &mut self.jobs[j]
    }
}

impl Jobs {
    pub(crate) fn new(key: HashKey) -> Jobs {
        Jobs {
            jobs: Slab::new(),
            ids: HashTable::new(),
            names: HashTable::new(),
            linger: BinaryHeap::new(),
            key,
            last: 0,
            dirty: Dirty::default(),
        }
    }

    pub(crate) fn get(&self, j: u32) -> Option<&Job> {
        self.jobs.get(j)
    }

    pub(crate) fn get_mut(&mut self, j: u32) -> Option<&mut Job> {
        self.jobs.get_mut(j)
    }

    /// Adopts the jobs of a recovered catalog. Numbers begin again with each term.
    pub(crate) fn recover(&mut self, jobs: Vec<Option<Job>>, term: u32, plain: bool) {
        self.jobs = Slab::restored(jobs);
        for (j, job) in self.jobs.iter() {
            let (key, jobs) = (self.key, &self.jobs);
            self.ids.insert_unique(key.id(job.id.0), j, |&j| key.id(jobs[j].id.0));
            self.names.insert_unique(key.name(0, &job.name), j, |&j| key.name(0, &jobs[j].name));
            if let Some(until) = job.lingers_until {
                self.linger.push(Reverse((until, job.id)));
            }
            let ours = plain && (job.id.0 >> 24) as u32 & ((1 << 24) - 1) == term;
            assert!(
                !ours,
                "INV-25: job {} is of the present term, but a term is used once",
                job.id
            );
        }
    }

    pub(crate) fn find(&self, id: JobId) -> Option<u32> {
        self.ids.find(self.key.id(id.0), |&j| self.jobs[j].id == id).copied()
    }

    fn named(&self, name: &str) -> Option<u32> {
        self.names.find(self.key.name(0, name), |&j| *self.jobs[j].name == *name).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Job)> {
        self.jobs.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Job> {
        self.jobs.iter_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// The number of indices of jobs, vacant ones included.
    pub(crate) fn bound(&self) -> usize {
        self.jobs.bound()
    }

    fn insert(&mut self, job: Job) -> u32 {
        debug_assert!(self.find(job.id).is_none(), "INV-54: job id {} was given twice", job.id);
        debug_assert!(self.named(&job.name).is_none(), "INV-55: '{}' names two jobs", job.name);
        let (key, jobs) = (self.key, &mut self.jobs);
        let (id_hash, name_hash) = (key.id(job.id.0), key.name(0, &job.name));
        let j = jobs.insert(job);
        self.ids.insert_unique(id_hash, j, |&j| key.id(jobs[j].id.0));
        self.names.insert_unique(name_hash, j, |&j| key.name(0, &jobs[j].name));
        self.dirty.mark(j);
        j
    }

    fn remove(&mut self, j: u32) {
        let job = &self.jobs[j];
        let (id_hash, name_hash) = (self.key.id(job.id.0), self.key.name(0, &job.name));
        for (table, hash) in [(&mut self.ids, id_hash), (&mut self.names, name_hash)] {
            table.find_entry(hash, |&other| other == j).expect("a job is in both tables").remove();
        }
        self.jobs.remove(j);
        if !Bug::JobEndUnlogged.active() {
            self.dirty.mark(j);
        }
    }

    pub(crate) fn linger(&mut self, j: u32, until: Time) {
        let job = &mut self.jobs[j];
        job.lingers_until = Some(until);
        self.linger.push(Reverse((until, job.id)));
        self.dirty.mark(j);
    }

    pub(crate) fn next_linger(&self) -> Option<Time> {
        self.linger.peek().map(|Reverse((at, _))| *at)
    }

    /// The next job that has lingered long enough.
    pub(crate) fn linger_due(&mut self, now: Time) -> Option<u32> {
        while self.next_linger()? <= now {
            let Reverse((until, id)) = self.linger.pop()?;
            let due = |&j: &u32| self.jobs[j].lingers_until == Some(until);
            if let Some(j) = self.find(id).filter(due) {
                return Some(j);
            }
        }
        None
    }

    pub(crate) fn bytes(&self) -> usize {
        let own: usize = self.jobs.iter().map(|(_, j)| j.bytes()).sum();
        let tables = self.ids.allocation_size() + self.names.allocation_size();
        own + tables + self.jobs.bytes() + self.linger.capacity() * size_of::<(Time, JobId)>()
    }
}

impl Catalog {
    /// The job, if the actor may know of it (INV-28): the answer is the same for a job that does not exist
    /// and for a job of another actor.
    pub(crate) fn admit(&self, actor: Actor, job: JobId) -> Result<u32, CatalogError> {
        if actor.job.is_some_and(|own| own != job) {
            return Err(CatalogError::UnknownJob { job });
        }
        let j = self.jobs.find(job).ok_or_else(|| self.unknown_job(job))?;
        self.need_life(actor, j)?;
        Ok(j)
    }

    pub(crate) fn need_cluster(
        &self,
        actor: Actor,
        what: &'static str,
    ) -> Result<(), CatalogError> {
        if actor.job.is_none() {
            return Ok(());
        }
        let why = "it requires the cluster's token";
        Err(CatalogError::PermissionDenied { what, path: "".into(), why })
    }

    /// Refuses to let a token without `WRITE` change metadata.
    pub(crate) fn need_write(
        &self,
        actor: Actor,
        what: &'static str,
        path: &str,
    ) -> Result<(), CatalogError> {
        if actor.job.is_none() || actor.verbs.contains(Verbs::WRITE) {
            return Ok(());
        }
        let why = "the token was restricted to reading; use the job's token";
        Err(CatalogError::PermissionDenied { what, path: path.into(), why })
    }

    /// Refuses a task access to a prefix that is neither its own nor a descendant of its own.
    pub(crate) fn need_own(
        &mut self,
        actor: Actor,
        n: u32,
        what: &'static str,
        path: &str,
    ) -> Result<(), CatalogError> {
        if self.is_own(actor, n) {
            return Ok(());
        }
        let why = "a task's token covers its own prefix and the descendants; use the job's token";
        Err(CatalogError::PermissionDenied { what, path: path.into(), why })
    }

    /// Whether the actor owns the prefix: a driver owns all, a task its own and the descendants.
    pub(crate) fn is_own(&mut self, actor: Actor, n: u32) -> bool {
        let (Some(_), Some(task)) = (actor.job, actor.task) else { return true };
        if self.dag.nodes[n].id == task {
            return true;
        }
        // A token may outlive its prefix; a token for an expired prefix gives no rights.
        match self.dag.by_id(task) {
            Some(own) if self.dag.nodes[own].job == self.dag.nodes[n].job => {
                self.dag.reaches(n, own, Ways::Named)
            }
            _ => false,
        }
    }

    pub(crate) fn checked_lease(&self, lease_ms: u32, default: u32) -> Result<u32, CatalogError> {
        match lease_ms {
            0 => Ok(default),
            LEASE_MIN_MS..=LEASE_MAX_MS => Ok(lease_ms),
            given => Err(CatalogError::InvalidArgument {
                what: "the lease in milliseconds",
                given: given as u64,
                allowed: "use 200 ms to a week, or 0 for the default",
            }),
        }
    }

    pub(crate) fn register_job(
        &mut self,
        actor: Actor,
        new: NewJob<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let NewJob { name, lease_ms, quota_blocks, hints, claim } = new;
        self.need_cluster(actor, "register a job")?;
        self.need_going("register a job")?;
        check_job_name(name)?;
        hints.check()?;
        if claim.host.len() > NAME_MAX {
            return Err(CatalogError::InvalidArgument {
                what: "the length of the holder's host name",
                given: claim.host.len() as u64,
                allowed: "at most 255 bytes",
            });
        }
        let lease_ms = self.checked_lease(lease_ms, self.config.lease_ms)?;
        let known = self.jobs.named(name);
        // A job with no live prefix is kept only to report why it ended; its name is free.
        if let Some(j) = known.filter(|&j| self.jobs[j].live_prefixes > 0) {
            let job = &self.jobs[j];
            // The caller inspected one job; a job that was registered since then keeps the name.
            if claim.over != Some(job.id)
                && !(Bug::OtherJobReplaced.active() && claim.over.is_some())
            {
                let holder = job.holder.shown();
                return Err(CatalogError::JobExists { name: name.into(), holder });
            }
            if claim.adopt {
                self.jobs[j].holder = claim.holder();
                self.jobs.dirty.mark(j);
                return Ok(self.ticket(j));
            }
        }
        if self.jobs.len() >= JOBS_MAX && known.is_none() {
            return Err(CatalogError::LimitExceeded { what: "jobs", limit: JOBS_MAX as u64 });
        }
        if self.jobs.last + 1 >= 1 << 24 {
            let what = "registrations within one term of the controller";
            return Err(CatalogError::LimitExceeded { what, limit: 1 << 24 });
        }
        if let Some(j) = known {
            self.replace_job(j, claim.over, effects);
        }
        self.jobs.last += 1;
        // The term prevents a token of an earlier term from naming a job of this one.
        let id = JobId(self.id_of(IdOf::Job, (self.config.term as u64) << 24 | self.jobs.last));
        let image = JobImage {
            id,
            name: name.into(),
            root: NONE,
            lease_ms,
            shortest_ms: u32::MAX,
            allowed: Allowance { most: quota_blocks, ..Allowance::default() },
            hints,
            registered: self.now,
            opened: self.now,
            holder: claim.holder(),
            lingers_until: None,
        };
        let tenant = self.quotas.job_begins(name);
        let bill = Bill::new(Spent::default(), self.now);
        let job = Job { tenant, bill, ..Job::new(image, Tombstones::default()) };
        let j = self.jobs.insert(job);
        self.install_root(j, PrefixOptions::default())?;
        Ok(self.ticket(j))
    }

    /// Ends a job whose name is registered again.
    fn replace_job(&mut self, j: u32, over: Option<JobId>, effects: &mut Vec<Effect>) {
        let Job { id, live_prefixes: live, .. } = self.jobs[j];
        let named = live == 0 || over == Some(id);
        assert!(named, "INV-55: a registration ends job {id}, and names {over:?}");
        self.expire_flushing(j, effects);
        self.end_job(j, JobEnd::Closed, effects);
    }

    fn ticket(&self, j: u32) -> Reply {
        let job = &self.jobs[j];
        let root = self.dag.nodes[job.root].id;
        Reply::Job { job: job.id, root, holder: job.holder.clone() }
    }

    /// Makes the job's root prefix, replacing a dead one if there is one.
    pub(crate) fn install_root(
        &mut self,
        j: u32,
        options: PrefixOptions<'_>,
    ) -> Result<PrefixId, CatalogError> {
        let options = self.checked_options(j, options)?;
        let reuse = Some(self.jobs[j].root).filter(|&root| root != NONE);
        let quota = options.quota();
        let n = self.install(j, "", &[], reuse, options);
        let fresh = self.bound_prefixes(j, &[(n, quota)]);
        self.count_below(j, &fresh);
        let job = &mut self.jobs[j];
        // A prefix that ended at exactly this time belongs to the earlier life.
        let ended = self.now.max(job.opened);
        let opened = if reuse.is_some() { ended + Duration::from_nanos(1) } else { self.now };
        (job.root, job.opened) = (n, opened);
        self.jobs.dirty.mark(j);
        Ok(self.dag.nodes[n].id)
    }

    pub(crate) fn find_job(&self, actor: Actor, name: &str) -> Result<Reply, CatalogError> {
        self.need_cluster(actor, "find a job by its name")?;
        let unknown = || CatalogError::UnknownJobName { name: name.into() };
        Ok(self.ticket(self.jobs.named(name).ok_or_else(unknown)?))
    }

    pub(crate) fn deregister_job(
        &mut self,
        actor: Actor,
        job: JobId,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let j = self.admit(actor, job)?;
        self.need_write(actor, "deregister the job", "")?;
        if actor.job.is_some() && actor.task.is_some() {
            let (what, why) =
                ("deregister the job", "a task's token cannot end its job; use the job's token");
            return Err(CatalogError::PermissionDenied { what, path: "".into(), why });
        }
        self.end_job(j, JobEnd::Closed, effects);
        Ok(Reply::Done)
    }

    pub(crate) fn end_job(&mut self, j: u32, how: JobEnd, effects: &mut Vec<Effect>) {
        let mut timers = 0;
        self.remember_former(j);
        self.persist_job(j, how, effects);
        // All edges of a job are between its own prefixes.
        let mut n = self.jobs[j].first_node;
        while n != NONE {
            self.dag.orphan(n);
            n = self.dag.nodes[n].job_next;
        }
        while self.jobs[j].first_node != NONE {
            let n = self.jobs[j].first_node;
            while self.dag.nodes[n].first_structure != NONE {
                let s = self.dag.nodes[n].first_structure;
                self.free_structure(s, effects);
            }
            if self.dag.nodes[n].live() {
                // The end of the cluster deletes nothing from an object store.
                let persists = self.dag.special.get(&n).is_some_and(|special| special.persist);
                if how == JobEnd::Closed && !persists {
                    self.drop_journal(n, effects);
                }
                self.unclaim(n);
                self.unbound_prefix(n);
            }
            self.readers.withdraw(n);
            self.readers.lose(n);
            let node: Node = self.dag.remove(n, &mut self.jobs[j].first_node);
            self.live_prefixes -= u64::from(node.live());
            timers += usize::from(node.live() && !node.pinned);
        }
        self.close_bill(j);
        let job = &self.jobs[j];
        let left = (job.structures, job.units, job.bytes_used);
        assert_eq!(left, (0, 0, 0), "INV-02: a job that ended still held blocks");
        assert_eq!(job.bounded_prefixes, 0, "INV-30: the quotas of a job that ended are counted");
        self.quotas.job_ends(job.tenant);
        self.jobs.remove(j);
        self.orphan_timers(timers);
    }

    pub(crate) fn list_jobs(&self, actor: Actor) -> Result<Reply, CatalogError> {
        let supply = self.supply();
        let mut jobs: Vec<&Job> = match actor.job {
            Some(own) => vec![&self.jobs[self.admit(actor, own)?]],
            None => self.jobs.iter().map(|(_, job)| job).collect(),
        };
        // The order of ids has no meaning (INV-54).
        jobs.sort_unstable_by_key(|job| (job.registered, &job.name));
        Ok(Reply::Jobs(jobs.into_iter().map(|job| self.job_info(job, &supply)).collect()))
    }

    fn job_info(&self, job: &Job, supply: &Supply) -> JobInfo {
        JobInfo {
            job: job.id,
            name: job.name.clone(),
            prefixes: job.live_prefixes,
            pinned: job.pinned,
            structures: job.structures,
            blocks: self.in_blocks(job.units),
            bytes_used: job.bytes_used,
            age_ms: self.now.since(job.registered).as_millis() as u64,
            quota: job.quota.most,
            hints: job.hints,
            expected: Estimate::of(&job.hints, supply),
        }
    }

    pub(crate) fn job_tree(&self, actor: Actor, job: JobId) -> Result<Reply, CatalogError> {
        let j = self.admit(actor, job)?;
        let Job { live_prefixes, nodes, first_node, .. } = self.jobs[j];
        let all = chain(first_node, |n| self.dag.nodes[n].job_next);
        if tree_is_too_large(live_prefixes, nodes, all.map(|n| self.is_shown(n))) {
            let what = "prefixes of a job's tree";
            return Err(CatalogError::LimitExceeded { what, limit: BATCH_MAX as u64 });
        }
        let order = self.parents_first(j);
        // The latest renewal that reaches each prefix from its ancestors, computed for parents first.
        let mut above: HashMap<u32, Time> = HashMap::with_capacity(order.len());
        let mut tree = Vec::with_capacity(order.len());
        for n in order {
            let own = |p: u32| self.dag.nodes[p].stamp.max(self.dag.nodes[p].carried_above);
            let from_above = self.dag.parents(n).map(|p| own(p).max(above[&p])).max();
            let from_above = from_above.unwrap_or(Time::ZERO);
            above.insert(n, from_above);
            if self.is_shown(n) {
                tree.push(self.prefix_info(n, from_above));
            }
        }
        Ok(Reply::Tree(tree))
    }

    /// Whether a prefix is part of its job's tree: a removed one is, while it has descendants.
    fn is_shown(&self, n: u32) -> bool {
        self.dag.nodes[n].live() || self.dag.has_children(n) || !self.was_removed(n)
    }

    /// A job's prefixes, the root first and every parent before its children.
    fn parents_first(&self, j: u32) -> Vec<u32> {
        let job = &self.jobs[j];
        let all = chain(job.first_node, |n| self.dag.nodes[n].job_next);
        let parentless = all.filter(|&n| n != job.root && !self.dag.has_parents(n));
        let mut ready: VecDeque<u32> = std::iter::once(job.root).chain(parentless).collect();
        let mut missing: HashMap<u32, usize> = HashMap::new();
        let mut order = Vec::with_capacity(job.nodes);
        while let Some(n) = ready.pop_front() {
            order.push(n);
            for child in self.dag.children(n) {
                let left = missing.entry(child).or_insert_with(|| self.dag.parents(child).count());
                *left -= 1;
                if *left == 0 {
                    ready.push_back(child);
                }
            }
        }
        assert_eq!(order.len(), job.nodes, "a hierarchy has no cycle and every prefix is reached");
        order
    }

    fn prefix_info(&self, n: u32, from_above: Time) -> PrefixInfo {
        let node = &self.dag.nodes[n];
        let deadline = if node.live() {
            let below = self.dag.children(n).map(|c| self.dag.nodes[c].stamp).max();
            let carried = node.carried_below.max(node.carried_above).max(self.floor);
            let renewed = node.stamp.max(carried).max(from_above);
            self.lease_end(n, renewed.max(below.unwrap_or(Time::ZERO)))
        } else {
            node.carried_below
        };
        let pinned = node.pinned && node.live();
        let special = self.dag.special.get(&n);
        let (allowed, held) = self.quotas.of_prefix(node.id);
        PrefixInfo {
            max_blocks: allowed.most,
            held_blocks: self.in_blocks(held),
            prefix: node.id,
            name: node.name.clone(),
            parents: self.parents_in_order(n),
            lease_ms: node.lease_ms,
            remaining_ms: if pinned { i64::MAX } else { remaining_ms(deadline, self.now) },
            pinned: node.pinned,
            state: match (node.life, node.data_lost) {
                (Life::Expired, _) => PrefixState::Expired,
                (Life::Removed | Life::Read, _) => PrefixState::Removed,
                (Life::Live, true) => PrefixState::DataLost,
                (Life::Live, false) => PrefixState::Live,
            },
            structures: self.structures_of(n).map(|s| self.structure_info(s)).collect(),
            readers_left: self.readers.left(n),
            committed: node.committed,
            marks: self.marks(n),
            flush_to: special.map_or_else(Box::default, |special| special.flush_to.clone()),
            flush: special.map_or(FlushState::None, |special| special.flush.clone()),
            persist: special.is_some_and(|special| special.persist),
            acknowledge: match self.is_journaled(n) {
                true => ACKNOWLEDGE_FLUSHED,
                false => ACKNOWLEDGE_MEMORY,
            },
        }
    }
}

/// Whether a job has more prefixes than a tree shows. The counts decide this for nearly all jobs; a job with
/// few live prefixes and many dead ones is walked, up to the limit.
fn tree_is_too_large(live: u64, nodes: usize, shown: impl Iterator<Item = bool>) -> bool {
    if nodes <= BATCH_MAX {
        return false;
    }
    if live > BATCH_MAX as u64 && !Bug::RefusedTreeIsWalked.active() {
        return true;
    }
    shown.filter(|shown| *shown).take(BATCH_MAX + 1).count() > BATCH_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result for a job with this many live and dead prefixes, and the number of prefixes visited.
    fn visited(live: usize, dead: usize) -> (bool, usize) {
        let mut visited = 0;
        let shown = std::iter::repeat_n(true, live).chain(std::iter::repeat_n(false, dead));
        let shown = shown.inspect(|_| visited += 1);
        (tree_is_too_large(live as u64, live + dead, shown), visited)
    }

    #[test]
    fn tree_of_too_many_live_prefixes_is_refused_without_visiting_one() {
        assert_eq!(visited(BATCH_MAX + 1, 0), (true, 0));
        assert_eq!(visited(1 << 20, 1 << 16), (true, 0));
        assert_eq!(visited(BATCH_MAX, 0), (false, 0));
        // Dead prefixes that no tree shows do not count.
        assert_eq!(visited(BATCH_MAX, 10), (false, BATCH_MAX + 10));
    }

    /// Each refusal walked 65,537 prefixes: 7 ms in which no other job was served.
    #[cfg(feature = "bug-bank")]
    #[test]
    fn refused_trees_that_are_walked_are_caught() {
        Bug::arm(Some(Bug::RefusedTreeIsWalked));
        let seen = visited(1 << 20, 0);
        Bug::arm(None);
        assert_eq!(seen, (true, BATCH_MAX + 1));
    }
}
