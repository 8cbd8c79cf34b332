//! Everything that a shard sends. The caller of the shard takes it, each kind in order.

use super::{JournalWrite, Post};
use honeycomb_structures::{Answer, Ticket};
use honeycomb_types::{BlockAt, JobId, ServerId, ShardIx, StructureId, TierIx, Way};
use honeycomb_wire::notice::Notice;

/// Pending messages of a shard.
#[derive(Default)]
pub struct Outbox {
    pub(super) effects: Vec<Effect>,
    pub(super) completed: Vec<(Ticket, Answer)>,
    pub(super) notices: Vec<(Ticket, u64, Notice)>,
    pub(super) posts: Vec<Post>,
    pub(super) journal_writes: Vec<JournalWrite>,
}

impl Outbox {
    /// Whether nothing is pending: the common case.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.completed.is_empty()
            && self.notices.is_empty()
            && self.effects.is_empty()
            && self.posts.is_empty()
            && self.journal_writes.is_empty()
    }

    /// The next answer to a request that was parked.
    pub fn completed(&mut self) -> Option<(Ticket, Answer)> {
        self.completed.pop()
    }

    /// The pending notices: the subscription of each, its number within the block, and its content.
    pub fn take_notices(&mut self) -> Vec<(Ticket, u64, Notice)> {
        std::mem::take(&mut self.notices)
    }

    /// The pending effects.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The pending posts.
    pub fn take_posts(&mut self) -> Vec<Post> {
        std::mem::take(&mut self.posts)
    }

    /// Records to be written. `JournalWork::written` gets the outcome of each.
    pub fn take_journal_writes(&mut self) -> Vec<JournalWrite> {
        std::mem::take(&mut self.journal_writes)
    }
}

/// A request of a shard to another part of the server or to the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Request from the controller the block that follows this one.
    Grow {
        /// The structure.
        structure: StructureId,
        /// The block that requests it.
        at: BlockAt,
    },
    /// Request from the controller a larger capacity for this block; answered by `BlockMessage::Capacity`.
    Enlarge {
        /// The structure.
        structure: StructureId,
        /// The block.
        at: BlockAt,
        /// Bytes that it needs to hold.
        bytes: u64,
    },
    /// Report to the controller that this block was sealed.
    Sealed {
        /// The structure.
        structure: StructureId,
        /// The block.
        at: BlockAt,
        /// Its final length: bytes of a file, items of a queue.
        length: u64,
        /// Bytes of a queue's items.
        bytes: u64,
        /// The structure was sealed with it.
        last: bool,
    },
    /// Report to the controller the total taken from a queue's block; answered by
    /// `BlockMessage::TakenReceived`.
    Taken {
        /// The structure.
        structure: StructureId,
        /// The block.
        at: BlockAt,
        /// Items, since the block was opened.
        items: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// Return a granted successor to the controller: no caller knows of it.
    Return {
        /// The structure.
        structure: StructureId,
        /// The block to which it was granted.
        at: BlockAt,
        /// The arguments of `Moved` from the grant.
        successor: Vec<u8>,
    },
    /// Request from the controller a block to move to; answered by `MoveWord::Begin`, `Refused` or
    /// `Unanswered`.
    BeginMove {
        /// The structure.
        structure: StructureId,
        /// The block that requests it.
        at: BlockAt,
        /// The first hash to move.
        start: u64,
        /// The kind of the move: split, merge or relocation.
        way: Way,
    },
    /// Report to the controller that another block has all data of a move; answered by `MoveWord::Committed`
    /// or `NotCommitted`, or cancelled by `NotAsked`. Repeated until then.
    CommitMove {
        /// The structure.
        structure: StructureId,
        /// The source block.
        at: BlockAt,
        /// The move.
        id: u64,
        /// The target block.
        target: BlockAt,
        /// Bytes that were sent for it.
        bytes: u64,
    },
    /// Report to the controller that a move was cancelled.
    CancelMove {
        /// The structure.
        structure: StructureId,
        /// The source block.
        at: BlockAt,
        /// The move.
        id: u64,
    },
    /// Request from the controller the address of another server; answered by
    /// `ExtentsWork::server_located`.
    LocateServer {
        /// The shard that requests it.
        shard: ShardIx,
        /// The server.
        server: ServerId,
    },
    /// Request that the controller remove the block from its structure. Repeated until the block is freed.
    Retire {
        /// The structure.
        structure: StructureId,
        /// The block.
        at: BlockAt,
    },
    /// Report to the controller that a block in a lower tier is read often and should be promoted; repeated
    /// later if it is not.
    Promote {
        /// The structure.
        structure: StructureId,
        /// The block.
        at: BlockAt,
    },
    /// Report to the controller that a block has arrived in its new tier and holds nothing in the old one any
    /// more; or that it stays where it was.
    TierChanged {
        /// The structure.
        structure: StructureId,
        /// The block.
        at: BlockAt,
        /// Its tier.
        tier: TierIx,
    },
    /// Report to this process that the block's server is draining, and that the large values with parts in
    /// this block must be moved elsewhere. Repeated while the server drains (`EXTENTS_LEAVE_TELL`).
    ValuesLeave {
        /// The job.
        job: JobId,
        /// The store.
        structure: StructureId,
        /// The block.
        at: BlockAt,
    },
    /// Report to the controller that bytes of a block in a lower tier cannot be read, or that nothing leads
    /// from the block to the next one: they are lost.
    BlockFailed {
        /// The structure.
        structure: StructureId,
        /// The block.
        at: BlockAt,
        /// The error of the disk, or the defect of the block's kind.
        why: String,
    },
}

impl Effect {
    /// The controller shard to which the effect is addressed.
    pub fn controller(&self) -> u16 {
        match *self {
            Effect::LocateServer { server, .. } => server.controller(),
            Effect::Grow { at, .. }
            | Effect::Enlarge { at, .. }
            | Effect::Sealed { at, .. }
            | Effect::Taken { at, .. }
            | Effect::Return { at, .. }
            | Effect::BeginMove { at, .. }
            | Effect::CommitMove { at, .. }
            | Effect::CancelMove { at, .. }
            | Effect::Promote { at, .. }
            | Effect::TierChanged { at, .. }
            | Effect::BlockFailed { at, .. }
            | Effect::ValuesLeave { at, .. }
            | Effect::Retire { at, .. } => at.block.server().controller(),
        }
    }

    /// Whether no inventory of blocks contains the effect: it is retained and sent again until the controller
    /// has received it.
    pub fn is_retained(&self) -> bool {
        matches!(
            self,
            Effect::CancelMove { .. } | Effect::BlockFailed { .. } | Effect::Return { .. }
        )
    }
}
