//! Imports: the target block of a move.
//!
//! A target gets the parts as requests of the source's server. The controller announces the move before the
//! first part, and decides afterwards whether the range belongs to the target.

use super::agenda::Agenda;
use super::blocks::Blocks;
use super::export::{NewUse, Overlaps, cannot_move};
use super::{BlockSlot, Shard};
use crate::refusals::{unknown_block, wrong_epoch};
use honeycomb_structures::{Answer, Operation, Outcome};
use honeycomb_types::{BlockAt, Time};
use honeycomb_wire::messages::MoveLanesRequest;
use honeycomb_wire::{Field, Op, RequestHeader, Status};

/// The parts of a shard that import the content of other blocks.
pub struct ImportWork<'a> {
    now: Time,
    blocks: &'a mut Blocks,
    agenda: &'a mut Agenda,
    overlaps: &'a mut Overlaps,
}

impl Shard {
    /// Runs work on imports, and then the consequences for the blocks that it has changed.
    pub fn on_imports<T>(&mut self, now: Time, work: impl FnOnce(&mut ImportWork<'_>) -> T) -> T {
        let Shard { blocks, agenda, overlaps, .. } = self;
        let outcome = work(&mut ImportWork { now, blocks, agenda, overlaps });
        self.consequences(now);
        outcome
    }
}

impl ImportWork<'_> {
    /// Announces that a neighbour will send its range to a block. Idempotent.
    pub fn begin(&mut self, at: BlockAt, id: u64, start: u64, end: u64) -> Result<(), Answer> {
        let slot = self.blocks.at(at).ok_or_else(|| wrong_epoch(at))?;
        if slot.structure.movable().is_none() {
            return Err(cannot_move());
        }
        let is_workable = slot.residency.is_workable(&slot.backing);
        let below = (!is_workable).then_some("the block is in a lower tier, or is being demoted");
        let refusal = self.overlaps.refusal(slot, NewUse::Import).or(below);
        if let Some(why) = refusal {
            return Err(Answer::refuse(Status::Busy, why));
        }
        let movable = slot.structure.movable().expect("looked up above");
        movable.begin_import(id, start, end)?;
        slot.import = Some(id);
        self.overlaps.begun(slot, NewUse::Import);
        Ok(())
    }

    /// Ends an import: from now on the block owns the received range, or the range is dropped. Idempotent.
    pub fn end(&mut self, at: BlockAt, id: u64, commit: bool) -> Result<(), Answer> {
        let slot = self.blocks.at(at).ok_or_else(|| wrong_epoch(at))?;
        let Some(movable) = slot.structure.movable() else { return Err(cannot_move()) };
        if let (Some((start, end)), true) = (movable.imports(id), commit) {
            slot.owner.start = slot.owner.start.min(start);
            slot.owner.end = slot.owner.end.max(end);
        }
        movable.end_import(&mut slot.backing, self.now, id, commit);
        slot.import = slot.import.filter(|import| *import != id);
        self.agenda.changed(at);
        Ok(())
    }

    /// Applies a part of a move with a complete payload.
    pub(super) fn part(
        &mut self,
        header: &RequestHeader,
        args: &[u8],
        payload: &[u8],
        operation: &Operation<'_>,
    ) -> Answer {
        let now = self.now;
        let slot = match self.takes_parts(header) {
            Ok(slot) => slot,
            Err(refusal) => return refusal,
        };
        if header.op == Op::MoveLanes {
            return adopt(slot, now, args, payload).unwrap_or_else(|refusal| refusal);
        }
        let outcome = slot.structure.apply(&mut slot.backing, operation, payload);
        self.agenda.changed(header.at);
        match outcome {
            Outcome::Done(answer) => answer,
            Outcome::Parked => unreachable!("a part of a move does not wait"),
        }
    }

    /// Makes room for a part of a move whose payload is still arriving.
    pub(super) fn begin_part(
        &mut self,
        header: &RequestHeader,
        operation: &Operation<'_>,
    ) -> Result<(), Answer> {
        let slot = self.takes_parts(header)?;
        let length = header.payload_len as usize;
        let Some(streaming) = slot.structure.streaming() else { return Err(cannot_move()) };
        streaming.reserve(&mut slot.backing, operation, length)
    }

    /// The target of a part, if it takes such parts.
    fn takes_parts(&mut self, header: &RequestHeader) -> Result<&mut BlockSlot, Answer> {
        let (at, op) = (header.at, header.op);
        if self.blocks.index(at.block).is_none() {
            return Err(unknown_block(at));
        }
        let slot = self.blocks.at(at).ok_or_else(|| wrong_epoch(at))?;
        let Some(movable) = slot.structure.movable() else { return Err(cannot_move()) };
        // Retry records are the same for blocks of all kinds.
        if op != Op::MoveLanes && movable.takes(op).is_none() {
            let text = format!("{} does not apply to blocks of this kind", op.name());
            return Err(Answer::refuse(Status::WrongKind, text));
        }
        Ok(slot)
    }
}

/// Adopts the retry records of a move.
fn adopt(slot: &mut BlockSlot, now: Time, args: &[u8], payload: &[u8]) -> Result<Answer, Answer> {
    let id = MoveLanesRequest::decode(args)?.move_id;
    let movable = slot.structure.movable().expect("looked up by the caller");
    if movable.imports(id).is_none() {
        let text = "the block is not part of this move";
        return Err(Answer::refuse(Status::WrongEpoch, text));
    }
    match movable.moves_whole() {
        true => slot.lanes.take_over(now, payload)?,
        false => slot.lanes.adopt(now, payload)?,
    }
    Ok(Answer::ok(0))
}
