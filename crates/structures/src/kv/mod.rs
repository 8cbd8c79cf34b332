//! A block of a key-value store.
//!
//! The path of a `put()`: `store.rs` checks it and applies its rules; `ownership.rs` decides whether the
//! block may use the hash; `table.rs` finds and stores the entry, in the region that `ranges.rs` names;
//! `region.rs` encodes its bytes, and `index.rs` its word in the index; `room.rs` decides whether there is
//! room, `heap.rs` makes it, and `pack.rs` collects scattered free bytes; `arena.rs` records which bytes are
//! in use, and `capacity.rs` gives back those that are not needed. Large payloads arrive through `fills.rs`;
//! `scan.rs` reads in order; `batch.rs` runs many operations at once, and `accumulate.rs` combines values
//! with operands. `large.rs` has the rules for values that are lists of extents in blocks of their own, and
//! `taking.rs` deletes such a value after it was read; `below.rs` has the reads of a block in a lower tier,
//! and `changes.rs` its changes, which become deltas (`deltas.rs`).
//!
//! Ranges of hashes move between blocks: `partition.rs` has the store with its moves. `planner.rs` decides
//! when to request one, and `cut.rs` where to split; `export.rs` copies a range to another block, `import.rs`
//! receives one, and `discards.rs` frees the data of a departed range.
//!
//! A block owns a range of hashes and divides it among *regions*: each a contiguous, position-independent run
//! of bytes with its own index, so that moving one is copying it. Values over `inline_max` have extents of
//! their own, written once, so that a reply can be sent straight from them. All of this counts against the
//! block's size, including the bookkeeping outside of the block.

mod accumulate;
pub(crate) mod arena;
mod at_rest;
mod batch;
mod below;
mod capacity;
mod changes;
mod cut;
mod deltas;
mod discards;
mod export;
mod fills;
mod heap;
mod import;
mod index;
mod large;
mod large_values;
mod overflow;
mod ownership;
mod pack;
mod partition;
mod patches;
mod planner;
mod ranges;
mod region;
mod regions;
mod room;
mod scan;
pub(crate) mod shrink;
mod snapshot;
mod store;
mod table;
mod taking;

use crate::adopting::{Adopting, dropped};
use crate::moves::Movable;
use crate::{
    Adopted, Adopts, Answer, Capacity, CapacityRequest, Changes, Content, Enlarge, Event,
    Operation, Ops, Outcome, Streaming, Structure, Waits,
};
use honeycomb_block::Backing;
use honeycomb_types::limits::{KEY_MAX, REGION_MIN};
use honeycomb_types::{BlockId, Marks, Time};
use honeycomb_wire::{Op, Status, key_hash};
use partition::Partition;
pub use planner::splits_from;
pub use scan::PAGE_MAX;
use store::{Incoming, Store};

/// The pause of an operation on a block whose deltas have no room in it yet, in microseconds.
const RETRY_SETTLE_US: u64 = 1000;

/// The longest key that a block of this size accepts.
pub fn key_limit(block_size: usize) -> usize {
    KEY_MAX.min(block_size / 32)
}

/// One block of a key-value store.
pub struct KvBlock {
    partition: Partition,
    /// Puts whose extents are being adopted.
    adopting: Adopting,
}

impl KvBlock {
    /// An empty block that owns the hashes from `start_hash` to `end_hash`, inclusive.
    pub fn new(block_size: usize, start_hash: u64, end_hash: u64, marks: Marks) -> KvBlock {
        let capacity = CapacityRequest::new(block_size, block_size);
        KvBlock::opened(capacity, (start_hash, end_hash), marks)
    }

    /// As `new`, with the first capacity of the block.
    pub fn opened(capacity: CapacityRequest, hashes: (u64, u64), marks: Marks) -> KvBlock {
        assert!(capacity.bytes() >= 4 * REGION_MIN as usize, "a block holds a few regions");
        let store = Store::new(capacity, hashes.0, hashes.1);
        KvBlock { partition: Partition::new(store, marks), adopting: Adopting::default() }
    }

    /// Sets the name of the block, for its errors.
    pub fn named(mut self, block: BlockId) -> KvBlock {
        self.partition.store.table.overflow.set_block(block);
        self
    }

    /// Marks a block that a move will fill: it serves nothing before `end_import`.
    pub fn importing(mut self, move_id: u64) -> KvBlock {
        let ownership = &self.partition.store.ownership;
        let (start, end) = (ownership.start(), ownership.end());
        self.partition.expect(move_id, start, end);
        self
    }

    /// The marks at which the block splits or merges.
    pub fn marks(&self) -> Marks {
        self.partition.planner.marks()
    }

    /// The regions in order: first hash, last hash, bytes in the block (large values excluded).
    pub fn regions(&self) -> impl Iterator<Item = (u64, u64, usize)> + '_ {
        let (table, end) = (&self.partition.store.table, self.partition.store.ownership.end());
        let map = &table.map;
        (0..map.len()).map(move |place| {
            (map.start(place), map.end(place, end), table.region_at(place).packed())
        })
    }

    /// Panics unless the block is consistent. For tests: it reads the whole block.
    pub fn check(&self, block: &Backing) {
        self.partition.check(block);
    }
}

/// The key of an operation that looks up one entry.
fn looked_up(op: Op, args: &[u8]) -> Option<&[u8]> {
    match op {
        Op::KvGet | Op::KvExists | Op::KvUpdate | Op::KvUpsert => Some(args),
        Op::KvPut | Op::KvDelete => args.get(1..),
        _ => None,
    }
}

impl Structure for KvBlock {
    fn streaming(&mut self) -> Option<&mut dyn Streaming> {
        Some(&mut self.partition)
    }

    fn enlarge(&mut self) -> Option<&mut dyn Enlarge> {
        Some(self)
    }

    fn waits(&mut self) -> Option<&mut dyn Waits> {
        Some(self)
    }

    fn changes(&mut self) -> Option<&mut dyn Changes> {
        Some(&mut self.partition.store.events)
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
        Some(&mut self.partition)
    }
}

impl Ops for KvBlock {
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, payload: &[u8]) -> Outcome {
        let (op, args) = (operation.op, operation.args);
        self.partition.store.table.heap.arena.sweep_some(block);
        self.partition.sweep(block);
        let store = &mut self.partition.store;
        if store.deltas.is_some() && !changes::settle(store, block) {
            return Outcome::Done(crate::busy(RETRY_SETTLE_US));
        }
        store.table.heap.look_at_slack(operation.now);
        let result = match op {
            Op::KvGet => store.get(block, args),
            Op::KvPut | Op::KvUpdate | Op::KvUpsert => {
                store.mutate(block, op, args, Incoming::Bytes(payload))
            }
            Op::KvPutExtents => {
                match large::begin(&mut self.adopting, store, block, operation, payload) {
                    Ok(()) => return Outcome::Parked,
                    Err(refusal) => Err(refusal),
                }
            }
            Op::KvDelete => store.delete(block, args),
            Op::KvDeleteExtents => store.delete_extents(block, args, payload),
            Op::KvExists => store.exists(block, args),
            Op::KvCompareAndSwap => store.swap(block, args, payload),
            Op::KvScan => store.scan(block, args),
            Op::KvLength => store.length(block, args),
            Op::KvMultiGet => store.multi_get(block, args, payload),
            Op::KvBatch => store.batch(block, args, payload),
            Op::KvAccumulate => store.accumulate(block, args, payload),
            Op::MoveRegion
            | Op::MovePatch
            | Op::MoveValue
            | Op::MoveDrops
            | Op::MoveDone
            | Op::MoveState => self.partition.receive(block, op, args, payload),
            other => panic!("{} is no operation of a key-value store", other.name()),
        };
        Outcome::Done(result.unwrap_or_else(|refusal| refusal))
    }

    #[inline]
    fn prefetch(&self, block: &Backing, op: Op, args: &[u8]) -> Option<u64> {
        let hash = key_hash(looked_up(op, args)?);
        let region = self.partition.store.table.prefetch_index(block, hash)?;
        Some((region as u64) << 32 | hash as u32 as u64)
    }

    #[inline]
    fn prefetch_more(&self, block: &Backing, hint: u64) {
        let regions = &self.partition.store.table.heap.regions;
        if let Some(region) = regions.get_if_any((hint >> 32) as u32) {
            region.prefetch_entry(block, hint as u32);
        }
    }

    fn event(&mut self) -> Option<Event> {
        let Store { events, table, .. } = &mut self.partition.store;
        let dropped = || table.dropped.pop().map(|stored| dropped(&stored));
        events.pop().or_else(dropped).or_else(|| self.adopting.event())
    }

    fn bytes_used(&self) -> u64 {
        let Partition { store, fills, .. } = &self.partition;
        let deltas = store.deltas.as_ref().map_or(0, |deltas| deltas.grows);
        (store.table.heap.taken() + deltas + fills.bytes() + self.adopting.bytes()) as u64
    }

    fn record_hash(&self, op: Op, args: &[u8]) -> Option<u64> {
        let key = match op {
            Op::KvPut | Op::KvPutExtents | Op::KvDelete => args.get(1..)?,
            Op::KvUpdate | Op::KvUpsert | Op::KvDeleteExtents => args,
            Op::KvCompareAndSwap => args.get(3..)?,
            Op::KvAccumulate => args.get(1..)?,
            // A batch has many keys, and its record stays with the block that ran it.
            _ => return None,
        };
        Some(honeycomb_wire::key_hash(key))
    }
}

impl Enlarge for KvBlock {
    fn wants_capacity(&mut self, expected: usize) -> Option<usize> {
        let Store { table, deltas, .. } = &mut self.partition.store;
        let grows = deltas.as_ref().map_or(0, |deltas| deltas.grows);
        table.heap.capacity.wanted(table.heap.taken() + grows, expected)
    }

    fn capacity(&mut self, _block: &mut Backing, now: Time, answer: Capacity) {
        self.partition.store.table.heap.set_capacity(now, answer);
    }

    fn give_capacity(&mut self, block: &mut Backing, now: Time) -> Option<usize> {
        self.partition.give_capacity(block, now)
    }

    fn repeats(&self) -> bool {
        self.partition.store.table.heap.capacity.repeats()
    }
}

impl Waits for KvBlock {
    fn tick(&mut self, block: &mut Backing, now: Time) {
        let store = &mut self.partition.store;
        store.table.heap.arena.sweep(block);
        store.table.heap.look_at_slack(now);
        store.table.heap.return_memory(block, now);
        for ready in self.adopting.ready(now) {
            large::complete(&mut self.adopting, store, block, now, ready);
        }
    }

    fn deadline(&self) -> Option<Time> {
        let heap = &self.partition.store.table.heap;
        heap.return_due().into_iter().chain(self.adopting.due()).min()
    }
}

impl Adopts for KvBlock {
    fn adopted(&mut self, block: &mut Backing, now: Time, adopted: Adopted) {
        large::complete(&mut self.adopting, &mut self.partition.store, block, now, adopted);
    }
}

/// A common refusal that its status explains well enough: no message to allocate.
fn bare(status: Status) -> Answer {
    Answer { status, ..Answer::ok(0) }
}
