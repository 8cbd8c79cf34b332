//! The link to a controller shard: joins, reports, carries blocks in and questions out.
//!
//! One connection that carries requests both ways. When it breaks, the server keeps its blocks and
//! serves them, and tries to join again. A controller that knows it still (one that was restarted and
//! has a log) leaves it its number and is told what it holds; what the shards wanted of the controller
//! meanwhile is in that, or is told after it. Any other controller gives it a new number, under which
//! it begins with empty blocks. A controller of a lesser term than one heard of before is refused
//! (INV-25).

mod commands;
mod telling;
mod wants;

use crate::flush::{Errand, Flusher};
use crate::lots::Lots;
use crate::notes::Note;
use crate::spill::Traffic;
use honeycomb_env::{
    Clock, ConnId, Entropy, Mailbox, Net, NotPosted, ReplyPayload, resident_anonymous_bytes,
};
use honeycomb_structures::News;
use honeycomb_types::limits::REPORT_INTERVAL;
use honeycomb_types::{BlockAt, ServerId, ShardIx, Time};
use honeycomb_wire::messages::{
    ActivePrefix, BlockUsage, HelloReply, HelloRequest, JoinServerReply, JoinServerRequest,
    KindInfo, LeaveServerRequest, ReportReply, ReportRequest, TierInfo,
};
use honeycomb_wire::{Field, GrantKey, Op, ReplyHeader, RequestHeader, Status, TokenKey};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use telling::Telling;

/// How long a connection attempt to the controller may take.
const CONNECT: Duration = Duration::from_secs(1);
/// The pause before the first attempt to join again; it doubles up to the other one.
const REJOIN_MIN: Duration = Duration::from_millis(10);
const REJOIN_MAX: Duration = Duration::from_millis(320);
/// Blocks that one request tells.
const TOLD_AT_A_TIME: usize = 10_000;

/// What the server tells the controller of itself.
#[derive(Clone)]
pub(crate) struct Identity {
    pub controller: SocketAddr,
    pub token: Vec<u8>,
    pub address: String,
    pub shards: u8,
    /// Blocks of each core that may be in memory.
    pub blocks_per_shard: u32,
    /// What is below it.
    pub tiers: Vec<TierInfo>,
    /// What their disks moved.
    pub traffic: Vec<Arc<Traffic>>,
    pub block_size: u64,
    pub incarnation: u64,
    pub flush_root: String,
    /// The kinds that the protocol does not define.
    pub kinds: Vec<KindInfo>,
}

/// What a request of ours was about, until its reply comes.
enum Asked {
    Hello,
    Join,
    Report {
        sent: Time,
    },
    Grow(BlockAt),
    Taken(BlockAt),
    /// A block to move to.
    Begin(BlockAt),
    /// The word on a move that is complete.
    Commit(BlockAt),
    Inventory {
        last: bool,
    },
    /// Where this server is; for this shard.
    Locate(ShardIx, ServerId),
    /// To be taken out.
    Leave,
    /// Nothing hangs on the answer: a block that is not retired asks again.
    Told,
}

/// What a shard has done.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counters {
    pub connections: u32,
    pub requests: u64,
    pub forwarded: u64,
    pub bytes_owed: u64,
    pub cpu: Duration,
}

/// The link to one controller shard.
pub(crate) struct Link {
    controller: u16,
    /// How many controller shards there are, once one has said so.
    controllers: u16,
    identity: Arc<Identity>,
    clock: Clock,
    shards: Vec<Mailbox<Note>>,
    flusher: Flusher,
    /// Counts connections: what was asked on an earlier one is not answered on this.
    links: u64,
    /// Why it has not joined, since this was last asked.
    hindrance: Option<String>,
    conn: Option<ConnId>,
    /// The number under which the shards have their blocks.
    server: Option<ServerId>,
    /// The controller knows us and all that we hold.
    ready: bool,
    /// The controller shard has nothing here and let this server go, over this connection.
    released: bool,
    /// The server wants to go: the controller shard is asked to take it out.
    leaving: bool,
    /// Why that was refused, until somebody asks.
    kept: Option<String>,
    /// Greatest term of a controller that was heard of.
    term: u32,
    telling: Telling,
    asked: HashMap<u64, Asked>,
    /// Requests of the controller that every shard has to do, and how many have not.
    shared: HashMap<u64, usize>,
    next_request: u64,
    next_attempt: Time,
    backoff: Duration,
    next_report: Time,
    counters: Vec<Counters>,
    /// When it reported last, and the CPU time of its cores then.
    reported: (Time, Duration),
    usage: Vec<BlockUsage>,
    active: Vec<ActivePrefix>,
}

impl Link {
    pub(crate) fn new(
        controller: u16,
        identity: Arc<Identity>,
        clock: Clock,
        shards: Vec<Mailbox<Note>>,
        flusher: Flusher,
    ) -> Link {
        let counters = vec![Counters::default(); shards.len()];
        Link {
            controller,
            controllers: 1,
            identity,
            clock,
            shards,
            flusher,
            links: 0,
            hindrance: None,
            conn: None,
            server: None,
            ready: false,
            released: false,
            leaving: false,
            kept: None,
            term: 0,
            telling: Telling::default(),
            asked: HashMap::new(),
            shared: HashMap::new(),
            next_request: 0,
            next_attempt: Time::ZERO,
            backoff: REJOIN_MIN,
            next_report: Time::ZERO,
            counters,
            reported: (Time::ZERO, Duration::ZERO),
            usage: Vec::new(),
            active: Vec::new(),
        }
    }

    /// The connection, while there is one.
    pub(crate) fn conn(&self) -> Option<ConnId> {
        self.conn
    }

    /// Its number, when it has joined and the controller shard knows all that it holds.
    pub(crate) fn ready(&self) -> Option<ServerId> {
        self.server.filter(|_| self.ready)
    }

    /// Whether the controller shard lets this server go.
    pub(crate) fn is_released(&self) -> bool {
        self.released
    }

    /// Whether the server wants to go.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Asks to be taken out once the controller shard is there.
    pub(crate) fn wish_to_leave(&mut self) {
        self.leaving = true;
    }

    /// Asks to be taken out, now or then.
    pub(crate) fn leave(&mut self, net: &mut Net) {
        self.wish_to_leave();
        if self.ready {
            self.ask(net, Op::LeaveServer, &LeaveServerRequest {}, Asked::Leave);
        }
    }

    /// Why the controller shard does not take this server out, told once.
    pub(crate) fn take_kept(&mut self) -> Option<String> {
        self.kept.take()
    }

    fn now_ready(&mut self, net: &mut Net) {
        self.ready = true;
        if self.leaving {
            self.leave(net);
        }
    }

    /// How many controller shards there are, as far as this one has heard.
    pub(crate) fn controllers(&self) -> u16 {
        self.controllers
    }

    /// What was last in the way of joining, told once.
    pub(crate) fn take_hindrance(&mut self) -> Option<String> {
        self.hindrance.take()
    }

    fn ask(&mut self, net: &mut Net, op: Op, body: &impl Field, asked: Asked) {
        let Some(conn) = self.conn else { return };
        self.next_request += 1;
        self.asked.insert(self.next_request, asked);
        let header = RequestHeader { request: self.next_request, ..RequestHeader::new(op) };
        net.request(conn, header, &body.encode(), ReplyPayload::Copy(&[]));
    }

    fn wait_longer(&mut self, now: Time) {
        self.next_attempt = now + self.backoff;
        self.backoff = (self.backoff * 2).min(REJOIN_MAX);
    }

    fn attempt(&mut self, net: &mut Net, now: Time) {
        self.wait_longer(now);
        match net.connect(self.identity.controller, CONNECT) {
            Ok(conn) => {
                self.conn = Some(conn);
                self.links += 1;
                let hello = HelloRequest {
                    major: honeycomb_types::limits::PROTOCOL_MAJOR,
                    minor: honeycomb_types::limits::PROTOCOL_MINOR,
                    session: u128::from(Entropy::system().next_u64()) | 1 << 64,
                    token: self.identity.token.clone(),
                    shard: self.controller as u8,
                    ..Default::default()
                };
                self.ask(net, Op::Hello, &hello, Asked::Hello);
            }
            Err(e) => {
                let text =
                    format!("cannot reach the controller at {}: {e}", self.identity.controller);
                self.hindrance = Some(text);
            }
        }
    }

    fn join(&mut self, net: &mut Net, hello: &HelloReply, lots: &Lots) {
        self.controllers = u16::from(hello.shards.max(1));
        if self.controllers > 1 && !self.identity.tiers.is_empty() {
            // What is lent is room in memory; of the tiers below there is no ledger yet.
            let text = "a server with disks needs a controller with one shard: start the controller \
                        with controller_shards = 1, or this server without disks";
            self.hindrance = Some(text.to_owned());
            return self.hang_up(net);
        }
        let lent = match self.controllers {
            // It has everything.
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
        self.ask(net, Op::JoinServer, &body, Asked::Join);
    }

    fn joined(&mut self, net: &mut Net, now: Time, reply: &JoinServerReply) {
        if reply.term < self.term {
            let (old, known) = (reply.term, self.term);
            let text = format!(
                "the controller has term {old}; this server has already joined one of term {known}"
            );
            self.hindrance = Some(text);
            return self.hang_up(net);
        }
        self.term = reply.term;
        self.backoff = REJOIN_MIN;
        let (Ok(token), Ok(grant)) = (
            <[u8; 32]>::try_from(&reply.token_key[..]),
            <[u8; 32]>::try_from(&reply.grant_key[..]),
        ) else {
            self.hindrance = Some("the controller sent malformed keys".into());
            return;
        };
        let server = ServerId(reply.server);
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

    /// Leaves a note that must arrive: the link may wait for a shard, never the reverse. A shard
    /// that has ended takes nothing any more: the server is ending.
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
        let sum = self.counters.iter().fold(Counters::default(), |a, c| Counters {
            connections: a.connections + c.connections,
            requests: a.requests + c.requests,
            forwarded: a.forwarded + c.forwarded,
            bytes_owed: a.bytes_owed + c.bytes_owed,
            cpu: a.cpu + c.cpu,
        });
        // What the cores told comes from up to an interval before, as what they told for the last report.
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
                .flat_map(|(n, d)| d.alarms.told(n, now))
                .collect(),
            usage: std::mem::take(&mut self.usage),
            active: std::mem::take(&mut self.active),
        };
        self.ask(net, Op::Report, &body, Asked::Report { sent: now });
    }

    fn hang_up(&mut self, net: &mut Net) {
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
            Asked::Grow(at) => self.grown(at, header, args),
            Asked::Begin(at) => self.move_begun(at, header, args),
            Asked::Commit(at) => self.move_committed(at, header, args),
            Asked::Hello if header.status == Status::Ok => match HelloReply::decode(args) {
                Ok(hello) => self.join(net, &hello, lots),
                Err(e) => self.hindrance = Some(e.to_string()),
            },
            Asked::Join if header.status == Status::Ok => match JoinServerReply::decode(args) {
                Ok(reply) => self.joined(net, now, &reply),
                Err(e) => self.hindrance = Some(e.to_string()),
            },
            Asked::Hello | Asked::Join => {
                let text = String::from_utf8_lossy(args).into_owned();
                self.hindrance = Some(format!("{}: {text}", header.status.name()));
                net.close(from);
            }
            Asked::Report { sent } if header.status == Status::Ok => {
                // Half the round trip is a bound on the error; only the order of a lease matters.
                if let Ok(reply) = ReportReply::decode(args) {
                    let here = (sent.as_millis() + now.as_millis()) / 2;
                    let offset = reply.now_ms as i64 - here as i64;
                    for shard in &self.shards {
                        let _ = shard.post(Note::ClockOffset(offset));
                    }
                }
            }
            Asked::Inventory { last } if header.status == Status::Ok => {
                if last {
                    self.told(net);
                }
            }
            Asked::Inventory { .. } => net.close(from),
            // The controller no longer knows this name: join again under a new one.
            Asked::Report { .. } => net.close(from),
            Asked::Taken(at) => self.tell(at, News::TakenHeard),
            Asked::Locate(shard, server) => self.located(shard, server, header, args),
            Asked::Leave if header.status == Status::Ok => {}
            Asked::Leave => self.kept = Some(String::from_utf8_lossy(args).into_owned()),
            Asked::Told => {}
        }
    }

    /// Its connection is gone.
    pub(crate) fn on_close(&mut self, now: Time) {
        self.conn = None;
        self.ready = false;
        self.released = false;
        self.wait_longer(now);
        self.telling.stop();
        self.shared.clear();
        // What is told of the blocks then is newer.
        self.usage.clear();
        self.active.clear();
        for asked in std::mem::take(&mut self.asked).into_values() {
            match asked {
                Asked::Grow(at) => self.away(at),
                // How much was taken is told with the rest; the block is to go on counting then.
                Asked::Taken(at) => self.telling.unheard.push(at),
                Asked::Begin(at) => self.refuse_move(at),
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
        counters: Counters,
        usage: Vec<BlockUsage>,
        active: Vec<ActivePrefix>,
    ) {
        self.counters[shard.0 as usize] = counters;
        if !self.ready {
            // Usage up to now is told with the blocks; leases are not ended by a controller that has
            // just begun.
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

    /// What the controller asked is done, or could not be.
    pub(crate) fn done(
        &mut self,
        net: &mut Net,
        errand: Errand,
        outcome: Result<Vec<u8>, (Status, String)>,
    ) {
        // One that came over an earlier connection is asked again over this one, and another
        // controller may have given its number to something else.
        let Some(conn) = self.conn.filter(|_| errand.link == self.links) else { return };
        if let Some(left) = self.shared.get_mut(&errand.request) {
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

    /// Joins, or reports, when it is time; when it is next.
    pub(crate) fn on_tick(&mut self, net: &mut Net, now: Time) -> Time {
        if self.conn.is_none() {
            if now >= self.next_attempt {
                self.attempt(net, now);
            }
            return self.next_attempt;
        }
        if now >= self.next_report {
            self.report(net, now);
        }
        self.next_report
    }
}
