//! Splits and merges of kvs: what blocks ask for, and what the targets of moves are told.

use crate::reference::{File, Moving};
use crate::{Both, cause, outcome};
use honeycomb_catalog::{Actor, BlockUsage, Command, Effect, MapEntry, Reply, Report};
use honeycomb_types::limits::MOVE_MAX;
use honeycomb_types::{BlockAt, BlockId, Epoch, Kind, MoveId, ServerId, StructureId};
use std::collections::{BTreeMap, BTreeSet};

/// What a move that was begun is to come to.
#[derive(Clone, Copy, Debug)]
pub enum Settle {
    Commit,
    Cancel,
    /// Its target does not import.
    Refuse,
}

/// A move as its source knows it, whatever has become of it.
#[derive(Clone, Copy, Debug)]
struct Begun {
    job: usize,
    structure: StructureId,
    moving: Moving,
    since: u64,
}

/// What servers were told of moves.
#[derive(Default)]
pub struct Imports {
    begun: Vec<Begun>,
    /// What each block imports, and whether it serves something meanwhile.
    under_way: BTreeMap<BlockAt, (MoveId, bool)>,
    /// What each move was said to have come to.
    ends: BTreeMap<MoveId, bool>,
    /// Splits and merges that were committed, commits that were repeated, moves that were cancelled,
    /// and commits of those.
    pub seen: [u64; 5],
}

impl Imports {
    pub fn hear(&mut self, effect: &Effect, open: &BTreeSet<BlockAt>) {
        match *effect {
            Effect::OpenBlock { at, importing, .. } if importing != MoveId::NONE => {
                assert!(self.under_way.insert(at, (importing, false)).is_none());
            }
            Effect::FreeBlock { at, .. } => {
                self.under_way.remove(&at);
            }
            Effect::BeginImport { server, at, id, .. } => {
                assert!(server == at.block.server() && open.contains(&at));
                let before = self.under_way.insert(at, (id, true));
                assert!(before.is_none_or(|(other, serves)| other == id && serves), "INV-20");
                assert!(!self.ends.contains_key(&id), "INV-20: it is over");
            }
            Effect::EndImport { server, at, id, commit } => {
                assert!(server == at.block.server() && open.contains(&at));
                let told = *self.ends.entry(id).or_insert(commit);
                assert_eq!(told, commit, "INV-20: committed and cancelled");
                if self.under_way.get(&at).is_some_and(|(other, _)| *other == id) {
                    self.under_way.remove(&at);
                }
            }
            _ => {}
        }
    }

    pub fn forget(&mut self, server: ServerId) {
        self.under_way.retain(|at, _| at.block.server() != server);
    }
}

/// The neighbour that takes all of a block: the one with less, the left one of equals.
fn neighbour(
    file: &File,
    at: BlockAt,
    used: &BTreeMap<BlockAt, u64>,
) -> Result<BlockAt, &'static str> {
    let place = file.chain.iter().position(|&b| b == at).unwrap();
    let busy = |b: BlockAt| file.pending.iter().any(|m| m.source == b || m.target == b);
    let used = |b: BlockAt| used.get(&b).copied().unwrap_or_default();
    let fits = |&b: &BlockAt| !busy(b) && used(b) + used(at) <= 40_960;
    let left = file.chain[..place].last().copied().filter(fits);
    let right = file.chain[place + 1..].first().copied().filter(fits);
    match (left, right) {
        (Some(left), Some(right)) => Ok(if used(right) < used(left) { right } else { left }),
        (left, right) => left.or(right).ok_or("NoNeighbour"),
    }
}

impl Both {
    fn kv_block(&self, j: usize, kv: usize, block: usize) -> Option<(usize, BlockAt)> {
        let files = self.model.jobs[j].files.iter().enumerate();
        let kvs: Vec<(usize, &File)> = files.filter(|(_, f)| f.kind == Kind::Kv).collect();
        let &(f, file) = kvs.get(kv % kvs.len().max(1))?;
        let held: Vec<BlockAt> = file.held().into_iter().collect();
        Some((f, held[block % held.len()]))
    }

    fn free_blocks(&self, j: usize) -> Result<(), &'static str> {
        let job = &self.model.jobs[j];
        if job.quota != 0 && job.held() + 1 > job.quota {
            return Err("QuotaExceeded");
        }
        if self.model.room().1 == 0 { Err("OutOfMemory") } else { Ok(()) }
    }

    pub fn report(&mut self, j: usize, kv: usize, block: usize, bytes: u64) {
        let Some((_, at)) = self.kv_block(j, kv, block) else { return };
        self.hear(at);
        let usage = [BlockUsage { at, bytes_used: bytes }];
        let report =
            Report { bytes_resident: 0, connections: 0, requests: 0, forwarded: 0, usage: &usage };
        self.bench.run(Command::ServerReport { server: at.block.server(), report }).unwrap();
        self.model.used.insert(at, bytes);
    }

    /// A client wants room for an extent, and was refused by some blocks; 0 asks which there are.
    pub fn extents(&mut self, j: usize, kv: usize, bytes: u64, full: usize) {
        let Some((f, _)) = self.kv_block(j, kv, 0) else { return };
        let file = self.model.jobs[j].files[f].clone();
        let (actor, job, structure) = (Actor::driver(self.ids[j]), self.ids[j], file.id);
        let blocks: Vec<BlockId> = file.extents.iter().take(full).map(|at| at.block).collect();
        let command = Command::ExtentBlocks { actor, job, structure, bytes, full: &blocks };
        let result = self.bench.run(command);
        let used = |at: &BlockAt| self.model.used.get(at).copied().unwrap_or_default();
        let room = file.extents.iter().filter(|at| used(at) + bytes <= 65_536);
        let best = room.filter(|at| !blocks.contains(&at.block));
        let best = best.max_by_key(|at| (used(at), at.block)).copied();
        let expected = match best {
            _ if bytes > 8192 => Err("InvalidArgument"),
            _ if bytes == 0 || best.is_some() => Ok(()),
            _ => self.model.may_take(j, 1),
        };
        assert_eq!(cause(&result), outcome(&expected), "{file:?}");
        let Ok(Reply::Extents(entries)) = result else { return };
        if bytes == 0 {
            let told: BTreeSet<BlockAt> = entries.iter().map(|entry| entry.at).collect();
            return assert_eq!(told, file.extents);
        }
        assert_eq!(entries.len(), 1);
        assert!(best.is_none_or(|best| entries[0].at == best));
        self.model.jobs[j].files[f].extents.insert(entries[0].at);
    }

    /// A block of a kv says that it is empty for good, which only one of extents can.
    pub fn emptied(&mut self, j: usize, kv: usize, block: usize) {
        let Some((f, at)) = self.kv_block(j, kv, block) else { return };
        self.hear(at);
        let structure = self.model.jobs[j].files[f].id;
        let result = self.bench.run(Command::RetireBlock { structure, at });
        let file = &mut self.model.jobs[j].files[f];
        let expected = if file.extents.remove(&at) { Ok(()) } else { Err("WrongKind") };
        assert_eq!(cause(&result), outcome(&expected), "{file:?}");
        if expected.is_ok() {
            assert_eq!(self.bench.freed(), [at]);
            self.model.free(vec![at]);
        }
    }

    pub fn begin(&mut self, j: usize, kv: usize, block: usize, start: u64, merge: bool) {
        let Some((f, at)) = self.kv_block(j, kv, block) else { return };
        self.hear(at);
        let file = self.model.jobs[j].files[f].clone();
        let structure = file.id;
        let result = self.bench.run(Command::BeginMove { structure, at, start, merge });
        let (_, ranges, _) = file.map();
        let own = ranges.iter().find(|range| range.2 == at);
        let expected = match (file.pending.iter().find(|m| m.source == at), own) {
            (Some(moving), _) => Ok(Some(moving.target)),
            _ if file.pending.iter().any(|m| m.target == at) => Err("Moving"),
            (None, Some(_)) if merge => neighbour(&file, at, &self.model.used).map(Some),
            (None, Some(&(first, end, _))) if start <= first || start > end => {
                Err("InvalidArgument")
            }
            (None, Some(_)) if !start.is_multiple_of(1 << 58) => Err("InvalidArgument"),
            (None, Some(_)) => self.free_blocks(j).map(|()| None),
            (None, None) if file.extents.contains(&at) => Err("StaleBlock"),
            (None, None) => panic!("a block is neither in the map nor a target"),
        };
        assert_eq!(cause(&result), outcome(&expected), "{file:?}");
        let (Ok(Reply::Moving { id, entry }), Ok(target)) = (result, expected) else { return };
        let &(first, end, _) = own.unwrap();
        let known = file.pending.iter().find(|m| m.source == at);
        let start = known.map_or(if merge { first } else { start }, |m| m.start);
        assert_eq!((entry.start, entry.end), (start, end));
        assert!(target.is_none_or(|target| entry.at == target));
        if let Some(known) = known {
            assert_eq!(known.id, id);
            return;
        }
        let moving = Moving { id, source: at, target: entry.at, start, merge };
        assert!(self.imports.begun.iter().all(|begun| begun.moving.id != id));
        self.imports.begun.push(Begun { job: j, structure, moving, since: self.model.now });
        self.model.jobs[j].files[f].pending.push(moving);
    }

    /// The newest moves are drawn first: later ones of the same source make older ones past caring.
    pub fn settle(&mut self, begun: usize, how: Settle, stale: bool) {
        let Some(&begun) = self.imports.begun.iter().rev().nth(begun) else { return };
        let Begun { job, structure, moving, .. } = begun;
        let Moving { id, source, mut target, .. } = moving;
        let f = self.model.jobs[job].files.iter().position(|file| file.id == structure);
        if stale {
            target.epoch = Epoch(target.epoch.0 - 1);
        }
        match how {
            Settle::Commit => {
                self.hear(source);
                let command = Command::CommitMove { structure, at: source, id, target };
                let result = self.bench.run(command);
                let Some(f) = f else { return assert_eq!(cause(&result), "UnknownStructure") };
                self.committed(job, f, moving, target, result);
            }
            Settle::Cancel => {
                self.hear(source);
                let command = Command::CancelMove { structure, at: source, id };
                assert_eq!(self.bench.run(command), Ok(Reply::Done));
                self.cancelled(job, f, id);
            }
            Settle::Refuse => {
                let server = target.block.server();
                self.hear(target);
                self.bench.run(Command::ImportRefused { server, at: target, id }).unwrap();
                self.cancelled(job, f.filter(|_| !stale), id);
            }
        }
    }

    /// Time has passed: what lasts too long is cancelled.
    pub fn overdue(&mut self) {
        for Begun { job, structure, moving, since } in self.imports.begun.clone() {
            let file = self.model.jobs[job].files.iter().position(|file| file.id == structure);
            if since + MOVE_MAX.as_millis() as u64 <= self.model.now {
                self.cancelled(job, file, moving.id);
            }
        }
    }

    fn cancelled(&mut self, j: usize, f: Option<usize>, id: MoveId) {
        let Some(f) = f else { return };
        let file = &mut self.model.jobs[j].files[f];
        let Some(i) = file.pending.iter().position(|moving| moving.id == id) else { return };
        let moving = file.pending.remove(i);
        self.imports.seen[3] += 1;
        if !moving.merge {
            self.model.free([moving.target]);
        }
    }

    fn committed(
        &mut self,
        j: usize,
        f: usize,
        moving: Moving,
        target: BlockAt,
        result: Result<Reply, honeycomb_catalog::CatalogError>,
    ) {
        let before = self.model.jobs[j].files[f].clone();
        let pending = before.pending.iter().any(|m| m.id == moving.id);
        if !pending {
            return self.commit_repeated(&before, moving, target, result);
        }
        if target != moving.target {
            return assert_eq!(cause(&result), "StaleBlock");
        }
        let file = &mut self.model.jobs[j].files[f];
        file.pending.retain(|m| m.id != moving.id);
        file.committed.insert(moving.id);
        let place = file.chain.iter().position(|&b| b == moving.source).unwrap();
        if moving.merge {
            file.chain.remove(place);
            // The start of the one on the right goes, not the source's.
            let right = file.chain.get(place) == Some(&target);
            file.starts.remove(if right { place + 1 } else { place });
        } else {
            file.chain.insert(place + 1, target);
            file.starts.insert(place + 1, moving.start);
        }
        let (version, ranges, _) = file.map();
        let owner = ranges.into_iter().find(|range| range.2 == target).unwrap();
        assert_eq!(moved(result), (version, owner));
        self.imports.seen[usize::from(moving.merge)] += 1;
        if moving.merge {
            self.model.free([moving.source]);
        }
    }

    /// A commit that comes again. Only the last move of a source is one that it can be waiting for;
    /// what is answered to others nobody hears.
    fn commit_repeated(
        &mut self,
        file: &File,
        moving: Moving,
        target: BlockAt,
        result: Result<Reply, honeycomb_catalog::CatalogError>,
    ) {
        let of_source =
            |begun: &&Begun| begun.structure == file.id && begun.moving.source == moving.source;
        let last = self.imports.begun.iter().rev().find(of_source).unwrap();
        if last.moving.id != moving.id {
            return;
        }
        let (version, ranges, _) = file.map();
        let at_target = ranges.iter().find(|range| range.2 == target);
        if !file.committed.contains(&moving.id) {
            assert!(file.chain.contains(&moving.source));
            assert_eq!(cause(&result), "MoveCancelled");
            self.imports.seen[4] += 1;
        } else if !moving.merge {
            let after = ranges.iter().position(|range| range.2 == moving.source).unwrap() + 1;
            let owner = at_target.unwrap_or_else(|| &ranges[after.min(ranges.len() - 1)]);
            assert_eq!(moved(result), (version, *owner));
            self.imports.seen[2] += 1;
        } else if let Some(owner) = at_target {
            assert_eq!(moved(result), (version, *owner));
            self.imports.seen[2] += 1;
        } else {
            assert_eq!(cause(&result), "StaleBlock");
        }
    }

    /// INV-17, INV-20: the blocks that import are exactly the targets of moves under way, and no
    /// block of a map waits to be filled.
    pub fn compare_imports(&self) {
        let files = self.model.jobs.iter().flat_map(|job| &job.files);
        let pending = files.clone().flat_map(|file| &file.pending);
        let expected: BTreeMap<BlockAt, (MoveId, bool)> =
            pending.map(|moving| (moving.target, (moving.id, moving.merge))).collect();
        assert_eq!(self.imports.under_way, expected);
        for at in files.flat_map(|file| file.map().1).map(|range| range.2) {
            assert!(self.imports.under_way.get(&at).is_none_or(|(_, serves)| *serves));
        }
    }
}

fn moved(result: Result<Reply, honeycomb_catalog::CatalogError>) -> (u64, (u64, u64, BlockAt)) {
    match result {
        Ok(Reply::Moved { version, entry: MapEntry { start, end, at, .. } }) => {
            (version.0, (start, end, at))
        }
        other => panic!("{other:?}"),
    }
}
