//! A catalog with its clock and simulated servers, for tests. Checks every invariant after every command.

use honeycomb_catalog::{
    Actor, BlockUsage, Catalog, CatalogError, Claim, ClusterStatus, Command, Config, Effect,
    HeldBlock, Hints, NewServer, NewStructure, Opened, PlanNode, PrefixInfo, PrefixOptions,
    Recovery, Reply, Report, Seal,
};
use honeycomb_types::{
    AnnouncedKind, BlockAt, Generation, JobId, Kind, PolicyKind, PrefixId, ServerId, StructureId,
    TierClass, TierSpec, Time,
};
use proptest::test_runner::Config as ProptestConfig;
use std::time::Duration;

/// Number of cases of a long property test: a short dose, unless `CATALOG_CASES` is set.
pub fn long_cases() -> ProptestConfig {
    let set = std::env::var("CATALOG_CASES");
    let cases = set.map_or(100, |set| set.parse().expect("CATALOG_CASES is a number"));
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

pub struct Bench {
    pub catalog: Catalog,
    pub now: Time,
    pub effects: Vec<Effect>,
    /// Replies and effects so far, except those with the bytes of tables.
    pub log: Option<Vec<String>>,
    /// The state recovered from the log of the changes so far.
    pub written: Recovery,
    /// Records of the last command.
    pub changes: Vec<u8>,
    /// The term of the next controller.
    pub term: u32,
}

/// Lease of jobs that name none.
pub const LEASE_MS: u32 = 1000;

pub const LEASE: PrefixOptions = PrefixOptions {
    lease_ms: 0,
    pinned: false,
    owner_verbs: honeycomb_types::Verbs::NONE,
    job_verbs: honeycomb_types::Verbs::NONE,
    high_mark: 0,
    low_mark: 0,
    flush_to: "",
    max_blocks: 0,
    loading: false,
    persist: false,
    acknowledge: 0,
};

pub fn lease(lease_ms: u32) -> PrefixOptions<'static> {
    PrefixOptions { lease_ms, ..LEASE }
}

pub fn node<'a>(name: &'a str, parents: &'a [&'a str]) -> PlanNode<'a> {
    PlanNode { name, parents, options: LEASE, readers: &[] }
}

pub fn file<'a>(path: &'a str, name: &'a str, blocks: u32) -> NewStructure<'a> {
    NewStructure {
        path,
        name,
        kind: Kind::File,
        blocks,
        max_items: 0,
        max_bytes: 0,
        open_existing: false,
    }
}

pub fn kv<'a>(path: &'a str, name: &'a str, blocks: u32) -> NewStructure<'a> {
    NewStructure { kind: Kind::Kv, ..file(path, name, blocks) }
}

pub fn queue<'a>(path: &'a str, name: &'a str, max_items: u64) -> NewStructure<'a> {
    NewStructure { kind: Kind::Queue, max_items, ..file(path, name, 1) }
}

/// A server with memory alone, in blocks of 64 KiB.
pub fn server(address: &str, shards: u8, blocks_per_shard: u32) -> NewServer<'_> {
    NewServer {
        address,
        incarnation: incarnation(address),
        shards,
        blocks_per_shard,
        tiers: &[],
        block_size: 65_536,
        flush_root: "",
        kinds: &[],
    }
}

/// The incarnation that a server of this address reports.
pub fn incarnation(address: &str) -> u64 {
    address.bytes().fold(7, |h, b| h * 31 + b as u64)
}

/// The whole hard state, as bytes.
pub fn everything(catalog: &Catalog) -> Vec<u8> {
    let mut all = Vec::new();
    catalog.put_all(&mut |records| all.extend_from_slice(records));
    all
}

/// Registers a job with the cluster's token and without a holder.
pub fn register(
    bench: &mut Bench,
    name: &str,
    lease_ms: u32,
    hints: Hints,
) -> Result<JobId, CatalogError> {
    let (actor, quota_blocks, claim) = (Actor::CLUSTER, 0, Claim::default());
    let register = Command::RegisterJob { actor, name, lease_ms, quota_blocks, hints, claim };
    match bench.run(register)? {
        Reply::Job { job, .. } => Ok(job),
        other => panic!("{other:?}"),
    }
}

impl Bench {
    pub fn new() -> Bench {
        Bench::with_seed(11)
    }

    pub fn with_seed(hash_seed: u64) -> Bench {
        Bench::with_policy(hash_seed, PolicyKind::FirstCome)
    }

    pub fn with_policy(hash_seed: u64, policy: PolicyKind) -> Bench {
        let config = Config {
            shard: 3,
            term: 2,
            hash_seed,
            policy,
            lease_ms: LEASE_MS,
            ..Config::default()
        };
        Bench::of(config)
    }

    pub fn of(config: Config) -> Bench {
        let now = Time::from_millis(1_000_000);
        let mut catalog = Catalog::new(config);
        catalog.keep_changes();
        let (written, changes) = (Recovery::new(), Vec::new());
        Bench { catalog, now, effects: Vec::new(), log: None, written, changes, term: 3 }
    }

    pub fn run(&mut self, command: Command<'_>) -> Result<Reply, CatalogError> {
        self.effects.clear();
        let reply = self.catalog.apply(self.now, command, &mut self.effects);
        if let Err(broken) = self.catalog.check_invariants() {
            panic!("{broken} after {command:?}");
        }
        self.check_log(&command);
        if let (Some(log), false) = (&mut self.log, matches!(reply, Ok(Reply::Status(_)))) {
            log.push(format!("{reply:?} {:?}", self.effects));
        }
        reply
    }

    /// INV-26: the recovered state equals the present one.
    fn check_log(&mut self, command: &Command<'_>) {
        self.changes.clear();
        self.catalog.take_changes(&mut self.changes);
        if let Err(e) = self.written.group(&self.changes) {
            panic!("{e} after {command:?}");
        }
        let recovered = self.recovered();
        if let Err(broken) = recovered.check_invariants() {
            panic!("recovered: {broken} after {command:?}");
        }
        assert!(everything(&recovered) == everything(&self.catalog), "INV-26 after {command:?}");
    }

    /// The catalog of a controller that starts now.
    pub fn recovered(&self) -> Catalog {
        let config = Config {
            shard: 3,
            term: self.term,
            hash_seed: 5,
            lease_ms: LEASE_MS,
            ..Config::default()
        };
        self.written.clone().finish(config, self.now).unwrap()
    }

    /// The controller ends, and another one begins from the log.
    pub fn restart(&mut self) {
        self.catalog = self.recovered();
        self.term += 1;
    }

    pub fn job(&mut self, name: &str) -> JobId {
        self.job_leased(name, 0)
    }

    pub fn job_leased(&mut self, name: &str, lease_ms: u32) -> JobId {
        register(self, name, lease_ms, Hints::default()).unwrap()
    }

    pub fn create(
        &mut self,
        job: JobId,
        path: &str,
        parents: &[&str],
        options: PrefixOptions,
    ) -> Result<PrefixId, CatalogError> {
        let actor = Actor::driver(job);
        match self.run(Command::CreatePrefix { actor, job, path, parents, options })? {
            Reply::Prefix(id) => Ok(id),
            other => panic!("{other:?}"),
        }
    }

    pub fn plan(
        &mut self,
        job: JobId,
        nodes: &[PlanNode<'_>],
    ) -> Result<Vec<PrefixId>, CatalogError> {
        let actor = Actor::driver(job);
        match self.run(Command::CreateHierarchy { actor, job, nodes })? {
            Reply::Prefixes(ids) => Ok(ids),
            other => panic!("{other:?}"),
        }
    }

    pub fn remove(&mut self, job: JobId, path: &str) -> Result<Reply, CatalogError> {
        self.run(Command::RemovePrefix { actor: Actor::driver(job), job, path })
    }

    /// Declares further readers; returns how many have not committed.
    pub fn declare(
        &mut self,
        job: JobId,
        path: &str,
        readers: &[&str],
    ) -> Result<u32, CatalogError> {
        self.declare_as(Actor::driver(job), path, readers, false)
    }

    pub fn declare_as(
        &mut self,
        actor: Actor,
        path: &str,
        readers: &[&str],
        replace: bool,
    ) -> Result<u32, CatalogError> {
        let job = actor.job.unwrap();
        match self.run(Command::DeclareReaders { actor, job, path, readers, replace })? {
            Reply::Readers { left } => Ok(left),
            other => panic!("{other:?}"),
        }
    }

    /// Commits a task; returns how many prefixes that freed.
    pub fn commit(&mut self, actor: Actor, path: &str) -> Result<u32, CatalogError> {
        let job = actor.job.unwrap();
        match self.run(Command::CommitTask { actor, job, path })? {
            Reply::Committed { freed } => Ok(freed),
            other => panic!("{other:?}"),
        }
    }

    pub fn renew(&mut self, job: JobId, paths: &[&str]) -> Vec<Result<u32, CatalogError>> {
        match self.run(Command::RenewLeases { actor: Actor::driver(job), job, paths }) {
            Ok(Reply::Renewed(results)) => results,
            other => panic!("{other:?}"),
        }
    }

    /// The first block of a structure.
    pub fn catalog_map(&mut self, job: JobId, structure: StructureId) -> BlockAt {
        match self.run(Command::ReopenStructure { actor: Actor::driver(job), job, structure }) {
            Ok(Reply::Opened(opened)) => opened.map.entries[0].at,
            other => panic!("{other:?}"),
        }
    }

    /// Lets time pass, and the tick that is due after it.
    pub fn pass(&mut self, ms: u64) {
        self.now = self.now + Duration::from_millis(ms);
        self.run(Command::Tick).unwrap();
    }

    pub fn tree(&mut self, job: JobId) -> Vec<PrefixInfo> {
        match self.run(Command::JobTree { actor: Actor::driver(job), job }) {
            Ok(Reply::Tree(tree)) => tree,
            other => panic!("{other:?}"),
        }
    }

    /// Milliseconds that the lease at this path has left.
    pub fn left(&mut self, job: JobId, path: &str) -> Result<i64, CatalogError> {
        match self.run(Command::LeaseInfo { actor: Actor::driver(job), job, path })? {
            Reply::Lease(info) => Ok(info.remaining_ms),
            other => panic!("{other:?}"),
        }
    }

    pub fn join(&mut self, address: &str, shards: u8, blocks_per_shard: u32) -> ServerId {
        self.join_with(address, shards, blocks_per_shard, false, &[]).unwrap()
    }

    /// A server that joins, with a `flush_root` or without.
    pub fn join_as(
        &mut self,
        address: &str,
        shards: u8,
        blocks_per_shard: u32,
        flush: bool,
    ) -> ServerId {
        self.join_with(address, shards, blocks_per_shard, flush, &[]).unwrap()
    }

    /// One core with this many blocks in memory and on a disk, which can flush.
    pub fn join_with_disk(&mut self, address: &str, frames: u32, below: u32) -> ServerId {
        self.join_with_tiers(address, frames, &[(TierClass::Nvme, below)])
    }

    /// The same, with these lower tiers.
    pub fn join_with_tiers(
        &mut self,
        address: &str,
        frames: u32,
        tiers: &[(TierClass, u32)],
    ) -> ServerId {
        let tier = |&(class, blocks): &(TierClass, u32)| TierSpec { class, blocks };
        let tiers: Vec<TierSpec> = tiers.iter().map(tier).collect();
        let server =
            NewServer { tiers: &tiers, flush_root: "/flush", ..server(address, 1, frames) };
        match self.run(Command::JoinServer { server }) {
            Ok(Reply::Joined(id)) => id,
            other => panic!("{other:?}"),
        }
    }

    /// A server that serves custom kinds.
    pub fn join_with(
        &mut self,
        address: &str,
        shards: u8,
        blocks_per_shard: u32,
        flush: bool,
        kinds: &[AnnouncedKind],
    ) -> Result<ServerId, CatalogError> {
        let flush_root = if flush { "/flush" } else { "" };
        let server = NewServer { flush_root, kinds, ..server(address, shards, blocks_per_shard) };
        match self.run(Command::JoinServer { server })? {
            Reply::Joined(id) => Ok(id),
            other => panic!("{other:?}"),
        }
    }

    pub fn make(
        &mut self,
        job: JobId,
        structure: NewStructure<'_>,
    ) -> Result<Opened, CatalogError> {
        let actor = Actor::driver(job);
        match self.run(Command::CreateStructure { actor, job, structure })? {
            Reply::Opened(opened) => Ok(opened),
            other => panic!("{other:?}"),
        }
    }

    pub fn open(&mut self, actor: Actor, path: &str, name: &str) -> Result<Opened, CatalogError> {
        let job = actor.job.unwrap();
        match self.run(Command::OpenStructure { actor, job, path, name })? {
            Reply::Opened(opened) => Ok(opened),
            other => panic!("{other:?}"),
        }
    }

    pub fn reopen(&mut self, job: JobId, opened: &Opened) -> Result<Opened, CatalogError> {
        let (actor, structure) = (Actor::driver(job), opened.structure);
        match self.run(Command::ReopenStructure { actor, job, structure })? {
            Reply::Opened(opened) => Ok(opened),
            other => panic!("{other:?}"),
        }
    }

    pub fn status(&mut self) -> ClusterStatus {
        match self.run(Command::ClusterStatus { actor: Actor::CLUSTER }) {
            Ok(Reply::Status(status)) => status,
            other => panic!("{other:?}"),
        }
    }

    /// The blocks that the last command freed.
    pub fn freed(&self) -> Vec<BlockAt> {
        let freed = self.effects.iter().filter_map(|effect| match *effect {
            Effect::FreeBlock { at, .. } => Some(at),
            _ => None,
        });
        freed.collect()
    }

    /// Its server reports the bytes in a block.
    pub fn report(&mut self, at: BlockAt, bytes_used: u64) {
        self.report_all(at.block.server(), &[BlockUsage { at, bytes_used }]);
    }

    /// A heartbeat of a server, with the used bytes of its blocks.
    pub fn report_all(&mut self, server: ServerId, usage: &[BlockUsage]) {
        let report = Report {
            bytes_resident: 0,
            connections: 0,
            requests: 0,
            forwarded: 0,
            bytes_owed: 0,
            cpu_permille: 0,
            traffic: &[],
            alarms: &[],
            usage,
        };
        self.run(Command::ServerReport { server, report }).unwrap();
    }

    /// The blocks that the last command asked to leave their server.
    pub fn evacuated(&self) -> Vec<BlockAt> {
        let told = self.effects.iter().filter_map(|effect| match *effect {
            Effect::Evacuate { server, at } => {
                assert_eq!(server, at.block.server());
                Some(at)
            }
            _ => None,
        });
        told.collect()
    }

    /// The blocks that the last command asked to change their tier.
    pub fn lowered(&self) -> Vec<BlockAt> {
        let lowered = self.effects.iter().filter_map(|effect| match effect {
            Effect::LowerBlock { at, .. } => Some(*at),
            _ => None,
        });
        lowered.collect()
    }

    /// The numbers of items ahead that the last command sent.
    pub fn ahead(&self) -> Vec<(BlockAt, u64, u64)> {
        let told = self.effects.iter().filter_map(|effect| match *effect {
            Effect::QueueAhead { server, at, items, bytes } => {
                assert_eq!(server, at.block.server());
                Some((at, items, bytes))
            }
            _ => None,
        });
        told.collect()
    }

    /// Grants the successor of a block: the map version that the block's seal will make, and the successor.
    pub fn grow(&mut self, s: StructureId, at: BlockAt) -> Result<(u64, BlockAt), CatalogError> {
        match self.run(Command::GrowStructure { structure: s, at })? {
            Reply::Grown { version, entry } => {
                assert_eq!(entry.start, 0);
                Ok((version.0, entry.at))
            }
            other => panic!("{other:?}"),
        }
    }

    /// Seals a block; returns the map version that it makes.
    pub fn seal(&mut self, s: StructureId, at: BlockAt, seal: Seal) -> Result<u64, CatalogError> {
        match self.run(Command::SealBlock { structure: s, at, seal })? {
            Reply::Sealed { version } => Ok(version.0),
            other => panic!("{other:?}"),
        }
    }

    /// A server reconnects to a restarted controller, and announces these kinds.
    pub fn rejoin(&mut self, server: ServerId, kinds: &[AnnouncedKind]) {
        let status = self.status();
        let member = status.servers.iter().find(|s| s.server == server).unwrap();
        let new = NewServer {
            address: &member.address,
            incarnation: incarnation(&member.address),
            shards: member.shards,
            blocks_per_shard: (member.blocks / member.shards as u64) as u32,
            tiers: &[],
            block_size: 65_536,
            flush_root: "/flush",
            kinds,
        };
        self.run(Command::RejoinServer { server: new, member: server }).unwrap();
    }

    /// A server reconnects to a restarted controller and reports its blocks.
    pub fn back(&mut self, server: ServerId, held: &[(BlockAt, StructureId)]) {
        self.back_with(server, &[], held);
    }

    /// The same, with these kinds.
    pub fn back_with(
        &mut self,
        server: ServerId,
        kinds: &[AnnouncedKind],
        held: &[(BlockAt, StructureId)],
    ) {
        self.rejoin(server, kinds);
        let held = held.iter().map(|&(at, structure)| HeldBlock {
            at,
            structure,
            generation: Generation(1),
            bytes_used: 0,
            sealed: None,
            successor: None,
            taken: (0, 0),
            tiers: Default::default(),
            capacity: 65_536,
        });
        let held: Vec<HeldBlock> = held.collect();
        self.run(Command::Inventory { server, held: &held, last: true }).unwrap();
    }

    pub fn confirm(&mut self, blocks: &[BlockAt]) {
        for &at in blocks {
            self.run(Command::BlockFreed { server: at.block.server(), at }).unwrap();
        }
    }
}
