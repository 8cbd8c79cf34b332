//! The content of a block at one moment, to be written elsewhere while the block is served.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

/// Hands on the items of a block, one after the other, given the block's bytes.
type GiveItems = dyn Fn(&[u8], &mut dyn ItemSink) -> io::Result<()> + Send + Sync;

/// Who takes the items of a snapshot.
pub trait ItemSink {
    /// One item in the form of a flush: these bytes, one after the other. They are not divided.
    fn item(&mut self, bytes: &[&[u8]]) -> io::Result<()>;
}

#[derive(Clone)]
enum Content {
    /// The bytes as they are.
    Plain,
    Items(Arc<GiveItems>),
    /// Items as they were copied, and where each ends.
    Copied(Arc<Copy>),
}

/// How to make of a block's bytes its content in the form of a flush (`docs/flush.md`), which depends on
/// no layout of blocks.
///
/// Taking one costs the core a look at the bookkeeping, not at the bytes. Those are whoever's who took
/// it: kept in memory by a pin, or on a disk. They are read when they are asked for, on whatever thread,
/// as often as it takes, in the same order.
#[derive(Clone)]
pub struct Snapshot {
    /// Nothing of the block is needed for what was copied.
    length: usize,
    content: Content,
}

impl Snapshot {
    /// The first bytes of the block, which are one run without items: a file's.
    pub fn plain(length: usize) -> Snapshot {
        Snapshot { length, content: Content::Plain }
    }

    /// Items, which `give` hands on. It gets the first `length` bytes of the block, and hands on the same
    /// items in the same order each time.
    pub fn items(
        length: usize,
        give: impl Fn(&[u8], &mut dyn ItemSink) -> io::Result<()> + Send + Sync + 'static,
    ) -> Snapshot {
        Snapshot { length, content: Content::Items(Arc::new(give)) }
    }

    /// So many of the block's first bytes have to be kept for it.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Bytes that were copied for it.
    pub fn beside(&self) -> usize {
        match &self.content {
            Content::Copied(copy) => copy.0.capacity() + size_of::<usize>() * copy.1.capacity(),
            Content::Plain | Content::Items(_) => 0,
        }
    }

    /// Whether the bytes are to be written as they are: they can be, without a copy.
    pub fn is_plain(&self) -> bool {
        matches!(self.content, Content::Plain)
    }

    /// The same, and the block can go on: of a block that has items they are copied, and nothing of it
    /// has to be kept any more; behind plain bytes others are written.
    pub fn copied(self, bytes: &[u8]) -> Snapshot {
        let Content::Items(_) = &self.content else { return self };
        let mut copy = Copy(Vec::new(), Vec::new());
        self.give(bytes, &mut copy).expect("memory takes all");
        Snapshot { length: 0, content: Content::Copied(Arc::new(copy)) }
    }

    /// Hands on the items; plain bytes are one. Fails only as `to` does.
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

    /// Writes the content in one run; answers how many items it has: bytes of a file, items of a
    /// queue, entries of a kv. Fails only as `out` does.
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
