//! Splits and merges of kvs, and moves of blocks off servers: the requests of blocks, and the messages to the
//! targets of moves.

use super::{Cluster, File, Outcome, Place, Range, Verdict, require};
use honeycomb_catalog::{Effect, MapEntry, Reply};
use honeycomb_types::limits::{MOVE_MAX, RESERVE_BLOCKS_MIN, SLOT_WIDTH};
use honeycomb_types::{BlockAt, BlockUnits, Kind, MoveId, ServerId, StructureId, Way};
use std::collections::{BTreeMap, BTreeSet};

/// A move, as it was when it began.
#[derive(Clone, Copy, Debug)]
pub struct Moving {
    pub id: MoveId,
    pub structure: StructureId,
    pub source: BlockAt,
    pub target: BlockAt,
    pub start: u64,
    pub way: Way,
    pub since: u64,
}

/// The answer to a source: the range, the target, and the move. `None` for a new block and a new move.
#[derive(Debug)]
pub struct Giving {
    pub id: Option<MoveId>,
    pub target: Option<BlockAt>,
    pub start: u64,
    pub end: u64,
}

impl Giving {
    pub fn is(&self, id: MoveId, entry: &MapEntry) -> bool {
        (entry.start, entry.end) == (self.start, self.end)
            && self.target.is_none_or(|target| target == entry.at)
            && self.id.is_none_or(|known| known == id)
    }
}

impl File {
    /// The map's version, and the range of a present or future block of the map.
    fn place_of(&self, at: BlockAt) -> (u64, Range) {
        let (version, ranges, _) = self.map();
        let own = ranges.into_iter().find(|range| range.2 == at);
        (version, own.unwrap_or((0, u64::MAX, at)))
    }

    /// The neighbour that takes a whole block, among those that stay: the emptier one, the left one of
    /// equals.
    fn neighbour(
        &self,
        at: BlockAt,
        most: u64,
        used: &BTreeMap<BlockAt, u64>,
        stays: impl Fn(BlockAt) -> bool,
    ) -> Outcome<BlockAt> {
        let place = self.chain.iter().position(|&b| b == at).unwrap();
        let busy = |b: BlockAt| self.pending.iter().any(|m| m.source == b || m.target == b);
        let used = |b: BlockAt| used.get(&b).copied().unwrap_or_default();
        let fits = |&b: &BlockAt| stays(b) && !busy(b) && used(b) + used(at) <= most;
        let left = self.chain[..place].last().copied().filter(fits);
        let right = self.chain[place + 1..].first().copied().filter(fits);
        match (left, right) {
            (Some(left), Some(right)) => Ok(if used(right) < used(left) { right } else { left }),
            (left, right) => left.or(right).ok_or("NoNeighbour"),
        }
    }
}

impl Cluster {
    /// The answer to a source of a kv that requests a move: from `start` on to a new block, or everything to
    /// a neighbour, or to a new block elsewhere.
    pub fn giving(&self, place: Place, at: BlockAt, start: u64, way: Way) -> Outcome<Giving> {
        let file = self.file(place);
        if file.kind != Kind::Kv && way != Way::Relocate {
            return Err("WrongKind");
        }
        let known = file.pending.iter().find(|m| m.source == at);
        if known.is_none() && file.pending.iter().any(|m| m.target == at) {
            return Err("Moving");
        }
        if file.kind != Kind::Kv {
            let (start, end) = (0, u64::MAX);
            if let Some(&Moving { id, target, .. }) = known {
                return Ok(Giving { id: Some(id), target: Some(target), start, end });
            }
            if !self.drains.contains_key(&at.block.server()) {
                return Err("StaysHere");
            }
            if self.away.is_empty() && !file.serving().contains(&at) {
                return Err("Moving");
            }
            self.may_leave(at)?;
            return Ok(Giving { id: None, target: None, start, end });
        }
        let Some((first, end, _)) = file.map().1.into_iter().find(|range| range.2 == at) else {
            assert!(file.extents.contains(&at), "{at:?} is neither in the map nor a target");
            return Err("StaleBlock");
        };
        if let Some(&Moving { id, target, start, .. }) = known {
            return Ok(Giving { id: Some(id), target: Some(target), start, end });
        }
        if way == Way::Relocate {
            if !self.drains.contains_key(&at.block.server()) {
                return Err("StaysHere");
            }
            self.may_leave(at)?;
            return Ok(Giving { id: None, target: None, start: first, end });
        }
        if way == Way::Merge {
            let prefix = self.jobs[place.0].prefixes[file.prefix].as_ref().unwrap();
            // A block in a lower tier accepts nothing.
            let stays = |b: BlockAt| {
                let placed = self.tiers.place(b) == Default::default();
                placed && self.takes_blocks(b.block.server())
            };
            let unit = BlockUnits::of(self.block.0).bytes();
            let most = self.whole() * unit * prefix.high as u64 / 100 * 5 / 6;
            let target = file.neighbour(at, most, &self.used, stays)?;
            return Ok(Giving { id: None, target: Some(target), start: first, end });
        }
        if start <= first || start > end || !start.is_multiple_of(SLOT_WIDTH) {
            return Err("InvalidArgument");
        }
        self.may_move(place, at)?;
        Ok(Giving { id: None, target: None, start, end })
    }

    /// A relocation counts towards no quota, and uses the reserve if two blocks of it remain.
    fn may_leave(&self, at: BlockAt) -> Outcome<()> {
        let (ordinary, all, _) = self.room();
        let reserve = ordinary > 0 || all > u64::from(RESERVE_BLOCKS_MIN) * self.whole();
        match self.away.is_empty() {
            true if self.fits(self.units(at), reserve) > 0 => Ok(()),
            _ => self.no_block(),
        }
    }

    fn may_move(&self, place: Place, at: BlockAt) -> Outcome<()> {
        let units = self.units(at);
        self.within_quotas(place.0, &self.file(place).counts, units)?;
        if self.fits(units, true) == 0 { self.no_block() } else { Ok(()) }
    }

    /// A source received its move; returns false when the move's number was used by another.
    pub fn give(&mut self, place: Place, moving: Moving) -> bool {
        let Moving { id, source, .. } = moving;
        if self.file(place).pending.iter().any(|m| (m.id, m.source) == (id, source)) {
            return true;
        }
        let fresh = self.begun.iter().all(|begun| begun.id != id);
        self.begun.push(moving);
        self.file_mut(place).pending.push(moving);
        fresh
    }

    /// Cancels moves that are under way; returns how many.
    pub fn cancel(&mut self, which: impl Fn(&Moving) -> bool) -> u64 {
        let files = self.jobs.iter_mut().flat_map(|job| &mut job.files);
        let over = files.flat_map(|file| file.pending.extract_if(.., |moving| which(moving)));
        let over: Vec<Moving> = over.collect();
        self.free(over.iter().filter(|moving| moving.way.takes_anew()).map(|moving| moving.target));
        over.len() as u64
    }

    /// Time has passed: cancels overdue moves.
    pub fn cancel_overdue(&mut self) -> u64 {
        let now = self.now;
        self.cancel(|moving| moving.since + MOVE_MAX.as_millis() as u64 <= now)
    }

    /// A source commits a move: the map's version, and the new owner's range of the moved part. `None`: no
    /// source can be waiting for the answer.
    pub fn commit_move(
        &mut self,
        place: Place,
        at: BlockAt,
        id: MoveId,
        target: BlockAt,
    ) -> Option<Outcome<(u64, Range)>> {
        let file = self.file_mut(place);
        let Some(i) = file.pending.iter().position(|moving| moving.id == id) else {
            return self.commit_again(place, at, id, target);
        };
        let moving = file.pending[i];
        if (moving.source, moving.target) != (at, target) {
            return Some(Err("StaleBlock"));
        }
        file.pending.remove(i);
        file.committed.insert(id);
        if file.kind != Kind::Kv {
            file.relocate(at, target);
            let reply = file.place_of(target);
            self.free([at]);
            return Some(Ok(reply));
        }
        let from = file.chain.iter().position(|&b| b == at).unwrap();
        if moving.way == Way::Relocate {
            file.chain[from] = target;
        } else if moving.way == Way::Merge {
            file.chain.remove(from);
            // The start of the right neighbour is removed, not the source's.
            let right = file.chain.get(from) == Some(&target);
            file.starts.remove(if right { from + 1 } else { from });
        } else {
            file.chain.insert(from + 1, target);
            file.starts.insert(from + 1, moving.start);
        }
        let (version, ranges, _) = file.map();
        let owner = ranges.into_iter().find(|range| range.2 == target).unwrap();
        if moving.way.gives_all() {
            self.free([at]);
        }
        Some(Ok((version, owner)))
    }

    /// A repeated commit: committed stays committed, cancelled stays cancelled. A source can be waiting only
    /// for its last move.
    fn commit_again(
        &self,
        place: Place,
        at: BlockAt,
        id: MoveId,
        target: BlockAt,
    ) -> Option<Outcome<(u64, Range)>> {
        let last = self.begun.iter().rev().find(|begun| begun.source == at)?;
        if last.id != id {
            return None;
        }
        let file = self.file(place);
        if file.kind != Kind::Kv {
            return Some(match file.committed.contains(&id) {
                true if file.serving().contains(&target) => Ok(file.place_of(target)),
                false if file.serving().contains(&at) => Err("MoveCancelled"),
                _ => Err("StaleBlock"),
            });
        }
        if !file.committed.contains(&id) {
            assert!(file.chain.contains(&at), "a source that has not given keeps its range");
            return Some(Err("MoveCancelled"));
        }
        let (version, ranges, _) = file.map();
        let own = ranges.iter().position(|range| range.2 == at);
        // The target may have moved it on: then the successor of the source answers for it.
        let next = own.map(|own| ranges[(own + 1).min(ranges.len() - 1)]);
        let owner = ranges.into_iter().find(|range| range.2 == target).or(next);
        Some(owner.map(|owner| (version, owner)).ok_or("StaleBlock"))
    }
}

/// The answer to a commit.
pub fn moved(reply: &Reply) -> Option<(u64, Range)> {
    match reply {
        Reply::Moved { version, entry: MapEntry { start, end, at, .. } } => {
            Some((version.0, (*start, *end, *at)))
        }
        _ => None,
    }
}

/// The messages to the targets of moves.
#[derive(Default)]
pub struct Imports {
    /// The move that each block imports, and whether the block serves meanwhile.
    under_way: BTreeMap<BlockAt, (MoveId, bool)>,
    /// The reported outcome of each move.
    ends: BTreeMap<MoveId, bool>,
}

impl Imports {
    /// A server receives an effect; `open` is the set of blocks that servers held before.
    pub fn hear(&mut self, effect: &Effect, open: &BTreeSet<BlockAt>) -> Verdict {
        match *effect {
            Effect::OpenBlock { at, importing, .. } if importing != MoveId::NONE => {
                // Repeated for a server that reconnected without the block.
                let before = self.under_way.insert(at, (importing, false));
                let first = before.is_none_or(|before| before == (importing, false));
                require(first, || format!("{at:?} is opened twice for moves (INV-20)"))
            }
            Effect::FreeBlock { at, .. } => {
                self.under_way.remove(&at);
                Ok(())
            }
            Effect::BeginImport { server, at, id, .. } => {
                let before = self.under_way.insert(at, (id, true));
                let alone = before.is_none_or(|(other, serves)| other == id && serves);
                let there = server == at.block.server() && open.contains(&at);
                require(alone && there && !self.ends.contains_key(&id), || {
                    format!("{at:?} begins {id:?} beside {before:?} (INV-20)")
                })
            }
            Effect::EndImport { server, at, id, commit } => {
                let told = *self.ends.entry(id).or_insert(commit);
                if self.under_way.get(&at).is_some_and(|(other, _)| *other == id) {
                    self.under_way.remove(&at);
                }
                require(server == at.block.server() && open.contains(&at), || {
                    format!("{server} is sent the end of {id:?}, but does not hold {at:?}")
                })?;
                require(told == commit, || format!("{id:?} was committed and cancelled (INV-20)"))
            }
            _ => Ok(()),
        }
    }

    pub fn forget(&mut self, server: ServerId) {
        self.under_way.retain(|at, _| at.block.server() != server);
    }

    /// INV-17, INV-20: the blocks that import are exactly the targets of moves under way, and no
    /// block of a map waits to be filled.
    pub fn compare(&self, cluster: &Cluster) -> Verdict {
        let files = cluster.jobs.iter().flat_map(|job| &job.files);
        let pending = files.clone().flat_map(|file| &file.pending);
        let importing = |moving: &Moving| (moving.target, (moving.id, moving.way == Way::Merge));
        let due: BTreeMap<BlockAt, (MoveId, bool)> = pending.map(importing).collect();
        let is = &self.under_way;
        require(*is == due, || format!("{is:?} import, and {due:?} should (INV-20)"))?;
        for at in files.flat_map(|file| file.map().1).map(|range| range.2) {
            let serves = is.get(&at).is_none_or(|(_, serves)| *serves);
            require(serves, || format!("{at:?} is in the map, and not filled yet (INV-17)"))?;
        }
        Ok(())
    }
}
