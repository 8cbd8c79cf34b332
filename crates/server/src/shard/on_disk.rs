//! The copy of a block on a disk: which bytes of the block were written there, and their checksums.
//!
//! `OnDisk` alone answers two questions. How many bytes does a checksum cover? May a block's memory be freed
//! without writing the block again? The length of the structure answers neither: it shrinks without a changed
//! byte when a split departs or a move is cancelled, and it grows when an extent is allocated and not yet
//! written. Every path that writes, reads or drops the copy passes through here.
//!
//! Behind the bytes of a kv's block may be runs with its deltas (`deltas.rs`).
//!
//! Offsets and lengths of a copy are multiples of a page; a checksum covers one chunk, or the part of the
//! last chunk that was written. Chunks of runs are smaller.

use super::deltas::runs_most;
use crate::sums::Sums;
use honeycomb_block::Backing;
use honeycomb_structures::Rest;
use honeycomb_types::limits::{RUN_CHUNK, TIER_CHUNK};
use honeycomb_types::{Bug, TierIx};
use std::ops::Range;
use std::sync::Arc;

/// Offsets and lengths on a disk are multiples of this.
pub(super) const PAGE: usize = honeycomb_env::VOLUME_ALIGN;

/// Bytes of runs beyond those with which writers wait: a run has whole chunks.
const RUNS_BEYOND: usize = 16 * RUN_CHUNK;

/// The copy of a block on a disk.
#[derive(Debug)]
pub(super) struct OnDisk {
    /// The tier of the disk, or of the store.
    pub tier: TierIx,
    /// The slot there.
    pub slot: u32,
    /// Unique number of the last write. A read that was requested under another number may return bytes of
    /// either write.
    pub written: u64,
    /// Bytes of the block that the copy holds, from the first.
    length: usize,
    /// Its checksums.
    sums: Sums,
    /// The end of the runs behind these bytes; 0 without runs.
    runs_end: usize,
    /// The checksums of the runs, which begin where the copy ends.
    run_sums: Sums,
    /// Held by flushes that read the copy: its slot belongs to no other block until they drop it.
    hold: Option<Arc<()>>,
}

impl OnDisk {
    /// A slot to which nothing was written.
    pub fn empty(tier: TierIx, slot: u32) -> OnDisk {
        let (sums, run_sums) = (Sums::none(TIER_CHUNK), Sums::none(RUN_CHUNK));
        OnDisk { tier, slot, written: 0, length: 0, sums, runs_end: 0, run_sums, hold: None }
    }

    /// The same bytes in another slot.
    pub fn copied_to(&self, tier: TierIx, slot: u32, written: u64) -> OnDisk {
        let tier = if Bug::CopyKeepsItsTier.active() { self.tier } else { tier };
        let OnDisk { length, runs_end, .. } = *self;
        let (sums, run_sums) = (self.sums.clone(), self.run_sums.clone());
        OnDisk { tier, slot, written, length, sums, runs_end, run_sums, hold: None }
    }

    /// For a flush that reads the copy.
    pub fn hold(&mut self) -> Arc<()> {
        self.hold.get_or_insert_default().clone()
    }

    /// Whether a flush reads the copy.
    pub fn is_read(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| Arc::strong_count(hold) > 1)
    }

    /// The hold of the flushes that read the copy, if there are any.
    pub fn held(mut self) -> Option<Arc<()>> {
        if self.is_read() { self.hold.take() } else { None }
    }

    /// Bytes of the block that the copy holds.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Whether the copy holds this many bytes of the block.
    pub fn holds(&self, length: usize) -> bool {
        length <= self.length
    }

    /// Begins a new write of the bytes from `floor` to `end`: until `complete`, the copy holds only the bytes
    /// before `floor`.
    pub fn begin(&mut self, floor: usize, end: usize, written: u64) {
        self.keep(floor);
        assert!(
            written > self.written || self.written == 0,
            "INV-44: write {written} follows write {} at slot {}",
            self.written,
            self.slot
        );
        self.written = written;
        self.sums.resize(end);
    }

    /// The checksums of a piece that was written at this offset.
    pub fn wrote(&mut self, from: usize, sums: &Sums) {
        assert!(
            from / TIER_CHUNK >= self.length / TIER_CHUNK,
            "INV-41: byte {from} of a copy that keeps {} bytes is written",
            self.length
        );
        self.sums.set(from, sums);
    }

    /// Every piece up to `end` was written.
    pub fn complete(&mut self, end: usize) {
        assert!(self.sums.are_for(end), "INV-41: one checksum for each chunk of {end} bytes");
        self.length = end;
    }

    /// The end of the bytes and runs.
    fn end(&self) -> usize {
        self.length.max(self.runs_end)
    }

    /// The end of the runs that the copy may have, in a slot of so many bytes.
    pub fn runs_limit(&self, slot: usize) -> usize {
        let runs = runs_most(self.length) + RUNS_BEYOND;
        (self.length + runs).next_multiple_of(PAGE).min(slot)
    }

    /// Where the next run begins in a slot of so many bytes, and the most bytes that it may have.
    pub fn room_for_run(&self, slot: usize) -> (usize, usize) {
        (self.end(), self.runs_limit(slot).saturating_sub(self.end()))
    }

    /// A run of so many bytes, with these checksums, was written behind the others.
    pub fn add_run(&mut self, from: usize, length: usize, sums: &Sums) {
        assert_eq!(from, self.end(), "INV-61: a run begins where the last one ends");
        assert!(length.is_multiple_of(RUN_CHUNK), "INV-61: a run of {length} bytes");
        self.run_sums.extend(sums);
        self.runs_end = from + length;
    }

    /// The place of all runs, and their checksums; `None` without runs.
    pub fn runs(&self) -> Option<(Range<usize>, Sums)> {
        (self.runs_end > 0).then(|| (self.length..self.runs_end, self.run_sums.clone()))
    }

    /// The content of all runs is in memory now.
    pub fn forget_runs(&mut self) {
        self.runs_end = 0;
        self.run_sums.resize(0);
    }

    /// Whether chunks of both ranges can be read together: both are of the copy, or both of runs.
    pub fn reads_together(&self, first: &Range<usize>, second: &Range<usize>) -> bool {
        (first.start < self.length) == (second.start < self.length)
    }

    /// Only the bytes before `floor` are those of the block from now on: later bytes are in memory alone.
    pub fn keep(&mut self, floor: usize) {
        assert!(
            floor <= self.length && floor.is_multiple_of(TIER_CHUNK),
            "INV-41: a copy of {} bytes cannot keep {floor}",
            self.length
        );
        self.length = floor;
        self.sums.resize(floor);
        self.forget_runs();
    }

    /// Whether the copy has these bytes, or the runs behind it.
    pub fn has(&self, range: &Range<usize>) -> bool {
        let in_runs = self.length <= range.start && range.end <= self.runs_end;
        range.start <= range.end && (range.end <= self.length || in_runs)
    }

    /// The part of the slot with a range, the copy or its runs, and the checksums of that part.
    fn part_of(&self, range: &Range<usize>) -> (Range<usize>, &Sums) {
        let (part, sums) = match self.runs_end > 0 && range.start >= self.length {
            true => (self.length..self.runs_end, &self.run_sums),
            false => (0..self.length, &self.sums),
        };
        assert!(
            range.end <= part.end,
            "INV-41: bytes {range:?} are outside a copy of {} bytes",
            self.length
        );
        (part, sums)
    }

    /// The chunks around a range of the copy or of its runs.
    pub fn around(&self, range: &Range<usize>) -> Range<usize> {
        let (part, sums) = self.part_of(range);
        let (first, length) = (part.start, part.len());
        let around = sums.around(&(range.start - first..range.end - first), length);
        first + around.start..first + around.end
    }

    /// The same chunks, and their checksums.
    pub fn chunks(&self, range: &Range<usize>) -> (Range<usize>, Sums) {
        let (around, (part, sums)) = (self.around(range), self.part_of(range));
        let sums = sums.part(&(around.start - part.start..around.end - part.start));
        (around, sums)
    }

    /// Everything that the copy holds.
    pub fn all(&self) -> (Range<usize>, Sums) {
        self.chunks(&(0..self.length))
    }

    /// Whether the copy holds all bytes of the block's memory: no byte was opened for writing since the copy
    /// was read, and the structure ends within the copy.
    pub fn is_current(&self, backing: &Backing, rests: &Rest) -> bool {
        let unchanged = !backing.is_changed() || Bug::ChangesStayUp.active();
        unchanged && rests.length().is_some_and(|length| self.holds(length))
    }

    /// Records that the memory of a block whose structure has `length` bytes is freed without a write.
    pub fn stays(&mut self, backing: &Backing, length: usize) {
        assert!(self.holds(length), "INV-41: a copy of {} bytes lacks {length}", self.length);
        let floor = backing.floor();
        debug_assert!(
            Bug::ChangesStayUp.active()
                || length <= floor
                || self.sums.part(&(floor..self.length)).verify(backing.slice(floor..self.length)),
            "INV-41: memory and the copy that stands for it differ"
        );
        if Bug::CopyEndsWithStructure.active() {
            self.length = length.next_multiple_of(PAGE);
        }
    }
}
