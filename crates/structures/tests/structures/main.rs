//! The structures against plain reference models, and their rules one by one.
#![allow(clippy::unwrap_used)] // all of it is test code, helpers included

mod file_model;
mod file_rules;
mod kv_model;
mod kv_rules;
mod lanes;
mod many_rules;

use honeycomb_block::{Backing, Reclaimer};
use honeycomb_structures::{Answer, Outcome, Payload, Structure, Ticket};
use honeycomb_wire::Op;

/// A structure with its block, as a shard would drive them.
pub(crate) struct Driver<S> {
    pub(crate) structure: S,
    pub(crate) block: Backing,
    tickets: u64,
}

impl<S: Structure> Driver<S> {
    pub(crate) fn new(size: usize, structure: S) -> Driver<S> {
        let block = Backing::map(size, &Reclaimer::inline()).unwrap();
        Driver { structure, block, tickets: 0 }
    }

    pub(crate) fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    pub(crate) fn submit(&mut self, op: Op, args: &[u8], payload: &[u8]) -> (Ticket, Outcome) {
        let ticket = self.ticket();
        (ticket, self.structure.apply(&mut self.block, ticket, op, args, payload))
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
        self.structure.reserve(&mut self.block, ticket, op, args, length).map(|()| ticket)
    }

    /// Writes the next bytes of a reservation.
    pub(crate) fn feed(&mut self, ticket: Ticket, bytes: &[u8]) {
        let place = self.structure.fill(&mut self.block, ticket);
        place[..bytes.len()].copy_from_slice(bytes);
        self.structure.filled(ticket, bytes.len());
    }

    pub(crate) fn commit(&mut self, ticket: Ticket) -> Outcome {
        self.structure.commit(&mut self.block, ticket)
    }

    pub(crate) fn abort(&mut self, ticket: Ticket) {
        self.structure.abort(&mut self.block, ticket);
    }

    /// Bytes of the block that are spoken for.
    pub(crate) fn structure_bytes(&self) -> usize {
        self.structure.bytes_used() as usize
    }

    /// The payload of an answer, as its receiver sees it.
    pub(crate) fn bytes(&self, answer: &Answer) -> Vec<u8> {
        match &answer.payload {
            Payload::None => Vec::new(),
            Payload::Bytes(bytes) => bytes.to_vec(),
            Payload::Block(range) => self.block.slice(range.clone()).to_vec(),
        }
    }
}

/// Bytes that tell where they came from.
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
