//! Servers that join, come back and are lost, and controllers that die and restart.

use super::{SimController, Told, open};
use crate::faults::Shape;
use crate::net::{Node, trouble_lasts};
use crate::server::{SHARDS, SimServer};
use crate::world::{Event, World};
use honeycomb_catalog::{Command, Effect as Order, HeldBlock, NewServer, Reply};
use honeycomb_controller::held_block;
use honeycomb_types::{Bug, ServerId, Time};
use honeycomb_wire::messages::HeldBlock as HeldOnWire;
use std::time::Duration;

/// The pause between two probes of a server's process.
const PROBE_AGAIN: Duration = Duration::from_millis(100);

impl World {
    /// A server requests membership in a controller shard, over a new connection, and reports the
    /// blocks that it lends to it.
    pub fn join(&mut self, server: usize, life: u64, link: u64, ix: usize, lent: &[u32]) {
        let sim = &self.servers[server];
        let (address, incarnation, blocks) = (sim.address.clone(), sim.incarnation, sim.frames);
        let tiers = sim.tiers();
        let new = NewServer {
            address: &address,
            incarnation,
            shards: SHARDS,
            blocks_per_shard: blocks,
            tiers: &tiers,
            block_size: self.sizes.block as u64,
            flush_root: "/flush",
            kinds: &[],
        };
        let member = sim.members[ix].id;
        let (id, known) = match self.rejoined(ix, new, member) {
            true => (member, true),
            false => match self.command(ix, Command::JoinServer { server: new }) {
                Ok(Reply::Joined(id)) => (id, false),
                other => panic!("a server could not join: {other:?}"),
            },
        };
        self.controllers[ix].members.insert(id);
        if let Some(old) = self.controllers[ix].links.insert(id, (server, link)) {
            self.close_link(old);
        }
        let now_ms = self.controller_now().as_millis();
        let at = self.arrival(Node::Controller, Node::Server(server), link);
        self.schedule_at(at, Event::Joined { server, life, link, id, known, now_ms });
        if !lent.is_empty() {
            self.lent(id, lent);
        }
    }

    /// Whether a server is the member that it claims to have been.
    pub(super) fn rejoined(&mut self, ix: usize, server: NewServer<'_>, member: ServerId) -> bool {
        let suspected = self.controllers[ix].catalog.is_suspected(member);
        let again = member != ServerId(0)
            && self.command(ix, Command::RejoinServer { server, member }).is_ok();
        if again {
            self.reach("server back under its name");
            if suspected {
                self.reach("suspected server back");
            }
        }
        again
    }

    /// A server that came back reports its held blocks.
    pub(super) fn holdings(
        &mut self,
        id: ServerId,
        link: (usize, u64),
        blocks: &[HeldOnWire],
        last: bool,
    ) {
        let ix = id.controller() as usize;
        let held: Vec<HeldBlock> = blocks.iter().map(held_block).collect();
        let command = Command::Inventory { server: id, held: &held, last };
        if self.command(ix, command).is_err() {
            return self.close_link(link);
        }
        if last {
            // It may not have received the orders on its earlier connection.
            // It has reported its lent blocks and the places of its held ones.
            let errands = &mut self.controllers[ix].errands;
            // The catalog decides anew about drains and evacuations.
            let anew = |order: &Order| {
                let lowers = matches!(order, Order::LowerBlock { .. });
                matches!(order, Order::Lots { .. } | Order::Release { .. } | Order::Evacuate { .. })
                    || lowers && !Bug::DemotedBeforeReport.active()
            };
            errands.retain(|order| order.server() != id || !anew(order));
            let again = errands.iter().filter(|order| order.server() == id);
            let again: Vec<Order> = again.cloned().collect();
            for order in again {
                self.tell_server(id, Told::Order(order));
            }
            self.tell_server(id, Told::Known);
        }
    }

    /// The controller learns that a connection to a server is closed.
    pub fn link_lost(&mut self, server: usize, link: u64) {
        let Some(id) = self.heard(server, link) else { return };
        let ix = id.controller() as usize;
        // A server that has not finished its report is awaited as before.
        if self.controllers[ix].catalog.is_awaited(id) {
            self.controllers[ix].links.remove(&id);
            self.refuse_imports(ix, id);
            self.probe(server, id);
        } else if self.controllers[ix].catalog.is_released(id) {
            let _ = self.command(ix, Command::ServerLost { server: id });
        } else {
            self.controllers[ix].links.remove(&id);
            let _ = self.command(ix, Command::ServerUnlinked { server: id });
            self.refuse_imports(ix, id);
            self.probe(server, id);
        }
    }

    /// The controller probes whether the address of a server without a connection has a listener,
    /// periodically until the server is back, or lost.
    pub fn probe(&mut self, server: usize, id: ServerId) {
        let controller = &self.controllers[id.controller() as usize];
        let SimController { alive, catalog, links, .. } = controller;
        let without = catalog.is_suspected(id) || catalog.is_awaited(id);
        if !alive || !without || links.contains_key(&id) {
            return;
        }
        let (here, there) = (Node::Controller, Node::Server(server));
        let cut = self.net.cut_until(here, there).max(self.net.cut_until(there, here));
        if cut > self.now || self.servers[server].alive {
            return self.schedule(PROBE_AGAIN, Event::Probe { server, id });
        }
        self.reach("process of a server found ended");
        let _ = self.command(id.controller() as usize, Command::ServerLost { server: id });
    }

    /// The process of a controller shard ends, or its machine loses power. It is restarted with its
    /// log.
    pub fn crash_controller(&mut self, ix: usize) {
        if !self.controllers[ix].alive {
            return;
        }
        let power = self.rng.chance(500_000);
        self.controllers[ix].power = power;
        if power {
            self.fault("controller lost power");
            let World { controllers, rng, .. } = self;
            controllers[ix].disk.crash(&mut |most| rng.below(most.max(1)));
        } else {
            self.fault("controller killed");
        }
        let controller = &mut self.controllers[ix];
        controller.alive = false;
        controller.store = None;
        controller.opening.clear();
        controller.importing.clear();
        controller.waiting.clear();
        controller.parked.clear();
        controller.errands.clear();
        for link in std::mem::take(&mut controller.links).into_values() {
            self.close_link(link);
        }
        let away = trouble_lasts(&mut self.rng);
        self.schedule(away, Event::RestartController(ix));
    }

    /// Restarts it.
    pub fn restart_controller(&mut self, ix: usize) {
        if self.controllers[ix].alive {
            return;
        }
        let (now, hash_seed) = (self.controller_now(), self.rng.next_u64());
        let cluster = Shape::of(self.seed, self.controllers.len());
        let opened = match open(&self.controllers[ix].disk, ix, (hash_seed, cluster), now) {
            Ok(opened) => opened,
            Err(e) => return self.broken(format!("the log cannot be read: {e} (INV-26)")),
        };
        let controller = &mut self.controllers[ix];
        controller.alive = true;
        controller.catalog = opened.catalog;
        controller.store = Some(opened.store);
        controller.last_tick = Time::NEVER;
        let (catalog, power) = (&controller.catalog, controller.power);
        if let Err(e) = controller.model.restart(now, catalog, power) {
            return self.broken(format!("the catalog, after a restart: {e}"));
        }
        let awaited: Vec<ServerId> = self.controllers[ix].catalog.awaited().collect();
        for id in awaited {
            if let Some(server) = self.servers.iter().position(|server| server.is(id)) {
                self.probe(server, id);
            }
        }
    }

    /// A server joins before the start of the run, without the network.
    pub fn join_at_once(&mut self, server: usize) {
        let incarnation = self.rng.next_u64();
        let layout = self.layout();
        let sim = SimServer::new(server, 0, incarnation, self.controllers.len(), layout);
        self.servers.push(sim);
        for ix in 0..self.controllers.len() {
            let link = self.new_link();
            self.servers[server].members[ix].attempt = link;
            let lent = self.offers(server, ix);
            self.join(server, 0, link, ix, &lent);
        }
    }
}
