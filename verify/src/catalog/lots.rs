//! Room that servers lend, in the reference model: what a controller shard may give out follows from
//! what servers have said and from what it has asked them for (INV-40).

use super::{CatalogModel, Verdict, agree, require};
use honeycomb_catalog::{CatalogError, Reply};
use honeycomb_types::ServerId;

impl CatalogModel {
    /// A server says what it lends, by core; nothing when it could not do what it was asked.
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
        // Before it has told which blocks it holds nobody can say what is left of it.
        if self.cluster.away.contains(&server) {
            self.told_lots.insert(server, lent);
            return Ok(());
        }
        self.cluster.lent.insert(server, lent);
        Ok(())
    }

    /// It has told which blocks it holds.
    pub(super) fn lent_again(&mut self, server: ServerId) {
        if let Some(lent) = self.told_lots.remove(&server) {
            self.cluster.lent.insert(server, lent);
        }
    }

    /// A server is asked to lend so much: what is less is given up at once, and none of it is out.
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
