//! Memory of sealed blocks that clients of the same machine map.
//!
//! A block that is mapped has a copy of its bytes in its place that nobody can change (`Shared`).
//! When the block is freed the copy goes too, but its pages stay for as long as somebody maps them:
//! they are owed, and looked after here. The next owner's memory is new either way.

use super::Shard;
use honeycomb_block::Shared;
use honeycomb_types::limits::OWED_PERCENT_MAX;
use honeycomb_types::{BlockAt, JobId};
use std::io;

/// A copy of a block that was freed, which somebody may still map, and the job that had it.
pub(super) struct Owed {
    job: JobId,
    copy: Shared,
}

impl Shard {
    /// What a client maps of this block, once there is something.
    pub fn shared(&self, at: BlockAt) -> Option<&Shared> {
        let slot = self.slots[self.index(at.block)?].as_deref()?;
        slot.shared.as_ref().filter(|_| slot.owner.at == at)
    }

    /// Puts a copy of a sealed block's bytes in its place. A block that was freed meanwhile needs none.
    pub fn freeze(&mut self, at: BlockAt, copy: Shared) -> io::Result<()> {
        if let Some(slot) = self.slot_at(at)
            && slot.shared.is_none()
        {
            if !slot.place.is_plain() {
                return Err(io::Error::other("the block is being written to a disk"));
            }
            slot.backing.freeze(&copy)?;
            slot.shared = Some(copy);
        }
        Ok(())
    }

    /// The block is freed: what is mapped of it is owed by its job from now on.
    pub(super) fn owe(&mut self, job: JobId, copy: Shared) {
        if copy.is_lent() {
            self.owed.push(Owed { job, copy });
        }
    }

    /// Bytes of freed blocks that are still mapped, of all jobs.
    pub fn owed(&mut self) -> u64 {
        self.owed.retain(|owed| owed.copy.is_lent());
        self.owed.iter().map(|owed| owed.copy.len() as u64).sum()
    }

    /// Why nothing more is handed out for now to this job, if so: as much is mapped of freed blocks
    /// as this shard may owe.
    pub fn overdrawn(&mut self, job: JobId) -> Option<String> {
        let all = self.owed();
        let bound =
            self.config.frames as u64 * self.config.block_size as u64 / 100 * OWED_PERCENT_MAX;
        if all <= bound {
            return None;
        }
        let own = self.owed.iter().filter(|owed| owed.job == job);
        let own: u64 = own.map(|owed| owed.copy.len() as u64).sum();
        Some(format!(
            "{all} bytes of freed blocks are still mapped, {own} of them by this job's readers; the \
             limit is {bound}, {OWED_PERCENT_MAX} % of the shard's memory"
        ))
    }
}
