//! Promotion of blocks in lower tiers that are read often: only into room that is unlikely to be requested
//! soon, and without a demotion.

use crate::common::{Bench, file};
use honeycomb_catalog::{Actor, Command, Effect, Hints};
use honeycomb_types::{BlockAt, JobId, PolicyKind, ServerId, StructureId, TierIx};

/// A server of 12 blocks in memory, two of which are reserved; files of one block each fill it, and some are
/// in the lower tier.
fn filled() -> (Bench, ServerId, JobId, Vec<(StructureId, BlockAt)>) {
    filled_under(Bench::new())
}

fn filled_under(mut bench: Bench) -> (Bench, ServerId, JobId, Vec<(StructureId, BlockAt)>) {
    let server = bench.join_with_disk("s1:1", 12, 20);
    let job = bench.job_leased("job", 3_600_000);
    let mut files = Vec::new();
    for n in 0..16 {
        let made = bench.make(job, file("", &format!("f{n}"), 1)).unwrap();
        let at = made.map.entries[0].at;
        bench.run(Command::BlockOpened { server, at }).unwrap();
        files.push((made.structure, at));
    }
    (bench, server, job, files)
}

fn raised(bench: &mut Bench, (structure, at): (StructureId, BlockAt)) -> bool {
    bench.run(Command::RaiseBlock { structure, at }).unwrap();
    let up = Effect::LowerBlock { server: at.block.server(), at, tier: TierIx::MEMORY };
    assert!(bench.effects.is_empty() || bench.effects == [up], "{:?}", bench.effects);
    !bench.effects.is_empty()
}

fn remove(bench: &mut Bench, job: JobId, n: usize) {
    let actor = Actor::driver(job);
    let name = format!("f{n}");
    bench.run(Command::RemoveStructure { actor, job, path: "", name: &name }).unwrap();
    let freed = bench.freed();
    bench.confirm(&freed);
}

#[test]
fn a_block_comes_up_when_more_is_free_than_makes_others_go_down() {
    let (mut bench, _, job, files) = filled();
    let below: Vec<_> = files
        .iter()
        .copied()
        .filter(|(_, at)| bench.catalog.tiers_of(*at).unwrap().0.is_below())
        .collect();
    assert!(below.len() >= 4, "files that found no memory begin in the lower tier");
    let [first, second, ..] = below[..] else { unreachable!("counted above") };
    let in_memory: Vec<usize> = (0..16).filter(|n| !below.contains(&files[*n])).collect();
    // The mark is two blocks, and twice as many have to be free beyond the reserve.
    let mut gone = in_memory.into_iter();
    while bench.catalog.free_in_memory() < 4 {
        assert!(!raised(&mut bench, first), "no block may be demoted for it");
        remove(&mut bench, job, gone.next().unwrap());
    }
    assert!(!raised(&mut bench, first));
    remove(&mut bench, job, gone.next().unwrap());
    let used = bench.status().tiers[0].used;
    assert!(raised(&mut bench, first));
    // It counts in both until it has arrived (INV-42), so the next has no room.
    assert_eq!((bench.catalog.free_in_memory(), bench.status().tiers[0].used), (4, used));
    assert!(!raised(&mut bench, first) && !raised(&mut bench, second));
    let (structure, at) = first;
    bench.run(Command::TierChanged { structure, at, tier: TierIx::MEMORY }).unwrap();
    assert_eq!((bench.catalog.free_in_memory(), bench.status().tiers[0].used), (4, used - 1));
    // After a refusal by its server, the promotion is not repeated for a second.
    remove(&mut bench, job, gone.next().unwrap());
    assert!(raised(&mut bench, second));
    let (_, at) = second;
    bench.run(Command::LowerRefused { server: at.block.server(), at }).unwrap();
    assert_eq!((bench.catalog.free_in_memory(), bench.status().tiers[0].used), (5, used - 1));
    assert!(!raised(&mut bench, second));
    for _ in 0..2 {
        bench.pass(700);
    }
    assert!(raised(&mut bench, second));
    // It ends while it is being promoted: it occupies room in no tier.
    let n = files.iter().position(|file| *file == second).unwrap();
    remove(&mut bench, job, n);
    assert_eq!((bench.catalog.free_in_memory(), bench.status().tiers[0].used), (5, used - 2));
}

/// Under a fair policy as well: a frequent reader gets unrequested room, whatever its share, and a block of
/// another holder above its own share stays in place.
#[test]
fn nobody_goes_down_for_a_block_that_comes_up_under_a_fair_policy() {
    let (mut bench, _, job, files) = filled_under(Bench::with_policy(1, PolicyKind::MaxMin));
    let is_below = |bench: &Bench, at| bench.catalog.tiers_of(at).unwrap().0.is_below();
    let (below, above): (Vec<_>, Vec<_>) = (0..16).partition(|n| is_below(&bench, files[*n].1));
    let first = files[below[0]];
    let mut gone = above.into_iter();
    while bench.catalog.free_in_memory() <= 4 {
        assert!(!raised(&mut bench, first), "no block may be demoted for it");
        remove(&mut bench, job, gone.next().unwrap());
    }
    // Nothing else follows from it.
    assert!(raised(&mut bench, first));
    assert!(gone.all(|n| !is_below(&bench, files[n].1)));
}

/// Memory comes last for a job that is not sensitive to latency, however much of it is free.
#[test]
fn what_need_not_be_in_memory_stays_below() {
    let mut bench = Bench::new();
    bench.join_with_disk("s1:1", 12, 20);
    let hints = Hints { not_sensitive: true, ..Hints::default() };
    let job = crate::common::register(&mut bench, "job", 60_000, hints).unwrap();
    let made = bench.make(job, file("", "f", 1)).unwrap();
    let (structure, at) = (made.structure, made.map.entries[0].at);
    assert!(bench.catalog.tiers_of(at).unwrap().0.is_below());
    bench.run(Command::BlockOpened { server: at.block.server(), at }).unwrap();
    assert!(!raised(&mut bench, (structure, at)));
}
