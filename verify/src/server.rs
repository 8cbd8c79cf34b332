//! A simulated memory server: production shards behind a simulated network.

use crate::member::Member;
use crate::world::{TryId, is_refusal};
use honeycomb_block::{Pin, Reclaimer};
use honeycomb_catalog::Effect as Order;
use honeycomb_controller::message_of;
use honeycomb_env::{MemoryVolume, Volume};
use honeycomb_server::{
    BlockMessage, BlockOwner, CallerAccess, Effect, Io, Lots, PeerEvent, PeerKey, Post, Shard,
    ShardConfig, VolumeParts,
};
use honeycomb_structures::{Answer, Outcome, Payload, Registry, Ticket};
use honeycomb_types::limits::MOVING_MAX;
use honeycomb_types::{
    BlockAt, BlockUnits, Generation, Kind, LaneId, PrefixId, Sequence, ServerId, SessionId,
    ShardIx, TierClass, TierIx, TierSpec, Time,
};
use honeycomb_wire::data::{Brings, ReadArgs, ScanArgs, Scanned, scanned};
use honeycomb_wire::extents::ExtentRef;
use honeycomb_wire::messages::OpenBlockRequest;
use honeycomb_wire::queue::{
    AckAction, AckArgs, GetArgs, GetExtentsArgs, Items, LargeItem, large_items,
};
use honeycomb_wire::{Field, Grant, Op, RequestHeader, Status};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Shards of each server.
pub const SHARDS: u8 = 2;
/// Blocks of each shard that may be open in lower tiers at a time, on servers with a disk.
pub const WARM: u32 = 2;
/// Larger payloads are reserved, filled and committed.
const WHOLE_MAX: usize = 3000;

/// The sender of a request, which gets the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Caller {
    /// A try of a task.
    Task(TryId),
    /// Another server, over this connection.
    Peer(u64),
    /// An intruder without the right to the request.
    Intruder,
    /// The reply is not awaited.
    Nobody,
}

/// A connection of one shard to another server, as that shard knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardLine {
    pub shard: u8,
    pub key: PeerKey,
}

/// Longer payloads are sent from their own memory, as in the product; the threshold is lower, so
/// that it happens.
const PIN_ABOVE: usize = 1000;

/// A reply in transit.
pub struct Message {
    pub to: Caller,
    pub op: Op,
    pub status: Status,
    pub value: u64,
    pub args: Vec<u8>,
    pub payload: Sent,
}

/// The payload of a reply in transit.
pub enum Sent {
    Bytes(Vec<u8>),
    /// Memory of a block, which no other block gets until the reply has arrived.
    Pinned(Arc<Pin>),
}

impl Sent {
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Sent::Bytes(bytes) => bytes,
            Sent::Pinned(pin) => pin.bytes().to_vec(),
        }
    }
}

/// A payload that is arriving piece by piece.
pub struct Filling {
    pub to: Caller,
    pub header: RequestHeader,
    pub payload: Arc<[u8]>,
    pub written: usize,
}

/// The blocks of a server's cores, with their memory and disks.
#[derive(Clone, Copy)]
pub struct Layout {
    /// Bytes of a block.
    pub block: usize,
    /// Blocks of each core that may be in memory.
    pub frames: u32,
    /// Blocks of each core on its disk.
    pub below: u32,
    /// Blocks of each core in its object store.
    pub store: u32,
    /// Blocks that may be read from lower tiers at a time.
    pub buffers: usize,
    /// Bytes of memory of each core for deltas.
    pub deltas: usize,
}

/// A memory server's process.
pub struct SimServer {
    pub alive: bool,
    /// The number of this start of the process.
    pub life: u64,
    pub incarnation: u64,
    pub address: String,
    /// Bytes of a block.
    block: usize,
    /// Blocks that may be in memory.
    pub frames: u32,
    /// The disk tier of all shards, on one disk, if there is one.
    pub disk: Arc<MemoryVolume>,
    /// Its object store, if it has one.
    pub store: Arc<MemoryVolume>,
    /// The lower tiers of each shard.
    tiers: Vec<TierSpec>,
    /// Disk requests of its shards that were not begun yet, each with its shard.
    pub io: Vec<(u8, Io)>,
    /// Its membership in each controller shard.
    pub members: Vec<Member>,
    /// The blocks that it lends to them.
    pub lots: Lots,
    /// Requests of its shards to the controller that were not sent yet.
    pub wants: Vec<Effect>,
    /// Network requests of its shards that were not executed yet, each with its shard.
    pub posts: Vec<(u8, Post)>,
    pub(crate) shards: Vec<Shard>,
    /// Replies in transit from a block's own memory.
    sent: Vec<(BlockAt, Weak<Pin>)>,
    next_ticket: u64,
    waiting: BTreeMap<Ticket, (Caller, RequestHeader)>,
    pub filling: BTreeMap<Ticket, Filling>,
    /// Generations below which it has confirmed to refuse grants.
    pub(crate) generations: BTreeMap<PrefixId, Generation>,
    /// Its estimate of the controller's clock: the offset, the possible error, and when it was
    /// received.
    pub(crate) clock: (i64, Duration, Time),
}

/// An item left in a queue: the number of its delivery, and its bytes.
pub type Item = (u32, Vec<u8>);

/// The next item of a queue: taken, or reserved with the list of its extents.
pub enum Next {
    Item(Item),
    List(LargeItem, Vec<u8>),
}

/// A lane, and the number of its next request.
pub type Lane = (LaneId, Sequence);

/// The result of a request's arrival.
pub enum Taken {
    /// Replies to send.
    Messages(Vec<Message>),
    /// The payload is large: its pieces must be passed under this ticket.
    Filling(Ticket),
}

/// A disk of so many blocks for each shard, and a store under it.
fn tiers(below: u32, store: u32) -> Vec<TierSpec> {
    let all = [(TierClass::default(), below), (TierClass::Object, store)];
    let tier = |(class, blocks)| TierSpec { class, blocks };
    all.map(tier).into_iter().filter(|tier| tier.blocks > 0).collect()
}

impl SimServer {
    /// A server that has joined no controller shard yet, in a cluster with so many of them.
    pub fn new(
        server: usize,
        life: u64,
        incarnation: u64,
        controllers: usize,
        layout: Layout,
    ) -> SimServer {
        let Layout { block, frames, below, store, buffers, deltas } = layout;
        let tiers = tiers(below, store);
        let kinds = Arc::new(Registry::builtin());
        let shard = |ix| {
            Shard::new(ShardConfig {
                shard: ShardIx(ix),
                block_size: block,
                frames,
                lane_room: Default::default(),
                // Servers with every number from 1 on.
                moving: 1 + frames as usize % MOVING_MAX,
                warm: if below > 0 { WARM } else { 0 },
                deltas: if below > 0 { deltas } else { 0 },
                disks: tiers.clone(),
                buffers: buffers * block,
                reclaimer: Reclaimer::inline(),
                kinds: kinds.clone(),
            })
        };
        SimServer {
            alive: true,
            life,
            incarnation,
            address: format!("10.0.0.{}:1", server + 1),
            block,
            frames,
            disk: Arc::new(MemoryVolume::new()),
            store: Arc::new(MemoryVolume::new()),
            tiers: tiers.clone(),
            io: Vec::new(),
            members: (0..controllers).map(|_| Member::default()).collect(),
            lots: Lots::new(SHARDS as usize, BlockUnits::of(block as u64).units(frames)),
            wants: Vec::new(),
            posts: Vec::new(),
            shards: (0..SHARDS).map(shard).collect(),
            sent: Vec::new(),
            next_ticket: 0,
            waiting: BTreeMap::new(),
            filling: BTreeMap::new(),
            generations: BTreeMap::new(),
            clock: (0, Duration::ZERO, Time::ZERO),
        }
    }

    /// The process ends, and loses everything.
    pub fn crash(&mut self) {
        self.alive = false;
        self.members.iter_mut().for_each(Member::end);
        self.shards.clear();
        self.sent.clear();
        self.waiting.clear();
        self.filling.clear();
        self.wants.clear();
        self.posts.clear();
        // The file of its disk had no name.
        self.io.clear();
        self.disk = Arc::new(MemoryVolume::new());
        // Its data in the store is left for other servers to delete, and for none to read.
        self.store = Arc::new(MemoryVolume::new());
    }

    /// A reply arrived over a connection of one of its shards.
    pub fn line_answered(&mut self, now: Time, line: ShardLine, status: Status) {
        self.shards[line.shard as usize].peer_event(now, line.key, PeerEvent::Answered(status));
        self.steps(now);
    }

    /// A connection of one of its shards is gone.
    pub fn line_lost(&mut self, now: Time, line: ShardLine) {
        self.shards[line.shard as usize].peer_event(now, line.key, PeerEvent::Lost);
    }

    /// The controller has sent the address of another server.
    pub fn located(
        &mut self,
        now: Time,
        shard: ShardIx,
        server: ServerId,
        found: Result<SocketAddr, Status>,
    ) {
        self.shards[shard.0 as usize].on_extents(now, |work| work.server_located(server, found));
    }

    /// INV-29: an expired or revoked grant is not served, as far as this server can know.
    pub fn judge_access(
        &self,
        now: Time,
        controller_ms: u64,
        access: &CallerAccess,
        taken: &Taken,
    ) -> Result<(), String> {
        let Some(grant) = access.grant else { return Ok(()) };
        let served = match taken {
            Taken::Filling(_) => true,
            Taken::Messages(messages) => messages.iter().any(|m| !is_refusal(m.status)),
        };
        if !served {
            return Ok(());
        }
        let (_, error, told) = self.clock;
        // Two clocks that each drift by at most 1000 ppm.
        let slack = error + now.since(told) / 500 + Duration::from_millis(2);
        let end = grant.expires_ms.saturating_add(slack.as_millis() as u64);
        if controller_ms > end {
            return Err(format!(
                "a grant that ended at {} ms was served (INV-29)",
                grant.expires_ms
            ));
        }
        match self.generations.get(&grant.prefix) {
            Some(current) if *current > grant.generation => Err(format!(
                "a grant of {:?} was served after {current:?} (INV-29)",
                grant.generation
            )),
            _ => Ok(()),
        }
    }

    pub fn shard(&mut self, at: BlockAt) -> &mut Shard {
        &mut self.shards[at.block.shard().0 as usize]
    }

    /// Blocks in use.
    pub fn held(&self) -> Vec<BlockAt> {
        self.shards.iter().flat_map(|s| s.reports().inventory().map(|o| o.at)).collect()
    }

    /// The units of its blocks.
    pub fn units(&self) -> BlockUnits {
        BlockUnits::of(self.block as u64)
    }

    /// All bytes of a file's block, read as by a client; `None` while others have the buffers.
    pub fn read_all(&mut self, opened: &honeycomb_catalog::Opened, at: BlockAt) -> Option<Vec<u8>> {
        let access = self.reader(opened);
        let header = RequestHeader { at, grant: 1, ..RequestHeader::new(Op::FileRead) };
        let mut bytes = Vec::new();
        loop {
            // Bytes in lower tiers are returned in pieces.
            let mut args = Vec::new();
            ReadArgs { offset: bytes.len() as u64, length: self.block as u32 }.put(&mut args);
            let piece = self.read_at_once(&access, &header, &args);
            let (status, why) = (piece.status, String::from_utf8_lossy(&piece.args).into_owned());
            if status == Status::Busy {
                return None;
            }
            // At the end of a sealed block the reply names the successor.
            let read = matches!(status, Status::Ok | Status::Moved);
            assert!(read, "{at:?} cannot be read: {status:?} {why}");
            let piece = self.reply(Caller::Nobody, &header, piece).payload.into_bytes();
            if piece.is_empty() {
                return Some(bytes);
            }
            bytes.extend_from_slice(&piece);
        }
    }

    /// The reply to a read that waits only for the disk.
    fn read_at_once(
        &mut self,
        access: &CallerAccess,
        header: &RequestHeader,
        args: &[u8],
    ) -> Answer {
        let (ticket, ix) = (self.ticket(), header.at.block.shard().0);
        let shard = self.shard(header.at);
        if let Outcome::Done(answer) = shard.apply(Time::ZERO, access, header, args, &[], ticket) {
            return answer;
        }
        // For a store, some parts determine which other ones are needed.
        loop {
            if let Some((read, answer)) = self.shards[ix as usize].out().completed() {
                assert_eq!(read, ticket, "nothing else was waited for");
                return answer;
            }
            let wanted = self.shards[ix as usize].tiers().take_io();
            assert!(!wanted.is_empty(), "the disk has answered");
            for io in wanted {
                let (volume, base) = self.volume(io.tier, ix);
                let (id, done) = io.carry_out(&*volume, base);
                self.shards[ix as usize].tiers().io_done(Time::ZERO, id, done);
            }
        }
    }

    /// A shard's part of the disk, for reads outside the shard.
    pub(crate) fn parts(&self, shard: u8) -> VolumeParts {
        let all = (1..=self.tiers.len() as u8).map(|n| {
            let (volume, base) = self.volume(TierIx(n), shard);
            (volume as Arc<dyn Volume>, base)
        });
        all.collect()
    }

    /// The volume of a lower tier, and the start of a shard's part in it.
    pub fn volume(&self, tier: TierIx, shard: u8) -> (Arc<MemoryVolume>, u64) {
        let spec = self.tiers[tier.below().expect("a tier below memory")];
        let volume = if spec.class.takes_final_only() { &self.store } else { &self.disk };
        (volume.clone(), shard as u64 * spec.blocks as u64 * self.block as u64)
    }

    /// The lower tiers that it reports to a controller.
    pub fn tiers(&self) -> Vec<TierSpec> {
        self.tiers.clone()
    }

    /// The extents of a block that belong to entries, by their ids, as a flush would write them.
    /// The block can no longer be accessed.
    pub fn adopted(&mut self, at: BlockAt) -> Result<Vec<(u64, Vec<u8>)>, String> {
        let snapshot = self.shard(at).owners().retain(at, (0, u64::MAX));
        let snapshot = snapshot.map_err(|_| format!("{at:?} is not there"))?;
        let mut out = Vec::new();
        let parts = self.parts(at.block.shard().0);
        snapshot.write(&parts, &mut out).map_err(|e| e.to_string())?;
        let (mut left, mut extents) = (&out[..], Vec::new());
        while let Some((head, rest)) = left.split_first_chunk::<12>() {
            let (id, len) = head.split_at(8);
            let id = u64::from_le_bytes(id.try_into().expect("eight bytes"));
            let len = u32::from_le_bytes(len.try_into().expect("four bytes")) as usize;
            extents.push((id, rest[..len].to_vec()));
            left = &rest[len..];
        }
        Ok(extents)
    }

    /// An extent, read as by a client; `None` if it is gone.
    pub fn extent(
        &mut self,
        opened: &honeycomb_catalog::Opened,
        ExtentRef { at, id, .. }: ExtentRef,
    ) -> Option<Vec<u8>> {
        let access = self.reader(opened);
        let header = RequestHeader { at, grant: 1, ..RequestHeader::new(Op::ExtentGet) };
        let answer = self.read_at_once(&access, &header, &id.to_le_bytes());
        let there = answer.status == Status::Ok;
        let bytes = self.reply(Caller::Nobody, &header, answer).payload.into_bytes();
        there.then_some(bytes)
    }

    /// The lists of a block's values or items that are extents, read as by a client. `None` while a part of
    /// the block moves.
    pub fn listed(
        &mut self,
        opened: &honeycomb_catalog::Opened,
        at: BlockAt,
        (start, end): (u64, u64),
    ) -> Result<Option<Vec<Vec<u8>>>, String> {
        if opened.kind == Kind::Queue {
            return self.listed_items(opened, at);
        }
        let access = self.reader(opened);
        let header = RequestHeader { at, grant: 1, ..RequestHeader::new(Op::KvScan) };
        let (mut cursor, mut listed) = (start, Vec::new());
        loop {
            let mut args = Vec::new();
            ScanArgs { cursor, bytes: 1 << 20, brings: Brings::Values, prefix: b"" }.put(&mut args);
            let answer = self.read_at_once(&access, &header, &args);
            let (status, next) = (answer.status, answer.value);
            let page = self.reply(Caller::Nobody, &header, answer).payload.into_bytes();
            if status == Status::Busy {
                return Ok(None);
            }
            if status != Status::Ok {
                return Err(format!("{at:?} cannot be scanned: {}", status.name()));
            }
            for (_, value) in scanned(&page).map_err(|e| e.to_string())? {
                if let Scanned::Extents(list) = value {
                    listed.push(list.to_vec());
                }
            }
            // The next page is in another block, or there is none.
            if next <= cursor || next > end {
                return Ok(Some(listed));
            }
            cursor = next;
        }
    }

    /// The same, of a block of a queue.
    fn listed_items(
        &mut self,
        opened: &honeycomb_catalog::Opened,
        at: BlockAt,
    ) -> Result<Option<Vec<Vec<u8>>>, String> {
        let access = self.reader(opened);
        let header = RequestHeader { at, grant: 1, ..RequestHeader::new(Op::QueueLists) };
        let answer = self.read_at_once(&access, &header, &[0; 8]);
        let status = answer.status;
        let page = self.reply(Caller::Nobody, &header, answer).payload.into_bytes();
        match status {
            Status::Ok => {
                let items = large_items(&page).map_err(|e| e.to_string())?;
                Ok(Some(items.into_iter().map(|(_, list)| list.to_vec()).collect()))
            }
            Status::Busy => Ok(None),
            other => Err(format!("{at:?} cannot name its lists: {}", other.name())),
        }
    }

    /// Access for a reader of a structure.
    fn reader(&self, opened: &honeycomb_catalog::Opened) -> CallerAccess {
        let grant = Grant {
            job: opened.job,
            prefix: opened.prefix,
            structure: opened.structure,
            verbs: opened.verbs,
            generation: opened.generation,
            expires_ms: u64::MAX,
        };
        CallerAccess { session: SessionId(u128::MAX), window: 1, grant: Some(grant), peer: false }
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// A request arrives, with its payload complete or about to follow.
    pub fn request(
        &mut self,
        now: Time,
        to: Caller,
        access: &CallerAccess,
        header: &RequestHeader,
        args: &[u8],
        payload: Arc<[u8]>,
    ) -> Taken {
        let ticket = self.ticket();
        // Operations with many keys are processed as a whole, of any length.
        let gathered = !self.shard(header.at).streams(header);
        if gathered && payload.len() > self.shard(header.at).gathers_most(header).max(WHOLE_MAX) {
            let text = "more than is gathered for such a request".to_owned();
            let mut out = vec![self.reply(to, header, Answer::refuse(Status::ValueTooLarge, text))];
            out.extend(self.settle());
            return Taken::Messages(out);
        }
        let many = gathered || matches!(header.op, Op::KvBatch | Op::KvMultiGet | Op::KvAccumulate);
        if payload.len() > WHOLE_MAX && !many {
            return match self.shard(header.at).reserve(now, access, header, args, ticket) {
                Ok(()) => {
                    let filling = Filling { to, header: *header, payload, written: 0 };
                    self.filling.insert(ticket, filling);
                    Taken::Filling(ticket)
                }
                Err(answer) => {
                    let mut out = vec![self.reply(to, header, answer)];
                    out.extend(self.settle());
                    Taken::Messages(out)
                }
            };
        }
        let mut out = Vec::new();
        match self.shard(header.at).apply(now, access, header, args, &payload, ticket) {
            Outcome::Done(answer) => out.push(self.reply(to, header, answer)),
            // Its connection is already gone.
            Outcome::Parked if to == Caller::Nobody => {
                self.shard(header.at).requests().hang_up(&[ticket])
            }
            Outcome::Parked => {
                self.waiting.insert(ticket, (to, *header));
            }
        }
        out.extend(self.settle());
        Taken::Messages(out)
    }

    /// A piece of a large payload arrives; `None` if it was the last.
    pub fn piece(&mut self, now: Time, ticket: Ticket, bytes: usize) -> (bool, Vec<Message>) {
        let Some(mut filling) = self.filling.remove(&ticket) else { return (false, Vec::new()) };
        let at = filling.header.at;
        let shard = self.shard(at);
        if let Some(place) = shard.requests().fill(ticket) {
            let n = bytes.min(place.len());
            place[..n].copy_from_slice(&filling.payload[filling.written..filling.written + n]);
            shard.requests().filled(ticket, n);
            filling.written += n;
        } else {
            // The block was freed meanwhile: the rest is discarded.
            filling.written = filling.payload.len();
        }
        if filling.written < filling.payload.len() {
            self.filling.insert(ticket, filling);
            return (true, self.settle());
        }
        self.waiting.insert(ticket, (filling.to, filling.header));
        self.shard(at).end_payload(now, ticket, true);
        (false, self.settle())
    }

    /// The incomplete payload of this sender.
    pub fn filling_of(&self, from: Caller) -> Option<Ticket> {
        self.filling.iter().find(|(_, filling)| filling.to == from).map(|(ticket, _)| *ticket)
    }

    /// The connection of an incomplete payload breaks.
    pub fn cut(&mut self, now: Time, ticket: Ticket) -> Vec<Message> {
        if let Some(filling) = self.filling.remove(&ticket) {
            self.shard(filling.header.at).end_payload(now, ticket, false);
        }
        self.settle()
    }

    /// Executes an order of the controller; returns whether it could. `Err` describes a wrong
    /// result.
    pub fn order(&mut self, now: Time, order: &Order) -> Result<bool, String> {
        match order {
            Order::OpenBlock { at, capacity, .. } => {
                let (_, _, body) = message_of(order);
                let body = OpenBlockRequest::decode(&body).map_err(|e| e.to_string())?;
                let owner = BlockOwner::try_from(&body).map_err(|(_, text)| text)?;
                let capacity = *capacity as usize;
                let shard = self.shard(*at);
                let known = shard.reports().inventory().any(|owner| owner.at == *at);
                if let Err(refusal) = shard.open(owner, None) {
                    return Err(format!("{at:?} could not be opened: {refusal:?}"));
                }
                // A block that is opened in a lower tier has no bytes yet. A repeated order may
                // find a block that has been demoted since the first.
                let shows = !known && !owner.tier.is_below();
                let bytes = if shows { shard.bytes(*at, 0..capacity) } else { &[] };
                let old = |part: &[u8]| part.iter().fold(0, |all, byte| all | byte) != 0;
                if bytes.chunks(256).any(old) {
                    return Err(format!("{at:?} shows its new owner old bytes (INV-04)"));
                }
            }
            Order::LowerBlock { at, tier, .. } => {
                return Ok(self.shard(*at).tiers().change_tier(*at, *tier).is_ok());
            }
            Order::FreeBlock { at, .. } => {
                self.member(at.block.server()).growing.remove(at);
                let shard = self.shard(*at);
                shard.owners().free(*at);
                if shard.reports().inventory().any(|owner| owner.at == *at) {
                    return Err(format!("{at:?} was freed and is still held (INV-02)"));
                }
            }
            // The writing of a flush is tested with real processes; here the access to the block is
            // tested, and that it can be read in any tier.
            Order::FlushBlock { at, start, end, .. } => {
                let Ok(kept) = self.shard(*at).owners().retain(*at, (*start, *end)) else {
                    return Ok(false);
                };
                let parts = self.parts(at.block.shard().0);
                match kept.write(&parts, &mut std::io::sink()) {
                    Ok(_) => {}
                    Err(fault) => return Err(format!("{at:?} cannot be flushed: {fault}")),
                }
            }
            Order::CutBlock { at, start, end, number, hold, .. } => {
                let stands = self
                    .shard(*at)
                    .on_exports(now, |work| work.checkpoint(*at, (*start, *end), *number, *hold));
                return Ok(stands.is_ok());
            }
            Order::ThawBlock { at, number, .. } => {
                return Ok(self.shard(*at).on_exports(now, |work| work.thaw(*at, *number)));
            }
            Order::CopyBlock { at, start, end, number, cut, .. } => {
                let shard = self.shard(*at);
                let copied = match cut {
                    true => shard.on_exports(now, |work| work.checkpoint_content(*at, *number)),
                    false => shard.on_exports(now, |work| work.copy(*at, (*start, *end), *number)),
                };
                let Ok((copy, _)) = copied else { return Ok(false) };
                let parts = self.parts(at.block.shard().0);
                match copy.write(&parts, &mut std::io::sink()) {
                    Ok(_) => return Ok(true),
                    Err(fault) => return Err(format!("{at:?} cannot be copied: {fault}")),
                }
            }
            Order::EndCopies { server, number } => {
                let controller = server.controller();
                for shard in &mut self.shards {
                    shard.on_exports(now, |work| work.end_copies(controller, *number));
                }
            }
            Order::CommitFlush { .. } | Order::SweepObjects { .. } => {}
            Order::SetGeneration { prefix, generation, .. } => {
                self.generations.insert(*prefix, *generation);
                for shard in &mut self.shards {
                    shard.owners().set_generation(*prefix, *generation);
                }
            }
            Order::QueueAhead { at, items, bytes, .. } => {
                let ahead = BlockMessage::Ahead { items: *items, bytes: *bytes };
                self.shard(*at).receive(now, *at, ahead);
            }
            Order::BeginImport { at, id, start, end, .. } => {
                let begun = self
                    .shard(*at)
                    .on_imports(Time::ZERO, |work| work.begin(*at, id.0, *start, *end));
                return Ok(begun.is_ok());
            }
            // A block that has been removed since has left.
            Order::Evacuate { at, .. } => {
                drop(self.shard(*at).on_exports(now, |work| work.evacuate(*at)))
            }
            Order::Lots { .. } | Order::Release { .. } => unreachable!("its link answers it"),
            Order::EndImport { at, id, commit, .. } => {
                // A block that has been removed since has nothing to end.
                let _ = self.shard(*at).on_imports(now, |work| work.end(*at, id.0, *commit));
            }
        }
        Ok(true)
    }

    /// The connection of a request is gone.
    pub fn hang_up(&mut self, of: TryId) -> (Vec<Message>, bool) {
        if !self.alive {
            return (Vec::new(), false);
        }
        let to = Caller::Task(of);
        let gone: Vec<(Ticket, BlockAt)> = self
            .waiting
            .iter()
            .filter(|(_, (waiting, _))| *waiting == to)
            .map(|(ticket, (_, header))| (*ticket, header.at))
            .collect();
        let waited = !gone.is_empty();
        for (ticket, at) in gone {
            self.waiting.remove(&ticket);
            self.shard(at).requests().hang_up(&[ticket]);
        }
        (self.settle(), waited)
    }

    /// Takes the next item of a queue's block, as a consumer would: `None` if it has no more. `Err`
    /// if the block must be promoted first, or no longer exists.
    pub fn take_next(
        &mut self,
        now: Time,
        opened: &honeycomb_catalog::Opened,
        at: BlockAt,
        lane: &mut Lane,
    ) -> Result<Option<Next>, (Status, String)> {
        let (mut op, mut args) = (Op::QueueGet, Vec::new());
        GetArgs { items: 1, bytes: 1, reserve_ms: 0, stay: true }.put(&mut args);
        let mut answer = self.change_at_once(now, opened, at, lane, op, &args);
        if answer.status == Status::ValueTooLarge {
            op = Op::QueueGetExtents;
            args = GetExtentsArgs { reserve_ms: 60_000, stay: true }.encode();
            answer = self.change_at_once(now, opened, at, lane, op, &args);
        }
        let Answer { status, payload, args, .. } = answer;
        match status {
            Status::Ok => {}
            Status::Busy | Status::WrongEpoch | Status::UnknownBlock => {
                return Err((status, String::from_utf8_lossy(&args).into_owned()));
            }
            _ => return Ok(None),
        }
        let bytes = match payload {
            Payload::Bytes(bytes) => bytes.to_vec(),
            Payload::Pinned(pin) => pin.bytes().to_vec(),
            _ => Vec::new(),
        };
        let readable = "a block's answer can be read";
        if op == Op::QueueGetExtents {
            return Ok(Some(Next::List(LargeItem::decode(&args).expect(readable), bytes)));
        }
        let told = Items::decode(&args, bytes.len()).expect(readable);
        Ok(Some(Next::Item((told.deliveries, bytes))))
    }

    /// Acknowledges an item in extents that was taken.
    pub fn take_list(
        &mut self,
        now: Time,
        opened: &honeycomb_catalog::Opened,
        at: BlockAt,
        lane: &mut Lane,
        item: LargeItem,
    ) {
        let items = vec![(item.number, item.deliveries)];
        let args = AckArgs { action: AckAction::Done, timeout_ms: 0, items }.encode();
        let answer = self.change_at_once(now, opened, at, lane, Op::QueueAck, &args);
        assert_eq!((answer.status, answer.value), (Status::Ok, 1), "it was just reserved");
    }

    /// Changes a block with a request that does not wait.
    fn change_at_once(
        &mut self,
        now: Time,
        opened: &honeycomb_catalog::Opened,
        at: BlockAt,
        lane: &mut Lane,
        op: Op,
        args: &[u8],
    ) -> Answer {
        let session = SessionId(u128::MAX - 1);
        let access = CallerAccess { session, window: 16, ..self.reader(opened) };
        let (of, sequence) = *lane;
        let header = RequestHeader { at, grant: 1, ack_lag: 1, ..RequestHeader::new(op) };
        let header = RequestHeader { lane: of, sequence, ..header };
        let ticket = self.ticket();
        let outcome = self.shard(at).apply(now, &access, &header, args, &[], ticket);
        let Outcome::Done(answer) = outcome else { panic!("{} does not wait here", op.name()) };
        if answer.executed() {
            lane.1.0 += 1;
        }
        answer
    }

    /// Advances the server in time.
    pub fn tick(&mut self, now: Time) -> Vec<Message> {
        for shard in &mut self.shards {
            shard.tick(now);
        }
        self.steps(now);
        self.settle()
    }

    /// Advances moves by one step. Called as often as other events happen, so that the content
    /// changes while it is copied.
    pub fn steps(&mut self, now: Time) {
        for shard in &mut self.shards {
            shard.step(now);
        }
    }

    /// Collects the replies that are ready, and the shards' requests to the controller.
    pub fn settle(&mut self) -> Vec<Message> {
        let mut out = Vec::new();
        for ix in 0..self.shards.len() {
            while let Some((ticket, answer)) = self.shards[ix].out().completed() {
                let filling = self.filling.remove(&ticket).map(|f| (f.to, f.header));
                if let Some((to, header)) = self.waiting.remove(&ticket).or(filling) {
                    out.push(self.reply(to, &header, answer));
                }
            }
            self.wants.extend(self.shards[ix].out().take_effects());
            let posts = self.shards[ix].out().take_posts();
            self.posts.extend(posts.into_iter().map(|post| (ix as u8, post)));
            let io = self.shards[ix].tiers().take_io();
            self.io.extend(io.into_iter().map(|io| (ix as u8, io)));
        }
        out
    }

    /// A shard reports that a block has left memory, or is back in it: returns whether that can be.
    /// Memory with a reply in transit is not free (INV-41).
    pub fn may_tell(&mut self, at: BlockAt, tier: TierIx) -> bool {
        self.sent.retain(|(_, pin)| pin.strong_count() > 0);
        let sends = self.sent.iter().any(|(from, _)| *from == at);
        // A promoted block has other memory from then on.
        self.sent.retain(|(from, _)| *from != at);
        !(sends && tier.is_below())
    }

    fn reply(&mut self, to: Caller, header: &RequestHeader, answer: Answer) -> Message {
        let at = header.at;
        let payload = match answer.payload {
            Payload::None => Sent::Bytes(Vec::new()),
            Payload::Bytes(bytes) => Sent::Bytes(bytes.to_vec()),
            Payload::Pinned(pin) => Sent::Bytes(pin.bytes().to_vec()),
            Payload::Block(range) if range.len() > PIN_ABOVE && to != Caller::Nobody => {
                let pin = Arc::new(self.shard(at).pin(at, range));
                // Blocks in the write cache are not reported.
                if self.shard(at).reports().has_frame_for(at) {
                    self.sent.push((at, Arc::downgrade(&pin)));
                }
                Sent::Pinned(pin)
            }
            Payload::Block(range) => Sent::Bytes(self.shard(at).bytes(at, range).to_vec()),
            Payload::Parts(_) => unreachable!("the shard has put it together"),
        };
        Message {
            to,
            op: header.op,
            status: answer.status,
            value: answer.value,
            args: answer.args,
            payload,
        }
    }
}
