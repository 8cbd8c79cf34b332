//! Edges deduced from use (paper, 3.1): an open for a task makes the opened prefix a parent of the task's,
//! where that is useful and possible.

use crate::common::{Bench, LEASE, file, lease, node};
use honeycomb_catalog::{
    Actor, CatalogError, Command, EdgeOutcome, NewStructure, PrefixState, Reply,
};
use honeycomb_types::limits::PARENTS_MAX;
use honeycomb_types::{JobId, PrefixId};

/// A job with these prefixes under the root, each of which has a file `f`.
fn job_of(names: &[&str]) -> (Bench, JobId, Vec<PrefixId>) {
    let mut bench = Bench::new();
    bench.join("s1:1", 1, 10_000);
    let job = bench.job("a");
    let ids = names.iter().map(|name| with_file(&mut bench, job, name)).collect();
    (bench, job, ids)
}

fn with_file(bench: &mut Bench, job: JobId, path: &str) -> PrefixId {
    let id = bench.create(job, path, &[], LEASE).unwrap();
    bench.make(job, file(path, "f", 1)).unwrap();
    id
}

/// The driver's token in a session that runs for a task.
fn session(job: JobId, task: PrefixId) -> Actor {
    Actor { session: Some(task), ..Actor::driver(job) }
}

fn edge(bench: &mut Bench, actor: Actor, path: &str) -> EdgeOutcome {
    bench.open(actor, path, "f").unwrap().edge
}

fn parents(bench: &mut Bench, job: JobId, of: PrefixId) -> Vec<PrefixId> {
    bench.tree(job).into_iter().find(|info| info.prefix == of).unwrap().parents
}

#[test]
fn opening_makes_the_prefix_a_parent_that_the_reader_renews() {
    let (mut bench, job, ids) = job_of(&["T4", "T7"]);
    let root = bench.tree(job)[0].prefix;
    let reader = Actor::task(job, ids[1]);
    assert_eq!(edge(&mut bench, reader, "T4"), EdgeOutcome::Added);
    assert_eq!(parents(&mut bench, job, ids[1]), [root, ids[0]]);
    assert_eq!(edge(&mut bench, reader, "T4"), EdgeOutcome::There);
    // For ten leases only the reader's traffic renews anything.
    for _ in 0..20 {
        bench.pass(500);
        bench.run(Command::RenewPrefixById { job, prefix: ids[1], ago_ms: 0 }).unwrap();
        assert_eq!(bench.left(job, "T4"), Ok(1000));
        assert_eq!(bench.left(job, "T4/T7"), Ok(1000), "the edge is an address");
    }
    bench.pass(999);
    assert!(bench.left(job, "T4").is_ok());
    bench.pass(1);
    assert!(matches!(bench.left(job, "T4"), Err(CatalogError::LeaseExpired { .. })));
}

#[test]
fn a_new_edge_is_a_renewal_of_the_reader() {
    let (mut bench, job, ids) = job_of(&["p", "t"]);
    bench.create(job, "t/below", &[], LEASE).unwrap();
    bench.pass(600);
    assert_eq!(edge(&mut bench, session(job, ids[1]), "p"), EdgeOutcome::Added);
    for path in ["p", "t", "t/below"] {
        assert_eq!(bench.left(job, path), Ok(1000), "{path}");
    }
    // Renewals of the source reach the reader and its descendants.
    bench.pass(500);
    bench.renew(job, &["p"]);
    for path in ["p", "t", "t/below"] {
        assert_eq!(bench.left(job, path), Ok(1000), "{path}");
    }
    // An existing edge adds none: only the renewal by the controller counts then.
    bench.pass(500);
    assert_eq!(edge(&mut bench, session(job, ids[1]), "p"), EdgeOutcome::There);
    assert_eq!(bench.left(job, "p"), Ok(500));
}

#[test]
fn creating_opens_what_exists_and_only_then_makes_an_edge() {
    let (mut bench, job, ids) = job_of(&["p", "t"]);
    let actor = session(job, ids[1]);
    let open_existing = true;
    let mut make = |name| {
        let structure = NewStructure { open_existing, ..file("p", name, 1) };
        match bench.run(Command::CreateStructure { actor, job, structure }) {
            Ok(Reply::Opened(opened)) => opened,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(make("new").edge, EdgeOutcome::NotNeeded);
    let there = make("f");
    assert_eq!(there.edge, EdgeOutcome::Added);
    let (actor, structure) = (session(job, ids[1]), there.structure);
    match bench.run(Command::ReopenStructure { actor, job, structure }) {
        Ok(Reply::Opened(opened)) => assert_eq!(opened.edge, EdgeOutcome::NotNeeded),
        other => panic!("{other:?}"),
    }
    // Refreshing for another task adds none either.
    let other = bench.create(job, "other", &[], LEASE).unwrap();
    bench.run(Command::ReopenStructure { actor: session(job, other), job, structure }).unwrap();
    assert_eq!(parents(&mut bench, job, other).len(), 1);
}

#[test]
fn nobody_needs_an_edge_to_itself_to_the_root_or_to_what_is_below() {
    let (mut bench, job, ids) = job_of(&["t"]);
    let root = bench.tree(job)[0].prefix;
    bench.make(job, file("", "f", 1)).unwrap();
    with_file(&mut bench, job, "t/below");
    with_file(&mut bench, job, "t/below/deep");
    let reader = session(job, ids[0]);
    for (actor, path) in [
        (Actor::driver(job), "t"),
        (Actor::CLUSTER, "t"),
        (reader, "t"),
        (reader, ""),
        // The edge would close a cycle; the descendants are renewed from here anyway.
        (reader, "t/below"),
        (reader, "t/below/deep"),
        (session(job, root), "t"),
    ] {
        let actor = Actor { job: Some(job), ..actor };
        assert_eq!(edge(&mut bench, actor, path), EdgeOutcome::NotNeeded, "{path}");
    }
    assert_eq!(parents(&mut bench, job, ids[0]), [root]);
    // The other way round it makes one: only the direct parent is renewed without it.
    let deep = bench.tree(job).last().unwrap().prefix;
    assert_eq!(edge(&mut bench, session(job, deep), "t"), EdgeOutcome::Added);
    assert_eq!(parents(&mut bench, job, deep).last(), Some(&ids[0]));
}

#[test]
fn a_cycle_by_way_of_edges_that_use_made_is_seen() {
    let (mut bench, job, ids) = job_of(&["a", "b", "c"]);
    assert_eq!(edge(&mut bench, session(job, ids[1]), "a"), EdgeOutcome::Added);
    assert_eq!(edge(&mut bench, session(job, ids[2]), "b"), EdgeOutcome::Added);
    assert_eq!(edge(&mut bench, session(job, ids[0]), "c"), EdgeOutcome::NotNeeded);
    assert_eq!(edge(&mut bench, session(job, ids[0]), "b"), EdgeOutcome::NotNeeded);
    assert_eq!(edge(&mut bench, session(job, ids[2]), "a"), EdgeOutcome::Added);
}

#[test]
fn a_name_that_is_taken_leaves_the_lease_to_others() {
    let (mut bench, job, ids) = job_of(&["p", "q", "t"]);
    bench.create(job, "p/t", &[], LEASE).unwrap();
    let reader = session(job, ids[2]);
    assert_eq!(edge(&mut bench, reader, "p"), EdgeOutcome::Impossible);
    assert_eq!(parents(&mut bench, job, ids[2]).len(), 1);
    // A dead prefix keeps its named place.
    bench.remove(job, "p/t").unwrap();
    assert_eq!(edge(&mut bench, reader, "p"), EdgeOutcome::Impossible);
    // A deduced edge of a dead prefix does not occupy the name.
    let other = bench.create(job, "q/t", &[], LEASE).unwrap();
    with_file(&mut bench, job, "src");
    assert_eq!(edge(&mut bench, session(job, other), "src"), EdgeOutcome::Added);
    assert_eq!(edge(&mut bench, reader, "src"), EdgeOutcome::Impossible);
    bench.remove(job, "q/t").unwrap();
    assert_eq!(edge(&mut bench, reader, "src"), EdgeOutcome::Added);
    // The other way round the name is taken too.
    let taken = bench.create(job, "src/t", &[], LEASE);
    assert!(matches!(taken, Err(CatalogError::PrefixExists { .. })), "{taken:?}");
}

#[test]
fn a_session_whose_prefix_is_gone_or_anothers_makes_none() {
    let (mut bench, job, ids) = job_of(&["p", "t"]);
    let foreign = bench.job("b");
    let theirs = bench.create(foreign, "t2", &[], LEASE).unwrap();
    bench.remove(job, "t").unwrap();
    for task in [ids[1], theirs, PrefixId(1 << 40)] {
        assert_eq!(edge(&mut bench, session(job, task), "p"), EdgeOutcome::Impossible);
    }
    // The name created again is another prefix.
    let again = bench.create(job, "t", &[], LEASE).unwrap();
    assert_eq!(edge(&mut bench, session(job, ids[1]), "p"), EdgeOutcome::Impossible);
    assert_eq!(edge(&mut bench, session(job, again), "p"), EdgeOutcome::Added);
}

#[test]
fn a_refused_open_makes_no_edge() {
    let (mut bench, job, ids) = job_of(&["p", "t"]);
    let reader = Actor::task(job, ids[1]);
    let hidden = honeycomb_types::Verbs::NONE;
    let (actor, path) = (Actor::driver(job), "p");
    let owner_verbs = honeycomb_types::Verbs::ALL;
    bench
        .run(Command::SetPermissions { actor, job, path, owner_verbs, job_verbs: hidden })
        .unwrap();
    assert!(matches!(bench.open(reader, "p", "f"), Err(CatalogError::PermissionDenied { .. })));
    assert!(bench.open(session(job, ids[1]), "p", "nothing").is_err());
    assert_eq!(parents(&mut bench, job, ids[1]).len(), 1);
}

#[test]
fn an_edge_that_use_made_gives_no_rights_and_no_place() {
    let (mut bench, job, ids) = job_of(&["p", "t"]);
    bench.create(job, "t/below", &[], LEASE).unwrap();
    assert_eq!(edge(&mut bench, Actor::task(job, ids[1]), "p"), EdgeOutcome::Added);
    let owner = Actor::task(job, ids[0]);
    for path in ["t", "p/t", "p/t/below"] {
        let refused = bench.run(Command::RemovePrefix { actor: owner, job, path });
        assert!(matches!(refused, Err(CatalogError::PermissionDenied { .. })), "{path}");
    }
    // Not even when the reader is dead: a prefix created under its name at the source is at a new index.
    bench.remove(job, "t").unwrap();
    let (path, parents) = ("p/t", &[][..]);
    let create = Command::CreatePrefix { actor: owner, job, path, parents, options: LEASE };
    bench.run(create).unwrap();
    assert!(bench.left(job, "t/below").is_ok());
    let gone = bench.left(job, "p/t/below");
    assert!(matches!(gone, Err(CatalogError::PrefixNotFound { .. })), "{gone:?}");
}

#[test]
fn a_place_that_is_taken_again_has_the_parents_that_are_named_then() {
    let (mut bench, job, ids) = job_of(&["p", "t"]);
    let root = bench.tree(job)[0].prefix;
    edge(&mut bench, session(job, ids[1]), "p");
    bench.remove(job, "t").unwrap();
    let again = bench.create(job, "t", &[], LEASE).unwrap();
    assert_eq!(parents(&mut bench, job, again), [root]);
}

#[test]
fn parents_are_told_as_named_and_then_as_used() {
    let (mut bench, job, ids) = job_of(&["a", "b", "c", "d"]);
    let t = bench.plan(job, &[node("t", &["b", "a"])]).unwrap()[0];
    for path in ["d", "c"] {
        assert_eq!(edge(&mut bench, session(job, t), path), EdgeOutcome::Added);
    }
    assert_eq!(parents(&mut bench, job, t), [ids[1], ids[0], ids[3], ids[2]]);
    bench.remove(job, "b/t").unwrap();
    match bench.left(job, "d/t") {
        Err(CatalogError::PrefixRemoved { path, .. }) => assert_eq!(&*path, "b/t"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_an_edge_granted_stays_when_it_is_gone() {
    let (mut bench, job, ids) = job_of(&["p", "t"]);
    bench.create(job, "t/below", &[], lease(3000)).unwrap();
    edge(&mut bench, session(job, ids[1]), "p");
    bench.pass(800);
    bench.renew(job, &["p"]);
    // The prefix `t` is created again, under the root alone.
    bench.remove(job, "t").unwrap();
    bench.pass(100);
    bench.create(job, "t", &[], LEASE).unwrap();
    assert_eq!(bench.left(job, "t/below"), Ok(3000), "INV-12: renewed with `t` just now");
    assert_eq!(bench.left(job, "p"), Ok(900), "INV-12: as it was renewed itself");
}

#[test]
fn a_reader_with_all_the_parents_it_can_have_lets_go_of_dead_ones_only() {
    let (mut bench, job, ids) = job_of(&["t"]);
    let reader = session(job, ids[0]);
    let options = lease(600_000_000);
    let plan: Vec<String> = (0..PARENTS_MAX).map(|i| format!("p{i}")).collect();
    bench.renew(job, &[""]);
    let catalog = &mut bench.catalog;
    let mut effects = Vec::new();
    // Bypasses the bench: its check of everything after each of so many commands takes too long.
    let mut run = |command: Command<'_>| catalog.apply(bench.now, command, &mut effects).unwrap();
    for path in &plan {
        let actor = Actor::driver(job);
        run(Command::CreatePrefix { actor, job, path, parents: &[], options });
        run(Command::CreateStructure { actor, job, structure: file(path, "f", 1) });
    }
    let mut open = |path: &str| {
        let name = "f";
        match run(Command::OpenStructure { actor: reader, job, path, name }) {
            Reply::Opened(opened) => opened.edge,
            other => panic!("{other:?}"),
        }
    };
    let (last, others) = plan.split_last().unwrap();
    // One is the root.
    assert!(others.iter().all(|path| open(path) == EdgeOutcome::Added));
    assert_eq!(open(last), EdgeOutcome::Impossible);
    for dead in ["p0", "p7", "p4000"] {
        bench.remove(job, dead).unwrap();
    }
    assert_eq!(edge(&mut bench, reader, last), EdgeOutcome::Added);
    let tree = bench.tree(job);
    let own = tree.iter().find(|info| info.prefix == ids[0]).unwrap();
    assert_eq!(own.parents.len(), PARENTS_MAX - 2);
    let seen = |id: &PrefixId| tree.iter().find(|info| info.prefix == *id).unwrap().state;
    assert!(own.parents.iter().all(|id| seen(id) == PrefixState::Live));
    assert_eq!(own.parents.last(), tree.iter().find(|i| *i.name == **last).map(|i| &i.prefix));
}

#[test]
fn looking_for_a_cycle_costs_what_the_nearer_end_has_and_never_more_than_its_limit() {
    let (mut bench, job, ids) = job_of(&["wide", "leaf", "t"]);
    let cost = |bench: &mut Bench, actor, path: &str, outcome| {
        let before = bench.catalog.work().relatives;
        assert_eq!(edge(bench, actor, path), outcome, "{path}");
        bench.catalog.work().relatives - before
    };
    // A leaf is no ancestor of any prefix: the search ends at once.
    let free = cost(&mut bench, session(job, ids[1]), "t", EdgeOutcome::Added);
    assert_eq!(free, 0);
    // Few descendants of the reader, many ancestors of the source: layers in which each reads from all of the
    // one before.
    let layers: Vec<Vec<String>> =
        (0..5).map(|l| (0..60).map(|i| format!("l{l}-{i}")).collect()).collect();
    let mut nodes = vec![];
    let parents: Vec<Vec<&str>> =
        layers.iter().map(|layer| layer.iter().map(String::as_str).collect()).collect();
    for (l, layer) in layers.iter().enumerate() {
        let above: &[&str] = if l == 0 { &[] } else { &parents[l - 1] };
        nodes.extend(layer.iter().map(|name| node(name, above)));
    }
    bench.plan(job, &nodes).unwrap();
    let bottom = "l0-0/l1-0/l2-0/l3-0/l4-0";
    bench.make(job, file(bottom, "f", 1)).unwrap();
    let few = cost(&mut bench, session(job, ids[2]), bottom, EdgeOutcome::Added);
    assert!(few <= 6, "{few} visited: the reader has one descendant");
    // Many on both sides.
    let children: Vec<String> = (0..20_000).map(|i| format!("c{i}")).collect();
    let below: Vec<_> = children.iter().map(|name| node(name, &["wide"])).collect();
    bench.plan(job, &below).unwrap();
    let most = cost(&mut bench, session(job, ids[0]), bottom, EdgeOutcome::Impossible);
    assert_eq!(most, 16_384);
}
