//! The copy of a range of hashes to another block, at its source.
//!
//! Regions are sent with their layout, each after the values that its entries have beside it. The range is
//! served here meanwhile: later changes are sent again, until little is left. Then the range is frozen
//! (`freeze`: it can be read, but not changed) and the rest is sent. When the other block has confirmed
//! everything, the range is no longer read here (`hand_over`); from then on the controller decides who owns
//! it. Every step before that can be undone. `ownership.rs` has the effects on requests.

use super::large_values::{Copies, values_of};
use super::patches::Unsent;
use super::region::Region;
use super::table::Table;
use crate::Answer;
use crate::moves::{Parcel, Prepared, Totals};
use honeycomb_block::{Backing, Pin};
use honeycomb_wire::{Checksum, Field, checksum};
use std::sync::Arc;

/// Most deleted values that one part names.
const DROPS_MAX: usize = 8192;

/// The progress of copying a range.
pub(super) struct Export {
    start: u64,
    end: u64,
    /// Where the search for the next region to send continues.
    cursor: u64,
    /// The part that is being prepared.
    begun: Option<Begun>,
}

/// A part that is being prepared, a piece at a time.
struct Begun {
    what: Begin,
    /// Bytes that were read, and their checksum.
    done: usize,
    sum: Checksum,
}

enum Begin {
    /// A region that refers to no values. Its changes meanwhile are sent as a patch, like later ones, so that
    /// its bytes may be copied at different times. A new layout of the region ends its patches, and this
    /// part.
    Region { start: u64, end: u64, id: u32, bytes: Arc<[u8]> },
    /// A value, which does not change.
    Value { number: u32, bytes: Pin },
}

impl Begun {
    fn new(what: Begin) -> Begun {
        Begun { what, done: 0, sum: Checksum::default() }
    }

    /// Bytes of the part, which was not sent yet.
    fn unsent(&self) -> usize {
        match &self.what {
            Begin::Region { bytes, .. } => bytes.len(),
            Begin::Value { bytes, .. } => bytes.bytes().len(),
        }
    }
}

impl Export {
    /// Begins to copy the hashes from `start` on, up to the last of the block. `Err` if pins prevent that
    /// now.
    pub fn begin(
        table: &mut Table,
        block: &mut Backing,
        start: u64,
        end: u64,
    ) -> Result<Export, Answer> {
        table.divide_at(block, start)?;
        table.heap.values.begin_copies();
        let export = Export { start, end, cursor: start, begun: None };
        for (.., id) in export.regions(table).collect::<Vec<_>>() {
            table.heap.regions.get_mut(id).unsent = Unsent::all();
        }
        Ok(export)
    }

    /// The regions of the range: first hash, last hash, id.
    fn regions(&self, table: &Table) -> impl Iterator<Item = (u64, u64, u32)> {
        let (map, end) = (&table.map, self.end);
        let range = move |place| (map.start(place), map.end(place, end), map.region(place));
        (map.place_of(self.start)..map.len()).map(range)
    }

    /// The region to send next: the first from the cursor on that has changed, then from the start.
    fn next_region(&self, table: &Table) -> Option<(u64, u64, u32)> {
        let changed = |(.., id): &(u64, u64, u32)| table.heap.regions.get(*id).unsent() > 0;
        let mut all = self.regions(table).filter(changed).peekable();
        let first = all.peek().copied();
        all.find(|(start, ..)| *start >= self.cursor).or(first)
    }

    /// Works on the next part to send (`Movable::prepare`).
    pub fn prepare(&mut self, table: &mut Table, block: &mut Backing, most: usize) -> Prepared {
        if let Some(begun) = self.begun.take() {
            return self.go_on(table, block, begun, most);
        }
        let copies = table.heap.values.copies_mut().expect("an export has copies");
        if let Some(dropped) = copies.take_dropped(DROPS_MAX) {
            return Prepared::Parcel(Parcel::Drops(dropped));
        }
        if let Some(number) = copies.next_queued() {
            let place = table.heap.values.place(number);
            let copies = table.heap.values.copies_mut().expect("an export has copies");
            copies.sent(number, place.len());
            let value = Begin::Value { number, bytes: block.pin(place) };
            return self.go_on(table, block, Begun::new(value), most);
        }
        let Some((start, end, id)) = self.next_region(table) else { return Prepared::Nothing };
        self.cursor = end.wrapping_add(1);
        let region = table.heap.regions.get(id);
        let small = region.unsent() <= region.contents().len() / 2;
        if !region.unsent.is_all() && region.large == 0 && small {
            return Prepared::Parcel(patch(table.heap.regions.get_mut(id), block, start, end));
        }
        let values = match region.large {
            0 => Vec::new(),
            _ => values_of(block, region),
        };
        let copies = table.heap.values.copies_mut().expect("an export has copies");
        if copies.queue_missing(values.iter().map(|(_, value)| *value)) {
            self.cursor = start;
            return Prepared::Partly;
        }
        let region = table.heap.regions.get_mut(id);
        // The other block has numbers of its own for values: a region that refers to values is sent whole.
        region.unsent.sent(values.is_empty() && region.count > 0);
        if region.count > 0 && values.is_empty() {
            let bytes = std::iter::repeat_n(0, region.contents().len()).collect();
            let region = Begin::Region { start, end, id, bytes };
            return self.go_on(table, block, Begun::new(region), most);
        }
        let bytes: Arc<[u8]> = match region.count {
            0 => Arc::new([]),
            _ => block.slice(region.contents()).into(),
        };
        let (values, checksum) = (values.len() as u32, checksum(&bytes));
        Prepared::Parcel(Parcel::Region { start, end, values, checksum, bytes })
    }

    /// Prepares another piece of a part.
    fn go_on(&mut self, table: &Table, block: &Backing, mut begun: Begun, most: usize) -> Prepared {
        let from = begun.done;
        let whole = match &mut begun.what {
            Begin::Region { id, bytes, .. } => {
                let region = table.heap.regions.get(*id);
                if !region.unsent.is_patched() {
                    return Prepared::Partly; // The region has a new layout: the part begins again.
                }
                let to = bytes.len().min(from.saturating_add(most));
                let piece = block.slice(region.at + from..region.at + to);
                let copy = Arc::get_mut(bytes).expect("it was not sent yet");
                copy[from..to].copy_from_slice(piece);
                begun.sum.add(&copy[from..to]);
                begun.done = to;
                bytes.len()
            }
            Begin::Value { bytes, .. } => {
                let bytes = bytes.bytes();
                begun.done = bytes.len().min(from.saturating_add(most));
                begun.sum.add(&bytes[from..begun.done]);
                bytes.len()
            }
        };
        if begun.done < whole {
            self.begun = Some(begun);
            return Prepared::Partly;
        }
        let checksum = begun.sum.value();
        Prepared::Parcel(match begun.what {
            Begin::Region { start, end, bytes, .. } => {
                Parcel::Region { start, end, values: 0, checksum, bytes }
            }
            Begin::Value { number, bytes } => Parcel::Value { number, checksum, bytes },
        })
    }

    /// Estimate of the bytes left to send.
    pub fn unsent(&self, table: &Table) -> u64 {
        let regions = self.regions(table).map(|(.., id)| table.heap.regions.get(id));
        let (regions, values) = regions.fold((0, 0), |(regions, values), region| {
            (regions + region.unsent(), values + region.large)
        });
        let sent = table.heap.values.copies().map_or(0, Copies::bytes);
        let begun = self.begun.as_ref().map_or(0, Begun::unsent);
        (regions + values.saturating_sub(sent) + begun) as u64
    }

    /// The totals of the range.
    pub fn totals(&self, table: &Table) -> Totals {
        let regions = self.regions(table).map(|(.., id)| table.heap.regions.get(id));
        regions.fold(Totals::default(), |sum, region| Totals {
            entries: sum.entries + region.count as u64,
            bytes: sum.bytes + (region.live + region.large) as u64,
        })
    }

    /// The range belongs to the other block; returns its regions, which have no hashes any more.
    pub fn depart(self, table: &mut Table) -> Vec<u32> {
        table.heap.values.end_copies();
        table.remove_from(self.start)
    }

    /// The range stays, and everything is as before.
    pub fn cancel(self, table: &mut Table, block: &mut Backing) {
        for (.., id) in self.regions(table).collect::<Vec<_>>() {
            table.heap.regions.get_mut(id).unsent.forget_patches();
        }
        table.heap.values.end_copies();
        // During an export, empty regions are kept.
        table.drop_empty_regions(block);
    }
}

/// The changes of a region since it was sent.
fn patch(region: &mut Region, block: &Backing, start: u64, end: u64) -> Parcel {
    let patches = region.unsent.take_patches();
    let contents = region.contents();
    let mut runs = Vec::with_capacity(2 * patches.bytes());
    for run in patches.runs(contents.len()) {
        (run.start as u32).put(&mut runs);
        (run.len() as u32).put(&mut runs);
        runs.extend_from_slice(block.slice(region.at + run.start..region.at + run.end));
    }
    Parcel::Patch { start, end, length: contents.len() as u32, runs: runs.into() }
}
