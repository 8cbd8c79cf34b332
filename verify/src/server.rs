//! A simulated memory server: production shards behind a simulated network.

use crate::world::{Message, TryId};
use honeycomb_block::Reclaimer;
use honeycomb_catalog::Effect as Order;
use honeycomb_server::{Access, BlockOwner, Effect, Shard, ShardConfig};
use honeycomb_structures::{Answer, News, Outcome, Payload, Ticket};
use honeycomb_types::{BlockAt, ServerId, SessionId, ShardIx, Time};
use honeycomb_wire::data::ReadArgs;
use honeycomb_wire::queue::{GetArgs, Items};
use honeycomb_wire::{Grant, Op, RequestHeader, Status};
use std::collections::BTreeMap;

/// Shards of each server.
pub const SHARDS: u8 = 2;
/// Bytes of each block: small, so that they fill and grow.
pub const BLOCK: usize = 64 * 1024;
/// Payloads above this are reserved, filled and committed.
const WHOLE_MAX: usize = 3000;

/// A payload that is arriving piece by piece.
pub struct Filling {
    pub to: TryId,
    pub header: RequestHeader,
    pub payload: Vec<u8>,
    pub written: usize,
}

pub struct SimServer {
    pub id: ServerId,
    pub alive: bool,
    pub address: String,
    shards: Vec<Shard>,
    next_ticket: u64,
    waiting: BTreeMap<Ticket, (TryId, RequestHeader)>,
    pub filling: BTreeMap<Ticket, Filling>,
}

/// What a server did with a request.
pub enum Taken {
    /// Messages to send: replies to clients.
    Messages(Vec<Message>),
    /// The payload is large: pieces must be brought under this ticket.
    Filling(Ticket),
}

impl SimServer {
    pub fn new(id: ServerId, address: String, blocks: u32) -> SimServer {
        let shards = (0..SHARDS)
            .map(|ix| {
                let mut shard = Shard::new(ShardConfig {
                    shard: ShardIx(ix),
                    block_size: BLOCK,
                    blocks,
                    reclaimer: Reclaimer::inline(),
                });
                shard.reset(id);
                shard
            })
            .collect();
        SimServer {
            id,
            alive: true,
            address,
            shards,
            next_ticket: 0,
            waiting: BTreeMap::new(),
            filling: BTreeMap::new(),
        }
    }

    pub fn shard(&mut self, at: BlockAt) -> &mut Shard {
        &mut self.shards[at.block.shard().0 as usize]
    }

    /// Blocks that are in use.
    pub fn held(&self) -> Vec<BlockAt> {
        self.shards.iter().flat_map(|s| s.inventory().map(|o| o.at)).collect()
    }

    /// All bytes of a file's block, read as a client would.
    pub fn read_all(&mut self, opened: &honeycomb_catalog::Opened, at: BlockAt) -> Vec<u8> {
        let grant = Grant {
            job: opened.job,
            prefix: opened.prefix,
            structure: opened.structure,
            verbs: opened.verbs,
            generation: opened.generation,
            expires_ms: u64::MAX,
        };
        let access =
            Access { session: SessionId(u128::MAX), window: 1, grant: Some(grant), peer: false };
        let header = RequestHeader { at, grant: 1, ..RequestHeader::new(Op::FileRead) };
        let mut args = Vec::new();
        ReadArgs { offset: 0, length: BLOCK as u32 }.put(&mut args);
        let ticket = self.ticket();
        let shard = self.shard(at);
        match shard.apply(Time::ZERO, &access, &header, &args, &[], ticket) {
            Outcome::Done(Answer { payload: Payload::Block(range), .. }) => {
                shard.bytes(at, range).to_vec()
            }
            _ => Vec::new(),
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// A request arrives, with its payload whole or about to.
    pub fn request(
        &mut self,
        now: Time,
        to: TryId,
        access: &Access,
        header: &RequestHeader,
        args: &[u8],
        payload: &[u8],
    ) -> Taken {
        let ticket = self.ticket();
        if payload.len() > WHOLE_MAX {
            return match self.shard(header.at).reserve(now, access, header, args, ticket) {
                Ok(()) => {
                    let payload = payload.to_vec();
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
        match self.shard(header.at).apply(now, access, header, args, payload, ticket) {
            Outcome::Done(answer) => out.push(self.reply(to, header, answer)),
            Outcome::Parked => {
                self.waiting.insert(ticket, (to, *header));
            }
        }
        out.extend(self.settle());
        Taken::Messages(out)
    }

    /// A piece of a large payload arrives; `None` when it was the last.
    pub fn piece(&mut self, now: Time, ticket: Ticket, bytes: usize) -> (bool, Vec<Message>) {
        let Some(mut filling) = self.filling.remove(&ticket) else { return (false, Vec::new()) };
        let at = filling.header.at;
        let shard = self.shard(at);
        if let Some(place) = shard.fill(ticket) {
            let n = bytes.min(place.len());
            place[..n].copy_from_slice(&filling.payload[filling.written..filling.written + n]);
            shard.filled(ticket, n);
            filling.written += n;
        } else {
            // The block was freed meanwhile: the rest is thrown away.
            filling.written = filling.payload.len();
        }
        if filling.written < filling.payload.len() {
            self.filling.insert(ticket, filling);
            return (true, self.settle());
        }
        self.waiting.insert(ticket, (filling.to, filling.header));
        self.shard(at).commit(now, ticket);
        (false, self.settle())
    }

    /// The connection that brought a payload breaks.
    pub fn cut(&mut self, now: Time, ticket: Ticket) -> Vec<Message> {
        if let Some(filling) = self.filling.remove(&ticket) {
            self.shard(filling.header.at).abort(now, ticket);
        }
        self.settle()
    }

    /// Carries out what the controller ordered; whether it could be done.
    pub fn order(&mut self, now: Time, order: &Order) -> (bool, Vec<Message>, Option<BlockAt>) {
        let (done, opened) = match order {
            Order::OpenBlock {
                at,
                job,
                prefix,
                structure,
                generation,
                kind,
                start,
                end,
                slots,
                max_items,
                max_bytes,
                first,
                marks,
                ..
            } => {
                let owner = BlockOwner {
                    at: *at,
                    job: *job,
                    prefix: *prefix,
                    structure: *structure,
                    generation: *generation,
                    kind: *kind,
                    start: *start,
                    end: *end,
                    slots: *slots,
                    max_items: *max_items,
                    max_bytes: *max_bytes,
                    first: *first,
                    marks: *marks,
                    importing: 0,
                };
                (self.shard(*at).open(owner).is_ok(), Some(*at))
            }
            Order::FreeBlock { at, .. } => (self.shard(*at).free(*at), None),
            // What is written is the business of real processes; who reaches the block is ours.
            Order::FlushBlock { at, start, end, .. } => {
                (self.shard(*at).flush(*at, (*start, *end)).is_ok(), None)
            }
            Order::CommitFlush { .. } => (true, None),
            Order::SetGeneration { prefix, generation, .. } => {
                for shard in &mut self.shards {
                    shard.set_generation(*prefix, *generation);
                }
                (true, None)
            }
            Order::QueueAhead { at, items, bytes, .. } => {
                let news = News::Ahead { items: *items, bytes: *bytes };
                self.shard(*at).tell(now, *at, news);
                (true, None)
            }
            // No block of these servers asks for a move, so none is told of one.
            Order::BeginImport { .. } | Order::EndImport { .. } => (false, None),
        };
        (done, self.settle(), opened)
    }

    /// The connection on which a request came is gone.
    pub fn hang_up(&mut self, to: TryId) -> Vec<Message> {
        let gone: Vec<(Ticket, BlockAt)> = self
            .waiting
            .iter()
            .filter(|(_, (waiting, _))| *waiting == to)
            .map(|(ticket, (_, header))| (*ticket, header.at))
            .collect();
        for (ticket, at) in gone {
            self.waiting.remove(&ticket);
            self.shard(at).hang_up(ticket);
        }
        self.settle()
    }

    /// Takes everything that a queue's block has, as a consumer would.
    pub fn take_all(
        &mut self,
        now: Time,
        opened: &honeycomb_catalog::Opened,
        at: BlockAt,
    ) -> Vec<(u32, Vec<u8>)> {
        let grant = Grant {
            job: opened.job,
            prefix: opened.prefix,
            structure: opened.structure,
            verbs: opened.verbs,
            generation: opened.generation,
            expires_ms: u64::MAX,
        };
        let access = Access {
            session: SessionId(u128::MAX - 1),
            window: 16,
            grant: Some(grant),
            peer: false,
        };
        let mut args = Vec::new();
        GetArgs { items: 1, bytes: 1, reserve_ms: 0, stay: true }.put(&mut args);
        let mut items = Vec::new();
        for sequence in 1.. {
            let sequence = honeycomb_types::Sequence(sequence);
            let lane = honeycomb_types::LaneId(1);
            let op = RequestHeader::new(Op::QueueGet);
            let header = RequestHeader { at, grant: 1, lane, sequence, ack_lag: 1, ..op };
            let ticket = self.ticket();
            let outcome = self.shard(at).apply(now, &access, &header, &args, &[], ticket);
            let Outcome::Done(Answer { status: Status::Ok, payload, args, .. }) = outcome else {
                break;
            };
            let bytes = match payload {
                Payload::Bytes(bytes) => bytes.to_vec(),
                Payload::Pinned(pin) => pin.bytes().to_vec(),
                _ => Vec::new(),
            };
            let told = Items::decode(&args, bytes.len()).expect("a block's answer can be read");
            items.push((told.deliveries, bytes));
        }
        items
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) -> Vec<Message> {
        for shard in &mut self.shards {
            shard.tick(now);
        }
        self.settle()
    }

    /// Answers that were set free, and what the shards want from the controller.
    pub fn settle(&mut self) -> Vec<Message> {
        let mut out = Vec::new();
        for ix in 0..self.shards.len() {
            while let Some((ticket, answer)) = self.shards[ix].completed() {
                let filling = self.filling.remove(&ticket).map(|f| (f.to, f.header));
                if let Some((to, header)) = self.waiting.remove(&ticket).or(filling) {
                    out.push(self.reply(to, &header, answer));
                }
            }
            let effects: Vec<Effect> = self.shards[ix].take_effects();
            let server = self.id;
            out.extend(effects.into_iter().map(|effect| Message::Asked { server, effect }));
        }
        out
    }

    fn reply(&mut self, to: TryId, header: &RequestHeader, answer: Answer) -> Message {
        let payload = match answer.payload {
            Payload::None => Vec::new(),
            Payload::Bytes(bytes) => bytes.to_vec(),
            Payload::Pinned(pin) => pin.bytes().to_vec(),
            Payload::Block(range) => self.shard(header.at).bytes(header.at, range).to_vec(),
        };
        Message::Reply {
            to,
            status: answer.status,
            value: answer.value,
            args: answer.args,
            payload,
        }
    }
}
