//! `bench/compare`: Honeycomb, its peers and the limits of this machine, side by side.
//!
//! One program in several roles. Without a role, it is the matrix itself (`matrix`, `run`, `report`): it
//! starts servers and clients as separate processes, alternates between them, and reads their resource use
//! from the kernel. With `--against`, it compares this build with another one (`against`). The clients in
//! Rust (`worker`, `flood`), the loop without a store (`idle`) and the measured cluster are the same program,
//! too.
#![forbid(unsafe_code)]

mod against;
mod build;
mod bursts;
mod catalog;
mod contract;
mod figures;
mod flood;
mod format;
mod idle;
mod matrix;
mod memcached;
mod pages;
mod report;
mod run;
mod servers;
mod stores;
mod tools;
mod weight;
mod worker;

use against::{Asked, That};
use build::Build;
use clap::Parser;
use honeycomb_bench::process::{Pinning, machine};
use honeycomb_bench::report::Progress;
use matrix::{Group, Scale};
use pages::TouchCost;
use run::{Effort, Runner};
use std::path::PathBuf;
use std::process::ExitCode;
use tools::Tools;

/// Compares this build with redis-server, memcached and the limits of this machine.
///
/// Systems alternate round by round, and ratios are those of neighbouring rounds: on a machine with other
/// users, only ratios are meaningful. The program starts all servers and clients and ends them with the run.
///
/// With --against, it compares this build with the build of another revision instead, without peers. Both
/// builds alternate, and each row has the median of its paired ratios with a 95 % interval. The program fails
/// if a whole interval exceeds 1.03 for throughput, latency (median and p99), server CPU or resident memory,
/// twice in a row. Benchmarks of whole processes (repartition, spill, flush, elasticity, growth) are rows,
/// too.
#[derive(Parser)]
#[command(
    name = "bench/compare",
    after_help = "Examples:
  bench/compare                        # about ten minutes
  bench/compare --quick                # some seconds, to see that it runs
  bench/compare --rows 'kv many' --rounds 7
  bench/compare --full --out docs/figures --json > matrix.jsonl
  bench/compare --against main --list             # rows, and about how long they take
  bench/compare --against HEAD~1 --rows 'kv sync get 64 B,queue sync'
  bench/compare --against v0.1.0 --rows repartition --pairs 30"
)]
struct Args {
    /// Measure every size, number of connections and direction
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Run only a few short rows: a check that it works, not a measurement
    #[arg(long)]
    quick: bool,
    /// Only groups whose name contains one of these words; with --against, only such rows
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Print only the names of the groups, or of the rows with --against
    #[arg(long)]
    list: bool,
    /// Compare with the build of this revision, built in a worktree under target/against; an existing build
    /// of the same commit is reused
    #[arg(long, value_name = "REVISION", group = "other")]
    against: Option<String>,
    /// Compare with this honeycomb-compare binary, without the rows in Python
    #[arg(long, value_name = "PATH", group = "other")]
    against_binary: Option<PathBuf>,
    /// Number of pairs of rounds for each row, at least 15; with --against
    #[arg(long, requires = "other", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: Option<u32>,
    /// Number of counted rounds
    #[arg(long, conflicts_with = "other")]
    rounds: Option<u32>,
    /// Seconds of each round
    #[arg(long)]
    seconds: Option<f64>,
    /// Print a line of JSON for each cell and each ratio, instead of tables
    #[arg(long)]
    json: bool,
    /// Draw plots in this folder, and write the lines of JSON there, too (compare.jsonl)
    #[arg(long, conflicts_with = "other")]
    out: Option<PathBuf>,
    /// Do not pin server and client to cores
    #[arg(long)]
    no_pin: bool,
}

/// Default seconds of a round.
const SECONDS: f64 = 0.12;

impl Args {
    fn scale(&self) -> Scale {
        match (self.quick, self.full) {
            (true, _) => Scale::Quick,
            (_, true) => Scale::Full,
            _ => Scale::Usual,
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|word| name.contains(word.as_str()))
    }

    fn groups(&self) -> Vec<Group> {
        let all = matrix::groups(self.scale());
        all.into_iter().filter(|group| self.wants(&group.name)).collect()
    }

    /// The comparison with another build, if requested.
    fn asked(&self) -> Option<Asked<'_>> {
        let that = match (&self.against, &self.against_binary) {
            (Some(revision), _) => That::Revision(revision.clone()),
            (_, Some(path)) => That::Binary(path.clone()),
            _ => return None,
        };
        Some(Asked {
            that,
            rows: &self.rows,
            scale: self.scale(),
            pairs: self.pairs,
            seconds: self.effort().seconds,
            pin: !self.no_pin,
            json: self.json,
            list: self.list,
        })
    }

    fn effort(&self) -> Effort {
        let (rounds, seconds) = match self.scale() {
            Scale::Quick => (1, 0.02),
            _ => (5, SECONDS),
        };
        Effort { rounds: self.rounds.unwrap_or(rounds), seconds: self.seconds.unwrap_or(seconds) }
    }
}

/// Lines of JSON: printed if requested, and always retained.
struct Lines {
    shown: bool,
    kept: String,
}

impl Lines {
    fn put(&mut self, line: impl std::fmt::Display) {
        let line = line.to_string();
        if self.shown {
            println!("{line}");
        }
        self.kept += &line;
        self.kept.push('\n');
    }

    fn verdicts(&mut self, judged: &[report::Verdict]) {
        judged.iter().for_each(|verdict| self.put(verdict.json()));
    }
}

fn compare(args: &Args) -> Result<(), String> {
    let effort = args.effort();
    if effort.rounds == 0 || !(effort.seconds > 0.0 && effort.seconds < 3600.0) {
        return Err("--seconds must be above 0 and --rounds at least 1".into());
    }
    match args.asked() {
        Some(asked) => against::run(&asked),
        None => matrix(args, effort),
    }
}

/// Compares Honeycomb with its peers and the limits of the machine.
fn matrix(args: &Args, effort: Effort) -> Result<(), String> {
    let groups = args.groups();
    let apart: Vec<&str> =
        [weight::NAME, catalog::NAME].into_iter().filter(|name| args.wants(name)).collect();
    if args.list {
        groups.iter().for_each(|group| println!("{}", group.name));
        apart.iter().for_each(|name| println!("{name}"));
        return Ok(());
    }
    if groups.is_empty() && apart.is_empty() {
        return Err("no group matches --rows; --list prints the names".into());
    }
    let (own, tools) = (Build::own()?, Tools::gather()?);
    let pinning = Pinning::choose(!args.no_pin);
    let mut lines = Lines { shown: args.json, kept: String::new() };
    introduce(&mut lines, &tools, pinning, effort);
    pinning.for_client();
    let progress = Progress::new();
    let mut runner = Runner::new(&own, &tools, pinning, effort);
    let mut verdicts = Vec::new();
    let mut measured = Vec::new();
    for (at, group) in groups.into_iter().enumerate() {
        let cells = runner.group(&group, &mut |cell, round| {
            let who = report::who(cell);
            progress.tell(&format!("{}: {}: {who}, round {round}", at + 1, group.name));
        });
        progress.tell("");
        let judged = report::verdicts(&group, &cells);
        for (cell, shown) in group.cells.iter().zip(&cells) {
            lines.put(report::cell_json(&group, cell, shown));
        }
        if !args.json {
            report::print_cells(&group, &cells);
        }
        lines.verdicts(&judged);
        verdicts.extend(judged);
        measured.push((group, cells));
    }
    if apart.contains(&weight::NAME) {
        progress.tell(weight::NAME);
        let weights = weight::measure(&mut runner, args.scale());
        let judged = vec![weight::verdict(&weights)];
        weight::lines(&weights).iter().for_each(|line| lines.put(line));
        if !args.json {
            let head = ["system", "resident bytes per stored byte"];
            report::print_pairs(weight::NAME, head, weight::show(&weights));
        }
        lines.verdicts(&judged);
        verdicts.extend(judged);
    }
    if apart.contains(&catalog::NAME) {
        progress.tell(catalog::NAME);
        let catalog = catalog::measure(&runner, args.scale());
        let judged = catalog::verdicts(&catalog);
        match &catalog {
            Ok(catalog) => {
                catalog.lines().iter().for_each(|line| lines.put(line));
                if !args.json {
                    let head = ["operation", "per second of the controller's core"];
                    report::print_pairs(catalog::NAME, head, catalog.show());
                }
            }
            Err(why) => eprintln!("bench/compare: {}: {why}", catalog::NAME),
        }
        lines.verdicts(&judged);
        verdicts.extend(judged);
    }
    progress.tell("");
    if !args.json {
        report::print_verdicts(&verdicts);
    }
    if let Some(folder) = &args.out {
        let kept = folder.join("compare.jsonl");
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&kept, &lines.kept))
            .map_err(|e| format!("{}: {e}", kept.display()))?;
        for name in figures::draw_all(folder, &measured)? {
            eprintln!("bench/compare: {}", folder.join(name).display());
        }
    }
    Ok(())
}

/// Prints the machine, the versions of the peers, and the missing peers.
fn introduce(lines: &mut Lines, tools: &Tools, pinning: Pinning, effort: Effort) {
    let peer = |name: &str, version: &Option<String>| match version {
        Some(version) => format!("{name} {version}"),
        None => format!("NO {}: its rows are left out", name.to_uppercase()),
    };
    let touching = match TouchCost::measure() {
        Ok(cost) => cost.show(),
        Err(e) => format!("new memory cannot be mapped: {e}"),
    };
    let about = format!(
        "{}; {touching}; {}; {}; {}; {} rounds of {} s",
        machine(),
        pinning.show(),
        peer("redis-server", &tools.redis),
        peer("memcached", &tools.memcached),
        effort.rounds,
        effort.seconds
    );
    lines.put(serde_json::json!({ "about": about }));
    if !lines.shown {
        println!("{about}");
    }
    for missing in [tools.limit().err(), tools.hiredis().err()].into_iter().flatten() {
        eprintln!("bench/compare: {missing}");
    }
}

fn main() -> ExitCode {
    let role = std::env::args().nth(1).unwrap_or_default();
    let done = match &role[..] {
        "worker" => contract::serve(worker::set_up),
        "flood" => contract::serve(flood::set_up),
        "idle" => {
            let word = |at| std::env::args().nth(at).unwrap_or_default();
            idle::serve(&word(2), word(3).parse().unwrap_or(0))
        }
        // The measured program, in the roles that users have.
        "start" | "controller" | "server" => {
            return honeycomb::run(honeycomb::Registry::builtin());
        }
        honeycomb_bench::PRODUCT => {
            return honeycomb::run_words(
                honeycomb::Registry::builtin(),
                std::env::args_os().skip(1),
            );
        }
        "bench" => return honeycomb_bench::run(std::env::args_os().skip(2)),
        _ => compare(&Args::parse()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench/compare: {error}");
            ExitCode::FAILURE
        }
    }
}
