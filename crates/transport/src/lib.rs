//! The transport of a node: one event loop for each thread, its connections, and the shares of jobs in both.
//!
//! A loop knows frames and limits. It does not know what an operation means: a `Service` does.
#![forbid(unsafe_code)]

mod arriving;
mod budget;
mod conn;
mod elsewhere;
pub mod failpoint;
mod hello;
mod net;
mod poller;
mod probe;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // Helpers of tests are tests.
mod tests;
pub mod unix;

pub use arriving::{Arriving, Gathering};
pub use budget::{Budget, JobShare, Permit, SHARED_TURN, TURN};
pub use conn::ReplyPayload;
pub use hello::hello;
pub use net::{
    ByConn, ConnId, Detached, Mailbox, Net, NetOptions, NotPosted, PayloadAction, Service, run,
};
pub use poller::Poller;
pub use probe::has_ended;
