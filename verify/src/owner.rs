//! The actions of data owners: they create prefixes and structures, renew them or stop, remove
//! them, declare readers, commit tasks, change permissions. All of it goes over the network to the
//! controller.

use crate::lots::Parked;
use crate::net::{CLIENTS, LEASE, Node};
use crate::queue::QueueModel;
use crate::queueing;
use crate::storing;
use crate::tiers;
use crate::world::{Event, Known, PATIENCE, SessionTask, SimJob, World};
use honeycomb_catalog::{
    Actor, CatalogError, Command, Hints, NewStructure, PrefixOptions, QuotaChange, QuotaOf, Reply,
};
use honeycomb_env::Entropy;
use honeycomb_types::{JobId, Kind, StructureId, Verbs};
use std::time::Duration;

/// Number of live prefixes that a job is kept at.
const PREFIXES: usize = 3;
/// The interval of a keeper's renewals: a quarter of the shortest lease.
const KEEP: Duration = Duration::from_millis(50);
/// Leases of jobs and of the prefixes of sessions, in milliseconds.
const LEASE_MS: u32 = LEASE.as_millis() as u32;

/// An owner's request to the controller.
#[derive(Debug)]
pub enum OwnerRequest {
    /// A prefix with a structure of each kind.
    Create { job: usize },
    /// Create the prefix of a session, which does not exist or exists no more.
    Session { job: usize, session: usize },
    /// Remove a structure.
    RemoveStructure { structure: StructureId },
    /// Remove a prefix.
    RemovePrefix { job: usize, path: String },
    /// Declare the sessions whose tasks will read a prefix.
    Declare { job: usize, path: String, sessions: Vec<usize>, replace: bool },
    /// A session's task has finished, and begins another.
    Commit { job: usize, session: usize },
    /// Revoke all grants so far.
    Revoke { job: usize, path: String },
}

impl OwnerRequest {
    /// The job of a request.
    pub fn job(&self, world: &World) -> Option<usize> {
        Some(match self {
            OwnerRequest::Create { job }
            | OwnerRequest::Session { job, .. }
            | OwnerRequest::RemovePrefix { job, .. }
            | OwnerRequest::Declare { job, .. }
            | OwnerRequest::Commit { job, .. }
            | OwnerRequest::Revoke { job, .. } => *job,
            OwnerRequest::RemoveStructure { structure } => world.structures.get(structure)?.job,
        })
    }
}

fn session_path(session: usize) -> String {
    format!("t{session}")
}

/// Creates the jobs with their initial state.
pub fn set_up(world: &mut World) {
    for (keeper, name) in ["a", "b"].into_iter().enumerate() {
        let quota_blocks = if keeper == 1 { world.faults.quota } else { 0 };
        let actor = Actor::CLUSTER;
        let command = Command::RegisterJob {
            actor,
            name,
            lease_ms: LEASE_MS,
            quota_blocks,
            // The second one's blocks are placed by weight.
            hints: Hints { tasks: 5 * keeper as u32, ..Hints::default() },
            claim: Default::default(),
        };
        let ix = keeper % world.controllers.len();
        let Ok(Reply::Job { job: id, .. }) = world.command(ix, command) else {
            panic!("a job could not be registered")
        };
        let task = |session| SessionTask { path: session_path(session), prefix: None };
        let tasks = (0..CLIENTS).map(task).collect();
        let request_after = world.now;
        world.jobs.push(SimJob { id, keeper, kept: Vec::new(), tasks, request_after });
        let job = world.jobs.len() - 1;
        for session in 0..CLIENTS {
            grant(world, OwnerRequest::Session { job, session });
        }
        world.schedule(Duration::from_millis(1), Event::Keep(job));
    }
}

/// An owner sends its request to the controller, where it may never arrive.
fn send(world: &mut World, job: usize, request: OwnerRequest) {
    let keeper = Node::Client(world.jobs[job].keeper);
    if let Some(at) = world.travel(keeper, Node::Controller) {
        world.schedule_at(at, Event::Own(request));
    }
}

/// The actions of owners at the start of an operation.
pub fn tend(world: &mut World) {
    for job in 0..world.jobs.len() {
        // Crashes and removals leave prefixes without live structures: then more are created.
        let live = world.structures.values().filter(|k| k.job == job && !k.gone).count();
        // If one structure must become deep, there are few others.
        let due = if world.sizes.deep { 1 } else { PREFIXES };
        let few = world.jobs[job].kept.len() < due || live < due;
        let patient = world.now >= world.jobs[job].request_after;
        if few && patient {
            world.jobs[job].request_after = world.now + PATIENCE;
            send(world, job, OwnerRequest::Create { job });
        }
        if world.jobs[job].kept.len() > 3 * PREFIXES {
            world.jobs[job].kept.remove(1);
        }
        for session in 0..CLIENTS {
            if patient && world.jobs[job].tasks[session].prefix.is_none() {
                send(world, job, OwnerRequest::Session { job, session });
            }
        }
    }
    let job = world.rng.below(world.jobs.len() as u64) as usize;
    // The first prefix stays, because its renewals keep the root.
    if world.jobs[job].kept.len() > 1 && world.rng.chance(world.faults.abandon) {
        world.fault("abandoned prefix");
        let at = 1 + world.rng.below(world.jobs[job].kept.len() as u64 - 1) as usize;
        world.jobs[job].kept.remove(at);
    }
    if world.rng.chance(world.faults.remove)
        && let Some(structure) = some_structure(world, job)
    {
        send(world, job, OwnerRequest::RemoveStructure { structure });
    }
    if world.rng.chance(world.faults.upheaval) {
        upheave(world, job);
    }
}

fn some_structure(world: &mut World, job: usize) -> Option<StructureId> {
    let live = world.structures.iter().filter(|(_, k)| k.job == job && !k.gone);
    let live: Vec<StructureId> = live.map(|(id, _)| *id).collect();
    let chosen = world.rng.below(live.len().max(1) as u64) as usize;
    live.get(chosen).copied()
}

fn upheave(world: &mut World, job: usize) {
    let session = world.rng.below(CLIENTS as u64) as usize;
    let kept = &world.jobs[job].kept;
    let path = kept.get(world.rng.below(kept.len().max(1) as u64) as usize).cloned();
    let Some(path) = path else { return };
    let drawn = match world.rng.below(8) {
        0 => OwnerRequest::RemovePrefix { job, path },
        1..4 => {
            let sessions = vec![session, world.rng.below(CLIENTS as u64) as usize];
            let replace = world.rng.chance(200_000);
            OwnerRequest::Declare { job, path, sessions, replace }
        }
        4..6 => OwnerRequest::Commit { job, session },
        _ => OwnerRequest::Revoke { job, path },
    };
    send(world, job, drawn);
}

/// A request has arrived at the controller.
pub fn grant(world: &mut World, request: OwnerRequest) {
    match request {
        OwnerRequest::Create { job } => create(world, job),
        OwnerRequest::Session { job, session } => {
            if world.jobs[job].tasks[session].prefix.is_none() {
                begin_session(world, job, session);
            }
        }
        OwnerRequest::RemoveStructure { structure } => {
            let known = &world.structures[&structure];
            let (path, name) = (known.path.clone(), known.name.clone());
            let id = world.jobs[known.job].id;
            let actor = Actor::driver(id);
            let (path, name) = (path.as_str(), name.as_str());
            if world.command_of(id, Command::RemoveStructure { actor, job: id, path, name }).is_ok()
            {
                world.fault("removed structure");
            }
        }
        OwnerRequest::RemovePrefix { job, path } => remove_prefix(world, job, &path),
        OwnerRequest::Declare { job, path, sessions, replace } => {
            let id = world.jobs[job].id;
            let readers: Vec<String> = sessions.into_iter().map(session_path).collect();
            let readers: Vec<&str> = readers.iter().map(String::as_str).collect();
            let (actor, path, readers) = (Actor::driver(id), path.as_str(), &readers[..]);
            let _ = world
                .command_of(id, Command::DeclareReaders { actor, job: id, path, readers, replace });
        }
        OwnerRequest::Commit { job, session } => {
            let id = world.jobs[job].id;
            let path = session_path(session);
            let command = Command::CommitTask { actor: Actor::driver(id), job: id, path: &path };
            if let Ok(Reply::Committed { freed }) = world.command_of(id, command)
                && freed > 0
            {
                world.reach("prefix freed by its readers");
            }
            remove_prefix(world, job, &path);
            world.jobs[job].tasks[session].prefix = None;
            begin_session(world, job, session);
        }
        OwnerRequest::Revoke { job, path } => {
            let id = world.jobs[job].id;
            let (actor, path) = (Actor::driver(id), path.as_str());
            let (owner_verbs, job_verbs) = (Verbs::ALL, Verbs::READ);
            let command = Command::SetPermissions { actor, job: id, path, owner_verbs, job_verbs };
            let _ = world.command_of(id, command);
        }
    }
}

fn remove_prefix(world: &mut World, job: usize, path: &str) {
    let id = world.jobs[job].id;
    let command = Command::RemovePrefix { actor: Actor::driver(id), job: id, path };
    if world.command_of(id, command).is_ok() {
        world.reach("prefix removed");
    }
}

fn begin_session(world: &mut World, job: usize, session: usize) {
    let id = world.jobs[job].id;
    let path = session_path(session);
    let options = PrefixOptions { lease_ms: LEASE_MS, ..PrefixOptions::default() };
    let (actor, parents) = (Actor::driver(id), &[][..]);
    let command = Command::CreatePrefix { actor, job: id, path: &path, parents, options };
    if let Ok(Reply::Prefix(prefix)) = world.command_of(id, command) {
        world.jobs[job].tasks[session].prefix = Some(prefix);
    }
}

fn create(world: &mut World, job: usize) {
    if !world.working {
        return;
    }
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
    let values = match world.focus {
        // The moves of the crash cells need small values, and blocks that fill with them.
        Some(Kind::Kv) if world.sizes.is_shallow() && world.sizes.one_in(2) => {
            [storing::FAT, storing::PLUMP][world.rng.below(2) as usize]
        }
        _ if world.sizes.drawn => storing::DRAWN,
        Some(Kind::Kv) => [storing::FAT, storing::PLUMP][world.rng.below(2) as usize],
        _ => 1,
    };
    // So that a few dozen of them fill a block.
    let (high_mark, low_mark) = if values == storing::PLUMP { (20, 5) } else { (0, 0) };
    let options = PrefixOptions { lease_ms, high_mark, low_mark, ..PrefixOptions::default() };
    let command = Command::CreatePrefix { actor, job: id, path: &path, parents: &names, options };
    match world.command_of(id, command) {
        Ok(_) => {}
        // Nothing can be created under an expired root: it is created again, as by a driver that
        // was away.
        Err(CatalogError::LeaseExpired { .. }) => {
            world.jobs[job].request_after = world.now;
            return revive(world, job);
        }
        Err(_) => return,
    }
    if !parents.is_empty() {
        world.reach("prefix with two parents");
    }
    bound_softly(world, id, &path);
    world.jobs[job].kept.push(path.clone());
    for (kind, name) in [(Kind::File, "file"), (Kind::Queue, "queue"), (Kind::Kv, "kv")] {
        if world.sizes.deep && world.focus != Some(kind) && !world.sizes.one_in(3) {
            continue;
        }
        let blocks = 1 + world.rng.below(2) as u32;
        let (max_items, max_bytes) = queueing::bounds(world, kind);
        let (path, name) = (path.clone(), name.to_owned());
        let making = Making { job, path, kind, name, blocks, max_items, max_bytes, values };
        make(world, making, false);
    }
}

/// Sets a soft quota of few blocks for some prefixes, where memory is shared out. It draws nothing from the
/// run.
fn bound_softly(world: &mut World, job: JobId, path: &str) {
    let drawn = path.bytes().fold(world.seed, |seed, byte| seed.rotate_left(5) ^ u64::from(byte));
    let soft = Entropy::seeded(drawn).below(6);
    let is_shared = tiers::policy(world.seed, world.controllers.len()).is_fair();
    if !is_shared || !(1..=3).contains(&soft) {
        return;
    }
    let change = QuotaChange { soft_blocks: Some(soft), ..QuotaChange::default() };
    let (actor, of) = (Actor::driver(job), QuotaOf::Prefix(job, path));
    if world.command_of(job, Command::SetQuota { actor, of, change }).is_ok() {
        world.reach("soft quota of a prefix");
    }
}

/// A structure to be created.
pub struct Making {
    job: usize,
    path: String,
    kind: Kind,
    name: String,
    blocks: u32,
    max_items: u64,
    max_bytes: u64,
    /// The first value that is written to it.
    values: u64,
}

/// Creates a structure, at the first try or `again` after servers were requested to lend blocks.
pub fn make(world: &mut World, making: Making, again: bool) {
    let Making { job, kind, blocks, max_items, max_bytes, values, .. } = making;
    let id = world.jobs[job].id;
    let structure = NewStructure {
        path: &making.path,
        name: &making.name,
        kind,
        blocks,
        max_items,
        max_bytes,
        open_existing: false,
    };
    let actor = Actor::driver(id);
    let opened = match world.command_of(id, Command::CreateStructure { actor, job: id, structure })
    {
        Ok(Reply::Opened(opened)) => opened,
        Err(e) if !again && world.borrows(id.controller() as usize, &e) => {
            let parked = (world.now, Parked::Making(making));
            return world.controllers[id.controller() as usize].parked.push(parked);
        }
        _ => return,
    };
    // Without free memory, the next try is made only after a while.
    world.jobs[job].request_after = world.now;
    // Defects at the end of a block show when all values have the same size.
    let usual = match kind {
        Kind::Kv if world.sizes.one_in(2) => {
            world.sizes.size(storing::VALUE_MIN, world.sizes.limit())
        }
        _ => 0,
    };
    let known = Known {
        usual,
        job,
        path: making.path,
        name: making.name,
        opened,
        file: Default::default(),
        queue: QueueModel::new(max_items, max_bytes),
        history: Default::default(),
        accounts: Vec::new(),
        lists: Default::default(),
        large_key: None,
        gone: false,
        next_value: values,
        lost: false,
    };
    world.structures.insert(known.opened.structure, known);
}

/// The root of a job whose keeper was away for too long restarts in its place.
fn revive(world: &mut World, job: usize) {
    let id = world.jobs[job].id;
    let options = PrefixOptions { lease_ms: LEASE_MS, ..PrefixOptions::default() };
    let actor = Actor::driver(id);
    let command = Command::CreatePrefix { actor, job: id, path: "", parents: &[], options };
    let _ = world.command_of(id, command);
}

/// The keeper of a job renews its prefixes and those of its sessions.
pub fn keep(world: &mut World, job: usize) {
    world.schedule(KEEP, Event::Keep(job));
    let own = &world.jobs[job];
    let mut paths = own.kept.clone();
    if world.working {
        let running = own.tasks.iter().filter(|task| task.prefix.is_some());
        paths.extend(running.map(|task| task.path.clone()));
        if world.rng.chance(50_000) {
            // An unknown path must not affect the others (INV-14).
            paths.insert(0, "nobody".into());
        }
    }
    if paths.is_empty() {
        return;
    }
    let keeper = Node::Client(world.jobs[job].keeper);
    if let Some(at) = world.travel(keeper, Node::Controller) {
        world.schedule_at(at, Event::Renew { job, paths });
    }
}

/// A renewal arrives at the controller. A path that fails is no longer kept.
pub fn renew(world: &mut World, job: usize, paths: &[String]) {
    let id = world.jobs[job].id;
    let names: Vec<&str> = paths.iter().map(String::as_str).collect();
    let command = Command::RenewLeases { actor: Actor::driver(id), job: id, paths: &names };
    let Ok(Reply::Renewed(results)) = world.command_of(id, command) else { return };
    for (path, result) in paths.iter().zip(results) {
        if let Err(e) = result {
            world.note(|| format!("not renewed: {e}"));
            world.jobs[job].kept.retain(|kept| kept != path);
            let running = world.jobs[job].tasks.iter_mut().find(|task| task.path == *path);
            if let Some(task) = running {
                task.prefix = None;
            }
        }
    }
}
