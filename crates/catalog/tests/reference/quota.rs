//! Quotas: holdings are added up again on every use.

use super::{Cluster, File, Job, Life, Outcome, Prefix};
use honeycomb_catalog::QuotaChange;
use honeycomb_types::{BlockAt, PrefixId};
use std::collections::BTreeSet;

impl Job {
    /// A prefix and its ancestors by first parents.
    fn line(&self, i: usize) -> Vec<&Prefix> {
        let mut line = vec![self.at(i)];
        while let Some(&parent) = line[line.len() - 1].parents.first() {
            line.push(self.at(parent));
        }
        line
    }

    /// The prefixes to which a structure created in a prefix now counts.
    pub fn counting(&self, i: usize) -> BTreeSet<PrefixId> {
        let line = self.line(i).into_iter();
        line.filter(|p| (p.bound, p.soft) != (0, 0) && p.life == Life::Live).map(|p| p.id).collect()
    }

    /// Adds a created structure.
    pub fn add(&mut self, file: File) {
        let counts = self.counting(file.prefix);
        self.files.push(File { counts, ..file });
    }

    /// Changes the quota of a prefix, and its soft one; returns both, and the prefix if blocks count to it.
    pub fn change_bound(
        &mut self,
        path: &str,
        change: QuotaChange,
    ) -> Outcome<(u64, u64, Option<PrefixId>)> {
        let i = self.live(path)?;
        let p = self.at(i);
        let most = change.max_blocks.unwrap_or(p.bound);
        let soft = change.soft_blocks.unwrap_or(p.soft);
        let id = p.id;
        self.set_bound(i, most, soft);
        Ok((most, soft, ((most, soft) != (0, 0)).then_some(id)))
    }

    /// Sets the quota of a prefix, and its soft one.
    pub fn set_bound(&mut self, i: usize, most: u64, soft: u64) {
        let p = self.prefixes[i].as_mut().unwrap();
        let (id, before) = (p.id, p.bound + p.soft);
        (p.bound, p.soft) = (most, soft);
        let most = most + soft;
        for f in 0..self.files.len() {
            let below = self.line(self.files[f].prefix).iter().any(|p| p.id == id);
            let counts = &mut self.files[f].counts;
            match (before, most) {
                (_, 0) => drop(counts.remove(&id)),
                (0, _) if below => drop(counts.insert(id)),
                _ => {}
            }
        }
    }

    /// Blocks that count to a prefix.
    pub fn held_below(&self, id: PrefixId) -> impl Iterator<Item = BlockAt> {
        let counting = self.files.iter().filter(move |file| file.counts.contains(&id));
        counting.flat_map(File::held)
    }
}

impl Cluster {
    /// Units that the jobs of a tenant hold.
    pub fn held_of(&self, tenant: &str) -> u64 {
        let jobs = self.jobs.iter().filter(|job| job.tenant.as_deref() == Some(tenant));
        self.units_of(jobs.flat_map(Job::held))
    }

    /// Whole blocks that count to a prefix, begun ones included.
    pub fn blocks_below(&self, j: usize, id: PrefixId) -> u64 {
        self.units_of(self.jobs[j].held_below(id)).div_ceil(self.whole())
    }

    /// Whether a structure that counts to these prefixes may have more units.
    pub fn within_quotas(&self, j: usize, counts: &BTreeSet<PrefixId>, units: u64) -> Outcome<()> {
        let job = &self.jobs[j];
        let tenant = job.tenant.as_deref();
        let of_tenant = tenant.and_then(|tenant| Some((self.tenants.get(tenant)?, tenant)));
        let prefixes = job.all().filter(|(_, p)| counts.contains(&p.id) && p.bound > 0);
        let bounds: Vec<(u64, u64)> = prefixes
            .filter(|(_, p)| p.life == Life::Live)
            .map(|(_, p)| (p.bound, self.units_of(job.held_below(p.id))))
            .chain([(job.quota, self.units_of(job.held()))])
            .chain(of_tenant.map(|(&most, tenant)| (most, self.held_of(tenant))))
            .filter(|(most, _)| *most != 0)
            .collect();
        // A block that exists twice because it leaves a server counts once.
        let copies = if self.drains.is_empty() { 0 } else { self.units_of(job.copies()) };
        let whole = self.whole();
        if bounds.iter().any(|(most, held)| held + units > most * whole + copies) {
            return Err("QuotaExceeded");
        }
        // The room within a quota is unknown before every server has reported its blocks.
        let unknown = !bounds.is_empty() && !self.away.is_empty();
        if unknown { self.no_block() } else { Ok(()) }
    }
}
