//! Splits and merges of kvs, and the blocks of their extents.

use super::reference::{File, Moving, Place, moved};
use super::{Both, cause, outcome};
use honeycomb_catalog::{Actor, BlockUsage, CatalogError, Command, Reply, Report};
use honeycomb_types::{BlockAt, BlockId, Epoch, Kind, Way};
use std::collections::BTreeSet;

/// The intended outcome of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    Commit,
    Cancel,
    /// Its target does not import.
    Refuse,
}

impl Both {
    fn kv_block(&self, j: usize, kv: usize, block: usize) -> Option<(usize, BlockAt)> {
        let files = self.model.jobs[j].files.iter().enumerate();
        let kvs: Vec<(usize, &File)> = files.filter(|(_, f)| f.kind == Kind::Kv).collect();
        let &(f, file) = kvs.get(kv % kvs.len().max(1))?;
        let held: Vec<BlockAt> = file.held().into_iter().collect();
        Some((f, held[block % held.len()]))
    }

    /// A block that moves in this way: blocks of all kinds leave servers.
    fn moving_block(
        &self,
        j: usize,
        kv: usize,
        block: usize,
        way: Way,
    ) -> Option<(usize, BlockAt)> {
        let files = &self.model.jobs[j].files;
        if way != Way::Relocate || files.is_empty() {
            return self.kv_block(j, kv, block);
        }
        let f = (kv + block) % files.len();
        let held: Vec<BlockAt> = files[f].held().into_iter().collect();
        Some((f, held[block % held.len()]))
    }

    pub fn report(&mut self, j: usize, kv: usize, block: usize, bytes: u64) {
        let Some((_, at)) = self.kv_block(j, kv, block) else { return };
        self.hear(at);
        let usage = [BlockUsage { at, bytes_used: bytes }];
        let report = Report {
            bytes_resident: 0,
            connections: 0,
            requests: 0,
            forwarded: 0,
            bytes_owed: 0,
            cpu_permille: 0,
            traffic: &[],
            alarms: &[],
            usage: &usage,
        };
        self.bench.run(Command::ServerReport { server: at.block.server(), report }).unwrap();
        self.model.used.insert(at, bytes);
    }

    /// A client requests room for an extent, and was refused by some blocks; 0 requests the list of blocks.
    pub fn extents(&mut self, j: usize, kv: usize, bytes: u64, full: usize) {
        let Some((f, _)) = self.kv_block(j, kv, 0) else { return };
        let file = self.model.jobs[j].files[f].clone();
        let (actor, job, structure) = (Actor::driver(self.ids[j]), self.ids[j], file.id);
        let blocks: Vec<BlockId> = file.extents.iter().take(full).map(|at| at.block).collect();
        let command =
            Command::ExtentBlocks { actor, job, structure, bytes, full: &blocks, value: 0 };
        self.look(j, self.model.whole());
        let result = self.bench.run(command);
        let used = |at: &BlockAt| self.model.used.get(at).copied().unwrap_or_default();
        let room = file.extents.iter().filter(|at| used(at) + bytes <= self.model.block.0);
        let best = room.filter(|at| !blocks.contains(&at.block));
        let best = best.filter(|at| self.model.takes_blocks(at.block.server()));
        // In a lower tier, or on its way there, it accepts nothing.
        let best = best.filter(|at| self.model.tiers.place(**at) == Default::default());
        let best = best.max_by_key(|at| (used(at), at.block)).copied();
        let expected = match best {
            _ if bytes > self.model.block.0 / 8 => Err("InvalidArgument"),
            _ if bytes == 0 || best.is_some() => Ok(()),
            _ => self.model.may_take(j, &file.counts, (1, self.model.whole())),
        };
        assert_eq!(cause(&result), outcome(&expected), "{file:?}");
        if bytes > 0 && bytes <= self.model.block.0 / 8 && best.is_none() {
            self.asks(Some((j, file.prefix)), cause(&result) == "OutOfMemory");
        }
        let Ok(Reply::Extents(entries)) = result else { return };
        if bytes == 0 {
            let told: BTreeSet<BlockAt> = entries.iter().map(|entry| entry.at).collect();
            return assert_eq!(told, file.extents);
        }
        assert_eq!(entries.len(), 1);
        assert!(best.is_none_or(|best| entries[0].at == best));
        self.model.jobs[j].files[f].extents.insert(entries[0].at);
    }

    /// A block of a kv reports that it is empty for good, which only one of extents can.
    pub fn emptied(&mut self, j: usize, kv: usize, block: usize) {
        let Some((f, at)) = self.kv_block(j, kv, block) else { return };
        self.hear(at);
        self.retired((j, f), self.model.jobs[j].files[f].id, at);
    }

    pub fn begin(&mut self, j: usize, kv: usize, block: usize, start: u64, way: Way) {
        let Some((f, at)) = self.moving_block(j, kv, block, way) else { return };
        // Mostly blocks leave draining servers.
        if way == Way::Relocate && start.is_multiple_of(1 << 59) {
            let servers = self.model.servers.keys();
            let place = servers.take_while(|id| **id != at.block.server()).count();
            self.drain(place, false);
            self.carry_out();
        }
        if !self.model.file((j, f)).held().contains(&at) {
            return; // It was the target of a split, which is cancelled then.
        }
        self.hear(at);
        let structure = self.model.jobs[j].files[f].id;
        self.look(j, self.model.units(at));
        let result = self.bench.run(Command::BeginMove { structure, at, start, way });
        let expected = self.model.giving((j, f), at, start, way);
        let prefix = self.model.jobs[j].files[f].prefix;
        self.asks(Some((j, prefix)), cause(&result) == "OutOfMemory");
        assert_eq!(cause(&result), outcome(&expected), "{:?}", self.model.file((j, f)));
        let (Ok(Reply::Moving { id, entry }), Ok(giving)) = (result, expected) else { return };
        assert!(giving.is(id, &entry), "INV-20: {entry:?} in {id:?}, and not {giving:?}");
        let (start, since) = (giving.start, self.model.now);
        let moving = Moving { id, structure, source: at, target: entry.at, start, way, since };
        assert!(self.model.give((j, f), moving), "INV-20: two moves are named {id:?}");
    }

    /// The newest moves are drawn first: later ones of the same source make older ones obsolete.
    pub fn settle(&mut self, begun: usize, how: Settle, stale: bool) {
        let Some(&moving) = self.model.begun.iter().rev().nth(begun) else { return };
        let Moving { id, structure, source, mut target, .. } = moving;
        if stale {
            target.epoch = Epoch(target.epoch.0 - 1);
        }
        match how {
            Settle::Commit => {
                self.hear(source);
                let command =
                    Command::CommitMove { structure, at: source, id, target, bytes: 1000 };
                let result = self.bench.run(command);
                match self.model.find(structure) {
                    Some(place) => self.committed(place, moving, target, result),
                    None => assert_eq!(cause(&result), "UnknownStructure"),
                }
            }
            Settle::Cancel => {
                self.hear(source);
                let command = Command::CancelMove { structure, at: source, id };
                assert_eq!(self.bench.run(command), Ok(Reply::Done));
                self.moves[3] += self.model.cancel(|moving| moving.id == id);
            }
            Settle::Refuse => {
                let server = target.block.server();
                self.bench.run(Command::ImportRefused { server, at: target, id }).unwrap();
                let refused = |moving: &Moving| (moving.id, moving.target) == (id, target);
                self.moves[3] += self.model.cancel(refused);
            }
        }
    }

    fn committed(
        &mut self,
        place: Place,
        moving: Moving,
        target: BlockAt,
        result: Result<Reply, CatalogError>,
    ) {
        let Moving { id, source, way, .. } = moving;
        let first = self.model.file(place).pending.iter().any(|moving| moving.id == id);
        let Some(expected) = self.model.commit_move(place, source, id, target) else { return };
        assert_eq!(cause(&result), outcome(&expected));
        match (first, &expected) {
            (true, Ok(_)) => self.moves[[0, 1, 5][way as usize]] += 1,
            (false, Ok(_)) => self.moves[2] += 1,
            (_, &why) => self.moves[4] += u64::from(why == Err("MoveCancelled")),
        }
        assert_eq!(result.ok().map(|reply| moved(&reply)), expected.ok().map(Some), "INV-20");
    }
}
