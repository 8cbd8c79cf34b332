//! The simulator: the production state machines in a virtual world that one seed decides.
//!
//! `world` owns the clock and the events, `net` says who reaches whom and what time it is where,
//! `controller` and `server` are the nodes around the production catalog and shards. `client`,
//! `storing` (with `large`), `queueing` and `owner` are the workload, through the production calls of the client;
//! `member` is what a server is to each controller shard, `lots` the memory that these share; `faults` draws what goes wrong. The reference models say whether what was seen can be: `catalog`
//! for the controller, `file`, `kv`, `accounts` and `queue` for what clients saw. `report` keeps what
//! was drawn. `processes` is for the soaks, which run real
//! ones. See docs/testing.md and docs/adr/0016.
#![forbid(unsafe_code)]

mod accounts;
mod bank;
mod catalog;
mod cells;
mod client;
mod controller;
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
pub mod processes;
mod queue;
mod queueing;
mod report;
mod server;
mod sizes;
mod storing;
mod tiers;
mod world;

pub use bank::{caught_by, seeds_until_caught};
pub use faults::Faults;
pub use history::histories_of;
pub use report::{FAULTS, STATES, Stats};
pub use world::{Violation, World, run_cut_off, run_seed};
