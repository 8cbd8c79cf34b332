//! Placement of blocks in virtual time for the policy `block`: the catalog decides, with the code of a
//! controller. Each task has a prefix, as `keep::Ours` creates them in a cluster.
//!
//! The memory servers are simulated here. They open and free blocks at once, report used blocks every two
//! seconds, and seal the blocks of a file when its last byte is written. No block is promoted: a file is read
//! too seldom for that.

use super::keep::{path, prefixes};
use super::real::with_reserve;
use super::world::Conditions;
use honeycomb_catalog::{
    Actor, BlockUsage, Catalog, CatalogError, Command, Config, Effect, NewServer, NewStructure,
    PlanNode, PrefixOptions, Reply, Report, Seal,
};
use honeycomb_types::{
    BlockAt, BlockUnits, JobId, Kind, PolicyKind, ServerId, StructureId, TierClass, TierIx,
    TierSpec, Time,
};
use honeycomb_workload::{FileId, JobPlan};
use std::collections::HashMap;

/// Blocks of each disk: far more than are live at a time.
const DISK_BLOCKS: u32 = 8192;

/// There is no room in memory or on the disks, or the requester must wait for its share.
#[derive(Clone, Copy, Debug)]
pub struct Full {
    /// Whether blocks are being demoted, so that room will be free.
    pub room_comes: bool,
}

/// The job and the file that own a block.
pub type Whose = (u32, FileId);

/// A block that is migrating to another tier of its server.
#[derive(Clone, Copy, Debug)]
pub struct Going {
    /// The block.
    pub at: BlockAt,
    /// Target tier.
    pub tier: TierIx,
    /// Owner of the block.
    pub whose: Whose,
    /// Server of the block.
    pub server: u32,
}

/// A file with all its blocks, in order.
struct File {
    structure: StructureId,
    bytes: u64,
    blocks: Vec<BlockAt>,
}

/// A catalog and its simulated servers.
pub struct Blocks {
    catalog: Catalog,
    block: u64,
    now: Time,
    ids: Vec<ServerId>,
    servers: HashMap<ServerId, u32>,
    jobs: HashMap<u32, JobId>,
    files: HashMap<Whose, File>,
    owners: HashMap<BlockAt, Whose>,
    /// Used blocks since the last report, by server.
    used: Vec<Vec<BlockUsage>>,
    /// Blocks that the last command opened, with their tiers.
    opened: Vec<(BlockAt, TierIx)>,
    going: Vec<(BlockAt, TierIx)>,
    effects: Vec<Effect>,
}

impl Blocks {
    /// Servers with this many blocks in memory together, besides the blocks that each reserves for moves. The
    /// policy `sharing` divides them.
    pub fn of(conditions: &Conditions, sharing: PolicyKind, blocks: u64) -> Blocks {
        let count = u64::from(conditions.servers.max(1));
        let mut made = Blocks {
            catalog: Catalog::new(Config { term: 1, policy: sharing, ..Config::default() }),
            block: conditions.block,
            now: Time::ZERO,
            ids: Vec::new(),
            servers: HashMap::new(),
            jobs: HashMap::new(),
            files: HashMap::new(),
            owners: HashMap::new(),
            used: vec![Vec::new(); count as usize],
            opened: Vec::new(),
            going: Vec::new(),
            effects: Vec::new(),
        };
        for n in 0..count {
            let own = blocks / count + u64::from(n < blocks % count);
            let address = format!("memory-{n}:1");
            let server = NewServer {
                address: &address,
                incarnation: n + 1,
                shards: 1,
                blocks_per_shard: with_reserve(own, false, false) as u32,
                tiers: &[TierSpec { class: TierClass::Ssd, blocks: DISK_BLOCKS }],
                block_size: conditions.block,
                kinds: &[],
                flush_root: "",
            };
            let Ok(Reply::Joined(id)) = made.run(Command::JoinServer { server }) else {
                unreachable!("a server with a new address joins")
            };
            made.ids.push(id);
            made.servers.insert(id, n as u32);
        }
        made
    }

    /// Sets the virtual time.
    pub fn at(&mut self, seconds: f64) {
        self.now = Time((seconds * 1e9) as u64);
    }

    /// Applies a command and its effects on servers.
    fn run(&mut self, command: Command<'_>) -> Result<Reply, CatalogError> {
        let mut effects = std::mem::take(&mut self.effects);
        let reply = self.catalog.apply(self.now, command, &mut effects);
        self.opened.clear();
        let mut place = 0;
        while place < effects.len() {
            let done = match effects[place] {
                Effect::OpenBlock { server, at, tier, .. } => {
                    self.opened.push((at, tier));
                    Command::BlockOpened { server, at }
                }
                Effect::FreeBlock { server, at } => {
                    self.owners.remove(&at);
                    Command::BlockFreed { server, at }
                }
                Effect::LowerBlock { at, tier, .. } => {
                    self.going.push((at, tier));
                    place += 1;
                    continue;
                }
                ref other => unreachable!("the jobs of this benchmark never cause {other:?}"),
            };
            place += 1;
            if let Err(e) = self.catalog.apply(self.now, done, &mut effects) {
                unreachable!("{done:?}: {e}");
            }
        }
        effects.clear();
        self.effects = effects;
        reply
    }

    /// Applies a command that cannot be refused.
    fn done(&mut self, command: Command<'_>) -> Reply {
        match self.run(command) {
            Ok(reply) => reply,
            Err(e) => unreachable!("{command:?}: {e}"),
        }
    }

    /// Every server sends a heartbeat and reports its used blocks.
    pub fn report(&mut self) {
        for n in 0..self.ids.len() {
            let (server, usage) = (self.ids[n], std::mem::take(&mut self.used[n]));
            let report = Report { usage: &usage, ..Report::default() };
            self.done(Command::ServerReport { server, report });
        }
        self.done(Command::Tick);
    }

    /// Registers a job with a prefix for each task, and declares the readers of each prefix.
    pub fn begin(&mut self, number: u32, plan: &JobPlan) {
        let name = format!("t{}/{number}", plan.tenant);
        let actor = Actor::CLUSTER;
        let register = Command::RegisterJob {
            actor,
            name: &name,
            lease_ms: 0,
            quota_blocks: 0,
            hints: Default::default(),
            claim: Default::default(),
        };
        let Reply::Job { job, .. } = self.done(register) else {
            unreachable!("a job is registered")
        };
        self.jobs.insert(number, job);
        let prefixes = prefixes(plan);
        let readers = prefixes.iter().map(|(_, of)| of.iter().map(String::as_str).collect());
        let readers: Vec<Vec<&str>> = readers.collect();
        // Prefixes are freed only by the commits of their readers.
        let options = PrefixOptions { pinned: true, ..PrefixOptions::default() };
        let nodes = prefixes.iter().zip(&readers).map(|((name, _), readers)| PlanNode {
            name,
            parents: &[],
            options,
            readers,
        });
        let nodes: Vec<PlanNode<'_>> = nodes.collect();
        self.done(Command::CreateHierarchy { actor: Actor::driver(job), job, nodes: &nodes });
    }

    /// Creates a file for this many bytes; answers the places of its blocks.
    pub fn make(&mut self, whose: Whose, bytes: u64) -> Result<Vec<(u32, TierIx)>, Full> {
        let (number, id) = whose;
        let job = self.jobs[&number];
        let blocks = bytes.div_ceil(self.block).max(1) as u32;
        let structure = NewStructure {
            path: &path(id),
            name: "",
            kind: Kind::File,
            blocks,
            max_items: 0,
            max_bytes: 0,
            open_existing: false,
        };
        let made = self.run(Command::CreateStructure { actor: Actor::driver(job), job, structure });
        let structure = match made {
            Ok(Reply::Opened(opened)) => opened.structure,
            Err(CatalogError::OutOfMemory(_)) => {
                let units = BlockUnits::of(self.block).units(blocks);
                self.done(Command::ShortOf { units });
                return Err(Full { room_comes: self.catalog.awaits_room() });
            }
            other => unreachable!("creating a file answers {other:?}"),
        };
        let given: Vec<BlockAt> = self.opened.iter().map(|&(at, _)| at).collect();
        self.owners.extend(given.iter().map(|&at| (at, whose)));
        self.files.insert(whose, File { structure, bytes, blocks: given });
        let place = |&(at, tier): &(BlockAt, TierIx)| (self.servers[&at.block.server()], tier);
        Ok(self.opened.iter().map(place).collect())
    }

    /// A file is completely written: all its blocks but the last are sealed.
    pub fn wrote(&mut self, whose: Whose) {
        let File { structure, ref blocks, .. } = self.files[&whose];
        for pair in blocks.clone().windows(2) {
            self.done(Command::GrowStructure { structure, at: pair[0] });
            let seal = Seal { length: self.block, bytes: 0, last: false };
            self.done(Command::SealBlock { structure, at: pair[0], seal });
        }
        self.used(whose);
    }

    /// Marks all blocks of a file as used, by a write or a read.
    pub fn used(&mut self, whose: Whose) {
        let File { bytes, ref blocks, .. } = self.files[&whose];
        for (n, &at) in blocks.iter().enumerate() {
            let bytes_used = bytes.saturating_sub(n as u64 * self.block).min(self.block);
            let server = self.servers[&at.block.server()];
            self.used[server as usize].push(BlockUsage { at, bytes_used });
        }
    }

    /// Takes the blocks that began to migrate to another tier since the last call.
    pub fn take_going(&mut self) -> Vec<Going> {
        let (owners, servers) = (&self.owners, &self.servers);
        let going = self.going.drain(..).filter_map(|(at, tier)| {
            let (whose, server) = (*owners.get(&at)?, servers[&at.block.server()]);
            Some(Going { at, tier, whose, server })
        });
        going.collect()
    }

    /// Completes the migration of a block; answers whether it still has an owner.
    pub fn arrived(&mut self, going: Going) -> bool {
        if !self.owners.contains_key(&going.at) {
            return false;
        }
        let structure = self.files[&going.whose].structure;
        self.done(Command::TierChanged { structure, at: going.at, tier: going.tier });
        true
    }

    /// Whether tasks that wait for room should retry.
    pub fn room_came(&mut self) -> bool {
        self.catalog.take_room_came() || !self.catalog.awaits_room()
    }

    /// Ends a task; answers how many files were freed because it was their last reader.
    pub fn ended(&mut self, (number, id): Whose) -> u32 {
        let job = self.jobs[&number];
        let path = path(id);
        match self.done(Command::CommitTask { actor: Actor::driver(job), job, path: &path }) {
            Reply::Committed { freed } => freed,
            other => unreachable!("a task commits: {other:?}"),
        }
    }

    /// Forgets a freed file.
    pub fn forget(&mut self, whose: Whose) {
        self.files.remove(&whose);
    }

    /// Ends a job.
    pub fn end(&mut self, number: u32) {
        if let Some(job) = self.jobs.remove(&number) {
            self.done(Command::DeregisterJob { actor: Actor::CLUSTER, job });
        }
    }

    /// Checks after the last job that the catalog is consistent and all blocks are free.
    pub fn finish(self) {
        if let Err(broken) = self.catalog.check_invariants() {
            panic!("{broken}");
        }
        assert!(self.owners.is_empty() && self.files.is_empty() && self.jobs.is_empty());
    }
}
