//! The workload: tasks that write and read files and key-value stores through production `Call`s,
//! and owners that create, abandon and remove what the tasks work on.

use crate::file::{Key, record};
use crate::kv::{Did, HISTORY_MAX, Op as KvOp};
use crate::queue::QueueModel;
use crate::queueing::{self, Held, Queueing};
use crate::world::{Event, Known, PATIENCE, SimJob, TryId, World, wire_entry};
use honeycomb_catalog::{Actor, CatalogError, Command, NewStructure, Opened, PrefixOptions, Reply};
use honeycomb_client::Error;
use honeycomb_client::Target;
use honeycomb_client::call::{Call, Event as CallEvent, Routing, Step};
use honeycomb_server::Access;
use honeycomb_types::{Kind, LaneId, Sequence, StructureId, Time};
use honeycomb_wire::batch::{BatchOp, put_batch, results};
use honeycomb_wire::data::{ReadArgs, SwapArgs, put_acks};
use honeycomb_wire::messages::{MapEntry, PartitionMap};
use honeycomb_wire::stored::{Function, Stored, accumulate_args};
use honeycomb_wire::{Grant, Op, ReplyHeader, RequestHeader, Status, key_hash};
use std::time::Duration;

/// Tasks at work at a time.
const TASKS: usize = 8;
/// Every operation ends within this.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Live prefixes that a job is kept at.
const PREFIXES: usize = 3;
/// A name that no other job or prefix has is made from a number.
static NOBODY: &str = "";

/// What an operation does.
#[derive(Debug, Clone)]
pub(crate) enum What {
    Append { key: Key, bytes: Vec<u8> },
    Read { position: u64, wanted: u32 },
    Size,
    Kv { key: Vec<u8>, did: Did },
    Queue(Queueing),
}

impl What {
    fn describe(&self) -> String {
        match self {
            What::Append { key, bytes } => format!("append {key:?} of {} bytes", bytes.len()),
            What::Kv { key, did } => format!("{} {did:?}", String::from_utf8_lossy(key)),
            What::Queue(queueing) => format!("{:?}", queueing.kind),
            other => format!("{other:?}"),
        }
    }
}

/// An operation under way.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) call: Call,
    structure: StructureId,
    what: What,
    pub(crate) begin: Time,
    /// Until when the server may let it wait.
    wait_until: Time,
    floor: u64,
    args: Vec<u8>,
    payload: Vec<u8>,
    pub(crate) found: Vec<u8>,
    /// Arguments of the reply.
    pub(crate) told: Vec<u8>,
}

/// One task: one operation at a time.
#[derive(Debug)]
pub struct Task {
    session: usize,
    number: u64,
    pub(crate) appended: u32,
    active: Option<Active>,
    /// Items that it has reserved and not settled.
    pub(crate) held: Vec<Held>,
}

impl Task {
    /// Whether nothing is under way.
    pub fn idle(&self) -> bool {
        self.active.is_none()
    }

    /// What is under way.
    pub fn describe(&self) -> String {
        self.active.as_ref().map_or("nothing".into(), |a| a.what.describe())
    }

    /// The session that it belongs to.
    pub fn session(&self) -> usize {
        self.session
    }

    /// What it works on.
    pub fn structure(&self) -> Option<StructureId> {
        self.active.as_ref().map(|a| a.structure)
    }
}

/// Jobs, their first prefixes, and the tasks.
pub fn set_up(world: &mut World) {
    for name in ["a", "b"] {
        let actor = Actor::CLUSTER;
        let command = Command::RegisterJob { actor, name, lease_ms: 500, quota_blocks: 0 };
        let Ok(Reply::Job { job, .. }) = world.command(command) else {
            panic!("a job could not be registered")
        };
        let mut new = SimJob { id: job, kept: Vec::new(), leases: Default::default() };
        new.leases.created(world.now, NOBODY, &[], Duration::from_millis(500));
        world.jobs.push(new);
        let job = world.jobs.len() - 1;
        world.schedule(Duration::from_millis(1), Event::Renew(job));
    }
    for task in 0..TASKS {
        let session = task % world.sessions.len();
        let held = Vec::new();
        world.tasks.push(Task { session, number: 0, appended: 0, active: None, held });
        let after = Duration::from_micros(100 + world.rng.below(2000));
        world.schedule(after, Event::Wake(TryId { task, number: 0 }));
    }
}

/// A task has waited: it goes on, or begins something new.
pub fn wake(world: &mut World, id: TryId) {
    if world.tasks[id.task].number != id.number {
        return;
    }
    if world.tasks[id.task].active.is_some() {
        return go(world, id.task, CallEvent::Go);
    }
    if !world.working {
        return;
    }
    tend(world);
    begin(world, id.task);
}

/// What owners do: keep every job at some live prefixes, stop renewing some, remove some.
fn tend(world: &mut World) {
    for job in 0..world.jobs.len() {
        // Crashes and removals leave prefixes without live structures: then there are more.
        let live = world.structures.values().filter(|k| k.job == job && !k.gone).count();
        if world.jobs[job].kept.len() < PREFIXES || live < PREFIXES {
            create(world, job);
        }
        if world.jobs[job].kept.len() > 3 * PREFIXES {
            world.jobs[job].kept.remove(1);
        }
    }
    if world.rng.chance(world.faults.crash) {
        world.crash();
    }
    let job = world.rng.below(world.jobs.len() as u64) as usize;
    // The first prefix stays, because its renewals keep the root.
    if world.jobs[job].kept.len() > 1 && world.rng.chance(world.faults.abandon) {
        world.fault("abandoned prefix");
        let at = 1 + world.rng.below(world.jobs[job].kept.len() as u64 - 1) as usize;
        world.jobs[job].kept.remove(at);
    }
    if world.rng.chance(world.faults.remove) {
        remove(world, job);
    }
}

fn create(world: &mut World, job: usize) {
    let id = world.jobs[job].id;
    let actor = Actor::driver(id);
    let path = format!("p{}", world.rng.next_u64() % 1_000_000_007);
    let lease_ms = 200 + world.rng.below(800) as u32;
    let mut parents = Vec::new();
    if let Some(first) = world.jobs[job].kept.first()
        && world.rng.chance(500_000)
    {
        parents.push(first.clone());
    }
    let names: Vec<&str> = parents.iter().map(String::as_str).collect();
    let options = PrefixOptions { lease_ms, ..PrefixOptions::default() };
    let command = Command::CreatePrefix { actor, job: id, path: &path, parents: &names, options };
    if world.command(command).is_err() {
        return;
    }
    parents.push(NOBODY.to_owned());
    let lease = Duration::from_millis(lease_ms as u64);
    let now = world.now;
    world.jobs[job].leases.created(now, &path, &parents, lease);
    world.jobs[job].kept.push(path.clone());
    for (kind, name) in [(Kind::File, "file"), (Kind::Queue, "queue"), (Kind::Kv, "kv")] {
        let blocks = 1 + world.rng.below(2) as u32;
        let (max_items, max_bytes) = queueing::bounds(world, kind);
        let structure = NewStructure {
            path: &path,
            name,
            kind,
            blocks,
            slots: 64,
            max_items,
            max_bytes,
            open_existing: false,
        };
        if let Ok(Reply::Opened(opened)) =
            world.command(Command::CreateStructure { actor, job: id, structure })
        {
            let known = Known {
                job,
                path: path.clone(),
                name: name.to_owned(),
                opened,
                file: Default::default(),
                queue: QueueModel::new(max_items, max_bytes),
                history: Default::default(),
                gone: false,
                next_value: 1,
                lost: false,
            };
            world.structures.insert(known.opened.structure, known);
        }
    }
}

fn remove(world: &mut World, job: usize) {
    let live: Vec<StructureId> = world
        .structures
        .iter()
        .filter(|(_, k)| k.job == job && !k.gone)
        .map(|(id, _)| *id)
        .collect();
    if live.is_empty() {
        return;
    }
    let chosen = live[world.rng.below(live.len() as u64) as usize];
    let known = &world.structures[&chosen];
    let (path, name) = (known.path.clone(), known.name.clone());
    let id = world.jobs[job].id;
    let actor = Actor::driver(id);
    let command = Command::RemoveStructure { actor, job: id, path: &path, name: &name };
    if world.command(command).is_ok() {
        world.fault("removed structure");
    }
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
        Kind::Kv => choose_kv(world, structure),
        Kind::Queue => What::Queue(queueing::choose(world, task, structure)),
        Kind::Extents | Kind::Custom(_) => unreachable!("no structure here is of such a kind"),
    };
    let structure = match &what {
        What::Queue(queueing) => queueing.structure().unwrap_or(structure),
        _ => structure,
    };
    let (op, target, args, payload) = lay_out(world, &what);
    let wait_until = match &what {
        What::Queue(queueing) => world.now + queueing.wait,
        _ => world.now,
    };
    let deadline = wait_until + TIMEOUT;
    let active = Active {
        call: Call::new(op, target, deadline),
        structure,
        what,
        begin: world.now,
        wait_until,
        floor: world.structures[&structure].file.floor(),
        args,
        payload,
        found: Vec::new(),
        told: Vec::new(),
    };
    world.tasks[task].active = Some(active);
    go(world, task, CallEvent::Go);
}

fn choose_file(world: &mut World, task: usize, structure: StructureId) -> What {
    let floor = world.structures[&structure].file.floor();
    match world.rng.below(10) {
        0..6 => {
            world.tasks[task].appended += 1;
            let key = (task as u32, world.tasks[task].appended);
            let most = if world.rng.chance(300_000) { 8000 } else { 300 };
            let length = world.rng.below(most) as usize;
            What::Append { key, bytes: record(key, length) }
        }
        6..9 => What::Read {
            position: world.rng.below(floor + 10),
            wanted: 1 + world.rng.below(20_000) as u32,
        },
        _ => What::Size,
    }
}

fn choose_kv(world: &mut World, structure: StructureId) -> What {
    let mut turn = 0;
    // Numbers have keys of their own: what is put is no number.
    let counter = world.rng.chance(250_000);
    let kind = if counter { 'n' } else { 'k' };
    let key = loop {
        let name = format!("{kind}{}", world.rng.below(6) + 6 * turn).into_bytes();
        let history = world.structures[&structure].history.get(&name);
        if history.is_none_or(|h| h.len() < HISTORY_MAX - TASKS) {
            break name;
        }
        turn += 1;
    };
    let known = world.structures.get_mut(&structure).expect("just chosen");
    known.next_value += 1;
    let new = known.next_value;
    let seen = new.saturating_sub(1 + world.rng.below(4));
    let did = match world.rng.below(12) {
        0..3 if counter => Did::Get(None),
        3 if counter => Did::Delete(None),
        _ if counter => Did::Add(new, None),
        0..4 => Did::Get(None),
        4..6 => Did::Put(new, None),
        6 => Did::Insert(new, None),
        7 => Did::Delete(None),
        8 => Did::Update(new, None),
        9..11 => Did::Upsert(new, None),
        _ => Did::Swap((seen > 0).then_some(seen), new, None),
    };
    What::Kv { key, did }
}

/// The bytes of a value: its number, and a filling that follows from it.
fn value(number: u64) -> Vec<u8> {
    let length = if number.is_multiple_of(5) { 3000 + number as usize * 37 % 5000 } else { 40 };
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(length, number as u8);
    bytes
}

fn number(bytes: &[u8]) -> Result<u64, String> {
    if let Stored::Integer(sum) = Stored::of(bytes) {
        return Ok(sum as u64);
    }
    let head = bytes.first_chunk().ok_or("a value without its number")?;
    let number = u64::from_le_bytes(*head);
    if value(number) != bytes {
        return Err(format!("the value {number} is torn: {} bytes", bytes.len()));
    }
    Ok(number)
}

fn lay_out(world: &mut World, what: &What) -> (Op, Target, Vec<u8>, Vec<u8>) {
    let _ = &world;
    match what {
        What::Queue(queueing) => queueing.lay_out(),
        What::Append { bytes, .. } => (Op::FileAppend, Target::Tail, Vec::new(), bytes.clone()),
        What::Read { position, .. } => {
            (Op::FileRead, Target::Offset(*position), Vec::new(), Vec::new())
        }
        What::Size => (Op::FileSize, Target::Tail, Vec::new(), Vec::new()),
        What::Kv { key, did } => {
            let target = Target::Hash(key_hash(key));
            let mode = |m: u8| [&[m], &key[..]].concat();
            let (op, args, payload) = match did {
                Did::Get(_) => (Op::KvGet, key.clone(), Vec::new()),
                Did::Put(new, _) => (Op::KvPut, mode(0), value(*new)),
                Did::Insert(new, _) => (Op::KvPut, mode(1), value(*new)),
                Did::Delete(_) => (Op::KvDelete, mode(0), Vec::new()),
                Did::Update(new, _) => (Op::KvUpdate, key.clone(), value(*new)),
                Did::Upsert(new, _) => (Op::KvUpsert, key.clone(), value(*new)),
                Did::Swap(from, to, _) => {
                    let expected = from.map(value).unwrap_or_default();
                    let new = value(*to);
                    let swap =
                        SwapArgs { present: from.is_some(), key, expected: &expected, new: &new };
                    let (args, payload) = swap.encode();
                    (Op::KvCompareAndSwap, args, payload)
                }
                Did::Add(n, _) if n % 2 == 0 => {
                    let args = accumulate_args(Function::SumI64, key);
                    (Op::KvAccumulate, args, n.to_le_bytes().to_vec())
                }
                // As an atomic batch that looks first and adds in two steps.
                Did::Add(n, _) => {
                    let (one, rest) = (1u64.to_le_bytes(), (n - 1).to_le_bytes());
                    let add =
                        |operand| BatchOp::Accumulate { key, function: Function::SumI64, operand };
                    let ops = [BatchOp::Get { key }, add(&one), add(&rest)];
                    (Op::KvBatch, vec![1], put_batch(&ops))
                }
            };
            (op, target, args, payload)
        }
    }
}

/// Asks the call what to do next, and does it.
fn go(world: &mut World, task: usize, event: CallEvent<'_>) {
    let now = world.now;
    let session = world.tasks[task].session;
    world.tasks[task].number += 1;
    let Some(active) = world.tasks[task].active.as_mut() else { return };
    let structure = active.structure;
    let opened = &world.structures[&structure].opened;
    let routing = world
        .routings
        .entry((session, structure))
        .or_insert_with(|| Routing::new(wire_map(opened)));
    let step = active.call.next(now, routing, &mut world.sessions[session], event);
    for (entry, acks) in routing.take_owed() {
        acknowledge(world, task, structure, &entry, &acks);
    }
    let id = TryId { task, number: world.tasks[task].number };
    match step {
        Step::Send(entry, header) => {
            send(world, id, structure, &entry.address, entry.start, header);
        }
        Step::Refresh => {
            let after = world.way();
            world.schedule(after, Event::Ask(task));
        }
        Step::Wait(pause) => world.schedule(pause, Event::Wake(id)),
        Step::Done(result) => finish(world, task, result),
    }
}

/// Tells a block that was left behind that results have arrived; nobody waits for an answer.
fn acknowledge(
    world: &mut World,
    task: usize,
    structure: StructureId,
    entry: &MapEntry,
    acks: &[(LaneId, Sequence)],
) {
    let mut args = Vec::new();
    put_acks(acks, &mut args);
    let at = honeycomb_client::at(entry);
    let mut header = RequestHeader { at, grant: 1, ..RequestHeader::new(Op::AckResults) };
    header.args_len = args.len() as u32;
    let Some(server) = world.servers.iter().position(|s| s.address == entry.address) else {
        return;
    };
    if world.rng.chance(world.faults.lose_request) {
        return world.fault("lost request");
    }
    let request = Event::Request {
        server,
        id: world.servers[server].id,
        to: TryId { task, number: 0 },
        access: Box::new(access(world, task, structure)),
        header: header.encode(),
        args,
        payload: Vec::new(),
    };
    let after = world.way();
    world.schedule(after, request);
}

/// What a task's connection has proven.
fn access(world: &World, task: usize, structure: StructureId) -> Access {
    let session = world.tasks[task].session;
    let opened = &world.structures[&structure].opened;
    let grant = Grant {
        job: opened.job,
        prefix: opened.prefix,
        structure,
        verbs: opened.verbs,
        generation: opened.generation,
        expires_ms: u64::MAX,
    };
    Access { session: world.sessions[session].session, window: 16, grant: Some(grant), peer: false }
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
    let active = world.tasks[id.task].active.as_ref().expect("it sends");
    let mut args = active.args.clone();
    if let What::Read { position, wanted } = active.what {
        ReadArgs { offset: position - start, length: wanted }.put(&mut args);
    }
    let payload = active.payload.clone();
    let mut header = header;
    let left = active.wait_until.since(world.now);
    header.deadline_ms = left.as_nanos().div_ceil(1_000_000) as u32;
    (header.grant, header.request) = (1, id.number);
    (header.args_len, header.payload_len) = (args.len() as u32, payload.len() as u32);
    let Some(server) = world.servers.iter().position(|s| s.address == address) else {
        return world.broken(format!("a map names {address}, where nobody is"));
    };
    let name = world.servers[server].id;
    let patience = left + PATIENCE + Duration::from_micros(world.rng.below(1000));
    world.schedule(patience, Event::Lost(id, true));
    if world.rng.chance(world.faults.lose_request) {
        return world.fault("lost request");
    }
    let copies = 1 + u64::from(payload.len() < 2000 && world.rng.chance(world.faults.duplicate));
    for copy in 0..copies {
        if copy > 0 {
            world.fault("duplicate");
        }
        let after = world.way();
        let request = Event::Request {
            server,
            id: name,
            to: id,
            access: Box::new(access),
            header: header.encode(),
            args: args.clone(),
            payload: payload.clone(),
        };
        world.schedule(after, request);
    }
}

/// A reply arrived.
pub fn replied(
    world: &mut World,
    to: TryId,
    status: Status,
    value: u64,
    args: &[u8],
    payload: Vec<u8>,
) {
    // A late or doubled reply finds its try over.
    if world.tasks[to.task].number != to.number {
        return;
    }
    let Some(active) = world.tasks[to.task].active.as_mut() else { return };
    let mut header = ReplyHeader::new(status, to.number, value);
    header.payload_len = payload.len() as u32;
    active.found = payload;
    active.told = args.to_vec();
    go(world, to.task, CallEvent::Reply(header, args));
}

/// A try had no answer.
pub fn lost(world: &mut World, id: TryId, sent: bool) {
    if world.tasks[id.task].number != id.number || world.tasks[id.task].idle() {
        return;
    }
    // The connection is closed; the server hears of it soon, or not at all.
    if world.rng.chance(800_000) {
        let after = world.way();
        world.schedule(after, Event::HungUp(id));
    }
    go(world, id.task, CallEvent::Lost { sent, why: "no answer".into() });
}

/// The controller answered.
pub fn told(world: &mut World, task: usize, answer: Result<Opened, CatalogError>) {
    let Some(structure) = world.tasks[task].structure() else { return };
    match answer {
        Ok(opened) => {
            let session = world.tasks[task].session;
            if let Some(routing) = world.routings.get_mut(&(session, structure)) {
                routing.refresh(wire_map(&opened));
            }
            if let Some(known) = world.structures.get_mut(&structure) {
                known.opened = opened;
            }
            go(world, task, CallEvent::Refreshed);
        }
        Err(e) => {
            let status = match e {
                CatalogError::LeaseExpired { .. } => Status::LeaseExpired,
                CatalogError::DataLost { .. } => Status::DataLost,
                _ => Status::Removed,
            };
            go(world, task, CallEvent::RefreshFailed(Error::new(status, e.to_string())));
        }
    }
}

/// An operation has ended: it is held against the model.
fn finish(world: &mut World, task: usize, result: Result<ReplyHeader, Error>) {
    let active = world.tasks[task].active.take().expect("it ran");
    world.stats.operations += 1;
    let name = match &result {
        Ok(header) => header.status.name(),
        Err(e) => e.status.name(),
    };
    *world.stats.endings.entry(name).or_default() += 1;
    world.note(|| format!("task {task} ends with {name}"));
    let start = active.call.entry().map_or(0, |e| e.start);
    let now = world.now;
    let structure = active.structure;
    let known = world.structures.get_mut(&structure).expect("known since it was created");
    let mut held = std::mem::take(&mut world.tasks[task].held);
    let judged = match (&active.what, &result) {
        (What::Queue(queueing), _) => {
            queueing::finished(known, &active, queueing, &result, now, &mut held)
        }
        (_, Ok(header)) => judge(known, &active, header, start, now),
        (_, Err(e)) => failed(known, &active, e),
    };
    world.tasks[task].held = held;
    if let Err(what) = judged {
        let place = format!("{}:{}", known.path, known.name);
        world.broken(format!("{place}: {what} ({})", active.what.describe()));
    }
    rest(world, task);
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
    now: Time,
) -> Result<(), String> {
    match &active.what {
        What::Append { bytes, .. } => known.file.appended(start + header.value, bytes.clone()),
        What::Read { position, wanted } => {
            // A read of one block ends at the block's end; what it must find ends there too.
            let entry = active.call.entry().expect("it was answered");
            let most = entry.end.saturating_sub(*position).saturating_add(1);
            let wanted = (*wanted as u64).min(most) as usize;
            let end = start + header.value;
            let floor = if *position < end { active.floor.min(end) } else { active.floor };
            known.file.read(*position, wanted, floor, &active.found)
        }
        What::Size => {
            let size = start + header.value;
            match size < active.floor {
                true => Err(format!("the size is {size}, {} were promised", active.floor)),
                false => Ok(()),
            }
        }
        What::Queue(_) => unreachable!("judged elsewhere"),
        What::Kv { key, did } => {
            let did = match did {
                Did::Add(n, _) if n % 2 == 1 => match added(*n, header, &active.found)? {
                    Some(did) => did,
                    None => return Ok(()),
                },
                did => answered(*did, header, &active.found)?,
            };
            let op = KvOp { begin: active.begin, end: now, did };
            known.history.entry(key.clone()).or_default().push(op);
            Ok(())
        }
    }
}

/// What an addition in an atomic batch did: nothing when its block was full.
fn added(n: u64, header: &ReplyHeader, found: &[u8]) -> Result<Option<Did>, String> {
    let parse = |e: honeycomb_wire::Malformed| format!("the results do not parse: {e}");
    if header.value != 3 {
        return match results(found, 1).map_err(parse)?[0].status {
            Status::BlockFull => Ok(None),
            other => Err(format!("operation {} was refused by {}", header.value, other.name())),
        };
    }
    let told = results(found, 3).map_err(parse)?;
    let before = if told[0].status == Status::Ok { number(told[0].bytes)? } else { 0 };
    let sum = told[2].value;
    match (told[1].value, sum) == (before + 1, before + n) {
        true => Ok(Some(Did::Add(n, Some(sum)))),
        false => Err(format!("{before} and 1 is {}, and {n} is {sum}", told[1].value)),
    }
}

/// What a kv operation did, with the answer in it.
fn answered(did: Did, header: &ReplyHeader, found: &[u8]) -> Result<Did, String> {
    let (absent, ok) = (header.status == Status::KeyNotFound, header.status == Status::Ok);
    Ok(match did {
        Did::Get(_) if absent => Did::Get(None),
        Did::Get(_) => Did::Get(Some(number(found)?)),
        Did::Put(new, _) => Did::Put(new, Some(header.value == 1)),
        Did::Insert(new, _) => Did::Insert(new, Some(ok)),
        Did::Delete(_) => Did::Delete(Some(ok)),
        Did::Update(new, _) if absent => Did::Update(new, Some(None)),
        Did::Update(new, _) => Did::Update(new, Some(Some(number(found)?))),
        Did::Upsert(new, _) if header.value == 1 => Did::Upsert(new, Some(Some(number(found)?))),
        Did::Upsert(new, _) => Did::Upsert(new, Some(None)),
        Did::Swap(from, to, _) if ok => Did::Swap(from, to, Some(Ok(()))),
        Did::Swap(from, to, _) => {
            let found = if header.value == 1 { Some(number(found)?) } else { None };
            Did::Swap(from, to, Some(Err(found)))
        }
        Did::Add(n, _) => Did::Add(n, Some(header.value)),
    })
}

/// An operation ended with an error: whether it may have, and whether the error is a right one.
fn failed(known: &mut Known, active: &Active, e: &Error) -> Result<(), String> {
    let unknown = match e.status {
        Status::OutcomeUnknown => true,
        Status::DeadlineExceeded | Status::LeaseExpired | Status::DataLost | Status::Removed => {
            e.message.contains("may have taken effect")
        }
        Status::OutOfMemory | Status::BlockFull => false,
        _ => return Err(format!("ended with {e}")),
    };
    note_end(known, e)?;
    if !unknown {
        return Ok(());
    }
    match &active.what {
        What::Append { key, .. } => known.file.unknown(*key),
        What::Kv { key, did } if !matches!(did, Did::Get(_)) => {
            let op = KvOp { begin: active.begin, end: Time::NEVER, did: *did };
            known.history.entry(key.clone()).or_default().push(op);
        }
        _ => {}
    }
    Ok(())
}

/// An error may tell that the structure has ended; whether that can be so.
pub(crate) fn note_end(known: &mut Known, e: &Error) -> Result<(), String> {
    match e.status {
        Status::DataLost if !known.lost => return Err(format!("nothing was lost, but {e}")),
        Status::LeaseExpired | Status::DataLost | Status::Removed => known.gone = true,
        _ => {}
    }
    Ok(())
}

/// Every key of every store: an order must explain its history.
pub fn judge_histories(world: &mut World) {
    let mut wrong = None;
    for known in world.structures.values() {
        for (key, history) in &known.history {
            if let Err(e) = crate::kv::linearizable(history) {
                let key = String::from_utf8_lossy(key);
                wrong.get_or_insert(format!("{}:{} '{key}': {e}", known.path, known.name));
            }
        }
    }
    if let Some(wrong) = wrong {
        world.broken(wrong);
    }
}

/// Every file that is still there is read whole, straight from its blocks.
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
        let Ok(Reply::Opened(opened)) = world.command(command) else { continue };
        let mut bytes = Vec::new();
        for entry in &opened.map.entries {
            if entry.start != bytes.len() as u64 {
                let text = format!("the map begins at {} after {} bytes", entry.start, bytes.len());
                return world.broken(text);
            }
            let Some(server) = world.servers.iter_mut().find(|s| s.id == entry.at.block.server())
            else {
                return world.broken("a map names a server that is gone".into());
            };
            bytes.extend(server.read_all(&opened, entry.at));
        }
        let known = &world.structures[&structure];
        if let Err(what) = known.file.whole(&bytes) {
            let place = format!("{}:{}", known.path, known.name);
            return world.broken(format!("{place}, read whole: {what}"));
        }
    }
}

fn wire_map(opened: &Opened) -> PartitionMap {
    PartitionMap {
        version: opened.map.version.0,
        router: opened.map.router as u8,
        block_size: opened.map.block_size,
        entries: opened.map.entries.iter().map(wire_entry).collect(),
    }
}
