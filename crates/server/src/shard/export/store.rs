//! The export of a block to an object store: the content of the block, which another thread writes.
//!
//! A block in use is copied as of one moment (`copy`), and its copy is written while the block is served. A
//! block that clients no longer reach is retained until it is written (`Owners::retain`), and freed
//! afterwards. Its bytes can be demoted meanwhile: only the flush reads them.

use super::{ExportWork, NewUse};
use crate::kept::{KeptBytes, RetainedBytes, StoredBytes};
use crate::refusals::{unknown_block, wrong_epoch};
use crate::shard::owners::Owners;
use crate::shard::residency::{MemoryRoom, Residency};
use crate::shard::tiers::{BlockResidency, TierWork};
use crate::shard::{BlockOwner, BlockSlot, Effect};
use crate::sums::Sums;
use honeycomb_block::Backing;
use honeycomb_structures::{Answer, Rest, Snapshot};
use honeycomb_types::limits::TIER_CHUNK;
use honeycomb_types::{BlockAt, Bug};
use honeycomb_wire::Status;
use std::ops::Range;
use std::sync::Arc;

/// A block that clients no longer reach, and that is written to a store before it is freed.
pub(in crate::shard) struct RetainedBlock {
    pub owner: BlockOwner,
    backing: Backing,
    pub residency: Residency,
    bytes: Arc<KeptBytes>,
    /// Whether clients map its memory, which stays as long as they do.
    mapped: bool,
}

impl RetainedBlock {
    pub fn residency(&mut self) -> BlockResidency<'_> {
        let rests =
            if self.mapped { Rest::Busy } else { Rest::Final(self.bytes.snapshot().length()) };
        BlockResidency {
            owner: self.owner,
            backing: &mut self.backing,
            residency: &mut self.residency,
            rests,
        }
    }
}

impl BlockSlot {
    /// The content of this snapshot of a block that stays in use.
    pub(super) fn content_now(
        &mut self,
        snapshot: Snapshot,
        sealed: bool,
        block_size: usize,
    ) -> Arc<KeptBytes> {
        let (owner, length) = (self.owner, snapshot.length());
        let (at, floor) = (owner.at, self.backing.floor());
        if snapshot.is_plain() {
            // The file may have grown since, and its last chunk is read from the disk as it is there.
            let now = self.snapshot((0, u64::MAX)).map_or(length, |now| now.length());
            let below = floor.min(now).min(length.next_multiple_of(TIER_CHUNK));
            // Whole chunks, and those of a final block, stay on the disk as they are.
            let settled = below.is_multiple_of(TIER_CHUNK) || sealed;
            let memory = (floor < length).then(|| self.backing.pin(floor..length));
            let stored = stored(&mut self.residency, below, block_size);
            let there = RetainedBytes::There { stored, memory };
            KeptBytes::live(at, owner.structure, snapshot, settled, there)
        } else if floor > 0 {
            // These bytes of the disk do not change while they are read: a change is written elsewhere.
            let least = usize::from(Bug::EmptyBlockHasSlot.active());
            let stored = stored(&mut self.residency, length.max(least), block_size);
            let there = RetainedBytes::There { stored, memory: None };
            KeptBytes::live(at, owner.structure, snapshot, true, there)
        } else {
            let nothing = length == 0; // The block may be in a lower tier.
            let bytes = if nothing { &[] } else { self.backing.slice(0..length) };
            let copied = snapshot.copied(bytes);
            let nothing = RetainedBytes::There { stored: Vec::new(), memory: None };
            KeptBytes::live(at, owner.structure, copied, true, nothing)
        }
    }
}

impl ExportWork<'_> {
    /// The content of a block as of now, and whether it is final. The block stays in use. Of a kv, only the
    /// hashes in `range`, ends included. Extents that entries of its structure refer to are retained from now
    /// on until `end_copies`.
    ///
    /// All content except plain bytes is copied, in this one step: no change comes between two entries of one
    /// slot. A file's later bytes are written after these. Bytes in a lower tier are read from there.
    pub fn copy(
        &mut self,
        at: BlockAt,
        range: (u64, u64),
        flush: u64,
    ) -> Result<(Arc<KeptBytes>, bool), Answer> {
        let index = self.blocks.index(at.block).ok_or_else(|| unknown_block(at))?;
        let slot = self.blocks.exactly(index, at);
        let slot = slot.ok_or_else(|| wrong_epoch(at))?;
        let Some(sealed) = slot.is_final() else {
            let text = "payloads begun before the block was sealed are still arriving";
            return Err(Answer::refuse(Status::Busy, text));
        };
        let snapshot = slot.snapshot(range)?;
        self.overlaps.begun(slot, NewUse::Copy);
        let (structure, kind) = (slot.owner.structure, slot.owner.kind);
        let bytes = slot.content_now(snapshot, sealed, self.config.block_size);
        if kind.attributes().extents.is_some() {
            self.extents.keep(structure, flush);
        }
        Ok((bytes, sealed))
    }
}

impl Owners<'_> {
    /// Makes a block unreachable, and returns its content, which is retained until `free`. Idempotent.
    ///
    /// Of a kv, only the hashes in `range`, ends included: all others move to other blocks, or have moved.
    pub fn retain(&mut self, at: BlockAt, range: (u64, u64)) -> Result<Arc<KeptBytes>, Answer> {
        let index = self.blocks.index(at.block).ok_or_else(|| unknown_block(at))?;
        if let Some(retained) = self.blocks.retained(index).filter(|r| r.owner.at == at) {
            let bytes = retained.bytes.clone();
            self.write_retained_back(index);
            return Ok(bytes);
        }
        let slot = self.blocks.exactly(index, at);
        let slot = slot.ok_or_else(|| wrong_epoch(at))?;
        let owner = slot.owner;
        let snapshot = slot.snapshot(range)?;
        self.overlaps.begun(slot, NewUse::Retain);
        // The content is final: reads into memory, for a writer or a promotion, are given up.
        let mut residency = slot.residency.take();
        let promoting = residency.is_promoting();
        let freed = residency.stops_reading();
        let mut backing = slot.backing.extract();
        let mapped = slot.shared.is_some();
        let floor = backing.floor().min(snapshot.length());
        let memory = (floor < snapshot.length()).then(|| backing.pin(floor..snapshot.length()));
        let stored = stored(&mut residency, floor, self.config.block_size);
        let there = RetainedBytes::There { stored, memory };
        let bytes = KeptBytes::new(at, owner.structure, snapshot, there);
        let leaving = self.tiers.take_leaving(at);
        self.close(index, at);
        self.tiers.put_leaving(leaving);
        self.tiers.give_room(freed, owner.capacity);
        if promoting {
            let (structure, tier) = (owner.structure, residency.tier());
            self.out.effects.push(Effect::TierChanged { structure, at, tier });
        }
        let retained = RetainedBlock { owner, backing, residency, bytes: bytes.clone(), mapped };
        self.blocks.retain(index, retained);
        self.write_retained_back(index);
        Ok(bytes)
    }

    /// Writes a retained block's part of the write cache back, so that it does not wait there for a store.
    /// Without a slot on the disk, this is repeated with the flush.
    fn write_retained_back(&mut self, index: usize) {
        let is_cached =
            |retained: &mut RetainedBlock| retained.residency.room() == MemoryRoom::Cache;
        if self.blocks.retained(index).is_some_and(is_cached) {
            let _ = self.tier_work().write_back(index);
        }
    }

    /// Frees a retained block.
    pub(in crate::shard) fn free_retained(&mut self, index: usize) {
        let Some(mut retained) = self.blocks.remove_retained(index) else { return };
        // A later read finds nothing; a present one has the hold.
        retained.bytes.moved(RetainedBytes::Gone);
        for leaving in self.tiers.take_leaving(retained.owner.at) {
            self.tiers.give_room(leaving.room, leaving.capacity);
        }
        let capacity = retained.owner.capacity;
        self.tier_work().free_residency(&mut retained.residency, capacity);
    }
}

impl TierWork<'_> {
    /// The bytes of a retained block are on a disk, and are read from there from now on.
    pub(in crate::shard) fn retained_was_demoted(&mut self, index: usize) {
        let Some(retained) = self.blocks.retained(index) else { return };
        let length = retained.bytes.snapshot().length();
        let stored = stored(&mut retained.residency, length, self.config.block_size);
        retained.bytes.moved(RetainedBytes::There { stored, memory: None });
    }
}

/// The chunks that contain the first `length` bytes of a block on its disk, and of its runs there. Their slot
/// is given to no other block while the result exists. Empty for no bytes: a block that was opened in a lower
/// tier has no slot before its first write.
fn stored(residency: &mut Residency, length: usize, block_size: usize) -> Vec<StoredBytes> {
    if length == 0 {
        return Vec::new();
    }
    let disk = residency.copy_mut().expect("INV-41: a block that is not in memory is on a disk");
    let hold = disk.hold();
    let mut parts = vec![disk.chunks(&(0..length.min(disk.length())))];
    if length > disk.length() {
        let runs = disk.runs();
        parts.push(runs.expect("INV-61: bytes behind those of a block are its runs"));
    }
    let base = disk.slot as u64 * block_size as u64;
    let part = |(chunks, sums): (Range<usize>, Sums)| StoredBytes {
        tier: disk.tier,
        from: chunks.start,
        at: base + chunks.start as u64,
        length: chunks.len(),
        sums,
        hold: hold.clone(),
    };
    parts.into_iter().map(part).collect()
}
