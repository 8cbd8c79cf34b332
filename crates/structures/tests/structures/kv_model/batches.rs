//! Batches and accumulators against the plain map, with a second implementation of the functions.

use super::{Kind, Model, key_of, kinds};
use crate::lengths;
use honeycomb_types::limits::{KV_BATCH_BYTES_MAX, MANY_BYTES_MAX};
use honeycomb_wire::batch::{BatchOp, BatchResult, RESULT, put_batch, put_keys, results};
use honeycomb_wire::stored::Function;
use honeycomb_wire::{Op, Status};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The largest value that fits into the reply to a batch.
const REPLY_VALUE_MAX: usize = KV_BATCH_BYTES_MAX - RESULT;

/// An operation of a batch: a mutation, or `None` for a read.
pub(super) fn op(size: usize, keys: u16) -> impl Strategy<Value = (Option<Kind>, u16, usize)> {
    let kind = prop_oneof![5 => kinds().prop_map(Some), 1 => Just(None)];
    let most = size / 8 + 10;
    let length = prop_oneof![
        4 => 0usize..40,
        2 => 0usize..1500,
        1 => 0usize..most,
        2 => lengths(size, 0, most),
    ];
    (kind, 0..keys, length)
}

/// Each key has its function, so that values and functions often agree.
pub(super) fn function_of(key: &[u8]) -> Function {
    match key.iter().map(|b| *b as usize).sum::<usize>() % 5 {
        0 => Function::SumI64,
        1 => Function::MaxI64,
        2 => Function::Count,
        3 => Function::Append,
        _ => Function::Top,
    }
}

/// The operand of an accumulate, derived from the value of a put.
pub(super) fn operand(function: Function, value: &[u8]) -> Vec<u8> {
    let mut eight = [0; 8];
    let n = value.len().min(8);
    eight[..n].copy_from_slice(&value[..n]);
    match function {
        Function::Count => Vec::new(),
        Function::Append => value.to_vec(),
        Function::Top => {
            let score = (eight[0] % 4) as f64;
            let item = &value[..value.len().min(2)];
            [&3u32.to_le_bytes()[..], &score.to_le_bytes(), item].concat()
        }
        _ => eight.to_vec(),
    }
}

/// The new value and the number in the answer, or the refusal.
pub(super) fn reference(
    function: Function,
    old: Option<&Vec<u8>>,
    operand: &[u8],
) -> Result<(Vec<u8>, u64), Status> {
    let number = |n: i64| ([&[0xAC, b'i'][..], &n.to_le_bytes()].concat(), n as u64);
    let stored = match old {
        Some(value) if value.len() == 10 && value[..2] == [0xAC, b'i'] => {
            Some(i64::from_le_bytes(value[2..].try_into().unwrap()))
        }
        _ => None,
    };
    match function {
        Function::Append => {
            let value = [old.map_or(&[][..], |v| v), operand].concat();
            let length = value.len() as u64;
            Ok((value, length))
        }
        Function::Top => top(old, operand),
        _ if old.is_some() && stored.is_none() => Err(Status::InvalidArgument),
        Function::Count => {
            let sum = stored.unwrap_or(0).checked_add(1).ok_or(Status::InvalidArgument)?;
            Ok(number(sum))
        }
        _ => {
            let n = i64::from_le_bytes(operand.try_into().unwrap());
            match (function, stored) {
                (_, None) => Ok(number(n)),
                (Function::MaxI64, Some(old)) => Ok(number(old.max(n))),
                (_, Some(old)) => old.checked_add(n).map(number).ok_or(Status::InvalidArgument),
            }
        }
    }
}

fn top(old: Option<&Vec<u8>>, operand: &[u8]) -> Result<(Vec<u8>, u64), Status> {
    let score = f64::from_le_bytes(operand[4..12].try_into().unwrap());
    let mut best = BTreeMap::new();
    if let Some(value) = old {
        if value.len() < 6 || value[..2] != [0xAC, b't'] {
            return Err(Status::InvalidArgument);
        }
        let mut rest = &value[6..];
        while !rest.is_empty() {
            let known = f64::from_le_bytes(rest[..8].try_into().unwrap());
            let length = u16::from_le_bytes([rest[8], rest[9]]) as usize;
            best.insert(rest[10..10 + length].to_vec(), known);
            rest = &rest[10 + length..];
        }
    }
    let own = best.entry(operand[12..].to_vec()).or_insert(score);
    *own = own.max(score);
    let mut items: Vec<(Vec<u8>, f64)> = best.into_iter().collect();
    // A stable sort: equal scores keep the order of the items.
    items.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap());
    items.truncate(u32::from_le_bytes(operand[..4].try_into().unwrap()) as usize);
    let mut value = [&[0xAC, b't'][..], &(items.len() as u32).to_le_bytes()].concat();
    for (item, score) in &items {
        value.extend_from_slice(&score.to_le_bytes());
        value.extend_from_slice(&(item.len() as u16).to_le_bytes());
        value.extend_from_slice(item);
    }
    let count = items.len() as u64;
    Ok((value, count))
}

/// An operation with all its arguments.
struct Asked {
    kind: Option<Kind>,
    key: Vec<u8>,
    expected: Option<Vec<u8>>,
    value: Vec<u8>,
    operand: Vec<u8>,
}

impl Asked {
    fn op(&self) -> BatchOp<'_> {
        let Asked { kind, key, expected, value, operand } = self;
        match kind {
            None => BatchOp::Get { key },
            Some(Kind::PutNew) => BatchOp::Insert { key, value },
            Some(Kind::Delete { .. }) => BatchOp::Delete { key },
            Some(Kind::Swap { .. }) => {
                BatchOp::Swap { key, expected: expected.as_deref(), new: value }
            }
            Some(Kind::Accumulate) => {
                BatchOp::Accumulate { key, function: function_of(key), operand }
            }
            Some(Kind::Set) => BatchOp::Set { key, value },
            Some(Kind::Put | Kind::Update | Kind::Upsert) => BatchOp::Put { key, value },
        }
    }

    /// The corresponding mutation of a plain request.
    fn like(&self) -> Option<Kind> {
        self.kind.map(|kind| match kind {
            Kind::Update | Kind::Upsert => Kind::Put,
            Kind::Delete { .. } => Kind::Delete { old: false },
            other => other,
        })
    }
}

impl Model {
    /// Keys of an atomic batch share a tag.
    fn ask(&mut self, atomic: bool, ops: Vec<(Option<Kind>, u16, usize)>) -> Vec<Asked> {
        let mut asked = Vec::new();
        let mut total = 0;
        for (kind, n, length) in ops {
            let key = key_of(if atomic { n - n % 7 } else { n });
            let length = if matches!(kind, Some(Kind::Delete { .. })) { 0 } else { length };
            total += length;
            let length = if total > KV_BATCH_BYTES_MAX / 2 { 0 } else { length };
            let value = self.value(length);
            // By the entries before the batch: within it, the expectation may be wrong by then.
            let expected = kind.and_then(|kind| self.expectation(kind, &key));
            // A value that fits into no batch is not expected.
            total += expected.as_ref().map_or(0, Vec::len);
            let expected = if total > KV_BATCH_BYTES_MAX / 2 { None } else { expected };
            let operand = operand(function_of(&key), &value);
            asked.push(Asked { kind, key, expected, value, operand });
        }
        asked
    }

    pub(super) fn batch(&mut self, atomic: bool, ops: Vec<(Option<Kind>, u16, usize)>) {
        let asked = self.ask(atomic, ops);
        let mut rest = &asked[..];
        loop {
            let ops: Vec<BatchOp<'_>> = rest.iter().map(Asked::op).collect();
            let answer = self.driver.run(Op::KvBatch, &[atomic as u8], &put_batch(&ops));
            if answer.status == Status::Busy {
                assert!(!self.pins.is_empty(), "only a pin makes room a matter of time");
                return;
            }
            assert_eq!(answer.status, Status::Ok);
            let payload = self.driver.bytes(&answer);
            assert!(payload.len() <= KV_BATCH_BYTES_MAX);
            if atomic {
                return self.judge_atomic(rest, answer.value as usize, answer.args[0], &payload);
            }
            let answered = answer.value as usize;
            for (asked, result) in rest.iter().zip(results(&payload, answered).unwrap()) {
                self.judge_one(asked, &result);
            }
            rest = &rest[answered..];
            if rest.is_empty() {
                return;
            }
            let full = payload.len() + RESULT + self.limit() > KV_BATCH_BYTES_MAX;
            assert!(answered > 0 && (full || !self.pins.is_empty()), "{answered} of the batch");
        }
    }

    /// The required answer of an operation now: status, number, bytes.
    fn ruled_in_batch(&self, asked: &Asked) -> (Status, u64, Vec<u8>) {
        let Asked { key, expected, value, .. } = asked;
        match asked.like() {
            None => match self.entry(key) {
                Some(value) if value.len() > REPLY_VALUE_MAX => {
                    (Status::ValueTooLarge, value.len() as u64, Vec::new())
                }
                Some(value) => (Status::Ok, 0, value.clone()),
                None => (Status::KeyNotFound, 0, Vec::new()),
            },
            Some(kind) => {
                let (status, number, bytes) = self.ruled(kind, key, expected.as_deref(), value);
                match status {
                    Status::CompareFailed if bytes.len() > REPLY_VALUE_MAX => {
                        (status, 2, Vec::new())
                    }
                    Status::CompareFailed => (status, number, bytes),
                    _ => (status, number, Vec::new()),
                }
            }
        }
    }

    fn judge_one(&mut self, asked: &Asked, result: &BatchResult<'_>) {
        let (status, number, bytes) = self.ruled_in_batch(asked);
        if result.status == Status::BlockFull {
            assert_eq!(status, Status::Ok, "room matters only when there is an effect");
            return;
        }
        assert_eq!((result.status, result.value), (status, number), "{:?}", asked.kind);
        if matches!(status, Status::Ok | Status::KeyNotFound | Status::CompareFailed) {
            assert_eq!(result.bytes, bytes);
        }
        if let (Status::Ok, Some(kind)) = (status, asked.like()) {
            self.take_over(kind, &asked.key, asked.value.clone());
        }
    }

    fn judge_atomic(&mut self, asked: &[Asked], value: usize, applied: u8, payload: &[u8]) {
        let before = self.entries.clone();
        if applied == 1 {
            assert_eq!(value, asked.len());
            for (asked, result) in asked.iter().zip(results(payload, value).unwrap()) {
                assert!(matches!(result.status, Status::Ok | Status::KeyNotFound));
                self.judge_one(asked, &result);
            }
            return;
        }
        let failed = results(payload, 1).unwrap()[0];
        let fits = failed.status == Status::BlockFull;
        // A lack of room is found when everything is planned, so that all operations are right.
        let right = if fits { asked.len() } else { value };
        // Bytes of the reply, and of the values made by accumulates.
        let (mut replied, mut made) = (RESULT * asked.len(), 0);
        for one in &asked[..right] {
            let (status, _, bytes) = self.ruled_in_batch(one);
            assert!(matches!(status, Status::Ok | Status::KeyNotFound), "it fails earlier");
            replied += bytes.len();
            made += self.made_by(one);
            if let (Status::Ok, Some(kind)) = (status, one.like()) {
                self.take_over(kind, &one.key, one.value.clone());
            }
        }
        if fits {
            let bytes: usize = asked.iter().map(|a| a.key.len() + 2 * a.value.len() + 64).sum();
            let grown: usize = self.entries.values().map(Vec::len).sum::<usize>();
            let used = self.driver.structure_bytes() + bytes + grown / 4;
            assert!(used >= self.size - self.size / 16 - 2000, "{bytes} bytes were refused");
        } else if failed.status == Status::ValueTooLarge && asked[value].value.len() <= self.limit()
        {
            let one = &asked[value];
            let found = self.entry(&one.key).map_or(0, Vec::len);
            match one.kind {
                None => assert!(replied + found > KV_BATCH_BYTES_MAX, "{found} fit into the reply"),
                Some(_) => {
                    let makes = self.made_by(one);
                    let alone = one.operand.len() > KV_BATCH_BYTES_MAX || makes > self.limit();
                    assert!(alone || made + makes > MANY_BYTES_MAX, "{made} and {makes} made");
                }
            }
        } else {
            let (status, number, bytes) = self.ruled_in_batch(&asked[value]);
            assert_eq!((failed.status, failed.value), (status, number));
            if status == Status::CompareFailed {
                assert_eq!(failed.bytes, bytes);
            }
        }
        self.entries = before;
    }

    /// Bytes of the value made by an accumulate.
    fn made_by(&self, asked: &Asked) -> usize {
        if asked.kind != Some(Kind::Accumulate) {
            return 0;
        }
        let function = function_of(&asked.key);
        let made = reference(function, self.entry(&asked.key), &asked.operand);
        made.map_or(0, |(value, _)| value.len())
    }

    pub(super) fn multi_get(&mut self, keys: &[u16], bytes: u32) {
        let keys: Vec<Vec<u8>> = keys.iter().map(|n| key_of(*n)).collect();
        let most = (bytes as usize).min(MANY_BYTES_MAX);
        let mut rest: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        while !rest.is_empty() {
            let answer = self.driver.run(Op::KvMultiGet, &bytes.to_le_bytes(), &put_keys(&rest));
            assert_eq!(answer.status, Status::Ok);
            let payload = self.driver.bytes(&answer);
            let answered = answer.value as usize;
            assert!(answered > 0 && (payload.len() <= most || answered == 1));
            for (key, result) in rest.iter().zip(results(&payload, answered).unwrap()) {
                match (self.entry(key), result.status) {
                    (None, status) => assert_eq!(status, Status::KeyNotFound),
                    (Some(value), Status::ValueTooLarge) => {
                        assert!(value.len() + RESULT > most);
                        assert_eq!((result.value, result.bytes), (value.len() as u64, &b""[..]));
                    }
                    (Some(value), status) => {
                        assert_eq!((status, result.bytes), (Status::Ok, &value[..]));
                    }
                }
            }
            rest.drain(..answered);
        }
    }
}
