//! Queues: maps in numbers of items, the number of items ahead sent to the tail, and the freeing of empty
//! blocks (INV-17, 20, 22, 30).

use crate::common::{Bench, queue};
use honeycomb_catalog::{
    Actor, CatalogError, Command, Effect, NewStructure, Opened, QuotaLevel, Reply, Router, Seal,
};
use honeycomb_types::{BlockAt, JobId, ServerId, StructureId};

/// A cluster of one server with a bounded queue, whose first blocks are granted.
struct Queues {
    bench: Bench,
    job: JobId,
    server: ServerId,
    opened: Opened,
    /// The first block and its successors, in order.
    blocks: Vec<BlockAt>,
}

impl Queues {
    fn new(max_items: u64, blocks: usize) -> Queues {
        let mut bench = Bench::new();
        let server = bench.join("s1:1", 1, 20);
        let job = bench.job("job");
        bench.create(job, "t", &[], crate::common::lease(3_600_000)).unwrap();
        let opened = bench.make(job, queue("t", "q", max_items)).unwrap();
        let mut all = vec![opened.map.entries[0].at];
        while all.len() < blocks {
            let (_, next) = bench.grow(opened.structure, all[all.len() - 1]).unwrap();
            all.push(next);
        }
        Queues { bench, job, server, opened, blocks: all }
    }

    fn id(&self) -> StructureId {
        self.opened.structure
    }

    /// Seals block `i` after this many items of ten bytes each.
    fn full(&mut self, i: usize, items: u64) -> Result<u64, CatalogError> {
        self.seal(i, Seal { length: items, bytes: 10 * items, last: false })
    }

    fn seal(&mut self, i: usize, seal: Seal) -> Result<u64, CatalogError> {
        self.bench.seal(self.id(), self.blocks[i], seal)
    }

    fn taken(&mut self, i: usize, items: u64, bytes: u64) -> Result<Reply, CatalogError> {
        let (structure, at) = (self.id(), self.blocks[i]);
        self.bench.run(Command::QueueTaken { structure, at, items, bytes })
    }

    fn retire(&mut self, i: usize) -> Result<Reply, CatalogError> {
        let (structure, at) = (self.id(), self.blocks[i]);
        self.bench.run(Command::RetireBlock { structure, at })
    }

    /// The map: its version, and the start and block of each range.
    fn map(&mut self) -> (u64, Vec<(u64, BlockAt)>) {
        let map = self.bench.reopen(self.job, &self.opened).unwrap().map;
        assert_eq!(map.router, Router::Ends);
        assert_eq!(map.entries[map.entries.len() - 1].end, u64::MAX);
        for pair in map.entries.windows(2) {
            assert_eq!(pair[0].end + 1, pair[1].start, "INV-17: no gaps");
        }
        (map.version.0, map.entries.iter().map(|entry| (entry.start, entry.at)).collect())
    }
}

fn invalid<T: std::fmt::Debug>(result: Result<T, CatalogError>) {
    assert!(matches!(result, Err(CatalogError::InvalidArgument { .. })), "{result:?}");
}

#[test]
fn a_queue_has_its_bounds_and_one_first_block() {
    let mut q = Queues::new(0, 1);
    let bounds = NewStructure { max_items: 7, max_bytes: 900, blocks: 3, ..queue("t", "both", 0) };
    let opened = q.bench.make(q.job, bounds).unwrap();
    let opens: Vec<_> = q.bench.effects.clone();
    let firsts = opens.iter().map(|effect| match *effect {
        Effect::OpenBlock { at, first, max_items: 7, max_bytes: 900, .. } => (at, first),
        ref other => panic!("{other:?}"),
    });
    let firsts: Vec<(BlockAt, bool)> = firsts.collect();
    assert_eq!(firsts.iter().map(|(_, first)| *first).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!((opened.max_items, opened.max_bytes), (7, 900));
    // A caller that names no bounds, or the same, opens it and learns them; others are refused.
    for (max_items, max_bytes) in [(0, 0), (7, 900)] {
        let same =
            NewStructure { open_existing: true, max_items, max_bytes, ..queue("t", "both", 1) };
        assert_eq!(q.bench.make(q.job, same).unwrap(), opened);
    }
    let other = NewStructure { open_existing: true, max_items: 1, ..queue("t", "both", 1) };
    let refused = q.bench.make(q.job, other);
    assert!(
        matches!(refused, Err(CatalogError::OtherBounds { has: [7, 900], asked: [1, 0], .. })),
        "{refused:?}"
    );
    let by_name = q.bench.open(Actor::driver(q.job), "t", "both").unwrap();
    assert_eq!((by_name.max_items, by_name.max_bytes), (7, 900));
    // Pre-allocated blocks follow, and a block granted later is not a first one.
    let (version, second) = q.bench.grow(opened.structure, firsts[0].0).unwrap();
    assert_eq!((version, second), (2, firsts[1].0));
    assert!(q.bench.effects.is_empty());
    let (_, third) = q.bench.grow(opened.structure, second).unwrap();
    let (_, fourth) = q.bench.grow(opened.structure, third).unwrap();
    assert!(matches!(
        q.bench.effects[..],
        [Effect::OpenBlock { at, first: false, max_items: 7, max_bytes: 900, .. }] if at == fourth
    ));
}

#[test]
fn a_queue_grows_in_numbers_of_items_and_tells_its_tail_what_is_ahead() {
    let mut q = Queues::new(100, 3);
    let [a, b, c] = q.blocks[..] else { panic!() };
    assert_eq!(q.full(0, 30), Ok(2));
    assert_eq!(q.bench.ahead(), [(b, 30, 300)]);
    assert_eq!(q.map(), (2, vec![(0, a), (30, b)]));
    // More items than a block has bytes: an emptied block begins again.
    let many = Seal { length: 1_000_000, bytes: 5, last: false };
    assert_eq!(q.seal(1, many), Ok(3));
    assert_eq!(q.bench.ahead(), [(c, 1_000_030, 305)]);
    assert_eq!(q.map(), (3, vec![(0, a), (30, b), (1_000_030, c)]));
    // Repeats get the same answer and send nothing to servers; another seal of the same block is refused.
    assert_eq!(q.full(0, 30), Ok(3));
    assert!(q.bench.effects.is_empty());
    invalid(q.full(0, 29));
    invalid(q.seal(0, Seal { length: 30, bytes: 299, last: false }));
    invalid(q.seal(0, Seal { length: 30, bytes: 300, last: true }));
}

#[test]
fn what_is_taken_makes_room_at_the_tail() {
    let mut q = Queues::new(100, 3);
    let c = q.blocks[2];
    q.full(0, 30).unwrap();
    q.full(1, 20).unwrap();
    q.taken(0, 10, 100).unwrap();
    assert_eq!(q.bench.ahead(), [(c, 40, 400)]);
    q.taken(1, 1, 10).unwrap();
    assert_eq!(q.bench.ahead(), [(c, 39, 390)]);
    // Late and repeated reports change nothing: the number of taken items only increases.
    for (items, bytes) in [(9, 90), (10, 100), (0, 0)] {
        q.taken(0, items, bytes).unwrap();
        assert_eq!(q.bench.ahead(), [(c, 39, 390)]);
    }
    q.taken(0, 30, 300).unwrap();
    assert_eq!(q.bench.ahead(), [(c, 19, 190)]);
    // No server may report more than was put.
    invalid(q.taken(1, 21, 200));
    invalid(q.taken(1, 20, 201));
    assert_eq!(q.taken(1, 20, 200), Ok(Reply::Done));
    assert_eq!(q.bench.ahead(), [(c, 0, 0)]);
}

#[test]
fn what_was_taken_before_the_seal_is_heard_of_counts_from_then_on() {
    let mut q = Queues::new(100, 4);
    let [a, b, c, d] = q.blocks[..] else { panic!() };
    // The tail reports no taken items, and its successor is not in the map yet.
    q.taken(0, 5, 50).unwrap();
    assert_eq!(q.bench.ahead(), [(a, 0, 0)]);
    q.taken(1, 7, 70).unwrap();
    assert_eq!(q.bench.ahead(), [(a, 0, 0)]);
    // Seals that arrive out of order are applied in order, with the known taken items.
    assert_eq!(q.full(2, 3), Ok(4));
    assert_eq!(q.full(1, 20), Ok(3));
    assert!(q.bench.effects.is_empty());
    invalid(q.taken(2, 4, 30));
    q.taken(2, 3, 30).unwrap();
    assert_eq!(q.full(0, 30), Ok(2));
    let told = q.bench.ahead();
    assert_eq!(told, [(b, 25, 250), (c, 38, 380), (d, 38, 380)]);
    assert_eq!(q.map(), (4, vec![(0, a), (30, b), (50, c), (53, d)]));
}

#[test]
fn a_seal_that_contradicts_what_was_taken_is_refused() {
    let mut q = Queues::new(100, 3);
    q.taken(0, 5, 50).unwrap();
    q.taken(1, 6, 60).unwrap();
    invalid(q.full(0, 4));
    invalid(q.seal(0, Seal { length: 5, bytes: 49, last: false }));
    invalid(q.full(1, 5));
    invalid(q.seal(1, Seal { length: 0, bytes: 0, last: true }));
    assert_eq!(q.map().1.len(), 1);
    assert_eq!(q.full(1, 6), Ok(3));
    assert_eq!(q.full(0, 5), Ok(2));
    assert_eq!(q.bench.ahead()[1..], [(q.blocks[2], 0, 0)]);
}

/// A wrong report, or a defect in a server, must not end the controller.
#[test]
fn positions_that_no_queue_has_are_refused() {
    let huge = |length, bytes| Seal { length, bytes, last: false };
    let mut q = Queues::new(1, 4);
    assert_eq!(q.seal(1, huge(u64::MAX - 10, 1)), Ok(3));
    invalid(q.seal(2, huge(11, 1)));
    invalid(q.seal(0, huge(u64::MAX, 1)));
    invalid(q.seal(0, huge(1, u64::MAX)));
    assert_eq!(q.seal(2, huge(3, u64::MAX - 8)), Ok(4));
    assert_eq!(q.seal(0, huge(7, 7)), Ok(2));
    let starts: Vec<u64> = q.map().1.iter().map(|(start, _)| *start).collect();
    assert_eq!(starts, [0, 7, u64::MAX - 3, u64::MAX]);
}

#[test]
fn an_empty_first_block_goes_in_its_turn() {
    let mut q = Queues::new(100, 3);
    let [a, b, c] = q.blocks[..] else { panic!() };
    assert_eq!(q.retire(0), Err(CatalogError::NotSealed { at: a }), "the only one stays");
    q.full(0, 30).unwrap();
    assert_eq!(q.retire(1), Err(CatalogError::NotSealed { at: b }), "it is the tail");
    q.full(1, 20).unwrap();
    assert_eq!(q.retire(2), Err(CatalogError::NotSealed { at: c }), "it is the tail");
    q.taken(0, 30, 300).unwrap();
    q.taken(1, 4, 40).unwrap();
    let before = q.bench.status();
    q.retire(0).unwrap();
    assert_eq!(q.bench.freed(), [a]);
    assert_eq!(q.bench.ahead(), [(c, 16, 160)]);
    // The numbers of items stay, and so does the version: the tail was sent the version that its seal makes.
    assert_eq!(q.map(), (3, vec![(30, b), (50, c)]));
    let (version, _) = q.bench.grow(q.opened.structure, c).unwrap();
    assert_eq!(version, 4);
    // A repeat concerns a block without an owner: a server may repeat a report until it is answered.
    assert_eq!(q.retire(0), Err(CatalogError::StaleBlock { at: a }));
    assert_eq!(q.taken(0, 30, 300), Err(CatalogError::StaleBlock { at: a }));
    assert_eq!(q.full(0, 30), Ok(3), "a repeat of its seal, while it is being freed");
    let after = q.bench.status();
    assert_eq!((after.free + 1, after.quarantined), (before.free, before.quarantined + 1));
    q.bench.confirm(&[a]);
    assert_eq!(q.retire(0), Err(CatalogError::StaleBlock { at: a }));
    assert_eq!(q.bench.status().quarantined, 0);
    // The next is the first now. Unreported taken items count as taken with their block.
    q.retire(1).unwrap();
    assert_eq!((q.bench.freed(), q.bench.ahead()), (vec![b], vec![(c, 0, 0)]));
    assert_eq!(q.retire(2), Err(CatalogError::NotSealed { at: c }));
}

#[test]
fn an_empty_block_does_not_wait_for_those_before_it() {
    let mut q = Queues::new(100, 5);
    let [a, b, c, d, e] = q.blocks[..] else { panic!() };
    for i in 0..4 {
        q.full(i, 10 + i as u64).unwrap();
    }
    // The first holds some items; the third is empty, and so is the second, before it.
    q.taken(0, 4, 40).unwrap();
    q.retire(2).unwrap();
    assert_eq!((q.bench.freed(), q.bench.ahead()), (vec![c], vec![(e, 6 + 11 + 13, 300)]));
    assert_eq!(q.map().1, [(0, a), (10, b), (33, d), (46, e)]);
    q.retire(1).unwrap();
    assert_eq!((q.bench.freed(), q.bench.ahead()), (vec![b], vec![(e, 6 + 13, 190)]));
    assert_eq!(q.map().1, [(0, a), (33, d), (46, e)]);
    // The items of a block are known whatever its neighbours are.
    assert_eq!(q.full(0, 10), Ok(5));
    invalid(q.full(0, 33));
    invalid(q.taken(0, 11, 50).map(drop));
    assert_eq!(q.retire(1), Err(CatalogError::StaleBlock { at: b }));
    q.taken(0, 10, 100).unwrap();
    assert_eq!(q.bench.ahead(), [(e, 13, 130)]);
    for i in [0, 3] {
        q.retire(i).unwrap();
    }
    assert_eq!(q.bench.ahead(), [(e, 0, 0)]);
    assert_eq!(q.map().1, [(46, e)]);
}

#[test]
fn a_block_that_comes_back_to_its_queue_has_nothing_taken() {
    let mut q = Queues::new(100, 2);
    q.full(0, 30).unwrap();
    q.taken(0, 30, 300).unwrap();
    q.retire(0).unwrap();
    let first = q.blocks[0];
    q.bench.confirm(&[first]);
    // Around once through all blocks of the server, until the same one is granted again.
    while q.blocks[q.blocks.len() - 1].block != first.block {
        let (i, id) = (q.blocks.len() - 1, q.id());
        let (_, next) = q.bench.grow(id, q.blocks[i]).unwrap();
        q.blocks.push(next);
        q.full(i, 1).unwrap();
        q.taken(i, 1, 10).unwrap();
        assert_eq!(q.bench.ahead(), [(next, 0, 0)]);
        q.retire(i).unwrap();
        let freed = q.bench.freed();
        q.bench.confirm(&freed);
        assert!(i < 100, "the block never came back");
    }
    let (i, id) = (q.blocks.len() - 1, q.id());
    let (_, next) = q.bench.grow(id, q.blocks[i]).unwrap();
    q.blocks.push(next);
    q.full(i, 30).unwrap();
    assert_eq!(q.bench.ahead(), [(next, 30, 300)], "what its former self lost is no concern");
}

#[test]
fn a_block_that_sealed_empty_is_skipped_and_its_successor_is_told() {
    let mut q = Queues::new(100, 3);
    let [a, b, c] = q.blocks[..] else { panic!() };
    assert_eq!(q.full(0, 0), Ok(2));
    assert_eq!((q.bench.freed(), q.bench.ahead()), (vec![a], vec![(b, 0, 0)]));
    assert_eq!(q.map(), (2, vec![(0, b)]));
    assert_eq!(q.full(1, 5), Ok(3));
    assert_eq!(q.bench.ahead(), [(c, 5, 50)]);
    assert_eq!(q.retire(1).map(drop), Ok(()));
}

#[test]
fn a_queue_without_a_bound_is_told_nothing() {
    let mut q = Queues::new(0, 3);
    q.full(0, 30).unwrap();
    q.taken(0, 30, 300).unwrap();
    assert!(q.bench.effects.is_empty());
    q.retire(0).unwrap();
    assert!(q.bench.ahead().is_empty());
    let bytes = NewStructure { max_bytes: 9, ..queue("t", "bytes", 0) };
    let opened = q.bench.make(q.job, bytes).unwrap();
    let at = opened.map.entries[0].at;
    let (_, next) = q.bench.grow(opened.structure, at).unwrap();
    let seal = Seal { length: 1, bytes: 8, last: false };
    q.bench.seal(opened.structure, at, seal).unwrap();
    assert_eq!(q.bench.ahead(), [(next, 1, 8)], "a bound of bytes is one");
}

#[test]
fn a_closed_queue_of_several_blocks_is_drained_to_its_last() {
    let mut q = Queues::new(100, 4);
    let [a, b, c, d] = q.blocks[..] else { panic!() };
    q.full(0, 30).unwrap();
    q.full(1, 20).unwrap();
    q.taken(3, 1, 1).unwrap();
    assert_eq!(q.seal(2, Seal { length: 4, bytes: 40, last: true }), Ok(4));
    assert_eq!(q.bench.freed(), [d], "nothing follows");
    assert!(q.bench.ahead().is_empty());
    assert!(q.bench.tree(q.job)[1].structures[0].sealed);
    assert_eq!(q.map(), (4, vec![(0, a), (30, b), (50, c)]));
    // Closing again succeeds, growing does not.
    assert_eq!(q.seal(2, Seal { length: 4, bytes: 40, last: true }), Ok(4));
    assert!(matches!(q.bench.grow(q.opened.structure, c), Err(CatalogError::Sealed { .. })));
    q.taken(0, 30, 300).unwrap();
    assert!(q.bench.effects.is_empty(), "no client puts any more");
    q.retire(0).unwrap();
    q.retire(1).unwrap();
    assert_eq!(
        q.retire(2),
        Err(CatalogError::NotSealed { at: c }),
        "the last one says that it ended"
    );
    assert_eq!(q.map(), (4, vec![(50, c)]));
}

#[test]
fn retired_blocks_count_for_nothing() {
    let mut bench = Bench::new();
    let server = bench.join("s1:1", 1, 10);
    let (actor, name) = (Actor::CLUSTER, "small");
    let register = Command::RegisterJob {
        actor,
        name,
        lease_ms: 500,
        quota_blocks: 2,
        hints: Default::default(),
        claim: Default::default(),
    };
    let Ok(Reply::Job { job, .. }) = bench.run(register) else { panic!() };
    let opened = bench.make(job, queue("", "q", 5)).unwrap();
    let (id, mut at) = (opened.structure, opened.map.entries[0].at);
    // A queue that is emptied as it is filled lives for ever on two blocks.
    for _ in 0..50 {
        let (_, next) = bench.grow(id, at).unwrap();
        let refused =
            CatalogError::QuotaExceeded { level: QuotaLevel::Job, quota: 2, held: 2, asked: 1 };
        assert_eq!(bench.grow(id, next), Err(refused));
        bench.seal(id, at, Seal { length: 5, bytes: 5, last: false }).unwrap();
        bench.run(Command::RetireBlock { structure: id, at }).unwrap();
        assert_eq!(bench.freed(), [at]);
        bench.confirm(&[at]);
        bench.run(Command::BlockOpened { server, at: next }).unwrap();
        at = next;
    }
    assert_eq!(bench.status().free, 9);
    assert_eq!(bench.reopen(job, &opened).unwrap().map.entries[0].start, 250);
    bench.pass(500);
    assert_eq!(bench.freed(), [at]);
    bench.confirm(&[at]);
    let status = bench.status();
    assert_eq!((status.free, status.quarantined, status.bytes_allocated), (10, 0, 0));
}

#[test]
fn a_queue_goes_with_a_server_of_any_of_its_blocks() {
    let mut bench = Bench::new();
    let job = bench.job("job");
    for address in ["s1:1", "s2:1", "s3:1"] {
        bench.join(address, 1, 10);
    }
    let opened = bench.make(job, queue("", "q", 5)).unwrap();
    let (id, first) = (opened.structure, opened.map.entries[0].at);
    let mut blocks = vec![first];
    while blocks.len() < 6 {
        let (_, next) = bench.grow(id, blocks[blocks.len() - 1]).unwrap();
        blocks.push(next);
    }
    for &at in &blocks[..3] {
        bench.seal(id, at, Seal { length: 1, bytes: 1, last: false }).unwrap();
    }
    bench.run(Command::RetireBlock { structure: id, at: first }).unwrap();
    let freed = bench.freed();
    bench.confirm(&freed);
    let middle = blocks[1].block.server();
    bench.run(Command::ServerLost { server: middle }).unwrap();
    let elsewhere = blocks[1..].iter().filter(|at| at.block.server() != middle);
    let mut elsewhere: Vec<BlockAt> = elsewhere.copied().collect();
    let mut freed = bench.freed();
    elsewhere.sort();
    freed.sort();
    assert_eq!(freed, elsewhere);
    assert!(bench.ahead().is_empty(), "a removed queue is sent nothing");
    assert!(matches!(bench.reopen(job, &opened), Err(CatalogError::DataLost { .. })));
    for at in elsewhere {
        let stale = Err(CatalogError::UnknownStructure { structure: id });
        let (items, bytes) = (1, 1);
        assert_eq!(bench.run(Command::QueueTaken { structure: id, at, items, bytes }), stale);
        assert_eq!(bench.run(Command::RetireBlock { structure: id, at }), stale);
        bench.confirm(&[at]);
    }
    let status = bench.status();
    assert_eq!((status.free, status.blocks, status.quarantined), (20, 20, 0));
}

#[test]
fn only_queues_take_and_retire() {
    let mut q = Queues::new(1, 1);
    let file = q.bench.make(q.job, crate::common::file("t", "f", 2)).unwrap();
    let kv = q.bench.make(q.job, crate::common::kv("t", "k", 1)).unwrap();
    let (items, bytes) = (0, 0);
    for (opened, kind) in [(&file, "file"), (&kv, "kv")] {
        let (structure, at) = (opened.structure, opened.map.entries[0].at);
        for command in [
            Command::QueueTaken { structure, at, items, bytes },
            Command::RetireBlock { structure, at },
        ] {
            assert!(q.bench.run(command).is_err(), "{command:?} of a {kind}");
            assert!(q.bench.effects.is_empty());
        }
        // Nor does a queue report for another's block.
        let structure = q.id();
        let stale = Err(CatalogError::StaleBlock { at });
        assert_eq!(q.bench.run(Command::QueueTaken { structure, at, items, bytes }), stale);
        assert_eq!(q.bench.run(Command::RetireBlock { structure, at }), stale);
    }
    // These reports count as messages of their servers all the same.
    assert_eq!(q.bench.status().servers[0].server, q.server);
}
