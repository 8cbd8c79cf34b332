//! Private blocks: appends that are too large for a block of a file (ADR 0058).

use crate::common::{Bench, file, kv, lease};
use honeycomb_catalog::{
    Actor, BlockUsage, CatalogError, Command, HeldBlock, Opened, Reply, Report, Seal,
};
#[cfg(feature = "bug-bank")]
use honeycomb_types::Bug;
use honeycomb_types::limits::{EXTENT_PENDING_MS, PRIVATE_CHAINS_MAX};
use honeycomb_types::{BlockAt, Generation, JobId, ServerId, StructureId, Verbs};

const FULL: Seal = Seal { length: 60_000, bytes: 60_000, last: false };

/// A job with a file on the first of two servers, and the file's first block.
struct OneFile {
    bench: Bench,
    job: JobId,
    servers: [ServerId; 2],
    file: StructureId,
    tail: BlockAt,
}

impl OneFile {
    fn new() -> OneFile {
        let mut bench = Bench::new();
        let servers = [bench.join("a:1", 1, 200), bench.join("b:1", 1, 200)];
        let job = bench.job_leased("job", 600_000);
        let opened = bench.make(job, file("", "f", 1)).unwrap();
        OneFile { bench, job, servers, file: opened.structure, tail: opened.map.entries[0].at }
    }

    fn begin(&mut self, bytes: u64) -> Result<BlockAt, CatalogError> {
        let (job, structure) = (self.job, self.file);
        let actor = Actor::driver(job);
        match self.bench.run(Command::BeginAppend { actor, job, structure, bytes })? {
            Reply::Grown { entry, .. } => Ok(entry.at),
            other => panic!("{other:?}"),
        }
    }

    /// A chain of two blocks, the first of which is full.
    fn chain(&mut self) -> [BlockAt; 2] {
        let first = self.begin(100_000).unwrap();
        let second = self.bench.grow(self.file, first).unwrap().1;
        self.bench.seal(self.file, first, FULL).unwrap();
        [first, second]
    }

    fn commit(&mut self, first: BlockAt) -> Result<(), CatalogError> {
        let (job, structure) = (self.job, self.file);
        let actor = Actor::driver(job);
        let command = Command::CommitAppend { actor, job, structure, first };
        self.bench.run(command).map(|reply| {
            let Reply::Appended { epoch } = reply else { panic!("{reply:?}") };
            assert!(epoch >= first.epoch, "later blocks have greater ones");
        })
    }

    fn opened(&mut self) -> Opened {
        let (actor, job) = (Actor::driver(self.job), self.job);
        match self.bench.run(Command::ReopenStructure { actor, job, structure: self.file }) {
            Ok(Reply::Opened(opened)) => opened,
            other => panic!("{other:?}"),
        }
    }

    /// The blocks of the map, with their starts.
    fn map(&mut self) -> Vec<(u64, BlockAt)> {
        self.opened().map.entries.iter().map(|entry| (entry.start, entry.at)).collect()
    }

    fn use_bytes(&mut self, at: BlockAt, bytes_used: u64) {
        let (server, usage) = (at.block.server(), [BlockUsage { at, bytes_used }]);
        let report = Report { usage: &usage, ..Report::default() };
        self.bench.run(Command::ServerReport { server, report }).unwrap();
    }

    /// Both servers come back, with these blocks and their successors.
    fn back(&mut self, blocks: &[(BlockAt, Option<BlockAt>)]) {
        for server in self.servers {
            self.bench.rejoin(server, &[]);
            let here = blocks.iter().filter(|(at, _)| at.block.server() == server);
            let held = here.map(|&(at, successor)| HeldBlock {
                at,
                structure: self.file,
                generation: Generation(1),
                bytes_used: 100,
                sealed: None,
                successor,
                taken: (0, 0),
                tiers: Default::default(),
                capacity: 65_536,
            });
            let held: Vec<HeldBlock> = held.collect();
            self.bench.run(Command::Inventory { server, held: &held, last: true }).unwrap();
        }
    }

    /// Lets time pass in which both servers report.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 1000 {
            for server in self.servers {
                let report = Report::default();
                let _ = self.bench.run(Command::ServerReport { server, report });
            }
            self.bench.pass(1000);
        }
    }
}

#[test]
fn blocks_of_an_append_serve_when_those_before_them_have_sealed() {
    let mut one = OneFile::new();
    let next = one.bench.grow(one.file, one.tail).unwrap().1;
    let chain = one.chain();
    assert_eq!(one.map(), [(0, one.tail)], "private blocks are in no map");
    one.commit(chain[0]).unwrap();
    one.commit(chain[0]).unwrap();
    assert_eq!(one.map(), [(0, one.tail)]);
    assert_eq!(one.bench.grow(one.file, next).unwrap().1, chain[0]);
    one.bench.seal(one.file, one.tail, Seal { length: 7, bytes: 7, last: false }).unwrap();
    one.bench.seal(one.file, next, Seal { length: 0, bytes: 0, last: false }).unwrap();
    assert_eq!(one.map(), [(0, one.tail), (7, chain[0]), (60_007, chain[1])]);
    // The last one is the tail: it grows as any other.
    let after = one.bench.grow(one.file, chain[1]).unwrap().1;
    one.bench.seal(one.file, chain[1], FULL).unwrap();
    assert_eq!(one.map()[3], (120_007, after));
}

#[test]
fn commit_names_the_first_of_private_blocks() {
    let mut one = OneFile::new();
    let chain = one.chain();
    assert_eq!(one.commit(chain[1]), Err(CatalogError::StaleBlock { at: chain[1] }));
    let old = BlockAt { epoch: one.tail.epoch, ..chain[0] };
    assert_eq!(one.commit(old), Err(CatalogError::StaleBlock { at: old }));
    one.commit(chain[0]).unwrap();
    one.commit(one.tail).unwrap();
    assert_eq!(one.map(), [(0, one.tail)], "a block of the file is linked already");
}

#[test]
fn private_blocks_are_freed_when_nothing_is_written_to_them() {
    let mut one = OneFile::new();
    let chain = one.chain();
    one.pass(EXTENT_PENDING_MS);
    assert_eq!(one.bench.catalog.chain(one.file).unwrap().beside, chain, "60,000 bytes came");
    one.use_bytes(chain[1], 100);
    one.pass(EXTENT_PENDING_MS);
    assert_eq!(one.bench.catalog.chain(one.file).unwrap().beside, chain);
    one.pass(EXTENT_PENDING_MS + 1000);
    assert_eq!(one.bench.catalog.chain(one.file).unwrap().beside, []);
    assert_eq!(one.commit(chain[0]), Err(CatalogError::StaleBlock { at: chain[0] }));
    assert_eq!(
        one.bench.grow(one.file, chain[1]).unwrap_err(),
        CatalogError::StaleBlock { at: chain[1] }
    );
    assert_eq!(one.bench.status().quarantined, 2);
    // A committed one stays.
    let chain = one.chain();
    one.commit(chain[0]).unwrap();
    one.pass(3 * EXTENT_PENDING_MS);
    let blocks = one.bench.catalog.chain(one.file).unwrap().blocks;
    assert_eq!(blocks, [(one.tail, false), (chain[0], true), (chain[1], false)]);
}

#[test]
fn append_that_is_dropped_frees_its_blocks_at_once() {
    let mut one = OneFile::new();
    let (chain, other) = (one.chain(), one.chain());
    one.commit(other[0]).unwrap();
    let (job, structure) = (one.job, one.file);
    let actor = Actor::driver(job);
    for (first, freed) in
        [(chain[1], &[][..]), (chain[0], &chain), (chain[0], &[]), (other[0], &[])]
    {
        one.bench.run(Command::DropAppend { actor, job, structure, first }).unwrap();
        assert_eq!(one.bench.freed(), freed);
    }
}

fn returned(one: &mut OneFile) -> Result<Reply, CatalogError> {
    let first = one.begin(30_000).unwrap();
    one.commit(first).unwrap();
    assert_eq!(one.bench.grow(one.file, one.tail).unwrap().1, first);
    let (structure, at, successor) = (one.file, one.tail, first);
    one.bench.run(Command::ReturnBlock { structure, at, successor })
}

/// A block returns a successor that it has not named to a client, which is usually empty.
#[test]
fn block_of_a_committed_append_is_not_returned() {
    let mut one = OneFile::new();
    let at = one.bench.catalog.chain(one.file).unwrap().blocks.len();
    assert_eq!(at, 1);
    let refused = returned(&mut one);
    assert!(matches!(refused, Err(CatalogError::StaleBlock { .. })), "{refused:?}");
    // Nor after a restart of the controller.
    one.bench.restart();
    for server in one.servers {
        one.bench.run(Command::Inventory { server, held: &[], last: true }).unwrap_err();
    }
    let linked = one.bench.catalog.chain(one.file).unwrap().blocks;
    assert_eq!(linked.len(), 2);
}

#[cfg(feature = "bug-bank")]
#[test]
fn block_of_a_committed_append_that_is_returned_is_seen() {
    Bug::arm(Some(Bug::LinkForgotten));
    assert_eq!(returned(&mut OneFile::new()), Ok(Reply::Done));
    Bug::arm(None);
}

#[test]
fn file_survives_the_loss_of_private_blocks() {
    let mut one = OneFile::new();
    let mut chains = Vec::new();
    // One after the other on different servers.
    while !chains.iter().any(|c: &[BlockAt; 2]| c[0].block.server() != one.tail.block.server()) {
        let first = one.begin(100).unwrap();
        chains.push([first, one.bench.grow(one.file, first).unwrap().1]);
    }
    let other = *one.servers.iter().find(|id| **id != one.tail.block.server()).unwrap();
    one.bench.run(Command::ServerLost { server: other }).unwrap();
    assert_eq!(one.map(), [(0, one.tail)]);
    let lost = |c: &&[BlockAt; 2]| c.iter().any(|at| at.block.server() == other);
    let left = one.bench.catalog.chain(one.file).unwrap().beside.len();
    assert_eq!(left, 2 * (chains.len() - chains.iter().filter(lost).count()));
    let first = chains.iter().find(lost).unwrap()[0];
    assert_eq!(one.commit(first), Err(CatalogError::StaleBlock { at: first }));
}

#[test]
fn drained_server_keeps_no_private_blocks() {
    let mut one = OneFile::new();
    let chain = one.chain();
    let id = one.servers.iter().position(|id| *id == chain[1].block.server()).unwrap();
    let (actor, address, cancel) = (Actor::CLUSTER, ["a:1", "b:1"][id], false);
    one.bench.run(Command::DrainServer { actor, address, cancel }).unwrap();
    assert_eq!(one.bench.catalog.chain(one.file).unwrap().beside, []);
    assert_eq!(one.commit(chain[0]), Err(CatalogError::StaleBlock { at: chain[0] }));
}

#[test]
fn restarted_controller_knows_committed_appends_only() {
    let mut one = OneFile::new();
    let (committed, private) = (one.chain(), one.chain());
    one.commit(committed[0]).unwrap();
    one.bench.restart();
    let known = one.bench.catalog.chain(one.file).unwrap();
    assert_eq!(known.beside, []);
    assert_eq!(known.blocks, [(one.tail, false), (committed[0], true), (committed[1], false)]);
    // While a server may still report a successor of the tail, nothing is linked to it.
    assert_eq!(one.commit(private[0]), Err(CatalogError::Recovering));
    assert_eq!(one.begin(100), Err(CatalogError::Recovering));
    one.back(&[]);
    assert_eq!(one.commit(private[0]), Err(CatalogError::StaleBlock { at: private[0] }));
}

/// The controller answers with a linked block before the log has the commit, which a loss of power removes.
#[test]
fn commit_that_the_log_lost_is_found_at_the_block_that_names_it() {
    let mut one = OneFile::new();
    let first = one.begin(30_000).unwrap();
    let written = one.bench.written.clone();
    one.commit(first).unwrap();
    assert_eq!(one.bench.grow(one.file, one.tail).unwrap().1, first);
    one.bench.written = written;
    one.bench.restart();
    assert_eq!(one.commit(first), Err(CatalogError::Recovering), "it may be in the file");
    one.back(&[(one.tail, Some(first)), (first, None)]);
    one.commit(first).unwrap();
    assert_eq!(
        one.bench.catalog.chain(one.file).unwrap().blocks,
        [(one.tail, false), (first, false)]
    );
    let (structure, at) = (one.file, one.tail);
    let returned = one.bench.run(Command::ReturnBlock { structure, at, successor: first });
    assert!(matches!(returned, Err(CatalogError::StaleBlock { .. })), "{returned:?}");
}

#[test]
fn sealed_file_gets_no_more_and_frees_private_blocks() {
    let mut one = OneFile::new();
    let (committed, private) = (one.chain(), one.chain());
    one.commit(committed[0]).unwrap();
    let last = Seal { length: 5, bytes: 5, last: true };
    // The end of the file is known before the block in front of it has sealed.
    one.bench.seal(one.file, committed[1], last).unwrap();
    let sealed = one.commit(private[0]);
    assert!(matches!(sealed, Err(CatalogError::Sealed { .. })), "{sealed:?}");
    assert_eq!(one.bench.freed(), private);
    let more = one.begin(100).unwrap();
    one.bench.seal(one.file, one.tail, FULL).unwrap();
    assert_eq!(one.map().len(), 3);
    assert_eq!(one.commit(more), Err(CatalogError::StaleBlock { at: more }));
    assert!(matches!(one.begin(100), Err(CatalogError::Sealed { .. })));
}

#[test]
fn append_needs_a_file_a_permission_and_a_place() {
    let mut one = OneFile::new();
    let job = one.job;
    let store = one.bench.make(job, kv("", "kv", 1)).unwrap().structure;
    let begin = |bench: &mut Bench, actor, structure| {
        bench.run(Command::BeginAppend { actor, job, structure, bytes: 100 })
    };
    let actor = Actor::driver(job);
    let wrong = begin(&mut one.bench, actor, store);
    assert!(matches!(wrong, Err(CatalogError::WrongKind { .. })), "{wrong:?}");
    let reads = Actor { verbs: Verbs::READ, ..actor };
    let refused = begin(&mut one.bench, reads, one.file);
    assert!(matches!(refused, Err(CatalogError::PermissionDenied { .. })), "{refused:?}");
    let first = one.begin(100).unwrap();
    let commit = Command::CommitAppend { actor: reads, job, structure: one.file, first };
    let refused = one.bench.run(commit);
    assert!(matches!(refused, Err(CatalogError::PermissionDenied { .. })), "{refused:?}");
    let mut begun = 1;
    let refused = loop {
        match one.begin(1) {
            Ok(_) => begun += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(begun, PRIVATE_CHAINS_MAX);
    assert!(matches!(refused, CatalogError::LimitExceeded { .. }), "{refused:?}");
    one.pass(EXTENT_PENDING_MS + 1000);
    one.begin(400 * 65_536).unwrap();
    let refused = one.begin(400 * 65_536 + 1).unwrap_err();
    assert!(matches!(refused, CatalogError::LimitExceeded { .. }), "{refused:?}");
}

#[test]
fn expired_prefix_is_flushed_without_private_blocks() {
    let mut one = OneFile::new();
    one.bench.create(one.job, "t", &[], lease(1000)).unwrap();
    let made = one.bench.make(one.job, file("t", "f", 1)).unwrap();
    (one.file, one.tail) = (made.structure, made.map.entries[0].at);
    let chain = one.chain();
    one.pass(2000);
    let freed = one.bench.status().quarantined;
    assert!(freed > chain.len() as u64, "{freed}");
}
