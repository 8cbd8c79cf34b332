//! Draining servers.

use super::{Cluster, Outcome, Verdict, require};
use honeycomb_catalog::DrainState;
use honeycomb_types::{BlockAt, ServerId};

impl Cluster {
    pub fn drain_state(&self, server: ServerId) -> DrainState {
        self.drains.get(&server).copied().unwrap_or_default()
    }

    /// A server is to be drained: its pre-allocated, empty blocks are freed at once.
    pub fn drain(&mut self, server: ServerId) -> Outcome<()> {
        match self.drain_state(server) {
            DrainState::Serving => {}
            DrainState::Recalled => return Err("Recalled"),
            DrainState::Draining | DrainState::Released => return Ok(()),
        }
        let stays = |other: &ServerId| *other != server && !self.drains.contains_key(other);
        if !self.servers.keys().any(stays) {
            return Err("LastServer");
        }
        self.drains.insert(server, DrainState::Draining);
        self.cancel(|moving| moving.way.takes_anew() && moving.target.block.server() == server);
        self.give_back_spares();
        Ok(())
    }

    /// Pre-allocated and private blocks on draining servers are freed, once all servers have reported whether
    /// they were granted.
    pub fn give_back_spares(&mut self) {
        if !self.away.is_empty() {
            return;
        }
        let drains = &self.drains;
        let there = |at: &mut BlockAt| {
            drains.get(&at.block.server()).is_some_and(|&state| state == DrainState::Draining)
        };
        let files = self.jobs.iter_mut().flat_map(|job| &mut job.files);
        // A sealed file has none any more.
        let files = files.filter(|file| !file.sealed());
        let spares: Vec<BlockAt> = files.flat_map(|f| f.spare.extract_if(.., there)).collect();
        self.free(spares);
        let drains = self.drains.clone();
        self.end_private_on(|at| drains.get(&at.block.server()) == Some(&DrainState::Draining));
    }

    /// The drain is cancelled.
    pub fn cancel_drain(&mut self, server: ServerId) {
        match self.drain_state(server) {
            DrainState::Draining => drop(self.drains.remove(&server)),
            DrainState::Released => drop(self.drains.insert(server, DrainState::Recalled)),
            DrainState::Serving | DrainState::Recalled => {}
        }
    }

    /// The server has confirmed that it stays.
    pub fn stays(&mut self, server: ServerId) {
        if self.drain_state(server) == DrainState::Recalled {
            self.drains.remove(&server);
        }
    }

    /// One of its blocks is asked to leave.
    pub fn evacuates(&self, server: ServerId, at: BlockAt) -> Verdict {
        let draining = self.drain_state(server) == DrainState::Draining;
        let mut files = self.jobs.iter().flat_map(|job| &job.files);
        let held = files.any(|file| file.held().contains(&at));
        let there = at.block.server() == server && held;
        require(draining && there, || format!("{at:?} is asked to leave {server} (INV-46)"))
    }

    /// It is released, or asked to stay.
    pub fn release(&mut self, server: ServerId, stay: bool) -> Verdict {
        let state = self.drain_state(server);
        let due = if stay { DrainState::Recalled } else { DrainState::Draining };
        require(state == due, || {
            format!("{server} is {state:?} and is sent stay={stay} (INV-47)")
        })?;
        if !stay {
            let left = self.out(server).count();
            require(left == 0, || format!("{server} is released with {left} blocks (INV-47)"))?;
            self.drains.insert(server, DrainState::Released);
        }
        Ok(())
    }
}
