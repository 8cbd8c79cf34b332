//! Gives freed memory back to the operating system, off the data cores.

use memmap2::MmapRaw;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Where dropped mappings go. Cheap to clone.
///
/// The queue is bounded by what it carries: every entry is a block that its server owns.
#[derive(Clone)]
pub struct Reclaimer(Option<Sender<MmapRaw>>);

/// The other end: unmaps what arrives until every `Reclaimer` is gone.
pub struct ReclaimWorker(Receiver<MmapRaw>);

impl Reclaimer {
    /// A reclaimer with a worker, which its owner runs on a thread of its own.
    pub fn with_worker() -> (Reclaimer, ReclaimWorker) {
        let (send, receive) = channel();
        (Reclaimer(Some(send)), ReclaimWorker(receive))
    }

    /// A reclaimer that unmaps on the calling thread: for tests and the simulator.
    pub fn inline() -> Reclaimer {
        Reclaimer(None)
    }

    pub(crate) fn give(&self, mapping: MmapRaw) {
        // Without a worker, or when it has ended, the drop at the end of this scope unmaps.
        if let Some(send) = &self.0 {
            let _ = send.send(mapping);
        }
    }
}

impl ReclaimWorker {
    /// Unmaps until the last `Reclaimer` is dropped.
    pub fn run(self) {
        for mapping in self.0 {
            drop(mapping);
        }
    }
}
