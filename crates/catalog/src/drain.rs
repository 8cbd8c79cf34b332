//! Draining of servers.
//!
//! A *draining* server receives no blocks (INV-46). When it has none, and none that awaits confirmation as
//! free, it is *released*: this controller shard permits it to leave. It leaves when every shard has released
//! it, and then has no data to lose. Until then its drain can be cancelled. A released server may already be
//! shutting down, so it receives blocks again only after it has confirmed that it stays.
//!
//! The log records that a server drains. It does not record the release: over a new connection the server is
//! not released, and the state is evaluated again.

use crate::error::blocks;
use crate::pool::Server;
use crate::relocate::Evacuation;
use crate::{Actor, Catalog, CatalogError, DrainState, Effect, Reply};
use honeycomb_types::ServerId;
use std::collections::{BTreeMap, BTreeSet};

/// Draining servers, and the progress of each.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    states: BTreeMap<ServerId, DrainState>,
    /// Servers whose pre-allocated blocks have not been returned.
    cluttered: BTreeSet<ServerId>,
    /// Pending evacuation messages to servers whose blocks leave; made on first use.
    pub(crate) evacuations: BTreeMap<ServerId, Evacuation>,
}

impl Drains {
    pub(crate) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    pub(crate) fn state(&self, id: ServerId) -> DrainState {
        self.states.get(&id).copied().unwrap_or_default()
    }
}

impl Catalog {
    /// Drains the server at this address, or cancels its drain.
    pub(crate) fn drain_server(
        &mut self,
        actor: Actor,
        address: &str,
        cancel: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        self.need_cluster(actor, "drain a server")?;
        let found = self.pool.servers().find(|(_, server)| *server.address == *address);
        let Some((id, _)) = found else {
            return Err(CatalogError::UnknownAddress { address: address.into() });
        };
        match cancel {
            true => self.cancel_drain(id, effects),
            false => self.begin_drain(id, effects),
        }
    }

    /// A server asks to be drained.
    pub(crate) fn leave_server(
        &mut self,
        id: ServerId,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        if self.pool.server(id).is_none() {
            return Err(CatalogError::UnknownServer { server: id });
        }
        self.heard_from(id);
        self.begin_drain(id, effects)
    }

    fn begin_drain(
        &mut self,
        id: ServerId,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        match self.drains.state(id) {
            DrainState::Serving => {}
            DrainState::Recalled => return Err(CatalogError::Recalled { server: id }),
            DrainState::Draining | DrainState::Released => return Ok(Reply::Done),
        }
        let stays = |other: ServerId| self.drains.state(other) == DrainState::Serving;
        if !self.pool.servers().any(|(other, _)| other != id && stays(other)) {
            let address = self.pool.address(id);
            return Err(CatalogError::LastServer { address });
        }
        self.drains.states.insert(id, DrainState::Draining);
        self.set_draining(id, true);
        self.drains.cluttered.insert(id);
        // Splits must choose other targets.
        for s in self.owners_on(id) {
            self.cancel_moves_to(s, id, effects);
        }
        Ok(Reply::Done)
    }

    fn owners_on(&self, id: ServerId) -> Vec<u32> {
        self.pool.server(id).map(|server| server.owners()).unwrap_or_default()
    }

    fn cancel_drain(
        &mut self,
        id: ServerId,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        match self.drains.state(id) {
            DrainState::Serving | DrainState::Recalled => {}
            DrainState::Draining => {
                self.drains.states.remove(&id);
                self.set_draining(id, false);
            }
            DrainState::Released => {
                self.drains.states.insert(id, DrainState::Recalled);
                self.pool.dirty.mark(id.0);
                effects.push(Effect::Release { server: id, stay: true });
            }
        }
        Ok(Reply::Done)
    }

    /// A server confirms that its drain was cancelled.
    pub(crate) fn server_stays(&mut self, id: ServerId) -> Result<Reply, CatalogError> {
        self.heard_from(id);
        if self.drains.state(id) == DrainState::Recalled {
            let empty = self.pool.server(id).is_some_and(Server::holds_nothing);
            assert!(empty, "INV-47: server {id} got blocks before it reported that it stays");
            self.drains.states.remove(&id);
            self.set_draining(id, false);
        }
        Ok(Reply::Done)
    }

    /// A server reconnected, and no message was sent over the new connection yet.
    pub(crate) fn drain_anew(&mut self, id: ServerId) {
        self.drains.evacuations.remove(&id);
        match self.drains.state(id) {
            DrainState::Released => drop(self.drains.states.insert(id, DrainState::Draining)),
            DrainState::Recalled => {
                self.drains.states.remove(&id);
                self.set_draining(id, false);
            }
            DrainState::Serving | DrainState::Draining => {}
        }
    }

    fn set_draining(&mut self, id: ServerId, draining: bool) {
        self.drains.evacuations.remove(&id);
        self.drains.cluttered.remove(&id);
        let server = self.pool.server_mut(id).expect("a server that drains is a member");
        server.draining = draining;
        self.pool.dirty.mark(id.0);
        // The share that the server lends changes with its availability.
        self.pool.stir(id);
    }

    /// Returns pre-allocated blocks without data. Not before all servers have reported the grants of their
    /// blocks: one of these blocks may be in use, and the log may have lost its grant (INV-47).
    fn clear_out(&mut self, id: ServerId, effects: &mut Vec<Effect>) {
        if self.recovering() || !self.drains.cluttered.remove(&id) {
            return;
        }
        for s in self.owners_on(id) {
            self.give_back_spares(s, id, effects);
        }
    }

    /// Sends evacuation requests to servers' blocks, and releases servers without blocks.
    pub(crate) fn go_on_draining(&mut self, effects: &mut Vec<Effect>) {
        let draining = self.drains.states.iter().filter(|(_, s)| **s == DrainState::Draining);
        for id in draining.map(|(&id, _)| id).collect::<Vec<ServerId>>() {
            self.clear_out(id, effects);
            if self.has_nothing(id) {
                self.drains.states.insert(id, DrainState::Released);
                self.drains.evacuations.remove(&id);
                effects.push(Effect::Release { server: id, stay: false });
            } else {
                self.evacuate(id, effects);
            }
        }
    }

    /// Whether the server has no block, and cannot report a block whose grant the log has lost (INV-47).
    fn has_nothing(&self, id: ServerId) -> bool {
        let known = !self.recovering() && !self.is_telling(id);
        let server = self.pool.server(id).expect("a server that drains is a member");
        known && !server.is_away() && server.holds_nothing() && !self.commits_flush_at(id)
    }

    /// Removes servers that ended from the draining ones.
    pub(crate) fn drains_left(&mut self, ids: &[ServerId]) {
        for id in ids {
            self.drains.states.remove(id);
            self.drains.evacuations.remove(id);
            self.drains.cluttered.remove(id);
        }
    }

    /// Whether the log has recorded that the server drains.
    pub(crate) fn is_drained_for_good(&self, id: ServerId) -> bool {
        matches!(self.drains.state(id), DrainState::Draining | DrainState::Released)
    }

    /// Whether the server was released.
    pub fn is_released(&self, id: ServerId) -> bool {
        self.drains.state(id) == DrainState::Released
    }

    /// Adopts the servers that the log recorded as draining.
    pub(crate) fn recover_drains(&mut self, draining: BTreeSet<ServerId>) {
        for id in draining {
            if let Some(server) = self.pool.server_mut(id) {
                server.draining = true;
                self.drains.states.insert(id, DrainState::Draining);
                self.drains.cluttered.insert(id);
            }
        }
    }

    /// The reasons for which a draining server still waits, for messages.
    pub(crate) fn drain_waits(&self, id: ServerId) -> Box<str> {
        match self.drains.state(id) {
            DrainState::Serving => return Box::default(),
            DrainState::Recalled => {
                return "its drain was cancelled and it has not confirmed this yet".into();
            }
            DrainState::Released => return "it is empty and stops".into(),
            DrainState::Draining => {}
        }
        let mut kinds = BTreeMap::<String, u64>::new();
        let (mut leaving, mut named, mut refused) = (0, 0, 0);
        for (at, s) in self.pool.allocated().filter(|(at, _)| at.block.server() == id) {
            match &self.structures[s] {
                _ if self.is_quarantined(s) => refused += 1,
                structure if structure.extents.contains(&at.block) => named += 1,
                _ if self.can_leave(at, s) => leaving += 1,
                structure => *kinds.entry(structure.kind.to_string()).or_default() += 1,
            }
        }
        let kinds = kinds.iter();
        let mut waits: Vec<String> = kinds
            .map(|(kind, &n)| format!("{} of kind {kind} until their leases expire", blocks(n)))
            .collect();
        if leaving > 0 {
            waits.push(match self.has_room_to_leave() {
                true => format!("{} moving to other servers", blocks(leaving)),
                false => format!(
                    "{} without room elsewhere: add a server or free memory",
                    blocks(leaving)
                ),
            });
        }
        if named > 0 {
            // Only the server knows any other reason of their wait; it reports that itself.
            waits.push(format!("{} of large values being copied to other servers", blocks(named)));
        }
        if refused > 0 {
            waits.push(format!(
                "{} of quarantined structures until you remove these",
                blocks(refused)
            ));
        }
        let kept = self.pool.server(id).map_or(0, |server| server.quarantined as u64);
        if kept > 0 {
            waits.push(format!("{} to be flushed or confirmed free", blocks(kept)));
        }
        if self.recovering() {
            waits.push("the controller was restarted and is waiting for its servers".into());
        }
        waits.join("; ").into()
    }

    /// INV-46 and INV-47: a released server holds nothing, and only members drain.
    pub(crate) fn check_drains(&self) -> Result<(), String> {
        for (id, server) in self.pool.servers() {
            let state = self.drains.state(id);
            if server.draining != (state != DrainState::Serving) {
                return Err(format!(
                    "server {id} is {state:?}, but draining is {}",
                    server.draining
                ));
            }
            let gone = matches!(state, DrainState::Released | DrainState::Recalled);
            if gone && !server.holds_nothing() {
                return Err(format!("server {id} is {state:?} and has blocks"));
            }
        }
        let stranger = self.drains.states.keys().find(|id| self.pool.server(**id).is_none());
        stranger.map_or(Ok(()), |id| Err(format!("server {id} drains, but is not a member")))
    }
}
