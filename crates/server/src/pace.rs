//! How fast a block is written and how long the controller takes: what decides how early a block asks
//! for its successor, so that nobody waits at its end.

use honeycomb_types::Time;
use std::time::Duration;

/// The span over which writes are added up.
const SPAN: Duration = Duration::from_millis(4);
/// A span that has just begun is taken for one of this length at least: a single write makes no pace.
const SPAN_LEAST: Duration = Duration::from_millis(1);
/// A delay that is expected before any was measured.
const DELAY_FIRST: Duration = Duration::from_millis(1);
/// Above this a delay is an outage, not something to grow ahead of.
const DELAY_MAX: Duration = Duration::from_millis(200);

/// Bytes written to one block of late.
///
/// The rate is the greater of two neighbouring spans', the one that still runs included, so that it
/// follows a burst at once and forgets it after two spans.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    span: Time,
    bytes: u64,
    before: u64,
    last: Time,
}

impl Pace {
    /// So many bytes were written.
    pub fn wrote(&mut self, now: Time, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.turn(now);
        self.bytes += bytes as u64;
        self.last = now;
    }

    fn turn(&mut self, now: Time) {
        let passed = now.since(self.span);
        if passed >= 2 * SPAN {
            (self.span, self.before, self.bytes) = (now, 0, 0);
        } else if passed >= SPAN {
            (self.span, self.before, self.bytes) = (self.span + SPAN, self.bytes, 0);
        }
    }

    /// Bytes that arrive in this time if it goes on like this.
    pub fn bytes_in(&mut self, now: Time, time: Duration) -> usize {
        self.turn(now);
        let running = now.since(self.span).max(SPAN_LEAST);
        let per = |bytes: u64, span: Duration| {
            (bytes as u128 * time.as_nanos() / span.as_nanos()) as usize
        };
        per(self.bytes, running).max(per(self.before, SPAN))
    }

    /// When it was written last.
    pub fn last(&self) -> Time {
        self.last
    }
}

/// How long the controller took of late: the longest of recent times, which decays by a sixteenth
/// with every shorter one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delay(Duration);

impl Default for Delay {
    fn default() -> Delay {
        Delay(DELAY_FIRST)
    }
}

impl Delay {
    /// It took this long.
    pub fn took(&mut self, time: Duration) {
        self.0 = time.min(DELAY_MAX).max(self.0 - self.0 / 16);
    }

    /// What to expect: twice that, because asking late makes a writer wait and asking early costs
    /// nothing but a block a little sooner.
    pub fn expected(&self) -> Duration {
        2 * self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Time {
        Time::from_millis(n)
    }

    #[test]
    fn the_pace_follows_a_burst_and_forgets_it() {
        let mut pace = Pace::default();
        pace.wrote(ms(1000), 1000);
        // One write in no time: as if it had taken a millisecond.
        assert_eq!(pace.bytes_in(ms(1000), Duration::from_millis(3)), 3000);
        assert_eq!(pace.bytes_in(ms(1002), Duration::from_millis(3)), 1500);
        for n in 1..8 {
            pace.wrote(ms(1000 + n), 1000);
        }
        // 4,000 bytes in the 4 ms before, 4,000 in the 3 ms since.
        assert_eq!(pace.bytes_in(ms(1007), Duration::from_millis(3)), 4000);
        assert_eq!(pace.last(), ms(1007));
        assert_eq!(pace.bytes_in(ms(1020), Duration::from_millis(3)), 0);
        pace.wrote(ms(1021), 0);
        assert_eq!(pace.last(), ms(1007), "a read writes nothing");
    }

    #[test]
    fn the_delay_is_the_longest_of_late() {
        let mut delay = Delay::default();
        delay.took(Duration::from_millis(5));
        assert_eq!(delay.expected(), Duration::from_millis(10));
        delay.took(Duration::from_secs(9));
        assert_eq!(delay.expected(), 2 * DELAY_MAX);
        for _ in 0..200 {
            delay.took(Duration::from_micros(100));
        }
        assert!(delay.expected() < Duration::from_micros(220));
    }
}
