//! How a block that fills up comes by its successor: when it asks, and what it answers meanwhile.

use crate::{Answer, Payload, Successor};
use honeycomb_wire::Status;

/// Delay told while the controller is away, or changes nothing, in microseconds.
const RETRY_CONTROLLER_US: u64 = 20_000;
/// Delay told while the controller finds the next block, in microseconds.
const RETRY_SUCCESSOR_US: u64 = 300;

/// Where the block's successor is to come from.
enum State {
    Unknown,
    Ready(Vec<u8>),
    Denied {
        status: Status,
        message: String,
        /// Ask again when the tail has reached this.
        again_at: usize,
    },
}

/// The successor of one block.
pub(crate) struct Next {
    size: usize,
    /// Recent largest write; decays by a sixteenth with every smaller one.
    largest: usize,
    asked: bool,
    state: State,
}

impl Next {
    pub fn new(block_size: usize) -> Next {
        Next { size: block_size, largest: 0, asked: false, state: State::Unknown }
    }

    /// A write of this length has come.
    pub fn wrote(&mut self, length: usize) {
        self.largest = length.max(self.largest - self.largest.div_ceil(16));
    }

    /// Whether it is time to ask, with so many bytes used. After `true` it is not repeated until an
    /// answer came.
    pub fn wanted(&mut self, used: usize) -> bool {
        let again = match &self.state {
            State::Unknown => !self.asked,
            State::Ready(_) => false,
            State::Denied { again_at, .. } => !self.asked && used >= *again_at,
        };
        if !again || self.size - used >= self.mark() {
            return false;
        }
        self.asked = true;
        true
    }

    /// Free bytes below which the block wants its successor: the high mark's rest, twice the
    /// largest recent write, and an eighth for what arrives until the controller has answered.
    fn mark(&self) -> usize {
        (self.size / 20).max(2 * self.largest).max(self.size / 8)
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

    /// The successor, for a block that must seal itself now; otherwise what to answer.
    pub fn take(&mut self) -> Result<Vec<u8>, Answer> {
        match std::mem::replace(&mut self.state, State::Unknown) {
            State::Unknown => Err(busy(RETRY_SUCCESSOR_US)),
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
pub(crate) fn moved(length: u64, successor: &[u8]) -> Answer {
    let args = successor.to_vec();
    Answer { status: Status::Moved, value: length, args, payload: Payload::None }
}

/// `Busy`, to come again after so many microseconds.
pub(crate) fn busy(delay_us: u64) -> Answer {
    Answer { value: delay_us, ..Answer::refuse(Status::Busy, "") }
}
