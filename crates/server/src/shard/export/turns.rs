//! The turns of moves: the blocks of one job that are to be divided or merged send their content a few at a
//! time, and the fullest first.
//!
//! A store that is filled evenly has many splits due at once. All together they end late and at the same
//! time, and a writer that meets a full block waits for all of them. In turns, it waits for few.

use super::Exports;
use crate::shard::blocks::Blocks;
use honeycomb_types::limits::MOVING_BYTES_MAX;
use honeycomb_types::{BlockAt, Bug, JobId, Time};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// The next one is the fullest of this many that have waited longest.
const COMPARED: usize = 64;
/// Jobs that are remembered although none of their blocks moves any more.
const JOBS_KEPT: usize = 16;
/// A move without a message for this long delays no other.
pub(super) const TURN_STALLS: Duration = Duration::from_millis(100);
/// The time after which a block that waits for its turn looks whether the moves before it stall.
pub(super) const TURN_AGAIN: Duration = Duration::from_millis(250);

/// The blocks of a job that move, or wait for their turn. Some are over: that is noticed later.
#[derive(Debug, Default)]
struct JobTurns {
    waiting: VecDeque<BlockAt>,
    /// With the time at which each got its turn.
    moving: Vec<(BlockAt, Time)>,
    /// The time that recent moves took.
    took: Duration,
}

/// The turns of the jobs of a shard.
#[derive(Debug)]
pub(in crate::shard) struct MoveTurns {
    /// Most blocks of a job that move at a time.
    most: usize,
    /// The jobs of which some blocks move, and some of which none does any more.
    jobs: HashMap<JobId, JobTurns>,
    /// The number of jobs at which those without a moving block are forgotten.
    forget_at: usize,
}

impl MoveTurns {
    /// No block moves; later at most so many of a job do.
    pub fn new(most: usize) -> MoveTurns {
        assert!(most > 0, "INV-33: no block would have its turn");
        MoveTurns { most, jobs: HashMap::new(), forget_at: JOBS_KEPT }
    }

    /// A block waits for its turn.
    pub fn queue(&mut self, job: JobId, at: BlockAt, blocks: &Blocks, now: Time) {
        if self.jobs.len() >= self.forget_at {
            self.jobs.retain(|_, turns| turns.is_used(blocks, now));
            self.forget_at = (2 * self.jobs.len()).max(JOBS_KEPT);
        }
        self.jobs.entry(job).or_default().waiting.push_back(at);
    }

    /// Whether this block has had its turn, and others of the job wait for theirs.
    #[inline]
    pub fn is_awaited(&self, job: JobId, at: BlockAt) -> bool {
        let turns = self.jobs.get(&job);
        let moves = |turns: &JobTurns| turns.moving.iter().any(|(moving, _)| *moving == at);
        turns.is_some_and(|turns| !turns.waiting.is_empty() && moves(turns))
    }

    /// Whether blocks of this job wait for their turn.
    #[inline]
    pub fn are_awaited(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|turns| !turns.waiting.is_empty())
    }

    /// The time after which another block of this job would have its turn.
    #[inline]
    pub fn delay(&self, job: JobId) -> Duration {
        self.jobs.get(&job).map_or(Duration::ZERO, |turns| {
            turns.took * turns.waiting.len() as u32 / turns.moving.len().max(1) as u32
        })
    }

    /// The next block of a job whose turn it is. It counts as moving from now on.
    pub fn next(&mut self, job: JobId, blocks: &Blocks, now: Time) -> Option<BlockAt> {
        let turns = self.jobs.get_mut(&job)?;
        let next = turns.next(self.most, blocks, now);
        if turns.waiting.is_empty() && turns.moving.is_empty() {
            self.jobs.remove(&job);
        }
        next
    }
}

impl JobTurns {
    /// Whether some of the blocks still move or wait.
    fn is_used(&self, blocks: &Blocks, now: Time) -> bool {
        let exports = |at| blocks.get_at(at).map(|slot| &slot.exports);
        self.waiting.iter().any(|at| exports(*at).is_some_and(Exports::is_queued))
            || self.moving.iter().any(|(at, _)| exports(*at).is_some_and(|e| e.has_turn(now)))
    }

    fn next(&mut self, most: usize, blocks: &Blocks, now: Time) -> Option<BlockAt> {
        let slot = |at: &BlockAt| blocks.get_at(*at);
        let used = |at: &BlockAt| slot(at).map_or(0, |slot| slot.structure.bytes_used());
        let took = &mut self.took;
        self.moving.retain(|(at, since)| {
            let moves = slot(at).is_some_and(|slot| slot.exports.has_turn(now));
            let moves = moves || Bug::TurnsNeverEnd.active();
            if !moves {
                let last = now.since(*since).min(TURN_STALLS);
                *took = if took.is_zero() { last } else { (*took * 3 + last) / 4 };
            }
            moves
        });
        let is_queued = |at: &BlockAt| slot(at).is_some_and(|slot| slot.exports.is_queued());
        while self.waiting.front().is_some_and(|at| !is_queued(at)) {
            self.waiting.pop_front();
        }
        let candidates = self.waiting.iter().take(COMPARED).enumerate();
        let queued = candidates.filter(|(_, at)| is_queued(at));
        let (place, next) = queued.max_by_key(|(_, at)| used(at))?;
        let (next, moving) = (*next, self.moving.iter().map(|(at, _)| used(at)).sum::<u64>());
        let alone = self.moving.is_empty();
        let fits = self.moving.len() < most && moving + used(&next) <= MOVING_BYTES_MAX;
        if !alone && !fits {
            return None;
        }
        self.waiting.remove(place);
        self.moving.push((next, now));
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::units::UnitsInUse;
    use honeycomb_types::{BlockId, BlockUnits, Epoch, ServerId, ShardIx};

    #[test]
    fn jobs_whose_blocks_have_ended_are_forgotten() {
        let held = UnitsInUse::new(BlockUnits::of(1 << 20), 4, "INV-40");
        let blocks = Blocks::new(ShardIx(0), 4, held);
        let mut turns = MoveTurns::new(1);
        for job in 0..1000 {
            let block = BlockId::new(ServerId(1), ShardIx(0), 0);
            let at = BlockAt { block, epoch: Epoch(1) };
            turns.queue(JobId(job), at, &blocks, Time::ZERO);
            assert!(turns.jobs.len() <= JOBS_KEPT);
        }
    }
}
