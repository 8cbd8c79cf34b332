//! Splits and merges of kvs: intents, commits, cancellations, and every order in which they can be
//! repeated (INV-17, INV-20).

use crate::common::{Bench, LEASE, file, kv, server};
use honeycomb_catalog::{
    Actor, CatalogError, Command, Effect, HeldBlock, MapEntry, NewServer, Opened, QuotaLevel,
    Reply, Report,
};
use honeycomb_types::limits::{MOVE_MAX, SLOT_WIDTH};
use honeycomb_types::{BlockAt, Bug, Epoch, Generation, JobId, MoveId, ServerId, StructureId, Way};

/// Hashes of a 64th of all.
const PART: u64 = 1 << 58;

fn setup(blocks: u32) -> (Bench, JobId, Opened) {
    let mut bench = Bench::new();
    bench.join("s1:1", 1, 8);
    bench.join("s2:1", 1, 8);
    let job = bench.job("job");
    bench.create(job, "t", &[], LEASE).unwrap();
    let opened = bench.make(job, kv("t", "x", blocks)).unwrap();
    (bench, job, opened)
}

fn begin(
    bench: &mut Bench,
    structure: StructureId,
    at: BlockAt,
    start: Option<u64>,
) -> Result<(MoveId, MapEntry), CatalogError> {
    let way = if start.is_none() { Way::Merge } else { Way::Split };
    let start = start.unwrap_or(7);
    match bench.run(Command::BeginMove { structure, at, start, way })? {
        Reply::Moving { id, entry } => Ok((id, entry)),
        other => panic!("{other:?}"),
    }
}

fn commit(
    bench: &mut Bench,
    structure: StructureId,
    at: BlockAt,
    id: MoveId,
    target: BlockAt,
) -> Result<(u64, (u64, u64, BlockAt)), CatalogError> {
    match bench.run(Command::CommitMove { structure, at, id, target, bytes: 1000 })? {
        Reply::Moved { version, entry } => Ok((version.0, (entry.start, entry.end, entry.at))),
        other => panic!("{other:?}"),
    }
}

fn cancel(bench: &mut Bench, structure: StructureId, at: BlockAt, id: MoveId) {
    assert_eq!(bench.run(Command::CancelMove { structure, at, id }), Ok(Reply::Done));
}

fn split(bench: &mut Bench, structure: StructureId, at: BlockAt, start: u64) -> BlockAt {
    let (id, entry) = begin(bench, structure, at, Some(start)).unwrap();
    commit(bench, structure, at, id, entry.at).unwrap();
    entry.at
}

fn map(bench: &mut Bench, job: JobId, opened: &Opened) -> (u64, Vec<(u64, u64, BlockAt)>) {
    let opened = bench.reopen(job, opened).unwrap();
    let entries = opened.map.entries.iter().map(|e| (e.start, e.end, e.at));
    (opened.map.version.0, entries.collect())
}

fn ended(bench: &Bench) -> Vec<(BlockAt, MoveId, bool)> {
    let ends = bench.effects.iter().filter_map(|effect| match *effect {
        Effect::EndImport { server, at, id, commit } => {
            assert_eq!(server, at.block.server());
            Some((at, id, commit))
        }
        _ => None,
    });
    ends.collect()
}

#[test]
fn a_split_changes_the_map_at_its_commit_and_not_before() {
    let (mut bench, job, opened) = setup(1);
    let (s, a) = (opened.structure, opened.map.entries[0].at);
    let (id, entry) = begin(&mut bench, s, a, Some(32 * PART)).unwrap();
    let b = entry.at;
    assert_ne!(id, MoveId::NONE);
    assert_eq!((entry.start, entry.end), (32 * PART, u64::MAX));
    assert_ne!(b.block.server(), a.block.server(), "the emptier server gives the block");
    let opens = bench.effects.clone();
    assert!(matches!(
        opens[..],
        [Effect::OpenBlock { at, start, end: u64::MAX, importing, first: false, .. }]
            if at == b && start == 32 * PART && importing == id
    ));
    assert_eq!(map(&mut bench, job, &opened), (1, vec![(0, u64::MAX, a)]));
    // Whatever it requests now, the answer is the move under way.
    for start in [Some(16 * PART), None, Some(3)] {
        assert_eq!(begin(&mut bench, s, a, start), Ok((id, entry.clone())));
        assert!(bench.effects.is_empty());
    }
    assert_eq!(begin(&mut bench, s, b, None), Err(CatalogError::Moving { at: b }));
    assert_eq!(bench.tree(job)[1].structures[0].blocks, 2);

    let after = (2, (32 * PART, u64::MAX, b));
    assert_eq!(commit(&mut bench, s, a, id, b), Ok(after));
    assert_eq!(ended(&bench), [(b, id, true)]);
    let both = vec![(0, 32 * PART - 1, a), (32 * PART, u64::MAX, b)];
    assert_eq!(map(&mut bench, job, &opened), (2, both.clone()));
    // Another request changes nothing, and cancels nothing.
    assert_eq!(commit(&mut bench, s, a, id, b), Ok(after));
    cancel(&mut bench, s, a, id);
    assert!(bench.effects.is_empty());
    assert_eq!(commit(&mut bench, s, a, id, b), Ok(after));
    assert_eq!(map(&mut bench, job, &opened), (2, both));
}

#[test]
fn only_whole_slots_within_the_range_are_given_by_a_kv() {
    let (mut bench, job, opened) = setup(2);
    let (s, b) = (opened.structure, opened.map.entries[1].at);
    for start in [0, 31 * PART, 32 * PART, 33 * PART + 1, u64::MAX] {
        let refused = begin(&mut bench, s, b, Some(start));
        assert!(
            matches!(refused, Err(CatalogError::InvalidArgument { given, .. }) if given == start)
        );
    }
    let last = split(&mut bench, s, b, 65_535 * SLOT_WIDTH);
    let refused = begin(&mut bench, s, last, Some(65_535 * SLOT_WIDTH));
    assert!(matches!(refused, Err(CatalogError::InvalidArgument { .. })), "a slot is not divided");
    let bytes = bench.make(job, file("t", "f", 1)).unwrap();
    let refused = begin(&mut bench, bytes.structure, bytes.map.entries[0].at, Some(PART));
    assert!(matches!(refused, Err(CatalogError::WrongKind { .. })));
    let stale = BlockAt { epoch: Epoch(b.epoch.0 - 1), ..b };
    for (structure, at) in [(s, stale), (bytes.structure, b)] {
        let refused = begin(&mut bench, structure, at, Some(40 * PART));
        assert_eq!(refused, Err(CatalogError::StaleBlock { at }));
    }
}

#[test]
fn a_split_may_use_the_reserve_and_growth_may_not() {
    let mut bench = Bench::new();
    bench.join("s1:1", 1, 4); // Two of them are reserved.
    let job = bench.job("job");
    let opened = bench.make(job, kv("", "x", 2)).unwrap();
    let (s, [a, b]) = (opened.structure, [0, 1].map(|i| opened.map.entries[i].at));
    let (id, _) = begin(&mut bench, s, a, Some(16 * PART)).unwrap();
    assert!(matches!(bench.make(job, file("", "f", 1)), Err(CatalogError::OutOfMemory(_))));
    begin(&mut bench, s, b, Some(48 * PART)).unwrap();
    assert_eq!(bench.status().free, 0);
    cancel(&mut bench, s, a, id);
    // Not free before its server has confirmed.
    let refused = begin(&mut bench, s, a, Some(16 * PART));
    let Err(CatalogError::OutOfMemory(full)) = refused else { panic!("{refused:?}") };
    assert_eq!((full.asked, full.free, full.reserved), (1, 0, 0));
}

#[test]
fn a_quota_bounds_splits_too() {
    let mut bench = Bench::new();
    bench.join("s1:1", 1, 10);
    let register = |name| Command::RegisterJob {
        actor: Actor::CLUSTER,
        name,
        lease_ms: 0,
        quota_blocks: 2,
        hints: Default::default(),
        claim: Default::default(),
    };
    let Ok(Reply::Job { job, .. }) = bench.run(register("job")) else { panic!() };
    let opened = bench.make(job, kv("", "x", 2)).unwrap();
    let refused = begin(&mut bench, opened.structure, opened.map.entries[0].at, Some(1 << 54));
    assert_eq!(
        refused,
        Err(CatalogError::QuotaExceeded { level: QuotaLevel::Job, quota: 2, held: 2, asked: 1 })
    );
}

#[test]
fn a_block_gives_everything_to_the_emptier_of_its_neighbours_that_has_room() {
    let (mut bench, job, opened) = setup(4);
    let (s, at) = (opened.structure, |i: usize| opened.map.entries[i].at);
    let [a, b, c, d] = [0, 1, 2, 3].map(at);
    for (block, bytes) in [(a, 3000), (b, 1000), (c, 2000), (d, 36_000)] {
        bench.report(block, bytes);
    }
    let (id, entry) = begin(&mut bench, s, b, None).unwrap();
    assert_eq!((entry.start, entry.end, entry.at), (16 * PART, 32 * PART - 1, c));
    let told = [Effect::BeginImport {
        server: c.block.server(),
        at: c,
        id,
        start: 16 * PART,
        end: 32 * PART - 1,
    }];
    assert_eq!(bench.effects, told);
    // The answer is sent again, because its receipt is not recorded.
    assert_eq!(begin(&mut bench, s, b, Some(3)), Ok((id, entry)));
    assert_eq!(bench.effects, told);
    // A block in a move takes part in no other.
    assert_eq!(begin(&mut bench, s, c, Some(40 * PART)), Err(CatalogError::Moving { at: c }));
    assert_eq!(begin(&mut bench, s, a, None), Err(CatalogError::NoNeighbour { at: a }));
    assert_eq!(begin(&mut bench, s, d, None), Err(CatalogError::NoNeighbour { at: d }));
    let after = (2, (16 * PART, 48 * PART - 1, c));
    assert_eq!(commit(&mut bench, s, b, id, c), Ok(after));
    let ends = Effect::EndImport { server: c.block.server(), at: c, id, commit: true };
    assert_eq!(bench.effects, [ends, Effect::FreeBlock { server: b.block.server(), at: b }]);
    // Nothing is left of the source that could need more than the answer.
    for confirmed in [false, true] {
        if confirmed {
            bench.confirm(&[b]);
        }
        assert_eq!(commit(&mut bench, s, b, id, c), Ok(after));
        cancel(&mut bench, s, b, id);
        assert!(bench.effects.is_empty());
        assert_eq!(begin(&mut bench, s, b, None), Err(CatalogError::StaleBlock { at: b }));
    }
    // To the left; together they fill five sixths of 95 % and not a byte more.
    bench.report(c, 51_882 - 36_000 + 1);
    assert_eq!(begin(&mut bench, s, d, None), Err(CatalogError::NoNeighbour { at: d }));
    bench.report(c, 51_882 - 36_000);
    let (id, entry) = begin(&mut bench, s, d, None).unwrap();
    assert_eq!(entry.at, c);
    assert_eq!(commit(&mut bench, s, d, id, c), Ok((3, (16 * PART, u64::MAX, c))));
    // And the last to the first, until there is no neighbour any more.
    let (id, entry) = begin(&mut bench, s, a, None).unwrap();
    assert_eq!(entry.at, c);
    assert_eq!(commit(&mut bench, s, a, id, c), Ok((4, (0, u64::MAX, c))));
    assert_eq!(begin(&mut bench, s, c, None), Err(CatalogError::NoNeighbour { at: c }));
    assert_eq!(map(&mut bench, job, &opened), (4, vec![(0, u64::MAX, c)]));
}

#[test]
fn what_was_cancelled_is_never_committed() {
    let (mut bench, job, opened) = setup(2);
    let (s, [a, b]) = (opened.structure, [0, 1].map(|i| opened.map.entries[i].at));
    let before = map(&mut bench, job, &opened);
    let (id, entry) = begin(&mut bench, s, a, Some(PART)).unwrap();
    let other = BlockAt { epoch: Epoch(entry.at.epoch.0 - 1), ..entry.at };
    for (at, target) in [(b, entry.at), (a, other)] {
        let refused = commit(&mut bench, s, at, id, target).unwrap_err();
        assert!(matches!(refused, CatalogError::StaleBlock { .. }));
    }
    let refused = bench.run(Command::CancelMove { structure: s, at: b, id });
    assert_eq!(refused, Err(CatalogError::StaleBlock { at: b }));
    for _ in 0..2 {
        cancel(&mut bench, s, a, id);
        let refused = commit(&mut bench, s, a, id, entry.at);
        assert_eq!(refused, Err(CatalogError::MoveCancelled { id, at: a }));
    }
    // A merge leaves both blocks in the map, whether cancelled or not begun: only its number distinguishes
    // them.
    let (id, entry) = begin(&mut bench, s, a, None).unwrap();
    cancel(&mut bench, s, a, id);
    assert_eq!(ended(&bench), [(b, id, false)]);
    assert_eq!(
        commit(&mut bench, s, a, id, entry.at),
        Err(CatalogError::MoveCancelled { id, at: a })
    );
    assert_eq!(map(&mut bench, job, &opened), before);
    let nobody = StructureId(99);
    cancel(&mut bench, nobody, a, id);
    let refused = commit(&mut bench, nobody, a, id, b);
    assert_eq!(refused, Err(CatalogError::UnknownStructure { structure: nobody }));
}

/// Begins a split and cancels it. The new block is free when its server has confirmed it.
fn cancelled_split() {
    let (mut bench, job, opened) = setup(1);
    let (s, a) = (opened.structure, opened.map.entries[0].at);
    let free = bench.status().free;
    let (id, entry) = begin(&mut bench, s, a, Some(32 * PART)).unwrap();
    assert_eq!(bench.status().free, free - 1);
    cancel(&mut bench, s, a, id);
    let freed = |effect: &Effect| match effect {
        Effect::FreeBlock { at, .. } => *at == entry.at,
        _ => false,
    };
    assert!(bench.effects.iter().any(freed), "{:?}", bench.effects);
    bench.confirm(&[entry.at]);
    assert_eq!(bench.status().free, free);
    assert_eq!(bench.tree(job)[1].structures[0].blocks, 1);
}

#[test]
fn cancelled_split_frees_its_block() {
    cancelled_split();
}

#[test]
#[should_panic(expected = "INV-02")]
fn cancelled_split_that_does_not_free_its_block_is_caught() {
    Bug::arm(Some(Bug::MoveCancelLeaks));
    cancelled_split();
}

#[test]
fn a_source_gets_its_answer_also_when_its_target_has_given_all_away_since() {
    let (mut bench, _, opened) = setup(2);
    let (s, [a, b]) = (opened.structure, [0, 1].map(|i| opened.map.entries[i].at));
    let (id, entry) = begin(&mut bench, s, a, Some(16 * PART)).unwrap();
    commit(&mut bench, s, a, id, entry.at).unwrap();
    bench.report(a, 100); // So that b is the emptier neighbour.
    let (merge, to) = begin(&mut bench, s, entry.at, None).unwrap();
    assert_eq!(to.at, b);
    commit(&mut bench, s, entry.at, merge, b).unwrap();
    let after = (3, (16 * PART, u64::MAX, b));
    assert_eq!(commit(&mut bench, s, a, id, entry.at), Ok(after));
    assert!(bench.effects.is_empty());
    // As the target of another move, it still gets the outcome of its own.
    begin(&mut bench, s, b, None).unwrap();
    assert_eq!(commit(&mut bench, s, a, id, entry.at), Ok(after));
    let (again, to) = begin(&mut bench, s, b, None).unwrap();
    assert_eq!(to.at, a);
    commit(&mut bench, s, b, again, a).unwrap();
    assert_eq!(commit(&mut bench, s, b, again, a), Ok((4, (0, u64::MAX, a))));
}

#[test]
fn a_target_that_is_lost_or_refuses_ends_its_move_only() {
    let (mut bench, job, opened) = setup(1);
    let (s, a) = (opened.structure, opened.map.entries[0].at);
    let (id, entry) = begin(&mut bench, s, a, Some(PART)).unwrap();
    let b = entry.at;
    assert_ne!(b.block.server(), a.block.server());
    bench.report(b, 500);
    bench.report(a, 1000);
    assert_eq!(bench.tree(job)[1].structures[0].bytes_used, 1500);
    bench.run(Command::ServerLost { server: b.block.server() }).unwrap();
    assert!(bench.effects.is_empty(), "lost servers are sent nothing");
    assert_eq!(map(&mut bench, job, &opened), (1, vec![(0, u64::MAX, a)]));
    assert_eq!(bench.tree(job)[1].structures[0].bytes_used, 1000);
    let refused = commit(&mut bench, s, a, id, b);
    assert_eq!(refused, Err(CatalogError::MoveCancelled { id, at: a }));

    // The only server left does not open it.
    let (id, entry) = begin(&mut bench, s, a, Some(PART)).unwrap();
    let (c, server) = (entry.at, entry.at.block.server());
    let stale = BlockAt { epoch: Epoch(c.epoch.0 - 1), ..c };
    let refused = |at, id| Command::ImportRefused { server, at, id };
    for other in [refused(stale, id), refused(c, MoveId(id.0 + 1)), refused(a, id)] {
        bench.run(other).unwrap();
        assert!(bench.effects.is_empty());
    }
    for freed in [vec![c], vec![]] {
        bench.run(refused(c, id)).unwrap();
        assert_eq!(bench.freed(), freed);
    }
    // Once committed it is data like any other.
    let d = split(&mut bench, s, a, PART);
    bench.run(refused(d, id)).unwrap();
    assert!(bench.effects.is_empty());
    bench.join("s3:1", 1, 40);
    let e = split(&mut bench, s, d, 2 * PART);
    assert_ne!(e.block.server(), server);
    bench.run(Command::ServerLost { server: e.block.server() }).unwrap();
    assert_eq!(bench.freed(), [a, d]);
    assert!(matches!(bench.reopen(job, &opened), Err(CatalogError::DataLost { .. })));
}

#[test]
fn the_end_of_a_structure_frees_what_a_split_was_filling() {
    let (mut bench, job, opened) = setup(2);
    let (s, [a, b]) = (opened.structure, [0, 1].map(|i| opened.map.entries[i].at));
    let (id, entry) = begin(&mut bench, s, a, Some(PART)).unwrap();
    let c = entry.at;
    let (actor, path, name) = (Actor::driver(job), "t", "x");
    bench.run(Command::RemoveStructure { actor, job, path, name }).unwrap();
    assert_eq!(bench.freed(), [a, b, c]);
    cancel(&mut bench, s, a, id);
    let gone = Err(CatalogError::UnknownStructure { structure: s });
    assert_eq!(commit(&mut bench, s, a, id, c), gone);
    bench.confirm(&[a, b, c]);
    let status = bench.status();
    assert_eq!(status.free, status.blocks);
}

#[test]
fn servers_can_be_told_again_what_became_of_their_imports() {
    let (mut bench, _, opened) = setup(2);
    let (s, [a, b]) = (opened.structure, [0, 1].map(|i| opened.map.entries[i].at));
    let told = |bench: &Bench, at: BlockAt| {
        let mut effects = Vec::new();
        bench.catalog.imports(at.block.server(), &mut effects);
        assert!(effects.iter().all(|effect| effect.server() == at.block.server()));
        effects
    };
    assert!(told(&bench, a).is_empty() && told(&bench, b).is_empty());
    let (cancelled, _) = begin(&mut bench, s, a, None).unwrap();
    cancel(&mut bench, s, a, cancelled);
    let (server, at) = (b.block.server(), b);
    let end = |id, commit| Effect::EndImport { server, at, id, commit };
    assert_eq!(told(&bench, b), [end(cancelled, false)]);
    let (id, _) = begin(&mut bench, s, a, None).unwrap();
    let begun = bench.effects[0].clone();
    assert_eq!(told(&bench, b), [end(cancelled, false), begun]);
    commit(&mut bench, s, a, id, b).unwrap();
    assert_eq!(told(&bench, b), [end(id, true)]);
    assert_ne!(told(&bench, a), told(&bench, b));
    let (_, entry) = begin(&mut bench, s, b, Some(60 * PART)).unwrap();
    let opened = bench.effects[0].clone();
    assert!(told(&bench, entry.at).contains(&opened));
}

/// The controller restarts, and the servers reconnect with these blocks.
fn restart(bench: &mut Bench, servers: &[(ServerId, &str)], held: &[(BlockAt, StructureId)]) {
    bench.catalog = bench.recovered();
    for &(member, address) in servers {
        let server = server(address, 1, 8);
        assert_eq!(bench.run(Command::RejoinServer { server, member }), Ok(Reply::Joined(member)));
    }
    let mut told = Vec::new();
    for &(server, _) in servers {
        let own = held.iter().filter(|(at, _)| at.block.server() == server);
        let own: Vec<HeldBlock> = own.map(|&(at, structure)| held_block(at, structure)).collect();
        bench.run(Command::Inventory { server, held: &own, last: true }).unwrap();
        told.append(&mut bench.effects);
    }
    bench.effects = told;
}

fn held_block(at: BlockAt, structure: StructureId) -> HeldBlock {
    let generation = Generation(1);
    let (sealed, successor, taken) = (None, None, (0, 0));
    HeldBlock {
        at,
        structure,
        generation,
        bytes_used: 0,
        sealed,
        successor,
        taken,
        tiers: Default::default(),
        capacity: 65_536,
    }
}

#[test]
fn a_restart_of_the_controller_keeps_what_moves() {
    let (mut bench, job, opened) = setup(2);
    let (s, [a, b]) = (opened.structure, [0, 1].map(|i| opened.map.entries[i].at));
    let servers = [(a.block.server(), "s1:1"), (b.block.server(), "s2:1")];
    assert_ne!(servers[0].0, servers[1].0);
    // Its target may not be open yet.
    let (id, entry) = begin(&mut bench, s, a, Some(16 * PART)).unwrap();
    let open = bench.effects[0].clone();
    restart(&mut bench, &servers, &[(a, s), (b, s)]);
    assert_eq!(bench.effects, [open]);
    assert_eq!(begin(&mut bench, s, a, None), Ok((id, entry.clone())));
    let c = entry.at;
    // It was committed, and neither source nor target has received the answer.
    let after = commit(&mut bench, s, a, id, c).unwrap();
    let end = |at: BlockAt, id, commit| {
        let server = at.block.server();
        Effect::EndImport { server, at, id, commit }
    };
    restart(&mut bench, &servers, &[(a, s), (b, s), (c, s)]);
    assert_eq!(bench.effects, [end(c, id, true)]);
    assert_eq!(commit(&mut bench, s, a, id, c), Ok(after));
    // A merge, cancelled and begun again: the ended move is reported before the one under way.
    let (cancelled, to) = begin(&mut bench, s, c, None).unwrap();
    let target = to.at;
    cancel(&mut bench, s, c, cancelled);
    let (merge, _) = begin(&mut bench, s, c, None).unwrap();
    let begun = bench.effects[0].clone();
    restart(&mut bench, &servers, &[(a, s), (b, s), (c, s)]);
    let of_target: Vec<&Effect> = bench
        .effects
        .iter()
        .filter(|effect| {
            matches!(effect,
                Effect::EndImport { at, .. } | Effect::BeginImport { at, .. } if *at == target)
        })
        .collect();
    assert_eq!(of_target, [&end(target, cancelled, false), &begun]);
    assert_eq!(
        commit(&mut bench, s, c, cancelled, target),
        Err(CatalogError::MoveCancelled { id: cancelled, at: c })
    );
    let (version, _) = commit(&mut bench, s, c, merge, target).unwrap();
    assert_eq!((version, map(&mut bench, job, &opened).1.len()), (3, 2));
    // Numbers continue where they were.
    let (next, _) = begin(&mut bench, s, a, Some(8 * PART)).unwrap();
    assert!(next > merge);
}

#[test]
fn a_move_that_nobody_ends_is_cancelled_in_time() {
    let mut bench = Bench::new();
    let servers = [bench.join("s1:1", 1, 8), bench.join("s2:1", 1, 8)];
    let job = bench.job_leased("job", 3_600_000);
    let opened = bench.make(job, kv("", "x", 3)).unwrap();
    let (s, at) = (opened.structure, |i: usize| opened.map.entries[i].at);
    let (split, entry) = begin(&mut bench, s, at(0), Some(PART)).unwrap();
    let (merge, to) = begin(&mut bench, s, at(2), None).unwrap();
    assert_eq!(to.at, at(1));
    let wait = |bench: &mut Bench, ms: u64| {
        for _ in 0..ms / 1000 {
            let (bytes_resident, connections, requests, forwarded, usage) = (0, 0, 0, 0, &[][..]);
            let report = Report {
                bytes_resident,
                connections,
                requests,
                forwarded,
                bytes_owed: 0,
                cpu_permille: 0,
                traffic: &[],
                alarms: &[],
                usage,
            };
            for server in servers {
                bench.run(Command::ServerReport { server, report }).unwrap();
            }
            bench.pass(1000);
        }
    };
    wait(&mut bench, MOVE_MAX.as_millis() as u64 - 1000);
    assert!(bench.effects.is_empty());
    // Another request does not extend its time.
    assert_eq!(begin(&mut bench, s, at(0), None).map(|(id, _)| id), Ok(split));
    wait(&mut bench, 1000);
    assert_eq!(bench.freed(), [entry.at]);
    assert_eq!(ended(&bench), [(at(1), merge, false)]);
    for (source, id, target) in [(at(0), split, entry.at), (at(2), merge, to.at)] {
        let refused = commit(&mut bench, s, source, id, target);
        assert_eq!(refused, Err(CatalogError::MoveCancelled { id, at: source }));
    }
    // A committed move has ended.
    let (id, entry) = begin(&mut bench, s, at(0), Some(PART)).unwrap();
    commit(&mut bench, s, at(0), id, entry.at).unwrap();
    wait(&mut bench, MOVE_MAX.as_millis() as u64);
    assert_eq!(map(&mut bench, job, &opened).1.len(), 4);
    assert!(commit(&mut bench, s, at(0), id, entry.at).is_ok());
}

#[test]
fn small_structures_do_not_divide_the_memory_that_a_split_needs() {
    let mut bench = Bench::new();
    let server = NewServer { block_size: 1 << 20, ..server("s1:1", 3, 4) };
    bench.run(Command::JoinServer { server }).unwrap();
    let job = bench.job("job");
    bench.create(job, "t", &[], LEASE).unwrap();
    let large = bench.make(job, kv("t", "large", 1)).unwrap();
    let (structure, at) = (large.structure, large.map.entries[0].at);
    let whole = Command::GrowBlock { structure, at, bytes: 1 << 20 };
    assert_eq!(bench.run(whole), Ok(Reply::Capacity { bytes: 1 << 20 }));
    let of_64_kib = |i: i32| bench.make(job, kv("t", &format!("small{i}"), 1));
    let (made, refused): (Vec<_>, Vec<_>) = (0..200).map(of_64_kib).partition(Result::is_ok);
    // Twelve blocks, less the large one and the two of the reserve.
    assert_eq!(made.len(), 9 * 16);
    assert!(refused.iter().all(|made| matches!(made, Err(CatalogError::OutOfMemory(_)))));
    // A block that began small does not take them either.
    let small = made[0].as_ref().unwrap();
    let at_small = small.map.entries[0].at;
    let more = Command::GrowBlock { structure: small.structure, at: at_small, bytes: 1 << 18 };
    assert!(matches!(bench.run(more), Err(CatalogError::OutOfMemory(_))));
    split(&mut bench, structure, at, 1 << 63);
    split(&mut bench, structure, at, 1 << 62);
    let third = begin(&mut bench, structure, at, Some(1 << 61));
    assert!(matches!(third, Err(CatalogError::OutOfMemory(_))));
    // The large block frees three quarters of its memory.
    assert!(!bench.catalog.take_room_came());
    let kept = Command::GrowBlock { structure, at, bytes: 1 << 18 };
    assert_eq!(bench.run(kept), Ok(Reply::Capacity { bytes: 1 << 18 }));
    assert!(bench.catalog.take_room_came(), "waiting allocations are tried again");
    assert_eq!(bench.catalog.capacity_at(at), Some(1 << 18));
}
