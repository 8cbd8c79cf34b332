//! The rules of the catalog, one module for each: commands, and the replies and effects that they must have.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod advice;
mod audit;
mod barrier;
mod below;
mod bill;
mod common;
mod costs;
mod drain;
mod edges;
mod extents;
mod flush;
mod full;
mod hierarchy;
mod hints;
mod isolation;
mod journal;
mod kinds;
mod leases;
mod live;
mod lives;
mod model;
mod moves;
mod placement;
mod private;
mod queues;
mod quota;
mod readers;
mod rejoin;
mod rising;
mod servers;
mod sinking;
mod structures;
mod suspects;
