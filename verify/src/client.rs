//! The workload: tasks that operate on files, queues and stores through production `Call`s, and the
//! judgement of the results.

use crate::appends::{self, Appending};
use crate::controller::{About, Question};
use crate::faults::long_or_short;
use crate::file::{HEAD, Key, record};
use crate::large::{self, Large};
use crate::net::Node;
use crate::queueing::{self, Held, Queueing};
use crate::server::{Caller, Message};
use crate::storing::{self, Storing};
use crate::world::{
    Event, Known, PATIENCE, Permit, REFUSAL_LASTS, Request, TryId, World, is_refusal, wire_entry,
};
use honeycomb_catalog::{Actor, Command, Opened, Reply};
use honeycomb_client::Error;
use honeycomb_client::Target;
use honeycomb_client::call::{Call, CallEvent, Routing, Step};
use honeycomb_server::{CallerAccess, PostPayload};
use honeycomb_types::{Kind, LaneId, Sequence, SessionId, StructureId, Time, Verbs};
use honeycomb_wire::data::{ReadArgs, put_acks};
use honeycomb_wire::messages::{MapEntry, PartitionMap};
use honeycomb_wire::{Grant, Op, ReplyHeader, RequestHeader, Status, flags};
use std::sync::Arc;
use std::time::Duration;

/// Number of concurrent tasks.
pub const TASKS: usize = 8;
/// Every operation ends within this time.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Appends to each file while it is sealed.
const APPENDS_AT_SEAL: u32 = 10;

/// The content of an operation.
#[derive(Debug, Clone)]
pub(crate) enum What {
    Append { key: Key, bytes: Vec<u8> },
    Read { position: u64, wanted: u32 },
    Size,
    Seal,
    Store(Storing),
    Queue(Queueing),
}

impl What {
    fn describe(&self) -> String {
        match self {
            What::Append { key, bytes } => format!("append {key:?} of {} bytes", bytes.len()),
            What::Store(storing) => storing.describe(),
            What::Queue(queueing) => format!("{:?}", queueing.kind),
            other => format!("{other:?}"),
        }
    }
}

/// An operation in progress.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) call: Call,
    pub(crate) structure: StructureId,
    pub(crate) what: What,
    /// A value that is being written as extents, or read from them.
    pub(crate) large: Option<Large>,
    /// An append that is written to private blocks.
    pub(crate) append: Option<Appending>,
    /// When it began, by the time of the world.
    pub(crate) begin: Time,
    /// Until when the server may let it wait, by the client's clock.
    wait_until: Time,
    /// Its deadline, by the same clock.
    pub(crate) deadline: Time,
    floor: u64,
    pub(crate) args: Vec<u8>,
    /// Shared with its copies on their way: it may have megabytes, and be sent often.
    pub(crate) payload: Arc<[u8]>,
    pub(crate) found: Vec<u8>,
    /// Arguments of the reply.
    pub(crate) told: Vec<u8>,
    /// Whether the network has, or had, a copy of one of its requests.
    copied: bool,
}

impl Active {
    /// Whether it is an append that is not committed, and certainly has no effect yet.
    fn is_private(&self) -> bool {
        self.append.as_ref().is_some_and(Appending::is_private)
    }
}

/// One task: one operation at a time.
#[derive(Debug)]
pub struct Task {
    session: usize,
    pub(crate) number: u64,
    pub(crate) appended: u32,
    pub(crate) active: Option<Active>,
    /// Items that it has reserved and not completed.
    pub(crate) held: Vec<Held>,
}

impl Task {
    /// Whether no operation is in progress.
    pub fn idle(&self) -> bool {
        self.active.is_none()
    }

    /// The operation in progress, in words.
    pub fn describe(&self) -> String {
        self.active.as_ref().map_or("nothing".into(), |a| a.what.describe())
    }

    /// The session that it belongs to.
    pub fn session(&self) -> usize {
        self.session
    }

    /// The structure of its operation.
    pub fn structure(&self) -> Option<StructureId> {
        self.active.as_ref().map(|a| a.structure)
    }
}

/// Creates the tasks.
pub fn set_up(world: &mut World) {
    for task in 0..TASKS {
        let session = task % world.sessions.len();
        let held = Vec::new();
        world.tasks.push(Task { session, number: 0, appended: 0, active: None, held });
        let after = Duration::from_micros(100 + world.rng.below(2000));
        world.schedule(after, Event::Wake(TryId { task, number: 0 }));
    }
}

/// A task has waited: it continues, or begins a new operation.
pub fn wake(world: &mut World, id: TryId) {
    if world.tasks[id.task].number != id.number {
        return;
    }
    if let Some(active) = &world.tasks[id.task].active {
        let appends = active.append.as_ref().is_some_and(Appending::asks);
        return match active.large.as_ref().is_some_and(Large::asks) {
            _ if appends => appends::go_on(world, id.task),
            true => large::go_on(world, id.task),
            false => go(world, id.task, CallEvent::Go),
        };
    }
    if !world.working {
        if let Some((structure, what)) = world.proofs.pop_front() {
            start(world, id.task, structure, what);
        }
        return;
    }
    crate::owner::tend(world);
    world.disturb();
    begin(world, id.task);
}

/// Chooses an operation and starts it.
fn begin(world: &mut World, task: usize) {
    let live: Vec<StructureId> =
        world.structures.iter().filter(|(_, k)| !k.gone).map(|(id, _)| *id).collect();
    if live.is_empty() {
        return rest(world, task);
    }
    let mut structure = live[world.rng.below(live.len() as u64) as usize];
    let wanted = |id: &&StructureId| Some(world.structures[*id].opened.kind) == world.focus;
    if let Some(first) = live.iter().find(wanted)
        && world.rng.chance(700_000)
    {
        structure = *first;
    }
    let kind = world.structures[&structure].opened.kind;
    let what = match kind {
        Kind::File => choose_file(world, task, structure),
        Kind::Kv => What::Store(storing::choose(world, structure)),
        Kind::Queue => What::Queue(queueing::choose(world, task, structure)),
        Kind::Extents | Kind::Custom(_) => unreachable!("no structure here is of such a kind"),
    };
    let structure = match &what {
        What::Queue(queueing) => queueing.structure().unwrap_or(structure),
        _ => structure,
    };
    start(world, task, structure, what);
}

/// Starts an operation.
fn start(world: &mut World, task: usize, structure: StructureId, what: What) {
    let (op, target, args, payload) = lay_out(&what);
    let local = world.local(Node::Client(world.tasks[task].session));
    let wait_until = match &what {
        What::Queue(queueing) => local + queueing.wait,
        _ => local,
    };
    let deadline = wait_until + TIMEOUT;
    let active = Active {
        call: Call::new(op, target, deadline),
        structure,
        large: Large::of(&what, world.sizes.limit()),
        append: Appending::of(&what, world.sizes.limit()),
        what,
        begin: world.now,
        wait_until,
        deadline,
        floor: world.structures[&structure].file.floor(),
        args,
        payload: payload.into(),
        found: Vec::new(),
        told: Vec::new(),
        copied: false,
    };
    world.note(|| format!("task {task} begins {} on {structure}", active.what.describe()));
    let (large, append) = (active.large.is_some(), active.append.is_some());
    if matches!(active.what, What::Seal) {
        let known = world.structures.get_mut(&structure).expect("it has a task");
        known.file.is_sealing = true;
    }
    world.tasks[task].active = Some(active);
    match large {
        _ if append => appends::go_on(world, task),
        true => large::go_on(world, task),
        false => go(world, task, CallEvent::Go),
    }
}

fn choose_file(world: &mut World, task: usize, structure: StructureId) -> What {
    let floor = world.structures[&structure].file.floor();
    match world.rng.below(10) {
        0..6 => {
            world.tasks[task].appended += 1;
            let key = (task as u32, world.tasks[task].appended);
            let most = if world.rng.chance(300_000) { 8000 } else { 300 };
            let mut length = world.rng.below(most) as usize;
            if world.sizes.drawn {
                length = world.sizes.written(HEAD, world.sizes.limit());
            }
            if world.sizes.one_in(8) {
                length = world.sizes.append();
            }
            What::Append { key, bytes: record(key, length) }
        }
        6..9 => {
            let mut position = world.rng.below(floor + 10);
            let mut wanted = 1 + world.rng.below(20_000) as usize;
            if world.sizes.drawn {
                // Within a block, because the edges are there.
                let entries = &world.structures[&structure].opened.map.entries;
                let entry = &entries[world.sizes.below(entries.len() as u64) as usize];
                position = entry.start + world.sizes.size(0, world.sizes.block) as u64;
                wanted = world.sizes.size(1, world.sizes.block);
            }
            What::Read { position, wanted: wanted as u32 }
        }
        _ => What::Size,
    }
}

pub(crate) fn lay_out(what: &What) -> (Op, Target, Vec<u8>, Vec<u8>) {
    match what {
        What::Queue(queueing) => queueing.lay_out(),
        What::Store(storing) => storing.lay_out(),
        What::Append { bytes, .. } => (Op::FileAppend, Target::Tail, Vec::new(), bytes.clone()),
        What::Read { position, .. } => {
            (Op::FileRead, Target::Offset(*position), Vec::new(), Vec::new())
        }
        What::Size => (Op::FileSize, Target::Tail, Vec::new(), Vec::new()),
        What::Seal => (Op::FileSeal, Target::Tail, Vec::new(), Vec::new()),
    }
}

/// Starts the proofs: the whole content of stores is read again by batches of keys, and files accept
/// large appends.
pub fn begin_proofs(world: &mut World) {
    world.proving = true;
    prove_files(world);
    let stores = world.structures.iter_mut().filter(|(_, known)| !known.gone);
    let stores = stores.filter(|(_, known)| known.opened.kind == Kind::Kv);
    for (id, known) in stores {
        let length = world.sizes.size(storing::VALUE_MIN, world.sizes.limit() / 2);
        let writes = storing::write_again(known, length);
        world.proofs.extend(writes.map(|storing| (*id, What::Store(storing))));
        let proofs = storing::read_everything(known);
        world.proofs.extend(proofs.into_iter().map(|storing| (*id, What::Store(storing))));
    }
    (0..world.tasks.len()).for_each(|task| rest(world, task));
}

fn live_files(world: &World) -> Vec<StructureId> {
    let live = world.structures.iter().filter(|(_, known)| !known.gone);
    live.filter(|(_, known)| known.opened.kind == Kind::File).map(|(id, _)| *id).collect()
}

/// Several tasks append to each file while it is sealed: each append is there as a whole, or was refused.
pub fn seal_files(world: &mut World) {
    for (n, file) in live_files(world).into_iter().enumerate() {
        let when = world.sizes.below(APPENDS_AT_SEAL as u64) as u32;
        for number in 0..APPENDS_AT_SEAL {
            if number == when {
                world.proofs.push_back((file, What::Seal));
            }
            let key = (TASKS as u32 + 1 + n as u32, number);
            let length = match world.sizes.one_in(2) {
                true => world.sizes.append(),
                false => world.sizes.written(HEAD, world.sizes.limit()),
            };
            world.proofs.push_back((file, What::Append { key, bytes: record(key, length) }));
        }
    }
    (0..world.tasks.len()).for_each(|task| rest(world, task));
}

/// An append to each file that is written to private blocks: nobody else lets the file continue.
fn prove_files(world: &mut World) {
    for (n, file) in live_files(world).into_iter().enumerate() {
        let key = (TASKS as u32, n as u32);
        let length = world.sizes.limit() + 1;
        world.proofs.push_back((file, What::Append { key, bytes: record(key, length) }));
    }
}

/// Gets the next step from the call, and executes it.
pub(crate) fn go(world: &mut World, task: usize, event: CallEvent<'_>) {
    let session = world.tasks[task].session;
    let now = world.local(Node::Client(session));
    world.tasks[task].number += 1;
    let Some(active) = world.tasks[task].active.as_mut() else { return };
    let structure = active.structure;
    let opened = &world.structures[&structure].opened;
    let routing = match active.append.as_mut().and_then(Appending::routing) {
        Some(private) => private,
        None => world.routings.entry((session, structure)).or_insert_with(|| routing_of(opened)),
    };
    let step = active.call.next(now, routing, &mut world.sessions[session], event);
    for (entry, acks) in routing.take_owed() {
        acknowledge(world, task, structure, &entry, &acks);
    }
    let id = TryId { task, number: world.tasks[task].number };
    match step {
        Step::Send(entry, header) => {
            send(world, id, structure, &entry.address, entry.start, header);
        }
        Step::Refresh => ask(world, id, structure),
        Step::Wait(pause) => world.schedule(pause, Event::Wake(id)),
        Step::Done(result) => finish(world, task, result),
    }
}

/// Requests a map and a grant from the controller, or the fate of the structure.
fn ask(world: &mut World, id: TryId, structure: StructureId) {
    let TryId { task, number } = id;
    let client = Node::Client(world.tasks[task].session);
    let by_address = world.rng.chance(250_000);
    let about = if by_address { About::Address } else { About::Structure };
    let question = Question { task, number, structure, about };
    if let Some(at) = world.travel(client, Node::Controller) {
        world.schedule_at(at, Event::Ask(question));
    }
    let error = Error::new(Status::Unavailable, "the controller did not answer");
    let answer = Box::new(Err(error));
    world.schedule(PATIENCE, Event::ToldClient { task, number, answer });
}

/// The same, for an operation without a call in progress.
pub(crate) fn refresh(world: &mut World, task: usize) {
    world.tasks[task].number += 1;
    let id = TryId { task, number: world.tasks[task].number };
    let structure = world.tasks[task].structure().expect("the operation is under way");
    ask(world, id, structure);
}

/// Reports to a block that was left behind that results have arrived; the reply is not awaited.
fn acknowledge(
    world: &mut World,
    task: usize,
    structure: StructureId,
    entry: &MapEntry,
    acks: &[(LaneId, Sequence)],
) {
    let mut args = Vec::new();
    put_acks(acks, &mut args);
    let at = entry.at();
    let mut header = RequestHeader { at, grant: 1, ..RequestHeader::new(Op::AckResults) };
    header.args_len = args.len() as u32;
    let access = access(world, task, structure);
    let payload = PostPayload::Bytes(Arc::default());
    let request = Request { access, header: header.encode(), args, payload };
    post(world, task, &entry.address, Caller::Nobody, request);
}

/// The access that a task's connection has proven.
fn access(world: &mut World, task: usize, structure: StructureId) -> CallerAccess {
    let session = world.tasks[task].session;
    let now_ms = world.controller_now().as_millis();
    let expires_ms = expiry(world, now_ms);
    let opened = &world.structures[&structure].opened;
    let new = Permit { generation: opened.generation, expires_ms };
    let permit = world.permits.entry((session, structure)).or_insert(new);
    let grant = Grant {
        job: opened.job,
        prefix: opened.prefix,
        structure,
        verbs: opened.verbs,
        generation: permit.generation,
        expires_ms: permit.expires_ms,
    };
    let session = world.sessions[session].session;
    CallerAccess { session, window: 16, grant: Some(grant), peer: false }
}

fn expiry(world: &World, now_ms: u64) -> u64 {
    match world.faults.grant_ms {
        0 => u64::MAX,
        ms => now_ms + ms,
    }
}

/// Sends a request to an address, where it may not arrive; returns whether the address has a
/// server.
fn post(world: &mut World, task: usize, address: &str, from: Caller, request: Request) -> bool {
    let Some(server) = world.servers.iter().position(|s| s.address == address) else {
        world.broken(format!("a map names {address}, where nobody is"));
        return false;
    };
    if !world.servers[server].alive {
        return false;
    }
    let (mut from, mut late) = (from, Duration::ZERO);
    if world.rng.chance(world.faults.lose_request) {
        world.fault("lost request");
        if world.rng.below(2) == 0 {
            return true;
        }
        // The connection is gone, and the bytes sent on it still leave a buffer, long after the
        // caller has retried.
        from = Caller::Nobody;
        let most = Duration::from_secs(2);
        late = long_or_short(&mut world.rng, Duration::from_millis(1), most);
    }
    let client = Node::Client(world.tasks[task].session);
    let life = world.servers[server].life;
    if let Some(at) = world.travel(client, Node::Server(server)) {
        let request = Box::new(request);
        world.schedule_at(at + late, Event::Request { server, life, from, request });
    }
    true
}

fn send(
    world: &mut World,
    id: TryId,
    structure: StructureId,
    address: &str,
    start: u64,
    header: RequestHeader,
) {
    let access = access(world, id.task, structure);
    let local = world.local(Node::Client(world.tasks[id.task].session));
    let active = world.tasks[id.task].active.as_ref().expect("a task that sends has an operation");
    let mut args = active.args.clone();
    if let What::Read { position, wanted } = active.what {
        ReadArgs { offset: position - start, length: wanted }.put(&mut args);
    }
    let payload = active.payload.clone();
    let mut header = header;
    let left = active.wait_until.since(local);
    header.deadline_ms = left.as_nanos().div_ceil(1_000_000) as u32;
    (header.grant, header.request) = (1, id.number);
    (header.args_len, header.payload_len) = (args.len() as u32, payload.len() as u32);
    let again = header.flags & flags::RETRY != 0;
    if again {
        world.reach("mutation repeated");
    }
    // A batch has copies only after a lost connection, which its caller records as a doubt.
    let copied = header.op != Op::KvBatch || again;
    let header = header.encode();
    let whole = || PostPayload::Bytes(payload.clone());
    let request = || Request { access, header, args: args.clone(), payload: whole() };
    let copied = copied && payload.len() < 2000 && world.rng.chance(world.faults.duplicate);
    let active = world.tasks[id.task].active.as_mut().expect("looked at above");
    active.copied |= copied;
    if copied {
        world.fault("duplicate");
        post(world, id.task, address, Caller::Task(id), request());
    }
    if world.rng.chance(world.faults.intrude) {
        intrude(world, id.task, structure, address, request());
    }
    if post(world, id.task, address, Caller::Task(id), request()) {
        let patience = left + PATIENCE + Duration::from_micros(world.rng.below(1000));
        return world.schedule(patience, Event::Lost(id, true));
    }
    // The address has no listener: refused at once, or, for a dead machine, no reply at all.
    let gone = world.rng.chance(300_000);
    let after = if gone { PATIENCE } else { Duration::from_micros(200) };
    world.schedule(after, Event::Lost(id, false));
}

/// An intruder sends the same request: with a grant of another job, or one that does not permit it
/// (INV-28).
fn intrude(
    world: &mut World,
    task: usize,
    structure: StructureId,
    address: &str,
    mut request: Request,
) {
    let job = world.structures[&structure].job;
    let mut grant = request.access.grant.expect("every task has one");
    let other = world.structures.values().find(|known| known.job != job);
    match other {
        Some(other) if world.rng.below(2) == 0 => {
            let Opened { job, prefix, structure, generation, .. } = other.opened;
            grant = Grant { job, prefix, structure, generation, ..grant };
        }
        _ => {
            let header = RequestHeader::decode(&request.header, true).expect("made just now");
            let needed = header.op.info().verbs;
            grant.verbs = if needed == Verbs::READ { Verbs::WRITE } else { Verbs::READ };
        }
    }
    world.fault("intruder");
    request.access.grant = Some(grant);
    if world.rng.below(2) == 0 {
        request.access.session = SessionId(u128::MAX - 7);
    }
    post(world, task, address, Caller::Intruder, request);
}

/// Judges the reply to an intruder.
pub fn judge_intruder(world: &mut World, message: &Message) {
    if is_refusal(message.status) {
        return world.reach("intruder refused");
    }
    let (op, status) = (message.op.name(), message.status.name());
    world.broken(format!("an intruder's {op} was answered {status} (INV-28)"));
}

/// A reply arrived.
pub fn replied(world: &mut World, message: Message) {
    let Caller::Task(to) = message.to else { return };
    let Message { status, value, args, payload, .. } = message;
    world.note(|| format!("reply {to:?} {} {value}", status.name()));
    // A late or duplicate reply finds its try over.
    if world.tasks[to.task].number != to.number {
        return world.reach("reply overtaken");
    }
    let Some(active) = world.tasks[to.task].active.as_mut() else { return };
    let mut header = ReplyHeader::new(status, to.number, value);
    active.found = payload.into_bytes();
    header.payload_len = active.found.len() as u32;
    active.told = args.clone();
    match status {
        Status::Moved => world.reach("stale map corrected"),
        Status::GrantExpired => world.reach("grant expired on the way"),
        Status::GrantRevoked => world.reach("grant revoked"),
        _ => {}
    }
    go(world, to.task, CallEvent::Reply(header, &args));
}

/// A try had no reply.
pub fn lost(world: &mut World, id: TryId, sent: bool) {
    if world.tasks[id.task].number != id.number || world.tasks[id.task].idle() {
        return;
    }
    // The connection is closed; the server learns of it soon, or not at all.
    let address = world.tasks[id.task].active.as_ref().and_then(|a| a.call.entry());
    let server = address.and_then(|e| world.servers.iter().position(|s| s.address == e.address));
    if let Some(server) = server
        && world.rng.chance(800_000)
    {
        let client = Node::Client(world.tasks[id.task].session);
        if let Some(at) = world.travel(client, Node::Server(server)) {
            world.schedule_at(at, Event::HungUp { server, of: id });
        }
    }
    go(world, id.task, CallEvent::Lost { sent, why: "no answer".into() });
}

/// The controller replied, or did not.
pub fn told(world: &mut World, task: usize, number: u64, answer: Result<(Opened, u64), Error>) {
    if world.tasks[task].number != number {
        return;
    }
    let Some(structure) = world.tasks[task].structure() else { return };
    match answer {
        Ok((opened, controller_ms)) => {
            let session = world.tasks[task].session;
            let expires_ms = expiry(world, controller_ms);
            let permit = Permit { generation: opened.generation, expires_ms };
            world.permits.insert((session, structure), permit);
            if let Some(routing) = world.routings.get_mut(&(session, structure)) {
                routing.refresh(wire_map(&opened));
            }
            if let Some(known) = world.structures.get_mut(&structure) {
                known.opened = opened;
            }
            refreshed(world, task, Ok(()));
        }
        Err(e) => refreshed(world, task, Err(e)),
    }
}

fn refreshed(world: &mut World, task: usize, result: Result<(), Error>) {
    let active = world.tasks[task].active.as_ref();
    let append = active.and_then(|active| active.append.as_ref());
    match result {
        result if append.is_some_and(Appending::refreshes) => {
            appends::refreshed(world, task, result);
        }
        Ok(()) => go(world, task, CallEvent::Refreshed),
        Err(e) => go(world, task, CallEvent::RefreshFailed(e)),
    }
}

/// A call has ended, and with it its operation, unless that has several calls: the result is
/// compared with the model.
pub(crate) fn finish(world: &mut World, task: usize, result: Result<ReplyHeader, Error>) {
    let Some(result) = large::ended(world, task, result) else { return };
    let Some(result) = appends::ended(world, task, result) else { return };
    let active = world.tasks[task].active.take().expect("the operation ran");
    world.stats.operations += 1;
    let status = match &result {
        Ok(header) => header.status,
        Err(e) => e.status,
    };
    let name = status.name();
    *world.stats.endings.entry(name).or_default() += 1;
    world.note(|| match &result {
        Ok(_) => format!("task {task} ends with {name}"),
        Err(e) => format!("task {task} ends with {e}"),
    });
    // A client whose last request was answered `Busy` knows that no request had an effect. It does not know
    // of copies, which only this world makes, and which may arrive later than the last request.
    let result = result.map_err(|e| match e.status {
        Status::DeadlineExceeded if active.copied && !active.is_private() => {
            let text = format!("{}, but the network had a copy of its request", e.message);
            Error::new(Status::OutcomeUnknown, text)
        }
        _ => e,
    });
    let start = active.call.entry().map_or(0, |e| e.start);
    let now = world.now;
    let structure = active.structure;
    let piece = world.piece_below();
    // A refusal for lack of memory may be a little older than the room.
    let room_since = if world.proving { world.look_for_room() } else { None };
    let roomy = room_since.is_some_and(|since| now >= since + REFUSAL_LASTS);
    let known = world.structures.get_mut(&structure).expect("known since it was created");
    let mut held = std::mem::take(&mut world.tasks[task].held);
    let mut reached = Vec::new();
    let judged = match (&active.what, &result) {
        (What::Queue(queueing), _) => {
            queueing::finished(known, &active, queueing, &result, now, &mut held)
        }
        (What::Store(storing), Ok(header)) => {
            storing::judge_answer(known, &active, storing, header, now, roomy, &mut reached)
        }
        (_, Ok(header)) => judge(known, &active, header, start, piece),
        (What::Store(storing), Err(e)) if e.status == Status::ValueTooLarge => {
            reached.push("value too large for its block");
            storing::judge_too_large(known, &active, storing, now)
        }
        (_, Err(e)) => failed(known, &active, e),
    };
    world.tasks[task].held = held;
    let late = world.proving && needs_fault(known, &active, status, roomy);
    let judged = match &result {
        Err(e) if late => Err(format!("without a fault it ended with {e}")),
        _ => judged,
    };
    if let Err(what) = judged {
        let place = format!("{}:{}", known.path, known.name);
        world.broken(format!("{place}: {what} ({})", active.what.describe()));
    }
    match status {
        Status::LeaseExpired => reached.push("lease expired"),
        Status::OutcomeUnknown => reached.push("outcome unknown"),
        Status::Sealed => reached.push("append refused by a seal"),
        _ => {}
    }
    reached.into_iter().for_each(|state| world.reach(state));
    rest(world, task);
}

/// Whether an operation ends with this status only after a fault, or without memory.
fn needs_fault(known: &Known, active: &Active, status: Status, roomy: bool) -> bool {
    match status {
        Status::OutOfMemory => roomy,
        // The appends to a file that is sealed may need more memory than there is.
        Status::OutcomeUnknown => active.append.is_some() && (roomy || !known.file.is_sealing),
        status => matches!(status, Status::DeadlineExceeded | Status::Busy),
    }
}

fn rest(world: &mut World, task: usize) {
    world.tasks[task].number += 1;
    let id = TryId { task, number: world.tasks[task].number };
    let after = Duration::from_micros(50 + world.rng.below(3000));
    world.schedule(after, Event::Wake(id));
}

fn judge(
    known: &mut Known,
    active: &Active,
    header: &ReplyHeader,
    start: u64,
    piece: usize,
) -> Result<(), String> {
    match &active.what {
        What::Append { bytes, .. } => {
            let append = active.append.as_ref();
            let offset = append.map_or(start + header.value, |append| append.offset);
            known.file.appended(offset, bytes.clone())
        }
        What::Read { position, wanted } => {
            // A read of one block ends at the end of the block, and so do the bytes that it must
            // find.
            let entry = active.call.entry().expect("the block of an answered call is known");
            let most = entry.end.saturating_sub(*position).saturating_add(1);
            if active.found.is_empty() {
                known.file.ends_at(start + header.value);
            }
            let wanted = (*wanted as usize).min(most.min(piece as u64) as usize);
            let end = start + header.value;
            let floor = if *position < end { active.floor.min(end) } else { active.floor };
            known.file.read(*position, wanted, floor, &active.found)
        }
        What::Size => {
            let size = start + header.value;
            known.file.ends_at(size);
            match size < active.floor {
                true => Err(format!("the size is {size}, {} were promised", active.floor)),
                false => Ok(()),
            }
        }
        What::Seal => known.file.sealed(start + header.value),
        What::Queue(_) | What::Store(_) => unreachable!("judged elsewhere"),
    }
}

/// An operation ended with an error: judges whether it may have, and whether the error is right.
fn failed(known: &mut Known, active: &Active, e: &Error) -> Result<(), String> {
    // A value that no put has named has no effect yet.
    let unnamed = active.large.as_ref().is_some_and(Large::is_unnamed) || active.is_private();
    let unknown = match e.status {
        Status::OutcomeUnknown => true,
        Status::DeadlineExceeded => e.message.contains("may have taken effect"),
        // A copy of the request, which only this world makes, may have been in progress when the
        // structure ended.
        Status::LeaseExpired | Status::DataLost | Status::Removed => !unnamed,
        // The value was replaced, or its server was unreachable, in every try.
        Status::Busy if active.large.is_some() || active.append.is_some() => false,
        // The cluster has lost servers, and is smaller than the append.
        Status::LimitExceeded if active.append.is_some() => false,
        // Refused: the append is not there.
        Status::Sealed if known.file.is_sealing => false,
        status if storing::has_no_room(status) => false,
        // The keys of a batch are now in two blocks.
        Status::WrongRange if matches!(active.what, What::Store(_)) => false,
        _ => return Err(format!("ended with {e}")),
    };
    note_end(known, e)?;
    if !unknown {
        return Ok(());
    }
    match &active.what {
        What::Append { key, .. } => known.file.unknown(*key),
        What::Store(storing) => storing::unknown(known, active, storing),
        _ => {}
    }
    Ok(())
}

/// An error may report the end of the structure; judges whether that is possible.
pub(crate) fn note_end(known: &mut Known, e: &Error) -> Result<(), String> {
    match e.status {
        Status::DataLost if !known.lost => return Err(format!("nothing was lost, but {e}")),
        Status::LeaseExpired | Status::DataLost | Status::Removed => known.gone = true,
        _ => {}
    }
    Ok(())
}

/// Reads every existing file as a whole, directly from its blocks.
pub fn judge_files(world: &mut World) {
    let files: Vec<StructureId> = world
        .structures
        .iter()
        .filter(|(_, k)| k.opened.kind == Kind::File && !k.gone)
        .map(|(id, _)| *id)
        .collect();
    for structure in files {
        let id = world.jobs[world.structures[&structure].job].id;
        let command = Command::ReopenStructure { actor: Actor::driver(id), job: id, structure };
        let Ok(Reply::Opened(opened)) = world.command_of(id, command) else { continue };
        let mut bytes = Vec::new();
        for entry in &opened.map.entries {
            if entry.start != bytes.len() as u64 {
                let text = format!("the map begins at {} after {} bytes", entry.start, bytes.len());
                return world.broken(text);
            }
            let Some(server) = world.servers.iter().position(|s| s.is(entry.at.block.server()))
            else {
                return world.broken("a map names a server that is gone".into());
            };
            let mut tries = 0;
            bytes.extend(loop {
                match world.servers[server].read_all(&opened, entry.at) {
                    Some(part) => break part,
                    None if tries == 1000 => {
                        return world.broken(format!("{:?} is busy for 5 s", entry.at));
                    }
                    None => {
                        tries += 1;
                        world.pass(Duration::from_millis(5));
                    }
                }
            });
        }
        let known = &world.structures[&structure];
        if let Err(what) = known.file.whole(&bytes) {
            let place = format!("{}:{}", known.path, known.name);
            return world.broken(format!("{place}, read whole: {what}"));
        }
    }
}

/// A session's initial knowledge of a structure.
pub(crate) fn routing_of(opened: &Opened) -> Routing {
    Routing::new(wire_map(opened))
}

fn wire_map(opened: &Opened) -> PartitionMap {
    PartitionMap {
        version: opened.map.version.0,
        router: opened.map.router as u8,
        block_size: opened.map.block_size,
        entries: opened.map.entries.iter().map(wire_entry).collect(),
    }
}
