//! `prefix`: creates a prefix with options.

use crate::cluster::{Intent, Work};
use crate::config::{Given, InJob};
use crate::failure::CommandResult;
use crate::output::Output;
use crate::place;
use clap::{Args, ValueEnum};
use honeycomb_wire::Durability;
use honeycomb_wire::messages::PrefixOptions;
use serde_json::json;

/// The durability of a change when it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Acknowledge {
    /// The change is lost if its server fails
    Memory,
    /// The change is in the object store
    Flushed,
}

/// Creates a prefix, with a lease and other options.
///
/// Missing parent prefixes are created; it is an error if the prefix exists. Without options, the prefix is
/// like those that writing commands create. With --flush-to, the data of the prefix is flushed when its lease
/// ends, to PATH under the job's name in the servers' flush_root; `honeycomb flushed` reads it there. With
/// --persist, it is also flushed when the job ends or the last reader commits; `honeycomb load --persisted`
/// loads it into a later job of the same name.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb prefix scratch --lease-ms 2000
  honeycomb prefix results --flush-to runs/1   # needs servers with --flush-root
  honeycomb prefix model --persist         # needs them, too
  honeycomb prefix log --acknowledge flushed
  honeycomb prefix growing --high-mark 80 --low-mark 10")]
pub struct PrefixArgs {
    /// The prefix
    #[arg(value_parser = place::prefix)]
    address: String,
    /// An additional parent; may be repeated
    #[arg(long = "parent", value_parser = place::prefix)]
    parents: Vec<String>,
    /// Lease duration in milliseconds (default: that of the job)
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    lease_ms: u32,
    /// The prefix never expires
    #[arg(long)]
    pinned: bool,
    /// Percent of a block in use at which a structure grows or a block splits (default: that of the cluster)
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    high_mark: u8,
    /// Percent of a block in use below which it merges (default: that of the cluster)
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    low_mark: u8,
    /// Flush the data to this path when the lease ends (default: discard it)
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    flush_to: String,
    /// Let the prefix outlive its job: it is flushed before it is freed, to --flush-to or to its own path,
    /// unless it is removed by name
    #[arg(long)]
    persist: bool,
    /// When changes are acknowledged: in memory, or when written to the flush target (files only)
    #[arg(long, value_enum, value_name = "CLASS", default_value = "memory")]
    acknowledge: Acknowledge,
    /// Maximum number of blocks of the prefix and its descendants (default: no limit)
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    max_blocks: u64,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb prefix`.
pub fn prefix(args: &PrefixArgs) -> CommandResult {
    let work = Work::open(&args.given.settings()?, Intent::Create)?;
    if let Some((above, _)) = args.address.rsplit_once('/') {
        work.ensure_prefix(above)?;
    }
    let options = PrefixOptions {
        lease_ms: args.lease_ms,
        pinned: args.pinned,
        high_mark: args.high_mark,
        low_mark: args.low_mark,
        flush_to: args.flush_to.clone(),
        max_blocks: args.max_blocks,
        persist: args.persist,
        acknowledge: match args.acknowledge {
            Acknowledge::Memory => Durability::Memory as u8,
            Acknowledge::Flushed => Durability::Flushed as u8,
        },
        ..PrefixOptions::default()
    };
    let made = work.client.create_prefix(work.job, &args.address, &args.parents, options)?;
    args.output.print(&json!({ "address": args.address, "prefix": made.0 }), || {
        format!("created {}", args.address)
    });
    Ok(())
}
