//! A real object store for tests and benchmarks, with fault and latency injection.
//!
//! `Gateway` is versitygw, an S3 server, in a separate process; `verify/versitygw/build.sh` builds it if Go
//! is available. `Proxy` is placed before it and injects the latencies and faults of a `Faults`: measured
//! latencies and rates, answers that never arrive, requests that are executed and not confirmed, and requests
//! that are executed long after the client has given up.
#![forbid(unsafe_code)]

mod faults;
mod gateway;
mod http;
mod proxy;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // Helpers of tests are tests.
mod tests;

pub use faults::{Faults, Kind, Outage, Rule, What};
pub use gateway::Gateway;
pub use proxy::{Proxy, Seen};
