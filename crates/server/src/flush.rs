//! The thread that writes what expired prefixes held: disks are slow, and no core waits for one.

use crate::notes::LinkNote;
use honeycomb_env::{Clock, Mailbox, NotPosted};
use honeycomb_structures::Snapshot;
use honeycomb_tiers::{FlushError, FlushStore, FlushedPart, FlushedStructure, Manifest};
use honeycomb_types::Kind;
use honeycomb_wire::messages::{CommitFlushRequest, FlushBlockReply};
use honeycomb_wire::{Field, Status};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Something to write, and the request that asks for it.
pub(crate) struct FlushJob {
    pub errand: Errand,
    pub what: FlushWhat,
}

/// A request of the controller that is answered later, and under which connection it came: one that
/// broke is not answered on the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errand {
    /// The controller shard that asks.
    pub controller: u16,
    pub link: u64,
    pub request: u64,
}

pub(crate) enum FlushWhat {
    /// What a block holds. It keeps the block's memory until it is written.
    Part { object: String, snapshot: Arc<Snapshot> },
    /// The manifest.
    Commit(Box<CommitFlushRequest>),
}

/// Where flush jobs go; none where the server has no `flush_root`. Cheap to clone.
///
/// The queue is bounded by what it carries: a part for each block that the server owns, and a
/// manifest for each prefix that had one.
#[derive(Clone)]
pub(crate) struct Flusher(Option<Sender<FlushJob>>);

/// The other end, which writes until every `Flusher` is gone.
pub(crate) struct FlushWorker {
    jobs: Receiver<FlushJob>,
    store: FlushStore,
    link: Mailbox<LinkNote>,
    clock: Clock,
}

impl Flusher {
    /// A flusher with its worker, which its owner runs on a thread of its own.
    pub fn with_worker(
        store: FlushStore,
        link: Mailbox<LinkNote>,
        clock: Clock,
    ) -> (Flusher, FlushWorker) {
        let (send, jobs) = channel();
        (Flusher(Some(send)), FlushWorker { jobs, store, link, clock })
    }

    /// One that writes nothing.
    pub fn none() -> Flusher {
        Flusher(None)
    }

    /// Hands a job on; what to answer when that cannot be.
    pub fn give(&self, job: FlushJob) -> Result<(), (Status, String)> {
        let Some(send) = &self.0 else {
            let text = "this memory server has no flush_root: start it with one";
            return Err((Status::FlushUnavailable, text.into()));
        };
        let ended = |_| (Status::Unavailable, "the server is ending".to_owned());
        send.send(job).map_err(ended)
    }
}

impl FlushWorker {
    /// Writes until the last `Flusher` is dropped.
    pub fn run(self) {
        for FlushJob { errand, what } in &self.jobs {
            let outcome = match what {
                FlushWhat::Part { object, snapshot } => self.part(&object, &snapshot),
                FlushWhat::Commit(manifest) => self.commit(*manifest).map(|()| Vec::new()),
            };
            let outcome = outcome.map_err(|e| (Status::Unavailable, e.to_string()));
            self.post(LinkNote::Done { errand, outcome });
        }
    }

    fn part(&self, object: &str, snapshot: &Snapshot) -> Result<Vec<u8>, FlushError> {
        let written = self.store.write_part(object, |out| snapshot.write(out))?;
        let (bytes, items, crc) = (written.bytes, written.items, written.crc32);
        Ok(FlushBlockReply { bytes, items, crc }.encode())
    }

    fn commit(&self, asked: CommitFlushRequest) -> Result<(), FlushError> {
        let structures = asked.structures.into_iter().map(|s| FlushedStructure {
            name: s.name,
            kind: Kind::from_code(s.kind).map_or("unknown", Kind::name).to_owned(),
            sealed: s.sealed,
            slots: s.slots,
            max_items: s.max_items,
            max_bytes: s.max_bytes,
            parts: s
                .parts
                .into_iter()
                .map(|p| FlushedPart {
                    name: p.name,
                    start: p.start,
                    bytes: p.bytes,
                    items: p.items,
                    crc32: p.crc,
                })
                .collect(),
        });
        let structures = structures.collect();
        let manifest = Manifest::new(asked.number, asked.job_name, asked.address, structures);
        self.store.commit(&asked.directory, &manifest)
    }

    fn post(&self, mut note: LinkNote) {
        while let Err(NotPosted::Full(back)) = self.link.post(note) {
            note = back;
            self.clock.sleep_until(self.clock.now() + Duration::from_millis(1));
        }
    }
}
