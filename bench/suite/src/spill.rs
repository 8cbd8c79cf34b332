//! `bench spill`: rates of writes to a server's disk and of reads from it, compared with the disk alone; and
//! the effect on a neighbour in memory.

mod rocksdb;
mod side;
mod traffic;
mod writes;

use super::cluster::Cluster;
use super::disk::{self, Folder};
use super::measure::Spread;
use super::process::{Pinning, machine};
use super::trace::bar;
use super::{Pool, Transport, Waiting};
use clap::Args;
use hdrhistogram::Histogram;
use honeycomb::failure::CommandResult;
use honeycomb::output::Output;
use honeycomb::say;
use honeycomb::size;
use honeycomb_client::{Client, File, JobOptions, JobTicket};
use honeycomb_env::Clock;
use honeycomb_types::Time;
use honeycomb_types::limits::TIER_PIECE;
use honeycomb_wire::messages::PrefixOptions;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Size of the neighbour's appends to memory, in bytes.
const NEIGHBOUR: usize = 4 << 10;
/// Interval of the neighbour's appends.
const EVERY: Duration = Duration::from_micros(500);
/// Bytes of one read.
const READ: usize = 1 << 20;

/// Measures writes through a server to its disk and reads back, compared with the disk alone.
///
/// Several threads write and read files of a job that is not latency-sensitive, whose blocks are placed on
/// the disk from the start. Before each round, the disk alone is written and read in pieces of the same size,
/// with direct I/O, by four threads.
///
/// Meanwhile another job appends 4 KiB to files in memory two thousand times a second. The output shows the
/// p99 of its appends in three cases: alone; with the same threads writing and reading as much in memory,
/// which share the cores and spill nothing; and with spilling. Each case runs at full speed and at --pace
/// bytes per second, which leaves cores idle.
///
/// With --writes it fills a store to several times the memory instead, changes it, and reads it meanwhile;
/// with --beside rocksdb in turns with a RocksDB of the same size, which is not behind a socket.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench spill --quick
  honeycomb bench spill --quick --writes --values 1KiB --beside rocksdb
  honeycomb bench spill --quick --json")]
pub struct SpillArgs {
    /// Size of the data of each round
    #[arg(long, value_parser = size::parse, default_value = "1GiB")]
    bytes: u64,
    /// Memory for blocks
    #[arg(long, value_parser = size::parse, default_value = "256MiB")]
    memory: u64,
    /// Size of a block
    #[arg(long, value_parser = size::parse, default_value = "1MiB")]
    block_size: u64,
    /// Directory on the disk (default: the system's temporary directory)
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Number of threads that write and read
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Bytes per second to write, and to read, in the paced case
    #[arg(long, value_parser = size::parse, default_value = "100MiB")]
    pace: u64,
    /// Number of rounds; figures are median, minimum and maximum
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Run for only a few seconds: a check that it works, not a measurement
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    writes: writes::WritesArgs,
    #[command(flatten)]
    output: Output,
}

/// One round: bytes per second of the disk alone and through a server, and the neighbour's p99 in
/// microseconds.
struct Round {
    disk: (f64, f64),
    ours: (f64, f64),
    quiet: f64,
    /// The p99 with the same load in memory, and with spilling: at full speed, and paced.
    fast: (f64, f64),
    slow: (f64, f64),
}

/// The threads that write and read beside the neighbour. Each file has some blocks and is removed after it is
/// read.
struct Others<'a> {
    client: &'a Client,
    job: &'a JobTicket,
    name: String,
    /// Bytes of a file, and of all data that a thread writes and then reads.
    file: u64,
    bytes: u64,
    threads: u32,
    /// Bytes per second that all threads together write, and then read; `None` for full speed.
    pace: Option<u64>,
}

/// `honeycomb bench spill`.
pub fn run(args: &SpillArgs) -> CommandResult {
    if args.writes.writes {
        let asked = writes::Asked {
            memory: args.memory,
            directory: args.directory.clone(),
            rounds: args.rounds,
            quick: args.quick,
            output: &args.output,
        };
        return writes::run(&args.writes, &asked);
    }
    let bytes = if args.quick { args.bytes.min(32 << 20) } else { args.bytes };
    let rounds = if args.quick { args.rounds.min(2) } else { args.rounds };
    let about = machine();
    let folder = Folder::new(args.directory.clone())?;
    let pool = Pool { memory: args.memory, block_size: args.block_size };
    let more = folder.flags(2 * bytes);
    let pinning = Pinning::default();
    let cluster = Cluster::with(Transport::Tcp, 1, pool, Waiting::Sleeping, pinning, &more)?;
    let (beside, memory) = cluster.job("memory")?;
    let options =
        JobOptions { lease_ms: 3_600_000, latency_sensitive: false, ..JobOptions::default() };
    let job = cluster.client(cluster.token()).register_job_with("disk", &options)?;
    let client = cluster.client(&job.token);
    let (hot, here) = cluster.job("busy")?;
    let seconds = if args.quick { 0.2 } else { 3.0 };
    let quiet = || -> CommandResult<()> {
        let clock = Clock::start();
        clock.sleep_until(clock.now() + Duration::from_secs_f64(seconds / 2.0));
        Ok(())
    };
    let threads = u64::from(args.threads);
    let progress = bar("spill", u64::from(rounds));
    let mut done = Vec::new();
    for round in 0..rounds {
        // In memory, all files that exist at a time use a quarter of it.
        let others = |in_memory: bool, pace: Option<u64>| Others {
            client: if in_memory { &hot } else { &client },
            job: if in_memory { &here } else { &job },
            name: format!("o{round}-{}", pace.is_some()),
            file: (args.memory / 4 / threads).max(args.block_size),
            bytes: pace.map_or(bytes, |pace| (pace as f64 * seconds) as u64) / threads,
            threads: args.threads,
            pace,
        };
        let disk = disk::alone(&folder, bytes, TIER_PIECE, READ)?;
        let ((), alone) = neighboured(&beside, &memory, quiet)?;
        let ((), busy) = neighboured(&beside, &memory, || others(true, None).run())?;
        let through = || through(&client, &job, bytes, args.threads, round);
        let (ours, pressed) = neighboured(&beside, &memory, through)?;
        let slow = Some(args.pace);
        let ((), slow_busy) = neighboured(&beside, &memory, || others(true, slow).run())?;
        let ((), slow_pressed) = neighboured(&beside, &memory, || others(false, slow).run())?;
        let (fast, slow) = ((busy, pressed), (slow_busy, slow_pressed));
        done.push(Round { disk, ours, quiet: alone, fast, slow });
        progress.inc(1);
    }
    progress.finish_and_clear();
    tell(args, &about, bytes, &done);
    Ok(())
}

/// Writes files to the disk and reads them; answers the bytes per second of each.
fn through(
    client: &Client,
    job: &JobTicket,
    bytes: u64,
    threads: u32,
    round: u32,
) -> CommandResult<(f64, f64)> {
    let each = bytes / u64::from(threads);
    let path = format!("r{round}");
    let options = PrefixOptions { pinned: true, ..PrefixOptions::default() };
    client.create_prefix(job.job, &path, &[], options)?;
    let all = |work: &(dyn Fn(u32) -> CommandResult<()> + Sync)| -> CommandResult<f64> {
        let clock = Clock::start();
        let ended: CommandResult<()> = thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|n| scope.spawn(move || work(n))).collect();
            running.into_iter().try_for_each(|t| t.join().expect("no thread panics"))
        });
        ended?;
        Ok(bytes as f64 / clock.now().since(Time::ZERO).as_secs_f64().max(1e-9))
    };
    let name = |n: u32| format!("{path}:f{n}");
    let written = all(&|n| {
        let file = client.create_file(job.job, &name(n), 1, false)?;
        let piece = vec![n as u8; 8 << 20];
        let mut left = each;
        while left > 0 {
            let length = left.min(piece.len() as u64);
            file.write_all(&piece[..length as usize])?;
            left -= length;
        }
        file.seal()?;
        Ok(())
    })?;
    let read = all(&|n| {
        let file = client.open_file(job.job, &name(n))?;
        let mut buffer = vec![0; READ];
        let mut at = 0;
        while at < each {
            let got = file.read_into(at, &mut buffer)?;
            assert!(got > 0 && buffer[..got].iter().all(|byte| *byte == n as u8), "other bytes");
            at += got as u64;
        }
        Ok(())
    })?;
    client.remove_prefix(job.job, &path)?;
    Ok((written, read))
}

impl Others<'_> {
    fn run(&self) -> CommandResult {
        let Others { client, job, name, threads, .. } = self;
        let options = PrefixOptions { pinned: true, ..PrefixOptions::default() };
        client.create_prefix(job.job, name, &[], options)?;
        let ended: CommandResult<()> = thread::scope(|scope| {
            let running: Vec<_> =
                (0..*threads).map(|n| scope.spawn(move || self.thread(n))).collect();
            running.into_iter().try_for_each(|t| t.join().expect("no thread panics"))
        });
        ended?;
        client.remove_prefix(job.job, name)?;
        Ok(())
    }

    fn thread(&self, n: u32) -> CommandResult {
        let Others { client, job, name, file: of_a_file, bytes, threads, pace } = self;
        let clock = Clock::start();
        let piece = vec![n as u8; READ];
        let mut buffer = vec![0; READ];
        // The data is written and read, so that twice the bytes of a file are moved.
        let due = |moved: u64| pace.map(|pace| moved as f64 * f64::from(*threads) / pace as f64);
        let wait = |moved: u64| {
            if let Some(due) = due(moved) {
                clock.sleep_until(Time::ZERO + Duration::from_secs_f64(due));
            }
        };
        let (mut moved, mut files) = (0, 0);
        while moved < 2 * bytes {
            let address = format!("{name}:f{n}-{files}");
            let file = client.create_file(job.job, &address, 1, false)?;
            let length = (*of_a_file).min(bytes - moved / 2).max(1);
            let mut at = 0;
            while at < length {
                wait(moved / 2);
                let want = (length - at).min(READ as u64);
                file.write_all(&piece[..want as usize])?;
                (at, moved) = (at + want, moved + want);
            }
            file.seal()?;
            let mut at = 0;
            while at < length {
                wait(moved / 2);
                let got = file.read_into(at, &mut buffer)? as u64;
                assert!(got > 0, "the file is shorter than the data written to it");
                (at, moved) = (at + got, moved + got);
            }
            client.remove_structure(job.job, &address)?;
            files += 1;
        }
        Ok(())
    }
}

/// Runs work while a neighbour appends to memory; answers the result of the work, and the p99 of the
/// neighbour's appends in microseconds.
fn neighboured<T>(
    client: &Client,
    job: &JobTicket,
    work: impl FnOnce() -> CommandResult<T>,
) -> CommandResult<(T, f64)> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let appending = scope.spawn(|| appends(client, job, &over));
        let worked = work();
        over.store(true, Relaxed);
        let p99 = appending.join().expect("appending does not panic")?;
        Ok((worked?, p99))
    })
}

fn appends(client: &Client, job: &JobTicket, over: &AtomicBool) -> CommandResult<f64> {
    let options = PrefixOptions { pinned: true, ..PrefixOptions::default() };
    client.create_prefix(job.job, "n", &[], options)?;
    let clock = Clock::start();
    let mut took = Histogram::<u64>::new(3).expect("three digits");
    let piece = [7; NEIGHBOUR];
    let new = |n: u32| -> CommandResult<File> {
        let file = client.create_file(job.job, &format!("n:f{n}"), 1, false)?;
        if n > 0 {
            client.remove_structure(job.job, &format!("n:f{}", n - 1))?;
        }
        Ok(file)
    };
    let mut next = clock.now();
    let (mut file, mut count) = (new(0)?, 0);
    for n in 1u32.. {
        if over.load(Relaxed) {
            break;
        }
        // Each file grows for a second, then a new one replaces it.
        if n.is_multiple_of(2000) {
            count += 1;
            file = new(count)?;
            next = clock.now();
        }
        clock.sleep_until(next);
        // Measured from the time when the append was due, so that a slow append also delays the next ones.
        file.append(&piece)?;
        let late = clock.now().since(next).as_nanos() as u64;
        took.record(late).expect("a time grows");
        next = next + EVERY;
    }
    client.remove_prefix(job.job, "n")?;
    Ok(took.value_at_quantile(0.99) as f64 / 1e3)
}

/// Median, minimum and maximum.
pub fn spread(of: impl Iterator<Item = f64>) -> [f64; 3] {
    let Spread { median, min, max } = Spread::of(of);
    [median, min, max]
}

/// The same for people.
pub fn show([median, least, most]: [f64; 3], digits: usize) -> String {
    format!("{median:.digits$} ({least:.digits$} to {most:.digits$})")
}

fn tell(args: &SpillArgs, about: &str, bytes: u64, rounds: &[Round]) {
    type Of = fn(&Round) -> f64;
    let rows: [(&str, &str, Of, Of, Of, f64); 6] = [
        ("write", "MB/s", |r| r.disk.0 / 1e6, |r| r.ours.0 / 1e6, |r| r.ours.0 / r.disk.0, 0.8),
        ("read", "MB/s", |r| r.disk.1 / 1e6, |r| r.ours.1 / 1e6, |r| r.ours.1 / r.disk.1, 0.8),
        ("neighbour's p99", "us", |r| r.quiet, |r| r.fast.1, |r| r.fast.1 / r.quiet, 1.2),
        (
            "neighbour's p99, compared with the same load in memory",
            "us",
            |r| r.fast.0,
            |r| r.fast.1,
            |r| r.fast.1 / r.fast.0,
            1.2,
        ),
        ("neighbour's p99, paced", "us", |r| r.quiet, |r| r.slow.1, |r| r.slow.1 / r.quiet, 1.2),
        (
            "neighbour's p99, paced, compared with the same load in memory",
            "us",
            |r| r.slow.0,
            |r| r.slow.1,
            |r| r.slow.1 / r.slow.0,
            1.2,
        ),
    ];
    let told = rows.map(|(what, unit, alone, ours, ratio, asked)| {
        let of = |of: Of| spread(rounds.iter().map(of));
        (what, unit, of(alone), of(ours), of(ratio), asked)
    });
    if args.output.json {
        let rows: Vec<Value> = told
            .iter()
            .map(|(what, unit, alone, ours, ratio, asked)| {
                json!({"what": what, "unit": unit, "alone": alone, "with": ours, "ratio": ratio,
                       "asked": asked})
            })
            .collect();
        say!(
            "{}",
            json!({"bench": "spill", "machine": about, "bytes": bytes, "memory_bytes": args.memory,
                   "block_bytes": args.block_size, "threads": args.threads,
                   "pace_bytes_per_s": args.pace,
                   "rounds": rounds.len(), "median_least_most": rows})
        );
        return;
    }
    say!("{about}; not pinned: the kernel places all sides");
    say!(
        "{} each way by {} threads, {} of memory in blocks of {}; median (least to most) of {} \
            rounds",
        size::show(bytes),
        args.threads,
        size::show(args.memory),
        size::show(args.block_size),
        rounds.len()
    );
    for (what, unit, alone, ours, ratio, asked) in told {
        let least = asked < 1.0;
        let reached = if (ratio[0] >= asked) == least { "reached" } else { "MISSED" };
        let bound = if least { "at least" } else { "at most" };
        say!(
            "{what}: without {} {unit}, with spilling {} {unit}; ratio {}, required {bound} \
                {asked}: {reached}",
            show(alone, 0),
            show(ours, 0),
            show(ratio, 2)
        );
    }
}
