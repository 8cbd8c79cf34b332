//! How a block that fills up comes by its successor: when it asks, and what it answers meanwhile.

use crate::{Answer, Payload, Successor};
use honeycomb_types::Marks;
use honeycomb_wire::Status;

/// Delay told while the controller is away, or changes nothing, in microseconds.
const RETRY_CONTROLLER_US: u64 = 20_000;
/// Delay told while the controller finds the next block, in microseconds.
const RETRY_SUCCESSOR_US: u64 = 300;

/// Where the block's successor is to come from.
enum State {
    Unknown {
        /// Ask when the tail has reached this.
        again_at: usize,
    },
    Ready(Vec<u8>),
    Denied {
        status: Status,
        message: String,
        /// Ask again when the tail has reached this.
        again_at: usize,
    },
}

/// The successor of one block: when to ask for it, and what to answer until it is there.
///
/// A block tells `wrote` with every write, answers `Structure::wants_successor` with `wanted`, hands
/// what `News::Successor` brings to `set`, and when something does not fit calls `take`: with the
/// successor it seals itself and answers `moved`, with a refusal it answers that.
pub struct Next {
    size: usize,
    marks: Marks,
    /// Recent largest write; decays by a sixteenth with every smaller one.
    largest: usize,
    /// Bytes that are likely to arrive until the controller has answered.
    expected: usize,
    asked: bool,
    /// It is time whatever is used: the block that was here before had one, or had asked.
    due: bool,
    state: State,
}

impl Next {
    /// Of a block of this size, which has none yet.
    pub fn new(block_size: usize) -> Next {
        let marks = Marks::default();
        let state = State::Unknown { again_at: 0 };
        Next { size: block_size, marks, largest: 0, expected: 0, asked: false, due: false, state }
    }

    /// Asks by these marks from now on.
    pub fn set_marks(&mut self, marks: Marks) {
        self.marks = marks;
    }

    /// What its writer is expected to bring before a successor can be there, in bytes.
    pub fn expect(&mut self, bytes: usize) {
        self.expected = bytes;
    }

    /// A write of this length has come.
    pub fn wrote(&mut self, length: usize) {
        self.largest = length.max(self.largest - self.largest.div_ceil(16));
    }

    /// Whether it is time to ask, with so many bytes used. After `true` it is not repeated until an
    /// answer came.
    pub fn wanted(&mut self, used: usize) -> bool {
        if std::mem::take(&mut self.due) {
            self.asked = true;
            return true;
        }
        let again = match &self.state {
            State::Ready(_) => false,
            State::Unknown { again_at } | State::Denied { again_at, .. } => {
                !self.asked && used >= *again_at
            }
        };
        if !again || self.size - used >= self.mark() {
            return false;
        }
        self.asked = true;
        true
    }

    /// Free bytes below which the block wants its successor: the high mark's rest, twice the
    /// largest recent write, and what arrives until the controller has answered. A block that was
    /// just given asks for nothing before it has taken a sixteenth, or a chain of blocks that nobody
    /// needs would grow by itself.
    fn mark(&self) -> usize {
        let mark = self.marks.rest(self.size).max(2 * self.largest).max(self.expected);
        mark.min(self.size - self.size / 16)
    }

    /// Whether it has a successor, or may be granted one that it has asked for.
    pub(crate) fn may_have(&self) -> bool {
        self.asked || self.due || matches!(self.state, State::Ready(_))
    }

    /// The block took the place of one that may have been granted a successor, which nobody else
    /// asks for or gives back: it asks at once. A block that has asked or has one does not: the answer to
    /// a second question would name a successor that was given back meanwhile.
    pub(crate) fn ask_again(&mut self) {
        self.due = !self.asked && !matches!(self.state, State::Ready(_));
    }

    /// The controller's answer.
    pub fn set(&mut self, successor: Successor, used: usize) {
        self.asked = false;
        self.state = match successor {
            Successor::Ready(args) => State::Ready(args),
            // Asked again when a write does not fit, or every 1/64 of the block until then: often
            // enough to recover before that, not so often that a full cluster is flooded.
            Successor::Denied(status, message) => {
                State::Denied { status, message, again_at: used + self.size / 64 }
            }
        };
    }

    /// Gives up the successor, if there is one that nobody was told of. As after a refusal it is
    /// asked for again when a write does not fit, or 1/64 of the block later.
    pub fn give_back(&mut self, used: usize) -> Option<Vec<u8>> {
        let State::Ready(_) = &self.state else { return None };
        let later = State::Unknown { again_at: used + self.size / 64 };
        match std::mem::replace(&mut self.state, later) {
            State::Ready(successor) => Some(successor),
            _ => unreachable!("it was ready just now"),
        }
    }

    /// The successor, for a block that must seal itself now; otherwise what to answer.
    pub fn take(&mut self) -> Result<Vec<u8>, Answer> {
        match std::mem::replace(&mut self.state, State::Unknown { again_at: 0 }) {
            State::Unknown { .. } => Err(busy(RETRY_SUCCESSOR_US)),
            State::Ready(successor) => Ok(successor),
            State::Denied { status, message, .. } => {
                let answer = match status {
                    // Nobody has said that there is no room.
                    Status::Unavailable | Status::LogFailed | Status::Busy => Answer {
                        value: RETRY_CONTROLLER_US,
                        ..Answer::refuse(Status::Busy, message.clone())
                    },
                    status => Answer::refuse(status, message.clone()),
                };
                self.state = State::Denied { status, message, again_at: 0 };
                Err(answer)
            }
        }
    }
}

/// `Moved` to the successor of a block that was sealed at `length`.
pub fn moved(length: u64, successor: &[u8]) -> Answer {
    let args = successor.to_vec();
    Answer { status: Status::Moved, value: length, args, payload: Payload::None }
}

/// `Busy`, to come again after so many microseconds.
pub fn busy(delay_us: u64) -> Answer {
    Answer { value: delay_us, ..Answer::refuse(Status::Busy, "") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of a moved block may come twice. Seed 614749 of the simulator.
    #[test]
    fn block_that_takes_the_place_of_another_twice_asks_for_its_successor_once() {
        let mut next = Next::new(65_536);
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
}
