//! `readers` and `commit`: data that is freed when its readers have finished.

use crate::cluster::{Intent, Work};
use crate::config::{Given, InJob};
use crate::failure::CommandResult;
use crate::output::Output;
use crate::place;
use clap::Args;
use serde_json::json;

/// Declares which tasks will read a prefix.
///
/// When the last of these tasks has committed (`honeycomb commit`), the prefix is freed at once, before its
/// lease ends. READER is the prefix of a task; the command adds to the readers declared before. With --json:
/// `readers_left`, 0 if the prefix was freed or has no declared readers.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb append map/part:out app.log
  honeycomb append reduce:log app.log
  honeycomb readers map/part reduce
  honeycomb lease map/part
  honeycomb commit reduce                 # frees map/part")]
pub struct ReadersArgs {
    /// The prefix that is read
    #[arg(value_parser = place::prefix)]
    address: String,
    /// The prefixes of the tasks that read it
    #[arg(value_parser = place::prefix, required_unless_present = "replace")]
    reader: Vec<String>,
    /// Replace the readers declared before; without a READER, no reader remains declared
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Declares that the task of a prefix has finished.
///
/// The task will not read its inputs again: every prefix whose last declared reader it was is freed at once.
/// The task's own prefix is not freed. Committing twice is not an error. With --json: `freed`, the number of
/// freed prefixes.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb append sort/in app.log
  honeycomb append sort/out app.log
  honeycomb readers sort/in sort/out
  honeycomb commit sort/out
  honeycomb commit sort/out --json")]
pub struct CommitArgs {
    /// The prefix of the task
    #[arg(value_parser = place::prefix)]
    address: String,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb readers`.
pub fn readers(args: &ReadersArgs) -> CommandResult {
    let work = Work::open(&args.given.settings()?, Intent::Use)?;
    let left = work.client.declare_readers(work.job, &args.address, &args.reader, args.replace)?;
    let report = json!({ "address": args.address, "readers_left": left });
    args.output.print(&report, || match left {
        0 => format!("{}: no reader is left", args.address),
        1 => format!("{}: freed when 1 reader has committed", args.address),
        n => format!("{}: freed when {n} readers have committed", args.address),
    });
    Ok(())
}

/// `honeycomb commit`.
pub fn commit(args: &CommitArgs) -> CommandResult {
    let work = Work::open(&args.given.settings()?, Intent::Use)?;
    let freed = work.client.commit_task(work.job, &args.address)?;
    let report = json!({ "address": args.address, "freed": freed });
    args.output.print(&report, || match freed {
        1 => format!("committed {}; 1 prefix was freed", args.address),
        n => format!("committed {}; {n} prefixes were freed", args.address),
    });
    Ok(())
}
