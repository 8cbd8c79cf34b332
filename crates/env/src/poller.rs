//! Whether to poll for a moment before sleeping.
//!
//! A wake-up costs more than most of the work that is waited for, so polling pays while answers or
//! requests follow each other quickly and a core is idle. It must not cost more than that: where it
//! finds nothing it stops by itself, and where the core is wanted by others it stops at once,
//! because a thread that yields there gets the core back only a time slice later.

use honeycomb_types::Time;
use std::time::Duration;

/// A yield of this length means that somebody else ran.
const SLICE: Duration = Duration::from_micros(200);
/// For how long polling rests after that; it doubles each time, up to `REST_MAX`.
const REST_MIN: Duration = Duration::from_millis(10);
/// Longest rest.
const REST_MAX: Duration = Duration::from_secs(10);

/// Decides for one waiter. It remembers what polling brought lately.
#[derive(Debug)]
pub struct Poller {
    score: u32,
    idle: u32,
    rest: Duration,
    rests_until: Time,
}

impl Default for Poller {
    fn default() -> Poller {
        Poller { score: 1, idle: 0, rest: REST_MIN, rests_until: Time::ZERO }
    }
}

impl Poller {
    /// Whether to poll at all, now. Yes while it has lately paid; now and then anyway, to notice a
    /// change; never while it rests.
    pub fn worth_it(&mut self, now: Time) -> bool {
        if now < self.rests_until {
            return false;
        }
        if self.score > 0 {
            return true;
        }
        self.idle += 1;
        self.idle.is_multiple_of(16)
    }

    /// Lets others run for a moment; the time after it. `None` when they wanted to run: the core is not
    /// idle, go to sleep.
    pub fn yielded(&mut self, before: Time, now: impl Fn() -> Time) -> Option<Time> {
        std::thread::yield_now();
        let after = now();
        if after.since(before) < SLICE {
            return Some(after);
        }
        self.rests_until = after + self.rest;
        self.rest = (self.rest * 2).min(REST_MAX);
        None
    }

    /// Polling found what was waited for.
    pub fn hit(&mut self) {
        self.score = (self.score + 4).min(64);
        // A thousand hits forgive one busy moment.
        self.rest = (self.rest - self.rest / 1000).max(REST_MIN);
    }

    /// It did not.
    pub fn miss(&mut self) {
        self.score = self.score.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_stops_where_it_finds_nothing_and_goes_on_where_it_does() {
        let mut poller = Poller::default();
        assert!(poller.worth_it(Time(1)));
        poller.miss();
        assert!((0..15).all(|_| !poller.worth_it(Time(1))), "now and then only");
        assert!(poller.worth_it(Time(1)));
        poller.hit();
        assert!((0..15).all(|_| poller.worth_it(Time(1))));
    }

    #[test]
    fn a_busy_core_is_left_alone_for_longer_and_longer() {
        let mut poller = Poller::default();
        let (slow, mut now) = (Duration::from_millis(4), Time(0));
        for expected in [10, 20, 40] {
            assert_eq!(poller.yielded(now, || now + slow), None);
            now = now + slow;
            assert!(!poller.worth_it(now + Duration::from_millis(expected - 1)));
            assert!(poller.worth_it(now + Duration::from_millis(expected)));
        }
        let soon = now + Duration::from_micros(5);
        assert_eq!(poller.yielded(now, || soon), Some(soon));
    }
}
