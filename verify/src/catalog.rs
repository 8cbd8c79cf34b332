//! The reference model of the catalog: every command that the controller executes is also executed
//! on plain collections. The two must agree on the result, on the orders to memory servers, and,
//! every few commands, on the whole state (INV-01 to 03, 12 to 14, 17, 20, 22, 30, 37).
//!
//! The collections are those of the catalog's own property test: one model with two users.

mod blocks;
mod capacities;
mod drain;
mod extents;
mod lots;
mod moves;
mod private;
mod quotas;
#[path = "../../crates/catalog/tests/reference/mod.rs"]
#[allow(dead_code)] // Each of its two users uses a part.
mod reference;
mod rejoin;

use crate::faults::Shape;
use honeycomb_catalog::{
    Actor, Catalog, CatalogError, Command, Effect as Order, NewStructure, Opened, PrefixOptions,
    PrefixState, Reply,
};
use honeycomb_types::{BlockAt, JobId, PrefixId, ServerId, StructureId, Time, Way};
use reference::{
    BlockSize, Cluster, File, Imports, Job, Life, Outcome, Place, Prefix, Verdict, cause, require,
};
use rejoin::Rejoining;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Commands between two comparisons of the whole state: a comparison costs more than most commands,
/// and a persistent error is found anyway.
const COMPARE_EVERY: u64 = 24;

/// The plain catalog, and the orders to servers so far.
#[derive(Default)]
pub struct CatalogModel {
    cluster: Cluster,
    jobs: Vec<JobId>,
    addresses: BTreeMap<ServerId, (String, u64)>,
    /// Blocks that servers were ordered to hold.
    open: BTreeSet<BlockAt>,
    last_epoch: u64,
    versions: BTreeMap<StructureId, u64>,
    /// For each block, the last sent counts of earlier blocks.
    ahead: BTreeMap<BlockAt, (u64, u64)>,
    imports: Imports,
    /// Blocks lent by servers that came back and have not reported all their blocks.
    told_lots: BTreeMap<ServerId, Vec<u64>>,
    rejoining: Rejoining,
    /// The end of each stall of the controller, and its length in milliseconds.
    stalls: Vec<(u64, u64)>,
    /// The silence after which a server is lost, in milliseconds.
    server_loss_ms: u64,
    /// The prefix that requested blocks in this command, and the prefix that was refused last.
    asker: Option<(usize, usize)>,
    refused: Option<(usize, usize)>,
    commands: u64,
}

/// Leases at some time: job, prefix, milliseconds left.
pub type Running = Vec<(usize, PrefixId, u64)>;

fn agree<T, M>(what: &str, reply: &Result<T, CatalogError>, model: &Outcome<M>) -> Verdict {
    let (is, due) = (cause(reply), model.as_ref().map_or_else(|e| *e, |_| "Ok"));
    require(is == due, || format!("{what} was answered {is}, and should have been {due}"))
}

impl CatalogModel {
    /// The model of a catalog for such a cluster, with blocks of this size.
    pub fn new(cluster: Shape, block: u64) -> CatalogModel {
        let mut model = CatalogModel::default();
        model.cluster.block = BlockSize(block);
        model.cluster.shares.policy = cluster.policy;
        model.server_loss_ms = cluster.server_loss_ms.into();
        model
    }

    /// Before a command that requests blocks: records the memory of each holder, and its share.
    pub fn look(&mut self, now: Time, catalog: &mut Catalog, command: &Command<'_>) -> Verdict {
        self.cluster.asks_nothing();
        let Some((j, _)) = self.asker_of(command).filter(|_| !self.is_recovering()) else {
            return Ok(());
        };
        let asked = self.units_asked(command);
        let asks = Some((j, asked));
        let told = catalog.sharing(now, Some((self.jobs[j], asked)));
        self.cluster.look(told, asks)
    }

    /// A prefix within its share is refused blocks in a lower tier, to wait for memory.
    fn or_waits<T>(
        &self,
        expected: Outcome<T>,
        reply: &Result<Reply, CatalogError>,
        orders: &[Order],
        (j, asked): (usize, (u64, u64)),
    ) -> Outcome<T> {
        let lower = |order: &Order| matches!(order, Order::LowerBlock { .. });
        let lowering = !self.cluster.tiers.moving().is_empty() || orders.iter().any(lower);
        let refused = matches!(reply, Err(CatalogError::OutOfMemory { .. }));
        match refused && expected.is_ok() && self.cluster.waits(j, asked, lowering) {
            true => Err("OutOfMemory"),
            false => expected,
        }
    }

    fn job(&self, id: JobId) -> usize {
        self.jobs.iter().position(|job| *job == id).expect("jobs stay as long as the world")
    }

    fn at(&mut self, id: JobId) -> &mut Job {
        let j = self.job(id);
        &mut self.cluster.jobs[j]
    }

    /// Executes a command that the catalog has just executed, and reports differences.
    pub fn judge(
        &mut self,
        now: Time,
        command: &Command<'_>,
        reply: &Result<Reply, CatalogError>,
        orders: &[Order],
    ) -> Verdict {
        self.cluster.now = now.as_millis();
        let was_recovering = self.is_recovering();
        self.asks(command, reply);
        self.step(command, reply, orders)?;
        self.settle(was_recovering);
        self.end_idle(orders)?;
        self.carry_out(orders)
    }

    /// Records the prefix that requests blocks by this command: its own blocks are demoted if there
    /// are too few (INV-43).
    fn asks(&mut self, command: &Command<'_>, reply: &Result<Reply, CatalogError>) {
        self.asker = self.asker_of(command);
        let none =
            matches!(reply, Err(CatalogError::OutOfMemory { .. } | CatalogError::Recovering));
        // A block that leaves its server and finds no place does not wait.
        let leaves = matches!(command, Command::BeginMove { way: Way::Relocate, .. });
        self.refused = self.asker.filter(|_| none && !leaves);
    }

    fn asker_of(&self, command: &Command<'_>) -> Option<(usize, usize)> {
        let of = |model: &CatalogModel, id: StructureId| {
            let (j, f) = model.cluster.find(id)?;
            Some((j, model.cluster.jobs[j].files[f].prefix))
        };
        match *command {
            Command::CreateStructure { job, structure, .. } => {
                let j = self.job(job);
                self.cluster.jobs[j].live(structure.path).ok().map(|i| (j, i))
            }
            // A block that leaves its server goes to memory elsewhere, which counts for its prefix
            // as usual.
            Command::GrowStructure { structure, .. }
            | Command::GrowBlock { structure, .. }
            | Command::BeginMove { structure, .. }
            | Command::BeginAppend { structure, .. }
            | Command::ExtentBlocks { structure, .. } => of(self, structure),
            Command::ShortOf { .. } => self.refused,
            _ => None,
        }
    }

    /// Whether a comparison of the whole state is due.
    pub fn is_due(&mut self) -> bool {
        self.commands += 1;
        self.commands.is_multiple_of(COMPARE_EVERY)
    }

    fn step(
        &mut self,
        command: &Command<'_>,
        reply: &Result<Reply, CatalogError>,
        orders: &[Order],
    ) -> Verdict {
        match *command {
            Command::RegisterJob { name, lease_ms, quota_blocks, .. } => {
                self.register(name, lease_ms, quota_blocks, reply)
            }
            Command::CreatePrefix { job, path, parents, options, .. } => {
                self.create(job, path, parents, options, reply)
            }
            Command::RemovePrefix { job, path, .. } => {
                let expected = self.at(job).live(path);
                agree("a removal", reply, &expected)?;
                if let Ok(i) = expected {
                    let now = self.cluster.now;
                    let freed = self.at(job).end(i, Life::Removed, now);
                    self.cluster.free(freed);
                }
                Ok(())
            }
            Command::RenewLeases { job, paths, .. } => self.renew(job, paths, reply),
            Command::RenewPrefixById { job, prefix, ago_ms } => {
                let seen = self.cluster.now.saturating_sub(ago_ms as u64);
                // The session was seen before the end of the last stall: the rest of the stall
                // extends the lease.
                let rest = |(end, length): &(u64, u64)| (*length).min(end.saturating_sub(seen));
                let seen = seen + self.stalls.iter().map(rest).sum::<u64>();
                let job = self.at(job);
                let found = job.all().find(|(_, p)| p.id == prefix && p.life == Life::Live);
                if let Some(i) = found.map(|(i, _)| i) {
                    job.renew(i, seen);
                }
                Ok(())
            }
            Command::DeclareReaders { job, path, readers, replace, .. } => {
                self.declare(job, path, readers, replace, reply)
            }
            Command::CommitTask { job, path, .. } => self.commit(job, path, reply),
            Command::CreateStructure { actor, job, structure } => {
                self.make(actor, job, &structure, reply, orders)
            }
            Command::OpenStructure { actor, job, path, name } => {
                self.open(actor, job, path, name, reply)
            }
            Command::SetQuota { of, change, .. } => self.bound(of, change, reply),
            Command::RemoveStructure { job, path, name, .. } => self.unmake(job, path, name, reply),
            Command::SetPermissions { job, path, .. } => {
                agree("a change of permissions", reply, &self.at(job).live(path))
            }
            Command::JoinServer { server } => {
                let shards = server.shards as u64;
                let of =
                    |n: usize| server.tiers.get(n).map_or(0, |tier| tier.blocks as u64 * shards);
                let blocks = (shards * server.blocks_per_shard as u64, of(0), of(1));
                if let Ok(Reply::Joined(id)) = reply {
                    self.cluster.cores.insert(*id, shards);
                }
                self.join(server.address, server.incarnation, reply, blocks)
            }
            Command::RejoinServer { server, member } => self.rejoin(server, member, reply),
            Command::Inventory { server, held, last } => self.inventory(server, held, last, reply),
            Command::ServerReport { server, report } => {
                for usage in report.usage {
                    self.cluster.used.insert(usage.at, usage.bytes_used);
                }
                let known = self.cluster.servers.contains_key(&server);
                let expected = if known { Ok(()) } else { Err("UnknownServer") };
                agree("a report", reply, &expected)?;
                self.cluster.hear(server);
                Ok(())
            }
            Command::DrainServer { address, cancel, .. } => self.drain(address, cancel, reply),
            Command::ServerStays { server } => {
                self.cluster.hear(server);
                self.cluster.stays(server);
                agree("a server that stays", reply, &Ok(()))
            }
            Command::ServerUnlinked { server } => {
                if !self.cluster.away.contains(&server) {
                    self.cluster.suspected.insert(server);
                }
                Ok(())
            }
            Command::ServerLost { server } => {
                self.lose(server);
                Ok(())
            }
            Command::BlockOpened { server, .. } => {
                self.cluster.hear(server);
                Ok(())
            }
            Command::BlockFreed { server, at } => {
                self.cluster.hear(server);
                if at.block.server() == server {
                    self.cluster.quarantined.remove(&at);
                    self.cluster.tiers.put(at, Default::default());
                }
                Ok(())
            }
            Command::RaiseBlock { at, .. } => {
                self.cluster.hear(at.block.server());
                Ok(())
            }
            Command::TierChanged { at, tier, .. } => {
                self.cluster.hear(at.block.server());
                if reply.is_ok() {
                    self.cluster.tiers.arrives(at, tier);
                }
                Ok(())
            }
            Command::LowerRefused { server, at } => {
                self.cluster.hear(server);
                let (from, _) = self.cluster.tiers.place(at);
                self.cluster.tiers.arrives(at, from);
                Ok(())
            }
            Command::GrowStructure { structure, at } => self.grow(structure, at, reply, orders),
            Command::GrowBlock { structure, at, bytes } => {
                self.enlarge(structure, at, bytes, reply)
            }
            Command::SealBlock { structure, at, seal } => self.seal(structure, at, seal, reply),
            Command::QueueTaken { structure, at, items, bytes } => {
                self.taken(structure, at, items, bytes, reply)
            }
            Command::ExtentBlocks { job, structure, bytes, full, .. } => {
                self.extents(job, structure, bytes, full, reply)
            }
            Command::BeginAppend { structure, bytes, .. } => {
                self.begin_append(structure, bytes, reply, orders)
            }
            Command::CommitAppend { structure, first, .. } => {
                self.commit_append(structure, first, reply)
            }
            Command::DropAppend { structure, first, .. } => {
                if let Some(place) = self.cluster.find(structure) {
                    self.cluster.drop_append(place, first);
                }
                Ok(())
            }
            Command::RetireBlock { structure, at } => self.retire(structure, at, reply, orders),
            Command::ReturnBlock { structure, at, successor } => {
                self.give_back(structure, at, successor, reply)
            }
            Command::BeginMove { structure, at, start, way } => {
                self.begin_move(structure, at, start, way, reply)
            }
            Command::CommitMove { structure, at, id, target, .. } => {
                self.commit_move(structure, at, id, target, reply)
            }
            Command::CancelMove { structure, at, id } => {
                self.cluster.hear(at.block.server());
                self.cluster.cancel(|moving| (moving.structure, moving.id) == (structure, id));
                agree("a cancellation", reply, &Ok(()))
            }
            Command::ImportRefused { at, id, .. } => {
                self.cluster.cancel(|moving| (moving.target, moving.id) == (at, id));
                agree("the refusal of a move", reply, &Ok(()))
            }
            Command::Lent { server, lent } => self.lent(server, lent, reply),
            Command::Tick => {
                self.tick(self.cluster.now);
                Ok(())
            }
            Command::TickUntil { heard } => {
                self.tick(heard.as_millis());
                Ok(())
            }
            Command::Stalled { length } => {
                let (now, length) = (self.cluster.now, length.as_millis() as u64);
                for job in &mut self.cluster.jobs {
                    let prefixes = job.prefixes.iter_mut().flatten();
                    prefixes.for_each(|p| p.renewed = (p.renewed + length).min(now));
                }
                let seen = self.cluster.servers.values_mut();
                seen.for_each(|(_, seen)| *seen = (*seen + length).min(now));
                self.stalls.push((now, length));
                Ok(())
            }
            Command::Amnesty => {
                let now = self.cluster.now;
                for job in &mut self.cluster.jobs {
                    job.prefixes.iter_mut().flatten().for_each(|p| p.renewed = now);
                }
                self.cluster.servers.values_mut().for_each(|(_, seen)| *seen = now);
                Ok(())
            }
            // They change nothing; their results are compared as a whole.
            _ => Ok(()),
        }
    }

    fn register(
        &mut self,
        name: &str,
        lease_ms: u32,
        quota: u64,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        let Ok(Reply::Job { job, root, .. }) = reply else {
            return Err(format!("a registration was answered {reply:?}"));
        };
        let lease = lease_ms as u64;
        let mut new = Job { quota, lease, name: name.into(), ..Job::default() };
        new.prefixes.push(Some(Prefix::new(*root, "", vec![], lease, self.cluster.now)));
        self.jobs.push(*job);
        self.cluster.jobs.push(new);
        Ok(())
    }

    fn create(
        &mut self,
        job: JobId,
        path: &str,
        named: &[&str],
        options: PrefixOptions,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        let now = self.cluster.now;
        let job = self.at(job);
        let expected = job.creation(path, named, options.lease_ms, now);
        agree("a creation", reply, &expected)?;
        if let (Ok((place, new)), Ok(Reply::Prefix(id))) = (expected, reply) {
            let high = if options.high_mark == 0 { new.high } else { options.high_mark };
            job.put(place, Prefix { id: *id, high, ..new }, now);
            job.sweep();
        }
        Ok(())
    }

    /// INV-14: each path independently.
    fn renew(
        &mut self,
        job: JobId,
        paths: &[&str],
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        let now = self.cluster.now;
        let job = self.at(job);
        let Ok(Reply::Renewed(results)) = reply else {
            return Err(format!("a renewal was answered {reply:?}"));
        };
        for (path, result) in paths.iter().zip(results) {
            let expected = job.live(path);
            agree("a renewal (INV-14)", result, &expected)?;
            if let Ok(i) = expected {
                job.renew(i, now);
            }
        }
        require(results.len() == paths.len(), || "a renewal left paths out (INV-14)".into())
    }

    fn declare(
        &mut self,
        job: JobId,
        path: &str,
        named: &[&str],
        replace: bool,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        let now = self.cluster.now;
        let job = self.at(job);
        let expected = job.declare(path, named, replace, now);
        agree("a declaration", reply, &expected)?;
        let (Ok(Reply::Readers { left }), Ok((due, freed))) = (reply, expected) else {
            return Ok(());
        };
        require(*left == due, || format!("{left} readers are left, not {due} (INV-37)"))?;
        self.cluster.free(freed);
        Ok(())
    }

    fn commit(&mut self, job: JobId, path: &str, reply: &Result<Reply, CatalogError>) -> Verdict {
        let now = self.cluster.now;
        let job = self.at(job);
        let expected = job.commit(path, now);
        agree("a commit", reply, &expected)?;
        let (Ok(Reply::Committed { freed }), Ok((due, blocks))) = (reply, expected) else {
            return Ok(());
        };
        require(*freed == due, || format!("a commit freed {freed} prefixes, not {due} (INV-37)"))?;
        self.cluster.free(blocks);
        Ok(())
    }

    fn make(
        &mut self,
        actor: Actor,
        job_id: JobId,
        new: &NewStructure<'_>,
        reply: &Result<Reply, CatalogError>,
        orders: &[Order],
    ) -> Verdict {
        let j = self.job(job_id);
        let expected = self.cluster.making(j, new);
        let asked = (j, self.cluster.first_memory(new.kind, new.blocks));
        let expected = self.or_waits(expected, reply, orders, asked);
        agree("the creation of a structure", reply, &expected)?;
        let (Ok((prefix, existing)), Ok(Reply::Opened(opened))) = (expected, reply) else {
            return Ok(());
        };
        if let Some(id) = existing {
            require(opened.structure == id, || "another structure was opened".into())?;
            return self.consumed(actor, j, prefix, opened);
        }
        let blocks = orders.iter().filter_map(|order| match order {
            Order::OpenBlock { at, .. } => Some(*at),
            _ => None,
        });
        let starts = opened.map.entries.iter().map(|entry| entry.start).collect();
        let file = File::new(opened.structure, prefix, new, blocks.collect(), starts);
        self.cluster.jobs[j].add(file);
        Ok(())
    }

    fn open(
        &mut self,
        actor: Actor,
        job: JobId,
        path: &str,
        name: &str,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        let j = self.job(job);
        let job = &self.cluster.jobs[j];
        let prefix = match (job.live(path), reply) {
            (Err(due), _) => return agree("an opening", reply, &Err::<(), _>(due)),
            (Ok(prefix), Ok(Reply::Opened(opened))) => {
                let known = job.files.iter().find(|f| f.prefix == prefix && f.name == name);
                require(known.is_some_and(|f| f.id == opened.structure), || {
                    format!("{} was opened, which is not there", opened.structure)
                })?;
                return self.consumed(actor, j, prefix, opened);
            }
            (Ok(prefix), _) => prefix,
        };
        let there = job.files.iter().any(|f| f.prefix == prefix && f.name == name);
        require(!there, || format!("an opening was answered {}", cause(reply)))
    }

    /// Opening by address makes an edge to the prefix of the session.
    fn consumed(&mut self, actor: Actor, j: usize, prefix: usize, opened: &Opened) -> Verdict {
        let now = self.cluster.now;
        let edge = match actor.session {
            Some(task) => self.cluster.jobs[j].consume(task, prefix, now),
            None => 0,
        };
        let found = opened.edge as u8;
        require(found == edge, || format!("the edge by use is {found}, and should be {edge}"))
    }

    fn unmake(
        &mut self,
        job: JobId,
        path: &str,
        name: &str,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        let job = self.at(job);
        let i = match job.live(path) {
            Ok(i) => i,
            Err(why) => return agree("a removal", reply, &Err::<(), _>(why)),
        };
        let found = job.files.iter().position(|f| f.prefix == i && f.name == name);
        require(found.is_some() == reply.is_ok(), || {
            format!("the removal of a structure was answered {}", cause(reply))
        })?;
        if let Some(found) = found {
            let freed = job.files.remove(found).held();
            self.cluster.free(freed);
        }
        Ok(())
    }

    fn join(
        &mut self,
        address: &str,
        incarnation: u64,
        reply: &Result<Reply, CatalogError>,
        (blocks, below, store): (u64, u64, u64),
    ) -> Verdict {
        let Ok(Reply::Joined(id)) = reply else {
            return Err(format!("a server that joined was answered {reply:?}"));
        };
        let same =
            |(_, known): &(&ServerId, &(String, u64))| known.0 == address || known.1 == incarnation;
        let earlier: Vec<ServerId> =
            self.addresses.iter().filter(same).map(|(id, _)| *id).collect();
        for server in earlier {
            self.lose(server);
        }
        self.addresses.insert(*id, (address.to_owned(), incarnation));
        if below > 0 {
            self.cluster.tiers.below.insert(*id, below);
        }
        if store > 0 {
            self.cluster.tiers.stores.insert(*id, store);
        }
        let before = self.cluster.servers.insert(*id, (blocks, self.cluster.now));
        require(before.is_none(), || format!("{id} joined twice"))
    }

    fn lose(&mut self, server: ServerId) {
        self.addresses.remove(&server);
        self.forget_rejoining(server);
        self.cluster.lose(server);
        self.open.retain(|at| at.block.server() != server);
        self.imports.forget(server);
    }

    /// The time left at `at` for all leases that can end.
    pub fn leases(&self, at: Time) -> Running {
        let jobs = self.cluster.jobs.iter().enumerate();
        let left = jobs.flat_map(|(j, job)| {
            let runs = job.all().filter(|(_, p)| p.life == Life::Live && !p.pinned);
            // A lease that was renewed since has its whole period left.
            let left = |p: &Prefix| (p.renewed + p.lease).saturating_sub(at.as_millis());
            runs.map(move |(_, p)| (j, p.id, left(p).min(p.lease)))
        });
        left.filter(|(_, _, left)| *left > 0).collect()
    }

    /// A lease that has ended, or has less time left now than it had then, by more than this.
    pub fn shortened(&self, running: &Running, slack: Duration) -> Option<String> {
        let (now, slack) = (self.cluster.now, slack.as_millis() as u64);
        running.iter().find_map(|&(j, id, before)| {
            let (_, p) = self.cluster.jobs[j].all().find(|(_, p)| p.id == id)?;
            let left = match p.life {
                Life::Live => (p.renewed + p.lease).saturating_sub(now),
                Life::Expired => 0,
                Life::Removed | Life::Read => return None,
            };
            let short = left + slack < before;
            short.then(|| format!("the lease of '{}' had {before} ms left, and has {left}", p.name))
        })
    }

    fn tick(&mut self, now: u64) {
        let was_recovering = self.is_recovering();
        // Servers first: leases that end in the same tick do not involve a dead server.
        for server in self.cluster.end_silence(now, self.server_loss_ms) {
            self.lose(server);
        }
        if self.is_recovering() {
            return;
        }
        self.settle(was_recovering);
        for j in 0..self.cluster.jobs.len() {
            for i in self.cluster.jobs[j].due(now) {
                let p =
                    self.cluster.jobs[j].prefixes[i].as_ref().expect("a prefix that is due exists");
                let missed = p.renewed + p.lease;
                let freed = self.cluster.jobs[j].end(i, Life::Expired, missed);
                self.cluster.free(freed);
            }
        }
        self.cluster.cancel_overdue();
    }

    /// Checks that orders to servers are consistent with earlier ones.
    fn carry_out(&mut self, orders: &[Order]) -> Verdict {
        for order in orders {
            self.imports.hear(order, &self.open)?;
            match *order {
                // Opened again for a server that came back without it.
                Order::OpenBlock { at, tier, capacity, .. }
                    if self.rejoining.again && self.open.contains(&at) =>
                {
                    self.cluster.tiers.put(at, (tier, tier));
                    self.cluster.holds(at, capacity);
                }
                Order::LowerBlock { at, tier, .. } => {
                    // A freed block is not demoted.
                    require(self.open.contains(&at), || format!("{at:?} is freed and goes down"))?;
                    match tier.is_below() {
                        true => self.cluster.lowers(at, tier, self.asker)?,
                        false => self.cluster.raises(at)?,
                    }
                }
                Order::OpenBlock { at, tier, capacity, .. } => {
                    self.cluster.tiers.put(at, (tier, tier));
                    self.cluster.holds(at, capacity);
                    let free = self.open.iter().all(|other| other.block != at.block);
                    require(free, || format!("{at:?} is given to a second owner (INV-01)"))?;
                    let fresh = at.epoch.0 > self.last_epoch;
                    require(fresh, || format!("the epoch of {at:?} was used before (INV-01)"))?;
                    self.last_epoch = at.epoch.0;
                    self.open.insert(at);
                }
                Order::FreeBlock { at, .. } => {
                    let again = self.rejoining.again && self.cluster.quarantined.contains(&at);
                    let once = self.open.remove(&at) || again;
                    require(once, || format!("{at:?} is freed twice (INV-03)"))?;
                }
                Order::QueueAhead { at, items, bytes, .. } => {
                    let before = self.ahead.insert(at, (items, bytes));
                    let less = before.is_none_or(|(i, b)| items <= i && bytes <= b);
                    let held = self.open.contains(&at);
                    require(less && held, || {
                        format!("{at:?} was told {before:?}, now {items} and {bytes} (INV-22)")
                    })?;
                }
                Order::Evacuate { server, at } => self.cluster.evacuates(server, at)?,
                Order::Release { server, stay } => self.cluster.release(server, stay)?,
                Order::Lots { server, ref lots } => self.asks_for_lots(server, lots)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Compares the whole observable state of the catalog.
    pub fn compare(&mut self, now: Time, catalog: &mut Catalog) -> Verdict {
        self.cluster.now = now.as_millis();
        let awaits = catalog.recovering() == self.is_recovering();
        require(awaits, || "who is awaited is not agreed upon (INV-27)".into())?;
        if self.is_recovering() {
            return Ok(());
        }
        let held = self.cluster.jobs.iter().flat_map(|job| &job.files).flat_map(File::held);
        let held: BTreeSet<BlockAt> = held.collect();
        require(self.open == held, || {
            let more: Vec<_> = self.open.difference(&held).collect();
            let fewer: Vec<_> = held.difference(&self.open).collect();
            format!(
                "servers hold {more:?}, which the catalog does not, and lack {fewer:?} (INV-02)"
            )
        })?;
        self.imports.compare(&self.cluster)?;
        let mut none = Vec::new();
        let status = Command::ClusterStatus { actor: Actor::CLUSTER };
        let Ok(Reply::Status(status)) = catalog.apply(now, status, &mut none) else {
            return Err("the cluster has no status".into());
        };
        let is = (status.reserved, status.free, status.quarantined);
        let due = self.cluster.reported();
        require(is == due, || {
            format!("held back, free, in quarantine are {is:?}, and should be {due:?} (INV-02, 40)")
        })?;
        for (j, id) in self.jobs.clone().into_iter().enumerate() {
            self.compare_tree(now, catalog, j, id)?;
            for file in self.cluster.jobs[j].files.clone() {
                self.compare_map(now, catalog, id, &file)?;
            }
        }
        Ok(())
    }

    fn compare_map(
        &mut self,
        now: Time,
        catalog: &mut Catalog,
        job: JobId,
        file: &File,
    ) -> Verdict {
        let (actor, structure) = (Actor::driver(job), file.id);
        let command = Command::ReopenStructure { actor, job, structure };
        let opened = match catalog.apply(now, command, &mut Vec::new()) {
            Ok(Reply::Opened(opened)) => opened,
            other => return Err(format!("{structure} was opened with {}", cause(&other))),
        };
        let entries = opened.map.entries.iter().map(|e| (e.start, e.end, e.at));
        let (version, ranges, _) = file.map();
        let is = (opened.map.version.0, entries.collect::<Vec<_>>());
        require(is == (version, ranges.clone()), || {
            format!("the map is {is:?}, and should be {:?} (INV-17)", (version, &ranges))
        })?;
        let before = self.versions.insert(file.id, version);
        require(before <= Some(version), || "a map's version fell (INV-17)".into())?;
        let tail = ranges[ranges.len() - 1].2;
        let told = self.ahead.get(&tail).copied();
        // While a server reports its blocks, the items taken there are unknown.
        if file.bounded() && !file.sealed() && !self.is_telling(file) {
            // The first block has no earlier blocks.
            let told = if tail == file.chain[0] {
                told.unwrap_or_default()
            } else {
                told.ok_or("a tail was not told what is ahead of it (INV-22)")?
            };
            let due = file.ahead();
            require(told == due, || format!("{due:?} is ahead, {told:?} was told (INV-22)"))?;
        }
        Ok(())
    }

    fn compare_tree(&mut self, now: Time, catalog: &mut Catalog, j: usize, id: JobId) -> Verdict {
        let command = Command::JobTree { actor: Actor::driver(id), job: id };
        let Ok(Reply::Tree(tree)) = catalog.apply(now, command, &mut Vec::new()) else {
            return Err("a job has no tree".into());
        };
        let (now, job) = (self.cluster.now, &self.cluster.jobs[j]);
        let named: BTreeSet<usize> = job.all().flat_map(|(_, c)| c.parents.clone()).collect();
        let hidden = |i: usize, p: &Prefix| {
            matches!(p.life, Life::Removed | Life::Read) && !named.contains(&i)
        };
        let due = job.all().filter(|&(i, p)| !hidden(i, p)).map(|(i, p)| {
            let live = p.life == Life::Live;
            let end = if live { p.renewed + p.lease } else { p.missed };
            let parents = p.parents.iter().map(|&i| job.prefixes[i].as_ref().map(|p| p.id));
            let parents: Vec<Option<PrefixId>> = parents.collect();
            let readers = if live { job.left(i) } else { 0 };
            let rest = (readers, job.committed.contains(&p.id));
            (p.id, (p.name.clone(), live, end as i64 - now as i64, parents, rest))
        });
        let due: BTreeMap<PrefixId, _> = due.collect();
        let is = tree.iter().map(|info| {
            let live = matches!(info.state, PrefixState::Live | PrefixState::DataLost);
            let parents: Vec<Option<PrefixId>> = info.parents.iter().copied().map(Some).collect();
            let rest = (info.readers_left, info.committed);
            (info.prefix, (info.name.to_string(), live, info.remaining_ms, parents, rest))
        });
        let is: BTreeMap<PrefixId, _> = is.collect();
        require(is == due, || {
            let differ = is.iter().find(|(id, seen)| due.get(id) != Some(seen));
            let of = differ.map_or_else(|| due.keys().next(), |(id, _)| Some(id));
            let model = of.and_then(|id| due.get(id));
            format!("the prefix {differ:?} should be {model:?} (INV-12, INV-13, INV-14)")
        })
    }
}
