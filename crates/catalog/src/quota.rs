//! Quotas: the most memory that tenants, jobs and prefixes may hold, in whole blocks (INV-30).
//!
//! A block counts with its capacity, in units (`BlockUnits`). It counts to its job, to the job's tenant, and
//! to every prefix with a quota that was an ancestor of its structure when the structure was created, or
//! became one when the quota was set. Ancestors are those of the line of first parents, as in the prefix's
//! canonical path: walking all parents of a DAG would count a block once for each path to it. The owners to
//! which a structure counts do not change with the hierarchy, so that additions and removals match.
//!
//! A soft quota refuses nothing: blocks in memory beyond it are the first to be demoted (`shares`).
//!
//! A quota that is set below the present holdings frees no block: no more blocks are allocated until enough
//! were freed. While servers are awaited after a restart, no block is allocated under any quota, because a
//! server may report growth that the log has lost, which counts as well.

use crate::command::{QuotaChange, QuotaOf};
use crate::dag::Dag;
use crate::durable::Dirty;
use crate::error::QuotaLevel;
use crate::jobs::Job;
use crate::shares::Giver;
use crate::slab::{NONE, Slab, chain};
use crate::{Actor, Catalog, CatalogError, Reply};
use hashbrown::HashMap;
use honeycomb_types::limits::TENANTS_MAX;
use honeycomb_types::{BlockId, BlockUnits, Bug, PrefixId, check_name, tenant_of};

/// The limits and the weight of a tenant, a job or a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Most blocks; 0 means unbounded.
    pub most: u64,
    /// Blocks in memory beyond which its blocks are the first to be demoted; 0 for none.
    pub soft: u64,
    /// The weight of its share, relative to the others; 1 by default.
    pub weight: u32,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance { most: 0, soft: 0, weight: 1 }
    }
}

impl Allowance {
    fn changed(self, change: QuotaChange) -> Allowance {
        Allowance {
            most: change.max_blocks.unwrap_or(self.most),
            soft: change.soft_blocks.unwrap_or(self.soft),
            weight: change.weight.unwrap_or(self.weight).max(1),
        }
    }

    /// Whether any value differs from the default.
    pub(crate) fn says_something(self) -> bool {
        self != Allowance::default()
    }
}

/// An owner with more in memory than its soft quota.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beyond {
    pub(crate) by: u64,
    pub(crate) giver: Giver,
}

/// The bound on the blocks of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Most blocks; 0 means unbounded.
    pub(crate) most: u64,
    /// Blocks in memory beyond which its blocks are demoted first; 0 for none.
    pub(crate) soft: u64,
    /// The units that were held when the bound was set, or were found without a request, less those freed
    /// since. The owner never holds more than the greater of this and `most`.
    over: u64,
}

impl Bound {
    pub(crate) fn new(allowed: Allowance) -> Bound {
        Bound { most: allowed.most, soft: allowed.soft, over: 0 }
    }

    /// A bound that is set while this many units are held.
    fn set(allowed: Allowance, held: u64) -> Bound {
        Bound { over: held, ..Bound::new(allowed) }
    }

    /// The most units, of which a block has so many.
    fn most_units(self, whole: u64) -> u64 {
        self.most.saturating_mul(whole)
    }

    /// The units beyond which blocks are demoted first; 0 for none.
    pub(crate) fn soft_units(self, whole: u64) -> u64 {
        self.soft.saturating_mul(whole)
    }

    fn admits(self, held: u64, asked: u64, whole: u64) -> bool {
        self.most == 0 || held.saturating_add(asked) <= self.most_units(whole)
    }

    /// Records that this many units are held now, without an allocation.
    pub(crate) fn finds(&mut self, held: u64) {
        self.over = held;
    }

    fn went(&mut self, held: u64) {
        self.over = self.over.min(held);
    }

    /// Whether this many units can be held.
    pub(crate) fn holds(self, held: u64, whole: u64) -> bool {
        self.most == 0 || held <= self.most_units(whole).max(self.over)
    }
}

/// The quotas that apply to an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quota {
    /// No quota applies.
    None,
    /// The blocks are within all quotas.
    Bounded,
    /// The blocks are within all quotas because the copies that relocations make do not count.
    Beside,
}

/// The tenant of some jobs.
#[derive(Debug)]
pub(crate) struct TenantAccount {
    pub(crate) name: Box<str>,
    bound: Bound,
    weight: u32,
    units: u64,
    jobs: u32,
}

impl TenantAccount {
    fn allowed(&self) -> Allowance {
        Allowance { most: self.bound.most, soft: self.bound.soft, weight: self.weight }
    }
}

/// A prefix with a quota, and the units held by it and its descendants.
#[derive(Clone, Copy, Debug, Default)]
struct Subtree {
    bound: Bound,
    held: u64,
}

/// Quotas and counts beyond those in each job.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    /// Tenants that have jobs or a quota.
    tenants: Slab<TenantAccount>,
    names: HashMap<Box<str>, u32>,
    /// Live prefixes that have a quota.
    prefixes: HashMap<PrefixId, Subtree>,
    /// For each structure, by index, its ancestors that have a quota; the nearest first. Ended prefixes stay
    /// in these lists without effect: ids are never reused.
    counted: HashMap<u32, Vec<PrefixId>>,
    /// Whether a soft quota was set at any time since the catalog was made.
    pub(crate) any_soft: bool,
    /// Tenants whose quota changed. An index may be reused before it is written, which costs one superfluous
    /// write; names that were removed are in `forgotten`.
    pub(crate) dirty: Dirty,
    forgotten: Vec<Box<str>>,
}

impl Quotas {
    fn tenant(&mut self, name: &str) -> u32 {
        if let Some(&t) = self.names.get(name) {
            return t;
        }
        let (bound, weight) = (Bound::default(), 1);
        let tenant = TenantAccount { name: name.into(), bound, weight, units: 0, jobs: 0 };
        let t = self.tenants.insert(tenant);
        self.names.insert(name.into(), t);
        t
    }

    /// A job is registered or recovered; returns the index of its tenant.
    pub(crate) fn job_begins(&mut self, name: &str) -> u32 {
        let Some(tenant) = tenant_of(name) else { return NONE };
        let t = self.tenant(tenant);
        self.tenants[t].jobs += 1;
        t
    }

    /// A job of a tenant ended, and holds nothing.
    pub(crate) fn job_ends(&mut self, t: u32) {
        if t != NONE {
            let tenant = &mut self.tenants[t];
            assert!(tenant.jobs > 0, "INV-30: tenant '{}' has no job that ends", tenant.name);
            tenant.jobs -= 1;
            self.forget(t);
        }
    }

    fn forget(&mut self, t: u32) {
        let tenant = &self.tenants[t];
        let TenantAccount { jobs, units, name, .. } = tenant;
        if *jobs == 0 && !tenant.allowed().says_something() {
            assert_eq!(*units, 0, "INV-30: a tenant without jobs holds blocks");
            self.names.remove(name);
            self.tenants.remove(t);
        }
    }

    /// Sets a tenant's quota.
    pub(crate) fn bound_tenant(&mut self, name: &str, allowed: Allowance) {
        let t = self.tenant(name);
        let TenantAccount { bound, units, weight, .. } = &mut self.tenants[t];
        *bound = Bound::set(allowed, *units);
        *weight = allowed.weight;
        match allowed.says_something() {
            false if self.dirty.on() => self.forgotten.push(name.into()),
            _ => self.dirty.mark(t),
        }
        self.forget(t);
    }

    /// The weight of a tenant's share, and its bound.
    pub(crate) fn tenant_share(&self, t: u32) -> (u32, Bound) {
        let tenant = &self.tenants[t];
        (tenant.weight, tenant.bound)
    }

    pub(crate) fn tenant_name(&self, t: u32) -> &str {
        &self.tenants[t].name
    }

    /// Structures that count to a prefix, in any order.
    pub(crate) fn counting_to(&self, id: PrefixId) -> impl Iterator<Item = u32> {
        self.counted.iter().filter(move |(_, line)| line.contains(&id)).map(|(s, _)| *s)
    }

    /// Tenants that have a quota, in order of their names.
    pub(crate) fn bounded_tenants(&self) -> Vec<(&str, Allowance)> {
        let all = self.tenants.iter().map(|(_, tenant)| (&*tenant.name, tenant.allowed()));
        let mut all: Vec<_> = all.filter(|(_, allowed)| allowed.says_something()).collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all
    }

    /// The quotas changed since the last call; nothing for tenants that ended.
    pub(crate) fn changed_tenants(&mut self) -> Vec<(Box<str>, Allowance)> {
        let forgotten = std::mem::take(&mut self.forgotten).into_iter();
        let mut changed: Vec<_> = forgotten.map(|name| (name, Allowance::default())).collect();
        for t in self.dirty.take() {
            if let Some(tenant) = self.tenants.get(t) {
                changed.push((tenant.name.clone(), tenant.allowed()));
            }
        }
        changed
    }

    fn of_tenant(&self, name: &str) -> (Allowance, u64) {
        let tenant = self.names.get(name).map(|&t| &self.tenants[t]);
        tenant.map_or_else(Default::default, |tenant| (tenant.allowed(), tenant.units))
    }

    fn line(&self, s: u32) -> &[PrefixId] {
        self.counted.get(&s).map_or(&[], |line| line)
    }

    /// A structure ended.
    pub(crate) fn structure_ends(&mut self, s: u32) {
        if !self.counted.is_empty() {
            self.counted.remove(&s);
        }
    }

    /// The limits of a prefix with its descendants, and the units held; empty when it has no quota.
    pub(crate) fn of_prefix(&self, id: PrefixId) -> (Allowance, u64) {
        self.prefixes.get(&id).map_or_else(Default::default, |Subtree { bound, held }| {
            (Allowance { most: bound.most, soft: bound.soft, weight: 1 }, *held)
        })
    }

    /// A prefix ends; returns whether it had a quota.
    pub(crate) fn prefix_ends(&mut self, id: PrefixId) -> bool {
        self.prefixes.remove(&id).is_some()
    }

    pub(crate) fn bytes(&self) -> usize {
        let names = self.names.allocation_size() + self.tenants.bytes();
        let lists = self.counted.values().map(|line| line.capacity() * size_of::<PrefixId>());
        let tables = self.prefixes.allocation_size() + self.counted.allocation_size();
        let text: usize = self.names.keys().map(|name| 2 * name.len()).sum();
        names + tables + text + lists.sum::<usize>()
    }
}

/// Refuses a weight for an owner that shares with others.
fn refuse_weight(change: QuotaChange, allowed: &'static str) -> Result<(), CatalogError> {
    let Some(given) = change.weight else { return Ok(()) };
    let (what, given) = ("the weight of a share", given.into());
    Err(CatalogError::InvalidArgument { what, given, allowed })
}

impl Catalog {
    /// The capacity of a structure's blocks, in units.
    pub(crate) fn units_of(&self, s: u32) -> u64 {
        self.structures[s].blocks().map(|block| u64::from(self.pool.units(block))).sum()
    }

    /// Bytes that a block may hold.
    pub(crate) fn capacity_of(&self, block: BlockId) -> u64 {
        u64::from(self.pool.units(block)) * self.units().bytes()
    }

    /// Units as whole blocks, begun ones included.
    pub(crate) fn in_blocks(&self, units: u64) -> u64 {
        units.div_ceil(self.whole())
    }

    /// Units of a whole block.
    pub(crate) fn whole(&self) -> u64 {
        self.units().whole().into()
    }

    /// The units of its blocks.
    pub(crate) fn units(&self) -> BlockUnits {
        BlockUnits::of(self.block_size)
    }

    /// Refuses units that would exceed a quota of a prefix, the job or its tenant. A block that exists twice
    /// because it leaves a server counts once.
    pub(crate) fn may_take(&self, j: u32, s: u32, asked: u64) -> Result<Quota, CatalogError> {
        let refused = match self.within_quotas(j, s, asked, 0) {
            Ok(false) => return Ok(Quota::None),
            Ok(true) => return Ok(Quota::Bounded),
            Err(refused) => refused,
        };
        match self.copies_of(j) {
            0 => Err(refused),
            copies => self.within_quotas(j, s, asked, copies).map(|_| Quota::Beside),
        }
    }

    /// Whether there is any quota; fails if one of them leaves no room for this many units when `copies` of
    /// the held ones do not count.
    fn within_quotas(&self, j: u32, s: u32, asked: u64, copies: u64) -> Result<bool, CatalogError> {
        if Bug::QuotaForgotten.active() {
            return Ok(false);
        }
        let job = &self.jobs[j];
        let mut any = job.quota.most != 0;
        let whole = self.whole();
        let refused = |level, bound: Bound, held: u64| {
            let (held, asked) = (held.div_ceil(whole), asked.div_ceil(whole));
            Err(CatalogError::QuotaExceeded { level, quota: bound.most, held, asked })
        };
        for id in self.quotas.line(s) {
            let Some(&Subtree { bound, held }) = self.quotas.prefixes.get(id) else { continue };
            any |= bound.most != 0;
            if !bound.admits(held.saturating_sub(copies), asked, whole) {
                let n = self.dag.by_id(*id).expect("a prefix with a quota is live");
                let path = self.dag.path_of(n).into();
                return refused(QuotaLevel::Prefix(path), bound, held);
            }
        }
        if !job.quota.admits(job.units.saturating_sub(copies), asked, whole) {
            return refused(QuotaLevel::Job, job.quota, job.units);
        }
        if let Some(tenant) = self.quotas.tenants.get(job.tenant) {
            any |= tenant.bound.most != 0;
            if !tenant.bound.admits(tenant.units.saturating_sub(copies), asked, whole) {
                let name = tenant.name.clone();
                return refused(QuotaLevel::Tenant(name), tenant.bound, tenant.units);
            }
        }
        Ok(any)
    }

    /// Units were added to a structure, in new blocks or in its own.
    pub(crate) fn units_came(&mut self, j: u32, s: u32, units: u64) {
        self.accrue(j);
        let job = &mut self.jobs[j];
        job.units += units;
        if job.tenant != NONE {
            self.quotas.tenants[job.tenant].units += units;
        }
        let Quotas { prefixes, counted, .. } = &mut self.quotas;
        for id in counted.get(&s).into_iter().flatten() {
            if let Some(subtree) = prefixes.get_mut(id) {
                subtree.held += units;
            }
        }
    }

    /// Units of a structure from before a restart were found: they were requested then.
    pub(crate) fn units_found(&mut self, j: u32, s: u32, units: u64) {
        self.units_came(j, s, units);
        let job = &mut self.jobs[j];
        job.quota.finds(job.units);
        if job.tenant != NONE {
            let tenant = &mut self.quotas.tenants[job.tenant];
            tenant.bound.finds(tenant.units);
        }
        let Quotas { prefixes, counted, .. } = &mut self.quotas;
        for id in counted.get(&s).into_iter().flatten() {
            if let Some(subtree) = prefixes.get_mut(id) {
                subtree.bound.finds(subtree.held);
            }
        }
    }

    /// Units were removed from a structure.
    pub(crate) fn units_went(&mut self, j: u32, s: u32, units: u64) {
        self.accrue(j);
        let job = &mut self.jobs[j];
        let Job { id, units: held, .. } = *job;
        assert!(held >= units, "INV-02: job {id} gives {units} units back, and holds {held}");
        job.units -= units;
        job.quota.went(job.units);
        if job.tenant != NONE {
            let tenant = &mut self.quotas.tenants[job.tenant];
            assert!(tenant.units >= held, "INV-30: {tenant:?} holds less than its job");
            tenant.units -= units;
            tenant.bound.went(tenant.units);
        }
        let Quotas { prefixes, counted, .. } = &mut self.quotas;
        for id in counted.get(&s).into_iter().flatten() {
            if let Some(subtree) = prefixes.get_mut(id) {
                let covers = subtree.held >= units;
                assert!(covers, "INV-30: prefix {id} gives {units} units back: {subtree:?}");
                subtree.held -= units;
                subtree.bound.went(subtree.held);
            }
        }
    }

    /// Determines the prefixes to which a new or recovered structure counts.
    pub(crate) fn count_structure(&mut self, s: u32, n: u32) {
        if self.jobs[self.dag.nodes[n].job].bounded_prefixes == 0 {
            return;
        }
        let mut line = Vec::new();
        let mut at = Some(n);
        while let Some(here) = at {
            let id = self.dag.nodes[here].id;
            if self.quotas.prefixes.contains_key(&id) {
                line.push(id);
            }
            at = self.dag.first_parent(here);
        }
        if !line.is_empty() {
            self.quotas.counted.insert(s, line);
        }
    }

    /// Sets the quota of a recovered prefix, before there are structures that could count to it.
    pub(crate) fn recover_bound(&mut self, n: u32, allowed: Allowance) {
        if allowed.says_something() {
            let node = &self.dag.nodes[n];
            self.jobs[node.job].bounded_prefixes += 1;
            self.quotas.prefixes.insert(node.id, Subtree { bound: Bound::new(allowed), held: 0 });
        }
    }

    /// Sets the quotas of live prefixes of a job. Blocks that are allocated to each and to its descendants
    /// count from now on. Returns those that had no quota: `count_below` counts the blocks that they hold.
    #[must_use]
    pub(crate) fn bound_prefixes(&mut self, j: u32, quotas: &[(u32, Allowance)]) -> Vec<u32> {
        let mut fresh = Vec::new();
        for &(n, allowed) in quotas {
            let id = self.dag.nodes[n].id;
            if self.quotas.of_prefix(id).0 == allowed {
                continue;
            }
            self.dag.dirty.mark(n);
            if !allowed.says_something() {
                self.quotas.prefixes.remove(&id);
                self.jobs[j].bounded_prefixes -= 1;
                // The prefix stays live, and may get a quota again.
                self.quotas.counted.retain(|_, line| {
                    line.retain(|other| *other != id);
                    !line.is_empty()
                });
                continue;
            }
            let known = self.quotas.prefixes.get(&id).copied();
            if known.is_none() {
                self.jobs[j].bounded_prefixes += 1;
                fresh.push(n);
            }
            let held = known.map_or(0, |subtree| subtree.held);
            self.quotas.prefixes.insert(id, Subtree { bound: Bound::set(allowed, held), held });
        }
        fresh
    }

    /// Makes all structures of these prefixes and their descendants count to them. Visits all prefixes of the
    /// job, and follows the line of each once.
    pub(crate) fn count_below(&mut self, j: u32, fresh: &[u32]) {
        let alone =
            |&n: &u32| self.dag.nodes[n].first_structure == NONE && !self.dag.has_children(n);
        if self.jobs[j].structures == 0 || fresh.iter().all(alone) {
            return;
        }
        // The nearest of them at or above a prefix, by first parents.
        let mut nearest: HashMap<u32, Option<u32>> = fresh.iter().map(|&n| (n, Some(n))).collect();
        let mut nearest_of = |dag: &Dag, n: Option<u32>| {
            let mut way = Vec::new();
            let mut at = n;
            let found = loop {
                let Some(here) = at else { break None };
                if let Some(found) = nearest.get(&here) {
                    break *found;
                }
                way.push(here);
                at = dag.first_parent(here);
            };
            nearest.extend(way.into_iter().map(|n| (n, found)));
            found
        };
        let nodes: Vec<u32> =
            chain(self.jobs[j].first_node, |n| self.dag.nodes[n].job_next).collect();
        for below in nodes {
            if self.dag.nodes[below].first_structure == NONE {
                continue;
            }
            let structures: Vec<(u32, u64)> =
                self.structures_of(below).map(|s| (s, self.units_of(s))).collect();
            let mut to = nearest_of(&self.dag, Some(below));
            while let Some(n) = to {
                let id = self.dag.nodes[n].id;
                let subtree = self.quotas.prefixes.get_mut(&id).expect("it has a quota");
                for &(s, units) in &structures {
                    // The order only determines the quota that a refusal names first.
                    self.quotas.counted.entry(s).or_default().push(id);
                    subtree.held += units;
                }
                subtree.bound.finds(subtree.held);
                to = nearest_of(&self.dag, self.dag.first_parent(n));
            }
        }
    }

    /// A prefix ends: its descendants count to its ancestors as before.
    pub(crate) fn unbound_prefix(&mut self, n: u32) {
        let node = &self.dag.nodes[n];
        if self.quotas.prefix_ends(node.id) {
            self.jobs[node.job].bounded_prefixes -= 1;
        }
    }

    /// The holdings of a recovered catalog were within the quotas of their time.
    pub(crate) fn recover_quotas(&mut self) {
        self.jobs.iter_mut().for_each(|job| job.quota.finds(job.units));
        let Quotas { tenants, prefixes, .. } = &mut self.quotas;
        tenants.iter_mut().for_each(|tenant| tenant.bound.finds(tenant.units));
        prefixes.values_mut().for_each(|subtree| subtree.bound.finds(subtree.held));
        let bounds = self.quotas.tenants.iter().map(|(_, tenant)| tenant.bound);
        let bounds = bounds.chain(self.quotas.prefixes.values().map(|subtree| subtree.bound));
        let mut bounds = bounds.chain(self.jobs.iter().map(|(_, job)| job.quota));
        self.quotas.any_soft = bounds.any(|bound| bound.soft > 0);
    }

    pub(crate) fn set_quota(
        &mut self,
        actor: Actor,
        of: QuotaOf<'_>,
        change: QuotaChange,
    ) -> Result<Reply, CatalogError> {
        Catalog::check_weight(change.weight.unwrap_or_default())?;
        self.quotas.any_soft |= change.soft_blocks.is_some_and(|soft| soft > 0);
        match of {
            QuotaOf::Tenant(name) => {
                self.need_cluster(actor, "set a tenant's quota")?;
                check_name(name)?;
                let known = self.quotas.names.contains_key(name);
                if !known && self.quotas.tenants.len() >= TENANTS_MAX {
                    let (what, limit) = ("tenants", TENANTS_MAX as u64);
                    return Err(CatalogError::LimitExceeded { what, limit });
                }
                let allowed = self.quotas.of_tenant(name).0.changed(change);
                self.quotas.bound_tenant(name, allowed);
            }
            QuotaOf::Job(job) => {
                let j = self.admit(actor, job)?;
                self.need_cluster(actor, "set a job's quota")?;
                let job = &self.jobs[j];
                if job.tenant != NONE {
                    refuse_weight(
                        change,
                        "a job of a tenant has its tenant's share; set the weight of the tenant",
                    )?;
                }
                let (allowed, held) = (job.allowed().changed(change), job.units);
                let job = &mut self.jobs[j];
                (job.quota, job.weight) = (Bound::set(allowed, held), allowed.weight);
                self.jobs.dirty.mark(j);
            }
            QuotaOf::Prefix(job, path) => {
                let j = self.admit(actor, job)?;
                self.need_write(actor, "set a prefix's quota", path)?;
                if actor.job.is_some() && actor.task.is_some() {
                    let what = "set a prefix's quota";
                    let why = "setting a quota requires the job's token";
                    return Err(CatalogError::PermissionDenied { what, path: path.into(), why });
                }
                refuse_weight(change, "a prefix has no weight; it has part of its job's share")?;
                let n = self.live_prefix(j, path)?;
                let allowed = self.quotas.of_prefix(self.dag.nodes[n].id).0.changed(change);
                let fresh = self.bound_prefixes(j, &[(n, allowed)]);
                self.count_below(j, &fresh);
            }
        }
        self.quota(actor, of)
    }

    /// A quota, and what counts towards it, in whole blocks.
    pub(crate) fn quota(&self, actor: Actor, of: QuotaOf<'_>) -> Result<Reply, CatalogError> {
        let (allowed, held, in_memory) = match of {
            QuotaOf::Tenant(name) => {
                self.need_cluster(actor, "read a tenant's quota")?;
                check_name(name)?;
                let (allowed, held) = self.quotas.of_tenant(name);
                let t = self.quotas.names.get(name);
                (allowed, held, t.map_or(0, |&t| self.tenant_in_memory(t)))
            }
            QuotaOf::Job(job) => {
                let j = self.admit(actor, job)?;
                let job = &self.jobs[j];
                (job.allowed(), job.units, self.in_memory(j))
            }
            QuotaOf::Prefix(job, path) => {
                let n = self.live_prefix(self.admit(actor, job)?, path)?;
                let id = self.dag.nodes[n].id;
                let (allowed, held) = self.quotas.of_prefix(id);
                (
                    allowed,
                    held,
                    if allowed.says_something() { self.subtree_in_memory(id) } else { 0 },
                )
            }
        };
        let (held, in_memory) = (self.in_blocks(held), self.in_blocks(in_memory));
        Ok(Reply::Quota { allowed, held, in_memory })
    }

    fn tenant_in_memory(&self, t: u32) -> u64 {
        let jobs = self.jobs.iter().filter(|(_, job)| job.tenant == t);
        jobs.map(|(j, _)| self.in_memory(j)).sum()
    }

    fn subtree_in_memory(&self, id: PrefixId) -> u64 {
        let held = self.quotas.of_prefix(id).1;
        let below = self.quotas.counting_to(id).map(|s| self.pool.staying.of_structure(s));
        held.saturating_sub(below.sum())
    }

    /// All owners with more in memory than their soft quota, in any order.
    pub(crate) fn all_beyond(&self) -> Vec<Beyond> {
        let whole = self.whole();
        let beyond = |bound: Bound, held: u64, giver| {
            let soft = bound.soft_units(whole);
            let by = if soft > 0 { held.saturating_sub(soft) } else { 0 };
            (by > 0).then_some(Beyond { by, giver })
        };
        let soft = |bound: &Bound| bound.soft > 0;
        let tenants = self.quotas.tenants.iter().filter(|(_, tenant)| soft(&tenant.bound));
        let tenants = tenants.filter_map(|(t, tenant)| {
            beyond(tenant.bound, self.tenant_in_memory(t), Giver::Tenant(t))
        });
        let jobs = self.jobs.iter().filter(|(_, job)| soft(&job.quota));
        let jobs = jobs.filter_map(|(j, job)| beyond(job.quota, self.in_memory(j), Giver::Job(j)));
        let prefixes = self.quotas.prefixes.iter().filter(|(_, subtree)| soft(&subtree.bound));
        let prefixes = prefixes.filter_map(|(&id, subtree)| {
            beyond(subtree.bound, self.subtree_in_memory(id), Giver::Prefix(id))
        });
        tenants.chain(jobs).chain(prefixes).collect()
    }

    /// INV-30, and that the counts equal the holdings.
    pub(crate) fn check_quotas(&self) -> Result<(), String> {
        let whole = self.whole();
        let mut tenants: HashMap<u32, (u64, u32)> = HashMap::new();
        let mut bounded: HashMap<u32, i64> = HashMap::new();
        for (j, job) in self.jobs.iter() {
            if !job.quota.holds(job.units, whole) {
                return Err(format!("job {} is above its quota", job.id));
            }
            if job.tenant != NONE {
                let all = tenants.entry(job.tenant).or_default();
                *all = (all.0 + job.units, all.1 + 1);
            }
            bounded.insert(j, job.bounded_prefixes.into());
        }
        for (t, tenant) in self.quotas.tenants.iter() {
            let counted = tenants.remove(&t).unwrap_or_default();
            let holds = tenant.bound.holds(tenant.units, whole);
            if counted != (tenant.units, tenant.jobs) || !holds {
                return Err(format!("tenant {}: {tenant:?}, counted {counted:?}", tenant.name));
            }
        }
        let mut held: HashMap<PrefixId, u64> = HashMap::new();
        for (s, line) in &self.quotas.counted {
            if self.structures.get(*s).is_none() {
                return Err(format!("index {s} counts to prefixes, but has no structure"));
            }
            let units = self.units_of(*s);
            line.iter().for_each(|id| *held.entry(*id).or_default() += units);
        }
        for (id, subtree) in &self.quotas.prefixes {
            let counted = held.remove(id).unwrap_or_default();
            if counted != subtree.held || !subtree.bound.holds(counted, whole) {
                return Err(format!("prefix {id}: {subtree:?}, counted {counted}"));
            }
            let Some(n) = self.dag.by_id(*id).filter(|&n| self.dag.nodes[n].live()) else {
                return Err(format!("prefix {id} has a quota and is not live"));
            };
            *bounded.entry(self.dag.nodes[n].job).or_default() -= 1;
        }
        match bounded.values().any(|left| *left != 0) {
            true => Err("prefixes with a quota are miscounted".into()),
            false => Ok(()),
        }
    }
}
