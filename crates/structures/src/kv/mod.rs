//! Skeleton, being written.
use crate::{Answer, Outcome, Structure, Successor, Ticket};
use honeycomb_block::Backing;
use honeycomb_types::limits::KEY_MAX;
use honeycomb_wire::{Op, Status};

/// The longest key that a block of this size takes.
pub fn key_limit(block_size: usize) -> usize {
    KEY_MAX.min(block_size / 32)
}

/// One block of a key-value store.
pub struct KvBlock {}

impl KvBlock {
    /// An empty block that owns the hashes from `start_hash` to `end_hash`, inclusive.
    pub fn new(_block_size: usize, _start_hash: u64, _end_hash: u64, _slots: u32) -> KvBlock {
        KvBlock {}
    }
}

impl Structure for KvBlock {
    fn apply(
        &mut self,
        _block: &mut Backing,
        _ticket: Ticket,
        _op: Op,
        _args: &[u8],
        _payload: &[u8],
    ) -> Outcome {
        Outcome::Done(Answer::refuse(Status::Internal, "under construction"))
    }

    fn reserve(
        &mut self,
        _block: &mut Backing,
        _ticket: Ticket,
        _op: Op,
        _args: &[u8],
        _length: usize,
    ) -> Result<(), Answer> {
        Err(Answer::refuse(Status::Internal, "under construction"))
    }

    fn fill<'b>(&mut self, block: &'b mut Backing, _ticket: Ticket) -> &'b mut [u8] {
        block.slice_mut(0..0)
    }

    fn filled(&mut self, _ticket: Ticket, _n: usize) {}

    fn commit(&mut self, _block: &mut Backing, _ticket: Ticket) -> Outcome {
        Outcome::Done(Answer::refuse(Status::Internal, "under construction"))
    }

    fn abort(&mut self, _block: &mut Backing, _ticket: Ticket) {}

    fn completed(&mut self) -> Option<(Ticket, Answer)> {
        None
    }

    fn bytes_used(&self) -> u64 {
        0
    }

    fn wants_successor(&mut self) -> bool {
        false
    }

    fn set_successor(&mut self, _successor: Successor) {}

    fn sealed(&mut self) -> Option<(u64, bool)> {
        None
    }
}
