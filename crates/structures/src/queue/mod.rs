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
//! Files: `mod.rs` has the rules; `waiters.rs` requests that wait for items or room; `reserved.rs` items that
//! were delivered and not acknowledged; `below.rs` blocks in lower tiers; `moving.rs` moves to another
//! server.

mod arrivals;
mod below;
mod bounds;
mod moving;
mod reserved;
mod waiters;

use crate::carry::{Cart, take_part};
use crate::moves::Movable;
use crate::pieces::Pieces;
use crate::{
    Answer, Bytes, Changes, Content, Event, Growth, Operation, Ops, Outcome, Payload, Streaming,
    Structure, Successor, SuccessorRequest, Ticket, Waits, busy, large_limit, moved,
};
pub use bounds::QueueBounds;
use honeycomb_block::Backing;
use honeycomb_types::limits::{QUEUE_BATCH_MAX, RESERVE_MAX_MS};
use honeycomb_types::{Bug, Marks, Time};
use honeycomb_wire::notice::Change;
use honeycomb_wire::queue::{AckAction, AckArgs, Counts, GetArgs, Items, lengths};
use honeycomb_wire::{Auth, Mutates, Op, Status};
use reserved::Reserved;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use waiters::{Getter, Putter, Waiters};

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
/// Bytes of an entry in the directory.
const PLACE: usize = 4;
/// Items of at least this size are kept for retries in place; smaller ones are copied.
const PIN_FROM: usize = 16 * 1024;

/// Items that empty the block are copied up to this size.
const COPY_LAST_MAX: usize = 1 << 20;

/// How the block was sealed.
enum QueueSeal {
    /// Full: the queue continues in the block that these arguments of `Moved` name.
    Continues(Vec<u8>),
    /// The queue itself was closed.
    Final,
}

/// One block of a queue. Items are numbered from 0 within the block.
pub struct QueueBlock {
    size: usize,
    bounds: QueueBounds,
    /// The items' bytes; each payload in progress with the lengths of its items.
    pieces: Pieces<Vec<u32>>,
    /// Items that passed through the block before it last started again empty.
    base: u64,
    /// Items in the directory.
    count: usize,
    /// Directory entries promised to payloads in progress.
    promised: usize,
    /// The first item that was never delivered.
    head: usize,
    reserved: Reserved,
    put_bytes: u64,
    taken: u64,
    taken_bytes: u64,
    /// Items and bytes in earlier blocks. Unknown to a successor at first.
    ahead: Option<(u64, u64)>,
    waiters: Waiters,
    next: SuccessorRequest,
    seal: Option<QueueSeal>,
    /// The last reported total of taken items, and whether the controller has received it.
    taken_told: u64,
    taken_heard: bool,
    drained_told: bool,
    watched: bool,
    events: VecDeque<Event>,
    cart: Cart,
}

/// Items that can be delivered together.
struct Run {
    items: Range<usize>,
    deliveries: u32,
    /// They had been delivered before and were returned.
    returned: bool,
}

impl QueueBlock {
    /// An empty block. `first` if no block is before it.
    pub fn new(block_size: usize, bounds: QueueBounds, first: bool) -> QueueBlock {
        QueueBlock {
            size: block_size,
            bounds,
            pieces: Pieces::new(),
            base: 0,
            count: 0,
            promised: 0,
            head: 0,
            reserved: Reserved::default(),
            put_bytes: 0,
            taken: 0,
            taken_bytes: 0,
            ahead: (first || bounds == QueueBounds::NONE).then_some((0, 0)),
            waiters: Waiters::default(),
            next: SuccessorRequest::new(block_size),
            seal: None,
            taken_told: 0,
            taken_heard: true,
            drained_told: false,
            watched: false,
            events: VecDeque::new(),
            cart: Cart::default(),
        }
    }

    /// As `new`, with the marks of the block's prefix. `move_id` is the move that will fill the block; 0 for
    /// none.
    pub fn opened(
        block_size: usize,
        bounds: QueueBounds,
        first: bool,
        marks: Marks,
        move_id: u64,
    ) -> QueueBlock {
        let cart = Cart::importing(move_id);
        let mut block = QueueBlock { cart, ..QueueBlock::new(block_size, bounds, first) };
        block.next.set_marks(marks);
        block
    }

    /// Items that were ever put into the block.
    fn through(&self) -> u64 {
        self.base + self.count as u64
    }

    fn changed(&mut self, change: Change) {
        if self.watched {
            self.events.push_back(Event::Changed(change));
        }
    }

    fn place_of(&self, item: usize) -> Range<usize> {
        self.size - PLACE * (item + 1)..self.size - PLACE * item
    }

    fn end_of(&self, block: &impl Bytes, item: usize) -> usize {
        let place = block.slice(self.place_of(item));
        u32::from_le_bytes(place.try_into().expect("a place has four bytes")) as usize
    }

    fn start_of(&self, block: &impl Bytes, item: usize) -> usize {
        item.checked_sub(1).map_or(0, |before| self.end_of(block, before))
    }

    fn bytes_of(&self, block: &impl Bytes, items: &Range<usize>) -> Range<usize> {
        if items.is_empty() {
            return 0..0;
        }
        self.start_of(block, items.start)..self.end_of(block, items.end - 1)
    }

    /// Bytes used by items, the directory and promises.
    fn used(&self) -> usize {
        self.pieces.tail() + PLACE * (self.count + self.promised)
    }

    /// The lengths of a put's items, if the block and the queue could ever accept them.
    fn admit(&mut self, args: &[u8], length: usize) -> Result<Vec<u32>, Answer> {
        let lengths = lengths(args, length)?;
        match &self.seal {
            Some(QueueSeal::Continues(successor)) => return Err(moved(self.through(), successor)),
            Some(QueueSeal::Final) => return Err(closed()),
            None => {}
        }
        let (cost, limit) = (length + PLACE * lengths.len(), large_limit(self.size));
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
        if lengths.len() as u64 > self.bounds.items || length as u64 > self.bounds.bytes {
            let text = format!(
                "{length} bytes (items: {}) can never fit into a queue of at most {}",
                lengths.len(),
                self.bounds
            );
            return Err(Answer::refuse(Status::InvalidArgument, text));
        }
        self.next.wrote(cost);
        Ok(lengths)
    }

    /// Whether the bound has room for a put that arrives now, behind those that wait; `None` if that is not
    /// known yet.
    fn admits(&self, items: u64, bytes: u64) -> Option<bool> {
        Some(self.within_bound(items, bytes)? && !self.waiters.anybody_puts())
    }

    /// Whether the bound has room; `None` if that is not known yet.
    fn within_bound(&self, items: u64, bytes: u64) -> Option<bool> {
        let (ahead, ahead_bytes) = match self.ahead {
            _ if Bug::QueueForgetsAhead.active() => (0, 0),
            ahead => ahead?,
        };
        let promised_bytes = (self.pieces.tail() - self.pieces.committed()) as u64;
        let held = ahead + self.through() + self.promised as u64 - self.taken;
        let held_bytes = ahead_bytes + self.put_bytes + promised_bytes - self.taken_bytes;
        Some(
            held.saturating_add(items) <= self.bounds.items
                && held_bytes.saturating_add(bytes) <= self.bounds.bytes,
        )
    }

    /// Makes room in the block; otherwise returns the answer. The block is sealed if possible.
    fn make_room(&mut self, lengths: &[u32], bytes: usize) -> Result<(), Answer> {
        if self.pieces.is_full() {
            return Err(busy(RETRY_FILLS_US));
        }
        if bytes + PLACE * lengths.len() <= self.size - self.used() {
            return Ok(());
        }
        if !self.pieces.is_settled() {
            return Err(busy(RETRY_FILLS_US));
        }
        let successor = self.next.take()?;
        let answer = moved(self.through(), &successor);
        self.close(QueueSeal::Continues(successor));
        Err(answer)
    }

    fn put(&mut self, block: &mut Backing, operation: &Operation<'_>, payload: &[u8]) -> Outcome {
        let lengths = match self.admit(operation.args, payload.len()) {
            Ok(lengths) => lengths,
            Err(refusal) => return Outcome::Done(refusal),
        };
        let room = self.admits(lengths.len() as u64, payload.len() as u64);
        if room != Some(true) {
            return self.wait_to_put(operation, lengths, payload, room.is_none());
        }
        match self.make_room(&lengths, payload.len()) {
            Ok(()) => self.store(block, operation.ticket, lengths, payload),
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
            return Outcome::Done(if unknown { busy(RETRY_AHEAD_US) } else { self.full() });
        }
        let (ticket, until) = (operation.ticket, operation.wait_until);
        let putter = Putter { ticket, until, lengths, payload: payload.into() };
        let most = large_limit(self.size).min(WAITING_BYTES_MAX);
        match self.waiters.add_putter(putter, most) {
            true => Outcome::Parked,
            // Other waiting payloads use all the memory for waiting.
            false => Outcome::Done(busy(RETRY_LARGE_US)),
        }
    }

    /// Makes room for a payload that will arrive piece by piece. Such a payload never waits.
    fn promise(&mut self, operation: &Operation<'_>, length: usize) -> Result<(), Answer> {
        let lengths = self.admit(operation.args, length)?;
        match self.admits(lengths.len() as u64, length as u64) {
            Some(true) => self.make_room(&lengths, length)?,
            None => return Err(busy(RETRY_AHEAD_US)),
            Some(false) if operation.wait_until > operation.now => {
                return Err(busy(RETRY_LARGE_US));
            }
            Some(false) => return Err(self.full()),
        }
        self.promised += lengths.len();
        self.pieces.place(operation.ticket, length, lengths);
        Ok(())
    }

    /// Stores items, for which there is room.
    fn store(
        &mut self,
        block: &mut Backing,
        ticket: Ticket,
        lengths: Vec<u32>,
        payload: &[u8],
    ) -> Outcome {
        let (start, items) = (self.pieces.tail(), lengths.len());
        let kept = if self.pieces.is_settled() { Vec::new() } else { lengths.clone() };
        if self.pieces.append(block, ticket, payload, kept).is_some() {
            self.promised += items;
            return Outcome::Parked;
        }
        let first = self.enter(block, start, &lengths);
        Outcome::Done(Answer::ok(first))
    }

    /// Adds items with committed bytes to the directory; returns the number of the first.
    fn enter(&mut self, block: &mut Backing, start: usize, lengths: &[u32]) -> u64 {
        let (first, promised) = (self.through(), self.pieces.committed());
        assert!(start <= promised, "INV-22: items at {start} are listed before they are committed");
        assert!(self.seal.is_none(), "INV-22: item {first} is put into a sealed block");
        let mut end = start;
        for length in lengths {
            end += *length as usize;
            let place = self.place_of(self.count);
            block.slice_mut(place).copy_from_slice(&(end as u32).to_le_bytes());
            self.count += 1;
        }
        assert!(end <= promised, "INV-22: items end at {end}, and {promised} bytes are committed");
        self.put_bytes += (end - start) as u64;
        self.changed(Change::Data { items: lengths.len() as u64 });
        first
    }

    /// Promised items arrive, or are given up.
    fn arrives(&mut self, items: usize) {
        let promised = self.promised;
        assert!(promised >= items, "INV-22: {items} items arrive, and {promised} were promised");
        self.promised -= items;
    }

    /// Adds the complete payloads at the front to the directory and answers them.
    fn advance(&mut self, block: &mut Backing) {
        while let Some(piece) = self.pieces.advance() {
            self.arrives(piece.with.len());
            let first = self.enter(block, piece.start, &piece.with);
            self.events.push_back(Event::Answered(piece.ticket, Answer::ok(first)));
        }
    }

    /// The next items to deliver, if any.
    fn next_run(&self, block: &impl Bytes, args: &GetArgs) -> Option<Run> {
        if let Some((item, deliveries)) = self.reserved.first_returned() {
            return Some(Run { items: item..item + 1, deliveries, returned: true });
        }
        if self.head == self.count {
            return None;
        }
        let start = self.start_of(block, self.head);
        let last = self.count.min(self.head + args.items as usize);
        let mut end = self.head + 1;
        while end < last && self.end_of(block, end) - start <= args.bytes as usize {
            end += 1;
        }
        Some(Run { items: self.head..end, deliveries: 0, returned: false })
    }

    fn describe(&self, block: &impl Bytes, run: &Run) -> Items {
        let mut start = self.start_of(block, run.items.start);
        let lengths = run.items.clone().map(|item| {
            let end = self.end_of(block, item);
            let length = (end - start) as u32;
            start = end;
            length
        });
        let lengths = lengths.collect();
        Items { first: self.base + run.items.start as u64, deliveries: run.deliveries + 1, lengths }
    }

    /// Delivers items: taken permanently, or reserved.
    fn give(&mut self, block: &mut Backing, now: Time, args: &GetArgs, run: Run) -> Answer {
        let bytes = self.bytes_of(block, &run.items);
        let described = self.describe(block, &run);
        // Items that empty the block are not pinned, so that the block can start again at once. Otherwise a
        // queue that is filled and emptied in turn would need a new block for every turn.
        let last = run.items.end == self.count && self.seal.is_none();
        let copied = bytes.len() < PIN_FROM || (last && bytes.len() <= COPY_LAST_MAX);
        let payload = match copied {
            true => Payload::Bytes(Arc::from(block.slice(bytes.clone()))),
            false => Payload::Pinned(block.pin(bytes.clone())),
        };
        if run.returned {
            self.reserved.take_returned(run.items.start);
        } else {
            let (head, count) = (self.head, self.count);
            let next = head == run.items.start && run.items.end <= count;
            assert!(next, "INV-22: items {:?} are delivered at {head} of {count}", run.items);
            self.head = run.items.end;
        }
        let count = run.items.len() as u64;
        if args.reserve_ms == 0 {
            self.release(count, bytes.len() as u64);
        } else {
            let until = now + Duration::from_millis(args.reserve_ms as u64);
            for item in run.items {
                self.reserved.reserve(item, until, described.deliveries);
            }
        }
        Answer { args: described.encode(), ..Answer::ok(count) }.with(payload)
    }

    /// Counts items as taken permanently.
    fn release(&mut self, items: u64, bytes: u64) {
        self.taken += items;
        self.taken_bytes += bytes;
        let (taken, put) = ((self.taken, self.taken_bytes), (self.through(), self.put_bytes));
        let covered = taken.0 <= put.0 && taken.1 <= put.1;
        // Another server has counted the items of a relocated block, so that products do not assert it.
        debug_assert!(covered, "INV-22: {taken:?} items and bytes are taken of {put:?}");
        self.changed(Change::Space { items });
    }

    fn check_get(args: &GetArgs) -> Result<(), Answer> {
        if args.items == 0 || args.items > QUEUE_BATCH_MAX {
            let text = format!("a request takes 1 to {QUEUE_BATCH_MAX} items, not {}", args.items);
            return Err(Answer::refuse(Status::InvalidArgument, text));
        }
        if args.reserve_ms > RESERVE_MAX_MS {
            let text = format!(
                "a reservation of {} ms is over the limit of {RESERVE_MAX_MS} ms",
                args.reserve_ms
            );
            return Err(Answer::refuse(Status::InvalidArgument, text));
        }
        Ok(())
    }

    /// The answer to a get for which there is no item now and none can come here; `None` if it may wait.
    fn exhausted(&self, stay: bool) -> Option<Answer> {
        match &self.seal {
            Some(QueueSeal::Continues(successor)) if !stay => {
                Some(moved(self.through(), successor))
            }
            Some(QueueSeal::Continues(_)) if self.is_spent() => Some(empty()),
            // Reserved items may be returned.
            Some(QueueSeal::Final) if self.reserved.none_out() => Some(closed()),
            _ => None,
        }
    }

    fn get(&mut self, block: &mut Backing, operation: &Operation<'_>) -> Result<Outcome, Answer> {
        let args = GetArgs::decode(operation.args)?;
        Self::check_get(&args)?;
        let early =
            Bug::QueueMovesEarly.active() && matches!(self.seal, Some(QueueSeal::Continues(_)));
        if let Some(run) = self.next_run(block, &args).filter(|_| !early) {
            let answer = self.give(block, operation.now, &args, run);
            return Ok(Outcome::Done(answer));
        }
        if let Some(answer) = self.exhausted(args.stay) {
            return Err(answer);
        }
        if operation.wait_until <= operation.now {
            return Err(empty());
        }
        let getter = Getter { ticket: operation.ticket, until: operation.wait_until, args };
        match self.waiters.add_getter(getter) {
            true => Ok(Outcome::Parked),
            false => Err(busy(RETRY_LARGE_US)),
        }
    }

    fn peek(&self, block: &impl Bytes, args: &[u8]) -> Result<Answer, Answer> {
        let args = GetArgs::decode_peek(args)?;
        Self::check_get(&args)?;
        let Some(run) = self.next_run(block, &args) else {
            return Err(self.exhausted(false).unwrap_or_else(empty));
        };
        let (bytes, described) = (self.bytes_of(block, &run.items), self.describe(block, &run));
        let answer = Answer { args: described.encode(), ..Answer::ok(run.items.len() as u64) };
        Ok(answer.with(Payload::Block(bytes)))
    }

    fn acknowledge(&mut self, block: &Backing, now: Time, args: &[u8]) -> Result<Answer, Answer> {
        let AckArgs { action, timeout_ms, items } = AckArgs::decode(args)?;
        if action == AckAction::Extend && (timeout_ms == 0 || timeout_ms > RESERVE_MAX_MS) {
            let text = format!("a reservation lasts 1 to {RESERVE_MAX_MS} ms, not {timeout_ms}");
            return Err(Answer::refuse(Status::InvalidArgument, text));
        }
        let until = now + Duration::from_millis(timeout_ms as u64);
        let mut held = Vec::with_capacity(items.len());
        for (number, deliveries) in items {
            let item = number.checked_sub(self.base).map(|item| item as usize);
            let item = item.filter(|item| self.reserved.is_out(*item, deliveries));
            held.push(item.is_some() as u8);
            let Some(item) = item else { continue };
            match action {
                AckAction::Done => {
                    self.reserved.settle(item);
                    self.release(1, self.bytes_of(block, &(item..item + 1)).len() as u64);
                }
                AckAction::GiveBack => {
                    self.reserved.give_back(item);
                    self.changed(Change::Data { items: 1 });
                }
                AckAction::Extend => self.reserved.reserve(item, until, deliveries),
            }
        }
        let count = held.iter().filter(|held| **held == 1).count() as u64;
        Ok(Answer { args: held, ..Answer::ok(count) })
    }

    fn close(&mut self, seal: QueueSeal) {
        let successor = match &seal {
            QueueSeal::Continues(successor) => Some(successor.clone()),
            QueueSeal::Final => {
                self.changed(Change::Close);
                None
            }
        };
        assert!(self.pieces.is_settled(), "INV-07: a block is sealed while data arrives");
        assert!(self.seal.is_none(), "INV-22: a block is sealed twice, at {}", self.through());
        self.seal = Some(seal);
        let (length, bytes) = (self.through(), self.put_bytes);
        self.events.push_back(Event::Sealed { length, bytes, successor });
    }

    fn close_queue(&mut self) -> Answer {
        match &self.seal {
            Some(QueueSeal::Continues(successor)) => return moved(self.through(), successor),
            Some(QueueSeal::Final) => {}
            None if !self.pieces.is_settled() => return busy(RETRY_FILLS_US),
            None => self.close(QueueSeal::Final),
        }
        Answer::ok(0)
    }

    fn counts(&self, args: &[u8]) -> Answer {
        match (args, &self.seal) {
            ([1], Some(QueueSeal::Continues(successor))) => {
                return moved(self.through(), successor);
            }
            ([0 | 1], _) => {}
            _ => return Answer::refuse(Status::BadFrame, "QueueLength takes one byte, 0 or 1"),
        }
        let counts = Counts {
            taken: self.taken,
            bytes_put: self.put_bytes,
            bytes_taken: self.taken_bytes,
            reserved: self.reserved.count() as u64,
            closed: matches!(self.seal, Some(QueueSeal::Final)),
        };
        Answer { args: counts.encode(), ..Answer::ok(self.through()) }
    }

    /// Whether every item was delivered and none can be returned.
    fn is_spent(&self) -> bool {
        self.head == self.count
            && self.reserved.none_out()
            && self.reserved.first_returned().is_none()
            && self.pieces.is_settled()
    }

    /// The work after every change: waiting requests are served, and an empty block starts again or is
    /// drained.
    fn settle(&mut self, block: &mut Backing, now: Time) {
        if self.cart.is_still() {
            return;
        }
        loop {
            let gave = self.serve_getters(block, now);
            let stored = self.serve_putters(block);
            if !gave && !stored {
                break;
            }
        }
        self.send_on();
        // A block that is moved whole must not change its layout meanwhile.
        if self.seal.is_none() && self.count > 0 && self.is_spent() && !self.cart.is_leaving() {
            self.begin_anew(block);
        }
        let continues = matches!(self.seal, Some(QueueSeal::Continues(_)));
        if !continues {
            return;
        }
        if self.bounds != QueueBounds::NONE && self.taken_heard && self.taken != self.taken_told {
            (self.taken_heard, self.taken_told) = (false, self.taken);
            let (items, bytes) = (self.taken, self.taken_bytes);
            self.events.push_back(Event::Taken { items, bytes });
        }
        if self.is_spent() && !self.drained_told {
            self.drained_told = true;
            self.events.push_back(Event::Drained);
        }
    }

    fn serve_getters(&mut self, block: &mut Backing, now: Time) -> bool {
        let mut gave = false;
        while let Some(args) = self.waiters.first_getter().map(|getter| getter.args) {
            let Some(run) = self.next_run(block, &args) else { break };
            let getter = self.waiters.take_getter().expect("the first was just seen");
            let answer = self.give(block, now, &args, run);
            self.events.push_back(Event::Answered(getter.ticket, answer));
            gave = true;
        }
        gave
    }

    fn serve_putters(&mut self, block: &mut Backing) -> bool {
        let mut stored = false;
        while self.seal.is_none()
            && let Some((items, bytes)) = self.waiters.first_putter()
            && self.within_bound(items, bytes) == Some(true)
        {
            let Putter { ticket, lengths, payload, .. } =
                self.waiters.take_putter().expect("the first was just seen");
            let outcome = match self.make_room(&lengths, payload.len()) {
                Ok(()) => self.store(block, ticket, lengths, &payload),
                Err(answer) => Outcome::Done(answer),
            };
            if let Outcome::Done(answer) = outcome {
                self.events.push_back(Event::Answered(ticket, answer));
            }
            stored = true;
        }
        stored
    }

    /// Sends requests that wait at a sealed block to the successor.
    fn send_on(&mut self) {
        let putters = match &self.seal {
            None => return,
            Some(QueueSeal::Continues(successor)) => moved(self.through(), successor),
            Some(QueueSeal::Final) => closed(),
        };
        while let Some(putter) = self.waiters.take_putter() {
            self.events.push_back(Event::Answered(putter.ticket, putters.clone()));
        }
        // Gets wait only while there are no items.
        let mut stay = Vec::new();
        while let Some(getter) = self.waiters.take_getter() {
            match self.exhausted(getter.args.stay) {
                Some(answer) => self.events.push_back(Event::Answered(getter.ticket, answer)),
                None => stay.push(getter),
            }
        }
        for getter in stay {
            self.waiters.add_getter(getter);
        }
    }

    fn begin_anew(&mut self, block: &mut Backing) {
        // A reply or a record may still read the old bytes.
        if block.is_pinned(&(0..self.pieces.committed())) {
            return;
        }
        let (taken, through) = (self.taken, self.through());
        debug_assert_eq!(taken, through, "INV-22: a block begins anew with items left");
        assert_eq!(self.promised, 0, "INV-22: a block begins anew while items arrive");
        self.base += self.count as u64;
        (self.count, self.head) = (0, 0);
        self.pieces.restart();
    }
}

impl Structure for QueueBlock {
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

    fn movable(&mut self) -> Option<&mut dyn Movable> {
        Some(self)
    }
}

impl Ops for QueueBlock {
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, payload: &[u8]) -> Outcome {
        let args = operation.args;
        if operation.op.info().auth == Auth::Peer {
            let taken = take_part(self, block, operation, payload);
            return Outcome::Done(taken.unwrap_or_else(|refusal| refusal));
        }
        let changes = operation.op.mutates() != Mutates::No;
        if let Some(answer) = self.cart.refuses(changes) {
            return Outcome::Done(answer);
        }
        let outcome = match operation.op {
            Op::QueuePut => self.put(block, operation, payload),
            Op::QueueGet => match self.get(block, operation) {
                Ok(outcome) => outcome,
                Err(refusal) => Outcome::Done(refusal),
            },
            Op::QueuePeek => {
                // A peek changes nothing, and its answer is a range of the block: no settling here.
                let peeked = self.peek(block, args);
                return Outcome::Done(peeked.unwrap_or_else(|refusal| refusal));
            }
            Op::QueueAck => {
                let settled = self.acknowledge(block, operation.now, args);
                Outcome::Done(settled.unwrap_or_else(|refusal| refusal))
            }
            Op::QueueClose if !args.is_empty() => {
                let text = format!("{} takes no arguments", operation.op.name());
                Outcome::Done(Answer::refuse(Status::BadFrame, text))
            }
            Op::QueueLength => return Outcome::Done(self.counts(args)),
            Op::QueueClose => Outcome::Done(self.close_queue()),
            other => panic!("{} is no operation of a queue", other.name()),
        };
        self.settle(block, operation.now);
        outcome
    }

    fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn bytes_used(&self) -> u64 {
        let promised = (self.pieces.tail() - self.pieces.committed()) as u64;
        let live = self.put_bytes - self.taken_bytes + promised;
        let items = self.through() - self.taken + self.promised as u64;
        let beside = self.pieces.bytes() + self.waiters.bytes() + self.reserved.bytes();
        live + items * PLACE as u64 + beside as u64
    }
}

impl Streaming for QueueBlock {
    fn reserve(
        &mut self,
        block: &mut Backing,
        operation: &Operation<'_>,
        length: usize,
    ) -> Result<(), Answer> {
        assert_eq!(operation.op, Op::QueuePut, "only a put carries a payload");
        if let Some(answer) = self.cart.refuses(true) {
            return Err(answer);
        }
        let placed = self.promise(operation, length);
        if placed.is_err() {
            // The operation may have sealed the block.
            self.settle(block, operation.now);
        }
        placed
    }

    fn fill<'b>(&mut self, block: &'b mut Backing, ticket: Ticket) -> &'b mut [u8] {
        block.slice_mut(self.pieces.rest(ticket))
    }

    fn filled(&mut self, ticket: Ticket, n: usize) {
        self.pieces.filled(ticket, n);
    }

    fn commit(&mut self, block: &mut Backing, now: Time, ticket: Ticket) -> Outcome {
        self.pieces.complete(ticket);
        self.advance(block);
        self.settle(block, now);
        Outcome::Parked
    }

    fn abort(&mut self, block: &mut Backing, now: Time, ticket: Ticket) {
        let lengths = self.pieces.abort(block, ticket);
        self.arrives(lengths.len());
        self.advance(block);
        self.settle(block, now);
    }
}

impl Growth for QueueBlock {
    fn wants_successor(&mut self) -> bool {
        self.seal.is_none() && self.next.wanted(self.used())
    }

    fn successor(&mut self, block: &mut Backing, now: Time, successor: Successor) {
        let used = self.used();
        self.next.set(successor, used);
        self.settle(block, now);
    }

    fn ahead(&mut self, block: &mut Backing, now: Time, items: u64, bytes: u64) {
        // Messages may overtake each other; the content of the earlier blocks only shrinks.
        self.ahead = Some(match self.ahead {
            Some((i, b)) => (i.min(items), b.min(bytes)),
            None => (items, bytes),
        });
        self.settle(block, now);
    }

    fn taken_received(&mut self, block: &mut Backing, now: Time) {
        self.taken_heard = true;
        self.settle(block, now);
    }

    fn give_back(&mut self) -> Option<Vec<u8>> {
        let used = self.used();
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

impl Waits for QueueBlock {
    fn cancel(&mut self, ticket: Ticket) -> bool {
        self.waiters.cancel(ticket)
    }

    fn tick(&mut self, block: &mut Backing, now: Time) {
        self.cart.wakes();
        if self.cart.is_still() {
            return;
        }
        let returned = self.reserved.expire(now);
        if returned > 0 {
            self.changed(Change::Data { items: returned });
        }
        self.settle(block, now);
        for (ticket, puts) in self.waiters.expire(now) {
            let answer = if puts { self.full() } else { empty() };
            self.events.push_back(Event::Answered(ticket, answer));
        }
        // The cancelled request may have been ahead of others that have room.
        self.settle(block, now);
    }

    fn deadline(&self) -> Option<Time> {
        let due = [self.waiters.due(), self.reserved.due()].into_iter().flatten().min();
        self.cart.deadline(due)
    }
}

impl Changes for QueueBlock {
    fn watch(&mut self, watched: bool) {
        self.watched = watched;
    }
}

impl QueueBlock {
    fn full(&self) -> Answer {
        Answer::refuse(Status::QueueFull, format!("the queue is at its bound of {}", self.bounds))
    }
}

fn empty() -> Answer {
    Answer::refuse(Status::QueueEmpty, "")
}

fn closed() -> Answer {
    Answer::refuse(Status::QueueClosed, "the queue was closed")
}
