//! How a structure continues in another block: when a block requests its successor, and its answers until
//! the successor is granted.

use crate::migration::broken;
use crate::{Answer, Capacity, CapacityRequest, Event, Payload, busy};
use honeycomb_block::Backing;
use honeycomb_types::{Marks, Time};
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::{Field, Reader, Status};

/// Retry delay while the controller cannot be reached, or accepts no changes, in microseconds.
const RETRY_CONTROLLER_US: u64 = 20_000;
/// Retry delay while the controller finds the next block, in microseconds.
const RETRY_SUCCESSOR_US: u64 = 300;

/// The controller's answer to a block that requested a successor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Successor {
    /// Encoded arguments of a `Moved` reply (`wire::data::MovedArgs`).
    Ready(Vec<u8>),
    /// No successor is available; operations that need one get this answer meanwhile.
    Denied(Status, String),
}

/// A block of a structure whose router adds blocks at the end.
///
/// A block requests its successor early (`wants_successor`) and receives it (`successor`). When data no
/// longer fits, the block seals itself (`Event::Sealed`). From then on it answers requests for later
/// positions with `Moved` to the successor. `SuccessorRequest` does this bookkeeping. A block never knows its
/// position in the structure: it counts from its own start, and clients add the offset.
///
/// A sealed block that is empty for good reports it once (`Event::Drained`). When no caller can request one
/// of its answers again, and if the router shrinks, the block is removed from the map and freed.
pub trait Growth {
    /// Whether the block needs a successor and has not requested one yet. Called after every change of the
    /// block; the shard sends a request for each `true`, and so the block returns it once for each request:
    /// again only after `successor` with a refusal, or after `give_back`.
    fn wants_successor(&mut self) -> bool;

    /// The controller's answer to the request.
    fn successor(&mut self, block: &mut Backing, now: Time, successor: Successor);

    /// Returns a granted successor that no caller knows yet: the arguments of `Moved` from the grant. `None`
    /// if there is no such successor, or a caller knows it. The block requests a successor again when it
    /// needs one.
    fn give_back(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// The bytes that are likely to arrive before the controller has answered a request for a successor, at
    /// the recent rate of writes and the recent delay of the controller.
    fn expect_bytes(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// Whether no data can be added to the block any more; `None` while earlier payloads are still arriving.
    fn is_final(&self) -> Option<bool>;

    /// The current content of the blocks before this one, for a kind with a bound over all its blocks.
    /// Messages may arrive late, and the content of these blocks only shrinks.
    fn ahead(&mut self, block: &mut Backing, now: Time, items: u64, bytes: u64) {
        let _ = (block, now, items, bytes);
    }

    /// The controller has received the last `Event::Taken`.
    fn taken_received(&mut self, block: &mut Backing, now: Time) {
        let _ = (block, now);
    }
}

/// The state of the block's successor.
enum SuccessorState {
    Unknown {
        /// The length of the tail at which to request a successor.
        again_at: usize,
    },
    Ready(Vec<u8>),
    Denied {
        status: Status,
        message: String,
        /// The length of the tail at which to request a successor again.
        again_at: usize,
    },
}

/// The successor of one block: when to request it, and what to answer until it is granted.
///
/// A block calls `wrote` with every write, implements `Growth::wants_successor` by `wanted`, and
/// `Growth::successor` by `set`. When data does not fit, it calls `take`: with the successor it seals itself
/// and answers `moved`; with a refusal it answers that.
pub struct SuccessorRequest {
    size: usize,
    marks: Marks,
    /// Recent largest write; decays by a sixteenth with every smaller one.
    largest: usize,
    /// Bytes that are likely to arrive before the controller has answered.
    expected: usize,
    asked: bool,
    /// Whether a request is due regardless of the used bytes, as soon as the last one is answered: the block
    /// that this one replaces had a successor, or had requested one, or a client lets the structure continue.
    due: bool,
    /// Whether the next answer, or the last one, is that to such a client.
    required: bool,
    state: SuccessorState,
}

impl SuccessorRequest {
    /// The state for a block of this size without a successor.
    pub fn new(block_size: usize) -> SuccessorRequest {
        let marks = Marks::default();
        let state = SuccessorState::Unknown { again_at: 0 };
        SuccessorRequest {
            size: block_size,
            marks,
            largest: 0,
            expected: 0,
            asked: false,
            due: false,
            required: false,
            state,
        }
    }

    /// Sets the marks at which the block requests a successor.
    pub fn set_marks(&mut self, marks: Marks) {
        self.marks = marks;
    }

    /// Sets the bytes that the block may hold.
    fn set_capacity(&mut self, bytes: usize) {
        self.size = bytes;
    }

    /// Sets the bytes that are expected to arrive before a successor can be granted.
    pub fn expect_bytes(&mut self, bytes: usize) {
        self.expected = bytes;
    }

    /// Notes a write of this length.
    pub fn wrote(&mut self, length: usize) {
        self.largest = length.max(self.largest - self.largest.div_ceil(16));
    }

    /// Whether to request a successor now, with this many used bytes. After `true`, the request is not
    /// repeated before its answer arrived.
    pub fn wanted(&mut self, used: usize) -> bool {
        if self.due && !self.asked {
            (self.due, self.asked) = (false, true);
            return true;
        }
        let again = match &self.state {
            SuccessorState::Ready(_) => false,
            SuccessorState::Unknown { again_at } | SuccessorState::Denied { again_at, .. } => {
                !self.asked && used >= *again_at
            }
        };
        if !again || self.size - used >= self.mark() {
            return false;
        }
        self.asked = true;
        true
    }

    /// The amount of free bytes below which the block requests its successor: the high mark's rest, twice the
    /// largest recent write, and the bytes that arrive before the controller has answered. A new block
    /// requests nothing before a sixteenth of it is used. Otherwise a list of unneeded successors would grow
    /// without any write.
    fn mark(&self) -> usize {
        let mark = self.marks.rest(self.size).max(2 * self.largest).max(self.expected);
        mark.min(self.size - self.size / 16)
    }

    /// Whether it has a successor, or may be granted one that it has requested.
    pub fn may_have(&self) -> bool {
        self.asked || self.due || matches!(self.state, SuccessorState::Ready(_))
    }

    /// A client lets the structure continue in another block: requests a successor at once, however little is
    /// used. The controller may have one although it refuses a request that was sent earlier.
    pub fn require(&mut self) {
        if !self.required && !self.is_ready() {
            self.state = SuccessorState::Unknown { again_at: 0 };
            (self.due, self.required) = (true, true);
        }
    }

    /// The block replaces one that may have been granted a successor, which no other block requests or
    /// returns: it requests one at once. A block that has a successor or has requested one does not: the
    /// answer to a second request would name a successor that was returned meanwhile.
    pub fn ask_again(&mut self) {
        self.due |= !self.asked && !self.is_ready();
    }

    /// The controller's answer.
    pub fn set(&mut self, successor: Successor, used: usize) {
        let (used, size) = (used, self.size);
        assert!(used <= size, "INV-20: {used} of {size} bytes of a block are used");
        self.asked = false;
        self.state = match successor {
            Successor::Ready(args) => {
                (self.due, self.required) = (false, false);
                SuccessorState::Ready(args)
            }
            // The request was sent before a client required a successor.
            Successor::Denied(..) if self.due => SuccessorState::Unknown { again_at: 0 },
            // Requested again when a write does not fit, or every 1/64 of the block until then: often enough
            // to recover before that, and not so often that a full cluster is flooded.
            Successor::Denied(status, message) => {
                SuccessorState::Denied { status, message, again_at: used + self.size / 64 }
            }
        };
    }

    /// Returns the successor, if no caller knows of it. As after a refusal, it is requested again when a
    /// write does not fit, or 1/64 of the block later.
    pub fn give_back(&mut self, used: usize) -> Option<Vec<u8>> {
        let SuccessorState::Ready(_) = &self.state else { return None };
        let later = SuccessorState::Unknown { again_at: used + self.size / 64 };
        match std::mem::replace(&mut self.state, later) {
            SuccessorState::Ready(successor) => Some(successor),
            _ => unreachable!("it was ready just now"),
        }
    }

    /// Whether it has a successor.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, SuccessorState::Ready(_))
    }

    /// The successor, for a block that must seal itself now; otherwise the answer.
    pub fn take(&mut self) -> Result<Vec<u8>, Answer> {
        match std::mem::replace(&mut self.state, SuccessorState::Unknown { again_at: 0 }) {
            SuccessorState::Unknown { .. } => Err(busy(RETRY_SUCCESSOR_US)),
            SuccessorState::Ready(successor) => Ok(successor),
            SuccessorState::Denied { status, message, .. } => {
                let answer = match status.is_passing() {
                    true => Answer {
                        value: RETRY_CONTROLLER_US,
                        ..Answer::refuse(Status::Busy, message.clone())
                    },
                    false => Answer::refuse(status, message.clone()),
                };
                self.state = SuccessorState::Denied { status, message, again_at: 0 };
                self.required = false;
                Err(answer)
            }
        }
    }
}

/// How a block was sealed.
pub(crate) enum Seal {
    /// Full: the structure continues in the block that these arguments of `Moved` name.
    Continues(Vec<u8>),
    /// The structure itself was sealed.
    Final,
}

const OPEN: u8 = 0;
const CONTINUES: u8 = 1;
const FINAL: u8 = 2;

/// The end of a block of a structure that grows: its capacity, its seal, and the request for its successor.
pub(crate) struct Tail {
    pub capacity: CapacityRequest,
    request: SuccessorRequest,
    seal: Option<Seal>,
}

/// The state of another block's tail, as it was sent.
pub(crate) struct TailImage {
    may_have: bool,
    seal: Option<Seal>,
}

impl Tail {
    pub fn new(capacity: CapacityRequest, marks: Marks) -> Tail {
        let mut request = SuccessorRequest::new(capacity.bytes());
        request.set_marks(marks);
        Tail { capacity, request, seal: None }
    }

    /// As `Enlarge::wants_capacity`, with this many used bytes.
    pub fn wants_capacity(&mut self, used: usize, expected: usize) -> Option<usize> {
        if self.is_open() { self.capacity.wanted_ahead(used, expected) } else { None }
    }

    /// The controller's answer to the request for a larger capacity.
    pub fn set_capacity(&mut self, answer: Capacity) {
        self.capacity.answered(answer);
        self.request.set_capacity(self.capacity.bytes());
    }

    #[inline]
    pub fn seal(&self) -> Option<&Seal> {
        self.seal.as_ref()
    }

    #[inline]
    pub fn is_open(&self) -> bool {
        self.seal.is_none()
    }

    /// The successor of a full block.
    #[inline]
    pub fn successor(&self) -> Option<&[u8]> {
        match &self.seal {
            Some(Seal::Continues(successor)) => Some(successor),
            _ => None,
        }
    }

    /// Seals the block.
    pub fn close(&mut self, seal: Seal) {
        self.seal = Some(seal);
    }

    /// The report of the seal, with the length of the block's content; none of an open block.
    pub fn report(&self, length: u64, bytes: u64) -> Option<Event> {
        let successor = match self.seal.as_ref()? {
            Seal::Continues(successor) => Some(successor.clone()),
            Seal::Final => None,
        };
        Some(Event::Sealed { length, bytes, successor })
    }

    /// The request for a successor.
    pub fn request(&mut self) -> &mut SuccessorRequest {
        &mut self.request
    }

    /// Whether to request a successor now, with this many used bytes: usually not while the block grows in
    /// place.
    pub fn wants_successor(&mut self, used: usize) -> bool {
        let grows = self.capacity.may_grow() && !self.request.due;
        self.seal.is_none() && !grows && self.request.wanted(used)
    }

    /// Appends the state that a block at another server needs.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.request.may_have().put(out);
        match &self.seal {
            None => OPEN.put(out),
            Some(Seal::Final) => FINAL.put(out),
            Some(Seal::Continues(successor)) => {
                CONTINUES.put(out);
                successor.put(out);
            }
        }
    }

    /// Adopts the state of another block.
    pub fn restore(&mut self, image: TailImage) {
        self.seal = image.seal;
        if image.may_have {
            self.request.ask_again();
        }
    }
}

impl TailImage {
    /// Reads the image that `Tail::put` has written.
    pub fn get(from: &mut Reader<'_>) -> Result<TailImage, Answer> {
        let may_have = bool::get(from)?;
        let seal = match u8::get(from)? {
            OPEN => None,
            FINAL => Some(Seal::Final),
            CONTINUES => Some(Seal::Continues(received_successor(Vec::get(from)?)?)),
            _ => return Err(broken("the block has an unknown kind of seal")),
        };
        Ok(TailImage { may_have, seal })
    }
}

/// The successor of a sealed block whose state was received from another server. Later answers contain these
/// bytes, so that they are refused here if they are no arguments of `Moved`.
pub fn received_successor(successor: Vec<u8>) -> Result<Vec<u8>, Answer> {
    match MovedArgs::decode(&successor) {
        Ok(_) => Ok(successor),
        Err(e) => Err(broken(&format!("the received block names an invalid successor: {e}"))),
    }
}

/// `Moved` to the successor of a block that was sealed at `length`.
pub fn moved(length: u64, successor: &[u8]) -> Answer {
    let args = successor.to_vec();
    Answer { status: Status::Moved, value: length, args, payload: Payload::None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of a moved block may arrive twice. Seed 614749 of the simulator.
    #[test]
    fn block_that_takes_the_place_of_another_twice_asks_for_its_successor_once() {
        let mut next = SuccessorRequest::new(65_536);
        next.ask_again();
        assert!(next.wanted(0));
        next.ask_again();
        assert!(!next.wanted(0), "the first question is not answered yet");
        next.set(Successor::Ready(vec![7]), 0);
        next.ask_again();
        assert!(!next.wanted(0), "it has one");
        assert_eq!(next.give_back(0), Some(vec![7]));
        next.ask_again();
        assert!(next.wanted(0));
    }

    /// The controller had refused the request before the client committed its append, for which it has a
    /// successor. Seed 700536 of the simulator.
    #[test]
    fn earlier_refusal_is_no_answer_to_a_client_that_lets_the_structure_continue() {
        let mut next = SuccessorRequest::new(65_536);
        let denied = |why: &str| Successor::Denied(Status::OutOfMemory, why.into());
        assert!(next.wanted(65_000));
        next.set(denied("before"), 65_000);
        assert_eq!(next.take().map_err(|e| e.status), Err(Status::OutOfMemory));
        assert!(next.wanted(65_000));
        next.require();
        assert_eq!(next.take().map_err(|e| e.status), Err(Status::Busy));
        assert!(!next.wanted(65_000), "the request that was sent earlier is not answered");
        next.set(denied("before"), 65_000);
        assert_eq!(next.take().map_err(|e| e.status), Err(Status::Busy));
        assert!(next.wanted(65_000));
        next.require();
        assert!(!next.wanted(65_000), "one request for the client");
        next.set(denied("since"), 65_000);
        next.require();
        assert_eq!(next.take().map_err(|e| e.args), Err(b"since".to_vec()));
        next.require();
        assert!(next.wanted(65_000), "the next client is not answered by it");
        next.set(Successor::Ready(vec![7]), 65_000);
        assert_eq!(next.take(), Ok(vec![7]));
    }
}
