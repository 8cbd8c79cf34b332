//! Growth of files and queues: the tail requests a successor, seals itself at its actual length, and the
//! successor serves the positions that follow.
//!
//! A tail directs its clients to the successor before the catalog receives the seal, so the successor may
//! fill up, request its own successor and seal first. The catalog therefore keeps a list of granted
//! successors, assigns each the map version that the seal of its predecessor will make, and applies seals in
//! the order of that list. Every request can be repeated.

use crate::command::Seal;
use crate::pool::{Draw, SlotOwner, Wanted, Where};
use crate::structures::{Granted, Placed, StructureRecord};
use crate::{Catalog, CatalogError, Effect, Reply, Router};
use honeycomb_types::{BlockAt, BlockId, Bug, MapVersion, MoveId, ServerId, StructureId};

/// The position of a block in a file or a queue.
pub(crate) enum Position {
    /// Sealed and in the map, at this index.
    Sealed(usize),
    /// In the successor list: 0 is the tail, 1 its successor and so on.
    Chain(usize),
    /// In a private chain, by the index of the chain, and in it.
    Private(usize, usize),
}

impl StructureRecord {
    /// The last block of the successor list, which is its tail if it has no successor.
    fn last_granted(&self) -> BlockId {
        let granted = self.growth.as_ref().and_then(|growth| growth.granted.back());
        granted.map_or(self.entries[self.entries.len() - 1].block, |granted| granted.block)
    }

    /// The position of one of its blocks.
    pub(crate) fn position(&self, block: BlockId) -> Option<Position> {
        let tail = self.entries.len() - 1;
        if self.entries[tail].block == block {
            return Some(Position::Chain(0));
        }
        let granted = self.growth.iter().flat_map(|growth| &growth.granted);
        if let Some(k) = granted.map(|granted| granted.block).position(|other| other == block) {
            return Some(Position::Chain(k + 1));
        }
        let chains = self.growth.iter().flat_map(|growth| &growth.private).enumerate();
        for (chain, private) in chains {
            if let Some(k) = private.blocks.iter().position(|granted| granted.block == block) {
                return Some(Position::Private(chain, k));
            }
        }
        self.entries.iter().rposition(|entry| entry.block == block).map(Position::Sealed)
    }
}

impl Catalog {
    /// The structure that a server's request for a block concerns, if the structure owns the block in this
    /// epoch. In any case the request counts as a message of the server.
    pub(crate) fn held_by(&mut self, id: StructureId, at: BlockAt) -> Result<u32, CatalogError> {
        self.heard_from(at.block.server());
        let s = self.structures.find(id).ok_or(CatalogError::UnknownStructure { structure: id })?;
        self.need_sound(s)?;
        if self.pool.held(at) == Some(SlotOwner::By(s)) {
            Ok(s)
        } else {
            Err(CatalogError::StaleBlock { at })
        }
    }

    /// The same, for requests that only blocks of files and queues make.
    pub(crate) fn named_by_block(
        &mut self,
        id: StructureId,
        at: BlockAt,
    ) -> Result<u32, CatalogError> {
        let s = self.held_by(id, at)?;
        if !self.structures[s].router.grows() {
            return Err(self.wrong_kind(s, "structure whose blocks have successors"));
        }
        Ok(s)
    }

    pub(crate) fn wrong_kind(&self, s: u32, asked: &str) -> CatalogError {
        let structure = &self.structures[s];
        let path = self.dag.path_of(structure.prefix).into();
        let (name, is) = (structure.name.clone(), structure.kind);
        CatalogError::WrongKind { path, name, is, asked: asked.into() }
    }

    pub(crate) fn grow(
        &mut self,
        id: StructureId,
        at: BlockAt,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let s = self.named_by_block(id, at)?;
        let structure = &self.structures[s];
        let asker = match structure.position(at.block).ok_or(CatalogError::StaleBlock { at })? {
            Position::Chain(k) => k,
            Position::Private(chain, k) => return self.grow_private(s, (chain, k), effects),
            Position::Sealed(i) => {
                // A late repetition of the request: the successor is already in the map.
                let successor = structure.entries[i + 1].block;
                let version = MapVersion(structure.version);
                return Ok(Reply::Grown { version, entry: self.entry(successor, 0, u64::MAX) });
            }
        };
        self.refuse_sealed(s, asker)?;
        let version = MapVersion(self.structures[s].version + asker as u64 + 1);
        let granted = self.structures[s].growth.iter().flat_map(|growth| &growth.granted);
        let successor = match granted.map(|granted| granted.block).nth(asker) {
            Some(block) if !Bug::GrowsTwice.active() => block,
            _ => self.grant(s, effects)?,
        };
        Ok(Reply::Grown { version, entry: self.entry(successor, 0, u64::MAX) })
    }

    /// Frees the last block of the successor list, which its predecessor has named to no client. If the
    /// predecessor is refused because the list has grown meanwhile, its next request returns the same
    /// successor.
    pub(crate) fn give_back_successor(
        &mut self,
        id: StructureId,
        at: BlockAt,
        successor: BlockAt,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let s = self.named_by_block(id, at)?;
        let structure = &self.structures[s];
        let stale = CatalogError::StaleBlock { at: successor };
        let Some(Position::Chain(asker)) = structure.position(at.block) else { return Err(stale) };
        let granted = structure.growth.as_ref().map_or(0, |growth| growth.granted.len());
        let sealed = self.chain_seal(s, asker);
        let last = structure.growth.as_ref().and_then(|growth| growth.granted.back());
        let theirs =
            last.is_some_and(|g| g.block == successor.block && g.sealed.is_none() && !g.linked);
        let current = self.pool.held(successor) == Some(SlotOwner::By(s));
        if asker + 1 != granted || sealed.is_some() || !theirs || !current {
            return Err(stale);
        }
        self.cancel_moves_of(s, successor.block, effects);
        self.structures.changes(s, usize::MAX);
        let structure = &mut self.structures[s];
        let growth =
            structure.growth.as_mut().expect("a structure that granted a block has its growth");
        growth.granted.pop_back();
        let j = structure.job;
        self.give_back(j, s, successor.block, effects);
        self.awaits_fewer(s, effects);
        Ok(Reply::Done)
    }

    /// Frees pre-allocated and private blocks on a draining server.
    pub(crate) fn give_back_spares(&mut self, s: u32, id: ServerId, effects: &mut Vec<Effect>) {
        self.end_chains(s, |chain| chain.is_on(&[id]), effects);
        let structure = &mut self.structures[s];
        let (j, growth) = (structure.job, structure.growth.as_mut());
        let there = |block: &BlockId| block.server() == id;
        let Some(growth) = growth.filter(|growth| growth.spare.iter().any(there)) else { return };
        let (spares, kept) = growth.spare.drain(..).partition::<Vec<BlockId>, _>(there);
        growth.spare = kept.into();
        self.structures.changes(s, usize::MAX);
        for block in spares {
            self.give_back(j, s, block, effects);
        }
        self.awaits_fewer(s, effects);
    }

    /// The seal of a block of the successor list, if it was received.
    fn chain_seal(&self, s: u32, place: usize) -> Option<Seal> {
        let mut granted = self.structures[s].growth.iter().flat_map(|growth| &growth.granted);
        place.checked_sub(1).and_then(|k| granted.nth(k)).and_then(|granted| granted.sealed)
    }

    pub(crate) fn refuse_sealed(&self, s: u32, asker: usize) -> Result<(), CatalogError> {
        let structure = &self.structures[s];
        let own_seal = self.chain_seal(s, asker);
        if structure.sealed || own_seal.is_some_and(|seal| seal.last) {
            let path = self.dag.path_of(structure.prefix).into();
            return Err(CatalogError::Sealed { path, name: structure.name.clone() });
        }
        Ok(())
    }

    /// Changes the capacity of a block in place, to the least capacity for this many bytes. A block requests
    /// a larger capacity before it uses the bytes, and reports a smaller one after it has freed the memory. A
    /// repeated request gets the same answer. A block that is refused a larger capacity continues in another
    /// block, which may be on another core or in another tier.
    pub(crate) fn grow_block(
        &mut self,
        id: StructureId,
        at: BlockAt,
        bytes: u64,
    ) -> Result<Reply, CatalogError> {
        let s = self.held_by(id, at)?;
        let (units, before) = (self.units().capacity_for(bytes), self.pool.units(at.block));
        if !self.structures[s].attributes_of(at.block).enlarges {
            return Err(self.wrong_kind(s, "structure whose blocks grow in place"));
        }
        if units > before {
            self.enlarge(s, at, (before, units))?;
        } else if units < before && !Bug::CapacityKept.active() {
            self.pool.reduce(at.block, units);
            self.units_went(self.structures[s].job, s, (before - units).into());
            // Waiting allocations may use the freed units.
            self.pressure.came = true;
        }
        Ok(Reply::Capacity { bytes: self.capacity_of(at.block) })
    }

    fn enlarge(
        &mut self,
        s: u32,
        at: BlockAt,
        (before, units): (u32, u32),
    ) -> Result<(), CatalogError> {
        let StructureRecord { job: j, prefix: n, .. } = self.structures[s];
        let Where { tier, to, .. } = self.pool.place(at.block);
        if tier != to || self.structures[s].move_of(at.block).is_some() {
            return Err(CatalogError::Moving { at });
        }
        let more = units - before;
        let quota = self.request_memory((j, n), s, more)?;
        let fair = self.policy.kind().is_fair() && !self.recovering() && !tier.is_below();
        let leaves = fair && self.leaves_memory(j, more);
        if leaves || self.pool.enlarge(at.block, units, Draw::Ordinary).is_err() {
            return Err(self.refuse_memory((j, n), s, more));
        }
        if !Bug::CapacityUncounted.active() {
            self.receive_memory((j, s), quota, more);
        }
        Ok(())
    }

    /// Allocates and opens a block of a structure that grows.
    pub(crate) fn take_successor(
        &mut self,
        s: u32,
        units: u32,
        effects: &mut Vec<Effect>,
    ) -> Result<BlockId, CatalogError> {
        let StructureRecord { job, prefix, .. } = self.structures[s];
        let (kind, wanted) = (self.structures[s].placed_as(), Wanted::one(units));
        let block = self.take_blocks((job, prefix), s, kind, wanted, Draw::Ordinary)?[0].block;
        effects.push(self.open_effect(s, block, (0, u64::MAX), MoveId::NONE));
        Ok(block)
    }

    /// Adds a successor at the end of the list: a pre-allocated block, or a new one.
    fn grant(&mut self, s: u32, effects: &mut Vec<Effect>) -> Result<BlockId, CatalogError> {
        let spare = self.structures[s].growth.as_mut().and_then(|g| g.spare.pop_front());
        let block = match spare {
            Some(block) => block,
            None => {
                // The structure fills its next block as fast as its last one.
                let units = self.pool.units(self.structures[s].last_granted());
                self.take_successor(s, units, effects)?
            }
        };
        let structure = &self.structures[s];
        let held = self.pool.held(self.pool.at(block));
        assert_eq!(
            held,
            Some(SlotOwner::By(s)),
            "INV-01: the successor {block} is not of structure {s}"
        );
        debug_assert!(!structure.serves(block), "INV-20: {block} was granted twice");
        assert!(!structure.sealed, "INV-20: a sealed structure gets the successor {block}");
        let tail = structure.entries.len() - 1;
        self.structures.changes(s, tail);
        let growth = self.structures[s].growth.get_or_insert_default();
        growth.granted.push_back(Granted::empty(block));
        Ok(block)
    }

    pub(crate) fn seal(
        &mut self,
        id: StructureId,
        at: BlockAt,
        seal: Seal,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let reply = self.seal_block(id, at, seal, effects)?;
        let bytes = |&s: &u32| self.structures[s].router == Router::Offset;
        let s = self.structures.find(id).filter(bytes);
        let held = self.pool.held(at).is_some_and(|held| matches!(held, SlotOwner::By(_)));
        if s.is_some() && held && seal.length > self.pool.bytes_used(at.block) {
            // The block may be demoted before its server reports its content.
            self.uses(at, seal.length);
        }
        Ok(reply)
    }

    fn seal_block(
        &mut self,
        id: StructureId,
        at: BlockAt,
        seal: Seal,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        if let (Some(s), Some(SlotOwner::Quarantined)) =
            (self.structures.find(id), self.pool.held(at))
        {
            // A repeat by a block that was empty when it sealed, and is being freed.
            self.heard_from(at.block.server());
            return Ok(Reply::Sealed { version: MapVersion(self.structures[s].version) });
        }
        let s = self.named_by_block(id, at)?;
        let Seal { length, last, .. } = seal;
        if self.structures[s].router == Router::Offset && length > self.block_size {
            let (what, given) = ("the length of a sealed block", length);
            let allowed = "a block holds at most the block size";
            return Err(CatalogError::InvalidArgument { what, given, allowed });
        }
        let structure = &mut self.structures[s];
        let before = structure.version;
        let stale = || CatalogError::StaleBlock { at };
        match structure.position(at.block).ok_or_else(stale)? {
            Position::Sealed(i) => {
                let same = match &structure.queue {
                    Some(queue) => queue.through(i) == (length, seal.bytes),
                    None => structure.end(i) - structure.entries[i].start + 1 == length,
                };
                self.same_seal(same && !last, length)?;
                Ok(Reply::Sealed { version: MapVersion(before) })
            }
            Position::Chain(0) if structure.sealed => {
                self.same_seal(last, length)?;
                Ok(Reply::Sealed { version: MapVersion(before) })
            }
            Position::Chain(0) => {
                self.seal_tail(s, at, seal, effects)?;
                Ok(Reply::Sealed { version: MapVersion(before + 1) })
            }
            Position::Chain(k) => {
                let growth = structure.growth.as_ref().expect("the chain has this block");
                let has_next = growth.granted.len() > k;
                match growth.granted[k - 1].sealed {
                    Some(sealed) => self.same_seal(sealed == seal, length)?,
                    None if last || has_next => {
                        structure.check_seal(at.block, seal)?;
                        let tail = structure.entries.len() - 1;
                        self.structures.changes(s, tail);
                        let growth = self.structures[s].growth.as_mut();
                        let growth = growth.expect("looked up just now");
                        growth.granted[k - 1].sealed = Some(seal);
                    }
                    None => return Err(CatalogError::NoSuccessor { at }),
                }
                Ok(Reply::Sealed { version: MapVersion(before + k as u64 + 1) })
            }
            Position::Private(chain, k) => {
                self.seal_private(s, (chain, k), at, seal)?;
                Ok(Reply::Sealed { version: MapVersion(before) })
            }
        }
    }

    pub(crate) fn same_seal(&self, same: bool, given: u64) -> Result<(), CatalogError> {
        let allowed = "the block is already sealed, at another length or with another outcome";
        let what = "the length of a sealed block";
        if same { Ok(()) } else { Err(CatalogError::InvalidArgument { what, given, allowed }) }
    }

    /// Applies the seal of the tail, then those of the blocks that thereby became the tail and had sealed
    /// before.
    fn seal_tail(
        &mut self,
        s: u32,
        at: BlockAt,
        seal: Seal,
        effects: &mut Vec<Effect>,
    ) -> Result<(), CatalogError> {
        let growth = self.structures[s].growth.as_ref();
        if !seal.last && growth.is_none_or(|growth| growth.granted.is_empty()) {
            return Err(CatalogError::NoSuccessor { at });
        }
        self.structures[s].check_seal(at.block, seal)?;
        let mut next = Some(seal);
        while let Some(seal) = next {
            next = if seal.last {
                self.seal_last(s, effects)
            } else {
                self.seal_full(s, seal, effects)
            };
        }
        Ok(())
    }

    /// The structure itself is sealed. Its last range stays open, so that the map still has a block that
    /// answers requests beyond the end; granted successors are freed.
    fn seal_last(&mut self, s: u32, effects: &mut Vec<Effect>) -> Option<Seal> {
        let tail = self.structures[s].entries.len() - 1;
        self.structures.changes(s, tail);
        let structure = &mut self.structures[s];
        assert!(!structure.sealed, "INV-20: structure {} is sealed twice", structure.id);
        structure.version += 1;
        structure.sealed = true;
        self.end_chains(s, |_| true, effects);
        let structure = &mut self.structures[s];
        let (j, growth) = (structure.job, structure.growth.take());
        if let Some(growth) = growth {
            let granted = growth.granted.into_iter().map(|granted| granted.block);
            for block in granted.chain(growth.spare) {
                self.cancel_moves_of(s, block, effects);
                self.give_back(j, s, block, effects);
            }
        }
        self.closed_queue(s);
        None
    }

    /// Closes the tail's range at its length and makes its successor the tail; returns the seal of the new
    /// tail, if it was already received.
    fn seal_full(&mut self, s: u32, seal: Seal, effects: &mut Vec<Effect>) -> Option<Seal> {
        let length = seal.length;
        let tail = self.structures[s].entries.len() - 1;
        self.structures.changes(s, tail);
        let structure = &mut self.structures[s];
        assert!(!structure.sealed, "INV-20: structure {} is sealed and grows", structure.id);
        let growth = structure.growth.as_mut().expect("a block that sealed has a successor");
        let next = growth.granted.pop_front().expect("a block that sealed has a successor");
        let tail = structure.entries.last_mut().expect("there is always a tail");
        let end = tail.start.checked_add(length).expect("the length of the seal was checked");
        structure.version += 1;
        let mut emptied = None;
        if length > 0 {
            structure.entries.push(Placed { start: end, block: next.block });
        } else {
            // INV-17: no map holds an empty range.
            let empty = std::mem::replace(&mut tail.block, next.block);
            let j = structure.job;
            self.cancel_moves_of(s, empty, effects);
            self.give_back(j, s, empty, effects);
            emptied = Some(empty);
        }
        self.sealed_in_queue(s, emptied, seal.bytes, effects);
        next.sealed
    }
}
