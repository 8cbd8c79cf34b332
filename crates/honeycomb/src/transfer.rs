//! `flush` and `load`: the contents of a prefix, to an external place and back.

use crate::cluster::Work;
use crate::config::{Given, InJob};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::{place, size};
use clap::{Args, ValueEnum};
use honeycomb_client::{Error, FlushProgress, FlushTicket};
use honeycomb_tiers::{Access, Place};
use honeycomb_transfer::{Load, raw, subtree};
use honeycomb_wire::Status;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The format of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Objects and a manifest, for a prefix with all its structures
    Honeycomb,
    /// One file as one plain object, for other tools
    Raw,
}

/// Writes the contents of a live prefix to disk or to a bucket.
///
/// PLACE is a path under the job's name in the servers' flush_root, or the URL of that place. The prefix
/// stays usable and does not expire meanwhile. The flush contains at least all data appended to a file before
/// it began, the items of a queue that were put and not taken, in order, and every slot of a store as of one
/// moment. A previous flush is replaced when the new one is complete. An interrupt ends the wait, not the
/// flush; --cancel ends the flush. With --barrier, the flush shows the whole prefix as of one moment, and
/// with --subtree all prefixes.
///
/// With --format raw, the address names a file, and PLACE is any local file or object (s3://BUCKET/KEY). This
/// command writes it with credentials from the environment: exactly the bytes that the file had when the
/// command began. PLACE appears atomically, without other files beside it.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb flush counts out/1
  honeycomb flushed flush/cli/out/1
  honeycomb flush counts out/1 --no-wait --json
  honeycomb flush counts out/all --subtree
  honeycomb flush counts out/checkpoint --barrier
  honeycomb flush logs:today today.log --format raw       # or s3://BUCKET/KEY")]
pub struct FlushArgs {
    /// The prefix; with --format raw, the file
    #[arg(value_parser = place::any)]
    address: String,
    /// The target of the flush
    place: String,
    /// The format of the flush
    #[arg(long, value_enum, default_value = "honeycomb", conflicts_with_all = ["no_wait", "cancel"])]
    format: Format,
    /// Begin the flush and do not wait for it
    #[arg(long)]
    no_wait: bool,
    /// Cancel the running flush of this prefix to this place, and delete its objects
    #[arg(long, conflicts_with = "no_wait")]
    cancel: bool,
    /// Flush the prefix and its descendants, each to PLACE plus its relative path, the prefix itself last
    #[arg(long, conflicts_with_all = ["no_wait", "cancel", "format"])]
    subtree: bool,
    /// Flush everything as of one moment; writers wait for that moment
    #[arg(long, conflicts_with = "format")]
    barrier: bool,
    /// Print progress to standard error, as lines of JSON
    #[arg(long, hide = true)]
    progress: bool,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Loads a flush into a new prefix.
///
/// PLACE is a directory or URL, as for `honeycomb flushed`, read with credentials from the environment. The
/// prefix must not exist. Its structures cannot be opened before everything is loaded. The block size and the
/// servers may differ from those of the flushed prefix.
///
/// With --persisted, PLACE is the path under which a prefix of this job, or of an earlier job of the same
/// name, was persisted; it may be omitted if the new prefix has the same path. If that flush is still
/// running, the command waits for it.
///
/// With --format raw, PLACE is any file or object, and its bytes become the file at the address.
#[derive(Args)]
#[command(
    allow_missing_positional = true,
    after_help = "Examples:
  honeycomb load flush/cli/out/1 copy
  honeycomb load flush/cli/out/1 copy-2 --lease-ms 60000
  honeycomb load flush/cli/out/1 copy-3 --again   # replaces an interrupted load
  honeycomb load out/1 copy-4 --persisted         # by its name
  honeycomb load flush/cli/out/all tree --subtree
  honeycomb load today.log days/1:log --format raw"
)]
pub struct LoadArgs {
    /// The directory of the flush, or its URL
    #[arg(required_unless_present = "persisted")]
    place: Option<String>,
    /// The new prefix; with --format raw, the file in it
    #[arg(value_parser = place::any)]
    address: String,
    /// The format of the flush
    #[arg(long, value_enum, default_value = "honeycomb", conflicts_with = "persisted")]
    format: Format,
    /// Lease duration in milliseconds (default: that of the job)
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    lease_ms: u32,
    /// The prefix never expires
    #[arg(long)]
    pinned: bool,
    /// Load all prefixes of a flushed subtree
    #[arg(long, conflicts_with_all = ["persisted", "format"])]
    subtree: bool,
    /// Load the prefix that was persisted under this path
    #[arg(long)]
    persisted: bool,
    /// Let the new prefix outlive its job
    #[arg(long)]
    persist: bool,
    /// Replace an unfinished load of this prefix
    #[arg(long)]
    again: bool,
    /// Print progress to standard error, as lines of JSON
    #[arg(long, hide = true)]
    progress: bool,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb flush`.
pub fn flush(args: &FlushArgs) -> CommandResult {
    let work = Work::of_token(&args.given.settings()?)?;
    let (client, job) = (&work.client, work.job);
    if args.format == Format::Raw {
        return flush_raw(args, &work);
    }
    need_prefix(&args.address)?;
    if args.subtree {
        return flush_subtree(args, &work);
    }
    if args.no_wait || args.cancel {
        let ticket = match args.cancel {
            true => cancel(args, &work)?,
            false => begin(args, &work)?,
        };
        let did = if args.cancel { "cancelled the flush of" } else { "began to flush" };
        let shown = json!({
            "address": args.address, "place": ticket.place, "flush": ticket.number,
            "done": false, "cancelled": args.cancel,
        });
        args.output.print(&shown, || format!("{did} {} to {}", args.address, ticket.place));
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
            eprintln!("{}the flush fails and is retried: {why}", if shows { "\n" } else { "" });
        }
        true
    };
    let ticket = begin(args, &work)?;
    let progress = client.await_flush(job, &ticket, &mut look)?;
    if shows {
        eprintln!();
    }
    let shown = json!({
        "address": args.address, "place": ticket.place, "flush": ticket.number, "done": true,
        "cancelled": false, "parts": progress.parts, "bytes": progress.bytes,
    });
    args.output.print(&shown, || {
        let bytes = size::show(progress.bytes);
        format!(
            "flushed {} to {}: {bytes} of {} blocks",
            args.address, ticket.place, progress.parts
        )
    });
    Ok(())
}

fn begin(args: &FlushArgs, work: &Work) -> CommandResult<FlushTicket> {
    let (client, address, place) = (&work.client, &args.address, &args.place);
    Ok(match args.barrier {
        true => client.begin_barrier_flush(work.job, address, place, &[])?,
        false => client.begin_flush(work.job, address, place)?,
    })
}

/// Cancels the running flush.
fn cancel(args: &FlushArgs, work: &Work) -> CommandResult<FlushTicket> {
    let (address, place) = (&args.address, &args.place);
    let Some(ticket) = work.client.flush_under_way(work.job, address, place)? else {
        let text = format!(
            "cannot cancel the flush of {address} to {place}: none is running, or it is \
             already writing its manifest"
        );
        return Err(Error::new(Status::NotFound, text).into());
    };
    work.client.cancel_flush(work.job, ticket.number)?;
    Ok(ticket)
}

/// `honeycomb load`.
pub fn load(args: &LoadArgs) -> CommandResult {
    let work = Work::of_token(&args.given.settings()?)?;
    let path = match args.format {
        Format::Raw => raw::prefix_of(&args.address)?,
        Format::Honeycomb => {
            need_prefix(&args.address)?;
            args.address.clone()
        }
    };
    if let Some((above, _)) = path.rsplit_once('/') {
        work.ensure_prefix(above)?;
    }
    let LoadArgs { lease_ms, pinned, persist, again, .. } = *args;
    let load = Load { path, lease_ms, pinned, persist, again };
    let place = match args.persisted {
        true => persisted(args, &work)?,
        false => args.place.clone().unwrap_or_default(),
    };
    let place = Place::parse(&place).map_err(|e| Failure::invalid(e.to_string()))?;
    let look = |done: u64, all: u64| {
        if args.progress {
            eprintln!("{}", json!({ "bytes": done, "of": all }));
        }
    };
    let access = Access::of_environment();
    let loaded = match args.format {
        Format::Honeycomb if args.subtree => {
            subtree::load(work.on(), &place, &access, &load, &look)?
        }
        Format::Honeycomb => honeycomb_transfer::load(work.on(), &place, &access, &load, &look)?,
        Format::Raw => raw::load(work.on(), &place, &access, (&load, &args.address), &look)?,
    };
    let shown = json!({
        "place": place.to_string(), "address": args.address,
        "structures": loaded.structures, "bytes": loaded.bytes,
    });
    args.output.print(&shown, || {
        let (structures, bytes) = (loaded.structures, size::show(loaded.bytes));
        format!("loaded {structures} structures, {bytes}, into {}", args.address)
    });
    Ok(())
}

/// Waits for the flush of the persisted prefix; answers its place.
fn persisted(args: &LoadArgs, work: &Work) -> CommandResult<String> {
    let path = args.place.as_deref().unwrap_or(&args.address);
    let mut failing = None;
    let mut look = |progress: &FlushProgress| {
        if progress.failing.is_some() && progress.failing != failing {
            failing = progress.failing.clone();
            let why = failing.as_deref().unwrap_or_default();
            match args.progress {
                true => eprintln!("{}", json!({ "bytes": 0, "of": 0, "failing": why })),
                false => eprintln!("the flush fails and is retried: {why}"),
            }
        }
        true
    };
    Ok(work.client.persisted(work.job, path, &mut look)?)
}

fn need_prefix(address: &str) -> CommandResult {
    place::prefix(address).map(drop).map_err(Failure::invalid)
}

fn flush_raw(args: &FlushArgs, work: &Work) -> CommandResult {
    let place = Place::parse(&args.place).map_err(|e| Failure::invalid(e.to_string()))?;
    let shows = std::io::stderr().is_terminal() && !args.output.json;
    let look = |done: u64, all: u64| {
        if args.progress {
            eprintln!("{}", json!({ "bytes": done, "of": all }));
        } else if shows {
            eprint!("\r{} of {}   ", size::show(done), size::show(all));
            let _ = std::io::stderr().flush();
        }
    };
    let access = Access::of_environment();
    let stop = Interrupt::awaited()?;
    let bytes = raw::flush(work.on(), &args.address, &place, &access, &look, &stop.0);
    let bytes = bytes.map_err(|e| stop.explains(e))?;
    if shows {
        eprintln!();
    }
    let shown = json!({
        "address": args.address, "place": place.to_string(), "format": "raw", "done": true,
        "bytes": bytes,
    });
    args.output.print(&shown, || {
        format!("flushed {} to {place}: {}, as one object", args.address, size::show(bytes))
    });
    Ok(())
}

fn flush_subtree(args: &FlushArgs, work: &Work) -> CommandResult {
    let shows = std::io::stderr().is_terminal() && !args.output.json;
    let mut failing = None;
    let mut look = |progress: &subtree::Progress| {
        let subtree::Progress { done, of, bytes, .. } = *progress;
        if args.progress {
            let (failing, bytes) = (&progress.failing, bytes);
            let shown = json!({ "done": done, "of": of, "bytes": bytes, "failing": failing });
            eprintln!("{shown}");
        } else if shows {
            eprint!("\r{done} of {of} prefixes, {}   ", size::show(bytes));
            let _ = std::io::stderr().flush();
        }
        if !args.progress && progress.failing.is_some() && progress.failing != failing {
            failing = progress.failing.clone();
            let why = failing.as_deref().unwrap_or_default();
            eprintln!("{}the flush fails and is retried: {why}", if shows { "\n" } else { "" });
        }
    };
    let (address, place) = (&args.address, &args.place);
    let all = match args.barrier {
        true => subtree::flush_at_once(work.on(), address, place, &mut look)?,
        false => subtree::flush(work.on(), address, place, &mut look)?,
    };
    if shows {
        eprintln!();
    }
    let bytes = all.iter().map(|whole| whole.bytes).sum::<u64>();
    let place = all.last().map_or(place, |top| &top.place);
    let prefixes: Vec<_> = all
        .iter()
        .map(|whole| {
            json!({
                "address": whole.path, "place": whole.place, "parts": whole.parts,
                "bytes": whole.bytes,
            })
        })
        .collect();
    let shown = json!({
        "address": args.address, "place": place, "done": true, "bytes": bytes,
        "prefixes": prefixes,
    });
    args.output.print(&shown, || {
        let mut text = format!(
            "flushed {} and its descendants to {place}: {} of {} prefixes",
            args.address,
            size::show(bytes),
            all.len()
        );
        for whole in &all {
            text += &format!("\n  {}  {}", whole.path, size::show(whole.bytes));
        }
        text
    });
    Ok(())
}

/// Whether a signal that ends the program has arrived: an unfinished upload is aborted first.
struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    fn awaited() -> CommandResult<Interrupt> {
        let arrived = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, arrived.clone())
                .map_err(|e| Failure::io("cannot install signal handlers", &e))?;
        }
        Ok(Interrupt(arrived))
    }

    /// The failure of a flush that may have been interrupted.
    fn explains(&self, e: Error) -> Failure {
        match self.0.load(Relaxed) {
            true => "interrupted by a signal; nothing was written".into(),
            false => e.into(),
        }
    }
}
