//! Splits and merges in the reference model: what blocks ask for, and what the targets are told.

use super::reference::{File, Moving};
use super::{CatalogModel, Outcome, Verdict, agree, require};
use honeycomb_catalog::{CatalogError, Effect as Order, MapEntry, Reply};
use honeycomb_types::limits::MOVE_MAX;
use honeycomb_types::{BlockAt, Kind, MoveId, ServerId, StructureId};
use std::collections::{BTreeMap, BTreeSet};

/// What servers were told of moves.
#[derive(Default)]
pub struct Imports {
    /// Which block each move is from and to.
    begun: BTreeMap<MoveId, Moving>,
    /// When each began that is not over, in milliseconds.
    since: Vec<(u64, StructureId, MoveId)>,
    /// What each block imports, and whether it serves something meanwhile.
    under_way: BTreeMap<BlockAt, (MoveId, bool)>,
    /// What each move was said to have come to.
    ends: BTreeMap<MoveId, bool>,
}

impl Imports {
    pub fn hear(&mut self, order: &Order, open: &BTreeSet<BlockAt>) -> Verdict {
        match *order {
            Order::OpenBlock { at, importing, .. } if importing != MoveId::NONE => {
                // The same again for a server that came back without it.
                let before = self.under_way.insert(at, (importing, false));
                let first = before.is_none_or(|before| before == (importing, false));
                require(first, || format!("{at:?} is opened twice for moves (INV-20)"))
            }
            Order::FreeBlock { at, .. } => {
                self.under_way.remove(&at);
                Ok(())
            }
            Order::BeginImport { at, id, .. } => {
                let before = self.under_way.insert(at, (id, true));
                let alone = before.is_none_or(|(other, serves)| other == id && serves);
                let due = alone && open.contains(&at) && !self.ends.contains_key(&id);
                require(due, || format!("{at:?} begins {id:?} beside {before:?} (INV-20)"))
            }
            Order::EndImport { at, id, commit, .. } => {
                let told = *self.ends.entry(id).or_insert(commit);
                if self.under_way.get(&at).is_some_and(|(other, _)| *other == id) {
                    self.under_way.remove(&at);
                }
                let once = told == commit && open.contains(&at);
                require(once, || format!("{id:?} was committed and cancelled (INV-20)"))
            }
            _ => Ok(()),
        }
    }

    pub fn forget(&mut self, server: ServerId) {
        self.under_way.retain(|at, _| at.block.server() != server);
    }

    /// INV-17, INV-20: the blocks that import are exactly the targets of moves under way, and no
    /// block of a map waits to be filled.
    pub fn compare<'a>(&self, files: impl Iterator<Item = &'a File> + Clone) -> Verdict {
        let pending = files.clone().flat_map(|file| &file.pending);
        let due: BTreeMap<BlockAt, (MoveId, bool)> =
            pending.map(|moving| (moving.target, (moving.id, moving.merge))).collect();
        let is = &self.under_way;
        require(*is == due, || format!("{is:?} import, and {due:?} should (INV-20)"))?;
        for at in files.filter(|f| f.kind == Kind::Kv).flat_map(|f| f.map().1).map(|r| r.2) {
            let serves = is.get(&at).is_none_or(|(_, serves)| *serves);
            require(serves, || format!("{at:?} is in the map, and not filled yet (INV-17)"))?;
        }
        Ok(())
    }
}

/// The neighbour that takes all of a block: the one with less, the left one of equals.
fn neighbour(file: &File, at: BlockAt, used: &BTreeMap<BlockAt, u64>) -> Outcome<BlockAt> {
    let place = file.chain.iter().position(|&b| b == at).ok_or("StaleBlock")?;
    let busy = |b: BlockAt| file.pending.iter().any(|m| m.source == b || m.target == b);
    let used = |b: BlockAt| used.get(&b).copied().unwrap_or_default();
    let most = crate::server::BLOCK as u64 * 5 / 8;
    let fits = |&b: &BlockAt| !busy(b) && used(b) + used(at) <= most;
    let left = file.chain[..place].last().copied().filter(fits);
    let right = file.chain[place + 1..].first().copied().filter(fits);
    match (left, right) {
        (Some(left), Some(right)) => Ok(if used(right) < used(left) { right } else { left }),
        (left, right) => left.or(right).ok_or("NoNeighbour"),
    }
}

impl CatalogModel {
    /// The move that began last.
    pub fn last_move(&self) -> Option<MoveId> {
        self.imports.begun.keys().max().copied()
    }

    /// From which block to which a move is.
    pub fn parties(&self, id: MoveId) -> Option<(BlockAt, BlockAt)> {
        self.imports.begun.get(&id).map(|moving| (moving.source, moving.target))
    }

    fn may_move(&self, j: usize) -> Outcome<()> {
        let job = &self.cluster.jobs[j];
        if job.quota != 0 && job.held() + 1 > job.quota {
            return Err("QuotaExceeded");
        }
        let none = self.cluster.room().1 == 0;
        match self.is_recovering() {
            true if job.quota != 0 || none => Err("Recovering"),
            false if none => Err("OutOfMemory"),
            _ => Ok(()),
        }
    }

    pub(super) fn begin_move(
        &mut self,
        structure: StructureId,
        at: BlockAt,
        start: u64,
        merge: bool,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        self.hear(at.block.server());
        let found = self.find(structure);
        let held = found.filter(|(j, f)| self.cluster.jobs[*j].files[*f].held().contains(&at));
        let Some((j, f)) = held else {
            return require(reply.is_err(), || format!("a move of {at:?}, which is not held"));
        };
        let file = self.cluster.jobs[j].files[f].clone();
        let (_, ranges, _) = file.map();
        let own = ranges.iter().find(|range| range.2 == at);
        let known = file.pending.iter().find(|m| m.source == at);
        let expected = match (known, own) {
            (Some(moving), _) => Ok(Some(moving.target)),
            _ if file.pending.iter().any(|m| m.target == at) => Err("Moving"),
            (None, Some(_)) if merge => neighbour(&file, at, &self.cluster.used).map(Some),
            (None, Some(&(first, end, _))) if start <= first || start > end => {
                Err("InvalidArgument")
            }
            (None, Some(_)) if !start.is_multiple_of(1 << 58) => Err("InvalidArgument"),
            (None, Some(_)) => self.may_move(j).map(|()| None),
            (None, None) => return Err(format!("{at:?} is neither in a map nor a target")),
        };
        agree("a move", reply, &expected)?;
        let (Ok(Reply::Moving { id, entry }), Ok(target)) = (reply, expected) else {
            return Ok(());
        };
        let &(first, end, _) = own.ok_or("a source is not in the map")?;
        let start = known.map_or(if merge { first } else { start }, |m| m.start);
        let due = (entry.start, entry.end) == (start, end) && target.is_none_or(|t| t == entry.at);
        require(due, || format!("{entry:?} is to move of {first} to {end} (INV-20)"))?;
        if let Some(known) = known {
            return require(known.id == *id, || "one move has two names (INV-20)".into());
        }
        let moving = Moving { id: *id, source: at, target: entry.at, start, merge };
        let fresh = self.imports.begun.insert(*id, moving).is_none();
        require(fresh, || "two moves have one name (INV-20)".into())?;
        self.imports.since.push((self.cluster.now, structure, *id));
        self.cluster.jobs[j].files[f].pending.push(moving);
        Ok(())
    }

    /// A controller that has begun anew gives every move its whole time again.
    pub(super) fn restart_moves(&mut self) {
        let now = self.cluster.now;
        self.imports.since.iter_mut().for_each(|began| began.0 = now);
    }

    /// Time has passed: what lasts too long is cancelled.
    pub(super) fn cancel_overdue(&mut self) {
        let last = self.cluster.now.saturating_sub(MOVE_MAX.as_millis() as u64);
        let overdue: Vec<_> = self.imports.since.extract_if(.., |began| began.0 <= last).collect();
        for (_, structure, id) in overdue {
            self.undo_move(Some(structure), id);
        }
    }

    pub(super) fn cancel_move(
        &mut self,
        structure: Option<StructureId>,
        id: MoveId,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        self.undo_move(structure, id);
        require(reply.is_ok(), || format!("the end of a move was answered {reply:?}"))
    }

    fn undo_move(&mut self, structure: Option<StructureId>, id: MoveId) {
        let of = |file: &&mut super::File| structure.is_none_or(|s| file.id == s);
        let mut files = self.cluster.jobs.iter_mut().flat_map(|job| &mut job.files).filter(of);
        let found = files.find_map(|file| {
            let at = file.pending.iter().position(|moving| moving.id == id)?;
            Some(file.pending.remove(at))
        });
        if let Some(moving) = found.filter(|moving| !moving.merge) {
            self.cluster.free([moving.target]);
        }
    }

    pub(super) fn commit_move(
        &mut self,
        structure: StructureId,
        at: BlockAt,
        id: MoveId,
        target: BlockAt,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        self.hear(at.block.server());
        let Some((j, f)) = self.find(structure) else {
            return agree("a commit", reply, &Err::<(), _>("UnknownStructure"));
        };
        let file = &mut self.cluster.jobs[j].files[f];
        let Some(i) = file.pending.iter().position(|m| m.id == id) else {
            return self.commit_again(j, f, at, id, target, reply);
        };
        let moving = file.pending.remove(i);
        file.committed.insert(id);
        let place = file.chain.iter().position(|&b| b == moving.source);
        let place = place.ok_or("a source is not in the map (INV-17)")?;
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
        let owner = ranges.into_iter().find(|range| range.2 == target);
        let due = owner.map(|range| (version, range));
        let is = moved(reply);
        require(is == due, || format!("a commit was answered {is:?}, not {due:?} (INV-20)"))?;
        if moving.merge {
            self.cluster.free([moving.source]);
        }
        Ok(())
    }

    /// A commit that comes again: committed stays committed, cancelled stays cancelled.
    fn commit_again(
        &mut self,
        j: usize,
        f: usize,
        at: BlockAt,
        id: MoveId,
        target: BlockAt,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        let file = &self.cluster.jobs[j].files[f];
        // Only the last move of a source is one that it can be waiting for.
        let of_source = |m: &&Moving| m.source == at;
        let last = self.imports.begun.values().filter(of_source).map(|m| m.id).max();
        if last != Some(id) {
            return Ok(());
        }
        let (version, ranges, _) = file.map();
        let at_target = ranges.iter().find(|range| range.2 == target);
        if !file.committed.contains(&id) {
            return agree("a commit", reply, &Err::<(), _>("MoveCancelled"));
        }
        let own = ranges.iter().position(|range| range.2 == at);
        let next = own.map(|own| &ranges[(own + 1).min(ranges.len() - 1)]);
        let Some(owner) = at_target.or(next) else {
            return agree("a commit", reply, &Err::<(), _>("StaleBlock"));
        };
        let (is, due) = (moved(reply), Some((version, *owner)));
        require(is == due, || format!("a commit was answered {is:?}, not {due:?} (INV-20)"))
    }
}

fn moved(reply: &Result<Reply, CatalogError>) -> Option<(u64, (u64, u64, BlockAt))> {
    match reply {
        Ok(Reply::Moved { version, entry: MapEntry { start, end, at, .. } }) => {
            Some((version.0, (*start, *end, *at)))
        }
        _ => None,
    }
}
