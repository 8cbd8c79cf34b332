//! Custom kinds: their announcement by servers, the placement of their blocks, and how they grow and shrink
//! (INV-17, 20).

use crate::common::{Bench, LEASE, file, kv, server};
use honeycomb_catalog::{
    Actor, CatalogError, Command, Effect, NewServer, NewStructure, Opened, PrefixOptions, Reply,
    Router, Seal,
};
use honeycomb_types::{
    AnnouncedKind, BlockAt, Capabilities, JobId, Kind, KindSpec, OperationSpec, Route, ServerId,
    StructureId,
};

fn kind(code: u8) -> Kind {
    Kind::from_code(code).unwrap()
}

fn spec(code: u8, name: &str, router: Router) -> AnnouncedKind {
    let operations = vec![OperationSpec::read(1, "look", Route::Each)];
    KindSpec { kind: kind(code), name: name.into(), router, operations }.into()
}

fn of<'a>(code: u8, name: &'a str) -> NewStructure<'a> {
    NewStructure { kind: kind(code), ..file("t", name, 1) }
}

/// A bench with a job, a prefix `t`, and a server for each of these lists of kinds.
fn bench(servers: &[&[AnnouncedKind]]) -> (Bench, JobId, Vec<ServerId>) {
    let mut bench = Bench::new();
    let address = |i: usize| format!("s{i}:1");
    let joined =
        (0..servers.len()).map(|i| bench.join_with(&address(i), 1, 20, false, servers[i]).unwrap());
    let joined = joined.collect();
    let job = bench.job("job");
    bench.create(job, "t", &[], crate::common::lease(3_600_000)).unwrap();
    (bench, job, joined)
}

fn kinds(bench: &mut Bench, actor: Actor) -> Vec<(u8, u32)> {
    match bench.run(Command::ListKinds { actor }) {
        Ok(Reply::Kinds(kinds)) => {
            kinds.iter().map(|(spec, n)| (spec.spec.kind.code(), *n)).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T, CatalogError>) -> String {
    match result {
        Err(e @ CatalogError::KindRefused { .. }) => e.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_kind_is_there_while_a_server_serves_it() {
    let log = spec(0x80, "log", Router::Index);
    let (mut bench, job, _) = bench(&[&[]]);
    let unknown = bench.make(job, of(0x80, "a")).unwrap_err();
    assert_eq!(unknown, CatalogError::UnknownKind { kind: kind(0x80) });
    assert!(unknown.to_string().contains("0x80"), "{unknown}");
    let server = bench.join_with("s1:1", 1, 20, false, std::slice::from_ref(&log)).unwrap();
    let opened = bench.make(job, of(0x80, "a")).unwrap();
    assert_eq!((opened.kind, opened.map.router), (kind(0x80), Router::Index));
    assert_eq!(kinds(&mut bench, Actor::driver(job)), [(0x80, 1)]);
    bench.join_with("s2:1", 1, 20, false, &[log]).unwrap();
    assert_eq!(kinds(&mut bench, Actor::CLUSTER), [(0x80, 2)]);
    bench.run(Command::ServerLost { server }).unwrap();
    assert!(matches!(bench.reopen(job, &opened), Err(CatalogError::DataLost { .. })));
    assert_eq!(kinds(&mut bench, Actor::CLUSTER), [(0x80, 1)]);
}

/// After a restart servers served no custom kind any more: the announcement of a reconnecting server was
/// ignored.
#[test]
fn a_server_that_came_back_serves_its_kinds() {
    let log = [spec(0x80, "log", Router::Index)];
    let (mut bench, job, servers) = bench(&[&log]);
    bench.restart();
    bench.rejoin(servers[0], &log);
    bench.run(Command::Inventory { server: servers[0], held: &[], last: true }).unwrap();
    assert_eq!(kinds(&mut bench, Actor::CLUSTER), [(0x80, 1)]);
    bench.make(job, of(0x80, "a")).unwrap();
}

/// The newcomer's description held, and the server with the structures was refused: its data was lost.
#[test]
fn newcomer_after_a_restart_does_not_redefine_a_kind_with_structures() {
    let log = [spec(0x80, "log", Router::Index)];
    let (mut bench, job, servers) = bench(&[&log]);
    let made = bench.make(job, of(0x80, "a")).unwrap();
    bench.restart();
    let refused = bench.join_with("s9:1", 1, 20, false, &[elastic(0x80, "log")]).unwrap_err();
    let refuses = matches!(refused, CatalogError::KindRefused { code: 0x80, .. });
    assert!(refuses && refused.to_string().contains("traits"), "{refused}");
    bench.join_with("s8:1", 1, 20, false, &log).unwrap();
    bench.rejoin(servers[0], &log);
    let at = made.map.entries[0].at;
    assert_eq!(at.block.server(), servers[0]);
    assert_eq!(kinds(&mut bench, Actor::CLUSTER), [(0x80, 2)]);
}

#[test]
fn blocks_go_to_servers_that_serve_the_kind() {
    let log = spec(0x80, "log", Router::Index);
    let (mut bench, job, servers) = bench(&[&[], &[log], &[]]);
    let opened = bench.make(job, NewStructure { blocks: 3, ..of(0x80, "a") }).unwrap();
    let mut at = opened.map.entries[0].at;
    let mut count = 1;
    let refused = loop {
        assert_eq!(at.block.server(), servers[1]);
        match bench.grow(opened.structure, at) {
            Ok((_, next)) => (at, count) = (next, count + 1),
            Err(e) => break e,
        }
    };
    // Two of its 20 blocks are reserved. The other servers have room, but do not serve this kind.
    assert_eq!(count, 18);
    assert!(
        matches!(refused, CatalogError::OutOfMemory(ref full) if full.asked == 1),
        "{refused:?}"
    );
    assert!(bench.make(job, file("t", "f", 30)).is_ok());
}

#[test]
fn one_code_and_one_name_mean_one_thing() {
    let log = spec(0x80, "log", Router::Index);
    let (mut bench, job, servers) = bench(&[std::slice::from_ref(&log)]);
    let mut join = |kinds: &[AnnouncedKind]| bench.join_with("s9:1", 1, 20, false, kinds);
    let other = refused(join(&[spec(0x80, "log", Router::Ends)]));
    assert!(other.contains("'log'") && other.contains("0x80"), "{other}");
    refused(join(&[spec(0x80, "tape", Router::Index)]));
    refused(join(&[spec(0x81, "log", Router::Index)]));
    refused(join(&[log.clone(), log.clone()]));
    refused(join(&[spec(0x81, "", Router::Index)]));
    refused(join(&[KindSpec { kind: Kind::Kv, ..log.spec.clone() }.into()]));
    join(&[log.clone(), spec(0x81, "tape", Router::Ends)]).unwrap();
    assert_eq!(kinds(&mut bench, Actor::CLUSTER), [(0x80, 2), (0x81, 1)]);
    // A server that reconnects as a new process may change a kind, when no other server had it.
    let changed = spec(0x81, "tape", Router::Index);
    bench.join_with("s9:1", 1, 20, false, &[log.clone(), changed.clone()]).unwrap();
    let opened = bench.make(job, of(0x81, "a")).unwrap();
    assert_eq!(opened.map.router, Router::Index);
    // No server may while others have it.
    let kinds_then = &[spec(0x80, "tape2", Router::Index)];
    let server = NewServer { incarnation: 99, kinds: kinds_then, ..server("s0:1", 1, 20) };
    refused(bench.run(Command::JoinServer { server }));
    // A kind that is no longer used is forgotten when the next server joins.
    let ids = [servers[0], opened.map.entries[0].at.block.server()];
    for server in ids {
        bench.run(Command::ServerLost { server }).unwrap();
    }
    bench.join_with("s7:1", 1, 20, false, &[]).unwrap();
    assert_eq!(kinds(&mut bench, Actor::CLUSTER), []);
}

#[test]
fn announcement_whose_parts_contradict_each_other_is_refused_with_the_reason() {
    let (mut bench, job, _) = bench(&[&[]]);
    let mut refused_as = |kind: AnnouncedKind, why: &str| {
        let text = refused(bench.join_with("s9:1", 1, 20, false, &[kind]));
        assert!(text.contains("0x80") && text.contains("'log'") && text.contains(why), "{text}");
    };
    let with = |capabilities: &[Capabilities], router: Router| {
        let all = capabilities.iter().fold(Capabilities::NONE, |all, one| all.with(*one, true));
        AnnouncedKind { capabilities: all, ..spec(0x80, "log", router) }
    };
    let (content, appended) = (Capabilities::CONTENT, Capabilities::APPENDED);
    refused_as(with(&[content], Router::Index), "no operation loads the items of a flush");
    let unflushed = AnnouncedKind { capabilities: Capabilities::MOVES, ..elastic(0x80, "log") };
    refused_as(unflushed, "its content is not flushed");
    refused_as(with(&[content], Router::HashRange), "no first or last block");
    refused_as(with(&[appended], Router::HashRange), "adds no block after a full one");
    refused_as(with(&[appended, Capabilities::WHOLE], Router::Index), "only one of these");
    bench.join_with("s9:1", 1, 20, false, &[elastic(0x80, "log")]).unwrap();
    bench.make(job, of(0x80, "a")).unwrap();
}

/// A numbered structure of three blocks, of which the first two are sealed.
fn grown() -> (Bench, JobId, Opened, [honeycomb_types::BlockAt; 3]) {
    let (mut bench, job, _) = bench(&[&[spec(0x80, "log", Router::Index)]]);
    let opened = bench.make(job, of(0x80, "a")).unwrap();
    let first = opened.map.entries[0].at;
    let (_, second) = bench.grow(opened.structure, first).unwrap();
    let (_, third) = bench.grow(opened.structure, second).unwrap();
    // More records than a block has bytes: a trimmed block begins again.
    let seal = |length| Seal { length, bytes: 5, last: false };
    bench.seal(opened.structure, first, seal(1_000_000)).unwrap();
    bench.seal(opened.structure, second, seal(10)).unwrap();
    (bench, job, opened, [first, second, third])
}

#[test]
fn a_numbered_structure_gives_its_blocks_back_from_the_front() {
    let (mut bench, job, opened, [first, second, third]) = grown();
    let structure = opened.structure;
    let mut retire = |at| bench.run(Command::RetireBlock { structure, at });
    assert_eq!(retire(second), Err(CatalogError::NotFirst { at: second }));
    assert_eq!(retire(third), Err(CatalogError::NotSealed { at: third }));
    retire(first).unwrap();
    assert!(matches!(bench.effects[..], [Effect::FreeBlock { at, .. }] if at == first));
    let map = bench.reopen(job, &opened).unwrap().map;
    let starts: Vec<_> = map.entries.iter().map(|entry| (entry.start, entry.at)).collect();
    assert_eq!(starts, [(1_000_000, second), (1_000_010, third)]);
    bench.run(Command::RetireBlock { structure, at: second }).unwrap();
    assert_eq!(bench.reopen(job, &opened).unwrap().map.entries.len(), 1);
}

#[test]
fn each_router_places_as_its_builtin_kind_does() {
    let all = [
        spec(0x80, "offset", Router::Offset),
        spec(0x81, "ends", Router::Ends),
        spec(0x82, "hashes", Router::HashRange),
        spec(0xEF, "index", Router::Index),
    ];
    let (mut bench, job, _) = bench(&[&all]);
    for (code, router, entries) in [
        (0x80, Router::Offset, 1),
        (0x81, Router::Ends, 1),
        (0x82, Router::HashRange, 2),
        (0xEF, Router::Index, 1),
    ] {
        let name = format!("{router:?}");
        let wanted = NewStructure { blocks: 2, max_items: 7, ..of(code, &name) };
        let opened = bench.make(job, wanted).unwrap();
        assert_eq!((opened.map.router, opened.map.entries.len()), (router, entries), "{name}");
        let opens = bench.effects.iter().filter(|e| matches!(e, Effect::OpenBlock { .. }));
        assert_eq!(opens.count(), 2, "all of its blocks");
        let grows = bench.grow(opened.structure, opened.map.entries[0].at).is_ok();
        assert_eq!(grows, router.grows(), "{name}");
        let at = opened.map.entries[0].at;
        if router == Router::Offset {
            let structure = opened.structure;
            let stays = bench.run(Command::RetireBlock { structure, at });
            assert_eq!(stays, Err(CatalogError::StaleBlock { at }));
        }
    }
    // A custom structure of keys has as many slots as a kv.
    let wrong = NewStructure { blocks: 65_537, ..of(0x82, "slots") };
    assert!(matches!(bench.make(job, wrong), Err(CatalogError::InvalidArgument { .. })));
    let existing = bench.make(job, of(0x80, "Ends"));
    assert!(matches!(existing, Err(CatalogError::StructureExists { .. })));
    let wrong = NewStructure { open_existing: true, ..of(0x80, "Ends") };
    let e = bench.make(job, wrong).unwrap_err();
    assert!(e.to_string().contains("0x81, not a custom structure of kind 0x80"), "{e}");
}

fn flushing_bench() -> (Bench, JobId) {
    let mut bench = Bench::new();
    let log = spec(0x80, "log", Router::Index);
    bench.join_with("s1:1", 1, 20, true, &[log]).unwrap();
    let job = bench.job_leased("job", 3_600_000);
    (bench, job)
}

const FLUSHED: PrefixOptions<'static> = PrefixOptions { flush_to: "out", lease_ms: 1000, ..LEASE };

/// A kind whose blocks can be flushed, move, and are demoted.
fn elastic(code: u8, name: &str) -> AnnouncedKind {
    let capabilities = [Capabilities::CONTENT, Capabilities::MOVES, Capabilities::WHOLE];
    let all = capabilities.iter().fold(Capabilities::NONE, |all, one| all.with(*one, true));
    let mut spec = spec(code, name, Router::Index).spec;
    spec.operations
        .push(OperationSpec::write(2, "restore", Route::Tail).with_payload().that_loads());
    AnnouncedKind { spec, capabilities: all }
}

/// A prefix with a log on the one server that serves logs, and a store on another server.
struct Mixed {
    bench: Bench,
    log: [AnnouncedKind; 1],
    of_log: ServerId,
    other: ServerId,
    records: (BlockAt, StructureId),
    table: (BlockAt, StructureId),
}

impl Mixed {
    fn new() -> Mixed {
        let mut bench = Bench::new();
        let log = [elastic(0x80, "log")];
        let of_log = bench.join_with("s1:1", 1, 20, true, &log).unwrap();
        let other = bench.join_with("s2:1", 1, 40, true, &[]).unwrap();
        let job = bench.job_leased("job", 3_600_000);
        bench.create(job, "t", &[], FLUSHED).unwrap();
        let mut made = |new| {
            let opened = bench.make(job, new).unwrap();
            (opened.map.entries[0].at, opened.structure)
        };
        let (records, table) = (made(of(0x80, "records")), made(kv("t", "table", 1)));
        assert_eq!(table.0.block.server(), other, "it has more room");
        Mixed { bench, log, of_log, other, records, table }
    }

    fn wrote(&mut self, at: BlockAt) {
        let written = [honeycomb_catalog::Written { bytes: 10, items: 2, crc: 7 }];
        let (server, outcome) = (at.block.server(), Ok(&written[..]));
        self.bench.run(Command::BlockFlushed { server, at, outcome }).unwrap();
    }

    /// The server that writes the manifest, and the names of the kinds in it.
    fn manifest(&self) -> Option<(ServerId, Vec<&str>)> {
        self.bench.effects.iter().find_map(|effect| match effect {
            Effect::CommitFlush { server, structures, .. } => {
                Some((*server, structures.iter().map(|s| &*s.kind_name).collect()))
            }
            _ => None,
        })
    }
}

#[test]
fn custom_structure_with_content_is_flushed_and_the_manifest_names_its_kind() {
    let mut mixed = Mixed::new();
    mixed.bench.pass(1000);
    // The server of the store writes the last part, and does not serve the log.
    mixed.wrote(mixed.records.0);
    mixed.wrote(mixed.table.0);
    assert_eq!(mixed.manifest(), Some((mixed.other, vec!["log", ""])));
}

/// The flush failed until another server announced the kind: only such a server knew its name.
#[test]
fn flush_whose_last_server_of_a_kind_leaves_is_committed_by_another_server() {
    let mut mixed = Mixed::new();
    mixed.bench.pass(1000);
    mixed.wrote(mixed.records.0);
    let (server, other) = (mixed.of_log, mixed.other);
    mixed.bench.run(Command::ServerLost { server }).unwrap();
    mixed.wrote(mixed.table.0);
    assert_eq!(mixed.manifest(), Some((other, vec!["log", ""])));
    // The catalog forgets the kind when the next server joins, and its code becomes free.
    let table = [elastic(0x80, "table")];
    mixed.bench.join_with("s3:1", 1, 20, true, &table).unwrap();
    mixed.bench.run(Command::ServerLost { server: other }).unwrap();
    let (_, names) = mixed.manifest().expect("the third server writes it");
    assert_eq!(names, ["log", ""]);
}

/// No server of the kind remains, and none names it to the restarted controller.
#[test]
fn flush_of_custom_structure_keeps_the_name_of_its_kind_over_a_restart() {
    let mut mixed = Mixed::new();
    mixed.bench.pass(1000);
    mixed.wrote(mixed.table.0);
    mixed.wrote(mixed.records.0);
    let (server, other) = (mixed.of_log, mixed.other);
    mixed.bench.run(Command::ServerLost { server }).unwrap();
    mixed.bench.restart();
    mixed.bench.back(other, &[mixed.table]);
    assert_eq!(mixed.manifest(), Some((other, vec!["log", ""])));
}

#[test]
fn flush_that_begins_before_a_kind_is_announced_waits_for_its_name() {
    let mut mixed = Mixed::new();
    mixed.bench.restart();
    // The end of a job flushes what persists or has a place, also before its servers are back.
    mixed.bench.run(Command::StopCluster { actor: Actor::CLUSTER, discard: false }).unwrap();
    mixed.bench.back(mixed.other, &[mixed.table]);
    mixed.wrote(mixed.table.0);
    assert_eq!(mixed.manifest(), None);
    let (of_log, log, records) = (mixed.of_log, mixed.log.clone(), mixed.records);
    mixed.bench.back_with(of_log, &log, &[records]);
    mixed.wrote(records.0);
    assert_eq!(mixed.manifest(), Some((mixed.other, vec!["log", ""])));
    // The name is in the log now.
    mixed.bench.run(Command::ServerLost { server: of_log }).unwrap();
    mixed.bench.restart();
    mixed.bench.back(mixed.other, &[mixed.table]);
    assert_eq!(mixed.manifest(), Some((mixed.other, vec!["log", ""])));
}

#[test]
fn custom_structure_in_prefix_with_journal_is_refused_by_name() {
    let mut bench = Bench::new();
    bench.join_with("s1:1", 1, 20, true, &[elastic(0x80, "log")]).unwrap();
    let job = bench.job_leased("job", 3_600_000);
    bench.create(job, "t", &[], PrefixOptions { acknowledge: 2, ..LEASE }).unwrap();
    let refused = bench.make(job, of(0x80, "records")).unwrap_err();
    assert!(matches!(refused, CatalogError::NotJournaled { .. }), "{refused}");
    assert!(refused.to_string().contains("kind 0x80"), "{refused}");
}

/// The flush was complete without the structure.
#[test]
fn requested_flush_of_prefix_with_structure_that_cannot_be_flushed_is_refused_by_name() {
    let (mut bench, job) = flushing_bench();
    bench.create(job, "t", &[], LEASE).unwrap();
    bench.make(job, kv("t", "table", 1)).unwrap();
    let (actor, path, place) = (Actor::driver(job), "t", "copy");
    let flush = |barrier| Command::FlushPrefix { actor, job, path, place, below: &[], barrier };
    let Reply::Flushing { .. } = bench.run(flush(false)).unwrap() else { panic!("not begun") };
    bench.make(job, of(0x80, "records")).unwrap();
    for barrier in [false, true] {
        let refused = bench.run(flush(barrier)).unwrap_err();
        assert!(matches!(refused, CatalogError::HasUnflushable { .. }), "{refused}");
        let text = refused.to_string();
        assert!(text.contains("'records'") && text.contains("0x80"), "{text}");
    }
}

#[test]
fn blocks_of_custom_kind_that_move_leave_a_draining_server() {
    let (log, plain) = (elastic(0x80, "log"), spec(0x81, "plain", Router::Index));
    let all = [log, plain];
    let (mut bench, job, servers) = bench(&[&all, &all]);
    let mut at = |code, name| bench.make(job, of(code, name)).unwrap().map.entries[0].at;
    let made = [at(0x80, "a"), at(0x80, "b"), at(0x81, "c"), at(0x81, "d")];
    let here = |block: &&honeycomb_types::BlockAt| block.block.server() == servers[0];
    let moving: Vec<_> = made[..2].iter().filter(here).copied().collect();
    let staying = made[2..].iter().filter(here).count();
    assert!(!moving.is_empty() && staying > 0, "{made:?}");
    let actor = Actor::CLUSTER;
    bench.run(Command::DrainServer { actor, address: "s0:1", cancel: false }).unwrap();
    let asked = bench.effects.iter().filter_map(|effect| match effect {
        Effect::Evacuate { at, .. } => Some(*at),
        _ => None,
    });
    assert!(asked.eq(moving));
}

/// It was accepted, never flushed, and held its blocks and its neighbours' for ever.
#[test]
fn custom_structure_in_prefix_that_ends_with_a_flush_is_refused_by_name() {
    let (mut bench, job) = flushing_bench();
    for options in [FLUSHED, PrefixOptions { persist: true, flush_to: "", ..FLUSHED }] {
        bench.create(job, "t", &[], options).unwrap();
        let refused = bench.make(job, of(0x80, "records")).unwrap_err();
        assert!(matches!(refused, CatalogError::NotFlushable { .. }), "{refused}");
        let text = refused.to_string();
        assert!(
            text.contains("'records'") && text.contains("0x80") && text.contains("'t'"),
            "{text}"
        );
        bench.make(job, kv("t", "table", 1)).unwrap();
        bench.run(Command::RemovePrefix { actor: Actor::driver(job), job, path: "t" }).unwrap();
    }
    bench.create(job, "plain", &[], LEASE).unwrap();
    bench.make(job, NewStructure { path: "plain", ..of(0x80, "records") }).unwrap();
}

#[cfg(feature = "bug-bank")]
#[test]
fn custom_structure_that_was_accepted_ends_with_its_prefix_and_its_neighbour_is_flushed() {
    use honeycomb_types::Bug;
    let (mut bench, job) = flushing_bench();
    bench.create(job, "t", &[], FLUSHED).unwrap();
    Bug::arm(Some(Bug::UnflushableAccepted));
    let made = bench.make(job, of(0x80, "records"));
    Bug::arm(None);
    let records = made.expect("the planted bug accepts it").map.entries[0].at;
    let table = bench.make(job, kv("t", "table", 1)).unwrap().map.entries[0].at;
    bench.pass(1000);
    assert_eq!(bench.freed(), [records]);
    let parts: Vec<honeycomb_types::BlockAt> = bench
        .effects
        .iter()
        .filter_map(|e| if let Effect::FlushBlock { at, .. } = e { Some(*at) } else { None })
        .collect();
    assert_eq!(parts, [table]);
    let opened = bench.make(job, NewStructure { open_existing: true, ..of(0x80, "records") });
    assert!(opened.is_err(), "{opened:?}");
    let written = [honeycomb_catalog::Written { bytes: 10, items: 2, crc: 7 }];
    let (server, outcome) = (table.block.server(), Ok(&written[..]));
    bench.run(Command::BlockFlushed { server, at: table, outcome }).unwrap();
    let told = bench.effects.iter().find_map(|effect| match effect {
        Effect::CommitFlush { structures, .. } => Some(structures.len()),
        _ => None,
    });
    assert_eq!(told, Some(1), "the manifest names the store alone");
}
