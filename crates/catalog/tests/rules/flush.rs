//! Prefixes that are flushed when their lease expires: the parts, then the manifest, and only then are the
//! blocks free; retries after failures; servers lost meanwhile (INV-02, 03).

mod below;
mod outage;
mod persist;
mod stop;

use crate::common::{Bench, LEASE, file, kv, long_cases, queue};
use honeycomb_catalog::{
    Actor, CatalogError, Command, Effect, FlushState, FlushedStructure, PlanNode, PrefixInfo,
    PrefixOptions, Report, Seal, Written,
};
use honeycomb_types::limits::SERVER_LOSS_DEFAULT_MS;
use honeycomb_types::{BlockAt, JobId, Kind, Marks, ServerId, StructureId, flush_object};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const TO_OUT: PrefixOptions<'static> = PrefixOptions { flush_to: "out/t", lease_ms: 1000, ..LEASE };
const WRITTEN: &[Written] = &[Written { bytes: 10, items: 2, crc: 7 }];

fn bench() -> (Bench, ServerId, JobId) {
    let mut bench = Bench::new();
    let server = bench.join_as("s1:1", 1, 20, true);
    let job = bench.job_leased("job", 3_600_000);
    (bench, server, job)
}

/// The parts that the last command requested.
fn asked(bench: &Bench) -> Vec<(BlockAt, String)> {
    let parts = bench.effects.iter().filter_map(|effect| match effect {
        Effect::FlushBlock { server, at, object, .. } => {
            assert_eq!(*server, at.block.server());
            Some((*at, object.to_string()))
        }
        _ => None,
    });
    parts.collect()
}

/// The manifest that the last command requested.
fn manifest(bench: &Bench) -> Option<(ServerId, u64, String, Vec<FlushedStructure>)> {
    let mut all = bench.effects.iter().filter_map(|effect| match effect {
        Effect::CommitFlush { server, number, directory, structures, .. } => {
            Some((*server, *number, directory.to_string(), structures.clone()))
        }
        _ => None,
    });
    let one = all.next();
    assert!(all.next().is_none(), "one manifest at a time");
    one
}

fn wrote(bench: &mut Bench, at: BlockAt, outcome: Result<&[Written], &str>) {
    let server = at.block.server();
    bench.run(Command::BlockFlushed { server, at, outcome }).unwrap();
}

fn committed(bench: &mut Bench, server: ServerId, number: u64, outcome: Result<(), &str>) {
    bench.run(Command::FlushCommitted { server, number, outcome }).unwrap();
}

fn info(bench: &mut Bench, job: JobId, name: &str) -> PrefixInfo {
    bench.tree(job).into_iter().find(|prefix| *prefix.name == *name).unwrap()
}

/// Lets time pass in which the servers report; returns the requested parts, and the numbers of the manifests.
fn wait(bench: &mut Bench, mut ms: u64) -> (Vec<(BlockAt, String)>, Vec<u64>) {
    let (mut parts, mut manifests) = (Vec::new(), Vec::new());
    while ms > 0 {
        let step = ms.min(1000);
        for server in bench.status().servers {
            let report = Report::default();
            bench.run(Command::ServerReport { server: server.server, report }).unwrap();
        }
        bench.pass(step);
        assert_eq!(bench.freed(), [], "time alone frees nothing of a flush");
        parts.extend(asked(bench));
        manifests.extend(manifest(bench).map(|(_, number, ..)| number));
        ms -= step;
    }
    (parts, manifests)
}

/// The blocks that servers hold, as the effects determine.
#[derive(Default)]
struct Hands(BTreeMap<BlockAt, StructureId>);

impl Hands {
    /// Carries out the effects of the last command; returns the freed blocks, whose free is confirmed.
    fn work(&mut self, bench: &mut Bench) -> Vec<BlockAt> {
        for effect in &bench.effects {
            if let Effect::OpenBlock { at, structure, .. } = effect {
                let again = self.0.insert(*at, *structure);
                assert_eq!(again, None, "{at:?} is opened once");
                let held = self.0.keys().filter(|held| held.block == at.block).count();
                assert_eq!(held, 1, "{} is given while it is held", at.block);
            }
        }
        let freed = bench.freed();
        for at in &freed {
            self.0.remove(at).expect("what is freed is held");
        }
        bench.confirm(&freed);
        freed
    }

    /// A server of `bench` reconnects to a restarted controller and reports its blocks. Returns the parts
    /// requested from it.
    fn back(&self, bench: &mut Bench, server: ServerId) -> Vec<(BlockAt, String)> {
        let held = self.0.iter().filter(|(at, _)| at.block.server() == server);
        let held: Vec<_> = held.map(|(&at, &structure)| (at, structure)).collect();
        bench.back(server, &held);
        asked(bench)
    }
}

/// The blocks of this many files under `t`.
fn files(bench: &mut Bench, job: JobId, n: usize) -> Vec<BlockAt> {
    let names: Vec<String> = (0..n).map(|i| format!("f{i}")).collect();
    let make = |name: &String| bench.make(job, file("t", name, 1)).unwrap().map.entries[0].at;
    names.iter().map(make).collect()
}

#[test]
fn parts_then_the_manifest_then_the_blocks_are_free() {
    let (mut bench, server, job) = bench();
    bench.create(job, "t", &[], TO_OUT).unwrap();
    let f = bench.make(job, file("t", "f", 1)).unwrap();
    let first = f.map.entries[0].at;
    let (_, second) = bench.grow(f.structure, first).unwrap();
    let seal = Seal { length: 65_000, bytes: 65_000, last: false };
    bench.seal(f.structure, first, seal).unwrap();
    let k = bench.make(job, kv("t", "k", 1)).unwrap();
    let q = bench.make(job, queue("t", "q", 9)).unwrap();
    let free = bench.status().free;

    bench.pass(1000);
    let parts = asked(&bench);
    let blocks: Vec<BlockAt> = parts.iter().map(|(at, _)| *at).collect();
    let expected = [first, second, k.map.entries[0].at, q.map.entries[0].at];
    assert_eq!(blocks, expected, "in the order of the structures and of their blocks");
    assert!(parts.iter().all(|(_, object)| object.starts_with("job/out/t/")), "{parts:?}");
    assert_eq!(bench.freed(), [], "nothing is freed before it is flushed");
    let status = bench.status();
    assert_eq!((status.free, status.quarantined, status.flushing), (free, 4, 1));
    assert_eq!(info(&mut bench, job, "t").flush, FlushState::Writing);

    for &at in &blocks[..3] {
        wrote(&mut bench, at, Ok(WRITTEN));
        assert_eq!(manifest(&bench), None, "not before the last part");
    }
    wrote(&mut bench, blocks[3], Ok(WRITTEN));
    let (by, number, directory, structures) = manifest(&bench).unwrap();
    assert_eq!((by, directory.as_str()), (server, "job/out/t"));
    let shape: Vec<_> = structures.iter().map(|s| (s.kind, &*s.name, s.parts.len())).collect();
    assert_eq!(shape, [(Kind::File, "f", 2), (Kind::Kv, "k", 1), (Kind::Queue, "q", 1)]);
    assert!(structures.iter().flat_map(|s| &s.parts).all(|part| part.objects == WRITTEN));
    assert_eq!(structures[0].parts[1].start, 65_000);
    assert_eq!(structures[2].max_items, 9);
    assert_eq!(bench.freed(), []);

    // A repeated report changes nothing.
    wrote(&mut bench, blocks[0], Err("late"));
    assert_eq!((manifest(&bench), bench.freed()), (None, vec![]));

    committed(&mut bench, server, number, Ok(()));
    assert_eq!(bench.freed(), blocks);
    assert_eq!(info(&mut bench, job, "t").flush, FlushState::Done);
    bench.confirm(&blocks);
    let status = bench.status();
    assert_eq!((status.free, status.quarantined), (free + 4, 0));
    assert_eq!((status.flushing, status.flushed), (0, 1));
}

#[test]
fn only_the_end_of_a_lease_flushes() {
    let (mut bench, _, job) = bench();
    bench.create(job, "t", &[], TO_OUT).unwrap();
    bench.make(job, file("t", "", 1)).unwrap();
    bench.remove(job, "t").unwrap();
    assert_eq!((asked(&bench), bench.freed().len()), (vec![], 1));
    bench.create(job, "t", &[], TO_OUT).unwrap();
    bench.make(job, file("t", "", 1)).unwrap();
    bench.run(Command::DeregisterJob { actor: Actor::driver(job), job }).unwrap();
    assert_eq!((asked(&bench), bench.freed().len()), (vec![], 1));
}

#[test]
fn what_fails_is_tried_again_with_growing_pauses_and_is_told() {
    let (mut bench, server, job) = bench();
    bench.create(job, "t", &[], TO_OUT).unwrap();
    bench.make(job, file("t", "", 1)).unwrap();
    bench.pass(1000);
    let (at, object) = asked(&bench)[0].clone();
    for pause in [100, 200, 400] {
        wrote(&mut bench, at, Err("no space left"));
        let failing = FlushState::Failing("no space left".into());
        assert_eq!(info(&mut bench, job, "t").flush, failing);
        let status = bench.status();
        assert_eq!((status.flush_failing, &*status.flush_error), (1, "job/out/t: no space left"));
        bench.pass(pause - 1);
        assert_eq!(asked(&bench), []);
        bench.pass(1);
        assert_eq!(asked(&bench), [(at, object.clone())], "the same object again");
    }
    for _ in 0..12 {
        wrote(&mut bench, at, Err("no space left"));
        assert_eq!(wait(&mut bench, 30_000).0.len(), 1, "never more than half a minute apart");
    }
    wrote(&mut bench, at, Ok(WRITTEN));
    let (_, number, ..) = manifest(&bench).unwrap();
    assert_eq!(bench.status().flush_failing, 0);
    committed(&mut bench, server, number, Err("a directory is missing"));
    assert_eq!(bench.freed(), []);
    assert_eq!(bench.status().flush_failing, 1);
    bench.pass(100);
    assert_eq!(manifest(&bench).unwrap().1, number);
    committed(&mut bench, server, number, Ok(()));
    assert_eq!(bench.freed(), [at]);
    assert_eq!(bench.status().flush_failing, 0);
}

#[test]
fn a_flush_outlives_its_job() {
    let (mut bench, server, job) = bench();
    bench.create(job, "t", &[], TO_OUT).unwrap();
    bench.make(job, file("t", "", 1)).unwrap();
    bench.pass(1000);
    let (at, _) = asked(&bench)[0].clone();
    bench.run(Command::DeregisterJob { actor: Actor::driver(job), job }).unwrap();
    assert_eq!(bench.freed(), []);
    wrote(&mut bench, at, Ok(WRITTEN));
    let (_, number, ..) = manifest(&bench).unwrap();
    committed(&mut bench, server, number, Ok(()));
    assert_eq!(bench.freed(), [at]);
}

#[test]
fn a_server_that_is_lost_before_its_part_ends_the_flush_and_is_told() {
    let (mut bench, one, job) = bench();
    let two = bench.join_as("s2:1", 1, 20, true);
    bench.create(job, "t", &[], TO_OUT).unwrap();
    let all = files(&mut bench, job, 8);
    let on = |server| all.iter().filter(move |at| at.block.server() == server).count();
    assert!(on(one) > 0 && on(two) > 0, "the policy spreads blocks");
    bench.pass(1000);
    bench.run(Command::ServerLost { server: two }).unwrap();
    let freed = bench.freed();
    assert_eq!(freed.len(), on(one), "what is left has no use");
    assert!(matches!(info(&mut bench, job, "t").flush, FlushState::Lost(_)));
    assert_eq!((bench.status().flush_lost, bench.status().flushing), (1, 0));
}

/// The objects that the last command had a server delete.
fn swept(bench: &Bench) -> Option<(ServerId, u64, Vec<String>)> {
    let mut all = bench.effects.iter().filter_map(|effect| match effect {
        Effect::SweepObjects { server, number, directory, names } => {
            assert_eq!(**directory, *"job/out/t");
            Some((*server, *number, names.iter().map(|name| name.to_string()).collect()))
        }
        _ => None,
    });
    let one = all.next();
    assert!(all.next().is_none(), "one request at a time");
    one
}

#[test]
fn what_a_lost_flush_has_written_is_deleted_by_name_three_times_and_after_restarts() {
    let (mut bench, one, job) = bench();
    let two = bench.join_as("s2:1", 1, 20, true);
    let mut hands = Hands::default();
    bench.create(job, "t", &[], TO_OUT).unwrap();
    files(&mut bench, job, 4);
    hands.work(&mut bench);
    bench.pass(1000);
    let parts = asked(&bench);
    let written = parts.iter().find(|(at, _)| at.block.server() == one).unwrap();
    let several = [WRITTEN[0], WRITTEN[0]];
    wrote(&mut bench, written.0, Ok(&several));
    bench.run(Command::ServerLost { server: two }).unwrap();
    let (server, number, names) = swept(&bench).unwrap();
    assert_eq!(server, one, "who is there");
    // All objects that may have been written: two for one part, at most three for each of the others.
    assert_eq!(names.len(), 2 + 3 * (parts.len() - 1), "{names:?}");
    for (at, object) in &parts {
        let name = object.rsplit('/').next().unwrap();
        for i in 0..if *at == written.0 { 2 } else { 3 } {
            assert!(names.contains(&flush_object(name, i)), "object {i} of {name}");
        }
    }
    // A failed deletion is retried.
    let answer = |bench: &mut Bench, server, outcome| {
        bench.run(Command::Swept { server, number, outcome }).unwrap();
    };
    answer(&mut bench, one, Err("no connection"));
    assert_eq!(swept(&bench), None);
    bench.pass(100);
    assert_eq!(swept(&bench), Some((one, number, names.clone())));
    // A restart forgets none of this.
    hands.work(&mut bench);
    bench.restart();
    hands.back(&mut bench, one);
    assert_eq!(swept(&bench), None, "no server has reconnected yet");
    let mut seen = Vec::new();
    for second in 0..120 {
        bench.pass(1000);
        if let Some(again) = swept(&bench) {
            assert_eq!(again, (one, number, names.clone()));
            answer(&mut bench, one, Ok(()));
            seen.push(second);
            if seen.len() == 2 {
                // The last pass does not come early after a restart.
                bench.restart();
                hands.back(&mut bench, one);
            }
        }
        bench.run(Command::ServerReport { server: one, report: Report::default() }).unwrap();
    }
    // Objects that were being written at that moment do not wait for the much later pass.
    let [first, soon, last] = seen[..] else { panic!("{seen:?}") };
    assert!(soon - first <= 2 && last - soon >= 89, "{seen:?}");
    bench.restart();
    hands.back(&mut bench, one);
    for _ in 0..20 {
        bench.pass(1000);
        assert_eq!(swept(&bench), None, "and no more");
        bench.run(Command::ServerReport { server: one, report: Report::default() }).unwrap();
    }
}

#[test]
fn a_backlog_goes_on_as_soon_as_its_server_can_write_again() {
    let (mut bench, _, job) = bench();
    bench.create(job, "t", &[], TO_OUT).unwrap();
    let all = files(&mut bench, job, 8);
    bench.pass(1000);
    assert_eq!(asked(&bench).len(), all.len());
    // A long outage: each part fails again and again, a little apart.
    for _ in 0..12 {
        for &at in &all {
            wrote(&mut bench, at, Err("no connection"));
            bench.pass(10);
        }
        while wait(&mut bench, 1000).0.is_empty() {}
        wait(&mut bench, 30_000);
    }
    for &at in &all[1..] {
        wrote(&mut bench, at, Err("no connection"));
    }
    wrote(&mut bench, all[0], Ok(WRITTEN));
    bench.pass(1);
    let mut again: Vec<BlockAt> = asked(&bench).into_iter().map(|(at, _)| at).collect();
    again.sort();
    let mut left = all[1..].to_vec();
    left.sort();
    assert_eq!(again, left, "at once, not in half a minute");
}

#[test]
fn a_server_that_is_lost_after_its_part_is_not_missed() {
    let (mut bench, one, job) = bench();
    let two = bench.join_as("s2:1", 1, 20, true);
    bench.create(job, "t", &[], TO_OUT).unwrap();
    files(&mut bench, job, 8);
    bench.pass(1000);
    // The last part is the second server's, which receives the request for the manifest.
    let mut parts: Vec<BlockAt> = asked(&bench).into_iter().map(|(at, _)| at).collect();
    parts.sort_by_key(|at| at.block.server() == two);
    for &at in &parts {
        wrote(&mut bench, at, Ok(WRITTEN));
    }
    let (by, number, ..) = manifest(&bench).unwrap();
    bench.run(Command::ServerLost { server: by }).unwrap();
    let (now, same, ..) = manifest(&bench).unwrap();
    let other = if by == one { two } else { one };
    assert_eq!((now, same), (other, number));
    committed(&mut bench, by, number, Ok(()));
    assert_eq!(bench.status().flushing, 1, "the lost one has no say");
    committed(&mut bench, other, number, Ok(()));
    let left = parts.iter().filter(|at| at.block.server() == other).count();
    assert_eq!((bench.freed().len(), bench.status().flushed), (left, 1));
}

#[test]
fn two_flushes_of_one_directory_commit_in_their_order() {
    let (mut bench, server, job) = bench();
    let mut parts = Vec::new();
    for _ in 0..2 {
        bench.create(job, "t", &[], TO_OUT).unwrap();
        bench.make(job, file("t", "", 1)).unwrap();
        bench.pass(1000);
        parts.extend(asked(&bench));
    }
    assert_ne!(parts[0].1, parts[1].1, "their parts do not meet");
    wrote(&mut bench, parts[1].0, Ok(WRITTEN));
    assert_eq!(manifest(&bench), None, "the first one is not written");
    wrote(&mut bench, parts[0].0, Ok(WRITTEN));
    let (_, first, ..) = manifest(&bench).unwrap();
    committed(&mut bench, server, first, Ok(()));
    let (_, second, ..) = manifest(&bench).unwrap();
    assert!(second > first);
    committed(&mut bench, server, second, Ok(()));
    assert_eq!(bench.status().flushed, 2);
}

#[test]
fn a_path_is_refused_that_cannot_be_or_is_taken_or_that_nobody_can_write() {
    let (mut bench, _, job) = bench();
    for bad in ["/etc", "../x", "a/../../x", "a//b", "manifest.json"] {
        let refused = bench.create(job, "t", &[], PrefixOptions { flush_to: bad, ..TO_OUT });
        assert!(matches!(refused, Err(CatalogError::InvalidName(_))), "{bad}: {refused:?}");
    }
    bench.create(job, "t", &[], TO_OUT).unwrap();
    let taken = CatalogError::FlushPathTaken { path: "out/t".into() };
    assert_eq!(bench.create(job, "u", &[], TO_OUT), Err(taken.clone()));
    let node = |name| PlanNode { name, parents: &[], options: TO_OUT, readers: &[] };
    assert_eq!(bench.plan(job, &[node("u")]), Err(taken.clone()));
    bench.remove(job, "t").unwrap();
    assert_eq!(bench.plan(job, &[node("u"), node("v")]), Err(taken));
    // The same path of another job is another directory.
    let other = bench.job("other");
    bench.create(other, "t", &[], TO_OUT).unwrap();
    bench.create(job, "t", &[], TO_OUT).unwrap();

    bench.join("s2:1", 1, 4);
    let refused = bench.create(job, "w", &[], PrefixOptions { flush_to: "w", ..TO_OUT });
    let error = refused.unwrap_err();
    assert_eq!(error, CatalogError::FlushUnavailable { path: "w".into() });
    assert!(error.to_string().contains("flush_root"), "{error}");
}

#[test]
fn marks_reach_the_blocks_and_are_checked() {
    let (mut bench, _, job) = bench();
    let options = PrefixOptions { high_mark: 80, low_mark: 20, ..LEASE };
    bench.create(job, "t", &[], options).unwrap();
    bench.make(job, file("t", "", 1)).unwrap();
    let told = bench.effects.iter().find_map(|effect| match effect {
        Effect::OpenBlock { marks, .. } => Some(*marks),
        _ => None,
    });
    let marks = Marks::new(80, 20, Marks::default()).unwrap();
    assert_eq!((told, info(&mut bench, job, "t").marks), (Some(marks), marks));
    let swinging = PrefixOptions { high_mark: 40, low_mark: 20, ..LEASE };
    let refused = bench.create(job, "u", &[], swinging);
    assert!(matches!(refused, Err(CatalogError::InvalidArgument { .. })), "{refused:?}");
    assert_eq!(info(&mut bench, job, "").marks, Marks::default());
}

#[test]
fn a_successor_that_nobody_was_told_of_is_given_back() {
    let (mut bench, _, job) = bench();
    bench.create(job, "t", &[], LEASE).unwrap();
    let f = bench.make(job, file("t", "", 1)).unwrap();
    let (structure, first) = (f.structure, f.map.entries[0].at);
    let (_, second) = bench.grow(structure, first).unwrap();
    let back = |bench: &mut Bench, at, successor| {
        bench.run(Command::ReturnBlock { structure, at, successor })
    };
    back(&mut bench, first, second).unwrap();
    assert_eq!(bench.freed(), [second]);
    bench.confirm(&[second]);
    assert!(back(&mut bench, first, second).is_err(), "it is given back once");
    let (_, third) = bench.grow(structure, first).unwrap();
    assert_ne!(third, second);
    let (_, fourth) = bench.grow(structure, third).unwrap();
    assert!(back(&mut bench, first, third).is_err(), "the chain goes on behind it");
    back(&mut bench, third, fourth).unwrap();
    let seal = Seal { length: 5, bytes: 5, last: false };
    bench.seal(structure, first, seal).unwrap();
    assert!(back(&mut bench, first, third).is_err(), "it is the tail by now");
}

#[test]
fn a_flush_under_way_goes_on_after_a_restart() {
    let (mut bench, one, job) = bench();
    let two = bench.join_as("s2:1", 1, 20, true);
    let mut hands = Hands::default();
    bench.create(job, "t", &[], TO_OUT).unwrap();
    for i in 0..4 {
        bench.make(job, file("t", &format!("f{i}"), 1)).unwrap();
        hands.work(&mut bench);
    }
    bench.pass(1000);
    let parts = asked(&bench);
    wrote(&mut bench, parts[0].0, Ok(WRITTEN));
    let written = parts[0].0.block.server();
    bench.restart();
    let status = bench.status();
    assert_eq!((status.free, status.quarantined, status.flushing), (0, 40, 1));
    assert_eq!(info(&mut bench, job, "t").flush, FlushState::Writing);

    // Each receives requests for its unwritten parts, under the same names as before.
    let mut again = Vec::new();
    for server in [one, two] {
        let asked = hands.back(&mut bench, server);
        assert!(asked.iter().all(|(at, _)| at.block.server() == server));
        assert_eq!((bench.freed(), manifest(&bench)), (vec![], None));
        again.extend(asked);
    }
    let mut left = parts[1..].to_vec();
    left.sort();
    again.sort();
    assert_eq!(again, left);
    assert_eq!(bench.status().quarantined, 4, "kept, and nothing else");
    // New owners get other blocks.
    for i in 0..8 {
        bench.make(job, file("", &format!("new{i}"), 1)).unwrap();
        hands.work(&mut bench);
    }
    // One of the blocks left several objects.
    let several = [WRITTEN[0], Written { bytes: 5, items: 1, crc: 8 }, WRITTEN[0]];
    for (i, (at, _)) in left.iter().enumerate() {
        wrote(&mut bench, *at, Ok(if i == 1 { &several } else { WRITTEN }));
    }
    let (by, number, directory, structures) = manifest(&bench).unwrap();
    assert_eq!((directory.as_str(), structures.len()), ("job/out/t", 4));
    assert!(structures.iter().all(|s| s.parts.len() == 1));
    let mut objects: Vec<&[Written]> = structures.iter().map(|s| &s.parts[0].objects[..]).collect();
    objects.sort_by_key(|objects| objects.len());
    assert_eq!(objects, [WRITTEN, WRITTEN, WRITTEN, &several]);

    // Again, with everything written and the manifest requested.
    bench.restart();
    assert_eq!(hands.back(&mut bench, written), []);
    assert_eq!(manifest(&bench), None, "who wrote the last part may still come");
    let other = if written == one { two } else { one };
    assert_eq!(hands.back(&mut bench, other), []);
    let (who, same, _, same_structures) = manifest(&bench).unwrap();
    assert_eq!((who, same, same_structures), (by, number, structures));
    committed(&mut bench, who, number, Ok(()));
    assert_eq!(hands.work(&mut bench).len(), 4);
    assert_eq!(info(&mut bench, job, "t").flush, FlushState::Done);
    let status = bench.status();
    assert_eq!((status.quarantined, status.flushing), (0, 0));
    bench.restart();
    assert_eq!(info(&mut bench, job, "t").flush, FlushState::Done, "what became of it stays known");
}

#[test]
fn a_flush_whose_server_does_not_come_back_is_lost_and_who_asks_is_told_so() {
    let (mut bench, server, job) = bench();
    let other = bench.join_as("s2:1", 1, 20, true);
    bench.create(job, "t", &[], TO_OUT).unwrap();
    let mut hands = Hands::default();
    let f = bench.make(job, file("t", "f", 1)).unwrap();
    hands.work(&mut bench);
    let holder = f.map.entries[0].at.block.server();
    bench.pass(1000);
    bench.restart();
    let expired = bench.reopen(job, &f).unwrap_err();
    assert!(matches!(expired, CatalogError::LeaseExpired { .. }), "{expired}");
    let stays = if holder == server { other } else { server };
    hands.back(&mut bench, stays);
    bench.pass(1000);
    bench.report_all(stays, &[]);
    bench.pass(u64::from(SERVER_LOSS_DEFAULT_MS) - 1000);
    let status = bench.status();
    assert_eq!((status.flushing, status.flush_lost, status.quarantined), (0, 1, 0));
    let check = |bench: &mut Bench| {
        assert!(matches!(info(bench, job, "t").flush, FlushState::Lost(_)));
        for lost in [
            bench.reopen(job, &f).unwrap_err(),
            bench.open(Actor::driver(job), "t", "f").unwrap_err(),
            bench.left(job, "t").unwrap_err(),
        ] {
            assert!(matches!(lost, CatalogError::DataLost { .. }), "{lost}");
        }
    };
    check(&mut bench);
    bench.restart();
    check(&mut bench);
}

#[test]
fn a_block_that_was_never_opened_has_no_part() {
    let (mut bench, server, job) = bench();
    bench.create(job, "t", &[], TO_OUT).unwrap();
    let mut hands = Hands::default();
    let f = bench.make(job, file("t", "f", 1)).unwrap();
    hands.work(&mut bench);
    let (_, second) = bench.grow(f.structure, f.map.entries[0].at).unwrap();
    // The controller ends before it has sent that to the server, and so the request is repeated.
    bench.pass(1000);
    assert_eq!(asked(&bench).len(), 2);
    bench.restart();
    let parts = hands.back(&mut bench, server);
    assert_eq!(parts.len(), 1);
    assert_eq!(bench.status().quarantined, 1, "{second:?} is free");
    bench.restart();
    assert_eq!(hands.back(&mut bench, server), parts);
    wrote(&mut bench, parts[0].0, Ok(WRITTEN));
    let (_, number, _, structures) = manifest(&bench).unwrap();
    assert_eq!((structures.len(), structures[0].parts.len()), (1, 1));
    committed(&mut bench, server, number, Ok(()));
    assert_eq!(hands.work(&mut bench), [parts[0].0]);
    assert_eq!(bench.status().free, bench.status().blocks);
}

/// A flush of one file whose second block was never opened, and of one more; the parts in their order.
fn with_a_part_that_is_none() -> (Bench, ServerId, Hands, Vec<BlockAt>) {
    let (mut bench, server, job) = bench();
    bench.create(job, "t", &[], TO_OUT).unwrap();
    let mut hands = Hands::default();
    let f = bench.make(job, file("t", "f", 1)).unwrap();
    hands.work(&mut bench);
    bench.make(job, file("t", "g", 1)).unwrap();
    hands.work(&mut bench);
    bench.grow(f.structure, f.map.entries[0].at).unwrap();
    bench.pass(1000);
    let parts = asked(&bench).into_iter().map(|(at, _)| at).collect();
    (bench, server, hands, parts)
}

/// Parts behind one that turned out to be absent moved up, while retries knew them by their old indices: the
/// controller ended, or the wrong part was written again and the flush hung.
#[test]
fn what_is_to_be_tried_again_outlives_a_part_that_is_none() {
    let (mut bench, server, hands, parts) = with_a_part_that_is_none();
    assert_eq!(parts.len(), 3);
    wrote(&mut bench, parts[2], Err("full"));
    // Over another connection, without the second block.
    let again = hands.back(&mut bench, server);
    assert_eq!(again.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [parts[0], parts[2]]);
    let (retried, _) = wait(&mut bench, 2000);
    assert_eq!(retried, again[1..], "the part that failed, and no other");
    wrote(&mut bench, parts[2], Ok(WRITTEN));
    // The logged parts are found at the same indices.
    bench.restart();
    let left = hands.back(&mut bench, server);
    assert_eq!(left, again[..1]);
    wrote(&mut bench, parts[0], Ok(WRITTEN));
    let (_, number, _, structures) = manifest(&bench).unwrap();
    assert!(structures.iter().all(|s| s.parts.len() == 1 && s.parts[0].objects == WRITTEN));
    committed(&mut bench, server, number, Ok(()));
    assert_eq!(bench.freed(), [parts[0], parts[2]]);
}

/// When the last awaited part turned out to be absent, the manifest was never requested.
#[test]
fn a_flush_is_committed_when_its_last_part_turns_out_to_be_none() {
    let (mut bench, server, hands, parts) = with_a_part_that_is_none();
    wrote(&mut bench, parts[0], Ok(WRITTEN));
    wrote(&mut bench, parts[2], Ok(WRITTEN));
    assert_eq!(manifest(&bench), None);
    assert_eq!(hands.back(&mut bench, server), []);
    let (_, number, _, structures) = manifest(&bench).unwrap();
    assert_eq!(structures.iter().map(|s| s.parts.len()).collect::<Vec<_>>(), [1, 1]);
    committed(&mut bench, server, number, Ok(()));
    assert_eq!(bench.status().flushing, 0);
}

/// A server reports its abilities when it reconnects. After a restart `flush_to` was refused for good, no
/// server was found for a manifest, and no structure of a custom kind could be made.
#[test]
fn a_server_that_came_back_can_flush_as_before() {
    let (mut bench, server, job) = bench();
    bench.restart();
    let refused = bench.create(job, "t", &[], TO_OUT).unwrap_err();
    assert_eq!(refused, CatalogError::Recovering, "while it is away");
    let mut hands = Hands::default();
    hands.back(&mut bench, server);
    bench.create(job, "t", &[], TO_OUT).unwrap();
    bench.make(job, file("t", "", 1)).unwrap();
    hands.work(&mut bench);
    bench.pass(1000);
    let (at, _) = asked(&bench)[0];
    wrote(&mut bench, at, Ok(WRITTEN));
    assert!(manifest(&bench).is_some());
}

proptest! {
    #![proptest_config(long_cases())]

    /// INV-09. Whatever fails, in whatever order, and whenever the controller is restarted: no block is free
    /// before its flush is confirmed, every block is free after it, and no flush is forgotten.
    #[test]
    fn nothing_is_freed_before_it_is_flushed_and_everything_after(
        rounds in prop::collection::vec((0usize..6, 0u8..5, 1u64..5000), 1..60),
    ) {
        let (mut bench, server, job) = bench();
        let mut hands = Hands::default();
        let mut due: BTreeSet<BlockAt> = BTreeSet::new();
        let mut commits: Vec<u64> = Vec::new();
        // Blocks of flushes that are not confirmed.
        let mut kept: BTreeSet<BlockAt> = BTreeSet::new();
        let (mut begun, mut done) = (0, 0);
        let note = |bench: &Bench, due: &mut BTreeSet<BlockAt>, commits: &mut Vec<u64>| {
            due.extend(asked(bench).into_iter().map(|(at, _)| at));
            commits.extend(manifest(bench).map(|(_, number, ..)| number));
        };
        for (pick, what, ms) in rounds {
            let path = format!("t{}", pick % 3);
            let options = PrefixOptions { flush_to: "d", ..TO_OUT };
            if what == 0 && bench.create(job, &path, &[], options).is_ok() {
                let made = bench.make(job, file(&path, "", 1)).unwrap();
                kept.insert(made.map.entries[0].at);
                hands.work(&mut bench);
                begun += 1;
            } else if what == 1 && !due.is_empty() {
                let at = *due.iter().nth(pick % due.len()).unwrap();
                due.remove(&at);
                wrote(&mut bench, at, if ms % 2 == 0 { Ok(WRITTEN) } else { Err("x") });
                note(&bench, &mut due, &mut commits);
            } else if what == 2 && !commits.is_empty() {
                let number = commits.remove(0);
                let well = ms % 2 == 0;
                committed(&mut bench, server, number, if well { Ok(()) } else { Err("y") });
                note(&bench, &mut due, &mut commits);
                let freed = hands.work(&mut bench);
                prop_assert_eq!(freed.len(), usize::from(well));
                done += u64::from(well);
                prop_assert!(freed.iter().all(|at| kept.remove(at)));
            } else if what == 4 {
                // Requests to servers, and their answers, are lost with the controller.
                (due, commits) = (BTreeSet::new(), Vec::new());
                bench.restart();
                due.extend(hands.back(&mut bench, server).into_iter().map(|(at, _)| at));
                commits.extend(manifest(&bench).map(|(_, number, ..)| number));
                prop_assert_eq!(hands.work(&mut bench), []);
            } else {
                let (parts, manifests) = wait(&mut bench, ms);
                due.extend(parts.into_iter().map(|(at, _)| at));
                commits.extend(manifests);
            }
            prop_assert!(kept.iter().all(|at| hands.0.contains_key(at)));
        }
        // From now on everything succeeds.
        for _ in 0..60 {
            let (parts, manifests) = wait(&mut bench, 30_000);
            due.extend(parts.into_iter().map(|(at, _)| at));
            commits.extend(manifests);
            while let Some(at) = due.pop_first() {
                wrote(&mut bench, at, Ok(WRITTEN));
                note(&bench, &mut due, &mut commits);
            }
            while let Some(number) = commits.pop() {
                committed(&mut bench, server, number, Ok(()));
                done += 1;
                note(&bench, &mut due, &mut commits);
                hands.work(&mut bench);
            }
        }
        let status = bench.status();
        prop_assert_eq!((done, status.flushing), (begun, 0));
        prop_assert_eq!((status.free, status.quarantined), (status.blocks, 0));
    }
}
