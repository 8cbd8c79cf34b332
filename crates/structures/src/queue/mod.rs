//! A queue block: items in the order in which they were put, taken from the front.
//!
//! The bytes of the items grow from the start of the block. A directory of the items' ends grows from the end
//! of the block. So neighbouring items are one range, and the block contains its own index. Space is reused
//! only when the block is empty and has no readers; then the block starts again empty. A block that fills up
//! is sealed and a successor accepts the following items; a block that is sealed and empty is `Drained`.
//!
//! A bounded queue is bounded at its tail (INV-22), by the sum of three amounts: the tail's content, the room
//! promised to arriving payloads, and the last reported content of the earlier blocks, which can only have
//! shrunk since. So the bound is never exceeded, and a put may be refused for a moment longer than necessary.
//! Files: `mod.rs` decides which requests a block serves while it migrates; `segment.rs` has the rules;
//! `items.rs` has the items and their directory; `deliveries.rs` the progress of the consumers, and
//! `reserved.rs` the items that were delivered and not acknowledged; `bounds.rs` the bound; `waiters.rs`
//! requests that wait for items or room; `segment/below.rs` blocks in lower tiers; `segment/large.rs` items
//! that are lists of extents in blocks of their own; `segment/moving.rs` migrations to another server.

mod arrivals;
mod bounds;
mod deliveries;
mod items;
mod reserved;
mod segment;
mod waiters;

use crate::adopting::Adopting;
use crate::migration::Migrating;
use crate::moves::Movable;
use crate::{
    Adopted, Adopts, Answer, Capacity, CapacityRequest, Changes, Content, Enlarge, Event, Growth,
    LowerTierReads, Operation, Ops, Outcome, Rest, Snapshot, Streaming, Structure, Successor,
    Ticket, Waits,
};
pub use bounds::QueueBounds;
use honeycomb_block::Backing;
use honeycomb_types::{Marks, Time};
use honeycomb_wire::{Auth, Mutates, Op, Status};
use segment::{QueueSegment, large};

/// One block of a queue.
pub struct QueueBlock {
    segment: Migrating<QueueSegment>,
    /// Puts whose extents are being adopted.
    adopting: Adopting,
}

impl QueueBlock {
    /// An empty block. `first` if no block is before it.
    pub fn new(block_size: usize, bounds: QueueBounds, first: bool) -> QueueBlock {
        let capacity = CapacityRequest::new(block_size, block_size);
        QueueBlock::opened(capacity, bounds, first, Marks::default(), 0)
    }

    /// As `new`, with the first capacity of the block, and the marks of its prefix. `move_id` is the move
    /// that will fill the block; 0 for none.
    pub fn opened(
        capacity: CapacityRequest,
        bounds: QueueBounds,
        first: bool,
        marks: Marks,
        move_id: u64,
    ) -> QueueBlock {
        let segment = QueueSegment::new(capacity, bounds, first, marks);
        QueueBlock { segment: Migrating::new(segment, move_id), adopting: Adopting::default() }
    }

    /// The work after every change, unless the block is frozen.
    fn settle(&mut self, block: &mut Backing, now: Time) {
        if self.segment.is_frozen() {
            return;
        }
        let keeps_layout = self.segment.is_sending();
        self.segment.content_mut().settle(block, now, keeps_layout);
    }
}

/// The segment for a put. Its items use the whole capacity, unless the block is being sent.
fn for_put<'a>(
    segment: &'a mut Migrating<QueueSegment>,
    block: &mut Backing,
) -> Result<&'a mut QueueSegment, Answer> {
    let keeps_layout = segment.is_sending();
    let segment = segment.serve(true)?;
    if !keeps_layout {
        segment.use_capacity(block);
    }
    Ok(segment)
}

impl Structure for QueueBlock {
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

    fn adopts(&mut self) -> Option<&mut dyn Adopts> {
        Some(self)
    }

    fn content(&self) -> Option<&dyn Content> {
        Some(self)
    }

    fn content_mut(&mut self) -> Option<&mut dyn Content> {
        Some(self)
    }

    fn movable(&mut self) -> Option<&mut dyn Movable> {
        Some(&mut self.segment)
    }
}

impl Ops for QueueBlock {
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, payload: &[u8]) -> Outcome {
        let args = operation.args;
        if operation.op.info().auth == Auth::Peer {
            let received = self.segment.receive(block, operation, payload);
            return Outcome::Done(received.unwrap_or_else(|refusal| refusal));
        }
        let segment = match operation.op {
            Op::QueuePut | Op::QueuePutExtents => for_put(&mut self.segment, block),
            op => self.segment.serve(op.mutates() != Mutates::No),
        };
        let segment = match segment {
            Ok(segment) => segment,
            Err(answer) => return Outcome::Done(answer),
        };
        let outcome = match operation.op {
            Op::QueuePut => segment.put(block, operation, payload),
            Op::QueueGet => match segment.get(block, operation) {
                Ok(outcome) => outcome,
                Err(refusal) => Outcome::Done(refusal),
            },
            Op::QueuePutExtents => {
                match large::begin(&mut self.adopting, segment, block, operation, payload) {
                    Ok(()) => Outcome::Parked,
                    Err(refusal) => Outcome::Done(refusal),
                }
            }
            Op::QueueGetExtents => {
                let named = large::reserve(segment, block, operation);
                Outcome::Done(named.unwrap_or_else(|refusal| refusal))
            }
            Op::QueuePeek | Op::QueueLists => {
                // Both change nothing, and the answer of a peek is a range of the block: no settling here.
                let found = match operation.op {
                    Op::QueuePeek => segment.peek(block, args),
                    _ => large::lists(segment, block, args),
                };
                return Outcome::Done(found.unwrap_or_else(|refusal| refusal));
            }
            Op::QueueAck => {
                let settled = segment.acknowledge(block, operation.now, args);
                Outcome::Done(settled.unwrap_or_else(|refusal| refusal))
            }
            Op::QueueClose if !args.is_empty() => {
                let text = format!("{} takes no arguments", operation.op.name());
                Outcome::Done(Answer::refuse(Status::BadFrame, text))
            }
            Op::QueueLength => return Outcome::Done(segment.counts(args)),
            Op::QueueClose => Outcome::Done(segment.close_queue()),
            other => panic!("{} is no operation of a queue", other.name()),
        };
        self.settle(block, operation.now);
        outcome
    }

    fn event(&mut self) -> Option<Event> {
        self.segment.content_mut().events.pop().or_else(|| self.adopting.event())
    }

    fn bytes_used(&self) -> u64 {
        self.segment.content().bytes_used() + self.adopting.bytes() as u64
    }
}

impl Streaming for QueueBlock {
    fn reserve(
        &mut self,
        block: &mut Backing,
        operation: &Operation<'_>,
        length: usize,
    ) -> Result<(), Answer> {
        match operation.op {
            Op::QueuePut => {}
            Op::QueuePutExtents => return Err(large::refuse_long(length)),
            other => panic!("{} carries no payload", other.name()),
        }
        let promised = for_put(&mut self.segment, block)?.promise(operation, length);
        if promised.is_err() {
            // The operation may have sealed the block.
            self.settle(block, operation.now);
        }
        promised
    }

    fn fill<'b>(&mut self, block: &'b mut Backing, ticket: Ticket) -> &'b mut [u8] {
        block.slice_mut(self.segment.content_mut().items.rest(ticket))
    }

    fn filled(&mut self, ticket: Ticket, n: usize) {
        self.segment.content_mut().items.filled(ticket, n);
    }

    fn commit(&mut self, block: &mut Backing, now: Time, ticket: Ticket) -> Outcome {
        let segment = self.segment.content_mut();
        segment.items.complete(ticket);
        segment.advance(block);
        self.settle(block, now);
        Outcome::Parked
    }

    fn abort(&mut self, block: &mut Backing, now: Time, ticket: Ticket) {
        let segment = self.segment.content_mut();
        segment.items.abort(block, ticket);
        segment.advance(block);
        self.settle(block, now);
    }
}

impl Enlarge for QueueBlock {
    fn wants_capacity(&mut self, expected: usize) -> Option<usize> {
        let segment = self.segment.content_mut();
        let used = segment.items.used();
        segment.tail.wants_capacity(used, expected)
    }

    fn capacity(&mut self, _block: &mut Backing, _now: Time, answer: Capacity) {
        // The items use the capacity at the next put, because the block may be in a lower tier now.
        self.segment.content_mut().tail.set_capacity(answer);
    }
}

impl Growth for QueueBlock {
    fn wants_successor(&mut self) -> bool {
        let segment = self.segment.content_mut();
        segment.tail.wants_successor(segment.items.used())
    }

    fn successor(&mut self, block: &mut Backing, now: Time, successor: Successor) {
        let segment = self.segment.content_mut();
        segment.tail.request().set(successor, segment.items.used());
        self.settle(block, now);
    }

    fn ahead(&mut self, block: &mut Backing, now: Time, items: u64, bytes: u64) {
        self.segment.content_mut().bound.set_ahead(items, bytes);
        self.settle(block, now);
    }

    fn taken_received(&mut self, block: &mut Backing, now: Time) {
        self.segment.content_mut().bound.report_received();
        self.settle(block, now);
    }

    fn give_back(&mut self) -> Option<Vec<u8>> {
        let segment = self.segment.content_mut();
        segment.tail.request().give_back(segment.items.used())
    }

    fn expect_bytes(&mut self, bytes: usize) {
        self.segment.content_mut().tail.request().expect_bytes(bytes);
    }

    fn is_final(&self) -> Option<bool> {
        let segment = self.segment.content();
        match segment.tail.is_open() {
            true => Some(false),
            false => segment.items.is_settled().then_some(true),
        }
    }
}

impl Waits for QueueBlock {
    fn cancel(&mut self, ticket: Ticket) -> bool {
        self.segment.content_mut().waiters.cancel(ticket)
    }

    fn tick(&mut self, block: &mut Backing, now: Time) {
        self.segment.woken();
        for ready in self.adopting.ready(now) {
            self.adopted(block, now, ready);
        }
        if self.segment.is_frozen() {
            return;
        }
        let keeps_layout = self.segment.is_sending();
        self.segment.content_mut().expire(block, now, keeps_layout);
    }

    fn deadline(&self) -> Option<Time> {
        let segment = self.segment.content();
        let due = [segment.waiters.due(), segment.deliveries.due()].into_iter().flatten().min();
        self.segment.deadline(due).into_iter().chain(self.adopting.due()).min()
    }
}

impl Adopts for QueueBlock {
    fn adopted(&mut self, block: &mut Backing, now: Time, adopted: Adopted) {
        let QueueBlock { segment, adopting } = self;
        let ticket = adopted.ticket;
        adopting.complete(now, adopted, |put, stored| {
            let fixed = segment.is_sending();
            large::store(for_put(segment, block)?, block, ticket, &put, stored, fixed)
        });
        self.settle(block, now);
    }
}

impl Content for QueueBlock {
    fn snapshot(&self, _range: (u64, u64)) -> Snapshot {
        self.segment.content().snapshot()
    }

    fn rests(&self) -> Rest {
        let busy = !self.segment.is_resident() || self.adopting.waits();
        if busy { Rest::Busy } else { self.segment.content().rests() }
    }

    fn lower_tier_reads(&self) -> Option<&dyn LowerTierReads> {
        Some(self.segment.content())
    }
}
