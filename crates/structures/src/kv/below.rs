//! Reads of a kv block in a lower tier, and whether it can be demoted.
//!
//! The table stays in memory: the region of each hash and its place are known without a read. A lookup reads
//! one region (of a large one its index first, and then the entry), and never the whole block. `changes.rs`
//! has the mutations that need no more; the others need the whole block in memory.

use super::KvBlock;
use super::deltas::Delta;
use super::store::Store;
use super::table::Hit;
use crate::{
    Answer, Bytes, Content, Fetched, LowerTierChanges, LowerTierReads, Movable, Rest, Snapshot,
};
use honeycomb_types::Bug;
use honeycomb_types::limits::RUN_CHUNK;
use honeycomb_wire::{Op, key_hash};
use std::ops::Range;

/// Approximate bytes that are read for one operation, if fewer would suffice.
const WANT_MAX: usize = 512 * 1024;
/// Keys of one request that are answered together.
const WANT_KEYS: usize = 64;

/// A placeholder for an answer: the missing ranges were noted, and the operation runs again.
pub(super) fn unanswered() -> Answer {
    Answer::ok(0)
}

impl Content for KvBlock {
    /// Entries in no particular order, each as: key length u32, value length u32, key, value. The highest bit
    /// of a large value's length is set, and the list of its extents is its value. Deleted values, values
    /// that are still arriving, and entries outside of `range` are omitted: while a part moves, `range`
    /// decides which of the two blocks writes it.
    fn snapshot(&self, range: (u64, u64)) -> Snapshot {
        let store = &self.partition.store;
        let deltas = store.deltas.as_deref().filter(|_| !Bug::DeltasUncopied.active());
        store.table.entries_in(range, deltas)
    }

    /// A block is busy while a part of it moves, arrives or is discarded.
    fn rests(&self) -> Rest {
        let arrives = self.partition.is_arriving() || self.adopting.waits();
        let arena = &self.partition.store.table.heap.arena;
        if arrives || !self.partition.can_leave() || !arena.is_swept() {
            return Rest::Busy;
        }
        Rest::Whole(arena.end())
    }

    fn lower_tier_reads(&self) -> Option<&dyn LowerTierReads> {
        Some(&self.partition.store)
    }

    fn lower_tier_changes(&mut self) -> Option<&mut dyn LowerTierChanges> {
        Some(self)
    }

    fn demoted(&mut self) {
        let table = &mut self.partition.store.table;
        table.heap.demoted();
        table.overflow.set_lacking(None);
    }
}

impl LowerTierReads for Store {
    /// Entries of deltas have no place among those of the regions.
    fn needs_whole(&self, op: Op) -> bool {
        self.deltas.is_some() && matches!(op, Op::KvScan | Op::KvLength)
    }

    fn read(&self, bytes: &Fetched, op: Op, args: &[u8], payload: &[u8]) -> Answer {
        let result = match op {
            Op::KvGet => self.get(bytes, args),
            Op::KvExists => self.exists(bytes, args),
            Op::KvScan => self.scan(bytes, args),
            Op::KvLength => self.length(bytes, args),
            Op::KvMultiGet => self.multi_get(bytes, args, payload),
            other => unreachable!("{} changes a block, or is none of a store's", other.name()),
        };
        result.unwrap_or_else(|refusal| refusal)
    }
}

/// The newest value of a key.
pub(super) enum Found<'a> {
    /// In the block's own bytes.
    Entry(Hit),
    /// In a delta, in memory.
    Value(&'a [u8]),
    /// In a delta, at this place of the block's slot.
    Below(Range<usize>),
}

impl Store {
    /// The value of a key, in its deltas or in the block. The outer `None`: bytes that are needed to find it
    /// are missing.
    #[inline]
    pub fn reach<B: Bytes>(&self, bytes: &B, hash: u64, key: &[u8]) -> Option<Option<Found<'_>>> {
        if !B::ALL
            && let Some(deltas) = &self.deltas
            && !Bug::DeltasHidden.active()
        {
            match deltas.find(bytes, hash, key)? {
                Delta::None => {}
                Delta::Gone => return Some(None),
                Delta::Value(value) => return Some(Some(Found::Value(value))),
                Delta::Below(range) => return Some(Some(Found::Below(range))),
            }
        }
        Some(self.table.reach(bytes, hash, key)?.map(Found::Entry))
    }

    /// The number of these keys that can be answered with their values: the first ones, if they are many.
    /// `None` if bytes that they need are missing.
    pub fn reach_many(&self, bytes: &impl Bytes, keys: &[&[u8]]) -> Option<usize> {
        let mut needs = Needs::up_to(bytes.most());
        let mut reached = 0;
        for key in keys.iter().take(WANT_KEYS) {
            reached += 1;
            let hash = key_hash(key);
            if self.admit_hashed(key, hash, false).is_err() {
                continue;
            }
            let region = self.table.heap.regions.get(self.table.map.region_of(hash));
            let enough = match self.reach(bytes, hash, key) {
                None => needs.and(false, region.lookup_bytes()),
                Some(None) => needs.and(true, region.lookup_bytes()),
                Some(Some(Found::Value(_) | Found::Below(_))) => needs.and(true, RUN_CHUNK),
                Some(Some(Found::Entry(hit))) => {
                    let value = self.table.value_of(bytes, &hit);
                    needs.and(bytes.wants(&value), region.lookup_bytes() + value.len())
                }
            };
            if enough {
                break;
            }
        }
        (!needs.lacking).then_some(reached)
    }
}

/// The ranges that an operation needs next.
pub(super) struct Needs {
    /// Whether any of them is missing.
    pub lacking: bool,
    /// Bytes that may still be requested.
    left: usize,
}

impl Needs {
    /// At most this many bytes, and the first range in any case.
    pub fn up_to(most: usize) -> Needs {
        Needs { lacking: false, left: most.min(WANT_MAX) }
    }

    /// Adds a range; returns whether no more may be added.
    pub fn and(&mut self, there: bool, bytes: usize) -> bool {
        self.lacking |= !there;
        self.left = self.left.saturating_sub(bytes);
        self.left == 0
    }
}
