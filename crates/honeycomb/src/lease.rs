//! `lease`: what is left of leases, and renewing them.

use crate::cluster::{Intent, Work};
use crate::config::{Given, InJob};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::{place, size};
use clap::{Args, Subcommand};
use honeycomb_wire::Status;
use serde_json::{Value, json};

/// Shows what is left of a prefix's lease; `lease renew` renews.
///
/// Looking renews nothing. A prefix that is called `renew` is written `/renew`. With --json:
/// `lease_ms`, `remaining_ms` (null when pinned), `pinned`.
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
    let told = json!({
        "address": named(path), "prefix": lease.prefix, "lease_ms": lease.lease_ms,
        "remaining_ms": remaining_ms, "pinned": lease.pinned,
    });
    args.output.tell(&told, || match remaining_ms {
        None => format!("{}  pinned: it does not expire", named(path)),
        Some(left) => format!(
            "{}  lease {}, {} left",
            named(path),
            size::duration(lease.lease_ms as i64),
            size::duration(left)
        ),
    });
    Ok(())
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
