//! Memory of sealed blocks that clients of the same machine map.
//!
//! A mapped block is replaced by an immutable copy of its bytes (`Shared`). When the block is freed, the copy
//! is freed too, but its pages stay while any client maps them: they are *owed*, and tracked here. The next
//! owner's memory is new either way.

use super::blocks::Blocks;
use super::{Shard, ShardConfig};
use honeycomb_block::Shared;
use honeycomb_types::limits::OWED_PERCENT_MAX;
use honeycomb_types::{BlockAt, JobId};
use std::io;

/// A copy of a freed block that clients may still map, and the job that owned it.
struct OwedCopy {
    job: JobId,
    copy: Shared,
}

/// The copies of freed blocks of a shard.
#[derive(Default)]
pub(super) struct LentCopies(Vec<OwedCopy>);

impl LentCopies {
    /// A block is freed: from now on its job owes the mapped copy.
    pub fn owe(&mut self, job: JobId, copy: Shared) {
        if copy.is_lent() {
            self.0.push(OwedCopy { job, copy });
        }
    }
}

/// The parts of a shard that lend memory to clients.
pub struct Lending<'a> {
    config: &'a ShardConfig,
    blocks: &'a mut Blocks,
    lent: &'a mut LentCopies,
}

impl Shard {
    /// Its memory that clients map.
    pub fn lending(&mut self) -> Lending<'_> {
        let Shard { config, blocks, lent, .. } = self;
        Lending { config, blocks, lent }
    }
}

impl Lending<'_> {
    /// The copy that clients map of this block, if there is one.
    pub fn shared(&self, at: BlockAt) -> Option<&Shared> {
        let slot = self.blocks.get(self.blocks.index(at.block)?)?;
        slot.shared.as_ref().filter(|_| slot.owner.at == at)
    }

    /// Replaces a sealed block's bytes by a copy. A block that was freed meanwhile needs none.
    pub fn freeze(&mut self, at: BlockAt, copy: Shared) -> io::Result<()> {
        if let Some(slot) = self.blocks.at(at)
            && slot.shared.is_none()
        {
            if !slot.residency.is_plain() {
                return Err(io::Error::other("the block is being written to a disk"));
            }
            let (copied, final_) = (copy.len(), slot.is_final());
            assert_ne!(final_, Some(false), "INV-23: {copied} bytes of an open block are shared");
            slot.backing.freeze(&copy)?;
            slot.shared = Some(copy);
        }
        Ok(())
    }

    /// Bytes of freed blocks that are still mapped, of all jobs.
    pub fn owed(&mut self) -> u64 {
        self.lent.0.retain(|owed| owed.copy.is_lent());
        self.lent.0.iter().map(|owed| owed.copy.len() as u64).sum()
    }

    /// Why this job can get no more memory to map for now, if so: the mapped part of freed blocks has reached
    /// this shard's limit.
    pub fn overdrawn(&mut self, job: JobId) -> Option<String> {
        let all = self.owed();
        let bound =
            self.config.frames as u64 * self.config.block_size as u64 / 100 * OWED_PERCENT_MAX;
        if all <= bound {
            return None;
        }
        let own = self.lent.0.iter().filter(|owed| owed.job == job);
        let own: u64 = own.map(|owed| owed.copy.len() as u64).sum();
        Some(format!(
            "{all} bytes of freed blocks are still mapped, {own} of them by this job's readers; \
             the limit is {bound}, {OWED_PERCENT_MAX} % of the shard's memory"
        ))
    }
}
