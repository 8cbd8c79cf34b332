//! Queues: how their bound reaches across blocks, and how they shrink.
//!
//! A queue's map is in numbers of items. Its tail keeps the bound (INV-22), so it has to know what
//! the blocks before it still hold: what went into them is told by their seals, what was taken from
//! them by their servers. Both can be late, never early, so the tail is told too much rather than
//! too little. The first block goes when its server says that it is empty for good.

use crate::command::Seal;
use crate::structures::{Placed, Structure};
use crate::{Catalog, CatalogError, Effect, NewStructure, Reply};
use honeycomb_types::{BlockAt, BlockId, Kind, MapVersion, StructureId};
use std::collections::VecDeque;

/// What was taken from one block.
#[derive(Clone, Copy, Debug)]
struct Taken {
    block: BlockId,
    items: u64,
    bytes: u64,
}

/// What a queue has beside its map.
#[derive(Debug)]
pub(crate) struct QueueState {
    max_items: u64,
    max_bytes: u64,
    /// Bytes that went through each block of the map but the tail.
    through: VecDeque<u64>,
    /// What was heard to have been taken, of blocks in the map or about to be.
    taken: Vec<Taken>,
    /// Blocks of the map that are empty for good and wait for those before them to go.
    spent: Vec<BlockId>,
}

impl QueueState {
    /// The state of a new structure, if it is a queue.
    pub(crate) fn of(new: &NewStructure<'_>) -> Option<Box<QueueState>> {
        (new.kind == Kind::Queue).then(|| {
            let (max_items, max_bytes) = (new.max_items, new.max_bytes);
            Box::new(QueueState {
                max_items,
                max_bytes,
                through: VecDeque::new(),
                taken: Vec::new(),
                spent: Vec::new(),
            })
        })
    }

    fn bounded(&self) -> bool {
        self.max_items != 0 || self.max_bytes != 0
    }

    fn taken_from(&self, block: BlockId) -> (u64, u64) {
        let found = self.taken.iter().find(|taken| taken.block == block);
        found.map_or((0, 0), |taken| (taken.items, taken.bytes))
    }

    /// Bytes of the items that went through a block of the map that is not the tail.
    pub(crate) fn bytes_through(&self, entry: usize) -> u64 {
        self.through[entry]
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of::<QueueState>()
            + self.through.capacity() * size_of::<u64>()
            + self.taken.capacity() * size_of::<Taken>()
            + self.spent.capacity() * size_of::<BlockId>()
    }

    /// Whether it agrees with the map, and nothing is taken twice (INV-22).
    pub(crate) fn fits(&self, structure: &Structure) -> bool {
        let taken = self.taken.iter().all(|taken| {
            let most = structure.went_through(taken.block);
            let listed = structure.blocks().any(|block| block == taken.block);
            listed && most.is_none_or(|(items, bytes)| taken.items <= items && taken.bytes <= bytes)
        });
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

    fn tail(&self) -> usize {
        self.entries.len() - 1
    }

    /// Items and bytes that went through a block of a queue, when its seal was heard.
    fn went_through(&self, block: BlockId) -> Option<(u64, u64)> {
        let queue = self.queue.as_ref()?;
        let before_tail = &self.entries[..self.tail()];
        if let Some(i) = before_tail.iter().position(|entry| entry.block == block) {
            return Some((self.entries[i + 1].start - self.entries[i].start, queue.through[i]));
        }
        let mut granted = self.growth.iter().flat_map(|growth| &growth.granted);
        let seal = granted.find(|granted| granted.block == block)?.sealed?;
        Some((seal.length, seal.bytes))
    }

    /// Whether a queue's block can have been sealed like this. A server is believed about its own
    /// blocks, but nothing that it says makes the sums of the queue wrong: no less went through a
    /// block than was taken from it, and all positions are below 2^64.
    pub(crate) fn check_seal(&self, block: BlockId, seal: Seal) -> Result<(), CatalogError> {
        let Some(queue) = self.queue.as_ref() else { return Ok(()) };
        let refuse =
            |what, given, allowed| Err(CatalogError::InvalidArgument { what, given, allowed });
        let (items, bytes) = queue.taken_from(block);
        if items > seal.length || bytes > seal.bytes {
            let (what, allowed) =
                ("the items of a sealed block", "no less than was taken from it before");
            return refuse(what, seal.length, allowed);
        }
        let heard = self.growth.iter().flat_map(|growth| &growth.granted);
        let heard: Vec<Seal> = heard.filter_map(|granted| granted.sealed).chain([seal]).collect();
        let sum = |first: u64, of: fn(&Seal) -> u64| {
            heard.iter().map(of).try_fold(first, u64::checked_add)
        };
        let through = queue.through.iter().sum();
        if sum(self.entries[self.tail()].start, |seal| seal.length).is_none()
            || sum(through, |seal| seal.bytes).is_none()
        {
            let (what, allowed) =
                ("the items of a sealed block", "positions in a queue are below 2^64");
            return refuse(what, seal.length, allowed);
        }
        Ok(())
    }

    /// Items and bytes that the blocks before a queue's tail still hold.
    fn ahead(&self) -> (u64, u64) {
        let queue = self.queue.as_ref().expect("only queues are asked");
        let tail = self.tail();
        let put = self.entries[tail].start - self.entries[0].start;
        let put_bytes: u64 = queue.through.iter().sum();
        let taken = self.entries[..tail].iter().map(|entry| queue.taken_from(entry.block));
        let (items, bytes) = taken.fold((0, 0), |(i, b), (items, bytes)| (i + items, b + bytes));
        assert!(items <= put && bytes <= put_bytes, "INV-22: more was taken than was put");
        (put - items, put_bytes - bytes)
    }
}

impl Catalog {
    /// The tail of a queue was sealed and its successor has become the tail. `emptied` is the sealed
    /// block when nothing went through it, so that it left the map.
    pub(crate) fn sealed_in_queue(
        &mut self,
        s: u32,
        emptied: Option<BlockId>,
        bytes: u64,
        effects: &mut Vec<Effect>,
    ) {
        let Some(queue) = self.structures[s].queue.as_mut() else { return };
        match emptied {
            // Its name may come back to this queue under another epoch.
            Some(block) => queue.taken.retain(|taken| taken.block != block),
            None => queue.through.push_back(bytes),
        }
        self.tell_ahead(s, effects);
    }

    /// A queue was closed: only what its map lists can still be taken from.
    pub(crate) fn closed_queue(&mut self, s: u32) {
        let structure = &mut self.structures[s];
        if let Some(queue) = structure.queue.as_mut() {
            let listed = &structure.entries;
            queue.taken.retain(|taken| listed.iter().any(|entry| entry.block == taken.block));
        }
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
        let most = structure.went_through(at.block);
        if most.is_some_and(|(most, most_bytes)| items > most || bytes > most_bytes) {
            let (what, given) = ("the items taken from a block", items);
            let allowed = "no more are taken than went through it";
            return Err(CatalogError::InvalidArgument { what, given, allowed });
        }
        let queue = structure.queue.as_mut().expect("it is a queue");
        match queue.taken.iter_mut().find(|taken| taken.block == at.block) {
            Some(taken) => {
                (taken.items, taken.bytes) = (taken.items.max(items), taken.bytes.max(bytes));
            }
            None => queue.taken.push(Taken { block: at.block, items, bytes }),
        }
        self.tell_ahead(s, effects);
        Ok(Reply::Done)
    }

    /// A block is empty for good: it leaves the map when no block comes before it any more, and those
    /// behind it that are as empty leave with it. Refused for the tail, and for a block whose seal was
    /// not heard of yet.
    pub(crate) fn retire(
        &mut self,
        id: StructureId,
        at: BlockAt,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        self.heard_from(at.block.server());
        let s = self.queue_of_block(id, at)?;
        let structure = &mut self.structures[s];
        let sealed = &structure.entries[..structure.entries.len() - 1];
        if !sealed.iter().any(|entry| entry.block == at.block) {
            return Err(CatalogError::NotSealed { at });
        }
        // The version is not raised: a tail was told which one its seal will make, and must be right.
        // Maps of one version differ at most in how many of the first blocks they still list.
        let (j, version) = (structure.job, MapVersion(structure.version));
        let queue = structure.queue.as_mut().expect("it is a queue");
        if !queue.spent.contains(&at.block) {
            queue.spent.push(at.block);
        }
        let is_spent = |entry: &&Placed| queue.spent.contains(&entry.block);
        let count = sealed.iter().take_while(is_spent).count();
        let gone: Vec<BlockId> =
            structure.entries.drain(..count).map(|entry| entry.block).collect();
        queue.through.drain(..count);
        queue.spent.retain(|block| !gone.contains(block));
        queue.taken.retain(|taken| !gone.contains(&taken.block));
        for block in &gone {
            self.give_back(j, s, *block, effects);
        }
        if !gone.is_empty() {
            self.tell_ahead(s, effects);
        }
        Ok(Reply::Sealed { version })
    }
}
