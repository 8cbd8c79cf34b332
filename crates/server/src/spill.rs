//! The threads that write blocks below memory and read them from there: no core waits for a disk
//! or a store.

use crate::alarm::Alarms;
use crate::notes::Note;
use honeycomb_block::{Backing, Pin};
use honeycomb_env::{AWAY, Clock, Mailbox, NotPosted, Volume};
use honeycomb_types::limits::TIER_CHUNK;
use honeycomb_types::{Bug, TierIx};
use honeycomb_wire::messages::TierTraffic;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Names some I/O of one shard. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IoId(pub u64);

/// Something that a shard wants of one of its disks.
#[derive(Debug)]
pub struct Io {
    /// By which it is answered.
    pub id: IoId,
    /// The disk.
    pub tier: TierIx,
    /// What.
    pub what: IoWhat,
}

/// What is to be done. Offsets count from the start of the shard's own part of the disk.
#[derive(Debug)]
pub enum IoWhat {
    /// Write these bytes, and sum their chunks.
    Write {
        /// Where to.
        at: u64,
        /// Bytes of a block that does not change meanwhile.
        bytes: Pin,
    },
    /// Read so many bytes as there is room for, whose chunks have these sums.
    Read {
        /// Where from.
        at: u64,
        /// Where to.
        into: Backing,
        /// Sums, a chunk each.
        sums: Vec<u32>,
    },
    /// Read the first bytes of a block that comes back up, or some of one that goes further down, whose
    /// chunks have these sums. Nobody waits for it.
    Raise {
        /// Where from.
        at: u64,
        /// Where to.
        into: Backing,
        /// How many bytes.
        length: usize,
        /// Sums, a chunk each.
        sums: Vec<u32>,
    },
    /// Nobody reads this any more.
    Discard(Range<u64>),
}

/// What became of it.
#[derive(Debug)]
pub enum IoDone {
    /// It is on the disk, and these are the sums of its chunks.
    Written(Vec<u32>),
    /// It was read, and is what was written.
    Read(Backing),
    /// The disk has its room back, or keeps it until it is written again.
    Discarded,
    /// It could not be written, or read as it was written, twice.
    Failed(String),
    /// The store cannot be reached now. What is there is there, and may be asked for again.
    Away(String),
}

/// The sums of some bytes, a chunk each.
pub(crate) fn sums_of(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(TIER_CHUNK).map(crc32fast::hash).collect()
}

impl Io {
    /// Carries it out, on a shard's part of a volume that begins there. The only place where the bytes
    /// of a block go to a disk or come from one.
    pub fn carry_out(self, volume: &dyn Volume, base: u64) -> (IoId, IoDone) {
        let done = match self.what {
            IoWhat::Write { at, bytes } => {
                let written = volume.write(base + at, bytes.bytes());
                written.map(|()| IoDone::Written(sums_of(bytes.bytes())))
            }
            IoWhat::Read { at, mut into, sums } => {
                let bytes = into.slice_mut(0..into.len());
                read_checked(volume, base + at, bytes, &sums).map(|()| IoDone::Read(into))
            }
            IoWhat::Raise { at, mut into, length, sums } => {
                let bytes = into.slice_mut(0..length);
                read_checked(volume, base + at, bytes, &sums).map(|()| IoDone::Read(into))
            }
            // One that gives no room back has it for the next who writes there.
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

    /// Bytes that it moves.
    fn bytes(&self) -> u64 {
        match &self.what {
            IoWhat::Write { bytes, .. } => bytes.bytes().len() as u64,
            IoWhat::Read { into, .. } => into.len() as u64,
            IoWhat::Raise { length, .. } => *length as u64,
            IoWhat::Discard(_) => 0,
        }
    }

    /// Which of the `WAYS` it goes.
    fn way(&self) -> usize {
        match self.what {
            IoWhat::Write { .. } => 0,
            IoWhat::Read { .. } | IoWhat::Raise { .. } => 1,
            IoWhat::Discard(_) => 2,
        }
    }

    /// Whether somebody waits for it.
    fn is_urgent(&self) -> bool {
        matches!(self.what, IoWhat::Read { .. })
    }
}

/// Reads bytes whose chunks have these sums. A disk that erred once may be right the second time; one that
/// is away has been tried for long enough.
pub(crate) fn read_checked(
    volume: &dyn Volume,
    at: u64,
    bytes: &mut [u8],
    sums: &[u32],
) -> io::Result<()> {
    read(volume, at, bytes, sums).or_else(|e| match e.kind() {
        AWAY => Err(e),
        _ => read(volume, at, bytes, sums),
    })
}

fn read(volume: &dyn Volume, at: u64, bytes: &mut [u8], sums: &[u32]) -> io::Result<()> {
    volume.read(at, bytes)?;
    if sums_of(bytes) != sums && !Bug::SumUnchecked.active() {
        return Err(io::Error::other("the disk returned other bytes than were written"));
    }
    Ok(())
}

/// One thing to carry out, and the shard that hears of it.
struct Job {
    io: Io,
    base: u64,
    shard: Mailbox<Note>,
}

/// What is told of a disk: bytes that went there and came from it, since the start, whoever's they were, and
/// what is wrong with it.
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

    /// As the controller is told.
    pub fn told(&self) -> TierTraffic {
        TierTraffic { written: self.written.load(Relaxed), read: self.read.load(Relaxed) }
    }
}

#[derive(Default)]
struct Queues {
    reads: VecDeque<Job>,
    writes: VecDeque<Job>,
    /// Spillers that are left.
    spillers: usize,
}

struct Shared {
    queues: Mutex<Queues>,
    traffic: Arc<Traffic>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Where what a shard wants of one disk goes.
///
/// The queues are bounded by what they carry: some blocks of a server that go down at a time, and reads
/// for which there are buffers.
pub(crate) struct Spiller(Arc<Shared>, Arc<dyn Volume>);

/// The other end: it carries out until every `Spiller` of the disk is gone.
pub(crate) struct SpillWorker {
    shared: Arc<Shared>,
    volume: Arc<dyn Volume>,
    clock: Clock,
    takes: Takes,
}

/// What a worker takes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// What is to be written first, so that readers cannot keep memory from being set free.
    WritesFirst,
    ReadsFirst,
    /// Nothing but what somebody waits for: where a request takes long, those that nobody waits for do not
    /// have all workers.
    Reads,
}

/// Workers of a volume with more than this divide: half of them only read.
const DIVIDED: usize = 8;

impl Clone for Spiller {
    fn clone(&self) -> Spiller {
        self.0.lock().spillers += 1;
        Spiller(self.0.clone(), self.1.clone())
    }
}

impl Drop for Spiller {
    fn drop(&mut self) {
        self.0.lock().spillers -= 1;
        self.0.changed.notify_all();
    }
}

impl Spiller {
    /// A spiller with its workers, each of which its owner runs on a thread of its own. The name is for
    /// people who are told that something is wrong with it.
    pub fn with_workers(
        volume: Arc<dyn Volume>,
        name: String,
        clock: Clock,
    ) -> (Spiller, Vec<SpillWorker>) {
        let queues = Mutex::new(Queues { spillers: 1, ..Queues::default() });
        let (traffic, changed) = (Arc::new(Traffic::of(name)), Condvar::new());
        let threads = volume.width();
        let shared = Arc::new(Shared { queues, traffic, changed });
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

    /// The disk, for who may wait for it.
    pub fn volume(&self) -> &Arc<dyn Volume> {
        &self.1
    }

    /// What its workers have moved.
    pub fn traffic(&self) -> Arc<Traffic> {
        self.0.traffic.clone()
    }

    /// Hands on what a shard wants, whose part of the disk begins at `base`.
    pub fn give(&self, io: Io, base: u64, shard: Mailbox<Note>) {
        let mut queues = self.0.lock();
        let urgent = io.is_urgent();
        let queue = if urgent { &mut queues.reads } else { &mut queues.writes };
        queue.push_back(Job { io, base, shard });
        drop(queues);
        // Not each of them takes everything.
        self.0.changed.notify_all();
    }
}

impl SpillWorker {
    /// Carries out until the last `Spiller` is dropped.
    pub fn run(self) {
        while let Some(Job { io, base, shard }) = self.next() {
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

    fn next(&self) -> Option<Job> {
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
