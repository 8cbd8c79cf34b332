//! Operations of a client on whole prefixes: it flushes subtrees and single files, loads flushes, keeps
//! buckets of objects, and evacuates large values from a draining server.
//!
//! The command line, the child process of the Python package and processes with a memory server share these
//! functions. They need an object store's client, its threads and TLS; `honeycomb-client` has none of these,
//! because users' processes fork (ADR 0024). All functions block. Errors are those of the client: a status
//! and a message.
#![forbid(unsafe_code)]

pub mod bucket;
mod dag;
pub mod evacuation;
mod load;
pub mod raw;
pub mod subtree;

pub use dag::JobDag;
pub use load::{Load, Loaded, load};

use honeycomb_client::{Client, Error};
use honeycomb_tiers::FlushError;
use honeycomb_types::{Address, JobId, split_path};
use honeycomb_wire::Status;
use honeycomb_wire::messages::PrefixOptions;

/// The result of a transfer.
pub type Result<T = ()> = std::result::Result<T, Error>;

/// A job, and a client with rights for it.
#[derive(Clone, Copy)]
pub struct JobClient<'a> {
    /// The client.
    pub client: &'a Client,
    /// The job.
    pub job: JobId,
}

/// Creates the missing prefixes of an address.
pub fn ensure_prefix(on: JobClient<'_>, address: &str) -> Result {
    let parts = split_path(Address::parse(address)?.path)?;
    for depth in 1..=parts.len() {
        let path = format!("/{}", parts[..depth].join("/"));
        match on.client.create_prefix(on.job, &path, &[], PrefixOptions::default()) {
            Ok(_) | Err(Error { status: Status::AlreadyExists, .. }) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The error of a call that reads or writes flushed data.
pub fn of_flush(error: FlushError) -> Error {
    let status = match error {
        FlushError::NoManifest { .. }
        | FlushError::NoStructure { .. }
        | FlushError::NoObject { .. } => Status::NotFound,
        FlushError::Path { .. } | FlushError::NotAnObject { .. } => Status::InvalidArgument,
        FlushError::Newer { .. } => Status::UnsupportedVersion,
        FlushError::Damaged { .. } | FlushError::Missing { .. } => Status::DataLost,
        _ => Status::Internal,
    };
    Error::new(status, error.to_string())
}
