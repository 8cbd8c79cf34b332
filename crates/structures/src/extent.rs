//! A block of extents: the parts of values that are too large for the entries of a key-value store, or for
//! the blocks of a queue.
//!
//! An extent is written once, under an id that the block never reuses, and does not change until it is
//! dropped. Within `EXTENT_PENDING_MS`, a put that names the extent must adopt it (`owner`); otherwise the
//! extent is dropped. An adopted extent stays until its owner drops it.
//!
//! So a pending extent has an end time, and an adopted extent belongs to an entry. If the same bytes are
//! written twice, because an answer was lost, one of the two extents gets no owner and expires. Therefore
//! writes of extents need no lanes.
//!
//! An extent may be a list of other extents (ADR 0059). Its put adopts them as an entry does, and when the
//! list is dropped, they are dropped too. The bytes of a list are on the heap, and its room in the block is
//! not written: so a list can be dropped while the block is in a lower tier.

use crate::adopting::Adopting;
use crate::kv::arena::{Arena, Owner, round_up};
use crate::kv::shrink::Shrink;
use crate::{
    Adopted, Adopts, Answer, Content, Event, Operation, Ops, Outcome, Payload, Rest, Snapshot,
    Streaming, Structure, Ticket, Waits, busy, large_limit,
};
use hashbrown::HashMap;
use honeycomb_block::Backing;
use honeycomb_types::limits::{EXTENT_PENDING_MS, EXTENT_REF, EXTENTS_IDLE, extents_per_list};
use honeycomb_types::{Bug, Time};
use honeycomb_wire::extents::{ExtentRef, PutExtents, StoredWhen, extents};
use honeycomb_wire::{Field, Malformed, Op, Reader, Status};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Bookkeeping bytes for each extent, outside of the block.
const EXTENT_COST: usize = 128;
/// How often to inspect dropped extents that are still being read.
const SWEEP_AGAIN: Duration = Duration::from_millis(50);
/// Delay of a repeated put of a list whose first one is under way, in microseconds.
const LIST_AGAIN_US: u64 = 5_000;
/// Bookkeeping may take the block's size divided by this, in addition to the charged bytes. Extents of kvs
/// have at least 1/16 of a block each, so only writers of other extents come near the bound.
const COST_FRACTION: usize = 16;

/// The owner of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExtentOwner {
    /// No owner yet; the extent is dropped at this time.
    Pending(Time),
    /// The entry that this put has made.
    Adopted(u64),
}

#[derive(Clone, Copy, Debug)]
struct OwnedExtent {
    at: usize,
    len: usize,
    state: ExtentOwner,
}

/// A payload that is arriving.
struct ArrivingPayload {
    at: usize,
    len: usize,
    filled: usize,
}

/// Extents that are lists, and those that will be.
#[derive(Default)]
struct Lists {
    adopting: Adopting,
    /// The room of each list whose extents are being adopted.
    rooms: BTreeMap<Ticket, Range<usize>>,
    /// The owner of the extents of each list, and the list, by its id.
    stored: BTreeMap<u64, (u64, Arc<[u8]>)>,
}

impl Lists {
    /// The id of this list, if it is stored: its extents have one owner, so a second one is a repetition.
    fn id_of(&self, list: &[u8]) -> Option<u64> {
        self.stored.iter().find(|(_, (_, stored))| **stored == *list).map(|(id, _)| *id)
    }

    fn get(&self, id: u64) -> Option<Arc<[u8]>> {
        self.stored.get(&id).map(|(_, list)| list.clone())
    }

    fn is_waiting(&self, list: &[u8]) -> bool {
        self.adopting.parked(|put| put.list == list, |_| 0).0 > 0
    }
}

/// The extents of a list that can be an extent of a block of this size.
fn admit(size: usize, args: &[u8], payload: &[u8]) -> Result<Vec<ExtentRef>, Answer> {
    let refuse = |text: String| Answer::refuse(Status::InvalidArgument, text);
    let references = extents_per_list(size as u64);
    if payload.len() as u64 > references * EXTENT_REF as u64 {
        let text =
            format!("a list of {} bytes; the limit is {references} references", payload.len());
        return Err(Answer::refuse(Status::ValueTooLarge, text));
    }
    let PutExtents { when: StoredWhen::Always, key: [], list } = PutExtents::decode(args, payload)?
    else {
        return Err(refuse("the arguments of ExtentPutList are mode 0".into()));
    };
    let (list, most) = (extents(list)?, large_limit(size));
    if list.is_empty() || list.iter().any(|e| e.len == 0 || e.len as usize > most) {
        return Err(refuse(format!("each extent of a list has 1 to {most} bytes")));
    }
    // So the heap bytes of lists are bounded by the number of extents.
    let all: HashSet<_> = list.iter().map(|extent| (extent.at, extent.id)).collect();
    match all.len() == list.len() {
        true => Ok(list),
        false => Err(refuse("a list names an extent twice".into())),
    }
}

/// One block of extents.
pub struct ExtentBlock {
    size: usize,
    arena: Arena,
    extents: BTreeMap<u64, OwnedExtent>,
    /// Pending extents, by the time at which they are dropped.
    pending: BTreeSet<(Time, u64)>,
    fills: HashMap<Ticket, ArrivingPayload>,
    lists: Lists,
    last_id: u64,
    /// The largest end of all extents that ever existed: so many bytes are written to a lower tier and read
    /// from it, even if extents are dropped meanwhile.
    reach: usize,
    shrink: Shrink,
    /// It accepts nothing, because it has been empty for too long.
    closed: bool,
    /// It accepts nothing until this time, because its server is draining: its content is moved elsewhere.
    leaves: Time,
    /// Since when it has been empty, as far as it was inspected.
    empty_since: Option<Time>,
    /// The event that it is closed is due.
    drained: bool,
    /// When to check again for pins on dropped extents.
    sweep_at: Option<Time>,
}

impl ExtentBlock {
    /// An empty block of this size.
    pub fn new(block_size: usize) -> ExtentBlock {
        ExtentBlock {
            size: block_size,
            arena: Arena::new(block_size),
            extents: BTreeMap::new(),
            pending: BTreeSet::new(),
            fills: HashMap::new(),
            lists: Lists::default(),
            last_id: 0,
            reach: 0,
            shrink: Shrink::after(EXTENTS_IDLE),
            closed: false,
            leaves: Time::ZERO,
            empty_since: None,
            drained: false,
            sweep_at: None,
        }
    }

    /// The number of extents, and the number of those with an owner.
    pub fn counts(&self) -> (usize, usize) {
        (self.extents.len(), self.extents.len() - self.pending.len())
    }

    /// Panics unless the block is consistent. For tests.
    pub fn check(&self) {
        self.arena.check();
        let held = self.extents.values().map(|held| (held.at, held.len));
        let mut places: Vec<(usize, usize)> = held
            .chain(self.fills.values().map(|fill| (fill.at, fill.len)))
            .chain(self.lists.rooms.values().map(|room| (room.start, room.len())))
            .collect();
        places.sort_unstable();
        let used = self.arena.iter().filter(|extent| extent.owner != Owner::Zombie);
        let used: Vec<(usize, usize)> = used.map(|extent| (extent.at, extent.len)).collect();
        let places: Vec<(usize, usize)> =
            places.into_iter().map(|(at, len)| (at, round_up(len))).collect();
        assert_eq!(places, used, "extents and the arena's books agree");
        let pending = self.extents.iter().filter_map(|(id, held)| match held.state {
            ExtentOwner::Pending(due) => Some((due, *id)),
            ExtentOwner::Adopted(_) => None,
        });
        assert_eq!(pending.collect::<BTreeSet<_>>(), self.pending);
        for (id, (_, list)) in &self.lists.stored {
            let held = self.extents.get(id).map(|held| held.len);
            assert_eq!(held, Some(list.len()), "INV-63: list {id} is an extent");
        }
        assert!(!self.closed || self.is_empty());
    }

    /// Reserves a place for an extent.
    fn place(&mut self, block: &mut Backing, now: Time, len: usize) -> Result<usize, Answer> {
        if len == 0 {
            return Err(Answer::refuse(Status::InvalidArgument, "an extent has at least one byte"));
        }
        let limit = large_limit(self.size);
        if len > limit {
            let text = format!("an extent of {len} bytes is over the limit of {limit} (block / 8)");
            return Err(Answer::refuse(Status::ValueTooLarge, text));
        }
        let cost = (self.arena.extents() + 1) * EXTENT_COST;
        if self.closed || self.leaves > now || cost > self.size / COST_FRACTION {
            return Err(self.full(now, len));
        }
        self.arena.sweep(block);
        let owner = Owner::Large(self.last_id as u32);
        let at = self.arena.alloc(round_up(len), owner).ok_or_else(|| self.full(now, len))?;
        self.reach = self.reach.max(at + len);
        Ok(at)
    }

    fn full(&self, now: Time, len: usize) -> Answer {
        let why = match (self.closed, self.leaves > now) {
            (true, _) => "the block is about to be freed".to_owned(),
            (false, true) => "its server is draining".to_owned(),
            (false, false) => {
                format!("{} bytes are free, but not {len} contiguous ones", self.arena.free_bytes())
            }
        };
        Answer::refuse(Status::BlockFull, why)
    }

    /// Records an extent whose bytes have been written.
    fn keep(&mut self, now: Time, at: usize, len: usize) -> Answer {
        assert!(at + len <= self.size, "INV-39: an extent of {len} bytes at {at} of {}", self.size);
        self.last_id += 1;
        let due = now + Duration::from_millis(EXTENT_PENDING_MS);
        let held = OwnedExtent { at, len, state: ExtentOwner::Pending(due) };
        let before = self.extents.insert(self.last_id, held);
        assert!(before.is_none(), "INV-39: extent {} was numbered twice", self.last_id);
        self.pending.insert((due, self.last_id));
        Answer::ok(self.last_id)
    }

    fn put(&mut self, block: &mut Backing, now: Time, payload: &[u8]) -> Result<Answer, Answer> {
        let at = self.place(block, now, payload.len())?;
        block.slice_mut(at..at + payload.len()).copy_from_slice(payload);
        Ok(self.keep(now, at, payload.len()))
    }

    /// Parks a put of a list until it owns the extents that the list names.
    fn begin_list(
        &mut self,
        block: &mut Backing,
        operation: &Operation<'_>,
        payload: &[u8],
    ) -> Result<Option<Answer>, Answer> {
        let extents = admit(self.size, operation.args, payload)?;
        if let Some(id) = self.lists.id_of(payload) {
            self.keep_ids(operation.now, &[id])?;
            return Ok(Some(Answer::ok(id)));
        }
        if self.lists.is_waiting(payload) {
            return Err(busy(LIST_AGAIN_US));
        }
        let at = self.place(block, operation.now, payload.len())?;
        if let Err(refusal) = self.lists.adopting.park(operation, payload, extents) {
            self.arena.free(at);
            return Err(refusal);
        }
        self.lists.rooms.insert(operation.ticket, at..at + payload.len());
        Ok(None)
    }

    fn get(&self, args: &[u8]) -> Result<Answer, Answer> {
        let id = u64::decode(args)?;
        let held = self.extents.get(&id).ok_or_else(|| gone(id))?;
        Ok(Answer::ok(0).with(match self.lists.get(id) {
            Some(list) => Payload::Bytes(list),
            None => Payload::Block(held.at..held.at + held.len),
        }))
    }

    fn keep_on(&mut self, now: Time, args: &[u8]) -> Result<Answer, Answer> {
        self.keep_ids(now, &ids(args)?)?;
        Ok(Answer::ok(0))
    }

    fn keep_ids(&mut self, now: Time, ids: &[u64]) -> Result<(), Answer> {
        let due = now + Duration::from_millis(EXTENT_PENDING_MS);
        if self.leaves > now {
            // The value is written again elsewhere: the block has to leave.
            return Err(gone(ids.first().copied().unwrap_or_default()));
        }
        for &id in ids {
            let held = self.extents.get_mut(&id).ok_or_else(|| gone(id))?;
            if let ExtentOwner::Pending(before) = held.state {
                self.pending.remove(&(before, id));
                self.pending.insert((due, id));
                held.state = ExtentOwner::Pending(due);
            }
        }
        Ok(())
    }

    /// Adopts all of them or none.
    fn adopt(&mut self, args: &[u8]) -> Result<Answer, Answer> {
        let (owner, extents) = owner_and_ids(args)?;
        for id in &extents {
            match self.extents.get(id).map(|held| held.state) {
                Some(ExtentOwner::Pending(_)) => {}
                Some(ExtentOwner::Adopted(other)) if other == owner => {}
                Some(ExtentOwner::Adopted(_)) | None => return Err(gone(*id)),
            }
        }
        for id in extents {
            let held = self.extents.get_mut(&id).expect("looked up just now");
            if let ExtentOwner::Pending(due) =
                std::mem::replace(&mut held.state, ExtentOwner::Adopted(owner))
            {
                let timed = self.pending.remove(&(due, id));
                assert!(timed, "INV-39: extent {id} is adopted, and had no time without an owner");
            }
        }
        Ok(Answer::ok(0))
    }

    /// Drops those without an owner, and those of this owner.
    fn drop_some(&mut self, block: &mut Backing, args: &[u8]) -> Result<Answer, Answer> {
        let (owner, extents) = owner_and_ids(args)?;
        for id in extents {
            match self.extents.get(&id).map(|held| held.state) {
                None => {}
                Some(ExtentOwner::Adopted(other)) if other != owner => {}
                Some(_) => self.forget(block, id),
            }
        }
        Ok(Answer::ok(0))
    }

    fn forget(&mut self, block: &mut Backing, id: u64) {
        let held = self.extents.remove(&id).expect("the extent was just found");
        if let ExtentOwner::Pending(due) = held.state {
            let timed = self.pending.remove(&(due, id));
            assert!(timed, "INV-39: extent {id} is dropped, and had no time without an owner");
        }
        match self.lists.stored.remove(&id) {
            Some((owner, list)) => {
                self.arena.free(held.at);
                if !Bug::ListForgetsExtents.active() {
                    self.lists.adopting.drops(owner, &list);
                }
            }
            // Current readers still read the old content.
            None => self.arena.retire(block, held.at),
        }
    }

    fn is_empty(&self) -> bool {
        self.extents.is_empty() && self.fills.is_empty() && self.lists.rooms.is_empty()
    }

    /// The checks after every change: whether the block is empty, and whether there is memory to return.
    fn look(&mut self, now: Time) {
        self.shrink.look(&self.arena, self.size, now);
        self.sweep_at = (self.arena.zombie_bytes() > 0).then_some(now + SWEEP_AGAIN);
        match (self.is_empty(), self.empty_since) {
            (true, None) => self.empty_since = Some(now),
            (false, Some(_)) => self.empty_since = None,
            _ => {}
        }
    }
}

impl Structure for ExtentBlock {
    fn streaming(&mut self) -> Option<&mut dyn Streaming> {
        Some(self)
    }

    fn waits(&mut self) -> Option<&mut dyn Waits> {
        Some(self)
    }

    fn content(&self) -> Option<&dyn Content> {
        Some(self)
    }

    fn content_mut(&mut self) -> Option<&mut dyn Content> {
        Some(self)
    }

    fn adopts(&mut self) -> Option<&mut dyn Adopts> {
        Some(self)
    }
}

impl Ops for ExtentBlock {
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, payload: &[u8]) -> Outcome {
        let (now, args) = (operation.now, operation.args);
        self.arena.sweep_some(block);
        let result = match operation.op {
            Op::ExtentPut => no_arguments(args).and_then(|()| self.put(block, now, payload)),
            Op::ExtentPutList => match self.begin_list(block, operation, payload) {
                Ok(None) => {
                    self.look(now);
                    return Outcome::Parked;
                }
                Ok(Some(answer)) => Ok(answer),
                Err(refusal) => Err(refusal),
            },
            Op::ExtentGet => self.get(args),
            Op::ExtentKeep => self.keep_on(now, args),
            Op::ExtentAdopt => self.adopt(args),
            Op::ExtentDrop => self.drop_some(block, args),
            other => panic!("{} is no operation of a block of extents", other.name()),
        };
        self.look(now);
        Outcome::Done(result.unwrap_or_else(|refusal| refusal))
    }

    fn event(&mut self) -> Option<Event> {
        let drained = std::mem::take(&mut self.drained).then_some(Event::Drained);
        drained.or_else(|| self.lists.adopting.event())
    }

    /// Without the bookkeeping, which has a bound of its own: a client that sees space left in a block sends
    /// extents that fit, and eight of the largest extents fill it to the last byte.
    fn bytes_used(&self) -> u64 {
        (self.size - self.arena.free_bytes()) as u64
    }
}

impl Adopts for ExtentBlock {
    fn adopted(&mut self, _block: &mut Backing, now: Time, adopted: Adopted) {
        let Some(room) = self.lists.rooms.remove(&adopted.ticket) else { return };
        let mut adopting = std::mem::take(&mut self.lists.adopting);
        let (owner, mut stored) = (adopted.owner, false);
        adopting.complete(now, adopted, |put, _| {
            assert_eq!(room.len(), put.list.len(), "INV-63: the room is of the list");
            let answer = self.keep(now, room.start, room.len());
            self.lists.stored.insert(answer.value, (owner, put.list.into()));
            stored = true;
            Ok(Some(answer))
        });
        if !stored {
            self.arena.free(room.start);
        }
        self.lists.adopting = adopting;
        self.look(now);
    }
}

impl Streaming for ExtentBlock {
    fn reserve(
        &mut self,
        block: &mut Backing,
        operation: &Operation<'_>,
        length: usize,
    ) -> Result<(), Answer> {
        no_arguments(operation.args)?;
        let at = self.place(block, operation.now, length)?;
        self.fills.insert(operation.ticket, ArrivingPayload { at, len: length, filled: 0 });
        self.look(operation.now);
        Ok(())
    }

    fn fill<'b>(&mut self, block: &'b mut Backing, ticket: Ticket) -> &'b mut [u8] {
        let fill = self.fills.get(&ticket).expect("the shard names reservations that are open");
        let (from, to) = (fill.at + fill.filled, fill.at + fill.len);
        if Bug::ExtentFillsMixed.active()
            && let Some(first) = self.fills.values().map(|fill| fill.at).min()
        {
            return block.slice_mut(first + fill.filled..first + fill.len);
        }
        block.slice_mut(from..to)
    }

    fn filled(&mut self, ticket: Ticket, n: usize) {
        let fill = self.fills.get_mut(&ticket).expect("the shard names reservations that are open");
        fill.filled += n;
        assert!(fill.filled <= fill.len, "more was filled than was reserved");
    }

    fn commit(&mut self, _block: &mut Backing, now: Time, ticket: Ticket) -> Outcome {
        let fill = self.fills.remove(&ticket).expect("the shard ends reservations that are open");
        assert_eq!(fill.filled, fill.len, "INV-07: only a complete payload is committed");
        Outcome::Done(self.keep(now, fill.at, fill.len))
    }

    fn abort(&mut self, _block: &mut Backing, now: Time, ticket: Ticket) {
        let fill = self.fills.remove(&ticket).expect("the shard ends reservations that are open");
        self.arena.free(fill.at);
        self.look(now);
    }
}

impl Waits for ExtentBlock {
    fn tick(&mut self, block: &mut Backing, now: Time) {
        while let Some(&(due, id)) = self.pending.first() {
            if due > now {
                break;
            }
            self.forget(block, id);
        }
        self.arena.sweep(block);
        self.look(now);
        if block.floor() > 0 {
            self.demoted();
        } else if self.shrink.is_due(&self.arena, self.size, now) {
            self.shrink.give_back(&mut self.arena, self.size, block, now);
        }
        if !self.closed && self.empty_since.is_some_and(|since| since + EXTENTS_IDLE <= now) {
            assert!(self.is_empty(), "INV-39: a block with extents is retired");
            (self.closed, self.drained) = (true, true);
        }
    }

    fn deadline(&self) -> Option<Time> {
        let pending = self.pending.first().map(|(due, _)| *due);
        // A block without a time, because nothing was written to it yet, is inspected at once.
        let idle = || self.empty_since.map_or(Time::ZERO, |since| since + EXTENTS_IDLE);
        let idle = (!self.closed && self.is_empty()).then(idle);
        [pending, idle, self.shrink.due(), self.sweep_at].into_iter().flatten().min()
    }
}

impl Content for ExtentBlock {
    /// The extents with an owner, each as: id u64, length u32, bytes.
    fn snapshot(&self, _range: (u64, u64)) -> Snapshot {
        let adopted =
            self.extents.iter().filter(|(_, h)| matches!(h.state, ExtentOwner::Adopted(_)));
        let places = adopted
            .map(|(id, held)| (*id, held.at..held.at + held.len, self.lists.get(*id)))
            .collect::<Vec<_>>();
        Snapshot::items(self.reach, move |bytes, out| {
            for (id, place, list) in &places {
                let length = (place.len() as u32).to_le_bytes();
                let extent = list.as_deref().unwrap_or(&bytes[place.clone()]);
                out.item(&[&id.to_le_bytes(), &length, extent])?;
            }
            Ok(())
        })
    }

    fn rests(&self) -> Rest {
        match self.fills.is_empty() && self.lists.rooms.is_empty() {
            true => Rest::Pieces(self.reach),
            false => Rest::Busy,
        }
    }

    /// In a lower tier, the room of dropped extents becomes free only when the block is empty.
    fn demoted(&mut self) {
        self.arena.forget_slack();
        self.shrink = self.shrink.anew();
    }

    fn refuse_content_until(&mut self, until: Time) -> bool {
        self.leaves = until;
        true
    }
}

fn no_arguments(args: &[u8]) -> Result<(), Answer> {
    match args.is_empty() {
        true => Ok(()),
        false => Err(Answer::refuse(Status::BadFrame, "ExtentPut takes no arguments")),
    }
}

fn gone(id: u64) -> Answer {
    Answer::refuse(Status::ExtentGone, format!("extent {id} does not exist, or no longer does"))
}

/// The arguments of `ExtentAdopt` and `ExtentDrop` as a shard forwards them: the owner, and the ids in this
/// block.
fn owner_and_ids(args: &[u8]) -> Result<(u64, Vec<u64>), Malformed> {
    let mut all = ids(args)?.into_iter();
    let owner = all.next().ok_or_else(|| Reader::new(args).malformed("the owner is missing"))?;
    Ok((owner, all.collect()))
}

/// The ids of `ExtentKeep`.
fn ids(args: &[u8]) -> Result<Vec<u64>, Malformed> {
    let mut from = Reader::new(args);
    let mut ids = Vec::with_capacity(args.len() / 8);
    while !from.is_empty() {
        ids.push(u64::get(&mut from)?);
    }
    Ok(ids)
}
