//! Reports of servers about the blocks of files and queues, in the reference model: growth, seals, items
//! taken, and blocks that are no longer needed.

use super::{CatalogModel, Place, Verdict, agree, cause, require};
use honeycomb_catalog::{CatalogError, Effect as Order, Reply, Seal};
use honeycomb_types::{BlockAt, StructureId};

impl CatalogModel {
    /// The file or queue that a server refers to, if it exists and has had this block.
    pub(super) fn block(
        &mut self,
        structure: StructureId,
        at: BlockAt,
        reply: &Result<Reply, CatalogError>,
    ) -> Result<Option<Place>, String> {
        self.cluster.hear(at.block.server());
        let found = self.cluster.find(structure);
        let found = found.filter(|&place| self.cluster.file(place).lists(at));
        // A seal or a free of a block that was taken back meanwhile has no effect.
        let known = found.is_some() || self.cluster.quarantined.contains(&at);
        require(known || reply.is_err(), || {
            format!("{structure} is gone, and its block was answered {}", cause(reply))
        })?;
        Ok(found)
    }

    pub(super) fn grow(
        &mut self,
        structure: StructureId,
        at: BlockAt,
        reply: &Result<Reply, CatalogError>,
        orders: &[Order],
    ) -> Verdict {
        let Some(place) = self.block(structure, at, reply)? else { return Ok(()) };
        let expected = self.cluster.growth(place, at);
        let asked = (1, self.capacity_after(structure, at));
        let expected = self.or_waits(expected, reply, orders, (place.0, asked));
        agree("growth", reply, &expected)?;
        let (Ok(Reply::Grown { version, entry }), Ok(growth)) = (reply, expected) else {
            return Ok(());
        };
        require(version.0 == growth.version, || {
            format!("growth reserved version {version}, not {} (INV-17)", growth.version)
        })?;
        let fresh = !self.cluster.file(place).lists(entry.at);
        let due = growth.successor;
        require(due.map_or(fresh, |known| known == entry.at), || {
            format!("growth gave {:?}, where {due:?} follows (INV-20)", entry.at)
        })?;
        self.cluster.grow(place, at, entry.at);
        Ok(())
    }

    pub(super) fn seal(
        &mut self,
        structure: StructureId,
        at: BlockAt,
        seal: Seal,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        let Some(place) = self.block(structure, at, reply)? else { return Ok(()) };
        agree("a seal", reply, &self.cluster.seal(place, at, seal))
    }

    pub(super) fn taken(
        &mut self,
        structure: StructureId,
        at: BlockAt,
        items: u64,
        bytes: u64,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        let Some(place) = self.block(structure, at, reply)? else { return Ok(()) };
        agree("a report of taken items", reply, &self.cluster.take(place, at, items, bytes))
    }

    pub(super) fn retire(
        &mut self,
        structure: StructureId,
        at: BlockAt,
        reply: &Result<Reply, CatalogError>,
        orders: &[Order],
    ) -> Verdict {
        if self.holds_extents(structure, at) {
            return self.retire_extents(structure, at, reply, orders);
        }
        let Some(place) = self.block(structure, at, reply)? else { return Ok(()) };
        let expected = self.cluster.retire(place, at);
        agree("a retirement", reply, &expected)?;
        let freed = |o: &Order| matches!(o, Order::FreeBlock { at: freed, .. } if *freed == at);
        require(expected.is_err() || orders.iter().any(freed), || {
            format!("{at:?} was retired and is not freed")
        })
    }

    /// The last block of the chain is returned, unless it already has a successor.
    pub(super) fn give_back(
        &mut self,
        structure: StructureId,
        at: BlockAt,
        successor: BlockAt,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        let Some((j, f)) = self.block(structure, at, reply)? else { return Ok(()) };
        let file = &mut self.cluster.jobs[j].files[f];
        let follows =
            matches!(file.chain[..], [.., before, last] if (before, last) == (at, successor));
        let sealed = [at, successor].iter().any(|at| file.seals.contains_key(at))
            || file.linked.contains(&successor);
        let expected = if follows && !sealed { Ok(()) } else { Err("StaleBlock") };
        agree("the return of a successor", reply, &expected)?;
        if expected.is_ok() {
            let before = file.held();
            file.chain.pop();
            file.cancel_left();
            let after = file.held();
            self.cluster.free(before.difference(&after).copied());
        }
        Ok(())
    }
}
