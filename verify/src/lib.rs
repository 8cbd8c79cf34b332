//! The simulator: the production state machines in a virtual world that one seed determines.
//!
//! `world` owns the clock and the events. `net` decides which nodes reach each other, and has their
//! clocks. `controller` and `server` are the nodes around the production catalog and shards.
//! `client`, `storing` (with `large`), `appends`, `queueing` and `owner` are the workload, through the
//! production calls of the client. `member` is a server's membership in a controller shard, `lots`
//! the memory that the shards share; `faults` draws the faults. The reference models judge the
//! observations: `catalog` for the controller, `file`, `kv`, `accounts` and `queue` for the
//! clients. `report` counts faults and states. See docs/testing.md and docs/adr/0016.
#![forbid(unsafe_code)]

mod accounts;
mod appends;
mod bank;
mod capacities;
mod catalog;
mod cells;
mod client;
mod controller;
mod copies;
mod drain;
mod faults;
mod file;
mod history;
mod kv;
mod large;
mod lives;
mod lots;
mod member;
mod moves;
mod net;
mod owner;
mod queue;
mod queueing;
mod report;
mod server;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // Helpers of tests are tests.
mod simulation;
mod sizes;
mod storing;
mod tiers;
mod world;

pub use bank::{caught_by, seeds_until_caught};
pub use faults::Faults;
pub use history::histories_of;
pub use report::{FAULTS, STATES, Stats};
pub use world::{Violation, World, run_cut_off, run_seed, run_slow_disks};
