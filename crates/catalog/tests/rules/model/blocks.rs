//! Reports of memory servers about the blocks of files and queues: growth, seals, items taken from a queue,
//! and blocks that a queue no longer needs.

use super::reference::{File, Place};
use super::{Both, cause, outcome};
use honeycomb_catalog::{Actor, Command, Reply, Seal};
use honeycomb_types::{BlockAt, BlockUnits, Kind, StructureId};

impl Both {
    /// A present or former block of a file or a queue sends a report.
    fn speaker(
        &mut self,
        j: usize,
        file: usize,
        block: usize,
    ) -> Option<(Place, StructureId, BlockAt)> {
        let (place, id, at) = self.named(j, file, block)?;
        self.hear(at);
        Some((place, id, at))
    }

    /// The same, named by a client.
    fn named(&self, j: usize, file: usize, block: usize) -> Option<(Place, StructureId, BlockAt)> {
        let files = &self.model.jobs[j].files;
        let f = file % files.len().max(1);
        let file = files.get(f).filter(|file| file.kind != Kind::Kv)?;
        let private = file.private.iter().flat_map(|chain| &chain.blocks);
        let blocks: Vec<BlockAt> = file.chain.iter().chain(private).copied().collect();
        Some(((j, f), file.id, blocks[block % blocks.len()]))
    }

    pub fn grow(&mut self, j: usize, file: usize, block: usize) {
        let Some((place, structure, at)) = self.speaker(j, file, block) else { return };
        let file = self.model.file(place);
        let last = if file.private_of(at).is_some() { Some(&at) } else { file.chain.last() };
        let asked = (1, self.model.units(*last.expect("a file has a block")));
        self.look(j, asked.1);
        let result = self.bench.run(Command::GrowStructure { structure, at });
        let expected = self.model.growth(place, at);
        let expected = self.or_waits(expected, cause(&result) == "OutOfMemory", (j, asked));
        let prefix = (j, self.model.file(place).prefix);
        self.asks(Some(prefix), cause(&result) == "OutOfMemory");
        assert_eq!(cause(&result), outcome(&expected));
        let (Ok(Reply::Grown { version, entry }), Ok(growth)) = (result, expected) else { return };
        assert_eq!(version.0, growth.version, "INV-17");
        let fresh = !self.model.file(place).lists(entry.at);
        assert!(growth.successor.map_or(fresh, |known| known == entry.at), "INV-20: {entry:?}");
        self.model.grow(place, at, entry.at);
    }

    /// A client has an append of so many bytes for a file.
    pub fn begin_append(&mut self, j: usize, file: usize, bytes: u64) {
        let Some((place, structure, _)) = self.named(j, file, 0) else { return };
        if self.model.file(place).kind != Kind::File {
            return;
        }
        let (actor, job) = (Actor::driver(self.ids[j]), self.ids[j]);
        let asked = (1, self.model.private_units(bytes));
        self.look(j, asked.1);
        let result = self.bench.run(Command::BeginAppend { actor, job, structure, bytes });
        let expected = self.model.beginning(place, bytes);
        let expected = self.or_waits(expected, cause(&result) == "OutOfMemory", (j, asked));
        let prefix = (j, self.model.file(place).prefix);
        self.asks(Some(prefix), cause(&result) == "OutOfMemory");
        assert_eq!(cause(&result), outcome(&expected));
        if let Ok(Reply::Grown { entry, .. }) = result {
            self.model.begun(place, entry.at);
        }
    }

    /// A client commits the append that begins in such a block, or drops it.
    pub fn end_append(&mut self, j: usize, file: usize, block: usize, commits: bool) {
        let Some((place, structure, first)) = self.named(j, file, block) else { return };
        if self.model.file(place).kind != Kind::File {
            return;
        }
        let (actor, job) = (Actor::driver(self.ids[j]), self.ids[j]);
        if !commits {
            let dropped = self.bench.run(Command::DropAppend { actor, job, structure, first });
            assert_eq!(dropped, Ok(Reply::Done));
            return self.model.drop_append(place, first);
        }
        let result = self.bench.run(Command::CommitAppend { actor, job, structure, first });
        let expected = self.model.commit_append(place, first);
        assert_eq!(cause(&result), outcome(&expected), "{:?}", self.model.file(place));
    }

    pub fn enlarge(&mut self, j: usize, file: usize, block: usize, bytes: u64) {
        let files = &self.model.jobs[j].files;
        let Some(f) = (file % files.len().max(1)..files.len()).next() else { return };
        let blocks: Vec<BlockAt> = files[f].held().into_iter().collect();
        let Some(&at) = blocks.get(block % blocks.len().max(1)) else { return };
        let (place, structure) = ((j, f), files[f].id);
        self.hear(at);
        let units = BlockUnits::of(self.model.block.0).capacity_for(bytes);
        let more = u64::from(units).saturating_sub(self.model.units(at));
        self.look(j, more);
        let result = self.bench.run(Command::GrowBlock { structure, at, bytes });
        let expected = self.model.larger(place, at, bytes);
        let short = cause(&result) == "OutOfMemory";
        let asker = (j, self.model.file(place).prefix);
        self.asks((more > 0).then_some(asker), short);
        // Memory that is left belongs to holders within their share.
        let fair = self.model.shares.policy.is_fair();
        if fair && short && expected.is_ok() && !self.model.is_within_share(j, more) {
            return;
        }
        assert_eq!(cause(&result), outcome(&expected), "{at:?} of {:?}", self.model.file(place));
        if let (Ok(Reply::Capacity { bytes }), Ok(units)) = (result, expected) {
            self.model.holds(at, bytes);
            assert_eq!(self.model.units(at), units, "INV-60");
        }
    }

    pub fn seal(&mut self, j: usize, file: usize, block: usize, seal: Seal) {
        let Some((place, structure, at)) = self.speaker(j, file, block) else { return };
        let result = self.bench.run(Command::SealBlock { structure, at, seal });
        let expected = self.model.seal(place, at, seal);
        assert_eq!(cause(&result), outcome(&expected), "{:?}", self.model.file(place));
    }

    pub fn taken(&mut self, j: usize, file: usize, block: usize, items: u64, bytes: u64) {
        let Some((place, structure, at)) = self.speaker(j, file, block) else { return };
        let result = self.bench.run(Command::QueueTaken { structure, at, items, bytes });
        let expected = self.model.take(place, at, items, bytes);
        assert_eq!(cause(&result), outcome(&expected), "{:?}", self.model.file(place));
    }

    pub fn retire(&mut self, j: usize, file: usize, block: usize) {
        let Some((place, structure, at)) = self.speaker(j, file, block) else { return };
        self.retired(place, structure, at);
    }

    /// A block reports that it is empty for good.
    pub fn retired(&mut self, place: Place, structure: StructureId, at: BlockAt) {
        let result = self.bench.run(Command::RetireBlock { structure, at });
        let expected = self.model.retire(place, at);
        assert_eq!(cause(&result), outcome(&expected), "{:?}", self.model.file(place));
        if expected.is_ok() {
            assert_eq!(self.bench.freed(), [at]);
        }
    }

    /// INV-22: the tail of a bounded queue knows the number of items ahead of it; no other block receives it.
    pub fn compare_ahead(&self, file: &File) {
        let (_, ranges, _) = file.map();
        let tail = ranges[ranges.len() - 1].2;
        let told = self.ahead.get(&tail).copied();
        if !file.bounded() {
            assert!(file.chain.iter().all(|at| !self.ahead.contains_key(at)), "{file:?}");
        } else if !file.sealed() {
            // The first block knows it without a message.
            let told = if tail == file.chain[0] { told.unwrap_or_default() } else { told.unwrap() };
            assert_eq!(told, file.ahead(), "{file:?}");
        }
    }
}
