//! How blocks leave a server that is taken out.
//!
//! A *relocation* is a move (`moves`) of all that a block has to a new block on another server, which
//! takes its place in the map with the commit. Until then the block serves as ever, and goes on if the
//! move is given up. A kv's moves like any other range; a block of a file or a queue as it lies, with
//! all that it knows. Which blocks shall leave, and how many at a time, is decided here; each of them is
//! told (`Effect::Evacuate`) and asks for its move like for any other, as often as it takes. A block of
//! extents is told as well: it takes no more, and what it has is written elsewhere by its server's own
//! client (ADR 0034).
//!
//! A relocation counts for no quota (INV-30): the job has not asked for it. It takes ordinary blocks,
//! and of what servers keep back as long as something of that stays for splits.
//!
//! What was told is soft: over a new connection all of it is told again.

use crate::moves::{Move, moves_as_it_lies};
use crate::policy::Chooser;
use crate::pool::{Draw, Held};
use crate::structures::Structure;
use crate::{Catalog, CatalogError, DrainState, Effect};
use honeycomb_types::limits::{EXTENTS_LEAVE_TELL, RESERVE_BLOCKS_MIN};
use honeycomb_types::{BlockAt, Kind, MoveId, ServerId, TierIx, Time, Way};
use std::collections::VecDeque;

/// Blocks of one core that leave at the same time. Each move stands still for some milliseconds; more of
/// them would let those who use several wait for several.
const EVACUATE_AT_ONCE: usize = 4;

/// Who is still to leave a server, and who was told to.
#[derive(Debug, Default)]
pub(crate) struct Evacuation {
    todo: VecDeque<BlockAt>,
    told: Vec<BlockAt>,
    /// When blocks of extents are told again.
    again: Time,
}

impl Structure {
    /// Blocks that it holds only for as long as a relocation lasts.
    fn copies(&self) -> u64 {
        self.pending().iter().filter(|mv| mv.way == Way::Relocate).count() as u64
    }
}

impl Catalog {
    /// Blocks of a job that count for no quota: each is there twice while it moves.
    pub(crate) fn copies_of(&self, j: u32) -> u64 {
        if self.drains.is_empty() {
            return 0;
        }
        self.structures.iter().filter(|(_, s)| s.job == j).map(|(_, s)| s.copies()).sum()
    }

    /// Whether such a block moves off its server with what it holds.
    pub(crate) fn can_leave(&self, at: BlockAt, s: u32) -> bool {
        let kind = self.structures[s].kind_of(at.block);
        // The journal of a prefix names the blocks whose changes it has.
        let journaled = self.is_journaled(self.structures[s].prefix);
        !journaled && (kind == Kind::Kv || moves_as_it_lies(kind))
    }

    /// Blocks of extents of a server.
    fn named_at(&self, id: ServerId) -> impl Iterator<Item = BlockAt> {
        let owners = self.pool.server(id).map(|server| server.owners()).unwrap_or_default();
        let all = owners.into_iter().flat_map(|s| self.structures[s].extents.iter().copied());
        all.filter(move |block| block.server() == id).map(|block| self.pool.at(block))
    }

    /// Tells the next blocks of a server to leave it, when others have left.
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
                Evacuation { todo: here.collect(), told: Vec::new(), again: Time::ZERO }
            }
        };
        if evacuation.again <= self.now {
            // All at once: they stand still for nobody. Those that are told no more stay.
            evacuation.again = self.now + EXTENTS_LEAVE_TELL;
            effects.extend(self.named_at(id).map(|at| Effect::Evacuate { server: id, at }));
        }
        let leaves = |at: &BlockAt| {
            let owner = self.pool.held(*at);
            matches!(owner, Some(Held::By(s)) if self.can_leave(*at, s))
        };
        evacuation.told.retain(leaves);
        let most = EVACUATE_AT_ONCE * self.pool.server(id).map_or(0, |s| s.shards() as usize);
        while evacuation.told.len() < most
            && let Some(at) = evacuation.todo.pop_front()
        {
            if leaves(&at) {
                effects.push(Effect::Evacuate { server: id, at });
                evacuation.told.push(at);
            }
        }
        self.drains.evacuations.insert(id, evacuation);
    }

    /// A block wants to leave a server that is taken out.
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
            // Allocated in advance: it has nothing, and is given back.
            return Err(CatalogError::Moving { at });
        }
        // It comes to memory: who has much of its own there lets some of it go down for what comes.
        self.pressure.asks(self.structures[s].prefix);
        let target = self.take_copy(s)?.block;
        let (id, source, way) = (MoveId::NONE, at.block, Way::Relocate);
        let (start, end) = match self.structures[s].router.grows() {
            // Their blocks count from their own start.
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

    fn take_copy(&mut self, s: u32) -> Result<BlockAt, CatalogError> {
        let Structure { job: j, kind, .. } = self.structures[s];
        let mut draws = vec![Draw::Ordinary];
        if self.has_room_to_leave() {
            draws.push(Draw::Reserve);
        }
        let memory = (TierIx::MEMORY, self.now);
        let mut taken = draws.into_iter().map(|draw| {
            let chooser = Chooser { policy: &*self.policy, weights: None };
            self.pool.allocate(chooser, (s, kind), 1, draw, memory)
        });
        let first = taken.next().expect("there is one");
        let taken = first.or_else(|none| taken.find_map(Result::ok).ok_or(none));
        let Ok(taken) = taken else {
            let n = self.structures[s].prefix;
            return Err(CatalogError::OutOfMemory(Box::new(self.full((j, n), s, 1))));
        };
        // Nobody asked for it who has a quota.
        self.blocks_found(j, s, 1);
        Ok(taken[0])
    }

    /// Whether a block finds another one, of those that are kept back if need be.
    pub(crate) fn has_room_to_leave(&self) -> bool {
        let (ordinary, free, _) = self.pool.room();
        ordinary > 0 || free > RESERVE_BLOCKS_MIN as u64
    }
}
