//! Whether to poll briefly before sleeping.
//!
//! A wake-up costs more than most of the awaited work, so polling pays while replies or requests
//! follow each other quickly and a core is idle. Its cost is limited: it stops when it finds
//! nothing, and it stops at once if other threads need the core, because a thread that yields then
//! gets the core back only a time slice later.

use honeycomb_types::Time;
use std::time::Duration;

/// A yield of this length means that another thread ran.
const SLICE: Duration = Duration::from_micros(200);
/// How long polling rests after that; it doubles each time, up to `REST_MAX`.
const REST_MIN: Duration = Duration::from_millis(10);
/// Longest rest.
const REST_MAX: Duration = Duration::from_secs(10);

/// Decides for one waiter, by the recent success of polling.
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
    /// Whether to poll now. Yes while it has paid recently; occasionally otherwise, to notice a
    /// change; never during a rest.
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

    /// Yields to other threads and returns the time afterwards. `None` if another thread ran: the
    /// core is not idle, so the caller should sleep.
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

    /// Records that polling was successful.
    pub fn hit(&mut self) {
        self.score = (self.score + 4).min(64);
        // A thousand hits compensate for one busy moment.
        self.rest = (self.rest - self.rest / 1000).max(REST_MIN);
    }

    /// Records that polling found nothing.
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
