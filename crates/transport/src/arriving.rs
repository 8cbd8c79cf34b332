//! Requests that have arrived in part: their deadline and their memory.

use crate::budget::Permit;
use honeycomb_types::limits::{CONNECTION_STALL, REQUEST_RATE_LEAST};
use honeycomb_types::{Bug, Time};
use std::time::Duration;

/// The deadline of a whole request. Progress does not extend it: otherwise a sender of single bytes
/// could hold memory, and block later requests, without end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arriving(Option<(Time, usize)>);

impl Arriving {
    /// Bytes of the request have arrived; `bytes` is its length as far as it is known.
    pub fn goes_on(&mut self, now: Time, bytes: usize) {
        let began = match self.0 {
            Some((began, _)) if !Bug::DeadlineRestarts.active() => began,
            _ => now,
        };
        self.0 = Some((began, bytes));
    }

    /// The loop paused reading because the sender did not read its replies: the deadline restarts.
    pub fn resumes(&mut self, now: Time) {
        self.0 = self.0.map(|(_, bytes)| (now, bytes));
    }

    /// The request is complete, or abandoned.
    pub fn ends(&mut self) {
        self.0 = None;
    }

    /// Whether it has taken longer than a request may.
    pub fn is_overdue(&self, now: Time) -> bool {
        self.0.is_some_and(|(began, bytes)| {
            let time = Duration::from_secs((bytes / REQUEST_RATE_LEAST) as u64);
            now.since(began) > CONNECTION_STALL + time
        })
    }
}

/// A large payload that is collected in a separate buffer. An announced payload takes no memory:
/// pages become resident, and are counted, as they are written.
#[derive(Debug)]
pub struct Gathering {
    bytes: Vec<u8>,
    filled: usize,
    permit: Permit,
}

impl Gathering {
    /// An empty buffer for a payload of this size.
    pub fn new(bytes: usize, permit: Permit) -> Gathering {
        let mut gathering = Gathering { bytes: vec![0; bytes], filled: 0, permit };
        if Bug::SharesCountAnnounced.active() {
            gathering.permit.resize(bytes);
        }
        gathering
    }

    /// The buffer space for the next bytes.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Records that `n` bytes have arrived. Returns false if the payload must be abandoned: it is
    /// incomplete, and its job may not have more memory.
    pub fn filled(&mut self, n: usize) -> bool {
        self.filled += n;
        if !Bug::SharesCountAnnounced.active() {
            self.permit.resize(self.filled);
        }
        self.filled == self.bytes.len() || self.permit.admits(false)
    }

    /// The complete payload.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
