//! The write cache: the memory in which blocks of lower tiers are written.
//!
//! Before a write the block's end is read back, with the chunk that contains it. The block is demoted again
//! when it accepts no more data or when another needs the room. The choice of that block matters more than
//! anything else here: with more writers than room, a block that is demoted between two appends of its writer
//! costs a write and a read of a chunk each time. So a block that is being written stays until it rests
//! (`WARM_REST`) or has had its turn (`WARM_TURN`), and others wait meanwhile. A block that took long to
//! arrive stays as long as that, up to a limit (`WARM_TURN_MAX`), so that its writers come before it leaves.

use super::on_disk::PAGE;
use super::promotion::heats;
use super::request::Request;
use super::residency::{MemoryRoom, ReadBack};
use super::tiers::{Doing, LowerReads, ReadPart, TierWork};
use super::{BlockSlot, Effect};
use crate::spill::{IoDone, IoWhat};
use hashbrown::HashSet;
use honeycomb_block::Backing;
use honeycomb_structures::{Answer, Rest, busy};
use honeycomb_types::limits::{TIER_CHUNK, WARM_TURN_MAX};
use honeycomb_types::{BlockAt, Bug, Time};
use honeycomb_wire::{Op, Status};
use std::collections::VecDeque;
use std::time::Duration;

/// The delay of a writer whose block is being read back, in microseconds, and the same for each block that
/// waits before it.
const RETRY_WARM_US: u64 = 500;
/// The longest such delay.
const RETRY_WARM_MAX_US: u64 = 10_000;
/// The least time for which a block that was brought up waits for its writers; also the pause of a block that
/// could not be written to the disk.
const WARM_LEAST: Duration = Duration::from_millis(50);
/// The least time without a write after which a block may go when others wait.
const WARM_REST: Duration = Duration::from_millis(5);
/// The least time after which a block may go when others wait, however much it is written.
const WARM_TURN: Duration = Duration::from_millis(100);

/// A block of a store that stayed in memory because it was written to on its way down does not do so again
/// before this.
const STAYS_AGAIN: Duration = Duration::from_secs(4);

/// The stay of a block in the write cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stay {
    /// When the block was requested from its disk, and then when it arrived.
    since: Time,
    /// How long it took to arrive.
    took: Duration,
    /// The last write since it arrived.
    written: Option<Time>,
    /// Whether the block was to leave at `since` and could not be written to its disk.
    failed: bool,
    /// Whether it came only for its deltas, and no writer waits for it.
    for_deltas: bool,
}

impl Stay {
    /// The stay of a block that is requested now.
    fn requested(now: Time) -> Stay {
        Stay { since: now, took: Duration::ZERO, written: None, failed: false, for_deltas: false }
    }

    /// The stay of a block that was to leave now and could not be written to its disk.
    pub fn failed(now: Time) -> Stay {
        Stay { failed: true, ..Stay::requested(now) }
    }

    /// Records that the block has arrived: its writers can run from now on.
    pub(super) fn arrived(&mut self, now: Time) {
        if Bug::StayCountedFromRequest.active() {
            return;
        }
        self.took = now.since(self.since).min(WARM_TURN_MAX);
        self.since = now;
    }

    /// When the block may leave for another one, as far as is known now.
    fn ends(&self) -> Time {
        match self.written {
            _ if self.failed => self.since + WARM_LEAST,
            None if self.for_deltas => self.since,
            None => self.since + WARM_LEAST.max(self.took),
            Some(written) => {
                let rest = self.took.clamp(WARM_REST, WARM_LEAST);
                (self.since + WARM_TURN.max(self.took)).min(written + rest)
            }
        }
    }

    /// The last time at which the block was of use.
    fn last_use(&self) -> Time {
        self.written.unwrap_or(self.since)
    }
}

/// The write cache of a shard.
#[derive(Debug, Default)]
pub(super) struct WriteCache {
    /// Places in use.
    pub taken: u32,
    /// Indices of the blocks that got a place; some have left again.
    came: Vec<u32>,
    /// Blocks whose writers wait for a place, in the order of their requests.
    pub wanted: VecDeque<BlockAt>,
    /// Those of them that are read back only to merge their deltas.
    for_deltas: HashSet<BlockAt>,
}

impl WriteCache {
    /// Requests a place for a block. Returns the number of blocks that wait before it.
    pub fn wants(&mut self, at: BlockAt, for_deltas: bool) -> usize {
        let before = self.wanted.iter().position(|wanted| *wanted == at);
        match (before, for_deltas) {
            (_, false) => _ = self.for_deltas.remove(&at),
            (None, true) => _ = self.for_deltas.insert(at),
            (Some(_), true) => {}
        }
        before.unwrap_or_else(|| {
            self.wanted.push_back(at);
            self.wanted.len() - 1
        })
    }

    /// A block is freed.
    pub fn forget(&mut self, at: BlockAt) {
        self.wanted.retain(|wanted| *wanted != at);
        self.for_deltas.remove(&at);
    }
}

impl TierWork<'_> {
    /// Whether a request can run on a block that is not completely in memory; otherwise the answer.
    pub(super) fn admit(
        &mut self,
        now: Time,
        index: usize,
        request: &Request<'_>,
    ) -> Result<(), Answer> {
        if request.header.op == Op::FileMap {
            return Err(Answer::refuse(
                Status::NotShared,
                "the block is on a disk, or is being demoted",
            ));
        }
        let slot = self.blocks.found(index);
        let op = request.header.op;
        let needs = match slot.rests() {
            Rest::Pieces(_) if request.attributes.payload => {
                let text = "the block is in a lower tier, or is being demoted, and accepts no data";
                return Err(Answer::refuse(Status::BlockFull, text));
            }
            Rest::Pieces(_) => false,
            _ if !request.attributes.mutates => {
                slot.lower_tier_reads().is_some_and(|reads| reads.needs_whole(op))
            }
            // Without a payload an operation changes none of their bytes.
            Rest::Open(_) | Rest::Final(_) => request.attributes.payload,
            Rest::Whole(_) | Rest::Busy => {
                slot.lower_tier_reads().is_none_or(|reads| reads.needs_bytes(op))
            }
        };
        if needs { self.prepare_change(now, index) } else { Ok(()) }
    }

    /// Whether a change of a block that may write to it can run. If the block has no memory for that, it is
    /// read back, and the answer makes the writer try again.
    pub(super) fn prepare_change(&mut self, now: Time, index: usize) -> Result<(), Answer> {
        let slot = self.blocks.found_mut(index);
        let rests = slot.rests();
        let whole = matches!(rests, Rest::Whole(_));
        if slot.residency.is_demoting() {
            if matches!(rests, Rest::Final(_)) || Bug::ChangesWhileDemoted.active() {
                return Ok(());
            }
            // A block in a frame stays if it is written on its way. If any byte of it may change, it stays
            // only once in a while: otherwise no block would be demoted where all are written. A block of the
            // write cache does not stay, because another one waits for its place: its writer would find it
            // leaving again, and the other one would wait without end.
            let framed =
                slot.residency.room() == MemoryRoom::Frame || Bug::LeavingBlockStays.active();
            let stayed = slot.residency.stayed.is_some_and(|since| now < since + STAYS_AGAIN);
            if framed && !(whole && stayed) {
                slot.residency.demotion().expect("looked up above").cancel();
                slot.residency.stayed = Some(now);
            }
            return Err(busy(RETRY_WARM_US));
        }
        if slot.residency.is_being_read() {
            return Err(busy(RETRY_WARM_US));
        }
        if slot.residency.room() != MemoryRoom::None {
            if let Some(stay) = slot.residency.stay_mut() {
                stay.written = Some(now);
            }
            return Ok(());
        }
        if let Rest::Final(_) = slot.rests() {
            return Ok(());
        }
        let before = self.wants_place(now, index);
        let slot = self.blocks.found_mut(index);
        if slot.residency.is_cached() {
            return Ok(());
        }
        let delay = RETRY_WARM_US * (1 + before as u64);
        Err(busy(delay.min(RETRY_WARM_MAX_US)))
    }

    /// Requests a place of the write cache for a block. Returns the number of blocks that wait before it.
    fn wants_place(&mut self, now: Time, index: usize) -> usize {
        let at = self.blocks.found(index).owner.at;
        let before = self.tiers.write_cache.wants(at, false);
        self.give_places(now);
        before
    }

    /// A block must leave its server, which needs all of it in memory: the whole block is read back,
    /// whichever part was in memory.
    pub(super) fn read_back_to_leave(&mut self, now: Time, index: usize) {
        let slot = self.blocks.found(index);
        let residency = &slot.residency;
        let under_way = residency.export().is_some() || residency.is_being_read();
        if under_way || slot.rests() == Rest::Busy {
            return; // It is tried again soon.
        }
        match residency.room() {
            MemoryRoom::None => drop(self.wants_place(now, index)),
            // Its end is in memory: it is read back with the rest.
            MemoryRoom::Cache if slot.backing.floor() > 0 => drop(self.write_back(index)),
            MemoryRoom::Cache | MemoryRoom::Frame => {}
        }
    }

    /// Gives places of the write cache to the blocks that wait for one. If there is none, the block whose
    /// last write is the oldest is written back.
    pub(super) fn give_places(&mut self, now: Time) {
        // A block that cannot be read back yet waits on.
        for _ in 0..self.tiers.write_cache.wanted.len() {
            let Some(at) = self.tiers.write_cache.wanted.front().copied() else { return };
            if self.tiers.write_cache.taken >= self.config.warm {
                return self.make_room(now);
            }
            self.tiers.write_cache.wanted.pop_front();
            let Some(index) = self.blocks.index(at.block) else { continue };
            if self.blocks.get(index).is_some_and(|slot| slot.owner.at == at) {
                self.read_back(now, index);
            }
        }
    }

    /// Writes back the block of the write cache that may leave and whose last write is the oldest, unless one
    /// is leaving for each block that waits. If none may leave, the next look is when one may.
    fn make_room(&mut self, now: Time) {
        let blocks = &self.blocks;
        let warm = |index: &u32| {
            let slot = blocks.get(*index as usize);
            slot.filter(|slot| slot.residency.room() == MemoryRoom::Cache)
        };
        self.tiers.write_cache.came.retain(|index| warm(index).is_some());
        let here = || self.tiers.write_cache.came.iter().filter_map(warm);
        // Memory that is still read is free when its reader has finished: it is not counted.
        let leaving = self.tiers.leaving.iter().filter(|leaving| leaving.is_coming_back()).count();
        let going = leaving + here().filter(|slot| slot.residency.is_demoting()).count();
        if going >= self.tiers.write_cache.wanted.len() {
            return;
        }
        let idle = |slot: &&BlockSlot| {
            let settled = slot.rests() != Rest::Busy;
            let still = slot.residency.is_cached() && !slot.residency.is_demoting();
            settled && still && !slot.exports.needs_memory()
        };
        let may_leave = |slot: &&BlockSlot| slot.residency.stay().map_or(Time::ZERO, Stay::ends);
        let Some(next) = here().filter(idle).map(|slot| may_leave(&slot)).min() else { return };
        if next > now {
            let again = self.tiers.look_again.map_or(next, |due| due.min(next));
            self.tiers.look_again = Some(again);
            return;
        }
        let may = here().filter(idle).filter(|slot| may_leave(slot) <= now);
        let coldest = may.min_by_key(|slot| slot.residency.stay().map(Stay::last_use));
        if let Some(index) = coldest.and_then(|slot| self.blocks.index(slot.owner.at.block)) {
            let _ = self.write_back(index);
        }
    }

    /// Gives a block in a lower tier a place of the write cache. The chunk in which it ends is read back, or
    /// the whole block if any byte of it may change, or if it leaves.
    fn read_back(&mut self, now: Time, index: usize) {
        let slot = self.blocks.found_mut(index);
        let owner = slot.owner;
        let (length, floor) = match slot.rests() {
            Rest::Open(length) | Rest::Final(length) if slot.exports.is_departing() => (length, 0),
            Rest::Open(length) => (length, length / TIER_CHUNK * TIER_CHUNK),
            Rest::Whole(length) => (length, 0),
            Rest::Busy | Rest::Final(_) | Rest::Pieces(_) => return,
        };
        // A block that is being copied to a store is read back when that has ended, if it is needed then.
        let busy = slot.residency.room() != MemoryRoom::None || slot.residency.export().is_some();
        // Where a run is being written the block may be written back.
        let deltas = slot.deltas();
        if busy {
            return;
        }
        if deltas.leaving {
            return self.tiers.write_cache.wanted.push_back(owner.at);
        }
        let overwrites = slot.kind.overwrites();
        let Ok(mut backing) = self.new_backing(&owner, overwrites) else {
            return; // Its writer tries again.
        };
        backing.set_floor(floor);
        let size = self.config.block_size;
        self.tiers.write_cache.taken += 1;
        if !self.tiers.write_cache.came.contains(&(index as u32)) {
            self.tiers.write_cache.came.push(index as u32);
        }
        let for_deltas = self.tiers.write_cache.for_deltas.remove(&owner.at);
        let number = self.tiers.number();
        let slot = self.blocks.found_mut(index);
        let stay = Stay { for_deltas, ..Stay::requested(now) };
        let read = slot.residency.copy_mut().and_then(|disk| {
            if length <= floor && deltas.all == 0 {
                disk.keep(floor); // No byte is read back: the rest of the copy is stale.
                return None;
            }
            let (read, sums) = if floor == 0 { disk.all() } else { disk.chunks(&(floor..length)) };
            Some((disk.tier, disk.slot, read, sums))
        });
        let Some((tier, disk_slot, read, sums)) = read else {
            slot.backing = backing;
            slot.enlarge_memory();
            slot.residency.reads_back(None, stay);
            return;
        };
        if floor == 0 {
            if !self.reads().read_whole(index, (number, stay), backing) {
                self.give_place_back(now, index);
            }
            return;
        }
        let tail = ReadBack { number, into: backing, runs: None, left: 1 };
        slot.residency.reads_back(Some(tail), stay);
        let (at, chunk) = (owner.at, floor / TIER_CHUNK);
        let offset = disk_slot as u64 * size as u64 + floor as u64;
        match Backing::counted(read.len(), &self.tiers.buffers, &self.config.reclaimer) {
            Ok(into) => {
                let what = IoWhat::Read { at: offset, into, sums };
                self.tiers.ask(tier, disk_slot, Doing::ReadBack { at, number, chunk }, what);
            }
            Err(_) => self.give_place_back(now, index),
        }
    }

    /// Reverts `read_back`.
    fn give_place_back(&mut self, now: Time, index: usize) {
        let slot = self.blocks.found_mut(index);
        let room = slot.residency.stops_reading();
        let capacity = slot.owner.capacity;
        self.tiers.give_room(room, capacity);
        self.give_places(now);
    }

    /// Writes back a block of the write cache that accepts no more data.
    pub(super) fn write_back_final(&mut self, index: usize) {
        let Some(slot) = self.blocks.get(index) else { return };
        let residency = &slot.residency;
        if residency.is_cached()
            && !slot.exports.is_departing()
            && !residency.is_demoting()
            && matches!(slot.rests(), Rest::Final(_))
        {
            // Without a free slot on the disk, this is tried again later.
            let _ = self.write_back(index);
        }
    }

    pub(super) fn was_read_back(
        &mut self,
        now: Time,
        at: (BlockAt, u32),
        number: u64,
        part: ReadPart,
        done: IoDone,
    ) {
        let Some(index) = self.blocks.at_slot(at.0, at.1) else { return };
        if self.blocks.retained(index).is_some() {
            return; // It accepts no writes any more.
        }
        let at = at.0;
        let slot = self.blocks.found_mut(index);
        if slot.residency.read_back(number).is_none() {
            return; // Another part of it could not be read.
        }
        let length = slot.residency.copy().expect("the block was read from its disk").length();
        let IoDone::Read(read) = done else {
            let structure = slot.owner.structure;
            match done {
                IoDone::Failed(why) => {
                    self.out.effects.push(Effect::BlockFailed { structure, at, why });
                }
                IoDone::Away(_) => {} // Its writer tries again.
                _ => unreachable!("it was to be read"),
            }
            return self.give_place_back(now, index);
        };
        let reading = slot.residency.read_back(number).expect("looked up above");
        let floor = match part {
            ReadPart::Chunks { from } => from * TIER_CHUNK,
            ReadPart::Runs => 0,
        };
        match part {
            ReadPart::Runs => {
                self.tiers.counts.read += read.len() as u64;
                reading.runs = Some(read);
            }
            ReadPart::Chunks { from: 0 } => {
                self.tiers.counts.read += length as u64;
                reading.into = read;
            }
            ReadPart::Chunks { .. } => {
                self.tiers.counts.read += (length - floor) as u64;
                let tail = if Bug::PromotedWithoutTail.active() { PAGE } else { 0 };
                let (to, read) = (length - tail, read.slice(0..length - floor - tail));
                reading.into.slice_mut(floor..to).copy_from_slice(read);
            }
        }
        reading.left -= 1;
        if reading.left > 0 {
            return;
        }
        let whole = slot.residency.was_read_back(now).expect("looked up above");
        slot.backing = whole.into;
        slot.enlarge_memory();
        slot.backing.taken_as_read();
        if floor == 0 {
            self.reads().merge_deltas(index, whole.runs.as_ref());
            heats(self.blocks, self.out, now, index, length);
        }
        self.write_back_final(index);
    }
}

impl LowerReads<'_> {
    /// Reads all of a block, and its runs, into its new memory. It has no other memory meanwhile. False if
    /// there is no memory for its runs.
    fn read_whole(&mut self, index: usize, (number, stay): (u64, Stay), memory: Backing) -> bool {
        let size = self.config.block_size;
        let into = Backing::absent(size, &self.config.reclaimer);
        let slot = self.blocks.found_mut(index);
        let (at, disk) = (slot.owner.at, slot.residency.copy().expect("the caller has found it"));
        let (tier, disk_slot, (read, sums), runs) = (disk.tier, disk.slot, disk.all(), disk.runs());
        let left = 1 + usize::from(runs.is_some());
        slot.residency.reads_back(Some(ReadBack { number, into, runs: None, left }), stay);
        let offset = disk_slot as u64 * size as u64;
        let what = IoWhat::ReadBlock { at: offset, into: memory, length: read.end, sums };
        self.tiers.ask(tier, disk_slot, Doing::ReadBack { at, number, chunk: 0 }, what);
        let Some((runs, sums)) = runs else { return true };
        let count = &self.tiers.deltas.runs;
        let Ok(into) = Backing::counted(runs.len(), count, &self.config.reclaimer) else {
            return false;
        };
        let what = IoWhat::Read { at: offset + runs.start as u64, into, sums };
        self.tiers.ask(tier, disk_slot, Doing::ReadRuns { at, number }, what);
        true
    }
}
