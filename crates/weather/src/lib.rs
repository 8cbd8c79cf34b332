//! A real object store for tests and benchmarks: versitygw, an S3 server, in a process of its own
//! (`Gateway`). `verify/versitygw/build.sh` builds it where there is a Go for it.
#![forbid(unsafe_code)]

mod gateway;

pub use gateway::Gateway;
