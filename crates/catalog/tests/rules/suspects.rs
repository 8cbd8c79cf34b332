//! Suspected servers: silent for a while, or without a connection (INV-56).

use crate::common::{Bench, file, incarnation, kv, lease};
use honeycomb_catalog::{
    Actor, CatalogError, Command, Config, Effect, Loss, NewServer, Opened, Reply,
};
use honeycomb_types::limits::{SERVER_LOSS_DEFAULT_MS, SERVER_LOSS_MIN_MS, SERVER_SILENCE};
use honeycomb_types::{BlockAt, JobId, PolicyKind, ServerId, StructureId, TierIx, Time, Way};
use std::time::Duration;

const SILENCE_MS: u64 = SERVER_SILENCE.as_millis() as u64;
const LOSS_MS: u64 = SERVER_LOSS_DEFAULT_MS as u64;

/// Two servers of 10 blocks each, and a kv with a block on each of them.
struct Pair {
    bench: Bench,
    job: JobId,
    quiet: ServerId,
    loud: ServerId,
    store: Opened,
}

impl Pair {
    fn new() -> Pair {
        Pair::of(Bench::new())
    }

    fn of(mut bench: Bench) -> Pair {
        let job = bench.job("job");
        let (quiet, loud) = (bench.join("quiet:1", 1, 10), bench.join("loud:1", 1, 10));
        bench.create(job, "t", &[], lease(600_000)).unwrap();
        let store = bench.make(job, kv("t", "x", 2)).unwrap();
        let mut pair = Pair { bench, job, quiet, loud, store };
        assert_ne!(pair.block(true).block, pair.block(false).block);
        pair
    }

    fn block(&mut self, quiet: bool) -> BlockAt {
        let server = if quiet { self.quiet } else { self.loud };
        let mut all = self.store.map.entries.iter().map(|entry| entry.at);
        all.find(|at| at.block.server() == server).expect("each server has one of the two blocks")
    }

    fn report(&mut self, server: ServerId) {
        self.bench.report_all(server, &[]);
    }

    /// Time passes in which only one of them reports.
    fn pass(&mut self, ms: u64) {
        let until = self.bench.now + Duration::from_millis(ms);
        while self.bench.now < until {
            let step = until.since(self.bench.now).min(Duration::from_millis(250));
            self.bench.pass(step.as_millis() as u64);
            self.report(self.loud);
        }
    }

    fn unlink(&mut self) {
        self.bench.run(Command::ServerUnlinked { server: self.quiet }).unwrap();
    }

    fn silent_ms(&mut self) -> Option<u64> {
        let status = self.bench.status();
        let found = status.servers.iter().find(|server| server.server == self.quiet)?;
        assert_eq!(found.alive, found.silent_ms == 0);
        Some(found.silent_ms)
    }

    fn is_suspected(&self) -> bool {
        self.bench.catalog.is_suspected(self.quiet)
    }

    fn merge(&mut self) -> Result<Reply, CatalogError> {
        let (structure, at) = (self.store.structure, self.block(false));
        self.bench.run(Command::BeginMove { structure, at, start: 0, way: Way::Merge })
    }

    fn lives(&mut self) -> bool {
        self.bench.reopen(self.job, &self.store).is_ok()
    }
}

#[test]
fn silent_server_is_suspected_and_then_lost() {
    let mut pair = Pair::new();
    pair.pass(SILENCE_MS - 1);
    assert_eq!(pair.silent_ms(), Some(0));
    let due = pair.bench.catalog.next_deadline().unwrap();
    assert_eq!(due, pair.bench.now + Duration::from_millis(1));
    pair.pass(1);
    assert_eq!(pair.silent_ms(), Some(SILENCE_MS));
    assert_eq!(pair.bench.catalog.suspects_of(&pair.store.map).len(), 1);
    pair.pass(LOSS_MS - SILENCE_MS - 1);
    assert!(pair.lives(), "a silence of {LOSS_MS} ms loses it, and no shorter one");
    pair.pass(1);
    assert_eq!(pair.silent_ms(), None);
    let told = pair.bench.reopen(pair.job, &pair.store).unwrap_err();
    assert!(
        matches!(&told, CatalogError::DataLost { server, how: Loss::Silence, .. } if &**server == "quiet:1"),
        "{told}"
    );
    assert!(pair.bench.catalog.is_member(pair.loud));
}

#[test]
fn silence_after_which_a_server_is_lost_is_a_setting() {
    let config = Config { server_loss_ms: SERVER_LOSS_MIN_MS, ..Config::default() };
    let mut pair = Pair::of(Bench::of(Config { shard: 3, term: 2, ..config }));
    pair.pass(u64::from(SERVER_LOSS_MIN_MS) - 1);
    assert!(pair.is_suspected() && pair.lives());
    pair.pass(1);
    assert!(!pair.lives());
}

#[test]
fn report_ends_suspicion_and_silence_counts_anew() {
    let mut pair = Pair::new();
    pair.pass(LOSS_MS - 1);
    assert!(pair.is_suspected());
    pair.report(pair.quiet);
    assert_eq!(pair.silent_ms(), Some(0));
    assert!(pair.bench.catalog.take_room_came(), "allocations that wait for room are tried again");
    pair.pass(SILENCE_MS - 1);
    assert!(!pair.is_suspected());
    pair.pass(1);
    assert!(pair.is_suspected());
    pair.pass(LOSS_MS - SILENCE_MS);
    assert!(!pair.lives());
}

#[test]
fn suspected_server_is_given_no_block_until_it_is_heard() {
    for by_silence in [true, false] {
        let mut pair = Pair::new();
        if by_silence {
            pair.pass(SILENCE_MS)
        } else {
            pair.unlink()
        }
        assert!(pair.is_suspected());
        // Each has 10 blocks, one of which is out, and two of which are reserved.
        for n in 0..7 {
            let made = pair.bench.make(pair.job, file("t", &format!("f{n}"), 1)).unwrap();
            assert_eq!(made.map.entries[0].at.block.server(), pair.loud);
        }
        let (structure, at) = (pair.store.structure, pair.block(false));
        let Err(CatalogError::OutOfMemory(full)) = pair.bench.make(pair.job, file("t", "g", 1))
        else {
            panic!("the other server has no room")
        };
        let [suspect] = &full.suspects[..] else { panic!("{full}") };
        assert_eq!(&*suspect.address, "quiet:1");
        assert!(full.to_string().contains("memory server quiet:1 is suspected"), "{full}");
        let grown = pair.bench.run(Command::GrowStructure { structure, at });
        assert!(grown.is_err());
        pair.report(pair.quiet);
        let made = pair.bench.make(pair.job, file("t", "g", 1)).unwrap();
        assert_eq!(made.map.entries[0].at.block.server(), pair.quiet);
    }
}

#[test]
fn suspected_server_is_no_target_of_a_merge() {
    let mut pair = Pair::new();
    pair.unlink();
    assert!(matches!(pair.merge(), Err(CatalogError::NoNeighbour { .. })));
    pair.report(pair.quiet);
    let Ok(Reply::Moving { entry, .. }) = pair.merge() else { panic!("it may take the range") };
    assert_eq!(entry.at.block.server(), pair.quiet);
}

#[test]
fn closed_connection_costs_no_data_when_the_server_is_back_in_time() {
    let mut pair = Pair::new();
    pair.unlink();
    assert!(pair.silent_ms().unwrap() > 0);
    pair.pass(10_000);
    assert!(pair.is_suspected() && pair.lives());
    let server = NewServer {
        address: "quiet:1",
        incarnation: incarnation("quiet:1"),
        shards: 1,
        blocks_per_shard: 10,
        tiers: &[],
        block_size: 65_536,
        flush_root: "",
        kinds: &[],
    };
    let again = Command::RejoinServer { server, member: pair.quiet };
    assert_eq!(pair.bench.run(again), Ok(Reply::Joined(pair.quiet)));
    let inventory = Command::Inventory { server: pair.quiet, held: &[], last: true };
    pair.bench.run(inventory).unwrap();
    let opens = |effect: &Effect| matches!(effect, Effect::OpenBlock { .. });
    assert!(pair.bench.effects.iter().any(opens), "its pending opens are sent again");
    assert!(!pair.is_suspected() && pair.lives());
}

#[test]
fn closed_connection_and_no_return_lose_the_server() {
    let mut pair = Pair::new();
    pair.unlink();
    pair.pass(LOSS_MS - 1);
    assert!(pair.lives());
    pair.pass(1);
    assert!(!pair.lives());
}

#[test]
fn stall_of_the_controller_postpones_suspicion_and_loss() {
    let mut pair = Pair::new();
    let stall = |pair: &mut Pair, ms: u64| {
        let length = Duration::from_millis(ms);
        pair.bench.now = pair.bench.now + length;
        pair.bench.run(Command::Stalled { length }).unwrap();
    };
    let since: Time = pair.bench.now;
    pair.pass(SILENCE_MS - 1);
    stall(&mut pair, 700);
    pair.pass(0);
    assert!(!pair.is_suspected());
    pair.pass(1);
    assert!(pair.is_suspected());
    stall(&mut pair, 800);
    pair.pass(LOSS_MS - SILENCE_MS - 1);
    assert!(pair.lives());
    pair.pass(1);
    assert!(!pair.lives());
    assert_eq!(pair.bench.now.since(since), Duration::from_millis(LOSS_MS + 1500));
}

/// Two servers of 12 blocks in memory and 20 on a disk, whose memory is full of large values of a kv: blocks
/// of both are being demoted, and one of the servers is suspected.
struct Full {
    bench: Bench,
    job: JobId,
    store: StructureId,
    /// The demotions sent to the server that responds.
    going: Vec<BlockAt>,
    loud: ServerId,
}

impl Full {
    fn new() -> Full {
        let mut bench = Bench::new();
        let quiet = bench.join_with_disk("quiet:1", 12, 20);
        let loud = bench.join_with_disk("loud:1", 12, 20);
        let job = bench.job_leased("job", 3_600_000);
        let store = bench.make(job, kv("", "store", 1)).unwrap().structure;
        let mut full = Full { bench, job, store, going: Vec::new(), loud };
        while full.store_large().is_ok() {}
        full.bench.run(Command::ShortOf { units: 12 }).unwrap();
        assert!(full.bench.lowered().iter().any(|at| at.block.server() == quiet));
        full.hear();
        full.bench.run(Command::ServerUnlinked { server: quiet }).unwrap();
        full
    }

    /// Stores large values that fill one block.
    fn store_large(&mut self) -> Result<(), CatalogError> {
        let (actor, job, structure) = (Actor::driver(self.job), self.job, self.store);
        let asks =
            Command::ExtentBlocks { actor, job, structure, bytes: 8000, full: &[], value: 0 };
        let asked = self.bench.run(asks);
        self.hear();
        let Reply::Extents(found) = asked? else { panic!("it answers with blocks") };
        let at = found[0].at;
        self.bench.run(Command::BlockOpened { server: at.block.server(), at }).unwrap();
        self.bench.report(at, 65_000);
        Ok(())
    }

    fn hear(&mut self) {
        let loud = self.loud;
        let told = self.bench.lowered().into_iter().filter(|at| at.block.server() == loud);
        self.going.extend(told);
    }
}

/// Demotions requested from a suspected server counted as coming room: nothing was demoted on the others, and
/// allocations were refused although their disks had room.
#[test]
fn others_let_blocks_go_while_a_suspected_server_does_not() {
    let mut full = Full::new();
    let mut stored = 0;
    loop {
        for at in std::mem::take(&mut full.going) {
            let (structure, tier) = (full.store, TierIx(1));
            full.bench.run(Command::TierChanged { structure, at, tier }).unwrap();
        }
        if full.store_large().is_ok() {
            stored += 1;
            continue;
        }
        full.bench.run(Command::ShortOf { units: 1 }).unwrap();
        full.hear();
        if full.going.is_empty() {
            break;
        }
    }
    // As many as there are places on its disk, less its reserve of memory.
    assert!((18..=20).contains(&stored), "{stored}");
}

/// An allocation that failed while a suspected server had room only on its disk was refused for good. It must
/// be retried until the server is back or lost.
#[test]
fn suspected_server_whose_disk_has_room_is_named() {
    let mut full = Full::new();
    let Err(CatalogError::OutOfMemory(why)) = full.store_large() else { panic!("it is full") };
    assert_eq!(why.suspects.len(), 1, "{why}");
}

/// The memory to share grew while a server was suspected, so that the first command of the server was judged
/// by other entitlements than those that its holder had before. Seed 23089052 of the simulator.
#[test]
fn suspicion_changes_no_entitlement() {
    let mut bench = Bench::with_policy(1, PolicyKind::MaxMin);
    let server = bench.join_with_disk("s1:1", 32, 20);
    let before = bench.catalog.sharing(bench.now, None);
    bench.pass(SILENCE_MS);
    assert!(bench.catalog.is_suspected(server));
    assert_eq!(bench.catalog.sharing(bench.now, None), before);
}
