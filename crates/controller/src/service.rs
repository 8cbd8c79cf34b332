//! Requests in, commands to the catalog, replies out; effects to the memory servers.

mod clients;
mod drain;
mod errands;
mod extents;
mod flush;
mod links;
mod moves;
mod probes;
mod siblings;

pub(crate) use errands::Errand;
pub use errands::message_of;
use siblings::Forwarded;
pub(crate) use siblings::{Origin, Siblings};

use crate::advised::Advised;
use crate::answers::Answers;
use crate::outbox::{Marks, Out, Rests, changes_nothing};
use crate::plan_count::PlanCount;
use crate::status::status_of;
use crate::store::{Store, Synced};
use crate::translate;
use crate::turns::{LOOK_EVERY, Turns};
use errands::Deferred;
use honeycomb_catalog::{Actor, Catalog, CatalogError, Command, Effect, Reply};
use honeycomb_env::{ConnId, Detached, Net, ReplyPayload, Service, thread_cpu};
use honeycomb_types::limits::{FULL_PATIENCE, RESULTS_WINDOW, SERVER_SILENCE};
use honeycomb_types::{BlockAt, Bug, JobId, PrefixId, ServerId, SessionId, Time, Verbs};
use honeycomb_wire::messages::*;
use honeycomb_wire::{
    Auth, Durable, Field, GrantKey, Greeted, Malformed, MayWait, Mutates, Op, Plane, ReplyHeader,
    RequestHeader, RootKey, Scope, ServedBy, Status, TokenKey,
};
use probes::Probes;
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a client waits when admission is closed, in microseconds.
const BUSY_RETRY_US: u64 = 1000;
/// The pause before a shard whose mailbox was full is tried again.
const DELIVER_AGAIN: Duration = Duration::from_millis(1);
/// Requests that wait for blocks to be lent; one more is refused as if there were none.
const PARKED_MAX: usize = 4096;

/// What a handshake has proven, and what the connection turned out to be.
pub(crate) struct Peer {
    pub(crate) scope: Scope,
    /// Whose lease the traffic renews.
    task: Option<PrefixId>,
    /// The memory server at the other end, once it has joined.
    pub(crate) server: Option<ServerId>,
    session: SessionId,
    /// It stands for a connection of another shard.
    pub(crate) origin: Option<Origin>,
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
    /// The log was synced, or could not be.
    Synced(Synced),
    /// Nobody listens at the address of this server, whose connection closed.
    ServerEnded(ServerId),
    /// A connection whose handshake named this shard.
    Adopt(Detached, Peer),
    /// A request for this shard that arrived at another.
    Forward(Box<Forwarded>),
    /// The answer to one that was forwarded from here.
    Returned(ConnId, ReplyHeader, Vec<u8>),
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

/// A request that waits for memory: for servers that lend more, or for blocks that go below it.
struct Parked {
    since: Time,
    from: ConnId,
    header: RequestHeader,
    args: Vec<u8>,
}

/// What a client asks, and on whose behalf.
#[derive(Clone, Copy)]
struct Asked<'a> {
    now: Time,
    actor: Actor,
    /// What its token allows.
    scope: Scope,
    op: Op,
    args: &'a [u8],
}

impl Asked<'_> {
    /// Its arguments: those of the operation, and nothing behind them.
    fn read<T: Field>(&self) -> Result<T, Refusal> {
        T::decode(self.args).map_err(malformed)
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
    /// What waits until this group is on the disk.
    pub(crate) held: VecDeque<(u64, Out)>,
    /// How many of these are answers to clients.
    pub(crate) held_for_clients: usize,
    pub(crate) marks: Marks,
    /// Links whose servers have not been told yet that they have joined.
    pub(crate) joining: Vec<ConnId>,
    /// The job whose request is served.
    serving: Option<JobId>,
    pub(crate) token_key: TokenKey,
    pub(crate) grant_key: GrantKey,
    pub(crate) peers: HashMap<ConnId, Peer>,
    pub(crate) links: HashMap<ServerId, ConnId>,
    pub(crate) probes: Probes,
    effects: Vec<Effect>,
    pub(crate) errands: HashMap<u64, Errand>,
    /// Blocks that their servers have not confirmed to be open: a reply that names one asks for it
    /// again, and waits.
    opening: HashMap<BlockAt, Effect>,
    deferred: HashMap<u64, Deferred>,
    next_number: u64,
    /// Blocks that the last allocation was refused.
    short: u32,
    parked: Vec<Parked>,
    /// Plans of which a part has arrived.
    plans: HashMap<ConnId, PlanCount>,
    pub(crate) siblings: Siblings,
    requests: Requests,
    turns: Turns,
    stopped: bool,
    fenced: Fenced,
    /// What was advised last, and to whom that is told.
    advised: Advised,
    advises: Option<Sender<Advised>>,
}

impl ControllerService {
    pub(crate) fn new(
        state: State,
        root: &RootKey,
        fenced: Fenced,
        siblings: Siblings,
    ) -> ControllerService {
        let State { catalog, store, answers } = state;
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
            marks: Marks::default(),
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

    /// Whom to tell when there should be other servers.
    pub(crate) fn advises(self, advises: Sender<Advised>) -> ControllerService {
        ControllerService { advises: Some(advises), ..self }
    }

    /// Tells what is advised, when it is something else than before.
    fn advise(&mut self) {
        let Some(to) = &self.advises else { return };
        let advice = Advised::of(&self.catalog.advice(true));
        if !advice.is_like(&self.advised) {
            self.advised = advice.clone();
            // Nobody need listen.
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

    /// A greater term was heard of: this controller is over.
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
                    let text = "the job has its share of the controller's connections; close some";
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
                self.peers.insert(from, Peer { scope, task, server: None, session, origin: None });
                // At once: what comes next may be another shard's to answer.
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

    /// Who asks, and whether the operation is for the likes of them.
    fn actor(&mut self, now: Time, from: ConnId, op: Op, change: bool) -> Result<Actor, Refusal> {
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
            let text = format!("{} needs the cluster's token", op.name());
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
            let text = format!("{} needs a token that was not narrowed to reading", op.name());
            return Err((Status::PermissionDenied, text));
        }
        let joined = op == Op::JoinServer;
        if info.plane == Plane::Link && peer.server.is_some() == joined {
            let text = if joined { "the server has joined already" } else { "join first" };
            return Err((Status::PermissionDenied, text.into()));
        }
        let Scope { job, task, verbs, life, .. } = peer.scope;
        // As with renewals: only a session of a job runs for a task of that job.
        let session = peer.task.filter(|_| job.is_some());
        let actor = Actor { job, task, session, verbs, life };
        if let (Some(job), Some(prefix)) = (peer.scope.job, peer.task) {
            // Any traffic of a session is a sign of life of its task; that the prefix may be gone
            // is the catalog's business.
            let _ = self.apply(now, Command::RenewPrefixById { job, prefix, ago_ms: 0 });
        }
        Ok(actor)
    }

    /// Serves a request, unless it was answered before, or cannot be now. No answer when it was asked
    /// before and what it asked for is still being done.
    fn serve_once(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
        change: bool,
    ) -> Result<Option<Vec<u8>>, Refusal> {
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
    ) -> Result<Vec<u8>, Refusal> {
        let (op, actor) = (header.op, self.actor(now, from, header.op, change)?);
        let asked = Asked { now, actor, scope: self.peers[&from].scope, op, args };
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

    /// Serves a request of this shard, for the first time, or again when it waited for memory `since`.
    fn handle(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
        since: Option<Time>,
    ) {
        self.serving = self.peers[&from].scope.job;
        let change = changes(header.op, args);
        match self.serve_once(net, now, from, header, args, change) {
            Ok(None) => {
                self.dispatch(now, None);
                // Somebody who asked again waits for the answer.
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
            }
            // Memory may become free: its writer waits as long as it has time.
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

    /// Whether memory may come for an allocation that was refused just now: servers are asked to lend,
    /// and blocks go below memory. Until patience ends: what came may have gone to who asked before. A server
    /// that lent less than it was asked for is not waited for again.
    fn may_wait(&mut self, now: Time, since: Option<Time>) -> bool {
        let comes = |since: Time| {
            now.since(since) < FULL_PATIENCE && (self.catalog.lowers() || self.catalog.may_borrow())
        };
        if !since.is_none_or(comes) || self.parked.len() >= PARKED_MAX {
            return false;
        }
        let short = Command::ShortOf { blocks: self.short };
        self.apply(now, short).expect("being short cannot be refused");
        self.dispatch(now, None);
        self.catalog.awaits_room()
    }

    /// Serves what waited for memory, when some has come or there is nothing more to wait for.
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
        let turn = self.turns.turn(now, net.asked_all(), thread_cpu);
        if let Some(stall) = turn.stall {
            self.apply(now, stall).expect("a stall cannot be refused");
        }
        let heard = turn.heard;
        self.advise();
        // Nothing may end that could come back, because its end is not on the log.
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
    type Note = Note;
    /// One request may take milliseconds: a plan, a tree, a renewal of thousands.
    const TIMED: bool = true;

    fn part(&mut self, from: ConnId, header: &RequestHeader, args: &[u8]) -> Result<(), Refusal> {
        // Of other requests nothing is counted before they are whole.
        if header.op != Op::CreateHierarchy || !self.peers.contains_key(&from) {
            return Ok(());
        }
        let counted = self.plans.entry(from).or_default().goes_on(args);
        if counted.is_err() {
            self.plans.remove(&from);
        }
        counted
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
        // A lease shall not end because others wait for the disk.
        let behind = self.is_behind() && !header.op.is_urgent();
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
            _ if (net.exhausted() && !header.op.is_urgent() || behind)
                && self.peers[&from].server.is_none() =>
            {
                let reply = ReplyHeader::new(Status::Busy, header.request, BUSY_RETRY_US);
                let text: &[u8] = match net.exhausted() {
                    true => b"the job holds its share of the controller's buffers; ask again later",
                    false => b"the controller's disk is behind",
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
        // Only a memory server is ever asked anything.
        let Some(server) = self.peers.get(&from).and_then(|peer| peer.server) else {
            return net.close(from);
        };
        self.errand_answered(now, server, header, args);
    }

    fn on_close(&mut self, net: &mut Net, now: Time, conn: ConnId) {
        self.joining.retain(|joining| *joining != conn);
        self.plans.remove(&conn);
        // A server that came back over another connection is not lost with this one.
        if let Some(Peer { server: Some(server), .. }) = self.peers.remove(&conn)
            && self.links.get(&server) == Some(&conn)
        {
            self.unlinked(now, server);
        }
        self.settle(net, now);
    }

    fn on_detached(&mut self, from: ConnId, target: u8, conn: Detached) {
        self.detached(from, target, conn);
    }

    fn on_note(&mut self, net: &mut Net, now: Time, note: Note) {
        match note {
            Note::Adopt(conn, peer) => self.adopt(net, conn, peer),
            Note::Forward(request) => self.forwarded(net, now, *request),
            Note::Returned(to, header, body) => self.returned(net, to, header, body),
            Note::ServerEnded(server) => self.server_ended(now, server),
            Note::Stop => self.stopped = true,
            Note::Synced(synced) => {
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
        self.settle(net, now);
        let mut deadline = self
            .catalog
            .next_deadline()
            .unwrap_or(now + SERVER_SILENCE.max(Duration::from_secs(1)));
        if self.siblings.is_behind() {
            deadline = deadline.min(now + DELIVER_AGAIN);
        }
        if self.catalog.has_leases() {
            deadline = deadline.min(now + LOOK_EVERY);
        }
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

/// The part of the log that an operation's answer rests on.
fn rests(op: Op, change: bool) -> Rests {
    match op.durable() {
        Durable::No => Rests::Nothing,
        Durable::Logged => Rests::Growth,
        Durable::Synced if change => Rests::Change,
        Durable::Synced | Durable::Seen => Rests::Sight,
    }
}

/// Whether a request may change the catalog. The catalog checks a job's token, prefix by prefix. An operation
/// that this node does not serve counts as a change; it is refused.
fn changes(op: Op, args: &[u8]) -> bool {
    let looks = op.served_by() != ServedBy::Server && op.mutates() == Mutates::No;
    !looks && !extents::only_asks(op, args)
}

/// Whether a command may make changes that must be on the disk before anybody hears of them. Growth
/// need not wait: a grant that a crash of the machine takes from the log is adopted from the block that
/// has it, and a seal is told again; a part of a flush is written again. But what frees a block always
/// does: nobody tells again of a block that its server no longer has.
pub fn waits(command: &Command<'_>, effects: &[Effect]) -> bool {
    let frees = effects.iter().any(|effect| matches!(effect, Effect::FreeBlock { .. }));
    if frees && !Bug::FreesUnsynced.active() {
        return true;
    }
    !matches!(
        command,
        Command::GrowStructure { .. }
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

pub(crate) fn refusal(error: CatalogError) -> Refusal {
    (status_of(&error), error.to_string())
}

pub(crate) fn malformed(error: Malformed) -> Refusal {
    (Status::BadFrame, error.to_string())
}

fn unexpected<T>(op: Op, reply: &Reply) -> Result<T, Refusal> {
    Err((Status::Internal, format!("the catalog answered {} with {reply:?}", op.name())))
}
