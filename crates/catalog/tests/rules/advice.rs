//! Advice on the number of servers.

use crate::common::{Bench, LEASE, kv};
use honeycomb_catalog::{Actor, AdviceKind, Command, Report, ServerUse, Use, Verdict, advise};
use honeycomb_types::limits::{ADD_AFTER, REMOVE_AFTER};
use honeycomb_types::{
    AnnouncedKind, CustomKind, Kind, KindSpec, OperationSpec, Route, Router, ScaleMarks, ServerId,
};
use proptest::prelude::*;

const MARKS: ScaleMarks = ScaleMarks { add_above: 80, remove_below: 60, min_servers: 1 };

/// Servers with this use of their blocks, and of the time of their cores in thousandths.
fn servers(all: &[(u64, u64, u64)]) -> Vec<ServerUse> {
    let server = |(n, &(used, of, busy)): (u32, &(u64, u64, u64))| ServerUse {
        server: ServerId(n),
        room: Use { used, of },
        cores: Use { used: busy, of: 1000 },
        leaves: false,
        alone: false,
    };
    (1..).zip(all).map(server).collect()
}

fn advised(all: &[(u64, u64, u64)]) -> (AdviceKind, u32, Option<u32>) {
    let Verdict { what, servers: n, server, .. } = advise(MARKS, &servers(all));
    (what, n, server.map(|id| id.0))
}

#[test]
fn the_table_of_marks() {
    use AdviceKind::{Add, None as Stay, Remove};
    for (all, due) in [
        (&[][..], (Stay, 0, None)),
        (&[(0, 100, 0)], (Stay, 0, None)),
        (&[(80, 100, 800)], (Stay, 0, None)),
        // One of them is too full; advises enough servers to bring the use to 70 %.
        (&[(81, 100, 0)], (Add, 1, None)),
        (&[(100, 100, 0), (100, 100, 0)], (Add, 1, None)),
        (&[(300, 300, 0), (300, 300, 0), (300, 300, 0)], (Add, 2, None)),
        (&[(10, 100, 900)], (Add, 1, None)),
        // All are idle, and will not be too full without that server.
        (&[(50, 100, 0), (20, 100, 0)], (Remove, 1, Some(2))),
        (&[(40, 100, 100), (31, 100, 100)], (Stay, 0, None)),
        (&[(10, 100, 100), (10, 100, 700)], (Stay, 0, None)),
        (&[(60, 100, 0), (60, 100, 0), (60, 100, 0)], (Stay, 0, None)),
        // The server with the least data, if the others suffice.
        (&[(80, 100, 0), (0, 1000, 0), (70, 100, 0)], (Remove, 1, Some(3))),
    ] {
        assert_eq!(advised(all), due, "{all:?}");
    }
}

#[test]
fn who_leaves_has_data_and_no_room_and_who_serves_alone_stays() {
    let mut all = servers(&[(50, 100, 0), (50, 100, 0)]);
    all[1].leaves = true;
    assert_eq!(advise(MARKS, &all).what, AdviceKind::Add);
    let mut all = servers(&[(5, 100, 0), (1, 100, 0)]);
    all[1].alone = true;
    assert_eq!(advise(MARKS, &all).server, Some(ServerId(1)));
    all[0].alone = true;
    assert_eq!(advise(MARKS, &all).what, AdviceKind::None);
    let two = ScaleMarks { min_servers: 2, ..MARKS };
    assert_eq!(advise(two, &servers(&[(5, 100, 0), (1, 100, 0)])).what, AdviceKind::None);
}

proptest! {
    #[test]
    fn an_advice_to_remove_that_is_carried_out_never_makes_one_to_add(
        all in prop::collection::vec((0..1000u64, 1..1000u64, 0..1000u64), 1..12),
        (below, above) in (1..99u8).prop_flat_map(|below| (Just(below), below + 1..100)),
    ) {
        let marks = ScaleMarks::new(above, below, 1).unwrap();
        let all: Vec<_> = all.into_iter().map(|(used, of, busy)| (used % of, of, busy)).collect();
        let mut all = servers(&all);
        let verdict = advise(marks, &all);
        if let Some(gone) = verdict.server {
            prop_assert_eq!(verdict.what, AdviceKind::Remove);
            // While it leaves, and when its data is on other servers.
            let i = all.iter().position(|server| server.server == gone).unwrap();
            all[i].leaves = true;
            prop_assert_ne!(advise(marks, &all).what, AdviceKind::Add);
            let left = all.remove(i);
            let Some(first) = all.first_mut() else { panic!("the last one stays") };
            first.room.used += left.room.used;
            first.cores.used += left.cores.used;
            prop_assert_ne!(advise(marks, &all).what, AdviceKind::Add);
        }
    }

    #[test]
    fn an_advice_to_add_that_is_carried_out_is_enough(
        all in prop::collection::vec((0..1001u64, 0..1001u64), 1..12),
    ) {
        let all: Vec<_> = all.into_iter().map(|(used, busy)| (used, 1000, busy)).collect();
        let mut more = servers(&all);
        let verdict = advise(MARKS, &more);
        if verdict.what == AdviceKind::Add {
            let new = servers(&vec![(0, 1000, 0); verdict.servers as usize]);
            more.extend(new);
            prop_assert_ne!(advise(MARKS, &more).what, AdviceKind::Add);
        }
    }
}

/// Time passes in which a server reports as always.
fn pass(bench: &mut Bench, ids: &[ServerId], ms: u128) {
    let mut left = ms as u64;
    while left > 0 {
        let step = left.min(1000);
        bench.pass(step);
        for &server in ids {
            let report = Report::default();
            bench.run(Command::ServerReport { server, report }).unwrap();
        }
        left -= step;
    }
}

#[test]
fn an_advice_is_given_when_it_was_right_for_some_time_and_is_over_at_once() {
    let mut bench = Bench::new();
    let ids = [bench.join("a:1", 2, 20)];
    let job = bench.job_leased("j", 600_000);
    bench.create(job, "t", &[], LEASE).unwrap();
    bench.make(job, kv("t", "full", 36)).unwrap();
    pass(&mut bench, &ids, ADD_AFTER.as_millis());
    assert_eq!(bench.catalog.advice(true).what, AdviceKind::None);
    pass(&mut bench, &ids, 1000);
    let advice = bench.catalog.advice(true);
    assert_eq!((advice.what, advice.servers), (AdviceKind::Add, 1));
    assert_eq!(&*advice.why, "90% of the block capacity and 0% of the cores are used");
    // A job sees the advice, and not its reason.
    assert_eq!(&*bench.catalog.advice(false).why, "");
    // A second server joined, and a third that is not needed.
    let ids = [ids[0], bench.join("b:1", 2, 20), bench.join("c:1", 2, 20)];
    pass(&mut bench, &ids, 1000);
    assert_eq!(bench.catalog.advice(true).what, AdviceKind::None);
    pass(&mut bench, &ids, REMOVE_AFTER.as_millis());
    let advice = bench.catalog.advice(true);
    assert_eq!((advice.what, &*advice.address), (AdviceKind::Remove, "b:1"));
    let (actor, cancel) = (Actor::CLUSTER, false);
    let address = "b:1";
    bench.run(Command::DrainServer { actor, address, cancel }).unwrap();
    pass(&mut bench, &ids, 1000);
    assert_eq!(bench.catalog.advice(true).what, AdviceKind::None);
}

/// The work was a step for each pair of servers, at each report: with 800 servers, more than a core can do.
#[test]
fn a_report_costs_the_same_however_many_servers_there_are() {
    let steps = |servers: u32| {
        let mut bench = Bench::new();
        let join = |n: u32| bench.join(&format!("s{n}:1"), 1, 4);
        let ids: Vec<ServerId> = (0..servers).map(join).collect();
        pass(&mut bench, &ids, 3000);
        bench.catalog.work().advice / u64::from(3 * servers)
    };
    assert_eq!([steps(1), steps(8), steps(80)], [1, 4, 4]);
}

#[test]
fn who_alone_serves_a_kind_is_not_told_to_go() {
    let log = AnnouncedKind::from(KindSpec {
        kind: Kind::Custom(CustomKind::new(0x80).unwrap()),
        name: "log".into(),
        router: Router::Index,
        operations: vec![OperationSpec::read(1, "look", Route::Each)],
    });
    let goes = |kinds: [&[AnnouncedKind]; 3]| {
        let mut bench = Bench::new();
        let join = |(n, kinds)| bench.join_with(&format!("s{n}:1"), 1, 20, false, kinds).unwrap();
        let ids: Vec<ServerId> = (0..).zip(kinds).map(join).collect();
        pass(&mut bench, &ids, REMOVE_AFTER.as_millis() + 1000);
        let advice = bench.catalog.advice(true);
        assert_eq!(advice.what, AdviceKind::Remove);
        advice.address.to_string()
    };
    let has = std::slice::from_ref(&log);
    assert_eq!(goes([has, &[], &[]]), "s1:1");
    assert_eq!(goes([has, has, &[]]), "s0:1");
}
