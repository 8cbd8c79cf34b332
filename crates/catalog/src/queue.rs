//! Queues: how their bound reaches across blocks, and how they shrink.
//!
//! A queue's map is in numbers of items. Its tail keeps the bound (INV-22), so it has to know what
//! the blocks before it still hold: what went into them is told by their seals, what was taken from
//! them by their servers. Both can be late, never early, so the tail is told too much rather than
//! too little. A block goes when its server says that it is empty for good, wherever in the map it
//! stands: one that still owes somebody an answer must not keep all that come after it. The range of
//! one that went is the range of who came before it, if anybody did; nobody asks by position.

use crate::structures::Structure;
use crate::{Catalog, CatalogError, Effect, NewStructure, Reply};
use honeycomb_types::{BlockAt, BlockId, Kind, MapVersion, StructureId};

/// What was taken from one block.
#[derive(Clone, Copy, Debug)]
struct Taken {
    block: BlockId,
    items: u64,
    bytes: u64,
}

/// What went through a block that is sealed.
#[derive(Clone, Copy, Debug)]
struct Through {
    items: u64,
    bytes: u64,
}

/// What a queue has beside its map.
#[derive(Debug)]
pub(crate) struct QueueState {
    max_items: u64,
    max_bytes: u64,
    /// What went through each block of the map but the tail.
    through: Vec<Through>,
    /// What was heard to have been taken, of blocks in the map or about to be.
    taken: Vec<Taken>,
}

impl QueueState {
    /// The state of a new structure, if it is a queue.
    pub(crate) fn of(new: &NewStructure<'_>) -> Option<Box<QueueState>> {
        (new.kind == Kind::Queue).then(|| {
            let (max_items, max_bytes) = (new.max_items, new.max_bytes);
            Box::new(QueueState { max_items, max_bytes, through: Vec::new(), taken: Vec::new() })
        })
    }

    fn bounded(&self) -> bool {
        self.max_items != 0 || self.max_bytes != 0
    }

    fn taken_from(&self, block: BlockId) -> (u64, u64) {
        let found = self.taken.iter().find(|taken| taken.block == block);
        found.map_or((0, 0), |taken| (taken.items, taken.bytes))
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of::<QueueState>()
            + self.through.capacity() * size_of::<Through>()
            + self.taken.capacity() * size_of::<Taken>()
    }

    /// Whether it agrees with the map, and nothing is taken twice (INV-22).
    pub(crate) fn fits(&self, structure: &Structure) -> bool {
        let mut sealed = structure.entries.iter().zip(&self.through);
        let taken = sealed.all(|(entry, through)| self.taken_from(entry.block).0 <= through.items);
        taken && self.through.len() + 1 == structure.entries.len()
    }
}

impl Structure {
    /// Most items of a queue; 0 for no bound.
    pub(crate) fn max_items(&self) -> u64 {
        self.queue.as_ref().map_or(0, |queue| queue.max_items)
    }

    /// Most bytes of a queue; 0 for no bound.
    pub(crate) fn max_bytes(&self) -> u64 {
        self.queue.as_ref().map_or(0, |queue| queue.max_bytes)
    }

    /// Items and bytes that the blocks before a queue's tail still hold.
    fn ahead(&self) -> (u64, u64) {
        let queue = self.queue.as_ref().expect("only queues are asked");
        let sealed = self.entries.iter().zip(&queue.through);
        sealed.fold((0, 0), |(items, bytes), (entry, through)| {
            let taken = queue.taken_from(entry.block);
            let left = (through.items - taken.0, through.bytes.saturating_sub(taken.1));
            (items + left.0, bytes + left.1)
        })
    }

    /// Items that went through the sealed block at this place of a queue's map.
    pub(crate) fn through(&self, place: usize) -> Option<u64> {
        self.queue.as_ref().map(|queue| queue.through[place].items)
    }
}

impl Catalog {
    /// The tail of a queue was sealed with so much in it, and its successor has become the tail. It
    /// stays in the map unless it had nothing.
    pub(crate) fn sealed_in_queue(
        &mut self,
        s: u32,
        items: u64,
        bytes: u64,
        effects: &mut Vec<Effect>,
    ) {
        let Some(queue) = self.structures[s].queue.as_mut() else { return };
        if items > 0 {
            queue.through.push(Through { items, bytes });
        }
        self.tell_ahead(s, effects);
    }

    fn tell_ahead(&self, s: u32, effects: &mut Vec<Effect>) {
        let structure = &self.structures[s];
        let bounded = structure.queue.as_ref().is_some_and(|queue| queue.bounded());
        if !bounded || structure.sealed {
            return;
        }
        let tail = structure.entries.last().expect("there is always a tail").block;
        let (items, bytes) = structure.ahead();
        let (server, at) = (tail.server(), self.pool.at(tail));
        effects.push(Effect::QueueAhead { server, at, items, bytes });
    }

    fn queue_of_block(&self, id: StructureId, at: BlockAt) -> Result<u32, CatalogError> {
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
        self.heard_from(at.block.server());
        let s = self.queue_of_block(id, at)?;
        let structure = &mut self.structures[s];
        // A server must not be believed to have taken more than there was.
        let place = structure.entries.iter().position(|entry| entry.block == at.block);
        let queue = structure.queue.as_mut().expect("it is a queue");
        if place.and_then(|i| queue.through.get(i)).is_some_and(|through| items > through.items) {
            let (what, given) = ("the items taken from a block", items);
            let allowed = "no more are taken than went through it";
            return Err(CatalogError::InvalidArgument { what, given, allowed });
        }
        match queue.taken.iter_mut().find(|taken| taken.block == at.block) {
            Some(taken) => {
                (taken.items, taken.bytes) = (taken.items.max(items), taken.bytes.max(bytes));
            }
            None => queue.taken.push(Taken { block: at.block, items, bytes }),
        }
        self.tell_ahead(s, effects);
        Ok(Reply::Done)
    }

    /// Takes a block out of a queue's map. Refused for the tail, and for one of which the catalog has
    /// not heard that it is sealed.
    pub(crate) fn retire(
        &mut self,
        id: StructureId,
        at: BlockAt,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        self.heard_from(at.block.server());
        let s = self.queue_of_block(id, at)?;
        let structure = &mut self.structures[s];
        let place = structure.entries.iter().position(|entry| entry.block == at.block);
        let Some(place) = place.filter(|place| place + 1 < structure.entries.len()) else {
            return Err(CatalogError::NotSealed { at });
        };
        structure.entries.remove(place);
        // The version is not raised: a tail was told which one its seal will make, and must be right.
        // Maps of one version differ at most in which empty blocks they still list.
        let (j, version) = (structure.job, MapVersion(structure.version));
        let queue = structure.queue.as_mut().expect("it is a queue");
        queue.through.remove(place);
        queue.taken.retain(|taken| taken.block != at.block);
        self.give_back(j, s, at.block, effects);
        self.tell_ahead(s, effects);
        Ok(Reply::Sealed { version })
    }
}
