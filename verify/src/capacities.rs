//! Whether controllers and servers agree on the capacities of blocks.

use crate::world::World;

impl World {
    /// No block uses more than its controller shard counts (INV-60), which counts more only until it is
    /// informed that the block has given some back.
    pub fn check_capacities(&mut self, server: usize) {
        let sim = &self.servers[server];
        let held = sim.shards.iter().flat_map(|shard| shard.reports().inventory());
        let wrong = held.into_iter().find_map(|held| {
            let ix = held.at.block.server().controller() as usize;
            let (member, controller) = (&sim.members[ix], &self.controllers[ix]);
            let knows = controller.alive && !controller.catalog.is_awaited(member.id);
            let counted = controller.catalog.capacity_at(held.at).filter(|_| knows)?;
            (counted < held.capacity).then_some((held.at, held.capacity, counted))
        });
        if let Some((at, uses, counted)) = wrong {
            self.broken(format!("{at:?} may use {uses} bytes, and counts as {counted} (INV-60)"));
        }
    }
}
