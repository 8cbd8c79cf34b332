//! What jobs have used, against a plain integrator, and over restarts.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Bench, kv};
use honeycomb_catalog::{Actor, BillInfo, BlockUsage, CatalogError, Command, Reply, Report, Spent};
use honeycomb_types::limits::{BILL_EVERY, BILLS_KEPT};
use honeycomb_types::{BlockAt, JobId, ServerId, Way};
use proptest::prelude::*;

const BLOCK: u64 = 65_536;

fn bills(
    bench: &mut Bench,
    actor: Actor,
    job: Option<JobId>,
) -> Result<Vec<BillInfo>, CatalogError> {
    match bench.run(Command::JobBills { actor, job })? {
        Reply::Bills(bills) => Ok(bills),
        other => panic!("{other:?}"),
    }
}

fn spent(bench: &mut Bench, job: JobId) -> Spent {
    bills(bench, Actor::CLUSTER, Some(job)).unwrap()[0].spent
}

/// A server says what a block holds; its report also has bills written that are due.
fn report(bench: &mut Bench, server: ServerId, used: &[(BlockAt, u64)]) {
    let usage = |&(at, bytes_used): &(BlockAt, u64)| BlockUsage { at, bytes_used };
    let usage: Vec<BlockUsage> = used.iter().map(usage).collect();
    let report = Report { usage: &usage, ..Report::default() };
    bench.run(Command::ServerReport { server, report }).unwrap();
}

#[test]
fn a_job_is_charged_for_its_blocks_and_told_what_of_them_was_data() {
    let mut bench = Bench::new();
    let server = bench.join("a:1", 2, 32);
    let (one, two) = (bench.job_leased("acme/one", 60_000), bench.job_leased("two", 60_000));
    bench.pass(2000);
    report(&mut bench, server, &[]);
    assert_eq!(spent(&mut bench, one), Spent::default());
    let opened = bench.make(one, kv("", "kv", 3)).unwrap();
    bench.run(Command::BlockOpened { server, at: opened.map.entries[0].at }).unwrap();
    bench.pass(1000);
    report(&mut bench, server, &[(opened.map.entries[0].at, 1000)]);
    bench.pass(500);
    let at_first =
        Spent { held: 4500 * u128::from(BLOCK), used: 500_000, peak: 3 * BLOCK, moved: 0 };
    assert_eq!(spent(&mut bench, one), at_first);
    // Asking costs nothing, and others are not charged.
    assert_eq!(spent(&mut bench, one), at_first);
    assert_eq!(spent(&mut bench, two), Spent::default());
    let (actor, job, path, name) = (Actor::driver(one), one, "", "kv");
    bench.run(Command::RemoveStructure { actor, job, path, name }).unwrap();
    bench.pass(1000);
    assert_eq!(spent(&mut bench, one), at_first);
    // A job sees its own, and nobody else's.
    assert_eq!(bills(&mut bench, Actor::driver(one), None).unwrap().len(), 1);
    let refused = bills(&mut bench, Actor::driver(two), Some(one));
    assert_eq!(refused, Err(CatalogError::UnknownJob { job: one }));
    let all = bills(&mut bench, Actor::CLUSTER, None).unwrap();
    let told: Vec<(&str, u64)> = all.iter().map(|bill| (&*bill.name, bill.age_ms)).collect();
    assert_eq!(told, [("acme/one", 4500), ("two", 4500)]);
}

#[test]
fn what_goes_to_another_server_counts_once() {
    let mut bench = Bench::new();
    bench.join("a:1", 1, 16);
    let job = bench.job_leased("j", 60_000);
    let mut opened = Vec::new();
    for name in ["near", "far"] {
        if name == "far" {
            bench.join("b:1", 1, 64); // the emptiest from here on
        }
        let kv = match name {
            "near" => bench.make(job, kv("", name, 1)).unwrap(),
            _ => opened.pop().unwrap(),
        };
        let (structure, at) = (kv.structure, kv.map.entries[0].at);
        let begin = Command::BeginMove { structure, at, start: 1 << 63, way: Way::Split };
        let begin = match name {
            "near" => begin,
            _ => Command::BeginMove { structure, at, start: 1 << 62, way: Way::Split },
        };
        let Ok(Reply::Moving { id, entry }) = bench.run(begin) else { panic!("{name}") };
        let commit = Command::CommitMove { structure, at, id, target: entry.at, bytes: 5000 };
        for _ in 0..2 {
            bench.run(commit).unwrap();
        }
        let far = entry.at.block.server() != at.block.server();
        assert_eq!((far, spent(&mut bench, job).moved), (name == "far", 5000 * u64::from(far)));
        opened.push(kv);
    }
}

#[test]
fn a_restart_loses_little_of_a_bill_and_adds_nothing() {
    let mut bench = Bench::new();
    let server = bench.join("a:1", 2, 32);
    let job = bench.job_leased("j", 3_600_000);
    bench.make(job, kv("", "kv", 2)).unwrap();
    for n in 0..40u64 {
        bench.pass(1000);
        report(&mut bench, server, &[]);
        let exact = u128::from(2 * BLOCK * 1000 * (n + 1));
        assert_eq!(spent(&mut bench, job).held, exact);
        let mut recovered = bench.recovered();
        let command = Command::JobBills { actor: Actor::CLUSTER, job: Some(job) };
        let later = bench.now + std::time::Duration::ZERO;
        let Ok(Reply::Bills(again)) = recovered.apply(later, command, &mut Vec::new()) else {
            panic!("it is there")
        };
        let lost = exact - again[0].spent.held;
        let most = u128::from(2 * BLOCK) * BILL_EVERY.as_millis();
        assert!(lost <= most, "{lost} of {exact} is lost");
    }
    bench.restart();
    let at_restart = spent(&mut bench, job);
    assert!(at_restart.held > 0);
    bench.pass(250);
    assert_eq!(spent(&mut bench, job).held - at_restart.held, u128::from(2 * BLOCK * 250));
}

#[test]
fn the_bill_of_a_job_that_ended_is_kept() {
    let mut bench = Bench::new();
    bench.join("a:1", 2, 32);
    let live = bench.job_leased("live", 3_600_000);
    let mut first = None;
    for n in 0..BILLS_KEPT + 3 {
        let job = bench.job_leased(&format!("acme/j{n}"), 60_000);
        first.get_or_insert(job);
        if n + 1 == BILLS_KEPT + 3 {
            bench.make(job, kv("", "kv", 2)).unwrap();
            bench.pass(700);
            let (actor, ended) = (Actor::driver(job), true);
            bench.run(Command::DeregisterJob { actor, job }).unwrap();
            let used =
                Spent { held: u128::from(2 * BLOCK * 700), used: 0, peak: 2 * BLOCK, moved: 0 };
            for _ in 0..2 {
                let bill = bills(&mut bench, Actor::CLUSTER, Some(job)).unwrap().remove(0);
                assert_eq!((bill.spent, bill.ended, bill.age_ms), (used, ended, 700));
                bench.restart();
            }
        } else {
            bench.run(Command::DeregisterJob { actor: Actor::driver(job), job }).unwrap();
        }
    }
    let all = bills(&mut bench, Actor::CLUSTER, None).unwrap();
    assert_eq!(all.len(), BILLS_KEPT + 1);
    assert_eq!((all[0].ended, all[BILLS_KEPT].job), (true, live));
    // The oldest are forgotten; a job's token never sees those of others.
    assert!(bills(&mut bench, Actor::CLUSTER, first).is_err());
    assert_eq!(bills(&mut bench, Actor::driver(live), None).unwrap().len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Blocks come and go, and time passes: the bills are the integral, and together that over all.
    #[test]
    fn bills_are_the_integral_of_what_is_held(
        steps in prop::collection::vec((0..2usize, 0..6u32, 0..3000u64), 1..40),
    ) {
        let mut bench = Bench::new();
        let server = bench.join("a:1", 2, 48);
        let jobs = ["a", "b"].map(|name| bench.job_leased(name, 604_800_000));
        let mut held = [0u64; 2];
        let mut due = [0u128; 2];
        let mut peak = [0u64; 2];
        for (n, (j, blocks, ms)) in steps.into_iter().enumerate() {
            let (job, name) = (jobs[j], format!("s{n}"));
            if blocks == 0 {
                bench.run(Command::RemoveStructure {
                    actor: Actor::driver(job),
                    job,
                    path: "",
                    name: &format!("s{}", n.saturating_sub(1)),
                })
                .ok();
                let status = bench.run(Command::ListJobs { actor: Actor::driver(job) });
                let Ok(Reply::Jobs(info)) = status else { panic!("{status:?}") };
                held[j] = info[0].blocks;
            } else if bench.make(job, kv("", &name, blocks)).is_ok() {
                held[j] += u64::from(blocks);
            }
            bench.pass(ms.min(2000));
            report(&mut bench, server, &[]);
            for j in 0..2 {
                due[j] += u128::from(held[j] * BLOCK * ms.min(2000));
                if ms > 0 {
                    peak[j] = peak[j].max(held[j] * BLOCK);
                }
            }
        }
        for j in 0..2 {
            let told = spent(&mut bench, jobs[j]);
            prop_assert_eq!(told.held, due[j]);
            prop_assert!(told.peak >= peak[j]);
        }
    }
}
