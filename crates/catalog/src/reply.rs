//! What the catalog answers, and what it asks of the memory servers.

use crate::{
    Advice, Allowance, BillInfo, CatalogError, Estimate, Hints, Holder, ShareInfo, TierAlarm,
    TierTraffic, TierWeight, Weight, Written,
};
use honeycomb_types::{
    BlockAt, Generation, JobId, Kind, KindSpec, MapVersion, Marks, MoveId, PolicyKind, PrefixId,
    Router, ServerId, StructureId, TierClass, TierIx, Verbs,
};
use std::sync::Arc;
use std::time::Duration;

/// The answer to a command that succeeded.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // The fields are those of the replies of the same names.
pub enum Reply {
    /// Done, and nothing more to say.
    Done,
    /// RegisterJob, FindJob.
    Job { job: JobId, root: PrefixId, holder: Holder },
    /// SetQuota, Quota: what may be held, what is, and how much of that in memory; nothing is counted
    /// for a prefix that has no quota.
    Quota { allowed: Allowance, held: u64, in_memory: u64 },
    /// JobWeights: nothing of a job without hints.
    Weights { expected: Estimate, weights: Vec<Weight>, tiers: Vec<TierWeight> },
    /// JobBills: those of jobs that ended first, in order.
    Bills(Vec<BillInfo>),
    /// ListKinds, in order of code: each with the number of live servers that serve it.
    Kinds(Vec<(Arc<KindSpec>, u32)>),
    /// ListJobs, in order of registration.
    Jobs(Vec<JobInfo>),
    /// JobTree: parents before children, the first is the root.
    Tree(Vec<PrefixInfo>),
    /// CreatePrefix.
    Prefix(PrefixId),
    /// CreateHierarchy, in the order of the plan.
    Prefixes(Vec<PrefixId>),
    /// RenewLeases, in the order of the request: the lease in milliseconds, or why it failed.
    Renewed(Vec<Result<u32, CatalogError>>),
    /// LeaseInfo.
    Lease(LeaseInfo),
    /// DeclareReaders: readers that have not committed; 0 when the prefix was freed or the
    /// declaration withdrawn.
    Readers { left: u32 },
    /// CommitTask: prefixes that were freed by it.
    Committed { freed: u32 },
    /// CreateStructure, OpenStructure, ReopenStructure.
    Opened(Opened),
    /// ExtentBlocks.
    Extents(Vec<MapEntry>),
    /// FlushPrefix: its number, and where it goes in full.
    Flushing { number: u64, place: Box<str> },
    /// FlushInfo.
    FlushInfo(FlushProgress),
    /// LocateFlush: the place in full, and what is under way there.
    FlushPlace { place: Box<str>, progress: FlushProgress, live: Option<u64> },
    /// ClusterStatus.
    Status(ClusterStatus),
    /// StopCluster.
    Stopping(StopProgress),
    /// JoinServer.
    Joined(ServerId),
    /// GrowStructure: the successor, whose `start` is 0 until the asker knows where it ends, and
    /// the map version that the asker's seal will make.
    Grown { version: MapVersion, entry: MapEntry },
    /// SealBlock: the map version after it.
    Sealed { version: MapVersion },
    /// BeginMove: the block that takes, and the range that moves.
    Moving { id: MoveId, entry: MapEntry },
    /// CommitMove: the map version, and the block that took with its whole range.
    Moved { version: MapVersion, entry: MapEntry },
}

/// One line of a list of jobs.
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
    /// What it said of itself.
    pub hints: Hints,
    /// What it is expected to use by that.
    pub expected: Estimate,
}

/// How a prefix stands; the code is the wire's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PrefixState {
    /// Its lease runs.
    Live = 0,
    /// Its lease has ended; it keeps its name for what is below it.
    Expired = 1,
    /// Live, but a server took some of its data away.
    DataLost = 2,
    /// It was removed by request, or its declared readers had all committed; it keeps its name for
    /// what is below it.
    Removed = 3,
}

/// One node of a job's address DAG.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixInfo {
    /// The prefix.
    pub prefix: PrefixId,
    /// Its name; empty for the root.
    pub name: Box<str>,
    /// Its parents: in the order in which they were named, then in that of their use.
    pub parents: Vec<PrefixId>,
    /// Its lease.
    pub lease_ms: u32,
    /// Time left; negative when it has expired; `i64::MAX` when pinned.
    pub remaining_ms: i64,
    /// Never expires.
    pub pinned: bool,
    /// How it stands.
    pub state: PrefixState,
    /// What it holds, the newest first.
    pub structures: Vec<StructureInfo>,
    /// Declared readers that have not committed; 0 also when none is declared.
    pub readers_left: u32,
    /// The attempt of its task has committed.
    pub committed: bool,
    /// When its blocks grow and merge.
    pub marks: Marks,
    /// Most blocks of it and all below it; 0 for no bound.
    pub max_blocks: u64,
    /// Blocks that count to that; 0 without one.
    pub held_blocks: u64,
    /// Where its data goes when its lease ends; empty: it is discarded.
    pub flush_to: Box<str>,
    /// What became of that.
    pub flush: FlushState,
    /// It outlives its job.
    pub persist: bool,
    /// How durable a change is when it is answered.
    pub acknowledge: u8,
}

/// Where the changes of a block are written before they are answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalAt {
    /// The directory, below the servers' roots.
    pub directory: Box<str>,
    /// Names the prefix's journal among all that were ever there.
    pub tag: Box<str>,
    /// Name of the job.
    pub job_name: Box<str>,
    /// Path of the prefix.
    pub address: Box<str>,
    /// Name of the structure.
    pub name: Box<str>,
}

/// How the flush of a prefix stands; the wire has a code for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FlushState {
    /// It has not begun, or there is none to be.
    #[default]
    None,
    /// Its data is being written.
    Writing,
    /// The last attempt failed, for this reason; the next one comes.
    Failing(Arc<str>),
    /// It is in its place, whole.
    Done,
    /// It cannot be: this was lost before.
    Lost(Arc<str>),
    /// It cannot be: there was no moment at which all blocks stood still.
    NoCut(Arc<str>),
}

/// How far a flush is that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlushProgress {
    /// What it is at.
    pub state: FlushState,
    /// Blocks that are to be written.
    pub parts: u32,
    /// Of these, those that are.
    pub done: u32,
    /// Bytes that are written.
    pub bytes: u64,
}

/// How far the end of the cluster is.
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
    /// Flushes that are not written, each with its directory and the reason; failing ones come first.
    pub unflushed: Vec<Unflushed>,
}

/// A flush that is not complete, or was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unflushed {
    /// The directory, below the servers' `flush_root`.
    pub directory: Arc<str>,
    /// The cause of the last failure, the blocks lost, or its progress.
    pub why: Box<str>,
}

/// One structure as it was flushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushedStructure {
    /// Its name; empty for the unnamed one.
    pub name: Box<str>,
    /// What it is.
    pub kind: Kind,
    /// It took no more.
    pub sealed: bool,
    /// Bound of a queue, in items; 0 for none.
    pub max_items: u64,
    /// Bound of a queue, in bytes; 0 for none.
    pub max_bytes: u64,
    /// In the order of the structure.
    pub parts: Vec<FlushedPart>,
}

/// What one block of a structure left, in an object or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushedPart {
    /// Name of the first object within the directory of the flush; `flush_object` has the others.
    pub name: Box<str>,
    /// First position of the block's range, as in a partition map.
    pub start: u64,
    /// What was written, in order; none before it was.
    pub objects: Vec<Written>,
}

/// One structure of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StructureInfo {
    /// The structure.
    pub structure: StructureId,
    /// Its name; empty for the unnamed one.
    pub name: Box<str>,
    /// What it is.
    pub kind: Kind,
    /// Blocks allocated, those reserved as successors and those that a move fills included.
    pub blocks: u32,
    /// Bytes of data in them, as last reported.
    pub bytes_used: u64,
    /// A file that takes no more.
    pub sealed: bool,
}

/// A prefix's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// The prefix.
    pub prefix: PrefixId,
    /// Its duration.
    pub lease_ms: u32,
    /// Time left; `i64::MAX` when pinned.
    pub remaining_ms: i64,
    /// Never expires.
    pub pinned: bool,
}

/// A structure with everything that its grant has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The structure.
    pub structure: StructureId,
    /// The job.
    pub job: JobId,
    /// Its prefix.
    pub prefix: PrefixId,
    /// What it is.
    pub kind: Kind,
    /// What the grant allows; never empty.
    pub verbs: Verbs,
    /// The prefix's generation, below which grants are refused.
    pub generation: Generation,
    /// Who serves what.
    pub map: PartitionMap,
    /// Most items of a queue; 0 for no bound.
    pub max_items: u64,
    /// Most bytes of a queue's items; 0 for no bound.
    pub max_bytes: u64,
    /// What became of the edge from the structure's prefix to the session's.
    pub edge: EdgeOutcome,
}

/// Whether opening a structure made its prefix a parent of the one that the session runs for, so
/// that renewing the latter keeps the former; the code is the wire's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EdgeOutcome {
    /// None is needed: the session runs for no prefix, for this one, or for one above it, whose
    /// renewals reach it anyway; or the prefix is the root, which its driver keeps; or the
    /// structure was just created, or reopened by identity.
    NotNeeded = 0,
    /// It was added.
    Added = 1,
    /// It was there already.
    There = 2,
    /// It is not possible, and only others keep the prefix: the session's own has ended or has
    /// `limits::PARENTS_MAX` parents, its name is taken below this one, or whether the edge would
    /// close a cycle takes too long to find out.
    Impossible = 3,
}

/// Who serves what of a structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMap {
    /// Only grows.
    pub version: MapVersion,
    /// How an operation finds its entry.
    pub router: Router,
    /// Bytes of each block.
    pub block_size: u64,
    /// In order of start, without gaps, from 0 (of a queue, from the first item that its blocks still
    /// know) to 2^64-1 (INV-17).
    pub entries: Vec<MapEntry>,
}

/// Who serves one range of a structure.
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
    /// Heard from in time.
    pub alive: bool,
    /// Milliseconds since a suspected server was last heard, at least 1; 0 for one that is not suspected.
    pub silent_ms: u64,
    /// Its cores.
    pub shards: u8,
    /// Bytes of each of its blocks.
    pub block_size: u64,
    /// Blocks in all.
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
    /// Thousandths of the time of its cores that they are busy, of late.
    pub cpu_permille: u16,
    /// What is below its memory.
    pub tiers: Vec<TierUse>,
    /// What is wrong with that.
    pub alarms: Vec<TierAlarm>,
    /// Whether it is being taken out.
    pub drain: DrainState,
    /// What a server that is being taken out still has and waits for; empty for the others.
    pub drain_waits: Box<str>,
}

/// What is below memory, of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierUse {
    /// What it is made of.
    pub class: TierClass,
    /// Blocks that there is room for.
    pub blocks: u64,
    /// Blocks that are there, or have a place there.
    pub used: u64,
    /// What was moved since the servers started that live.
    pub traffic: TierTraffic,
}

/// Whether a server is being taken out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum DrainState {
    /// It is not.
    #[default]
    Serving = 0,
    /// It is given no block, and has some.
    Draining = 1,
    /// It has none and was told that it may go.
    Released = 2,
    /// It was told so, is wanted again, and has not heard of that: it is given no block before.
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
    /// Of these, kept back for moves and repairs.
    pub reserved: u64,
    /// Blocks freed whose server has not confirmed.
    pub quarantined: u64,
    /// Bytes of allocated blocks.
    pub bytes_allocated: u64,
    /// Bytes of data, as last reported.
    pub bytes_used: u64,
    /// Resident anonymous memory of all live servers.
    pub bytes_resident: u64,
    /// Bytes that the catalog itself occupies.
    pub bytes_metadata: u64,
    /// Prefixes whose lease has ended and whose data is being written.
    pub flushing: u64,
    /// Of these, those that failed and are tried again.
    pub flush_failing: u64,
    /// Prefixes that were flushed since the catalog was made.
    pub flushed: u64,
    /// Prefixes that could not be flushed because a server was lost before.
    pub flush_lost: u64,
    /// Why the last attempt failed that did, while one is failing. For the cluster's token.
    pub flush_error: Box<str>,
    /// What is below the memory of all servers, by class.
    pub tiers: Vec<TierUse>,
    /// Things that are wrong with it.
    pub alarms: u32,
    /// For the cluster's token; empty for a job's.
    pub servers: Vec<ServerInfo>,
    /// Who has memory when it is short.
    pub policy: PolicyKind,
    /// What those have of it who have some, under a fair policy. For the cluster's token.
    pub shares: Vec<ShareInfo>,
    /// Whether there should be other servers.
    pub advice: Advice,
}

impl ClusterStatus {
    /// Adds what one server has.
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

/// Something that a memory server has to do. Idempotent by (block, epoch), by move or by generation;
/// to be sent to each server in the order in which they were emitted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are those of the messages of the same names.
pub enum Effect {
    /// Give a block to a structure.
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
        /// The move that fills the block, which serves nothing before `EndImport`; the range is
        /// the one that moves. `MoveId::NONE` for all others.
        importing: MoveId,
        /// Where it has its place: in memory, or below from the start.
        tier: TierIx,
        /// Where its changes are written before they are answered, if they are.
        journal: Option<Arc<JournalAt>>,
    },
    /// Let a block go below memory, or come back up; `TierChanged` says that it is there, `LowerRefused` that it does not
    /// go now.
    LowerBlock { server: ServerId, at: BlockAt, tier: TierIx },
    /// Take a block back; answered by `BlockFreed` when nothing of it can be read any more.
    FreeBlock { server: ServerId, at: BlockAt },
    /// Refuse grants of the prefix of an earlier generation.
    SetGeneration { server: ServerId, prefix: PrefixId, generation: Generation },
    /// Tell the tail of a bounded queue what is left in the blocks before it.
    QueueAhead { server: ServerId, at: BlockAt, items: u64, bytes: u64 },
    /// Let nobody reach a block any more, and write what it holds of a kv's hashes from `start` to
    /// `end`; answered by `BlockFlushed`. The block stays until `FreeBlock`.
    FlushBlock { server: ServerId, at: BlockAt, start: u64, end: u64, object: Arc<str> },
    /// Write what a block holds at one moment, of a kv of these hashes; it goes on as it was. Answered by
    /// `BlockCopied`.
    CopyBlock {
        server: ServerId,
        at: BlockAt,
        start: u64,
        end: u64,
        object: Arc<str>,
        number: u64,
        name: u32,
        /// What it held when it stood still for this flush.
        cut: bool,
    },
    /// Let a block stand still for a flush, of a kv with these hashes, for so long at most; answered by
    /// `BlockStopped`.
    CutBlock {
        server: ServerId,
        at: BlockAt,
        start: u64,
        end: u64,
        number: u64,
        hold: Duration,
        /// Answers to earlier ones count for nothing.
        attempt: u32,
    },
    /// Let it go on: all stand still; answered by `BlockThawed`.
    ThawBlock { server: ServerId, at: BlockAt, number: u64, attempt: u32 },
    /// A flush copies nothing any more: extents and cuts that were kept for it can go, and what stands still
    /// for it goes on.
    EndCopies { server: ServerId, number: u64 },
    /// Write the manifest of a flush whose parts are all written; answered by `FlushCommitted`.
    CommitFlush {
        server: ServerId,
        /// Whose numbers can be compared.
        lineage: Arc<str>,
        number: u64,
        directory: Arc<str>,
        job_name: Box<str>,
        address: Arc<str>,
        structures: Vec<FlushedStructure>,
        /// Paths of those below it that have flushes of their own.
        below: Arc<[Box<str>]>,
    },
    /// Tell a block of a kv that a neighbour will move its range to it. Idempotent by move.
    BeginImport { server: ServerId, at: BlockAt, id: MoveId, start: u64, end: u64 },
    /// Tell a block what became of the move to it: it serves the range from now on, or drops what
    /// it has of it. Idempotent by move.
    EndImport { server: ServerId, at: BlockAt, id: MoveId, commit: bool },
    /// Delete these objects of a flush that came to nothing; answered by `Swept`.
    SweepObjects { server: ServerId, number: u64, directory: Arc<str>, names: Vec<Box<str>> },
    /// Tell a server how many blocks of each core this controller shard wants to have in all: fewer
    /// than it has go back, more come as far as there are any. Answered by `Command::Lent`, and not
    /// repeated over another connection, where the server begins by telling.
    Lots { server: ServerId, lots: Box<[u32]> },
    /// Tell a block to leave its server, which is taken out: it asks for a move (`Way::Relocate`) until
    /// it has left, or is refused because the server stays.
    Evacuate { server: ServerId, at: BlockAt },
    /// Tell a server that this controller shard has nothing there any more, and that it may go; or
    /// (`stay`) that it may not, which is answered by `Command::ServerStays`. Not repeated over another
    /// connection, on which nobody has said either.
    Release { server: ServerId, stay: bool },
}
