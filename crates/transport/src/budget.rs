//! Admission: memory outside the blocks, and turns of the loop, are shared among jobs.
//!
//! A loop has one budget of bytes. Each job with a connection has a share of it, which counts all bytes that
//! the job's connections hold. There are no fixed quotas: a request is admitted while the bytes of all jobs
//! and half of the bytes of its own job are less than the limit. One job alone gets up to two thirds of the
//! budget, and any number of greedy jobs leave room for one more (the dynamic thresholds of Choudhury and
//! Hahne, by which switches share their buffers among ports). The last eighth is for requests that must not
//! wait: renewals of leases.
//! The same shares divide time: a job whose connections were served for `TURN` in a round waits for the next
//! one. On a shared loop a job with several waiting requests has shorter turns. If such a job takes most of
//! the time, it rests after work on large bodies (ADR 0045).

use honeycomb_types::{Bug, Time};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// The budget divided by this is kept for requests that must not wait.
const URGENT_FRACTION: usize = 8;
/// Bytes that the connections of one job may move in a round of the loop before the next job's turn: half a
/// millisecond of work. The same limit applies to the small requests of a job that is alone on the loop,
/// because each round costs system calls.
pub const TURN: usize = 2 << 20;
/// The turn of a job that presses while several jobs are served. A request may wait for a turn of each other
/// job, so these turns are shorter.
pub const SHARED_TURN: usize = TURN / 4;
/// The duration of a rest, as a multiple of the time of the job's work: the job gets a quarter of the loop.
const REST: u32 = 3;
/// Rests of up to this length are accumulated, because a loop sleeps for at least a millisecond.
const REST_SAVED: Duration = Duration::from_micros(500);
/// The maximum time that is counted for one piece of work. A longer piece was probably interrupted by the
/// scheduler.
const WORK_MOST: Duration = Duration::from_micros(250);
/// The half-life of a job's counted time.
const HALF_LIFE: Duration = Duration::from_millis(10);
/// A job presses until this time has passed since a request of it waited beyond a short turn.
const PRESSES_FOR: Duration = Duration::from_millis(10);

/// How many bytes one loop may hold in requests and replies. Only that loop changes it; it is
/// atomic so that a loop can be built on one thread and run on another.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
}

/// The bytes that the connections of one job hold, and the work done for them. Connections before their
/// handshake share one, and so do connections with the cluster's token.
#[derive(Debug, Default)]
pub struct JobShare {
    used: AtomicUsize,
    pub(crate) connections: AtomicUsize,
    /// The round to which `served` and `sent` belong.
    round: AtomicU64,
    served: RoundUse,
    sent: RoundUse,
    /// End of the time in which the job presses, in nanoseconds.
    presses_until: AtomicU64,
    recent: Recent,
    /// The time at which the job has rested for all of its work, in nanoseconds.
    rested_at: AtomicU64,
}

/// The part of a round that a job has used: bytes of all its connections, and the number of the connection
/// that used the last of them.
#[derive(Debug, Default)]
struct RoundUse {
    bytes: AtomicUsize,
    by: AtomicU64,
}

impl RoundUse {
    fn add(&self, by: u64, bytes: usize) {
        self.bytes.store(self.bytes.load(Relaxed) + bytes, Relaxed);
        self.by.store(by, Relaxed);
    }

    fn of(&self, by: u64) -> (usize, bool) {
        (self.bytes.load(Relaxed), self.by.load(Relaxed) != by)
    }
}

/// Recently used time of a loop.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    ns: AtomicU64,
    at: AtomicU64,
}

impl Recent {
    pub(crate) fn add(&self, now: Time, time: Duration) {
        self.ns.store(self.ns(now) + time.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn ns(&self, now: Time) -> u64 {
        let half = HALF_LIFE.as_nanos() as u64;
        let halves = now.0.saturating_sub(self.at.load(Relaxed)) / half;
        if halves > 0 {
            self.ns.store(self.ns.load(Relaxed).checked_shr(halves as u32).unwrap_or(0), Relaxed);
            self.at.store(now.0, Relaxed);
        }
        self.ns.load(Relaxed)
    }
}

impl JobShare {
    /// Counts work for the job that took this time of a shared loop and ended now.
    pub(crate) fn took(&self, now: Time, time: Duration) {
        self.recent.add(now, time.min(WORK_MOST));
    }

    /// Adds the rest that the job owes for work that took this time and ended now.
    pub(crate) fn owes_rest(&self, now: Time, time: Duration) {
        let saved = now.0.saturating_sub(REST_SAVED.as_nanos() as u64);
        let from = Time(self.rested_at.load(Relaxed).max(saved));
        self.rested_at.store((from + time.min(WORK_MOST) * (1 + REST)).0, Relaxed);
    }

    /// The end of the job's rest; `None` if it has ended.
    pub(crate) fn rests_until(&self, now: Time) -> Option<Time> {
        Some(Time(self.rested_at.load(Relaxed))).filter(|until| *until > now)
    }

    /// Nanoseconds of the shared loop that the job recently used.
    pub(crate) fn recent_ns(&self, now: Time) -> u64 {
        self.recent.ns(now)
    }

    /// A request of the job waits beyond a short turn.
    pub(crate) fn press(&self, now: Time) {
        self.presses_until.store((now + PRESSES_FOR).0, Relaxed);
    }

    /// Whether a request of the job waited beyond a short turn within the last 10 ms.
    pub(crate) fn presses(&self, now: Time) -> bool {
        now.0 < self.presses_until.load(Relaxed)
    }

    /// Counts work for one of the job's connections in this round, in bytes.
    pub(crate) fn serve(&self, round: u64, turn: usize, of: u64, work: usize) {
        self.begin(round, turn);
        self.served.add(of, work);
    }

    /// Counts bytes that were sent to one of the job's connections in this round.
    pub(crate) fn send(&self, round: u64, turn: usize, to: u64, bytes: usize) {
        self.begin(round, turn);
        self.sent.add(to, bytes);
    }

    /// Bytes of work that the job has used in this round, and whether another connection used the last of
    /// them.
    pub(crate) fn served(&self, round: u64, turn: usize, of: u64) -> (usize, bool) {
        self.begin(round, turn);
        self.served.of(of)
    }

    /// Bytes that the job's connections were sent in this round, and whether another connection was sent the
    /// last of them.
    pub(crate) fn sent(&self, round: u64, turn: usize, to: u64) -> (usize, bool) {
        self.begin(round, turn);
        self.sent.of(to)
    }

    /// Begins a round. Work beyond a turn is deducted: the job waits for as many rounds as that work took.
    fn begin(&self, round: u64, turn: usize) {
        let last = self.round.load(Relaxed);
        if last != round {
            self.round.store(round, Relaxed);
            let turns = usize::try_from(round - last).unwrap_or(usize::MAX).saturating_mul(turn);
            let owed = self.served.bytes.load(Relaxed).saturating_sub(turns);
            self.served.bytes.store(owed, Relaxed);
            self.sent.bytes.store(0, Relaxed);
        }
    }
}

/// Bytes borrowed from the budget; dropping the permit returns them.
#[derive(Debug)]
pub struct Permit {
    budget: Arc<Budget>,
    share: Arc<JobShare>,
    bytes: usize,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Budget> {
        Arc::new(Budget { limit, used: AtomicUsize::new(0) })
    }

    /// Bytes on loan.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// An empty permit of a share, to grow as bytes arrive.
    pub fn permit(self: &Arc<Budget>, share: &Arc<JobShare>) -> Permit {
        Permit { budget: self.clone(), share: share.clone(), bytes: 0 }
    }
}

impl Permit {
    /// Sets the loan to `bytes`.
    pub fn resize(&mut self, bytes: usize) {
        let Permit { budget, share, bytes: held } = self;
        let (all, own) = (budget.used.load(Relaxed), share.used.load(Relaxed));
        assert!(all >= own && own >= *held, "INV-53: {held} bytes are given back: {own} of {all}");
        budget.used.store(budget.used.load(Relaxed) - *held + bytes, Relaxed);
        share.used.store(share.used.load(Relaxed) - *held + bytes, Relaxed);
        *held = bytes;
    }

    /// Bytes on loan.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the job may have more; an admitted request may finish.
    pub fn admits(&self, urgent: bool) -> bool {
        let Budget { limit, used } = &*self.budget;
        let urgent = urgent && !Bug::RenewalsUseCommonBudget.active();
        let limit = if urgent { *limit } else { limit - limit / URGENT_FRACTION };
        used.load(Relaxed) + self.share.used.load(Relaxed) / 2 < limit
    }

    pub(crate) fn share(&self) -> &Arc<JobShare> {
        &self.share
    }

    /// Assigns the loan to another job.
    pub(crate) fn transfer(&mut self, share: &Arc<JobShare>) {
        let bytes = self.bytes;
        self.resize(0);
        self.share = share.clone();
        self.resize(bytes);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !Bug::DeadKeepTheirBudget.active() {
            self.resize(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_permit_returns_its_bytes_to_budget_and_share() {
        let (budget, share) = (Budget::new(100), Arc::new(JobShare::default()));
        let mut a = budget.permit(&share);
        a.resize(60);
        let mut b = budget.permit(&share);
        b.resize(50);
        assert!(!b.admits(true));
        a.resize(0);
        assert!(b.admits(false));
        drop((a, b));
        assert_eq!((budget.used(), share.used.load(Relaxed)), (0, 0));
    }

    /// Takes bytes one by one until none is admitted, for jobs with so many connections each.
    fn greedy(budget: &Arc<Budget>, jobs: usize, connections: usize) -> Vec<Vec<Permit>> {
        let jobs = (0..jobs).map(|_| {
            let share = Arc::new(JobShare::default());
            (0..connections).map(|_| budget.permit(&share)).collect()
        });
        let mut jobs: Vec<Vec<Permit>> = jobs.collect();
        loop {
            let mut taken = 0;
            for permit in jobs.iter_mut().flatten() {
                if permit.admits(false) {
                    permit.resize(permit.bytes() + 1);
                    taken += 1;
                }
            }
            if taken == 0 {
                return jobs;
            }
        }
    }

    #[test]
    fn jobs_that_take_all_they_are_given_leave_room_for_another_and_for_renewals() {
        for (jobs, connections) in [(1, 1), (1, 24), (2, 8), (7, 3), (30, 1)] {
            let budget = Budget::new(80_000);
            let taken = greedy(&budget, jobs, connections);
            let stranger = budget.permit(&Arc::new(JobShare::default()));
            assert!(stranger.admits(false), "{jobs} jobs leave nothing");
            assert!(taken.iter().flatten().all(|permit| permit.admits(true)));
            if jobs == 1 {
                assert!(budget.used() >= 80_000 * 7 / 8 / 2, "one alone has half of it at least");
            }
            drop(taken);
            assert_eq!(budget.used(), 0);
        }
    }

    #[test]
    fn job_has_a_quarter_of_the_time_and_saves_short_rests() {
        let (share, us) = (JobShare::default(), Duration::from_micros);
        let begin = Time::ZERO + Duration::from_secs(1);
        assert_eq!(share.rests_until(begin), None);
        // 125 us of work and its rest are the 500 us that it has not used.
        share.owes_rest(begin, us(125));
        assert_eq!(share.rests_until(begin), None);
        share.owes_rest(begin, us(100));
        assert_eq!(share.rests_until(begin), Some(begin + us(400)));
        assert_eq!(share.rests_until(begin + us(400)), None);
        // A loop that was preempted counts for 250 us.
        let later = begin + Duration::from_secs(1);
        share.owes_rest(later, Duration::from_secs(1));
        assert_eq!(share.rests_until(later), Some(later + us(500)));
    }

    #[test]
    fn time_taken_long_ago_is_forgotten() {
        let (recent, us) = (Recent::default(), Duration::from_micros);
        let begin = Time::ZERO + Duration::from_secs(1);
        recent.add(begin, us(800));
        assert_eq!(recent.ns(begin + HALF_LIFE / 2), 800_000);
        assert_eq!(recent.ns(begin + HALF_LIFE), 400_000);
        recent.add(begin + HALF_LIFE, us(100));
        assert_eq!(recent.ns(begin + 2 * HALF_LIFE), 250_000);
        assert_eq!(recent.ns(begin + Duration::from_secs(10)), 0);
    }

    #[test]
    fn work_beyond_a_turn_is_owed_in_later_rounds() {
        for turn in [TURN, SHARED_TURN] {
            let share = JobShare::default();
            let served = |round| share.served(round, turn, 1).0;
            share.serve(5, turn, 1, turn / 2);
            assert_eq!(served(5), turn / 2);
            share.serve(5, turn, 1, 3 * turn);
            assert!((5..8).all(|round| served(round) >= turn));
            assert_eq!(served(8), turn / 2);
            assert_eq!(served(9), 0);
        }
    }
}
