//! The queue against a model: a map of numbered items, arriving payloads, and waiting requests.

mod steps;

use crate::Driver;
use honeycomb_structures::{
    Answer, Event, Growth, Operation, Ops, Outcome, Payload, QueueBlock, QueueBounds, Streaming,
    Successor, Ticket, Waits,
};
use honeycomb_types::Time;
use honeycomb_wire::notice::Change;
use honeycomb_wire::queue::{AckAction, AckArgs, Counts, GetArgs, Items};
use honeycomb_wire::{Op, Status};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

const PLACE: usize = 4;
/// From this size on an answer pins a range of the block instead of a copy.
const PIN_FROM: usize = 16 * 1024;
/// Items that empty the block are copied up to this size.
const COPY_LAST_MAX: usize = 1 << 20;
/// Payloads of waiting puts take at most this much, in a block of any size.
const WAITING_BYTES_MAX: usize = 1 << 20;
const SUCCESSOR: [u8; 2] = [7, 8];

#[derive(Clone, Debug)]
struct Setup {
    size: usize,
    max_items: u64,
    max_bytes: u64,
    first: bool,
    watched: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Never delivered.
    Ready,
    Out(Time),
    Returned,
}

/// An item that is not taken.
struct Item {
    bytes: Vec<u8>,
    state: State,
    deliveries: u32,
}

/// Items that were admitted and are not visible.
struct Pending {
    ticket: Ticket,
    items: Vec<Vec<u8>>,
    filled: usize,
    complete: bool,
}

struct Getter {
    ticket: Ticket,
    until: Time,
    args: GetArgs,
}

struct Putter {
    ticket: Ticket,
    until: Time,
    items: Vec<Vec<u8>>,
}

#[derive(PartialEq)]
enum Seal {
    Continues,
    Final,
}

/// An answer, as its receiver sees it. Refusals are compared by status, and `Moved` completely.
#[derive(Clone, Debug, PartialEq)]
struct Reply {
    status: Status,
    value: u64,
    args: Vec<u8>,
    bytes: Vec<u8>,
}

impl Reply {
    fn ok(value: u64) -> Reply {
        Reply { status: Status::Ok, value, args: Vec::new(), bytes: Vec::new() }
    }

    fn refusal(status: Status) -> Reply {
        Reply { status, ..Reply::ok(0) }
    }
}

/// The events of the queue. Answers to gets, answers to puts, changes and the rest are each in order; the
/// order between them is not defined.
#[derive(Debug, PartialEq)]
enum Told {
    Get(Ticket, Reply),
    Put(Ticket, Reply),
    Changed(Change),
    Block(Event),
}

impl Told {
    fn class(&self) -> u8 {
        match self {
            Told::Get(..) => 0,
            Told::Put(..) => 1,
            Told::Changed(_) => 2,
            Told::Block(_) => 3,
        }
    }
}

fn total(items: &[Vec<u8>]) -> u64 {
    items.iter().map(|item| item.len() as u64).sum()
}

/// Bytes of the block for these items.
fn cost(items: &[Vec<u8>]) -> usize {
    total(items) as usize + PLACE * items.len()
}

struct Model {
    size: usize,
    driver: Driver<QueueBlock>,
    bounds: QueueBounds,
    items: BTreeMap<u64, Item>,
    pending: VecDeque<Pending>,
    getters: VecDeque<Getter>,
    putters: VecDeque<Putter>,
    /// Items and bytes that were put, and those taken permanently.
    put: (u64, u64),
    taken: (u64, u64),
    ahead: Option<(u64, u64)>,
    /// Items, and bytes with directory entries, since the block last started again empty.
    since: (usize, usize),
    seal: Option<Seal>,
    successor: Option<bool>,
    asked: bool,
    taken_told: u64,
    taken_heard: bool,
    drained: bool,
    watched: bool,
    told: Vec<Told>,
    /// Answers that prevent the block from starting again: those expected, and those received.
    pins: usize,
    held: Vec<(Payload, Vec<u8>)>,
    /// From real answers only: the item put under each number, and the numbers that were taken.
    log: Vec<Vec<u8>>,
    gone: BTreeSet<u64>,
    seed: u64,
}

impl Model {
    fn new(setup: &Setup) -> Model {
        let bounds = QueueBounds::from_wire(setup.max_items, setup.max_bytes);
        let mut driver = Driver::new(setup.size, QueueBlock::new(setup.size, bounds, setup.first));
        driver.watch(setup.watched);
        let known = setup.first || bounds == QueueBounds::NONE;
        Model {
            size: setup.size,
            driver,
            bounds,
            items: BTreeMap::new(),
            pending: VecDeque::new(),
            getters: VecDeque::new(),
            putters: VecDeque::new(),
            put: (0, 0),
            taken: (0, 0),
            ahead: known.then_some((0, 0)),
            since: (0, 0),
            seal: None,
            successor: None,
            asked: false,
            taken_told: 0,
            taken_heard: true,
            drained: false,
            watched: setup.watched,
            told: Vec::new(),
            pins: 0,
            held: Vec::new(),
            log: Vec::new(),
            gone: BTreeSet::new(),
            seed: 0,
        }
    }

    /// Most bytes of one request.
    fn limit(&self) -> usize {
        self.size / 8
    }

    fn changed(&mut self, change: Change) {
        if self.watched {
            self.told.push(Told::Changed(change));
        }
    }

    fn moved(&self) -> Reply {
        Reply {
            status: Status::Moved,
            value: self.put.0,
            args: SUCCESSOR.to_vec(),
            bytes: Vec::new(),
        }
    }

    fn used(&self) -> usize {
        self.since.1 + self.pending.iter().map(|p| cost(&p.items)).sum::<usize>()
    }

    // ----------------------------------------------------------------------------- rules of puts

    fn refusal(&self, items: &[Vec<u8>]) -> Option<Reply> {
        let never = items.len() as u64 > self.bounds.items || total(items) > self.bounds.bytes;
        match &self.seal {
            Some(Seal::Continues) => Some(self.moved()),
            Some(Seal::Final) => Some(Reply::refusal(Status::QueueClosed)),
            None if cost(items) > self.limit() => Some(Reply::refusal(Status::ValueTooLarge)),
            None if never => Some(Reply::refusal(Status::InvalidArgument)),
            None => None,
        }
    }

    /// Whether the bound has room; `None` while that is not known.
    fn fits_bound(&self, items: &[Vec<u8>]) -> Option<bool> {
        let (ahead, ahead_bytes) = self.ahead?;
        let coming: usize = self.pending.iter().map(|p| p.items.len()).sum();
        let coming_bytes: u64 = self.pending.iter().map(|p| total(&p.items)).sum();
        let held = ahead + self.put.0 - self.taken.0 + coming as u64;
        let held_bytes = ahead_bytes + self.put.1 - self.taken.1 + coming_bytes;
        Some(
            held + items.len() as u64 <= self.bounds.items
                && held_bytes + total(items) <= self.bounds.bytes,
        )
    }

    /// Whether the block has room; otherwise the answer, and the block may be sealed.
    fn full_block(&mut self, items: &[Vec<u8>]) -> Option<Reply> {
        if self.used() + cost(items) <= self.size {
            return None;
        }
        Some(match self.successor {
            _ if !self.pending.is_empty() => Reply::refusal(Status::Busy),
            None => Reply::refusal(Status::Busy),
            Some(false) => Reply::refusal(Status::OutOfMemory),
            Some(true) => {
                self.sealed(Seal::Continues);
                self.moved()
            }
        })
    }

    fn sealed(&mut self, seal: Seal) {
        let successor = (seal == Seal::Continues).then(|| SUCCESSOR.to_vec());
        if seal == Seal::Final {
            self.changed(Change::Close);
        }
        self.seal = Some(seal);
        let (length, bytes) = self.put;
        self.told.push(Told::Block(Event::Sealed { length, bytes, successor }));
    }

    /// Stores items for which there is room; returns the answer if they are visible at once.
    fn store(&mut self, ticket: Ticket, items: Vec<Vec<u8>>) -> Option<Reply> {
        if self.pending.is_empty() {
            return Some(self.enter(items));
        }
        let filled = total(&items) as usize;
        self.pending.push_back(Pending { ticket, items, filled, complete: true });
        None
    }

    fn enter(&mut self, items: Vec<Vec<u8>>) -> Reply {
        let first = self.put.0;
        self.since = (self.since.0 + items.len(), self.since.1 + cost(&items));
        self.put = (first + items.len() as u64, self.put.1 + total(&items));
        self.changed(Change::Data { items: items.len() as u64 });
        for (number, bytes) in (first..).zip(items) {
            self.log.push(bytes.clone());
            self.items.insert(number, Item { bytes, state: State::Ready, deliveries: 0 });
        }
        Reply::ok(first)
    }

    fn advance(&mut self) {
        while self.pending.front().is_some_and(|p| p.complete) {
            let Pending { ticket, items, .. } = self.pending.pop_front().unwrap();
            let reply = self.enter(items);
            self.told.push(Told::Put(ticket, reply));
        }
    }

    // ----------------------------------------------------------------------------- rules of gets

    /// The numbers of the items that are delivered next.
    fn next(&self, args: &GetArgs) -> Vec<u64> {
        let returned = self.items.iter().find(|(_, item)| item.state == State::Returned);
        if let Some((number, _)) = returned {
            return vec![*number];
        }
        let ready = self.items.iter().filter(|(_, item)| item.state == State::Ready);
        let (mut run, mut bytes) = (Vec::new(), 0);
        for (number, item) in ready.take(args.items as usize) {
            bytes += item.bytes.len();
            if !run.is_empty() && bytes > args.bytes as usize {
                break;
            }
            run.push(*number);
        }
        run
    }

    fn describe(&self, run: &[u64]) -> Reply {
        let items: Vec<_> = run.iter().map(|number| &self.items[number]).collect();
        let lengths = items.iter().map(|item| item.bytes.len() as u32).collect();
        let described = Items { first: run[0], deliveries: items[0].deliveries + 1, lengths };
        let bytes = items.iter().flat_map(|item| item.bytes.iter().copied()).collect();
        Reply { args: described.encode(), bytes, ..Reply::ok(run.len() as u64) }
    }

    fn give(&mut self, run: &[u64], args: &GetArgs) -> Reply {
        let reply = self.describe(run);
        // Items that empty the block are copied, up to a limit.
        let last = run.last() == Some(&(self.put.0 - 1)) && self.seal.is_none();
        let last = last && reply.bytes.len() <= COPY_LAST_MAX;
        self.pins += (reply.bytes.len() >= PIN_FROM && !last) as usize;
        let until = self.driver.now + Duration::from_millis(args.reserve_ms as u64);
        for number in run {
            let item = self.items.get_mut(number).unwrap();
            (item.state, item.deliveries) = (State::Out(until), item.deliveries + 1);
        }
        if args.reserve_ms == 0 {
            self.release(run);
        }
        reply
    }

    fn release(&mut self, run: &[u64]) {
        for number in run {
            let item = self.items.remove(number).unwrap();
            self.taken = (self.taken.0 + 1, self.taken.1 + item.bytes.len() as u64);
        }
        self.changed(Change::Space { items: run.len() as u64 });
    }

    fn out(&self) -> impl Iterator<Item = (u64, &Item)> {
        let out = |item: &Item| matches!(item.state, State::Out(_));
        self.items.iter().filter(move |(_, item)| out(item)).map(|(number, item)| (*number, item))
    }

    /// The answer to a get for which there are no items, unless it may wait.
    fn exhausted(&self, stay: bool) -> Option<Reply> {
        match &self.seal {
            Some(Seal::Continues) if !stay => Some(self.moved()),
            Some(Seal::Continues) if self.is_spent() => Some(Reply::refusal(Status::QueueEmpty)),
            Some(Seal::Final) if self.is_spent() => Some(Reply::refusal(Status::QueueClosed)),
            _ => None,
        }
    }

    fn is_spent(&self) -> bool {
        self.items.is_empty() && self.pending.is_empty()
    }

    // ------------------------------------------------------------------------- what follows a step

    fn settle(&mut self) {
        while self.serve_getters() | self.serve_putters() {}
        self.send_on();
        if self.seal.is_none() && self.is_spent() && self.pins == 0 {
            self.since = (0, 0);
        }
        if self.seal != Some(Seal::Continues) {
            return;
        }
        let news = self.taken_heard && self.taken.0 != self.taken_told;
        if news && self.bounds != QueueBounds::NONE {
            (self.taken_heard, self.taken_told) = (false, self.taken.0);
            let (items, bytes) = self.taken;
            self.told.push(Told::Block(Event::Taken { items, bytes }));
        }
        if self.is_spent() && !std::mem::replace(&mut self.drained, true) {
            self.told.push(Told::Block(Event::Drained));
        }
    }

    fn serve_getters(&mut self) -> bool {
        let mut served = false;
        while let Some(args) = self.getters.front().map(|getter| getter.args) {
            let run = self.next(&args);
            if run.is_empty() {
                break;
            }
            let ticket = self.getters.pop_front().unwrap().ticket;
            let reply = self.give(&run, &args);
            self.told.push(Told::Get(ticket, reply));
            served = true;
        }
        served
    }

    fn serve_putters(&mut self) -> bool {
        let mut served = false;
        while self.seal.is_none()
            && let Some(putter) = self.putters.front()
            && self.fits_bound(&putter.items) == Some(true)
        {
            let Putter { ticket, items, .. } = self.putters.pop_front().unwrap();
            let reply = match self.full_block(&items) {
                Some(refusal) => Some(refusal),
                None => self.store(ticket, items),
            };
            self.told.extend(reply.map(|reply| Told::Put(ticket, reply)));
            served = true;
        }
        served
    }

    fn send_on(&mut self) {
        let putters = match &self.seal {
            None => return,
            Some(Seal::Continues) => self.moved(),
            Some(Seal::Final) => Reply::refusal(Status::QueueClosed),
        };
        for putter in std::mem::take(&mut self.putters) {
            self.told.push(Told::Put(putter.ticket, putters.clone()));
        }
        for getter in std::mem::take(&mut self.getters) {
            match self.exhausted(getter.args.stay) {
                Some(reply) => self.told.push(Told::Get(getter.ticket, reply)),
                None => self.getters.push_back(getter),
            }
        }
    }

    /// Models the passing of time.
    fn ticked(&mut self) {
        let now = self.driver.now;
        let mut returned = 0;
        for item in self.items.values_mut() {
            if matches!(item.state, State::Out(until) if until <= now) {
                (item.state, returned) = (State::Returned, returned + 1);
            }
        }
        if returned > 0 {
            self.changed(Change::Data { items: returned });
        }
        self.settle();
        let (late, stay) = std::mem::take(&mut self.getters)
            .into_iter()
            .partition::<VecDeque<_>, _>(|getter| getter.until <= now);
        self.getters = stay;
        for getter in late {
            self.told.push(Told::Get(getter.ticket, Reply::refusal(Status::QueueEmpty)));
        }
        let (late, stay) = std::mem::take(&mut self.putters)
            .into_iter()
            .partition::<VecDeque<_>, _>(|putter| putter.until <= now);
        self.putters = stay;
        for putter in late {
            self.told.push(Told::Put(putter.ticket, Reply::refusal(Status::QueueFull)));
        }
        self.settle();
    }
}
