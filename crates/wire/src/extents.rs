//! The name of a large value: its extents, in order. The payload of `KvPutExtents`, and of the
//! reply to a `KvGet` of such a value (`Status::Extents`).

use crate::fields::{Field, Malformed, Reader};
use honeycomb_types::BlockAt;
use honeycomb_types::limits::EXTENT_REF;

/// One extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExtentRef {
    /// The block that has it.
    pub at: BlockAt,
    /// Its id in that block and epoch.
    pub id: u64,
    /// Its length in bytes.
    pub len: u32,
}

impl ExtentRef {
    /// Appends the bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.at.block.0.put(out);
        self.at.epoch.0.put(out);
        self.id.put(out);
        self.len.put(out);
    }
}

/// The bytes of a list.
pub fn put_extents(extents: &[ExtentRef]) -> Vec<u8> {
    let mut out = Vec::with_capacity(extents.len() * EXTENT_REF);
    extents.iter().for_each(|extent| extent.put(&mut out));
    out
}

/// Reads a list.
pub fn extents(bytes: &[u8]) -> Result<Vec<ExtentRef>, Malformed> {
    let mut from = Reader::new(bytes);
    let mut extents = Vec::with_capacity(bytes.len() / EXTENT_REF);
    while !from.is_empty() {
        let at = BlockAt::of(u64::get(&mut from)?, u64::get(&mut from)?);
        extents.push(ExtentRef { at, id: u64::get(&mut from)?, len: u32::get(&mut from)? });
    }
    Ok(extents)
}

/// The condition under which a `KvPutExtents` stores its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredWhen<'a> {
    /// Always; an existing value is replaced.
    Always,
    /// The key has no value.
    Absent,
    /// The value still is this list: the new one has the same bytes in other blocks.
    Still(&'a [u8]),
}

/// A `KvPutExtents`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutExtents<'a> {
    /// The condition.
    pub when: StoredWhen<'a>,
    /// The key.
    pub key: &'a [u8],
    /// The list.
    pub list: &'a [u8],
}

impl<'a> PutExtents<'a> {
    /// Reads arguments and payload. The list may be empty.
    pub fn decode(args: &'a [u8], payload: &'a [u8]) -> Result<PutExtents<'a>, Malformed> {
        let mut r = Reader::new(args);
        let mode = u8::get(&mut r)?;
        let key = r.rest();
        let mut p = Reader::new(payload);
        let when = match mode {
            0 => StoredWhen::Always,
            1 => StoredWhen::Absent,
            2 => {
                let bytes = u32::get(&mut p)? as usize;
                StoredWhen::Still(p.take(bytes)?)
            }
            _ => return Err(r.malformed("a put of extents has no such mode")),
        };
        Ok(PutExtents { when, key, list: p.rest() })
    }

    /// The arguments and the payload.
    pub fn encode(&self) -> (Vec<u8>, Vec<u8>) {
        let (mode, old) = match self.when {
            StoredWhen::Always => (0, None),
            StoredWhen::Absent => (1, None),
            StoredWhen::Still(old) => (2, Some(old)),
        };
        let mut payload = Vec::new();
        if let Some(old) = old {
            (old.len() as u32).put(&mut payload);
            payload.extend_from_slice(old);
        }
        payload.extend_from_slice(self.list);
        ([&[mode], self.key].concat(), payload)
    }
}

/// The length of the value of a list, which must be complete.
pub fn value_length(bytes: &[u8]) -> u64 {
    let lengths = bytes.chunks_exact(EXTENT_REF).map(|one| {
        u32::from_le_bytes(one[EXTENT_REF - 4..].try_into().expect("four bytes")) as u64
    });
    lengths.sum()
}
