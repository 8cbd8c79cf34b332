//! The background check of the catalog: it finds nothing in a sound catalog, costs little, and quarantines a
//! structure with a violated invariant.

use crate::common::{Bench, file, lease};
use honeycomb_catalog::{
    Actor, AuditFinding, Catalog, Claim, Command, Config, Effect, Hints, Reply,
};
use honeycomb_catalog::{NewServer, PrefixOptions};
use honeycomb_types::{JobId, Time};
use std::time::Duration;

/// The time between two steps.
const STEP: Duration = Duration::from_millis(10);

/// Makes so many steps of the check; returns the first finding, the effects, and the number of steps.
fn audit(
    catalog: &mut Catalog,
    from: Time,
    steps: u32,
) -> (Option<AuditFinding>, Vec<Effect>, Time) {
    let (mut now, mut effects) = (from, Vec::new());
    for _ in 0..steps {
        now = now + STEP;
        if let Some(finding) = catalog.audit(now, &mut effects) {
            return (Some(finding), effects, now);
        }
    }
    (None, effects, now)
}

/// A job with so many files, each in a prefix of its own, that never expire.
fn files(bench: &mut Bench, count: u32) -> JobId {
    let job = bench.job("job");
    for n in 0..count {
        let path = format!("t{n}");
        bench.create(job, &path, &[], lease(3_600_000)).unwrap();
        bench.make(job, file(&path, "f", 1)).unwrap();
    }
    job
}

/// A catalog with so many files, each in a prefix of its own.
fn with_files(count: u32) -> Catalog {
    let (mut catalog, now) = (Catalog::new(Config::default()), Time::from_millis(1_000_000));
    let mut run = |command: Command<'_>| catalog.apply(now, command, &mut Vec::new()).unwrap();
    let server = NewServer {
        address: "s1:1",
        incarnation: 1,
        shards: 2,
        blocks_per_shard: count,
        tiers: &[],
        block_size: 65_536,
        flush_root: "",
        kinds: &[],
    };
    run(Command::JoinServer { server });
    let (actor, name, hints, claim) = (Actor::CLUSTER, "job", Hints::default(), Claim::default());
    let (lease_ms, quota_blocks) = (0, 0);
    let register = Command::RegisterJob { actor, name, lease_ms, quota_blocks, hints, claim };
    let Reply::Job { job, .. } = run(register) else { panic!("a job is registered") };
    let actor = Actor::driver(job);
    for n in 0..count {
        let (path, options) = (format!("t{n}"), PrefixOptions { pinned: true, ..lease(0) });
        run(Command::CreatePrefix { actor, job, path: &path, parents: &[], options });
        run(Command::CreateStructure { actor, job, structure: file(&path, "f", 1) });
    }
    catalog
}

#[test]
fn sound_catalog_has_no_finding_and_steps_are_made_at_most_every_10_ms() {
    let mut bench = Bench::new();
    bench.join("s1:1", 2, 60);
    let job = files(&mut bench, 20);
    let now = bench.now;
    let (finding, effects, _) = audit(&mut bench.catalog, now, 500);
    assert_eq!((finding, effects), (None, vec![]));
    bench.remove(job, "t7").unwrap();
    let (finding, ..) = audit(&mut bench.catalog, now + Duration::from_secs(10), 500);
    assert_eq!(finding, None);
    assert_eq!(bench.catalog.findings(), 0);
}

/// The time that this thread was on a core; the load of other processes does not count.
fn cpu_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(times.split_whitespace().next().unwrap().parse().unwrap())
}

/// One step every 10 ms may take 50 us, which is 0.5 % of a core.
#[test]
fn audit_of_10_000_structures_takes_less_than_half_a_percent_of_a_core() {
    const STRUCTURES: u32 = 10_000;
    let mut catalog = with_files(STRUCTURES);
    let steps = 2 * STRUCTURES;
    let begun = cpu_time();
    let (finding, ..) = audit(&mut catalog, Time::from_millis(2_000_000), steps);
    let step = (cpu_time() - begun) / steps;
    println!("{step:?} for each step of the background check");
    assert_eq!(finding, None);
    assert!(step < STEP / 200, "{step:?} for each step");
}

#[cfg(feature = "bug-bank")]
mod planted {
    use super::*;
    use crate::common::queue;
    use honeycomb_catalog::{CatalogError, Seal};
    use honeycomb_types::Bug;

    /// The totals of a retired block stay in the list of its queue: later totals count for other blocks.
    #[test]
    fn queue_with_a_total_too_many_is_quarantined_and_can_be_removed() {
        let mut bench = Bench::new();
        bench.join("s1:1", 1, 20);
        let job = bench.job("job");
        bench.create(job, "t", &[], lease(3_600_000)).unwrap();
        let opened = bench.make(job, queue("t", "q", 0)).unwrap();
        let other = bench.make(job, queue("t", "other", 0)).unwrap();
        let (structure, at) = (opened.structure, opened.map.entries[0].at);
        let (_, next) = bench.grow(structure, at).unwrap();
        bench.seal(structure, at, Seal { length: 3, bytes: 30, last: false }).unwrap();
        Bug::arm(Some(Bug::RetireKeepsTotals));
        let (now, mut effects) = (bench.now, Vec::new());
        let retired =
            bench.catalog.apply(now, Command::RetireBlock { structure, at }, &mut effects);
        Bug::arm(None);
        retired.unwrap();

        let (finding, effects, mut now) = audit(&mut bench.catalog, now, 100);
        let finding = finding.expect("a queue with a total too many is found");
        assert_eq!((finding.broken.invariant, finding.structure), (22, Some(structure)));
        assert!(finding.to_string().starts_with("INV-22: "), "{finding}");
        assert_eq!(bench.catalog.findings(), 1);
        // Its grants are revoked, so that clients ask the controller, which refuses them.
        assert!(matches!(effects[..], [Effect::SetGeneration { generation, .. }]
            if generation.0 == opened.generation.0 + 1));
        let mut run = |command: Command<'_>| bench.catalog.apply(now, command, &mut Vec::new());
        let actor = Actor::driver(job);
        for refused in [
            run(Command::ReopenStructure { actor, job, structure }),
            run(Command::OpenStructure { actor, job, path: "t", name: "q" }),
            run(Command::GrowStructure { structure, at: next }),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, CatalogError::Quarantined { .. }), "{error}");
            assert!(error.to_string().contains("INV-22: structure"), "{error}");
        }
        // Others of the same prefix are served, and it is reported once.
        let structure = other.structure;
        assert!(matches!(
            run(Command::ReopenStructure { actor, job, structure }),
            Ok(Reply::Opened(_))
        ));
        let (again, _, later) = audit(&mut bench.catalog, now, 100);
        assert_eq!((again, bench.catalog.findings()), (None, 1));
        now = later;
        bench.now = now;
        // Without the structure the catalog is sound again: `Bench::run` checks all of it.
        let (path, name) = ("t", "q");
        bench.run(Command::RemoveStructure { actor, job, path, name }).unwrap();
        bench.run(Command::DeregisterJob { actor, job }).unwrap();
    }
}
