//! The catalog as plain collections, without cleverness: renewals are propagated at once over the whole DAG,
//! maps are rebuilt from the list of seals, blocks are a set with owners. Times are in milliseconds.
//!
//! The oracle of `tests/model.rs` and of the simulator. It predicts the answer to a command, and the caller
//! compares it with the real one. A method that changes state also carries the command out, unless the
//! command is refused. Where the catalog names new items (ids, blocks), one method predicts the answer, and a
//! second receives the actual names.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod blocks;
mod drain;
mod moves;
mod private;
mod quota;
mod shares;
mod tiers;

pub use moves::{Imports, Moving, moved};
pub use private::PrivateChain;
pub use shares::Shares;
pub use tiers::Tiers;

use honeycomb_catalog::{CatalogError, DrainState, NewStructure};
use honeycomb_types::limits::{
    HIGH_MARK_DEFAULT, RESERVE_BLOCKS_MIN, RESERVE_FRACTION, SERVER_SILENCE,
};
use honeycomb_types::{BlockAt, BlockUnits, Kind, MoveId, PrefixId, ServerId, StructureId, Way};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Live,
    Expired,
    Removed,
    /// All declared readers had committed.
    Read,
}

#[derive(Clone, Debug)]
pub struct Prefix {
    pub id: PrefixId,
    pub name: String,
    pub parents: Vec<usize>,
    /// Its parents by edges deduced from use.
    pub deduced: BTreeSet<usize>,
    /// All of its declared readers.
    pub readers: BTreeSet<PrefixId>,
    pub renewed: u64,
    pub lease: u64,
    pub pinned: bool,
    /// Percent of a block at which its kvs split.
    pub high: u8,
    pub life: Life,
    /// It ended before the job was reopened.
    pub forgotten: bool,
    pub missed: u64,
    /// Most blocks of the prefix with its descendants; 0 means unbounded.
    pub bound: u64,
    /// Blocks of these in memory beyond which they are the first to be demoted.
    pub soft: u64,
}

/// The seal of a block: items or bytes, a queue's bytes, and whether no block follows.
pub type Sealed = (u64, u64, bool);

/// First and last position of a block of a map.
pub type Range = (u64, u64, BlockAt);

/// Bytes of a block.
pub const BLOCK: u64 = 65_536;

/// Bytes of a block, where there are several sizes.
#[derive(Clone, Copy, Debug)]
pub struct BlockSize(pub u64);

impl Default for BlockSize {
    fn default() -> BlockSize {
        BlockSize(BLOCK)
    }
}

/// A file, a queue or a kv.
#[derive(Clone, Debug)]
pub struct File {
    pub id: StructureId,
    pub prefix: usize,
    pub name: String,
    pub kind: Kind,
    /// Bounds of a queue, in items and bytes; 0 for none.
    pub bounds: [u64; 2],
    /// In the order in which they serve: those of the map and those granted.
    pub chain: Vec<BlockAt>,
    pub spare: Vec<BlockAt>,
    /// The reported seals.
    pub seals: BTreeMap<BlockAt, Sealed>,
    pub starts: Vec<u64>,
    /// Items and bytes reported as taken from a queue's blocks.
    pub taken: BTreeMap<BlockAt, (u64, u64)>,
    /// Blocks that a queue no longer needs.
    pub retired: BTreeSet<BlockAt>,
    /// Moves between its blocks, or off a server, that are neither committed nor cancelled.
    pub pending: Vec<Moving>,
    /// Moves that were committed.
    pub committed: BTreeSet<MoveId>,
    /// Blocks in which it keeps extents.
    pub extents: BTreeSet<BlockAt>,
    /// The blocks of large appends that are not committed, and those of the others.
    pub private: Vec<PrivateChain>,
    pub linked: BTreeSet<BlockAt>,
    /// Prefixes with a quota to which its blocks count.
    pub counts: BTreeSet<PrefixId>,
}

impl File {
    /// A queue with a bound.
    pub fn bounded(&self) -> bool {
        self.bounds != [0; 2]
    }

    /// Whether it has these bounds, as far as the caller names any.
    fn has_bounds(&self, asked: [u64; 2]) -> bool {
        (0..2).all(|i| asked[i] == 0 || asked[i] == self.bounds[i])
    }

    /// A new one: its blocks in the order of their allocation, and the starts of those in the map.
    pub fn new(
        id: StructureId,
        prefix: usize,
        new: &NewStructure<'_>,
        mut chain: Vec<BlockAt>,
        starts: Vec<u64>,
    ) -> File {
        let kind = new.kind;
        let spare = if kind == Kind::Kv { Vec::new() } else { chain.split_off(1) };
        File {
            id,
            prefix,
            name: new.name.to_owned(),
            kind,
            bounds: if kind == Kind::Queue { [new.max_items, new.max_bytes] } else { [0; 2] },
            chain,
            spare,
            seals: BTreeMap::new(),
            starts,
            taken: BTreeMap::new(),
            retired: BTreeSet::new(),
            pending: Vec::new(),
            committed: BTreeSet::new(),
            extents: BTreeSet::new(),
            private: Vec::new(),
            linked: BTreeSet::new(),
            counts: BTreeSet::new(),
        }
    }

    /// The map that results from the seals so far: version, ranges, and blocks that turned out empty.
    pub fn map(&self) -> (u64, Vec<Range>, BTreeSet<BlockAt>) {
        let mut empty = BTreeSet::new();
        if self.kind == Kind::Kv {
            let end = |i: usize| self.starts.get(i + 1).map_or(u64::MAX, |s| s - 1);
            let all = self.chain.iter().enumerate().map(|(i, &at)| (self.starts[i], end(i), at));
            return (1 + self.committed.len() as u64, all.collect(), empty);
        }
        let (mut version, mut start, mut ranges) = (1, 0, Vec::new());
        for &at in &self.chain {
            match self.seals.get(&at) {
                Some(&(length, _, false)) => {
                    version += 1;
                    if length == 0 {
                        empty.insert(at);
                    } else {
                        ranges.push((start, start + length - 1, at));
                    }
                    start += length;
                }
                other => {
                    version += u64::from(other.is_some());
                    ranges.push((start, u64::MAX, at));
                    break;
                }
            }
        }
        ranges.retain(|(_, _, at)| !self.retired.contains(at));
        // The remaining ranges extend to the next one.
        for i in 1..ranges.len() {
            ranges[i - 1].1 = ranges[i].0 - 1;
        }
        (version, ranges, empty)
    }

    /// Items and bytes in the blocks before a queue's tail: those put into each less those taken from it.
    pub fn ahead(&self) -> (u64, u64) {
        let (_, ranges, _) = self.map();
        let before = ranges[..ranges.len() - 1].iter().map(|(_, _, at)| {
            let (items, bytes, _) = self.seals[at];
            let taken = self.taken.get(at).copied().unwrap_or_default();
            (items - taken.0, bytes - taken.1)
        });
        before.fold((0, 0), |sum, block| (sum.0 + block.0, sum.1 + block.1))
    }

    pub fn sealed(&self) -> bool {
        let (_, ranges, _) = self.map();
        matches!(self.seals.get(&ranges[ranges.len() - 1].2), Some((_, _, true)))
    }

    /// The blocks that it holds now.
    pub fn held(&self) -> BTreeSet<BlockAt> {
        let filling =
            self.pending.iter().filter(|moving| moving.way.takes_anew()).map(|m| m.target);
        let mut held = self.serving();
        held.extend(filling.chain(self.extents.iter().copied()));
        if !self.sealed() {
            held.extend(&self.spare);
            held.extend(self.private.iter().flat_map(|chain| &chain.blocks));
        }
        held
    }

    /// The blocks that serve, or will when those before them are full.
    pub fn serving(&self) -> BTreeSet<BlockAt> {
        let (_, ranges, empty) = self.map();
        if self.sealed() {
            return ranges.into_iter().map(|(_, _, at)| at).collect();
        }
        let all = self.chain.iter().copied();
        all.filter(|at| !empty.contains(at) && !self.retired.contains(at)).collect()
    }

    /// Cancels moves from blocks that it no longer owns.
    pub fn cancel_left(&mut self) {
        if self.kind != Kind::Kv {
            let serving = self.serving();
            self.pending.retain(|moving| serving.contains(&moving.source));
        }
    }

    /// A block is replaced by another one, which takes over all its state.
    pub fn relocate(&mut self, old: BlockAt, new: BlockAt) {
        *self.chain.iter_mut().find(|at| **at == old).unwrap() = new;
        if let Some(seal) = self.seals.remove(&old) {
            self.seals.insert(new, seal);
        }
        if self.linked.remove(&old) {
            self.linked.insert(new);
        }
        if let Some(taken) = self.taken.remove(&old) {
            self.taken.insert(new, taken);
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Job {
    /// Index 0 is the root. `None` for a removed one.
    pub prefixes: Vec<Option<Prefix>>,
    pub files: Vec<File>,
    /// Every prefix whose task has committed, including ended ones.
    pub committed: BTreeSet<PrefixId>,
    pub quota: u64,
    pub tenant: Option<String>,
    pub lease: u64,
    pub name: String,
    /// The weight of its share; 0 is 1.
    pub weight: u64,
    pub soft: u64,
}

/// The predicted answer of the catalog; an error by its name.
pub type Outcome<T> = Result<T, &'static str>;

/// The disagreement, if any.
pub type Verdict = Result<(), String>;

/// The position of a structure: its job, and its index there.
pub type Place = (usize, usize);

pub fn require(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(what()) }
}

/// The name of the catalog's answer, as in an `Outcome`.
pub fn cause<T>(result: &Result<T, CatalogError>) -> String {
    match result {
        Ok(_) => "Ok".into(),
        Err(error) => {
            let text = format!("{error:?}");
            text.split([' ', '(']).next().unwrap().into()
        }
    }
}

impl Prefix {
    pub fn new(id: PrefixId, name: &str, parents: Vec<usize>, lease: u64, now: u64) -> Prefix {
        Prefix {
            id,
            name: name.to_owned(),
            parents,
            deduced: BTreeSet::new(),
            readers: BTreeSet::new(),
            renewed: now,
            lease,
            pinned: false,
            high: HIGH_MARK_DEFAULT,
            life: Life::Live,
            forgotten: false,
            missed: 0,
            bound: 0,
            soft: 0,
        }
    }
}

impl Job {
    fn at(&self, i: usize) -> &Prefix {
        self.prefixes[i].as_ref().unwrap()
    }

    /// An address of a prefix, by its first parents.
    pub fn path_of(&self, i: usize) -> String {
        let p = self.at(i);
        match p.parents.first() {
            None => p.name.clone(),
            Some(0) => p.name.clone(),
            Some(&parent) => format!("{}/{}", self.path_of(parent), p.name),
        }
    }

    pub fn at_id(&self, id: PrefixId) -> usize {
        self.all().find(|(_, p)| p.id == id).unwrap().0
    }

    pub fn all(&self) -> impl Iterator<Item = (usize, &Prefix)> {
        self.prefixes.iter().enumerate().filter_map(|(i, p)| Some((i, p.as_ref()?)))
    }

    fn child(&self, parent: usize, name: &str) -> Option<usize> {
        let mut found = self.all().filter(|(_, p)| p.parents.contains(&parent) && p.name == name);
        found.next().map(|(i, _)| i)
    }

    pub fn resolve(&self, path: &str) -> Option<usize> {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        parts.try_fold(0, |at, part| self.child(at, part))
    }

    pub fn live(&self, path: &str) -> Outcome<usize> {
        let i = self.resolve(path).ok_or("PrefixNotFound")?;
        match self.at(i).life {
            Life::Live => Ok(i),
            _ if self.at(i).forgotten => Err("PrefixNotFound"),
            Life::Expired => Err("LeaseExpired"),
            Life::Removed => Err("PrefixRemoved"),
            Life::Read => Err("PrefixRead"),
        }
    }

    pub fn parent(&self, path: &str) -> Outcome<usize> {
        self.live(path).map_err(|e| if e == "PrefixNotFound" { "UnknownParent" } else { e })
    }

    fn descendants(&self, top: usize) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut todo = vec![top];
        while let Some(at) = todo.pop() {
            for (i, _) in self.all().filter(|(_, p)| p.parents.contains(&at)) {
                if found.insert(i) {
                    todo.push(i);
                }
            }
        }
        found
    }

    /// Renews a prefix, its direct parents and all descendants, now.
    pub fn renew(&mut self, i: usize, when: u64) {
        let mut reached = self.descendants(i);
        reached.extend(self.at(i).parents.iter().copied());
        reached.insert(i);
        for reached in reached {
            let p = self.prefixes[reached].as_mut().unwrap();
            p.renewed = p.renewed.max(when);
        }
    }

    /// The dead holder of a name under the first parent that has one.
    pub fn place(&self, name: &str, parents: &[usize]) -> Outcome<Option<usize>> {
        let mut place = None;
        for &parent in parents {
            if let Some(holder) = self.child(parent, name) {
                if self.at(holder).life == Life::Live {
                    return Err("PrefixExists");
                }
                // With a deduced edge it has no place there.
                let named = !self.at(holder).deduced.contains(&parent);
                place = place.or(named.then_some(holder));
            }
        }
        Ok(place)
    }

    pub fn cyclic(&self) -> bool {
        self.all().any(|(i, _)| self.descendants(i).contains(&i))
    }

    /// The index and attributes of a prefix to be created: its id is not known yet.
    pub fn creation(
        &self,
        path: &str,
        named: &[&str],
        lease_ms: u32,
        now: u64,
    ) -> Outcome<(Option<usize>, Prefix)> {
        let lease = if lease_ms == 0 { self.lease } else { lease_ms as u64 };
        let new = |name: &str, parents| Prefix::new(PrefixId(0), name, parents, lease, now);
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        if path.is_empty() {
            return match (self.live(""), named.is_empty()) {
                (Ok(_), _) => Err("PrefixExists"),
                (_, false) => Err("UnknownParent"),
                _ => Ok((Some(0), new("", vec![]))),
            };
        }
        let mut found = Vec::new();
        for parent in std::iter::once(above).chain(named.iter().copied()) {
            let i = self.parent(parent)?;
            if !found.contains(&i) {
                found.push(i);
            }
        }
        let place = self.place(name, &found)?;
        let new = new(name, found);
        let mut trial = self.clone();
        trial.put(place, new.clone(), now);
        if trial.cyclic() { Err("Cycle") } else { Ok((place, new)) }
    }

    /// Puts a prefix at an index (or a new one) and returns the index.
    pub fn put(&mut self, place: Option<usize>, mut new: Prefix, now: u64) -> usize {
        let parents = new.parents.clone();
        for p in self.prefixes.iter_mut().flatten().filter(|p| p.name == new.name) {
            p.parents.retain(|parent| !parents.contains(parent));
            p.deduced.retain(|parent| !parents.contains(parent));
        }
        let i = place.unwrap_or(self.prefixes.len());
        if i == self.prefixes.len() {
            self.prefixes.push(None);
        } else {
            new.renewed = new.renewed.max(self.at(i).renewed);
        }
        if i == 0 {
            // A new life of the job: prefixes that ended in an earlier one no longer exist.
            let ended = self.prefixes.iter_mut().flatten().filter(|p| p.life != Life::Live);
            ended.for_each(|p| p.forgotten = true);
        }
        self.prefixes[i] = Some(new);
        if !self.cyclic() {
            self.renew(i, now);
        }
        i
    }

    /// Removes dead prefixes without a tombstone and without children.
    pub fn sweep(&mut self) {
        for i in 1..self.prefixes.len() {
            let Some(p) = &self.prefixes[i] else { continue };
            let alone = p.parents.is_empty() && self.descendants(i).is_empty();
            if alone && p.life != Life::Live {
                self.prefixes[i] = None;
            }
        }
    }

    /// Ends a prefix; returns the blocks that its structures held.
    pub fn end(&mut self, i: usize, life: Life, missed: u64) -> Vec<BlockAt> {
        let p = self.prefixes[i].as_mut().unwrap();
        (p.life, p.missed) = (life, missed);
        let gone = self.files.iter().filter(|file| file.prefix == i);
        let freed = gone.flat_map(File::held).collect();
        self.files.retain(|file| file.prefix != i);
        freed
    }

    /// The session of prefix `t` opens data of `p`: adds the edge and renews `t`, if that is useful.
    pub fn consume(&mut self, t: PrefixId, p: usize, now: u64) -> u8 {
        let Some(t) = self.all().find(|(_, own)| own.id == t).map(|(i, _)| i) else { return 3 };
        if self.at(t).life != Life::Live {
            return 3;
        }
        if p == 0 || p == t || self.descendants(t).contains(&p) {
            return 0;
        }
        match self.child(p, &self.at(t).name.clone()) {
            Some(holder) if holder == t => return 2,
            Some(holder) => {
                let holder = self.prefixes[holder].as_mut().unwrap();
                if holder.life == Life::Live || !holder.deduced.contains(&p) {
                    return 3;
                }
                holder.parents.retain(|&parent| parent != p);
                holder.deduced.remove(&p);
            }
            None => {}
        }
        let own = self.prefixes[t].as_mut().unwrap();
        own.parents.push(p);
        own.deduced.insert(p);
        self.renew(t, now);
        self.sweep();
        1
    }

    /// Readers that have not committed.
    pub fn left(&self, i: usize) -> u32 {
        self.at(i).readers.difference(&self.committed).count() as u32
    }

    /// A reader that can be declared: live or committed.
    pub fn reader(&self, path: &str) -> Outcome<PrefixId> {
        let i = self.resolve(path).ok_or("UnknownReader")?;
        let id = self.at(i).id;
        if self.committed.contains(&id) {
            return Ok(id);
        }
        // A prefix without a tombstone counts as one that never existed.
        let unknown = |e| if e == "PrefixNotFound" { "UnknownReader" } else { e };
        self.live(path).map(|_| id).map_err(unknown)
    }

    /// Declares readers of a prefix, in addition to those it has or (`replace`) instead of them; returns how
    /// many are left, and the freed blocks.
    pub fn declare(
        &mut self,
        path: &str,
        named: &[&str],
        replace: bool,
        now: u64,
    ) -> Outcome<(u32, Vec<BlockAt>)> {
        let i = self.live(path)?;
        if named.is_empty() && !replace {
            return Err("InvalidArgument");
        }
        let ids: Outcome<BTreeSet<_>> = named.iter().map(|path| self.reader(path)).collect();
        let ids = ids?;
        let p = self.prefixes[i].as_mut().unwrap();
        p.readers = if replace { ids } else { &p.readers | &ids };
        let left = self.left(i);
        Ok((left, self.free_read(now).1))
    }

    /// The task of a prefix has committed; returns how many prefixes that frees, and the blocks that they
    /// held.
    pub fn commit(&mut self, path: &str, now: u64) -> Outcome<(u32, Vec<BlockAt>)> {
        let id = match self.resolve(path).map(|i| self.at(i)) {
            Some(p) if self.committed.contains(&p.id) || p.life == Life::Read => p.id,
            _ => self.live(path).map(|i| self.at(i).id)?,
        };
        self.committed.insert(id);
        Ok(self.free_read(now))
    }

    /// Ends every prefix whose declared readers have all committed; returns how many, and the blocks that
    /// they held.
    pub fn free_read(&mut self, now: u64) -> (u32, Vec<BlockAt>) {
        let done = |&(i, p): &(usize, &Prefix)| {
            p.life == Life::Live && !p.readers.is_empty() && self.left(i) == 0
        };
        let done: Vec<usize> = self.all().filter(done).map(|(i, _)| i).collect();
        let ended = done.iter().flat_map(|&i| self.end(i, Life::Read, now));
        let blocks = ended.collect();
        (done.len() as u32, blocks)
    }

    pub fn due(&self, now: u64) -> Vec<usize> {
        let due = |p: &Prefix| p.life == Life::Live && !p.pinned && now >= p.renewed + p.lease;
        self.all().filter(|(_, p)| due(p)).map(|(i, _)| i).collect()
    }

    /// Blocks that exist twice because they leave a server.
    fn copies(&self) -> impl Iterator<Item = BlockAt> {
        let pending = self.files.iter().flat_map(|file| &file.pending);
        pending.filter(|moving| moving.way == Way::Relocate).map(|moving| moving.target)
    }

    /// The blocks of its structures.
    pub fn held(&self) -> impl Iterator<Item = BlockAt> {
        self.files.iter().flat_map(File::held)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Cluster {
    pub now: u64,
    pub block: BlockSize,
    pub jobs: Vec<Job>,
    /// Total blocks of each live server, and the time of its last message.
    pub servers: BTreeMap<ServerId, (u64, u64)>,
    pub quarantined: BTreeSet<BlockAt>,
    /// Cores of each server; servers not listed have one.
    pub cores: BTreeMap<ServerId, u64>,
    /// The capacities of blocks, in units; blocks not listed are whole.
    pub capacities: BTreeMap<BlockAt, u64>,
    /// Members from before a restart that are not back: they provide no blocks.
    pub away: BTreeSet<ServerId>,
    /// Members that were silent, or whose connection closed: they provide no blocks.
    pub suspected: BTreeSet<ServerId>,
    /// Servers that are back and have not reported all of their blocks.
    pub reporting: BTreeSet<ServerId>,
    /// Draining servers: they provide no blocks.
    pub drains: BTreeMap<ServerId, DrainState>,
    /// Units of each core that servers lend to this controller shard, where there are several; servers not
    /// listed have lent everything.
    pub lent: BTreeMap<ServerId, Vec<u64>>,
    /// Bytes in blocks, as last reported.
    pub used: BTreeMap<BlockAt, u64>,
    /// The tiers of blocks that are not simply in memory.
    pub tiers: Tiers,
    /// Every move that began, in that order, including ended ones.
    pub begun: Vec<Moving>,
    /// Quotas of tenants.
    pub tenants: BTreeMap<String, u64>,
    /// The weights of their shares, and their soft quotas.
    pub tenant_shares: BTreeMap<String, (u64, u64)>,
    pub shares: Shares,
}

impl Cluster {
    pub fn file(&self, (j, f): Place) -> &File {
        &self.jobs[j].files[f]
    }

    fn file_mut(&mut self, (j, f): Place) -> &mut File {
        &mut self.jobs[j].files[f]
    }

    pub fn find(&self, structure: StructureId) -> Option<Place> {
        self.jobs.iter().enumerate().find_map(|(j, job)| {
            let f = job.files.iter().position(|file| file.id == structure)?;
            Some((j, f))
        })
    }

    /// A message of a server arrived.
    pub fn hear(&mut self, server: ServerId) {
        if let Some((_, seen)) = self.servers.get_mut(&server) {
            *seen = self.now;
        }
        if !self.reporting.contains(&server) {
            self.suspected.remove(&server);
        }
    }

    /// Whether blocks may be allocated on a server.
    pub fn takes_blocks(&self, server: ServerId) -> bool {
        self.is_heard(server) && !self.drains.contains_key(&server)
    }

    fn is_heard(&self, server: ServerId) -> bool {
        !self.suspected.contains(&server) && !self.away.contains(&server)
    }

    /// Suspects silent members, and returns those that are lost for their silence (INV-56). All reports
    /// up to `heard` were applied.
    pub fn end_silence(&mut self, heard: u64, loss_ms: u64) -> Vec<ServerId> {
        let lost = self.servers.iter().filter(|(_, (_, seen))| seen + loss_ms <= heard);
        let lost: Vec<ServerId> = lost.map(|(id, _)| *id).collect();
        let silent = SERVER_SILENCE.as_millis() as u64;
        let quiet = self.servers.iter().filter(|(id, (_, seen))| {
            seen + silent <= heard && !lost.contains(id) && !self.away.contains(id)
        });
        self.suspected.extend(quiet.map(|(id, _)| *id).collect::<Vec<_>>());
        lost
    }

    /// The prefix of a structure to be created, and the structure if it exists already.
    pub fn making(
        &self,
        j: usize,
        new: &NewStructure<'_>,
    ) -> Outcome<(usize, Option<StructureId>)> {
        let job = &self.jobs[j];
        let i = job.live(new.path)?;
        match job.files.iter().find(|file| file.prefix == i && file.name == new.name) {
            Some(_) if !new.open_existing => Err("StructureExists"),
            Some(file) if file.kind != new.kind => Err("WrongKind"),
            Some(file) if !file.has_bounds([new.max_items, new.max_bytes]) => Err("OtherBounds"),
            Some(file) => Ok((i, Some(file.id))),
            None => {
                let counts = job.counting(i);
                let wanted = self.first_memory(new.kind, new.blocks);
                self.may_have(j, &counts, wanted, new.kind).map(|()| (i, None))
            }
        }
    }

    /// Blocks of a server that are not free.
    pub fn out(&self, server: ServerId) -> impl Iterator<Item = BlockAt> {
        let files = self.jobs.iter().flat_map(|job| &job.files);
        let held = files.flat_map(File::held).chain(self.quarantined.iter().copied());
        held.filter(move |at| at.block.server() == server)
    }

    /// Units of a whole block.
    pub fn whole(&self) -> u64 {
        BlockUnits::of(self.block.0).whole().into()
    }

    /// The number of blocks of a new structure for which this many were requested, and their capacity.
    pub fn first_memory(&self, kind: Kind, blocks: u32) -> (u64, u64) {
        let begins_small = kind.attributes().enlarges && blocks <= 1;
        (blocks.max(1).into(), if begins_small { 1 } else { self.whole() })
    }

    /// The capacity of a block, in units.
    pub fn units(&self, at: BlockAt) -> u64 {
        self.capacities.get(&at).copied().unwrap_or(self.whole())
    }

    /// The capacity of some blocks.
    pub fn units_of(&self, blocks: impl IntoIterator<Item = BlockAt>) -> u64 {
        blocks.into_iter().map(|at| self.units(at)).sum()
    }

    /// A block was opened with this many bytes, or has them now.
    pub fn holds(&mut self, at: BlockAt, bytes: u64) {
        let units = BlockUnits::of(self.block.0).capacity_for(bytes);
        self.capacities.insert(at, units.into());
    }

    /// Units available to ordinary allocations, and to any; and free whole blocks, whether there is room for
    /// them or it is lent to others.
    pub fn room(&self) -> (u64, u64, u64) {
        let mut room = (0, 0, 0);
        for &server in self.servers.keys().filter(|id| !self.away.contains(id)) {
            let (ordinary, any, free) = self.room_of(server);
            if self.takes_blocks(server) {
                room.0 += ordinary;
                room.1 += any;
            }
            room.2 += free / self.whole();
        }
        room
    }

    /// Units of a server that ordinary allocations may take, that any may take, and that are free.
    fn room_of(&self, server: ServerId) -> (u64, u64, u64) {
        let total = self.servers[&server].0 * self.whole();
        let in_memory = |at: &BlockAt| self.tiers.in_memory(*at);
        let out = self.units_of(self.out(server).filter(in_memory));
        let lent = self.lent_of(server);
        let any = lent.saturating_sub(out);
        (any.saturating_sub(self.reserve(lent)), any, total.saturating_sub(out))
    }

    /// Units of a server that this controller shard may use.
    fn lent_of(&self, server: ServerId) -> u64 {
        let total = self.servers[&server].0 * self.whole();
        self.lent.get(&server).map_or(total, |lent| lent.iter().sum())
    }

    fn reserve(&self, lent: u64) -> u64 {
        let whole = self.whole();
        whole * u64::from(RESERVE_BLOCKS_MIN).max(lent / whole / RESERVE_FRACTION as u64)
    }

    fn cores_of(&self, server: ServerId) -> u8 {
        let lent = self.lent.get(&server).map(|lent| lent.len() as u64);
        lent.or(self.cores.get(&server).copied()).unwrap_or(1) as u8
    }

    /// The memory of the cluster as reported, in whole blocks: reserved, free, and quarantined.
    pub fn reported(&self) -> (u64, u64, u64) {
        let (ordinary, all, free) = self.room();
        let of = |server: &ServerId| {
            let here = |at: &&BlockAt| at.block.server() == *server && self.tiers.in_memory(**at);
            let kept = self.quarantined.iter().filter(here).copied();
            self.units_of(kept).div_ceil(self.whole())
        };
        ((all - ordinary) / self.whole(), free, self.servers.keys().map(of).sum())
    }

    /// Units available on one core.
    fn core_room(&self, server: ServerId, core: u8) -> u64 {
        let lent = self.lent.get(&server).map(|lent| lent[core as usize]);
        let all = self.servers[&server].0 * self.whole();
        let lent = lent.unwrap_or(all / u64::from(self.cores_of(server)));
        let here = |at: &BlockAt| at.block.shard().0 == core && self.tiers.in_memory(*at);
        lent.saturating_sub(self.units_of(self.out(server).filter(here)))
    }

    /// Blocks of this capacity that fit into memory, also into the reserve if that is allowed.
    pub fn fits(&self, units: u64, reserve: bool) -> u64 {
        let takes = self.servers.keys().filter(|id| self.takes_blocks(**id));
        let of = |&server: &ServerId| {
            let whole = self.whole();
            let rooms = || (0..self.cores_of(server)).map(|core| self.core_room(server, core));
            let begun: u64 = rooms().map(|room| room % whole / units).sum();
            let (ordinary, any, _) = self.room_of(server);
            let room = if reserve { any } else { ordinary };
            (begun + self.whole_blocks(server, reserve) * (whole / units)).min(room / units)
        };
        takes.map(of).sum()
    }

    /// Whole blocks that fit into memory of a server: the reserve is not divided.
    fn whole_blocks(&self, server: ServerId, reserve: bool) -> u64 {
        let whole = self.whole();
        let rooms = (0..self.cores_of(server)).map(|core| self.core_room(server, core) / whole);
        let kept = self.reserve(self.lent_of(server)) / whole;
        rooms.sum::<u64>().saturating_sub(if reserve { 0 } else { kept })
    }

    /// Units of a server that would be available to ordinary allocations if none were out.
    fn lent_less_reserve(&self, server: ServerId) -> u64 {
        let lent = self.lent_of(server);
        lent.saturating_sub(self.reserve(lent))
    }

    /// Whether this many blocks of this capacity can be allocated in memory.
    pub fn may_take(
        &self,
        job: usize,
        counts: &BTreeSet<PrefixId>,
        (blocks, units): (u64, u64),
    ) -> Outcome<()> {
        self.within_quotas(job, counts, blocks * units)?;
        if self.fits(units, false) < blocks { self.no_block() } else { Ok(()) }
    }

    /// The answer to a block that needs or keeps a capacity of this many bytes: its capacity then, in units.
    pub fn larger(&self, place: Place, at: BlockAt, bytes: u64) -> Outcome<u64> {
        let file = self.file(place);
        if !file.held().contains(&at) {
            return Err("StaleBlock");
        }
        let kind = if file.extents.contains(&at) { Kind::Extents } else { file.kind };
        if !kind.attributes().enlarges {
            return Err("WrongKind");
        }
        let (before, units) = (self.units(at), BlockUnits::of(self.block.0).capacity_for(bytes));
        let (units, (tier, to)) = (u64::from(units), self.tiers.place(at));
        if units <= before {
            return Ok(units); // The memory behind it was given back.
        }
        let moves = |moving: &Moving| moving.source == at || moving.target == at;
        if tier != to || file.pending.iter().any(moves) {
            return Err("Moving");
        }
        let (more, server) = (units - before, at.block.server());
        self.within_quotas(place.0, &file.counts, more)?;
        let (whole, room) = (self.whole(), self.core_room(server, at.block.shard().0));
        let divides = |more| room / whole - (room - more) / whole;
        let has_room = tier.is_below()
            || self.is_heard(server)
                && self.room_of(server).0 >= more
                && room >= more
                && divides(more) <= self.whole_blocks(server, false);
        if has_room { Ok(units) } else { self.no_block().map(|()| units) }
    }

    /// There is none; while servers are awaited it is unknown.
    pub fn no_block(&self) -> Outcome<()> {
        Err(if self.away.is_empty() { "OutOfMemory" } else { "Recovering" })
    }

    pub fn free(&mut self, blocks: impl IntoIterator<Item = BlockAt>) {
        self.quarantined.extend(blocks);
    }

    /// A server is lost; removes the structures that had data on it.
    pub fn lose(&mut self, server: ServerId) {
        self.servers.remove(&server);
        self.lent.remove(&server);
        self.tiers.below.remove(&server);
        self.tiers.stores.remove(&server);
        self.tiers.places.retain(|at, _| at.block.server() != server);
        self.drains.remove(&server);
        self.reporting.remove(&server);
        self.suspected.remove(&server);
        let here = |at: &BlockAt| at.block.server() == server;
        self.end_private_on(here);
        for j in 0..self.jobs.len() {
            let mut files = std::mem::take(&mut self.jobs[j].files);
            // A split whose target is lost is cancelled, if nothing else of the structure is lost.
            for file in &mut files {
                file.pending.retain(|moving| !moving.way.takes_anew() || !here(&moving.target));
            }
            let (lost, kept) = files.into_iter().partition(|f| f.held().iter().any(here));
            self.jobs[j].files = kept;
            let lost: Vec<File> = lost;
            self.free(lost.iter().flat_map(File::held).collect::<Vec<_>>());
        }
        self.quarantined.retain(|at| !here(at));
    }
}
