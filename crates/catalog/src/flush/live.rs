//! Flushes of live prefixes: each block is copied as of one moment, and when all are copied, the manifest is
//! written as that of any other flush.
//!
//! A kv is a list of ranges of hashes. Each is requested from the block that owns it at that time, so that
//! splits, merges and moves before the copy have no effect on it; while a block is being copied it begins no
//! move. Every hash is in one part, and every slot is as it was at one moment. Files and queues are
//! successions of blocks; a block that leaves its server before its copy is requested from its new server.
//! The manifest omits all blocks after the first one that was not sealed when it was copied: the flush has no
//! gap, and contains everything that was in the structure when it was requested.
//!
//! Values in blocks of extents come last, when everything that may name them is copied. A server that drops
//! a copied extent retains it until `EndCopies`; such a structure begins no move meanwhile, because the
//! target block would not retain the extents of its content.
//!
//! Each request has a name of its own, because a repeated request may copy other bytes. The names have
//! numbers, and the log records that a number may be in use before it is sent (`noted`). So leftover objects
//! can be deleted, also by a restarted controller, which copies everything again.
//!
//! While blocks are copied the prefix counts as renewed. After the last copy this becomes an ordinary `Flush`
//! with parts that are `PartProgress`, and without ownership of their blocks.

use super::sweep::Sweep;
use super::{Again, BlockFlush, Flush, PartState, pause};
use crate::reply::{FlushProgress, FlushState, FlushedPart, FlushedStructure};
use crate::structures::StructureRecord;
use crate::{Catalog, CatalogError, Effect, Reply, Written};
use honeycomb_types::limits::{FLUSH_COPIES_AT_ONCE, FLUSH_OBJECT_MAX, FLUSHES_KEPT};
use honeycomb_types::{
    BlockAt, BlockId, FLUSH_EXTENTS, FLUSH_PART, JobId, PrefixId, Router, ServerId, StructureId,
    Time, flush_object,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Number of names that are logged at a time.
const NAMES_AT_A_TIME: u32 = 64;

/// The content of one part.
#[derive(Clone, Copy, Debug)]
pub(super) enum PartContent {
    /// A range of hashes of a kv.
    Range(u64, u64),
    /// A block of a file or queue, and the start of its range.
    Chained(BlockAt, u64),
    /// A block of extents.
    Extents(BlockAt),
}

#[derive(Clone, Debug)]
enum CopyState {
    Waits {
        due: Time,
        attempts: u32,
    },
    /// The part's block is being copied, into an object of this number.
    Asked {
        at: BlockAt,
        name: u32,
        attempts: u32,
    },
    Written {
        at: BlockAt,
        name: u32,
        objects: Vec<Written>,
        sealed: bool,
    },
    /// The part's block was freed, because it was empty or was never written.
    Absent,
}

#[derive(Debug)]
struct PartProgress {
    structure: usize,
    what: PartContent,
    state: CopyState,
}

/// Requests that are under way.
struct PendingRequests {
    of: BTreeMap<ServerId, usize>,
    /// Servers that can take more requests. A lost server is not among them, even if requests to it are
    /// counted.
    free: BTreeSet<ServerId>,
}

impl PendingRequests {
    fn counts(&mut self, live: &Live) {
        for part in &live.parts {
            if let CopyState::Asked { at, .. } = part.state {
                self.takes(at.block.server());
            }
        }
    }

    fn is_full(&self, server: ServerId) -> bool {
        self.of.get(&server).is_some_and(|under_way| *under_way >= FLUSH_COPIES_AT_ONCE)
    }

    /// Counts another request to a server; returns false if the server can take no more.
    fn takes(&mut self, server: ServerId) -> bool {
        if self.is_full(server) {
            return false;
        }
        let under_way = self.of.entry(server).or_default();
        *under_way += 1;
        if *under_way == FLUSH_COPIES_AT_ONCE {
            self.free.remove(&server);
        }
        true
    }
}

/// A structure of the prefix.
#[derive(Debug)]
struct LiveStructure {
    id: StructureId,
    structure: FlushedStructure,
    /// Whether its parts are ranges of hashes, and not whole blocks.
    ranges: bool,
    /// Number of parts that are not copied yet, without blocks of extents.
    left: usize,
    /// Whether the structure's blocks of extents are among the parts.
    extents_listed: bool,
}

impl LiveStructure {
    /// Whether its content may name extents in other blocks.
    fn has_extents(&self) -> bool {
        self.structure.kind.attributes().extents.is_some()
    }
}

/// One prefix that is being copied.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) prefix: PrefixId,
    pub(crate) job: JobId,
    pub(crate) directory: Arc<str>,
    pub(crate) address: Arc<str>,
    /// For a subtree: the other members.
    pub(crate) below: Arc<[Box<str>]>,
    /// Its directory was claimed for this flush: no other prefix may flush there.
    pub(crate) claims: bool,
    /// The topmost flush of the same barrier; 0 for a flush whose blocks are copied at different moments.
    pub(crate) group: u64,
    /// Names with lower numbers may have been assigned.
    pub(crate) noted: u32,
    /// Names of blocks of extents, which contain more than a number.
    pub(crate) extents: Vec<(u32, BlockAt)>,
    names: u32,
    sources: Option<Vec<LiveStructure>>,
    parts: Vec<PartProgress>,
    waiting: BTreeSet<usize>,
    pub(super) error: Option<Arc<str>>,
}

/// The outcome of a requested flush.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) number: u64,
    pub(crate) job_name: Box<str>,
    pub(crate) progress: FlushProgress,
}

impl Live {
    pub(crate) fn new(
        prefix: PrefixId,
        job: JobId,
        directory: Arc<str>,
        (address, below): (Arc<str>, Arc<[Box<str>]>),
        claims: bool,
        noted: u32,
        extents: Vec<(u32, BlockAt)>,
    ) -> Live {
        Live {
            below,
            prefix,
            job,
            directory,
            address,
            claims,
            group: 0,
            noted,
            extents,
            names: noted,
            sources: None,
            parts: Vec::new(),
            waiting: BTreeSet::new(),
            error: None,
        }
    }

    fn name(&self, number: u64, name: u32) -> String {
        let extents = self.extents.iter().find(|(of, _)| *of == name).map(|(_, at)| at);
        let stem = format!("{number:016x}-{:016x}-{name:05}", 0);
        match extents {
            Some(at) => format!("{stem}-{:016x}-{:016x}{FLUSH_EXTENTS}", at.block.0, at.epoch.0),
            None => format!("{stem}{FLUSH_PART}"),
        }
    }

    fn is_asked(&self, block: BlockId) -> bool {
        let asked =
            |state: &CopyState| matches!(state, CopyState::Asked { at, .. } if at.block == block);
        self.parts.iter().any(|part| asked(&part.state))
    }

    /// A block of a file or queue has left its server with its content: waiting and retried requests go to
    /// the block that replaced it.
    fn relocated(&mut self, from: BlockAt, to: BlockAt) {
        for part in &mut self.parts {
            if let PartContent::Chained(at, _) = &mut part.what
                && *at == from
            {
                *at = to;
            }
        }
    }

    fn add(&mut self, structure: usize, what: PartContent) {
        self.waiting.insert(self.parts.len());
        let state = CopyState::Waits { due: Time::ZERO, attempts: 0 };
        self.parts.push(PartProgress { structure, what, state });
    }

    /// A part is written, or its block is gone.
    fn copied(&mut self, part: usize) {
        let PartProgress { structure, what, .. } = self.parts[part];
        if !matches!(what, PartContent::Extents(_)) {
            self.sources.as_mut().expect("parts are of sources")[structure].left -= 1;
        }
    }

    /// Copies everything again, under other names.
    pub(super) fn begin_anew(&mut self) {
        self.sources = None;
        self.parts.clear();
        self.waiting.clear();
    }

    /// The content of its parts.
    pub(super) fn whats(&self) -> impl Iterator<Item = (StructureId, PartContent)> {
        let sources = self.sources.as_deref().unwrap_or_default();
        self.parts.iter().map(|part| (sources[part.structure].id, part.what))
    }

    /// Its structures, once they are listed.
    pub(super) fn ids(&self) -> impl Iterator<Item = StructureId> {
        self.sources.iter().flatten().map(|source| source.id)
    }

    /// Adds a block that was added to its structure after the structures were listed.
    pub(super) fn continues(&mut self, structure: StructureId, at: BlockAt) {
        let source = self.ids().position(|id| id == structure).expect("the structure was listed");
        self.add(source, PartContent::Chained(at, u64::MAX));
        self.sources.as_mut().expect("they are listed")[source].left += 1;
    }

    /// Whether a block must stay unchanged until its snapshot is written.
    pub(super) fn keeps(&self, structure: &StructureRecord, block: BlockId) -> bool {
        let Some(sources) = &self.sources else { return true };
        let Some(i) = sources.iter().position(|source| source.id == structure.id) else {
            return false;
        };
        if sources[i].ranges {
            return sources[i].left > 0 || !structure.extents.is_empty();
        }
        self.parts.iter().any(|part| {
            let own = matches!(part.what, PartContent::Chained(at, _) if at.block == block);
            own && matches!(part.state, CopyState::Waits { .. } | CopyState::Asked { .. })
        })
    }

    /// Whether every part that the manifest lists is copied.
    fn is_whole(&self) -> bool {
        let over = |part: &PartProgress| {
            matches!(part.state, CopyState::Written { .. } | CopyState::Absent)
        };
        let listed = |source: &LiveStructure| source.extents_listed || !source.has_extents();
        self.sources.as_ref().is_some_and(|sources| sources.iter().all(listed))
            && self.parts.iter().all(over)
    }

    pub(super) fn progress(&self) -> FlushProgress {
        let mut progress = FlushProgress {
            state: match &self.error {
                Some(why) => FlushState::Failing(why.clone()),
                None => FlushState::Writing,
            },
            parts: self.parts.len() as u32,
            ..FlushProgress::default()
        };
        for part in &self.parts {
            match &part.state {
                CopyState::Written { objects, .. } => {
                    progress.done += 1;
                    progress.bytes += objects.iter().map(|object| object.bytes).sum::<u64>();
                }
                CopyState::Absent => progress.done += 1,
                CopyState::Waits { .. } | CopyState::Asked { .. } => {}
            }
        }
        progress
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Live>() + self.parts.capacity() * (size_of::<PartProgress>() + 24)
    }
}

/// Every hash of a kv is in one part: the ranges follow each other without gaps.
fn check_ranges(parts: impl Iterator<Item = PartContent>) {
    let mut next = Some(0);
    let mut ranges = 0;
    for part in parts {
        let PartContent::Range(start, end) = part else { continue };
        assert!(next == Some(start), "INV-10: a flush leaves hashes out, or has them twice");
        next = end.checked_add(1);
        ranges += 1;
    }
    assert!(ranges == 0 || next.is_none(), "INV-10: a flush leaves the last hashes out");
}

impl Catalog {
    /// Whether a flush that copies the prefix keeps it alive.
    pub(crate) fn is_being_copied(&self, prefix: PrefixId) -> bool {
        self.flushes.live.values().any(|live| live.prefix == prefix)
    }

    /// Whether a block of a kv begins no move because a flush copies it, or the extents that it names.
    pub(crate) fn stays_for_flush(&self, s: u32, block: BlockId) -> bool {
        let structure = &self.structures[s];
        self.stays_for_cut(s, block)
            || self.flushes.live.values().any(|live| {
                let theirs =
                    || live.sources.iter().flatten().any(|source| source.id == structure.id);
                live.is_asked(block) || !structure.extents.is_empty() && theirs()
            })
    }

    /// A block of a file or queue has moved to another server.
    pub(crate) fn copies_follow(&mut self, from: BlockAt, to: BlockAt) {
        self.flushes.live.values_mut().for_each(|live| live.relocated(from, to));
    }

    /// Advances all flushes of live prefixes. Called after commands that enable progress, each of which waits
    /// for the log.
    pub(crate) fn go_on_copying(&mut self, effects: &mut Vec<Effect>) {
        if self.recovering() {
            return;
        }
        let groups: Vec<u64> = self.flushes.barriers.keys().copied().collect();
        groups.into_iter().for_each(|group| self.tend_barrier(group, effects));
        let servers: BTreeSet<ServerId> = self.pool.servers().map(|(id, _)| id).collect();
        let mut asked: BTreeMap<u64, PendingRequests> = BTreeMap::new();
        for (number, live) in &self.flushes.live {
            let together = if live.group == 0 { *number } else { live.group };
            let new = || PendingRequests { of: BTreeMap::new(), free: servers.clone() };
            asked.entry(together).or_insert_with(new).counts(live);
        }
        let numbers: Vec<u64> = self.flushes.live.keys().copied().collect();
        for number in numbers {
            // The first flush of a barrier may have ended all others.
            let Some(mut live) = self.flushes.live.remove(&number) else { continue };
            let group = live.group;
            let together = if group == 0 { number } else { group };
            let asked = asked.get_mut(&together).expect("counted just now");
            let outcome = self.tend(number, &mut live, asked, effects);
            self.flushes.live.insert(number, live);
            match outcome {
                Ok(false) => {}
                Ok(true) if group == 0 => self.all_copied(number, effects),
                Ok(true) => self.member_copied(group, effects),
                Err(why) => self.give_up_live(number, FlushState::Lost(why), effects),
            }
        }
    }

    /// One member of a barrier is copied. When all are, they continue as flushes, the topmost last.
    fn member_copied(&mut self, group: u64, effects: &mut Vec<Effect>) {
        let members = self.members_of(group);
        if !members.iter().all(|number| self.flushes.live[number].is_whole()) {
            return;
        }
        self.flushes.barriers.remove(&group);
        members.into_iter().rev().for_each(|number| self.all_copied(number, effects));
    }

    /// Requests the possible copies; returns whether all are made.
    fn tend(
        &mut self,
        number: u64,
        live: &mut Live,
        asked: &mut PendingRequests,
        effects: &mut Vec<Effect>,
    ) -> Result<bool, Arc<str>> {
        let found = self.dag.by_id(live.prefix).filter(|&n| self.dag.nodes[n].live());
        let Some(n) = found else { return Err("the prefix has ended".into()) };
        self.need_sound_maps(n).map_err(|e| e.to_string())?;
        if live.group == 0 && live.sources.is_none() {
            self.need_content(n).map_err(|e| e.to_string())?;
            self.list_sources(n, live);
        }
        for source in live.sources.iter().flatten() {
            if self.structures.find(source.id).is_none() {
                let named = crate::error::Of(&live.address, &source.structure.name);
                return Err(format!("{named} ended or was lost during the flush").into());
            }
        }
        if live.group != 0 {
            let Some(barrier) = self.flushes.barriers.get(&live.group) else {
                return Err("the controller restarted when part of the flush was written".into());
            };
            if !barrier.is_cut() {
                return Ok(false);
            }
        }
        self.copy_waiting(number, live, asked, effects);
        self.list_extents(live);
        self.copy_waiting(number, live, asked, effects);
        Ok(live.is_whole())
    }

    pub(super) fn list_sources(&mut self, n: u32, live: &mut Live) {
        let mut structures: Vec<u32> = self.structures_of(n).collect();
        // The list has the newest first.
        structures.reverse();
        let mut sources = Vec::new();
        for s in structures {
            let structure = &self.structures[s];
            let listed = FlushedStructure::without_parts(structure, &self.kinds);
            let ranges = structure.router == Router::HashRange;
            let mut whats = Vec::new();
            if ranges {
                let placed = structure.entries.iter().enumerate();
                whats.extend(placed.map(|(i, e)| PartContent::Range(e.start, structure.end(i))));
            } else {
                let placed = structure.entries.iter().map(|entry| (entry.block, entry.start));
                let placed: std::collections::HashMap<_, _> = placed.collect();
                // Blocks that are not in the map yet follow the last one that is.
                whats.extend(structure.in_order().map(|block| {
                    let start = placed.get(&block).copied().unwrap_or(u64::MAX);
                    PartContent::Chained(self.pool.at(block), start)
                }));
            }
            let (id, left, extents_listed) = (structure.id, whats.len(), false);
            whats.into_iter().for_each(|what| live.add(sources.len(), what));
            sources.push(LiveStructure { id, structure: listed, ranges, left, extents_listed });
        }
        live.sources = Some(sources);
    }

    /// Lists blocks of extents, when all content that may name them is copied.
    fn list_extents(&self, live: &mut Live) {
        let mut sources = live.sources.take().expect("listed before");
        for (i, source) in sources.iter_mut().enumerate() {
            if source.left > 0 || source.extents_listed || !source.has_extents() {
                continue;
            }
            source.extents_listed = true;
            let s = self.structures.find(source.id).expect("looked up just now");
            for &block in &self.structures[s].extents {
                live.add(i, PartContent::Extents(self.pool.at(block)));
            }
        }
        live.sources = Some(sources);
    }

    /// Requests the waiting parts, as far as servers can take more.
    fn copy_waiting(
        &mut self,
        number: u64,
        live: &mut Live,
        asked: &mut PendingRequests,
        effects: &mut Vec<Effect>,
    ) {
        let waiting: Vec<usize> = live.waiting.iter().copied().collect();
        for i in waiting {
            if asked.free.is_empty() {
                return;
            }
            self.copy_part(number, live, i, asked, effects);
        }
    }

    fn copy_part(
        &mut self,
        number: u64,
        live: &mut Live,
        i: usize,
        asked: &mut PendingRequests,
        effects: &mut Vec<Effect>,
    ) {
        let CopyState::Waits { due, attempts } = live.parts[i].state else { return };
        let source = live.parts[i].structure;
        let id = live.sources.as_ref().expect("listed before")[source].id;
        let s = self.structures.find(id).expect("looked up just now");
        let structure = &self.structures[s];
        if due > self.now {
            return;
        }
        let (at, range) = match live.parts[i].what {
            PartContent::Range(start, end) => {
                let place = structure.entries.partition_point(|entry| entry.start <= start) - 1;
                let (block, last) = (structure.entries[place].block, structure.end(place));
                if structure.move_of(block).is_some() {
                    return;
                }
                if last < end {
                    live.add(source, PartContent::Range(last + 1, end));
                    live.parts[i].what = PartContent::Range(start, last);
                    live.sources.as_mut().expect("listed before")[source].left += 1;
                }
                (self.pool.at(block), (start, end.min(last)))
            }
            PartContent::Chained(at, _) | PartContent::Extents(at) => {
                // During a relocation, the content of the block may be in either place.
                let leaves = structure.move_of(at.block).is_some_and(|mv| mv.source == at.block);
                if leaves || asked.is_full(at.block.server()) {
                    return;
                }
                let there = structure.blocks().any(|block| block == at.block);
                if !there || self.pool.at(at.block) != at {
                    live.parts[i].state = CopyState::Absent;
                    live.waiting.remove(&i);
                    live.copied(i);
                    return;
                }
                (at, (0, u64::MAX))
            }
        };
        let server = at.block.server();
        if !asked.takes(server) {
            return;
        }
        // Extents that an entry names are as they were at the snapshot, and are retained.
        let cut = live.group != 0 && !matches!(live.parts[i].what, PartContent::Extents(_));
        let name = live.names;
        live.names += 1;
        let mut changed = name >= live.noted;
        if changed {
            live.noted = live.names + NAMES_AT_A_TIME;
        }
        if matches!(live.parts[i].what, PartContent::Extents(_)) {
            live.extents.push((name, at));
            changed = true;
        }
        if changed {
            self.flushes.unwritten.lives(number);
        }
        let object = format!("{}/{}", live.directory, live.name(number, name)).into();
        live.parts[i].state = CopyState::Asked { at, name, attempts };
        live.waiting.remove(&i);
        effects.push(Effect::CopyBlock {
            server,
            at,
            start: range.0,
            end: range.1,
            object,
            number,
            name,
            cut,
        });
    }

    pub(crate) fn block_copied(
        &mut self,
        server: ServerId,
        number: u64,
        name: u32,
        outcome: Result<(&[Written], bool), (bool, &str)>,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        self.heard_from(server);
        let Some(live) = self.flushes.live.get_mut(&number) else { return Ok(Reply::Done) };
        let asked =
            |state: &CopyState| matches!(state, CopyState::Asked { name: of, .. } if *of == name);
        let Some(i) = live.parts.iter().position(|part| asked(&part.state)) else {
            return Ok(Reply::Done);
        };
        let part = &mut live.parts[i];
        let CopyState::Asked { at, attempts, .. } = part.state else { return Ok(Reply::Done) };
        match outcome {
            Ok((objects, sealed)) => {
                let objects = objects.to_vec();
                part.state = CopyState::Written { at, name, objects, sealed };
                live.copied(i);
                live.error = None;
            }
            Err((true, why)) => {
                self.give_up_live(number, FlushState::Lost(why.into()), effects);
            }
            Err((false, why)) => {
                let due = self.now + pause(attempts);
                part.state = CopyState::Waits { due, attempts: attempts + 1 };
                live.waiting.insert(i);
                live.error = Some(why.into());
                self.flushes.retries.push(Reverse((due, number, Again::Copy)));
            }
        }
        Ok(Reply::Done)
    }

    /// A server has reconnected: it may not have received the copy requests of the earlier connection, and it
    /// no longer retains extents for this flush.
    pub(crate) fn copies_anew(&mut self, server: ServerId, effects: &mut Vec<Effect>) {
        self.cuts_anew(effects);
        for live in self.flushes.live.values_mut().filter(|live| live.group == 0) {
            let mut anew = false;
            let sources = live.sources.as_deref().unwrap_or_default();
            for (i, part) in live.parts.iter_mut().enumerate() {
                match part.state {
                    CopyState::Asked { at, attempts, .. } if at.block.server() == server => {
                        part.state = CopyState::Waits { due: Time::ZERO, attempts };
                        live.waiting.insert(i);
                    }
                    CopyState::Written { at, .. } if at.block.server() == server => {
                        let names_extents = sources[part.structure].has_extents();
                        anew |= names_extents && !matches!(part.what, PartContent::Extents(_));
                    }
                    _ => {}
                }
            }
            if anew {
                live.begin_anew();
            }
        }
    }

    /// Ends a flush without a manifest, and with it the other members of its barrier.
    pub(super) fn give_up_live(
        &mut self,
        number: u64,
        state: FlushState,
        effects: &mut Vec<Effect>,
    ) {
        let group = self.flushes.live.get(&number).map_or(0, |live| live.group);
        if group == 0 {
            return self.give_up_one(number, state, effects);
        }
        self.flushes.barriers.remove(&group);
        for number in self.members_of(group) {
            self.give_up_one(number, state.clone(), effects);
        }
    }

    fn give_up_one(&mut self, number: u64, state: FlushState, effects: &mut Vec<Effect>) {
        let live = self.flushes.live.get(&number).expect("the copy is under way");
        let progress = FlushProgress { state, ..live.progress() };
        let job = self.jobs.find(live.job).map(|j| self.jobs[j].name.clone());
        self.end_live(number, &BTreeSet::new(), effects);
        self.note_ended(Ended { number, job_name: job.unwrap_or_default(), progress });
    }

    /// Ends the copying. Objects of all assigned names are deleted, except those that the manifest lists.
    fn end_live(&mut self, number: u64, listed: &BTreeSet<u32>, effects: &mut Vec<Effect>) -> Live {
        let live = self.flushes.live.remove(&number).expect("the copy is under way");
        self.flushes.unwritten.lives(number);
        if live.claims {
            self.flushes.claimed.remove(&*live.directory);
        }
        let most = 2 * self.block_size.div_ceil(FLUSH_OBJECT_MAX) as usize + 1;
        let left = (0..live.names).filter(|name| !listed.contains(name));
        let names = left.flat_map(|name| {
            let first = live.name(number, name);
            (0..most).map(move |i| Box::from(flush_object(&first, i)))
        });
        let names: Vec<Box<str>> = names.collect();
        if !names.is_empty() {
            self.flushes.sweeps.insert(number, Sweep::new(live.directory.clone(), names, 0));
            self.flushes.unwritten.swept(number);
            self.sweep(number, effects);
        }
        self.end_copies(number, effects);
        live
    }

    /// Ends the retention of extents and snapshots for a flush at all servers.
    pub(super) fn end_copies(&self, number: u64, effects: &mut Vec<Effect>) {
        let servers = self.pool.servers().map(|(server, _)| server);
        effects.extend(servers.map(|server| Effect::EndCopies { server, number }));
    }

    /// Records the outcome of a requested flush.
    pub(super) fn note_ended(&mut self, ended: Ended) {
        if self.flushes.ended.len() >= FLUSHES_KEPT {
            self.flushes.ended.pop_front();
        }
        self.flushes.ended.push_back(ended);
    }

    /// The last part is written: only the manifest remains.
    fn all_copied(&mut self, number: u64, effects: &mut Vec<Effect>) {
        let live = &self.flushes.live[&number];
        let j = self.jobs.find(live.job).expect("the job of a live prefix is registered");
        let job_name = self.jobs[j].name.clone();
        let sources = live.sources.as_ref().map_or(0, Vec::len);
        let mut parts: Vec<Vec<(&PartProgress, BlockAt, u32)>> = vec![Vec::new(); sources];
        for part in &live.parts {
            if let CopyState::Written { at, name, .. } = part.state {
                parts[part.structure].push((part, at, name));
            }
        }
        // Structures that were sealed or closed at the snapshot: the catalog may not have received the seal
        // when it listed them.
        let mut closed = Vec::new();
        for theirs in &mut parts {
            theirs.sort_by_key(|(part, _, name)| match part.what {
                PartContent::Range(start, _) => (0, start),
                PartContent::Chained(..) => (0, 0),
                PartContent::Extents(_) => (1, *name as u64),
            });
            check_ranges(theirs.iter().map(|(part, ..)| part.what));
            let open = theirs.iter().position(|(part, ..)| {
                let open = matches!(part.state, CopyState::Written { sealed: false, .. });
                open && matches!(part.what, PartContent::Chained(..))
            });
            if let Some(open) = open {
                // Nothing was put into the blocks behind it when it was copied.
                let behind = theirs.split_off(open + 1).into_iter();
                let extents = |part: &PartProgress| matches!(part.what, PartContent::Extents(_));
                theirs.extend(behind.filter(|(part, ..)| extents(part)));
            }
            closed.push(live.group != 0 && open.is_none());
        }
        let listed = parts.iter().flatten().map(|(.., name)| *name).collect();
        let mut all = Vec::new();
        let mut structures = Vec::new();
        for (s, (source, theirs)) in live.sources.iter().flatten().zip(&parts).enumerate() {
            let mut structure = source.structure.clone();
            if live.group != 0 && !source.ranges {
                structure.sealed = closed[s];
            }
            for (part, at, name) in theirs {
                let CopyState::Written { objects, .. } = &part.state else { continue };
                let name = live.name(number, *name);
                let start = match part.what {
                    PartContent::Range(start, _) | PartContent::Chained(_, start) => start,
                    PartContent::Extents(_) => u64::MAX,
                };
                let object = format!("{}/{name}", live.directory).into();
                let place = (s, structure.parts.len());
                let state = PartState::Copied;
                all.push(BlockFlush {
                    at: *at,
                    range: (0, u64::MAX),
                    object,
                    place,
                    state,
                    attempts: 0,
                });
                structure.parts.push(FlushedPart {
                    name: name.into(),
                    start,
                    objects: objects.clone(),
                });
            }
            structures.push(structure);
        }
        let ids = live.sources.iter().flatten().map(|source| source.id).collect();
        let live = self.end_live(number, &listed, effects);
        let flush = Flush {
            prefix: live.prefix,
            directory: live.directory,
            job_name,
            address: live.address,
            below: live.below,
            ids,
            structures,
            parts: all,
            left: 0,
            live: true,
            group: live.group,
            ended: None,
            committing: None,
            attempts: 0,
            error: None,
        };
        self.flushes.queues.entry(flush.directory.clone()).or_default().push_back(number);
        self.flushes.all.insert(number, flush);
        self.flushes.unwritten.changed(number);
        self.commit_flush(number, effects);
    }
}
