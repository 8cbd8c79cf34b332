//! The write rate of a block, and the delay of the controller. From both a block computes how early to
//! request its successor, so that no writer waits at the end of the block.

use honeycomb_types::Time;
use std::time::Duration;

/// The span over which written bytes are summed.
const SPAN: Duration = Duration::from_millis(4);
/// The least length assumed for a span that has just begun, because a single write gives no rate.
const SPAN_LEAST: Duration = Duration::from_millis(1);
/// The expected delay before any was measured.
const DELAY_FIRST: Duration = Duration::from_millis(1);
/// A delay above this is an outage, for which a block does not grow ahead.
const DELAY_MAX: Duration = Duration::from_millis(200);

/// Bytes recently written to one block.
///
/// The rate is the greater one of two neighbouring spans, including the present one, so that it follows a
/// burst at once and forgets it after two spans.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    span: Time,
    bytes: u64,
    before: u64,
    last: Time,
}

impl Pace {
    /// Counts written bytes.
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

    /// Bytes that arrive in this time at the present rate.
    pub fn bytes_in(&mut self, now: Time, time: Duration) -> usize {
        self.turn(now);
        let running = now.since(self.span).max(SPAN_LEAST);
        let per = |bytes: u64, span: Duration| {
            usize::try_from(bytes as u128 * time.as_nanos() / span.as_nanos()).unwrap_or(usize::MAX)
        };
        per(self.bytes, running).max(per(self.before, SPAN))
    }

    /// When it was last written.
    pub fn last(&self) -> Time {
        self.last
    }
}

/// The recent delay of the controller: the longest, which decays by a sixteenth with every shorter one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delay(Duration);

impl Default for Delay {
    fn default() -> Delay {
        Delay(DELAY_FIRST)
    }
}

impl Delay {
    /// Notes a delay.
    pub fn took(&mut self, time: Duration) {
        self.0 = time.min(DELAY_MAX).max(self.0 - self.0 / 16);
    }

    /// The expected delay: twice the recent one, because a late request makes a writer wait, while an early
    /// one only allocates a block a little sooner.
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
        // One write in no time counts as if it had taken a millisecond.
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
