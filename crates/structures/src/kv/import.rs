//! The target block of a move of a range of hashes.
//!
//! Nothing of the range is visible before the controller commits it to this block: regions are kept beside
//! the table, keyed by their range, and a part that arrives again replaces the earlier one.

use super::KvBlock;
use super::large_values::values_of;
use super::region::Region;
use super::table::Table;
use crate::{Answer, Ticket};
use hashbrown::HashMap;
use honeycomb_block::Backing;
use honeycomb_types::Bug;
use honeycomb_wire::messages::{
    MoveDoneRequest, MoveDropsRequest, MovePatchRequest, MoveRegionRequest, MoveValueRequest,
};
use honeycomb_wire::{Field, Op, Reader, Status, checksum};

/// A range that moves to this block.
pub(super) struct Import {
    move_id: u64,
    start: u64,
    end: u64,
    /// The values that have arrived, by their numbers in the other block.
    values: HashMap<u32, u32>,
    /// Whether everything has arrived and was counted.
    whole: bool,
}

impl Import {
    pub fn new(move_id: u64, start: u64, end: u64) -> Import {
        Import { move_id, start, end, values: HashMap::new(), whole: false }
    }

    /// The range, if this is the move.
    pub fn of(&self, move_id: u64) -> Option<(u64, u64)> {
        (self.move_id == move_id).then_some((self.start, self.end))
    }

    /// Whether all of it has arrived: the controller may commit the move.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    pub fn holds(&self, hash: u64) -> bool {
        self.start <= hash && hash <= self.end
    }
}

impl KvBlock {
    pub(super) fn start_import(
        &mut self,
        move_id: u64,
        start: u64,
        end: u64,
    ) -> Result<(), Answer> {
        if self.import.as_ref().is_some_and(|import| import.move_id == move_id) {
            return Ok(());
        }
        let beside =
            end.checked_add(1) == Some(self.start) || self.end.checked_add(1) == Some(start);
        if self.import.is_some() || self.export.is_some() || self.empty_handed || !beside {
            let text = "the block is part of another move, or not a neighbour of the range";
            return Err(Answer::refuse(Status::Busy, text));
        }
        self.import = Some(Import::new(move_id, start, end));
        self.table.overflow.set_lacking(None);
        self.calm = false;
        Ok(())
    }

    /// Checks a part of a move before its payload has arrived.
    pub(super) fn admit_part(&self, op: Op, args: &[u8]) -> Result<(), Answer> {
        let move_id = match op {
            Op::MoveRegion => {
                let part = MoveRegionRequest::decode(args)?;
                let inside = self.import.as_ref().is_some_and(|import| {
                    import.start <= part.start && part.start <= part.end && part.end <= import.end
                });
                if !inside {
                    return Err(no_move());
                }
                part.move_id
            }
            Op::MovePatch => MovePatchRequest::decode(args)?.move_id,
            Op::MoveValue => MoveValueRequest::decode(args)?.move_id,
            Op::MoveDrops => MoveDropsRequest::decode(args)?.move_id,
            Op::MoveDone => MoveDoneRequest::decode(args)?.move_id,
            other => panic!("{} is no part of a move", other.name()),
        };
        let known = self.import.as_ref().is_some_and(|import| import.move_id == move_id);
        if known { Ok(()) } else { Err(no_move()) }
    }

    /// Applies a part of a move whose payload is whole in the request.
    pub(super) fn take_part(
        &mut self,
        block: &mut Backing,
        op: Op,
        args: &[u8],
        payload: &[u8],
    ) -> Result<Answer, Answer> {
        self.admit_part(op, args)?;
        match op {
            Op::MoveDrops => self.take_drops(block, &MoveDropsRequest::decode(args)?),
            Op::MoveDone => self.take_done(&MoveDoneRequest::decode(args)?),
            Op::MovePatch => self.take_patch(block, &MovePatchRequest::decode(args)?, payload),
            Op::MoveRegion if payload.is_empty() => {
                let part = MoveRegionRequest::decode(args)?;
                self.place_region(block, &part, None)
            }
            _ => {
                let extent = self.table.alloc_for_part(block, payload.len())?;
                block.slice_mut(self.table.heap.values.place(extent)).copy_from_slice(payload);
                self.take_extent(block, op, args, extent, checksum(payload))
            }
        }
    }

    /// Makes room for a part of a move that will arrive piece by piece.
    pub(super) fn begin_part(
        &mut self,
        block: &mut Backing,
        ticket: Ticket,
        op: Op,
        args: &[u8],
        length: usize,
    ) -> Result<(), Answer> {
        self.admit_part(op, args)?;
        let extent = self.table.alloc_for_part(block, length)?;
        self.fills.add(ticket, op, args, extent, length);
        Ok(())
    }

    /// Applies a part of a move whose payload has arrived in an extent, which is freed after a refusal.
    /// `found` is the checksum of the payload.
    pub(super) fn take_extent(
        &mut self,
        block: &mut Backing,
        op: Op,
        args: &[u8],
        extent: u32,
        found: u64,
    ) -> Result<Answer, Answer> {
        let judged = self.admit_part(op, args).and_then(|()| {
            let sum = match op {
                Op::MoveRegion => MoveRegionRequest::decode(args)?.checksum,
                Op::MovePatch => MovePatchRequest::decode(args)?.checksum,
                _ => MoveValueRequest::decode(args)?.checksum,
            };
            if found == sum {
                return Ok(());
            }
            Err(Answer::refuse(Status::BadFrame, "a part of the move has the wrong checksum"))
        });
        if let Err(refusal) = judged {
            self.table.heap.free_value(block, extent);
            return Err(refusal);
        }
        if op == Op::MovePatch {
            let runs = block.slice(self.table.heap.values.place(extent)).to_vec();
            self.table.heap.free_value(block, extent);
            return self.take_patch(block, &MovePatchRequest::decode(args)?, &runs);
        }
        if op == Op::MoveRegion {
            let part = MoveRegionRequest::decode(args)?;
            return self.place_region(block, &part, Some(extent));
        }
        let part = MoveValueRequest::decode(args)?;
        let import = self.import.as_mut().expect("admitted");
        import.whole = false;
        let before = import.values.insert(part.value, extent);
        assert!(before.is_none(), "INV-19: a value is dropped before its number is used again");
        Ok(Answer::ok(0))
    }

    fn take_drops(
        &mut self,
        block: &mut Backing,
        part: &MoveDropsRequest,
    ) -> Result<Answer, Answer> {
        let import = self.import.as_mut().expect("admitted");
        import.whole = false;
        for value in &part.values {
            if let Some(extent) = import.values.remove(value) {
                self.table.heap.free_value(block, extent);
            }
        }
        Ok(Answer::ok(0))
    }

    /// Puts a region into its place among those that have arrived, and removes older regions of its range. An
    /// older region that extends beyond the range is removed, too: its sender has divided it, and sends the
    /// other parts as well.
    fn place_region(
        &mut self,
        block: &mut Backing,
        part: &MoveRegionRequest,
        extent: Option<u32>,
    ) -> Result<Answer, Answer> {
        let MoveRegionRequest { start, end, .. } = *part;
        let table = &mut self.table;
        let reaches =
            table.incoming.range(..=end).rev().take_while(|(_, (last, _))| *last >= start);
        let older: Vec<u64> = reaches.map(|(first, _)| *first).collect();
        for first in older {
            let (_, id) = table.incoming.remove(&first).expect("the region was just found");
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
        table.incoming.insert(start, (end, id));
        if Bug::MoveForgetsOwner.active() {
            table.forget_owners(block, id);
        }
        let import = self.import.as_mut().expect("admitted");
        import.whole = false;
        if part.values > 0 {
            let large = rename_values(table, block, id, &import.values)?;
            table.heap.regions.get_mut(id).large = large;
        }
        Ok(Answer::ok(0))
    }

    /// Applies the source's changes to a region that has arrived.
    fn take_patch(
        &mut self,
        block: &mut Backing,
        part: &MovePatchRequest,
        runs: &[u8],
    ) -> Result<Answer, Answer> {
        let import = self.import.as_mut().expect("admitted");
        import.whole = false;
        let table = &mut self.table;
        let known = table.incoming.get(&part.start).filter(|(end, _)| *end == part.end);
        let id = known.map(|(_, id)| *id).ok_or_else(|| broken("a patch belongs to no region"))?;
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
        Ok(Answer::ok(0))
    }

    /// Everything was sent: compares the totals with the content that has arrived.
    fn take_done(&mut self, part: &MoveDoneRequest) -> Result<Answer, Answer> {
        let import = self.import.as_mut().expect("admitted");
        let (mut next, mut entries, mut bytes) = (Some(import.start), 0, 0);
        for (start, (end, id)) in &self.table.incoming {
            if next != Some(*start) {
                break;
            }
            next = end.checked_add(1);
            let region = self.table.heap.regions.get(*id);
            entries += region.count as u64;
            bytes += (region.live + region.large) as u64;
        }
        let to_the_end = next == import.end.checked_add(1);
        if !to_the_end || (entries, bytes) != (part.entries, part.bytes) {
            let text = format!(
                "{entries} entries of {bytes} bytes arrived up to {next:?}, not {} of {}",
                part.entries, part.bytes
            );
            return Err(Answer::refuse(Status::Internal, text));
        }
        import.whole = true;
        Ok(Answer::ok(entries))
    }

    /// From now on the block owns the received range, or the range is dropped.
    pub(super) fn finish_import(&mut self, block: &mut Backing, move_id: u64, commit: bool) {
        if self.import.as_ref().is_none_or(|import| import.move_id != move_id) {
            return;
        }
        let import = self.import.take().expect("looked at above");
        let table = &mut self.table;
        let incoming = std::mem::take(&mut table.incoming);
        if !commit {
            for (_, id) in incoming.into_values() {
                table.heap.forget_region(block, id);
            }
            // In an order that does not depend on the keys of the table (INV-35).
            let mut extents: Vec<u32> = import.values.into_values().collect();
            extents.sort_unstable();
            for extent in extents {
                table.heap.free_value(block, extent);
            }
            self.calm = self.is_calm();
            return;
        }
        assert!(import.whole, "INV-19: only what was confirmed is committed");
        for (_, id) in incoming.values() {
            table.heap.regions.change(*id, |region| region.fixed = false);
        }
        let starts: Vec<u64> = incoming.keys().copied().collect();
        let order: Vec<u32> = incoming.into_values().map(|(_, id)| id).collect();
        for id in &order {
            table.length += table.heap.regions.get(*id).count as u64;
        }
        if import.start == self.start && import.end == self.end {
            // The block was opened for this move: its first region is empty.
            for id in table.map.replace(starts, order) {
                table.heap.forget_region(block, id);
            }
        } else if import.start > self.end {
            table.map.append(starts, order);
            self.end = import.end;
        } else {
            table.map.prepend(starts, order);
            self.start = import.start;
        }
        self.events.count_unreported();
        self.departed.retain(|gone| !gone.meets(import.start, import.end));
        self.calm = self.is_calm();
    }
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
