//! How a part of a structure moves from one block to another (design decisions 2 and 5).
//!
//! The source block returns parcels until nothing is left to send. The target block gets them as operations
//! (`Op::MoveRegion` and the like). Neither knows of connections, which are the shard's work
//! (`honeycomb_server`); the controller decides who owns the range.

use crate::Answer;
use honeycomb_block::{Backing, Pin};
use honeycomb_types::{Time, Way};
use honeycomb_wire::messages::{
    MoveDropsRequest, MovePatchRequest, MoveRegionRequest, MoveStateRequest, MoveValueRequest,
};
use honeycomb_wire::{Field, Op, Status, checksum};
use std::sync::Arc;
use std::time::Duration;

/// A move that a block requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveRequest {
    /// To give the range from this hash on to a new block.
    Split {
        /// At a boundary of slots, inside the block's range and not its first hash.
        start: u64,
    },
    /// To give everything to a neighbour.
    Merge,
    /// To give everything to a new block on another server: requested by its server, not by the block.
    Relocate,
}

impl MoveRequest {
    /// The way of the move.
    pub fn way(self) -> Way {
        match self {
            MoveRequest::Split { .. } => Way::Split,
            MoveRequest::Merge => Way::Merge,
            MoveRequest::Relocate => Way::Relocate,
        }
    }
}

/// A part of a range in transfer.
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
        /// The bytes as they are in the block; empty if there are none.
        bytes: Arc<[u8]>,
    },
    /// The changes of a part of the range that was sent as `Region`.
    Patch {
        /// First hash.
        start: u64,
        /// Last hash, inclusive.
        end: u64,
        /// New length of the region in bytes.
        length: u32,
        /// Runs of changed bytes: offset, length, bytes.
        runs: Arc<[u8]>,
    },
    /// A value that has an extent of its own.
    Value {
        /// The number by which entries refer to it.
        number: u32,
        /// Of its bytes.
        checksum: u64,
        /// The bytes.
        bytes: Pin,
    },
    /// Values that were sent and have since been deleted.
    Drops(Vec<u32>),
    /// A piece of the state of a block that moves whole, beside its bytes.
    State {
        /// Offset in the whole state.
        offset: u64,
        /// Bytes of the whole state.
        length: u64,
        /// Of the bytes.
        checksum: u64,
        /// The bytes.
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

    /// The request that carries it: the operation and its arguments. The payload is unchanged.
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

/// The result of some work on the next parcel.
#[derive(Debug)]
pub enum Prepared {
    /// It is ready.
    Parcel(Parcel),
    /// Work is left before the parcel is ready.
    Partly,
    /// Nothing is left to send.
    Nothing,
}

/// How the payload of a part reaches the target block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Complete when the part is applied.
    Whole,
    /// A large payload is written into the block as it arrives (`Streaming::reserve`).
    InPieces,
}

/// The totals of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Entries.
    pub entries: u64,
    /// Bytes of the entries, and of the values beside them.
    pub bytes: u64,
}

/// A block whose contents can move. One move at a time, to it or from it (INV-19).
///
/// Order of calls at the source: `move_request` (or `can_leave`), then `refused` or `begin_export`;
/// `next_parcel` until there is none (or `prepare`, step by step); `freeze`, after which nothing of the range
/// changes, and the rest of the parcels, or `thaw`; `hand_over`, after which nothing of the range is read;
/// then `depart`. `cancel_export` may come at any point before `depart`, and after `hand_over` only if the
/// controller has not committed the move and will not.
///
/// Order at the target: `begin_import` (or opened as importing), the parcels as operations, `end_import`.
pub trait Movable {
    /// The move that it requests, if it has not requested one already. It requests again only after
    /// `refused`, `depart`, `cancel_export` or `end_import`. Called only of kinds that split: blocks of a
    /// custom kind request no moves.
    fn move_request(&mut self, block: &Backing, now: Time) -> Option<MoveRequest>;

    /// Notes how long a move that is requested now would wait for others before it begins.
    fn expect_delay(&mut self, _delay: Duration) {}

    /// Whether the whole block can begin to move now. Called if it requests no move itself.
    fn can_leave(&self) -> bool;

    /// When `move_request` may have changed although the block has not.
    fn move_request_due(&self) -> Option<Time>;

    /// The controller has refused a request. From now on, data without room gets this answer. If the reason
    /// is temporary (`Busy`, `Unavailable`), it continues to wait.
    fn refused(&mut self, now: Time, request: MoveRequest, status: Status, why: String);

    /// Begins to send a range to another block. `Err` if it cannot now.
    fn begin_export(&mut self, block: &mut Backing, start: u64, end: u64) -> Result<(), Answer>;

    /// Works on the next part to send, for about as long as reading `most` bytes takes: it is called between
    /// two requests and must not take long. The range is served and changed meanwhile.
    fn prepare(&mut self, block: &mut Backing, most: usize) -> Prepared;

    /// The next part to send, however much work it is; `None` when everything was sent in its present state.
    fn next_parcel(&mut self, block: &mut Backing) -> Option<Parcel> {
        loop {
            match self.prepare(block, usize::MAX) {
                Prepared::Parcel(parcel) => return Some(parcel),
                Prepared::Partly => {}
                Prepared::Nothing => return None,
            }
        }
    }

    /// Estimate of the bytes left to send.
    fn unsent(&self) -> u64;

    /// From now on nothing of the range changes: mutations are answered `Busy`.
    fn freeze(&mut self, now: Time);

    /// Whether every operation that began before `freeze` has ended. Then nothing more is recorded for
    /// retries until `thaw`, and the records can be sent.
    fn stands_still(&self) -> bool {
        true
    }

    /// The range can change again.
    fn thaw(&mut self);

    /// The totals of the range. Only while it is frozen.
    fn totals(&self) -> Totals;

    /// From now on nothing of the range is read: it may belong to the other block.
    fn hand_over(&mut self);

    /// The range belongs to the other block: requests for it are answered `Moved` with these arguments.
    fn depart(&mut self, now: Time, moved: Vec<u8>);

    /// The move is cancelled. Everything is as before.
    fn cancel_export(&mut self, block: &mut Backing, now: Time);

    /// The content did not fit into an empty block of the same capacity, where it has another layout: before
    /// it leaves, this block gets the capacity of a whole block, or gives a part of the content away if that
    /// is no more or is denied.
    fn did_not_fit(&mut self, _now: Time) {}

    /// Announces that a neighbour will send its range. Idempotent.
    fn begin_import(&mut self, move_id: u64, start: u64, end: u64) -> Result<(), Answer>;

    /// How this part of a move arrives; none if the operation is not part of a move to this block. Called
    /// before a part is applied or gets room, so that no block sees a part that it does not know.
    fn takes(&self, op: Op) -> Option<Arrival>;

    /// The range that was sent becomes this block's, or is dropped. Idempotent.
    fn end_import(&mut self, block: &mut Backing, now: Time, move_id: u64, commit: bool);

    /// The range that this move is sending to this block, if any.
    fn imports(&self, move_id: u64) -> Option<(u64, u64)>;

    /// Frees some of the departed data; returns whether there is more.
    fn sweep(&mut self, block: &mut Backing) -> bool;

    /// Whether it moves whole, with its layout. Then its lanes continue in the other block where they were,
    /// instead of only the records of a range.
    fn moves_whole(&self) -> bool {
        false
    }
}
