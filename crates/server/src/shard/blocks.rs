//! The blocks of a shard, in use or retained for a flush.

use super::BlockSlot;
use super::export::RetainedBlock;
use super::lifecycle::Lifecycle;
use super::tiers::BlockResidency;
use super::units::UnitsInUse;
use honeycomb_types::{BlockAt, BlockId, Bug, Epoch, ServerId, ShardIx};
use std::ops::Range;

/// The blocks of a shard, by their index in the shard.
pub(super) struct Blocks {
    shard: ShardIx,
    /// Most blocks that each controller shard may name.
    most: u32,
    /// The number under which each controller shard knows this server; 0 for none.
    members: Vec<ServerId>,
    /// For each controller shard, as many as there are blocks: each controller shard may name any block, and
    /// uses at most its share of them.
    lives: Vec<Lifecycle>,
    /// The memory of blocks in use or retained, in all tiers (INV-40).
    held: UnitsInUse,
    /// Epoch of the last owner of each block, to recognise a late open or free.
    last_epoch: Vec<Epoch>,
}

impl Blocks {
    /// A shard of a server without a number has no blocks until `join`.
    pub fn new(shard: ShardIx, most: u32, held: UnitsInUse) -> Blocks {
        Blocks { shard, most, members: Vec::new(), lives: Vec::new(), held, last_epoch: Vec::new() }
    }

    /// The server has a number at a controller shard for which it holds no blocks.
    pub fn join(&mut self, server: ServerId) {
        let controller = server.controller() as usize;
        let members = self.members.len().max(controller + 1);
        self.members.resize(members, ServerId(0));
        self.members[controller] = server;
        let slots = members * self.most as usize;
        self.lives.resize_with(slots, Lifecycle::default);
        self.last_epoch.resize(slots, Epoch(0));
    }

    /// The server has no number at a controller shard any more. Returns the range of its blocks, which the
    /// caller frees; `None` if there never was one.
    pub fn leave(&mut self, controller: u16) -> Option<Range<usize>> {
        *self.members.get_mut(controller as usize)? = ServerId(0);
        let most = self.most as usize;
        Some(controller as usize * most..(controller as usize + 1) * most)
    }

    /// Whether the server has this number at a controller shard.
    pub fn is_member(&self, server: ServerId) -> bool {
        self.members.contains(&server)
    }

    /// The index of a block that this shard could hold.
    pub fn index(&self, block: BlockId) -> Option<usize> {
        let server = block.server();
        let controller = server.controller() as usize;
        let ours = self.members.get(controller) == Some(&server)
            && block.shard() == self.shard
            && block.index() < self.most
            && server != ServerId(0);
        ours.then(|| controller * self.most as usize + block.index() as usize)
    }

    /// The block in use at this index.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&BlockSlot> {
        match &self.lives[index] {
            Lifecycle::InUse(slot) => Some(slot),
            Lifecycle::Free | Lifecycle::Retained(_) => None,
        }
    }

    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut BlockSlot> {
        match &mut self.lives[index] {
            Lifecycle::InUse(slot) => Some(slot),
            Lifecycle::Free | Lifecycle::Retained(_) => None,
        }
    }

    /// The block in use that the caller has found at this index.
    #[inline]
    pub fn found(&self, index: usize) -> &BlockSlot {
        self.get(index).expect("the caller has found the block")
    }

    #[inline]
    pub fn found_mut(&mut self, index: usize) -> &mut BlockSlot {
        self.get_mut(index).expect("the caller has found the block")
    }

    /// The block in use with this epoch.
    pub fn at(&mut self, at: BlockAt) -> Option<&mut BlockSlot> {
        let index = self.index(at.block)?;
        let slot = self.get_mut(index)?;
        (slot.owner.at.epoch == at.epoch || Bug::EpochUnchecked.active()).then_some(slot)
    }

    /// The block in use at this index, if it has this epoch.
    pub fn exactly(&mut self, index: usize, at: BlockAt) -> Option<&mut BlockSlot> {
        self.get_mut(index).filter(|slot| slot.owner.at == at)
    }

    /// The block in use with this name and epoch.
    pub fn get_at(&self, at: BlockAt) -> Option<&BlockSlot> {
        self.get(self.index(at.block)?).filter(|slot| slot.owner.at == at)
    }

    /// All blocks in use.
    pub fn in_use(&self) -> impl Iterator<Item = &BlockSlot> {
        (0..self.lives.len()).filter_map(|index| self.get(index))
    }

    pub fn in_use_mut(&mut self) -> impl Iterator<Item = &mut BlockSlot> {
        self.lives.iter_mut().filter_map(|life| match life {
            Lifecycle::InUse(slot) => Some(&mut **slot),
            Lifecycle::Free | Lifecycle::Retained(_) => None,
        })
    }

    /// All retained blocks, in order of their indices.
    pub fn all_retained(&self) -> impl Iterator<Item = &RetainedBlock> {
        self.lives.iter().filter_map(|life| match life {
            Lifecycle::Retained(block) => Some(&**block),
            Lifecycle::Free | Lifecycle::InUse(_) => None,
        })
    }

    /// The retained block at this index.
    pub fn retained(&mut self, index: usize) -> Option<&mut RetainedBlock> {
        match &mut self.lives[index] {
            Lifecycle::Retained(block) => Some(block),
            Lifecycle::Free | Lifecycle::InUse(_) => None,
        }
    }

    /// The bytes of the block at this index, in use or retained.
    pub fn bytes_at(&mut self, index: usize) -> Option<BlockResidency<'_>> {
        match &mut self.lives[index] {
            Lifecycle::InUse(slot) => {
                let rests = slot.rests();
                let BlockSlot { owner, backing, residency, .. } = &mut **slot;
                Some(BlockResidency { owner: *owner, backing, residency, rests })
            }
            Lifecycle::Retained(block) => Some(block.residency()),
            Lifecycle::Free => None,
        }
    }

    /// The same for a block that the caller has found.
    pub fn bytes_of(&mut self, index: usize) -> BlockResidency<'_> {
        self.bytes_at(index).expect("the caller has found the block")
    }

    /// The block, if it still has this slot on the disk.
    pub fn at_slot(&mut self, at: BlockAt, slot: u32) -> Option<usize> {
        let index = self.index(at.block)?;
        let BlockResidency { owner, residency, .. } = self.bytes_at(index)?;
        let same = owner.at == at && residency.copy().is_some_and(|copy| copy.slot == slot);
        same.then_some(index)
    }

    /// Whether another block of this capacity can be opened.
    pub fn has_room(&self, capacity: u64) -> bool {
        self.held.has_room(capacity)
    }

    /// Changes the capacity of a block in use. Returns the one before.
    pub fn resize(&mut self, index: usize, capacity: u64) -> u64 {
        let owner = &mut self.found_mut(index).owner;
        let before = std::mem::replace(&mut owner.capacity, capacity);
        self.held.give(before);
        self.held.take(capacity);
        before
    }

    /// The epoch of the last owner.
    pub fn last_epoch(&self, index: usize) -> Epoch {
        self.last_epoch[index]
    }

    /// Refuses owners up to this epoch from now on.
    pub fn outdate(&mut self, index: usize, epoch: Epoch) {
        self.last_epoch[index] = self.last_epoch[index].max(epoch);
    }

    /// Forgets the last owner: its number of the server is void.
    pub fn forget_epoch(&mut self, index: usize) {
        self.last_epoch[index] = Epoch(0);
    }

    /// A block is opened.
    pub fn insert(&mut self, index: usize, slot: BlockSlot) {
        let (at, last) = (slot.owner.at, self.last_epoch[index]);
        assert!(last < at.epoch, "INV-01: {at:?} is opened after epoch {last}");
        self.last_epoch[index] = at.epoch;
        self.begin(index, at, Lifecycle::InUse(Box::new(slot)));
    }

    /// A block is closed.
    pub fn remove(&mut self, index: usize) -> Option<Box<BlockSlot>> {
        self.get(index)?;
        match self.end(index) {
            Lifecycle::InUse(slot) => Some(slot),
            Lifecycle::Free | Lifecycle::Retained(_) => unreachable!("looked up just now"),
        }
    }

    /// A block that was closed is retained.
    pub fn retain(&mut self, index: usize, block: RetainedBlock) {
        let at = block.owner.at;
        self.begin(index, at, Lifecycle::Retained(Box::new(block)));
    }

    /// A retained block is freed.
    pub fn remove_retained(&mut self, index: usize) -> Option<Box<RetainedBlock>> {
        self.retained(index)?;
        match self.end(index) {
            Lifecycle::Retained(block) => Some(block),
            Lifecycle::Free | Lifecycle::InUse(_) => unreachable!("looked up just now"),
        }
    }

    /// A free block is held from now on.
    fn begin(&mut self, index: usize, at: BlockAt, life: Lifecycle) {
        let before = std::mem::replace(&mut self.lives[index], life);
        let free = matches!(before, Lifecycle::Free);
        assert!(free, "INV-01, INV-02: {at:?} is held, and its block is not free");
        self.held.take(self.lives[index].capacity());
    }

    /// A held block is free from now on.
    fn end(&mut self, index: usize) -> Lifecycle {
        let life = std::mem::take(&mut self.lives[index]);
        self.held.give(life.capacity());
        life
    }
}
