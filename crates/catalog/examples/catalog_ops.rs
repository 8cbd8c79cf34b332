//! Speed and memory use of the catalog: operations per second on one core with
//! 100,000 prefixes, and bytes per prefix and per block as a counting allocator sees them.
//!
//! `cargo run --release -p honeycomb-catalog --example catalog_ops [prefixes]`

// Measuring is this program's purpose: it reads the clock and counts what is allocated.
#![allow(clippy::disallowed_methods)]

use honeycomb_catalog::{
    Actor, Catalog, Command, Config, Effect, NewServer, NewStructure, PrefixOptions, Reply, Report,
};
use honeycomb_types::{JobId, Kind, PrefixId, ServerId, Time};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

struct Counting;

static BYTES: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged; only a counter is kept beside it.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn held() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

struct Run {
    catalog: Catalog,
    now: Time,
    effects: Vec<Effect>,
}

impl Run {
    fn apply(&mut self, command: Command<'_>) -> Reply {
        self.effects.clear();
        match self.catalog.apply(self.now, command, &mut self.effects) {
            Ok(reply) => reply,
            Err(error) => panic!("{command:?}: {error}"),
        }
    }

    /// Runs `n` operations and prints their rate.
    fn rate(&mut self, what: &str, n: usize, mut operation: impl FnMut(&mut Run, usize)) {
        let start = Instant::now();
        for i in 0..n {
            operation(self, i);
        }
        let spent = start.elapsed();
        let (rate, each) = (n as f64 / spent.as_secs_f64(), spent.as_nanos() / n as u128);
        println!("{what:<58} {rate:>12.0} ops/s {each:>6} ns");
    }
}

/// A permutation of 0..n that leaves no cache warm by order.
fn scattered(i: usize, n: usize) -> usize {
    (i * 7_919 + 13) % n
}

fn main() {
    let prefixes: usize =
        std::env::args().nth(1).map_or(100_000, |n| n.parse().expect("a number of prefixes"));
    let catalog = Catalog::new(Config { shard: 0, term: 1, hash_seed: 1, ..Config::default() });
    let mut run = Run { catalog, now: Time::from_millis(1), effects: Vec::with_capacity(1024) };
    let job = register(&mut run);
    let paths: Vec<String> = (0..prefixes)
        .map(|i| if i < 1000 { format!("stage{i}") } else { format!("stage{}/task{i}", i % 1000) })
        .collect();
    let ids = measure_prefixes(&mut run, job, &paths);
    measure_leases(&mut run, job, &paths, &ids);
    measure_blocks(&mut run);
    measure_structures(&mut run, job, &paths);
    measure_ticks(&mut run, prefixes);
    measure_rest(run);
}

fn register(run: &mut Run) -> JobId {
    let (actor, name) = (Actor::CLUSTER, "bench");
    let register = Command::RegisterJob {
        actor,
        name,
        lease_ms: 60_000,
        quota_blocks: 0,
        hints: Default::default(),
        claim: Default::default(),
    };
    match run.apply(register) {
        Reply::Job { job, .. } => job,
        other => panic!("{other:?}"),
    }
}

fn measure_prefixes(run: &mut Run, job: JobId, paths: &[String]) -> Vec<PrefixId> {
    let mut ids = Vec::with_capacity(paths.len());
    let (actor, options) = (Actor::driver(job), PrefixOptions::default());
    let before = (held(), run.catalog.bytes_metadata());
    run.rate("create prefix", paths.len(), |run, i| {
        let path = &paths[i];
        let create = Command::CreatePrefix { actor, job, path, parents: &[], options };
        match run.apply(create) {
            Reply::Prefix(id) => ids.push(id),
            other => panic!("{other:?}"),
        }
    });
    let after = (held(), run.catalog.bytes_metadata());
    let n = paths.len() as f64;
    let (real, own) = ((after.0 - before.0) as f64 / n, (after.1 - before.1) as f64 / n);
    println!("bytes per prefix: {real:.1} allocated, {own:.1} by bytes_metadata()");
    ids
}

fn measure_leases(run: &mut Run, job: JobId, paths: &[String], ids: &[PrefixId]) {
    let (actor, n) = (Actor::driver(job), paths.len());
    // A request's bytes have just been read when it is applied: only the catalog is cold.
    let cold: Vec<String> = (0..n).map(|i| paths[scattered(i, n)].clone()).collect();
    run.rate("renew one path (two levels)", 2_000_000, |run, i| {
        let path = &*cold[i % n];
        run.apply(Command::RenewLeases { actor, job, paths: &[path] });
    });
    let batches: Vec<Vec<&str>> =
        cold.chunks(100).map(|chunk| chunk.iter().map(String::as_str).collect()).collect();
    let start = Instant::now();
    for i in 0..20_000 {
        run.apply(Command::RenewLeases { actor, job, paths: &batches[i % batches.len()] });
    }
    let rate = 2_000_000.0 / start.elapsed().as_secs_f64();
    println!("{:<58} {rate:>12.0} paths/s", "renew paths in batches of 100");
    run.rate("renew by id (a session's activity)", 5_000_000, |run, i| {
        let prefix = ids[scattered(i, n)];
        run.apply(Command::RenewPrefixById { job, prefix, ago_ms: 0 });
    });
}

fn measure_blocks(run: &mut Run) {
    let before = (held(), run.catalog.bytes_metadata());
    let (shards, blocks_per_shard) = (8, 25_000);
    run.apply(Command::JoinServer {
        server: NewServer {
            address: "127.0.0.1:7070",
            incarnation: 1,
            shards,
            blocks_per_shard,
            tiers: &[],
            block_size: 65_536,
            flush_root: "",
            kinds: &[],
        },
    });
    let n = (shards as u32 * blocks_per_shard) as f64;
    let after = (held(), run.catalog.bytes_metadata());
    let (real, own) = ((after.0 - before.0) as f64 / n, (after.1 - before.1) as f64 / n);
    println!("bytes per registered block: {real:.1} allocated, {own:.1} by bytes_metadata()");
}

fn measure_structures(run: &mut Run, job: JobId, paths: &[String]) {
    let (actor, n) = (Actor::driver(job), paths.len());
    let new = |path, kind, blocks| NewStructure {
        path,
        name: "",
        kind,
        blocks,
        max_items: 0,
        max_bytes: 0,
        open_existing: false,
    };
    run.rate("create a file of one block, remove it, confirm", 300_000, |run, i| {
        let path = &*paths[scattered(i, n)];
        let structure = new(path, Kind::File, 1);
        run.apply(Command::CreateStructure { actor, job, structure });
        run.apply(Command::RemoveStructure { actor, job, path, name: "" });
        let Effect::FreeBlock { server, at } = run.effects[0] else { panic!("one block") };
        run.apply(Command::BlockFreed { server, at });
    });
    let many = 100_000.min(n);
    let before = held();
    run.rate("create a file of one block", many, |run, i| {
        let structure = new(&paths[i], Kind::File, 1);
        run.apply(Command::CreateStructure { actor, job, structure });
    });
    let each = (held() - before) as f64 / many as f64;
    println!("bytes per structure with one block, beyond the block's slot: {each:.1}");
    let cold: Vec<String> = (0..many).map(|i| paths[scattered(i, many)].clone()).collect();
    run.rate("open (lookup and map)", 2_000_000, |run, i| {
        let path = &*cold[i % many];
        run.apply(Command::OpenStructure { actor, job, path, name: "" });
    });
    run.effects = Vec::new();
    let before = held();
    let structure = NewStructure { name: "large", ..new("", Kind::Kv, 60_000) };
    let start = Instant::now();
    drop(run.apply(Command::CreateStructure { actor, job, structure }));
    let spent = start.elapsed();
    run.effects = Vec::new();
    let each = (held() - before) as f64 / 60_000.0;
    println!("bytes per allocated block of a map of 60,000, beyond its slot: {each:.1}");
    println!("created in {spent:?}");
}

fn measure_ticks(run: &mut Run, prefixes: usize) {
    run.rate("tick with nothing due", 1_000_000, |run, _| {
        run.apply(Command::Tick);
    });
    let before = run.catalog.work();
    run.now = run.now + Duration::from_secs(61);
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
    run.apply(Command::ServerReport { server: ServerId(1), report });
    let (start, mut longest) = (Instant::now(), Duration::ZERO);
    while run.catalog.next_deadline().is_some_and(|at| at <= run.now) {
        let one = Instant::now();
        run.apply(Command::Tick);
        longest = longest.max(one.elapsed());
    }
    let (spent, timers) = (start.elapsed(), run.catalog.work().timers - before.timers);
    println!(
        "expiring {timers} prefixes at once with their files: {spent:?}, longest tick {longest:?}"
    );
    assert!(timers as usize > prefixes, "every prefix's timer was due");
}

fn measure_rest(run: Run) {
    let (before, own) = (held(), run.catalog.bytes_metadata());
    drop(run.catalog);
    let real = before - held();
    println!("heap at the end, tombstones included: {real} allocated, {own} by bytes_metadata()");
}
