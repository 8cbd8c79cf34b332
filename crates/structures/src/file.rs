//! A block of a file: append-only bytes.

mod journal;
mod many;
mod moving;

use crate::carry::{Cart, take_part};
use crate::moves::Movable;
use crate::pieces::Pieces;
use crate::{
    Answer, Changes, Content, Event, Growth, Journaled, Operation, Ops, Outcome, Payload, Rest,
    Snapshot, Streaming, Structure, Successor, SuccessorRequest, Ticket, Waits, busy, large_limit,
    moved,
};
use honeycomb_block::Backing;
use honeycomb_types::limits::FRAME_MAX;
use honeycomb_types::{Bug, Marks, Time};
use honeycomb_wire::data::ReadArgs;
use honeycomb_wire::notice::Change;
use honeycomb_wire::{Auth, Mutates, Op, Status};
use journal::FileJournal;
use std::collections::VecDeque;

/// Retry delay while other appends must end first, in microseconds.
const RETRY_FILLS_US: u64 = 200;

/// How the block was sealed.
enum FileSeal {
    /// Full: the file continues in the block that these arguments of `Moved` name.
    Continues(Vec<u8>),
    /// The file itself was sealed.
    Final,
}

/// Data kept with an append in progress.
#[derive(Default)]
struct Append {
    /// Whether the sender already has its answer. Only a planted bug sets this.
    told: bool,
}

/// One block of a file. Offsets are relative to the block.
pub struct FileBlock {
    size: usize,
    pieces: Pieces<Append>,
    next: SuccessorRequest,
    seal: Option<FileSeal>,
    watched: bool,
    events: VecDeque<Event>,
    cart: Cart,
    /// The journal of a block whose bytes become visible only when they are stored.
    journal: Option<FileJournal>,
}

impl FileBlock {
    /// An empty block.
    pub fn new(block_size: usize) -> FileBlock {
        FileBlock {
            size: block_size,
            pieces: Pieces::new(),
            next: SuccessorRequest::new(block_size),
            seal: None,
            watched: false,
            events: VecDeque::new(),
            cart: Cart::default(),
            journal: None,
        }
    }

    /// As `new`, with the marks of the block's prefix. `move_id` is the move that will fill the block; 0 for
    /// none.
    pub fn opened(block_size: usize, marks: Marks, move_id: u64) -> FileBlock {
        let mut block = FileBlock { cart: Cart::importing(move_id), ..FileBlock::new(block_size) };
        block.next.set_marks(marks);
        block
    }

    fn length(&self) -> u64 {
        self.pieces.committed() as u64
    }

    fn changed(&mut self, change: Change) {
        if let Change::Append { offset, length } = change {
            let (end, committed) = (offset + length, self.length());
            assert!(end <= committed, "INV-24: a notice of byte {end}, and {committed} committed");
        }
        if self.watched {
            self.events.push_back(Event::Changed(change));
        }
    }

    fn close(&mut self, seal: FileSeal) {
        let length = self.length();
        let successor = match &seal {
            FileSeal::Continues(successor) => Some(successor.clone()),
            FileSeal::Final => {
                self.changed(Change::Seal { length });
                None
            }
        };
        assert!(
            self.pieces.is_settled(),
            "INV-07: a block is sealed at {length} while data arrives"
        );
        assert!(self.seal.is_none(), "INV-23: a block is sealed twice, now at {length}");
        assert!(length <= self.size as u64, "INV-23: {length} bytes in a block of {}", self.size);
        self.seal = Some(seal);
        self.events.push_back(Event::Sealed { length, bytes: length, successor });
    }

    /// Whether an append of `length` bytes can be placed; otherwise the answer.
    fn admit(&mut self, args: &[u8], length: usize) -> Result<(), Answer> {
        if !args.is_empty() {
            return Err(Answer::refuse(Status::BadFrame, "FileAppend takes no arguments"));
        }
        match &self.seal {
            Some(FileSeal::Continues(successor)) => return Err(moved(self.length(), successor)),
            Some(FileSeal::Final) => {
                return Err(Answer::refuse(Status::Sealed, "the file is sealed"));
            }
            None if self.is_ending() => return Err(busy(self.retry_us())),
            None => {}
        }
        let (limit, left) = (large_limit(self.size), self.size - self.pieces.tail());
        // An append over the limit is accepted if it fits. If it does not fit, it does not seal the block,
        // because too many bytes would remain unused.
        if length > limit && length > left {
            let message = format!(
                "an append of {length} bytes is over the limit of {limit} (block / 8), and this \
                 block has no room for it"
            );
            return Err(Answer::refuse(Status::ValueTooLarge, message));
        }
        // A payload over the limit is not representative of later writes: counted in full, it would request a
        // successor too early, and other structures would lack that memory.
        self.next.wrote(length.min(limit));
        if self.pieces.is_full() {
            return Err(busy(self.retry_us()));
        }
        if length > left {
            return Err(self.overflow());
        }
        Ok(())
    }

    /// The answer to an append that does not fit into this block. Seals the block if possible.
    fn overflow(&mut self) -> Answer {
        if !self.pieces.is_settled() {
            return busy(self.retry_us());
        }
        match self.next.take() {
            Ok(successor) if self.journal.is_some() => self.continue_when_stored(successor),
            Ok(successor) => {
                let answer = moved(self.length(), &successor);
                self.close(FileSeal::Continues(successor));
                answer
            }
            Err(refusal) => refusal,
        }
    }

    fn append(&mut self, block: &mut Backing, ticket: Ticket, payload: &[u8]) -> Outcome {
        if payload.is_empty() {
            return Outcome::Done(Answer::ok(self.length()));
        }
        if self.journal.is_some() {
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
        while self.may_advance()
            && let Some(piece) = self.pieces.advance()
        {
            assert!(self.seal.is_none(), "INV-23: a sealed block commits byte {}", piece.start);
            let (offset, length) = (piece.start as u64, piece.length as u64);
            if !piece.with.told {
                self.events.push_back(Event::Answered(piece.ticket, Answer::ok(offset)));
            }
            self.changed(Change::Append { offset, length });
        }
    }

    fn read(&self, args: &[u8]) -> Answer {
        let ReadArgs { offset, length } = match ReadArgs::decode(args) {
            Ok(read) => read,
            Err(e) => return e.into(),
        };
        let committed = match Bug::FileReadsAhead.active() {
            true => self.pieces.tail() as u64,
            false => self.length(),
        };
        if offset >= committed {
            if let Some(FileSeal::Continues(successor)) = &self.seal {
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

    fn file_size(&self) -> Answer {
        let sealed = match &self.seal {
            Some(FileSeal::Continues(successor)) => return moved(self.length(), successor),
            Some(FileSeal::Final) => true,
            None => false,
        };
        Answer { args: vec![sealed as u8], ..Answer::ok(self.length()) }
    }

    /// Whether the block can be mapped, which means that its bytes are final; and their number.
    fn map(&self) -> Answer {
        match &self.seal {
            Some(_) => Answer::ok(self.length()),
            None => Answer::refuse(Status::NotSealed, "the file is not sealed and may grow"),
        }
    }

    fn seal(&mut self, ticket: Ticket) -> Outcome {
        Outcome::Done(match &self.seal {
            Some(FileSeal::Continues(successor)) => moved(self.length(), successor),
            Some(FileSeal::Final) => Answer::ok(self.length()),
            None if !self.pieces.is_settled() || self.is_ending() => busy(self.retry_us()),
            None if self.journal.is_some() => return self.seal_when_stored(ticket),
            None => {
                self.close(FileSeal::Final);
                Answer::ok(self.length())
            }
        })
    }
}

impl Structure for FileBlock {
    fn streaming(&mut self) -> Option<&mut dyn Streaming> {
        Some(self)
    }

    fn growth(&mut self) -> Option<&mut dyn Growth> {
        Some(self)
    }

    fn waits(&mut self) -> Option<&mut dyn Waits> {
        Some(self)
    }

    fn changes(&mut self) -> Option<&mut dyn Changes> {
        Some(self)
    }

    fn content(&self) -> Option<&dyn Content> {
        Some(self)
    }

    fn content_mut(&mut self) -> Option<&mut dyn Content> {
        Some(self)
    }

    fn journaled(&mut self) -> Option<&mut dyn Journaled> {
        Some(self)
    }

    fn movable(&mut self) -> Option<&mut dyn Movable> {
        // A block with a journal does not move, because the journal names the blocks that hold its bytes.
        if self.journal.is_some() { None } else { Some(self) }
    }
}

impl Ops for FileBlock {
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, payload: &[u8]) -> Outcome {
        let (op, args) = (operation.op, operation.args);
        if op.info().auth == Auth::Peer {
            let taken = take_part(self, block, operation, payload);
            return Outcome::Done(taken.unwrap_or_else(|refusal| refusal));
        }
        let changes = op.mutates() != Mutates::No;
        if let Some(answer) = self.cart.refuses(changes) {
            return Outcome::Done(answer);
        }
        let done = match op {
            Op::FileAppend => match self.admit(args, payload.len()) {
                Ok(()) => return self.append(block, operation.ticket, payload),
                Err(refusal) => refusal,
            },
            Op::FileRead => self.read(args),
            Op::FileReadMany => self.read_many(block, args),
            Op::FileSize | Op::FileSeal | Op::FileMap if !args.is_empty() => {
                Answer::refuse(Status::BadFrame, format!("{} takes no arguments", op.name()))
            }
            Op::FileSize => self.file_size(),
            Op::FileSeal => return self.seal(operation.ticket),
            Op::FileMap => self.map(),
            other => panic!("{} is no operation of a file", other.name()),
        };
        Outcome::Done(done)
    }

    fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn bytes_used(&self) -> u64 {
        (self.pieces.tail() + self.pieces.bytes()) as u64
    }
}

impl Streaming for FileBlock {
    fn reserve(
        &mut self,
        _block: &mut Backing,
        operation: &Operation<'_>,
        length: usize,
    ) -> Result<(), Answer> {
        assert_eq!(operation.op, Op::FileAppend, "only an append of a file carries a payload");
        if let Some(answer) = self.cart.refuses(true) {
            return Err(answer);
        }
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

impl Growth for FileBlock {
    fn wants_successor(&mut self) -> bool {
        self.seal.is_none() && !self.is_ending() && self.next.wanted(self.pieces.tail())
    }

    fn successor(&mut self, _block: &mut Backing, _now: Time, successor: Successor) {
        self.next.set(successor, self.pieces.tail());
    }

    fn give_back(&mut self) -> Option<Vec<u8>> {
        let used = self.pieces.tail();
        self.next.give_back(used)
    }

    fn expect_bytes(&mut self, bytes: usize) {
        self.next.expect_bytes(bytes);
    }

    fn is_final(&self) -> Option<bool> {
        match &self.seal {
            None => Some(false),
            Some(_) => self.pieces.is_settled().then_some(true),
        }
    }
}

impl Waits for FileBlock {
    fn tick(&mut self, _block: &mut Backing, _now: Time) {
        // No requests wait here.
        self.cart.wakes();
    }

    fn deadline(&self) -> Option<Time> {
        self.cart.deadline(None)
    }
}

impl Changes for FileBlock {
    fn watch(&mut self, watched: bool) {
        self.watched = watched;
    }
}

impl Content for FileBlock {
    fn snapshot(&self, _range: (u64, u64)) -> Snapshot {
        Snapshot::plain(self.pieces.committed())
    }

    fn rests(&self) -> Rest {
        match &self.seal {
            _ if !self.pieces.is_settled() || self.is_ending() || !self.cart.stays() => Rest::Busy,
            Some(_) => Rest::Final(self.pieces.committed()),
            None => Rest::Open(self.pieces.committed()),
        }
    }
}
