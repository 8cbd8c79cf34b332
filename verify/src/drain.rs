//! Servers that are taken out while work goes on, and called back now and then.

use crate::net::SERVERS;
use crate::world::World;
use honeycomb_catalog::{Actor, Command};
use honeycomb_env::Entropy;
use honeycomb_server::Shard;

/// One seed in this many takes servers out.
const DRAINING: u64 = 3;
/// One wish in this many is that a server may stay.
const CANCELS: u64 = 4;

/// How often a server is taken out in a seed, in events per million operations. It draws nothing from
/// the run itself, as `lots::controllers`.
pub fn rate(seed: u64) -> u64 {
    let mut entropy = Entropy::seeded(seed ^ 0xd7a1_4000);
    if entropy.below(DRAINING) == 0 { 4_000 + entropy.below(16_000) } else { 0 }
}

impl World {
    /// An operator takes a server out, or lets one stay.
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
                // One that is the last, or unknown there, is refused: the model has agreed.
                let _ = self.command(ix, command);
            }
        }
    }

    /// Nobody is taken out any more.
    pub fn cancel_drains(&mut self) {
        (0..SERVERS).for_each(|server| self.drain(server, true));
    }

    /// A server whom all controller shards let go ends, with nothing (INV-47).
    pub fn depart(&mut self, server: usize) {
        let sim = &self.servers[server];
        if !sim.alive || !sim.members.iter().all(|member| member.released) {
            return;
        }
        let held = sim.shards.iter().flat_map(Shard::inventory).count();
        if held > 0 {
            return self
                .broken(format!("server {server} was released with {held} blocks (INV-47)"));
        }
        self.reach("drained server ended");
        self.end_server(server, false);
    }
}
