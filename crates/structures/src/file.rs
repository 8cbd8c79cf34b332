//! A block of a file: bytes that are only ever appended.
//!
//! The block is a committed prefix, which reads see, and behind it pieces that are still being
//! filled or wait for those before them. Offsets are given in the order of reservation and have no
//! gaps (INV-23): when a piece is given up, the later ones move down before anybody was told where
//! they are.

mod many;

use crate::{Answer, Outcome, Payload, Structure, Successor, Ticket, large_limit};
use honeycomb_block::Backing;
use honeycomb_types::Bug;
use honeycomb_types::limits::FRAME_MAX;
use honeycomb_wire::data::ReadArgs;
use honeycomb_wire::{Op, Status};
use std::collections::VecDeque;

/// Delay told when the end of other appends must be awaited, in microseconds.
const RETRY_FILLS_US: u64 = 200;
/// Delay told while the controller finds the next block, in microseconds.
const RETRY_SUCCESSOR_US: u64 = 300;
/// Pieces that may be outstanding at a time.
const PIECES_MAX: usize = 4096;

/// Bytes behind the committed ones.
struct Piece {
    ticket: Ticket,
    start: usize,
    length: usize,
    filled: usize,
    /// Committed by its sender: becomes visible when everything before it has.
    complete: bool,
    /// The sender has its answer already. Only a planted bug does that.
    told: bool,
}

/// Where the block's successor is to come from.
enum Next {
    Unknown,
    Ready(Vec<u8>),
    Denied {
        status: Status,
        message: String,
        /// Ask again when the tail has reached this.
        again_at: usize,
    },
}

/// How the block was closed.
enum Seal {
    /// Full: the file goes on in the block that these arguments of `Moved` name.
    Continues(Vec<u8>),
    /// The file itself was sealed.
    Final,
}

/// One block of a file. Offsets are relative to the block.
pub struct FileBlock {
    size: usize,
    committed: usize,
    /// In order of offset, without gaps, the first at `committed`.
    pieces: VecDeque<Piece>,
    /// Recent largest append; decays by a sixteenth with every smaller one.
    largest: usize,
    asked: bool,
    next: Next,
    seal: Option<Seal>,
    seal_told: bool,
    completed: VecDeque<(Ticket, Answer)>,
}

impl FileBlock {
    /// An empty block.
    pub fn new(block_size: usize) -> FileBlock {
        FileBlock {
            size: block_size,
            committed: 0,
            pieces: VecDeque::new(),
            largest: 0,
            asked: false,
            next: Next::Unknown,
            seal: None,
            seal_told: false,
            completed: VecDeque::new(),
        }
    }

    fn tail(&self) -> usize {
        self.pieces.back().map_or(self.committed, |piece| piece.start + piece.length)
    }

    /// `Moved` to where the file goes on.
    fn moved(&self, successor: &[u8]) -> Answer {
        let (value, args) = (self.committed as u64, successor.to_vec());
        Answer { status: Status::Moved, value, args, payload: Payload::None }
    }

    /// Whether an append of `length` bytes can be placed; otherwise what to answer.
    fn admit(&mut self, args: &[u8], length: usize) -> Result<(), Answer> {
        if !args.is_empty() {
            return Err(Answer::refuse(Status::BadFrame, "FileAppend takes no arguments"));
        }
        match &self.seal {
            Some(Seal::Continues(successor)) => return Err(self.moved(successor)),
            Some(Seal::Final) => return Err(Answer::refuse(Status::Sealed, "the file is sealed")),
            None => {}
        }
        let limit = large_limit(self.size);
        if length > limit {
            let message =
                format!("an append of {length} bytes is over the limit of {limit} (block / 8)");
            return Err(Answer::refuse(Status::ValueTooLarge, message));
        }
        self.largest = length.max(self.largest - self.largest.div_ceil(16));
        if self.pieces.len() >= PIECES_MAX {
            return Err(busy(RETRY_FILLS_US));
        }
        if length > self.size - self.tail() {
            return Err(self.overflow());
        }
        Ok(())
    }

    /// What an append is answered that this block cannot take. Seals the block when it can.
    fn overflow(&mut self) -> Answer {
        if !self.pieces.is_empty() {
            return busy(RETRY_FILLS_US);
        }
        match std::mem::replace(&mut self.next, Next::Unknown) {
            Next::Unknown => busy(RETRY_SUCCESSOR_US),
            Next::Ready(successor) => {
                let answer = self.moved(&successor);
                self.seal = Some(Seal::Continues(successor));
                answer
            }
            Next::Denied { status, message, .. } => {
                let answer = Answer::refuse(status, message.clone());
                self.next = Next::Denied { status, message, again_at: 0 };
                answer
            }
        }
    }

    fn place(&mut self, ticket: Ticket, length: usize) -> usize {
        let start = self.tail();
        let piece = Piece { ticket, start, length, filled: 0, complete: false, told: false };
        self.pieces.push_back(piece);
        start
    }

    fn append(&mut self, block: &mut Backing, ticket: Ticket, payload: &[u8]) -> Outcome {
        if payload.is_empty() {
            return Outcome::Done(Answer::ok(self.committed as u64));
        }
        let start = self.tail();
        block.slice_mut(start..start + payload.len()).copy_from_slice(payload);
        if self.pieces.is_empty() {
            self.committed += payload.len();
            return Outcome::Done(Answer::ok(start as u64));
        }
        self.place(ticket, payload.len());
        let piece = self.pieces.back_mut().expect("it was just placed");
        (piece.filled, piece.complete) = (payload.len(), true);
        if Bug::AckBeforeEffect.active() {
            piece.told = true;
            return Outcome::Done(Answer::ok(start as u64));
        }
        Outcome::Parked
    }

    /// Commits the complete pieces at the front; their answers go to `completed`.
    fn advance(&mut self) {
        while self.pieces.front().is_some_and(|piece| piece.complete) {
            let piece = self.pieces.pop_front().expect("the front was just seen");
            assert_eq!(piece.start, self.committed, "INV-23: offsets have no gaps");
            assert_eq!(piece.filled, piece.length, "INV-07: acknowledged only when complete");
            self.committed += piece.length;
            if !piece.told {
                self.completed.push_back((piece.ticket, Answer::ok(piece.start as u64)));
            }
        }
    }

    fn read(&self, args: &[u8]) -> Answer {
        let ReadArgs { offset, length } = match ReadArgs::decode(args) {
            Ok(read) => read,
            Err(e) => return e.into(),
        };
        let committed = self.committed as u64;
        if offset >= committed {
            if let Some(Seal::Continues(successor)) = &self.seal {
                return self.moved(successor);
            }
            return Answer::ok(committed);
        }
        let length = (length as u64).min(FRAME_MAX as u64).min(committed - offset);
        if length == 0 {
            return Answer::ok(committed);
        }
        // INV-23: a read sees committed bytes only; `length` was cut to them.
        let range = offset as usize..(offset + length) as usize;
        Answer::ok(committed).with(Payload::Block(range))
    }

    fn file_size(&self) -> Answer {
        let sealed = match &self.seal {
            Some(Seal::Continues(successor)) => return self.moved(successor),
            Some(Seal::Final) => true,
            None => false,
        };
        Answer { args: vec![sealed as u8], ..Answer::ok(self.committed as u64) }
    }

    fn seal(&mut self) -> Answer {
        match &self.seal {
            Some(Seal::Continues(successor)) => return self.moved(successor),
            Some(Seal::Final) => {}
            None if !self.pieces.is_empty() => return busy(RETRY_FILLS_US),
            None => self.seal = Some(Seal::Final),
        }
        Answer::ok(self.committed as u64)
    }

    /// Free bytes below which the block wants its successor: the high mark's rest, twice the
    /// largest recent append, and an eighth for what arrives until the controller has answered.
    fn mark(&self) -> usize {
        (self.size / 20).max(2 * self.largest).max(self.size / 8)
    }

    fn piece_mut(&mut self, ticket: Ticket) -> &mut Piece {
        let mut pieces = self.pieces.iter_mut();
        pieces
            .find(|piece| piece.ticket == ticket && !piece.complete)
            .expect("the shard names reservations that are open")
    }
}

impl Structure for FileBlock {
    fn apply(
        &mut self,
        block: &mut Backing,
        ticket: Ticket,
        op: Op,
        args: &[u8],
        payload: &[u8],
    ) -> Outcome {
        let done = match op {
            Op::FileAppend => match self.admit(args, payload.len()) {
                Ok(()) => return self.append(block, ticket, payload),
                Err(refusal) => refusal,
            },
            Op::FileRead => self.read(args),
            Op::FileReadMany => self.read_many(block, args),
            Op::FileSize | Op::FileSeal if !args.is_empty() => {
                Answer::refuse(Status::BadFrame, format!("{} takes no arguments", op.name()))
            }
            Op::FileSize => self.file_size(),
            Op::FileSeal => self.seal(),
            other => panic!("{} is no operation of a file", other.name()),
        };
        Outcome::Done(done)
    }

    fn reserve(
        &mut self,
        _block: &mut Backing,
        ticket: Ticket,
        op: Op,
        args: &[u8],
        length: usize,
    ) -> Result<(), Answer> {
        assert_eq!(op, Op::FileAppend, "only an append of a file carries a payload");
        self.admit(args, length)?;
        self.place(ticket, length);
        Ok(())
    }

    fn fill<'b>(&mut self, block: &'b mut Backing, ticket: Ticket) -> &'b mut [u8] {
        let piece = self.piece_mut(ticket);
        block.slice_mut(piece.start + piece.filled..piece.start + piece.length)
    }

    fn filled(&mut self, ticket: Ticket, n: usize) {
        let piece = self.piece_mut(ticket);
        piece.filled += n;
        assert!(piece.filled <= piece.length, "more was filled than was reserved");
    }

    fn commit(&mut self, _block: &mut Backing, ticket: Ticket) -> Outcome {
        let piece = self.piece_mut(ticket);
        assert_eq!(piece.filled, piece.length, "INV-07: only a complete append is committed");
        piece.complete = true;
        self.advance();
        // Everything before it has been answered by now, so its own answer, if it is there, is the
        // first of those that this commit released.
        let own = self.completed.iter().position(|(t, _)| *t == ticket);
        match own.and_then(|i| self.completed.remove(i)) {
            Some((_, answer)) => Outcome::Done(answer),
            None => Outcome::Parked,
        }
    }

    fn abort(&mut self, block: &mut Backing, ticket: Ticket) {
        let at = self.pieces.iter().position(|p| p.ticket == ticket && !p.complete);
        let at = at.expect("the shard aborts reservations that are open");
        let tail = self.tail();
        let gone = self.pieces.remove(at).expect("the position was just found");
        let end = gone.start + gone.length;
        // INV-23: nobody knows the later offsets yet, so closing the gap changes no answer. No pin
        // reads these bytes: pins are for committed ones.
        block.copy_within(end..tail, gone.start);
        for piece in self.pieces.range_mut(at..) {
            piece.start -= gone.length;
        }
        self.advance();
    }

    fn completed(&mut self) -> Option<(Ticket, Answer)> {
        self.completed.pop_front()
    }

    fn bytes_used(&self) -> u64 {
        (self.tail() + self.pieces.len() * size_of::<Piece>()) as u64
    }

    fn wants_successor(&mut self) -> bool {
        let again = match &self.next {
            Next::Unknown => !self.asked,
            Next::Ready(_) => false,
            Next::Denied { again_at, .. } => !self.asked && self.tail() >= *again_at,
        };
        if self.seal.is_some() || !again || self.size - self.tail() >= self.mark() {
            return false;
        }
        self.asked = true;
        true
    }

    fn set_successor(&mut self, successor: Successor) {
        self.asked = false;
        self.next = match successor {
            Successor::Ready(args) => Next::Ready(args),
            // Asked again when an append does not fit, or every 1/64 of the block until then: often
            // enough to recover before that, not so often that a full cluster is flooded.
            Successor::Denied(status, message) => {
                Next::Denied { status, message, again_at: self.tail() + self.size / 64 }
            }
        };
    }

    fn sealed(&mut self) -> Option<(u64, bool)> {
        let seal = self.seal.as_ref()?;
        if std::mem::replace(&mut self.seal_told, true) {
            return None;
        }
        Some((self.committed as u64, matches!(seal, Seal::Final)))
    }
}

fn busy(delay_us: u64) -> Answer {
    Answer { value: delay_us, ..Answer::refuse(Status::Busy, "") }
}
