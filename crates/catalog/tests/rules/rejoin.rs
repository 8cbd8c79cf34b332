//! Servers that reconnect to a restarted controller.

use crate::common::{Bench, file, incarnation, kv, lease, queue};
use honeycomb_catalog::{
    Actor, CatalogError, Command, Effect, HeldBlock, NewServer, NewStructure, Opened, Reply,
    Report, Seal,
};
use honeycomb_types::limits::SERVER_LOSS_DEFAULT_MS;
use honeycomb_types::{
    BlockAt, Generation, ServerId, StructureId, TierClass, TierIx, TierSpec, Way,
};

const SERVER: NewServer<'_> = NewServer {
    flush_root: "",
    kinds: &[],
    address: "a:1",
    incarnation: 0,
    shards: 2,
    blocks_per_shard: 8,
    tiers: &[],
    block_size: 65_536,
};

fn held(structure: StructureId, at: BlockAt) -> HeldBlock {
    HeldBlock {
        at,
        structure,
        generation: Generation(1),
        bytes_used: 100,
        sealed: None,
        successor: None,
        taken: (0, 0),
        tiers: Default::default(),
        capacity: 65_536,
    }
}

fn rejoin(bench: &mut Bench, address: &str, member: ServerId) -> Result<Reply, CatalogError> {
    let server = NewServer { address, incarnation: incarnation(address), ..SERVER };
    bench.run(Command::RejoinServer { server, member })
}

/// A server reconnects with these blocks; returns the effects of all its commands, and puts them in
/// `bench.effects`.
fn back(bench: &mut Bench, address: &str, server: ServerId, blocks: &[HeldBlock]) -> Vec<Effect> {
    assert_eq!(rejoin(bench, address, server), Ok(Reply::Joined(server)));
    let mut told = Vec::new();
    // In two parts, as a server with many does.
    let (some, rest) = blocks.split_at(blocks.len() / 2);
    for (held, last) in [(some, false), (rest, true)] {
        bench.run(Command::Inventory { server, held, last }).unwrap();
        told.append(&mut bench.effects);
    }
    bench.effects.clone_from(&told);
    told
}

fn blocks(opened: &Opened) -> Vec<BlockAt> {
    opened.map.entries.iter().map(|entry| entry.at).collect()
}

fn opens(effects: &[Effect]) -> Vec<BlockAt> {
    let open = |effect: &Effect| match effect {
        Effect::OpenBlock { at, .. } => Some(*at),
        _ => None,
    };
    effects.iter().filter_map(open).collect()
}

fn frees(effects: &[Effect]) -> Vec<BlockAt> {
    let free = |effect: &Effect| match effect {
        Effect::FreeBlock { at, .. } => Some(*at),
        _ => None,
    };
    effects.iter().filter_map(free).collect()
}

#[test]
fn blocks_that_are_held_stay_and_the_others_are_free() {
    let mut bench = Bench::new();
    let server = bench.join("a:1", 2, 8);
    let job = bench.job("job");
    let store = bench.make(job, kv("", "kv", 3)).unwrap();
    let gone = bench.make(job, file("", "gone", 1)).unwrap();
    let command = Command::RemoveStructure {
        actor: honeycomb_catalog::Actor::driver(job),
        job,
        path: "",
        name: "gone",
    };
    bench.run(command).unwrap();
    bench.restart();
    assert!(bench.catalog.recovering());
    let status = bench.status();
    assert_eq!((status.free, status.servers[0].alive), (0, false));
    // Nothing can be allocated from a server that has not reported its blocks.
    assert_eq!(bench.make(job, file("", "f", 1)).unwrap_err(), CatalogError::Recovering);

    let own = blocks(&store);
    let mut inventory: Vec<HeldBlock> =
        own[..2].iter().map(|&at| held(store.structure, at)).collect();
    // It had not received the removal; nor anything about the third block of the kv.
    inventory.push(held(gone.structure, blocks(&gone)[0]));
    let told = back(&mut bench, "a:1", server, &inventory);
    assert_eq!(opens(&told), [own[2]], "it never was open");
    assert_eq!(frees(&told), blocks(&gone));
    let status = bench.status();
    assert_eq!((status.free, status.quarantined, status.bytes_used), (12, 1, 200));
    assert!(!bench.catalog.recovering() && status.servers[0].alive);
    bench.confirm(&blocks(&gone));
    assert_eq!(bench.status().free, 13);
    assert!(bench.catalog.is_open(own[0]) && !bench.catalog.is_open(own[2]));
    // New owners of blocks have epochs of the new term.
    let made = bench.make(job, file("", "f", 1)).unwrap();
    assert!(own.iter().all(|at| at.epoch < blocks(&made)[0].epoch));
}

#[test]
fn growth_that_the_log_lost_is_adopted_from_the_blocks_that_were_told() {
    let mut bench = Bench::new();
    let (a, b) = (bench.join("a:1", 2, 8), bench.join("b:1", 2, 8));
    let job = bench.job("job");
    let log = bench.make(job, file("", "f", 1)).unwrap();
    let first = blocks(&log)[0];
    let written = bench.written.clone();
    // Two grants and a seal that never became durable.
    let (_, second) = bench.grow(log.structure, first).unwrap();
    let (_, third) = bench.grow(log.structure, second).unwrap();
    let seal = Seal { length: 60_000, bytes: 60_000, last: false };
    let of = |at: BlockAt, server| at.block.server() == server;
    assert!(of(first, a) != of(second, a), "one after the other on different servers");
    bench.written = written;
    bench.restart();

    let chain = [
        HeldBlock { sealed: Some(seal), successor: Some(second), ..held(log.structure, first) },
        HeldBlock { successor: Some(third), ..held(log.structure, second) },
        held(log.structure, third),
    ];
    let on = |server| chain.into_iter().filter(|h| of(h.at, server)).collect::<Vec<_>>();
    // The server whose blocks are not in the log comes first: they have no owner yet, and are not freed.
    let (late, early) = if of(first, a) { (a, b) } else { (b, a) };
    let name = |server| if server == a { "a:1" } else { "b:1" };
    let told = back(&mut bench, name(early), early, &on(early));
    assert_eq!((frees(&told), opens(&told)), (vec![], vec![]));
    assert!(bench.catalog.recovering());
    let told = back(&mut bench, name(late), late, &on(late));
    assert_eq!((frees(&told), opens(&told)), (vec![], vec![]));
    let now = bench.reopen(job, &log).unwrap();
    assert_eq!(blocks(&now), [first, second]);
    assert_eq!(now.map.entries[1].start, 60_000);
    // The successor list continues as if nothing had happened.
    let (version, again) = bench.grow(log.structure, second).unwrap();
    assert_eq!((version, again), (3, third));
    assert_eq!(bench.status().free, 32 - 3);
}

/// The report of a pre-allocated block is applied when its predecessor has named it, whichever reports first:
/// it was granted, and the log has lost the grant.
#[test]
fn a_block_allocated_in_advance_is_heard_when_the_one_before_it_names_it() {
    let mut bench = Bench::new();
    let (a, b) = (bench.join("a:1", 2, 8), bench.join("b:1", 2, 8));
    let job = bench.job("job");
    let todo = bench.make(job, NewStructure { blocks: 2, ..queue("", "q", 100) }).unwrap();
    let first = blocks(&todo)[0];
    let written = bench.written.clone();
    let (_, second) = bench.grow(todo.structure, first).unwrap();
    assert!(first.block.server() != second.block.server(), "one after the other");
    let sealed = Seal { length: 48, bytes: 4800, last: false };
    let closed = Seal { length: 17, bytes: 1700, last: true };
    bench.written = written;
    bench.restart();

    let told = [
        HeldBlock { sealed: Some(sealed), successor: Some(second), ..held(todo.structure, first) },
        HeldBlock { sealed: Some(closed), taken: (3, 300), ..held(todo.structure, second) },
    ];
    let (early, late) = if second.block.server() == a { (a, b) } else { (b, a) };
    let name = |server| if server == a { "a:1" } else { "b:1" };
    back(&mut bench, name(early), early, &told[1..]);
    back(&mut bench, name(late), late, &told[..1]);
    let now = bench.reopen(job, &todo).unwrap();
    assert_eq!((now.map.version.0, blocks(&now)), (3, vec![first, second]));
    assert!(bench.grow(todo.structure, second).is_err(), "the queue is closed");
    assert_eq!(bench.status().free, 32 - 2);
}

/// A drain before all servers have reported must not lose blocks whose grants the log has lost (simulator,
/// seed 153345669024813): such a block was freed as one that holds nothing, and its queue continued with it.
#[test]
fn a_block_allocated_in_advance_is_not_given_back_before_all_have_told() {
    let mut bench = Bench::new();
    let (a, b) = (bench.join("a:1", 2, 8), bench.join("b:1", 2, 8));
    let job = bench.job("job");
    let todo = bench.make(job, NewStructure { blocks: 3, ..queue("", "q", 100) }).unwrap();
    let first = blocks(&todo)[0];
    let spare = opens(&bench.effects)[2];
    let written = bench.written.clone();
    let (_, second) = bench.grow(todo.structure, first).unwrap();
    bench.written = written;
    bench.restart();
    let of = |at: BlockAt| if at.block.server() == a { ("a:1", a) } else { ("b:1", b) };
    let ((drained, there), (other, here)) = (of(second), of(first));
    assert_ne!(drained, other, "one after the other");
    let drain = Command::DrainServer { actor: Actor::CLUSTER, address: drained, cancel: false };
    bench.run(drain).unwrap();
    assert_eq!(frees(&bench.effects), []);
    let mine = [held(todo.structure, second)];
    assert_eq!(frees(&back(&mut bench, drained, there, &mine)), []);
    let sealed = Some(Seal { length: 48, bytes: 4800, last: false });
    let successor = Some(second);
    let theirs = [
        HeldBlock { sealed, successor, ..held(todo.structure, first) },
        held(todo.structure, spare),
    ];
    assert_eq!(frees(&back(&mut bench, other, here, &theirs)), []);
    let now = bench.reopen(job, &todo).unwrap();
    assert_eq!(blocks(&now), [first, second]);
}

#[test]
fn a_grant_that_nobody_was_told_of_is_free_again() {
    let mut bench = Bench::new();
    let server = bench.join("a:1", 2, 8);
    let job = bench.job("job");
    let log = bench.make(job, file("", "f", 1)).unwrap();
    let first = blocks(&log)[0];
    let written = bench.written.clone();
    let (_, lost) = bench.grow(log.structure, first).unwrap();
    bench.written = written;
    bench.restart();
    let inventory = [held(log.structure, first), held(log.structure, lost)];
    assert_eq!(frees(&back(&mut bench, "a:1", server, &inventory)), [lost]);
    bench.confirm(&[lost]);
    assert_eq!(bench.status().free, 15);
    // Another request gets another epoch: the content of the lost block has no owner.
    let (_, successor) = bench.grow(log.structure, first).unwrap();
    assert!(successor.epoch > lost.epoch);
}

#[test]
fn what_was_taken_from_a_queue_is_told_to_its_tail_again() {
    let mut bench = Bench::new();
    let server = bench.join("a:1", 2, 8);
    let job = bench.job("job");
    let todo = bench.make(job, queue("", "q", 100)).unwrap();
    let first = blocks(&todo)[0];
    let (_, second) = bench.grow(todo.structure, first).unwrap();
    let seal = Seal { length: 60, bytes: 600, last: false };
    bench.seal(todo.structure, first, seal).unwrap();
    bench.restart();
    let inventory = [
        HeldBlock { sealed: Some(seal), taken: (20, 200), ..held(todo.structure, first) },
        held(todo.structure, second),
    ];
    back(&mut bench, "a:1", server, &inventory);
    assert_eq!(bench.ahead(), [(second, 40, 400)]);
}

/// The lost server held only the target of a move, so the queue survives and its tail is sent its number.
/// Seed 604755 of the simulator.
#[test]
fn tail_of_a_queue_is_told_when_the_last_server_that_it_waits_for_is_lost() {
    let mut bench = Bench::new();
    let server = bench.join("a:1", 2, 8);
    let job = bench.job_leased("job", 60_000);
    let todo = bench.make(job, queue("", "q", 100)).unwrap();
    let (structure, first) = (todo.structure, blocks(&todo)[0]);
    let (_, second) = bench.grow(structure, first).unwrap();
    let seal = Seal { length: 60, bytes: 600, last: false };
    bench.seal(structure, first, seal).unwrap();
    let other = bench.join("b:1", 2, 8);
    let drain = Command::DrainServer { actor: Actor::CLUSTER, address: "a:1", cancel: false };
    bench.run(drain).unwrap();
    bench.run(Command::BeginMove { structure, at: first, start: 0, way: Way::Relocate }).unwrap();
    bench.restart();
    let inventory = [
        HeldBlock { sealed: Some(seal), taken: (20, 200), ..held(structure, first) },
        held(structure, second),
    ];
    back(&mut bench, "a:1", server, &inventory);
    assert_eq!(bench.ahead(), [], "another server has not reported its blocks");
    rejoin(&mut bench, "b:1", other).unwrap();
    bench.run(Command::ServerLost { server: other }).unwrap();
    assert_eq!(bench.ahead(), [(second, 40, 400)]);
}

#[test]
fn permissions_that_a_server_has_not_heard_of_are_told_again() {
    let mut bench = Bench::new();
    let server = bench.join("a:1", 2, 8);
    let job = bench.job("job");
    let log = bench.make(job, file("", "f", 1)).unwrap();
    let verbs = honeycomb_types::Verbs::READ;
    let actor = honeycomb_catalog::Actor::driver(job);
    let (owner_verbs, job_verbs) = (verbs, verbs);
    let command = Command::SetPermissions { actor, job, path: "", owner_verbs, job_verbs };
    bench.run(command).unwrap();
    bench.restart();
    let told = back(&mut bench, "a:1", server, &[held(log.structure, blocks(&log)[0])]);
    let new = |e: &Effect| matches!(e, Effect::SetGeneration { generation: Generation(2), .. });
    assert!(told.iter().any(new), "{told:?}");
}

#[test]
fn leases_begin_anew_once_everybody_could_be_heard() {
    let mut bench = Bench::new();
    let (a, b) = (bench.join("a:1", 2, 8), bench.join("b:1", 2, 8));
    let job = bench.job("job");
    bench.create(job, "t", &[], lease(1000)).unwrap();
    bench.pass(900);
    bench.restart();
    bench.pass(1500);
    assert!(bench.catalog.recovering(), "INV-27: no renewal could be received");
    back(&mut bench, "a:1", a, &[]);
    bench.pass(1500);
    assert!(bench.left(job, "t").is_ok());
    let until = bench.now;
    back(&mut bench, "b:1", b, &[]);
    assert_eq!(bench.left(job, "t"), Ok(1000));
    bench.pass(999);
    assert!(bench.left(job, "t").is_ok());
    bench.pass(1);
    assert!(matches!(bench.left(job, "t"), Err(CatalogError::LeaseExpired { .. })));
    assert!(bench.now.since(until).as_millis() == 1000);
}

#[test]
fn a_server_that_does_not_come_back_is_lost_and_loses_its_data() {
    let mut bench = Bench::new();
    let (a, b) = (bench.join("a:1", 2, 8), bench.join("b:1", 2, 8));
    let job = bench.job_leased("job", 60_000);
    let log = bench.make(job, file("", "f", 1)).unwrap();
    let (gone, stays) = if blocks(&log)[0].block.server() == a { (a, b) } else { (b, a) };
    bench.restart();
    let name = |server| if server == a { "a:1" } else { "b:1" };
    back(&mut bench, name(stays), stays, &[]);
    let report = Report {
        bytes_resident: 0,
        connections: 0,
        requests: 0,
        forwarded: 0,
        bytes_owed: 0,
        cpu_permille: 0,
        traffic: &[],
        alarms: &[],
        usage: &[],
    };
    // As long as a server that is silent while the controller runs (INV-56).
    let loss = u64::from(SERVER_LOSS_DEFAULT_MS);
    for _ in 0..10 {
        assert!(bench.reopen(job, &log).is_ok());
        bench.pass(loss / 10 - 1);
        bench.run(Command::ServerReport { server: stays, report }).unwrap();
    }
    bench.pass(10);
    assert!(matches!(bench.reopen(job, &log), Err(CatalogError::DataLost { .. })));
    assert!(!bench.catalog.recovering());
    // It returns too late, and is not a member.
    let refused = Err(CatalogError::UnknownServer { server: gone });
    assert_eq!(rejoin(&mut bench, name(gone), gone), refused);
}

#[test]
fn only_the_process_that_was_the_member_keeps_its_number() {
    let mut bench = Bench::new();
    let server = bench.join("a:1", 2, 8);
    bench.restart();
    let own = NewServer { incarnation: incarnation("a:1"), ..SERVER };
    let refused = Err(CatalogError::UnknownServer { server });
    for other in [
        NewServer { incarnation: 1, ..own },
        NewServer { address: "c:1", ..own },
        NewServer { shards: 1, ..own },
        NewServer { blocks_per_shard: 9, tiers: &[], ..own },
        NewServer { block_size: 131_072, ..own },
    ] {
        assert_eq!(bench.run(Command::RejoinServer { server: other, member: server }), refused);
    }
    let command = Command::Inventory { server, held: &[], last: true };
    assert_eq!(bench.run(command), refused, "before it has rejoined");
    // A new process at that address: the earlier one is lost.
    let new = NewServer { incarnation: 1, ..own };
    let Ok(Reply::Joined(number)) = bench.run(Command::JoinServer { server: new }) else {
        panic!()
    };
    assert!(number > server && !bench.catalog.recovering());
}

#[test]
fn another_connection_of_a_live_server_is_reconciled_too() {
    let mut bench = Bench::new();
    let server = bench.join("a:1", 2, 8);
    let job = bench.job("job");
    let log = bench.make(job, file("", "f", 1)).unwrap();
    let at = blocks(&log)[0];
    // The request to open it was lost with the connection.
    let told = back(&mut bench, "a:1", server, &[]);
    assert_eq!(opens(&told), [at]);
    let told = back(&mut bench, "a:1", server, &[held(log.structure, at)]);
    assert!(told.is_empty(), "{told:?}");
    assert_eq!(bench.status().free, 15);
}

const DISK: TierIx = TierIx(1);
const DISKS: [TierSpec; 1] = [TierSpec { class: TierClass::Nvme, blocks: 20 }];

/// The server of `join_with_disk("a:1", 12, 20)`, as it reconnects.
fn with_disk() -> NewServer<'static> {
    let incarnation = incarnation("a:1");
    let own = NewServer { incarnation, shards: 1, blocks_per_shard: 12, ..SERVER };
    NewServer { tiers: &DISKS, flush_root: "/flush", ..own }
}

/// Tiers of the blocks that are opened (INV-42).
fn tiers_opened(effects: &[Effect]) -> Vec<TierIx> {
    let tier = |effect: &Effect| match effect {
        Effect::OpenBlock { tier, .. } => Some(*tier),
        _ => None,
    };
    effects.iter().filter_map(tier).collect()
}

/// Opens 14 files on a server with room for 12 blocks in memory, which has received nine of them when the
/// controller is restarted. Returns how many of the five others are opened in memory then.
fn opened_in_memory_after_a_restart() -> usize {
    let mut bench = Bench::new();
    let server = bench.join_with_disk("a:1", 12, 20);
    let job = bench.job("job");
    let made: Vec<Opened> =
        (0..14).map(|n| bench.make(job, file("", &format!("f{n}"), 1)).unwrap()).collect();
    let is_below = |file: &&Opened| {
        let at = blocks(file)[0];
        bench.catalog.tiers_of(at) == Some((DISK, DISK))
    };
    assert!(made.iter().filter(is_below).count() >= 2, "12 blocks fit into memory");
    bench.restart();
    let inventory: Vec<HeldBlock> =
        made[..9].iter().map(|file| held(file.structure, blocks(file)[0])).collect();
    bench.run(Command::RejoinServer { server: with_disk(), member: server }).unwrap();
    bench.run(Command::Inventory { server, held: &inventory, last: true }).unwrap();
    let opened = tiers_opened(&bench.effects);
    assert_eq!(opened.len(), 5);
    bench.catalog.check_invariants().unwrap();
    opened.iter().filter(|tier| !tier.is_below()).count()
}

#[test]
fn blocks_granted_in_a_lower_tier_are_opened_there_after_a_restart() {
    assert_eq!(opened_in_memory_after_a_restart(), 3);
}

/// A server reconnects while memory is short, and another block is requested before it has reported its
/// blocks. Returns the blocks to be demoted for that.
fn demoted_before_report() -> Vec<BlockAt> {
    let mut bench = Bench::new();
    let server = bench.join_with_disk("a:1", 12, 20);
    let job = bench.job_leased("job", 3_600_000);
    let store = bench.make(job, kv("", "store", 4)).unwrap();
    for at in blocks(&store) {
        bench.run(Command::BlockOpened { server, at }).unwrap();
        bench.report(at, 5000);
    }
    let fill = |bench: &mut Bench, n: usize| {
        bench.make(job, file("", &format!("f{n}"), 1)).unwrap();
        bench.lowered()
    };
    let short = (0..8).find(|&n| !fill(&mut bench, n).is_empty()).expect("memory runs short");
    let order = bench.lowered()[0];
    bench.run(Command::RejoinServer { server: with_disk(), member: server }).unwrap();
    // It receives no block either: no other server has room.
    let refused = bench.make(job, file("", "early", 1)).is_err();
    let demoted = bench.lowered();
    assert!(refused == demoted.is_empty());
    let inventory: Vec<HeldBlock> =
        blocks(&store).into_iter().map(|at| held(store.structure, at)).collect();
    bench.run(Command::Inventory { server, held: &inventory, last: true }).unwrap();
    assert_eq!(bench.catalog.tiers_of(order), Some(Default::default()), "the report ended it");
    assert!(!fill(&mut bench, short + 1).is_empty(), "memory is still short");
    demoted
}

#[test]
fn server_that_has_not_reported_its_blocks_is_sent_no_demotion() {
    assert_eq!(demoted_before_report(), []);
}

#[cfg(feature = "bug-bank")]
#[test]
fn planted_bugs_of_blocks_in_lower_tiers_show() {
    use honeycomb_types::Bug;
    Bug::arm(Some(Bug::UnopenedInMemory));
    assert_eq!(opened_in_memory_after_a_restart(), 5, "14 blocks in memory for 12");
    Bug::arm(Some(Bug::DemotedBeforeReport));
    assert!(!demoted_before_report().is_empty());
    Bug::arm(None);
}
