//! Flushes of blocks in lower tiers, or demoted because the object store is unavailable.

use super::{TO_OUT, WRITTEN, asked, committed, files, info, manifest, wrote};
use crate::common::{Bench, LEASE, file, kv};
use honeycomb_catalog::{Actor, CatalogError, Command, FlushState};
use honeycomb_types::{BlockAt, JobId, ServerId, StructureId, TierIx};

/// A server of 12 blocks in memory and as many on a disk, and a prefix that is flushed with four files
/// and a kv.
fn with_disk() -> (Bench, ServerId, JobId, Vec<BlockAt>) {
    let mut bench = Bench::new();
    let server = bench.join_with_disk("s1:1", 12, 12);
    let job = bench.job_leased("job", 3_600_000);
    bench.create(job, "t", &[], TO_OUT).unwrap();
    bench.create(job, "other", &[], LEASE).unwrap();
    let mut blocks = files(&mut bench, job, 4);
    blocks.push(bench.make(job, kv("t", "k", 1)).unwrap().map.entries[0].at);
    let opened: Vec<BlockAt> = blocks.clone();
    for at in opened {
        bench.run(Command::BlockOpened { server, at }).unwrap();
    }
    (bench, server, job, blocks)
}

#[test]
fn while_a_store_is_out_what_is_kept_goes_down_before_anybody_elses() {
    let (mut bench, server, job, blocks) = with_disk();
    bench.pass(1000);
    let parts = asked(&bench);
    assert_eq!(parts.len(), 5);
    // While the store accepts parts none of them has to be demoted.
    let mut names = (0..).map(|n: u32| format!("n{n}"));
    for name in names.by_ref().take(2) {
        bench.make(job, file("other", &name, 1)).unwrap();
        assert_eq!(bench.lowered(), []);
    }
    wrote(&mut bench, blocks[0], Err("the store is out"));
    let mut down = Vec::new();
    for name in names.by_ref().take(7) {
        bench.make(job, file("other", &name, 1)).unwrap();
        for at in bench.lowered() {
            down.push(at);
            let structure = StructureId(1); // It has no owner: its structure has ended.
            let tier = TierIx(1);
            bench.run(Command::TierChanged { structure, at, tier }).unwrap();
        }
    }
    down.sort();
    assert_eq!(down, blocks, "all that is kept, of whatever kind, and nothing else");
    let status = bench.status();
    assert_eq!((status.tiers[0].used, status.quarantined), (5, 0), "none of it is in memory");
    // It is flushed from there, and then its room in both tiers is free.
    for &at in &blocks {
        wrote(&mut bench, at, Ok(WRITTEN));
    }
    let (_, number, ..) = manifest(&bench).unwrap();
    committed(&mut bench, server, number, Ok(()));
    let freed = bench.freed();
    bench.confirm(&freed);
    assert_eq!(bench.status().tiers[0].used, 0);
}

#[test]
fn a_part_that_its_disk_has_lost_ends_the_flush() {
    let (mut bench, _, job, blocks) = with_disk();
    bench.pass(1000);
    wrote(&mut bench, blocks[0], Ok(WRITTEN));
    // It is written already: a failure of its disk has no effect.
    let structure = StructureId(1);
    bench.run(Command::BlockFailed { structure, at: blocks[0] }).unwrap();
    assert_eq!(info(&mut bench, job, "t").flush, FlushState::Writing);
    bench.run(Command::BlockFailed { structure, at: blocks[1] }).unwrap();
    assert_eq!(bench.freed(), blocks, "nothing is kept for it any more");
    let FlushState::Lost(why) = info(&mut bench, job, "t").flush else { panic!("it is lost") };
    assert!(why.contains("the disk of s1:1"), "{why}");
    let actor = Actor::driver(job);
    let opened = bench.run(Command::OpenStructure { actor, job, path: "t", name: "f1" });
    assert!(matches!(opened, Err(CatalogError::DataLost { .. })), "{opened:?}");
}
