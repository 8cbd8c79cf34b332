//! What a block held at one moment, to be written elsewhere while nobody waits for it.

use honeycomb_block::Pin;
use std::fmt;
use std::io::{self, Write};

/// Writes the content of a block, given the block's bytes; answers how many items there were.
type WriteContent = dyn Fn(&[u8], &mut dyn Write) -> io::Result<u64> + Send + Sync;

/// A block's content in the form of a flush (`docs/flush.md`), which depends on no layout of blocks.
///
/// Taking one costs the core a look at the bookkeeping, not at the bytes: those are kept by a pin and
/// read when `write` is called, on whatever thread, as often as it takes.
pub struct Snapshot {
    pin: Pin,
    write: Box<WriteContent>,
}

impl Snapshot {
    /// A snapshot of what `pin` keeps, which must be the whole block. `write` gets those bytes.
    pub fn new(
        pin: Pin,
        write: impl Fn(&[u8], &mut dyn Write) -> io::Result<u64> + Send + Sync + 'static,
    ) -> Snapshot {
        Snapshot { pin, write: Box::new(write) }
    }

    /// Writes the content; answers how many items it has: bytes of a file, items of a queue, entries
    /// of a kv. Fails only as `out` does.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<u64> {
        (self.write)(self.pin.bytes(), out)
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({:?})", self.pin)
    }
}
