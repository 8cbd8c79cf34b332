//! Moves: splits and merges of a kv, and moves of blocks off a server. A block (the *source*) moves the rest
//! of its range from some slot on to a new block, or its whole range to a neighbour, or to a new block on
//! another server (the *target*), which replaces it (`relocate`).
//!
//! The catalog records the intent, from `BeginMove` on, and makes the commit, which is one transition of the
//! map: before it the source owns the range, after it the target does, and no move is both committed and
//! cancelled (INV-20). A block takes part in at most one move at a time, so that the ranges at both ends are
//! fixed while it lasts.
//!
//! A move whose source has lost its state is cancelled after `limits::MOVE_MAX`, so that no block is held for
//! ever.
//!
//! Every request may be repeated. The outcome of the last move of a block is recorded for as long as the
//! block is in the map. With it, a source that missed the answer to its commit can be answered again, and a
//! target that missed the end of the move can be notified again.

use crate::pool::{Draw, SlotOwner, Wanted};
use crate::structures::{Placed, StructureRecord};
use crate::{Catalog, CatalogError, Effect, MapEntry, Reply};
use honeycomb_types::limits::{MOVE_MAX, SLOT_WIDTH};
use honeycomb_types::{BlockAt, BlockId, Bug, MapVersion, MoveId, ServerId, StructureId, Way};

/// Two blocks merge when together they hold at most this share of the fill at which a block splits. A merged
/// block splits no earlier than after it has grown (`HEAVIER` of the structure).
const MERGE_FILL: (u64, u64) = (5, 6);

/// A move that is neither committed nor cancelled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    pub(crate) id: MoveId,
    pub(crate) source: BlockId,
    pub(crate) target: BlockId,
    /// The range that moves, inclusive.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) way: Way,
}

/// The last ended moves of a block in the map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Past {
    pub(crate) block: BlockId,
    /// Its last split as the source; a block that moved its whole range is no longer in the map.
    pub(crate) gave: MoveId,
    /// The last move to it, and whether that was committed.
    pub(crate) took: (MoveId, bool),
}

/// The moves of a structure, if it has ever had any.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    pending: Vec<Move>,
    past: Vec<Past>,
}

impl Moves {
    /// The recovered moves of a structure.
    pub(crate) fn recovered(pending: Vec<Move>, past: Vec<Past>) -> Option<Box<Moves>> {
        let any = !pending.is_empty() || !past.is_empty();
        any.then(|| Box::new(Moves { pending, past }))
    }

    /// Blocks that are not in the map yet: targets of splits and relocations.
    pub(crate) fn new_targets(&self) -> impl Iterator<Item = BlockId> {
        self.pending.iter().filter(|mv| mv.way.takes_anew()).map(|mv| mv.target)
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of::<Moves>()
            + self.pending.capacity() * size_of::<Move>()
            + self.past.capacity() * size_of::<Past>()
    }

    fn past_of(&mut self, block: BlockId) -> &mut Past {
        let known = self.past.iter().position(|past| past.block == block);
        let at = known.unwrap_or_else(|| {
            self.past.push(Past { block, gave: MoveId::NONE, took: (MoveId::NONE, false) });
            self.past.len() - 1
        });
        &mut self.past[at]
    }
}

impl StructureRecord {
    pub(crate) fn pending(&self) -> &[Move] {
        self.moves.as_ref().map_or(&[], |moves| &moves.pending)
    }

    pub(crate) fn past(&self) -> &[Past] {
        self.moves.as_ref().map_or(&[], |moves| &moves.past)
    }

    /// The move that involves a block.
    pub(crate) fn move_of(&self, block: BlockId) -> Option<Move> {
        let own = |mv: &&Move| mv.source == block || mv.target == block;
        self.pending().iter().find(own).copied()
    }

    fn move_with(&self, id: MoveId) -> Option<Move> {
        self.pending().iter().find(|mv| mv.id == id).copied()
    }

    fn place_of(&self, block: BlockId) -> Option<usize> {
        self.entries.iter().position(|entry| entry.block == block)
    }

    fn end_move(&mut self, id: MoveId) -> &mut Moves {
        let moves = self.moves.as_mut().expect("the caller has found the move");
        let before = moves.pending.len();
        moves.pending.retain(|mv| mv.id != id);
        let left = moves.pending.len();
        assert_eq!(
            left + 1,
            before,
            "INV-20: move {id} ends, and is listed {} times",
            before - left
        );
        moves
    }

    /// The giver's end of a commit: a block that moves has the whole range of its move, as when it began.
    fn check_source(&self, mv: &Move) {
        let Some(place) = self.place_of(mv.source).filter(|_| !self.router.grows()) else { return };
        let (start, end) = (self.entries[place].start, self.end(place));
        assert!(
            start <= mv.start && mv.end == end && (mv.start == start) == mv.way.gives_all(),
            "INV-20: the source of {mv:?} has {start:#x} to {end:#x} at the commit"
        );
    }

    /// The taker's end of a commit: the target has the range, and no other block a part of it.
    fn check_target(&self, place: usize, mv: &Move) {
        let (start, end) = (self.entries[place].start, self.end(place));
        let before = place.checked_sub(1).map(|before| self.entries[before].start);
        assert!(
            start <= mv.start && mv.end <= end && before.is_none_or(|before| before < start),
            "INV-17: the target of {mv:?} has {start:#x} to {end:#x} after the commit"
        );
        assert!(place > 0 || start == 0, "INV-17: the map begins at {start:#x} after {mv:?}");
    }

    /// Whether a block is not a target: it serves, or will serve when its predecessors are full.
    pub(crate) fn serves(&self, block: BlockId) -> bool {
        let granted = self.growth.iter().flat_map(|growth| &growth.granted);
        self.place_of(block).is_some() || granted.into_iter().any(|g| g.block == block)
    }

    /// A block left the structure: its past moves need no more notifications.
    pub(crate) fn forget_moves_to(&mut self, block: BlockId) {
        if let Some(moves) = &mut self.moves {
            moves.past.retain(|past| past.block != block);
        }
    }

    /// A relocation was committed: the new block replaces the old one.
    fn relocated(&mut self, old: BlockId, new: BlockId) {
        let placed = self.entries.iter_mut().map(|entry| &mut entry.block);
        let granted = self.growth.iter_mut().flat_map(|growth| &mut growth.granted);
        let mut all = placed.chain(granted.map(|granted| &mut granted.block));
        *all.find(|block| **block == old).expect("the structure owns the moved block") = new;
        if let Some(queue) = &mut self.queue {
            queue.relocated(old, new);
        }
    }

    /// The violation of INV-17 or INV-20 by its moves, if any.
    pub(crate) fn check_moves(&self) -> Result<(), &'static str> {
        let pending = self.pending();
        for (i, mv) in pending.iter().enumerate() {
            let others = pending[..i].iter().chain(&pending[i + 1..]);
            let shared = |other: &Move| {
                [other.source, other.target].iter().any(|b| [mv.source, mv.target].contains(b))
            };
            if mv.source == mv.target || others.clone().any(|other| other.id == mv.id) {
                return Err("a move has one block as both ends, or is listed twice");
            }
            if others.clone().any(shared) {
                return Err("a block takes part in two moves");
            }
            if self.router.grows() {
                // Its range stays open until it is sealed.
                if !self.serves(mv.source) || self.serves(mv.target) || mv.way != Way::Relocate {
                    return Err("a move has a source that does not exist, or the wrong target");
                }
                continue;
            }
            let Some(from) = self.place_of(mv.source) else {
                return Err("the source of a move is not in the map");
            };
            let (start, end) = (self.entries[from].start, self.end(from));
            let (placed, within) = match self.place_of(mv.target) {
                Some(to) => (mv.way == Way::Merge && to.abs_diff(from) == 1, mv.start == start),
                None if mv.way == Way::Relocate => (true, mv.start == start),
                None => (mv.way == Way::Split, mv.start > start && mv.start <= end),
            };
            if !placed || !within || mv.end != end || !mv.start.is_multiple_of(SLOT_WIDTH) {
                return Err("a move has a range outside its source, or the wrong target");
            }
        }
        if self.past().iter().any(|past| !self.serves(past.block)) {
            return Err("a block that is not in the map has recorded moves");
        }
        Ok(())
    }
}

impl Catalog {
    /// A source requests a move: from `start` on to a new block, or everything to a neighbour, or to a new
    /// block elsewhere. A repetition by a source with a move in progress returns that move, whatever it
    /// requests now.
    pub(crate) fn begin_move(
        &mut self,
        id: StructureId,
        at: BlockAt,
        start: u64,
        way: Way,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let s = self.held_by(id, at)?;
        let attributes = self.structures[s].attributes();
        match way {
            Way::Relocate if attributes.relocates => {}
            Way::Split | Way::Merge if attributes.splits => {}
            Way::Relocate => return Err(self.wrong_kind(s, "structure whose blocks move")),
            Way::Split | Way::Merge => return Err(self.wrong_kind(s, "structure that splits")),
        }
        if self.holds_extents(at) {
            return Err(CatalogError::StaleBlock { at });
        }
        let mv = match self.structures[s].move_of(at.block) {
            Some(mv) if mv.source == at.block => {
                if mv.way == Way::Merge {
                    effects.push(self.begin_import(mv));
                }
                mv
            }
            Some(_) => return Err(CatalogError::Moving { at }),
            None if self.stays_for_flush(s, at.block) => return Err(CatalogError::Moving { at }),
            None => match way {
                Way::Split => self.begin_split(s, at, start, effects)?,
                Way::Merge => self.begin_merge(s, at, effects)?,
                Way::Relocate => self.begin_relocation(s, at, effects)?,
            },
        };
        let entry = self.entry(mv.target, mv.start, mv.end);
        Ok(Reply::Moving { id: mv.id, entry })
    }

    /// A block's place in the map, and its range; of a kv.
    pub(crate) fn range_of(&self, s: u32, block: BlockId) -> (usize, u64, u64) {
        let structure = &self.structures[s];
        let place = structure.place_of(block).expect("a kv's block is in the map, or a target");
        (place, structure.entries[place].start, structure.end(place))
    }

    /// Records a move under a number of its own.
    pub(crate) fn note_move(&mut self, s: u32, mv: Move) -> Move {
        self.last_move += 1;
        let id = MoveId(self.numbered(self.last_move));
        let mv = Move { id, ..mv };
        let other = self.structures[s].move_of(mv.source).or(self.structures[s].move_of(mv.target));
        assert!(
            other.is_none(),
            "INV-20: {mv:?} begins, and a block of it takes part in {other:?}"
        );
        assert_ne!(mv.source, mv.target, "INV-20: a block moves to itself");
        self.structures.changes(s, usize::MAX);
        self.moves_due.push_back((self.now + MOVE_MAX, self.structures[s].id, id));
        self.structures[s].moves.get_or_insert_default().pending.push(mv);
        mv
    }

    fn begin_split(
        &mut self,
        s: u32,
        at: BlockAt,
        start: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<Move, CatalogError> {
        let (id, source, way) = (MoveId::NONE, at.block, Way::Split);
        let (_, first, end) = self.range_of(s, source);
        if start <= first || start > end || !start.is_multiple_of(SLOT_WIDTH) {
            return Err(CatalogError::InvalidArgument {
                what: "the first hash of the range to split off",
                given: start,
                allowed: "it is the first of a slot, within the block's range and not its first",
            });
        }
        let StructureRecord { job, prefix, .. } = self.structures[s];
        let kind = self.structures[s].placed_as();
        let wanted = Wanted::one(self.pool.units(source));
        let target = self.take_blocks((job, prefix), s, kind, wanted, Draw::Reserve)?[0].block;
        let mv = self.note_move(s, Move { id, source, target, start, end, way });
        effects.push(self.open_effect(s, target, (start, end), mv.id));
        Ok(mv)
    }

    fn begin_merge(
        &mut self,
        s: u32,
        at: BlockAt,
        effects: &mut Vec<Effect>,
    ) -> Result<Move, CatalogError> {
        let (id, source, way) = (MoveId::NONE, at.block, Way::Merge);
        let target = self.roomy_neighbour(s, source).ok_or(CatalogError::NoNeighbour { at })?;
        let (_, start, end) = self.range_of(s, source);
        let mv = self.note_move(s, Move { id, source, target, start, end, way });
        effects.push(self.begin_import(mv));
        Ok(mv)
    }

    /// The emptier of the neighbours that take part in no move, are in memory and have room for the whole
    /// content of the block. Based on the last reports of the servers: the target itself refuses content that
    /// it cannot hold.
    fn roomy_neighbour(&self, s: u32, block: BlockId) -> Option<BlockId> {
        let (place, ..) = self.range_of(s, block);
        let structure = &self.structures[s];
        let marks = self.marks(structure.prefix);
        // The neighbour's capacity grows to that of a whole block, if that is needed.
        let most = marks.split_at(self.block_size as usize) as u64 * MERGE_FILL.0 / MERGE_FILL.1;
        let own = self.pool.bytes_used(block);
        [place.checked_sub(1), Some(place + 1)]
            .into_iter()
            .filter_map(|side| Some(structure.entries.get(side?)?.block))
            .filter(|&side| structure.move_of(side).is_none())
            .filter(|&side| {
                self.pool.takes_blocks(side.server()) && self.pool.stays_in_memory(side)
            })
            .map(|side| (self.pool.bytes_used(side), side))
            .filter(|&(used, _)| used + own <= most)
            .min_by_key(|(used, _)| *used)
            .map(|(_, side)| side)
    }

    fn begin_import(&self, mv: Move) -> Effect {
        let (server, at) = (mv.target.server(), self.pool.at(mv.target));
        Effect::BeginImport { server, at, id: mv.id, start: mv.start, end: mv.end }
    }

    fn end_import(&self, target: BlockId, id: MoveId, commit: bool) -> Effect {
        Effect::EndImport { server: target.server(), at: self.pool.at(target), id, commit }
    }

    /// The commit point of a move: the target owns the range from here on.
    pub(crate) fn commit_move(
        &mut self,
        id: StructureId,
        at: BlockAt,
        number: MoveId,
        (target, bytes): (BlockAt, u64),
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        self.heard_from(at.block.server());
        let s = self.structures.find(id).ok_or(CatalogError::UnknownStructure { structure: id })?;
        self.need_sound(s)?;
        let Some(mv) = self.structures[s].move_with(number) else {
            return self.commit_again(s, at, number, target, effects);
        };
        for (block, named) in [(mv.source, at), (mv.target, target)] {
            if self.pool.at(block) != named {
                return Err(CatalogError::StaleBlock { at: named });
            }
        }
        if self.structures[s].router.grows() {
            return Ok(self.commit_whole(s, mv, bytes, effects));
        }
        let (place, ..) = self.range_of(s, mv.source);
        self.structures.changes(s, if mv.way.gives_all() { place } else { place + 1 });
        let structure = &mut self.structures[s];
        structure.check_source(&mv);
        structure.version += 1;
        let moves = structure.end_move(number);
        moves.past_of(mv.target).took = (number, true);
        if mv.way.gives_all() {
            moves.past.retain(|past| past.block != mv.source);
        } else {
            moves.past_of(mv.source).gave = number;
        }
        match mv.way {
            Way::Relocate => structure.entries[place].block = mv.target,
            Way::Split => {
                let placed = Placed { start: mv.start, block: mv.target };
                structure.entries.insert(place + 1, placed);
            }
            Way::Merge => {
                let gone = structure.entries.remove(place);
                // The neighbour on the right now starts earlier; the range of the left one extends without a
                // change.
                if let Some(next) = structure.entries.get_mut(place)
                    && next.block == mv.target
                    && !Bug::MergeLeavesGap.active()
                {
                    next.start = gone.start;
                }
            }
        }
        let j = structure.job;
        if mv.source.server() != mv.target.server() {
            self.jobs[j].bill.moved(bytes);
        }
        effects.push(self.end_import(mv.target, number, true));
        if mv.way.gives_all() {
            self.give_back(j, s, mv.source, effects);
        }
        let (place, ..) = self.range_of(s, mv.target);
        self.structures[s].check_target(place, &mv);
        Ok(self.moved(s, place))
    }

    /// Commits a relocation of a block of a file or a queue. The map's version stays the same, because a tail
    /// was sent the version that its seal will make. Maps of one version may name a block by its old and by
    /// its new name, in the same place.
    fn commit_whole(&mut self, s: u32, mv: Move, bytes: u64, effects: &mut Vec<Effect>) -> Reply {
        let structure = &self.structures[s];
        let last = structure.entries.len() - 1;
        self.structures.changes(s, structure.place_of(mv.source).unwrap_or(last));
        self.copies_follow(self.pool.at(mv.source), self.pool.at(mv.target));
        let structure = &mut self.structures[s];
        structure.relocated(mv.source, mv.target);
        let moves = structure.end_move(mv.id);
        moves.past.retain(|past| past.block != mv.source);
        moves.past_of(mv.target).took = (mv.id, true);
        let j = structure.job;
        self.jobs[j].bill.moved(bytes);
        effects.push(self.end_import(mv.target, mv.id, true));
        self.give_back(j, s, mv.source, effects);
        // Counts sent to the old block meanwhile are lost with it.
        self.tell_ahead(s, effects);
        self.took_place(s, mv.target)
    }

    /// The answer to the source of such a move: the block that replaces it.
    fn took_place(&self, s: u32, block: BlockId) -> Reply {
        let structure = &self.structures[s];
        let place = structure.place_of(block);
        let start = place.map_or(0, |place| structure.entries[place].start);
        let end = place.map_or(u64::MAX, |place| structure.end(place));
        let version = MapVersion(structure.version);
        Reply::Moved { version, entry: self.entry(block, start, end) }
    }

    /// Answers a commit of a move that is not under way: it was committed before, or cancelled. Exact for the
    /// last move of its source, which is the only move that a source can be waiting for.
    fn commit_again(
        &self,
        s: u32,
        at: BlockAt,
        number: MoveId,
        target: BlockAt,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let structure = &self.structures[s];
        let place = structure.place_of(target.block);
        let place = place.filter(|_| self.pool.at(target.block) == target);
        let place = match self.pool.held(at) {
            Some(SlotOwner::By(owner)) if owner == s => {
                let gave = structure.past().iter().find(|past| past.block == at.block);
                if gave.is_none_or(|past| past.gave != number || number == MoveId::NONE) {
                    return Err(CatalogError::MoveCancelled { id: number, at });
                }
                // Its target may have moved everything to its neighbours since. The moved range begins where
                // the source now ends.
                let (own, ..) = self.range_of(s, at.block);
                place.unwrap_or((own + 1).min(structure.entries.len() - 1))
            }
            Some(SlotOwner::By(_)) => return Err(CatalogError::StaleBlock { at }),
            _ if structure.router.grows() => {
                // The structure no longer owns the source. The block that replaced it may have been relocated
                // or lost, and its server may no longer be a member.
                let there = structure.serves(target.block) && self.pool.at(target.block) == target;
                if !there {
                    return Err(CatalogError::StaleBlock { at });
                }
                let told = structure.past().iter().find(|past| past.block == target.block);
                if told.is_some_and(|past| past.took == (number, true)) {
                    effects.push(self.end_import(target.block, number, true));
                }
                return Ok(self.took_place(s, target.block));
            }
            // The blocks of a kv leave it after they moved their whole range, and only then.
            _ => place.ok_or(CatalogError::StaleBlock { at })?,
        };
        // The target may not have been notified, if the controller ended in between.
        if structure.past().iter().any(|p| p.block == target.block && p.took == (number, true)) {
            effects.push(self.end_import(target.block, number, true));
        }
        Ok(self.moved(s, place))
    }

    /// Repeats the state of the moves to a server's blocks, in case it missed messages because it or the
    /// controller was away. All of it is idempotent.
    pub fn imports(&self, server: ServerId, effects: &mut Vec<Effect>) {
        for (s, structure) in self.structures.iter() {
            for past in structure.past().iter().filter(|past| past.block.server() == server) {
                let (id, commit) = past.took;
                if id != MoveId::NONE {
                    effects.push(self.end_import(past.block, id, commit));
                }
            }
            for mv in structure.pending().iter().filter(|mv| mv.target.server() == server) {
                effects.push(if mv.way == Way::Merge {
                    self.begin_import(*mv)
                } else {
                    self.open_effect(s, mv.target, (mv.start, mv.end), mv.id)
                });
            }
        }
    }

    fn moved(&self, s: u32, place: usize) -> Reply {
        let structure = &self.structures[s];
        let Placed { start, block } = structure.entries[place];
        let entry: MapEntry = self.entry(block, start, structure.end(place));
        Reply::Moved { version: MapVersion(structure.version), entry }
    }

    /// A source cancels its move. Nothing happens for an unknown or committed move.
    pub(crate) fn cancel_move(
        &mut self,
        id: StructureId,
        at: BlockAt,
        number: MoveId,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        self.heard_from(at.block.server());
        let Some(s) = self.structures.find(id) else { return Ok(Reply::Done) };
        let Some(mv) = self.structures[s].move_with(number) else { return Ok(Reply::Done) };
        if self.pool.at(mv.source) != at {
            return Err(CatalogError::StaleBlock { at });
        }
        self.undo_move(s, mv, effects);
        Ok(Reply::Done)
    }

    /// A target cannot import, or cannot be reached. Nothing happens for an ended move.
    pub(crate) fn import_refused(
        &mut self,
        server: ServerId,
        at: BlockAt,
        number: MoveId,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let Some(SlotOwner::By(s)) = self.pool.held(at) else { return Ok(Reply::Done) };
        let refused = self.structures[s].move_with(number);
        if let Some(mv) = refused.filter(|mv| mv.target == at.block && at.block.server() == server)
        {
            self.undo_move(s, mv, effects);
        }
        Ok(Reply::Done)
    }

    /// The source keeps its range. A new block is freed; a neighbour drops the received content.
    fn undo_move(&mut self, s: u32, mv: Move, effects: &mut Vec<Effect>) {
        self.structures.changes(s, usize::MAX);
        let structure = &mut self.structures[s];
        let moves = structure.end_move(mv.id);
        if mv.way == Way::Merge {
            moves.past_of(mv.target).took = (mv.id, false);
            effects.push(self.end_import(mv.target, mv.id, false));
        } else {
            let j = structure.job;
            debug_assert!(
                !structure.serves(mv.target),
                "INV-20: {mv:?} is committed and cancelled"
            );
            if !Bug::MoveCancelLeaks.active() {
                self.give_back(j, s, mv.target, effects);
                self.awaits_fewer(s, effects);
            }
        }
    }

    /// A block is about to leave its structure: its moves are cancelled.
    pub(crate) fn cancel_moves_of(&mut self, s: u32, block: BlockId, effects: &mut Vec<Effect>) {
        if self.structures[s].moves.is_none() {
            return;
        }
        // The retirement of a block is logged without the rest of its structure.
        self.structures.changes(s, usize::MAX);
        let pending = self.structures[s].pending().iter();
        let of = pending.filter(|mv| mv.source == block).copied();
        for mv in of.collect::<Vec<Move>>() {
            self.undo_move(s, mv, effects);
        }
        self.structures[s].forget_moves_to(block);
    }

    /// Restarts the deadlines of the moves of a recovered catalog.
    pub(crate) fn restart_moves(&mut self) {
        let due = self.now + MOVE_MAX;
        for (_, structure) in self.structures.iter() {
            let pending = structure.pending().iter();
            self.moves_due.extend(pending.map(|mv| (due, structure.id, mv.id)));
        }
    }

    /// Cancels overdue moves. A source that continues such a move learns of the end from its target, or at
    /// its commit.
    pub(crate) fn cancel_overdue(&mut self, effects: &mut Vec<Effect>) {
        while let Some(&(due, id, number)) = self.moves_due.front() {
            if due > self.now {
                return;
            }
            self.moves_due.pop_front();
            let found = self.structures.find(id);
            if let Some(s) = found
                && let Some(mv) = self.structures[s].move_with(number)
            {
                self.undo_move(s, mv, effects);
            }
        }
    }

    /// A server is draining: splits to it are cancelled and choose another block.
    pub(crate) fn cancel_moves_to(&mut self, s: u32, id: ServerId, effects: &mut Vec<Effect>) {
        let pending = self.structures[s].pending().iter();
        let to = pending.filter(|mv| mv.way.takes_anew() && mv.target.server() == id);
        for mv in to.copied().collect::<Vec<Move>>() {
            self.undo_move(s, mv, effects);
        }
    }

    /// These servers are lost. When a structure has no blocks there but the targets of splits, cancels those
    /// splits, and the structure survives; otherwise nothing is done.
    pub(crate) fn cancel_splits_to(
        &mut self,
        s: u32,
        lost: &[ServerId],
        effects: &mut Vec<Effect>,
    ) -> bool {
        let structure = &self.structures[s];
        let is_lost = |block: BlockId| lost.contains(&block.server());
        let splits = structure.pending().iter();
        let splits = splits.filter(|mv| mv.way.takes_anew() && is_lost(mv.target));
        let splits: Vec<Move> = splits.copied().collect();
        let here = structure.blocks().filter(|&block| is_lost(block)).count();
        if splits.len() < here {
            return false;
        }
        for mv in splits {
            self.undo_move(s, mv, effects);
        }
        true
    }
}
