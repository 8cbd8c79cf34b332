//! A block of a file whose appends become visible only when they are stored elsewhere.
//!
//! An append is a complete, uncommitted piece until the object store has it: readers do not see it, and its
//! sender has no answer. Pieces are stored in order and never in parts, so the object store always holds a
//! number of whole appends from the first on. The seal of the block is stored as well before any caller
//! learns of it: a caller that is redirected to a successor finds everything before it in the object store.

use super::{FileBlock, FileSeal, RETRY_FILLS_US};
use crate::busy;
use crate::{Answer, Ends, Event, Journaled, Outcome, Ticket, ToStore};
use honeycomb_types::limits::JOURNAL_RECORD_MAX;

/// Retry delay while the object store has not answered, in microseconds; doubled with each failure.
const RETRY_STORED_US: u64 = 5_000;
/// Most doublings.
const DOUBLINGS: u32 = 7;

/// The stored bytes, and the bytes being stored.
#[derive(Default)]
pub(super) struct FileJournal {
    /// Bytes of the block that are stored.
    stored: usize,
    /// End of the bytes being stored.
    under_way: Option<usize>,
    /// The seal of the block, not stored yet, and the operation that waits for it.
    ends: Option<(Ends, Option<Ticket>)>,
    /// Failed attempts since the last success.
    failures: u32,
}

impl FileBlock {
    /// Whether a seal waits to be stored.
    pub(super) fn is_ending(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.ends.is_some())
    }

    /// The retry delay of a request that waits for others to end.
    pub(super) fn retry_us(&self) -> u64 {
        match &self.journal {
            None => RETRY_FILLS_US,
            Some(journal) => RETRY_STORED_US << journal.failures.min(DOUBLINGS),
        }
    }

    /// Whether the first piece is stored and may be committed.
    pub(super) fn may_advance(&self) -> bool {
        let Some(journal) = &self.journal else { return true };
        self.pieces.first_end().is_some_and(|end| end <= journal.stored)
    }

    pub(super) fn continue_when_stored(&mut self, successor: Vec<u8>) -> Answer {
        let delay = self.retry_us();
        let journal = self.journal.as_mut().expect("the caller has found the journal");
        journal.ends = Some((Ends::Continues(successor), None));
        busy(delay)
    }

    pub(super) fn seal_when_stored(&mut self, ticket: Ticket) -> Outcome {
        let journal = self.journal.as_mut().expect("the caller has found the journal");
        journal.ends = Some((Ends::Final, Some(ticket)));
        Outcome::Parked
    }
}

impl Journaled for FileBlock {
    fn hold_back(&mut self) {
        self.journal = Some(FileJournal::default());
    }

    fn to_store(&mut self) -> Option<ToStore> {
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

    fn stored(&mut self) {
        let journal = self.journal.as_mut().expect("a journal that stores has a record under way");
        let end = journal.under_way.take().expect("a journal that stores has a record under way");
        journal.failures = 0;
        if end > journal.stored {
            journal.stored = end;
            return self.advance();
        }
        let (ends, ticket) = journal.ends.take().expect("nothing else has no bytes");
        self.close(match ends {
            Ends::Final => FileSeal::Final,
            Ends::Continues(successor) => FileSeal::Continues(successor),
        });
        let answer = Answer::ok(self.length());
        self.events.extend(ticket.map(|ticket| Event::Answered(ticket, answer)));
    }

    fn not_stored(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.failures += 1;
        }
    }
}
