//! Blocks of kvs in lower tiers: which of them are demoted, and which requests they do not receive there.

use crate::common::{Bench, file, kv, queue};
use honeycomb_catalog::{Actor, CatalogError, Command, Opened, Reply};
use honeycomb_types::{BlockAt, JobId, ServerId, TierIx, Way};

const DISK: TierIx = TierIx(1);

/// A server of 12 blocks in memory and 20 on a disk, and a kv of this many.
fn with_store(blocks: u32) -> (Bench, ServerId, JobId, Opened, Vec<BlockAt>) {
    let mut bench = Bench::new();
    let server = bench.join_with_disk("s1:1", 12, 20);
    let job = bench.job_leased("job", 3_600_000);
    let store = bench.make(job, kv("", "store", blocks)).unwrap();
    let blocks: Vec<BlockAt> = store.map.entries.iter().map(|entry| entry.at).collect();
    for &at in &blocks {
        bench.run(Command::BlockOpened { server, at }).unwrap();
    }
    (bench, server, job, store, blocks)
}

/// Makes files until memory has no free block; returns the blocks that were sent a demotion.
fn fill(bench: &mut Bench, job: JobId) -> Vec<BlockAt> {
    let mut lowered = Vec::new();
    for n in 0..12 {
        bench.make(job, file("", &format!("f{n}"), 1)).unwrap();
        lowered.extend(bench.lowered());
    }
    lowered
}

fn goes_down(bench: &mut Bench, store: &Opened, at: BlockAt) {
    let structure = store.structure;
    bench.run(Command::TierChanged { structure, at, tier: DISK }).unwrap();
    assert_eq!(bench.catalog.tiers_of(at), Some((DISK, DISK)));
}

fn moves(
    bench: &mut Bench,
    store: &Opened,
    at: BlockAt,
    start: u64,
    way: Way,
) -> Result<Reply, CatalogError> {
    bench.run(Command::BeginMove { structure: store.structure, at, start, way })
}

#[test]
fn blocks_that_hold_something_and_do_not_move_go_down() {
    let (mut bench, _, job, store, blocks) = with_store(4);
    // The first is empty, and the second is about to move half of its range.
    for &at in &blocks[1..] {
        bench.report(at, 5000);
    }
    let start = store.map.entries[1].start + (1 << 58);
    moves(&mut bench, &store, blocks[1], start, Way::Split).unwrap();
    let mut lowered = fill(&mut bench, job);
    lowered.sort();
    // None is cold, and no other block could be demoted.
    assert_eq!(lowered, blocks[2..]);
}

#[test]
fn what_a_move_fills_is_in_memory() {
    let (mut bench, _, job, store, blocks) = with_store(4);
    bench.report(blocks[3], 5000);
    assert_eq!(fill(&mut bench, job), [blocks[3]]);
    // Two are reserved for moves. The third finds none, however much is free in the lower tier.
    let starts = store.map.entries.iter().map(|entry| entry.start + (1 << 58));
    let splits: Vec<_> = blocks.iter().copied().zip(starts).collect();
    for &(at, start) in &splits[..2] {
        let Ok(Reply::Moving { entry, .. }) = moves(&mut bench, &store, at, start, Way::Split)
        else {
            panic!("two are kept for that");
        };
        assert_eq!(bench.catalog.tiers_of(entry.at), Some((TierIx::MEMORY, TierIx::MEMORY)));
    }
    let (at, start) = splits[2];
    let refused = moves(&mut bench, &store, at, start, Way::Split).unwrap_err();
    assert!(matches!(refused, CatalogError::OutOfMemory(_)), "{refused}");
    // New structures may begin there.
    let made = bench.make(job, kv("", "late", 1)).unwrap();
    assert_eq!(bench.catalog.tiers_of(made.map.entries[0].at).unwrap().0, DISK);
}

#[test]
fn a_neighbour_that_is_below_takes_no_merge_and_leaves_its_server_as_others_do() {
    let (mut bench, server, job, store, blocks) = with_store(2);
    for &at in &blocks {
        bench.report(at, 5);
    }
    assert_eq!(fill(&mut bench, job), blocks);
    goes_down(&mut bench, &store, blocks[0]);
    bench.run(Command::LowerRefused { server, at: blocks[1] }).unwrap();
    let alone = moves(&mut bench, &store, blocks[1], 0, Way::Merge).unwrap_err();
    assert!(matches!(alone, CatalogError::NoNeighbour { .. }), "{alone}");
    // With another server, everything moves there.
    bench.join("s2:1", 1, 12);
    let (actor, address) = (Actor::CLUSTER, "s1:1");
    bench.run(Command::DrainServer { actor, address, cancel: false }).unwrap();
    let told = bench.evacuated();
    assert!(blocks.iter().all(|at| told.contains(at)), "{told:?}");
}

#[test]
fn what_a_store_has_in_extents_goes_down_and_takes_nothing_there() {
    let (mut bench, server, job, store, _) = with_store(1);
    let actor = Actor::driver(job);
    let extents = |bench: &mut Bench, bytes| {
        let structure = store.structure;
        let asks = Command::ExtentBlocks { actor, job, structure, bytes, full: &[], value: 0 };
        bench.run(asks).map(|reply| match reply {
            Reply::Extents(found) => found,
            other => panic!("{other:?}"),
        })
    };
    let one = |bench: &mut Bench| extents(bench, 100).unwrap()[0].at;
    let first = one(&mut bench);
    bench.run(Command::BlockOpened { server, at: first }).unwrap();
    bench.report(first, 5000);
    assert_eq!(one(&mut bench), first, "it has room");
    assert_eq!(fill(&mut bench, job), [first]);
    // While it is being demoted it accepts nothing. A caller waits for another one in memory, whatever is
    // free in the lower tier.
    let refused = extents(&mut bench, 100).unwrap_err();
    assert!(matches!(refused, CatalogError::OutOfMemory(_)), "{refused}");
    assert!(bench.catalog.awaits_room());
    goes_down(&mut bench, &store, first);
    let second = one(&mut bench);
    assert_ne!(second, first);
    assert_eq!(one(&mut bench), second);
    let (tier, _) = bench.catalog.tiers_of(second).unwrap();
    assert_eq!(tier, TierIx::MEMORY);
    let all = extents(&mut bench, 0).unwrap();
    let room = |at| all.iter().find(|entry| entry.at == at).unwrap().end;
    assert_eq!(room(first), 0);
    assert!(room(second) > 0);
}

#[test]
fn blocks_of_queues_go_down_and_begin_there() {
    let (mut bench, server, job, _, _) = with_store(1);
    let made = bench.make(job, queue("", "jobs", 0)).unwrap();
    let at = made.map.entries[0].at;
    bench.run(Command::BlockOpened { server, at }).unwrap();
    bench.report(at, 700);
    assert_eq!(fill(&mut bench, job), [at]);
    assert_eq!(bench.catalog.tiers_of(at), Some((TierIx::MEMORY, DISK)));
    let late = bench.make(job, queue("", "late", 0)).unwrap().map.entries[0].at;
    assert_eq!(bench.catalog.tiers_of(late).unwrap().0, DISK);
}
