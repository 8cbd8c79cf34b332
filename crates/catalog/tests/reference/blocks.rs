//! What memory servers say about the blocks of files and queues: growth, seals, what was taken from a
//! queue, and blocks that it no longer needs.

use crate::reference::{File, Sealed};
use crate::{Both, cause, outcome};
use honeycomb_catalog::{Command, Reply, Seal};
use honeycomb_types::{BlockAt, Kind};

impl Both {
    pub fn grow(&mut self, j: usize, file: usize, block: usize) {
        let Some((f, at)) = self.file_block(j, file, block) else { return };
        self.hear(at);
        let file = self.model.jobs[j].files[f].clone();
        let position = file.chain.iter().position(|&other| other == at).unwrap();
        let command = Command::GrowStructure { structure: file.id, at };
        let result = self.bench.run(command);
        let (version, ranges, empty) = file.map();
        let tail = ranges[ranges.len() - 1].2;
        let ended = matches!(file.seals.get(&at), Some((_, _, true)));
        let beyond =
            file.sealed() && position > file.chain.iter().position(|&b| b == tail).unwrap();
        let expected = if empty.contains(&at) || file.retired.contains(&at) || beyond {
            Err("StaleBlock")
        } else if ended {
            Err("Sealed")
        } else if position + 1 < file.chain.len() || !file.spare.is_empty() {
            Ok(())
        } else {
            self.model.may_take(j, 1)
        };
        assert_eq!(cause(&result), outcome(&expected));
        let Ok(Reply::Grown { version: reserved, entry }) = result else { return };
        let next = file.chain[position..].iter().skip(1).find(|b| !empty.contains(b));
        let in_map = ranges.iter().position(|(_, _, b)| *b == at);
        if let Some(i) = in_map.filter(|i| i + 1 < ranges.len()) {
            assert_eq!((reserved.0, entry.at), (version, ranges[i + 1].2));
            return;
        }
        let tail_position = file.chain.iter().position(|&b| b == tail).unwrap();
        assert_eq!(reserved.0, version + (position - tail_position) as u64 + 1);
        match next {
            Some(&next) => assert_eq!(entry.at, next),
            None => {
                let model = &mut self.model.jobs[j].files[f];
                if !model.spare.is_empty() {
                    assert_eq!(entry.at, model.spare.remove(0));
                }
                model.chain.push(entry.at);
            }
        }
    }

    pub fn seal(&mut self, j: usize, file: usize, block: usize, seal: Seal) {
        let Some((f, at)) = self.file_block(j, file, block) else { return };
        self.hear(at);
        let file = self.model.jobs[j].files[f].clone();
        let position = file.chain.iter().position(|&other| other == at).unwrap();
        let Seal { length, bytes, last } = seal;
        let result = self.bench.run(Command::SealBlock { structure: file.id, at, seal });
        let quarantined = self.model.quarantined.contains(&at);
        let held = file.held().contains(&at);
        let recorded = file.seals.get(&at);
        let applied_last = file.sealed() && recorded.is_some_and(|r| r.2);
        let taken = file.taken.get(&at).copied().unwrap_or_default();
        // Of a block of a file that is in the map nothing but its length is known.
        let same = |known: Sealed| {
            let in_map = file.map().1.iter().rev().skip(1).any(|(_, _, other)| *other == at);
            let bytes = if file.kind == Kind::File && in_map { known.1 } else { bytes };
            known == (length, bytes, last)
        };
        let expected = match recorded {
            _ if quarantined => Ok(false),
            _ if !held => Err("StaleBlock"),
            // Once the whole file is sealed, only that it is counts.
            Some(_) if applied_last && last => Ok(false),
            Some(&known) if same(known) => Ok(false),
            Some(_) => Err("InvalidArgument"),
            None if !last && position + 1 == file.chain.len() => Err("NoSuccessor"),
            // More was taken than went through it.
            None if taken.0 > length || taken.1 > bytes => Err("InvalidArgument"),
            None => Ok(true),
        };
        assert_eq!(cause(&result), outcome(&expected), "{file:?}");
        if expected == Ok(true) {
            let before = file.held();
            let file = &mut self.model.jobs[j].files[f];
            file.seals.insert(at, (length, bytes, last));
            let after = file.held();
            let freed: Vec<BlockAt> = before.difference(&after).copied().collect();
            self.model.free(freed);
        }
    }

    pub fn taken(&mut self, j: usize, file: usize, block: usize, items: u64, bytes: u64) {
        let Some((f, at)) = self.file_block(j, file, block) else { return };
        self.hear(at);
        let file = &mut self.model.jobs[j].files[f];
        let structure = file.id;
        let result = self.bench.run(Command::QueueTaken { structure, at, items, bytes });
        // What was not sealed yet may turn out to have had any number of items; so may the last.
        let most = file.seals.get(&at).filter(|seal| !seal.2 || !file.sealed());
        let expected = if !file.held().contains(&at) || file.kind != Kind::Queue {
            Err("StaleBlock")
        } else if most.is_some_and(|most| items > most.0 || bytes > most.1) {
            Err("InvalidArgument")
        } else {
            Ok(())
        };
        assert_eq!(cause(&result), outcome(&expected), "{file:?}");
        if expected.is_ok() {
            let (i, b) = file.taken.entry(at).or_default();
            (*i, *b) = ((*i).max(items), (*b).max(bytes));
        }
    }

    pub fn retire(&mut self, j: usize, file: usize, block: usize) {
        let Some((f, at)) = self.file_block(j, file, block) else { return };
        self.hear(at);
        let file = &mut self.model.jobs[j].files[f];
        let result = self.bench.run(Command::RetireBlock { structure: file.id, at });
        let (_, ranges, _) = file.map();
        let expected = if !file.held().contains(&at) || file.kind != Kind::Queue {
            Err("StaleBlock")
        } else if !ranges[..ranges.len() - 1].iter().any(|range| range.2 == at) {
            Err("NotSealed")
        } else {
            Ok(())
        };
        assert_eq!(cause(&result), outcome(&expected), "{file:?}");
        if expected.is_ok() {
            assert_eq!(self.bench.freed(), [at]);
            file.retired.insert(at);
            self.model.free(vec![at]);
        }
    }

    /// INV-22: the tail of a bounded queue knows what is ahead of it; nobody else is told.
    pub fn compare_ahead(&self, file: &File) {
        let (_, ranges, _) = file.map();
        let tail = ranges[ranges.len() - 1].2;
        let told = self.ahead.get(&tail).copied();
        if !file.bounded {
            assert!(file.chain.iter().all(|at| !self.ahead.contains_key(at)), "{file:?}");
        } else if !file.sealed() {
            // The first block knows without being told.
            let told = if tail == file.chain[0] { told.unwrap_or_default() } else { told.unwrap() };
            assert_eq!(told, file.ahead(), "{file:?}");
        }
    }
}
