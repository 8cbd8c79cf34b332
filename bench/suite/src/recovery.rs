//! `bench recovery`: the time from the start of a controller until it answers from its recovered state.

use clap::Args;
use honeycomb::failure::{CommandResult, Failure};
use honeycomb::output::Output;
use honeycomb::unhex;
use honeycomb_client::{Client, ClientOptions};
use honeycomb_env::{Clock, Entropy};
use honeycomb_types::JobId;
use honeycomb_wire::messages::{DagNode, PrefixOptions};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// Prefixes of one plan.
const PLAN: u64 = 10_000;
/// Prefixes that share a parent: hierarchies of jobs are wide rather than deep.
const FAN_OUT: u64 = 100;
/// A lease that outlives the measurement.
const LEASE_MS: u32 = 3_600_000;

/// Measures how long a killed controller takes to answer again.
///
/// It creates prefixes, kills the controller with SIGKILL, restarts it with the same data directory, and
/// looks up the last prefix. The time is from the start of the process to the answer. The directory is
/// removed at the end.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench recovery --prefixes 2000 --rounds 2
  honeycomb bench recovery --prefixes 2000 --rounds 1 --json")]
pub struct RecoveryArgs {
    /// Number of prefixes to recover
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    prefixes: u64,
    /// Number of restarts; figures are median, minimum and maximum
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Folder for the data directory: selects the disk to measure
    #[arg(long)]
    within: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A controller process, killed on drop.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(data: &Path, listen: &str) -> CommandResult<(Node, Value)> {
    let mut command = crate::product()?;
    command.args(["controller", "--json", "--listen", listen, "--data-dir"]).arg(data);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let child = command.spawn().map_err(|e| Failure::io("cannot start a controller", &e))?;
    let mut node = Node(child);
    let mut line = String::new();
    let out = node.0.stdout.take().expect("piped");
    let read = BufReader::new(out).read_line(&mut line);
    read.map_err(|e| Failure::io("cannot read the output of the controller", &e))?;
    let told = serde_json::from_str(&line)
        .map_err(|e| format!("the first line of the controller is not JSON: {e}"))?;
    Ok((node, told))
}

fn path_of(i: u64) -> String {
    if i < FAN_OUT { format!("t{i}") } else { format!("t{}/t{i}", i % FAN_OUT) }
}

fn fill(client: &Client, job: JobId, prefixes: u64) -> CommandResult {
    let options = PrefixOptions { lease_ms: LEASE_MS, ..PrefixOptions::default() };
    let mut made = 0;
    while made < prefixes {
        let end = (made + PLAN).min(prefixes);
        let node = |i: u64| {
            let parents = if i < FAN_OUT { vec![] } else { vec![format!("t{}", i % FAN_OUT)] };
            let options = options.clone();
            DagNode { name: format!("t{i}"), parents, options, readers: Vec::new() }
        };
        client.create_hierarchy(job, (made..end).map(node).collect())?;
        made = end;
    }
    Ok(())
}

fn bytes_in(data: &Path) -> u64 {
    let entries = std::fs::read_dir(data).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|m| m.len()).sum()
}

/// `honeycomb bench recovery`.
pub fn run(args: &RecoveryArgs) -> CommandResult {
    let within = args.within.clone().unwrap_or_else(std::env::temp_dir);
    let unique = Entropy::system().next_u64();
    let folder = Folder(within.join(format!("honeycomb-recovery-{unique:x}")));
    let data = folder.0.join("data");
    let (mut node, told) = start(&data, "127.0.0.1:0")?;
    let text = |key: &str| told[key].as_str().unwrap_or_default().to_owned();
    let (address, token) = (text("address"), text("token"));
    let token = unhex(&token)?;
    let options = |token: &[u8]| ClientOptions {
        timeout: Duration::from_secs(120),
        ..ClientOptions::new(address.clone(), token)
    };
    let ticket = Client::new(options(&token)).register_job("recovery", LEASE_MS, 0)?;
    let client = Client::new(options(&ticket.token));
    fill(&client, ticket.job, args.prefixes)?;
    let clock = Clock::start();
    let mut times = Vec::new();
    for _ in 0..args.rounds {
        drop(node);
        let began = clock.now();
        (node, _) = start(&data, &address)?;
        client.lease(ticket.job, &path_of(args.prefixes - 1))?;
        times.push(clock.now().since(began).as_secs_f64() * 1e3);
    }
    let known = Client::new(options(&token)).status()?.prefixes;
    if known != args.prefixes + 1 {
        let made = args.prefixes + 1;
        return Err(format!("only {known} of {made} prefixes were recovered: a defect").into());
    }
    times.sort_by(f64::total_cmp);
    let (least, most) = (times[0], times[times.len() - 1]);
    let median = times[times.len() / 2];
    let bytes = bytes_in(&data);
    let row = json!({
        "prefixes": args.prefixes, "rounds": args.rounds, "data_bytes": bytes,
        "recovery_ms": median, "recovery_ms_min": least, "recovery_ms_max": most,
    });
    args.output.print(&row, || {
        format!(
            "recovery of {} prefixes ({bytes} bytes on disk), from the start of the process to \
             its answer:\n  median {median:.0} ms, minimum {least:.0} ms, maximum {most:.0} ms in \
             {} rounds",
            args.prefixes, args.rounds
        )
    });
    drop(node);
    Ok(())
}
