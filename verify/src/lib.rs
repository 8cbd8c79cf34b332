//! The simulator: the production state machines in a virtual world that one seed decides.
//!
//! `world` owns the clock, the network and the nodes: the catalog, the shards and the clients'
//! calls are the production ones, only the I/O between them is simulated. `client` drives the
//! workload, `faults` draws what goes wrong, `file`, `kv` and `lease` are the reference models that
//! say whether what clients saw can be. `processes` is for the soaks, which run real ones. See
//! docs/testing.md.
#![forbid(unsafe_code)]

mod client;
mod faults;
mod file;
mod kv;
mod lease;
pub mod processes;
mod queue;
mod queueing;
mod server;
mod world;

pub use faults::Faults;
pub use world::{Stats, Violation, World, run_seed};
