//! `bench neighbours`: the damage one job does to another that shares its controller and memory server.
//!
//! Two clusters run side by side on the same cores. A victim works in the first. An attacker works in the
//! second (the control), and then in the first. The attack uses the same CPU time in both, so that the ratio
//! shows the cost of sharing one cluster.

mod attack;

use super::nodes::Nodes;
use super::process::{Pinning, machine};
use super::report::{Progress, Table, number};
use super::{Pool, Waiting};
use attack::{Attack, Target};
use clap::Args;
use honeycomb::failure::CommandResult;
use honeycomb::output::Output;
use honeycomb::say;
use honeycomb_client::{Client, JobTicket, Kv};
use honeycomb_env::Clock;
use honeycomb_wire::Status;
use honeycomb_wire::messages::PrefixOptions;
use serde_json::{Value, json};
use std::time::Duration;

const POOL: Pool = Pool { memory: 256 << 20, block_size: 1 << 20 };
/// Lease of the victim's prefixes. Every third operation renews them.
const LEASE_MS: u32 = 1000;
/// Prefixes whose leases the victim must renew.
const KEPT: usize = 20;
/// Keys of the victim, and the size of its values.
const KEYS: u64 = 256;
const VALUE: usize = 128;
/// Time for an attack to build up before the victim is measured.
const BUILD_UP: Duration = Duration::from_millis(150);
/// Maximum factor by which the victim's p99 may grow.
const MOST_RATIO: f64 = 2.0;

/// Measures the cost of an attacking job to its neighbours.
///
/// A victim puts and gets small values, creates prefixes and renews leases, one request at a time. Meanwhile
/// another job attacks a controller and a memory server: first, as a control, those of a second cluster on
/// the same cores, then those of the victim's cluster. Each line shows the 99th percentile of the victim's
/// operations in both cases, leases that expired although they were renewed, and the peak memory of the
/// attacked processes. Ratios up to 2 are accepted.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench neighbours --quick --attack connection-churn
  honeycomb bench neighbours --quick --attack unread-replies --json")]
pub struct NeighboursArgs {
    /// Run only these attacks
    #[arg(long, value_enum)]
    attack: Vec<Attack>,
    /// Number of operations of each kind, in all rounds together
    #[arg(long, default_value_t = 21_000)]
    ops: u64,
    /// Number of rounds, each with a control and an attack; figures are medians
    #[arg(long, default_value_t = 7)]
    rounds: u64,
    /// Run only a few operations: a check that it works, not a measurement
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
}

/// The victim's operations, in the order of its figures.
const OPERATIONS: [&str; 3] = ["data", "create", "renewal"];

/// Percentiles of each operation of one measurement, in microseconds.
type Tail = [f64; 3];

/// A well-behaved job.
struct Victim {
    client: Client,
    ticket: JobTicket,
    kv: Kv,
    kept: Vec<String>,
    created: u64,
}

impl Victim {
    fn start(nodes: &Nodes) -> Result<Victim, String> {
        let said = |e: honeycomb_client::Error| e.to_string();
        let (client, ticket) = nodes.job("victim")?;
        client.create_prefix(ticket.job, "data", &[], PrefixOptions::default()).map_err(said)?;
        let kv = client.create_kv(ticket.job, "data:kv", 1, false).map_err(said)?;
        let kept: Vec<String> = (0..KEPT).map(|n| format!("kept-{n}")).collect();
        for path in &kept {
            let options = PrefixOptions { lease_ms: LEASE_MS, ..PrefixOptions::default() };
            client.create_prefix(ticket.job, path, &[], options).map_err(said)?;
        }
        for n in 0..KEYS {
            kv.put(&n.to_le_bytes(), &[7; VALUE]).map_err(said)?;
        }
        Ok(Victim { client, ticket, kv, kept, created: 0 })
    }

    /// Runs this many operations of each kind; answers their percentiles and the number of expired leases.
    fn work(&mut self, ops: u64) -> Result<(Tail, usize), String> {
        let said = |e: honeycomb_client::Error| format!("the victim was refused: {e}");
        let clock = Clock::start();
        let mut times: [Vec<u64>; 3] = Default::default();
        let mut lost = 0;
        let mut value = Vec::new();
        for n in 0..ops {
            let began = clock.now();
            let key = (n % KEYS).to_le_bytes();
            if n % 2 == 0 {
                self.kv.put(&key, &[9; VALUE]).map_err(said)?;
            } else {
                value.clear();
                self.kv.get(&key, &mut value).map_err(said)?;
            }
            let stored = clock.now();
            self.created += 1;
            let (job, path) = (self.ticket.job, format!("made-{}", self.created));
            self.client.create_prefix(job, &path, &[], PrefixOptions::default()).map_err(said)?;
            let created = clock.now();
            let renewed = self.client.renew(job, &self.kept).map_err(said)?;
            let ended = clock.now();
            lost = lost
                .max(renewed.iter().filter(|result| result.status != Status::Ok as u16).count());
            for (times, time) in times.iter_mut().zip([
                stored.since(began),
                created.since(stored),
                ended.since(created),
            ]) {
                times.push(time.as_nanos() as u64);
            }
            // Not measured; it keeps the number of prefixes below the limit of a job.
            self.client.remove_prefix(job, &path).map_err(said)?;
        }
        let tail = times.map(|mut times| {
            times.sort_unstable();
            times.get(times.len() * 99 / 100).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
        });
        Ok((tail, lost))
    }
}

/// One attack: the figures of all rounds, control and attack.
#[derive(Default)]
struct Seen {
    control: Vec<Tail>,
    during: Vec<Tail>,
    lost: usize,
    controller: u64,
    server: u64,
}

fn median(rounds: &[Tail], operation: usize) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(|tail| tail[operation]).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn seen(attack: Attack, rounds: u64, ops: u64, progress: &Progress) -> Result<Seen, String> {
    // Attacker and victim share all cores of the machine.
    let pinning = Pinning::choose(false);
    let start = || Nodes::start(POOL, Waiting::Sleeping, pinning, None, 1);
    let (own, other) = (start()?, start()?);
    let targets = [Target::new(&other, attack)?, Target::new(&own, attack)?];
    let mut victim = Victim::start(&own)?;
    let mut seen = Seen::default();
    for round in 0..rounds {
        // Control and attack alternate as the first measurement of a round.
        for turn in 0..2 {
            let here = (round + turn) % 2 == 1;
            let place = if here { "attack" } else { "control" };
            progress.tell(&format!("{}: round {}, {place}", attack.name(), round + 1));
            let target = &targets[usize::from(here)];
            // Between two measurements, this client renews the leases.
            let paths = victim.kept.clone();
            victim.client.keep(victim.ticket.job, &paths);
            let running = target.begin(attack)?;
            let clock = Clock::start();
            clock.sleep_until(clock.now() + BUILD_UP);
            victim.client.release(victim.ticket.job, &paths);
            let worked = victim.work(ops);
            victim.client.keep(victim.ticket.job, &paths);
            running.end()?;
            let (tail, lost) = worked?;
            if here { &mut seen.during } else { &mut seen.control }.push(tail);
            seen.lost = seen.lost.max(lost);
        }
    }
    (seen.controller, seen.server) = own.peak_resident();
    Ok(seen)
}

/// `honeycomb bench neighbours`.
pub fn run(args: &NeighboursArgs) -> CommandResult {
    let (rounds, ops) = if args.quick { (1, 60) } else { (args.rounds, args.ops) };
    if rounds == 0 || ops < rounds {
        return Err("--rounds must be at least 1, and --ops at least as large as --rounds".into());
    }
    let attacks = if args.attack.is_empty() { Attack::all() } else { args.attack.clone() };
    let progress = Progress::new();
    let mut rows: Vec<Value> = Vec::new();
    for attack in attacks {
        let seen = seen(attack, rounds, ops.div_ceil(rounds), &progress)?;
        for (n, operation) in OPERATIONS.iter().enumerate() {
            let (control, during) = (median(&seen.control, n), median(&seen.during, n));
            rows.push(json!({
                "attack": attack.name(), "operation": operation,
                "victim_p99_control_us": control, "victim_p99_during_us": during,
                "ratio": during / control, "leases_lost": seen.lost,
                "controller_rss_bytes": seen.controller, "server_rss_bytes": seen.server,
                "rounds": rounds, "operations": ops,
            }));
        }
    }
    drop(progress);
    match args.output.json {
        true => rows.iter().for_each(|row| args.output.print(row, String::new)),
        false => print(&rows, rounds, ops),
    }
    Ok(())
}

fn print(rows: &[Value], rounds: u64, ops: u64) {
    say!("{}", machine());
    say!(
        "99th percentiles of a victim's operations, in us: medians of {rounds} rounds, {ops} \
         operations of each kind."
    );
    let mib =
        |row: &Value, key: &str| number(row[key].as_f64().unwrap_or(0.0) / f64::from(1 << 20));
    let head =
        ["attack", "operation", "control", "attacked", "ratio", "leases lost", "controller MiB"];
    let mut table = Table::new(&[&head[..], &["server MiB"]].concat());
    for row in rows {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let figure = |key: &str| number(row[key].as_f64().unwrap_or(f64::NAN));
        table.row(vec![
            text("attack"),
            text("operation"),
            figure("victim_p99_control_us"),
            figure("victim_p99_during_us"),
            figure("ratio"),
            row["leases_lost"].to_string(),
            mib(row, "controller_rss_bytes"),
            mib(row, "server_rss_bytes"),
        ]);
    }
    table.print();
    let over = rows.iter().filter(|row| row["ratio"].as_f64().is_some_and(|r| r > MOST_RATIO));
    say!("{} of {} exceed {MOST_RATIO} times the control.", over.count(), rows.len());
}
