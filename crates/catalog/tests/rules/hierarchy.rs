//! Creating whole plans: all or nothing, in any order, without cycles.

use crate::common::{Bench, LEASE, lease, node};
use honeycomb_catalog::{CatalogError, PlanNode, PrefixOptions};
use honeycomb_types::PrefixId;

#[test]
fn a_plan_in_any_order_becomes_a_hierarchy() {
    let mut bench = Bench::new();
    let job = bench.job("plan");
    let before = bench.create(job, "input", &[], LEASE).unwrap();
    let reduce = ["map0", "map1"];
    let plan = [node("reduce", &reduce), node("map0", &["input"]), node("map1", &["/input"])];
    let ids = bench.plan(job, &plan).unwrap();
    let tree = bench.tree(job);
    let order: Vec<PrefixId> = tree.iter().map(|info| info.prefix).collect();
    assert_eq!((order[0], order[1], order[4]), (tree[0].prefix, before, ids[0]));
    assert_eq!(tree[4].parents, [ids[1], ids[2]]);
    assert!(bench.left(job, "input/map0/reduce").is_ok());
    assert!(bench.left(job, "input.map1.reduce").is_ok());
}

#[test]
fn names_in_the_plan_win_over_paths_that_exist() {
    let mut bench = Bench::new();
    let job = bench.job("shadow");
    let old = bench.create(job, "x", &[], LEASE).unwrap();
    bench.create(job, "y", &[], LEASE).unwrap();
    let plan = [node("x", &["y"]), node("z", &["x"])];
    let ids = bench.plan(job, &plan).unwrap();
    let tree = bench.tree(job);
    let z = tree.iter().find(|info| info.prefix == ids[1]).unwrap();
    assert_eq!(z.parents, [ids[0]]);
    assert_ne!(ids[0], old);
}

#[test]
fn cycles_are_refused_by_their_members_in_order() {
    let mut bench = Bench::new();
    let job = bench.job("cycles");
    let cycle = |members: &[&str]| {
        Err(CatalogError::Cycle { members: members.iter().map(|&name| name.into()).collect() })
    };
    assert_eq!(bench.plan(job, &[node("a", &["a"])]), cycle(&["a"]));
    let plan = [node("ok", &[]), node("a", &["c"]), node("b", &["a"]), node("c", &["b", "ok"])];
    assert_eq!(bench.plan(job, &plan), cycle(&["b", "c", "a"]));
    // A node that only waits for a cycle is not a member of it.
    let plan = [node("late", &["a"]), node("a", &["b"]), node("b", &["a"])];
    assert_eq!(bench.plan(job, &plan), cycle(&["b", "a"]));
    assert_eq!(bench.tree(job).len(), 1, "a refused plan leaves nothing");
}

#[test]
fn what_is_wrong_with_a_plan_is_named() {
    let mut bench = Bench::new();
    let job = bench.job("wrong");
    bench.create(job, "there", &[], LEASE).unwrap();
    bench.create(job, "brief", &[], lease(200)).unwrap();
    bench.pass(200);
    let unknown =
        CatalogError::UnknownParent { node: "b".into(), parent: "nowhere".into(), at: vec![] };
    let plan = [node("a", &[]), node("b", &["a", "nowhere"])];
    assert_eq!(bench.plan(job, &plan), Err(unknown.clone()));
    assert!(unknown.to_string().contains("'b' names 'nowhere'"));
    let plan = [node("a", &[]), node("a", &[])];
    assert_eq!(bench.plan(job, &plan), Err(CatalogError::DuplicateNode { name: "a".into() }));
    let plan = [node("a", &[]), node("there", &[])];
    assert_eq!(bench.plan(job, &plan), Err(CatalogError::PrefixExists { path: "there".into() }));
    let plan = [node("a", &["brief"])];
    assert!(matches!(bench.plan(job, &plan), Err(CatalogError::LeaseExpired { .. })));
    let bad = PlanNode { options: lease(3), ..node("a", &[]) };
    assert!(matches!(bench.plan(job, &[bad]), Err(CatalogError::InvalidArgument { .. })));
    assert!(matches!(bench.plan(job, &[node("a/b", &[])]), Err(CatalogError::InvalidName(_))));
    let verbs = PrefixOptions { job_verbs: honeycomb_types::Verbs(8), ..LEASE };
    let bad = PlanNode { options: verbs, ..node("a", &[]) };
    assert!(matches!(bench.plan(job, &[bad]), Err(CatalogError::InvalidArgument { .. })));
    assert_eq!(bench.tree(job).len(), 3, "a refused plan leaves nothing");
}

#[test]
fn a_plan_can_be_submitted_again_after_it_expired() {
    let mut bench = Bench::new();
    let job = bench.job("retry");
    let parents = ["a", "b"];
    let plan = [node("a", &[]), node("b", &[]), node("c", &parents), node("d", &["c"])];
    let first = bench.plan(job, &plan).unwrap();
    bench.pass(500);
    bench.renew(job, &[""]);
    assert!(bench.plan(job, &plan).is_err());
    for path in ["a", "b", "a/c", "a/c/d"] {
        bench.remove(job, path).unwrap();
    }
    let second = bench.plan(job, &plan).unwrap();
    assert!(first.iter().all(|id| !second.contains(id)));
    assert_eq!(bench.tree(job).len(), 5, "every place was taken again");
    // Only the middle is created again, above a live child.
    bench.remove(job, "b/c").unwrap();
    let third = bench.plan(job, &[node("c", &["b"])]).unwrap();
    let tree = bench.tree(job);
    let d = tree.iter().find(|info| &*info.name == "d").unwrap();
    assert_eq!((d.parents.clone(), d.prefix), (third, second[3]));
    assert!(bench.left(job, "b/c/d").is_ok() && bench.left(job, "a/c").is_err());
}

#[test]
fn a_second_dead_holder_of_the_name_gives_way() {
    let mut bench = Bench::new();
    let job = bench.job("holders");
    for path in ["p", "q", "p/x", "q/x", "q/x/child"] {
        bench.create(job, path, &[], LEASE).unwrap();
    }
    bench.remove(job, "p/x").unwrap();
    bench.remove(job, "q/x").unwrap();
    bench.pass(900);
    bench.renew(job, &["q"]);
    let fresh = bench.create(job, "p/x", &["q"], LEASE).unwrap();
    // The child of the replaced holder keeps the renewal that q had granted it, and no more.
    let child = |bench: &mut Bench| {
        bench.tree(job).into_iter().find(|info| &*info.name == "child").unwrap().remaining_ms
    };
    assert_eq!(child(&mut bench), 1000);
    bench.pass(400);
    bench.renew(job, &["q"]);
    assert_eq!(child(&mut bench), 600);
    let tree = bench.tree(job);
    assert_eq!(tree.iter().find(|info| info.prefix == fresh).unwrap().parents.len(), 2);
    bench.pass(600);
    assert!(bench.tree(job).iter().all(|info| &*info.name != "child" || info.remaining_ms <= 0));
}

#[test]
fn a_prefix_has_a_name_of_its_own_under_every_parent() {
    let mut bench = Bench::new();
    let job = bench.job("names");
    for path in ["a", "b", "b/x"] {
        bench.create(job, path, &[], LEASE).unwrap();
    }
    let taken = CatalogError::PrefixExists { path: "b/x".into() };
    assert_eq!(bench.create(job, "a/x", &["b"], LEASE), Err(taken));
    bench.create(job, "a/x", &["a", "/a", "/"], LEASE).unwrap();
    let x = bench.tree(job).into_iter().find(|info| info.parents.len() == 2).unwrap();
    assert_eq!(&*x.name, "x");
    assert!(matches!(
        bench.create(job, "nowhere/y", &[], LEASE),
        Err(CatalogError::UnknownParent { parent, .. }) if &*parent == "nowhere"
    ));
    assert!(matches!(
        bench.create(job, "y", &["nowhere"], LEASE),
        Err(CatalogError::UnknownParent { node, .. }) if &*node == "y"
    ));
}

#[test]
fn a_holder_that_lost_its_last_place_is_forgotten() {
    let mut bench = Bench::new();
    let job = bench.job("holders");
    for path in ["p", "q"] {
        bench.create(job, path, &[], LEASE).unwrap();
        bench.create(job, &format!("{path}/x"), &[], lease(200)).unwrap();
    }
    bench.pass(200);
    assert_eq!(bench.tree(job).len(), 5);
    bench.create(job, "p/x", &["q"], LEASE).unwrap();
    assert_eq!(bench.tree(job).len(), 4);
}

#[test]
fn a_plan_deeper_than_any_path_costs_no_more_to_tell() {
    let mut bench = Bench::new();
    let job = bench.job("deep");
    let names: Vec<String> = (0..2000).map(|i| format!("level-{i:0>40}")).collect();
    let parents: Vec<[&str; 1]> = names.iter().map(|name| [name.as_str()]).collect();
    let above = |i: usize| if i == 0 { &[][..] } else { &parents[i - 1][..] };
    let plan: Vec<PlanNode<'_>> =
        names.iter().enumerate().map(|(i, name)| node(name, above(i))).collect();
    bench.plan(job, &plan).unwrap();
    let deep: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(bench.left(job, &deep.join("/")), Ok(1000));
    bench.pass(1000);
    let told = bench.left(job, &deep.join("/")).unwrap_err();
    let CatalogError::LeaseExpired { path, .. } = told else { panic!("{told}") };
    assert!(path.len() <= 520 && path.starts_with(".../level-") && path.ends_with("1999"));
    assert!(bench.catalog.bytes_metadata() < 3_000_000);
}
