//! Requests of blocks for other capacities.

use super::{Told, status_of};
use crate::world::World;
use honeycomb_catalog::{CatalogError, Command, Reply};
use honeycomb_server::{BlockMessage, Effect};
use honeycomb_structures::Capacity;
use honeycomb_types::{BlockAt, ServerId, StructureId};

impl World {
    /// A block requests a capacity of so many bytes, or has reduced its own to that, for the first time or
    /// `again` after servers were requested to lend blocks.
    pub(super) fn enlarge_asked(
        &mut self,
        server: ServerId,
        (structure, at, bytes): (StructureId, BlockAt, u64),
        again: bool,
    ) {
        let ix = server.controller() as usize;
        let before = self.controllers[ix].catalog.capacity_at(at).unwrap_or_default();
        let answer = match self.command(ix, Command::GrowBlock { structure, at, bytes }) {
            Ok(Reply::Capacity { bytes }) => {
                match bytes < before {
                    true => self.reach("capacity given back"),
                    false => self.reach("block grown in place"),
                }
                Capacity::Granted(bytes as usize)
            }
            Ok(other) => panic!("a larger capacity was answered with {other:?}"),
            Err(e) if !again && self.borrows(ix, &e) => {
                return self.park(server, Effect::Enlarge { structure, at, bytes });
            }
            Err(e) => {
                if matches!(e, CatalogError::OutOfMemory(_)) {
                    self.reach("larger capacity denied for memory");
                }
                Capacity::Denied(status_of(&e), e.to_string())
            }
        };
        self.tell_server(server, Told::Message(at, BlockMessage::Capacity(answer)));
    }
}
