//! The workload on queues: puts and gets of several kinds, and the judgement of their results.

use crate::client::{Active, note_end};
use crate::large::{Large, Written};
use crate::net::Node;
use crate::queue::{Given, HEAD, Key, Span, item};
use crate::server::{Item, Next};
use crate::storing::has_no_room;
use crate::world::{Known, World};
use honeycomb_catalog::{Actor, Command, Opened, Reply};
use honeycomb_client::{Error, Target};
use honeycomb_types::{BlockAt, Kind, LaneId, Sequence, StructureId, Time};
use honeycomb_wire::extents::{PutExtents, StoredWhen, extents, list_below};
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::queue::{AckAction, AckArgs, GetArgs, GetExtentsArgs, Items, put_lengths};
use honeycomb_wire::{Op, ReplyHeader, Status};
use std::time::Duration;

/// Items of one queue in a run: enough to fill blocks, few enough to judge their order.
const ITEMS_MAX: usize = 400;

/// Bytes of an item's entry in the block's index.
const PLACE: usize = 4;

/// The time for which a consumer reserves an item in extents that it takes. Its reads take longer now and
/// then.
const READ_WITHIN_MS: u32 = 300;

/// An operation on a queue.
#[derive(Debug, Clone)]
pub enum QueueDoes {
    Put(Vec<(Key, usize)>),
    /// A put of an item that is too large for a block.
    PutLarge(Key, usize),
    Get {
        items: u32,
        reserve_ms: u32,
    },
    /// Rewrites the extents of a reserved item, if it still has those.
    Carry {
        held: Held,
        list: Vec<u8>,
        length: usize,
    },
    /// Checks a block that was left behind.
    LookBack {
        at: BlockAt,
    },
    Settle {
        action: AckAction,
        held: Held,
    },
    Close,
}

/// An operation on a queue, and how long it waits at the server.
#[derive(Debug, Clone)]
pub struct Queueing {
    pub kind: QueueDoes,
    pub wait: Duration,
}

/// A reserved item.
#[derive(Debug, Clone)]
pub struct Held {
    structure: StructureId,
    at: BlockAt,
    number: u64,
    deliveries: u32,
    key: Key,
}

/// The bounds of a new structure.
pub fn bounds(world: &mut World, kind: Kind) -> (u64, u64) {
    if kind != Kind::Queue {
        return (0, 0);
    }
    match world.rng.below(4) {
        0 => (0, 0),
        1 => (1 + world.rng.below(4), 0),
        2 => (20 + world.rng.below(60), 0),
        _ => (0, 30_000 + world.rng.below(200_000)),
    }
}

/// Chooses an operation.
pub fn choose(world: &mut World, task: usize, structure: StructureId) -> Queueing {
    let wait = match world.rng.below(3) {
        0 => Duration::ZERO,
        _ => Duration::from_millis(world.rng.below(120)),
    };
    let session = world.tasks[task].session();
    let left = world.routings.get(&(session, structure)).map_or(&[][..], |r| &r.left);
    let left = left.first().map(MapEntry::at);
    let full = world.structures[&structure].queue.len() >= ITEMS_MAX;
    // Some tasks mostly put, others mostly take, so that queues fill and drain.
    let puts = if (task as u64 + structure.0).is_multiple_of(2) { 7 } else { 3 };
    let kind = match world.rng.below(12) {
        n if n < puts && !full => put(world, task, structure),
        9 if !world.tasks[task].held.is_empty() => settle(world, task, structure),
        10 if left.is_some() => QueueDoes::LookBack { at: left.expect("just seen") },
        11 if world.rng.chance(20_000) => {
            let now = world.now;
            let known = world.structures.get_mut(&structure).expect("just chosen");
            known.queue.closing.get_or_insert(now);
            QueueDoes::Close
        }
        _ => QueueDoes::Get {
            items: 1 + world.rng.below(5) as u32,
            reserve_ms: if world.rng.chance(300_000) {
                20 + world.rng.below(200) as u32
            } else {
                0
            },
        },
    };
    Queueing { kind, wait }
}

fn put(world: &mut World, task: usize, structure: StructureId) -> QueueDoes {
    let known = &world.structures[&structure].queue;
    let (max_items, max_bytes) = (known.max_items, known.max_bytes);
    if world.rng.chance(world.faults.large)
        && let Some(put) = put_large(world, task, structure)
    {
        return put;
    }
    let most = if max_items == 0 { 4 } else { max_items.min(4) };
    let count = if world.rng.chance(300_000) { 1 + world.rng.below(most) } else { 1 };
    let large = count == 1 && world.rng.chance(600_000);
    // The index entry of each item counts too.
    let mut most_bytes = world.sizes.limit() - PLACE * count as usize;
    if max_bytes > 0 {
        most_bytes = most_bytes.min(max_bytes as usize);
    }
    let items = (0..count).map(|_| {
        world.tasks[task].appended += 1;
        let key = (task as u32, world.tasks[task].appended);
        let mut length = world.rng.below(if large { 8000 } else { 1500 }) as usize;
        if world.sizes.drawn {
            length = world.sizes.written(HEAD, most_bytes / count as usize);
        }
        (key, item(key, length).len())
    });
    let items: Vec<_> = items.collect();
    assert!(max_bytes == 0 || items.iter().map(|i| i.1 as u64).sum::<u64>() <= max_bytes);
    let now = world.now;
    world.structures.get_mut(&structure).expect("just chosen").queue.asked(now, &items);
    QueueDoes::Put(items)
}

/// A put of a large item, unless the bound of the queue is too small for one.
fn put_large(world: &mut World, task: usize, structure: StructureId) -> Option<QueueDoes> {
    let length = world.sizes.large();
    let max_bytes = world.structures[&structure].queue.max_bytes;
    if max_bytes > 0 && length as u64 > max_bytes {
        return None;
    }
    world.tasks[task].appended += 1;
    let key = (task as u32, world.tasks[task].appended);
    let now = world.now;
    let known = world.structures.get_mut(&structure).expect("just chosen");
    known.queue.asked(now, &[(key, length)]);
    Some(QueueDoes::PutLarge(key, length))
}

fn settle(world: &mut World, task: usize, structure: StructureId) -> QueueDoes {
    let at = world.rng.below(world.tasks[task].held.len() as u64) as usize;
    if let Some((list, length)) = last_list(world, structure, &world.tasks[task].held[at])
        && world.rng.chance(300_000)
    {
        let held = world.tasks[task].held[at].clone();
        return QueueDoes::Carry { held, list, length };
    }
    let held = world.tasks[task].held.swap_remove(at);
    let action = if world.rng.chance(200_000) { AckAction::GiveBack } else { AckAction::Done };
    QueueDoes::Settle { action, held }
}

/// The only list of a held item's extents, with its length. An item that was rewritten has several.
fn last_list(world: &World, structure: StructureId, held: &Held) -> Option<(Vec<u8>, usize)> {
    let known = world.structures.get(&structure).filter(|_| held.structure == structure)?;
    let mut lists = known.lists.iter().filter_map(|(list, of)| match of {
        Written::Item(key, length) if *key == held.key => Some((list.clone(), *length)),
        _ => None,
    });
    lists.next().filter(|_| lists.next().is_none())
}

impl Queueing {
    /// The structure that it must use, if that cannot be chosen freely.
    pub fn structure(&self) -> Option<StructureId> {
        match &self.kind {
            QueueDoes::Settle { held, .. } | QueueDoes::Carry { held, .. } => Some(held.structure),
            _ => None,
        }
    }

    /// The item that it writes as extents.
    pub fn written(&self) -> Option<Written> {
        match &self.kind {
            QueueDoes::PutLarge(key, length) => Some(Written::Item(*key, *length)),
            QueueDoes::Carry { held, length, .. } => Some(Written::Item(held.key, *length)),
            _ => None,
        }
    }

    /// The request for the extents of the next item, if it gets items.
    pub fn claim(&self) -> Option<(Target, GetExtentsArgs)> {
        match self.kind {
            QueueDoes::Get { reserve_ms, .. } => {
                let reserve_ms = if reserve_ms == 0 { READ_WITHIN_MS } else { reserve_ms };
                Some((Target::Head, GetExtentsArgs { reserve_ms, stay: false }))
            }
            QueueDoes::LookBack { at } => {
                let args = GetExtentsArgs { reserve_ms: READ_WITHIN_MS, stay: true };
                Some((Target::Block(at), args))
            }
            _ => None,
        }
    }

    /// Whether it reserves items.
    pub fn reserves(&self) -> bool {
        matches!(self.kind, QueueDoes::Get { reserve_ms, .. } if reserve_ms > 0)
    }

    /// The request.
    pub fn lay_out(&self) -> (Op, Target, Vec<u8>, Vec<u8>) {
        let mut args = Vec::new();
        match &self.kind {
            QueueDoes::Put(items) => {
                let bytes: Vec<Vec<u8>> = items.iter().map(|(key, len)| item(*key, *len)).collect();
                let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
                put_lengths(&slices, &mut args);
                (Op::QueuePut, Target::Tail, args, bytes.concat())
            }
            QueueDoes::PutLarge(..) => (Op::QueuePutExtents, Target::Tail, vec![0], Vec::new()),
            QueueDoes::Carry { held, list, .. } => {
                let key = held.number.to_le_bytes();
                let put = PutExtents { when: StoredWhen::Still(list), key: &key, list: &[] };
                let (args, payload) = put.encode();
                (Op::QueuePutExtents, Target::Block(held.at), args, payload)
            }
            QueueDoes::Get { items, reserve_ms } => {
                let (items, reserve_ms) = (*items, *reserve_ms);
                GetArgs { items, bytes: 9000, reserve_ms, stay: false }.put(&mut args);
                (Op::QueueGet, Target::Head, args, Vec::new())
            }
            QueueDoes::LookBack { at } => {
                GetArgs { items: 1, bytes: 9000, reserve_ms: 0, stay: true }.put(&mut args);
                (Op::QueueGet, Target::Block(*at), args, Vec::new())
            }
            QueueDoes::Settle { action, held } => {
                let items = vec![(held.number, held.deliveries)];
                let args = AckArgs { action: *action, timeout_ms: 0, items }.encode();
                (Op::QueueAck, Target::Block(held.at), args, Vec::new())
            }
            QueueDoes::Close => (Op::QueueClose, Target::Tail, args, Vec::new()),
        }
    }
}

/// Compares the result of an operation with the model.
pub fn finished(
    known: &mut Known,
    active: &Active,
    queueing: &Queueing,
    result: &Result<ReplyHeader, Error>,
    now: Time,
    held: &mut Vec<Held>,
) -> Result<(), String> {
    let span = Span { begin: active.begin, end: now };
    let header = match result {
        Ok(header) => header,
        Err(e) => return failed(known, queueing, span, e),
    };
    match &queueing.kind {
        QueueDoes::Put(items) => known.queue.put(span, items),
        QueueDoes::PutLarge(key, length) => known.queue.put(span, &[(*key, *length)]),
        QueueDoes::Carry { .. } => Ok(()),
        QueueDoes::Close => {
            known.queue.closed.get_or_insert(now);
            Ok(())
        }
        QueueDoes::Settle { action, held } => match (action, header.value) {
            (AckAction::Done, 1) => known.queue.settled(span, held.key, held.deliveries),
            _ => Ok(()),
        },
        QueueDoes::Get { .. } if header.status == Status::QueueEmpty => {
            known.queue.empty(span);
            Ok(())
        }
        QueueDoes::LookBack { .. } if header.status == Status::QueueEmpty => Ok(()),
        QueueDoes::Get { .. } | QueueDoes::LookBack { .. } => {
            let reserve = queueing.reserves();
            let told =
                Items::decode(&active.told, active.found.len()).map_err(|e| e.to_string())?;
            let mut rest = &active.found[..];
            let items = told.lengths.iter().map(|length| {
                let (item, others) = rest.split_at(*length as usize);
                rest = others;
                item.to_vec()
            });
            let items: Vec<Vec<u8>> = items.collect();
            let how = Given { delivery: told.deliveries, reserved: reserve };
            let keys = known.queue.given(span, how, &items)?;
            if reserve {
                let answered =
                    || active.call.entry().expect("the block of an answered call is known");
                let claimed = active.large.as_ref().and_then(Large::claimed);
                let at = claimed.unwrap_or_else(|| answered().at());
                let structure = known.opened.structure;
                let deliveries = told.deliveries;
                held.extend(keys.into_iter().zip(told.first..).map(|(key, number)| Held {
                    structure,
                    at,
                    number,
                    deliveries,
                    key,
                }));
            }
            Ok(())
        }
    }
}

fn failed(known: &mut Known, queueing: &Queueing, span: Span, e: &Error) -> Result<(), String> {
    let ended = matches!(e.status, Status::DataLost | Status::LeaseExpired | Status::Removed);
    if e.status == Status::OutcomeUnknown && e.message.contains("the block that may") && !known.lost
    {
        return Err(format!("an answer could not be asked for again: {e}"));
    }
    note_end(known, e)?;
    let unknown = match e.status {
        Status::OutcomeUnknown => true,
        Status::DeadlineExceeded => e.message.contains("may have taken effect"),
        // A copy of the request, which only this world makes, may have been in progress when the
        // structure ended.
        _ => ended,
    };
    match &queueing.kind {
        QueueDoes::Put(items) => put_failed(known, items, unknown, span, e),
        // The extents may have been gone in every try.
        QueueDoes::PutLarge(key, length) if e.status == Status::Busy => {
            known.queue.refused(&[(*key, *length)])
        }
        QueueDoes::PutLarge(key, length) => put_failed(known, &[(*key, *length)], unknown, span, e),
        QueueDoes::Carry { .. } => match e.status {
            Status::UnknownBlock | Status::DeadlineExceeded | Status::Busy => Ok(()),
            status if has_no_room(status) => Ok(()),
            _ if unknown || ended => Ok(()),
            _ => Err(format!("an evacuation ended with {e}")),
        },
        QueueDoes::Get { items, reserve_ms } => match e.status {
            _ if unknown && *reserve_ms == 0 => {
                known.queue.swallow(*items as usize);
                Ok(())
            }
            Status::QueueClosed => {
                known.queue.ended(span);
                Ok(())
            }
            _ if unknown => {
                known.queue.haze();
                Ok(())
            }
            // The extents of the next item were gone in every try.
            Status::Busy | Status::DeadlineExceeded => Ok(()),
            _ if ended => Ok(()),
            _ => Err(format!("a get ended with {e}")),
        },
        QueueDoes::LookBack { .. } => match e.status {
            _ if unknown => {
                known.queue.swallow(1);
                Ok(())
            }
            Status::QueueClosed => {
                known.queue.ended(span);
                Ok(())
            }
            Status::UnknownBlock | Status::DeadlineExceeded | Status::Busy => Ok(()),
            _ if ended => Ok(()),
            _ => Err(format!("a look back ended with {e}")),
        },
        QueueDoes::Settle { action, .. } => match e.status {
            // Whether it was taken is unknown: then it need not be returned.
            _ if unknown && *action == AckAction::Done => {
                known.queue.swallow(1);
                Ok(())
            }
            Status::UnknownBlock | Status::DeadlineExceeded => Ok(()),
            _ if unknown || ended => Ok(()),
            _ => Err(format!("an acknowledgement ended with {e}")),
        },
        QueueDoes::Close => match e.status {
            _ if unknown || ended || e.status == Status::DeadlineExceeded => Ok(()),
            Status::OutOfMemory | Status::QuotaExceeded | Status::Unavailable => Ok(()),
            _ => Err(format!("a close ended with {e}")),
        },
    }
}

fn put_failed(
    known: &mut Known,
    items: &[(Key, usize)],
    unknown: bool,
    span: Span,
    e: &Error,
) -> Result<(), String> {
    match e.status {
        _ if unknown => known.queue.put(Span { end: Time::NEVER, ..span }, items),
        Status::QueueFull
        | Status::OutOfMemory
        | Status::QuotaExceeded
        | Status::Unavailable
        | Status::DeadlineExceeded => known.queue.refused(items),
        Status::QueueClosed if known.queue.closing.is_some() => known.queue.refused(items),
        _ => Err(format!("a put ended with {e}")),
    }
}

/// Empties every existing queue, directly from its blocks, and judges it as a whole.
pub fn judge(world: &mut World) {
    let queues: Vec<StructureId> = world
        .structures
        .iter()
        .filter(|(_, k)| k.opened.kind == Kind::Queue)
        .map(|(id, _)| *id)
        .collect();
    for structure in queues {
        let known = world.structures.get_mut(&structure).expect("listed just now");
        let mut judged = known.queue.history();
        if !known.gone {
            let left = empty_out(world, structure);
            let now = world.now;
            let known = world.structures.get_mut(&structure).expect("listed just now");
            if let Some(left) = left {
                judged = judged.and_then(|()| known.queue.whole(now, &left));
            }
        }
        if let Err(what) = judged {
            let known = &world.structures[&structure];
            let place = format!("{}:{}", known.path, known.name);
            return world.broken(format!("{place}, as a whole: {what}"));
        }
    }
}

/// The content of a queue; `None` if the queue has ended meanwhile.
fn empty_out(world: &mut World, structure: StructureId) -> Option<Vec<Item>> {
    let mut items = Vec::new();
    // During the wait for one block others move: the remaining items are at the new places.
    for lane in 1..=100 {
        match empty_blocks(world, structure, lane, &mut items)? {
            true => return Some(items),
            false => world.pass(Duration::from_millis(5)),
        }
    }
    world.broken(format!("the blocks of {structure:?} go on moving for ever"));
    None
}

/// The bytes of a list of extents, directly from their blocks.
fn read_extents(world: &mut World, opened: &Opened, list: &[u8]) -> Vec<u8> {
    let mut parts = Vec::new();
    for extent in extents(list).expect("a block's answer can be read") {
        let server = world.servers.iter_mut().find(|s| s.is(extent.at.block.server()));
        match server.and_then(|server| server.extent(opened, extent)) {
            Some(found) => parts.push(found),
            None => world.broken(format!("an item names {extent:?}, which is gone (INV-39)")),
        }
    }
    let bytes = parts.concat();
    match list_below(list, &bytes) {
        Ok(Some(below)) => read_extents(world, opened, &below),
        Ok(None) => bytes,
        Err(e) => {
            world.broken(format!("the lists of an item contradict their head: {e} (INV-63)"));
            Vec::new()
        }
    }
}

/// Takes the content of the queue's present blocks; returns false if one has moved meanwhile.
fn empty_blocks(
    world: &mut World,
    structure: StructureId,
    lane: u32,
    items: &mut Vec<Item>,
) -> Option<bool> {
    let id = world.jobs[world.structures[&structure].job].id;
    let command = Command::ReopenStructure { actor: Actor::driver(id), job: id, structure };
    let Ok(Reply::Opened(opened)) = world.command_of(id, command) else { return None };
    for entry in &opened.map.entries {
        let (at, mut tries) = (entry.at, 0);
        let mut lane = (LaneId(lane), Sequence(1));
        loop {
            let ix = world.servers.iter().position(|s| s.is(at.block.server()));
            // It moved, and its server has ended.
            let Some(ix) = ix else { return Some(false) };
            let now = world.local(Node::Server(ix));
            match world.servers[ix].take_next(now, &opened, at, &mut lane) {
                Ok(Some(Next::Item(item))) => items.push(item),
                Ok(Some(Next::List(item, list))) => {
                    let bytes = read_extents(world, &opened, &list);
                    items.push((item.deliveries, bytes));
                    world.reach("item in extents left");
                    world.servers[ix].take_list(now, &opened, at, &mut lane, item);
                }
                Ok(None) => break,
                Err((Status::WrongEpoch | Status::UnknownBlock, _)) => return Some(false),
                // It is in a lower tier, and others must leave the write cache for it.
                Err((_, why)) if tries == 1000 => {
                    world.broken(format!("{at:?} is busy for 5 s: {why}"));
                    return None;
                }
                Err(_) => {
                    tries += 1;
                    world.pass(Duration::from_millis(5));
                    continue;
                }
            }
        }
    }
    Some(true)
}
