//! Who has blocks in virtual time, under `block`: the catalog decides it, by the code that a controller
//! runs, for a prefix of each task, as `keep::Ours` asks a cluster.
//!
//! The memory servers are played here. They open and take back what they are told at once, report every
//! two seconds what was used, and let a file's blocks seal each other when its last byte is written. Nothing
//! comes up again: a file is read too seldom for that.

use super::keep::{path, prefixes};
use super::real::with_reserve;
use super::world::Conditions;
use honeycomb_catalog::{
    Actor, BlockUsage, Catalog, CatalogError, Command, Config, Effect, NewServer, NewStructure,
    PlanNode, PrefixOptions, Reply, Report, Seal,
};
use honeycomb_load::{FileId, JobPlan};
use honeycomb_types::{
    BlockAt, JobId, Kind, PolicyKind, ServerId, StructureId, TierClass, TierIx, TierSpec, Time,
};
use std::collections::HashMap;

/// Blocks that each disk has room for: far more than are alive at a time.
const DISK_BLOCKS: u32 = 8192;

/// There is no room, in memory or on the disks, or who asks is to wait for its share.
#[derive(Clone, Copy, Debug)]
pub struct Full {
    /// Blocks are on their way below memory.
    pub room_comes: bool,
}

/// Which file of which job.
pub type Whose = (u32, FileId);

/// A block that is to go to another tier of its server.
#[derive(Clone, Copy, Debug)]
pub struct Going {
    /// The block.
    pub at: BlockAt,
    /// Where to.
    pub tier: TierIx,
    /// Whose it is.
    pub whose: Whose,
    /// Its server.
    pub server: u32,
}

/// A file with all its blocks, in order.
struct File {
    structure: StructureId,
    bytes: u64,
    blocks: Vec<BlockAt>,
}

/// A catalog, and the servers that it gives blocks of.
pub struct Blocks {
    catalog: Catalog,
    block: u64,
    now: Time,
    ids: Vec<ServerId>,
    servers: HashMap<ServerId, u32>,
    jobs: HashMap<u32, JobId>,
    files: HashMap<Whose, File>,
    owners: HashMap<BlockAt, Whose>,
    /// By server: what was used since it reported.
    used: Vec<Vec<BlockUsage>>,
    /// Blocks that the last command opened, and where.
    opened: Vec<(BlockAt, TierIx)>,
    going: Vec<(BlockAt, TierIx)>,
    effects: Vec<Effect>,
}

impl Blocks {
    /// Servers that have so many blocks in memory together, beside those that each keeps back for moves.
    /// They are shared out by this.
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
                unreachable!("a server of a new address joins")
            };
            made.ids.push(id);
            made.servers.insert(id, n as u32);
        }
        made
    }

    /// From here on it is so late.
    pub fn at(&mut self, seconds: f64) {
        self.now = Time((seconds * 1e9) as u64);
    }

    /// Carries a command out, and what servers are told by it.
    fn run(&mut self, command: Command<'_>) -> Result<Reply, CatalogError> {
        let mut told = std::mem::take(&mut self.effects);
        let reply = self.catalog.apply(self.now, command, &mut told);
        self.opened.clear();
        let mut place = 0;
        while place < told.len() {
            let done = match told[place] {
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
                ref other => unreachable!("nothing that jobs do here asks for {other:?}"),
            };
            place += 1;
            if let Err(e) = self.catalog.apply(self.now, done, &mut told) {
                unreachable!("{done:?}: {e}");
            }
        }
        told.clear();
        self.effects = told;
        reply
    }

    /// The same of what has no reason to be refused.
    fn done(&mut self, command: Command<'_>) -> Reply {
        match self.run(command) {
            Ok(reply) => reply,
            Err(e) => unreachable!("{command:?}: {e}"),
        }
    }

    /// Every server says that it lives, and what was used of it.
    pub fn report(&mut self) {
        for n in 0..self.ids.len() {
            let (server, usage) = (self.ids[n], std::mem::take(&mut self.used[n]));
            let report = Report { usage: &usage, ..Report::default() };
            self.done(Command::ServerReport { server, report });
        }
        self.done(Command::Tick);
    }

    /// Registers a job with a prefix for each task, whose readers are declared.
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
        // Freed by their readers alone.
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

    /// Makes a file with room for so many bytes: where its blocks are.
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
                self.done(Command::ShortOf { blocks });
                return Err(Full { room_comes: self.catalog.awaits_room() });
            }
            other => unreachable!("a file is made: {other:?}"),
        };
        let given: Vec<BlockAt> = self.opened.iter().map(|&(at, _)| at).collect();
        self.owners.extend(given.iter().map(|&at| (at, whose)));
        self.files.insert(whose, File { structure, bytes, blocks: given });
        let place = |&(at, tier): &(BlockAt, TierIx)| (self.servers[&at.block.server()], tier);
        Ok(self.opened.iter().map(place).collect())
    }

    /// A file is written: each block but the last was sealed by the one behind it.
    pub fn wrote(&mut self, whose: Whose) {
        let File { structure, ref blocks, .. } = self.files[&whose];
        for pair in blocks.clone().windows(2) {
            self.done(Command::GrowStructure { structure, at: pair[0] });
            let seal = Seal { length: self.block, bytes: 0, last: false };
            self.done(Command::SealBlock { structure, at: pair[0], seal });
        }
        self.used(whose);
    }

    /// All blocks of a file were written to, or are read.
    pub fn used(&mut self, whose: Whose) {
        let File { bytes, ref blocks, .. } = self.files[&whose];
        for (n, &at) in blocks.iter().enumerate() {
            let bytes_used = bytes.saturating_sub(n as u64 * self.block).min(self.block);
            let server = self.servers[&at.block.server()];
            self.used[server as usize].push(BlockUsage { at, bytes_used });
        }
    }

    /// Blocks that were told to go to another tier since this was last asked.
    pub fn take_going(&mut self) -> Vec<Going> {
        let (owners, servers) = (&self.owners, &self.servers);
        let going = self.going.drain(..).filter_map(|(at, tier)| {
            let (whose, server) = (*owners.get(&at)?, servers[&at.block.server()]);
            Some(Going { at, tier, whose, server })
        });
        going.collect()
    }

    /// One of them is there; whether it is anybody's still.
    pub fn arrived(&mut self, going: Going) -> bool {
        if !self.owners.contains_key(&going.at) {
            return false;
        }
        let structure = self.files[&going.whose].structure;
        self.done(Command::TierChanged { structure, at: going.at, tier: going.tier });
        true
    }

    /// Whether who waits for room should ask again.
    pub fn room_came(&mut self) -> bool {
        self.catalog.take_room_came() || !self.catalog.awaits_room()
    }

    /// A task has ended: files whose last reader it was are gone, so many.
    pub fn ended(&mut self, (number, id): Whose) -> u32 {
        let job = self.jobs[&number];
        let path = path(id);
        match self.done(Command::CommitTask { actor: Actor::driver(job), job, path: &path }) {
            Reply::Committed { freed } => freed,
            other => unreachable!("a task commits: {other:?}"),
        }
    }

    /// A file is gone.
    pub fn forget(&mut self, whose: Whose) {
        self.files.remove(&whose);
    }

    /// A job is over.
    pub fn end(&mut self, number: u32) {
        if let Some(job) = self.jobs.remove(&number) {
            self.done(Command::DeregisterJob { actor: Actor::CLUSTER, job });
        }
    }

    /// All jobs are over: the catalog is in order, and nobody has blocks.
    pub fn finish(self) {
        if let Err(broken) = self.catalog.check_invariants() {
            panic!("{broken}");
        }
        assert!(self.owners.is_empty() && self.files.is_empty() && self.jobs.is_empty());
    }
}
