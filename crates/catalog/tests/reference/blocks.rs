//! Reports of servers about the blocks of files and queues: growth, seals, items taken from a queue, and
//! blocks that are no longer needed.

use super::{Cluster, Outcome, Place, Sealed};
use honeycomb_catalog::Seal;
use honeycomb_types::{BlockAt, Kind};

/// The answer to a block that requests a successor.
pub struct Growth {
    /// The version of the map once the block has sealed.
    pub version: u64,
    /// `None` for a block that the structure does not have yet.
    pub successor: Option<BlockAt>,
}

impl Cluster {
    /// The answer to a serving block that requests a successor.
    pub fn growth(&self, place: Place, at: BlockAt) -> Outcome<Growth> {
        let file = self.file(place);
        if let Some(growth) = self.private_growth(place, at) {
            let version = file.map().0;
            return growth.map(|successor| Growth { version, successor });
        }
        let position = |at: BlockAt| file.chain.iter().position(|&other| other == at).unwrap();
        if !file.chain.contains(&at) {
            return Err("StaleBlock");
        }
        let own = position(at);
        let (version, ranges, empty) = file.map();
        let tail = position(ranges[ranges.len() - 1].2);
        let beyond = file.sealed() && own > tail;
        if empty.contains(&at) || file.retired.contains(&at) || beyond {
            return Err("StaleBlock");
        }
        if matches!(file.seals.get(&at), Some((_, _, true))) {
            return Err("Sealed");
        }
        if own + 1 == file.chain.len() && file.spare.is_empty() {
            let last = self.units(file.chain[file.chain.len() - 1]);
            self.may_have(place.0, &file.counts, (1, last), file.kind)?;
        }
        let in_map = ranges.iter().position(|range| range.2 == at);
        if let Some(i) = in_map.filter(|i| i + 1 < ranges.len()) {
            return Ok(Growth { version, successor: Some(ranges[i + 1].2) });
        }
        let next = file.chain[own..].iter().skip(1).find(|at| !empty.contains(at));
        let version = version + (own - tail) as u64 + 1;
        Ok(Growth { version, successor: next.or(file.spare.first()).copied() })
    }

    /// A block received its successor.
    pub fn grow(&mut self, place: Place, at: BlockAt, successor: BlockAt) {
        if self.file(place).private_of(at).is_some() {
            return self.private_grow(place, at, successor);
        }
        let file = self.file_mut(place);
        if !file.chain.contains(&successor) {
            file.spare.retain(|at| *at != successor);
            file.chain.push(successor);
        }
    }

    /// A serving block was sealed.
    pub fn seal(&mut self, place: Place, at: BlockAt, seal: Seal) -> Outcome<()> {
        let Seal { length, bytes, last } = seal;
        if let Some(outcome) = self.private_seal(place, at, (length, bytes, last)) {
            return outcome;
        }
        let file = self.file(place);
        let recorded = file.seals.get(&at);
        let applied_last = file.sealed() && recorded.is_some_and(|r| r.2);
        let taken = file.taken.get(&at).copied().unwrap_or_default();
        // For a block of a file in the map only its length is known.
        let same = |known: Sealed| {
            let in_map = file.map().1.iter().rev().skip(1).any(|(_, _, other)| *other == at);
            let bytes = if file.kind == Kind::File && in_map { known.1 } else { bytes };
            known == (length, bytes, last)
        };
        match recorded {
            _ if self.quarantined.contains(&at) => return Ok(()),
            _ if !file.serving().contains(&at) => return Err("StaleBlock"),
            // Once the whole file is sealed, the rest of a seal is ignored.
            Some(_) if applied_last && last => return Ok(()),
            Some(&known) if same(known) => return Ok(()),
            Some(_) => return Err("InvalidArgument"),
            None if !last && file.chain.last() == Some(&at) => return Err("NoSuccessor"),
            // More was taken than was put.
            None if taken.0 > length || taken.1 > bytes => return Err("InvalidArgument"),
            None => {}
        }
        self.put_seal(place, at, (length, bytes, last));
        Ok(())
    }

    /// Records a seal, and frees blocks that it makes superfluous.
    pub fn put_seal(&mut self, place: Place, at: BlockAt, seal: Sealed) {
        let file = self.file_mut(place);
        let before = file.held();
        file.seals.insert(at, seal);
        file.cancel_left();
        if file.sealed() {
            file.private.clear();
        }
        let after = file.held();
        self.free(before.difference(&after).copied());
    }

    /// Records the total taken from a block.
    pub fn take(&mut self, place: Place, at: BlockAt, items: u64, bytes: u64) -> Outcome<()> {
        let file = self.file_mut(place);
        if !file.serving().contains(&at) || file.kind != Kind::Queue {
            return Err("StaleBlock");
        }
        // An unsealed block may turn out to have any number of items; so may the last.
        let most = file.seals.get(&at).filter(|seal| !seal.2 || !file.sealed());
        if most.is_some_and(|most| items > most.0 || bytes > most.1) {
            return Err("InvalidArgument");
        }
        let taken = file.taken.entry(at).or_default();
        *taken = (taken.0.max(items), taken.1.max(bytes));
        Ok(())
    }

    /// A block is empty for good: one of a queue, or one in which a structure keeps extents.
    pub fn retire(&mut self, place: Place, at: BlockAt) -> Outcome<()> {
        let file = self.file_mut(place);
        let before = file.held();
        let (_, ranges, _) = file.map();
        match file.kind {
            _ if !file.held().contains(&at) => return Err("StaleBlock"),
            _ if file.extents.remove(&at) => {}
            Kind::Kv => return Err("WrongKind"),
            Kind::Queue if ranges[..ranges.len() - 1].iter().any(|range| range.2 == at) => {
                file.retired.insert(at);
            }
            Kind::Queue => return Err("NotSealed"),
            _ => return Err("StaleBlock"),
        }
        file.cancel_left();
        let after = file.held();
        self.free(before.difference(&after).copied());
        Ok(())
    }
}
