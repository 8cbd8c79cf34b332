//! One block's memory and the pins on it.
#![allow(unsafe_code)]

use crate::reclaim::{BUFFERS, Reclaimer, Tenant, Trim, Used};
use crate::reserve::Chunk;
use crate::shared::Shared;
use memmap2::{MmapOptions, MmapRaw, UncheckedAdvice};
use rustix::param::page_size;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Blocks of at least this many bytes request huge pages: an eighth of them, by which capacities grow and
/// shrink, is at least a huge page.
pub const HUGE_FROM: usize = 8 * HUGE_PAGE;

/// A huge page: a block whose capacity is less begins with small pages, so that one of little content takes
/// little memory.
const HUGE_PAGE: usize = 2 << 20;

/// How often the chunks of one block can go to the reserve. Those of one offset share a record of the kernel,
/// which it searches for every page that it inspects.
const RECYCLING_SHEDS: u8 = 16;

/// Memory outside of blocks of up to so many bytes is mapped in sizes of powers of two.
const ROUNDED_TO: usize = 1 << 20;

/// Bytes that the processor fetches together.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 64;

/// The mapping behind a backing and its pins. Its drop passes the pages to the reclaimer, because
/// unmapping many of them would delay a data core for too long.
pub(crate) struct Mapping {
    raw: Option<MmapRaw>,
    /// The end of the last byte that any owner of these pages has written.
    written: AtomicUsize,
    /// Bytes that count as mapped. The bytes behind them are untouched.
    capacity: AtomicUsize,
    /// Whether huge pages are requested, if there is room for one.
    is_huge: AtomicBool,
    /// The tenant that may reuse these pages with their content; `None` if they are not written in
    /// place.
    tenant: Option<Tenant>,
    reclaimer: Reclaimer,
    /// A counter that includes so many bytes for as long as these are readable.
    counted: Option<(Arc<AtomicUsize>, usize)>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (is_huge, capacity) = (*self.is_huge.get_mut(), *self.capacity.get_mut());
        if capacity >= HUGE_PAGE && !is_huge {
            // The next owner begins as in new memory.
            self.advise(true);
        }
        if let Some(raw) = self.raw.take() {
            if let Some((counted, bytes)) = &self.counted {
                counted.fetch_sub(*bytes, Relaxed);
            }
            let written = *self.written.get_mut();
            self.reclaimer.give(raw, self.tenant, written, capacity);
        }
    }
}

fn advise(raw: &MmapRaw, huge: bool) {
    if raw.len() >= HUGE_FROM {
        let _ = raw.advise(match huge {
            true => memmap2::Advice::HugePage,
            false => memmap2::Advice::NoHugePage,
        });
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
        Mapping {
            raw,
            written: AtomicUsize::new(0),
            capacity: capacity.into(),
            is_huge: AtomicBool::new(capacity >= HUGE_PAGE),
            tenant,
            reclaimer: reclaimer.clone(),
            counted: None,
        }
    }

    /// Requests huge pages, or small ones: then the kernel does not add the returned part of a huge page
    /// again. Only a hint: without huge pages everything works too, with more page faults.
    fn advise(&self, huge: bool) {
        if let Some(raw) = &self.raw {
            advise(raw, huge);
        }
        self.is_huge.store(huge, Relaxed);
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

    /// The first offset from this one on whose address is a multiple of `align`.
    fn aligned(&self, at: usize, align: usize) -> usize {
        let length = self.raw.as_ref().map_or(0, MmapRaw::len);
        assert!(at <= length, "a mapping has {length} bytes, not {at}");
        // SAFETY: the sum is an address inside the mapping (asserted), or just behind it.
        at + unsafe { self.ptr().add(at) }.align_offset(align)
    }

    fn has_huge_pages(&self) -> bool {
        let length = self.raw.as_ref().map_or(0, MmapRaw::len);
        length >= HUGE_FROM && self.capacity.load(Relaxed) >= HUGE_PAGE
    }

    /// The end of the memory that is resident if so many bytes are written: a huge page is as a whole.
    fn page_end(&self, bytes: usize) -> usize {
        if bytes > 0 && self.has_huge_pages() { self.aligned(bytes, HUGE_PAGE) } else { bytes }
    }

    /// Whether only a part of some requested huge page is in the range.
    fn splits_huge_page(&self, pages: Range<usize>) -> bool {
        let is_whole = |at| self.aligned(at, HUGE_PAGE) == at;
        let is_huge = self.is_huge.load(Relaxed) && self.has_huge_pages();
        is_huge && !(is_whole(pages.start) && is_whole(pages.end))
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
/// The bytes are zero at first, unless the caller waived that (`map_part`). Only written bytes are
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

    /// As `map`, for a tenant, which may reuse the memory shortly after it is freed. Only the bytes before a
    /// capacity can be accessed, until `enlarge`; the others take no memory. With `used`, the bytes begin
    /// with any content of the same tenant, but of no other: only for a caller that reads no byte before
    /// writing it.
    pub fn map_part(
        tenant: Tenant,
        used: bool,
        (length, capacity): (usize, usize),
        reclaimer: &Reclaimer,
    ) -> io::Result<Backing> {
        let size = (length, capacity);
        let kept = used.then(|| Backing::over_freed(tenant, size, reclaimer)).flatten();
        let mut backing = match kept {
            Some(backing) => backing,
            None => {
                let raw = Backing::new_pages(length, capacity)?;
                Backing::over(raw, 0, capacity, Some(tenant), reclaimer)
            }
        };
        backing.used = used;
        Ok(backing)
    }

    /// Memory of this length and capacity that the tenant has freed, with its content, if there is some.
    fn over_freed(tenant: Tenant, size: (usize, usize), reclaimer: &Reclaimer) -> Option<Backing> {
        let Used { raw, written, owner } = reclaimer.take(tenant, size)?;
        assert_eq!(owner, tenant, "INV-04: memory of a tenant is reused for another one");
        Some(Backing::over(raw, written, size.1, Some(tenant), reclaimer))
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
        advise(&raw, capacity >= HUGE_PAGE);
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
        backing.chunks_from = backing.chunk_from(written);
        backing
    }

    /// The offset of the first chunk behind so many bytes of the block; none in one of small pages. Each huge
    /// page counts as one where they are to be requested again.
    fn chunk_from(&self, bytes: usize) -> usize {
        let mapping = &self.mapping;
        let one = (!mapping.is_huge.load(Relaxed)).then_some(HUGE_PAGE);
        match mapping.reclaimer.chunk_bytes().or(one) {
            Some(chunk) if mapping.has_huge_pages() => mapping.aligned(bytes, chunk),
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
            self.chunks_from = self.chunk_from(self.written());
        }
    }

    /// Reduces the capacity, and frees the memory behind the new capacity. Returns false if a pin reads bytes
    /// there, or if the system keeps the memory: then the capacity stays.
    pub fn reduce(&mut self, capacity: usize) -> bool {
        let Backing { capacity: before, floor, frozen, .. } = *self;
        assert!(0 < capacity && capacity <= before, "INV-60: {capacity} of {before} bytes stay");
        assert!(floor == 0 && !frozen, "INV-60: a block that is not in memory gives memory back");
        if self.is_pinned(&(capacity..before)) {
            return false;
        }
        self.shed_rest(capacity);
        if self.written() > capacity {
            return false;
        }
        self.capacity = capacity;
        self.mapping.reclaimer.unmaps(before - capacity);
        self.mapping.capacity.store(capacity, Relaxed);
        self.chunks_from = self.chunk_from(self.written());
        if capacity < HUGE_PAGE {
            self.mapping.advise(false);
        }
        true
    }

    /// Copies a block of small pages into memory of its size and capacity that its tenant has freed, if
    /// there is some: that is resident already. Pins keep the old memory.
    fn continue_in_freed(&mut self) -> bool {
        let in_memory = self.used && self.floor == 0;
        let Some(tenant) = self.mapping.tenant.filter(|_| in_memory) else { return false };
        let (reclaimer, size) = (self.mapping.reclaimer.clone(), (self.length, self.capacity));
        let Some(mut new) = Backing::over_freed(tenant, size, &reclaimer) else { return false };
        let content = self.written();
        new.slice_mut(0..content).copy_from_slice(self.slice(0..content));
        (self.mapping, self.chunks_from) = (new.mapping.clone(), new.chunks_from);
        true
    }

    /// Replaces the small pages of the block's beginning by a huge page, unless they are pinned.
    fn use_huge_pages(&mut self) {
        self.mapping.advise(true);
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
    /// no longer readable. Zero at first, also if it was such memory just before (INV-04).
    pub fn counted(
        length: usize,
        count: &Arc<AtomicUsize>,
        reclaimer: &Reclaimer,
    ) -> io::Result<Backing> {
        let size = match length <= ROUNDED_TO {
            true => length.next_power_of_two().max(page_size()),
            false => length,
        };
        let (raw, written) = match reclaimer.take(BUFFERS, (size, size)) {
            Some(Used { raw, written, .. }) => (raw, written),
            None => (Backing::new_pages(size, size)?, 0),
        };
        count.fetch_add(length, Relaxed);
        let mut mapping = Mapping::new(Some(raw), size, Some(BUFFERS), reclaimer);
        mapping.counted = Some((count.clone(), length));
        mapping.wrote(written);
        let mut backing = Backing::of(mapping, length, 0);
        backing.slice_mut(0..written.min(length)).fill(0);
        Ok(backing)
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

    /// Replaces unwritten chunks by memory of the reserve, before a write to this range reaches them, if they
    /// are inside the capacity. A block that grows requests huge pages again.
    #[cold]
    fn install_chunks(&mut self, range: &Range<usize>) {
        if !self.mapping.is_huge.load(Relaxed) {
            self.mapping.advise(true);
        }
        let Some(size) = self.mapping.reclaimer.chunk_bytes() else {
            self.chunks_from = usize::MAX;
            return;
        };
        while self.chunks_from < range.end {
            let chunk = self.chunks_from..self.chunks_from + size;
            self.chunks_from = chunk.end;
            // A block of little content takes no whole chunk.
            let grows = chunk.start >= size || range.len() >= size / 2;
            let fits = chunk.end <= self.capacity;
            if range.start < chunk.end && grows && fits && !self.is_pinned(&chunk) {
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
    /// system refused; the bytes are then unchanged. If a part of a huge page is returned, the block requests
    /// small pages until it grows.
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
        if self.mapping.splits_huge_page(from..to) {
            self.mapping.advise(false);
            self.chunks_from = self.chunks_from.min(self.chunk_from(self.written()));
        }
        // SAFETY: the pages are inside the mapping (checked). `&mut self` excludes every borrow
        // through this backing, and the assertion excludes every live pin, so nothing relies on the
        // content of the bytes while they become zero.
        unsafe { self.mapping.give_back(from..to) }
    }

    /// Returns the memory behind `from`, which must not be pinned: its bytes are zero then, as if
    /// they had never been written. Whole chunks go to the reserve while blocks grow, and the rest to
    /// the operating system.
    pub fn shed(&mut self, from: usize) {
        let (written, end) = (self.written(), self.mapping.page_end(self.written()));
        // The rest of a huge page that keeps some bytes stays: the next writes are probably there.
        let keeps_its_page = from < written && self.mapping.page_end(from) == end;
        self.shed_to(from, if keeps_its_page { written } else { end });
    }

    /// As `shed`, also with the rest of a huge page that keeps some bytes. For a block that is not written
    /// for a while: its next writes there touch small pages.
    pub fn shed_rest(&mut self, from: usize) {
        self.shed_to(from, self.mapping.page_end(self.written()));
    }

    fn shed_to(&mut self, from: usize, end: usize) {
        let written = self.written();
        let end = end.next_multiple_of(page_size()).min(self.capacity);
        let from = from.next_multiple_of(page_size());
        if from >= end {
            return;
        }
        // Behind the end, bytes that were never written can be pinned: a chunk may have such bytes.
        let behind = from..self.capacity;
        self.check(&behind);
        assert!(!self.is_pinned(&behind), "bytes behind {from} are pinned and cannot be shed");
        assert!(!self.frozen, "a frozen block cannot be shed");
        let first = self.chunk_from(from);
        if let Some(size) = self.mapping.reclaimer.chunk_bytes() {
            let chunks = (first..end).step_by(size).take_while(|at| at + size <= self.capacity);
            let chunks = chunks.filter(|_| self.recycled < RECYCLING_SHEDS);
            // SAFETY: the chunk is inside the mapping (checked), which is private anonymous memory.
            // `&mut self` excludes every borrow, and no pin reads the chunk.
            let taken = |at| unsafe { self.mapping.reclaimer.recycle(self.mapping.ptr().add(at)) };
            let some = chunks.take_while(|at| taken(*at)).count() > 0;
            self.recycled += u8::from(some);
        }
        if self.discard(from..end) {
            self.mapping.written.store(from.min(written), Relaxed);
            self.chunks_from = self.chunks_from.min(self.chunk_from(from));
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
            "INV-41, INV-60: bytes {range:?} are outside those of a block that are in memory, {} \
             to {}",
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
mod tests;
