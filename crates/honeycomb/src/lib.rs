//! The `honeycomb` binary: `honeycomb start`, and all other commands.
//!
//! It is a library so that a program can add kinds of structures: it calls `run` with its own registry
//! (docs/structures.md). The benchmarks (`bench/suite`, a program of their own) use its output and errors.
//!
//! There is one file for each noun or family of commands. Settings are in `config`, errors and exit codes in
//! `failure`, and the cluster and the job of a command in `cluster`.
#![forbid(unsafe_code)]

/// Prints a line of results; see `output::print_line`.
#[macro_export]
macro_rules! say {
    () => { $crate::output::print_line(format_args!("")) };
    ($($text:tt)*) => { $crate::output::print_line(format_args!($($text)*)) };
}

mod bench;
mod bucket;
mod cluster;
mod completion;
mod config;
mod cost;
mod dag;
mod demo;
mod doctor;
mod drain;
pub mod failure;
mod file;
mod flushed;
mod jobs;
mod kv;
mod lease;
mod ls;
mod machine;
pub mod output;
mod place;
mod prefix;
mod python;
mod queue;
mod quota;
mod readers;
mod rm;
mod run;
mod scale;
mod serve;
mod show;
pub mod size;
mod stop;
mod transfer;
mod wait;
mod watch;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
pub use cluster::ClusterFile;
pub use config::{disk_shape, unhex};
use failure::{CommandResult, Exit, error_json};
pub use honeycomb_structures::Registry;
pub use output::hex;
pub use serve::fitting_block_size;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

/// Elastic, ephemeral memory for analytics.
///
/// Files, queues and key-value stores that the tasks of a job share, in leased blocks of memory. Data has an
/// address in a job: prefix[/prefix...][:name]. The command line uses the job `cli` by default and creates
/// missing jobs and prefixes. Without --address, every command finds the cluster that `honeycomb start`
/// runs for this user.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

const EXAMPLES: &str = "Examples:
  honeycomb start --background       # a cluster, found by later commands
  honeycomb put notes:kv color blue  # a key and its value
  honeycomb get notes:kv color
  honeycomb append logs < app.log    # any number of writers may append
  honeycomb cat logs
  honeycomb queue put work one two   # first in, first out
  honeycomb queue get work
  honeycomb tree                     # the prefixes of the job
  honeycomb doctor                   # finds problems and says how to fix them
  honeycomb stop

Settings are flags, HONEYCOMB_* variables and one file; `honeycomb config show --origin` shows
the source of each value.

";

/// The help text of each command is at its arguments.
#[derive(Subcommand)]
enum CliCommand {
    Start(Box<serve::StartArgs>),
    Stop(Box<stop::StopArgs>),
    Controller(Box<serve::ControllerArgs>),
    Server(Box<serve::ServerArgs>),
    Drain(Box<drain::DrainArgs>),
    Status(Box<show::StatusArgs>),
    Jobs(Box<jobs::JobsArgs>),
    Cost(Box<cost::CostArgs>),
    Tree(Box<show::TreeArgs>),
    Ls(Box<ls::LsArgs>),
    Du(Box<ls::DuArgs>),
    Lease(Box<lease::LeaseArgs>),
    Prefix(Box<prefix::PrefixArgs>),
    Quota(Box<quota::QuotaArgs>),
    Kv(Box<kv::KvArgs>),
    #[command(about = "Stores a value under a key: short for `kv \
        put`", after_help = kv::PUT_EXAMPLES)]
    Put(Box<kv::KvPutArgs>),
    #[command(about = "Prints the value of a key: short for `kv \
        get`", after_help = kv::GET_EXAMPLES)]
    Get(Box<kv::KvGetArgs>),
    Bucket(Box<bucket::BucketArgs>),
    Queue(Box<queue::QueueArgs>),
    Append(Box<file::AppendArgs>),
    Cat(Box<file::CatArgs>),
    Watch(Box<watch::WatchArgs>),
    Rm(Box<rm::RmArgs>),
    Readers(Box<readers::ReadersArgs>),
    Commit(Box<readers::CommitArgs>),
    Flush(Box<transfer::FlushArgs>),
    Load(Box<transfer::LoadArgs>),
    Flushed(Box<flushed::FlushedArgs>),
    Run(Box<run::RunArgs>),
    Config(Box<config::ConfigArgs>),
    Doctor(Box<doctor::DoctorArgs>),
    Completion(Box<completion::CompletionArgs>),
    Demo(Box<demo::DemoArgs>),
    Bench(bench::BenchArgs),
}

/// The whole command line.
fn definition() -> clap::Command {
    Cli::command().after_help(format!("{EXAMPLES}{}", failure::exit_codes_text()))
}

/// Whether errors are printed as JSON. It inspects the words themselves, because it is also needed when clap
/// refuses the command line.
fn wants_json() -> bool {
    std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json")
}

/// Parses words, the name of the program first. After help or a usage error, which it has printed, it returns
/// the exit code.
pub fn parse<C: FromArgMatches>(
    definition: clap::Command,
    words: impl IntoIterator<Item = OsString>,
) -> Result<C, ExitCode> {
    let parsed = definition.try_get_matches_from(words).and_then(|m| C::from_arg_matches(&m));
    parsed.map_err(|e| {
        if e.use_stderr() && wants_json() {
            let text = e.render().to_string();
            let message = text.trim().strip_prefix("error: ").unwrap_or(&text).trim();
            eprintln!("{}", error_json("Usage", Exit::Usage, message));
            return ExitCode::from(Exit::Usage as u8);
        }
        e.exit()
    })
}

/// The exit code of an outcome; a failure is reported on standard error.
pub fn finish(outcome: CommandResult) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(wants_json()),
    }
}

/// The whole program: parses and executes the command line, and returns the exit code. Memory servers that it
/// starts serve these kinds of structures.
pub fn run(kinds: Registry) -> ExitCode {
    run_words(kinds, std::env::args_os())
}

/// As `run`, for these words; the name of the program is the first.
pub fn run_words(kinds: Registry, words: impl IntoIterator<Item = OsString>) -> ExitCode {
    match parse::<Cli>(definition(), words) {
        Ok(cli) => finish(carry_out(cli.command, &Arc::new(kinds))),
        Err(code) => code,
    }
}

fn carry_out(command: CliCommand, kinds: &Arc<Registry>) -> CommandResult {
    match command {
        CliCommand::Start(args) => serve::start(&args, kinds),
        CliCommand::Stop(args) => stop::stop(&args),
        CliCommand::Controller(args) => serve::controller(&args),
        CliCommand::Server(args) => serve::server(&args, kinds),
        CliCommand::Drain(args) => drain::drain(&args),
        CliCommand::Status(args) => show::status(&args),
        CliCommand::Jobs(args) => jobs::jobs(&args),
        CliCommand::Cost(args) => cost::cost(&args),
        CliCommand::Tree(args) => show::tree(&args),
        CliCommand::Ls(args) => ls::ls(&args),
        CliCommand::Du(args) => ls::du(&args),
        CliCommand::Lease(args) => lease::lease(&args),
        CliCommand::Prefix(args) => prefix::prefix(&args),
        CliCommand::Quota(args) => quota::quota(&args),
        CliCommand::Kv(args) => kv::kv(&args),
        CliCommand::Put(args) => kv::put(&args),
        CliCommand::Get(args) => kv::get(&args),
        CliCommand::Bucket(args) => bucket::bucket(&args),
        CliCommand::Queue(args) => queue::queue(&args),
        CliCommand::Append(args) => file::append(&args),
        CliCommand::Cat(args) => file::cat(&args),
        CliCommand::Watch(args) => watch::watch(&args),
        CliCommand::Rm(args) => rm::rm(&args),
        CliCommand::Readers(args) => readers::readers(&args),
        CliCommand::Commit(args) => readers::commit(&args),
        CliCommand::Flush(args) => transfer::flush(&args),
        CliCommand::Load(args) => transfer::load(&args),
        CliCommand::Flushed(args) => flushed::flushed(&args),
        CliCommand::Run(args) => run::run(&args),
        CliCommand::Config(args) => config::config(&args),
        CliCommand::Doctor(args) => doctor::doctor(&args),
        CliCommand::Completion(args) => completion::completion(&args, definition()),
        CliCommand::Demo(args) => demo::demo(&args),
        CliCommand::Bench(args) => bench::bench(&args),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_sound() {
        super::definition().debug_assert();
    }
}
