//! The data structures: pure state machines over a block, and the internal interface for writing a new one
//! (paper, 4.1).
//!
//! A structure owns the layout of one block's bytes, and a small amount of bookkeeping outside of the block,
//! which is charged to the block. It does no I/O and has neither clock nor connection. The shard passes it
//! one operation at a time, so an operation is atomic because one thread runs it. A new structure is an
//! implementation of `Structure` and `StructureKind` in a crate of its own, registered with the server that
//! serves it. The built-in structures are registered in the same way and use no other interface. A new
//! structure needs no other crate than this one; `docs/structures.md` walks through one.
//!
//! A `put()` is executed in `kv` (the table, `kv/mod.rs`), an append in `file` (append-only bytes). Before
//! both, `lanes` decides whether a mutation is new, a retry or out of order.
#![forbid(unsafe_code)]

mod bytes;
mod carry;
mod extent;
mod file;
mod kind;
mod kv;
mod lanes;
mod moves;
mod next;
mod pieces;
mod queue;
mod snapshot;

pub use bytes::{Bytes, Fetched};
pub use extent::ExtentBlock;
pub use file::FileBlock;
pub use honeycomb_types::Marks;
pub use kind::{Attributes, Opening, Registered, Registry, StructureKind};
pub use kv::{KvBlock, PAGE_MAX as KV_PAGE_MAX, key_limit, splits_from};
pub use lanes::{LaneRoom, LaneVerdict, Lanes};
pub use moves::{Arrival, Movable, Parcel, Prepared, Totals, Wish};
pub use next::{SuccessorRequest, busy, moved};
pub use queue::{QueueBlock, QueueBounds};
pub use snapshot::{ItemSink, Snapshot};

// Re-exports for structures in other crates, so that they depend on nothing else.
pub use honeycomb_block::{Backing, Pin, Reclaimer};
pub use honeycomb_types::{
    BlockId, CustomKind, InvalidKind, Kind, KindSpec, OperationSpec, Route, Router, Time, Verbs,
};
pub use honeycomb_wire::custom::{Routed, put_routed};
pub use honeycomb_wire::extents::ExtentRef;
pub use honeycomb_wire::notice::Change;
pub use honeycomb_wire::{Malformed, Op, Status};

use honeycomb_types::Bug;
use honeycomb_types::limits::LARGE_FRACTION;
use honeycomb_wire::custom::split_args;
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

/// Whether a block could be demoted now, and which of its bytes must be written to the lower tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The block cannot be demoted: an operation is in progress, or the kind does not work in lower tiers.
    Busy,
    /// The block's content has this length from the first byte on; more may be appended, and none of these
    /// bytes changes.
    Open(usize),
    /// The block's content has this length from the first byte on, and is final.
    Final(usize),
    /// The first bytes, of this length, hold pieces. Each piece stays unchanged in its place until it is
    /// dropped. New pieces are accepted only in memory: in a lower tier such a block is full.
    Pieces(usize),
    /// The block's content has this length from the first byte on, and any of these bytes may change. A
    /// mutation needs all of them in memory; a read names the ranges that it needs (`Structure::read_below`).
    Whole(usize),
}

impl Rest {
    /// The length of the content from the first byte on; none while an operation is in progress.
    pub fn length(self) -> Option<usize> {
        match self {
            Rest::Busy => None,
            Rest::Open(length) | Rest::Final(length) => Some(length),
            Rest::Pieces(length) | Rest::Whole(length) => Some(length),
        }
    }
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
    /// sequence number is used up. `Busy`, most routing answers, and a grant that expired during a wait do
    /// not count: the retry has the same number. `Moved` counts, because the caller continues at another
    /// block and does not return. A delayed copy of the request must get that answer, and not take an item
    /// that has returned to the block since.
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

/// Bytes that a block with delayed visibility (`Structure::hold_back`) requests to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToStore {
    /// The bytes of the block that follow the stored ones.
    pub range: Range<usize>,
    /// Present if these bytes are the block's last.
    pub ends: Option<Ends>,
}

/// How a block was sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The whole structure was sealed.
    Final,
    /// The structure continues in the block that these arguments of `Moved` name.
    Continues(Vec<u8>),
}

/// The controller's answer to a block that requested a successor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Successor {
    /// Encoded arguments of a `Moved` reply (`wire::data::MovedArgs`).
    Ready(Vec<u8>),
    /// No successor is available; operations that need one get this answer meanwhile.
    Denied(Status, String),
}

/// A message of a structure besides its answers, in the order of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A parked operation is complete.
    Answered(Ticket, Answer),
    /// A change that may match a subscription; only while the block is watched.
    Changed(Change),
    /// The block accepts no more data.
    Sealed {
        /// Of a file: the block's bytes. Of a queue: the items that went through the block.
        length: u64,
        /// Bytes of those items.
        bytes: u64,
        /// The arguments of `Moved` that name the next block; none if the whole structure was sealed.
        successor: Option<Vec<u8>>,
    },
    /// The total of items taken from the block since it was opened. Not repeated before `News::TakenHeard`.
    Taken {
        /// Items taken permanently.
        items: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// The block is empty for good and its successor serves everything after it. It can be freed as soon as
    /// no caller can need its records any more.
    Drained,
    /// A parked operation requests ownership of these extents; answered by `News::Adopted`.
    Adopt(Ticket, Vec<ExtentRef>),
    /// Extents that no longer have an owner, and the owner that had adopted them; 0 if none had.
    DropExtents(u64, Vec<ExtentRef>),
}

/// A message of the controller to a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The answer to a request for a successor.
    Successor(Successor),
    /// The current content of the blocks before this one.
    Ahead {
        /// Items.
        items: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// The controller has received the last `Event::Taken`.
    TakenHeard,
    /// The answer to `Event::Adopt`. The operation owns the extents or, after a refusal, they are dropped now
    /// or soon. `Busy` means that no request was sent, and the extents are unchanged.
    Adopted {
        /// The operation.
        ticket: Ticket,
        /// The number by which the blocks of extents know the owner.
        owner: u64,
        /// The reason of a refusal.
        outcome: Result<(), (Status, String)>,
    },
}

/// One block of a data structure.
///
/// **Callers.** Only the shard that owns the block calls it: one call at a time, from one thread, so that a
/// call is atomic and needs no lock. A call must be short, because no other operation of this core runs
/// meanwhile. Long work is divided into several operations, each of which returns its progress. No call may
/// block, read a clock or do I/O. The time is an argument, and `Event`s report changes: after every call that
/// gets the block, the shard takes the events and calls `wants_successor` and `deadline`.
///
/// **Before a structure sees an operation** the shard has checked that it is for this block in this epoch,
/// that the grant has the verbs that the kind's table requires, that a mutation is the next of its lane and
/// was not executed before, that the number is in the kind's table, and that a key's hash belongs to this
/// block.
/// Arguments are as the caller sent them: malformed ones are answered with `BadFrame`, never with a panic. A
/// panic is a defect, and ends the server.
///
/// **Answers and retries.** The answer to a mutation is kept until the caller has acknowledged it. A repeated
/// request gets the same answer without a call of the structure, so a mutation is executed once, however
/// often it is sent. Therefore such an answer is small and never holds `Payload::Block`, because the block
/// changes. `Answer::executed` defines the statuses that do not use up the sequence number, which a later
/// attempt then uses. An operation that changes nothing may run again. Refusals for reasons of the
/// structure's own are `Answer::refuse_as`; `Busy` with a delay (`busy`) makes the caller retry.
///
/// **Waiting.** If the table says that an operation may wait, the answer `Outcome::Parked` parks it.
/// `Event::Answered` with its ticket answers it later, at the latest when `tick` is called at `wait_until`
/// (`Status::NotYet`). `cancel` withdraws it.
///
/// **Growth.** A block of a kind whose router grows requests its successor early (`wants_successor`) and
/// receives it (`News::Successor`). When data no longer fits, the block seals itself (`Event::Sealed`). From
/// then on it answers requests for later positions with `Moved` to the successor. `SuccessorRequest` does
/// this bookkeeping. A block never knows its position in the structure: it counts from its own start, and
/// clients add the offset.
///
/// **Leaving.** A sealed block that is empty for good reports it once (`Event::Drained`). When no caller can
/// request one of its answers again, and if the router shrinks, the block is removed from the map and freed.
///
/// **Memory.** `bytes_used` counts all bytes that hold data, with index and bookkeeping, in the block and
/// outside of it. Its owner is charged for these bytes, and they must not exceed the block by more than a few
/// per cent. Memory that a block has written stays resident until the block is freed or returns it
/// (`Backing::discard`). Bytes that a `Pin` reads cannot be written, so a layout must be able to leave them
/// in place for a while.
///
/// **Payloads** arrive whole (`apply`). If the table says that an operation streams, a payload of more than
/// 64 KiB arrives as `reserve`, then `fill`/`filled` until nothing is left, then `commit`. `abort` may be
/// called at any time before the commit and undoes all effects.
pub trait Structure: Send {
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

    /// Makes room for a payload of `length` bytes that will arrive piece by piece. An `Err` contains the
    /// answer of a refusal; nothing is then reserved.
    fn reserve(
        &mut self,
        block: &mut Backing,
        operation: &Operation<'_>,
        length: usize,
    ) -> Result<(), Answer> {
        let _ = (block, length);
        unreachable!("the kind's table does not say that {:?} streams", operation.op)
    }

    /// The part of a reservation that is still to be filled; empty if the reservation is complete. Its place
    /// may change between calls, so it must be requested again after every operation.
    fn fill<'b>(&mut self, block: &'b mut Backing, ticket: Ticket) -> &'b mut [u8] {
        let _ = block;
        unreachable!("nothing was reserved under {ticket:?}")
    }

    /// Reports that the first `n` bytes of the part returned by `fill` have been written.
    fn filled(&mut self, ticket: Ticket, n: usize) {
        let _ = n;
        unreachable!("nothing was reserved under {ticket:?}")
    }

    /// Makes a complete reservation visible and answers, at once or later.
    fn commit(&mut self, block: &mut Backing, now: Time, ticket: Ticket) -> Outcome {
        let _ = (block, now);
        unreachable!("nothing was reserved under {ticket:?}")
    }

    /// Cancels a reservation.
    fn abort(&mut self, block: &mut Backing, now: Time, ticket: Ticket) {
        let _ = (block, now);
        unreachable!("nothing was reserved under {ticket:?}")
    }

    /// Withdraws a parked operation. Returns true if the operation was waiting and had no effect: then it
    /// gets no answer. Returns false if it is already in progress. The withdrawal may make room for other
    /// operations, so the caller reads `deadline` again, which is then due at once.
    fn cancel(&mut self, ticket: Ticket) -> bool {
        let _ = ticket;
        false
    }

    /// Delays from now on the visibility and the answer of every change until it is stored elsewhere. Returns
    /// false if the kind does not support that. Called once, on an empty block.
    fn hold_back(&mut self) -> bool {
        false
    }

    /// The next bytes to store, of a block with delayed visibility; not called again before `stored`. These
    /// bytes do not change until then.
    fn to_store(&mut self) -> Option<ToStore> {
        None
    }

    /// Reports that the bytes from `to_store` are stored: they become visible, and operations that waited for
    /// them are answered.
    fn stored(&mut self) {
        unreachable!("nothing was given to be stored")
    }

    /// Reports that storing the bytes failed and is repeated: callers that must retry get a longer delay.
    fn not_stored(&mut self) {}

    /// The next event.
    fn event(&mut self) -> Option<Event> {
        None
    }

    /// Ends the waits and reservations that are due.
    fn tick(&mut self, block: &mut Backing, now: Time) {
        let _ = (block, now);
    }

    /// When `tick` is due next. May be too early, never too late.
    fn deadline(&self) -> Option<Time> {
        None
    }

    /// Bytes of the block that hold data, with index and bookkeeping.
    fn bytes_used(&self) -> u64;

    /// Whether the block needs a successor and has not requested one yet. The shard sends the request; after
    /// `true`, it repeats this call only after a refusal in `News::Successor`.
    fn wants_successor(&mut self) -> bool {
        false
    }

    /// The marks of its prefix: when the block grows or splits, and when it merges. Called once, before
    /// anything else; without it the defaults apply.
    fn set_marks(&mut self, marks: Marks) {
        let _ = marks;
    }

    /// The bytes that are likely to arrive before the controller has answered a request for a successor, at
    /// the recent rate of writes and the recent delay of the controller.
    fn expect(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// Returns a granted successor that no caller knows yet: the arguments of `Moved` from the grant. `None`
    /// if there is no such successor, or a caller knows it. The block requests a successor again when it
    /// needs one.
    fn give_back(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Whether no data can be added to the block any more; `None` while earlier payloads are still arriving.
    /// A structure without a next block never accepts additions elsewhere.
    fn is_final(&self) -> Option<bool> {
        Some(true)
    }

    /// The content of the block, to be written elsewhere. Either the structure is not called afterwards, or
    /// the shard copies all parts except plain bytes before the next call, and the structure continues:
    /// committed plain bytes never change. If positions are hashes, only the content in `range`, ends
    /// included. `None` if the kind cannot be flushed.
    fn snapshot(&mut self, range: (u64, u64)) -> Option<Snapshot> {
        let _ = range;
        None
    }

    /// Whether the block could be demoted. In a lower tier the structure is called as usual, and refers to
    /// bytes that are not in memory only in answers (`Payload::Block`, `Payload::Parts`). Before the
    /// structure writes a payload, the shard reads the affected bytes back. A `Whole` block is read back
    /// before every mutation, and serves reads by `read_below`.
    fn rests(&self) -> Rest {
        Rest::Busy
    }

    /// Whether a mutation now needs the bytes of a block that is `Rest::Whole`. If not, the mutation runs
    /// while the bytes are in a lower tier, or are being moved.
    fn needs_bytes(&self, op: Op) -> bool {
        let _ = op;
        true
    }

    /// Runs an operation that changes nothing on a `Rest::Whole` block in a lower tier, with those parts of
    /// it that were read. If the operation needs other ranges, they are read, and it runs again. The range in
    /// its answer (`Payload::Block`) need not be among the read parts.
    fn read_below(&self, bytes: &Fetched, op: Op, args: &[u8], payload: &[u8]) -> Answer {
        let _ = (bytes, args, payload);
        unreachable!("{} is not an operation on a block in a lower tier", op.name())
    }

    /// Reports that the block's memory was freed: its content is in a lower tier.
    fn lowered(&mut self) {}

    /// Passes a message of the controller.
    fn tell(&mut self, block: &mut Backing, now: Time, news: News) {
        let _ = (block, now, news);
    }

    /// Whether subscribers want changes (`Event::Changed`) from now on.
    fn watch(&mut self, watched: bool) {
        let _ = watched;
    }

    /// The number of changes that were not reported, because the block was not watched, since a part of
    /// another block moved here. With this number, a subscriber that follows the part and subscribes late
    /// detects whether it missed a change.
    fn unheard(&self) -> u64 {
        0
    }

    /// Announces that the block's server is draining. A block that is referenced by its location does not
    /// move: it accepts no content until this time, which repeated calls extend, and becomes empty as the
    /// owners of its content move the content to other blocks. Returns whether the block is of such a kind.
    fn leave_by_name(&mut self, until: Time) -> bool {
        let _ = until;
        false
    }

    /// This structure as one whose contents can move to another block; most cannot.
    fn movable(&mut self) -> Option<&mut dyn Movable> {
        None
    }

    /// The hash by which a mutation was routed, if any: its retry record carries the hash, so that the record
    /// can move with the region that holds the key (decision 2). Operations with `Route::Key` need not be
    /// covered here.
    fn record_hash(&self, op: Op, args: &[u8]) -> Option<u64> {
        let _ = (op, args);
        None
    }
}

/// The largest value, item or append that a block of this size accepts.
pub fn large_limit(block_size: usize) -> usize {
    block_size / LARGE_FRACTION as usize - usize::from(Bug::LargestRefused.active())
}
