//! Handles requests: commands to the catalog, replies to clients, and effects to the memory servers.

mod appends;
mod clients;
mod drain;
mod extents;
mod flush;
mod links;
mod moves;
mod probes;
mod server_requests;
mod siblings;

pub(crate) use server_requests::ServerRequest;
pub use server_requests::message_of;
use siblings::ForwardedRequest;
pub(crate) use siblings::{RequestOrigin, Siblings};

use crate::advised::Advised;
use crate::answers::Answers;
use crate::outbox::{OutgoingMessage, Rests, UnsyncedGroups, changes_nothing};
use crate::plan_count::PlanCount;
use crate::status::status_of;
use crate::store::{Store, Synced};
use crate::translate;
use crate::turns::Turns;
use honeycomb_catalog::{Actor, Catalog, CatalogError, Command, Effect, Reply};
use honeycomb_env::thread_cpu;
use honeycomb_transport::{ConnId, Detached, Net, ReplyPayload, Service};
use honeycomb_types::limits::{FULL_PATIENCE, LOTS_AGAIN, RESULTS_WINDOW, SERVER_SILENCE};
use honeycomb_types::{BlockAt, Bug, JobId, PrefixId, ServerId, SessionId, Time, Verbs};
use honeycomb_wire::messages::*;
use honeycomb_wire::{
    Auth, Durable, Field, GrantKey, Greeted, Malformed, MayWait, Mutates, Op, Plane, ReplyHeader,
    RequestHeader, RootKey, Scope, ServedBy, Status, TokenKey,
};
use probes::Probes;
use server_requests::Deferred;
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a client waits before it retries when admission is closed, in microseconds.
const BUSY_RETRY_US: u64 = 1000;
/// The pause before a retry to a shard whose mailbox was full.
const DELIVER_AGAIN: Duration = Duration::from_millis(1);
/// Maximum number of requests that wait for borrowed blocks; further requests are refused as out of memory.
const PARKED_MAX: usize = 4096;

/// The state of a connection after its handshake.
pub(crate) struct PeerState {
    pub(crate) scope: Scope,
    /// Task whose lease the traffic renews.
    task: Option<PrefixId>,
    /// The memory server at the other end, once it has joined.
    pub(crate) server: Option<ServerId>,
    session: SessionId,
    /// For a stand-in: its connection at another shard.
    pub(crate) origin: Option<RequestOrigin>,
}

/// The status and the message of a refused request.
pub(crate) type RefusedRequest = (Status, String);

/// The initial state of a controller.
pub(crate) struct ShardState {
    pub(crate) catalog: Catalog,
    pub(crate) store: Option<Store>,
    pub(crate) answers: Answers,
}

/// The greater term that ended a controller.
pub(crate) type Fenced = Arc<Mutex<Option<u32>>>;

/// The term of a controller without a log.
pub(crate) const VOLATILE_TERM: u32 = 1;

/// Two requests of a session with the same number are the same request if the number has this bit.
const NAMED_FOR_GOOD: u64 = 1 << 63;

/// A message from another thread to the controller.
pub(crate) enum ControllerNote {
    /// End the loop.
    Stop,
    /// A sync of the log ended, with success or failure.
    Synced(Synced),
    /// A probe of this server's address has found that its process has ended.
    ServerEnded(ServerId),
    /// A connection whose handshake named this shard.
    Adopt(Detached, PeerState),
    /// A request for this shard that arrived at another.
    Forward(Box<ForwardedRequest>),
    /// The answer to a request that was forwarded from here.
    Returned(ConnId, ReplyHeader, Vec<u8>),
}

/// Numbers of requests to the controller, by kind.
#[derive(Default)]
pub(crate) struct Requests {
    pub all: u64,
    /// Renewals of leases.
    pub leases: u64,
    /// Requests of memory servers about their blocks.
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

/// A request that waits for memory: for more borrowed blocks, or for the demotion of blocks.
struct Parked {
    since: Time,
    from: ConnId,
    header: RequestHeader,
    args: Vec<u8>,
}

/// A client's request, with the job and the rights of its caller.
#[derive(Clone, Copy)]
struct ClientRequest<'a> {
    now: Time,
    actor: Actor,
    /// Rights of the caller's token.
    scope: Scope,
    op: Op,
    args: &'a [u8],
}

impl ClientRequest<'_> {
    /// Decodes the arguments, which must have no trailing bytes.
    fn read<T: Field>(&self) -> Result<T, RefusedRequest> {
        T::decode(self.args).map_err(malformed)
    }
}

pub(crate) struct ControllerService {
    pub(crate) catalog: Catalog,
    /// `None` for a controller without a log.
    pub(crate) store: Option<Store>,
    pub(crate) term: u32,
    pub(crate) answers: Answers,
    /// Records of this round that do not belong to the catalog.
    pub(crate) records: Vec<u8>,
    /// Whether a change of this round must be on disk before it is answered.
    pub(crate) wait: bool,
    /// Time of the next attempt to begin new files.
    pub(crate) renew_at: Time,
    /// Messages for the end of this round, and messages that wait for new files.
    pub(crate) out: Vec<OutgoingMessage>,
    /// Messages that wait until this group is on disk.
    pub(crate) held: VecDeque<(u64, OutgoingMessage)>,
    /// Number of held messages that are answers to clients.
    pub(crate) held_for_clients: usize,
    pub(crate) marks: UnsyncedGroups,
    /// Links whose servers have not received the reply to their join yet.
    pub(crate) joining: Vec<ConnId>,
    /// Job whose request is being served.
    serving: Option<JobId>,
    pub(crate) token_key: TokenKey,
    pub(crate) grant_key: GrantKey,
    pub(crate) peers: HashMap<ConnId, PeerState>,
    pub(crate) links: HashMap<ServerId, ConnId>,
    pub(crate) probes: Probes,
    effects: Vec<Effect>,
    pub(crate) errands: HashMap<u64, ServerRequest>,
    /// Blocks whose servers have not confirmed that they are open. A reply that names such a block repeats
    /// the request to open it, and waits.
    opening: HashMap<BlockAt, Effect>,
    deferred: HashMap<u64, Deferred>,
    next_number: u64,
    /// Number of blocks missing in the last refused allocation.
    short: u32,
    parked: Vec<Parked>,
    /// Plans that have arrived partly.
    plans: HashMap<ConnId, PlanCount>,
    pub(crate) siblings: Siblings,
    requests: Requests,
    turns: Turns,
    stopped: bool,
    fenced: Fenced,
    /// The last advice, and its receiver.
    advised: Advised,
    advises: Option<Sender<Advised>>,
}

impl ControllerService {
    pub(crate) fn new(
        state: ShardState,
        root: &RootKey,
        fenced: Fenced,
        siblings: Siblings,
    ) -> ControllerService {
        let ShardState { catalog, store, answers } = state;
        let term = store.as_ref().map_or(VOLATILE_TERM, Store::term);
        let mut service = ControllerService {
            catalog,
            store,
            term,
            answers,
            records: Vec::new(),
            wait: false,
            renew_at: Time::ZERO,
            out: Vec::new(),
            held: VecDeque::new(),
            held_for_clients: 0,
            marks: UnsyncedGroups::default(),
            joining: Vec::new(),
            serving: None,
            token_key: root.token_key(),
            grant_key: root.grant_key(),
            peers: HashMap::new(),
            links: HashMap::new(),
            probes: Probes::default(),
            effects: Vec::new(),
            errands: HashMap::new(),
            opening: HashMap::new(),
            deferred: HashMap::new(),
            next_number: 1,
            short: 0,
            parked: Vec::new(),
            plans: HashMap::new(),
            siblings,
            requests: Requests::default(),
            turns: Turns::default(),
            stopped: false,
            fenced,
            advised: Advised::Nothing,
            advises: None,
        };
        service.probe_awaited();
        service
    }

    /// Sets the receiver of advice to add or remove servers.
    pub(crate) fn advises(self, advises: Sender<Advised>) -> ControllerService {
        ControllerService { advises: Some(advises), ..self }
    }

    /// Makes a step of the background check of the catalog; a finding is logged and counted.
    fn audit(&mut self, now: Time) {
        // Revoked grants must be in the log, as after a change of permissions.
        if self.trouble().is_some() {
            return;
        }
        if let Some(finding) = self.catalog.audit(now, &mut self.effects) {
            let number = self.catalog.findings();
            eprintln!("honeycomb: defect {number} that the background check has found: {finding}");
            self.wait = true;
            self.marks.change(None);
            self.dispatch(now, None);
        }
    }

    /// Sends the advice if it has changed.
    fn advise(&mut self) {
        let Some(to) = &self.advises else { return };
        let advice = Advised::of(&self.catalog.advice(true));
        if !advice.is_like(&self.advised) {
            self.advised = advice.clone();
            // A send error means that the receiver is gone, which is allowed.
            let _ = to.send(advice);
        }
    }

    pub(crate) fn apply(&mut self, now: Time, command: Command<'_>) -> Result<Reply, CatalogError> {
        let before = self.effects.len();
        let reply = self.catalog.apply(now, command, &mut self.effects);
        if let Err(CatalogError::OutOfMemory(full)) = &reply {
            self.short = u32::try_from(full.asked).unwrap_or(u32::MAX);
        }
        if waits(&command, &self.effects[before..]) {
            self.wait = true;
            self.marks.change(self.serving);
        }
        reply
    }

    /// Ends this controller after a message with a greater term.
    pub(crate) fn fence(&mut self, term: u32) {
        *self.fenced.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(term);
        self.stopped = true;
    }

    fn hello(&mut self, net: &mut Net, now: Time, from: ConnId, request: u64, args: &[u8]) {
        let greeted = Greeted::check(args, &self.token_key, now.as_millis()).and_then(|greeted| {
            let home = self.siblings.home(&greeted.scope, greeted.hello.shard)?;
            Ok((greeted, home))
        });
        match greeted {
            Ok((greeted, home)) => {
                if !net.greet(from, greeted.scope.job.map(|job| job.0)) {
                    let text =
                        "the job uses its full share of the controller's connections; close some";
                    net.refuse(from, request, Status::LimitExceeded, text);
                    return net.close(from);
                }
                let reply = HelloReply {
                    shard: home as u8,
                    shards: self.siblings.count() as u8,
                    window: RESULTS_WINDOW,
                    near: net.near().to_owned(),
                    ..greeted.reply(now.as_millis())
                };
                let Greeted { scope, task, session, .. } = greeted;
                let peer = PeerState { scope, task, server: None, session, origin: None };
                let before = self.peers.insert(from, peer);
                assert!(before.is_none(), "INV-28: {from:?} greets twice");
                // Sent at once, because another shard may answer the next request.
                let header = ReplyHeader::new(Status::Ok, request, 0);
                net.reply(from, header, &reply.encode(), ReplyPayload::Copy(&[]));
                if home != self.siblings.ix() {
                    net.hand_over(from, home as u8);
                }
            }
            Err((status, text)) => {
                net.refuse(from, request, status, &text);
                net.close(from);
            }
        }
    }

    /// The caller of a request, after a check of its rights for the operation.
    fn actor(
        &mut self,
        now: Time,
        from: ConnId,
        op: Op,
        change: bool,
    ) -> Result<Actor, RefusedRequest> {
        let peer = &self.peers[&from];
        let info = op.info();
        if op.served_by() == ServedBy::Server {
            let text = format!("{} is served by memory servers", op.name());
            return Err((Status::NotServedHere, text));
        }
        if now.as_millis() >= peer.scope.expires_ms {
            return Err((Status::Unauthenticated, "the token has expired".into()));
        }
        if info.auth == Auth::Cluster && peer.scope.job.is_some() {
            let text = format!("{} requires the cluster's token", op.name());
            return Err((Status::PermissionDenied, text));
        }
        if peer.scope.job.is_none() && (peer.scope.task.is_some() || peer.scope.life.is_some()) {
            let text =
                "the cluster's token cannot be narrowed to a task or a life; narrow the job's";
            return Err((Status::PermissionDenied, text.into()));
        }
        let renews = op == Op::RenewLeases;
        if peer.scope.job.is_none()
            && !peer.scope.verbs.contains(Verbs::WRITE)
            && (change || renews)
        {
            let text =
                format!("{} requires a token with write access, not a read-only one", op.name());
            return Err((Status::PermissionDenied, text));
        }
        let joined = op == Op::JoinServer;
        if info.plane == Plane::Link && peer.server.is_some() == joined {
            let text = match joined {
                true => "the server has already joined",
                false => "the server must join first",
            };
            return Err((Status::PermissionDenied, text.into()));
        }
        let Scope { job, task, verbs, life, .. } = peer.scope;
        // As with renewals: only a session with a job's token belongs to a task of that job.
        let session = peer.task.filter(|_| job.is_some());
        let actor = Actor { job, task, session, verbs, life };
        if let (Some(job), Some(prefix)) = (peer.scope.job, peer.task) {
            // Any traffic of a session renews the lease of its task. The catalog handles a prefix that is
            // gone.
            let _ = self.apply(now, Command::RenewPrefixById { job, prefix, ago_ms: 0 });
        }
        Ok(actor)
    }

    /// Serves a request, unless it was answered before or cannot be served now. No answer if an earlier
    /// attempt of the same request is still in progress.
    fn serve_once(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
        change: bool,
    ) -> Result<Option<Vec<u8>>, RefusedRequest> {
        if change && let Some(why) = self.trouble() {
            return Err((Status::LogFailed, format!("{why}; nothing was changed")));
        }
        if !change || header.request & NAMED_FOR_GOOD == 0 {
            return self.serve(net, now, from, header, args, change).map(Some);
        }
        let session = self.peers[&from].session;
        if let Some(body) = self.answers.find(session, header.request).map(<[u8]>::to_vec) {
            self.actor(now, from, header.op, change)?;
            if self.is_deferred(from, session, header.request) {
                return Ok(None);
            }
            if header.op == Op::CreateStructure
                && let Ok(opened) = CreateStructureReply::decode(&body)
            {
                self.await_open(opened.map.entries.iter().map(|e| e.at()));
            }
            return Ok(Some(body));
        }
        let body = self.serve(net, now, from, header, args, change)?;
        self.answers.keep(&mut self.records, now, session, header.request, &body);
        Ok(Some(body))
    }

    fn serve(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
        change: bool,
    ) -> Result<Vec<u8>, RefusedRequest> {
        let (op, actor) = (header.op, self.actor(now, from, header.op, change)?);
        let asked = ClientRequest { now, actor, scope: self.peers[&from].scope, op, args };
        match op {
            Op::Ping => asked.read::<PingRequest>().map(|_| Vec::new()),
            Op::RegisterJob
            | Op::FindJob
            | Op::DeregisterJob
            | Op::ListJobs
            | Op::JobTree
            | Op::JobWeights
            | Op::JobCost => self.serve_job(asked),
            Op::SetQuota | Op::GetQuota => self.serve_quota(asked),
            Op::CreatePrefix
            | Op::CreateHierarchy
            | Op::RemovePrefix
            | Op::RenewLeases
            | Op::LeaseInfo
            | Op::SetPermissions => self.serve_prefix(asked),
            Op::DeclareReaders | Op::CommitTask => self.serve_readers(asked),
            Op::CreateStructure | Op::OpenStructure | Op::ReopenStructure | Op::RemoveStructure => {
                self.serve_structure(asked)
            }
            Op::ExtentBlocks => self.extent_blocks(asked),
            Op::BeginAppend => self.begin_append(asked),
            Op::CommitAppend => self.commit_append(asked),
            Op::DropAppend => self.drop_append(asked),
            Op::LocateServer => self.locate_server(asked),
            Op::DrainServer => self.drain_server(asked),
            Op::StopCluster => self.stop_cluster(asked),
            Op::FlushPrefix
            | Op::FlushInfo
            | Op::CancelFlush
            | Op::LocateFlush
            | Op::PublishPrefix => self.serve_flush(asked),
            Op::ClusterStatus => {
                asked.read::<ClusterStatusRequest>()?;
                match self.apply(now, Command::ClusterStatus { actor }).map_err(refusal)? {
                    Reply::Status(s) => Ok(translate::status(&s, &self.requests).encode()),
                    other => unexpected(op, &other),
                }
            }
            Op::ListKinds => {
                asked.read::<ListKindsRequest>()?;
                match self.apply(now, Command::ListKinds { actor }).map_err(refusal)? {
                    Reply::Kinds(kinds) => Ok(translate::kinds(&kinds)),
                    other => unexpected(op, &other),
                }
            }
            Op::JoinServer => {
                let body = self.join(net, now, from, args)?;
                net.link(from);
                self.joining.push(from);
                Ok(body)
            }
            Op::Report
            | Op::GrowStructure
            | Op::GrowBlock
            | Op::SealBlock
            | Op::QueueTaken
            | Op::RetireBlock
            | Op::ReturnBlock
            | Op::RaiseBlock
            | Op::TierChanged
            | Op::BlockFailed
            | Op::LeaveServer
            | Op::Inventory => self.serve_link(net, now, from, op, args),
            Op::BeginMove | Op::CommitMove | Op::CancelMove => self.serve_move(now, op, args),
            op => Err((Status::NotServedHere, format!("{} is not served here", op.name()))),
        }
    }

    /// Serves a request of this shard, for the first time, or again after it waited for memory since `since`.
    fn handle(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
        since: Option<Time>,
    ) {
        let other = self.serving;
        assert!(other.is_none(), "INV-28: a request is served during one of job {other:?}");
        debug_assert!(
            self.effects.is_empty(),
            "INV-16: a reply would wait for effects of an earlier command: {:?}",
            self.effects
        );
        self.serving = self.peers[&from].scope.job;
        let change = changes(header.op, args);
        match self.serve_once(net, now, from, header, args, change) {
            Ok(None) => {
                self.dispatch(now, None);
                // A retry waits for the answer.
                let waits = self.deferred.values().any(|deferred| deferred.is_for(from));
                if self.peers[&from].origin.is_some() && !waits {
                    self.peers.remove(&from);
                }
            }
            Ok(Some(body)) => {
                let rests = rests(header.op, change);
                self.conclude(now, from, header, body, rests);
            }
            Err((Status::OutOfMemory, _)) if self.may_wait(now, since) => {
                let (header, args, since) = (*header, args.to_vec(), since.unwrap_or(now));
                self.parked.push(Parked { from, header, args, since });
                let parked = self.parked.len();
                assert!(parked <= PARKED_MAX, "INV-33: {parked} requests wait for memory");
                self.dispatch(now, None);
            }
            // Memory may become free: the client retries within its deadline.
            Err((Status::OutOfMemory, text))
                if header.op.may_wait() == MayWait::Memory && self.catalog.room_may_come() =>
            {
                self.dispatch(now, None);
                self.refuse(from, header.request, Status::Busy, text);
            }
            Err((status, text)) => {
                self.dispatch(now, None);
                self.refuse(from, header.request, status, text);
            }
        }
        self.serving = None;
    }

    /// Whether memory may become free for an allocation that was just refused: servers are asked to lend
    /// blocks, and blocks are demoted. The wait is bounded, because earlier requests may take the freed
    /// memory. A server that lent fewer blocks than requested is asked again after `LOTS_AGAIN`, when other
    /// shards have returned the blocks that they do not use.
    fn may_wait(&mut self, now: Time, since: Option<Time>) -> bool {
        if since.is_some_and(|since| now.since(since) >= FULL_PATIENCE)
            || self.parked.len() >= PARKED_MAX
        {
            return false;
        }
        let lacks = self.catalog.lacks_lots();
        if since.is_some() && (lacks || !self.catalog.lowers() && !self.catalog.may_borrow()) {
            return lacks;
        }
        assert!(self.short > 0, "INV-33: a request waits for memory, and lacks no block");
        let short = Command::ShortOf { units: self.short };
        self.apply(now, short).expect("a report of short memory cannot be refused");
        self.dispatch(now, None);
        self.catalog.awaits_room()
    }

    /// Serves requests that waited for memory, when memory is free or none is coming.
    fn unpark(&mut self, net: &mut Net, now: Time) {
        let came = self.catalog.take_room_came();
        if self.parked.is_empty() {
            return;
        }
        let all = came || !self.catalog.awaits_room();
        let late = |parked: &mut Parked| all || now.since(parked.since) >= FULL_PATIENCE;
        for Parked { from, header, args, since } in
            self.parked.extract_if(.., late).collect::<Vec<_>>()
        {
            if self.peers.contains_key(&from) {
                self.handle(net, now, from, &header, &args, Some(since));
            }
        }
    }

    fn tick(&mut self, net: &mut Net, now: Time) {
        let turn = self.turns.turn(now, net.asked_all(), || thread_cpu() + net.slept());
        if let Some(stall) = turn.stall {
            self.apply(now, stall).expect("a stall cannot be refused");
            self.dispatch(now, None);
        }
        let heard = turn.heard;
        self.advise();
        self.audit(now);
        // While the log cannot be written, nothing may expire: a restart would restore it.
        if self.trouble().is_none() && self.catalog.next_deadline().is_some_and(|due| due <= heard)
        {
            let before = self.catalog.members();
            self.apply(now, Command::TickUntil { heard }).expect("time cannot be refused");
            self.dispatch(now, None);
            if self.catalog.members() < before {
                self.drop_former(net, now);
            }
        }
    }
}

impl Service for ControllerService {
    type Note = ControllerNote;
    /// Some requests may take milliseconds: a plan, a tree, a renewal of thousands of paths.
    const TIMED: bool = true;

    fn part(
        &mut self,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
    ) -> Result<(), RefusedRequest> {
        // Other requests are not counted before they have arrived completely.
        if header.op != Op::CreateHierarchy || !self.peers.contains_key(&from) {
            return Ok(());
        }
        let counted = self.plans.entry(from).or_default().goes_on(args);
        if counted.is_err() {
            self.plans.remove(&from);
        }
        counted
    }

    /// A request of which a part had arrived was refused, and the rest has been discarded.
    fn end_fill(&mut self, _net: &mut Net, _now: Time, from: ConnId) {
        self.plans.remove(&from);
    }

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
        if header.op == Op::CreateHierarchy {
            self.plans.remove(&from);
        }
        // A lease must not expire because other requests wait for the disk.
        let behind = self.is_behind() && !header.op.is_urgent();
        match (header.op, net.greeted(from)) {
            (Op::Hello, true) => {
                return net.refuse(
                    from,
                    header.request,
                    Status::HandshakeRequired,
                    "a connection must send Hello only once",
                );
            }
            (Op::Hello, false) => return self.hello(net, now, from, header.request, args),
            // Links of servers are exempt: their messages free memory.
            _ if (net.exhausted() && !header.op.is_urgent() || behind)
                && self.peers[&from].server.is_none() =>
            {
                let reply = ReplyHeader::new(Status::Busy, header.request, BUSY_RETRY_US);
                let text: &[u8] = match net.exhausted() {
                    true => b"the job uses its full share of the controller's buffers; retry later",
                    false => b"the controller waits for its disk; retry later",
                };
                return net.reply(from, reply, text, ReplyPayload::Copy(&[]));
            }
            _ => {}
        }
        if !self.send_on(net, now, from, header, args) {
            self.handle(net, now, from, header, args, None);
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
        // The controller sends requests only to memory servers.
        let Some(server) = self.peers.get(&from).and_then(|peer| peer.server) else {
            return net.close(from);
        };
        self.errand_answered(now, server, header, args);
    }

    fn on_close(&mut self, net: &mut Net, now: Time, conn: ConnId) {
        self.joining.retain(|joining| *joining != conn);
        self.plans.remove(&conn);
        // A server that has reconnected is not affected by the end of its old connection.
        if let Some(PeerState { server: Some(server), .. }) = self.peers.remove(&conn)
            && self.links.get(&server) == Some(&conn)
        {
            self.unlinked(now, server);
        }
        self.settle(net, now);
    }

    fn on_detached(&mut self, from: ConnId, target: u8, conn: Detached) {
        self.detached(from, target, conn);
    }

    fn on_note(&mut self, net: &mut Net, now: Time, note: ControllerNote) {
        match note {
            ControllerNote::Adopt(conn, peer) => self.adopt(net, conn, peer),
            ControllerNote::Forward(request) => self.forwarded(net, now, *request),
            ControllerNote::Returned(to, header, body) => self.returned(net, to, header, body),
            ControllerNote::ServerEnded(server) => self.server_ended(now, server),
            ControllerNote::Stop => self.stopped = true,
            ControllerNote::Synced(synced) => {
                if let Some(store) = &mut self.store {
                    let before = store.trouble().is_some();
                    store.synced(synced);
                    if let (Some(why), false) = (store.trouble(), before) {
                        self.renew_at = now;
                        changes_nothing(why);
                    }
                }
            }
        }
    }

    fn on_tick(&mut self, net: &mut Net, now: Time) -> Option<Time> {
        self.tick(net, now);
        self.unpark(net, now);
        let left = self.effects.len();
        assert_eq!(left, 0, "INV-16: a round leaves {left} requests to servers behind");
        self.settle(net, now);
        let mut deadline = self
            .catalog
            .next_deadline()
            .unwrap_or(now + SERVER_SILENCE.max(Duration::from_secs(1)));
        if self.siblings.is_behind() {
            deadline = deadline.min(now + DELIVER_AGAIN);
        }
        if !self.parked.is_empty() {
            deadline = deadline.min(now + LOTS_AGAIN);
        }
        let due = match &self.store {
            Some(_) if self.trouble().is_some() => self.renew_at,
            Some(store) => deadline.min(store.deadline()),
            None => deadline,
        };
        Some(Turns::wake(now, due, self.catalog.next_lease_end()))
    }

    fn finished(&self) -> bool {
        self.stopped
    }
}

/// The kind of changes that an operation's answer depends on.
fn rests(op: Op, change: bool) -> Rests {
    let rests = match op.durable() {
        Durable::No => Rests::Nothing,
        Durable::Logged => Rests::Growth,
        Durable::Synced if change => Rests::Change,
        Durable::Synced | Durable::Seen => Rests::Sight,
    };
    let logged = matches!(rests, Rests::Growth | Rests::Change);
    assert!(logged || !change, "INV-26: the answer to {} does not rest on its change", op.name());
    rests
}

/// Whether a request may change the catalog. The catalog checks the rights of a job's token for each prefix.
/// An operation that this node does not serve counts as a change; it is refused.
fn changes(op: Op, args: &[u8]) -> bool {
    let looks = op.served_by() != ServedBy::Server && op.mutates() == Mutates::No;
    !looks && !extents::only_asks(op, args)
}

/// Whether a command may make changes that must be on disk before they are visible. Growth need not wait: if
/// a machine crash removes a grant from the log, it is adopted from the block that has it; a seal is reported
/// again, and a part of a flush is written again. Changes that free a block must always wait: no server
/// reports a block again that it no longer has.
pub fn waits(command: &Command<'_>, effects: &[Effect]) -> bool {
    let frees = effects.iter().any(|effect| matches!(effect, Effect::FreeBlock { .. }));
    if frees && !Bug::FreesUnsynced.active() {
        return true;
    }
    !matches!(
        command,
        Command::GrowStructure { .. }
            | Command::GrowBlock { .. }
            | Command::SealBlock { .. }
            | Command::BlockFlushed { .. }
            | Command::BlockOpened { .. }
            | Command::BlockFreed { .. }
            | Command::RaiseBlock { .. }
            | Command::TierChanged { .. }
            | Command::LowerRefused { .. }
            | Command::QueueTaken { .. }
            | Command::FindJob { .. }
            | Command::Quota { .. }
            | Command::JobWeights { .. }
            | Command::JobBills { .. }
            | Command::ListJobs { .. }
            | Command::ListKinds { .. }
            | Command::ExtentBlocks { bytes: 0, .. }
            | Command::JobTree { .. }
            | Command::LeaseInfo { .. }
            | Command::FlushInfo { .. }
            | Command::LocateFlush { .. }
            | Command::ClusterStatus { .. }
            | Command::ServerReport { .. }
            | Command::ServerUnlinked { .. }
            | Command::Lent { .. }
            | Command::ShortOf { .. }
            | Command::RenewPrefixById { .. }
            | Command::RenewLeases { .. }
    )
}

pub(crate) fn refusal(error: CatalogError) -> RefusedRequest {
    (status_of(&error), error.to_string())
}

pub(crate) fn malformed(error: Malformed) -> RefusedRequest {
    (Status::BadFrame, error.to_string())
}

fn unexpected<T>(op: Op, reply: &Reply) -> Result<T, RefusedRequest> {
    Err((Status::Internal, format!("the catalog answered {} with {reply:?}", op.name())))
}
