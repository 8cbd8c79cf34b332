//! The answers to data for which a block has no room.

use super::room::RETRY_MOVING_US;
use crate::Answer;
use honeycomb_types::BlockId;
use honeycomb_wire::Status;
use std::sync::Arc;

/// Whether a full block will soon have room because a part of it moves to another block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Relief {
    /// Not by giving a part of it away.
    #[default]
    None,
    /// No move can make room, because these keys fill the block.
    Indivisible(Arc<str>),
    /// A move may be possible; no operation has needed it yet.
    Possible,
    /// A move may be possible; an operation had no room, and waits for the decision.
    Wanted,
    /// A part of the block is about to move.
    Coming,
    /// No other block is available, for this reason.
    Denied(Status, String),
}

/// The request to give a part of the block to another one: until it is answered, entries without room wait.
#[derive(Default)]
pub(super) struct Overflow {
    /// The block's name in errors.
    block: BlockId,
    relief: Relief,
    /// Why the last split was refused for lack of memory; `None` after a move begins, another reply, or
    /// 300 ms without a request for a split: memory may have been freed since.
    lacking: Option<String>,
}

impl Overflow {
    pub fn set_block(&mut self, block: BlockId) {
        self.block = block;
    }

    pub fn relief(&self) -> &Relief {
        &self.relief
    }

    /// Sets the state of the request; returns the one before.
    pub fn set_relief(&mut self, relief: Relief) -> Relief {
        std::mem::replace(&mut self.relief, relief)
    }

    /// A move may be possible again, or is wanted; not of a block that has never been asked for its requests
    /// (`Movable::move_request`), because it cannot request one.
    pub fn renew(&mut self, relief: Relief) {
        if self.relief != Relief::None {
            self.relief = relief;
        }
    }

    /// A split was refused for lack of memory, or was answered otherwise.
    pub fn set_lacking(&mut self, why: Option<String>) {
        self.lacking = why;
    }

    /// Whether the last split was refused for lack of memory.
    pub fn is_lacking(&self) -> bool {
        self.lacking.is_some()
    }

    /// The refusal of data that takes `gross` bytes in a block of `size` bytes, of which `free` are free.
    pub fn refuse(&mut self, gross: usize, free: usize, size: usize) -> Answer {
        let why = match &self.relief {
            Relief::None => String::new(),
            Relief::Indivisible(why) => format!(" and cannot be split: {why}"),
            Relief::Possible => {
                self.relief = Relief::Wanted;
                return self.awaits_split();
            }
            Relief::Wanted | Relief::Coming => return self.awaits_split(),
            Relief::Denied(status, why) => return self.indivisible(*status, why),
        };
        Answer::refuse(
            Status::BlockFull,
            format!(
                "block {} has no room for {gross} more bytes ({free} of {size} are free){why}; \
                 existing data is unharmed",
                self.block
            ),
        )
    }

    /// The refusal when a part of the block is about to move away. If the last split was refused for lack of
    /// memory, the next request for one may wait for seconds, and the writer learns the reason meanwhile.
    fn awaits_split(&self) -> Answer {
        match &self.lacking {
            Some(why) => self.indivisible(Status::OutOfMemory, why),
            None => {
                let text = format!("block {} is full and waits for a split", self.block);
                Answer { value: RETRY_MOVING_US, ..Answer::refuse(Status::Busy, text) }
            }
        }
    }

    fn indivisible(&self, status: Status, why: &str) -> Answer {
        Answer::refuse(status, format!("block {} is full and cannot be split: {why}", self.block))
    }
}
