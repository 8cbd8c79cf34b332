//! Where data goes that does not stay in memory.
//!
//! Today that is one thing: the data of a prefix whose lease has ended and that says `flush_to`. A
//! memory server writes a part for each block (`FlushStore::write_part`), then one of them the
//! manifest (`FlushStore::commit`), which is the flush: without it there is none. The format is that
//! of `docs/flush.md`; `Flushed` reads it.
//!
//! Everything here blocks on disks and is called from threads that may, never from a data core's.
#![forbid(unsafe_code)]

mod large;
mod manifest;
mod read;
mod store;

pub use manifest::{FlushedPart, FlushedStructure, Manifest};
pub use read::{Entries, Flushed, Items};
pub use store::{FlushStore, Written};

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// What went wrong with a flush, and where.
#[derive(Debug, Error)]
pub enum FlushError {
    /// The place where everything goes is not there.
    #[error(
        "the flush_root {} cannot be used: {why}; make it a directory that the server may write, or \
         start the server with another one",
        root.display()
    )]
    Root {
        /// The setting.
        root: PathBuf,
        /// What the system said.
        why: io::Error,
    },
    /// A path that leads nowhere below the root.
    #[error("'{path}' is no path below the flush_root: {why}")]
    Path {
        /// What was asked for.
        path: String,
        /// Why not.
        why: String,
    },
    /// Writing failed: no space, no permission, a directory that is gone.
    #[error("{what} could not be written: {why}")]
    Write {
        /// Which object.
        what: String,
        /// What the system said.
        why: String,
    },
    /// A part is not where the manifest would say it is.
    #[error(
        "the part {part} is not to be seen here with its {expected} bytes ({found}); servers that \
         flush one structure share one flush_root"
    )]
    MissingPart {
        /// Its path.
        part: String,
        /// Its length.
        expected: u64,
        /// What there is instead.
        found: String,
    },
    /// There is no manifest, so there is no flush.
    #[error("{} holds no flush: {why}", directory.display())]
    NoManifest {
        /// Where it was looked for.
        directory: PathBuf,
        /// What the system said.
        why: io::Error,
    },
    /// Written by a later version of this program.
    #[error(
        "{} is a flush of version {version}; this program reads version {} and earlier",
        directory.display(),
        manifest::VERSION
    )]
    Newer {
        /// Where it is.
        directory: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The bytes are not those that were written.
    #[error("{} is damaged: {why}", object.display())]
    Damaged {
        /// Which object.
        object: PathBuf,
        /// How that was seen.
        why: String,
    },
    /// Reading failed.
    #[error("{} could not be read: {why}", object.display())]
    Read {
        /// Which object.
        object: PathBuf,
        /// What the system said.
        why: io::Error,
    },
    /// No structure of this name, or it is of another kind.
    #[error("the flush has no {kind} named '{name}'")]
    NoStructure {
        /// What was asked for.
        kind: &'static str,
        /// Its name.
        name: String,
    },
}
