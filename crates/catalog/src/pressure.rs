//! Selects the blocks to demote when memory is short, and the holder that loses them.
//!
//! Under first come, first served, a request for a block when little is free demotes the least recently used
//! block of the requesting prefix; under a fair policy, a block of the holder furthest above its share
//! (`shares`, INV-43). Blocks retained for a flush whose store is unavailable are demoted before all others,
//! because no client can reach them. So writers find free memory, only the overflowing prefix is read from
//! disk, and a neighbour's blocks stay in memory. Blocks requested faster than others can be demoted begin in
//! a lower tier (`take_blocks`).
//!
//! The coldest block is found by a clock: each prefix that was ever short of memory has a clock hand, which
//! cycles over its blocks and examines a bounded number of them. `disk_pressure` handles disks that run
//! short. Access times come from the servers' reports, four times a second, which is finer than necessary.

use crate::pool::{Draw, Going, Pool, Server, Where, tick_of};
use crate::structures::StructureRecord;
use crate::tombstones::Cause;
use crate::{Catalog, CatalogError, Effect, Loss, Reply};
use hashbrown::HashMap;
use honeycomb_types::limits::{LOWER_AGAIN, LOWER_LOOKS, LOWERING_MAX, RAISE_MARKS, WARM_FOR};
use honeycomb_types::{BlockAt, BlockId, Demotion, PrefixId, ServerId, StructureId, TierIx};
use std::sync::Arc;

/// The position of a prefix's clock: a structure, and the index in its map.
pub(crate) type Hand = (StructureId, usize);

/// The present location of a block to demote.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Level {
    Memory,
    /// A disk of a server.
    Disk(ServerId, TierIx),
}

/// A budget of blocks to examine, whether they can be demoted or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    pub(crate) left: usize,
    /// The position where the budget ended, if it did: the clock continues there.
    pub(crate) ended: Option<(u32, Hand)>,
}

impl Scan {
    fn of_all() -> Scan {
        Scan { left: usize::MAX, ended: None }
    }
}

/// A block that can be demoted.
pub(crate) struct Candidate {
    /// The time of its last use.
    used: u32,
    /// Its prefix.
    pub(crate) n: u32,
    pub(crate) block: BlockId,
    pub(crate) tier: TierIx,
    pub(crate) hand: Hand,
}

/// State of prefixes that were short of memory.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    hands: HashMap<u32, Hand>,
    /// The same, for blocks on disks that are demoted to stores.
    pub(crate) disk_hands: HashMap<u32, Hand>,
    /// The prefix from which the next search over all prefixes for such a block starts.
    pub(crate) disk_from: Option<PrefixId>,
    /// Prefixes that requested memory during this command, and the units that each lacks.
    asked: Vec<(u32, u32)>,
    /// Demotions that start before the command has ended.
    pub(crate) early: Vec<Effect>,
    /// The prefix whose allocation was refused by the last command.
    refused: Option<u32>,
    /// Whether memory has become free since the last check.
    pub(crate) came: bool,
}

impl Pressure {
    /// A command begins. `ShortOf` refers to the command before it; an earlier refusal causes no demotion.
    pub(crate) fn begins(&mut self, is_short: bool) {
        if !is_short {
            self.refused = None;
        }
    }

    /// A prefix requests blocks.
    pub(crate) fn asks(&mut self, n: u32) {
        if self.asked.last().is_none_or(|(last, _)| *last != n) {
            self.asked.push((n, 0));
        }
    }

    /// The request of a prefix was refused.
    pub(crate) fn refuses(&mut self, n: u32) {
        self.refused = Some(n);
    }

    pub(crate) fn has_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// A prefix was removed.
    pub(crate) fn forget(&mut self, n: u32) {
        self.hands.remove(&n);
        self.disk_hands.remove(&n);
        self.asked.retain(|(asked, _)| *asked != n);
        self.refused = self.refused.filter(|refused| *refused != n);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.hands.allocation_size()
            + self.disk_hands.allocation_size()
            + self.asked.capacity() * size_of::<(u32, u32)>()
    }
}

/// Units of a server's memory that are kept free for coming requests.
pub(crate) fn mark_of(server: &Server) -> u64 {
    (server.units.units(2 * server.shards() as u32) as u64).max(server.total as u64 / 32)
}

/// Whether a server can demote blocks from memory now.
pub(crate) fn has_tiers(server: &&Server) -> bool {
    !server.tiers.is_empty() && server.is_heard() && !server.draining
}

impl StructureRecord {
    /// How one of its blocks reaches lower tiers.
    fn demotion_of(&self, block: BlockId) -> Demotion {
        self.attributes_of(block).demotion
    }
}

/// A block of a structure, by index: first those of its map, then those of extents.
fn nth_block(structure: &StructureRecord, i: usize) -> Option<BlockId> {
    let entry = structure.entries.get(i).map(|entry| entry.block);
    entry.or_else(|| structure.extents.get(i.checked_sub(structure.entries.len())?).copied())
}

impl Catalog {
    /// Whether room is coming for a refused allocation: a request to a server that lends is unanswered or
    /// will be repeated soon, or blocks are being demoted.
    pub fn awaits_room(&self) -> bool {
        self.awaits_lots() || self.lacks_lots() || self.lowers()
    }

    /// Whether memory may become free for a refused allocation: blocks are being demoted, or a disk has room
    /// for a block in memory, even if that block cannot be demoted at this moment.
    pub fn room_may_come(&self) -> bool {
        self.awaits_lots() || self.lowers() || self.with_tiers().any(Server::may_lower)
    }

    /// Whether blocks are being demoted.
    pub fn lowers(&self) -> bool {
        self.pool.lowers()
    }

    /// Whether memory has become free since the last call: waiting callers may retry.
    pub fn take_room_came(&mut self) -> bool {
        std::mem::take(&mut self.pressure.came)
    }

    /// Demotes blocks for the prefixes that requested blocks during this command, if little memory is free.
    pub(crate) fn press(&mut self, effects: &mut Vec<Effect>) {
        for (n, short) in std::mem::take(&mut self.pressure.asked) {
            self.press_prefix(n, short, effects);
        }
    }

    /// Demotes blocks of the prefix whose request was refused last.
    pub(crate) fn short_of_memory(&mut self, units: u32, effects: &mut Vec<Effect>) {
        if let Some(n) = self.pressure.refused.take() {
            self.press_prefix(n, units, effects);
        }
    }

    /// Servers that can demote blocks from memory now.
    fn with_tiers(&self) -> impl Iterator<Item = &Server> {
        self.pool.servers().map(|(_, s)| s).filter(has_tiers)
    }

    /// Units of memory that are kept free for coming requests.
    pub(crate) fn kept_free(&self) -> u64 {
        self.with_tiers().map(mark_of).sum()
    }

    pub(crate) fn press_prefix(&mut self, n: u32, short: u32, effects: &mut Vec<Effect>) {
        self.press_memory(n, short, effects);
        self.press_disks(n, effects);
    }

    fn press_memory(&mut self, n: u32, short: u32, effects: &mut Vec<Effect>) {
        let (ordinary, ..) = self.pool.room();
        let (mark, most) = (self.kept_free(), self.with_tiers().count() as u32 * LOWERING_MAX);
        // A demotion to a store may be slow. A refused caller does not wait for it while a disk has room.
        let short = u64::from(short);
        let few = |pool: &Pool, going: Going| {
            ordinary + u64::from(pool.leaving_memory()) < mark + short
                || ordinary + u64::from(going.units_down) < short
        };
        loop {
            let going = self.pool.going();
            if going.down >= most || !few(&self.pool, going) {
                return;
            }
            // No client can access blocks that are retained for an unavailable store.
            let lowered = self.kept_to_lower().or_else(|| self.victim(n, short as u32));
            let Some((block, tier)) = lowered else { return };
            self.lower(block, tier, effects);
        }
    }

    pub(crate) fn lower(&mut self, block: BlockId, tier: TierIx, effects: &mut Vec<Effect>) {
        let from = self.pool.place(block).tier;
        assert!(from < tier, "INV-42: {block} is demoted from {from} to {tier}");
        let open = self.pool.is_open(self.pool.at(block)) || self.is_kept(self.pool.at(block));
        assert!(open, "INV-42: {block} is demoted before its server has opened it");
        self.pool.begins(block, tier);
        let at = self.pool.at(block);
        effects.push(Effect::LowerBlock { server: block.server(), at, tier });
    }

    /// The structures of a prefix, in order from one on, wrapping round to it.
    fn round(&self, n: u32, from: StructureId) -> Vec<u32> {
        let mut list = Vec::new();
        let mut s = self.dag.nodes[n].first_structure;
        while let Some(structure) = self.structures.get(s) {
            list.push(s);
            s = structure.next;
        }
        if let Some(at) = list.iter().position(|&s| self.structures[s].id == from) {
            list.rotate_left(at);
        }
        list
    }

    /// The coldest block in memory of these prefixes, and its target tier.
    pub(crate) fn coldest(&mut self, prefixes: &[u32]) -> Option<(BlockId, TierIx)> {
        let found = self.coldest_at(Level::Memory, prefixes, &mut Scan::of_all())?;
        self.pressure.hands.insert(found.n, found.hand);
        Some((found.block, found.tier))
    }

    /// The coldest block of these prefixes at that level, among the examined ones: a bounded number of blocks
    /// that can be demoted, and as many in total as the scan allows.
    pub(crate) fn coldest_at(
        &self,
        level: Level,
        prefixes: &[u32],
        scan: &mut Scan,
    ) -> Option<Candidate> {
        let (mut looks, mut best) = (0, None);
        for &n in prefixes {
            if looks == LOWER_LOOKS
                || scan.ended.is_some()
                || self.look_for_coldest(level, n, (&mut looks, scan), &mut best)
            {
                break;
            }
        }
        best
    }

    /// Searches a prefix for a block colder than the best so far; returns whether one is cold enough.
    fn look_for_coldest(
        &self,
        level: Level,
        n: u32,
        (looks, scan): (&mut usize, &mut Scan),
        best: &mut Option<Candidate>,
    ) -> bool {
        let hands = match level {
            Level::Memory => &self.pressure.hands,
            Level::Disk(..) => &self.pressure.disk_hands,
        };
        let (from, place) = hands.get(&n).copied().unwrap_or_default();
        let list = self.round(n, from);
        // The first structure is repeated at the end, for the blocks before the hand.
        let again = list.first().copied();
        for (turn, s) in list.into_iter().chain(again).enumerate() {
            let structure = &self.structures[s];
            let begin = if turn == 0 && structure.id == from { place } else { 0 };
            for i in begin..structure.entries.len() + structure.extents.len() {
                if *looks == LOWER_LOOKS {
                    return false;
                }
                if scan.left == 0 {
                    scan.ended = Some((n, (structure.id, i)));
                    return false;
                }
                scan.left -= 1;
                let Some((used, tier)) = self.could_go(level, structure, i) else { continue };
                *looks += 1;
                let block = nth_block(structure, i).expect("there are as many");
                let hand = (structure.id, i + 1);
                if self.is_cold(used) {
                    *best = Some(Candidate { used, n, block, tier, hand });
                    return true;
                }
                let sealed = i + 1 < structure.entries.len() || structure.sealed;
                // In structures in which any block may change, the coldest block is demoted however recently
                // it was used, because there is no better one.
                let may = sealed || structure.demotion_of(block) != Demotion::Appended;
                if may && best.as_ref().is_none_or(|best| used < best.used) {
                    *best = Some(Candidate { used, n, block, tier, hand });
                }
            }
        }
        false
    }

    fn is_cold(&self, used: u32) -> bool {
        let ticks = (WARM_FOR.as_millis() / 250) as u32;
        used + ticks < tick_of(self.now)
    }

    /// The last use of a block at that level, and its target tier; `None` when it cannot be demoted.
    fn could_go(
        &self,
        level: Level,
        structure: &StructureRecord,
        i: usize,
    ) -> Option<(u32, TierIx)> {
        let block = nth_block(structure, i)?;
        let demotion = structure.demotion_of(block);
        if !demotion.goes_below() || self.is_journaled(structure.prefix) {
            return None;
        }
        let Where { tier, to, used, refused } = self.pool.place(block);
        let again = (LOWER_AGAIN.as_millis() / 250) as u32;
        let lately = refused > 0 && refused + again > tick_of(self.now);
        let lies_there = match level {
            Level::Memory => !tier.is_below(),
            Level::Disk(server, disk) => tier == disk && block.server() == server,
        };
        if !lies_there || to != tier || lately || !self.pool.is_open(self.pool.at(block)) {
            return None;
        }
        let tail = i + 1 == structure.entries.len() && !structure.sealed;
        let appended = demotion == Demotion::Appended;
        let sealed = appended && !tail;
        // The size of a block of pieces is reported long after it was filled: pieces are added one after
        // another.
        let pieces = demotion == Demotion::Pieces;
        let empty = !sealed && !pieces && self.pool.bytes_used(block) == 0;
        if empty || tail && appended && !self.is_cold(used) {
            return None;
        }
        // Blocks that may change do so in memory: they are demoted to a disk only, and not during a move.
        let changes = demotion == Demotion::Whole;
        let stays = matches!(level, Level::Disk(..)) || structure.move_of(block).is_some();
        if changes && stays {
            return None;
        }
        Some((used, self.pool.room_below(block, sealed || pieces)?))
    }

    /// A prefix unrelated to this one. Used by a planted bug only.
    pub(crate) fn neighbour(&self, n: u32) -> u32 {
        let mut others = self.structures.iter().map(|(_, structure)| structure.prefix);
        others.find(|other| *other != n).unwrap_or(n)
    }

    /// A block in a lower tier is read often. The block is promoted if enough memory is free that neither the
    /// promotion nor the next request for memory demotes a block. Otherwise the request has no effect, and
    /// the server repeats it.
    pub(crate) fn raise_block(
        &mut self,
        id: StructureId,
        at: BlockAt,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let s = self.held_by(id, at)?;
        let j = self.dag.nodes[self.structures[s].prefix].job;
        let Where { tier, to, refused, .. } = self.pool.place(at.block);
        self.pool.touch(at.block, self.now);
        let again = (LOWER_AGAIN.as_millis() / 250) as u32;
        let lately = refused > 0 && refused + again > tick_of(self.now);
        // For a job that need not be in memory, memory comes last.
        let may = !self.jobs[j].hints.not_sensitive
            && !lately
            && self.pool.takes_blocks(at.block.server())
            && self.room_to_rise(at.block);
        if !tier.is_below() || to != tier || !may {
            return Ok(Reply::Done);
        }
        self.pool.begins(at.block, TierIx::MEMORY);
        effects.push(Effect::LowerBlock { server: at.block.server(), at, tier: TierIx::MEMORY });
        Ok(Reply::Done)
    }

    /// Whether a block may have memory on its core that is unlikely to be requested soon: on its server, and
    /// over all servers, the free memory is a multiple of the mark under which blocks are demoted.
    fn room_to_rise(&self, block: BlockId) -> bool {
        let all = self.kept_free();
        let (ordinary, ..) = self.pool.room();
        let server = self.pool.server(block.server()).filter(has_tiers);
        let room = server.is_some_and(|server| {
            let core = server.cores().nth(block.shard().0 as usize).map_or(0, |core| core.room());
            core >= self.pool.units(block) && server.spare() as u64 > RAISE_MARKS * mark_of(server)
        });
        room && ordinary > RAISE_MARKS * all && self.pool.leaving_memory() == 0
    }

    /// A block has arrived in its target tier, or stays in its tier.
    pub(crate) fn tier_changed(
        &mut self,
        id: StructureId,
        at: BlockAt,
        tier: TierIx,
    ) -> Result<Reply, CatalogError> {
        if !self.is_kept(at) {
            self.held_by(id, at)?;
        }
        match self.pool.place(at.block) {
            Where { tier: from, .. } if from == tier => self.pool.refused(at.block, self.now),
            _ => self.pressure.came |= self.pool.arrives(at.block, tier),
        }
        Ok(Reply::Done)
    }

    /// A server cannot demote a block now.
    pub(crate) fn lower_refused(
        &mut self,
        server: ServerId,
        at: BlockAt,
    ) -> Result<Reply, CatalogError> {
        self.heard_from(server);
        if self.pool.held(at).is_some() {
            self.pool.refused(at.block, self.now);
        }
        // For a caller that waits for this demotion, another block is chosen, or the caller is refused.
        self.pressure.came = true;
        Ok(Reply::Done)
    }

    /// Handles lost bytes of a block in a lower tier: the structure is lost too, as after the loss of a
    /// server.
    pub(crate) fn block_failed(
        &mut self,
        id: StructureId,
        at: BlockAt,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        if self.kept_failed(at, effects) {
            return Ok(Reply::Done);
        }
        let s = self.held_by(id, at)?;
        if self.end_chains(s, |chain| chain.has(at.block), effects) {
            return Ok(Reply::Done);
        }
        let n = self.structures[s].prefix;
        self.dag.nodes[n].data_lost = true;
        self.dag.dirty.mark(n);
        let path: Arc<str> = self.dag.path_of(n).into();
        let server = self.pool.address(at.block.server());
        self.end_structure(s, Cause::Lost { server, how: Loss::Disk }, &path, effects);
        Ok(Reply::Done)
    }

    /// A block's current tier and its target tier, for a checker.
    pub fn tiers_of(&self, at: BlockAt) -> Option<(TierIx, TierIx)> {
        self.pool.held(at)?;
        let Where { tier, to, .. } = self.pool.place(at.block);
        Some((tier, to))
    }

    /// The capacity of a block in bytes, for a checker.
    pub fn capacity_at(&self, at: BlockAt) -> Option<u64> {
        self.pool.held(at)?;
        Some(self.capacity_of(at.block))
    }

    /// Blocks on disks that may be demoted to a store because they no longer change, for a checker.
    pub fn blocks_for_stores(&self) -> u64 {
        let may_sink = |structure: &StructureRecord, i: usize| {
            let block = nth_block(structure, i)?;
            let (demotion, tier) = (structure.demotion_of(block), self.pool.place(block).tier);
            let core = self.pool.server(block.server())?.cores().next()?;
            let sealed = i + 1 < structure.entries.len() || structure.sealed;
            let changes = match demotion {
                Demotion::Pieces => false,
                Demotion::Appended => !sealed,
                Demotion::Whole | Demotion::Never => true,
            };
            (tier.is_below() && !core.is_store(tier) && !changes).then_some(())
        };
        let of_one = |structure: &StructureRecord| {
            let blocks = structure.entries.len() + structure.extents.len();
            (0..blocks).filter_map(|i| may_sink(structure, i)).count() as u64
        };
        self.structures.iter().map(|(_, structure)| of_one(structure)).sum()
    }

    /// Units of memory available beyond the reserves, for a checker.
    pub fn free_in_memory(&self) -> u64 {
        self.pool.servers().map(|(_, server)| server.room(Draw::Ordinary) as u64).sum()
    }
}
