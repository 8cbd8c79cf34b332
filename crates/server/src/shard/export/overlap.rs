//! Which uses of one block's content may overlap, and which may not (INV-59).
//!
//! A peer and a lower tier both end the block's use of its memory: one of them waits for the other. A store
//! gets the content as of one moment, and everything else continues; only a checkpoint and a move wait for
//! each other, because the content of a checkpoint must not leave the block before it is copied. A journal
//! names the blocks that hold its bytes, so that a block with one stays where it is (ADR 0033). The journal
//! itself is no export: it delays acknowledgements, and gives nothing away.

use crate::shard::BlockSlot;
use crate::shard::blocks::Blocks;
use honeycomb_types::Bug;

/// A use of a block's content that begins: an export, or an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NewUse {
    /// To another block: a split, a merge or a relocation.
    Peer,
    /// From another block: a split, a merge or a relocation.
    Import,
    /// To a lower tier of the same server.
    Tier,
    /// To an object store: the content as of now, taken in one step.
    Copy,
    /// To an object store: the content as of a moment for which several blocks are frozen.
    Checkpoint,
    /// To an object store, after which the block is freed: the block leaves its structure at once, which ends
    /// its other exports except for one to a tier.
    Retain,
}

impl NewUse {
    /// All of them.
    pub const ALL: [NewUse; 6] = [
        NewUse::Peer,
        NewUse::Import,
        NewUse::Tier,
        NewUse::Copy,
        NewUse::Checkpoint,
        NewUse::Retain,
    ];
}

/// A use of a block's content that lasts, and that a new one must respect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PresentUse {
    /// An export to a peer, or the request for one.
    Peer,
    /// A move that the block has cancelled, and that the controller may have begun.
    CancelledMove,
    /// Content that another block sends, and that may become the block's own at any moment.
    Import,
    /// An export to a tier.
    Tier,
    /// A checkpoint.
    Checkpoint,
    /// A journal of the block.
    Journal,
}

impl PresentUse {
    /// All of them.
    pub const ALL: [PresentUse; 6] = [
        PresentUse::Peer,
        PresentUse::CancelledMove,
        PresentUse::Import,
        PresentUse::Tier,
        PresentUse::Checkpoint,
        PresentUse::Journal,
    ];

    /// Why a new use may not begin now; `None` if it may.
    pub fn refuses(self, new: NewUse) -> Option<&'static str> {
        match (self, new) {
            // A content may always be copied, and a block may always leave its structure.
            (_, NewUse::Copy | NewUse::Retain) => None,
            // The structure of a block takes part in one move at a time.
            (PresentUse::Import, NewUse::Import) => None,
            (PresentUse::Peer, _) => Some("the block is being moved, or has requested a move"),
            (PresentUse::CancelledMove, NewUse::Peer) => {
                Some("an earlier move of the block is not cancelled yet")
            }
            (PresentUse::CancelledMove, _) => None,
            (PresentUse::Import, _) => Some("the block is receiving the content of another block"),
            (PresentUse::Tier, NewUse::Checkpoint) => None,
            (PresentUse::Tier, NewUse::Tier) => Some("the block is being demoted to another tier"),
            (PresentUse::Tier, NewUse::Peer | NewUse::Import) => {
                Some("the block is in a lower tier, or is being demoted")
            }
            (PresentUse::Checkpoint, NewUse::Tier) => None,
            (PresentUse::Checkpoint, NewUse::Checkpoint) => {
                Some("another flush is taking a snapshot of the block")
            }
            (PresentUse::Checkpoint, NewUse::Peer | NewUse::Import) => {
                Some("a flush is taking a snapshot of the block")
            }
            (PresentUse::Journal, NewUse::Checkpoint) => None,
            (PresentUse::Journal, _) => Some("a block with a journal stays where it is"),
        }
    }

    /// Whether this use is one that has begun so, of which a block has one at most.
    fn is_made_by(self, new: NewUse) -> bool {
        matches!(
            (self, new),
            (PresentUse::Peer, NewUse::Peer)
                | (PresentUse::Import, NewUse::Import)
                | (PresentUse::Tier, NewUse::Tier)
                | (PresentUse::Checkpoint, NewUse::Checkpoint)
        )
    }

    fn is_of(self, slot: &BlockSlot) -> bool {
        match self {
            PresentUse::Peer => slot.exports.needs_memory() && !Bug::DemotedWhileMoving.active(),
            PresentUse::CancelledMove => slot.exports.is_cancelling(),
            PresentUse::Import => slot.import.is_some() && !Bug::CheckpointOfImport.active(),
            PresentUse::Tier => slot.residency.export().is_some(),
            PresentUse::Checkpoint => slot.exports.checkpoint.is_some(),
            PresentUse::Journal => slot.journal.is_some(),
        }
    }
}

impl BlockSlot {
    /// Whether no present use refuses a move of the block.
    pub(super) fn lets_move(&self) -> bool {
        let refuses = |present: &PresentUse| {
            let planted = Bug::MovesBesideCheckpoint.active() && *present == PresentUse::Checkpoint;
            present.refuses(NewUse::Peer).is_some() && present.is_of(self) && !planted
        };
        !PresentUse::ALL.iter().any(refuses)
    }

    /// Whether the block may free memory: all bytes are in memory, and no use of the content depends on the
    /// capacity.
    pub(in crate::shard) fn lets_reduce(&self) -> bool {
        let uses = [PresentUse::Peer, PresentUse::Import, PresentUse::Checkpoint];
        self.residency.is_plain()
            && self.shared.is_none()
            && !uses.iter().any(|present| present.is_of(self))
    }
}

/// The pairs of a present use and a new one that have occurred, begun or refused, for checkers.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::shard) struct Overlaps([[bool; NewUse::ALL.len()]; PresentUse::ALL.len()]);

impl Overlaps {
    /// Why a block may not begin this use now; `None` if it may.
    pub fn refusal(&mut self, slot: &BlockSlot, new: NewUse) -> Option<&'static str> {
        for (present, row) in PresentUse::ALL.into_iter().zip(&mut self.0) {
            if present.is_of(slot)
                && let Some(why) = present.refuses(new)
            {
                row[new as usize] = true;
                return Some(why);
            }
        }
        None
    }

    /// Records that a use of a block has begun, beside the other uses of its content.
    pub fn begun(&mut self, slot: &BlockSlot, new: NewUse) {
        for (present, row) in PresentUse::ALL.into_iter().zip(&mut self.0) {
            if present.is_of(slot) && !present.is_made_by(new) {
                let refusal = present.refuses(new);
                assert_eq!(refusal, None, "INV-59: {new:?} begins beside {present:?}");
                row[new as usize] = true;
            }
        }
    }

    /// The same for the block at this index. The exports of a retained block overlap with none.
    pub fn begun_at(&mut self, blocks: &Blocks, index: usize, new: NewUse) {
        if let Some(slot) = blocks.get(index) {
            self.begun(slot, new);
        }
    }

    /// The recorded pairs.
    pub fn seen(&self) -> impl Iterator<Item = (PresentUse, NewUse)> {
        let rows = PresentUse::ALL.into_iter().zip(self.0);
        rows.flat_map(|(present, row)| {
            let seen = NewUse::ALL.into_iter().zip(row).filter(|(_, seen)| *seen);
            seen.map(move |(new, _)| (present, new))
        })
    }
}
