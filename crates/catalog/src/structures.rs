//! Structures: their blocks, their partition maps, and access to them.

use crate::command::Seal;
use crate::dag::Node;
use crate::durable::Dirty;
use crate::hash::HashKey;
use crate::jobs::Job;
use crate::moves::Moves;
use crate::policy::Chooser;
use crate::pool::{Draw, NoRoom, SlotOwner, Wanted};
use crate::private::PrivateChain;
use crate::queue::QueueState;
use crate::quota::Quota;
use crate::slab::{NONE, Slab};
use crate::tier_weights::memory_last;
use crate::tombstones::{Cause, Gone, Tombstone};
use crate::{
    Actor, Catalog, CatalogError, EdgeOutcome, Effect, MapEntry, NewStructure, Opened,
    PartitionMap, Reply, Router, StructureInfo,
};
use hashbrown::HashTable;
use honeycomb_types::limits::{SLOT_WIDTH, SLOTS, STRUCTURES_PER_PREFIX_MAX, TIERS_MAX};
use honeycomb_types::{
    BlockAt, BlockId, Capabilities, Demotion, IdOf, JobId, Kind, KindAttributes, MapVersion,
    MoveId, StructureId, TierIx, Verbs, check_name,
};
use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// One range of a structure: from `start` to the start of the next one. 16 bytes; the epoch is in the block's
/// slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) start: u64,
    pub(crate) block: BlockId,
}

/// A granted successor, and its own seal if that was received before its predecessor's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub(crate) block: BlockId,
    pub(crate) sealed: Option<Seal>,
    /// Whether it holds a part of a large append, so that its predecessor cannot return it.
    pub(crate) linked: bool,
}

impl Granted {
    /// An empty successor.
    pub(crate) fn empty(block: BlockId) -> Granted {
        Granted { block, sealed: None, linked: false }
    }
}

/// The blocks of a file or queue that are not in its map yet.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    /// Granted successors, in order: the first follows the tail.
    pub(crate) granted: VecDeque<Granted>,
    /// Pre-allocated blocks, which are granted first.
    pub(crate) spare: VecDeque<BlockId>,
    /// The blocks of large appends that are not committed.
    pub(crate) private: Vec<PrivateChain>,
}

#[derive(Debug)]
pub(crate) struct StructureRecord {
    pub(crate) id: StructureId,
    pub(crate) job: u32,
    pub(crate) prefix: u32,
    pub(crate) name: Box<str>,
    pub(crate) kind: Kind,
    pub(crate) router: Router,
    /// Of a custom kind, as its servers announced them before the creation.
    pub(crate) capabilities: Capabilities,
    pub(crate) sealed: bool,
    pub(crate) version: u64,
    pub(crate) entries: Vec<Placed>,
    pub(crate) growth: Option<Box<Growth>>,
    pub(crate) queue: Option<Box<QueueState>>,
    /// The moves of a kv that has split or merged.
    pub(crate) moves: Option<Box<Moves>>,
    /// Blocks in which it keeps extents of large values or items. They are in no map: its content names them.
    pub(crate) extents: Vec<BlockId>,
    /// Number of leading map entries that equal the logged ones.
    pub(crate) unchanged: usize,
    /// The next structure of the same prefix.
    pub(crate) next: u32,
    pub(crate) prev: u32,
}

impl StructureRecord {
    /// Every block that it holds.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.chained().chain(self.extents.iter().copied())
    }

    /// The blocks of the structure's own kind: all except blocks of extents.
    pub(crate) fn chained(&self) -> impl Iterator<Item = BlockId> {
        let targets = self.moves.iter().flat_map(|moves| moves.new_targets());
        self.in_order().chain(self.private()).chain(targets)
    }

    /// The same in their order, those not yet in the map last; without targets of moves and private blocks,
    /// which serve nothing before the commit.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = BlockId> {
        let placed = self.entries.iter().map(|entry| entry.block);
        let growth = self.growth.iter().flat_map(|growth| {
            let granted = growth.granted.iter().map(|granted| granted.block);
            granted.chain(growth.spare.iter().copied())
        });
        placed.chain(growth)
    }

    /// The end of an entry's range, inclusive.
    pub(crate) fn end(&self, entry: usize) -> u64 {
        self.entries.get(entry + 1).map_or(u64::MAX, |next| next.start - 1)
    }

    fn bytes(&self) -> usize {
        let growth = self.growth.as_ref().map_or(0, |growth| {
            let granted = growth.granted.capacity() * size_of::<Granted>();
            let spare = growth.spare.capacity() * size_of::<BlockId>();
            let private = growth.private.iter().map(PrivateChain::bytes).sum::<usize>();
            size_of::<Growth>() + granted + spare + private
        });
        let queue = self.queue.as_ref().map_or(0, |queue| queue.bytes());
        let moves = self.moves.as_ref().map_or(0, |moves| moves.bytes());
        let extents = self.extents.capacity() * size_of::<BlockId>();
        let entries = self.entries.capacity() * size_of::<Placed>();
        self.name.len() + entries + growth + queue + moves + extents
    }
}

/// One block of extents added or removed.
#[derive(Debug)]
pub(crate) struct ExtentsChange {
    pub(crate) place: u32,
    pub(crate) structure: StructureId,
    pub(crate) at: BlockAt,
    pub(crate) added: bool,
}

#[derive(Debug)]
pub(crate) struct Structures {
    all: Slab<StructureRecord>,
    ids: HashTable<u32>,
    names: HashTable<u32>,
    key: HashKey,
    last: u64,
    /// Structures whose durable state changed.
    pub(crate) dirty: Dirty,
    /// Blocks of extents that were added or removed, in order.
    pub(crate) extents_changed: Vec<ExtentsChange>,
    /// Blocks that left the maps of queues.
    pub(crate) retired: Vec<(u32, BlockId)>,
}

impl Index<u32> for Structures {
    type Output = StructureRecord;
    fn index(&self, s: u32) -> &StructureRecord {
        &self.all[s]
    }
}

impl IndexMut<u32> for Structures {
    fn index_mut(&mut self, s: u32) -> &mut StructureRecord {
        &mut self.all[s]
    }
}

impl Structures {
    pub(crate) fn new(key: HashKey) -> Structures {
        let (ids, names) = (HashTable::new(), HashTable::new());
        let (dirty, extents_changed, retired) = (Dirty::default(), Vec::new(), Vec::new());
        Structures { all: Slab::new(), ids, names, key, last: 0, dirty, extents_changed, retired }
    }

    /// The last assigned number.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn get(&self, s: u32) -> Option<&StructureRecord> {
        self.all.get(s)
    }

    /// Durable state of a structure is about to change: its successor list, its state, or entries of its map
    /// from this one on.
    pub(crate) fn changes(&mut self, s: u32, from: usize) {
        if self.dirty.on() {
            self.dirty.mark(s);
            let structure = &mut self.all[s];
            structure.unchanged = structure.unchanged.min(from);
        }
    }

    /// The entry at this index is about to leave the map.
    pub(crate) fn retires(&mut self, s: u32, place: usize) {
        if self.dirty.on() {
            let structure = &mut self.all[s];
            self.retired.push((s, structure.entries[place].block));
            structure.unchanged -= usize::from(place < structure.unchanged);
        }
    }

    /// A block of extents was added or removed.
    pub(crate) fn extents_change(&mut self, place: u32, at: BlockAt, added: bool) {
        if self.dirty.on() {
            let structure = self.all[place].id;
            self.extents_changed.push(ExtentsChange { place, structure, at, added });
        }
    }

    /// Adopts the structures of a recovered catalog; their lists follow.
    pub(crate) fn recover(&mut self, all: Slab<StructureRecord>, last: u64) {
        (self.all, self.last) = (all, last);
        let (key, all) = (self.key, &self.all);
        let id = |&s: &u32| key.id(all[s].id.0);
        let name = |&s: &u32| key.name(all[s].prefix as u64, &all[s].name);
        for (s, _) in all.iter() {
            self.ids.insert_unique(id(&s), s, id);
            self.names.insert_unique(name(&s), s, name);
        }
    }

    /// Puts a recovered structure into the list of its prefix.
    pub(crate) fn enlist(&mut self, s: u32, node: &mut Node) {
        let next = std::mem::replace(&mut node.first_structure, s);
        node.structures += 1;
        self.all[s].next = next;
        if next != NONE {
            self.all[next].prev = s;
        }
    }

    pub(crate) fn find(&self, id: StructureId) -> Option<u32> {
        self.ids.find(self.key.id(id.0), |&s| self.all[s].id == id).copied()
    }

    /// The first structure at this index or behind it, among the next `most` indices.
    pub(crate) fn next_from(&self, from: u32, most: u32) -> Option<u32> {
        self.all.next_from(from, most)
    }

    /// The index at which a search continues that found nothing from this one on.
    pub(crate) fn wraps(&self, from: u32, most: u32) -> u32 {
        let next = from.saturating_add(most);
        if (next as usize) < self.all.bound() { next } else { 0 }
    }

    fn named(&self, prefix: u32, name: &str) -> Option<u32> {
        let same = |&s: &u32| self.all[s].prefix == prefix && *self.all[s].name == *name;
        self.names.find(self.key.name(prefix as u64, name), same).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &StructureRecord)> {
        self.all.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    fn insert(&mut self, structure: StructureRecord) -> u32 {
        let id = structure.id;
        debug_assert!(self.find(id).is_none(), "INV-54: structure id {id} was given twice");
        debug_assert!(
            self.named(structure.prefix, &structure.name).is_none(),
            "INV-13: {id} has the name of another structure"
        );
        let (key, all) = (self.key, &mut self.all);
        let s = all.insert(structure);
        let id = |&s: &u32| key.id(all[s].id.0);
        let name = |&s: &u32| key.name(all[s].prefix as u64, &all[s].name);
        self.ids.insert_unique(id(&s), s, id);
        self.names.insert_unique(name(&s), s, name);
        if all[s].next != NONE {
            let next = all[s].next;
            all[next].prev = s;
        }
        self.dirty.mark(s);
        s
    }

    fn remove(&mut self, s: u32, first_of_prefix: &mut u32) {
        let gone = &self.all[s];
        let id = self.key.id(gone.id.0);
        let name = self.key.name(gone.prefix as u64, &gone.name);
        for (table, hash) in [(&mut self.ids, id), (&mut self.names, name)] {
            let entry = table.find_entry(hash, |&other| other == s);
            entry.expect("a structure is in both tables").remove();
        }
        let gone = self.all.remove(s);
        self.dirty.mark(s);
        match gone.prev {
            NONE => *first_of_prefix = gone.next,
            prev => self.all[prev].next = gone.next,
        }
        if gone.next != NONE {
            self.all[gone.next].prev = gone.prev;
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let tables = self.ids.allocation_size() + self.names.allocation_size();
        tables + self.all.bytes() + self.all.iter().map(|(_, s)| s.bytes()).sum::<usize>()
    }
}

/// The number of blocks of a new structure, with the default applied.
fn checked_size(new: &NewStructure<'_>, router: Router) -> Result<u32, CatalogError> {
    let blocks = new.blocks.max(1);
    if router == Router::HashRange && blocks > SLOTS {
        return Err(CatalogError::InvalidArgument {
            what: "the number of blocks of a key-value store",
            given: blocks as u64,
            allowed: "each block owns at least one of the 65536 hash slots; request fewer blocks",
        });
    }
    Ok(blocks)
}

/// First hash of block `i` of `n`: the slots are divided evenly, in order.
fn kv_start(i: u32, n: u32) -> u64 {
    (i as u64 * SLOTS as u64 / n as u64) * SLOT_WIDTH
}

impl Catalog {
    pub(crate) fn create_structure(
        &mut self,
        actor: Actor,
        job: JobId,
        new: NewStructure<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let j = self.admit(actor, job)?;
        if !new.name.is_empty() {
            check_name(new.name)?;
        }
        let (router, capabilities) = self.router_of(new.kind)?;
        let blocks = checked_size(&new, router)?;
        let n = self.live_prefix(j, new.path)?;
        let verbs = self.verbs_at(actor, n)?;
        if let Some(s) = self.structures.named(n, new.name) {
            return self.open_existing(actor, s, verbs, &new);
        }
        self.need_write_at(actor, n, "create a structure")?;
        if self.dag.nodes[n].structures as usize >= STRUCTURES_PER_PREFIX_MAX {
            let (what, limit) = ("structures of one prefix", STRUCTURES_PER_PREFIX_MAX as u64);
            return Err(CatalogError::LimitExceeded { what, limit });
        }
        let attributes = new.kind.attributes_with(capabilities);
        self.need_flushable(n, &new, attributes)?;
        self.need_journalable(n, &new, attributes)?;
        let s = self.structures.all.next();
        self.count_structure(s, n);
        let kind = (new.kind, attributes.demotion);
        let units = self.first_capacity(attributes, blocks);
        let blocks = self.take_blocks((j, n), s, kind, Wanted { blocks, units }, Draw::Ordinary);
        let blocks = blocks.map_err(|mut refused| {
            self.quotas.structure_ends(s);
            if let CatalogError::OutOfMemory(full) = &mut refused {
                full.asker = format!("{}:{}", new.path, new.name).into();
            }
            refused
        })?;
        let s = self.place(n, &new, (router, capabilities), &blocks);
        self.emit_opens(s, effects);
        Ok(Reply::Opened(self.opened(s, verbs)))
    }

    fn open_existing(
        &mut self,
        actor: Actor,
        s: u32,
        verbs: Verbs,
        new: &NewStructure<'_>,
    ) -> Result<Reply, CatalogError> {
        let (path, name, is) = (new.path.into(), new.name.into(), self.structures[s].kind);
        if !new.open_existing {
            return Err(CatalogError::StructureExists { path, name });
        }
        self.need_loaded(self.structures[s].prefix)?;
        self.need_sound(s)?;
        if is != new.kind {
            return Err(CatalogError::WrongKind {
                path,
                name,
                is,
                asked: new.kind.to_string().into(),
            });
        }
        let structure = &self.structures[s];
        let has = [structure.max_items(), structure.max_bytes()];
        let asked = [new.max_items, new.max_bytes];
        // The caller accepts any bound that it does not name.
        if asked.iter().zip(has).any(|(&asked, has)| asked != 0 && asked != has) {
            return Err(CatalogError::OtherBounds { path, name, has, asked });
        }
        let edge = self.consume(actor, structure.prefix);
        Ok(Reply::Opened(Opened { edge, ..self.opened(s, verbs) }))
    }

    /// Allocates blocks for a structure of a prefix within the applicable quotas: all of them or none. They
    /// begin in memory. When memory has too little room, and their kind can be in a lower tier, all of them
    /// begin in the first lower tier that has room. For a job that need not be in memory, its weights choose
    /// the first tier (`tier_weights`), and memory comes last (Pocket: it "does not use DRAM"). `demotion` is
    /// as the structure records it: its servers may announce the kind later, or not at all.
    pub(crate) fn take_blocks(
        &mut self,
        (j, n): (u32, u32),
        s: u32,
        (kind, demotion): (Kind, Demotion),
        wanted: Wanted,
        draw: Draw,
    ) -> Result<Vec<BlockAt>, CatalogError> {
        let asked = wanted.all();
        let quota = self.request_memory((j, n), s, asked)?;
        self.pool.staying.own(s, j);
        // The target of a move is filled in memory.
        let below = demotion.begins_below() && draw == Draw::Ordinary && !self.is_journaled(n);
        let below = if below { TIERS_MAX } else { 0 };
        let fair = self.policy.kind().is_fair() && below > 0 && !self.recovering();
        // The room that a fair policy keeps free belongs to holders within their share. Blocks that may
        // change do so in memory, on every server.
        let last = self.jobs[j].hints.not_sensitive && demotion == Demotion::Appended;
        let count = below as u8 + 1;
        let leaves = fair && self.leaves_memory(j, asked);
        let first = match last && below > 0 {
            true => self.first_tier(j, wanted.blocks),
            false => TierIx::MEMORY,
        };
        let first = if leaves && !first.is_below() { TierIx(1) } else { first };
        let mut turn = 0;
        let blocks = loop {
            let tier = match last {
                true => memory_last(first, turn, count),
                false => TierIx((first.0 + turn) % count),
            };
            turn += 1;
            let taken = self.take_of((j, s), kind, wanted, draw, tier);
            let memory = fair && !tier.is_below();
            if taken.is_ok() || turn == count || memory && self.waits_for_share((j, n), asked) {
                break taken;
            }
        };
        if fair && blocks.is_ok() {
            self.is_paid(n);
        }
        let blocks = blocks.map_err(|NoRoom| self.refuse_memory((j, n), s, asked))?;
        self.receive_memory((j, s), quota, asked);
        Ok(blocks)
    }

    /// A structure of a prefix requests so many units: refuses what would exceed a quota.
    pub(crate) fn request_memory(
        &mut self,
        (j, n): (u32, u32),
        s: u32,
        units: u32,
    ) -> Result<Quota, CatalogError> {
        let quota = self.may_take(j, s, units.into())?;
        if quota != Quota::None && self.recovering() {
            // INV-30: a server may still report growth that the log has lost, which counts as well.
            return Err(CatalogError::Recovering);
        }
        self.pressure.asks(n);
        Ok(quota)
    }

    /// There is no room for the request.
    pub(crate) fn refuse_memory(&mut self, (j, n): (u32, u32), s: u32, units: u32) -> CatalogError {
        self.pressure.refuses(n);
        // Disconnected servers may have room as well.
        match self.recovering() {
            true => CatalogError::Recovering,
            false => CatalogError::OutOfMemory(Box::new(self.full((j, n), s, units.into()))),
        }
    }

    /// The request was fulfilled: the job is still within its quota (INV-30).
    pub(crate) fn receive_memory(&mut self, (j, s): (u32, u32), quota: Quota, units: u32) {
        match quota {
            Quota::Beside => self.units_found(j, s, units.into()),
            Quota::None | Quota::Bounded => self.units_came(j, s, units.into()),
        }
        let Job { units: held, quota, .. } = &self.jobs[j];
        let holds = quota.holds(*held, self.whole());
        assert!(holds, "INV-30: job {j} holds {held} units, and has {quota:?}");
    }

    /// The units with which each of so many blocks of a new structure begins. More than one block is a
    /// request for memory in advance: it is there when they are filled.
    pub(crate) fn first_capacity(&self, attributes: KindAttributes, blocks: u32) -> u32 {
        if attributes.enlarges && blocks <= 1 { 1 } else { self.units().whole() }
    }

    /// Allocates blocks of one tier, all or none.
    fn take_of(
        &mut self,
        (j, s): (u32, u32),
        kind: Kind,
        wanted: Wanted,
        draw: Draw,
        tier: TierIx,
    ) -> Result<Vec<BlockAt>, NoRoom> {
        let (mut weights, now) = (self.take_weights(j), self.now);
        let chooser = Chooser { policy: &*self.policy, weights: weights.as_deref_mut() };
        let blocks = self.pool.allocate(chooser, (s, kind), wanted, draw, (tier, now));
        self.jobs[j].weights = weights;
        blocks
    }

    /// Records a structure whose blocks were allocated.
    fn place(
        &mut self,
        n: u32,
        new: &NewStructure<'_>,
        (router, capabilities): (Router, Capabilities),
        blocks: &[BlockAt],
    ) -> u32 {
        let count = blocks.len() as u32;
        let (entries, growth) = match router {
            Router::HashRange => {
                let start = |i| kv_start(i, count);
                let placed = |(i, at): (u32, &BlockAt)| Placed { start: start(i), block: at.block };
                ((0..).zip(blocks).map(placed).collect(), None)
            }
            Router::Offset | Router::Ends | Router::Index => {
                let spare: VecDeque<BlockId> = blocks[1..].iter().map(|at| at.block).collect();
                let growth = Growth { spare, ..Growth::default() };
                let growth = (count > 1).then(|| Box::new(growth));
                (vec![Placed { start: 0, block: blocks[0].block }], growth)
            }
        };
        self.structures.last += 1;
        let id = StructureId(self.id_of(IdOf::Structure, self.structures.last));
        let node = &mut self.dag.nodes[n];
        assert!(node.live(), "INV-13: structure {id} is created in a prefix that has ended");
        let s = self.structures.insert(StructureRecord {
            id,
            job: node.job,
            prefix: n,
            name: new.name.into(),
            kind: new.kind,
            router,
            capabilities,
            sealed: false,
            version: 1,
            entries,
            growth,
            queue: QueueState::of(new, router),
            moves: None,
            extents: Vec::new(),
            unchanged: 0,
            next: node.first_structure,
            prev: NONE,
        });
        node.first_structure = s;
        node.structures += 1;
        self.jobs[node.job].structures += 1;
        s
    }

    fn emit_opens(&self, s: u32, effects: &mut Vec<Effect>) {
        let structure = &self.structures[s];
        for (i, block) in structure.blocks().enumerate() {
            let (start, end) = match structure.router {
                Router::HashRange => (structure.entries[i].start, structure.end(i)),
                // Positions in their blocks count from the start of the block.
                Router::Offset | Router::Ends | Router::Index => (0, u64::MAX),
            };
            effects.push(self.open_effect(s, block, (start, end), MoveId::NONE));
        }
    }

    pub(crate) fn open_effect(
        &self,
        s: u32,
        block: BlockId,
        (start, end): (u64, u64),
        importing: MoveId,
    ) -> Effect {
        let structure = &self.structures[s];
        let node = &self.dag.nodes[structure.prefix];
        Effect::OpenBlock {
            server: block.server(),
            at: self.pool.at(block),
            job: self.jobs[structure.job].id,
            prefix: node.id,
            structure: structure.id,
            generation: node.generation,
            kind: structure.kind_of(block),
            start,
            end,
            max_items: structure.max_items(),
            max_bytes: structure.max_bytes(),
            first: structure.entries[0].block == block,
            marks: self.marks(structure.prefix),
            importing,
            tier: self.pool.place(block).tier,
            capacity: self.capacity_of(block),
            journal: self.journal_at(s),
        }
    }

    pub(crate) fn open(
        &mut self,
        actor: Actor,
        job: JobId,
        path: &str,
        name: &str,
    ) -> Result<Reply, CatalogError> {
        let j = self.admit(actor, job)?;
        let n = self.live_prefix(j, path)?;
        self.need_loaded(n)?;
        let s = self.find_named(n, path, name)?;
        self.need_sound(s)?;
        let verbs = self.verbs_at(actor, n)?;
        let edge = self.consume(actor, n);
        Ok(Reply::Opened(Opened { edge, ..self.opened(s, verbs) }))
    }

    pub(crate) fn reopen(
        &mut self,
        actor: Actor,
        job: JobId,
        structure: StructureId,
    ) -> Result<Reply, CatalogError> {
        let s = self.identified(actor, job, structure)?;
        let verbs = self.verbs_at(actor, self.structures[s].prefix)?;
        Ok(Reply::Opened(self.opened(s, verbs)))
    }

    /// The structure of a job with this identity, or the reason why it ended.
    pub(crate) fn identified(
        &mut self,
        actor: Actor,
        job: JobId,
        structure: StructureId,
    ) -> Result<u32, CatalogError> {
        let j = self.admit(actor, job)?;
        // INV-28: another job's structure does not exist for this job.
        let Some(s) = self.structures.find(structure).filter(|&s| self.structures[s].job == j)
        else {
            let tombstone = self.jobs[j].tombstones.find(self.key, Gone::Structure(structure));
            return Err(match tombstone {
                Some(tombstone) => tombstone.error(self.now, self.needs_reopening(j)),
                None => CatalogError::UnknownStructure { structure },
            });
        };
        self.need_sound(s)?;
        Ok(s)
    }

    /// The structure of this name, or the reason why the last one of that name ended.
    fn find_named(&self, n: u32, path: &str, name: &str) -> Result<u32, CatalogError> {
        if let Some(s) = self.structures.named(n, name) {
            return Ok(s);
        }
        let node = &self.dag.nodes[n];
        Err(match self.jobs[node.job].tombstones.named(self.key, node.id, name) {
            Some(tombstone) => tombstone.error(self.now, self.needs_reopening(node.job)),
            None => CatalogError::StructureNotFound { path: path.into(), name: name.into() },
        })
    }

    pub(crate) fn remove_structure(
        &mut self,
        actor: Actor,
        job: JobId,
        path: &str,
        name: &str,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let j = self.admit(actor, job)?;
        let n = self.live_prefix(j, path)?;
        self.need_write_at(actor, n, "remove a structure")?;
        let s = self.find_named(n, path, name)?;
        let path = self.dag.path_of(n).into();
        self.drop_journal_of(s, effects);
        self.end_structure(s, Cause::Removed, &path, effects);
        Ok(Reply::Done)
    }

    /// Frees a structure and records the reason.
    pub(crate) fn end_structure(
        &mut self,
        s: u32,
        cause: Cause,
        path: &Arc<str>,
        effects: &mut Vec<Effect>,
    ) {
        let structure = &self.structures[s];
        let (j, gone) = (structure.job, Gone::Structure(structure.id));
        let (prefix, name) = (self.dag.nodes[structure.prefix].id, structure.name.clone());
        self.free_structure(s, effects);
        let (path, at) = (path.clone(), self.now);
        self.remember(j, Tombstone { gone, prefix, path, name, cause, at });
    }

    pub(crate) fn free_structure(&mut self, s: u32, effects: &mut Vec<Effect>) {
        self.forget_appends(s);
        let j = self.structures[s].job;
        let mut blocks: Vec<BlockId> = self.structures[s].blocks().collect();
        if self.is_quarantined(s) {
            // Its lists may name a block twice, or one that it does not own.
            blocks.sort_unstable();
            blocks.dedup();
            blocks.retain(|block| self.pool.owner(*block) == Some(SlotOwner::By(s)));
        }
        for block in blocks {
            self.give_back(j, s, block, effects);
        }
        self.unlist_structure(s);
    }

    /// Removes a structure whose blocks were taken from it.
    pub(crate) fn unlist_structure(&mut self, s: u32) {
        let StructureRecord { id, job: j, prefix: n, .. } = self.structures[s];
        let node = &mut self.dag.nodes[n];
        let counted = (node.structures, self.jobs[j].structures);
        let covers = counted.0 > 0 && counted.1 > 0;
        assert!(covers, "INV-13: structure {s} ends, and {counted:?} are counted");
        node.structures -= 1;
        self.structures.remove(s, &mut node.first_structure);
        self.quotas.structure_ends(s);
        self.audit.forget(id);
        self.jobs[j].structures -= 1;
    }

    /// Takes one block from a structure that no longer lists it, or is about to end.
    pub(crate) fn give_back(&mut self, j: u32, s: u32, block: BlockId, effects: &mut Vec<Effect>) {
        let units = self.pool.units(block).into();
        let bytes = self.pool.release(block, s, effects);
        self.units_went(j, s, units);
        let all = self.jobs[j].bytes_used;
        assert!(all >= bytes, "INV-02: {block} held {bytes} of the {all} bytes of its job");
        self.jobs[j].bytes_used -= bytes;
    }

    fn opened(&self, s: u32, verbs: Verbs) -> Opened {
        let structure = &self.structures[s];
        let node = &self.dag.nodes[structure.prefix];
        Opened {
            structure: structure.id,
            job: self.jobs[structure.job].id,
            prefix: node.id,
            kind: structure.kind,
            verbs,
            generation: node.generation,
            map: self.map_of(structure),
            max_items: structure.max_items(),
            max_bytes: structure.max_bytes(),
            edge: EdgeOutcome::NotNeeded,
        }
    }

    fn map_of(&self, structure: &StructureRecord) -> PartitionMap {
        let entries = structure.entries.iter().enumerate();
        PartitionMap {
            version: MapVersion(structure.version),
            router: structure.router,
            block_size: self.block_size,
            entries: entries
                .map(|(i, placed)| self.entry(placed.block, placed.start, structure.end(i)))
                .collect(),
        }
    }

    pub(crate) fn entry(&self, block: BlockId, start: u64, end: u64) -> MapEntry {
        MapEntry { start, end, at: self.pool.at(block), address: self.pool.address(block.server()) }
    }

    pub(crate) fn structure_info(&self, s: u32) -> StructureInfo {
        let structure = &self.structures[s];
        StructureInfo {
            structure: structure.id,
            name: structure.name.clone(),
            kind: structure.kind,
            blocks: structure.blocks().count() as u32,
            bytes_used: structure.blocks().map(|block| self.pool.bytes_used(block)).sum(),
            sealed: structure.sealed,
        }
    }
}
