//! Blocks whose changes are answered when they are in the journal of their prefix.
//!
//! The structure hides changes that are not stored (`Journaled::hold_back`); this module has the records in
//! progress. A block writes one record at a time: all changes meanwhile form the next one. A failed write is
//! repeated under the same name with the same bytes, however long it takes: an earlier attempt may still take
//! effect. Waiting callers get no answer until then, and stop by their own deadlines.

use super::agenda::Agenda;
use super::blocks::Blocks;
use super::outbox::Outbox;
use super::{BlockOwner, BlockSlot, Shard};
use honeycomb_block::Pin;
use honeycomb_structures::{Answer, Ends, Journaled, Structure, ToStore};
use honeycomb_tiers::{JournalOwner, JournalStructure, Record, RecordEnds};
use honeycomb_types::limits::{FLUSH_RETRY_FIRST, JOURNAL_RETRY_MAX};
use honeycomb_types::{BlockAt, Time};
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::messages::JournalAt;
use honeycomb_wire::{Durability, Op, RequestHeader, Status};

/// Where the changes of a block go, and how far that is.
pub(super) struct Journal {
    at: JournalAt,
    /// Nothing is written before the journal is begun, which that of the first block is asked to do.
    begun: bool,
    /// Of the next record.
    number: u64,
    /// Where the bytes of the next record begin.
    start: u64,
    /// The record that is on its way, or waits for its next attempt.
    under_way: Option<JournalWrite>,
    attempts: u32,
    again_at: Option<Time>,
}

/// A record to be written.
#[derive(Clone)]
pub struct JournalWrite {
    /// The block.
    pub at: BlockAt,
    /// The path of its object, below the root.
    pub object: String,
    /// Its number, its place in the file, and the end of the block if it is the last.
    pub record: Record,
    /// Its bytes, if it has some.
    pub bytes: Option<Pin>,
}

/// A journal to be begun.
pub struct JournalBegin {
    /// The structure's first block.
    pub at: BlockAt,
    /// Where, below the root.
    pub directory: String,
    /// Whose it is.
    pub owner: JournalOwner,
    /// The structure whose changes it has.
    pub structure: JournalStructure,
}

impl Journal {
    pub(super) fn due(&self) -> Option<Time> {
        self.again_at
    }
}

/// The structure of a block that has a journal.
fn journaled(structure: &mut dyn Structure) -> &mut dyn Journaled {
    structure.journaled().expect("a journal was opened for it")
}

/// The parts of a shard that write journals.
pub struct JournalWork<'a> {
    now: Time,
    blocks: &'a mut Blocks,
    agenda: &'a mut Agenda,
}

impl Shard {
    /// Runs work on journals, and then the consequences for the blocks that it has changed.
    pub fn on_journals<T>(&mut self, now: Time, work: impl FnOnce(&mut JournalWork<'_>) -> T) -> T {
        let Shard { blocks, agenda, .. } = self;
        let outcome = work(&mut JournalWork { now, blocks, agenda });
        self.consequences(now);
        outcome
    }

    /// The durability of a request's changes when it is answered.
    #[inline]
    pub fn durability_of(&mut self, header: &RequestHeader) -> Durability {
        if !self.has_journals {
            return Durability::Memory;
        }
        match self.blocks.at(header.at) {
            Some(slot) if slot.journal.is_some() && slot.mutates(header.op) => Durability::Flushed,
            _ => Durability::Memory,
        }
    }
}

impl JournalWork<'_> {
    /// The journal of a structure is there: its first block may write.
    pub fn begun(&mut self, at: BlockAt) {
        if let Some(slot) = self.blocks.at(at)
            && let Some(journal) = &mut slot.journal
        {
            journal.begun = true;
            self.agenda.changed(at);
        }
    }

    /// A record is written, or could not be. Of a block that went meanwhile it does not matter.
    pub fn written(&mut self, at: BlockAt, number: u64, outcome: Result<(), String>) {
        let Some(slot) = self.blocks.at(at) else { return };
        let Some(journal) = slot.journal.as_mut().filter(|journal| journal.number == number) else {
            return;
        };
        match outcome {
            Ok(()) => {
                let Some(write) = journal.under_way.take() else { return };
                journal.number += 1;
                journal.start += write.bytes.as_ref().map_or(0, |pin| pin.bytes().len() as u64);
                journal.attempts = 0;
                journaled(&mut *slot.structure).stored();
            }
            Err(_) => {
                let pause = FLUSH_RETRY_FIRST.saturating_mul(1 << journal.attempts.min(16));
                journal.again_at = Some(self.now + pause.min(JOURNAL_RETRY_MAX));
                journal.attempts += 1;
                journaled(&mut *slot.structure).not_stored();
            }
        }
        self.agenda.changed(at);
    }
}

impl BlockSlot {
    /// The changes of the block are answered when they are in a journal. Returns the journal if it must be
    /// begun. Refused for a kind that cannot have one. Idempotent.
    pub(super) fn opens_journal(&mut self, at: JournalAt) -> Result<Option<JournalBegin>, Answer> {
        if self.journal.is_none() {
            let journaled = self.structure.journaled().ok_or_else(|| {
                let kind = self.owner.kind.name();
                let text = format!("changes to a {kind} cannot be acknowledged as flushed");
                Answer::refuse(Status::WrongKind, text)
            })?;
            journaled.hold_back();
            self.journal = Some(Box::new(Journal {
                at,
                begun: !self.owner.first,
                number: 0,
                start: 0,
                under_way: None,
                attempts: 0,
                again_at: None,
            }));
        }
        let journal = self.journal.as_ref().expect("the block has a journal from here on");
        Ok((!journal.begun).then(|| journal.begin(&self.owner)))
    }

    /// Begins the next record of the block, if there is something and nothing is on its way.
    #[inline]
    pub(super) fn write_journal(&mut self, out: &mut Outbox) {
        if self.journal.is_some() {
            self.write_next(out);
        }
    }

    fn write_next(&mut self, out: &mut Outbox) {
        let Some(journal) = self.journal.as_deref_mut() else { return };
        if !journal.begun || journal.under_way.is_some() {
            return;
        }
        let Some(ToStore { range, ends }) = journaled(&mut *self.structure).to_store() else {
            return;
        };
        let bytes = (!range.is_empty()).then(|| self.backing.pin(range));
        let ends = match ends {
            None => RecordEnds::Open,
            Some(Ends::Final) => RecordEnds::Final,
            Some(Ends::Continues(moved)) => {
                let moved =
                    MovedArgs::decode(&moved).expect("the controller sends what can be decoded");
                RecordEnds::Continues(moved.entry.at())
            }
        };
        let (at, number) = (self.owner.at, journal.number);
        let name = Record::name(&journal.at.tag, self.owner.structure.0, at, number);
        let object = format!("{}/{name}", journal.at.directory);
        let record = Record { number, start: journal.start, ends };
        let write = JournalWrite { at, object, record, bytes };
        journal.under_way = Some(write.clone());
        out.journal_writes.push(write);
    }

    /// Tries again what could not be written.
    pub(super) fn write_again(&mut self, now: Time, out: &mut Outbox) {
        let Some(journal) = self.journal.as_deref_mut() else { return };
        if journal.again_at.is_some_and(|due| due <= now) {
            journal.again_at = None;
            out.journal_writes.extend(journal.under_way.clone());
        }
    }

    fn mutates(&self, op: Op) -> bool {
        let own = op.kind_code() == self.owner.kind.code();
        own && self.kind.operation(op.number()).is_some_and(|operation| operation.mutates)
    }
}

impl Journal {
    fn begin(&self, owner: &BlockOwner) -> JournalBegin {
        let JournalAt { directory, tag, job_name, address, name } = self.at.clone();
        JournalBegin {
            at: owner.at,
            directory,
            owner: JournalOwner { tag, job: job_name, address },
            structure: JournalStructure {
                structure: owner.structure.0,
                name,
                kind: owner.kind.name().to_owned(),
                block: owner.at.block.0,
                epoch: owner.at.epoch.0,
            },
        }
    }
}
