//! `make soak`: a bounded queue with clients that are killed and restarted.
//!
//! Producers and consumers are separate processes; the cluster is the program itself. Half of the
//! consumers take items for good, half reserve and acknowledge them. Each client logs its
//! observations before it continues; at the end `check` compares the logs.
mod check;
mod item;
mod log;
mod plan;
mod roles;
mod run;

use self::plan::Role;
use self::run::{Report, Settings};
use crate::processes::beside;
use clap::{Parser, Subcommand};
use honeycomb_env::Entropy;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Sends items through a bounded queue while its clients are killed, and checks that no item is
/// lost or duplicated and that the order of each producer is kept.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    role: Option<Live>,
    /// Items of all producers together
    #[arg(long, default_value_t = 1_000_000)]
    items: u64,
    /// Number of kills; each killed client is restarted
    #[arg(long, default_value_t = 48)]
    kills: u64,
    /// Number of producers, and also of consumers
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=item::PRODUCERS_MAX))]
    clients: u64,
    /// Determines sizes, batches, and which client is killed after how many items; random if not
    /// given
    #[arg(long)]
    seed: Option<u64>,
    /// Bytes of a block
    #[arg(long, default_value_t = 1 << 20)]
    block_size: u64,
    /// The bound of the queue
    #[arg(long, default_value_t = 8192)]
    max_items: u64,
    /// Seconds after which the run has failed
    #[arg(long, default_value_t = 600)]
    limit: u64,
    /// The honeycomb program; by default the one next to this program
    #[arg(long)]
    program: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Live {
    /// One client, started by a run.
    #[command(hide = true)]
    Live { dir: PathBuf, role: Role, number: u64, incarnation: u64, from: u64 },
}

/// Maximum number of items of one reply to a consumer.
const BATCH: u64 = 128;
/// How long an item stays reserved: much longer than a consumer needs for a batch.
const RESERVATION: Duration = Duration::from_secs(2);
/// Memory servers.
const SERVERS: usize = 2;
/// Bytes of each of their pools.
const MEMORY: u64 = 512 << 20;

/// Runs the program.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.role {
        Some(Live::Live { dir, role, number, incarnation, from }) => {
            roles::live(&dir, role, number, incarnation, from)
                .map_err(|e| format!("{role:?} {number}.{incarnation}: {e}"))
        }
        None => soak(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn soak(args: &Args) -> Result<(), String> {
    if args.items / args.clients >= item::NUMBERS_MAX || args.kills >= item::INCARNATIONS_MAX {
        let most = item::NUMBERS_MAX - 1;
        return Err(format!("at most {most} items of each producer and 255 kills"));
    }
    let seed = args.seed.unwrap_or_else(|| Entropy::system().next_u64() >> 16);
    let program = match &args.program {
        Some(program) => program.clone(),
        None => beside("honeycomb")?,
    };
    let dir = std::env::temp_dir().join(format!("queue-soak-{}", std::process::id()));
    std::fs::create_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    println!("seed {seed}: {} items, {} kills", args.items, args.kills);
    let settings = Settings {
        seed,
        items: args.items,
        kills: args.kills,
        clients: args.clients,
        servers: SERVERS,
        memory: MEMORY,
        block_size: args.block_size,
        max_items: args.max_items,
        batch: BATCH,
        reservation: RESERVATION,
        limit: Duration::from_secs(args.limit),
        program,
        dir: dir.clone(),
    };
    let outcome = run::run(&settings);
    match outcome {
        Ok(report) => {
            print(&settings, &report);
            std::fs::remove_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))
        }
        Err(text) => {
            // Logs are evidence; without any, nothing is kept.
            let empty = std::fs::remove_dir(&dir).is_ok();
            let logs = if empty { String::new() } else { format!("\nlogs: {}", dir.display()) };
            Err(format!("FAILED with seed {seed}: {text}{logs}"))
        }
    }
}

fn print(settings: &Settings, report: &Report) {
    let Report { summary: s, time, .. } = report;
    let rate = s.items as f64 / time.as_secs_f64();
    println!(
        "{} items in {:.1} s ({rate:.0} a second) through at most {} items and {} blocks of {} KiB \
         at a time",
        s.items,
        time.as_secs_f64(),
        settings.max_items,
        report.blocks_most,
        settings.block_size >> 10
    );
    println!(
        "killed: {} producers, {} consumers that take, {} that reserve",
        report.producers_killed, report.takers_killed, report.reservers_killed
    );
    println!(
        "last requests of killed producers: {} carried out, {} not; items lost with a \
         consumer: {}; delivered again: {}; acknowledgements without an answer: {}, too late: {}",
        s.carried_out,
        s.not_carried_out,
        s.lost_with_consumer,
        s.redelivered,
        s.acknowledgement_unknown,
        s.too_late
    );
    println!(
        "no other item was lost, no item was delivered twice, order was kept, \
         every block is free again"
    );
}
