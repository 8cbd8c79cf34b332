//! Leases: the reach of a renewal, the end of a prefix, and the errors afterwards (INV-12, 13, 14).

use crate::common::{Bench, LEASE, file, lease, node};
use honeycomb_catalog::{Actor, CatalogError, Command, PrefixState, Reply};
use honeycomb_types::limits::JOB_LINGER;
use honeycomb_types::{PrefixId, Time};
use std::time::Duration;

/// The hierarchy of the paper's Figure 4.
fn figure_4(bench: &mut Bench, job: honeycomb_types::JobId) -> Vec<PrefixId> {
    let plan = [
        node("T9", &["T7"]),
        node("T7", &["T3", "T5", "T6"]),
        node("T8", &["T7"]),
        node("T1", &[]),
        node("T2", &[]),
        node("T3", &[]),
        node("T4", &[]),
        node("T5", &["T1", "T2"]),
        node("T6", &["T4"]),
    ];
    bench.plan(job, &plan).unwrap()
}

#[test]
fn a_renewal_reaches_the_prefix_its_direct_parents_and_all_descendants() {
    let mut bench = Bench::new();
    let job = bench.job("figure 4");
    figure_4(&mut bench, job);
    bench.pass(600);
    assert_eq!(bench.renew(job, &["T4/T6/T7"]), [Ok(crate::common::LEASE_MS)]);
    for (path, left) in [
        ("T3/T7", 1000),
        ("T3", 1000),
        ("T1/T5", 1000),
        ("T4/T6", 1000),
        ("T3/T7/T8", 1000),
        ("T2/T5/T7/T9", 1000),
        ("T1", 400),
        ("T2", 400),
        ("T4", 400),
    ] {
        assert_eq!(bench.left(job, path), Ok(left), "{path}");
    }
    bench.pass(400);
    let live: Vec<_> = ["T1", "T2", "T3", "T4", "T1/T5", "T4/T6", "T3/T7", "T3/T7/T8"]
        .map(|path| bench.left(job, path).is_ok())
        .into();
    assert_eq!(live, [false, false, true, false, true, true, true, true]);
}

#[test]
fn every_path_and_the_dotted_form_reach_a_prefix() {
    let mut bench = Bench::new();
    let job = bench.job("figure 4");
    let t7 = figure_4(&mut bench, job)[1];
    let paths = ["T3/T7", "T1/T5/T7", "T2/T5/T7", "T4/T6/T7", "/T4/T6/T7", "T4.T6.T7", "T3.T7"];
    for path in paths {
        match bench.run(Command::LeaseInfo { actor: Actor::driver(job), job, path }) {
            Ok(Reply::Lease(info)) => assert_eq!(info.prefix, t7, "{path}"),
            other => panic!("{path}: {other:?}"),
        }
    }
    for path in ["T7", "T3/T5", "T7/T3", "T9.T7"] {
        // The paths of a name that is not an address, as far as they fit an error.
        let at: &[&str] = if path == "T7" { &["T3/T7", "T1/T5/T7", "T4/T6/T7"] } else { &[] };
        let at = at.iter().map(|&path| path.into()).collect();
        let missing = CatalogError::PrefixNotFound { path: path.into(), at };
        assert_eq!(bench.left(job, path), Err(missing));
    }
    // A literal name with dots wins over the dotted reading.
    let literal = bench.create(job, "T3.T7", &[], LEASE).unwrap();
    let tree = bench.tree(job);
    assert!(tree.iter().any(|info| info.prefix == literal));
    bench.pass(500);
    bench.renew(job, &["T3.T7"]);
    assert_eq!((bench.left(job, "T3.T7"), bench.left(job, "T3/T7")), (Ok(1000), Ok(500)));
}

#[test]
fn a_bad_path_in_a_batch_fails_alone() {
    let mut bench = Bench::new();
    let job = bench.job("batch");
    bench.create(job, "a", &[], LEASE).unwrap();
    bench.create(job, "short", &[], lease(300)).unwrap();
    bench.create(job, "b", &[], lease(5000)).unwrap();
    bench.pass(400);
    let results = bench.renew(job, &["a", "nowhere", "short", "a//b", "b"]);
    assert_eq!(results[0], Ok(1000));
    assert_eq!(
        results[1],
        Err(CatalogError::PrefixNotFound { path: "nowhere".into(), at: vec![] })
    );
    let path = "short".into();
    let expired =
        CatalogError::LeaseExpired { path, lease_ms: 300, late_ms: 100, ago_ms: 0, reopen: false };
    assert_eq!(results[2], Err(expired));
    assert!(matches!(results[3], Err(CatalogError::InvalidName(_))));
    assert_eq!(results[4], Ok(5000));
    assert_eq!((bench.left(job, "a"), bench.left(job, "b")), (Ok(1000), Ok(5000)));
}

#[test]
fn expiry_says_whose_lease_it_was_how_late_and_how_long_ago() {
    let mut bench = Bench::new();
    let job = bench.job("late");
    bench.join("s1:1", 1, 10);
    bench.create(job, "stage", &[], lease(60_000)).unwrap();
    bench.create(job, "stage/task", &[], lease(300)).unwrap();
    let opened = bench.make(job, file("stage/task", "part-0", 1)).unwrap();
    bench.renew(job, &[""]);
    bench.pass(350);
    assert_eq!(bench.freed().len(), 1);
    bench.pass(20);
    let told = CatalogError::LeaseExpired {
        path: "stage/task".into(),
        lease_ms: 300,
        late_ms: 50,
        ago_ms: 20,
        reopen: false,
    };
    assert_eq!(bench.reopen(job, &opened), Err(told.clone()));
    assert_eq!(bench.open(Actor::driver(job), "stage/task", "part-0"), Err(told.clone()));
    assert_eq!(bench.make(job, file("stage/task", "new", 1)), Err(told.clone()));
    assert_eq!(bench.renew(job, &["stage/task", "stage"])[0], Err(told.clone()));
    assert!(told.to_string().contains("'stage/task'") && told.to_string().contains("50 ms"));
    let info = bench.tree(job).into_iter().find(|info| &*info.name == "task").unwrap();
    assert_eq!((info.state, info.remaining_ms), (PrefixState::Expired, -70));
}

#[test]
fn descendants_of_a_dead_prefix_are_still_renewed_from_above() {
    let mut bench = Bench::new();
    let job = bench.job("chain");
    bench.create(job, "a", &[], LEASE).unwrap();
    bench.create(job, "a/b", &[], LEASE).unwrap();
    bench.create(job, "a/b/c", &[], LEASE).unwrap();
    bench.remove(job, "a/b").unwrap();
    bench.pass(900);
    bench.renew(job, &["a"]);
    bench.pass(900);
    assert_eq!(bench.left(job, "a/b/c"), Ok(100));
    bench.pass(100);
    assert!(matches!(bench.left(job, "a/b/c"), Err(CatalogError::LeaseExpired { .. })));
}

#[test]
fn a_name_is_used_again_by_a_new_prefix_that_keeps_the_children() {
    let mut bench = Bench::new();
    let job = bench.job("again");
    let first = bench.create(job, "a", &[], LEASE).unwrap();
    bench.create(job, "b", &[], LEASE).unwrap();
    let child = bench.create(job, "a/c", &[], lease(5000)).unwrap();
    assert!(matches!(bench.create(job, "a", &[], LEASE), Err(CatalogError::PrefixExists { .. })));
    bench.remove(job, "a").unwrap();
    assert!(matches!(
        bench.create(job, "a/d", &[], LEASE),
        Err(CatalogError::PrefixRemoved { path, .. }) if &*path == "a"
    ));
    let second = bench.create(job, "b/a", &["/"], LEASE).unwrap();
    assert_ne!(first, second);
    let tree = bench.tree(job);
    assert!(tree.iter().all(|info| info.prefix != first));
    let parents = |id| &tree.iter().find(|info| info.prefix == id).unwrap().parents;
    assert_eq!(*parents(child), [second]);
    assert_eq!(parents(second).len(), 2);
    assert!(bench.left(job, "b/a/c").is_ok() && bench.left(job, "a/c").is_ok());
    // The old identity is gone for good.
    bench.pass(900);
    let by_id = |prefix| Command::RenewPrefixById { job, prefix, ago_ms: 0 };
    bench.run(by_id(first)).unwrap();
    assert_eq!(bench.left(job, "a"), Ok(100));
    bench.run(by_id(second)).unwrap();
    assert_eq!(bench.left(job, "a"), Ok(1000));
}

#[test]
fn a_new_prefix_cannot_go_below_the_children_that_it_inherits() {
    let mut bench = Bench::new();
    let job = bench.job("cycle");
    bench.create(job, "a", &[], LEASE).unwrap();
    bench.create(job, "a/b", &[], LEASE).unwrap();
    bench.create(job, "a/b/c", &[], LEASE).unwrap();
    bench.remove(job, "a").unwrap();
    let members = vec!["a".into(), "b".into(), "c".into()];
    let cycle = CatalogError::Cycle { members };
    assert_eq!(bench.create(job, "a", &["a/b/c"], LEASE), Err(cycle.clone()));
    assert!(cycle.to_string().contains("a > b > c > a"));
    let parents = ["/", "z"];
    let plan = [node("z", &["a/b/c"]), node("a", &parents)];
    let members = vec!["a".into(), "b".into(), "c".into(), "z".into()];
    assert_eq!(bench.plan(job, &plan), Err(CatalogError::Cycle { members }));
    assert!(bench.left(job, "a/b/c/z").is_err(), "a refused plan leaves nothing");
}

#[test]
fn an_active_session_renews_its_task_as_of_when_it_was_seen() {
    let mut bench = Bench::new();
    let (job, other) = (bench.job("one"), bench.job("two"));
    let task = bench.create(job, "task", &[], LEASE).unwrap();
    bench.pass(800);
    bench.run(Command::RenewPrefixById { job: other, prefix: task, ago_ms: 0 }).unwrap();
    assert_eq!(bench.left(job, "task"), Ok(200), "another job's report changes nothing");
    bench.run(Command::RenewPrefixById { job, prefix: task, ago_ms: 300 }).unwrap();
    assert_eq!(bench.left(job, "task"), Ok(700));
    bench.run(Command::RenewPrefixById { job, prefix: task, ago_ms: 790 }).unwrap();
    assert_eq!(bench.left(job, "task"), Ok(700), "an older sighting takes nothing away");
    let nobody = Command::RenewPrefixById { job, prefix: PrefixId(77), ago_ms: 0 };
    assert_eq!(bench.run(nobody), Ok(Reply::Done));
}

#[test]
fn pinned_prefixes_stay_and_amnesty_gives_everyone_a_fresh_lease() {
    let mut bench = Bench::new();
    let job = bench.job("pinned");
    let pinned = honeycomb_catalog::PrefixOptions { pinned: true, ..LEASE };
    bench.create(job, "kept", &[], pinned).unwrap();
    bench.create(job, "task", &[], LEASE).unwrap();
    bench.pass(900);
    bench.run(Command::Amnesty).unwrap();
    assert_eq!(bench.left(job, "task"), Ok(1000));
    bench.pass(999);
    assert_eq!(bench.left(job, "task"), Ok(1));
    bench.pass(1);
    assert!(bench.left(job, "task").is_err());
    assert_eq!(bench.left(job, "kept"), Ok(i64::MAX));
    bench.pass(1_000_000);
    assert_eq!(bench.left(job, "kept"), Ok(i64::MAX));
}

/// A controller that was stopped for 900 ms ended leases although renewals waited in its sockets.
#[test]
fn lease_whose_renewal_may_wait_unread_ends_only_once_everything_was_read() {
    let mut bench = Bench::new();
    let job = bench.job("unread");
    bench.create(job, "task", &[], LEASE).unwrap();
    bench.now = bench.now + Duration::from_millis(1500);
    let heard = |ms| Command::TickUntil { heard: Time::from_millis(ms) };
    bench.run(heard(999)).unwrap();
    bench.run(Command::RenewLeases { actor: Actor::driver(job), job, paths: &["task"] }).unwrap();
    bench.run(heard(1500)).unwrap();
    assert_eq!(bench.left(job, "task"), Ok(1000));
    bench.pass(1000);
    assert!(bench.left(job, "task").is_err());
}

#[test]
fn stall_is_added_once_to_every_lease_and_gives_nobody_more_than_a_whole_one() {
    let mut bench = Bench::new();
    let job = bench.job("stalled");
    bench.create(job, "long", &[], LEASE).unwrap();
    let short = honeycomb_catalog::PrefixOptions { lease_ms: 300, ..LEASE };
    bench.create(job, "short", &[], short).unwrap();
    bench.pass(200);
    let stall = |bench: &mut Bench, ms| {
        bench.now = bench.now + Duration::from_millis(ms);
        bench.run(Command::Stalled { length: Duration::from_millis(ms) }).unwrap();
        bench.run(Command::Tick).unwrap();
    };
    stall(&mut bench, 900);
    // Both leases have the time left that they had before the stall, which was three short leases long.
    assert_eq!(bench.left(job, "long"), Ok(800));
    assert_eq!(bench.left(job, "short"), Ok(100));
    bench.pass(50);
    stall(&mut bench, 60);
    assert_eq!((bench.left(job, "long"), bench.left(job, "short")), (Ok(750), Ok(50)));
    // A lease renewed afterwards gains nothing from earlier stalls.
    bench.run(Command::RenewLeases { actor: Actor::driver(job), job, paths: &["short"] }).unwrap();
    assert_eq!(bench.left(job, "short"), Ok(300));
    bench.pass(300);
    assert!(bench.left(job, "short").is_err());
    assert_eq!(bench.left(job, "long"), Ok(450));
}

#[test]
fn a_job_without_a_live_prefix_lingers_and_goes() {
    let mut bench = Bench::new();
    let job = bench.job("brief");
    bench.pass(1000);
    assert!(matches!(bench.left(job, ""), Err(CatalogError::LeaseExpired { .. })));
    bench.pass(JOB_LINGER.as_millis() as u64 - 1);
    assert!(matches!(bench.left(job, ""), Err(CatalogError::LeaseExpired { .. })));
    bench.pass(1);
    // The job has ended, and its handles get the same error for good.
    let ended = bench.left(job, "");
    assert!(matches!(ended, Err(CatalogError::LeaseExpired { reopen: true, .. })), "{ended:?}");
    assert_eq!(bench.catalog.next_deadline(), None);

    let job = bench.job("revived");
    bench.pass(1000);
    let root = bench.create(job, "", &[], LEASE).unwrap();
    assert_eq!(bench.tree(job)[0].prefix, root);
    bench.renew(job, &[""]);
    let again = bench.job("lingering");
    bench.pass(1000);
    let second = bench.job("lingering");
    assert_ne!(again, second, "the name of a job that only lingers is free");
    let told = bench.left(again, "");
    assert!(matches!(told, Err(CatalogError::LeaseExpired { reopen: true, .. })), "{told:?}");
}

#[test]
fn a_tick_with_nothing_due_looks_at_nothing() {
    let mut bench = Bench::new();
    let job = bench.job("many");
    let names: Vec<String> = (0..5000).map(|i| format!("t{i}")).collect();
    for name in &names {
        bench.effects.clear();
        let command = Command::CreatePrefix {
            actor: Actor::driver(job),
            job,
            path: name,
            parents: &[],
            options: lease(10_000),
        };
        bench.catalog.apply(bench.now, command, &mut bench.effects).unwrap();
    }
    bench.renew(job, &[""]);
    bench.pass(900);
    bench.renew(job, &[""]);
    let before = bench.catalog.work();
    bench.pass(50);
    assert_eq!(bench.catalog.work(), before);
    // The root's own timer is the only one due: its own stamp answers without its children.
    bench.pass(60);
    assert_eq!(bench.catalog.work().timers, before.timers + 1);
    assert_eq!(bench.catalog.work().relatives, before.relatives);
    // All due: each is examined once and visits its one ancestor at most.
    bench.pass(5000);
    bench.renew(job, &[""]);
    let before = bench.catalog.work();
    bench.pass(5000);
    let after = bench.catalog.work();
    assert!(after.timers - before.timers <= 5001, "{after:?} {before:?}");
}

#[test]
fn each_ancestor_is_looked_at_once_however_many_ways_lead_to_it() {
    let mut bench = Bench::new();
    let job = bench.job("layers");
    let name = |layer: usize, i: usize| format!("L{layer}.{i}");
    let names: Vec<Vec<String>> =
        (0..8).map(|layer| (0..6).map(|i| name(layer, i)).collect()).collect();
    let parents: Vec<Vec<&str>> =
        names.iter().map(|layer| layer.iter().map(String::as_str).collect()).collect();
    let mut plan = Vec::new();
    for layer in 0..8 {
        let above = if layer == 0 { &[][..] } else { &parents[layer - 1] };
        plan.extend(parents[layer].iter().map(|&name| node(name, above)));
    }
    bench.plan(job, &plan).unwrap();
    let before = bench.catalog.work().relatives;
    let deepest: Vec<&str> = parents.iter().map(|layer| layer[0]).collect();
    assert_eq!(bench.left(job, &deepest.join("/")), Ok(1000));
    assert_eq!(bench.catalog.work().relatives - before, 7 * 6 + 1);
}

#[test]
fn deadlines_are_never_late() {
    let mut bench = Bench::new();
    assert_eq!(bench.catalog.next_deadline(), None);
    let job = bench.job("deadline");
    let first = bench.now + std::time::Duration::from_millis(1000);
    assert_eq!(bench.catalog.next_deadline(), Some(first));
    bench.pass(700);
    bench.renew(job, &[""]);
    assert_eq!(bench.catalog.next_deadline(), Some(first));
    bench.pass(300);
    assert_eq!(bench.catalog.next_deadline(), Some(Time(first.0 + 700_000_000)));
}

#[cfg(feature = "bug-bank")]
#[test]
fn the_planted_early_expiry_shows() {
    honeycomb_types::Bug::arm(Some(honeycomb_types::Bug::EarlyExpiry));
    let mut bench = Bench::new();
    let job = bench.job("planted");
    bench.create(job, "task", &[], LEASE).unwrap();
    bench.pass(600);
    let told = bench.left(job, "task");
    honeycomb_types::Bug::arm(None);
    assert!(matches!(told, Err(CatalogError::LeaseExpired { .. })), "{told:?}");
}
