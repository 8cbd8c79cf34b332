//! The monotonic clock.

use honeycomb_types::Time;
use std::time::{Duration, Instant, SystemTime};

/// A process's monotonic clock. Its origin is its creation; copies share it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    /// What it showed at its origin.
    base: Time,
}

impl Clock {
    /// Starts a clock at zero.
    pub fn start() -> Clock {
        Clock::start_at(Time::ZERO)
    }

    /// Starts a clock that goes on from where an earlier process's stood.
    #[allow(clippy::disallowed_methods)]
    pub fn start_at(base: Time) -> Clock {
        Clock { origin: Instant::now(), base }
    }

    /// The present.
    #[allow(clippy::disallowed_methods)]
    pub fn now(&self) -> Time {
        self.base + self.origin.elapsed()
    }

    /// Waits until a time, for callers that have nothing better to wait for.
    #[allow(clippy::disallowed_methods)]
    pub fn sleep_until(&self, until: Time) {
        let left = until.since(self.now());
        if left > Duration::ZERO {
            std::thread::sleep(left);
        }
    }
}

/// The time of day, since 1970 in UTC, to be shown to people and for nothing else: it jumps, and
/// nodes differ. Zero when the machine believes to be before that.
#[allow(clippy::disallowed_methods)]
pub fn time_of_day() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
