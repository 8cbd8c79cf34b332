//! A controller's loop on virtual time, whose process stops at any moment: leases renewed in time
//! must not end.

use honeycomb_catalog::{Actor, Catalog, Command, Config, Effect, PrefixOptions, Reply};
use honeycomb_controller::Turns;
use honeycomb_env::Entropy;
use honeycomb_types::limits::{LEASE_MAX_MS, LEASE_MIN_MS, STALL_LEAST};
use honeycomb_types::{Bug, JobId, Time};
use std::collections::VecDeque;
use std::time::Duration;

const LEASE_MS: u64 = 1000;

/// A controller, the renewals that have arrived at its socket, and a client on another machine.
struct Loop {
    rng: Entropy,
    catalog: Catalog,
    effects: Vec<Effect>,
    job: JobId,
    turns: Turns,
    now: Time,
    /// When renewals arrive, in order. No two are further apart than a lease.
    arriving: VecDeque<Time>,
    /// The total time for which the process was stopped.
    stopped: Duration,
    /// The intended end of the loop's sleep.
    wake: Time,
    /// The total time of sleep that was not interrupted.
    slept: Duration,
}

impl Loop {
    fn new(seed: u64) -> Loop {
        Loop::with_lease(seed, LEASE_MS)
    }

    fn with_lease(seed: u64, lease_ms: u64) -> Loop {
        let mut catalog = Catalog::new(Config::default());
        let mut effects = Vec::new();
        let actor = Actor { job: None, ..Actor::driver(JobId(0)) };
        let (name, now) = ("job", Time::ZERO);
        let register = Command::RegisterJob {
            claim: Default::default(),
            actor,
            name,
            lease_ms: lease_ms as u32,
            quota_blocks: 0,
            hints: Default::default(),
        };
        let Ok(Reply::Job { job, .. }) = catalog.apply(now, register, &mut effects) else {
            panic!("a job cannot be registered");
        };
        let actor = Actor::driver(job);
        let options = PrefixOptions::default();
        let create = Command::CreatePrefix { actor, job, path: "task", parents: &[], options };
        catalog.apply(now, create, &mut effects).unwrap();
        let mut rng = Entropy::seeded(seed);
        let mut at = 0;
        let arriving = (0..200).map(|_| {
            // Mostly early, sometimes at the last moment.
            at += if rng.below(4) == 0 { lease_ms - rng.below(3) } else { rng.below(lease_ms) };
            Time::from_millis(at)
        });
        let (arriving, mut turns) = (arriving.collect(), Turns::default());
        turns.turn(now, true, || Duration::ZERO);
        let (stopped, slept, wake) = (Duration::ZERO, Duration::ZERO, Time::ZERO);
        Loop { rng, catalog, effects, job, turns, now, arriving, stopped, wake, slept }
    }

    /// The process may be stopped here.
    fn stop(&mut self) {
        let longest = match self.rng.below(40) {
            0 => 990,
            1 => 50,
            _ => return,
        };
        let length = Duration::from_millis(self.rng.below(longest));
        (self.now, self.stopped) = (self.now + length, self.stopped + length);
    }

    /// One turn; returns whether the lease is still running.
    fn turn(&mut self) -> bool {
        let asleep = self.wake.min(self.arriving[0]).since(self.now);
        self.now = self.now + asleep;
        let before = self.now;
        self.stop();
        // A poll that is interrupted by a stop returns before it reports bytes that have arrived. The process
        // may also be stopped after its poll.
        let asked_all = self.now == before || self.rng.below(2) == 0;
        if asked_all {
            self.slept += asleep;
        }
        let polled = self.now;
        self.stop();
        let now = self.now;
        while asked_all && self.arriving.front().is_some_and(|at| *at <= polled) {
            self.arriving.pop_front();
            let (actor, job) = (Actor::driver(self.job), self.job);
            let renew = Command::RenewLeases { actor, job, paths: &["task"] };
            let reply = self.catalog.apply(now, renew, &mut self.effects);
            if !matches!(&reply, Ok(Reply::Renewed(results)) if results[0].is_ok()) {
                return false;
            }
        }
        // Work takes no time here.
        let turn = self.turns.turn(now, asked_all, || self.slept);
        if let Some(stall) = turn.stall {
            self.catalog.apply(now, stall, &mut self.effects).unwrap();
        }
        let tick = Command::TickUntil { heard: turn.heard };
        self.catalog.apply(now, tick, &mut self.effects).unwrap();
        let due = self.catalog.next_deadline().unwrap_or(Time::NEVER);
        self.wake = Turns::wake(now, due, self.catalog.next_lease_end());
        true
    }

    /// The remaining time of the lease.
    fn remaining(&mut self) -> Option<Duration> {
        let (actor, job) = (Actor::driver(self.job), self.job);
        let ask = Command::LeaseInfo { actor, job, path: "task" };
        match self.catalog.apply(self.now, ask, &mut self.effects) {
            Ok(Reply::Lease(info)) => Some(Duration::from_millis(info.remaining_ms.max(0) as u64)),
            _ => None,
        }
    }
}

/// The first seed that loses a lease that was renewed in time.
fn loses(seeds: u64) -> Option<u64> {
    (0..seeds).find(|&seed| {
        let mut run = Loop::new(seed);
        std::iter::from_fn(|| (run.arriving.len() > 1).then(|| run.turn())).any(|kept| !kept)
    })
}

#[test]
fn renewals_that_arrive_in_time_keep_their_lease_whenever_the_controller_is_stopped() {
    assert_eq!(loses(500), None);
}

#[test]
fn expiry_before_what_has_arrived_is_read_is_caught() {
    Bug::arm(Some(Bug::ExpiresUnheard));
    let seed = loses(500);
    Bug::arm(None);
    assert!(seed.is_some());
}

#[test]
fn lease_ends_within_one_and_a_half_of_its_time_however_often_the_controller_asks() {
    let mut run = Loop::new(1);
    run.arriving = VecDeque::from([Time::NEVER]);
    run.rng = Entropy::seeded(3);
    let mut end = Time::ZERO;
    while run.catalog.next_lease_end().is_some() && run.now < Time::from_millis(60_000) {
        assert!(run.turn());
        end = run.now;
    }
    let allowed = Duration::from_millis(LEASE_MS) * 3 / 2 + run.stopped * 2;
    assert!(end.since(Time::ZERO) <= allowed, "it ended at {end}, stopped for {:?}", run.stopped);
}

#[test]
fn every_stall_is_added_to_leases_of_any_length_and_a_loop_wakes_up_seldom() {
    let ms = Duration::from_millis;
    for lease_ms in [LEASE_MIN_MS as u64, LEASE_MS, 10_000, 100_000, LEASE_MAX_MS as u64] {
        let (mut added, mut slept, mut turns) = (0, Duration::ZERO, 0);
        for seed in 0..50 {
            let mut run = Loop::with_lease(seed, lease_ms);
            run.arriving = VecDeque::from([Time::NEVER]);
            while run.now < Time::from_millis(lease_ms.min(100_000) / 2) {
                let left = run.remaining().expect("half of the lease is left");
                let (began, stopped) = (run.now, run.stopped);
                if run.rng.below(8) == 0 {
                    // Other traffic wakes the loop.
                    run.wake = began + run.wake.since(began) / 2;
                }
                slept += run.wake.since(began);
                turns += 1;
                assert!(run.turn());
                let stalled = run.stopped - stopped;
                let spent = left.saturating_sub(run.remaining().unwrap_or(Duration::ZERO));
                let passed = run.now.since(began) - stalled;
                let about =
                    format!("seed {seed}: of {left:?} {spent:?} in {passed:?}, {stalled:?}");
                // The remaining time is in whole milliseconds.
                assert!(spent <= passed + stalled.min(STALL_LEAST) + ms(1), "{about}");
                added += (spent + stalled / 2 < passed + stalled) as u32;
            }
        }
        assert!(added > 0, "no stall was added to a lease of {lease_ms} ms");
        let (mean, least) = (slept / turns, ms((lease_ms / 80).clamp(15, 200)));
        assert!(mean >= least, "with leases of {lease_ms} ms it wakes up every {mean:?}");
    }
}
