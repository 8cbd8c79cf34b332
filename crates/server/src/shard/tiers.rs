//! Blocks whose bytes are in lower tiers (ADR 0023).
//!
//! A block is demoted in place: its name, its epoch, its lanes, its waiting requests and its subscriptions
//! stay, and clients do not notice. The controller decides which block is demoted (`change_tier`), or places
//! a new one in a lower tier at once (`BlockOwner::tier`). Reads are served from the lower tier. Before a
//! write the needed part is read back into the *write cache*, memory reserved for that; the block is demoted
//! again when it is sealed or when another needs the room.
//!
//! `Residency` has the states of a block.
//!
//! No I/O here: operations leave as `Io` (`take_io`), and their outcomes are passed in (`io_done`). A slot
//! of a disk belongs to one block until its last I/O has ended, and is then returned to the disk before
//! another block gets it (INV-44). Chunks are read only with the checksum from the write of this block, so
//! that bytes of an earlier owner, and wrong bytes, are never served.

use super::agenda::Agenda;
use super::blocks::Blocks;
use super::deltas::DeltaPool;
use super::export::Overlaps;
use super::fetching::Fetching;
use super::on_disk::OnDisk;
use super::outbox::Outbox;
use super::pending::AllPending;
use super::reading::Reading;
use super::residency::{MemoryRoom, Residency};
use super::units::UnitsInUse;
use super::write_cache::WriteCache;
use super::{BlockOwner, BlockSlot, Effect, Shard, ShardConfig};
use crate::refusals::wrong_epoch;
use crate::spill::{Io, IoDone, IoId, IoWhat};
use honeycomb_block::{Backing, Tenant};
use honeycomb_structures::{Answer, Rest};
use honeycomb_types::limits::{DISCARD_AGAIN, TIER_CHUNK, WARM_READ_MAX};
use honeycomb_types::{BlockAt, Bug, StructureId, TierClass, TierIx, TierSpec, Time};
use honeycomb_wire::Status;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

/// Bytes of a slot that are returned to the disk when its block has become shorter.
const TRIM_LEAST: usize = 4 * TIER_CHUNK;

/// The pause between two looks whether the memory of a demoted block is still read.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A block and its bytes: in use, or retained for a flush.
pub(super) struct BlockResidency<'a> {
    pub owner: BlockOwner,
    pub backing: &'a mut Backing,
    pub residency: &'a mut Residency,
    pub rests: Rest,
}

/// A slot of a disk.
#[derive(Clone, Copy, Debug, Default)]
struct DiskSlot {
    /// Number of its I/O operations in progress.
    busy: u32,
    /// No block has it any more.
    released: bool,
    /// The end of the bytes that may take room on the disk.
    end: usize,
}

/// This shard's part of one disk.
#[derive(Debug)]
struct DiskShare {
    class: TierClass,
    free: Vec<u32>,
    slots: Vec<DiskSlot>,
}

/// The purpose of an I/O operation.
#[derive(Debug)]
pub(super) enum Doing {
    Read { reading: u64, part: usize },
    Fetch { fetching: u64, from: usize },
    ReadBack { at: BlockAt, number: u64, chunk: usize },
    ReadRuns { at: BlockAt, number: u64 },
    WriteRun { at: BlockAt, from: usize, length: usize },
    Trim,
    Promote { at: BlockAt },
    ExportRead { at: BlockAt, export: u64, from: usize },
    ExportWrite { at: BlockAt, export: u64, from: usize },
    Discard,
}

/// A part of a block that is read back.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadPart {
    /// Its chunks from this one on.
    Chunks { from: usize },
    /// Its runs.
    Runs,
}

/// The memory of a demoted block, which may still be read.
#[derive(Debug)]
pub(super) struct FreedAfterRead {
    at: BlockAt,
    structure: StructureId,
    memory: Backing,
    /// The capacity of the block.
    pub capacity: u64,
    pub room: MemoryRoom,
    tier: TierIx,
    /// When `take_freed` first found it read, or last looked who reads it.
    read_since: Option<Time>,
}

impl FreedAfterRead {
    /// Whether the write cache gets this memory at the next look.
    pub(super) fn is_coming_back(&self) -> bool {
        self.room == MemoryRoom::Cache && !self.memory.is_held()
    }
}

/// The state of a shard's tiers.
#[derive(Debug, Default)]
pub(super) struct Tiers {
    disks: Vec<DiskShare>,
    /// Bytes of a slot.
    block_size: usize,
    /// The last number of an I/O, of a write of a copy, or of an operation that waits for I/O.
    last: u64,
    doing: HashMap<u64, (TierIx, u32, Doing)>,
    out: Vec<Io>,
    pub readings: BTreeMap<u64, Reading>,
    pub fetching: BTreeMap<u64, Fetching>,
    pub leaving: Vec<FreedAfterRead>,
    /// Slots that only flushes still read.
    lent: Vec<(TierIx, u32, Arc<()>)>,
    /// Slots whose store could not be reached when they were to be freed, and the time of the next attempt.
    unreturned: Vec<(Time, TierIx, u32)>,
    /// Blocks on their way to a store that wait for buffers.
    pub hungry: Vec<BlockAt>,
    pub look_again: Option<Time>,
    /// The memory that blocks use (INV-42).
    pub frames: UnitsInUse,
    pub write_cache: WriteCache,
    pub deltas: DeltaPool,
    /// Backings that a planted defect reuses unscrubbed.
    pub stale: Vec<Backing>,
    /// Bytes that were read from lower tiers and are not sent yet.
    pub buffers: Arc<AtomicUsize>,
    pub counts: TierCounts,
}

/// The traffic between tiers since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounts {
    /// Bytes written to lower tiers.
    pub written: u64,
    /// Bytes read from lower tiers.
    pub read: u64,
    /// Writes and reads that failed.
    pub failed: u64,
    /// Runs of deltas that were written, and runs that could not be.
    pub runs: (u64, u64),
    /// Blocks that were read back and got their deltas from runs.
    pub merged: u64,
}

impl Tiers {
    pub(super) fn new(disks: &[TierSpec], block_size: usize, frames: UnitsInUse) -> Tiers {
        let disks = disks.iter().map(|&TierSpec { class, blocks }| DiskShare {
            class,
            free: (0..blocks).rev().collect(),
            slots: vec![DiskSlot::default(); blocks as usize],
        });
        Tiers { disks: disks.collect(), block_size, frames, ..Tiers::default() }
    }

    fn disk(&mut self, tier: TierIx) -> &mut DiskShare {
        let below = tier.below().expect("a tier below memory");
        &mut self.disks[below]
    }

    /// A free slot of this tier.
    pub(super) fn take_slot(&mut self, tier: TierIx) -> Option<u32> {
        self.disk(tier).free.pop()
    }

    /// Whether an I/O of a copy is in progress.
    pub(super) fn is_busy(&mut self, copy: &OnDisk) -> bool {
        self.disk(copy.tier).slots[copy.slot as usize].busy > 0
    }

    /// Whether only blocks that accept no more data go to this tier.
    fn takes_final_only(&mut self, tier: TierIx) -> bool {
        self.disk(tier).class.takes_final_only()
    }

    /// A number that was not used before.
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The offset of a slot in its shard's part of the disk.
    fn offset_of(&self, slot: u32) -> u64 {
        slot as u64 * self.block_size as u64
    }

    pub(super) fn ask(&mut self, tier: TierIx, slot: u32, doing: Doing, what: IoWhat) {
        let id = self.number();
        self.doing.insert(id, (tier, slot, doing));
        let from = self.offset_of(slot);
        let state = &mut self.disk(tier).slots[slot as usize];
        state.busy += 1;
        if let IoWhat::Write { at, bytes, .. } = &what {
            state.end = state.end.max((at - from) as usize + bytes.bytes().len());
        }
        self.out.push(Io { id: IoId(id), tier, what });
    }

    /// No block has this slot any more. When its last I/O has ended, its room is returned to the disk, and
    /// after that another block may get it (INV-44).
    pub(super) fn release(&mut self, tier: TierIx, slot: u32) {
        let state = &mut self.disk(tier).slots[slot as usize];
        state.released = true;
        if Bug::SlotReusedWhileDraining.active() {
            state.released = false;
            return self.disk(tier).free.push(slot);
        }
        if state.busy == 0 {
            self.discard(tier, slot);
        }
    }

    /// An I/O operation of a slot has ended.
    fn ended(&mut self, tier: TierIx, slot: u32) {
        let state = &mut self.disk(tier).slots[slot as usize];
        state.busy -= 1;
        if state.busy == 0 && state.released {
            self.discard(tier, slot);
        }
    }

    fn discard(&mut self, tier: TierIx, slot: u32) {
        let at = self.offset_of(slot);
        self.disk(tier).slots[slot as usize].end = 0;
        let all = at..at + self.block_size as u64;
        self.ask(tier, slot, Doing::Discard, IoWhat::Discard(all));
    }

    /// A block was written to its slot: the room behind the copy and its runs is returned to the disk, if it
    /// is much. Until that has ended the slot is busy, and a longer copy is written to another one.
    pub(super) fn trim(&mut self, copy: &OnDisk) {
        let (tier, slot, end) = (copy.tier, copy.slot, copy.runs_limit(self.block_size));
        let state = &mut self.disk(tier).slots[slot as usize];
        if state.end < end + TRIM_LEAST {
            return;
        }
        let before = std::mem::replace(&mut state.end, end);
        let at = self.offset_of(slot);
        let rest = at + end as u64..at + before as u64;
        self.ask(tier, slot, Doing::Trim, IoWhat::Discard(rest));
    }

    /// Whether no I/O is to be carried out.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        self.out.is_empty()
    }

    /// Whether nothing is on its way to or from a disk, and this many slots are used.
    pub(super) fn is_quiet(&self, used: usize) -> bool {
        let used_of = |disk: &DiskShare| disk.slots.len() - disk.free.len();
        self.doing.is_empty()
            && self.leaving.is_empty()
            && self.lent.is_empty()
            && self.unreturned.is_empty()
            && self.hungry.is_empty()
            && self.readings.is_empty()
            && self.fetching.is_empty()
            && self.disks.iter().map(used_of).sum::<usize>() == used
    }

    /// When to look again whether memory is still read.
    pub(super) fn deadline(&self) -> Option<Time> {
        let unreturned = self.unreturned.iter().map(|(due, ..)| *due);
        unreturned.chain(self.look_again).min()
    }

    /// The tier where the controller counts a block, and the one to which it is on its way.
    pub(super) fn tiers_of(&self, at: BlockAt, residency: &Residency) -> (TierIx, TierIx) {
        let read = |l: &FreedAfterRead| l.at == at && l.room == MemoryRoom::Frame;
        if self.leaving.iter().any(read) && !Bug::TierForgottenAtRejoin.active() {
            return (TierIx::MEMORY, residency.tier());
        }
        residency.tiers()
    }

    /// Memory of a block of this capacity is free.
    pub(super) fn give_room(&mut self, room: MemoryRoom, capacity: u64) {
        match room {
            MemoryRoom::Frame => self.frames.give(capacity),
            MemoryRoom::Cache => self.write_cache.taken -= 1,
            MemoryRoom::None => {}
        }
    }

    /// The memory of a demoted block that may still be read.
    pub(super) fn take_leaving(&mut self, at: BlockAt) -> Vec<FreedAfterRead> {
        self.leaving.extract_if(.., |leaving| leaving.at == at).collect()
    }

    /// Returns such memory: its end is still to be reported.
    pub(super) fn put_leaving(&mut self, leaving: Vec<FreedAfterRead>) {
        self.leaving.extend(leaving);
    }

    /// Frees the slot of a copy, when no flush reads it any more.
    pub(super) fn free_copy(&mut self, copy: OnDisk) {
        let (tier, slot) = (copy.tier, copy.slot);
        if let Some(hold) = copy.held() {
            self.disk(tier).slots[slot as usize].busy += 1;
            self.lent.push((tier, slot, hold));
            self.look_again = Some(Time::ZERO);
        }
        self.release(tier, slot);
    }

    /// Repeats requests to free slots of stores that could not be reached.
    fn discard_again(&mut self, now: Time) {
        let due = self.unreturned.extract_if(.., |(due, ..)| *due <= now).collect::<Vec<_>>();
        for (_, tier, slot) in due {
            self.discard(tier, slot);
        }
    }
}

impl Shard {
    /// Its blocks in lower tiers.
    pub fn tiers(&mut self) -> TierWork<'_> {
        let Shard { config, blocks, agenda, pending, tiers, out, overlaps, .. } = self;
        TierWork { config, blocks, agenda, pending, tiers, out, overlaps }
    }
}

/// The parts of a shard that move blocks between tiers, and read them there.
pub struct TierWork<'a> {
    pub(super) config: &'a ShardConfig,
    pub(super) blocks: &'a mut Blocks,
    pub(super) agenda: &'a mut Agenda,
    pub(super) pending: &'a mut AllPending,
    pub(super) tiers: &'a mut Tiers,
    pub(super) out: &'a mut Outbox,
    pub(super) overlaps: &'a mut Overlaps,
}

/// The parts of a shard that read blocks in lower tiers.
pub(super) struct LowerReads<'a> {
    pub config: &'a ShardConfig,
    pub blocks: &'a mut Blocks,
    pub agenda: &'a mut Agenda,
    pub pending: &'a mut AllPending,
    pub tiers: &'a mut Tiers,
    pub out: &'a mut Outbox,
}

impl TierWork<'_> {
    /// I/O to be carried out on the disks. `io_done` gets the outcome of each, in any order.
    pub fn take_io(&mut self) -> Vec<Io> {
        std::mem::take(&mut self.tiers.out)
    }

    /// The parts of the shard that reads need.
    pub(super) fn reads(&mut self) -> LowerReads<'_> {
        let TierWork { config, blocks, agenda, pending, tiers, out, .. } = self;
        LowerReads { config, blocks, agenda, pending, tiers, out }
    }

    /// Begins to move a block to this tier, as the controller commands. Refused if it cannot now;
    /// `Effect::TierChanged` reports the arrival.
    pub fn change_tier(&mut self, at: BlockAt, tier: TierIx) -> Result<(), Answer> {
        let index = self.blocks.index(at.block).ok_or_else(|| wrong_epoch(at))?;
        let mapped = self.blocks.get(index).is_some_and(|slot| slot.shared.is_some());
        let lying = self.blocks.bytes_at(index).filter(|lying| lying.owner.at == at);
        let lying = lying.ok_or_else(|| wrong_epoch(at))?;
        if lying.residency.goes_to(tier) {
            return Ok(());
        }
        let (from, is_final) =
            (lying.residency.tier(), matches!(lying.rests, Rest::Final(_) | Rest::Pieces(_)));
        if !tier.is_below() {
            return self.promote(index);
        }
        if tier.below().is_none_or(|below| below >= self.tiers.disks.len()) {
            let text = format!("this server has no {tier}");
            return Err(Answer::refuse(Status::InvalidArgument, text));
        }
        if from.is_below() {
            return self.demote_from_disk(index, tier);
        }
        if mapped {
            return Err(Answer::refuse(Status::Busy, "clients have mapped the block"));
        }
        if !is_final && self.tiers.takes_final_only(tier) {
            return Err(Answer::refuse(Status::Busy, "the block may still be written"));
        }
        self.demote(index, tier).map_err(|why| Answer::refuse(Status::Busy, why))
    }

    /// New memory for a block.
    pub(super) fn new_backing(
        &mut self,
        owner: &BlockOwner,
        overwrites: bool,
    ) -> std::io::Result<Backing> {
        let ShardConfig { block_size, reclaimer, .. } = self.config;
        let size = (*block_size, owner.capacity as usize);
        let own = tenant_of(owner);
        let tenant = if Bug::MemoryChangesTenant.active() { Tenant(0) } else { own };
        let backing = match self.tiers.stale.pop() {
            Some(backing) if Bug::StaleBytes.active() => return Ok(backing),
            _ => Backing::map_part(tenant, overwrites, size, reclaimer)?,
        };
        let (used, kind) = (backing.written(), owner.kind);
        assert_eq!(backing.tenant(), Some(own), "INV-04: a {kind} gets memory of another tenant");
        assert!(
            overwrites || used == 0,
            "INV-04: a {kind} that may read it gets {used} used bytes"
        );
        Ok(backing)
    }

    /// All bytes of a block are in its lower tier: its memory is not served any more.
    pub(super) fn leave_memory(&mut self, index: usize) {
        let BlockResidency { owner, backing, residency, .. } = self.blocks.bytes_of(index);
        let BlockOwner { at, structure, capacity, .. } = owner;
        let memory = backing.extract();
        let room = residency.leaves_memory();
        let tier = residency.tier();
        self.retained_was_demoted(index);
        if let Some(slot) = self.blocks.get_mut(index) {
            let content = slot.structure.content_mut().expect("a demoted block has content");
            content.demoted();
            slot.lanes.leave_block();
        }
        let read_since = None;
        let left = FreedAfterRead { at, structure, memory, capacity, room, tier, read_since };
        self.tiers.leaving.push(left);
        // The next tick checks whether it is still read.
        self.tiers.look_again = Some(Time::ZERO);
    }

    /// Takes the memory that is free. A place of the write cache is free after `WARM_READ_MAX` also if
    /// replies are sent from it: these count as replies, and only the pages that they need stay. Without
    /// requests to its block, the results in held memory are forgotten only here.
    fn take_freed(&mut self, now: Time) -> Vec<FreedAfterRead> {
        let mut leaving = std::mem::take(&mut self.tiers.leaving);
        let freed = leaving.extract_if(.., |memory| {
            if !memory.memory.is_held() || Bug::FrameFreeBeforePins.active() {
                return true;
            }
            let mut slot = self.blocks.at(memory.at);
            if let Some(slot) = &mut slot {
                slot.lanes.expire(now);
            }
            let since = *memory.read_since.get_or_insert(now);
            if memory.room != MemoryRoom::Cache || now < since + WARM_READ_MAX {
                return false;
            }
            memory.read_since = Some(now);
            slot.is_none_or(|slot| !slot.lanes.are_in_block())
        });
        let freed = freed.collect();
        self.tiers.leaving = leaving;
        freed
    }

    /// Frees the memory of demoted blocks that is not read any more (INV-41).
    pub(super) fn let_go(&mut self, now: Time) {
        for FreedAfterRead { at, structure, capacity, room, tier, .. } in self.take_freed(now) {
            self.tiers.give_room(room, capacity);
            if room == MemoryRoom::Frame {
                self.out.effects.push(Effect::TierChanged { structure, at, tier });
            }
        }
        let read = self.tiers.lent.extract_if(.., |(.., hold)| Arc::strong_count(hold) == 1);
        for (tier, slot, _) in read.collect::<Vec<_>>() {
            self.tiers.ended(tier, slot);
        }
        for at in std::mem::take(&mut self.tiers.hungry) {
            self.read_pieces_again(at);
        }
        self.reads().fetch_on(now);
        let tiers = &self.tiers;
        let fetches = tiers.fetching.values().any(Fetching::waits);
        let waits = fetches
            || !tiers.leaving.is_empty()
            || !tiers.lent.is_empty()
            || !tiers.hungry.is_empty();
        self.tiers.look_again = waits.then_some(now + LOOK_AGAIN);
        self.give_places(now);
    }

    /// Time has passed.
    pub(super) fn tick_tiers(&mut self, now: Time) {
        self.tiers.discard_again(now);
        if self.tiers.look_again.is_some_and(|due| due <= now) {
            self.let_go(now);
        }
    }

    /// A block ends: its memory is free, and its slot on a disk when no flush reads it any more.
    pub(super) fn free_residency(&mut self, residency: &mut Residency, capacity: u64) {
        let (room, extra, copy) = residency.end();
        self.tiers.give_room(room, capacity);
        if let Some((tier, slot)) = extra {
            self.tiers.release(tier, slot);
        }
        if let Some(copy) = copy {
            self.tiers.free_copy(copy);
        }
    }

    /// A block is freed, with its slots on disks and its waiting reads.
    pub(super) fn free_in_tiers(&mut self, slot: &mut BlockSlot) {
        let BlockOwner { at, capacity, .. } = slot.owner;
        self.free_residency(&mut slot.residency, capacity);
        for leaving in self.tiers.take_leaving(at) {
            self.tiers.give_room(leaving.room, leaving.capacity);
        }
        self.tiers.write_cache.forget(at);
        self.tiers.deltas.recount(slot, 0);
        let readings = self.tiers.readings.extract_if(.., |_, reading| reading.at == at);
        let mut gone: Vec<_> = readings.map(|(n, reading)| (n, reading.ticket)).collect();
        let fetching = self.tiers.fetching.extract_if(.., |_, fetching| fetching.pending.at == at);
        // The caller answers those that are pending as mutations.
        let reads = fetching.filter(|(_, fetching)| !fetching.pending.mutates);
        gone.extend(reads.map(|(n, fetching)| (n, fetching.pending.ticket)));
        // In the order in which they began (INV-35).
        gone.sort_unstable();
        self.out.completed.extend(gone.into_iter().map(|(_, ticket)| (ticket, wrong_epoch(at))));
    }

    /// Handles the outcome of some I/O.
    pub fn io_done(&mut self, now: Time, id: IoId, done: IoDone) {
        let Some((tier, slot, doing)) = self.tiers.doing.remove(&id.0) else { return };
        if let Doing::Discard = doing {
            // Even if its room was not returned, no later owner reads its bytes: the checksums differ.
            let state = &mut self.tiers.disk(tier).slots[slot as usize];
            state.busy -= 1;
            if let IoDone::Away(_) = done {
                // A store keeps no objects without an owner: the slot stays unused until it can be freed.
                return self.tiers.unreturned.push((now + DISCARD_AGAIN, tier, slot));
            }
            state.released = false;
            return self.tiers.disk(tier).free.push(slot);
        }
        self.tiers.ended(tier, slot);
        self.tiers.counts.failed += u64::from(matches!(done, IoDone::Failed(_) | IoDone::Away(_)));
        match doing {
            Doing::ReadBack { at, number, chunk } => {
                let part = ReadPart::Chunks { from: chunk };
                self.was_read_back(now, (at, slot), number, part, done);
            }
            Doing::ReadRuns { at, number } => {
                self.was_read_back(now, (at, slot), number, ReadPart::Runs, done);
            }
            Doing::WriteRun { at, from, length } => {
                self.reads().run_written(now, (at, slot), from, length, done);
                self.give_places(now);
                self.reads().write_runs(now);
            }
            Doing::Promote { at } => self.promotion_read(now, at, slot, done),
            Doing::Read { reading, part } => self.reads().part_read(reading, part, done),
            Doing::Fetch { fetching, from } => {
                self.reads().part_fetched(now, fetching, from, done);
            }
            Doing::ExportRead { at, export, from } => self.piece_read(now, at, export, from, done),
            Doing::ExportWrite { at, export, from } => {
                self.piece_written(now, at, export, from, done);
            }
            // Its slot can be written again.
            Doing::Trim => self.give_places(now),
            Doing::Discard => unreachable!("returned above"),
        }
    }
}

/// The tenant of a block's memory: the job, under its controller.
pub(super) fn tenant_of(owner: &BlockOwner) -> Tenant {
    // Under another controller, or another run of this one, the same number is another job's.
    let server = owner.at.block.server();
    Tenant((server.0 as u128) << 64 | owner.job.0 as u128)
}
