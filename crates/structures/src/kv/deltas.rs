//! Deltas: changes of a block in a lower tier that its bytes there do not contain yet (ADR 0055).
//!
//! A change is a record: a key with its new value, or without one if the entry is deleted. The newest
//! records are in memory (`fresh`). When that memory is needed, they are written behind the block's bytes
//! in its slot of the disk, as a *run*, of which only an index stays in memory. A read looks in the deltas
//! first, and then in the block's bytes. When the block is read back, all runs are read with it and the
//! records are stored in it, from the oldest to the newest.

use crate::{Bytes, Sealed};
use hashbrown::HashTable;
use honeycomb_types::Bug;
use honeycomb_types::limits::RUN_CHUNK;
use honeycomb_wire::key_hash;
use std::ops::Range;

/// Bytes of a record before its key: the length of the key, whether it is deleted, the length of the value.
const HEAD: usize = 8;
/// Records begin at multiples of this in their run.
const ALIGN: usize = 8;
/// Approximate bytes of memory for a record in memory beside its own: its offset in a table.
const OFFSET_COST: usize = 8;
/// Offsets of records in their run are less than this: they have 24 bits.
const RUN_END: usize = ALIGN << 24;

/// The head of a record.
#[derive(Clone, Copy)]
struct Head {
    key_len: usize,
    value_len: usize,
    gone: bool,
}

impl Head {
    fn read(bytes: &[u8]) -> Head {
        let b: &[u8; HEAD] = bytes.first_chunk().expect("a record is whole");
        Head {
            key_len: u16::from_le_bytes([b[0], b[1]]) as usize,
            gone: b[2] != 0,
            value_len: u32::from_le_bytes([b[4], b[5], b[6], b[7]]) as usize,
        }
    }

    fn size(&self) -> usize {
        (HEAD + self.key_len + self.value_len).next_multiple_of(ALIGN)
    }
}

/// A record in some bytes.
#[derive(Clone, Copy)]
pub(super) struct Record<'a> {
    pub key: &'a [u8],
    /// `None` if the entry is deleted.
    pub value: Option<&'a [u8]>,
}

impl<'a> Record<'a> {
    fn read(bytes: &'a [u8]) -> Record<'a> {
        let head = Head::read(bytes);
        let (key, rest) = bytes[HEAD..].split_at(head.key_len);
        Record { key, value: (!head.gone).then(|| &rest[..head.value_len]) }
    }

    /// Adds it to some bytes.
    fn write(&self, out: &mut Vec<u8>) {
        let (from, head) = (out.len(), self.head());
        out.extend_from_slice(&(head.key_len as u16).to_le_bytes());
        out.extend_from_slice(&[head.gone as u8, 0]);
        out.extend_from_slice(&(head.value_len as u32).to_le_bytes());
        out.extend_from_slice(self.key);
        out.extend_from_slice(self.value.unwrap_or_default());
        out.resize(from + head.size(), 0);
    }

    fn head(&self) -> Head {
        let value_len = self.value.map_or(0, <[u8]>::len);
        Head { key_len: self.key.len(), value_len, gone: self.value.is_none() }
    }
}

/// A hash for a table of keys of one block, whose upper halves are almost equal.
fn spread(hash: u64) -> u64 {
    hash.rotate_left(32)
}

/// Records in memory, at most one of each key.
#[derive(Clone, Default)]
struct Records {
    bytes: Vec<u8>,
    /// Offsets of the records.
    by_key: HashTable<u32>,
    /// Bytes of records that were replaced by longer or shorter ones.
    dead: usize,
}

impl Records {
    fn at(&self, offset: u32) -> Record<'_> {
        Record::read(&self.bytes[offset as usize..])
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<Record<'_>> {
        let found = self.by_key.find(spread(hash), |at| self.at(*at).key == key)?;
        Some(self.at(*found))
    }

    /// Sets the record of a key.
    fn set(&mut self, hash: u64, record: Record<'_>) {
        let (bytes, head) = (&mut self.bytes, record.head());
        let same = |at: &u32| Record::read(&bytes[*at as usize..]).key == record.key;
        let present = self.by_key.find(spread(hash), same).copied();
        if let Some(at) = present {
            let before = Head::read(&bytes[at as usize..]);
            if before.value_len == head.value_len && before.gone == head.gone {
                let value = at as usize + HEAD + head.key_len;
                let value = &mut bytes[value..value + head.value_len];
                return value.copy_from_slice(record.value.unwrap_or_default());
            }
            self.dead += before.size();
        }
        let at = bytes.len() as u32;
        record.write(bytes);
        match present {
            Some(before) => {
                let place = self.by_key.find_mut(spread(hash), |at| *at == before);
                *place.expect("found just now") = at;
            }
            None => {
                let bytes = &self.bytes;
                let again = |at: &u32| spread(key_hash(Record::read(&bytes[*at as usize..]).key));
                self.by_key.insert_unique(spread(hash), at, again);
            }
        }
    }

    /// Bytes of memory that they take.
    fn taken(&self) -> usize {
        self.bytes.len() + self.by_key.len() * OFFSET_COST
    }

    /// The records in the order of their first writes.
    fn in_order(&self) -> Vec<Record<'_>> {
        let mut places: Vec<u32> = self.by_key.iter().copied().collect();
        places.sort_unstable();
        places.into_iter().map(|at| self.at(at)).collect()
    }
}

/// The place of a record of a run, in few bytes: there is one in memory for each record below.
///
/// The lower 16 bits of the hash of its key; its offset in the run, in units of `ALIGN` and 24 bits; and its
/// size, in the same units, rounded up to three bits behind the highest one.
#[derive(Clone, Copy)]
struct Place([u8; 6]);

impl Place {
    fn new(hash: u64, at: usize, size: usize) -> Place {
        let (at, size) = (at / ALIGN, size / ALIGN);
        assert!(at < RUN_END / ALIGN, "INV-61: a run has up to {RUN_END} bytes");
        let shift = (size.max(1).ilog2() as usize).saturating_sub(3);
        let rounded = size.div_ceil(1 << shift);
        // 16 units of a shift are 8 of the next one.
        let (shift, rounded) = if rounded == 16 { (shift + 1, 8) } else { (shift, rounded) };
        let ([a, b], [x, y, z, _]) = ((hash as u16).to_le_bytes(), (at as u32).to_le_bytes());
        Place([a, b, x, y, z, (shift << 4 | rounded) as u8])
    }

    fn fragment(&self) -> u16 {
        u16::from_le_bytes([self.0[0], self.0[1]])
    }

    fn at(&self) -> usize {
        u32::from_le_bytes([self.0[2], self.0[3], self.0[4], 0]) as usize * ALIGN
    }

    /// At least the size of the record, at most an eighth more.
    fn size(&self) -> usize {
        ((self.0[5] & 15) as usize) << (self.0[5] >> 4) << ALIGN.ilog2()
    }
}

/// Records behind the block's bytes in its lower tier.
#[derive(Clone)]
struct Run {
    /// The offset of the run from the start of the block's slot.
    at: usize,
    len: usize,
    /// In order of their fragments.
    places: Box<[Place]>,
}

impl Run {
    /// The range of the slot in which the record is, with some bytes behind it.
    fn range_of(&self, place: &Place) -> Range<usize> {
        let from = place.at();
        self.at + from..self.at + (from + place.size()).min(self.len)
    }

    /// The places of records whose keys may have this hash.
    fn candidates(&self, hash: u64) -> &[Place] {
        let fragment = hash as u16;
        let from = self.places.partition_point(|place| place.fragment() < fragment);
        let count = self.places[from..].iter().take_while(|place| place.fragment() == fragment);
        &self.places[from..from + count.count()]
    }
}

/// Records that are being written to the lower tier.
#[derive(Clone)]
struct Leaving {
    records: Records,
    run: Run,
}

/// The deltas of a block.
#[derive(Clone, Default)]
pub(super) struct Deltas {
    fresh: Records,
    leaving: Option<Leaving>,
    /// The oldest first.
    runs: Vec<Run>,
    /// Bytes that the block needs beyond its own when all records are stored in it.
    pub grows: usize,
}

/// A key's state in the deltas.
pub(super) enum Delta<'a> {
    /// No record has it.
    None,
    Gone,
    /// Its value, in memory.
    Value(&'a [u8]),
    /// The place of its value in the block's slot.
    Below(Range<usize>),
}

impl Deltas {
    pub fn is_empty(&self) -> bool {
        self.fresh.by_key.is_empty() && self.leaving.is_none() && self.runs.is_empty()
    }

    /// The newest record of a key. `None` if bytes that it needs are missing.
    pub fn find<'a>(&'a self, bytes: &impl Bytes, hash: u64, key: &[u8]) -> Option<Delta<'a>> {
        if let Some(record) = self.in_memory_of(hash, key) {
            return Some(record.value.map_or(Delta::Gone, Delta::Value));
        }
        for run in self.runs.iter().rev() {
            for place in run.candidates(hash) {
                let range = run.range_of(place);
                if !bytes.wants(&range) {
                    return None;
                }
                let head = Head::read(bytes.slice(range.start..range.start + HEAD));
                let found = range.start + HEAD..range.start + HEAD + head.key_len;
                if bytes.slice(found.clone()) == key {
                    let value = found.end..found.end + head.value_len;
                    return Some(if head.gone { Delta::Gone } else { Delta::Below(value) });
                }
            }
        }
        Some(Delta::None)
    }

    /// The newest record of a key, if it is in memory.
    pub fn in_memory_of(&self, hash: u64, key: &[u8]) -> Option<Record<'_>> {
        let leaving = self.leaving.as_ref().and_then(|leaving| leaving.records.find(hash, key));
        self.fresh.find(hash, key).or(leaving)
    }

    /// Sets the value of a key; `None` deletes it.
    pub fn set(&mut self, hash: u64, key: &[u8], value: Option<&[u8]>) {
        self.fresh.set(hash, Record { key, value });
    }

    /// Bytes of memory that records take, of the whole deltas.
    pub fn in_memory(&self) -> usize {
        let leaving = self.leaving.as_ref().map_or(0, |leaving| leaving.records.taken());
        let places = self.runs.iter().map(|run| run.places.len() * size_of::<Place>());
        self.fresh.taken() + leaving + places.sum::<usize>()
    }

    /// Bytes of records that are not being written to the lower tier yet.
    pub fn fresh(&self) -> usize {
        self.fresh.bytes.len()
    }

    /// Whether records are being written.
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Bytes of all records.
    pub fn bytes(&self) -> usize {
        let leaving = self.leaving.as_ref().map_or(0, |leaving| leaving.run.len);
        self.fresh.bytes.len() + leaving + self.runs.iter().map(|run| run.len).sum::<usize>()
    }

    /// The end of the runs in the block's slot.
    pub fn runs_end(&self) -> Option<usize> {
        self.runs.last().map(|run| run.at + run.len)
    }

    /// Makes a run of the fresh records, for the lower tier, at this offset of the block's slot and with at
    /// most `most` bytes. `None` if they are more, or none, or others are being written.
    pub fn seal(&mut self, at: usize, most: usize) -> Option<Vec<u8>> {
        let live = self.fresh.bytes.len() - self.fresh.dead;
        let len = live.next_multiple_of(RUN_CHUNK);
        if live == 0 || len > most.min(RUN_END) || self.leaving.is_some() {
            return None;
        }
        let records = std::mem::take(&mut self.fresh);
        let (mut bytes, mut places) = (Vec::with_capacity(len), Vec::new());
        for record in records.in_order() {
            let at = bytes.len();
            record.write(&mut bytes);
            places.push(Place::new(key_hash(record.key), at, bytes.len() - at));
        }
        assert_eq!(bytes.len(), live, "INV-61: a run has all records of the block");
        bytes.resize(len, 0);
        places.sort_by_key(Place::fragment);
        let run = Run { at, len, places: places.into() };
        assert!(self.runs_end().is_none_or(|end| end <= at), "INV-61: runs are in order");
        self.leaving = Some(Leaving { records, run });
        Some(bytes)
    }

    /// The run that was made last is in the lower tier, or could not be written.
    pub fn sealed(&mut self, outcome: Sealed) {
        let Some(Leaving { records, run }) = self.leaving.take() else { return };
        match outcome {
            Sealed::Written if Bug::RunLost.active() => {}
            Sealed::Written => self.runs.push(run),
            Sealed::Failed => {
                let newer = std::mem::replace(&mut self.fresh, records);
                for record in newer.in_order() {
                    self.fresh.set(key_hash(record.key), record);
                }
            }
        }
    }

    /// Calls `each` with all records, from the oldest to the newest. `below` has the bytes of the block's
    /// slot from `from` on.
    pub fn each<'a>(&'a self, below: &'a [u8], from: usize, mut each: impl FnMut(Record<'a>)) {
        let backwards = Bug::DeltasMergedBackwards.active();
        if backwards {
            self.fresh.in_order().into_iter().for_each(&mut each);
        }
        for run in &self.runs {
            let mut places = run.places.to_vec();
            places.sort_unstable_by_key(Place::at);
            for place in places {
                let range = run.range_of(&place);
                each(Record::read(&below[range.start - from..range.end - from]));
            }
        }
        let leaving = self.leaving.iter().flat_map(|leaving| leaving.records.in_order());
        let fresh = if backwards { Vec::new() } else { self.fresh.in_order() };
        leaving.chain(fresh).for_each(each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place leads to a little more than the record.
    #[test]
    fn place_contains_its_record_and_little_more() {
        let sizes =
            (1..4000).chain((1..18).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]));
        for size in sizes.map(|units: usize| units * ALIGN) {
            for at in [0, ALIGN, RUN_END / 2, RUN_END - ALIGN] {
                let place = Place::new(0xABCD_1234, at, size);
                assert_eq!((place.fragment(), place.at()), (0x1234, at));
                let most = size + size / 8;
                assert!((size..=most).contains(&place.size()), "{} for {size}", place.size());
            }
        }
    }
}
