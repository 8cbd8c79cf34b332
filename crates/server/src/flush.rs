//! The thread that writes the content of blocks to objects: stores are slow, and no core waits for one.

use crate::kept::{KeptBytes, KeptFault, VolumeParts};
use crate::notes::{LinkNote, Note};
use crate::shard::{Effect, JournalBegin, JournalWrite};
use honeycomb_block::Pin;
use honeycomb_env::Clock;
use honeycomb_structures::{ItemSink, Registry};
use honeycomb_tiers::{
    FlushError, FlushStore, FlushedPart, FlushedStructure, Manifest, Objects, PartWriter,
    WrittenObject,
};
use honeycomb_transport::{Mailbox, NotPosted};
use honeycomb_types::{BlockAt, Kind, StructureId};
use honeycomb_wire::messages::{
    self, CommitFlushRequest, FlushBlockReply, FlushedObject, KindName, SweepObjectsRequest,
};
use honeycomb_wire::{Field, Status};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// A write job, and the request that it answers.
pub(crate) struct FlushJob {
    pub errand: ControllerRequest,
    pub what: FlushWhat,
}

/// A request of the controller that is answered later, with the connection on which it arrived: a request of
/// a broken connection is not answered on the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControllerRequest {
    /// The controller shard that sent it.
    pub controller: u16,
    pub link: u64,
    pub request: u64,
}

pub(crate) enum FlushWhat {
    /// The content of a block, read from its place when the job's turn comes.
    Part { object: String, bytes: Arc<KeptBytes>, parts: VolumeParts, sealed: bool },
    /// The manifest, with the names of custom kinds.
    Commit(Box<CommitFlushRequest>, Vec<KindName>),
    /// The objects left behind by a failed flush.
    Sweep(Box<SweepObjectsRequest>),
}

/// The sender of flush jobs; disabled if the server has no `flush_root`. Cheap to clone.
///
/// The number of its jobs is bounded: a part for each block that the server owns, the parts that each flush
/// of a live prefix requests at a time (`FLUSH_COPIES_AT_ONCE`), and a manifest for each flush.
#[derive(Clone)]
pub(crate) struct Flusher(Option<Arc<FlushThread>>);

struct FlushThread {
    jobs: Sender<FlushJob>,
    objects: Objects,
    /// Records of journals do not wait behind parts of a flush.
    store: FlushStore,
    clock: Clock,
}

/// When the last sender is dropped, the threads no longer wait for slow stores.
impl Drop for FlushThread {
    fn drop(&mut self) {
        self.objects.end();
    }
}

/// The receiver, which writes until every `Flusher` is dropped.
pub(crate) struct FlushWorker {
    jobs: Receiver<FlushJob>,
    store: FlushStore,
    /// The names of the kinds in manifests, unless a request has them.
    kinds: Arc<Registry>,
    answers: FlushReplies,
}

/// The recipients of a job's outcome.
#[derive(Clone)]
struct FlushReplies {
    link: Mailbox<LinkNote>,
    clock: Clock,
}

impl Flusher {
    /// A flusher with its worker, which the caller runs on a thread of its own.
    pub fn with_worker(
        store: FlushStore,
        objects: Objects,
        kinds: Arc<Registry>,
        link: Mailbox<LinkNote>,
        clock: Clock,
    ) -> (Flusher, FlushWorker) {
        let (send, jobs) = channel();
        let answers = FlushReplies { link, clock };
        let worker = FlushWorker { jobs, store: store.clone(), kinds, answers };
        (Flusher(Some(Arc::new(FlushThread { jobs: send, objects, store, clock }))), worker)
    }

    /// A flusher that writes nothing.
    pub fn none() -> Flusher {
        Flusher(None)
    }

    fn door(&self) -> Result<&Arc<FlushThread>, (Status, String)> {
        let text = "this memory server has no flush_root; start it with one";
        self.0.as_ref().ok_or((Status::FlushUnavailable, text.into()))
    }

    /// Whether it can write; otherwise the answer.
    pub fn can_write(&self) -> Result<(), (Status, String)> {
        self.door().map(drop)
    }

    /// Begins the journal of a block; `JournalBegun` reports the outcome.
    pub fn begin_journal(&self, begin: JournalBegin, errand: ControllerRequest, to: Mailbox<Note>) {
        let door = self.door().expect("the caller has checked `can_write`").clone();
        let JournalBegin { at, directory, owner, structure } = begin;
        let clock = door.clock;
        door.store.begin_journal(directory, owner, structure, move |outcome| {
            let outcome = outcome.map_err(|e| match e {
                FlushError::Occupied { .. } => (Status::FlushUnavailable, e.to_string()),
                _ => (Status::Unavailable, e.to_string()),
            });
            post(&to, &clock, Note::JournalBegun(at, errand, outcome));
        });
    }

    /// Writes a record; `Journaled` reports the outcome.
    pub fn journal(&self, write: JournalWrite, to: Mailbox<Note>) {
        let door = self.door().expect("a journal that was begun has a door").clone();
        let JournalWrite { at, object, record, bytes } = write;
        let clock = door.clock;
        let number = record.number;
        door.store.write_record(object, record, Changed(bytes), move |outcome| {
            let outcome = outcome.map_err(|e| e.to_string());
            post(&to, &clock, Note::Journaled(at, number, outcome));
        });
    }

    /// Sends a job; returns the answer if that is impossible.
    pub fn give(&self, job: FlushJob) -> Result<(), (Status, String)> {
        let door = self.door()?;
        let ended = |_| (Status::Unavailable, "the server is shutting down".to_owned());
        door.jobs.send(job).map_err(ended)
    }
}

impl FlushWorker {
    /// Writes until the last `Flusher` is dropped.
    pub fn run(self) {
        for FlushJob { errand, what } in &self.jobs {
            let answers = self.answers.clone();
            match what {
                FlushWhat::Part { object, bytes, parts, sealed } => {
                    self.part(&object, &bytes, &parts, (errand, sealed));
                }
                FlushWhat::Sweep(asked) => {
                    let SweepObjectsRequest { directory, names } = *asked;
                    self.store.sweep(directory, names, move |outcome| {
                        answers.give(errand, outcome.map(|()| Vec::new()));
                    });
                }
                FlushWhat::Commit(asked, named) => {
                    let directory = asked.directory.clone();
                    match manifest(*asked, &named, &self.kinds) {
                        Ok(manifest) => self.store.commit(directory, manifest, move |outcome| {
                            answers.give(errand, outcome.map(|()| Vec::new()));
                        }),
                        Err(why) => answers.done(errand, Err((Status::Unavailable, why))),
                    }
                }
            }
        }
    }

    fn part(
        &self,
        object: &str,
        bytes: &Arc<KeptBytes>,
        disks: &VolumeParts,
        answer: (ControllerRequest, bool),
    ) {
        let mut part = PartSink(self.store.part(object));
        let given = if !bytes.snapshot().is_plain() {
            bytes.whole(disks, |whole| bytes.snapshot().give(whole, &mut part))
        } else if let Some(pin) = bytes.in_memory() {
            part.0.plain(Plain(pin));
            Ok(())
        } else {
            bytes.runs(disks, |run| part.0.run(run))
        };
        let answers = self.answers.clone();
        let (given, lost) = match given {
            Ok(()) => (Ok(()), None),
            // Both are retried.
            Err(KeptFault::Taker(why) | KeptFault::Away(why)) => (Err(why), None),
            Err(KeptFault::Gone) => (Err(io::Error::other("the block was freed")), None),
            // The bytes of a block in use may be from two moments, so the block is copied again.
            Err(KeptFault::Lost(why)) if !bytes.is_settled() => (Err(io::Error::other(why)), None),
            Err(KeptFault::Lost(why)) => (Err(io::Error::other(why.clone())), Some(why)),
        };
        let (errand, sealed) = answer;
        let (at, structure, kept) = (bytes.at, bytes.structure, bytes.clone());
        // All started writes complete before the outcome is reported, so that no write happens after it.
        part.0.finish(given, move |outcome| match lost {
            Some(why) => answers.lost(errand, structure, at, why),
            None => {
                if outcome.is_ok() {
                    kept.was_written();
                }
                answers.give(errand, outcome.map(|objects| told(objects, sealed)));
            }
        });
    }
}

impl FlushReplies {
    /// Runs on the thread of the stores, or on this one: either may wait for the link for a moment.
    fn give(&self, errand: ControllerRequest, outcome: Result<Vec<u8>, FlushError>) {
        self.done(errand, outcome.map_err(|e| (Status::Unavailable, e.to_string())));
    }

    /// The content of a block can no longer be read: it is lost, and its flush fails.
    fn lost(&self, errand: ControllerRequest, structure: StructureId, at: BlockAt, why: String) {
        let failed = Effect::BlockFailed { structure, at, why: why.clone() };
        self.tell(LinkNote::Effects(vec![failed]));
        self.done(errand, Err((Status::DataLost, why)));
    }

    fn done(&self, errand: ControllerRequest, outcome: Result<Vec<u8>, (Status, String)>) {
        self.tell(LinkNote::Done { errand, outcome });
    }

    fn tell(&self, note: LinkNote) {
        post(&self.link, &self.clock, note);
    }
}

/// Runs on the thread of the stores, or on the flusher's: either may wait for the recipient for a moment.
fn post<T>(to: &Mailbox<T>, clock: &Clock, mut note: T) {
    while let Err(NotPosted::Full(back)) = to.post(note) {
        note = back;
        clock.sleep_until(clock.now() + Duration::from_millis(1));
    }
}

/// The bytes of a block in a journal record.
struct Changed(Option<Pin>);

impl AsRef<[u8]> for Changed {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], Pin::bytes)
    }
}

struct PartSink(PartWriter);

impl ItemSink for PartSink {
    fn item(&mut self, bytes: &[&[u8]]) -> io::Result<()> {
        self.0.item(bytes)
    }
}

/// Bytes that are written unchanged.
struct Plain(Pin);

impl AsRef<[u8]> for Plain {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

fn told(objects: Vec<WrittenObject>, sealed: bool) -> Vec<u8> {
    let object = |w: WrittenObject| FlushedObject { bytes: w.bytes, items: w.items, crc: w.crc32 };
    FlushBlockReply { objects: objects.into_iter().map(object).collect(), sealed }.encode()
}

/// The manifest of a flush; otherwise the kind that the request does not name, and that this server does not
/// serve.
fn manifest(
    mut asked: CommitFlushRequest,
    named: &[KindName],
    kinds: &Registry,
) -> Result<Manifest, String> {
    let flushed = |s: messages::FlushedStructure| {
        let own = || Kind::from_code(s.kind).and_then(|kind| kinds.get(kind));
        let kind = named.iter().find(|named| named.kind == s.kind).map(|named| &named.name);
        let kind = kind.or_else(|| Some(&own()?.spec().name)).ok_or_else(|| {
            let text = "this memory server does not serve kind";
            format!("cannot write the manifest of {}: {text} {:#04x}", asked.directory, s.kind)
        })?;
        Ok(FlushedStructure {
            name: s.name,
            kind: kind.clone(),
            sealed: s.sealed,
            max_items: s.max_items,
            max_bytes: s.max_bytes,
            parts: s.parts.into_iter().map(flushed_part).collect(),
        })
    };
    let structures = std::mem::take(&mut asked.structures).into_iter().map(flushed);
    let structures = structures.collect::<Result<Vec<_>, String>>()?;
    let CommitFlushRequest { lineage, number, job_name, address, below, .. } = asked;
    let mut manifest = Manifest::new(lineage, number, job_name, address, structures);
    manifest.below = below;
    Ok(manifest)
}

fn flushed_part(p: messages::FlushedPart) -> FlushedPart {
    let messages::FlushedPart { name, start, bytes, items, crc } = p;
    FlushedPart { name, start, bytes, items, crc32: crc }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(kinds: &[u8]) -> CommitFlushRequest {
        let structure = |&kind| messages::FlushedStructure { kind, ..Default::default() };
        let structures = kinds.iter().map(structure).collect();
        CommitFlushRequest { structures, directory: "job/out".into(), ..Default::default() }
    }

    /// Regression: the server looked the names up among the kinds that it served.
    #[test]
    fn manifest_has_the_names_of_the_request_whatever_the_server_serves() {
        let kinds = Registry::builtin();
        let named = [KindName { kind: 0x81, name: "log".into() }];
        let made = manifest(asked(&[Kind::Kv.code(), 0x81]), &named, &kinds).unwrap();
        let names: Vec<&str> = made.structures.iter().map(|s| &*s.kind).collect();
        assert_eq!(names, ["kv", "log"]);
        let refused = manifest(asked(&[0x80]), &named, &kinds).unwrap_err();
        assert!(refused.contains("job/out") && refused.contains("0x80"), "{refused}");
    }
}
