//! A reserve of touched memory: pages that are resident and zero before a writer needs them.
//!
//! The first write to a page of new memory waits until the kernel has found and cleared it, which
//! takes about as long as copying into it, or several times that on a host that has to find the
//! memory first. The reserve is filled on a thread of its own; a block that reaches new memory takes
//! a whole chunk of it, by moving the entries of the page table.
#![allow(unsafe_code)]

use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap_fixed, munmap,
};
use rustix::param::page_size;
use std::io;
use std::ptr::null_mut;
use std::time::Duration;

/// The smallest chunk: a huge page.
const CHUNK_MIN: usize = 2 << 20;
/// The chunks into which all memory of a large server divides. Each is a mapping of the kernel, which
/// allows a process 65,530.
const CHUNKS_OF_ALL: usize = 16_384;

/// The size of a chunk in a server that may map this many bytes.
fn chunk_bytes(mapped_max: usize) -> usize {
    (mapped_max / CHUNKS_OF_ALL).next_power_of_two().max(CHUNK_MIN)
}

/// The size of a reserve.
#[derive(Clone, Copy, Debug)]
pub struct PageReserve {
    /// Most chunks.
    pub(crate) chunks: usize,
    /// Bytes of a chunk, a power of two.
    pub(crate) chunk: usize,
    /// The time without growth after which it is returned.
    pub(crate) idle: Duration,
    /// Whether it grows with the memory that blocks take, and not at once.
    pub(crate) is_gradual: bool,
}

impl PageReserve {
    /// A reserve of at most `bytes`, in a server that maps at most `mapped_max` bytes. `None` if
    /// that is less than one chunk, 2 MiB in a server of up to 32 GiB. It is returned to the system
    /// after `idle` without growth. An error if the system cannot move pages.
    pub fn new(bytes: usize, mapped_max: usize, idle: Duration) -> io::Result<Option<PageReserve>> {
        let chunk = chunk_bytes(mapped_max);
        if bytes < chunk {
            return Ok(None);
        }
        // A page of each is enough to see whether pages can be moved.
        let (from, to) = (Chunk::touched(page_size())?, Chunk::touched(page_size())?);
        // SAFETY: nothing refers to the pages of either chunk.
        unsafe { from.install(to.at) }?;
        Ok(Some(PageReserve { chunks: bytes / chunk, chunk, idle, is_gradual: false }))
    }

    /// Most chunks, after blocks have asked for so many: a gradual reserve has one for `of` of them.
    pub(crate) fn most(self, asked: usize, of: usize) -> usize {
        match (asked, self.is_gradual) {
            (0, _) => 0,
            (_, true) => (asked / of).min(self.chunks),
            (_, false) => self.chunks,
        }
    }

    /// With fewer chunks than this of at most `most`, the reserve is refilled while blocks take from it. With
    /// as many it is refilled after the burst, whose writes may need the core. A gradual reserve is too small
    /// for that.
    pub(crate) fn refilled_below(self, most: usize) -> usize {
        if self.is_gradual { usize::MAX } else { most / 2 }
    }

    /// The same reserve, which stays small beside the memory that blocks took since they began to grow.
    pub fn gradual(self) -> PageReserve {
        PageReserve { is_gradual: true, ..self }
    }
}

/// Resident zero pages that belong to no block. They are unmapped when it is dropped.
pub(crate) struct Chunk {
    /// Aligned to the length.
    at: *mut u8,
    len: usize,
}

// SAFETY: a chunk owns its pages, which belong to no thread.
unsafe impl Send for Chunk {}

impl Chunk {
    /// Maps new pages, each chunk apart: chunks that came from one mapping would share a record of
    /// the kernel, which it searches for every page that it inspects. Takes as long as the kernel
    /// needs to clear them.
    pub fn touched(len: usize) -> io::Result<Chunk> {
        let chunk = Chunk::untouched(len)?;
        for page in (0..len).step_by(page_size()) {
            // SAFETY: the byte is the chunk's, to which nothing refers.
            unsafe { chunk.at.add(page).write_volatile(0) };
        }
        Ok(chunk)
    }

    fn untouched(len: usize) -> io::Result<Chunk> {
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at a place that the kernel chooses touches no other.
        let raw = unsafe { mmap_anonymous(null_mut(), 2 * len, access, flags) }?.cast::<u8>();
        let before = raw.align_offset(len);
        // SAFETY: all addresses are inside the new mapping, to which nothing refers yet; both unmapped
        // ranges are outside the chunk.
        unsafe {
            let chunk = Chunk { at: raw.add(before), len };
            for (at, len) in [(raw, before), (chunk.at.add(len), len - before)] {
                if len > 0 {
                    munmap(at.cast(), len)?;
                }
            }
            // Only a hint.
            let _ = madvise(chunk.at.cast(), len, Advice::LinuxHugepage);
            Ok(chunk)
        }
    }

    /// Takes the pages at `at` out of a mapping, in which they are untouched and zero from now on.
    /// After an error nothing was taken; kernels before 5.7 cannot do it.
    ///
    /// # Safety
    ///
    /// The bytes from `at` on are of one anonymous mapping that the caller owns, and nothing relies
    /// on their content.
    pub unsafe fn extract(at: *mut u8, len: usize) -> io::Result<UsedChunk> {
        assert_eq!(at.align_offset(len), 0, "chunks are taken from where chunks can be");
        let chunk = Chunk::untouched(len)?;
        let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
        // SAFETY: the source is guaranteed by the caller, and the target is the new chunk's.
        unsafe { mremap_fixed(at.cast(), len, len, flags, chunk.at.cast()) }?;
        Ok(UsedChunk(chunk))
    }

    /// Replaces `len` bytes at `at` by pages of their own, with the same first bytes and zeros: a huge
    /// page, where the system has one. Without memory for them, nothing changes.
    ///
    /// # Safety
    ///
    /// The bytes are of one anonymous mapping that the caller owns. Nothing refers to them, and those
    /// behind `keep` are zero.
    pub unsafe fn replace(at: *mut u8, len: usize, keep: usize) {
        assert!(keep <= len, "{keep} of {len} bytes are kept");
        if at.align_offset(len) != 0 {
            return;
        }
        let Ok(chunk) = Chunk::untouched(len) else { return };
        // SAFETY: both are readable and writable for so many bytes, and do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(at, chunk.at, keep) };
        // SAFETY: guaranteed by the caller; the pages hold the same bytes.
        let _ = unsafe { chunk.install(at) };
    }

    /// Moves the pages to `at`, in place of those that are mapped there. After an error nothing was
    /// moved.
    ///
    /// # Safety
    ///
    /// The bytes from `at` on, as many as the chunk has, are of one anonymous mapping that the
    /// caller owns, and nothing relies on their content.
    pub unsafe fn install(self, at: *mut u8) -> io::Result<()> {
        assert_eq!(at.align_offset(self.len), 0, "chunks are moved to where chunks can be");
        // SAFETY: the pages are this chunk's; the target is guaranteed by the caller.
        unsafe {
            mremap_fixed(self.at.cast(), self.len, self.len, MremapFlags::MAYMOVE, at.cast())?;
        }
        std::mem::forget(self);
        Ok(())
    }
}

/// A chunk with the content of a block that had it before.
pub(crate) struct UsedChunk(Chunk);

impl UsedChunk {
    /// The pages, to be returned to the system.
    pub fn into_chunk(self) -> Chunk {
        self.0
    }

    /// Clears it: the next block may be of another owner (INV-04).
    pub fn cleared(self) -> Chunk {
        let UsedChunk(chunk) = self;
        // SAFETY: the bytes are the chunk's, to which nothing refers.
        unsafe { chunk.at.write_bytes(0, chunk.len) };
        chunk
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: the pages are this chunk's, and nothing refers to them. An error leaves them
        // mapped.
        let _ = unsafe { munmap(self.at.cast(), self.len) };
    }
}

#[cfg(test)]
#[cfg(not(miri))] // which cannot move pages
mod tests {
    use super::*;
    use crate::{Backing, Pin, ReclaimWorker, Reclaimer, Tenant};

    type Running = std::thread::JoinHandle<()>;

    /// A reclaimer that caches and maps at most so much, with a running worker.
    fn reserving(reserve: Option<PageReserve>, kept: usize, whole: usize) -> (Reclaimer, Running) {
        let (reclaimer, worker) = Reclaimer::with_worker(kept, whole, reserve);
        (reclaimer, std::thread::spawn(move || worker.run()))
    }

    /// A reserve of four chunks, and a reclaimer with it.
    fn with_reserve() -> (Reclaimer, ReclaimWorker) {
        let idle = Duration::from_secs(3600);
        let reserve = PageReserve::new(9 << 20, 1 << 30, idle).unwrap();
        Reclaimer::with_worker(1 << 20, 1 << 30, reserve)
    }

    /// INV-04: a chunk of the reserve is zero, whatever was in a block that had it before, and what
    /// was written before stays.
    #[test]
    fn a_growing_block_takes_zero_memory_that_is_resident() {
        const LENGTH: usize = 16 << 20;
        let (reclaimer, worker) = with_reserve();
        let running = std::thread::spawn(move || worker.run());
        for round in 1..4u8 {
            let mut b = Backing::map_part(Tenant(round.into()), true, (LENGTH, LENGTH), &reclaimer)
                .unwrap();
            for from in (0..LENGTH).step_by(1 << 20) {
                // The first request begins to fill the reserve.
                while from % (4 << 20) == 0 && from > 0 && reclaimer.reserves() < 2 << 20 {
                    std::thread::yield_now();
                }
                let part = b.slice_mut(from..from + (1 << 20));
                assert!(
                    part.iter().all(|byte| *byte == 0),
                    "round {round}: bytes of another block"
                );
                part.fill(round);
            }
            assert!(b.slice(0..LENGTH).iter().all(|byte| *byte == round));
        }
        drop(reclaimer);
        running.join().unwrap();
    }

    /// The same as `a_block_is_an_array_with_pins`, for a block that takes chunks of the reserve.
    #[test]
    fn a_block_that_takes_chunks_is_an_array_with_pins() {
        const LENGTH: usize = 24 << 20;
        let (reclaimer, worker) = with_reserve();
        let running = std::thread::spawn(move || worker.run());
        let mut state = 7u64;
        let mut random = move |below: usize| {
            state =
                state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
            (state >> 33) as usize % below
        };
        for round in 0..40 {
            let (mut b, mut model) = (Backing::map(LENGTH, &reclaimer).unwrap(), vec![0; LENGTH]);
            let mut pins: Vec<(Pin, Vec<u8>)> = Vec::new();
            for step in 0..40 {
                // At first near the start, so that the block grows.
                let start = random((LENGTH * (step + 1) / 40).min(LENGTH - 1));
                let longest = [200, 6 << 20][random(2)];
                let end = (start + 1 + random(longest)).min(LENGTH);
                let to = random(LENGTH + 1 - (end - start));
                match random(9) {
                    8 if !b.is_pinned(&(start..LENGTH)) => {
                        match random(2) {
                            0 => b.shed(start),
                            _ => b.shed_rest(start),
                        }
                        model[start.next_multiple_of(page_size()).min(LENGTH)..].fill(0);
                    }
                    0 if pins.len() < 3 => {
                        pins.push((b.pin(start..end), model[start..end].to_vec()));
                    }
                    1 if !pins.is_empty() => drop(pins.swap_remove(random(pins.len()))),
                    2 | 3 if !b.is_pinned(&(start..end)) => {
                        b.slice_mut(start..end).fill(step as u8 + 1);
                        model[start..end].fill(step as u8 + 1);
                    }
                    4 if !b.is_pinned(&(to..to + end - start)) => {
                        b.copy_within(start..end, to);
                        model.copy_within(start..end, to);
                    }
                    5 if !b.is_pinned(&(start..end)) => {
                        let page = page_size();
                        assert!(b.discard(start..end));
                        let (from, to) = (start.next_multiple_of(page), end / page * page);
                        model[from..to.max(from)].fill(0);
                    }
                    _ => assert!(b.slice(start..end) == &model[start..end], "{round}, {step}"),
                }
                let unchanged = |(pin, bytes): &(Pin, Vec<u8>)| pin.bytes() == bytes;
                assert!(pins.iter().all(unchanged), "{round}, {step}: pinned bytes changed");
            }
            assert!(b.slice(0..LENGTH) == model, "round {round}");
        }
        drop(reclaimer);
        running.join().unwrap();
    }

    #[test]
    fn a_chunk_at_the_end_of_a_capacity_stays_as_it_is_when_the_capacity_grows() {
        const LENGTH: usize = 16 << 20;
        let (reclaimer, worker) = with_reserve();
        let running = std::thread::spawn(move || worker.run());
        let mut b = Backing::map_part(Tenant(1), true, (LENGTH, 7 << 19), &reclaimer).unwrap();
        for (capacity, byte) in [(7 << 19, 1), (9 << 19, 2), (LENGTH, 3)] {
            let from = b.written();
            b.enlarge(capacity);
            b.slice_mut(from..capacity).fill(byte);
        }
        let ends = [0, 7 << 19, 9 << 19, LENGTH];
        for (part, byte) in ends.windows(2).zip(1..) {
            assert!(b.slice(part[0]..part[1]).iter().all(|is| *is == byte), "bytes from {part:?}");
        }
        drop((b, reclaimer));
        running.join().unwrap();
    }

    /// The chunk behind the last byte that was written is not resident: it is returned, and is none of the
    /// reserve's.
    #[test]
    fn only_chunks_that_were_written_are_given_up() {
        const LENGTH: usize = 24 << 20;
        let (reclaimer, _worker) = with_reserve();
        let mut b = Backing::map_part(Tenant(1), true, (LENGTH, LENGTH), &reclaimer).unwrap();
        b.slice_mut(0..5 << 20).fill(7);
        let chunks = |from: usize| {
            let begins = |at: &usize| b.slice(*at..*at + 1).as_ptr().align_offset(2 << 20) == 0;
            (from..5 << 20).step_by(page_size()).filter(begins).count()
        };
        let due = chunks(1 << 20);
        assert!((1..4).contains(&due), "{due} chunks begin in 4 MiB");
        b.shed_rest(1 << 20);
        assert_eq!(reclaimer.uncleared(), due);
    }

    /// INV-04: the memory that a block of one owner gives up is zero in a block of another.
    #[test]
    fn chunks_that_a_block_gives_up_are_cleared_for_the_next() {
        const LENGTH: usize = 24 << 20;
        const KEPT: usize = (5 << 20) + 100;
        let (reclaimer, worker) = with_reserve();
        let mut b = Backing::map_part(Tenant(1), true, (LENGTH, LENGTH), &reclaimer).unwrap();
        b.slice_mut(0..LENGTH).fill(7);
        b.shed(KEPT);
        assert_eq!(reclaimer.uncleared(), 4, "the reserve has room for four");
        let end = KEPT.next_multiple_of(page_size());
        assert_eq!(b.written(), end);
        assert!(b.slice(0..end).iter().all(|byte| *byte == 7));
        assert!(b.slice(end..LENGTH).iter().all(|byte| *byte == 0));
        let running = std::thread::spawn(move || worker.run());
        while reclaimer.uncleared() > 0 || reclaimer.reserves() < 8 << 20 {
            std::thread::yield_now();
        }
        let mut other = Backing::map_part(Tenant(2), true, (LENGTH, LENGTH), &reclaimer).unwrap();
        for block in [&mut other, &mut b] {
            let kept = block.written();
            for from in (kept..LENGTH).step_by(1 << 20) {
                let part = block.slice_mut(from..LENGTH.min(from + (1 << 20)));
                assert!(part.iter().all(|byte| *byte == 0), "bytes of another block");
                part.fill(9);
            }
            assert!(block.slice(kept..LENGTH).iter().all(|byte| *byte == 9));
        }
        assert!(b.slice(0..end).iter().all(|byte| *byte == 7));
        drop((b, other, reclaimer));
        running.join().unwrap();
    }

    /// A pin of bytes that were never written keeps its pages.
    #[test]
    fn pages_that_are_pinned_are_not_replaced() {
        let (reclaimer, worker) = with_reserve();
        let running = std::thread::spawn(move || worker.run());
        let mut b = Backing::map(16 << 20, &reclaimer).unwrap();
        b.slice_mut(0..3 << 20).fill(7);
        while reclaimer.reserves() < 8 << 20 {
            std::thread::yield_now();
        }
        let pin = b.pin((7 << 20)..(7 << 20) + 10);
        b.slice_mut(3 << 20..7 << 20).fill(7);
        assert_eq!(pin.bytes(), [0; 10]);
        drop(pin);
        b.slice_mut(7 << 20..16 << 20).fill(7);
        assert!(b.slice(0..16 << 20).iter().all(|byte| *byte == 7));
        drop((b, reclaimer));
        running.join().unwrap();
    }

    /// INV-32: the reserve shrinks when blocks are mapped, and is returned without growth.
    #[test]
    fn the_reserve_is_bounded_with_the_blocks_and_returned_when_idle() {
        let idle = Duration::from_millis(1);
        let reserve = PageReserve::new(8 << 20, 1 << 30, idle).unwrap();
        let (reclaimer, running) = reserving(reserve, 0, 20 << 20);
        let mut b = Backing::map(16 << 20, &reclaimer).unwrap();
        let mut reserved = 0;
        for from in (0..16 << 20).step_by(1 << 20) {
            b.slice_mut(from..from + (1 << 20)).fill(1);
            reserved = reserved.max(reclaimer.reserves());
        }
        assert!(reserved <= 4 << 20, "{reserved} bytes beside 16 MiB of 20");
        while reclaimer.reserves() > 0 {
            std::thread::yield_now();
        }
        let full = Backing::map(4 << 20, &reclaimer).unwrap();
        assert_eq!(reclaimer.reserves(), 0);
        drop((b, full, reclaimer));
        running.join().unwrap();
    }

    #[test]
    fn a_gradual_reserve_is_a_small_part_of_the_memory_that_blocks_took() {
        let reserve = PageReserve::new(64 << 20, 1 << 30, Duration::from_secs(3600)).unwrap();
        let (reclaimer, running) = reserving(reserve.map(PageReserve::gradual), 0, 1 << 30);
        let mut b = Backing::map(128 << 20, &reclaimer).unwrap();
        b.slice_mut(0..62 << 20);
        assert_eq!(reclaimer.reserves(), 0, "31 chunks were asked for");
        for chunks in [1, 2] {
            b.slice_mut(0..chunks << 26);
            while reclaimer.reserves() < chunks << 21 {
                std::thread::yield_now();
            }
            assert_eq!(reclaimer.reserves(), chunks << 21, "{chunks} times 32 were asked for");
        }
        drop((b, reclaimer));
        running.join().unwrap();
    }

    /// The reserve is returned without growth, although memory is freed all the time.
    #[test]
    fn an_idle_reserve_is_returned_while_other_memory_is_freed() {
        let idle = Duration::from_millis(1);
        let reserve = PageReserve::new(8 << 20, 1 << 30, idle).unwrap();
        let (reclaimer, running) = reserving(reserve, 1 << 20, 1 << 30);
        let mut b = Backing::map(16 << 20, &reclaimer).unwrap();
        b.slice_mut(0..4 << 20);
        let free_some = || {
            let mut small = Backing::map_part(Tenant(1), true, (65536, 65536), &reclaimer).unwrap();
            small.slice_mut(0..65536).fill(1);
        };
        free_some();
        let turns = (0..10_000_000).take_while(|_| {
            free_some();
            reclaimer.reserves() > 0 || reclaimer.is_asked()
        });
        assert!(turns.count() < 10_000_000, "it is kept for ever");
        drop((b, reclaimer));
        running.join().unwrap();
    }

    #[test]
    fn a_reserve_of_less_than_a_chunk_is_none() {
        let idle = Duration::from_secs(1);
        let of = |bytes, whole| PageReserve::new(bytes, whole, idle).unwrap().is_some();
        assert!(!of(0, 1 << 30) && !of((2 << 20) - 1, 1 << 30) && of(2 << 20, 1 << 30));
        assert!(!of(2 << 20, 64 << 30) && of(4 << 20, 64 << 30), "chunks grow with the memory");
    }
}
