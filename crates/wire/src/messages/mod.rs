//! Statuses, operations and message bodies, generated from `protocol/messages.toml`: a file for each
//! of the two tables, one for the facts about operations, one for the parts that several messages share, one
//! for the data plane, one for the links between nodes, and one for each type of operation of the control
//! plane.

mod cluster;
mod data;
mod facts;
mod jobs;
mod link;
mod op;
mod parts;
mod prefixes;
mod status;

pub use cluster::*;
pub use data::*;
pub use facts::*;
pub use jobs::*;
pub use link::*;
pub use op::Op;
pub use parts::*;
pub use prefixes::*;
pub use status::Status;
