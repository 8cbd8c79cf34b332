//! Values in extents of their own, by the ids that their entries store.

use super::arena::round_up;
use super::region::{Head, Region};
use crate::Bytes;
use hashbrown::HashSet;
use honeycomb_block::Backing;
use std::collections::VecDeque;
use std::ops::Range;

/// The place of a large value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Large {
    pub at: usize,
    pub len: usize,
}

impl Large {
    fn bytes(&self) -> Range<usize> {
        self.at..self.at + self.len
    }
}

/// Bytes of the extent for a large value. An empty value has an extent too: it may be a payload that is still
/// to be checked.
pub(super) fn large_room(len: usize) -> usize {
    round_up(len.max(1))
}

/// The large values of a block.
#[derive(Default)]
pub(super) struct LargeValues {
    list: Vec<Large>,
    /// Unused ids.
    spare: Vec<u32>,
    /// Bytes of their extents.
    bytes: usize,
    /// The values that another block already has, while a range of hashes moves there.
    copies: Option<Box<Copies>>,
}

/// The values that another block has received.
#[derive(Default)]
pub(super) struct Copies {
    values: HashSet<u32>,
    /// Their bytes.
    bytes: usize,
    /// Values that were sent and freed since, and whose end was not sent yet.
    dropped: Vec<u32>,
    /// The values to send next.
    queue: VecDeque<u32>,
}

impl LargeValues {
    /// Bytes of all extents.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// An id for a new value, which has no place yet.
    pub fn add(&mut self) -> u32 {
        self.spare.pop().unwrap_or_else(|| {
            self.list.push(Large { at: 0, len: 0 });
            self.list.len() as u32 - 1
        })
    }

    /// Returns an id that got no place.
    pub fn cancel(&mut self, id: u32) {
        self.spare.push(id);
    }

    /// Sets the place of a new value.
    pub fn set(&mut self, id: u32, at: usize, len: usize) {
        self.list[id as usize] = Large { at, len };
        self.bytes += large_room(len);
    }

    pub fn get(&self, id: u32) -> Large {
        self.list[id as usize]
    }

    /// The bytes of a large value.
    pub fn place(&self, id: u32) -> Range<usize> {
        self.list[id as usize].bytes()
    }

    /// The place of each large value, by its id; meaningless for an unused id.
    pub fn places(&self) -> Vec<Range<usize>> {
        self.list.iter().map(Large::bytes).collect()
    }

    /// A value has moved within the block.
    pub fn moved(&mut self, id: u32, to: usize) {
        self.list[id as usize].at = to;
    }

    /// A value has become shorter.
    pub fn trim(&mut self, id: u32, len: usize) {
        let large = &mut self.list[id as usize];
        self.bytes = self.bytes - large_room(large.len) + large_room(len);
        large.len = len;
    }

    /// A value is no longer needed; returns its last place.
    pub fn remove(&mut self, id: u32) -> Large {
        let large = self.convert(id);
        if let Some(copies) = &mut self.copies {
            copies.freed(id, large.len);
        }
        large
    }

    /// A region takes over the extent of a value; the value no longer exists.
    pub fn convert(&mut self, id: u32) -> Large {
        let large = self.list[id as usize];
        self.bytes -= large_room(large.len);
        self.spare.push(id);
        large
    }

    /// The bytes of an entry's value, in its region or outside of it.
    #[inline]
    pub fn of_entry(&self, block: &impl Bytes, at: usize, head: &Head) -> Range<usize> {
        if !head.large() {
            return head.stored(at);
        }
        let large = self.list[large_id(block, at, head) as usize];
        assert_eq!(large.len, head.value_len, "an entry and its large value agree");
        large.bytes()
    }

    /// A range moves to another block, which has no values yet.
    pub fn begin_copies(&mut self) {
        self.copies = Some(Box::default());
    }

    /// The other block needs no more values.
    pub fn end_copies(&mut self) {
        self.copies = None;
    }

    /// The values that the other block has, while a range moves.
    #[inline]
    pub fn copies(&self) -> Option<&Copies> {
        self.copies.as_deref()
    }

    /// The same, to send more.
    pub fn copies_mut(&mut self) -> Option<&mut Copies> {
        self.copies.as_deref_mut()
    }
}

/// The id of the large value of an entry.
pub(super) fn large_id(block: &impl Bytes, at: usize, head: &Head) -> u32 {
    let bytes = block.slice(head.stored(at));
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

/// Ids of the values beside a region's entries, with the offsets in the block at which the entries store
/// them.
pub(super) fn values_of(block: &Backing, region: &Region) -> Vec<(usize, u32)> {
    let entries = region.walk(block).filter(|(_, head)| !head.dead() && head.large());
    entries.map(|(at, head)| (head.stored(at).start, large_id(block, at, &head))).collect()
}

impl Copies {
    /// A value of this many bytes was freed.
    fn freed(&mut self, id: u32, len: usize) {
        if self.values.remove(&id) {
            self.bytes -= len;
            self.dropped.push(id);
        }
        self.queue.retain(|queued| *queued != id);
    }

    /// Bytes of the values that the other block has.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Up to this many freed values whose end is to be sent.
    pub fn take_dropped(&mut self, most: usize) -> Option<Vec<u32>> {
        let from = self.dropped.len().saturating_sub(most);
        (!self.dropped.is_empty()).then(|| self.dropped.split_off(from))
    }

    /// Queues those of these values that the other block lacks; returns whether any are queued.
    pub fn queue_missing(&mut self, values: impl Iterator<Item = u32>) -> bool {
        let missing = values.filter(|value| !self.values.contains(value));
        self.queue.extend(missing);
        !self.queue.is_empty()
    }

    /// The value to send next, if any.
    pub fn next_queued(&mut self) -> Option<u32> {
        self.queue.pop_front()
    }

    /// A value of this many bytes is being sent.
    pub fn sent(&mut self, value: u32, len: usize) {
        self.bytes += len;
        let new = self.values.insert(value);
        assert!(new, "INV-19: value {value} is sent again, and was not dropped");
    }
}
