//! The use of lower tiers by jobs over time, by class of tier, for their bills.
//!
//! A block counts where its data is: until it has arrived in another tier, in the tier that it leaves, so
//! that the tiers of a job add up to its holdings. The counts are updated here as blocks are allocated, freed
//! and moved between tiers; the bill collects them on demand.

use super::Pool;
use super::cores::SlotOwner;
use crate::bill::TierSpent;
use honeycomb_types::{BlockId, ServerId, TierClass, Time};

/// Memory, and the classes of tiers: indices in a bill, by their codes.
pub(crate) const PLACES: usize = TierClass::ALL.len() + 1;

/// A block in a lower tier: its job, its class of tier, its capacity in units, and its bytes of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LowerTierBlock {
    job: u32,
    place: usize,
    units: u64,
    bytes: u64,
}

/// The blocks of one job in lower tiers, and their use that is not yet in its bill.
#[derive(Clone, Debug, Default)]
struct Metered {
    since: Time,
    units: [u64; PLACES],
    bytes: [u64; PLACES],
    spent: [TierSpent; PLACES],
}

impl Metered {
    /// The use until now.
    fn until(&self, now: Time, unit: u64) -> [TierSpent; PLACES] {
        let ms = u128::from(now.since(self.since).as_millis() as u64);
        let mut spent = self.spent;
        for (place, spent) in spent.iter_mut().enumerate() {
            spent.held += u128::from(self.units[place] * unit) * ms;
            spent.used += u128::from(self.bytes[place]) * ms;
        }
        spent
    }
}

/// For every job that had a block in a lower tier, by its index.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    now: Time,
    /// Bytes of a unit.
    unit: u64,
    jobs: Vec<Option<Box<Metered>>>,
}

impl Meter {
    /// The time of the changes that follow.
    pub(crate) fn at(&mut self, now: Time, unit: u64) {
        (self.now, self.unit) = (now, unit);
    }

    fn of(&mut self, job: u32) -> &mut Metered {
        let (job, now, unit) = (job as usize, self.now, self.unit);
        if self.jobs.len() <= job {
            self.jobs.resize(job + 1, None);
        }
        let metered = self.jobs[job]
            .get_or_insert_with(|| Box::new(Metered { since: now, ..Metered::default() }));
        metered.spent = metered.until(now, unit);
        metered.since = now;
        metered
    }

    /// A block changed its tier, owner or size.
    pub(super) fn change(&mut self, before: Option<LowerTierBlock>, after: Option<LowerTierBlock>) {
        if before == after {
            return;
        }
        if let Some(LowerTierBlock { job, place, units, bytes }) = before {
            let metered = self.of(job);
            let counted = (metered.units[place], metered.bytes[place]);
            let covers = counted.0 >= units && counted.1 >= bytes;
            assert!(covers, "INV-42: {before:?} leaves a tier that counts {counted:?}");
            metered.units[place] -= units;
            metered.bytes[place] -= bytes;
        }
        if let Some(LowerTierBlock { job, place, units, bytes }) = after {
            let metered = self.of(job);
            metered.units[place] += units;
            metered.bytes[place] += bytes;
        }
    }

    /// Data of a job arrived in one tier of a server from another.
    fn came(&mut self, job: u32, place: usize, bytes: u64) {
        let came = &mut self.of(job).spent[place].came;
        *came = came.saturating_add(bytes);
    }

    /// The use until now that was not taken yet.
    pub(crate) fn spent(&self, job: u32, now: Time) -> [TierSpent; PLACES] {
        let metered = self.jobs.get(job as usize).and_then(Option::as_ref);
        metered.map_or_else(Default::default, |metered| metered.until(now, self.unit))
    }

    /// The same, which the caller adds to the bill.
    pub(crate) fn take(&mut self, job: u32, now: Time) -> [TierSpent; PLACES] {
        let Some(place) = self.jobs.get_mut(job as usize) else { return Default::default() };
        let Some(metered) = place else { return Default::default() };
        let spent = metered.until(now, self.unit);
        (metered.spent, metered.since) = (Default::default(), now);
        // Most jobs never have blocks in lower tiers again.
        if metered.units.iter().all(|units| *units == 0) {
            *place = None;
        }
        spent
    }

    pub(crate) fn bytes(&self) -> usize {
        let there = self.jobs.iter().flatten().count();
        self.jobs.capacity() * size_of::<Option<Box<Metered>>>() + there * size_of::<Metered>()
    }
}

impl Pool {
    /// The location of a block in a lower tier, and its job.
    pub(super) fn lying(&self, block: BlockId) -> Option<LowerTierBlock> {
        let server = self.servers.get(&block.server())?;
        let tier = self.place(block).tier;
        let spec = server.tiers.get(tier.below()?)?;
        let slot = self.slot(block)?;
        let SlotOwner::By(s) = slot.held() else { return None };
        let place = usize::from(spec.class.code());
        let (job, units) = (self.staying.job_of(s), slot.units.into());
        Some(LowerTierBlock { job, place, units, bytes: slot.bytes_used() })
    }

    /// Data of a block arrived in its present tier from another.
    pub(super) fn count_arrival(&mut self, block: BlockId) {
        let Some(slot) = self.slot(block) else { return };
        let (SlotOwner::By(s), bytes) = (slot.held(), slot.bytes_used()) else { return };
        let place = self.lying(block).map_or(0, |lying| lying.place);
        self.meter.came(self.staying.job_of(s), place, bytes);
    }

    /// Blocks of a server in lower tiers.
    pub(super) fn lying_on(&self, id: ServerId) -> Vec<LowerTierBlock> {
        self.blocks_of(id).filter_map(|block| self.lying(block)).collect()
    }

    /// Compares the counts with the blocks.
    pub(super) fn check_metered(&self) -> Result<(), String> {
        let mut left: Vec<(usize, [u64; PLACES], [u64; PLACES])> = Vec::new();
        for (job, metered) in self.meter.jobs.iter().enumerate() {
            left.extend(metered.iter().map(|metered| (job, metered.units, metered.bytes)));
        }
        for lying in self.servers.keys().flat_map(|&id| self.lying_on(id)) {
            let own = left.iter_mut().find(|(job, ..)| *job == lying.job as usize);
            let counted = own.filter(|(_, units, _)| units[lying.place] >= lying.units);
            let Some((_, units, bytes)) = counted else {
                return Err(format!("{lying:?} is not counted for its job's bill"));
            };
            units[lying.place] -= lying.units;
            bytes[lying.place] = bytes[lying.place].wrapping_sub(lying.bytes);
        }
        match left.iter().find(|(_, units, bytes)| units.iter().chain(bytes).any(|n| *n != 0)) {
            Some(left) => {
                Err(format!("counted in a lower tier for a bill, but not there: {left:?}"))
            }
            None => Ok(()),
        }
    }
}
