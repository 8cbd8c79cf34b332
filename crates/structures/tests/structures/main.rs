//! The structures against plain reference models, and their rules one by one.
#![allow(clippy::unwrap_used)] // all of it is test code, helpers included

mod extents;
mod file_model;
mod file_rules;
mod kv_model;
mod kv_rules;
mod lanes;
mod many_rules;
mod migration;
mod moves;
mod queue_model;
mod queue_rules;

use honeycomb_block::{Backing, Reclaimer};
use honeycomb_structures::{
    Adopted, Answer, Event, Operation, Outcome, Payload, Structure, Successor, Ticket,
};
use honeycomb_types::{Time, sizes};
use honeycomb_wire::{Op, Status};
use proptest::prelude::*;
use std::collections::VecDeque;

/// Lengths for blocks of this size: log-uniform, and at every limit with its neighbours.
pub(crate) fn lengths(
    block: usize,
    least: usize,
    most: usize,
) -> impl Strategy<Value = usize> + Clone {
    any::<u64>().prop_map(move |random| sizes::size(random, block, least, most))
}

/// Block sizes: mostly the smallest, whose limits few steps reach, and up to the default of 128 MiB.
pub(crate) fn blocks() -> impl Strategy<Value = usize> + Clone {
    prop_oneof![
        24 => Just(64 << 10),
        12 => (17u32..=20).prop_map(|bits| 1 << bits),
        3 => (21u32..=26).prop_map(|bits| 1 << bits),
        1 => Just(128 << 20),
    ]
}

/// Steps for a block of this size: fewer if one step may add megabytes.
pub(crate) fn steps_in(block: usize, most: usize) -> std::ops::Range<usize> {
    if block > BYTES_CHECKED_EACH_STEP { 1..most / 4 } else { 1..most }
}

/// Up to this block size a model compares all bytes after each step; above it, after some steps.
pub(crate) const BYTES_CHECKED_EACH_STEP: usize = 1 << 20;

/// A structure with its block, as a shard would drive them.
pub(crate) struct Driver<S> {
    pub(crate) structure: S,
    pub(crate) block: Backing,
    pub(crate) now: Time,
    tickets: u64,
    events: VecDeque<Event>,
}

impl<S: Structure> Driver<S> {
    pub(crate) fn new(size: usize, structure: S) -> Driver<S> {
        let mut block = Backing::map(size, &Reclaimer::inline()).unwrap();
        // As another block of the same job may have left it (`StructureKind::overwrites`).
        block.slice_mut(0..size).fill(0xa5);
        let now = Time::from_millis(1000);
        Driver { structure, block, now, tickets: 0, events: VecDeque::new() }
    }

    /// The output of a flush of the block, and its number of items.
    pub(crate) fn flushed(&mut self) -> (Vec<u8>, u64) {
        let snapshot = self.structure.content().expect("it can be flushed").snapshot((0, u64::MAX));
        let mut bytes = Vec::new();
        let items = snapshot.write(self.block.slice(0..snapshot.length()), &mut bytes).unwrap();
        (bytes, items)
    }

    pub(crate) fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    pub(crate) fn submit(&mut self, op: Op, args: &[u8], payload: &[u8]) -> (Ticket, Outcome) {
        self.submit_until(self.now, op, args, payload)
    }

    /// Runs an operation that may wait.
    pub(crate) fn submit_until(
        &mut self,
        wait_until: Time,
        op: Op,
        args: &[u8],
        payload: &[u8],
    ) -> (Ticket, Outcome) {
        let ticket = self.ticket();
        let operation = Operation { now: self.now, ticket, op, args, wait_until };
        (ticket, self.structure.apply(&mut self.block, &operation, payload))
    }

    /// Runs an operation that must not be parked.
    pub(crate) fn run(&mut self, op: Op, args: &[u8], payload: &[u8]) -> Answer {
        match self.submit(op, args, payload).1 {
            Outcome::Done(answer) => answer,
            Outcome::Parked => panic!("{} was parked", op.name()),
        }
    }

    pub(crate) fn reserve(&mut self, op: Op, args: &[u8], length: usize) -> Result<Ticket, Answer> {
        let ticket = self.ticket();
        let operation = Operation { now: self.now, ticket, op, args, wait_until: self.now };
        let reserved =
            self.structure.streaming().unwrap().reserve(&mut self.block, &operation, length);
        reserved.map(|()| ticket)
    }

    /// Writes the next bytes of a reservation.
    pub(crate) fn feed(&mut self, ticket: Ticket, bytes: &[u8]) {
        let streaming = self.structure.streaming().unwrap();
        streaming.fill(&mut self.block, ticket)[..bytes.len()].copy_from_slice(bytes);
        streaming.filled(ticket, bytes.len());
    }

    /// Commits a reservation.
    pub(crate) fn commit(&mut self, ticket: Ticket) -> Outcome {
        let outcome = self.structure.streaming().unwrap().commit(&mut self.block, self.now, ticket);
        self.hear();
        let own = |event: &Event| matches!(event, Event::Answered(t, _) if *t == ticket);
        match self.events.iter().position(own).and_then(|i| self.events.remove(i)) {
            Some(Event::Answered(_, answer)) => Outcome::Done(answer),
            _ => outcome,
        }
    }

    pub(crate) fn abort(&mut self, ticket: Ticket) {
        self.structure.streaming().unwrap().abort(&mut self.block, self.now, ticket);
    }

    /// Whether subscribers want changes from now on.
    pub(crate) fn watch(&mut self, watched: bool) {
        self.structure.changes().expect("it reports changes").watch(watched);
    }

    fn hear(&mut self) {
        self.events.extend(std::iter::from_fn(|| self.structure.event()));
    }

    /// All pending events.
    pub(crate) fn events(&mut self) -> Vec<Event> {
        self.hear();
        self.events.drain(..).collect()
    }

    /// The next answer to an operation that was parked.
    pub(crate) fn completed(&mut self) -> Option<(Ticket, Answer)> {
        self.hear();
        let at = self.events.iter().position(|e| matches!(e, Event::Answered(..)))?;
        match self.events.remove(at) {
            Some(Event::Answered(ticket, answer)) => Some((ticket, answer)),
            _ => unreachable!("it was just seen there"),
        }
    }

    /// Takes the report that it was sealed: its length, and whether nothing follows.
    pub(crate) fn sealed(&mut self) -> Option<(u64, bool)> {
        self.hear();
        let at = self.events.iter().position(|e| matches!(e, Event::Sealed { .. }))?;
        match self.events.remove(at) {
            Some(Event::Sealed { length, successor, .. }) => Some((length, successor.is_none())),
            _ => unreachable!("it was just seen there"),
        }
    }

    pub(crate) fn set_successor(&mut self, successor: Successor) {
        self.structure.growth().unwrap().successor(&mut self.block, self.now, successor);
    }

    pub(crate) fn ahead(&mut self, items: u64, bytes: u64) {
        self.structure.growth().unwrap().ahead(&mut self.block, self.now, items, bytes);
    }

    pub(crate) fn taken_received(&mut self) {
        self.structure.growth().unwrap().taken_received(&mut self.block, self.now);
    }

    /// Answers a request for the ownership of extents.
    pub(crate) fn adopted(
        &mut self,
        ticket: Ticket,
        owner: u64,
        outcome: Result<(), (Status, String)>,
    ) {
        let adopts = self.structure.adopts().unwrap();
        adopts.adopted(&mut self.block, self.now, Adopted { ticket, owner, outcome });
    }

    /// Lets time pass.
    pub(crate) fn sleep(&mut self, ms: u64) {
        self.now = self.now + std::time::Duration::from_millis(ms);
        self.structure.waits().unwrap().tick(&mut self.block, self.now);
    }

    /// Bytes of the block that are in use or reserved.
    pub(crate) fn structure_bytes(&self) -> usize {
        self.structure.bytes_used() as usize
    }

    /// The payload of an answer, as its receiver sees it.
    pub(crate) fn bytes(&self, answer: &Answer) -> Vec<u8> {
        match &answer.payload {
            Payload::None => Vec::new(),
            Payload::Bytes(bytes) => bytes.to_vec(),
            Payload::Pinned(pin) => pin.bytes().to_vec(),
            Payload::Block(range) => self.block.slice(range.clone()).to_vec(),
            Payload::Parts(_) => unreachable!("all of it is in memory"),
        }
    }
}

/// Bytes that depend on the seed and their position.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    })
    .take(length)
    .collect()
}
