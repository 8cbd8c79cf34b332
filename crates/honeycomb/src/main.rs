//! The one binary: `honeycomb start`, and the tools around it.
#![forbid(unsafe_code)]

/// Prints a line of results. A reader that has seen enough ends the program quietly; results that
/// cannot be written end it with an error, because a script must not take them for written.
macro_rules! say {
    () => { crate::print_line(format_args!("")) };
    ($($text:tt)*) => { crate::print_line(format_args!($($text)*)) };
}

mod bench;
mod cluster;
mod data;
mod demo;
mod run;
mod serve;
mod show;
mod size;

use clap::{Args, Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// Elastic, ephemeral memory for analytics: files and key-value stores that tasks share, leased by
/// the block.
#[derive(Parser)]
#[command(version, propagate_version = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  honeycomb start --background           a cluster on this machine, found by every later command
  honeycomb put notes:kv color blue      a key and its value
  honeycomb get notes:kv color
  honeycomb append logs < app.log        server-side append; any number of writers
  honeycomb cat logs
  honeycomb tree cli                     the job that the command line works in
  honeycomb run job.py -- input.txt      a Python script, with the cluster in its environment
  honeycomb demo                         count the words of a book on elastic memory";

#[derive(Subcommand)]
enum Command {
    /// Starts a controller and a memory server on this machine
    Start(serve::StartArgs),
    /// Stops the cluster that `start` started
    Stop(Output),
    /// Starts a controller alone
    Controller(serve::ControllerArgs),
    /// Starts a memory server and joins a controller
    Server(serve::ServerArgs),
    /// Shows servers, memory and totals
    Status(show::StatusArgs),
    /// Shows a job's address DAG: leases counting down, structures, blocks, bytes
    Tree(show::TreeArgs),
    /// Stores a value under a key
    Put(data::PutArgs),
    /// Prints the value of a key
    Get(data::GetArgs),
    /// Appends to a file what a file or standard input holds
    Append(data::AppendArgs),
    /// Prints a file
    Cat(data::CatArgs),
    /// Removes a key, a structure, or a prefix
    Rm(data::RmArgs),
    /// Runs a Python script, with the cluster in its environment
    Run(run::RunArgs),
    /// Counts the words of a book on elastic memory, with a job's memory over time
    Demo(demo::DemoArgs),
    /// Measures this build on this machine: latency percentiles, throughput, server CPU
    Bench(bench::BenchArgs),
}

/// How results are printed.
#[derive(Args, Clone, Copy)]
struct Output {
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// What went wrong, for the person at the terminal.
type Outcome = Result<(), String>;

fn print_line(text: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if let Err(e) = writeln!(out, "{text}").and_then(|()| out.flush()) {
        end_of_output(&e);
    }
}

fn end_of_output(e: &std::io::Error) -> ! {
    if e.kind() == std::io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    eprintln!("honeycomb: the results cannot be written: {e}");
    std::process::exit(1);
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Start(args) => serve::start(&args),
        Command::Stop(output) => serve::stop(output),
        Command::Controller(args) => serve::controller(&args),
        Command::Server(args) => serve::server(&args),
        Command::Status(args) => show::status(&args),
        Command::Tree(args) => show::tree(&args),
        Command::Put(args) => data::put(&args),
        Command::Get(args) => data::get(&args),
        Command::Append(args) => data::append(&args),
        Command::Cat(args) => data::cat(&args),
        Command::Rm(args) => data::rm(&args),
        Command::Run(args) => run::run(&args),
        Command::Demo(args) => demo::demo(&args),
        Command::Bench(args) => bench::bench(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("honeycomb: {message}");
            ExitCode::FAILURE
        }
    }
}
