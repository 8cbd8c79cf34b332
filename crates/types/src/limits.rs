//! Every limit of the system, with the derived ones asserted at compile time.
//!
//! Limits that a client of another language must know are defined in `protocol/messages.toml`, and
//! generated here (`wire_limits`); the rest are internal to this implementation.

pub use crate::wire_limits::*;
use std::time::Duration;

/// KiB in bytes.
pub const KIB: u64 = 1024;
/// MiB in bytes.
pub const MIB: u64 = 1024 * KIB;

/// Hashes of one slot of a key-value store: splits and moves are at its multiples.
pub const SLOT_WIDTH: u64 = 1 << (u64::BITS - SLOTS.trailing_zeros());
/// Default block size: that of a file chunk in analytics (paper, 3.1).
pub const BLOCK_SIZE_DEFAULT: u64 = 128 * MIB;
/// Smallest region of a block. It bounds the number of regions: the block size divided by this.
pub const REGION_MIN: u64 = 16 * KIB;
/// Largest region of a key-value block before it is divided (a region with a single large slot
/// grows). The unit of a move, and the most that a put may have to rewrite.
pub const REGION_MAX: u64 = 192 * KIB;
/// An append, a value or an item of more than 1/8 of a block needs blocks of its own.
pub const LARGE_FRACTION: u64 = 8;
/// The longest value that is stored in its entry, and not in an extent of its block: 1/256 of the
/// block, within 1 KiB to 16 KiB.
pub const fn inline_max(block_size: u64) -> u64 {
    match block_size / 256 {
        least if least < KIB => KIB,
        most if most > 16 * KIB => 16 * KIB,
        inline => inline,
    }
}
/// Bytes of an entry for each extent of a large value.
pub const EXTENT_REF: usize = 28;
/// Bytes before these references, which name the owner of the extents.
pub const EXTENT_OWNER: usize = 8;
/// References in the list of a value: as many as fit an entry inside its region.
pub const fn extents_per_value(block_size: u64) -> u64 {
    (inline_max(block_size) - EXTENT_OWNER as u64) / EXTENT_REF as u64
}
/// Largest value whose extents are all in the list of its entry: 9.1 GiB with the default blocks.
pub const fn listed_value_max(block_size: u64) -> u64 {
    extents_per_value(block_size) * (block_size / LARGE_FRACTION)
}
/// References in a list that is an extent itself, in any block: a memory server adopts and drops all of them
/// in one turn.
pub const LIST_EXTENTS_MAX: u64 = 4096;
/// The same, in a block of this size.
pub const fn extents_per_list(block_size: u64) -> u64 {
    match block_size / LARGE_FRACTION / EXTENT_REF as u64 {
        fits if fits < LIST_EXTENTS_MAX => fits,
        _ => LIST_EXTENTS_MAX,
    }
}
/// Levels of lists below the list of a value.
pub const LIST_LEVELS_MAX: u32 = 2;
/// Bytes of a value of a key-value store or an item of a queue at most, whatever the block size.
pub const VALUE_BYTES_MAX: u64 = 1 << 40;
/// Largest value of a key-value store, or item of a queue, with blocks of this size: 22.7 GiB with the
/// smallest ones. A list of lists has a head of the size of a reference.
pub const fn kv_value_max(block_size: u64) -> u64 {
    let (top, lists) = (extents_per_value(block_size) - 1, extents_per_list(block_size));
    let extents = top * (lists - 1) * lists;
    let bytes = extents.saturating_mul(block_size / LARGE_FRACTION);
    if bytes < VALUE_BYTES_MAX { bytes } else { VALUE_BYTES_MAX }
}
/// Largest payload of a client that a memory server gathers before it runs the request: larger ones
/// go straight into the block, if the operation allows that.
pub const fn gathered_max(block_size: u64) -> u64 {
    2 * (block_size / LARGE_FRACTION) + 64
}
/// Bytes of the items that a block of a custom structure adds to a flush, with their lengths. The
/// names of their objects are known in advance (`begin_sweep` in `crates/catalog/src/flush/sweep.rs`).
pub const fn flushed_items_max(block_size: u64) -> u64 {
    block_size + FLUSH_OBJECT_MAX
}
/// A block of extents that has been empty for this long is freed.
pub const EXTENTS_IDLE: Duration = Duration::from_secs(1);
/// Time within which the blocks of extents have to confirm that a value's extents are its own;
/// otherwise the put is refused.
pub const ADOPT_MAX: Duration = Duration::from_secs(2);

/// Memory of freed blocks that a memory server caches for the next block of the same job, for less
/// than a tenth of a second: at most this many bytes ...
pub const FREED_KEPT_MAX: u64 = 512 << 20;
/// ... and at most its memory divided by this, ...
pub const FREED_KEPT_FRACTION: u64 = 8;
/// ... and, if nearly all memory is in use, at most the memory divided by this in addition
/// (INV-32).
pub const FREED_BEYOND_FRACTION: u64 = 64;
/// Memory that a server touches before its blocks need it, while they grow: at most this many bytes
/// by default ...
pub const PAGE_RESERVE_MAX: u64 = 128 << 20;
/// ... and at most its memory divided by this (INV-32).
pub const PAGE_RESERVE_FRACTION: u64 = 64;

/// Maximum number of lower tiers of one server.
pub const TIERS_MAX: usize = 8;
/// Bytes of a block in a lower tier that share a checksum; also the smallest read.
pub const TIER_CHUNK: usize = 16 * 1024;
/// The same for runs of deltas, of which most have fewer bytes than a chunk of a block.
pub const RUN_CHUNK: usize = 4 * 1024;
/// Bytes of one write to a lower tier.
pub const TIER_PIECE: usize = 1024 * 1024;
/// Bytes that one reply reads from a lower tier; a reader of more requests the rest again.
pub const BELOW_READ_MAX: usize = 4 * 1024 * 1024;
/// The memory of a server with tiers divided by this is for blocks in lower tiers: their open ends,
/// and the bytes that are read of them. At least `WARM_BLOCKS_MIN` blocks of each core.
pub const WARM_FRACTION: u32 = 16;
/// See `WARM_FRACTION`.
pub const WARM_BLOCKS_MIN: u32 = 4;
/// The memory of a server with tiers divided by this is, in whole blocks, for changes of blocks in
/// lower tiers that are not written there yet. Twice as much while a disk is slower than its writers.
pub const DELTA_FRACTION: u32 = 16;
/// Bytes of memory for a block in a lower tier: its state, its permissions and its checksums.
pub const BELOW_BYTES: u64 = 1024;
/// The bookkeeping of all blocks in lower tiers takes at most the memory divided by this.
pub const BELOW_FRACTION: u64 = 8;
/// Blocks of one server that are demoted at a time.
pub const LOWERING_MAX: u32 = 8;
/// Blocks that are examined to find the coldest of a prefix.
pub const LOWER_LOOKS: usize = 64;
/// Period over which reads of a block in a lower tier are counted.
pub const HEAT_WINDOW: Duration = Duration::from_secs(4);
/// A block in a lower tier that was read more than this many times over in that period requests
/// promotion.
pub const RAISE_AFTER: u64 = 2;
/// A block that was not promoted requests it again after this, and then after twice as long...
pub const RAISE_AGAIN: Duration = Duration::from_secs(1);
/// ...up to this.
pub const RAISE_AGAIN_MAX: Duration = Duration::from_secs(16);
/// A block that took long to arrive in the write cache may stay as long for its writers, up to this.
pub const WARM_TURN_MAX: Duration = Duration::from_millis(500);
/// A place of the write cache waits so long for clients that read a reply from its memory.
pub const WARM_READ_MAX: Duration = Duration::from_secs(1);
/// A block is promoted while more than this many times as much memory is free as demotions keep
/// free.
pub const RAISE_MARKS: u64 = 2;
/// A block that was used within this time is warm, and is demoted only if no colder one is found.
pub const WARM_FOR: Duration = Duration::from_millis(500);
/// How long a request for memory waits while some may become free soon.
pub const FULL_PATIENCE: Duration = Duration::from_secs(2);
/// If the use is above the mark for this long, the controller advises adding a server.
pub const ADD_AFTER: Duration = Duration::from_secs(5);
/// If the use is below the mark for this long, the controller advises removing a server.
pub const REMOVE_AFTER: Duration = Duration::from_secs(60);
/// How often a fair policy with a history samples what each holder had.
pub const POLICY_QUANTUM: Duration = Duration::from_millis(250);
/// Prefixes of a holder that are examined for its coldest block.
pub const LOWER_PREFIXES: usize = 4096;
/// Holders above their share that are examined for the coldest block, if those further above have
/// none that could be demoted.
pub const LOWER_GIVERS: usize = 16;
/// The greatest weight of a tenant or a job.
pub const SHARE_WEIGHT_MAX: u32 = 1 << 20;
/// A block whose server refused to demote it is not chosen again before this.
pub const LOWER_AGAIN: Duration = Duration::from_secs(1);

/// Blocks of one server that are demoted to an object store at a time, from memory and from disks:
/// they do not limit demotions to disks.
pub const SINKING_MAX: u32 = 8;
/// Blocks of a prefix that are skipped in the search for a block on a disk that can be demoted to a
/// store.
pub const SINK_SCAN: usize = 4096;
/// Pieces of one block that are in transit from a disk to a store at a time.
pub const SINK_PIECES: usize = 4;
/// If a store could not free its space, the request is repeated after this.
pub const DISCARD_AGAIN: Duration = Duration::from_secs(1);
/// How often a server with data in an object store as a lower tier renews its mark there.
pub const TIER_ALIVE_EVERY: Duration = Duration::from_secs(600);
/// The data of a server that has not renewed its mark for this long is deleted by another server.
pub const TIER_LEFTOVER_AFTER: Duration = Duration::from_secs(3600);
/// How long a stopping server may take to delete its data in the object store.
pub const TIER_STOP_MAX: Duration = Duration::from_secs(10);

/// Bytes of the results that one block keeps for retries, over all its lanes.
pub const RETRY_RECORD_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The lane records of all blocks of a server may take its memory divided by this, and at least
/// `RETRY_RECORDS_LEAST` bytes; beyond that mutations are `Busy` until lanes are forgotten.
pub const RETRY_RECORDS_FRACTION: u64 = 32;
/// See `RETRY_RECORDS_FRACTION`.
pub const RETRY_RECORDS_LEAST: u64 = 16 << 20;
/// Lanes that one block remembers.
pub const LANES_PER_BLOCK_MAX: usize = 65_536;

/// Connections that one memory server or controller accepts.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Bytes of replies that may wait for one connection before it is no longer read.
pub const CONNECTION_BACKLOG_MAX: usize = 8 * 1024 * 1024;
/// A connection with outstanding bytes is closed after this time without progress.
pub const CONNECTION_STALL: Duration = Duration::from_secs(10);
/// A reserved large write is given up after this time without progress.
pub const FILL_STALL: Duration = Duration::from_secs(2);
/// A request that arrives slowly has `CONNECTION_STALL`, and one more second for each of this many
/// bytes.
pub const REQUEST_RATE_LEAST: usize = 256 * 1024;
/// Maximum bytes of requests and replies that one server holds; for a memory server, whose memory
/// is bounded (INV-32), `SERVER_BUFFER_LEAST` and its memory divided by `SERVER_BUFFER_FRACTION`.
pub const SERVER_BUFFER_BYTES: usize = 256 * 1024 * 1024;
/// See `SERVER_BUFFER_BYTES`.
pub const SERVER_BUFFER_LEAST: u64 = 24 << 20;
/// See `SERVER_BUFFER_BYTES`.
pub const SERVER_BUFFER_FRACTION: u64 = 32;
/// At most these bytes divided by this may wait for one connection; otherwise four connections that
/// do not read would block all others.
pub const CONNECTION_SHARE: usize = 8;
/// Percent of a server's memory that clients may still map of freed blocks; above it no more is
/// mapped.
pub const OWED_PERCENT_MAX: u64 = 5;
/// Requests that may wait for the copy of one block to be mapped.
pub const LENT_WAITING_MAX: usize = 1024;
/// Bytes of notices that may wait for one subscriber; later notices are dropped, and the gap is
/// reported.
pub const NOTICE_BACKLOG_MAX: usize = 256 * 1024;
/// Subscriptions to one block.
pub const WATCHERS_PER_BLOCK_MAX: usize = 16_384;
/// Messages that may wait in the ring between two shards.
pub const RING_CAPACITY: usize = 4096;

/// Prefixes of one job.
pub const PREFIXES_PER_JOB_MAX: usize = 1 << 20;
/// Edges to children, and edges above, that are followed to report the remaining time of a lease.
pub const LEASE_EDGES_MAX: u64 = 4096;
/// Edges that one command follows to keep exactly the renewals that dead prefixes pass on when they
/// lose their parents.
pub const CARRIED_EDGES_MAX: u64 = 1 << 18;
/// Parents and readers of all nodes of one plan together.
pub const PLAN_EDGES_MAX: usize = 1 << 19;
/// Edges between the prefixes of one job: one for each prefix, and as many more as the largest plan has.
pub const EDGES_PER_JOB_MAX: usize = PREFIXES_PER_JOB_MAX + PLAN_EDGES_MAX;
/// Parents of one prefix.
pub const PARENTS_MAX: usize = 4096;
/// Declared readers of one prefix that have not committed.
pub const READERS_MAX: usize = 65_536;
/// Prefixes that name one reader and wait for its commit: the maximum number of its parents.
pub const READS_MAX: usize = PARENTS_MAX;
/// Large appends to one file at a time, not counting those that are committed.
pub const PRIVATE_CHAINS_MAX: usize = 256;
/// Structures under one prefix.
pub const STRUCTURES_PER_PREFIX_MAX: usize = 65_536;
/// Reasons of loss that a job keeps; the oldest are dropped first.
pub const TOMBSTONES_PER_JOB_MAX: usize = 65_536;
/// Lost leases that a client retains until its caller reads them; the oldest are discarded first.
pub const LOST_LEASES_MAX: usize = 1000;
/// Jobs that one controller holds at a time.
pub const JOBS_MAX: usize = 65_536;
/// Tenants of one controller shard with jobs or a quota, when another one gets a quota.
pub const TENANTS_MAX: usize = 65_536;
/// Assumed concurrent tasks of a job with hints that does not give their number: as in Pocket, the
/// limit of its provider.
pub const HINT_TASKS_DEFAULT: u32 = 1000;
/// Assumed bytes per second that each of these tasks reads and writes: Pocket's 600 Mb/s.
pub const HINT_TASK_BYTES_PER_S: u64 = 75_000_000;
/// Assumed bytes per second of a memory server: the 8000 Mb/s of Pocket's nodes.
pub const HINT_SERVER_BYTES_PER_S: u64 = 1_000_000_000;
/// Assumed bytes per second of a tier of a memory server, for reads and writes, by its medium: for
/// flash on the bus, as much as the network of Pocket's nodes ...
pub const TIER_NVME_BYTES_PER_S: u64 = 1_000_000_000;
/// ... for a disk without further description ...
pub const TIER_SSD_BYTES_PER_S: u64 = 500_000_000;
/// ... and for a rotating disk.
pub const TIER_HDD_BYTES_PER_S: u64 = 100_000_000;
/// The largest hint, in bytes and in bytes per second: a larger one is a mistake in a unit.
pub const HINT_MAX: u64 = 1 << 60;
/// Maximum age of the weights of a job's servers when one of its blocks is placed: Pocket's period.
pub const STEER_EVERY: Duration = Duration::from_secs(1);
/// The period over which reports of servers' load are smoothed.
pub const LOAD_SMOOTHED: Duration = Duration::from_secs(2);
/// A server that is busy for less than this, in thousandths of the time of its cores, gets its full
/// weight ...
pub const STEER_IDLE: u64 = 600;
/// ... and a server that is busy for this much or more gets the least: Pocket's thresholds, 60 and
/// 80 %.
pub const STEER_BUSY: u64 = 800;
/// The least weight of a server with space, in thousandths of its full one.
pub const STEER_LEAST: u64 = 100;
/// How often the use of jobs is written to the log: a restarted controller has lost at most this
/// much of it.
pub const BILL_EVERY: Duration = Duration::from_secs(10);
/// Ended jobs whose use one controller shard keeps.
pub const BILLS_KEPT: usize = 1024;

/// Jobs that were deregistered after their leases had ended, and that the controller still knows as
/// such.
pub const FORMER_JOBS_MAX: usize = 1024;
/// A job whose prefixes have all expired is deregistered after this.
pub const JOB_LINGER: Duration = Duration::from_secs(600);

/// The least capacity of a block, and the unit in which memory is allocated.
pub const CAPACITY_UNIT: u64 = BLOCK_SIZE_MIN;
/// A block with more than one unit has at least so many.
pub const CAPACITY_FIRST: u32 = 4;
/// A block with more units has at least a huge page, unless an eighth of a block is less than that.
pub const CAPACITY_HUGE: u64 = 2 * MIB;
/// Larger capacities are whole numbers of such parts of a block.
pub const CAPACITY_PARTS: u32 = 8;
/// Blocks of a core that can have names, if their units are as many, and if it has room for fewer whole
/// blocks.
pub const BLOCK_NAMES_MIN: u32 = 32_768;

/// Blocks that each server reserves for moves and repairs: at least this many, or 1/50.
pub const RESERVE_BLOCKS_MIN: u32 = 2;
/// The other bound of the reserve: total / this.
pub const RESERVE_FRACTION: u32 = 50;

/// Percent of a block in use at which it grows or splits, by default (paper, 3.3).
pub const HIGH_MARK_DEFAULT: u8 = 95;
/// Percent of a block in use under which it merges, by default. The paper has 5 (3.3); with a
/// higher value, stores that shrink hold less unused memory.
pub const LOW_MARK_DEFAULT: u8 = 40;
/// A granted successor is returned if its block has accepted nothing for this long.
pub const SUCCESSOR_IDLE: Duration = Duration::from_secs(1);

/// Longest path of a flush's directory below the `flush_root`, in bytes.
pub const FLUSH_DIRECTORY_MAX: usize = 1024;
/// The pause after the first failure of a flush; each further one doubles it.
pub const FLUSH_RETRY_FIRST: Duration = Duration::from_millis(100);
/// Memory for copies of records until a store has taken them: this fraction of the server's memory,
/// ...
pub const FLUSH_BUFFERS_FRACTION: u64 = 64;
/// ... at least this many bytes, ...
pub const FLUSH_BUFFERS_MIN: u64 = 8 << 20;
/// ... and at most this many.
pub const FLUSH_BUFFERS_MAX: u64 = 64 << 20;
/// The longest object of a flush, unless it has a single longer record. A failed object is sent
/// again as a whole, so it is no larger; and stores handle much smaller objects badly.
pub const FLUSH_OBJECT_MAX: u64 = 16 << 20;
/// Bytes of one record of a journal, unless it has a single larger change. Changes that arrive
/// during the write of a record are combined in the next one.
pub const JOURNAL_RECORD_MAX: usize = 4 << 20;
/// The longest pause after a record of a journal could not be written: a client waits for it.
pub const JOURNAL_RETRY_MAX: Duration = Duration::from_secs(2);
/// When objects of a failed flush are deleted a second time: writes in progress at the first time
/// are complete by then.
pub const FLUSH_SWEEP_SOON: Duration = Duration::from_secs(1);
/// When these objects are deleted for the last time: after more than twice the time of a request to
/// a store.
pub const FLUSH_SWEEP_AGAIN: Duration = Duration::from_secs(90);
/// How often a block of extents is notified that it must leave its server, during a drain.
pub const EXTENTS_LEAVE_TELL: Duration = Duration::from_secs(20);
/// A block without this notification for this long accepts extents again: the server stays.
pub const EXTENTS_LEAVE_FOR: Duration = Duration::from_secs(60);
/// The first pause between two passes over a store whose large values leave a draining server. A value that
/// was being written when the drain began gets its entry a moment later.
pub const EVACUATION_PAUSE: Duration = Duration::from_millis(500);
/// The longest such pause. A pass reads the whole store, so the pause doubles after each pass that moved no
/// value.
pub const EVACUATION_PAUSE_MAX: Duration = Duration::from_secs(15);
/// Blocks of one server that a flush of a live prefix copies at a time.
pub const FLUSH_COPIES_AT_ONCE: usize = 4;
/// The longest freeze of blocks for the barrier of a flush; each further try has twice as long.
pub const BARRIER_MAX: Duration = Duration::from_millis(200);
/// Tries after which a barrier is given up.
pub const BARRIER_TRIES: u32 = 5;
/// Prefixes of one checkpoint under the uppermost prefix: the controller keeps the outcome of each.
pub const BARRIER_BELOW_MAX: usize = 1000;
/// Prefixes of a subtree flush under the uppermost one.
pub const FLUSH_BELOW_MAX: usize = 16_384;
/// Requested flushes whose result a controller keeps.
pub const FLUSHES_KEPT: usize = 1024;
/// The pause before a client checks the progress of a flush again.
pub const FLUSH_LOOK_FIRST: Duration = Duration::from_millis(2);
/// The longest of these pauses; each is twice the one before.
pub const FLUSH_LOOK_MAX: Duration = Duration::from_millis(200);
/// The longest pause between two attempts of a flush.
pub const FLUSH_RETRY_MAX: Duration = Duration::from_secs(30);

/// A move between blocks that was neither committed nor cancelled for this long is cancelled: its
/// initiator may no longer exist.
pub const MOVE_MAX: Duration = Duration::from_secs(20);
/// Blocks of a job at a core that are divided or merged at a time.
pub const MOVING_MAX: usize = 8;
/// The bytes of these blocks together, unless there is only one.
pub const MOVING_BYTES_MAX: u64 = 32 * MIB;
/// Bytes of a controller's results that are kept for repeated requests.
pub const CONTROL_ANSWERS_MAX: usize = 32 * 1024 * 1024;
/// How long these results are kept, as far as there is space.
pub const CONTROL_ANSWERS_TIME: Duration = Duration::from_secs(600);

/// A stall of a controller's process that is longer is added to all leases.
pub const STALL_LEAST: Duration = Duration::from_millis(50);
/// A controller looks for a stall after this fraction of the time until a lease may end.
pub const LOOK_SHARE: u32 = 40;
/// The shortest time between two looks of a controller for a stall.
pub const LOOK_LEAST: Duration = Duration::from_millis(25);
/// The longest time between two looks of a controller for a stall, while leases run.
pub const LOOK_MAX: Duration = Duration::from_millis(250);
/// After a longer stall every prefix gets a whole lease.
pub const AMNESTY_AFTER: Duration = Duration::from_millis(1000);
/// A server that has been silent for this long is suspected: it gets no blocks.
pub const SERVER_SILENCE: Duration = Duration::from_millis(2500);
/// After this many milliseconds of silence a suspected server is lost, by default.
pub const SERVER_LOSS_DEFAULT_MS: u32 = 15_000;
/// The shortest setting of that silence, in milliseconds: longer than the silence after which a
/// server is suspected.
pub const SERVER_LOSS_MIN_MS: u32 = 3000;
/// The longest setting, in milliseconds.
pub const SERVER_LOSS_MAX_MS: u32 = 3_600_000;
/// Controller shards of one controller: a server's number has 8 bits for them, and a handshake has
/// one more value that means any.
pub const CONTROLLER_SHARDS_MAX: u16 = 64;
/// Blocks of a memory server's core are lent to controller shards in lots of 1/64 of its blocks, at
/// least one.
pub const LOTS_PER_CORE: u32 = 64;
/// A server that had fewer lots than requested is asked again only after this time, unless a
/// request waits.
pub const LOTS_AGAIN: Duration = Duration::from_millis(100);
/// How often a server reports when it has nothing urgent to report.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(250);
/// How often a server reports the task prefixes whose sessions were active: a quarter of the
/// shortest lease.
pub const ACTIVITY_INTERVAL: Duration = Duration::from_millis(LEASE_MIN_MS as u64 / 4);

const _: () = assert!(BLOCK_SIZE_MIN.is_power_of_two() && BLOCK_SIZE_MAX.is_power_of_two());
const _: () = assert!(BLOCK_SIZE_MIN / REGION_MIN >= 4, "the smallest block holds a few regions");
const _: () = assert!(BLOCK_SIZE_MAX / LARGE_FRACTION <= FRAME_MAX as u64);
const _: () = assert!(listed_value_max(BLOCK_SIZE_DEFAULT) > 9 * 1024 * MIB);
const _: () = assert!(kv_value_max(BLOCK_SIZE_MIN) > 22 * 1024 * MIB);
const _: () = assert!(kv_value_max(MIB) == VALUE_BYTES_MAX);
// As docs/limits.md says.
const _: () = assert!(extents_per_value(BLOCK_SIZE_MIN) == 36);
const _: () = assert!(extents_per_value(MIB) == 146);
const _: () = assert!(extents_per_value(BLOCK_SIZE_DEFAULT) == 584);
const _: () = assert!(extents_per_value(BLOCK_SIZE_MAX) == 584);
const _: () = assert!(extents_per_list(BLOCK_SIZE_MIN) == 292);
const _: () = assert!(EXTENT_PENDING_MS >= 3 * RETRY_WINDOW_MS);
const _: () =
    assert!(MESSAGE_LIFE_MS + 2000 <= RETRY_WINDOW_MS, "a copy comes before its record goes");
const _: () = assert!(KEY_MAX as u64 + 64 <= REGION_MIN / 2, "a key fits the smallest region");
const _: () = assert!(2 * LOW_MARK_DEFAULT < HIGH_MARK_DEFAULT && HIGH_MARK_DEFAULT <= 100);
const _: () = assert!(NAME_MAX <= u8::MAX as usize);
const _: () = assert!(SERVER_SILENCE.as_millis() > 4 * REPORT_INTERVAL.as_millis());
const _: () = assert!(SERVER_SILENCE.as_millis() < SERVER_LOSS_MIN_MS as u128);
const _: () = assert!(SERVER_LOSS_MIN_MS < SERVER_LOSS_DEFAULT_MS);
const _: () = assert!(SERVER_LOSS_DEFAULT_MS < SERVER_LOSS_MAX_MS);
const _: () = assert!(LEASE_MIN_MS < LEASE_DEFAULT_MS && LEASE_DEFAULT_MS < LEASE_MAX_MS);
