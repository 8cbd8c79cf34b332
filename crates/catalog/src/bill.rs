//! The bills of jobs: exact block use over time, and the part of it that held data.
//!
//! A job is charged for room that others cannot use: whole blocks, from the command that allocates a block to
//! the command that takes it back, by their location, in memory or in a class of lower tiers. The bytes of
//! data in them are counted separately, as servers report them. Both are sums of bytes times milliseconds;
//! pricing is not the catalog's task. Data that moved from one tier to another is counted in bytes when it
//! arrives.
//!
//! A bill changes with time and not only by commands, so the log cannot hold its current value. It is logged
//! every `BILL_EVERY` while reports arrive, and when its job ends: a restarted controller has lost at most
//! the use of that period, and never adds use for its downtime. The last `BILLS_KEPT` bills of ended jobs are
//! retained.

use crate::durable::Dirty;
use crate::pool::PLACES;
use crate::{Actor, Catalog, CatalogError, Reply};
use honeycomb_types::limits::{BILL_EVERY, BILLS_KEPT};
use honeycomb_types::{JobId, Time};
use std::collections::VecDeque;

/// Use of one place that can hold blocks. The first two fields are bytes times milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierSpent {
    /// Whole blocks.
    pub held: u128,
    /// Data in them.
    pub used: u128,
    /// Bytes of data that arrived there from other tiers of the same server.
    pub came: u64,
}

/// The total use of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// The use by place: memory first, then the classes of tiers by their codes.
    pub tiers: [TierSpent; PLACES],
    /// Most bytes of blocks at any one time, over all places.
    pub peak: u64,
    /// Bytes sent to other servers by splits and merges.
    pub moved: u64,
}

/// A job's account.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bill {
    /// The time up to which use is counted.
    since: Time,
    pub(crate) spent: Spent,
    /// The value as last logged.
    pub(crate) written: Spent,
}

impl Bill {
    /// The bill of a new job, or of a recovered one with its logged value.
    pub(crate) fn new(spent: Spent, now: Time) -> Bill {
        Bill { since: now, spent, written: spent }
    }

    /// Adds bytes that moved from one server to another.
    pub(crate) fn moved(&mut self, bytes: u64) {
        self.spent.moved = self.spent.moved.saturating_add(bytes);
    }

    /// Adds the use until now: the total of blocks and data, and the part of it in lower tiers.
    fn accrue(&mut self, now: Time, (held, used): (u64, u64), lower: [TierSpent; PLACES]) {
        let ms = u128::from(now.as_millis().saturating_sub(self.since.as_millis()));
        let (mut of_held, mut of_used) = (u128::from(held) * ms, u128::from(used) * ms);
        for (own, lower) in self.spent.tiers.iter_mut().zip(lower) {
            own.held += lower.held;
            own.used += lower.used;
            own.came = own.came.saturating_add(lower.came);
            // The memory of the job is the total without the lower tiers.
            (of_held, of_used) =
                (of_held.saturating_sub(lower.held), of_used.saturating_sub(lower.used));
        }
        self.spent.tiers[0].held += of_held;
        self.spent.tiers[0].used += of_used;
        self.spent.peak = self.spent.peak.max(held);
        self.since = self.since.max(now);
    }
}

/// A job's bill, as reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillInfo {
    /// The job.
    pub job: JobId,
    /// The job's name, after the name of its tenant if it has one.
    pub name: Box<str>,
    /// The time for which the job has been, or was, registered.
    pub age_ms: u64,
    /// Whether the job is no longer registered.
    pub ended: bool,
    /// The use.
    pub spent: Spent,
}

/// Bills of ended jobs, and the time of the next logging of the others.
#[derive(Debug, Default)]
pub(crate) struct Bills {
    pub(crate) ended: VecDeque<BillInfo>,
    /// The number of the latest ended bills that are not logged.
    unwritten: usize,
    /// Jobs whose bill must be logged with its value in `written`.
    pub(crate) dirty: Dirty,
    due: Time,
}

impl Bills {
    /// Records the final bill of a job.
    pub(crate) fn end(&mut self, bill: BillInfo) {
        if self.ended.len() >= BILLS_KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back(bill);
        if self.dirty.on() {
            self.unwritten = (self.unwritten + 1).min(self.ended.len());
        }
    }

    /// The bills of jobs that ended since the last call.
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
    /// Counts the capacity of a job's blocks until now. Must be called before they change.
    pub(crate) fn accrue(&mut self, j: u32) {
        let (now, unit) = (self.now, self.units().bytes());
        let lower = self.pool.meter.take(j, now);
        let job = &mut self.jobs[j];
        job.bill.accrue(now, (job.units * unit, job.bytes_used), lower);
    }

    /// A job's bill at the present time.
    fn bill_info(&self, j: u32) -> BillInfo {
        let job = &self.jobs[j];
        let mut bill = job.bill;
        let lower = self.pool.meter.spent(j, self.now);
        bill.accrue(self.now, (job.units * self.units().bytes(), job.bytes_used), lower);
        // The age as the bill counts it: no job is charged for longer than it was registered.
        let age_ms = self.now.as_millis().saturating_sub(job.registered.as_millis());
        BillInfo { job: job.id, name: job.name.clone(), age_ms, ended: false, spent: bill.spent }
    }

    /// Closes the bill of a job that ends.
    pub(crate) fn close_bill(&mut self, j: u32) {
        self.accrue(j);
        let bill = BillInfo { ended: true, ..self.bill_info(j) };
        self.bills.end(bill);
    }

    /// Marks the bills of all jobs to be logged, when it is time.
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

    /// The bill of one job, or all bills that the actor may see, those of ended jobs first.
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
