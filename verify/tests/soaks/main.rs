//! A short dose of each soak.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod elastic_soak;
mod queue_soak;
mod tier_soak;
