//! The data structures: pure state machines over a block, and the internal interface for writing a new one
//! (paper, 4.1).
//!
//! A structure owns the layout of one block's bytes, and a small amount of bookkeeping outside of the block,
//! which is charged to the block. It does no I/O and has neither clock nor connection. The shard passes it
//! one operation at a time, so an operation is atomic because one thread runs it. A new structure is an
//! implementation of `StructureKind`, `Structure`, `Ops` and the traits of its capabilities in a crate of its
//! own, registered with the server that serves it. The built-in structures are registered in the same way
//! and use no other interface. A new structure needs no other crate than this one; `docs/structures.md` walks
//! through one.
//!
//! A `put()` is executed in `kv` (the table, `kv/mod.rs`), an append in `file` (append-only bytes). Before
//! both, `lanes` decides whether a mutation is new, a retry or out of order.
#![forbid(unsafe_code)]

mod adopting;
mod bytes;
mod capacity;
mod content;
mod events;
mod extent;
mod file;
mod growth;
mod journaled;
mod kind;
mod kv;
mod lanes;
mod migration;
mod moves;
mod ops;
mod pieces;
mod queue;
mod snapshot;
mod waits;

pub use bytes::{Bytes, Fetched};
pub use capacity::{Capacity, CapacityRequest, Enlarge};
pub use content::{Content, DeltaBytes, LowerTierChanges, LowerTierReads, Rest, Sealed};
pub use extent::ExtentBlock;
pub use file::FileBlock;
pub use growth::{Growth, Successor, SuccessorRequest, moved, received_successor};
pub use honeycomb_types::Marks;
pub use journaled::{Ends, Journaled, ToStore};
pub use kind::{Attributes, Opening, Registered, Registry, StructureKind};
pub use kv::{KvBlock, PAGE_MAX as KV_PAGE_MAX, key_limit, splits_from};
pub use lanes::{LaneRoom, LaneVerdict, Lanes};
pub use migration::{Migrate, Migrating};
pub use moves::{Arrival, Movable, MoveRequest, Parcel, Prepared, Totals};
pub use ops::{
    Answer, Event, Operation, Ops, Outcome, Part, Payload, Streaming, Structure, Ticket, busy,
};
pub use queue::{QueueBlock, QueueBounds};
pub use snapshot::{ItemFault, ItemSink, Snapshot};
pub use waits::{Adopted, Adopts, Changes, Waits};

// Re-exports for structures in other crates, so that they depend on nothing else.
pub use honeycomb_block::{Backing, Pin, Reclaimer};
pub use honeycomb_types::{
    BlockId, CustomKind, InvalidKind, Kind, KindSpec, OperationSpec, Route, Router, Time, Verbs,
};
pub use honeycomb_wire::custom::{Routed, put_routed};
pub use honeycomb_wire::extents::ExtentRef;
pub use honeycomb_wire::notice::Change;
pub use honeycomb_wire::{Malformed, Op, Status};

use honeycomb_types::Bug;
use honeycomb_types::limits::LARGE_FRACTION;

/// The largest value, item or append that a block of this size accepts.
pub fn large_limit(block_size: usize) -> usize {
    block_size / LARGE_FRACTION as usize - usize::from(Bug::LargestRefused.active())
}
