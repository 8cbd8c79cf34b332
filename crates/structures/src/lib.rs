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
mod moves;
mod next;
mod pieces;
mod queue;

pub use file::FileBlock;
pub use kv::{KvBlock, key_limit};
pub use lanes::{LaneVerdict, Lanes};
pub use moves::{Marks, Movable, Parcel, Totals, Wish};
pub use queue::{QueueBlock, QueueBounds};

use honeycomb_block::{Backing, Pin};
use honeycomb_types::Time;
use honeycomb_types::limits::LARGE_FRACTION;
use honeycomb_wire::notice::Change;
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
    /// A range of the block that nobody changes while the answer, or its record, is kept.
    Pinned(Pin),
    /// A range of the block, valid until the next operation: the caller copies or pins it at once.
    Block(Range<usize>),
}

impl Payload {
    /// Bytes that it keeps beside the block.
    pub(crate) fn beside(&self) -> usize {
        match self {
            Payload::None | Payload::Block(_) => 0,
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Pinned(_) => size_of::<Pin>(),
        }
    }
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
    /// for retries and its sequence number is used up. `Busy`, most routing answers and a grant that
    /// ended during a wait are not: the same number comes again. `Moved` is, because its caller goes
    /// elsewhere and will not come back: a copy that was on its way for long must find that answer,
    /// and not an item that has returned to the block since.
    pub fn executed(&self) -> bool {
        if honeycomb_types::Bug::MovedKeepsNumber.active() && self.status == Status::Moved {
            return false;
        }
        !matches!(
            self.status,
            Status::Busy
                | Status::WrongRange
                | Status::WrongEpoch
                | Status::Resume
                | Status::GrantExpired
        )
    }
}

impl From<Malformed> for Answer {
    fn from(e: Malformed) -> Answer {
        Answer::refuse(Status::BadFrame, e.to_string())
    }
}

/// An operation as the shard hands it in.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// The shard's clock.
    pub now: Time,
    /// Names the answer if it comes later. Never reused.
    pub ticket: Ticket,
    /// An opcode of the structure's kind; others are the shard's mistake and panic.
    pub op: Op,
    /// Its arguments, not checked yet.
    pub args: &'a [u8],
    /// Until when it may be kept waiting for something to happen; `now` for not at all.
    pub wait_until: Time,
}

/// What became of an operation that was handed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Finished.
    Done(Answer),
    /// Its answer comes as `Event::Answered`, under its ticket.
    Parked,
}

/// A block's successor, as the controller granted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Successor {
    /// Encoded arguments of a `Moved` reply (`wire::data::MovedArgs`).
    Ready(Vec<u8>),
    /// There is none to be had: what operations that need it are answered meanwhile.
    Denied(Status, String),
}

/// What a structure has to say besides its answers, in the order in which it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An operation that was parked is finished.
    Answered(Ticket, Answer),
    /// Something changed that a subscriber may want to know; only while it is watched.
    Changed(Change),
    /// The block takes no more.
    Sealed {
        /// Bytes of a file's block; items that went through a queue's.
        length: u64,
        /// Bytes of those items.
        bytes: u64,
        /// Arguments of `Moved` to where the structure goes on; none when it was sealed as a whole.
        successor: Option<Vec<u8>>,
    },
    /// So much was taken from the block since it began. Not repeated before `News::TakenHeard`.
    Taken {
        /// Items, for good.
        items: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// The block is empty for good and its successor serves what follows: when nobody can need its
    /// records any more, it can go.
    Drained,
}

/// What the controller has to say to a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The answer to a wish for a successor.
    Successor(Successor),
    /// So much is left in the blocks before this one.
    Ahead {
        /// Items.
        items: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// The last `Event::Taken` has arrived.
    TakenHeard,
}

/// One block of a data structure. See the crate's documentation for who may call.
///
/// Operations that carry a payload come either whole (`apply`) or, when it is large, as `reserve`,
/// then `fill`/`filled` until nothing is left, then `commit`; `abort` may come at any point before
/// the commit and leaves no trace. After every call that is given the block, the shard takes the
/// events and asks for `wants_successor` and `deadline`.
pub trait Structure: Send {
    /// Runs one operation.
    ///
    /// A mutation's answer never holds `Payload::Block`: it is kept for retries.
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, payload: &[u8]) -> Outcome;

    /// Makes room for a payload of `length` bytes that will arrive piece by piece. `Err` is the
    /// refusal to answer; nothing is held then.
    fn reserve(
        &mut self,
        block: &mut Backing,
        operation: &Operation<'_>,
        length: usize,
    ) -> Result<(), Answer>;

    /// The part of a reservation that is still to be filled. Empty when it is complete. The place
    /// may move between calls: ask again after every operation.
    fn fill<'b>(&mut self, block: &'b mut Backing, ticket: Ticket) -> &'b mut [u8];

    /// Says that the first `n` bytes of what `fill` gave have been written.
    fn filled(&mut self, ticket: Ticket, n: usize);

    /// Makes a complete reservation visible and answers, at once or later.
    fn commit(&mut self, block: &mut Backing, now: Time, ticket: Ticket) -> Outcome;

    /// Gives a reservation up.
    fn abort(&mut self, block: &mut Backing, now: Time, ticket: Ticket);

    /// Gives up waiting for an operation that was parked. True when it was waiting and had no
    /// effect; no answer comes for it then. False when it is under way. Others may have room for it
    /// then, so ask for `deadline` afterwards: it is due at once if they may.
    fn cancel(&mut self, ticket: Ticket) -> bool {
        let _ = ticket;
        false
    }

    /// The next thing that it has to say.
    fn event(&mut self) -> Option<Event>;

    /// Time has passed: waits and reservations end that are due.
    fn tick(&mut self, block: &mut Backing, now: Time) {
        let _ = (block, now);
    }

    /// When `tick` is due next. May be early, never late.
    fn deadline(&self) -> Option<Time> {
        None
    }

    /// Bytes of the block that hold data, index and bookkeeping included.
    fn bytes_used(&self) -> u64;

    /// Whether the block should have a successor by now and has not asked yet. Asking is the
    /// shard's work; after `true` it is not repeated until `News::Successor` brought a refusal.
    fn wants_successor(&mut self) -> bool;

    /// The controller has said something.
    fn tell(&mut self, block: &mut Backing, now: Time, news: News);

    /// Whether anybody wants to know of changes from now on.
    fn watch(&mut self, watched: bool);

    /// Changes that nobody was told of because nobody watched, since a part of another block moved
    /// here: who follows it and comes late learns from it whether something was missed.
    fn unheard(&self) -> u64 {
        0
    }

    /// It as a structure whose contents can move to another block; most cannot.
    fn movable(&mut self) -> Option<&mut dyn Movable> {
        None
    }
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
