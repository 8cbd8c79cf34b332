//! The only interfaces to the outside world: clock, entropy, network, files.
//!
//! State machines receive time and randomness as arguments; the loops that drive them take both
//! from this crate. The lint in `clippy.toml` prevents every other crate from bypassing it.
#![forbid(unsafe_code)]

mod arriving;
mod budget;
mod clock;
mod conn;
mod cpu;
mod disk;
pub mod diskfault;
mod elsewhere;
mod entropy;
pub mod failpoint;
mod guard;
mod lockfile;
mod memory;
mod net;
mod poller;
mod probe;
mod shaped;
pub mod unix;
mod volume;

pub use arriving::{Arriving, Gathering};
pub use budget::{Budget, Permit, SHARED_TURN, Share, TURN};
pub use clock::{Clock, time_of_day};
pub use conn::ReplyPayload;
pub use cpu::thread_cpu;
pub use disk::{Disk, Folder, MemoryDisk, Syncer};
pub use entropy::Entropy;
pub use guard::AbortOnPanic;
pub use lockfile::LockFile;
pub use memory::resident_anonymous_bytes;
pub use net::{Begin, ByConn, ConnId, Detached, Mailbox, Net, NetOptions, NotPosted, Service, run};
pub use poller::Poller;
pub use probe::nobody_listens;
pub use shaped::{DiskShape, Shaped};
pub use volume::{AWAY, MemoryVolume, Scratch, VOLUME_ALIGN, Volume};
