//! The private blocks of large appends to files, until their commit.

use super::{Cluster, File, Outcome, Place, Verdict, require};
use honeycomb_types::limits::{EXTENT_PENDING_MS, PRIVATE_CHAINS_MAX};
use honeycomb_types::{BlockAt, BlockUnits};

/// The blocks of one append, in order.
#[derive(Clone, Debug)]
pub struct PrivateChain {
    pub blocks: Vec<BlockAt>,
    /// Before this time it is not freed, unless its blocks are lost.
    pub stays_until: u64,
}

impl File {
    /// Whether a block is in the chain of the file, or in a private one.
    pub fn lists(&self, at: BlockAt) -> bool {
        self.chain.contains(&at) || self.private_of(at).is_some()
    }

    /// The private chain of a block, and its place there.
    pub fn private_of(&self, at: BlockAt) -> Option<(usize, usize)> {
        let mut chains = self.private.iter().enumerate();
        chains.find_map(|(c, chain)| Some((c, chain.blocks.iter().position(|other| *other == at)?)))
    }

    /// Whether no block can follow the last one of the chain.
    fn ends(&self) -> bool {
        let last = self.chain.last().and_then(|at| self.seals.get(at));
        self.sealed() || matches!(last, Some((_, _, true)))
    }
}

impl Cluster {
    /// The units with which the first block for an append of so many bytes begins.
    pub fn private_units(&self, bytes: u64) -> u64 {
        BlockUnits::of(self.block.0).capacity_for(bytes.clamp(1, self.block.0)).into()
    }

    /// The answer to a client that has a large append for a file.
    pub fn beginning(&self, place: Place, bytes: u64) -> Outcome<()> {
        let units = self.private_units(bytes);
        let file = self.file(place);
        if file.sealed() {
            return Err("Sealed");
        }
        if file.private.len() >= PRIVATE_CHAINS_MAX {
            return Err("LimitExceeded");
        }
        let below = self.tiers.below.values().chain(self.tiers.stores.values()).sum::<u64>();
        let all = self.servers.values().map(|(blocks, _)| blocks).sum::<u64>() + below;
        if all > 0 && bytes.div_ceil(self.block.0) > all {
            return Err("LimitExceeded");
        }
        self.may_have(place.0, &file.counts, (1, units), file.kind)
    }

    /// It received the first block.
    pub fn begun(&mut self, place: Place, at: BlockAt) {
        let stays_until = self.now + EXTENT_PENDING_MS;
        let chain = PrivateChain { blocks: vec![at], stays_until };
        self.file_mut(place).private.push(chain);
    }

    /// The answer to a private block that requests its successor: the successor, if it has one.
    pub fn private_growth(&self, place: Place, at: BlockAt) -> Option<Outcome<Option<BlockAt>>> {
        let file = self.file(place);
        let (chain, k) = file.private_of(at)?;
        let blocks = &file.private[chain].blocks;
        if let Some(next) = blocks.get(k + 1) {
            return Some(Ok(Some(*next)));
        }
        let asked = (1, self.units(at));
        Some(self.may_have(place.0, &file.counts, asked, file.kind).map(|()| None))
    }

    /// A private block received its successor.
    pub fn private_grow(&mut self, place: Place, at: BlockAt, next: BlockAt) {
        let file = self.file_mut(place);
        let (chain, k) = file.private_of(at).unwrap();
        let blocks = &mut file.private[chain].blocks;
        if blocks.len() == k + 1 {
            blocks.push(next);
        }
    }

    /// A private block was sealed; `None` if it is none.
    pub fn private_seal(
        &mut self,
        place: Place,
        at: BlockAt,
        seal: (u64, u64, bool),
    ) -> Option<Outcome<()>> {
        let file = self.file_mut(place);
        let (chain, k) = file.private_of(at)?;
        Some(match file.seals.get(&at) {
            _ if k + 1 == file.private[chain].blocks.len() => Err("NoSuccessor"),
            _ if seal.2 => Err("StaleBlock"),
            Some(known) if *known == seal => Ok(()),
            Some(_) => Err("InvalidArgument"),
            None => {
                file.seals.insert(at, seal);
                Ok(())
            }
        })
    }

    /// The blocks of a large append are to be added to a file.
    pub fn commit_append(&mut self, place: Place, first: BlockAt) -> Outcome<()> {
        let recovering = !self.away.is_empty();
        let file = self.file_mut(place);
        if !file.held().contains(&first) {
            return Err(if recovering { "Recovering" } else { "StaleBlock" });
        }
        let chain = match file.private_of(first) {
            None => {
                file.linked.insert(first);
                return Ok(());
            }
            Some((_, place)) if place > 0 => return Err("StaleBlock"),
            Some(_) if recovering => return Err("Recovering"),
            Some((chain, _)) => chain,
        };
        if file.ends() {
            self.end_private(place, chain);
            return Err("Sealed");
        }
        let blocks = file.private.swap_remove(chain).blocks;
        file.linked.extend(&blocks);
        file.chain.extend(blocks);
        Ok(())
    }

    /// The blocks of a large append are to be freed.
    pub fn drop_append(&mut self, place: Place, first: BlockAt) {
        if let Some((chain, 0)) = self.file(place).private_of(first) {
            self.end_private(place, chain);
        }
    }

    /// Frees the blocks of a private chain.
    fn end_private(&mut self, place: Place, chain: usize) {
        let file = self.file_mut(place);
        let blocks = file.private.swap_remove(chain).blocks;
        for at in &blocks {
            file.seals.remove(at);
        }
        self.free(blocks);
    }

    /// Frees the private chains with such a block.
    pub fn end_private_on(&mut self, lost: impl Fn(&BlockAt) -> bool) {
        for j in 0..self.jobs.len() {
            for f in 0..self.jobs[j].files.len() {
                let of = |file: &File| {
                    file.private.iter().position(|chain| chain.blocks.iter().any(&lost))
                };
                while let Some(chain) = of(&self.jobs[j].files[f]) {
                    self.end_private((j, f), chain);
                }
            }
        }
    }

    /// The catalog freed these blocks. Those of private chains had their time.
    pub fn end_idle(&mut self, freed: &[BlockAt]) -> Verdict {
        let now = self.now;
        let chains = self.jobs.iter().flat_map(|job| &job.files).flat_map(|file| &file.private);
        let idle = chains.filter(|chain| freed.contains(&chain.blocks[0]));
        for chain in idle {
            let (until, blocks) = (chain.stays_until, &chain.blocks);
            require(now >= until, || format!("{blocks:?} are freed at {now}, before {until}"))?;
        }
        self.end_private_on(|at| freed.contains(at));
        Ok(())
    }
}
