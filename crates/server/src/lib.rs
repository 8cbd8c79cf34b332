//! A memory server: one state machine per core, with the I/O around it.
//!
//! `shard` decides (pure, no I/O; the simulator runs it). `conn` moves bytes between sockets and the shard,
//! and `peers` does so for moves between blocks. `link` is the connection to one controller shard, `links`
//! those to all; `lots` is the share of each. `flush` writes data to be retained, `spill` data in lower
//! tiers; `lend` copies blocks that clients map; `server` starts the threads.
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
mod sums;
mod watch;

pub use below::{WrongTiers, check as check_tiers};
pub use kept::{KeptBytes, KeptFault, VolumeParts};
pub use links::{Departure, ValuesLeave};
pub use lots::Lots;
pub use server::{DiskOptions, MemoryServer, ReserveOptions, ServerOptions, check_addresses};
pub use shard::{
    BlockMessage, BlockOwner, CallerAccess, Effect, ExportWork, ExtentsWork, ImportWork,
    JournalBegin, JournalWork, JournalWrite, Lending, MoveKey, MoveWord, NewUse, Outbox, Owners,
    PeerEvent, PeerKey, Post, PostPayload, PresentUse, Reports, RequestWork, Shard, ShardConfig,
    TierCounts, TierWork,
};
pub use spill::{Io, IoDone, IoId, IoWhat};
pub use sums::Sums;
