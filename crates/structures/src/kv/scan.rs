//! Reads a block in order of (hash, key), a page at a time.

use super::KvBlock;
use super::below::{Needs, unanswered};
use super::large::list_of;
use super::region::{ENTRY, Head};
use crate::{Answer, Bytes, Payload};
use honeycomb_types::Bug;
use honeycomb_wire::data::{Brings, ScanArgs, put_scan_entry, put_scan_extents, scan_entry_len};

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

impl KvBlock {
    pub(super) fn scan(&self, block: &impl Bytes, args: &[u8]) -> Result<Answer, Answer> {
        let scan = ScanArgs::decode(args)?;
        let cursor = scan.cursor;
        self.admit_hash(cursor, false)?;
        let last = self.readable_from(cursor);
        let budget = (scan.bytes as usize).min(PAGE_MAX);
        let mut page = Vec::new();
        let mut looked = 0;
        let first = self.table.map.place_of(cursor);
        if !self.reach_page(block, first, budget) {
            return Ok(unanswered());
        }
        for place in first..self.table.map.len() {
            let region = self.table.region_at(place);
            if self.table.map.start(place) > last {
                break;
            }
            let full = !page.is_empty() && page.len() >= budget;
            // If all entries are wanted, the first region with an entry ends the search for one.
            let all = scan.prefix.is_empty() && scan.brings != Brings::Lists;
            let tired = looked >= LOOK_MAX && !(page.is_empty() && all);
            if full || tired || !block.has(&region.contents()) {
                return Ok(answer(self.table.map.start(place), page));
            }
            looked += region.size;
            let found = self.matches(block, place, cursor, &scan);
            if let Some(hash) = self.lacks_value(block, &found, &scan) {
                if page.is_empty() && found[0].hash == hash {
                    self.want_values(block, &found, budget);
                    return Ok(unanswered());
                }
                let before = &found[..found.partition_point(|f| f.hash < hash)];
                let next = self.fill_page(block, before, &scan, budget, &mut page);
                return Ok(answer(next.unwrap_or(hash), page));
            }
            if let Some(next) = self.fill_page(block, &found, &scan, budget, &mut page) {
                return Ok(answer(next, page));
            }
        }
        // Anything after that belongs to another block, or will.
        Ok(answer(last.wrapping_add(1), page))
    }

    /// The entries of one region that the scan wants, in order.
    fn matches(
        &self,
        block: &impl Bytes,
        place: usize,
        cursor: u64,
        scan: &ScanArgs<'_>,
    ) -> Vec<Found> {
        let region = self.table.region_at(place);
        let lists = scan.brings == Brings::Lists;
        let key = |f: &Found| block.slice(f.at + ENTRY..f.at + ENTRY + f.head.key_len);
        let mut found: Vec<Found> = region
            .walk(block)
            .filter(|(_, head)| !head.dead() && (!lists || head.extents()))
            .map(|(at, head)| Found { hash: head.hash(block, at), at, head })
            .filter(|f| f.hash >= cursor)
            .filter(|f| key(f).starts_with(scan.prefix))
            .collect();
        found.sort_unstable_by(|a, b| a.hash.cmp(&b.hash).then_with(|| key(a).cmp(key(b))));
        found
    }

    /// The hash of the first of these entries whose value is absent.
    fn lacks_value<B: Bytes>(
        &self,
        block: &B,
        found: &[Found],
        scan: &ScanArgs<'_>,
    ) -> Option<u64> {
        if B::ALL || scan.brings == Brings::Keys {
            return None;
        }
        let there = |f: &Found| block.has(&self.table.heap.values.of_entry(block, f.at, &f.head));
        found.iter().find(|f| !there(f)).map(|f| f.hash)
    }

    /// Requests the values of these entries, as far as a page may contain them.
    fn want_values(&self, block: &impl Bytes, found: &[Found], most: usize) {
        let mut needs = Needs::up_to(most.min(block.most()));
        let _ = found.iter().any(|f| {
            let value = self.table.heap.values.of_entry(block, f.at, &f.head);
            needs.and(block.wants(&value), value.len())
        });
    }

    /// Adds entries while they fit, those of one hash together; returns the hash of the first that did not
    /// fit.
    fn fill_page(
        &self,
        block: &impl Bytes,
        found: &[Found],
        scan: &ScanArgs<'_>,
        budget: usize,
        page: &mut Vec<u8>,
    ) -> Option<u64> {
        for group in found.chunk_by(|a, b| a.hash == b.hash) {
            let keys_only = scan.brings == Brings::Keys;
            let value_len = |f: &Found| if keys_only { 0 } else { f.head.value_len };
            let bytes: usize =
                group.iter().map(|f| scan_entry_len(f.head.key_len, value_len(f))).sum();
            if !page.is_empty() && page.len() + bytes > budget {
                return Some(group[0].hash + u64::from(Bug::ScanSkips.active()));
            }
            for f in group {
                let key = block.slice(f.at + ENTRY..f.at + ENTRY + f.head.key_len);
                let value = match keys_only {
                    true => 0..0,
                    false => self.table.heap.values.of_entry(block, f.at, &f.head),
                };
                if f.head.extents() && !keys_only {
                    put_scan_extents(page, key, list_of(block.slice(value)));
                    continue;
                }
                put_scan_entry(page, key, block.slice(value));
            }
        }
        None
    }
}

fn answer(next: u64, page: Vec<u8>) -> Answer {
    let payload = if page.is_empty() { Payload::None } else { Payload::Bytes(page.into()) };
    Answer::ok(next).with(payload)
}
