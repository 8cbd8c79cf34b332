//! The content of a block at one moment, to be written elsewhere while the block is served.

use std::error::Error;
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
    /// The items are not those of a flush.
    Refused(ItemFault),
}

/// Why the content of a custom kind cannot be flushed: a defect of the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemFault {
    /// The content has no items.
    Plain,
    /// The snapshot needs more bytes than its block has.
    Beyond {
        /// The bytes that it needs.
        length: usize,
        /// The bytes of the block.
        block_size: usize,
    },
    /// An item does not begin with its length.
    Length {
        /// The length at its beginning; `None` if the item is shorter than a length.
        said: Option<u32>,
        /// The bytes after it.
        found: usize,
    },
    /// An item is too long for a request that loads it.
    TooLong {
        /// Its bytes, without its length.
        length: u64,
        /// The limit.
        most: u64,
    },
    /// All items of a block together are too long.
    TooMany {
        /// The limit, in bytes with the lengths.
        most: u64,
    },
}

impl fmt::Display for ItemFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ItemFault::Plain => f.write_str(
                "the snapshot of the block is plain bytes; `Content::snapshot` of a custom kind \
                 returns `Snapshot::items`",
            ),
            ItemFault::Beyond { length, block_size } => {
                write!(f, "the snapshot needs {length} bytes of a block of {block_size}")
            }
            ItemFault::Length { said: None, found } => {
                write!(f, "an item of {found} bytes does not begin with its length, as u32")
            }
            ItemFault::Length { said: Some(said), found } => {
                write!(f, "an item begins with the length {said}, and {found} bytes follow")
            }
            ItemFault::TooLong { length, most } => {
                write!(f, "an item has {length} bytes, and the limit is {most}")
            }
            ItemFault::TooMany { most } => {
                write!(f, "the items of the block have more than {most} bytes together")
            }
        }
    }
}

impl Error for ItemFault {}

impl From<ItemFault> for io::Error {
    fn from(fault: ItemFault) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, fault)
    }
}

/// Bounds of the items of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemLimits {
    pub block_size: usize,
    /// Bytes of one item, without its length.
    pub item: u64,
    /// Bytes of all items, with their lengths.
    pub all: u64,
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
    /// For a custom kind: its items are checked.
    limits: Option<ItemLimits>,
}

impl Snapshot {
    /// The first bytes of the block, as one run without items: the content of a file.
    pub fn plain(length: usize) -> Snapshot {
        Snapshot { length, content: Content::Plain, limits: None }
    }

    /// Items, which `give` passes on. It gets the first `length` bytes of the block, and passes the same
    /// items on in the same order each time.
    pub fn items(
        length: usize,
        give: impl Fn(&[u8], &mut dyn ItemSink) -> io::Result<()> + Send + Sync + 'static,
    ) -> Snapshot {
        Snapshot { length, content: Content::Items(Arc::new(give)), limits: None }
    }

    /// The same, with items that are checked when they are passed on.
    pub(crate) fn checked(self, limits: ItemLimits) -> Snapshot {
        let (length, block_size) = (self.length, limits.block_size);
        match &self.content {
            Content::Plain => Snapshot::refused(ItemFault::Plain),
            _ if length > block_size => Snapshot::refused(ItemFault::Beyond { length, block_size }),
            _ => Snapshot { limits: Some(limits), ..self },
        }
    }

    fn refused(fault: ItemFault) -> Snapshot {
        Snapshot { length: 0, content: Content::Refused(fault), limits: None }
    }

    /// The number of the block's first bytes that must be retained for it.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Bytes of its copy.
    pub fn beside(&self) -> usize {
        match &self.content {
            Content::Copied(copy) => copy.0.capacity() + size_of::<usize>() * copy.1.capacity(),
            Content::Plain | Content::Items(_) | Content::Refused(_) => 0,
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
        if let Err(e) = self.give(bytes, &mut copy) {
            let fault = e.get_ref().and_then(|fault| fault.downcast_ref::<ItemFault>());
            return Snapshot::refused(*fault.expect("memory takes all items that are not refused"));
        }
        // They were checked just now.
        Snapshot { length: 0, content: Content::Copied(Arc::new(copy)), limits: None }
    }

    /// Passes the items on; plain bytes are one item. Fails only if `to` fails, or with the `ItemFault` of a
    /// custom kind.
    pub fn give(&self, bytes: &[u8], to: &mut dyn ItemSink) -> io::Result<()> {
        match self.limits {
            Some(limits) => self.give_unchecked(bytes, &mut Checked { to, limits, all: 0 }),
            None => self.give_unchecked(bytes, to),
        }
    }

    fn give_unchecked(&self, bytes: &[u8], to: &mut dyn ItemSink) -> io::Result<()> {
        let bytes = &bytes[..self.length];
        match &self.content {
            Content::Refused(fault) => Err((*fault).into()),
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
            Content::Items(_) | Content::Copied(_) | Content::Refused(_) => counting.items,
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

/// Passes the items of a custom kind on while they are those of a flush.
struct Checked<'a> {
    to: &'a mut dyn ItemSink,
    limits: ItemLimits,
    /// Bytes of the items so far.
    all: u64,
}

impl Checked<'_> {
    fn check(&mut self, item: &[&[u8]]) -> Result<(), ItemFault> {
        let length = item.iter().map(|run| run.len()).sum::<usize>();
        let mut first = item.iter().copied().flatten().copied();
        let mut said = [0; 4];
        let complete = said.iter_mut().all(|byte| first.next().map(|b| *byte = b).is_some());
        let Some(found) = length.checked_sub(said.len()).filter(|_| complete) else {
            return Err(ItemFault::Length { said: None, found: length });
        };
        let said = u32::from_le_bytes(said);
        if said as usize != found {
            return Err(ItemFault::Length { said: Some(said), found });
        }
        if found as u64 > self.limits.item {
            return Err(ItemFault::TooLong { length: found as u64, most: self.limits.item });
        }
        self.all += length as u64;
        match self.all > self.limits.all {
            true => Err(ItemFault::TooMany { most: self.limits.all }),
            false => Ok(()),
        }
    }
}

impl ItemSink for Checked<'_> {
    fn item(&mut self, bytes: &[&[u8]]) -> io::Result<()> {
        self.check(bytes)?;
        self.to.item(bytes)
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ItemLimits = ItemLimits { block_size: 64, item: 9, all: 30 };

    fn items(items: &[&[u8]]) -> Snapshot {
        let items: Vec<Vec<u8>> = items.iter().map(|item| item.to_vec()).collect();
        Snapshot::items(0, move |_, out| items.iter().try_for_each(|item| out.item(&[item])))
    }

    fn fault(snapshot: &Snapshot) -> Option<ItemFault> {
        let e = snapshot.write(&[], &mut Vec::new()).err()?;
        assert_eq!(e.kind(), io::ErrorKind::InvalidData);
        e.get_ref().and_then(|e| e.downcast_ref::<ItemFault>()).copied()
    }

    /// Regression: such items were written, and the load found a damaged flush.
    #[test]
    fn items_of_a_custom_kind_that_no_load_can_read_are_refused() {
        let (short, wrong, long) = (&[1, 0][..], &[3, 0, 0, 0, 7][..], &[10; 14][..]);
        let long = &[&[10, 0, 0, 0][..], &long[4..]].concat()[..];
        let most = &[&[9, 0, 0, 0][..], &[0; 9]].concat()[..];
        let cases = [
            (items(&[short]), ItemFault::Length { said: None, found: 2 }),
            (items(&[most, wrong]), ItemFault::Length { said: Some(3), found: 1 }),
            (items(&[long]), ItemFault::TooLong { length: 10, most: 9 }),
            (items(&[most; 3]), ItemFault::TooMany { most: 30 }),
            (Snapshot::plain(3), ItemFault::Plain),
            (Snapshot::items(65, |_, _| Ok(())), ItemFault::Beyond { length: 65, block_size: 64 }),
        ];
        for (snapshot, expected) in cases {
            let checked = snapshot.checked(LIMITS);
            assert_eq!(fault(&checked), Some(expected));
            // A block in use is copied first.
            let copied = checked.copied(&[0; 64]);
            assert_eq!((fault(&copied), copied.beside()), (Some(expected), 0), "{expected}");
            assert!(!copied.is_plain());
        }
    }

    #[test]
    fn items_within_their_limits_are_passed_on_as_they_are() {
        let two = [&[9, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1][..], &[0; 4]];
        let divided = Snapshot::items(0, move |_, out| {
            out.item(&[&two[0][..3], &[], &two[0][3..]])?;
            out.item(&[two[1]])
        });
        let checked = divided.checked(LIMITS);
        for snapshot in [checked.clone(), checked.copied(&[])] {
            let mut written = Vec::new();
            assert_eq!(snapshot.write(&[], &mut written).unwrap(), 2);
            assert_eq!(written, two.concat());
        }
    }
}
