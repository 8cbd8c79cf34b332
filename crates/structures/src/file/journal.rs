//! A block of a file whose appends become visible only when they are stored elsewhere.
//!
//! An append is a complete, uncommitted piece until the object store has it: readers do not see it, and its
//! sender has no answer. Pieces are stored in order and never in parts, so the object store always holds a
//! number of whole appends from the first on. The seal of the block is stored as well before any caller
//! learns of it: a caller that is redirected to a successor finds everything before it in the object store.

use crate::pieces::Pieces;
use crate::{Ends, Ticket, ToStore};
use honeycomb_types::limits::JOURNAL_RECORD_MAX;

/// Retry delay of a block without a journal, while other appends must end first, in microseconds.
const RETRY_FILLS_US: u64 = 200;
/// Retry delay while the object store has not answered, in microseconds; doubled with each failure.
const RETRY_STORED_US: u64 = 5_000;
/// Most doublings.
const DOUBLINGS: u32 = 7;

/// The journal of a block, if its bytes become visible only when they are stored.
#[derive(Default)]
pub(super) struct FileJournal {
    progress: Option<Progress>,
}

/// The stored bytes, and the bytes being stored.
#[derive(Default)]
struct Progress {
    /// Bytes of the block that are stored.
    stored: usize,
    /// End of the bytes being stored.
    under_way: Option<usize>,
    /// The seal of the block, not stored yet, and the operation that waits for it.
    ends: Option<(Ends, Option<Ticket>)>,
    /// Failed attempts since the last success.
    failures: u32,
}

/// The part of a block that was stored.
pub(super) enum Stored {
    Bytes,
    /// Its seal, and the operation that waited for it.
    Seal(Ends, Option<Ticket>),
}

impl FileJournal {
    /// From now on every change waits until it is stored.
    pub fn begin(&mut self) {
        self.progress = Some(Progress::default());
    }

    #[inline]
    pub fn is_kept(&self) -> bool {
        self.progress.is_some()
    }

    /// Whether a seal waits to be stored.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.progress.as_ref().is_some_and(|progress| progress.ends.is_some())
    }

    /// The retry delay of a request that waits for others to end.
    pub fn retry_us(&self) -> u64 {
        match &self.progress {
            None => RETRY_FILLS_US,
            Some(progress) => RETRY_STORED_US << progress.failures.min(DOUBLINGS),
        }
    }

    /// Whether the first piece, which ends here, is stored and may be committed.
    #[inline]
    pub fn covers(&self, first_end: Option<usize>) -> bool {
        let Some(progress) = &self.progress else { return true };
        first_end.is_some_and(|end| end <= progress.stored)
    }

    /// Stores the seal of the block after its bytes; `ticket` is the operation that waits for it.
    pub fn seal(&mut self, ends: Ends, ticket: Option<Ticket>) {
        self.progress().ends = Some((ends, ticket));
    }

    /// The next bytes to store: a record of the journal.
    pub fn next_record<T>(&mut self, pieces: &Pieces<T>) -> Option<ToStore> {
        let progress = self.progress.as_mut()?;
        assert!(progress.under_way.is_none(), "one record of a block is stored at a time");
        let range = pieces.complete_run(JOURNAL_RECORD_MAX);
        let ends = match &progress.ends {
            Some((ends, _)) if pieces.is_settled() => Some(ends.clone()),
            _ if range.is_empty() => return None,
            _ => None,
        };
        progress.under_way = Some(range.end);
        Some(ToStore { range, ends })
    }

    /// The bytes of the record are stored.
    pub fn stored(&mut self) -> Stored {
        let progress = self.progress();
        let end = progress.under_way.take().expect("a journal that stores has a record under way");
        progress.failures = 0;
        if end > progress.stored {
            progress.stored = end;
            return Stored::Bytes;
        }
        let (ends, ticket) = progress.ends.take().expect("nothing else has no bytes");
        Stored::Seal(ends, ticket)
    }

    /// Storing the bytes failed and is repeated.
    pub fn failed(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress.failures += 1;
        }
    }

    fn progress(&mut self) -> &mut Progress {
        self.progress.as_mut().expect("a block that stores its bytes keeps a journal")
    }
}
