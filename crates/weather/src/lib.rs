//! A real object store for tests and benchmarks, with fault and latency injection.
//!
//! `Gateway` is versitygw, an S3 server, in a separate process; `verify/versitygw/build.sh` builds it if Go
//! is available. `Proxy` is placed before it and injects the latencies and faults of a `Weather`: measured
//! latencies and rates, answers that never arrive, requests that are executed and not confirmed, and requests
//! that are executed long after the client has given up.
#![forbid(unsafe_code)]

mod gateway;
mod http;
mod proxy;
mod weather;

pub use gateway::Gateway;
pub use proxy::{Proxy, Seen};
pub use weather::{Kind, Outage, Rule, Weather, What};
