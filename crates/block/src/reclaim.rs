//! Reuses the memory of freed blocks: it is cached briefly for the next block of the same tenant,
//! then returned to the operating system, off the data cores.
//!
//! New memory costs about as much as copying into it: the kernel zeroes it, page by page, while the
//! serving core waits. Memory that the same tenant has just freed needs no zeroing, and is reused
//! last in, first out, while it is in the processor's caches.
#![allow(unsafe_code)]

use crate::backing::Mapping;
use memmap2::MmapRaw;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// How often the worker checks the cached memory. Memory that is not reused is reclaimed after four
/// whole ticks: 60 to 75 ms after it was freed.
const TICK: Duration = Duration::from_millis(15);
const KEPT_TICKS: u64 = 4;

/// The owner of a block's memory. Another tenant gets it only after the kernel has zeroed it
/// (INV-04).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant(pub u128);

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
    /// Maximum number of mapped and cached bytes together: if more is mapped, nothing is cached
    /// (INV-32).
    whole: usize,
}

#[derive(Default)]
struct FreedMemoryPool {
    /// Reusable memory, in the order in which it was freed.
    kept: VecDeque<FreedMemory>,
    /// The bytes of these that may be resident.
    bytes: usize,
    /// Bytes of mappings in use.
    mapped: usize,
    /// Mappings to be unmapped at once.
    due: Vec<MmapRaw>,
    /// Unpinned parts of mappings, and since when: they are reclaimed if the rest is still pinned
    /// after a tick. Usually no pin is left by then, and the whole mapping is cached.
    trims: VecDeque<(u64, Trim)>,
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

struct FreedMemory {
    raw: MmapRaw,
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

impl FreedMemoryPool {
    /// Removes memory that was cached too long or exceeds the limit: the oldest first.
    fn expire(&mut self, common: &Common) {
        let room = common.most.min(common.whole.saturating_sub(self.mapped));
        let old = |kept: &FreedMemory| kept.since + KEPT_TICKS < self.tick;
        let mut leave = self.kept.iter().take_while(|kept| old(kept)).count();
        let mut left = self.bytes - self.kept.range(..leave).map(|k| k.written).sum::<usize>();
        while left > room {
            left -= self.kept[leave].written;
            leave += 1;
        }
        self.bytes = left;
        self.due.extend(self.kept.drain(..leave).map(|kept| kept.raw));
    }
}

impl Reclaimer {
    /// A reclaimer that caches at most `most` bytes, and together with all mapped bytes at most
    /// `whole`. Also returns a worker, which its owner runs on a separate thread.
    pub fn with_worker(most: usize, whole: usize) -> (Reclaimer, ReclaimWorker) {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let common = Arc::new(Common { state, changed, most, whole });
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
        if !state.due.is_empty() {
            common.changed.notify_one();
        }
    }

    /// Registers unpinned parts of a mapping whose rest is pinned: they are reclaimed first, if the
    /// pins live long.
    pub(crate) fn trim(&self, trim: Trim) {
        let Some(Handle(common)) = self.0.as_deref() else { return trim.carry_out() };
        let mut state = common.lock();
        let since = state.tick;
        state.trims.push_back((since, trim));
        if state.kept.is_empty() && state.trims.len() == 1 {
            common.changed.notify_one();
        }
    }

    /// Takes an unused mapping, of which this many bytes may be resident. If no byte is resident,
    /// or without a tenant, the mapping cannot be reused.
    pub(crate) fn give(&self, raw: MmapRaw, tenant: Option<Tenant>, written: usize) {
        // Without a worker, the drop at the end of this scope unmaps.
        let Some(Handle(common)) = self.0.as_deref() else { return };
        let mut state = common.lock();
        let (mapped, length) = (state.mapped, raw.len());
        assert!(mapped >= length, "INV-32: {length} of {mapped} mapped bytes are given back");
        assert!(written <= length, "INV-04: {written} of {length} bytes were written");
        state.mapped -= length;
        match tenant {
            Some(tenant) if written > 0 => {
                state.bytes += written;
                let since = state.tick;
                state.kept.push_back(FreedMemory { raw, written, tenant, since });
                state.expire(common);
            }
            _ => state.due.push(raw),
        }
        // A worker that waits for the end of a tick is not woken; otherwise cached memory would
        // never age.
        if !state.due.is_empty() || state.kept.len() == 1 {
            common.changed.notify_one();
        }
    }

    /// The mapping of this length that the tenant freed last, with its content.
    pub(crate) fn take(&self, tenant: Tenant, length: usize) -> Option<Used> {
        let mut state = self.0.as_deref()?.0.lock();
        let fits = |kept: &FreedMemory| kept.tenant == tenant && kept.raw.len() == length;
        let at = state.kept.iter().rposition(fits)?;
        let FreedMemory { raw, written, tenant: owner, .. } = state.kept.remove(at)?;
        let all = state.bytes;
        assert!(all >= written, "INV-32: {written} of {all} cached bytes are taken");
        state.bytes -= written;
        Some(Used { raw, written, owner })
    }
}

#[cfg(test)]
impl Reclaimer {
    /// Number of cached bytes.
    pub(crate) fn keeps(&self) -> usize {
        self.0.as_deref().map_or(0, |handle| handle.0.lock().bytes)
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
        loop {
            let ages = !state.kept.is_empty() || !state.trims.is_empty();
            let left = ages.then(|| {
                let now = Instant::now();
                end.get_or_insert(now + TICK).saturating_duration_since(now)
            });
            if left.is_none_or(|left| left.is_zero()) {
                end = None;
            }
            if left == Some(Duration::ZERO) {
                state.tick += 1;
                state.expire(&common);
            }
            let due = std::mem::take(&mut state.due);
            let tick = state.tick;
            let ripe = state.trims.iter().take_while(|(since, _)| since + 1 < tick).count();
            let trims: Vec<_> = state.trims.drain(..ripe).collect();
            if !due.is_empty() || !trims.is_empty() {
                drop(state);
                // Unmapping takes long, so it happens without the lock.
                drop(due);
                trims.into_iter().for_each(|(_, trim)| trim.carry_out());
                state = common.lock();
                continue;
            }
            if state.ended {
                return;
            }
            state = match left {
                None => common.changed.wait(state).unwrap_or_else(|e| e.into_inner()),
                Some(left) => {
                    let waited = common.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(|e| e.into_inner()).0
                }
            };
        }
    }
}
