//! The bytes of a region that a copy in another block lacks.

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

/// The bytes to send so that a copy of a region in another block is up to date.
#[derive(Clone, Debug, Default)]
pub(super) struct Unsent {
    /// Whether more bytes than `patches` records have changed since the region was sent.
    all: bool,
    /// The changed bytes, while another block holds a copy of the region.
    patches: Option<Box<Patches>>,
}

impl Unsent {
    /// All bytes: the region has a new layout, or begins to move.
    pub fn all() -> Unsent {
        Unsent { all: true, patches: None }
    }

    /// Notes changed bytes, by their offset in the region.
    #[inline]
    pub fn add(&mut self, range: Range<usize>) {
        match &mut self.patches {
            Some(patches) => patches.add(range),
            None => self.all = true,
        }
    }

    /// The number of bytes of a region of this length.
    pub fn bytes(&self, length: usize) -> usize {
        match &self.patches {
            _ if self.all => length.max(1),
            Some(patches) => patches.bytes().min(length),
            None => 0,
        }
    }

    /// Whether the region must be sent as a whole.
    pub fn is_all(&self) -> bool {
        self.all
    }

    /// Whether later changes are sent as a patch.
    pub fn is_patched(&self) -> bool {
        !self.all && self.patches.is_some()
    }

    /// The region is being sent. Its changes from now on are sent as a patch, or with the whole region.
    pub fn sent(&mut self, as_patch: bool) {
        *self = Unsent { all: false, patches: as_patch.then(Box::default) };
    }

    /// The changed bytes, which are being sent.
    pub fn take_patches(&mut self) -> Patches {
        std::mem::take(self.patches.as_mut().expect("a region without values has patches"))
    }

    /// Another block holds no copy any more.
    pub fn forget_patches(&mut self) {
        self.patches = None;
    }
}
