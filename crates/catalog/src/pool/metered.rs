//! What jobs have below memory, over time: by class of tier, for their bills.
//!
//! A block is counted where it lies: until it has come to another tier in the one that it leaves, so that a
//! job's tiers together are what it holds. Counted as blocks come, go and change their places, which is
//! here; the bill takes what was counted when it is looked at.

use super::Pool;
use super::cores::Held;
use crate::bill::TierSpent;
use honeycomb_types::{BlockId, ServerId, TierClass, Time};

/// Memory, and the classes of tiers: places in a bill, by their codes.
pub(crate) const PLACES: usize = TierClass::ALL.len() + 1;

/// A block that lies below memory: for which job, in which class, and what is data in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lying {
    job: u32,
    place: usize,
    bytes: u64,
}

/// What one job has below memory, and what was counted of it that its bill has not.
#[derive(Clone, Debug, Default)]
struct Metered {
    since: Time,
    blocks: [u64; PLACES],
    bytes: [u64; PLACES],
    spent: [TierSpent; PLACES],
}

impl Metered {
    /// What was spent until now.
    fn until(&self, now: Time, block_size: u64) -> [TierSpent; PLACES] {
        let ms = u128::from(now.since(self.since).as_millis() as u64);
        let mut spent = self.spent;
        for (place, spent) in spent.iter_mut().enumerate() {
            spent.held += u128::from(self.blocks[place] * block_size) * ms;
            spent.used += u128::from(self.bytes[place]) * ms;
        }
        spent
    }
}

/// Of every job that had a block below memory, by its place.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    now: Time,
    block_size: u64,
    jobs: Vec<Option<Box<Metered>>>,
}

impl Meter {
    /// What changes from here on changes at this time.
    pub(crate) fn at(&mut self, now: Time, block_size: u64) {
        (self.now, self.block_size) = (now, block_size);
    }

    fn of(&mut self, job: u32) -> &mut Metered {
        let (job, now, block_size) = (job as usize, self.now, self.block_size);
        if self.jobs.len() <= job {
            self.jobs.resize(job + 1, None);
        }
        let metered = self.jobs[job]
            .get_or_insert_with(|| Box::new(Metered { since: now, ..Metered::default() }));
        metered.spent = metered.until(now, block_size);
        metered.since = now;
        metered
    }

    /// A block that lay there lies here now.
    pub(super) fn change(&mut self, before: Option<Lying>, after: Option<Lying>) {
        if before == after {
            return;
        }
        if let Some(Lying { job, place, bytes }) = before {
            let metered = self.of(job);
            metered.blocks[place] -= 1;
            metered.bytes[place] -= bytes;
        }
        if let Some(Lying { job, place, bytes }) = after {
            let metered = self.of(job);
            metered.blocks[place] += 1;
            metered.bytes[place] += bytes;
        }
    }

    /// Data of a job came from one tier of a server to another.
    fn came(&mut self, job: u32, place: usize, bytes: u64) {
        let came = &mut self.of(job).spent[place].came;
        *came = came.saturating_add(bytes);
    }

    /// What was counted until now and was not taken yet.
    pub(crate) fn spent(&self, job: u32, now: Time) -> [TierSpent; PLACES] {
        let metered = self.jobs.get(job as usize).and_then(Option::as_ref);
        metered.map_or_else(Default::default, |metered| metered.until(now, self.block_size))
    }

    /// The same, which is the bill's from now on.
    pub(crate) fn take(&mut self, job: u32, now: Time) -> [TierSpent; PLACES] {
        let Some(place) = self.jobs.get_mut(job as usize) else { return Default::default() };
        let Some(metered) = place else { return Default::default() };
        let spent = metered.until(now, self.block_size);
        (metered.spent, metered.since) = (Default::default(), now);
        // Most jobs never come back to it.
        if metered.blocks.iter().all(|blocks| *blocks == 0) {
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
    /// Where a block lies, if that is below memory, and for whom.
    pub(super) fn lying(&self, block: BlockId) -> Option<Lying> {
        let server = self.servers.get(&block.server())?;
        let tier = self.place(block).tier;
        let spec = server.tiers.get(tier.below()?)?;
        let slot = self.slot(block)?;
        let Held::By(s) = slot.held() else { return None };
        let place = usize::from(spec.class.code());
        Some(Lying { job: self.staying.job_of(s), place, bytes: slot.bytes_used() })
    }

    /// Data of a block came to the tier where it is now, from another.
    pub(super) fn count_arrival(&mut self, block: BlockId) {
        let Some(slot) = self.slot(block) else { return };
        let (Held::By(s), bytes) = (slot.held(), slot.bytes_used()) else { return };
        let place = self.lying(block).map_or(0, |lying| lying.place);
        self.meter.came(self.staying.job_of(s), place, bytes);
    }

    /// Blocks of a server that lie below memory.
    pub(super) fn lying_on(&self, id: ServerId) -> Vec<Lying> {
        self.blocks_of(id).filter_map(|block| self.lying(block)).collect()
    }

    /// Compares what is counted with the blocks that there are.
    pub(super) fn check_metered(&self) -> Result<(), String> {
        let mut left: Vec<(usize, [u64; PLACES], [u64; PLACES])> = Vec::new();
        for (job, metered) in self.meter.jobs.iter().enumerate() {
            left.extend(metered.iter().map(|metered| (job, metered.blocks, metered.bytes)));
        }
        for lying in self.servers.keys().flat_map(|&id| self.lying_on(id)) {
            let own = left.iter_mut().find(|(job, ..)| *job == lying.job as usize);
            let Some((_, blocks, bytes)) = own.filter(|(_, b, _)| b[lying.place] > 0) else {
                return Err(format!("{lying:?} is not counted for its job's bill"));
            };
            blocks[lying.place] -= 1;
            bytes[lying.place] = bytes[lying.place].wrapping_sub(lying.bytes);
        }
        match left.iter().find(|(_, blocks, bytes)| blocks.iter().chain(bytes).any(|n| *n != 0)) {
            Some(left) => Err(format!("counted below memory for a bill, and not there: {left:?}")),
            None => Ok(()),
        }
    }
}
