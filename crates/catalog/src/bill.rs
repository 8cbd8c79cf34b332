//! What jobs have used: blocks over time, exactly, and what of them held data.
//!
//! A job is charged for what others cannot have: whole blocks, from the command that gives one to the
//! command that takes it back, by where they lie: in memory, or in a class of tiers below it. How much of
//! them was data is counted beside it, as servers report it. Both are sums of bytes times milliseconds; what
//! that costs is not for the catalog to say. What went from one tier to another is counted as bytes of data,
//! when it has come there.
//!
//! A bill changes with time and not only by commands, so that it cannot be on the log at every moment. It
//! is written every `BILL_EVERY` while reports come, and when its job ends: a controller that is started
//! again has lost at most that much of it, and never adds any for the time when there was none. Bills of
//! ended jobs are kept, the last `BILLS_KEPT` of them.

use crate::durable::Dirty;
use crate::pool::PLACES;
use crate::{Actor, Catalog, CatalogError, Reply};
use honeycomb_types::limits::{BILL_EVERY, BILLS_KEPT};
use honeycomb_types::{JobId, Time};
use std::collections::VecDeque;

/// What was used of one place where blocks can be. The first two are bytes times milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierSpent {
    /// Of whole blocks.
    pub held: u128,
    /// Of data in them.
    pub used: u128,
    /// Bytes of data that came there from other tiers of the same server.
    pub came: u64,
}

/// What was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Memory first, then the classes of tiers by their codes.
    pub tiers: [TierSpent; PLACES],
    /// Most bytes of blocks at a time, wherever they were.
    pub peak: u64,
    /// Bytes that went to other servers when blocks split and merged.
    pub moved: u64,
}

/// A job's account.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bill {
    /// Up to when it is counted.
    since: Time,
    pub(crate) spent: Spent,
    /// As it was written.
    pub(crate) written: Spent,
}

impl Bill {
    /// The bill of a job that begins, or is recovered with what was written of it.
    pub(crate) fn new(spent: Spent, now: Time) -> Bill {
        Bill { since: now, spent, written: spent }
    }

    /// So much went from one server to another.
    pub(crate) fn moved(&mut self, bytes: u64) {
        self.spent.moved = self.spent.moved.saturating_add(bytes);
    }

    /// So much was held and used until now, and of it so much below memory.
    fn accrue(&mut self, now: Time, (held, used): (u64, u64), lower: [TierSpent; PLACES]) {
        let ms = u128::from(now.as_millis().saturating_sub(self.since.as_millis()));
        let (mut of_held, mut of_used) = (u128::from(held) * ms, u128::from(used) * ms);
        for (own, lower) in self.spent.tiers.iter_mut().zip(lower) {
            own.held += lower.held;
            own.used += lower.used;
            own.came = own.came.saturating_add(lower.came);
            // What the job has is what it has in all places.
            (of_held, of_used) =
                (of_held.saturating_sub(lower.held), of_used.saturating_sub(lower.used));
        }
        self.spent.tiers[0].held += of_held;
        self.spent.tiers[0].used += of_used;
        self.spent.peak = self.spent.peak.max(held);
        self.since = self.since.max(now);
    }
}

/// What a job has used, for whoever asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillInfo {
    /// The job.
    pub job: JobId,
    /// Its name, with that of its tenant before it.
    pub name: Box<str>,
    /// How long it has been registered, or was.
    pub age_ms: u64,
    /// It is registered no more.
    pub ended: bool,
    /// What it has used.
    pub spent: Spent,
}

/// Bills of jobs that ended, and when those of others are written.
#[derive(Debug, Default)]
pub(crate) struct Bills {
    pub(crate) ended: VecDeque<BillInfo>,
    /// Of these, the last so many are not written yet.
    unwritten: usize,
    /// Jobs whose bill is to be written as it is in `written`.
    pub(crate) dirty: Dirty,
    due: Time,
}

impl Bills {
    /// A job has ended.
    pub(crate) fn end(&mut self, bill: BillInfo) {
        if self.ended.len() >= BILLS_KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back(bill);
        if self.dirty.on() {
            self.unwritten = (self.unwritten + 1).min(self.ended.len());
        }
    }

    /// Those that ended since this was asked last.
    pub(crate) fn newly_ended(&mut self) -> Vec<BillInfo> {
        let from = self.ended.len() - std::mem::take(&mut self.unwritten);
        self.ended.range(from..).cloned().collect()
    }

    pub(crate) fn bytes(&self) -> usize {
        let names: usize = self.ended.iter().map(|bill| bill.name.len()).sum();
        names + self.ended.capacity() * size_of::<BillInfo>()
    }
}

impl Catalog {
    /// Counts what a job has held until now. To be called before that changes.
    pub(crate) fn accrue(&mut self, j: u32) {
        let (now, size) = (self.now, self.block_size);
        let lower = self.pool.meter.take(j, now);
        let job = &mut self.jobs[j];
        job.bill.accrue(now, (job.blocks * size, job.bytes_used), lower);
    }

    /// A job's bill as of now.
    fn bill_info(&self, j: u32) -> BillInfo {
        let job = &self.jobs[j];
        let mut bill = job.bill;
        let lower = self.pool.meter.spent(j, self.now);
        bill.accrue(self.now, (job.blocks * self.block_size, job.bytes_used), lower);
        // As the bill counts: no job is charged for longer than it was there.
        let age_ms = self.now.as_millis().saturating_sub(job.registered.as_millis());
        BillInfo { job: job.id, name: job.name.clone(), age_ms, ended: false, spent: bill.spent }
    }

    /// A job ends: its bill is closed.
    pub(crate) fn close_bill(&mut self, j: u32) {
        self.accrue(j);
        let bill = BillInfo { ended: true, ..self.bill_info(j) };
        self.bills.end(bill);
    }

    /// Has the bills of all jobs written, when it is time to.
    pub(crate) fn write_bills(&mut self) {
        if !self.bills.dirty.on() || self.now < self.bills.due {
            return;
        }
        self.bills.due = self.now + BILL_EVERY;
        let jobs: Vec<u32> = self.jobs.iter().map(|(j, _)| j).collect();
        for j in jobs {
            self.accrue(j);
            let bill = &mut self.jobs[j].bill;
            if bill.written != bill.spent {
                bill.written = bill.spent;
                self.bills.dirty.mark(j);
            }
        }
    }

    /// What one job has used, or all that the actor may see: those that ended first.
    pub(crate) fn job_bills(
        &self,
        actor: Actor,
        job: Option<JobId>,
    ) -> Result<Reply, CatalogError> {
        let bills = match job.or(actor.job) {
            Some(job) => {
                let ended = self.bills.ended.iter().find(|bill| bill.job == job);
                match ended.filter(|_| actor.job.is_none()) {
                    Some(bill) => vec![bill.clone()],
                    None => vec![self.bill_info(self.admit(actor, job)?)],
                }
            }
            None => {
                let live = self.jobs.iter().map(|(j, _)| self.bill_info(j));
                self.bills.ended.iter().cloned().chain(live).collect()
            }
        };
        Ok(Reply::Bills(bills))
    }
}
