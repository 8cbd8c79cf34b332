//! One run: a cluster of real processes with little memory and a disk, and clients whose structures together
//! are four times as large as its memory.

use crate::processes::{Cluster, Lower, Servers};
use crate::tier::work::{Counts, Ended, FileWorker, QueueWorker, StoreWorker, Worker};
use honeycomb_client::{Client, ClientOptions, JobTicket};
use honeycomb_env::{Clock, Entropy};
use honeycomb_types::Time;
use honeycomb_types::limits::{BLOCK_SIZE_MIN, KIB, MIB};
use honeycomb_wire::messages::PrefixOptions;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How much larger than memory all structures together are.
const TIMES: u64 = 4;
/// Bytes of the disk for each byte of memory: blocks of stores are half full after a split. Of the
/// smallest blocks, a server accepts fewer in lower tiers.
const DISK: u64 = 12;
const DISK_SMALLEST: u64 = 7;
/// Maximum time of an operation.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long draining a server may take.
const DRAIN: Duration = Duration::from_secs(180);
const LEASE_MS: u32 = 60_000;
/// Memory and blocks of a run with large blocks. A server reserves 4 blocks to read and write its disks.
const LARGE_MEMORY: u64 = 8 * LARGE_BLOCK;
const LARGE_BLOCK: u64 = 128 * MIB;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    pub program: PathBuf,
    /// The folder of this run.
    pub dir: PathBuf,
    pub seed: u64,
    pub faults: bool,
    /// 1 GiB of memory in blocks of 128 MiB.
    pub large: bool,
    /// Bytes of memory, if not `large`.
    pub memory: u64,
}

/// The parameters that a run draws from its seed.
#[derive(Clone, Debug)]
pub struct Plan {
    pub memory: u64,
    pub block: u64,
    pub shards: usize,
    pub stores: u64,
    pub flushes: bool,
    pub drains: bool,
    pub faults: Option<String>,
    /// A damaged page may have caused a loss.
    pub may_lose: bool,
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Report {
    pub plan: Plan,
    pub counts: Counts,
    /// Bytes of blocks on disks after all writes.
    pub spilled: u64,
    pub damaged_reads: u64,
    /// Structures whose loss a damaged page explains.
    pub lost: u64,
    pub seconds: f64,
}

impl Plan {
    pub fn draw(settings: &Settings) -> Plan {
        let mut rng = Entropy::seeded(settings.seed);
        let memory = if settings.large { LARGE_MEMORY } else { settings.memory };
        // Every core needs some blocks besides those of its write cache.
        let octaves = (memory / (64 * KIB) / 16).ilog2().min(4) as u64;
        let block = (64 * KIB) << rng.below(octaves + 1);
        let block = if settings.large { LARGE_BLOCK } else { block };
        let cores = 1 + rng.below(2) as usize;
        let shards = if settings.large || memory / block < 64 { 1 } else { cores };
        let may_lose = settings.faults && rng.below(4) == 0;
        let lost = if may_lose { 1 + rng.below(3000) } else { 0 };
        let rates = [rng.below(20_000), rng.below(5_000), rng.below(20_000)];
        let faults = settings.faults.then(|| {
            let [once, write, slow] = rates;
            format!("seed={},once={once},write={write},slow={slow},lost={lost}", settings.seed)
        });
        let stores = 1 + rng.below(3);
        let flushes = rng.below(3) == 0;
        let drains = !settings.large && rng.below(4) == 0;
        Plan { memory, block, shards, stores, flushes, drains, faults, may_lose }
    }
}

/// Clients of one run.
enum Kind {
    Store(StoreWorker),
    File(FileWorker),
    Queue(QueueWorker),
}

impl Kind {
    fn grow(&mut self) -> Result<(), Ended> {
        match self {
            Kind::Store(store) => store.grow(),
            Kind::File(file) => file.grow(),
            Kind::Queue(queue) => queue.grow(),
        }
    }

    fn check(&mut self, shrinks: bool) -> Result<(), Ended> {
        match self {
            Kind::Store(store) => {
                store.check()?;
                if shrinks {
                    store.shrink()?;
                    store.check()?;
                }
                Ok(())
            }
            Kind::File(file) => file.check(),
            Kind::Queue(queue) => queue.check(),
        }
    }

    fn counts(&self) -> Counts {
        match self {
            Kind::Store(store) => store.worker.counts,
            Kind::File(file) => file.worker.counts,
            Kind::Queue(queue) => queue.worker.counts,
        }
    }
}

/// The result of one client.
struct Done {
    counts: Counts,
    lost: Option<String>,
    violation: Option<String>,
}

/// Runs one seed. `Err` describes the violation.
pub fn run(settings: &Settings) -> Result<Report, String> {
    let clock = Clock::start();
    let began = clock.now();
    let plan = Plan::draw(settings);
    let dir = &settings.dir;
    std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let outcome = within(settings, &plan, (clock, began));
    let kept = outcome.is_err();
    if !kept {
        let _ = std::fs::remove_dir_all(dir);
    }
    outcome
        .map_err(|text| format!("{text}\n  ({plan:?}; files of its processes: {})", dir.display()))
}

fn within(settings: &Settings, plan: &Plan, began: (Clock, Time)) -> Result<Report, String> {
    let none = Servers { count: 0, memory: plan.memory, block_size: plan.block };
    let mut cluster = Cluster::start(&settings.program, &settings.dir, None, none)?;
    let first = cluster.add_server(&none, Some(&lower(settings, plan, 0)))?;
    let admin = cluster.client();
    let job = admin.register_job("soak", LEASE_MS, 0).map_err(|e| e.to_string())?;
    let mut options = ClientOptions::new(&cluster.address, job.token.clone());
    options.timeout = TIMEOUT;
    let client = Client::new(options);
    let mut kinds = clients(settings, plan, &client, &job).map_err(|e| e.to_string())?;
    let mut done: Vec<Done> = Vec::new();
    let grown = std::thread::scope(|scope| {
        let running: Vec<_> = kinds.iter_mut().map(|kind| scope.spawn(|| kind.grow())).collect();
        running.into_iter().map(|one| one.join()).collect::<Vec<_>>()
    });
    let spilled = spilled(&client, plan);
    if plan.flushes && !plan.may_lose {
        let flushed = client.flush_prefix(job.job, "data", "flushed", &mut |_| true);
        flushed.map_err(|e| format!("flush: {e}"))?;
    }
    if plan.drains {
        cluster.add_server(&none, Some(&lower(settings, plan, 1)))?;
        cluster.drain_first(&first)?;
    }
    let ended = std::thread::scope(|scope| {
        let both = kinds.iter_mut().zip(grown).enumerate();
        let running: Vec<_> = both
            .map(|(n, (kind, grown))| {
                scope.spawn(move || match grown {
                    Ok(Ok(())) => kind.check(n % 2 == 0),
                    Ok(Err(ended)) => Err(ended),
                    Err(_) => Err(Ended::Violation("a client panicked".into())),
                })
            })
            .collect();
        running.into_iter().map(|one| one.join()).collect::<Vec<_>>()
    });
    for (kind, ended) in kinds.iter().zip(ended) {
        let (lost, violation) = match ended {
            Ok(Ok(())) => (None, None),
            Ok(Err(Ended::Lost(text))) => (Some(text), None),
            Ok(Err(Ended::Violation(text))) => (None, Some(text)),
            Err(_) => (None, Some("a client panicked".into())),
        };
        done.push(Done { counts: kind.counts(), lost, violation });
    }
    if plan.drains && done.iter().all(|done| done.lost.is_none()) {
        let status = || format!("{:?}", admin.status());
        cluster.await_drained(DRAIN).map_err(|e| format!("{e}: {}", status()))?;
    }
    cluster.check_alive()?;
    drop(kinds);
    report(settings, plan, done, spilled, began)
}

fn report(
    settings: &Settings,
    plan: &Plan,
    done: Vec<Done>,
    spilled: u64,
    (clock, began): (Clock, Time),
) -> Result<Report, String> {
    let damaged_reads = [0, 1].map(|n| damage_read(&settings.dir.join(format!("server-{n}"))));
    let damaged_reads = damaged_reads.iter().sum();
    let mut counts = Counts::default();
    let mut lost = 0;
    for one in done {
        if let Some(text) = one.violation {
            return Err(text);
        }
        if let Some(text) = one.lost {
            if damaged_reads == 0 {
                return Err(format!("lost, and no damaged page was read: {text}"));
            }
            lost += 1;
        }
        counts.operations += one.counts.operations;
        counts.written += one.counts.written;
        counts.read += one.counts.read;
        counts.refused += one.counts.refused;
    }
    if spilled == 0 {
        return Err("no block went to the disk: the run has shown nothing".into());
    }
    let seconds = clock.now().since(began).as_secs_f64();
    Ok(Report { plan: plan.clone(), counts, spilled, damaged_reads, lost, seconds })
}

fn lower(settings: &Settings, plan: &Plan, n: usize) -> Lower {
    Lower {
        dir: settings.dir.join(format!("server-{n}")),
        flushes: settings.dir.join("flushes"),
        disk: if plan.block == BLOCK_SIZE_MIN { DISK_SMALLEST } else { DISK } * plan.memory,
        shards: plan.shards,
        faults: plan.faults.clone(),
    }
}

fn clients(
    settings: &Settings,
    plan: &Plan,
    client: &Client,
    job: &JobTicket,
) -> Result<Vec<Kind>, honeycomb_client::Error> {
    let options = PrefixOptions { lease_ms: LEASE_MS, ..PrefixOptions::default() };
    client.create_prefix(job.job, "data", &[], options)?;
    client.keep(job.job, &["data".to_owned()]);
    let mut rng = Entropy::seeded(settings.seed ^ 0xc11e);
    let all = plan.stores + 2;
    let worker = |number: u64, rng: &mut Entropy| Worker {
        seed: settings.seed,
        number,
        block: plan.block as usize,
        bytes: TIMES * plan.memory / all,
        spent: 0,
        faults: settings.faults,
        rng: Entropy::seeded(rng.next_u64()),
        counts: Counts::default(),
    };
    let mut kinds = Vec::new();
    for number in 0..plan.stores {
        // Two clients share a store, so it splits more.
        let name = format!("data:store-{}", number / 2);
        let store = client.create_kv(job.job, &name, 1, true)?;
        kinds.push(Kind::Store(StoreWorker::new(worker(number, &mut rng), store)));
    }
    let file = client.create_file(job.job, "data:file", 1, false)?;
    kinds.push(Kind::File(FileWorker::new(worker(plan.stores, &mut rng), file)));
    let queue = client.create_queue(job.job, "data:queue", 0, 0, false)?;
    kinds.push(Kind::Queue(QueueWorker::new(worker(plan.stores + 1, &mut rng), queue)));
    Ok(kinds)
}

/// Bytes of blocks on disks.
fn spilled(client: &Client, plan: &Plan) -> u64 {
    let blocks =
        client.status().map_or(0, |status| status.tiers.iter().map(|tier| tier.used).sum());
    blocks * plan.block
}

/// Reads of damaged pages that a server has logged.
fn damage_read(dir: &Path) -> u64 {
    let said = std::fs::read_to_string(dir.join("errors")).unwrap_or_default();
    said.lines().filter(|line| line.contains("damaged page")).count() as u64
}
