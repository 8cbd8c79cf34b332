//! How a large value is named: its extents, in order. The payload of `KvPutExtents`, and of the answer
//! to a `KvGet` of such a value (`Status::Extents`).

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
    /// Its bytes.
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

/// The length of the value that a list, which is whole, makes.
pub fn value_length(bytes: &[u8]) -> u64 {
    let lengths = bytes.chunks_exact(EXTENT_REF).map(|one| {
        u32::from_le_bytes(one[EXTENT_REF - 4..].try_into().expect("four bytes")) as u64
    });
    lengths.sum()
}
