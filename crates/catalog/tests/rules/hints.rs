//! Hints and tenants of jobs: they are reported, survive a restart, and determine the expected use of a job.

use crate::common::Bench;
use honeycomb_catalog::{Actor, CatalogError, Command, Estimate, Hints, JobInfo, Reply};
use honeycomb_types::JobId;
use honeycomb_types::limits::{HINT_MAX, HINT_SERVER_BYTES_PER_S, HINT_TASK_BYTES_PER_S};

fn register(bench: &mut Bench, name: &str, hints: Hints) -> Result<JobId, CatalogError> {
    crate::common::register(bench, name, 0, hints)
}

fn told(bench: &mut Bench, job: JobId) -> JobInfo {
    match bench.run(Command::ListJobs { actor: Actor::driver(job) }) {
        Ok(Reply::Jobs(jobs)) => jobs[0].clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn hints_are_told_with_what_they_let_expect_and_survive_a_restart() {
    let mut bench = Bench::new();
    bench.join("a:1", 2, 8);
    let hints = Hints { tasks: 4, bytes: 3 << 20, ..Hints::default() };
    let job = register(&mut bench, "sort", hints).unwrap();
    let silent = register(&mut bench, "silent", Hints::default()).unwrap();
    let expected = Estimate { bytes: 3 << 20, bytes_per_s: 4 * HINT_TASK_BYTES_PER_S };
    for _ in 0..2 {
        let info = told(&mut bench, job);
        assert_eq!((info.hints, info.expected), (hints, expected));
        assert_eq!(told(&mut bench, silent).expected, Estimate::default());
        bench.restart();
    }
}

#[test]
fn what_is_expected_follows_the_servers() {
    let mut bench = Bench::new();
    let hints = Hints { not_sensitive: true, ..Hints::default() };
    let job = register(&mut bench, "all", hints).unwrap();
    assert_eq!(told(&mut bench, job).expected, Estimate::default());
    for (n, address) in (1..).zip(["a:1", "b:1"]) {
        bench.join(address, 1, 4);
        let all = Estimate { bytes: n * 4 * 65_536, bytes_per_s: n * HINT_SERVER_BYTES_PER_S };
        assert_eq!(told(&mut bench, job).expected, all);
    }
}

#[test]
fn two_tenants_have_jobs_of_one_name() {
    let mut bench = Bench::new();
    let names = ["sort", "acme/sort", "zeta/sort"];
    let jobs = names.map(|name| register(&mut bench, name, Hints::default()).unwrap());
    for (name, id) in names.into_iter().zip(jobs) {
        let found = bench.run(Command::FindJob { actor: Actor::CLUSTER, name });
        assert!(matches!(found, Ok(Reply::Job { job, .. }) if job == id), "{found:?}");
        let again = register(&mut bench, name, Hints::default());
        assert_eq!(again, Err(CatalogError::JobExists { name: name.into(), holder: "".into() }));
    }
    for bad in ["acme/", "/sort", "a/b/sort"] {
        let refused = register(&mut bench, bad, Hints::default());
        assert!(matches!(refused, Err(CatalogError::InvalidName(_))), "{bad}: {refused:?}");
    }
}

#[test]
fn a_hint_that_nothing_can_be_is_refused() {
    let mut bench = Bench::new();
    for hints in [
        Hints { bytes: HINT_MAX + 1, ..Hints::default() },
        Hints { bytes_per_s: HINT_MAX + 1, ..Hints::default() },
    ] {
        let refused = register(&mut bench, "large", hints);
        assert!(matches!(refused, Err(CatalogError::InvalidArgument { .. })), "{refused:?}");
    }
    let most = Hints { bytes: HINT_MAX, bytes_per_s: HINT_MAX, ..Hints::default() };
    register(&mut bench, "large", most).unwrap();
}
