//! Flushes of live prefixes: the requests to blocks, the moves refused meanwhile, the content of the
//! manifest, and the deleted objects; restarts and losses at each point.

use crate::common::{Bench, file, kv};
use honeycomb_catalog::{
    Actor, CatalogError, Command, Effect, FlushState, FlushedStructure, PrefixOptions, Reply, Seal,
    Written,
};
use honeycomb_types::{BlockAt, JobId, MoveId, ServerId, StructureId, Way};
use std::collections::BTreeSet;

const WRITTEN: &[Written] = &[Written { bytes: 10, items: 2, crc: 7 }];

fn bench() -> (Bench, ServerId, JobId) {
    let mut bench = Bench::new();
    let server = bench.join_as("s1:1", 1, 40, true);
    let job = bench.job_leased("job", 3_600_000);
    let actor = Actor::driver(job);
    let options = PrefixOptions { lease_ms: 1000, ..PrefixOptions::default() };
    bench.run(Command::CreatePrefix { actor, job, path: "t", parents: &[], options }).unwrap();
    (bench, server, job)
}

/// One block whose copy the last command requested.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    at: BlockAt,
    range: (u64, u64),
    object: String,
    name: u32,
}

fn asked(bench: &Bench) -> Vec<Asked> {
    let copies = bench.effects.iter().filter_map(|effect| match effect {
        Effect::CopyBlock { at, start, end, object, name, .. } => {
            Some(Asked { at: *at, range: (*start, *end), object: object.to_string(), name: *name })
        }
        _ => None,
    });
    copies.collect()
}

fn manifest(bench: &Bench) -> Option<(ServerId, u64, Vec<FlushedStructure>)> {
    bench.effects.iter().find_map(|effect| match effect {
        Effect::CommitFlush { server, number, structures, .. } => {
            Some((*server, *number, structures.clone()))
        }
        _ => None,
    })
}

fn swept(bench: &Bench) -> BTreeSet<String> {
    let names = bench.effects.iter().filter_map(|effect| match effect {
        Effect::SweepObjects { directory, names, .. } => {
            Some(names.iter().map(move |name| format!("{directory}/{name}")))
        }
        _ => None,
    });
    names.flatten().collect()
}

fn begin(bench: &mut Bench, job: JobId, place: &str) -> Result<u64, CatalogError> {
    let actor = Actor::driver(job);
    match bench.run(Command::FlushPrefix {
        actor,
        job,
        path: "t",
        place,
        below: &[],
        barrier: false,
    })? {
        Reply::Flushing { number, .. } => Ok(number),
        other => panic!("{other:?}"),
    }
}

fn state(bench: &mut Bench, job: JobId, number: u64) -> Result<FlushState, CatalogError> {
    let actor = Actor::driver(job);
    match bench.run(Command::FlushInfo { actor, job, number })? {
        Reply::FlushInfo(progress) => Ok(progress.state),
        other => panic!("{other:?}"),
    }
}

fn copied(bench: &mut Bench, number: u64, asked: &Asked, sealed: bool) {
    let (server, name, outcome) = (asked.at.block.server(), asked.name, Ok((WRITTEN, sealed)));
    bench.run(Command::BlockCopied { server, number, name, outcome }).unwrap();
}

fn commit(bench: &mut Bench, server: ServerId, number: u64) {
    bench.run(Command::FlushCommitted { server, number, outcome: Ok(()) }).unwrap();
}

fn move_from(
    bench: &mut Bench,
    s: StructureId,
    at: BlockAt,
    start: u64,
) -> Result<(), CatalogError> {
    let way = if start == 0 { Way::Merge } else { Way::Split };
    bench.run(Command::BeginMove { structure: s, at, start, way }).map(drop)
}

#[test]
fn a_kv_is_asked_for_where_it_is_and_every_hash_is_in_one_part() {
    let (mut bench, server, job) = bench();
    let opened = bench.make(job, kv("t", "", 8)).unwrap();
    let (s, entries) = (opened.structure, opened.map.entries.clone());
    let number = begin(&mut bench, job, "out").unwrap();
    let first = asked(&bench);
    assert_eq!(first.len(), 4, "so many of a server at a time: {first:?}");
    let last = entries.last().unwrap();
    assert!(first.iter().all(|asked| asked.at != last.at));
    // A block that is being copied begins no move; one that waits for its turn does, and is found at its new
    // place.
    let moving = CatalogError::Moving { at: first[0].at };
    assert_eq!(move_from(&mut bench, s, first[0].at, entries[0].end / 2 + 1), Err(moving));
    let half = last.start + (last.end - last.start) / 2 + 1;
    let moved =
        bench.run(Command::BeginMove { structure: s, at: last.at, start: half, way: Way::Split });
    let Ok(Reply::Moving { id, entry }) = moved else { panic!("{moved:?}") };
    let mut all = first.clone();
    let mut waiting = first;
    while let Some(one) = waiting.pop() {
        copied(&mut bench, number, &one, true);
        let more = asked(&bench);
        assert!(more.iter().all(|asked| asked.at != last.at), "it is moving");
        all.extend(more.clone());
        waiting.extend(more);
    }
    assert_eq!(all.len(), 7);
    assert_eq!(manifest(&bench), None);
    bench.confirm(&[]);
    let (at, target) = (last.at, entry.at);
    bench.run(Command::CommitMove { structure: s, at, id, target, bytes: 0 }).unwrap();
    let rest = asked(&bench);
    assert_eq!(rest.iter().map(|asked| asked.at).collect::<Vec<_>>(), [at, target]);
    rest.iter().for_each(|one| copied(&mut bench, number, one, true));
    all.extend(rest);
    let (committer, of, structures) = manifest(&bench).unwrap();
    assert_eq!((committer, of), (server, number));
    // The ranges are all hashes, each once, in order.
    all.sort_by_key(|asked| asked.range);
    assert_eq!((all[0].range.0, all[8].range.1), (0, u64::MAX));
    assert!(all.windows(2).all(|two| two[0].range.1 + 1 == two[1].range.0));
    let told: Vec<(String, u64)> = structures[0]
        .parts
        .iter()
        .map(|part| (format!("job/out/{}", part.name), part.start))
        .collect();
    let asked: Vec<(String, u64)> = all.iter().map(|a| (a.object.clone(), a.range.0)).collect();
    assert_eq!(told, asked);
    assert!(swept(&bench).is_empty());
    assert!(bench.effects.contains(&Effect::EndCopies { server, number }));
    assert_eq!(state(&mut bench, job, number), Ok(FlushState::Writing));
    commit(&mut bench, server, number);
    assert_eq!(state(&mut bench, job, number), Ok(FlushState::Done));
    assert_eq!(bench.freed(), []);
    move_from(&mut bench, s, entries[0].at, entries[0].end / 2 + 1).unwrap();
}

#[test]
fn what_follows_the_first_open_block_is_not_told_and_is_deleted() {
    let (mut bench, server, job) = bench();
    let opened = bench.make(job, file("t", "", 1)).unwrap();
    let (s, first) = (opened.structure, opened.map.entries[0].at);
    let (_, second) = bench.grow(s, first).unwrap();
    bench.seal(s, first, Seal { length: 100, bytes: 0, last: false }).unwrap();
    let (_, third) = bench.grow(s, second).unwrap();
    let number = begin(&mut bench, job, "out").unwrap();
    let copies = asked(&bench);
    assert_eq!(copies.iter().map(|a| a.at).collect::<Vec<_>>(), [first, second, third]);
    // The second is sealed between its own copy and that of the third.
    copied(&mut bench, number, &copies[2], false);
    copied(&mut bench, number, &copies[0], true);
    copied(&mut bench, number, &copies[1], false);
    let (.., structures) = manifest(&bench).unwrap();
    let told: Vec<_> = structures[0].parts.iter().map(|p| format!("job/out/{}", p.name)).collect();
    assert_eq!(told, [copies[0].object.clone(), copies[1].object.clone()]);
    assert!(swept(&bench).contains(&copies[2].object));
    assert!(swept(&bench).iter().all(|name| !told.contains(name)));
    commit(&mut bench, server, number);
    assert_eq!(state(&mut bench, job, number), Ok(FlushState::Done));
}

/// A block leaves its server: the target, and the arguments of the commit.
fn leave(bench: &mut Bench, structure: StructureId, at: BlockAt) -> Result<Leaving, CatalogError> {
    match bench.run(Command::BeginMove { structure, at, start: 0, way: Way::Relocate })? {
        Reply::Moving { id, entry } => Ok(Leaving { structure, at, id, target: entry.at }),
        other => panic!("{other:?}"),
    }
}

#[derive(Clone, Copy)]
struct Leaving {
    structure: StructureId,
    at: BlockAt,
    id: MoveId,
    target: BlockAt,
}

fn has_left(bench: &mut Bench, leaving: Leaving) {
    let Leaving { structure, at, id, target } = leaving;
    bench.run(Command::CommitMove { structure, at, id, target, bytes: 0 }).unwrap();
}

/// A file of sealed blocks, in their order, on a server that then drains; and a server to receive them.
fn file_that_leaves(blocks: usize) -> (Bench, JobId, StructureId, Vec<BlockAt>) {
    let (mut bench, _, job) = bench();
    let opened = bench.make(job, file("t", "", 1)).unwrap();
    let s = opened.structure;
    let mut all = vec![opened.map.entries[0].at];
    for i in 1..blocks {
        let (_, next) = bench.grow(s, all[i - 1]).unwrap();
        bench.seal(s, all[i - 1], Seal { length: 100, bytes: 0, last: false }).unwrap();
        all.push(next);
    }
    bench.seal(s, all[blocks - 1], Seal { length: 100, bytes: 0, last: true }).unwrap();
    bench.join_as("s2:1", 1, 20, true);
    let actor = Actor::CLUSTER;
    bench.run(Command::DrainServer { actor, address: "s1:1", cancel: false }).unwrap();
    (bench, job, s, all)
}

#[test]
fn a_block_of_a_chain_that_leaves_before_its_turn_is_copied_where_it_went() {
    let (mut bench, job, s, all) = file_that_leaves(6);
    let number = begin(&mut bench, job, "out").unwrap();
    let mut copies = asked(&bench);
    assert_eq!(copies.iter().map(|a| a.at).collect::<Vec<_>>(), all[..4]);
    // A block that is being copied stays in place until it is copied.
    assert_eq!(leave(&mut bench, s, all[0]).err(), Some(CatalogError::Moving { at: all[0] }));
    let leaving = leave(&mut bench, s, all[4]).unwrap();
    has_left(&mut bench, leaving);
    let moved = asked(&bench);
    assert_eq!(moved.iter().map(|a| a.at).collect::<Vec<_>>(), [leaving.target]);
    // A block whose copy failed may leave before the next attempt.
    let (server, name, outcome) = (all[3].block.server(), copies[3].name, Err((false, "no space")));
    bench.run(Command::BlockCopied { server, number, name, outcome }).unwrap();
    let sixth = asked(&bench);
    assert_eq!(sixth.iter().map(|a| a.at).collect::<Vec<_>>(), [all[5]]);
    let leaving = leave(&mut bench, s, all[3]).unwrap();
    has_left(&mut bench, leaving);
    bench.pass(150);
    let fourth = asked(&bench);
    assert_eq!(fourth.iter().map(|a| a.at).collect::<Vec<_>>(), [leaving.target]);
    copies.truncate(3);
    copies.extend(fourth.into_iter().chain(moved).chain(sixth));
    copies.iter().for_each(|one| copied(&mut bench, number, one, true));
    let (.., structures) = manifest(&bench).unwrap();
    let told: Vec<_> = structures[0].parts.iter().map(|p| format!("job/out/{}", p.name)).collect();
    assert_eq!(told, copies.iter().map(|a| a.object.clone()).collect::<Vec<_>>());
}

#[test]
fn a_block_of_a_chain_that_is_leaving_is_one_part_and_waits_for_its_place() {
    for commits in [true, false] {
        let (mut bench, job, s, all) = file_that_leaves(3);
        let leaving = leave(&mut bench, s, all[1]).unwrap();
        let number = begin(&mut bench, job, "out").unwrap();
        let mut copies = asked(&bench);
        assert_eq!(copies.iter().map(|a| a.at).collect::<Vec<_>>(), [all[0], all[2]]);
        copies.iter().for_each(|one| copied(&mut bench, number, one, true));
        assert_eq!(manifest(&bench), None);
        if commits {
            has_left(&mut bench, leaving);
        } else {
            let (structure, at, id) = (s, leaving.at, leaving.id);
            bench.run(Command::CancelMove { structure, at, id }).unwrap();
        }
        let rest = asked(&bench);
        let now = if commits { leaving.target } else { leaving.at };
        assert_eq!(rest.iter().map(|a| a.at).collect::<Vec<_>>(), [now]);
        copied(&mut bench, number, &rest[0], true);
        copies.insert(1, rest[0].clone());
        let (.., structures) = manifest(&bench).unwrap();
        let parts = structures[0].parts.iter();
        let told: Vec<_> = parts.map(|part| format!("job/out/{}", part.name)).collect();
        assert_eq!(told, copies.iter().map(|a| a.object.clone()).collect::<Vec<_>>());
    }
}

#[test]
fn a_flush_keeps_its_prefix_and_ends_with_it() {
    let (mut bench, _, job) = bench();
    bench.make(job, file("t", "", 1)).unwrap();
    let number = begin(&mut bench, job, "out").unwrap();
    let [copy] = &asked(&bench)[..] else { panic!("one block") };
    for _ in 0..10 {
        bench
            .run(Command::ServerReport {
                server: copy.at.block.server(),
                report: Default::default(),
            })
            .unwrap();
        bench.pass(700);
    }
    assert!(bench.left(job, "t").is_ok(), "it is live without a renewal");
    assert_eq!(begin(&mut bench, job, "out"), Ok(number), "the same again");
    let other = begin(&mut bench, job, "other").unwrap();
    let second = asked(&bench).into_iter().find(|copy| copy.object.contains("other")).unwrap();
    // One fails and is retried under another name, which no late write can damage.
    let (server, name) = (copy.at.block.server(), copy.name);
    let outcome = Err((false, "no space"));
    bench.run(Command::BlockCopied { server, number, name, outcome }).unwrap();
    assert_eq!(state(&mut bench, job, number), Ok(FlushState::Failing("no space".into())));
    let status = bench.status();
    assert_eq!((status.flush_failing, &*status.flush_error), (1, "job/out: no space"));
    bench.pass(150);
    let [again] = &asked(&bench)[..] else { panic!("{:?}", asked(&bench)) };
    assert_eq!(again.at, copy.at);
    assert_ne!(again.object, copy.object);
    bench.remove(job, "t").unwrap();
    let gone = swept(&bench);
    for object in [&copy.object, &again.object, &second.object] {
        assert!(gone.contains(object), "{object} of {gone:?}");
    }
    for number in [number, other] {
        let Ok(FlushState::Lost(why)) = state(&mut bench, job, number) else {
            panic!("it is over")
        };
        assert!(why.contains("ended"), "{why}");
    }
    copied(&mut bench, number, again, true);
    assert_eq!(manifest(&bench), None);
}

#[test]
fn what_is_cancelled_or_cannot_ever_be_leaves_nothing_and_its_place_is_free() {
    let (mut bench, server, job) = bench();
    bench.make(job, file("t", "", 1)).unwrap();
    let actor = Actor::driver(job);
    let number = begin(&mut bench, job, "out").unwrap();
    let [copy] = &asked(&bench)[..] else { panic!("one block") };
    let options = PrefixOptions { flush_to: "out", ..PrefixOptions::default() };
    let claim = Command::CreatePrefix { actor, job, path: "u", parents: &[], options };
    assert_eq!(bench.run(claim), Err(CatalogError::FlushPathTaken { path: "out".into() }));
    bench.run(Command::CancelFlush { actor, job, number }).unwrap();
    assert!(swept(&bench).contains(&copy.object));
    bench.run(Command::CancelFlush { actor, job, number }).unwrap();
    bench.run(claim).unwrap();
    assert!(matches!(begin(&mut bench, job, "out"), Err(CatalogError::FlushPathTaken { .. })));
    let number = begin(&mut bench, job, "other").unwrap();
    let name = asked(&bench)[0].name;
    let outcome = Err((true, "no such kind"));
    bench.run(Command::BlockCopied { server, number, name, outcome }).unwrap();
    assert_eq!(state(&mut bench, job, number), Ok(FlushState::Lost("no such kind".into())));
    // Other jobs must not learn of it.
    let stranger = bench.job("stranger");
    let unknown = CatalogError::UnknownFlush { number };
    assert_eq!(state(&mut bench, stranger, number), Err(unknown));
}

#[test]
fn a_controller_that_is_started_again_copies_anew_and_deletes_what_was_left() {
    let (mut bench, server, job) = bench();
    let opened = bench.make(job, kv("t", "", 2)).unwrap();
    let held: Vec<_> = opened.map.entries.iter().map(|e| (e.at, opened.structure)).collect();
    let blocks: Vec<_> = held.iter().map(|(at, _)| *at).collect();
    bench.confirm(&blocks);
    let number = begin(&mut bench, job, "out").unwrap();
    let before = asked(&bench);
    copied(&mut bench, number, &before[0], true);
    bench.restart();
    assert_eq!(state(&mut bench, job, number), Ok(FlushState::Writing));
    bench.back(server, &held);
    let after = asked(&bench);
    assert_eq!(after.len(), 2);
    assert!(after.iter().all(|copy| before.iter().all(|b| b.object != copy.object)));
    // A late answer to the earlier request is ignored.
    copied(&mut bench, number, &before[1], true);
    after.iter().for_each(|one| copied(&mut bench, number, one, true));
    let (.., structures) = manifest(&bench).unwrap();
    assert_eq!(structures[0].parts.len(), 2);
    let gone = swept(&bench);
    assert!(before.iter().all(|copy| gone.contains(&copy.object)));
    assert!(after.iter().all(|copy| !gone.contains(&copy.object)));
    // From here on it is like any other flush: the manifest is requested again, and frees nothing.
    bench.restart();
    bench.back(server, &held);
    let (.., again) = manifest(&bench).unwrap();
    assert_eq!(again, structures);
    commit(&mut bench, server, number);
    assert_eq!(state(&mut bench, job, number), Ok(FlushState::Done));
    assert_eq!(bench.freed(), []);
    bench.restart();
    bench.back(server, &held);
    assert_eq!(manifest(&bench), None);
}

#[test]
fn a_server_that_comes_back_over_another_connection_is_asked_anew() {
    let (mut bench, server, job) = bench();
    let opened = bench.make(job, file("t", "", 1)).unwrap();
    let at = opened.map.entries[0].at;
    bench.confirm(&[at]);
    let number = begin(&mut bench, job, "out").unwrap();
    let before = asked(&bench);
    bench.back(server, &[(at, opened.structure)]);
    let after = asked(&bench);
    assert_eq!(after.len(), 1);
    assert_ne!(after[0].object, before[0].object);
    copied(&mut bench, number, &before[0], true);
    assert_eq!(manifest(&bench), None, "that was over the earlier connection");
    copied(&mut bench, number, &after[0], false);
    assert!(manifest(&bench).is_some());
    assert!(swept(&bench).contains(&before[0].object));
}

#[test]
fn a_lost_server_ends_the_flush_of_what_it_had_and_nothing_is_left() {
    let (mut bench, lost, job) = bench();
    bench.make(job, file("t", "", 1)).unwrap();
    let number = begin(&mut bench, job, "out").unwrap();
    let copy = asked(&bench).remove(0);
    let other = bench.join_as("s2:1", 1, 20, true);
    bench.run(Command::ServerLost { server: lost }).unwrap();
    let Ok(FlushState::Lost(why)) = state(&mut bench, job, number) else { panic!("it is over") };
    assert!(why.contains("lost"), "{why}");
    bench.run(Command::Tick).unwrap();
    let _ = (other, copy);
}

/// The remaining servers may be as busy as the lost one: all requests to it are dropped with it.
#[test]
fn a_server_is_lost_that_was_asked_for_as_much_as_it_takes_like_all_others() {
    let (mut bench, _, job) = bench();
    let lost = bench.join_as("s2:1", 1, 40, true);
    bench.make(job, kv("t", "", 16)).unwrap();
    bench.make(job, file("t", "f", 1)).unwrap();
    let number = begin(&mut bench, job, "out").unwrap();
    let parts = asked(&bench);
    let of_lost = parts.iter().filter(|asked| asked.at.block.server() == lost).count();
    assert_eq!((parts.len(), of_lost), (8, 4), "as many of each as it takes at a time");
    bench.run(Command::ServerLost { server: lost }).unwrap();
    assert!(matches!(state(&mut bench, job, number), Ok(FlushState::Lost(_))));
    // The next one begins as if there had been no other.
    bench.make(job, kv("t", "again", 8)).unwrap();
    begin(&mut bench, job, "out").unwrap();
    assert_eq!(asked(&bench).len(), 4);
}

#[test]
fn what_is_loaded_is_opened_when_it_is_published_and_not_before() {
    let (mut bench, server, job) = bench();
    let actor = Actor::driver(job);
    let options = PrefixOptions { loading: true, lease_ms: 60_000, ..PrefixOptions::default() };
    bench.run(Command::CreatePrefix { actor, job, path: "l", parents: &[], options }).unwrap();
    let opened = bench.make(job, file("l", "f", 1)).unwrap();
    let at = opened.map.entries[0].at;
    bench.confirm(&[at]);
    let loading = CatalogError::Loading { path: "l".into() };
    assert_eq!(bench.open(actor, "l", "f").map(drop), Err(loading.clone()));
    assert_eq!(bench.open(actor, "l", "").map(drop), Err(loading.clone()));
    let flush =
        Command::FlushPrefix { actor, job, path: "l", place: "out", below: &[], barrier: false };
    assert_eq!(bench.run(flush).map(drop), Err(loading.clone()));
    bench.restart();
    bench.back(server, &[(at, opened.structure)]);
    assert_eq!(bench.open(actor, "l", "f").map(drop), Err(loading));
    for _ in 0..2 {
        bench.run(Command::PublishPrefix { actor, job, path: "l" }).unwrap();
        assert!(bench.open(actor, "l", "f").is_ok());
    }
    bench.restart();
    bench.back(server, &[(at, opened.structure)]);
    assert!(bench.open(actor, "l", "f").is_ok());
}

/// The manifest names the other members of a subtree, also after a restart of the controller: while blocks
/// are copied, and while the manifest waits.
#[test]
fn a_manifest_tells_what_is_below_whatever_becomes_of_the_controller() {
    let (mut bench, server, job) = bench();
    let actor = Actor::driver(job);
    let opened = bench.make(job, file("t", "f", 1)).unwrap();
    let held = [(opened.map.entries[0].at, opened.structure)];
    let below = ["a", "a/b"];
    fn flush<'a>(actor: Actor, job: JobId, below: &'a [&'a str]) -> Command<'a> {
        Command::FlushPrefix { actor, job, path: "t", place: "out", below, barrier: false }
    }
    let number = match bench.run(flush(actor, job, &below)).unwrap() {
        Reply::Flushing { number, .. } => number,
        other => panic!("{other:?}"),
    };
    bench.restart();
    bench.back(server, &held);
    let again = asked(&bench).pop().expect("it is copied anew");
    copied(&mut bench, number, &again, true);
    assert_eq!(told_below(&bench), below);
    bench.restart();
    bench.back(server, &held);
    assert_eq!(told_below(&bench), below);
    let many = vec!["a"; 16_385];
    assert!(matches!(bench.run(flush(actor, job, &many)), Err(CatalogError::LimitExceeded { .. })));
    assert!(matches!(bench.run(flush(actor, job, &["a//b"])), Err(CatalogError::InvalidName(_))));
}

/// The descendants named by the manifest that the last command requested.
fn told_below(bench: &Bench) -> Vec<String> {
    let told = bench.effects.iter().find_map(|effect| match effect {
        Effect::CommitFlush { below, .. } => Some(below.iter().map(|path| path.to_string())),
        _ => None,
    });
    told.expect("a manifest is asked for").collect()
}
