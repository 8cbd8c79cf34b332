//! The monotonic clock.

use honeycomb_types::Time;
use std::time::{Duration, Instant, SystemTime};

/// A process's monotonic clock. Its origin is its creation; copies share it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    /// Its value at its origin.
    base: Time,
}

impl Clock {
    /// Starts a clock at zero.
    pub fn start() -> Clock {
        Clock::start_at(Time::ZERO)
    }

    /// Starts a clock that continues from the value of an earlier process's clock.
    #[allow(clippy::disallowed_methods)]
    pub fn start_at(base: Time) -> Clock {
        Clock { origin: Instant::now(), base }
    }

    /// The present.
    #[allow(clippy::disallowed_methods)]
    pub fn now(&self) -> Time {
        self.base + self.origin.elapsed()
    }

    /// Sleeps until a time, for callers that wait for no other event.
    #[allow(clippy::disallowed_methods)]
    pub fn sleep_until(&self, until: Time) {
        let left = until.since(self.now());
        if left > Duration::ZERO {
            std::thread::sleep(left);
        }
    }
}

/// The time of day, since 1970 in UTC, only for display: it jumps, and differs between nodes. Zero
/// if the machine's clock is before 1970.
#[allow(clippy::disallowed_methods)]
pub fn time_of_day() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
