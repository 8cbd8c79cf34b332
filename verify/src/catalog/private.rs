//! Private blocks of large appends in the reference model.

use super::{CatalogModel, Verdict, agree, require};
use honeycomb_catalog::{CatalogError, Effect as Order, Reply};
use honeycomb_types::{BlockAt, StructureId};

impl CatalogModel {
    /// A client has a large append for a file.
    pub(super) fn begin_append(
        &mut self,
        structure: StructureId,
        bytes: u64,
        reply: &Result<Reply, CatalogError>,
        orders: &[Order],
    ) -> Verdict {
        let Some(place) = self.cluster.find(structure) else {
            return require(reply.is_err(), || format!("{structure} is gone, and gave a block"));
        };
        let units = self.cluster.private_units(bytes);
        let expected = self.cluster.beginning(place, bytes);
        let expected = self.or_waits(expected, reply, orders, (place.0, (1, units)));
        agree("a request for a private block", reply, &expected)?;
        if let Ok(Reply::Grown { entry, .. }) = reply {
            self.cluster.begun(place, entry.at);
        }
        Ok(())
    }

    /// A client commits its append.
    pub(super) fn commit_append(
        &mut self,
        structure: StructureId,
        first: BlockAt,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        let Some(place) = self.cluster.find(structure) else {
            return require(reply.is_err(), || format!("{structure} is gone, and was appended to"));
        };
        agree("the commit of an append", reply, &self.cluster.commit_append(place, first))
    }

    /// Private blocks that were freed because nothing was written to them.
    pub(super) fn end_idle(&mut self, orders: &[Order]) -> Verdict {
        let freed = orders.iter().filter_map(|order| match order {
            Order::FreeBlock { at, .. } => Some(*at),
            _ => None,
        });
        self.cluster.end_idle(&freed.collect::<Vec<_>>())
    }
}
