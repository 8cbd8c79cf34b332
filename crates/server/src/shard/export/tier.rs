//! The export of a block to a lower tier: from memory to a disk, or from a disk to an object store.
//!
//! The content is copied in pieces. From memory all pieces are requested at once: their bytes are pinned, and
//! the block is served from memory meanwhile. A change of the block cancels the export or waits for its end
//! (`TierWork::prepare_change`). From a disk, only blocks that accept no more data are copied. Each piece is
//! read, verified by its checksums, and written unchanged, some pieces at a time and only while readers leave
//! half of the buffers free: readers have priority. Until everything is written the block is read from the
//! disk, and both slots belong to it (INV-42, INV-44). A block that cannot be read or written now stays
//! where it is.

use super::{NewUse, PresentUse};
use crate::shard::Effect;
use crate::shard::on_disk::{OnDisk, PAGE};
use crate::shard::residency::MemoryRoom;
use crate::shard::tiers::{BlockResidency, Doing, LowerReads, TierWork};
use crate::shard::write_cache::Stay;
use crate::spill::{IoDone, IoWhat};
use honeycomb_block::{Backing, Pin};
use honeycomb_structures::{Answer, Rest};
use honeycomb_types::limits::{SINK_PIECES, TIER_CHUNK, TIER_PIECE};
use honeycomb_types::{BlockAt, Bug, TierIx, Time};
use honeycomb_wire::Status;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// The bytes that an export copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopiedFrom {
    Memory,
    /// The block's copy in the tier where it is.
    Copy,
}

/// An export to a tier.
#[derive(Clone, Debug)]
pub(in crate::shard) struct TierExport {
    to: TierIx,
    /// The block's slot there.
    slot: u32,
    /// Unique number, by which the export recognizes its own I/O.
    number: u64,
    from: CopiedFrom,
    range: Range<usize>,
    /// The pieces before this byte were requested.
    asked: usize,
    /// Number of pieces that are being read or written.
    in_flight: usize,
    failed: bool,
    /// Set if a change has cancelled the export: the block stays.
    is_cancelled: bool,
    /// The memory that is written. It is pinned until the export ends, and not only until the disk has
    /// written it: a structure that returns memory in between would change its layout under the copy.
    written_from: Option<Pin>,
}

impl TierExport {
    /// An export of which no piece was requested yet.
    fn begun(
        (to, slot): (TierIx, u32),
        number: u64,
        from: CopiedFrom,
        range: Range<usize>,
    ) -> TierExport {
        let (asked, in_flight) = (range.start, 0);
        let (failed, is_cancelled, written_from) = (false, false, None);
        TierExport {
            to,
            slot,
            number,
            from,
            range,
            asked,
            in_flight,
            failed,
            is_cancelled,
            written_from,
        }
    }

    pub fn to(&self) -> TierIx {
        self.to
    }

    pub fn is_from_memory(&self) -> bool {
        self.from == CopiedFrom::Memory
    }

    /// The block is changed in memory: it stays there.
    pub fn cancel(&mut self) {
        assert!(self.is_from_memory(), "INV-41: a block that changes is copied from a disk");
        self.is_cancelled = true;
    }

    /// The slot in the target tier, if the block does not have it otherwise.
    pub fn extra_slot(&self) -> Option<(TierIx, u32)> {
        (!self.is_from_memory()).then_some((self.to, self.slot))
    }

    /// Whether no piece is in flight, and none will be.
    fn has_ended(&self) -> bool {
        let is_idle = self.in_flight == 0 || Bug::DemotionEndsEarly.active();
        is_idle && (self.failed || self.asked >= self.range.end)
    }
}

impl TierWork<'_> {
    /// Begins to write a block that has memory to this tier. It is served from memory until all is written.
    pub(in crate::shard) fn demote(
        &mut self,
        index: usize,
        to: TierIx,
    ) -> Result<(), &'static str> {
        let is_same = |export: &TierExport| export.to == to && export.is_from_memory();
        if self.blocks.bytes_of(index).residency.export().is_some_and(is_same) {
            return Ok(());
        }
        self.may_change_tier(index)?;
        let BlockResidency { owner, backing, residency, rests } = self.blocks.bytes_of(index);
        let at = owner.at;
        let length = rests.length().ok_or("an operation on the block is in progress")?;
        let floor = backing.floor();
        let current = residency.copy().is_some_and(|disk| disk.is_current(backing, &rests));
        if (length <= floor || current) && residency.room() == MemoryRoom::Cache {
            // Nothing was written since the block was read back: its memory is freed as it is.
            let stale = match rests {
                // Nothing of its copy is read any more, and runs would be written behind it.
                Rest::Whole(0) => residency.take_copy(),
                _ => None,
            };
            if let Some(disk) = residency.copy_mut() {
                disk.stays(backing, length);
            }
            self.leave_memory(index);
            if let Some(stale) = stale {
                self.tiers.free_copy(stale);
            }
            return Ok(());
        }
        if length == 0 {
            return Err("the block is empty");
        }
        let slot = self.reads().slot_for(index, to)?;
        let number = self.tiers.number();
        let BlockResidency { backing, residency, .. } = self.blocks.bytes_of(index);
        let end = length.next_multiple_of(PAGE);
        let mut new_copy = residency.copy().is_none().then(|| OnDisk::empty(to, slot));
        let copy = new_copy.as_mut().or(residency.copy_mut()).expect("made above");
        copy.begin(floor, end, number);
        // The rest of the last page is written with it.
        backing.slice_mut(length.max(floor)..end.max(floor)).fill(0);
        // From now on only changes that the copy lacks count. If the export fails, the copy is not current,
        // because it does not hold the content.
        backing.taken_as_read();
        let written_from = match Bug::PackedWhileDemoted.active() {
            true => None,
            false => Some(backing.pin(floor..backing.capacity())),
        };
        let unwritten = Bug::PageEdgeUnwritten.active() && (1..=16).contains(&(length % PAGE));
        let end = if unwritten { end - PAGE } else { end };
        let starts = (floor..end).step_by(TIER_PIECE);
        let pieces: Vec<_> =
            starts.map(|at| (at, backing.pin(at..(at + TIER_PIECE).min(end)))).collect();
        let in_flight = pieces.len();
        let export = TierExport::begun((to, slot), number, CopiedFrom::Memory, floor..length);
        let export = TierExport { asked: length, in_flight, written_from, ..export };
        residency.begin_export(export, new_copy);
        self.overlaps.begun_at(self.blocks, index, NewUse::Tier);
        for (from, bytes) in pieces {
            self.write_piece(at, (to, slot), number, from, bytes);
        }
        if in_flight == 0 || Bug::LoweredBeforeWritten.active() {
            self.tier_export_ended(Time::ZERO, index);
        }
        Ok(())
    }

    /// Whether an export of the block to a tier may begin; otherwise the reason.
    fn may_change_tier(&mut self, index: usize) -> Result<(), &'static str> {
        let is_exported = self.blocks.bytes_of(index).residency.export().is_some();
        let refusal = match self.blocks.get(index) {
            Some(slot) => self.overlaps.refusal(slot, NewUse::Tier),
            None if is_exported => PresentUse::Tier.refuses(NewUse::Tier),
            None => None,
        };
        refusal.map_or(Ok(()), Err)
    }

    /// Begins to write a block of a lower tier that has memory back to that tier.
    pub(in crate::shard) fn write_back(&mut self, index: usize) -> Result<(), &'static str> {
        let tier = self.blocks.bytes_of(index).residency.tier();
        self.demote(index, tier)
    }

    /// Begins to copy a block that is on a disk to a store below it.
    pub(in crate::shard) fn demote_from_disk(
        &mut self,
        index: usize,
        to: TierIx,
    ) -> Result<(), Answer> {
        let refuse = |why: &str| Err(Answer::refuse(Status::Busy, why));
        let is_same = |export: &TierExport| export.to == to && !export.is_from_memory();
        if self.blocks.bytes_of(index).residency.export().is_some_and(is_same) {
            return Ok(());
        }
        let BlockResidency { residency, rests, .. } = self.blocks.bytes_of(index);
        if to < residency.tier() {
            let text = format!(
                "a block in {} can move only to memory or to a lower tier",
                residency.tier()
            );
            return Err(Answer::refuse(Status::InvalidArgument, text));
        }
        if residency.room() != MemoryRoom::None {
            return refuse("a part of the block is in memory");
        }
        let (Rest::Final(length) | Rest::Pieces(length)) = rests else {
            return refuse("the block may still be written");
        };
        if length == 0 || residency.copy().is_none() {
            return refuse("the block is empty");
        }
        if residency.copy().is_some_and(|disk| disk.runs().is_some()) {
            return refuse("the block has deltas behind its bytes");
        }
        if let Err(why) = self.may_change_tier(index) {
            return refuse(why);
        }
        let Some(slot) = self.tiers.take_slot(to) else {
            return refuse("the object store has no free slot");
        };
        let number = self.tiers.number();
        let BlockResidency { owner, residency, .. } = self.blocks.bytes_of(index);
        let at = owner.at;
        let length = residency.copy().expect("looked at above").length();
        let export = TierExport::begun((to, slot), number, CopiedFrom::Copy, 0..length);
        residency.begin_export(export, None);
        self.overlaps.begun_at(self.blocks, index, NewUse::Tier);
        self.read_pieces(index, at);
        Ok(())
    }

    /// Requests the next pieces of an export from a disk, as many as there are buffers for.
    fn read_pieces(&mut self, index: usize, at: BlockAt) {
        let size = self.config.block_size as u64;
        loop {
            let BlockResidency { residency, .. } = self.blocks.bytes_of(index);
            let (Some(export), Some(disk)) = (residency.export(), residency.copy()) else { return };
            let (from, number) = (export.asked, export.number);
            if export.failed || from >= export.range.end || export.in_flight >= SINK_PIECES {
                return;
            }
            let length = TIER_PIECE.min(export.range.end - from);
            let (_, sums) = disk.chunks(&(from..from + length));
            let (tier, slot, idle) = (disk.tier, disk.slot, export.in_flight == 0);
            let used = self.tiers.buffers.load(Relaxed);
            let room = used == 0 || used + length <= self.config.buffers / 2;
            let into =
                room.then(|| Backing::counted(length, &self.tiers.buffers, &self.config.reclaimer));
            let Some(Ok(into)) = into else {
                if idle {
                    self.tiers.hungry.push(at);
                    self.tiers.look_again.get_or_insert(Time::ZERO);
                }
                return;
            };
            let BlockResidency { residency, .. } = self.blocks.bytes_of(index);
            let export = residency.export_mut().expect("looked at above");
            export.asked += length;
            export.in_flight += 1;
            let offset = u64::from(slot) * size + from as u64;
            let what = IoWhat::ReadBlock { at: offset, into, length, sums };
            self.tiers.ask(tier, slot, Doing::ExportRead { at, export: number, from }, what);
        }
    }

    /// Continues an export that waited for buffers.
    pub(in crate::shard) fn read_pieces_again(&mut self, at: BlockAt) {
        if let Some(index) = self.blocks.index(at.block)
            && self.blocks.bytes_at(index).is_some_and(|lying| lying.owner.at == at)
        {
            self.read_pieces(index, at);
        }
    }

    fn write_piece(
        &mut self,
        at: BlockAt,
        (to, slot): (TierIx, u32),
        export: u64,
        from: usize,
        bytes: Pin,
    ) {
        let offset = slot as u64 * self.config.block_size as u64 + from as u64;
        let doing = Doing::ExportWrite { at, export, from };
        self.tiers.ask(to, slot, doing, IoWhat::Write { at: offset, bytes, chunk: TIER_CHUNK });
    }

    /// The export with this number, if it has not ended.
    fn tier_export(&mut self, at: BlockAt, number: u64) -> Option<(usize, &mut TierExport)> {
        let index = self.blocks.index(at.block)?;
        let BlockResidency { owner, residency, .. } = self.blocks.bytes_at(index)?;
        let export = residency.export_mut();
        let export = export.filter(|export| owner.at == at && export.number == number)?;
        Some((index, export))
    }

    /// Handles the outcome of reading a piece from a disk.
    pub(in crate::shard) fn piece_read(
        &mut self,
        now: Time,
        at: BlockAt,
        number: u64,
        from: usize,
        done: IoDone,
    ) {
        let Some((index, export)) = self.tier_export(at, number) else { return };
        let target = (export.to, export.slot);
        match done {
            IoDone::Read(mut read) => {
                let bytes = read.pin(0..read.len());
                self.write_piece(at, target, number, from, bytes);
            }
            // The next reader may find the same, and then the block is lost.
            _ => {
                export.failed = true;
                self.piece_ended(now, index, at);
            }
        }
    }

    /// Handles the outcome of writing a piece.
    pub(in crate::shard) fn piece_written(
        &mut self,
        now: Time,
        at: BlockAt,
        number: u64,
        from: usize,
        done: IoDone,
    ) {
        let Some((index, export)) = self.tier_export(at, number) else { return };
        match done {
            // The checksums of an export from a disk are those of the copy that was read.
            IoDone::Written(sums) if export.is_from_memory() => {
                let disk = self.blocks.bytes_of(index).residency.copy_mut();
                disk.expect("it is being written").wrote(from, &sums);
            }
            IoDone::Written(_) => {}
            IoDone::Failed(_) | IoDone::Away(_) => {
                export.failed = !Bug::FailedPieceCounts.active();
            }
            IoDone::Read(_) | IoDone::Discarded => unreachable!("it was to be written"),
        }
        self.piece_ended(now, index, at);
    }

    /// A piece was written, or cannot be.
    fn piece_ended(&mut self, now: Time, index: usize, at: BlockAt) {
        let export =
            self.blocks.bytes_of(index).residency.export_mut().expect("the caller has found it");
        export.in_flight -= 1;
        if export.has_ended() {
            self.tier_export_ended(now, index);
        } else if !export.is_from_memory() {
            self.read_pieces(index, at);
        }
    }

    /// The block is in its new tier, or stays where it is.
    fn tier_export_ended(&mut self, now: Time, index: usize) {
        let Some(export) = self.blocks.bytes_of(index).residency.export_mut() else { return };
        export.written_from = None;
        let export = export.clone();
        match (export.from, export.failed || export.is_cancelled) {
            (CopiedFrom::Memory, false) => self.demoted(now, index, &export),
            (CopiedFrom::Memory, true) => self.stays_in_memory(now, index, &export),
            (CopiedFrom::Copy, false) => self.demoted_from_disk(index, &export),
            (CopiedFrom::Copy, true) => {
                let BlockResidency { owner, residency, .. } = self.blocks.bytes_of(index);
                let (structure, at, tier) = (owner.structure, owner.at, residency.tier());
                let _ = residency.export_failed();
                self.tiers.release(export.to, export.slot);
                self.out.effects.push(Effect::TierChanged { structure, at, tier });
            }
        }
    }

    fn demoted(&mut self, now: Time, index: usize, export: &TierExport) {
        let BlockResidency { backing, residency, .. } = self.blocks.bytes_of(index);
        assert!(!backing.is_changed(), "INV-41: a block has changed while it was demoted");
        let disk = residency.copy_mut().expect("INV-41: the copy of a demoted block was written");
        disk.complete(export.range.end.next_multiple_of(PAGE));
        self.tiers.counts.written += export.range.len() as u64;
        // Only such blocks are written to the same slot many times, with other lengths.
        let changes =
            self.blocks.get_mut(index).is_some_and(|slot| slot.lower_tier_changes().is_some());
        if export.range.start == 0 && changes {
            let disk = self.blocks.bytes_of(index).residency.copy();
            self.tiers.trim(disk.expect("it was completed just now"));
        }
        self.leave_memory(index);
        self.let_go(now);
    }

    /// The block stays in memory. Its copy holds only the bytes that are not in memory.
    fn stays_in_memory(&mut self, now: Time, index: usize, export: &TierExport) {
        let BlockResidency { owner, backing, residency, .. } = self.blocks.bytes_of(index);
        let (structure, at) = (owner.structure, owner.at);
        if let Some(disk) = residency.copy_mut() {
            disk.keep(backing.floor());
        }
        let framed = residency.room() == MemoryRoom::Frame;
        let mut left = residency.export_failed();
        if backing.floor() == 0 {
            left = left.or_else(|| residency.take_copy());
        }
        if framed {
            let tier = TierIx::MEMORY;
            self.out.effects.push(Effect::TierChanged { structure, at, tier });
        }
        if let Some(left) = left {
            self.tiers.free_copy(left);
        }
        let slot = self.blocks.get_mut(index).filter(|_| export.failed);
        if let Some(stay) = slot.and_then(|slot| slot.residency.stay_mut()) {
            *stay = Stay::failed(now);
        }
        self.give_places(now);
    }

    /// The copy of the block is in a store now, and its slot on the disk is free when no flush reads it.
    fn demoted_from_disk(&mut self, index: usize, export: &TierExport) {
        let number = self.tiers.number();
        let BlockResidency { owner, residency, .. } = self.blocks.bytes_of(index);
        let (structure, at) = (owner.structure, owner.at);
        let copy = residency.copy().expect("the block was read from its disk");
        let copy = copy.copied_to(export.to, export.slot, number);
        let left = residency.copied_further(copy).expect("the block was read from its disk");
        self.tiers.counts.written += export.range.len() as u64;
        self.retained_was_demoted(index);
        self.tiers.free_copy(left);
        if Bug::ArrivalUnreported.active() {
            return;
        }
        self.out.effects.push(Effect::TierChanged { structure, at, tier: export.to });
    }
}

impl LowerReads<'_> {
    /// The slot to which the memory of a block is written.
    fn slot_for(&mut self, index: usize, to: TierIx) -> Result<u32, &'static str> {
        let BlockResidency { backing, residency, .. } = self.blocks.bytes_of(index);
        // A copy that is written anew from its first byte does not replace one that is still read: a read
        // would find a part of each.
        if let Some(disk) = residency.copy()
            && (backing.floor() > 0 || !disk.is_read() && !self.tiers.is_busy(disk))
        {
            return Ok(disk.slot);
        }
        let slot = self.tiers.take_slot(to).ok_or("the disk has no free slot")?;
        if let Some(old) = self.blocks.bytes_of(index).residency.take_copy() {
            self.tiers.free_copy(old);
        }
        Ok(slot)
    }
}
