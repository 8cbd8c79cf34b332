//! The other shards of this controller: owners of jobs, and requests that arrive at the wrong shard.
//!
//! A job belongs to the shard that its id names. A new job belongs to the shard of the hash of its tenant, or
//! of its name, so that names are unique without messages between shards (ADR 0021). At its handshake, a
//! connection with a job's token is handed to the job's shard. A connection with the cluster's token stays;
//! its requests about jobs of other shards are forwarded as notes, and the answers return as notes. Requests
//! that concern all shards go to all of them.
//!
//! A request from a sibling has a stand-in for its connection. It can wait for the disk or for memory servers
//! like any other request; messages to the stand-in are sent back to the sibling.

use super::{ControllerNote, ControllerService, PeerState};
use crate::merge;
use honeycomb_transport::{ConnId, Detached, Mailbox, Net, NotPosted, ReplyPayload};
use honeycomb_types::limits::CONTROLLER_SHARDS_MAX;
use honeycomb_types::{JobId, SessionId, Time, Verbs, tenant_of};
use honeycomb_wire::messages::{FindJobRequest, RegisterJobRequest};
use honeycomb_wire::{
    Field, ForwardedTo, Mutates, Op, Reader, ReplyHeader, RequestHeader, Scope, Status,
};
use std::collections::{HashMap, VecDeque};
use xxhash_rust::xxh64::xxh64;

/// The origin of a request: a shard, and its id of the connection.
#[derive(Clone, Copy)]
pub(crate) struct RequestOrigin {
    shard: u16,
    conn: ConnId,
}

/// A request on its way to the shard that owns its job.
pub(crate) struct ForwardedRequest {
    origin: RequestOrigin,
    scope: Scope,
    session: SessionId,
    header: RequestHeader,
    args: Vec<u8>,
}

/// A request that all shards answer.
struct Gather {
    to: ConnId,
    request: u64,
    op: Op,
    /// Whether the caller has a job's token: it gets totals only.
    narrow: bool,
    left: usize,
    parts: Vec<Vec<u8>>,
    failure: Option<(ReplyHeader, Vec<u8>)>,
}

/// The shards of this controller, from the view of one of them.
pub(crate) struct Siblings {
    ix: u16,
    /// Mailboxes of all shards, including this one.
    mailboxes: Vec<Mailbox<ControllerNote>>,
    stand_ins: u32,
    gathers: HashMap<ConnId, Gather>,
    /// Answers for shards whose mailboxes were full.
    undelivered: VecDeque<(u16, ControllerNote)>,
}

/// The shard of a new job with this name, which is that of all jobs of its tenant.
pub(crate) fn shard_of_name(name: &str, shards: usize) -> u16 {
    let tenant = tenant_of(name).unwrap_or(name);
    (xxh64(tenant.as_bytes(), 0) % shards.max(1) as u64) as u16
}

impl Siblings {
    pub(crate) fn new(ix: u16, mailboxes: Vec<Mailbox<ControllerNote>>) -> Siblings {
        let (shard, shards) = (ix as usize, mailboxes.len());
        assert!(shard < shards, "INV-28: shard {shard} of {shards} is started");
        // The reply to a handshake has one byte for the shard, and one for their number.
        assert!(shards <= CONTROLLER_SHARDS_MAX as usize, "INV-28: {shards} shards are started");
        let (gathers, undelivered) = (HashMap::new(), VecDeque::new());
        Siblings { ix, mailboxes, stand_ins: 0, gathers, undelivered }
    }

    pub(crate) fn ix(&self) -> u16 {
        self.ix
    }

    pub(crate) fn count(&self) -> usize {
        self.mailboxes.len()
    }

    /// The mailbox of this shard.
    pub(super) fn own_mailbox(&self) -> Mailbox<ControllerNote> {
        self.mailboxes[self.ix as usize].clone()
    }

    fn stand_in(&mut self) -> ConnId {
        self.stand_ins = self.stand_ins.wrapping_add(1);
        ConnId::stand_in(self.stand_ins)
    }

    /// Sends an answer to the connection behind a stand-in.
    pub(crate) fn answer(&mut self, origin: RequestOrigin, header: ReplyHeader, body: Vec<u8>) {
        let (shard, shards) = (origin.shard as usize, self.count());
        assert!(shard < shards, "INV-28: shard {shard} of {shards} has sent a request");
        self.undelivered
            .push_back((origin.shard, ControllerNote::Returned(origin.conn, header, body)));
        self.deliver();
    }

    /// Sends answers back. A shard whose mailbox is full gets its answers at the next tick; their number is
    /// bounded by the requests in mailboxes.
    fn deliver(&mut self) {
        while let Some((shard, note)) = self.undelivered.pop_front() {
            if let Err(NotPosted::Full(note)) = self.mailboxes[shard as usize].post(note) {
                self.undelivered.push_front((shard, note));
                break;
            }
        }
    }

    /// Retries the delivery; answers whether there is more to deliver.
    pub(crate) fn is_behind(&mut self) -> bool {
        self.deliver();
        !self.undelivered.is_empty()
    }

    /// The shard of a connection with this scope, which may request a shard.
    pub(crate) fn home(&self, scope: &Scope, asked: u8) -> Result<u16, (Status, String)> {
        let shards = self.count();
        match (scope.job, asked) {
            (Some(job), _) if (job.controller() as usize) < shards => Ok(job.controller()),
            (_, u8::MAX) | (Some(_), _) => Ok(self.ix),
            (None, n) if (n as usize) < shards => Ok(n.into()),
            (None, n) => {
                let text = format!("there is no controller shard {n}: the controller has {shards}");
                Err((Status::InvalidArgument, text))
            }
        }
    }

    /// The shard that must serve a request with the cluster's token; `None` for this shard.
    fn owner(&self, op: Op, args: &[u8]) -> Option<u16> {
        let named = |name: &str| shard_of_name(name, self.count());
        let owner = match op {
            Op::RegisterJob => named(&RegisterJobRequest::decode(args).ok()?.name),
            Op::FindJob => named(&FindJobRequest::decode(args).ok()?.name),
            // Both requests begin with the same fields. The quota of a tenant is on the shard of its jobs.
            Op::SetQuota | Op::GetQuota => {
                let mut r = Reader::new(args);
                let (job, level) = (u64::get(&mut r).ok()?, u8::get(&mut r).ok()?);
                match level {
                    0 => named(&String::get(&mut r).ok()?),
                    _ => JobId(job).controller(),
                }
            }
            _ => match op.forwarded_to() {
                ForwardedTo::Job => {
                    JobId(u64::from_le_bytes(*args.first_chunk::<8>()?)).controller()
                }
                // By arguments: each has an arm above.
                ForwardedTo::None | ForwardedTo::All | ForwardedTo::Arguments => return None,
            },
        };
        // A job that belongs to no shard is unknown on every shard, also here.
        (owner != self.ix && (owner as usize) < self.count()).then_some(owner)
    }
}

impl ControllerService {
    /// Forwards a request that another shard, or all shards, must answer. False when it belongs to this
    /// shard.
    pub(super) fn send_on(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
    ) -> bool {
        let peer = &self.peers[&from];
        if self.siblings.count() == 1 || peer.server.is_some() {
            return false;
        }
        let (scope, session) = (peer.scope, peer.session);
        let whole = scope.job.is_none();
        let changes = header.op.mutates() != Mutates::No;
        let all = header.op.forwarded_to() == ForwardedTo::All;
        let all_bills = header.op == Op::JobCost && args == 0u64.to_le_bytes();
        let lists = header.op == Op::ListJobs || all_bills;
        if all && !lists || lists && whole {
            // The rights of the caller are checked here.
            let may = match changes {
                true => self.actor(now, from, header.op, true).map(|_| ()),
                false => self.serve(net, now, from, header, args, false).map(|_| ()),
            };
            // Any command may begin work that the catalog has due.
            self.dispatch(now, None);
            if let Err((status, text)) = may {
                self.refuse(from, header.request, status, text);
            } else {
                self.gather(net, from, header, args, scope, session);
            }
            return true;
        }
        let Some(owner) = self.siblings.owner(header.op, args).filter(|_| whole) else {
            return false;
        };
        let origin = RequestOrigin { shard: self.siblings.ix, conn: from };
        let args = args.to_vec();
        let forwarded =
            Box::new(ForwardedRequest { origin, scope, session, header: *header, args });
        match self.siblings.mailboxes[owner as usize].post(ControllerNote::Forward(forwarded)) {
            Ok(()) => net.forwarded(from, header.request, None),
            Err(_) => self.busy(net, from, header.request),
        }
        true
    }

    fn busy(&mut self, net: &mut Net, to: ConnId, request: u64) {
        let reply = ReplyHeader::new(Status::Busy, request, super::BUSY_RETRY_US);
        let text: &[u8] = b"the mailbox of a controller shard is full";
        net.reply(to, reply, text, ReplyPayload::Copy(&[]));
    }

    fn gather(
        &mut self,
        net: &mut Net,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
        scope: Scope,
        session: SessionId,
    ) {
        let conn = self.siblings.stand_in();
        let origin = RequestOrigin { shard: self.siblings.ix, conn };
        let narrow = scope.job.is_some();
        let changes = header.op.mutates() != Mutates::No;
        assert!(!(narrow && changes), "INV-28: a job's token changes the state of every shard");
        let verbs = if changes { scope.verbs } else { Verbs::READ };
        let scope = Scope { job: None, task: None, life: None, verbs, ..scope };
        let mut left = 0;
        for mailbox in &self.siblings.mailboxes {
            let args = args.to_vec();
            let part = Box::new(ForwardedRequest { origin, scope, session, header: *header, args });
            if mailbox.post(ControllerNote::Forward(part)).is_err() {
                // Answers of the other shards are dropped when they arrive.
                return self.busy(net, from, header.request);
            }
            left += 1;
        }
        net.forwarded(from, header.request, None);
        let (to, request, op) = (from, header.request, header.op);
        let gather = Gather { to, request, op, narrow, left, parts: Vec::new(), failure: None };
        let before = self.siblings.gathers.insert(conn, gather);
        assert!(before.is_none(), "INV-16: two requests of all shards have one stand-in");
    }

    /// Handles a request from a sibling.
    pub(super) fn forwarded(&mut self, net: &mut Net, now: Time, request: ForwardedRequest) {
        let ForwardedRequest { origin, scope, session, header, args } = request;
        let (shard, op) = (origin.shard, header.op);
        assert!(scope.job.is_none(), "INV-28: shard {shard} forwards a request of {:?}", scope.job);
        let stays = op.forwarded_to() == ForwardedTo::None;
        assert!(!stays, "INV-28: shard {shard} forwards {}, which it must serve", op.name());
        if self.is_behind() && !header.op.is_urgent() {
            let reply = ReplyHeader::new(Status::Busy, header.request, super::BUSY_RETRY_US);
            let text = b"the controller waits for its disk; retry later".to_vec();
            return self.siblings.answer(origin, reply, text);
        }
        let from = self.siblings.stand_in();
        let origin = Some(origin);
        let peer = PeerState { scope, task: None, server: None, session, origin };
        let before = self.peers.insert(from, peer);
        assert!(before.is_none(), "INV-28: two requests of other shards have one stand-in");
        self.handle(net, now, from, &header, &args, None);
    }

    /// Handles an answer of a sibling.
    pub(super) fn returned(
        &mut self,
        net: &mut Net,
        to: ConnId,
        header: ReplyHeader,
        body: Vec<u8>,
    ) {
        let Some(gather) = self.siblings.gathers.get_mut(&to) else {
            net.returned(to, header.request, body.len());
            return net.reply(to, header, &body, ReplyPayload::Copy(&[]));
        };
        assert!(gather.left > 0, "INV-16: more shards answer {} than there are", gather.request);
        gather.left -= 1;
        match header.status {
            Status::Ok => gather.parts.push(body),
            _ => gather.failure = Some((header, body)),
        }
        let (parts, shards) = (gather.parts.len(), self.siblings.mailboxes.len());
        assert!(parts <= shards, "INV-16: {parts} parts of a reply are from {shards} shards");
        if gather.left > 0 {
            return;
        }
        let gather = self.siblings.gathers.remove(&to).expect("looked up just now");
        let (header, body) = gather.failure.unwrap_or_else(|| {
            assert_eq!(parts, shards, "INV-16: {parts} of {shards} shards have a part in a reply");
            let ok = ReplyHeader::new(Status::Ok, gather.request, 0);
            match merge::whole(gather.op, &gather.parts, gather.narrow) {
                Ok(body) => (ok, body),
                Err(e) => {
                    let internal = ReplyHeader::new(Status::Internal, gather.request, 0);
                    (internal, e.to_string().into_bytes())
                }
            }
        });
        net.returned(gather.to, gather.request, body.len());
        net.reply(gather.to, header, &body, ReplyPayload::Copy(&[]));
    }

    /// Takes over a connection whose handshake named this shard.
    pub(super) fn adopt(&mut self, net: &mut Net, conn: Detached, peer: PeerState) {
        let (own, job) = (self.siblings.ix, peer.scope.job);
        let here = job.is_none_or(|job| job.controller() == own);
        assert!(here, "INV-28: a connection of {job:?} is handed over to shard {own}");
        if let Ok(id) = net.attach(conn) {
            let before = self.peers.insert(id, peer);
            assert!(before.is_none(), "INV-28: {id:?} arrives from another shard twice");
        }
    }

    /// Sends a connection to another shard.
    pub(super) fn detached(&mut self, from: ConnId, target: u8, conn: Detached) {
        let peer = self.peers.remove(&from).expect("handed over after its handshake");
        let server = peer.server;
        assert!(server.is_none(), "INV-28: the link of server {server:?} is handed over");
        // If the mailbox is full, the connection is dropped; the client reconnects.
        let _ = self.siblings.mailboxes[target as usize].post(ControllerNote::Adopt(conn, peer));
    }
}
