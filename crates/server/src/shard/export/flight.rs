//! Parts that were sent and are not answered yet.

use std::collections::VecDeque;

/// Most parts in flight, however small they are.
const PARTS_MAX: usize = 64;

/// The parts of one export that are in flight, and the totals since it began. Parts are answered in order.
#[derive(Debug, Default)]
pub(super) struct PartsInFlight {
    bytes: VecDeque<usize>,
    unanswered: usize,
    sent: u64,
    answered: u64,
    sent_bytes: u64,
}

impl PartsInFlight {
    /// Whether another part may be sent, if this many bytes may be in flight.
    pub fn has_room(&self, window: usize) -> bool {
        self.bytes.len() < PARTS_MAX && self.unanswered < window
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Records that a part was sent.
    pub fn sent(&mut self, bytes: usize) {
        self.bytes.push_back(bytes);
        self.unanswered += bytes;
        self.sent += 1;
        self.sent_bytes += bytes as u64;
    }

    /// Records that the oldest part in flight was answered; returns its number, from 1 on.
    pub fn answered(&mut self) -> u64 {
        self.answered += 1;
        self.unanswered -= self.bytes.pop_front().unwrap_or(0);
        debug_assert_eq!(self.unanswered, self.bytes.iter().sum::<usize>(), "the sum of all parts");
        self.answered
    }

    /// The number of the next part.
    pub fn next(&self) -> u64 {
        self.sent + 1
    }

    /// Bytes of all parts that were sent.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_counts_parts_and_bytes_that_are_not_answered() {
        let mut parts = PartsInFlight::default();
        assert!(parts.is_empty() && parts.has_room(1));
        parts.sent(10);
        assert!(!parts.has_room(10) && parts.has_room(11));
        (1..PARTS_MAX).for_each(|_| parts.sent(0));
        assert!(!parts.has_room(usize::MAX), "small parts count as well");
        assert_eq!((parts.answered(), parts.next()), (1, PARTS_MAX as u64 + 1));
        assert!(parts.has_room(1) && !parts.is_empty());
        assert_eq!(parts.sent_bytes(), 10);
    }
}
