//! Serves the catalog over the network.
//!
//! The catalog makes all decisions. This crate verifies tokens, translates messages to commands, sends
//! effects to the memory servers, and delays a reply until the blocks that it names are open.
#![forbid(unsafe_code)]

mod advised;
mod answers;
mod controller;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // Helpers of tests are tests.
mod log_tests;
mod members;
mod merge;
mod outbox;
mod plan_count;
mod service;
mod status;
mod store;
mod translate;
mod turns;

pub use advised::Advised;
pub use answers::Answers;
pub use controller::{Controller, ControllerOptions, StartError};
pub use members::held_block;
pub use service::{message_of, waits};
pub use status::status_of;
pub use store::{LogCensus, OpenOptions, RecoveredState, Store, StoreError, census};
pub use turns::{Turn, Turns};
