//! Connections of one shard: handshakes, grants, admission, and the core of each request.
//!
//! `shard` decides the effect of a request; this module handles the bytes around it. A request for a block of
//! another core goes to that core's loop over its bounded mailbox and returns as a note.

mod journals;
mod lending;
mod membership;
mod notes;
mod origins;
mod outgoing;
mod subscribers;

use crate::flush::Flusher;
use crate::kept::VolumeParts;
use crate::lend::Lender;
use crate::notes::{Forwarded, LinkNote, Note, OwnedPayload, Peer};
use crate::peers::Peers;
use crate::shard::{CallerAccess, Shard};
use crate::spill::Spiller;
use honeycomb_env::thread_cpu;
use honeycomb_structures::{Answer, KV_PAGE_MAX, Outcome, Payload, Ticket};
use honeycomb_transport::{
    ByConn, ConnId, Detached, Gathering, Mailbox, Net, PayloadAction, ReplyPayload, Service,
};
use honeycomb_types::limits::{ACTIVITY_INTERVAL, GRANTS_MAX, REPORT_INTERVAL};
use honeycomb_types::{BlockAt, JobId, PrefixId, ShardIx, Time};
use honeycomb_wire::Field;
use honeycomb_wire::data::{ReadArgs, ScanArgs};
use honeycomb_wire::messages::{ActivePrefix, BlockUsage, PresentGrantRequest};
use honeycomb_wire::queue::GetArgs;
use honeycomb_wire::{Auth, Op, Plane, ReplyHeader, RequestHeader, Status};
use membership::Membership;
use origins::{Origins, RequestSource};
use outgoing::Outgoing;
use std::sync::Arc;
use subscribers::Subscribers;

/// Payloads of more than this are sent from the block after the request is done. No value inside a region is
/// longer, so sending never keeps a region from being moved.
const PIN_ABOVE: usize = 16 * 1024;
/// Retry delay while admission is closed, in microseconds.
const ADMISSION_RETRY_US: u64 = 1000;
/// Why admission is closed.
const SHARE_HELD: &str = "the job already uses its share of the server's buffers; retry later";

/// A large payload that is arriving.
enum Filling {
    /// Straight into its block.
    Block(Ticket),
    /// Into a buffer.
    Gather { header: RequestHeader, args: Vec<u8>, payload: Gathering },
    /// Its job already uses its share of the buffers.
    Refused { request: u64 },
}

/// The threads for work that a core must not wait for.
pub(crate) struct Helpers {
    pub flusher: Flusher,
    pub lender: Lender,
    /// The spillers of the lower tiers, each with the offset of this shard's part of the volume.
    pub spillers: Vec<(Spiller, u64)>,
}

impl Helpers {
    /// The disks, for threads that may wait for them.
    fn parts(&self) -> VolumeParts {
        let parts = self.spillers.iter();
        parts.map(|(spiller, base)| (spiller.volume().clone(), *base)).collect()
    }
}

/// One shard with its connections.
pub(crate) struct ShardService {
    ix: ShardIx,
    shard: Shard,
    membership: Membership,
    peers: ByConn<Peer>,
    origins: Origins,
    subscribers: Subscribers,
    /// Connections with requests that may wait at another core.
    waiting_elsewhere: hashbrown::HashSet<ConnId>,
    fillings: ByConn<Filling>,
    moves: Peers,
    outgoing: Outgoing,
    helpers: Helpers,
    /// Requests that wait for the copy of a block to be mapped.
    copying: hashbrown::HashMap<BlockAt, Vec<(ConnId, RequestHeader)>>,
    active: Vec<(JobId, PrefixId)>,
    activity_round: u64,
    next_activity: Time,
    next_report: Time,
    requests: u64,
    forwarded: u64,
    stopped: bool,
}

impl ShardService {
    pub(crate) fn new(
        ix: ShardIx,
        shard: Shard,
        shards: Vec<Mailbox<Note>>,
        link: Mailbox<LinkNote>,
        helpers: Helpers,
        token: Vec<u8>,
    ) -> ShardService {
        ShardService {
            ix,
            shard,
            membership: Membership::default(),
            peers: ByConn::default(),
            origins: Origins::default(),
            subscribers: Subscribers::default(),
            waiting_elsewhere: hashbrown::HashSet::new(),
            fillings: ByConn::default(),
            moves: Peers::new(token),
            outgoing: Outgoing::new(ix, shards, link),
            helpers,
            copying: hashbrown::HashMap::new(),
            active: Vec::new(),
            activity_round: 1,
            next_activity: Time::ZERO,
            next_report: Time::ZERO,
            requests: 0,
            forwarded: 0,
            stopped: false,
        }
    }

    fn hello(&mut self, net: &mut Net, now: Time, from: ConnId, request: u64, args: &[u8]) {
        match self.membership.greet(now, self.ix, self.outgoing.shards(), args) {
            Ok((peer, mut reply, shard)) => {
                reply.near = net.near().to_owned();
                if !net.greet(from, peer.job.map(|job| job.0)) {
                    let text =
                        "the job already has its share of the server's connections; close some";
                    net.refuse(from, request, Status::LimitExceeded, text);
                    return net.close(from);
                }
                net.reply(from, ok(request, 0), &reply.encode(), ReplyPayload::Copy(&[]));
                if peer.cluster {
                    net.yields(from);
                }
                assert!(self.peers.get_mut(from).is_none(), "INV-28: {from:?} is greeted twice");
                self.peers.insert(from, peer);
                if shard != self.ix {
                    net.hand_over(from, shard.0);
                }
            }
            Err((status, text)) => {
                net.refuse(from, request, status, &text);
                net.close(from);
            }
        }
    }

    fn present_grant(&mut self, net: &mut Net, from: ConnId, request: u64, args: &[u8]) {
        let peer = self.peers.get_mut(from).expect("a greeted connection has a peer");
        let body = match PresentGrantRequest::decode(args) {
            Ok(body) => body,
            Err(e) => return net.refuse(from, request, Status::BadFrame, &e.to_string()),
        };
        let grant = match self.membership.verify(&body.grant) {
            Ok(grant) => grant,
            Err(why) => return net.refuse(from, request, Status::PermissionDenied, &why),
        };
        if peer.job.is_some_and(|job| job != grant.job) {
            let text = "the grant belongs to another job than this connection's token";
            return net.refuse(from, request, Status::PermissionDenied, text);
        }
        // A structure that is opened again replaces its grant, so that long-lived connections do
        // not run out of numbers.
        let found = peer.grants.iter().position(|g| g.structure == grant.structure);
        let number = match found {
            Some(at) => {
                peer.grants[at] = grant;
                at + 1
            }
            None if peer.grants.len() >= GRANTS_MAX => {
                let text =
                    "the connection has presented 65,536 grants, the limit; open another one";
                return net.refuse(from, request, Status::LimitExceeded, text);
            }
            None => {
                peer.grants.push(grant);
                peer.grants.len()
            }
        };
        net.reply(from, ok(request, number as u64), &[], ReplyPayload::Copy(&[]));
    }

    /// The access rights of the connection for this request; notes that its task is alive.
    fn access(&mut self, from: ConnId, header: &RequestHeader) -> CallerAccess {
        let peer = self.peers.get_mut(from).expect("a greeted connection has a peer");
        if peer.listed != self.activity_round
            && let (Some(job), Some(task)) = (peer.job, peer.task)
        {
            peer.listed = self.activity_round;
            self.active.push((job, task));
        }
        let grant = (header.grant as usize).checked_sub(1).and_then(|at| peer.grants.get(at));
        let (session, window) = (peer.session, peer.window);
        CallerAccess { session, window, grant: grant.copied(), peer: peer.cluster }
    }

    fn data_request(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
        payload: &[u8],
    ) {
        let access = self.access(from, header);
        let owner = header.at.block.shard();
        if self.outgoing.is_elsewhere(owner) {
            if header.op == Op::Subscribe || header.op.info().auth == Auth::Peer {
                let text = "this request needs a connection to the block's own shard";
                return net.refuse(from, header.request, Status::NotServedHere, text);
            }
            return self.forward(net, from, *header, access, args.to_vec(), payload.to_vec());
        }
        let ticket = self.origins.ticket();
        match self.shard.apply(now, &access, header, args, payload, ticket) {
            Outcome::Done(answer) if header.op == Op::Subscribe => {
                if answer.status == Status::Ok {
                    self.subscribers.add(from, header.at, args, ticket);
                }
                self.answer(net, from, header, answer);
            }
            Outcome::Done(answer) if header.op == Op::FileMap && answer.status == Status::Ok => {
                self.lend(net, from, header, &access, answer.value);
            }
            Outcome::Done(answer) => {
                // Requests that waited for this one have waited longest, so their answers are queued now:
                // connections send in the order in which they received output.
                self.settle(net, now);
                self.answer(net, from, header, answer);
            }
            Outcome::Parked => self.origins.park(ticket, RequestSource::Here(from, *header)),
        }
    }

    /// Gathers a large payload in a buffer: for another core's block, or for an operation whose kind needs
    /// complete payloads.
    fn begin_gathering(
        &mut self,
        net: &mut Net,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
    ) -> PayloadAction {
        let limit = self.shard.gathers_most(header);
        if header.payload_len as usize > limit {
            let text =
                format!("a payload of {} bytes is over the limit of {limit}", header.payload_len);
            net.refuse(from, header.request, Status::ValueTooLarge, &text);
            return PayloadAction::Skip;
        }
        let payload = Gathering::new(header.payload_len as usize, net.permit(from));
        let filling = Filling::Gather { header: *header, args: args.to_vec(), payload };
        assert!(self.fillings.get_mut(from).is_none(), "INV-07: a second payload arrives");
        self.fillings.insert(from, filling);
        PayloadAction::Fill
    }

    fn forward(
        &mut self,
        net: &mut Net,
        from: ConnId,
        header: RequestHeader,
        access: CallerAccess,
        args: Vec<u8>,
        payload: Vec<u8>,
    ) {
        self.forwarded += 1;
        let target = header.at.block.shard().0;
        let most = reply_most(&header, &args);
        if header.deadline_ms > 0 {
            self.waiting_elsewhere.insert(from);
        }
        let forwarded = Forwarded { origin: self.ix, from, header, access, args, payload };
        if self.outgoing.of(target).post(Note::Forward(Box::new(forwarded))).is_err() {
            let text = "the message ring to the block's core is full; retry";
            return busy(net, from, header.request, text);
        }
        net.forwarded(from, header.request, most);
    }

    fn run_forwarded(&mut self, now: Time, request: Forwarded) {
        let Forwarded { origin, from, header, access, args, payload } = request;
        let own = header.at.block.shard();
        assert_eq!(own, self.ix, "INV-01: a request for a block of shard {own} is forwarded here");
        assert_ne!(header.op, Op::Subscribe, "INV-24: a connection of shard {origin} subscribes");
        let ticket = self.origins.ticket();
        match self.shard.apply(now, &access, &header, &args, &payload, ticket) {
            Outcome::Done(answer) if header.op == Op::FileMap && answer.status == Status::Ok => {
                let text = "a block can be mapped only over a connection to its own shard";
                let refusal = Answer::refuse(Status::NotShared, text);
                self.return_answer(origin, from, &header, refusal);
            }
            Outcome::Done(answer) => self.return_answer(origin, from, &header, answer),
            Outcome::Parked => {
                self.origins.park(ticket, RequestSource::Shard(origin, from, header))
            }
        }
    }

    fn answer(&mut self, net: &mut Net, to: ConnId, header: &RequestHeader, answer: Answer) {
        let reply = self.reply_of(header, &answer);
        match answer.payload {
            Payload::None => net.reply(to, reply, &answer.args, ReplyPayload::Copy(&[])),
            Payload::Bytes(bytes) => {
                net.reply(to, reply, &answer.args, ReplyPayload::Shared(bytes));
            }
            Payload::Pinned(pin) => net.reply(to, reply, &answer.args, ReplyPayload::Pinned(pin)),
            Payload::Block(range) if range.len() <= PIN_ABOVE => {
                let bytes = self.shard.bytes(header.at, range);
                net.reply(to, reply, &answer.args, ReplyPayload::Copy(bytes));
            }
            Payload::Block(range) => {
                let pin = self.shard.pin(header.at, range);
                net.reply(to, reply, &answer.args, ReplyPayload::Pinned(pin));
            }
            Payload::Parts(_) => unreachable!("the shard has put it together"),
        }
    }

    fn return_answer(
        &mut self,
        origin: ShardIx,
        to: ConnId,
        header: &RequestHeader,
        answer: Answer,
    ) {
        let reply = self.reply_of(header, &answer);
        let payload = match answer.payload {
            Payload::None => OwnedPayload::Bytes(Arc::new([])),
            Payload::Bytes(bytes) => OwnedPayload::Bytes(bytes),
            Payload::Pinned(pin) => OwnedPayload::Pinned(pin),
            Payload::Block(range) if range.len() <= PIN_ABOVE => {
                OwnedPayload::Bytes(self.shard.bytes(header.at, range).into())
            }
            Payload::Block(range) => OwnedPayload::Pinned(self.shard.pin(header.at, range)),
            Payload::Parts(_) => unreachable!("the shard has put it together"),
        };
        self.outgoing.answer(origin, Note::Returned(to, reply, answer.args, payload));
    }

    /// Delivers the answers that an operation released, and sends the shard's effects to the link.
    #[inline]
    fn settle(&mut self, net: &mut Net, now: Time) {
        if !self.shard.is_settled() {
            self.settle_all(net, now);
        }
    }

    fn settle_all(&mut self, net: &mut Net, now: Time) {
        self.moves.settle(net, now, &mut self.shard);
        while let Some((ticket, answer)) = self.shard.out().completed() {
            match self.origins.take(ticket) {
                Some(RequestSource::Here(to, header)) => {
                    let known = self.peers.get_mut(to).is_some();
                    assert!(known, "INV-16: {ticket:?} is answered to {to:?}, which is closed");
                    self.answer(net, to, &header, answer);
                }
                Some(RequestSource::Shard(origin, to, header)) => {
                    self.return_answer(origin, to, &header, answer);
                }
                None => {}
            }
        }
        for (ticket, number, notice) in self.shard.out().take_notices() {
            self.subscribers.notify(net, ticket, number, notice);
        }
        for io in self.shard.tiers().take_io() {
            let (spiller, base) = &self.helpers.spillers[io.tier.below().expect("a disk")];
            spiller.give(io, *base, self.outgoing.own());
        }
        for write in self.shard.out().take_journal_writes() {
            self.helpers.flusher.journal(write, self.outgoing.own());
        }
        let effects = self.shard.out().take_effects();
        if !effects.is_empty() {
            self.outgoing.tell_link(LinkNote::Effects(effects));
        }
    }

    fn report(&mut self, net: &Net, now: Time) {
        let mut usage = Vec::new();
        self.shard.owners().usage(|at, bytes_used| {
            usage.push(BlockUsage { block: at.block.0, epoch: at.epoch.0, bytes_used });
        });
        let active = std::mem::take(&mut self.active);
        self.activity_round += 1;
        let active = active
            .into_iter()
            .map(|(job, prefix)| ActivePrefix { job: job.0, prefix: prefix.0, ago_ms: 0 })
            .collect();
        self.next_activity = now + ACTIVITY_INTERVAL;
        self.next_report = now + REPORT_INTERVAL;
        let bytes_owed = self.shard.lending().owed();
        self.outgoing.tell_link(LinkNote::Report {
            shard: self.ix,
            connections: net.open_connections() as u32,
            requests: self.requests,
            forwarded: self.forwarded,
            bytes_owed,
            cpu: thread_cpu(),
            usage,
            active,
        });
    }

    /// Cancels everything that waits for a closed connection.
    fn hang_up(&mut self, conn: ConnId) {
        self.forget_waiting(|origin| matches!(origin, RequestSource::Here(to, _) if *to == conn));
        if self.waiting_elsewhere.remove(&conn) {
            let own = self.ix;
            self.outgoing.tell_others(|| Note::HungUp(own, conn));
        }
        for (at, ticket) in self.subscribers.hang_up(conn) {
            self.shard.requests().unsubscribe(at, ticket);
        }
    }

    fn forget_waiting(&mut self, gone: impl FnMut(&RequestSource) -> bool) {
        self.shard.requests().hang_up(&self.origins.forget(gone));
    }

    /// Calls the shard's `tick` if it is due.
    fn tick_shard(&mut self, net: &mut Net, now: Time) {
        if self.shard.deadline().is_some_and(|due| due <= now) {
            self.shard.tick(now);
            self.settle(net, now);
        }
    }
}

impl Service for ShardService {
    type Note = Note;

    fn prefetch(&self, header: &RequestHeader, args: &[u8]) -> Option<u64> {
        self.shard.prefetch(header, args)
    }

    fn prefetch_more(&self, header: &RequestHeader, hint: u64) {
        self.shard.prefetch_more(header, hint);
    }

    fn on_request(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
        payload: &[u8],
    ) {
        self.requests += 1;
        match header.op {
            Op::Hello if net.greeted(from) => {
                net.refuse(
                    from,
                    header.request,
                    Status::HandshakeRequired,
                    "Hello is sent only once",
                );
            }
            Op::Hello => self.hello(net, now, from, header.request, args),
            Op::Ping if !args.is_empty() => {
                net.refuse(from, header.request, Status::BadFrame, "Ping takes no arguments");
            }
            Op::Ping => {
                self.access(from, header);
                net.reply(from, ok(header.request, 0), &[], ReplyPayload::Copy(&[]));
            }
            Op::PresentGrant => self.present_grant(net, from, header.request, args),
            op if op.info().plane != Plane::Data => {
                let text =
                    "a memory server serves only data requests; send this one to the controller";
                net.refuse(from, header.request, Status::NotServedHere, text);
            }
            _ if net.exhausted() => {
                busy(net, from, header.request, SHARE_HELD);
            }
            _ => {
                self.data_request(net, now, from, header, args, payload);
                self.settle(net, now);
            }
        }
    }

    fn begin_fill(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
    ) -> PayloadAction {
        self.requests += 1;
        if header.op.info().plane != Plane::Data {
            let text = "a memory server serves only data requests; send this one to the controller";
            net.refuse(from, header.request, Status::NotServedHere, text);
            return PayloadAction::Skip;
        }
        if net.exhausted() {
            busy(net, from, header.request, SHARE_HELD);
            return PayloadAction::Skip;
        }
        let access = self.access(from, header);
        let owner = header.at.block.shard();
        let elsewhere = self.outgoing.is_elsewhere(owner);
        if header.op.info().auth == Auth::Peer && (elsewhere || !access.peer) {
            // A request that will be refused gets no buffer.
            self.data_request(net, now, from, header, args, &[]);
            return PayloadAction::Skip;
        }
        if elsewhere || !self.shard.streams(header) {
            return self.begin_gathering(net, from, header, args);
        }
        let ticket = self.origins.ticket();
        let begun = match self.shard.reserve(now, &access, header, args, ticket) {
            Ok(()) => {
                self.origins.park(ticket, RequestSource::Here(from, *header));
                assert!(self.fillings.get_mut(from).is_none(), "INV-07: a second payload arrives");
                self.fillings.insert(from, Filling::Block(ticket));
                PayloadAction::Fill
            }
            Err(answer) => {
                self.answer(net, from, header, answer);
                PayloadAction::Skip
            }
        };
        self.settle(net, now);
        begun
    }

    fn fill(&mut self, from: ConnId) -> Option<&mut [u8]> {
        match self.fillings.get_mut(from)? {
            Filling::Block(ticket) => self.shard.requests().fill(*ticket),
            Filling::Gather { payload, .. } => Some(payload.room()),
            Filling::Refused { .. } => None,
        }
    }

    fn filled(&mut self, _now: Time, from: ConnId, n: usize) {
        match self.fillings.get_mut(from).expect("filled follows fill") {
            Filling::Block(ticket) => self.shard.requests().filled(*ticket, n),
            Filling::Gather { header, payload, .. } => {
                let request = header.request;
                if !payload.filled(n) {
                    self.fillings.insert(from, Filling::Refused { request });
                }
            }
            Filling::Refused { .. } => {}
        }
    }

    fn end_fill(&mut self, net: &mut Net, now: Time, from: ConnId) {
        match self.fillings.remove(from) {
            Some(Filling::Block(ticket)) => {
                self.shard.end_payload(now, ticket, true);
            }
            Some(Filling::Refused { request }) => busy(net, from, request, SHARE_HELD),
            Some(Filling::Gather { header, args, payload }) => {
                self.data_request(net, now, from, &header, &args, payload.bytes());
            }
            None => {}
        }
        self.settle(net, now);
    }

    fn on_reply(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &ReplyHeader,
        _args: &[u8],
    ) {
        if self.moves.replied(net, now, &mut self.shard, from, header) {
            self.settle(net, now);
        }
    }

    fn on_close(&mut self, net: &mut Net, now: Time, conn: ConnId) {
        self.moves.closed(now, &mut self.shard, conn);
        self.peers.remove(conn);
        self.hang_up(conn);
        if let Some(Filling::Block(ticket)) = self.fillings.remove(conn) {
            self.origins.take(ticket);
            self.shard.end_payload(now, ticket, false);
            self.settle(net, now);
        }
        // Requests that waited behind it may be served.
        self.tick_shard(net, now);
    }

    fn on_detached(&mut self, from: ConnId, target: u8, conn: Detached) {
        let peer = self.peers.remove(from).expect("handed over after its handshake");
        let fills = self.fillings.get_mut(from).is_some();
        assert!(!fills, "INV-07: {from:?} moves to shard {target} while a payload arrives");
        debug_assert!(!self.origins.has(from), "INV-16: {from:?} moves while it waits");
        // If the ring is full, the connection is dropped, and the client connects again.
        let _ = self.outgoing.of(target).post(Note::Adopt(conn, peer));
    }

    fn on_note(&mut self, net: &mut Net, now: Time, note: Note) {
        self.hear(net, now, note);
        self.settle(net, now);
    }

    fn on_tick(&mut self, net: &mut Net, now: Time) -> Option<Time> {
        let activity_due = now >= self.next_activity && !self.active.is_empty();
        if activity_due || now >= self.next_report {
            self.report(net, now);
        }
        let next = if self.active.is_empty() { self.next_report } else { self.next_activity };
        self.tick_shard(net, now);
        self.subscribers.tell_gaps(net);
        // Notes that did not fit into a full mailbox or ring are posted again soon.
        self.outgoing.deliver();
        let behind = self.outgoing.is_behind() || self.subscribers.are_behind();
        let retry = behind.then_some(now + ACTIVITY_INTERVAL / 10);
        [retry, self.shard.deadline()].into_iter().flatten().chain([next]).min()
    }

    fn step(&mut self, net: &mut Net, now: Time) -> bool {
        let continued = self.shard.step(now);
        if continued {
            self.settle(net, now);
        }
        continued
    }

    fn finished(&self) -> bool {
        self.stopped
    }
}

fn ok(request: u64, value: u64) -> ReplyHeader {
    ReplyHeader::new(Status::Ok, request, value)
}

/// The largest payload of the reply, if the request bounds it.
fn reply_most(header: &RequestHeader, args: &[u8]) -> Option<usize> {
    let bytes = match header.op {
        Op::KvScan => ScanArgs::decode(args).ok()?.bytes.min(KV_PAGE_MAX as u32),
        Op::FileRead => ReadArgs::decode(args).ok()?.length,
        // Many callers leave their bound at its maximum: earlier replies are the better estimate.
        Op::QueueGet => {
            let bytes = GetArgs::decode(args).ok()?.bytes;
            return Some(bytes as usize).filter(|bytes| *bytes <= KV_PAGE_MAX);
        }
        _ => return None,
    };
    Some(bytes as usize)
}

fn busy(net: &mut Net, to: ConnId, request: u64, text: &str) {
    let header = ReplyHeader::new(Status::Busy, request, ADMISSION_RETRY_US);
    net.reply(to, header, text.as_bytes(), ReplyPayload::Copy(&[]));
}
