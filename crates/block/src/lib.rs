//! Fixed-size blocks of memory, each with a backing of its own.
//!
//! A `Backing` is private anonymous memory: zero and not resident until written, given back to the
//! operating system when it is dropped, or a moment later: until then the next block of the same tenant
//! may have it as it is. A `Pin` keeps a range readable after the block itself was freed or reused, so
//! that a reply can be sent straight from it. What clients of the same machine map is a `Shared`, a
//! memory file that nobody can change, and a `View` at their side (ADR 0019). All `unsafe` of server and
//! client is in this crate, each use with its proof.
//!
//! Who may call: one thread owns a `Backing`; pins may travel to others.

mod backing;
mod reclaim;
mod shared;
mod view;

pub use backing::{Backing, HUGE_FROM, Pin};
pub use reclaim::{ReclaimWorker, Reclaimer, Tenant};
pub use shared::{Shared, shared_bytes};
pub use view::View;
