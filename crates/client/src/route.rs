//! The routing cache: the block that serves a key or an offset, corrected by replies.

use crate::error::Error;
use honeycomb_types::limits::BLOCK_SIZE_MIN;
use honeycomb_types::{BlockAt, Router};
use honeycomb_wire::Status;
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::messages::{MapEntry, PartitionMap};

/// The routing target of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The hash of a key.
    Hash(u64),
    /// Hashes of several keys, from the first to the last, that one block must serve. If the map
    /// divides them, the call ends with `WrongRange`, and its maker divides them too.
    Hashes(u64, u64),
    /// A position: the offset of a byte of a file, the number of a record.
    Offset(u64),
    /// The block that accepts a file's appends and a queue's puts.
    Tail,
    /// The block that a queue's items are taken from.
    Head,
    /// This block and no other.
    Block(BlockAt),
    /// This block of extents, which is in no map. If it is gone and the structure still exists, the
    /// call ends with `ExtentGone`.
    Extents(BlockAt),
}

/// The entry of a map that serves a target. A map without gaps always has one; the first entry also
/// serves positions before it, whose blocks have been removed.
pub fn route(map: &PartitionMap, target: Target) -> Option<&MapEntry> {
    let at = match target {
        Target::Hash(at) | Target::Hashes(at, _) | Target::Offset(at) => at,
        Target::Tail => return map.entries.last(),
        Target::Head => return map.entries.first(),
        Target::Block(wanted) => return map.entries.iter().find(|e| e.at() == wanted),
        Target::Extents(_) => return None,
    };
    map.entries.get(position(map, at))
}

/// The index of the map entry that serves a hash or an offset.
pub(crate) fn position(map: &PartitionMap, at: u64) -> usize {
    map.entries.partition_point(|e| e.start <= at).saturating_sub(1)
}

/// The router of key-value stores: by ranges of hashes.
pub(crate) const ROUTER_HASHES: u8 = 3;

/// The successor that a block names in the arguments of `Moved`.
pub(crate) fn successor(args: &[u8]) -> Result<MovedArgs, Error> {
    let moved = MovedArgs::decode(args)?;
    let MapEntry { start, end, .. } = moved.entry;
    if start > end {
        let why = format!("a block redirects to positions {start:#x} to {end:#x}");
        return Err(Error::new(Status::BadFrame, why));
    }
    Ok(moved)
}

/// Corrects a map by a block's refusal: `length` is the length at which the block was sealed,
/// `moved` its successor, or the block that now has a range of its hashes. For a queue, see also
/// `Routing::leave`.
pub(crate) fn correct(map: &mut PartitionMap, refused: BlockAt, length: u64, moved: &MovedArgs) {
    let (first, last) = (moved.entry.start, moved.entry.end);
    assert!(first <= last, "INV-17: a map is corrected for positions {first:#x} to {last:#x}");
    if map.router == ROUTER_HASHES {
        return correct_ranges(map, refused, moved);
    }
    let Some(found) = map.entries.iter().position(|e| e.at() == refused) else { return };
    // Information older than the map changes nothing.
    if found + 1 < map.entries.len() {
        return;
    }
    // A server that reports positions beyond the last one is not believed.
    let Some(start) = map.entries[found].start.checked_add(length) else { return };
    if length == 0 {
        // A block that was sealed empty serves no position: its successor replaces it.
        map.entries.pop();
    } else {
        map.entries[found].end = start - 1;
    }
    map.entries.push(MapEntry { start, end: u64::MAX, ..moved.entry.clone() });
    // Of a file, each seal makes the next version. A successor that was granted before its place was known
    // names an older one.
    let least = if map.router == Router::Offset as u8 { map.version + 1 } else { map.version };
    map.version = moved.version.max(least);
    debug_assert_eq!(checked(map), Ok(()), "INV-17: {:?} after {moved:?}", map.entries);
}

/// Whether the ranges of a map are in order and leave no position out. A map that the controller sends is
/// checked before it is used; corrections keep it so.
pub(crate) fn checked(map: &PartitionMap) -> Result<(), &'static str> {
    if map.block_size < BLOCK_SIZE_MIN {
        return Err("the block size of a map is below the smallest one");
    }
    let ordered = map.entries.iter().all(|entry| entry.start <= entry.end);
    let meet = |pair: &[MapEntry]| pair[0].end.checked_add(1) == Some(pair[1].start);
    match ordered && map.entries.windows(2).all(meet) {
        true => Ok(()),
        false => Err("the ranges of a map are not in order, or leave positions out"),
    }
}

/// The map may have several ranges for one block, if the client has received a later move of a
/// range between them before an earlier move of the range after them. Each range that overlaps the
/// moved range is corrected.
fn correct_ranges(map: &mut PartitionMap, refused: BlockAt, moved: &MovedArgs) {
    if moved.entry.at() == refused {
        return;
    }
    let meets = |e: &MapEntry| e.start <= moved.entry.end && moved.entry.start <= e.end;
    let wrong = |e: &MapEntry| e.at() == refused && meets(e);
    while let Some(found) = map.entries.iter().position(wrong) {
        correct_range(map, found, &moved.entry);
        map.version = map.version.max(moved.version);
    }
    debug_assert_eq!(checked(map), Ok(()), "INV-17: {:?} after {moved:?}", map.entries);
}

/// Assigns a range that a block reported as moved to the block that has it. Changes only the map's
/// ranges of that block, because the map may have newer information about other blocks.
fn correct_range(map: &mut PartitionMap, found: usize, moved: &MapEntry) {
    let old = map.entries[found].clone();
    let (start, end) = (old.start.max(moved.start), old.end.min(moved.end));
    assert!(start <= end, "INV-17: {old:?} has no part of {moved:?}");
    let mut pieces = Vec::with_capacity(3);
    if old.start < start {
        pieces.push(MapEntry { end: start - 1, ..old.clone() });
    }
    pieces.push(MapEntry { start, end, ..moved.clone() });
    if end < old.end {
        pieces.push(MapEntry { start: end + 1, ..old.clone() });
    }
    map.entries.splice(found..=found, pieces);
    map.entries.dedup_by(|next, before| {
        let same = next.at() == before.at();
        if same {
            before.end = next.end;
        }
        same
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(start: u64, end: u64, block: u64) -> MapEntry {
        MapEntry { start, end, block, epoch: 1, address: "a:1".into() }
    }

    fn map(entries: Vec<MapEntry>) -> PartitionMap {
        PartitionMap { version: 1, router: 1, block_size: 65536, entries }
    }

    #[test]
    fn positions_find_their_entry() {
        let m = map(vec![entry(0, 99, 1), entry(100, u64::MAX, 2)]);
        assert_eq!(route(&m, Target::Offset(99)).unwrap().block, 1);
        assert_eq!(route(&m, Target::Offset(100)).unwrap().block, 2);
        assert_eq!(route(&m, Target::Tail).unwrap().block, 2);
    }

    #[test]
    fn a_refusal_extends_the_map_once() {
        let mut m = map(vec![entry(0, u64::MAX, 1)]);
        let moved = MovedArgs { version: 2, entry: entry(0, u64::MAX, 9) };
        let refused = BlockAt::of(1, 1);
        correct(&mut m, refused, 70, &moved);
        correct(&mut m, refused, 70, &moved);
        assert_eq!(m.entries, [entry(0, 69, 1), entry(70, u64::MAX, 9)]);
        assert_eq!(m.version, 2);
    }

    #[test]
    fn map_with_a_gap_or_an_overlap_is_refused_and_a_seal_beyond_the_last_position_changes_nothing()
    {
        let whole = map(vec![entry(7, 99, 1), entry(100, u64::MAX, 2)]);
        assert_eq!(checked(&whole), Ok(()));
        assert_eq!(checked(&map(Vec::new())), Ok(()));
        for wrong in [
            vec![entry(0, 98, 1), entry(100, u64::MAX, 2)],
            vec![entry(0, 100, 1), entry(100, u64::MAX, 2)],
            vec![entry(100, u64::MAX, 2), entry(0, 99, 1)],
            vec![entry(9, 8, 1)],
        ] {
            assert!(checked(&map(wrong.clone())).is_err(), "{wrong:?}");
        }
        let mut m = whole.clone();
        let moved = MovedArgs { version: 2, entry: entry(0, u64::MAX, 9) };
        correct(&mut m, BlockAt::of(2, 1), u64::MAX, &moved);
        assert_eq!(m, whole);
    }

    fn hashes(entries: Vec<MapEntry>) -> PartitionMap {
        PartitionMap { version: 1, router: ROUTER_HASHES, block_size: 65536, entries }
    }

    fn block(n: u64) -> BlockAt {
        BlockAt::of(n, 1)
    }

    /// A block splits twice, and a client that knows of neither split learns of the second one
    /// first.
    #[test]
    fn a_block_with_a_hole_in_what_is_believed_of_it_is_corrected_behind_the_hole() {
        let mut m = hashes(vec![entry(0, u64::MAX, 1)]);
        let later = MovedArgs { version: 6, entry: entry(50, 99, 3) };
        correct(&mut m, block(1), 0, &later);
        assert_eq!(m.entries, [entry(0, 49, 1), entry(50, 99, 3), entry(100, u64::MAX, 1)]);
        let earlier = MovedArgs { version: 5, entry: entry(100, u64::MAX, 2) };
        correct(&mut m, block(1), 0, &earlier);
        assert_eq!(m.entries, [entry(0, 49, 1), entry(50, 99, 3), entry(100, u64::MAX, 2)]);
        assert_eq!(route(&m, Target::Hash(120)).unwrap().block, 2);
        assert_eq!(m.version, 6);
    }

    #[test]
    fn a_range_that_moved_is_cut_out_of_what_the_map_believed() {
        let mut m = hashes(vec![entry(0, u64::MAX, 1)]);
        let moved = MovedArgs { version: 5, entry: entry(100, u64::MAX, 2) };
        correct(&mut m, block(1), 0, &moved);
        correct(&mut m, block(1), 0, &moved);
        assert_eq!(m.entries, [entry(0, 99, 1), entry(100, u64::MAX, 2)]);
        // A client learns of an earlier move of another block later; it is still valid.
        let moved = MovedArgs { version: 3, entry: entry(200, u64::MAX, 3) };
        correct(&mut m, block(2), 0, &moved);
        assert_eq!(m.entries, [entry(0, 99, 1), entry(100, 199, 2), entry(200, u64::MAX, 3)]);
        assert_eq!(m.version, 5);
    }

    #[test]
    fn a_block_that_was_merged_leaves_the_map() {
        let mut m = hashes(vec![entry(0, 99, 1), entry(100, 199, 2), entry(200, u64::MAX, 3)]);
        correct(&mut m, block(2), 0, &MovedArgs { version: 2, entry: entry(0, 199, 1) });
        assert_eq!(m.entries, [entry(0, 199, 1), entry(200, u64::MAX, 3)]);
        correct(&mut m, block(1), 0, &MovedArgs { version: 3, entry: entry(0, u64::MAX, 3) });
        assert_eq!(m.entries, [entry(0, u64::MAX, 3)]);
    }
}
