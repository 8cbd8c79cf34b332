//! The hash of a key and its slot, a part of the protocol.

use honeycomb_types::limits::SLOT_WIDTH;
use xxhash_rust::xxh64::{Xxh64, xxh64};

/// Bits of the hash that determine the slot.
const SLOT_MASK: u64 = !(SLOT_WIDTH - 1);

/// The slot of a hash: its top 16 bits.
pub const fn slot_of(hash: u64) -> u64 {
    hash / SLOT_WIDTH
}

/// The 64-bit hash by which a key-value store routes: XXH64 with seed 0.
///
/// A key with a `{tag}` (the first `{` and the next `}` with at least one byte between) takes its
/// top 16 bits, which determine the slot, from the tag alone: keys with the same tag share a slot.
pub fn key_hash(key: &[u8]) -> u64 {
    let hash = xxh64(key, 0);
    match key_tag(key) {
        Some(tag) => (xxh64(tag, 0) & SLOT_MASK) | (hash & !SLOT_MASK),
        None => hash,
    }
}

/// The checksum of bytes that are transferred between blocks: XXH64 with seed 0.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxh64(bytes, 0)
}

/// The same for bytes that arrive piece by piece.
pub struct Checksum(Xxh64);

impl Default for Checksum {
    fn default() -> Checksum {
        Checksum(Xxh64::new(0))
    }
}

impl Checksum {
    /// Adds the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes so far.
    pub fn value(&self) -> u64 {
        self.0.digest()
    }
}

/// The tag of a key: the bytes between its first `{` and the next `}`, if there are any.
pub fn key_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|b| *b == b'{')?;
    let length = key[open + 1..].iter().position(|b| *b == b'}')?;
    (length > 0).then(|| &key[open + 1..open + 1 + length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_one_tag_share_a_slot_and_differ_below_it() {
        let (a, b) = (key_hash(b"{user7}:name"), key_hash(b"{user7}:age"));
        assert_eq!(a >> 48, b >> 48);
        assert_eq!(a >> 48, key_hash(b"user7") >> 48);
        assert_ne!(a, b);
    }

    #[test]
    fn an_empty_or_unclosed_tag_is_no_tag() {
        assert_eq!(key_hash(b"{}a"), xxh64(b"{}a", 0));
        assert_eq!(key_hash(b"{a"), xxh64(b"{a", 0));
    }
}
