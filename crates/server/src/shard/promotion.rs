//! Promotion of blocks that are read often from a lower tier, if memory has room; blocks of kvs that are
//! written often stay in memory.
//!
//! The shard knows the reads exactly and at once, and the controller knows the free room. So the shard
//! requests a promotion (`Effect::Promote`), and the controller commands it when there is room
//! (`change_tier`, to memory). Until the whole block is in memory it is read from the disk as before, and its
//! memory belongs to no other block (INV-42). A block that cannot be read now stays where it is.

use super::blocks::Blocks;
use super::outbox::Outbox;
use super::residency::MemoryRoom;
use super::tiers::{Doing, LowerReads, TierWork};
use super::{BlockOwner, Effect};
use crate::spill::{IoDone, IoWhat};
use honeycomb_structures::Answer;
use honeycomb_types::limits::{HEAT_WINDOW, RAISE_AFTER, RAISE_AGAIN, RAISE_AGAIN_MAX, TIER_CHUNK};
use honeycomb_types::{BlockAt, TierIx, Time};
use honeycomb_wire::Status;
use std::time::Duration;

/// How much a block in a lower tier is read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Heat {
    /// The time since which reads are counted.
    since: Time,
    /// Bytes read from the lower tier since then.
    bytes: u64,
    /// After a request for promotion, the earliest time of the next one.
    again: Time,
    pause: Duration,
}

impl Heat {
    /// Whether the block should be promoted now, because it was read several times over.
    fn read(&mut self, now: Time, bytes: usize, length: usize) -> bool {
        if now >= self.since + HEAT_WINDOW {
            (self.since, self.bytes) = (now, 0);
        }
        self.bytes += bytes as u64;
        if self.bytes <= RAISE_AFTER * length as u64 || now < self.again {
            return false;
        }
        self.pause = (2 * self.pause).clamp(RAISE_AGAIN, RAISE_AGAIN_MAX);
        (self.again, self.bytes) = (now + self.pause, 0);
        true
    }
}

/// Records that bytes of a block were read from its lower tier. Requests its promotion if it is read often.
pub(super) fn heats(blocks: &mut Blocks, out: &mut Outbox, now: Time, index: usize, bytes: usize) {
    let slot = blocks.found_mut(index);
    let Some(length) = slot.rests().length() else { return };
    let length = length.next_multiple_of(TIER_CHUNK);
    // A block with memory for its end is being written, and is not promoted as well. A block that is whole in
    // the write cache need not be promoted: it stays there if it may.
    let counts = slot.residency.room() == MemoryRoom::None || slot.is_whole();
    if counts && slot.residency.heat_mut().is_some_and(|heat| heat.read(now, bytes, length)) {
        let (structure, at) = (slot.owner.structure, slot.owner.at);
        out.effects.push(Effect::Promote { structure, at });
    }
}

impl TierWork<'_> {
    /// Begins to promote a block. It is read from its lower tier until all of it is in memory.
    pub(super) fn promote(&mut self, index: usize) -> Result<(), Answer> {
        let refuse = |why: &str| Err(Answer::refuse(Status::Busy, why));
        let slot = self.blocks.get_mut(index);
        let Some(slot) = slot else { return refuse("the block is retained for a flush") };
        let at = slot.owner.at;
        let has_frame = self.tiers.frames.has_room(slot.owner.capacity);
        if slot.residency.is_promoting() {
            return Ok(());
        }
        if slot.deltas().all > 0 && slot.residency.room() == MemoryRoom::None {
            self.tiers.write_cache.wants(at, false);
            self.tiers.look_again = Some(Time::ZERO);
            return refuse("the block is read back to merge its deltas first");
        }
        if slot.residency.export().is_some_and(|export| !export.is_from_memory()) {
            return refuse("the block is being demoted");
        }
        let whole = slot.is_whole();
        let stays =
            whole && slot.residency.is_cached() && slot.residency.is_workable(&slot.backing);
        if slot.residency.room() != MemoryRoom::None && !stays {
            return refuse("the end of the block is in memory and may change");
        }
        if !has_frame {
            return refuse("the memory of its core is in use");
        }
        if stays {
            self.reads().gets_frame(index);
            return Ok(());
        }
        let Some(length) = slot.rests().length() else {
            return refuse("an operation on the block is in progress");
        };
        let Some(disk) = slot.residency.copy().filter(|_| length > 0) else {
            return refuse("the block is empty");
        };
        let (tier, disk_slot, (read, sums)) = (disk.tier, disk.slot, disk.all());
        let owner = slot.owner;
        let overwrites = slot.kind.overwrites();
        let Ok(into) = self.new_backing(&owner, overwrites) else {
            return refuse("cannot map memory for the block");
        };
        let slot = self.blocks.found_mut(index);
        slot.residency.promotes();
        self.tiers.frames.take(owner.capacity);
        let at = disk_slot as u64 * self.config.block_size as u64;
        let what = IoWhat::ReadBlock { at, into, length: read.end, sums };
        self.tiers.ask(tier, disk_slot, Doing::Promote { at: owner.at }, what);
        Ok(())
    }

    /// Handles the outcome of reading a whole block into its frame.
    pub(super) fn promotion_read(&mut self, now: Time, at: BlockAt, slot: u32, done: IoDone) {
        let Some(index) = self.blocks.at_slot(at, slot) else { return };
        let slot = self.blocks.get_mut(index).filter(|slot| slot.residency.is_promoting());
        // Otherwise the block was retained for a flush meanwhile, which reads its copy.
        let Some(slot) = slot else { return };
        let BlockOwner { structure, capacity, .. } = slot.owner;
        let tier = match done {
            IoDone::Read(backing) => {
                self.tiers.counts.read += backing.len() as u64;
                slot.backing = backing;
                slot.enlarge_memory();
                let copy = slot.residency.promoted().expect("the block was read from its disk");
                self.tiers.free_copy(copy);
                TierIx::MEMORY
            }
            _ => {
                // The next reader may find the same, and then the block is lost.
                slot.residency.promotion_failed();
                let tier = slot.residency.tier();
                self.tiers.give_room(MemoryRoom::Frame, capacity);
                tier
            }
        };
        self.out.effects.push(Effect::TierChanged { structure, at, tier });
        self.give_places(now);
    }
}

impl LowerReads<'_> {
    /// A block that is whole in the write cache gets a frame, and stays in memory.
    fn gets_frame(&mut self, index: usize) {
        let slot = self.blocks.found_mut(index);
        let BlockOwner { structure, at, capacity, .. } = slot.owner;
        let copy = slot.residency.promoted();
        self.tiers.frames.take(capacity);
        self.tiers.give_room(MemoryRoom::Cache, capacity);
        if let Some(copy) = copy {
            self.tiers.free_copy(copy);
        }
        self.out.effects.push(Effect::TierChanged { structure, at, tier: TierIx::MEMORY });
        // Blocks that wait for its place get it in the next tick, which is due at once.
        self.tiers.look_again = Some(Time::ZERO);
    }
}
