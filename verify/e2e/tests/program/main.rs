//! Processes of the program: commands, kills, restarts.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod bounded;
mod cli;
mod crash_cells;
mod flush_kills;
mod recycled;
mod restart;
