//! The name of a large value: its extents, in order. The payload of `KvPutExtents`, and of the
//! reply to a `KvGet` of such a value (`Status::Extents`).
//!
//! The extents of a longer value are named by lists that are extents themselves, in one or more levels
//! (ADR 0059). A list of lists begins with a head, which has the form of a reference to a block that no
//! server has.

use crate::fields::{Field, Malformed, Reader};
use honeycomb_types::BlockAt;
use honeycomb_types::limits::{EXTENT_REF, LIST_LEVELS_MAX, VALUE_BYTES_MAX};

/// In place of a block in the head of a list of lists.
const HEAD: u64 = u64::MAX;

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

/// The head of a list whose extents are lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListHead {
    /// Levels of lists below this one, 1 to `LIST_LEVELS_MAX`. The extents of a list without a head are parts
    /// of the value.
    pub level: u32,
    /// Bytes of the value that the list names, at most `VALUE_BYTES_MAX`.
    pub bytes: u64,
}

impl ListHead {
    /// The head of a list; `None` if its extents are parts of the value.
    pub fn of(list: &[u8]) -> Option<ListHead> {
        let mut from = Reader::new(list.get(..EXTENT_REF)?);
        let mut next =
            || u64::get(&mut from).expect("a reference has three numbers of eight bytes");
        let (mark, level, bytes) = (next(), next(), next());
        let is_head = mark == HEAD && (1..=LIST_LEVELS_MAX.into()).contains(&level);
        (is_head && bytes <= VALUE_BYTES_MAX).then_some(ListHead { level: level as u32, bytes })
    }

    fn put(self, out: &mut Vec<u8>) {
        ExtentRef { at: BlockAt::of(HEAD, self.level.into()), id: self.bytes, len: 0 }.put(out);
    }
}

/// The bytes of a list of the parts of a value.
pub fn put_extents(extents: &[ExtentRef]) -> Vec<u8> {
    put_list(None, extents)
}

/// The bytes of a list, with its head if its extents are lists.
pub fn put_list(head: Option<ListHead>, extents: &[ExtentRef]) -> Vec<u8> {
    let mut out = Vec::with_capacity((1 + extents.len()) * EXTENT_REF);
    if let Some(head) = head {
        head.put(&mut out);
    }
    extents.iter().for_each(|extent| extent.put(&mut out));
    out
}

/// Reads the references of a list, without its head.
pub fn extents(bytes: &[u8]) -> Result<Vec<ExtentRef>, Malformed> {
    let head = ListHead::of(bytes).map_or(0, |_| EXTENT_REF);
    let mut from = Reader::new(&bytes[head..]);
    let mut extents = Vec::with_capacity(bytes.len() / EXTENT_REF);
    while !from.is_empty() {
        let at = BlockAt::of(u64::get(&mut from)?, u64::get(&mut from)?);
        extents.push(ExtentRef { at, id: u64::get(&mut from)?, len: u32::get(&mut from)? });
    }
    Ok(extents)
}

/// The list one level below a list, from the bytes of all extents that it names, in order; `None` if these
/// are the value.
pub fn list_below(list: &[u8], bytes: &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
    let Some(ListHead { level, bytes: due }) = ListHead::of(list) else { return Ok(None) };
    let refused = |why| Err(Malformed { at: 0, why });
    let (mut named, mut found, mut from) = (Vec::new(), 0u64, Reader::new(bytes));
    for extent in extents(list)? {
        let lower = from.take(extent.len as usize)?;
        if ListHead::of(lower).map_or(0, |head| head.level) != level - 1 {
            return refused("a list of extents is of another level than its head says");
        }
        found = found.saturating_add(value_length(lower));
        named.extend(extents(lower)?);
    }
    from.finish()?;
    if found != due {
        return refused("the lists of a value name more or fewer bytes than its head says");
    }
    let head = (level > 1).then_some(ListHead { level: level - 1, bytes: due });
    Ok(Some(put_list(head, &named)))
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
    if let Some(head) = ListHead::of(bytes) {
        return head.bytes;
    }
    let lengths = bytes.chunks_exact(EXTENT_REF).map(|one| {
        u32::from_le_bytes(one[EXTENT_REF - 4..].try_into().expect("four bytes")) as u64
    });
    lengths.sum()
}
