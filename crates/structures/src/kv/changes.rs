//! Mutations of a kv block in a lower tier that become deltas (`deltas.rs`).
//!
//! A condition, and the answer whether there was an entry, need the entry: its parts are read as for a
//! `get`. The value itself is not written to the block now. A mutation for whose value the block has no
//! room waits for a larger capacity; with that of a whole block, the block is read back, and is divided as in
//! memory.

use super::batch::{BatchReply, admit_count, admit_request, passing};
use super::below::{Found, Needs, unanswered};
use super::deltas::{Deltas, Record};
use super::heap::{EXTENT_COST, WORD_COST};
use super::region::Head;
use super::store::{Incoming, Store};
use super::{KvBlock, bare};
use crate::{Answer, Bytes, DeltaBytes, Fetched, LowerTierChanges, Payload, Sealed};
use honeycomb_block::Backing;
use honeycomb_types::Bug;
use honeycomb_types::limits::{KV_BATCH_BYTES_MAX, TIER_CHUNK};
use honeycomb_wire::batch::{BatchOp, batch_ops};
use honeycomb_wire::data::{PutMode, mode_and_key};
use honeycomb_wire::notice::Change;
use honeycomb_wire::{Op, Status, key_hash};
use std::sync::Arc;

/// Free bytes of a block that deltas leave: its size divided by this, and a region of the largest size.
const ROOM_FRACTION: usize = 16;
/// Operations of a batch that are run together.
const TOGETHER: usize = 64;

/// When a change takes effect.
#[derive(Clone, Copy)]
enum Rule<'a> {
    Always,
    Absent,
    Present,
    /// If the value is this one; `None`: if there is no entry.
    Equals(Option<&'a [u8]>),
}

/// The part of the old entry that the answer has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    /// Whether there was one.
    Presence,
    Value,
    PresenceAndValue,
}

/// A change of one key.
#[derive(Clone, Copy)]
struct KeyChange<'a> {
    key: &'a [u8],
    /// `None` to delete it.
    value: Option<&'a [u8]>,
    rule: Rule<'a>,
    told: Told,
}

/// The outcome of a change.
enum Changed {
    Answer(Answer),
    /// Bytes are missing.
    Missing,
    /// The block is needed in memory.
    Whole,
    /// The block will have room with a larger capacity.
    Waits(Answer),
}

impl<'a> KeyChange<'a> {
    fn of(op: Op, args: &'a [u8], payload: &'a [u8]) -> Result<KeyChange<'a>, Answer> {
        let put = |key, rule, told| KeyChange { key, value: Some(payload), rule, told };
        Ok(match op {
            Op::KvPut => {
                let (mode, key) = PutMode::and_key(args)?;
                match mode {
                    PutMode::Always => put(key, Rule::Always, Told::Presence),
                    PutMode::Absent => put(key, Rule::Absent, Told::Nothing),
                    PutMode::Blind => put(key, Rule::Always, Told::Nothing),
                }
            }
            Op::KvUpsert => put(args, Rule::Always, Told::PresenceAndValue),
            Op::KvUpdate => put(args, Rule::Present, Told::Value),
            Op::KvDelete => {
                let (return_old, key) = mode_and_key(args)?;
                let told = if return_old { Told::Value } else { Told::Nothing };
                KeyChange { key, value: None, rule: Rule::Present, told }
            }
            other => unreachable!("{} becomes no delta", other.name()),
        })
    }

    /// The change of an operation of a batch; `None` for another operation.
    fn in_batch(op: &BatchOp<'a>) -> Option<KeyChange<'a>> {
        let (value, rule, told) = match *op {
            BatchOp::Put { value, .. } => (Some(value), Rule::Always, Told::Presence),
            BatchOp::Set { value, .. } => (Some(value), Rule::Always, Told::Nothing),
            BatchOp::Insert { value, .. } => (Some(value), Rule::Absent, Told::Nothing),
            BatchOp::Delete { .. } => (None, Rule::Present, Told::Nothing),
            BatchOp::Swap { expected, new, .. } => {
                (Some(new), Rule::Equals(expected), Told::Nothing)
            }
            BatchOp::Get { .. } | BatchOp::Accumulate { .. } => return None,
        };
        Some(KeyChange { key: op.key(), value, rule, told })
    }

    /// Whether the old entry decides nothing.
    fn is_blind(&self) -> bool {
        matches!((self.rule, self.told), (Rule::Always, Told::Nothing))
    }

    fn needs_value(&self) -> bool {
        matches!(self.rule, Rule::Equals(_))
            || matches!(self.told, Told::Value | Told::PresenceAndValue)
    }
}

/// The old entry of a key.
struct Old {
    /// Its value, if the change needs it.
    value: Option<Arc<[u8]>>,
    /// Whether a new value can be written over it.
    same_size: bool,
    /// Whether its value is a list of extents.
    extents: bool,
}

/// A change that is being made, with the parts of the block that were read for it.
struct Changing<'a> {
    store: &'a mut Store,
    bytes: &'a Fetched,
}

impl Changing<'_> {
    /// The old entry, as far as a change needs it. The outer `None`: bytes are missing.
    fn old(&self, hash: u64, change: &KeyChange<'_>) -> Option<Option<Old>> {
        let found = match Bug::DeltasUnjudged.active() {
            true => self.store.table.reach(self.bytes, hash, change.key)?.map(Found::Entry),
            false => self.store.reach(self.bytes, hash, change.key)?,
        };
        let Some(found) = found else { return Some(None) };
        let new = change.value.map_or(0, <[u8]>::len);
        let (value, same_size) = match found {
            Found::Value(value) => (value, value.len() == new),
            Found::Below(range) => {
                let same = range.len() == new;
                (self.bytes.slice(range), same)
            }
            Found::Entry(hit) => {
                let (head, extents) = (self.head_of(change.key, new), hit.head.extents());
                let same_size = head.has_room_of(&hit.head) && head.beside() == hit.head.beside();
                if extents || !change.needs_value() {
                    return Some(Some(Old { value: None, same_size, extents }));
                }
                let range = self.store.table.value_of(self.bytes, &hit);
                if !self.bytes.wants(&range) {
                    return None;
                }
                (self.bytes.slice(range), same_size)
            }
        };
        let value = change.needs_value().then(|| Arc::from(value));
        Some(Some(Old { value, same_size, extents: false }))
    }

    /// The record in memory that a change replaces.
    fn replaced_record(&self, hash: u64, change: &KeyChange<'_>) -> Option<Old> {
        let record = self.store.deltas.as_ref()?.in_memory_of(hash, change.key)?;
        let same_size = record.value?.len() == change.value.map_or(0, <[u8]>::len);
        Some(Old { value: None, same_size, extents: false })
    }

    /// The head of an entry with a value of this length.
    fn head_of(&self, key: &[u8], value_len: usize) -> Head {
        Head::new(key.len(), value_len, value_len > self.store.inline_max)
    }

    /// Makes a change as a delta.
    fn change_one(&mut self, hash: u64, change: &KeyChange<'_>) -> Changed {
        let KeyChange { key, value, rule, told } = *change;
        if let Some(answer) = self.lacks_capacity(change, 0) {
            return Changed::Waits(answer);
        }
        let old = match self.can_be_blind(change, 0) {
            true => self.replaced_record(hash, change),
            false => match self.old(hash, change) {
                None => return Changed::Missing,
                // The extents would be kept until the delta is merged.
                Some(Some(old)) if old.extents => return Changed::Whole,
                Some(old) => old,
            },
        };
        let found = old.as_ref().and_then(|old| old.value.clone());
        let there = old.is_some();
        match rule {
            Rule::Absent if there => return Changed::Answer(bare(Status::KeyExists)),
            Rule::Present if !there => return Changed::Answer(bare(Status::KeyNotFound)),
            Rule::Equals(expected) if found.as_deref() != expected => {
                let answer = Answer { value: there as u64, ..bare(Status::CompareFailed) };
                return Changed::Answer(answer.with(found.map_or(Payload::None, Payload::Bytes)));
            }
            _ => {}
        }
        let grows = match (value, &old) {
            (None, _) => 0,
            (Some(_), Some(old)) if old.same_size => 0,
            (Some(_), None) if change.is_blind() && Bug::BlindUncounted.active() => 0,
            (Some(_), _) => self.cost_of(change),
        };
        if !self.has_room_for(grows) {
            return self.refuse(grows).map_or(Changed::Whole, Changed::Waits);
        }
        let deltas = self.store.deltas.get_or_insert_default();
        deltas.set(hash, key, value);
        deltas.grows += grows;
        self.store.events.changed(|| match value {
            Some(_) => Change::Put { key: key.into() },
            None => Change::Delete { key: key.into() },
        });
        let presence = matches!(told, Told::Presence | Told::PresenceAndValue) && there;
        let value = found.filter(|_| matches!(told, Told::Value | Told::PresenceAndValue));
        let payload = value.map_or(Payload::None, Payload::Bytes);
        Changed::Answer(Answer::ok(presence as u64).with(payload))
    }

    /// Bytes that the change takes if its entry is new.
    fn cost_of(&self, change: &KeyChange<'_>) -> usize {
        let Some(value) = change.value else { return 0 };
        let head = self.head_of(change.key, value.len());
        head.size() + head.beside() + WORD_COST + EXTENT_COST
    }

    /// Whether a change can be made without knowing the old entry, after others that may add `before`
    /// bytes. The old entry counts as absent. If it is a list, its extents would be kept until the merge.
    fn can_be_blind(&self, change: &KeyChange<'_>, before: usize) -> bool {
        change.is_blind()
            && !self.store.table.may_have_lists
            && self.has_room_for(before + self.cost_of(change))
    }

    /// The answer to a change that needs no old entry and lacks only a larger capacity, after others that may
    /// add `before` bytes. No bytes are read for such a change.
    fn lacks_capacity(&mut self, change: &KeyChange<'_>, before: usize) -> Option<Answer> {
        let cost = before + self.cost_of(change);
        let lacks = change.is_blind()
            && self.store.table.heap.capacity.may_grow()
            && !self.has_room_for(cost);
        if lacks { self.refuse(cost) } else { None }
    }

    /// Requests a capacity with room for so many more bytes. Returns the answer of a change until then;
    /// `None` if the block has to be divided.
    fn refuse(&mut self, grows: usize) -> Option<Answer> {
        let lacks = grows + self.leaves();
        self.store.table.heap.capacity.refuse(lacks)
    }

    /// Whether the block, once it is read back, certainly has room for so many more bytes.
    fn has_room_for(&self, grows: usize) -> bool {
        let (heap, deltas) =
            (&self.store.table.heap, self.store.deltas.as_ref().map_or(0, |deltas| deltas.grows));
        grows == 0 || heap.taken() + deltas + grows + self.leaves() <= heap.size()
    }

    /// Free bytes that deltas leave.
    fn leaves(&self) -> usize {
        let heap = &self.store.table.heap;
        heap.size() / ROOM_FRACTION + heap.region_max()
    }

    /// The operations of a batch from the first on that can become deltas, with their hashes and answers.
    fn change_batch(&mut self, payload: &[u8]) -> Result<Changed, Answer> {
        admit_request(payload)?;
        let ops = batch_ops(payload)?;
        admit_count(ops.len())?;
        let mut changes = Vec::with_capacity(ops.len().min(TOGETHER));
        let mut needs = Needs::up_to(self.bytes.most());
        let mut grows = 0;
        for change in ops.iter().take(TOGETHER).map_while(KeyChange::in_batch) {
            let hash = key_hash(change.key);
            let refusal = self.admit_change_in_batch(hash, &change).err();
            let refusal = refusal.or_else(|| self.lacks_capacity(&change, grows));
            let enough = match &refusal {
                Some(_) => false,
                None if self.can_be_blind(&change, grows) => false,
                None => {
                    let region =
                        self.store.table.heap.regions.get(self.store.table.map.region_of(hash));
                    let cost = region.lookup_bytes().max(TIER_CHUNK);
                    needs.and(self.old(hash, &change).is_some(), cost)
                }
            };
            // At most: one that is blind by this count is blind when it is made.
            if change.is_blind() || !Bug::BlindPlannedAlone.active() {
                grows += self.cost_of(&change);
            }
            changes.push((hash, change, refusal));
            if enough {
                break;
            }
        }
        if needs.lacking {
            return Ok(Changed::Missing);
        }
        let mut reply = BatchReply::new(KV_BATCH_BYTES_MAX);
        for (hash, change, refusal) in changes {
            if reply.full() {
                break;
            }
            let answer = match refusal {
                Some(refusal) if passing(&refusal) && reply.is_empty() => return Err(refusal),
                Some(refusal) if passing(&refusal) => break,
                Some(refusal) => {
                    reply.add_refusal(&refusal);
                    continue;
                }
                None => match self.change_one(hash, &change) {
                    Changed::Answer(answer) => answer,
                    // An earlier operation of the batch has changed what this one needs.
                    Changed::Missing | Changed::Whole | Changed::Waits(_) if !reply.is_empty() => {
                        break;
                    }
                    other => return Ok(other),
                },
            };
            if !reply.add_answer(&answer) {
                break;
            }
        }
        let is_done = reply.is_empty() || !self.bytes.is_lacking();
        assert!(
            is_done,
            "INV-61: a batch that has changed entries needs more bytes, and runs again"
        );
        Ok(match reply.is_empty() {
            true => Changed::Whole,
            false => Changed::Answer(reply.of_batch()),
        })
    }

    fn admit_change_in_batch(&self, hash: u64, change: &KeyChange<'_>) -> Result<(), Answer> {
        self.store.ownership.need_arrived(hash, true)?;
        self.store.admit_hashed(change.key, hash, true)?;
        self.store.admit_value(change.value.map_or(0, <[u8]>::len))
    }
}

/// Stores deltas for which the block had no room. Returns whether none are left.
pub(super) fn settle(store: &mut Store, block: &mut Backing) -> bool {
    store_deltas(store, block, &[], 0);
    store.deltas.is_none()
}

fn store_deltas(store: &mut Store, block: &mut Backing, below: &[u8], from: usize) {
    let Some(deltas) = store.deltas.take() else { return };
    let mut left = Deltas::default();
    deltas.each(below, from, |record| {
        let hash = key_hash(record.key);
        if store_delta(store, block, hash, &record).is_err() {
            left.set(hash, record.key, record.value);
        }
    });
    if !left.is_empty() {
        debug_assert!(false, "INV-61: a block has no room for its deltas");
        left.grows = deltas.grows;
        store.deltas = Some(Box::new(left));
    }
}

fn store_delta(
    store: &mut Store,
    block: &mut Backing,
    hash: u64,
    record: &Record<'_>,
) -> Result<(), Answer> {
    let old = store.table.find(block, hash, record.key);
    let Some(value) = record.value else {
        old.iter().for_each(|hit| store.table.remove(block, hit));
        return Ok(());
    };
    if let Some(hit) = old.filter(|hit| hit.head.large() && !hit.head.extents())
        && hit.head.value_len == value.len()
    {
        // Its extent is not pinned: the block was read back just now.
        let place = store.table.value_of(block, &hit);
        block.slice_mut(place).copy_from_slice(value);
        return Ok(());
    }
    store.write(block, hash, record.key, old, Incoming::Bytes(value))
}

impl LowerTierChanges for KvBlock {
    fn takes(&self, op: Op, args: &[u8], payload: &[u8]) -> bool {
        match op {
            Op::KvPut | Op::KvUpdate | Op::KvUpsert | Op::KvDelete => true,
            Op::KvBatch if args == [0] => {
                let ops = batch_ops(payload).ok();
                let first = ops.as_ref().and_then(|ops| ops.first());
                first.is_some_and(|first| KeyChange::in_batch(first).is_some())
            }
            _ => false,
        }
    }

    fn change(&mut self, bytes: &Fetched, op: Op, args: &[u8], payload: &[u8]) -> Option<Answer> {
        let mut changing = Changing { store: &mut self.partition.store, bytes };
        let changed = match op {
            Op::KvBatch => changing.change_batch(payload),
            _ => KeyChange::of(op, args, payload).and_then(|change| {
                let hash = changing.store.admit_change(change.key)?;
                changing.store.admit_value(change.value.map_or(0, <[u8]>::len))?;
                Ok(changing.change_one(hash, &change))
            }),
        };
        match changed {
            Ok(Changed::Answer(answer) | Changed::Waits(answer)) | Err(answer) => Some(answer),
            Ok(Changed::Missing) => Some(unanswered()),
            Ok(Changed::Whole) => None,
        }
    }

    fn deltas(&self) -> DeltaBytes {
        let Some(deltas) = &self.partition.store.deltas else { return DeltaBytes::default() };
        DeltaBytes {
            memory: deltas.in_memory(),
            fresh: deltas.fresh(),
            all: deltas.bytes(),
            leaving: deltas.is_leaving(),
        }
    }

    fn seal(&mut self, at: usize, most: usize) -> Option<Vec<u8>> {
        self.partition.store.deltas.as_mut()?.seal(at, most)
    }

    fn sealed(&mut self, outcome: Sealed) {
        if let Some(deltas) = &mut self.partition.store.deltas {
            deltas.sealed(outcome);
        }
    }

    fn merge(&mut self, block: &mut Backing, below: &[u8], from: usize) {
        let store = &mut self.partition.store;
        store_deltas(store, block, below, from);
        store.table.heap.pack_to_leave(block);
    }
}
