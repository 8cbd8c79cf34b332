//! Statuses, operations and message bodies, generated from `protocol/messages.toml`: a file for each
//! of the two tables, one for what several messages have in them, and one for each plane.

mod control;
mod data;
mod link;
mod op;
mod parts;
mod status;

pub use control::*;
pub use data::*;
pub use link::*;
pub use op::Op;
pub use parts::*;
pub use status::Status;
