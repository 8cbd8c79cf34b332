//! Draining servers: they receive no blocks, are released when they hold none, and their drain can be
//! cancelled.

use crate::common::{Bench, LEASE, file, kv, lease, queue, server};
use honeycomb_catalog::{
    Actor, CatalogError, Command, DrainState, Effect, Hints, NewServer, Reply, Report, Seal,
};
#[cfg(feature = "bug-bank")]
use honeycomb_types::Bug;
use honeycomb_types::limits::{EXTENTS_LEAVE_FOR, EXTENTS_LEAVE_TELL};
use honeycomb_types::{BlockAt, MoveId, ServerId, StructureId, TierIx, Way};

fn drain(bench: &mut Bench, address: &str, cancel: bool) -> Result<Reply, CatalogError> {
    bench.run(Command::DrainServer { actor: Actor::CLUSTER, address, cancel })
}

/// The servers that the last command released, or (true) asked to stay.
fn released(bench: &Bench) -> Vec<(ServerId, bool)> {
    let told = bench.effects.iter().filter_map(|effect| match *effect {
        Effect::Release { server, stay } => Some((server, stay)),
        _ => None,
    });
    told.collect()
}

fn state(bench: &mut Bench, id: ServerId) -> (DrainState, String) {
    let status = bench.status();
    let found = status.servers.iter().find(|server| server.server == id).unwrap();
    (found.drain, found.drain_waits.to_string())
}

#[test]
fn a_server_that_drains_is_given_nothing_and_goes_when_it_has_nothing() {
    let mut bench = Bench::new();
    let job = bench.job("job");
    let (s1, s2) = (bench.join("s1:1", 1, 20), bench.join("s2:1", 1, 20));
    bench.create(job, "short", &[], lease(500)).unwrap();
    bench.create(job, "long", &[], lease(60_000)).unwrap();
    for name in ["a", "b", "c", "d"] {
        bench.make(job, file("short", name, 1)).unwrap();
    }
    drain(&mut bench, "s1:1", false).unwrap();
    assert_eq!(released(&bench), []);
    assert_eq!(drain(&mut bench, "s1:1", false), Ok(Reply::Done), "asked again it is the same");
    let (is, waits) = state(&mut bench, s1);
    assert_eq!(is, DrainState::Draining);
    assert_eq!(waits, "2 blocks moving to other servers");
    // INV-46: everything goes to the other one, and no more than that has room for.
    let made = bench.make(job, file("long", "log", 8)).unwrap();
    assert!(made.map.entries.iter().all(|entry| entry.at.block.server() == s2));
    let refused = bench.make(job, file("long", "more", 10)).unwrap_err();
    assert!(matches!(refused, CatalogError::OutOfMemory(ref full) if full.free == 10), "{refused}");
    bench.pass(600);
    let freed = bench.freed();
    assert_eq!((freed.len(), released(&bench)), (4, vec![]), "not confirmed yet");
    let (here, there): (Vec<_>, Vec<_>) = freed.iter().partition(|at| at.block.server() == s1);
    bench.confirm(&there);
    bench.confirm(&here[..1]);
    assert_eq!(released(&bench), []);
    assert_eq!(state(&mut bench, s1).1, "1 block to be flushed or confirmed free");
    bench.confirm(&here[1..]);
    assert_eq!(released(&bench), [(s1, false)]);
    assert_eq!(state(&mut bench, s1).0, DrainState::Released);
    bench.run(Command::ServerLost { server: s1 }).unwrap();
    assert_eq!(bench.status().servers.len(), 1, "nothing was lost with it");
    assert!(bench.make(job, file("long", "last", 1)).is_ok());
}

#[test]
fn the_only_server_stays_and_strangers_are_told() {
    let mut bench = Bench::new();
    let job = bench.job("job");
    let s1 = bench.join("s1:1", 1, 10);
    let refused = drain(&mut bench, "s1:1", false).unwrap_err();
    assert!(matches!(&refused, CatalogError::LastServer { address } if &**address == "s1:1"));
    assert!(matches!(drain(&mut bench, "s9:1", false), Err(CatalogError::UnknownAddress { .. })));
    bench.join("s2:1", 1, 10);
    let actor = Actor::driver(job);
    let refused = bench.run(Command::DrainServer { actor, address: "s1:1", cancel: false });
    assert!(matches!(refused, Err(CatalogError::PermissionDenied { .. })));
    bench.run(Command::LeaveServer { server: s1 }).unwrap();
    assert_eq!(released(&bench), [(s1, false)], "it has nothing");
    let refused = drain(&mut bench, "s2:1", false);
    assert!(matches!(refused, Err(CatalogError::LastServer { .. })), "the other one goes already");
}

#[test]
fn one_that_was_released_takes_blocks_when_it_has_said_that_it_stays() {
    let mut bench = Bench::new();
    let job = bench.job("job");
    let (s1, _) = (bench.join("s1:1", 1, 20), bench.join("s2:1", 1, 10));
    bench.create(job, "t", &[], lease(60_000)).unwrap();
    drain(&mut bench, "s1:1", false).unwrap();
    assert_eq!(released(&bench), [(s1, false)]);
    drain(&mut bench, "s1:1", true).unwrap();
    assert_eq!(released(&bench), [(s1, true)]);
    assert!(matches!(drain(&mut bench, "s1:1", false), Err(CatalogError::Recalled { .. })));
    assert!(bench.make(job, file("t", "a", 9)).is_err(), "it may have ended");
    bench.run(Command::ServerStays { server: s1 }).unwrap();
    assert_eq!(state(&mut bench, s1).0, DrainState::Serving);
    assert!(bench.make(job, file("t", "a", 9)).is_ok());
    // The drain of a server that still has blocks is cancelled at once.
    drain(&mut bench, "s1:1", false).unwrap();
    drain(&mut bench, "s1:1", true).unwrap();
    assert_eq!((released(&bench), state(&mut bench, s1).0), (vec![], DrainState::Serving));
}

#[test]
fn a_restart_of_the_controller_forgets_no_drain() {
    let mut bench = Bench::new();
    let job = bench.job("job");
    let (s1, s2) = (bench.join("s1:1", 1, 10), bench.join("s2:1", 1, 10));
    bench.create(job, "t", &[], LEASE).unwrap();
    let made = bench.make(job, kv("t", "table", 2)).unwrap();
    drain(&mut bench, "s1:1", false).unwrap();
    bench.restart();
    let rejoin = |bench: &mut Bench, member: ServerId| {
        let own = made.map.entries.iter().filter(|entry| entry.at.block.server() == member);
        let held: Vec<_> = own.map(|entry| (entry.at, made.structure)).collect();
        bench.back(member, &held);
    };
    rejoin(&mut bench, s1);
    rejoin(&mut bench, s2);
    assert_eq!(state(&mut bench, s1).0, DrainState::Draining);
    bench.remove(job, "t").unwrap();
    let freed = bench.freed();
    bench.confirm(&freed.into_iter().filter(|at| at.block.server() == s1).collect::<Vec<_>>());
    assert_eq!(released(&bench), [(s1, false)]);
    // It missed that message: it receives it again over the new connection.
    rejoin(&mut bench, s1);
    assert_eq!(released(&bench), [(s1, false)]);
    // A cancelled drain stays cancelled after a restart.
    drain(&mut bench, "s1:1", true).unwrap();
    bench.restart();
    assert_eq!(state(&mut bench, s1).0, DrainState::Serving);
}

#[test]
fn splits_to_it_are_given_up_and_what_was_allocated_ahead_goes_back() {
    let mut bench = Bench::new();
    let job = bench.job("job");
    let s1 = bench.join("s1:1", 1, 20);
    bench.create(job, "t", &[], lease(60_000)).unwrap();
    let table = bench.make(job, kv("t", "table", 1)).unwrap();
    let log = bench.make(job, file("t", "log", 3)).unwrap();
    let s2 = bench.join("s2:1", 1, 40);
    let (structure, at) = (table.structure, table.map.entries[0].at);
    let begin = Command::BeginMove { structure, at, start: 1 << 63, way: Way::Split };
    let Ok(Reply::Moving { id, entry }) = bench.run(begin) else { panic!() };
    assert_eq!(entry.at.block.server(), s2);
    drain(&mut bench, "s2:1", false).unwrap();
    assert_eq!(bench.freed(), [entry.at]);
    let commit = Command::CommitMove { structure, at, id, target: entry.at, bytes: 0 };
    assert!(matches!(bench.run(commit), Err(CatalogError::MoveCancelled { .. })));
    let Ok(Reply::Moving { entry: other, .. }) = bench.run(begin) else { panic!() };
    assert_eq!(other.at.block.server(), s1, "another block is found for it");
    bench.confirm(&[entry.at]);
    assert_eq!(released(&bench), [(s2, false)]);
    drain(&mut bench, "s2:1", true).unwrap();
    bench.run(Command::ServerStays { server: s2 }).unwrap();
    drain(&mut bench, "s1:1", false).unwrap();
    assert_eq!(bench.freed().len(), 3, "two that the file had in advance, and the split's");
    let (_, next) = bench.grow(log.structure, log.map.entries[0].at).unwrap();
    assert_eq!(next.block.server(), s2);
}

/// Requests the move of a block that leaves: returns the move, and the target.
fn leave(
    bench: &mut Bench,
    structure: StructureId,
    at: BlockAt,
) -> Result<(MoveId, BlockAt), CatalogError> {
    match bench.run(Command::BeginMove { structure, at, start: 0, way: Way::Relocate })? {
        Reply::Moving { id, entry } => Ok((id, entry.at)),
        other => panic!("{other:?}"),
    }
}

/// A kv with a block on each of two servers: its number, and the blocks by server.
fn table_on_two(bench: &mut Bench, blocks: u32) -> (StructureId, BlockAt, BlockAt) {
    let job = bench.job("job");
    let (s1, _) = (bench.join("s1:1", 1, blocks), bench.join("s2:1", 1, blocks));
    bench.create(job, "t", &[], lease(60_000)).unwrap();
    let table = bench.make(job, kv("t", "table", 2)).unwrap();
    let at = |here: bool| {
        let mut entries = table.map.entries.iter().map(|entry| entry.at);
        entries.find(|at| (at.block.server() == s1) == here).unwrap()
    };
    (table.structure, at(true), at(false))
}

#[test]
fn blocks_of_a_store_leave_with_their_whole_range() {
    let mut bench = Bench::new();
    let (structure, one, two) = table_on_two(&mut bench, 10);
    let refused = leave(&mut bench, structure, one).unwrap_err();
    assert_eq!(refused, CatalogError::StaysHere { at: one });
    drain(&mut bench, "s1:1", false).unwrap();
    assert_eq!(bench.evacuated(), [one]);
    let (is, waits) = state(&mut bench, one.block.server());
    assert_eq!((is, &*waits), (DrainState::Draining, "1 block moving to other servers"));
    let (id, target) = leave(&mut bench, structure, one).unwrap();
    assert_eq!(target.block.server(), two.block.server());
    assert_eq!(leave(&mut bench, structure, one).unwrap(), (id, target), "asked again");
    // At the commit it replaces the other one; nothing else of the map changes.
    let commit = Command::CommitMove { structure, at: one, id, target, bytes: 0 };
    let Ok(Reply::Moved { version, entry }) = bench.run(commit) else { panic!() };
    assert_eq!((version.0, entry.at), (2, target));
    assert_eq!(bench.freed(), [one]);
    let ended = Effect::EndImport { server: target.block.server(), at: target, id, commit: true };
    assert!(bench.effects.contains(&ended));
    let Ok(Reply::Moved { version, entry: again }) = bench.run(commit) else { panic!() };
    assert_eq!((version.0, again), (2, entry));
    bench.confirm(&[one]);
    assert_eq!(released(&bench), [(one.block.server(), false)]);
}

/// A block of 512 KiB whose content fitted into no other one of that capacity divided instead of leaving,
/// and its writers were refused for lack of memory.
#[test]
fn block_grows_in_place_until_it_leaves_and_its_copy_gets_the_same_capacity() {
    let mut bench = Bench::new();
    for address in ["s1:1", "s2:1"] {
        let server = NewServer { block_size: 1 << 20, ..server(address, 1, 8) };
        bench.run(Command::JoinServer { server }).unwrap();
    }
    let job = bench.job("job");
    bench.create(job, "t", &[], LEASE).unwrap();
    let made = bench.make(job, kv("t", "store", 1)).unwrap();
    let (structure, at) = (made.structure, made.map.entries[0].at);
    let here = bench.status().servers.into_iter().find(|s| s.server == at.block.server()).unwrap();
    drain(&mut bench, &here.address, false).unwrap();
    let whole = || Command::GrowBlock { structure, at, bytes: 1 << 20 };
    assert_eq!(bench.run(whole()), Ok(Reply::Capacity { bytes: 1 << 20 }));
    let (_, copy) = leave(&mut bench, structure, at).unwrap();
    assert_ne!(copy.block.server(), at.block.server());
    assert_eq!(bench.catalog.capacity_at(copy), Some(1 << 20));
}

#[test]
fn what_leaves_counts_for_no_quota_and_leaves_room_for_splits() {
    let mut bench = Bench::new();
    let actor = Actor::CLUSTER;
    let register = Command::RegisterJob {
        actor,
        name: "job",
        lease_ms: 0,
        quota_blocks: 4,
        hints: Hints::default(),
        claim: Default::default(),
    };
    let Ok(Reply::Job { job, .. }) = bench.run(register) else { panic!() };
    let s1 = bench.join("s1:1", 1, 10);
    bench.create(job, "t", &[], lease(60_000)).unwrap();
    let table = bench.make(job, kv("t", "table", 4)).unwrap();
    // Six blocks, of which two are reserved; two moves succeed and leave two for splits.
    bench.join("s2:1", 1, 6);
    drain(&mut bench, "s1:1", false).unwrap();
    let mut leaving = bench.evacuated();
    assert_eq!(leaving.len(), 4, "so many of one core at a time");
    let structure = table.structure;
    let moves: Vec<_> =
        leaving.drain(..).map(|at| (at, leave(&mut bench, structure, at).unwrap())).collect();
    let over = bench.make(job, file("t", "more", 1)).unwrap_err();
    assert!(matches!(over, CatalogError::QuotaExceeded { .. }), "{over}");
    for (at, (id, target)) in moves {
        bench.run(Command::CommitMove { structure, at, id, target, bytes: 0 }).unwrap();
        bench.confirm(&[at]);
    }
    assert_eq!(released(&bench), [(s1, false)]);
    assert_eq!(bench.status().reserved, 2);
    // Without room the message says what to do.
    bench.join("s3:1", 1, 2);
    drain(&mut bench, "s2:1", false).unwrap();
    let at = bench.evacuated()[0];
    let refused = leave(&mut bench, structure, at).unwrap_err();
    assert!(matches!(refused, CatalogError::OutOfMemory(_)), "{refused}");
    let (_, waits) = state(&mut bench, at.block.server());
    assert!(waits.contains("4 blocks without room elsewhere: add a server"), "{waits}");
    bench.join("s4:1", 1, 10);
    assert!(leave(&mut bench, structure, at).is_ok());
}

#[test]
fn a_relocation_is_given_up_with_its_drain_or_its_target() {
    let mut bench = Bench::new();
    let (structure, one, two) = table_on_two(&mut bench, 10);
    drain(&mut bench, "s1:1", false).unwrap();
    let (id, target) = leave(&mut bench, structure, one).unwrap();
    // A move under way continues when the drain is cancelled; no other begins.
    drain(&mut bench, "s1:1", true).unwrap();
    let commit = Command::CommitMove { structure, at: one, id, target, bytes: 0 };
    assert!(matches!(bench.run(commit), Ok(Reply::Moved { .. })));
    bench.confirm(&[one]);
    assert_eq!(released(&bench), []);
    // The server of the target is lost: the kv survives, and the block asks again.
    drain(&mut bench, "s2:1", false).unwrap();
    let leaves = bench.evacuated();
    assert_eq!(leaves.len(), 2, "{two:?} and {target:?}");
    let (_, to) = leave(&mut bench, structure, two).unwrap();
    drain(&mut bench, "s2:1", true).unwrap();
    let third = bench.join("s3:1", 1, 30);
    drain(&mut bench, "s2:1", false).unwrap();
    let (_, other) = leave(&mut bench, structure, target).unwrap();
    assert_eq!((to.block.server(), other.block.server()), (one.block.server(), third));
    bench.run(Command::ServerLost { server: third }).unwrap();
    let (_, again) = leave(&mut bench, structure, target).unwrap();
    assert_eq!(again.block.server(), one.block.server());
}

/// Blocks of a file leave, from the map and from the successor list; map versions sent to a tail stay valid.
#[test]
fn blocks_of_a_file_leave_and_its_version_stays() {
    let mut bench = Bench::new();
    let job = bench.job("job");
    let s1 = bench.join("s1:1", 1, 20);
    bench.create(job, "t", &[], lease(60_000)).unwrap();
    let log = bench.make(job, file("t", "log", 1)).unwrap();
    let (structure, tail) = (log.structure, log.map.entries[0].at);
    let (version, next) = bench.grow(structure, tail).unwrap();
    let s2 = bench.join("s2:1", 1, 20);
    drain(&mut bench, "s1:1", false).unwrap();
    assert_eq!(bench.evacuated(), [tail, next]);
    let split = Command::BeginMove { structure, at: tail, start: 0, way: Way::Split };
    assert!(matches!(bench.run(split), Err(CatalogError::WrongKind { .. })));
    for at in [next, tail] {
        let (id, target) = leave(&mut bench, structure, at).unwrap();
        assert_eq!(target.block.server(), s2);
        let commit = Command::CommitMove { structure, at, id, target, bytes: 0 };
        let Ok(Reply::Moved { version: is, entry }) = bench.run(commit) else { panic!() };
        assert_eq!((is.0, entry.at), (1, target));
        assert_eq!(bench.freed(), [at]);
        let told = bench.run(commit);
        assert_eq!(told, Ok(Reply::Moved { version: is, entry }), "the answer got lost");
        bench.confirm(&[at]);
    }
    assert_eq!(released(&bench), [(s1, false)]);
    // The new tail continues with the successor granted to the old one, under its new name.
    let places = |bench: &mut Bench| -> Vec<(u64, BlockAt)> {
        let map = bench.reopen(job, &log).unwrap().map;
        map.entries.iter().map(|entry| (entry.start, entry.at)).collect()
    };
    let map = places(&mut bench);
    let [(0, new)] = map[..] else { panic!("{map:?}") };
    let (again, granted) = bench.grow(structure, new).unwrap();
    assert_eq!(again, version);
    assert!(granted != next && granted.block.server() == s2);
    let seal = Seal { length: 10, bytes: 10, last: false };
    assert_eq!(bench.seal(structure, new, seal).unwrap(), version);
    assert_eq!(places(&mut bench), [(0, new), (10, granted)]);
}

/// A bounded queue with its two blocks, of which none is sealed, on the only server.
fn queue_of_two_blocks() -> (Bench, StructureId, [BlockAt; 2]) {
    let mut bench = Bench::new();
    let job = bench.job("job");
    bench.join("s1:1", 1, 20);
    bench.create(job, "t", &[], lease(60_000)).unwrap();
    let made = bench.make(job, queue("t", "jobs", 9)).unwrap();
    let (structure, first) = (made.structure, made.map.entries[0].at);
    let (_, second) = bench.grow(structure, first).unwrap();
    (bench, structure, [first, second])
}

/// The relocation of a queue's block that leaves the map is cancelled, and the bound holds.
#[test]
fn a_block_that_is_retired_does_not_move() {
    let (mut bench, structure, [first, second]) = queue_of_two_blocks();
    bench.seal(structure, first, Seal { length: 5, bytes: 50, last: false }).unwrap();
    let s2 = bench.join("s2:1", 1, 20);
    drain(&mut bench, "s1:1", false).unwrap();
    let (id, target) = leave(&mut bench, structure, first).unwrap();
    bench.run(Command::RetireBlock { structure, at: first }).unwrap();
    assert_eq!(bench.freed().len(), 2, "the block, and the one that it was to move to");
    let commit = Command::CommitMove { structure, at: first, id, target, bytes: 0 };
    assert!(matches!(bench.run(commit), Err(CatalogError::StaleBlock { .. })));
    // The rest of it leaves, and the tail is sent the number of items ahead.
    let (id, target) = leave(&mut bench, structure, second).unwrap();
    let commit = Command::CommitMove { structure, at: second, id, target, bytes: 0 };
    bench.run(commit).unwrap();
    let told = Effect::QueueAhead { server: s2, at: target, items: 0, bytes: 0 };
    assert!(bench.effects.contains(&told), "{:?}", bench.effects);
}

/// The numbers of items ahead that a tail receives when a move ends whose target is on a server that reports
/// its blocks again; and the tail.
fn told_at_the_end_of_a_move() -> (Vec<Effect>, BlockAt) {
    let (mut bench, structure, [first, second]) = queue_of_two_blocks();
    let s2 = bench.join("s2:1", 1, 20);
    drain(&mut bench, "s1:1", false).unwrap();
    let (id, target) = leave(&mut bench, structure, first).unwrap();
    assert_eq!(target.block.server(), s2);
    bench.rejoin(s2, &[]);
    let told = |bench: &Bench| {
        let ahead = bench.effects.iter().filter(|e| matches!(e, Effect::QueueAhead { .. }));
        ahead.cloned().collect::<Vec<_>>()
    };
    bench.seal(structure, first, Seal { length: 5, bytes: 50, last: false }).unwrap();
    assert_eq!(told(&bench), [], "the target of the move may have other numbers");
    bench.run(Command::CancelMove { structure, at: first, id }).unwrap();
    (told(&bench), second)
}

/// The tail receives the number when the block leaves the queue, and not when that server has reported
/// (simulator, seed 2000642).
#[test]
fn tail_waits_for_no_server_whose_block_has_left_the_queue() {
    let (told, at) = told_at_the_end_of_a_move();
    assert_eq!(told, [Effect::QueueAhead { server: at.block.server(), at, items: 5, bytes: 50 }]);
}

#[cfg(feature = "bug-bank")]
#[test]
fn tail_that_waits_for_such_a_server_is_seen() {
    Bug::arm(Some(Bug::AheadKeptWaiting));
    assert_eq!(told_at_the_end_of_a_move().0, []);
    Bug::arm(None);
}

#[test]
fn a_block_that_has_gone_below_before_its_turn_leaves_as_well() {
    let mut bench = Bench::new();
    let server = bench.join_with_disk("s1:1", 14, 14);
    let job = bench.job("job");
    let (mut made, mut lowered) = (Vec::new(), Vec::new());
    for n in 0..16 {
        let opened = bench.make(job, file("", &format!("f{n}"), 1)).unwrap();
        made.push((opened.map.entries[0].at, opened.structure));
        let at = made[n].0;
        lowered.extend(bench.lowered());
        bench.run(Command::BlockOpened { server, at }).unwrap();
        let seal = Seal { length: 1000, bytes: 1000, last: true };
        bench.seal(opened.structure, at, seal).unwrap();
        lowered.extend(bench.lowered());
    }
    // Some are being demoted when it drains, at the expense of prefixes that requested blocks while little
    // was free.
    lowered.sort();
    bench.join("s2:1", 1, 40);
    drain(&mut bench, "s1:1", false).unwrap();
    let mut told = bench.evacuated();
    assert!(!lowered.is_empty() && told.len() < made.len(), "{lowered:?}");
    for &at in &lowered {
        let structure = made.iter().find(|(own, _)| *own == at).unwrap().1;
        bench.run(Command::TierChanged { structure, at, tier: TierIx(1) }).unwrap();
    }
    // Those before them leave, then these: to memory, whatever their tier was.
    let mut left = Vec::new();
    while let Some(at) = told.pop() {
        let structure = made.iter().find(|(own, _)| *own == at).unwrap().1;
        let (id, target) = leave(&mut bench, structure, at).unwrap();
        assert_eq!(bench.catalog.tiers_of(target), Some((TierIx::MEMORY, TierIx::MEMORY)));
        let commit = Command::CommitMove { structure, at, id, target, bytes: 1000 };
        bench.run(commit).unwrap();
        left.push(at);
        let freed = bench.freed();
        told.extend(bench.evacuated());
        bench.confirm(&freed);
        told.extend(bench.evacuated());
    }
    left.sort();
    assert_eq!(left, made.iter().map(|(at, _)| *at).collect::<Vec<_>>());
}

/// Blocks of extents are all asked to leave at once, repeatedly; those that are no longer asked stay.
#[test]
fn blocks_of_extents_are_told_at_once_and_until_the_drain_is_called_off() {
    let mut bench = Bench::new();
    let job = bench.job("job");
    let s1 = bench.join("s1:1", 1, 40);
    bench.create(job, "t", &[], lease(3_600_000)).unwrap();
    let store = bench.make(job, kv("t", "", 1)).unwrap().structure;
    let (actor, bytes) = (Actor::driver(job), 64);
    let mut named: Vec<BlockAt> = Vec::new();
    for _ in 0..20 {
        let full: Vec<_> = named.iter().map(|at| at.block).collect();
        let asks =
            Command::ExtentBlocks { actor, job, structure: store, bytes, full: &full, value: 0 };
        let Ok(Reply::Extents(entries)) = bench.run(asks) else { panic!("there is room") };
        named.push(entries[0].at);
    }
    let s2 = bench.join("s2:1", 1, 40);
    let alive = |bench: &mut Bench| {
        for server in [s1, s2] {
            bench.run(Command::ServerReport { server, report: Report::default() }).unwrap();
        }
    };
    drain(&mut bench, "s1:1", false).unwrap();
    let told = |bench: &Bench| {
        let told = bench.evacuated();
        told.into_iter().filter(|at| named.contains(at)).count()
    };
    assert_eq!(told(&bench), named.len());
    let waits =
        "1 block moving to other servers; 20 blocks of large values being copied to other servers";
    assert_eq!(state(&mut bench, s1).1, waits);
    let tell = EXTENTS_LEAVE_TELL.as_millis() as u64;
    let mut seen = Vec::new();
    for second in 1..=50 {
        bench.pass(1000);
        if told(&bench) > 0 {
            assert_eq!(told(&bench), named.len());
            seen.push(second);
        }
        alive(&mut bench);
    }
    assert_eq!(seen.len() as u64, 50_000 / tell, "{seen:?}");
    assert!(EXTENTS_LEAVE_FOR >= 2 * EXTENTS_LEAVE_TELL, "one word may be lost");
    // New values are written elsewhere.
    let asks = Command::ExtentBlocks { actor, job, structure: store, bytes, full: &[], value: 0 };
    let Ok(Reply::Extents(entries)) = bench.run(asks) else { panic!("there is room") };
    assert_ne!(entries[0].at.block.server(), s1);
    drain(&mut bench, "s1:1", true).unwrap();
    for _ in 0..50 {
        bench.pass(1000);
        assert_eq!(told(&bench), 0, "it stays");
        alive(&mut bench);
    }
}
