//! Blocks whose changes are answered when they are in the journal of their prefix.
//!
//! The structure hides changes that are not stored (`Journaled::hold_back`); this module has the records in
//! progress. A block writes one record at a time: all changes meanwhile form the next one. A failed write is
//! repeated under the same name with the same bytes, however long it takes: an earlier attempt may still take
//! effect. Waiting callers get no answer until then, and stop by their own deadlines.

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

impl Shard {
    /// Assigns a block to its owner, whose changes are answered when they are in the journal. Returns a
    /// journal that must be begun before the block is announced.
    pub fn open_journaled(
        &mut self,
        owner: BlockOwner,
        at: JournalAt,
    ) -> Result<Option<JournalBegin>, Answer> {
        self.open(owner)?;
        self.has_journals = true;
        let slot = self.blocks.at(owner.at).expect("the block was just opened");
        if slot.journal.is_none() {
            let Some(journaled) = slot.structure.journaled() else {
                self.free(owner.at);
                let kind = owner.kind.name();
                let text = format!("changes to a {kind} cannot be acknowledged as flushed");
                return Err(Answer::refuse(Status::WrongKind, text));
            };
            journaled.hold_back();
            let begun = !owner.first;
            slot.journal = Some(Box::new(Journal {
                at,
                begun,
                number: 0,
                start: 0,
                under_way: None,
                attempts: 0,
                again_at: None,
            }));
        }
        let journal = slot.journal.as_ref().expect("the block has a journal from here on");
        Ok((!journal.begun).then(|| journal.begin(&owner)))
    }

    /// The journal of a structure is there: its first block may write.
    pub fn journal_begun(&mut self, now: Time, at: BlockAt) {
        if let Some(slot) = self.blocks.at(at)
            && let Some(journal) = &mut slot.journal
        {
            journal.begun = true;
            self.after(now, at);
        }
    }

    /// A record is written, or could not be. Of a block that went meanwhile it does not matter.
    pub fn journaled(&mut self, now: Time, at: BlockAt, number: u64, outcome: Result<(), String>) {
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
                journal.again_at = Some(now + pause.min(JOURNAL_RETRY_MAX));
                journal.attempts += 1;
                journaled(&mut *slot.structure).not_stored();
            }
        }
        self.after(now, at);
    }

    /// Records that are to be written.
    pub fn take_journal_writes(&mut self) -> Vec<JournalWrite> {
        std::mem::take(&mut self.out.journal_writes)
    }

    /// How durable what a request has changed is, once it is answered.
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

    /// Begins the next record of a block, if there is something and nothing is on its way.
    #[inline]
    pub(super) fn write_journal(&mut self, index: usize) {
        if self.has_journals {
            self.write_next(index);
        }
    }

    fn write_next(&mut self, index: usize) {
        let Some(slot) = self.blocks.get_mut(index) else { return };
        let Some(journal) = slot.journal.as_deref_mut() else { return };
        if !journal.begun || journal.under_way.is_some() {
            return;
        }
        let Some(ToStore { range, ends }) = journaled(&mut *slot.structure).to_store() else {
            return;
        };
        let bytes = (!range.is_empty()).then(|| slot.backing.pin(range));
        let ends = match ends {
            None => RecordEnds::Open,
            Some(Ends::Final) => RecordEnds::Final,
            Some(Ends::Continues(moved)) => {
                let moved =
                    MovedArgs::decode(&moved).expect("the controller sends what can be decoded");
                RecordEnds::Continues(moved.entry.at())
            }
        };
        let owner = &slot.owner;
        let (at, number) = (owner.at, journal.number);
        let name = Record::name(&journal.at.tag, owner.structure.0, at, number);
        let object = format!("{}/{name}", journal.at.directory);
        let record = Record { number, start: journal.start, ends };
        let write = JournalWrite { at, object, record, bytes };
        journal.under_way = Some(write.clone());
        self.out.journal_writes.push(write);
    }

    /// Tries again what could not be written.
    pub(super) fn write_again(&mut self, now: Time, index: usize) {
        let Some(slot) = self.blocks.get_mut(index) else { return };
        let Some(journal) = slot.journal.as_deref_mut() else { return };
        if journal.again_at.is_some_and(|due| due <= now) {
            journal.again_at = None;
            self.out.journal_writes.extend(journal.under_way.clone());
        }
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

impl BlockSlot {
    fn mutates(&self, op: Op) -> bool {
        let own = op.kind_code() == self.owner.kind.code();
        own && self.kind.operation(op.number()).is_some_and(|operation| operation.mutates)
    }
}
