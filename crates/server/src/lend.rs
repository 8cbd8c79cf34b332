//! The thread that copies blocks for mapping, so that no core stops for it.

use crate::notes::Note;
use honeycomb_block::{Pin, Shared};
use honeycomb_env::Clock;
use honeycomb_transport::{Mailbox, NotPosted};
use honeycomb_types::BlockAt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// A sealed block to copy.
pub(crate) struct LendJob {
    pub at: BlockAt,
    pub bytes: Pin,
    /// The shard that requests it, and gets `Note::Copied` as the answer.
    pub shard: Mailbox<Note>,
}

/// The queue of such jobs. Cheap to clone.
///
/// Its length is bounded: no block is in it twice.
#[derive(Clone)]
pub(crate) struct Lender(Sender<LendJob>);

/// The worker, which copies until every `Lender` is dropped.
pub(crate) struct LendWorker {
    jobs: Receiver<LendJob>,
    clock: Clock,
}

impl Lender {
    /// A lender with its worker, which the caller runs on a thread of its own.
    pub fn with_worker(clock: Clock) -> (Lender, LendWorker) {
        let (send, jobs) = channel();
        (Lender(send), LendWorker { jobs, clock })
    }

    /// Queues a job. False if the server is shutting down.
    pub fn give(&self, job: LendJob) -> bool {
        self.0.send(job).is_ok()
    }
}

impl LendWorker {
    /// Copies until the last `Lender` is dropped.
    pub fn run(self) {
        for LendJob { at, bytes, shard } in &self.jobs {
            assert!(!bytes.bytes().is_empty(), "{at:?} is copied for mapping, and is empty");
            let copy = Shared::copy(bytes.bytes()).map_err(|e| e.to_string());
            drop(bytes);
            let mut note = Note::Copied(at, copy);
            while let Err(NotPosted::Full(back)) = shard.post(note) {
                note = back;
                self.clock.sleep_until(self.clock.now() + Duration::from_millis(1));
            }
        }
    }
}
