//! One block's memory and the pins on it.
#![allow(unsafe_code)]

use crate::reclaim::{Reclaimer, Tenant, Trim, Used};
use crate::reserve::Chunk;
use crate::shared::Shared;
use memmap2::{MmapOptions, MmapRaw, UncheckedAdvice};
use rustix::param::page_size;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Blocks of at least this many bytes request huge pages.
pub const HUGE_FROM: usize = 4 << 20;

/// A huge page: a block whose capacity is less begins with small pages, so that one of little content takes
/// little memory.
const HUGE_PAGE: usize = 2 << 20;

/// How often the chunks of one block can go to the reserve. Those of one offset share a record of the kernel,
/// which it searches for every page that it inspects.
const RECYCLING_SHEDS: u8 = 16;

/// Bytes that the processor fetches together.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 64;

/// The mapping behind a backing and its pins. Its drop passes the pages to the reclaimer, because
/// unmapping many of them would delay a data core for too long.
pub(crate) struct Mapping {
    raw: Option<MmapRaw>,
    /// The end of the last byte that any owner of these pages has written.
    written: AtomicUsize,
    /// Bytes that count as mapped; those behind are never touched.
    capacity: AtomicUsize,
    /// The tenant that may reuse these pages with their content; `None` if they are not written in
    /// place.
    tenant: Option<Tenant>,
    reclaimer: Reclaimer,
    /// A counter that includes these bytes for as long as they are readable.
    counted: Option<Arc<AtomicUsize>>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            if let Some(counted) = &self.counted {
                counted.fetch_sub(raw.len(), Relaxed);
            }
            let (written, capacity) = (*self.written.get_mut(), *self.capacity.get_mut());
            self.reclaimer.give(raw, self.tenant, written, capacity);
        }
    }
}

impl Mapping {
    /// A mapping of these pages, or of none. Existing pages count as mapped until they are given to
    /// the reclaimer.
    fn new(
        raw: Option<MmapRaw>,
        capacity: usize,
        tenant: Option<Tenant>,
        reclaimer: &Reclaimer,
    ) -> Mapping {
        if raw.is_some() {
            reclaimer.maps(capacity);
        }
        let (written, reclaimer) = (AtomicUsize::new(0), reclaimer.clone());
        Mapping { raw, written, capacity: capacity.into(), tenant, reclaimer, counted: None }
    }

    /// Records that all bytes up to `end` may be resident. Only the owning `Backing` calls this.
    #[inline]
    fn wrote(&self, end: usize) {
        if end > self.written.load(Relaxed) {
            self.written.store(end, Relaxed);
        }
    }

    fn ptr(&self) -> *mut u8 {
        self.raw.as_ref().expect("memory that is there").as_mut_ptr()
    }

    /// Returns whole pages to the operating system: their bytes are zero from now on. Returns
    /// whether the system took them.
    ///
    /// # Safety
    ///
    /// The pages are inside the mapping. While this runs, nothing reads or writes them or relies on
    /// their content: no borrow, no pin.
    pub(crate) unsafe fn give_back(&self, pages: Range<usize>) -> bool {
        let raw = self.raw.as_ref().expect("taken only by drop");
        // Guaranteed by the caller.
        unsafe { raw.unchecked_advise_range(UncheckedAdvice::DontNeed, pages.start, pages.len()) }
            .is_ok()
    }
}

/// The memory of one block under one owner (one epoch).
///
/// The bytes are zero at first, unless the caller waived that (`map_for`). Only written bytes are
/// resident. Reading and writing are checked against the length and against the pins: a pinned
/// range cannot be written (the attempt is a defect and panics), which makes `Pin` sound.
pub struct Backing {
    mapping: Arc<Mapping>,
    length: usize,
    /// The end of the bytes that can be accessed; the length for most blocks.
    capacity: usize,
    /// Bytes before this are in a lower tier and cannot be accessed here; 0 for most blocks.
    floor: usize,
    /// Whether the mapping is of an immutable memory file.
    frozen: bool,
    /// Whether any byte was opened for writing since `taken_as_read`.
    changed: bool,
    /// The offset of the first chunk that no write has reached: memory of the reserve may replace it.
    chunks_from: usize,
    /// How often chunks went to the reserve.
    recycled: u8,
    /// Whether the memory may begin with any content of its tenant.
    used: bool,
    pins: Vec<(Range<usize>, Weak<()>)>,
}

impl Backing {
    /// Maps `length` bytes. Fails only when the address space or the kernel's accounting does.
    pub fn map(length: usize, reclaimer: &Reclaimer) -> io::Result<Backing> {
        Ok(Backing::over(Backing::new_pages(length, length)?, 0, length, None, reclaimer))
    }

    /// As `map`, for a tenant, which may reuse the memory shortly after it is freed. With `used`,
    /// the bytes begin with any content of the same tenant, but of no other: only for a caller that
    /// reads no byte before writing it.
    pub fn map_for(
        tenant: Tenant,
        used: bool,
        length: usize,
        reclaimer: &Reclaimer,
    ) -> io::Result<Backing> {
        Backing::map_part(tenant, used, (length, length), reclaimer)
    }

    /// As `map_for`, of which only the bytes before a capacity can be accessed, until `enlarge`. The
    /// others take no memory.
    pub fn map_part(
        tenant: Tenant,
        used: bool,
        (length, capacity): (usize, usize),
        reclaimer: &Reclaimer,
    ) -> io::Result<Backing> {
        let kept = used.then(|| reclaimer.take(tenant, (length, capacity))).flatten();
        let (raw, written) = match kept {
            Some(Used { raw, written, owner }) => {
                assert_eq!(owner, tenant, "INV-04: memory of a tenant is reused for another one");
                (raw, written)
            }
            None => (Backing::new_pages(length, capacity)?, 0),
        };
        let mut backing = Backing::over(raw, written, capacity, Some(tenant), reclaimer);
        backing.used = used;
        Ok(backing)
    }

    /// The tenant whose memory this is, with its content after it was freed (INV-04).
    pub fn tenant(&self) -> Option<Tenant> {
        self.mapping.tenant
    }

    /// Bytes from the first to the last that may differ from zero.
    pub fn written(&self) -> usize {
        self.mapping.written.load(Relaxed)
    }

    fn new_pages(length: usize, capacity: usize) -> io::Result<MmapRaw> {
        assert!(0 < capacity && capacity <= length, "INV-60: {capacity} of {length} bytes");
        let mut options = MmapOptions::new();
        options.len(length);
        // Miri, which runs the tests of this module (`make unsafe`), does not support reservations.
        #[cfg(not(miri))]
        options.no_reserve_swap();
        let raw: MmapRaw = options.map_anon()?.into();
        if length >= HUGE_FROM {
            // Only hints: without huge pages the block works too, with more page faults.
            let _ = raw.advise(match capacity < HUGE_PAGE {
                true => memmap2::Advice::NoHugePage,
                false => memmap2::Advice::HugePage,
            });
        }
        Ok(raw)
    }

    fn over(
        raw: MmapRaw,
        written: usize,
        capacity: usize,
        tenant: Option<Tenant>,
        reclaimer: &Reclaimer,
    ) -> Backing {
        let length = raw.len();
        let mapping = Mapping::new(Some(raw), capacity, tenant, reclaimer);
        mapping.wrote(written);
        let mut backing = Backing::of(mapping, length, 0);
        backing.capacity = capacity;
        backing.chunks_from = backing.first_chunk();
        backing
    }

    /// The offset of the first chunk that no write has reached; none in a block of small pages.
    fn first_chunk(&self) -> usize {
        match self.mapping.reclaimer.chunk_bytes() {
            Some(chunk) if self.length >= HUGE_FROM && self.capacity >= HUGE_PAGE => {
                let written = self.written();
                // SAFETY: the sum is an address inside the mapping, or just behind it.
                let reached = unsafe { self.mapping.ptr().add(written) };
                written + reached.align_offset(chunk)
            }
            _ => usize::MAX,
        }
    }

    /// Lets the block use its bytes up to a larger capacity.
    pub fn enlarge(&mut self, capacity: usize) {
        let Backing { capacity: before, length, .. } = *self;
        assert!(before <= capacity && capacity <= length, "INV-60: {before}, {capacity}, {length}");
        self.capacity = capacity;
        if self.mapping.raw.is_none() || before == capacity {
            return;
        }
        let is_small = before < HUGE_PAGE && capacity >= HUGE_PAGE;
        if is_small && self.continue_in_freed() {
            return;
        }
        self.mapping.reclaimer.maps(capacity - before);
        self.mapping.capacity.store(capacity, Relaxed);
        if is_small && length >= HUGE_FROM {
            self.use_huge_pages();
            self.chunks_from = self.first_chunk();
        }
    }

    /// Copies a block of small pages into memory of its size and capacity that its tenant has freed, if
    /// there is some: that is resident already. Pins keep the old memory.
    fn continue_in_freed(&mut self) -> bool {
        let in_memory = self.used && self.floor == 0;
        let Some(tenant) = self.mapping.tenant.filter(|_| in_memory) else { return false };
        let (reclaimer, size) = (self.mapping.reclaimer.clone(), (self.length, self.capacity));
        let Some(Used { raw, written, owner }) = reclaimer.take(tenant, size) else { return false };
        assert_eq!(owner, tenant, "INV-04: memory of a tenant is reused for another one");
        let mut new = Backing::over(raw, written, self.capacity, Some(tenant), &reclaimer);
        let content = self.written();
        new.slice_mut(0..content).copy_from_slice(self.slice(0..content));
        (self.mapping, self.chunks_from) = (new.mapping.clone(), new.chunks_from);
        true
    }

    /// Replaces the small pages of the block's beginning by a huge page, unless they are pinned.
    fn use_huge_pages(&mut self) {
        let raw = self.mapping.raw.as_ref().expect("memory that is there");
        // Only a hint, as for a new block.
        let _ = raw.advise(memmap2::Advice::HugePage);
        let (written, first) = (self.written(), 0..HUGE_PAGE);
        if written == 0 || written > HUGE_PAGE || self.is_pinned(&first) {
            return;
        }
        // SAFETY: the first page is inside the mapping, which is private anonymous memory.
        // `&mut self` excludes every borrow, and no pin reads it.
        unsafe { Chunk::replace(self.mapping.ptr(), HUGE_PAGE, written) };
    }

    fn of(mapping: Mapping, length: usize, floor: usize) -> Backing {
        Backing {
            mapping: Arc::new(mapping),
            length,
            capacity: length,
            floor,
            frozen: false,
            changed: false,
            chunks_from: usize::MAX,
            recycled: 0,
            used: false,
            pins: Vec::new(),
        }
    }

    /// A block of `length` bytes without memory: reading or writing any byte is a defect and panics
    /// (INV-41).
    pub fn absent(length: usize, reclaimer: &Reclaimer) -> Backing {
        Backing::of(Mapping::new(None, length, None, reclaimer), length, length)
    }

    /// Memory outside of blocks: its bytes are added to a counter now, and subtracted when they are
    /// no longer readable. Zero at first.
    pub fn counted(
        length: usize,
        count: &Arc<AtomicUsize>,
        reclaimer: &Reclaimer,
    ) -> io::Result<Backing> {
        let raw = Backing::new_pages(length, length)?;
        count.fetch_add(length, Relaxed);
        let mut mapping = Mapping::new(Some(raw), length, None, reclaimer);
        mapping.counted = Some(count.clone());
        Ok(Backing::of(mapping, length, 0))
    }

    /// Moves the bytes before this to a lower tier: they can no longer be accessed here.
    pub fn set_floor(&mut self, floor: usize) {
        assert!(floor <= self.length, "a block has {} bytes, not {floor}", self.length);
        self.floor = floor;
    }

    /// The offset of the first byte in memory: 0 for most blocks, the length if no byte is in
    /// memory.
    pub fn floor(&self) -> usize {
        self.floor
    }

    /// Moves the memory out of a block, which is absent from now on. Pinned ranges stay readable.
    pub fn extract(&mut self) -> Backing {
        let absent = Backing::absent(self.length, &self.mapping.reclaimer);
        std::mem::replace(self, absent)
    }

    /// Records that another place has the current content too: only later writes are changes.
    pub fn taken_as_read(&mut self) {
        self.changed = false;
    }

    /// Whether any byte was opened for writing since it was mapped, or since `taken_as_read`.
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// Whether a pin also holds the memory, even if it reads only a part.
    pub fn is_held(&self) -> bool {
        Arc::strong_count(&self.mapping) > 1
    }

    /// Replaces the memory by a copy of the block's first bytes, for good: the old memory is
    /// returned to the operating system when its last pin is dropped. The block now has the length
    /// of the copy and is read-only: writing is a defect and panics. After an error the block is
    /// unchanged.
    pub fn freeze(&mut self, copy: &Shared) -> io::Result<()> {
        assert!(copy.len() <= self.length, "a copy of these bytes");
        let raw = MmapOptions::new().len(copy.len()).map_raw_read_only(&copy.file())?;
        let (length, reclaimer) = (copy.len(), &self.mapping.reclaimer);
        self.mapping = Arc::new(Mapping::new(Some(raw), length, None, reclaimer));
        (self.length, self.capacity) = (length, length);
        self.chunks_from = usize::MAX;
        self.frozen = true;
        Ok(())
    }

    /// The end of the bytes that can be accessed.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Length of the block in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Always false: a block has bytes.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Reads a range.
    pub fn slice(&self, range: Range<usize>) -> &[u8] {
        self.check(&range);
        // SAFETY: the range is inside the mapping (checked), which lives as long as `self`. The
        // memory is initialised (zero pages). Writers need `&mut self`, so none exists while this
        // borrow does; pins only read.
        unsafe { std::slice::from_raw_parts(self.mapping.ptr().add(range.start), range.len()) }
    }

    /// Prefetches the cache lines of a range that is about to be read. Only a hint: without
    /// hardware support, or for a range outside the block, it does nothing.
    #[inline]
    pub fn prefetch(&self, range: Range<usize>) {
        if range.end > self.length || range.start < self.floor {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        for at in (range.start & !(CACHE_LINE - 1)..range.end).step_by(CACHE_LINE) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: the address is inside the mapping (checked above, and the mapping lives as
            // long as `self`); a prefetch reads nothing that the program could see.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.mapping.ptr().add(at).cast::<i8>()) };
        }
    }

    /// Opens a range for writing.
    ///
    /// Panics if the range is pinned: the layout of a block must not reuse bytes that a pin still
    /// reads (see `is_pinned`).
    pub fn slice_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        self.check(&range);
        assert!(!self.is_pinned(&range), "bytes {range:?} are pinned and cannot be written");
        assert!(!self.frozen, "a frozen block cannot be written");
        self.changed = true;
        if range.end > self.chunks_from {
            self.install_chunks(&range);
        }
        self.mapping.wrote(range.end);
        // SAFETY: the range is inside the mapping (checked). `&mut self` excludes every other
        // borrow through this backing, and the assertion above excludes every live pin on it, so
        // nobody else reads or writes these bytes while the borrow lives.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.ptr().add(range.start), range.len()) }
    }

    /// Replaces unwritten chunks by memory of the reserve, before a write to this range reaches them.
    #[cold]
    fn install_chunks(&mut self, range: &Range<usize>) {
        let Some(size) = self.mapping.reclaimer.chunk_bytes() else { return };
        while self.chunks_from < range.end {
            let chunk = self.chunks_from..self.chunks_from + size;
            if chunk.end > self.capacity {
                if self.capacity == self.length {
                    self.chunks_from = usize::MAX;
                }
                return;
            }
            self.chunks_from = chunk.end;
            // A block of little content takes no whole chunk.
            let grows = chunk.start >= size || range.len() >= size / 2;
            if range.start < chunk.end && grows && !self.is_pinned(&chunk) {
                let written = self.mapping.written.load(Relaxed);
                assert!(written <= chunk.start, "INV-04: {written} bytes are written, {chunk:?}");
                // SAFETY: the chunk is inside the mapping (checked), which is private anonymous
                // memory. `&mut self` excludes every borrow, and no pin reads the chunk; nothing
                // was written in it (asserted): it is zero before and afterwards.
                unsafe { self.mapping.reclaimer.install(self.mapping.ptr().add(chunk.start)) };
            }
        }
    }

    /// Moves bytes within the block, like `memmove`. Neither range may be pinned.
    pub fn copy_within(&mut self, from: Range<usize>, to: usize) {
        let span = from.start.min(to)..from.end.max(to + from.len());
        self.check(&span);
        assert!(!self.is_pinned(&(to..to + from.len())), "the target of a move is pinned");
        assert!(!self.frozen, "a frozen block cannot be written");
        self.changed = true;
        if span.end > self.chunks_from {
            self.install_chunks(&span);
        }
        self.mapping.wrote(span.end);
        // SAFETY: both ranges are inside the mapping (checked through their span); `copy` allows
        // overlap; `&mut self` excludes other borrows and no pin reads the target.
        unsafe {
            let base = self.mapping.ptr();
            std::ptr::copy(base.add(from.start), base.add(to), from.len());
        }
    }

    /// Returns the whole pages of a range to the operating system: their bytes are zero then, and
    /// take memory again when they are written. The range must not be pinned. Returns false if the
    /// system refused; the bytes are then unchanged.
    pub fn discard(&mut self, range: Range<usize>) -> bool {
        self.check(&range);
        assert!(!self.is_pinned(&range), "bytes {range:?} are pinned and cannot be discarded");
        assert!(!self.frozen, "a frozen block cannot be discarded");
        let page = page_size();
        let (from, to) = (range.start.next_multiple_of(page), range.end / page * page);
        if from >= to {
            return true;
        }
        self.changed = true;
        // SAFETY: the pages are inside the mapping (checked). `&mut self` excludes every borrow
        // through this backing, and the assertion excludes every live pin, so nothing relies on the
        // content of the bytes while they become zero.
        unsafe { self.mapping.give_back(from..to) }
    }

    /// Returns the memory behind `from`, which must not be pinned: its bytes are zero then, as if
    /// they had never been written. Whole chunks go to the reserve while blocks grow, and the rest to
    /// the operating system.
    pub fn shed(&mut self, from: usize) {
        let end = self.written().next_multiple_of(page_size()).min(self.capacity);
        let from = from.next_multiple_of(page_size());
        if from >= end {
            return;
        }
        // Behind the end, bytes that were never written can be pinned: a chunk may have such bytes.
        let behind = from..self.capacity;
        self.check(&behind);
        assert!(!self.is_pinned(&behind), "bytes behind {from} are pinned and cannot be shed");
        assert!(!self.frozen, "a frozen block cannot be shed");
        let mut first = usize::MAX;
        if let Some(size) = self.mapping.reclaimer.chunk_bytes()
            && self.length >= HUGE_FROM
            && self.capacity >= HUGE_PAGE
        {
            // SAFETY: the address is inside the mapping (checked).
            first = from + unsafe { self.mapping.ptr().add(from) }.align_offset(size);
            let chunks = (first..end).step_by(size).take_while(|at| at + size <= self.capacity);
            let chunks = chunks.filter(|_| self.recycled < RECYCLING_SHEDS);
            // SAFETY: the chunk is inside the mapping (checked), which is private anonymous memory.
            // `&mut self` excludes every borrow, and no pin reads the chunk.
            let taken = |at| unsafe { self.mapping.reclaimer.recycle(self.mapping.ptr().add(at)) };
            let some = chunks.take_while(|at| taken(*at)).count() > 0;
            self.recycled += u8::from(some);
        }
        if self.discard(from..end) {
            self.mapping.written.store(from, Relaxed);
            self.chunks_from = self.chunks_from.min(first);
        }
    }

    /// Keeps a range readable beyond the life of this backing. The range cannot be written until
    /// the pin is dropped.
    pub fn pin(&mut self, range: Range<usize>) -> Pin {
        self.check(&range);
        self.forget_dropped_pins();
        let token = Arc::new(());
        self.pins.push((range.clone(), Arc::downgrade(&token)));
        Pin { mapping: self.mapping.clone(), range, _token: token }
    }

    /// Whether a live pin reads any byte of the range.
    pub fn is_pinned(&mut self, range: &Range<usize>) -> bool {
        if self.pins.is_empty() {
            return false;
        }
        self.forget_dropped_pins();
        self.pins.iter().any(|(pin, _)| pin.start < range.end && range.start < pin.end)
    }

    fn forget_dropped_pins(&mut self) {
        self.pins.retain(|(_, token)| token.strong_count() > 0);
        // Another thread's release stored a count of zero; after this fence, its reads of the range
        // have happened before our writes to it.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
    }

    fn check(&self, range: &Range<usize>) {
        assert!(
            self.floor <= range.start && range.start <= range.end && range.end <= self.capacity,
            "INV-41, INV-60: bytes {range:?} are outside those of a block that are in memory, {} to \
             {}",
            self.floor,
            self.capacity
        );
    }
}

impl Drop for Backing {
    /// The remaining pins keep only their own ranges: an unread reply of a few bytes does not keep
    /// a whole block's memory.
    fn drop(&mut self) {
        if self.pins.is_empty() || self.frozen {
            return;
        }
        self.forget_dropped_pins();
        if self.pins.is_empty() {
            return;
        }
        let mut read: Vec<Range<usize>> = self.pins.drain(..).map(|(range, _)| range).collect();
        read.sort_by_key(|range| range.start);
        let page = page_size();
        let end = self.mapping.written.load(Relaxed).next_multiple_of(page).min(self.length);
        let (mut parts, mut from) = (Vec::new(), 0);
        for range in read {
            let to = range.start / page * page;
            if from < to {
                parts.push(from..to);
            }
            from = from.max(range.end.next_multiple_of(page));
        }
        if from < end {
            parts.push(from..end);
        }
        if !parts.is_empty() {
            let mapping = Arc::downgrade(&self.mapping);
            self.mapping.reclaimer.trim(Trim { mapping, parts });
        }
    }
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backing({} bytes, {} pins)", self.length, self.pins.len())
    }
}

/// A range of a block that stays readable, and unchanged, until this and its clones are dropped.
#[derive(Clone)]
pub struct Pin {
    mapping: Arc<Mapping>,
    range: Range<usize>,
    _token: Arc<()>,
}

impl Pin {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range was checked when the pin was made and the mapping is kept alive by the
        // `Arc`. While the token lives, `Backing::slice_mut` and `copy_within` refuse to touch the
        // range, so the bytes are not written while they are shared.
        unsafe {
            std::slice::from_raw_parts(self.mapping.ptr().add(self.range.start), self.range.len())
        }
    }
}

impl PartialEq for Pin {
    fn eq(&self, other: &Pin) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Pin {}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({:?})", self.range)
    }
}

// SAFETY: a mapping is plain memory that belongs to no thread, and the pointer is followed only
// under the rules above: shared by pins for reading, exclusive through `&mut Backing`.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; `&Mapping` itself gives no access to the bytes outside this module.
unsafe impl Sync for Mapping {}

#[cfg(test)]
mod tests {
    use super::*;

    fn backing(length: usize) -> Backing {
        Backing::map(length, &Reclaimer::inline()).unwrap()
    }

    #[test]
    fn memory_begins_as_zero_and_keeps_what_is_written() {
        let mut b = backing(65536);
        assert!(b.slice(0..65536).iter().all(|x| *x == 0));
        b.slice_mut(10..13).copy_from_slice(b"abc");
        b.copy_within(10..13, 11);
        assert_eq!(b.slice(10..14), b"aabc");
    }

    #[test]
    fn a_pin_outlives_its_block_and_its_bytes_do_not_change() {
        let mut b = backing(65536);
        b.slice_mut(0..3).copy_from_slice(b"abc");
        let pin = b.pin(0..3);
        assert!(b.is_pinned(&(2..4)));
        b.slice_mut(3..6).copy_from_slice(b"def");
        drop(b);
        let other = std::thread::spawn(move || pin.bytes().to_vec()).join().unwrap();
        assert_eq!(other, b"abc");
    }

    #[test]
    #[should_panic(expected = "pinned")]
    fn a_pinned_range_cannot_be_written() {
        let mut b = backing(65536);
        let _pin = b.pin(0..3);
        b.slice_mut(2..4);
    }

    #[test]
    fn a_dropped_pin_frees_its_range() {
        let mut b = backing(65536);
        drop(b.pin(0..3));
        b.slice_mut(0..3);
    }

    /// All accesses to bytes, at random, compared with a plain array, while pins are made and
    /// dropped.
    #[test]
    fn a_block_is_an_array_with_pins() {
        const LENGTH: usize = 8192;
        let (steps, mut state) = (if cfg!(miri) { 400 } else { 40_000 }, 7u64);
        let mut random = move |below: usize| {
            state =
                state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
            (state >> 33) as usize % below
        };
        let (mut b, mut model) = (backing(LENGTH), vec![0u8; LENGTH]);
        let mut pins: Vec<(Pin, Vec<u8>)> = Vec::new();
        for step in 0..steps {
            let start = random(LENGTH + 1);
            let end = (start + random(200)).min(LENGTH);
            match random(7) {
                0 if pins.len() < 8 => pins.push((b.pin(start..end), model[start..end].to_vec())),
                1 if !pins.is_empty() => drop(pins.swap_remove(random(pins.len()))),
                2 if !b.is_pinned(&(start..end)) => {
                    b.slice_mut(start..end).fill(step as u8);
                    model[start..end].fill(step as u8);
                }
                3 => {
                    let to = random(LENGTH + 1 - (end - start));
                    if !b.is_pinned(&(to..to + end - start)) {
                        b.copy_within(start..end, to);
                        model.copy_within(start..end, to);
                    }
                }
                // To the last byte, and beyond it, where a prefetch is ignored.
                4 => b.prefetch(start..LENGTH),
                5 => b.prefetch(start..end + random(2 * LENGTH)),
                _ => assert_eq!(b.slice(start..end), &model[start..end]),
            }
            for (pin, bytes) in &pins {
                assert_eq!(pin.bytes(), bytes, "pinned bytes do not change");
            }
        }
        assert_eq!(b.slice(0..LENGTH), model);
    }

    /// Another thread's reads through a pin happen before the bytes are written again: Miri reports
    /// any violation as a race.
    #[test]
    fn a_pin_that_another_thread_drops_was_read_before_the_bytes_change() {
        let mut b = backing(4096);
        for round in 0..if cfg!(miri) { 4 } else { 400u32 } {
            b.slice_mut(0..64).fill(round as u8);
            let pins = [b.pin(0..40), b.pin(20..64)];
            let readers = pins.map(|pin| {
                let clone = pin.clone();
                std::thread::spawn(move || {
                    let same = |pin: Pin| pin.bytes().iter().all(|byte| *byte == round as u8);
                    same(pin) && same(clone)
                })
            });
            while b.is_pinned(&(0..64)) {
                std::thread::yield_now();
            }
            b.slice_mut(0..64).fill(!(round as u8));
            for reader in readers {
                assert!(reader.join().unwrap(), "round {round}: bytes changed under a pin");
            }
        }
    }

    #[test]
    #[cfg(not(miri))] // which has no `madvise`
    fn what_is_discarded_is_zero_and_not_resident() {
        let mut b = backing(1 << 20);
        b.slice_mut(0..1 << 20).fill(7);
        assert!(b.discard(100..(1 << 20) - 100));
        let page = page_size();
        assert_eq!((b.slice(0..1)[0], b.slice(page - 1..page)[0]), (7, 7));
        assert!(b.slice(page..(1 << 20) - page).iter().all(|x| *x == 0));
        assert_eq!(b.slice((1 << 20) - 1..1 << 20)[0], 7);
        b.slice_mut(page..page + 1)[0] = 1;
        assert!(b.discard(10..20), "less than a page changes nothing");
    }

    #[test]
    #[should_panic(expected = "discarded")]
    fn what_is_pinned_is_not_discarded() {
        let mut b = backing(1 << 20);
        let _pin = b.pin(0..3);
        b.discard(0..1 << 20);
    }

    #[test]
    #[cfg(not(miri))] // which has no memory files
    fn a_frozen_block_reads_as_before_and_pins_keep_what_they_had() {
        let mut b = backing(65536);
        b.slice_mut(0..3).copy_from_slice(b"abc");
        b.slice_mut(3..9).copy_from_slice(b"beyond");
        let pin = b.pin(0..3);
        let shared = Shared::copy(pin.bytes()).unwrap();
        b.freeze(&shared).unwrap();
        drop(shared);
        assert_eq!((b.len(), b.slice(0..3)), (3, &b"abc"[..]));
        assert_eq!(pin.bytes(), b"abc");
        drop(pin);
        assert!(std::panic::catch_unwind(move || b.slice_mut(0..1).fill(0)).is_err());
    }

    const ONE: Tenant = Tenant(1);

    fn filled(tenant: Tenant, length: usize, with: u8, reclaimer: &Reclaimer) -> Backing {
        let mut b = Backing::map_for(tenant, true, length, reclaimer).unwrap();
        b.slice_mut(0..length).fill(with);
        b
    }

    /// INV-04: freed memory is reused only by its own tenant, the last freed first.
    #[test]
    #[cfg_attr(miri, ignore = "looks at every byte of many pages, which takes Miri minutes")]
    fn freed_memory_is_handed_on_to_its_tenant_alone() {
        // The worker does not run, so nothing is reclaimed by time.
        let (reclaimer, _worker) = Reclaimer::with_worker(1 << 20, usize::MAX, None);
        let mut held = Vec::new();
        let mut begins_with = |tenant, used, length| {
            let b = Backing::map_for(tenant, used, length, &reclaimer).unwrap();
            let first = b.slice(0..1)[0];
            assert!(b.slice(0..length).iter().all(|x| *x == first));
            // Held until the end.
            held.push(b);
            first
        };
        let two = [7, 8].map(|with| filled(ONE, 65536, with, &reclaimer));
        drop(two);
        drop(filled(ONE, 4096, 9, &reclaimer));
        drop(Backing::map_for(ONE, false, 65536, &reclaimer).unwrap());
        assert_eq!(begins_with(Tenant(2), true, 65536), 0, "of another tenant");
        assert_eq!(begins_with(ONE, false, 65536), 0, "for one that wants zeros");
        assert_eq!(begins_with(ONE, true, 65536), 8);
        assert_eq!(begins_with(ONE, true, 65536), 7);
        assert_eq!(begins_with(ONE, true, 65536), 0, "there is no other that was written");
        // Pinned memory is not reused, and frozen memory never is.
        let mut read = filled(ONE, 65536, 5, &reclaimer);
        let pin = read.pin(0..1);
        drop(read);
        assert_eq!(begins_with(ONE, true, 65536), 0);
        drop(pin);
        assert_eq!(begins_with(ONE, true, 65536), 5);
        // Beyond the limit, the oldest is reclaimed.
        let many: Vec<Backing> =
            (1..=17).map(|with| filled(ONE, 65536, with, &reclaimer)).collect();
        drop(many);
        let found: Vec<u8> = (0..17).map(|_| begins_with(ONE, true, 65536)).collect();
        assert_eq!(found, (2..=17).rev().chain([0]).collect::<Vec<u8>>());
    }

    /// A partly pinned mapping keeps only the pinned part, if the pin lives longer than a tick.
    #[test]
    #[cfg(not(miri))] // which would wait in its own time
    fn what_is_read_of_a_freed_block_keeps_no_more_than_that() {
        let resident = |pin: &Pin, page: usize| {
            let mut pages = [0u8; 16];
            let from = pin.mapping.ptr();
            // SAFETY: the pages are those of a live mapping, and there is a byte for each.
            let told = unsafe { libc::mincore(from.cast(), 65536, pages.as_mut_ptr()) };
            assert_eq!(told, 0);
            pages[page] & 1 == 1
        };
        let (reclaimer, worker) = Reclaimer::with_worker(1 << 20, usize::MAX, None);
        let running = std::thread::spawn(move || worker.run());
        let mut b = filled(ONE, 65536, 7, &reclaimer);
        let (pin, other) = (b.pin(5000..5001), b.pin(20_000..30_000));
        drop(b);
        while (0..16).any(|page| resident(&pin, page) != [1, 4, 5, 6, 7].contains(&page)) {
            std::thread::yield_now();
        }
        assert!(pin.bytes() == [7] && other.bytes().iter().all(|byte| *byte == 7));
        drop((pin, other));
        drop(reclaimer);
        running.join().unwrap();
    }

    /// INV-32: if all memory is in use none is cached, and cached memory is reclaimed first.
    #[test]
    #[cfg_attr(miri, ignore = "looks at every byte of many pages, which takes Miri minutes")]
    fn what_is_kept_and_what_is_in_use_are_bounded_together() {
        let (reclaimer, _worker) = Reclaimer::with_worker(1 << 20, 4 * 65536, None);
        let mut all: Vec<Backing> = (0..4).map(|n| filled(ONE, 65536, n, &reclaimer)).collect();
        drop(all.pop());
        assert_eq!(reclaimer.keeps(), 65536, "there is room for one");
        all.push(Backing::map_for(Tenant(2), true, 65536, &reclaimer).unwrap());
        assert_eq!(reclaimer.keeps(), 0, "another tenant has it in use");
        all.push(filled(ONE, 65536, 9, &reclaimer));
        drop(all.pop());
        assert_eq!(reclaimer.keeps(), 0);
    }

    /// A steady stream of immediate reclaims does not delay the worker's ticks.
    #[test]
    #[cfg(not(miri))] // which would wait in its own time
    fn what_is_kept_goes_back_while_other_memory_comes_and_goes() {
        let (reclaimer, worker) = Reclaimer::with_worker(1 << 20, usize::MAX, None);
        let running = std::thread::spawn(move || worker.run());
        drop(filled(ONE, 65536, 7, &reclaimer));
        let turns = (0..10_000_000).take_while(|_| {
            // Without a tenant it cannot be reused, and is reclaimed at once.
            drop(Backing::map(4096, &reclaimer).unwrap());
            reclaimer.keeps() > 0
        });
        assert!(turns.count() < 10_000_000, "it is kept for ever");
        drop(reclaimer);
        running.join().unwrap();
    }

    /// Cached memory that is not reused is reclaimed by time, and at the end.
    #[test]
    #[cfg(not(miri))] // which would wait in its own time
    fn what_is_kept_too_long_is_given_back() {
        let (reclaimer, worker) = Reclaimer::with_worker(1 << 20, usize::MAX, None);
        let running = std::thread::spawn(move || worker.run());
        drop(filled(ONE, 65536, 7, &reclaimer));
        // The time is the worker's own, so the test can only poll.
        while reclaimer.keeps() > 0 {
            std::thread::yield_now();
        }
        drop(filled(ONE, 65536, 7, &reclaimer));
        drop(reclaimer);
        running.join().unwrap();
    }

    const BLOCK: usize = 8 << 20;

    fn part(capacity: usize, reclaimer: &Reclaimer) -> Backing {
        Backing::map_part(ONE, true, (BLOCK, capacity), reclaimer).unwrap()
    }

    #[test]
    #[cfg(not(miri))] // which cannot move pages
    fn block_that_is_enlarged_keeps_its_bytes_and_is_zero_behind_them() {
        for pinned in [false, true] {
            let mut b = part(65536, &Reclaimer::inline());
            b.slice_mut(0..65536).fill(7);
            let pin = pinned.then(|| b.pin(1..3));
            for capacity in [256 << 10, 2 << 20, BLOCK] {
                b.enlarge(capacity);
                assert!(b.slice(0..65536).iter().all(|byte| *byte == 7), "{capacity}");
                assert!(b.slice(65536..capacity).iter().all(|byte| *byte == 0), "{capacity}");
            }
            assert!(pin.is_none_or(|pin| pin.bytes() == [7, 7]));
            b.slice_mut(BLOCK - 1..BLOCK)[0] = 1;
        }
    }

    #[test]
    #[should_panic(expected = "INV-60")]
    fn bytes_beyond_the_capacity_cannot_be_written() {
        part(65536, &Reclaimer::inline()).slice_mut(65535..65537);
    }

    /// INV-04, INV-32: memory counts up to its capacity, and a block that grows continues in memory that
    /// its tenant has freed.
    #[test]
    #[cfg_attr(miri, ignore = "looks at every byte of many pages, which takes Miri minutes")]
    fn block_that_grows_continues_in_freed_memory_of_its_tenant_alone() {
        let (reclaimer, _worker) = Reclaimer::with_worker(BLOCK, 3 * BLOCK, None);
        drop(filled(ONE, BLOCK, 9, &reclaimer));
        let mut other = Backing::map_part(Tenant(2), true, (BLOCK, 65536), &reclaimer).unwrap();
        assert!(reclaimer.has_freed(ONE, BLOCK) && !reclaimer.has_freed(Tenant(2), BLOCK));
        other.enlarge(BLOCK);
        assert_eq!(other.slice(BLOCK - 1..BLOCK)[0], 0, "of another tenant");
        let mut b = part(65536, &reclaimer);
        b.slice_mut(0..3).copy_from_slice(b"abc");
        let pin = b.pin(0..3);
        b.enlarge(BLOCK);
        assert_eq!((b.slice(0..3), pin.bytes()), (&b"abc"[..], &b"abc"[..]));
        assert_eq!((b.slice(BLOCK - 1..BLOCK)[0], reclaimer.keeps()), (9, 0));
        assert!(!reclaimer.has_freed(ONE, BLOCK));
        drop((b, pin, other));
        assert!(reclaimer.keeps() <= BLOCK, "no more is kept");
    }

    #[test]
    fn what_is_taken_out_of_a_block_is_held_while_it_is_read() {
        let mut b = backing(65536);
        b.slice_mut(0..3).copy_from_slice(b"abc");
        let pin = b.pin(0..3);
        let memory = b.extract();
        assert_eq!((b.floor(), memory.floor(), memory.is_held()), (65536, 0, true));
        assert_eq!((b.len(), memory.slice(0..3)), (65536, &b"abc"[..]));
        drop(pin);
        assert!(!memory.is_held());
        // A prefetch is not visible.
        b.prefetch(0..64);
    }

    #[test]
    #[should_panic(expected = "INV-41")]
    fn what_is_absent_cannot_be_read() {
        Backing::absent(65536, &Reclaimer::inline()).slice(0..1);
    }

    #[test]
    #[should_panic(expected = "INV-41")]
    fn what_lies_before_the_floor_cannot_be_written() {
        let mut b = backing(65536);
        b.set_floor(16384);
        b.slice_mut(16384..16385)[0] = 1;
        b.slice_mut(16383..16385);
    }

    #[test]
    fn counted_memory_counts_until_nobody_reads_it() {
        let count = Arc::default();
        let mut b = Backing::counted(8192, &count, &Reclaimer::inline()).unwrap();
        let pin = b.pin(0..100);
        drop(b);
        assert_eq!(count.load(Relaxed), 8192);
        drop(pin);
        assert_eq!(count.load(Relaxed), 0);
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn nothing_beyond_the_block_can_be_reached() {
        backing(65536).slice(65530..65537);
    }
}
