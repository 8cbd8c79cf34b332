//! Growth of a block by a successor at its end. Blocks request successors early, and return unused ones.

use super::full::{FullSince, QuotaRefusal};
use crate::pace::Pace;
use honeycomb_types::Time;
use honeycomb_types::limits::SUCCESSOR_IDLE;
use honeycomb_wire::Status;
use std::time::Duration;

/// How often a block that was refused a successor requests again, except for lack of room.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(20);

/// A block's requests to the controller for a successor.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SuccessorState {
    /// When a block that was refused a successor may request one again.
    again_at: Time,
    /// When it requested one, until the answer arrives.
    requested_at: Option<Time>,
    /// When to check whether its granted successor is still needed.
    idle_at: Option<Time>,
    /// The time for which there was no room for a successor.
    pub full: FullSince,
    /// The last refusal of memory by a quota.
    pub quota: QuotaRefusal,
}

impl SuccessorState {
    /// Whether the block may request a successor now.
    pub fn may_request(&self, now: Time) -> bool {
        now >= self.again_at
    }

    /// A refused request may be repeated now.
    pub fn at_once(&mut self, now: Time) {
        self.again_at = self.again_at.min(now);
    }

    pub fn requested(&mut self, now: Time) {
        self.requested_at = Some(now);
    }

    /// The controller has refused one.
    pub fn denied(&mut self, now: Time, status: Status) {
        if status == Status::OutOfMemory {
            let requested = self.requested_at.take().unwrap_or(now);
            self.again_at = self.full.denied(requested, now);
            return;
        }
        self.again_at = now + ASK_AGAIN;
        if status == Status::Busy {
            self.full.ends(); // Memory is being freed.
        }
    }

    /// The controller has granted one. Returns the time that this took.
    pub fn granted(&mut self, now: Time) -> Option<Duration> {
        self.idle_at = Some(now + SUCCESSOR_IDLE);
        self.full.ends();
        self.requested_at.take().map(|requested| now.since(requested))
    }

    /// When to check whether the granted successor is still needed.
    pub fn due(&self) -> Option<Time> {
        self.idle_at
    }

    /// Whether the check is due, and the block was not written for long enough.
    pub fn is_idle(&mut self, now: Time, pace: &Pace) -> bool {
        if self.idle_at.is_none_or(|due| due > now) {
            return false;
        }
        let idle_from = pace.last() + SUCCESSOR_IDLE;
        self.idle_at = (idle_from > now).then_some(idle_from);
        self.idle_at.is_none()
    }
}
