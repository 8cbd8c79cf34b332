//! Blocks whose content is written elsewhere: unreachable blocks that are retained until then, and blocks
//! that stay in use.

use super::tiers::{BlockResidency, MemoryRoom, Residency};
use super::{BlockOwner, Effect, Shard};
use crate::kept::{KeptBytes, RetainedBytes, StoredBytes};
use crate::refusals::{unknown_block, wrong_epoch};
use honeycomb_block::Backing;
use honeycomb_structures::{Answer, Rest, Snapshot};
use honeycomb_types::limits::TIER_CHUNK;
use honeycomb_types::{BlockAt, Bug, Kind};
use honeycomb_wire::Status;
use std::sync::Arc;

/// A block that nobody reaches any more and that is to be written elsewhere before it is freed.
pub(super) struct Kept {
    pub owner: BlockOwner,
    backing: Backing,
    /// Where its bytes are. They may go below: nobody reads them but the flush.
    pub place: Residency,
    bytes: Arc<KeptBytes>,
    /// Clients map its memory, which stays as long as they do.
    mapped: bool,
}

impl Kept {
    pub(super) fn lying(&mut self) -> BlockResidency<'_> {
        let rests =
            if self.mapped { Rest::Busy } else { Rest::Final(self.bytes.snapshot().length()) };
        BlockResidency {
            owner: self.owner,
            backing: &mut self.backing,
            place: &mut self.place,
            rests,
        }
    }
}

impl Shard {
    /// Lets nobody reach a block any more, and answers what it holds. The block stays what it was
    /// until `free`, however often this comes.
    /// Of a kv the hashes of `range`, ends included: what else it has moves, or has moved, to others.
    pub fn flush(&mut self, at: BlockAt, range: (u64, u64)) -> Result<Arc<KeptBytes>, Answer> {
        let index = self.index(at.block).ok_or_else(|| unknown_block(at))?;
        if let Some(kept) = self.kept.get(&index).filter(|kept| kept.owner.at == at) {
            let bytes = kept.bytes.clone();
            self.give_warm_back(index);
            return Ok(bytes);
        }
        let slot = self.slots[index].as_mut().filter(|slot| slot.owner.at == at);
        let slot = slot.ok_or_else(|| wrong_epoch(at))?;
        let owner = slot.owner;
        let snapshot = slot.snapshot(range)?;
        // From here on it is below as it was: what was being read for a writer is wanted no more.
        let mut place = std::mem::replace(&mut slot.place, Residency::left(owner.tier));
        let raising = place.raising;
        let rising = place.stop_rising();
        let mut backing = slot.backing.extract();
        let mapped = slot.shared.is_some();
        let floor = backing.floor().min(snapshot.length());
        let memory = (floor < snapshot.length()).then(|| backing.pin(floor..snapshot.length()));
        let stored = stored(&mut place, floor, self.config.block_size);
        let there = RetainedBytes::There { stored, memory };
        let bytes = KeptBytes::new(at, owner.structure, snapshot, there);
        let leaving = self.take_leaving(at);
        self.close(index, at);
        self.put_leaving(leaving);
        self.give_room(rising);
        if raising {
            let (structure, tier) = (owner.structure, place.tier);
            self.out.effects.push(Effect::TierChanged { structure, at, tier });
        }
        let kept = Kept { owner, backing, place, bytes: bytes.clone(), mapped };
        self.kept.insert(index, kept);
        self.held += 1;
        self.give_warm_back(index);
        Ok(bytes)
    }

    /// What a block holds now, and whether nothing can be added to it; it goes on as it was. Of a kv
    /// the hashes of `range`, ends included. Extents that an entry of its structure names stay from
    /// now on until `end_copies`: the copy names them.
    ///
    /// All but a file is copied, in this one step: nothing comes between two entries of one slot. What
    /// follows a file's bytes is written behind them. What is below memory is read from there.
    pub fn copy(
        &mut self,
        at: BlockAt,
        range: (u64, u64),
        live: u64,
    ) -> Result<(Arc<KeptBytes>, bool), Answer> {
        let index = self.index(at.block).ok_or_else(|| unknown_block(at))?;
        let slot = self.slots[index].as_mut().filter(|slot| slot.owner.at == at);
        let slot = slot.ok_or_else(|| wrong_epoch(at))?;
        let Some(sealed) = slot.is_final() else {
            let text = "payloads begun before the block was sealed are still arriving";
            return Err(Answer::refuse(Status::Busy, text));
        };
        let snapshot = slot.snapshot(range)?;
        let (structure, kind) = (slot.owner.structure, slot.owner.kind);
        let bytes = self.bytes_now(index, snapshot, sealed);
        if kind == Kind::Kv {
            self.keep_extents(structure, live);
        }
        Ok((bytes, sealed))
    }

    /// What a block holds now; it goes on. Of what is plain, the bytes that the snapshot tells.
    pub(super) fn bytes_now(
        &mut self,
        index: usize,
        snapshot: Snapshot,
        sealed: bool,
    ) -> Arc<KeptBytes> {
        let slot = self.slots[index].as_mut().expect("the caller has found the block");
        let (owner, length) = (slot.owner, snapshot.length());
        let (at, floor) = (owner.at, slot.backing.floor());
        if snapshot.is_plain() {
            // It may have grown since, and its last chunk is read as it is there.
            let now = slot.snapshot((0, u64::MAX)).map_or(length, |now| now.length());
            let below = floor.min(now).min(length.next_multiple_of(TIER_CHUNK));
            // Chunks that are whole, or of a block that takes no more, stay on the disk as they are.
            let settled = below.is_multiple_of(TIER_CHUNK) || sealed;
            let memory = (floor < length).then(|| slot.backing.pin(floor..length));
            let stored = stored(&mut slot.place, below, self.config.block_size);
            let there = RetainedBytes::There { stored, memory };
            KeptBytes::live(at, owner.structure, snapshot, settled, there)
        } else if floor > 0 {
            // Nothing of it changes there: what changes it is written elsewhere as long as this is read.
            let least = usize::from(Bug::EmptyBlockHasSlot.active());
            let stored = stored(&mut slot.place, length.max(least), self.config.block_size);
            let there = RetainedBytes::There { stored, memory: None };
            KeptBytes::live(at, owner.structure, snapshot, true, there)
        } else {
            let nothing = length == 0; // It may be below memory.
            let bytes = if nothing { &[] } else { slot.backing.slice(0..length) };
            let copied = snapshot.copied(bytes);
            let nothing = RetainedBytes::There { stored: None, memory: None };
            KeptBytes::live(at, owner.structure, copied, true, nothing)
        }
    }

    /// What of a kept block has room in the warm pool goes down, so that it does not wait there for a
    /// store. One that has no place now is tried again with the flush.
    fn give_warm_back(&mut self, index: usize) {
        if self.kept.get(&index).is_some_and(|kept| kept.place.room == MemoryRoom::Warm) {
            let _ = self.write_back(index);
        }
    }

    /// All of a kept block is on a disk, and is read from there from now on.
    pub(super) fn kept_went_down(&mut self, index: usize) {
        let Some(kept) = self.kept.get_mut(&index) else { return };
        let length = kept.bytes.snapshot().length();
        let stored = stored(&mut kept.place, length, self.config.block_size);
        kept.bytes.moved(RetainedBytes::There { stored, memory: None });
    }

    /// A block that is being flushed is so no more.
    pub(super) fn forget_kept(&mut self, index: usize) {
        let Some(mut kept) = self.kept.remove(&index) else { return };
        self.held -= 1;
        // Who waits to read it finds nothing; who reads it has the hold.
        kept.bytes.moved(RetainedBytes::Gone);
        for leaving in self.take_leaving(kept.owner.at) {
            self.give_room(leaving.room);
        }
        self.leave_place(&mut kept.place);
    }
}

/// The chunks that contain the first `length` bytes of a block on its disk. Their slot is given to no other
/// block while the result exists. `None` for no bytes: a block that was opened in a lower tier has no slot
/// before its first write.
fn stored(place: &mut Residency, length: usize, block_size: usize) -> Option<StoredBytes> {
    if length == 0 {
        return None;
    }
    let hold = place.hold();
    let disk = place.disk.as_ref().expect("INV-41: a block that is not in memory is on a disk");
    let (chunks, sums) = disk.chunks(&(0..length));
    let at = disk.slot as u64 * block_size as u64;
    Some(StoredBytes { tier: disk.tier, at, length: chunks.end, sums, hold })
}
