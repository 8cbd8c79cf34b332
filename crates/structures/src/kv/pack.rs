//! Packing: moving the free bytes of a stretch of neighbouring extents together.

use super::arena::{Extent, Owner, round_up};
use super::heap::Heap;
use honeycomb_block::Backing;
use std::ops::Range;

/// An extent in a stretch to be packed.
struct PackItem {
    extent: Extent,
    /// Bytes that it takes after packing.
    packed: usize,
    /// Whether the extent is pinned and cannot be moved.
    fixed: bool,
}

/// How much spare room regions must give up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Squeeze {
    /// The spare room beyond an eighth for growth.
    Gently,
    /// The spare room beyond a sixteenth, in a block at rest.
    AtRest,
    /// The spare room beyond half of an equal share of the free bytes. If regions gave up all of it, each
    /// would need room again at its next entry.
    Fairly,
    /// All spare room.
    Fully,
}

impl Heap {
    /// Packs a stretch around a region so that it can have `len` bytes.
    pub(super) fn widen(
        &mut self,
        block: &mut Backing,
        id: u32,
        len: usize,
        effort: usize,
        squeeze: Squeeze,
        (entry, new): (usize, bool),
    ) -> bool {
        let items = self.items(block, squeeze);
        let own = items.iter().position(|item| item.extent.owner == Owner::Region(id));
        let own = own.expect("a region with bytes has an extent");
        let Some(stretch) = stretch_around(&items, own, len, effort, self.size()) else {
            return false;
        };
        self.pack(block, &items, stretch, Some((own, len, entry, new)));
        true
    }

    /// Packs a stretch anywhere so that there is a hole of `len` bytes.
    pub(super) fn gather(
        &mut self,
        block: &mut Backing,
        len: usize,
        effort: usize,
        squeeze: Squeeze,
    ) -> bool {
        let items = self.items(block, squeeze);
        let Some(stretch) = stretch_anywhere(&items, len, effort, self.size()) else {
            return false;
        };
        self.pack(block, &items, stretch, None);
        true
    }

    /// Moves extents down into the first hole of at least `least` bytes that has a movable extent behind it:
    /// at most `most` bytes, up to the next extent that is pinned or longer than that. Returns whether there
    /// was such a hole.
    pub(super) fn pack_some(
        &mut self,
        block: &mut Backing,
        least: usize,
        most: usize,
        squeeze: Squeeze,
    ) -> bool {
        let items = self.items(block, squeeze);
        let stays = |item: &PackItem| item.fixed || item.packed > most;
        let mut end = 0;
        let movable = items.iter().position(|item| {
            let hole =
                item.extent.at - std::mem::replace(&mut end, item.extent.at + item.extent.len);
            hole >= least && !stays(item)
        });
        let Some(from) = movable else { return false };
        let mut bytes = 0;
        let some = items[from..].iter().take_while(|item| {
            bytes += item.packed;
            !stays(item) && bytes <= most
        });
        let stretch = from..from + some.count();
        self.pack(block, &items, stretch, None);
        true
    }

    /// All extents in order of offset, with their sizes after packing.
    fn items(&self, block: &mut Backing, squeeze: Squeeze) -> Vec<PackItem> {
        let free = self.free();
        let mut items = Vec::with_capacity(self.arena.extents());
        for extent in self.arena.iter() {
            let packed = match extent.owner {
                Owner::Region(id) => {
                    let region = self.regions.get(id);
                    let packed = region.packed();
                    let keep = match squeeze {
                        Squeeze::Gently if region.size - packed < region.size / 4 => region.size,
                        Squeeze::Gently => packed + packed / 8,
                        Squeeze::AtRest => packed + packed / 16,
                        Squeeze::Fairly => packed + packed / 2 * free / self.size(),
                        Squeeze::Fully => packed,
                    };
                    round_up(keep).min(region.size)
                }
                Owner::Large(_) | Owner::Zombie => extent.len,
            };
            let fixed = extent.owner == Owner::Zombie
                || block.is_pinned(&(extent.at..extent.at + extent.len));
            items.push(PackItem { extent, packed, fixed });
        }
        items
    }

    /// Packs a stretch to both sides of the region `own` (its place among the items, its new length, and the
    /// entry to be added), or all to the left.
    ///
    /// The left part moves down in ascending order and the right part up in descending order, so that nothing
    /// is overwritten before it has moved; the region itself is moved last.
    fn pack(
        &mut self,
        block: &mut Backing,
        items: &[PackItem],
        stretch: Range<usize>,
        own: Option<(usize, usize, usize, bool)>,
    ) {
        let bounds = bounds(items, &stretch, self.size());
        let middle = own.map_or(stretch.end, |(own, ..)| own);
        let mut extents = Vec::with_capacity(stretch.len());
        let mut from = bounds.start;
        for item in &items[stretch.start..middle] {
            extents.push(self.shift(block, item, from));
            from += item.packed;
        }
        let behind = extents.len();
        let mut to = bounds.end;
        for item in items[middle..stretch.end].iter().skip(1).rev() {
            to -= item.packed;
            extents.push(self.shift(block, item, to));
        }
        extents[behind..].reverse();
        if let Some((own, len, entry, new)) = own {
            let owner = items[own].extent.owner;
            let Owner::Region(id) = owner else { unreachable!("only regions grow") };
            assert!(from + len <= to, "the stretch was chosen to have {len} bytes");
            self.relay(block, id, from..from + len, entry, new);
            extents.insert(behind, Extent { at: from, len, owner });
        }
        self.arena.relay(bounds, &extents);
    }

    /// Moves one extent to its place after packing.
    fn shift(&mut self, block: &mut Backing, item: &PackItem, at: usize) -> Extent {
        let extent = Extent { at, len: item.packed, ..item.extent };
        if (at, item.packed) == (item.extent.at, item.extent.len) {
            return extent;
        }
        match extent.owner {
            Owner::Region(id) => {
                let to = at..at + item.packed;
                self.regions.change(id, |region| region.slide(block, to));
            }
            Owner::Large(id) => {
                block.copy_within(self.values.place(id), at);
                self.values.moved(id, at);
            }
            Owner::Zombie => unreachable!("pinned bytes are never moved"),
        }
        extent
    }
}

/// The bytes of a stretch with the holes on both sides.
fn bounds(items: &[PackItem], stretch: &Range<usize>, size: usize) -> Range<usize> {
    let end = |item: &PackItem| item.extent.at + item.extent.len;
    let from = stretch.start.checked_sub(1).map_or(0, |i| end(&items[i]));
    from..items.get(stretch.end).map_or(size, |item| item.extent.at)
}

/// A short stretch around item `own` in which it can have `len` bytes, if at most `effort` bytes of others
/// have to move for it.
fn stretch_around(
    items: &[PackItem],
    own: usize,
    len: usize,
    effort: usize,
    size: usize,
) -> Option<Range<usize>> {
    let mut stretch = own..own + 1;
    let mut others = 0;
    while bounds(items, &stretch, size).len() - others < len {
        let left = stretch.start.checked_sub(1).map(|i| &items[i]).filter(|item| !item.fixed);
        let right = items.get(stretch.end).filter(|item| !item.fixed);
        let go_left = match (left, right) {
            (Some(l), Some(r)) => l.extent.len < r.extent.len,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => return None,
        };
        if go_left {
            stretch.start -= 1;
            others += items[stretch.start].packed;
        } else {
            others += items[stretch.end].packed;
            stretch.end += 1;
        }
        if others > effort {
            return None;
        }
    }
    Some(stretch)
}

/// The stretch that yields a hole of `len` bytes for the fewest bytes moved, at most `effort`.
fn stretch_anywhere(
    items: &[PackItem],
    len: usize,
    effort: usize,
    size: usize,
) -> Option<Range<usize>> {
    let mut best: Option<(usize, Range<usize>)> = None;
    let (mut from, mut packed) = (0, 0);
    for (i, item) in items.iter().enumerate() {
        if item.fixed {
            (from, packed) = (i + 1, 0);
            continue;
        }
        packed += item.packed;
        while from <= i && bounds(items, &(from..i + 1), size).len() - packed >= len {
            if packed <= effort && best.as_ref().is_none_or(|(cost, _)| packed < *cost) {
                best = Some((packed, from..i + 1));
            }
            packed -= items[from].packed;
            from += 1;
        }
    }
    best.map(|(_, stretch)| stretch)
}
