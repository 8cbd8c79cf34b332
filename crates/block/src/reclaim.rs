//! Memory that comes and goes, off the data cores: freed blocks, and the reserve of touched pages.
//!
//! New memory costs about as much as copying into it: the kernel zeroes it, page by page, while the
//! serving core waits. Memory that the same tenant has just freed needs no zeroing, and is reused
//! last in, first out, while it is in the processor's caches; after a moment it is returned to the
//! operating system. Other new memory is touched ahead of its use (`reserve.rs`) while blocks grow.
#![allow(unsafe_code)]

use crate::backing::Mapping;
use crate::reserve::{Chunk, PageReserve, UsedChunk};
use memmap2::MmapRaw;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// How often the worker checks the cached memory. Memory that is not reused is reclaimed after four
/// whole ticks: 60 to 75 ms after it was freed.
const TICK: Duration = Duration::from_millis(15);
const KEPT_TICKS: u64 = 4;
/// A gradual reserve has at most one chunk for this many that blocks have asked for, so that it stays
/// small beside their content.
const RESERVE_OF_GROWN: usize = 32;
/// The same for chunks that other blocks have given up, which were resident before.
const RECYCLED_OF_GROWN: usize = 8;
/// The freed memory outside of blocks that is searched for some of the right size: the parts freed last.
const SEARCHED: usize = 256;
/// The part of the reusable memory that is outside of blocks.
const BUFFERS_OF_KEPT: usize = 4;
/// How long no block takes a chunk before the worker refills more than half of the reserve.
const BURST_PAUSE: Duration = Duration::from_millis(10);
/// How long no block grows and no memory is freed before the worker returns free memory of the heap
/// as well.
const QUIET: Duration = Duration::from_secs(1);

/// The owner of a block's memory. Another tenant gets it only after the kernel or the worker has
/// zeroed it (INV-04).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant(pub u128);

/// The owner of memory outside of blocks, which is none of the jobs.
pub(crate) const BUFFERS: Tenant = Tenant(u128::MAX);

/// Takes dropped mappings. Cheap to clone.
#[derive(Clone)]
pub struct Reclaimer(Option<Arc<Handle>>);

/// The worker: reclaims unused memory until every `Reclaimer` is dropped.
pub struct ReclaimWorker(Arc<Common>);

/// Ends the worker when it is dropped.
struct Handle(Arc<Common>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_one();
    }
}

struct Common {
    state: Mutex<FreedMemoryPool>,
    changed: Condvar,
    /// Maximum number of cached bytes.
    most: usize,
    /// Maximum number of mapped, cached and reserved bytes together: if more is mapped, nothing is
    /// cached or reserved (INV-32).
    whole: usize,
    reserve: Option<PageReserve>,
}

#[derive(Default)]
struct FreedMemoryPool {
    /// Reusable memory of blocks.
    blocks: Kept,
    /// Reusable memory outside of blocks.
    buffers: Kept,
    /// Bytes of mappings in use.
    mapped: usize,
    /// Mappings to be unmapped at once.
    due: Vec<MmapRaw>,
    /// Unpinned parts of mappings, and since when: they are reclaimed if the rest is still pinned
    /// after a tick. Usually no pin is left by then, and the whole mapping is cached.
    trims: VecDeque<(u64, Trim)>,
    /// How often blocks have asked for a chunk since the reserve was returned: it is refilled while
    /// they ask, and grows with their number.
    asked: usize,
    /// Whether the worker waits for the end of a burst, and needs no notification of more.
    in_burst: bool,
    /// The chunks of the reserve.
    touched: Vec<Chunk>,
    /// Chunks that blocks have given up, to be cleared for the reserve.
    used: Vec<UsedChunk>,
    /// Chunks to be returned to the system.
    returning: Vec<Chunk>,
    tick: u64,
    ended: bool,
}

/// Memory that a tenant has freed, with its content.
pub(crate) struct Used {
    pub raw: MmapRaw,
    /// Bytes of it that may be resident.
    pub written: usize,
    /// The tenant that has freed it.
    pub owner: Tenant,
}

/// Reusable memory, in the order in which it was freed.
#[derive(Default)]
struct Kept {
    list: VecDeque<FreedMemory>,
    /// The bytes of it that may be resident.
    bytes: usize,
}

impl Kept {
    fn add(&mut self, freed: FreedMemory) {
        self.bytes += freed.written;
        self.list.push_back(freed);
    }

    /// Removes the memory that was freed too long before this tick, and the oldest beyond so many bytes.
    fn expire(&mut self, tick: u64, room: usize) -> impl Iterator<Item = MmapRaw> {
        let old = |kept: &FreedMemory| kept.since + KEPT_TICKS < tick;
        let mut leave = self.list.iter().take_while(|kept| old(kept)).count();
        let mut left = self.bytes - self.list.range(..leave).map(|k| k.written).sum::<usize>();
        while left > room {
            left -= self.list[leave].written;
            leave += 1;
        }
        self.bytes = left;
        self.list.drain(..leave).map(|kept| kept.raw)
    }

    /// Removes the memory of this length and capacity that the tenant freed last, of the last `searched`.
    fn take(&mut self, tenant: Tenant, size: (usize, usize), searched: usize) -> Option<Used> {
        let fits =
            |kept: &FreedMemory| kept.tenant == tenant && (kept.raw.len(), kept.capacity) == size;
        let last = self.list.iter().rev().take(searched).position(fits)?;
        let FreedMemory { raw, written, tenant: owner, .. } =
            self.list.remove(self.list.len() - 1 - last)?;
        let all = self.bytes;
        assert!(all >= written, "INV-32: {written} of {all} cached bytes are taken");
        self.bytes -= written;
        Some(Used { raw, written, owner })
    }
}

struct FreedMemory {
    raw: MmapRaw,
    /// Bytes of it that its block could use.
    capacity: usize,
    /// Bytes of it that may be resident.
    written: usize,
    tenant: Tenant,
    since: u64,
}

impl Common {
    fn lock(&self) -> MutexGuard<'_, FreedMemoryPool> {
        // No code panics while holding the lock: it guards plain bookkeeping.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Resident bytes of this many chunks of the reserve.
    fn reserved(&self, chunks: usize) -> usize {
        self.reserve.map_or(0, |reserve| chunks * reserve.chunk)
    }
}

/// A mapping that only pins still read, and the parts that no pin covers.
pub(crate) struct Trim {
    pub mapping: Weak<Mapping>,
    pub parts: Vec<Range<usize>>,
}

impl Trim {
    /// Reclaims the parts, unless the whole mapping is gone. Parts that cannot be reclaimed are
    /// unmapped with the rest.
    fn carry_out(self) {
        let Some(mapping) = self.mapping.upgrade() else { return };
        for part in self.parts {
            // SAFETY: the backing that could borrow, write or pin these pages is gone (its drop
            // made this), and no live pin reads them.
            unsafe { mapping.give_back(part) };
        }
    }
}

/// Work of the worker.
enum Work {
    Return { due: Vec<MmapRaw>, trims: Vec<Trim>, returning: Vec<Chunk> },
    Clear(UsedChunk),
    Touch { bytes: usize },
}

impl Work {
    /// Does the work; returns a new chunk of the reserve, if that was the work.
    fn carry_out(self) -> io::Result<Option<Chunk>> {
        match self {
            Work::Touch { bytes } => Chunk::touched(bytes).map(Some),
            Work::Clear(chunk) => Ok(Some(chunk.cleared())),
            Work::Return { due, trims, returning } => {
                drop((due, returning));
                trims.into_iter().for_each(Trim::carry_out);
                Ok(None)
            }
        }
    }
}

impl FreedMemoryPool {
    /// Removes memory that was cached too long or exceeds the limits: first from the reserve, then
    /// the oldest.
    fn expire(&mut self, common: &Common) {
        let free = common.whole.saturating_sub(self.mapped);
        while self.reserved(common) > free {
            self.returning
                .extend(self.used.pop().map(UsedChunk::into_chunk).or(self.touched.pop()));
        }
        let room = common.most.min(free - self.reserved(common));
        self.due.extend(self.buffers.expire(self.tick, room / BUFFERS_OF_KEPT));
        self.due.extend(self.blocks.expire(self.tick, room - self.buffers.bytes));
    }

    /// Resident bytes of reusable memory.
    fn kept_bytes(&self) -> usize {
        self.blocks.bytes + self.buffers.bytes
    }

    /// Pieces of reusable memory.
    fn kept(&self) -> usize {
        self.blocks.list.len() + self.buffers.list.len()
    }

    /// The next work without the lock: memory to return, or else a chunk to touch, while blocks grow
    /// and the limits have room, but not during a burst that the reserve can serve.
    fn next_work(&mut self, common: &Common) -> Option<Work> {
        let due = std::mem::take(&mut self.due);
        let returning = std::mem::take(&mut self.returning);
        let ripe = self.trims.iter().take_while(|(since, _)| since + 1 < self.tick).count();
        let trims: Vec<_> = self.trims.drain(..ripe).map(|(_, trim)| trim).collect();
        if !due.is_empty() || !returning.is_empty() || !trims.is_empty() {
            return Some(Work::Return { due, trims, returning });
        }
        let reserve = common.reserve?;
        if self.ended || self.in_burst && !self.is_low(reserve) {
            return None;
        }
        if let Some(used) = self.used.pop() {
            return Some(Work::Clear(used));
        }
        let wanted = self.takes(common, reserve.most(self.asked, RESERVE_OF_GROWN));
        wanted.then_some(Work::Touch { bytes: reserve.chunk })
    }

    /// Whether the reserve needs chunks even during a burst.
    fn is_low(&self, reserve: PageReserve) -> bool {
        let most = reserve.most(self.asked, RESERVE_OF_GROWN);
        self.touched.len() < reserve.refilled_below(most)
    }

    /// Resident bytes of the reserve.
    fn reserved(&self, common: &Common) -> usize {
        common.reserved(self.touched.len() + self.used.len())
    }

    /// Whether the reserve takes another chunk, if it may have `most`.
    fn takes(&self, common: &Common, most: usize) -> bool {
        let with_it = self.reserved(common) + common.reserved(1);
        self.touched.len() + self.used.len() < most
            && self.mapped + self.kept_bytes() + with_it <= common.whole
    }

    fn add_to_reserve(&mut self, chunk: Option<Chunk>, common: &Common) {
        self.touched.extend(chunk);
        // More may have been mapped meanwhile.
        self.expire(common);
    }

    /// Plans the return of the reserve.
    fn return_reserve(&mut self) {
        self.returning.append(&mut self.touched);
        self.returning.extend(self.used.drain(..).map(UsedChunk::into_chunk));
        self.asked = 0;
    }

    /// Whether memory waits for the worker.
    fn is_due(&self) -> bool {
        !self.due.is_empty() || !self.returning.is_empty()
    }
}

impl Reclaimer {
    /// A reclaimer that caches at most `most` bytes, and together with the reserve and all mapped
    /// bytes at most `whole`. Also returns a worker, which its owner runs on a separate thread.
    pub fn with_worker(
        most: usize,
        whole: usize,
        reserve: Option<PageReserve>,
    ) -> (Reclaimer, ReclaimWorker) {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let common = Arc::new(Common { state, changed, most, whole, reserve });
        (Reclaimer(Some(Arc::new(Handle(common.clone())))), ReclaimWorker(common))
    }

    /// A reclaimer without a cache that unmaps on the calling thread: for tests and the simulator.
    pub fn inline() -> Reclaimer {
        Reclaimer(None)
    }

    /// Counts this many more mapped bytes, until they are given.
    pub(crate) fn maps(&self, length: usize) {
        let Some(Handle(common)) = self.0.as_deref() else { return };
        let mut state = common.lock();
        state.mapped += length;
        state.expire(common);
        if state.is_due() {
            common.changed.notify_one();
        }
    }

    /// Counts this many mapped bytes less. The bytes are not resident, and the mapping stays in use.
    pub(crate) fn unmaps(&self, length: usize) {
        let Some(Handle(common)) = self.0.as_deref() else { return };
        let mut state = common.lock();
        let mapped = state.mapped;
        assert!(mapped >= length, "INV-32: {length} of {mapped} mapped bytes are given back");
        state.mapped -= length;
    }

    /// Bytes of a chunk of the reserve, if there is one.
    pub(crate) fn chunk_bytes(&self) -> Option<usize> {
        Some(self.0.as_deref()?.0.reserve?.chunk)
    }

    /// Replaces a chunk's length of untouched pages from `at` on by resident ones, if the reserve has
    /// any.
    ///
    /// # Safety
    ///
    /// The pages are of one anonymous mapping that the caller owns, and nothing relies on their
    /// content.
    pub(crate) unsafe fn install(&self, at: *mut u8) {
        let Some(Handle(common)) = self.0.as_deref() else { return };
        let mut state = common.lock();
        let chunk = state.touched.pop();
        state.asked += 1;
        if !state.in_burst || common.reserve.is_some_and(|reserve| state.is_low(reserve)) {
            common.changed.notify_one();
        }
        drop(state);
        if let Some(chunk) = chunk {
            // Guaranteed by the caller. After an error, the block touches its own pages.
            let _ = unsafe { chunk.install(at) };
        }
    }

    /// Takes a chunk's length of pages from `at` on into the reserve, if it has room for them while
    /// blocks grow; returns whether it did. They are untouched and zero then.
    ///
    /// # Safety
    ///
    /// The pages are of one anonymous mapping that the caller owns, and nothing relies on their
    /// content.
    pub(crate) unsafe fn recycle(&self, at: *mut u8) -> bool {
        let Some(Handle(common)) = self.0.as_deref() else { return false };
        let Some(reserve) = common.reserve else { return false };
        let has_room = |state: &FreedMemoryPool| {
            state.takes(common, reserve.most(state.asked, RECYCLED_OF_GROWN))
        };
        if !has_room(&common.lock()) {
            return false;
        }
        // Guaranteed by the caller. Without the lock, because it takes some microseconds.
        let Ok(chunk) = (unsafe { Chunk::extract(at, reserve.chunk) }) else { return false };
        let mut state = common.lock();
        state.used.push(chunk);
        // More may have been mapped, or taken in, meanwhile.
        state.expire(common);
        common.changed.notify_one();
        true
    }

    /// Registers unpinned parts of a mapping whose rest is pinned: they are reclaimed first, if the
    /// pins live long.
    pub(crate) fn trim(&self, trim: Trim) {
        let Some(Handle(common)) = self.0.as_deref() else { return trim.carry_out() };
        let mut state = common.lock();
        let since = state.tick;
        state.trims.push_back((since, trim));
        if state.kept() == 0 && state.trims.len() == 1 {
            common.changed.notify_one();
        }
    }

    /// Takes an unused mapping, of which `written` bytes may be resident, and of which its block could
    /// use `capacity`. If no byte is resident, or without a tenant, the mapping cannot be reused.
    pub(crate) fn give(
        &self,
        raw: MmapRaw,
        tenant: Option<Tenant>,
        written: usize,
        capacity: usize,
    ) {
        // Without a worker, the drop at the end of this scope unmaps.
        let Some(Handle(common)) = self.0.as_deref() else { return };
        let mut state = common.lock();
        let mapped = state.mapped;
        assert!(mapped >= capacity, "INV-32: {capacity} of {mapped} mapped bytes are given back");
        assert!(written <= capacity, "INV-04: {written} of {capacity} bytes were written");
        state.mapped -= capacity;
        match tenant {
            Some(tenant) if written > 0 => {
                let since = state.tick;
                let freed = FreedMemory { raw, capacity, written, tenant, since };
                match tenant == BUFFERS {
                    true => state.buffers.add(freed),
                    false => state.blocks.add(freed),
                }
                state.expire(common);
            }
            _ => state.due.push(raw),
        }
        // A worker that waits for the end of a tick is not woken; otherwise cached memory would
        // never age.
        if state.is_due() || state.kept() == 1 {
            common.changed.notify_one();
        }
    }

    /// Whether the tenant has just freed a whole block of this length.
    pub fn has_freed(&self, tenant: Tenant, length: usize) -> bool {
        let Some(Handle(common)) = self.0.as_deref() else { return false };
        let is_whole = |kept: &FreedMemory| {
            kept.tenant == tenant && (kept.raw.len(), kept.capacity) == (length, length)
        };
        common.lock().blocks.list.iter().any(is_whole)
    }

    /// The mapping of this length and capacity that the tenant freed last, with its content.
    pub(crate) fn take(&self, tenant: Tenant, size: (usize, usize)) -> Option<Used> {
        let mut state = self.0.as_deref()?.0.lock();
        match tenant == BUFFERS {
            true => state.buffers.take(tenant, size, SEARCHED),
            false => state.blocks.take(tenant, size, usize::MAX),
        }
    }
}

#[cfg(test)]
impl Reclaimer {
    /// Number of cached bytes.
    pub(crate) fn keeps(&self) -> usize {
        self.0.as_deref().map_or(0, |handle| handle.0.lock().kept_bytes())
    }

    /// Whether the reserve is in use.
    pub(crate) fn is_asked(&self) -> bool {
        self.0.as_deref().is_some_and(|Handle(common)| common.lock().asked > 0)
    }

    /// Number of chunks that blocks gave up, and that are not cleared.
    pub(crate) fn uncleared(&self) -> usize {
        self.0.as_deref().map_or(0, |Handle(common)| common.lock().used.len())
    }

    /// Number of resident bytes of the reserve.
    pub(crate) fn reserves(&self) -> usize {
        self.0.as_deref().map_or(0, |Handle(common)| common.lock().reserved(common))
    }
}

impl ReclaimWorker {
    /// Reclaims until the last `Reclaimer` is dropped, and then the rest.
    // The clock of these pauses has no effect in a simulation, which caches no memory.
    #[allow(clippy::disallowed_methods)]
    pub fn run(self) {
        let ReclaimWorker(common) = self;
        let mut state = common.lock();
        // The end of the tick, while cached memory ages. Due mappings may wake the worker earlier,
        // any number of times.
        let mut end = None;
        // The number of requests for chunks, and the time at which it was last seen to change.
        let (mut asked, mut grown) = (0, Instant::now());
        // Whether memory was freed or touched since the heap was trimmed.
        let mut busy = false;
        loop {
            let now = Instant::now();
            let ages = state.kept() > 0 || !state.trims.is_empty();
            let tick = ages.then(|| *end.get_or_insert(now + TICK));
            if tick.is_none_or(|tick| tick <= now) {
                end = None;
            }
            if tick.is_some_and(|tick| tick <= now) {
                state.tick += 1;
                state.expire(&common);
            }
            if state.asked != asked {
                (asked, grown) = (state.asked, now);
            }
            let idle = common.reserve.filter(|_| asked > 0).map(|reserve| grown + reserve.idle);
            if idle.is_some_and(|idle| idle <= now) {
                state.return_reserve();
            }
            let burst = (asked > 0).then_some(grown + BURST_PAUSE).filter(|end| now < *end);
            state.in_burst = burst.is_some();
            let work = state.next_work(&common);
            busy |= ages || work.is_some();
            if let Some(work) = work {
                drop(state);
                // Unmapping and touching take long, so they happen without the lock.
                let touched = work.carry_out();
                state = common.lock();
                match touched {
                    Ok(chunk) => state.add_to_reserve(chunk, &common),
                    // The system has no memory to spare: blocks touch their own until they ask again.
                    Err(_) => state.asked = 0,
                }
                continue;
            }
            if state.ended {
                return;
            }
            let next = tick.into_iter().chain(idle).chain(burst).min();
            let Some(until) = next.or(busy.then_some(now + QUIET)) else {
                state = common.changed.wait(state).unwrap_or_else(|e| e.into_inner());
                continue;
            };
            let waited = common.changed.wait_timeout(state, until.saturating_duration_since(now));
            let (woken, waited) = waited.unwrap_or_else(|e| e.into_inner());
            state = woken;
            if next.is_none() && waited.timed_out() {
                busy = false;
                drop(state);
                trim_heap();
                state = common.lock();
            }
        }
    }
}

/// Returns the free pages of the heap to the operating system. The allocator caches what connections
/// and requests used at their peak in an arena of each thread, and returns it only from the top.
fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call locks one arena after the other and changes no allocation.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
#[cfg(all(target_env = "gnu", not(miri)))] // whose allocator can return free memory
mod tests {
    use super::*;
    use rustix::param::page_size;

    fn is_resident(page: usize) -> bool {
        let mut pages = [0u8];
        // SAFETY: the call reads no memory of the process, and writes one byte for one page.
        let told = unsafe { libc::mincore(page as *mut libc::c_void, 1, pages.as_mut_ptr()) };
        told == 0 && pages[0] & 1 == 1
    }

    /// The huge page of the last byte that was written is resident as a whole, if the system has huge pages.
    #[test]
    fn rest_of_a_huge_page_is_returned_with_what_is_behind() {
        const LENGTH: usize = 16 << 20;
        const HUGE: usize = 2 << 20;
        let mut b = crate::Backing::map(LENGTH, &Reclaimer::inline()).expect("it can be mapped");
        let address = b.slice(0..1).as_ptr() as usize;
        let page = HUGE + (address + HUGE).next_multiple_of(HUGE) - (address + HUGE);
        let behind =
            |from: usize| (from.next_multiple_of(page_size())..LENGTH).step_by(page_size());
        let resident = |from: usize| behind(from).any(|at| is_resident(address + at));
        let is = |b: &crate::Backing, kept: usize| {
            let end = kept.next_multiple_of(page_size());
            assert!(b.slice(0..kept).iter().all(|byte| *byte == 7));
            assert_eq!(b.written(), end);
        };
        // In a huge page: its rest stays, unless nothing is written for a while.
        b.slice_mut(0..page + 500_000).fill(7);
        let huge = is_resident(address + page + HUGE - page_size());
        b.shed(page + 400_000);
        assert_eq!(resident(page + 400_000), huge);
        b.shed_rest(page + 400_000);
        assert!(!resident(page + 400_000));
        is(&b, page + 400_000);
        // Nothing is written there: as much counts as written as before.
        b.shed_rest(page + 450_000);
        is(&b, page + 400_000);
        // Over several: none of the last one stays.
        b.slice_mut(0..page + 2 * HUGE + 500_000).fill(7);
        b.shed(page + 300_000);
        assert!(!resident(page + 300_000));
        is(&b, page + 300_000);
        // Only now: reading what is not there maps pages of zeros.
        assert!(b.slice(b.written()..LENGTH).iter().all(|byte| *byte == 0));
        b.slice_mut(page..LENGTH).fill(8);
        b.shed_rest(LENGTH);
        assert_eq!((b.written(), b.slice(LENGTH - 1..LENGTH)[0]), (LENGTH, 8));
    }

    /// The memory is below the threshold of mappings of their own, and between others that stay.
    #[test]
    fn heap_memory_that_is_free_is_returned_after_a_quiet_time() {
        let (reclaimer, worker) = Reclaimer::with_worker(1 << 20, usize::MAX, None);
        let running = std::thread::spawn(move || worker.run());
        let mut held: Vec<Vec<u8>> = (0..60).map(|_| vec![7; 100_000]).collect();
        let freed: Vec<usize> = held.drain(20..40).map(|bytes| bytes.as_ptr() as usize).collect();
        let inner = |at: &usize| at.next_multiple_of(page_size()) + page_size();
        // Memory of a block was freed, too.
        drop(crate::Backing::map(4096, &reclaimer).expect("a page can be mapped"));
        while freed.iter().all(|at| is_resident(inner(at))) {
            std::thread::yield_now();
        }
        assert!(held.iter().all(|bytes| bytes.iter().all(|byte| *byte == 7)));
        drop(reclaimer);
        running.join().expect("the worker ends");
    }
}
