//! The commands of the catalog, and the actors that give them.

use crate::{Claim, Hints};
use honeycomb_types::{
    AlarmKind, AnnouncedKind, BlockAt, BlockId, Generation, JobId, Kind, MoveId, PrefixId,
    ServerId, StructureId, TierIx, TierSpec, Time, Verbs, Way,
};
use std::time::Duration;

/// The caller, as its verified token describes it. The catalog decides what the caller may do.
///
/// A token of the cluster allows all operations. A job's own token belongs to its driver, which owns all
/// prefixes of the job. A token attenuated to a task allows writes to the task's own prefix, reads of the
/// job's prefixes, and renewals and creations at the own prefix and its descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actor {
    /// The job of the token; none for the cluster's.
    pub job: Option<JobId>,
    /// The prefix of the task to which the token was attenuated.
    pub task: Option<PrefixId>,
    /// The prefix for which the session runs, from its handshake: its traffic renews that prefix, and that
    /// prefix consumes the data of the structures that it opens. For a task's token, the task's own prefix.
    pub session: Option<PrefixId>,
    /// The allowed operations on data; without `WRITE` the token also changes no metadata.
    pub verbs: Verbs,
    /// The root prefix of the job's life to which the token was attenuated.
    pub life: Option<PrefixId>,
}

impl Actor {
    /// The holder of the cluster's token.
    pub const CLUSTER: Actor =
        Actor { job: None, task: None, session: None, verbs: Verbs::ALL, life: None };

    /// The holder of a job's own token.
    pub fn driver(job: JobId) -> Actor {
        Actor { job: Some(job), ..Actor::CLUSTER }
    }

    /// The holder of a token attenuated to one task.
    pub fn task(job: JobId, prefix: PrefixId) -> Actor {
        let prefix = Some(prefix);
        Actor { job: Some(job), task: prefix, session: prefix, ..Actor::CLUSTER }
    }
}

/// Options of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PrefixOptions<'a> {
    /// Lease in milliseconds; 0 takes the default of the job.
    pub lease_ms: u32,
    /// Whether the prefix never expires.
    pub pinned: bool,
    /// The rights of the prefix's own task (and of the driver) on its structures.
    pub owner_verbs: Verbs,
    /// The rights of the job's other tasks. Both sets empty means the default: the owner reads and writes,
    /// the job reads.
    pub job_verbs: Verbs,
    /// Percent of a block in use at which it grows or splits; 0 takes the default of the cluster.
    pub high_mark: u8,
    /// Percent of a block in use under which it merges; 0 takes the default of the cluster.
    pub low_mark: u8,
    /// The place to which its data is flushed when its lease expires; empty discards the data.
    pub flush_to: &'a str,
    /// Most blocks of the prefix with its descendants; 0 means unbounded.
    pub max_blocks: u64,
    /// Whether the prefix is being loaded: its structures cannot be opened before it is published.
    pub loading: bool,
    /// Whether every end of the prefix except its removal flushes it first; to its own path if `flush_to` is
    /// empty.
    pub persist: bool,
    /// The durability at which a change is acknowledged: `ACKNOWLEDGE_MEMORY` or `ACKNOWLEDGE_FLUSHED`.
    pub acknowledge: u8,
}

/// Changes are acknowledged when they are in memory.
pub const ACKNOWLEDGE_MEMORY: u8 = 0;
/// Changes are acknowledged when they are in a journal, at the place to which the prefix would be flushed.
pub const ACKNOWLEDGE_FLUSHED: u8 = 2;

/// The owner of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaOf<'a> {
    /// All jobs of a tenant.
    Tenant(&'a str),
    /// A job.
    Job(JobId),
    /// A prefix with its descendants.
    Prefix(JobId, &'a str),
}

/// A change of a quota; `None` leaves a value unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaChange {
    /// Most blocks; 0 means unbounded.
    pub max_blocks: Option<u64>,
    /// Blocks in memory beyond which the owner's blocks are the first to be demoted; 0 for none.
    pub soft_blocks: Option<u64>,
    /// The weight of the owner's share, relative to the others. Only for tenants, and for jobs without a
    /// tenant.
    pub weight: Option<u32>,
}

impl QuotaChange {
    /// Sets the most blocks.
    pub fn most(max_blocks: u64) -> QuotaChange {
        QuotaChange { max_blocks: Some(max_blocks), ..QuotaChange::default() }
    }
}

/// One task of an execution plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanNode<'a> {
    /// Name of the prefix; unique within the plan.
    pub name: &'a str,
    /// Names within the plan (which take precedence) or paths of existing prefixes; none means a child of the
    /// root.
    pub parents: &'a [&'a str],
    /// Options of the prefix.
    pub options: PrefixOptions<'a>,
    /// Declared readers: names within the plan (which take precedence) or paths of existing prefixes.
    pub readers: &'a [&'a str],
}

/// A structure to create.
#[derive(Clone, Copy, Debug)]
pub struct NewStructure<'a> {
    /// The prefix.
    pub path: &'a str,
    /// Name of the structure; empty for the unnamed one.
    pub name: &'a str,
    /// Its kind.
    pub kind: Kind,
    /// Initial capacity in blocks; 0 takes 1.
    pub blocks: u32,
    /// Most items of a queue; 0 means unbounded. Other kinds ignore it.
    pub max_items: u64,
    /// Most bytes of a queue's items together; 0 means unbounded. Other kinds ignore it.
    pub max_bytes: u64,
    /// Whether an existing structure of the same kind is opened.
    pub open_existing: bool,
}

/// A memory server that announces itself.
#[derive(Clone, Copy, Debug)]
pub struct NewServer<'a> {
    /// host:port for clients.
    pub address: &'a str,
    /// Random for each start of the process.
    pub incarnation: u64,
    /// Number of its cores.
    pub shards: u8,
    /// Most blocks of each core in memory.
    pub blocks_per_shard: u32,
    /// Its lower tiers, in the order in which they are used.
    pub tiers: &'a [TierSpec],
    /// Bytes of each block; all live servers have the same.
    pub block_size: u64,
    /// The custom kinds of structure that it serves.
    pub kinds: &'a [AnnouncedKind],
    /// The root of everything that it flushes; empty when it cannot flush.
    pub flush_root: &'a str,
}

/// One object that a server wrote for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Written {
    /// Length of the object.
    pub bytes: u64,
    /// Bytes of a file, items of a queue, entries of a kv.
    pub items: u64,
    /// CRC-32 of the object.
    pub crc: u32,
}

/// How a block was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Bytes of a file's block; items that were put into a queue's block.
    pub length: u64,
    /// Bytes of a queue's items.
    pub bytes: u64,
    /// Whether the structure itself was sealed with this block, so that no block follows.
    pub last: bool,
}

/// The content of one block, as its server counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockUsage {
    /// The block in its epoch.
    pub at: BlockAt,
    /// Bytes of data.
    pub bytes_used: u64,
}

/// A block that a server holds, as reported when it rejoins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBlock {
    /// The block, in the epoch in which it is held.
    pub at: BlockAt,
    /// Its structure.
    pub structure: StructureId,
    /// Grants of an earlier generation of its prefix are refused.
    pub generation: Generation,
    /// Bytes of data.
    pub bytes_used: u64,
    /// Its seal, if it was sealed.
    pub sealed: Option<Seal>,
    /// The successor that was granted to it, if any.
    pub successor: Option<BlockAt>,
    /// Items, and their bytes, that were taken from a queue's block.
    pub taken: (u64, u64),
    /// Its current tier, and the tier to which it is moving.
    pub tiers: (TierIx, TierIx),
    /// Bytes that it may hold.
    pub capacity: u64,
}

/// A server's heartbeat.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report<'a> {
    /// Resident anonymous memory of the process.
    pub bytes_resident: u64,
    /// Open connections.
    pub connections: u32,
    /// Requests answered since the start.
    pub requests: u64,
    /// The number of these requests that arrived on another core than that of their block.
    pub forwarded: u64,
    /// Memory of freed blocks that clients still map.
    pub bytes_owed: u64,
    /// Busy time of its cores since the last report, in thousandths.
    pub cpu_permille: u16,
    /// Bytes that its tiers moved since its start, in the order in which it declared them.
    pub traffic: &'a [TierTraffic],
    /// Faults of its tiers.
    pub alarms: &'a [TierAlarm],
    /// Blocks whose usage changed since the last report; for a server with tiers, the blocks that were
    /// accessed.
    pub usage: &'a [BlockUsage],
}

/// A fault of a tier of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierAlarm {
    /// The tier.
    pub tier: TierIx,
    /// The kind of the fault.
    pub kind: AlarmKind,
    /// The error of the tier.
    pub why: Box<str>,
    /// Milliseconds since the fault began.
    pub age_ms: u64,
    /// Milliseconds since the fault was last observed.
    pub tried_ms: u64,
}

/// Traffic of one tier of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierTraffic {
    /// Bytes written to it.
    pub written: u64,
    /// Bytes read from it.
    pub read: u64,
}

/// Why a block does not freeze for a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopFault {
    /// Earlier requests are still arriving: the request is repeated shortly.
    Arriving,
    /// Its kind cannot be flushed.
    Never,
    /// The block does not exist, or is part of another snapshot: the whole snapshot begins again.
    Gone,
}

/// One transition of the catalog. Commands with an `actor` come from clients. The others come from the
/// controller itself, or over the link of a memory server, which holds the cluster's token.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // The fields are those of the messages of the same names.
pub enum Command<'a> {
    /// Registers a job with its root prefix. Cluster only. The name is `TENANT/NAME` for a job of a tenant.
    RegisterJob {
        actor: Actor,
        name: &'a str,
        lease_ms: u32,
        quota_blocks: u64,
        hints: Hints,
        claim: Claim<'a>,
    },
    /// Sets the most blocks that may be held, the number in memory beyond which they are the first to be
    /// demoted, and weights of shares. Cluster, or the driver for a prefix.
    SetQuota { actor: Actor, of: QuotaOf<'a>, change: QuotaChange },
    /// A quota, and the blocks that count towards it. Cluster only for a tenant.
    Quota { actor: Actor, of: QuotaOf<'a> },
    /// Finds a job by its name. Cluster only.
    FindJob { actor: Actor, name: &'a str },
    /// Ends a job: its prefixes, structures and blocks are freed at once. Cluster or driver.
    DeregisterJob { actor: Actor, job: JobId },
    /// The jobs that the actor may see.
    ListJobs { actor: Actor },
    /// The custom kinds that servers have announced. Any actor.
    ListKinds { actor: Actor },
    /// The servers that receive the next blocks of a job with hints.
    JobWeights { actor: Actor, job: JobId },
    /// The bill of one job, or all bills that the actor may see. Bills of ended jobs for the cluster only.
    JobBills { actor: Actor, job: Option<JobId> },
    /// A job's address DAG with leases and structures.
    JobTree { actor: Actor, job: JobId },

    /// Adds a prefix under the parent in its path and any further named parents.
    CreatePrefix {
        actor: Actor,
        job: JobId,
        path: &'a str,
        parents: &'a [&'a str],
        options: PrefixOptions<'a>,
    },
    /// Creates all prefixes of an execution plan, or none.
    CreateHierarchy { actor: Actor, job: JobId, nodes: &'a [PlanNode<'a>] },
    /// Ends a prefix and frees its structures; descendants stay, and its name can be used again.
    RemovePrefix { actor: Actor, job: JobId, path: &'a str },
    /// Renews prefixes, with their direct parents and all descendants; each path alone.
    RenewLeases { actor: Actor, job: JobId, paths: &'a [&'a str] },
    /// A server saw a session of this task `ago_ms` before it reported so. Ignored when the prefix does not
    /// exist or belongs to another job.
    RenewPrefixById { job: JobId, prefix: PrefixId, ago_ms: u32 },
    /// A prefix's lease and the time left of it.
    LeaseInfo { actor: Actor, job: JobId, path: &'a str },
    /// Changes the rights on a prefix's structures and revokes earlier grants. Both sets are used as given:
    /// an empty set allows no operation.
    SetPermissions { actor: Actor, job: JobId, path: &'a str, owner_verbs: Verbs, job_verbs: Verbs },
    /// Declares the readers of a prefix: when the last of them has committed, the prefix is freed at once.
    /// Adds to the readers declared before, or replaces them.
    DeclareReaders {
        actor: Actor,
        job: JobId,
        path: &'a str,
        readers: &'a [&'a str],
        replace: bool,
    },
    /// The attempt of the task of a prefix has committed. Cluster, driver, or the task itself; idempotent.
    CommitTask { actor: Actor, job: JobId, path: &'a str },

    /// Creates a structure with its initial blocks and opens it.
    CreateStructure { actor: Actor, job: JobId, structure: NewStructure<'a> },
    /// Opens a structure by address, or returns why it ended. Its prefix becomes a parent of the session's
    /// prefix, where that is useful and possible (`EdgeOutcome`).
    OpenStructure { actor: Actor, job: JobId, path: &'a str, name: &'a str },
    /// Opens a structure by identity, or returns why it ended.
    ReopenStructure { actor: Actor, job: JobId, structure: StructureId },
    /// Blocks in which a kv keeps extents. Returns one with room for an extent of `bytes` that is not listed
    /// in `full`, and allocates a block when there is none; or returns all of them when `bytes` is 0. Refused
    /// if no cluster of these servers could hold a value of `value` bytes.
    ExtentBlocks {
        actor: Actor,
        job: JobId,
        structure: StructureId,
        bytes: u64,
        full: &'a [BlockId],
        value: u64,
    },
    /// Allocates the first private block for an append to a file that is too large for a block.
    BeginAppend { actor: Actor, job: JobId, structure: StructureId, bytes: u64 },
    /// Adds the private blocks of an append to the end of a file; `first` names them. Idempotent.
    CommitAppend { actor: Actor, job: JobId, structure: StructureId, first: BlockAt },
    /// Frees the private blocks of an append that will not be committed. Idempotent.
    DropAppend { actor: Actor, job: JobId, structure: StructureId, first: BlockAt },
    /// Frees a structure's blocks at once.
    RemoveStructure { actor: Actor, job: JobId, path: &'a str, name: &'a str },
    /// Servers and totals; only totals for a job's token.
    ClusterStatus { actor: Actor },

    /// A memory server joins. Every start gets a new number; a live server of the same address is taken to be
    /// dead.
    JoinServer { server: NewServer<'a> },
    /// A former member reconnects with its blocks over a new connection. Refused (`UnknownServer`) unless it
    /// is the member of that number, address and incarnation; it then drops its blocks and joins. Its
    /// inventory follows.
    RejoinServer { server: NewServer<'a>, member: ServerId },
    /// Blocks held by a server that rejoined; `last` on the final part.
    Inventory { server: ServerId, held: &'a [HeldBlock], last: bool },
    /// The blocks by core that a server lends to this controller shard: sent once after a join or rejoin,
    /// where there are several shards, and in answer to `Effect::Lots`. Empty when the server refused the
    /// latter.
    Lent { server: ServerId, lent: &'a [u32] },
    /// The last allocation, of this many units, was refused as `OutOfMemory`: requests blocks from
    /// servers that lend, and demotes blocks of the caller. `Catalog::awaits_room` returns whether
    /// any will be freed.
    ShortOf { units: u32 },
    /// Drains a server: it receives no blocks from now on, and is released when it holds none. With `cancel`,
    /// cancels the drain. Cluster only; idempotent.
    DrainServer { actor: Actor, address: &'a str, cancel: bool },
    /// Ends all jobs, as many at a time as one command may, before the cluster ends. Prefixes with `flush_to`
    /// or `persist` are flushed; with `discard` their flushes are cancelled. No job can be registered from
    /// now on. Cluster only; idempotent, and repeated until the reply shows no flush and no job.
    StopCluster { actor: Actor, discard: bool },
    /// A server asks to be drained.
    LeaveServer { server: ServerId },
    /// A released server confirms that its drain was cancelled.
    ServerStays { server: ServerId },
    /// A heartbeat.
    ServerReport { server: ServerId, report: Report<'a> },
    /// The connection of a server closed, and its process may still run.
    ServerUnlinked { server: ServerId },
    /// The process of a server ended.
    ServerLost { server: ServerId },
    /// A server opened a block for its owner.
    BlockOpened { server: ServerId, at: BlockAt },
    /// A server confirms that no content of a freed block can be read any more.
    BlockFreed { server: ServerId, at: BlockAt },
    /// A block requests its successor; the same block gets the same answer again.
    GrowStructure { structure: StructureId, at: BlockAt },
    /// A block needs a capacity of this many bytes; the same block gets the same answer again.
    GrowBlock { structure: StructureId, at: BlockAt, bytes: u64 },
    /// A block was sealed.
    SealBlock { structure: StructureId, at: BlockAt, seal: Seal },
    /// The total number of items and bytes taken from a queue's block that is not its tail.
    QueueTaken { structure: StructureId, at: BlockAt, items: u64, bytes: u64 },
    /// A queue's block, or one of extents, is empty for good.
    RetireBlock { structure: StructureId, at: BlockAt },
    /// A block returns the successor that was granted to it and that it has reported to no client.
    ReturnBlock { structure: StructureId, at: BlockAt, successor: BlockAt },
    /// A block has arrived in its target tier and left the other one, or it stayed where it was.
    TierChanged { structure: StructureId, at: BlockAt, tier: TierIx },
    /// A block in a lower tier is read often and should be promoted.
    RaiseBlock { structure: StructureId, at: BlockAt },
    /// A server cannot demote a block now.
    LowerRefused { server: ServerId, at: BlockAt },
    /// Bytes of a block in a lower tier are no longer readable: its structure is lost.
    BlockFailed { structure: StructureId, at: BlockAt },
    /// A server wrote the content of a block of an expired prefix, or failed to.
    BlockFlushed { server: ServerId, at: BlockAt, outcome: Result<&'a [Written], &'a str> },
    /// Begins a flush of a prefix that stays live.
    FlushPrefix {
        actor: Actor,
        job: JobId,
        path: &'a str,
        place: &'a str,
        /// For a subtree: the paths of descendants that are already flushed, each to its own place; with a
        /// barrier, the descendants that are flushed with it.
        below: &'a [&'a str],
        /// Flushes everything as of one moment.
        barrier: bool,
    },
    /// The progress of that flush.
    FlushInfo { actor: Actor, job: JobId, number: u64 },
    /// Ends that flush, unless its manifest is being written.
    CancelFlush { actor: Actor, job: JobId, number: u64 },
    /// The full location of a flush under the job's name, and whether a flush there is under way. Also the
    /// flush of this prefix there that can be cancelled.
    LocateFlush { actor: Actor, job: JobId, place: &'a str, path: &'a str },
    /// A prefix has been loaded completely.
    PublishPrefix { actor: Actor, job: JobId, path: &'a str },
    /// A server wrote the content of a block as of one moment, into an object of this number of this flush,
    /// and whether the block was sealed; or it failed, and whether it always will.
    BlockCopied {
        server: ServerId,
        number: u64,
        name: u32,
        outcome: Result<(&'a [Written], bool), (bool, &'a str)>,
    },
    /// A block has frozen for a flush, and whether it was sealed; or it does not freeze.
    BlockStopped {
        server: ServerId,
        number: u64,
        at: BlockAt,
        attempt: u32,
        outcome: Result<bool, (StopFault, &'a str)>,
    },
    /// A server has no record of the snapshot that it should write.
    CutLost { server: ServerId, number: u64 },
    /// A block is thawed; `stood` is true if it stayed frozen until then.
    BlockThawed { server: ServerId, number: u64, at: BlockAt, attempt: u32, stood: bool },
    /// A server wrote the manifest of a flush, or could not.
    FlushCommitted { server: ServerId, number: u64, outcome: Result<(), &'a str> },
    /// A server deleted the requested objects of this flush, or failed to.
    Swept { server: ServerId, number: u64, outcome: Result<(), &'a str> },
    /// A block of a kv requests to move its range from `start` on to a new block, or its whole range to a
    /// neighbour, or to a new block because its server is draining. Repetitions during the move get the same
    /// answer.
    BeginMove { structure: StructureId, at: BlockAt, start: u64, way: Way },
    /// The target of a block's move has confirmed that it has all data: it owns the range from now on. The
    /// block may repeat this command until it receives the answer. `bytes` is the number of bytes sent.
    CommitMove { structure: StructureId, at: BlockAt, id: MoveId, target: BlockAt, bytes: u64 },
    /// A block cancels its move. Changes nothing when there is no move, or when it was committed.
    CancelMove { structure: StructureId, at: BlockAt, id: MoveId },
    /// A server does not open the target of a move, or refuses the import: the move is cancelled, if it is
    /// still under way.
    ImportRefused { server: ServerId, at: BlockAt, id: MoveId },

    /// Ends leases, silent servers and lingering jobs that are due.
    Tick,
    /// As `Tick`, where requests that arrived after `heard` may still be unread. A lease or a server whose
    /// time ended after `heard` is not due yet, because its renewal or report may be among the unread
    /// requests.
    TickUntil { heard: Time },
    /// The controller's process read no request for this long, up to now. Every running lease is extended by
    /// that time, and so is the silence that servers are allowed.
    Stalled { length: Duration },
    /// This controller was away: every lease and every server's silence starts anew (INV-27).
    Amnesty,
}

impl Command<'_> {
    /// Whether the command may let a flush of a live prefix proceed. All of these commands wait for the log,
    /// because a flush that proceeds assigns names. A flush would stall if a command were missing here, so
    /// every command is named, and a new command does not compile without a decision.
    pub(crate) fn frees_copies(&self) -> bool {
        use Command as C;
        match self {
            C::Tick
            | C::TickUntil { .. }
            | C::FlushPrefix { .. }
            | C::BlockCopied { .. }
            | C::BlockStopped { .. }
            | C::BlockThawed { .. }
            | C::CutLost { .. }
            | C::CommitMove { .. }
            | C::CancelMove { .. }
            | C::ImportRefused { .. }
            | C::Inventory { .. }
            | C::ServerLost { .. }
            | C::RemovePrefix { .. }
            | C::RemoveStructure { .. }
            | C::DeregisterJob { .. }
            | C::StopCluster { .. }
            | C::RegisterJob { .. }
            | C::DeclareReaders { .. }
            | C::CommitTask { .. }
            | C::JoinServer { .. }
            | C::CancelFlush { .. } => true,
            C::SetQuota { .. }
            | C::Quota { .. }
            | C::FindJob { .. }
            | C::ListJobs { .. }
            | C::ListKinds { .. }
            | C::JobWeights { .. }
            | C::JobBills { .. }
            | C::JobTree { .. }
            | C::CreatePrefix { .. }
            | C::CreateHierarchy { .. }
            | C::RenewLeases { .. }
            | C::RenewPrefixById { .. }
            | C::LeaseInfo { .. }
            | C::SetPermissions { .. }
            | C::CreateStructure { .. }
            | C::OpenStructure { .. }
            | C::ReopenStructure { .. }
            | C::ExtentBlocks { .. }
            | C::BeginAppend { .. }
            | C::CommitAppend { .. }
            | C::DropAppend { .. }
            | C::ClusterStatus { .. }
            | C::RejoinServer { .. }
            | C::Lent { .. }
            | C::ShortOf { .. }
            | C::DrainServer { .. }
            | C::LeaveServer { .. }
            | C::ServerStays { .. }
            | C::ServerReport { .. }
            | C::ServerUnlinked { .. }
            | C::BlockOpened { .. }
            | C::BlockFreed { .. }
            | C::GrowStructure { .. }
            | C::GrowBlock { .. }
            | C::SealBlock { .. }
            | C::QueueTaken { .. }
            | C::RetireBlock { .. }
            | C::ReturnBlock { .. }
            | C::TierChanged { .. }
            | C::RaiseBlock { .. }
            | C::LowerRefused { .. }
            | C::BlockFailed { .. }
            | C::BlockFlushed { .. }
            | C::FlushInfo { .. }
            | C::LocateFlush { .. }
            | C::PublishPrefix { .. }
            | C::FlushCommitted { .. }
            | C::Swept { .. }
            | C::BeginMove { .. }
            | C::Stalled { .. }
            | C::Amnesty => false,
        }
    }
}
