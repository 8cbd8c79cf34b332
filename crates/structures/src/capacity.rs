//! Changes of a block's capacity in place: when a block requests a larger capacity, how the block answers
//! operations until then, and how a block reduces a capacity that the content does not need.

use crate::{Answer, busy};
use honeycomb_block::{Backing, HUGE_FROM};
use honeycomb_types::limits::{CAPACITY_HUGE, CAPACITY_PARTS};
use honeycomb_types::{BlockUnits, Bug, Time};
use honeycomb_wire::Status;

/// Retry delay of an operation for which the capacity will soon be large enough, in microseconds.
const RETRY_LARGER_US: u64 = 200;
/// A store's block requests a larger capacity when the free bytes are less than this part of the block size
/// and less than half of the capacity.
const ROOM: (usize, usize) = (3, 32);
/// A block of a file or a queue never reduces its capacity. When half of the capacity is used, the block
/// requests this many times as much.
const AHEAD: usize = 4;

// The capacities of a block in huge pages are whole numbers of them.
const _: () = assert!(HUGE_FROM as u64 == CAPACITY_HUGE * CAPACITY_PARTS as u64);

/// The controller's answer to a block that requested another capacity.
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
/// (`wants_capacity`), and receives it (`capacity`). A block may also reduce its capacity
/// (`give_capacity`), and then informs the controller by the same request. `CapacityRequest` does this
/// bookkeeping.
pub trait Enlarge {
    /// The capacity in bytes that the block has to request: a larger one, or its reduced one. Called after
    /// every change of the block; the shard sends a request for each `Some`. `expected` bytes are likely to
    /// arrive before the answer.
    fn wants_capacity(&mut self, expected: usize) -> Option<usize>;

    /// The controller's answer to the request.
    fn capacity(&mut self, block: &mut Backing, now: Time, answer: Capacity);

    /// Reduces the capacity if the content has not needed all of it for some time. Returns the new capacity
    /// in bytes, behind which the memory is freed; `None` if the capacity stays. Called after every change of
    /// a block that is in memory and takes part in no export.
    fn give_capacity(&mut self, _block: &mut Backing, _now: Time) -> Option<usize> {
        None
    }

    /// Whether a refused request is repeated even if no operation changes the block.
    fn repeats(&self) -> bool {
        false
    }
}

/// The requests of one block for another capacity.
pub struct CapacityRequest {
    capacity: usize,
    /// The block size.
    most: usize,
    /// Bytes of the largest operation that did not fit, since the last answer.
    lacks: usize,
    /// Whether the next move to this block needs the capacity of a whole block.
    awaits_move: bool,
    asked: bool,
    /// Whether the controller still counts the capacity before the last reduction.
    untold: bool,
    /// Why the last request was refused.
    denied: Option<(Status, String)>,
}

impl CapacityRequest {
    /// Of a block of `most` bytes that may hold `capacity` at first.
    pub fn new(capacity: usize, most: usize) -> CapacityRequest {
        assert!(0 < capacity && capacity <= most, "INV-60: {capacity} of {most} bytes are usable");
        CapacityRequest {
            capacity,
            most,
            lacks: 0,
            awaits_move: false,
            asked: false,
            untold: false,
            denied: None,
        }
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

    /// The least free bytes of a block that requests no larger capacity.
    fn room(&self) -> usize {
        (self.capacity / 2).min(self.most / ROOM.1 * ROOM.0)
    }

    /// The least capacity with which a block whose extents end here requests no larger capacity. `None` if
    /// that is no reduction, or if the controller has not answered the last request. A block with a huge page
    /// keeps the page.
    pub fn reduced(&self, end: usize) -> Option<usize> {
        let CapacityRequest { capacity, most, asked, .. } = *self;
        let needed = (2 * end).min(end + most / ROOM.1 * ROOM.0);
        if asked || needed >= capacity {
            return None;
        }
        let least = if most < HUGE_FROM { 0 } else { CAPACITY_HUGE };
        let units = BlockUnits::of(most as u64);
        let kept = units.capacity_bytes_for(least.max(needed as u64)) as usize;
        (kept < capacity).then_some(kept)
    }

    /// Reduces the capacity. The next request informs the controller.
    pub fn give(&mut self, kept: usize) {
        let CapacityRequest { capacity, asked, .. } = *self;
        assert!(0 < kept && kept < capacity, "INV-60: {kept} of {capacity} bytes are kept");
        assert!(!asked, "INV-60: a block gives capacity back, and its last request is unanswered");
        (self.capacity, self.lacks, self.denied) = (kept, 0, None);
        self.untold = !Bug::CapacityNotTold.active();
    }

    /// Requests the capacity of a whole block, because content of a move did not fit: the move is repeated.
    pub fn await_move(&mut self) {
        self.awaits_move = self.capacity < self.most;
    }

    /// Whether the capacity is still too small for the next move to this block.
    pub fn awaits_move(&self) -> bool {
        self.awaits_move
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

    /// The bytes to request now, with this many in use, and so many expected before the answer. When few
    /// bytes are free or an operation lacks room, the block requests the next larger capacity. After a
    /// reduction, the first request informs the controller.
    pub fn wanted(&mut self, used: usize, expected: usize) -> Option<usize> {
        if self.untold && !self.asked {
            self.asked = true;
            return Some(self.capacity);
        }
        let least = if self.awaits_move { self.most } else { self.capacity + 1 };
        let filling = used + expected > self.capacity - self.room() || self.awaits_move;
        self.request(filling, used + expected, least)
    }

    /// As `wanted`, for a block that never reduces its capacity: several times the capacity at once.
    pub fn wanted_ahead(&mut self, used: usize, expected: usize) -> Option<usize> {
        let filling = used + expected > self.capacity / 2;
        let least = if filling { AHEAD * self.capacity } else { self.capacity + 1 };
        self.request(filling, used + expected, least)
    }

    fn request(&mut self, filling: bool, needed: usize, least: usize) -> Option<usize> {
        if self.capacity == self.most || self.asked || self.lacks == 0 && !filling {
            return None;
        }
        self.asked = true;
        Some((needed + self.lacks + self.lacks / 8).max(least).min(self.most))
    }

    /// The controller's answer. Returns whether the capacity has grown.
    pub fn answered(&mut self, answer: Capacity) -> bool {
        let informed = std::mem::take(&mut self.untold);
        (self.asked, self.lacks) = (false, 0);
        match answer {
            Capacity::Granted(bytes) => {
                let (before, most) = (self.capacity, self.most);
                assert!(bytes <= most, "INV-60: {bytes} bytes of a block of {most} are granted");
                self.capacity = before.max(bytes);
                (self.denied, self.awaits_move) = (None, self.awaits_move && bytes < most);
                bytes > before
            }
            // It does not mean a lack of room: the request is repeated.
            Capacity::Denied(status, _) if status.is_passing() => {
                self.untold = informed;
                false
            }
            Capacity::Denied(..) if informed => false,
            Capacity::Denied(status, why) => {
                (self.denied, self.awaits_move) = (Some((status, why)), false);
                false
            }
        }
    }

    /// See `Enlarge::repeats`.
    pub fn repeats(&self) -> bool {
        !self.asked && (self.untold || self.awaits_move)
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
        let mut ahead = CapacityRequest::new(4 * UNIT, 64 * UNIT);
        assert_eq!(ahead.wanted_ahead(2 * UNIT, 0), None);
        assert_eq!(ahead.wanted_ahead(2 * UNIT, 1), Some(16 * UNIT));
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

    #[test]
    fn controller_is_informed_of_what_was_given_back_before_anything_else_is_requested() {
        let mut request = CapacityRequest::new(64 * UNIT, 64 * UNIT);
        assert_eq!(request.reduced(58 * UNIT), None, "3/32 stay free");
        assert_eq!(request.reduced(20 * UNIT), Some(32 * UNIT));
        assert_eq!([0, 5 * UNIT].map(|end| request.reduced(end)), [Some(UNIT), Some(16 * UNIT)]);
        let of_huge_pages = CapacityRequest::new(256 * UNIT, 256 * UNIT);
        assert_eq!(of_huge_pages.reduced(0), Some(32 * UNIT), "it keeps a huge page");
        request.give(32 * UNIT);
        assert_eq!((request.bytes(), request.may_grow()), (32 * UNIT, true));
        assert!(request.refuse(40 * UNIT).is_some());
        assert_eq!(request.wanted(20 * UNIT, 0), Some(32 * UNIT));
        assert_eq!(request.reduced(UNIT), None, "the controller has not answered");
        request.answered(Capacity::Denied(Status::Busy, String::new()));
        assert!(request.repeats());
        assert_eq!(request.wanted(20 * UNIT, 0), Some(32 * UNIT));
        assert!(!request.answered(Capacity::Granted(32 * UNIT)) && !request.repeats());
        assert_eq!(request.wanted(27 * UNIT, 0), Some(32 * UNIT + 1));
        request.answered(Capacity::Denied(Status::OutOfMemory, "full".into()));
        // A refusal is forgotten when there is room again.
        request.give(16 * UNIT);
        assert!(request.may_grow());
        request.wanted(10 * UNIT, 0).unwrap();
        request.answered(Capacity::Denied(Status::NotFound, "it has ended".into()));
        assert!(request.may_grow() && !request.repeats(), "nobody is to be informed");
    }
}
