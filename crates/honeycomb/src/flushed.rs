//! `flushed`: what was written of a prefix whose lease has ended.

use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::size;
use clap::Args;
use honeycomb_tiers::{Access, FlushError, Flushed, FlushedStructure, Place};
use honeycomb_wire::Status;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Shows what a flush holds, and checks it.
///
/// PLACE is where it went: the servers' flush_root, the job's name, and the path that the prefix was
/// created with (`honeycomb prefix --flush-to`). It is a directory, or s3://BUCKET/PATH, gs://... or
/// az://..., with credentials from the environment as for the servers. No cluster is needed. Without a
/// whole flush there the exit code is 3; with --check every object is read, and a damaged one is code 6.
/// With --delete it is deleted after that: the manifest first, so that it is none from then on.
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
    /// Copy it into this directory, which is made or empty, comparing every object with its checksum
    #[arg(long, value_name = "DIR")]
    copy: Option<PathBuf>,
    /// Delete it; for good
    #[arg(long)]
    delete: bool,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb flushed`.
pub fn flushed(args: &FlushedArgs) -> Outcome {
    let access = Access::of_environment();
    let flushed = Flushed::at(args.place.clone(), &access).map_err(failure)?;
    if args.check {
        flushed.check().map_err(failure)?;
    }
    if let Some(directory) = &args.copy {
        flushed.copy_to(directory).map_err(failure)?;
    }
    let (manifest, journal) = (flushed.manifest().clone(), flushed.is_journal());
    let deleted = match args.delete {
        true => Some(flushed.delete(&access).map_err(failure)?),
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
    args.output.tell(&told, || {
        let mut text = format!("{} of job {}", named(&manifest.address), manifest.job);
        if journal {
            text += ", as far as it was acknowledged: a journal";
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
            text += &format!("\n  below it, each in its own place: {}", manifest.below.join(", "));
        }
        if let Some(directory) = &args.copy {
            text += &format!("\ncopied to {}", directory.display());
        }
        if args.check {
            text += "\nevery object is as it was written";
        }
        if let Some(objects) = deleted {
            text += &format!("\ndeleted, with its {objects} objects");
        }
        text
    });
    Ok(())
}

fn named(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

pub(crate) fn failure(error: FlushError) -> Failure {
    let status = match error {
        FlushError::NoManifest { .. }
        | FlushError::NoStructure { .. }
        | FlushError::NoObject { .. } => Status::NotFound,
        FlushError::Path { .. } | FlushError::NotAnObject { .. } => Status::InvalidArgument,
        FlushError::Newer { .. } => Status::UnsupportedVersion,
        FlushError::Damaged { .. } | FlushError::Missing { .. } => Status::DataLost,
        _ => Status::Internal,
    };
    Failure::new(status, error.to_string())
}

/// Extents of large values are bytes of entries, and none themselves.
fn items(structure: &FlushedStructure) -> u64 {
    structure.parts.iter().filter(|part| !part.is_of_extents()).map(|part| part.items).sum()
}
