//! The operations of a store on one key, and the rules that they share with the others.

use super::below::{Found, unanswered};
use super::deltas::Deltas;
use super::ownership::Ownership;
use super::table::{Hit, Table, Value};
use super::{bare, key_limit};
use crate::events::Events;
use crate::{Answer, Bytes, CapacityRequest, Payload, large_limit};
use honeycomb_block::Backing;
use honeycomb_types::Bug;
use honeycomb_types::limits::{EXTENT_OWNER, inline_max};
use honeycomb_wire::data::{PutMode, SwapArgs, mode_and_key};
use honeycomb_wire::notice::Change;
use honeycomb_wire::{Field, Op, Status, key_hash};
use std::sync::Arc;

/// The value of a mutation.
#[derive(Clone, Copy)]
pub(super) enum Incoming<'a> {
    /// In the request.
    Bytes(&'a [u8]),
    /// A value in an extent of its own, which the entry gets or which is freed.
    Extent(u32),
    /// A value in blocks of its own: the owner of the extents, and their list.
    Extents(&'a [u8]),
}

/// The entries of the hashes that a block owns.
pub(super) struct Store {
    pub table: Table,
    pub ownership: Ownership,
    /// The changes of a block in a lower tier that its bytes do not contain.
    pub deltas: Option<Box<Deltas>>,
    /// The changes.
    pub events: Events,
    /// The longest value that is stored in its region.
    pub inline_max: usize,
}

impl Store {
    /// An empty store that owns the hashes from `start` to `end`, inclusive.
    pub fn new(capacity: CapacityRequest, start: u64, end: u64) -> Store {
        let size = capacity.most();
        Store {
            table: Table::new(capacity, start),
            ownership: Ownership::new(start, end),
            deltas: None,
            events: Events::default(),
            inline_max: inline_max(size as u64) as usize,
        }
    }

    /// The block size.
    #[inline]
    pub fn size(&self) -> usize {
        self.table.heap.capacity.most()
    }

    /// The hash of a key that this block may hold, for a read.
    #[inline]
    fn admit(&self, key: &[u8]) -> Result<u64, Answer> {
        self.admit_key(key, false)
    }

    /// The hash of a key that this block may hold, for a change.
    #[inline]
    pub fn admit_change(&self, key: &[u8]) -> Result<u64, Answer> {
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
    pub fn admit_hashed(&self, key: &[u8], hash: u64, change: bool) -> Result<(), Answer> {
        let limit = key_limit(self.size());
        if key.is_empty() {
            return Err(Answer::refuse(Status::InvalidArgument, "a key has at least one byte"));
        }
        if key.len() > limit {
            let message = format!("a key of {} bytes is over the limit of {limit}", key.len());
            return Err(Answer::refuse(Status::KeyTooLarge, message));
        }
        self.ownership.admit(hash, change)
    }

    /// Refuses a value over the limit.
    pub fn admit_value(&self, len: usize) -> Result<(), Answer> {
        let limit = large_limit(self.size());
        if len <= limit {
            return Ok(());
        }
        let message = format!("a value of {len} bytes is over the limit of {limit} (block / 8)");
        Err(Answer::refuse(Status::ValueTooLarge, message))
    }

    /// Refuses an operation that needs the value itself if the value is not in this block.
    pub fn need_whole(&self, block: &Backing, hit: &Hit) -> Result<(), Answer> {
        if !hit.head.extents() {
            return Ok(());
        }
        let (length, limit) = (self.table.length_of(block, hit), large_limit(self.size()));
        let text = format!(
            "the key has a value of {length} bytes; this operation takes values of up to {limit} \
             (block / 8): read it with get, replace it with put, or delete it without requesting it"
        );
        Err(Answer { value: length, ..Answer::refuse(Status::ValueTooLarge, text) })
    }

    /// The answer to a `KvGet` of a value that is a list of extents.
    pub fn extents_answer(&self, block: &impl Bytes, hit: &Hit) -> Answer {
        let stored = self.table.value_of(block, hit);
        let answer = Answer { value: self.table.length_of(block, hit), ..bare(Status::Extents) };
        answer.with(Payload::Block(stored.start + EXTENT_OWNER..stored.end))
    }

    /// A copy of an entry's value.
    pub fn copy_of(&self, block: &Backing, hit: &Hit) -> Payload {
        Payload::Bytes(Arc::from(block.slice(self.table.value_of(block, hit))))
    }

    /// The value of a key.
    pub fn get(&self, block: &impl Bytes, key: &[u8]) -> Result<Answer, Answer> {
        let hash = self.admit(key)?;
        let Some(found) = self.reach(block, hash, key) else { return Ok(unanswered()) };
        let hit = match found.ok_or_else(|| bare(Status::KeyNotFound))? {
            Found::Entry(hit) => hit,
            Found::Value(value) => {
                return Ok(Answer::ok(0).with(Payload::Bytes(Arc::from(value))));
            }
            Found::Below(range) => return Ok(Answer::ok(0).with(Payload::Block(range))),
        };
        if hit.head.extents() {
            return Ok(self.extents_answer(block, &hit));
        }
        Ok(Answer::ok(0).with(Payload::Block(self.table.value_of(block, &hit))))
    }

    /// Whether a key has an entry, and the length of its value.
    pub fn exists(&self, block: &impl Bytes, key: &[u8]) -> Result<Answer, Answer> {
        let hash = self.admit(key)?;
        let Some(found) = self.reach(block, hash, key) else { return Ok(unanswered()) };
        let length = match found {
            None => return Ok(Answer::ok(0)),
            Some(Found::Entry(hit)) => self.table.length_of(block, &hit),
            Some(Found::Value(value)) => value.len() as u64,
            Some(Found::Below(range)) => range.len() as u64,
        };
        Ok(Answer { args: length.to_le_bytes().to_vec(), ..Answer::ok(1) })
    }

    /// Deletes the entry of a key.
    pub fn delete(&mut self, block: &mut Backing, args: &[u8]) -> Result<Answer, Answer> {
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
    pub fn length(&self, block: &impl Bytes, args: &[u8]) -> Result<Answer, Answer> {
        let from = if args.is_empty() { self.ownership.start() } else { u64::decode(args)? };
        self.ownership.admit(from, false)?;
        let last = self.ownership.readable_from(from);
        Ok(match self.table.count(block, from, last) {
            Some(count) => Answer { args: last.to_le_bytes().to_vec(), ..Answer::ok(count) },
            None => unanswered(),
        })
    }

    /// Runs a mutation with a value. An extent is always either used or freed.
    pub fn mutate(
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
        let (mode, key) = match op {
            Op::KvPut => PutMode::and_key(args)?,
            _ => (PutMode::Always, args),
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
            (Op::KvPut, Some(_)) if mode == PutMode::Absent => return Err(bare(Status::KeyExists)),
            (Op::KvPut, _) if mode == PutMode::Blind => Answer::ok(0),
            (Op::KvUpdate, None) => return Err(bare(Status::KeyNotFound)),
            (Op::KvPut, old) => Answer::ok(old.is_some() as u64),
            (Op::KvUpsert, None) => Answer::ok(0),
            (Op::KvUpsert, Some(hit)) => Answer::ok(1).with(self.copy_of(block, hit)),
            (Op::KvUpdate, Some(hit)) => Answer::ok(0).with(self.copy_of(block, hit)),
            (other, _) => unreachable!("{} brings no plain value", other.name()),
        };
        self.set(block, hash, key, old, value)?;
        Ok(answer)
    }

    /// Compares an entry with the expected value; returns the entry if the new value is to be stored.
    pub fn compare(
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
                self.table.value_of(block, hit).len() == expected.len()
            }
            (Some(hit), Some(expected)) => block.slice(self.table.value_of(block, hit)) == expected,
            _ => false,
        };
        if same {
            return Ok(found);
        }
        let payload = found.as_ref().map_or(Payload::None, |hit| self.copy_of(block, hit));
        let answer = Answer { value: found.is_some() as u64, ..bare(Status::CompareFailed) };
        Err(answer.with(payload))
    }

    /// Stores a value if the present one is the expected one.
    pub fn swap(
        &mut self,
        block: &mut Backing,
        args: &[u8],
        payload: &[u8],
    ) -> Result<Answer, Answer> {
        let SwapArgs { present, key, expected, new } = SwapArgs::decode(args, payload)?;
        let hash = self.admit_change(key)?;
        self.admit_value(new.len())?;
        let old = self.compare(block, hash, key, present.then_some(expected))?;
        self.set(block, hash, key, old, Incoming::Bytes(new))?;
        Ok(Answer::ok(0))
    }

    /// Stores a value under a key, in place of `old`.
    pub fn set(
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

    /// As `set`, without a notice.
    pub fn write(
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
