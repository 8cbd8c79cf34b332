//! The content of blocks that is retained for a flush, or as of a moment, wherever its bytes are: in memory,
//! on a disk of the server, or the beginning there and the end in memory.
//!
//! A flush may wait for its object store for an hour. So retained content does not occupy memory while it
//! waits: the place of the bytes is looked up when they are read, and the shard demotes them when memory is
//! short (`TierWork::change_tier`).

use crate::spill::read_checked;
use crate::sums::Sums;
use honeycomb_block::{Backing, Pin, Reclaimer};
use honeycomb_env::{AWAY, Volume};
use honeycomb_structures::Snapshot;
use honeycomb_types::limits::{TIER_CHUNK, TIER_PIECE};
use honeycomb_types::{BlockAt, StructureId, TierIx};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Bytes of a block on a disk.
#[derive(Clone, Debug)]
pub(crate) struct StoredBytes {
    pub tier: TierIx,
    /// The offset of the first in the block.
    pub from: usize,
    /// Its place, from the start of the shard's part of the disk.
    pub at: u64,
    /// The length: whole chunks, except for the last of the copy; whole pages.
    pub length: usize,
    pub sums: Sums,
    /// Held by every reader of the bytes: their place has no other owner until it is dropped (INV-44).
    pub hold: Arc<()>,
}

/// The place of the bytes.
#[derive(Clone, Debug)]
pub(crate) enum RetainedBytes {
    /// The first of them on a disk, if any, in order, and the others in memory.
    There { stored: Vec<StoredBytes>, memory: Option<Pin> },
    /// The block was freed: the bytes are no longer needed.
    Gone,
}

/// The content of a block that is retained for a flush.
pub struct KeptBytes {
    /// The block.
    pub at: BlockAt,
    /// The structure that owned it.
    pub structure: StructureId,
    snapshot: Snapshot,
    /// Its bytes on a disk are not rewritten there.
    settled: bool,
    /// Objects with its content are complete and stay.
    written: AtomicBool,
    bytes: Mutex<RetainedBytes>,
}

/// A shard's parts of the disks of its server, from which it reads retained content.
pub type VolumeParts = Arc<[(Arc<dyn Volume>, u64)]>;

/// Why retained content cannot be read.
#[derive(Debug)]
pub enum KeptFault {
    /// The block was freed meanwhile.
    Gone,
    /// Its disk does not return the written bytes, in two attempts: they are lost.
    Lost(String),
    /// Its object store cannot be reached now.
    Away(io::Error),
    /// The recipient accepts no more.
    Taker(io::Error),
}

impl KeptBytes {
    pub(crate) fn new(
        at: BlockAt,
        structure: StructureId,
        snapshot: Snapshot,
        bytes: RetainedBytes,
    ) -> Arc<KeptBytes> {
        KeptBytes::live(at, structure, snapshot, true, bytes)
    }

    /// The content of a block in use: the last chunk on its disk may be rewritten, with more bytes. A reader
    /// meanwhile finds a wrong checksum.
    pub(crate) fn live(
        at: BlockAt,
        structure: StructureId,
        snapshot: Snapshot,
        settled: bool,
        bytes: RetainedBytes,
    ) -> Arc<KeptBytes> {
        let (written, bytes) = (AtomicBool::new(false), Mutex::new(bytes));
        Arc::new(KeptBytes { at, structure, snapshot, settled, written, bytes })
    }

    /// Whether objects with its content are complete and stay.
    pub(crate) fn is_written(&self) -> bool {
        self.written.load(Ordering::Acquire)
    }

    /// Notes that they are.
    pub(crate) fn was_written(&self) {
        self.written.store(true, Ordering::Release);
    }

    /// Whether bytes that cannot be read are lost; otherwise they were only rewritten.
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    fn lock(&self) -> MutexGuard<'_, RetainedBytes> {
        self.bytes.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes that the bytes are in another place now.
    pub(crate) fn moved(&self, to: RetainedBytes) {
        // The old value is dropped outside of the lock, so that no thread waits for that.
        let was = std::mem::replace(&mut *self.lock(), to);
        drop(was);
    }

    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The bytes, if all of them are in memory.
    pub(crate) fn in_memory(&self) -> Option<Pin> {
        match &*self.lock() {
            RetainedBytes::There { stored, memory } if stored.is_empty() => memory.clone(),
            _ => None,
        }
    }

    /// Passes the bytes on in runs, from the first to the last; those on a disk are read in pieces.
    pub(crate) fn runs(
        &self,
        parts: &VolumeParts,
        mut run: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), KeptFault> {
        let there = self.lock().clone();
        let RetainedBytes::There { stored, memory } = there else { return Err(KeptFault::Gone) };
        let lost = |e: io::Error| match e.kind() {
            AWAY => KeptFault::Away(e),
            _ => KeptFault::Lost(e.to_string()),
        };
        for StoredBytes { tier, from: first, at, length, sums, hold } in &stored {
            let below = tier.below().expect("a lower tier");
            let (volume, base) = &parts[below];
            let size = TIER_PIECE.min(length.next_multiple_of(TIER_CHUNK));
            let mut buffer = Backing::map(size, &Reclaimer::inline()).map_err(KeptFault::Taker)?;
            let wanted = self.snapshot.length().saturating_sub(*first).min(*length);
            for from in (0..*length).step_by(TIER_PIECE) {
                let piece = (length - from).min(TIER_PIECE);
                let sums = sums.part(&(from..from + piece));
                let into = buffer.slice_mut(0..piece);
                read_checked(&**volume, base + at + from as u64, into, &sums).map_err(lost)?;
                let piece = piece.min(wanted.saturating_sub(from));
                run(&into[..piece]).map_err(KeptFault::Taker)?;
            }
            // Not before: its place belongs to this block until here.
            let _ = hold;
        }
        let memory = memory.as_ref().map_or(&[][..], Pin::bytes);
        run(memory).map_err(KeptFault::Taker)
    }

    /// All bytes, in one run: in memory for as long as `give` works on them.
    pub(crate) fn whole<T>(
        &self,
        parts: &VolumeParts,
        give: impl FnOnce(&[u8]) -> io::Result<T>,
    ) -> Result<T, KeptFault> {
        if let Some(pin) = self.in_memory() {
            return give(pin.bytes()).map_err(KeptFault::Taker);
        }
        let size = self.snapshot.length();
        if size == 0 {
            return give(&[]).map_err(KeptFault::Taker); // Empty, or copied.
        }
        let mut all = Backing::map(size, &Reclaimer::inline()).map_err(KeptFault::Taker)?;
        let mut at = 0;
        self.runs(parts, |bytes| {
            all.slice_mut(at..at + bytes.len()).copy_from_slice(bytes);
            at += bytes.len();
            Ok(())
        })?;
        give(all.slice(0..size)).map_err(KeptFault::Taker)
    }

    /// Writes the content in one run, as `Snapshot::write` does.
    pub fn write(&self, parts: &VolumeParts, out: &mut dyn io::Write) -> Result<u64, KeptFault> {
        self.whole(parts, |bytes| self.snapshot.write(bytes, out))
    }
}

impl fmt::Debug for KeptBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeptBytes({:?}, {:?})", self.at, self.snapshot)
    }
}

impl fmt::Display for KeptFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeptFault::Gone => f.write_str("the block was freed"),
            KeptFault::Lost(why) => write!(f, "the block cannot be read from its disk: {why}"),
            KeptFault::Away(why) | KeptFault::Taker(why) => write!(f, "{why}"),
        }
    }
}
