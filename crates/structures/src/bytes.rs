//! Where the bytes of a block are that an operation reads: in its memory, or brought up from below it.

use honeycomb_block::{Backing, Pin};
use std::cell::RefCell;
use std::ops::Range;

/// Bytes of a block.
///
/// What only reads a block works on either kind: it says what it is about to read (`wants`) and goes no
/// further when that is not there. On a block in memory everything is, at no cost.
pub trait Bytes {
    /// Whether everything is there.
    const ALL: bool;

    /// Reads a range, all of which is there.
    fn slice(&self, range: Range<usize>) -> &[u8];

    /// Whether a range is there. What is not is noted: it is brought up, and the operation runs again.
    fn wants(&self, range: &Range<usize>) -> bool;

    /// Whether a range is there.
    fn has(&self, range: &Range<usize>) -> bool;

    /// Bytes that one operation should have brought up at a time, if it could do with so few.
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

/// Parts of a block below memory that were brought up for one operation.
#[derive(Debug)]
pub struct Fetched {
    /// Where in the block each begins. One that was asked for is whole in one of them.
    parts: Vec<(usize, Backing)>,
    wanted: RefCell<Vec<Range<usize>>>,
    most: usize,
}

impl Fetched {
    /// Nothing yet; an operation that can work on less fetches `most` bytes at a time.
    pub fn within(most: usize) -> Fetched {
        Fetched { parts: Vec::new(), wanted: RefCell::default(), most }
    }

    /// Bytes of the parts that were brought up.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|(_, part)| part.len()).sum()
    }

    /// Takes a part that was read.
    pub fn add(&mut self, from: usize, bytes: Backing) {
        self.parts.push((from, bytes));
    }

    /// What was wanted and is not there, in order and each range once. While this is not empty, what was
    /// answered means nothing.
    pub fn take_wanted(&mut self) -> Vec<Range<usize>> {
        let mut wanted = self.wanted.take();
        wanted.sort_unstable_by_key(|range| (range.start, range.end));
        wanted.dedup();
        wanted
    }

    /// Keeps a range readable for as long as an answer needs it; `None` when it is not there.
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
        let (from, part) = found.expect("INV-41: bytes that are read were brought up");
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
