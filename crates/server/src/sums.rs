//! Checksums of bytes in lower tiers.

use std::ops::Range;

/// The checksums of some bytes, one for each chunk of them; the last chunk may be shorter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums {
    /// Bytes of a chunk.
    chunk: usize,
    values: Vec<u32>,
}

impl Sums {
    /// Computes the checksums of chunks of this size.
    pub fn of(bytes: &[u8], chunk: usize) -> Sums {
        Sums { chunk, values: bytes.chunks(chunk).map(crc32fast::hash).collect() }
    }

    /// The checksums of no bytes.
    pub fn none(chunk: usize) -> Sums {
        Sums { chunk, values: Vec::new() }
    }

    /// Whether these are the checksums of so many bytes.
    pub(crate) fn are_for(&self, length: usize) -> bool {
        self.values.len() == length.div_ceil(self.chunk)
    }

    /// Whether the bytes have these checksums.
    pub(crate) fn verify(&self, bytes: &[u8]) -> bool {
        Sums::of(bytes, self.chunk) == *self
    }

    /// The range of the chunks that contain a range of the bytes, if they are so many.
    pub(crate) fn around(&self, range: &Range<usize>, length: usize) -> Range<usize> {
        let end = range.end.next_multiple_of(self.chunk).min(length);
        range.start / self.chunk * self.chunk..end
    }

    /// The checksums of a part that begins with a chunk.
    pub(crate) fn part(&self, range: &Range<usize>) -> Sums {
        assert!(range.start.is_multiple_of(self.chunk), "INV-11: {range:?} begins inside a chunk");
        let chunks = range.start / self.chunk..range.end.div_ceil(self.chunk);
        Sums { chunk: self.chunk, values: self.values[chunks].to_vec() }
    }

    /// The checksums of the bytes before `length`, and unknown ones for those that will be written there.
    pub(crate) fn resize(&mut self, length: usize) {
        self.values.resize(length.div_ceil(self.chunk), 0);
    }

    /// Sets the checksums of a part that begins with a chunk.
    pub(crate) fn set(&mut self, from: usize, part: &Sums) {
        let (first, all) = (from / self.chunk, self.values.len());
        let end = first + part.values.len();
        assert!(end <= all, "INV-11: the checksums of chunks up to {end} were written, of {all}");
        assert_eq!(part.chunk, self.chunk, "INV-11: checksums of chunks of one size");
        self.values[first..end].copy_from_slice(&part.values);
    }

    /// Adds the checksums of the bytes behind these, which are whole chunks.
    pub(crate) fn extend(&mut self, more: &Sums) {
        assert_eq!(more.chunk, self.chunk, "INV-11: checksums of chunks of one size");
        self.values.extend_from_slice(&more.values);
    }
}
