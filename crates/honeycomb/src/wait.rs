//! Waiting: how long a command may wait for an event.
//!
//! The option is `--wait`, because `--timeout` is the setting for the timeout of each request.

use honeycomb_env::Clock;
use honeycomb_types::Time;
use std::time::Duration;

/// The longest wait of one client call; longer waits repeat the call.
const PIECE: Duration = Duration::from_secs(3600);

/// Parses a number of seconds, 0 included, as a clap parser.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.trim().parse::<f64>() {
        Ok(seconds) if (0.0..1e9).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("'{text}' is not a number of seconds, such as 0, 0.5 or 60")),
    }
}

/// A deadline for a wait.
pub struct Patience {
    clock: Clock,
    wait: Option<Duration>,
    until: Option<Time>,
}

impl Patience {
    /// Begins a wait; `None` has no limit.
    pub fn new(wait: Option<Duration>) -> Patience {
        let clock = Clock::start();
        let mut patience = Patience { clock, wait, until: None };
        patience.renew();
        patience
    }

    /// Restarts the wait.
    pub fn renew(&mut self) {
        self.until = self.wait.map(|wait| self.clock.now() + wait);
    }

    /// The remaining time, for one call of the client; zero when it is over.
    pub fn left(&self) -> Duration {
        self.until.map_or(PIECE, |until| until.since(self.clock.now()).min(PIECE))
    }

    /// Whether the time has elapsed. A call that returned earlier was interrupted by a signal.
    pub fn over(&self) -> bool {
        self.until.is_some_and(|until| self.clock.now() >= until)
    }

    /// The duration of the wait for people: ` within 5 s`, or nothing without a wait.
    pub fn shown(&self) -> String {
        match self.wait {
            Some(wait) if !wait.is_zero() => format!(" within {} s", wait.as_secs_f64()),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_read_and_a_wait_of_none_is_over_at_once() {
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        assert_eq!(seconds(" 1.5 "), Ok(Duration::from_millis(1500)));
        for wrong in ["-1", "soon", "", "inf", "NaN", "1e9"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        let none = Patience::new(Some(Duration::ZERO));
        assert!(none.over() && none.left().is_zero() && none.shown().is_empty());
        let forever = Patience::new(None);
        assert!(!forever.over() && forever.left() == PIECE);
        let long = Patience::new(Some(Duration::from_secs(90)));
        assert!(!long.over() && long.left() > Duration::from_secs(60));
        assert_eq!(long.shown(), " within 90 s");
    }
}
