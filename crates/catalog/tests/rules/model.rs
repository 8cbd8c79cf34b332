//! Random commands against the plain reference model of `reference`: outcomes, effects, trees with
//! exact remaining leases, maps and free counts agree after every one, and every invariant holds.

mod blocks;
mod compare;
mod drain;
mod moves;
mod ops;
#[path = "../reference/mod.rs"]
mod reference;
mod tiers;

use crate::common::{Bench, long_cases};
use honeycomb_catalog::{
    Actor, Command, Effect, NewServer, NewStructure, PlanNode, PrefixOptions, QuotaChange, QuotaOf,
    Reply, Seal,
};
use honeycomb_types::limits::{SERVER_LOSS_DEFAULT_MS, SLOT_WIDTH, SLOTS};
use honeycomb_types::{
    BlockAt, JobId, Kind, PolicyKind, PrefixId, ServerId, TierClass, TierSpec, Verbs,
};
use ops::{Level, Op, enlarging, first, growing, moving, op, second, sharing};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use reference::{BLOCK, Cluster, File, Imports, Job, Life, Prefix, cause};
use std::collections::{BTreeMap, BTreeSet};

/// The catalog, the model, and the state of the servers.
struct Both {
    bench: Bench,
    model: Cluster,
    ids: Vec<JobId>,
    joined: u64,
    /// Blocks of lower tiers on each core of the first server.
    joined_with: u32,
    /// The prefix that requested blocks in this command, and the last one that was refused.
    asker: Option<(usize, usize)>,
    op: String,
    refused: Option<(usize, usize)>,
    /// Numbers of blocks that were demoted, that were not, and that went to a store.
    lowered: [u64; 3],
    /// The block just reported as read often.
    hot: Option<BlockAt>,
    /// Number of blocks demoted for another holder, and number of waits of a holder within its share.
    given: u64,
    waited: u64,
    /// Blocks that servers hold open, according to the effects.
    open: BTreeSet<BlockAt>,
    last_epoch: u64,
    versions: BTreeMap<u64, u64>,
    /// The last number of items ahead sent to each block.
    ahead: BTreeMap<BlockAt, (u64, u64)>,
    /// Number of opens with each outcome for an edge.
    edges: [u64; 4],
    /// Number of prefixes freed after their readers had committed.
    read: u64,
    imports: Imports,
    /// Numbers of committed splits and merges, repeated commits, cancelled moves, and commits of those; and
    /// of committed relocations.
    moves: [u64; 6],
}

fn outcome<T>(result: &Result<T, &'static str>) -> String {
    match result {
        Ok(_) => "Ok".into(),
        Err(cause) => (*cause).into(),
    }
}

impl Both {
    fn new(hash_seed: u64, joined_with: u32) -> Both {
        Both::with_policy(hash_seed, joined_with, PolicyKind::FirstCome)
    }

    fn with_policy(hash_seed: u64, joined_with: u32, policy: PolicyKind) -> Both {
        Both::with_blocks(hash_seed, joined_with, policy, BLOCK)
    }

    fn with_blocks(hash_seed: u64, joined_with: u32, policy: PolicyKind, block: u64) -> Both {
        let mut bench = Bench::with_policy(hash_seed, policy);
        bench.log = Some(Vec::new());
        let mut model = Cluster { now: bench.now.as_millis(), ..Cluster::default() };
        let mut ids = Vec::new();
        model.shares.policy = policy;
        model.block.0 = block;
        // Under a fair policy, both share memory.
        let names = if policy.is_fair() { ["t/one", "two"] } else { ["t/one", "t/two"] };
        let second = if policy.is_fair() { 0 } else { 7 };
        for (name, quota_blocks) in names.into_iter().zip([0, second]) {
            let actor = Actor::CLUSTER;
            let register = Command::RegisterJob {
                actor,
                name,
                lease_ms: 5000,
                quota_blocks,
                hints: Default::default(),
                claim: Default::default(),
            };
            let Ok(Reply::Job { job, root, .. }) = bench.run(register) else { panic!() };
            ids.push(job);
            let mut job = Job {
                quota: quota_blocks,
                lease: 5000,
                tenant: honeycomb_types::tenant_of(name).map(String::from),
                name: name.into(),
                ..Job::default()
            };
            job.prefixes.push(Some(Prefix::new(root, "", vec![], 5000, model.now)));
            model.jobs.push(job);
        }
        let (open, versions, ahead) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        let (edges, read) = ([0; 4], 0);
        let imports = Imports::default();
        Both {
            bench,
            model,
            ids,
            joined: 0,
            joined_with,
            op: String::new(),
            asker: None,
            refused: None,
            lowered: [0; 3],
            hot: None,
            given: 0,
            waited: 0,
            open,
            last_epoch: 0,
            versions,
            ahead,
            edges,
            read,
            imports,
            moves: [0; 6],
        }
    }

    fn run(&mut self, ops: &[Op]) {
        match self.joined_with {
            0 => self.join(2, 12, 0),
            // Little memory, so that some blocks are demoted.
            below => self.join(2, 5, below),
        }
        let fair = self.model.shares.policy.is_fair();
        self.join(1, if fair { 4 } else { 12 }, 0);
        self.carry_out();
        // Under a fair policy, the other job has some too.
        let others = if fair { second() } else { Vec::new() };
        for op in first().iter().chain(&others).chain(ops) {
            self.asker = None;
            self.model.asks_nothing();
            self.op = format!("{op:?}");
            self.apply(op);
            self.carry_out();
            self.compare();
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Create { job, path, parents, lease, pinned, bound } => {
                self.create(*job, path, parents, *lease, (*pinned, *bound))
            }
            Op::Bound { job, of, path, most } => {
                let change = QuotaChange::most(*most);
                self.bound(*job, *of, path, change)
            }
            Op::Soft { job, of, path, soft, weight } => {
                let shares = matches!(of, Level::Tenant)
                    || matches!(of, Level::Job) && self.model.jobs[*job].tenant.is_none();
                let weight = Some(*weight).filter(|_| shares);
                let change = QuotaChange { soft_blocks: Some(*soft), weight, max_blocks: None };
                self.bound(*job, *of, path, change)
            }
            Op::Plan { job, nodes, readers } => self.plan(*job, nodes, readers),
            Op::Remove { job, path } => {
                let expected = self.model.jobs[*job].live(path);
                let result = self.bench.remove(self.ids[*job], path);
                assert_eq!(cause(&result), outcome(&expected));
                if let Ok(i) = expected {
                    let now = self.model.now;
                    let freed = self.model.jobs[*job].end(i, Life::Removed, now);
                    self.model.free(freed);
                }
            }
            Op::Renew { job, paths } => {
                let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
                let results = self.bench.renew(self.ids[*job], &paths);
                for (path, result) in paths.iter().zip(results) {
                    let (now, job) = (self.model.now, &mut self.model.jobs[*job]);
                    let expected = job.live(path);
                    assert_eq!(cause(&result), outcome(&expected));
                    if let Ok(i) = expected {
                        job.renew(i, now);
                    }
                }
            }
            Op::Seen { job, prefix, ago } => self.seen(*job, *prefix, *ago),
            Op::Pass { ms } => self.pass(*ms),
            Op::Amnesty => {
                self.bench.run(Command::Amnesty).unwrap();
                let now = self.model.now;
                for job in &mut self.model.jobs {
                    job.prefixes.iter_mut().flatten().for_each(|p| p.renewed = now);
                }
                self.model.servers.values_mut().for_each(|(_, seen)| *seen = now);
            }
            Op::Make { job, path, name, kind, bound, blocks } => {
                self.make(*job, path, name, *kind, *bound, *blocks)
            }
            Op::Unmake { job, path, name } => self.unmake(*job, path, name),
            Op::Use { job, file, task, create } => self.open(*job, *file, *task, *create),
            Op::Declare { job, path, readers, replace } => {
                self.declare(*job, path, readers, *replace)
            }
            Op::Commit { job, path } => self.commit(*job, path),
            Op::Join { shards, blocks, below } => self.join(*shards, *blocks, *below),
            Op::Lose { server } => {
                if let Some(&server) = self.model.servers.keys().nth(*server) {
                    self.bench.run(Command::ServerLost { server }).unwrap();
                    self.model.lose(server);
                    self.forget(server);
                }
            }
            Op::Unlink { server } => {
                if let Some(&server) = self.model.servers.keys().nth(*server) {
                    self.bench.run(Command::ServerUnlinked { server }).unwrap();
                    self.model.suspected.insert(server);
                }
            }
            Op::Drain { server, cancel } => self.drain(*server, *cancel),
            Op::Stays { server } => self.stays(*server),
            Op::Confirm { block, stale } => self.confirm(*block, *stale),
            Op::Grow { job, file, block } => self.grow(*job, *file, *block),
            Op::BeginAppend { job, file, bytes } => self.begin_append(*job, *file, *bytes),
            Op::EndAppend { job, file, block, commits } => {
                self.end_append(*job, *file, *block, *commits)
            }
            Op::Enlarge { job, file, block, bytes } => self.enlarge(*job, *file, *block, *bytes),
            Op::Seal { job, file, block, length, odd, last } => {
                let (length, last) = (*length, *last);
                let seal = Seal { length, bytes: 10 * length + odd, last };
                self.seal(*job, *file, *block, seal)
            }
            Op::Taken { job, file, block, items, odd } => {
                self.taken(*job, *file, *block, *items, 10 * items + odd)
            }
            Op::Retire { job, file, block } => self.retire(*job, *file, *block),
            Op::Permit { job, path } => self.permit(*job, path),
            Op::Begin { job, kv, block, slot, odd, way } => {
                self.begin(*job, *kv, *block, (slot << 58).wrapping_add(*odd), *way)
            }
            Op::Settle { begun, how, stale } => self.settle(*begun, *how, *stale),
            Op::Used { job, kv, block, bytes } => self.report(*job, *kv, *block, *bytes),
            Op::Extents { job, kv, bytes, full } => self.extents(*job, *kv, *bytes, *full),
            Op::Emptied { job, kv, block } => self.emptied(*job, *kv, *block),
            Op::Lowered { block, how } => self.lowered(*block, *how),
            Op::Hot { block } => self.hot(*block),
            Op::Short { blocks } => {
                self.asker = self.refused.take();
                if let Some((j, _)) = self.asker {
                    self.look(j, u64::from(*blocks));
                }
                self.bench.run(Command::ShortOf { units: *blocks }).unwrap();
            }
        }
    }

    fn bound(&mut self, j: usize, level: Level, path: &str, change: QuotaChange) {
        let (actor, job) = (Actor::CLUSTER, self.ids[j]);
        let of = match level {
            Level::Tenant => QuotaOf::Tenant("t"),
            Level::Job => QuotaOf::Job(job),
            Level::Prefix => QuotaOf::Prefix(job, path),
        };
        let result = self.bench.run(Command::SetQuota { actor, of, change });
        let QuotaChange { max_blocks, soft_blocks, weight } = change;
        let weight = weight.map(|weight| u64::from(weight.max(1)));
        let own = &mut self.model.jobs[j];
        let held = match level {
            Level::Tenant => {
                let most = self.model.tenants.entry("t".into()).or_default();
                *most = max_blocks.unwrap_or(*most);
                let share = self.model.tenant_shares.entry("t".into()).or_insert((1, 0));
                *share = (weight.unwrap_or(share.0), soft_blocks.unwrap_or(share.1));
                let (most, share) = (*most, *share);
                Ok((most, share.1, self.model.held_of("t").div_ceil(self.model.whole())))
            }
            Level::Job => {
                own.quota = max_blocks.unwrap_or(own.quota);
                own.soft = soft_blocks.unwrap_or(own.soft);
                own.weight = weight.unwrap_or(own.weight);
                let (quota, soft) = (own.quota, own.soft);
                let held = self.model.units_of(self.model.jobs[j].held());
                Ok((quota, soft, held.div_ceil(self.model.whole())))
            }
            Level::Prefix => own.change_bound(path, change).map(|(most, soft, id)| {
                let held = id.map_or(0, |id| self.model.blocks_below(j, id));
                (most, soft, held)
            }),
        };
        assert_eq!(cause(&result), outcome(&held));
        if let (Ok(Reply::Quota { allowed, held, .. }), Ok(due)) = (result, held) {
            assert_eq!((allowed.most, allowed.soft, held), due);
        }
    }

    /// A job is about to request blocks: compares the holdings and entitlements of all holders.
    pub fn look(&mut self, j: usize, asked: u64) {
        let told = self.bench.catalog.sharing(self.bench.now, Some((self.ids[j], asked)));
        self.model.look(told, Some((j, asked))).unwrap();
    }

    /// A job within its share is refused blocks that it could have in a lower tier, to wait for memory.
    pub fn or_waits<T>(
        &mut self,
        expected: Result<T, &'static str>,
        refused: bool,
        (j, asked): (usize, (u64, u64)),
    ) -> Result<T, &'static str> {
        let lower = |effect: &Effect| matches!(effect, Effect::LowerBlock { .. });
        let lowering =
            !self.model.tiers.moving().is_empty() || self.bench.effects.iter().any(lower);
        if refused && expected.is_ok() && self.model.waits(j, asked, lowering) {
            self.waited += 1;
            return Err("OutOfMemory");
        }
        expected
    }

    fn permit(&mut self, j: usize, path: &str) {
        let (actor, job) = (Actor::driver(self.ids[j]), self.ids[j]);
        let (owner_verbs, job_verbs) = (Verbs::ALL, Verbs::READ);
        let command = Command::SetPermissions { actor, job, path, owner_verbs, job_verbs };
        let result = self.bench.run(command);
        let expected = self.model.jobs[j].live(path);
        assert_eq!(cause(&result), outcome(&expected));
        if let Ok(i) = expected {
            let files = self.model.jobs[j].files.iter().filter(|f| f.prefix == i);
            let servers: BTreeSet<_> =
                files.flat_map(File::held).map(|at| at.block.server()).collect();
            let told: Vec<_> = self.bench.effects.iter().map(Effect::server).collect();
            assert_eq!(told, servers.into_iter().collect::<Vec<_>>());
        }
    }

    fn create(
        &mut self,
        j: usize,
        path: &str,
        parents: &[String],
        lease: u32,
        special: (bool, u64),
    ) {
        let named: Vec<&str> = parents.iter().map(String::as_str).collect();
        let (pinned, max_blocks) = special;
        let options = PrefixOptions { lease_ms: lease, pinned, max_blocks, ..crate::common::LEASE };
        let result = self.bench.create(self.ids[j], path, &named, options);
        let (now, job) = (self.model.now, &mut self.model.jobs[j]);
        let expected = job.creation(path, &named, lease, now);
        assert_eq!(cause(&result), outcome(&expected));
        if let (Ok((place, new)), Ok(id)) = (expected, result) {
            let i = job.put(place, Prefix { id, pinned, ..new }, now);
            job.set_bound(i, max_blocks, 0);
            job.sweep();
        }
    }

    /// A plan, whose first node has readers: names of the plan or paths of prefixes that exist.
    fn plan(&mut self, j: usize, nodes: &[(String, Vec<String>)], readers: &[String]) {
        let parents: Vec<Vec<&str>> =
            nodes.iter().map(|(_, p)| p.iter().map(String::as_str).collect()).collect();
        let mut plan: Vec<PlanNode<'_>> =
            nodes.iter().zip(&parents).map(|((name, _), p)| crate::common::node(name, p)).collect();
        let named: Vec<&str> = readers.iter().map(String::as_str).collect();
        plan[0].readers = &named;
        let result = self.bench.plan(self.ids[j], &plan);
        let before = &self.model.jobs[j];
        let outside = |name: &&str| !nodes.iter().any(|(planned, _)| planned == name);
        let known: Vec<_> =
            named.iter().map(|name| outside(name).then(|| before.reader(name))).collect();
        let unknown = known.iter().flatten().find_map(|reader| reader.err());
        let expected = planned(before, nodes, unknown, self.model.now);
        assert_eq!(cause(&result), outcome(&expected), "{result:?}");
        if let (Ok(ids), Ok((mut job, installed))) = (result, expected) {
            for (&i, &id) in installed.iter().zip(&ids) {
                job.prefixes[i].as_mut().unwrap().id = id;
            }
            let readers = named.iter().zip(known).map(|(name, known)| match known {
                Some(existing) => existing.unwrap(),
                None => ids[nodes.iter().position(|(planned, _)| planned == name).unwrap()],
            });
            job.prefixes[installed[0]].as_mut().unwrap().readers = readers.collect();
            job.sweep();
            let (_, freed) = job.free_read(self.model.now);
            self.model.jobs[j] = job;
            self.model.free(freed);
        }
    }

    /// The session of a task opens a structure, or creates it with `open_existing`.
    fn open(&mut self, j: usize, file: usize, task: usize, create: bool) {
        let (now, job) = (self.model.now, &mut self.model.jobs[j]);
        let task = job.all().nth(task % job.all().count()).unwrap().1.id;
        let Some(file) = job.files.get(file % job.files.len().max(1)).cloned() else { return };
        let (path, name) = (job.path_of(file.prefix), file.name.as_str());
        let actor = Actor { session: Some(task), ..Actor::driver(self.ids[j]) };
        let (job_id, path) = (self.ids[j], path.as_str());
        let opened = if create {
            let kind = file.kind;
            let structure =
                NewStructure { open_existing: true, kind, ..crate::common::file(path, name, 1) };
            let command = Command::CreateStructure { actor, job: job_id, structure };
            match self.bench.run(command) {
                Ok(Reply::Opened(opened)) => opened,
                other => panic!("{other:?}"),
            }
        } else {
            self.bench.open(actor, path, name).unwrap()
        };
        assert_eq!(opened.structure, file.id);
        let edge = self.model.jobs[j].consume(task, file.prefix, now);
        assert_eq!(opened.edge as u8, edge);
        self.edges[edge as usize] += 1;
    }

    fn declare(&mut self, j: usize, path: &str, readers: &[String], replace: bool) {
        let named: Vec<&str> = readers.iter().map(String::as_str).collect();
        let result = self.bench.declare_as(Actor::driver(self.ids[j]), path, &named, replace);
        let (now, job) = (self.model.now, &mut self.model.jobs[j]);
        let expected = job.declare(path, &named, replace, now);
        assert_eq!(cause(&result), outcome(&expected));
        if let (Ok(left), Ok((expected, freed))) = (result, expected) {
            assert_eq!(left, expected);
            self.model.free(freed);
        }
    }

    fn commit(&mut self, j: usize, path: &str) {
        let result = self.bench.commit(Actor::driver(self.ids[j]), path);
        let (now, job) = (self.model.now, &mut self.model.jobs[j]);
        let expected = job.commit(path, now);
        assert_eq!(cause(&result), outcome(&expected));
        if let (Ok(count), Ok((expected, freed))) = (result, expected) {
            assert_eq!(count, expected);
            self.read += count as u64;
            self.model.free(freed);
        }
    }

    fn seen(&mut self, j: usize, prefix: usize, ago_ms: u32) {
        let (now, job) = (self.model.now, &mut self.model.jobs[j]);
        let found = job.all().nth(prefix).map(|(i, p)| (i, p.id, p.life));
        let Some((i, prefix, life)) = found else { return };
        let other = self.ids[1 - j];
        self.bench.run(Command::RenewPrefixById { job: other, prefix, ago_ms: 0 }).unwrap();
        let job_id = self.ids[j];
        self.bench.run(Command::RenewPrefixById { job: job_id, prefix, ago_ms }).unwrap();
        if life == Life::Live {
            job.renew(i, now - ago_ms as u64);
        }
    }

    fn pass(&mut self, ms: u64) {
        self.model.now += ms;
        let now = self.model.now;
        self.bench.pass(ms);
        for j in 0..self.model.jobs.len() {
            for i in self.model.jobs[j].due(now) {
                let p = self.model.jobs[j].prefixes[i].as_ref().unwrap();
                let missed = p.renewed + p.lease;
                let freed = self.model.jobs[j].end(i, Life::Expired, missed);
                self.model.free(freed);
            }
        }
        self.moves[3] += self.model.cancel_overdue();
        for server in self.model.end_silence(now, SERVER_LOSS_DEFAULT_MS.into()) {
            self.model.lose(server);
            self.forget(server);
        }
        if let Some(deadline) = self.bench.catalog.next_deadline() {
            assert!(deadline > self.bench.now, "a tick left something due");
        }
    }

    fn make(&mut self, j: usize, path: &str, name: &str, kind: Kind, bound: u64, blocks: u32) {
        let (is_kv, open_existing) = (kind == Kind::Kv, true);
        let (max_items, max_bytes) = (bound % 2, bound / 2);
        let new = NewStructure { path, name, kind, blocks, max_items, max_bytes, open_existing };
        let asked = self.model.first_memory(kind, blocks);
        self.look(j, asked.0 * asked.1);
        let result = self.bench.make(self.ids[j], new);
        let short = cause(&result) == "OutOfMemory";
        let expected = self.model.making(j, &new);
        let expected = self.or_waits(expected, short, (j, asked));
        assert_eq!(cause(&result), outcome(&expected));
        self.asks(self.model.jobs[j].live(path).ok().map(|i| (j, i)), short);
        let (Ok((prefix, existing)), Ok(opened)) = (expected, result) else { return };
        if let Some(id) = existing {
            assert_eq!(opened.structure, id);
            assert!(self.bench.effects.is_empty());
            return;
        }
        let blocks = self.bench.effects.iter().enumerate().filter_map(|(i, effect)| match effect {
            Effect::OpenBlock { at, first, max_items: m, max_bytes: n, .. } => {
                let bounds = if kind == Kind::Queue { (max_items, max_bytes) } else { (0, 0) };
                assert_eq!((*m, *n), bounds);
                assert_eq!(*first, i == 0);
                Some(*at)
            }
            Effect::LowerBlock { .. } => None,
            other => panic!("{other:?}"),
        });
        let chain: Vec<BlockAt> = blocks.collect();
        let starts: Vec<u64> = opened.map.entries.iter().map(|entry| entry.start).collect();
        let n = starts.len() as u64;
        assert!(
            !is_kv
                || starts.iter().zip(0..).all(|(&s, i)| s == (i * SLOTS as u64 / n) * SLOT_WIDTH)
        );
        let file = File::new(opened.structure, prefix, &new, chain, starts);
        self.model.jobs[j].add(file);
    }

    fn unmake(&mut self, j: usize, path: &str, name: &str) {
        let (actor, job) = (Actor::driver(self.ids[j]), self.ids[j]);
        let result = self.bench.run(Command::RemoveStructure { actor, job, path, name });
        let expected = self.model.jobs[j].live(path);
        let files = &mut self.model.jobs[j].files;
        match expected {
            Err(why) => assert_eq!(cause(&result), why),
            Ok(i) => match files.iter().position(|f| f.prefix == i && f.name == name) {
                Some(at) => {
                    assert!(result.is_ok());
                    let freed = files.remove(at).held();
                    self.model.free(freed);
                }
                None => assert!(result.is_err()),
            },
        }
    }

    fn join(&mut self, shards: u8, blocks_per_shard: u32, below: u32) {
        self.joined += 1;
        let address = format!("s{}:1", self.joined);
        let (incarnation, block_size) = (self.joined, self.model.block.0);
        // Some have a store below their disk.
        let store = if below % 3 == 1 { below + 2 } else { 0 };
        let tiers = [
            TierSpec { class: TierClass::Nvme, blocks: below },
            TierSpec { class: TierClass::Object, blocks: store },
        ];
        let server = NewServer {
            address: &address,
            incarnation,
            shards,
            blocks_per_shard,
            tiers: &tiers[..usize::from(below > 0) + usize::from(store > 0)],
            block_size,
            flush_root: "",
            kinds: &[],
        };
        let Ok(Reply::Joined(id)) = self.bench.run(Command::JoinServer { server }) else {
            panic!()
        };
        let total = shards as u64 * blocks_per_shard as u64;
        assert!(self.model.servers.insert(id, (total, self.model.now)).is_none());
        self.model.cores.insert(id, shards.into());
        if below > 0 {
            self.model.tiers.below.insert(id, shards as u64 * below as u64);
        }
        if store > 0 {
            self.model.tiers.stores.insert(id, shards as u64 * store as u64);
        }
    }

    fn confirm(&mut self, block: usize, stale: bool) {
        let Some(&at) = self.model.quarantined.iter().nth(block) else { return };
        self.hear(at);
        if stale {
            let epoch = honeycomb_types::Epoch(at.epoch.0 - 1);
            self.bench.confirm(&[BlockAt { epoch, ..at }]);
            return;
        }
        // Twice: the second changes nothing.
        self.bench.confirm(&[at]);
        self.model.quarantined.remove(&at);
        self.model.tiers.put(at, Default::default());
        self.carry_out();
        self.bench.confirm(&[at]);
    }

    fn hear(&mut self, at: BlockAt) {
        self.model.hear(at.block.server());
    }

    /// A prefix requested blocks in this command, and whether it was refused.
    pub fn asks(&mut self, prefix: Option<(usize, usize)>, refused: bool) {
        self.asker = prefix;
        if refused {
            self.refused = prefix;
        }
    }

    fn forget(&mut self, server: ServerId) {
        self.open.retain(|at| at.block.server() != server);
        self.imports.forget(server);
    }
}

type Planned = Result<(Job, Vec<usize>), &'static str>;

/// A plan on a copy of the job: each node as soon as its parents exist.
fn planned(
    job: &Job,
    nodes: &[(String, Vec<String>)],
    unknown: Option<&'static str>,
    now: u64,
) -> Planned {
    let names: BTreeSet<&String> = nodes.iter().map(|(name, _)| name).collect();
    if names.len() < nodes.len() {
        return Err("DuplicateNode");
    }
    for (i, (_, parents)) in nodes.iter().enumerate() {
        let outside = parents.iter().filter(|parent| !names.contains(parent));
        for parent in outside.map(String::as_str).chain(parents.is_empty().then_some("")) {
            job.parent(parent)?;
        }
        // The first node's readers are checked with its parents.
        if let (0, Some(cause)) = (i, unknown) {
            return Err(cause);
        }
    }
    let mut trial = job.clone();
    let mut done: BTreeMap<&str, usize> = BTreeMap::new();
    let mut taken = None;
    while done.len() < nodes.len() {
        let ready = |parents: &[String]| {
            parents.iter().all(|p| done.contains_key(p.as_str()) || !names.contains(p))
        };
        let next = nodes.iter().find(|(n, p)| !done.contains_key(n.as_str()) && ready(p));
        let Some((name, named)) = next else { return Err("Cycle") };
        let mut parents = Vec::new();
        for parent in named.iter().map(String::as_str).chain(named.is_empty().then_some("")) {
            let i = match done.get(parent) {
                Some(&i) => i,
                None => job.parent(parent)?,
            };
            if !parents.contains(&i) {
                parents.push(i);
            }
        }
        match trial.place(name, &parents) {
            Ok(place) => {
                let new = Prefix::new(PrefixId(0), name, parents, job.lease, now);
                done.insert(name, trial.put(place, new, now));
            }
            // A cycle within the plan is reported first; continues as if the name were free.
            Err(cause) => {
                taken = Some(cause);
                let new = Prefix::new(PrefixId(0), "", vec![], job.lease, now);
                done.insert(name, trial.put(None, new, now));
            }
        }
    }
    match taken {
        Some(cause) => Err(cause),
        None if trial.cyclic() => Err("Cycle"),
        None => {
            let order = nodes.iter().map(|(name, _)| done[name.as_str()]).collect();
            Ok((trial, order))
        }
    }
}

/// Runs commands with all their consequences, and then ends everything.
fn agree(ops: &[Op]) -> Result<(), TestCaseError> {
    // Clusters begin without lower tiers, with a disk, or with a disk and a store.
    agree_under(PolicyKind::FirstCome, [0, 9, 1][ops.len() % 3], ops)
}

fn agree_under(policy: PolicyKind, below: u32, ops: &[Op]) -> Result<(), TestCaseError> {
    agree_with(policy, (below, BLOCK), ops)
}

fn agree_with(
    policy: PolicyKind,
    (below, block): (u32, u64),
    ops: &[Op],
) -> Result<(), TestCaseError> {
    let mut both = Both::with_blocks(11, below, policy, block);
    both.run(ops);
    // INV-35: the key of the tables has no visible effect.
    let mut again = Both::with_blocks(12, below, policy, block);
    again.run(ops);
    prop_assert_eq!(&both.bench.log, &again.bench.log);
    // INV-02, INV-13: when all leases have ended and all frees are confirmed, everything is free.
    for job in both.ids.clone() {
        let result = both.bench.run(Command::DeregisterJob { actor: Actor::driver(job), job });
        prop_assert!(result.is_ok());
        let freed = both.bench.freed();
        both.bench.confirm(&freed);
    }
    let left: Vec<BlockAt> = both.model.quarantined.iter().copied().collect();
    both.bench.confirm(&left);
    let status = both.bench.status();
    prop_assert_eq!((status.free, status.prefixes), (status.blocks, 0));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 4000, ..long_cases() })]

    #[test]
    fn the_catalog_does_what_the_plain_model_does(ops in prop::collection::vec(op(), 1..120)) {
        agree(&ops)?;
    }

    #[test]
    fn blocks_go_down_as_in_the_plain_model(ops in prop::collection::vec(growing(), 1..120)) {
        agree(&ops)?;
    }

    #[test]
    fn blocks_grow_in_place_as_in_the_plain_model(
        ops in prop::collection::vec(prop_oneof![1 => enlarging(), 2 => sharing()], 1..120),
        policy in 0..3usize,
        below in prop_oneof![Just(0), Just(9), Just(1)],
        block in prop_oneof![Just(4 * BLOCK), Just(16 * BLOCK), Just(128 * BLOCK)],
    ) {
        let policies = [PolicyKind::FirstCome, PolicyKind::MaxMin, PolicyKind::Karma];
        agree_with(policies[policy], (below, block), &ops)?;
    }

    #[test]
    fn memory_is_shared_out_as_in_the_plain_model(
        ops in prop::collection::vec(sharing(), 1..120),
        karma: bool,
    ) {
        agree_under(if karma { PolicyKind::Karma } else { PolicyKind::MaxMin }, 9, &ops)?;
    }

    #[test]
    fn ranges_move_as_in_the_plain_model(
        ops in prop::collection::vec(prop_oneof![7 => moving(), 1 => op()], 1..120)
    ) {
        agree(&ops)?;
    }
}

/// The random commands reach their targets: agreement of a model to which nothing happens proves nothing.
#[test]
fn the_random_commands_make_edges_and_free_what_was_read() {
    let mut runner = TestRunner::deterministic();
    let (mut edges, mut read) = ([0; 4], 0);
    let enough = |edges: [u64; 4], read: u64| edges.iter().all(|&count| count >= 5) && read >= 5;
    for _ in 0..200 {
        if enough(edges, read) {
            break;
        }
        let ops = prop::collection::vec(op(), 1..120).new_tree(&mut runner).unwrap().current();
        // Every other cluster begins with a disk.
        let below = ops.len() as u32 % 2 * 9;
        let mut both = Both::new(11, below);
        both.run(&ops);
        edges.iter_mut().zip(both.edges).for_each(|(all, one)| *all += one);
        read += both.read;
    }
    assert!(enough(edges, read), "{edges:?}, {read} were read");
}

#[test]
fn the_random_commands_move_ranges_in_every_way() {
    let mut runner = TestRunner::deterministic();
    let mut seen = [0; 6];
    for _ in 0..100 {
        if seen.iter().all(|&count| count >= 20) {
            break;
        }
        let ops = prop::collection::vec(prop_oneof![7 => moving(), 1 => op()], 1..120);
        let mut both = Both::new(11, 0);
        both.run(&ops.new_tree(&mut runner).unwrap().current());
        seen.iter_mut().zip(both.moves).for_each(|(all, one)| *all += one);
    }
    assert!(seen.iter().all(|&count| count >= 20), "{seen:?}");
}

#[test]
fn the_random_commands_let_jobs_give_and_wait() {
    let mut runner = TestRunner::deterministic();
    for policy in [PolicyKind::MaxMin, PolicyKind::Karma] {
        let (mut given, mut waited) = (0, 0);
        // Waiting is rare: new structures find room in lower tiers, except for the targets of moves.
        for _ in 0..400 {
            if given >= 20 && waited >= 3 {
                break;
            }
            let ops = prop::collection::vec(sharing(), 60..120).new_tree(&mut runner).unwrap();
            let mut both = Both::with_policy(11, 9, policy);
            both.run(&ops.current());
            (given, waited) = (given + both.given, waited + both.waited);
        }
        assert!(given >= 20 && waited >= 3, "{policy}: {given} given, {waited} waited");
    }
}

#[test]
fn the_random_commands_let_blocks_go_down_and_stay() {
    let mut runner = TestRunner::deterministic();
    let mut lowered = [0; 3];
    let enough = |[went, stayed, sunk]: [u64; 3]| went >= 20 && stayed >= 20 && sunk >= 10;
    for n in 0..200 {
        if enough(lowered) {
            break;
        }
        let ops = prop::collection::vec(growing(), 60..120).new_tree(&mut runner).unwrap();
        let mut both = Both::new(11, [9, 1][n % 2]);
        both.run(&ops.current());
        lowered.iter_mut().zip(both.lowered).for_each(|(all, one)| *all += one);
    }
    assert!(enough(lowered), "{lowered:?}");
}
