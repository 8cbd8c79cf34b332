//! Blocks of extents in the reference model: which one is chosen, and when one is freed.

use super::{CatalogModel, Outcome, Verdict, agree, require};
use honeycomb_catalog::{CatalogError, Effect as Order, Reply};
use honeycomb_types::limits::LARGE_FRACTION;
use honeycomb_types::{BlockAt, BlockId, JobId, StructureId};
use std::collections::BTreeSet;

impl CatalogModel {
    /// Whether a structure has extents in a block.
    pub fn holds_extents(&self, structure: StructureId, at: BlockAt) -> bool {
        let found = self.cluster.find(structure);
        found.is_some_and(|(j, f)| self.cluster.jobs[j].files[f].extents.contains(&at))
    }

    /// A client needs space for an extent, and was refused by some blocks; with 0 bytes it requests
    /// all blocks.
    pub(super) fn extents(
        &mut self,
        job: JobId,
        structure: StructureId,
        bytes: u64,
        full: &[BlockId],
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        let j = self.job(job);
        let Some((_, f)) = self.cluster.find(structure) else {
            return require(reply.is_err(), || format!("{structure} is gone, and gave a block"));
        };
        let file = &self.cluster.jobs[j].files[f];
        let block = self.cluster.block.0;
        let used = |at: &BlockAt| self.cluster.used.get(at).copied().unwrap_or_default();
        // In a lower tier, or on its way there, it accepts nothing.
        let stays = |at: &BlockAt| {
            let here = self.cluster.tiers.place(*at) == Default::default();
            here && self.cluster.takes_blocks(at.block.server())
        };
        let fits =
            |at: &&BlockAt| stays(at) && used(at) + bytes <= block && !full.contains(&at.block);
        // The fullest, so that the others become empty.
        let best = file.extents.iter().filter(fits).max_by_key(|at| (used(at), at.block)).copied();
        let expected: Outcome<()> = match best {
            _ if bytes > block / LARGE_FRACTION => Err("InvalidArgument"),
            None if bytes > 0 => self.cluster.may_take(j, &file.counts, (1, self.cluster.whole())),
            _ => Ok(()),
        };
        agree("a question for extents", reply, &expected)?;
        let Ok(Reply::Extents(entries)) = reply else { return Ok(()) };
        let told: BTreeSet<BlockAt> = entries.iter().map(|entry| entry.at).collect();
        let file = &mut self.cluster.jobs[j].files[f];
        if bytes == 0 {
            let due = &file.extents;
            return require(told == *due, || format!("extents are in {due:?}, not {told:?}"));
        }
        let right = told.len() == 1 && best.is_none_or(|best| told.contains(&best));
        require(right, || format!("{told:?} was given for extents, and {best:?} is the fullest"))?;
        file.extents.extend(told);
        Ok(())
    }

    /// One of them is empty and accepts no more.
    pub(super) fn retire_extents(
        &mut self,
        structure: StructureId,
        at: BlockAt,
        reply: &Result<Reply, CatalogError>,
        orders: &[Order],
    ) -> Verdict {
        self.cluster.hear(at.block.server());
        agree("the end of a block of extents", reply, &Ok::<(), _>(()))?;
        let freed = |o: &Order| matches!(o, Order::FreeBlock { at: freed, .. } if *freed == at);
        require(orders.iter().any(freed), || format!("{at:?} is empty and is not freed"))?;
        let (j, f) = self.cluster.find(structure).expect("the structure was just found");
        self.cluster.jobs[j].files[f].extents.remove(&at);
        self.cluster.free(vec![at]);
        Ok(())
    }
}
