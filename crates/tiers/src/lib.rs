//! Where data goes that does not stay in memory.
//!
//! That are two things. One is the data of a prefix whose lease has ended and that says `flush_to`. A
//! memory server writes a part for each block (`FlushStore::part`), then one of them the manifest
//! (`FlushStore::commit`), which is the flush: without it there is none. The format is that of
//! `docs/flush.md`; `Flushed` reads it. Where it goes is a `Place`: a directory or a part of a bucket.
//!
//! Beside them a file can be one plain object (`RawWriter`, `RawReader`).
//!
//! The other is what lies below memory and disks (`ObjectVolume`): blocks that take no more, for as long as
//! their server lives.
//!
//! Stores are spoken to on one thread (`Objects`), with an asynchronous runtime that nothing else here
//! knows of. What hands it bytes may block, and is never a data core's thread.
#![forbid(unsafe_code)]

mod access;
mod alone;
mod commit;
mod delete;
mod journal;
mod large;
mod manifest;
mod objects;
mod place;
mod raw;
mod read;
mod staged;
mod store;
mod volume;

pub use access::Access;
pub use alone::Alone;
pub use journal::{JournalOwner, JournalStructure, Record, RecordEnds};
pub use manifest::{FlushedPart, FlushedStructure, Manifest};
pub use objects::{Objects, ObjectsWorker};
pub use place::{Cloud, InvalidPlace, Place};
pub use raw::{RawReader, RawWriter};
pub use read::{Entries, Flushed, Items};
pub use store::{FlushRoot, FlushStore, PartWriter, Written};
pub use volume::{ObjectVolume, TierWorker};

use thiserror::Error;

/// What went wrong with a flush, and where.
#[derive(Debug, Error)]
pub enum FlushError {
    /// The place where everything goes is not there.
    #[error(
        "the place {root} cannot be used: {why}; name a directory that may be written, or a bucket"
    )]
    Root {
        /// The setting.
        root: String,
        /// What the system said.
        why: String,
    },
    /// A path that leads nowhere below the root.
    #[error("'{path}' is not a path under the flush_root: {why}")]
    Path {
        /// What was asked for.
        path: String,
        /// Why not.
        why: String,
    },
    /// Writing failed: no space, no permission, a directory that is gone.
    #[error("{what} could not be written or deleted: {why}")]
    Write {
        /// Which object.
        what: String,
        /// What the system said.
        why: String,
    },
    /// A part is not where the manifest would say it is.
    #[error(
        "the part {part} of {expected} bytes cannot be found here ({found}); servers that flush one \
         structure must share one flush_root"
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
    #[error("{place} holds no flush: {why}")]
    NoManifest {
        /// Where it was looked for.
        place: String,
        /// What the system said.
        why: String,
    },
    /// Written by a later version of this program.
    #[error(
        "{place} is a flush of version {version}; this program reads version {} and earlier",
        manifest::VERSION
    )]
    Newer {
        /// Where it is.
        place: String,
        /// Its version.
        version: u32,
    },
    /// The bytes are not those that were written.
    #[error("{object} is damaged: {why}; put back a copy of it, or create the data again")]
    Damaged {
        /// Which object.
        object: String,
        /// How that was seen.
        why: String,
    },
    /// An object that the manifest names is not there.
    #[error(
        "{object} is missing, which the manifest names; put back a copy of it, or create the data again"
    )]
    Missing {
        /// Which object.
        object: String,
    },
    /// Reading failed.
    #[error("{object} could not be read: {why}")]
    Read {
        /// Which object.
        object: String,
        /// What the system said.
        why: String,
    },
    /// A place that can be no plain object.
    #[error("{place} cannot be one object: {why}")]
    NotAnObject {
        /// Where it was to be.
        place: String,
        /// Why not.
        why: String,
    },
    /// There is no plain object.
    #[error("object {object} does not exist")]
    NoObject {
        /// Where it was looked for.
        object: String,
    },
    /// Somebody else's flush or journal is where one is to begin.
    #[error(
        "{place} holds the flush of another prefix: load it, and delete it with `honeycomb flushed {place} --delete`, or name another place with flush_to"
    )]
    Occupied {
        /// Where it is.
        place: String,
    },
    /// A later flush is where this one was.
    #[error("{place} now holds a later flush; inspect that one first")]
    Replaced {
        /// Where it is.
        place: String,
    },
    /// The manifest is deleted, and some of what it named is not.
    #[error(
        "the flush at {place} is deleted, but {count} of its objects could not be: {why}; they are unused, and nothing deletes them automatically"
    )]
    Left {
        /// Where they are.
        place: String,
        /// How many.
        count: usize,
        /// What the store said of one.
        why: String,
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

/// An error with what is behind it: the store names the object, the system says why.
pub(crate) fn reason(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(e) = source {
        let more = e.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = e.source();
    }
    text
}
