//! Borrowed blocks in the reference model: a controller shard may allocate blocks according to the
//! reports of servers and its own requests to them (INV-40).

use super::{CatalogModel, Verdict, agree, require};
use honeycomb_catalog::{CatalogError, Reply};
use honeycomb_types::ServerId;

impl CatalogModel {
    /// A server reports its lent blocks, by core; empty if it could not lend as many as requested.
    pub(super) fn lent(
        &mut self,
        server: ServerId,
        lent: &[u32],
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        let known = self.cluster.servers.contains_key(&server);
        let expected = if known { Ok(()) } else { Err("UnknownServer") };
        agree("what a server lends (INV-40)", reply, &expected)?;
        if !known || lent.is_empty() {
            return Ok(());
        }
        let lent: Vec<u64> = lent.iter().map(|&lent| lent.into()).collect();
        // Before its report of held blocks, the rest is unknown.
        if self.cluster.away.contains(&server) {
            self.told_lots.insert(server, lent);
            return Ok(());
        }
        self.cluster.lent.insert(server, lent);
        Ok(())
    }

    /// It has reported its held blocks.
    pub(super) fn lent_again(&mut self, server: ServerId) {
        if let Some(lent) = self.told_lots.remove(&server) {
            self.cluster.lent.insert(server, lent);
        }
    }

    /// A server is requested to lend this many: a decrease takes effect at once, and none of the
    /// returned blocks is in use.
    pub(super) fn asks_for_lots(&mut self, server: ServerId, lots: &[u32]) -> Verdict {
        let mut out = vec![0; lots.len()];
        self.cluster.out(server).for_each(|at| out[at.block.shard().0 as usize] += 1);
        let Some(lent) = self.cluster.lent.get_mut(&server) else {
            return Err(format!("{server} is asked for lots, and lends none (INV-40)"));
        };
        let pays = out.iter().zip(lots).all(|(out, lots)| out <= lots);
        require(pays, || format!("{server} is given back {lots:?}, and {out:?} are out (INV-40)"))?;
        for (lent, &lots) in lent.iter_mut().zip(lots) {
            *lent = (*lent).min(lots.into());
        }
        Ok(())
    }
}
