//! Arguments and payloads of data requests, laid out by hand: no allocation to read one.

use crate::fields::{Field, Malformed, Reader};
use crate::messages::MapEntry;
use honeycomb_types::limits::ACK_LANES_MAX;
use honeycomb_types::{BlockAt, LaneId, Sequence};

/// `FileRead`: a range of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadArgs {
    /// Offset within the block.
    pub offset: u64,
    /// Maximum number of bytes.
    pub length: u32,
}

impl ReadArgs {
    /// Appends the bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.offset.put(out);
        self.length.put(out);
    }

    /// Reads the whole argument section.
    pub fn decode(args: &[u8]) -> Result<ReadArgs, Malformed> {
        let mut r = Reader::new(args);
        let read = ReadArgs { offset: u64::get(&mut r)?, length: u32::get(&mut r)? };
        r.finish()?;
        Ok(read)
    }
}

/// Appends the arguments of an `AckResults`.
pub fn put_acks(acks: &[(LaneId, Sequence)], out: &mut Vec<u8>) {
    for (lane, sequence) in acks {
        lane.0.put(out);
        sequence.0.put(out);
    }
}

/// Reads the arguments of an `AckResults`.
pub fn acks(args: &[u8]) -> Result<Vec<(LaneId, Sequence)>, Malformed> {
    let mut r = Reader::new(args);
    let mut acks = Vec::new();
    while !r.is_empty() {
        if acks.len() == ACK_LANES_MAX as usize {
            return Err(r.malformed("more lanes than one request may have"));
        }
        acks.push((LaneId(u32::get(&mut r)?), Sequence(u64::get(&mut r)?)));
    }
    Ok(acks)
}

/// The condition of a `KvPut`, and the content of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PutMode {
    /// Always. The answer says whether an entry was replaced.
    Always = 0,
    /// Only if the key has no entry.
    Absent = 1,
    /// Always. The answer does not say whether an entry was replaced, so that none needs to be read.
    Blind = 3,
}

impl PutMode {
    /// Splits the mode from the key in the arguments of a `KvPut`.
    pub fn and_key(args: &[u8]) -> Result<(PutMode, &[u8]), Malformed> {
        let mut r = Reader::new(args);
        let mode = match u8::get(&mut r)? {
            0 => PutMode::Always,
            1 => PutMode::Absent,
            3 => PutMode::Blind,
            _ => return Err(r.malformed("a put has no such mode")),
        };
        Ok((mode, r.rest()))
    }
}

/// Splits the one-byte mode from the key in the arguments of `KvDelete`.
pub fn mode_and_key(args: &[u8]) -> Result<(bool, &[u8]), Malformed> {
    let mut r = Reader::new(args);
    let mode = bool::get(&mut r)?;
    Ok((mode, r.rest()))
}

/// `KvCompareAndSwap`: the key, and the expected and the new value in the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapArgs<'a> {
    /// Whether an entry is expected at all.
    pub present: bool,
    /// The key.
    pub key: &'a [u8],
    /// The value that the entry must have.
    pub expected: &'a [u8],
    /// The new value.
    pub new: &'a [u8],
}

impl<'a> SwapArgs<'a> {
    /// Reads arguments and payload.
    pub fn decode(args: &'a [u8], payload: &'a [u8]) -> Result<SwapArgs<'a>, Malformed> {
        let mut r = Reader::new(args);
        let present = bool::get(&mut r)?;
        let key_len = u16::get(&mut r)? as usize;
        let key = r.take(key_len)?;
        r.finish()?;
        let mut p = Reader::new(payload);
        let expected_len = u32::get(&mut p)? as usize;
        let expected = p.take(expected_len)?;
        Ok(SwapArgs { present, key, expected, new: p.rest() })
    }

    /// The arguments and the payload.
    pub fn encode(&self) -> (Vec<u8>, Vec<u8>) {
        let mut args = Vec::with_capacity(3 + self.key.len());
        self.present.put(&mut args);
        (self.key.len() as u16).put(&mut args);
        args.extend_from_slice(self.key);
        let mut payload = Vec::with_capacity(4 + self.expected.len() + self.new.len());
        (self.expected.len() as u32).put(&mut payload);
        payload.extend_from_slice(self.expected);
        payload.extend_from_slice(self.new);
        (args, payload)
    }
}

/// The content of a scan's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Brings {
    /// Keys and values.
    Values = 0,
    /// Keys alone.
    Keys = 1,
    /// Keys and lists of entries whose values are lists of extents; nothing of the others.
    Lists = 2,
}

impl Brings {
    /// The mode with this code.
    pub fn from_code(mode: u8) -> Option<Brings> {
        [Brings::Values, Brings::Keys, Brings::Lists].into_iter().find(|one| *one as u8 == mode)
    }

    /// Keys, with or without their values.
    pub fn keys(only: bool) -> Brings {
        if only { Brings::Keys } else { Brings::Values }
    }
}

/// `KvScan`: where to continue and how much to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanArgs<'a> {
    /// First hash to scan.
    pub cursor: u64,
    /// Maximum bytes of entries in the reply. One entry may exceed it. A page may also be empty
    /// after a long search for a prefix: only the cursor shows the end.
    pub bytes: u32,
    /// The content to return.
    pub brings: Brings,
    /// Only keys with this prefix.
    pub prefix: &'a [u8],
}

impl<'a> ScanArgs<'a> {
    /// Appends the bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.cursor.put(out);
        self.bytes.put(out);
        (self.brings as u8).put(out);
        out.extend_from_slice(self.prefix);
    }

    /// Reads the whole argument section.
    pub fn decode(args: &'a [u8]) -> Result<ScanArgs<'a>, Malformed> {
        let mut r = Reader::new(args);
        Ok(ScanArgs {
            cursor: u64::get(&mut r)?,
            bytes: u32::get(&mut r)?,
            brings: Brings::from_code(u8::get(&mut r)?)
                .ok_or_else(|| r.malformed("a scan has no such mode"))?,
            prefix: r.rest(),
        })
    }
}

/// Appends one entry to the payload of a `KvScan` reply.
pub fn put_scan_entry(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    (key.len() as u16).put(out);
    (value.len() as u32).put(out);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// Flag in the length of a scanned value: it is a list of extents (`crate::extents`).
const OF_EXTENTS: u32 = 1 << 31;

/// Appends one entry whose value is a list of extents.
pub fn put_scan_extents(out: &mut Vec<u8>, key: &[u8], list: &[u8]) {
    (key.len() as u16).put(out);
    (list.len() as u32 | OF_EXTENTS).put(out);
    out.extend_from_slice(key);
    out.extend_from_slice(list);
}

/// Bytes that one entry takes in the payload of a `KvScan` reply.
pub fn scan_entry_len(key_len: usize, value_len: usize) -> usize {
    6 + key_len + value_len
}

/// One entry of a scan: key and value.
pub type ScanEntry<'a> = (&'a [u8], &'a [u8]);

/// The value of a scanned entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scanned<'a> {
    /// The value itself.
    Value(&'a [u8]),
    /// A list of extents from which to read it.
    Extents(&'a [u8]),
}

/// Reads the payload of a `KvScan` reply without values in extents.
pub fn scan_entries(payload: &[u8]) -> Result<Vec<ScanEntry<'_>>, Malformed> {
    let whole = scanned(payload)?.into_iter().map(|(key, value)| match value {
        Scanned::Value(value) => Ok((key, value)),
        Scanned::Extents(_) => Err(Reader::new(payload).malformed("a value is stored in extents")),
    });
    whole.collect()
}

/// Reads the payload of a `KvScan` reply.
pub fn scanned(payload: &[u8]) -> Result<Vec<(&[u8], Scanned<'_>)>, Malformed> {
    let mut r = Reader::new(payload);
    let mut entries = Vec::new();
    let mut left = payload.len();
    while left > 0 {
        let (key_len, length) = (u16::get(&mut r)? as usize, u32::get(&mut r)?);
        let value_len = (length & !OF_EXTENTS) as usize;
        let (key, value) = (r.take(key_len)?, r.take(value_len)?);
        entries.push(match length & OF_EXTENTS {
            0 => (key, Scanned::Value(value)),
            _ => (key, Scanned::Extents(value)),
        });
        left -= scan_entry_len(key_len, value_len);
    }
    r.finish()?;
    Ok(entries)
}

/// The arguments of a `Moved` reply: the block that now serves the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedArgs {
    /// Map version that this entry belongs to.
    pub version: u64,
    /// The entry. For a file, its start counts from the length (the reply's value) at which the
    /// replying block was sealed.
    pub entry: MapEntry,
}

impl MapEntry {
    /// The block that serves the range.
    pub fn at(&self) -> BlockAt {
        BlockAt::of(self.block, self.epoch)
    }
}

impl MovedArgs {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.version.put(&mut out);
        self.entry.put(&mut out);
        out
    }

    /// Reads the whole argument section.
    pub fn decode(args: &[u8]) -> Result<MovedArgs, Malformed> {
        let mut r = Reader::new(args);
        let moved = MovedArgs { version: u64::get(&mut r)?, entry: MapEntry::get(&mut r)? };
        r.finish()?;
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_round_trip() {
        let given = [(LaneId(1), Sequence(2)), (LaneId(u32::MAX), Sequence(u64::MAX))];
        let mut out = Vec::new();
        put_acks(&given, &mut out);
        assert_eq!(acks(&out).unwrap(), given);
        assert!(acks(&out[1..]).is_err());
        assert!(acks(&[0; 12 * 1025]).is_err());
    }

    #[test]
    fn data_arguments_round_trip() {
        let swap = SwapArgs { present: true, key: b"k", expected: b"old", new: b"newer" };
        let (args, payload) = swap.encode();
        assert_eq!(SwapArgs::decode(&args, &payload).unwrap(), swap);
        let scan = ScanArgs { cursor: 9, bytes: 100, brings: Brings::Keys, prefix: b"p" };
        let mut out = Vec::new();
        scan.put(&mut out);
        assert_eq!(ScanArgs::decode(&out).unwrap(), scan);
        let mut payload = Vec::new();
        put_scan_entry(&mut payload, b"a", b"1");
        put_scan_entry(&mut payload, b"", b"");
        assert_eq!(scan_entries(&payload).unwrap(), [(&b"a"[..], &b"1"[..]), (b"", b"")]);
        assert!(scan_entries(&payload[..payload.len() - 1]).is_err());
    }
}
