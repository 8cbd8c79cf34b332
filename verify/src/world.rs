//! The virtual world: one clock, one stream of random numbers, a heap of events.

mod servers;

use crate::accounts;
use crate::cells::Cell;
use crate::client::{Task, What};
use crate::controller::{Question, Said, SimController, TICK, Told};
use crate::copies::Copies;
use crate::faults::{Faults, Shape};
use crate::file::FileModel;
use crate::large::Written;
use crate::moves::Line;
use crate::net::{CLIENTS, Net, Node, SERVERS};
use crate::queue::QueueModel;
use crate::report::Stats;
use crate::server::{Caller, Layout, Message, ShardLine, SimServer};
use crate::sizes::Sizes;
use crate::tiers::Disks;
use honeycomb_catalog::Opened;
use honeycomb_client::Error;
use honeycomb_client::call::{LaneAllocator, Routing};
use honeycomb_env::Entropy;
use honeycomb_server::{CallerAccess, Io, IoDone, IoId, PostPayload};
use honeycomb_structures::Ticket;
use honeycomb_types::limits::{
    ADOPT_MAX, EXTENT_PENDING_MS, MESSAGE_LIFE_MS, SERVER_LOSS_DEFAULT_MS,
};
use honeycomb_types::{JobId, Kind, PrefixId, ServerId, SessionId, StructureId, Time};
use honeycomb_wire::Status;
use honeycomb_wire::messages::MapEntry;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt::Write;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// A try without a reply is given up after this time.
pub const PATIENCE: Duration = Duration::from_millis(300);
/// A writer is refused for lack of memory for at most this long after memory was freed.
pub const REFUSAL_LASTS: Duration = Duration::from_millis(500);
/// Everything must have ended this long after the last fault (INV-34).
const SETTLE: Duration = Duration::from_secs(30);
/// The longest time that a run continues while it has no structures to work on.
const RUN_MAX: Duration = Duration::from_secs(60);
/// The shortest lease of the workload: any longer time exceeds a lease.
pub const LEASE_SHORT: Duration = Duration::from_millis(200);

/// One try of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TryId {
    pub task: usize,
    pub number: u64,
}

/// A request in transit.
pub struct Request {
    pub access: CallerAccess,
    pub header: [u8; 64],
    pub args: Vec<u8>,
    /// Pinned bytes of a moving block are read only when they arrive, because they must not change before.
    pub payload: PostPayload,
}

/// The events.
pub enum Event {
    /// A request arrives at a server's process, if it is still running.
    Request { server: usize, life: u64, from: Caller, request: Box<Request> },
    /// More of a large payload arrives.
    Piece { server: usize, life: u64, ticket: Ticket },
    /// A reply arrives at its caller.
    Reply(Box<Message>),
    /// A reply arrives at a server from another server.
    LineAnswered { conn: u64, status: Status },
    /// A server learns that a connection to another one is gone.
    LineLost { server: usize, life: u64, line: ShardLine },
    /// The other server learns it too.
    LineHungUp { server: usize, life: u64, conn: u64 },
    /// A message arrives at the controller over the link of a server.
    Said { server: usize, link: u64, said: Box<Said> },
    /// A message arrives at a server over its link.
    ToldServer { server: usize, link: u64, told: Told },
    /// A server learns that its link is closed.
    LinkClosed { server: usize, link: u64 },
    /// The controller learns that a server's link is closed.
    LinkLost { server: usize, link: u64 },
    /// The controller probes whether the process of a server without a connection has ended.
    Probe { server: usize, id: ServerId },
    /// A server requests to join a controller shard over a new connection, and reports the blocks
    /// that it lends.
    Join { server: usize, life: u64, link: u64, controller: usize, lent: Vec<u32> },
    /// A server has joined.
    Joined { server: usize, life: u64, link: u64, id: ServerId, known: bool, now_ms: u64 },
    /// A server that has not joined a controller shard checks whether it should repeat the request.
    Rejoin { server: usize, life: u64, controller: usize },
    /// A server's process restarts.
    Restart { server: usize },
    /// A controller shard restarts.
    RestartController(usize),
    /// A task's wait is over.
    Wake(TryId),
    /// A try had no reply for too long, or its connection failed.
    Lost(TryId, bool),
    /// A server learns that the connection of a try was closed.
    HungUp { server: usize, of: TryId },
    /// A task's question arrives at the controller.
    Ask(Question),
    /// The controller's reply arrives at the task, with the time at the controller.
    ToldClient { task: usize, number: u64, answer: Box<Result<(Opened, u64), Error>> },
    /// The same, for blocks of extents.
    ToldExtents { task: usize, number: u64, answer: Box<Result<Vec<MapEntry>, Error>> },
    /// The keeper of a job renews its prefixes.
    Keep(usize),
    /// The renewal arrives.
    Renew { job: usize, paths: Vec<String> },
    /// An owner's request arrives at the controller.
    Own(crate::owner::OwnerRequest),
    /// A server's disk executes a request of one of its shards.
    Io { server: usize, life: u64, shard: u8, io: Box<Io> },
    /// The shard learns the outcome.
    IoDone { server: usize, life: u64, shard: u8, id: IoId, done: Box<IoDone> },
    /// A node checks its timers.
    Tick(Node),
}

/// A violated guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The seed that reveals it.
    pub seed: u64,
    /// Its time in the virtual world.
    pub at: Time,
    /// The number of events before it.
    pub event: u64,
    /// The observation.
    pub what: String,
}

/// A session's permissions on a structure, from the controller's last reply.
#[derive(Clone, Copy, Debug)]
pub struct Permit {
    pub generation: honeycomb_types::Generation,
    /// Expiry in the controller's milliseconds.
    pub expires_ms: u64,
}

/// The world's knowledge of a structure.
pub struct Known {
    pub job: usize,
    pub path: String,
    pub name: String,
    pub opened: Opened,
    pub file: FileModel,
    pub queue: QueueModel,
    pub history: BTreeMap<Vec<u8>, Vec<crate::kv::Op>>,
    pub accounts: Vec<accounts::Op>,
    /// Every list of extents that a put has named, with its content.
    pub lists: BTreeMap<Vec<u8>, Written>,
    /// The key of the last large value.
    pub large_key: Option<Vec<u8>>,
    /// Its end is known: removed, expired or lost.
    pub gone: bool,
    /// The length of most of its values; 0 if they have every length.
    pub usual: usize,
    /// Number of values written, so that each is written once.
    pub next_value: u64,
    /// A server was lost since it was created.
    pub lost: bool,
}

/// The prefix of a session.
#[derive(Clone, Debug, Default)]
pub struct SessionTask {
    pub path: String,
    pub prefix: Option<PrefixId>,
}

/// A job with its keeper, which is a client process.
pub struct SimJob {
    pub id: JobId,
    pub keeper: usize,
    pub kept: Vec<String>,
    /// The prefix of each session.
    pub tasks: Vec<SessionTask>,
    /// An owner without a reply to its request repeats it after this time.
    pub request_after: Time,
}

/// The whole world: nodes, network, models, and observations.
pub struct World {
    pub(crate) seed: u64,
    pub(crate) now: Time,
    pub(crate) rng: Entropy,
    pub(crate) faults: Faults,
    pub(crate) copies: Copies,
    /// The node that dies in the middle of a move, and after how many steps of its kind.
    pub(crate) cell: Option<(Cell, u64)>,
    pub(crate) stats: Stats,
    pub(crate) net: Net,
    pub(crate) controllers: Vec<SimController>,
    pub(crate) servers: Vec<SimServer>,
    pub(crate) jobs: Vec<SimJob>,
    pub(crate) structures: BTreeMap<StructureId, Known>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) sessions: Vec<LaneAllocator>,
    pub(crate) violation: Option<String>,
    heap: BinaryHeap<Reverse<(Time, u64, u32)>>,
    events: Vec<Option<Event>>,
    vacant: Vec<u32>,
    next_event: u64,
    next_link: u64,
    /// Connections between servers that move blocks.
    pub(crate) lines: BTreeMap<u64, Line>,
    /// Each session's knowledge of each structure.
    pub(crate) routings: BTreeMap<(usize, StructureId), Routing>,
    /// Whether a list of extents was written as an extent.
    pub(crate) wrote_lists: bool,
    pub(crate) permits: BTreeMap<(usize, StructureId), Permit>,
    trace: Option<Vec<String>>,
    line: String,
    pub(crate) working: bool,
    /// The kind of structure for most operations of this run, so that it grows deep.
    pub(crate) focus: Option<Kind>,
    /// Blocks of each shard that fit on its disk; 0 if there is none.
    pub(crate) below: u32,
    /// Blocks of each shard that fit in the store under it.
    pub(crate) store: u32,
    pub(crate) disks: Disks,
    pub(crate) sizes: Sizes,
    /// Operations at the end, after all faults: each must succeed.
    pub(crate) proofs: VecDeque<(StructureId, What)>,
    pub(crate) proving: bool,
    /// Since when there is room for blocks, as far as it was looked for.
    pub(crate) room_since: Option<Time>,
}

/// Runs one seed of about `operations` operations to its end.
pub fn run_seed(seed: u64, operations: u64) -> Result<Stats, Violation> {
    let stats = World::new(seed, false).run_caught(operations)?;
    caught(|| crate::lives::play(seed))
        .flatten()
        .map_err(|what| Violation { seed, at: Time::ZERO, event: 0, what })
        .map(|()| stats)
}

/// The result; the panic of a state machine is an error with its text.
fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        format!("panicked: {}", text.unwrap_or("without a word"))
    })
}

/// A run in which the first server is unreachable for so long, without other faults. Its cluster
/// loses a silent server after the default time.
pub fn run_cut_off(lasts: Duration) -> Result<Stats, Violation> {
    let fits = |seed: &u64| {
        let loss = Shape::of(*seed, 1).server_loss_ms;
        crate::lots::controllers(*seed) == 1 && loss == SERVER_LOSS_DEFAULT_MS
    };
    let seed = (1..).find(fits).expect("one in four seeds does");
    let mut world = World::without_faults(seed);
    world.schedule(Duration::ZERO, Event::Tick(Node::Controller));
    crate::owner::set_up(&mut world);
    crate::client::set_up(&mut world);
    let begin = world.now + Duration::from_secs(2);
    world.until(|w| w.now > begin)?;
    let end = world.now + lasts;
    world.net.isolate(Node::Server(0), end);
    world.until(|w| w.now > end + Duration::from_secs(3))?;
    Ok(world.stats)
}

/// A run without faults, whose disks need so long for each request. Nobody waits without end for memory that
/// others have.
pub fn run_slow_disks(
    seed: u64,
    time: Range<Duration>,
    operations: u64,
) -> Result<Stats, Violation> {
    let mut world = World::without_faults(seed);
    world.disks = Disks::slow(seed, time);
    world.run(operations)
}

impl World {
    /// A world of this seed in which nodes, networks and processes have no faults.
    fn without_faults(seed: u64) -> World {
        let mut world = World::new(seed, false);
        world.faults.heal();
        world.cell = None;
        world
    }

    /// A world with its servers and clients, before the first event.
    pub fn new(seed: u64, keep_trace: bool) -> World {
        let mut rng = Entropy::seeded(seed);
        let controllers = crate::lots::controllers(seed);
        let mut faults =
            Faults { controllers, drain: crate::drain::rate(seed), ..Faults::draw(&mut rng) };
        let cell = Cell::draw(&mut rng);
        let focus = [None, None, Some(Kind::File), Some(Kind::Queue), Some(Kind::Kv)];
        let focus = focus[rng.below(5) as usize];
        // A crash cell of moves needs moves.
        let mut focus = if cell.is_some() { Some(Kind::Kv) } else { focus };
        let below = crate::tiers::below(seed, controllers);
        let scarce = crate::tiers::scarce(seed, below);
        let mut sizes = Sizes::draw(seed, scarce);
        if scarce {
            (faults.blocks, faults.tiny) = (5, true);
            // Little memory for deltas is for stores in lower tiers.
            let most = if crate::tiers::deltas(seed) == 512 { Kind::Kv } else { Kind::File };
            focus = focus.filter(|_| cell.is_some()).or(Some(most));
        }
        if sizes.deep {
            let kinds = [Kind::File, Kind::Queue, Kind::Kv, Kind::Kv];
            faults.blocks = crate::tiers::frames(&mut sizes);
            focus = focus.filter(|_| cell.is_some()).or(Some(kinds[sizes.below(4) as usize]));
        }
        let net = Net::new(&mut rng, faults.clock_ppm);
        let mut world = World {
            seed,
            now: Time::from_millis(1000),
            controllers: (0..controllers)
                .map(|ix| {
                    let cluster = Shape::of(seed, controllers);
                    SimController::new(ix, rng.next_u64(), cluster, sizes.block)
                })
                .collect(),
            net,
            rng,
            faults,
            copies: Copies::draw(seed),
            cell,
            stats: Stats::default(),
            servers: Vec::new(),
            jobs: Vec::new(),
            structures: BTreeMap::new(),
            tasks: Vec::new(),
            sessions: Vec::new(),
            violation: None,
            heap: BinaryHeap::new(),
            events: Vec::new(),
            vacant: Vec::new(),
            next_event: 0,
            next_link: 0,
            lines: BTreeMap::new(),
            routings: BTreeMap::new(),
            wrote_lists: false,
            permits: BTreeMap::new(),
            trace: keep_trace.then(Vec::new),
            line: String::new(),
            working: true,
            focus,
            below,
            store: crate::tiers::store(seed, below),
            disks: Disks::draw(seed),
            sizes,
            proofs: VecDeque::new(),
            proving: false,
            room_since: None,
        };
        let classes = world.faults.classes();
        world.note(|| format!("faults {classes:?}"));
        for (i, class) in classes.iter().enumerate() {
            *world.stats.classes.entry(class).or_default() += 1;
            for other in &classes[i + 1..] {
                *world.stats.pairs.entry((class, other)).or_default() += 1;
            }
        }
        for server in 0..SERVERS {
            world.join_at_once(server);
            world.schedule(TICK, Event::Tick(Node::Server(server)));
        }
        for session in 0..CLIENTS as u128 {
            world.sessions.push(LaneAllocator::new(SessionId(session + 1)));
        }
        world
    }

    /// The text of all events, if it was kept.
    pub fn trace(&self) -> Option<&[String]> {
        self.trace.as_deref()
    }

    /// As `run`; the panic of a state machine is a violation like any other, and is reported with
    /// its seed.
    pub fn run_caught(&mut self, operations: u64) -> Result<Stats, Violation> {
        match caught(|| self.run(operations)) {
            Ok(outcome) => outcome,
            Err(what) => Err(self.violated(what)),
        }
    }

    /// Runs to the end: work under faults, then healing, then the last leases.
    pub fn run(&mut self, operations: u64) -> Result<Stats, Violation> {
        self.schedule(Duration::ZERO, Event::Tick(Node::Controller));
        crate::owner::set_up(self);
        crate::client::set_up(self);
        let end = self.now + RUN_MAX;
        self.until(|w| w.stats.operations >= operations || w.now > end)?;
        self.heal();
        self.end_checkpoint();
        let deadline = self.now + SETTLE;
        self.until(|w| w.now > deadline || w.tasks.iter().all(Task::idle))?;
        if let Some(task) = self.tasks.iter().find(|t| !t.idle()) {
            let text = format!("an operation did not end in {SETTLE:?}: {}", task.describe());
            return Err(self.violated(text));
        }
        // The last messages from servers to the controller arrive.
        let arrived = self.net.settled_at().max(self.now) + Duration::from_millis(500);
        self.until(|w| w.now > arrived)?;
        self.look_for_room();
        let deadline = arrived + REFUSAL_LASTS;
        self.until(|w| w.now > deadline)?;
        self.judge_seals();
        self.prove()?;
        crate::client::judge_files(self);
        crate::queueing::judge(self);
        crate::storing::judge(self);
        self.until(|_| true)?;
        // By then all unnamed extents are dropped, and lists that nothing names with their extents.
        let listed = Duration::from_millis(EXTENT_PENDING_MS) * u32::from(self.wrote_lists);
        let deadline = self.now + ADOPT_MAX + listed;
        self.until(|w| w.now > deadline)?;
        let deadline = self.now + SETTLE;
        while !crate::large::judge(self) {
            // A moving range cannot be read for a moment.
            let again = self.now + TICK;
            self.until(|w| w.now > again)?;
            assert!(self.now < deadline, "a range that moves cannot be read for {SETTLE:?}");
        }
        self.until(|_| true)?;
        let deadline = self.now + SETTLE;
        self.until(|w| w.now > deadline || w.places_agree())?;
        if !self.places_agree() {
            let text = "a block is not in the tier that its catalog believes (INV-42)";
            return Err(self.violated(text.into()));
        }
        for job in &mut self.jobs {
            job.kept.clear();
        }
        let deadline = self.now + Duration::from_secs(12);
        self.until(|w| w.now > deadline)?;
        self.judge_memory();
        self.judge_disks();
        self.until(|_| true)?;
        self.count_overlaps();
        self.stats.events = self.next_event;
        self.stats.virtual_ms = self.now.as_millis();
        Ok(self.stats.clone())
    }

    /// After all faults, the whole content can be read, as clients read it, and in time.
    fn prove(&mut self) -> Result<(), Violation> {
        for begin in [crate::client::begin_proofs, crate::client::seal_files] {
            begin(self);
            let deadline = self.now + SETTLE;
            let done = |w: &World| w.proofs.is_empty() && w.tasks.iter().all(Task::idle);
            self.until(|w| w.now > deadline || done(w))?;
            if let Some(task) = self.tasks.iter().find(|t| !t.idle()) {
                let text = format!("without a fault an operation did not end: {}", task.describe());
                return Err(self.violated(text));
            }
        }
        self.proving = false;
        // The controller receives the last seals.
        let told = self.now + Duration::from_secs(1);
        self.until(|w| w.now > told)
    }

    /// The blocks of servers, with their memory and disks.
    pub(crate) fn layout(&self) -> Layout {
        Layout {
            block: self.sizes.block,
            frames: self.faults.blocks,
            below: self.below,
            store: self.store,
            buffers: self.sizes.buffers,
            deltas: crate::tiers::deltas(self.seed),
        }
    }

    fn heal(&mut self) {
        self.faults.heal();
        self.disks.heal();
        for server in &self.servers {
            server.disk.set_room(None);
            server.store.set_away(false);
        }
        self.cell = None;
        self.net.heal();
        self.working = false;
        for server in 0..SERVERS {
            if !self.servers[server].alive {
                self.restart(server);
            }
        }
        (0..self.controllers.len()).for_each(|ix| self.restart_controller(ix));
        self.cancel_drains();
    }

    /// Lets time pass after all work. A violation meanwhile is recorded, and reported when the run goes on.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        if let Err(violation) = self.until(|world| world.now >= until) {
            self.broken(violation.what);
        }
    }

    fn until(&mut self, done: impl Fn(&World) -> bool) -> Result<(), Violation> {
        loop {
            if let Some(what) = self.violation.take() {
                return Err(self.violated(what));
            }
            if done(self) {
                return Ok(());
            }
            let Some(Reverse((at, id, slot))) = self.heap.pop() else { return Ok(()) };
            assert!(at >= self.now, "time does not run backwards");
            self.now = at;
            let place = &self.events[slot as usize];
            let event = place.as_ref().expect("every entry of the heap has its event");
            // A frozen node receives all messages of that time later, in order.
            let node = self.place_of(event);
            let still = node.map_or(Time::ZERO, |node| self.net.still_until(node));
            if still > at {
                self.heap.push(Reverse((still, id, slot)));
                continue;
            }
            let event = self.events[slot as usize].take().expect("seen just now");
            self.vacant.push(slot);
            self.handle(event);
        }
    }

    /// The node of an event; `None` for an event outside of all processes.
    fn place_of(&self, event: &Event) -> Option<Node> {
        let client = |task: usize| Node::Client(self.tasks[task].session());
        Some(match event {
            Event::Request { server, .. }
            | Event::Piece { server, .. }
            | Event::ToldServer { server, .. }
            | Event::LinkClosed { server, .. }
            | Event::Joined { server, .. }
            | Event::Rejoin { server, .. }
            | Event::LineLost { server, .. }
            | Event::LineHungUp { server, .. }
            | Event::Io { server, .. }
            | Event::IoDone { server, .. }
            | Event::HungUp { server, .. } => Node::Server(*server),
            Event::LineAnswered { conn, .. } => Node::Server(self.lines.get(conn)?.from.0),
            Event::Said { .. }
            | Event::LinkLost { .. }
            | Event::Probe { .. }
            | Event::Join { .. }
            | Event::Ask(_)
            | Event::Renew { .. }
            | Event::Own(_) => Node::Controller,
            Event::Reply(message) => match message.to {
                Caller::Task(id) => client(id.task),
                _ => return None,
            },
            Event::Wake(id) | Event::Lost(id, _) => client(id.task),
            Event::ToldClient { task, .. } | Event::ToldExtents { task, .. } => client(*task),
            Event::Keep(job) => Node::Client(self.jobs[*job].keeper),
            Event::Tick(node) => *node,
            Event::Restart { .. } | Event::RestartController(_) => return None,
        })
    }

    /// The controller shard to which an event has a request, from any sender.
    fn asked_of(&self, event: &Event) -> Option<usize> {
        let of = |job: usize| self.jobs[job].id.controller();
        let ix = match event {
            Event::Join { controller, .. } => return Some(*controller),
            Event::Ask(question) => question.structure.controller(),
            Event::Renew { job, .. } => of(*job),
            Event::Own(request) => request.job(self).map(of)?,
            _ => return None,
        };
        Some(ix as usize)
    }

    fn violated(&self, what: String) -> Violation {
        Violation { seed: self.seed, at: self.now, event: self.next_event, what }
    }

    /// Records a violation; the first one counts.
    pub fn broken(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// Adds a line to the trace.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        self.line.clear();
        let _ = write!(self.line, "{} {}", self.now, text());
        let mut hash = self.stats.trace;
        for word in self.line.as_bytes().chunks(8) {
            let mut eight = [0; 8];
            eight[..word.len()].copy_from_slice(word);
            hash = (hash ^ u64::from_le_bytes(eight)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            hash ^= hash >> 29;
        }
        self.stats.trace = hash;
        if let Some(trace) = &mut self.trace {
            trace.push(self.line.clone());
        }
    }

    /// Counts a fault.
    pub fn fault(&mut self, name: &'static str) {
        *self.stats.faults.entry(name).or_default() += 1;
        self.note(|| format!("fault {name}"));
    }

    /// Counts a state that every long run must reach.
    pub fn reach(&mut self, name: &'static str) {
        *self.stats.states.entry(name).or_default() += 1;
    }

    /// Schedules an event after a time.
    pub fn schedule(&mut self, after: Duration, event: Event) {
        self.schedule_at(self.now + after, event);
    }

    /// Schedules an event at a time.
    pub fn schedule_at(&mut self, at: Time, event: Event) {
        self.next_event += 1;
        let slot = match self.vacant.pop() {
            Some(slot) => slot,
            None => {
                self.events.push(None);
                self.events.len() as u32 - 1
            }
        };
        self.events[slot as usize] = Some(event);
        self.heap.push(Reverse((at, self.next_event, slot)));
    }

    /// A connection with a new number.
    pub fn new_link(&mut self) -> u64 {
        self.next_link += 1;
        self.next_link
    }

    /// The value of a node's clock.
    pub fn local(&self, node: Node) -> Time {
        self.net.local(node, self.now)
    }

    /// The travel time of a message.
    pub fn way(&mut self) -> Duration {
        let usual = self.faults.delay_usual.as_nanos() as u64;
        if self.rng.chance(self.faults.delay) {
            self.fault("delay");
            let most = self.faults.delay_max.as_nanos() as u64;
            return Duration::from_nanos(usual + self.rng.below(most));
        }
        Duration::from_nanos(usual / 2 + self.rng.below(usual))
    }

    /// The arrival time of a message that is not repeated, if it arrives: during a partition it may
    /// be lost, or wait in a buffer until the end of the partition.
    pub fn travel(&mut self, from: Node, to: Node) -> Option<Time> {
        let cut = self.net.cut_until(from, to);
        let way = self.way();
        if cut <= self.now {
            return Some(self.now + way);
        }
        // The sender's kernel gives up the request (ADR 0044).
        let life = Duration::from_millis(MESSAGE_LIFE_MS);
        if self.rng.chance(500_000) || cut.since(self.now) >= life {
            return None;
        }
        self.fault("late request");
        Some(cut + way)
    }

    /// The arrival time of a message on a connection that keeps its order and repeats lost
    /// messages.
    pub fn arrival(&mut self, from: Node, to: Node, connection: u64) -> Time {
        let way = self.way();
        let at = self.net.cut_until(from, to).max(self.now) + way;
        self.net.in_order(connection, to, at)
    }

    fn handle(&mut self, event: Event) {
        let strike = self.note_step(&event).and_then(|coming| self.strikes(coming));
        if let Some(strike) = strike.as_ref().filter(|strike| !strike.cell.after) {
            self.strike(strike);
        }
        self.happen(event);
        if let Some(strike) = strike.filter(|strike| strike.cell.after) {
            self.strike(&strike);
        }
    }

    fn happen(&mut self, event: Event) {
        if self.asked_of(&event).is_some_and(|ix| !self.controllers[ix].alive) {
            return; // No receiver exists.
        }
        match event {
            Event::Io { server, life, shard, io } => self.io(server, life, shard, *io),
            Event::IoDone { server, life, shard, id, done } => {
                self.io_done(server, life, shard, id, *done);
            }
            Event::Request { server, life, from, request } => {
                self.request(server, life, from, *request);
            }
            Event::Piece { server, life, ticket } => self.piece(server, life, ticket),
            Event::Reply(message) => crate::client::replied(self, *message),
            Event::LineAnswered { conn, status } => self.line_answered(conn, status),
            Event::LineLost { server, life, line } => self.line_lost(server, life, line),
            Event::LineHungUp { server, life, conn } => self.line_hung_up(server, life, conn),
            Event::Said { server, link, said } => self.said(server, link, *said),
            Event::ToldServer { server, link, told } => self.told_server(server, link, told),
            Event::LinkClosed { server, link } => self.link_closed(server, link),
            Event::LinkLost { server, link } => self.link_lost(server, link),
            Event::Join { server, life, link, controller, lent } => {
                let sim = &self.servers[server];
                let attempt = sim.members[controller].attempt;
                if sim.life == life && sim.alive && attempt == link {
                    self.join(server, life, link, controller, &lent);
                }
            }
            Event::Joined { server, life, link, id, known, now_ms } => {
                self.joined(server, life, link, (id, known), now_ms);
            }
            Event::RestartController(ix) => self.restart_controller(ix),
            Event::Probe { server, id } => self.probe(server, id),
            Event::Rejoin { server, life, controller } => self.rejoin(server, life, controller),
            Event::Restart { server } => {
                if !self.servers[server].alive {
                    self.restart(server);
                }
            }
            Event::Wake(id) => crate::client::wake(self, id),
            Event::Lost(id, sent) => crate::client::lost(self, id, sent),
            Event::HungUp { server, of } => {
                let (messages, waited) = self.servers[server].hang_up(of);
                if waited {
                    self.reach("hung up while waiting");
                }
                self.send_all(server, messages);
            }
            Event::Ask(question) => self.question(question, false),
            Event::ToldClient { task, number, answer } => {
                crate::client::told(self, task, number, *answer);
            }
            Event::ToldExtents { task, number, answer } => {
                crate::large::told(self, task, number, *answer);
            }
            Event::Keep(job) => crate::owner::keep(self, job),
            Event::Renew { job, paths } => crate::owner::renew(self, job, &paths),
            Event::Own(request) => crate::owner::grant(self, request),
            Event::Tick(Node::Controller) => self.tick_controllers(),
            Event::Tick(Node::Server(server)) => self.tick_server(server),
            Event::Tick(Node::Client(_)) => unreachable!("clients have timers of their own"),
        }
    }
}

/// An entry in its form on the wire.
pub fn wire_entry(e: &honeycomb_catalog::MapEntry) -> MapEntry {
    MapEntry {
        start: e.start,
        end: e.end,
        block: e.at.block.0,
        epoch: e.at.epoch.0,
        address: e.address.to_string(),
    }
}

/// Whether a status says that the request was not run because of its caller.
pub fn is_refusal(status: Status) -> bool {
    matches!(
        status,
        Status::WrongEpoch
            | Status::UnknownBlock
            | Status::PermissionDenied
            | Status::GrantRevoked
            | Status::GrantExpired
            | Status::WrongKind
    )
}
