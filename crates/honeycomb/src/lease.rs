//! `lease`: shows and renews leases.

use crate::cluster::{Intent, Work};
use crate::config::{Given, InJob};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::{dag, place, size};
use clap::{Args, Subcommand};
use honeycomb_wire::Status;
use serde_json::{Value, json};

/// Shows the remaining lease of a prefix; `lease renew` renews it.
///
/// Showing a lease does not renew it. Write `/renew` for a prefix named `renew`. The command also shows the
/// number of declared readers (`honeycomb readers`) that have not committed: when the last of them commits,
/// the prefix is freed before its lease ends. With --json: `lease_ms`, `remaining_ms` (null when pinned),
/// `pinned`, `readers_left` and `committed` (both null if the job has too many prefixes for one reply).
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  honeycomb put notes:kv color blue
  honeycomb lease notes
  honeycomb lease notes --json
  honeycomb lease renew notes"
)]
pub struct LeaseArgs {
    #[command(subcommand)]
    what: Option<LeaseCommand>,
    #[command(flatten)]
    show: LeaseShowArgs,
}

#[derive(Args)]
struct LeaseShowArgs {
    /// The prefix; `/` is the job's root
    #[arg(value_parser = place::prefix, required = true)]
    address: Option<String>,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

#[derive(Subcommand)]
enum LeaseCommand {
    Renew(Box<RenewArgs>),
}

/// Renews the leases of prefixes.
///
/// A renewal covers the prefix, its direct parents and all its descendants; `/` is the whole job. All
/// addresses are tried, independently of each other. The exit code is that of the first failure (3 if the
/// prefix does not exist, 6 if its lease has ended).
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb put notes:kv color blue
  honeycomb append logs:today app.log
  honeycomb lease renew notes logs
  honeycomb lease renew / --json")]
struct RenewArgs {
    /// The prefixes
    #[arg(value_parser = place::prefix, required = true)]
    address: Vec<String>,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb lease`.
pub fn lease(args: &LeaseArgs) -> CommandResult {
    match &args.what {
        Some(LeaseCommand::Renew(args)) => renew(args),
        None => show(&args.show),
    }
}

fn named(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

fn show(args: &LeaseShowArgs) -> CommandResult {
    let path = args.address.as_deref().expect("clap requires it");
    let work = Work::open(&args.given.settings()?, Intent::Look)?;
    let lease = work.client.lease(work.job, path)?;
    let remaining_ms = (!lease.pinned).then_some(lease.remaining_ms);
    let readers = readers(&work, lease.prefix)?;
    let told = json!({
        "address": named(path), "prefix": lease.prefix, "lease_ms": lease.lease_ms,
        "remaining_ms": remaining_ms, "pinned": lease.pinned,
        "readers_left": readers.map(|(left, _)| left),
        "committed": readers.map(|(_, committed)| committed),
    });
    args.output.print(&told, || {
        let lease = match remaining_ms {
            None => "pinned: never expires".into(),
            Some(left) => format!(
                "lease {}, {} left",
                size::duration(lease.lease_ms as i64),
                size::duration(left)
            ),
        };
        let (left, committed) = readers.unwrap_or_default();
        format!("{}  {lease}{}", named(path), dag::readers(left, committed))
    });
    Ok(())
}

/// The number of declared readers that have not committed, and whether the prefix's own task has committed;
/// `None` when the job has too many prefixes for one reply.
fn readers(work: &Work, prefix: u64) -> CommandResult<Option<(u32, bool)>> {
    match work.client.tree(work.job) {
        Ok(nodes) => {
            let found = nodes.iter().find(|node| node.prefix == prefix);
            Ok(found.map(|node| (node.readers_left, node.committed)))
        }
        Err(e) if e.status == Status::LimitExceeded => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn renew(args: &RenewArgs) -> CommandResult {
    let work = Work::open(&args.given.settings()?, Intent::Look)?;
    let results = work.client.renew(work.job, &args.address)?;
    let mut failed = None;
    let mut lines: Vec<Value> = Vec::new();
    for (path, result) in args.address.iter().zip(&results) {
        let status = Status::from_code(result.status).unwrap_or(Status::Internal);
        if status == Status::Ok {
            lines.push(json!({ "address": named(path), "lease_ms": result.lease_ms }));
            if !args.output.json {
                say!("renewed {} for {}", named(path), size::duration(result.lease_ms as i64));
            }
        } else {
            failed.get_or_insert_with(|| Failure::new(status, result.message.clone()));
            lines.push(json!({
                "address": named(path), "status": status.name(), "message": result.message,
            }));
            if !args.output.json {
                eprintln!("honeycomb: {}: {}", status.name(), result.message);
            }
        }
    }
    if args.output.json {
        say!("{}", json!({ "leases": lines }));
    }
    match failed {
        None => Ok(()),
        Some(first) if args.output.json => Err(first),
        // Each failure has been printed.
        Some(first) => Err(first.already_printed()),
    }
}
