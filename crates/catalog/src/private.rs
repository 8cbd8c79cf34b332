//! Private blocks, which hold one append that is too large for a block of a file (ADR 0058).
//!
//! A client fills a chain of blocks of its own, which grows as a file does, but is in no map. One commit then
//! adds the chain to the end of the successor list. Readers reach a block only when its predecessor has
//! sealed, so that the append becomes visible as a whole. The catalog does not log a chain before its commit:
//! a controller that restarts has its blocks freed, and the client writes them again.

use crate::command::Seal;
use crate::pool::{Server, SlotOwner};
use crate::structures::{Granted, StructureRecord};
use crate::{Actor, Catalog, CatalogError, Effect, Reply};
use honeycomb_types::limits::{EXTENT_PENDING_MS, PRIVATE_CHAINS_MAX};
use honeycomb_types::{
    BlockAt, BlockId, Bug, JobId, Kind, MapVersion, ServerId, StructureId, Time,
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

    pub(crate) fn is_on(&self, servers: &[ServerId]) -> bool {
        self.blocks.iter().any(|granted| servers.contains(&granted.block.server()))
    }

    pub(crate) fn has(&self, block: BlockId) -> bool {
        self.blocks.iter().any(|granted| granted.block == block)
    }
}

impl StructureRecord {
    /// The blocks of all its private chains.
    pub(crate) fn private(&self) -> impl Iterator<Item = BlockId> {
        let chains = self.growth.iter().flat_map(|growth| &growth.private);
        chains.flat_map(|chain| &chain.blocks).map(|granted| granted.block)
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
        if let Some(limit) = self.all_bytes().filter(|all| bytes > *all) {
            // Not even an empty cluster could hold it: no byte is written, and nobody waits for memory.
            let what = "bytes of one append to this cluster";
            return Err(CatalogError::LimitExceeded { what, limit });
        }
        let units = self.units().capacity_for(bytes.clamp(1, self.block_size));
        let block = self.take_successor(s, units, effects)?;
        let blocks = vec![Granted { linked: true, ..Granted::empty(block) }];
        let chain = PrivateChain { blocks, seen: 0 };
        self.structures[s].growth.get_or_insert_default().private.push(chain);
        self.appends_due.push_back((self.append_due(), id, block));
        Ok(self.grown_private(s, block))
    }

    /// The bytes of all servers in all tiers, free or not; `None` without a server.
    pub(crate) fn all_bytes(&self) -> Option<u64> {
        let below = |server: &Server| -> u64 {
            (0..server.tiers.len()).map(|tier| u64::from(server.below(tier).total)).sum()
        };
        let of = |server: &Server| u64::from(server.total) / self.whole() + below(server);
        let blocks: u64 = self.pool.servers().map(|(_, server)| of(server)).sum();
        (blocks > 0).then_some(blocks * self.block_size)
    }

    /// The file that a client may append to.
    fn may_append(
        &mut self,
        actor: Actor,
        job: JobId,
        id: StructureId,
    ) -> Result<u32, CatalogError> {
        let s = self.identified(actor, job, id)?;
        self.need_write_at(actor, self.structures[s].prefix, "append")?;
        if self.structures[s].kind != Kind::File {
            return Err(self.wrong_kind(s, "file"));
        }
        Ok(s)
    }

    fn append_due(&self) -> Time {
        self.now + Duration::from_millis(EXTENT_PENDING_MS)
    }

    /// The private chain that begins with a block, by its index.
    fn private_at(&self, s: u32, first: BlockAt) -> Option<usize> {
        let growth = self.structures[s].growth.as_ref()?;
        let begins = |chain: &PrivateChain| self.pool.at(chain.first()) == first;
        growth.private.iter().position(begins)
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
        let next = self.take_successor(s, self.pool.units(last), effects)?;
        let granted = Granted { linked: true, ..Granted::empty(next) };
        self.chain_mut(s, chain).blocks.push(granted);
        Ok(self.grown_private(s, next))
    }

    /// Records the seal of a private block, which continues in another one.
    pub(crate) fn seal_private(
        &mut self,
        s: u32,
        (chain, place): (usize, usize),
        at: BlockAt,
        seal: Seal,
    ) -> Result<(), CatalogError> {
        let blocks = &mut self.chain_mut(s, chain).blocks;
        let has_next = place + 1 < blocks.len();
        match &mut blocks[place].sealed {
            _ if !has_next => Err(CatalogError::NoSuccessor { at }),
            _ if seal.last => Err(CatalogError::StaleBlock { at }),
            &mut Some(sealed) => self.same_seal(sealed == seal, seal.length),
            sealed => {
                *sealed = Some(seal);
                Ok(())
            }
        }
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
        let Some(chain) = self.private_at(s, first) else {
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
        let chain = self.remove_chain(s, chain);
        let linked = !Bug::LinkForgotten.active();
        let growth = self.structures[s].growth.as_mut().expect("the chain was there");
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
        if let Some(chain) = self.private_at(s, first) {
            self.end_chain(s, chain, effects);
        }
        Ok(Reply::Done)
    }

    /// A structure ends, with all its blocks.
    pub(crate) fn forget_appends(&mut self, s: u32) {
        let StructureRecord { id, growth, .. } = &self.structures[s];
        if growth.as_ref().is_some_and(|growth| !growth.private.is_empty()) {
            self.appends_due.retain(|(_, of, _)| of != id);
        }
    }

    /// Takes a private chain from its structure; its blocks stay allocated.
    fn remove_chain(&mut self, s: u32, chain: usize) -> PrivateChain {
        let growth = self.structures[s].growth.as_mut().expect("the chain is there");
        let chain = growth.private.swap_remove(chain);
        let due = self.appends_due.iter().rposition(|(.., first)| *first == chain.first());
        self.appends_due.remove(due.expect("every private chain has a time"));
        chain
    }

    /// Frees the blocks of a private chain.
    fn end_chain(&mut self, s: u32, chain: usize, effects: &mut Vec<Effect>) {
        let (j, chain) = (self.structures[s].job, self.remove_chain(s, chain));
        for granted in chain.blocks {
            self.give_back(j, s, granted.block, effects);
        }
    }

    /// Frees the private chains of a structure that `ends` chooses. Returns whether there were any.
    pub(crate) fn end_chains(
        &mut self,
        s: u32,
        ends: impl Fn(&PrivateChain) -> bool,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let mut ended = false;
        while let Some(growth) = &self.structures[s].growth
            && let Some(chain) = growth.private.iter().position(&ends)
        {
            self.end_chain(s, chain, effects);
            ended = true;
        }
        ended
    }

    /// Frees private chains to which nothing was written for a while.
    pub(crate) fn end_idle_appends(&mut self, effects: &mut Vec<Effect>) {
        while let Some(&(due, id, first)) = self.appends_due.front()
            && due <= self.now
        {
            let s = self.structures.find(id).expect("the chain of this time exists");
            let chain = self.private_at(s, self.pool.at(first));
            let chain = chain.expect("the chain of this time exists");
            let blocks = &self.chain_mut(s, chain).blocks;
            let blocks: Vec<BlockId> = blocks.iter().map(|granted| granted.block).collect();
            let bytes = blocks.into_iter().map(|block| self.pool.bytes_used(block)).sum();
            if std::mem::replace(&mut self.chain_mut(s, chain).seen, bytes) == bytes {
                self.end_chain(s, chain, effects);
            } else {
                self.appends_due.pop_front();
                self.appends_due.push_back((self.append_due(), id, first));
            }
        }
    }
}
