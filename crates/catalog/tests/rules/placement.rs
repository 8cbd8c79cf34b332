//! The servers and tiers that receive the blocks of jobs with hints.

use crate::common::{Bench, LEASE, file, kv};
use honeycomb_catalog::{
    Actor, CatalogError, Command, Estimate, Hints, MapEntry, Opened, Reply, Report, TierTraffic,
    TierWeight, Weight,
};
use honeycomb_types::limits::HINT_TASK_BYTES_PER_S;
use honeycomb_types::{JobId, ServerId, TierClass};
use proptest::prelude::*;
use std::collections::BTreeMap;

const BLOCK: u64 = 65_536;

/// Expected to need all servers.
const LARGE: Hints = Hints { not_sensitive: false, tasks: 1000, bytes: 0, bytes_per_s: 0 };

fn job(bench: &mut Bench, name: &str, hints: Hints) -> JobId {
    crate::common::register(bench, name, 60_000, hints).unwrap()
}

fn busy(bench: &mut Bench, server: ServerId, cpu_permille: u16) {
    let report = Report { cpu_permille, ..Report::default() };
    bench.run(Command::ServerReport { server, report }).unwrap();
}

/// Blocks by server.
fn placed(opened: &Opened) -> BTreeMap<ServerId, usize> {
    let mut placed = BTreeMap::new();
    let server = |entry: &MapEntry| entry.at.block.server();
    opened.map.entries.iter().for_each(|entry| *placed.entry(server(entry)).or_default() += 1);
    placed
}

fn weights(bench: &mut Bench, actor: Actor, job: JobId) -> (Estimate, Vec<Weight>) {
    match bench.run(Command::JobWeights { actor, job }) {
        Ok(Reply::Weights { expected, weights, .. }) => (expected, weights),
        other => panic!("{other:?}"),
    }
}

/// Thousandths by tier, memory first.
fn tiers(bench: &mut Bench, actor: Actor, job: JobId) -> Vec<TierWeight> {
    match bench.run(Command::JobWeights { actor, job }) {
        Ok(Reply::Weights { tiers, .. }) => tiers,
        other => panic!("{other:?}"),
    }
}

fn shares(all: &[TierWeight]) -> Vec<u64> {
    all.iter().map(|tier| tier.weight).collect()
}

/// Blocks with a place in memory, and in each lower tier.
fn by_tier(bench: &mut Bench) -> Vec<u64> {
    let Ok(Reply::Status(status)) = bench.run(Command::ClusterStatus { actor: Actor::CLUSTER })
    else {
        panic!()
    };
    let below = status.tiers.iter().map(|tier| tier.used);
    [status.blocks - status.free].into_iter().chain(below).collect()
}

/// A server moves these numbers of bytes per second to and from its tiers, for some seconds.
fn flows(bench: &mut Bench, server: ServerId, per_s: &[u64]) {
    let mut traffic = vec![TierTraffic::default(); per_s.len()];
    for _ in 0..5 {
        bench.pass(1000);
        for (moved, per_s) in traffic.iter_mut().zip(per_s) {
            (moved.written, moved.read) = (moved.written + per_s / 2, moved.read + per_s / 2);
        }
        let report = Report { traffic: &traffic, ..Report::default() };
        bench.run(Command::ServerReport { server, report }).unwrap();
    }
}

const MB: u64 = 1_000_000;

#[test]
fn who_need_not_be_in_memory_begins_where_what_it_moves_is_served() {
    let mut bench = Bench::new();
    let disks = [(TierClass::Nvme, 400), (TierClass::Ssd, 400), (TierClass::Hdd, 400)];
    let server = bench.join_with_tiers("a:1", 400, &disks);
    let says = |mb: u64| Hints { not_sensitive: true, bytes_per_s: mb * MB, ..Hints::default() };
    let mut make = |name: &str, mb| job(&mut bench, name, says(mb));
    let [slow, some, much] =
        [("slow", 60), ("some", 300), ("much", 2000)].map(|(n, mb)| make(n, mb));
    let sensitive = Hints { bytes_per_s: 60 * MB, ..Hints::default() };
    let sensitive = job(&mut bench, "sensitive", sensitive);
    let plain = job(&mut bench, "plain", Hints::default());
    let of = |bench: &mut Bench, job| shares(&tiers(bench, Actor::CLUSTER, job));
    assert_eq!(of(&mut bench, slow), [0, 0, 0, 1000]);
    assert_eq!(of(&mut bench, some), [0, 0, 1000, 0]);
    assert_eq!(of(&mut bench, much), [200, 500, 250, 50]);
    assert_eq!(of(&mut bench, sensitive), [1000, 0, 0, 0]);
    assert_eq!(of(&mut bench, plain), [0; 0]);
    // Blocks are placed by the weights.
    for (job, placed) in
        [(slow, [0, 0, 0, 20]), (some, [0, 0, 20, 20]), (sensitive, [20, 0, 20, 20])]
    {
        bench.create(job, "p", &[], LEASE).unwrap();
        for n in 0..20 {
            bench.make(job, file("p", &format!("f{n}"), 1)).unwrap();
        }
        assert_eq!(by_tier(&mut bench), placed);
    }
    bench.create(much, "p", &[], LEASE).unwrap();
    for n in 0..100 {
        bench.make(much, file("p", &format!("f{n}"), 1)).unwrap();
    }
    assert_eq!(by_tier(&mut bench), [40, 50, 45, 25]);
    // Blocks that may change do so in memory, on every server.
    bench.make(slow, kv("p", "kv", 3)).unwrap();
    assert_eq!(by_tier(&mut bench), [43, 50, 45, 25]);
    // Others make the disk busy that would do: the next one does. The job's own traffic is not a reason.
    let later = job(&mut bench, "later", says(60));
    flows(&mut bench, server, &[0, 100 * MB, 90 * MB]);
    assert_eq!(of(&mut bench, later), [0, 0, 1000, 0]);
    assert_eq!(of(&mut bench, slow), [0, 0, 0, 1000]);
    let told = tiers(&mut bench, Actor::CLUSTER, later);
    let left: Vec<u64> = told.iter().map(|tier| tier.bytes_per_s / MB).collect();
    assert_eq!((left[1], left[0]), (1000, 0));
    assert!((395..=410).contains(&left[2]) && (5..=20).contains(&left[3]), "{left:?}");
    // A job sees its shares, and nothing of others' load.
    let own = tiers(&mut bench, Actor::driver(later), later);
    assert_eq!(shares(&own), [0, 0, 1000, 0]);
    assert!(own.iter().all(|tier| (tier.free, tier.bytes_per_s) == (0, 0)));
}

#[test]
fn what_no_disk_serves_leaves_memory_alone_when_it_is_short() {
    let mut bench = Bench::new();
    bench.join_with_tiers("a:1", 24, &[(TierClass::Ssd, 400)]);
    let much = Hints { not_sensitive: true, bytes_per_s: 1000 * MB, ..Hints::default() };
    let much = job(&mut bench, "much", much);
    assert_eq!(shares(&tiers(&mut bench, Actor::CLUSTER, much)), [500, 500]);
    let plain = job(&mut bench, "plain", Hints::default());
    bench.make(plain, kv("", "kv", 18)).unwrap();
    assert_eq!(shares(&tiers(&mut bench, Actor::CLUSTER, much)), [0, 1000]);
    // With the disk full as well, only memory is left.
    for n in 0..400 {
        bench.make(much, file("", &format!("f{n}"), 1)).unwrap();
    }
    assert_eq!(by_tier(&mut bench), [18, 400]);
    assert_eq!(shares(&tiers(&mut bench, Actor::CLUSTER, much)), [1000, 0]);
    bench.make(much, file("", "last", 1)).unwrap();
    assert_eq!(by_tier(&mut bench), [19, 400]);
}

/// A job that need not be in memory leaves it to others, where there is a lower tier. Kinds that work only in
/// memory get memory all the same, and so does a file when no lower tier has room.
#[test]
fn who_need_not_be_in_memory_is_placed_below() {
    let mut bench = Bench::new();
    bench.join_with_disk("a:1", 16, 8);
    let patient = job(&mut bench, "patient", Hints { not_sensitive: true, ..Hints::default() });
    let plain = job(&mut bench, "plain", Hints::default());
    let place = |bench: &mut Bench| {
        let Ok(Reply::Status(status)) = bench.run(Command::ClusterStatus { actor: Actor::CLUSTER })
        else {
            panic!()
        };
        (status.blocks - status.free, status.tiers[0].used)
    };
    bench.make(patient, file("", "below", 5)).unwrap();
    assert_eq!(place(&mut bench), (0, 5));
    bench.make(plain, file("", "above", 3)).unwrap();
    bench.make(patient, kv("", "kv", 2)).unwrap();
    assert_eq!(place(&mut bench), (5, 5));
    // The blocks that exceed the lower tiers are all in memory.
    bench.make(patient, file("", "rest", 4)).unwrap();
    assert_eq!(place(&mut bench), (9, 5));
}

#[test]
fn a_busy_server_gets_a_tenth_of_its_share() {
    let mut bench = Bench::new();
    let [idle, loaded] = ["a:1", "b:1"].map(|address| bench.join(address, 4, 64));
    let (steered, plain) =
        (job(&mut bench, "steered", LARGE), job(&mut bench, "plain", Hints::default()));
    busy(&mut bench, loaded, 900);
    let opened = bench.make(steered, kv("", "kv", 110)).unwrap();
    assert_eq!(placed(&opened), BTreeMap::from([(idle, 100), (loaded, 10)]));
    // A job without hints uses the emptiest server, busy or not.
    let opened = bench.make(plain, kv("", "kv", 60)).unwrap();
    assert_eq!(placed(&opened), BTreeMap::from([(loaded, 60)]));
}

#[test]
fn weights_are_in_proportion_to_what_is_free_and_follow_the_load() {
    let mut bench = Bench::new();
    let [small, large] = [("a:1", 22), ("b:1", 62)].map(|(at, n)| bench.join(at, 1, n));
    let id = job(&mut bench, "steered", LARGE);
    // 20 and 60 beside the reserves.
    let opened = bench.make(id, kv("", "even", 8)).unwrap();
    assert_eq!(placed(&opened), BTreeMap::from([(small, 2), (large, 6)]));
    // In between the present weights are reported, which are recomputed a second later.
    busy(&mut bench, large, 1000);
    let opened = bench.make(id, kv("", "at once", 4)).unwrap();
    assert_eq!(placed(&opened), BTreeMap::from([(small, 1), (large, 3)]));
    bench.pass(1000);
    busy(&mut bench, large, 1000);
    busy(&mut bench, small, 0);
    let opened = bench.make(id, kv("", "later", 11)).unwrap();
    // 17 of 17 against 51 of 51 at a tenth: 17 to 5.1.
    assert_eq!(placed(&opened)[&small], 8);
    let (expected, all) = weights(&mut bench, Actor::CLUSTER, id);
    assert_eq!(expected.bytes_per_s, 2_000_000_000);
    let free: Vec<(u32, u16)> = all.iter().map(|w| (w.free, w.cpu_permille)).collect();
    assert_eq!(free, [(9, 0), (48, 1000)]);
    // The job itself sees shares, and no servers.
    let (_, own) = weights(&mut bench, Actor::driver(id), id);
    assert!(own.iter().all(|w| (w.server, w.free, w.cpu_permille) == (ServerId(0), 0, 0)));
    assert!(own[0].weight >= own[1].weight);
    let other = job(&mut bench, "other", Hints::default());
    let refused = bench.run(Command::JobWeights { actor: Actor::driver(other), job: id });
    assert_eq!(refused, Err(CatalogError::UnknownJob { job: id }));
    assert_eq!(weights(&mut bench, Actor::driver(other), other).1, []);
}

#[test]
fn a_small_job_has_as_few_servers_as_it_needs() {
    let mut bench = Bench::new();
    let servers = ["a:1", "b:1", "c:1"].map(|address| bench.join(address, 2, 32));
    let hints = Hints { bytes: 10 * BLOCK, tasks: 2, ..Hints::default() };
    let id = job(&mut bench, "small", hints);
    bench.create(id, "p", &[], LEASE).unwrap();
    let opened = bench.make(id, file("p", "one", 1)).unwrap();
    let home = opened.map.entries[0].at.block.server();
    for n in 0..20 {
        bench.pass(300);
        servers.iter().for_each(|&server| busy(&mut bench, server, 0));
        bench.renew(id, &["p"]);
        let opened = bench.make(id, file("p", &format!("f{n}"), 1)).unwrap();
        assert_eq!(placed(&opened), BTreeMap::from([(home, 1)]));
    }
    // The expected need is no bound: other servers are used when the job's own is full.
    let opened = bench.make(id, kv("p", "more", 60)).unwrap();
    assert!(placed(&opened).len() >= 2, "{:?}", placed(&opened));
    let wide = Hints { bytes_per_s: 2 * HINT_TASK_BYTES_PER_S * 10, ..Hints::default() };
    let wide = job(&mut bench, "wide", wide);
    let (_, all) = weights(&mut bench, Actor::CLUSTER, wide);
    assert_eq!(all.iter().filter(|w| w.weight > 0).count(), 2);
}

#[test]
fn a_restart_makes_the_same_weights() {
    let mut bench = Bench::new();
    for address in ["a:1", "b:1"] {
        bench.join(address, 2, 32);
    }
    let id = job(&mut bench, "steered", LARGE);
    bench.make(id, kv("", "kv", 20)).unwrap();
    let before = weights(&mut bench, Actor::CLUSTER, id).0;
    bench.restart();
    assert_eq!(weights(&mut bench, Actor::CLUSTER, id).0, before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The same requests go to two catalogs, one with hints and one without: every allocation that succeeds
    /// without hints succeeds with them.
    #[test]
    fn weights_refuse_nothing(
        sizes in prop::collection::vec(0..12u32, 1..4),
        loads in prop::collection::vec(0..1000u16, 4),
        asks in prop::collection::vec(1..9u32, 1..12),
    ) {
        let mut benches = [Hints::default(), LARGE].map(|hints| {
            let mut bench = Bench::new();
            for (n, blocks) in sizes.iter().enumerate() {
                let server = bench.join(&format!("s{n}:1"), 2, *blocks);
                busy(&mut bench, server, loads[n]);
            }
            let id = job(&mut bench, "j", hints);
            (bench, id)
        });
        for (n, blocks) in asks.into_iter().enumerate() {
            let [plain, steered] = benches.each_mut().map(|(bench, id)| {
                bench.make(*id, kv("", &format!("kv{n}"), blocks)).map(|opened| placed(&opened).values().sum::<usize>())
            });
            prop_assert_eq!(plain, steered);
        }
    }
}
