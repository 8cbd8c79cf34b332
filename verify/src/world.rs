//! The virtual world: one clock, one stream of random numbers, a heap of events.

use crate::client::Task;
use crate::faults::Faults;
use crate::file::FileModel;
use crate::lease::LeaseModel;
use crate::queue::QueueModel;
use crate::server::{BLOCK, SimServer, Taken};
use honeycomb_catalog::{
    Actor, Catalog, CatalogError, Command, Config, Effect as Order, NewServer, Opened, Reply, Seal,
    Written,
};
use honeycomb_client::call::{Lanes, Routing};
use honeycomb_env::Entropy;
use honeycomb_server::{Access, Effect, MoveWord};
use honeycomb_structures::{News, Successor, Ticket};
use honeycomb_types::{
    BlockAt, BlockId, Epoch, JobId, Kind, ServerId, SessionId, StructureId, Time,
};
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::{RequestHeader, Status};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// Memory servers of a world.
const SERVERS: usize = 3;
/// Blocks of each shard: few, so that they are used again and again.
const BLOCKS: u32 = 12;
/// A try without an answer is given up after this.
pub const PATIENCE: Duration = Duration::from_millis(300);
/// Commands to the catalog between two checks of all its invariants.
const CHECK_EVERY: u64 = 50;
/// Everything must have ended this long after the last fault.
const SETTLE: Duration = Duration::from_secs(30);

/// One try of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TryId {
    pub task: usize,
    pub number: u64,
}

/// What travels.
#[derive(Debug)]
pub enum Message {
    /// To a client.
    Reply { to: TryId, status: Status, value: u64, args: Vec<u8>, payload: Vec<u8> },
    /// From a shard to the controller.
    Asked { server: ServerId, effect: Effect },
}

/// What happens.
pub enum Event {
    /// A request arrives at a server.
    Request {
        server: usize,
        id: ServerId,
        to: TryId,
        access: Box<Access>,
        header: [u8; 64],
        args: Vec<u8>,
        payload: Vec<u8>,
    },
    /// More of a large payload arrives.
    Piece { server: usize, id: ServerId, ticket: Ticket },
    /// Something arrives at a client or the controller.
    Arrive(Message),
    /// An order of the controller arrives at its server.
    Order(Order),
    /// A block hears that what was taken from it has been noted.
    TakenHeard(BlockAt),
    /// A server's confirmation arrives at the controller.
    Confirmed(Order),
    /// A task has waited long enough.
    Wake(TryId),
    /// A try had no answer for too long, or its connection failed.
    Lost(TryId, bool),
    /// A server learns that the connection of a try was closed.
    HungUp(TryId),
    /// A task's question to the controller arrives there.
    Ask(usize),
    /// The controller's answer arrives at the task.
    Told(usize, Box<Result<Opened, CatalogError>>),
    /// The keeper of a job renews what it keeps.
    Renew(usize),
    /// Time for the catalog.
    Tick,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The seed that shows it.
    pub seed: u64,
    /// When, in the virtual world.
    pub at: Time,
    /// How many events had happened.
    pub event: u64,
    /// What was seen.
    pub what: String,
}

/// What was drawn and done in a run.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Operations finished.
    pub operations: u64,
    /// Faults injected, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// Endings of operations, by status.
    pub endings: BTreeMap<&'static str, u64>,
    /// Blocks sealed with a successor.
    pub grown: u64,
    /// Blocks of queues retired.
    pub retired: u64,
    /// Events that happened.
    pub events: u64,
    /// Hash of everything that happened, in order (INV-35).
    pub trace: u64,
}

impl Stats {
    /// Faults in all.
    pub fn fault_count(&self) -> u64 {
        self.faults.values().sum()
    }
}

/// A structure as the world knows it.
pub struct Known {
    pub job: usize,
    pub path: String,
    pub name: String,
    pub opened: Opened,
    pub file: FileModel,
    pub queue: QueueModel,
    pub history: BTreeMap<Vec<u8>, Vec<crate::kv::Op>>,
    /// Its end is known: removed, expired or lost.
    pub gone: bool,
    /// Values that were written, so that each is written once.
    pub next_value: u64,
    /// A server has crashed since it was created.
    pub lost: bool,
}

/// A job with its keeper.
pub struct SimJob {
    pub id: JobId,
    pub kept: Vec<String>,
    pub leases: LeaseModel,
}

/// A block's successor, to be told when it is open.
struct Growing {
    server: ServerId,
    asker: BlockAt,
    successor: Successor,
}

/// The whole world: nodes, network, models, and what was noted.
pub struct World {
    pub(crate) seed: u64,
    pub(crate) now: Time,
    pub(crate) rng: Entropy,
    pub(crate) faults: Faults,
    pub(crate) stats: Stats,
    pub(crate) catalog: Catalog,
    pub(crate) servers: Vec<SimServer>,
    pub(crate) jobs: Vec<SimJob>,
    pub(crate) structures: BTreeMap<StructureId, Known>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) sessions: Vec<Lanes>,
    pub(crate) violation: Option<String>,
    heap: BinaryHeap<Reverse<(Time, u64)>>,
    events: BTreeMap<u64, Event>,
    next_event: u64,
    commands: u64,
    orders: Vec<Order>,
    growing: BTreeMap<BlockAt, Growing>,
    /// What each session knows of each structure.
    pub(crate) routings: BTreeMap<(usize, StructureId), Routing>,
    trace: Option<Vec<String>>,
    pub(crate) working: bool,
    /// The kind of structure that most operations of this run go to, so that it gets deep.
    pub(crate) focus: Option<Kind>,
}

/// Runs one seed of about `operations` operations to its end.
pub fn run_seed(seed: u64, operations: u64) -> Result<Stats, Violation> {
    let mut world = World::new(seed, false);
    world.run(operations)
}

impl World {
    /// A world with its servers and clients, before anything has happened.
    pub fn new(seed: u64, keep_trace: bool) -> World {
        let mut rng = Entropy::seeded(seed);
        let faults = Faults::draw(&mut rng);
        let focus = [None, None, Some(Kind::File), Some(Kind::Queue), Some(Kind::Queue)];
        let focus = focus[rng.below(5) as usize];
        let mut world = World {
            seed,
            now: Time::from_millis(1000),
            catalog: Catalog::new(Config {
                shard: 0,
                term: 1,
                hash_seed: rng.next_u64(),
                ..Config::default()
            }),
            rng,
            faults,
            stats: Stats::default(),
            servers: Vec::new(),
            jobs: Vec::new(),
            structures: BTreeMap::new(),
            tasks: Vec::new(),
            sessions: Vec::new(),
            violation: None,
            heap: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            commands: 0,
            orders: Vec::new(),
            growing: BTreeMap::new(),
            routings: BTreeMap::new(),
            trace: keep_trace.then(Vec::new),
            working: true,
            focus,
        };
        for index in 0..SERVERS {
            let server = world.join(index);
            world.servers.push(server);
        }
        for session in 0..3u128 {
            world.sessions.push(Lanes::new(SessionId(session + 1)));
        }
        world
    }

    /// The text of everything that happened, when it was kept.
    pub fn trace(&self) -> Option<&[String]> {
        self.trace.as_deref()
    }

    fn join(&mut self, index: usize) -> SimServer {
        let address = format!("s{index}:1");
        let server = NewServer {
            address: &address,
            incarnation: self.rng.next_u64(),
            shards: crate::server::SHARDS,
            blocks_per_shard: BLOCKS,
            block_size: BLOCK as u64,
            flush: true,
            kinds: &[],
        };
        match self.command(Command::JoinServer { server }) {
            Ok(Reply::Joined(id)) => SimServer::new(id, address, BLOCKS),
            other => panic!("a server could not join: {other:?}"),
        }
    }

    /// Runs to the end: work under faults, then healing, then the last leases.
    pub fn run(&mut self, operations: u64) -> Result<Stats, Violation> {
        self.schedule(Duration::ZERO, Event::Tick);
        crate::client::set_up(self);
        self.until(|w| w.stats.operations >= operations)?;
        self.faults.heal();
        self.working = false;
        let deadline = self.now + SETTLE;
        self.until(|w| w.now > deadline || w.tasks.iter().all(Task::idle))?;
        if let Some(task) = self.tasks.iter().find(|t| !t.idle()) {
            let text = format!("an operation did not end in {SETTLE:?}: {}", task.describe());
            return Err(self.violation(text));
        }
        // What the servers still have to tell the controller arrives.
        let deadline = self.now + Duration::from_secs(1);
        self.until(|w| w.now > deadline)?;
        crate::client::judge_files(self);
        crate::queueing::judge(self);
        self.until(|w| w.tasks.iter().all(Task::idle))?;
        crate::client::judge_histories(self);
        for job in &mut self.jobs {
            job.kept.clear();
        }
        let deadline = self.now + Duration::from_secs(20);
        self.until(|w| w.now > deadline)?;
        self.judge_memory();
        self.until(|_| true)?;
        self.stats.events = self.next_event;
        Ok(self.stats.clone())
    }

    fn until(&mut self, done: impl Fn(&World) -> bool) -> Result<(), Violation> {
        loop {
            if let Some(what) = self.violation.take() {
                return Err(self.violation(what));
            }
            if done(self) {
                return Ok(());
            }
            let Some(Reverse((at, id))) = self.heap.pop() else { return Ok(()) };
            assert!(at >= self.now, "time does not run backwards");
            self.now = at;
            let event = self.events.remove(&id).expect("every entry of the heap has its event");
            self.handle(event);
        }
    }

    fn violation(&self, what: String) -> Violation {
        Violation { seed: self.seed, at: self.now, event: self.next_event, what }
    }

    /// Notes a broken promise; the first one counts.
    pub fn broken(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// Adds to the trace.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        let line = format!("{} {}", self.now, text());
        let mut hash = self.stats.trace;
        for byte in line.bytes() {
            hash = (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01B3);
        }
        self.stats.trace = hash;
        if let Some(trace) = &mut self.trace {
            trace.push(line);
        }
    }

    /// Counts a fault.
    pub fn fault(&mut self, name: &'static str) {
        *self.stats.faults.entry(name).or_default() += 1;
        self.note(|| format!("fault {name}"));
    }

    /// Lets an event happen later.
    pub fn schedule(&mut self, after: Duration, event: Event) {
        self.next_event += 1;
        self.heap.push(Reverse((self.now + after, self.next_event)));
        self.events.insert(self.next_event, event);
    }

    /// How long a message travels.
    pub fn way(&mut self) -> Duration {
        let usual = self.faults.delay_usual.as_nanos() as u64;
        if self.rng.chance(self.faults.delay) {
            self.fault("delay");
            let most = self.faults.delay_max.as_nanos() as u64;
            return Duration::from_nanos(usual + self.rng.below(most));
        }
        Duration::from_nanos(usual / 2 + self.rng.below(usual))
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Request { server, id, to, access, header, args, payload } => {
                self.request(server, id, to, &access, &header, &args, &payload);
            }
            Event::Piece { server, id, ticket } => self.piece(server, id, ticket),
            Event::Arrive(message) => self.arrive(message),
            Event::Order(order) => self.order(order),
            Event::TakenHeard(at) => self.tell(at, News::TakenHeard),
            Event::Confirmed(order) => self.confirmed(&order),
            Event::Wake(id) => crate::client::wake(self, id),
            Event::Lost(id, sent) => crate::client::lost(self, id, sent),
            Event::HungUp(id) => {
                for server in 0..self.servers.len() {
                    let messages = self.servers[server].hang_up(id);
                    self.send_all(messages);
                }
            }
            Event::Ask(task) => self.answer(task),
            Event::Told(task, answer) => crate::client::told(self, task, *answer),
            Event::Renew(job) => self.renew(job),
            Event::Tick => self.tick(),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn request(
        &mut self,
        server: usize,
        id: ServerId,
        to: TryId,
        access: &Access,
        header: &[u8; 64],
        args: &[u8],
        payload: &[u8],
    ) {
        if self.servers[server].id != id || !self.servers[server].alive {
            return;
        }
        let header = match RequestHeader::decode(header, true) {
            Ok(header) => header,
            Err(refusal) => return self.broken(format!("a client sent {refusal:?}")),
        };
        self.note(|| format!("request {to:?} {:?}", header.op));
        match self.servers[server].request(self.now, to, access, &header, args, payload) {
            Taken::Messages(messages) => self.send_all(messages),
            Taken::Filling(ticket) => {
                let after = self.way() / 4;
                self.schedule(after, Event::Piece { server, id, ticket });
            }
        }
    }

    fn piece(&mut self, server: usize, id: ServerId, ticket: Ticket) {
        if self.servers[server].id != id || !self.servers[server].filling.contains_key(&ticket) {
            return;
        }
        if self.rng.chance(self.faults.cut_payload) {
            self.fault("cut payload");
            let to = self.servers[server].filling[&ticket].to;
            let messages = self.servers[server].cut(self.now, ticket);
            self.send_all(messages);
            return self.schedule(Duration::from_micros(10), Event::Lost(to, true));
        }
        let bytes = 500 + self.rng.below(3000) as usize;
        let (more, messages) = self.servers[server].piece(self.now, ticket, bytes);
        self.send_all(messages);
        if more {
            let after = self.way() / 4;
            self.schedule(after, Event::Piece { server, id, ticket });
        }
    }

    fn send_all(&mut self, messages: Vec<Message>) {
        for message in messages {
            if matches!(message, Message::Reply { .. }) && self.rng.chance(self.faults.lose_reply) {
                self.fault("lost reply");
                continue;
            }
            let after = self.way();
            self.schedule(after, Event::Arrive(message));
        }
    }

    fn arrive(&mut self, message: Message) {
        match message {
            Message::Reply { to, status, value, args, payload } => {
                self.note(|| format!("reply {to:?} {} {value}", status.name()));
                crate::client::replied(self, to, status, value, &args, payload);
            }
            Message::Asked { server, effect } => self.asked(server, effect),
        }
    }

    /// A shard asks the controller for something.
    fn asked(&mut self, server: ServerId, effect: Effect) {
        match effect {
            Effect::Grow { structure, at } => {
                let reply = self.command(Command::GrowStructure { structure, at });
                match reply {
                    Ok(Reply::Grown { version, entry }) => {
                        let moved = MovedArgs { version: version.0, entry: wire_entry(&entry) };
                        let successor = Successor::Ready(moved.encode());
                        let growing = Growing { server, asker: at, successor };
                        // As the controller does: a block is named only when it is open.
                        if self.catalog.is_open(entry.at) {
                            self.tell_successor(growing);
                        } else {
                            self.growing.insert(entry.at, growing);
                        }
                    }
                    Ok(other) => panic!("growth was answered with {other:?}"),
                    Err(e) => {
                        let successor = Successor::Denied(Status::OutOfMemory, e.to_string());
                        self.tell_successor(Growing { server, asker: at, successor });
                    }
                }
            }
            Effect::Sealed { structure, at, length, bytes, last } => {
                self.stats.grown += u64::from(!last);
                // The structure may have ended meanwhile.
                let seal = Seal { length, bytes, last };
                let _ = self.command(Command::SealBlock { structure, at, seal });
            }
            Effect::Taken { structure, at, items, bytes } => {
                let _ = self.command(Command::QueueTaken { structure, at, items, bytes });
                let after = self.way();
                self.schedule(after, Event::TakenHeard(at));
            }
            Effect::Return { structure, at, successor } => {
                let entry = MovedArgs::decode(&successor).expect("it came from here").entry;
                let successor = BlockAt { block: BlockId(entry.block), epoch: Epoch(entry.epoch) };
                // Refused when the successor has grown on meanwhile: it is the asker's again then.
                let _ = self.command(Command::ReturnBlock { structure, at, successor });
            }
            // In this world nobody has room to move to.
            Effect::BeginMove { at, .. } => {
                let word = MoveWord::Refused(Status::OutOfMemory, "no moves in this world".into());
                let now = self.now;
                if let Some(server) = self.servers.iter_mut().find(|s| s.id == server && s.alive) {
                    server.shard(at).move_word(now, at, word);
                }
            }
            Effect::LocateServer { .. } => unreachable!("no value is large in this world"),
            Effect::CommitMove { .. } | Effect::CancelMove { .. } => {
                unreachable!("no move has begun")
            }
            Effect::Retire { structure, at } => {
                if self.command(Command::RetireBlock { structure, at }).is_ok() {
                    self.stats.retired += 1;
                }
            }
        }
    }

    /// Gives the catalog a command and sends what follows from it.
    pub fn command(&mut self, command: Command<'_>) -> Result<Reply, CatalogError> {
        let mut orders = std::mem::take(&mut self.orders);
        let reply = self.catalog.apply(self.now, command, &mut orders);
        for order in orders.drain(..) {
            let after = self.way();
            self.schedule(after, Event::Order(order));
        }
        self.orders = orders;
        // Reading the whole catalog costs more than most commands: now and then is enough to find
        // a state that stays wrong.
        self.commands += 1;
        if self.commands.is_multiple_of(CHECK_EVERY)
            && let Err(e) = self.catalog.check_invariants()
        {
            self.broken(format!("the catalog: {e:?}"));
        }
        reply
    }

    fn order(&mut self, order: Order) {
        let Some(index) = self.servers.iter().position(|s| s.id == order.server() && s.alive)
        else {
            return;
        };
        let (done, messages, opened) = self.servers[index].order(self.now, &order);
        if let Some(at) = opened.filter(|_| done) {
            let bytes = self.servers[index].shard(at).bytes(at, 0..BLOCK);
            if bytes.iter().any(|b| *b != 0) {
                self.broken(format!("{} shows its new owner old bytes (INV-04)", at.block));
            }
        }
        self.send_all(messages);
        if done {
            let after = self.way();
            self.schedule(after, Event::Confirmed(order));
        }
    }

    fn confirmed(&mut self, order: &Order) {
        let server = order.server();
        match order {
            Order::OpenBlock { at, .. } => {
                let _ = self.command(Command::BlockOpened { server, at: *at });
                if let Some(growing) = self.growing.remove(at) {
                    self.tell_successor(growing);
                }
            }
            Order::FreeBlock { at, .. } => {
                let _ = self.command(Command::BlockFreed { server, at: *at });
            }
            Order::FlushBlock { at, .. } => {
                let outcome = Ok(Written::default());
                let _ = self.command(Command::BlockFlushed { server, at: *at, outcome });
            }
            &Order::CommitFlush { number, .. } => {
                let _ = self.command(Command::FlushCommitted { server, number, outcome: Ok(()) });
            }
            Order::SetGeneration { .. }
            | Order::QueueAhead { .. }
            | Order::BeginImport { .. }
            | Order::EndImport { .. } => {}
        }
    }

    fn tell_successor(&mut self, growing: Growing) {
        let Growing { server, asker, successor } = growing;
        if self.servers.iter().any(|s| s.id == server && s.alive) {
            self.tell(asker, News::Successor(successor));
        }
    }

    /// The controller's word reaches a block.
    fn tell(&mut self, at: BlockAt, news: News) {
        let now = self.now;
        let found = self.servers.iter_mut().find(|s| s.id == at.block.server() && s.alive);
        if let Some(server) = found {
            server.shard(at).tell(now, at, news);
            let messages = server.settle();
            self.send_all(messages);
        }
    }

    /// A task's question reaches the controller.
    fn answer(&mut self, task: usize) {
        let Some(structure) = self.tasks[task].structure() else { return };
        let job = self.structures[&structure].job;
        let id = self.jobs[job].id;
        let actor = Actor::driver(id);
        let reply = self.command(Command::ReopenStructure { actor, job: id, structure });
        let answer = match reply {
            Ok(Reply::Opened(opened)) => Ok(opened),
            Ok(other) => panic!("opening was answered with {other:?}"),
            Err(e) => Err(e),
        };
        let after = self.way();
        self.schedule(after, Event::Told(task, Box::new(answer)));
    }

    fn renew(&mut self, job: usize) {
        let id = self.jobs[job].id;
        let kept = self.jobs[job].kept.clone();
        let paths: Vec<&str> = kept.iter().map(String::as_str).collect();
        let actor = Actor::driver(id);
        if let Ok(Reply::Renewed(results)) =
            self.command(Command::RenewLeases { actor, job: id, paths: &paths })
        {
            let now = self.now;
            for (path, result) in kept.iter().zip(results) {
                match result {
                    Ok(_) => self.jobs[job].leases.renewed(now, path),
                    Err(e) => self.note(|| format!("not renewed: {e}")),
                }
            }
        }
        self.schedule(Duration::from_millis(50), Event::Renew(job));
    }

    /// Expires what is due and compares with the model.
    fn tick(&mut self) {
        let _ = self.command(Command::Tick);
        for server in 0..self.servers.len() {
            let (id, alive) = (self.servers[server].id, self.servers[server].alive);
            if alive {
                let messages = self.servers[server].tick(self.now);
                self.send_all(messages);
                let report = honeycomb_catalog::Report {
                    bytes_resident: 0,
                    connections: 0,
                    requests: 0,
                    forwarded: 0,
                    usage: &[],
                };
                let _ = self.command(Command::ServerReport { server: id, report });
            }
        }
        for job in 0..self.jobs.len() {
            self.observe_leases(job);
        }
        self.schedule(Duration::from_millis(10), Event::Tick);
    }

    fn observe_leases(&mut self, job: usize) {
        let (id, now) = (self.jobs[job].id, self.now);
        for path in self.jobs[job].leases.live() {
            let command =
                Command::LeaseInfo { actor: Actor::driver(id), job: id, path: path.as_str() };
            let mut none = Vec::new();
            let live = self.catalog.apply(now, command, &mut none).is_ok();
            if let Err(e) = self.jobs[job].leases.observe(now, &path, live) {
                self.broken(e);
            }
        }
    }

    /// Crashes a server; it comes back at once under a new name, with nothing.
    pub fn crash(&mut self) {
        self.fault("crash");
        let index = self.rng.below(self.servers.len() as u64) as usize;
        let id = self.servers[index].id;
        // Which blocks were there changes as files grow; any structure may have had one.
        for known in self.structures.values_mut() {
            known.lost = true;
        }
        let _ = self.command(Command::ServerLost { server: id });
        let server = self.join(index);
        self.servers[index] = server;
    }

    /// When all leases have ended, every block is free again (INV-02, INV-13).
    fn judge_memory(&mut self) {
        let actor = Actor::CLUSTER;
        let Ok(Reply::Status(status)) = self.command(Command::ClusterStatus { actor }) else {
            return self.broken("the cluster has no status".into());
        };
        if status.free + status.quarantined != status.blocks || status.structures != 0 {
            let text = format!(
                "{} of {} blocks are free, {} structures live after the last lease",
                status.free, status.blocks, status.structures
            );
            self.broken(text);
        }
        for server in &mut self.servers {
            let held: Vec<BlockAt> = server.held();
            if !held.is_empty() && self.violation.is_none() {
                self.violation = Some(format!("{} still holds {held:?}", server.address));
            }
        }
    }
}

/// An entry as the wire has it.
pub fn wire_entry(e: &honeycomb_catalog::MapEntry) -> MapEntry {
    MapEntry {
        start: e.start,
        end: e.end,
        block: e.at.block.0,
        epoch: e.at.epoch.0,
        address: e.address.to_string(),
    }
}
