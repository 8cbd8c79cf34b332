//! Moves of blocks off a draining server.
//!
//! A *relocation* is a move (`moves`) of the whole content of a block to a new block on another server, which
//! replaces it in the map at the commit. Until then the block serves as usual, and continues to do so if the
//! move is cancelled. A block of a kv moves like any other range; a block of a structure that grows at its
//! end moves as a whole, with all its state. This module decides which blocks leave, and how many at a time;
//! each of them receives `Effect::Evacuate` and requests its move like any other, as often as necessary. A
//! block of extents receives it as well: it accepts no more extents, and its server's own client rewrites its
//! extents elsewhere (ADR 0034).
//!
//! A relocation does not count towards a quota (INV-30), because the job has not requested it. It allocates
//! ordinary blocks, and also reserved ones as long as some of those remain for splits.
//!
//! The record of sent messages is soft: over a new connection all of them are sent again.

use crate::moves::Move;
use crate::policy::Chooser;
use crate::pool::{Draw, SlotOwner, Wanted};
use crate::structures::StructureRecord;
use crate::{Catalog, CatalogError, DrainState, Effect};
use honeycomb_types::limits::{EXTENTS_LEAVE_TELL, RESERVE_BLOCKS_MIN};
use honeycomb_types::{BlockAt, BlockId, MoveId, ServerId, TierIx, Time, Way};
use std::collections::VecDeque;

/// Number of blocks of one core that leave at the same time. Each move freezes its block for some
/// milliseconds; with more of them, clients of several blocks would wait for several.
const EVACUATE_AT_ONCE: usize = 4;

/// Blocks that still have to leave a server, and those that were asked to.
#[derive(Debug, Default)]
pub(crate) struct Evacuation {
    todo: VecDeque<BlockAt>,
    requested: Vec<BlockAt>,
    /// The time at which blocks of extents are asked again.
    again: Time,
}

impl StructureRecord {
    /// Blocks that the structure holds only during a relocation.
    fn copies(&self) -> impl Iterator<Item = BlockId> {
        let copies = self.pending().iter().filter(|mv| mv.way == Way::Relocate);
        copies.map(|mv| mv.target)
    }
}

impl Catalog {
    /// Units of a job that do not count towards quotas: those of blocks that exist twice while they move.
    pub(crate) fn copies_of(&self, j: u32) -> u64 {
        if self.drains.is_empty() {
            return 0;
        }
        let structures = self.structures.iter().filter(|(_, s)| s.job == j);
        let copies = structures.flat_map(|(_, s)| s.copies());
        copies.map(|block| u64::from(self.pool.units(block))).sum()
    }

    /// Whether such a block moves off its server with its content.
    pub(crate) fn can_leave(&self, at: BlockAt, s: u32) -> bool {
        let structure = &self.structures[s];
        // The journal of a prefix names the blocks of its changes.
        let journaled = self.is_journaled(structure.prefix);
        let moves = !journaled && !self.is_quarantined(s);
        moves && structure.attributes_of(at.block).relocates
    }

    /// Blocks of extents of a server.
    fn named_at(&self, id: ServerId) -> impl Iterator<Item = BlockAt> {
        let owners = self.pool.server(id).map(|server| server.owners()).unwrap_or_default();
        let sound = owners.into_iter().filter(|&s| !self.is_quarantined(s));
        let all = sound.flat_map(|s| self.structures[s].extents.iter().copied());
        all.filter(move |block| block.server() == id).map(|block| self.pool.at(block))
    }

    /// Asks the next blocks of a server to leave, when others have left.
    pub(crate) fn evacuate(&mut self, id: ServerId, effects: &mut Vec<Effect>) {
        if self.drains.state(id) != DrainState::Draining {
            return;
        }
        let there = self.pool.server(id).is_some_and(|server| !server.is_away());
        if !there || self.recovering() || self.is_telling(id) {
            return;
        }
        let mut evacuation = match self.drains.evacuations.remove(&id) {
            Some(evacuation) => evacuation,
            None => {
                let here = self.pool.allocated().filter(|(at, _)| at.block.server() == id);
                let here = here.filter(|&(at, s)| self.can_leave(at, s)).map(|(at, _)| at);
                Evacuation { todo: here.collect(), requested: Vec::new(), again: Time::ZERO }
            }
        };
        if evacuation.again <= self.now {
            // All blocks at once, because they do not freeze. A block that is not asked again stays.
            evacuation.again = self.now + EXTENTS_LEAVE_TELL;
            effects.extend(self.named_at(id).map(|at| Effect::Evacuate { server: id, at }));
        }
        let leaves = |at: &BlockAt| {
            let owner = self.pool.held(*at);
            matches!(owner, Some(SlotOwner::By(s)) if self.can_leave(*at, s))
        };
        evacuation.requested.retain(leaves);
        let most = EVACUATE_AT_ONCE * self.pool.server(id).map_or(0, |s| s.shards() as usize);
        while evacuation.requested.len() < most
            && let Some(at) = evacuation.todo.pop_front()
        {
            if leaves(&at) {
                effects.push(Effect::Evacuate { server: id, at });
                evacuation.requested.push(at);
            }
        }
        self.drains.evacuations.insert(id, evacuation);
    }

    /// A block asks to leave a draining server.
    pub(crate) fn begin_relocation(
        &mut self,
        s: u32,
        at: BlockAt,
        effects: &mut Vec<Effect>,
    ) -> Result<Move, CatalogError> {
        if !self.pool.is_draining(at.block.server()) {
            return Err(CatalogError::StaysHere { at });
        }
        if self.recovering() {
            return Err(CatalogError::Recovering);
        }
        if self.structures[s].router.grows() && !self.structures[s].serves(at.block) {
            // A pre-allocated block holds no data, and is freed.
            return Err(CatalogError::Moving { at });
        }
        // The copy needs memory: the owner of many blocks there may have some demoted for it.
        self.pressure.asks(self.structures[s].prefix);
        let target = self.take_copy(s, at.block)?.block;
        let (id, source, way) = (MoveId::NONE, at.block, Way::Relocate);
        let (start, end) = match self.structures[s].router.grows() {
            // Positions in their blocks count from the start of the block.
            true => (0, u64::MAX),
            false => {
                let (_, start, end) = self.range_of(s, source);
                (start, end)
            }
        };
        let mv = self.note_move(s, Move { id, source, target, start, end, way });
        effects.push(self.open_effect(s, target, (start, end), mv.id));
        Ok(mv)
    }

    fn take_copy(&mut self, s: u32, source: BlockId) -> Result<BlockAt, CatalogError> {
        let wanted = Wanted::one(self.pool.units(source));
        let StructureRecord { job: j, kind, .. } = self.structures[s];
        let mut draws = vec![Draw::Ordinary];
        if self.has_room_to_leave() {
            draws.push(Draw::Reserve);
        }
        let memory = (TierIx::MEMORY, self.now);
        let mut taken = draws.into_iter().map(|draw| {
            let chooser = Chooser { policy: &*self.policy, weights: None };
            self.pool.allocate(chooser, (s, kind), wanted, draw, memory)
        });
        let first = taken.next().expect("there is one");
        let taken = first.or_else(|none| taken.find_map(Result::ok).ok_or(none));
        let Ok(taken) = taken else {
            let n = self.structures[s].prefix;
            let full = self.full((j, n), s, wanted.units.into());
            return Err(CatalogError::OutOfMemory(Box::new(full)));
        };
        // The block is not charged, because no owner of a quota has requested it.
        self.units_found(j, s, wanted.units.into());
        Ok(taken[0])
    }

    /// Whether a block to evacuate finds another one, from the reserve if necessary.
    pub(crate) fn has_room_to_leave(&self) -> bool {
        let (ordinary, free, _) = self.pool.room();
        ordinary > 0 || free > u64::from(self.units().units(RESERVE_BLOCKS_MIN))
    }
}
