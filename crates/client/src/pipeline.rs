//! Pipelines of a key-value store: many single operations in progress at a time.

use crate::batch::{Accumulated, Done, accumulated};
use crate::error::Error;
use crate::kv::{Kv, Swap};
use crate::pipe::{Landed, Pipe, PipedRequest};
use crate::route::Target;
use honeycomb_types::Time;
use honeycomb_types::limits::{KEY_MAX, KV_BATCH_BYTES_MAX};
use honeycomb_wire::batch::BatchOp;
use honeycomb_wire::data::{PutMode, SwapArgs};
use honeycomb_wire::stored::{Function, Stored, accumulate_args, function_and_key};
use honeycomb_wire::{Op, Status, key_hash};
use std::collections::VecDeque;
use std::ops::Deref;

/// Operations in progress at a time, and records that are kept for reuse.
const WINDOW: usize = 64;

/// Larger values are read one at a time: they gain nothing from a pipeline, and would delay the
/// others.
pub(crate) const PIPED_MAX: usize = 64 * 1024;

/// Operations on one store that are sent without awaiting earlier results. Results are returned in
/// the order of submission; see `Kv::pipeline`.
pub struct Pipeline<'a> {
    kv: &'a Kv,
    pipe: Pipe<&'a Kv>,
    /// Results, beginning with the oldest that was not taken.
    answers: VecDeque<Option<Result<Done, Error>>>,
    /// Number of the oldest of these results.
    first: u64,
    /// Records to be reused for other operations.
    spare: Vec<PipedRequest<&'a Kv>>,
}

impl Kv {
    /// Makes a pipeline: operations share a connection for each shard that has some of the keys, up
    /// to 64 in progress. Each behaves as a single operation, with its own deadline and retries,
    /// and takes effect once. Operations on the same key take effect in their order; other
    /// operations have no order. Unlike `batch`, a pipeline can be filled and emptied gradually.
    pub fn pipeline(&self) -> Pipeline<'_> {
        Pipeline {
            kv: self,
            pipe: Pipe::new(self.0.context().clone()),
            answers: VecDeque::new(),
            first: 0,
            spare: Vec::new(),
        }
    }
}

impl Pipeline<'_> {
    /// Adds an operation. It is sent together with others: by `next`, by `flush`, or when the
    /// maximum is in progress, in which case this call first awaits some of them. Their results
    /// wait for `next`.
    pub fn ask(&mut self, op: BatchOp<'_>) {
        while self.pipe.under_way() >= WINDOW {
            self.step();
        }
        let ticket = self.first + self.answers.len() as u64;
        match self.kv.piped(op) {
            Ok(true) => {
                self.answers.push_back(None);
                let mut asked = self.spare.pop().unwrap_or_else(|| PipedRequest::of(self.kv));
                asked.set(op, ticket);
                self.pipe.begin(asked);
            }
            // Sent alone and after all others, because one of these may have the same key.
            Ok(false) => {
                while self.pipe.under_way() > 0 {
                    self.step();
                }
                self.answers.push_back(Some(self.kv.single(&op)));
            }
            Err(e) => self.answers.push_back(Some(Err(e))),
        }
    }

    /// Sends all submitted operations.
    pub fn flush(&mut self) {
        self.pipe.step(Time::ZERO, false);
        self.take_landed();
    }

    /// The result of the oldest operation whose result was not taken; `None` if there is none.
    #[allow(clippy::should_implement_trait)] // what it answers grows while it is emptied
    pub fn next(&mut self) -> Option<Result<Done, Error>> {
        while self.answers.front()?.is_none() {
            let (first, under_way) = (self.first, self.pipe.under_way());
            assert!(under_way > 0, "INV-16: operation {first} has no result, and is not sent");
            self.step();
        }
        self.first += 1;
        self.answers.pop_front()?
    }

    /// Number of results that were not taken.
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// Whether every result was taken.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    fn step(&mut self) {
        self.pipe.step(Time::NEVER, false);
        self.take_landed();
    }

    fn take_landed(&mut self) {
        while let Some(landed) = self.pipe.landed() {
            let (ticket, first) = (landed.asked.ticket, self.first);
            assert!(
                ticket >= first,
                "INV-16: operation {ticket} ends again, after {first} was taken"
            );
            let place = (ticket - first) as usize;
            assert!(self.answers[place].is_none(), "INV-16: operation {ticket} has two results");
            self.answers[place] = Some(landed.done());
            self.spare.push(landed.asked);
        }
    }
}

impl Drop for Pipeline<'_> {
    /// Awaits the requests that were sent: a connection with outstanding replies cannot be reused,
    /// and the submitted operations must still take effect.
    fn drop(&mut self) {
        while self.pipe.under_way() > 0 {
            self.step();
        }
        self.pipe.give_back();
    }
}

impl Kv {
    /// Whether an operation can be pipelined; false if it has a large value. An error if it cannot
    /// be sent at all.
    pub(crate) fn piped(&self, op: BatchOp<'_>) -> Result<bool, Error> {
        if op.key().len() > KEY_MAX {
            return Err(self.too_long_a_key(op.key()));
        }
        let bytes = match op {
            BatchOp::Get { .. } | BatchOp::Delete { .. } => 0,
            BatchOp::Put { value, .. }
            | BatchOp::Set { value, .. }
            | BatchOp::Insert { value, .. } => value.len(),
            BatchOp::Swap { expected, new, .. } => expected.map_or(0, <[u8]>::len) + new.len(),
            BatchOp::Accumulate { operand, .. } => operand.len(),
        };
        Ok(bytes <= PIPED_MAX.min(self.plain_limit()).min(KV_BATCH_BYTES_MAX))
    }
}

impl<K> PipedRequest<K> {
    /// An empty record for this store.
    pub(crate) fn of(kv: K) -> PipedRequest<K> {
        let (args, payload, value) = (Vec::new(), Vec::new(), Vec::new());
        PipedRequest { kv, op: Op::KvGet, target: Target::Hash(0), args, payload, value, ticket: 0 }
    }

    /// Sets the operation.
    pub(crate) fn set(&mut self, op: BatchOp<'_>, ticket: u64) {
        let key = op.key();
        (self.ticket, self.target) = (ticket, Target::Hash(key_hash(key)));
        self.args.clear();
        self.payload.clear();
        self.op = match op {
            BatchOp::Get { .. } => Op::KvGet,
            BatchOp::Put { value, .. } => self.put(PutMode::Always, value),
            BatchOp::Set { value, .. } => self.put(PutMode::Blind, value),
            BatchOp::Insert { value, .. } => self.put(PutMode::Absent, value),
            BatchOp::Delete { .. } => {
                self.args.push(0);
                Op::KvDelete
            }
            BatchOp::Swap { expected, new, .. } => {
                let present = expected.is_some();
                let expected = expected.unwrap_or_default();
                (self.args, self.payload) = SwapArgs { present, key, expected, new }.encode();
                self.op = Op::KvCompareAndSwap;
                return;
            }
            BatchOp::Accumulate { function, operand, .. } => {
                self.args = accumulate_args(function, key);
                self.payload.extend_from_slice(operand);
                self.op = Op::KvAccumulate;
                return;
            }
        };
        self.args.extend_from_slice(key);
    }

    fn put(&mut self, mode: PutMode, value: &[u8]) -> Op {
        self.args.push(mode as u8);
        self.payload.extend_from_slice(value);
        Op::KvPut
    }

    /// The key, after the bytes that precede it in the arguments.
    fn key(&self) -> &[u8] {
        match self.op {
            Op::KvPut | Op::KvDelete => &self.args[1..],
            _ => &self.args,
        }
    }
}

impl<K: Deref<Target = Kv>> Landed<K> {
    /// The result of the operation. A value that is too large for a pipelined reply is read here.
    pub(crate) fn done(&self) -> Result<Done, Error> {
        let Landed { asked, result } = self;
        let replied = result.as_ref().map_err(Clone::clone)?;
        let (kv, status, number) = (&asked.kv, replied.header.status, replied.header.value);
        Ok(match asked.op {
            Op::KvGet if status == Status::Extents => {
                kv.single(&BatchOp::Get { key: asked.key() })?
            }
            Op::KvGet => Done::Read((status == Status::Ok).then(|| asked.value.clone())),
            Op::KvPut if status == Status::KeyExists => {
                return Err(kv.about(Status::KeyExists, asked.key(), "already has a value"));
            }
            Op::KvPut if asked.args[0] == PutMode::Blind as u8 => Done::Set,
            Op::KvPut => Done::Stored(number == 1),
            Op::KvDelete => Done::Deleted(status == Status::Ok),
            Op::KvCompareAndSwap if status == Status::CompareFailed => {
                Done::Swapped(Swap::Found((number == 1).then(|| asked.value.clone())))
            }
            Op::KvCompareAndSwap => Done::Swapped(Swap::Done),
            _ => Done::Combined(combined(&asked.args, &asked.value, number)),
        })
    }
}

/// The new value after an accumulation; for a list, its length.
fn combined(args: &[u8], value: &[u8], number: u64) -> Accumulated {
    match (function_and_key(args), Stored::of(value)) {
        (Ok((Function::Top, _)), Stored::Top(items)) => Accumulated::Items(items.len() as u64),
        (Ok((function, _)), _) => accumulated(function, number),
        (Err(_), _) => unreachable!("these are the arguments of an accumulate"),
    }
}
