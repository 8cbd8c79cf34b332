//! Time in the state machines: a number that only grows, passed in from outside.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point on one node's monotonic clock, in nanoseconds since an origin of its own.
///
/// Points of different nodes must never be compared; only durations travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Time(pub u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);
    /// Later than every other point.
    pub const NEVER: Time = Time(u64::MAX);

    /// The duration since `earlier`; zero if it is not earlier.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Whole milliseconds since the origin.
    pub fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// The point `ms` milliseconds after the origin.
    pub fn from_millis(ms: u64) -> Time {
        Time(ms.saturating_mul(1_000_000))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(d.as_nanos().min(u64::MAX as u128) as u64))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, d: Duration) -> Time {
        Time(self.0.saturating_sub(d.as_nanos().min(u64::MAX as u128) as u64))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000_000, self.0 / 1000 % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(Time::ZERO - Duration::from_secs(1), Time::ZERO);
        assert_eq!(Time::NEVER + Duration::from_secs(1), Time::NEVER);
        assert_eq!(Time(5).since(Time(7)), Duration::ZERO);
        assert_eq!(Time::from_millis(1500).as_millis(), 1500);
    }
}
