//! The simulator: its seeds, its bank of planted bugs, and single situations.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod lots;
mod neighbours;
mod seeds;
mod stalls;
