//! The life of a block (ADR 0049).
//!
//! | State | Meaning |
//! | --- | --- |
//! | `Free` | no owner; its last epoch is known |
//! | `InUse`, `Stage::Open` | may accept data |
//! | `InUse`, `Stage::Sealed` | its length is final, and its structure continues in another block or ends |
//! | `InUse`, `Stage::Drained` | nothing is left in it: it waits for its end |
//! | `Retained` | unreachable for clients, and being written to a store |
//!
//! A block in use can be freed or retained in each stage. Exports and imports (`export`, `import`) are
//! independent of the stage: a sealed block may be frozen, or leave its server, and an open one too.

use super::BlockSlot;
use super::export::RetainedBlock;
use honeycomb_types::{BlockAt, Demotion, Kind, Time};
use honeycomb_wire::data::MovedArgs;
use std::time::Duration;

/// How often a drained block checks whether it can be retired, and requests it again.
const RETIRE_AGAIN: Duration = Duration::from_millis(100);

/// The state of one block of a shard.
#[derive(Default)]
pub(super) enum Lifecycle {
    #[default]
    Free,
    InUse(Box<BlockSlot>),
    Retained(Box<RetainedBlock>),
}

impl Lifecycle {
    /// The capacity of the block; 0 for a free one.
    pub fn capacity(&self) -> u64 {
        match self {
            Lifecycle::Free => 0,
            Lifecycle::InUse(slot) => slot.owner.capacity,
            Lifecycle::Retained(block) => block.owner.capacity,
        }
    }
}

/// The end of a block that accepts no more data.
#[derive(Debug)]
pub(super) struct BlockSeal {
    pub length: u64,
    /// The next block; `None` if the structure ends here.
    pub successor: Option<Box<MovedArgs>>,
}

/// The stage of a block in use.
#[derive(Debug, Default)]
pub(super) enum Stage {
    #[default]
    Open,
    Sealed(BlockSeal),
    Drained {
        /// `None` for extents, which have no successor.
        seal: Option<BlockSeal>,
        /// When the block next requests to be retired.
        retire_at: Time,
    },
}

impl Stage {
    /// The end of the block, if it is sealed.
    pub fn seal(&self) -> Option<&BlockSeal> {
        match self {
            Stage::Open => None,
            Stage::Sealed(seal) => Some(seal),
            Stage::Drained { seal, .. } => seal.as_ref(),
        }
    }

    /// The length of a block whose structure continues elsewhere, and the next block.
    pub fn continuation(&self) -> Option<(u64, &MovedArgs)> {
        let seal = self.seal()?;
        Some((seal.length, seal.successor.as_deref()?))
    }

    /// The block is sealed, or reports its seal again.
    pub fn seals(&mut self, at: BlockAt, seal: BlockSeal) {
        let (before, length) = (self.seal().map(|seal| seal.length), seal.length);
        let same = before.is_none_or(|before| before == length);
        assert!(same, "INV-23: {at:?} is sealed at {length}, and was at {before:?}");
        assert!(
            seal.successor.is_some() || self.continuation().is_none(),
            "INV-23: {at:?} has a successor, and ends its structure"
        );
        match self {
            Stage::Open | Stage::Sealed(_) => *self = Stage::Sealed(seal),
            Stage::Drained { seal: present, .. } => *present = Some(seal),
        }
    }

    /// Nothing is left in the block.
    pub fn drains(&mut self, at: BlockAt, kind: Kind, now: Time) {
        // Extents have no successor: their block is closed when it has been empty for long enough.
        let pieces = kind.attributes().demotion == Demotion::Pieces;
        let ends = self.continuation().is_some() || pieces;
        debug_assert!(ends, "INV-06: {at:?} is drained, and was not sealed");
        let seal = match std::mem::take(self) {
            Stage::Open => None,
            Stage::Sealed(seal) => Some(seal),
            Stage::Drained { seal, .. } => seal,
        };
        *self = Stage::Drained { seal, retire_at: now };
    }

    /// When a drained block next requests to be retired.
    pub fn due(&self) -> Option<Time> {
        match self {
            Stage::Drained { retire_at, .. } => Some(*retire_at),
            Stage::Open | Stage::Sealed(_) => None,
        }
    }

    /// Whether that request is due. The next one is due after a pause.
    pub fn takes_request(&mut self, now: Time) -> bool {
        match self {
            Stage::Drained { retire_at, .. } if *retire_at <= now => {
                *retire_at = now + RETIRE_AGAIN;
                true
            }
            _ => false,
        }
    }
}
