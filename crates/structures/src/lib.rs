//! The data structures: pure state machines over a block, and the internal interface by which a new
//! one is written (paper, 4.1).
//!
//! A structure owns the layout of one block's bytes (and a little bookkeeping beside them, which
//! is charged to the block). It does no I/O, knows no clock and no connection; the shard hands it
//! one operation at a time, so an operation is atomic because one thread runs it. A new structure
//! is a new implementation of `Structure` and `StructureKind` in a crate of its own, registered with
//! the server that is to serve it: the built-in ones are registered in the same way and use nothing
//! that it could not. This crate is all that it needs; `docs/structures.md` walks through one.
//!
//! Where a `put()` is inside: `kv` (the table, `kv/mod.rs`), `file` (append-only bytes); `lanes`
//! decides before either of them whether a mutation is new, a retry or out of turn.
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
pub use next::{Next, busy, moved};
pub use queue::{QueueBlock, QueueBounds};
pub use snapshot::{Items, Snapshot};

// What a structure in another crate needs of ours, so that it depends on nothing else.
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
    /// Bytes of it may be below memory (`Backing::floor`).
    Block(Range<usize>),
    /// What is put together from several, where some of it is below memory. Only of what changes
    /// nothing.
    Parts(Vec<Part>),
}

/// A part of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// These bytes.
    Bytes(Vec<u8>),
    /// A range of the block.
    Block(Range<usize>),
}

/// Whether a block could go below memory now, and what of it would have to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// It could not: something is under way, or its kind does not work below memory.
    Busy,
    /// Its first so many bytes are what it holds, and more may come behind them; none of them changes.
    Open(usize),
    /// Its first so many bytes are what it holds, for good.
    Final(usize),
    /// Its first so many bytes hold pieces of which each stays what and where it is until it is dropped. More
    /// is taken in memory alone: below it such a block is full.
    Pieces(usize),
    /// Its first so many bytes are what it holds. Any of them may change: whatever changes it needs all of
    /// them in memory, and what only reads it says which (`Structure::read_below`).
    Whole(usize),
}

impl Rest {
    /// Bytes from the first on that are what it holds; none of what is under way.
    pub fn length(self) -> Option<usize> {
        match self {
            Rest::Busy => None,
            Rest::Open(length) | Rest::Final(length) => Some(length),
            Rest::Pieces(length) | Rest::Whole(length) => Some(length),
        }
    }
}

impl Payload {
    /// Bytes that it keeps beside the block.
    pub(crate) fn beside(&self) -> usize {
        match self {
            Payload::None | Payload::Block(_) | Payload::Parts(_) => 0,
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

    /// Refused for a reason of the structure's own: a code that programs can tell it by, and a message
    /// that says what happened and why.
    pub fn refuse_as(code: u64, message: impl Into<String>) -> Answer {
        Answer { value: code, ..Answer::refuse(Status::Refused, message) }
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

impl<'a> Operation<'a> {
    /// The operation's number within its kind.
    pub fn number(&self) -> u8 {
        self.op.number()
    }

    /// Of an operation that is routed by a position (`Route::Position`, `Route::Through`): the
    /// position, counted from the start of this block, and the arguments behind it. Negative for one
    /// before this block, which no block has any more.
    pub fn position(&self) -> Result<(i64, &'a [u8]), Answer> {
        match split_args(Route::Position, self.args)? {
            (Routed::By(position), rest) => Ok((position, rest)),
            _ => unreachable!("a position routes by a position"),
        }
    }

    /// Of an operation that is routed by a key (`Route::Key`): the key, and the arguments behind it.
    pub fn key(&self) -> Result<(&'a [u8], &'a [u8]), Answer> {
        match split_args(Route::Key, self.args)? {
            (Routed::Key(key), rest) => Ok((key, rest)),
            _ => unreachable!("a key routes by a key"),
        }
    }
}

/// What became of an operation that was handed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Finished.
    Done(Answer),
    /// Its answer comes as `Event::Answered`, under its ticket.
    Parked,
}

/// What a block that holds back wants stored before it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToStore {
    /// Bytes of the block that follow those which are stored.
    pub range: Range<usize>,
    /// The block takes no more after them.
    pub ends: Option<Ends>,
}

/// How a block came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The structure was sealed.
    Final,
    /// It goes on in the block that these arguments of `Moved` name.
    Continues(Vec<u8>),
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
    /// An operation that was parked wants these extents to be its own; answered by `News::Adopted`.
    Adopt(Ticket, Vec<ExtentRef>),
    /// These extents are nobody's any more, and were adopted under this owner (0: they were not).
    DropExtents(u64, Vec<ExtentRef>),
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
    /// The answer to `Event::Adopt`. The extents are this owner's or, after a refusal, gone or about
    /// to be dropped; after `Busy` nobody was asked, and they are what they were.
    Adopted {
        /// The operation.
        ticket: Ticket,
        /// Names it to the blocks of extents.
        owner: u64,
        /// Why not.
        outcome: Result<(), (Status, String)>,
    },
}

/// One block of a data structure.
///
/// **Who calls.** The shard that owns the block, and nobody else: one call at a time, from one
/// thread, so that a call is atomic and needs no lock. A call must be short (no operation on this
/// core runs meanwhile); what could take long is cut into several operations, each of which says how
/// far it got. No call may block, ask a clock or do I/O. Time comes as an argument, and reports of
/// what happened leave as `Event`s: after every call that is given the block, the shard takes the
/// events and asks for `wants_successor` and `deadline`.
///
/// **Before a structure sees an operation** the shard has made sure that the block is this one in
/// this epoch, that the grant allows what the kind's table asks for, that a mutation is the next of
/// its lane and was not executed before, that the number is in the kind's table, and that a key
/// belongs to this block's hashes. The arguments are as the caller sent them: what cannot be read is
/// answered with `BadFrame`, never with a panic. A panic is a defect, and ends the server.
///
/// **Answers and retries.** Whatever an answer to a mutation is, it is kept until the caller has
/// acknowledged it, and a repetition gets it again without the structure being asked: so a mutation
/// is executed once although it may be sent often. Therefore such an answer never holds
/// `Payload::Block` (the block changes), and is small; `Answer::executed` says which statuses leave
/// the number to a later try instead. An operation that changes nothing may run again. Refusals for
/// reasons of the structure's own are `Answer::refuse_as`; `Busy` with a delay (`busy`) asks the
/// caller to come again.
///
/// **Waiting.** An operation that the table says may wait is parked by answering `Outcome::Parked`
/// and answered later by `Event::Answered` under its ticket: at the latest when `tick` comes at
/// `wait_until` (`Status::NotYet`). `cancel` takes it back.
///
/// **Growth.** A block of a kind whose router grows asks for its successor early
/// (`wants_successor`), is told it (`News::Successor`), and when something does not fit any more it
/// seals itself (`Event::Sealed`) and answers `Moved` to the successor from then on, for everything
/// that belongs there. `Next` keeps the books of that. A block never knows where in the structure it
/// lies: it counts from its own start, and clients add where that is.
///
/// **Leaving.** A sealed block that is empty for good says so once (`Event::Drained`). When nobody can
/// come back for one of its answers it is taken out of the map and freed, if the router shrinks.
///
/// **Memory.** `bytes_used` counts everything that holds data, index and bookkeeping included, also
/// what is kept beside the block: it is what the owner is charged for, and must not exceed the block
/// by more than a few per cent. Memory that a block has written stays resident until it is freed, or
/// given back within its life (`Backing::discard`). Bytes that a `Pin` reads cannot be written, so
/// that a layout must be able to leave them where they are for a while.
///
/// **Payloads** come whole (`apply`). For an operation whose table entry says that it streams, one of
/// more than 64 KiB comes as `reserve`, then `fill`/`filled` until nothing is left, then `commit`;
/// `abort` may come at any point before the commit and leaves no trace.
pub trait Structure: Send {
    /// Runs one operation.
    ///
    /// A mutation's answer never holds `Payload::Block`: it is kept for retries.
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, payload: &[u8]) -> Outcome;

    /// An operation of a batch will run in a moment: asks the memory for what it will look at first,
    /// so that it comes while those before it run. What is returned is brought to `prefetch_more`
    /// when the same has been asked of the others. Nothing may depend on it.
    fn prefetch(&self, block: &Backing, op: Op, args: &[u8]) -> Option<u64> {
        let _ = (block, op, args);
        None
    }

    /// Asks for what it will look at next, which what `prefetch` asked for leads to.
    fn prefetch_more(&self, block: &Backing, hint: u64) {
        let _ = (block, hint);
    }

    /// Makes room for a payload of `length` bytes that will arrive piece by piece. `Err` is the
    /// refusal to answer; nothing is held then.
    fn reserve(
        &mut self,
        block: &mut Backing,
        operation: &Operation<'_>,
        length: usize,
    ) -> Result<(), Answer> {
        let _ = (block, length);
        unreachable!("the kind's table does not say that {:?} streams", operation.op)
    }

    /// The part of a reservation that is still to be filled. Empty when it is complete. The place
    /// may move between calls: ask again after every operation.
    fn fill<'b>(&mut self, block: &'b mut Backing, ticket: Ticket) -> &'b mut [u8] {
        let _ = block;
        unreachable!("nothing was reserved under {ticket:?}")
    }

    /// Says that the first `n` bytes of what `fill` gave have been written.
    fn filled(&mut self, ticket: Ticket, n: usize) {
        let _ = n;
        unreachable!("nothing was reserved under {ticket:?}")
    }

    /// Makes a complete reservation visible and answers, at once or later.
    fn commit(&mut self, block: &mut Backing, now: Time, ticket: Ticket) -> Outcome {
        let _ = (block, now);
        unreachable!("nothing was reserved under {ticket:?}")
    }

    /// Gives a reservation up.
    fn abort(&mut self, block: &mut Backing, now: Time, ticket: Ticket) {
        let _ = (block, now);
        unreachable!("nothing was reserved under {ticket:?}")
    }

    /// Gives up waiting for an operation that was parked. True when it was waiting and had no
    /// effect; no answer comes for it then. False when it is under way. Others may have room for it
    /// then, so ask for `deadline` afterwards: it is due at once if they may.
    fn cancel(&mut self, ticket: Ticket) -> bool {
        let _ = ticket;
        false
    }

    /// From now on nothing is visible, and no change is answered, before it is stored outside. False: its
    /// kind cannot do that. Asked of an empty block, once.
    fn hold_back(&mut self) -> bool {
        false
    }

    /// What is to be stored next, of one that holds back; not asked again before `stored`. Nothing changes
    /// these bytes until then.
    fn to_store(&mut self) -> Option<ToStore> {
        None
    }

    /// What `to_store` gave is stored: it is visible, and what waited for that is answered.
    fn stored(&mut self) {
        unreachable!("nothing was given to be stored")
    }

    /// It could not be stored and is tried again: whoever is told to come again is told to come later.
    fn not_stored(&mut self) {}

    /// The next thing that it has to say.
    fn event(&mut self) -> Option<Event> {
        None
    }

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
    fn wants_successor(&mut self) -> bool {
        false
    }

    /// The marks of its prefix: when it is to grow or split, and when to merge. Comes once, before
    /// anything else; without it the defaults hold.
    fn set_marks(&mut self, marks: Marks) {
        let _ = marks;
    }

    /// So many bytes are likely to arrive until the controller has answered a wish for a successor,
    /// as the block was written and the controller answered of late.
    fn expect(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// Gives up a successor that it was granted and has told nobody of: the arguments of `Moved` by
    /// which it came. `None` when it has none, or has told of it. It asks again when it needs one.
    fn give_back(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Whether nothing can be added to the block any more; `None` while what was begun before that
    /// still arrives. What has no next block is never added to elsewhere.
    fn is_final(&self) -> Option<bool> {
        Some(true)
    }

    /// What the block holds, to be written elsewhere. Either nothing is asked of the structure
    /// afterwards, or what is not plain is copied before anything is, and the structure goes on: the
    /// bytes that it has committed stay as they are.
    /// Where positions are hashes, only what lies in `range`, ends included. `None` when it cannot be
    /// flushed.
    fn snapshot(&mut self, range: (u64, u64)) -> Option<Snapshot> {
        let _ = range;
        None
    }

    /// Whether the block could go below memory. Below it the structure is asked as ever, and names bytes
    /// that are not in memory only in answers (`Payload::Block`, `Payload::Parts`); before it is handed
    /// a payload that it would write, what it writes to is brought back. One that is `Whole` is brought
    /// back before anything that could change it, and what only reads it comes by `read_below`.
    fn rests(&self) -> Rest {
        Rest::Busy
    }

    /// Whether a mutation that comes now needs the bytes of a block that is `Rest::Whole`. One that does not
    /// runs while they are below memory, or on their way.
    fn needs_bytes(&self, op: Op) -> bool {
        let _ = op;
        true
    }

    /// Runs an operation that changes nothing on a block that is `Rest::Whole` and below memory, with the
    /// parts of it that were brought up. When it wants others they are, and it runs again. What its answer
    /// names (`Payload::Block`) need not be among them.
    fn read_below(&self, bytes: &Fetched, op: Op, args: &[u8], payload: &[u8]) -> Answer {
        let _ = (bytes, args, payload);
        unreachable!("{} is no operation of a block that is read below memory", op.name())
    }

    /// The block's memory is gone: what it holds is below.
    fn lowered(&mut self) {}

    /// The controller has said something.
    fn tell(&mut self, block: &mut Backing, now: Time, news: News) {
        let _ = (block, now, news);
    }

    /// Whether anybody wants to know of changes (`Event::Changed`) from now on.
    fn watch(&mut self, watched: bool) {
        let _ = watched;
    }

    /// Changes that nobody was told of because nobody watched, since a part of another block moved
    /// here: who follows it and comes late learns from it whether something was missed.
    fn unheard(&self) -> u64 {
        0
    }

    /// It is to leave its server. One that others name by where it lies does not move: it takes no more
    /// until this time, unless it is told again, and empties as what it has is carried elsewhere by those
    /// who name it. Whether it is such a one.
    fn leave_by_name(&mut self, until: Time) -> bool {
        let _ = until;
        false
    }

    /// It as a structure whose contents can move to another block; most cannot.
    fn movable(&mut self) -> Option<&mut dyn Movable> {
        None
    }

    /// The hash by which a mutation was routed, when it was routed by one: its retry record carries
    /// it, so that the record can move with the region that holds the key (decision 2). Operations
    /// with `Route::Key` need not be told here.
    fn record_hash(&self, op: Op, args: &[u8]) -> Option<u64> {
        let _ = (op, args);
        None
    }
}

/// The largest value, item or append that a block of this size takes.
pub fn large_limit(block_size: usize) -> usize {
    block_size / LARGE_FRACTION as usize - usize::from(Bug::LargestRefused.active())
}
