//! Fixed-size blocks of memory, each with its own backing.
//!
//! A `Backing` is private anonymous memory: zero and not resident until written. When it is
//! dropped, the next block of the same tenant may reuse it with its content for a moment; otherwise
//! it is returned to the operating system. A `Pin` keeps a range readable after the block itself
//! was freed or reused, so that a reply can be sent directly from it. Clients of the same machine
//! map a `Shared`, an immutable memory file, as a `View` on their side (ADR 0019). All `unsafe`
//! code of server and client is in this crate, each use with its proof.
//!
//! Threads: one thread owns a `Backing`; pins may be sent to others.

mod backing;
mod reclaim;
mod reserve;
mod shared;
mod view;

pub use backing::{Backing, HUGE_FROM, Pin};
pub use reclaim::{ReclaimWorker, Reclaimer, Tenant};
pub use reserve::PageReserve;
pub use shared::{Shared, shared_bytes};
pub use view::View;
