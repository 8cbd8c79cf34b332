//! The content of a file's block: appended bytes, the appends in progress, and the seal.

mod many;
mod moving;

use super::journal::{FileJournal, Stored};
use crate::capacity::CapacityRequest;
use crate::events::Events;
use crate::growth::{Seal, Tail};
use crate::pieces::Pieces;
use crate::{
    Answer, Ends, Journaled, Operation, Outcome, Payload, Rest, Streaming, Ticket, ToStore, busy,
    large_limit, moved,
};
use honeycomb_block::Backing;
use honeycomb_types::limits::FRAME_MAX;
use honeycomb_types::{Bug, Marks, Time};
use honeycomb_wire::Status;
use honeycomb_wire::data::ReadArgs;
use honeycomb_wire::notice::Change;

/// Data kept with an append in progress.
#[derive(Default)]
struct Append {
    /// Whether the sender already has its answer. Only a planted bug sets this.
    told: bool,
}

/// A segment of a file, which fills one block. Offsets are relative to the block.
pub(super) struct FileSegment {
    pieces: Pieces<Append>,
    pub tail: Tail,
    pub events: Events,
    /// Delays the visibility of appends until they are stored.
    pub journal: FileJournal,
    /// Whether the block accepts no more, and seals when the last payload has arrived.
    continues: bool,
}

impl FileSegment {
    pub fn new(capacity: CapacityRequest, marks: Marks) -> FileSegment {
        FileSegment {
            pieces: Pieces::new(),
            tail: Tail::new(capacity, marks),
            events: Events::default(),
            journal: FileJournal::default(),
            continues: false,
        }
    }

    /// Bytes of the block in use, with those of the records beside it.
    pub fn bytes_used(&self) -> u64 {
        (self.pieces.tail() + self.pieces.bytes()) as u64
    }

    /// Whether the block could be demoted, if it does not migrate.
    pub fn rests(&self) -> Rest {
        match self.tail.is_open() {
            _ if !self.pieces.is_settled() || self.journal.is_ending() => Rest::Busy,
            false => Rest::Final(self.pieces.committed()),
            true => Rest::Open(self.pieces.committed()),
        }
    }

    /// Bytes of the block in use, with those of arriving payloads.
    pub fn used(&self) -> usize {
        self.pieces.tail()
    }

    /// Whether payloads are arriving.
    pub fn is_arriving(&self) -> bool {
        !self.pieces.is_settled()
    }

    /// Bytes visible to readers.
    pub fn length(&self) -> u64 {
        self.pieces.committed() as u64
    }

    fn changed(&mut self, change: Change) {
        if let Change::Append { offset, length } = change {
            let (end, committed) = (offset + length, self.length());
            assert!(end <= committed, "INV-24: a notice of byte {end}, and {committed} committed");
        }
        self.events.changed(|| change);
    }

    fn close(&mut self, seal: Seal) {
        let length = self.length();
        if matches!(seal, Seal::Final) {
            self.changed(Change::Seal { length });
        }
        assert!(
            self.pieces.is_settled(),
            "INV-07: a block is sealed at {length} while data arrives"
        );
        assert!(self.tail.is_open(), "INV-23: a block is sealed twice, now at {length}");
        let capacity = self.tail.capacity.bytes();
        assert!(length <= capacity as u64, "INV-23: {length} bytes in a block of {capacity}");
        self.tail.close(seal);
        self.report_seal();
    }

    fn report_seal(&mut self) {
        let length = self.length();
        if let Some(sealed) = self.tail.report(length, length) {
            self.events.push(sealed);
        }
    }

    /// The answer to a request that waits for others to end.
    fn busy(&self) -> Answer {
        busy(self.journal.retry_us())
    }

    /// Whether an append of `length` bytes can be placed; otherwise the answer.
    pub fn admit(&mut self, args: &[u8], length: usize) -> Result<(), Answer> {
        if !args.is_empty() {
            return Err(Answer::refuse(Status::BadFrame, "FileAppend takes no arguments"));
        }
        match self.tail.seal() {
            Some(Seal::Continues(successor)) => return Err(moved(self.length(), successor)),
            Some(Seal::Final) => {
                return Err(Answer::refuse(Status::Sealed, "the file is sealed"));
            }
            None if self.journal.is_ending() || self.continues => return Err(self.busy()),
            None => {}
        }
        let (limit, tail) = (large_limit(self.tail.capacity.most()), self.pieces.tail());
        // An append over the limit is accepted if it fits. If it does not fit, it does not seal the block,
        // because too many bytes would remain unused.
        if length > limit && length > self.tail.capacity.most() - tail {
            let message = format!(
                "an append of {length} bytes is over the limit of {limit} (block / 8), and this \
                 block has no room for it"
            );
            return Err(Answer::refuse(Status::ValueTooLarge, message));
        }
        // A payload over the limit is not representative of later writes: counted in full, it would request a
        // successor too early, and other structures would lack that memory.
        self.tail.request().wrote(length.min(limit));
        if self.pieces.is_full() {
            return Err(self.busy());
        }
        if length > self.tail.capacity.bytes() - tail {
            return Err(self.tail.capacity.refuse(length).unwrap_or_else(|| self.overflow()));
        }
        Ok(())
    }

    /// The answer to an append that does not fit into this block, or that another block has: seals this one
    /// if possible.
    fn overflow(&mut self) -> Answer {
        if !self.pieces.is_settled() {
            return self.busy();
        }
        match self.tail.request().take() {
            Ok(successor) if self.journal.is_kept() => {
                self.journal.seal(Ends::Continues(successor), None);
                self.busy()
            }
            Ok(successor) => {
                let answer = moved(self.length(), &successor);
                self.close(Seal::Continues(successor));
                answer
            }
            Err(refusal) => refusal,
        }
    }

    /// Appends a whole payload that was admitted.
    pub fn append(&mut self, block: &mut Backing, ticket: Ticket, payload: &[u8]) -> Outcome {
        if payload.is_empty() {
            return Outcome::Done(Answer::ok(self.length()));
        }
        if self.journal.is_kept() {
            self.pieces.hold(block, ticket, payload, Append::default());
            return Outcome::Parked;
        }
        let (start, length) = (self.pieces.tail() as u64, payload.len() as u64);
        match self.pieces.append(block, ticket, payload, Append::default()) {
            None => self.changed(Change::Append { offset: start, length }),
            Some(append) if Bug::AckBeforeEffect.active() => append.told = true,
            Some(_) => {
                if Bug::NoticeBeforeCommit.active() {
                    self.changed(Change::Append { offset: start, length });
                }
                return Outcome::Parked;
            }
        }
        Outcome::Done(Answer::ok(start))
    }

    /// Commits and answers the complete pieces at the front.
    fn advance(&mut self) {
        while self.journal.covers(self.pieces.first_end())
            && let Some(piece) = self.pieces.advance()
        {
            assert!(self.tail.is_open(), "INV-23: a sealed block commits byte {}", piece.start);
            let (offset, length) = (piece.start as u64, piece.length as u64);
            if !piece.with.told {
                self.events.answer(piece.ticket, Answer::ok(offset));
            }
            self.changed(Change::Append { offset, length });
        }
        if self.continues && self.pieces.is_settled() {
            self.continues = false;
            // The client that requested it repeats the request, and gets this answer.
            let _ = self.overflow();
        }
    }

    /// The bytes from an offset on.
    pub fn read(&self, args: &[u8]) -> Answer {
        let ReadArgs { offset, length } = match ReadArgs::decode(args) {
            Ok(read) => read,
            Err(e) => return e.into(),
        };
        let committed = match Bug::FileReadsAhead.active() {
            true => self.pieces.tail() as u64,
            false => self.length(),
        };
        if offset >= committed {
            if let Some(successor) = self.tail.successor() {
                return moved(committed, successor);
            }
            return Answer::ok(committed);
        }
        let length = (length as u64).min(FRAME_MAX as u64).min(committed - offset);
        if length == 0 {
            return Answer::ok(committed);
        }
        // INV-23: a read sees committed bytes only; `length` was limited to them.
        let range = offset as usize..(offset + length) as usize;
        Answer::ok(committed).with(Payload::Block(range))
    }

    /// The number of bytes, and whether the file is sealed.
    pub fn file_size(&self) -> Answer {
        if let Some(successor) = self.tail.successor() {
            return moved(self.length(), successor);
        }
        let sealed = !self.tail.is_open();
        Answer { args: vec![sealed as u8], ..Answer::ok(self.length()) }
    }

    /// Whether the block can be mapped, which means that its bytes are final; and their number.
    pub fn map(&self) -> Answer {
        match self.tail.is_open() {
            false => Answer::ok(self.length()),
            true => Answer::refuse(Status::NotSealed, "the file is not sealed and may grow"),
        }
    }

    /// Seals the block, so that the file continues in its successor, and names that block.
    pub fn pass_on(&mut self) -> Answer {
        let answer = match self.tail.seal() {
            Some(Seal::Continues(successor)) => moved(self.length(), successor),
            Some(Seal::Final) => Answer::refuse(Status::Sealed, "the file is sealed"),
            None if self.journal.is_ending() => self.busy(),
            None => {
                self.tail.request().require();
                // Appends that follow each other without a gap would delay the seal until the block is full.
                self.continues = !self.pieces.is_settled() && self.tail.request().is_ready();
                self.overflow()
            }
        };
        match answer.status {
            Status::Moved => Answer { status: Status::Ok, ..answer },
            _ => answer,
        }
    }

    /// Seals the file.
    pub fn seal(&mut self, ticket: Ticket) -> Outcome {
        Outcome::Done(match self.tail.seal() {
            Some(Seal::Continues(successor)) => moved(self.length(), successor),
            Some(Seal::Final) => Answer::ok(self.length()),
            None if !self.pieces.is_settled() || self.journal.is_ending() => self.busy(),
            None if self.journal.is_kept() => {
                self.journal.seal(Ends::Final, Some(ticket));
                return Outcome::Parked;
            }
            None => {
                self.close(Seal::Final);
                Answer::ok(self.length())
            }
        })
    }
}

impl Streaming for FileSegment {
    fn reserve(
        &mut self,
        _block: &mut Backing,
        operation: &Operation<'_>,
        length: usize,
    ) -> Result<(), Answer> {
        self.admit(operation.args, length)?;
        self.pieces.place(operation.ticket, length, Append::default());
        Ok(())
    }

    fn fill<'b>(&mut self, block: &'b mut Backing, ticket: Ticket) -> &'b mut [u8] {
        block.slice_mut(self.pieces.rest(ticket))
    }

    fn filled(&mut self, ticket: Ticket, n: usize) {
        self.pieces.filled(ticket, n);
    }

    fn commit(&mut self, _block: &mut Backing, _now: Time, ticket: Ticket) -> Outcome {
        self.pieces.complete(ticket);
        self.advance();
        Outcome::Parked
    }

    fn abort(&mut self, block: &mut Backing, _now: Time, ticket: Ticket) {
        self.pieces.abort(block, ticket);
        self.advance();
    }
}

impl Journaled for FileSegment {
    fn hold_back(&mut self) {
        self.journal.begin();
    }

    fn to_store(&mut self) -> Option<ToStore> {
        self.journal.next_record(&self.pieces)
    }

    fn stored(&mut self) {
        let (ends, ticket) = match self.journal.stored() {
            Stored::Bytes => return self.advance(),
            Stored::Seal(ends, ticket) => (ends, ticket),
        };
        self.close(match ends {
            Ends::Final => Seal::Final,
            Ends::Continues(successor) => Seal::Continues(successor),
        });
        if let Some(ticket) = ticket {
            let length = self.length();
            self.events.answer(ticket, Answer::ok(length));
        }
    }

    fn not_stored(&mut self) {
        self.journal.failed();
    }
}
