//! The threads that write blocks to lower tiers and read them: no core waits for a disk or an object store.

use crate::alarm::Alarms;
use crate::notes::Note;
use crate::sums::Sums;
use honeycomb_block::{Backing, Pin};
use honeycomb_env::{AWAY, Clock, Volume};
use honeycomb_transport::{Mailbox, NotPosted};
use honeycomb_types::{Bug, TierIx};
use honeycomb_wire::messages::TierTraffic;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Identifies an I/O operation of one shard. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IoId(pub u64);

/// An I/O operation that a shard requests on one of its disks.
#[derive(Debug)]
pub struct Io {
    /// Its number in the answer.
    pub id: IoId,
    /// The disk.
    pub tier: TierIx,
    /// The operation.
    pub what: IoWhat,
}

/// An I/O operation. Offsets count from the start of the shard's own part of the disk.
#[derive(Debug)]
pub enum IoWhat {
    /// Write these bytes, and compute the checksums of their chunks.
    Write {
        /// Destination.
        at: u64,
        /// Bytes of a block that do not change meanwhile.
        bytes: Pin,
        /// Bytes of a chunk.
        chunk: usize,
    },
    /// Read as many bytes as fit, and verify the checksums of their chunks.
    Read {
        /// Source.
        at: u64,
        /// Destination.
        into: Backing,
        /// Checksums.
        sums: Sums,
    },
    /// Read the first bytes of a block that is promoted, or some bytes of a block that is demoted from a disk
    /// to a store, and verify the checksums of their chunks. No request waits for this.
    ReadBlock {
        /// Source.
        at: u64,
        /// Destination.
        into: Backing,
        /// Number of bytes.
        length: usize,
        /// Checksums.
        sums: Sums,
    },
    /// These bytes are no longer needed.
    Discard(Range<u64>),
}

/// The outcome of an I/O operation.
#[derive(Debug)]
pub enum IoDone {
    /// The bytes are on the disk; these are the checksums of their chunks.
    Written(Sums),
    /// The bytes were read, and their checksums are right.
    Read(Backing),
    /// The disk has freed the space, or keeps it until it is overwritten.
    Discarded,
    /// Two attempts to write, or to read with the right checksums, failed.
    Failed(String),
    /// The object store cannot be reached now. Its data is not lost, and the operation may be requested
    /// again.
    Away(String),
}

impl Io {
    /// Executes the operation, on a shard's part of a volume that begins at `base`. This is the only place
    /// where the bytes of a block are written to a disk or read from one.
    pub fn carry_out(self, volume: &dyn Volume, base: u64) -> (IoId, IoDone) {
        let done = match self.what {
            IoWhat::Write { at, bytes, chunk } => {
                let written = volume.write(base + at, bytes.bytes());
                written.map(|()| IoDone::Written(Sums::of(bytes.bytes(), chunk)))
            }
            IoWhat::Read { at, mut into, sums } => {
                let bytes = into.slice_mut(0..into.len());
                read_checked(volume, base + at, bytes, &sums).map(|()| IoDone::Read(into))
            }
            IoWhat::ReadBlock { at, mut into, length, sums } => {
                let bytes = into.slice_mut(0..length);
                read_checked(volume, base + at, bytes, &sums).map(|()| IoDone::Read(into))
            }
            // A volume that cannot free space keeps it for the next write.
            IoWhat::Discard(range) => match volume.discard(base + range.start..base + range.end) {
                Err(e) if e.kind() == AWAY => Err(e),
                _ => Ok(IoDone::Discarded),
            },
        };
        let failed = |e: io::Error| match e.kind() {
            AWAY => IoDone::Away(e.to_string()),
            _ => IoDone::Failed(e.to_string()),
        };
        (self.id, done.unwrap_or_else(failed))
    }

    /// Bytes transferred.
    fn bytes(&self) -> u64 {
        match &self.what {
            IoWhat::Write { bytes, .. } => bytes.bytes().len() as u64,
            IoWhat::Read { into, .. } => into.len() as u64,
            IoWhat::ReadBlock { length, .. } => *length as u64,
            IoWhat::Discard(_) => 0,
        }
    }

    /// Its index in `WAYS`.
    fn way(&self) -> usize {
        match self.what {
            IoWhat::Write { .. } => 0,
            IoWhat::Read { .. } | IoWhat::ReadBlock { .. } => 1,
            IoWhat::Discard(_) => 2,
        }
    }

    /// Whether a request waits for it.
    fn is_urgent(&self) -> bool {
        matches!(self.what, IoWhat::Read { .. })
    }
}

/// Reads bytes and verifies the checksums of their chunks. A disk that erred once may succeed the second
/// time; a store that cannot be reached was already retried for long enough.
pub(crate) fn read_checked(
    volume: &dyn Volume,
    at: u64,
    bytes: &mut [u8],
    sums: &Sums,
) -> io::Result<()> {
    read(volume, at, bytes, sums).or_else(|e| match e.kind() {
        AWAY => Err(e),
        _ => read(volume, at, bytes, sums),
    })
}

fn read(volume: &dyn Volume, at: u64, bytes: &mut [u8], sums: &Sums) -> io::Result<()> {
    let length = bytes.len();
    assert!(sums.are_for(length), "INV-11: {length} bytes are read with other checksums");
    volume.read(at, bytes)?;
    if !sums.verify(bytes) && !Bug::SumUnchecked.active() {
        return Err(io::Error::other("the disk returned other bytes than were written"));
    }
    Ok(())
}

/// One operation, and the shard that gets its outcome.
struct IoJob {
    io: Io,
    base: u64,
    shard: Mailbox<Note>,
}

/// The reported state of a disk: bytes written and read since the start, for all owners, and its alarms.
#[derive(Debug)]
pub(crate) struct Traffic {
    written: AtomicU64,
    read: AtomicU64,
    pub alarms: Alarms,
}

impl Traffic {
    fn of(name: String) -> Traffic {
        let (written, read) = Default::default();
        Traffic { written, read, alarms: Alarms::of(name) }
    }

    /// As reported to the controller.
    pub fn told(&self) -> TierTraffic {
        TierTraffic { written: self.written.load(Relaxed), read: self.read.load(Relaxed) }
    }
}

#[derive(Default)]
struct Queues {
    reads: VecDeque<IoJob>,
    writes: VecDeque<IoJob>,
    /// The number of spillers left.
    spillers: usize,
}

struct SpillQueue {
    queues: Mutex<Queues>,
    traffic: Arc<Traffic>,
    changed: Condvar,
}

impl SpillQueue {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The queue for a shard's operations on one disk.
///
/// The number of its operations is bounded: the blocks of a server that are demoted at a time, and reads that
/// have buffers.
pub(crate) struct Spiller(Arc<SpillQueue>, Arc<dyn Volume>);

/// The worker: it executes until every `Spiller` of the disk is dropped.
pub(crate) struct SpillWorker {
    shared: Arc<SpillQueue>,
    volume: Arc<dyn Volume>,
    clock: Clock,
    takes: Takes,
}

/// The operations that a worker prefers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// Writes first, so that readers cannot keep memory from being freed.
    WritesFirst,
    ReadsFirst,
    /// Only operations for which a request waits: if requests take long, background operations do not occupy
    /// all workers.
    Reads,
}

/// If a volume has more workers than this, half of them only read.
const DIVIDED: usize = 8;

impl Clone for Spiller {
    fn clone(&self) -> Spiller {
        self.0.lock().spillers += 1;
        Spiller(self.0.clone(), self.1.clone())
    }
}

impl Drop for Spiller {
    fn drop(&mut self) {
        let mut queues = self.0.lock();
        assert!(queues.spillers > 0, "INV-33: a spiller ends that was not counted");
        queues.spillers -= 1;
        drop(queues);
        self.0.changed.notify_all();
    }
}

impl Spiller {
    /// A spiller with its workers, each of which the caller runs on a thread of its own. The name is for
    /// people, in alarms.
    pub fn with_workers(
        volume: Arc<dyn Volume>,
        name: String,
        clock: Clock,
    ) -> (Spiller, Vec<SpillWorker>) {
        let queues = Mutex::new(Queues { spillers: 1, ..Queues::default() });
        let (traffic, changed) = (Arc::new(Traffic::of(name)), Condvar::new());
        let threads = volume.width();
        let shared = Arc::new(SpillQueue { queues, traffic, changed });
        let worker = |n| SpillWorker {
            shared: shared.clone(),
            volume: volume.clone(),
            clock,
            takes: match n {
                0 => Takes::WritesFirst,
                n if threads > DIVIDED && n >= threads / 2 => Takes::Reads,
                _ => Takes::ReadsFirst,
            },
        };
        let workers = (0..threads).map(worker).collect();
        (Spiller(shared, volume), workers)
    }

    /// The volume, for threads that may wait for it.
    pub fn volume(&self) -> &Arc<dyn Volume> {
        &self.1
    }

    /// The traffic of its workers.
    pub fn traffic(&self) -> Arc<Traffic> {
        self.0.traffic.clone()
    }

    /// Queues a shard's operation, whose part of the disk begins at `base`.
    pub fn give(&self, io: Io, base: u64, shard: Mailbox<Note>) {
        let mut queues = self.0.lock();
        let urgent = io.is_urgent();
        let queue = if urgent { &mut queues.reads } else { &mut queues.writes };
        queue.push_back(IoJob { io, base, shard });
        drop(queues);
        // Of many workers, not each takes every operation.
        match self.1.width() > DIVIDED {
            true => self.0.changed.notify_all(),
            false => self.0.changed.notify_one(),
        }
    }
}

impl SpillWorker {
    /// Executes operations until the last `Spiller` is dropped.
    pub fn run(self) {
        while let Some(IoJob { io, base, shard }) = self.next() {
            let (bytes, way) = (io.bytes(), io.way());
            let (id, done) = io.carry_out(&*self.volume, base);
            let traffic = &self.shared.traffic;
            traffic.alarms.heard(way, &done, self.clock.now());
            match done {
                IoDone::Written(_) => _ = traffic.written.fetch_add(bytes, Relaxed),
                IoDone::Read(_) => _ = traffic.read.fetch_add(bytes, Relaxed),
                IoDone::Discarded | IoDone::Failed(_) | IoDone::Away(_) => {}
            }
            let mut note = Note::Io(id, done);
            while let Err(NotPosted::Full(back)) = shard.post(note) {
                note = back;
                self.clock.sleep_until(self.clock.now() + Duration::from_millis(1));
            }
        }
    }

    fn next(&self) -> Option<IoJob> {
        let mut queues = self.shared.lock();
        loop {
            let Queues { reads, writes, spillers } = &mut *queues;
            let job = match self.takes {
                Takes::WritesFirst => writes.pop_front().or_else(|| reads.pop_front()),
                Takes::ReadsFirst => reads.pop_front().or_else(|| writes.pop_front()),
                Takes::Reads => reads.pop_front(),
            };
            if job.is_some() {
                return job;
            }
            if *spillers == 0 {
                return None;
            }
            queues = self.shared.changed.wait(queues).unwrap_or_else(|e| e.into_inner());
        }
    }
}
