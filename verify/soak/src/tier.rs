//! `make tier-soak`: structures four times as large as memory, on real processes with real disks.
//!
//! Each run starts a controller and a memory server with 16 MiB of memory and a disk. Stores, a file and a
//! queue are filled, changed, read, flushed, drained and emptied, with sizes drawn log-uniformly and at every
//! limit; every byte that is read is compared with the bytes written. With `--faults` the disk fails on
//! purpose, and only a damaged page that was read explains a loss.
mod content;
mod run;
mod work;

use self::run::{Report, Settings};
use crate::processes::beside;
use clap::Parser;
use honeycomb_env::Entropy;
use honeycomb_types::limits::MIB;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Fills structures four times as large as memory on real processes, reads every byte, and reports bytes
/// that were lost or read wrong.
#[derive(Parser)]
struct Args {
    /// Runs, one seed each
    #[arg(long, default_value_t = 20)]
    runs: u64,
    /// The first seed; random if not given
    #[arg(long)]
    from: Option<u64>,
    /// The disks fail on purpose (builds with debug assertions alone)
    #[arg(long)]
    faults: bool,
    /// 1 GiB of memory in blocks of 128 MiB, instead of 16 MiB in blocks of 64 KiB to 1 MiB
    #[arg(long)]
    large: bool,
    /// MiB of memory of each server
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(4..=512))]
    memory_mib: u64,
    /// Concurrent runs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    jobs: u64,
    /// Print one JSON object for each run and one for all
    #[arg(long)]
    json: bool,
    /// The honeycomb program; by default the one next to this program
    #[arg(long)]
    program: Option<PathBuf>,
}

/// Runs the program.
pub fn main() -> ExitCode {
    let args = Args::parse();
    match soak(&args) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("{failed} of {} runs FAILED", args.runs);
            ExitCode::FAILURE
        }
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn soak(args: &Args) -> Result<u64, String> {
    if args.faults && !cfg!(debug_assertions) {
        return Err("--faults needs builds with debug assertions: use the profile `fast`".into());
    }
    let from = args.from.unwrap_or_else(|| Entropy::system().next_u64() >> 16);
    let program = match &args.program {
        Some(program) => program.clone(),
        None => beside("honeycomb")?,
    };
    let home = std::env::temp_dir().join(format!("tier-soak-{}", std::process::id()));
    let settings = |seed: u64| Settings {
        program: program.clone(),
        dir: home.join(seed.to_string()),
        seed,
        faults: args.faults,
        large: args.large,
        memory: args.memory_mib * MIB,
    };
    let next = std::sync::atomic::AtomicU64::new(0);
    let take = || {
        let n = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        (n < args.runs).then(|| from + n)
    };
    let one = || {
        let mut ended = Vec::new();
        while let Some(seed) = take() {
            let outcome = run::run(&settings(seed));
            print(args, seed, &outcome);
            ended.push(outcome);
        }
        ended
    };
    let ended: Vec<Result<Report, String>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..args.jobs).map(|_| scope.spawn(one)).collect();
        running.into_iter().flat_map(|one| one.join().unwrap_or_default()).collect()
    });
    let _ = std::fs::remove_dir(&home); // It stays if a run left its files.
    Ok(sum_up(args, from, &ended))
}

fn print(args: &Args, seed: u64, outcome: &Result<Report, String>) {
    match outcome {
        Ok(report) if args.json => println!("{}", of_run(seed, report)),
        Ok(report) => println!(
            "seed {seed}: blocks of {} KiB, {} operations, {} MiB written, {} MiB read, {} MiB on \
             disk; {} refused, {} damaged pages read, {} structures lost to them; {:.1} s",
            report.plan.block >> 10,
            report.counts.operations,
            report.counts.written >> 20,
            report.counts.read >> 20,
            report.spilled >> 20,
            report.counts.refused,
            report.damaged_reads,
            report.lost,
            report.seconds
        ),
        Err(text) if args.json => println!("{}", json!({ "seed": seed, "failed": text })),
        Err(text) => println!("seed {seed}: FAILED: {text}"),
    }
}

fn of_run(seed: u64, report: &Report) -> serde_json::Value {
    json!({
        "seed": seed,
        "block_bytes": report.plan.block,
        "memory_bytes": report.plan.memory,
        "cores": report.plan.shards,
        "flushed": report.plan.flushes,
        "drained": report.plan.drains,
        "operations": report.counts.operations,
        "written_bytes": report.counts.written,
        "read_bytes": report.counts.read,
        "on_disk_bytes": report.spilled,
        "refused": report.counts.refused,
        "damaged_reads": report.damaged_reads,
        "lost_to_damage": report.lost,
        "seconds": report.seconds,
    })
}

fn sum_up(args: &Args, from: u64, ended: &[Result<Report, String>]) -> u64 {
    let failed = ended.iter().filter(|ended| ended.is_err()).count() as u64;
    let sum = |of: fn(&Report) -> u64| ended.iter().flatten().map(of).sum::<u64>();
    let (operations, lost) = (sum(|r| r.counts.operations), sum(|r| r.lost));
    let (written, read) = (sum(|r| r.counts.written), sum(|r| r.counts.read));
    if args.json {
        let (runs, faults) = (ended.len(), args.faults);
        let all = json!({
            "runs": runs, "from": from, "faults": faults, "failed": failed, "operations": operations,
            "written_bytes": written, "read_bytes": read, "lost_to_damage": lost,
        });
        println!("{all}");
    } else {
        println!(
            "{} runs from seed {from}, disks {}: {failed} failed; {operations} operations, {} MiB \
             written, {} MiB read and compared, {lost} structures lost to damaged pages",
            ended.len(),
            if args.faults { "that fail" } else { "healthy" },
            written >> 20,
            read >> 20
        );
    }
    failed
}
