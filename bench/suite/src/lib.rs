//! The benchmarks of Honeycomb, `honeycomb bench`: they measure this build on this machine.
//!
//! Every measurement runs against its own cluster in a child process, so that the CPU time of server and
//! client can be distinguished. Compared systems alternate round by round: on a machine with other users only
//! ratios of neighbouring rounds are meaningful.

#![forbid(unsafe_code)]

mod catalog;
mod cluster;
mod controller;
mod disk;
mod elasticity;
mod file;
mod flush;
mod growth;
mod kv;
mod leases;
pub mod measure;
mod memory;
pub mod native;
mod neighbours;
mod nodes;
pub mod plot;
mod pressure;
pub mod process;
mod queue;
mod recovery;
pub mod redis;
mod repartition;
pub mod report;
mod sensitivity;
pub mod socket;
mod sort;
mod spill;
mod trace;
mod watch;
mod wire;

pub use kv::noise;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use honeycomb::failure::CommandResult;
use honeycomb::output::Output;
use honeycomb::size;
use std::ffi::OsString;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Measures this build on this machine: latency percentiles, throughput, server CPU.
///
/// Each measurement runs against its own cluster and leaves nothing behind. On a machine with other users,
/// only ratios of neighbouring rounds are meaningful.
#[derive(Parser)]
#[command(
    name = "honeycomb bench",
    version,
    propagate_version = true,
    after_help = "Examples:
  honeycomb bench kv --quick --ops 200
  honeycomb bench queue --quick --ops 200
  honeycomb bench file --quick --ops 200 --stream 4MiB
  honeycomb bench elasticity --quick --structure file --out figures"
)]
struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Kv(kv::KvArgs),
    Queue(queue::QueueArgs),
    File(file::FileArgs),
    Controller(controller::ControllerArgs),
    Catalog(catalog::CatalogArgs),
    Leases(leases::LeasesArgs),
    Elasticity(elasticity::ElasticityArgs),
    Growth(growth::GrowthArgs),
    Repartition(repartition::RepartitionArgs),
    Pressure(pressure::PressureArgs),
    Sensitivity(sensitivity::SensitivityArgs),
    Sort(sort::SortArgs),
    Spill(spill::SpillArgs),
    Flush(flush::FlushArgs),
    Recovery(recovery::RecoveryArgs),
    Neighbours(neighbours::NeighboursArgs),
}

/// The options of every measurement.
#[derive(Args, Clone)]
struct Common {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Maximum number of operations in each measurement
    #[arg(long)]
    ops: Option<u64>,
    /// Number of measurements of each kind; figures are median, minimum and maximum
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Run for only a few seconds: a check that it works, not a measurement
    #[arg(long)]
    quick: bool,
    /// Number of cores that serve requests
    #[arg(long, default_value_t = 1)]
    shards: u8,
    /// How both sides wait: asleep, or polling for 50 us first
    #[arg(long, value_enum, default_value_t = WaitingArg::Both)]
    waiting: WaitingArg,
    /// The transport between clients and servers, also for the peer
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    transport: Transport,
    /// Do not pin server and client to cores
    #[arg(long)]
    no_pin: bool,
    #[command(flatten)]
    output: Output,
}

/// The pool of the measured cluster.
#[derive(Args, Clone, Copy)]
pub struct Pool {
    /// Memory for blocks; only written pages become resident
    #[arg(long, value_parser = size::parse, default_value = "4GiB")]
    pub memory: u64,
    /// Size of a block
    #[arg(long, value_parser = size::parse, default_value = "128MiB")]
    pub block_size: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WaitingArg {
    Sleeping,
    Polling,
    Both,
}

/// The transport between clients and servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// TCP over loopback.
    Tcp,
    /// The Unix socket of the server.
    Unix,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Unix => "unix",
        }
    }
}

/// How both sides wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Sleeping at once.
    Sleeping,
    /// Polling for a short time first.
    Polling,
}

impl Waiting {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Waiting::Sleeping => "sleeping",
            Waiting::Polling => "polling",
        }
    }

    /// The polling time: the default of client and server, or zero.
    pub fn spin(self) -> Duration {
        match self {
            Waiting::Sleeping => Duration::ZERO,
            Waiting::Polling => Duration::from_micros(50),
        }
    }
}

impl Common {
    /// The effective options: `--quick` shortens the run.
    fn settled(&self) -> Result<Common, String> {
        let mut common = self.clone();
        if common.quick {
            common.seconds = common.seconds.min(0.05);
            common.rounds = common.rounds.min(2);
        }
        if !(common.seconds > 0.0 && common.seconds < 3600.0) || common.rounds == 0 {
            let text = "--seconds must be above 0 and below 3600, and --rounds at least 1";
            return Err(text.into());
        }
        Ok(common)
    }

    fn waitings(&self) -> &'static [Waiting] {
        match self.waiting {
            WaitingArg::Sleeping => &[Waiting::Sleeping],
            WaitingArg::Polling => &[Waiting::Polling],
            WaitingArg::Both => &[Waiting::Sleeping, Waiting::Polling],
        }
    }

    fn limit(&self) -> measure::Limit {
        let time = Duration::from_secs_f64(self.seconds);
        measure::Limit { time, ops: self.ops.unwrap_or(u64::MAX) }
    }
}

/// The role in which this program is the measured one: `PROGRAM product start ...`.
pub const PRODUCT: &str = "product";

/// A command that runs the product in a process of its own. The words of `honeycomb` follow.
fn product() -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let mut command = Command::new(program);
    command.arg(PRODUCT);
    Ok(command)
}

/// The whole program: parses and executes words, the name of a benchmark first, and returns the exit code. A
/// program that calls it runs `honeycomb` in the role `PRODUCT`.
pub fn run(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let words = std::iter::once("honeycomb bench".into()).chain(words);
    match honeycomb::parse::<BenchArgs>(BenchArgs::command(), words) {
        Ok(args) => honeycomb::finish(bench(&args)),
        Err(code) => code,
    }
}

fn bench(args: &BenchArgs) -> CommandResult {
    match &args.what {
        What::Kv(args) => kv::run(args),
        What::Queue(args) => queue::run(args),
        What::File(args) => file::run(args),
        What::Controller(args) => controller::run(args),
        What::Catalog(args) => catalog::run(args),
        What::Leases(args) => leases::run(args),
        What::Elasticity(args) => elasticity::run(args),
        What::Growth(args) => growth::run(args),
        What::Repartition(args) => repartition::run(args),
        What::Pressure(args) => pressure::run(args),
        What::Sensitivity(args) => sensitivity::run(args),
        What::Sort(args) => sort::run(args),
        What::Spill(args) => spill::run(args),
        What::Flush(args) => flush::run(args),
        What::Recovery(args) => recovery::run(args),
        What::Neighbours(args) => neighbours::run(args),
    }
}
