//! The durable part of the catalog: hard state, as records of a log.
//!
//! The catalog does no I/O. It tracks its changed items ([`Catalog::keep_changes`]) and writes their images
//! as records on request ([`Catalog::take_changes`]). The caller appends the records to its log, and releases
//! replies and effects when they are durable. A [`Recovery`] reads records of a snapshot
//! ([`Catalog::put_all`]) and of the log after it, in order, and restores the catalog. The restored state
//! equals the state before (INV-26): `put_all` of both writes the same bytes.
//!
//! Records hold states, not requests (ADR 0012): reading them needs no clock, no renewal, no free list, and
//! means the same under later code.
//!
//! Hard state: jobs, prefixes with their parents, permissions and ends, declared readers, structures with
//! maps, successor lists and moves, owners and epochs of blocks, flushes, members, tombstones. Soft state,
//! which is not logged: renewals, usage, free lists, quarantine and the items taken from queues. A recovered
//! catalog gives every lease a full period, and takes the rest from its servers' inventories (`rejoin`).
//!
//! To make new state durable: mark it where it changes, give its image a type in `image`, write it in
//! `put_all` and `take_changes`, read it in `recover`. The test of INV-26 fails for forgotten state, as soon
//! as a test changes it.

mod codec;
mod flush;
mod image;
mod recover;

pub use codec::BadRecord;
use codec::Writer;
pub(crate) use flush::{FlushImage, KeptImage, LiveImage};
pub(crate) use image::{JobImage, PrefixImage, ServerImage};
pub use recover::Recovery;

use crate::dag::Life;
use crate::reply::FlushState;
use crate::structures::{ExtentsChange, StructureRecord};
use crate::tombstones::Tombstone;
use crate::{Catalog, Spent};
use honeycomb_types::{BlockAt, BlockId, JobId, ServerId, Time};
use image::{
    Counters, EntryImage, StructureImage, Type, put_at, put_ended, put_extent_blocks, put_spent,
    put_tenant, put_tombstone, record,
};

/// Bytes of records that `put_all` emits at a time.
const CHUNK: usize = 1 << 20;

/// Indices of items that changed since they were last logged. Costs nothing when there is no log.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    on: bool,
    places: Vec<u32>,
}

impl Dirty {
    pub(crate) fn mark(&mut self, place: u32) {
        if self.on && self.places.last() != Some(&place) {
            self.places.push(place);
        }
    }

    pub(crate) fn on(&self) -> bool {
        self.on
    }

    pub(crate) fn take(&mut self) -> Vec<u32> {
        let mut places = std::mem::take(&mut self.places);
        places.sort_unstable();
        places.dedup();
        places
    }
}

/// The changes of declared readers, in order.
#[derive(Clone, Debug)]
pub(crate) enum ReaderChange {
    Declared(u32, Vec<u32>),
    Withdrawn(u32),
    Committed(u32),
    Lost(u32),
}

/// Pending records that are not identified by indices.
#[derive(Debug, Default)]
pub(crate) struct PendingRecords {
    on: bool,
    tombstones: Vec<(u32, JobId, Tombstone)>,
    counters: Counters,
}

impl PendingRecords {
    pub(crate) fn tombstone(&mut self, j: u32, job: JobId, tombstone: &Tombstone) {
        if self.on {
            self.tombstones.push((j, job, tombstone.clone()));
        }
    }
}

impl Catalog {
    /// Tracks changes from now on, until `take_changes`. To be called before the first command; a recovered
    /// catalog does it already.
    pub fn keep_changes(&mut self) {
        self.journal.on = true;
        self.dag.dirty.on = true;
        self.jobs.dirty.on = true;
        self.readers.changes.get_or_insert_default();
        self.structures.dirty.on = true;
        self.pool.dirty.on = true;
        self.flushes.unwritten.on = true;
        self.quotas.dirty.on = true;
        self.bills.dirty.on = true;
    }

    /// Appends the records of all hard state that changed since the last call; nothing when nothing has
    /// changed. They belong together: a log keeps all of them or none.
    pub fn take_changes(&mut self, out: &mut Vec<u8>) {
        let counters = self.counters();
        if counters != self.journal.counters {
            self.journal.counters = counters;
            record(out, Type::Counters, |w| counters.put(w));
        }
        for (name, allowed) in self.quotas.changed_tenants() {
            record(out, Type::Tenant, |w| put_tenant(w, &name, allowed));
        }
        for j in self.jobs.dirty.take() {
            match self.jobs.get(j) {
                Some(_) => self.put_job(out, j),
                None => record(out, Type::JobGone, |w| w.u32(j)),
            }
        }
        for bill in self.bills.newly_ended() {
            record(out, Type::Ended, |w| put_ended(w, &bill));
        }
        for j in self.bills.dirty.take() {
            self.put_bill(out, j);
        }
        let places = self.dag.dirty.take();
        for &n in &places {
            match self.dag.nodes.get(n) {
                Some(_) => self.put_prefix(out, n),
                None => record(out, Type::PrefixGone, |w| w.u32(n)),
            }
        }
        for (child, parent) in std::mem::take(&mut self.dag.used) {
            if places.binary_search(&child).is_err() {
                record(out, Type::Edge, |w| {
                    w.u32(child);
                    w.u32(parent);
                });
            }
        }
        self.put_reader_changes(out);
        self.put_structure_changes(out);
        for (j, job, tombstone) in std::mem::take(&mut self.journal.tombstones) {
            if self.jobs.get(j).is_some_and(|found| found.id == job) {
                record(out, Type::Tombstone, |w| put_tombstone(w, j, job, &tombstone));
            }
        }
        self.put_flush_changes(out);
        for id in self.pool.dirty.take() {
            match self.server_image(ServerId(id)) {
                Some(image) => {
                    record(out, Type::Server, |w| image.put(w));
                    self.put_drain(out, ServerId(id));
                }
                None => record(out, Type::ServerGone, |w| w.u32(id)),
            }
        }
    }

    /// Writes the whole hard state: records from which a `Recovery` restores the same catalog. Emits them in
    /// pieces, each of whole records.
    pub fn put_all(&self, emit: &mut dyn FnMut(&[u8])) {
        let mut out = Vec::with_capacity(CHUNK + CHUNK / 8);
        let mut full = |out: &mut Vec<u8>, least: usize| {
            if out.len() >= least {
                emit(out);
                out.clear();
            }
        };
        record(&mut out, Type::Counters, |w| self.counters().put(w));
        for (id, _) in self.pool.servers() {
            let image = self.server_image(id).expect("the server is listed");
            record(&mut out, Type::Server, |w| image.put(w));
            self.put_drain(&mut out, id);
        }
        for (name, allowed) in self.quotas.bounded_tenants() {
            record(&mut out, Type::Tenant, |w| put_tenant(w, name, allowed));
            full(&mut out, CHUNK);
        }
        for bill in &self.bills.ended {
            record(&mut out, Type::Ended, |w| put_ended(w, bill));
            full(&mut out, CHUNK);
        }
        for (j, job) in self.jobs.iter() {
            self.put_job(&mut out, j);
            self.put_bill(&mut out, j);
            for tombstone in job.tombstones.iter() {
                record(&mut out, Type::Tombstone, |w| put_tombstone(w, j, job.id, tombstone));
                full(&mut out, CHUNK);
            }
        }
        for (n, _) in self.dag.nodes.iter() {
            self.put_prefix(&mut out, n);
            full(&mut out, CHUNK);
        }
        for (prefix, readers, lost) in self.readers.all() {
            record(&mut out, Type::Declared, |w| put_declared(w, prefix, &readers));
            record(&mut out, Type::LostReaders, |w| {
                w.u32(prefix);
                w.u32(lost);
            });
            full(&mut out, CHUNK);
        }
        for (s, _) in self.structures.iter() {
            let image = self.structure_image(s, 0);
            record(&mut out, Type::Structure, |w| {
                w.u32(s);
                image.put(w);
            });
            if !self.structures[s].extents.is_empty() {
                self.put_extent_blocks(&mut out, s);
            }
            full(&mut out, CHUNK);
        }
        for number in self.flush_numbers() {
            let image = self.flush_image(number).expect("the flush is listed");
            record(&mut out, Type::Flush, |w| image.put(w));
            full(&mut out, CHUNK);
        }
        for number in self.live_numbers() {
            let image = self.live_image(number).expect("the copy is listed");
            record(&mut out, Type::Live, |w| image.put(w));
            full(&mut out, CHUNK);
        }
        for number in self.sweep_numbers() {
            let sweep = self.sweep_of(number).expect("the sweep is listed");
            record(&mut out, Type::Sweep, |w| flush::put_sweep(w, number, sweep));
            full(&mut out, CHUNK);
        }
        full(&mut out, 1);
    }

    fn counters(&self) -> Counters {
        Counters {
            last_prefix: self.last_prefix,
            last_structure: self.structures.last(),
            last_move: self.last_move,
            last_server: self.pool.last_server(),
            block_size: self.block_size,
        }
    }

    fn put_job(&self, out: &mut Vec<u8>, j: u32) {
        let job = &self.jobs[j];
        let image = JobImage {
            id: job.id,
            name: job.name.clone(),
            root: job.root,
            lease_ms: job.lease_ms,
            shortest_ms: job.shortest_ms,
            allowed: job.allowed(),
            hints: job.hints,
            registered: job.registered,
            opened: job.opened,
            holder: job.holder.clone(),
            lingers_until: job.lingers_until,
        };
        record(out, Type::Job, |w| {
            w.u32(j);
            image.put(w);
        });
    }

    /// The record of a job's bill; nothing for a job that has used nothing, or ended.
    fn put_bill(&self, out: &mut Vec<u8>, j: u32) {
        if let Some(job) = self.jobs.get(j).filter(|job| job.bill.written != Spent::default()) {
            record(out, Type::Bill, |w| {
                w.u32(j);
                w.u64(job.id.0);
                put_spent(w, &job.bill.written);
            });
        }
    }

    fn put_prefix(&self, out: &mut Vec<u8>, n: u32) {
        let node = &self.dag.nodes[n];
        let edges = self.dag.parent_edges(n).map(|e| &self.dag.edges[e]);
        let special = self.dag.special.get(&n);
        let image = PrefixImage {
            id: node.id,
            job: node.job,
            name: node.name.clone(),
            lease_ms: node.lease_ms,
            generation: node.generation,
            owner_verbs: node.owner_verbs,
            job_verbs: node.job_verbs,
            life: node.life,
            pinned: node.pinned,
            data_lost: node.data_lost,
            committed: node.committed,
            // The renewals that descendants granted to a live prefix are soft state.
            deadline: if node.life == Life::Live { Time::ZERO } else { node.carried_below },
            marks: special.map(|special| special.marks),
            flush_to: special.map_or_else(Box::default, |special| special.flush_to.clone()),
            loading: special.is_some_and(|special| special.loading),
            persist: special.is_some_and(|special| special.persist),
            journal: special.map_or_else(Box::default, |special| special.journal.clone()),
            allowed: self.quotas.of_prefix(node.id).0,
            parents: edges.map(|edge| (edge.parent, edge.deduced)).collect(),
        };
        record(out, Type::Prefix, |w| {
            w.u32(n);
            image.put(w);
        });
        if let Some(special) = special
            && matches!(special.flush, FlushState::Done | FlushState::Lost(_))
        {
            record(out, Type::Flushed, |w| flush::put_outcome(w, node.id, &special.flush));
        }
    }

    fn put_drain(&self, out: &mut Vec<u8>, id: ServerId) {
        if self.is_drained_for_good(id) {
            record(out, Type::Draining, |w| w.u32(id.0));
        }
    }

    fn put_flush_changes(&mut self, out: &mut Vec<u8>) {
        let (changed, parts) = self.flushes.unwritten.take();
        for number in changed {
            match self.flush_image(number) {
                Some(image) => record(out, Type::Flush, |w| image.put(w)),
                None => record(out, Type::FlushGone, |w| w.u64(number)),
            }
        }
        for number in self.flushes.unwritten.take_live() {
            match self.live_image(number) {
                Some(image) => record(out, Type::Live, |w| image.put(w)),
                None => record(out, Type::LiveGone, |w| w.u64(number)),
            }
        }
        for number in self.flushes.unwritten.take_swept() {
            match self.sweep_of(number) {
                Some(sweep) => {
                    record(out, Type::Sweep, |w| flush::put_sweep(w, number, sweep));
                }
                None => record(out, Type::SweepGone, |w| w.u64(number)),
            }
        }
        for (number, part, objects) in parts {
            record(out, Type::FlushPart, |w| {
                w.u64(number);
                w.u32(part as u32);
                flush::put_objects(w, &objects);
            });
        }
    }

    fn put_reader_changes(&mut self, out: &mut Vec<u8>) {
        let Some(changes) = &mut self.readers.changes else { return };
        for change in std::mem::take(changes) {
            match change {
                ReaderChange::Declared(prefix, readers) => {
                    record(out, Type::Declared, |w| put_declared(w, prefix, &readers));
                }
                ReaderChange::Withdrawn(n) => record(out, Type::Withdrawn, |w| w.u32(n)),
                ReaderChange::Committed(n) => record(out, Type::Committed, |w| w.u32(n)),
                ReaderChange::Lost(n) => record(out, Type::Lost, |w| w.u32(n)),
            }
        }
    }

    fn put_structure_changes(&mut self, out: &mut Vec<u8>) {
        for (s, block) in std::mem::take(&mut self.structures.retired) {
            record(out, Type::Retired, |w| {
                w.u32(s);
                w.u64(block.0);
            });
        }
        for s in self.structures.dirty.take() {
            let Some(structure) = self.structures.get(s) else {
                record(out, Type::StructureGone, |w| w.u32(s));
                continue;
            };
            let image = self.structure_image(s, structure.unchanged);
            record(out, Type::Structure, |w| {
                w.u32(s);
                image.put(w);
            });
            self.structures[s].unchanged = self.structures[s].entries.len();
        }
        for ExtentsChange { place, structure, at, added } in
            std::mem::take(&mut self.structures.extents_changed)
        {
            // Its index may have been reused.
            if self.structures.get(place).is_none_or(|found| found.id != structure) {
                continue;
            }
            let kind = if added { Type::ExtentAdded } else { Type::ExtentGone };
            record(out, kind, |w| {
                w.u32(place);
                put_at(w, at);
            });
        }
    }

    fn put_extent_blocks(&self, out: &mut Vec<u8>, s: u32) {
        let blocks = self.structures[s].extents.iter().map(|&block| self.pool.at(block));
        let blocks: Vec<BlockAt> = blocks.collect();
        record(out, Type::ExtentBlocks, |w| put_extent_blocks(w, s, &blocks));
    }

    fn structure_image(&self, s: u32, from: usize) -> StructureImage {
        let structure = &self.structures[s];
        let at = |block: BlockId| self.pool.at(block);
        let growth = structure.growth.as_deref();
        let granted = growth.map(|growth| &growth.granted).into_iter().flatten();
        let spare = growth.map(|growth| &growth.spare).into_iter().flatten();
        StructureImage {
            id: structure.id,
            prefix: structure.prefix,
            name: structure.name.clone(),
            kind: structure.kind,
            router: structure.router,
            capabilities: structure.capabilities,
            sealed: structure.sealed,
            version: structure.version,
            max_items: structure.max_items(),
            max_bytes: structure.max_bytes(),
            granted: granted.map(|granted| (*granted, at(granted.block).epoch)).collect(),
            spare: spare.map(|&block| at(block)).collect(),
            pending: structure.pending().iter().map(|mv| (*mv, at(mv.target).epoch)).collect(),
            past: structure.past().to_vec(),
            from,
            entries: (from..structure.entries.len())
                .map(|i| entry_image(structure, i, at(structure.entries[i].block)))
                .collect(),
            extents: Vec::new(),
        }
    }

    fn server_image(&self, id: ServerId) -> Option<ServerImage> {
        let server = self.pool.server(id)?;
        Some(ServerImage {
            id,
            address: (&*server.address).into(),
            incarnation: server.incarnation,
            shards: server.shards(),
            blocks_per_shard: server.blocks_per_shard(),
            tiers: server.tiers.to_vec(),
        })
    }
}

fn put_declared(w: &mut Writer<'_>, prefix: u32, readers: &[u32]) {
    w.u32(prefix);
    w.u32(readers.len() as u32);
    readers.iter().for_each(|&reader| w.u32(reader));
}

fn entry_image(structure: &StructureRecord, i: usize, at: BlockAt) -> EntryImage {
    let tail = i + 1 == structure.entries.len();
    let queue = structure.queue.as_ref().filter(|_| !tail);
    let through = queue.map_or((0, 0), |queue| queue.through(i));
    EntryImage { start: structure.entries[i].start, at, through }
}
