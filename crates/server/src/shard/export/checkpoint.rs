//! Checkpoints: the content of several blocks at one moment, for an object store (ADR 0032).
//!
//! A block is frozen (`checkpoint`): changes are answered `Busy`, reads are served. When all blocks of the
//! flush are frozen, it is thawed (`thaw`) and owes its content at that moment. The content is copied in one
//! step before the block's first change, or when the flush requests it (`checkpoint_content`). A block that
//! does not change is copied once, as by any flush.
//!
//! A block that is frozen for too long is thawed by itself, and its checkpoint ends: its clock decides that
//! writers may continue, and nothing about data.
//!
//! Copies may use as much room as a flush may copy at a time. A block whose owed copy has no room stays
//! frozen a little longer: each written object makes room. Of a file nothing is copied: its content at that
//! moment is its first bytes.
//!
//! While a block is frozen, and while its owed copy has no room, no time passes for the structure and it gets
//! no messages: either could serve waiting requests.

use super::{ExportWork, NewUse};
use crate::kept::KeptBytes;
use crate::refusals::{unknown_block, wrong_epoch};
use crate::shard::BlockSlot;
use honeycomb_structures::{Answer, Snapshot, busy};
use honeycomb_types::limits::FLUSH_COPIES_AT_ONCE;
use honeycomb_types::{BlockAt, Bug, Time};
use honeycomb_wire::Status;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Delay of a change of a frozen block, in microseconds.
const RETRY_US: u64 = 500;
/// Pause after which a block whose copy has no room is looked at again.
const ROOM_AGAIN: Duration = Duration::from_millis(1);

/// A block's part in a checkpoint.
pub(in crate::shard) struct Checkpoint {
    flush: u64,
    /// The hashes of a kv.
    range: (u64, u64),
    stage: CheckpointStage,
}

enum CheckpointStage {
    /// Nothing changes before this time, unless the block is thawed. `sealed` is known when no payload that
    /// began earlier is still arriving.
    Frozen { until: Time, sealed: Option<bool> },
    /// The block has not changed since it was thawed. `again`: see `ROOM_AGAIN`.
    Owing { sealed: bool, again: Time },
}

impl Checkpoint {
    /// Whether nothing is due for the structure: a copy that is not needed yet is not made.
    pub fn skips(&self, structure: Option<Time>, now: Time) -> bool {
        let nothing_due = structure.is_none_or(|due| due > now);
        matches!(self.stage, CheckpointStage::Owing { .. }) && nothing_due
    }

    /// When the block needs attention. `structure` is the time at which its structure does.
    pub fn due(&self, structure: Option<Time>) -> Option<Time> {
        match self.stage {
            CheckpointStage::Frozen { until, .. } => Some(until),
            CheckpointStage::Owing { again, .. } => structure.map(|due| due.max(again)),
        }
    }
}

/// The content of a block that has been thawed, and whether the block was sealed.
enum ContentThen {
    Copy(Arc<KeptBytes>, bool),
    /// The first bytes of a file.
    Prefix(usize, bool),
}

/// The checkpoints of a shard.
#[derive(Default)]
pub(in crate::shard) struct Checkpoints {
    /// By flush and block.
    content: HashMap<(u64, BlockAt), ContentThen>,
    /// Blocks that are frozen or owe their content, by flush.
    blocks: HashMap<u64, Vec<BlockAt>>,
}

impl Checkpoints {
    /// Bytes of copies that are not written yet. Written copies are freed.
    fn copied(&mut self) -> usize {
        self.content.retain(
            |_, content| !matches!(content, ContentThen::Copy(bytes, _) if bytes.is_written()),
        );
        let bytes = self.content.values().map(|content| match content {
            ContentThen::Copy(bytes, _) => bytes.snapshot().beside(),
            ContentThen::Prefix(..) => 0,
        });
        bytes.sum()
    }
}

impl ExportWork<'_> {
    /// Freezes a block for a flush. Returns whether it is sealed; `Busy` while payloads that began earlier
    /// are still arriving: the block is frozen nevertheless, and the call is repeated.
    pub fn checkpoint(
        &mut self,
        at: BlockAt,
        range: (u64, u64),
        flush: u64,
        hold: Duration,
    ) -> Result<bool, Answer> {
        let now = self.now;
        let index = self.blocks.index(at.block).ok_or_else(|| unknown_block(at))?;
        let filling = self.pending.iter().any(|pending| pending.at == at && pending.filling);
        // A put of extents changes the block when its extents are adopted.
        let adopts = self.extents.adopts_for(at) && !Bug::CheckpointSettlesEarly.active();
        let filling = filling || adopts;
        let slot = self.blocks.exactly(index, at);
        let slot = slot.ok_or_else(|| wrong_epoch(at))?;
        let (kind, structure) = (slot.owner.kind, slot.owner.structure);
        match &slot.exports.checkpoint {
            Some(checkpoint) if checkpoint.flush == flush => {}
            _ => {
                slot.snapshot(range)?;
                if let Some(why) = self.overlaps.refusal(slot, NewUse::Checkpoint) {
                    return Err(Answer::refuse(Status::Busy, why));
                }
                let stage = CheckpointStage::Frozen { until: now + hold, sealed: None };
                let checkpoint = Checkpoint { flush, range, stage };
                slot.exports.checkpoint = Some(Box::new(checkpoint));
                self.overlaps.begun(slot, NewUse::Checkpoint);
                self.checkpoints.blocks.entry(flush).or_default().push(at);
                if kind.attributes().extents.is_some() {
                    self.extents.keep(structure, flush);
                }
                slot.arm(index, self.agenda);
            }
        }
        let slot = self.blocks.found_mut(index);
        let found = if filling { None } else { slot.is_final() };
        let checkpoint = slot.exports.checkpoint.as_mut().expect("made above");
        match &mut checkpoint.stage {
            CheckpointStage::Frozen { sealed, .. } => {
                *sealed = found;
                let text = "payloads begun before the block was frozen are still arriving";
                found.ok_or_else(|| Answer::refuse(Status::Busy, text))
            }
            CheckpointStage::Owing { .. } => {
                Err(Answer::refuse(Status::NotFound, "the snapshot has already been taken"))
            }
        }
    }

    /// Thaws a block. Returns false if it was not frozen until now.
    pub fn thaw(&mut self, at: BlockAt, flush: u64) -> bool {
        let now = self.now;
        let Some(index) = self.blocks.index(at.block) else { return false };
        let slot = self.blocks.exactly(index, at);
        let Some(slot) = slot else { return false };
        let checkpoint = slot.exports.checkpoint.as_mut();
        let Some(checkpoint) = checkpoint.filter(|checkpoint| checkpoint.flush == flush) else {
            return false;
        };
        let sealed = match checkpoint.stage {
            CheckpointStage::Frozen { until, sealed: Some(sealed) } if until > now => sealed,
            CheckpointStage::Frozen { .. } => {
                self.end_checkpoint(index);
                return false;
            }
            CheckpointStage::Owing { .. } => return true,
        };
        let range = checkpoint.range;
        let snapshot = slot.snapshot(range).expect("requested when it was frozen");
        if snapshot.is_plain() {
            let content = ContentThen::Prefix(snapshot.length(), sealed);
            self.checkpoints.content.insert((flush, at), content);
            self.end_checkpoint(index);
        } else {
            let checkpoint = slot.exports.checkpoint.as_mut().expect("looked up above");
            checkpoint.stage = CheckpointStage::Owing { sealed, again: now };
            slot.arm(index, self.agenda);
            if !slot.inbox.is_empty() {
                self.agenda.changed(at);
            }
        }
        true
    }

    /// The content of a block when it was frozen for a flush, and whether it was sealed.
    pub fn checkpoint_content(
        &mut self,
        at: BlockAt,
        flush: u64,
    ) -> Result<(Arc<KeptBytes>, bool), Answer> {
        self.checkpoints.copied();
        let index = self.blocks.index(at.block).ok_or_else(|| unknown_block(at))?;
        match self.checkpoints.content.get(&(flush, at)) {
            Some(ContentThen::Copy(bytes, sealed)) => return Ok((bytes.clone(), *sealed)),
            Some(&ContentThen::Prefix(length, sealed)) => {
                let slot = self.blocks.exactly(index, at).ok_or_else(|| wrong_epoch(at))?;
                let snapshot = Snapshot::plain(length);
                return Ok((slot.content_now(snapshot, sealed, self.config.block_size), sealed));
            }
            None => {}
        }
        let slot = self.blocks.exactly(index, at);
        let checkpoint = slot.and_then(|slot| slot.exports.checkpoint.as_ref());
        match checkpoint.filter(|checkpoint| checkpoint.flush == flush).map(|c| &c.stage) {
            Some(&CheckpointStage::Owing { sealed, .. }) => {
                Ok((self.copy_owed(index, sealed), sealed))
            }
            _ => Err(Answer::refuse(Status::NotFound, "this server has no such snapshot")),
        }
    }

    /// Whether a block with a part in a checkpoint may be changed; otherwise the answer. Its owed content is
    /// copied first.
    #[cold]
    pub(super) fn may_change(&mut self, index: usize) -> Result<(), Answer> {
        let now = self.now;
        let slot = self.blocks.found_mut(index);
        let (used, floor) = (slot.structure.bytes_used() as usize, slot.backing.floor());
        let checkpoint = slot.exports.checkpoint.as_mut().expect("the caller has found it");
        match &mut checkpoint.stage {
            CheckpointStage::Frozen { until, .. } if *until > now => return Err(busy(RETRY_US)),
            CheckpointStage::Frozen { .. } => self.end_checkpoint(index),
            CheckpointStage::Owing { sealed, again } => {
                let sealed = *sealed;
                // Bytes in a lower tier are read from there, and need no copy.
                let copies = if floor > 0 { 0 } else { self.checkpoints.copied() };
                if copies > 0 && copies + used > FLUSH_COPIES_AT_ONCE * self.config.block_size {
                    *again = now + ROOM_AGAIN;
                    return Err(busy(2 * RETRY_US));
                }
                if !Bug::CheckpointCopiesLate.active() {
                    self.copy_owed(index, sealed);
                }
            }
        }
        Ok(())
    }

    /// Copies the content that a block owes. From now on the block may change.
    fn copy_owed(&mut self, index: usize, sealed: bool) -> Arc<KeptBytes> {
        let slot = self.blocks.found_mut(index);
        let checkpoint = slot.exports.checkpoint.as_ref().expect("a copy is owed to a checkpoint");
        let key = (checkpoint.flush, slot.owner.at);
        let snapshot = slot.snapshot(checkpoint.range).expect("requested when it was frozen");
        let bytes = slot.content_now(snapshot, sealed, self.config.block_size);
        self.checkpoints.content.insert(key, ContentThen::Copy(bytes.clone(), sealed));
        self.end_checkpoint(index);
        bytes
    }

    /// Ends a block's part in its checkpoint. The block gets the messages that have arrived meanwhile.
    fn end_checkpoint(&mut self, index: usize) {
        let Some(slot) = self.blocks.get_mut(index) else { return };
        let Some(checkpoint) = slot.exports.checkpoint.take() else { return };
        let at = slot.owner.at;
        if let Some(blocks) = self.checkpoints.blocks.get_mut(&checkpoint.flush) {
            blocks.retain(|other| *other != at);
        }
        // The checkpoint had set the timer: the next tick handles the deadlines of the structure.
        self.agenda.rearm(index, &mut slot.attention, self.now);
        if !slot.inbox.is_empty() {
            self.agenda.changed(at);
        }
    }

    /// Ends the checkpoints of a flush of a controller shard.
    pub(super) fn end_checkpoints(&mut self, controller: u16, flush: u64) {
        let ours = |at: &BlockAt| at.block.server().controller() == controller;
        self.checkpoints.content.retain(|(other, at), _| *other != flush || !ours(at));
        let Some(blocks) = self.checkpoints.blocks.get(&flush) else { return };
        let blocks: Vec<BlockAt> = blocks.iter().filter(|at| ours(at)).copied().collect();
        let of_flush = |slot: &BlockSlot| {
            slot.exports.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.flush == flush)
        };
        for at in blocks {
            let Some(index) = self.blocks.index(at.block) else { continue };
            let slot = self.blocks.get(index);
            if slot.is_some_and(|slot| slot.owner.at == at && of_flush(slot)) {
                self.end_checkpoint(index);
            }
        }
        if let Some(blocks) = self.checkpoints.blocks.get_mut(&flush) {
            blocks.retain(|at| !ours(at));
            if blocks.is_empty() {
                self.checkpoints.blocks.remove(&flush);
            }
        }
    }

    /// The connection to a controller shard is a new one: it begins the checkpoints again that it needs.
    pub(super) fn forget_checkpoints(&mut self, controller: u16) {
        let copied = self.checkpoints.content.keys().map(|(flush, _)| *flush);
        let flushes: BTreeSet<u64> =
            copied.chain(self.checkpoints.blocks.keys().copied()).collect();
        flushes.into_iter().for_each(|flush| self.end_checkpoints(controller, flush));
    }
}
