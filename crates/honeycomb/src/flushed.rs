//! `flushed`: what is on disk of a prefix whose lease has ended.

use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::size;
use clap::Args;
use honeycomb_tiers::{FlushError, Flushed, FlushedStructure};
use honeycomb_wire::Status;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Shows what a flush holds, and checks it.
///
/// DIRECTORY is where it went: the servers' flush_root, the job's name, and the path that the prefix
/// was created with (`honeycomb prefix --flush-to`). No cluster is needed. Without a whole flush
/// there the exit code is 3; with --check every object is read, and a damaged one is code 1.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb flushed flush/cli/runs/1
  honeycomb flushed flush/cli/runs/1 --check --json")]
pub struct FlushedArgs {
    /// The directory of the flush
    directory: PathBuf,
    /// Read every object and compare it with its checksum
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb flushed`.
pub fn flushed(args: &FlushedArgs) -> Outcome {
    let flushed = Flushed::open(&args.directory).map_err(failure)?;
    if args.check {
        flushed.check().map_err(failure)?;
    }
    let manifest = flushed.manifest();
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
        "directory": args.directory, "job": manifest.job, "address": manifest.address,
        "number": manifest.number, "checked": args.check, "structures": structures,
    });
    args.output.tell(&told, || {
        let mut text = format!("{} of job {}", named(&manifest.address), manifest.job);
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
        if args.check {
            text += "\nevery object is as it was written";
        }
        text
    });
    Ok(())
}

fn named(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

fn failure(error: FlushError) -> Failure {
    let status = match error {
        FlushError::NoManifest { .. } | FlushError::NoStructure { .. } => Status::NotFound,
        FlushError::Newer { .. } => Status::UnsupportedVersion,
        _ => Status::Internal,
    };
    Failure::new(status, error.to_string())
}

/// Extents of large values are bytes of entries, and none themselves.
fn items(structure: &FlushedStructure) -> u64 {
    structure.parts.iter().filter(|part| !part.is_of_extents()).map(|part| part.items).sum()
}
