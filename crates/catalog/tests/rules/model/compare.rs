//! Comparison of the effects, and of the whole visible state, with the model.

use super::Both;
use super::reference::{File, Job, Life, Prefix};
use honeycomb_catalog::{Actor, Command, Effect, PrefixState, Reply};
use honeycomb_types::TierIx;
use std::collections::BTreeMap;

impl Both {
    /// The effects of the last command agree with the state of the servers.
    pub fn carry_out(&mut self) {
        let (mut opened, mut freed) = (Vec::new(), Vec::new());
        for effect in std::mem::take(&mut self.bench.effects) {
            self.imports.hear(&effect, &self.open).unwrap();
            match effect {
                Effect::LowerBlock { server, at, tier: TierIx::MEMORY } => {
                    assert_eq!((server, Some(at)), (at.block.server(), self.hot));
                    assert_eq!(self.model.raises(at), Ok(()), "{:?}", self.op);
                }
                Effect::LowerBlock { server, at, tier } => {
                    assert_eq!(server, at.block.server());
                    let job = |job: &Job| job.files.iter().any(|file| file.held().contains(&at));
                    let giver = self.model.jobs.iter().position(job);
                    self.given += u64::from(giver != self.asker.map(|(j, _)| j));
                    let asked = self.model.lowers(at, tier, self.asker);
                    assert_eq!(asked, Ok(()), "{:?}", self.op);
                }
                Effect::OpenBlock { server, at, tier, capacity, .. } => {
                    self.model.tiers.put(at, (tier, tier));
                    self.model.holds(at, capacity);
                    assert_eq!(server, at.block.server());
                    assert!(self.open.iter().all(|other| other.block != at.block), "INV-01");
                    assert!(at.epoch.0 > self.last_epoch, "INV-01: epochs grow");
                    self.last_epoch = at.epoch.0;
                    self.open.insert(at);
                    opened.push(at);
                }
                Effect::FreeBlock { at, .. } => {
                    assert!(self.open.remove(&at), "INV-03: {at:?}");
                    freed.push(at);
                }
                Effect::SetGeneration { .. }
                | Effect::BeginImport { .. }
                | Effect::EndImport { .. } => {}
                Effect::Evacuate { server, at } => self.model.evacuates(server, at).unwrap(),
                Effect::Release { server, stay } => self.model.release(server, stay).unwrap(),
                Effect::Lots { .. } => panic!("one shard has all: {effect:?}"),
                Effect::FlushBlock { .. }
                | Effect::CopyBlock { .. }
                | Effect::EndCopies { .. }
                | Effect::CutBlock { .. }
                | Effect::ThawBlock { .. }
                | Effect::CommitFlush { .. }
                | Effect::SweepObjects { .. } => {
                    panic!("no prefix of the model is flushed: {effect:?}")
                }
                Effect::QueueAhead { server, at, items, bytes } => {
                    assert_eq!(server, at.block.server());
                    assert!(self.open.contains(&at), "news for a block that is closed");
                    let before = self.ahead.insert(at, (items, bytes));
                    let less = before.is_none_or(|(i, b)| items <= i && bytes <= b);
                    assert!(less, "INV-22: {at:?} was sent {before:?}, now more");
                }
            }
        }
        self.model.end_idle(&freed).unwrap();
        for at in opened {
            let server = at.block.server();
            self.bench.run(Command::BlockOpened { server, at }).unwrap();
            self.hear(at);
        }
    }

    pub fn compare(&mut self) {
        let held = self.model.jobs.iter().flat_map(|job| &job.files).flat_map(File::held);
        assert_eq!(self.open, held.collect(), "INV-02: servers and catalog agree");
        self.imports.compare(&self.model).unwrap();
        self.check_drains();
        let status = self.bench.status();
        let tiers = &self.model.tiers;
        let below: u64 = tiers.below.values().chain(tiers.stores.values()).sum();
        let (of, used) = status.tiers.iter().fold((0, 0), |s, t| (s.0 + t.blocks, s.1 + t.used));
        assert_eq!((of, of - used), (below, self.model.free_below()), "INV-42");
        assert_eq!((status.reserved, status.free, status.quarantined), self.model.reported());
        for j in 0..self.ids.len() {
            self.compare_tree(j);
            for file in self.model.jobs[j].files.clone() {
                let (actor, job, structure) = (Actor::driver(self.ids[j]), self.ids[j], file.id);
                let result = self.bench.run(Command::ReopenStructure { actor, job, structure });
                let Ok(Reply::Opened(opened)) = result else { panic!("{result:?}") };
                let entries = opened.map.entries.iter().map(|e| (e.start, e.end, e.at));
                let (version, ranges, _) = file.map();
                assert_eq!((opened.map.version.0, entries.collect::<Vec<_>>()), (version, ranges));
                self.compare_ahead(&file);
                let before = self.versions.insert(structure.0, version);
                assert!(before <= Some(version), "INV-17: versions only grow");
            }
        }
    }

    fn compare_tree(&mut self, j: usize) {
        let tree = self.bench.tree(self.ids[j]);
        let (now, job) = (self.model.now, &self.model.jobs[j]);
        let hidden = |i: usize, p: &Prefix| {
            matches!(p.life, Life::Removed | Life::Read)
                && job.all().all(|(_, c)| !c.parents.contains(&i))
        };
        let expected: BTreeMap<u64, _> = job
            .all()
            .filter(|&(i, p)| !hidden(i, p))
            .map(|(_, p)| {
                let left = match p.life {
                    Life::Live if p.pinned => i64::MAX,
                    Life::Live => (p.renewed + p.lease) as i64 - now as i64,
                    _ => p.missed as i64 - now as i64,
                };
                let parents = p.parents.iter().map(|&i| job.prefixes[i].as_ref().unwrap().id.0);
                let parents: Vec<u64> = parents.collect();
                let readers = if p.life == Life::Live { job.left(job.at_id(p.id)) } else { 0 };
                let committed = job.committed.contains(&p.id);
                let live = p.life == Life::Live;
                (p.id.0, (p.name.clone(), live, left, parents, readers, committed))
            })
            .collect();
        let seen: BTreeMap<u64, _> = tree
            .iter()
            .map(|info| {
                let parents: Vec<u64> = info.parents.iter().map(|id| id.0).collect();
                let live = matches!(info.state, PrefixState::Live | PrefixState::DataLost);
                let (name, left) = (info.name.to_string(), info.remaining_ms);
                let seen = (name, live, left, parents, info.readers_left, info.committed);
                (info.prefix.0, seen)
            })
            .collect();
        assert_eq!(seen, expected);
    }
}
