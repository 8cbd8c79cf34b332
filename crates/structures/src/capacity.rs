//! How the capacity of a block grows in place: when a block requests more, and its answers until it has it.

use crate::{Answer, busy};
use honeycomb_block::Backing;
use honeycomb_types::Time;
use honeycomb_wire::Status;

/// Retry delay of an operation for which the capacity will soon be large enough, in microseconds.
const RETRY_LARGER_US: u64 = 200;

/// The controller's answer to a block that requested a larger capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// Bytes that the block may hold.
    Granted(usize),
    /// The capacity does not grow now: the block continues in another block if it has to.
    Denied(Status, String),
}

/// A block that begins with a part of its bytes, and whose capacity grows in place up to the block size.
///
/// Bytes from the capacity on are neither read nor written. A block requests more before it is full
/// (`wants_capacity`), and receives it (`capacity`). `CapacityRequest` does this bookkeeping.
pub trait Enlarge {
    /// Bytes that the block needs to hold and has not requested yet. Called after every change of the block;
    /// the shard sends a request for each `Some`. `expected` bytes are likely to arrive before the answer.
    fn wants_capacity(&mut self, expected: usize) -> Option<usize>;

    /// The controller's answer to the request.
    fn capacity(&mut self, block: &mut Backing, now: Time, answer: Capacity);
}

/// The requests of one block for a larger capacity.
pub struct CapacityRequest {
    capacity: usize,
    /// The block size.
    most: usize,
    /// Bytes of the largest operation that did not fit, since the last answer.
    lacks: usize,
    asked: bool,
    /// Why the last request was refused.
    denied: Option<(Status, String)>,
}

impl CapacityRequest {
    /// Of a block of `most` bytes that may hold `capacity` at first.
    pub fn new(capacity: usize, most: usize) -> CapacityRequest {
        assert!(0 < capacity && capacity <= most, "INV-60: {capacity} of {most} bytes are usable");
        CapacityRequest { capacity, most, lacks: 0, asked: false, denied: None }
    }

    /// Bytes that the block may hold now.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.capacity
    }

    /// The block size.
    #[inline]
    pub fn most(&self) -> usize {
        self.most
    }

    /// Whether the block grows in place before it continues in another block.
    pub fn may_grow(&self) -> bool {
        self.capacity < self.most && self.denied.is_none()
    }

    /// Notes an operation that needs `bytes` more than are free. Returns its answer: it waits for a larger
    /// capacity, or it is refused because a block of this capacity cannot hold it. `None` if another block
    /// helps.
    pub fn refuse(&mut self, bytes: usize) -> Option<Answer> {
        if self.capacity == self.most {
            return None;
        }
        self.lacks = self.lacks.max(bytes);
        match self.denial() {
            None => Some(busy(RETRY_LARGER_US)),
            denial => denial.filter(|_| bytes > self.capacity / 2),
        }
    }

    /// The refusal of an operation for which no other block has room either; `None` if the capacity was not
    /// denied.
    pub fn denial(&self) -> Option<Answer> {
        let (status, why) = self.denied.as_ref()?;
        Some(Answer::refuse(*status, why.clone()))
    }

    /// The bytes to request now, with this many in use, and so many expected before the answer: several
    /// times the capacity when half of it is used, and what an operation lacks.
    pub fn wanted(&mut self, used: usize, expected: usize) -> Option<usize> {
        if self.capacity == self.most || self.asked {
            return None;
        }
        let filling = used + expected > self.capacity / 2;
        if self.lacks == 0 && !filling {
            return None;
        }
        self.asked = true;
        let needed = used + self.lacks + self.lacks / 8 + expected;
        Some(needed.max(self.capacity + 1).min(self.most))
    }

    /// The controller's answer. Returns whether the capacity has grown.
    pub fn answered(&mut self, answer: Capacity) -> bool {
        (self.asked, self.lacks) = (false, 0);
        match answer {
            Capacity::Granted(bytes) => {
                let (before, most) = (self.capacity, self.most);
                assert!(bytes <= most, "INV-60: {bytes} bytes of a block of {most} are granted");
                self.capacity = before.max(bytes);
                self.denied = None;
                bytes > before
            }
            // It does not mean a lack of room: the request is repeated.
            Capacity::Denied(status, _) if status.is_passing() => false,
            Capacity::Denied(status, why) => {
                self.denied = Some((status, why));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = 64 << 10;

    #[test]
    fn block_requests_more_when_half_is_used_and_once_at_a_time() {
        let mut request = CapacityRequest::new(UNIT, 64 * UNIT);
        assert_eq!(request.wanted(UNIT / 2, 0), None);
        assert_eq!(request.wanted(UNIT / 2 + 1, 0), Some(UNIT + 1));
        assert_eq!(request.wanted(UNIT, 0), None, "the first request is not answered");
        assert!(request.answered(Capacity::Granted(4 * UNIT)));
        assert_eq!((request.bytes(), request.wanted(UNIT, 0)), (4 * UNIT, None));
        assert_eq!(request.wanted(UNIT, 100 * UNIT), Some(64 * UNIT), "no more than a block");
        assert!(request.answered(Capacity::Granted(64 * UNIT)));
        assert!(!request.may_grow() && request.refuse(1).is_none());
        assert_eq!(request.wanted(64 * UNIT, 0), None);
    }

    #[test]
    fn operation_waits_until_the_capacity_is_denied_and_is_refused_if_no_such_block_holds_it() {
        let mut request = CapacityRequest::new(UNIT, 64 * UNIT);
        assert_eq!(request.refuse(8 * UNIT).map(|answer| answer.status), Some(Status::Busy));
        assert_eq!(request.wanted(10, 0), Some(10 + 9 * UNIT));
        request.answered(Capacity::Denied(Status::Busy, String::new()));
        assert!(request.may_grow(), "the request is repeated");
        assert_eq!(request.wanted(10, 0), None, "when an operation needs it");
        request.answered(Capacity::Denied(Status::OutOfMemory, "full".into()));
        assert!(!request.may_grow());
        assert!(request.refuse(UNIT / 4).is_none(), "another block has room for it");
        let refused = request.refuse(UNIT).map(|answer| answer.status);
        assert_eq!(refused, Some(Status::OutOfMemory));
        assert!(request.wanted(10, 0).is_some(), "memory may be free again");
        request.answered(Capacity::Granted(16 * UNIT));
        assert!(request.may_grow());
    }
}
