//! The thread that copies blocks which are to be mapped: no core stands still for it.

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
    /// The shard that asks, and is answered by `Note::Copied`.
    pub shard: Mailbox<Note>,
}

/// Where such jobs go. Cheap to clone.
///
/// The queue is bounded by what it carries: no block is in it twice.
#[derive(Clone)]
pub(crate) struct Lender(Sender<LendJob>);

/// The other end, which copies until every `Lender` is gone.
pub(crate) struct LendWorker {
    jobs: Receiver<LendJob>,
    clock: Clock,
}

impl Lender {
    /// A lender with its worker, which its owner runs on a thread of its own.
    pub fn with_worker(clock: Clock) -> (Lender, LendWorker) {
        let (send, jobs) = channel();
        (Lender(send), LendWorker { jobs, clock })
    }

    /// Hands a job on. False when the server is ending.
    pub fn give(&self, job: LendJob) -> bool {
        self.0.send(job).is_ok()
    }
}

impl LendWorker {
    /// Copies until the last `Lender` is dropped.
    pub fn run(self) {
        for LendJob { at, bytes, shard } in &self.jobs {
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
