//! Reconnection of servers: after a restart of the controller, or over a new connection.
//!
//! The log records the owner of each block; servers report the blocks that they hold. Where the two differ:
//!
//! | Owned by the log | Held by the server | Then |
//! | --- | --- | --- |
//! | yes | yes | it stays; seal, usage, taken items and permissions are updated |
//! | yes | no | it is opened (in a lower tier if memory is full): frees are logged first, so it was not open |
//! | retained for flush | yes | it stays retained, and its server receives the request for its part again |
//! | retained for flush | no | it has no part: it was never open |
//! | no | named as its successor by an owned block | a grant that the log has lost: it is adopted |
//! | no | yes | it is freed, once every server has reported the grants of its blocks |
//! | no | no | it is free |
//!
//! No lease ends until all members are back, or are lost after a silence of `Config::server_loss_ms`, because
//! renewals could not be received before. Every prefix then begins a full lease (INV-27).

use crate::growth::Position;
use crate::kinds::KindSet;
use crate::pool::{Presence, SlotOwner};
use crate::structures::Granted;
use crate::tombstones::Cause;
use crate::{Catalog, CatalogError, Effect, HeldBlock, Loss, NewServer, Reply};
use hashbrown::HashSet;
use honeycomb_types::limits::SERVER_SILENCE;
use honeycomb_types::{BlockAt, BlockId, Bug, MoveId, Router, ServerId, StructureId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Awaited servers, and the reports of those that reconnected.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    servers: BTreeSet<ServerId>,
    /// Blocks reported by servers that have not reported all of theirs.
    reported: BTreeMap<ServerId, HashSet<BlockId>>,
    /// Reported blocks that no structure is known to own.
    unowned: Vec<HeldBlock>,
    /// Queues with blocks that were reported: their tails are sent the number of items ahead once all servers
    /// of the queue have reported, and no more than once before.
    queues: BTreeSet<StructureId>,
}

impl Catalog {
    /// Whether members from before a restart are still awaited.
    pub fn recovering(&self) -> bool {
        !self.awaited.servers.is_empty()
    }

    /// Members from before a restart that are still awaited.
    pub fn awaited(&self) -> impl Iterator<Item = ServerId> + '_ {
        self.awaited.servers.iter().copied()
    }

    /// Whether this member from before a restart is still awaited.
    pub fn is_awaited(&self, server: ServerId) -> bool {
        self.awaited.servers.contains(&server)
    }

    /// Whether a reconnected server has not reported all of its blocks.
    pub(crate) fn is_telling(&self, server: ServerId) -> bool {
        self.awaited.reported.contains_key(&server)
    }

    /// Marks every server as disconnected, just after the recovery of the catalog.
    pub(crate) fn await_servers(&mut self) {
        self.awaited.servers = self.pool.servers().map(|(id, _)| id).collect();
        self.watch_silence();
    }

    pub(crate) fn rejoin_server(
        &mut self,
        new: NewServer<'_>,
        member: ServerId,
    ) -> Result<Reply, CatalogError> {
        let same = self.pool.server(member).is_some_and(|server| {
            *server.address == *new.address
                && server.incarnation == new.incarnation
                && server.shards() == new.shards
                && server.blocks_per_shard() == new.blocks_per_shard
                && *server.tiers == *new.tiers
        });
        if !same || self.block_size != new.block_size {
            return Err(CatalogError::UnknownServer { server: member });
        }
        self.check_kinds(new.kinds, &[member])?;
        self.announce_kinds(new.kinds);
        let server = self.pool.server_mut(member).expect("looked up just now");
        (server.flush, server.flush_root) = (!new.flush_root.is_empty(), new.flush_root.into());
        server.kinds = KindSet::of(new.kinds);
        // Until it has reported its blocks, it receives no blocks, demotions or promotions: its report may be
        // older than those, and would undo them (INV-42).
        if server.presence == Presence::Here && !Bug::DemotedBeforeReport.active() {
            server.presence = Presence::Suspected;
        }
        self.drain_anew(member);
        self.awaited.reported.insert(member, HashSet::new());
        self.heard_from(member);
        self.awaited.unowned.retain(|held| held.at.block.server() != member);
        Ok(Reply::Joined(member))
    }

    pub(crate) fn inventory(
        &mut self,
        server: ServerId,
        held: &[HeldBlock],
        last: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        self.heard_from(server);
        let Some(reported) = self.awaited.reported.get_mut(&server) else {
            return Err(CatalogError::UnknownServer { server });
        };
        let own = |held: &&HeldBlock| held.at.block.server() == server;
        reported.extend(held.iter().filter(own).map(|held| held.at.block));
        for held in held.iter().filter(own) {
            self.found_capacity(held.at, held.capacity);
            self.pool.found(held.at, held.tiers);
        }
        let mut open: Vec<HeldBlock> = held.iter().filter(own).copied().collect();
        open.append(&mut self.awaited.unowned);
        // The adoption of one block may determine the owner of another, along the whole successor list.
        loop {
            let before = open.len();
            open.retain(|held| !self.reconcile(held, effects));
            if open.is_empty() || open.len() == before {
                break;
            }
        }
        self.awaited.unowned = open;
        if last {
            self.returned(server, effects);
        }
        Ok(Reply::Done)
    }

    /// A server reports the capacity of a block. The log does not record it, and the last answer of a lost
    /// connection may not have arrived.
    fn found_capacity(&mut self, at: BlockAt, bytes: u64) {
        if Bug::CapacityForgotten.active() {
            return;
        }
        let units = self.units().capacity_for(bytes);
        let Some((s, before, units)) = self.pool.found_capacity(at, units) else { return };
        let (j, before, units) = (self.structures[s].job, u64::from(before), u64::from(units));
        if units > before {
            self.units_found(j, s, units - before);
        } else if units < before {
            self.units_went(j, s, before - units);
        }
    }

    /// Updates one block that a server holds, if a structure owns it.
    fn reconcile(&mut self, held: &HeldBlock, effects: &mut Vec<Effect>) -> bool {
        if self.is_kept(held.at) {
            return true; // `returned` requests its part.
        }
        let Some(SlotOwner::By(s)) = self.pool.held(held.at) else { return false };
        if self.structures[s].id != held.structure {
            return false;
        }
        if let Some((_, change)) = self.pool.usage(held.at, held.bytes_used) {
            let j = self.structures[s].job;
            self.accrue(j);
            let job = &mut self.jobs[j];
            job.bytes_used = job.bytes_used.saturating_add_signed(change);
        }
        let node = &self.dag.nodes[self.structures[s].prefix];
        if held.generation < node.generation {
            let (server, prefix) = (held.at.block.server(), node.id);
            effects.push(Effect::SetGeneration { server, prefix, generation: node.generation });
        }
        if !self.structures[s].router.grows() {
            return true;
        }
        // Pre-allocated, as far as the log knows, and in use: the log has lost its grant. Its report waits
        // until its predecessor names it.
        let news = held.sealed.is_some() || held.successor.is_some() || held.taken != (0, 0);
        let spare = self.structures[s].growth.iter().flat_map(|growth| &growth.spare);
        if news && spare.copied().any(|block| block == held.at.block) {
            return false;
        }
        if let Some(successor) = held.successor.filter(|_| self.ends_with(s, held.at)) {
            if self.pool.server(successor.block.server()).is_none() {
                // The log has lost that a block followed, and the server of that block is lost too.
                self.lose_with(s, successor.block.server(), effects);
                return true;
            }
            self.adopt(s, successor);
        }
        // Known facts are repeated without effect; contradictions were refused the first time.
        if let Some(seal) = held.sealed {
            let _ = self.seal(held.structure, held.at, seal, effects);
        }
        if self.structures.get(s).is_some_and(|structure| structure.queue.is_some()) {
            if held.taken != (0, 0) {
                let (items, bytes) = held.taken;
                let _ = self.queue_taken(held.structure, held.at, items, bytes, effects);
            }
            self.awaited.queues.insert(held.structure);
        }
        true
    }

    /// Whether a structure's successor list ends with this block, as far as the log knows.
    fn ends_with(&self, s: u32, at: BlockAt) -> bool {
        let structure = &self.structures[s];
        let granted = structure.growth.as_ref().map_or(0, |growth| growth.granted.len());
        let last = matches!(structure.position(at.block), Some(Position::Chain(k)) if k == granted);
        last && !structure.sealed
    }

    fn lose_with(&mut self, s: u32, server: ServerId, effects: &mut Vec<Effect>) {
        let n = self.structures[s].prefix;
        self.dag.nodes[n].data_lost = true;
        self.dag.dirty.mark(n);
        let path: Arc<str> = self.dag.path_of(n).into();
        // Its address is no longer known.
        let server = format!("number {}", server.0).into();
        self.end_structure(s, Cause::Lost { server, how: Loss::Reset }, &path, effects);
    }

    /// The block at the end of the successor list names a successor that is not in the log.
    fn adopt(&mut self, s: u32, successor: BlockAt) {
        let structure = &self.structures[s];
        // A pre-allocated block belongs to the structure already.
        let spare = structure.growth.iter().flat_map(|growth| &growth.spare);
        let spare = spare.copied().any(|block| self.pool.at(block) == successor)
            && !Bug::SpareNotAdopted.active();
        if !spare && !self.pool.adopt(successor, s) {
            return;
        }
        let tail = structure.entries.len() - 1;
        self.structures.changes(s, tail);
        let growth = self.structures[s].growth.get_or_insert_default();
        growth.spare.retain(|block| *block != successor.block);
        growth.granted.push_back(Granted::empty(successor.block));
        if !spare {
            let units = self.pool.units(successor.block).into();
            self.units_found(self.structures[s].job, s, units);
        }
    }

    /// A server has reported all of its blocks.
    fn returned(&mut self, server: ServerId, effects: &mut Vec<Effect>) {
        let reported = self.awaited.reported.remove(&server).unwrap_or_default();
        self.heard_from(server);
        for (at, s) in self.pool.returned(server, &reported) {
            let structure = &self.structures[s];
            if structure.pending().iter().any(|mv| mv.way.takes_anew() && mv.target == at.block) {
                continue; // It is opened with the other moves.
            }
            let demotion = structure.attributes_of(at.block).demotion;
            if demotion.begins_below() && !self.is_journaled(structure.prefix) {
                self.pool.place_unopened(at.block);
            }
            let structure = &self.structures[s];
            let entry = structure.entries.iter().position(|entry| entry.block == at.block);
            let (start, end) = match (structure.router, entry) {
                (Router::HashRange, Some(i)) => (structure.entries[i].start, structure.end(i)),
                _ => (0, u64::MAX),
            };
            effects.push(self.open_effect(s, at.block, (start, end), MoveId::NONE));
        }
        self.imports(server, effects);
        self.resume_parts(server, &reported, effects);
        self.copies_anew(server, effects);
        // It is no longer awaited: its silence counts from now on.
        if !Bug::SilenceForgotten.active() {
            self.silence = self.silence.min(self.now + SERVER_SILENCE);
        }
        let was = self.recovering();
        self.awaited.servers.remove(&server);
        self.tell_queues(effects);
        self.settle_unowned(was, effects);
    }

    /// Sends the number of items ahead to the tails of queues that wait for no server any more.
    fn tell_queues(&mut self, effects: &mut Vec<Effect>) {
        for id in std::mem::take(&mut self.awaited.queues) {
            if let Some(s) = self.structures.find(id) {
                self.tell_ahead(s, effects);
            }
        }
    }

    /// A structure has a block less. If its tail waits only for the server of that block, it waits no
    /// longer.
    pub(crate) fn awaits_fewer(&mut self, s: u32, effects: &mut Vec<Effect>) {
        if Bug::AheadKeptWaiting.active() {
            return;
        }
        if self.awaited.queues.remove(&self.structures[s].id) {
            self.tell_ahead(s, effects);
        }
    }

    /// Whether a queue has blocks whose taken items are not reported yet: its tail receives the number of
    /// items ahead later.
    pub(crate) fn awaits_blocks_of(&mut self, s: u32) -> bool {
        let Awaited { servers, reported, queues, .. } = &mut self.awaited;
        if servers.is_empty() && reported.is_empty() || Bug::AheadToldEarly.active() {
            return false;
        }
        let away = |block: BlockId| {
            servers.contains(&block.server()) || reported.contains_key(&block.server())
        };
        let structure = &self.structures[s];
        structure.blocks().any(away) && {
            queues.insert(structure.id);
            true
        }
    }

    /// Lost servers are no longer awaited.
    pub(crate) fn servers_left(&mut self, ids: &[ServerId], effects: &mut Vec<Effect>) {
        let was = self.recovering();
        for id in ids {
            self.awaited.servers.remove(id);
            self.awaited.reported.remove(id);
        }
        self.awaited.unowned.retain(|held| !ids.contains(&held.at.block.server()));
        // A queue survives the loss of a server that held only the target of a move.
        self.tell_queues(effects);
        self.settle_unowned(was, effects);
    }

    /// Frees unowned blocks, once no server is awaited that might report their owners.
    fn settle_unowned(&mut self, was_recovering: bool, effects: &mut Vec<Effect>) {
        if self.recovering() {
            return;
        }
        for held in std::mem::take(&mut self.awaited.unowned) {
            if self.pool.unowned(held.at) {
                effects.push(Effect::FreeBlock { server: held.at.block.server(), at: held.at });
            }
        }
        if was_recovering {
            self.floor = self.now;
            self.resume_commits(effects);
        }
    }
}
