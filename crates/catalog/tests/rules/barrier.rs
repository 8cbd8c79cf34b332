//! Flushes of all blocks as of one moment (INV-49): the order of requests, the snapshots dropped after a
//! block did not freeze, and the flushes that complete together.

use crate::common::{Bench, file, kv, queue};
use honeycomb_catalog::{
    Actor, CatalogError, Command, Effect, FlushState, NewStructure, PrefixOptions, Reply, Seal,
    StopFault, Written,
};
use honeycomb_types::limits::{BARRIER_MAX, BARRIER_TRIES};
use honeycomb_types::{BlockAt, JobId, ServerId, StructureId, Way};
use std::collections::{BTreeMap, BTreeSet};

const WRITTEN: &[Written] = &[Written { bytes: 10, items: 2, crc: 7 }];

/// Requests of the last commands.
#[derive(Default)]
struct Asked {
    cuts: Vec<(u64, BlockAt, u32, u128)>,
    thaws: Vec<(u64, BlockAt, u32)>,
    copies: Vec<(u64, BlockAt, u32, bool, String)>,
    ended: BTreeSet<u64>,
    commits: Vec<(ServerId, u64)>,
}

fn asked(bench: &Bench) -> Asked {
    let mut all = Asked::default();
    for effect in &bench.effects {
        match effect {
            Effect::CutBlock { at, number, hold, attempt, .. } => {
                all.cuts.push((*number, *at, *attempt, hold.as_millis()));
            }
            Effect::ThawBlock { at, number, attempt, .. } => {
                all.thaws.push((*number, *at, *attempt));
            }
            Effect::CopyBlock { at, number, name, cut, object, .. } => {
                all.copies.push((*number, *at, *name, *cut, object.to_string()));
            }
            Effect::EndCopies { number, .. } => drop(all.ended.insert(*number)),
            Effect::CommitFlush { server, number, .. } => all.commits.push((*server, *number)),
            _ => {}
        }
    }
    all
}

fn prefix(bench: &mut Bench, job: JobId, path: &str) {
    let (actor, options) =
        (Actor::driver(job), PrefixOptions { lease_ms: 60_000, ..Default::default() });
    bench.run(Command::CreatePrefix { actor, job, path, parents: &[], options }).unwrap();
}

fn bench() -> (Bench, JobId) {
    let mut bench = Bench::new();
    bench.join_as("s1:1", 1, 40, true);
    bench.join_as("s2:1", 1, 40, true);
    let job = bench.job_leased("job", 3_600_000);
    prefix(&mut bench, job, "t");
    (bench, job)
}

fn make(bench: &mut Bench, job: JobId, new: NewStructure<'_>) -> (StructureId, Vec<BlockAt>) {
    let opened = bench.make(job, new).unwrap();
    let blocks: Vec<BlockAt> = opened.map.entries.iter().map(|entry| entry.at).collect();
    bench.confirm(&blocks);
    (opened.structure, blocks)
}

fn begin(bench: &mut Bench, job: JobId, below: &[&str]) -> Result<u64, CatalogError> {
    let (actor, path, place) = (Actor::driver(job), "t", "out");
    let flush = Command::FlushPrefix { actor, job, path, place, below, barrier: true };
    match bench.run(flush)? {
        Reply::Flushing { number, .. } => Ok(number),
        other => panic!("{other:?}"),
    }
}

fn stopped(
    bench: &mut Bench,
    (number, at, attempt): (u64, BlockAt, u32),
    outcome: Result<bool, (StopFault, &str)>,
) {
    let server = at.block.server();
    bench.run(Command::BlockStopped { server, number, at, attempt, outcome }).unwrap();
}

fn thawed(bench: &mut Bench, (number, at, attempt): (u64, BlockAt, u32), stood: bool) {
    let server = at.block.server();
    bench.run(Command::BlockThawed { server, number, at, attempt, stood }).unwrap();
}

fn copied(bench: &mut Bench, number: u64, at: BlockAt, name: u32) {
    let (server, outcome) = (at.block.server(), Ok((WRITTEN, false)));
    bench.run(Command::BlockCopied { server, number, name, outcome }).unwrap();
}

fn state(bench: &mut Bench, job: JobId, number: u64) -> FlushState {
    match bench.run(Command::FlushInfo { actor: Actor::driver(job), job, number }).unwrap() {
        Reply::FlushInfo(progress) => progress.state,
        other => panic!("{other:?}"),
    }
}

/// All blocks freeze and are thawed; returns the requests after that.
fn cut(bench: &mut Bench, cuts: &[(u64, BlockAt, u32, u128)]) -> Asked {
    for &(number, at, attempt, _) in cuts {
        assert!(asked(bench).thaws.is_empty(), "INV-49: a block is thawed before all are frozen");
        stopped(bench, (number, at, attempt), Ok(false));
    }
    let thaws = asked(bench).thaws;
    let of = |all: &[(u64, BlockAt, u32)]| all.iter().map(|t| t.1).collect::<BTreeSet<_>>();
    let stood: BTreeSet<BlockAt> = cuts.iter().map(|cut| cut.1).collect();
    assert_eq!(of(&thaws), stood);
    for thaw in thaws {
        assert!(
            asked(bench).copies.is_empty(),
            "before all have reported whether they were frozen"
        );
        thawed(bench, thaw, true);
    }
    asked(bench)
}

/// Copies everything; returns the numbers whose manifests are requested, in order.
fn write(bench: &mut Bench, mut waiting: Vec<(u64, BlockAt, u32, bool, String)>) -> Vec<u64> {
    let mut commits = Vec::new();
    while let Some((number, at, name, ..)) = waiting.pop() {
        copied(bench, number, at, name);
        let more = asked(bench);
        waiting.extend(more.copies);
        let mut new = more.commits;
        while let Some((server, number)) = new.pop() {
            commits.push(number);
            bench.run(Command::FlushCommitted { server, number, outcome: Ok(()) }).unwrap();
            new.extend(asked(bench).commits);
        }
    }
    commits
}

#[test]
fn all_stand_still_before_any_goes_on_and_then_their_cuts_are_written() {
    let (mut bench, job) = bench();
    let (s, table) = make(&mut bench, job, kv("t", "table", 4));
    let (_, log) = make(&mut bench, job, file("t", "log", 1));
    let number = begin(&mut bench, job, &[]).unwrap();
    let first = asked(&bench);
    assert_eq!(first.cuts.len(), 5);
    assert!(first.cuts.iter().all(|cut| cut.3 == BARRIER_MAX.as_millis()));
    assert!(first.copies.is_empty());
    // No block begins a move before it is written.
    let split = |bench: &mut Bench| {
        let (start, way) = (1 << 61, Way::Split);
        bench.run(Command::BeginMove { structure: s, at: table[0], start, way }).map(drop)
    };
    assert_eq!(split(&mut bench), Err(CatalogError::Moving { at: table[0] }));
    let copies = cut(&mut bench, &first.cuts).copies;
    assert_eq!(split(&mut bench), Err(CatalogError::Moving { at: table[0] }));
    assert!(copies.iter().all(|copy| copy.3), "of the cut, and of nothing else");
    assert!(copies.iter().all(|copy| table.contains(&copy.1) || log.contains(&copy.1)));
    assert_eq!(write(&mut bench, copies), [number]);
    assert_eq!(state(&mut bench, job, number), FlushState::Done);
    assert_eq!(split(&mut bench), Ok(()));
}

#[cfg(feature = "bug-bank")]
#[test]
fn blocks_that_go_on_too_early_show() {
    use honeycomb_types::Bug;
    let (mut bench, job) = bench();
    make(&mut bench, job, kv("t", "table", 2));
    begin(&mut bench, job, &[]).unwrap();
    let cuts = asked(&bench).cuts;
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Bug::arm(Some(Bug::BarrierThawsEarly));
        for &(number, at, attempt, _) in &cuts {
            stopped(&mut bench, (number, at, attempt), Ok(false));
        }
    }));
    Bug::arm(None);
    let why = found.unwrap_err();
    assert!(why.downcast_ref::<String>().unwrap().contains("INV-49"));
}

#[test]
fn one_that_went_on_by_itself_ends_the_cut_and_five_end_the_flush() {
    let (mut bench, job) = bench();
    make(&mut bench, job, kv("t", "table", 2));
    let number = begin(&mut bench, job, &[]).unwrap();
    for i in 0..BARRIER_TRIES {
        let cuts = asked(&bench).cuts;
        assert_eq!(cuts.len(), 2, "try {i}");
        let hold = BARRIER_MAX.as_millis() << i;
        assert!(cuts.iter().all(|cut| cut.3 == hold), "twice as long each time: {cuts:?}");
        cuts.iter()
            .for_each(|&(n, at, attempt, _)| stopped(&mut bench, (n, at, attempt), Ok(false)));
        let thaws = asked(&bench).thaws;
        thawed(&mut bench, thaws[0], true);
        thawed(&mut bench, thaws[1], false);
        assert!(asked(&bench).copies.is_empty());
        assert!(asked(&bench).ended.contains(&number), "the snapshot is dropped");
        // Answers to an earlier attempt are ignored.
        stopped(&mut bench, (number, cuts[0].1, cuts[0].2), Ok(false));
        thawed(&mut bench, thaws[1], true);
        if i + 1 < BARRIER_TRIES {
            assert!(matches!(state(&mut bench, job, number), FlushState::Failing(_)));
            bench.pass(hold as u64);
        }
    }
    let FlushState::NoCut(why) = state(&mut bench, job, number) else { panic!("it is over") };
    assert!(why.contains("s1:1") || why.contains("s2:1"), "{why}");
    assert!(why.contains("5 tries"), "{why}");
}

#[test]
fn a_server_that_does_not_answer_in_time_is_named() {
    let (mut bench, job) = bench();
    let (_, blocks) = make(&mut bench, job, kv("t", "table", 8));
    let servers: BTreeSet<ServerId> = blocks.iter().map(|at| at.block.server()).collect();
    assert_eq!(servers.len(), 2, "blocks of both servers");
    let slow = *servers.last().unwrap();
    let number = begin(&mut bench, job, &[]).unwrap();
    let mut why = None;
    // Both answer, and one is slow.
    let pass = |bench: &mut Bench, ms: u64| {
        for _ in 0..ms / 200 {
            for &server in &servers {
                bench.run(Command::Swept { server, number: 0, outcome: Ok(()) }).unwrap();
            }
            bench.pass(200);
        }
    };
    for i in 0..BARRIER_TRIES {
        let cuts = asked(&bench).cuts;
        for (n, at, attempt, _) in cuts {
            if at.block.server() != slow {
                stopped(&mut bench, (n, at, attempt), Ok(false));
            }
        }
        assert!(asked(&bench).thaws.is_empty());
        pass(&mut bench, (BARRIER_MAX.as_millis() as u64) << i);
        assert!(asked(&bench).ended.contains(&number), "those that stand still go on at once");
        if let FlushState::NoCut(told) = state(&mut bench, job, number) {
            why = Some(told);
            break;
        }
        pass(&mut bench, (BARRIER_MAX.as_millis() as u64) << i);
    }
    let why = why.expect("it is over after so many tries");
    assert!(why.contains(&*bench.catalog.address_of(slow).unwrap()), "{why}");
}

#[test]
fn what_is_still_arriving_is_waited_for_and_a_chain_is_cut_to_its_open_end() {
    let (mut bench, job) = bench();
    let (s, blocks) = make(&mut bench, job, queue("t", "work", 0));
    let grown = bench.run(Command::GrowStructure { structure: s, at: blocks[0] }).unwrap();
    let number = begin(&mut bench, job, &[]).unwrap();
    let cuts = asked(&bench).cuts;
    let at = |block: BlockAt| *cuts.iter().find(|cut| cut.1 == block).unwrap();
    let (_, tail, attempt, _) = at(blocks[0]);
    stopped(&mut bench, (number, tail, attempt), Err((StopFault::Arriving, "it arrives")));
    assert!(asked(&bench).cuts.is_empty());
    bench.pass(2);
    assert_eq!(asked(&bench).cuts.len(), 1, "it is asked again");
    // It was sealed before it froze: its successor belongs to the snapshot.
    let mut all = cuts.clone();
    bench
        .run(Command::SealBlock {
            structure: s,
            at: tail,
            seal: Seal { length: 3, bytes: 3, last: false },
        })
        .unwrap();
    for (_, block, attempt, _) in all.drain(..) {
        stopped(&mut bench, (number, block, attempt), Ok(block == tail));
    }
    let thaws = asked(&bench).thaws;
    assert!(thaws.len() >= 2, "{grown:?}: the tail, and the one behind it: {thaws:?}");
    // An empty block stays until its snapshot is written.
    let stays = bench.run(Command::RetireBlock { structure: s, at: tail });
    assert_eq!(stays, Err(CatalogError::Moving { at: tail }));
}

#[test]
fn a_subtree_becomes_whole_together() {
    let (mut bench, job) = bench();
    ["t/a", "t/b"].iter().for_each(|path| prefix(&mut bench, job, path));
    make(&mut bench, job, kv("t", "table", 2));
    make(&mut bench, job, kv("t/a", "table", 2));
    let number = begin(&mut bench, job, &["a", "b"]).unwrap();
    let cuts = asked(&bench).cuts;
    let of: BTreeMap<u64, usize> = cuts.iter().fold(BTreeMap::new(), |mut of, cut| {
        *of.entry(cut.0).or_default() += 1;
        of
    });
    assert_eq!(of, BTreeMap::from([(number, 2), (number + 1, 2)]));
    let copies = cut(&mut bench, &cuts).copies;
    let place = |n: u64| copies.iter().find(|copy| copy.0 == n).unwrap().4.clone();
    assert!(place(number).starts_with("job/out/0"), "{}", place(number));
    assert!(place(number + 1).starts_with("job/out/a/"), "{}", place(number + 1));
    let commits = write(&mut bench, copies);
    assert_eq!(commits.len(), 3);
    assert_eq!(commits.last(), Some(&number), "it names the others, which are whole by then");
    assert!((number..number + 3).all(|n| state(&mut bench, job, n) == FlushState::Done));
}

#[test]
fn what_ends_one_of_a_subtree_ends_all_of_it() {
    let (mut bench, job) = bench();
    prefix(&mut bench, job, "t/a");
    make(&mut bench, job, kv("t", "table", 2));
    make(&mut bench, job, kv("t/a", "table", 2));
    let actor = Actor::driver(job);
    let number = begin(&mut bench, job, &["a"]).unwrap();
    bench.run(Command::RemovePrefix { actor, job, path: "t/a" }).unwrap();
    assert_eq!(asked(&bench).ended, BTreeSet::from([number, number + 1]));
    for n in [number, number + 1] {
        assert!(matches!(state(&mut bench, job, n), FlushState::Lost(_)));
    }
    // Cancelled: the same, and the place is free again.
    let number = begin(&mut bench, job, &[]).unwrap();
    let cuts = asked(&bench).cuts;
    bench.run(Command::CancelFlush { actor, job, number }).unwrap();
    assert!(asked(&bench).ended.contains(&number));
    stopped(&mut bench, (number, cuts[0].1, cuts[0].2), Ok(false));
    assert!(matches!(state(&mut bench, job, number), FlushState::Lost(_)));
    assert!(begin(&mut bench, job, &["nothing"]).is_err());
    begin(&mut bench, job, &[]).unwrap();
}

#[test]
fn a_server_that_comes_back_or_knows_nothing_of_its_cut_is_cut_anew() {
    let mut bench = Bench::new();
    let server = bench.join_as("s1:1", 1, 40, true);
    let job = bench.job_leased("job", 3_600_000);
    prefix(&mut bench, job, "t");
    let (s, blocks) = make(&mut bench, job, kv("t", "table", 2));
    let held: Vec<_> = blocks.iter().map(|at| (*at, s)).collect();
    let number = begin(&mut bench, job, &[]).unwrap();
    let first = asked(&bench).cuts;
    let copies = cut(&mut bench, &first).copies;
    copied(&mut bench, number, copies[0].1, copies[0].2);
    bench.run(Command::CutLost { server, number }).unwrap();
    assert!(asked(&bench).ended.contains(&number));
    bench.pass(100);
    let second = asked(&bench).cuts;
    assert_eq!(second.len(), 2, "also what was written is of another moment");
    let copies = cut(&mut bench, &second).copies;
    copied(&mut bench, number, copies[0].1, copies[0].2);
    bench.back(server, &held);
    bench.pass(2);
    let third = asked(&bench).cuts;
    assert_eq!(third.len(), 2);
    assert!(third[0].2 > second[0].2 && second[0].2 > first[0].2);
    // A restarted controller makes a snapshot of its own.
    bench.restart();
    bench.back(server, &held);
    let fourth = asked(&bench).cuts;
    assert_eq!(fourth.len(), 2);
    let copies = cut(&mut bench, &fourth).copies;
    assert_eq!(write(&mut bench, copies), [number]);
}

#[test]
fn two_cuts_of_one_prefix_are_made_one_after_the_other() {
    let (mut bench, job) = bench();
    make(&mut bench, job, kv("t", "table", 2));
    let number = begin(&mut bench, job, &[]).unwrap();
    let first = asked(&bench).cuts;
    let (actor, path, place) = (Actor::driver(job), "t", "other");
    let flush = Command::FlushPrefix { actor, job, path, place, below: &[], barrier: true };
    let Reply::Flushing { number: second, .. } = bench.run(flush).unwrap() else { panic!() };
    assert!(asked(&bench).cuts.is_empty());
    let copies = cut(&mut bench, &first).copies;
    assert_eq!(write(&mut bench, copies), [number]);
    bench.pass(2);
    let cuts = asked(&bench).cuts;
    assert_eq!(cuts.len(), 2);
    let copies = cut(&mut bench, &cuts).copies;
    assert_eq!(write(&mut bench, copies), [second]);
}

#[test]
fn a_lost_server_ends_it_and_those_that_stand_still_go_on() {
    let (mut bench, job) = bench();
    let (_, blocks) = make(&mut bench, job, kv("t", "table", 8));
    let number = begin(&mut bench, job, &[]).unwrap();
    let server = blocks[0].block.server();
    bench.run(Command::ServerLost { server }).unwrap();
    assert!(asked(&bench).ended.contains(&number));
    assert!(matches!(state(&mut bench, job, number), FlushState::Lost(_)));
}
