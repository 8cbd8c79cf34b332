//! Whether a loop serves several jobs, the length of their turns then, and which jobs rest (ADR 0045).

use super::{ConnId, Net, Service, look_up};
use crate::budget::{JobShare, Recent, SHARED_TURN, TURN};
use honeycomb_types::{Bug, Time};
use std::sync::Arc;
use std::time::Duration;

/// A loop counts as shared for so long after it has served another job than before. A client that sends its
/// requests one by one sends the next one within this time.
const SHARED_FOR: Duration = Duration::from_millis(5);
/// A job rests only when it has more than this part of the time that all jobs took lately. So of two jobs
/// that both have much to do neither rests.
const MOST_NUMERATOR: u64 = 3;
const MOST_DENOMINATOR: u64 = 5;

/// Bytes that count as one microsecond of a job's turn.
const WORK_US: usize = 4000;

/// A loop counts as shared for so many rounds, however long they take: after a stall of the process the
/// requests of all jobs are waiting, and none of them had time to send another one.
const SHARED_ROUNDS: u8 = 2;

/// The job that was served last, and the time until which others are expected.
#[derive(Debug, Default)]
pub(super) struct JobTurns {
    last: Option<Arc<JobShare>>,
    until: Time,
    /// Rounds, this one included, that are shared whatever the time.
    rounds: u8,
    /// The time of all jobs while the loop was shared.
    recent: Recent,
    /// Whether the current work has moved a part of a large body or reply.
    large: bool,
    /// The last reading of the clock. Reading it costs as much as a tenth of a small request, so that the end
    /// of one piece of work is the beginning of the next.
    measured: Time,
}

impl JobTurns {
    /// Begins a round.
    fn round_begins(&mut self, now: Time) {
        self.rounds = self.rounds.saturating_sub(1);
        self.measure(now);
    }

    /// Notes a reading of the clock; returns the time since the last one.
    pub fn measure(&mut self, now: Time) -> Duration {
        now.since(std::mem::replace(&mut self.measured, now))
    }

    /// Notes that a request of the job with this share was served.
    pub fn served(&mut self, now: Time, share: &Arc<JobShare>) {
        match &self.last {
            Some(last) if Arc::ptr_eq(last, share) => return,
            Some(_) => (self.until, self.rounds) = (now + SHARED_FOR, SHARED_ROUNDS),
            None => {}
        }
        self.last = Some(share.clone());
    }

    /// Whether several jobs are served.
    pub fn is_shared(&self, now: Time) -> bool {
        now < self.until || self.rounds > 0
    }

    /// Length of a turn of a job that presses, in bytes of work.
    pub fn least_turn(&self, now: Time) -> usize {
        match self.is_shared(now) && !Bug::SharedTurnsStayLong.active() {
            true => SHARED_TURN,
            false => TURN,
        }
    }

    /// Length of a turn of the job with this share, in bytes of work.
    pub fn turn(&self, now: Time, share: &JobShare) -> usize {
        match share.presses(now) {
            true => self.least_turn(now),
            false => TURN,
        }
    }

    /// Whether a job whose request waits has used its turn. `taken`: bytes that the job has used in this
    /// round, and whether another request used the last of them. If that request has used a short turn, the
    /// job presses from now on.
    pub fn turn_is_over(&self, now: Time, share: &JobShare, taken: (usize, bool)) -> bool {
        let (bytes, by_another) = taken;
        if by_another && bytes >= self.least_turn(now) {
            share.press(now);
        }
        bytes >= self.turn(now, share)
    }

    /// Notes that the current work moves a part of a large body or reply.
    pub fn moves_large(&mut self) {
        self.large = true;
    }

    /// Counts work of a job that took this time, and ended now.
    fn took(&self, now: Time, share: &JobShare, time: Duration) {
        self.recent.add(now, time);
        share.took(now, time);
        if self.large {
            share.owes_rest(now, time);
        }
    }

    /// The end of the job's rest, if it rests.
    fn rests(&self, now: Time, share: &JobShare) -> Option<Time> {
        let until = share.rests_until(now).filter(|_| self.is_shared(now) && share.presses(now))?;
        let most = share.recent_ns(now) * MOST_DENOMINATOR > self.recent.ns(now) * MOST_NUMERATOR;
        most.then_some(until)
    }
}

/// Work that waits until its job has rested.
#[derive(Debug, Default)]
pub(super) struct Resting {
    conns: Vec<ConnId>,
    /// The listener, with connections that are not accepted yet.
    listener: bool,
    /// When the first of the jobs has rested.
    until: Option<Time>,
}

impl Resting {
    /// When to check again which jobs have rested.
    pub fn until(&self) -> Option<Time> {
        self.until
    }

    fn wake_at(&mut self, until: Time) {
        self.until = Some(self.until.map_or(until, |first| first.min(until)));
    }
}

/// Work whose time is measured.
pub(super) struct TimedWork {
    /// `None` for work of the cluster itself.
    share: Option<Arc<JobShare>>,
    began: Time,
}

impl Net {
    /// Begins a round.
    pub(super) fn round_begins(&mut self, now: Time) {
        self.round = now;
        self.sharing.round_begins(now);
    }

    /// The cost of the request that has just ended, in bytes of its job's turn.
    pub(super) fn cost<S: Service>(&mut self) -> usize {
        if !S::TIMED {
            return S::WORK;
        }
        let ns = self.sharing.measure(self.clock.now()).as_nanos() as usize;
        S::WORK.max(ns.saturating_mul(WORK_US / 1000))
    }

    /// Begins work for the job of a connection. Its time is measured on a shared loop only.
    pub(super) fn begin_work(&mut self, of: ConnId) -> Option<TimedWork> {
        if !self.sharing.is_shared(self.round) {
            return None;
        }
        let conn = self.conn(of)?;
        let share = (!conn.is_link()).then(|| conn.share().clone());
        self.sharing.large = false;
        Some(TimedWork { share, began: self.sharing.measured })
    }

    /// Begins to accept connections. A new connection counts as large work, because it costs as much.
    pub(super) fn begin_accepting(&mut self) -> Option<TimedWork> {
        let shared = self.sharing.is_shared(self.round);
        self.sharing.moves_large();
        shared.then(|| TimedWork {
            share: Some(self.strangers.clone()),
            began: self.sharing.measured,
        })
    }

    /// Ends work. A service that measured its last request has read the clock just now.
    pub(super) fn end_work(&mut self, work: Option<TimedWork>) {
        let Some(TimedWork { share, began }) = work else { return };
        if self.sharing.measured == began {
            self.sharing.measure(self.clock.now());
        }
        if let Some(share) = share {
            let ended = self.sharing.measured;
            self.sharing.took(ended, &share, ended.since(began));
        }
    }

    /// Whether the job of a connection rests; then the connection is listed, and resumes by itself.
    pub(super) fn rests(&mut self, id: ConnId) -> bool {
        if !self.sharing.is_shared(self.round) {
            return false;
        }
        let Some(conn) = look_up(&mut self.conns, &self.generations, id) else { return false };
        let until = self.sharing.rests(self.round, conn.share());
        let Some(until) = until.filter(|_| !conn.is_link()) else { return false };
        if !std::mem::replace(&mut conn.resting, true) {
            self.resting.conns.push(id);
        }
        self.resting.wake_at(until);
        true
    }

    /// Whether new connections wait, because earlier ones took most of the loop's time.
    pub(super) fn acceptance_rests(&mut self) -> bool {
        let Some(until) = self.sharing.rests(self.round, &self.strangers) else { return false };
        self.resting.listener = true;
        self.resting.wake_at(until);
        true
    }

    /// Resumes the connections of jobs that have rested.
    pub(super) fn wake_rested(&mut self) {
        if self.resting.until.is_none_or(|until| until > self.round) {
            return;
        }
        let Resting { conns, listener, .. } = std::mem::take(&mut self.resting);
        for id in conns {
            let Some(conn) = self.conn(id) else { continue };
            conn.resting = false;
            if conn.backlog() > 0 {
                self.mark(id);
            }
            self.ready.push_back(id);
        }
        if listener {
            self.accept_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Time = Time(1_000_000_000);

    fn shares() -> (Arc<JobShare>, Arc<JobShare>) {
        (Arc::new(JobShare::default()), Arc::new(JobShare::default()))
    }

    #[test]
    fn turns_are_short_while_a_job_presses_and_another_was_served_lately() {
        let (a, b) = shares();
        let mut sharing = JobTurns::default();
        (0..500).for_each(|n| sharing.served(BEGIN + n * SHARED_FOR, &a));
        let now = BEGIN + 500 * SHARED_FOR;
        a.press(now);
        assert_eq!(sharing.turn(now, &a), TURN, "one job has long turns");
        sharing.served(now, &b);
        (0..500).for_each(|_| sharing.served(now, &b));
        assert_eq!(sharing.turn(now, &a), SHARED_TURN);
        assert_eq!(sharing.turn(now, &b), TURN, "the job does not press");
        assert_eq!(sharing.turn(Time((now + SHARED_FOR).0 - 1), &a), SHARED_TURN);
        // After a stall, the other job's request may be there and not read yet.
        sharing.round_begins(now);
        assert_eq!(sharing.turn(now + SHARED_FOR, &a), SHARED_TURN);
        sharing.round_begins(now);
        assert_eq!(sharing.turn(now + SHARED_FOR, &a), TURN);
        let later = now + 2 * SHARED_FOR;
        sharing.served(later, &a);
        assert_eq!(sharing.turn(later, &a), TURN, "the job no longer presses");
        a.press(later);
        assert_eq!(sharing.turn(later, &a), SHARED_TURN);
    }

    #[test]
    fn job_presses_when_another_of_its_connections_has_used_a_short_turn() {
        let (a, b) = shares();
        let mut sharing = JobTurns::default();
        let alone = sharing.turn_is_over(BEGIN, &a, (TURN - 1, true));
        assert!(!alone && !a.presses(BEGIN), "no other job is served");
        sharing.served(BEGIN, &a);
        sharing.served(BEGIN, &b);
        assert!(!sharing.turn_is_over(BEGIN, &a, (TURN - 1, false)), "a large request continues");
        assert!(!sharing.turn_is_over(BEGIN, &a, (SHARED_TURN - 1, true)) && !a.presses(BEGIN));
        assert!(sharing.turn_is_over(BEGIN, &a, (TURN, false)) && !a.presses(BEGIN));
        assert!(sharing.turn_is_over(BEGIN, &a, (SHARED_TURN, true)) && a.presses(BEGIN));
        assert!(
            sharing.turn_is_over(BEGIN, &a, (SHARED_TURN, false)),
            "the turns of a job that presses are short"
        );
    }

    #[test]
    fn small_requests_owe_no_rest() {
        let (a, b) = shares();
        let mut sharing = JobTurns::default();
        sharing.served(BEGIN, &a);
        sharing.served(BEGIN, &b);
        a.press(BEGIN);
        let much = Duration::from_micros(250);
        for _ in 0..10 {
            sharing.took(BEGIN, &a, much);
        }
        assert_eq!(sharing.rests(BEGIN, &a), None);
        sharing.moves_large();
        for _ in 0..10 {
            sharing.took(BEGIN, &a, much);
        }
        assert!(sharing.rests(BEGIN, &a).is_some());
    }

    #[test]
    fn only_a_job_that_presses_and_takes_most_of_a_shared_loop_rests() {
        let ((a, b), us) = (shares(), Duration::from_micros);
        let mut sharing = JobTurns { large: true, ..JobTurns::default() };
        for _ in 0..10 {
            sharing.took(BEGIN, &a, us(100));
        }
        a.press(BEGIN);
        assert_eq!(sharing.rests(BEGIN, &a), None, "no other job is served");
        sharing.served(BEGIN, &a);
        sharing.served(BEGIN, &b);
        assert!(sharing.rests(BEGIN, &a).is_some());
        // The other job has worked as much: neither rests.
        for _ in 0..10 {
            sharing.took(BEGIN, &b, us(100));
        }
        assert_eq!((sharing.rests(BEGIN, &a), sharing.rests(BEGIN, &b)), (None, None));
        for _ in 0..10 {
            sharing.took(BEGIN, &b, us(100));
        }
        assert_eq!(sharing.rests(BEGIN, &a), None);
        assert_eq!(sharing.rests(BEGIN, &b), None, "the job does not press");
        b.press(BEGIN);
        assert!(sharing.rests(BEGIN, &b).is_some());
        (0..SHARED_ROUNDS).for_each(|_| sharing.round_begins(BEGIN));
        assert_eq!(sharing.rests(BEGIN + SHARED_FOR, &b), None, "no other job is served any more");
    }
}
