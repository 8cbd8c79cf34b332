//! `prefix`: creating one with options, which `put` and its like do not take.

use crate::cluster::{Intent, Work};
use crate::config::{Given, InJob};
use crate::failure::Outcome;
use crate::output::Output;
use crate::place;
use clap::{Args, ValueEnum};
use honeycomb_wire::Durability;
use honeycomb_wire::messages::PrefixOptions;
use serde_json::json;

/// How durable a change is when it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Acknowledge {
    /// It is lost with its server
    Memory,
    /// It is in the object store
    Flushed,
}

/// Creates a prefix, with its lease and what else holds for it.
///
/// The prefixes on the way to it are created when they are missing; one that exists already is an
/// error. Without options it is what every command that writes creates by itself. With --flush-to,
/// what the prefix holds is written when its lease ends, below the directory or bucket that the servers
/// were given as flush_root and one of the job's name; `honeycomb flushed` reads it there. With --persist
/// also when the job ends, or the last reader; `honeycomb load --persisted` brings it back into a later job
/// of the same name.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb prefix scratch --lease-ms 2000
  honeycomb prefix results --flush-to runs/1   # needs servers with --flush-root
  honeycomb prefix model --persist         # needs it too
  honeycomb prefix log --acknowledge flushed
  honeycomb prefix growing --high-mark 80 --low-mark 10")]
pub struct PrefixArgs {
    /// The prefix
    #[arg(value_parser = place::prefix)]
    address: String,
    /// A further parent; may be repeated
    #[arg(long = "parent", value_parser = place::prefix)]
    parents: Vec<String>,
    /// Milliseconds that its lease lasts; without it, the job's
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    lease_ms: u32,
    /// It never expires
    #[arg(long)]
    pinned: bool,
    /// Percent of a block in use at which it grows or splits; without it, the cluster's
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    high_mark: u8,
    /// Percent of a block in use below which it merges; without it, the cluster's
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    low_mark: u8,
    /// Where its data goes when its lease ends; without it, it is discarded
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    flush_to: String,
    /// It outlives its job: what ends it flushes it first, to --flush-to or to its own path, unless it is
    /// removed by name
    #[arg(long)]
    persist: bool,
    /// When a change is answered: in memory, or written where the prefix is flushed (files only)
    #[arg(long, value_enum, value_name = "CLASS", default_value = "memory")]
    acknowledge: Acknowledge,
    /// Most blocks of it and all below it; without it, as many as there are
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    max_blocks: u64,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb prefix`.
pub fn prefix(args: &PrefixArgs) -> Outcome {
    let work = Work::open(&args.given.settings()?, Intent::Create)?;
    if let Some((above, _)) = args.address.rsplit_once('/') {
        place::ensure_prefix(&work, above)?;
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
    args.output.tell(&json!({ "address": args.address, "prefix": made.0 }), || {
        format!("created {}", args.address)
    });
    Ok(())
}
