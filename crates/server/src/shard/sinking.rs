//! Further demotion of blocks from a disk to an object store, when the disk is short of room.
//!
//! Only blocks that accept no more data are demoted there. A block is read in pieces, each verified by its
//! checksums, and written unchanged, some pieces at a time and only while readers leave half of the buffers
//! free: readers have priority. Until everything is written the block is read from the disk, and both places
//! belong to it (INV-42, INV-44). A block that cannot be read or written now stays where it is.

use super::tiers::{BlockResidency, Doing, MemoryRoom};
use super::{Effect, Shard};
use crate::spill::{IoDone, IoWhat};
use honeycomb_block::Backing;
use honeycomb_structures::{Answer, Rest};
use honeycomb_types::limits::{SINK_PIECES, TIER_PIECE};
use honeycomb_types::{BlockAt, Bug, TierIx, Time};
use honeycomb_wire::Status;
use std::sync::atomic::Ordering::Relaxed;

/// A block that is copied from its disk to a store.
#[derive(Debug)]
pub(super) struct Sinking {
    pub to: TierIx,
    /// Its place there.
    pub slot: u32,
    /// By which its own pieces are known.
    number: u64,
    /// Bytes of it that are on the disk.
    length: usize,
    /// Those that were asked for.
    asked: usize,
    /// Pieces that are read or written.
    under_way: usize,
    failed: bool,
}

impl Shard {
    /// Begins to copy a block that is on a disk to a store below it.
    pub(super) fn sink(&mut self, index: usize, to: TierIx) -> Result<(), Answer> {
        let refuse = |why: &str| Err(Answer::refuse(Status::Busy, why));
        let BlockResidency { place, rests, .. } = self.lies(index);
        if let Some(sinking) = &place.sinking {
            let same = sinking.to == to;
            return if same {
                Ok(())
            } else {
                refuse("the block is being demoted to another tier")
            };
        }
        if to < place.tier {
            let text =
                format!("a block in {} can move only to memory or to a lower tier", place.tier);
            return Err(Answer::refuse(Status::InvalidArgument, text));
        }
        if place.room != MemoryRoom::None || place.down.is_some() || place.raising {
            return refuse("a part of the block is in memory");
        }
        let (Rest::Final(length) | Rest::Pieces(length)) = rests else {
            return refuse("the block may still be written");
        };
        if length == 0 || place.disk.is_none() {
            return refuse("the block is empty");
        }
        let Some(slot) = self.tiers.take_place(to) else {
            return refuse("the object store has no free slot");
        };
        self.tiers.next += 1;
        let number = self.tiers.next;
        let BlockResidency { owner, place, .. } = self.lies(index);
        let at = owner.at;
        let length = place.disk.as_ref().expect("looked at above").length();
        let (asked, under_way, failed) = (0, 0, false);
        place.sinking =
            Some(Box::new(Sinking { to, slot, number, length, asked, under_way, failed }));
        self.sink_on(index, at);
        Ok(())
    }

    /// Asks for the next pieces, as many as there are buffers for.
    fn sink_on(&mut self, index: usize, at: BlockAt) {
        let size = self.config.block_size as u64;
        loop {
            let BlockResidency { place, .. } = self.lies(index);
            let tier = place.tier;
            let (Some(sinking), Some(disk)) = (&place.sinking, &place.disk) else { return };
            let (from, number) = (sinking.asked, sinking.number);
            if sinking.failed || from >= sinking.length || sinking.under_way >= SINK_PIECES {
                return;
            }
            let length = TIER_PIECE.min(sinking.length - from);
            let (_, sums) = disk.chunks(&(from..from + length));
            let (spot, idle) = (disk.slot, sinking.under_way == 0);
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
            let BlockResidency { place, .. } = self.lies(index);
            let sinking = place.sinking.as_mut().expect("looked at above");
            sinking.asked += length;
            sinking.under_way += 1;
            let offset = u64::from(spot) * size + from as u64;
            let what = IoWhat::Raise { at: offset, into, length, sums };
            let doing = Doing::SinkRead { at, sinking: number, from };
            self.tiers.ask(tier, spot, doing, what);
        }
    }

    /// There may be buffers now.
    pub(super) fn sink_again(&mut self, at: BlockAt) {
        if let Some(index) = self.index(at.block)
            && self.lying(index).is_some_and(|lying| lying.owner.at == at)
        {
            self.sink_on(index, at);
        }
    }

    /// The block, if it is still on the way on which it was then.
    fn sinks(&mut self, at: BlockAt, number: u64) -> Option<(usize, &mut Sinking)> {
        let index = self.index(at.block)?;
        let BlockResidency { owner, place, .. } = self.lying(index)?;
        let sinking = place.sinking.as_deref_mut();
        let sinking = sinking.filter(|s| owner.at == at && s.number == number)?;
        Some((index, sinking))
    }

    pub(super) fn sink_read(&mut self, at: BlockAt, number: u64, from: usize, done: IoDone) {
        let size = self.config.block_size as u64;
        let Some((index, sinking)) = self.sinks(at, number) else { return };
        let IoDone::Read(mut read) = done else {
            // Who reads it next may find the same, and then it is lost.
            sinking.failed = true;
            return self.sunk_piece(index, at);
        };
        let (to, slot) = (sinking.to, sinking.slot);
        let bytes = read.pin(0..read.len());
        let offset = u64::from(slot) * size + from as u64;
        let doing = Doing::SinkWrite { at, sinking: number };
        self.tiers.ask(to, slot, doing, IoWhat::Write { at: offset, bytes });
    }

    pub(super) fn sink_written(&mut self, at: BlockAt, number: u64, done: IoDone) {
        let Some((index, sinking)) = self.sinks(at, number) else { return };
        sinking.failed |= !matches!(done, IoDone::Written(_));
        self.sunk_piece(index, at);
    }

    /// A piece is there, or will not be.
    fn sunk_piece(&mut self, index: usize, at: BlockAt) {
        let BlockResidency { owner, place, .. } = self.lies(index);
        let (structure, below) = (owner.structure, place.tier);
        let sinking = place.sinking.as_mut().expect("the caller has found the demotion");
        sinking.under_way -= 1;
        if sinking.under_way > 0 || sinking.asked < sinking.length && !sinking.failed {
            return self.sink_on(index, at);
        }
        let sinking = place.sinking.take().expect("looked at above");
        if sinking.failed {
            self.tiers.leave(sinking.to, sinking.slot, self.config.block_size);
            return self.out.effects.push(Effect::TierChanged { structure, at, tier: below });
        }
        self.tiers.next += 1;
        let written = self.tiers.next;
        let BlockResidency { place, .. } = self.lies(index);
        let (left, hold) = place.copy_left().expect("the block was read from its disk");
        let left_slot = (left.slot, hold);
        place.disk = Some(left.moved_to(sinking.slot, written));
        place.tier = sinking.to;
        self.tiers.counts.written += sinking.length as u64;
        // Who reads it for a flush has the hold of where it was.
        self.kept_went_down(index);
        self.leave_disk(below, left_slot);
        if Bug::ArrivalUnreported.active() {
            return;
        }
        self.out.effects.push(Effect::TierChanged { structure, at, tier: sinking.to });
    }
}
