//! What a block held at one moment, to be written elsewhere while nobody waits for it.

use honeycomb_block::Pin;
use std::fmt;
use std::io::{self, Write};

/// Hands on the items of a block, one after the other, given the block's bytes.
type GiveItems = dyn Fn(&[u8], &mut dyn Items) -> io::Result<()> + Send + Sync;

/// Who takes the items of a snapshot.
pub trait Items {
    /// One item in the form of a flush: these bytes, one after the other. They are not divided.
    fn item(&mut self, bytes: &[&[u8]]) -> io::Result<()>;
}

enum Content {
    /// The bytes as they are.
    Plain,
    Items(Box<GiveItems>),
    /// Items as they were copied, and where each ends.
    Copied(Vec<u8>, Vec<usize>),
}

/// A block's content in the form of a flush (`docs/flush.md`), which depends on no layout of blocks.
///
/// Taking one costs the core a look at the bookkeeping, not at the bytes: those are kept by a pin and
/// read when they are asked for, on whatever thread, as often as it takes, in the same order.
pub struct Snapshot {
    /// Nothing of what was copied.
    pin: Option<Pin>,
    content: Content,
}

impl Snapshot {
    /// The bytes of `pin`, which are one run without items: a file's.
    pub fn plain(pin: Pin) -> Snapshot {
        Snapshot { pin: Some(pin), content: Content::Plain }
    }

    /// Items, which `give` hands on. It gets the bytes of `pin`, which must be the whole block, and
    /// hands on the same items in the same order each time.
    pub fn items(
        pin: Pin,
        give: impl Fn(&[u8], &mut dyn Items) -> io::Result<()> + Send + Sync + 'static,
    ) -> Snapshot {
        Snapshot { pin: Some(pin), content: Content::Items(Box::new(give)) }
    }

    /// The bytes, when they are to be written as they are: they can be, without a copy.
    pub fn as_plain(&self) -> Option<&Pin> {
        self.pin.as_ref().filter(|_| matches!(self.content, Content::Plain))
    }

    /// The same, and the block can go on: of a block that has items they are copied and no byte is
    /// pinned any more; behind plain bytes others are written.
    pub fn copied(self) -> Snapshot {
        let Content::Items(_) = &self.content else { return self };
        let mut copy = Copy(Vec::new(), Vec::new());
        self.give(&mut copy).expect("memory takes all");
        Snapshot { pin: None, content: Content::Copied(copy.0, copy.1) }
    }

    /// Hands on the items; plain bytes are one. Fails only as `to` does.
    pub fn give(&self, to: &mut dyn Items) -> io::Result<()> {
        match (&self.content, &self.pin) {
            (Content::Plain, Some(pin)) => to.item(&[pin.bytes()]),
            (Content::Items(give), Some(pin)) => give(pin.bytes(), to),
            (Content::Copied(bytes, ends), _) => {
                let starts = [0].into_iter().chain(ends.iter().copied());
                let mut items = starts.zip(ends);
                items.try_for_each(|(start, end)| to.item(&[&bytes[start..*end]]))
            }
            (Content::Plain | Content::Items(_), None) => unreachable!("they are made with a pin"),
        }
    }

    /// Writes the content in one run; answers how many items it has: bytes of a file, items of a
    /// queue, entries of a kv. Fails only as `out` does.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<u64> {
        let mut counting = Counting { out, items: 0 };
        self.give(&mut counting)?;
        Ok(match &self.content {
            Content::Plain => self.as_plain().map_or(0, |pin| pin.bytes().len() as u64),
            Content::Items(_) | Content::Copied(..) => counting.items,
        })
    }
}

/// Copied items, and where each ends.
struct Copy(Vec<u8>, Vec<usize>);

impl Items for Copy {
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

impl Items for Counting<'_> {
    fn item(&mut self, bytes: &[&[u8]]) -> io::Result<()> {
        self.items += 1;
        bytes.iter().try_for_each(|run| self.out.write_all(run))
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({:?})", self.pin)
    }
}
