//! The catalog: the controller's whole state as a deterministic state machine.
//!
//! [`Catalog::apply`] takes the time and a [`Command`] and returns a [`Reply`] or a [`CatalogError`], and
//! [`Effect`]s that memory servers have to carry out. There is no I/O, no clock, no randomness and no thread
//! inside: the same commands at the same times give the same replies, effects and state (INV-35). The
//! simulator and the command log rely on this.
//!
//! A refused command has no effect, and an allocation of several blocks returns all of them or none. Effects
//! are idempotent by (block, epoch) and must reach each server in the order in which they were emitted.
//!
//! Where to look: `dag` holds prefixes and computes renewals; `lease` the timers and the end of a prefix;
//! `flush` the data of a prefix that expires; `edges` the edges deduced from use; `readers` declared readers;
//! `plan` whole hierarchies; `pool` blocks; `growth` the growth of files and queues; `queue` the bounds and
//! the shrinking of queues; `moves` splits and merges of kvs; `extents` the blocks of their large values;
//! `policy` the placement of blocks; `hints` the expected use of jobs, `quota` their limits and `bill` their
//! past use; `weights` the servers of jobs with hints; `pressure` and `disk_pressure` the demotion of blocks
//! when memory is short; `shares` the choice of the job whose blocks are demoted; `lots` this controller
//! shard's share of each server; `drain` the draining of a server, and `relocate` the moves of its blocks;
//! `audit` the background check of the invariants.

#![forbid(unsafe_code)]

mod advice;
mod audit;
mod bill;
mod command;
mod dag;
mod disk_pressure;
mod drain;
mod durable;
mod edges;
mod error;
mod extents;
mod flush;
mod full;
mod growth;
mod hash;
mod hints;
mod invariants;
mod jobs;
mod journal;
mod kinds;
mod lease;
mod lives;
mod lots;
mod moves;
mod plan;
pub mod policy;
mod pool;
mod prefixes;
mod pressure;
mod private;
mod queue;
mod quota;
mod readers;
mod rejoin;
mod relocate;
mod reply;
mod servers;
mod shares;
mod slab;
mod stalls;
mod staying;
mod structures;
mod tier_weights;
mod tombstones;
mod weights;

pub use advice::{Advice, AdviceKind, ServerUse, Use, Verdict, advise};
pub use audit::AuditFinding;
pub use bill::{BillInfo, Spent, TierSpent};
pub use command::{
    ACKNOWLEDGE_FLUSHED, ACKNOWLEDGE_MEMORY, Actor, BlockUsage, Command, HeldBlock, NewServer,
    NewStructure, PlanNode, PrefixOptions, QuotaChange, QuotaOf, Report, Seal, StopFault,
    TierAlarm, TierTraffic, Written,
};
pub use durable::{BadRecord, Recovery};
pub use error::{CatalogError, Loss, QuotaLevel};
pub use full::{Full, FullTier, Holding, Suspect};
pub use hints::{Estimate, Hints, Supply};
pub use honeycomb_types::Router;
pub use invariants::{Broken, Chain};
pub use lives::{Claim, Holder};
pub use quota::Allowance;
pub use reply::{
    ClusterStatus, DrainState, EdgeOutcome, Effect, FlushProgress, FlushState, FlushedPart,
    FlushedStructure, JobInfo, JournalAt, LeaseInfo, MapEntry, Opened, PartitionMap, PrefixInfo,
    PrefixState, Reply, ServerInfo, StopProgress, StructureInfo, TierUse, Unflushed,
};
pub use shares::ShareInfo;
pub use tier_weights::TierWeight;
pub use weights::Weight;

use advice::Adviser;
use audit::Audit;
use bill::Bills;
use dag::Dag;
use drain::Drains;
use durable::PendingRecords;
use flush::{Flushes, Stop};
use hash::HashKey;
use honeycomb_types::limits::{LEASE_DEFAULT_MS, SERVER_LOSS_DEFAULT_MS};
use honeycomb_types::{
    BlockAt, BlockId, Bug, IdCipher, IdOf, JobId, Marks, MoveId, PolicyKind, ScaleMarks, ServerId,
    StructureId, Time,
};
use jobs::Jobs;
use kinds::Kinds;
use lease::Timers;
use lives::{FormerJobs, NewJob};
use policy::Policy;
use pool::Pool;
use pressure::Pressure;
use quota::Quotas;
use readers::Readers;
use rejoin::Awaited;
use shares::Sharing;
use stalls::Stalls;
use std::collections::VecDeque;
use std::sync::Arc;
use structures::Structures;

/// Parameters that distinguish the catalog of one controller shard.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The controller shard: the top bits of the ids that it assigns.
    pub shard: u16,
    /// The controller's term, durable before the catalog exists; part of every epoch and job id.
    pub term: u32,
    /// Key of the hash tables; drawn at random by a real controller, from the seed by a simulated one. It has
    /// no visible effect, but prevents tenants from provoking collisions.
    pub hash_seed: u64,
    /// The cipher that turns its counters into the ids that jobs see.
    pub ids: IdCipher,
    /// The marks of growth and merging, for prefixes without their own.
    pub marks: Marks,
    /// The lease of prefixes, for jobs without their own, in milliseconds.
    pub lease_ms: u32,
    /// The policy that divides memory when it is short.
    pub policy: PolicyKind,
    /// The marks for advice on the number of servers.
    pub scale: ScaleMarks,
    /// Milliseconds of silence after which a suspected server is lost.
    pub server_loss_ms: u32,
}

impl Default for Config {
    fn default() -> Config {
        let (marks, lease_ms) = (Marks::default(), LEASE_DEFAULT_MS);
        let policy = PolicyKind::default();
        Config {
            shard: 0,
            term: 0,
            hash_seed: 0,
            ids: IdCipher::default(),
            marks,
            lease_ms,
            policy,
            scale: ScaleMarks::default(),
            server_loss_ms: SERVER_LOSS_DEFAULT_MS,
        }
    }
}

/// Work counters of the catalog: the cost that tests bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCounters {
    /// Lease timers that were due and examined.
    pub timers: u64,
    /// Relatives of prefixes that were read to compute leases, rights and cycles.
    pub relatives: u64,
    /// Edges that were followed for that.
    pub edges: u64,
    /// Servers that were inspected to compute the advice on their number.
    pub advice: u64,
}

/// The state machine. The documentation of the crate has the contract.
pub struct Catalog {
    config: Config,
    key: HashKey,
    now: Time,
    started: Option<Time>,
    /// The time of the last amnesty: no prefix counts as renewed before it.
    floor: Time,
    stalls: Stalls,
    dag: Dag,
    timers: Timers,
    jobs: Jobs,
    readers: Readers,
    structures: Structures,
    kinds: Kinds,
    pool: Pool,
    flushes: Flushes,
    pressure: Pressure,
    /// Recently counted holdings of jobs that were refused memory.
    counted: full::Counted,
    sharing: Sharing,
    adviser: Adviser,
    audit: Audit,
    drains: Drains,
    /// The end of the cluster, once it was requested.
    stop: Option<Stop>,
    quotas: Quotas,
    bills: Bills,
    former: FormerJobs,
    policy: Box<dyn Policy>,
    /// The block size of all live servers.
    block_size: u64,
    /// A lower bound of the time at which the silence of any server has consequences. Reports need not update
    /// it.
    silence: Time,
    last_prefix: u64,
    last_move: u64,
    /// The deadlines of moves, in order; ended moves included.
    moves_due: VecDeque<(Time, StructureId, MoveId)>,
    /// When private chains are examined, in order, with their first blocks.
    appends_due: VecDeque<(Time, StructureId, BlockId)>,
    live_prefixes: u64,
    journal: PendingRecords,
    /// Servers that are awaited after a recovery.
    awaited: Awaited,
    tombstone_limit: usize,
    /// Parents of the prefix that is being created.
    scratch: Vec<u32>,
    /// Prefixes that lost a place or a child to the prefix that is being created.
    evicted: Vec<u32>,
}

impl Catalog {
    /// An empty catalog.
    pub fn new(config: Config) -> Catalog {
        let policy = policy::of(config.policy);
        let key = HashKey::new(config.hash_seed);
        Catalog {
            config,
            key,
            now: Time::ZERO,
            started: None,
            floor: Time::ZERO,
            stalls: Stalls::default(),
            dag: Dag::new(key),
            timers: Timers::default(),
            jobs: Jobs::new(key),
            readers: Readers::default(),
            structures: Structures::new(key),
            kinds: Kinds::default(),
            pool: Pool::new(config.shard, config.term),
            flushes: Flushes::default(),
            pressure: Pressure::default(),
            counted: full::Counted::default(),
            sharing: Sharing::default(),
            adviser: Adviser::default(),
            audit: Audit::default(),
            drains: Drains::default(),
            stop: None,
            quotas: Quotas::default(),
            bills: Bills::default(),
            former: FormerJobs::default(),
            policy,
            block_size: 0,
            silence: Time::NEVER,
            last_prefix: 0,
            last_move: 0,
            moves_due: VecDeque::new(),
            appends_due: VecDeque::new(),
            live_prefixes: 0,
            journal: PendingRecords::default(),
            awaited: Awaited::default(),
            tombstone_limit: honeycomb_types::limits::TOMBSTONES_PER_JOB_MAX,
            scratch: Vec::new(),
            evicted: Vec::new(),
        }
    }

    /// Makes one transition and appends the resulting work of memory servers to `effects`.
    /// A `now` before the time of an earlier command is replaced by that time. Leases end only in `Tick`,
    /// which is due at [`Catalog::next_deadline`] and harmless at any other time. One tick does a bounded
    /// amount of work: when more is due, the next deadline is not in the future.
    pub fn apply(
        &mut self,
        now: Time,
        command: Command<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        self.now = self.now.max(now);
        self.pool.meter.at(self.now, self.units().bytes());
        self.started.get_or_insert(self.now);
        self.pressure.begins(matches!(command, Command::ShortOf { .. }));
        self.dag.begin_command();
        let copies = command.frees_copies();
        self.share_anew();
        let reply = self.transition(command, effects);
        effects.append(&mut self.pressure.early);
        if copies && !self.flushes.live.is_empty() {
            self.go_on_copying(effects);
        }
        if self.pressure.has_asked() {
            self.press(effects);
        }
        if !self.drains.is_empty() {
            self.go_on_draining(effects);
        }
        if self.pool.is_stirred() {
            self.balance_lots(effects);
        }
        reply
    }

    fn transition(
        &mut self,
        command: Command<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        use Command as C;
        match command {
            C::RenewLeases { actor, job, paths } => self.renew_leases(actor, job, paths),
            C::RenewPrefixById { job, prefix, ago_ms } => self.renew_by_id(job, prefix, ago_ms),
            C::OpenStructure { actor, job, path, name } => self.open(actor, job, path, name),
            C::ReopenStructure { actor, job, structure } => self.reopen(actor, job, structure),
            C::CreateStructure { actor, job, structure } => {
                self.create_structure(actor, job, structure, effects)
            }
            C::ExtentBlocks { actor, job, structure, bytes, full, value } => {
                self.extent_blocks(actor, (job, structure), bytes, full, value, effects)
            }
            C::BeginAppend { actor, job, structure, bytes } => {
                self.begin_append(actor, job, structure, bytes, effects)
            }
            C::CommitAppend { actor, job, structure, first } => {
                self.commit_append(actor, job, structure, first, effects)
            }
            C::DropAppend { actor, job, structure, first } => {
                self.drop_append(actor, job, structure, first, effects)
            }
            C::RemoveStructure { actor, job, path, name } => {
                self.remove_structure(actor, job, path, name, effects)
            }
            C::CreatePrefix { actor, job, path, parents, options } => {
                self.create_prefix(actor, job, path, parents, options)
            }
            C::CreateHierarchy { actor, job, nodes } => {
                self.create_hierarchy(actor, job, nodes, effects)
            }
            C::DeclareReaders { actor, job, path, readers, replace } => {
                self.declare_readers(actor, job, path, readers, replace, effects)
            }
            C::CommitTask { actor, job, path } => self.commit_task(actor, job, path, effects),
            C::RemovePrefix { actor, job, path } => self.remove_prefix(actor, job, path, effects),
            C::LeaseInfo { actor, job, path } => self.lease_info(actor, job, path),
            C::SetPermissions { actor, job, path, owner_verbs, job_verbs } => {
                self.set_permissions(actor, job, path, [owner_verbs, job_verbs], effects)
            }
            C::RegisterJob { actor, name, lease_ms, quota_blocks, hints, claim } => {
                let new = NewJob { name, lease_ms, quota_blocks, hints, claim };
                self.register_job(actor, new, effects)
            }
            C::SetQuota { actor, of, change } => self.set_quota(actor, of, change),
            C::Quota { actor, of } => self.quota(actor, of),
            C::JobWeights { actor, job } => self.job_weights(actor, job),
            C::JobBills { actor, job } => self.job_bills(actor, job),
            C::FindJob { actor, name } => self.find_job(actor, name),
            C::DeregisterJob { actor, job } => self.deregister_job(actor, job, effects),
            C::ListJobs { actor } => self.list_jobs(actor),
            C::ListKinds { actor } => self.list_kinds(actor),
            C::JobTree { actor, job } => self.job_tree(actor, job),
            C::ClusterStatus { actor } => self.cluster_status(actor),
            C::JoinServer { server } => self.join_server(server, effects),
            C::RejoinServer { server, member } => self.rejoin_server(server, member),
            C::Inventory { server, held, last } => self.inventory(server, held, last, effects),
            C::Lent { server, lent } => self.lent(server, lent, effects),
            C::ShortOf { units } => self.short_of(units, effects),
            C::ServerReport { server, report } => self.server_report(server, report),
            C::DrainServer { actor, address, cancel } => {
                self.drain_server(actor, address, cancel, effects)
            }
            C::StopCluster { actor, discard } => self.stop_cluster(actor, discard, effects),
            C::LeaveServer { server } => self.leave_server(server, effects),
            C::ServerStays { server } => self.server_stays(server),
            C::ServerUnlinked { server } => self.server_unlinked(server),
            C::ServerLost { server } => self.server_lost(server, Loss::Reset, effects),
            C::BlockOpened { server, at } => self.block_opened(server, at),
            C::BlockFreed { server, at } => self.block_freed(server, at),
            C::GrowStructure { structure, at } => self.grow(structure, at, effects),
            C::GrowBlock { structure, at, bytes } => self.grow_block(structure, at, bytes),
            C::SealBlock { structure, at, seal } => self.seal(structure, at, seal, effects),
            C::QueueTaken { structure, at, items, bytes } => {
                self.queue_taken(structure, at, items, bytes, effects)
            }
            C::RetireBlock { structure, at } if self.holds_extents(at) => {
                self.retire_extents(structure, at, effects)
            }
            C::RetireBlock { structure, at } => self.retire(structure, at, effects),
            C::ReturnBlock { structure, at, successor } => {
                self.give_back_successor(structure, at, successor, effects)
            }
            C::RaiseBlock { structure, at } => self.raise_block(structure, at, effects),
            C::TierChanged { structure, at, tier } => self.tier_changed(structure, at, tier),
            C::LowerRefused { server, at } => self.lower_refused(server, at),
            C::BlockFailed { structure, at } => self.block_failed(structure, at, effects),
            C::BlockFlushed { server, at, outcome } => {
                self.block_flushed(server, at, outcome, effects)
            }
            C::FlushPrefix { actor, job, path, place, below, barrier } => {
                self.flush_prefix(actor, job, path, place, (below, barrier))
            }
            C::FlushInfo { actor, job, number } => self.flush_info(actor, job, number),
            C::CancelFlush { actor, job, number } => self.cancel_flush(actor, job, number, effects),
            C::LocateFlush { actor, job, place, path } => {
                self.locate_flush(actor, job, place, path)
            }
            C::PublishPrefix { actor, job, path } => self.publish_prefix(actor, job, path),
            C::BlockCopied { server, number, name, outcome } => {
                self.block_copied(server, number, name, outcome, effects)
            }
            C::BlockStopped { server, number, at, attempt, outcome } => {
                self.block_stopped(server, (number, at), attempt, outcome, effects)
            }
            C::BlockThawed { server, number, at, attempt, stood } => {
                self.block_thawed(server, (number, at), attempt, stood)
            }
            C::CutLost { server, number } => self.cut_lost(server, number, effects),
            C::Swept { server, number, outcome } => self.swept(server, number, outcome, effects),
            C::FlushCommitted { server, number, outcome } => {
                self.flush_committed(server, number, outcome, effects)
            }
            C::BeginMove { structure, at, start, way } => {
                self.begin_move(structure, at, start, way, effects)
            }
            C::CommitMove { structure, at, id, target, bytes } => {
                self.commit_move(structure, at, id, (target, bytes), effects)
            }
            C::CancelMove { structure, at, id } => self.cancel_move(structure, at, id, effects),
            C::ImportRefused { server, at, id } => self.import_refused(server, at, id, effects),
            C::Tick => self.tick(self.now, effects),
            C::TickUntil { heard } => self.tick(heard.min(self.now), effects),
            C::Stalled { length } => self.stalled(length),
            C::Amnesty => self.amnesty(),
        }
    }

    /// The time at which `Tick` is due next, if ever. May be early, because renewals move no timer; never
    /// late.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.recovering() {
            // No lease ends before every server had time to report.
            return Some(self.silence).filter(|&at| at != Time::NEVER);
        }
        let moves = self.moves_due.front().map(|(at, ..)| *at);
        let (leases, jobs) = (self.next_lease_end(), self.jobs.next_linger());
        let appends = self.appends_due.front().map(|(at, ..)| *at);
        let deadlines = [leases, Some(self.silence), jobs, self.flushes.next(), moves, appends];
        deadlines.into_iter().flatten().min().filter(|&at| at != Time::NEVER)
    }

    /// The earliest time at which a lease may end: never later than the first end, and often earlier, because
    /// renewals move no timers. `None` if no lease is running.
    pub fn next_lease_end(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Whether the block's server has confirmed that it opened the block in this epoch; a
    /// controller holds back replies that name a block until then.
    pub fn is_open(&self, at: BlockAt) -> bool {
        self.pool.is_open(at)
    }

    /// The address of a member.
    pub fn address_of(&self, server: ServerId) -> Option<Arc<str>> {
        self.is_member(server).then(|| self.pool.address(server))
    }

    /// The shortest lease that a prefix of the job ever had: a client that renews all prefixes by their root
    /// must do so well within this time.
    pub fn shortest_lease_ms(&self, job: JobId) -> Option<u32> {
        self.jobs.find(job).map(|j| self.jobs[j].shortest_ms)
    }

    /// The number of memory servers that are members.
    pub fn members(&self) -> usize {
        self.pool.servers().count()
    }

    /// Whether the server is a member: it has joined and has not been declared lost since.
    pub fn is_member(&self, server: ServerId) -> bool {
        self.pool.server(server).is_some()
    }

    /// The work since the catalog was made.
    pub fn work(&self) -> WorkCounters {
        WorkCounters {
            timers: self.timers.examined,
            relatives: self.dag.visited,
            edges: self.dag.followed,
            advice: self.adviser.looked_at,
        }
    }

    /// Bytes of heap that the catalog occupies, unused capacity included; the allocator's own
    /// overhead is not.
    pub fn bytes_metadata(&self) -> u64 {
        let scratch = (self.scratch.capacity() + self.evicted.capacity()) * 4
            + self.moves_due.capacity() * size_of::<(Time, StructureId, MoveId)>()
            + self.appends_due.capacity() * size_of::<(Time, StructureId, BlockId)>();
        let tables = [
            self.dag.bytes(),
            self.timers.bytes(),
            self.stalls.bytes(),
            self.jobs.bytes(),
            self.readers.bytes(),
            self.structures.bytes(),
            self.kinds.bytes(),
            self.pool.bytes(),
            self.flushes.bytes(),
            self.pressure.bytes(),
            self.counted.bytes(),
            self.sharing.bytes(),
            self.quotas.bytes(),
            self.bills.bytes(),
            self.former.bytes(),
            self.audit.bytes(),
            scratch,
        ];
        tables.iter().sum::<usize>() as u64
    }

    /// The id of a counter, as jobs see it (INV-54).
    fn id_of(&self, of: IdOf, counter: u64) -> u64 {
        let plain = Bug::IdsCount.active();
        let ids = if plain { IdCipher::default() } else { self.config.ids };
        (self.config.shard as u64) << 48 | ids.seal(of, counter)
    }

    fn numbered(&self, counter: u64) -> u64 {
        assert!(counter < 1 << 48, "an id's counter has 48 bits");
        (self.config.shard as u64) << 48 | counter
    }
}
