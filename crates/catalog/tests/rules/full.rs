//! An `OutOfMemory` error names the caller, the available room, and its holders; and of other jobs only the
//! amount.

use crate::common::{Bench, LEASE, file};
use honeycomb_catalog::{Actor, CatalogError, Command, Effect, Full};
use honeycomb_types::limits::LOTS_AGAIN;
use honeycomb_types::{BlockAt, JobId, ServerId, StructureId, TierIx};

/// The longest message that travels.
const MESSAGE_MAX: usize = 1024;

/// Makes a file of one block; other refusals fail the test.
fn make(
    bench: &mut Bench,
    job: JobId,
    path: &str,
    name: &str,
) -> Result<(StructureId, BlockAt), Full> {
    match bench.make(job, file(path, name, 1)) {
        Ok(made) => Ok((made.structure, made.map.entries[0].at)),
        Err(CatalogError::OutOfMemory(full)) => Err(*full),
        Err(other) => panic!("{other}"),
    }
}

fn open(bench: &mut Bench, server: ServerId, made: &[(StructureId, BlockAt)]) {
    for &(_, at) in made {
        bench.run(Command::BlockOpened { server, at }).unwrap();
    }
}

#[test]
fn what_is_told_adds_up_and_names_nobody_else() {
    let mut bench = Bench::new();
    let server = bench.join_with_disk("s1:1", 12, 6);
    let other = bench.job_leased("SECRET-JOB", 3_600_000);
    bench.create(other, "SECRET-PREFIX", &[], LEASE).unwrap();
    let theirs: Vec<_> = (0..7)
        .map(|n| make(&mut bench, other, "SECRET-PREFIX", &format!("SECRET-{n}")).unwrap())
        .collect();
    open(&mut bench, server, &theirs);
    let job = bench.job_leased("sort", 3_600_000);
    bench.create(job, "map", &[], LEASE).unwrap();
    bench.create(job, "reduce", &[], LEASE).unwrap();
    let mut ours = vec![make(&mut bench, job, "reduce", "r").unwrap()];
    let mut n = 0;
    let full = loop {
        match make(&mut bench, job, "map", &format!("m{n}")) {
            Ok(made) => ours.push(made),
            Err(full) => break full,
        }
        n += 1;
    };
    let below = |at: BlockAt| usize::from(bench.catalog.tiers_of(at).unwrap().0 != TierIx::MEMORY);
    let mut counted = [0; 2];
    ours.iter().for_each(|(_, at)| counted[below(*at)] += 1);
    assert_eq!(full.holding.tiers, counted);
    assert_eq!((&*full.asker, full.asked), (&*format!("map:m{n}"), 1));
    let expected = [("map".into(), ours.len() as u64 - 1), ("reduce".into(), 1)];
    assert_eq!(full.holding.prefixes, expected, "the largest first");
    let totals: Vec<_> = full.tiers.iter().map(|tier| (tier.name, tier.total, tier.free)).collect();
    assert_eq!(totals, [("memory", 12, 2), ("nvme", 6, 0)]);
    let text = full.to_string();
    assert!(!text.contains("SECRET"), "{text}");
    let others =
        format!("other jobs hold {} in memory, {} in nvme", 10 - counted[0], 6 - counted[1]);
    assert!(text.contains(&others), "{text}");
    assert!(text.contains("Job 'sort' holds"), "{text}");
}

/// With several controller shards a server lends room. Blocks lent elsewhere, or to no shard, do not count as
/// held by other jobs that this shard knows. Neither do freed blocks that are not confirmed.
#[test]
fn what_is_lent_elsewhere_or_being_freed_is_nobodys() {
    let mut bench = Bench::new();
    let server = bench.join_as("s1:1", 1, 16, false);
    bench.run(Command::Lent { server, lent: &[8] }).unwrap();
    let other = bench.job_leased("other", 3_600_000);
    bench.create(other, "p", &[], LEASE).unwrap();
    let theirs: Vec<_> =
        (0..2).map(|n| make(&mut bench, other, "p", &format!("f{n}")).unwrap()).collect();
    open(&mut bench, server, &theirs);
    let job = bench.job_leased("sort", 3_600_000);
    bench.create(job, "map", &[], LEASE).unwrap();
    // Of the 8 it has kept those that are out, the reserve and no spare ones.
    let told = make(&mut bench, job, "map", "m").unwrap_err();
    let memory = &told.tiers[0];
    assert_eq!((memory.total, memory.out, memory.free, memory.elsewhere), (16, 2, 2, 12));
    let text = told.to_string();
    assert!(text.contains("; other jobs hold 2 in memory; 12 in memory are lent"), "{text}");
    // A block of the other job is freed, and its server has not confirmed yet.
    let actor = Actor::driver(other);
    bench.run(Command::RemoveStructure { actor, job: other, path: "p", name: "f0" }).unwrap();
    bench.pass(1100);
    let told = make(&mut bench, job, "map", "m").unwrap_err();
    assert_eq!(told.holding.kept, [1]);
    let text = told.to_string();
    let said = "; other jobs hold 1 in memory; 1 in memory have no owner and are being freed";
    assert!(text.contains(said), "{text}");
}

/// The other shards return blocks that they do not use, and a server that had too few to lend has more soon.
/// The last requests of a run that two shards shared were refused with three fifths of memory free.
#[test]
fn allocation_that_lacks_lots_waits_while_the_other_shards_may_return_some() {
    // An allocation of more blocks than there are does not wait, and does not end the wait of another one.
    for (requests, waits) in [(&[1][..], true), (&[16], false), (&[1, 16], true)] {
        let mut bench = Bench::new();
        let server = bench.join_as("s1:1", 1, 16, false);
        bench.run(Command::Lent { server, lent: &[8] }).unwrap();
        let job = bench.job_leased("sort", 3_600_000);
        bench.create(job, "map", &[], LEASE).unwrap();
        let made = (0..16).take_while(|n| make(&mut bench, job, "map", &format!("f{n}")).is_ok());
        assert!(made.count() < 8);
        // The answer to the request that the shard made for these files: their blocks and the reserve.
        bench.run(Command::Lent { server, lent: &[4] }).unwrap();
        for &blocks in requests {
            bench.run(Command::ShortOf { units: blocks }).unwrap();
            assert!(bench.catalog.awaits_room(), "the server has not answered");
            let asked = bench.effects.iter().find_map(|effect| match effect {
                Effect::Lots { lots, .. } => Some(lots[0]),
                _ => None,
            });
            // The server has one fewer.
            bench.run(Command::Lent { server, lent: &[asked.unwrap() - 1] }).unwrap();
        }
        assert_eq!(bench.catalog.awaits_room(), waits, "{requests:?}");
        assert!(!bench.catalog.may_borrow() && !bench.catalog.room_may_come());
        bench.pass(LOTS_AGAIN.as_millis() as u64);
        assert!(!bench.catalog.lacks_lots() && bench.catalog.may_borrow(), "it is asked again");
    }
}

#[test]
fn the_longest_names_leave_room_for_the_figures() {
    let mut bench = Bench::new();
    bench.join_as("s1:1", 1, 12, false);
    let job = bench.job_leased(&"j".repeat(60), 3_600_000);
    let mut path = String::new();
    for n in 0..6 {
        let name = format!("{n}{}", "\u{e9}".repeat(60));
        path = if path.is_empty() { name } else { format!("{path}/{name}") };
        bench.create(job, &path, &[], LEASE).unwrap();
        make(&mut bench, job, &path, &"f".repeat(60)).unwrap();
    }
    let full = (0..20).find_map(|n| make(&mut bench, job, &path, &format!("g{n}")).err()).unwrap();
    let text = full.to_string();
    assert!(text.len() <= MESSAGE_MAX, "{} bytes: {text}", text.len());
    assert!(text.ends_with("or add a memory server or disks"), "{text}");
    assert_eq!(full.holding.prefixes.len(), 5);
}
