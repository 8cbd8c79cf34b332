//! The operations of a structure: requests to one block, its answers, and its events.

use crate::{Adopts, Changes, Content, Enlarge, Growth, Journaled, Movable, Waits};
use honeycomb_block::{Backing, Pin};
use honeycomb_types::{Route, Time};
use honeycomb_wire::custom::{Routed, split_args};
use honeycomb_wire::extents::ExtentRef;
use honeycomb_wire::notice::Change;
use honeycomb_wire::{Malformed, Op, Status};
use std::ops::Range;
use std::sync::Arc;

/// Identifies an operation that is answered later. Chosen by the shard, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// The answer of a structure to one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The outcome.
    pub status: Status,
    /// The reply's number; its meaning depends on the operation or status.
    pub value: u64,
    /// The reply's arguments: results of the operation, or the message of a refusal.
    pub args: Vec<u8>,
    /// The reply's payload.
    pub payload: Payload,
}

/// The location of an answer's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// No payload.
    None,
    /// Separate bytes, for answers that must outlive a change of the block.
    Bytes(Arc<[u8]>),
    /// A range of the block that stays unchanged while the answer, or its record, is kept.
    Pinned(Pin),
    /// A range of the block, valid until the next operation: the caller copies or pins it at once. Some of
    /// its bytes may be in a lower tier (`Backing::floor`).
    Block(Range<usize>),
    /// Several parts, some of them in a lower tier. Only for operations that change nothing.
    Parts(Vec<Part>),
}

/// A part of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Separate bytes.
    Bytes(Vec<u8>),
    /// A range of the block.
    Block(Range<usize>),
}

impl Payload {
    /// Heap bytes outside of the block.
    pub(crate) fn beside(&self) -> usize {
        match self {
            Payload::None | Payload::Block(_) | Payload::Parts(_) => 0,
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Pinned(_) => size_of::<Pin>(),
        }
    }
}

impl Answer {
    /// Success, with a number.
    pub fn ok(value: u64) -> Answer {
        Answer { status: Status::Ok, value, args: Vec::new(), payload: Payload::None }
    }

    /// A refusal for a reason of the structure's own: a code for programs, and a message that says what
    /// happened and why.
    pub fn refuse_as(code: u64, message: impl Into<String>) -> Answer {
        Answer { value: code, ..Answer::refuse(Status::Refused, message) }
    }

    /// A refusal with a message that says what failed and why.
    pub fn refuse(status: Status, message: impl Into<String>) -> Answer {
        Answer { status, value: 0, args: message.into().into_bytes(), payload: Payload::None }
    }

    /// Adds a payload.
    pub fn with(mut self, payload: Payload) -> Answer {
        self.payload = payload;
        self
    }

    /// Whether a mutation with this answer counts as executed: its result is recorded for retries and its
    /// sequence number is used up. `Busy`, most routing answers, and a grant that expired or was revoked
    /// during a wait do not count: the retry has the same number. `Moved` counts, because the caller
    /// continues at another block and does not return. A delayed copy of the request must get that answer,
    /// and not take an item that has returned to the block since.
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
                | Status::GrantRevoked
        )
    }
}

impl From<Malformed> for Answer {
    fn from(e: Malformed) -> Answer {
        Answer::refuse(Status::BadFrame, e.to_string())
    }
}

/// `Busy`, to retry after this many microseconds.
pub fn busy(delay_us: u64) -> Answer {
    Answer { value: delay_us, ..Answer::refuse(Status::Busy, "") }
}

/// An operation as the shard passes it to a structure.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// The shard's clock.
    pub now: Time,
    /// Identifies an answer that is given later. Never reused.
    pub ticket: Ticket,
    /// An opcode of the structure's kind; any other is a defect of the shard and panics.
    pub op: Op,
    /// Arguments of the operation, unchecked.
    pub args: &'a [u8],
    /// The end of the time for which the operation may wait; `now` if it may not wait.
    pub wait_until: Time,
}

impl<'a> Operation<'a> {
    /// The operation's number within its kind.
    pub fn number(&self) -> u8 {
        self.op.number()
    }

    /// For an operation routed by a position (`Route::Position`, `Route::Through`): the position, counted
    /// from the start of this block, and the arguments after it. A position before this block is negative,
    /// and no block holds it any more.
    pub fn position(&self) -> Result<(i64, &'a [u8]), Answer> {
        match split_args(Route::Position, self.args)? {
            (Routed::By(position), rest) => Ok((position, rest)),
            _ => unreachable!("a position routes by a position"),
        }
    }

    /// For an operation routed by a key (`Route::Key`): the key, and the arguments after it.
    pub fn key(&self) -> Result<(&'a [u8], &'a [u8]), Answer> {
        match split_args(Route::Key, self.args)? {
            (Routed::Key(key), rest) => Ok((key, rest)),
            _ => unreachable!("a key routes by a key"),
        }
    }
}

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Finished.
    Done(Answer),
    /// The operation is answered later, by `Event::Answered` with its ticket.
    Parked,
}

/// A message of a structure besides its answers, in the order of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A parked operation is complete.
    Answered(Ticket, Answer),
    /// A change that may match a subscription; only while the block is watched.
    Changed(Change),
    /// The block accepts no more data. A repeated event has the same length, and names a next block if an
    /// earlier one did.
    Sealed {
        /// Of a file: the block's bytes. Of a queue: the items that went through the block.
        length: u64,
        /// Bytes of those items.
        bytes: u64,
        /// The arguments of `Moved` that name the next block; none if the whole structure was sealed.
        successor: Option<Vec<u8>>,
    },
    /// The total of items taken from the block since it was opened. Not repeated before
    /// `Growth::taken_received`.
    Taken {
        /// Items taken permanently.
        items: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// The block is empty for good and its successor serves everything after it. It can be freed as soon as
    /// no caller can need its records any more.
    Drained,
    /// A parked operation requests ownership of these extents; answered by `Adopts::adopted`, which the
    /// structure must have.
    Adopt(Ticket, Vec<ExtentRef>),
    /// Extents that no longer have an owner, and the owner that had adopted them; 0 if none had.
    DropExtents(u64, Vec<ExtentRef>),
}

/// One block of a data structure.
///
/// **Callers.** Only the shard that owns the block calls it: one call at a time, from one thread, so that a
/// call is atomic and needs no lock. A call must be short, because no other operation of this core runs
/// meanwhile. Long work is divided into several operations, each of which returns its progress. No call may
/// block, read a clock or do I/O. The time is an argument, and `Event`s report changes. After a mutation, a
/// complete payload, a message, a timer or a withdrawn request, the shard takes the events and calls
/// `Growth::wants_successor` and `Waits::deadline`; after a read, or a piece of a payload, it does not.
///
/// **Capabilities.** Every structure implements `Ops`. Each other capability is a trait that it implements,
/// and returns here: payloads that arrive in pieces (`Streaming`), a next block (`Growth`), a capacity that
/// grows (`Enlarge`), waiting requests and timers (`Waits`), subscribers (`Changes`), content that is demoted
/// or written elsewhere (`Content`), content that moves to another block (`Movable`), visibility that waits
/// for a journal (`Journaled`), and extents in other blocks (`Adopts`). An accessor gives the same answer for
/// every block of a kind, and at any time, except that `movable` returns `None` while a block cannot move.
/// `Registry::with` refuses a kind whose table, router or moves need a capability that its blocks do not
/// have.
///
/// **Memory.** `bytes_used` counts all bytes that hold data, with index and bookkeeping, in the block and
/// outside of it. Its owner is charged for these bytes, and they must not exceed the block by more than a few
/// per cent. Memory that a block has written stays resident until the block is freed or returns it
/// (`Backing::discard`). Bytes that a `Pin` reads cannot be written, so a layout must be able to leave them
/// in place for a while.
pub trait Structure: Ops + Send {
    /// Payloads that arrive in pieces; needed by an operation that streams its payload.
    fn streaming(&mut self) -> Option<&mut dyn Streaming> {
        None
    }

    /// The next block; needed by a router that adds blocks at the end.
    fn growth(&mut self) -> Option<&mut dyn Growth> {
        None
    }

    /// A capacity that grows in place. Without it, a block may use all of its bytes from the start.
    fn enlarge(&mut self) -> Option<&mut dyn Enlarge> {
        None
    }

    /// Waiting requests and timers; needed by an operation that may wait.
    fn waits(&mut self) -> Option<&mut dyn Waits> {
        None
    }

    /// Subscribers. Without it, `Subscribe` is refused.
    fn changes(&mut self) -> Option<&mut dyn Changes> {
        None
    }

    /// Content that is flushed and demoted. Without it, flushes are refused, and the block stays in memory.
    fn content(&self) -> Option<&dyn Content> {
        None
    }

    /// As `content`, for calls that change the block.
    fn content_mut(&mut self) -> Option<&mut dyn Content> {
        None
    }

    /// Content that moves to other blocks; `None` also while this block cannot move. Without it, moves are
    /// refused.
    fn movable(&mut self) -> Option<&mut dyn Movable> {
        None
    }

    /// Changes that wait for a journal. Without it, a journal is refused.
    fn journaled(&mut self) -> Option<&mut dyn Journaled> {
        None
    }

    /// Extents in other blocks. Without it, `Event::Adopt` is a defect, and ends the server.
    fn adopts(&mut self) -> Option<&mut dyn Adopts> {
        None
    }
}

/// The operations of a block.
///
/// **Before a structure sees an operation** the shard has checked that it is for this block in this epoch,
/// that the grant has the verbs that the kind's table requires, that a mutation is the next of its lane and
/// was not executed before, that the number is in the kind's table, and that a key's hash belongs to this
/// block. Arguments are as the caller sent them: malformed ones are answered with `BadFrame`, never with a
/// panic. A panic is a defect, and ends the server.
///
/// **Answers and retries.** The answer to a mutation is kept until the caller has acknowledged it. A repeated
/// request gets the same answer without a call of the structure, so a mutation is executed once, however
/// often it is sent. Therefore such an answer is small and never holds `Payload::Block`, because the block
/// changes. `Answer::executed` defines the statuses that do not use up the sequence number, which a later
/// attempt then uses. An operation that changes nothing may run again. Refusals for reasons of the
/// structure's own are `Answer::refuse_as`; `Busy` with a delay (`busy`) makes the caller retry.
///
/// **Payloads** arrive whole (`apply`). If the table says that an operation streams, a payload of more than
/// 64 KiB arrives by `Streaming` instead.
pub trait Ops {
    /// Runs one operation.
    ///
    /// A mutation's answer never holds `Payload::Block`: it is kept for retries.
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, payload: &[u8]) -> Outcome;

    /// Announces an operation of a batch that will run soon: prefetches the memory that it will read first,
    /// while the operations before it run. The result is passed to `prefetch_more` after the other operations
    /// of the batch were announced. The results of operations must not depend on these calls.
    fn prefetch(&self, block: &Backing, op: Op, args: &[u8]) -> Option<u64> {
        let _ = (block, op, args);
        None
    }

    /// Prefetches the memory that the prefetched data points to.
    fn prefetch_more(&self, block: &Backing, hint: u64) {
        let _ = (block, hint);
    }

    /// The next event.
    fn event(&mut self) -> Option<Event> {
        None
    }

    /// Bytes of the block that hold data, with index and bookkeeping.
    fn bytes_used(&self) -> u64;

    /// The hash by which a mutation was routed, if any: its retry record carries the hash, so that the record
    /// can move with the region that holds the key (decision 2). Operations with `Route::Key` need not be
    /// covered here.
    fn record_hash(&self, op: Op, args: &[u8]) -> Option<u64> {
        let _ = (op, args);
        None
    }
}

/// Payloads that are written into the block as they arrive.
///
/// Order of calls for one payload: `reserve`, then `fill` and `filled` until nothing is left, then `commit`.
/// `abort` may be called at any time before the commit, and undoes all effects. Payloads of several requests
/// arrive at the same time, and differ by their tickets.
pub trait Streaming {
    /// Makes room for a payload of `length` bytes that will arrive piece by piece. An `Err` contains the
    /// answer of a refusal; nothing is then reserved.
    fn reserve(
        &mut self,
        block: &mut Backing,
        operation: &Operation<'_>,
        length: usize,
    ) -> Result<(), Answer>;

    /// The part of a reservation that is still to be filled; empty if the reservation is complete. Its place
    /// may change between calls, so it must be requested again after every operation.
    fn fill<'b>(&mut self, block: &'b mut Backing, ticket: Ticket) -> &'b mut [u8];

    /// Reports that the first `n` bytes of the part returned by `fill` have been written.
    fn filled(&mut self, ticket: Ticket, n: usize);

    /// Makes a complete reservation visible and answers, at once or later.
    fn commit(&mut self, block: &mut Backing, now: Time, ticket: Ticket) -> Outcome;

    /// Cancels a reservation.
    fn abort(&mut self, block: &mut Backing, now: Time, ticket: Ticket);
}
