//! A real object store for tests and benchmarks, and the weather on the way to it.
//!
//! `Gateway` is versitygw, an S3 server, in a process of its own; `verify/versitygw/build.sh` builds it
//! where there is a Go for it. `Proxy` stands before it and makes it as slow and as unreliable as `Weather`
//! says: latencies and rates as they were measured, answers that never come, requests that are done and not
//! confirmed, or done long after they were given up.
#![forbid(unsafe_code)]

mod gateway;
mod http;
mod proxy;
mod weather;

pub use gateway::Gateway;
pub use proxy::{Proxy, Seen};
pub use weather::{Kind, Outage, Rule, Weather, What};
