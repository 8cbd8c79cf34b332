//! Flushes of a prefix whose lease expires, or whose job ends before it: one part for each block, then a
//! manifest, and only then are the blocks freed. (`live` flushes prefixes that stay live.)
//!
//! Until the manifest is written the blocks are quarantined: they can be neither reached nor allocated. A
//! failed write is retried, with growing pauses, for as long as it takes; only the loss of a server that had
//! not written its part ends a flush without a manifest. Two flushes of one directory commit in the order in
//! which they began, so that the later one stands. A flush is durable state (`recovery`): a restart of the
//! controller interrupts it and does not end it.
//!
//! The attributes `flush_to` and marks are rare: they are stored beside the DAG (`Special`), for as long as
//! the node exists.

mod barrier;
mod below;
mod live;
mod recovery;
mod requests;
mod stop;
mod sweep;

use crate::durable::PrefixImage;
use crate::kinds::Kinds;
use crate::reply::{FlushProgress, FlushState, FlushedPart, FlushedStructure};
use crate::slab::chain;
use crate::structures::StructureRecord;
use crate::tombstones::{Cause, Gone, Tombstone};
use crate::{Catalog, CatalogError, Effect, Loss, Reply, Written};
use barrier::Barrier;
use hashbrown::{HashMap, HashSet};
use honeycomb_types::limits::{FLUSH_RETRY_FIRST, FLUSH_RETRY_MAX, FLUSHES_KEPT};
use honeycomb_types::{
    BlockAt, BlockId, Bug, Epoch, FLUSH_EXTENTS, FLUSH_PART, JobId, Kind, Marks, PrefixId, Router,
    ServerId, StructureId, Time, flush_directory,
};
use live::Ended;
pub(crate) use live::Live;
use recovery::Unwritten;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
pub(crate) use stop::{JobEnd, Stop};
pub(crate) use sweep::Sweep;

/// Attributes that only some prefixes have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Special {
    pub(crate) marks: Marks,
    pub(crate) flush_to: Box<str>,
    pub(crate) flush: FlushState,
    /// Whether the prefix is being loaded from a flush, and is incomplete.
    pub(crate) loading: bool,
    /// Whether every end of the prefix except its removal flushes it first.
    pub(crate) persist: bool,
    /// The tag of its journal, when changes are acknowledged as flushed; otherwise empty.
    pub(crate) journal: Box<str>,
}

/// A block to flush, and its progress.
#[derive(Debug)]
struct BlockFlush {
    at: BlockAt,
    /// The hashes of a kv that it owns.
    range: (u64, u64),
    object: Arc<str>,
    /// The indices of its structure and of its part there.
    place: (usize, usize),
    state: PartState,
    attempts: u32,
}

/// The progress of a part. A part that turns out to be empty keeps its index, because retries and the log
/// identify parts by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PartState {
    Waits = 0,
    /// The part's object is written.
    Written = 1,
    /// The part's block was never opened, so the part has no object.
    Absent = 2,
    /// The part's object is written, and the flush does not own the block, because the prefix stayed live.
    Copied = 3,
}

impl PartState {
    pub(crate) fn from_code(code: u8) -> Option<PartState> {
        let all = [PartState::Waits, PartState::Written, PartState::Absent, PartState::Copied];
        all.into_iter().find(|state| *state as u8 == code)
    }
}

impl BlockFlush {
    fn effect(&self) -> Effect {
        let (at, (start, end), object) = (self.at, self.range, self.object.clone());
        Effect::FlushBlock { server: at.block.server(), at, start, end, object }
    }
}

impl FlushedStructure {
    /// The manifest entry of a structure without its parts.
    fn without_parts(structure: &StructureRecord, kinds: &Kinds) -> FlushedStructure {
        FlushedStructure {
            name: structure.name.clone(),
            kind: structure.kind,
            kind_name: kinds.name(structure.kind),
            flushes: structure.attributes().flushes,
            sealed: structure.sealed,
            max_items: structure.max_items(),
            max_bytes: structure.max_bytes(),
            parts: Vec::new(),
        }
    }

    /// Whether the manifest lists it, and the name of its kind is not known yet.
    fn lacks_kind_name(&self) -> bool {
        let custom = matches!(self.kind, Kind::Custom(_));
        custom && self.flushes && self.kind_name.is_empty()
    }
}

impl Flush {
    /// Adds the names of kinds that were not known yet. Returns whether there were any.
    fn name_kinds(&mut self, kinds: &Kinds) -> bool {
        let mut named = false;
        for structure in self.structures.iter_mut().filter(|s| s.lacks_kind_name()) {
            structure.kind_name = kinds.name(structure.kind);
            named |= !structure.kind_name.is_empty();
        }
        named
    }

    /// Its structures as listed in the manifest, with the existing parts.
    fn told(&self) -> Vec<FlushedStructure> {
        let mut structures = self.structures.clone();
        let mut states = self.parts.iter().map(|part| part.state);
        for structure in &mut structures {
            structure.parts.retain(|_| states.next() != Some(PartState::Absent));
        }
        structures.retain(|structure| structure.flushes);
        structures
    }

    fn progress(&self) -> FlushProgress {
        let state = match &self.error {
            Some(why) => FlushState::Failing(why.clone()),
            None => FlushState::Writing,
        };
        let parts = self.structures.iter().flat_map(|s| &s.parts);
        let objects = parts.flat_map(|part| &part.objects);
        let bytes = objects.map(|object| object.bytes).sum();
        let parts = self.parts.len() as u32;
        FlushProgress { state, parts, done: parts - self.left as u32, bytes }
    }
}

/// One prefix that is being flushed.
#[derive(Debug)]
struct Flush {
    prefix: PrefixId,
    directory: Arc<str>,
    job_name: Box<str>,
    address: Arc<str>,
    /// For a subtree: paths of the descendants that have their own flushes.
    below: Arc<[Box<str>]>,
    /// The structures that it flushes.
    ids: Vec<StructureId>,
    structures: Vec<FlushedStructure>,
    parts: Vec<BlockFlush>,
    /// Number of parts still to be written.
    left: usize,
    /// Whether the flush was requested and the prefix stays live.
    live: bool,
    /// The topmost flush of the same barrier; 0 for none.
    group: u64,
    /// The job whose end began the flush, if one did.
    ended: Option<JobId>,
    /// The server that is writing the manifest, if any.
    committing: Option<ServerId>,
    attempts: u32,
    error: Option<Arc<str>>,
}

/// An action to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Again {
    Part(usize),
    /// A part of a flush of a live prefix.
    Copy,
    Commit,
    Sweep,
}

/// All flushes under way.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    all: BTreeMap<u64, Flush>,
    /// Flushes of live prefixes, while their blocks are copied.
    pub(crate) live: BTreeMap<u64, Live>,
    /// Barriers, which flush several prefixes as of one moment, by the number of the topmost flush.
    barriers: BTreeMap<u64, Barrier>,
    /// Outcomes of requested flushes.
    ended: VecDeque<Ended>,
    /// The flushes of each directory, in the order in which they began.
    queues: HashMap<Arc<str>, VecDeque<u64>>,
    blocks: HashMap<BlockAt, (u64, usize)>,
    /// Retained blocks that may be in memory, in the order in which they are considered for demotion.
    high: VecDeque<BlockAt>,
    retries: BinaryHeap<Reverse<(Time, u64, Again)>>,
    /// Servers whose last write failed.
    failed: HashSet<ServerId>,
    /// Objects of cancelled flushes, by number of the flush.
    sweeps: BTreeMap<u64, Sweep>,
    /// Directories of live prefixes, which must differ.
    claimed: HashSet<Box<str>>,
    /// The last directories whose flush was lost, with the reason.
    lost_at: VecDeque<(Arc<str>, Arc<str>)>,
    /// The last ended jobs that lost persistent data, with the reason.
    lost_of: VecDeque<(JobId, Arc<str>)>,
    last: u64,
    /// Names this run of the controller shard: numbers of different runs are not comparable.
    pub(crate) lineage: Arc<str>,
    pub(crate) unwritten: Unwritten,
    pub(crate) done: u64,
    pub(crate) lost: u64,
}

impl Flushes {
    pub(crate) fn next(&self) -> Option<Time> {
        self.retries.peek().map(|Reverse((at, ..))| *at)
    }

    /// Whether a flush to this directory is under way.
    pub(crate) fn is_written(&self, directory: &str) -> bool {
        self.queues.contains_key(directory)
    }

    /// Whether objects of this directory are being deleted for the first time.
    pub(crate) fn is_swept(&self, directory: &str) -> bool {
        self.sweeps.values().any(|sweep| *sweep.directory == *directory && sweep.passes == 0)
    }

    pub(crate) fn under_way(&self) -> u64 {
        (self.all.len() + self.live.len()) as u64
    }

    /// Flushes that fail and are retried: number, directory and reason.
    fn failures(&self) -> impl Iterator<Item = (u64, &Arc<str>, &Arc<str>)> {
        let written = self.all.iter().map(|(number, f)| (*number, &f.directory, &f.error));
        let copied = self.live.iter().map(|(number, l)| (*number, &l.directory, &l.error));
        let all = written.chain(copied);
        all.filter_map(|(number, directory, why)| Some((number, directory, why.as_ref()?)))
    }

    pub(crate) fn failing(&self) -> u64 {
        self.failures().count() as u64
    }

    /// The reason of the failing flush that began last.
    pub(crate) fn error(&self) -> Box<str> {
        let last = self.failures().max_by_key(|(number, ..)| *number);
        last.map(|(_, directory, why)| format!("{directory}: {why}").into()).unwrap_or_default()
    }

    pub(crate) fn bytes(&self) -> usize {
        let flushes = self.all.values().map(|flush| {
            let parts =
                flush.parts.capacity() * (size_of::<BlockFlush>() + size_of::<FlushedPart>());
            size_of::<Flush>() + parts + flush.directory.len() + flush.address.len()
        });
        let live: usize = self.live.values().map(Live::bytes).sum();
        let high = self.high.capacity() * size_of::<BlockAt>();
        let lost = self.lost_at.capacity() * size_of::<(Arc<str>, Arc<str>)>()
            + self.lost_of.capacity() * size_of::<(JobId, Arc<str>)>();
        let tables = self.blocks.allocation_size() + self.claimed.allocation_size() + high + lost;
        flushes.sum::<usize>()
            + live
            + tables
            + self.claimed.iter().map(|path| path.len()).sum::<usize>()
    }
}

fn pause(attempts: u32) -> std::time::Duration {
    FLUSH_RETRY_FIRST.saturating_mul(1 << attempts.min(16)).min(FLUSH_RETRY_MAX)
}

impl Catalog {
    /// Names this run of the controller shard, so that a flush of another run with the same number is not
    /// mistaken for one of its own.
    pub fn begin_lineage(&mut self, name: &str) {
        self.flushes.lineage = name.into();
    }

    /// When blocks of the prefix grow and merge.
    pub(crate) fn marks(&self, n: u32) -> Marks {
        self.dag.special.get(&n).map_or(self.config.marks, |special| special.marks)
    }

    /// Returns the directory of a `flush_to`, or refuses one that is not possible.
    pub(crate) fn checked_flush(&self, j: u32, path: &str) -> Result<Box<str>, CatalogError> {
        let directory = flush_directory(&self.jobs[j].name, path)?;
        if self.pool.servers().any(|(_, server)| !server.flush) || self.pool.is_empty() {
            return Err(match self.recovering() {
                true => CatalogError::Recovering,
                false => CatalogError::FlushUnavailable { path: path.into() },
            });
        }
        if self.flushes.claimed.contains(&*directory) {
            return Err(CatalogError::FlushPathTaken { path: path.into() });
        }
        Ok(directory.into())
    }

    /// Stores the rare attributes of a new prefix.
    pub(crate) fn specialise(
        &mut self,
        n: u32,
        marks: Marks,
        flush: Option<(&str, Box<str>)>,
        loading: bool,
        persist: bool,
    ) {
        if marks == self.config.marks && flush.is_none() && !loading {
            return;
        }
        let flush_to = flush.as_ref().map_or("", |(path, _)| *path).into();
        self.flushes.claimed.extend(flush.map(|(_, directory)| directory));
        let special = Special {
            marks,
            flush_to,
            flush: FlushState::None,
            loading,
            persist,
            journal: Box::default(),
        };
        self.dag.special.insert(n, Box::new(special));
    }

    /// Stores the rare attributes of a recovered prefix.
    pub(crate) fn specialise_again(&mut self, n: u32, image: &PrefixImage) {
        let marks = image.marks.unwrap_or(self.config.marks);
        let PrefixImage { flush_to, loading, persist, journal, .. } = image.clone();
        let flush = FlushState::None;
        let special = Special { marks, flush_to, flush, loading, persist, journal };
        self.dag.special.insert(n, Box::new(special));
        if let Some(directory) = self.directory_of(n).filter(|_| self.dag.nodes[n].live()) {
            self.flushes.claimed.insert(directory.into());
        }
    }

    /// A prefix ends: its directory is free for another, and no block of it is demoted any more.
    pub(crate) fn unclaim(&mut self, n: u32) {
        if let Some(directory) = self.directory_of(n) {
            self.flushes.claimed.remove(&*directory);
        }
        self.pressure.forget(n);
        self.sharing.forget(n);
    }

    pub(crate) fn directory_of(&self, n: u32) -> Option<String> {
        let path = &self.dag.special.get(&n)?.flush_to;
        let job = &self.jobs[self.dag.nodes[n].job].name;
        (!path.is_empty()).then(|| flush_directory(job, path).expect("checked at its creation"))
    }

    pub(crate) fn number_of_flush(&mut self) -> u64 {
        self.flushes.last += 1;
        Epoch::new(self.config.term, self.flushes.last).0
    }

    /// Begins the flush of a prefix that ends, if it has to be flushed: its structures end, and their blocks
    /// are retained.
    pub(crate) fn begin_flush(
        &mut self,
        n: u32,
        cause: &Cause,
        address: &Arc<str>,
        effects: &mut Vec<Effect>,
    ) {
        let persists = self.dag.special.get(&n).is_some_and(|special| special.persist);
        let flushed = match cause {
            Cause::Expired { .. } => true,
            Cause::Read { .. } => persists,
            // A removal by request discards the data.
            Cause::Removed | Cause::Lost { .. } => false,
        };
        if flushed {
            self.flush_ended(n, Some(cause), address, effects);
        }
    }

    /// A job ends: flushes the prefixes that outlive such an end, and no others.
    pub(crate) fn persist_job(&mut self, j: u32, how: JobEnd, effects: &mut Vec<Effect>) {
        let nodes = chain(self.jobs[j].first_node, |n| self.dag.nodes[n].job_next);
        let outlives = |special: &Special| match how {
            JobEnd::Closed => special.persist,
            JobEnd::Stopped if Bug::StopForgetsFlushTo.active() => special.persist,
            JobEnd::Stopped => !special.flush_to.is_empty(),
            JobEnd::Discarded => Bug::DiscardFlushes.active() && special.persist,
        };
        let special = |n: &u32| self.dag.special.get(n).is_some_and(|special| outlives(special));
        let lives = |n: &u32| self.dag.nodes[*n].live();
        let persist: Vec<u32> = nodes.filter(special).filter(lives).collect();
        for n in persist {
            let address = self.dag.path_of(n).into();
            self.flush_ended(n, None, &address, effects);
        }
    }

    /// Flushes the content of a prefix that has ended. An incompletely loaded prefix holds less than its
    /// source, and must not replace it. Without a cause there is no tombstone.
    fn flush_ended(
        &mut self,
        n: u32,
        cause: Option<&Cause>,
        address: &Arc<str>,
        effects: &mut Vec<Effect>,
    ) {
        if self.need_loaded(n).is_err() {
            return;
        }
        let Some(directory) = self.directory_of(n) else { return };
        if !self.may_cover_journal(n) {
            return;
        }
        let number = self.number_of_flush();
        let mut flush = Flush {
            prefix: self.dag.nodes[n].id,
            directory: directory.into(),
            job_name: self.jobs[self.dag.nodes[n].job].name.clone(),
            address: address.clone(),
            below: Arc::default(),
            ids: Vec::new(),
            structures: Vec::new(),
            parts: Vec::new(),
            left: 0,
            live: false,
            group: 0,
            ended: cause.is_none().then_some(self.jobs[self.dag.nodes[n].job].id),
            committing: None,
            attempts: 0,
            error: None,
        };
        let mut structures: Vec<u32> = self.structures_of(n).collect();
        // The list has the newest first.
        structures.reverse();
        for s in structures {
            if let Some(how) = self.unflushable(s) {
                self.end_unflushable(s, how, address, effects);
                continue;
            }
            self.keep_structure(s, number, &mut flush, effects);
            match cause {
                Some(cause) => self.bury(s, cause.clone(), address),
                None => self.unlist_structure(s),
            }
        }
        flush.left = flush.parts.len();
        for (i, part) in flush.parts.iter().enumerate() {
            self.flushes.blocks.insert(part.at, (number, i));
            self.flushes.high.push_back(part.at);
            effects.push(part.effect());
        }
        self.flushes.queues.entry(flush.directory.clone()).or_default().push_back(number);
        self.flushes.all.insert(number, flush);
        self.flushes.unwritten.changed(number);
        self.show_flush(number);
        self.commit_flush(number, effects);
    }

    /// Takes a structure's blocks from it and lists them as parts. The target of an uncommitted move and the
    /// blocks of an uncommitted append own nothing yet, and are not parts.
    fn keep_structure(
        &mut self,
        s: u32,
        number: u64,
        flush: &mut Flush,
        effects: &mut Vec<Effect>,
    ) {
        self.end_chains(s, |_| true, effects);
        let structure = &self.structures[s];
        let j = structure.job;
        let ranges_of_hashes = structure.router == Router::HashRange;
        let targets: Vec<BlockId> =
            structure.moves.iter().flat_map(|moves| moves.new_targets()).collect();
        let placed = structure.entries.iter().enumerate();
        let ranges: HashMap<_, _> =
            placed.map(|(i, e)| (e.block, (e.start, structure.end(i)))).collect();
        let mut flushed = FlushedStructure::without_parts(structure, &self.kinds);
        let own = structure.in_order().map(|block| (block, false));
        let extents = structure.extents.iter().map(|&block| (block, true));
        let blocks: Vec<(BlockId, bool)> = own.chain(extents).collect();
        for target in targets {
            self.give_back(j, s, target, effects);
        }
        for (block, extents) in blocks {
            let placed = ranges.get(&block).copied();
            let range = placed.filter(|_| ranges_of_hashes).unwrap_or((0, u64::MAX));
            let at = self.pool.at(block);
            let server =
                self.pool.server_mut(block.server()).expect("the server is live").incarnation;
            let name = format!("{number:016x}-{server:016x}-{:05}", flush.parts.len());
            let name = match extents {
                true => format!("{name}-{:016x}-{:016x}{FLUSH_EXTENTS}", at.block.0, at.epoch.0),
                false => format!("{name}{FLUSH_PART}"),
            };
            let object = format!("{}/{name}", flush.directory).into();
            let place = (flush.structures.len(), flushed.parts.len());
            let state = PartState::Waits;
            flush.parts.push(BlockFlush { at, range, object, place, state, attempts: 0 });
            // Blocks that are not in the map yet follow the last one that is.
            let start = placed.map_or(u64::MAX, |(start, _)| start);
            flushed.parts.push(FlushedPart { name: name.into(), start, objects: Vec::new() });
            let units = self.pool.units(block).into();
            let bytes = self.pool.keep(block, s);
            self.units_went(j, s, units);
            self.jobs[j].bytes_used -= bytes;
        }
        flush.ids.push(self.structures[s].id);
        flush.structures.push(flushed);
    }

    /// Removes a structure whose blocks were taken, and records why it ended.
    fn bury(&mut self, s: u32, cause: Cause, path: &Arc<str>) {
        let structure = &self.structures[s];
        let (j, gone) = (structure.job, Gone::Structure(structure.id));
        let (prefix, name) = (self.dag.nodes[structure.prefix].id, structure.name.clone());
        self.unlist_structure(s);
        let (path, at) = (path.clone(), self.now);
        self.remember(j, Tombstone { gone, prefix, path, name, cause, at });
    }

    pub(crate) fn block_flushed(
        &mut self,
        server: ServerId,
        at: BlockAt,
        outcome: Result<&[Written], &str>,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        self.heard_from(server);
        let known = self.flushes.blocks.get(&at).copied();
        let Some((number, i)) = known.filter(|_| at.block.server() == server) else {
            return Ok(Reply::Done);
        };
        let never = outcome.is_err() && self.is_unflushable(number, i);
        let flush = self.flushes.all.get_mut(&number).expect("a retained block has a flush");
        let part = &mut flush.parts[i];
        if part.state != PartState::Waits {
            return Ok(Reply::Done);
        }
        assert!(flush.left > 0, "INV-09: part {i} of flush {number} waits, and no part is counted");
        match outcome {
            // A log of an older version may contain such a structure: the flush ends without it.
            Err(why) if never => {
                part.state = PartState::Absent;
                flush.left -= 1;
                flush.error = Some(why.into());
                self.flushes.lost += 1;
                self.flushes.unwritten.changed(number);
            }
            Ok(objects) => {
                part.state = PartState::Written;
                flush.left -= 1;
                let (structure, place) = part.place;
                flush.structures[structure].parts[place].objects = objects.into();
                self.flushes.unwritten.wrote(number, i, objects);
                let flush = self.flushes.all.get_mut(&number).expect("looked up just now");
                if flush.left == 0 {
                    flush.error = None;
                }
            }
            Err(why) => {
                let again = self.now + pause(part.attempts);
                part.attempts += 1;
                flush.error = Some(why.into());
                self.flushes.retries.push(Reverse((again, number, Again::Part(i))));
                self.flushes.failed.insert(server);
            }
        }
        if outcome.is_ok() {
            self.hasten(server);
        }
        self.show_flush(number);
        self.commit_flush(number, effects);
        Ok(Reply::Done)
    }

    /// A server can write again: retries its failed parts, and manifests, now. After a long outage a backlog
    /// would otherwise wait for the end of the longest pause.
    fn hasten(&mut self, server: ServerId) {
        if !self.flushes.failed.remove(&server) {
            return;
        }
        let now = self.now;
        let Flushes { all, retries, .. } = &mut self.flushes;
        let waiting = std::mem::take(retries).into_iter().map(|Reverse((at, number, again))| {
            let theirs = match again {
                Again::Part(i) => {
                    all.get(&number).is_some_and(|f| f.parts[i].at.block.server() == server)
                }
                Again::Commit | Again::Copy => true,
                Again::Sweep => false,
            };
            Reverse((if theirs { at.min(now) } else { at }, number, again))
        });
        *retries = waiting.collect();
    }

    /// Requests the manifest, when all parts are written and it is the turn of this flush.
    fn commit_flush(&mut self, number: u64, effects: &mut Vec<Effect>) {
        let flush = &self.flushes.all[&number];
        let first = self.flushes.queues[&flush.directory].front() == Some(&number);
        // Its manifest names those of its descendants, which must be complete by then.
        let others = |(other, flush): (&u64, &Flush)| *other != number && flush.group == number;
        if self.flushes.all.range(number..).any(others) {
            return;
        }
        if flush.left > 0 || flush.committing.is_some() || !first || self.recovering() {
            return;
        }
        // The server that wrote the last part has access to the directory; another server has access if the
        // directory is shared.
        let there =
            |part: &&BlockFlush| matches!(part.state, PartState::Written | PartState::Copied);
        let written = flush.parts.iter().rev().filter(there);
        let wrote = written.map(|part| part.at.block.server());
        let able = |id: &ServerId| self.pool.server(*id).is_some_and(|server| server.flush);
        let any = self.pool.servers().map(|(id, _)| id);
        let server = wrote.chain(any).find(able);
        let unnamed = flush.structures.iter().find(|s| s.lacks_kind_name());
        let ready = match (server, unnamed) {
            (Some(server), None) => Ok(server),
            (None, _) => Err("no memory server with a flush_root is there".into()),
            (_, Some(s)) => {
                let (kind, name) = (s.kind, crate::error::Of(&flush.address, &s.name));
                let text = "no memory server has announced the name of";
                Err(format!("{text} the {kind}, which is {name}"))
            }
        };
        let server = match ready {
            Ok(server) => server,
            Err(why) => return self.commit_later(number, why),
        };
        effects.push(Effect::CommitFlush {
            server,
            lineage: self.flushes.lineage.clone(),
            number,
            directory: flush.directory.clone(),
            job_name: flush.job_name.clone(),
            address: flush.address.clone(),
            structures: flush.told(),
            below: flush.below.clone(),
        });
        self.flushes.all.get_mut(&number).expect("looked up just now").committing = Some(server);
    }

    /// Retries the manifest after a pause, and reports the reason.
    fn commit_later(&mut self, number: u64, why: String) {
        let flush = self.flushes.all.get_mut(&number).expect("the flush is under way");
        let again = self.now + pause(flush.attempts);
        flush.attempts += 1;
        flush.error = Some(why.into());
        self.flushes.retries.push(Reverse((again, number, Again::Commit)));
        self.show_flush(number);
    }

    /// A server has announced kinds: adds their names to the flushes that lack them. A controller that was
    /// restarted does not know a kind before that.
    pub(crate) fn name_flushed_kinds(&mut self) {
        for (number, flush) in &mut self.flushes.all {
            if flush.name_kinds(&self.kinds) {
                self.flushes.unwritten.changed(*number);
            }
        }
    }

    pub(crate) fn flush_committed(
        &mut self,
        server: ServerId,
        number: u64,
        outcome: Result<(), &str>,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        self.heard_from(server);
        let known = self.flushes.all.get_mut(&number);
        let Some(flush) = known.filter(|flush| flush.committing == Some(server)) else {
            return Ok(Reply::Done);
        };
        flush.committing = None;
        match outcome {
            Ok(()) => {
                let left = flush.left;
                assert_eq!(
                    left, 0,
                    "INV-10: the manifest of {number} is written before {left} parts"
                );
                self.flushes.done += 1;
                self.end_flush(number, FlushState::Done, effects);
            }
            Err(why) => self.commit_later(number, why.to_owned()),
        }
        Ok(Reply::Done)
    }

    /// Ends a flush, successful or not: frees its blocks, and lets the next one of its directory commit.
    fn end_flush(&mut self, number: u64, state: FlushState, effects: &mut Vec<Effect>) {
        let flush = self.flushes.all.remove(&number).expect("the flush is under way");
        self.flushes.unwritten.changed(number);
        let whole = flush.left == 0 || matches!(state, FlushState::Lost(_));
        assert!(whole, "INV-09: blocks are freed before their content is written");
        for part in flush.parts.iter().filter(|part| part.state != PartState::Copied) {
            self.flushes.blocks.remove(&part.at);
            self.pool.free_kept(part.at, effects);
        }
        if self.flushes.blocks.is_empty() {
            self.flushes.high.clear();
        }
        self.flushes.lost_at.retain(|(directory, _)| *directory != flush.directory);
        if let FlushState::Lost(why) = &state {
            self.flushes.lost_at.push_back((flush.directory.clone(), why.clone()));
            if self.flushes.lost_at.len() > FLUSHES_KEPT {
                self.flushes.lost_at.pop_front();
            }
            self.flushes.lost_of.extend(flush.ended.map(|job| (job, why.clone())));
            if self.flushes.lost_of.len() > FLUSHES_KEPT {
                self.flushes.lost_of.pop_front();
            }
            self.begin_sweep(number, &flush, effects);
        }
        if flush.live {
            let progress = FlushProgress { state, ..flush.progress() };
            self.note_ended(Ended { number, job_name: flush.job_name, progress });
        } else {
            self.set_state(flush.prefix, state);
        }
        let queue = self
            .flushes
            .queues
            .get_mut(&flush.directory)
            .expect("the directory of a flush under way has a queue");
        queue.retain(|other| *other != number);
        match queue.front().copied() {
            Some(next) => self.commit_flush(next, effects),
            None => {
                self.flushes.queues.remove(&flush.directory);
            }
        }
        if flush.group != 0 && self.flushes.all.contains_key(&flush.group) {
            self.commit_flush(flush.group, effects);
        }
    }

    /// Retries the actions that are due.
    pub(crate) fn retry_flushes(&mut self, effects: &mut Vec<Effect>) {
        while self.flushes.next().is_some_and(|at| at <= self.now) {
            let Reverse((_, number, again)) = self.flushes.retries.pop().expect("looked at it");
            let known = self.flushes.all.get(&number);
            match again {
                Again::Sweep => self.sweep(number, effects),
                // Handled at the end of the tick.
                Again::Copy => {}
                Again::Commit if known.is_some() => self.commit_flush(number, effects),
                Again::Part(i) => {
                    let part = known.map(|flush| &flush.parts[i]);
                    let waits = part.filter(|part| part.state == PartState::Waits);
                    effects.extend(waits.map(BlockFlush::effect));
                }
                Again::Commit => {}
            }
        }
    }

    /// Servers are lost: their unwritten parts are lost, and other servers write their pending manifests.
    pub(crate) fn lose_flushes(
        &mut self,
        gone: &[(ServerId, Arc<str>)],
        how: Loss,
        effects: &mut Vec<Effect>,
    ) {
        let address = |server: ServerId| gone.iter().find(|(id, _)| *id == server).map(|(_, a)| a);
        let is_gone = |server: ServerId| address(server).is_some();
        self.lose_sweeps(is_gone, effects);
        let hit: Vec<u64> = self.flush_numbers().collect();
        for number in hit {
            let Some(flush) = self.flushes.all.get_mut(&number) else { continue };
            let unwritten = |part: &&BlockFlush| {
                part.state == PartState::Waits && is_gone(part.at.block.server())
            };
            let lost = flush.parts.iter().filter(unwritten).count();
            if let Some(part) = flush.parts.iter().find(unwritten) {
                let server = address(part.at.block.server())
                    .expect("a lost part has the address of its server")
                    .clone();
                let why = format!(
                    "a memory server was lost before it had written {lost} of {} parts; there is \
                     no manifest",
                    flush.parts.len()
                );
                self.flushes.lost += 1;
                self.bury_as_lost(number, Cause::Lost { server, how });
                self.end_flush(number, FlushState::Lost(why.into()), effects);
            } else if flush.committing.is_some_and(is_gone) {
                flush.committing = None;
                self.commit_flush(number, effects);
            }
        }
    }

    /// Whether the server is writing a manifest.
    pub(crate) fn commits_flush_at(&self, server: ServerId) -> bool {
        self.flushes.all.values().any(|flush| flush.committing == Some(server))
    }

    /// Makes requests for data that could not be flushed report it as lost from now on, not as expired.
    fn bury_as_lost(&mut self, number: u64, cause: Cause) {
        let Flush { prefix, address, ids, structures, .. } = &self.flushes.all[&number];
        let (prefix, path, at) = (*prefix, address.clone(), self.now);
        let Some(n) = self.dag.by_id(prefix) else { return };
        let named =
            ids.iter().zip(structures).map(|(id, s)| (Gone::Structure(*id), s.name.clone()));
        let gone: Vec<_> = named.chain([(Gone::Prefix(prefix), Box::default())]).collect();
        let j = self.dag.nodes[n].job;
        for (gone, name) in gone {
            let (path, cause) = (path.clone(), cause.clone());
            self.remember(j, Tombstone { gone, prefix, path, name, cause, at });
        }
    }

    /// Records the progress of a flush at its prefix.
    fn show_flush(&mut self, number: u64) {
        let Some(flush) = self.flushes.all.get(&number).filter(|flush| !flush.live) else { return };
        let state = match &flush.error {
            Some(why) => FlushState::Failing(why.clone()),
            None => FlushState::Writing,
        };
        self.set_state(flush.prefix, state);
    }

    pub(crate) fn set_state(&mut self, prefix: PrefixId, state: FlushState) {
        if let Some(n) = self.dag.by_id(prefix)
            && let Some(special) = self.dag.special.get_mut(&n)
        {
            if matches!(state, FlushState::Done | FlushState::Lost(_)) {
                self.dag.dirty.mark(n);
            }
            special.flush = state;
        }
    }

    /// Whether the block is retained until its content is written.
    pub(crate) fn is_kept(&self, at: BlockAt) -> bool {
        self.flushes.blocks.contains_key(&at)
    }

    /// Every retained block is a part that waits for its manifest, and is quarantined; the count of waiting
    /// parts is right.
    pub(crate) fn check_flushes(&self) -> Result<(), String> {
        for (number, flush) in &self.flushes.all {
            let waiting = flush.parts.iter().filter(|part| part.state == PartState::Waits).count();
            if waiting != flush.left {
                return Err(format!("flush {number:016x} waits for {waiting}, not {}", flush.left));
            }
        }
        for (at, (number, i)) in &self.flushes.blocks {
            let flush =
                self.flushes.all.get(number).ok_or_else(|| format!("{at:?} has no flush"))?;
            let part = flush.parts.get(*i);
            if part.is_none_or(|part| part.at != *at || part.state == PartState::Absent) {
                return Err(format!("{at:?} is not a part of its flush"));
            }
            if self.pool.is_free(*at) {
                return Err(format!("{at:?} is free and waits to be flushed"));
            }
        }
        Ok(())
    }
}
