//! Operations of a client on whole prefixes: it flushes subtrees and single files, loads flushes, and
//! evacuates large values from a draining server.
//!
//! The command line, the child process of the Python package and processes with a memory server share these
//! functions. They need an object store's client, its threads and TLS; `honeycomb-client` has none of these,
//! because users' processes fork (ADR 0024). All functions block. Errors are those of the client: a status
//! and a message.
#![forbid(unsafe_code)]

pub mod evacuation;
mod load;
pub mod raw;
pub mod subtree;

pub use load::{Load, Loaded, load};

use honeycomb_client::Error;
use honeycomb_tiers::FlushError;
use honeycomb_wire::Status;

/// The result of a transfer.
pub type Result<T = ()> = std::result::Result<T, Error>;

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
