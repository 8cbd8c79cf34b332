//! A block of a file of which nothing counts before it is stored outside.
//!
//! What was appended is a piece that is complete and not committed until the store has it: readers do not
//! see it, and its sender has no answer. Pieces are stored in order and never in parts, so that what a store
//! has is a number of whole appends from the first on. That the block takes no more is stored as well,
//! before anybody is told: who is sent on to a successor finds everything before it in the store.

use super::{FileBlock, RETRY_FILLS_US, Seal};
use crate::next::busy;
use crate::{Answer, Ends, Event, Outcome, Ticket, ToStore};
use honeycomb_types::limits::JOURNAL_RECORD_MAX;

/// Delay told while a store has not answered, in microseconds; doubled with each failure.
const RETRY_STORED_US: u64 = 5_000;
/// How often it is doubled at most.
const DOUBLINGS: u32 = 7;

/// What is stored, and what is on its way.
#[derive(Default)]
pub(super) struct Journal {
    /// Bytes of the block that are stored.
    stored: usize,
    /// Where what is on its way ends.
    under_way: Option<usize>,
    /// The block takes no more, when that is stored; and who waits for it.
    ends: Option<(Ends, Option<Ticket>)>,
    /// Attempts that failed since the last that did not.
    failures: u32,
}

impl FileBlock {
    /// Whether it is to take no more, which is not stored yet.
    pub(super) fn is_ending(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.ends.is_some())
    }

    /// When to come again whose request waits for others to end.
    pub(super) fn retry_us(&self) -> u64 {
        match &self.journal {
            None => RETRY_FILLS_US,
            Some(journal) => RETRY_STORED_US << journal.failures.min(DOUBLINGS),
        }
    }

    /// Whether the first piece may be committed, as far as the store is concerned.
    pub(super) fn may_advance(&self) -> bool {
        let Some(journal) = &self.journal else { return true };
        self.pieces.first_end().is_some_and(|end| end <= journal.stored)
    }

    pub(super) fn continue_when_stored(&mut self, successor: Vec<u8>) -> Answer {
        let delay = self.retry_us();
        let journal = self.journal.as_mut().expect("its caller looked");
        journal.ends = Some((Ends::Continues(successor), None));
        busy(delay)
    }

    pub(super) fn seal_when_stored(&mut self, ticket: Ticket) -> Outcome {
        let journal = self.journal.as_mut().expect("its caller looked");
        journal.ends = Some((Ends::Final, Some(ticket)));
        Outcome::Parked
    }

    pub(super) fn next_to_store(&mut self) -> Option<ToStore> {
        let journal = self.journal.as_mut()?;
        assert!(journal.under_way.is_none(), "one record of a block is stored at a time");
        let range = self.pieces.complete_run(JOURNAL_RECORD_MAX);
        let ends = match &journal.ends {
            Some((ends, _)) if self.pieces.is_settled() => Some(ends.clone()),
            _ if range.is_empty() => return None,
            _ => None,
        };
        journal.under_way = Some(range.end);
        Some(ToStore { range, ends })
    }

    pub(super) fn was_stored(&mut self) {
        let journal = self.journal.as_mut().expect("it gave something to be stored");
        let end = journal.under_way.take().expect("it gave something to be stored");
        journal.failures = 0;
        if end > journal.stored {
            journal.stored = end;
            return self.advance();
        }
        let (ends, ticket) = journal.ends.take().expect("nothing else has no bytes");
        self.close(match ends {
            Ends::Final => Seal::Final,
            Ends::Continues(successor) => Seal::Continues(successor),
        });
        let answer = Answer::ok(self.length());
        self.events.extend(ticket.map(|ticket| Event::Answered(ticket, answer)));
    }

    pub(super) fn was_not_stored(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.failures += 1;
        }
    }
}
