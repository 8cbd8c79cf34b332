//! The index of a region: a hash table of words, probed linearly from `low * slots / 2^32`.
//!
//! Any number of slots is possible, so that a packed region has no unused slots. A word determines its own
//! home slot: so a deletion leaves no tombstones, and an index of another size is built from this one, in
//! order, without reading the log. The other half of a hash is not stored: a caller that needs it has the
//! key.

use super::region::{ENTRY_ALIGN, packed_len};
use std::ops::Range;

/// Words that are inspected to find the entry to prefetch. Two keys in five are not in their home slot, but
/// nearly all are within this many words of it, which are in two or three cache lines.
const PREFETCH_SLOTS: usize = 12;

/// Slots of an index that holds `entries` at a load of at most 7/8.
pub(super) fn slots_for(entries: usize) -> usize {
    entries + entries / 7 + 1
}

/// The number of slots, which determines the place of every word. The words are in the block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Index {
    slots: usize,
}

impl Index {
    pub fn of(slots: usize) -> Index {
        Index { slots }
    }

    /// The index for a region of `size` bytes, so that index and log fill up together if more entries of this
    /// size are added.
    pub fn fitting(size: usize, count: usize, live: usize) -> Index {
        let spare = size.checked_sub(packed_len(count, live)).expect("a region fits its extent");
        let mean = live.checked_div(count).unwrap_or(64);
        // An entry costs 8 * 8/7 bytes of index; 16 cover the rounding of the slots.
        let more = spare.saturating_sub(16) / (mean + 10);
        Index { slots: slots_for(count + more) }
    }

    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes of the words.
    #[inline]
    pub fn len(&self) -> usize {
        8 * self.slots
    }

    /// Whether an index of `count` words has no slot for another one.
    #[inline]
    pub fn is_full(&self, count: usize) -> bool {
        slots_for(count + 1) > self.slots
    }

    /// The slots with this half of a hash, each with the offset of its entry.
    #[inline]
    pub fn probe<'w>(
        &self,
        words: &'w [u8],
        low: u32,
    ) -> impl Iterator<Item = (usize, usize)> + use<'w> {
        let (first, slots) = (home(low, self.slots), self.slots);
        let mut next_slot = first;
        std::iter::from_fn(move || {
            loop {
                let (slot, word) = (next_slot, word(words, next_slot));
                if word == 0 {
                    return None;
                }
                next_slot = next(slot, slots);
                assert!(next_slot != first, "INV-06: an index of {slots} slots has no free one");
                if low_of(word) == low {
                    return Some((slot, offset(word)));
                }
            }
        })
    }

    /// The bytes to prefetch before a probe.
    #[inline]
    pub fn near_home(&self, low: u32) -> Range<usize> {
        let word = 8 * home(low, self.slots);
        word..word + 8 * PREFETCH_SLOTS
    }

    /// The offset of the first entry with this half of a hash, if its word is among those of `near_home`.
    #[inline]
    pub fn look_near_home(&self, words: &[u8], low: u32) -> Option<usize> {
        let mut slot = home(low, self.slots);
        for _ in 0..PREFETCH_SLOTS {
            let word = word(words, slot);
            if word == 0 {
                return None;
            }
            if low_of(word) == low {
                return Some(offset(word));
            }
            slot = next(slot, self.slots);
        }
        None
    }

    /// Inserts a word; returns its slot.
    pub fn insert(&self, words: &mut [u8], low: u32, offset: usize) -> usize {
        let mut slot = home(low, self.slots);
        while word(words, slot) != 0 {
            slot = next(slot, self.slots);
        }
        set_word(words, slot, make_word(low, offset));
        slot
    }

    /// Replaces the entry of a slot by another one with the same half of a hash.
    pub fn replace(&self, words: &mut [u8], slot: usize, offset: usize) {
        set_word(words, slot, make_word(low_of(word(words, slot)), offset));
    }

    /// Empties a slot and moves later words of its run into the gap, so that all are still reachable from
    /// their home slots. Reports each slot that has changed.
    pub fn remove(&self, words: &mut [u8], slot: usize, mut touched: impl FnMut(usize)) {
        let slots = self.slots;
        let distance =
            |from: usize, to: usize| if to >= from { to - from } else { to + slots - from };
        let (mut gap, mut at) = (slot, slot);
        loop {
            at = next(at, slots);
            let w = word(words, at);
            if w == 0 {
                break;
            }
            if distance(home(low_of(w), slots), at) >= distance(gap, at) {
                set_word(words, gap, w);
                touched(gap);
                gap = at;
            }
        }
        set_word(words, gap, 0);
        touched(gap);
    }

    /// The used words, in order of their slots.
    pub fn used(&self, words: &[u8]) -> Vec<u64> {
        let words = words.chunks_exact(8);
        let words = words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        words.filter(|word| *word != 0).collect()
    }

    /// The number of used words of a received index; `None` if one of them names no entry, or if no slot is
    /// empty, so that a probe would not end.
    pub fn count_words(&self, words: &[u8]) -> Option<usize> {
        let mut used = 0;
        for slot in 0..self.slots {
            let word = word(words, slot);
            if word != 0 && word as u32 == 0 {
                return None;
            }
            used += (word != 0) as usize;
        }
        (used < self.slots).then_some(used)
    }

    /// Fills the index with the words of an index of another size, whose entries have all moved by this
    /// distance (a negative number as its complement). Both have the words in about the same order, so that
    /// this is a walk along the two.
    pub fn refill(&self, words: &mut [u8], used: &[u64], moved: usize) {
        words.fill(0);
        for word in used {
            self.insert(words, low_of(*word), offset(*word).wrapping_add(moved));
        }
    }
}

#[inline]
fn home(low: u32, slots: usize) -> usize {
    ((low as u64 * slots as u64) >> 32) as usize
}

#[inline]
fn next(slot: usize, slots: usize) -> usize {
    if slot + 1 == slots { 0 } else { slot + 1 }
}

#[inline]
fn word(words: &[u8], slot: usize) -> u64 {
    u64::from_le_bytes(words[8 * slot..8 * slot + 8].try_into().expect("eight bytes"))
}

fn set_word(words: &mut [u8], slot: usize, word: u64) {
    words[8 * slot..8 * slot + 8].copy_from_slice(&word.to_le_bytes());
}

#[inline]
fn make_word(low: u32, offset: usize) -> u64 {
    (low as u64) << 32 | (offset as u64 / ENTRY_ALIGN as u64 + 1)
}

/// The half of the hash that a word contains.
#[inline]
fn low_of(word: u64) -> u32 {
    (word >> 32) as u32
}

#[inline]
fn offset(word: u64) -> usize {
    (word as u32 as usize - 1) * ENTRY_ALIGN
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In memory that was not the block's, a probe went round without end.
    #[test]
    #[should_panic(expected = "INV-06")]
    fn probe_of_an_index_without_a_free_slot_ends() {
        let index = Index::of(8);
        let words: Vec<u8> = (0..8).flat_map(|_| make_word(7, 8).to_le_bytes()).collect();
        let _ = index.probe(&words, 9).next();
    }
}
