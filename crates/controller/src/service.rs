//! Requests in, commands to the catalog, replies out; effects to the memory servers.

mod extents;
mod moves;

use crate::answers::Answers;
use crate::outbox::Out;
use crate::status::status_of;
use crate::store::Store;
use crate::translate;
use honeycomb_catalog::{
    Actor, BlockUsage, Catalog, CatalogError, Command, Effect, NewStructure, PlanNode, Reply,
    Report, Seal, Written,
};
use honeycomb_env::{ConnId, Net, ReplyPayload, Service};
use honeycomb_types::limits::{BATCH_MAX, RESULTS_WINDOW, SERVER_SILENCE};
use honeycomb_types::{
    BlockAt, BlockId, Epoch, JobId, Kind, PrefixId, ServerId, SessionId, StructureId, Time, Verbs,
};
use honeycomb_wire::messages::*;
use honeycomb_wire::token::Caveat;
use honeycomb_wire::{
    Auth, Field, GrantKey, Greeted, Malformed, Op, Plane, Reader, ReplyHeader, RequestHeader,
    RootKey, Scope, Status, TokenKey, attenuate,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a client waits when admission is closed, in microseconds.
const BUSY_RETRY_US: u64 = 1000;
/// A gap between two rounds of the loop after which the controller was not there to hear renewals.
const STOOD_STILL: Duration = Duration::from_millis(1000);

/// What a handshake has proven, and what the connection turned out to be.
pub(crate) struct Peer {
    scope: Scope,
    /// Whose lease the traffic renews.
    task: Option<PrefixId>,
    /// The memory server at the other end, once it has joined.
    pub(crate) server: Option<ServerId>,
    session: SessionId,
}

/// A reply that waits until memory servers have done what it rests on.
struct Deferred {
    to: ConnId,
    request: u64,
    body: Vec<u8>,
    changed: bool,
    left: usize,
    failure: Option<(Status, String)>,
}

/// A request of ours to a memory server.
pub(crate) struct Errand {
    pub(crate) server: ServerId,
    pub(crate) effect: Effect,
    deferred: Option<u64>,
}

/// Why a request was refused.
pub(crate) type Refusal = (Status, String);

/// What a controller begins with.
pub(crate) struct State {
    pub(crate) catalog: Catalog,
    pub(crate) store: Option<Store>,
    pub(crate) answers: Answers,
}

/// Where the greater term is left that ended a controller.
pub(crate) type Fenced = Arc<Mutex<Option<u32>>>;

/// The term of a controller that keeps no log.
pub(crate) const VOLATILE_TERM: u32 = 1;

/// Requests with such a number are the same request whenever their session sends it.
const NAMED_FOR_GOOD: u64 = 1 << 63;

/// What other threads tell the controller.
pub(crate) enum Note {
    /// End the loop.
    Stop,
}

/// What was asked of the controller, in numbers.
#[derive(Default)]
pub(crate) struct Requests {
    pub all: u64,
    /// Renewals of leases.
    pub leases: u64,
    /// Of memory servers, about their blocks.
    pub blocks: u64,
    /// Heartbeats of memory servers.
    pub reports: u64,
}

impl Requests {
    fn count(&mut self, op: Op) {
        self.all += 1;
        match op {
            Op::RenewLeases => self.leases += 1,
            Op::Report => self.reports += 1,
            Op::JoinServer => {}
            op if op.info().plane == Plane::Link => self.blocks += 1,
            _ => {}
        }
    }
}

pub(crate) struct ControllerService {
    pub(crate) catalog: Catalog,
    /// None for a controller whose state ends with it.
    pub(crate) store: Option<Store>,
    pub(crate) term: u32,
    pub(crate) answers: Answers,
    /// Records of this round that are not the catalog's.
    pub(crate) records: Vec<u8>,
    /// Something of this round has to be on the disk before it is answered.
    pub(crate) wait: bool,
    /// When new files may be tried again.
    pub(crate) renew_at: Time,
    /// What is said at the end of this round, and what waits for new files.
    pub(crate) out: Vec<Out>,
    pub(crate) held: Vec<Out>,
    pub(crate) token_key: TokenKey,
    pub(crate) grant_key: GrantKey,
    pub(crate) peers: HashMap<ConnId, Peer>,
    pub(crate) links: HashMap<ServerId, ConnId>,
    effects: Vec<Effect>,
    pub(crate) errands: HashMap<u64, Errand>,
    /// Blocks that their servers have not confirmed to be open: a reply that names one asks for it
    /// again, and waits.
    opening: HashMap<BlockAt, Effect>,
    deferred: HashMap<u64, Deferred>,
    next_number: u64,
    requests: Requests,
    last_tick: Time,
    stopped: bool,
    fenced: Fenced,
}

impl ControllerService {
    pub(crate) fn new(state: State, root: &RootKey, fenced: Fenced) -> ControllerService {
        let State { catalog, store, answers } = state;
        let term = store.as_ref().map_or(VOLATILE_TERM, Store::term);
        ControllerService {
            catalog,
            store,
            term,
            answers,
            records: Vec::new(),
            wait: false,
            renew_at: Time::ZERO,
            out: Vec::new(),
            held: Vec::new(),
            token_key: root.token_key(),
            grant_key: root.grant_key(),
            peers: HashMap::new(),
            links: HashMap::new(),
            effects: Vec::new(),
            errands: HashMap::new(),
            opening: HashMap::new(),
            deferred: HashMap::new(),
            next_number: 1,
            requests: Requests::default(),
            last_tick: Time::NEVER,
            stopped: false,
            fenced,
        }
    }

    pub(crate) fn apply(&mut self, now: Time, command: Command<'_>) -> Result<Reply, CatalogError> {
        self.wait |= waits(&command);
        self.catalog.apply(now, command, &mut self.effects)
    }

    /// A greater term was heard of: this controller is over.
    pub(crate) fn fence(&mut self, term: u32) {
        *self.fenced.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(term);
        self.stopped = true;
    }

    fn hello(&mut self, net: &mut Net, now: Time, from: ConnId, request: u64, args: &[u8]) {
        match Greeted::check(args, &self.token_key, now.as_millis()) {
            Ok(greeted) => {
                net.greet(from);
                let reply = HelloReply {
                    shards: 1,
                    window: RESULTS_WINDOW,
                    ..greeted.reply(now.as_millis())
                };
                let Greeted { scope, task, session, .. } = greeted;
                self.peers.insert(from, Peer { scope, task, server: None, session });
                self.reply(from, request, reply.encode(), false);
            }
            Err((status, text)) => {
                net.refuse(from, request, status, &text);
                net.close(from);
            }
        }
    }

    /// Who asks, and whether the operation is for the likes of them.
    fn actor(&mut self, now: Time, from: ConnId, op: Op) -> Result<Actor, Refusal> {
        let peer = &self.peers[&from];
        let info = op.info();
        let servers = [
            Op::OpenBlock,
            Op::FreeBlock,
            Op::SetGeneration,
            Op::QueueAhead,
            Op::FlushBlock,
            Op::CommitFlush,
        ];
        if servers.contains(&op) || moves::OF_SERVERS.contains(&op) || info.plane == Plane::Data {
            let text = format!("{} is served by memory servers", op.name());
            return Err((Status::NotServedHere, text));
        }
        if now.as_millis() >= peer.scope.expires_ms {
            return Err((Status::Unauthenticated, "the token is past its time".into()));
        }
        if info.auth == Auth::Cluster && peer.scope.job.is_some() {
            let text = format!("{} needs the cluster's token", op.name());
            return Err((Status::PermissionDenied, text));
        }
        if peer.scope.job.is_none() && peer.scope.task.is_some() {
            let text = "the cluster's token cannot be narrowed to a task; narrow the job's";
            return Err((Status::PermissionDenied, text.into()));
        }
        let renews = op == Op::RenewLeases;
        if peer.scope.job.is_none()
            && !peer.scope.verbs.contains(Verbs::WRITE)
            && (changes(op) || renews)
        {
            let text = format!("{} needs a token that was not narrowed to reading", op.name());
            return Err((Status::PermissionDenied, text));
        }
        let joined = op == Op::JoinServer;
        if info.plane == Plane::Link && peer.server.is_some() == joined {
            let text = if joined { "the server has joined already" } else { "join first" };
            return Err((Status::PermissionDenied, text.into()));
        }
        let Scope { job, task, verbs, .. } = peer.scope;
        // As with renewals: only a session of a job runs for a task of that job.
        let session = peer.task.filter(|_| job.is_some());
        let actor = Actor { job, task, session, verbs };
        if let (Some(job), Some(prefix)) = (peer.scope.job, peer.task) {
            // Any traffic of a session is a sign of life of its task; that the prefix may be gone
            // is the catalog's business.
            let _ = self.apply(now, Command::RenewPrefixById { job, prefix, ago_ms: 0 });
        }
        Ok(actor)
    }

    /// Serves a request, unless it was answered before, or cannot be now.
    fn serve_once(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
    ) -> Result<Vec<u8>, Refusal> {
        let change = changes(header.op) && !extents::only_asks(header.op, args);
        if change && let Some(why) = self.trouble() {
            return Err((Status::LogFailed, format!("{why}; nothing was changed")));
        }
        if !change || header.request & NAMED_FOR_GOOD == 0 {
            return self.serve(net, now, from, header, args).map_err(|e| self.unless_awaited(e));
        }
        let session = self.peers[&from].session;
        if let Some(body) = self.answers.find(session, header.request).map(<[u8]>::to_vec) {
            self.actor(now, from, header.op)?;
            if header.op == Op::CreateStructure
                && let Ok(opened) = CreateStructureReply::decode(&body)
            {
                self.await_open(opened.map.entries.iter().map(|e| block_at(e.block, e.epoch)));
            }
            return Ok(body);
        }
        let served = self.serve(net, now, from, header, args);
        let body = served.map_err(|e| self.unless_awaited(e))?;
        self.answers.keep(&mut self.records, now, session, header.request, &body);
        Ok(body)
    }

    /// That there is no room is not known before the servers are back.
    fn unless_awaited(&self, refusal: Refusal) -> Refusal {
        if refusal.0 == Status::OutOfMemory && self.catalog.recovering() {
            let text = "the controller was restarted and awaits its memory servers";
            return (Status::Busy, text.into());
        }
        refusal
    }

    fn serve(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
    ) -> Result<Vec<u8>, Refusal> {
        let actor = self.actor(now, from, header.op)?;
        match header.op {
            Op::Ping => PingRequest::decode(args).map(|_| Vec::new()).map_err(malformed),
            Op::RegisterJob | Op::FindJob | Op::DeregisterJob | Op::ListJobs | Op::JobTree => {
                let scope = self.peers[&from].scope;
                self.serve_job(now, actor, scope, header.op, args)
            }
            Op::CreatePrefix
            | Op::CreateHierarchy
            | Op::RemovePrefix
            | Op::RenewLeases
            | Op::LeaseInfo
            | Op::SetPermissions => self.serve_prefix(now, actor, header.op, args),
            Op::DeclareReaders | Op::CommitTask => self.serve_readers(now, actor, header.op, args),
            Op::CreateStructure | Op::OpenStructure | Op::ReopenStructure | Op::RemoveStructure => {
                let expires_ms = self.peers[&from].scope.expires_ms;
                self.serve_structure(now, actor, expires_ms, header.op, args)
            }
            Op::ExtentBlocks => self.extent_blocks(now, actor, args),
            Op::LocateServer => self.locate_server(args),
            Op::ClusterStatus => {
                ClusterStatusRequest::decode(args).map_err(malformed)?;
                match self.apply(now, Command::ClusterStatus { actor }).map_err(refusal)? {
                    Reply::Status(s) => Ok(translate::status(&s, &self.requests).encode()),
                    other => unexpected(header.op, &other),
                }
            }
            Op::ListKinds => {
                ListKindsRequest::decode(args).map_err(malformed)?;
                match self.apply(now, Command::ListKinds { actor }).map_err(refusal)? {
                    Reply::Kinds(kinds) => Ok(translate::kinds(&kinds)),
                    other => unexpected(header.op, &other),
                }
            }
            Op::JoinServer => {
                let body = self.join(net, now, from, args)?;
                net.link(from);
                Ok(body)
            }
            Op::Report
            | Op::GrowStructure
            | Op::SealBlock
            | Op::QueueTaken
            | Op::RetireBlock
            | Op::ReturnBlock
            | Op::Inventory => self.serve_link(net, now, from, header.op, args),
            Op::BeginMove | Op::CommitMove | Op::CancelMove => {
                self.serve_move(now, header.op, args)
            }
            op => Err((Status::NotServedHere, format!("{} is not served here", op.name()))),
        }
    }

    /// A job's token, no wider than the one that asked for it.
    fn job_token(&self, job: JobId, scope: Scope) -> Vec<u8> {
        let mut token = self.token_key.issue(Some(job));
        let mut narrow = |caveat| {
            token = attenuate(&token, caveat).expect("a new token has room for two caveats");
        };
        if scope.expires_ms != u64::MAX {
            narrow(Caveat::Expires(scope.expires_ms));
        }
        if scope.verbs != Verbs::ALL {
            narrow(Caveat::Verbs(scope.verbs));
        }
        token
    }

    fn serve_job(
        &mut self,
        now: Time,
        actor: Actor,
        scope: Scope,
        op: Op,
        args: &[u8],
    ) -> Result<Vec<u8>, Refusal> {
        let reply = match op {
            Op::RegisterJob => {
                let q = RegisterJobRequest::decode(args).map_err(malformed)?;
                let (lease_ms, quota_blocks) = (q.lease_ms, q.quota_blocks);
                let name = &q.name;
                self.apply(now, Command::RegisterJob { actor, name, lease_ms, quota_blocks })
            }
            Op::FindJob => {
                let q = FindJobRequest::decode(args).map_err(malformed)?;
                self.apply(now, Command::FindJob { actor, name: &q.name })
            }
            Op::DeregisterJob => {
                let q = DeregisterJobRequest::decode(args).map_err(malformed)?;
                self.apply(now, Command::DeregisterJob { actor, job: JobId(q.job) })
            }
            Op::JobTree => {
                let q = JobTreeRequest::decode(args).map_err(malformed)?;
                self.apply(now, Command::JobTree { actor, job: JobId(q.job) })
            }
            _ => {
                ListJobsRequest::decode(args).map_err(malformed)?;
                self.apply(now, Command::ListJobs { actor })
            }
        };
        match reply.map_err(refusal)? {
            Reply::Done => Ok(Vec::new()),
            Reply::Job { job, root } => {
                let token = self.job_token(job, scope);
                Ok(RegisterJobReply { job: job.0, root: root.0, token }.encode())
            }
            Reply::Jobs(jobs) => {
                Ok(ListJobsReply { jobs: jobs.iter().map(translate::job_info).collect() }.encode())
            }
            Reply::Tree(prefixes) if prefixes.len() > BATCH_MAX => {
                let text = format!(
                    "the job has {} prefixes; a tree of more than {BATCH_MAX} is not shown",
                    prefixes.len()
                );
                Err((Status::LimitExceeded, text))
            }
            Reply::Tree(prefixes) => {
                let prefixes = prefixes.iter().map(translate::prefix_info).collect();
                Ok(JobTreeReply { prefixes }.encode())
            }
            other => unexpected(op, &other),
        }
    }

    fn serve_prefix(
        &mut self,
        now: Time,
        actor: Actor,
        op: Op,
        args: &[u8],
    ) -> Result<Vec<u8>, Refusal> {
        let mut renewed_job = None;
        let reply = match op {
            Op::CreatePrefix => {
                let q = CreatePrefixRequest::decode(args).map_err(malformed)?;
                let parents: Vec<&str> = q.parents.iter().map(String::as_str).collect();
                let (job, options) = (JobId(q.job), translate::options(&q.options));
                let (path, parents) = (q.path.as_str(), &parents[..]);
                self.apply(now, Command::CreatePrefix { actor, job, path, parents, options })
            }
            Op::CreateHierarchy => return self.create_hierarchy(now, actor, args),
            Op::RemovePrefix => {
                let q = RemovePrefixRequest::decode(args).map_err(malformed)?;
                self.apply(now, Command::RemovePrefix { actor, job: JobId(q.job), path: &q.path })
            }
            Op::RenewLeases => {
                let (job, paths) = frontier(args).map_err(malformed)?;
                renewed_job = Some(job);
                self.apply(now, Command::RenewLeases { actor, job, paths: &paths })
            }
            Op::LeaseInfo => {
                let q = LeaseInfoRequest::decode(args).map_err(malformed)?;
                self.apply(now, Command::LeaseInfo { actor, job: JobId(q.job), path: &q.path })
            }
            _ => {
                let q = SetPermissionsRequest::decode(args).map_err(malformed)?;
                let (owner_verbs, job_verbs) = (Verbs(q.owner_verbs), Verbs(q.job_verbs));
                let (job, path) = (JobId(q.job), q.path.as_str());
                let command = Command::SetPermissions { actor, job, path, owner_verbs, job_verbs };
                self.apply(now, command)
            }
        };
        match reply.map_err(refusal)? {
            Reply::Done => Ok(Vec::new()),
            Reply::Prefix(prefix) => Ok(CreatePrefixReply { prefix: prefix.0 }.encode()),
            Reply::Renewed(results) => {
                let results = translate::renewed(&results);
                let shortest_ms = renewed_job
                    .and_then(|job| self.catalog.shortest_lease_ms(job))
                    .unwrap_or_default();
                Ok(RenewLeasesReply { results, shortest_ms }.encode())
            }
            Reply::Lease(l) => Ok(LeaseInfoReply {
                prefix: l.prefix.0,
                lease_ms: l.lease_ms,
                remaining_ms: l.remaining_ms,
                pinned: l.pinned,
            }
            .encode()),
            other => unexpected(op, &other),
        }
    }

    fn create_hierarchy(
        &mut self,
        now: Time,
        actor: Actor,
        args: &[u8],
    ) -> Result<Vec<u8>, Refusal> {
        let q = CreateHierarchyRequest::decode(args).map_err(malformed)?;
        let named: Vec<[Vec<&str>; 2]> =
            q.nodes.iter().map(|n| [strs(&n.parents), strs(&n.readers)]).collect();
        let nodes: Vec<PlanNode<'_>> = q
            .nodes
            .iter()
            .zip(&named)
            .map(|(node, [parents, readers])| PlanNode {
                name: &node.name,
                parents,
                options: translate::options(&node.options),
                readers,
            })
            .collect();
        let command = Command::CreateHierarchy { actor, job: JobId(q.job), nodes: &nodes };
        match self.apply(now, command).map_err(refusal)? {
            Reply::Prefixes(ids) => {
                let prefixes = ids.iter().map(|p| p.0).collect();
                Ok(CreateHierarchyReply { prefixes }.encode())
            }
            other => unexpected(Op::CreateHierarchy, &other),
        }
    }

    fn serve_readers(
        &mut self,
        now: Time,
        actor: Actor,
        op: Op,
        args: &[u8],
    ) -> Result<Vec<u8>, Refusal> {
        let reply = if op == Op::DeclareReaders {
            let q = DeclareReadersRequest::decode(args).map_err(malformed)?;
            let (job, path, readers) = (JobId(q.job), q.path.as_str(), &strs(&q.readers)[..]);
            let replace = q.replace;
            self.apply(now, Command::DeclareReaders { actor, job, path, readers, replace })
        } else {
            let q = CommitTaskRequest::decode(args).map_err(malformed)?;
            self.apply(now, Command::CommitTask { actor, job: JobId(q.job), path: &q.path })
        };
        match reply.map_err(refusal)? {
            Reply::Readers { left } => Ok(DeclareReadersReply { left }.encode()),
            Reply::Committed { freed } => Ok(CommitTaskReply { freed }.encode()),
            other => unexpected(op, &other),
        }
    }

    fn serve_structure(
        &mut self,
        now: Time,
        actor: Actor,
        expires_ms: u64,
        op: Op,
        args: &[u8],
    ) -> Result<Vec<u8>, Refusal> {
        let reply = match op {
            Op::CreateStructure => {
                let q = CreateStructureRequest::decode(args).map_err(malformed)?;
                let kind = Kind::from_code(q.kind).ok_or_else(|| {
                    let text = format!("no kind of structure has the code {:#x}", q.kind);
                    (Status::InvalidArgument, text)
                })?;
                let structure = NewStructure {
                    path: &q.path,
                    name: &q.name,
                    kind,
                    blocks: q.blocks,
                    slots: q.slots,
                    max_items: q.max_items,
                    max_bytes: q.max_bytes,
                    open_existing: q.open_existing,
                };
                self.apply(now, Command::CreateStructure { actor, job: JobId(q.job), structure })
            }
            Op::OpenStructure => {
                let q = OpenStructureRequest::decode(args).map_err(malformed)?;
                let (job, path, name) = (JobId(q.job), q.path.as_str(), q.name.as_str());
                self.apply(now, Command::OpenStructure { actor, job, path, name })
            }
            Op::ReopenStructure => {
                let q = ReopenStructureRequest::decode(args).map_err(malformed)?;
                let (job, structure) = (JobId(q.job), StructureId(q.structure));
                self.apply(now, Command::ReopenStructure { actor, job, structure })
            }
            _ => {
                let q = RemoveStructureRequest::decode(args).map_err(malformed)?;
                let (job, path, name) = (JobId(q.job), q.path.as_str(), q.name.as_str());
                self.apply(now, Command::RemoveStructure { actor, job, path, name })
            }
        };
        match reply.map_err(refusal)? {
            Reply::Done => Ok(Vec::new()),
            Reply::Opened(opened) => {
                self.await_open(opened.map.entries.iter().map(|e| e.at));
                Ok(translate::opened(&opened, &self.grant_key, now, expires_ms))
            }
            other => unexpected(op, &other),
        }
    }

    fn serve_link(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        op: Op,
        args: &[u8],
    ) -> Result<Vec<u8>, Refusal> {
        let server = self.peers[&from].server.expect("checked with the actor");
        match op {
            Op::Inventory => {
                let q = InventoryRequest::decode(args).map_err(malformed)?;
                self.inventory(now, server, &q).inspect_err(|_| net.close(from))?;
                Ok(InventoryReply {}.encode())
            }
            Op::Report => {
                let q = ReportRequest::decode(args).map_err(malformed)?;
                self.report(now, server, &q).inspect_err(|_| net.close(from))?;
                Ok(ReportReply { now_ms: now.as_millis() }.encode())
            }
            Op::GrowStructure => {
                let q = GrowStructureRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), block_at(q.block, q.epoch));
                match self.apply(now, Command::GrowStructure { structure, at }).map_err(refusal)? {
                    Reply::Grown { version, entry } => {
                        self.await_open([entry.at]);
                        let entry = translate::entry(&entry);
                        Ok(GrowStructureReply { version: version.0, entry }.encode())
                    }
                    other => unexpected(op, &other),
                }
            }
            Op::QueueTaken => {
                let q = QueueTakenRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), block_at(q.block, q.epoch));
                let (items, bytes) = (q.items, q.bytes);
                let command = Command::QueueTaken { structure, at, items, bytes };
                self.apply(now, command).map_err(refusal)?;
                Ok(QueueTakenReply {}.encode())
            }
            Op::ReturnBlock => {
                let q = ReturnBlockRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), block_at(q.block, q.epoch));
                let successor = block_at(q.successor, q.successor_epoch);
                let command = Command::ReturnBlock { structure, at, successor };
                self.apply(now, command).map_err(refusal)?;
                Ok(ReturnBlockReply {}.encode())
            }
            Op::RetireBlock => {
                let q = RetireBlockRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), block_at(q.block, q.epoch));
                self.apply(now, Command::RetireBlock { structure, at }).map_err(refusal)?;
                Ok(RetireBlockReply {}.encode())
            }
            _ => {
                let q = SealBlockRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), block_at(q.block, q.epoch));
                let seal = Seal { length: q.length, bytes: q.bytes, last: q.last };
                let command = Command::SealBlock { structure, at, seal };
                match self.apply(now, command).map_err(refusal)? {
                    Reply::Sealed { version } => Ok(SealBlockReply { version: version.0 }.encode()),
                    other => unexpected(op, &other),
                }
            }
        }
    }

    fn report(&mut self, now: Time, server: ServerId, q: &ReportRequest) -> Result<(), Refusal> {
        let usage: Vec<BlockUsage> = q
            .usage
            .iter()
            .map(|u| BlockUsage { at: block_at(u.block, u.epoch), bytes_used: u.bytes_used })
            .collect();
        let report = Report {
            bytes_resident: q.bytes_resident,
            connections: q.connections,
            requests: q.requests,
            forwarded: q.forwarded,
            usage: &usage,
        };
        self.apply(now, Command::ServerReport { server, report }).map_err(refusal)?;
        for active in &q.active {
            let (job, prefix) = (JobId(active.job), PrefixId(active.prefix));
            let ago_ms = active.ago_ms;
            self.apply(now, Command::RenewPrefixById { job, prefix, ago_ms }).map_err(refusal)?;
        }
        Ok(())
    }

    /// Answers at the end of the round, or when the memory servers have done what the answer says:
    /// opened the blocks that it names, made those unreadable that it takes away.
    fn conclude(&mut self, now: Time, from: ConnId, request: u64, body: Vec<u8>, op: Op) {
        let changed = changes(op);
        if matches!(op, Op::CommitMove | Op::CancelMove) {
            // It rests on nothing that is still to be done, and a block that gave everything away
            // shall hear of it before it is taken back.
            self.reply(from, request, body, changed);
            return self.dispatch(now, None);
        }
        let opens = self.effects.iter().filter(|e| is_awaited(e)).count();
        if opens == 0 {
            self.dispatch(now, None);
            return self.reply(from, request, body, changed);
        }
        let number = self.number();
        let deferred = Deferred { to: from, request, body, changed, left: opens, failure: None };
        self.deferred.insert(number, deferred);
        self.dispatch(now, Some(number));
    }

    /// Asks again for blocks that are to be named and are not open yet, so that the reply waits for
    /// them, or tells why they cannot be opened. Opening is idempotent.
    fn await_open(&mut self, blocks: impl IntoIterator<Item = BlockAt>) {
        for at in blocks {
            let asked = |e: &Effect| matches!(e, Effect::OpenBlock { at: a, .. } if *a == at);
            if let Some(effect) = self.opening.get(&at)
                && !self.effects.iter().any(asked)
            {
                self.effects.push(effect.clone());
            }
        }
    }

    /// Sends the effects of the last command to their servers.
    pub(crate) fn dispatch(&mut self, now: Time, deferred: Option<u64>) {
        for effect in std::mem::take(&mut self.effects) {
            let number = self.number();
            match &effect {
                Effect::OpenBlock { at, .. } => {
                    self.opening.insert(*at, effect.clone());
                }
                Effect::FreeBlock { at, .. } => {
                    self.opening.remove(at);
                }
                _ => {}
            }
            let (server, op, body) = message_of(&effect);
            let waits = deferred.filter(|_| is_awaited(&effect));
            let Some(link) = self.links.get(&server).copied() else {
                self.give_up_import(now, &effect);
                self.release(waits, loss_of(&effect));
                continue;
            };
            self.out.push(Out::Ask { to: link, number, op, body });
            self.errands.insert(number, Errand { server, effect, deferred: waits });
        }
        // What follows from a move that was given up; it asks for nothing that can fail like it.
        if !self.effects.is_empty() {
            self.dispatch(now, None);
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// One of the things that a deferred reply waits for has come to its end.
    fn release(&mut self, number: Option<u64>, failure: Option<Refusal>) {
        let Some(number) = number else { return };
        let Some(deferred) = self.deferred.get_mut(&number) else { return };
        deferred.left -= 1;
        deferred.failure = deferred.failure.take().or(failure);
        if deferred.left > 0 {
            return;
        }
        let deferred = self.deferred.remove(&number).expect("looked up just now");
        match deferred.failure {
            None => self.reply(deferred.to, deferred.request, deferred.body, deferred.changed),
            Some((status, text)) => self.refuse(deferred.to, deferred.request, status, text),
        }
    }

    fn tick(&mut self, net: &mut Net, now: Time) {
        // The loop comes round at least twice a second. When it did not, this process stood still
        // and heard nobody: nothing may end because of that (INV-27).
        if now.since(self.last_tick) > STOOD_STILL {
            self.apply(now, Command::Amnesty).expect("an amnesty cannot be refused");
        }
        self.last_tick = now;
        // Nothing may end that could come back, because its end is not on the log.
        if self.trouble().is_none() && self.catalog.next_deadline().is_some_and(|due| due <= now) {
            self.apply(now, Command::Tick).expect("time cannot be refused");
            self.dispatch(now, None);
            self.drop_silent(net, now);
        }
    }

    /// Ends the links of servers that the catalog has given up for their silence: what waits for
    /// them is answered, and one that was only paused learns that it has to join again.
    fn drop_silent(&mut self, net: &mut Net, now: Time) {
        let silent: Vec<(ServerId, ConnId)> = self
            .links
            .iter()
            .filter(|(server, _)| !self.catalog.is_member(**server))
            .map(|(server, link)| (*server, *link))
            .collect();
        for (server, link) in silent {
            net.close(link);
            self.lose(now, server);
        }
    }

    fn lose(&mut self, now: Time, server: ServerId) {
        self.links.remove(&server);
        self.opening.retain(|at, _| at.block.server() != server);
        // The catalog may have declared it dead already, for its silence.
        let _ = self.apply(now, Command::ServerLost { server });
        let broken: Vec<u64> =
            self.errands.iter().filter(|(_, e)| e.server == server).map(|(n, _)| *n).collect();
        for number in broken {
            let errand = self.errands.remove(&number).expect("listed just now");
            self.release(errand.deferred, loss_of(&errand.effect));
        }
        self.dispatch(now, None);
    }
}

impl Service for ControllerService {
    type Note = Note;

    fn on_request(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
        _payload: &[u8],
    ) {
        self.requests.count(header.op);
        match (header.op, net.greeted(from)) {
            (Op::Hello, true) => {
                return net.refuse(
                    from,
                    header.request,
                    Status::HandshakeRequired,
                    "Hello comes once",
                );
            }
            (Op::Hello, false) => return self.hello(net, now, from, header.request, args),
            // Links are the node's own: they bring what sets memory free.
            _ if net.exhausted() && self.peers[&from].server.is_none() => {
                let reply = ReplyHeader::new(Status::Busy, header.request, BUSY_RETRY_US);
                let text = b"the controller's buffers are full";
                return net.reply(from, reply, text, ReplyPayload::Copy(&[]));
            }
            _ => {}
        }
        match self.serve_once(net, now, from, header, args) {
            Ok(body) => self.conclude(now, from, header.request, body, header.op),
            Err((status, text)) => {
                self.dispatch(now, None);
                self.refuse(from, header.request, status, text);
            }
        }
    }

    fn on_reply(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &ReplyHeader,
        args: &[u8],
    ) {
        // Only a memory server is ever asked anything.
        if self.peers.get(&from).is_none_or(|p| p.server.is_none()) {
            return net.close(from);
        }
        let Some(errand) = self.errands.remove(&header.request) else { return };
        let server = errand.server;
        let failure = (header.status != Status::Ok)
            .then(|| (header.status, String::from_utf8_lossy(args).into_owned()));
        match (&errand.effect, &failure) {
            (Effect::OpenBlock { at, .. }, None) => {
                self.opening.remove(at);
                let _ = self.apply(now, Command::BlockOpened { server, at: *at });
            }
            (Effect::FreeBlock { at, .. }, None) => {
                let _ = self.apply(now, Command::BlockFreed { server, at: *at });
            }
            (Effect::FlushBlock { at, .. }, refused) => {
                let outcome = match refused {
                    Some((_, why)) => Err(why.clone()),
                    None => FlushBlockReply::decode(args).map_err(|e| e.to_string()),
                };
                let outcome = match &outcome {
                    Ok(FlushBlockReply { bytes, items, crc }) => {
                        Ok(Written { bytes: *bytes, items: *items, crc: *crc })
                    }
                    Err(why) => Err(&**why),
                };
                let _ = self.apply(now, Command::BlockFlushed { server, at: *at, outcome });
            }
            (&Effect::CommitFlush { number, .. }, refused) => {
                let outcome = refused.as_ref().map_or(Ok(()), |(_, why)| Err(&**why));
                let _ = self.apply(now, Command::FlushCommitted { server, number, outcome });
            }
            _ => {}
        }
        // What was to be freed and is not there is as good as freed.
        let failure = failure.filter(|_| prepares(&errand.effect));
        if failure.is_some() {
            self.give_up_import(now, &errand.effect);
        }
        self.release(errand.deferred, failure);
        self.dispatch(now, None);
    }

    fn on_close(&mut self, net: &mut Net, now: Time, conn: ConnId) {
        // A server that came back over another connection is not lost with this one.
        if let Some(Peer { server: Some(server), .. }) = self.peers.remove(&conn)
            && self.links.get(&server) == Some(&conn)
        {
            // One that has not told all of its blocks is awaited as before.
            match self.catalog.is_awaited(server) {
                true => drop(self.links.remove(&server)),
                false => self.lose(now, server),
            }
        }
        self.settle(net, now);
    }

    fn on_note(&mut self, _net: &mut Net, _now: Time, note: Note) {
        match note {
            Note::Stop => self.stopped = true,
        }
    }

    fn on_tick(&mut self, net: &mut Net, now: Time) -> Option<Time> {
        self.tick(net, now);
        self.settle(net, now);
        let deadline = self
            .catalog
            .next_deadline()
            .unwrap_or(now + SERVER_SILENCE.max(Duration::from_secs(1)));
        Some(match &self.store {
            Some(_) if self.trouble().is_some() => self.renew_at,
            Some(store) => deadline.min(store.deadline()),
            None => deadline,
        })
    }

    fn finished(&self) -> bool {
        self.stopped
    }
}

/// Whether an operation changes the catalog. A job's token is judged there, prefix by prefix.
fn changes(op: Op) -> bool {
    !matches!(
        op,
        Op::Ping
            | Op::FindJob
            | Op::ListJobs
            | Op::ListKinds
            | Op::JobTree
            | Op::LeaseInfo
            | Op::OpenStructure
            | Op::ReopenStructure
            | Op::ClusterStatus
            | Op::Report
            | Op::RenewLeases
            | Op::QueueTaken
            | Op::LocateServer
            | Op::Hello
    )
}

pub(crate) fn message_of(effect: &Effect) -> (ServerId, Op, Vec<u8>) {
    match effect {
        Effect::OpenBlock {
            server,
            at,
            job,
            prefix,
            structure,
            generation,
            kind,
            start,
            end,
            slots,
            max_items,
            max_bytes,
            first,
            marks,
            importing,
        } => {
            let body = OpenBlockRequest {
                block: at.block.0,
                epoch: at.epoch.0,
                job: job.0,
                prefix: prefix.0,
                structure: structure.0,
                generation: generation.0,
                kind: kind.code(),
                start: *start,
                end: *end,
                slots: *slots,
                max_items: *max_items,
                max_bytes: *max_bytes,
                first: *first,
                high_mark: marks.high(),
                low_mark: marks.low(),
                importing: importing.0,
            };
            (*server, Op::OpenBlock, body.encode())
        }
        Effect::FreeBlock { server, at } => {
            let body = FreeBlockRequest { block: at.block.0, epoch: at.epoch.0 };
            (*server, Op::FreeBlock, body.encode())
        }
        Effect::SetGeneration { server, prefix, generation } => {
            let body = SetGenerationRequest { prefix: prefix.0, generation: generation.0 };
            (*server, Op::SetGeneration, body.encode())
        }
        Effect::QueueAhead { server, at, items, bytes } => {
            let body = QueueAheadRequest {
                block: at.block.0,
                epoch: at.epoch.0,
                items: *items,
                bytes: *bytes,
            };
            (*server, Op::QueueAhead, body.encode())
        }
        Effect::FlushBlock { server, at, start, end, object } => {
            let (block, epoch, object) = (at.block.0, at.epoch.0, object.to_string());
            let (start, end) = (*start, *end);
            let body = FlushBlockRequest { block, epoch, start, end, object };
            (*server, Op::FlushBlock, body.encode())
        }
        Effect::CommitFlush { server, number, directory, job_name, address, structures } => {
            let body = CommitFlushRequest {
                directory: directory.to_string(),
                number: *number,
                job_name: job_name.to_string(),
                address: address.to_string(),
                structures: structures.iter().map(translate::flushed_structure).collect(),
            };
            (*server, Op::CommitFlush, body.encode())
        }
        Effect::BeginImport { server, at, id, start, end } => {
            (*server, Op::BeginImport, moves::begin_import(*at, *id, *start, *end))
        }
        Effect::EndImport { server, at, id, commit } => {
            (*server, Op::EndImport, moves::end_import(*at, *id, *commit))
        }
    }
}

/// A `RenewLeasesRequest`, read where it lies: a driver renews thousands of paths in one.
fn frontier(args: &[u8]) -> Result<(JobId, Vec<&str>), Malformed> {
    let mut reader = Reader::new(args);
    let (job, paths) = (JobId(u64::get(&mut reader)?), reader.texts()?);
    reader.finish()?;
    Ok((job, paths))
}

fn strs(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

fn block_at(block: u64, epoch: u64) -> BlockAt {
    BlockAt { block: BlockId(block), epoch: Epoch(epoch) }
}

/// Whether a command's changes must be on the disk before anybody hears of them. Growth need not
/// wait: a grant that a crash of the machine takes from the log is adopted from the block that has
/// it, and a seal is told again.
fn waits(command: &Command<'_>) -> bool {
    !matches!(
        command,
        Command::GrowStructure { .. }
            | Command::SealBlock { .. }
            | Command::ServerReport { .. }
            | Command::RenewPrefixById { .. }
            | Command::RenewLeases { .. }
    )
}

/// Whether it makes a block ready for what a reply is about to promise.
fn prepares(effect: &Effect) -> bool {
    matches!(effect, Effect::OpenBlock { .. } | Effect::BeginImport { .. })
}

/// Whether a reply waits for this.
fn is_awaited(effect: &Effect) -> bool {
    prepares(effect) || matches!(effect, Effect::FreeBlock { .. })
}

/// What it means for a reply that the server is gone which was to do this.
fn loss_of(effect: &Effect) -> Option<Refusal> {
    match effect {
        // Nothing is lost but an attempt, and who asked still has everything.
        Effect::BeginImport { .. } => Some((Status::Busy, taker_gone())),
        Effect::OpenBlock { importing, .. } if *importing != honeycomb_types::MoveId::NONE => {
            Some((Status::Busy, taker_gone()))
        }
        Effect::OpenBlock { .. } => {
            let text = "the memory server that was to hold the blocks is gone; try again";
            Some((Status::DataLost, text.to_owned()))
        }
        _ => None,
    }
}

fn taker_gone() -> String {
    "the memory server that was to take the range is gone; try again".to_owned()
}

pub(crate) fn refusal(error: CatalogError) -> Refusal {
    (status_of(&error), error.to_string())
}

pub(crate) fn malformed(error: Malformed) -> Refusal {
    (Status::BadFrame, error.to_string())
}

fn unexpected<T>(op: Op, reply: &Reply) -> Result<T, Refusal> {
    Err((Status::Internal, format!("the catalog answered {} with {reply:?}", op.name())))
}
