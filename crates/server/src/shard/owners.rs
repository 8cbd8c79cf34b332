//! The owners of blocks: a block is opened for its owner, closed, and freed.

use super::agenda::{Agenda, Attention};
use super::blocks::Blocks;
use super::capacity::EnlargeState;
use super::export::{Exports, Overlaps, RetainedBlock};
use super::extents::{Extents, ExtentsWork};
use super::lending::LentCopies;
use super::lifecycle::Stage;
use super::outbox::Outbox;
use super::pending::AllPending;
use super::residency::Residency;
use super::successor::SuccessorState;
use super::tiers::{TierWork, Tiers};
use super::waiting::RequestWork;
use super::{BlockOwner, BlockSlot, JournalBegin, Shard, ShardConfig};
use crate::holdings::ReportedState;
use crate::pace::Pace;
use crate::refusals::{unknown_block, wrong_epoch};
use crate::watch::Watchers;
use honeycomb_block::Backing;
use honeycomb_structures::{Answer, Lanes, Opening};
use honeycomb_types::{BlockAt, Bug, Generation, PrefixId, ServerId, Time};
use honeycomb_wire::Status;
use honeycomb_wire::messages::JournalAt;
use std::collections::VecDeque;

/// The parts of a shard that give blocks to owners, and take them back.
pub struct Owners<'a> {
    pub(super) config: &'a ShardConfig,
    pub(super) blocks: &'a mut Blocks,
    agenda: &'a mut Agenda,
    pub(super) out: &'a mut Outbox,
    pub(super) tiers: &'a mut Tiers,
    extents: &'a mut Extents,
    pub(super) overlaps: &'a mut Overlaps,
    pending: &'a mut AllPending,
    lent: &'a mut LentCopies,
}

impl Shard {
    /// The owners of its blocks.
    pub fn owners(&mut self) -> Owners<'_> {
        let Shard { config, blocks, agenda, out, tiers, extents, overlaps, pending, lent, .. } =
            self;
        Owners { config, blocks, agenda, out, tiers, extents, overlaps, pending, lent }
    }

    /// Assigns a block to its owner: see `Owners::assign`. With a journal, changes of the block are answered
    /// when they are stored there. Returns a journal that must be begun before the block is announced.
    pub fn open(
        &mut self,
        owner: BlockOwner,
        journal: Option<JournalAt>,
    ) -> Result<Option<JournalBegin>, Answer> {
        if let Some(index) = self.owners().assign(owner)? {
            // From here on the block's moves are checked, so that even its first request, if it fills the
            // block, waits for a part to move and is not refused.
            self.on_exports(Time::ZERO, |work| work.inspect(index));
            self.blocks.found_mut(index).arm(index, &mut self.agenda);
        }
        let Some(journal) = journal else { return Ok(None) };
        let slot = self.blocks.at(owner.at).expect("the block was just opened");
        let begin = slot.opens_journal(journal);
        match &begin {
            Ok(_) => self.has_journals = true,
            Err(_) => drop(self.owners().free(owner.at)),
        }
        begin
    }
}

impl Owners<'_> {
    /// The parts of the shard that move blocks between tiers.
    pub(super) fn tier_work(&mut self) -> TierWork<'_> {
        let Owners { config, blocks, agenda, pending, tiers, out, overlaps, .. } = self;
        TierWork { config, blocks, agenda, pending, tiers, out, overlaps }
    }

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
        let Owners { config, blocks, agenda, extents, out, .. } = self;
        ExtentsWork { now: Time::ZERO, config, blocks, agenda, extents, out }.reset(controller);
        self.agenda.forget(&ours);
        self.out.effects.retain(|effect| effect.controller() != controller);
    }

    /// Assigns a block to its owner. Returns its index; `None` if it had this owner already. An owner older
    /// than the block's last epoch is refused (INV-01). The memory contains no byte of another job (INV-04):
    /// it is new, or the same job has just freed it and the new structure reads no byte before it has written
    /// it.
    fn assign(&mut self, owner: BlockOwner) -> Result<Option<usize>, Answer> {
        let index = self.blocks.index(owner.at.block).ok_or_else(|| unknown_block(owner.at))?;
        if let Some(slot) = self.blocks.get(index)
            && slot.owner.at.epoch == owner.at.epoch
        {
            return Ok(None);
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
        let owner = self.with_capacity(owner)?;
        self.has_room_for(&owner)?;
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
            capacity: owner.capacity as usize,
            start: owner.start,
            end: owner.end,
            max_items: owner.max_items,
            max_bytes: owner.max_bytes,
            first: owner.first,
            marks: owner.marks,
            importing: owner.importing,
        });
        if !owner.tier.is_below() {
            self.tiers.frames.take(owner.capacity);
        }
        let slot = BlockSlot {
            owner,
            backing,
            structure,
            kind,
            lanes: Lanes::within(self.config.lane_room.clone()),
            attention: Attention::default(),
            successor: SuccessorState::default(),
            enlarging: EnlargeState::default(),
            pace: Pace::default(),
            stage: Stage::Open,
            inbox: VecDeque::new(),
            watchers: Watchers::default(),
            exports: Exports::default(),
            import: (owner.importing != 0).then_some(owner.importing),
            told: ReportedState::default(),
            shared: None,
            residency: Residency::opened(owner.tier),
            journal: None,
            deltas: 0,
        };
        self.blocks.insert(index, slot);
        Ok(Some(index))
    }

    /// An owner with its capacity, which is that of a whole block if it names none.
    fn with_capacity(&self, owner: BlockOwner) -> Result<BlockOwner, Answer> {
        let size = self.config.block_size as u64;
        let capacity = if owner.capacity == 0 { size } else { owner.capacity };
        if capacity > size {
            let text = format!("a block of {size} bytes cannot have a capacity of {capacity}");
            return Err(Answer::refuse(Status::InvalidArgument, text));
        }
        Ok(BlockOwner { capacity, ..owner })
    }

    /// Refuses a block for which there is no room in its tier.
    fn has_room_for(&self, owner: &BlockOwner) -> Result<(), Answer> {
        let ShardConfig { frames, disks, .. } = self.config;
        if !self.blocks.has_room(owner.capacity) {
            // A controller that assigns too many blocks must be refused here, and not by the kernel.
            let text = "the memory for all blocks of this core is in use";
            return Err(Answer::refuse(Status::OutOfMemory, text));
        }
        let Some(below) = owner.tier.below() else {
            if self.tiers.frames.has_room(owner.capacity) {
                return Ok(());
            }
            let text = format!("the memory of this core, of {frames} whole blocks, is in use");
            return Err(Answer::refuse(Status::OutOfMemory, text));
        };
        let text = match disks.get(below) {
            Some(tier) if !tier.class.takes_final_only() => return Ok(()),
            Some(tier) => format!("blocks cannot be created directly in tier {}", tier.class),
            None => format!("this server has no {}", owner.tier),
        };
        Err(Answer::refuse(Status::InvalidArgument, text))
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
        self.out.posts.extend(slot.exports.hang_up(at));
        self.extents.closed(at);
        self.tier_work().free_in_tiers(&mut slot);
        if let Some(copy) = slot.shared.take() {
            self.lent.owe(slot.owner.job, copy);
        }
        if Bug::StaleBytes.active() {
            self.tiers.stale.push(slot.backing);
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
        let Owners { blocks, agenda, pending, tiers, out, .. } = self;
        let mut requests = RequestWork { blocks, agenda, pending, tiers, out };
        revoked.into_iter().for_each(|(at, current)| requests.revoke_waiting(at, current));
    }

    /// Calls `report` with the usage of every block that changed since the last call.
    pub fn usage(&mut self, mut report: impl FnMut(BlockAt, u64)) {
        for index in self.agenda.take_touched() {
            if let Some(slot) = self.blocks.get_mut(index as usize) {
                slot.attention.is_reported();
                report(slot.owner.at, slot.structure.bytes_used());
            }
        }
    }
}
