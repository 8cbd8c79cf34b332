//! Checks of a region that another server has sent: operations rely on all of them.

use super::super::large_values::large_id;
use super::{DEAD, ENTRY, EXTENTS, Head, LARGE, LONG, Region, STAGED};
use crate::adopting::is_list;
use honeycomb_block::Backing;

/// The content of a received region without faults.
pub(in super::super) struct Sound {
    /// The numbers and lengths of the values beside the region.
    pub values: Vec<(u32, usize)>,
    /// Whether any value is a list of extents.
    pub lists: bool,
}

/// A region that has arrived from another block, and whose header fits it (`Region::arrived`).
pub(in super::super) struct Received<'a> {
    pub region: &'a Region,
    pub block: &'a Backing,
}

impl Received<'_> {
    /// Whether the log consists of entries, so that it can be walked.
    pub fn has_whole_entries(&self) -> bool {
        let log = self.block.slice(self.region.log());
        let mut at = 0;
        while at < log.len() {
            let Some(bytes) = log.get(at..at + ENTRY) else { return false };
            let head = Head::read(bytes);
            let known = head.flags & !(DEAD | LARGE | STAGED | EXTENTS | LONG) == 0;
            if !known || head.large() && head.extents() || head.size() > log.len() - at {
                return false;
            }
            at += head.size();
        }
        true
    }

    /// Checks that log, index and counts agree, and that the hashes of all entries are in this range. `Err`
    /// with the reason.
    pub fn verify(&self, (start, end): (u64, u64)) -> Result<Sound, &'static str> {
        let Received { region, block } = *self;
        let mut sound = Sound { values: Vec::new(), lists: false };
        if region.size == 0 {
            return Ok(sound);
        }
        if !self.has_whole_entries() {
            return Err("has an entry that does not fit into it");
        }
        let words = block.slice(region.words());
        // With as many words as entries, of which each is found, no word names anything else.
        if region.index.count_words(words) != Some(region.count) {
            return Err("has another number of entries in its index");
        }
        let (mut count, mut live, mut large) = (0, 0, 0);
        for (at, head) in region.walk(block).filter(|(_, head)| !head.dead()) {
            let hash = head.hash(block, at);
            if head.staged() || !(start..=end).contains(&hash) {
                return Err("has an entry of an undecided batch, or of another range");
            }
            let offset = at - region.at;
            if !region.index.probe(words, hash as u32).any(|(_, found)| found == offset) {
                return Err("has an entry that its index does not lead to");
            }
            if head.extents() && !is_list(head.value_len) {
                return Err("has a damaged list of extents");
            }
            sound.lists |= head.extents();
            if head.large() {
                sound.values.push((large_id(block, at, &head), head.value_len));
            }
            count += 1;
            live += head.size();
            large += head.beside();
        }
        match (count, live, large) == (region.count, region.live, region.large) {
            true => Ok(sound),
            false => Err("has counted its entries wrongly"),
        }
    }
}
