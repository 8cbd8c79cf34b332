//! The link to the controller: joins, reports, carries blocks in and questions out.
//!
//! One connection that carries requests both ways. When it breaks, the server keeps serving what
//! it has and tries to join again; the controller has declared the old name dead by then, so that
//! a successful join begins with empty blocks under a new name.

use crate::notes::{LinkNote, Note};
use crate::shard::{BlockOwner, Effect, MoveWord};
use honeycomb_env::{
    Clock, ConnId, Entropy, Mailbox, Net, NotPosted, ReplyPayload, Service,
    resident_anonymous_bytes,
};
use honeycomb_structures::{News, Successor};
use honeycomb_types::limits::REPORT_INTERVAL;
use honeycomb_types::{
    BlockAt, BlockId, Epoch, Generation, JobId, Kind, PrefixId, ServerId, StructureId, Time,
};
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::messages::{
    ActivePrefix, BeginImportRequest, BeginMoveReply, BeginMoveRequest, BlockUsage,
    CancelMoveRequest, CommitMoveReply, CommitMoveRequest, EndImportRequest, FreeBlockRequest,
    GrowStructureReply, GrowStructureRequest, HelloRequest, JoinServerReply, JoinServerRequest,
    OpenBlockRequest, QueueAheadRequest, QueueTakenRequest, ReportReply, ReportRequest,
    RetireBlockRequest, SealBlockRequest, SetGenerationRequest,
};
use honeycomb_wire::{Field, GrantKey, Op, ReplyHeader, RequestHeader, Status, TokenKey};
use std::collections::HashMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// How long a connection attempt to the controller may take.
const CONNECT: Duration = Duration::from_secs(1);
/// The pause between attempts to join.
const REJOIN: Duration = Duration::from_millis(200);

/// What the server tells the controller of itself.
#[derive(Clone)]
pub(crate) struct Identity {
    pub controller: SocketAddr,
    pub token: Vec<u8>,
    pub address: String,
    pub shards: u8,
    pub blocks_per_shard: u32,
    pub block_size: u64,
    pub incarnation: u64,
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
    /// Nothing hangs on the answer: a block that is not retired asks again.
    Told,
}

#[derive(Clone, Copy, Default)]
struct Counters {
    connections: u32,
    requests: u64,
    forwarded: u64,
}

pub(crate) struct LinkService {
    identity: Identity,
    clock: Clock,
    shards: Vec<Mailbox<Note>>,
    joined: std::sync::mpsc::Sender<Result<ServerId, String>>,
    conn: Option<ConnId>,
    server: Option<ServerId>,
    asked: HashMap<u64, Asked>,
    next_request: u64,
    next_attempt: Time,
    next_report: Time,
    counters: Vec<Counters>,
    usage: Vec<BlockUsage>,
    active: Vec<ActivePrefix>,
    stopped: bool,
}

impl LinkService {
    pub(crate) fn new(
        identity: Identity,
        clock: Clock,
        shards: Vec<Mailbox<Note>>,
        joined: std::sync::mpsc::Sender<Result<ServerId, String>>,
    ) -> LinkService {
        let counters = vec![Counters::default(); shards.len()];
        LinkService {
            identity,
            clock,
            shards,
            joined,
            conn: None,
            server: None,
            asked: HashMap::new(),
            next_request: 0,
            next_attempt: Time::ZERO,
            next_report: Time::ZERO,
            counters,
            usage: Vec::new(),
            active: Vec::new(),
            stopped: false,
        }
    }

    fn ask(&mut self, net: &mut Net, op: Op, body: &impl Field, asked: Asked) {
        let Some(conn) = self.conn else { return };
        self.next_request += 1;
        self.asked.insert(self.next_request, asked);
        let header = RequestHeader { request: self.next_request, ..RequestHeader::new(op) };
        net.request(conn, header, &body.encode(), ReplyPayload::Copy(&[]));
    }

    fn attempt(&mut self, net: &mut Net, now: Time) {
        self.next_attempt = now + REJOIN;
        match net.connect(self.identity.controller, CONNECT) {
            Ok(conn) => {
                self.conn = Some(conn);
                let hello = HelloRequest {
                    major: honeycomb_types::limits::PROTOCOL_MAJOR,
                    minor: honeycomb_types::limits::PROTOCOL_MINOR,
                    session: u128::from(Entropy::system().next_u64()) | 1 << 64,
                    token: self.identity.token.clone(),
                    shard: u8::MAX,
                    ..Default::default()
                };
                self.ask(net, Op::Hello, &hello, Asked::Hello);
            }
            Err(e) => {
                let text = format!("no controller at {}: {e}", self.identity.controller);
                let _ = self.joined.send(Err(text));
            }
        }
    }

    fn join(&mut self, net: &mut Net) {
        let body = JoinServerRequest {
            address: self.identity.address.clone(),
            incarnation: self.identity.incarnation,
            shards: self.identity.shards,
            blocks_per_shard: self.identity.blocks_per_shard,
            block_size: self.identity.block_size,
        };
        self.ask(net, Op::JoinServer, &body, Asked::Join);
    }

    fn joined(&mut self, now: Time, reply: &JoinServerReply) {
        let (Ok(token), Ok(grant)) = (
            <[u8; 32]>::try_from(&reply.token_key[..]),
            <[u8; 32]>::try_from(&reply.grant_key[..]),
        ) else {
            let _ = self.joined.send(Err("the controller sent malformed keys".into()));
            return;
        };
        let server = ServerId(reply.server);
        self.server = Some(server);
        let clock_offset_ms = reply.now_ms as i64 - now.as_millis() as i64;
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
        let _ = self.joined.send(Ok(server));
    }

    /// Leaves a note that must arrive: the link may wait for a shard, never the reverse. A shard
    /// that has ended takes nothing any more: the server is ending.
    fn post(&self, shard: &Mailbox<Note>, mut note: Note) {
        while let Err(NotPosted::Full(back)) = shard.post(note) {
            note = back;
            self.clock.sleep_until(self.clock.now() + Duration::from_micros(200));
        }
    }

    fn report(&mut self, net: &mut Net, now: Time) {
        self.next_report = now + REPORT_INTERVAL;
        if self.server.is_none() {
            return;
        }
        let sum = self.counters.iter().fold(Counters::default(), |a, c| Counters {
            connections: a.connections + c.connections,
            requests: a.requests + c.requests,
            forwarded: a.forwarded + c.forwarded,
        });
        let body = ReportRequest {
            bytes_resident: resident_anonymous_bytes(),
            connections: sum.connections,
            requests: sum.requests,
            forwarded: sum.forwarded,
            usage: std::mem::take(&mut self.usage),
            active: std::mem::take(&mut self.active),
        };
        self.ask(net, Op::Report, &body, Asked::Report { sent: now });
    }

    fn effect(&mut self, net: &mut Net, effect: Effect) {
        match effect {
            Effect::Grow { structure, at } => {
                let body = GrowStructureRequest {
                    structure: structure.0,
                    block: at.block.0,
                    epoch: at.epoch.0,
                };
                if self.conn.is_none() {
                    return self.successor(at, Successor::Denied(Status::Unavailable, cut_off()));
                }
                self.ask(net, Op::GrowStructure, &body, Asked::Grow(at));
            }
            Effect::Sealed { structure, at, length, bytes, last } => {
                let body = SealBlockRequest {
                    structure: structure.0,
                    block: at.block.0,
                    epoch: at.epoch.0,
                    length,
                    bytes,
                    last,
                };
                self.ask(net, Op::SealBlock, &body, Asked::Told);
            }
            Effect::Taken { structure, at, items, bytes } => {
                let body = QueueTakenRequest {
                    structure: structure.0,
                    block: at.block.0,
                    epoch: at.epoch.0,
                    items,
                    bytes,
                };
                self.ask(net, Op::QueueTaken, &body, Asked::Taken(at));
            }
            Effect::BeginMove { structure, at, start, merge } => {
                if self.conn.is_none() {
                    return self.move_word(at, MoveWord::Refused(Status::Unavailable, cut_off()));
                }
                let (structure, block, epoch) = (structure.0, at.block.0, at.epoch.0);
                let body = BeginMoveRequest { structure, block, epoch, start, merge };
                self.ask(net, Op::BeginMove, &body, Asked::Begin(at));
            }
            Effect::CommitMove { structure, at, id, target } => {
                if self.conn.is_none() {
                    let word = MoveWord::NotCommitted(Status::Unavailable, cut_off());
                    return self.move_word(at, word);
                }
                let body = CommitMoveRequest {
                    structure: structure.0,
                    block: at.block.0,
                    epoch: at.epoch.0,
                    move_id: id,
                    target: target.block.0,
                    target_epoch: target.epoch.0,
                };
                self.ask(net, Op::CommitMove, &body, Asked::Commit(at));
            }
            Effect::CancelMove { structure, at, id } => {
                let (structure, block, epoch) = (structure.0, at.block.0, at.epoch.0);
                let body = CancelMoveRequest { structure, block, epoch, move_id: id };
                self.ask(net, Op::CancelMove, &body, Asked::Told);
            }
            Effect::Retire { structure, at } => {
                let body = RetireBlockRequest {
                    structure: structure.0,
                    block: at.block.0,
                    epoch: at.epoch.0,
                };
                self.ask(net, Op::RetireBlock, &body, Asked::Told);
            }
        }
    }

    fn successor(&self, at: BlockAt, successor: Successor) {
        self.tell(at, News::Successor(successor));
    }

    fn tell(&self, at: BlockAt, news: News) {
        let shard = at.block.shard().0 as usize;
        self.post(&self.shards[shard], Note::Tell(at, news, 0));
    }

    fn grown(&mut self, at: BlockAt, header: &ReplyHeader, args: &[u8]) {
        let successor = match (header.status, GrowStructureReply::decode(args)) {
            (Status::Ok, Ok(reply)) => {
                let moved = MovedArgs { version: reply.version, entry: reply.entry };
                Successor::Ready(moved.encode())
            }
            (Status::Ok, Err(e)) => Successor::Denied(Status::Internal, e.to_string()),
            (status, _) => Successor::Denied(status, String::from_utf8_lossy(args).into_owned()),
        };
        self.successor(at, successor);
    }

    fn move_word(&self, at: BlockAt, word: MoveWord) {
        let shard = at.block.shard().0 as usize;
        self.post(&self.shards[shard], Note::Move(at, word));
    }

    fn move_begun(&self, at: BlockAt, header: &ReplyHeader, args: &[u8]) {
        let word = match (header.status, BeginMoveReply::decode(args)) {
            (Status::Ok, Ok(BeginMoveReply { move_id, entry })) => match resolve(&entry.address) {
                Ok(address) => MoveWord::Begin { id: move_id, entry, address },
                Err(why) => MoveWord::Refused(Status::Unavailable, why),
            },
            (Status::Ok, Err(e)) => MoveWord::Refused(Status::Internal, e.to_string()),
            (status, _) => MoveWord::Refused(status, String::from_utf8_lossy(args).into_owned()),
        };
        self.move_word(at, word);
    }

    fn move_committed(&self, at: BlockAt, header: &ReplyHeader, args: &[u8]) {
        let word = match (header.status, CommitMoveReply::decode(args)) {
            (Status::Ok, Ok(CommitMoveReply { version, entry })) => {
                MoveWord::Committed(MovedArgs { version, entry })
            }
            // What it says is not understood, so that it has to be asked again.
            (Status::Ok, Err(e)) => MoveWord::NotCommitted(Status::Unavailable, e.to_string()),
            (status, _) => {
                MoveWord::NotCommitted(status, String::from_utf8_lossy(args).into_owned())
            }
        };
        self.move_word(at, word);
    }

    /// Hands a request of the controller to the shard that it concerns.
    fn command(&mut self, header: &RequestHeader, args: &[u8]) -> Result<(), (Status, String)> {
        let malformed = |e: honeycomb_wire::Malformed| (Status::BadFrame, e.to_string());
        let (shard, note) = match header.op {
            Op::OpenBlock => {
                let owner = owner_of(&OpenBlockRequest::decode(args).map_err(malformed)?)?;
                (owner.at.block.shard(), Note::Open(owner, header.request))
            }
            Op::FreeBlock => {
                let body = FreeBlockRequest::decode(args).map_err(malformed)?;
                let at = BlockAt { block: BlockId(body.block), epoch: Epoch(body.epoch) };
                (at.block.shard(), Note::Free(at, header.request))
            }
            Op::QueueAhead => {
                let body = QueueAheadRequest::decode(args).map_err(malformed)?;
                let at = BlockAt { block: BlockId(body.block), epoch: Epoch(body.epoch) };
                let news = News::Ahead { items: body.items, bytes: body.bytes };
                (at.block.shard(), Note::Tell(at, news, header.request))
            }
            Op::BeginImport => {
                let body = BeginImportRequest::decode(args).map_err(malformed)?;
                let at = BlockAt { block: BlockId(body.block), epoch: Epoch(body.epoch) };
                let range = (body.start, body.end);
                (at.block.shard(), Note::BeginImport(at, body.move_id, range, header.request))
            }
            Op::EndImport => {
                let body = EndImportRequest::decode(args).map_err(malformed)?;
                let at = BlockAt { block: BlockId(body.block), epoch: Epoch(body.epoch) };
                let note = Note::EndImport(at, body.move_id, body.commit, header.request);
                (at.block.shard(), note)
            }
            Op::SetGeneration => {
                let body = SetGenerationRequest::decode(args).map_err(malformed)?;
                let (prefix, generation) = (PrefixId(body.prefix), Generation(body.generation));
                // Every shard but the last does it silently; the last confirms for all.
                let (last, others) = self.shards.split_last().expect("a server has shards");
                for shard in others {
                    self.post(shard, Note::SetGeneration(prefix, generation, 0));
                }
                self.post(last, Note::SetGeneration(prefix, generation, header.request));
                return Ok(());
            }
            op => return Err((Status::NotServedHere, format!("{} on a link", op.name()))),
        };
        let Some(mailbox) = self.shards.get(shard.0 as usize) else {
            return Err((Status::UnknownBlock, format!("there is no shard {}", shard.0)));
        };
        self.post(mailbox, note);
        Ok(())
    }
}

fn cut_off() -> String {
    "the controller cannot be reached".to_owned()
}

/// Where a server is. Its name is looked up here because a shard must not wait for that.
fn resolve(address: &str) -> Result<SocketAddr, String> {
    let found = address.to_socket_addrs().map_err(|e| format!("{address}: {e}"))?;
    found.into_iter().next().ok_or_else(|| format!("{address} is no address"))
}

fn owner_of(body: &OpenBlockRequest) -> Result<BlockOwner, (Status, String)> {
    let kind = Kind::from_code(body.kind)
        .ok_or_else(|| (Status::WrongKind, format!("no kind has the code {:#x}", body.kind)))?;
    Ok(BlockOwner {
        at: BlockAt { block: BlockId(body.block), epoch: Epoch(body.epoch) },
        job: JobId(body.job),
        prefix: PrefixId(body.prefix),
        structure: StructureId(body.structure),
        generation: Generation(body.generation),
        kind,
        start: body.start,
        end: body.end,
        slots: body.slots,
        max_items: body.max_items,
        max_bytes: body.max_bytes,
        first: body.first,
        importing: body.importing,
    })
}

impl Service for LinkService {
    type Note = LinkNote;

    fn on_request(
        &mut self,
        net: &mut Net,
        _now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
        _payload: &[u8],
    ) {
        if let Err((status, text)) = self.command(header, args) {
            net.refuse(from, header.request, status, &text);
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
        let Some(asked) = self.asked.remove(&header.request) else { return };
        match asked {
            Asked::Grow(at) => self.grown(at, header, args),
            Asked::Begin(at) => self.move_begun(at, header, args),
            Asked::Commit(at) => self.move_committed(at, header, args),
            Asked::Hello if header.status == Status::Ok => self.join(net),
            Asked::Join if header.status == Status::Ok => match JoinServerReply::decode(args) {
                Ok(reply) => self.joined(now, &reply),
                Err(e) => {
                    let _ = self.joined.send(Err(e.to_string()));
                }
            },
            Asked::Hello | Asked::Join => {
                let text = String::from_utf8_lossy(args).into_owned();
                let _ = self.joined.send(Err(format!("{}: {text}", header.status.name())));
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
            // The controller no longer knows this name: join again under a new one.
            Asked::Report { .. } => net.close(from),
            Asked::Taken(at) => self.tell(at, News::TakenHeard),
            Asked::Told => {}
        }
    }

    fn on_close(&mut self, _net: &mut Net, now: Time, conn: ConnId) {
        if self.conn != Some(conn) {
            return;
        }
        self.conn = None;
        self.server = None;
        self.next_attempt = now + REJOIN;
        for asked in std::mem::take(&mut self.asked).into_values() {
            match asked {
                Asked::Grow(at) => {
                    self.successor(at, Successor::Denied(Status::Unavailable, cut_off()));
                }
                Asked::Begin(at) => {
                    self.move_word(at, MoveWord::Refused(Status::Unavailable, cut_off()));
                }
                Asked::Commit(at) => {
                    self.move_word(at, MoveWord::NotCommitted(Status::Unavailable, cut_off()));
                }
                _ => {}
            }
        }
    }

    fn on_note(&mut self, net: &mut Net, now: Time, note: LinkNote) {
        match note {
            LinkNote::Effects(effects) => {
                for effect in effects {
                    self.effect(net, effect);
                }
            }
            LinkNote::Report { shard, connections, requests, forwarded, usage, active } => {
                self.counters[shard.0 as usize] = Counters { connections, requests, forwarded };
                self.usage.extend(usage);
                let urgent = !active.is_empty();
                self.active.extend(active);
                if urgent || self.usage.len() > 1000 {
                    self.report(net, now);
                }
            }
            LinkNote::Confirmed { request: 0, .. } => {}
            LinkNote::Confirmed { request, refusal } => {
                let Some(conn) = self.conn else { return };
                match refusal {
                    Some((status, text)) => net.refuse(conn, request, status, &text),
                    None => {
                        let header = ReplyHeader::new(Status::Ok, request, 0);
                        net.reply(conn, header, &[], ReplyPayload::Copy(&[]));
                    }
                }
            }
            LinkNote::Stop => self.stopped = true,
        }
    }

    fn on_tick(&mut self, net: &mut Net, now: Time) -> Option<Time> {
        if self.conn.is_none() {
            if now >= self.next_attempt {
                self.attempt(net, now);
            }
            return Some(self.next_attempt);
        }
        if now >= self.next_report {
            self.report(net, now);
        }
        Some(self.next_report)
    }

    fn finished(&self) -> bool {
        self.stopped
    }
}
