//! Bodies of the operations that carry many keys or ranges: `KvMultiGet`, `KvBatch` and
//! `FileReadMany`, laid out by hand.
//!
//! Readers check every count and length against the available bytes before they allocate memory.

use crate::fields::{Field, Malformed, Reader};
use crate::messages::Status;
use crate::stored::Function;

/// Bytes of a result without its value.
pub const RESULT: usize = 14;

/// Bytes of a range in the arguments of `FileReadMany`.
const RANGE: usize = 12;

/// One operation of a `KvBatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchOp<'a> {
    /// Reads an entry.
    Get {
        /// Its key.
        key: &'a [u8],
    },
    /// Stores an entry, whether or not there is one.
    Put {
        /// Its key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// As `Put`, but the result does not say whether there was one, so that none needs to be read.
    Set {
        /// Its key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// Stores an entry if there is none.
    Insert {
        /// Its key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// Deletes an entry.
    Delete {
        /// Its key.
        key: &'a [u8],
    },
    /// Stores `new` if the entry has the expected value.
    Swap {
        /// The key.
        key: &'a [u8],
        /// The value that the entry must have; `None` for no entry.
        expected: Option<&'a [u8]>,
        /// The new value.
        new: &'a [u8],
    },
    /// Combines an entry with an operand.
    Accumulate {
        /// The key.
        key: &'a [u8],
        /// The function.
        function: Function,
        /// The operand.
        operand: &'a [u8],
    },
}

fn put_short(out: &mut Vec<u8>, bytes: &[u8]) {
    (bytes.len() as u16).put(out);
    out.extend_from_slice(bytes);
}

fn put_long(out: &mut Vec<u8>, bytes: &[u8]) {
    (bytes.len() as u32).put(out);
    out.extend_from_slice(bytes);
}

fn get_short<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let length = u16::get(r)? as usize;
    r.take(length)
}

fn get_long<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let length = u32::get(r)? as usize;
    r.take(length)
}

impl<'a> BatchOp<'a> {
    /// The key of the operation.
    pub fn key(&self) -> &'a [u8] {
        match *self {
            BatchOp::Get { key }
            | BatchOp::Put { key, .. }
            | BatchOp::Set { key, .. }
            | BatchOp::Insert { key, .. }
            | BatchOp::Delete { key }
            | BatchOp::Swap { key, .. }
            | BatchOp::Accumulate { key, .. } => key,
        }
    }

    /// The size of the operation in a request.
    pub fn size(&self) -> usize {
        let more = match self {
            BatchOp::Get { .. } | BatchOp::Delete { .. } => 0,
            BatchOp::Put { value, .. }
            | BatchOp::Set { value, .. }
            | BatchOp::Insert { value, .. } => 4 + value.len(),
            BatchOp::Swap { expected, new, .. } => {
                9 + expected.unwrap_or_default().len() + new.len()
            }
            BatchOp::Accumulate { operand, .. } => 5 + operand.len(),
        };
        3 + self.key().len() + more
    }

    /// Appends the encoded operation. The key must have less than 64 KiB.
    pub fn put(&self, out: &mut Vec<u8>) {
        let kind: u8 = match self {
            BatchOp::Get { .. } => 0,
            BatchOp::Put { .. } => 1,
            BatchOp::Insert { .. } => 2,
            BatchOp::Delete { .. } => 3,
            BatchOp::Swap { .. } => 4,
            BatchOp::Accumulate { .. } => 5,
            BatchOp::Set { .. } => 6,
        };
        kind.put(out);
        put_short(out, self.key());
        match *self {
            BatchOp::Get { .. } | BatchOp::Delete { .. } => {}
            BatchOp::Put { value, .. }
            | BatchOp::Set { value, .. }
            | BatchOp::Insert { value, .. } => put_long(out, value),
            BatchOp::Swap { expected, new, .. } => {
                expected.is_some().put(out);
                put_long(out, expected.unwrap_or_default());
                put_long(out, new);
            }
            BatchOp::Accumulate { function, operand, .. } => {
                (function as u8).put(out);
                put_long(out, operand);
            }
        }
    }

    fn get(r: &mut Reader<'a>) -> Result<BatchOp<'a>, Malformed> {
        let kind = u8::get(r)?;
        let key = get_short(r)?;
        Ok(match kind {
            0 => BatchOp::Get { key },
            1 => BatchOp::Put { key, value: get_long(r)? },
            2 => BatchOp::Insert { key, value: get_long(r)? },
            3 => BatchOp::Delete { key },
            4 => {
                let present = bool::get(r)?;
                let expected = get_long(r)?;
                BatchOp::Swap { key, expected: present.then_some(expected), new: get_long(r)? }
            }
            5 => BatchOp::Accumulate { key, function: Function::get(r)?, operand: get_long(r)? },
            6 => BatchOp::Set { key, value: get_long(r)? },
            _ => return Err(r.malformed("no operation of a batch has this number")),
        })
    }
}

/// The payload of a `KvBatch` request.
pub fn put_batch(ops: &[BatchOp<'_>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + ops.iter().map(BatchOp::size).sum::<usize>());
    (ops.len() as u32).put(&mut out);
    ops.iter().for_each(|op| op.put(&mut out));
    out
}

/// Reads the payload of a `KvBatch` request.
pub fn batch_ops(payload: &[u8]) -> Result<Vec<BatchOp<'_>>, Malformed> {
    let mut r = Reader::new(payload);
    let count = r.count(3)?;
    let ops = (0..count).map(|_| BatchOp::get(&mut r)).collect::<Result<Vec<_>, _>>()?;
    r.finish()?;
    Ok(ops)
}

/// The payload of a `KvMultiGet` request.
pub fn put_keys(keys: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + keys.iter().map(|key| 2 + key.len()).sum::<usize>());
    (keys.len() as u32).put(&mut out);
    keys.iter().for_each(|key| put_short(&mut out, key));
    out
}

/// Reads the payload of a `KvMultiGet` request.
pub fn keys(payload: &[u8]) -> Result<Vec<&[u8]>, Malformed> {
    let mut r = Reader::new(payload);
    let count = r.count(2)?;
    let keys = (0..count).map(|_| get_short(&mut r)).collect::<Result<Vec<_>, _>>()?;
    r.finish()?;
    Ok(keys)
}

/// The result for one key of a `KvMultiGet`, or for one operation of a `KvBatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchResult<'a> {
    /// Its status.
    pub status: Status,
    /// A number, as the single operation of this kind would return it.
    pub value: u64,
    /// The value found, or the message of a refusal.
    pub bytes: &'a [u8],
}

/// Appends a result to the payload of a reply.
pub fn put_result(out: &mut Vec<u8>, result: &BatchResult<'_>) {
    let mut head = [0; RESULT];
    head[..2].copy_from_slice(&(result.status as u16).to_le_bytes());
    head[2..10].copy_from_slice(&result.value.to_le_bytes());
    head[10..].copy_from_slice(&(result.bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(result.bytes);
}

/// Reads the payload of a reply to `KvMultiGet` or `KvBatch` with `count` results.
pub fn results(payload: &[u8], count: usize) -> Result<Vec<BatchResult<'_>>, Malformed> {
    let mut r = Reader::new(payload);
    let mut out = Vec::with_capacity(count.min(payload.len() / RESULT));
    for _ in 0..count {
        let code = u16::get(&mut r)?;
        let status =
            Status::from_code(code).ok_or_else(|| r.malformed("no status has this code"))?;
        out.push(BatchResult { status, value: u64::get(&mut r)?, bytes: get_long(&mut r)? });
    }
    r.finish()?;
    Ok(out)
}

/// `FileReadMany`: ranges of the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadManyArgs {
    /// Maximum bytes of the reply's payload. A range that does not fit gets no reply.
    pub bytes: u32,
    /// Offset within the block and length of each.
    pub ranges: Vec<(u64, u32)>,
}

impl ReadManyArgs {
    /// Appends the bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.bytes.put(out);
        (self.ranges.len() as u32).put(out);
        for (offset, length) in &self.ranges {
            offset.put(out);
            length.put(out);
        }
    }

    /// Reads the whole argument section.
    pub fn decode(args: &[u8]) -> Result<ReadManyArgs, Malformed> {
        let mut r = Reader::new(args);
        let bytes = u32::get(&mut r)?;
        let count = r.count(RANGE)?;
        let mut range = || Ok((u64::get(&mut r)?, u32::get(&mut r)?));
        let ranges = (0..count).map(|_| range()).collect::<Result<Vec<_>, Malformed>>()?;
        r.finish()?;
        Ok(ReadManyArgs { bytes, ranges })
    }
}

/// Appends the bytes of one range to the payload of a `FileReadMany` reply.
pub fn put_range(out: &mut Vec<u8>, bytes: &[u8]) {
    put_long(out, bytes);
}

/// Reads the payload of a `FileReadMany` reply with `count` ranges.
pub fn ranges(payload: &[u8], count: usize) -> Result<Vec<&[u8]>, Malformed> {
    let mut r = Reader::new(payload);
    let mut out = Vec::with_capacity(count.min(payload.len() / 4));
    for _ in 0..count {
        out.push(get_long(&mut r)?);
    }
    r.finish()?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_ops() -> Vec<BatchOp<'static>> {
        vec![
            BatchOp::Get { key: b"a" },
            BatchOp::Put { key: b"", value: b"one" },
            BatchOp::Set { key: b"b", value: b"two" },
            BatchOp::Insert { key: b"b", value: b"" },
            BatchOp::Delete { key: b"\0\xff" },
            BatchOp::Swap { key: b"c", expected: Some(b""), new: b"new" },
            BatchOp::Swap { key: b"c", expected: None, new: b"" },
            BatchOp::Accumulate { key: b"d", function: Function::Append, operand: b"more" },
        ]
    }

    #[test]
    fn batches_round_trip_and_every_cut_is_refused() {
        let (ops, keys_in) = (all_ops(), [&b"one"[..], b"", b"three"]);
        let bytes = put_batch(&ops);
        assert_eq!(bytes.len(), 4 + ops.iter().map(BatchOp::size).sum::<usize>());
        assert_eq!(batch_ops(&bytes).unwrap(), ops);
        let listed = put_keys(&keys_in);
        assert_eq!(keys(&listed).unwrap(), keys_in);
        let many = ReadManyArgs { bytes: 9, ranges: vec![(0, 1), (u64::MAX, u32::MAX)] };
        let mut args = Vec::new();
        many.put(&mut args);
        assert_eq!(ReadManyArgs::decode(&args).unwrap(), many);
        for cut in 0..bytes.len() {
            assert!(batch_ops(&bytes[..cut]).is_err());
        }
        for cut in 0..listed.len() {
            assert!(keys(&listed[..cut]).is_err());
        }
        for cut in 0..args.len() {
            assert!(ReadManyArgs::decode(&args[..cut]).is_err());
        }
        assert!(batch_ops(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn results_round_trip() {
        let all = [
            BatchResult { status: Status::Ok, value: 7, bytes: b"value" },
            BatchResult { status: Status::KeyNotFound, value: 0, bytes: b"" },
        ];
        let mut out = Vec::new();
        all.iter().for_each(|result| put_result(&mut out, result));
        assert_eq!(results(&out, 2).unwrap(), all);
        assert!(results(&out, 1).is_err() && results(&out, 3).is_err());
        let mut out = Vec::new();
        put_range(&mut out, b"abc");
        put_range(&mut out, b"");
        assert_eq!(ranges(&out, 2).unwrap(), [&b"abc"[..], b""]);
        assert!(ranges(&out[..6], 2).is_err());
    }

    #[test]
    fn a_count_cannot_claim_more_than_its_bytes() {
        let lie = u32::MAX.to_le_bytes();
        assert!(batch_ops(&lie).is_err() && keys(&lie).is_err());
        assert!(ReadManyArgs::decode(&[&lie[..], &lie[..]].concat()).is_err());
        assert!(results(&[], usize::MAX).is_err());
    }
}
