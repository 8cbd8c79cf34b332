//! `demo`: the word count of the Python package.

use crate::config::{ForDemo, Given};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::python;
use clap::Args;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Counts the words of a book on elastic memory, and shows the job's memory over time.
///
/// Runs a MapReduce job of the Python package on an embedded cluster, a separate process that ends with the
/// demo: no running cluster is needed. The text is the King James Bible, or that of --input.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb demo
  honeycomb demo --input book.txt --scale 2 --workers 2
  honeycomb demo --json")]
pub struct DemoArgs {
    /// A text file to use instead, plain or .gz
    #[arg(long, value_name = "PATH")]
    input: Option<PathBuf>,
    /// Count the text N times
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    scale: u32,
    /// Number of worker processes (default: one per core)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    workers: Option<u32>,
    /// Size of a block: a power of two from 64KiB to 16MiB; each file of the job uses at least one block
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    block_size: String,
    #[command(flatten)]
    given: Given<ForDemo>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb demo`: replaces itself by the Python that has the package.
pub fn demo(args: &DemoArgs) -> CommandResult {
    let (python, _) = python::find(args.given.settings()?.python())?;
    let mut command = Command::new(&python);
    command.args(["-m", "honeycomb.demo", "--scale", &args.scale.to_string()]);
    command.arg("--block-size").arg(&args.block_size);
    if let Some(path) = &args.input {
        command.arg("--input").arg(path);
    }
    if let Some(workers) = args.workers {
        command.arg("--workers").arg(workers.to_string());
    }
    if args.output.json {
        command.arg("--json");
    }
    let e = command.exec();
    Err(Failure::io(format_args!("cannot run {}", python.display()), &e))
}
