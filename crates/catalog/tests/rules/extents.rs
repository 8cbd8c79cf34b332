//! Blocks in which a kv keeps extents: their choice, their end, and their recovery after a restart.

use crate::common::{Bench, file, kv, lease};
use honeycomb_catalog::{
    Actor, BlockUsage, CatalogError, Command, Effect, HeldBlock, Reply, Report,
};
use honeycomb_types::{BlockAt, BlockId, Generation, JobId, Kind, ServerId, StructureId, Verbs};

const BLOCK: u64 = 65_536;
const MOST: u64 = BLOCK / 8;

fn ask(
    bench: &mut Bench,
    job: JobId,
    structure: StructureId,
    bytes: u64,
    full: &[BlockId],
) -> Result<Vec<BlockAt>, CatalogError> {
    let actor = Actor::driver(job);
    match bench.run(Command::ExtentBlocks { actor, job, structure, bytes, full, value: 0 })? {
        Reply::Extents(entries) => Ok(entries.iter().map(|entry| entry.at).collect()),
        other => panic!("{other:?}"),
    }
}

fn one(bench: &mut Bench, job: JobId, structure: StructureId, full: &[BlockId]) -> BlockAt {
    let found = ask(bench, job, structure, MOST, full).unwrap();
    assert_eq!(found.len(), 1);
    found[0]
}

fn use_bytes(bench: &mut Bench, at: BlockAt, bytes_used: u64) {
    let usage = [BlockUsage { at, bytes_used }];
    let report = Report { usage: &usage, ..Report::default() };
    bench.run(Command::ServerReport { server: at.block.server(), report }).unwrap();
}

fn opened_kinds(effects: &[Effect]) -> Vec<(BlockAt, Kind)> {
    let open = |effect: &Effect| match effect {
        Effect::OpenBlock { at, kind, .. } => Some((*at, *kind)),
        _ => None,
    };
    effects.iter().filter_map(open).collect()
}

fn setup() -> (Bench, JobId, StructureId, ServerId) {
    let mut bench = Bench::new();
    let server = bench.join("a:1", 2, 8);
    let job = bench.job("job");
    bench.create(job, "t", &[], lease(3_600_000)).unwrap();
    let store = bench.make(job, kv("t", "kv", 1)).unwrap().structure;
    (bench, job, store, server)
}

#[test]
fn the_fullest_block_with_room_is_given_and_a_new_one_when_there_is_none() {
    let (mut bench, job, store, _) = setup();
    assert_eq!(ask(&mut bench, job, store, 0, &[]), Ok(vec![]));
    let first = one(&mut bench, job, store, &[]);
    assert_eq!(opened_kinds(&bench.effects), [(first, Kind::Extents)]);
    assert_eq!(one(&mut bench, job, store, &[]), first);
    assert!(bench.effects.is_empty(), "nothing is made twice");
    use_bytes(&mut bench, first, BLOCK - MOST);
    assert_eq!(one(&mut bench, job, store, &[]), first);
    use_bytes(&mut bench, first, BLOCK - MOST + 1);
    let second = one(&mut bench, job, store, &[]);
    assert_ne!(second, first);
    use_bytes(&mut bench, second, 3 * MOST);
    use_bytes(&mut bench, first, 4 * MOST);
    assert_eq!(one(&mut bench, job, store, &[]), first);
    // A client that was refused there gets another one, as often as necessary.
    assert_eq!(one(&mut bench, job, store, &[first.block]), second);
    let third = one(&mut bench, job, store, &[first.block, second.block]);
    assert_eq!(ask(&mut bench, job, store, 0, &[]), Ok(vec![first, second, third]));
    let structure = &bench.tree(job)[1].structures[0];
    assert_eq!((structure.blocks, structure.bytes_used), (4, 7 * MOST));
}

#[test]
fn it_is_refused_with_the_reason() {
    let (mut bench, job, store, _) = setup();
    let text = bench.make(job, file("t", "text", 1)).unwrap().structure;
    let refused = |bench: &mut Bench, job, structure, bytes| {
        ask(bench, job, structure, bytes, &[]).expect_err("it cannot be")
    };
    assert!(matches!(refused(&mut bench, job, text, 1), CatalogError::WrongKind { .. }));
    let long = refused(&mut bench, job, store, MOST + 1);
    assert!(matches!(long, CatalogError::InvalidArgument { given, .. } if given == MOST + 1));
    let other = bench.job("other");
    assert!(matches!(
        refused(&mut bench, other, store, 1),
        CatalogError::UnknownStructure { structure } if structure == store
    ));
    // A client that may only read gets the list.
    let block = one(&mut bench, job, store, &[]);
    let actor = Actor { verbs: Verbs::READ, ..Actor::driver(job) };
    let asks =
        |bytes| Command::ExtentBlocks { actor, job, structure: store, bytes, full: &[], value: 0 };
    assert!(matches!(bench.run(asks(1)), Err(CatalogError::PermissionDenied { .. })));
    let Ok(Reply::Extents(all)) = bench.run(asks(0)) else { panic!("refused") };
    assert_eq!(all[0].at, block);
    // No structure has this kind.
    let made =
        bench.make(job, honeycomb_catalog::NewStructure { kind: Kind::Extents, ..kv("t", "e", 1) });
    assert!(matches!(made, Err(CatalogError::UnknownKind { kind: Kind::Extents })));
    bench
        .run(Command::RemoveStructure { actor: Actor::driver(job), job, path: "t", name: "kv" })
        .unwrap();
    assert!(!matches!(refused(&mut bench, job, store, 1), CatalogError::UnknownStructure { .. }));
}

#[test]
fn value_that_not_even_an_empty_cluster_could_hold_is_refused_at_once() {
    let (mut bench, job, structure, _) = setup();
    let (actor, all) = (Actor::driver(job), 16 * BLOCK);
    let mut asks = |value| {
        let command =
            Command::ExtentBlocks { actor, job, structure, bytes: MOST, full: &[], value };
        bench.run(command).map(drop)
    };
    let refused = asks(all + 1).unwrap_err();
    let CatalogError::ValueTooLarge { bytes, limit } = refused else { panic!("{refused:?}") };
    assert_eq!((bytes, limit), (all + 1, all));
    asks(all).unwrap();
}

#[test]
fn without_a_block_nothing_changes() {
    let (mut bench, job, store, _) = setup();
    let mut full = Vec::new();
    let why = loop {
        match ask(&mut bench, job, store, 1, &full) {
            Ok(found) => full.push(found[0].block),
            Err(why) => break why,
        }
    };
    // The reserve for moves is not used.
    assert_eq!(full.len(), 16 - 1 - 2);
    assert!(matches!(why, CatalogError::OutOfMemory(_)), "{why:?}");
    assert_eq!(ask(&mut bench, job, store, 0, &[]).unwrap().len(), full.len());
}

#[test]
fn an_empty_one_is_given_back_and_all_go_with_the_structure() {
    let (mut bench, job, store, server) = setup();
    let (first, second) = (one(&mut bench, job, store, &[]), {
        let first = one(&mut bench, job, store, &[]);
        one(&mut bench, job, store, &[first.block])
    });
    bench.run(Command::RetireBlock { structure: store, at: first }).unwrap();
    assert_eq!(bench.effects, [Effect::FreeBlock { server, at: first }]);
    assert_eq!(ask(&mut bench, job, store, 0, &[]), Ok(vec![second]));
    // It repeats the report, until it is freed.
    assert!(bench.run(Command::RetireBlock { structure: store, at: first }).is_err());
    // The kv's own block is not one of them.
    let map = bench.catalog_map(job, store);
    assert!(bench.run(Command::RetireBlock { structure: store, at: map }).is_err());
    bench
        .run(Command::RemoveStructure { actor: Actor::driver(job), job, path: "t", name: "kv" })
        .unwrap();
    let freed = [map, second].map(|at| Effect::FreeBlock { server, at });
    assert_eq!(bench.effects, freed);
}

#[test]
fn a_server_that_had_one_takes_the_structure_with_it() {
    let mut bench = Bench::new();
    let first = bench.join("a:1", 1, 4);
    let job = bench.job("job");
    bench.create(job, "t", &[], lease(3_600_000)).unwrap();
    let store = bench.make(job, kv("t", "kv", 1)).unwrap().structure;
    let second = bench.join("b:1", 1, 40);
    let mut full = Vec::new();
    let far = loop {
        let at = one(&mut bench, job, store, &full);
        full.push(at.block);
        if at.block.server() == second {
            break at;
        }
    };
    bench.run(Command::ServerLost { server: second }).unwrap();
    assert!(!bench.effects.is_empty(), "what {first} has of it is freed");
    let lost = ask(&mut bench, job, store, 0, &[]).expect_err("it is gone");
    assert!(lost.to_string().contains("b:1"), "{lost} of {far:?}");
}

#[test]
fn a_restarted_controller_knows_them_and_opens_what_was_not_opened() {
    let (mut bench, job, store, server) = setup();
    let map = bench.catalog_map(job, store);
    let first = one(&mut bench, job, store, &[]);
    let second = one(&mut bench, job, store, &[first.block]);
    bench.restart();
    let new = crate::common::server("a:1", 2, 8);
    bench.run(Command::RejoinServer { server: new, member: server }).unwrap();
    let held = |at| HeldBlock {
        at,
        structure: store,
        generation: Generation(1),
        bytes_used: 4 * MOST,
        sealed: None,
        successor: None,
        taken: (0, 0),
        tiers: Default::default(),
        capacity: 65_536,
    };
    // The second one was granted, and the controller ended before the block was opened.
    let held = [held(map), held(first)];
    bench.run(Command::Inventory { server, held: &held, last: true }).unwrap();
    assert_eq!(opened_kinds(&bench.effects), [(second, Kind::Extents)]);
    assert_eq!(ask(&mut bench, job, store, 0, &[]), Ok(vec![first, second]));
    assert_eq!(one(&mut bench, job, store, &[]), first);
}

/// The whole list was logged again whenever one block was added or removed.
#[test]
fn one_block_more_costs_one_record_however_many_there_are() {
    let (mut bench, job, kv, _) = setup();
    let mut all = vec![one(&mut bench, job, kv, &[])];
    let first = bench.changes.len();
    for _ in 0..4 {
        let full: Vec<BlockId> = all.iter().map(|at| at.block).collect();
        all.push(one(&mut bench, job, kv, &full));
        assert_eq!(bench.changes.len(), first);
    }
    let at = all.remove(1);
    bench.run(Command::RetireBlock { structure: kv, at }).unwrap();
    assert_eq!(bench.changes.len(), first);
    bench.restart();
    let left: Vec<BlockAt> = ask(&mut bench, job, kv, 0, &[]).unwrap();
    assert_eq!(left, all);
}
