//! The bug bank: defects that a checker must be able to find, planted behind a feature.
//!
//! Product builds have no `bug-bank` feature and `active` is the constant `false` there; the
//! compiler removes the branch. `verify/` turns the feature on and arms one bug at a time.

/// A planted defect. Each names the invariant that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// The result of a mutation is not recorded, so a retry runs it again (INV-16).
    LostRetryRecord = 1,
    /// An append is acknowledged while a large one before it is still arriving (INV-06).
    AckBeforeEffect = 2,
    /// A request for an earlier owner's epoch is served (INV-01).
    EpochUnchecked = 3,
    /// A lease ends before its full period (INV-12).
    EarlyExpiry = 4,
    /// A block's backing goes to the next owner with the old bytes (INV-04).
    StaleBytes = 5,
    /// A new tail of a bounded queue does not count what earlier blocks hold (INV-22).
    QueueForgetsAhead = 6,
    /// A queue's block that was sealed sends consumers on while it still has items (INV-22).
    QueueMovesEarly = 7,
    /// A reservation is settled by somebody whose time had passed (INV-22).
    QueueAcksStale = 8,
    /// An item whose reservation ran out does not come back (INV-22).
    QueueLosesReturned = 9,
    /// A queue's block is retired while an answer that it gave may still be asked for (INV-16).
    QueueRetiresEarly = 10,
    /// A get whose caller has hung up takes an item all the same (INV-22).
    QueueFeedsTheDead = 11,
}

impl Bug {
    /// Every planted defect.
    pub const ALL: [Bug; 11] = [
        Bug::LostRetryRecord,
        Bug::AckBeforeEffect,
        Bug::EpochUnchecked,
        Bug::EarlyExpiry,
        Bug::StaleBytes,
        Bug::QueueForgetsAhead,
        Bug::QueueMovesEarly,
        Bug::QueueAcksStale,
        Bug::QueueLosesReturned,
        Bug::QueueRetiresEarly,
        Bug::QueueFeedsTheDead,
    ];
}

#[cfg(feature = "bug-bank")]
mod armed {
    use super::Bug;
    use std::cell::Cell;

    thread_local!(static ARMED: Cell<u8> = const { Cell::new(0) });

    impl Bug {
        /// Whether this defect is armed on the calling thread.
        pub fn active(self) -> bool {
            ARMED.get() == self as u8
        }

        /// Arms one defect (or none) for the calling thread.
        pub fn arm(bug: Option<Bug>) {
            ARMED.set(bug.map_or(0, |b| b as u8));
        }
    }
}

#[cfg(not(feature = "bug-bank"))]
impl Bug {
    /// Whether this defect is armed: never, in a build without the bug bank.
    #[inline(always)]
    pub const fn active(self) -> bool {
        false
    }
}
