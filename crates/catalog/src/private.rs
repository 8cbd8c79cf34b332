//! Private blocks, which hold one append that is too large for a block of a file (ADR 0058).
//!
//! A client fills a chain of blocks of its own, which grows as a file does, but is in no map. One commit then
//! adds the chain to the end of the successor list. Readers reach a block only when its predecessor has
//! sealed, so that the append becomes visible as a whole. The catalog does not log a chain before its commit:
//! a controller that restarts has its blocks freed, and the client writes them again.

use crate::pool::{Draw, Server, SlotOwner, Wanted};
use crate::structures::{Granted, StructureRecord};
use crate::{Actor, Catalog, CatalogError, Effect, Reply};
use honeycomb_types::limits::{EXTENT_PENDING_MS, PRIVATE_CHAINS_MAX};
use honeycomb_types::{
    BlockAt, BlockId, Bug, JobId, Kind, MapVersion, MoveId, ServerId, StructureId, Time, Verbs,
};
use std::time::Duration;

/// The blocks of one append that is not committed, in order; at least one.
#[derive(Debug)]
pub(crate) struct PrivateChain {
    pub(crate) blocks: Vec<Granted>,
    /// The bytes in its blocks when its time was last extended.
    seen: u64,
}

impl PrivateChain {
    /// Its first block, which names it.
    fn first(&self) -> BlockId {
        self.blocks[0].block
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of::<PrivateChain>() + self.blocks.capacity() * size_of::<Granted>()
    }

    fn is_on(&self, servers: &[ServerId]) -> bool {
        self.blocks.iter().any(|granted| servers.contains(&granted.block.server()))
    }
}

impl StructureRecord {
    /// The blocks of all its private chains.
    pub(crate) fn private(&self) -> impl Iterator<Item = BlockId> {
        let chains = self.growth.iter().flat_map(|growth| &growth.private);
        chains.flat_map(|chain| &chain.blocks).map(|granted| granted.block)
    }

    /// The private chain that begins with a block.
    fn private_at(&self, first: BlockId) -> Option<usize> {
        let growth = self.growth.as_ref()?;
        growth.private.iter().position(|chain| chain.first() == first)
    }
}

impl Catalog {
    /// Allocates the first block of a private chain, for an append of so many bytes.
    pub(crate) fn begin_append(
        &mut self,
        actor: Actor,
        job: JobId,
        id: StructureId,
        bytes: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let s = self.may_append(actor, job, id)?;
        self.refuse_sealed(s, 0)?;
        let chains = self.structures[s].growth.as_ref().map_or(0, |growth| growth.private.len());
        if chains >= PRIVATE_CHAINS_MAX {
            let (what, limit) = ("large appends to one file at a time", PRIVATE_CHAINS_MAX as u64);
            return Err(CatalogError::LimitExceeded { what, limit });
        }
        let all = self.all_blocks();
        if all > 0 && bytes.div_ceil(self.block_size) > all {
            // Not even an empty cluster could hold it: no byte is written, and nobody waits for memory.
            let (what, limit) = ("bytes of an append: all memory and disks", all * self.block_size);
            return Err(CatalogError::LimitExceeded { what, limit });
        }
        let units = self.units().capacity_for(bytes.clamp(1, self.block_size));
        let block = self.take_private(s, units, effects)?;
        let chain = PrivateChain { blocks: vec![block], seen: 0 };
        self.structures[s].growth.get_or_insert_default().private.push(chain);
        self.appends_due.push_back((self.append_due(), id, self.pool.at(block.block)));
        Ok(self.grown_private(s, block.block))
    }

    /// The blocks of all servers in all tiers, free or not.
    fn all_blocks(&self) -> u64 {
        let below = |server: &Server| -> u64 {
            (0..server.tiers.len()).map(|tier| u64::from(server.below(tier).total)).sum()
        };
        let of = |server: &Server| u64::from(server.total) / self.whole() + below(server);
        self.pool.servers().map(|(_, server)| of(server)).sum()
    }

    /// The file that a client may append to.
    fn may_append(
        &mut self,
        actor: Actor,
        job: JobId,
        id: StructureId,
    ) -> Result<u32, CatalogError> {
        let s = self.identified(actor, job, id)?;
        let path = self.dag.path_of(self.structures[s].prefix).into();
        if !self.verbs_at(actor, self.structures[s].prefix)?.contains(Verbs::WRITE) {
            let (what, why) = ("append", "the token may not write to the prefix");
            return Err(CatalogError::PermissionDenied { what, path, why });
        }
        if self.structures[s].kind != Kind::File {
            return Err(self.wrong_kind(s, "file"));
        }
        Ok(s)
    }

    fn append_due(&self) -> Time {
        self.now + Duration::from_millis(EXTENT_PENDING_MS)
    }

    fn take_private(
        &mut self,
        s: u32,
        units: u32,
        effects: &mut Vec<Effect>,
    ) -> Result<Granted, CatalogError> {
        let StructureRecord { job, prefix, .. } = self.structures[s];
        let kind = self.structures[s].placed_as();
        let wanted = Wanted::one(units);
        let blocks = self.take_blocks((job, prefix), s, kind, wanted, Draw::Ordinary)?;
        let block = blocks[0].block;
        effects.push(self.open_effect(s, block, (0, u64::MAX), MoveId::NONE));
        Ok(Granted { block, sealed: None, linked: true })
    }

    /// The answer to a request for a private block. Its place in the map is unknown, and so is the version
    /// that its seal will make.
    fn grown_private(&self, s: u32, block: BlockId) -> Reply {
        let version = MapVersion(self.structures[s].version);
        Reply::Grown { version, entry: self.entry(block, 0, u64::MAX) }
    }

    fn chain_mut(&mut self, s: u32, chain: usize) -> &mut PrivateChain {
        let growth = self.structures[s].growth.as_mut();
        &mut growth.expect("a structure with a private chain has its growth").private[chain]
    }

    /// A private block requests its successor.
    pub(crate) fn grow_private(
        &mut self,
        s: u32,
        (chain, place): (usize, usize),
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        if let Some(next) = self.chain_mut(s, chain).blocks.get(place + 1) {
            let block = next.block;
            return Ok(self.grown_private(s, block));
        }
        let last = self.chain_mut(s, chain).blocks[place].block;
        let next = self.take_private(s, self.pool.units(last), effects)?;
        self.chain_mut(s, chain).blocks.push(next);
        Ok(self.grown_private(s, next.block))
    }

    /// The place at which the seal of a private block is recorded; `None` if it has no successor.
    pub(crate) fn private_seal(
        &mut self,
        s: u32,
        (chain, place): (usize, usize),
    ) -> Option<&mut Option<crate::command::Seal>> {
        let blocks = &mut self.chain_mut(s, chain).blocks;
        let has_next = place + 1 < blocks.len();
        has_next.then(|| &mut blocks[place].sealed)
    }

    /// Adds a private chain to the end of the successor list. Can be repeated.
    pub(crate) fn commit_append(
        &mut self,
        actor: Actor,
        job: JobId,
        id: StructureId,
        first: BlockAt,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let s = self.may_append(actor, job, id)?;
        let recovering = self.recovering() && !Bug::LinkedWhileRecovering.active();
        if self.pool.held(first) != Some(SlotOwner::By(s)) {
            // A server may still report that the block was linked, if the log has lost that.
            return Err(match recovering {
                true => CatalogError::Recovering,
                false => CatalogError::StaleBlock { at: first },
            });
        }
        let Some(chain) = self.structures[s].private_at(first.block) else {
            // Committed before, unless the block is not the first of its chain.
            let private = self.structures[s].private().any(|block| block == first.block);
            return match private {
                true => Err(CatalogError::StaleBlock { at: first }),
                false => {
                    self.relink(s, first.block);
                    Ok(Reply::Appended { epoch: self.pool.last_epoch() })
                }
            };
        };
        if recovering {
            // The log may have lost a successor of the tail, which its server still has to report.
            return Err(CatalogError::Recovering);
        }
        let last = self.structures[s].growth.as_ref().map_or(0, |growth| growth.granted.len());
        if let Err(sealed) = self.refuse_sealed(s, last) {
            self.end_chain(s, chain, effects);
            return Err(sealed);
        }
        let tail = self.structures[s].entries.len() - 1;
        self.structures.changes(s, tail);
        let growth = self.structures[s].growth.as_mut().expect("the chain is there");
        let chain = growth.private.swap_remove(chain);
        let linked = !Bug::LinkForgotten.active();
        growth.granted.extend(chain.blocks.into_iter().map(|g| Granted { linked, ..g }));
        Ok(Reply::Appended { epoch: self.pool.last_epoch() })
    }

    /// A block that its predecessor has reported, because the log has lost its commit, is linked again.
    fn relink(&mut self, s: u32, block: BlockId) {
        let growth = self.structures[s].growth.iter_mut();
        let mut granted = growth.flat_map(|growth| &mut growth.granted);
        let Some(found) = granted.find(|granted| granted.block == block && !granted.linked) else {
            return;
        };
        found.linked = true;
        let tail = self.structures[s].entries.len() - 1;
        self.structures.changes(s, tail);
    }

    /// Frees a private chain that will not be committed. Can be repeated.
    pub(crate) fn drop_append(
        &mut self,
        actor: Actor,
        job: JobId,
        id: StructureId,
        first: BlockAt,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let s = self.may_append(actor, job, id)?;
        let held = self.pool.held(first) == Some(SlotOwner::By(s));
        if let Some(chain) = self.structures[s].private_at(first.block).filter(|_| held) {
            self.end_chain(s, chain, effects);
        }
        Ok(Reply::Done)
    }

    /// Frees the blocks of a private chain.
    fn end_chain(&mut self, s: u32, chain: usize, effects: &mut Vec<Effect>) {
        let structure = &mut self.structures[s];
        let (j, growth) = (structure.job, structure.growth.as_mut());
        let chain = growth.expect("the chain is there").private.swap_remove(chain);
        for granted in chain.blocks {
            self.give_back(j, s, granted.block, effects);
        }
    }

    /// Frees the private chains of a structure that have a block on one of these servers.
    pub(crate) fn end_chains_on(
        &mut self,
        s: u32,
        servers: &[ServerId],
        effects: &mut Vec<Effect>,
    ) {
        let on = |structure: &StructureRecord| {
            let growth = structure.growth.as_ref()?;
            growth.private.iter().position(|chain| chain.is_on(servers))
        };
        while let Some(chain) = on(&self.structures[s]) {
            self.end_chain(s, chain, effects);
        }
    }

    /// Frees all private chains of a structure.
    pub(crate) fn end_chains(&mut self, s: u32, effects: &mut Vec<Effect>) {
        while self.structures[s].growth.as_ref().is_some_and(|growth| !growth.private.is_empty()) {
            self.end_chain(s, 0, effects);
        }
    }

    /// Frees the private chain of a block, if it is in one.
    pub(crate) fn end_chain_of(
        &mut self,
        s: u32,
        block: BlockId,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let chains = self.structures[s].growth.iter().flat_map(|growth| &growth.private);
        let has = |chain: &PrivateChain| chain.blocks.iter().any(|g| g.block == block);
        let Some(chain) = chains.into_iter().position(has) else { return false };
        self.end_chain(s, chain, effects);
        true
    }

    /// Frees private chains to which nothing was written for a while.
    pub(crate) fn end_idle_appends(&mut self, effects: &mut Vec<Effect>) {
        while let Some(&(due, id, first)) = self.appends_due.front() {
            if due > self.now {
                return;
            }
            self.appends_due.pop_front();
            let Some(s) = self.structures.find(id) else { continue };
            let held = self.pool.held(first) == Some(SlotOwner::By(s));
            let Some(chain) = self.structures[s].private_at(first.block).filter(|_| held) else {
                continue;
            };
            let blocks = self.chain_mut(s, chain).blocks.clone();
            let bytes = blocks.iter().map(|g| self.pool.bytes_used(g.block)).sum();
            if std::mem::replace(&mut self.chain_mut(s, chain).seen, bytes) == bytes {
                self.end_chain(s, chain, effects);
            } else {
                self.appends_due.push_back((self.append_due(), id, first));
            }
        }
    }
}
