//! `rm`: removes keys, structures and prefixes.

use crate::cluster::{Intent, Work};
use crate::config::{Given, InJob};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::{kv, place};
use clap::Args;
use honeycomb_wire::Status;
use serde_json::json;

/// Removes a structure, a prefix, or a key.
///
/// The removal takes effect at once for all clients, and frees the blocks. With a KEY, the command is the
/// same as `honeycomb kv del`.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb put old/notes:kv color blue
  honeycomb rm old/notes:kv color     # one key
  honeycomb rm old/notes:kv           # the store
  honeycomb rm --prefix old/notes     # the prefix, and all structures in it
  honeycomb rm --recursive old        # a prefix and all its descendants")]
pub struct RmArgs {
    /// The structure, prefix[/prefix...][:name]; or a prefix, with --prefix or --recursive
    #[arg(value_parser = place::structure)]
    address: String,
    /// Delete only this key of the store
    key: Option<String>,
    /// Remove the prefix and all its structures; prefixes below it remain
    #[arg(long, conflicts_with = "key")]
    prefix: bool,
    /// Remove the prefix and all its descendants
    #[arg(long, short, conflicts_with_all = ["key", "prefix"])]
    recursive: bool,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb rm`.
pub fn rm(args: &RmArgs) -> CommandResult {
    let settings = args.given.settings()?;
    let path = match args.prefix || args.recursive {
        true => {
            let wrong = |why| Failure::invalid(format!("'{}': {why}", args.address));
            place::prefix(&args.address).map_err(wrong)?
        }
        false => args.address.clone(),
    };
    let work = Work::open(&settings, Intent::Use)?;
    if let Some(key) = &args.key {
        return kv::delete(&work, &path, std::slice::from_ref(key), false, args.output);
    }
    let prefixes = match () {
        () if args.recursive => remove_below(&work, &path)?,
        () if args.prefix => {
            work.client.remove_prefix(work.job, &path)?;
            1
        }
        () => {
            work.client.remove_structure(work.job, &path)?;
            0
        }
    };
    args.output.print(&json!({ "removed": path, "prefixes": prefixes }), || match prefixes {
        0 => format!("removed {path}"),
        1 => format!("removed the prefix {path}"),
        n => format!("removed the prefix {path} and {} below it", n - 1),
    });
    Ok(())
}

/// Removes a prefix and its descendants, children first; returns their number.
fn remove_below(work: &Work, path: &str) -> CommandResult<usize> {
    // If the prefix has ended, this error says why.
    work.client.lease(work.job, path)?;
    let dag = work.on().dag()?;
    let top = dag.find(path)?;
    let below = dag.below(top);
    for node in below.iter().rev() {
        match work.client.remove_prefix(work.job, &format!("/{}", dag.path(*node))) {
            Ok(()) => {}
            // Expired or removed meanwhile.
            Err(e) if matches!(e.status, Status::Removed | Status::LeaseExpired) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(below.len())
}
