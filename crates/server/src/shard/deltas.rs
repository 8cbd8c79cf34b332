//! Changes of blocks in lower tiers that need no more than parts of them (ADR 0055).
//!
//! The structure keeps such changes in memory as deltas, and this module limits that memory: if the deltas
//! of all blocks take more than `ShardConfig::deltas`, those of the blocks with most of them are written as
//! runs behind the bytes of their blocks. A block with many deltas is read back into the write cache, where
//! they are merged with its bytes, and is written anew.

use super::BlockSlot;
use super::on_disk::OnDisk;
use super::reading::RETRY_BUFFERS_US;
use super::request::Request;
use super::tiers::{Doing, LowerReads, TierWork};
use crate::authorize::routed_here;
use crate::spill::{IoDone, IoWhat};
use honeycomb_block::Backing;
use honeycomb_structures::{Answer, Sealed, busy};
use honeycomb_types::limits::{RUN_CHUNK, TIER_CHUNK};
use honeycomb_types::{BlockAt, Bug, JobId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

/// A block is read back when its deltas have this part of its own bytes, and at least so many bytes.
const MERGE_FRACTION: usize = 3;
const MERGE_LEAST: usize = 4 * TIER_CHUNK;
/// Its writers wait for that when they have this part, and twice as many: each byte of the deltas takes room
/// on the disk, and is read and written again with the block.
const WAIT_FRACTION: usize = 2;
/// The pause after a run that could not be written.
const RUN_AGAIN: Duration = Duration::from_millis(50);
/// The pause of a writer whose block has too many deltas, in microseconds.
const RETRY_MERGE_US: u64 = 2000;

/// The deltas with which the writers of a block of this length wait.
pub(super) fn runs_most(length: usize) -> usize {
    (length / WAIT_FRACTION).max(2 * MERGE_LEAST)
}

/// The memory of the deltas of a shard.
#[derive(Debug, Default)]
pub(super) struct DeltaPool {
    memory: usize,
    /// The memory of each job that has any.
    by_job: BTreeMap<JobId, usize>,
    /// Bytes of the runs that are being written.
    leaving: usize,
    /// The blocks with deltas.
    blocks: BTreeSet<BlockAt>,
    /// After a run that could not be written, the time of the next attempt.
    rests_until: Time,
    /// The memory of runs that are being written.
    pub runs: Arc<AtomicUsize>,
}

impl DeltaPool {
    /// Counts the memory of a block's deltas.
    pub fn recount(&mut self, slot: &mut BlockSlot, memory: usize) {
        if slot.deltas == memory {
            return;
        }
        self.memory = self.memory - slot.deltas + memory;
        let job = self.by_job.entry(slot.owner.job).or_default();
        *job = *job - slot.deltas + memory;
        if *job == 0 {
            self.by_job.remove(&slot.owner.job);
        }
        match (slot.deltas, memory) {
            (0, _) => _ = self.blocks.insert(slot.owner.at),
            (_, 0) => _ = self.blocks.remove(&slot.owner.at),
            _ => {}
        }
        slot.deltas = memory;
    }

    /// The same, as the structure counts it.
    pub fn recount_of(&mut self, slot: &mut BlockSlot) {
        let memory = slot.deltas().memory;
        self.recount(slot, memory);
    }

    /// Whether a job may add so many bytes. Until they are written, deltas take up to twice the budget. If
    /// other jobs have deltas, a job with more than the budget waits: so much is being written.
    fn has_room(&self, job: JobId, bytes: usize, budget: usize) -> bool {
        let own = self.by_job.get(&job).copied().unwrap_or(0);
        let is_alone = own == self.memory;
        self.memory + bytes <= 2 * budget && (is_alone || own <= budget)
    }
}

/// The outcome of a change.
pub(super) enum ChangedBelow {
    /// It needs the whole block in memory.
    NotTaken,
    Done(Answer),
    /// Parts of the block are being read for it.
    Waits,
}

impl TierWork<'_> {
    /// Makes a change of a block in a lower tier a delta, if it can be one.
    pub(super) fn change_below(
        &mut self,
        (now, clock_ms): (Time, u64),
        index: usize,
        request: &Request<'_>,
        payload: &[u8],
    ) -> ChangedBelow {
        let Request { header, args, attributes, .. } = *request;
        let budget = self.config.deltas;
        let slot = self.blocks.found_mut(index);
        if payload.len() >= budget || !slot.residency.takes_deltas() {
            return ChangedBelow::NotTaken;
        }
        let length = slot.residency.copy().map_or(0, OnDisk::length);
        let at = slot.owner.at;
        let takes = |slot: &mut BlockSlot| {
            slot.lower_tier_changes().is_some_and(|changes| changes.takes(header.op, args, payload))
        };
        if !takes(slot) {
            return ChangedBelow::NotTaken;
        }
        if let Err(refusal) = routed_here(&slot.owner, header, attributes.route, args) {
            return ChangedBelow::Done(refusal);
        }
        self.agenda.touch(index, &mut slot.attention);
        slot.pace.wrote(now, payload.len());
        if !self.tiers.deltas.has_room(slot.owner.job, payload.len(), budget) {
            self.reads().write_runs(now);
            self.give_places(now);
            return ChangedBelow::Done(busy(RETRY_BUFFERS_US));
        }
        let all = slot.deltas().all;
        if all >= (length / MERGE_FRACTION).max(MERGE_LEAST) && slot.residency.takes_runs() {
            self.tiers.write_cache.wants(at, true);
            self.give_places(now);
        }
        if all >= runs_most(length) {
            return ChangedBelow::Done(busy(RETRY_MERGE_US));
        }
        let parts = self.reads().parts();
        let slot = self.blocks.found_mut(index);
        let Some(changes) = slot.lower_tier_changes() else { return ChangedBelow::NotTaken };
        let Some(answer) = changes.change(&parts, header.op, args, payload) else {
            return ChangedBelow::NotTaken;
        };
        if !parts.is_lacking() {
            self.tiers.deltas.recount_of(slot);
            // The block may need a larger capacity.
            self.agenda.inspect_later(index, &mut slot.attention);
            self.reads().write_runs(now);
            self.give_places(now);
            return ChangedBelow::Done(answer);
        }
        match self.reads().change_fetched((now, clock_ms), index, request, payload) {
            Some(answer) => ChangedBelow::Done(answer),
            None => ChangedBelow::Waits,
        }
    }
}

impl LowerReads<'_> {
    /// If the deltas take more memory than they may, writes those of some blocks as runs.
    pub fn write_runs(&mut self, now: Time) {
        let (budget, pool) = (self.config.deltas, &self.tiers.deltas);
        let over = (pool.memory.saturating_sub(pool.leaving)).saturating_sub(budget);
        if over == 0 || now < pool.rests_until {
            return;
        }
        let memory_of = |at: &BlockAt| Some((self.blocks.get_at(*at)?.deltas, *at));
        let mut blocks: Vec<(usize, BlockAt)> = pool.blocks.iter().filter_map(memory_of).collect();
        // The most first.
        blocks.sort_unstable_by(|a, b| b.cmp(a));
        let mut left = over + budget / 4;
        for (memory, at) in blocks {
            if left == 0 {
                break;
            }
            let Some(index) = self.blocks.index(at.block) else { continue };
            if self.write_run(index) || self.merges(index) {
                left = left.saturating_sub(memory);
            }
        }
    }

    /// Writes the fresh deltas of a block as a run. False if that is impossible now, or frees little memory.
    fn write_run(&mut self, index: usize) -> bool {
        let size = self.config.block_size;
        let slot = self.blocks.get_mut(index).filter(|slot| slot.residency.takes_runs());
        let Some(slot) = slot else { return false };
        let (at, bytes) = (slot.owner.at, slot.deltas());
        let disk = slot.residency.copy().expect("a block without a copy takes no runs");
        let ((from, most), tier, disk_slot) = (disk.room_for_run(size), disk.tier, disk.slot);
        // The rest of the memory is that of places of records in runs.
        let frees = 2 * bytes.fresh >= bytes.memory;
        let Some(changes) = slot.lower_tier_changes().filter(|_| frees) else { return false };
        let Some(bytes) = changes.seal(from, most) else { return false };
        let length = bytes.len();
        let pages = Backing::counted(length, &self.tiers.deltas.runs, &self.config.reclaimer);
        let Ok(mut pages) = pages else {
            changes.sealed(Sealed::Failed);
            return false;
        };
        pages.slice_mut(0..length).copy_from_slice(&bytes);
        self.tiers.deltas.recount_of(slot);
        self.tiers.deltas.leaving += length;
        let offset = disk_slot as u64 * size as u64 + from as u64;
        let bytes = pages.pin(0..length);
        let what = IoWhat::Write { at: offset, bytes, chunk: RUN_CHUNK };
        self.tiers.ask(tier, disk_slot, Doing::WriteRun { at, from, length }, what);
        true
    }

    /// Requests that a block be read back for its deltas. False if its deltas are being written or merged.
    fn merges(&mut self, index: usize) -> bool {
        let slot = self.blocks.get_mut(index).filter(|slot| slot.residency.takes_runs());
        let Some(slot) = slot else { return false };
        let at = slot.owner.at;
        if slot.deltas().leaving {
            return false;
        }
        self.tiers.write_cache.wants(at, true);
        self.tiers.look_again = Some(Time::ZERO);
        true
    }

    /// Stores the deltas of a block that was read back in its memory.
    pub fn merge_deltas(&mut self, index: usize, runs: Option<&Backing>) {
        let slot = self.blocks.found_mut(index);
        if slot.deltas == 0 {
            return;
        }
        let from = slot.residency.copy().map_or(0, OnDisk::length);
        let below = runs.map_or(&[][..], |runs| runs.slice(0..runs.len()));
        let BlockSlot { structure, backing, residency, .. } = slot;
        let changes = structure.content_mut().and_then(|content| content.lower_tier_changes());
        changes.expect("it has deltas").merge(backing, below, from);
        if let Some(disk) = residency.copy_mut().filter(|disk| disk.runs().is_some()) {
            // The next run would be written over these while they may still be read: the block is written to
            // another slot, whether or not its deltas have changed it.
            disk.forget_runs();
            let _ = backing.slice_mut(0..1);
            self.tiers.counts.merged += 1;
        }
        self.tiers.deltas.recount_of(slot);
        let at = slot.owner.at;
        self.agenda.changed(at);
    }

    /// Handles the outcome of writing a run.
    pub fn run_written(
        &mut self,
        now: Time,
        (at, disk_slot): (BlockAt, u32),
        from: usize,
        length: usize,
        done: IoDone,
    ) {
        self.tiers.deltas.leaving -= length;
        let Some(index) = self.blocks.at_slot(at, disk_slot) else { return };
        let Some(slot) = self.blocks.get_mut(index) else { return };
        let outcome = match done {
            IoDone::Written(sums) => {
                let disk = slot.residency.copy_mut().expect("it has this slot");
                disk.add_run(from, length, &sums);
                self.tiers.counts.written += length as u64;
                self.tiers.counts.runs.0 += 1;
                Sealed::Written
            }
            _ if Bug::FailedRunCounts.active() => Sealed::Written,
            _ => {
                self.tiers.counts.runs.1 += 1;
                self.tiers.deltas.rests_until = now + RUN_AGAIN;
                Sealed::Failed
            }
        };
        if let Some(changes) = slot.lower_tier_changes() {
            changes.sealed(outcome);
        }
        self.tiers.deltas.recount_of(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_leaves_others_room_for_deltas() {
        let (hog, other) = (JobId(1), JobId(2));
        let pool = |by_job: &[(JobId, usize)]| DeltaPool {
            memory: by_job.iter().map(|(_, memory)| memory).sum(),
            by_job: by_job.iter().copied().collect(),
            ..DeltaPool::default()
        };
        assert!(pool(&[]).has_room(hog, 100, 100));
        assert!(pool(&[(hog, 150)]).has_room(hog, 50, 100), "alone it has all");
        assert!(!pool(&[(hog, 150)]).has_room(hog, 51, 100));
        assert!(!pool(&[(hog, 101), (other, 1)]).has_room(hog, 2, 100), "beside another one half");
        assert!(pool(&[(hog, 100), (other, 1)]).has_room(hog, 2, 100), "nothing would be written");
        assert!(pool(&[(hog, 101), (other, 1)]).has_room(other, 98, 100));
        assert!(pool(&[(hog, 101)]).has_room(other, 99, 100), "the first bytes of another one");
    }
}
