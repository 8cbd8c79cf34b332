//! The end of a cluster: flushes complete before it, no job begins, no job comes back (INV-50).

use super::{TO_OUT, WRITTEN, asked, bench, committed, manifest, wrote};
use crate::common::{Bench, LEASE, file};
use honeycomb_catalog::{Actor, CatalogError, Command, PrefixOptions, Reply, StopProgress};
use honeycomb_types::{BlockAt, JobId, Kind};

const PERSIST: PrefixOptions<'static> =
    PrefixOptions { persist: true, lease_ms: 60_000, flush_to: "", ..LEASE };

fn stop(bench: &mut Bench, discard: bool) -> StopProgress {
    match bench.run(Command::StopCluster { actor: Actor::CLUSTER, discard }).unwrap() {
        Reply::Stopping(told) => told,
        other => panic!("{other:?}"),
    }
}

/// A job with a prefix that persists, one that is flushed when its lease expires, and one that is neither.
fn three(bench: &mut Bench, job: JobId) -> [BlockAt; 3] {
    [("kept", PERSIST), ("out", TO_OUT), ("plain", LEASE)].map(|(path, options)| {
        bench.create(job, path, &[], options).unwrap();
        bench.make(job, file(path, "f", 1)).unwrap().map.entries[0].at
    })
}

/// The correct end of a cluster: the checks that a planted bug must break.
fn a_cluster_ends(discard: bool) {
    let (mut bench, server, job) = bench();
    let [kept, out, plain] = three(&mut bench, job);
    let told = stop(&mut bench, discard);
    assert_eq!(told.jobs, 0);
    let freed = bench.freed();
    let refused = bench.run(Command::RegisterJob {
        actor: Actor::CLUSTER,
        name: "late",
        lease_ms: 0,
        quota_blocks: 0,
        hints: honeycomb_catalog::Hints::default(),
        claim: Default::default(),
    });
    assert_eq!(refused.map(drop), Err(CatalogError::Stopping { what: "register a job" }));
    // A restarted controller knows none of the jobs.
    let (mut back, now, effects) = (bench.recovered(), bench.now, &mut Vec::new());
    let jobs = back.apply(now, Command::ListJobs { actor: Actor::CLUSTER }, effects);
    assert_eq!(jobs, Ok(Reply::Jobs(Vec::new())), "INV-26: the end of a job is on the log");
    if discard {
        assert_eq!((told.flushes, told.unflushed.len()), (0, 0), "{told:?}");
        assert!([kept, out, plain].iter().all(|at| freed.contains(at)), "{freed:?}");
        return;
    }
    assert_eq!(freed, [plain]);
    assert_eq!((told.flushes, told.parts, told.done), (2, 2, 0), "{told:?}");
    for (i, at) in [kept, out].into_iter().enumerate() {
        wrote(&mut bench, at, Ok(WRITTEN));
        let (_, number, directory, structures) = manifest(&bench).unwrap();
        assert_eq!(structures[0].kind, Kind::File);
        let waiting = 2 - i as u64;
        let told = stop(&mut bench, false);
        assert_eq!(told.flushes, waiting, "the manifest is not there: {told:?}");
        assert!(told.unflushed.iter().any(|place| *place.directory == *directory), "{told:?}");
        committed(&mut bench, server, number, Ok(()));
    }
    let told = stop(&mut bench, false);
    assert_eq!(told, StopProgress::default());
}

#[test]
fn cluster_that_is_stopped_flushes_what_has_a_place_and_ends_its_jobs_in_the_log() {
    a_cluster_ends(false);
}

#[test]
fn cluster_that_is_stopped_with_discard_waits_for_nothing() {
    a_cluster_ends(true);
}

#[test]
fn flush_that_fails_while_the_cluster_stops_is_named_and_tried_again_within_a_second() {
    let (mut bench, _, job) = bench();
    let [kept, out, _] = three(&mut bench, job);
    stop(&mut bench, false);
    wrote(&mut bench, out, Ok(WRITTEN));
    let (_, number, ..) = manifest(&bench).unwrap();
    committed(&mut bench, out.block.server(), number, Ok(()));
    // The store is unavailable for so long that the pauses between two attempts have grown.
    for _ in 0..12 {
        wrote(&mut bench, kept, Err("the store does not answer"));
        let told = stop(&mut bench, false);
        assert_eq!((told.flushes, told.failing, told.lost), (1, 1, 0));
        assert_eq!(&*told.unflushed[0].directory, "job/kept");
        assert!(told.unflushed[0].why.contains("the store does not answer"), "{told:?}");
        let (again, _) = super::wait(&mut bench, 1000);
        assert!(again.iter().any(|(at, _)| *at == kept), "it is tried again");
    }
    // Discarded at last: the block is free, and nothing is awaited.
    let told = stop(&mut bench, true);
    assert_eq!((told.flushes, told.lost), (0, 0), "{told:?}");
    assert_eq!(bench.freed(), [kept]);
}

#[test]
fn manifest_that_is_being_written_is_not_discarded() {
    let (mut bench, server, job) = bench();
    let [kept, out, _] = three(&mut bench, job);
    stop(&mut bench, false);
    wrote(&mut bench, kept, Ok(WRITTEN));
    let (_, number, ..) = manifest(&bench).unwrap();
    assert_eq!(stop(&mut bench, true).flushes, 1, "only the other one is given up");
    assert_eq!(bench.freed(), [out]);
    committed(&mut bench, server, number, Ok(()));
    assert_eq!(bench.freed(), [kept]);
    assert_eq!(stop(&mut bench, true).flushes, 0);
}

#[test]
fn job_with_a_live_flush_ends_when_that_is_complete() {
    let (mut bench, _, job) = bench();
    three(&mut bench, job);
    let actor = Actor::driver(job);
    let flush = Command::FlushPrefix {
        actor,
        job,
        path: "plain",
        place: "snapshot",
        below: &[],
        barrier: false,
    };
    let Reply::Flushing { number, .. } = bench.run(flush).unwrap() else { panic!("it begins") };
    let told = stop(&mut bench, false);
    assert_eq!((told.jobs, told.flushes), (1, 1), "{told:?}");
    let begun = bench.run(flush).map(drop);
    assert_eq!(begun, Err(CatalogError::Stopping { what: "flush a live prefix" }));
    bench.run(Command::CancelFlush { actor, job, number }).unwrap();
    let told = stop(&mut bench, false);
    assert_eq!((told.jobs, told.flushes), (0, 2), "{told:?}");
    assert_eq!(asked(&bench).len(), 2);
}

#[test]
fn token_of_a_job_does_not_stop_the_cluster() {
    let (mut bench, _, job) = bench();
    let refused = bench.run(Command::StopCluster { actor: Actor::driver(job), discard: false });
    assert!(matches!(refused, Err(CatalogError::PermissionDenied { .. })));
    assert!(
        bench
            .run(Command::Quota {
                actor: Actor::driver(job),
                of: honeycomb_catalog::QuotaOf::Job(job)
            })
            .is_ok()
    );
}

#[cfg(feature = "bug-bank")]
mod planted {
    use super::a_cluster_ends;
    use honeycomb_types::Bug;

    fn shows(bug: Bug, discard: bool) {
        Bug::arm(Some(bug));
        let found = std::panic::catch_unwind(|| a_cluster_ends(discard));
        Bug::arm(None);
        assert!(found.is_err(), "{bug:?} is not seen");
    }

    #[test]
    fn bugs_at_the_end_of_a_cluster_show() {
        shows(Bug::StopForgetsFlushTo, false);
        shows(Bug::StopSkipsManifest, false);
        shows(Bug::StopTakesJobs, false);
        shows(Bug::DiscardFlushes, true);
        shows(Bug::JobEndUnlogged, false);
    }
}
