//! The work of servers: incoming requests, messages to each other and to controllers, and their
//! crashes.

use super::{Event, Request, World};
use crate::controller::{Said, TICK, Told};
use crate::net::{Node, trouble_lasts};
use crate::server::{Caller, Message, SimServer, Taken};
use honeycomb_catalog::Effect as Order;
use honeycomb_server::{Effect, PostPayload};
use honeycomb_structures::Ticket;
use honeycomb_types::ServerId;
use honeycomb_wire::RequestHeader;
use std::time::Duration;

impl World {
    pub(super) fn request(&mut self, server: usize, life: u64, from: Caller, request: Request) {
        if self.servers[server].life != life || !self.servers[server].alive {
            return;
        }
        let Some(request) = self.in_turn(server, from, request) else { return };
        let Request { access, header, args, payload } = request;
        let payload = match payload {
            PostPayload::Bytes(bytes) => bytes,
            PostPayload::Pinned(pin) => pin.bytes().into(),
        };
        let header = match RequestHeader::decode(&header, true) {
            Ok(header) => header,
            Err(refusal) => return self.broken(format!("a client sent {refusal:?}")),
        };
        self.note(|| format!("request {from:?} {}", crate::large::describe(&header, &args)));
        let ix = header.at.block.server().controller() as usize;
        let id = self.servers[server].members[ix].id;
        if !self.controllers[ix].catalog.is_member(id) && header.op.info().lane {
            self.reach("write to a server that is given up");
        }
        let now = self.local(Node::Server(server));
        let controller_ms = self.controller_now().as_millis();
        if let (Caller::Task(id), Some(grant)) = (from, access.grant)
            && let Some(job) = self.jobs.iter().find(|job| job.id == grant.job)
            && let Some(prefix) = job.tasks[self.tasks[id.task].session()].prefix
        {
            self.servers[server].seen(now, grant.job, prefix);
        }
        let taken = self.servers[server].request(now, from, &access, &header, &args, payload);
        if let Err(what) = self.servers[server].judge_access(now, controller_ms, &access, &taken) {
            self.broken(what);
        }
        match taken {
            Taken::Messages(messages) => self.send_all(server, messages),
            Taken::Filling(ticket) => {
                let after = self.way() / 4;
                self.schedule(after, Event::Piece { server, life, ticket });
            }
        }
    }

    pub(super) fn piece(&mut self, server: usize, life: u64, ticket: Ticket) {
        let sim = &self.servers[server];
        if sim.life != life || !sim.filling.contains_key(&ticket) {
            return;
        }
        let now = self.local(Node::Server(server));
        if self.rng.chance(self.faults.cut_payload) {
            self.fault("cut payload");
            let to = self.servers[server].filling[&ticket].to;
            let messages = self.servers[server].cut(now, ticket);
            self.send_all(server, messages);
            match to {
                Caller::Task(id) => {
                    self.schedule(Duration::from_micros(10), Event::Lost(id, true));
                }
                Caller::Peer(conn) => self.break_line(conn),
                _ => {}
            }
            return;
        }
        // Long payloads arrive in larger pieces.
        let length = self.servers[server].filling[&ticket].payload.len();
        let bytes = 500 + self.rng.below(3000.max(length as u64 / 4)) as usize;
        let from = self.servers[server].filling[&ticket].to;
        let (more, messages) = self.servers[server].piece(now, ticket, bytes);
        self.send_all(server, messages);
        if let (false, Caller::Peer(conn)) = (more, from) {
            self.next_in_turn(server, conn);
        }
        if more {
            let after = self.way() / 4;
            self.schedule(after, Event::Piece { server, life, ticket });
        }
    }

    /// Sends a server's messages: replies to callers, and reports to the controller.
    pub fn send_all(&mut self, server: usize, messages: Vec<Message>) {
        for message in messages {
            let to = match message.to {
                Caller::Task(id) => Node::Client(self.tasks[id.task].session()),
                Caller::Intruder => {
                    crate::client::judge_intruder(self, &message);
                    continue;
                }
                Caller::Nobody => continue,
                Caller::Peer(conn) => {
                    self.answer_line(server, conn, message.status);
                    continue;
                }
            };
            if self.rng.chance(self.faults.lose_reply) {
                self.fault("lost reply");
                continue;
            }
            if let Some(at) = self.travel(Node::Server(server), to) {
                self.schedule_at(at, Event::Reply(Box::new(message)));
            }
        }
        self.tell_controller(server);
        self.carry_posts(server);
        self.carry_io(server);
    }

    /// Sends the shards' requests to the controller over the link, in order.
    pub(super) fn tell_controller(&mut self, server: usize) {
        let wants = std::mem::take(&mut self.servers[server].wants);
        for effect in wants {
            if let Effect::Retire { at, .. } = effect {
                self.note(|| format!("{at:?} of server {server} is to be retired"));
            }
            if let Effect::TierChanged { at, tier, .. } = effect
                && !self.servers[server].may_tell(at, tier)
            {
                let text =
                    "is said to have left memory from which an answer is on its way (INV-41)";
                self.broken(format!("{at:?} {text}"));
            }
            if self.servers[server].members[effect.controller() as usize].ready {
                self.say(server, effect.controller().into(), Said::Asked(effect));
                continue;
            }
            if matches!(effect, Effect::Grow { .. }) {
                self.reach("growth denied without a controller");
            }
            let now = self.local(Node::Server(server));
            self.servers[server].keep(now, effect);
            let messages = self.servers[server].settle();
            self.send_all(server, messages);
        }
    }

    /// Sends a message to a controller shard; returns false without a link.
    pub(super) fn say(&mut self, server: usize, ix: usize, said: Said) -> bool {
        let Some(link) = self.servers[server].members[ix].link else { return false };
        self.servers[server].saying(&said);
        let at = self.arrival(Node::Server(server), Node::Controller, link);
        if let Said::Asked(effect) = &said
            && self.rng.chance(self.faults.duplicate / 4)
        {
            self.fault("question asked twice");
            let again = Box::new(Said::Again(effect.clone()));
            let after = self.arrival(Node::Server(server), Node::Controller, link).max(at);
            self.schedule_at(after, Event::Said { server, link, said: again });
        }
        let breaks = match said {
            Said::Asked(Effect::BeginMove { .. }) => 20 * self.faults.break_link,
            Said::Asked(Effect::CancelMove { .. }) => 200 * self.faults.break_link,
            _ => 0,
        };
        self.schedule_at(at, Event::Said { server, link, said: Box::new(said) });
        // The request may be lost, or only its reply.
        if breaks > 0 && self.rng.chance(breaks) {
            self.fault("broken link at a move");
            self.break_link(server, link);
        }
        true
    }

    pub(super) fn told_server(&mut self, server: usize, link: u64, told: Told) {
        let Some(ix) = self.servers[server].controller_at(link) else { return };
        let now = self.local(Node::Server(server));
        let sim = &mut self.servers[server];
        match told {
            Told::Known => {
                for effect in sim.known(now, ix) {
                    self.say(server, ix, Said::Asked(effect));
                }
            }
            Told::Heard(effect) => sim.heard(ix, &effect),
            Told::Clock { sent, now_ms } => sim.set_clock(sent, now, now_ms),
            Told::Message(at, message) => sim.receive(now, at, message),
            Told::Move(at, word) => sim.move_word(now, at, word),
            Told::Located(shard, server, found) => sim.located(now, shard, server, found),
            Told::Order(Order::Lots { server: id, lots }) => {
                let lent = self.lend(server, ix, &lots);
                self.say(server, ix, Said::Lent(Order::Lots { server: id, lots }, lent));
            }
            Told::Order(Order::Release { server: id, stay }) => {
                sim.members[ix].released = !stay;
                self.say(server, ix, Said::Confirmed(Order::Release { server: id, stay }, true));
                return self.depart(server);
            }
            Told::Order(order) => match sim.order(now, &order) {
                Ok(done) => {
                    self.check_lots(server);
                    self.say(server, ix, Said::Confirmed(order, done));
                }
                Err(what) => self.broken(what),
            },
        }
        let messages = self.servers[server].settle();
        self.send_all(server, messages);
    }

    pub(super) fn tick_server(&mut self, server: usize) {
        self.schedule(TICK, Event::Tick(Node::Server(server)));
        if !self.servers[server].alive {
            return;
        }
        let now = self.local(Node::Server(server));
        let messages = self.servers[server].tick(now);
        self.send_all(server, messages);
        self.check_capacities(server);
        for ix in 0..self.controllers.len() {
            if let Some(report) = self.servers[server].report(now, ix) {
                self.say(server, ix, report);
            }
        }
    }

    pub(super) fn joined(
        &mut self,
        server: usize,
        life: u64,
        link: u64,
        (id, known): (ServerId, bool),
        now_ms: u64,
    ) {
        let now = self.local(Node::Server(server));
        let ix = id.controller() as usize;
        let sim = &mut self.servers[server];
        if sim.life != life || !sim.alive || sim.members[ix].attempt != link {
            return;
        }
        if known && sim.members[ix].id == id {
            let mut blocks = sim.rejoined(now, link, id, now_ms);
            // In one part or in two.
            let first = blocks.len() - self.rng.below(blocks.len() as u64 + 1) as usize;
            let rest = blocks.split_off(first);
            if !rest.is_empty() {
                self.say(server, ix, Said::Holdings(blocks, false));
                blocks = rest;
            }
            self.say(server, ix, Said::Holdings(blocks, true));
            return;
        }
        let again = sim.members[ix].id != ServerId(0);
        sim.joined(now, link, id, now_ms);
        if again {
            self.reach("server back under a new name");
        }
        let messages = self.servers[server].settle();
        self.send_all(server, messages);
    }

    /// Crashes a server. It restarts with nothing, early, late or never; the controller learns of
    /// it at once or by its silence.
    pub fn crash(&mut self, server: usize) {
        if !self.servers[server].alive {
            return;
        }
        self.fault("crash");
        self.end_server(server, true);
    }

    /// The process of a server ends, and another one starts some time later.
    pub fn end_server(&mut self, server: usize, crashed: bool) {
        let links = self.servers[server].members.iter().filter_map(|member| member.link);
        let links: Vec<u64> = links.collect();
        self.servers[server].crash();
        self.hang_up_all(server);
        if crashed && self.rng.chance(300_000) {
            self.fault("silent crash");
        } else {
            for link in links {
                let at = self.arrival(Node::Server(server), Node::Controller, link);
                self.schedule_at(at, Event::LinkLost { server, link });
            }
        }
        // One may stay down; with more there would soon be no data left to work on.
        if crashed
            && self.rng.chance(100_000)
            && self.servers.iter().filter(|s| !s.alive).count() == 1
        {
            return self.fault("crash for good");
        }
        let away = trouble_lasts(&mut self.rng);
        self.schedule(away, Event::Restart { server });
    }

    pub(super) fn restart(&mut self, server: usize) {
        let life = self.servers[server].life + 1;
        let attempts = self.servers[server].members.iter().map(|member| member.attempt);
        let attempts: Vec<u64> = attempts.collect();
        let incarnation = self.rng.next_u64();
        let controllers = self.controllers.len();
        self.servers[server] =
            SimServer::new(server, life, incarnation, controllers, self.layout());
        for (ix, attempt) in attempts.into_iter().enumerate() {
            self.servers[server].members[ix].attempt = attempt;
            self.rejoin(server, life, ix);
        }
    }
}
