//! The event loop with real connections.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod rounds;
mod yields;
