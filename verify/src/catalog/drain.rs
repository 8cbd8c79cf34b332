//! Draining servers in the reference model.

use super::{CatalogModel, Verdict, agree};
use honeycomb_catalog::{CatalogError, DrainState, Reply};
use honeycomb_types::ServerId;

impl CatalogModel {
    pub(super) fn drain(
        &mut self,
        address: &str,
        cancel: bool,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        let known = self.addresses.iter().find(|(_, (known, _))| known == address);
        let expected = match (known.map(|(id, _)| *id), cancel) {
            (None, _) => Err("UnknownAddress"),
            (Some(server), true) => {
                self.cluster.cancel_drain(server);
                Ok(())
            }
            (Some(server), false) => self.cluster.drain(server),
        };
        agree("a server that is taken out", reply, &expected)
    }

    /// A server has a new connection, on which it has no orders yet.
    pub(super) fn drain_anew(&mut self, server: ServerId) {
        match self.cluster.drain_state(server) {
            DrainState::Released => {
                self.cluster.drains.insert(server, DrainState::Draining);
            }
            DrainState::Recalled => {
                self.cluster.drains.remove(&server);
            }
            DrainState::Serving | DrainState::Draining => {}
        }
    }
}
