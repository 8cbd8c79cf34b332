//! A memory server: one state machine per core, with the I/O around it.
//!
//! `shard` decides (pure, no I/O, what the simulator runs); `conn` moves bytes between sockets and
//! the shard; `peers` does so for moves between blocks; `link` talks to a controller shard, `links`
//! to all; `lots` is what each of them may use; `flush` writes what shall stay, `spill` what need not; `lend` copies what clients
//! map; `server` starts the threads.
#![forbid(unsafe_code)]

mod alarm;
mod authorize;
mod below;
mod conn;
mod flush;
mod holdings;
mod kept;
mod lend;
mod link;
mod links;
mod lots;
mod notes;
mod pace;
mod peers;
mod refusals;
mod server;
mod shard;
mod spill;
mod watch;

pub use below::{WrongTiers, check as check_tiers};
pub use kept::{KeptBytes, KeptFault, Parts};
pub use links::{Departure, ValuesLeave};
pub use lots::Lots;
pub use server::{DiskOptions, MemoryServer, ServerOptions};
pub use shard::{
    Access, BlockOwner, Effect, JournalBegin, JournalWrite, LineKey, MoveKey, MoveWord, Post,
    PostPayload, Shard, ShardConfig, Stage, TierCounts,
};
pub use spill::{Io, IoDone, IoId, IoWhat};
