//! How the capacity of a block changes in place: its requests to the controller, and the memory that counts.

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
use std::time::Duration;

/// A block that needs more bytes than this may get a whole block's memory at once.
const CONTINUES_FROM: usize = (CAPACITY_FIRST as u64 * CAPACITY_UNIT) as usize;

/// The longest pause before a block requests a capacity again that was refused for the moment.
const ASK_AGAIN_SELDOM: Duration = Duration::from_millis(100);
/// How often a block that was refused a larger capacity for lack of room requests it again.
const ENLARGE_AGAIN: Duration = Duration::from_secs(1);

/// A block's requests to the controller for another capacity.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EnlargeState {
    /// When a block that was refused may request it again.
    again_at: Time,
    /// The pause before that, which doubles with each refusal in a row.
    pause: Duration,
    /// Whether it requests again then, also if nothing has changed it.
    repeats: bool,
}

impl EnlargeState {
    /// Whether the block may request another capacity now.
    pub fn may_request(self, now: Time) -> bool {
        now >= self.again_at
    }

    /// When the block must be inspected because a request is repeated.
    pub fn due(self) -> Option<Time> {
        self.repeats.then_some(self.again_at)
    }

    /// The controller has answered; `repeats` if the block has something to request all the same.
    pub fn answered(&mut self, now: Time, answer: &Capacity, repeats: bool) {
        let pause = match answer {
            Capacity::Granted(_) => Duration::ZERO,
            Capacity::Denied(status, _) if status.is_passing() => {
                (2 * self.pause).clamp(ASK_AGAIN, ASK_AGAIN_SELDOM)
            }
            Capacity::Denied(..) => ENLARGE_AGAIN,
        };
        *self = EnlargeState { again_at: now + pause, pause, repeats };
    }

    /// The block requests again what was refused, or something else.
    pub fn requested(&mut self) {
        self.repeats = false;
    }
}

impl BlockSlot {
    /// Gives the block's memory the capacity that the block has. A frozen copy stays as it is.
    pub(super) fn enlarge_memory(&mut self) {
        let capacity = (self.owner.capacity as usize).min(self.backing.len());
        self.backing.enlarge(capacity.max(self.backing.capacity()));
    }

    /// Records the controller's answer to the request for another capacity, which the structure gets, with
    /// the status for the block's callers.
    pub(super) fn capacity_answered(&mut self, now: Time, answer: Capacity) {
        let (enlarge, backing) = self.enlarge();
        let told = match answer.clone() {
            Capacity::Denied(status, why) => Capacity::Denied(refusal_at_block(status), why),
            Capacity::Granted(bytes) => Capacity::Granted(bytes),
        };
        enlarge.capacity(backing, now, told);
        let repeats = enlarge.repeats();
        self.enlarging.answered(now, &answer, repeats);
        if matches!(answer, Capacity::Granted(_)) {
            self.successor.full.ends();
        }
    }
}

impl Owners<'_> {
    /// After a change of a block: takes back the capacity that it does not need any more, and requests from
    /// the controller what it needs, or informs it of the capacity that the block has kept. `expected` bytes
    /// are likely to arrive before the answer.
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
        if !slot.enlarging.may_request(now) {
            return;
        }
        let wanted = slot.structure.enlarge().and_then(|block| block.wants_capacity(expected));
        let Some(bytes) = wanted else { return };
        slot.enlarging.requested();
        // A job that has just freed a whole block continues in its memory, which is resident.
        let ShardConfig { block_size, reclaimer, .. } = self.config;
        let grows = bytes as u64 > slot.owner.capacity;
        let large = grows && bytes > CONTINUES_FROM && bytes < *block_size;
        let freed = large && reclaimer.has_freed(tenant_of(&slot.owner), *block_size);
        let bytes = if freed { *block_size } else { bytes } as u64;
        let BlockOwner { at, structure, .. } = slot.owner;
        self.out.effects.push(Effect::Enlarge { structure, at, bytes });
    }

    /// A block has a larger capacity, which counts from now on, also if the structure gets it later.
    pub(super) fn enlarge(&mut self, index: usize, bytes: u64) {
        let bytes = bytes.min(self.config.block_size as u64);
        if bytes > self.blocks.found(index).owner.capacity {
            self.resize(index, bytes);
        }
    }

    /// A block in memory has given back what is behind this capacity.
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
