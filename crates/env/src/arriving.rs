//! Requests that have arrived in part: their deadline and their memory.

use crate::budget::Permit;
use honeycomb_types::limits::{CONNECTION_STALL, REQUEST_RATE_LEAST};
use honeycomb_types::{Bug, Time};
use std::time::Duration;

/// The deadline of a whole request. Progress does not move it: a sender of single bytes would hold memory,
/// and block later requests, without end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arriving(Option<(Time, usize)>);

impl Arriving {
    /// Bytes of the request have arrived; `bytes` is its length as far as that is known.
    pub fn goes_on(&mut self, now: Time, bytes: usize) {
        let began = match self.0 {
            Some((began, _)) if !Bug::DeadlineRestarts.active() => began,
            _ => now,
        };
        self.0 = Some((began, bytes));
    }

    /// The loop paused reading because the sender read no replies: the deadline begins anew.
    pub fn resumes(&mut self, now: Time) {
        self.0 = self.0.map(|(_, bytes)| (now, bytes));
    }

    /// The request is complete, or is given up.
    pub fn ends(&mut self) {
        self.0 = None;
    }

    /// Whether it has taken longer than any request may.
    pub fn is_overdue(&self, now: Time) -> bool {
        self.0.is_some_and(|(began, bytes)| {
            let time = Duration::from_secs((bytes / REQUEST_RATE_LEAST) as u64);
            now.since(began) > CONNECTION_STALL + time
        })
    }
}

/// A large payload that is gathered in a buffer of its own. An announced payload takes no memory: pages
/// become resident as they are written, and are counted then.
#[derive(Debug)]
pub struct Gathering {
    bytes: Vec<u8>,
    filled: usize,
    permit: Permit,
}

impl Gathering {
    /// An empty buffer for a payload of so many bytes.
    pub fn new(bytes: usize, permit: Permit) -> Gathering {
        let mut gathering = Gathering { bytes: vec![0; bytes], filled: 0, permit };
        if Bug::SharesCountAnnounced.active() {
            gathering.permit.resize(bytes);
        }
        gathering
    }

    /// Where the next bytes go.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// `n` bytes have arrived. False when the payload is to be given up: it is not whole, and its job may
    /// have no more.
    pub fn filled(&mut self, n: usize) -> bool {
        self.filled += n;
        if !Bug::SharesCountAnnounced.active() {
            self.permit.resize(self.filled);
        }
        self.filled == self.bytes.len() || self.permit.admits(false)
    }

    /// All of them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
