//! What the catalog can be asked, and by whom.

use crate::{Claim, Hints};
use honeycomb_types::{
    AlarmKind, BlockAt, BlockId, Generation, JobId, Kind, KindSpec, MoveId, PrefixId, ServerId,
    StructureId, TierIx, TierSpec, Time, Verbs, Way,
};
use std::time::Duration;

/// Who asks, as a verified token says. The catalog decides what that allows.
///
/// A token of the cluster may do everything. A job's own token is its driver, which owns all of
/// its prefixes. A token attenuated to a task writes its own prefix, reads its job's, and renews
/// and creates at and below its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actor {
    /// The job of the token; none for the cluster's.
    pub job: Option<JobId>,
    /// The prefix of the task that the token was attenuated to.
    pub task: Option<PrefixId>,
    /// The prefix that the session runs for, as its handshake said: its traffic renews that prefix,
    /// and what it opens is data that the prefix consumes. A task's own for a task's token.
    pub session: Option<PrefixId>,
    /// What the token lets its holder do with data; without `WRITE` it also changes no metadata.
    pub verbs: Verbs,
    /// The root prefix of the job's life that the token was attenuated to.
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

/// How a prefix lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PrefixOptions<'a> {
    /// Lease in milliseconds; 0 takes the job's.
    pub lease_ms: u32,
    /// Never expires.
    pub pinned: bool,
    /// What the prefix's own task (and the driver) may do with its structures.
    pub owner_verbs: Verbs,
    /// What the job's other tasks may do. Both sets empty means the default: the owner reads and
    /// writes, the job reads.
    pub job_verbs: Verbs,
    /// Percent of a block in use at which it grows or splits; 0 takes the cluster's.
    pub high_mark: u8,
    /// Percent of a block in use below which it merges; 0 takes the cluster's.
    pub low_mark: u8,
    /// Where its data goes when its lease ends; empty discards it.
    pub flush_to: &'a str,
    /// Most blocks of it and all below it; 0 for no bound.
    pub max_blocks: u64,
    /// Its structures cannot be opened before it is published.
    pub loading: bool,
    /// Whatever ends it but its removal flushes it first; to its own path when `flush_to` is empty.
    pub persist: bool,
    /// How durable a change is when it is answered: `ACKNOWLEDGE_MEMORY` or `ACKNOWLEDGE_FLUSHED`.
    pub acknowledge: u8,
}

/// Changes are answered when they are in memory.
pub const ACKNOWLEDGE_MEMORY: u8 = 0;
/// Changes are answered when they are in a journal where the prefix would be flushed.
pub const ACKNOWLEDGE_FLUSHED: u8 = 2;

/// What has a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaOf<'a> {
    /// All jobs of a tenant.
    Tenant(&'a str),
    /// A job.
    Job(JobId),
    /// A prefix with all below it.
    Prefix(JobId, &'a str),
}

/// What becomes of a quota; `None` leaves it as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaChange {
    /// The most blocks; 0 for no bound.
    pub max_blocks: Option<u64>,
    /// Blocks in memory beyond which it is the first whose blocks go below; 0 for none.
    pub soft_blocks: Option<u64>,
    /// What its share counts for among those of others. Of tenants, and of jobs that are no tenant's.
    pub weight: Option<u32>,
}

impl QuotaChange {
    /// The most blocks from now on.
    pub fn most(max_blocks: u64) -> QuotaChange {
        QuotaChange { max_blocks: Some(max_blocks), ..QuotaChange::default() }
    }
}

/// One task of an execution plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanNode<'a> {
    /// Name of the prefix; unique within the plan.
    pub name: &'a str,
    /// Names within the plan (these win) or paths of prefixes that exist; none means a child of
    /// the root.
    pub parents: &'a [&'a str],
    /// How the prefix lives.
    pub options: PrefixOptions<'a>,
    /// Who will read it: names within the plan (these win) or paths of prefixes that exist.
    pub readers: &'a [&'a str],
}

/// A structure to create.
#[derive(Clone, Copy, Debug)]
pub struct NewStructure<'a> {
    /// The prefix.
    pub path: &'a str,
    /// Name of the structure; empty for the unnamed one.
    pub name: &'a str,
    /// What it is.
    pub kind: Kind,
    /// Initial capacity in blocks; 0 takes 1.
    pub blocks: u32,
    /// Most items of a queue; 0 for no bound. Others ignore it.
    pub max_items: u64,
    /// Most bytes of a queue's items together; 0 for no bound. Others ignore it.
    pub max_bytes: u64,
    /// Open it when one of the same kind exists.
    pub open_existing: bool,
}

/// A memory server that announces itself.
#[derive(Clone, Copy, Debug)]
pub struct NewServer<'a> {
    /// host:port at which clients reach it.
    pub address: &'a str,
    /// Random for each start of the process.
    pub incarnation: u64,
    /// Its cores.
    pub shards: u8,
    /// Blocks of each that may be in memory.
    pub blocks_per_shard: u32,
    /// What is below it, in the order in which it is used.
    pub tiers: &'a [TierSpec],
    /// Bytes of each block; all live servers have the same.
    pub block_size: u64,
    /// The custom kinds of structure that it serves.
    pub kinds: &'a [KindSpec],
    /// The place below which it writes what is flushed; empty when it cannot.
    pub flush_root: &'a str,
}

/// One object that a server wrote of a block.
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
    /// Bytes of a file's block; items that went through a queue's.
    pub length: u64,
    /// Bytes of a queue's items.
    pub bytes: u64,
    /// The structure itself was sealed with it: nothing follows.
    pub last: bool,
}

/// What one block holds, as its server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockUsage {
    /// The block and the ownership that is meant.
    pub at: BlockAt,
    /// Bytes of data.
    pub bytes_used: u64,
}

/// A block that a server has, as it tells when it rejoins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBlock {
    /// The block and the ownership under which it is held.
    pub at: BlockAt,
    /// Its structure.
    pub structure: StructureId,
    /// Grants of an earlier generation of its prefix are refused.
    pub generation: Generation,
    /// Bytes of data.
    pub bytes_used: u64,
    /// How it was sealed, if it was.
    pub sealed: Option<Seal>,
    /// The successor that it was granted, if it was.
    pub successor: Option<BlockAt>,
    /// Items, and their bytes, that were taken from a queue's block.
    pub taken: (u64, u64),
    /// Where it is, and where it is on its way to.
    pub tiers: (TierIx, TierIx),
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
    /// Of these, arrived on another core than the block's.
    pub forwarded: u64,
    /// Memory of freed blocks that clients still map.
    pub bytes_owed: u64,
    /// Thousandths of the time of its cores that they were busy since the last report.
    pub cpu_permille: u16,
    /// What its tiers moved since its start, in the order in which it declared them.
    pub traffic: &'a [TierTraffic],
    /// What is wrong with them.
    pub alarms: &'a [TierAlarm],
    /// Blocks whose usage changed since the last report; of a server with tiers, those that were used.
    pub usage: &'a [BlockUsage],
}

/// What is wrong with a tier of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierAlarm {
    /// The tier.
    pub tier: TierIx,
    /// What kind of thing.
    pub kind: AlarmKind,
    /// What the tier answered.
    pub why: Box<str>,
    /// Since when.
    pub age_ms: u64,
    /// How long ago that was found last.
    pub tried_ms: u64,
}

/// What one tier of a server moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierTraffic {
    /// Bytes that were written there.
    pub written: u64,
    /// Bytes that were read from there.
    pub read: u64,
}

/// Why a block does not stand still for a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopFault {
    /// What was begun before is still arriving: it is asked again in a moment.
    Arriving,
    /// Its kind cannot be flushed.
    Never,
    /// It is not there, or is part of another cut: all of it begins anew.
    Gone,
}

/// One transition of the catalog. Those with an `actor` come from clients; the rest come from the
/// controller itself or over the link to a memory server, which holds the cluster's token.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // The fields are those of the messages of the same names.
pub enum Command<'a> {
    /// Registers a job with its root prefix. Cluster only.
    /// Its name is `TENANT/NAME` when it is a tenant's.
    RegisterJob {
        actor: Actor,
        name: &'a str,
        lease_ms: u32,
        quota_blocks: u64,
        hints: Hints,
        claim: Claim<'a>,
    },
    /// Sets the most blocks that may be held, those that may be in memory before others go below, and
    /// weights of shares. Cluster, or the driver for a prefix.
    SetQuota { actor: Actor, of: QuotaOf<'a>, change: QuotaChange },
    /// A quota, and what is held of it. Cluster only for a tenant.
    Quota { actor: Actor, of: QuotaOf<'a> },
    /// Finds a job by its name. Cluster only.
    FindJob { actor: Actor, name: &'a str },
    /// Ends a job: its prefixes, structures and blocks go at once. Cluster or driver.
    DeregisterJob { actor: Actor, job: JobId },
    /// The jobs that the actor may see.
    ListJobs { actor: Actor },
    /// The custom kinds that servers have announced. Any actor.
    ListKinds { actor: Actor },
    /// Which servers the next blocks of a job with hints go to.
    JobWeights { actor: Actor, job: JobId },
    /// What a job has used, or all that the actor may see. One that ended, for the cluster.
    JobBills { actor: Actor, job: Option<JobId> },
    /// A job's address DAG with leases and structures.
    JobTree { actor: Actor, job: JobId },

    /// Adds a prefix under the path's own parent and the further ones named.
    CreatePrefix {
        actor: Actor,
        job: JobId,
        path: &'a str,
        parents: &'a [&'a str],
        options: PrefixOptions<'a>,
    },
    /// Creates all prefixes of an execution plan, or none.
    CreateHierarchy { actor: Actor, job: JobId, nodes: &'a [PlanNode<'a>] },
    /// Ends a prefix and frees its structures; descendants stay, its name can be used again.
    RemovePrefix { actor: Actor, job: JobId, path: &'a str },
    /// Renews prefixes, with their direct parents and all descendants; each path alone.
    RenewLeases { actor: Actor, job: JobId, paths: &'a [&'a str] },
    /// A server saw a session of this task `ago_ms` before it said so. Ignored when the prefix is
    /// gone or not of that job.
    RenewPrefixById { job: JobId, prefix: PrefixId, ago_ms: u32 },
    /// A prefix's lease and what is left of it.
    LeaseInfo { actor: Actor, job: JobId, path: &'a str },
    /// Changes who may do what with a prefix's structures and revokes earlier grants. Both sets
    /// are taken as they are: empty ones allow nothing.
    SetPermissions { actor: Actor, job: JobId, path: &'a str, owner_verbs: Verbs, job_verbs: Verbs },
    /// Says who will read a prefix: when the last of them has committed, it is freed at once. Adds
    /// to those declared before, or takes their place.
    DeclareReaders {
        actor: Actor,
        job: JobId,
        path: &'a str,
        readers: &'a [&'a str],
        replace: bool,
    },
    /// The attempt of the task that a prefix stands for has committed. Cluster, driver, or the task
    /// itself; idempotent.
    CommitTask { actor: Actor, job: JobId, path: &'a str },

    /// Creates a structure with its initial blocks and opens it.
    CreateStructure { actor: Actor, job: JobId, structure: NewStructure<'a> },
    /// Opens a structure by address, or says why it is gone. Its prefix becomes a parent of the one
    /// that the session runs for, where that is of use and possible (`EdgeOutcome`).
    OpenStructure { actor: Actor, job: JobId, path: &'a str, name: &'a str },
    /// Opens a structure by identity, or says why it is gone.
    ReopenStructure { actor: Actor, job: JobId, structure: StructureId },
    /// Blocks in which a kv keeps extents: one with room for an extent of `bytes`, which is none of
    /// those that are `full`, and made when there is none; or all of them when `bytes` is 0.
    ExtentBlocks {
        actor: Actor,
        job: JobId,
        structure: StructureId,
        bytes: u64,
        full: &'a [BlockId],
    },
    /// Frees a structure's blocks at once.
    RemoveStructure { actor: Actor, job: JobId, path: &'a str, name: &'a str },
    /// Servers and totals; only totals for a job's token.
    ClusterStatus { actor: Actor },

    /// A memory server joins. Every start gets a new number; a live server of the same address is
    /// taken for dead.
    JoinServer { server: NewServer<'a> },
    /// A server that was a member comes back over a new connection, with its blocks. Refused
    /// (`UnknownServer`) unless it is the member of that number, address and incarnation; it then
    /// drops its blocks and joins. Its inventory follows.
    RejoinServer { server: NewServer<'a>, member: ServerId },
    /// Blocks that a server has which rejoined; `last` when it has no others.
    Inventory { server: ServerId, held: &'a [HeldBlock], last: bool },
    /// What a server lends to this controller shard, in blocks by core: once when it has joined or
    /// rejoined, where there are several shards, and in answer to `Effect::Lots`. Empty when it
    /// refused that.
    Lent { server: ServerId, lent: &'a [u32] },
    /// The last allocation, of so many blocks, was refused as `OutOfMemory`: servers that lend are asked
    /// for them, and blocks of whoever asked go below memory. Whether any will: `Catalog::awaits_room`.
    ShortOf { blocks: u32 },
    /// Takes a server out, or (`cancel`) no longer: it is given no block from now on, and is released
    /// when it holds none. Cluster only; idempotent.
    DrainServer { actor: Actor, address: &'a str, cancel: bool },
    /// Ends all jobs, as many at a time as one command may, before the cluster ends. Prefixes with `flush_to`
    /// or `persist` are flushed; with `discard` their flushes are given up. No job is registered from now on.
    /// Cluster only; idempotent, and repeated until the reply shows no flush and no job.
    StopCluster { actor: Actor, discard: bool },
    /// A server wants to be taken out.
    LeaveServer { server: ServerId },
    /// A server that was released has heard that it is wanted again.
    ServerStays { server: ServerId },
    /// A heartbeat.
    ServerReport { server: ServerId, report: Report<'a> },
    /// The connection of a server closed, and its process may still run.
    ServerUnlinked { server: ServerId },
    /// The process of a server ended.
    ServerLost { server: ServerId },
    /// A server opened a block for its owner.
    BlockOpened { server: ServerId, at: BlockAt },
    /// A server confirms that nothing of a freed block can be read any more.
    BlockFreed { server: ServerId, at: BlockAt },
    /// A block asks for its successor; the same block gets the same answer again.
    GrowStructure { structure: StructureId, at: BlockAt },
    /// A block was sealed.
    SealBlock { structure: StructureId, at: BlockAt, seal: Seal },
    /// So much was taken, in all, from a queue's block that is not its tail.
    QueueTaken { structure: StructureId, at: BlockAt, items: u64, bytes: u64 },
    /// A queue's block, or one of extents, is empty for good.
    RetireBlock { structure: StructureId, at: BlockAt },
    /// A block gives back the successor that it was granted and has told nobody of.
    ReturnBlock { structure: StructureId, at: BlockAt, successor: BlockAt },
    /// A block that was to go below memory is there, and has no memory any more; or it stays where it was.
    TierChanged { structure: StructureId, at: BlockAt, tier: TierIx },
    /// A block below memory is read often, and would come up.
    RaiseBlock { structure: StructureId, at: BlockAt },
    /// A server does not lower a block now.
    LowerRefused { server: ServerId, at: BlockAt },
    /// Bytes of a block below memory cannot be read any more: its structure is lost.
    BlockFailed { structure: StructureId, at: BlockAt },
    /// A server wrote what a block of an expired prefix held, or could not.
    BlockFlushed { server: ServerId, at: BlockAt, outcome: Result<&'a [Written], &'a str> },
    /// Begins to write what a prefix holds that lives on.
    FlushPrefix {
        actor: Actor,
        job: JobId,
        path: &'a str,
        place: &'a str,
        /// Of a subtree: the paths below it that are flushed already, each to its own place; with a
        /// barrier, those that are flushed with it.
        below: &'a [&'a str],
        /// All of it as it was at one moment.
        barrier: bool,
    },
    /// How that stands.
    FlushInfo { actor: Actor, job: JobId, number: u64 },
    /// Ends it, unless its manifest is being written.
    CancelFlush { actor: Actor, job: JobId, number: u64 },
    /// Where a flush of the job's name is in full, and whether one is under way there.
    /// And that of this prefix there that can be cancelled.
    LocateFlush { actor: Actor, job: JobId, place: &'a str, path: &'a str },
    /// A prefix that was being loaded is whole.
    PublishPrefix { actor: Actor, job: JobId, path: &'a str },
    /// A server wrote what a block held at one moment, into an object of this number of this flush, and
    /// whether the block was sealed; or could not, and whether it never will.
    BlockCopied {
        server: ServerId,
        number: u64,
        name: u32,
        outcome: Result<(&'a [Written], bool), (bool, &'a str)>,
    },
    /// A block stands still for a flush, and whether it was sealed; or does not.
    BlockStopped {
        server: ServerId,
        number: u64,
        at: BlockAt,
        attempt: u32,
        outcome: Result<bool, (StopFault, &'a str)>,
    },
    /// A server knows nothing of the cut that it was to write.
    CutLost { server: ServerId, number: u64 },
    /// A block goes on; whether it stood still until it was told to.
    BlockThawed { server: ServerId, number: u64, at: BlockAt, attempt: u32, stood: bool },
    /// A server wrote the manifest of a flush, or could not.
    FlushCommitted { server: ServerId, number: u64, outcome: Result<(), &'a str> },
    /// A server deleted what it was asked to of this flush, or could not.
    Swept { server: ServerId, number: u64, outcome: Result<(), &'a str> },
    /// A block of a kv wants to give the rest of its range from `start` on to a new block, or all of it
    /// to a neighbour, or to a new block because its server is taken out. While its move lasts it gets
    /// the same answer again.
    BeginMove { structure: StructureId, at: BlockAt, start: u64, way: Way },
    /// The target of a block's move has confirmed that it holds everything: it owns the range from
    /// now on. May be repeated by the block until it has the answer.
    /// `bytes` were sent for it.
    CommitMove { structure: StructureId, at: BlockAt, id: MoveId, target: BlockAt, bytes: u64 },
    /// A block gives its move up. Changes nothing when there is none, or when it was committed.
    CancelMove { structure: StructureId, at: BlockAt, id: MoveId },
    /// A server does not open the target of a move, or does not let it import: the move is
    /// cancelled, if it is still under way.
    ImportRefused { server: ServerId, at: BlockAt, id: MoveId },

    /// Time has passed: expires leases, silent servers and lingering jobs that are due.
    Tick,
    /// As `Tick`, where requests that arrived after `heard` may still be unread: a lease or a server
    /// whose time ended later is not due yet, because its renewal or report may be among them.
    TickUntil { heard: Time },
    /// The controller's process read no request for so long, up to now: every lease that was running is
    /// that much longer, and so is the silence that servers are allowed.
    Stalled { length: Duration },
    /// This controller was away: every lease and every server's silence starts anew (INV-27).
    Amnesty,
}
