//! The changed bytes of a region since it was sent to another block.

use std::ops::Range;

/// Bytes of a region that are sent again together if one of them has changed.
const CHUNK: usize = 128;

/// The changed chunks of a region.
#[derive(Clone, Debug, Default)]
pub(super) struct Patches {
    bits: Vec<u64>,
    count: usize,
}

impl Patches {
    /// Notes changed bytes.
    pub fn add(&mut self, range: Range<usize>) {
        for chunk in range.start / CHUNK..range.end.div_ceil(CHUNK) {
            let (word, bit) = (chunk / 64, 1u64 << (chunk % 64));
            if word >= self.bits.len() {
                self.bits.resize(word + 1, 0);
            }
            self.count += usize::from(self.bits[word] & bit == 0);
            self.bits[word] |= bit;
        }
    }

    /// Bytes of the changed chunks.
    pub fn bytes(&self) -> usize {
        self.count * CHUNK
    }

    /// The changed runs of bytes before `end`, in order.
    pub fn runs(&self, end: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let set = |chunk: usize| {
            self.bits.get(chunk / 64).is_some_and(|word| word & (1 << (chunk % 64)) != 0)
        };
        let (mut chunk, chunks) = (0, end.div_ceil(CHUNK));
        std::iter::from_fn(move || {
            while chunk < chunks && !set(chunk) {
                chunk += 1;
            }
            let first = chunk;
            while chunk < chunks && set(chunk) {
                chunk += 1;
            }
            (first < chunk).then(|| first * CHUNK..(chunk * CHUNK).min(end))
        })
    }
}
