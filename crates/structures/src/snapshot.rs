//! The content of a block at one moment, to be written elsewhere while the block is served.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

/// Passes the items of a block on, one after the other, given the block's bytes.
type GiveItems = dyn Fn(&[u8], &mut dyn ItemSink) -> io::Result<()> + Send + Sync;

/// The receiver of the items of a snapshot.
pub trait ItemSink {
    /// One item in the form of a flush: these runs of bytes, one after the other. An item is not divided.
    fn item(&mut self, bytes: &[&[u8]]) -> io::Result<()>;
}

#[derive(Clone)]
enum Content {
    /// The bytes as they are.
    Plain,
    Items(Arc<GiveItems>),
    /// Copied items, and where each ends.
    Copied(Arc<Copy>),
}

/// How to convert a block's bytes into the form of a flush (`docs/flush.md`), which does not depend on the
/// layout of blocks.
///
/// To take a snapshot, the core reads the bookkeeping and not the bytes. The caller retains the bytes, by a
/// pin in memory or on a disk. They are read when they are needed, on any thread, as often as necessary, in
/// the same order.
#[derive(Clone)]
pub struct Snapshot {
    /// Bytes of the block that are needed, from the first; 0 if the content was copied.
    length: usize,
    content: Content,
}

impl Snapshot {
    /// The first bytes of the block, as one run without items: the content of a file.
    pub fn plain(length: usize) -> Snapshot {
        Snapshot { length, content: Content::Plain }
    }

    /// Items, which `give` passes on. It gets the first `length` bytes of the block, and passes the same
    /// items on in the same order each time.
    pub fn items(
        length: usize,
        give: impl Fn(&[u8], &mut dyn ItemSink) -> io::Result<()> + Send + Sync + 'static,
    ) -> Snapshot {
        Snapshot { length, content: Content::Items(Arc::new(give)) }
    }

    /// The number of the block's first bytes that must be retained for it.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Bytes of its copy.
    pub fn beside(&self) -> usize {
        match &self.content {
            Content::Copied(copy) => copy.0.capacity() + size_of::<usize>() * copy.1.capacity(),
            Content::Plain | Content::Items(_) => 0,
        }
    }

    /// Whether the bytes are written unchanged, and need no copy.
    pub fn is_plain(&self) -> bool {
        matches!(self.content, Content::Plain)
    }

    /// The same, independent of later changes of the block: items are copied, and no byte of the block must
    /// be retained. Plain bytes are not copied, because later bytes are written after them.
    pub fn copied(self, bytes: &[u8]) -> Snapshot {
        let Content::Items(_) = &self.content else { return self };
        let mut copy = Copy(Vec::new(), Vec::new());
        self.give(bytes, &mut copy).expect("memory takes all");
        Snapshot { length: 0, content: Content::Copied(Arc::new(copy)) }
    }

    /// Passes the items on; plain bytes are one item. Fails only if `to` fails.
    pub fn give(&self, bytes: &[u8], to: &mut dyn ItemSink) -> io::Result<()> {
        let bytes = &bytes[..self.length];
        match &self.content {
            Content::Plain => to.item(&[bytes]),
            Content::Items(give) => give(bytes, to),
            Content::Copied(copy) => {
                let Copy(bytes, ends) = &**copy;
                let starts = [0].into_iter().chain(ends.iter().copied());
                let mut items = starts.zip(ends);
                items.try_for_each(|(start, end)| to.item(&[&bytes[start..*end]]))
            }
        }
    }

    /// Writes the content in one run. Returns the number of its items: bytes of a file, items of a queue,
    /// entries of a kv. Fails only if `out` fails.
    pub fn write(&self, bytes: &[u8], out: &mut dyn Write) -> io::Result<u64> {
        let mut counting = Counting { out, items: 0 };
        self.give(bytes, &mut counting)?;
        Ok(match &self.content {
            Content::Plain => self.length as u64,
            Content::Items(_) | Content::Copied(_) => counting.items,
        })
    }
}

/// Copied items, and where each ends.
struct Copy(Vec<u8>, Vec<usize>);

impl ItemSink for Copy {
    fn item(&mut self, bytes: &[&[u8]]) -> io::Result<()> {
        bytes.iter().for_each(|run| self.0.extend_from_slice(run));
        self.1.push(self.0.len());
        Ok(())
    }
}

struct Counting<'a> {
    out: &'a mut dyn Write,
    items: u64,
}

impl ItemSink for Counting<'_> {
    fn item(&mut self, bytes: &[&[u8]]) -> io::Result<()> {
        self.items += 1;
        bytes.iter().try_for_each(|run| self.out.write_all(run))
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({} bytes)", self.length)
    }
}
