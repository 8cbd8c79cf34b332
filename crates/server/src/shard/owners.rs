//! The owners of blocks: a block is opened for its owner, closed, and freed.

use super::export::{Exports, RetainedBlock};
use super::residency::Residency;
use super::{BlockOwner, BlockSlot, Shard};
use crate::holdings::ReportedState;
use crate::pace::Pace;
use crate::refusals::{unknown_block, wrong_epoch};
use crate::watch::Watchers;
use honeycomb_block::Backing;
use honeycomb_structures::{Answer, Lanes, Opening};
use honeycomb_types::{BlockAt, Bug, Generation, PrefixId, ServerId, Time};
use honeycomb_wire::Status;
use honeycomb_wire::messages::HeldBlock;

impl Shard {
    /// Sets the number under which the server joined a controller shard. All blocks that were held for that
    /// shard are freed: blocks of an earlier number are `DataLost`.
    pub fn reset(&mut self, server: ServerId) {
        let controller = server.controller();
        self.leave(controller);
        self.blocks.join(server);
    }

    /// Frees everything that is held for a controller shard.
    pub fn leave(&mut self, controller: u16) {
        let Some(ours) = self.blocks.leave(controller) else { return };
        for index in ours.clone() {
            self.free_retained(index);
            if let Some(slot) = self.blocks.get(index) {
                let at = slot.owner.at;
                self.close(index, at);
            }
            self.blocks.forget_epoch(index);
        }
        self.on_extents(Time::ZERO, |work| work.reset_extents(controller));
        self.touched.retain(|index| !ours.contains(&(*index as usize)));
        self.out.effects.retain(|effect| effect.controller() != controller);
    }

    /// Assigns a block to its owner. Idempotent; an owner older than the block's last epoch is refused
    /// (INV-01). The memory contains no byte of another job (INV-04): it is new, or the same job has just
    /// freed it and the new structure reads no byte before it has written it.
    pub fn open(&mut self, owner: BlockOwner) -> Result<(), Answer> {
        let index = self.blocks.index(owner.at.block).ok_or_else(|| unknown_block(owner.at))?;
        if let Some(slot) = self.blocks.get(index)
            && slot.owner.at.epoch == owner.at.epoch
        {
            return Ok(());
        }
        if owner.at.epoch <= self.blocks.last_epoch(index) {
            let BlockAt { block, epoch } = owner.at;
            let text = format!("block {block} was already opened in epoch {epoch} or a later one");
            return Err(Answer::refuse(Status::WrongEpoch, text));
        }
        let kind = self.config.kinds.get(owner.kind).cloned().ok_or_else(|| {
            let text = format!("this server does not serve a {}", owner.kind);
            Answer::refuse(Status::UnknownKind, text)
        })?;
        if let Some(slot) = self.blocks.get(index) {
            let at = slot.owner.at;
            self.close(index, at);
        }
        self.free_retained(index);
        if !self.blocks.has_room() {
            // A controller that assigns too many blocks must be refused here, and not by the kernel.
            let text = format!("all {} blocks of this core are in use", self.config.blocks);
            return Err(Answer::refuse(Status::OutOfMemory, text));
        }
        if !owner.tier.is_below() && !self.tier_work().has_frame() {
            let text = format!("all {} memory frames of this core are in use", self.config.frames);
            return Err(Answer::refuse(Status::OutOfMemory, text));
        }
        if let Some(below) = owner.tier.below() {
            let text = match self.config.disks.get(below) {
                Some(tier) if !tier.class.takes_final_only() => None,
                Some(tier) => {
                    Some(format!("blocks cannot be created directly in tier {}", tier.class))
                }
                None => Some(format!("this server has no {}", owner.tier)),
            };
            if let Some(text) = text {
                return Err(Answer::refuse(Status::InvalidArgument, text));
            }
        }
        let backing = match owner.tier.is_below() {
            true => Ok(Backing::absent(self.config.block_size, &self.config.reclaimer)),
            false => self.tier_work().new_backing(&owner, kind.overwrites()),
        };
        let backing = backing.map_err(|e| {
            let text = format!("cannot map memory for block {}: {e}", owner.at.block);
            Answer::refuse(Status::OutOfMemory, text)
        })?;
        let structure = kind.open(&Opening {
            block: owner.at.block,
            block_size: self.config.block_size,
            start: owner.start,
            end: owner.end,
            max_items: owner.max_items,
            max_bytes: owner.max_bytes,
            first: owner.first,
            marks: owner.marks,
            importing: owner.importing,
        });
        self.tiers.frames += u32::from(!owner.tier.is_below());
        let (used, frames) = (self.tiers.frames, self.config.frames);
        assert!(used <= frames, "INV-42: {used} of {frames} memory frames are used");
        let slot = BlockSlot {
            owner,
            backing,
            structure,
            kind,
            lanes: Lanes::within(self.config.lane_room.clone()),
            touched: false,
            looked: (Time::ZERO, 0),
            unseen: false,
            ask_after: Time::ZERO,
            asked_at: None,
            full: Default::default(),
            idle_at: None,
            pace: Pace::default(),
            timer: None,
            retire_at: None,
            watchers: Watchers::default(),
            sealed: None,
            exports: Exports::default(),
            import: (owner.importing != 0).then_some(owner.importing),
            told: ReportedState::default(),
            shared: None,
            place: Residency::opened(owner.tier),
            journal: None,
        };
        self.blocks.insert(index, slot);
        // From here on the block's moves are checked, so that even its first request, if it fills the block,
        // waits for a part to move and is not refused.
        self.look_at_exports(Time::ZERO, index);
        self.arm(index);
        Ok(())
    }

    /// Takes a block from its owner. True if no data of that epoch can be read any more, also if the block
    /// was free already.
    pub fn free(&mut self, at: BlockAt) -> bool {
        let Some(index) = self.blocks.index(at.block) else { return false };
        // A free that overtakes its open must win: the open is then refused as too old.
        self.blocks.outdate(index, at.epoch);
        self.close(index, at);
        true
    }

    pub(super) fn close(&mut self, index: usize, at: BlockAt) {
        let of_epoch = |retained: &mut RetainedBlock| retained.owner.at.epoch == at.epoch;
        if self.blocks.retained(index).is_some_and(of_epoch) {
            self.free_retained(index);
        }
        if self.blocks.get(index).is_none_or(|s| s.owner.at.epoch != at.epoch) {
            return;
        }
        let mut slot = self.blocks.remove(index).expect("checked above");
        let text = "the block was freed or has another owner";
        slot.watchers.end(Status::WrongEpoch, text, &mut self.out.notices);
        self.end_exports(&slot);
        self.extents.closed(at);
        self.tier_work().leave_tiers(&mut slot);
        if let Some(copy) = slot.shared.take() {
            self.owe(slot.owner.job, copy);
        }
        if Bug::StaleBytes.active() {
            self.stale.push(slot.backing);
        }
        for pending in self.pending.take_of(at) {
            self.out.completed.push((pending.ticket, wrong_epoch(at)));
        }
    }

    /// Refuses from now on the grants of a prefix that are older than this. Operations that wait under such a
    /// grant are answered, and its subscriptions end (INV-29).
    pub fn set_generation(&mut self, prefix: PrefixId, generation: Generation) {
        let mut revoked = Vec::new();
        for slot in self.blocks.in_use_mut().filter(|slot| slot.owner.prefix == prefix) {
            slot.owner.generation = slot.owner.generation.max(generation);
            let (at, current) = (slot.owner.at, slot.owner.generation);
            slot.watchers.revoke(current, &mut self.out.notices);
            revoked.push((at, current));
        }
        revoked.into_iter().for_each(|(at, current)| self.revoke_waiting(at, current));
    }

    /// Calls `report` with the usage of every block that changed since the last call.
    pub fn usage(&mut self, mut report: impl FnMut(BlockAt, u64)) {
        for index in std::mem::take(&mut self.touched) {
            if let Some(slot) = self.blocks.get_mut(index as usize) {
                slot.touched = false;
                report(slot.owner.at, slot.structure.bytes_used());
            }
        }
    }

    /// The report for a controller that may have lost some of this state: every block that is held, with its
    /// seal, its successor, and the items taken from it. A block that is being flushed is held too.
    pub fn holdings(&self) -> Vec<HeldBlock> {
        let open = self.blocks.in_use().map(|slot| {
            let (tier, to) = self.tiers.tiers_of(slot.owner.at, &slot.place);
            let told = slot.told.of(&slot.owner, slot.structure.bytes_used());
            HeldBlock { tier: tier.0, to: to.0, ..told }
        });
        let retained = self.blocks.all_retained().map(|retained| {
            let RetainedBlock { owner, place, .. } = retained;
            let (tier, to) = self.tiers.tiers_of(owner.at, place);
            HeldBlock { tier: tier.0, to: to.0, ..ReportedState::default().of(owner, 0) }
        });
        open.chain(retained).collect()
    }

    /// The blocks in use and their owners.
    pub fn inventory(&self) -> impl Iterator<Item = &BlockOwner> {
        let open = self.blocks.in_use().map(|slot| &slot.owner);
        open.chain(self.blocks.all_retained().map(|retained| &retained.owner))
    }
}
