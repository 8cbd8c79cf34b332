//! A block's part in a snapshot of several blocks at one moment (ADR 0032).
//!
//! The block is frozen (`stop`): mutations are answered `Busy`, reads are served. When all blocks of the
//! snapshot are frozen, it continues (`go_on`) and owes its content at that moment. The content is copied in
//! one step before its first change, or when the flush requests it (`take_cut`). A block that does not change
//! is copied once, as by any flush.
//!
//! A block that is frozen for too long continues by itself, and has no snapshot then: its clock decides that
//! writers may continue, and nothing about data.
//!
//! Copies may use as much room as a flush may copy at a time. Without room a block that owes a copy stays
//! frozen a little longer: each written object makes room. Of a file nothing is copied: its content at that
//! moment is its first bytes.
//!
//! While the block is frozen, and while its owed copy has no room, no time passes for the structure and it
//! gets no messages: either could serve waiting requests.

use super::{BlockMessage, BlockSlot, Shard};
use crate::kept::KeptBytes;
use crate::refusals::{unknown_block, wrong_epoch};
use honeycomb_structures::{Answer, Snapshot, busy};
use honeycomb_types::limits::FLUSH_COPIES_AT_ONCE;
use honeycomb_types::{BlockAt, Kind, Time};
use honeycomb_wire::Status;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Delay told to who would change what stands still, in microseconds.
const RETRY_US: u64 = 500;
/// When what waits for room is looked at again.
const ROOM_AGAIN: Duration = Duration::from_millis(1);

/// What a block has to do with a cut.
pub(super) struct CheckpointState {
    /// The flush.
    live: u64,
    /// Hashes of a kv.
    range: (u64, u64),
    stage: CheckpointStage,
    /// Messages of the controller that the structure gets afterwards.
    deferred: Vec<BlockMessage>,
}

enum CheckpointStage {
    /// Nothing changes before this, or before it is let go. Whether it is sealed, when nothing is
    /// arriving any more.
    Stands { until: Time, sealed: Option<bool> },
    /// It has not changed since.
    Owes { sealed: bool, again: Time },
}

impl CheckpointState {
    /// Whether nothing is due for the structure: what the block owes is not copied for nothing.
    pub(super) fn skips(&self, structure: Option<Time>, now: Time) -> bool {
        matches!(self.stage, CheckpointStage::Owes { .. }) && structure.is_none_or(|due| due > now)
    }

    /// When the structure is looked at next, which is due at this time or has nothing to do.
    pub(super) fn due(&self, structure: Option<Time>) -> Option<Time> {
        match self.stage {
            CheckpointStage::Stands { until, .. } => Some(until),
            CheckpointStage::Owes { again, .. } => structure.map(|due| due.max(again)),
        }
    }
}

/// What a block held that has gone on.
enum TakenContent {
    Copy(Arc<KeptBytes>, bool),
    /// A file's first bytes.
    Run(usize, bool),
}

/// The cuts of one shard.
#[derive(Default)]
pub(super) struct Cuts {
    /// By flush and block.
    taken: HashMap<(u64, BlockAt), TakenContent>,
    /// Blocks that stand still or owe, by flush.
    blocks: HashMap<u64, Vec<BlockAt>>,
}

impl Cuts {
    /// Bytes of copies that are not written yet; those that are, are let go of.
    fn copied(&mut self) -> usize {
        self.taken.retain(
            |_, taken| !matches!(taken, TakenContent::Copy(bytes, _) if bytes.is_written()),
        );
        let bytes = self.taken.values().map(|taken| match taken {
            TakenContent::Copy(bytes, _) => bytes.snapshot().beside(),
            TakenContent::Run(..) => 0,
        });
        bytes.sum()
    }
}

/// Whether nothing is arriving at a block, and if so whether it is sealed.
fn settled(slot: &mut BlockSlot, filling: bool) -> Option<bool> {
    if filling { None } else { slot.is_final() }
}

impl Shard {
    /// Lets a block stand still for a flush; whether it is sealed, when nothing is arriving any more that
    /// was begun before. Until then it is `Busy`, and stands still all the same: it is asked again.
    pub fn stop(
        &mut self,
        now: Time,
        at: BlockAt,
        range: (u64, u64),
        live: u64,
        hold: Duration,
    ) -> Result<bool, Answer> {
        let index = self.index(at.block).ok_or_else(|| unknown_block(at))?;
        let filling = self.pending.iter().any(|pending| pending.at == at && pending.filling);
        // A put of extents changes the block when its extents are adopted.
        let filling = filling || self.extents.adopts_for(at);
        let slot = self.slots[index].as_mut().filter(|slot| slot.owner.at == at);
        let slot = slot.ok_or_else(|| wrong_epoch(at))?;
        let (kind, structure) = (slot.owner.kind, slot.owner.structure);
        match &mut slot.cut {
            Some(cut) if cut.live != live => {
                let text = "another flush is taking a snapshot of the block";
                return Err(Answer::refuse(Status::Busy, text));
            }
            Some(_) => {}
            None => {
                slot.snapshot(range)?;
                let stage = CheckpointStage::Stands { until: now + hold, sealed: None };
                slot.cut =
                    Some(Box::new(CheckpointState { live, range, stage, deferred: Vec::new() }));
                self.cuts.blocks.entry(live).or_default().push(at);
                if kind == Kind::Kv {
                    self.keep_extents(structure, live);
                }
                self.arm(index);
            }
        }
        let slot = self.slots[index].as_mut().expect("looked up above");
        let found = settled(slot, filling);
        let cut = slot.cut.as_mut().expect("made above");
        match &mut cut.stage {
            CheckpointStage::Stands { sealed, .. } => {
                *sealed = found;
                let text = "payloads begun before the block was frozen are still arriving";
                found.ok_or_else(|| Answer::refuse(Status::Busy, text))
            }
            CheckpointStage::Owes { .. } => {
                Err(Answer::refuse(Status::NotFound, "the snapshot has already been taken"))
            }
        }
    }

    /// Lets a block go on that stands still; false when it went on by itself, or never stood.
    pub fn go_on(&mut self, now: Time, at: BlockAt, live: u64) -> bool {
        let Some(index) = self.index(at.block) else { return false };
        let slot = self.slots[index].as_mut().filter(|slot| slot.owner.at == at);
        let Some(slot) = slot else { return false };
        let Some(cut) = slot.cut.as_mut().filter(|cut| cut.live == live) else { return false };
        let sealed = match cut.stage {
            CheckpointStage::Stands { until, sealed: Some(sealed) } if until > now => sealed,
            CheckpointStage::Stands { .. } => {
                self.release(now, index);
                return false;
            }
            CheckpointStage::Owes { .. } => return true,
        };
        let range = cut.range;
        let snapshot = slot.snapshot(range).expect("asked when it was stopped");
        if snapshot.is_plain() {
            self.cuts.taken.insert((live, at), TakenContent::Run(snapshot.length(), sealed));
            self.release(now, index);
        } else {
            let cut = slot.cut.as_mut().expect("looked up above");
            cut.stage = CheckpointStage::Owes { sealed, again: now };
            if !cut.deferred.is_empty() {
                let _ = self.may_change(now, index);
            }
            self.arm(index);
        }
        true
    }

    /// What a block held when it stood still for a flush, and whether it was sealed.
    pub fn take_cut(
        &mut self,
        now: Time,
        at: BlockAt,
        live: u64,
    ) -> Result<(Arc<KeptBytes>, bool), Answer> {
        self.cuts.copied();
        let index = self.index(at.block).ok_or_else(|| unknown_block(at))?;
        match self.cuts.taken.get(&(live, at)) {
            Some(TakenContent::Copy(bytes, sealed)) => return Ok((bytes.clone(), *sealed)),
            Some(&TakenContent::Run(length, sealed)) => {
                let found = self.slots[index].as_ref().filter(|slot| slot.owner.at == at);
                found.ok_or_else(|| wrong_epoch(at))?;
                return Ok((self.bytes_now(index, Snapshot::plain(length), sealed), sealed));
            }
            None => {}
        }
        let slot = self.slots[index].as_ref().filter(|slot| slot.owner.at == at);
        let cut = slot.and_then(|slot| slot.cut.as_ref()).filter(|cut| cut.live == live);
        match cut.map(|cut| &cut.stage) {
            Some(&CheckpointStage::Owes { sealed, .. }) => {
                Ok((self.pay(now, index, sealed), sealed))
            }
            _ => Err(Answer::refuse(Status::NotFound, "this server has no such snapshot")),
        }
    }

    /// Whether a block may be changed; otherwise what to answer. One that owes what it held pays.
    #[inline]
    pub(super) fn may_change(&mut self, now: Time, index: usize) -> Result<(), Answer> {
        match self.slots[index].as_ref().and_then(|slot| slot.cut.as_ref()) {
            None => Ok(()),
            Some(_) => self.cut_may_change(now, index),
        }
    }

    #[cold]
    fn cut_may_change(&mut self, now: Time, index: usize) -> Result<(), Answer> {
        let slot = self.slots[index].as_mut().expect("the caller has found the block");
        let (used, floor) = (slot.structure.bytes_used() as usize, slot.backing.floor());
        let cut = slot.cut.as_mut().expect("the caller has found the cut");
        match &mut cut.stage {
            CheckpointStage::Stands { until, .. } if *until > now => return Err(busy(RETRY_US)),
            CheckpointStage::Stands { .. } => self.release(now, index),
            CheckpointStage::Owes { sealed, again } => {
                let sealed = *sealed;
                // What is below is read from there, and needs no copy.
                let copies = if floor > 0 { 0 } else { self.cuts.copied() };
                if copies > 0 && copies + used > FLUSH_COPIES_AT_ONCE * self.config.block_size {
                    *again = now + ROOM_AGAIN;
                    return Err(busy(2 * RETRY_US));
                }
                self.pay(now, index, sealed);
            }
        }
        Ok(())
    }

    /// Copies what a block owes, which may change from now on.
    fn pay(&mut self, now: Time, index: usize, sealed: bool) -> Arc<KeptBytes> {
        let slot = self.slots[index].as_mut().expect("the caller has found the block");
        let cut = slot.cut.as_ref().expect("a block that owes a copy has a cut");
        let (at, key) = (slot.owner.at, (cut.live, slot.owner.at));
        let snapshot = slot.snapshot(cut.range).expect("asked when it was stopped");
        let bytes = self.bytes_now(index, snapshot, sealed);
        debug_assert_eq!(key.1, at);
        self.cuts.taken.insert(key, TakenContent::Copy(bytes.clone(), sealed));
        self.release(now, index);
        bytes
    }

    /// A block has nothing to do with its cut any more, and hears what it has missed.
    fn release(&mut self, now: Time, index: usize) {
        let Some(slot) = self.slots[index].as_mut() else { return };
        let Some(cut) = slot.cut.take() else { return };
        let at = slot.owner.at;
        if let Some(blocks) = self.cuts.blocks.get_mut(&cut.live) {
            blocks.retain(|other| *other != at);
        }
        // Its timer was that of the cut: what is due is looked at in the next tick.
        slot.timer = Some(now);
        self.timers.push(Reverse((now, index as u32)));
        for message in cut.deferred {
            self.receive(now, at, message);
        }
    }

    /// Retains a message for a block that must not change now, until its checkpoint ends.
    pub(super) fn defer(&mut self, index: usize, message: BlockMessage) {
        let slot = self.slots[index].as_mut().expect("the caller has found the block");
        let cut = slot.cut.as_mut().expect("only a block with a checkpoint defers messages");
        cut.deferred.push(message);
    }

    /// A flush of a controller shard wants nothing of its cuts any more.
    pub(super) fn end_cuts(&mut self, now: Time, controller: u16, live: u64) {
        let ours = |at: &BlockAt| at.block.server().controller() == controller;
        self.cuts.taken.retain(|(flush, at), _| *flush != live || !ours(at));
        let Some(blocks) = self.cuts.blocks.get(&live) else { return };
        let blocks: Vec<BlockAt> = blocks.iter().filter(|at| ours(at)).copied().collect();
        for at in blocks {
            let index = self.index(at.block);
            let cut = |slot: &BlockSlot| slot.cut.as_ref().is_some_and(|cut| cut.live == live);
            let slot = index.and_then(|index| self.slots[index].as_deref());
            if slot.is_some_and(|slot| slot.owner.at == at && cut(slot)) {
                self.release(now, index.expect("a released block has a slot"));
            }
        }
        if let Some(blocks) = self.cuts.blocks.get_mut(&live) {
            blocks.retain(|at| !ours(at));
            if blocks.is_empty() {
                self.cuts.blocks.remove(&live);
            }
        }
    }

    /// The connection to a controller shard is another one: it cuts anew what it still wants.
    pub(super) fn forget_cuts(&mut self, now: Time, controller: u16) {
        let taken = self.cuts.taken.keys().map(|(live, _)| *live);
        let lives: std::collections::BTreeSet<u64> =
            taken.chain(self.cuts.blocks.keys().copied()).collect();
        lives.into_iter().for_each(|live| self.end_cuts(now, controller, live));
    }
}
