//! The client: routing cache, sessions, the only retry loop, deadlines, lease keeper.
//!
//! `call` is a pure decision procedure, which the simulator also runs: it chooses the block and the
//! lane, decides when to retry and when to give up, and makes the error. `writing`, equally pure,
//! assigns the pieces of a large value to blocks. `socket`, `transport` and `pool` move the bytes.
//! `file`, `queue`, `kv` (with `large`) and `custom` are the handles that users hold. A `Client` is
//! cheap to clone and may be used from any number of threads.
#![forbid(unsafe_code)]

mod ahead;
mod batch;
pub mod bucket;
mod buffers;
pub mod call;
mod client;
mod context;
mod control;
pub mod cost;
mod custom;
mod dag;
mod driver;
mod error;
mod evacuation;
mod file;
mod flushing;
mod handle;
mod holder;
mod interrupt;
mod keeper;
mod kv;
mod large;
mod large_appends;
mod large_items;
mod limits;
mod listener;
mod many;
mod map;
mod pipe;
mod pipeline;
pub mod placing;
mod pool;
mod queue;
mod ranges;
mod route;
mod socket;
mod stopping;
mod structure;
mod taking;
mod transport;
pub mod writing;

pub use ahead::{ReadAhead, ScanAhead};
pub use batch::{Accumulated, Atomic, Done, Number, TopItem, Values};
pub use client::{
    Any, Client, ClientOptions, IfExists, JobOptions, JobTicket, Quota, QuotaChange, QuotaOf,
};
pub use custom::{Answered, Ask, Custom, CustomOptions, KindRef};
pub use dag::{JobClient, JobDag};
pub use driver::{Driver, OperationOutcome};
pub use error::Error;
pub use evacuation::Carried;
pub use file::File;
pub use flushing::{FlushProgress, FlushTicket};
pub use interrupt::{Interrupt, interrupted};
pub use keeper::LostLease;
pub use kv::{Kv, ScanPage, Swap};
pub use listener::{Heard, Listener, Notification};
pub use map::FileView;
pub use pipeline::Pipeline;
pub use queue::{Delivery, Queue, QueueCounts};
pub use route::{Target, route};
pub use stopping::{STOP_PATIENCE, StopProgress, Stopped};
pub use structure::{OpenedStructure, Structure};
pub use transport::{Room, Sink};
/// The result of every call of this crate.
pub type Result<T> = std::result::Result<T, Error>;
