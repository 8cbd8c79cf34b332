//! How a part of a structure moves from one block to another (design decisions 2 and 5).
//!
//! The block that gives is asked for parcels until it has nothing left to send; the block that takes
//! gets them as operations (`Op::MoveRegion` and the like). Neither knows of connections: that is
//! the shard's work (`honeycomb_server`), and whose the range is, the controller's.

use crate::Answer;
use honeycomb_block::{Backing, Pin};
use honeycomb_types::{Time, Way};
use honeycomb_wire::messages::{
    MoveDropsRequest, MovePatchRequest, MoveRegionRequest, MoveStateRequest, MoveValueRequest,
};
use honeycomb_wire::{Field, Op, Status, checksum};
use std::sync::Arc;

/// A move that a block would like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// To give what begins at this hash to a new block.
    Split {
        /// At the boundary of a slot, within the block's range and not its first.
        start: u64,
    },
    /// To give everything to a neighbour.
    Merge,
    /// To give everything to a new block on another server: not its own wish, but its server's.
    Relocate,
}

impl Wish {
    /// In which way.
    pub fn way(self) -> Way {
        match self {
            Wish::Split { .. } => Way::Split,
            Wish::Merge => Way::Merge,
            Wish::Relocate => Way::Relocate,
        }
    }
}

/// A part of a range on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parcel {
    /// All entries of a part of the range.
    Region {
        /// First hash.
        start: u64,
        /// Last hash, inclusive.
        end: u64,
        /// Entries whose values were sent as `Value`.
        values: u32,
        /// Of the bytes.
        checksum: u64,
        /// They, as they lie in the block; empty when there are none.
        bytes: Arc<[u8]>,
    },
    /// What has changed in a part of the range that was sent as `Region`.
    Patch {
        /// First hash.
        start: u64,
        /// Last hash, inclusive.
        end: u64,
        /// Bytes of it from now on.
        length: u32,
        /// Runs of its bytes: offset, length, bytes.
        runs: Arc<[u8]>,
    },
    /// A value that has an extent of its own.
    Value {
        /// By which the entries know it.
        number: u32,
        /// Of its bytes.
        checksum: u64,
        /// It.
        bytes: Pin,
    },
    /// Values that were sent and are no more.
    Drops(Vec<u32>),
    /// A piece of what a block that moves as it lies knows beside its bytes.
    State {
        /// Where it begins in the whole.
        offset: u64,
        /// Bytes of the whole.
        length: u64,
        /// Of the bytes.
        checksum: u64,
        /// They.
        bytes: Arc<[u8]>,
    },
}

impl Parcel {
    /// Bytes of its payload.
    pub fn payload_len(&self) -> usize {
        match self {
            Parcel::Region { bytes, .. }
            | Parcel::Patch { runs: bytes, .. }
            | Parcel::State { bytes, .. } => bytes.len(),
            Parcel::Value { bytes, .. } => bytes.bytes().len(),
            Parcel::Drops(_) => 0,
        }
    }

    /// The request by which it travels: the operation and its arguments. The payload is as it is.
    pub fn request(&self, move_id: u64) -> (Op, Vec<u8>) {
        match self {
            Parcel::Region { start, end, values, checksum, .. } => {
                let (start, end, values, checksum) = (*start, *end, *values, *checksum);
                let args = MoveRegionRequest { move_id, start, end, values, checksum };
                (Op::MoveRegion, args.encode())
            }
            Parcel::Patch { start, end, length, runs } => {
                let (start, end, length) = (*start, *end, *length);
                let checksum = checksum(runs);
                let args = MovePatchRequest { move_id, start, end, length, checksum };
                (Op::MovePatch, args.encode())
            }
            Parcel::Value { number, checksum, .. } => {
                let (value, checksum) = (*number, *checksum);
                (Op::MoveValue, MoveValueRequest { move_id, value, checksum }.encode())
            }
            Parcel::State { offset, length, checksum, .. } => {
                let (offset, length, checksum) = (*offset, *length, *checksum);
                (Op::MoveState, MoveStateRequest { move_id, offset, length, checksum }.encode())
            }
            Parcel::Drops(values) => {
                let values = values.clone();
                (Op::MoveDrops, MoveDropsRequest { move_id, values }.encode())
            }
        }
    }
}

/// What came of some work on the next parcel.
#[derive(Debug)]
pub enum Prepared {
    /// It is ready.
    Parcel(Parcel),
    /// It is nearer.
    Partly,
    /// There is nothing to send.
    Nothing,
}

/// How the payload of a part comes to the block that takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is whole when the part is applied.
    Whole,
    /// A large one goes into the block as it arrives (`Structure::reserve`).
    InPieces,
}

/// What a range amounts to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Entries.
    pub entries: u64,
    /// Bytes of the entries, and of the values that are beside them.
    pub bytes: u64,
}

/// A block whose contents can move. One move at a time, to it or from it (INV-19).
///
/// The order for who gives: `wish` (or `can_leave`), then `refused`, or `begin_export`; `next_parcel` until there is
/// none (or `prepare`, step by step); `freeze`, after which nothing of the range changes, and the rest of the parcels, or `thaw`;
/// `hand_over`, after which nothing of it is read; then `depart`. `cancel_export` may come at any
/// point before `depart`, and after `hand_over` only when the controller has not committed the move
/// and will not.
///
/// For who takes: `begin_import` (or being opened for it), the parcels as operations, `end_import`.
pub trait Movable {
    /// What it would like moved, if it has not asked already. It asks again only after `refused`,
    /// `depart`, `cancel_export` or `end_import`.
    fn wish(&mut self, block: &Backing, now: Time) -> Option<Wish>;

    /// Whether all of it can begin to move to another block now. Asked when it has no wish of its own.
    fn can_leave(&self) -> bool;

    /// When `wish` may have changed although nothing was done to the block.
    fn wish_at(&self) -> Option<Time>;

    /// The controller has refused a wish. What has no room is answered so from now on, unless the
    /// reason is one that passes (`Busy`, `Unavailable`): then it goes on waiting.
    fn refused(&mut self, now: Time, wish: Wish, status: Status, why: String);

    /// Begins to send a range to another block. `Err`: it cannot for now.
    fn begin_export(&mut self, block: &mut Backing, start: u64, end: u64) -> Result<(), Answer>;

    /// Works on the next part to send, about as much as looking at `most` bytes takes: who is called
    /// between two requests must not take long. What is being made ready is served and changed meanwhile.
    fn prepare(&mut self, block: &mut Backing, most: usize) -> Prepared;

    /// The next part to send, whatever work it is; `None` when everything was sent as it is now.
    fn next_parcel(&mut self, block: &mut Backing) -> Option<Parcel> {
        loop {
            match self.prepare(block, usize::MAX) {
                Prepared::Parcel(parcel) => return Some(parcel),
                Prepared::Partly => {}
                Prepared::Nothing => return None,
            }
        }
    }

    /// Bytes that are to be sent, about.
    fn unsent(&self) -> u64;

    /// Nothing of the range changes from now on: who wants to is answered `Busy`.
    fn freeze(&mut self, now: Time);

    /// Whether everything that had begun before `freeze` is over: then nothing more is recorded for
    /// retries until `thaw`, and the records can go.
    fn stands_still(&self) -> bool {
        true
    }

    /// It changes again.
    fn thaw(&mut self);

    /// What the range amounts to. Only while it is frozen.
    fn totals(&self) -> Totals;

    /// Nothing of the range is read from now on: it may have become the other block's.
    fn hand_over(&mut self);

    /// It has: who asks for it is answered `Moved` with these arguments.
    fn depart(&mut self, now: Time, moved: Vec<u8>);

    /// It will not move. Everything is as before.
    fn cancel_export(&mut self, block: &mut Backing, now: Time);

    /// All that it has found no room in an empty block as large, where it lies otherwise: it gives a part of
    /// that away before it goes on.
    fn did_not_fit(&mut self) {}

    /// A neighbour will send its range. Repeating it does nothing.
    fn begin_import(&mut self, move_id: u64, start: u64, end: u64) -> Result<(), Answer>;

    /// How such a part of a move to this block comes; none of what is no part of one. Asked before any
    /// part is applied or has room made for it, so that no block sees a part that it does not know.
    fn takes(&self, op: Op) -> Option<Arrival>;

    /// The range that was sent is this block's, or is dropped. Repeating it does nothing.
    fn end_import(&mut self, block: &mut Backing, now: Time, move_id: u64, commit: bool);

    /// The range that is being sent to this block by this move, if one is.
    fn imports(&self, move_id: u64) -> Option<(u64, u64)>;

    /// Gives back a little of what has departed; whether there is more.
    fn sweep(&mut self, block: &mut Backing) -> bool;

    /// Whether it moves whole and as it lies, so that lanes go on in the other block where they were,
    /// and not only ranges of it that others serve beside it.
    fn as_it_lies(&self) -> bool {
        false
    }
}
