//! Isolation: jobs do not see each other (INV-28), tasks have their own prefix and its descendants.

use crate::common::{Bench, LEASE, file, kv, node};
use honeycomb_catalog::{Actor, CatalogError, Command, Config, PlanNode, PrefixOptions, Reply};
use honeycomb_types::{IdCipher, JobId, StructureId, Verbs};

/// Every command that a client can send, about one job.
fn about<'a>(
    actor: Actor,
    job: JobId,
    structure: StructureId,
    nodes: &'a [PlanNode<'a>],
) -> Vec<Command<'a>> {
    let (path, name, parents) = ("t", "x", &["t"][..]);
    let verbs = Verbs::READ;
    vec![
        Command::JobTree { actor, job },
        Command::CreatePrefix { actor, job, path: "new", parents: &[], options: LEASE },
        Command::CreateHierarchy { actor, job, nodes },
        Command::RenewLeases { actor, job, paths: parents },
        Command::LeaseInfo { actor, job, path },
        Command::DeclareReaders { actor, job, path, readers: parents, replace: true },
        Command::SetPermissions { actor, job, path, owner_verbs: verbs, job_verbs: verbs },
        Command::CreateStructure { actor, job, structure: file("t", "y", 1) },
        Command::OpenStructure { actor, job, path, name },
        Command::ReopenStructure { actor, job, structure },
        Command::RemoveStructure { actor, job, path, name },
        Command::CommitTask { actor, job, path: "" },
        Command::RemovePrefix { actor, job, path },
        Command::DeregisterJob { actor, job },
    ]
}

#[test]
fn a_job_cannot_tell_another_one_from_none() {
    let mut bench = Bench::new();
    bench.join("s1:1", 1, 100);
    let (a, b) = (bench.job("a"), bench.job("b"));
    bench.create(a, "t", &[], LEASE).unwrap();
    let opened = bench.make(a, file("t", "x", 1)).unwrap();
    let nobody = JobId(b.0 + 1);
    let nodes = [node("n", &[])];
    let before = bench.tree(a);
    let (actor, id) = (Actor::driver(b), opened.structure);
    let of_nobody = about(actor, nobody, id, &nodes);
    for (theirs, none) in about(actor, a, id, &nodes).into_iter().zip(of_nobody) {
        assert_eq!(bench.run(theirs), Err(CatalogError::UnknownJob { job: a }), "{theirs:?}");
        assert!(bench.effects.is_empty());
        assert_eq!(bench.run(none), Err(CatalogError::UnknownJob { job: nobody }));
    }
    assert_eq!(bench.tree(a), before);
    // By identity, too.
    let (actor, structure) = (Actor::driver(b), opened.structure);
    let theirs = bench.run(Command::ReopenStructure { actor, job: b, structure });
    assert_eq!(theirs, Err(CatalogError::UnknownStructure { structure }));
    bench.remove(a, "t").unwrap();
    let gone = bench.run(Command::ReopenStructure { actor, job: b, structure });
    assert_eq!(gone, theirs);
    // Lists and totals.
    let Ok(Reply::Jobs(jobs)) = bench.run(Command::ListJobs { actor }) else { panic!() };
    assert!(jobs.len() == 1 && jobs[0].job == b);
    let Ok(Reply::Status(status)) = bench.run(Command::ClusterStatus { actor }) else { panic!() };
    assert!(status.servers.is_empty() && status.blocks == 100);
    let find = bench.run(Command::FindJob { actor, name: "a" });
    assert!(matches!(find, Err(CatalogError::PermissionDenied { .. })));
    assert_eq!(bench.run(Command::FindJob { actor, name: "nobody" }), find);
    let register = Command::RegisterJob {
        actor,
        name: "a",
        lease_ms: 0,
        quota_blocks: 0,
        hints: Default::default(),
        claim: Default::default(),
    };
    assert!(matches!(bench.run(register), Err(CatalogError::PermissionDenied { .. })));
}

#[test]
fn the_cluster_may_do_everything() {
    let mut bench = Bench::new();
    bench.join("s1:1", 1, 100);
    let job = bench.job("a");
    let nodes = [node("n", &[])];
    let none = PrefixOptions { owner_verbs: Verbs::READ, ..LEASE };
    bench.create(job, "t", &[], none).unwrap();
    let structure = file("t", "x", 1);
    let create = Command::CreateStructure { actor: Actor::CLUSTER, job, structure };
    let Ok(Reply::Opened(opened)) = bench.run(create) else { panic!() };
    for command in about(Actor::CLUSTER, job, opened.structure, &nodes) {
        assert!(bench.run(command).is_ok(), "{command:?}");
    }
    let Ok(Reply::Jobs(jobs)) = bench.run(Command::ListJobs { actor: Actor::CLUSTER }) else {
        panic!()
    };
    assert!(jobs.is_empty());
}

#[test]
fn a_task_has_its_own_prefix_and_what_is_below() {
    let mut bench = Bench::new();
    bench.join("s1:1", 1, 100);
    let job = bench.job("a");
    let own = bench.create(job, "own", &[], LEASE).unwrap();
    bench.create(job, "other", &[], LEASE).unwrap();
    bench.make(job, file("other", "x", 1)).unwrap();
    let task = Actor::task(job, own);
    let denied = |result: Result<Reply, CatalogError>| {
        assert!(matches!(result, Err(CatalogError::PermissionDenied { .. })), "{result:?}");
    };
    let create =
        |path, parents| Command::CreatePrefix { actor: task, job, path, parents, options: LEASE };
    bench.run(create("own/sub", &[])).unwrap();
    bench.run(create("own/sub/deep", &[])).unwrap();
    bench.run(create("beside", &["own"])).unwrap();
    denied(bench.run(create("free", &[])));
    denied(bench.run(create("other/sub", &[])));
    let plan = |nodes| Command::CreateHierarchy { actor: task, job, nodes };
    let (below, partly) =
        ([node("p", &["own/sub"]), node("q", &["p"])], [node("r", &["own"]), node("s", &[])]);
    bench.run(plan(&below)).unwrap();
    denied(bench.run(plan(&partly)));
    let paths = &["own", "own/sub/deep", "own/beside", "other", ""][..];
    let Ok(Reply::Renewed(results)) = bench.run(Command::RenewLeases { actor: task, job, paths })
    else {
        panic!()
    };
    let renewed: Vec<bool> = results.iter().map(Result::is_ok).collect();
    assert_eq!(renewed, [true, true, true, false, false]);
    // It writes its own, and reads its job's.
    let make = |path| Command::CreateStructure { actor: task, job, structure: file(path, "f", 1) };
    bench.run(make("own")).unwrap();
    denied(bench.run(make("other")));
    assert_eq!(bench.open(task, "own", "f").unwrap().verbs, Verbs::ALL);
    assert_eq!(bench.open(task, "other", "x").unwrap().verbs, Verbs::READ);
    let remove = |path, name| Command::RemoveStructure { actor: task, job, path, name };
    denied(bench.run(remove("other", "x")));
    bench.run(remove("own", "f")).unwrap();
    denied(bench.run(Command::RemovePrefix { actor: task, job, path: "other" }));
    denied(bench.run(Command::DeregisterJob { actor: task, job }));
    bench.run(Command::RemovePrefix { actor: task, job, path: "own/sub" }).unwrap();
    // A prefix that replaces a dead one has another identity.
    bench.remove(job, "own").unwrap();
    bench.create(job, "own", &[], LEASE).unwrap();
    denied(bench.run(create("own/more", &[])));
}

#[test]
fn what_a_grant_allows_is_what_both_the_prefix_and_the_token_allow() {
    let mut bench = Bench::new();
    bench.join("s1:1", 1, 100);
    let job = bench.job("a");
    let hidden = PrefixOptions { owner_verbs: Verbs::ALL, ..LEASE };
    bench.create(job, "hidden", &[], hidden).unwrap();
    bench.make(job, file("hidden", "x", 1)).unwrap();
    let task = Actor::task(job, bench.create(job, "task", &[], LEASE).unwrap());
    let refused = bench.open(task, "hidden", "x");
    assert!(matches!(refused, Err(CatalogError::PermissionDenied { .. })));
    let reader = Actor { verbs: Verbs::READ, ..Actor::driver(job) };
    assert_eq!(bench.open(reader, "hidden", "x").unwrap().verbs, Verbs::READ);
    for command in [
        Command::CreatePrefix { actor: reader, job, path: "n", parents: &[], options: LEASE },
        Command::CreateStructure { actor: reader, job, structure: file("hidden", "y", 1) },
        Command::RemoveStructure { actor: reader, job, path: "hidden", name: "x" },
        Command::RemovePrefix { actor: reader, job, path: "hidden" },
        Command::DeregisterJob { actor: reader, job },
    ] {
        let refused = bench.run(command);
        assert!(matches!(refused, Err(CatalogError::PermissionDenied { .. })), "{command:?}");
    }
    let paths = &["hidden"][..];
    assert!(bench.run(Command::RenewLeases { actor: reader, job, paths }).is_ok());
}

/// The distances between ids of two creations of job A, between which job B creates `others` prefixes and
/// kvs.
fn distances(ids: IdCipher, others: usize) -> [u64; 2] {
    let config = Config { shard: 3, term: 2, ids, ..Config::default() };
    let mut bench = Bench::of(config);
    bench.join("s1:1", 1, 60_000);
    let (a, b) = (bench.job("a"), bench.job("b"));
    let id_of = |bench: &mut Bench, job, path: &str| {
        bench.create(job, path, &[], LEASE).unwrap();
        let opened = bench.make(job, kv(path, "", 1)).unwrap();
        (opened.prefix.0, opened.structure.0)
    };
    let first = id_of(&mut bench, a, "one");
    for n in 0..others {
        id_of(&mut bench, b, &format!("b{n}"));
    }
    let second = id_of(&mut bench, a, "two");
    [first.0.abs_diff(second.0), first.1.abs_diff(second.1)]
}

/// Ids were counters of the cluster: their distance was the number of creations of all other jobs.
fn ids_show_others() -> Result<(), String> {
    let mut near = 0;
    for key in 0..24u8 {
        for others in [0, 1, 7] {
            let found = distances(IdCipher::new([key; 16]), others);
            if found.contains(&(others as u64 + 1)) {
                return Err(format!("INV-54: a distance of {found:?} after {others} creations"));
            }
            // A 64th of the range: one in 32 distances is shorter.
            near += found.iter().filter(|distance| **distance < 1 << 42).count();
        }
    }
    // 144 distances, of which 4.5 are short on average.
    if near > 20 {
        Err(format!("INV-54: {near} of 144 ids are near the one before"))
    } else {
        Ok(())
    }
}

#[test]
fn consecutive_ids_of_a_job_show_nothing_of_what_others_create() {
    ids_show_others().unwrap();
}

#[cfg(feature = "bug-bank")]
#[test]
fn ids_that_count_are_seen() {
    use honeycomb_types::Bug;
    Bug::arm(Some(Bug::IdsCount));
    let seen = ids_show_others();
    Bug::arm(None);
    assert!(seen.is_err());
}
