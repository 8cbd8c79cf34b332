//! Many keys in one request: `KvMultiGet` and `KvBatch`.
//!
//! A batch runs its operations in order, and each sees the effects of those before it. Without `atomic` each
//! succeeds or fails alone, and the answer may end early: if the reply is full, if a key has moved to another
//! block, if only a pin is in the way or there is no room yet, or after a value that fits into no reply. An
//! operation without an answer has not run, and the client repeats it.
//! An atomic batch is first planned outside of the block. Then every new value is written next to the old
//! value, with a flag that hides it. This step can fail, and undoing it needs no room. Publishing the values
//! cannot fail (INV-38).

use super::accumulate::combine;
use super::bare;
use super::below::{Found, unanswered};
use super::store::{Incoming, Store};
use super::table::{Hit, Table, Value};
use crate::{Answer, Bytes, Payload};
use hashbrown::HashMap;
use honeycomb_block::Backing;
use honeycomb_types::Bug;
use honeycomb_types::limits::{KV_BATCH_BYTES_MAX, KV_BATCH_MAX, MANY_BYTES_MAX};
use honeycomb_wire::batch::{BatchOp, BatchResult, RESULT, batch_ops, keys, put_result};
use honeycomb_wire::data::mode_and_key;
use honeycomb_wire::notice::Change;
use honeycomb_wire::stored::Function;
use honeycomb_wire::{Field, Status, key_hash, slot_of};
use std::borrow::Cow;

/// The refusal of a request that is too long for one pass.
pub(super) fn too_much(length: usize) -> Answer {
    Answer::refuse(
        Status::ValueTooLarge,
        format!("a payload of {length} bytes is over the limit of {KV_BATCH_BYTES_MAX}"),
    )
}

/// Checked before the payload is read, because its list takes room of its own.
pub(super) fn admit_request(payload: &[u8]) -> Result<(), Answer> {
    if payload.len() > KV_BATCH_BYTES_MAX {
        return Err(too_much(payload.len()));
    }
    Ok(())
}

pub(super) fn admit_count(count: usize) -> Result<(), Answer> {
    if count <= KV_BATCH_MAX {
        return Ok(());
    }
    let message = format!("{count} keys in one request; the limit is {KV_BATCH_MAX}");
    Err(Answer::refuse(Status::InvalidArgument, message))
}

/// Keys of a request that are prefetched together, before the first of them is looked up.
const AHEAD: usize = 16;
/// Initial room of a reply, enough for most.
const REPLY_ROOM: usize = 16 * 1024;

/// Whether the refused operation may succeed later or elsewhere, unchanged. An operation without room waits
/// as a separate request does: the shard decides how long.
pub(super) fn passing(answer: &Answer) -> bool {
    !answer.executed() || matches!(answer.status, Status::Moved | Status::OutOfMemory)
}

/// The part of a found value that a reply contains.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReplyContent {
    Value,
    /// Its length only.
    Length,
    Nothing,
}

/// The results of a reply with room for `most` bytes.
pub(super) struct BatchReply {
    out: Vec<u8>,
    count: u64,
    most: usize,
}

impl BatchReply {
    pub fn new(most: usize) -> BatchReply {
        BatchReply { out: Vec::with_capacity(most.min(REPLY_ROOM)), count: 0, most }
    }

    /// Bytes that another result may have.
    fn room(&self) -> usize {
        self.most.saturating_sub(self.out.len() + RESULT)
    }

    /// Whether there is no room for another result. The first always has room.
    pub fn full(&self) -> bool {
        self.count > 0 && self.out.len() + RESULT > self.most
    }

    /// Adds a result whose bytes fit.
    fn add(&mut self, status: Status, value: u64, bytes: &[u8]) {
        put_result(&mut self.out, &BatchResult { status, value, bytes });
        self.count += 1;
    }

    /// Adds a found value. If it does not fit now but would fit into a reply that begins with it, nothing is
    /// added. If it fits into no reply, its length is added, as too large.
    fn add_found(&mut self, status: Status, value: u64, found: &[u8]) -> ReplyContent {
        if found.len() <= self.room() {
            self.add(status, value, found);
        } else if found.len() + RESULT <= self.most {
            return ReplyContent::Nothing;
        } else if status == Status::CompareFailed {
            self.add(status, UNTOLD, &[]);
        } else {
            self.add(Status::ValueTooLarge, found.len() as u64, &[]);
            return ReplyContent::Length;
        }
        ReplyContent::Value
    }

    /// Adds the refusal of one operation, with as much of its message as fits.
    pub fn add_refusal(&mut self, refusal: &Answer) {
        let cut = refusal.args.len().min(self.room());
        let text = String::from_utf8_lossy(&refusal.args[..cut]);
        let text = text.trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned();
        self.add(refusal.status, refusal.value, text.as_bytes());
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds the answer of an operation, with the bytes that it found. Returns whether the batch goes on: a
    /// client that reads a value separately must get the value of this point.
    pub fn add_answer(&mut self, answer: &Answer) -> bool {
        let told = match &answer.payload {
            Payload::Bytes(found) => self.add_found(answer.status, answer.value, found),
            _ => {
                self.add(answer.status, answer.value, &[]);
                let length = answer.status == Status::ValueTooLarge;
                if length { ReplyContent::Length } else { ReplyContent::Value }
            }
        };
        told == ReplyContent::Value
    }

    /// The answer of a batch whose operations run each on its own.
    pub fn of_batch(self) -> Answer {
        let count = self.count;
        Answer { args: vec![1], ..self.answer(count) }
    }

    fn answer(self, value: u64) -> Answer {
        let payload =
            if self.out.is_empty() { Payload::None } else { Payload::Bytes(self.out.into()) };
        Answer::ok(value).with(payload)
    }
}

/// The value of a `CompareFailed` result whose entry does not fit into the reply.
const UNTOLD: u64 = 2;

/// The effect of an atomic batch on one key.
struct Write<'a> {
    key: &'a [u8],
    hash: u64,
    /// `None` to delete it.
    value: Option<Cow<'a, [u8]>>,
    /// The last operation that changed it.
    by: usize,
}

/// The state of a write that has its place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteState {
    /// Written next to the old entry; to be published.
    Beside,
    /// Will be written over the entry, which has the same size.
    Over,
    /// Will delete the entry.
    Gone,
}

impl Write<'_> {
    /// Gives the write its place; nothing is visible yet.
    fn place(&self, store: &mut Store, block: &mut Backing) -> Result<WriteState, Answer> {
        let Write { key, hash, value, .. } = self;
        let Some(value) = value.as_deref() else { return Ok(WriteState::Gone) };
        let old = store.table.find(block, *hash, key);
        let gives = old.map_or(0, |hit: Hit| hit.head.size());
        if value.len() <= store.inline_max {
            if let Some(hit) = &old
                && store.table.overwrites(block, hit, key, value)
            {
                return Ok(WriteState::Over);
            }
            store.table.stage(block, *hash, key, Value::Inline(value), gives)?;
            return Ok(WriteState::Beside);
        }
        let replaces = old.map_or(0, |hit| hit.head.value_len);
        let id = store.table.alloc_large(block, value.len(), replaces)?;
        block.slice_mut(store.table.heap.values.place(id)).copy_from_slice(value);
        let staged = store.table.stage(block, *hash, key, Value::Large(id), gives);
        if let Err(refusal) = staged {
            store.table.heap.free_value(block, id);
            return Err(refusal);
        }
        Ok(WriteState::Beside)
    }
}

/// The writes of an atomic batch, over the content of the block.
#[derive(Default)]
struct WriteSet<'a> {
    writes: Vec<Write<'a>>,
    by_key: HashMap<&'a [u8], usize>,
    /// Bytes of all values made by combinations.
    made: usize,
}

impl<'a> WriteSet<'a> {
    /// Whether combinations may produce this many more bytes.
    fn admit(&self, bytes: usize) -> Result<(), Answer> {
        if self.made + bytes <= MANY_BYTES_MAX {
            return Ok(());
        }
        let text = format!("the new values of the atomic batch take over {MANY_BYTES_MAX} bytes");
        Err(Answer::refuse(Status::ValueTooLarge, text))
    }

    fn set(&mut self, key: &'a [u8], hash: u64, value: Option<Cow<'a, [u8]>>, by: usize) {
        match self.by_key.get(key) {
            Some(at) => {
                let write = &mut self.writes[*at];
                (write.value, write.by) = (value, by);
            }
            None => {
                self.by_key.insert(key, self.writes.len());
                self.writes.push(Write { key, hash, value, by });
            }
        }
    }

    /// Plans one operation of an atomic batch and adds its result. `Err` ends the batch: with a result of its
    /// own, or with the found bytes.
    fn plan(
        &mut self,
        store: &Store,
        block: &Backing,
        op: &BatchOp<'a>,
        by: usize,
        reply: &mut BatchReply,
    ) -> Result<(), Result<Answer, Vec<u8>>> {
        let key = op.key();
        let hash = store.admit_change(key).map_err(Ok)?;
        store.admit_value(brings(op)).map_err(Ok)?;
        let stored = || {
            let hit = store.table.find(block, hash, key)?;
            Some(block.slice(store.table.value_of(block, &hit)))
        };
        let known = self.by_key.get(key).map(|at| self.writes[*at].value.as_deref());
        let found: Option<&[u8]> = known.unwrap_or_else(stored);
        let there = found.is_some() as u64;
        if known.is_none() {
            over_extents(store, block, op, hash).map_err(Ok)?;
        }
        let (value, result) = match *op {
            BatchOp::Get { .. } => {
                match found {
                    None => reply.add(Status::KeyNotFound, 0, &[]),
                    Some(found) if found.len() <= reply.room() => {
                        reply.add(Status::Ok, 0, found);
                    }
                    Some(found) => {
                        let text =
                            format!("a value of {} bytes does not fit into the reply", found.len());
                        return Err(Ok(Answer::refuse(Status::ValueTooLarge, text)));
                    }
                }
                return Ok(());
            }
            BatchOp::Delete { .. } if found.is_none() => {
                reply.add(Status::KeyNotFound, 0, &[]);
                return Ok(());
            }
            BatchOp::Delete { .. } => (None, 0),
            BatchOp::Put { value, .. } => (Some(Cow::Borrowed(value)), there),
            BatchOp::Set { value, .. } => (Some(Cow::Borrowed(value)), 0),
            BatchOp::Insert { .. } if found.is_some() => return Err(Ok(bare(Status::KeyExists))),
            BatchOp::Insert { value, .. } => (Some(Cow::Borrowed(value)), 0),
            BatchOp::Swap { expected, new, .. } => {
                if found != expected {
                    let failed = bare(Status::CompareFailed);
                    return Err(match found {
                        Some(found) if found.len() + RESULT <= KV_BATCH_BYTES_MAX => {
                            Err(found.to_vec())
                        }
                        Some(_) => Ok(Answer { value: UNTOLD, ..failed }),
                        None => Ok(failed),
                    });
                }
                (Some(Cow::Borrowed(new)), 0)
            }
            BatchOp::Accumulate { function, operand, .. } => {
                let makes = match function {
                    // Checked before the value is copied, which may be long.
                    Function::Append => found.map_or(0, <[u8]>::len) + operand.len(),
                    _ => 0,
                };
                self.admit(makes).map_err(Ok)?;
                let made = combine(function, found, operand).map_err(Ok)?;
                self.admit(made.bytes().len()).map_err(Ok)?;
                self.made += made.bytes().len();
                store.admit_value(made.bytes().len()).map_err(Ok)?;
                let value = made.value();
                (Some(Cow::Owned(made.into_bytes())), value)
            }
        };
        self.set(key, hash, value, by);
        reply.add(Status::Ok, result, &[]);
        Ok(())
    }

    /// Makes all writes or none; in the latter case returns the operation that had no room, and why.
    fn commit(&self, store: &mut Store, block: &mut Backing) -> Result<(), (usize, Answer)> {
        let mut placed = Vec::with_capacity(self.writes.len());
        for write in &self.writes {
            match write.place(store, block) {
                Ok(place) => placed.push(place),
                Err(refusal) => {
                    self.take_back(store, block, &placed);
                    return Err((write.by, refusal));
                }
            }
        }
        for (write, place) in self.writes.iter().zip(placed) {
            let Write { key, hash, value, .. } = write;
            if value.is_some() {
                store.events.changed(|| Change::Put { key: (*key).into() });
            }
            match place {
                WriteState::Beside => store.table.publish(block, *hash, key),
                WriteState::Over => {
                    let old = store.table.find(block, *hash, key);
                    let old = old.expect("INV-38: an entry that is written over is there");
                    let value = value.as_deref().expect("only values are written");
                    store.table.overwrite_with(block, &old, key, value);
                }
                WriteState::Gone => {
                    if let Some(old) = store.table.find(block, *hash, key) {
                        store.table.remove(block, &old);
                        store.events.changed(|| Change::Delete { key: (*key).into() });
                    }
                }
            }
        }
        Ok(())
    }

    fn take_back(&self, store: &mut Store, block: &mut Backing, placed: &[WriteState]) {
        for (write, place) in self.writes.iter().zip(placed) {
            if *place == WriteState::Beside {
                let staged = store.table.find_staged(block, write.hash, write.key);
                let staged = staged.expect("INV-38: a staged write is lost before it is published");
                store.table.remove(block, &staged);
            }
        }
    }
}

/// Refuses operations of an atomic batch that do not work on a value that is a list of extents.
fn over_extents(store: &Store, block: &Backing, op: &BatchOp<'_>, hash: u64) -> Result<(), Answer> {
    let Some(hit) = store.table.find(block, hash, op.key()).filter(|hit| hit.head.extents()) else {
        return Ok(());
    };
    match op {
        BatchOp::Get { .. } | BatchOp::Swap { .. } | BatchOp::Accumulate { .. } => {
            store.need_whole(block, &hit)
        }
        BatchOp::Put { .. }
        | BatchOp::Set { .. }
        | BatchOp::Insert { .. }
        | BatchOp::Delete { .. } => Ok(()),
    }
}

/// Prefetches the entries of at most `AHEAD` keys; returns the hash and region of each.
fn prefetch_all<'a, B: Bytes>(
    table: &Table,
    block: &B,
    keys: impl Iterator<Item = &'a [u8]>,
) -> [(u64, Option<u32>); AHEAD] {
    let mut ahead = [(0, None); AHEAD];
    for ((hash, region), key) in ahead.iter_mut().zip(keys) {
        *hash = key_hash(key);
        *region = table.prefetch_index(block, *hash);
    }
    for (hash, region) in &ahead {
        if let Some(region) = region
            && B::ALL
        {
            table.heap.regions.get(*region).prefetch_entry(block, *hash as u32);
        }
    }
    ahead
}

impl Store {
    pub fn multi_get<B: Bytes>(
        &self,
        block: &B,
        args: &[u8],
        payload: &[u8],
    ) -> Result<Answer, Answer> {
        let most = u32::decode(args)? as usize;
        admit_request(payload)?;
        let keys = keys(payload)?;
        admit_count(keys.len())?;
        let keys = match B::ALL {
            true => &keys[..],
            // The client repeats the rest.
            false => match self.reach_many(block, &keys) {
                Some(reached) => &keys[..reached],
                None => return Ok(unanswered()),
            },
        };
        let mut reply = BatchReply::new(most.min(MANY_BYTES_MAX));
        let mut ahead = [(0, None); AHEAD];
        for (at, key) in keys.iter().copied().enumerate() {
            if reply.full() {
                break;
            }
            if at % AHEAD == 0 {
                ahead = prefetch_all(&self.table, block, keys[at..].iter().copied());
            }
            let (hash, region) = ahead[at % AHEAD];
            let hit = match self.admit_hashed(key, hash, false) {
                Ok(()) if B::ALL => {
                    let region = region.expect("INV-17: a hash of the block's range has a region");
                    self.table.find_in(block, region, hash as u32, key).map(Found::Entry)
                }
                Ok(()) => self.reach(block, hash, key).expect("INV-41: its bytes were fetched"),
                Err(refusal) if passing(&refusal) && reply.count == 0 => return Err(refusal),
                Err(refusal) if passing(&refusal) => break,
                Err(refusal) => {
                    reply.add_refusal(&refusal);
                    continue;
                }
            };
            let told = match hit {
                None => reply.add_found(Status::KeyNotFound, 0, &[]),
                Some(Found::Value(value)) => reply.add_found(Status::Ok, 0, value),
                Some(Found::Below(range)) => reply.add_found(Status::Ok, 0, block.slice(range)),
                Some(Found::Entry(hit)) if hit.head.extents() => {
                    reply.add(Status::ValueTooLarge, self.table.length_of(block, &hit), &[]);
                    ReplyContent::Length
                }
                Some(Found::Entry(hit)) => {
                    reply.add_found(Status::Ok, 0, block.slice(self.table.value_of(block, &hit)))
                }
            };
            if told == ReplyContent::Nothing {
                break;
            }
        }
        let count = reply.count;
        Ok(reply.answer(count))
    }

    pub fn batch(
        &mut self,
        block: &mut Backing,
        args: &[u8],
        payload: &[u8],
    ) -> Result<Answer, Answer> {
        let (atomic, rest) = mode_and_key(args)?;
        if !rest.is_empty() {
            return Err(Answer::refuse(Status::BadFrame, "KvBatch takes one byte of arguments"));
        }
        admit_request(payload)?;
        let ops = batch_ops(payload)?;
        admit_count(ops.len())?;
        if atomic { self.run_atomic(block, &ops) } else { self.run_each(block, &ops) }
    }

    /// Runs operations in order, each on its own, until one has to wait.
    fn run_each(&mut self, block: &mut Backing, ops: &[BatchOp<'_>]) -> Result<Answer, Answer> {
        let mut reply = BatchReply::new(KV_BATCH_BYTES_MAX);
        let mut ahead = [(0, None); AHEAD];
        for (at, op) in ops.iter().enumerate() {
            if reply.full() {
                break;
            }
            if at % AHEAD == 0 {
                ahead = prefetch_all(&self.table, block, ops[at..].iter().map(BatchOp::key));
            }
            let goes_on = match self.run_one(block, op, ahead[at % AHEAD].0) {
                Ok(answer) => match &answer.payload {
                    // Only operations that change nothing answer with bytes of the block.
                    Payload::Block(range) => {
                        let found = block.slice(range.clone());
                        let told = reply.add_found(answer.status, answer.value, found);
                        told == ReplyContent::Value
                    }
                    _ => reply.add_answer(&answer),
                },
                Err(refusal) if passing(&refusal) && reply.is_empty() => return Err(refusal),
                Err(refusal) if passing(&refusal) => break,
                Err(refusal) => {
                    reply.add_refusal(&refusal);
                    true
                }
            };
            if !goes_on {
                break;
            }
        }
        Ok(reply.of_batch())
    }

    fn run_one(
        &mut self,
        block: &mut Backing,
        op: &BatchOp<'_>,
        hash: u64,
    ) -> Result<Answer, Answer> {
        let key = op.key();
        // The batch is recorded as a whole.
        self.ownership.need_arrived(hash, true)?;
        self.admit_hashed(key, hash, !matches!(op, BatchOp::Get { .. }))?;
        self.admit_value(brings(op))?;
        let old = self.table.find(block, hash, key);
        let there = old.is_some() as u64;
        let (value, answer) = match *op {
            BatchOp::Get { .. } => {
                let hit = old.ok_or_else(|| bare(Status::KeyNotFound))?;
                if hit.head.extents() {
                    let length = self.table.length_of(block, &hit);
                    return Ok(Answer { value: length, ..bare(Status::ValueTooLarge) });
                }
                return Ok(Answer::ok(0).with(Payload::Block(self.table.value_of(block, &hit))));
            }
            BatchOp::Delete { .. } => {
                let hit = old.ok_or_else(|| bare(Status::KeyNotFound))?;
                self.table.remove(block, &hit);
                self.events.changed(|| Change::Delete { key: key.into() });
                return Ok(Answer::ok(0));
            }
            BatchOp::Accumulate { function, operand, .. } => {
                let args = honeycomb_wire::stored::accumulate_args(function, key);
                return self.accumulate(block, &args, operand).map(without_list);
            }
            BatchOp::Put { value, .. } => (value, Answer::ok(there)),
            BatchOp::Set { value, .. } => (value, Answer::ok(0)),
            BatchOp::Insert { .. } if old.is_some() => return Err(bare(Status::KeyExists)),
            BatchOp::Insert { value, .. } => (value, Answer::ok(0)),
            BatchOp::Swap { expected, new, .. } => {
                if let Some(hit) = &old {
                    self.need_whole(block, hit)?;
                }
                let found = old.map(|hit| self.table.value_of(block, &hit));
                if found.as_ref().map(|range| block.slice(range.clone())) != expected {
                    let answer = Answer { value: there, ..bare(Status::CompareFailed) };
                    return Ok(match found {
                        Some(range) => answer.with(Payload::Block(range)),
                        None => answer,
                    });
                }
                (new, Answer::ok(0))
            }
        };
        self.set(block, hash, key, old, Incoming::Bytes(value))?;
        Ok(answer)
    }

    /// Runs all operations or none.
    fn run_atomic(&mut self, block: &mut Backing, ops: &[BatchOp<'_>]) -> Result<Answer, Answer> {
        self.admit_slot(ops)?;
        let mut writes = WriteSet::default();
        // Every operation has at least its bare result, so that much is reserved.
        let mut reply = BatchReply::new(KV_BATCH_BYTES_MAX - RESULT * ops.len());
        for (by, op) in ops.iter().enumerate() {
            reply.most += RESULT;
            if let Err(refusal) = writes.plan(self, block, op, by, &mut reply) {
                if Bug::BatchHalfDone.active() {
                    let _ = writes.commit(self, block);
                }
                return refused(by, refusal);
            }
        }
        if let Err((by, refusal)) = writes.commit(self, block) {
            return refused(by, Ok(refusal));
        }
        Ok(Answer { args: vec![1], ..reply.answer(ops.len() as u64) })
    }

    /// Checks that all keys of an atomic batch are in one slot, and belong to this block.
    fn admit_slot(&self, ops: &[BatchOp<'_>]) -> Result<(), Answer> {
        let slot = |key| slot_of(key_hash(key));
        let Some(first) = ops.first().map(BatchOp::key) else { return Ok(()) };
        if let Some(other) = ops.iter().map(BatchOp::key).find(|key| slot(key) != slot(first)) {
            return Err(Answer::refuse(
                Status::InvalidArgument,
                format!(
                    "all keys of an atomic batch must be in one hash slot, but '{}' and '{}' are \
                     not; give them the same {{tag}}",
                    shown(first),
                    shown(other)
                ),
            ));
        }
        match self.admit_change(first) {
            Err(refusal) if passing(&refusal) => Err(refusal),
            _ => Ok(()),
        }
    }
}

/// The answer of an atomic batch that was not applied: the index of the operation that failed, and its
/// result, which is a refusal or the value found by a comparison. A refusal that may pass is the answer of
/// the whole batch.
fn refused(by: usize, why: Result<Answer, Vec<u8>>) -> Result<Answer, Answer> {
    let mut reply = BatchReply::new(KV_BATCH_BYTES_MAX);
    match why {
        Ok(refusal) if passing(&refusal) => return Err(refusal),
        Ok(refusal) => reply.add_refusal(&refusal),
        Err(found) => reply.add(Status::CompareFailed, 1, &found),
    }
    Ok(Answer { args: vec![0], ..reply.answer(by as u64) })
}

/// Length of the value in an operation.
fn brings(op: &BatchOp<'_>) -> usize {
    match op {
        BatchOp::Put { value, .. } | BatchOp::Set { value, .. } | BatchOp::Insert { value, .. } => {
            value.len()
        }
        BatchOp::Swap { new, .. } => new.len(),
        BatchOp::Get { .. } | BatchOp::Delete { .. } | BatchOp::Accumulate { .. } => 0,
    }
}

/// In a batch the answer for a list is only its number of items.
fn without_list(mut answer: Answer) -> Answer {
    answer.payload = Payload::None;
    answer
}

/// The beginning of a key, as text for messages.
pub(super) fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(&key[..key.len().min(80)]).into_owned()
}
