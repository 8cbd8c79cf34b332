//! The link to a controller shard: joins, reports, carries blocks in and questions out.
//!
//! One connection that carries requests both ways. When it breaks, the server keeps its blocks and
//! serves them, and tries to join again. A controller that knows it still (one that was restarted and
//! has a log) leaves it its number and is told what it holds; what the shards wanted of the controller
//! meanwhile is in that, or is told after it. Any other controller gives it a new number, under which
//! it begins with empty blocks. A controller of a lesser term than one heard of before is refused
//! (INV-25).

use crate::flush::{Errand, FlushJob, FlushWhat, Flusher};
use crate::lots::Lots;
use crate::notes::Note;
use crate::shard::{BlockOwner, Effect, MoveWord};
use crate::spill::Traffic;
use honeycomb_env::{
    Clock, ConnId, Entropy, Mailbox, Net, NotPosted, ReplyPayload, resident_anonymous_bytes,
};
use honeycomb_structures::{News, Successor};
use honeycomb_types::limits::REPORT_INTERVAL;
use honeycomb_types::{
    BlockAt, BlockId, Epoch, Generation, JobId, Kind, Marks, PrefixId, ServerId, ShardIx,
    StructureId, TierIx, Time,
};
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::messages::{
    ActivePrefix, BeginImportRequest, BeginMoveReply, BeginMoveRequest, BlockFailedRequest,
    BlockUsage, CancelMoveRequest, CommitFlushRequest, CommitMoveReply, CommitMoveRequest,
    EndCopiesRequest, EndImportRequest, EvacuateRequest, FlushBlockRequest, FreeBlockRequest,
    GrowStructureReply, GrowStructureRequest, HeldBlock, HelloReply, HelloRequest,
    InventoryRequest, JoinServerReply, JoinServerRequest, KindInfo, LeaveServerRequest,
    LendBlocksReply, LendBlocksRequest, LocateServerReply, LocateServerRequest, LowerBlockRequest,
    OpenBlockRequest, QueueAheadRequest, QueueTakenRequest, RaiseBlockRequest, ReleaseReply,
    ReleaseRequest, ReportReply, ReportRequest, RetireBlockRequest, ReturnBlockRequest,
    SealBlockRequest, SetGenerationRequest, SweepObjectsRequest, TierChangedRequest, TierInfo,
};
use honeycomb_wire::{Field, GrantKey, Op, ReplyHeader, RequestHeader, Status, TokenKey};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

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

/// What is told to a controller that knows this server.
#[derive(Default)]
struct Telling {
    /// Tells one connection's answers from those of an earlier one.
    round: u64,
    /// Which shards have told theirs.
    has: Vec<bool>,
    blocks: Vec<HeldBlock>,
    /// What they wanted after that.
    later: Vec<Effect>,
    /// Blocks that wait to hear that what was taken from them is known.
    unheard: Vec<BlockAt>,
}

impl Telling {
    fn begin(&mut self, shards: usize) {
        self.stop();
        self.has = vec![false; shards];
    }

    /// Ends it before it was complete: all of it is told anew.
    fn stop(&mut self) {
        self.round += 1;
        self.has.clear();
        self.blocks.clear();
        for effect in std::mem::take(&mut self.later) {
            match effect {
                Effect::Taken { at, .. } => self.unheard.push(at),
                // What blocks tell of themselves does not say this.
                Effect::CancelMove { .. } | Effect::BlockFailed { .. } => self.later.push(effect),
                _ => {}
            }
        }
    }

    fn has(&self, shard: ShardIx) -> bool {
        self.has.get(shard.0 as usize).copied().unwrap_or(false)
    }

    /// Takes a shard's blocks; true when those of all are here.
    fn take(&mut self, shard: ShardIx, blocks: Vec<HeldBlock>) -> bool {
        self.has[shard.0 as usize] = true;
        self.blocks.extend(blocks);
        self.has.iter().all(|&has| has)
    }
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
                let text = format!("no controller at {}: {e}", self.identity.controller);
                self.hindrance = Some(text);
            }
        }
    }

    fn join(&mut self, net: &mut Net, hello: &HelloReply, lots: &Lots) {
        self.controllers = u16::from(hello.shards.max(1));
        if self.controllers > 1 && !self.identity.tiers.is_empty() {
            // What is lent is room in memory; of the tiers below there is no ledger yet.
            let text = "a server with disks serves a controller of one shard: start the controller \
                        with controller_shards = 1, or the server without disks";
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
            let text = format!("a controller of term {old}, and there was one of term {known}");
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
        self.telling = Telling { round: self.telling.round, ..Telling::default() };
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
            usage: std::mem::take(&mut self.usage),
            active: std::mem::take(&mut self.active),
        };
        self.ask(net, Op::Report, &body, Asked::Report { sent: now });
    }

    /// Asks or tells the controller shard what a shard of ours wants.
    pub(crate) fn effect(&mut self, net: &mut Net, effect: Effect) {
        if !self.ready {
            return self.keep(effect);
        }
        match effect {
            Effect::Grow { structure, at } => {
                let body = GrowStructureRequest {
                    structure: structure.0,
                    block: at.block.0,
                    epoch: at.epoch.0,
                };
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
            Effect::Return { structure, at, successor } => {
                let entry = MovedArgs::decode(&successor).expect("it came from `grown`").entry;
                let body = ReturnBlockRequest {
                    structure: structure.0,
                    block: at.block.0,
                    epoch: at.epoch.0,
                    successor: entry.block,
                    successor_epoch: entry.epoch,
                };
                self.ask(net, Op::ReturnBlock, &body, Asked::Told);
            }
            Effect::BeginMove { structure, at, start, way } => {
                let (structure, block, epoch) = (structure.0, at.block.0, at.epoch.0);
                let body = BeginMoveRequest { structure, block, epoch, start, way: way as u8 };
                self.ask(net, Op::BeginMove, &body, Asked::Begin(at));
            }
            Effect::CommitMove { structure, at, id, target, bytes } => {
                let body = CommitMoveRequest {
                    structure: structure.0,
                    block: at.block.0,
                    epoch: at.epoch.0,
                    move_id: id,
                    target: target.block.0,
                    target_epoch: target.epoch.0,
                    bytes,
                };
                self.ask(net, Op::CommitMove, &body, Asked::Commit(at));
            }
            Effect::CancelMove { structure, at, id } => {
                let (structure, block, epoch) = (structure.0, at.block.0, at.epoch.0);
                let body = CancelMoveRequest { structure, block, epoch, move_id: id };
                self.ask(net, Op::CancelMove, &body, Asked::Told);
            }
            Effect::LocateServer { shard, server } => {
                let body = LocateServerRequest { server: server.0 };
                self.ask(net, Op::LocateServer, &body, Asked::Locate(shard, server));
            }
            Effect::Raise { structure, at } => {
                let (structure, block, epoch) = (structure.0, at.block.0, at.epoch.0);
                let body = RaiseBlockRequest { structure, block, epoch };
                self.ask(net, Op::RaiseBlock, &body, Asked::Told);
            }
            Effect::TierChanged { structure, at, tier } => {
                let (structure, block, epoch) = (structure.0, at.block.0, at.epoch.0);
                let body = TierChangedRequest { structure, block, epoch, tier: tier.0 };
                self.ask(net, Op::TierChanged, &body, Asked::Told);
            }
            Effect::BlockFailed { structure, at, why } => {
                let (structure, block, epoch) = (structure.0, at.block.0, at.epoch.0);
                let body = BlockFailedRequest { structure, block, epoch, why };
                self.ask(net, Op::BlockFailed, &body, Asked::Told);
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

    /// What the controller is to be told once it is there again. What a shard wanted before it told
    /// its holdings is in them.
    fn keep(&mut self, effect: Effect) {
        let at = match effect {
            Effect::Grow { at, .. } => return self.away(at),
            Effect::BeginMove { at, .. } => return self.refuse_move(at),
            Effect::CommitMove { at, .. } => return self.move_word(at, MoveWord::NotAsked),
            // It is asked for again.
            Effect::LocateServer { .. } | Effect::Raise { .. } => return,
            Effect::CancelMove { .. } | Effect::BlockFailed { .. } => {
                return self.telling.later.push(effect);
            }
            Effect::TierChanged { at, .. }
            | Effect::Sealed { at, .. }
            | Effect::Taken { at, .. }
            | Effect::Return { at, .. }
            | Effect::Retire { at, .. } => at,
        };
        match effect {
            _ if self.telling.has(at.block.shard()) => self.telling.later.push(effect),
            Effect::Taken { at, .. } => self.telling.unheard.push(at),
            _ => {}
        }
    }

    fn away(&self, at: BlockAt) {
        self.successor(at, Successor::Denied(Status::Unavailable, cut_off()));
    }

    fn refuse_move(&self, at: BlockAt) {
        self.move_word(at, MoveWord::Refused(Status::Unavailable, cut_off()));
    }

    fn hang_up(&mut self, net: &mut Net) {
        if let Some(conn) = self.conn {
            net.close(conn);
        }
    }

    fn tell_holdings(&mut self, net: &mut Net) {
        let mut blocks = std::mem::take(&mut self.telling.blocks);
        loop {
            let rest = blocks.split_off(blocks.len().min(TOLD_AT_A_TIME));
            let last = rest.is_empty();
            let body = InventoryRequest { blocks, last };
            self.ask(net, Op::Inventory, &body, Asked::Inventory { last });
            if last {
                return;
            }
            blocks = rest;
        }
    }

    /// The controller knows what is held: everything goes on.
    fn told(&mut self, net: &mut Net) {
        self.now_ready(net);
        for at in std::mem::take(&mut self.telling.unheard) {
            self.tell(at, News::TakenHeard);
        }
        for effect in std::mem::take(&mut self.telling.later) {
            self.effect(net, effect);
        }
    }

    fn successor(&self, at: BlockAt, successor: Successor) {
        self.tell(at, News::Successor(successor));
    }

    fn tell(&self, at: BlockAt, news: News) {
        let shard = at.block.shard().0 as usize;
        self.post(&self.shards[shard], Note::Tell(at, news, None));
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

    fn errand(&self, header: &RequestHeader) -> Errand {
        Errand { controller: self.controller, link: self.links, request: header.request }
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

    fn located(&self, shard: ShardIx, server: ServerId, header: &ReplyHeader, args: &[u8]) {
        let found = match (header.status, LocateServerReply::decode(args)) {
            (Status::Ok, Ok(reply)) => resolve(&reply.address).map_err(|_| Status::Unavailable),
            (Status::Ok, Err(_)) => Err(Status::Internal),
            (status, _) => Err(status),
        };
        self.post(&self.shards[shard.0 as usize], Note::Located(server, found));
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
                let body = OpenBlockRequest::decode(args).map_err(malformed)?;
                let owner = BlockOwner::try_from(&body)?;
                (owner.at.block.shard(), Note::Open(owner, self.errand(header)))
            }
            Op::FreeBlock => {
                let body = FreeBlockRequest::decode(args).map_err(malformed)?;
                let at = BlockAt { block: BlockId(body.block), epoch: Epoch(body.epoch) };
                (at.block.shard(), Note::Free(at, self.errand(header)))
            }
            Op::LowerBlock => {
                let body = LowerBlockRequest::decode(args).map_err(malformed)?;
                let at = BlockAt { block: BlockId(body.block), epoch: Epoch(body.epoch) };
                (at.block.shard(), Note::Lower(at, TierIx(body.tier), self.errand(header)))
            }
            Op::FlushBlock => {
                let body = FlushBlockRequest::decode(args).map_err(malformed)?;
                let at = BlockAt { block: BlockId(body.block), epoch: Epoch(body.epoch) };
                let (range, errand) = ((body.start, body.end), self.errand(header));
                let note = match body.live {
                    0 => Note::Flush(at, range, body.object, errand),
                    live => Note::Copy(at, range, body.object, live, errand),
                };
                (at.block.shard(), note)
            }
            Op::CommitFlush => {
                let body = CommitFlushRequest::decode(args).map_err(malformed)?;
                let what = FlushWhat::Commit(Box::new(body));
                return self.flusher.give(FlushJob { errand: self.errand(header), what });
            }
            Op::SweepObjects => {
                let body = SweepObjectsRequest::decode(args).map_err(malformed)?;
                let what = FlushWhat::Sweep(Box::new(body));
                return self.flusher.give(FlushJob { errand: self.errand(header), what });
            }
            Op::QueueAhead => {
                let body = QueueAheadRequest::decode(args).map_err(malformed)?;
                let at = BlockAt { block: BlockId(body.block), epoch: Epoch(body.epoch) };
                let news = News::Ahead { items: body.items, bytes: body.bytes };
                (at.block.shard(), Note::Tell(at, news, Some(self.errand(header))))
            }
            Op::Evacuate => {
                let body = EvacuateRequest::decode(args).map_err(malformed)?;
                let at = BlockAt { block: BlockId(body.block), epoch: Epoch(body.epoch) };
                (at.block.shard(), Note::Evacuate(at, self.errand(header)))
            }
            Op::BeginImport => {
                let body = BeginImportRequest::decode(args).map_err(malformed)?;
                let at = BlockAt { block: BlockId(body.block), epoch: Epoch(body.epoch) };
                let range = (body.start, body.end);
                (at.block.shard(), Note::BeginImport(at, body.move_id, range, self.errand(header)))
            }
            Op::EndImport => {
                let body = EndImportRequest::decode(args).map_err(malformed)?;
                let at = BlockAt { block: BlockId(body.block), epoch: Epoch(body.epoch) };
                let note = Note::EndImport(at, body.move_id, body.commit, self.errand(header));
                (at.block.shard(), note)
            }
            Op::SetGeneration => {
                let body = SetGenerationRequest::decode(args).map_err(malformed)?;
                let (prefix, generation) = (PrefixId(body.prefix), Generation(body.generation));
                // It is done when every shard has done it. Asked once more meanwhile, it has its
                // answer then, and not when some shards have done it twice.
                let errand = self.errand(header);
                return self.post_all(errand, || Note::SetGeneration(prefix, generation, errand));
            }
            Op::EndCopies => {
                let live = EndCopiesRequest::decode(args).map_err(malformed)?.live;
                let errand = self.errand(header);
                return self.post_all(errand, || Note::EndCopies(live, errand));
            }
            op => return Err((Status::NotServedHere, format!("{} on a link", op.name()))),
        };
        let Some(mailbox) = self.shards.get(shard.0 as usize) else {
            return Err((Status::UnknownBlock, format!("there is no shard {}", shard.0)));
        };
        self.post(mailbox, note);
        Ok(())
    }

    /// Hands every shard its part of a request.
    fn post_all(
        &mut self,
        errand: Errand,
        note: impl Fn() -> Note,
    ) -> Result<(), (Status, String)> {
        let Entry::Vacant(left) = self.shared.entry(errand.request) else { return Ok(()) };
        left.insert(self.shards.len());
        for shard in &self.shards {
            self.post(shard, note());
        }
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

impl TryFrom<&OpenBlockRequest> for BlockOwner {
    type Error = (Status, String);

    /// Refuses a code that no kind has, and marks that cannot be.
    fn try_from(body: &OpenBlockRequest) -> Result<BlockOwner, (Status, String)> {
        let kind = Kind::from_code(body.kind)
            .ok_or_else(|| (Status::WrongKind, format!("no kind has the code {:#x}", body.kind)))?;
        let (high, low) = (body.high_mark, body.low_mark);
        let marks = Marks::new(high, low, Marks::default()).ok_or_else(|| {
            (Status::InvalidArgument, format!("{high} % and {low} % are no marks of a block"))
        })?;
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
            marks,
            importing: body.importing,
            tier: TierIx(body.tier),
        })
    }
}

impl Link {
    pub(crate) fn on_request(
        &mut self,
        net: &mut Net,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
        lots: &mut Lots,
    ) {
        if header.op == Op::LendBlocks {
            let wanted = LendBlocksRequest::decode(args).map_err(|e| e.to_string());
            let set = wanted.and_then(|body| {
                let lent = lots.set(self.controller, &body.lots);
                lent.ok_or_else(|| "this server has other cores".to_owned())
            });
            return match set {
                Ok(lent) => {
                    let header = ReplyHeader::new(Status::Ok, header.request, 0);
                    let body = LendBlocksReply { lent }.encode();
                    net.reply(from, header, &body, ReplyPayload::Copy(&[]));
                }
                Err(text) => net.refuse(from, header.request, Status::BadFrame, &text),
            };
        }
        if header.op == Op::Release {
            return match ReleaseRequest::decode(args) {
                Ok(ReleaseRequest { stay }) => {
                    self.released = !stay;
                    let header = ReplyHeader::new(Status::Ok, header.request, 0);
                    net.reply(from, header, &ReleaseReply {}.encode(), ReplyPayload::Copy(&[]));
                }
                Err(e) => net.refuse(from, header.request, Status::BadFrame, &e.to_string()),
            };
        }
        if let Err((status, text)) = self.command(header, args) {
            net.refuse(from, header.request, status, &text);
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

    /// What a shard holds, if it was asked over this connection.
    pub(crate) fn holdings(
        &mut self,
        net: &mut Net,
        shard: ShardIx,
        round: u64,
        blocks: Vec<HeldBlock>,
    ) {
        if round == self.telling.round && self.telling.take(shard, blocks) {
            self.tell_holdings(net);
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
