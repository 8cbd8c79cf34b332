//! `make elastic-soak`: an hour of many jobs, compressed, on real processes.
//!
//! Jobs grow and shrink as in `honeycomb-workload`; all bytes that they read are compared with the
//! bytes written. Meanwhile the controller may be killed and restarted. At the end, every block
//! must be free, the servers as small as at the start, and no job may have seen an error.
mod run;

use self::run::{Report, Settings};
use crate::processes::{Servers, beside};
use clap::{Parser, ValueEnum};
use honeycomb_env::Entropy;
use honeycomb_wire::messages::PrefixOptions;
use honeycomb_workload::{Fit, Holding, Plan, Sizes, fitted};
use std::path::PathBuf;
use std::process::ExitCode;

/// Lets jobs grow and shrink on two memory servers, as production does in an hour, and checks that
/// all memory is free at the end and that no job saw an error.
#[derive(Parser)]
struct Args {
    /// Seconds into which the hour is compressed
    #[arg(long, default_value_t = 600.0)]
    seconds: f64,
    /// Jobs
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    jobs: u32,
    /// How often the controller is killed (SIGKILL) and restarted, at equal intervals
    #[arg(long, default_value_t = 0)]
    kills: u32,
    /// Determines the load; random if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Peak use of all jobs together, in MiB
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    peak_mib: u64,
    /// Bytes of a block
    #[arg(long, default_value_t = 1 << 20)]
    block_size: u64,
    /// The lease of each task's prefix, in milliseconds
    #[arg(long, default_value_t = 1000)]
    lease_ms: u32,
    /// Structures in which tasks keep their data, in turn
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["file", "queue", "kv"])]
    structures: Vec<Structure>,
    /// Initial blocks of a store
    #[arg(long, default_value_t = 1)]
    kv_blocks: u32,
    /// Threads that do the jobs' work
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    workers: u32,
    /// The honeycomb program; by default the one next to this program
    #[arg(long)]
    program: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Structure {
    File,
    Queue,
    Kv,
}

/// Memory servers.
const SERVERS: usize = 2;

/// Runs the program.
pub fn main() -> ExitCode {
    match soak(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn soak(args: &Args) -> Result<(), String> {
    if !(args.seconds >= 1.0 && args.seconds <= 86_400.0) {
        return Err("--seconds takes 1 to 86400".into());
    }
    let seed = args.seed.unwrap_or_else(|| Entropy::system().next_u64() >> 16);
    let program = match &args.program {
        Some(program) => program.clone(),
        None => beside("honeycomb")?,
    };
    let hour = fitted(Fit { seed, tenants: args.jobs });
    let demand = hour.scaled(args.seconds, args.peak_mib << 20);
    // Address space: several times the peak use, and the first blocks of each task.
    let blocks = (demand.tasks.len() as u64 + 16) * (3 + args.kv_blocks as u64);
    let memory = 4 * (args.peak_mib << 20) + blocks * args.block_size;
    let holding = |s: &Structure| match s {
        Structure::File => Holding::File,
        Structure::Queue => Holding::Queue,
        Structure::Kv => Holding::Kv,
    };
    let plan = Plan {
        holdings: args.structures.iter().map(holding).collect(),
        ending: honeycomb_workload::Ending::Lease,
        prefix: PrefixOptions { lease_ms: args.lease_ms, ..PrefixOptions::default() },
        workers: args.workers as usize,
        sizes: Sizes { piece: 64 << 10, value: 4 << 10, kv_blocks: args.kv_blocks, skew: 0.99 },
        seed,
    };
    let dir = std::env::temp_dir().join(format!("elastic-soak-{}", std::process::id()));
    std::fs::create_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    println!(
        "seed {seed}: {} jobs, {} tasks in {} s, at most {} MiB at a time, {} kills",
        args.jobs,
        demand.tasks.len(),
        args.seconds,
        args.peak_mib,
        args.kills
    );
    let servers =
        Servers { count: SERVERS, memory: memory / SERVERS as u64, block_size: args.block_size };
    let settings = Settings { program, dir: dir.clone(), servers, demand, plan, kills: args.kills };
    let outcome = run::run(&settings);
    let removed = std::fs::remove_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()));
    match outcome {
        Ok(report) => {
            print(&settings, &report);
            removed
        }
        Err(text) => Err(format!("FAILED with seed {seed}: {text}")),
    }
}

fn print(settings: &Settings, report: &Report) {
    let mib = |bytes: u64| bytes as f64 / (1u64 << 20) as f64;
    println!(
        "{} tasks wrote {:.0} MiB in {} requests; {:.0} MiB used at most, {:.0} MiB resident at \
            most",
        report.tasks,
        mib(report.written),
        report.requests,
        mib(report.used_most),
        mib(report.resident_most)
    );
    println!(
        "controller killed and started again: {} times; requests asked again because their outcome \
         was unknown: {}",
        settings.kills, report.repeated
    );
    println!(
        "at the end {} of {} blocks are free, {:.1} MiB are resident (at the start {:.1} MiB), \
         {:.1} s after the last lease; no job saw an error",
        report.free,
        report.blocks,
        mib(report.resident_end),
        mib(report.resident_start),
        report.settled.as_secs_f64()
    );
}
