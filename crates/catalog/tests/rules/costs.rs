//! The cost of single commands in large hierarchies: a search for rights or cycles visits each edge of its
//! job once at most, however many paths and parents the command has (INV-57).

use crate::common::{Bench, LEASE, file, lease, node};
use honeycomb_catalog::{
    Actor, CatalogError, Command, EdgeOutcome, PlanNode, PrefixOptions, QuotaChange, QuotaOf, Reply,
};
use honeycomb_types::limits::{
    CARRIED_EDGES_MAX, EDGES_PER_JOB_MAX, LEASE_EDGES_MAX, PARENTS_MAX, PLAN_EDGES_MAX,
};
use honeycomb_types::{JobId, PrefixId};
use std::time::Duration;

const LAYERS: usize = 6;
const WIDTH: usize = 40;
/// Layers with more edges than a command or a tick may follow for one purpose.
const DEEP: usize = 6;
const WIDE: usize = 256;
/// Edges of the layers: those of the first lead to the root.
const EDGES: u64 = (WIDTH + (LAYERS - 1) * WIDTH * WIDTH) as u64;

/// Layers of prefixes, each of which reads from all of the layer before.
struct Layers {
    bench: Bench,
    job: JobId,
    ids: Vec<PrefixId>,
    /// Paths of the last layer.
    last: Vec<String>,
}

fn name(layer: usize, i: usize) -> String {
    format!("l{layer}-{i}")
}

fn names(layers: usize, width: usize) -> Vec<Vec<String>> {
    (0..layers).map(|layer| (0..width).map(|i| name(layer, i)).collect()).collect()
}

fn parents(names: &[Vec<String>]) -> Vec<Vec<&str>> {
    names.iter().map(|layer| layer.iter().map(String::as_str).collect()).collect()
}

/// Nodes of layers, of which the first is below `top`.
fn layered<'a>(layers: &'a [Vec<&'a str>], top: &'a [&'a str]) -> Vec<PlanNode<'a>> {
    let above = [top].into_iter().chain(layers.iter().map(Vec::as_slice));
    let nodes = layers.iter().zip(above);
    nodes.flat_map(|(layer, above)| layer.iter().map(move |name| node(name, above))).collect()
}

impl Layers {
    /// Layers below a prefix, or below the root.
    fn below(top: &[&str]) -> Layers {
        let mut bench = Bench::new();
        bench.join("s1:1", 1, 10_000);
        let job = bench.job("layers");
        for top in top {
            bench.create(job, top, &[], LEASE).unwrap();
        }
        let names = names(LAYERS, WIDTH);
        let parents = parents(&names);
        let nodes = layered(&parents, top);
        let ids = bench.plan(job, &nodes).unwrap();
        let way = top.iter().map(|top| (*top).to_owned());
        let way = way.chain((0..LAYERS - 1).map(|layer| name(layer, 0)));
        let way = way.collect::<Vec<_>>().join("/");
        let last = (0..WIDTH).map(|i| format!("{way}/{}", name(LAYERS - 1, i))).collect();
        Layers { bench, job, ids, last }
    }

    /// Ticks until nothing is due; returns the number of ticks, and the most edges that one followed.
    fn tick(&mut self) -> (usize, u64) {
        let (mut ticks, mut most) = (0, 0);
        while self.bench.catalog.next_deadline().is_some_and(|due| due <= self.bench.now) {
            let (reply, cost) = self.cost(Command::Tick);
            reply.unwrap();
            (ticks, most) = (ticks + 1, most.max(cost));
            assert!(ticks < 1000, "a tick without progress");
        }
        (ticks, most)
    }

    /// Runs a command; returns its reply, and the edges that it followed.
    fn cost(&mut self, command: Command<'_>) -> (Result<Reply, CatalogError>, u64) {
        let before = self.bench.catalog.work().edges;
        let reply = self.bench.run(command);
        (reply, self.bench.catalog.work().edges - before)
    }

    fn renew(&mut self, actor: Actor, paths: &[&str]) -> (Vec<bool>, u64) {
        let job = self.job;
        match self.cost(Command::RenewLeases { actor, job, paths }) {
            (Ok(Reply::Renewed(results)), cost) => {
                (results.iter().map(Result::is_ok).collect(), cost)
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn rights_to_many_paths_are_found_in_one_search() {
    let mut layers = Layers::below(&[]);
    let aside = layers.bench.create(layers.job, "aside", &[], LEASE).unwrap();
    let last = layers.last.clone();
    let paths: Vec<&str> = last.iter().map(String::as_str).collect();
    let stranger = Actor::task(layers.job, aside);
    let (renewed, cost) = layers.renew(stranger, &paths);
    assert_eq!(renewed, [false; WIDTH]);
    assert!(cost <= EDGES, "{cost} edges of {EDGES}");
    let (renewed, again) = layers.renew(stranger, &paths);
    assert_eq!((renewed, again), (vec![false; WIDTH], 0), "no edge has changed");
    let owner = Actor::task(layers.job, layers.ids[WIDTH - 1]);
    let (renewed, cost) = layers.renew(owner, &paths);
    assert_eq!(renewed, [true; WIDTH]);
    assert!(cost <= EDGES, "{cost} edges of {EDGES}");
    // Every change of an edge counts.
    layers.bench.create(layers.job, "aside/below", &[], LEASE).unwrap();
    assert_eq!(layers.renew(stranger, &["aside/below", paths[0]]).0, [true, false]);
    assert_eq!(layers.renew(owner, &["aside/below", paths[0]]).0, [false, true]);
    layers.bench.remove(layers.job, "aside/below").unwrap();
    layers.bench.create(layers.job, "aside/below", &[paths[3]], LEASE).unwrap();
    assert_eq!(layers.renew(owner, &["aside/below"]).0, [true]);
    assert_eq!(layers.renew(stranger, &["aside/below"]).0, [true]);
    // An edge that use made gives no rights.
    layers.bench.make(layers.job, file("aside", "f", 1)).unwrap();
    let reader = layers.ids[LAYERS * WIDTH - 1];
    let opened = layers.bench.open(Actor::task(layers.job, reader), "aside", "f").unwrap();
    assert_eq!(opened.edge, EdgeOutcome::Added);
    assert_eq!(layers.renew(stranger, &[paths[WIDTH - 1]]).0, [false]);
}

#[test]
fn cycles_by_many_parents_are_found_in_one_search() {
    let mut layers = Layers::below(&["top"]);
    let job = layers.job;
    for path in ["dead", "dead/child"] {
        layers.bench.create(job, path, &[], LEASE).unwrap();
    }
    layers.bench.remove(job, "dead").unwrap();
    let last = layers.last.clone();
    let parents: Vec<&str> = last.iter().map(String::as_str).collect();
    let actor = Actor::driver(job);
    let create =
        |path| Command::CreatePrefix { actor, job, path, parents: &parents, options: LEASE };
    let (made, cost) = layers.cost(create("dead"));
    assert!(made.is_ok(), "{made:?}");
    assert!(cost <= EDGES + 2 * WIDTH as u64, "{cost} edges of {EDGES}");
    layers.bench.remove(job, "top").unwrap();
    let (refused, _) = layers.cost(create("top"));
    let Err(CatalogError::Cycle { members }) = refused else { panic!("{refused:?}") };
    assert_eq!(members.len(), LAYERS + 1);
    let names: Vec<&str> = members.iter().map(|name| &**name).collect();
    assert_eq!(names[0], "top");
    let layer = |name: &str| name[1..name.find('-').unwrap()].parse::<usize>().unwrap();
    assert!(names[1..].iter().map(|name| layer(name)).eq(0..LAYERS), "{names:?}");
}

#[test]
fn cycles_of_a_plan_that_replaces_many_prefixes_are_found_in_one_search() {
    let mut layers = Layers::below(&["top"]);
    let job = layers.job;
    let dead: Vec<String> = (0..WIDTH).map(|i| format!("dead-{i}")).collect();
    let children: Vec<String> = dead.iter().map(|dead| format!("child-of-{dead}")).collect();
    let above: Vec<[&str; 1]> = dead.iter().map(|dead| [dead.as_str()]).collect();
    let mut nodes: Vec<PlanNode<'_>> = dead.iter().map(|dead| node(dead, &[])).collect();
    nodes.extend(children.iter().zip(&above).map(|(name, parents)| node(name, parents)));
    layers.bench.plan(job, &nodes).unwrap();
    for dead in &dead {
        layers.bench.remove(job, dead).unwrap();
    }
    let last = layers.last.clone();
    let parents: Vec<&str> = [""].into_iter().chain(last.iter().map(String::as_str)).collect();
    let nodes: Vec<PlanNode<'_>> = dead.iter().map(|name| node(name, &parents)).collect();
    let plan_edges = (WIDTH * parents.len()) as u64;
    let actor = Actor::driver(job);
    let (made, cost) = layers.cost(Command::CreateHierarchy { actor, job, nodes: &nodes });
    assert!(made.is_ok(), "{made:?}");
    assert!(cost <= EDGES + 2 * plan_edges, "{cost} edges of {EDGES} and {plan_edges}");
    // One of the replaced prefixes is above the others, and would be below them.
    layers.bench.remove(job, "top").unwrap();
    layers.bench.remove(job, "dead-0").unwrap();
    let nodes = [node("dead-0", &parents), node("top", &["", "dead-0/child-of-dead-0"])];
    let (refused, _) = layers.cost(Command::CreateHierarchy { actor, job, nodes: &nodes });
    let Err(CatalogError::Cycle { members }) = refused else { panic!("{refused:?}") };
    let has = |name: &str| members.iter().any(|member| &**member == name);
    assert!(has("top") && has("dead-0") && has("child-of-dead-0"), "{members:?}");
    assert_eq!(members.len(), LAYERS + 3);
}

#[test]
fn cycle_within_a_long_plan_is_named_by_its_members() {
    let mut bench = Bench::new();
    let job = bench.job("circle");
    let names: Vec<String> = (0..20_000).map(|i| format!("n{i}")).collect();
    let parents: Vec<[&str; 1]> =
        (0..names.len()).map(|i| [&*names[(i + 1) % names.len()]]).collect();
    let nodes: Vec<PlanNode<'_>> =
        names.iter().zip(&parents).map(|(name, parents)| node(name, parents)).collect();
    match bench.plan(job, &nodes) {
        Err(CatalogError::Cycle { members }) => assert_eq!(members.len(), names.len()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn remaining_time_is_a_lower_bound_in_a_large_hierarchy() {
    const { assert!(EDGES > LEASE_EDGES_MAX) };
    let mut layers = Layers::below(&[]);
    let (job, last) = (layers.job, layers.last[0].clone());
    // A parent that the search reaches last: one of the last parent.
    layers.bench.create(job, "late", &[], LEASE).unwrap();
    layers.bench.make(job, file("late", "f", 1)).unwrap();
    let reader = Actor::task(job, layers.ids[(LAYERS - 1) * WIDTH - 1]);
    let opened = layers.bench.open(reader, "late", "f").unwrap();
    assert_eq!(opened.edge, EdgeOutcome::Added);
    layers.bench.pass(400);
    layers.bench.renew(job, &["late"]);
    let info = |path| Command::LeaseInfo { actor: Actor::driver(job), job, path };
    let (told, cost) = layers.cost(info(&last));
    let Ok(Reply::Lease(told)) = told else { panic!("{told:?}") };
    assert_eq!((told.remaining_ms, cost), (600, LEASE_EDGES_MAX));
    // The lease itself is exact.
    let above = last.rsplit('/').skip(2).collect::<Vec<_>>();
    let above = above.into_iter().rev().collect::<Vec<_>>().join("/");
    for (ms, lives) in [(999, true), (1, false)] {
        layers.bench.now = layers.bench.now + Duration::from_millis(ms);
        layers.tick();
        assert_eq!(layers.bench.left(job, &last).is_ok(), lives);
        assert!(layers.bench.left(job, &above).is_err(), "only the descendants were renewed");
    }

    let mut bench = Bench::new();
    let job = bench.job("wide");
    let names: Vec<String> = (0..LEASE_EDGES_MAX + 1).map(|i| format!("t{i}")).collect();
    let nodes: Vec<PlanNode<'_>> = names.iter().map(|name| node(name, &[])).collect();
    bench.plan(job, &nodes).unwrap();
    bench.pass(400);
    // Children are visited from the newest on.
    bench.renew(job, &["t0"]);
    assert_eq!(bench.left(job, ""), Ok(600));
    bench.renew(job, &["t1"]);
    assert_eq!(bench.left(job, ""), Ok(1000));
    bench.pass(999);
    assert!(bench.left(job, "").is_ok());
}

#[test]
fn prefixes_that_are_due_in_one_tick_search_their_ancestors_together() {
    let mut layers = Layers::below(&[]);
    let job = layers.job;
    layers.bench.now = layers.bench.now + Duration::from_millis(1000);
    let (ticks, most) = layers.tick();
    // Each prefix follows its edges to children and to parents, and a few more. All edges are visited once.
    let near = (8 * LAYERS * WIDTH) as u64;
    assert!(most <= 3 * EDGES + near, "{most} edges of {EDGES}");
    assert_eq!(ticks, 1);
    assert!(layers.bench.renew(job, &[""])[0].is_err(), "all have ended");
}

#[test]
fn quota_of_a_prefix_counts_the_blocks_below_it() {
    let mut layers = Layers::below(&["top"]);
    let (job, last) = (layers.job, layers.last.clone());
    for path in &last {
        layers.bench.make(job, file(path, "f", 1)).unwrap();
    }
    let actor = Actor::driver(job);
    for most in [100, 0, 7] {
        let (of, change) = (QuotaOf::Prefix(job, "top"), QuotaChange::most(most));
        let (told, cost) = layers.cost(Command::SetQuota { actor, of, change });
        let Ok(Reply::Quota { held, .. }) = told else { panic!("{told:?}") };
        assert_eq!(held, if most == 0 { 0 } else { WIDTH as u64 });
        assert_eq!(cost, 0, "the lines of prefixes are followed, and no search");
    }
}

#[test]
fn plan_sets_the_quotas_of_prefixes_that_exist_and_of_their_line() {
    let mut bench = Bench::new();
    bench.join("s1:1", 1, 1000);
    let job = bench.job("quotas");
    for path in ["a", "a/b", "a/b/c", "a/b/c/d"] {
        bench.create(job, path, &[], LEASE).unwrap();
        bench.make(job, file(path, "f", 2)).unwrap();
    }
    bench.remove(job, "a").unwrap();
    bench.remove(job, "a/b/c").unwrap();
    let bounded = |name, parents, max_blocks| PlanNode {
        options: PrefixOptions { max_blocks, ..LEASE },
        ..node(name, parents)
    };
    let nodes = [bounded("a", &[""], 9), bounded("c", &["a/b"], 3), bounded("new", &["c"], 1)];
    bench.plan(job, &nodes).unwrap();
    let mut held = |path| match bench
        .run(Command::Quota { actor: Actor::driver(job), of: QuotaOf::Prefix(job, path) })
    {
        Ok(Reply::Quota { held, .. }) => held,
        other => panic!("{other:?}"),
    };
    assert_eq!(["a", "a/b/c", "a/b/c/new"].map(&mut held), [4, 2, 0]);
    bench.make(job, file("a/b/c", "g", 1)).unwrap();
    let refused = bench.make(job, file("a/b/c/d", "g", 1));
    assert!(matches!(refused, Err(CatalogError::QuotaExceeded { .. })), "{refused:?}");
}

/// When a dead prefix loses its places to one of its name, its edges are followed once for all of them, and
/// renewals that its parents had granted its children stay granted.
#[test]
fn places_of_a_dead_prefix_are_taken_in_one_walk() {
    let mut layers = Layers::below(&[]);
    let (job, last) = (layers.job, layers.last.clone());
    let parents: Vec<&str> = last.iter().map(String::as_str).collect();
    let first = format!("{}/x", parents[0]);
    layers.bench.create(job, &first, &parents[1..], LEASE).unwrap();
    layers.bench.create(job, &format!("{first}/child"), &[], lease(2000)).unwrap();
    layers.bench.remove(job, &first).unwrap();
    // Another dead prefix of this name has the first place.
    for _ in 0..2 {
        layers.bench.create(job, "x", &[], LEASE).unwrap();
        layers.bench.remove(job, "x").unwrap();
    }
    layers.bench.pass(500);
    layers.bench.renew(job, &[""]);
    let (actor, options) = (Actor::driver(job), LEASE);
    let (made, cost) =
        layers.cost(Command::CreatePrefix { actor, job, path: "x", parents: &parents, options });
    assert!(made.is_ok(), "{made:?}");
    assert!(cost <= EDGES + 3 * WIDTH as u64, "{cost} edges of {EDGES}");
    let tree = layers.bench.tree(job);
    let child = tree.iter().find(|info| &*info.name == "child").unwrap();
    assert_eq!(child.remaining_ms, 2000, "it was renewed through the parents that are lost");
}

/// When a command has followed many edges to keep what ancestors granted, the rest counts as renewed now: no
/// lease ends early, and the command ends.
#[test]
fn descendants_of_a_dead_prefix_are_renewed_when_its_ancestors_are_too_many() {
    let mut bench = Bench::new();
    let job = bench.job("dense");
    let names = names(DEEP, WIDE);
    let parents = parents(&names);
    let nodes = layered(&parents, &[]);
    let (actor, options) = (Actor::driver(job), lease(2000));
    let mut apply = |now, command: Command<'_>| {
        bench.effects.clear();
        bench.catalog.apply(now, command, &mut bench.effects).unwrap()
    };
    let now = bench.now;
    apply(now, Command::CreateHierarchy { actor, job, nodes: &nodes });
    let way = (0..DEEP).map(|layer| name(layer, 0)).collect::<Vec<_>>().join("/");
    let (first, below) = (format!("{way}/x"), format!("{way}/x/child"));
    for path in [&first, &below] {
        apply(now, Command::CreatePrefix { actor, job, path, parents: &[], options });
    }
    apply(now, Command::RemovePrefix { actor, job, path: &first });
    // A dead prefix of this name under the root has the place of the new one.
    apply(now, Command::CreatePrefix { actor, job, path: "x", parents: &[], options });
    apply(now, Command::RemovePrefix { actor, job, path: "x" });
    let now = now + Duration::from_millis(500);
    let mut left = |path| match apply(now, Command::LeaseInfo { actor, job, path }) {
        Reply::Lease(info) => info.remaining_ms,
        other => panic!("{other:?}"),
    };
    assert_eq!(left(&below), 1500);
    let before = bench.catalog.work().edges;
    let parents = &[way.as_str()][..];
    let create = Command::CreatePrefix { actor, job, path: "x", parents, options };
    bench.catalog.apply(now, create, &mut bench.effects).unwrap();
    let cost = bench.catalog.work().edges - before;
    assert!((CARRIED_EDGES_MAX..CARRIED_EDGES_MAX + 10).contains(&cost), "{cost}");
    let tree = Command::JobTree { actor, job };
    let Ok(Reply::Tree(tree)) = bench.catalog.apply(now, tree, &mut bench.effects) else {
        panic!("the tree is small enough");
    };
    let child = tree.iter().find(|info| &*info.name == "child").unwrap();
    assert_eq!(child.remaining_ms, 2000);
}

#[test]
fn edges_of_a_job_are_bounded() {
    let mut bench = Bench::new();
    let job = bench.job("dense");
    let above: Vec<String> = (0..PARENTS_MAX).map(|i| format!("a{i}")).collect();
    let above: Vec<&str> = above.iter().map(String::as_str).collect();
    let nodes: Vec<PlanNode<'_>> = above.iter().map(|name| node(name, &[])).collect();
    let mut apply = |nodes: &[PlanNode<'_>]| {
        let command = Command::CreateHierarchy { actor: Actor::driver(job), job, nodes };
        bench.effects.clear();
        bench.catalog.apply(bench.now, command, &mut bench.effects)
    };
    apply(&nodes).unwrap();
    let names: Vec<String> =
        (0..EDGES_PER_JOB_MAX / PARENTS_MAX).map(|i| format!("b{i}")).collect();
    let nodes: Vec<PlanNode<'_>> = names.iter().map(|name| node(name, &above)).collect();
    let mut refused = 0;
    for nodes in nodes.chunks(PLAN_EDGES_MAX / PARENTS_MAX) {
        match apply(nodes) {
            Ok(_) => {}
            Err(CatalogError::LimitExceeded { what, limit }) => {
                assert!(what.contains("edges"), "{what}");
                assert_eq!(limit, EDGES_PER_JOB_MAX as u64);
                refused += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    // The edges to the root leave no room for the last plan.
    assert_eq!(refused, 1);
}

#[test]
fn own_path_that_is_too_long_for_a_flush_is_refused_with_its_reason() {
    let mut bench = Bench::new();
    bench.join_as("s1:1", 1, 10, true);
    let job = bench.job("long");
    let names: Vec<String> = (0..8).map(|i| format!("{i}{}", "n".repeat(200))).collect();
    let above: Vec<Vec<&str>> = (0..names.len())
        .map(|i| names[i.max(1) - 1..i].iter().map(String::as_str).collect())
        .collect();
    let persist = PrefixOptions { persist: true, ..LEASE };
    let last = names.len() - 1;
    let mut nodes: Vec<PlanNode<'_>> =
        names.iter().zip(&above).map(|(name, above)| node(name, above)).collect();
    nodes[last].options = persist;
    match bench.plan(job, &nodes) {
        Err(CatalogError::InvalidName(e)) => assert!(e.to_string().contains("1,024 bytes"), "{e}"),
        other => panic!("{other:?}"),
    }
    let circle = [names[last].as_str()];
    nodes[0].parents = &circle;
    let refused = bench.plan(job, &nodes);
    assert!(matches!(refused, Err(CatalogError::Cycle { .. })), "{refused:?}");
}

#[test]
fn tick_that_has_followed_many_edges_leaves_the_rest_due() {
    const SIDE: usize = 600;
    let mut bench = Bench::new();
    let job = bench.job("dense");
    let names = |letter| (0..SIDE).map(move |i| format!("{letter}{i}")).collect::<Vec<_>>();
    let (above, below) = (names('a'), names('b'));
    let parents: Vec<&str> = above.iter().map(String::as_str).collect();
    let nodes = above.iter().map(|name| node(name, &[]));
    let nodes: Vec<PlanNode<'_>> =
        nodes.chain(below.iter().map(|name| node(name, &parents))).collect();
    let actor = Actor::driver(job);
    let mut apply = |command| bench.catalog.apply(bench.now, command, &mut bench.effects);
    apply(Command::CreateHierarchy { actor, job, nodes: &nodes }).unwrap();
    bench.now = bench.now + Duration::from_millis(1000);
    let mut costs = Vec::new();
    while bench.catalog.next_deadline().is_some_and(|due| due <= bench.now) {
        let before = bench.catalog.work().edges;
        bench.catalog.apply(bench.now, Command::Tick, &mut bench.effects).unwrap();
        costs.push(bench.catalog.work().edges - before);
        assert!(costs.len() <= 10, "{costs:?}");
    }
    // The edges are followed from both ends: to children, and to parents.
    assert!((3..=4).contains(&costs.len()), "{costs:?}");
    assert!(costs.iter().all(|cost| *cost < (1 << 18) + 2 * SIDE as u64), "{costs:?}");
}

/// A tick follows edges that serve many prefixes once, and does not end because of them.
#[test]
fn ticks_of_a_deep_and_dense_hierarchy_are_few() {
    for renewed in [true, false] {
        let mut bench = Bench::new();
        let job = bench.job("dense");
        let names = names(DEEP, WIDE);
        let parents = parents(&names);
        let nodes = layered(&parents, &[]);
        let edges = (WIDE + (DEEP - 1) * WIDE * WIDE) as u64;
        assert!(edges > 1 << 18);
        let actor = Actor::driver(job);
        let apply = |bench: &mut Bench, command| {
            bench.catalog.apply(bench.now, command, &mut bench.effects).unwrap()
        };
        apply(&mut bench, Command::CreateHierarchy { actor, job, nodes: &nodes });
        bench.now = bench.now + Duration::from_millis(900);
        if renewed {
            apply(&mut bench, Command::RenewLeases { actor, job, paths: &[""] });
        }
        bench.now = bench.now + Duration::from_millis(100);
        let (before, mut ticks) = (bench.catalog.work().edges, 0);
        while bench.catalog.next_deadline().is_some_and(|due| due <= bench.now) {
            apply(&mut bench, Command::Tick);
            ticks += 1;
            assert!(ticks <= 10);
        }
        let cost = bench.catalog.work().edges - before;
        // Without a renewal, each prefix follows its edges to children and to parents, in some ticks.
        assert!(ticks <= if renewed { 2 } else { 4 }, "{ticks} ticks");
        assert!(cost <= if renewed { 2 * edges } else { 6 * edges }, "{cost} edges of {edges}");
        let paths = &[""][..];
        let reply = bench.catalog.apply(
            bench.now,
            Command::RenewLeases { actor, job, paths },
            &mut bench.effects,
        );
        let Ok(Reply::Renewed(results)) = reply else { panic!("{reply:?}") };
        assert_eq!(results[0].is_ok(), renewed);
    }
}
