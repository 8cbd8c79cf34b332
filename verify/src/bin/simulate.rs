//! `make simulate`: seeds for as long as it was told to.
#![forbid(unsafe_code)]

use clap::Parser;
use honeycomb_env::{Clock, Entropy};
use honeycomb_verify::{Stats, Violation, World, run_seed};
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

/// Runs the production state machines in a virtual world, seed after seed, and checks what clients
/// saw against reference models.
#[derive(Parser)]
struct Args {
    /// Seconds to go on for
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Run this seed alone, and print its trace
    #[arg(long)]
    seed: Option<u64>,
    /// Operations of each seed
    #[arg(long, default_value_t = 1000)]
    operations: u64,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match args.seed {
        Some(seed) => one(seed, args.operations),
        None => many(&args),
    }
}

fn one(seed: u64, operations: u64) -> ExitCode {
    let mut world = World::new(seed, true);
    let outcome = world.run(operations);
    let mut out = std::io::stdout().lock();
    for line in world.trace().unwrap_or_default() {
        // A reader that has seen enough closes the pipe.
        if writeln!(out, "{line}").is_err() {
            break;
        }
    }
    match outcome {
        Ok(stats) => {
            eprintln!("seed {seed}: {} operations, no violation", stats.operations);
            ExitCode::SUCCESS
        }
        Err(violation) => tell(&violation, operations),
    }
}

fn tell(v: &Violation, operations: u64) -> ExitCode {
    eprintln!("VIOLATION at {} (event {}): {}", v.at, v.event, v.what);
    eprintln!(
        "repeat it with: cargo run --release -p honeycomb-verify --bin simulate -- --seed {} \
         --operations {operations}",
        v.seed
    );
    ExitCode::FAILURE
}

fn many(args: &Args) -> ExitCode {
    let clock = Clock::start();
    let mut entropy = Entropy::system();
    let (mut seeds, mut sum) = (0u64, Stats::default());
    let interactive = std::io::stderr().is_terminal();
    while clock.now().as_millis() < args.seconds * 1000 {
        let seed = entropy.next_u64() >> 16;
        match run_seed(seed, args.operations) {
            Ok(stats) => add(&mut sum, &stats),
            Err(violation) => return tell(&violation, args.operations),
        }
        seeds += 1;
        if interactive {
            eprint!("\r{seeds} seeds, {} operations ", sum.operations);
        }
    }
    if interactive {
        eprintln!();
    }
    if args.json {
        let value = json!({
            "seeds": seeds, "operations": sum.operations, "faults": sum.fault_count(),
            "faults_by_kind": sum.faults, "endings": sum.endings, "grown": sum.grown, "retired": sum.retired,
            "events": sum.events, "violations": 0,
        });
        println!("{value}");
        return ExitCode::SUCCESS;
    }
    println!("faults:  {}", histogram(&sum.faults));
    println!("endings: {}", histogram(&sum.endings));
    println!("blocks sealed with a successor: {}, retired: {}", sum.grown, sum.retired);
    println!(
        "simulated {seeds} seeds, {} operations, {} faults: no violation",
        sum.operations,
        sum.fault_count()
    );
    ExitCode::SUCCESS
}

fn add(sum: &mut Stats, more: &Stats) {
    sum.operations += more.operations;
    sum.grown += more.grown;
    sum.retired += more.retired;
    sum.events += more.events;
    for (name, count) in &more.faults {
        *sum.faults.entry(name).or_default() += count;
    }
    for (name, count) in &more.endings {
        *sum.endings.entry(name).or_default() += count;
    }
}

fn histogram(counts: &std::collections::BTreeMap<&'static str, u64>) -> String {
    let parts: Vec<String> = counts.iter().map(|(name, n)| format!("{name} {n}")).collect();
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}
