//! The content of a block: whether it can leave memory, and how it is written elsewhere.

use crate::{Answer, Fetched, Snapshot};
use honeycomb_block::Backing;
use honeycomb_types::Time;
use honeycomb_wire::Op;

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
    /// mutation needs all of them in memory; a read names the ranges that it needs (`LowerTierReads`).
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

/// The content of a block, which is flushed to an object store and demoted to a lower tier.
///
/// In a lower tier the structure is called as usual, and refers to bytes that are not in memory only in
/// answers (`Payload::Block`, `Payload::Parts`). Before the structure writes a payload, the shard reads the
/// affected bytes back. A `Rest::Whole` block is read back before every mutation, and serves reads by
/// `LowerTierReads`.
pub trait Content {
    /// The content of the block, to be written elsewhere. Either the structure is not called afterwards, or
    /// the shard copies all parts except plain bytes before the next call, and the structure continues:
    /// committed plain bytes never change. If positions are hashes, only the content in `range`, ends
    /// included.
    fn snapshot(&self, range: (u64, u64)) -> Snapshot;

    /// Whether the block could be demoted.
    fn rests(&self) -> Rest;

    /// For a kind whose blocks are `Rest::Whole`; without it such a block is not demoted.
    fn lower_tier_reads(&self) -> Option<&dyn LowerTierReads> {
        None
    }

    /// For a kind that changes `Rest::Whole` blocks in a lower tier without all of their bytes.
    fn lower_tier_changes(&mut self) -> Option<&mut dyn LowerTierChanges> {
        None
    }

    /// Reports that the block's memory was freed: its content is in a lower tier.
    fn demoted(&mut self) {}

    /// Announces that the block's server is draining. A block that is referenced by its location does not
    /// move: it accepts no content until this time, which repeated calls extend, and becomes empty as the
    /// owners of its content move the content to other blocks. Returns whether the block is of such a kind.
    fn refuse_content_until(&mut self, until: Time) -> bool {
        let _ = until;
        false
    }
}

/// Operations on a `Rest::Whole` block whose bytes are in a lower tier.
pub trait LowerTierReads {
    /// Whether a mutation now needs the bytes of the block. If not, the mutation runs while the bytes are in
    /// a lower tier, or are being moved.
    fn needs_bytes(&self, op: Op) -> bool {
        let _ = op;
        true
    }

    /// Whether an operation that changes nothing needs all bytes of the block in memory now.
    fn needs_whole(&self, op: Op) -> bool {
        let _ = op;
        false
    }

    /// Runs an operation that changes nothing, with those parts of the block that were read. If the operation
    /// needs other ranges, they are read, and it runs again. Ranges are within the length of `rests`; others
    /// are refused (`Internal`). The range in its answer (`Payload::Block`) need
    /// not be among the read parts. An operation that has to wait is answered with `NotYet`, and is then
    /// parked by `Waits::park` if its caller waits.
    fn read(&self, bytes: &Fetched, op: Op, args: &[u8], payload: &[u8]) -> Answer;
}

/// The bytes of a block's deltas: of its changes that its bytes in a lower tier do not contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeltaBytes {
    /// Memory that they take.
    pub memory: usize,
    /// Of it, records that `seal` would take.
    pub fresh: usize,
    /// All records, in memory and in the lower tier.
    pub all: usize,
    /// Whether a run is being written.
    pub leaving: bool,
}

/// The outcome of writing a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// It is in the lower tier.
    Written,
    /// It is not: its records stay in memory.
    Failed,
}

/// Changes of a `Rest::Whole` block whose bytes are in a lower tier, without reading and writing all of them.
///
/// The structure keeps changes in memory as deltas. The shard limits that memory: it writes deltas as a
/// *run* behind the block's bytes in its slot (`seal`). Offsets are those of the slot: a read of the
/// structure names a range of a run as it names a range of the block.
pub trait LowerTierChanges {
    /// Whether this mutation can become a delta now. Otherwise it needs all bytes in memory.
    fn takes(&self, op: Op, args: &[u8], payload: &[u8]) -> bool;

    /// Runs such a mutation, with those parts of the block that were read; see `LowerTierReads::read`.
    /// Nothing has changed while it needs other ranges. `None` if it needs all bytes in memory.
    fn change(&mut self, bytes: &Fetched, op: Op, args: &[u8], payload: &[u8]) -> Option<Answer>;

    /// The bytes of the deltas.
    fn deltas(&self) -> DeltaBytes;

    /// Makes a run of all fresh deltas, to be written at this offset of the block's slot; its length is a
    /// multiple of `TIER_CHUNK`. `None` if there are none, or a run is being written, or the new one would
    /// have more than `most` bytes.
    fn seal(&mut self, at: usize, most: usize) -> Option<Vec<u8>>;

    /// Reports the end of writing the run.
    fn sealed(&mut self, outcome: Sealed);

    /// Stores all deltas in the block, whose bytes were read back. `below` has the bytes of the slot from
    /// `from` on, with all runs.
    fn merge(&mut self, block: &mut Backing, below: &[u8], from: usize);
}
