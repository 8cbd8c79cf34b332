//! Recovery of the catalog from records.

use super::codec::{BadRecord, RecordReader, bad};
use super::flush::{FlushImage, LiveImage, get_objects, get_outcome, get_sweep};
use super::image::{
    Counters, JobImage, PrefixImage, ServerImage, StructureImage, Type, get_at, get_ended,
    get_extent_blocks, get_spent, get_tenant, get_tombstone,
};
use crate::bill::Bill;
use crate::dag::{Life, Node};
use crate::flush::Sweep;
use crate::jobs::Job;
use crate::lease::Timers;
use crate::moves::Moves;
use crate::queue::QueueState;
use crate::quota::Allowance;
use crate::readers::Readers;
use crate::reply::FlushState;
use crate::slab::{NONE, Slab};
use crate::structures::{Growth, Placed, StructureRecord};
use crate::tombstones::{Tombstone, Tombstones};
use crate::{BillInfo, Catalog, Config, Spent};
use honeycomb_types::limits::BILLS_KEPT;
use honeycomb_types::{BlockAt, BlockId, JobId, PrefixId, ServerId, Time};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

#[derive(Clone)]
struct RecoveredJob {
    image: JobImage,
    tombstones: VecDeque<Tombstone>,
    spent: Spent,
}

/// Reads records in the order in which they were written, and restores a catalog from the last images.
///
/// Every group of records that was durable must be given, whole and in order; half a group is not a valid
/// state.
#[derive(Clone, Default)]
pub struct Recovery {
    counters: Counters,
    jobs: Vec<Option<RecoveredJob>>,
    prefixes: Vec<Option<PrefixImage>>,
    readers: Readers,
    structures: Vec<Option<StructureImage>>,
    servers: BTreeMap<ServerId, ServerImage>,
    draining: BTreeSet<ServerId>,
    flushes: BTreeMap<u64, FlushImage>,
    live: BTreeMap<u64, LiveImage>,
    sweeps: BTreeMap<u64, Sweep>,
    /// Outcomes of flushes, by prefix.
    flushed: HashMap<PrefixId, FlushState>,
    /// Quotas of tenants, by name.
    tenants: BTreeMap<Box<str>, Allowance>,
    /// Final bills of ended jobs.
    ended: VecDeque<BillInfo>,
}

fn put<T>(all: &mut Vec<Option<T>>, place: u32, value: Option<T>) {
    let place = place as usize;
    if place >= all.len() {
        all.resize_with(place + 1, || None);
    }
    all[place] = value;
}

fn get<T>(all: &mut [Option<T>], place: u32) -> Result<&mut T, BadRecord> {
    match all.get_mut(place as usize) {
        Some(Some(value)) => Ok(value),
        _ => bad(format!("a record changes index {place}, which is vacant")),
    }
}

impl Recovery {
    /// An empty recovery.
    pub fn new() -> Recovery {
        Recovery::default()
    }

    /// Reads the records of one group.
    pub fn group(&mut self, mut records: &[u8]) -> Result<(), BadRecord> {
        while !records.is_empty() {
            let Some((head, rest)) = records.split_at_checked(6) else {
                return bad("a record has an incomplete header");
            };
            let length = u32::from_le_bytes(head[..4].try_into().expect("four bytes"));
            let Some((body, rest)) = rest.split_at_checked(length as usize) else {
                return bad("a record is longer than its group");
            };
            self.record(head[4], head[5], body)?;
            records = rest;
        }
        Ok(())
    }

    /// Reads one record.
    pub fn record(&mut self, code: u8, version: u8, body: &[u8]) -> Result<(), BadRecord> {
        let Some(kind) = Type::from_code(code) else {
            return bad(format!("a record has type {code}, which this version does not know"));
        };
        if version > kind.version() {
            let known = kind.version();
            return bad(format!(
                "a {kind:?} record has version {version}; this program knows {known}"
            ));
        }
        let mut r = RecordReader(body);
        match kind {
            Type::Counters => self.counters = Counters::get(&mut r)?,
            Type::Job => self.job(r.u32()?, JobImage::get(&mut r, version)?),
            Type::JobGone => put(&mut self.jobs, r.u32()?, None),
            Type::Tenant => {
                let (name, allowed) = get_tenant(&mut r, version)?;
                match allowed.says_something() {
                    false => drop(self.tenants.remove(&name)),
                    true => drop(self.tenants.insert(name, allowed)),
                }
            }
            Type::Prefix => {
                put(&mut self.prefixes, r.u32()?, Some(PrefixImage::get(&mut r, version)?))
            }
            Type::Bill => {
                let (j, id, spent) = (r.u32()?, JobId(r.u64()?), get_spent(&mut r, version)?);
                let job = get(&mut self.jobs, j)?;
                if job.image.id != id {
                    return bad("a bill belongs to another job than its index");
                }
                job.spent = spent;
            }
            Type::Ended => {
                if self.ended.len() >= BILLS_KEPT {
                    self.ended.pop_front();
                }
                self.ended.push_back(get_ended(&mut r, version)?);
            }
            Type::PrefixGone => {
                let n = r.u32()?;
                if let Ok(image) = get(&mut self.prefixes, n) {
                    self.flushed.remove(&image.id);
                }
                put(&mut self.prefixes, n, None);
            }
            Type::Edge => {
                let (child, parent) = (r.u32()?, r.u32()?);
                let parents = &mut get(&mut self.prefixes, child)?.parents;
                // Behind the first, where `Dag::link_deduced` puts it.
                parents.insert(parents.len().min(1), (parent, true));
            }
            Type::Declared => {
                let prefix = r.u32()?;
                let n = r.count(4)?;
                let readers: Vec<u32> = (0..n).map(|_| r.u32()).collect::<Result<_, _>>()?;
                self.readers.declare(prefix, &readers);
            }
            Type::Withdrawn => self.readers.withdraw(r.u32()?),
            Type::Committed => drop(self.readers.commit(r.u32()?)),
            Type::Lost => self.readers.lose(r.u32()?),
            Type::LostReaders => {
                let (prefix, lost) = (r.u32()?, r.u32()?);
                self.readers.set_lost(prefix, lost);
            }
            Type::Structure => self.structure(r.u32()?, StructureImage::get(&mut r, version)?)?,
            Type::StructureGone => put(&mut self.structures, r.u32()?, None),
            Type::ExtentBlocks => {
                let (s, blocks) = get_extent_blocks(&mut r)?;
                get(&mut self.structures, s)?.extents = blocks;
            }
            Type::ExtentAdded => {
                let (s, at) = (r.u32()?, get_at(&mut r)?);
                get(&mut self.structures, s)?.extents.push(at);
            }
            Type::ExtentGone => {
                let (s, gone) = (r.u32()?, get_at(&mut r)?);
                get(&mut self.structures, s)?.extents.retain(|at| *at != gone);
            }
            Type::Retired => {
                let (s, block) = (r.u32()?, BlockId(r.u64()?));
                // The structure may be missing, if it was sealed and retired before it was written.
                if let Some(Some(structure)) = self.structures.get_mut(s as usize) {
                    structure.entries.retain(|entry| entry.at.block != block);
                }
            }
            Type::Tombstone => {
                let (j, id, tombstone) = get_tombstone(&mut r)?;
                let job = get(&mut self.jobs, j)?;
                if job.image.id != id {
                    return bad("a tombstone belongs to another job than its index");
                }
                if job.tombstones.len() >= honeycomb_types::limits::TOMBSTONES_PER_JOB_MAX {
                    job.tombstones.pop_front();
                }
                job.tombstones.push_back(tombstone);
            }
            Type::Server => {
                let image = ServerImage::get(&mut r, version)?;
                self.draining.remove(&image.id);
                self.servers.insert(image.id, image);
            }
            Type::ServerGone => {
                let id = ServerId(r.u32()?);
                self.draining.remove(&id);
                self.servers.remove(&id);
            }
            Type::Draining => drop(self.draining.insert(ServerId(r.u32()?))),
            Type::Flush => {
                let image = FlushImage::get(&mut r, version)?;
                self.flushes.insert(image.number, image);
            }
            Type::Sweep => {
                let (number, sweep) = get_sweep(&mut r)?;
                self.sweeps.insert(number, sweep);
            }
            Type::Live => {
                let image = LiveImage::get(&mut r)?;
                self.live.insert(image.number, image);
            }
            Type::LiveGone => drop(self.live.remove(&r.u64()?)),
            Type::SweepGone => drop(self.sweeps.remove(&r.u64()?)),
            Type::FlushGone => drop(self.flushes.remove(&r.u64()?)),
            Type::FlushPart => {
                let (number, part) = (r.u64()?, r.u32()? as usize);
                let Some(flush) = self.flushes.get_mut(&number) else {
                    return bad(format!(
                        "a part belongs to flush {number:016x}, which does not exist"
                    ));
                };
                flush.wrote(part, get_objects(&mut r)?)?;
            }
            Type::Flushed => {
                let (prefix, state) = get_outcome(&mut r)?;
                self.flushed.insert(prefix, state);
            }
        }
        r.end()
    }

    fn job(&mut self, j: u32, image: JobImage) {
        match get(&mut self.jobs, j) {
            Ok(known) if known.image.id == image.id => known.image = image,
            _ => {
                let (tombstones, spent) = (VecDeque::new(), Spent::default());
                let job = RecoveredJob { image, tombstones, spent };
                put(&mut self.jobs, j, Some(job));
            }
        }
    }

    fn structure(&mut self, s: u32, mut image: StructureImage) -> Result<(), BadRecord> {
        if image.from > 0 {
            let known = get(&mut self.structures, s)?;
            if known.id != image.id || known.entries.len() < image.from {
                return bad(format!("the map at index {s} continues, but does not exist"));
            }
            let mut entries = std::mem::take(&mut known.entries);
            entries.truncate(image.from);
            entries.append(&mut image.entries);
            (image.entries, image.from) = (entries, 0);
        }
        if let Ok(known) = get(&mut self.structures, s)
            && known.id == image.id
        {
            image.extents = std::mem::take(&mut known.extents);
        }
        put(&mut self.structures, s, Some(image));
        Ok(())
    }

    /// Number of prefixes read, including dead ones.
    pub fn prefixes(&self) -> usize {
        self.prefixes.iter().flatten().count()
    }

    /// Makes the catalog as of `now`, with a term that was never used. Every lease begins again in full;
    /// servers are awaited until they have rejoined or were silent for `Config::server_loss_ms`.
    pub fn finish(self, config: Config, now: Time) -> Result<Catalog, BadRecord> {
        let mut catalog = Catalog::new(config);
        (catalog.now, catalog.floor) = (now, now);
        catalog.started = Some(now);
        catalog.last_prefix = self.counters.last_prefix;
        catalog.last_move = self.counters.last_move;
        catalog.block_size = self.counters.block_size;
        catalog.pool.meter.at(now, catalog.units().bytes());
        let last_server = self.counters.last_server;
        let size = (catalog.block_size, now);
        catalog.pool.recover(last_server, self.servers.into_values(), size);
        catalog.recover_drains(self.draining);
        for (name, allowed) in self.tenants {
            catalog.quotas.bound_tenant(&name, allowed);
        }
        catalog.bills.ended = self.ended;
        catalog.recover_jobs(self.jobs)?;
        catalog.recover_prefixes(self.prefixes)?;
        catalog.readers = self.readers;
        catalog.recover_structures(self.structures, self.counters.last_structure)?;
        catalog.recover_flushes(self.flushes)?;
        self.live.into_values().for_each(|image| catalog.recover_live(image));
        for (number, sweep) in self.sweeps {
            catalog.recover_sweep(number, sweep);
        }
        for (prefix, state) in self.flushed {
            catalog.set_state(prefix, state);
        }
        catalog.recover_quotas();
        catalog.pool.finish_recovery();
        catalog.restart_moves();
        catalog.await_servers();
        catalog.journal.counters = catalog.counters();
        catalog.keep_changes();
        Ok(catalog)
    }
}

impl Catalog {
    fn recover_jobs(&mut self, jobs: Vec<Option<RecoveredJob>>) -> Result<(), BadRecord> {
        let (key, now, quotas) = (self.key, self.now, &mut self.quotas);
        let jobs = jobs.into_iter().map(|job| {
            let RecoveredJob { image, tombstones, spent } = job?;
            let mut all = Tombstones::default();
            for tombstone in tombstones {
                all.push(key, self.tombstone_limit, tombstone);
            }
            let tenant = quotas.job_begins(&image.name);
            Some(Job { tenant, bill: Bill::new(spent, now), ..Job::new(image, all) })
        });
        let jobs = jobs.collect();
        self.jobs.recover(jobs, self.config.term, self.config.ids.is_plain());
        Ok(())
    }

    fn recover_prefixes(&mut self, images: Vec<Option<PrefixImage>>) -> Result<(), BadRecord> {
        let now = self.now;
        let mut order: Vec<u32> =
            (0..images.len() as u32).filter(|&n| images[n as usize].is_some()).collect();
        let edges = images.iter().flatten().map(|image| image.parents.len()).sum();
        let nodes = images.iter().map(|image| image.as_ref().map(|image| node_of(image, now)));
        self.dag.recover(Slab::restored(nodes.collect()), edges);
        // The list of a job has its newest prefix first.
        order.sort_unstable_by_key(|&n| images[n as usize].as_ref().map(|image| image.id));
        for &n in &order {
            let image = images[n as usize].as_ref().expect("the image is listed");
            let Some(job) = self.jobs.get_mut(image.job) else {
                return bad(format!("prefix {} belongs to a job that does not exist", image.id));
            };
            self.dag.enlist(n, &mut job.first_node);
            job.nodes += 1;
            if image.life == Life::Live {
                job.live_prefixes += 1;
                job.pinned += u64::from(image.pinned);
                self.live_prefixes += 1;
            }
            if image.marks.is_some() || !image.flush_to.is_empty() || image.loading {
                self.specialise_again(n, image);
            }
        }
        let mut due = Vec::new();
        for &n in &order {
            let image = images[n as usize].as_ref().expect("the image is listed");
            let there = |p: u32| self.dag.nodes.get(p).is_some_and(|p| p.job == image.job);
            if image.parents.iter().any(|&(parent, _)| !there(parent)) {
                return bad(format!("prefix {} has a parent that does not exist", image.id));
            }
            self.dag.restore_parents(n, &image.parents);
            if image.life == Life::Live {
                self.recover_bound(n, image.allowed);
            }
            if image.life == Life::Live && !image.pinned {
                due.push((now + self.lease(n), n, image.id));
            }
        }
        self.timers = Timers::recovered(due);
        let lacks_root = |n: u32| self.dag.nodes.get(n).is_none();
        if self.jobs.iter().any(|(_, job)| lacks_root(job.root)) {
            return bad("a job has no root prefix");
        }
        Ok(())
    }

    fn recover_structures(
        &mut self,
        images: Vec<Option<StructureImage>>,
        last: u64,
    ) -> Result<(), BadRecord> {
        let slots = images.iter().map(|image| image.as_ref().map(|i| structure_of(self, i)));
        let slots: Result<Vec<Option<StructureRecord>>, BadRecord> =
            slots.map(Option::transpose).collect();
        self.structures.recover(Slab::restored(slots?), last);
        for (s, image) in (0..).zip(&images) {
            let Some(image) = image else { continue };
            // The target of a merge is in the map.
            let splits = image.pending.iter().filter(|(mv, _)| mv.way.takes_anew());
            let blocks = image
                .entries
                .iter()
                .map(|entry| entry.at)
                .chain(image.granted.iter().map(|(g, epoch)| at(g.block, *epoch)))
                .chain(image.spare.iter().copied())
                .chain(image.extents.iter().copied())
                .chain(splits.map(|(mv, epoch)| at(mv.target, *epoch)));
            self.pool.staying.own(s, self.structures[s].job);
            for at in blocks {
                let units = self.first_capacity(self.structures[s].attributes_of(at.block), 1);
                if !self.pool.recover_owner(at, s, units) {
                    return bad(format!(
                        "structure {} has {}, which does not exist",
                        image.id, at.block
                    ));
                }
            }
            let node = &mut self.dag.nodes[image.prefix];
            self.structures.enlist(s, node);
            let j = self.structures[s].job;
            self.jobs[j].structures += 1;
            self.count_structure(s, image.prefix);
            let units = self.units_of(s);
            self.units_came(j, s, units);
        }
        Ok(())
    }
}

fn at(block: BlockId, epoch: honeycomb_types::Epoch) -> BlockAt {
    BlockAt { block, epoch }
}

fn node_of(image: &PrefixImage, now: Time) -> Node {
    let mut node = Node::new(image.id, image.job, &image.name, now);
    node.lease_ms = image.lease_ms;
    node.generation = image.generation;
    (node.owner_verbs, node.job_verbs) = (image.owner_verbs, image.job_verbs);
    node.life = image.life;
    node.pinned = image.pinned;
    node.data_lost = image.data_lost;
    node.committed = image.committed;
    if image.life != Life::Live {
        node.carried_below = image.deadline;
    }
    node
}

fn structure_of(catalog: &Catalog, image: &StructureImage) -> Result<StructureRecord, BadRecord> {
    let Some(node) = catalog.dag.nodes.get(image.prefix).filter(|node| node.live()) else {
        return bad(format!("structure {} belongs to a prefix that does not exist", image.id));
    };
    if image.entries.is_empty() || image.from != 0 {
        return bad(format!("structure {} has an incomplete map", image.id));
    }
    let (granted, spare): (VecDeque<_>, VecDeque<_>) = (
        image.granted.iter().map(|(granted, _)| *granted).collect(),
        image.spare.iter().map(|at| at.block).collect(),
    );
    let growth = !granted.is_empty() || !spare.is_empty();
    let sealed = image.entries.len() - 1;
    let queue = image.router.shrinks().then(|| {
        let through = image.entries[..sealed].iter().map(|entry| entry.through);
        Box::new(QueueState::recovered(image.max_items, image.max_bytes, through))
    });
    let placed =
        |entry: &super::image::EntryImage| Placed { start: entry.start, block: entry.at.block };
    Ok(StructureRecord {
        id: image.id,
        job: node.job,
        prefix: image.prefix,
        name: image.name.clone(),
        kind: image.kind,
        router: image.router,
        capabilities: image.capabilities,
        sealed: image.sealed,
        version: image.version,
        entries: image.entries.iter().map(placed).collect(),
        growth: growth.then(|| Box::new(Growth { granted, spare, private: Vec::new() })),
        queue,
        moves: Moves::recovered(
            image.pending.iter().map(|(mv, _)| *mv).collect(),
            image.past.clone(),
        ),
        extents: image.extents.iter().map(|at| at.block).collect(),
        unchanged: image.entries.len(),
        next: NONE,
        prev: NONE,
    })
}
