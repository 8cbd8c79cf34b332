//! The target block of a move of a range of hashes.
//!
//! Nothing of the range is visible before the controller commits it to this block: regions are kept beside
//! the table, keyed by their range, and a part that arrives again replaces the earlier one.

use super::large_values::values_of;
use super::ownership::Joined;
use super::region::{Received, Region};
use super::store::Store;
use super::table::Table;
use crate::Answer;
use hashbrown::{HashMap, HashSet};
use honeycomb_block::Backing;
use honeycomb_types::Bug;
use honeycomb_wire::messages::{
    MoveDoneRequest, MoveDropsRequest, MovePatchRequest, MoveRegionRequest, MoveValueRequest,
};
use honeycomb_wire::{Field, Op, Reader, Status, checksum};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The content of a range that moves to this block.
pub(super) struct Import {
    move_id: u64,
    start: u64,
    end: u64,
    /// The values that have arrived, by their numbers in the other block.
    values: HashMap<u32, u32>,
    /// The regions that have arrived, not visible yet: by first hash, with the last.
    regions: BTreeMap<u64, (u64, u32)>,
    /// Those of them that were verified, and have not changed since, with the numbers and lengths of the
    /// values beside them.
    verified: HashMap<u32, Vec<(u32, usize)>>,
}

impl Import {
    pub fn new(move_id: u64, start: u64, end: u64) -> Import {
        let (values, regions) = (HashMap::new(), BTreeMap::new());
        Import { move_id, start, end, values, regions, verified: HashMap::new() }
    }

    /// Whether this is the move.
    pub fn is_of(&self, move_id: u64) -> bool {
        self.move_id == move_id
    }

    /// The range.
    pub fn range(&self) -> (u64, u64) {
        (self.start, self.end)
    }

    /// The regions that have arrived.
    pub fn regions(&self) -> impl Iterator<Item = u32> + '_ {
        self.regions.values().map(|(_, id)| *id)
    }

    /// Checks a part of a move before its payload has arrived; returns the import to which it belongs.
    pub fn admit<'i>(
        import: Option<&'i mut Import>,
        op: Op,
        args: &[u8],
    ) -> Result<&'i mut Import, Answer> {
        let mut range = None;
        let move_id = match op {
            Op::MoveRegion => {
                let part = MoveRegionRequest::decode(args)?;
                range = Some((part.start, part.end));
                part.move_id
            }
            Op::MovePatch => MovePatchRequest::decode(args)?.move_id,
            Op::MoveValue => MoveValueRequest::decode(args)?.move_id,
            Op::MoveDrops => MoveDropsRequest::decode(args)?.move_id,
            Op::MoveDone => MoveDoneRequest::decode(args)?.move_id,
            other => panic!("{} is no part of a move", other.name()),
        };
        let import = import.filter(|import| {
            let inside = range.is_none_or(|(start, end)| {
                import.start <= start && start <= end && end <= import.end
            });
            inside && import.is_of(move_id)
        });
        import.ok_or_else(no_move)
    }

    /// Applies a part of a move that was admitted, and whose payload is whole in the request.
    pub fn receive(
        &mut self,
        store: &mut Store,
        block: &mut Backing,
        op: Op,
        args: &[u8],
        payload: &[u8],
    ) -> Result<Answer, Answer> {
        match op {
            Op::MoveDrops => self.take_drops(store, block, &MoveDropsRequest::decode(args)?),
            Op::MoveDone => self.take_done(store, block, &MoveDoneRequest::decode(args)?),
            Op::MovePatch => {
                self.take_patch(store, block, &MovePatchRequest::decode(args)?, payload)
            }
            Op::MoveRegion if payload.is_empty() => {
                let part = MoveRegionRequest::decode(args)?;
                self.place_region(store, block, &part, None)
            }
            _ => {
                let extent = store.table.alloc_for_part(block, payload.len())?;
                block.slice_mut(store.table.heap.values.place(extent)).copy_from_slice(payload);
                self.take_extent(store, block, (op, args), extent, checksum(payload))
            }
        }
    }

    /// Applies a part of a move that was admitted, and whose payload has arrived in an extent, which is freed
    /// after a refusal. `found` is the checksum of the payload.
    pub fn take_extent(
        &mut self,
        store: &mut Store,
        block: &mut Backing,
        (op, args): (Op, &[u8]),
        extent: u32,
        found: u64,
    ) -> Result<Answer, Answer> {
        let sum = match op {
            Op::MoveRegion => MoveRegionRequest::decode(args)?.checksum,
            Op::MovePatch => MovePatchRequest::decode(args)?.checksum,
            _ => MoveValueRequest::decode(args)?.checksum,
        };
        if found != sum {
            store.table.heap.free_value(block, extent);
            return Err(broken("a part of the move has the wrong checksum"));
        }
        if op == Op::MovePatch {
            let runs = block.slice(store.table.heap.values.place(extent)).to_vec();
            store.table.heap.free_value(block, extent);
            return self.take_patch(store, block, &MovePatchRequest::decode(args)?, &runs);
        }
        if op == Op::MoveRegion {
            let part = MoveRegionRequest::decode(args)?;
            return self.place_region(store, block, &part, Some(extent));
        }
        let part = MoveValueRequest::decode(args)?;
        if self.values.contains_key(&part.value) {
            // The source drops a value before it uses the number again (`Copies::sent`).
            store.table.heap.free_value(block, extent);
            return Err(broken("a value of the move has the number of another one"));
        }
        store.ownership.set_whole(false);
        self.values.insert(part.value, extent);
        Ok(Answer::ok(0))
    }

    fn take_drops(
        &mut self,
        store: &mut Store,
        block: &mut Backing,
        part: &MoveDropsRequest,
    ) -> Result<Answer, Answer> {
        store.ownership.set_whole(false);
        for value in &part.values {
            if let Some(extent) = self.values.remove(value) {
                store.table.heap.free_value(block, extent);
            }
        }
        Ok(Answer::ok(0))
    }

    /// Puts a region into its place among those that have arrived, and removes older regions of its range. An
    /// older region that extends beyond the range is removed, too: its sender has divided it, and sends the
    /// other parts as well.
    fn place_region(
        &mut self,
        store: &mut Store,
        block: &mut Backing,
        part: &MoveRegionRequest,
        extent: Option<u32>,
    ) -> Result<Answer, Answer> {
        let MoveRegionRequest { start, end, .. } = *part;
        let table = &mut store.table;
        let reaches = self.regions.range(..=end).rev().take_while(|(_, (last, _))| *last >= start);
        let older: Vec<u64> = reaches.map(|(first, _)| *first).collect();
        for first in older {
            let (_, id) = self.regions.remove(&first).expect("the region was just found");
            self.verified.remove(&id);
            table.heap.forget_region(block, id);
        }
        let id = table.heap.regions.add();
        if let Some(extent) = extent
            && let end = table.heap.values.place(extent).len()
            && !table.heap.turn_into_region(block, extent, id, end)
        {
            table.heap.regions.release(id);
            return Err(Answer::refuse(Status::BadFrame, "a part of the move is not a region"));
        }
        self.regions.insert(start, (end, id));
        if Bug::MoveForgetsOwner.active() {
            table.forget_owners(block, id);
        }
        store.ownership.set_whole(false);
        if part.values > 0 {
            if !received(table, block, id).has_whole_entries() {
                return Err(broken("a region with values has an entry that does not fit into it"));
            }
            let large = rename_values(table, block, id, &self.values)?;
            table.heap.regions.get_mut(id).large = large;
        }
        // A region that changed while it was copied is whole with its patch only.
        if let Ok(values) = verify(&mut store.table, block, id, (start, end)) {
            self.verified.insert(id, values);
        }
        Ok(Answer::ok(0))
    }

    /// Applies the source's changes to a region that has arrived.
    fn take_patch(
        &mut self,
        store: &mut Store,
        block: &mut Backing,
        part: &MovePatchRequest,
        runs: &[u8],
    ) -> Result<Answer, Answer> {
        store.ownership.set_whole(false);
        let table = &mut store.table;
        let known = self.regions.get(&part.start).filter(|(end, _)| *end == part.end);
        let id = known.map(|(_, id)| *id).ok_or_else(|| broken("a patch belongs to no region"))?;
        self.verified.remove(&id);
        if checksum(runs) != part.checksum {
            return Err(broken("a patch has the wrong checksum"));
        }
        let length = part.length as usize;
        let region = table.heap.regions.get(id);
        if region.large > 0 || region.size == 0 {
            return Err(broken("a patch belongs to a region that is sent whole"));
        }
        if length > region.size {
            let extent = table.alloc_for_part(block, length)?;
            // The region may have moved when room was made.
            if !table.heap.enlarge_arrived(block, id, extent) {
                return Err(broken("an enlarged region is malformed"));
            }
        }
        let region = table.heap.regions.get(id);
        let (at, size) = (region.at, region.size);
        let mut from = Reader::new(runs);
        while !from.is_empty() {
            let (offset, count) = (u32::get(&mut from)? as usize, u32::get(&mut from)? as usize);
            let bytes = from.take(count)?;
            if offset.checked_add(count).is_none_or(|end| end > length) {
                return Err(broken("a patch ends outside its region"));
            }
            block.slice_mut(at + offset..at + offset + count).copy_from_slice(bytes);
        }
        let patched = Region::arrived(block, at, length, size);
        let patched = patched.ok_or_else(|| broken("a patched region is malformed"))?;
        table.heap.regions.change(id, |region| *region = patched);
        if let Ok(values) = verify(table, block, id, (part.start, part.end)) {
            self.verified.insert(id, values);
        }
        Ok(Answer::ok(0))
    }

    /// Everything was sent: compares the totals with the content that has arrived.
    fn take_done(
        &mut self,
        store: &mut Store,
        block: &Backing,
        part: &MoveDoneRequest,
    ) -> Result<Answer, Answer> {
        let (mut next, mut entries, mut bytes) = (Some(self.start), 0, 0);
        for (start, (end, id)) in &self.regions {
            if next != Some(*start) {
                break;
            }
            next = end.checked_add(1);
            let region = store.table.heap.regions.get(*id);
            entries += region.count as u64;
            bytes += (region.live + region.large) as u64;
        }
        let to_the_end = next == self.end.checked_add(1);
        if !to_the_end || (entries, bytes) != (part.entries, part.bytes) {
            let text = format!(
                "{entries} entries of {bytes} bytes arrived up to {next:?}, not {} of {}",
                part.entries, part.bytes
            );
            return Err(Answer::refuse(Status::Internal, text));
        }
        self.verify(&mut store.table, block)?;
        store.ownership.set_whole(true);
        Ok(Answer::ok(entries))
    }

    /// Refuses regions that another server cannot have built: checksums protect only against damage on the
    /// way. A sound one was walked when it arrived, one in a turn: writers wait at the end of the move.
    fn verify(&self, table: &mut Table, block: &Backing) -> Result<(), Answer> {
        let mut unused: HashSet<u32> = self.values.values().copied().collect();
        for (start, (end, id)) in &self.regions {
            let values = match self.verified.get(id) {
                Some(values) => Cow::Borrowed(values),
                None => {
                    let values = verify(table, block, *id, (*start, *end));
                    let why = |why| broken(&format!("a region of the move {why}"));
                    Cow::Owned(values.map_err(why)?)
                }
            };
            let mut takes = |value, length| {
                unused.remove(&value) && table.heap.values.place(value).len() == length
            };
            if !values.iter().all(|(value, length)| takes(*value, *length)) {
                let why = "whose value has not arrived, or belongs to another one";
                return Err(broken(&format!("a region of the move has an entry {why}")));
            }
        }
        match unused.is_empty() {
            true => Ok(()),
            false => Err(broken("a value of the move belongs to no entry")),
        }
    }

    /// From now on the block owns the received range.
    pub fn commit(self, store: &mut Store, block: &mut Backing) {
        let joined = store.ownership.arrive();
        let table = &mut store.table;
        for id in self.regions() {
            table.heap.regions.change(id, |region| region.fixed = false);
            table.length += table.heap.regions.get(id).count as u64;
        }
        let starts: Vec<u64> = self.regions.keys().copied().collect();
        let order: Vec<u32> = self.regions().collect();
        match joined {
            Joined::Whole => {
                // The block was opened for this move: its first region is empty.
                for id in table.map.replace(starts, order) {
                    table.heap.forget_region(block, id);
                }
            }
            Joined::After => table.map.append(starts, order),
            Joined::Before => table.map.prepend(starts, order),
        }
        store.events.count_unreported();
    }

    /// The received range stays at the other block.
    pub fn cancel(self, store: &mut Store, block: &mut Backing) {
        store.ownership.cancel_arrival();
        for id in self.regions() {
            store.table.heap.forget_region(block, id);
        }
        // In an order that does not depend on the keys of the table (INV-35).
        let mut extents: Vec<u32> = self.values.into_values().collect();
        extents.sort_unstable();
        for extent in extents {
            store.table.heap.free_value(block, extent);
        }
    }
}

/// Verifies a received region. Returns the numbers and lengths of its values beside it.
fn verify(
    table: &mut Table,
    block: &Backing,
    id: u32,
    range: (u64, u64),
) -> Result<Vec<(u32, usize)>, &'static str> {
    let sound = received(table, block, id).verify(range)?;
    table.may_have_lists |= sound.lists;
    Ok(sound.values)
}

fn received<'a>(table: &'a Table, block: &'a Backing, id: u32) -> Received<'a> {
    Received { region: table.heap.regions.get(id), block }
}

/// Replaces the numbers of values in the entries of a received region by this block's numbers. Returns the
/// bytes of these values.
fn rename_values(
    table: &mut Table,
    block: &mut Backing,
    id: u32,
    values: &HashMap<u32, u32>,
) -> Result<usize, Answer> {
    let mut large = 0;
    for (at, theirs) in values_of(block, table.heap.regions.get(id)) {
        let Some(ours) = values.get(&theirs).copied() else {
            return Err(Answer::refuse(
                Status::BadFrame,
                "a region refers to a value that has not arrived",
            ));
        };
        large += table.heap.values.place(ours).len();
        block.slice_mut(at..at + 4).copy_from_slice(&ours.to_le_bytes());
    }
    Ok(large)
}

fn broken(why: &str) -> Answer {
    Answer::refuse(Status::BadFrame, why)
}

fn no_move() -> Answer {
    Answer::refuse(Status::WrongEpoch, "the block is not part of this move")
}
