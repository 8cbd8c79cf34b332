//! The worked examples of `docs/extending.md`: each adds one thing to the system, and runs it.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

#[path = "../../../crates/server/tests/shard/common.rs"]
mod common;
mod sink;
mod structure;
mod tier;
