//! Batches of keys of a key-value store, and combining a value in place.

use crate::context::Context;
use crate::error::Error;
use crate::kv::{Kv, Swap};
use crate::limits::{PIPED_AT_ONCE, PIPED_BYTES_MAX, PIPED_REQUESTS_MAX};
use crate::many::run_many;
use crate::pipe::{Landed, Pipe, PipedRequest};
use crate::route::{Target, position};
use crate::structure::{Args, Exchange, Replied};
use crate::transport::Sink;
use honeycomb_types::Time;
use honeycomb_types::limits::{KEY_MAX, KV_BATCH_BYTES_MAX, KV_BATCH_MAX, MANY_BYTES_MAX};
use honeycomb_wire::batch::{BatchOp, BatchResult, put_batch, put_keys, results};
use honeycomb_wire::data::Scanned;
use honeycomb_wire::stored::{Function, Item, Stored, TopOperand, accumulate_args};
use honeycomb_wire::{Op, Status, key_hash};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a list's count.
const COUNT: usize = 4;
// A key that is read with others never needs a request of its own.
const _: () = assert!(COUNT + 2 + KEY_MAX <= KV_BATCH_BYTES_MAX);

/// The result of one operation of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Done {
    /// The value that was read; `None` without an entry.
    Read(Option<Vec<u8>>),
    /// Stored; whether an entry was replaced.
    Stored(bool),
    /// Stored; whether an entry was replaced was not asked.
    Set,
    /// Whether there was an entry to delete.
    Deleted(bool),
    /// The result of a compare-and-swap.
    Swapped(Swap),
    /// The new value; for a list, only its number of items.
    Combined(Accumulated),
}

/// The new value after an accumulation.
#[derive(Clone, Debug, PartialEq)]
pub enum Accumulated {
    /// A whole number.
    Integer(i64),
    /// A floating-point number.
    Float(f64),
    /// The new length of the value, in bytes.
    Length(u64),
    /// A top list, best first.
    Top(Vec<TopItem>),
    /// The number of items of a top list.
    Items(u64),
}

/// One item of a top list.
#[derive(Clone, Debug, PartialEq)]
pub struct TopItem {
    /// Larger is better.
    pub score: f64,
    /// The item.
    pub item: Vec<u8>,
}

/// A number stored under a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole number.
    Integer(i64),
    /// A floating-point number.
    Float(f64),
}

/// The result of an atomic batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Atomic {
    /// All operations took effect, with these results.
    Applied(Vec<Done>),
    /// No operation took effect, because this one failed.
    Refused {
        /// The index of the failed operation, from 0.
        index: usize,
        /// Why.
        error: Error,
        /// The value that a failed compare-and-swap found, or `Some(None)` for no entry. `None` for
        /// other operations, and if the value does not fit into the reply; `error` says so.
        found: Option<Option<Vec<u8>>>,
    },
}

/// A request for many keys.
struct BatchRequest<'a> {
    op: Op,
    args: &'a [u8],
    /// Whether operations on one key keep their order: then requests to a block with a key that
    /// repeats are sent one after the other.
    ordered: bool,
    /// The payload of a request for some of the keys.
    payload: &'a dyn Fn(&[usize]) -> Vec<u8>,
    /// The bytes of one key in a payload.
    size: &'a dyn Fn(usize) -> usize,
}

/// The values of many keys, in the order of the keys, from as few allocations as replies.
pub struct Values {
    /// The values that arrived with others, one behind the other.
    bytes: Vec<u8>,
    places: Vec<Result<ValuePlace, Error>>,
    context: Arc<Context>,
}

impl Drop for Values {
    fn drop(&mut self) {
        self.context.buffers.give(std::mem::take(&mut self.bytes));
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Values({} keys, {} bytes)", self.places.len(), self.bytes.len())
    }
}

/// Where the value of one key is.
#[derive(Clone, Debug)]
enum ValuePlace {
    Nowhere,
    /// A part of the common bytes.
    Among(Range<usize>),
    /// It was too large to arrive with others.
    Alone(Vec<u8>),
}

impl Values {
    /// For each key, its value, `None` for a key without an entry, or its error.
    pub fn iter(&self) -> impl Iterator<Item = Result<Option<&[u8]>, &Error>> {
        self.places.iter().map(|place| {
            Ok(match place.as_ref()? {
                ValuePlace::Nowhere => None,
                ValuePlace::Among(range) => Some(&self.bytes[range.clone()]),
                ValuePlace::Alone(value) => Some(&value[..]),
            })
        })
    }

    /// Each value on its own.
    pub fn into_vec(mut self) -> Vec<Result<Option<Vec<u8>>, Error>> {
        let places = std::mem::take(&mut self.places);
        let owned = |place| match place {
            ValuePlace::Nowhere => None,
            ValuePlace::Among(range) => Some(self.bytes[range].to_vec()),
            ValuePlace::Alone(value) => Some(value),
        };
        places.into_iter().map(|place| place.map(owned)).collect()
    }
}

/// The outcome for one key.
enum KeyOutcome<'a> {
    Answered(BatchResult<'a>),
    /// The operation does not fit into a request for many keys; no later operation on its block has
    /// been sent.
    Alone,
    Failed(Error),
}

/// The keys without a result, and the receiver of results.
struct Unanswered<F> {
    open: Vec<bool>,
    answer: F,
}

impl<F: FnMut(usize, KeyOutcome<'_>)> Unanswered<F> {
    /// The indices of the keys without a result, in order.
    fn indices(&self) -> Vec<usize> {
        (0..self.open.len()).filter(|index| self.open[*index]).collect()
    }

    /// Passes on the result of a key. A key has one result.
    fn complete(&mut self, index: usize, outcome: KeyOutcome<'_>) {
        assert!(self.open[index], "INV-16: key {index} of a batch has two results");
        self.open[index] = false;
        (self.answer)(index, outcome);
    }
}

/// Keys of one block in one request.
struct BlockGroup {
    indices: Vec<usize>,
    /// The range of hashes that the group needs.
    start: u64,
    end: u64,
}

impl Kv {
    /// Reads the values of many keys, in the order of the keys; `None` for a key without an entry.
    /// A key that could not be read has its own error and does not affect the others.
    ///
    /// Sends one request to each block that holds some of the keys (more if keys and values do not
    /// fit into one), all concurrently. The deadline applies to each request. Each key is read as
    /// by `get`; nothing orders the reads of different keys.
    pub fn multi_get(&self, keys: &[&[u8]]) -> Vec<Result<Option<Vec<u8>>, Error>> {
        self.multi_get_values(keys).into_vec()
    }

    /// As `multi_get`, with the values beside each other: for a caller that copies each of many
    /// small values to its place.
    pub fn multi_get_values(&self, keys: &[&[u8]]) -> Values {
        let context = self.0.context().clone();
        let mut bytes = context.buffers.take();
        let mut places = vec![Ok(ValuePlace::Nowhere); keys.len()];
        let mut alone = Vec::new();
        let args = (MANY_BYTES_MAX as u32).to_le_bytes();
        let ask = BatchRequest {
            op: Op::KvMultiGet,
            args: &args,
            ordered: false,
            payload: &|group| put_keys(&group.iter().map(|i| keys[*i]).collect::<Vec<_>>()),
            size: &|index| 2 + keys[index].len(),
        };
        self.rounds(&ask, keys, |index, result| {
            places[index] = match result {
                KeyOutcome::Failed(e) => Err(e),
                KeyOutcome::Alone => unreachable!("every key has room in a request"),
                KeyOutcome::Answered(result) => match result.status {
                    Status::Ok => {
                        let start = bytes.len();
                        bytes.extend_from_slice(result.bytes);
                        Ok(ValuePlace::Among(start..bytes.len()))
                    }
                    Status::KeyNotFound => Ok(ValuePlace::Nowhere),
                    Status::ValueTooLarge => {
                        alone.push(index);
                        Ok(ValuePlace::Nowhere)
                    }
                    _ => Err(self.refusal(keys[index], &result)),
                },
            };
        });
        for (index, value) in alone.iter().zip(self.read_alone(keys, &alone)) {
            places[*index] =
                value.map(|value| value.map_or(ValuePlace::Nowhere, ValuePlace::Alone));
        }
        Values { bytes, places, context }
    }

    /// Reads some of the keys with a request for each, all concurrently.
    fn read_alone(&self, keys: &[&[u8]], some: &[usize]) -> Vec<Result<Option<Vec<u8>>, Error>> {
        let mut values: Vec<Vec<u8>> = vec![Vec::new(); some.len()];
        let exchanges = some.iter().zip(&mut values).map(|(index, value)| Exchange {
            op: Op::KvGet,
            target: Target::Hash(key_hash(keys[*index])),
            args: Args::Fixed(keys[*index]),
            payload: &[],
            sink: Sink::Vec(value),
            wait_until: None,
        });
        let replies = run_many(&self.0, exchanges.collect());
        let read =
            some.iter().zip(replies).zip(values).map(|((index, reply), value)| match reply {
                Ok(reply) if reply.header.status == Status::Extents => {
                    self.scanned_value(keys[*index], Scanned::Extents(&reply.args))
                }
                reply => reply.map(|r| (r.header.status == Status::Ok).then_some(value)),
            });
        read.collect()
    }

    /// Stores many entries independently. Returns for each whether it replaced an entry, or its
    /// error. Of equal keys, the last value stays.
    pub fn multi_put(&self, entries: &[(&[u8], &[u8])]) -> Vec<Result<bool, Error>> {
        let ops: Vec<BatchOp<'_>> =
            entries.iter().map(|&(key, value)| BatchOp::Put { key, value }).collect();
        let done = self.batch(&ops).into_iter();
        done.map(|done| done.map(|done| done == Done::Stored(true))).collect()
    }

    /// As `multi_put`, without the answer whether an entry was replaced, as `set`.
    pub fn multi_set(&self, entries: &[(&[u8], &[u8])]) -> Vec<Result<(), Error>> {
        let ops: Vec<BatchOp<'_>> =
            entries.iter().map(|&(key, value)| BatchOp::Set { key, value }).collect();
        self.batch(&ops).into_iter().map(|done| done.map(drop)).collect()
    }

    /// Deletes many keys independently. Returns for each whether there was an entry, or its error.
    pub fn multi_delete(&self, keys: &[&[u8]]) -> Vec<Result<bool, Error>> {
        let ops: Vec<BatchOp<'_>> = keys.iter().map(|&key| BatchOp::Delete { key }).collect();
        let done = self.batch(&ops).into_iter();
        done.map(|done| done.map(|done| done == Done::Deleted(true))).collect()
    }

    /// Runs any number of operations independently and returns the results in order. Operations on
    /// the same key take effect in their order; nothing orders operations on different keys. Each
    /// takes effect once. A failed operation does not affect the others.
    ///
    /// Requests are sent as for `multi_get`. If a key repeats, the requests to a block follow each
    /// other: after one that failed as a whole (lost server, deadline), the remaining operations on
    /// the block are not sent, and their errors say so.
    pub fn batch(&self, ops: &[BatchOp<'_>]) -> Vec<Result<Done, Error>> {
        let keys: Vec<&[u8]> = ops.iter().map(BatchOp::key).collect();
        let mut out: Vec<Result<Done, Error>> = vec![Ok(Done::Read(None)); ops.len()];
        let ask = BatchRequest {
            op: Op::KvBatch,
            args: &[0],
            ordered: true,
            payload: &|group| put_batch(&group.iter().map(|i| ops[*i]).collect::<Vec<_>>()),
            size: &|index| match &ops[index] {
                // Too large for its block, and hence for a batch request.
                BatchOp::Put { value, .. }
                | BatchOp::Set { value, .. }
                | BatchOp::Insert { value, .. }
                    if value.len() > self.plain_limit() =>
                {
                    KV_BATCH_BYTES_MAX + 1
                }
                op => op.size(),
            },
        };
        self.rounds(&ask, &keys, |index, result| {
            let op = &ops[index];
            out[index] = match result {
                KeyOutcome::Failed(e) => Err(e),
                KeyOutcome::Alone => self.single(op).map_err(|e| self.of_key(op.key(), e)),
                // The block has run no later operation, so this one keeps its position in the
                // order.
                KeyOutcome::Answered(result)
                    if result.status == Status::ValueTooLarge
                        && matches!(op, BatchOp::Get { .. }) =>
                {
                    self.single(op)
                }
                KeyOutcome::Answered(result) => self.done(op, &result),
            };
        });
        out
    }

    /// Runs operations on keys of one hash slot (give them the same `{tag}`). Either all take
    /// effect, at once for every reader, or none does. An operation sees the effects of earlier
    /// ones in the batch. Reading or deleting an absent key is not a failure; use compare-and-swap
    /// to require an entry.
    ///
    /// At most `KV_BATCH_MAX` operations and `KV_BATCH_BYTES_MAX` bytes in total. Returns
    /// `InvalidArgument` if the keys are in different slots. A full block refuses an atomic batch
    /// whose new values do not fit beside the old ones.
    pub fn atomic(&self, ops: &[BatchOp<'_>]) -> Result<Atomic, Error> {
        let Some(first) = ops.first() else { return Ok(Atomic::Applied(Vec::new())) };
        self.admit_atomic(ops)?;
        let payload = put_batch(ops);
        let length = payload.len();
        assert!(length <= KV_BATCH_BYTES_MAX, "INV-31: an admitted batch has {length} bytes");
        let mut bytes = Vec::new();
        let replied = self.0.run(Exchange {
            op: Op::KvBatch,
            target: Target::Hash(key_hash(first.key())),
            args: Args::Fixed(&[1]),
            payload: &[&payload],
            sink: Sink::Vec(&mut bytes),
            wait_until: None,
        })?;
        let value = replied.header.value as usize;
        if replied.args.first() == Some(&1) && value == ops.len() {
            let done = ops.iter().zip(results(&bytes, value)?);
            let done = done.map(|(op, result)| self.done(op, &result));
            return Ok(Atomic::Applied(done.collect::<Result<_, _>>()?));
        }
        let (Some(op), [result]) = (ops.get(value), &results(&bytes, 1)?[..]) else {
            return Err(unexpected("a batch", replied.header.value));
        };
        let found = match (result.status, result.value) {
            (Status::CompareFailed, 0) => Some(None),
            (Status::CompareFailed, 1) => Some(Some(result.bytes.to_vec())),
            // The value exists but is not in the reply.
            _ => None,
        };
        let mut error = self.refusal(op.key(), result);
        error.message = format!(
            "operation {value} of an atomic batch failed, and no operation was applied: {}",
            error.message
        );
        Ok(Atomic::Refused { index: value, error, found })
    }

    fn admit_atomic(&self, ops: &[BatchOp<'_>]) -> Result<(), Error> {
        let refuse =
            |status, text| Err(Error::new(status, format!("{}: {text}", self.0.address())));
        if ops.len() > KV_BATCH_MAX {
            let text =
                format!("an atomic batch of {} operations; the limit is {KV_BATCH_MAX}", ops.len());
            return refuse(Status::InvalidArgument, text);
        }
        if let Some(op) = ops.iter().find(|op| op.key().len() > KEY_MAX) {
            let text = format!("a key of {} bytes; the limit is {KEY_MAX}", op.key().len());
            return refuse(Status::KeyTooLarge, text);
        }
        let size = COUNT + ops.iter().map(BatchOp::size).sum::<usize>();
        if size > KV_BATCH_BYTES_MAX {
            let text =
                format!("an atomic batch of {size} bytes; the limit is {KV_BATCH_BYTES_MAX}");
            return refuse(Status::ValueTooLarge, text);
        }
        Ok(())
    }

    /// Combines the value of a key with an operand, atomically. Without an entry, the operand
    /// alone determines the value. Returns `InvalidArgument`, and changes nothing, if the stored
    /// value has another type, if a sum overflows an `i64` or becomes NaN, and for NaN operands.
    pub fn accumulate(
        &self,
        key: &[u8],
        function: Function,
        operand: &[u8],
    ) -> Result<Accumulated, Error> {
        self.0.check_length("an operand", operand.len(), KV_BATCH_BYTES_MAX, "")?;
        self.check_key(key)?;
        let args = accumulate_args(function, key);
        let mut bytes = Vec::new();
        let replied =
            self.send_one(Op::KvAccumulate, key, &args, &[operand], Sink::Vec(&mut bytes))?;
        if function == Function::Top {
            let Stored::Top(items) = Stored::of(&bytes) else {
                return Err(unexpected("KvAccumulate", bytes.len() as u64));
            };
            return Ok(Accumulated::Top(owned(&items)));
        }
        Ok(accumulated(function, replied.header.value))
    }

    /// Adds to the `i64` of a key and returns the sum.
    pub fn add(&self, key: &[u8], n: i64) -> Result<i64, Error> {
        match self.accumulate(key, Function::SumI64, &n.to_le_bytes())? {
            Accumulated::Integer(n) => Ok(n),
            _ => unreachable!("a sum of i64 is one"),
        }
    }

    /// Appends to the value of a key, atomically, and returns the new length. The whole value is
    /// written again, so data that grows long belongs in a file.
    pub fn append(&self, key: &[u8], bytes: &[u8]) -> Result<u64, Error> {
        match self.accumulate(key, Function::Append, bytes)? {
            Accumulated::Length(length) => Ok(length),
            _ => unreachable!("appending answers a length"),
        }
    }

    /// Adds an item to the list of the `k` best and returns the list. An item appears once, with
    /// its best score; of equal scores the smaller item is first.
    pub fn top_add(
        &self,
        key: &[u8],
        k: u32,
        score: f64,
        item: &[u8],
    ) -> Result<Vec<TopItem>, Error> {
        let operand = TopOperand { k, item: Item { score, bytes: item } }.encode();
        match self.accumulate(key, Function::Top, &operand)? {
            Accumulated::Top(items) => Ok(items),
            _ => unreachable!("top answers a list"),
        }
    }

    /// The number of a key; `None` without an entry, `InvalidArgument` if the value is not a
    /// number.
    pub fn number(&self, key: &[u8]) -> Result<Option<Number>, Error> {
        let mut value = Vec::new();
        if !self.get(key, &mut value)? {
            return Ok(None);
        }
        match Stored::of(&value) {
            Stored::Integer(n) => Ok(Some(Number::Integer(n))),
            Stored::Float(n) => Ok(Some(Number::Float(n))),
            other => Err(self.not_stored(key, &value, &other, "a number")),
        }
    }

    /// The top list of a key, best first; `None` without an entry, `InvalidArgument` if the value
    /// is not a top list.
    pub fn top(&self, key: &[u8]) -> Result<Option<Vec<TopItem>>, Error> {
        let mut value = Vec::new();
        if !self.get(key, &mut value)? {
            return Ok(None);
        }
        match Stored::of(&value) {
            Stored::Top(items) => Ok(Some(owned(&items))),
            other => Err(self.not_stored(key, &value, &other, "a top list")),
        }
    }

    fn not_stored(&self, key: &[u8], value: &[u8], found: &Stored<'_>, wanted: &str) -> Error {
        let what = format!("holds {} ({} bytes), not {wanted}", found.name(), value.len());
        self.about(Status::InvalidArgument, key, &what)
    }

    /// Sends requests for many keys, grouped by block and to all blocks at once, until each key has
    /// its result. Calls `answer` once for each key.
    ///
    /// If the map now divides a group, the next round divides it by the fresh map. If a group was
    /// answered in part, the next round requests the rest.
    fn rounds(
        &self,
        ask: &BatchRequest<'_>,
        keys: &[&[u8]],
        answer: impl FnMut(usize, KeyOutcome<'_>),
    ) {
        // A key over its limit has no hash: it is refused below.
        let hash = |key: &&[u8]| if key.len() > KEY_MAX { 0 } else { key_hash(key) };
        let hashes: Vec<u64> = keys.iter().map(hash).collect();
        let ask = &BatchRequest { ordered: ask.ordered && repeats(&hashes), ..*ask };
        let mut unanswered = Unanswered { open: vec![true; keys.len()], answer };
        for (index, key) in keys.iter().enumerate().filter(|(_, key)| key.len() > KEY_MAX) {
            let text = format!(
                "{}: a key of {} bytes; the limit is {KEY_MAX}",
                self.0.address(),
                key.len()
            );
            let e = Error::new(Status::KeyTooLarge, text);
            unanswered.complete(index, KeyOutcome::Failed(e));
        }
        loop {
            let pending = unanswered.indices();
            if pending.is_empty() {
                return;
            }
            let groups = self.groups(ask, &pending, &hashes);
            let (all, asked) =
                (pending.len(), groups.iter().map(|group| group.indices.len()).sum::<usize>());
            assert!(0 < asked && asked <= all, "INV-16: {asked} of {all} open keys are requested");
            let whole = ask.ordered || asked == all;
            assert!(whole, "INV-16: {asked} of {all} keys without an order are requested");
            let (lone, groups): (Vec<BlockGroup>, Vec<BlockGroup>) =
                groups.into_iter().partition(|group| too_large(ask, group.indices[0]));
            for index in lone.into_iter().map(|group| group.indices[0]) {
                unanswered.complete(index, KeyOutcome::Alone);
            }
            match &groups[..] {
                // The payload of a single request is not copied.
                [group] => self.send_alone(ask, group, &hashes, &mut unanswered),
                groups => self.send_piped(ask, groups, &hashes, &mut unanswered),
            }
        }
    }

    /// The payload of a request.
    fn payload_of(ask: &BatchRequest<'_>, group: &BlockGroup) -> Vec<u8> {
        let payload = (ask.payload)(&group.indices);
        debug_assert!(
            payload.len() <= KV_BATCH_BYTES_MAX,
            "INV-31: a request for many keys has more bytes than were counted for them"
        );
        payload
    }

    fn send_alone(
        &self,
        ask: &BatchRequest<'_>,
        group: &BlockGroup,
        hashes: &[u64],
        unanswered: &mut Unanswered<impl FnMut(usize, KeyOutcome<'_>)>,
    ) {
        let payload = Self::payload_of(ask, group);
        let buffers = &self.0.context().buffers;
        let mut reply = buffers.take();
        let ended = self.0.run(Exchange {
            op: ask.op,
            target: span(&group.indices, hashes),
            args: Args::Fixed(ask.args),
            payload: &[&payload],
            sink: Sink::Vec(&mut reply),
            wait_until: None,
        });
        self.take_group((ask, group), ended, &reply, hashes, unanswered);
        buffers.give(reply);
    }

    /// Sends requests to several blocks, as many together as a connection to their shard takes.
    fn send_piped(
        &self,
        ask: &BatchRequest<'_>,
        groups: &[BlockGroup],
        hashes: &[u64],
        unanswered: &mut Unanswered<impl FnMut(usize, KeyOutcome<'_>)>,
    ) {
        let buffers = &self.0.context().buffers;
        let mut pipe = Pipe::new(self.0.context().clone());
        let (mut begun, mut bytes, mut unsent) = (0, 0, 0);
        while begun < groups.len() || pipe.under_way() > 0 {
            while begun < groups.len()
                && bytes < PIPED_BYTES_MAX
                && pipe.under_way() < PIPED_REQUESTS_MAX
            {
                let payload = Self::payload_of(ask, &groups[begun]);
                bytes += payload.len();
                unsent += payload.len();
                pipe.begin(PipedRequest {
                    kv: self,
                    op: ask.op,
                    target: span(&groups[begun].indices, hashes),
                    args: ask.args.to_vec(),
                    payload,
                    value: buffers.take(),
                    ticket: begun as u64,
                });
                begun += 1;
                if unsent >= PIPED_AT_ONCE {
                    pipe.send_now();
                    unsent = 0;
                }
            }
            pipe.step(Time::NEVER, false);
            while let Some(Landed { asked, result }) = pipe.landed() {
                bytes -= asked.payload.len();
                let group = &groups[asked.ticket as usize];
                self.take_group((ask, group), result, &asked.value, hashes, unanswered);
                buffers.give(asked.value);
            }
        }
        pipe.give_back();
    }

    /// Distributes the results of one request.
    fn take_group(
        &self,
        (ask, group): (&BatchRequest<'_>, &BlockGroup),
        ended: Result<Replied, Error>,
        bytes: &[u8],
        hashes: &[u64],
        unanswered: &mut Unanswered<impl FnMut(usize, KeyOutcome<'_>)>,
    ) {
        let answered = ended.and_then(|replied| {
            let count = replied.header.value;
            if count == 0 || count > group.indices.len() as u64 {
                return Err(unexpected("a request for many keys", count));
            }
            Ok(results(bytes, count as usize)?)
        });
        match answered {
            Ok(results) => {
                for (index, result) in group.indices.iter().zip(results) {
                    unanswered.complete(*index, KeyOutcome::Answered(result));
                }
            }
            // The map now divides the group, and so will the next round.
            Err(e) if e.status == Status::WrongRange => {}
            // The block has no space for the first operation: it waited for space, and no later
            // operation has run. The later ones may need no space.
            Err(e) if ask.op == Op::KvBatch && e.status == Status::OutOfMemory => {
                unanswered.complete(group.indices[0], KeyOutcome::Failed(e));
            }
            Err(e) => {
                for index in &group.indices {
                    unanswered.complete(*index, KeyOutcome::Failed(e.clone()));
                }
                if !ask.ordered {
                    return;
                }
                let status = match e.status {
                    Status::OutcomeUnknown => Status::Unavailable,
                    status => status,
                };
                let text = format!(
                    "not sent, because an earlier request to the same block failed: {}",
                    e.message
                );
                for index in unanswered.indices() {
                    if (group.start..=group.end).contains(&hashes[index]) {
                        let e = Error::new(status, text.clone());
                        unanswered.complete(index, KeyOutcome::Failed(e));
                    }
                }
            }
        }
    }

    /// Divides keys into requests by the map: all requests, or only the first for each block if
    /// order matters.
    fn groups(&self, ask: &BatchRequest<'_>, pending: &[usize], hashes: &[u64]) -> Vec<BlockGroup> {
        let mut by_block: Vec<BlockGroup> = self.0.with_map(|map| {
            let mut blocks: Vec<BlockGroup> = Vec::new();
            // For each entry of the map, its group, if it has one.
            let mut groups = vec![None; map.entries.len().max(1)];
            for &index in pending {
                let entry = position(map, hashes[index]);
                let at = *groups[entry].get_or_insert_with(|| {
                    let range = map.entries.get(entry).map(|entry| (entry.start, entry.end));
                    let (start, end) = range.unwrap_or((0, u64::MAX));
                    blocks.push(BlockGroup { indices: Vec::new(), start, end });
                    blocks.len() - 1
                });
                blocks[at].indices.push(index);
            }
            blocks
        });
        let mut groups = Vec::new();
        for BlockGroup { indices, start, end } in by_block.drain(..) {
            let mut rest = &indices[..];
            while !rest.is_empty() {
                let (first, more) = rest.split_at(fitting(ask, rest));
                groups.push(BlockGroup { indices: first.to_vec(), start, end });
                rest = if ask.ordered { &[] } else { more };
            }
        }
        groups
    }

    /// The result of one operation, for its caller.
    fn done(&self, op: &BatchOp<'_>, result: &BatchResult<'_>) -> Result<Done, Error> {
        let BatchResult { status, value, bytes } = *result;
        Ok(match (op, status) {
            (BatchOp::Get { .. }, Status::Ok) => Done::Read(Some(bytes.to_vec())),
            (BatchOp::Get { .. }, Status::KeyNotFound) => Done::Read(None),
            (BatchOp::Put { .. } | BatchOp::Insert { .. }, Status::Ok) => Done::Stored(value == 1),
            (BatchOp::Set { .. }, Status::Ok) => Done::Set,
            (BatchOp::Delete { .. }, Status::Ok) => Done::Deleted(true),
            (BatchOp::Delete { .. }, Status::KeyNotFound) => Done::Deleted(false),
            (BatchOp::Swap { .. }, Status::Ok) => Done::Swapped(Swap::Done),
            (BatchOp::Swap { .. }, Status::CompareFailed) => match value {
                0 => Done::Swapped(Swap::Found(None)),
                1 => Done::Swapped(Swap::Found(Some(bytes.to_vec()))),
                _ => return Err(self.refusal(op.key(), result)),
            },
            (BatchOp::Accumulate { function, .. }, Status::Ok) => {
                Done::Combined(accumulated(*function, value))
            }
            _ => return Err(self.refusal(op.key(), result)),
        })
    }

    /// Runs an operation that does not fit into a batch as its own request.
    pub(crate) fn single(&self, op: &BatchOp<'_>) -> Result<Done, Error> {
        Ok(match *op {
            BatchOp::Get { key } => {
                let mut value = Vec::new();
                let found = self.get(key, &mut value)?;
                Done::Read(found.then_some(value))
            }
            BatchOp::Put { key, value } => Done::Stored(self.put(key, value)?),
            BatchOp::Set { key, value } => {
                self.set(key, value)?;
                Done::Set
            }
            BatchOp::Insert { key, value } => {
                self.insert(key, value)?;
                Done::Stored(false)
            }
            BatchOp::Delete { key } => Done::Deleted(self.delete(key)?),
            BatchOp::Swap { key, expected, new } => {
                Done::Swapped(self.compare_and_swap(key, expected, new)?)
            }
            BatchOp::Accumulate { key, function, operand } => {
                match self.accumulate(key, function, operand)? {
                    Accumulated::Top(items) => {
                        Done::Combined(Accumulated::Items(items.len() as u64))
                    }
                    other => Done::Combined(other),
                }
            }
        })
    }

    /// Adds the key to the error of a request for one key, because the caller asked for many.
    fn of_key(&self, key: &[u8], mut e: Error) -> Error {
        let key = format!("'{}'", String::from_utf8_lossy(&key[..key.len().min(80)]));
        if !e.message.contains(&key) {
            e.message = format!("{} (the key {key})", e.message);
        }
        e
    }

    /// The error of one operation.
    fn refusal(&self, key: &[u8], result: &BatchResult<'_>) -> Error {
        let what = match result.status {
            Status::KeyExists => "already has a value".to_owned(),
            Status::KeyNotFound => "has no value".to_owned(),
            Status::CompareFailed if result.value == 2 => {
                "does not have the expected value, and its value does not fit into the reply"
                    .to_owned()
            }
            Status::CompareFailed => "does not have the expected value".to_owned(),
            _ => format!("was refused: {}", String::from_utf8_lossy(result.bytes)),
        };
        self.about(result.status, key, &what)
    }
}

/// The number of these that fit into one request; an operation that is too large for any request is
/// alone.
fn fitting(ask: &BatchRequest<'_>, indices: &[usize]) -> usize {
    let (mut count, mut bytes) = (0, COUNT);
    for index in indices.iter().take(KV_BATCH_MAX) {
        bytes += (ask.size)(*index);
        if count > 0 && bytes > KV_BATCH_BYTES_MAX {
            break;
        }
        count += 1;
    }
    assert!(count > 0, "INV-33: a request for {} keys has none of them", indices.len());
    count
}

/// Whether a key may repeat: two of the hashes are equal.
fn repeats(hashes: &[u64]) -> bool {
    let mut sorted = hashes.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).any(|pair| pair[0] == pair[1])
}

fn too_large(ask: &BatchRequest<'_>, index: usize) -> bool {
    COUNT + (ask.size)(index) > KV_BATCH_BYTES_MAX
}

/// The range of hashes that a group's block must serve.
fn span(indices: &[usize], hashes: &[u64]) -> Target {
    let of = indices.iter().map(|index| hashes[*index]);
    let (least, most) = of.fold((u64::MAX, 0), |(a, b), hash| (a.min(hash), b.max(hash)));
    assert!(least <= most, "INV-17: a request is for hashes from {least:#x} to {most:#x}");
    Target::Hashes(least, most)
}

pub(crate) fn accumulated(function: Function, value: u64) -> Accumulated {
    match function {
        Function::SumI64 | Function::MinI64 | Function::MaxI64 | Function::Count => {
            Accumulated::Integer(value as i64)
        }
        Function::SumF64 | Function::MinF64 | Function::MaxF64 => {
            Accumulated::Float(f64::from_bits(value))
        }
        Function::Append => Accumulated::Length(value),
        Function::Top => Accumulated::Items(value),
    }
}

fn owned(items: &[Item<'_>]) -> Vec<TopItem> {
    items.iter().map(|i| TopItem { score: i.score, item: i.bytes.to_vec() }).collect()
}

fn unexpected(what: &str, number: u64) -> Error {
    Error::new(
        Status::BadFrame,
        format!("the reply to {what} contains an invalid number, {number}"),
    )
}
