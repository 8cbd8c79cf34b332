//! Two controller shards and the servers that lend to them, as catalogs and ledgers with
//! connections that delay, break and lose messages.
//!
//! Checked after every step: no core holds more blocks than it has, whichever shard allocated them
//! (INV-40), and no block belongs to two structures (INV-03). Checked at the end: when no structure
//! is left, no block is lent, and one shard alone can get all blocks: no lot was lost.

use honeycomb_catalog::{
    Actor, Catalog, CatalogError, Command, Config, Effect, HeldBlock, NewServer, NewStructure,
    PrefixOptions, Recovery, Reply, Report,
};
use honeycomb_env::Entropy;
use honeycomb_server::Lots;
use honeycomb_types::{BlockAt, Generation, JobId, Kind, ServerId, StructureId, Time, limits};
use std::collections::{BTreeMap, VecDeque};

const CONTROLLERS: usize = 2;
const BLOCK: u64 = 65_536;
const CLUSTER: Actor = Actor::CLUSTER;

/// A message to a controller shard.
enum Told {
    Opened(BlockAt),
    Freed(BlockAt),
    Lent(Vec<u32>),
}

/// One server's membership in one controller shard, with the connection between them.
#[derive(Default)]
struct Member {
    id: ServerId,
    /// The structure that holds each block.
    held: BTreeMap<BlockAt, (StructureId, Generation)>,
    down: VecDeque<Effect>,
    up: VecDeque<Told>,
}

struct Server {
    address: String,
    incarnation: u64,
    cores: u8,
    blocks: u32,
    lots: Lots,
    members: [Member; CONTROLLERS],
}

struct Controller {
    catalog: Catalog,
    log: Vec<u8>,
    job: JobId,
    term: u32,
    made: u64,
    structures: Vec<String>,
}

struct World {
    now: Time,
    rng: Entropy,
    seed: u64,
    controllers: Vec<Controller>,
    servers: Vec<Server>,
}

fn config(shard: usize, term: u32) -> Config {
    Config { shard: shard as u16, term, hash_seed: 7, lease_ms: 1000, ..Config::default() }
}

impl Server {
    fn new_server(&self) -> NewServer<'_> {
        NewServer {
            address: &self.address,
            incarnation: self.incarnation,
            shards: self.cores,
            blocks_per_shard: self.blocks,
            tiers: &[],
            block_size: BLOCK,
            kinds: &[],
            flush_root: "",
        }
    }

    fn check(&self, seed: u64) {
        for core in 0..self.cores {
            let on = |at: &&BlockAt| at.block.shard().0 == core;
            let held = |m: &Member| m.held.keys().filter(on).count() as u32;
            let each = self.members.each_ref().map(held);
            assert!(
                each.iter().sum::<u32>() <= self.blocks,
                "seed {seed}: core {core} of {} has {} blocks and holds {each:?}",
                self.address,
                self.blocks
            );
        }
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Entropy::seeded(seed);
        let controllers = (0..CONTROLLERS).map(|shard| {
            let mut catalog = Catalog::new(config(shard, 1));
            catalog.keep_changes();
            let (job, made) = (JobId(0), 0);
            Controller { catalog, log: Vec::new(), job, term: 1, made, structures: Vec::new() }
        });
        let controllers = controllers.collect();
        let servers = (0..1 + rng.below(2)).map(|n| {
            let (cores, blocks) = (1 + rng.below(2) as u8, 6 + rng.below(200) as u32);
            let lots = Lots::new(cores as usize, blocks);
            let (address, incarnation) = (format!("s{n}:1"), n + 1);
            Server { address, incarnation, cores, blocks, lots, members: Default::default() }
        });
        let servers = servers.collect();
        let mut world = World { now: Time::from_millis(1), rng, seed, controllers, servers };
        for c in 0..CONTROLLERS {
            let command = Command::RegisterJob {
                actor: CLUSTER,
                name: "j",
                lease_ms: 600_000,
                quota_blocks: 0,
                hints: Default::default(),
                claim: Default::default(),
            };
            let Ok(Reply::Job { job, .. }) = world.apply(c, command) else { panic!("no job") };
            world.controllers[c].job = job;
            let (path, parents, options) = ("/p", &[][..], PrefixOptions::default());
            let command = Command::CreatePrefix { actor: CLUSTER, job, path, parents, options };
            world.apply(c, command).unwrap();
            (0..world.servers.len()).for_each(|s| world.join(c, s));
        }
        world
    }

    /// Executes one command and sends its effects; its changes are in the log at once.
    fn apply(&mut self, c: usize, command: Command<'_>) -> Result<Reply, CatalogError> {
        let mut effects = Vec::new();
        let controller = &mut self.controllers[c];
        let reply = controller.catalog.apply(self.now, command, &mut effects);
        controller.catalog.take_changes(&mut controller.log);
        for effect in effects {
            let members = self.servers.iter_mut().map(|server| &mut server.members[c]);
            if let Some(member) = members.into_iter().find(|m| m.id == effect.server()) {
                member.down.push_back(effect);
            }
        }
        if let Err(broken) = controller.catalog.check_invariants() {
            panic!("seed {}: {broken}", self.seed);
        }
        self.servers.iter().for_each(|server| server.check(self.seed));
        reply
    }

    /// A new membership: blocks held for this controller shard are dropped.
    fn join(&mut self, c: usize, s: usize) {
        let server = &mut self.servers[s];
        server.members[c] = Member::default();
        let (new, lent) = (server.new_server(), server.lots.lent(c as u16));
        let mut effects = Vec::new();
        let join = Command::JoinServer { server: new };
        let reply = self.controllers[c].catalog.apply(self.now, join, &mut effects);
        assert!(effects.is_empty(), "seed {}: {effects:?}", self.seed);
        let Ok(Reply::Joined(id)) = reply else { panic!("seed {}: {reply:?}", self.seed) };
        self.servers[s].members[c].id = id;
        self.apply(c, Command::Lent { server: id, lent: &lent }).unwrap();
    }

    /// The connection breaks, and the server becomes a new member.
    fn break_line(&mut self, c: usize, s: usize) {
        let server = self.servers[s].members[c].id;
        self.servers[s].members[c] = Member::default();
        self.apply(c, Command::ServerLost { server }).unwrap();
        self.join(c, s);
    }

    /// The controller shard ends, with the messages on its connections; it restarts with its log.
    fn restart(&mut self, c: usize) {
        let controller = &mut self.controllers[c];
        let mut recovery = Recovery::new();
        recovery.group(&controller.log).unwrap();
        controller.term += 1;
        controller.catalog = recovery.finish(config(c, controller.term), self.now).unwrap();
        controller.catalog.keep_changes();
        for s in 0..self.servers.len() {
            let server = &mut self.servers[s];
            server.members[c].down.clear();
            server.members[c].up.clear();
            let (member, lent) = (server.members[c].id, server.lots.lent(c as u16));
            let held: Vec<HeldBlock> = server.members[c]
                .held
                .iter()
                .map(|(&at, &(structure, generation))| HeldBlock {
                    at,
                    structure,
                    generation,
                    bytes_used: 0,
                    sealed: None,
                    successor: None,
                    taken: (0, 0),
                    tiers: Default::default(),
                    capacity: 65_536,
                })
                .collect();
            let server = self.servers[s].new_server();
            let rejoin = Command::RejoinServer { server, member };
            let mut effects = Vec::new();
            self.controllers[c].catalog.apply(self.now, rejoin, &mut effects).unwrap();
            assert!(effects.is_empty());
            self.apply(c, Command::Lent { server: member, lent: &lent }).unwrap();
            self.apply(c, Command::Inventory { server: member, held: &held, last: true }).unwrap();
        }
    }

    /// The server executes its first order, or the controller shard receives its next reply.
    fn deliver(&mut self, c: usize, s: usize, down: bool) -> bool {
        let server = &mut self.servers[s];
        let member = &mut server.members[c];
        if !down {
            let (id, told) = (member.id, member.up.pop_front());
            let Some(told) = told else { return false };
            let reply = match told {
                Told::Opened(at) => self.apply(c, Command::BlockOpened { server: id, at }),
                Told::Freed(at) => self.apply(c, Command::BlockFreed { server: id, at }),
                Told::Lent(lent) => self.apply(c, Command::Lent { server: id, lent: &lent }),
            };
            reply.unwrap();
            return true;
        }
        let Some(effect) = member.down.pop_front() else { return false };
        match effect {
            Effect::OpenBlock { at, structure, generation, .. } => {
                member.held.insert(at, (structure, generation));
                member.up.push_back(Told::Opened(at));
            }
            Effect::FreeBlock { at, .. } => {
                member.held.remove(&at);
                member.up.push_back(Told::Freed(at));
            }
            Effect::Lots { lots, .. } => {
                let lent = server.lots.set(c as u16, &lots).expect("the server has this core");
                member.up.push_back(Told::Lent(lent));
            }
            other => panic!("seed {}: {other:?}", self.seed),
        }
        server.check(self.seed);
        true
    }

    fn create(&mut self, c: usize, blocks: u32) -> bool {
        let controller = &mut self.controllers[c];
        controller.made += 1;
        let (job, name) = (controller.job, format!("s{}", controller.made));
        let structure = NewStructure {
            path: "/p",
            name: &name,
            kind: Kind::Kv,
            blocks,
            max_items: 0,
            max_bytes: 0,
            open_existing: false,
        };
        match self.apply(c, Command::CreateStructure { actor: CLUSTER, job, structure }) {
            Ok(_) => {
                self.controllers[c].structures.push(name);
                true
            }
            Err(CatalogError::OutOfMemory(_)) => {
                self.apply(c, Command::ShortOf { units: blocks }).unwrap();
                false
            }
            // The name of an awaited structure.
            Err(CatalogError::Recovering) => false,
            Err(other) => panic!("seed {}: {other}", self.seed),
        }
    }

    fn remove(&mut self, c: usize, n: usize) {
        let name = self.controllers[c].structures.swap_remove(n);
        let (job, path, name) = (self.controllers[c].job, "/p", &name[..]);
        let command = Command::RemoveStructure { actor: CLUSTER, job, path, name };
        // It may have been lost with a server.
        let _ = self.apply(c, command);
    }

    fn step(&mut self) {
        let c = self.rng.below(CONTROLLERS as u64) as usize;
        let s = self.rng.below(self.servers.len() as u64) as usize;
        self.now = self.now + std::time::Duration::from_millis(self.rng.below(20));
        match self.rng.below(100) {
            0..20 => {
                let all = self.servers[s].blocks as u64;
                let most = if self.rng.chance(100_000) { all } else { 1 + all / 8 };
                let blocks = 1 + self.rng.below(most) as u32;
                self.create(c, blocks);
            }
            20..35 if !self.controllers[c].structures.is_empty() => {
                let n = self.rng.below(self.controllers[c].structures.len() as u64);
                self.remove(c, n as usize);
            }
            35..38 => self.report(c, s),
            38 => self.break_line(c, s),
            39 => self.restart(c),
            _ => {
                let down = self.rng.chance(500_000);
                self.deliver(c, s, down);
            }
        }
    }

    fn report(&mut self, c: usize, s: usize) {
        let server = self.servers[s].members[c].id;
        let report = Report::default();
        self.apply(c, Command::ServerReport { server, report }).unwrap();
    }

    /// All messages in transit arrive.
    fn quiet(&mut self) {
        for _ in 0..4 {
            self.now = self.now + limits::LOTS_AGAIN;
            for c in 0..CONTROLLERS {
                for s in 0..self.servers.len() {
                    self.report(c, s);
                }
            }
            self.arrive();
        }
    }

    fn arrive(&mut self) {
        for c in 0..CONTROLLERS {
            for s in 0..self.servers.len() {
                while self.deliver(c, s, true) | self.deliver(c, s, false) {}
            }
        }
    }

    fn run(mut self, steps: u64) {
        (0..steps).for_each(|_| self.step());
        self.quiet();
        for c in 0..CONTROLLERS {
            while !self.controllers[c].structures.is_empty() {
                self.remove(c, 0);
            }
        }
        self.quiet();
        for server in &self.servers {
            for core in 0..server.cores as usize {
                let (free, all) = (server.lots.free(core), server.blocks);
                assert_eq!(free, all, "seed {}: lots of {} were lost", self.seed, server.address);
            }
        }
        // One shard alone can get every block that is not reserved.
        let all: u32 = self.servers.iter().map(|s| s.blocks * s.cores as u32).sum();
        let reserved = self.servers.iter().map(|s| {
            let total = s.blocks * s.cores as u32;
            limits::RESERVE_BLOCKS_MIN.max(total / limits::RESERVE_FRACTION)
        });
        let ordinary = all - reserved.sum::<u32>();
        let mut had = 0;
        for _ in 0..2 * ordinary {
            match self.create(0, 1) {
                true => had += 1,
                false => {
                    self.arrive();
                    if !self.create(0, 1) {
                        break;
                    }
                    had += 1;
                }
            }
        }
        assert_eq!(had, ordinary, "seed {}: one shard cannot have all there is", self.seed);
    }
}

#[test]
fn no_block_is_held_twice_and_no_lot_is_lost() {
    for seed in 0..200 {
        World::new(seed).run(600);
    }
}
