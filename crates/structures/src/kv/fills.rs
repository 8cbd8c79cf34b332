//! Large payloads in transfer: reserved, filled piece by piece, and checked when complete.
//!
//! The effect of an operation is decided at its commit, by the entry that exists then (INV-15). Until then it
//! has changed only the free space.

use super::batch::too_much;
use super::import::Import;
use super::partition::Partition;
use super::store::{Incoming, Store};
use super::table::Table;

use crate::{Answer, Ticket, large_limit};
use hashbrown::HashMap;
use honeycomb_block::Backing;
use honeycomb_types::limits::FRAME_MAX;
use honeycomb_wire::data::{PutMode, SwapArgs};
use honeycomb_wire::{Checksum, Op, Status};
use std::ops::Range;

/// Bytes before the expected value in the payload of a compare-and-swap.
const SWAP_PREFIX: usize = 4;

/// One arriving payload.
pub(super) struct Fill {
    op: Op,
    args: Box<[u8]>,
    /// Its extent.
    pub large: u32,
    length: usize,
    filled: usize,
    /// For a part of a move: the number of bytes in the checksum so far, and its state.
    sum: Option<(usize, Checksum)>,
}

/// The arriving payloads: at most as many as there are free extents.
#[derive(Default)]
pub(super) struct Fills {
    open: HashMap<Ticket, Fill>,
    bytes: usize,
}

impl Fill {
    fn cost(&self) -> usize {
        size_of::<(Ticket, Fill)>() + self.args.len()
    }

    /// Adds the new bytes to the checksum: early, while they are in the cache, and not all of them at the
    /// end.
    fn sum_up(&mut self, table: &Table, block: &Backing) {
        if let Some((done, sum)) = &mut self.sum {
            let at = table.heap.values.place(self.large).start;
            sum.add(block.slice(at + *done..at + self.filled));
            *done = self.filled;
        }
    }
}

impl Fills {
    /// The part of the block that is still to be filled.
    pub fn rest(&mut self, table: &Table, block: &Backing, ticket: Ticket) -> Range<usize> {
        let fill = self.open.get_mut(&ticket).expect("the shard names reservations that are open");
        fill.sum_up(table, block);
        let place = table.heap.values.place(fill.large);
        place.start + fill.filled..place.end
    }

    pub fn filled(&mut self, ticket: Ticket, n: usize) {
        let fill = self.open.get_mut(&ticket).expect("the shard names reservations that are open");
        fill.filled += n;
        assert!(fill.filled <= fill.length, "more was filled than was reserved");
    }

    pub fn take(&mut self, ticket: Ticket) -> Fill {
        let fill = self.open.remove(&ticket).expect("the shard ends reservations that are open");
        let (all, cost) = (self.bytes, fill.cost());
        assert!(all >= cost, "INV-33: a payload with {cost} bytes ends, and {all} are counted");
        self.bytes -= cost;
        fill
    }

    /// Bytes of the records beside the block.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub fn add(&mut self, ticket: Ticket, op: Op, args: &[u8], large: u32, length: usize) {
        let moves = matches!(op, Op::MoveRegion | Op::MovePatch | Op::MoveValue);
        let sum = moves.then(|| (0, Checksum::default()));
        let fill = Fill { op, args: args.into(), large, length, filled: 0, sum };
        self.bytes += fill.cost();
        let before = self.open.insert(ticket, fill);
        assert!(before.is_none(), "INV-07: {ticket:?} has two payloads");
    }

    pub fn check(&self, table: &Table) {
        for fill in self.open.values() {
            assert_eq!(table.heap.values.place(fill.large).len(), fill.length);
        }
        assert_eq!(self.bytes, self.open.values().map(Fill::cost).sum::<usize>());
    }
}

impl Partition {
    /// Makes room for a payload that will arrive piece by piece.
    pub fn begin_fill(
        &mut self,
        block: &mut Backing,
        ticket: Ticket,
        op: Op,
        args: &[u8],
        length: usize,
    ) -> Result<(), Answer> {
        let key = match op {
            Op::KvMultiGet
            | Op::KvBatch
            | Op::KvAccumulate
            | Op::KvPutExtents
            | Op::KvDeleteExtents => return Err(too_much(length)),
            Op::MoveRegion | Op::MovePatch | Op::MoveValue | Op::MoveState => {
                Import::admit(self.import.as_mut(), op, args)?;
                let extent = self.store.table.alloc_for_part(block, length)?;
                self.fills.add(ticket, op, args, extent, length);
                return Ok(());
            }
            Op::KvPut => PutMode::and_key(args)?.1,
            Op::KvUpdate | Op::KvUpsert => args,
            Op::KvCompareAndSwap => SwapArgs::decode(args, &[0; SWAP_PREFIX])?.key,
            other => panic!("{} carries no payload", other.name()),
        };
        self.store.admit_change(key)?;
        match op {
            // It holds two values; which of them is too large is known only when they have arrived.
            Op::KvCompareAndSwap => {
                let most = (2 * large_limit(self.store.size()) + SWAP_PREFIX).min(FRAME_MAX);
                if length > most {
                    let message =
                        format!("a payload of {length} bytes is over the limit of {most}");
                    return Err(Answer::refuse(Status::ValueTooLarge, message));
                }
            }
            _ => self.store.admit_value(length)?,
        }
        let large = self.store.table.alloc_large(block, length, 0)?;
        self.fills.add(ticket, op, args, large, length);
        Ok(())
    }

    /// Applies an operation whose payload is complete.
    pub fn end_fill(&mut self, block: &mut Backing, ticket: Ticket) -> Result<Answer, Answer> {
        let mut fill = self.fills.take(ticket);
        fill.sum_up(&self.store.table, block);
        let Fill { op, args, large, length, filled, sum } = fill;
        assert_eq!(filled, length, "INV-07: only a complete payload is committed");
        if let Some((_, sum)) = sum {
            return match Import::admit(self.import.as_mut(), op, &args) {
                Ok(import) => {
                    import.take_extent(&mut self.store, block, (op, &args), large, sum.value())
                }
                Err(refusal) => {
                    self.store.table.heap.free_value(block, large);
                    Err(refusal)
                }
            };
        }
        if op == Op::KvCompareAndSwap {
            return self.store.end_swap(block, &args, large);
        }
        if length > self.store.inline_max {
            return self.store.mutate(block, op, &args, Incoming::Extent(large));
        }
        let bytes = self.store.take_bytes(block, large, 0);
        self.store.mutate(block, op, &args, Incoming::Bytes(&bytes))
    }
}

impl Store {
    /// Applies a compare-and-swap whose payload is in an extent.
    fn end_swap(&mut self, block: &mut Backing, args: &[u8], large: u32) -> Result<Answer, Answer> {
        let place = self.table.heap.values.place(large);
        let compared = self.compare_fill(block, args, place.clone());
        let (hash, key_range, skip) = match compared {
            Ok(swap) => swap,
            Err(refusal) => {
                self.table.heap.free_value(block, large);
                return Err(refusal);
            }
        };
        let key = &args[key_range];
        let new_len = place.len() - skip;
        if new_len <= self.inline_max {
            let bytes = self.take_bytes(block, large, skip);
            let old = self.table.find(block, hash, key);
            self.set(block, hash, key, old, Incoming::Bytes(&bytes))?;
            return Ok(Answer::ok(0));
        }
        self.table.heap.trim_value(block, large, skip, new_len);
        let old = self.table.find(block, hash, key);
        let stored = self.set(block, hash, key, old, Incoming::Extent(large));
        if let Err(refusal) = stored {
            self.table.heap.free_value(block, large);
            return Err(refusal);
        }
        Ok(Answer::ok(0))
    }

    /// Checks a compare-and-swap whose payload is in the block; returns the hash, the range of the key in the
    /// arguments, and the offset of the new value in the payload.
    fn compare_fill(
        &self,
        block: &Backing,
        args: &[u8],
        place: Range<usize>,
    ) -> Result<(u64, Range<usize>, usize), Answer> {
        let payload = block.slice(place);
        let SwapArgs { present, key, expected, new } = SwapArgs::decode(args, payload)?;
        let hash = self.admit_change(key)?;
        self.admit_value(new.len())?;
        self.compare(block, hash, key, present.then_some(expected))?;
        Ok((hash, args.len() - key.len()..args.len(), payload.len() - new.len()))
    }

    /// Copies a short value out of its extent, from `skip` on, and frees the extent.
    fn take_bytes(&mut self, block: &mut Backing, large: u32, skip: usize) -> Vec<u8> {
        let place = self.table.heap.values.place(large);
        let bytes = block.slice(place.start + skip..place.end).to_vec();
        self.table.heap.free_value(block, large);
        bytes
    }
}
