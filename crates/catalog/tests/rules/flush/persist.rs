//! Prefixes that outlive their job: every end except their removal flushes them.

use super::{Hands, TO_OUT, WRITTEN, asked, bench, committed, manifest, wrote};
use crate::common::{Bench, LEASE, file, kv};
use honeycomb_catalog::{
    Actor, CatalogError, Command, FlushProgress, FlushState, PlanNode, PrefixOptions, Reply,
};
use honeycomb_types::{BlockAt, JobId, ServerId};

const PERSIST: PrefixOptions<'static> =
    PrefixOptions { persist: true, lease_ms: 60_000, flush_to: "", ..LEASE };

/// A persistent prefix with a file of one block.
fn persisted(bench: &mut Bench, job: JobId, path: &str, options: PrefixOptions<'_>) -> BlockAt {
    bench.create(job, path, &[], options).unwrap();
    bench.make(job, file(path, "f", 1)).unwrap().map.entries[0].at
}

fn deregister(bench: &mut Bench, job: JobId) {
    bench.run(Command::DeregisterJob { actor: Actor::driver(job), job }).unwrap();
}

fn locate(
    bench: &mut Bench,
    job: JobId,
    place: &str,
) -> Result<(String, FlushProgress), CatalogError> {
    match bench.run(Command::LocateFlush { actor: Actor::driver(job), job, place, path: "" })? {
        Reply::FlushPlace { place, progress, .. } => Ok((place.into(), progress)),
        other => panic!("{other:?}"),
    }
}

/// Writes the part, and the manifest.
fn finish(bench: &mut Bench, server: ServerId, at: BlockAt, directory: &str) {
    wrote(bench, at, Ok(WRITTEN));
    let (_, number, place, _) = manifest(bench).unwrap();
    assert_eq!(place, directory);
    committed(bench, server, number, Ok(()));
}

#[test]
fn the_end_of_the_job_flushes_what_outlives_it_and_frees_the_rest() {
    let (mut bench, server, job) = bench();
    let at = persisted(&mut bench, job, "t", PERSIST);
    bench.create(job, "t/below", &[], PERSIST).unwrap();
    let below = bench.make(job, kv("t/below", "", 1)).unwrap().map.entries[0].at;
    // A prefix with `flush_to` only is not flushed at the end of its job.
    bench.create(job, "plain", &[], TO_OUT).unwrap();
    let plain = bench.make(job, file("plain", "", 1)).unwrap().map.entries[0].at;
    let free = bench.status().free;
    deregister(&mut bench, job);
    assert_eq!(bench.freed(), [plain]);
    let mut parts = asked(&bench);
    parts.sort_by_key(|(_, object)| object.contains("/below/"));
    assert_eq!(parts.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [at, below]);
    assert!(parts[0].1.starts_with("job/t/"), "{parts:?}");
    assert!(parts[1].1.starts_with("job/t/below/"), "{parts:?}");
    assert_eq!(bench.status().flushing, 2);

    // The controller is restarted: the flushes continue without their job.
    bench.restart();
    let held = [(at, honeycomb_types::StructureId(1)), (below, honeycomb_types::StructureId(2))];
    bench.back(server, &held);
    assert_eq!(asked(&bench).len(), 2);
    finish(&mut bench, server, at, "job/t");
    finish(&mut bench, server, below, "job/t/below");
    let confirmed = [at, below, plain];
    bench.confirm(&confirmed);
    assert!(bench.status().free > free);
    assert_eq!((bench.status().flushed, bench.status().quarantined), (2, 0));
}

#[test]
fn its_lease_and_its_last_reader_flush_it_and_its_removal_does_not() {
    let (mut bench, server, job) = bench();
    let mut hands = Hands::default();
    let at = persisted(&mut bench, job, "t", PrefixOptions { lease_ms: 1000, ..PERSIST });
    hands.work(&mut bench);
    bench.pass(1000);
    assert_eq!(asked(&bench).len(), 1);
    finish(&mut bench, server, at, "job/t");

    let at = persisted(&mut bench, job, "r", PERSIST);
    bench.create(job, "reader", &[], LEASE).unwrap();
    bench.declare(job, "r", &["reader"]).unwrap();
    assert_eq!(bench.commit(Actor::driver(job), "reader"), Ok(1));
    assert_eq!(asked(&bench).len(), 1);
    finish(&mut bench, server, at, "job/r");
    // A late caller gets the same error as always.
    let late = bench.open(Actor::driver(job), "r", "f").unwrap_err();
    assert!(matches!(late, CatalogError::PrefixRead { .. }), "{late:?}");

    let at = persisted(&mut bench, job, "gone", PERSIST);
    bench.remove(job, "gone").unwrap();
    assert_eq!((asked(&bench), bench.freed()), (vec![], vec![at]));
    // A prefix with `flush_to` only is not flushed when its last reader has committed.
    bench.create(job, "out", &[], TO_OUT).unwrap();
    let at = bench.make(job, file("out", "", 1)).unwrap().map.entries[0].at;
    bench.declare(job, "out", &["reader"]).unwrap();
    assert_eq!((asked(&bench), bench.freed()), (vec![], vec![at]));
}

#[test]
fn what_was_not_loaded_whole_takes_no_earlier_ones_place() {
    let (mut bench, _, job) = bench();
    let loading = PrefixOptions { loading: true, lease_ms: 1000, ..PERSIST };
    let at = persisted(&mut bench, job, "t", loading);
    bench.pass(1000);
    assert_eq!((asked(&bench), bench.freed()), (vec![], vec![at]));
    bench.confirm(&[at]);
    let at = persisted(&mut bench, job, "u", loading);
    deregister(&mut bench, job);
    assert_eq!((asked(&bench), bench.freed()), (vec![], vec![at]));
}

#[test]
fn a_later_job_of_the_name_is_told_where_it_is_and_what_is_under_way_there() {
    let (mut bench, server, job) = bench();
    let at = persisted(&mut bench, job, "t", PERSIST);
    let nothing = locate(&mut bench, job, "t").unwrap();
    assert_eq!(nothing.1, FlushProgress::default());
    assert!(nothing.0.ends_with("/job/t"), "{}", nothing.0);
    deregister(&mut bench, job);
    let later = bench.job("job");
    let other = bench.job("other");
    let progress = locate(&mut bench, later, "t").unwrap().1;
    assert_eq!((progress.state, progress.parts, progress.done), (FlushState::Writing, 1, 0));
    assert_eq!(locate(&mut bench, other, "t").unwrap().1.state, FlushState::None);
    assert!(matches!(locate(&mut bench, job, "t"), Err(CatalogError::UnknownJob { .. })));
    wrote(&mut bench, at, Err("disk full"));
    let failing = FlushState::Failing("disk full".into());
    assert_eq!(locate(&mut bench, later, &nothing.0).unwrap().1.state, failing);
    finish(&mut bench, server, at, "job/t");
    assert_eq!(locate(&mut bench, later, "t").unwrap().1.state, FlushState::None);

    // Lost with its server: the existing flush is older, until another one is complete.
    persisted(&mut bench, later, "t", PERSIST);
    deregister(&mut bench, later);
    bench.run(Command::ServerLost { server }).unwrap();
    let server = bench.join_as("s2:1", 1, 20, true);
    let third = bench.job("job");
    assert!(matches!(locate(&mut bench, third, "t").unwrap().1.state, FlushState::Lost(_)));
    let at = persisted(&mut bench, third, "t", PERSIST);
    deregister(&mut bench, third);
    finish(&mut bench, server, at, "job/t");
    let fourth = bench.job("job");
    assert_eq!(locate(&mut bench, fourth, "t").unwrap().1.state, FlushState::None);
}

#[test]
fn its_own_path_is_the_place_unless_another_is_said() {
    let (mut bench, _, job) = bench();
    let told = |bench: &mut Bench, name: &str| {
        let tree = bench.tree(job);
        let info = tree.into_iter().find(|info| *info.name == *name).unwrap();
        (info.persist, info.flush_to.to_string())
    };
    bench.create(job, "/a", &[], PERSIST).unwrap();
    bench.create(job, "a/b", &[], PrefixOptions { flush_to: "else/where", ..PERSIST }).unwrap();
    let node = |name, parents, options| PlanNode { name, parents, options, readers: &[] };
    let plan = [
        node("deep", &["mid"][..], PERSIST),
        node("mid", &["/a/b", "top"][..], LEASE),
        node("top", &[][..], PERSIST),
    ];
    bench.plan(job, &plan).unwrap();
    assert_eq!(told(&mut bench, "a"), (true, "a".into()));
    assert_eq!(told(&mut bench, "b"), (true, "else/where".into()));
    assert_eq!(told(&mut bench, "deep"), (true, "a/b/mid/deep".into()));
    assert_eq!(told(&mut bench, "mid"), (false, "".into()));
    assert_eq!(told(&mut bench, "top"), (true, "top".into()));
    // A cycle is reported as always.
    let cycle = [node("x", &["y"][..], PERSIST), node("y", &["x"][..], PERSIST)];
    assert!(matches!(bench.plan(job, &cycle), Err(CatalogError::Cycle { .. })));
    // Two of them, or one and another prefix, do not share a place.
    let taken = CatalogError::FlushPathTaken { path: "a".into() };
    let same = PrefixOptions { flush_to: "a", ..LEASE };
    assert_eq!(bench.create(job, "c", &[], same), Err(taken.clone()));
    // A prefix that is made twice is reported as existing, not its place as taken.
    let exists = CatalogError::PrefixExists { path: "a".into() };
    assert_eq!(bench.create(job, "a", &[], PERSIST), Err(exists.clone()));
    assert_eq!(bench.create(job, "/a", &[], same), Err(exists.clone()));
    assert_eq!(bench.plan(job, &[node("a", &[][..], PERSIST)]), Err(exists));
    assert_eq!(bench.plan(job, &[node("c", &[][..], same)]), Err(taken));
    bench.remove(job, "").unwrap();
    let root = Command::CreatePrefix {
        actor: Actor::driver(job),
        job,
        path: "",
        parents: &[],
        options: PERSIST,
    };
    assert_eq!(bench.run(root), Err(CatalogError::PersistsNowhere));

    bench.join("s2:1", 1, 4);
    let refused = bench.create(job, "w", &[], PERSIST).unwrap_err();
    assert_eq!(refused, CatalogError::FlushUnavailable { path: "w".into() });
}
