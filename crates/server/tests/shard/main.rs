//! A shard without its server: requests, blocks, moves and tiers, one module for each.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod below;
mod capabilities;
mod capacities;
mod checkpoints;
mod common;
mod deltas;
mod exports;
mod extents;
mod extents_below;
mod growth;
mod handing_on;
mod idle_lanes;
mod journal;
mod kv_below;
mod leaving_below;
mod moves;
mod queue_below;
mod splits_below;
mod tiers;
mod timers;
mod to_store;
mod turns;
mod waits_in_tiers;
mod write_cache;
