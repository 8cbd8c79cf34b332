//! Servers that are drained during the run; some drains are cancelled.

use crate::net::SERVERS;
use crate::world::World;
use honeycomb_catalog::{Actor, Command};
use honeycomb_env::Entropy;

/// One seed in this many drains servers.
const DRAINING: u64 = 3;
/// One request in this many cancels a drain.
const CANCELS: u64 = 4;

/// How often a server is drained in a seed, in events per million operations. It draws nothing from
/// the run itself, as `lots::controllers`.
pub fn rate(seed: u64) -> u64 {
    let mut entropy = Entropy::seeded(seed ^ 0xd7a1_4000);
    if entropy.below(DRAINING) == 0 { 4_000 + entropy.below(16_000) } else { 0 }
}

impl World {
    /// An operator drains a server, or cancels that.
    pub fn disturb_servers(&mut self) {
        if self.faults.drain == 0 || !self.rng.chance(self.faults.drain) {
            return;
        }
        let server = self.rng.below(SERVERS as u64) as usize;
        let cancel = self.rng.below(CANCELS) == 0;
        self.fault(if cancel { "drain cancelled" } else { "drain" });
        self.drain(server, cancel);
    }

    fn drain(&mut self, server: usize, cancel: bool) {
        let (actor, address) = (Actor::CLUSTER, self.servers[server].address.clone());
        for ix in 0..self.controllers.len() {
            if self.controllers[ix].alive {
                let command = Command::DrainServer { actor, address: &address, cancel };
                // The last server, or one that is unknown there, is refused: the model has agreed.
                let _ = self.command(ix, command);
            }
        }
    }

    /// Cancels all drains.
    pub fn cancel_drains(&mut self) {
        (0..SERVERS).for_each(|server| self.drain(server, true));
    }

    /// A server that all controller shards have released ends without blocks (INV-47).
    pub fn depart(&mut self, server: usize) {
        let sim = &self.servers[server];
        if !sim.alive || !sim.members.iter().all(|member| member.released) {
            return;
        }
        let held = sim.shards.iter().flat_map(|shard| shard.reports().inventory()).count();
        if held > 0 {
            return self
                .broken(format!("server {server} was released with {held} blocks (INV-47)"));
        }
        self.reach("drained server ended");
        self.end_server(server, false);
    }
}
