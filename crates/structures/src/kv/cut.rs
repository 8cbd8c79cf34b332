//! Where a block splits: by its bytes, unless one half is much busier than the other.

use super::batch::shown;
use super::ownership::Ownership;
use super::region::Region;
use super::table::Table;
use honeycomb_block::Backing;
use honeycomb_types::Bug;
use honeycomb_types::limits::SLOT_WIDTH;
use honeycomb_wire::{key_tag, slot_of};
use std::sync::Arc;

/// Each half has at least the weight of a block divided by this: a smaller half would give no relief.
const LEAST_HALF: usize = 16;
/// One half is much busier than the other if it has this many times its operations.
const MUCH_BUSIER: u64 = 4;
/// With fewer operations, the load is not known.
const SEEN_LEAST: u64 = 1000;
/// Even if the load is uneven, each half has at least a block's weight divided by this, so that the fuller
/// half does not split again soon.
const LEAST_OF_BUSY: usize = 4;
/// The search for the hash at which a block splits.
pub(super) struct SplitPoint<'a> {
    table: &'a Table,
    start: u64,
    end: u64,
}

impl<'a> SplitPoint<'a> {
    pub fn new(table: &'a Table, range: &Ownership) -> SplitPoint<'a> {
        SplitPoint { table, start: range.start(), end: range.end() }
    }

    /// Where the block splits: the first hash of the upper half, at a boundary of slots. `None` if no
    /// boundary gives relief.
    pub fn middle(&self, block: &Backing) -> Option<u64> {
        let total = self.upto(self.table.map.len(), weight);
        let place = self.place_where(total / 2, weight);
        let weighed = self.weigh_below(block, self.boundaries(block, place));
        let (off, hash) =
            weighed.into_iter().map(|(hash, below)| ((2 * below).abs_diff(total), hash)).min()?;
        // `off` is the difference between the heavier half and the lighter one.
        let relief = total.saturating_sub(off) / 2 >= total / LEAST_HALF as u64;
        relief.then(|| self.middle_of_load(block, total, hash).unwrap_or(hash))
    }

    /// The keys that fill a block for which `middle` finds nothing: those of the slot with the median byte.
    /// One key stands for all.
    pub fn hot_keys(&self, block: &Backing) -> Arc<str> {
        let total = self.upto(self.table.map.len(), weight);
        let place = self.place_where(total / 2, weight);
        let region = self.table.region_at(place);
        let live = region.walk(block).filter(|(_, head)| !head.dead());
        let mut found: Vec<_> = live
            .map(|(at, head)| {
                let key = block.slice(head.key(at));
                (slot_of(head.hash(block, at)), (head.size() + head.beside()) as u64, key)
            })
            .collect();
        found.sort_unstable_by_key(|(slot, ..)| *slot);
        let weighs =
            |of_slot: &&[(u64, u64, &[u8])]| of_slot.iter().map(|(_, w, _)| w).sum::<u64>();
        let heaviest = found.chunk_by(|a, b| a.0 == b.0).max_by_key(weighs);
        let Some(&(.., key)) =
            heaviest.and_then(|of_slot| of_slot.iter().max_by_key(|(_, w, _)| *w))
        else {
            return "it holds no entries".into();
        };
        match key_tag(key) {
            Some(tag) => format!(
                "nearly all of it belongs to keys of the tag '{{{}}}', such as '{}', and the keys \
                 of a tag stay in one block; spread them over more tags, or delete some",
                shown(tag),
                shown(key)
            ),
            None => format!(
                "nearly all of it belongs to keys of one hash slot, such as '{}', and a slot stays \
                 in one block; delete some of its keys",
                shown(key)
            ),
        }
        .into()
    }

    /// Where the load divides as evenly as the bytes allow, if the middle by bytes leaves one half much
    /// busier than the other.
    fn middle_of_load(&self, block: &Backing, total: u64, middle: u64) -> Option<u64> {
        let all = self.upto(self.table.map.len(), load);
        let below = self.upto(self.table.map.place_of(middle), load);
        let (more, less) = (below.max(all - below), below.min(all - below));
        if all < SEEN_LEAST || more <= MUCH_BUSIER * less {
            return None;
        }
        let least = total / LEAST_OF_BUSY as u64;
        let (first, last) =
            (self.place_where(least, weight), self.place_where(total - least, weight));
        let place = self.place_where(all / 2, load).clamp(first, last);
        let weighed = self.weigh_below(block, self.boundaries(block, place));
        let fair = weighed.into_iter().filter(|(_, below)| {
            // The boundary may be a slot away from the intended place.
            (least - least / 4..=total - least + least / 4).contains(below)
        });
        fair.map(|(hash, below)| (self.load_below(hash, below).abs_diff(all - all / 2), hash))
            .min()
            .map(|(_, hash)| hash)
    }

    /// Estimate of the load before a hash with `weight_below` before it.
    fn load_below(&self, hash: u64, weight_below: u64) -> u64 {
        let place = self.table.map.place_of(hash);
        let region = self.table.region_at(place);
        let within = weight_below.saturating_sub(self.upto(place, weight));
        self.upto(place, load) + load(region) * within / weight(region).max(within).max(1)
    }

    /// The sum over the regions before a place.
    fn upto(&self, place: usize, of: impl Fn(&Region) -> u64) -> u64 {
        let table = &self.table;
        table.regions_from(0).take(place).map(of).sum()
    }

    /// The place of the region at which the running sum exceeds this.
    fn place_where(&self, much: u64, of: impl Fn(&Region) -> u64) -> usize {
        let table = &self.table;
        let mut sum = 0;
        let reaches = table.regions_from(0).position(|region| {
            sum += of(region);
            sum > much
        });
        reaches.unwrap_or(table.map.len() - 1)
    }

    /// The boundaries of slots that divide the entries of the region at a place: one between two neighbouring
    /// slots that have entries, halfway. Also those next to the region on both sides, because one slot may
    /// fill more than a region.
    fn boundaries(&self, block: &Backing, place: usize) -> Vec<u64> {
        let (first, last) =
            (slot_of(self.table.map.start(place)), slot_of(self.table.map.end(place, self.end)));
        let region = self.table.region_at(place);
        let live = region.walk(block).filter(|(_, head)| !head.dead());
        let mut used: Vec<u64> = live.map(|(at, head)| slot_of(head.hash(block, at))).collect();
        used.sort_unstable();
        used.dedup();
        let between = used.windows(2).map(|two| (two[0] + 1 + two[1]).div_ceil(2));
        let mut slots: Vec<u64> = [first, last + 1].into_iter().chain(between).collect();
        slots.extend(used.first().copied());
        slots.extend(used.last().map(|slot| slot + 1));
        slots.sort_unstable();
        slots.dedup();
        let hashes = slots.into_iter().filter_map(|slot| slot.checked_mul(SLOT_WIDTH));
        let fine = |hash: &u64| !Bug::DividesCoarsely.active() || hash.is_multiple_of(1 << 54);
        hashes.filter(|hash| *hash > self.start && *hash <= self.end).filter(fine).collect()
    }

    /// The weight before each of some hashes, which are in order.
    fn weigh_below(&self, block: &Backing, hashes: Vec<u64>) -> Vec<(u64, u64)> {
        let table = &self.table;
        let mut weighed = Vec::with_capacity(hashes.len());
        let (mut place, mut before) = (0, 0);
        for of_one in hashes.chunk_by(|a, b| table.map.place_of(*a) == table.map.place_of(*b)) {
            let to = table.map.place_of(of_one[0]);
            before += table.regions_from(place).take(to - place).map(weight).sum::<u64>();
            place = to;
            let region = table.region_at(place);
            // The weight of each entry, by the first of the hashes that follows it.
            let mut below = vec![0; of_one.len() + 1];
            for (at, head) in region.walk(block).filter(|(_, head)| !head.dead()) {
                let hash = head.hash(block, at);
                let at = of_one.partition_point(|boundary| *boundary <= hash);
                below[at] += (head.size() + head.beside()) as u64;
            }
            let mut sum = before;
            for (hash, weight) in of_one.iter().zip(below) {
                sum += weight;
                weighed.push((*hash, sum));
            }
        }
        weighed
    }
}

fn weight(region: &Region) -> u64 {
    region.weight() as u64
}

fn load(region: &Region) -> u64 {
    region.load.get() as u64
}
