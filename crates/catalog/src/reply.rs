//! The replies of the catalog, and its requests to memory servers.

use crate::{
    Advice, Allowance, BillInfo, CatalogError, Estimate, Hints, Holder, ShareInfo, TierAlarm,
    TierTraffic, TierWeight, Weight, Written,
};
use honeycomb_types::{
    AnnouncedKind, BlockAt, Epoch, Generation, JobId, Kind, MapVersion, Marks, MoveId, PolicyKind,
    PrefixId, Router, ServerId, StructureId, TierClass, TierIx, Verbs,
};
use std::sync::Arc;
use std::time::Duration;

/// The answer to a command that succeeded.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // The fields are those of the replies of the same names.
pub enum Reply {
    /// Done, without further content.
    Done,
    /// RegisterJob, FindJob.
    Job { job: JobId, root: PrefixId, holder: Holder },
    /// SetQuota, Quota: the limits, the blocks held, and those in memory; nothing is counted for a prefix
    /// that has no quota.
    Quota { allowed: Allowance, held: u64, in_memory: u64 },
    /// JobWeights: empty for a job without hints.
    Weights { expected: Estimate, weights: Vec<Weight>, tiers: Vec<TierWeight> },
    /// JobBills: those of ended jobs first, in order.
    Bills(Vec<BillInfo>),
    /// ListKinds, in order of code: each with the number of live servers that serve it.
    Kinds(Vec<(Arc<AnnouncedKind>, u32)>),
    /// ListJobs, in order of registration.
    Jobs(Vec<JobInfo>),
    /// JobTree: parents before children, the first is the root.
    Tree(Vec<PrefixInfo>),
    /// CreatePrefix.
    Prefix(PrefixId),
    /// CreateHierarchy, in the order of the plan.
    Prefixes(Vec<PrefixId>),
    /// RenewLeases, in the order of the request: the lease in milliseconds, or the error.
    Renewed(Vec<Result<u32, CatalogError>>),
    /// LeaseInfo.
    Lease(LeaseInfo),
    /// DeclareReaders: readers that have not committed; 0 when the prefix was freed or the
    /// declaration withdrawn.
    Readers { left: u32 },
    /// CommitTask: the number of prefixes freed by it.
    Committed { freed: u32 },
    /// CreateStructure, OpenStructure, ReopenStructure.
    Opened(Opened),
    /// GrowBlock: the bytes that the block may hold.
    Capacity { bytes: u64 },
    /// ExtentBlocks.
    Extents(Vec<MapEntry>),
    /// FlushPrefix: the number of the flush, and its full location.
    Flushing { number: u64, place: Box<str> },
    /// FlushInfo.
    FlushInfo(FlushProgress),
    /// LocateFlush: the full location, and the flush under way there.
    FlushPlace { place: Box<str>, progress: FlushProgress, live: Option<u64> },
    /// ClusterStatus.
    Status(ClusterStatus),
    /// StopCluster.
    Stopping(StopProgress),
    /// JoinServer.
    Joined(ServerId),
    /// GrowStructure, BeginAppend: the successor or first block, whose `start` is 0 until the caller's end is
    /// known, and the map version that the caller's seal will make.
    Grown { version: MapVersion, entry: MapEntry },
    /// CommitAppend: blocks that are allocated later have greater epochs.
    Appended { epoch: Epoch },
    /// SealBlock: the map version after it.
    Sealed { version: MapVersion },
    /// BeginMove: the target, and the range that moves.
    Moving { id: MoveId, entry: MapEntry },
    /// CommitMove: the map version, and the target with its whole range.
    Moved { version: MapVersion, entry: MapEntry },
}

/// One entry of a list of jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobInfo {
    /// The job.
    pub job: JobId,
    /// Its name, with that of its tenant before it.
    pub name: Box<str>,
    /// Live prefixes.
    pub prefixes: u64,
    /// Of these, pinned.
    pub pinned: u64,
    /// Live structures.
    pub structures: u64,
    /// Blocks allocated.
    pub blocks: u64,
    /// Bytes of data in them, as last reported.
    pub bytes_used: u64,
    /// Time since it was registered.
    pub age_ms: u64,
    /// Most blocks that it may hold; 0 for no quota.
    pub quota: u64,
    /// Its hints.
    pub hints: Hints,
    /// The use expected from these hints.
    pub expected: Estimate,
}

/// The state of a prefix; the code is that of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PrefixState {
    /// Its lease runs.
    Live = 0,
    /// Its lease has expired; it keeps its name for its descendants.
    Expired = 1,
    /// Live, but a server loss took some of its data.
    DataLost = 2,
    /// It was removed by request, or its declared readers had all committed; it keeps its name for its
    /// descendants.
    Removed = 3,
}

/// One node of a job's address DAG.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixInfo {
    /// The prefix.
    pub prefix: PrefixId,
    /// Its name; empty for the root.
    pub name: Box<str>,
    /// Its parents: the named ones in their order, then those deduced from use in theirs.
    pub parents: Vec<PrefixId>,
    /// Its lease.
    pub lease_ms: u32,
    /// Time left; negative when it has expired; `i64::MAX` when pinned.
    pub remaining_ms: i64,
    /// Never expires.
    pub pinned: bool,
    /// Its state.
    pub state: PrefixState,
    /// Its structures, the newest first.
    pub structures: Vec<StructureInfo>,
    /// Declared readers that have not committed; 0 also when none is declared.
    pub readers_left: u32,
    /// The attempt of its task has committed.
    pub committed: bool,
    /// The marks at which its blocks grow and merge.
    pub marks: Marks,
    /// Most blocks of the prefix with its descendants; 0 means unbounded.
    pub max_blocks: u64,
    /// Blocks that count towards that bound; 0 without one.
    pub held_blocks: u64,
    /// The place to which its data is flushed when its lease expires; empty when the data is discarded.
    pub flush_to: Box<str>,
    /// The state of that flush.
    pub flush: FlushState,
    /// It outlives its job.
    pub persist: bool,
    /// The durability at which a change is acknowledged.
    pub acknowledge: u8,
}

/// The journal into which changes of a block are written before they are acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalAt {
    /// The directory, below the servers' roots.
    pub directory: Box<str>,
    /// The unique tag of the prefix's journal, never reused.
    pub tag: Box<str>,
    /// Name of the job.
    pub job_name: Box<str>,
    /// Path of the prefix.
    pub address: Box<str>,
    /// Name of the structure.
    pub name: Box<str>,
}

/// The state of a prefix's flush; the wire has a code for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FlushState {
    /// It has not begun, or there is none.
    #[default]
    None,
    /// Its data is being written.
    Writing,
    /// The last attempt failed, for this reason; it will be retried.
    Failing(Arc<str>),
    /// It is complete and in its place.
    Done,
    /// It failed for good: this was lost before.
    Lost(Arc<str>),
    /// It failed for good: all blocks were never frozen at the same moment.
    NoCut(Arc<str>),
}

/// The progress of a requested flush.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlushProgress {
    /// Its state.
    pub state: FlushState,
    /// Number of blocks to write.
    pub parts: u32,
    /// Number of these that are written.
    pub done: u32,
    /// Bytes written.
    pub bytes: u64,
}

/// The progress of the end of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopProgress {
    /// Jobs that have not ended.
    pub jobs: u64,
    /// Flushes under way.
    pub flushes: u64,
    /// Of these, those whose last attempt failed.
    pub failing: u64,
    /// Flushes that were lost with a server since the stop began.
    pub lost: u64,
    /// Blocks of the flushes under way.
    pub parts: u64,
    /// Of these, those that are written.
    pub done: u64,
    /// Bytes that these flushes have written.
    pub bytes: u64,
    /// Incomplete flushes, each with its directory and the reason; failing ones come first.
    pub unflushed: Vec<Unflushed>,
}

/// A flush that is incomplete, or was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unflushed {
    /// The directory, below the servers' `flush_root`.
    pub directory: Arc<str>,
    /// The cause of the last failure, the blocks lost, or its progress.
    pub why: Box<str>,
}

/// One flushed structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushedStructure {
    /// Its name; empty for the unnamed one.
    pub name: Box<str>,
    /// Its kind.
    pub kind: Kind,
    /// Name of a custom kind; empty for a built-in one, and until a server announces the kind.
    pub kind_name: Arc<str>,
    /// Whether its kind is flushed.
    pub flushes: bool,
    /// Whether it was sealed.
    pub sealed: bool,
    /// Bound of a queue, in items; 0 for none.
    pub max_items: u64,
    /// Bound of a queue, in bytes; 0 for none.
    pub max_bytes: u64,
    /// In the order of the structure.
    pub parts: Vec<FlushedPart>,
}

/// The content of one block of a structure, in one or several objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushedPart {
    /// Name of the first object within the directory of the flush; `flush_object` has the others.
    pub name: Box<str>,
    /// First position of the block's range, as in a partition map.
    pub start: u64,
    /// The written objects, in order; empty before they are written.
    pub objects: Vec<Written>,
}

/// One structure of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StructureInfo {
    /// The structure.
    pub structure: StructureId,
    /// Its name; empty for the unnamed one.
    pub name: Box<str>,
    /// Its kind.
    pub kind: Kind,
    /// Blocks allocated, including those reserved as successors and the targets of moves.
    pub blocks: u32,
    /// Bytes of data in them, as last reported.
    pub bytes_used: u64,
    /// A sealed file.
    pub sealed: bool,
}

/// A prefix's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// The prefix.
    pub prefix: PrefixId,
    /// Its duration.
    pub lease_ms: u32,
    /// Time left; `i64::MAX` when pinned. A lower bound if more than `LEASE_EDGES_MAX` edges lead to the
    /// prefix's children, or to its ancestors.
    pub remaining_ms: i64,
    /// Never expires.
    pub pinned: bool,
}

/// A structure, with everything that its grant contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The structure.
    pub structure: StructureId,
    /// The job.
    pub job: JobId,
    /// Its prefix.
    pub prefix: PrefixId,
    /// Its kind.
    pub kind: Kind,
    /// The verbs of the grant; never empty.
    pub verbs: Verbs,
    /// The prefix's generation, below which grants are refused.
    pub generation: Generation,
    /// The blocks that serve its ranges.
    pub map: PartitionMap,
    /// Most items of a queue; 0 means unbounded.
    pub max_items: u64,
    /// Most bytes of a queue's items; 0 means unbounded.
    pub max_bytes: u64,
    /// The outcome for the edge from the structure's prefix to the session's.
    pub edge: EdgeOutcome,
}

/// Whether opening a structure made its prefix a parent of the session's prefix, so that renewing the latter
/// keeps the former; the code is that of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EdgeOutcome {
    /// None is needed: the session runs for no prefix, for this one, or for an ancestor of it, whose renewals
    /// reach it anyway; or the prefix is the root, which its driver keeps; or the structure was just created,
    /// or reopened by identity.
    NotNeeded = 0,
    /// It was added.
    Added = 1,
    /// It existed already.
    There = 2,
    /// It is not possible, and only other clients keep the prefix: the session's prefix has ended or has
    /// `limits::PARENTS_MAX` parents, its name is taken under this one, or the search for a cycle would take
    /// too long.
    Impossible = 3,
}

/// The blocks that serve a structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMap {
    /// Only increases.
    pub version: MapVersion,
    /// The rule by which an operation finds its entry.
    pub router: Router,
    /// Bytes of each block.
    pub block_size: u64,
    /// In order of start, without gaps, from 0 (in a queue, from the first item of its present blocks) to
    /// 2^64-1 (INV-17).
    pub entries: Vec<MapEntry>,
}

/// The block that serves one range of a structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// First position of the range: a byte offset, the number of an item or a key hash.
    pub start: u64,
    /// Last position, inclusive.
    pub end: u64,
    /// The block and its epoch.
    pub at: BlockAt,
    /// host:port of the block's server.
    pub address: Arc<str>,
}

/// One memory server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// The server.
    pub server: ServerId,
    /// host:port.
    pub address: Arc<str>,
    /// It reported in time.
    pub alive: bool,
    /// Milliseconds since a suspected server's last message, at least 1; 0 for a server that is not
    /// suspected.
    pub silent_ms: u64,
    /// Number of its cores.
    pub shards: u8,
    /// Bytes of each of its blocks.
    pub block_size: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Blocks free.
    pub free: u64,
    /// Bytes of data.
    pub bytes_used: u64,
    /// Resident anonymous memory of the process.
    pub bytes_resident: u64,
    /// Open connections.
    pub connections: u32,
    /// Requests answered since its start.
    pub requests: u64,
    /// Of these, arrived on another core than the block's.
    pub forwarded: u64,
    /// Memory of freed blocks that clients still map.
    pub bytes_owed: u64,
    /// Recent busy time of its cores, in thousandths.
    pub cpu_permille: u16,
    /// Its lower tiers.
    pub tiers: Vec<TierUse>,
    /// Faults of these tiers.
    pub alarms: Vec<TierAlarm>,
    /// The state of its drain.
    pub drain: DrainState,
    /// The reasons for which a draining server still waits; empty for other servers.
    pub drain_waits: Box<str>,
}

/// The lower tiers of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierUse {
    /// The class of the device.
    pub class: TierClass,
    /// Room, in blocks.
    pub blocks: u64,
    /// Blocks that are there, or have a place there.
    pub used: u64,
    /// Traffic since the start of the live servers.
    pub traffic: TierTraffic,
}

/// Whether a server is draining.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum DrainState {
    /// It is not.
    #[default]
    Serving = 0,
    /// It receives no blocks, and has some.
    Draining = 1,
    /// It has no blocks and may leave.
    Released = 2,
    /// Its drain was cancelled after the release, and it has not confirmed: until then it receives no blocks.
    Recalled = 3,
}

/// Servers and totals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterStatus {
    /// Time since the first command.
    pub uptime_ms: u64,
    /// Jobs registered.
    pub jobs: u64,
    /// Live prefixes.
    pub prefixes: u64,
    /// Of these, pinned.
    pub pinned: u64,
    /// Live structures.
    pub structures: u64,
    /// Blocks of all live servers.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Of these, reserved for moves and repairs.
    pub reserved: u64,
    /// Freed blocks not yet confirmed by their server.
    pub quarantined: u64,
    /// Bytes of allocated blocks.
    pub bytes_allocated: u64,
    /// Bytes of data, as last reported.
    pub bytes_used: u64,
    /// Resident anonymous memory of all live servers.
    pub bytes_resident: u64,
    /// Bytes that the catalog itself occupies.
    pub bytes_metadata: u64,
    /// Prefixes whose lease has expired and whose data is being written.
    pub flushing: u64,
    /// Of these, those whose flush failed and is retried.
    pub flush_failing: u64,
    /// Prefixes that were flushed since the catalog was made.
    pub flushed: u64,
    /// Prefixes whose flush failed for good because a server was lost.
    pub flush_lost: u64,
    /// The reason of the last failed attempt, while a flush is failing. For the cluster's token.
    pub flush_error: Box<str>,
    /// The lower tiers of all servers, by class.
    pub tiers: Vec<TierUse>,
    /// Number of faults of these tiers.
    pub alarms: u32,
    /// For the cluster's token; empty for a job's.
    pub servers: Vec<ServerInfo>,
    /// The policy that divides memory when it is short.
    pub policy: PolicyKind,
    /// The shares of memory under a fair policy, of holders that have any. For the cluster's token.
    pub shares: Vec<ShareInfo>,
    /// The advice on the number of servers.
    pub advice: Advice,
}

impl ClusterStatus {
    /// Adds the tiers of one server.
    pub(crate) fn add(&mut self, tier: &TierUse) {
        match self.tiers.iter_mut().find(|sum| sum.class == tier.class) {
            Some(sum) => {
                (sum.blocks, sum.used) = (sum.blocks + tier.blocks, sum.used + tier.used);
                sum.traffic.written += tier.traffic.written;
                sum.traffic.read += tier.traffic.read;
            }
            None => self.tiers.push(*tier),
        }
    }
}

/// A request to a memory server. Idempotent by (block, epoch), by move or by generation; to be sent to each
/// server in the order in which they were emitted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are those of the messages of the same names.
pub enum Effect {
    /// Allocate a block to a structure.
    OpenBlock {
        server: ServerId,
        at: BlockAt,
        job: JobId,
        prefix: PrefixId,
        structure: StructureId,
        generation: Generation,
        kind: Kind,
        start: u64,
        end: u64,
        max_items: u64,
        max_bytes: u64,
        first: bool,
        marks: Marks,
        /// The move that fills the block, which serves nothing before `EndImport`; `range` is then
        /// the moving range. `MoveId::NONE` for all other blocks.
        importing: MoveId,
        /// Its first tier: memory, or a lower one.
        tier: TierIx,
        /// Bytes that it may hold at first.
        capacity: u64,
        /// The journal of its changes, if they are acknowledged as flushed.
        journal: Option<Arc<JournalAt>>,
    },
    /// Demote a block, or promote it. `TierChanged` reports the arrival, `LowerRefused` that the block cannot
    /// be demoted now.
    LowerBlock { server: ServerId, at: BlockAt, tier: TierIx },
    /// Free a block; answered by `BlockFreed` when no content of it can be read any more.
    FreeBlock { server: ServerId, at: BlockAt },
    /// Refuse grants of the prefix with an earlier generation.
    SetGeneration { server: ServerId, prefix: PrefixId, generation: Generation },
    /// Send the tail of a bounded queue the number of items left in the blocks before it.
    QueueAhead { server: ServerId, at: BlockAt, items: u64, bytes: u64 },
    /// Make a block unreachable, and write its content, for a kv the hashes from `start` to `end`; answered
    /// by `BlockFlushed`. The block stays until `FreeBlock`.
    FlushBlock { server: ServerId, at: BlockAt, start: u64, end: u64, object: Arc<str> },
    /// Write the content of a block as of one moment, for a kv these hashes; the block stays in use. Answered
    /// by `BlockCopied`.
    CopyBlock {
        server: ServerId,
        at: BlockAt,
        start: u64,
        end: u64,
        object: Arc<str>,
        number: u64,
        name: u32,
        /// Whether to write the content from when the block was frozen for this flush.
        cut: bool,
    },
    /// Freeze a block for a flush, for a kv with these hashes, for at most this long; answered by
    /// `BlockStopped`.
    CutBlock {
        server: ServerId,
        at: BlockAt,
        start: u64,
        end: u64,
        number: u64,
        hold: Duration,
        /// Answers to earlier attempts are ignored.
        attempt: u32,
    },
    /// Thaw the block, because all are frozen; answered by `BlockThawed`.
    ThawBlock { server: ServerId, at: BlockAt, number: u64, attempt: u32 },
    /// A flush copies no more: extents and snapshots retained for it can be dropped, and blocks frozen for it
    /// are thawed.
    EndCopies { server: ServerId, number: u64 },
    /// Write the manifest of a flush whose parts are all written; answered by `FlushCommitted`.
    CommitFlush {
        server: ServerId,
        /// The run within which numbers of flushes are comparable.
        lineage: Arc<str>,
        number: u64,
        directory: Arc<str>,
        job_name: Box<str>,
        address: Arc<str>,
        structures: Vec<FlushedStructure>,
        /// Paths of the descendants that have their own flushes.
        below: Arc<[Box<str>]>,
    },
    /// Notify a block of a kv that a neighbour will move its range to it. Idempotent by move.
    BeginImport { server: ServerId, at: BlockAt, id: MoveId, start: u64, end: u64 },
    /// Notify a block of the outcome of the move to it: it serves the range from now on, or drops the
    /// received content. Idempotent by move.
    EndImport { server: ServerId, at: BlockAt, id: MoveId, commit: bool },
    /// Delete these objects of a failed flush; answered by `Swept`.
    SweepObjects { server: ServerId, number: u64, directory: Arc<str>, names: Vec<Box<str>> },
    /// Send a server the total number of blocks of each core that this controller shard requests. Blocks
    /// beyond that number are returned; missing ones are lent as far as available. Answered by
    /// `Command::Lent`. Not repeated over another connection, where the server first sends its own report.
    Lots { server: ServerId, lots: Box<[u32]> },
    /// Ask a block to leave its draining server: it requests a move (`Way::Relocate`) until it has left, or
    /// is refused because the server stays.
    Evacuate { server: ServerId, at: BlockAt },
    /// Notify a server that this controller shard has nothing there any more, and that it may leave; or
    /// (`stay`) that it may not, which is answered by `Command::ServerStays`. Not repeated over another
    /// connection, whose state begins without a release.
    Release { server: ServerId, stay: bool },
}
