//! The holdings and entitlements of memory, and the choice of the holder whose block is demoted for another.
//!
//! Shares belong to holders: a tenant with all its jobs, or a job without a tenant. The memory to share is
//! the ordinary room of the present servers, less the room that `pressure` keeps free for coming requests.
//! Under a fair policy a block of the holder furthest above its share is demoted; if all holders are within
//! their shares, only blocks of the caller are (INV-43).
//!
//! A soft quota precedes all of this: blocks in memory beyond it are demoted first, for every caller.

use crate::policy::{MemoryHolder, Share};
use crate::pressure::mark_of;
use crate::quota::Beyond;
use crate::slab::{NONE, chain};
use crate::{Catalog, CatalogError};
use hashbrown::HashMap;
use honeycomb_types::limits::{FULL_PATIENCE, LOWER_GIVERS, LOWER_PREFIXES, POLICY_QUANTUM};
use honeycomb_types::{BlockId, Bug, JobId, PrefixId, TierIx, Time};

/// A share, as reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareInfo {
    /// The tenant's name, or the job's.
    pub name: Box<str>,
    /// Whether the share belongs to all jobs of a tenant together.
    pub tenant: bool,
    /// The share.
    pub share: Share,
    /// Credits, for policies that use them.
    pub credits: i64,
}

/// State of the shares.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// The time at which the policy last examined the shares.
    looked: Time,
    /// The position of the clock hand of each owner whose blocks were demoted.
    hands: HashMap<Giver, PrefixId>,
    /// Prefixes that wait for blocks of holders above their shares, and the start of each wait.
    owed: HashMap<u32, Time>,
}

/// The owner of a block that is demoted for a request of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Giver {
    Tenant(u32),
    Job(u32),
    /// A prefix with its descendants.
    Prefix(PrefixId),
}

impl Sharing {
    /// A prefix was removed.
    pub(crate) fn forget(&mut self, n: u32) {
        self.owed.remove(&n);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.hands.allocation_size() + self.owed.allocation_size()
    }
}

impl Catalog {
    /// The holder of a job's blocks.
    fn holder_of(&self, j: u32) -> MemoryHolder {
        let job = &self.jobs[j];
        if job.tenant == NONE {
            MemoryHolder::Job(job.id)
        } else {
            MemoryHolder::Tenant(job.tenant)
        }
    }

    /// Units that a job has in memory, without those being demoted.
    pub(crate) fn in_memory(&self, j: u32) -> u64 {
        self.jobs[j].units.saturating_sub(self.pool.staying.of_job(j))
    }

    /// Units of memory that are shared. Suspicion of a server does not change them: the first command of the
    /// server afterwards would change the entitlements that it is judged by.
    fn memory_to_share(&self) -> u64 {
        let (mut all, mut kept) = (0, 0);
        for (_, server) in self.pool.servers().filter(|(_, s)| !s.is_away() && !s.draining) {
            all += u64::from(server.lent_total().saturating_sub(server.reserve()));
            kept += if server.tiers.is_empty() { 0 } else { mark_of(server) };
        }
        all.saturating_sub(kept)
    }

    /// The holdings and the entitlement of every holder in units, if one requests this many more.
    pub(crate) fn shares(&self, asks: Option<(u32, u64)>) -> Vec<Share> {
        let mut shares: Vec<Share> = Vec::new();
        let mut soft = Vec::new();
        let mut tenants: HashMap<u32, usize> = HashMap::new();
        for (j, job) in self.jobs.iter() {
            let i = match self.holder_of(j) {
                MemoryHolder::Tenant(t) => *tenants.entry(t).or_insert(shares.len()),
                MemoryHolder::Job(_) => shares.len(),
            };
            if i == shares.len() {
                let holder = self.holder_of(j);
                let (weight, bound) = match holder {
                    MemoryHolder::Tenant(t) => self.quotas.tenant_share(t),
                    MemoryHolder::Job(_) => (job.weight, job.quota),
                };
                let weight = weight.into();
                shares.push(Share { holder, weight, held: 0, wants: 0, entitled: 0 });
                soft.push(bound.soft_units(self.whole()));
            }
            let held = self.in_memory(j);
            shares[i].held += held;
            shares[i].wants += held + asks.map_or(0, |(asks, n)| if asks == j { n } else { 0 });
        }
        for (share, soft) in shares.iter_mut().zip(soft) {
            share.wants = if soft > 0 { share.wants.min(soft) } else { share.wants };
        }
        self.policy.entitle(&mut shares, self.memory_to_share());
        shares
    }

    /// The holdings and the entitlement of every holder at a time, if a job requests this many more then; for
    /// a checker, with the amount of shared memory. All in units.
    pub fn sharing(&mut self, now: Time, asks: Option<(JobId, u64)>) -> (Vec<ShareInfo>, u64) {
        self.now = self.now.max(now);
        self.share_anew();
        self.told_shares(asks)
    }

    /// The shares in whole blocks.
    pub(crate) fn shares_in_blocks(&self) -> Vec<ShareInfo> {
        let (mut shares, _) = self.told_shares(None);
        for ShareInfo { share, .. } in &mut shares {
            (share.held, share.wants) = (self.in_blocks(share.held), self.in_blocks(share.wants));
            share.entitled /= self.whole();
        }
        shares
    }

    fn told_shares(&self, asks: Option<(JobId, u64)>) -> (Vec<ShareInfo>, u64) {
        let asks = asks.and_then(|(job, n)| Some((self.jobs.find(job)?, n)));
        let told = |share: Share| {
            let (name, tenant) = match share.holder {
                MemoryHolder::Tenant(t) => (self.quotas.tenant_name(t), true),
                MemoryHolder::Job(job) => {
                    let j =
                        self.jobs.find(job).expect("a job whose share was counted is registered");
                    (&*self.jobs[j].name, false)
                }
            };
            let credits = self.policy.credits(share.holder);
            ShareInfo { name: name.into(), tenant, share, credits }
        };
        (self.shares(asks).into_iter().map(told).collect(), self.memory_to_share())
    }

    /// Lets a policy with a history examine the shares, because time has passed.
    pub(crate) fn share_anew(&mut self) {
        let fair = self.policy.kind().is_fair();
        if !fair || self.now.since(self.sharing.looked) < POLICY_QUANTUM || self.recovering() {
            return;
        }
        self.sharing.looked = self.now;
        let (shares, memory) = (self.shares(None), self.memory_to_share());
        self.policy.quantum(&shares, memory);
        let now = self.now;
        self.sharing.owed.retain(|_, since| now.since(*since) < 2 * FULL_PATIENCE);
    }

    /// Whether a job that requests this many units would be within its share with them.
    pub(crate) fn is_within_share(&self, j: u32, asked: u64) -> bool {
        let holder = self.holder_of(j);
        let shares = self.shares(Some((j, asked)));
        let own = shares.iter().find(|share| share.holder == holder);
        own.is_some_and(|own| own.held + asked <= own.entitled)
    }

    /// Whether a request must leave the remaining memory to other jobs: little is free, and the job would be
    /// above its share.
    pub(crate) fn leaves_memory(&self, j: u32, asked: u32) -> bool {
        let (ordinary, ..) = self.pool.room();
        ordinary < self.kept_free() + u64::from(asked) && !self.is_within_share(j, asked.into())
    }

    /// Whether a prefix that found no memory waits for a block that others hold beyond their share, instead
    /// of a block in a lower tier: so no job is slowed down by a neighbour's excess. The prefix waits only
    /// while blocks are being demoted, and for a limited time.
    pub(crate) fn waits_for_share(&mut self, (j, n): (u32, u32), asked: u32) -> bool {
        if !self.is_within_share(j, asked.into()) {
            return false;
        }
        let since = *self.sharing.owed.entry(n).or_insert(self.now);
        if self.now.since(since) >= FULL_PATIENCE {
            return false;
        }
        let mut effects = std::mem::take(&mut self.pressure.early);
        self.press_prefix(n, asked, &mut effects);
        self.pressure.early = effects;
        self.lowers()
    }

    /// A prefix's request was fulfilled.
    pub(crate) fn is_paid(&mut self, n: u32) {
        if !self.sharing.owed.is_empty() {
            self.sharing.owed.remove(&n);
        }
    }

    /// The block that is demoted because a prefix requested this many more, and its target tier.
    pub(crate) fn victim(&mut self, n: u32, asked: u32) -> Option<(BlockId, TierIx)> {
        if Bug::LowersNeighbour.active() {
            let neighbour = self.neighbour(n);
            return self.coldest(&[neighbour]);
        }
        if self.recovering() {
            // The holdings of others are unknown before every server has reported.
            return self.coldest(&[n]);
        }
        if let Some(found) = self.beyond_soft_quotas() {
            return Some(found);
        }
        if !self.policy.kind().is_fair() {
            return self.coldest(&[n]);
        }
        let j = self.dag.nodes[n].job;
        let own = self.holder_of(j);
        let mut shares = self.shares(Some((j, asked.into())));
        // The amount by which each holder would be above its share; the caller is the first of equals.
        let above = |share: &Share| {
            let held = share.held + if share.holder == own { u64::from(asked) } else { 0 };
            held.saturating_sub(share.entitled)
        };
        let gives = |share: &Share| share.holder == own || above(share) > 0;
        shares.retain(|share| gives(share) || Bug::TakesFromShare.active());
        shares.sort_by_key(|share| {
            (std::cmp::Reverse(above(share)), share.holder != own, share.holder)
        });
        if Bug::TakesFromShare.active() {
            shares.reverse();
        }
        let (least, ..) = self.pool.room();
        for share in shares.into_iter().take(LOWER_GIVERS) {
            if share.holder != own {
                let found = self.coldest_of(match share.holder {
                    MemoryHolder::Tenant(t) => Giver::Tenant(t),
                    MemoryHolder::Job(job) => {
                        Giver::Job(self.jobs.find(job).expect("a job with a share is registered"))
                    }
                });
                if found.is_some() {
                    return found;
                }
                continue;
            }
            // While the caller is within its share and enough is free, the room kept free for others does not
            // justify a demotion of its own block.
            let spares = above(&share) == 0 && least >= u64::from(asked).max(1);
            return if spares { None } else { self.coldest_of_own(n) };
        }
        self.coldest_of_own(n)
    }

    fn coldest_of_own(&mut self, n: u32) -> Option<(BlockId, TierIx)> {
        let found = self.coldest(&[n]);
        if found.is_some() {
            return found;
        }
        let j = self.dag.nodes[n].job;
        self.coldest_of(match self.holder_of(j) {
            MemoryHolder::Tenant(t) => Giver::Tenant(t),
            MemoryHolder::Job(_) => Giver::Job(j),
        })
    }

    /// A block of the owner that is furthest beyond a soft quota and has a block that can be demoted.
    fn beyond_soft_quotas(&mut self) -> Option<(BlockId, TierIx)> {
        if !self.quotas.any_soft {
            return None;
        }
        let mut all = self.all_beyond();
        all.sort_by_key(|Beyond { by, giver }| {
            let number = match *giver {
                Giver::Tenant(t) => (0, t.into()),
                Giver::Job(j) => (1, j.into()),
                Giver::Prefix(id) => (2, id.0),
            };
            (std::cmp::Reverse(*by), number)
        });
        all.into_iter().take(LOWER_GIVERS).find_map(|beyond| self.coldest_of(beyond.giver))
    }

    /// The coldest block of all prefixes of an owner, found by a clock over these prefixes.
    fn coldest_of(&mut self, giver: Giver) -> Option<(BlockId, TierIx)> {
        let from = self.sharing.hands.get(&giver).and_then(|id| self.dag.by_id(*id));
        let list = match giver {
            Giver::Prefix(id) => self.prefixes_counting_to(id),
            Giver::Job(j) => self.prefixes_with_data(&[j], from),
            Giver::Tenant(t) => {
                let jobs = self.jobs.iter().filter(|(_, job)| job.tenant == t && job.units > 0);
                let jobs: Vec<u32> = jobs.map(|(j, _)| j).collect();
                self.prefixes_with_data(&jobs, from)
            }
        };
        let found = self.coldest(&list);
        // The next search continues at the prefix of the found block, or behind the examined ones.
        let at = found.and_then(|(block, _)| self.prefix_of(block)).or(list.last().copied());
        match at {
            Some(n) => drop(self.sharing.hands.insert(giver, self.dag.nodes[n].id)),
            None => drop(self.sharing.hands.remove(&giver)),
        }
        found
    }

    fn prefix_of(&self, block: BlockId) -> Option<u32> {
        match self.pool.held(self.pool.at(block))? {
            crate::pool::SlotOwner::By(s) => Some(self.structures[s].prefix),
            _ => None,
        }
    }

    /// Prefixes of jobs that have structures, in order from one on, wrapping round; a bounded number of them.
    pub(crate) fn prefixes_with_data(&self, jobs: &[u32], from: Option<u32>) -> Vec<u32> {
        let of = |j: u32| chain(self.jobs[j].first_node, |n| self.dag.nodes[n].job_next);
        let first = from.and_then(|n| jobs.iter().position(|&j| j == self.dag.nodes[n].job));
        let (before, after) = jobs.split_at(first.unwrap_or(0));
        let begin = from.filter(|_| first.is_some()).into_iter();
        let begin = begin.flat_map(|n| chain(n, |n| self.dag.nodes[n].job_next));
        let skip = usize::from(first.is_some());
        let rest = after.iter().skip(skip).chain(before).chain(after.iter().take(skip));
        let all = begin.chain(rest.flat_map(|&j| of(j)));
        let with_data = |n: &u32| self.dag.nodes[*n].first_structure != NONE;
        all.take(LOWER_PREFIXES).filter(with_data).collect()
    }

    /// The prefixes of the structures that count to a prefix. A structure counts while its first blocks are
    /// allocated, before it has a record; it has nothing to give then.
    fn prefixes_counting_to(&self, id: PrefixId) -> Vec<u32> {
        let existing = |s| self.structures.get(s).map(|structure| structure.prefix);
        let mut list: Vec<u32> = self.quotas.counting_to(id).filter_map(existing).collect();
        list.sort_unstable();
        list.dedup();
        list
    }

    /// Refuses a weight over the limit.
    pub(crate) fn check_weight(weight: u32) -> Result<(), CatalogError> {
        let most = honeycomb_types::limits::SHARE_WEIGHT_MAX;
        if weight <= most {
            return Ok(());
        }
        let (what, given) = ("the weight of a share", weight.into());
        let allowed = "a weight is 1 to 1048576; 0 takes 1";
        Err(CatalogError::InvalidArgument { what, given, allowed })
    }
}
