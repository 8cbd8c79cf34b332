//! The soaks: long runs on real processes, whose clients or controller are killed meanwhile, and checkers
//! that decide at the end whether anything was lost.
//!
//! `queue` is `make soak`, `tier` is `make tier-soak`, and `elastic` is `make elastic-soak`; see
//! docs/testing.md.
#![forbid(unsafe_code)]

pub mod elastic;
mod processes;
pub mod queue;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // Helpers of tests are tests.
mod tests;
pub mod tier;
