//! The link to a controller shard: joins, sends reports and requests, and receives commands.
//!
//! The link is one connection that carries requests in both directions. When it breaks, the server keeps its
//! blocks, serves them, and tries to join again. A controller that still knows the server (restarted, with a
//! log) confirms its number and receives the list of its blocks. Pending requests of the shards are contained
//! in that list or follow it. Any other controller assigns a new number, under which the server begins with
//! empty blocks. A controller of a lower term than one already joined is refused (INV-25).

mod commands;
mod inventory;
mod requests;

use crate::flush::{ControllerRequest, Flusher};
use crate::lots::Lots;
use crate::notes::Note;
use crate::shard::{BlockMessage, Effect, MoveWord};
use crate::spill::Traffic;
use honeycomb_env::{Clock, resident_anonymous_bytes};
use honeycomb_transport::{ConnId, Mailbox, Net, NotPosted, ReplyPayload, hello};
use honeycomb_types::limits::{CONTROLLER_SHARDS_MAX, REPORT_INTERVAL};
use honeycomb_types::{BlockAt, Bug, ServerId, ShardIx, Time};
use honeycomb_wire::messages::{
    ActivePrefix, BlockUsage, HelloReply, JoinServerReply, JoinServerRequest, KindInfo,
    LeaveServerRequest, ReportReply, ReportRequest, TierInfo,
};
use honeycomb_wire::{Field, GrantKey, Op, ReplyHeader, RequestHeader, Status, TokenKey};
use inventory::Telling;
use requests::{capacity_of, no_capacity};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Time limit of a connection attempt to the controller.
const CONNECT: Duration = Duration::from_secs(1);
/// The pause before the first attempt to join again; it doubles up to the second constant.
const REJOIN_MIN: Duration = Duration::from_millis(10);
const REJOIN_MAX: Duration = Duration::from_millis(320);
/// Blocks in one request.
const TOLD_AT_A_TIME: usize = 10_000;

/// The server's description for the controller.
#[derive(Clone)]
pub(crate) struct Identity {
    pub controller: SocketAddr,
    pub token: Vec<u8>,
    pub address: String,
    pub shards: u8,
    /// Blocks of each core that may be in memory.
    pub blocks_per_shard: u32,
    /// The lower tiers.
    pub tiers: Vec<TierInfo>,
    /// The traffic of their disks.
    pub traffic: Vec<Arc<Traffic>>,
    pub block_size: u64,
    pub incarnation: u64,
    pub flush_root: String,
    /// The kinds that the protocol does not define.
    pub kinds: Vec<KindInfo>,
}

/// The subject of a request to the controller, until its reply arrives.
enum PendingRequest {
    Hello,
    Join,
    Report {
        sent: Time,
    },
    Grow(BlockAt),
    Enlarge(BlockAt),
    Taken(BlockAt),
    /// A block to move to.
    Begin(BlockAt),
    /// The decision on a completed move.
    Commit(BlockAt),
    Inventory {
        last: bool,
    },
    /// The address of this server, for this shard.
    Locate(ShardIx, ServerId),
    /// To be drained.
    Leave,
    /// No inventory contains this effect: it is sent again, after a refusal that passes a report interval
    /// later, and without a reply over the next connection.
    Repeated(Effect),
    /// Nothing depends on the answer: a block that is not retired requests it again.
    Told,
}

/// The departure of the server from one controller shard.
#[derive(Default)]
pub(crate) struct Leaving {
    /// Whether the server requests a drain from the controller shard, as soon as that is connected.
    pub wanted: bool,
    /// Whether the controller shard has no block here and has released this server, over this connection.
    pub released: bool,
    /// Why the controller shard does not drain this server, until somebody takes it.
    pub refusal: Option<String>,
}

/// The next attempt to join.
struct NextAttempt {
    at: Time,
    /// The pause after it, which doubles with each failure.
    pause: Duration,
}

impl Default for NextAttempt {
    fn default() -> NextAttempt {
        NextAttempt { at: Time::ZERO, pause: REJOIN_MIN }
    }
}

impl NextAttempt {
    fn postpone(&mut self, now: Time) {
        self.at = now + self.pause;
        self.pause = (self.pause * 2).min(REJOIN_MAX);
    }
}

/// Usage counters of a shard.
#[derive(Clone, Copy, Default)]
pub(crate) struct UsageCounters {
    pub connections: u32,
    pub requests: u64,
    pub forwarded: u64,
    pub bytes_owed: u64,
    pub cpu: Duration,
}

/// Why a server has not joined a controller shard.
pub(crate) struct Hindrance {
    pub text: String,
    /// Whether every later attempt fails, too.
    pub is_final: bool,
}

/// The link to one controller shard.
pub(crate) struct Link {
    controller: u16,
    /// The number of controller shards, once one has reported it.
    controllers: u16,
    identity: Arc<Identity>,
    clock: Clock,
    shards: Vec<Mailbox<Note>>,
    flusher: Flusher,
    /// Counts connections: a request on an earlier one is not answered on this one.
    links: u64,
    /// Why it has not joined, since the last call of `take_hindrance`.
    hindrance: Option<Hindrance>,
    conn: Option<ConnId>,
    /// The number under which the shards hold their blocks.
    server: Option<ServerId>,
    /// Whether the controller knows the server and all its blocks.
    ready: bool,
    leaving: Leaving,
    /// Highest term of any controller that it joined.
    term: u32,
    telling: Telling,
    asked: HashMap<u64, PendingRequest>,
    /// Commands that every shard has to execute, with the number of shards that have not.
    shared: HashMap<u64, usize>,
    next_request: u64,
    next_attempt: NextAttempt,
    next_report: Time,
    /// When effects are sent again that were refused for now.
    resend_at: Option<Time>,
    counters: Vec<UsageCounters>,
    /// When it last reported, and the CPU time of its cores then.
    reported: (Time, Duration),
    usage: Vec<BlockUsage>,
    active: Vec<ActivePrefix>,
}

impl Link {
    /// A link without a connection. Its connections and inventories are numbered after `first`.
    pub(crate) fn new(
        controller: u16,
        identity: Arc<Identity>,
        clock: Clock,
        shards: Vec<Mailbox<Note>>,
        flusher: Flusher,
        first: u64,
    ) -> Link {
        let counters = vec![UsageCounters::default(); shards.len()];
        Link {
            controller,
            controllers: 1,
            identity,
            clock,
            shards,
            flusher,
            links: first,
            hindrance: None,
            conn: None,
            server: None,
            ready: false,
            leaving: Leaving::default(),
            term: 0,
            telling: Telling::after(first),
            asked: HashMap::new(),
            shared: HashMap::new(),
            next_request: 0,
            next_attempt: NextAttempt::default(),
            next_report: Time::ZERO,
            resend_at: None,
            counters,
            reported: (Time::ZERO, Duration::ZERO),
            usage: Vec::new(),
            active: Vec::new(),
        }
    }

    /// The connection, if there is one.
    pub(crate) fn conn(&self) -> Option<ConnId> {
        self.conn
    }

    /// The server's number, once it has joined and the controller shard knows all its blocks.
    pub(crate) fn ready(&self) -> Option<ServerId> {
        self.server.filter(|_| self.ready)
    }

    /// The state of its departure.
    pub(crate) fn leaving(&mut self) -> &mut Leaving {
        &mut self.leaving
    }

    /// Requests a drain, now or as soon as it is connected.
    pub(crate) fn leave(&mut self, net: &mut Net) {
        self.leaving.wanted = true;
        if self.ready {
            self.ask(net, Op::LeaveServer, &LeaveServerRequest {}, PendingRequest::Leave);
        }
    }

    fn now_ready(&mut self, net: &mut Net) {
        assert!(self.conn.is_some(), "INV-20: a link is ready, and has no connection");
        self.ready = true;
        if self.leaving.wanted {
            self.leave(net);
        }
    }

    /// The number of controller shards, as far as this link knows.
    pub(crate) fn controllers(&self) -> u16 {
        self.controllers
    }

    /// The last obstacle to joining; returned once.
    pub(crate) fn take_hindrance(&mut self) -> Option<Hindrance> {
        self.hindrance.take()
    }

    fn ask(&mut self, net: &mut Net, op: Op, body: &impl Field, asked: PendingRequest) {
        let Some(conn) = self.conn else { return };
        self.next_request += 1;
        let before = self.asked.insert(self.next_request, asked);
        assert!(before.is_none(), "INV-16: request {} has two subjects", self.next_request);
        let header = RequestHeader { request: self.next_request, ..RequestHeader::new(op) };
        net.request(conn, header, &body.encode(), ReplyPayload::Copy(&[]));
    }

    fn attempt(&mut self, net: &mut Net, now: Time) {
        let open = self.asked.len() + self.shared.len();
        assert_eq!(open, 0, "INV-16: {open} requests of the last connection have no outcome");
        self.next_attempt.postpone(now);
        match net.connect(self.identity.controller, CONNECT) {
            Ok(conn) => {
                self.conn = Some(conn);
                self.links += 1;
                let hello = hello(&self.identity.token, self.controller as u8);
                self.ask(net, Op::Hello, &hello, PendingRequest::Hello);
            }
            Err(e) => {
                let text =
                    format!("cannot reach the controller at {}: {e}", self.identity.controller);
                self.hindrance = Some(Hindrance { text, is_final: false });
            }
        }
    }

    fn join(&mut self, net: &mut Net, hello: &HelloReply, lots: &Lots) {
        let controllers = u16::from(hello.shards.max(1));
        if controllers > CONTROLLER_SHARDS_MAX {
            let text = format!(
                "the controller has {controllers} shards; this server knows at most \
                 {CONTROLLER_SHARDS_MAX}"
            );
            return self.give_up(net, text);
        }
        self.controllers = controllers;
        if self.controllers > 1 && !self.identity.tiers.is_empty() {
            // Shares consist of room in memory; there is no ledger of lower tiers yet.
            let text = "a server with disks needs a controller with one shard: start the \
                        controller with controller_shards = 1, or this server without disks";
            return self.give_up(net, text.to_owned());
        }
        let lent = match self.controllers {
            // The only controller shard has all blocks.
            1 => Vec::new(),
            _ => lots.lent(self.controller),
        };
        let body = JoinServerRequest {
            lent,
            address: self.identity.address.clone(),
            incarnation: self.identity.incarnation,
            shards: self.identity.shards,
            blocks_per_shard: self.identity.blocks_per_shard,
            tiers: self.identity.tiers.clone(),
            block_size: self.identity.block_size,
            flush_root: self.identity.flush_root.clone(),
            kinds: self.identity.kinds.clone(),
            server: self.server.map_or(0, |server| server.0),
            term: self.term,
        };
        self.ask(net, Op::JoinServer, &body, PendingRequest::Join);
    }

    fn joined(&mut self, net: &mut Net, now: Time, reply: &JoinServerReply) {
        assert!(!self.ready, "INV-20: a server joins twice over one connection");
        if reply.term < self.term {
            let (old, known) = (reply.term, self.term);
            let text =
                format!("the controller has term {old}; the term of the last one was {known}");
            return self.give_up(net, text);
        }
        let server = ServerId(reply.server);
        if server.controller() != self.controller || reply.server == 0 {
            let text = format!(
                "the controller at {} gave the number {server}, which is none of its shard {}; \
                 check that the address is that of this cluster's controller",
                self.identity.controller, self.controller
            );
            return self.give_up(net, text);
        }
        let (Ok(token), Ok(grant)) = (
            <[u8; 32]>::try_from(&reply.token_key[..]),
            <[u8; 32]>::try_from(&reply.grant_key[..]),
        ) else {
            let text = format!(
                "the controller at {} sent keys of another length than 32 bytes; check that its \
                 version is the version of this server",
                self.identity.controller
            );
            return self.give_up(net, text);
        };
        // A reply that is no use changes nothing, and the next attempt is later than this one was.
        self.term = reply.term;
        self.next_attempt.pause = REJOIN_MIN;
        let clock_offset_ms = reply.now_ms as i64 - now.as_millis() as i64;
        if reply.known && self.server == Some(server) {
            self.telling.begin(self.shards.len());
            for shard in &self.shards {
                self.post(shard, Note::ClockOffset(clock_offset_ms));
                let (controller, round) = (self.controller, self.telling.round);
                self.post(shard, Note::Holdings { controller, round });
            }
            return;
        }
        self.server = Some(server);
        self.now_ready(net);
        self.telling.forget();
        self.usage.clear();
        for shard in &self.shards {
            self.post(
                shard,
                Note::Joined {
                    server,
                    token_key: TokenKey(token),
                    grant_key: GrantKey(grant),
                    clock_offset_ms,
                },
            );
        }
    }

    /// Posts a note that must arrive: the link may wait for a shard, never the reverse. A shard that has
    /// ended accepts nothing any more, because the server is shutting down.
    pub(crate) fn post(&self, shard: &Mailbox<Note>, mut note: Note) {
        while let Err(NotPosted::Full(back)) = shard.post(note) {
            note = back;
            self.clock.sleep_until(self.clock.now() + Duration::from_micros(200));
        }
    }

    fn report(&mut self, net: &mut Net, now: Time) {
        self.next_report = now + REPORT_INTERVAL;
        if !self.ready {
            return;
        }
        let sum = self.counters.iter().fold(UsageCounters::default(), |a, c| UsageCounters {
            connections: a.connections + c.connections,
            requests: a.requests + c.requests,
            forwarded: a.forwarded + c.forwarded,
            bytes_owed: a.bytes_owed + c.bytes_owed,
            cpu: a.cpu + c.cpu,
        });
        // The counters of the cores are up to an interval old, as they were in the last report.
        let (at, cpu) = std::mem::replace(&mut self.reported, (now, sum.cpu));
        let time = now.since(at).as_nanos() * self.shards.len() as u128;
        let busy = sum.cpu.saturating_sub(cpu).as_nanos();
        let cpu_permille = (busy * 1000 / time.max(1)).min(1000) as u16;
        let body = ReportRequest {
            bytes_resident: resident_anonymous_bytes() + honeycomb_block::shared_bytes(),
            connections: sum.connections,
            requests: sum.requests,
            forwarded: sum.forwarded,
            bytes_owed: sum.bytes_owed,
            cpu_permille,
            tiers: self.identity.traffic.iter().map(|disk| disk.told()).collect(),
            alarms: (1..)
                .zip(&self.identity.traffic)
                .flat_map(|(n, d)| d.alarms.report(n, now))
                .collect(),
            usage: std::mem::take(&mut self.usage),
            active: std::mem::take(&mut self.active),
        };
        self.ask(net, Op::Report, &body, PendingRequest::Report { sent: now });
    }

    /// Ends a connection over which the server cannot join; a later attempt may succeed.
    fn give_up(&mut self, net: &mut Net, text: String) {
        self.hinder(net, Hindrance { text, is_final: false });
    }

    fn hinder(&mut self, net: &mut Net, hindrance: Hindrance) {
        self.hindrance = Some(hindrance);
        if let Some(conn) = self.conn {
            net.close(conn);
        }
    }

    pub(crate) fn on_reply(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &ReplyHeader,
        args: &[u8],
        lots: &Lots,
    ) {
        let Some(asked) = self.asked.remove(&header.request) else { return };
        match asked {
            PendingRequest::Grow(at) => self.grown(at, header, args),
            PendingRequest::Enlarge(at) => self.pass(at, capacity_of(header, args)),
            PendingRequest::Begin(at) => self.move_begun(at, header, args),
            PendingRequest::Commit(at) => self.move_committed(at, header, args),
            PendingRequest::Hello if header.status == Status::Ok => {
                match HelloReply::decode(args) {
                    Ok(hello) => self.join(net, &hello, lots),
                    Err(e) => self.give_up(net, e.to_string()),
                }
            }
            PendingRequest::Join if header.status == Status::Ok => {
                match JoinServerReply::decode(args) {
                    Ok(reply) => self.joined(net, now, &reply),
                    Err(e) => self.give_up(net, e.to_string()),
                }
            }
            PendingRequest::Hello | PendingRequest::Join => {
                let text = format!("{}: {}", header.status.name(), String::from_utf8_lossy(args));
                self.hinder(net, Hindrance { text, is_final: is_refusal(header.status) });
            }
            PendingRequest::Report { sent } if header.status == Status::Ok => {
                // Half the round trip is a bound on the error; only the order of magnitude of a lease
                // matters.
                if let Ok(reply) = ReportReply::decode(args) {
                    let here = (sent.as_millis() + now.as_millis()) / 2;
                    let offset = reply.now_ms as i64 - here as i64;
                    for shard in &self.shards {
                        let _ = shard.post(Note::ClockOffset(offset));
                    }
                }
            }
            PendingRequest::Inventory { last } if header.status == Status::Ok => {
                if last {
                    self.told(net);
                }
            }
            PendingRequest::Inventory { .. } => net.close(from),
            // The controller no longer knows this number: join again under a new one.
            PendingRequest::Report { .. } => net.close(from),
            PendingRequest::Taken(at) => self.pass(at, BlockMessage::TakenReceived),
            PendingRequest::Locate(shard, server) => self.located(shard, server, header, args),
            PendingRequest::Leave if header.status == Status::Ok => {}
            PendingRequest::Leave => {
                self.leaving.refusal = Some(String::from_utf8_lossy(args).into_owned());
            }
            // A successor that was to be returned stays granted: the tail may have requested it again since.
            PendingRequest::Repeated(effect)
                if header.status.is_passing() && !matches!(effect, Effect::Return { .. }) =>
            {
                self.telling.keep(effect);
                self.resend_at.get_or_insert(now + REPORT_INTERVAL);
            }
            PendingRequest::Repeated(_) | PendingRequest::Told => {}
        }
    }

    /// The connection is closed.
    pub(crate) fn on_close(&mut self, now: Time) {
        self.conn = None;
        self.ready = false;
        self.leaving.released = false;
        self.next_attempt.postpone(now);
        self.telling.stop();
        self.shared.clear();
        // The list of the blocks will contain newer values.
        self.usage.clear();
        self.active.clear();
        for asked in std::mem::take(&mut self.asked).into_values() {
            match asked {
                PendingRequest::Grow(at) => self.away(at),
                PendingRequest::Enlarge(at) => self.pass(at, no_capacity()),
                // The taken amounts are reported with the blocks; then the block must continue counting.
                PendingRequest::Taken(at) => self.telling.unheard.push(at),
                PendingRequest::Begin(at) => self.move_word(at, MoveWord::Unanswered),
                PendingRequest::Repeated(effect) if !Bug::CancelNotRepeated.active() => {
                    self.telling.keep(effect);
                }
                _ => {}
            }
        }
    }

    /// A shard's part of the next report.
    pub(crate) fn usage(
        &mut self,
        net: &mut Net,
        now: Time,
        shard: ShardIx,
        counters: UsageCounters,
        usage: Vec<BlockUsage>,
        active: Vec<ActivePrefix>,
    ) {
        let (last, requests) = (self.counters[shard.0 as usize].requests, counters.requests);
        assert!(last <= requests, "shard {shard} reports {requests} requests after {last}");
        self.counters[shard.0 as usize] = counters;
        if !self.ready {
            // Usage up to now is reported with the blocks; a controller that has just started does not expire
            // leases.
            if self.telling.has(shard) {
                self.usage.extend(usage);
            }
            return;
        }
        self.usage.extend(usage);
        let urgent = !active.is_empty();
        self.active.extend(active);
        if urgent || self.usage.len() > 1000 {
            self.report(net, now);
        }
    }

    /// A command of the controller is done, or failed.
    pub(crate) fn done(
        &mut self,
        net: &mut Net,
        errand: ControllerRequest,
        outcome: Result<Vec<u8>, (Status, String)>,
    ) {
        // A command of an earlier connection is repeated over this one, and another controller may have used
        // its number for another command.
        let Some(conn) = self.conn.filter(|_| errand.link == self.links) else { return };
        if let Some(left) = self.shared.get_mut(&errand.request) {
            assert!(*left > 0, "INV-29: {errand:?} is done more often than there are shards");
            *left -= 1;
            if *left > 0 {
                return;
            }
            self.shared.remove(&errand.request);
        }
        match outcome {
            Ok(body) => {
                let header = ReplyHeader::new(Status::Ok, errand.request, 0);
                net.reply(conn, header, &body, ReplyPayload::Copy(&[]));
            }
            Err((status, text)) => net.refuse(conn, errand.request, status, &text),
        }
    }

    /// Joins, or reports, if it is time; returns when it is next.
    pub(crate) fn on_tick(&mut self, net: &mut Net, now: Time) -> Time {
        if self.conn.is_none() {
            if now >= self.next_attempt.at {
                self.attempt(net, now);
            }
            return self.next_attempt.at;
        }
        if now >= self.next_report {
            self.report(net, now);
        }
        if self.ready && self.resend_at.is_some_and(|due| due <= now) {
            self.resend_at = None;
            self.send_later(net);
        }
        self.resend_at.map_or(self.next_report, |due| due.min(self.next_report))
    }
}

/// Whether a server that was refused with this status cannot join later with the same options.
fn is_refusal(status: Status) -> bool {
    matches!(status, Status::InvalidArgument | Status::Unauthenticated | Status::PermissionDenied)
}
