//! The data structures: pure state machines over a block.
//!
//! A structure owns the layout of one block's bytes (and a little bookkeeping beside them, which
//! is charged to the block). It does no I/O, knows no clock and no connection; the shard hands it
//! one operation at a time, so an operation is atomic because one thread runs it. A new structure
//! is a new implementation of `Structure` and a range of opcodes: the built-in ones use nothing
//! that it could not.
//!
//! Where a `put()` is inside: `kv` (the table, `kv/mod.rs`), `file` (append-only bytes); `lanes`
//! decides before either of them whether a mutation is new, a retry or out of turn.
#![forbid(unsafe_code)]

mod file;
mod kv;
mod lanes;

pub use file::FileBlock;
pub use kv::{KvBlock, key_limit};
pub use lanes::{LaneVerdict, Lanes};

use honeycomb_block::Backing;
use honeycomb_types::limits::LARGE_FRACTION;
use honeycomb_wire::{Malformed, Op, Status};
use std::ops::Range;
use std::sync::Arc;

/// Names an operation whose answer comes later. Chosen by the shard, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// What a structure answers to one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How it ended.
    pub status: Status,
    /// The reply's number; its meaning belongs to the operation or status.
    pub value: u64,
    /// The reply's arguments: results of the operation, or the message of a refusal.
    pub args: Vec<u8>,
    /// The reply's payload.
    pub payload: Payload,
}

/// Where the payload of an answer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// There is none.
    None,
    /// Bytes of their own, for answers that must outlive a change of the block.
    Bytes(Arc<[u8]>),
    /// A range of the block, valid until the next operation: the caller copies or pins it at once.
    Block(Range<usize>),
}

impl Answer {
    /// Done, with a number.
    pub fn ok(value: u64) -> Answer {
        Answer { status: Status::Ok, value, args: Vec::new(), payload: Payload::None }
    }

    /// Refused, with a message that says what and why.
    pub fn refuse(status: Status, message: impl Into<String>) -> Answer {
        Answer { status, value: 0, args: message.into().into_bytes(), payload: Payload::None }
    }

    /// Done, with a payload.
    pub fn with(mut self, payload: Payload) -> Answer {
        self.payload = payload;
        self
    }

    /// Whether a mutation that was answered like this counts as executed: its result is recorded
    /// for retries and its sequence number is used up. `Busy` and the routing answers are not:
    /// the same number comes again, here or elsewhere.
    pub fn executed(&self) -> bool {
        !matches!(
            self.status,
            Status::Busy | Status::Moved | Status::WrongRange | Status::WrongEpoch | Status::Resume
        )
    }
}

impl From<Malformed> for Answer {
    fn from(e: Malformed) -> Answer {
        Answer::refuse(Status::BadFrame, e.to_string())
    }
}

/// What became of an operation that was handed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Finished.
    Done(Answer),
    /// Its answer comes through `Structure::completed`, under its ticket.
    Parked,
}

/// A block's successor, as the controller granted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Successor {
    /// Encoded arguments of a `Moved` reply (`wire::data::MovedArgs`).
    Ready(Vec<u8>),
    /// There is none to be had: what appends that need it are answered meanwhile.
    Denied(Status, String),
}

/// One block of a data structure. See the crate's documentation for who may call.
///
/// `op` is an opcode of the structure's kind; others are the shard's mistake and panic. Operations
/// that carry a payload come either whole (`apply`) or, when it is large, as `reserve`, then
/// `fill`/`filled` until nothing is left, then `commit`; `abort` may come at any point before the
/// commit and leaves no trace.
pub trait Structure: Send {
    /// Runs one operation.
    ///
    /// A mutation's answer never holds `Payload::Block`: it is kept for retries.
    fn apply(
        &mut self,
        block: &mut Backing,
        ticket: Ticket,
        op: Op,
        args: &[u8],
        payload: &[u8],
    ) -> Outcome;

    /// Makes room for a payload of `length` bytes that will arrive piece by piece. `Err` is the
    /// refusal to answer; nothing is held then.
    fn reserve(
        &mut self,
        block: &mut Backing,
        ticket: Ticket,
        op: Op,
        args: &[u8],
        length: usize,
    ) -> Result<(), Answer>;

    /// The part of a reservation that is still to be filled. Empty when it is complete. The place
    /// may move between calls: ask again after every operation.
    fn fill<'b>(&mut self, block: &'b mut Backing, ticket: Ticket) -> &'b mut [u8];

    /// Says that the first `n` bytes of what `fill` gave have been written.
    fn filled(&mut self, ticket: Ticket, n: usize);

    /// Makes a complete reservation visible and answers, at once or later.
    fn commit(&mut self, block: &mut Backing, ticket: Ticket) -> Outcome;

    /// Gives a reservation up.
    fn abort(&mut self, block: &mut Backing, ticket: Ticket);

    /// The next answer to an operation that was parked.
    fn completed(&mut self) -> Option<(Ticket, Answer)>;

    /// Bytes of the block that hold data, index and bookkeeping included.
    fn bytes_used(&self) -> u64;

    /// Whether the block should have a successor by now and has not asked yet. Asking is the
    /// shard's work; after `true` it is not repeated until `set_successor` brought a refusal.
    fn wants_successor(&mut self) -> bool;

    /// Brings the controller's answer.
    fn set_successor(&mut self, successor: Successor);

    /// When the block was sealed since the last call: its length, and whether the structure as a
    /// whole was sealed with it.
    fn sealed(&mut self) -> Option<(u64, bool)>;
}

/// The hash by which a mutation was routed, when it was routed by one: its retry record carries it,
/// so that the record can move with the region that holds the key (decision 2).
pub fn record_hash(op: Op, args: &[u8]) -> Option<u64> {
    let key = match op {
        Op::KvPut | Op::KvDelete => args.get(1..)?,
        Op::KvUpdate | Op::KvUpsert => args,
        Op::KvCompareAndSwap => args.get(3..)?,
        Op::KvAccumulate => args.get(1..)?,
        // A batch has many keys, and its record stays with the block that ran it.
        Op::KvBatch => return None,
        _ => return None,
    };
    Some(honeycomb_wire::key_hash(key))
}

/// The largest value, item or append that a block of this size takes.
pub fn large_limit(block_size: usize) -> usize {
    block_size / LARGE_FRACTION as usize
}
