//! Requests that wait at a block, its timers, its subscribers, and its extents elsewhere.

use crate::{Operation, Outcome, Ticket, busy};
use honeycomb_block::Backing;
use honeycomb_types::Time;
use honeycomb_wire::Status;

/// Delay before a caller repeats an operation that is not parked in a lower tier, in microseconds.
const REPEAT_US: u64 = 50_000;

/// A block with requests that wait, or work that is due at a time.
///
/// If the kind's table says that an operation may wait, the answer `Outcome::Parked` parks it.
/// `Event::Answered` with its ticket answers it later, at the latest when `tick` is called at `wait_until`
/// (`Status::NotYet`). `cancel` withdraws it.
pub trait Waits {
    /// Parks an operation of a block in a lower tier, as `apply` does in memory. The shard calls it at once
    /// after `LowerTierReads::read` has answered the operation with `NotYet`, if the operation may wait. A
    /// kind that parks none of them makes their callers repeat them.
    fn park(&mut self, operation: &Operation<'_>) -> Outcome {
        let _ = operation;
        Outcome::Done(busy(REPEAT_US))
    }

    /// Withdraws a parked operation. Returns true if the operation was waiting and had no effect: then it
    /// gets no answer. Returns false if it is already in progress. The withdrawal may make room for other
    /// operations: `cancel` answers them by events, which the caller takes afterwards, or `deadline` is then
    /// due at once.
    fn cancel(&mut self, ticket: Ticket) -> bool {
        let _ = ticket;
        false
    }

    /// Ends the waits and reservations that are due. Work of the block's own is done here as well, as far as
    /// pins allow it (`Backing::is_pinned`): all of a block is pinned while it is being demoted.
    fn tick(&mut self, block: &mut Backing, now: Time);

    /// When `tick` is due next. May be too early, never too late.
    fn deadline(&self) -> Option<Time>;
}

/// A block that reports changes to subscribers (`Event::Changed`).
pub trait Changes {
    /// Whether subscribers want changes from now on.
    fn watch(&mut self, watched: bool);

    /// The number of changes that were not reported, because the block was not watched. With this number, a
    /// subscriber that follows the structure into this block and subscribes late detects whether it missed a
    /// change: 0 means that it did not. Reported changes may be counted, too.
    ///
    /// Of a block that continues another one (`Growth`), all changes since it was opened count, in the block
    /// that it replaces as well. Of a block with a range of hashes, the changes since a part of another block
    /// moved here count. A built-in kind whose subscribers read its content instead returns 0.
    fn unreported(&self) -> u64;
}

/// The answer to `Event::Adopt`.
#[derive(Debug)]
pub struct Adopted {
    /// The parked operation.
    pub ticket: Ticket,
    /// The number by which the blocks of extents know the owner.
    pub owner: u64,
    /// The operation owns the extents or, after a refusal, they are dropped now or soon. `Busy` means that no
    /// request was sent, and the extents are unchanged.
    pub outcome: Result<(), (Status, String)>,
}

/// A block whose operations own extents of other blocks (`Event::Adopt`).
pub trait Adopts {
    /// Completes a parked operation.
    fn adopted(&mut self, block: &mut Backing, now: Time, adopted: Adopted);
}
