//! Reads a block in order of (hash, key), a page at a time.

use super::below::{Needs, unanswered};
use super::region::{Head, Region};
use super::store::Store;
use super::table::Table;
use crate::adopting::list_of;
use crate::{Answer, Bytes, Payload};
use honeycomb_types::Bug;
use honeycomb_wire::data::{Brings, ScanArgs, put_scan_entry, put_scan_extents, scan_entry_len};
use std::ops::Range;

/// Most bytes of entries in a page, whatever was requested; a single entry may be larger.
pub const PAGE_MAX: usize = 1 << 20;
/// Bytes of regions that one request reads. After that it answers with the entries found so far. For a rare
/// prefix there may be none: then the page is empty and the cursor moves on.
const LOOK_MAX: usize = 4 << 20;

/// An entry that a page may contain.
struct Found {
    hash: u64,
    at: usize,
    head: Head,
}

impl Store {
    /// `KvScan`: a page of entries.
    pub fn scan(&self, block: &impl Bytes, args: &[u8]) -> Result<Answer, Answer> {
        let scan = ScanArgs::decode(args)?;
        self.ownership.admit(scan.cursor, false)?;
        let last = self.ownership.readable_from(scan.cursor);
        let budget = (scan.bytes as usize).min(PAGE_MAX);
        Ok(Page { table: &self.table, scan, last, budget, bytes: Vec::new() }.read(block))
    }
}

/// A page of a scan, as far as it is filled.
struct Page<'a> {
    table: &'a Table,
    scan: ScanArgs<'a>,
    /// The last hash that can be read.
    last: u64,
    /// Bytes of entries, if there is more than one.
    budget: usize,
    bytes: Vec<u8>,
}

impl Page<'_> {
    fn read(mut self, block: &impl Bytes) -> Answer {
        let mut looked = 0;
        let map = &self.table.map;
        let first = map.place_of(self.scan.cursor);
        if !self.reach(block, first) {
            return unanswered();
        }
        for place in first..map.len() {
            let region = self.table.region_at(place);
            if map.start(place) > self.last {
                break;
            }
            let full = !self.bytes.is_empty() && self.bytes.len() >= self.budget;
            // If all entries are wanted, the first region with an entry ends the search for one.
            let all = self.scan.prefix.is_empty() && self.scan.brings != Brings::Lists;
            let tired = looked >= LOOK_MAX && !(self.bytes.is_empty() && all);
            if full || tired || !block.has(&region.contents()) {
                return answer(map.start(place), self.bytes);
            }
            looked += region.size;
            let found = self.matches(block, region);
            if let Some(hash) = self.lacks_value(block, &found) {
                if self.bytes.is_empty() && found[0].hash == hash {
                    self.want_values(block, &found);
                    return unanswered();
                }
                let before = &found[..found.partition_point(|f| f.hash < hash)];
                let next = self.fill(block, before);
                return answer(next.unwrap_or(hash), self.bytes);
            }
            if let Some(next) = self.fill(block, &found) {
                return answer(next, self.bytes);
            }
        }
        // Anything after that belongs to another block, or will.
        answer(self.last.wrapping_add(1), self.bytes)
    }

    /// Whether the region from which the page begins was read. If not, the following regions are requested
    /// with it, as far as the page may hold them.
    fn reach(&self, bytes: &impl Bytes, first: usize) -> bool {
        let mut contents = self.table.regions_from(first).map(Region::contents);
        if contents.clone().next().is_none_or(|first| bytes.has(&first)) {
            return true;
        }
        let mut needs = Needs::up_to(self.budget.min(bytes.most()));
        let _ = contents.any(|range| needs.and(bytes.wants(&range), range.len()));
        false
    }

    /// The entries of one region that the scan wants, in order.
    fn matches(&self, block: &impl Bytes, region: &Region) -> Vec<Found> {
        let ScanArgs { cursor, prefix, brings, .. } = self.scan;
        let lists = brings == Brings::Lists;
        let key = |f: &Found| block.slice(f.head.key(f.at));
        let mut found: Vec<Found> = region
            .walk(block)
            .filter(|(_, head)| !head.dead() && (!lists || head.extents()))
            .map(|(at, head)| Found { hash: head.hash(block, at), at, head })
            .filter(|f| f.hash >= cursor)
            .filter(|f| key(f).starts_with(prefix))
            .collect();
        found.sort_unstable_by(|a, b| a.hash.cmp(&b.hash).then_with(|| key(a).cmp(key(b))));
        found
    }

    /// The bytes of an entry's value.
    fn value(&self, block: &impl Bytes, found: &Found) -> Range<usize> {
        self.table.heap.values.of_entry(block, found.at, &found.head)
    }

    /// The hash of the first of these entries whose value is absent.
    fn lacks_value<B: Bytes>(&self, block: &B, found: &[Found]) -> Option<u64> {
        if B::ALL || self.scan.brings == Brings::Keys {
            return None;
        }
        let there = |f: &Found| block.has(&self.value(block, f));
        found.iter().find(|f| !there(f)).map(|f| f.hash)
    }

    /// Requests the values of these entries, as far as a page may contain them.
    fn want_values(&self, block: &impl Bytes, found: &[Found]) {
        let mut needs = Needs::up_to(self.budget.min(block.most()));
        let _ = found.iter().any(|f| {
            let value = self.value(block, f);
            needs.and(block.wants(&value), value.len())
        });
    }

    /// Adds entries while they fit, those of one hash together; returns the hash of the first that did not
    /// fit.
    fn fill(&mut self, block: &impl Bytes, found: &[Found]) -> Option<u64> {
        for group in found.chunk_by(|a, b| a.hash == b.hash) {
            let keys_only = self.scan.brings == Brings::Keys;
            let value_len = |f: &Found| if keys_only { 0 } else { f.head.value_len };
            let bytes: usize =
                group.iter().map(|f| scan_entry_len(f.head.key_len, value_len(f))).sum();
            if !self.bytes.is_empty() && self.bytes.len() + bytes > self.budget {
                return Some(group[0].hash + u64::from(Bug::ScanSkips.active()));
            }
            for f in group {
                let key = block.slice(f.head.key(f.at));
                let value = if keys_only { 0..0 } else { self.value(block, f) };
                if f.head.extents() && !keys_only {
                    put_scan_extents(&mut self.bytes, key, list_of(block.slice(value)));
                    continue;
                }
                put_scan_entry(&mut self.bytes, key, block.slice(value));
            }
        }
        None
    }
}

fn answer(next: u64, page: Vec<u8>) -> Answer {
    let payload = if page.is_empty() { Payload::None } else { Payload::Bytes(page.into()) };
    Answer::ok(next).with(payload)
}
