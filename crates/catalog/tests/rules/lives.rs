//! Lives of a job: handles whose lease expired, jobs whose holder ended (INV-55).

use crate::common::{Bench, LEASE, LEASE_MS, kv, lease, queue};
use honeycomb_catalog::{
    Actor, CatalogError, Claim, Command, NewStructure, Opened, PrefixOptions, Reply,
};
use honeycomb_types::limits::JOB_LINGER;
use honeycomb_types::{JobId, PrefixId};
use proptest::prelude::*;

/// A job as one process knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Handle {
    job: JobId,
    root: PrefixId,
}

impl Handle {
    fn actor(self) -> Actor {
        Actor { life: Some(self.root), ..Actor::driver(self.job) }
    }
}

const HELD: Claim<'static> =
    Claim { host: "node", scope: 7, process: 11, started: 5, over: None, adopt: false };

fn register(bench: &mut Bench, claim: Claim<'_>) -> Result<(Handle, u32), CatalogError> {
    let register = Command::RegisterJob {
        actor: Actor::CLUSTER,
        name: "tour",
        lease_ms: LEASE_MS,
        quota_blocks: 0,
        hints: Default::default(),
        claim,
    };
    match bench.run(register)? {
        Reply::Job { job, root, holder } => Ok((Handle { job, root }, holder.process)),
        other => panic!("{other:?}"),
    }
}

/// Reopens a job as the client's `reopen_job` does.
fn reopen(bench: &mut Bench, job: JobId) -> Handle {
    let actor = Actor::CLUSTER;
    let made =
        bench.run(Command::CreatePrefix { actor, job, path: "", parents: &[], options: LEASE });
    assert!(matches!(made, Ok(_) | Err(CatalogError::PrefixExists { .. })), "{made:?}");
    match bench.run(Command::FindJob { actor, name: "tour" }) {
        Ok(Reply::Job { job, root, .. }) => Handle { job, root },
        other => panic!("{other:?}"),
    }
}

fn create(bench: &mut Bench, handle: Handle, path: &str) -> Result<Reply, CatalogError> {
    let (actor, job) = (handle.actor(), handle.job);
    bench.run(Command::CreatePrefix { actor, job, path, parents: &[], options: LEASE })
}

fn make(
    bench: &mut Bench,
    handle: Handle,
    structure: NewStructure<'_>,
) -> Result<Box<Opened>, CatalogError> {
    let (actor, job) = (handle.actor(), handle.job);
    match bench.run(Command::CreateStructure { actor, job, structure })? {
        Reply::Opened(opened) => Ok(Box::new(opened)),
        other => panic!("{other:?}"),
    }
}

/// Opens a kv as `job.kv(path)` does, and creates it and its prefix when they are missing.
fn store(bench: &mut Bench, handle: Handle, path: &str) -> Result<Box<Opened>, CatalogError> {
    let new = NewStructure { open_existing: true, ..kv(path, "", 1) };
    match make(bench, handle, new) {
        Err(CatalogError::PrefixNotFound { .. }) => {}
        done => return done,
    }
    create(bench, handle, path)?;
    make(bench, handle, new)
}

fn is_expired<T: std::fmt::Debug>(result: &Result<T, CatalogError>) -> bool {
    matches!(result, Err(CatalogError::LeaseExpired { .. } | CatalogError::LifeOver))
}

#[test]
fn handle_of_an_ended_lease_never_finds_its_successor() {
    let mut bench = Bench::new();
    bench.join("s1:1", 1, 10);
    let (old, _) = register(&mut bench, HELD).unwrap();
    let before = store(&mut bench, old, "d").unwrap();
    bench.pass(2000);
    let told = store(&mut bench, old, "d").unwrap_err();
    assert!(told.to_string().contains("Reopen the job"), "{told}");

    let new = reopen(&mut bench, old.job);
    assert_ne!(new.root, old.root);
    let after = store(&mut bench, new, "d").unwrap();
    assert_ne!(after.structure, before.structure);
    // The process that was suspended meanwhile cannot see, renew, or end another life's prefixes.
    assert!(is_expired(&store(&mut bench, old, "d")));
    let (actor, job) = (old.actor(), old.job);
    assert!(is_expired(&bench.run(Command::RenewLeases { actor, job, paths: &[""] })));
    assert!(is_expired(&bench.run(Command::DeregisterJob { actor, job })));
    assert!(is_expired(&bench.run(Command::ReopenStructure {
        actor: new.actor(),
        job,
        structure: before.structure
    })));
    bench.restart();
    assert!(is_expired(&store(&mut bench, old, "d")), "also after a restart");
}

#[test]
fn reopening_keeps_what_lives_and_forgets_what_ended() {
    let mut bench = Bench::new();
    bench.join("s1:1", 1, 10);
    let (old, _) = register(&mut bench, HELD).unwrap();
    store(&mut bench, old, "d").unwrap();
    let pinned = PrefixOptions { pinned: true, ..LEASE };
    bench.create(old.job, "p", &[], pinned).unwrap();
    let kept = store(&mut bench, old, "p").unwrap();
    bench.pass(2000);
    assert_eq!(store(&mut bench, old, "p").unwrap().structure, kept.structure, "it never ended");
    assert!(is_expired(&store(&mut bench, old, "d")));
    let new = reopen(&mut bench, old.job);
    assert_eq!(store(&mut bench, new, "p").unwrap().structure, kept.structure);
    store(&mut bench, new, "d").unwrap();
    // In the new life as in the first: a prefix that ended is an error, and is not created again implicitly.
    bench.create(new.job, "short", &[], lease(300)).unwrap();
    bench.pass(400);
    assert!(is_expired(&store(&mut bench, new, "short")));
    assert_eq!(reopen(&mut bench, new.job), new, "a job that lives has one life");
}

#[test]
fn prefix_that_ends_at_the_moment_of_the_reopening_is_told_as_removed() {
    let mut bench = Bench::new();
    bench.join("s1:1", 1, 10);
    let (old, _) = register(&mut bench, HELD).unwrap();
    bench.pass(2000);
    let new = reopen(&mut bench, old.job);
    create(&mut bench, new, "d").unwrap();
    bench.remove(new.job, "d").unwrap();
    let told = store(&mut bench, new, "d").unwrap_err();
    assert!(matches!(told, CatalogError::PrefixRemoved { .. }), "{told}");
    // Another reopening at the same moment frees the name.
    bench.remove(new.job, "").unwrap();
    let third = reopen(&mut bench, old.job);
    store(&mut bench, third, "d").unwrap();
}

#[test]
fn job_that_is_gone_after_its_leases_ended_says_so_to_its_handles() {
    let mut bench = Bench::new();
    bench.join("s1:1", 1, 10);
    let (old, _) = register(&mut bench, HELD).unwrap();
    bench.pass(2000);
    let (new, _) = register(&mut bench, HELD).unwrap();
    assert_ne!(new.job, old.job);
    assert!(is_expired(&store(&mut bench, old, "d")));
    bench.pass(2000 + JOB_LINGER.as_millis() as u64);
    bench.pass(0);
    assert!(is_expired(&store(&mut bench, new, "d")));
}

#[test]
fn registration_replaces_only_the_job_that_its_caller_means() {
    let mut bench = Bench::new();
    bench.join("s1:1", 1, 10);
    let (first, holder) = register(&mut bench, HELD).unwrap();
    assert_eq!(holder, 11);
    let refused = register(&mut bench, Claim { process: 12, ..HELD }).unwrap_err();
    assert!(refused.to_string().contains("process 11 on node"), "{refused}");
    // Another process is faster: it replaces the first, and the second finds another job.
    let over = Claim { over: Some(first.job), ..HELD };
    let (second, holder) = register(&mut bench, Claim { process: 12, ..over }).unwrap();
    assert_eq!(holder, 12);
    let refused = register(&mut bench, Claim { process: 13, ..over });
    assert!(matches!(refused, Err(CatalogError::JobExists { .. })), "{refused:?}");
    let there = store(&mut bench, second, "d").unwrap();

    let adopt = Claim { process: 14, over: Some(second.job), adopt: true, ..HELD };
    assert_eq!(register(&mut bench, adopt), Ok((second, 14)), "it stays, and changes its holder");
    assert_eq!(store(&mut bench, second, "d").unwrap().structure, there.structure);
    bench.restart();
    let refused = register(&mut bench, HELD).unwrap_err();
    assert!(refused.to_string().contains("process 14 on node"), "the log knows: {refused}");
}

#[test]
fn queue_that_exists_with_other_bounds_is_refused() {
    let mut bench = Bench::new();
    bench.join("s1:1", 1, 10);
    let (handle, _) = register(&mut bench, HELD).unwrap();
    create(&mut bench, handle, "w").unwrap();
    let bounded = |max_items, max_bytes| NewStructure {
        open_existing: true,
        max_items,
        max_bytes,
        ..queue("w", "q", 0)
    };
    let made = make(&mut bench, handle, bounded(0, 0)).unwrap();
    let refused = make(&mut bench, handle, bounded(5, 0)).unwrap_err().to_string();
    assert!(refused.contains("max_items=0") && refused.contains("max_items=5"), "{refused}");
    assert_eq!(make(&mut bench, handle, bounded(0, 0)).unwrap().structure, made.structure);

    create(&mut bench, handle, "v").unwrap();
    let bounded =
        |max_items, max_bytes| NewStructure { path: "v", ..bounded(max_items, max_bytes) };
    let made = make(&mut bench, handle, bounded(5, 700)).unwrap();
    for same in [bounded(5, 700), bounded(5, 0), bounded(0, 700), bounded(0, 0)] {
        assert_eq!(make(&mut bench, handle, same).unwrap().structure, made.structure);
    }
    for other in [bounded(6, 700), bounded(5, 701), bounded(0, 1)] {
        let refused = make(&mut bench, handle, other);
        assert!(matches!(refused, Err(CatalogError::OtherBounds { .. })), "{refused:?}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Renew(usize),
    Store(usize, usize),
    Reopen(usize),
    /// Registers over the job that the process knows, or over none.
    Register(usize, bool, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..1200u64).prop_map(Step::Pass),
        3 => (0..3usize).prop_map(Step::Renew),
        6 => (0..3usize, 0..2usize).prop_map(|(who, what)| Step::Store(who, what)),
        2 => (0..3usize).prop_map(Step::Reopen),
        2 => (0..3usize, any::<bool>(), any::<bool>())
            .prop_map(|(who, over, adopt)| Step::Register(who, over, adopt)),
    ]
}

/// Three processes with a handle each. In every interleaving, a kv that a handle finds was made in the
/// handle's life, a handle whose life has ended finds and renews nothing, and a registration takes the name
/// of no live job but the intended one.
fn lives_hold(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut bench = Bench::new();
    let server = bench.join("s1:1", 1, 60);
    let (first, _) = register(&mut bench, HELD).unwrap();
    let mut handles = [first; 3];
    let mut current = first;
    let mut renewed = bench.now;
    let mut made_in = std::collections::BTreeMap::new();
    for step in steps {
        let lives = bench.now.since(renewed).as_millis() < u128::from(LEASE_MS);
        match *step {
            Step::Pass(ms) => {
                bench.pass(ms);
                bench.report_all(server, &[]);
            }
            Step::Renew(who) => {
                let (actor, job) = (handles[who].actor(), handles[who].job);
                match bench.run(Command::RenewLeases { actor, job, paths: &[""] }) {
                    Ok(Reply::Renewed(results)) if results[0].is_ok() => {
                        prop_assert!(handles[who] == current && lives, "renewed by {step:?}");
                        renewed = bench.now;
                    }
                    told => prop_assert!(!(handles[who] == current && lives), "{told:?}"),
                }
            }
            Step::Store(who, what) => {
                if let Ok(opened) = store(&mut bench, handles[who], ["a", "b"][what]) {
                    // A created prefix is renewed, and its parent with it.
                    if lives && !made_in.contains_key(&opened.structure) {
                        renewed = bench.now;
                    }
                    let life = *made_in.entry(opened.structure).or_insert(handles[who].root);
                    prop_assert_eq!(life, handles[who].root, "a store of another life");
                    prop_assert_eq!(handles[who], current, "served in a life that is over");
                }
            }
            Step::Reopen(who) => {
                handles[who] = reopen(&mut bench, current.job);
                if handles[who] != current {
                    prop_assert!(!lives, "a job that lives began anew");
                    (current, renewed) = (handles[who], bench.now);
                }
            }
            Step::Register(who, over, adopt) => {
                let over = over.then_some(handles[who].job);
                let claim = Claim { over, adopt, ..HELD };
                match register(&mut bench, claim) {
                    Ok((handle, _)) => {
                        let meant = over == Some(current.job);
                        prop_assert!(!lives || meant, "a live job was replaced by {claim:?}");
                        prop_assert_eq!(lives && adopt, handle == current);
                        if handle != current {
                            (current, renewed) = (handle, bench.now);
                        }
                        handles[who] = handle;
                    }
                    Err(told) => prop_assert!(lives && over != Some(current.job), "{told}"),
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn lives_of_a_job_never_mix(steps in prop::collection::vec(step(), 1..40)) {
        lives_hold(&steps)?;
    }
}

#[cfg(feature = "bug-bank")]
mod planted {
    use super::*;
    use honeycomb_types::Bug;
    use proptest::test_runner::{Config, TestRunner};

    fn is_caught(bug: Bug) {
        Bug::arm(Some(bug));
        let config = Config { cases: 500, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new(config);
        let found = runner.run(&prop::collection::vec(step(), 1..40), |steps| lives_hold(&steps));
        Bug::arm(None);
        assert!(found.is_err(), "{bug:?} was not caught");
    }

    #[test]
    fn successor_that_is_served_is_caught() {
        is_caught(Bug::SuccessorServed);
    }

    #[test]
    fn other_job_that_is_replaced_is_caught() {
        is_caught(Bug::OtherJobReplaced);
    }
}
