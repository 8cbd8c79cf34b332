//! Extents of large values and items, between shards: a block of a kv or a queue adopts the extents that a
//! put names (`ExtentAdopt`), and drops extents that nothing names any more (`ExtentDrop`).
//!
//! The extents are in blocks of any shard of any server. One connection to each such shard, with the
//! cluster's token, carries requests and answers in order. An adoption is repeated until it is decided,
//! within `ADOPT_MAX`: if not all extents are confirmed by then, the put is refused and all its extents are
//! dropped. Drops are repeated until they are confirmed, or the server is gone. Drops belong to the shard and
//! not to the block, which may be freed before. An adoption also belongs to the shard until its block has
//! answered the put: if the block is freed for any reason, the adoption is dropped.
//!
//! No id is reused, so a late or repeated request finds its own extents or none.

use super::agenda::Agenda;
use super::blocks::Blocks;
use super::connections::{PeerKey, Post, PostPayload};
use super::outbox::Outbox;
use super::{Effect, Shard, ShardConfig};
use honeycomb_structures::{Adopted, Answer, ExtentRef, Operation, Outcome, Payload, Ticket};
use honeycomb_types::limits::{ADOPT_MAX, EXTENTS_IDLE};
use honeycomb_types::{
    BlockAt, BlockId, Bug, Demotion, Epoch, Kind, ServerId, ShardIx, StructureId, Time,
};
use honeycomb_wire::messages::{ExtentAdoptRequest, ExtentDropRequest, ExtentName};
use honeycomb_wire::{Field, Op, Status};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The pause after a connection broke, and before a server's address is requested again.
const AGAIN: Duration = Duration::from_millis(50);
/// Extents of one request.
const NAMES_MAX: usize = 1024;
/// Most requests that wait for a connection; further puts are retried later. Drops cannot be refused and
/// accumulate while a server cannot be reached: this limit bounds them.
const WAITING_MAX: usize = 1024;

/// One shard of one server.
type ServerShard = (ServerId, ShardIx);

/// A request to a peer.
#[derive(Clone, Debug)]
struct ExtentRequest {
    op: Op,
    structure: StructureId,
    owner: u64,
    extents: Vec<ExtentRef>,
}

/// The connection to one peer.
#[derive(Default)]
struct ExtentConnection {
    dialled: bool,
    /// Requests that were sent and not answered.
    sent: VecDeque<ExtentRequest>,
    waiting: VecDeque<ExtentRequest>,
    /// The earliest time of the next connection attempt.
    again: Option<Time>,
    last_used: Time,
}

impl ExtentConnection {
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn len(&self) -> usize {
        self.sent.len() + self.waiting.len()
    }
}

/// A put that waits for its extents, and then for its block. Until the block has answered, only the shard may
/// drop the extents, if the block ends.
struct Adoption {
    at: BlockAt,
    structure: StructureId,
    ticket: Ticket,
    list: Vec<ExtentRef>,
    /// Requests without an answer.
    left: usize,
    /// The time by which the adoption must be decided; `None` if it is decided and its block was notified.
    due: Option<Time>,
    failed: Option<(Status, String)>,
}

impl Adoption {
    fn is_open(&self) -> bool {
        self.due.is_some()
    }
}

/// A structure that is being flushed while it is in use.
#[derive(Default)]
struct Copied {
    /// The numbers of these flushes.
    flushes: BTreeSet<u64>,
    /// Owners and lists to drop when they end.
    drops: Vec<(u64, Vec<ExtentRef>)>,
}

/// The work of one shard on extents elsewhere.
#[derive(Default)]
pub(super) struct Extents {
    addresses: BTreeMap<ServerId, SocketAddr>,
    /// The time at which the address of each server is requested again.
    asked: BTreeMap<ServerId, Time>,
    connections: BTreeMap<ServerShard, ExtentConnection>,
    adoptions: BTreeMap<u64, Adoption>,
    /// Extents to drop at the next tick: structure, owner and list of each put whose block is gone.
    orphans: Vec<(StructureId, u64, Vec<ExtentRef>)>,
    /// Structures with copies in progress, whose extents may not be dropped.
    copied: BTreeMap<StructureId, Copied>,
    /// When to check for due work. This is read in every turn of the event loop, and there may be thousands
    /// of connections.
    due: Option<Time>,
    last_owner: u64,
}

impl Extents {
    /// When `ExtentsWork::tick_extents` is due. May be too early, never too late.
    pub fn due(&self) -> Option<Time> {
        let late = |next: Time| self.due.is_none_or(|due| due > next);
        debug_assert!(!self.next_due().is_some_and(late), "{:?} is late", self.due);
        self.due
    }

    /// Schedules a check at this time.
    fn look_at(&mut self, due: Time) {
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    /// When the next check is due, computed from the present state.
    fn next_due(&self) -> Option<Time> {
        let adoptions = self.adoptions.values().filter_map(|adoption| adoption.due);
        let connections = self.connections.iter().filter_map(|((server, _), connection)| {
            let asked = self.asked.get(server).copied();
            match (connection.is_empty(), connection.dialled) {
                (true, _) => Some(connection.last_used + EXTENTS_IDLE),
                // The network reports the outcome.
                (false, true) if connection.waiting.is_empty() => None,
                (false, _) => connection.again.max(asked).or(Some(Time::ZERO)),
            }
        });
        adoptions.chain(connections).min()
    }

    fn undecided(&mut self, owner: u64) -> Option<&mut Adoption> {
        self.adoptions.get_mut(&owner).filter(|adoption| adoption.is_open())
    }

    /// Whether a put at this block waits for the answer to an adoption.
    pub fn adopts_for(&self, at: BlockAt) -> bool {
        self.adoptions.values().any(|adoption| adoption.at == at && adoption.is_open())
    }

    /// A block of this structure is being copied for a flush: extents that it names stay until that ends.
    pub fn keep(&mut self, structure: StructureId, flush: u64) {
        self.copied.entry(structure).or_default().flushes.insert(flush);
    }

    /// A parked operation was answered: if it was a put of extents, its entry owns them or they are dropped.
    pub fn answered(&mut self, ticket: Ticket) {
        self.adoptions.retain(|_, adoption| adoption.ticket != ticket);
    }

    /// A block is gone, with its records of the puts that waited there. Their extents may be adopted already,
    /// and no entry will name them.
    pub fn closed(&mut self, at: BlockAt) {
        let gone = self.adoptions.extract_if(.., |_, adoption| adoption.at == at);
        let orphans = gone.map(|(owner, gone)| (gone.structure, owner, gone.list));
        self.orphans.extend(orphans);
        if Bug::ExtentsOrphaned.active() {
            self.orphans.clear();
        }
        if !self.orphans.is_empty() {
            self.look_at(Time::ZERO);
        }
    }
}

/// The key of the connection to a peer.
fn key_of((server, shard): ServerShard) -> PeerKey {
    PeerKey::Extents(server, shard)
}

/// The block in the header of requests to a peer: it only determines the shard.
fn block_of(server: ServerId, shard: ShardIx) -> BlockAt {
    BlockAt { block: BlockId::new(server, shard, 0), epoch: Epoch(0) }
}

fn peer_of(extent: &ExtentRef) -> ServerShard {
    (extent.at.block.server(), extent.at.block.shard())
}

/// The parts of a list, one for each peer.
fn by_peer(list: Vec<ExtentRef>) -> Vec<(ServerShard, Vec<ExtentRef>)> {
    let mut parts: BTreeMap<ServerShard, Vec<ExtentRef>> = BTreeMap::new();
    for extent in list {
        parts.entry(peer_of(&extent)).or_default().push(extent);
    }
    let cut = |(peer, part): (ServerShard, Vec<ExtentRef>)| {
        part.chunks(NAMES_MAX).map(|some| (peer, some.to_vec())).collect::<Vec<_>>()
    };
    parts.into_iter().flat_map(cut).collect()
}

impl ExtentRequest {
    fn args(&self) -> Vec<u8> {
        let name =
            |e: &ExtentRef| ExtentName { block: e.at.block.0, epoch: e.at.epoch.0, id: e.id };
        let (structure, owner) = (self.structure.0, self.owner);
        let extents = self.extents.iter().map(name).collect();
        match self.op {
            Op::ExtentAdopt => ExtentAdoptRequest { structure, owner, extents }.encode(),
            _ => ExtentDropRequest { structure, owner, extents }.encode(),
        }
    }
}

/// The parts of a shard that adopt and drop extents, here and elsewhere.
pub struct ExtentsWork<'a> {
    pub(super) now: Time,
    pub(super) config: &'a ShardConfig,
    pub(super) blocks: &'a mut Blocks,
    pub(super) agenda: &'a mut Agenda,
    pub(super) extents: &'a mut Extents,
    pub(super) out: &'a mut Outbox,
}

impl Shard {
    /// Runs work on extents, and then the consequences for the blocks that it has changed.
    pub fn on_extents<T>(&mut self, now: Time, work: impl FnOnce(&mut ExtentsWork<'_>) -> T) -> T {
        let Shard { config, blocks, agenda, extents, out, .. } = self;
        let outcome = work(&mut ExtentsWork { now, config, blocks, agenda, extents, out });
        self.consequences(now);
        outcome
    }
}

impl ExtentsWork<'_> {
    /// Adopts extents for a put that is parked at a local block.
    pub(super) fn adopt_extents(
        &mut self,
        at: BlockAt,
        structure: StructureId,
        ticket: Ticket,
        list: Vec<ExtentRef>,
    ) {
        self.extents.last_owner += 1;
        // Unique for every put of every shard: a server keeps its number for its lifetime, and the extents of
        // a structure belong to one controller shard.
        let peer = (at.block.server().0 as u64) << 8 | self.config.shard.0 as u64;
        let owner = peer << 40 | self.extents.last_owner & ((1 << 40) - 1);
        let parts = by_peer(list.clone());
        let (left, due) = (parts.len(), Some(self.now + ADOPT_MAX));
        let long = |(peer, _): &&(ServerShard, _)| {
            self.extents
                .connections
                .get(peer)
                .is_some_and(|connection| connection.len() >= WAITING_MAX)
        };
        let failed = parts.iter().find(long).map(|((server, _), _)| {
            let text =
                format!("{WAITING_MAX} requests about extents already wait for server {server}");
            (Status::Busy, text)
        });
        let busy = failed.is_some();
        let adoption = Adoption { at, structure, ticket, list, left, due, failed };
        let before = self.extents.adoptions.insert(owner, adoption);
        assert!(before.is_none(), "INV-39: owner {owner:#x} of extents was given to two puts");
        self.extents.look_at(self.now + ADOPT_MAX);
        if busy {
            return self.end_adoption(owner);
        }
        for (peer, extents) in parts {
            self.want(peer, ExtentRequest { op: Op::ExtentAdopt, structure, owner, extents });
        }
    }

    /// Drops extents that no entry names any more.
    pub(super) fn drop_extents(
        &mut self,
        structure: StructureId,
        owner: u64,
        list: Vec<ExtentRef>,
    ) {
        if let Some(copied) = self.extents.copied.get_mut(&structure) {
            return copied.drops.push((owner, list));
        }
        for (peer, extents) in by_peer(list) {
            // Extents that were never adopted expire, and need no request if many are waiting.
            let connection = self.extents.connections.get(&peer);
            if owner == 0 && connection.is_some_and(|connection| connection.len() >= WAITING_MAX) {
                continue;
            }
            self.want(peer, ExtentRequest { op: Op::ExtentDrop, structure, owner, extents });
        }
    }

    /// The flush of a controller shard copies nothing any more.
    pub(super) fn end_copies(&mut self, controller: u16, flush: u64) {
        let ended = self.extents.copied.extract_if(.., |structure, copied| {
            structure.controller() == controller
                && copied.flushes.remove(&flush)
                && copied.flushes.is_empty()
        });
        let ended: Vec<_> = ended.collect();
        self.drop_kept(ended);
    }

    /// See `ExportWork::forget_copies`.
    pub(super) fn forget_copies(&mut self, controller: u16) {
        let copied = &mut self.extents.copied;
        let ours = copied.extract_if(.., |structure, _| structure.controller() == controller);
        let ours: Vec<_> = ours.collect();
        self.drop_kept(ours);
    }

    fn drop_kept(&mut self, ended: Vec<(StructureId, Copied)>) {
        for (structure, copied) in ended {
            for (owner, list) in copied.drops {
                self.drop_extents(structure, owner, list);
            }
        }
    }

    fn want(&mut self, peer: ServerShard, wanted: ExtentRequest) {
        if self.blocks.is_member(peer.0) && peer.1 == self.config.shard {
            let status = self.extent_part(wanted.op, &wanted.args()).status;
            return self.wanted_answered(&wanted, status);
        }
        let connection = self.extents.connections.entry(peer).or_default();
        connection.last_used = self.now;
        connection.waiting.push_back(wanted);
        self.pump(peer);
    }

    /// Sends the waiting requests to a peer as soon as there is a connection to it.
    fn pump(&mut self, peer: ServerShard) {
        let Extents { addresses, asked, connections, adoptions, .. } = &mut self.extents;
        let Some(connection) = connections.get_mut(&peer) else { return };
        if connection.waiting.is_empty() {
            return;
        }
        if let Some(again) = connection.again.filter(|again| *again > self.now) {
            return self.extents.look_at(again);
        }
        let (server, shard) = peer;
        if !connection.dialled {
            let Some(address) = addresses.get(&server).copied() else {
                let again = asked.entry(server).or_insert(self.now);
                if *again <= self.now {
                    *again = self.now + 2 * AGAIN;
                    let shard = self.config.shard;
                    self.out.effects.push(Effect::LocateServer { shard, server });
                }
                let again = *again;
                return self.extents.look_at(again);
            };
            connection.dialled = true;
            let target = block_of(server, shard);
            self.out.posts.push(Post::Dial { key: key_of(peer), address, target });
        }
        connection.last_used = self.now;
        while let Some(wanted) = connection.waiting.pop_front() {
            let ExtentRequest { op, owner, .. } = wanted;
            if op == Op::ExtentAdopt && !adoptions.get(&owner).is_some_and(Adoption::is_open) {
                continue;
            }
            let args = wanted.args();
            connection.sent.push_back(wanted);
            let payload = PostPayload::Bytes(Arc::new([]));
            self.out.posts.push(Post::Send { key: key_of(peer), op, args, payload });
        }
        self.extents.look_at(self.now + EXTENTS_IDLE);
    }

    /// A request on a connection was answered.
    pub(super) fn peer_answered(&mut self, peer: ServerShard, status: Status) {
        let Some(connection) = self.extents.connections.get_mut(&peer) else { return };
        connection.last_used = self.now;
        let Some(wanted) = connection.sent.pop_front() else { return };
        if !matches!(status, Status::Ok | Status::ExtentGone) {
            // The peer was busy or failed: the request is repeated.
            connection.waiting.push_back(wanted);
            connection.again = Some(self.now + AGAIN);
            return self.extents.look_at(self.now + AGAIN);
        }
        if connection.is_empty() {
            self.extents.look_at(self.now + EXTENTS_IDLE);
        }
        self.wanted_answered(&wanted, status);
    }

    fn wanted_answered(&mut self, wanted: &ExtentRequest, status: Status) {
        if wanted.op == Op::ExtentDrop {
            return;
        }
        let Some(adoption) = self.extents.undecided(wanted.owner) else { return };
        let (at, left) = (adoption.at, adoption.left);
        assert!(left > 0, "INV-39: a put at {at:?} gets more answers than it made requests");
        adoption.left -= 1;
        if status != Status::Ok {
            let text = "an extent of the value no longer exists; write the value again";
            adoption.failed = Some((Status::ExtentGone, text.to_owned()));
        }
        if adoption.left == 0 {
            self.end_adoption(wanted.owner);
        }
    }

    /// Handles a connection that failed or broke. Requests without an answer may have been executed.
    pub(super) fn peer_lost(&mut self, peer: ServerShard) {
        let Some(connection) = self.extents.connections.get_mut(&peer) else { return };
        connection.dialled = false;
        connection.again = Some(self.now + AGAIN);
        // The address may belong to another server by now.
        self.extents.addresses.remove(&peer.0);
        // All of them can be repeated: adoptions and drops are idempotent.
        while let Some(wanted) = connection.sent.pop_back() {
            if wanted.op != Op::ExtentDrop || !Bug::ExtentDropsForgotten.active() {
                connection.waiting.push_front(wanted);
            }
        }
        self.extents.look_at(self.now + AGAIN);
    }

    /// The controller has answered with the address of a server, or that it is gone.
    pub fn server_located(&mut self, server: ServerId, found: Result<SocketAddr, Status>) {
        let peers: Vec<ServerShard> = self
            .extents
            .connections
            .keys()
            .filter(|(other, _)| *other == server)
            .copied()
            .collect();
        match found {
            Ok(address) => {
                self.extents.addresses.insert(server, address);
                self.extents.asked.remove(&server);
                peers.into_iter().for_each(|peer| self.pump(peer));
            }
            // The server is gone with all its data.
            Err(Status::NotFound) => {
                self.extents.asked.remove(&server);
                peers.into_iter().for_each(|peer| self.forget_peer(peer));
            }
            Err(_) => {}
        }
    }

    /// A server has no such shard: a list that named it has named no extent.
    pub(super) fn peer_void(&mut self, peer: ServerShard) {
        let Some(connection) = self.extents.connections.get_mut(&peer) else { return };
        connection.dialled = false;
        self.forget_peer(peer);
    }

    /// Decides all requests to a peer that is gone, or never existed.
    fn forget_peer(&mut self, peer: ServerShard) {
        let connection = self.extents.connections.remove(&peer).expect("the caller found it");
        if connection.dialled {
            self.out.posts.push(Post::HangUp(key_of(peer)));
        }
        for wanted in connection.sent.into_iter().chain(connection.waiting) {
            self.wanted_answered(&wanted, Status::ExtentGone);
        }
    }

    fn end_adoption(&mut self, owner: u64) {
        let adoption = self.extents.adoptions.get_mut(&owner).expect("the caller found it");
        assert!(adoption.is_open(), "INV-39: the put of owner {owner:#x} is decided twice");
        adoption.due = None;
        let Adoption { at, ticket, .. } = *adoption;
        let busy = |failed: &(Status, String)| failed.0 == Status::Busy;
        let failed = adoption.failed.take();
        let failed = failed.filter(|failed| busy(failed) || !Bug::ExtentsUnadopted.active());
        let outcome = failed.map_or(Ok(()), Err);
        let slot = self.blocks.at(at).expect("an adoption ends with its block");
        let adopts = slot.structure.adopts().expect("it has requested the extents");
        adopts.adopted(&mut slot.backing, self.now, Adopted { ticket, owner, outcome });
        self.agenda.changed(at);
    }

    /// Drops extents left behind by blocks, ends adoptions that took too long, and retries connections.
    pub(super) fn tick_extents(&mut self) {
        for (structure, owner, list) in std::mem::take(&mut self.extents.orphans) {
            self.drop_extents(structure, owner, list);
        }
        let due = self.extents.adoptions.iter();
        let due = due.filter(|(_, adoption)| adoption.due.is_some_and(|due| due <= self.now));
        let due: Vec<u64> = due.map(|(owner, _)| *owner).collect();
        for owner in due {
            let adoption = self.extents.adoptions.get_mut(&owner).expect("listed just now");
            let text = format!(
                "the memory servers that hold the value did not confirm it within {} s",
                ADOPT_MAX.as_secs()
            );
            adoption.failed = Some((Status::ExtentGone, text));
            self.end_adoption(owner);
        }
        let peers: Vec<ServerShard> = self.extents.connections.keys().copied().collect();
        for peer in peers {
            let connection = &self.extents.connections[&peer];
            if !connection.is_empty() {
                self.pump(peer);
            } else if connection.last_used + EXTENTS_IDLE <= self.now {
                if connection.dialled {
                    self.out.posts.push(Post::HangUp(key_of(peer)));
                }
                self.extents.connections.remove(&peer);
            }
        }
        self.extents.due = self.extents.next_due();
    }

    /// Forgets the state of a controller shard's blocks, because the server has a new number there.
    pub(super) fn reset(&mut self, controller: u16) {
        let Extents { addresses, asked, connections, adoptions, orphans, copied, .. } =
            &mut self.extents;
        copied.retain(|structure, _| structure.controller() != controller);
        let ours = |server: &ServerId| server.controller() == controller;
        for (peer, connection) in connections.extract_if(.., |(server, _), _| ours(server)) {
            if connection.dialled {
                self.out.posts.push(Post::HangUp(key_of(peer)));
            }
        }
        addresses.retain(|server, _| !ours(server));
        asked.retain(|server, _| !ours(server));
        adoptions.retain(|_, adoption| !ours(&adoption.at.block.server()));
        orphans.retain(|(structure, ..)| structure.controller() != controller);
    }

    /// `ExtentAdopt` and `ExtentDrop`, from the shard with the block that names them.
    pub(super) fn extent_part(&mut self, op: Op, args: &[u8]) -> Answer {
        let decoded = match op {
            Op::ExtentAdopt => ExtentAdoptRequest::decode(args)
                .map(|q| (StructureId(q.structure), q.owner, q.extents)),
            _ => ExtentDropRequest::decode(args)
                .map(|q| (StructureId(q.structure), q.owner, q.extents)),
        };
        let (structure, owner, extents) = match decoded {
            Ok(decoded) => decoded,
            Err(e) => return e.into(),
        };
        let mut blocks: BTreeMap<BlockAt, Vec<u8>> = BTreeMap::new();
        for ExtentName { block, epoch, id } in extents {
            let at = BlockAt::of(block, epoch);
            let args = blocks.entry(at).or_insert_with(|| owner.to_le_bytes().to_vec());
            args.extend_from_slice(&id.to_le_bytes());
        }
        for (at, args) in blocks {
            let answer = self.extents_of(op, structure, at, &args);
            if answer.status != Status::Ok && op == Op::ExtentAdopt {
                return answer;
            }
        }
        Answer::ok(0)
    }

    fn extents_of(&mut self, op: Op, structure: StructureId, at: BlockAt, args: &[u8]) -> Answer {
        let slot = self.blocks.at(at);
        let own =
            |kind: Kind, of| kind.attributes().demotion == Demotion::Pieces && of == structure;
        let Some(slot) = slot.filter(|slot| own(slot.owner.kind, slot.owner.structure)) else {
            return Answer::refuse(
                Status::ExtentGone,
                format!("this server has no block {}", at.block),
            );
        };
        let operation =
            Operation { now: self.now, ticket: Ticket(0), op, args, wait_until: self.now };
        let outcome = slot.structure.apply(&mut slot.backing, &operation, &[]);
        self.agenda.changed(at);
        match outcome {
            Outcome::Done(answer) => Answer { payload: Payload::None, ..answer },
            Outcome::Parked => unreachable!("operations on extents do not wait"),
        }
    }
}
