//! Writes to a full cluster: a writer is delayed before it is refused, longer each time. So writers slow down
//! to the rate at which blocks are freed, and a cluster that is full only briefly refuses no writer. A quota
//! refuses at once, but no writer by an answer from before its request.

use super::BlockSlot;
use honeycomb_structures::Answer;
use honeycomb_types::Time;
use honeycomb_types::limits::FULL_PATIENCE;
use honeycomb_wire::{Status, busy};
use std::time::Duration;

/// The shortest delay of a writer.
const WAIT_LEAST: Duration = Duration::from_millis(1);
/// The longest delay.
const WAIT_MOST: Duration = Duration::from_millis(100);
/// The time for which an answer that a quota is exceeded refuses writers, and the longest delay of a writer
/// that waits for a newer answer.
const QUOTA_REFUSES: Duration = Duration::from_millis(100);
/// The shortest time between two requests for a block.
const ASK_AGAIN_LEAST: Duration = Duration::from_millis(20);
/// The longest time.
const ASK_AGAIN_MOST: Duration = Duration::from_millis(250);

/// The time since which a block has been full, without an available successor.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FullSince {
    since: Option<Time>,
    /// When a writer was last delayed.
    last: Time,
}

impl FullSince {
    /// Records that no block was available for a request at this time. Returns the time of the next request.
    pub(super) fn denied(&mut self, asked: Time, now: Time) -> Time {
        let since = *self.since.get_or_insert(asked);
        assert!(since <= now, "INV-33: a block is full since {since}, after {now}");
        now + (now.since(since) / 4).clamp(ASK_AGAIN_LEAST, ASK_AGAIN_MOST)
    }

    /// Records that a block is available.
    pub(super) fn ends(&mut self) {
        self.since = None;
    }

    /// The delay of a writer; `None` if the writer must be refused for lack of room. After a time without
    /// requests, the first delay is the shortest again.
    fn wait(&mut self, now: Time) -> Option<Duration> {
        if self.since.is_some() && now > self.last + FULL_PATIENCE && self.last > Time::ZERO {
            self.since = Some(now);
        }
        self.last = now;
        let since = *self.since.get_or_insert(now);
        assert!(since <= now, "INV-33: a writer is delayed at {now}, before {since}");
        let waited = now.since(since);
        (waited < FULL_PATIENCE).then(|| (waited / 2).clamp(WAIT_LEAST, WAIT_MOST))
    }
}

/// The last refusal of memory to a block by a quota.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QuotaRefusal {
    /// When it arrived, if it is the controller's last answer.
    at: Option<Time>,
    /// When a writer first waited for a newer answer.
    waits_since: Option<Time>,
}

impl QuotaRefusal {
    /// Records an answer of the controller.
    pub(super) fn answered(&mut self, now: Time, status: Status) {
        if !status.is_passing() {
            let at = (status == Status::QuotaExceeded).then_some(now);
            *self = QuotaRefusal { at, waits_since: None };
        }
    }

    /// Whether a writer that is refused now waits for a newer answer instead: the quota may be larger, or the
    /// job's use smaller.
    fn is_old(&mut self, now: Time) -> bool {
        if self.at.is_none_or(|at| now < at + QUOTA_REFUSES) {
            return false;
        }
        now < *self.waits_since.get_or_insert(now) + QUOTA_REFUSES
    }
}

impl BlockSlot {
    /// Replaces a refusal for lack of room by a delay, until the writer was delayed for long enough.
    pub(super) fn patiently(&mut self, now: Time, answer: Answer) -> Answer {
        match answer.status {
            Status::OutOfMemory => match self.successor.full.wait(now) {
                Some(wait) => {
                    let value = wait.as_micros() as u64 | busy::FULL;
                    Answer { status: Status::Busy, value, ..answer }
                }
                None => answer,
            },
            Status::QuotaExceeded if self.successor.quota.is_old(now) => {
                self.enlarging.at_once(now);
                self.successor.at_once(now);
                let value = WAIT_LEAST.as_micros() as u64;
                Answer { status: Status::Busy, value, ..answer }
            }
            _ => answer,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_waits_longer_each_time_and_is_told_in_the_end() {
        let mut full = FullSince::default();
        let begun = Time::from_millis(5000);
        let (mut now, mut waits) = (begun, Vec::new());
        full.denied(begun, begun);
        while let Some(wait) = full.wait(now) {
            waits.push(wait);
            now = now + wait;
        }
        assert!(waits.is_sorted(), "{waits:?}");
        assert_eq!((waits[0], *waits.last().unwrap()), (WAIT_LEAST, WAIT_MOST));
        let all = now.since(begun);
        assert!((FULL_PATIENCE..FULL_PATIENCE + WAIT_MOST).contains(&all), "{all:?}");
        // From then on every writer is refused, until a block was available, or there were no requests for a
        // while.
        assert_eq!(full.wait(now + WAIT_MOST), None);
        assert_eq!(full.wait(now + 3 * FULL_PATIENCE), Some(WAIT_LEAST));
        full.ends();
        assert_eq!(full.wait(now + 3 * FULL_PATIENCE), Some(WAIT_LEAST));
    }

    #[test]
    fn a_block_asks_less_often_and_often_enough() {
        let mut full = FullSince::default();
        let (mut now, mut asked) = (Time::from_millis(1000), 0);
        let begun = now;
        let mut longest = Duration::ZERO;
        while now.since(begun) < Duration::from_secs(10) {
            let again = full.denied(begun, now);
            longest = longest.max(again.since(now));
            (now, asked) = (again, asked + 1);
        }
        assert_eq!(longest, ASK_AGAIN_MOST);
        assert!(asked < 70, "{asked}");
    }
}
