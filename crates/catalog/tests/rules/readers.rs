//! Declared readers: a prefix is freed when the last of its declared readers has committed.

use crate::common::{Bench, LEASE, file, kv, lease, node};
use honeycomb_catalog::{
    Actor, CatalogError, Command, PlanNode, PrefixInfo, PrefixOptions, PrefixState,
};
use honeycomb_types::limits::{LEASE_MAX_MS, READERS_MAX, READS_MAX};
use honeycomb_types::{JobId, PrefixId, Verbs};

/// A job whose prefixes expire after a week, if they do not end before.
fn job_of(names: &[&str]) -> (Bench, JobId, Vec<PrefixId>) {
    let mut bench = Bench::new();
    bench.join("s1:1", 2, 100);
    let job = bench.job_leased("a", LEASE_MAX_MS);
    let create = |name: &&str| bench.create(job, name, &[], lease(LEASE_MAX_MS)).unwrap();
    let ids = names.iter().map(create).collect();
    (bench, job, ids)
}

fn info(bench: &mut Bench, job: JobId, id: PrefixId) -> Option<PrefixInfo> {
    bench.tree(job).into_iter().find(|info| info.prefix == id)
}

fn left(bench: &mut Bench, job: JobId, id: PrefixId) -> u32 {
    info(bench, job, id).unwrap().readers_left
}

#[test]
fn the_last_reader_to_commit_frees_the_prefix_at_once() {
    let (mut bench, job, ids) = job_of(&["T4", "T6", "T7"]);
    let driver = Actor::driver(job);
    let opened = bench.make(job, file("T4", "out", 3)).unwrap();
    bench.make(job, kv("T4", "", 2)).unwrap();
    let free = bench.status().free;
    assert_eq!(bench.declare(job, "T4", &["T6"]), Ok(1));
    assert_eq!(bench.declare(job, "T4", &["T6", "T7", "T7"]), Ok(2), "adds, each once");
    assert_eq!(left(&mut bench, job, ids[0]), 2);
    // Closing or removing nothing: a reader is done when it commits.
    assert_eq!(bench.commit(Actor::task(job, ids[1]), "T6"), Ok(0));
    assert_eq!(left(&mut bench, job, ids[0]), 1);
    assert!(info(&mut bench, job, ids[1]).unwrap().committed);
    assert_eq!(bench.commit(Actor::task(job, ids[1]), "T6"), Ok(0), "committing is idempotent");
    assert_eq!(bench.commit(Actor::task(job, ids[2]), "T7"), Ok(1));
    let freed = bench.freed();
    assert_eq!(freed.len(), 5, "all of its blocks, in the effects of the commit itself");
    bench.confirm(&freed);
    assert_eq!(bench.status().free, free + 5);
    let cause = CatalogError::PrefixRead { path: "T4".into(), reader: "T7".into(), ago_ms: 0 };
    assert_eq!(bench.left(job, "T4"), Err(cause.clone()));
    let text = cause.to_string();
    assert!(text.contains("'T4' was freed") && text.contains("'T7', had committed"), "{text}");
    let (path, name, reader) = ("T4".into(), "out".into(), "T7".into());
    let cause = CatalogError::StructureRead { path, name, reader, ago_ms: 0 };
    assert_eq!(bench.reopen(job, &opened), Err(cause));
    assert!(matches!(bench.open(driver, "T4", "out"), Err(CatalogError::PrefixRead { .. })));
    assert!(info(&mut bench, job, ids[0]).is_none(), "as with one that was removed");
    assert_eq!(bench.commit(driver, "T7"), Ok(0));
}

#[test]
fn one_commit_frees_all_that_waited_for_it_alone() {
    let (mut bench, job, _) = job_of(&["a", "b", "c", "t", "u"]);
    for path in ["a", "b", "c"] {
        bench.make(job, file(path, "", 1)).unwrap();
        bench.declare(job, path, &["t"]).unwrap();
    }
    bench.declare(job, "b", &["u"]).unwrap();
    assert_eq!(bench.commit(Actor { job: Some(job), ..Actor::CLUSTER }, "t"), Ok(2));
    assert_eq!(bench.freed().len(), 2);
    assert!(bench.left(job, "b").is_ok());
    assert_eq!(bench.commit(Actor::driver(job), "u"), Ok(1));
}

#[test]
fn who_committed_before_it_was_declared_is_done_at_once() {
    let (mut bench, job, ids) = job_of(&["p", "q", "t", "u"]);
    let driver = Actor::driver(job);
    bench.commit(driver, "t").unwrap();
    // Also when the reader has ended since.
    bench.remove(job, "t").unwrap();
    assert_eq!(bench.declare(job, "p", &["t", "u"]), Ok(1));
    bench.commit(driver, "u").unwrap();
    assert!(info(&mut bench, job, ids[0]).is_none());
    bench.make(job, file("q", "", 2)).unwrap();
    assert_eq!(bench.declare(job, "q", &["t", "u"]), Ok(0));
    assert_eq!(bench.freed().len(), 2);
    assert!(matches!(bench.left(job, "q"), Err(CatalogError::PrefixRead { .. })));
}

#[test]
fn a_reader_that_ended_without_committing_leaves_it_to_the_lease() {
    let (mut bench, job, ids) = job_of(&["p", "t", "u"]);
    let driver = Actor::driver(job);
    bench.create(job, "brief", &[], lease(1000)).unwrap();
    bench.declare(job, "p", &["t", "u", "brief"]).unwrap();
    bench.remove(job, "t").unwrap();
    assert!(matches!(bench.commit(driver, "t"), Err(CatalogError::PrefixRemoved { .. })));
    bench.pass(1000);
    assert!(matches!(bench.commit(driver, "brief"), Err(CatalogError::LeaseExpired { .. })));
    assert_eq!(bench.commit(driver, "u"), Ok(0));
    assert_eq!(left(&mut bench, job, ids[0]), 2);
    // The name created again is another prefix, which is not declared.
    let again = bench.create(job, "t", &[], lease(LEASE_MAX_MS)).unwrap();
    assert_eq!(bench.commit(driver, "t"), Ok(0));
    assert!(info(&mut bench, job, again).unwrap().committed);
    assert_eq!(left(&mut bench, job, ids[0]), 2);
    // A declaration in place of the old one waits for it, or finds it done.
    assert_eq!(bench.declare_as(driver, "p", &["t"], true), Ok(0));
    assert!(matches!(bench.left(job, "p"), Err(CatalogError::PrefixRead { .. })));
}

#[test]
fn a_place_taken_again_has_not_committed_and_waits_for_nobody() {
    let (mut bench, job, _) = job_of(&["p", "t"]);
    let driver = Actor::driver(job);
    bench.declare(job, "p", &["t"]).unwrap();
    bench.commit(driver, "t").unwrap();
    bench.remove(job, "t").unwrap();
    for path in ["p", "t"] {
        let id = bench.create(job, path, &[], lease(LEASE_MAX_MS)).unwrap();
        let info = info(&mut bench, job, id).unwrap();
        assert_eq!((info.readers_left, info.committed), (0, false));
    }
    bench.declare(job, "p", &["t"]).unwrap();
    assert_eq!(bench.commit(driver, "t"), Ok(1));
}

#[test]
fn a_reader_may_commit_after_its_own_readers_were_done_with_it() {
    let (mut bench, job, ids) = job_of(&["T4", "T6", "T7"]);
    bench.declare(job, "T4", &["T6"]).unwrap();
    bench.declare(job, "T6", &["T7"]).unwrap();
    let (t6, t7) = (Actor::task(job, ids[1]), Actor::task(job, ids[2]));
    assert_eq!(bench.commit(t7, "T7"), Ok(1), "T6 is freed; T4 waits for T6");
    assert_eq!(left(&mut bench, job, ids[0]), 1);
    assert_eq!(bench.commit(t6, "T6"), Ok(1));
    assert!(info(&mut bench, job, ids[0]).is_none());
}

#[test]
fn a_freed_reader_whose_place_is_taken_again_never_commits() {
    let (mut bench, job, ids) = job_of(&["T4", "T6", "T7"]);
    bench.declare(job, "T4", &["T6"]).unwrap();
    bench.declare(job, "T6", &["T7"]).unwrap();
    bench.commit(Actor::driver(job), "T7").unwrap();
    bench.create(job, "T6", &[], LEASE).unwrap();
    let stale = bench.commit(Actor::task(job, ids[1]), "T6");
    assert!(matches!(stale, Err(CatalogError::PermissionDenied { .. })), "{stale:?}");
    assert_eq!(bench.commit(Actor::driver(job), "T6"), Ok(0));
    assert_eq!(left(&mut bench, job, ids[0]), 1);
}

#[test]
fn pinned_prefixes_never_expire_and_are_freed_by_their_readers() {
    let (mut bench, job, _) = job_of(&["t"]);
    let pinned = PrefixOptions { pinned: true, lease_ms: 1000, ..LEASE };
    let id = bench.create(job, "dictionary", &[], pinned).unwrap();
    bench.declare(job, "dictionary", &["t"]).unwrap();
    bench.pass(LEASE_MAX_MS as u64 - 1);
    // The server has been silent for long.
    bench.join("s2:1", 2, 100);
    bench.make(job, file("dictionary", "", 4)).unwrap();
    let seen = info(&mut bench, job, id).unwrap();
    assert_eq!((seen.state, seen.pinned, seen.remaining_ms), (PrefixState::Live, true, i64::MAX));
    assert_eq!(seen.structures[0].blocks, 4, "what it holds is the job's, as any");
    let status = bench.status();
    assert_eq!((status.prefixes, status.pinned), (3, 1), "and it is counted apart");
    assert_eq!(bench.left(job, "dictionary"), Ok(i64::MAX));
    assert_eq!(bench.commit(Actor::driver(job), "t"), Ok(1));
    assert_eq!(bench.freed().len(), 4);
    assert_eq!(bench.status().pinned, 0);
    assert!(matches!(bench.left(job, "dictionary"), Err(CatalogError::PrefixRead { .. })));
}

#[test]
fn a_declaration_can_be_replaced_and_withdrawn() {
    let (mut bench, job, ids) = job_of(&["p", "t", "u"]);
    let driver = Actor::driver(job);
    bench.declare(job, "p", &["t"]).unwrap();
    assert_eq!(bench.declare_as(driver, "p", &["u"], true), Ok(1));
    assert_eq!(bench.commit(driver, "t"), Ok(0));
    assert_eq!(bench.declare_as(driver, "p", &[], true), Ok(0));
    assert_eq!(bench.commit(driver, "u"), Ok(0));
    assert!(bench.left(job, "p").is_ok());
    assert_eq!(left(&mut bench, job, ids[0]), 0);
    let nobody = bench.declare(job, "p", &[]);
    assert!(matches!(nobody, Err(CatalogError::InvalidArgument { .. })), "{nobody:?}");
}

#[test]
fn readers_that_cannot_be_are_refused_and_nothing_changes() {
    let (mut bench, job, ids) = job_of(&["p", "t", "deep", "gone"]);
    bench.create(job, "deep/T9", &[], LEASE).unwrap();
    bench.remove(job, "gone").unwrap();
    let unknown = |reader: &str, at: &[&str]| {
        let at = at.iter().map(|&path| path.into()).collect();
        CatalogError::UnknownReader { path: "p".into(), reader: reader.into(), at }
    };
    assert_eq!(bench.declare(job, "p", &["t", "nobody"]), Err(unknown("nobody", &[])));
    let bare = unknown("T9", &["deep/T9"]);
    assert!(bare.to_string().contains("('T9' is at deep/T9)"), "{bare}");
    assert_eq!(bench.declare(job, "p", &["T9"]), Err(bare));
    let gone = bench.declare(job, "p", &["t", "gone"]);
    assert!(matches!(gone, Err(CatalogError::PrefixRemoved { .. })), "{gone:?}");
    let missing = bench.declare(job, "nowhere", &["t"]);
    assert!(matches!(missing, Err(CatalogError::PrefixNotFound { .. })), "{missing:?}");
    let missing = bench.commit(Actor::driver(job), "nowhere");
    assert!(matches!(missing, Err(CatalogError::PrefixNotFound { .. })), "{missing:?}");
    assert_eq!(left(&mut bench, job, ids[0]), 0);
}

#[test]
fn a_task_declares_for_its_own_and_commits_itself_alone() {
    let (mut bench, job, ids) = job_of(&["p", "t"]);
    let below = bench.create(job, "p/below", &[], LEASE).unwrap();
    let (p, t) = (Actor::task(job, ids[0]), Actor::task(job, ids[1]));
    let denied = |result: Result<u32, CatalogError>| {
        assert!(matches!(result, Err(CatalogError::PermissionDenied { .. })), "{result:?}");
    };
    assert_eq!(bench.declare_as(p, "p", &["t"], false), Ok(1));
    assert_eq!(bench.declare_as(p, "p/below", &["t"], false), Ok(1));
    denied(bench.declare_as(p, "t", &["p"], false));
    denied(bench.declare_as(Actor::task(job, below), "p", &["t"], false));
    denied(bench.commit(p, "t"));
    denied(bench.commit(p, "p/below"));
    let reading = Actor { verbs: Verbs::READ, ..Actor::driver(job) };
    denied(bench.declare_as(reading, "p", &["t"], false));
    denied(bench.commit(reading, "t"));
    assert_eq!(bench.commit(t, "t"), Ok(2));
}

#[test]
fn a_plan_declares_readers_by_name_and_by_path() {
    let (mut bench, job, _) = job_of(&["sink", "old"]);
    let driver = Actor::driver(job);
    bench.commit(driver, "old").unwrap();
    let reads = |name, readers| PlanNode { readers, ..node(name, &[]) };
    let plan = [
        reads("map", &["reduce", "sink", "reduce"]),
        PlanNode { name: "reduce", ..node("reduce", &["map"]) },
        reads("late", &["old"]),
        reads("self", &["self"]),
    ];
    let ids = bench.plan(job, &plan).unwrap();
    assert_eq!(left(&mut bench, job, ids[0]), 2);
    let late = bench.left(job, "late");
    assert!(matches!(late, Err(CatalogError::PrefixRead { .. })), "all had committed: {late:?}");
    assert_eq!(bench.commit(driver, "map/reduce"), Ok(0));
    assert_eq!(bench.commit(driver, "sink"), Ok(1));
    assert_eq!(bench.commit(driver, "self"), Ok(1), "what only the task itself needs");
    // All or nothing.
    let before = bench.tree(job).len();
    let bad = bench.plan(job, &[node("fine", &[]), reads("bad", &["nobody"])]);
    let reader =
        CatalogError::UnknownReader { path: "bad".into(), reader: "nobody".into(), at: vec![] };
    assert_eq!(bad, Err(reader));
    assert_eq!(bench.tree(job).len(), before);
}

#[test]
fn readers_have_limits_and_cost_nothing_where_nobody_is_declared() {
    let (mut bench, job, ids) = job_of(&["p", "t"]);
    let many = vec!["t"; READERS_MAX + 1];
    let over = |result: Result<u32, CatalogError>| {
        assert!(matches!(result, Err(CatalogError::LimitExceeded { .. })), "{result:?}");
    };
    over(bench.declare(job, "p", &many));
    let empty = bench.catalog.bytes_metadata();
    // As many prefixes as may wait for one reader.
    let names: Vec<String> = (0..=READS_MAX).map(|i| format!("p{i}")).collect();
    let plan = |readers, names| {
        let names: &[String] = names;
        names.iter().map(|name| PlanNode { readers, ..node(name, &[]) }).collect::<Vec<_>>()
    };
    let too_many = bench.plan(job, &plan(&["t"], &names));
    assert!(matches!(too_many, Err(CatalogError::LimitExceeded { .. })), "{too_many:?}");
    bench.plan(job, &plan(&[], &names)).unwrap();
    let without = bench.catalog.bytes_metadata();
    let (last, most) = names.split_last().unwrap();
    let (mut effects, driver) = (Vec::new(), Actor::driver(job));
    for path in most {
        // Bypasses the bench, which checks everything each time.
        let (readers, replace) = (&["t"][..], false);
        let declare = Command::DeclareReaders { actor: driver, job, path, readers, replace };
        bench.catalog.apply(bench.now, declare, &mut effects).unwrap();
    }
    over(bench.declare(job, last, &["t"]));
    assert_eq!(bench.declare(job, most.last().unwrap(), &["t"]), Ok(1), "it is declared already");
    assert_eq!(bench.declare_as(driver, most.last().unwrap(), &["t"], true), Ok(1));
    let with = bench.catalog.bytes_metadata();
    assert!(with >= without + 16 * READS_MAX as u64, "{empty} {without} {with}");
    assert_eq!(bench.commit(Actor::task(job, ids[1]), "t"), Ok(READS_MAX as u32));
    assert_eq!(bench.declare(job, last, &["t"]), Ok(0));
}

#[test]
fn the_end_of_a_job_ends_its_declarations() {
    let (mut bench, job, _) = job_of(&["p", "t"]);
    bench.declare(job, "p", &["t"]).unwrap();
    bench.run(Command::DeregisterJob { actor: Actor::driver(job), job }).unwrap();
    let job = bench.job("a");
    bench.create(job, "p", &[], LEASE).unwrap();
    bench.create(job, "t", &[], LEASE).unwrap();
    assert_eq!(bench.commit(Actor::driver(job), "t"), Ok(0));
    assert!(bench.left(job, "p").is_ok());
}
