//! The content of a queue's block: its items, its consumers, the requests that wait, and its seal.

mod below;
pub(super) mod large;
mod moving;

use super::bounds::{QueueBounds, TailBound};
use super::deliveries::Deliveries;
use super::items::{ItemLog, PLACE};
use super::waiters::{Putter, Waiters};
use crate::capacity::CapacityRequest;
use crate::events::Events;
use crate::growth::{Seal, Tail};
use crate::{Answer, Bytes, Event, Operation, Outcome, Payload, Ticket, busy, large_limit, moved};
use honeycomb_block::Backing;
use honeycomb_types::limits::{QUEUE_BATCH_MAX, RESERVE_MAX_MS};
use honeycomb_types::{Bug, Marks, Time};
use honeycomb_wire::Status;
use honeycomb_wire::notice::Change;
use honeycomb_wire::queue::{AckAction, AckArgs, GetArgs, lengths};
use std::time::Duration;

/// Retry delay while arriving payloads must be complete first, in microseconds.
const RETRY_FILLS_US: u64 = 200;
/// Retry delay while a new tail does not know the content of the earlier blocks, in microseconds.
const RETRY_AHEAD_US: u64 = 300;
/// Retry delay of a large payload that has to wait for room, in microseconds: the block does not store such a
/// payload while it waits.
const RETRY_LARGE_US: u64 = 2000;
/// Most bytes of payloads that wait for room at one block, besides an eighth of it. They use memory outside
/// of the blocks that admission does not count: a get that would make room must not be refused because of
/// them.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// A segment of a queue, which fills one block.
pub(super) struct QueueSegment {
    pub items: ItemLog,
    pub deliveries: Deliveries,
    pub waiters: Waiters,
    pub bound: TailBound,
    pub tail: Tail,
    pub events: Events,
    /// Whether the block has reported that it is drained.
    drained: bool,
}

impl QueueSegment {
    /// An empty segment. `first` if no block is before it.
    pub fn new(
        capacity: CapacityRequest,
        bounds: QueueBounds,
        first: bool,
        marks: Marks,
    ) -> QueueSegment {
        QueueSegment {
            items: ItemLog::new(capacity.bytes()),
            deliveries: Deliveries::default(),
            waiters: Waiters::default(),
            bound: TailBound::new(bounds, first),
            tail: Tail::new(capacity, marks),
            events: Events::default(),
            drained: false,
        }
    }

    /// The lengths of a put's items, if the block and the queue could ever accept them.
    fn admit(&mut self, args: &[u8], length: usize) -> Result<Vec<u32>, Answer> {
        let lengths = lengths(args, length)?;
        self.tail_open()?;
        let (cost, limit) =
            (length + PLACE * lengths.len(), large_limit(self.tail.capacity.most()));
        if cost > limit {
            let text = format!(
                "{} with {length} bytes {} over the limit of {} (block / 8, less 4 for each \
                 item)",
                if lengths.len() == 1 {
                    "an item".into()
                } else {
                    format!("{} items", lengths.len())
                },
                if lengths.len() == 1 { "is" } else { "are" },
                limit.saturating_sub(PLACE * lengths.len())
            );
            return Err(Answer::refuse(Status::ValueTooLarge, text));
        }
        self.bound.admit(lengths.len() as u64, length as u64)?;
        self.tail.request().wrote(cost);
        Ok(lengths)
    }

    /// Refuses a put at a sealed block.
    fn tail_open(&self) -> Result<(), Answer> {
        match self.tail.seal() {
            Some(Seal::Continues(successor)) => Err(moved(self.items.through(), successor)),
            Some(Seal::Final) => Err(closed()),
            None => Ok(()),
        }
    }

    /// Whether the bound has room for a put that arrives now, behind the waiting ones; `None` if that is not
    /// known yet.
    fn admits(&self, items: u64, bytes: u64) -> Option<bool> {
        Some(self.within_bound(items, bytes)? && !self.waiters.anybody_puts())
    }

    fn within_bound(&self, items: u64, bytes: u64) -> Option<bool> {
        self.bound.within_bound(&self.items, &self.deliveries, (items, bytes))
    }

    /// Makes room in the block; otherwise returns the answer. The block is sealed if possible.
    fn make_room(&mut self, lengths: &[u32], bytes: usize) -> Result<(), Answer> {
        if self.items.is_full() {
            return Err(busy(RETRY_FILLS_US));
        }
        let needed = bytes + PLACE * lengths.len();
        if needed <= self.items.size() - self.items.used() {
            return Ok(());
        }
        if self.items.size() < self.tail.capacity.bytes() {
            // A larger capacity is used when the block has been sent.
            return Err(busy(RETRY_FILLS_US));
        }
        if let Some(answer) = self.tail.capacity.refuse(needed) {
            return Err(answer);
        }
        if !self.items.is_settled() {
            return Err(busy(RETRY_FILLS_US));
        }
        let successor = self.tail.request().take()?;
        let answer = moved(self.items.through(), &successor);
        self.close(Seal::Continues(successor));
        Err(answer)
    }

    /// Lets the items use the whole capacity; before a put, of a block whose bytes may move.
    pub fn use_capacity(&mut self, block: &mut Backing) {
        let capacity = self.tail.capacity.bytes();
        if self.items.size() < capacity {
            self.items.enlarge(block, capacity);
        }
    }

    /// Puts items from a whole payload.
    pub fn put(
        &mut self,
        block: &mut Backing,
        operation: &Operation<'_>,
        payload: &[u8],
    ) -> Outcome {
        let lengths = match self.admit(operation.args, payload.len()) {
            Ok(lengths) => lengths,
            Err(refusal) => return Outcome::Done(refusal),
        };
        let room = self.admits(lengths.len() as u64, payload.len() as u64);
        if room != Some(true) {
            return self.wait_to_put(operation, lengths, payload, room.is_none());
        }
        match self.make_room(&lengths, payload.len()) {
            Ok(()) => self.store(block, operation.ticket, &lengths, payload),
            Err(answer) => Outcome::Done(answer),
        }
    }

    fn wait_to_put(
        &mut self,
        operation: &Operation<'_>,
        lengths: Vec<u32>,
        payload: &[u8],
        unknown: bool,
    ) -> Outcome {
        if operation.wait_until <= operation.now {
            return Outcome::Done(if unknown { busy(RETRY_AHEAD_US) } else { self.bound.full() });
        }
        let (ticket, until) = (operation.ticket, operation.wait_until);
        let putter = Putter { lengths, payload: payload.into() };
        let most = large_limit(self.tail.capacity.most()).min(WAITING_BYTES_MAX);
        match self.waiters.add_putter(ticket, until, putter, most) {
            true => Outcome::Parked,
            // Other waiting payloads use all the memory for waiting.
            false => Outcome::Done(busy(RETRY_LARGE_US)),
        }
    }

    /// Makes room for a payload that will arrive piece by piece. Such a payload never waits.
    pub fn promise(&mut self, operation: &Operation<'_>, length: usize) -> Result<(), Answer> {
        let lengths = self.admit(operation.args, length)?;
        match self.admits(lengths.len() as u64, length as u64) {
            Some(true) => self.make_room(&lengths, length)?,
            None => return Err(busy(RETRY_AHEAD_US)),
            Some(false) if operation.wait_until > operation.now => {
                return Err(busy(RETRY_LARGE_US));
            }
            Some(false) => return Err(self.bound.full()),
        }
        self.items.promise(operation.ticket, length, lengths);
        Ok(())
    }

    /// Stores items, for which there is room.
    fn store(
        &mut self,
        block: &mut Backing,
        ticket: Ticket,
        lengths: &[u32],
        payload: &[u8],
    ) -> Outcome {
        match self.items.append(block, ticket, lengths, payload) {
            None => Outcome::Parked,
            Some(first) => {
                self.entered(first, lengths.len());
                Outcome::Done(Answer::ok(first))
            }
        }
    }

    /// Items are in the directory.
    fn entered(&mut self, first: u64, items: usize) {
        assert!(self.tail.is_open(), "INV-22: item {first} is put into a sealed block");
        self.events.changed(|| Change::Data { items: items as u64 });
    }

    /// Adds the complete payloads at the front to the directory and answers them.
    pub fn advance(&mut self, block: &mut Backing) {
        while let Some((piece, first)) = self.items.advance(block) {
            self.entered(first, piece.with.len());
            self.events.answer(piece.ticket, Answer::ok(first));
        }
    }

    /// Delivers the next items, if any: taken permanently, or reserved.
    fn deliver(&mut self, block: &mut Backing, now: Time, args: &GetArgs) -> Option<Answer> {
        let run = self.deliveries.next_run(&self.items, block, args)?;
        if run.is_list {
            return Some(large::refuse());
        }
        let (count, open) = (run.items.len() as u64, self.tail.is_open());
        let answer = self.deliveries.give(&self.items, block, now, args, run, open);
        if args.reserve_ms == 0 {
            self.events.changed(|| Change::Space { items: count });
        }
        Some(answer)
    }

    /// The answer to a get for which there is no item now and none can come here; `None` if it may wait.
    fn exhausted(&self, stay: bool) -> Option<Answer> {
        match self.tail.seal() {
            Some(Seal::Continues(successor)) if !stay => {
                Some(moved(self.items.through(), successor))
            }
            Some(Seal::Continues(_)) if self.deliveries.is_spent(&self.items) => Some(empty()),
            // Reserved items may be returned.
            Some(Seal::Final) if self.deliveries.none_out() => Some(closed()),
            _ => None,
        }
    }

    /// Delivers items, or waits for some.
    pub fn get(
        &mut self,
        block: &mut Backing,
        operation: &Operation<'_>,
    ) -> Result<Outcome, Answer> {
        let args = GetArgs::decode(operation.args)?;
        check_get(&args)?;
        let early = Bug::QueueMovesEarly.active() && self.tail.successor().is_some();
        if !early && let Some(answer) = self.deliver(block, operation.now, &args) {
            return Ok(Outcome::Done(answer));
        }
        if let Some(answer) = self.exhausted(args.stay) {
            return Err(answer);
        }
        if operation.wait_until <= operation.now {
            return Err(empty());
        }
        match self.waiters.add_getter(operation.ticket, operation.wait_until, args) {
            true => Ok(Outcome::Parked),
            false => Err(busy(RETRY_LARGE_US)),
        }
    }

    /// The next items, which stay.
    pub fn peek(&self, block: &impl Bytes, args: &[u8]) -> Result<Answer, Answer> {
        let args = GetArgs::decode_peek(args)?;
        check_get(&args)?;
        let Some(run) = self.deliveries.next_run(&self.items, block, &args) else {
            return Err(self.exhausted(false).unwrap_or_else(empty));
        };
        if run.is_list {
            return Err(large::refuse());
        }
        let bytes = self.items.bytes_of(block, &run.items);
        let described = self.deliveries.describe(&self.items, block, &run);
        let answer = Answer { args: described.encode(), ..Answer::ok(run.items.len() as u64) };
        Ok(answer.with(Payload::Block(bytes)))
    }

    /// Settles, returns or extends reservations.
    pub fn acknowledge(
        &mut self,
        block: &Backing,
        now: Time,
        args: &[u8],
    ) -> Result<Answer, Answer> {
        let AckArgs { action, timeout_ms, items } = AckArgs::decode(args)?;
        if action == AckAction::Extend && (timeout_ms == 0 || timeout_ms > RESERVE_MAX_MS) {
            let text = format!("a reservation lasts 1 to {RESERVE_MAX_MS} ms, not {timeout_ms}");
            return Err(Answer::refuse(Status::InvalidArgument, text));
        }
        let until = now + Duration::from_millis(timeout_ms as u64);
        let mut held = Vec::with_capacity(items.len());
        for (number, deliveries) in items {
            let item = self.deliveries.held(&self.items, number, deliveries);
            held.push(item.is_some() as u8);
            let Some(item) = item else { continue };
            if action == AckAction::Done && self.items.is_list(block, item) {
                large::taken(self, block, item);
            }
            let which = (item, deliveries);
            let change = self.deliveries.acknowledge(&self.items, block, which, action, until);
            if let Some(change) = change {
                self.events.changed(|| change);
            }
        }
        let count = held.iter().filter(|held| **held == 1).count() as u64;
        Ok(Answer { args: held, ..Answer::ok(count) })
    }

    fn close(&mut self, seal: Seal) {
        if matches!(seal, Seal::Final) {
            self.events.changed(|| Change::Close);
        }
        let through = self.items.through();
        assert!(self.items.is_settled(), "INV-07: a block is sealed while data arrives");
        assert!(self.tail.is_open(), "INV-22: a block is sealed twice, at {through}");
        self.tail.close(seal);
        self.report_seal();
    }

    fn report_seal(&mut self) {
        let sealed = self.tail.report(self.items.through(), self.items.put_bytes());
        if let Some(sealed) = sealed {
            self.events.push(sealed);
        }
    }

    /// Closes the queue.
    pub fn close_queue(&mut self) -> Answer {
        match self.tail.seal() {
            Some(Seal::Continues(successor)) => return moved(self.items.through(), successor),
            Some(Seal::Final) => {}
            None if !self.items.is_settled() => return busy(RETRY_FILLS_US),
            None => self.close(Seal::Final),
        }
        Answer::ok(0)
    }

    /// The totals of the block; with 1 as arguments of an open block or the last one only.
    pub fn counts(&self, args: &[u8]) -> Answer {
        match (args, self.tail.successor()) {
            ([1], Some(successor)) => return moved(self.items.through(), successor),
            ([0 | 1], _) => {}
            _ => return Answer::refuse(Status::BadFrame, "QueueLength takes one byte, 0 or 1"),
        }
        let closed = matches!(self.tail.seal(), Some(Seal::Final));
        let counts = self.deliveries.counts(&self.items, closed);
        Answer { args: counts.encode(), ..Answer::ok(self.items.through()) }
    }

    /// Bytes in use: of the items that are left, with the records beside the block.
    pub fn bytes_used(&self) -> u64 {
        let (put, taken) = (self.items.amount(), self.deliveries.taken());
        let beside = self.items.bytes() + self.waiters.bytes() + self.deliveries.bytes();
        put.1 - self.items.elsewhere() - taken.1 + (put.0 - taken.0) * PLACE as u64 + beside as u64
    }

    /// The work after every change: waiting requests are served, and an empty block starts again or is
    /// drained. A block that is being sent keeps its layout.
    pub fn settle(&mut self, block: &mut Backing, now: Time, keeps_layout: bool) {
        loop {
            let gave = self.serve_getters(block, now);
            let stored = self.serve_putters(block);
            if !gave && !stored {
                break;
            }
        }
        self.send_on();
        let spent = self.deliveries.is_spent(&self.items);
        // A reply or a record may still read the old bytes.
        let begins_anew = self.tail.is_open() && self.items.count() > 0 && spent && !keeps_layout;
        if begins_anew && !block.is_pinned(&(0..self.items.committed())) {
            self.deliveries.begin_anew(&self.items);
            self.items.begin_anew();
        }
        if self.tail.successor().is_none() {
            return;
        }
        if let Some(taken) = self.bound.report(self.deliveries.taken()) {
            self.events.push(taken);
        }
        if spent && !self.drained {
            self.drained = true;
            self.events.push(Event::Drained);
        }
    }

    fn serve_getters(&mut self, block: &mut Backing, now: Time) -> bool {
        let mut gave = false;
        while let Some(args) = self.waiters.first_getter().copied() {
            let Some(answer) = self.deliver(block, now, &args) else { break };
            let (ticket, _) = self.waiters.take_getter().expect("the first was just seen");
            self.events.answer(ticket, answer);
            gave = true;
        }
        gave
    }

    fn serve_putters(&mut self, block: &mut Backing) -> bool {
        let mut stored = false;
        while self.tail.is_open()
            && let Some((items, bytes)) = self.waiters.first_putter()
            && self.within_bound(items, bytes) == Some(true)
        {
            let (ticket, Putter { lengths, payload }) =
                self.waiters.take_putter().expect("the first was just seen");
            let outcome = match self.make_room(&lengths, payload.len()) {
                Ok(()) => self.store(block, ticket, &lengths, &payload),
                Err(answer) => Outcome::Done(answer),
            };
            if let Outcome::Done(answer) = outcome {
                self.events.answer(ticket, answer);
            }
            stored = true;
        }
        stored
    }

    /// Sends requests that wait at a sealed block to the successor.
    fn send_on(&mut self) {
        let putters = match self.tail.seal() {
            None => return,
            Some(Seal::Continues(successor)) => moved(self.items.through(), successor),
            Some(Seal::Final) => closed(),
        };
        while let Some((ticket, _)) = self.waiters.take_putter() {
            self.events.answer(ticket, putters.clone());
        }
        // Gets wait only while there are no items.
        match (self.exhausted(false), self.exhausted(true)) {
            (Some(passing), Some(staying)) => {
                while let Some((ticket, args)) = self.waiters.take_getter() {
                    let answer = if args.stay { &staying } else { &passing };
                    self.events.answer(ticket, answer.clone());
                }
            }
            (Some(passing), None) => {
                for ticket in self.waiters.take_passing() {
                    self.events.answer(ticket, passing.clone());
                }
            }
            (None, staying) => assert!(staying.is_none(), "INV-22: only gets that stay end"),
        }
    }

    /// Ends the waits and reservations that are due.
    pub fn expire(&mut self, block: &mut Backing, now: Time, keeps_layout: bool) {
        let returned = self.deliveries.expire(now);
        if returned > 0 {
            self.events.changed(|| Change::Data { items: returned });
        }
        self.settle(block, now, keeps_layout);
        for (ticket, puts) in self.waiters.expire(now) {
            let answer = if puts { self.bound.full() } else { empty() };
            self.events.answer(ticket, answer);
        }
        // The cancelled request may have been ahead of others that have room.
        self.settle(block, now, keeps_layout);
    }
}

fn check_get(args: &GetArgs) -> Result<(), Answer> {
    if args.items == 0 || args.items > QUEUE_BATCH_MAX {
        let text = format!("a request takes 1 to {QUEUE_BATCH_MAX} items, not {}", args.items);
        return Err(Answer::refuse(Status::InvalidArgument, text));
    }
    check_reserve(args.reserve_ms)
}

fn check_reserve(ms: u32) -> Result<(), Answer> {
    if ms > RESERVE_MAX_MS {
        let text = format!("a reservation of {ms} ms is over the limit of {RESERVE_MAX_MS} ms");
        return Err(Answer::refuse(Status::InvalidArgument, text));
    }
    Ok(())
}

fn empty() -> Answer {
    Answer::refuse(Status::QueueEmpty, "")
}

fn closed() -> Answer {
    Answer::refuse(Status::QueueClosed, "the queue was closed")
}
