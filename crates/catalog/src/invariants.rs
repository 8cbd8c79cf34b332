//! A read-only check of the whole state, for tests and the simulator; `audit` runs a part of it in products.

use crate::Catalog;
use crate::pool::SlotOwner;
use crate::structures::StructureRecord;
use hashbrown::{HashMap, HashSet};
use honeycomb_types::limits::SLOT_WIDTH;
use honeycomb_types::{BlockAt, BlockId, Router, StructureId, Time};
use std::fmt;

/// A violated invariant. The number is that of `docs/invariants.md`, or 0 for an internal one of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// INV-nn.
    pub invariant: u8,
    /// Description of the violation.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "INV-{:02}: {}", self.invariant, self.what)
    }
}

pub(crate) fn require(
    holds: bool,
    invariant: u8,
    what: impl FnOnce() -> String,
) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken { invariant, what: what() }) }
}

/// The blocks of a structure, for comparison by a checker that keeps its own records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// In the order in which they serve: those of the map, and those granted after them; each with whether
    /// its seal is known.
    pub blocks: Vec<(BlockAt, bool)>,
    /// Other blocks that it holds: pre-allocated, or targets of a split that is under way.
    pub beside: Vec<BlockAt>,
}

impl Catalog {
    /// The blocks of a structure; `None` when no structure has this number. For tests and the simulator.
    pub fn chain(&self, id: StructureId) -> Option<Chain> {
        let structure = &self.structures[self.structures.find(id)?];
        let last = structure.entries.len().saturating_sub(1);
        let placed = structure.entries.iter().enumerate().map(|(i, placed)| {
            let sealed = structure.router.grows() && (i < last || structure.sealed);
            (self.pool.at(placed.block), sealed)
        });
        let growth = structure.growth.iter();
        let granted = growth.flat_map(|growth| &growth.granted);
        let granted = granted.map(|g| (self.pool.at(g.block), g.sealed.is_some()));
        let blocks: Vec<_> = placed.chain(granted).collect();
        let listed = |at: &BlockAt| blocks.iter().any(|(other, _)| other == at);
        let all = structure.blocks().map(|block| self.pool.at(block));
        let beside = all.filter(|at| !listed(at)).collect();
        Some(Chain { blocks, beside })
    }

    /// Checks everything and reports the first violated invariant. Takes time in proportion to the whole
    /// catalog.
    pub fn check_invariants(&self) -> Result<(), Broken> {
        self.dag.check().map_err(|what| Broken { invariant: 0, what })?;
        self.pool.recount().map_err(|what| Broken { invariant: 2, what })?;
        self.check_blocks()?;
        self.check_flushes().map_err(|what| Broken { invariant: 3, what })?;
        for (s, structure) in self.structures.iter() {
            self.check_map(s, structure)?;
        }
        let chains = self.structures.iter().flat_map(|(_, s)| &s.growth);
        let chains = chains.map(|growth| growth.private.len()).sum::<usize>();
        require(chains == self.appends_due.len(), 62, || {
            format!("{chains} private chains have {} times", self.appends_due.len())
        })?;
        self.check_drains().map_err(|what| Broken { invariant: 46, what })?;
        self.check_jobs()?;
        self.check_readers()?;
        self.check_timers()
    }

    /// INV-01 and INV-02: every allocated block is listed once, by its owner.
    fn check_blocks(&self) -> Result<(), Broken> {
        let mut listed = HashMap::new();
        for (s, structure) in self.structures.iter() {
            for block in structure.blocks() {
                let once = listed.insert(block, s).is_none();
                require(once, 1, || format!("{block} is listed twice"))?;
            }
        }
        let mut epochs = HashSet::new();
        for (at, owner) in self.pool.allocated() {
            let by_owner = listed.remove(&at.block) == Some(owner);
            require(by_owner, 2, || format!("{} is not listed by its owner", at.block))?;
            let fresh = epochs.insert(at.epoch);
            require(fresh, 1, || format!("epoch {} has two blocks", at.epoch))?;
        }
        require(listed.is_empty(), 2, || format!("not allocated but listed: {listed:?}"))
    }

    /// INV-17: the ranges are in order, none is empty, and they cover every position once.
    pub(crate) fn check_map(&self, s: u32, structure: &StructureRecord) -> Result<(), Broken> {
        self.check_placement(s, structure)?;
        let what = || format!("structure {} has the map {:?}", structure.id, structure.entries);
        if let Some(queue) = &structure.queue {
            require(queue.fits(structure), 22, what)?;
        }
        if structure.router == Router::HashRange {
            let mut starts = structure.entries.iter().map(|entry| entry.start);
            require(starts.all(|start| start % SLOT_WIDTH == 0), 17, what)?;
            require(structure.growth.is_none() && !structure.sealed, 17, what)?;
        }
        let wrong = |why| format!("structure {}: {why}: {:?}", structure.id, structure.moves);
        structure.check_moves().or_else(|why| require(false, 20, || wrong(why)))?;
        let extents = structure.kind.attributes().extents;
        require(structure.extents.is_empty() || extents.is_some(), 20, what)?;
        require(!structure.sealed || structure.growth.is_none(), 20, what)?;
        let node = &self.dag.nodes[structure.prefix];
        require(node.live() && node.job == structure.job, 13, what)
    }

    /// INV-01 and INV-17: the map covers all positions or hashes once, and its structure owns each listed
    /// block, which is listed once.
    pub(crate) fn check_placement(
        &self,
        s: u32,
        structure: &StructureRecord,
    ) -> Result<(), Broken> {
        let what = || format!("structure {} has the map {:?}", structure.id, structure.entries);
        let starts = structure.entries.iter().map(|entry| entry.start);
        // A queue's first blocks are freed as they are emptied.
        let first = structure.entries.first();
        require(first.is_some_and(|e| e.start == 0 || structure.router.shrinks()), 17, what)?;
        require(starts.is_sorted_by(|a, b| a < b), 17, what)?;
        let mut blocks: Vec<BlockId> = structure.blocks().collect();
        let held = |block: &BlockId| self.pool.owner(*block) == Some(SlotOwner::By(s));
        require(blocks.iter().all(held), 1, what)?;
        blocks.sort_unstable();
        require(blocks.is_sorted_by(|a, b| a < b), 1, what)
    }

    fn check_jobs(&self) -> Result<(), Broken> {
        let mut live_prefixes = 0;
        for (j, job) in self.jobs.iter() {
            let own = || self.structures.iter().map(|(_, s)| s).filter(|s| s.job == j);
            let blocks = || own().flat_map(StructureRecord::blocks);
            let bytes: u64 = blocks().map(|block| self.pool.bytes_used(block)).sum();
            let units: u64 = blocks().map(|block| u64::from(self.pool.units(block))).sum();
            let nodes = || self.dag.nodes.iter().map(|(_, node)| node).filter(|n| n.job == j);
            let live = nodes().filter(|node| node.live()).count() as u64;
            live_prefixes += live;
            let pinned = nodes().filter(|node| node.live() && node.pinned).count() as u64;
            require(pinned == job.pinned, 0, || format!("job {}: {pinned} pinned", job.id))?;
            let counted = ((nodes().count(), live, own().count() as u64), (units, bytes));
            let kept =
                ((job.nodes, job.live_prefixes, job.structures), (job.units, job.bytes_used));
            require(counted == kept, 2, || format!("job {}: {kept:?}, not {counted:?}", job.id))?;
        }
        self.check_quotas().map_err(|what| Broken { invariant: 30, what })?;
        let all = self.live_prefixes;
        require(live_prefixes == all, 0, || format!("{live_prefixes} live, {all} counted"))
    }

    /// INV-12 and INV-13: every live prefix that can expire has one timer, no later than its end.
    fn check_timers(&self) -> Result<(), Broken> {
        let mut timers: HashMap<u32, Time> = HashMap::new();
        for (at, n, id) in self.timers.iter() {
            if self.timer_is_current(n, id) {
                let once = timers.insert(n, at).is_none();
                require(once, 13, || format!("'{}' has two timers", self.dag.path_of(n)))?;
            }
        }
        for (n, node) in self.dag.nodes.iter().filter(|(_, node)| node.live()) {
            let deadline = self.lease_end(n, self.renewed_exactly(n));
            let timer = timers.remove(&n);
            let what = || format!("'{}': timer {timer:?}, {deadline}", self.dag.path_of(n));
            require(node.pinned == timer.is_none(), 13, what)?;
            require(timer.is_none_or(|at| at <= deadline), 13, what)?;
        }
        Ok(())
    }

    /// The time at which a live prefix counts as renewed, computed without changing anything.
    fn renewed_exactly(&self, n: u32) -> Time {
        let node = &self.dag.nodes[n];
        let carried = node.carried_below.max(node.carried_above).max(self.floor);
        let below = self.dag.children(n).map(|c| self.dag.nodes[c].stamp).max();
        let mut latest = node.stamp.max(carried).max(below.unwrap_or(Time::ZERO));
        let mut seen = hashbrown::HashSet::new();
        let mut stack = vec![n];
        while let Some(at) = stack.pop() {
            for parent in self.dag.parents(at).filter(|&p| seen.insert(p)) {
                let above = &self.dag.nodes[parent];
                latest = latest.max(above.stamp).max(above.carried_above);
                stack.push(parent);
            }
        }
        latest
    }
}
