//! Where the memory of freed blocks goes: kept for a moment for the next block of the same tenant, then
//! back to the operating system, off the data cores.
//!
//! Memory that is new costs about as much as copying into it: the kernel makes it zero, page by page,
//! while the core that serves waits. What the same tenant has just given up needs neither, and is handed
//! on last in, first out, while it is warm.
#![allow(unsafe_code)]

use crate::backing::Mapping;
use memmap2::MmapRaw;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// How often the worker looks at what is kept. What nobody took goes when it was there for four whole
/// ticks: 60 to 75 ms after it was freed.
const TICK: Duration = Duration::from_millis(15);
const KEPT_TICKS: u64 = 4;

/// Whose the memory of a block is. Nobody else is ever given it before the kernel has made it zero
/// (INV-04).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant(pub u128);

/// Where dropped mappings go. Cheap to clone.
#[derive(Clone)]
pub struct Reclaimer(Option<Arc<Handle>>);

/// The other end: gives back what nobody took, until every `Reclaimer` is gone.
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
    state: Mutex<State>,
    changed: Condvar,
    /// Bytes that are kept, at most.
    most: usize,
    /// Bytes that are mapped and kept together, at most: where more is mapped nothing is kept (INV-32).
    whole: usize,
}

#[derive(Default)]
struct State {
    /// What may be used again, in the order in which it was freed.
    kept: VecDeque<Kept>,
    /// Of those, what may be resident.
    bytes: usize,
    /// Bytes of what somebody has.
    mapped: usize,
    /// What is to be given back at once.
    due: Vec<MmapRaw>,
    /// Parts of what is mapped that nobody reads any more, and since when: they are given back if the
    /// rest is still read after a tick. Mostly it is not, and all of it is kept.
    trims: VecDeque<(u64, Trim)>,
    tick: u64,
    ended: bool,
}

struct Kept {
    raw: MmapRaw,
    /// Bytes of it that may be resident.
    written: usize,
    tenant: Tenant,
    since: u64,
}

impl Common {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nobody panics while holding it: what it guards is plain bookkeeping.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A mapping that is read by those alone who have pins on parts of it, and the parts that they have not.
pub(crate) struct Trim {
    pub mapping: Weak<Mapping>,
    pub parts: Vec<Range<usize>>,
}

impl Trim {
    /// Gives the parts back, unless all of it has gone. What cannot be given back goes with the rest.
    fn carry_out(self) {
        let Some(mapping) = self.mapping.upgrade() else { return };
        for part in self.parts {
            // SAFETY: the backing that could borrow, write or pin these pages is gone (its drop made
            // this), and they are none of those that its live pins read.
            unsafe { mapping.give_back(part) };
        }
    }
}

impl State {
    /// Takes out what has been kept too long, or is too much: the oldest first.
    fn expire(&mut self, common: &Common) {
        let room = common.most.min(common.whole.saturating_sub(self.mapped));
        let old = |kept: &Kept| kept.since + KEPT_TICKS < self.tick;
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
    /// A reclaimer that keeps at most `most` bytes, and with all that is mapped at most `whole`, with a
    /// worker, which its owner runs on a thread of its own.
    pub fn with_worker(most: usize, whole: usize) -> (Reclaimer, ReclaimWorker) {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let common = Arc::new(Common { state, changed, most, whole });
        (Reclaimer(Some(Arc::new(Handle(common.clone())))), ReclaimWorker(common))
    }

    /// A reclaimer that keeps nothing and unmaps on the calling thread: for tests and the simulator.
    pub fn inline() -> Reclaimer {
        Reclaimer(None)
    }

    /// Somebody has so many bytes more, until they are given.
    pub(crate) fn maps(&self, length: usize) {
        let Some(Handle(common)) = self.0.as_deref() else { return };
        let mut state = common.lock();
        state.mapped += length;
        state.expire(common);
        if !state.due.is_empty() {
            common.changed.notify_one();
        }
    }

    /// Parts of a mapping are read no more, and the rest is: they are given back before it, if that takes
    /// long.
    pub(crate) fn trim(&self, trim: Trim) {
        let Some(Handle(common)) = self.0.as_deref() else { return trim.carry_out() };
        let mut state = common.lock();
        let since = state.tick;
        state.trims.push_back((since, trim));
        if state.kept.is_empty() && state.trims.len() == 1 {
            common.changed.notify_one();
        }
    }

    /// Takes a mapping that nobody reads or writes any more, of which so many bytes may be resident.
    /// Without any, or without a tenant, it is of no use to anybody.
    pub(crate) fn give(&self, raw: MmapRaw, tenant: Option<Tenant>, written: usize) {
        // Without a worker the drop at the end of this scope unmaps.
        let Some(Handle(common)) = self.0.as_deref() else { return };
        let mut state = common.lock();
        state.mapped -= raw.len();
        match tenant {
            Some(tenant) if written > 0 => {
                state.bytes += written;
                let since = state.tick;
                state.kept.push_back(Kept { raw, written, tenant, since });
                state.expire(common);
            }
            _ => state.due.push(raw),
        }
        // A worker that waits for the end of a tick is let do so: or nothing would grow old.
        if !state.due.is_empty() || state.kept.len() == 1 {
            common.changed.notify_one();
        }
    }

    /// The mapping of this length that the tenant has given up last, with what lies in it, and how many
    /// bytes of it may be resident.
    pub(crate) fn take(&self, tenant: Tenant, length: usize) -> Option<(MmapRaw, usize)> {
        let mut state = self.0.as_deref()?.0.lock();
        let fits = |kept: &Kept| kept.tenant == tenant && kept.raw.len() == length;
        let at = state.kept.iter().rposition(fits)?;
        let Kept { raw, written, .. } = state.kept.remove(at)?;
        state.bytes -= written;
        Some((raw, written))
    }
}

#[cfg(test)]
impl Reclaimer {
    /// Bytes that are kept.
    pub(crate) fn keeps(&self) -> usize {
        self.0.as_deref().map_or(0, |handle| handle.0.lock().bytes)
    }
}

impl ReclaimWorker {
    /// Gives back until the last `Reclaimer` is dropped, and then what is left.
    // The clock of its own pauses decides nothing that a simulation sees: there nothing is kept.
    #[allow(clippy::disallowed_methods)]
    pub fn run(self) {
        let ReclaimWorker(common) = self;
        let mut state = common.lock();
        // When the tick ends, while something grows old. However often what is due wakes the worker before.
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
                // Unmapping is what takes long.
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
