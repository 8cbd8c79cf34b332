//! `flush` and `load`: what a prefix holds, to a place outside and back.

use crate::cluster::Work;
use crate::config::{Given, InJob};
use crate::failure::Outcome;
use crate::loading::{self, Load};
use crate::output::Output;
use crate::{place, size};
use clap::Args;
use honeycomb_client::FlushProgress;
use honeycomb_tiers::{Access, Place};
use serde_json::json;
use std::io::{IsTerminal, Write};

/// Writes what a prefix holds to disk or to a bucket, while it goes on.
///
/// PLACE is a path of names below the directory or bucket that the servers were given as flush_root and
/// one of the job's name; or that place as a URL. Files hold at least all that was appended before,
/// queues what was put and not taken, in order, and every slot of a store is as it was at one moment.
/// What was there before is replaced when the new one is whole. The prefix does not expire meanwhile.
/// An interrupt ends the wait and not the flush; --cancel ends the flush.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb flush runs/1 out/1
  honeycomb flush runs/1 s3://lake/honeycomb/cli/out/1
  honeycomb flush runs/1 out/1 --no-wait --json
  honeycomb flushed /var/lib/honeycomb/flush/cli/out/1")]
pub struct FlushArgs {
    /// The prefix
    #[arg(value_parser = place::prefix)]
    address: String,
    /// Where it goes
    place: String,
    /// Begin it and do not wait
    #[arg(long)]
    no_wait: bool,
    /// End the flush of this prefix to this place that is under way; what it has written is deleted
    #[arg(long, conflicts_with = "no_wait")]
    cancel: bool,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Fills a prefix with what a flush holds.
///
/// PLACE is a directory or URL, as of `honeycomb flushed`, read with credentials from the environment.
/// The prefix must not exist. Nothing in it can be opened before all of it is there. Blocks may have
/// another size and be on other servers than those from which it was flushed.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb load /var/lib/honeycomb/flush/cli/out/1 runs/2
  honeycomb load s3://lake/honeycomb/cli/out/1 runs/2 --lease-ms 60000
  honeycomb load flush/cli/out/1 runs/2 --again   # one that was interrupted")]
pub struct LoadArgs {
    /// The directory of the flush, or its URL
    #[arg(value_parser = |text: &str| Place::parse(text))]
    place: Place,
    /// The prefix that is made
    #[arg(value_parser = place::prefix)]
    address: String,
    /// Milliseconds that its lease lasts; without it, the job's
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    lease_ms: u32,
    /// It never expires
    #[arg(long)]
    pinned: bool,
    /// Take the place of a load of this prefix that was not finished
    #[arg(long)]
    again: bool,
    /// Tell on standard error how far it is, a line of JSON each time
    #[arg(long, hide = true)]
    progress: bool,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb flush`.
pub fn flush(args: &FlushArgs) -> Outcome {
    let work = Work::of_token(&args.given.settings()?)?;
    let (client, job) = (&work.client, work.job);
    if args.no_wait || args.cancel {
        let ticket = client.begin_flush(job, &args.address, &args.place)?;
        if args.cancel {
            client.cancel_flush(job, ticket.number)?;
        }
        let did = if args.cancel { "cancelled the flush of" } else { "began to flush" };
        let told = json!({
            "address": args.address, "place": ticket.place, "flush": ticket.number,
            "done": false, "cancelled": args.cancel,
        });
        args.output.tell(&told, || format!("{did} {} to {}", args.address, ticket.place));
        return Ok(());
    }
    let shows = std::io::stderr().is_terminal() && !args.output.json;
    let mut failing = None;
    let mut look = |progress: &FlushProgress| {
        if shows {
            let FlushProgress { parts, parts_done, bytes, .. } = progress;
            eprint!("\r{parts_done} of {parts} blocks, {}   ", size::show(*bytes));
            let _ = std::io::stderr().flush();
        }
        if progress.failing.is_some() && progress.failing != failing {
            failing = progress.failing.clone();
            let why = failing.as_deref().unwrap_or_default();
            eprintln!("{}it is tried again: {why}", if shows { "\n" } else { "" });
        }
        true
    };
    let (ticket, progress) = client.flush_prefix(job, &args.address, &args.place, &mut look)?;
    if shows {
        eprintln!();
    }
    let told = json!({
        "address": args.address, "place": ticket.place, "flush": ticket.number, "done": true,
        "cancelled": false, "parts": progress.parts, "bytes": progress.bytes,
    });
    args.output.tell(&told, || {
        let bytes = size::show(progress.bytes);
        format!(
            "flushed {} to {}: {bytes} of {} blocks",
            args.address, ticket.place, progress.parts
        )
    });
    Ok(())
}

/// `honeycomb load`.
pub fn load(args: &LoadArgs) -> Outcome {
    let work = Work::of_token(&args.given.settings()?)?;
    if let Some((above, _)) = args.address.rsplit_once('/') {
        place::ensure_prefix(&work, above)?;
    }
    let LoadArgs { lease_ms, pinned, again, .. } = *args;
    let load = Load { path: args.address.clone(), lease_ms, pinned, again };
    let look = |done: u64, all: u64| {
        if args.progress {
            eprintln!("{}", json!({ "bytes": done, "of": all }));
        }
    };
    let access = Access::of_environment();
    let loaded = loading::load(&work.client, work.job, &args.place, &access, &load, &look)?;
    let told = json!({
        "place": args.place.to_string(), "address": args.address,
        "structures": loaded.structures, "bytes": loaded.bytes,
    });
    args.output.tell(&told, || {
        let (structures, bytes) = (loaded.structures, size::show(loaded.bytes));
        format!("loaded {structures} structures, {bytes}, into {}", args.address)
    });
    Ok(())
}
