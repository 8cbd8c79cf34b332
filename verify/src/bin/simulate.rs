//! `make simulate`: runs seeds for the given time, on all cores.
#![forbid(unsafe_code)]

use clap::Parser;
use honeycomb_env::{Clock, Entropy};
use honeycomb_types::Bug;
use honeycomb_verify::{Stats, Violation, World, caught_by, run_seed, seeds_until_caught};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One seed in this many is run twice, and must give the same trace.
const TWICE: u64 = 50;

/// Runs the production state machines in a virtual world, seed after seed, and compares the
/// clients' observations with reference models.
#[derive(Parser)]
struct Args {
    /// Duration of the run in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Run this many seeds, starting at --from, however long that takes
    #[arg(long)]
    seeds: Option<u64>,
    /// First seed of --seeds, --bugs and --histories
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Run only this seed, and print its trace
    #[arg(long)]
    seed: Option<u64>,
    /// Operations of each seed
    #[arg(long, default_value_t = 1000)]
    operations: u64,
    /// Threads; 0 for one on each core
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Report the faults drawn, the states reached and the statuses returned
    #[arg(long)]
    report: bool,
    /// Fail if a fault or state that a long run must reach was never reached
    #[arg(long)]
    strict: bool,
    /// Plant each bug that the simulator can reach, one at a time, and report how many seeds it
    /// took to find it; for the other bugs, name the tests that find them
    #[arg(long)]
    bugs: bool,
    /// Seeds after which --bugs stops searching for a bug
    #[arg(long, default_value_t = 5000)]
    patience: u64,
    /// Plant this bug of the bank in everything that is run
    #[arg(long)]
    bug: Option<String>,
    /// Write the histories of this many keys as JSON lines, for another checker, and stop
    #[arg(long)]
    histories: Option<usize>,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let bug = match &args.bug {
        None => None,
        Some(name) => match Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == *name) {
            Some(bug) => Some(bug),
            None => {
                eprintln!("no bug of the bank is named {name}; --bugs lists them");
                return ExitCode::FAILURE;
            }
        },
    };
    Bug::arm(bug);
    match &args {
        Args { seed: Some(seed), .. } => one(*seed, args.operations),
        Args { bugs: true, .. } => bank(&args),
        Args { histories: Some(count), .. } => histories(&args, *count),
        _ => many(&args, bug),
    }
}

fn threads(args: &Args) -> usize {
    match args.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    }
}

fn one(seed: u64, operations: u64) -> ExitCode {
    let mut world = World::new(seed, true);
    let outcome = world.run_caught(operations);
    let mut out = std::io::stdout().lock();
    for line in world.trace().unwrap_or_default() {
        // The reader closes the pipe when it has read enough.
        if writeln!(out, "{line}").is_err() {
            break;
        }
    }
    match outcome {
        Ok(stats) => {
            let (operations, trace) = (stats.operations, stats.trace);
            eprintln!("seed {seed}: {operations} operations, trace {trace:016x}, no violation");
            ExitCode::SUCCESS
        }
        Err(violation) => tell(&violation, operations),
    }
}

fn tell(v: &Violation, operations: u64) -> ExitCode {
    eprintln!("VIOLATION at {} (event {}): {}", v.at, v.event, v.what);
    eprintln!(
        "repeat it with: cargo run --profile fast -p honeycomb-verify --bin simulate -- --seed {} \
         --operations {operations}",
        v.seed
    );
    ExitCode::FAILURE
}

/// Runs a seed, some of them twice.
fn run(seed: u64, operations: u64, twice: bool) -> Result<Stats, Violation> {
    let stats = run_seed(seed, operations)?;
    if twice {
        let again = run_seed(seed, operations)?;
        if again.trace != stats.trace {
            let what = "the same seed gave another trace (INV-35)".to_owned();
            return Err(Violation { seed, at: Default::default(), event: 0, what });
        }
    }
    Ok(stats)
}

/// The results of all threads so far.
#[derive(Default)]
struct Sum {
    seeds: u64,
    twice: u64,
    stats: Stats,
    violation: Option<Violation>,
    /// Whole minutes of the run that progress was reported for.
    minutes: u64,
}

fn many(args: &Args, bug: Option<Bug>) -> ExitCode {
    let clock = Clock::start();
    let begin = Entropy::system().next_u64() >> 16;
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let sum = Mutex::new(Sum::default());
    let interactive = std::io::stderr().is_terminal();
    let work = || {
        Bug::arm(bug);
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let over = match args.seeds {
                Some(seeds) => n >= seeds,
                None => clock.now().as_millis() >= args.seconds * 1000,
            };
            if over || stop.load(Ordering::Relaxed) {
                return;
            }
            let seed = match args.seeds {
                Some(_) => args.from + n,
                None => Entropy::seeded(begin.wrapping_add(n)).next_u64() >> 16,
            };
            let twice = n.is_multiple_of(TWICE);
            let outcome = run(seed, args.operations, twice);
            let mut sum = sum.lock().expect("no thread panics while it adds");
            match outcome {
                Ok(stats) => {
                    sum.seeds += 1;
                    sum.twice += u64::from(twice);
                    sum.stats.add(&stats);
                }
                Err(violation) => {
                    sum.violation.get_or_insert(violation);
                    stop.store(true, Ordering::Relaxed);
                }
            }
            let minutes = clock.now().as_millis() / 60_000;
            let (seeds, operations) = (sum.seeds, sum.stats.operations);
            if interactive {
                eprint!("\r{seeds} seeds, {operations} operations ");
            } else if minutes > std::mem::replace(&mut sum.minutes, minutes) {
                eprintln!("{seeds} seeds, {operations} operations after {minutes} min");
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads(args) {
            scope.spawn(work);
        }
    });
    if interactive {
        eprintln!();
    }
    let sum = sum.into_inner().expect("all threads have ended");
    if let Some(violation) = &sum.violation {
        return tell(violation, args.operations);
    }
    conclude(args, &sum, clock)
}

fn conclude(args: &Args, sum: &Sum, clock: Clock) -> ExitCode {
    let Sum { seeds, twice, stats, .. } = sum;
    let missed = stats.missed();
    let seconds = clock.now().as_millis() as f64 / 1000.0;
    let core_ms = seconds * 1000.0 * threads(args) as f64 / (*seeds + twice).max(1) as f64;
    if args.json {
        let value = json!({
            "seeds": seeds, "operations": stats.operations, "faults": stats.fault_count(),
            "faults_by_kind": stats.faults, "states": stats.states, "endings": stats.endings,
            "classes": stats.classes, "grown": stats.grown, "retired": stats.retired,
            "commands": stats.commands, "histories": stats.histories, "events": stats.events,
            "virtual_ms": stats.virtual_ms, "seconds": seconds, "core_ms_per_seed": core_ms,
            "run_twice": twice, "never_reached": missed, "violations": 0,
        });
        println!("{value}");
    } else {
        if args.report {
            report(stats, *seeds);
        }
        println!("faults:  {}", histogram(&stats.faults));
        println!("endings: {}", histogram(&stats.endings));
        println!(
            "{} commands agreed with the model, {} histories explained, {} blocks grown, {} \
             retired, {:.0} virtual s in {seconds:.0} s, {core_ms:.1} ms of a core per seed, \
             {twice} seeds run twice",
            stats.commands,
            stats.histories,
            stats.grown,
            stats.retired,
            stats.virtual_ms as f64 / 1000.0,
        );
    }
    if args.strict && !missed.is_empty() {
        missed.iter().for_each(|missed| eprintln!("MISSED: {missed}"));
        return ExitCode::FAILURE;
    }
    if !args.json {
        println!(
            "simulated {seeds} seeds, {} operations, {} faults: no violation",
            stats.operations,
            stats.fault_count()
        );
    }
    ExitCode::SUCCESS
}

/// Prints the draws of a run: classes of faults and pairs of them, faults, states and endings.
fn report(stats: &Stats, seeds: u64) {
    println!("runs with a class of faults, of {seeds}:");
    stats.classes.iter().for_each(|(name, n)| println!("  {n:>9} {name}"));
    let mut pairs: Vec<_> = stats.pairs.iter().collect();
    pairs.sort_by_key(|(pair, n)| (**n, **pair));
    println!("pairs of classes: {}; drawn least often:", pairs.len());
    for ((a, b), n) in pairs.iter().take(5) {
        println!("  {n:>9} {a} with {b}");
    }
    let lists = [
        ("faults", &stats.faults),
        ("states that must be reached", &stats.states),
        ("endings of operations", &stats.endings),
    ];
    for (what, counts) in lists {
        println!("{what}:");
        counts.iter().for_each(|(name, n)| println!("  {n:>9} {name}"));
    }
    println!("crash cells of moves: {}; reached least often:", stats.cells.len());
    let mut cells: Vec<_> = stats.cells.iter().collect();
    cells.sort_by_key(|(cell, n)| (**n, **cell));
    for (cell, n) in cells.iter().take(5) {
        println!("  {n:>9} {cell}");
    }
    println!("runs with an export beside another use of its block, begun or refused:");
    for ((present, new), n) in &stats.overlaps {
        println!("  {n:>9} {new:?} beside {present:?}");
    }
    for missed in stats.missed() {
        println!("MISSED: {missed}");
    }
}

fn histogram(counts: &BTreeMap<&'static str, u64>) -> String {
    let parts: Vec<String> = counts.iter().map(|(name, n)| format!("{name} {n}")).collect();
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}

/// Plants every bug of the bank that the simulator can reach, one at a time.
fn bank(args: &Args) -> ExitCode {
    let patience = args.patience;
    let bugs: Vec<Bug> = Bug::ALL.into_iter().filter(|bug| caught_by(*bug).is_none()).collect();
    let next = AtomicU64::new(0);
    let found = Mutex::new(BTreeMap::new());
    let work = || {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed) as usize;
            let Some(bug) = bugs.get(n).copied() else { return };
            let caught = seeds_until_caught(bug, args.from, patience, args.operations);
            match &caught {
                Some(violation) => eprintln!("{bug:?}: seed {}", violation.seed),
                None => eprintln!("{bug:?}: not caught"),
            }
            found.lock().expect("no thread panics while it adds").insert(n, (bug, caught));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads(args) {
            scope.spawn(work);
        }
    });
    let found = found.into_inner().expect("all threads have ended");
    let mut seeds = Vec::new();
    let mut missed = 0;
    println!("| Bug | Seeds | Seen as |\n| --- | --- | --- |");
    for (bug, caught) in found.values() {
        match caught {
            Some(violation) => {
                let took = violation.seed - args.from + 1;
                seeds.push(took);
                let what: String = violation.what.chars().take(100).collect();
                println!("| `{bug:?}` | {took} | {} |", what.replace('|', "/"));
            }
            None => {
                missed += 1;
                println!("| `{bug:?}` | over {patience} | not caught |");
            }
        }
    }
    for bug in Bug::ALL {
        if let Some(file) = caught_by(bug) {
            println!("| `{bug:?}` | none | left to the tests in `{file}` |");
        }
    }
    seeds.sort_unstable();
    let median = seeds.get(seeds.len() / 2).copied().unwrap_or(0);
    let most = seeds.last().copied().unwrap_or(0);
    println!(
        "{} of {} bugs caught; seeds needed: median {median}, most {most}",
        seeds.len(),
        found.len()
    );
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints histories of keys with our verdict on each. So that both verdicts occur, each is repeated
/// with one result changed.
fn histories(args: &Args, count: usize) -> ExitCode {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut left = count;
    for seed in args.from.. {
        let lines = honeycomb_verify::histories_of(seed, args.operations);
        for line in lines.into_iter().take(left) {
            if writeln!(out, "{line}").is_err() {
                return ExitCode::SUCCESS;
            }
            left -= 1;
        }
        if left == 0 {
            break;
        }
    }
    match out.flush() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("the histories cannot be written: {e}");
            ExitCode::FAILURE
        }
    }
}
