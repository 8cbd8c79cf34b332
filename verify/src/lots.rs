//! Memory that controller shards share: the blocks that servers lend to each, the requests that
//! wait for them, and their return (ADR 0021).

use crate::controller::{Question, SimController, TICK};
use crate::net::{Node, SERVERS};
use crate::owner::Making;
use crate::server::SHARDS;
use crate::world::{Event, World};
use honeycomb_catalog::{Actor, CatalogError, Command, Reply};
use honeycomb_env::Entropy;
use honeycomb_server::Effect;
use honeycomb_types::limits::FULL_PATIENCE;
use honeycomb_types::{BlockAt, BlockId, Epoch, ServerId, StructureId, Time};

/// One seed in this many has two controller shards.
const TWO_SHARDS: u64 = 5;

/// A request that found too few blocks, and is served once more after servers were requested to
/// lend.
pub enum Parked {
    /// A block's request, over this link.
    Asked(ServerId, (usize, u64), Effect),
    Question(Question),
    Making(Making),
}

/// The number of controller shards of a seed. It draws nothing from the run itself: the faults of a
/// seed with one shard are the same as before there were two.
pub fn controllers(seed: u64) -> usize {
    let two = Entropy::seeded(seed ^ 0x10_7500).below(TWO_SHARDS) == 0;
    1 + usize::from(two)
}

impl World {
    /// The blocks that a server lends to a controller shard when it joins; empty if there is only
    /// one shard.
    pub fn offers(&self, server: usize, ix: usize) -> Vec<u32> {
        match self.controllers.len() {
            1 => Vec::new(),
            _ => self.servers[server].lots.lent(ix as u16),
        }
    }

    /// A server is requested to lend this many in total; returns how many it lends then. The sum
    /// never exceeds its blocks (INV-40).
    pub fn lend(&mut self, server: usize, ix: usize, lots: &[u32]) -> Vec<u32> {
        let ledger = &mut self.servers[server].lots;
        let had = ledger.lent(ix as u16);
        let lent = ledger.set(ix as u16, lots).expect("the server has this core");
        if had.iter().zip(&lent).any(|(had, lent)| had < lent) {
            self.reach("lots lent");
        }
        if had.iter().zip(&lent).any(|(had, lent)| had > lent) {
            self.reach("lots given back");
        }
        if lent.iter().zip(lots).any(|(lent, lots)| lent < lots) {
            self.reach("lots that others have");
        }
        self.check_lots(server);
        lent
    }

    /// No core holds more blocks for a controller shard than it has lent to it, and the blocks lent
    /// to all shards exist (INV-40).
    pub fn check_lots(&mut self, server: usize) {
        if self.controllers.len() == 1 {
            return;
        }
        let sim = &self.servers[server];
        let units = sim.units();
        for core in 0..SHARDS {
            let lent = (0..self.controllers.len()).map(|ix| {
                let held = sim.shards[core as usize].reports().inventory();
                let ours = held.filter(|o| o.at.block.server().controller() as usize == ix);
                let held = ours.map(|o| units.capacity_for(o.capacity)).sum::<u32>();
                (sim.lots.lent(ix as u16)[core as usize], held)
            });
            let lent: Vec<(u32, u32)> = lent.collect();
            let sum: u32 = lent.iter().map(|(lent, _)| lent).sum();
            let all = units.units(sim.frames);
            if sum > all || lent.iter().any(|(lent, held)| held > lent) {
                let text = format!(
                    "core {core} of {} has {all} units; lent and held by controller shard are \
                     {lent:?} (INV-40)",
                    sim.address
                );
                return self.broken(text);
            }
        }
    }

    /// A server has reported the blocks that it lends.
    pub fn lent(&mut self, id: ServerId, lent: &[u32]) {
        let ix = id.controller() as usize;
        if self.controllers[ix].catalog.is_awaited(id) {
            self.reach("lots told by a server that came back");
        }
        if let Err(e) = self.command(ix, Command::Lent { server: id, lent }) {
            self.broken(format!("{id} lends {lent:?}, and is not believed: {e} (INV-40)"));
        }
        self.unpark(ix);
    }

    /// Whether a request was refused for lack of blocks, which servers have now been requested to
    /// lend.
    pub fn borrows(&mut self, ix: usize, refusal: &CatalogError) -> bool {
        let CatalogError::OutOfMemory(full) = refusal else { return false };
        if self.controllers.len() == 1 && self.below == 0 {
            return false;
        }
        let _ = self.command(ix, Command::ShortOf { units: full.asked as u32 });
        self.controllers[ix].catalog.awaits_room()
    }

    /// A block's request waits for blocks.
    pub fn park(&mut self, id: ServerId, effect: Effect) {
        let now = self.now;
        let controller = self.controller_of(id);
        if let Some(link) = controller.links.get(&id).copied() {
            controller.parked.push((now, Parked::Asked(id, link, effect)));
        }
    }

    /// Serves requests that waited for blocks, when no more blocks are expected, and those that waited for
    /// `FULL_PATIENCE`: a block that waits for its move holds memory.
    pub fn unpark(&mut self, ix: usize) {
        let now = self.now;
        let SimController { catalog, parked, .. } = &mut self.controllers[ix];
        let all = catalog.take_room_came() || !catalog.awaits_room();
        let ready = |(since, _): &mut (Time, Parked)| all || now.since(*since) >= FULL_PATIENCE;
        for (_, parked) in parked.extract_if(.., ready).collect::<Vec<_>>() {
            self.reach(match self.below {
                0 => "request that waited for lots",
                _ => "request that waited for blocks that go down",
            });
            match parked {
                Parked::Asked(id, link, effect) => {
                    // On another connection it has been sent again, or is obsolete.
                    if self.controllers[ix].links.get(&id) == Some(&link) {
                        self.asked(id, effect, true);
                    }
                }
                Parked::Question(question) => self.question(question, true),
                Parked::Making(making) => crate::owner::make(self, making, true),
            }
        }
    }

    /// Advances the controller in time.
    pub fn tick_controllers(&mut self) {
        self.schedule(TICK, Event::Tick(Node::Controller));
        for ix in 0..self.controllers.len() {
            if self.controllers[ix].alive {
                self.tick_controller(ix);
            }
        }
    }

    /// A random controller shard.
    pub fn some_controller(&mut self) -> usize {
        match self.controllers.len() {
            1 => 0,
            shards => self.rng.below(shards as u64) as usize,
        }
    }

    /// Controllers die: one shard alone, as if it were in its own process, or all of them.
    pub fn crash_controllers(&mut self) {
        let shards = self.controllers.len();
        let struck = if shards > 1 { self.rng.below(shards as u64 + 1) as usize } else { 0 };
        if struck < shards {
            return self.crash_controller(struck);
        }
        if self.controllers.iter().all(|controller| controller.alive) {
            self.fault("all controller shards");
            (0..shards).for_each(|ix| self.crash_controller(ix));
        }
    }

    /// After all messages have arrived, servers and catalog agree on the sealed blocks: a server
    /// that forgot a seal could not report it to a controller that lost it (INV-26, INV-48).
    pub fn judge_seals(&mut self) {
        for server in 0..SERVERS {
            let sim = &self.servers[server];
            if !sim.alive || !sim.members.iter().all(|member| member.ready) {
                continue;
            }
            for held in sim.shards.iter().flat_map(|shard| shard.reports().holdings()) {
                let at = BlockAt { block: BlockId(held.block), epoch: Epoch(held.epoch) };
                let catalog = &self.controllers[at.block.server().controller() as usize].catalog;
                let chain = catalog.chain(StructureId(held.structure)).unwrap_or_default();
                let known = chain.blocks.iter().find(|(listed, _)| *listed == at);
                let says = held.state != 0;
                if let Some((_, known)) = known.filter(|(_, known)| *known != says) {
                    let text = format!(
                        "{at:?} of {} is sealed for the catalog: {known}, for {}: {says} (INV-48)",
                        StructureId(held.structure),
                        sim.address
                    );
                    return self.broken(text);
                }
            }
        }
    }

    /// After all leases have ended, every block is free again (INV-02, INV-13), and no block is
    /// lent.
    pub fn judge_memory(&mut self) {
        let now = self.controller_now();
        for ix in 0..self.controllers.len() {
            let SimController { model, catalog, .. } = &mut self.controllers[ix];
            if let Err(e) = model.compare(now, catalog) {
                return self.broken(format!("the catalog, at the end: {e}"));
            }
            let actor = Actor::CLUSTER;
            let Ok(Reply::Status(status)) = self.command(ix, Command::ClusterStatus { actor })
            else {
                return self.broken("the cluster has no status".into());
            };
            if status.free != status.blocks || status.structures != 0 {
                let text = format!(
                    "{} of {} blocks are free, {} structures live after the last lease (INV-02)",
                    status.free, status.blocks, status.structures
                );
                self.broken(text);
            }
        }
        for server in 0..SERVERS {
            let sim = &self.servers[server];
            let (held, address) = (sim.held(), &sim.address);
            let all = sim.units().units(sim.frames);
            let free: Vec<u32> = (0..SHARDS as usize).map(|core| sim.lots.free(core)).collect();
            if !held.is_empty() {
                return self.broken(format!("{address} still holds {held:?} (INV-02)"));
            }
            // No structure exists: no block is lent, and no lot was lost.
            if self.controllers.len() > 1 && free.iter().any(|free| *free != all) {
                let text = format!("{address} has {free:?} of {all} units to lend (INV-40)");
                return self.broken(text);
            }
        }
    }
}
