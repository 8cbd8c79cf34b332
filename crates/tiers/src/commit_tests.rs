//! The commit against a store with every permitted behaviour: all orders and all replies.

use super::*;
use crate::manifest::{FlushedPart, FlushedStructure};
use std::collections::BTreeMap;

/// Enumerates all sequences of choices, one per run.
#[derive(Default)]
struct Choices {
    script: Vec<(usize, usize)>,
    at: usize,
}

impl Choices {
    fn choose(&mut self, of: usize) -> usize {
        if self.at == self.script.len() {
            self.script.push((0, of));
        }
        let (chosen, _) = self.script[self.at];
        self.at += 1;
        chosen
    }

    /// Advances to the next sequence; returns false after the last.
    fn next(&mut self) -> bool {
        self.at = 0;
        while let Some((chosen, of)) = self.script.pop() {
            if chosen + 1 < of {
                self.script.push((chosen + 1, of));
                return true;
            }
        }
        false
    }
}

#[derive(Clone, Debug, Default)]
struct Store {
    objects: BTreeMap<String, Vec<u8>>,
    manifest: Option<(Vec<u8>, u64)>,
    writes: u64,
    /// Abandoned requests that may still arrive.
    late: Vec<StoreRequest>,
}

impl Store {
    fn tag(&self) -> Option<Tag> {
        let number = self.manifest.as_ref()?.1;
        Some(Tag { etag: Some(number.to_string()), version: None })
    }

    fn does(&mut self, ask: &StoreRequest) -> StoreReply {
        match ask {
            StoreRequest::Look(names) => StoreReply::Looked(
                names
                    .iter()
                    .map(|n| self.objects.get(n).map(|b| b.len() as u64).ok_or(Fault::Absent))
                    .collect(),
            ),
            StoreRequest::Read => StoreReply::Read(match &self.manifest {
                Some((text, _)) => Ok((text.clone(), self.tag().unwrap())),
                None => Err(Fault::Absent),
            }),
            StoreRequest::Write(bytes, condition) => {
                let holds = match condition {
                    Condition::Any => true,
                    Condition::Absent => self.manifest.is_none(),
                    Condition::Is(tag) => self.tag().as_ref() == Some(tag),
                };
                if !holds {
                    return StoreReply::Written(Err(Fault::Changed));
                }
                self.writes += 1;
                self.manifest = Some((bytes.clone(), self.writes));
                StoreReply::Written(Ok(()))
            }
            StoreRequest::Delete(names) => {
                names.iter().for_each(|name| drop(self.objects.remove(name)));
                StoreReply::Deleted(Ok(()))
            }
        }
    }

    /// INV-10: at every moment the manifest names only existing objects, with their bytes.
    fn check(&self) -> Option<Manifest> {
        let manifest = Manifest::decode(&self.manifest.as_ref()?.0).unwrap();
        for part in manifest.parts() {
            let there = self.objects.get(&part.name).unwrap_or_else(|| {
                panic!("{} is named and not there", part.name);
            });
            assert_eq!(crc32fast::hash(there), part.crc32);
        }
        Some(manifest)
    }
}

const PARTS: usize = 2;

fn content(lineage: &str, number: u64, part: usize) -> (String, Vec<u8>) {
    (format!("{number}-{lineage}-{part}.part"), format!("{lineage} {number} {part}").into())
}

fn manifest(lineage: &str, number: u64) -> Manifest {
    let parts = (0..PARTS).map(|i| content(lineage, number, i)).map(|(name, bytes)| FlushedPart {
        name,
        start: 0,
        bytes: bytes.len() as u64,
        items: 0,
        crc32: crc32fast::hash(&bytes),
    });
    let structure = FlushedStructure {
        name: "log".into(),
        kind: "file".into(),
        sealed: false,
        max_items: 0,
        max_bytes: 0,
        parts: parts.collect(),
    };
    Manifest::new(lineage.into(), number, "job".into(), "t".into(), vec![structure])
}

/// A store with an earlier flush and the parts of these flushes.
fn store(earlier: Option<Manifest>, flushes: &[(&str, u64)]) -> Store {
    let mut store = Store::default();
    if let Some(mut earlier) = earlier {
        for part in earlier.parts() {
            let number = earlier.number;
            let (_, bytes) = (0..PARTS)
                .map(|i| content(&earlier.lineage, number, i))
                .find(|(name, _)| *name == part.name)
                .unwrap();
            store.objects.insert(part.name.clone(), bytes);
        }
        // Its writer ended before it had deleted the objects that it replaced.
        store.objects.insert("older.part".into(), b"older".to_vec());
        earlier.replaces = vec!["older.part".into()];
        store.does(&StoreRequest::Write(earlier.encode(), Condition::Any));
    }
    for (lineage, number) in flushes {
        store.objects.extend((0..PARTS).map(|i| content(lineage, *number, i)));
    }
    store
}

/// A writer that commits, and retries after a failure, as under the catalog.
struct Committer {
    manifest: Manifest,
    commit: Commit,
    ask: Option<StoreRequest>,
}

impl Committer {
    fn new(lineage: &str, number: u64) -> Committer {
        let manifest = manifest(lineage, number);
        let commit = Commit::new(manifest.clone());
        let ask = Some(commit.begin());
        Committer { manifest, commit, ask }
    }

    /// Sends one request; returns whether it may have changed something. While there are `faults`,
    /// its failure is one of the choices.
    fn step(&mut self, store: &mut Store, choices: &mut Choices, faults: &mut usize) -> bool {
        let ask = self.ask.clone().unwrap();
        let passing = || Fault::Passing("no answer".into());
        let changes = matches!(ask, StoreRequest::Write(..) | StoreRequest::Delete(_));
        let kinds = match (*faults, &ask) {
            (0, _) => 1,
            (_, StoreRequest::Write(..)) => 6,
            (_, StoreRequest::Delete(_)) => 3,
            _ => 2,
        };
        let chosen = choices.choose(kinds);
        *faults -= usize::from(chosen > 0);
        let fail = |fault| match &ask {
            StoreRequest::Look(names) => StoreReply::Looked(vec![Err(fault); names.len()]),
            StoreRequest::Read => StoreReply::Read(Err(fault)),
            StoreRequest::Write(..) => StoreReply::Written(Err(fault)),
            StoreRequest::Delete(_) => StoreReply::Deleted(Err(fault)),
        };
        let answer = match chosen {
            0 => store.does(&ask),
            // Not executed.
            1 => fail(passing()),
            // Executed, but the reply is lost.
            2 => {
                store.does(&ask);
                fail(passing())
            }
            // Executed later, or never.
            3 => {
                store.late.push(ask.clone());
                fail(passing())
            }
            // Executed; the library repeated it and got the reply that the object exists.
            4 => {
                store.does(&ask);
                fail(Fault::Changed)
            }
            // Not executed, because the store was busy with the name.
            _ => fail(Fault::Changed),
        };
        assert!(chosen < 2 || changes);
        self.ask = match self.commit.next(answer) {
            CommitStep::Ask(ask) => Some(ask),
            CommitStep::End(Ok(_)) => None,
            CommitStep::End(Err(Hindrance::Missing { part, .. })) => panic!("{part} is missing"),
            CommitStep::End(Err(Hindrance::Store { .. })) => {
                self.commit = Commit::new(self.manifest.clone());
                Some(self.commit.begin())
            }
        };
        changes
    }
}

/// Runs all orders of the committers with all faults, up to so many; returns the number of runs.
fn explore(earlier: Option<(&str, u64)>, flushes: &[(&str, u64)], faults: usize) -> u64 {
    let mut choices = Choices::default();
    let mut runs = 0;
    loop {
        let mut left = faults;
        let mut store = store(earlier.map(|(lineage, n)| manifest(lineage, n)), flushes);
        let mut all: Vec<Committer> = flushes.iter().map(|(l, n)| Committer::new(l, *n)).collect();
        while all.iter().any(|one| one.ask.is_some()) {
            let active: Vec<usize> = (0..all.len()).filter(|i| all[*i].ask.is_some()).collect();
            let arrives = usize::from(!store.late.is_empty());
            let who = choices.choose(active.len() + arrives);
            let changed = match active.get(who) {
                Some(&i) => all[i].step(&mut store, &mut choices, &mut left),
                None => {
                    let late = store.late.remove(0);
                    store.does(&late);
                    true
                }
            };
            if changed {
                store.check();
            }
        }
        for late in std::mem::take(&mut store.late) {
            store.does(&late);
            store.check();
        }
        settled(&store, flushes);
        runs += 1;
        if !choices.next() {
            return runs;
        }
    }
}

/// The latest flush is in place, and every object is named by it.
fn settled(store: &Store, flushes: &[(&str, u64)]) {
    let there = store.check().expect("somebody committed");
    let last = flushes.iter().map(|(_, number)| *number).max().unwrap();
    let lineages: BTreeSet<&str> = flushes.iter().map(|(lineage, _)| *lineage).collect();
    if lineages.len() == 1 {
        assert_eq!(there.number, last, "the later one stands");
    }
    for name in store.objects.keys() {
        let named = there.names().any(|other| other == name) || there.replaces.contains(name);
        assert!(named, "{name} is left behind by {:?}", (&there.lineage, there.number));
    }
}

#[test]
fn one_commit_comes_right_whatever_the_store_answers() {
    for earlier in [None, Some(("a", 3)), Some(("b", 9)), Some(("", 9))] {
        let runs = explore(earlier, &[("a", 5)], 2);
        assert!(runs > 50, "{runs}");
    }
}

#[test]
fn of_two_commits_of_one_controller_the_later_stands() {
    assert!(explore(None, &[("a", 5), ("a", 6)], 1) > 1000);
    assert!(explore(Some(("a", 3)), &[("a", 5), ("a", 6)], 0) > 100);
}

#[test]
fn a_commit_that_two_servers_were_asked_for_is_one() {
    assert!(explore(None, &[("a", 5), ("a", 5)], 1) > 1000);
    assert!(explore(Some(("a", 3)), &[("a", 5), ("a", 5)], 0) > 100);
}

#[test]
fn a_commit_that_was_held_up_makes_way() {
    let mut store = store(Some(manifest("a", 7)), &[("a", 5)]);
    let mut one = Committer::new("a", 5);
    let mut choices = Choices::default();
    while one.ask.is_some() {
        one.step(&mut store, &mut choices, &mut 0);
    }
    assert_eq!(store.check().unwrap().number, 7);
    assert!(!store.objects.keys().any(|name| name.starts_with("5-")), "its parts are gone");
}

#[test]
fn a_part_that_is_not_there_is_no_flush() {
    let mut store = store(None, &[("a", 5)]);
    store.objects.remove("5-a-1.part");
    let mut commit = Commit::new(manifest("a", 5));
    let mut ask = commit.begin();
    let end = loop {
        match commit.next(store.does(&ask)) {
            CommitStep::Ask(next) => ask = next,
            CommitStep::End(end) => break end,
        }
    };
    assert!(matches!(end, Err(Hindrance::Missing { part, .. }) if part == "5-a-1.part"));
    assert_eq!(store.check(), None);
}

#[test]
fn nothing_is_deleted_but_objects_of_flushes() {
    for name in ["manifest.json", "../other/x.part", "notes.txt"] {
        assert!(!is_object(name), "{name}");
    }
    assert!(is_object("5-a-00001.part") && is_object("5-a-00001-b-c.extents.part"));
}

#[test]
fn a_store_without_conditions_is_written_all_the_same() {
    let mut store = store(Some(manifest("b", 9)), &[("a", 5)]);
    let mut commit = Commit::new(manifest("a", 5));
    let mut ask = commit.begin();
    loop {
        let answer = match &ask {
            StoreRequest::Write(_, Condition::Any) => store.does(&ask),
            StoreRequest::Write(..) => StoreReply::Written(Err(Fault::NotPossible)),
            _ => store.does(&ask),
        };
        match commit.next(answer) {
            CommitStep::Ask(next) => ask = next,
            CommitStep::End(end) => break assert_eq!(end, Ok(Committed::Whole)),
        }
    }
    assert_eq!(store.check().unwrap().number, 5);
}
