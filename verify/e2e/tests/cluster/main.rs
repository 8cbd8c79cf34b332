//! Clusters of this process: a client, a controller and memory servers with real connections.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod below;
mod cluster;
mod drain;
mod fair;
mod isolation;
mod large;
mod large_appends;
mod large_items;
mod links;
mod listen;
mod many;
mod map;
mod moves;
mod neighbours;
mod notices;
mod oversized;
mod pipeline;
mod placement;
mod redelivery;
mod shards;
mod sinking;
mod stores_and_queues_below;
mod suspects;
mod unix;
