//! `flushed`: inspects, checks, copies and deletes a flush.

use crate::failure::CommandResult;
use crate::output::Output;
use crate::size;
use clap::Args;
use honeycomb_tiers::{Access, Flushed, FlushedStructure, Place};
use honeycomb_transfer::of_flush;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Shows the contents of a flush, and checks it.
///
/// PLACE is the target of the flush: the servers' flush_root, the job's name, and the path of the prefix
/// (`honeycomb prefix --flush-to`). It is a directory, or s3://BUCKET/PATH, gs://... or az://..., with
/// credentials from the environment as for the servers. No cluster is needed. The exit code is 3 if PLACE
/// has no complete flush. With --check, every object is read, and a damaged object is exit code 6. With
/// --delete, the flush is deleted afterwards; its manifest is deleted first, so that PLACE is no flush from
/// then on.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb flushed flush/cli/runs/1
  honeycomb flushed flush/cli/runs/1 --check --json
  honeycomb flushed flush/cli/runs/1 --copy runs-1
  honeycomb flushed flush/cli/runs/1 --delete")]
pub struct FlushedArgs {
    /// The directory of the flush, or its URL
    #[arg(value_parser = |text: &str| Place::parse(text))]
    place: Place,
    /// Read every object and compare it with its checksum
    #[arg(long)]
    check: bool,
    /// Copy the flush to this new or empty directory, and compare every object with its checksum
    #[arg(long, value_name = "DIR")]
    copy: Option<PathBuf>,
    /// Delete the flush permanently
    #[arg(long)]
    delete: bool,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb flushed`.
pub fn flushed(args: &FlushedArgs) -> CommandResult {
    let access = Access::of_environment();
    let flushed = Flushed::at(args.place.clone(), &access).map_err(of_flush)?;
    if args.check {
        flushed.check().map_err(of_flush)?;
    }
    if let Some(directory) = &args.copy {
        flushed.copy_to(directory).map_err(of_flush)?;
    }
    let (manifest, journal) = (flushed.manifest().clone(), flushed.is_journal());
    let deleted = match args.delete {
        true => Some(flushed.delete(&access).map_err(of_flush)?),
        false => None,
    };
    let structures: Vec<Value> = manifest
        .structures
        .iter()
        .map(|s| {
            json!({
                "name": s.name, "kind": s.kind, "sealed": s.sealed, "parts": s.parts.len(),
                "bytes": s.parts.iter().map(|p| p.bytes).sum::<u64>(),
                "items": items(s),
            })
        })
        .collect();
    let told = json!({
        "place": args.place.to_string(), "job": manifest.job, "address": manifest.address,
        "number": manifest.number, "checked": args.check, "structures": structures,
        "deleted": deleted, "below": manifest.below, "journal": journal,
    });
    args.output.print(&told, || {
        let mut text = format!("{} of job {}", named(&manifest.address), manifest.job);
        if journal {
            text += ", a journal: all acknowledged writes";
        }
        for s in &manifest.structures {
            let name = if s.name.is_empty() { "(unnamed)" } else { &s.name };
            let bytes = size::show(s.parts.iter().map(|p| p.bytes).sum());
            let items = items(s);
            let items = match s.kind.as_str() {
                "queue" => format!(", {items} items"),
                "kv" => format!(", {items} entries"),
                _ => String::new(),
            };
            text += &format!("\n  : {name}  {}, {bytes}{items}", s.kind);
        }
        if !manifest.below.is_empty() {
            let below = manifest.below.join(", ");
            text += &format!("\n  prefixes below it, each in its own place: {below}");
        }
        if let Some(directory) = &args.copy {
            text += &format!("\ncopied to {}", directory.display());
        }
        if args.check {
            text += "\nall objects match their checksums";
        }
        if let Some(objects) = deleted {
            text += &format!("\ndeleted the flush and its {objects} objects");
        }
        text
    });
    Ok(())
}

fn named(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

/// The number of items; extents of large values are not counted, they belong to entries.
fn items(structure: &FlushedStructure) -> u64 {
    structure.parts.iter().filter(|part| !part.is_of_extents()).map(|part| part.items).sum()
}
