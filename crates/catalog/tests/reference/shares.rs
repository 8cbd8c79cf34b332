//! The holdings of memory and the entitlements: checks the catalog's shares before a command that requests
//! blocks, and the demotions against them (INV-43).

use super::{Cluster, File, Verdict, require};
use honeycomb_catalog::ShareInfo;
use honeycomb_types::{BlockAt, PolicyKind};

/// The shares that the catalog last reported, with the request that they were computed for.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    pub policy: PolicyKind,
    told: Vec<ShareInfo>,
}

/// Whether one share is greater than another relative to their weights: whether `a / b > c / d`.
fn greater((a, b): (u64, u64), (c, d): (u64, u64)) -> bool {
    u128::from(a) * u128::from(d) > u128::from(c) * u128::from(b)
}

impl Cluster {
    /// The holder of a job's blocks: whether it is a tenant, and the name.
    fn holder(&self, j: usize) -> (bool, &str) {
        let job = &self.jobs[j];
        job.tenant.as_deref().map_or((false, &job.name), |tenant| (true, tenant))
    }

    /// Units in memory that are not being demoted, of files for which `counts` holds.
    fn frames(&self, counts: impl Fn(usize, &File) -> bool) -> u64 {
        let jobs = self.jobs.iter().enumerate();
        let files = jobs.flat_map(|(j, job)| job.files.iter().map(move |file| (j, file)));
        let held = files.filter(|(j, file)| counts(*j, file)).flat_map(|(_, file)| file.held());
        self.units_of(held.filter(|at| !self.tiers.place(*at).1.is_below()))
    }

    /// Checks the catalog's shares when a job is about to request this many units, and the amount of memory.
    pub fn look(
        &mut self,
        (told, memory): (Vec<ShareInfo>, u64),
        asks: Option<(usize, u64)>,
    ) -> Verdict {
        let most = self.room_of_all();
        require(memory <= most, || format!("{memory} of {most} blocks are shared out"))?;
        for (j, job) in self.jobs.iter().enumerate() {
            let holder = self.holder(j);
            let found = told.iter().find(|info| (info.tenant, &*info.name) == holder);
            let Some(ShareInfo { share, .. }) = found else {
                // An ended holder is no longer listed.
                require(job.files.is_empty(), || format!("{holder:?} has no share"))?;
                continue;
            };
            let held = self.frames(|other, _| self.holder(other) == holder);
            let asked = asks.map_or(0, |(asks, n)| if self.holder(asks) == holder { n } else { 0 });
            let (weight, soft) = match holder {
                (true, name) => self.tenant_shares.get(name).copied().unwrap_or((1, 0)),
                (false, _) => (job.weight.max(1), job.soft),
            };
            let wants = held + asked;
            let wants = if soft > 0 { wants.min(soft * self.whole()) } else { wants };
            let (is, due) = ((share.held, share.wants, share.weight), (held, wants, weight));
            require(is == due, || format!("{holder:?} has and wants {is:?}, and should {due:?}"))?;
        }
        let wanted: u64 = told.iter().map(|info| info.share.wants).sum();
        let entitled: u64 = told.iter().map(|info| info.share.entitled).sum();
        let weights: u64 = told.iter().map(|info| info.share.weight).sum();
        let fair = self.shares.policy.is_fair();
        require(!fair || entitled == memory.min(wanted), || {
            format!("{entitled} of {memory} blocks are dealt out, and {wanted} wanted")
        })?;
        for ShareInfo { share, name, .. } in &told {
            let own = memory * share.weight / weights;
            let right = match self.shares.policy {
                PolicyKind::FirstCome => share.entitled == share.held,
                // No holder has more than one with unmet demand will have with another block.
                PolicyKind::MaxMin => {
                    share.entitled == share.wants
                        || told.iter().all(|info| {
                            let (other, less) = (info.share, (share.entitled + 1, share.weight));
                            !greater((other.entitled.saturating_sub(1), other.weight), less)
                        })
                }
                PolicyKind::Karma => share.entitled >= share.wants.min(own / 2),
            };
            require(right && share.entitled <= share.wants.max(share.held), || {
                format!("{name} is entitled to {share:?} of {told:?}, {memory} blocks")
            })?;
        }
        self.shares.told = told;
        Ok(())
    }

    /// Units that would be available to ordinary allocations if none were out.
    fn room_of_all(&self) -> u64 {
        let there = self.servers.iter().filter(|(id, _)| !self.away.contains(id));
        let there = there.filter(|(id, _)| !self.drains.contains_key(id));
        there.map(|(id, _)| self.lent_less_reserve(*id)).sum()
    }

    /// Checks the demotion of a block for the request of its own or another prefix (INV-43).
    pub(super) fn gives(
        &mut self,
        at: BlockAt,
        (j, prefix): (usize, usize),
        asker: Option<(usize, usize)>,
    ) -> Verdict {
        let (beyond, units) = (self.is_beyond(at, j), self.units(at));
        let holder = self.holder(j);
        let (tenant, name) = (holder.0, holder.1.to_owned());
        let own = asker.is_some_and(|(asks, _)| self.holder(asks) == holder);
        let fair = self.shares.policy.is_fair();
        let mut told = self.shares.told.iter_mut();
        let share = told.find(|info| (info.tenant, &*info.name) == (tenant, &*name));
        let above = share.is_some_and(|info| {
            let above = info.share.held > info.share.entitled;
            info.share.held = info.share.held.saturating_sub(units);
            above
        });
        let may = match fair {
            _ if beyond => true,
            true => own || above,
            false => asker == Some((j, prefix)),
        };
        require(may && asker.is_some(), || {
            format!("{at:?} of {name} is demoted for {asker:?}: {:?} (INV-43)", self.shares)
        })
    }

    /// Whether a block belongs to an owner with more in memory than a soft quota.
    fn is_beyond(&self, at: BlockAt, j: usize) -> bool {
        let job = &self.jobs[j];
        let Some(file) = job.files.iter().find(|file| file.held().contains(&at)) else {
            return false;
        };
        let whole = self.whole();
        let prefixes = job.all().filter(|(_, p)| p.soft > 0 && file.counts.contains(&p.id));
        let mut over_prefix = prefixes.map(|(_, p)| {
            self.frames(|other, file| other == j && file.counts.contains(&p.id)) > p.soft * whole
        });
        let over_job = job.soft > 0 && self.frames(|other, _| other == j) > job.soft * whole;
        let of_tenant = job.tenant.as_ref().and_then(|name| self.tenant_shares.get(name));
        let over_tenant = of_tenant.is_some_and(|(_, soft)| {
            *soft > 0
                && self.frames(|other, _| self.jobs[other].tenant == job.tenant) > *soft * whole
        });
        over_prefix.any(|over| over) || over_job || over_tenant
    }

    /// Whether a job would be within its share with this many units more.
    pub fn is_within_share(&self, j: usize, asked: u64) -> bool {
        let holder = self.holder(j);
        let own = self.shares.told.iter().find(|info| (info.tenant, &*info.name) == holder);
        own.is_some_and(|info| info.share.held + asked <= info.share.entitled)
    }

    /// Whether a job that was refused memory for this request waits for it: it would be within its share, and
    /// blocks are being demoted.
    pub fn waits(&self, j: usize, (blocks, units): (u64, u64), lowering: bool) -> bool {
        let within = self.is_within_share(j, blocks * units);
        let short = self.fits(units, false) < blocks;
        self.shares.policy.is_fair() && short && within && lowering
    }

    /// No request is pending.
    pub fn asks_nothing(&mut self) {
        self.shares.told.clear();
    }
}
