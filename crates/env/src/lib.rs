//! The only interfaces to the outside world: clock, entropy, disks, memory.
//!
//! State machines receive time and randomness as arguments; the loops that drive them take both
//! from this crate. The lint in `clippy.toml` prevents every other crate from bypassing it.
#![forbid(unsafe_code)]

mod clock;
mod cpu;
mod disk;
pub mod diskfault;
mod entropy;
mod guard;
mod lockfile;
mod memory;
mod shaped;
mod volume;

pub use clock::{Clock, time_of_day};
pub use cpu::thread_cpu;
pub use disk::{Disk, Folder, MemoryDisk, Syncer};
pub use entropy::Entropy;
pub use guard::AbortOnPanic;
pub use lockfile::LockFile;
pub use memory::resident_anonymous_bytes;
pub use shaped::{DiskShape, Shaped};
pub use volume::{AWAY, MemoryVolume, Scratch, VOLUME_ALIGN, Volume};
