//! The controller of the world: the production catalog, the links to its servers, and the requests
//! that wait for blocks to open, as in `crates/controller`. The plain model judges every command.

mod capacities;
mod members;
mod questions;

use crate::catalog::{CatalogModel, Running};
use crate::faults::Shape;
use crate::lots::Parked;
use crate::net::{Node, trouble_lasts};
use crate::world::{Event, World, wire_entry};
use honeycomb_catalog::{
    BlockUsage, Catalog, CatalogError, Command, Config, Effect as Order, Opened as Map, Reply,
    Report, Seal, StopFault, Written,
};
use honeycomb_client::Error;
use honeycomb_controller::{
    Answers, OpenOptions, RecoveredState, Store, StoreError, Turns, status_of, waits,
};
use honeycomb_env::MemoryDisk;
use honeycomb_server::{BlockMessage, Effect, MoveWord};
use honeycomb_structures::Successor;
use honeycomb_types::{
    BlockAt, JobId, Kind, Marks, MoveId, PrefixId, ServerId, ShardIx, StructureId, Time, Way,
};
use honeycomb_wire::Status;
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::messages::{HeldBlock as HeldOnWire, MapEntry};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

/// Commands to the catalog between two checks of all its invariants, which read the whole state.
const CHECK_EVERY: u64 = 50;
/// A longer gap between two ticks is a pause that must be compensated.
const PAUSE_SEEN: Duration = Duration::from_millis(80);
/// How often the controller and the shards check their timers.
pub const TICK: Duration = Duration::from_millis(10);

/// A message from a server to the controller over its link.
#[derive(Clone, Debug)]
pub enum Said {
    Asked(Effect),
    /// The same again, because the reply was lost: the catalog must tolerate it.
    Again(Effect),
    /// Whether it could be done.
    Confirmed(Order, bool),
    /// The blocks that it lends now, by core: it has carried out the request.
    Lent(Order, Vec<u32>),
    /// All held blocks, from a server that came back; whether this is the last part.
    Holdings(Vec<HeldOnWire>, bool),
    Report {
        sent: Time,
        usage: Vec<BlockUsage>,
        active: Vec<(JobId, PrefixId, u32)>,
    },
}

/// A message from the controller to a server.
#[derive(Clone, Debug)]
pub enum Told {
    Order(Order),
    Message(BlockAt, BlockMessage),
    Move(BlockAt, MoveWord),
    /// The address of another server, for the shard that requested it.
    Located(ShardIx, ServerId, Result<SocketAddr, Status>),
    Clock {
        sent: Time,
        now_ms: u64,
    },
    /// The server's held blocks are known.
    Known,
    /// The controller has received this effect.
    Heard(Effect),
}

/// A client's request to the controller about its structures.
#[derive(Clone, Debug)]
pub struct Question {
    pub task: usize,
    /// The number of the try: a later reply finds it over.
    pub number: u64,
    pub structure: StructureId,
    pub about: About,
}

/// The subject of a question.
#[derive(Clone, Debug)]
pub enum About {
    /// The map and a grant, or the fate of the structure.
    Structure,
    /// The same by address, for the prefix of the session, which makes an edge.
    Address,
    /// A block with space for an extent of this size, other than the full ones; with 0 bytes, all
    /// blocks of extents.
    Extents(u64, Vec<u64>),
    /// The first private block for an append of so many bytes.
    Begin(u64),
    /// The commit of the append that begins with this block.
    Commit(BlockAt),
    /// The end of that append without a commit.
    Drop(BlockAt),
}

/// A block that awaits a reply, over the connection of its request.
#[derive(Clone, Copy)]
struct Requester {
    server: ServerId,
    link: Option<(usize, u64)>,
    block: BlockAt,
}

/// A request that waits for blocks to open.
struct Waiting {
    blocks: BTreeSet<BlockAt>,
    then: Then,
}

enum Then {
    Successor(Requester, Vec<u8>),
    Move(Requester, MoveWord),
    Answer(Question, Map),
    Extents(Question, Vec<MapEntry>),
}

/// One controller shard: the ids of jobs, structures and members name their shard. The shards of a
/// world are on one machine and have one clock.
pub struct SimController {
    /// The rest is its state at its death, until it is restarted.
    pub alive: bool,
    pub catalog: Catalog,
    store: Option<Store>,
    disk: MemoryDisk,
    /// Its machine lost power.
    power: bool,
    pub model: CatalogModel,
    /// Servers that have joined and are not known to be lost.
    members: BTreeSet<ServerId>,
    /// Unconfirmed orders to servers.
    errands: Vec<Order>,
    /// The connection to each server.
    pub links: BTreeMap<ServerId, (usize, u64)>,
    /// Blocks that their servers have not confirmed to be open.
    opening: BTreeMap<BlockAt, Order>,
    /// Blocks that were not confirmed to be ready for a move to them.
    importing: BTreeMap<BlockAt, Order>,
    waiting: Vec<Waiting>,
    /// Requests that wait for servers to lend blocks.
    pub parked: Vec<(Time, Parked)>,
    turns: Turns,
    last_tick: Time,
    commands: u64,
}

impl SimController {
    pub fn new(ix: usize, hash_seed: u64, cluster: Shape, block: usize) -> SimController {
        let disk = MemoryDisk::new();
        let opened =
            open(&disk, ix, (hash_seed, cluster), Time::ZERO).expect("an empty disk can be read");
        SimController {
            alive: true,
            catalog: opened.catalog,
            store: Some(opened.store),
            disk,
            power: false,
            model: CatalogModel::new(cluster, block as u64),
            members: BTreeSet::new(),
            errands: Vec::new(),
            links: BTreeMap::new(),
            opening: BTreeMap::new(),
            importing: BTreeMap::new(),
            waiting: Vec::new(),
            parked: Vec::new(),
            turns: Turns::default(),
            last_tick: Time::NEVER,
            commands: 0,
        }
    }

    /// The member that has this link: messages on any other are ignored.
    fn heard(&self, server: usize, link: u64) -> Option<ServerId> {
        let found = self.links.iter().find(|(_, of)| **of == (server, link));
        found.map(|(id, _)| *id)
    }
}

fn open(
    disk: &MemoryDisk,
    ix: usize,
    (hash_seed, cluster): (u64, Shape),
    now: Time,
) -> Result<RecoveredState, StoreError> {
    let Shape { policy, server_loss_ms } = cluster;
    let options = OpenOptions {
        shard: ix as u16,
        hash_seed,
        root_key: Some([7; 32]),
        marks: Marks::default(),
        lease_ms: 1000,
        policy,
        scale: Config::default().scale,
        server_loss_ms,
        now,
    };
    Store::open(Box::new(disk.clone()), options)
}

impl World {
    /// The value of the controller's clock in whole milliseconds, the unit of the model.
    pub fn controller_now(&self) -> Time {
        let local = self.net.local(Node::Controller, self.now);
        Time::from_millis(local.as_millis())
    }

    /// The member that has this link, in any controller shard.
    pub fn heard(&self, server: usize, link: u64) -> Option<ServerId> {
        self.controllers.iter().find_map(|controller| controller.heard(server, link))
    }

    /// The controller shard that assigned this server id.
    pub fn controller_of(&mut self, id: ServerId) -> &mut SimController {
        &mut self.controllers[id.controller() as usize]
    }

    /// A command about a job, to the controller shard that has it.
    pub fn command_of(&mut self, job: JobId, command: Command<'_>) -> Result<Reply, CatalogError> {
        self.command(job.controller() as usize, command)
    }

    /// Executes a command of a catalog, compares the result with the model, and sends the resulting
    /// orders.
    pub fn command(&mut self, ix: usize, command: Command<'_>) -> Result<Reply, CatalogError> {
        let (reply, orders) = self.decide(ix, command);
        self.dispatch(ix, orders);
        self.note_losses(ix);
        reply
    }

    /// The same, but the caller sends the orders.
    fn decide(
        &mut self,
        ix: usize,
        command: Command<'_>,
    ) -> (Result<Reply, CatalogError>, Vec<Order>) {
        let now = self.controller_now();
        let mut orders = Vec::new();
        let controller = &mut self.controllers[ix];
        let looked = controller.model.look(now, &mut controller.catalog, &command);
        let reply = controller.catalog.apply(now, command, &mut orders);
        let store = controller.store.as_mut().expect("only a living controller is asked");
        let written = store.commit(now, &mut controller.catalog, &[], waits(&command, &orders));
        let judged = written.map_err(|e| e.to_string());
        let mut judged = judged
            .and(looked)
            .and_then(|()| controller.model.judge(now, &command, &reply, &orders));
        if judged.is_ok() && controller.model.is_due() {
            judged = controller.model.compare(now, &mut controller.catalog);
        }
        controller.commands += 1;
        let finding = controller.catalog.audit(now, &mut Vec::new());
        if let (Ok(()), Some(finding)) = (&judged, finding) {
            judged = Err(format!("the background check found {finding}"));
        }
        if judged.is_ok()
            && controller.commands.is_multiple_of(CHECK_EVERY)
            && let Err(e) = controller.catalog.check_invariants()
        {
            judged = Err(e.to_string());
        }
        self.stats.commands += 1;
        if let Err(e) = judged {
            self.broken(format!("the catalog, after {command:?}: {e}"));
        }
        (reply, orders)
    }

    /// A server could not execute an order: only the target of a move may.
    fn import_refused(&mut self, order: &Order) {
        let (server, at, id) = match order {
            Order::BeginImport { server, at, id, .. } => (*server, *at, *id),
            other => return self.broken(format!("{other:?} could not be done")),
        };
        let ix = server.controller() as usize;
        self.controllers[ix].importing.remove(&at);
        self.end_import(ix, (server, at, id), "the target cannot take the range that moves");
    }

    /// The move to this block ends, and its source learns why.
    fn end_import(&mut self, ix: usize, target: (ServerId, BlockAt, MoveId), why: &str) {
        let (server, at, id) = target;
        self.give_up(ix, |block| block == at, why);
        let _ = self.command(ix, Command::ImportRefused { server, at, id });
    }

    /// Sources do not wait for a target on a server without a link. As in
    /// `ControllerService::refuse_imports` and `dispatch`.
    pub(super) fn refuse_imports(&mut self, ix: usize, server: ServerId) {
        let SimController { waiting, .. } = &self.controllers[ix];
        let moves = waiting.iter().filter(|waiting| matches!(waiting.then, Then::Move(..)));
        let blocks = moves.flat_map(|waiting| waiting.blocks.iter().copied());
        let targets: BTreeSet<BlockAt> = blocks.filter(|at| at.block.server() == server).collect();
        for at in targets {
            let SimController { importing, opening, errands, .. } = &mut self.controllers[ix];
            let id = match importing.remove(&at).as_ref().or(opening.get(&at)) {
                Some(Order::BeginImport { id, .. }) => *id,
                Some(Order::OpenBlock { importing, .. }) => *importing,
                other => unreachable!("a move waits for {at:?}, and {other:?} prepares it"),
            };
            errands.retain(|errand| !prepares(errand, at));
            self.reach("target refused for a broken link");
            self.end_import(ix, (server, at, id), "the server of the target cannot be reached");
        }
    }

    fn dispatch(&mut self, ix: usize, orders: Vec<Order>) {
        for order in orders {
            match &order {
                Order::OpenBlock { at, .. } => {
                    self.controllers[ix].opening.insert(*at, order.clone());
                }
                Order::BeginImport { at, .. } => {
                    self.controllers[ix].importing.insert(*at, order.clone());
                }
                Order::SetGeneration { prefix, generation, .. } => {
                    let SimController { opening, errands, .. } = &mut self.controllers[ix];
                    for order in opening.values_mut().chain(errands) {
                        order.revoke(*prefix, *generation);
                    }
                }
                Order::EndImport { at, .. } => {
                    self.controllers[ix].importing.remove(at);
                    self.give_up(ix, |block| block == *at, "the move is over");
                }
                Order::FreeBlock { at, .. } => {
                    self.controllers[ix].opening.remove(at);
                    self.controllers[ix].importing.remove(at);
                    // Its earlier orders are not repeated; a server that has freed it would refuse
                    // them.
                    self.controllers[ix].errands.retain(|errand| !prepares(errand, *at));
                    self.give_up(ix, |block| block == *at, "the block was taken back");
                }
                _ => {}
            }
            self.controllers[ix].errands.push(order.clone());
            let server = order.server();
            let breaks = match order {
                // The server may report its blocks before it receives the order.
                Order::LowerBlock { .. } => Some(("broken link at a demotion", 100)),
                Order::BeginImport { .. } => Some(("broken link at a move", 20)),
                Order::OpenBlock { importing, .. } if importing != MoveId::NONE => {
                    Some(("broken link at a move", 20))
                }
                _ => None,
            };
            self.tell_server(server, Told::Order(order));
            if let Some((fault, often)) = breaks
                && self.rng.chance(often * self.faults.break_link)
            {
                self.fault(fault);
                if let Some(&(server, link)) = self.controllers[ix].links.get(&server) {
                    self.break_link(server, link);
                }
            }
        }
    }

    /// Servers that the catalog has given up: requests that wait for their blocks get a reply.
    fn note_losses(&mut self, ix: usize) {
        let SimController { catalog, members, .. } = &mut self.controllers[ix];
        let gone: Vec<ServerId> = members.extract_if(.., |id| !catalog.is_member(*id)).collect();
        for id in gone {
            let link = self.controllers[ix].links.remove(&id);
            self.controllers[ix].opening.retain(|at, _| at.block.server() != id);
            self.controllers[ix].importing.retain(|at, _| at.block.server() != id);
            self.controllers[ix].errands.retain(|order| order.server() != id);
            // The blocks on a server change as structures grow; any structure may have had one.
            let of = |id: &StructureId| id.controller() as usize == ix;
            let structures = self.structures.iter_mut().filter(|(id, _)| of(id));
            structures.for_each(|(_, known)| known.lost = true);
            self.give_up(ix, |at| at.block.server() == id, "the server of the block is gone");
            // A server that was only silent learns that it must join again.
            if let Some(link) = link {
                self.close_link(link);
            }
        }
    }

    /// The controller closes a server's connection.
    fn close_link(&mut self, (server, link): (usize, u64)) {
        let at = self.arrival(Node::Controller, Node::Server(server), link);
        self.schedule_at(at, Event::LinkClosed { server, link });
    }

    /// Ends requests that wait for blocks that will not open.
    fn give_up(&mut self, ix: usize, lost: impl Fn(BlockAt) -> bool, why: &str) {
        let waits = |w: &mut Waiting| w.blocks.iter().any(|at| lost(*at));
        let over: Vec<Waiting> = self.controllers[ix].waiting.extract_if(.., waits).collect();
        for Waiting { then, .. } in over {
            match then {
                Then::Successor(to, _) => {
                    let denied = Successor::Denied(Status::DataLost, why.into());
                    self.reply_to(to, Told::Message(to.block, BlockMessage::Successor(denied)));
                }
                Then::Move(to, _) => {
                    let refused = MoveWord::Refused(Status::Busy, why.into());
                    self.reply_to(to, Told::Move(to.block, refused));
                }
                Then::Answer(question, _) => {
                    let error = Error::new(Status::Unavailable, why);
                    self.answer(&question, Err(error));
                }
                Then::Extents(question, _) => {
                    let error = Error::new(Status::Unavailable, why);
                    self.answer_extents(&question, Err(error));
                }
            }
        }
    }

    /// Lets a request wait until blocks are open, which are ordered again, or completes it at once.
    fn when_open(&mut self, ix: usize, blocks: impl Iterator<Item = BlockAt>, then: Then) {
        let SimController { opening, importing, .. } = &self.controllers[ix];
        let moves = matches!(then, Then::Move(..));
        let late = |at: &BlockAt| opening.get(at).or(importing.get(at).filter(|_| moves));
        let blocks: BTreeSet<BlockAt> = blocks.filter(|at| late(at).is_some()).collect();
        if blocks.is_empty() {
            return self.go_on(then);
        }
        let again: Vec<Order> = blocks.iter().filter_map(|at| late(at).cloned()).collect();
        for order in again {
            self.tell_server(order.server(), Told::Order(order));
        }
        let links = &self.controllers[ix].links;
        let mut servers = blocks.iter().map(|at| at.block.server());
        let away = servers.find(|server| moves && !links.contains_key(server));
        self.controllers[ix].waiting.push(Waiting { blocks, then });
        if let Some(server) = away {
            self.refuse_imports(ix, server);
        }
    }

    fn go_on(&mut self, then: Then) {
        match then {
            Then::Successor(to, moved) => {
                let ready = BlockMessage::Successor(Successor::Ready(moved));
                self.reply_to(to, Told::Message(to.block, ready));
            }
            Then::Move(to, word) => self.reply_to(to, Told::Move(to.block, word)),
            Then::Answer(question, opened) => self.answer(&question, Ok(opened)),
            Then::Extents(question, entries) => self.answer_extents(&question, Ok(entries)),
        }
    }

    fn requester(&mut self, server: ServerId, block: BlockAt) -> Requester {
        let link = self.controller_of(server).links.get(&server).copied();
        Requester { server, link, block }
    }

    /// Replies to a block. On another connection the request has been sent again, or is obsolete.
    fn reply_to(&mut self, to: Requester, reply: Told) {
        if self.controller_of(to.server).links.get(&to.server).copied() == to.link {
            self.tell_server(to.server, reply);
        }
    }

    /// Sends a message over a server's link, after the earlier ones.
    fn tell_server(&mut self, id: ServerId, told: Told) {
        let Some((server, link)) = self.controller_of(id).links.get(&id).copied() else { return };
        let at = self.arrival(Node::Controller, Node::Server(server), link);
        self.schedule_at(at, Event::ToldServer { server, link, told });
    }

    /// A message from a server has arrived.
    pub fn said(&mut self, server: usize, link: u64, said: Said) {
        let Some(id) = self.heard(server, link) else {
            // The connection is closed here, and the other end learns of it.
            return;
        };
        let ix = id.controller() as usize;
        match said {
            Said::Asked(effect) if effect.is_retained() => {
                self.asked(id, effect.clone(), false);
                self.tell_server(id, Told::Heard(effect));
            }
            Said::Asked(effect) => self.asked(id, effect, false),
            Said::Again(effect) => self.asked_again(&effect),
            Said::Confirmed(order, done) => {
                let errands = &mut self.controllers[ix].errands;
                if let Some(place) = errands.iter().position(|errand| is_same(errand, &order)) {
                    errands.remove(place);
                }
                match done {
                    true => self.confirmed(id, &order),
                    false => self.refused(id, &order),
                }
            }
            Said::Lent(order, lent) => {
                self.controllers[ix].errands.retain(|errand| *errand != order);
                self.lent(id, &lent);
            }
            Said::Holdings(blocks, last) => self.holdings(id, (server, link), &blocks, last),
            Said::Report { sent, usage, active } => {
                // Alternately busier and less busy, each server at its own time: not random,
                // because that would change every seed.
                let cpu = (self.now.as_millis() / 100 + u64::from(id.0) * 7) * 37 % 1100;
                let report = Report {
                    bytes_resident: 0,
                    connections: 0,
                    requests: 0,
                    forwarded: 0,
                    bytes_owed: 0,
                    cpu_permille: cpu as u16,
                    traffic: &[],
                    alarms: &[],
                    usage: &usage,
                };
                if self.controllers[ix].catalog.is_suspected(id) {
                    self.reach("suspicion ended by a report");
                }
                if self.command(ix, Command::ServerReport { server: id, report }).is_err() {
                    return;
                }
                for (job, prefix, ago_ms) in active {
                    let _ = self.command(ix, Command::RenewPrefixById { job, prefix, ago_ms });
                }
                let now_ms = self.controller_now().as_millis();
                self.tell_server(id, Told::Clock { sent, now_ms });
            }
        }
    }

    /// A shard requests something, for the first time or `again` after servers were requested to
    /// lend blocks.
    pub fn asked(&mut self, server: ServerId, effect: Effect, again: bool) {
        let ix = server.controller() as usize;
        match effect {
            Effect::Enlarge { structure, at, bytes } => {
                self.enlarge_asked(server, (structure, at, bytes), again);
            }
            Effect::Grow { structure, at } => {
                match self.command(ix, Command::GrowStructure { structure, at }) {
                    Ok(Reply::Grown { version, entry }) => {
                        if self.controllers[ix].opening.contains_key(&entry.at) {
                            self.reach("growth answered when the block was open");
                        }
                        let moved = MovedArgs { version: version.0, entry: wire_entry(&entry) };
                        let then = Then::Successor(self.requester(server, at), moved.encode());
                        self.when_open(ix, [entry.at].into_iter(), then);
                    }
                    Ok(other) => panic!("growth was answered with {other:?}"),
                    Err(e) if !again && self.borrows(ix, &e) => self.park(server, effect),
                    Err(e) => {
                        match e {
                            CatalogError::OutOfMemory(_) => {
                                self.reach("growth denied for memory");
                            }
                            CatalogError::QuotaExceeded { .. } => {
                                self.reach("growth denied for the quota");
                            }
                            _ => {}
                        }
                        let denied = Successor::Denied(status_of(&e), e.to_string());
                        self.tell_server(
                            server,
                            Told::Message(at, BlockMessage::Successor(denied)),
                        );
                    }
                }
            }
            Effect::Sealed { structure, at, length, bytes, last } => {
                if !last {
                    self.stats.grown += 1;
                    match self.structures.get(&structure).map(|known| known.opened.kind) {
                        Some(Kind::Queue) => self.reach("growth in a queue"),
                        _ => self.reach("growth in a file"),
                    }
                }
                // The structure may have ended meanwhile.
                let seal = Seal { length, bytes, last };
                let _ = self.command(ix, Command::SealBlock { structure, at, seal });
            }
            Effect::Taken { structure, at, items, bytes } => {
                let _ = self.command(ix, Command::QueueTaken { structure, at, items, bytes });
                self.tell_server(server, Told::Message(at, BlockMessage::TakenReceived));
            }
            Effect::Return { structure, at, successor } => {
                let successor = block_of(&successor);
                // Refused if the successor has grown on meanwhile: the caller then keeps it.
                if self.command(ix, Command::ReturnBlock { structure, at, successor }).is_ok() {
                    self.reach("successor given back");
                }
            }
            Effect::BeginMove { structure, at, start, way } => {
                self.reach(match way {
                    Way::Split => "split asked for",
                    Way::Merge => "merge asked for",
                    Way::Relocate => "relocation asked for",
                });
                match self.command(ix, Command::BeginMove { structure, at, start, way }) {
                    Ok(Reply::Moving { id, entry }) => {
                        let address = Ok(entry.address.parse().expect("servers have addresses"));
                        let to = entry.at;
                        let entry = wire_entry(&entry);
                        let word = MoveWord::Begin { id: id.0, entry, address };
                        let then = Then::Move(self.requester(server, at), word);
                        self.when_open(ix, [to].into_iter(), then);
                    }
                    Ok(other) => panic!("a move was answered with {other:?}"),
                    Err(e) if !again && self.borrows(ix, &e) => self.park(server, effect),
                    Err(e) => {
                        self.reach("move refused");
                        let word = MoveWord::Refused(status_of(&e), e.to_string());
                        self.tell_server(server, Told::Move(at, word));
                    }
                }
            }
            Effect::CommitMove { structure, at, id, target, bytes } => {
                let (known, id) = (self.structures.contains_key(&structure), MoveId(id));
                let (reply, orders) =
                    self.decide(ix, Command::CommitMove { structure, at, id, target, bytes });
                let word = match reply {
                    Ok(Reply::Moved { version, entry }) => {
                        self.reach("move committed");
                        match self.structures.get(&structure).map(|known| known.opened.kind) {
                            Some(Kind::File) => self.reach("block of a file left its server"),
                            Some(Kind::Queue) => self.reach("block of a queue left its server"),
                            _ => {}
                        }
                        let entry = wire_entry(&entry);
                        MoveWord::Committed(MovedArgs { version: version.0, entry })
                    }
                    Ok(other) => panic!("a commit was answered with {other:?}"),
                    Err(e) => {
                        self.reach("commit refused");
                        MoveWord::NotCommitted(status_of(&e), e.to_string())
                    }
                };
                if !known {
                    self.broken(format!("{structure} commits a move, and nobody made it"));
                }
                // The source may learn of it long after the target.
                if self.rng.chance(20 * self.faults.partition) {
                    self.fault("cut link at a commit");
                    let until = self.now + trouble_lasts(&mut self.rng);
                    if let Some((place, _)) = self.controllers[ix].links.get(&server) {
                        self.net.cut(Node::Controller, Node::Server(*place), until);
                    }
                }
                // A block that gave everything away learns of it before it is freed.
                self.tell_server(server, Told::Move(at, word));
                self.dispatch(ix, orders);
            }
            Effect::CancelMove { structure, at, id } => {
                self.reach("move cancelled");
                let id = MoveId(id);
                let _ = self.command(ix, Command::CancelMove { structure, at, id });
            }
            Effect::LocateServer { shard, server: wanted } => {
                let address = self.controllers[ix].catalog.address_of(wanted);
                let found = address.ok_or(Status::NotFound);
                let found = found.map(|text| text.parse().expect("servers have addresses"));
                self.tell_server(server, Told::Located(shard, wanted, found));
            }
            // A client evacuates them: here they stay until they are replaced.
            Effect::ValuesLeave { .. } => self.reach("large values to leave"),
            Effect::Promote { structure, at } => {
                self.reach("promotion requested");
                let _ = self.command(ix, Command::RaiseBlock { structure, at });
            }
            Effect::TierChanged { structure, at, tier } => {
                let was = self.controllers[ix].catalog.tiers_of(at);
                let kind = self.structures.get(&structure).map(|known| known.opened.kind);
                self.reach(match (was, tier.is_below()) {
                    (Some((from, to)), _) if from.is_below() && !to.is_below() => {
                        if tier == to {
                            "block raised"
                        } else {
                            "raising given up"
                        }
                    }
                    (_, true) if kind == Some(Kind::Kv) => "block of a store lowered",
                    (_, true) => "block lowered",
                    (_, false) => "lowering given up",
                });
                let _ = self.command(ix, Command::TierChanged { structure, at, tier });
                self.unpark(ix);
            }
            Effect::BlockFailed { structure, at, why } => {
                self.block_failed(ix, structure, at, &why)
            }
            Effect::Retire { structure, at } => {
                let extents = self.controllers[ix].model.holds_extents(structure, at);
                if self.command(ix, Command::RetireBlock { structure, at }).is_ok() {
                    self.stats.retired += 1;
                    self.reach(if extents {
                        "block of extents given back"
                    } else {
                        "block retired"
                    });
                }
            }
        }
    }

    /// A request that a block repeats: the reply is not delivered.
    fn asked_again(&mut self, effect: &Effect) {
        let ix = effect.controller() as usize;
        let _ = match *effect {
            Effect::Grow { structure, at } => {
                self.command(ix, Command::GrowStructure { structure, at })
            }
            Effect::Enlarge { structure, at, bytes } => {
                self.command(ix, Command::GrowBlock { structure, at, bytes })
            }
            Effect::Return { structure, at, ref successor } => {
                let successor = block_of(successor);
                self.command(ix, Command::ReturnBlock { structure, at, successor })
            }
            Effect::Sealed { structure, at, length, bytes, last } => {
                let seal = Seal { length, bytes, last };
                self.command(ix, Command::SealBlock { structure, at, seal })
            }
            Effect::Taken { structure, at, items, bytes } => {
                self.command(ix, Command::QueueTaken { structure, at, items, bytes })
            }
            Effect::Retire { structure, at } => {
                self.command(ix, Command::RetireBlock { structure, at })
            }
            Effect::BlockFailed { structure, at, .. } => {
                self.command(ix, Command::BlockFailed { structure, at })
            }
            Effect::CommitMove { structure, at, id, target, bytes } => {
                let id = MoveId(id);
                self.command(ix, Command::CommitMove { structure, at, id, target, bytes })
            }
            Effect::CancelMove { structure, at, id } => {
                self.command(ix, Command::CancelMove { structure, at, id: MoveId(id) })
            }
            // A server reports a tier once for each connection: its inventory repeats it. A second report
            // would end a demotion that was ordered after the first.
            Effect::TierChanged { .. }
            // A repeated one that was refused may be granted, and then the reply must be delivered.
            | Effect::BeginMove { .. }
            | Effect::LocateServer { .. }
            | Effect::ValuesLeave { .. }
            | Effect::Promote { .. } => return,
        };
    }

    /// A server could not execute an order.
    fn refused(&mut self, server: ServerId, order: &Order) {
        if let Order::LowerBlock { at, .. } = *order {
            self.reach("lowering refused");
            let ix = server.controller() as usize;
            let _ = self.command(ix, Command::LowerRefused { server, at });
            return self.unpark(ix);
        }
        if let Order::FlushBlock { at, .. } = *order {
            let ix = server.controller() as usize;
            let outcome = Err("the server refused");
            let _ = self.command(ix, Command::BlockFlushed { server, at, outcome });
            return;
        }
        if let Order::CutBlock { at, number, attempt, .. } = *order {
            let ix = server.controller() as usize;
            let outcome = Err((StopFault::Gone, "the server refused"));
            let _ =
                self.command(ix, Command::BlockStopped { server, number, at, attempt, outcome });
            return;
        }
        if let Order::ThawBlock { at, number, attempt, .. } = *order {
            let ix = server.controller() as usize;
            let thawed = Command::BlockThawed { server, number, at, attempt, stood: false };
            let _ = self.command(ix, thawed);
            return;
        }
        self.import_refused(order);
    }

    fn confirmed(&mut self, server: ServerId, order: &Order) {
        let ix = server.controller() as usize;
        match order {
            Order::OpenBlock { at, .. } | Order::BeginImport { at, .. } => {
                if let Order::OpenBlock { tier, .. } = order {
                    if tier.is_below() {
                        self.reach("placed below");
                    }
                    self.controllers[ix].opening.remove(at);
                    let _ = self.command(ix, Command::BlockOpened { server, at: *at });
                } else {
                    self.controllers[ix].importing.remove(at);
                }
                for waiting in &mut self.controllers[ix].waiting {
                    waiting.blocks.remove(at);
                }
                let ready = |w: &mut Waiting| w.blocks.is_empty();
                let ready: Vec<Waiting> =
                    self.controllers[ix].waiting.extract_if(.., ready).collect();
                ready.into_iter().for_each(|waiting| self.go_on(waiting.then));
            }
            Order::Release { stay: true, .. } => {
                let _ = self.command(ix, Command::ServerStays { server });
            }
            Order::FreeBlock { at, .. } => {
                let _ = self.command(ix, Command::BlockFreed { server, at: *at });
            }
            Order::FlushBlock { at, .. } => {
                let written = &[Written::default()][..];
                let outcome = Ok(written);
                let _ = self.command(ix, Command::BlockFlushed { server, at: *at, outcome });
            }
            &Order::CopyBlock { number, name, .. } => {
                let outcome = Ok((&[Written::default()][..], true));
                let copied = Command::BlockCopied { server, number, name, outcome };
                let _ = self.command(ix, copied);
            }
            &Order::CutBlock { number, at, attempt, .. } => {
                let stopped =
                    Command::BlockStopped { server, number, at, attempt, outcome: Ok(true) };
                let _ = self.command(ix, stopped);
            }
            &Order::ThawBlock { number, at, attempt, .. } => {
                let thawed = Command::BlockThawed { server, number, at, attempt, stood: true };
                let _ = self.command(ix, thawed);
            }
            &Order::SweepObjects { number, .. } => {
                let _ = self.command(ix, Command::Swept { server, number, outcome: Ok(()) });
            }
            &Order::CommitFlush { number, .. } => {
                let _ =
                    self.command(ix, Command::FlushCommitted { server, number, outcome: Ok(()) });
            }
            _ => {}
        }
    }

    /// Advances one controller shard in time.
    pub fn tick_controller(&mut self, ix: usize) {
        let now = self.controller_now();
        let last = std::mem::replace(&mut self.controllers[ix].last_tick, now);
        // Work takes no time here: the time between two ticks is a stall.
        let turn = self.controllers[ix].turns.turn(now, true, || Duration::ZERO);
        let running = self.controllers[ix].model.leases(last);
        if let Some(stall) = turn.stall {
            self.reach(if matches!(stall, Command::Amnesty) { "amnesty" } else { "stall" });
            let _ = self.command(ix, stall);
        }
        let links = self.controllers[ix].links.len();
        let _ = self.command(ix, Command::TickUntil { heard: turn.heard });
        self.leases_stood_still(ix, now.since(last), &running);
        if self.controllers[ix].links.len() < links {
            self.reach("server declared dead for its silence");
        }
        self.unpark(ix);
        if self.rng.chance(self.faults.renew_log) {
            self.reach("log replaced by a snapshot");
            let SimController { store, catalog, .. } = &mut self.controllers[ix];
            let store = store.as_mut().expect("a live controller has its store");
            if let Err(e) = store.renew(now, catalog, &Answers::default()) {
                self.broken(format!("the log could not be renewed: {e}"));
            }
        }
    }
}

impl World {
    /// After a pause of the controller every running lease has as much time left as before, and no
    /// lease has ended whose renewal had arrived in time (INV-27).
    fn leases_stood_still(&mut self, ix: usize, gap: Duration, running: &Running) {
        let model = &self.controllers[ix].model;
        if gap > PAUSE_SEEN
            && let Some(what) = model.shortened(running, 2 * TICK)
        {
            self.broken(format!("INV-27: after a pause of {gap:?} {what}"));
        }
    }
}

/// Whether a server has executed its order, although with an earlier generation.
fn is_same(errand: &Order, done: &Order) -> bool {
    match (errand, done) {
        (Order::OpenBlock { at, .. }, Order::OpenBlock { at: done, .. }) => at == done,
        _ => errand == done,
    }
}

/// Whether an order makes a block ready.
fn prepares(order: &Order, block: BlockAt) -> bool {
    matches!(order, Order::OpenBlock { at, .. } | Order::BeginImport { at, .. } if *at == block)
}

/// The block of an entry on the wire.
fn block_of(moved: &[u8]) -> BlockAt {
    let entry = MovedArgs::decode(moved).expect("the arguments were encoded here").entry;
    entry.at()
}
