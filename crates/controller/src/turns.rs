//! Decides when a lease may expire: only after all requests that arrived in time were read, and never because
//! of a stall.
//!
//! A controller whose process is stopped, throttled or not scheduled reads no requests, and the clients on
//! its machine are often delayed, too. Two rules keep leases alive meanwhile (INV-27); the simulator runs the
//! same code.
//!
//! 1. A lease expires only if its end is before the time since which every socket was polled again: a
//!    renewal that had arrived by then has been applied.
//! 2. The length of a stall is added to all leases, once. A stall is time in which the loop's thread neither
//!    worked nor slept as intended; the kernel interrupts the sleep of a process that is stopped. Only a
//!    stall of the whole machine within a sleep is not noticed, and takes its time from the leases. A sleep
//!    therefore lasts at most a fraction of the time until a lease may end (`LOOK_SHARE`), or `LOOK_LEAST`. A
//!    loop whose leases are long wakes up seldom.

use honeycomb_catalog::Command;
use honeycomb_types::limits::{AMNESTY_AFTER, LOOK_LEAST, LOOK_MAX, LOOK_SHARE, STALL_LEAST};
use honeycomb_types::{Bug, Time};
use std::time::Duration;

/// Turns that together are shorter than this count as one, because reading a thread's CPU time is a system
/// call.
const SAMPLE: Duration = Duration::from_millis(5);

/// The turns of a controller's loop.
#[derive(Debug)]
pub struct Turns {
    /// The last reading of the clock, and the total time of work and sleep at that moment.
    looked: Option<(Time, Duration)>,
    /// The beginning of the last turn after which every socket was polled.
    begun: Time,
    heard: Time,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The command for the catalog after a stall; it is applied before any lease ends.
    pub stall: Option<Command<'static>>,
    /// Every request that had arrived by this time was applied.
    pub heard: Time,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { looked: None, begun: Time::ZERO, heard: Time::ZERO }
    }
}

impl Turns {
    /// Records a turn that has applied the requests it read. `asked_all`: every socket was polled since the
    /// last turn with `asked_all`. `spent` is the total time in which the loop's thread worked or slept as
    /// intended.
    pub fn turn(&mut self, now: Time, asked_all: bool, spent: impl FnOnce() -> Duration) -> Turn {
        let begun = self.begun;
        assert!(begun <= now, "INV-27: a turn at {now} follows one at {begun}");
        if asked_all {
            self.heard = std::mem::replace(&mut self.begun, now);
        }
        assert!(self.heard <= now, "INV-27: requests until {} are read at {now}", self.heard);
        let heard = if Bug::ExpiresUnheard.active() { now } else { self.heard };
        Turn { stall: self.stall(now, spent), heard }
    }

    /// The time until which the loop may sleep after a turn: `due`, or earlier if a lease may end at
    /// `lease_end`.
    pub fn wake(now: Time, due: Time, lease_end: Option<Time>) -> Time {
        let look = |end: Time| now + (end.since(now) / LOOK_SHARE).clamp(LOOK_LEAST, LOOK_MAX);
        lease_end.map_or(due, |end| due.min(look(end)))
    }

    fn stall(&mut self, now: Time, spent: impl FnOnce() -> Duration) -> Option<Command<'static>> {
        let (then, before) = match self.looked {
            Some((then, _)) if now.since(then) < SAMPLE => return None,
            looked => looked.unwrap_or((now, Duration::ZERO)),
        };
        let spent = spent();
        self.looked = Some((now, spent));
        let length = now.since(then).saturating_sub(spent.saturating_sub(before));
        match length {
            length if length > AMNESTY_AFTER => Some(Command::Amnesty),
            length if length > STALL_LEAST && !Bug::StallForgotten.active() => {
                Some(Command::Stalled { length })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    fn length(turn: Turn) -> Option<u64> {
        match turn.stall {
            None => None,
            Some(Command::Stalled { length }) => Some(length.as_millis() as u64),
            Some(Command::Amnesty) => Some(u64::MAX),
            Some(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn nothing_ends_before_what_had_arrived_by_then_was_read() {
        let mut turns = Turns::default();
        let idle = || Duration::ZERO;
        assert_eq!(turns.turn(ms(10), true, idle).heard, ms(0));
        assert_eq!(turns.turn(ms(30), true, idle).heard, ms(10));
        // A turn that read only one busy connection proves nothing about the others.
        assert_eq!(turns.turn(ms(40), false, idle).heard, ms(10));
        assert_eq!(turns.turn(ms(50), true, idle).heard, ms(30));
        // After a stall of 800 ms, the first turn expires no lease that was due during it.
        assert_eq!(turns.turn(ms(850), true, idle).heard, ms(50));
        assert_eq!(turns.turn(ms(851), true, idle).heard, ms(850));
    }

    #[test]
    fn a_stall_is_time_without_work_and_counts_once() {
        let mut turns = Turns::default();
        let mut turn =
            |at, worked| length(turns.turn(ms(at), true, || Duration::from_millis(worked)));
        assert_eq!(turn(1000, 500), None, "the first reading has nothing to compare with");
        assert_eq!(turn(1025, 500), None);
        assert_eq!(turn(1075, 500), None, "50 ms are no stall");
        assert_eq!(turn(1136, 500), Some(61));
        assert_eq!(turn(1140, 500), None, "a stall is counted once");
        assert_eq!(turn(1161, 500), None);
        assert_eq!(turn(1761, 1095), None, "the loop's own work is no stall");
        assert_eq!(turn(2461, 1195), Some(600), "of 700 ms it worked 100");
        assert_eq!(turn(3561, 1195), Some(u64::MAX), "a long stall is an amnesty");
    }

    #[test]
    fn sleep_is_as_long_as_the_leases_permit() {
        let wake = |due, end: Option<u64>| Turns::wake(ms(9000), ms(due), end.map(ms)).as_millis();
        assert_eq!(wake(90_000, None), 90_000, "without leases nothing bounds it");
        assert_eq!(wake(90_000, Some(9010)), 9025);
        assert_eq!(wake(90_000, Some(11_000)), 9050);
        assert_eq!(wake(90_000, Some(86_409_000)), 9250);
        assert_eq!(wake(9100, Some(86_409_000)), 9100);
        assert_eq!(wake(90_000, Some(8000)), 9025, "an end that is due");
    }
}
