//! Prefixes whose changes are acknowledged after they are stored: the journals announced to servers, when
//! journals are deleted, and when they must not be.

use crate::common::{Bench, LEASE, file, kv, queue};
use honeycomb_catalog::{
    ACKNOWLEDGE_FLUSHED, Actor, CatalogError, Command, Effect, JournalAt, PlanNode, PrefixOptions,
    Report, Written,
};
use honeycomb_types::{BlockAt, JobId, ServerId};
use std::sync::Arc;

const STORED: PrefixOptions<'static> =
    PrefixOptions { acknowledge: ACKNOWLEDGE_FLUSHED, lease_ms: 1000, ..LEASE };
const WRITTEN: &[Written] = &[Written { bytes: 10, items: 10, crc: 7 }];

fn bench() -> (Bench, ServerId, JobId) {
    let mut bench = Bench::new();
    bench.catalog.begin_lineage("a1/3");
    let server = bench.join_as("s1:1", 1, 20, true);
    let job = bench.job_leased("job", 3_600_000);
    (bench, server, job)
}

/// A file, with the journal announced for its block; its server has begun the journal.
fn begun(bench: &mut Bench, job: JobId, name: &str) -> (BlockAt, Arc<JournalAt>) {
    let at = bench.make(job, file("t", name, 1)).unwrap().map.entries[0].at;
    let journal = bench.effects.iter().find_map(|effect| match effect {
        Effect::OpenBlock { at: opened, journal, .. } if *opened == at => journal.clone(),
        _ => None,
    });
    bench.run(Command::BlockOpened { server: at.block.server(), at }).unwrap();
    (at, journal.unwrap())
}

/// The deletions of the last command.
fn swept(bench: &Bench) -> Vec<(u64, String, Vec<String>)> {
    let swept = bench.effects.iter().filter_map(|effect| match effect {
        Effect::SweepObjects { number, directory, names, .. } => {
            let names = names.iter().map(|name| name.to_string()).collect();
            Some((*number, directory.to_string(), names))
        }
        _ => None,
    });
    swept.collect()
}

fn flushes(bench: &Bench) -> usize {
    let is = |e: &&Effect| matches!(e, Effect::FlushBlock { .. } | Effect::CommitFlush { .. });
    bench.effects.iter().filter(is).count()
}

fn expire(bench: &mut Bench, server: ServerId) {
    bench.run(Command::ServerReport { server, report: Report::default() }).unwrap();
    bench.pass(1500);
}

#[test]
fn a_block_is_told_whose_journal_it_writes_and_the_log_knows_it() {
    let (mut bench, _, job) = bench();
    bench.create(job, "t", &[], STORED).unwrap();
    let (_, journal) = begun(&mut bench, job, "log");
    assert_eq!((&*journal.directory, &*journal.name), ("job/t", "log"));
    assert_eq!((&*journal.job_name, &*journal.address), ("job", "t"));
    assert!(journal.tag.starts_with("a1.3."), "{}", journal.tag);
    // Another prefix has another journal, even at the place of the first.
    let plan = PlanNode { name: "u", parents: &[], options: STORED, readers: &[] };
    bench.plan(job, &[plan]).unwrap();
    bench.make(job, file("u", "log", 1)).unwrap();
    let other = bench.effects.iter().find_map(|effect| match effect {
        Effect::OpenBlock { journal, .. } => journal.clone(),
        _ => None,
    });
    let other = other.unwrap();
    assert_eq!(&*other.directory, "job/u");
    assert_ne!(other.tag, journal.tag);
    // A restarted controller continues with it.
    bench.restart();
    bench.catalog.begin_lineage("b2/3");
    let server = ServerId(bench.status().servers[0].server.0);
    bench.back(server, &[]);
    let tree = bench.tree(job);
    let prefix = tree.iter().find(|prefix| &*prefix.name == "t").unwrap();
    assert_eq!((prefix.acknowledge, &*prefix.flush_to), (ACKNOWLEDGE_FLUSHED, "t"));
}

#[test]
fn what_it_cannot_promise_is_refused() {
    let (mut bench, _, job) = bench();
    let chain = PrefixOptions { acknowledge: 1, ..LEASE };
    let refused = bench.create(job, "c", &[], chain).unwrap_err();
    assert!(matches!(refused, CatalogError::InvalidArgument { given: 1, .. }), "{refused}");
    bench.create(job, "t", &[], STORED).unwrap();
    for new in [kv("t", "k", 1), queue("t", "q", 0)] {
        let refused = bench.make(job, new).unwrap_err();
        assert!(matches!(refused, CatalogError::NotJournaled { .. }), "{refused}");
    }
    let (actor, below) = (Actor::driver(job), &[][..]);
    let here = Command::FlushPrefix { actor, job, path: "t", place: "t", below, barrier: false };
    let refused = bench.run(here).unwrap_err();
    assert!(matches!(refused, CatalogError::JournalThere { .. }), "{refused}");
    // The root has no name from which a path could be derived.
    let job = bench.job_leased("other", 1000);
    bench.remove(job, "").unwrap();
    let refused = bench.create(job, "", &[], STORED).unwrap_err();
    assert!(matches!(refused, CatalogError::PersistsNowhere), "{refused}");
}

#[test]
fn a_removal_deletes_its_own_journal_and_its_place_is_free_afterwards() {
    let (mut bench, server, job) = bench();
    bench.create(job, "t", &[], STORED).unwrap();
    let (_, journal) = begun(&mut bench, job, "a");
    begun(&mut bench, job, "b");
    let actor = Actor::driver(job);
    bench.run(Command::RemoveStructure { actor, job, path: "t", name: "a" }).unwrap();
    let one = swept(&bench);
    assert_eq!((one.len(), &*one[0].1), (1, "job/t"));
    assert!(one[0].2[0].starts_with(&format!("{}-", journal.tag)) && one[0].2.len() == 1);
    assert!(one[0].2[0].ends_with("*.journal"), "{:?}", one[0].2);
    bench.remove(job, "t").unwrap();
    let all = swept(&bench);
    assert_eq!(all[0].2, [format!("{}*.journal", journal.tag)]);
    assert_eq!(flushes(&bench), 0);
    // Not before it is deleted: the next journal would collide with its objects.
    let refused = bench.create(job, "t", &[], STORED).unwrap_err();
    assert!(matches!(refused, CatalogError::JournalGoes { .. }), "{refused}");
    for number in [one[0].0, all[0].0] {
        bench.run(Command::Swept { server, number, outcome: Ok(()) }).unwrap();
    }
    bench.create(job, "t", &[], STORED).unwrap();
}

#[test]
fn the_end_of_a_lease_is_a_flush_and_of_a_job_only_of_what_persists() {
    let (mut bench, server, job) = bench();
    bench.create(job, "t", &[], STORED).unwrap();
    let (at, _) = begun(&mut bench, job, "a");
    expire(&mut bench, server);
    assert_eq!((flushes(&bench), swept(&bench)), (1, vec![]));
    // Until the manifest is written no new journal begins in its place.
    let refused = bench.create(job, "t", &[], STORED).unwrap_err();
    assert!(matches!(refused, CatalogError::FlushPathTaken { .. }), "{refused}");
    bench.run(Command::BlockFlushed { server, at, outcome: Ok(WRITTEN) }).unwrap();
    let number = bench.effects.iter().find_map(|effect| match effect {
        Effect::CommitFlush { number, .. } => Some(*number),
        _ => None,
    });
    let number = number.unwrap();
    bench.run(Command::FlushCommitted { server, number, outcome: Ok(()) }).unwrap();
    // A prefix without structures, or whose journals never began, replaces no journal of another.
    bench.create(job, "t", &[], STORED).unwrap();
    expire(&mut bench, server);
    assert_eq!((flushes(&bench), swept(&bench).len()), (0, 1));
    let number = swept(&bench)[0].0;
    bench.run(Command::Swept { server, number, outcome: Ok(()) }).unwrap();
    bench.create(job, "t", &[], STORED).unwrap();
    bench.make(job, file("t", "refused", 1)).unwrap();
    expire(&mut bench, server);
    // An earlier deletion is repeated once more.
    let again = swept(&bench).iter().all(|(of, ..)| *of == number);
    assert_eq!((flushes(&bench), again), (0, true));

    bench.create(job, "t", &[], STORED).unwrap();
    begun(&mut bench, job, "goes");
    bench.create(job, "p", &[], PrefixOptions { persist: true, ..STORED }).unwrap();
    let stays = bench.make(job, file("p", "stays", 1)).unwrap().map.entries[0].at;
    bench.run(Command::BlockOpened { server, at: stays }).unwrap();
    bench.run(Command::DeregisterJob { actor: Actor::driver(job), job }).unwrap();
    assert_eq!(flushes(&bench), 1);
    let swept = swept(&bench);
    assert_eq!((swept.len(), &*swept[0].1), (1, "job/t"));
}

#[test]
fn where_memory_was_lost_the_journal_stays() {
    for end in ["removal", "lease", "job"] {
        let (mut bench, server, job) = bench();
        let other = bench.join_as("s2:1", 1, 20, true);
        bench.create(job, "t", &[], STORED).unwrap();
        let (at, _) = begun(&mut bench, job, "a");
        let gone = at.block.server();
        let left = if gone == server { other } else { server };
        bench.run(Command::ServerLost { server: gone }).unwrap();
        assert_eq!(swept(&bench), []);
        let refused = bench.make(job, file("t", "b", 1)).unwrap_err();
        let CatalogError::OnlyInJournal { place, .. } = &refused else { panic!("{refused}") };
        assert!(place.ends_with("job/t"), "{refused}");
        match end {
            "removal" => drop(bench.remove(job, "t").unwrap()),
            "lease" => expire(&mut bench, left),
            _ => {
                bench.run(Command::DeregisterJob { actor: Actor::driver(job), job }).unwrap();
            }
        }
        assert_eq!((flushes(&bench), swept(&bench)), (0, vec![]), "{end}");
    }
}

#[test]
fn its_blocks_stay_where_they_are() {
    let (mut bench, server, job) = bench();
    bench.join_as("s2:1", 1, 20, true);
    bench.create(job, "t", &[], PrefixOptions { pinned: true, ..STORED }).unwrap();
    let (at, _) = begun(&mut bench, job, "a");
    let address = if at.block.server() == server { "s1:1" } else { "s2:1" };
    let actor = Actor::CLUSTER;
    bench.run(Command::DrainServer { actor, address, cancel: false }).unwrap();
    let server = at.block.server();
    bench.run(Command::ServerReport { server, report: Report::default() }).unwrap();
    bench.pass(100);
    assert!(!bench.effects.iter().any(|effect| matches!(effect, Effect::Evacuate { .. })));
    let status = bench.status();
    let told = status.servers.iter().find(|s| s.server == server).unwrap();
    assert!(told.drain_waits.contains("1 block of kind file"), "{}", told.drain_waits);
}
