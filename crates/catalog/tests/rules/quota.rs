//! Quotas of tenants, jobs and prefixes (INV-30).

use crate::common::{Bench, LEASE, file, kv};
use honeycomb_catalog::{
    Actor, Allowance, CatalogError, Command, PrefixOptions, QuotaChange, QuotaLevel, QuotaOf, Reply,
};
use honeycomb_types::{JobId, Kind, Way};

fn bounded(max_blocks: u64) -> PrefixOptions<'static> {
    PrefixOptions { max_blocks, ..LEASE }
}

fn set(bench: &mut Bench, of: QuotaOf<'_>, max_blocks: u64) -> (u64, u64) {
    match bench.run(Command::SetQuota {
        actor: Actor::CLUSTER,
        of,
        change: QuotaChange::most(max_blocks),
    }) {
        Ok(Reply::Quota { allowed, held, .. }) => (allowed.most, held),
        other => panic!("{other:?}"),
    }
}

fn most(most: u64) -> Allowance {
    Allowance { most, ..Allowance::default() }
}

fn exceeded(level: QuotaLevel, quota: u64, held: u64, asked: u64) -> CatalogError {
    CatalogError::QuotaExceeded { level, quota, held, asked }
}

fn below(path: &str) -> QuotaLevel {
    QuotaLevel::Prefix(path.into())
}

/// All servers reconnect, and have opened nothing.
fn come_back(bench: &mut Bench) {
    for server in bench.status().servers {
        let new = crate::common::server(&server.address, 2, 10);
        let (server, held) = (server.server, &[][..]);
        bench.run(Command::RejoinServer { server: new, member: server }).unwrap();
        bench.run(Command::Inventory { server, held, last: true }).unwrap();
    }
}

/// A job of two prefixes, one a descendant of the other, on servers with room for 32 blocks.
fn bench() -> (Bench, JobId) {
    let mut bench = Bench::new();
    bench.join("a:1", 2, 10);
    bench.join("b:1", 2, 10);
    let job = bench.job("acme/etl");
    bench.create(job, "a", &[], LEASE).unwrap();
    bench.create(job, "a/b", &[], LEASE).unwrap();
    (bench, job)
}

#[test]
fn a_prefix_and_all_below_it_hold_no_more_than_its_quota() {
    let (mut bench, job) = bench();
    bench.create(job, "q", &[], bounded(5)).unwrap();
    bench.create(job, "q/r", &[], bounded(3)).unwrap();
    bench.make(job, file("q", "one", 2)).unwrap();
    bench.make(job, kv("q/r", "two", 2)).unwrap();
    // The nearest is named first; one that has room leaves the decision to the other.
    let refused = bench.make(job, kv("q/r", "three", 4)).unwrap_err();
    assert_eq!(refused, exceeded(below("q/r"), 3, 2, 4));
    let refused = bench.make(job, kv("q", "three", 2)).unwrap_err();
    assert_eq!(refused, exceeded(below("q"), 5, 4, 2));
    assert_eq!(
        refused.to_string(),
        "cannot allocate 2 blocks: prefix 'q' with its descendants holds 4 of its quota of 5. Free \
         some, or have the quota raised (honeycomb quota)"
    );
    // A prefix beside it is not affected.
    bench.make(job, kv("a", "beside", 6)).unwrap();
    bench.make(job, kv("q/r", "three", 1)).unwrap();
    let told =
        bench.run(Command::Quota { actor: Actor::driver(job), of: QuotaOf::Prefix(job, "q") });
    assert_eq!(told, Ok(Reply::Quota { allowed: most(5), held: 5, in_memory: 5 }));
    // A removed descendant makes room again.
    bench.remove(job, "q/r").unwrap();
    bench.make(job, file("q", "three", 3)).unwrap();
}

#[test]
fn growth_and_splits_count_as_well() {
    let (mut bench, job) = bench();
    bench.create(job, "q", &[], bounded(2)).unwrap();
    let opened = bench.make(job, file("q", "log", 1)).unwrap();
    let (structure, at) = (opened.structure, opened.map.entries[0].at);
    bench.run(Command::GrowStructure { structure, at }).unwrap();
    let refused = bench.make(job, kv("q", "kv", 1)).unwrap_err();
    assert_eq!(refused, exceeded(below("q"), 2, 2, 1));
    set(&mut bench, QuotaOf::Prefix(job, "q"), 3);
    let opened = bench.make(job, kv("q", "kv", 1)).unwrap();
    let (structure, at) = (opened.structure, opened.map.entries[0].at);
    let split = Command::BeginMove { structure, at, start: 1 << 63, way: Way::Split };
    assert_eq!(bench.run(split).unwrap_err(), exceeded(below("q"), 3, 3, 1));
    set(&mut bench, QuotaOf::Prefix(job, "q"), 0);
    bench.run(split).unwrap();
}

#[test]
fn the_jobs_of_a_tenant_share_its_quota() {
    let (mut bench, first) = bench();
    let second = bench.job("acme/report");
    let other = bench.job("zeta/report");
    for job in [second, other] {
        bench.create(job, "a", &[], LEASE).unwrap();
    }
    bench.make(first, kv("a", "", 4)).unwrap();
    assert_eq!(set(&mut bench, QuotaOf::Tenant("acme"), 6), (6, 4));
    let refused = bench.make(second, kv("a", "", 3)).unwrap_err();
    assert_eq!(refused, exceeded(QuotaLevel::Tenant("acme".into()), 6, 4, 3));
    bench.make(second, kv("a", "", 2)).unwrap();
    bench.make(other, kv("a", "", 7)).unwrap();
    bench.run(Command::DeregisterJob { actor: Actor::driver(first), job: first }).unwrap();
    bench.make(second, kv("a", "more", 4)).unwrap();
    // The quota is the tenant's, and outlives its jobs.
    bench.run(Command::DeregisterJob { actor: Actor::driver(second), job: second }).unwrap();
    bench.restart();
    let of = QuotaOf::Tenant("acme");
    let told = bench.run(Command::Quota { actor: Actor::CLUSTER, of });
    assert_eq!(told, Ok(Reply::Quota { allowed: most(6), held: 0, in_memory: 0 }));
    assert_eq!(set(&mut bench, of, 0), (0, 0));
}

#[test]
fn a_quota_below_what_is_held_takes_nothing_away_and_gives_nothing() {
    let (mut bench, job) = bench();
    bench.make(job, kv("a/b", "kept", 6)).unwrap();
    bench.make(job, kv("a", "freed", 3)).unwrap();
    for (of, held, level) in [
        (QuotaOf::Prefix(job, "a"), 9, below("a")),
        (QuotaOf::Job(job), 9, QuotaLevel::Job),
        (QuotaOf::Tenant("acme"), 9, QuotaLevel::Tenant("acme".into())),
    ] {
        assert_eq!(set(&mut bench, of, 2), (2, held));
        let refused = bench.make(job, kv("a", "more", 1)).unwrap_err();
        assert_eq!(refused, exceeded(level, 2, held, 1));
        set(&mut bench, of, 0);
    }
    set(&mut bench, QuotaOf::Prefix(job, "a"), 7);
    // Nor after a restart, when the holdings are counted again.
    bench.restart();
    come_back(&mut bench);
    let (actor, path, name) = (Actor::driver(job), "a", "freed");
    bench.run(Command::RemoveStructure { actor, job, path, name }).unwrap();
    bench.make(job, kv("a", "more", 1)).unwrap();
    assert_eq!(bench.make(job, kv("a", "x", 1)).unwrap_err(), exceeded(below("a"), 7, 7, 1));
}

#[test]
fn a_structure_counts_to_the_line_it_was_created_in() {
    let (mut bench, job) = bench();
    bench.create(job, "q", &[], bounded(4)).unwrap();
    // The first parent is that of the path.
    bench.create(job, "a/both", &["q"], LEASE).unwrap();
    bench.make(job, kv("a/both", "", 6)).unwrap();
    bench.create(job, "q/c", &["a"], LEASE).unwrap();
    let refused = bench.make(job, kv("q/c", "", 5)).unwrap_err();
    assert_eq!(refused, exceeded(below("q"), 4, 0, 5));
    bench.make(job, kv("q/c", "", 3)).unwrap();
    // The prefix ends, and its quota with it; a prefix that replaces it under the same name counts its
    // descendants.
    bench.remove(job, "q").unwrap();
    bench.make(job, kv("q/c", "more", 3)).unwrap();
    bench.create(job, "q", &[], bounded(7)).unwrap();
    assert_eq!(bench.make(job, kv("q/c", "x", 2)).unwrap_err(), exceeded(below("q"), 7, 6, 2));
    assert_eq!(bench.tree(job).iter().find(|p| &*p.name == "q").unwrap().held_blocks, 6);
}

#[test]
fn who_may_set_and_see_what() {
    let (mut bench, job) = bench();
    let other = bench.job("other");
    let task = bench.create(job, "t", &[], LEASE).unwrap();
    let prefix = QuotaOf::Prefix(job, "t");
    for (actor, of, set, seen) in [
        (Actor::driver(job), prefix, true, true),
        (Actor::task(job, task), prefix, false, true),
        (Actor::driver(job), QuotaOf::Job(job), false, true),
        (Actor::driver(job), QuotaOf::Tenant("acme"), false, false),
        (Actor::driver(other), prefix, false, false),
        (Actor::driver(other), QuotaOf::Job(job), false, false),
        (Actor::CLUSTER, QuotaOf::Tenant("acme"), true, true),
    ] {
        assert_eq!(bench.run(Command::Quota { actor, of }).is_ok(), seen, "{actor:?} {of:?}");
        let command = Command::SetQuota { actor, of, change: QuotaChange::most(9) };
        assert_eq!(bench.run(command).is_ok(), set, "{actor:?} {of:?}");
    }
    let of = QuotaOf::Tenant("a/b");
    let refused =
        bench.run(Command::SetQuota { actor: Actor::CLUSTER, of, change: QuotaChange::most(1) });
    assert!(matches!(refused, Err(CatalogError::InvalidName(_))), "{refused:?}");
}

#[test]
fn nothing_is_given_within_a_quota_while_servers_are_awaited() {
    let (mut bench, job) = bench();
    bench.create(job, "q", &[], bounded(5)).unwrap();
    bench.restart();
    let new = file("q", "f", 1);
    assert_eq!(bench.make(job, new).unwrap_err(), CatalogError::Recovering);
    come_back(&mut bench);
    assert_eq!(bench.make(job, new).unwrap().kind, Kind::File);
}
