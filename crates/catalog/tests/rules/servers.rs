//! Memory servers: joining, reports, and the losses with a server.

use crate::common::{Bench, LEASE, file, kv, server};
use honeycomb_catalog::{
    Actor, BlockUsage, CatalogError, Command, Loss, NewServer, PrefixState, Reply, Report,
    TierAlarm,
};
use honeycomb_types::{AlarmKind, ServerId, TierClass, TierIx, Verbs};

const REPORT: Report<'static> = Report {
    bytes_resident: 1 << 20,
    connections: 3,
    requests: 100,
    forwarded: 5,
    bytes_owed: 0,
    cpu_permille: 0,
    traffic: &[],
    alarms: &[],
    usage: &[],
};

#[test]
fn data_goes_with_its_server_and_the_reason_is_told() {
    let mut bench = Bench::new();
    let (job, other) = (bench.job("job"), bench.job("other"));
    let (s1, s2) = (bench.join("s1:1", 2, 10), bench.join("s2:1", 2, 10));
    bench.create(job, "t", &[], LEASE).unwrap();
    let table = bench.make(job, kv("t", "table", 4)).unwrap();
    let elsewhere = bench.make(other, file("", "safe", 1)).unwrap();
    let survivor = elsewhere.map.entries[0].at.block.server();
    let dead = if survivor == s1 { s2 } else { s1 };
    bench.run(Command::ServerLost { server: dead }).unwrap();
    // Two of the four blocks were elsewhere; the dead server is sent nothing.
    assert_eq!(bench.freed().len(), 2);
    assert!(bench.freed().iter().all(|at| at.block.server() == survivor));
    bench.pass(10);
    let told = bench.reopen(job, &table).unwrap_err();
    assert_eq!(bench.open(Actor::driver(job), "t", "table"), Err(told.clone()));
    let address = if dead == s1 { "s1:1" } else { "s2:1" };
    assert!(matches!(
        &told,
        CatalogError::DataLost { path, name, server, how: Loss::Reset, ago_ms: 10 }
            if &**path == "t" && &**name == "table" && &**server == address
    ));
    assert_eq!(bench.tree(job)[1].state, PrefixState::DataLost);
    assert!(bench.reopen(other, &elsewhere).is_ok());
    bench.run(Command::ServerLost { server: dead }).unwrap();
    assert!(bench.effects.is_empty());
    let report = Command::ServerReport { server: dead, report: REPORT };
    assert_eq!(bench.run(report), Err(CatalogError::UnknownServer { server: dead }));
    assert_eq!(bench.status().blocks, 20);
    assert!(bench.make(job, kv("t", "table", 4)).is_ok(), "the name is free again");
}

#[test]
fn every_start_is_a_new_server() {
    let mut bench = Bench::new();
    let job = bench.job("job");
    let first = bench.join("s1:1", 1, 10);
    let opened = bench.make(job, file("", "x", 1)).unwrap();
    let server = NewServer { incarnation: 99, block_size: 1 << 20, ..server("s1:1", 3, 4) };
    let second = match bench.run(Command::JoinServer { server }) {
        Ok(Reply::Joined(id)) => id,
        other => panic!("{other:?}"),
    };
    assert_eq!(second, ServerId(first.0 + 1));
    assert!(matches!(bench.reopen(job, &opened), Err(CatalogError::DataLost { .. })));
    assert_eq!((bench.status().blocks, bench.status().servers.len()), (12, 1));
    let other_size = NewServer { address: "s2:1", incarnation: 5, block_size: 65_536, ..server };
    let refused = bench.run(Command::JoinServer { server: other_size });
    let (given, cluster) = (65_536, 1 << 20);
    assert_eq!(refused, Err(CatalogError::BlockSizeDiffers { given, cluster }));
    for bad in [
        NewServer { address: "", ..server },
        NewServer { shards: 0, ..server },
        NewServer { blocks_per_shard: 1 << 25, tiers: &[], ..server },
        NewServer { block_size: 100_000, ..server },
    ] {
        let refused = bench.run(Command::JoinServer { server: bad });
        assert!(matches!(refused, Err(CatalogError::InvalidArgument { .. })), "{bad:?}");
    }
}

#[test]
fn reports_are_booked_on_the_owners_of_blocks() {
    let mut bench = Bench::new();
    let job = bench.job("job");
    let server = bench.join("s1:1", 1, 10);
    let opened = bench.make(job, file("", "x", 2)).unwrap();
    let at = opened.map.entries[0].at;
    assert!(!bench.catalog.is_open(at));
    bench.run(Command::BlockOpened { server, at }).unwrap();
    assert!(bench.catalog.is_open(at));
    let stale = honeycomb_types::BlockAt { epoch: honeycomb_types::Epoch(1), ..at };
    let usage =
        |bytes| [BlockUsage { at, bytes_used: bytes }, BlockUsage { at: stale, bytes_used: 9999 }];
    for bytes in [4000, 1000] {
        let report = Report { usage: &usage(bytes), ..REPORT };
        bench.run(Command::ServerReport { server, report }).unwrap();
    }
    let Ok(Reply::Jobs(jobs)) = bench.run(Command::ListJobs { actor: Actor::driver(job) }) else {
        panic!()
    };
    assert_eq!((jobs[0].blocks, jobs[0].bytes_used, jobs[0].structures), (2, 1000, 1));
    assert_eq!(bench.tree(job)[0].structures[0].bytes_used, 1000);
    let status = bench.status();
    assert_eq!((status.bytes_used, status.bytes_allocated), (1000, 2 * 65_536));
    assert_eq!((status.servers[0].connections, status.servers[0].forwarded), (3, 5));
    bench.remove(job, "").unwrap();
    assert_eq!(bench.status().bytes_used, 0);
}

#[test]
fn a_change_of_permissions_reaches_every_server_with_a_block() {
    let mut bench = Bench::new();
    let job = bench.job("job");
    for address in ["s1:1", "s2:1", "s3:1"] {
        bench.join(address, 1, 10);
    }
    bench.create(job, "t", &[], LEASE).unwrap();
    let before = bench.make(job, kv("t", "x", 2)).unwrap();
    let actor = Actor::driver(job);
    let (owner_verbs, job_verbs) = (Verbs::READ, Verbs::NONE);
    bench.run(Command::SetPermissions { actor, job, path: "t", owner_verbs, job_verbs }).unwrap();
    let told: Vec<_> = bench.effects.iter().map(|effect| effect.server()).collect();
    let mut holders: Vec<_> =
        before.map.entries.iter().map(|entry| entry.at.block.server()).collect();
    holders.sort();
    assert_eq!(told, holders);
    let after = bench.reopen(job, &before).unwrap();
    assert_eq!((after.generation.0, after.verbs), (before.generation.0 + 1, Verbs::READ));
    assert!(matches!(
        bench.make(job, file("t", "new", 1)),
        Err(CatalogError::PermissionDenied { .. })
    ));
}

#[test]
fn what_is_wrong_with_a_tier_is_told_until_its_server_says_otherwise() {
    let mut bench = Bench::new();
    let server = bench.join_with_tiers("a:1", 8, &[(TierClass::Ssd, 8), (TierClass::Object, 8)]);
    let job = bench.job_leased("job", 60_000);
    let alarm = TierAlarm {
        tier: TierIx(2),
        kind: AlarmKind::Away,
        why: "it does not answer".into(),
        age_ms: 700,
        tried_ms: 100,
    };
    let report = |bench: &mut Bench, alarms: &[TierAlarm]| {
        let report = Report { alarms, ..Report::default() };
        bench.run(Command::ServerReport { server, report }).unwrap();
    };
    report(&mut bench, std::slice::from_ref(&alarm));
    bench.pass(250);
    let status = bench.status();
    let told = TierAlarm { age_ms: 950, tried_ms: 350, ..alarm };
    assert_eq!((status.alarms, &status.servers[0].alarms), (1, &vec![told]));
    // A job sees that there is an alarm.
    let Ok(Reply::Status(status)) = bench.run(Command::ClusterStatus { actor: Actor::driver(job) })
    else {
        panic!("it may ask")
    };
    assert_eq!((status.alarms, status.servers), (1, Vec::new()));
    report(&mut bench, &[]);
    assert_eq!((bench.status().alarms, bench.status().servers[0].alarms.len()), (0, 0));
}
