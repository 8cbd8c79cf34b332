//! A block of a key-value store.
//! The path of a `put()`: `mod.rs` checks it and applies its rules; `table.rs` finds and stores the entry, in
//! the region that `ranges.rs` names; `region.rs` encodes its bytes, and `index.rs` its word in the index;
//! `room.rs` decides whether there is room, `heap.rs` makes it, and `pack.rs` collects scattered free bytes;
//! `arena.rs` records which bytes are in use. Large payloads arrive through `fills.rs`; `scan.rs` reads in
//! order; `batch.rs` runs many operations at once, and `accumulate.rs` combines values with operands.
//! `large.rs` has the rules for values that are lists of extents in blocks of their own, and `taking.rs`
//! deletes such a value after it was read; `below.rs` has the reads of a block in a lower tier.
//!
//! A block owns a range of hashes and divides it among *regions*: each a contiguous, position-independent run
//! of bytes with its own index, so that moving one is copying it. Values over `inline_max` have extents of
//! their own, written once, so that a reply can be sent straight from them. All of this counts against the
//! block's size, including the bookkeeping outside of the block.

mod accumulate;
pub(crate) mod arena;
mod batch;
mod below;
mod cut;
mod export;
mod fills;
mod heap;
mod import;
mod index;
mod large;
mod large_values;
mod overflow;
mod pack;
mod patches;
mod ranges;
mod region;
mod regions;
mod room;
mod scan;
pub(crate) mod shrink;
mod snapshot;
mod table;
mod taking;

use crate::events::Events;
use crate::moves::Movable;
use crate::{
    Adopts, Answer, Bytes, Changes, Content, Event, Operation, Ops, Outcome, Payload, Streaming,
    Structure, Ticket, Waits, large_limit,
};
use below::unanswered;
pub use export::splits_from;
use export::{Asking, Departed, Export};
use fills::Fills;
use honeycomb_block::Backing;
use honeycomb_types::limits::{KEY_MAX, REGION_MIN, inline_max};
use honeycomb_types::{BlockId, Bug, Marks, Time};
use honeycomb_wire::data::{SwapArgs, mode_and_key};
use honeycomb_wire::notice::Change;
use honeycomb_wire::{Field, Op, Status, key_hash};
use import::Import;
use large::Adopting;
pub use scan::PAGE_MAX;
use std::ops::Range;
use std::sync::Arc;
use table::{Hit, Table, Value};

/// The longest key that a block of this size accepts.
pub fn key_limit(block_size: usize) -> usize {
    KEY_MAX.min(block_size / 32)
}

/// One block of a key-value store.
pub struct KvBlock {
    table: Table,
    fills: Fills,
    size: usize,
    start: u64,
    end: u64,
    inline_max: usize,
    /// The changes.
    events: Events,
    marks: Marks,
    /// Whether every hash of the range can be used because no part of it is being moved.
    calm: bool,
    export: Option<Export>,
    import: Option<Import>,
    asking: Asking,
    /// Ranges that have moved away, the newest first.
    departed: Vec<Departed>,
    /// Whether the whole range has moved away.
    empty_handed: bool,
    /// Puts whose extents are being adopted.
    adopting: Adopting,
}

/// The value of a mutation.
#[derive(Clone, Copy)]
enum Incoming<'a> {
    /// In the request.
    Bytes(&'a [u8]),
    /// A value in an extent of its own, which the entry gets or which is freed.
    Extent(u32),
    /// A value in blocks of its own: the owner of the extents, and their list.
    Extents(&'a [u8]),
}

impl KvBlock {
    /// An empty block that owns the hashes from `start_hash` to `end_hash`, inclusive.
    pub fn new(block_size: usize, start_hash: u64, end_hash: u64, marks: Marks) -> KvBlock {
        assert!(start_hash <= end_hash, "INV-17: a block owns hashes");
        assert!(block_size >= 4 * REGION_MIN as usize, "a block holds a few regions");
        KvBlock {
            table: Table::new(block_size, start_hash),
            fills: Fills::default(),
            size: block_size,
            start: start_hash,
            end: end_hash,
            inline_max: inline_max(block_size as u64) as usize,
            events: Events::default(),
            marks,
            calm: true,
            export: None,
            import: None,
            asking: Asking::default(),
            departed: Vec::new(),
            empty_handed: false,
            adopting: Adopting::default(),
        }
    }

    /// Sets the name of the block, for its errors.
    pub fn named(mut self, block: BlockId) -> KvBlock {
        self.table.overflow.set_block(block);
        self
    }

    /// Marks a block that a move will fill: it serves nothing before `end_import`.
    pub fn importing(mut self, move_id: u64) -> KvBlock {
        self.import = Some(Import::new(move_id, self.start, self.end));
        self.calm = false;
        self
    }

    /// The marks at which the block splits or merges.
    pub fn marks(&self) -> Marks {
        self.marks
    }

    /// The regions in order: first hash, last hash, bytes in the block (large values excluded).
    pub fn regions(&self) -> impl Iterator<Item = (u64, u64, usize)> + '_ {
        let map = &self.table.map;
        (0..map.len()).map(move |place| {
            (map.start(place), map.end(place, self.end), self.table.region_at(place).packed())
        })
    }

    /// Panics unless the block is consistent. For tests: it reads the whole block.
    pub fn check(&self, block: &Backing) {
        self.table.check(block);
        self.fills.check(&self.table);
    }

    /// The hash of a key that this block may hold, for a read.
    #[inline]
    fn admit(&self, key: &[u8]) -> Result<u64, Answer> {
        self.admit_key(key, false)
    }

    /// The hash of a key that this block may hold, for a change.
    #[inline]
    fn admit_change(&self, key: &[u8]) -> Result<u64, Answer> {
        self.admit_key(key, true)
    }

    #[inline]
    fn admit_key(&self, key: &[u8], change: bool) -> Result<u64, Answer> {
        let hash = key_hash(key);
        let as_change = change || Bug::FrozenRefusesReads.active();
        let admitted = self.admit_hashed(key, hash, as_change).map(|()| hash);
        if let (false, Err(refusal)) = (change, &admitted) {
            let waits = refusal.status == Status::Busy;
            let must = !waits || self.admit_hashed(key, hash, false).is_err();
            assert!(must, "INV-21: a read of hash {hash:#x} waits for a move like a change");
        }
        admitted
    }

    /// Whether this block may hold the key with this hash.
    #[inline]
    fn admit_hashed(&self, key: &[u8], hash: u64, change: bool) -> Result<(), Answer> {
        let limit = key_limit(self.size);
        if key.is_empty() {
            return Err(Answer::refuse(Status::InvalidArgument, "a key has at least one byte"));
        }
        if key.len() > limit {
            let message = format!("a key of {} bytes is over the limit of {limit}", key.len());
            return Err(Answer::refuse(Status::KeyTooLarge, message));
        }
        if !self.calm || hash < self.start || hash > self.end {
            self.admit_hash(hash, change)?;
        }
        Ok(())
    }

    /// Prefetches the index words for this hash; returns its region.
    #[inline]
    fn prefetch_index(&self, block: &impl Bytes, hash: u64) -> Option<u32> {
        // The block's ownership of the key is not checked yet: a block whose whole range has moved away has
        // no region for it.
        let region = self.table.map.region_if_any(hash)?;
        self.table.heap.regions.get(region).prefetch_index(block, hash as u32);
        Some(region)
    }

    fn admit_value(&self, len: usize) -> Result<(), Answer> {
        let limit = large_limit(self.size);
        if len <= limit {
            return Ok(());
        }
        let message = format!("a value of {len} bytes is over the limit of {limit} (block / 8)");
        Err(Answer::refuse(Status::ValueTooLarge, message))
    }

    #[inline]
    fn value_of(&self, block: &impl Bytes, hit: &Hit) -> Range<usize> {
        self.table.value_of(block, hit)
    }

    fn copy_of(&self, block: &Backing, hit: &Hit) -> Payload {
        Payload::Bytes(Arc::from(block.slice(self.value_of(block, hit))))
    }

    fn get(&self, block: &impl Bytes, key: &[u8]) -> Result<Answer, Answer> {
        let hash = self.admit(key)?;
        let Some(found) = self.reach(block, hash, key) else { return Ok(unanswered()) };
        let Some(hit) = found else { return Err(bare(Status::KeyNotFound)) };
        if hit.head.extents() {
            return Ok(self.tell_extents(block, &hit));
        }
        Ok(Answer::ok(0).with(Payload::Block(self.value_of(block, &hit))))
    }

    fn exists(&self, block: &impl Bytes, key: &[u8]) -> Result<Answer, Answer> {
        let hash = self.admit(key)?;
        let Some(found) = self.reach(block, hash, key) else { return Ok(unanswered()) };
        Ok(match found {
            None => Answer::ok(0),
            Some(hit) => {
                let length = self.length_of(block, &hit);
                Answer { args: length.to_le_bytes().to_vec(), ..Answer::ok(1) }
            }
        })
    }

    fn delete(&mut self, block: &mut Backing, args: &[u8]) -> Result<Answer, Answer> {
        let (return_old, key) = mode_and_key(args)?;
        let hash = self.admit_change(key)?;
        let Some(hit) = self.table.find(block, hash, key) else {
            return Err(bare(Status::KeyNotFound));
        };
        if return_old {
            self.need_whole(block, &hit)?;
        }
        let old = if return_old { self.copy_of(block, &hit) } else { Payload::None };
        self.table.remove(block, &hit);
        self.events.changed(|| Change::Delete { key: key.into() });
        Ok(Answer::ok(0).with(old))
    }

    /// The number of entries from a hash on, and the hash up to which it counts.
    fn length(&self, block: &impl Bytes, args: &[u8]) -> Result<Answer, Answer> {
        let from = if args.is_empty() { self.start } else { u64::decode(args)? };
        self.admit_hash(from, false)?;
        let last = self.readable_from(from);
        let table = &self.table;
        let place = table.map.place_of(from);
        let first = table.region_at(place);
        let whole = from == table.map.start(place);
        if !whole && !block.wants(&first.contents()) {
            return Ok(unanswered());
        }
        let mut count = match whole {
            true => first.count,
            false => first
                .walk(block)
                .filter(|(at, head)| !head.dead() && head.hash(block, *at) >= from)
                .count(),
        } as u64;
        for next in place + 1..table.map.len() {
            if table.map.start(next) > last {
                break;
            }
            count += table.region_at(next).count as u64;
        }
        Ok(Answer { args: last.to_le_bytes().to_vec(), ..Answer::ok(count) })
    }

    /// Runs a mutation with a value. An extent is always either used or freed.
    fn mutate(
        &mut self,
        block: &mut Backing,
        op: Op,
        args: &[u8],
        value: Incoming<'_>,
    ) -> Result<Answer, Answer> {
        let result = self.try_mutate(block, op, args, value);
        if let (Err(_), Incoming::Extent(id)) = (&result, value) {
            self.table.heap.free_value(block, id);
        }
        result
    }

    fn try_mutate(
        &mut self,
        block: &mut Backing,
        op: Op,
        args: &[u8],
        value: Incoming<'_>,
    ) -> Result<Answer, Answer> {
        let (only_if_absent, key) = match op {
            Op::KvPut => mode_and_key(args)?,
            _ => (false, args),
        };
        let hash = self.admit_change(key)?;
        if let Incoming::Bytes(bytes) = value {
            self.admit_value(bytes.len())?;
        }
        let mut old = self.table.find(block, hash, key);
        if Bug::FillJudgedEarly.active() && matches!(value, Incoming::Extent(_)) {
            old = None;
        }
        if let (Op::KvUpdate | Op::KvUpsert, Some(hit)) = (op, &old) {
            self.need_whole(block, hit)?;
        }
        let answer = match (op, &old) {
            (Op::KvPut, Some(_)) if only_if_absent => return Err(bare(Status::KeyExists)),
            (Op::KvUpdate, None) => return Err(bare(Status::KeyNotFound)),
            (Op::KvPut, old) => Answer::ok(old.is_some() as u64),
            (Op::KvUpsert, None) => Answer::ok(0),
            (Op::KvUpsert, Some(hit)) => Answer::ok(1).with(self.copy_of(block, hit)),
            (Op::KvUpdate, Some(hit)) => Answer::ok(0).with(self.copy_of(block, hit)),
            (other, _) => unreachable!("{} brings no plain value", other.name()),
        };
        self.store(block, hash, key, old, value)?;
        Ok(answer)
    }

    /// Compares an entry with the expected value; returns the entry if the new value is to be stored.
    fn compare(
        &self,
        block: &Backing,
        hash: u64,
        key: &[u8],
        expected: Option<&[u8]>,
    ) -> Result<Option<Hit>, Answer> {
        let found = self.table.find(block, hash, key);
        if let Some(hit) = &found {
            self.need_whole(block, hit)?;
        }
        let same = match (&found, expected) {
            (None, None) => true,
            (Some(hit), Some(expected)) if Bug::SwapComparesLengths.active() => {
                self.value_of(block, hit).len() == expected.len()
            }
            (Some(hit), Some(expected)) => block.slice(self.value_of(block, hit)) == expected,
            _ => false,
        };
        if same {
            return Ok(found);
        }
        let payload = found.as_ref().map_or(Payload::None, |hit| self.copy_of(block, hit));
        let answer = Answer { value: found.is_some() as u64, ..bare(Status::CompareFailed) };
        Err(answer.with(payload))
    }

    fn swap(&mut self, block: &mut Backing, args: &[u8], payload: &[u8]) -> Result<Answer, Answer> {
        let SwapArgs { present, key, expected, new } = SwapArgs::decode(args, payload)?;
        let hash = self.admit_change(key)?;
        self.admit_value(new.len())?;
        let old = self.compare(block, hash, key, present.then_some(expected))?;
        self.store(block, hash, key, old, Incoming::Bytes(new))?;
        Ok(Answer::ok(0))
    }

    /// Stores a value under a key, in place of `old`.
    fn store(
        &mut self,
        block: &mut Backing,
        hash: u64,
        key: &[u8],
        old: Option<Hit>,
        value: Incoming<'_>,
    ) -> Result<(), Answer> {
        self.write(block, hash, key, old, value)?;
        self.events.changed(|| Change::Put { key: key.into() });
        Ok(())
    }

    fn write(
        &mut self,
        block: &mut Backing,
        hash: u64,
        key: &[u8],
        old: Option<Hit>,
        value: Incoming<'_>,
    ) -> Result<(), Answer> {
        let bytes = match value {
            Incoming::Extent(id) => {
                return self.table.store(block, hash, key, old, Value::Large(id));
            }
            Incoming::Extents(list) => {
                return self.table.store(block, hash, key, old, Value::Extents(list));
            }
            Incoming::Bytes(bytes) if bytes.len() <= self.inline_max => {
                return self.table.store(block, hash, key, old, Value::Inline(bytes));
            }
            Incoming::Bytes(bytes) => bytes,
        };
        let replaces = old.map_or(0, |hit| hit.head.value_len);
        let id = self.table.alloc_large(block, bytes.len(), replaces)?;
        block.slice_mut(self.table.heap.values.place(id)).copy_from_slice(bytes);
        // Making room may have moved the entry that is replaced.
        let old = self.table.find(block, hash, key);
        let stored = self.table.store(block, hash, key, old, Value::Large(id));
        if stored.is_err() {
            self.table.heap.free_value(block, id);
        }
        stored
    }
}

/// The key of an operation that looks up one entry.
fn looked_up(op: Op, args: &[u8]) -> Option<&[u8]> {
    match op {
        Op::KvGet | Op::KvExists | Op::KvUpdate | Op::KvUpsert => Some(args),
        Op::KvPut | Op::KvDelete => mode_and_key(args).ok().map(|(_, key)| key),
        _ => None,
    }
}

impl Structure for KvBlock {
    fn streaming(&mut self) -> Option<&mut dyn Streaming> {
        Some(self)
    }

    fn waits(&mut self) -> Option<&mut dyn Waits> {
        Some(self)
    }

    fn changes(&mut self) -> Option<&mut dyn Changes> {
        Some(&mut self.events)
    }

    fn adopts(&mut self) -> Option<&mut dyn Adopts> {
        Some(self)
    }

    fn content(&self) -> Option<&dyn Content> {
        Some(self)
    }

    fn content_mut(&mut self) -> Option<&mut dyn Content> {
        Some(self)
    }

    fn movable(&mut self) -> Option<&mut dyn Movable> {
        Some(self)
    }
}

impl Ops for KvBlock {
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, payload: &[u8]) -> Outcome {
        let (op, args) = (operation.op, operation.args);
        self.table.heap.arena.sweep_some(block);
        self.sweep_departed(block);
        self.table.heap.look_at_slack(operation.now);
        let result = match op {
            Op::KvGet => self.get(block, args),
            Op::KvPut | Op::KvUpdate | Op::KvUpsert => {
                self.mutate(block, op, args, Incoming::Bytes(payload))
            }
            Op::KvPutExtents => match self.begin_adoption(block, operation, payload) {
                Ok(()) => return Outcome::Parked,
                Err(refusal) => Err(refusal),
            },
            Op::KvDelete => self.delete(block, args),
            Op::KvDeleteExtents => self.delete_extents(block, args, payload),
            Op::KvExists => self.exists(block, args),
            Op::KvCompareAndSwap => self.swap(block, args, payload),
            Op::KvScan => self.scan(block, args),
            Op::KvLength => self.length(block, args),
            Op::KvMultiGet => self.multi_get(block, args, payload),
            Op::KvBatch => self.batch(block, args, payload),
            Op::KvAccumulate => self.accumulate(block, args, payload),
            Op::MoveRegion
            | Op::MovePatch
            | Op::MoveValue
            | Op::MoveDrops
            | Op::MoveDone
            | Op::MoveState => self.take_part(block, op, args, payload),
            other => panic!("{} is no operation of a key-value store", other.name()),
        };
        Outcome::Done(result.unwrap_or_else(|refusal| refusal))
    }

    #[inline]
    fn prefetch(&self, block: &Backing, op: Op, args: &[u8]) -> Option<u64> {
        let hash = key_hash(looked_up(op, args)?);
        let region = self.prefetch_index(block, hash)?;
        Some((region as u64) << 32 | hash as u32 as u64)
    }

    #[inline]
    fn prefetch_more(&self, block: &Backing, hint: u64) {
        if let Some(region) = self.table.heap.regions.get_if_any((hint >> 32) as u32) {
            region.prefetch_entry(block, hint as u32);
        }
    }

    fn event(&mut self) -> Option<Event> {
        self.events.pop().or_else(|| self.said_of_extents())
    }

    fn bytes_used(&self) -> u64 {
        (self.table.heap.taken() + self.fills.bytes() + self.adopting.bytes()) as u64
    }

    fn record_hash(&self, op: Op, args: &[u8]) -> Option<u64> {
        let key = match op {
            Op::KvPut | Op::KvPutExtents | Op::KvDelete => args.get(1..)?,
            Op::KvUpdate | Op::KvUpsert | Op::KvDeleteExtents => args,
            Op::KvCompareAndSwap => args.get(3..)?,
            Op::KvAccumulate => args.get(1..)?,
            // A batch has many keys, and its record stays with the block that ran it.
            _ => return None,
        };
        Some(honeycomb_wire::key_hash(key))
    }
}

impl Streaming for KvBlock {
    fn reserve(
        &mut self,
        block: &mut Backing,
        operation: &Operation<'_>,
        length: usize,
    ) -> Result<(), Answer> {
        self.begin_fill(block, operation.ticket, operation.op, operation.args, length)
    }

    fn fill<'b>(&mut self, block: &'b mut Backing, ticket: Ticket) -> &'b mut [u8] {
        let rest = self.fills.rest(&self.table, block, ticket);
        block.slice_mut(rest)
    }

    fn filled(&mut self, ticket: Ticket, n: usize) {
        self.fills.filled(ticket, n);
    }

    fn commit(&mut self, block: &mut Backing, _now: Time, ticket: Ticket) -> Outcome {
        Outcome::Done(self.end_fill(block, ticket).unwrap_or_else(|refusal| refusal))
    }

    fn abort(&mut self, block: &mut Backing, _now: Time, ticket: Ticket) {
        let fill = self.fills.take(ticket);
        self.table.heap.free_value(block, fill.large);
    }
}

impl Waits for KvBlock {
    fn tick(&mut self, block: &mut Backing, now: Time) {
        self.table.heap.arena.sweep(block);
        self.table.heap.look_at_slack(now);
        self.table.heap.return_memory(block, now);
        self.store_again(block, now);
    }

    fn deadline(&self) -> Option<Time> {
        self.table.heap.return_due().into_iter().chain(self.adopting.due()).min()
    }
}

impl Adopts for KvBlock {
    fn adopted(
        &mut self,
        block: &mut Backing,
        now: Time,
        ticket: Ticket,
        owner: u64,
        outcome: Result<(), (Status, String)>,
    ) {
        self.end_adoption(block, now, ticket, owner, outcome);
    }
}

/// A common refusal that its status explains well enough: no message to allocate.
fn bare(status: Status) -> Answer {
    Answer { status, ..Answer::ok(0) }
}
