//! Changes of a block's capacity in place: requests to the controller, and the count of memory in use.

use super::events::refusal_at_block;
use super::outbox::Effect;
use super::owners::Owners;
use super::residency::MemoryRoom;
use super::successor::ASK_AGAIN;
use super::tiers::tenant_of;
use super::{BlockOwner, BlockSlot, ShardConfig};
use honeycomb_structures::Capacity;
use honeycomb_types::Time;
use honeycomb_types::limits::{CAPACITY_FIRST, CAPACITY_UNIT};
use honeycomb_wire::Status;
use std::time::Duration;

/// A block that needs more bytes than this may get a whole block's memory at once.
const CONTINUES_FROM: usize = (CAPACITY_FIRST as u64 * CAPACITY_UNIT) as usize;

/// The longest pause before a block repeats a request that was refused for the moment.
const ASK_AGAIN_SELDOM: Duration = Duration::from_millis(100);
/// The pause before a block repeats a request that was refused for lack of room.
const ENLARGE_AGAIN: Duration = Duration::from_secs(1);

/// A block's requests to the controller for another capacity.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EnlargeState {
    /// The earliest time of the next request.
    again_at: Time,
    /// The pause before that time, which doubles with each refusal in a row.
    pause: Duration,
}

impl EnlargeState {
    /// A refused request may be repeated now.
    pub fn at_once(&mut self, now: Time) {
        self.again_at = self.again_at.min(now);
    }

    /// Records the controller's answer.
    fn answered(&mut self, now: Time, answer: &Capacity) {
        self.pause = match answer {
            Capacity::Granted(_) => Duration::ZERO,
            Capacity::Denied(status, _) if status.is_passing() => {
                (2 * self.pause).clamp(ASK_AGAIN, ASK_AGAIN_SELDOM)
            }
            Capacity::Denied(..) => ENLARGE_AGAIN,
        };
        self.again_at = now + self.pause;
    }
}

impl BlockSlot {
    /// Gives the block's memory the capacity that the block has. A frozen copy stays as it is.
    pub(super) fn enlarge_memory(&mut self) {
        let capacity = (self.owner.capacity as usize).min(self.backing.len());
        self.backing.enlarge(capacity.max(self.backing.capacity()));
    }

    /// When the block repeats a request although no operation changes the block.
    pub(super) fn capacity_due(&mut self) -> Option<Time> {
        let repeats = self.structure.enlarge().is_some_and(|block| block.repeats());
        repeats.then_some(self.enlarging.again_at)
    }

    /// Passes the controller's answer to the structure, with the status for the block's callers.
    pub(super) fn capacity_answered(&mut self, now: Time, answer: Capacity) {
        self.enlarging.answered(now, &answer);
        let answer = match answer {
            Capacity::Denied(status, why) => {
                self.successor.quota.answered(now, status);
                Capacity::Denied(refusal_at_block(status), why)
            }
            Capacity::Granted(bytes) => {
                self.successor.quota.answered(now, Status::Ok);
                self.successor.full.ends();
                Capacity::Granted(bytes)
            }
        };
        let (enlarge, backing) = self.enlarge();
        enlarge.capacity(backing, now, answer);
    }
}

impl Owners<'_> {
    /// After a change of a block, frees the capacity that the block no longer needs. Requests the capacity
    /// that the block lacks, or informs the controller of a reduced capacity. `expected` bytes are likely to
    /// arrive before the answer.
    pub(super) fn adjust_capacity(&mut self, now: Time, index: usize, expected: usize) {
        let slot = self.blocks.found_mut(index);
        let reduced = match slot.lets_reduce().then(|| slot.structure.enlarge()).flatten() {
            Some(enlarge) => enlarge.give_capacity(&mut slot.backing, now),
            None => None,
        };
        if let Some(capacity) = reduced {
            self.reduce(index, capacity as u64);
        }
        let slot = self.blocks.found_mut(index);
        if now < slot.enlarging.again_at {
            return;
        }
        let wanted = slot.structure.enlarge().and_then(|block| block.wants_capacity(expected));
        let Some(bytes) = wanted else { return };
        // A job that has just freed a whole block continues in its memory, which is resident.
        let ShardConfig { block_size, reclaimer, .. } = self.config;
        let grows = bytes as u64 > slot.owner.capacity;
        let large = grows && bytes > CONTINUES_FROM && bytes < *block_size;
        let freed = large && reclaimer.has_freed(tenant_of(&slot.owner), *block_size);
        let bytes = if freed { *block_size } else { bytes } as u64;
        let BlockOwner { at, structure, .. } = slot.owner;
        self.out.effects.push(Effect::Enlarge { structure, at, bytes });
    }

    /// Counts the larger capacity of a block from now on. The structure may receive the capacity later.
    pub(super) fn enlarge(&mut self, index: usize, bytes: u64) {
        let bytes = bytes.min(self.config.block_size as u64);
        if bytes > self.blocks.found(index).owner.capacity {
            self.resize(index, bytes);
        }
    }

    /// Counts the smaller capacity of a block, which has freed the memory behind that capacity.
    pub(super) fn reduce(&mut self, index: usize, bytes: u64) {
        let slot = self.blocks.found(index);
        let (at, before, mapped) = (slot.owner.at, slot.owner.capacity, slot.backing.capacity());
        assert!(bytes < before, "INV-60: {at:?} of {before} bytes keeps {bytes}");
        assert!(mapped as u64 <= bytes, "INV-60: {at:?} uses {mapped} bytes, and keeps {bytes}");
        self.resize(index, bytes);
    }

    fn resize(&mut self, index: usize, bytes: u64) {
        let has_frame = self.blocks.found(index).residency.room() == MemoryRoom::Frame;
        let before = self.blocks.resize(index, bytes);
        if has_frame {
            self.tiers.frames.give(before);
            self.tiers.frames.take(bytes);
        }
    }
}
