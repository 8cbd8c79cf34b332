//! Frames, refusals and hashes, byte by byte: golden vectors, and arbitrary bytes.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod batches;
mod common;
mod fuzz;
mod queues;
mod shown;
mod vectors;
