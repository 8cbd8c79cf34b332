//! Structures: maps, growth, seals, allocation, tombstones (INV-01, 02, 03, 17, 20, 30).

use crate::common::{Bench, LEASE, file, kv};
use honeycomb_catalog::{
    Actor, CatalogError, Command, Effect, MapEntry, Opened, QuotaLevel, Reply, Seal,
};
use honeycomb_types::{BlockAt, Epoch, MapVersion, ServerId, StructureId};
use std::collections::BTreeSet;

fn setup(shards: u8, blocks: u32) -> (Bench, honeycomb_types::JobId, ServerId) {
    let mut bench = Bench::new();
    let server = bench.join("s1:1", shards, blocks);
    let job = bench.job("job");
    bench.create(job, "t", &[], crate::common::lease(3_600_000)).unwrap();
    bench.renew(job, &["t"]);
    (bench, job, server)
}

fn grow(bench: &mut Bench, s: StructureId, at: BlockAt) -> Result<(u64, BlockAt), CatalogError> {
    bench.grow(s, at)
}

fn seal(
    bench: &mut Bench,
    structure: StructureId,
    at: BlockAt,
    length: u64,
    last: bool,
) -> Result<u64, CatalogError> {
    bench.seal(structure, at, Seal { length, bytes: length, last })
}

fn ranges(opened: &Opened) -> Vec<(u64, u64, BlockAt)> {
    let entries = opened.map.entries.iter();
    entries.map(|MapEntry { start, end, at, .. }| (*start, *end, *at)).collect()
}

#[test]
fn a_kv_covers_the_hash_space_in_whole_slots_and_spreads_over_shards() {
    let (mut bench, job, server) = setup(4, 10);
    let opened = bench.make(job, kv("t", "table", 3)).unwrap();
    let slot = 1u64 << 48;
    let map: Vec<_> = ranges(&opened).into_iter().map(|(start, end, _)| (start, end)).collect();
    let expected =
        [(0, 21_845 * slot - 1), (21_845 * slot, 43_690 * slot - 1), (43_690 * slot, u64::MAX)];
    assert_eq!(map, expected);
    let shards: BTreeSet<_> = ranges(&opened).iter().map(|(_, _, at)| at.block.shard()).collect();
    assert_eq!(shards.len(), 3);
    assert_eq!(bench.effects.len(), 3);
    for (effect, (start, end, at)) in bench.effects.iter().zip(ranges(&opened)) {
        let Effect::OpenBlock { server: to, at: block, start: from, end: till, .. } = effect else {
            panic!("{effect:?}")
        };
        assert_eq!((*to, *block, *from, *till), (server, at, start, end));
    }
    assert_eq!(opened.map.version, MapVersion(1));
    assert_eq!(&*opened.map.entries[0].address, "s1:1");
    let wrong = |structure| Command::CreateStructure { actor: Actor::driver(job), job, structure };
    let refused = bench.run(wrong(kv("t", "bad", 65_537)));
    assert!(matches!(refused, Err(CatalogError::InvalidArgument { .. })));
    assert!(matches!(
        grow(&mut bench, opened.structure, opened.map.entries[0].at),
        Err(CatalogError::WrongKind { .. })
    ));
}

#[test]
fn a_file_grows_by_what_was_reserved_first() {
    let (mut bench, job, _) = setup(1, 10);
    let opened = bench.make(job, file("t", "part-0", 2)).unwrap();
    let (id, first) = (opened.structure, opened.map.entries[0].at);
    assert_eq!(ranges(&opened), [(0, u64::MAX, first)]);
    let spare = bench.effects.iter().map(|e| match e {
        Effect::OpenBlock { at, start: 0, end: u64::MAX, .. } => *at,
        other => panic!("{other:?}"),
    });
    let spare = spare.collect::<Vec<_>>()[1];
    assert_eq!(grow(&mut bench, id, first), Ok((2, spare)));
    assert!(bench.effects.is_empty(), "it was open already");
    assert_eq!(grow(&mut bench, id, first), Ok((2, spare)));
    assert_eq!(bench.reopen(job, &opened).unwrap().map.entries.len(), 1);
    assert_eq!(seal(&mut bench, id, first, 1000, false), Ok(2));
    let now = bench.reopen(job, &opened).unwrap();
    assert_eq!(ranges(&now), [(0, 999, first), (1000, u64::MAX, spare)]);
    assert_eq!(now.map.version, MapVersion(2));
    // Repeats get the same answer and change nothing.
    assert_eq!(seal(&mut bench, id, first, 1000, false), Ok(2));
    assert_eq!(grow(&mut bench, id, first), Ok((2, spare)));
    assert!(seal(&mut bench, id, first, 999, false).is_err());
    let (version, third) = grow(&mut bench, id, spare).unwrap();
    assert!(version == 3 && matches!(bench.effects[..], [Effect::OpenBlock { .. }]));
    // The structure itself is sealed: its successor is freed, the last range stays open.
    assert_eq!(seal(&mut bench, id, spare, 7, true), Ok(3));
    assert_eq!(bench.freed(), [third]);
    assert_eq!(seal(&mut bench, id, spare, 7, true), Ok(3));
    assert!(matches!(grow(&mut bench, id, spare), Err(CatalogError::Sealed { .. })));
    let now = bench.reopen(job, &opened).unwrap();
    assert_eq!(ranges(&now), [(0, 999, first), (1000, u64::MAX, spare)]);
    assert!(bench.tree(job)[1].structures[0].sealed);
    assert!(matches!(grow(&mut bench, id, third), Err(CatalogError::StaleBlock { .. })));
}

#[test]
fn seals_that_arrive_out_of_order_are_applied_in_order() {
    let (mut bench, job, _) = setup(2, 10);
    let opened = bench.make(job, file("t", "", 1)).unwrap();
    let (id, a) = (opened.structure, opened.map.entries[0].at);
    assert_eq!(seal(&mut bench, id, a, 5, false), Err(CatalogError::NoSuccessor { at: a }));
    let (_, b) = grow(&mut bench, id, a).unwrap();
    assert_eq!(seal(&mut bench, id, b, 5, false), Err(CatalogError::NoSuccessor { at: b }));
    let (version, c) = grow(&mut bench, id, b).unwrap();
    assert_eq!(version, 3);
    assert_eq!(seal(&mut bench, id, b, 20, false), Ok(3));
    assert_eq!(seal(&mut bench, id, c, 30, true), Ok(4));
    assert!(matches!(grow(&mut bench, id, c), Err(CatalogError::Sealed { .. })));
    assert_eq!(bench.reopen(job, &opened).unwrap().map.version, MapVersion(1));
    assert_eq!(seal(&mut bench, id, a, 10, false), Ok(2));
    let now = bench.reopen(job, &opened).unwrap();
    assert_eq!(ranges(&now), [(0, 9, a), (10, 29, b), (30, u64::MAX, c)]);
    assert_eq!(now.map.version, MapVersion(4));
}

#[test]
fn a_block_that_sealed_empty_is_in_no_map() {
    let (mut bench, job, _) = setup(1, 10);
    let opened = bench.make(job, file("t", "", 1)).unwrap();
    let (id, a) = (opened.structure, opened.map.entries[0].at);
    let (_, b) = grow(&mut bench, id, a).unwrap();
    assert_eq!(seal(&mut bench, id, a, 0, false), Ok(2));
    assert_eq!(bench.freed(), [a]);
    assert_eq!(seal(&mut bench, id, a, 0, false), Ok(2), "a repeat while it is being freed");
    assert_eq!(ranges(&bench.reopen(job, &opened).unwrap()), [(0, u64::MAX, b)]);
    bench.confirm(&[a]);
    assert_eq!(seal(&mut bench, id, a, 0, false), Err(CatalogError::StaleBlock { at: a }));
}

#[test]
fn an_allocation_gives_all_or_nothing_and_keeps_the_reserve() {
    let (mut bench, job, _) = setup(2, 5);
    assert_eq!((bench.status().free, bench.status().reserved), (10, 2));
    let refused = |result: Result<Opened, CatalogError>| match result {
        Err(CatalogError::OutOfMemory(full)) => (full.asked, full.free, full.reserved),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(bench.make(job, kv("t", "big", 9))), (9, 10, 2));
    assert!(bench.effects.is_empty());
    let held = bench.make(job, kv("t", "fits", 8)).unwrap();
    assert_eq!(refused(bench.make(job, file("t", "one", 1))), (1, 2, 2));
    let actor = Actor::driver(job);
    bench.run(Command::RemoveStructure { actor, job, path: "t", name: "fits" }).unwrap();
    let freed = bench.freed();
    assert_eq!(freed.len(), 8);
    // Quarantined blocks have no owner until their server confirms.
    let status = bench.status();
    assert_eq!((status.free, status.quarantined, status.bytes_allocated), (2, 8, 0));
    assert!(bench.make(job, file("t", "one", 1)).is_err());
    let stale = BlockAt { epoch: Epoch(freed[0].epoch.0 + 1), ..freed[0] };
    bench.confirm(&[stale]);
    assert_eq!(bench.status().quarantined, 8);
    bench.confirm(&freed);
    bench.confirm(&freed);
    let status = bench.status();
    assert_eq!((status.free, status.quarantined), (10, 0));
    let again = bench.make(job, file("t", "one", 1)).unwrap();
    let at = again.map.entries[0].at;
    let before = held.map.entries.iter().map(|e| e.at.epoch).max().unwrap();
    assert!(at.epoch > before, "an epoch is never used again");
    // A late confirmation of the earlier epoch frees no block of the new owner.
    bench.confirm(&freed);
    bench.confirm(&[at]);
    assert_eq!(bench.status().free, 9, "the free of this one was not requested");
    assert_eq!(ranges(&bench.reopen(job, &again).unwrap()).len(), 1);
}

#[test]
fn a_quota_bounds_what_a_job_holds() {
    let mut bench = Bench::new();
    bench.join("s1:1", 1, 100);
    let (actor, name) = (Actor::CLUSTER, "small");
    let register = Command::RegisterJob {
        actor,
        name,
        lease_ms: 500,
        quota_blocks: 3,
        hints: Default::default(),
        claim: Default::default(),
    };
    let Ok(Reply::Job { job, .. }) = bench.run(register) else { panic!() };
    let opened = bench.make(job, file("", "a", 2)).unwrap();
    let refused =
        CatalogError::QuotaExceeded { level: QuotaLevel::Job, quota: 3, held: 2, asked: 2 };
    assert_eq!(bench.make(job, kv("", "b", 2)), Err(refused));
    let first = opened.map.entries[0].at;
    let (_, second) = grow(&mut bench, opened.structure, first).unwrap();
    let (_, third) = grow(&mut bench, opened.structure, second).unwrap();
    let refused =
        CatalogError::QuotaExceeded { level: QuotaLevel::Job, quota: 3, held: 3, asked: 1 };
    assert_eq!(grow(&mut bench, opened.structure, third), Err(refused));
    bench.pass(500);
    assert_eq!(bench.freed().len(), 3, "the whole chain goes with the lease");
}

#[test]
fn existing_structures_are_opened_only_when_asked_and_of_the_same_kind() {
    let (mut bench, job, _) = setup(1, 10);
    let first = bench.make(job, file("t", "x", 1)).unwrap();
    let exists = CatalogError::StructureExists { path: "t".into(), name: "x".into() };
    assert_eq!(bench.make(job, file("t", "x", 1)), Err(exists));
    let open = |s| honeycomb_catalog::NewStructure { open_existing: true, ..s };
    assert_eq!(bench.make(job, open(file("t", "x", 5))).unwrap(), first);
    let wrong = bench.make(job, open(kv("t", "x", 1))).unwrap_err();
    assert_eq!(wrong.to_string(), "structure 'x' of prefix 't' is a file, not a kv");
    bench.make(job, open(kv("t", "", 1))).unwrap();
    assert!(bench.open(Actor::driver(job), "t", "").is_ok());
}

#[test]
fn the_reason_of_an_end_is_remembered() {
    let (mut bench, job, _) = setup(1, 10);
    let actor = Actor::driver(job);
    let opened = bench.make(job, file("t", "x", 1)).unwrap();
    bench.run(Command::RemoveStructure { actor, job, path: "t", name: "x" }).unwrap();
    bench.pass(30);
    let (path, name) = ("t".into(), "x".into());
    let removed = CatalogError::StructureRemoved { path, name, ago_ms: 30 };
    assert_eq!(bench.reopen(job, &opened), Err(removed.clone()));
    assert_eq!(bench.open(actor, "t", "x"), Err(removed));
    let never = CatalogError::StructureNotFound { path: "t".into(), name: "y".into() };
    assert_eq!(bench.open(actor, "t", "y"), Err(never));
    let again = bench.make(job, file("t", "x", 1)).unwrap();
    assert_eq!(bench.open(actor, "t", "x").unwrap().structure, again.structure);
    assert!(bench.reopen(job, &opened).is_err(), "the old identity stays gone");
    bench.remove(job, "t").unwrap();
    assert!(matches!(
        bench.reopen(job, &again),
        Err(CatalogError::StructureRemoved { path, .. }) if &*path == "t"
    ));
    assert!(matches!(bench.open(actor, "t", "x"), Err(CatalogError::PrefixRemoved { .. })));
    assert!(matches!(bench.remove(job, "t"), Err(CatalogError::PrefixRemoved { .. })));
    bench.create(job, "t", &[], LEASE).unwrap();
    assert!(matches!(bench.open(actor, "t", "x"), Err(CatalogError::StructureNotFound { .. })));
}

#[test]
fn the_end_of_a_job_frees_everything_it_had() {
    let (mut bench, job, _) = setup(2, 10);
    bench.make(job, kv("t", "a", 4)).unwrap();
    bench.make(job, file("", "b", 3)).unwrap();
    bench.run(Command::DeregisterJob { actor: Actor::driver(job), job }).unwrap();
    let freed = bench.freed();
    assert_eq!(freed.len(), 7);
    bench.confirm(&freed);
    let status = bench.status();
    assert_eq!((status.free, status.jobs, status.prefixes, status.structures), (20, 0, 0, 0));
    assert_eq!(bench.left(job, ""), Err(CatalogError::UnknownJob { job }));
}
