//! Storage for data that does not stay in memory.
//!
//! There are two kinds. The first is the flush of a prefix with `flush_to` whose lease has ended. A
//! memory server writes a part for each block (`FlushStore::part`). Then one server writes the
//! manifest (`FlushStore::commit`). A flush without a manifest does not exist. `docs/flush.md`
//! defines the format; `Flushed` reads it. Its destination is a `Place`: a directory or a part of a
//! bucket.
//!
//! In addition, a file can be one plain object (`RawWriter`, `RawReader`).
//!
//! The second is the lowest tier (`ObjectVolume`), after memory and disks: it holds sealed blocks
//! for the lifetime of their server.
//!
//! One thread accesses the stores (`Objects`), with an asynchronous runtime that no other module
//! here uses. The threads that pass bytes to it may block, and are never the threads of data cores.
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
pub use read::{Entries, Flushed, FlushedItems};
pub use store::{FlushRoot, FlushStore, PartWriter, WrittenObject};
pub use volume::{ObjectVolume, TierWorker};

use thiserror::Error;

/// The failure of a flush, with its object or place.
#[derive(Debug, Error)]
pub enum FlushError {
    /// The root of all flushes does not exist.
    #[error(
        "the place {root} cannot be used: {why}; name a directory that may be written, or a bucket"
    )]
    Root {
        /// The setting.
        root: String,
        /// The system's error.
        why: String,
    },
    /// A path that is not under the root.
    #[error("'{path}' is not a path under the flush_root: {why}")]
    Path {
        /// The requested path.
        path: String,
        /// Why not.
        why: String,
    },
    /// Writing failed: no space, no permission, a directory that is gone.
    #[error("{what} could not be written or deleted: {why}")]
    Write {
        /// Which object.
        what: String,
        /// The system's error.
        why: String,
    },
    /// The items of a custom structure are not those of a flush.
    #[error("{what} cannot be written: {why}; this is a defect of the kind of structure")]
    Items {
        /// Which object.
        what: String,
        /// The rule that an item breaks.
        why: String,
    },
    /// A part is not at the place that the manifest would name.
    #[error(
        "the part {part} of {expected} bytes cannot be found here ({found}); servers that flush \
         one structure must share one flush_root"
    )]
    MissingPart {
        /// Its path.
        part: String,
        /// Its length.
        expected: u64,
        /// The actual state.
        found: String,
    },
    /// There is no manifest, so there is no flush.
    #[error("{place} holds no flush: {why}")]
    NoManifest {
        /// The place that was checked.
        place: String,
        /// The system's error.
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
    /// The bytes differ from those that were written.
    #[error("{object} is damaged: {why}; put back a copy of it, or create the data again")]
    Damaged {
        /// Which object.
        object: String,
        /// How the damage was found.
        why: String,
    },
    /// An object that the manifest names does not exist.
    #[error(
        "{object}, which the manifest names, is missing; put back a copy of it, or create the data \
         again"
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
        /// The system's error.
        why: String,
    },
    /// A place that cannot be a plain object.
    #[error("{place} cannot be one object: {why}")]
    NotAnObject {
        /// The place.
        place: String,
        /// Why not.
        why: String,
    },
    /// The plain object does not exist.
    #[error("object {object} does not exist")]
    NoObject {
        /// Its place.
        object: String,
    },
    /// The place has the flush or journal of another owner.
    #[error(
        "{place} holds the flush or journal of another prefix: load it, and delete it with \
         `honeycomb flushed {place} --delete`, or name another place with flush_to"
    )]
    Occupied {
        /// Where it is.
        place: String,
    },
    /// A later flush has replaced this one.
    #[error("{place} now holds a later flush; inspect that one first")]
    Replaced {
        /// Where it is.
        place: String,
    },
    /// The manifest is deleted, but some of the objects that it named are not.
    #[error(
        "the flush at {place} is deleted, but {count} of its objects could not be: {why}; they are \
         unused, and nothing deletes them automatically"
    )]
    Left {
        /// Their place.
        place: String,
        /// How many.
        count: usize,
        /// The store's error for one of them.
        why: String,
    },
    /// No structure has this name, or it has another kind.
    #[error("the flush has no {kind} named '{name}'")]
    NoStructure {
        /// The requested kind.
        kind: &'static str,
        /// Its name.
        name: String,
    },
}

/// An error with its causes: the store names the object, the system gives the reason.
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
