//! Queues: their bound across blocks, and how they shrink.
//!
//! A queue's map is in numbers of items. Its tail enforces the bound (INV-22), so it needs the number of
//! items that the blocks before it still hold: seals give the items put into them, and servers report the
//! items taken from them. Both can be late, but never early, so that the tail's number may be too high, but
//! never too low. The first block is freed when its server reports that it is empty for good.

use crate::command::Seal;
use crate::structures::StructureRecord;
use crate::{Catalog, CatalogError, Effect, NewStructure, Reply, Router};
use honeycomb_types::{BlockAt, BlockId, Bug, MapVersion, StructureId};

/// Items and bytes taken from one block.
#[derive(Clone, Copy, Debug)]
struct TakenItems {
    block: BlockId,
    items: u64,
    bytes: u64,
}

/// Items and bytes put into a sealed block.
#[derive(Clone, Copy, Debug)]
struct Through {
    items: u64,
    bytes: u64,
}

/// The state of a queue in addition to its map.
#[derive(Debug)]
pub(crate) struct QueueState {
    max_items: u64,
    max_bytes: u64,
    /// The totals put into each block of the map but the tail.
    through: Vec<Through>,
    /// The reported totals taken from blocks in the map, or in the successor list.
    taken: Vec<TakenItems>,
}

impl QueueState {
    /// The state of a new structure, if it is a queue, or of a custom kind whose blocks are added and retired
    /// as those of a queue.
    pub(crate) fn of(new: &NewStructure<'_>, router: Router) -> Option<Box<QueueState>> {
        router.shrinks().then(|| {
            let (max_items, max_bytes) = (new.max_items, new.max_bytes);
            Box::new(QueueState { max_items, max_bytes, through: Vec::new(), taken: Vec::new() })
        })
    }

    /// The state of a recovered queue. Servers report the taken items again.
    pub(crate) fn recovered(
        max_items: u64,
        max_bytes: u64,
        through: impl Iterator<Item = (u64, u64)>,
    ) -> QueueState {
        let through = through.map(|(items, bytes)| Through { items, bytes }).collect();
        QueueState { max_items, max_bytes, through, taken: Vec::new() }
    }

    /// A block is replaced by another one.
    pub(crate) fn relocated(&mut self, old: BlockId, new: BlockId) {
        if let Some(taken) = self.taken.iter_mut().find(|taken| taken.block == old) {
            taken.block = new;
        }
    }

    fn bounded(&self) -> bool {
        self.max_items != 0 || self.max_bytes != 0
    }

    fn taken_from(&self, block: BlockId) -> (u64, u64) {
        let found = self.taken.iter().find(|taken| taken.block == block);
        found.map_or((0, 0), |taken| (taken.items, taken.bytes))
    }

    /// Items, and their bytes, that were put into a block of the map that is not the tail.
    pub(crate) fn through(&self, entry: usize) -> (u64, u64) {
        let Through { items, bytes } = self.through[entry];
        (items, bytes)
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of::<QueueState>()
            + self.through.capacity() * size_of::<Through>()
            + self.taken.capacity() * size_of::<TakenItems>()
    }

    /// Whether it agrees with the map, and no item is counted as taken twice (INV-22).
    pub(crate) fn fits(&self, structure: &StructureRecord) -> bool {
        let taken = self.taken.iter().all(|taken| {
            let most = structure.went_through(taken.block);
            let listed = structure.blocks().any(|block| block == taken.block);
            listed && most.is_none_or(|(items, bytes)| taken.items <= items && taken.bytes <= bytes)
        });
        taken && self.through.len() + 1 == structure.entries.len()
    }
}

impl StructureRecord {
    /// Most items of a queue; 0 means unbounded.
    pub(crate) fn max_items(&self) -> u64 {
        self.queue.as_ref().map_or(0, |queue| queue.max_items)
    }

    /// Most bytes of a queue; 0 means unbounded.
    pub(crate) fn max_bytes(&self) -> u64 {
        self.queue.as_ref().map_or(0, |queue| queue.max_bytes)
    }

    fn tail(&self) -> usize {
        self.entries.len() - 1
    }

    /// Items and bytes that were put into a block of a queue, when its seal was received.
    fn went_through(&self, block: BlockId) -> Option<(u64, u64)> {
        let queue = self.queue.as_ref()?;
        let before_tail = &self.entries[..self.tail()];
        if let Some(i) = before_tail.iter().position(|entry| entry.block == block) {
            return Some(queue.through(i));
        }
        let mut granted = self.growth.iter().flat_map(|growth| &growth.granted);
        let seal = granted.find(|granted| granted.block == block)?.sealed?;
        Some((seal.length, seal.bytes))
    }

    /// Whether a queue's block can have this seal. The catalog trusts a server about its own blocks, but no
    /// report can make the sums of the queue wrong: at least as much was put into a block as was taken from
    /// it, and all positions are less than 2^64.
    pub(crate) fn check_seal(&self, block: BlockId, seal: Seal) -> Result<(), CatalogError> {
        let Some(queue) = self.queue.as_ref() else { return Ok(()) };
        let refuse =
            |what, given, allowed| Err(CatalogError::InvalidArgument { what, given, allowed });
        let (items, bytes) = queue.taken_from(block);
        if items > seal.length || bytes > seal.bytes {
            let (what, allowed) =
                ("the items of a sealed block", "it is at least the number of items already taken");
            return refuse(what, seal.length, allowed);
        }
        let heard = self.growth.iter().flat_map(|growth| &growth.granted);
        let heard: Vec<Seal> = heard.filter_map(|granted| granted.sealed).chain([seal]).collect();
        let sum = |first: u64, of: fn(&Seal) -> u64| {
            heard.iter().map(of).try_fold(first, u64::checked_add)
        };
        let through = queue.through.iter().map(|through| through.bytes).sum();
        if sum(self.entries[self.tail()].start, |seal| seal.length).is_none()
            || sum(through, |seal| seal.bytes).is_none()
        {
            let (what, allowed) =
                ("the items of a sealed block", "positions in a queue are less than 2^64");
            return refuse(what, seal.length, allowed);
        }
        Ok(())
    }

    /// Items and bytes that the blocks before a queue's tail still hold.
    fn ahead(&self) -> (u64, u64) {
        let queue = self.queue.as_ref().expect("only queues are asked");
        let sealed = self.entries.iter().zip(&queue.through);
        sealed.fold((0, 0), |(items, bytes), (entry, through)| {
            let taken = queue.taken_from(entry.block);
            let sound = taken.0 <= through.items && taken.1 <= through.bytes;
            assert!(sound, "INV-22: more was taken than was put");
            (items + through.items - taken.0, bytes + through.bytes - taken.1)
        })
    }
}

impl Catalog {
    /// The tail of a queue was sealed and its successor has become the tail. `emptied` is the sealed block
    /// when nothing was ever put into it, so that it left the map.
    pub(crate) fn sealed_in_queue(
        &mut self,
        s: u32,
        emptied: Option<BlockId>,
        bytes: u64,
        effects: &mut Vec<Effect>,
    ) {
        let structure = &mut self.structures[s];
        let Some(queue) = structure.queue.as_mut() else { return };
        match (emptied, &structure.entries[..]) {
            // The same block name may return to this queue in another epoch.
            (Some(block), _) => queue.taken.retain(|taken| taken.block != block),
            (None, [.., sealed, tail]) => {
                queue.through.push(Through { items: tail.start - sealed.start, bytes });
            }
            (None, _) => unreachable!("a block that was not empty stays in the map"),
        }
        let (totals, blocks) = (queue.through.len(), structure.entries.len());
        assert_eq!(totals + 1, blocks, "INV-22: {totals} sealed blocks have totals, of {blocks}");
        self.tell_ahead(s, effects);
    }

    /// A queue was closed: items can still be taken only from blocks that its map lists.
    pub(crate) fn closed_queue(&mut self, s: u32) {
        let structure = &mut self.structures[s];
        if let Some(queue) = structure.queue.as_mut() {
            let listed = &structure.entries;
            queue.taken.retain(|taken| listed.iter().any(|entry| entry.block == taken.block));
        }
    }

    pub(crate) fn tell_ahead(&mut self, s: u32, effects: &mut Vec<Effect>) {
        let structure = &self.structures[s];
        let bounded = structure.queue.as_ref().is_some_and(|queue| queue.bounded());
        if !bounded || structure.sealed || self.awaits_blocks_of(s) {
            return;
        }
        let structure = &self.structures[s];
        let tail = structure.entries.last().expect("there is always a tail").block;
        let (items, bytes) = structure.ahead();
        let (server, at) = (tail.server(), self.pool.at(tail));
        effects.push(Effect::QueueAhead { server, at, items, bytes });
    }

    fn queue_of_block(&mut self, id: StructureId, at: BlockAt) -> Result<u32, CatalogError> {
        let s = self.named_by_block(id, at)?;
        if self.structures[s].queue.is_some() {
            return Ok(s);
        }
        Err(CatalogError::StaleBlock { at })
    }

    pub(crate) fn queue_taken(
        &mut self,
        id: StructureId,
        at: BlockAt,
        items: u64,
        bytes: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let s = self.queue_of_block(id, at)?;
        let structure = &mut self.structures[s];
        if !structure.serves(at.block) {
            return Err(CatalogError::StaleBlock { at }); // Nothing was put there yet.
        }
        // A server is not trusted to have taken more than was put.
        let most = structure.went_through(at.block);
        if most.is_some_and(|(most, most_bytes)| items > most || bytes > most_bytes) {
            let (what, given) = ("the items taken from a block", items);
            let allowed = "it is at most the number of items that were put";
            return Err(CatalogError::InvalidArgument { what, given, allowed });
        }
        let queue = structure.queue.as_mut().expect("the structure is a queue");
        match queue.taken.iter_mut().find(|taken| taken.block == at.block) {
            Some(taken) => {
                (taken.items, taken.bytes) = (taken.items.max(items), taken.bytes.max(bytes));
            }
            None => queue.taken.push(TakenItems { block: at.block, items, bytes }),
        }
        self.tell_ahead(s, effects);
        Ok(Reply::Done)
    }

    /// A block is empty for good: it leaves the map. Refused for the tail, for a block whose seal was not
    /// received yet, and for a block of a numbered structure that is not the first.
    pub(crate) fn retire(
        &mut self,
        id: StructureId,
        at: BlockAt,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let s = self.queue_of_block(id, at)?;
        if self.stays_for_cut(s, at.block) {
            return Err(CatalogError::Moving { at });
        }
        let structure = &mut self.structures[s];
        let place = structure.entries.iter().position(|entry| entry.block == at.block);
        let Some(place) = place.filter(|place| *place < structure.tail()) else {
            return Err(CatalogError::NotSealed { at });
        };
        // Where positions matter, removing a block from the middle would leave a gap.
        if structure.router == Router::Index && place != 0 {
            return Err(CatalogError::NotFirst { at });
        }
        self.cancel_moves_of(s, at.block, effects);
        self.structures.retires(s, place);
        let structure = &mut self.structures[s];
        // Otherwise any block can be removed: a block with an unacknowledged answer must not delay all later
        // blocks.
        structure.entries.remove(place);
        if Bug::RetireRaisesVersion.active() {
            structure.version += 1;
        }
        // The version is not raised, because a tail was sent the version that its seal will make. Maps of one
        // version differ at most in which of the empty blocks they still list.
        let (j, version) = (structure.job, MapVersion(structure.version));
        let queue = structure.queue.as_mut().expect("the structure is a queue");
        if !Bug::RetireKeepsTotals.active() {
            queue.through.remove(place);
        }
        queue.taken.retain(|taken| taken.block != at.block);
        self.give_back(j, s, at.block, effects);
        self.tell_ahead(s, effects);
        Ok(Reply::Sealed { version })
    }
}
