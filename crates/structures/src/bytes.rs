//! The bytes of a block that an operation reads: in memory, or read back from a lower tier.

use honeycomb_block::{Backing, Pin};
use std::cell::RefCell;
use std::ops::Range;

/// Bytes of a block.
///
/// An operation that only reads works on both kinds: it calls `wants` with each range before it reads it, and
/// stops if the range is absent. On a block in memory every range is present, at no cost.
pub trait Bytes {
    /// Whether all bytes are present.
    const ALL: bool;

    /// Reads a range, which must be present.
    fn slice(&self, range: Range<usize>) -> &[u8];

    /// Whether a range is present. An absent range is noted: it is read back, and the operation runs again.
    fn wants(&self, range: &Range<usize>) -> bool;

    /// Whether a range is present.
    fn has(&self, range: &Range<usize>) -> bool;

    /// The bytes that an operation should request at a time, if it can work with so few.
    fn most(&self) -> usize {
        usize::MAX
    }

    /// A range is about to be read: a hint, of use only in memory.
    #[inline]
    fn prefetch(&self, range: Range<usize>) {
        let _ = range;
    }
}

impl Bytes for Backing {
    const ALL: bool = true;

    #[inline]
    fn slice(&self, range: Range<usize>) -> &[u8] {
        Backing::slice(self, range)
    }

    #[inline]
    fn wants(&self, _: &Range<usize>) -> bool {
        true
    }

    #[inline]
    fn has(&self, _: &Range<usize>) -> bool {
        true
    }

    #[inline]
    fn prefetch(&self, range: Range<usize>) {
        Backing::prefetch(self, range);
    }
}

/// Parts of a block in a lower tier that were read for one operation.
#[derive(Debug)]
pub struct Fetched {
    /// The parts, each with its offset in the block. A requested range is whole within one of them.
    parts: Vec<(usize, Backing)>,
    wanted: RefCell<Vec<Range<usize>>>,
    most: usize,
}

impl Fetched {
    /// No parts yet; an operation that can work with less requests `most` bytes at a time.
    pub fn within(most: usize) -> Fetched {
        Fetched { parts: Vec::new(), wanted: RefCell::default(), most }
    }

    /// Bytes of the parts.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|(_, part)| part.len()).sum()
    }

    /// Adds a part.
    pub fn add(&mut self, from: usize, bytes: Backing) {
        self.parts.push((from, bytes));
    }

    /// The requested ranges that are absent, in order and without duplicates. While there are any, the answer
    /// of the operation means nothing.
    pub fn take_wanted(&mut self) -> Vec<Range<usize>> {
        let mut wanted = self.wanted.take();
        wanted.sort_unstable_by_key(|range| (range.start, range.end));
        wanted.dedup();
        wanted
    }

    /// Whether a requested range is absent: the answer of the operation means nothing.
    pub fn is_lacking(&self) -> bool {
        !self.wanted.borrow().is_empty()
    }

    /// Keeps a range readable for as long as an answer needs it; `None` if it is absent.
    pub fn pin(&mut self, range: &Range<usize>) -> Option<Pin> {
        let (from, part) = self.parts.iter_mut().find(|(from, part)| holds(*from, part, range))?;
        Some(part.pin(range.start - *from..range.end - *from))
    }
}

fn holds(from: usize, part: &Backing, range: &Range<usize>) -> bool {
    from <= range.start && range.end <= from + part.len()
}

impl Bytes for Fetched {
    const ALL: bool = false;

    fn slice(&self, range: Range<usize>) -> &[u8] {
        if range.is_empty() {
            return &[];
        }
        let found = self.parts.iter().find(|(from, part)| holds(*from, part, &range));
        let (from, part) = found.expect("INV-41: bytes must be present to be read");
        part.slice(range.start - from..range.end - from)
    }

    fn wants(&self, range: &Range<usize>) -> bool {
        let there = self.has(range);
        if !there {
            self.wanted.borrow_mut().push(range.clone());
        }
        there
    }

    fn most(&self) -> usize {
        self.most
    }

    fn has(&self, range: &Range<usize>) -> bool {
        range.is_empty() || self.parts.iter().any(|(from, part)| holds(*from, part, range))
    }
}
