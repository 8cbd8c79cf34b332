//! A block of a file: append-only bytes. `file/segment.rs` has its content; this file decides which requests
//! it serves while it migrates.

mod journal;
mod segment;

use crate::migration::Migrating;
use crate::moves::Movable;
use crate::{
    Answer, Capacity, CapacityRequest, Changes, Content, Enlarge, Event, Growth, Journaled,
    Operation, Ops, Outcome, Rest, Snapshot, Streaming, Structure, Successor, Ticket, Waits,
};
use honeycomb_block::Backing;
use honeycomb_types::{Marks, Time};
use honeycomb_wire::{Auth, Mutates, Op, Status};
use segment::FileSegment;

/// One block of a file.
pub struct FileBlock {
    segment: Migrating<FileSegment>,
}

impl FileBlock {
    /// An empty block.
    pub fn new(block_size: usize) -> FileBlock {
        FileBlock::opened(CapacityRequest::new(block_size, block_size), Marks::default(), 0)
    }

    /// As `new`, with the first capacity of the block, and the marks of its prefix. `move_id` is the move
    /// that will fill the block; 0 for none.
    pub fn opened(capacity: CapacityRequest, marks: Marks, move_id: u64) -> FileBlock {
        FileBlock { segment: Migrating::new(FileSegment::new(capacity, marks), move_id) }
    }
}

impl Structure for FileBlock {
    fn streaming(&mut self) -> Option<&mut dyn Streaming> {
        Some(self)
    }

    fn growth(&mut self) -> Option<&mut dyn Growth> {
        Some(self)
    }

    fn enlarge(&mut self) -> Option<&mut dyn Enlarge> {
        Some(self)
    }

    fn waits(&mut self) -> Option<&mut dyn Waits> {
        Some(self)
    }

    fn changes(&mut self) -> Option<&mut dyn Changes> {
        Some(&mut self.segment.content_mut().events)
    }

    fn content(&self) -> Option<&dyn Content> {
        Some(self)
    }

    fn content_mut(&mut self) -> Option<&mut dyn Content> {
        Some(self)
    }

    fn journaled(&mut self) -> Option<&mut dyn Journaled> {
        Some(self.segment.content_mut())
    }

    fn movable(&mut self) -> Option<&mut dyn Movable> {
        // A block with a journal does not move, because the journal names the blocks that hold its bytes.
        let journal = self.segment.content().journal.is_kept();
        if journal { None } else { Some(&mut self.segment) }
    }
}

impl Ops for FileBlock {
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, payload: &[u8]) -> Outcome {
        let (op, args) = (operation.op, operation.args);
        if op.info().auth == Auth::Peer {
            let received = self.segment.receive(block, operation, payload);
            return Outcome::Done(received.unwrap_or_else(|refusal| refusal));
        }
        let segment = match self.segment.serve(op.mutates() != Mutates::No) {
            Ok(segment) => segment,
            Err(answer) => return Outcome::Done(answer),
        };
        let done = match op {
            Op::FileAppend => match segment.admit(args, payload.len()) {
                Ok(()) => return segment.append(block, operation.ticket, payload),
                Err(refusal) => refusal,
            },
            Op::FileRead => segment.read(args),
            Op::FileReadMany => segment.read_many(block, args),
            Op::FileSize | Op::FileSeal | Op::FileMap | Op::FileContinue if !args.is_empty() => {
                Answer::refuse(Status::BadFrame, format!("{} takes no arguments", op.name()))
            }
            Op::FileSize => segment.file_size(),
            Op::FileSeal => return segment.seal(operation.ticket),
            Op::FileMap => segment.map(),
            Op::FileContinue => segment.pass_on(),
            other => panic!("{} is no operation of a file", other.name()),
        };
        Outcome::Done(done)
    }

    fn event(&mut self) -> Option<Event> {
        self.segment.content_mut().events.pop()
    }

    fn bytes_used(&self) -> u64 {
        self.segment.content().bytes_used()
    }
}

impl Streaming for FileBlock {
    fn reserve(
        &mut self,
        block: &mut Backing,
        operation: &Operation<'_>,
        length: usize,
    ) -> Result<(), Answer> {
        assert_eq!(operation.op, Op::FileAppend, "only an append of a file carries a payload");
        self.segment.serve(true)?.reserve(block, operation, length)
    }

    fn fill<'b>(&mut self, block: &'b mut Backing, ticket: Ticket) -> &'b mut [u8] {
        self.segment.content_mut().fill(block, ticket)
    }

    fn filled(&mut self, ticket: Ticket, n: usize) {
        self.segment.content_mut().filled(ticket, n);
    }

    fn commit(&mut self, block: &mut Backing, now: Time, ticket: Ticket) -> Outcome {
        self.segment.content_mut().commit(block, now, ticket)
    }

    fn abort(&mut self, block: &mut Backing, now: Time, ticket: Ticket) {
        self.segment.content_mut().abort(block, now, ticket);
    }
}

impl Enlarge for FileBlock {
    fn wants_capacity(&mut self, expected: usize) -> Option<usize> {
        let segment = self.segment.content_mut();
        let used = segment.used();
        segment.tail.wants_capacity(used, expected)
    }

    fn capacity(&mut self, _block: &mut Backing, _now: Time, answer: Capacity) {
        self.segment.content_mut().tail.set_capacity(answer);
    }
}

impl Growth for FileBlock {
    fn wants_successor(&mut self) -> bool {
        let segment = self.segment.content_mut();
        let used = segment.used();
        !segment.journal.is_ending() && segment.tail.wants_successor(used)
    }

    fn successor(&mut self, _block: &mut Backing, _now: Time, successor: Successor) {
        let segment = self.segment.content_mut();
        let used = segment.used();
        segment.tail.request().set(successor, used);
    }

    fn give_back(&mut self) -> Option<Vec<u8>> {
        let segment = self.segment.content_mut();
        let used = segment.used();
        segment.tail.request().give_back(used)
    }

    fn expect_bytes(&mut self, bytes: usize) {
        self.segment.content_mut().tail.request().expect_bytes(bytes);
    }

    fn is_final(&self) -> Option<bool> {
        let segment = self.segment.content();
        match segment.tail.is_open() {
            true => Some(false),
            false => (!segment.is_arriving()).then_some(true),
        }
    }
}

impl Waits for FileBlock {
    fn tick(&mut self, _block: &mut Backing, _now: Time) {
        // No requests wait here.
        self.segment.woken();
    }

    fn deadline(&self) -> Option<Time> {
        self.segment.deadline(None)
    }
}

impl Content for FileBlock {
    fn snapshot(&self, _range: (u64, u64)) -> Snapshot {
        Snapshot::plain(self.segment.content().length() as usize)
    }

    fn rests(&self) -> Rest {
        if self.segment.is_resident() { self.segment.content().rests() } else { Rest::Busy }
    }
}
