//! `lease`: what is left of leases, and renewing them.

use crate::cluster::{Intent, Work};
use crate::config::{Given, InJob};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::{dag, place, size};
use clap::{Args, Subcommand};
use honeycomb_wire::Status;
use serde_json::{Value, json};

/// Shows what is left of a prefix's lease; `lease renew` renews.
///
/// Looking renews nothing. A prefix that is called `renew` is written `/renew`. Readers that were
/// declared (`honeycomb readers`) and have not committed are counted: the last of them frees the
/// prefix before its lease ends. With --json: `lease_ms`, `remaining_ms` (null when pinned),
/// `pinned`, `readers_left` and `committed` (both null in a job of too many prefixes for one
/// reply).
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
    what: Option<What>,
    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Args)]
struct ShowArgs {
    /// The prefix; `/` is the job's root
    #[arg(value_parser = place::prefix, required = true)]
    address: Option<String>,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

#[derive(Subcommand)]
enum What {
    Renew(Box<RenewArgs>),
}

/// Renews the leases of prefixes.
///
/// A renewal is for the prefix, its direct parents and all that is below it; `/` is the whole job.
/// Each address succeeds or fails alone: all are tried, and the exit code is that of the first that
/// failed (3 for one that does not exist, 6 for a lease that has ended).
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
pub fn lease(args: &LeaseArgs) -> Outcome {
    match &args.what {
        Some(What::Renew(args)) => renew(args),
        None => show(&args.show),
    }
}

fn named(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

fn show(args: &ShowArgs) -> Outcome {
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
    args.output.tell(&told, || {
        let lease = match remaining_ms {
            None => "pinned: it does not expire".into(),
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

/// How many declared readers a prefix waits for, and whether its own task has committed; `None` when
/// nobody can say, because the job has more prefixes than one reply holds.
fn readers(work: &Work, prefix: u64) -> Outcome<Option<(u32, bool)>> {
    match work.client.tree(work.job) {
        Ok(nodes) => {
            let found = nodes.iter().find(|node| node.prefix == prefix);
            Ok(found.map(|node| (node.readers_left, node.committed)))
        }
        Err(e) if e.status == Status::LimitExceeded => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn renew(args: &RenewArgs) -> Outcome {
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
        // Each has had its own line.
        Some(first) => Err(first.told()),
    }
}
