//! The source block of a move of a range of hashes.
//!
//! Regions are sent with their layout, each after the values that its entries have beside it. The range is
//! served here meanwhile: later changes are sent again, until little is left. Then the range is frozen
//! (`freeze`: it can be read, but not changed) and the rest is sent. When the other block has confirmed
//! everything, the range is no longer read here (`hand_over`); from then on the controller decides who owns
//! it. Every step before that can be undone.

use super::KvBlock;
use super::heap::RESERVE_FRACTION;
use super::large_values::{Copies, values_of};
use super::overflow::Relief;
use super::patches::Unsent;
use crate::moves::{Arrival, Movable, Parcel, Prepared, Totals, Wish};
use crate::{Answer, Payload};
use honeycomb_block::{Backing, Pin};
use honeycomb_types::{Bug, Marks, Time};
use honeycomb_wire::{Checksum, Field, Op, Status, checksum};
use std::sync::Arc;
use std::time::Duration;

/// Delay of a change of a range that is about to belong to another block, in microseconds.
const RETRY_FROZEN_US: u64 = 500;
/// Most deleted values that one part names.
const DROPS_MAX: usize = 8192;
/// The time after a split, a merge or a refusal before a block requests a merge: a block that has just shrunk
/// may grow again.
const MERGE_REST: Duration = Duration::from_millis(250);
/// The longest such time, after many refusals in a row.
const MERGE_REST_MAX: Duration = Duration::from_secs(8);
/// The time after which a block without a target for its split or merge requests one again.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Time after a refusal for lack of memory in which writers get its reason although no split is requested. A
/// delayed writer returns within 100 ms, and then makes the block request a split again.
const REASON_LASTS: Duration = Duration::from_millis(300);
/// The time after which a block requests a split again that could not begin for lack of room, because bytes
/// are being read. It doubles each time: a reader may be slow, and each attempt costs the controller a move.
const BEGIN_AGAIN: Duration = Duration::from_millis(10);
const BEGIN_AGAIN_MAX: Duration = Duration::from_secs(1);
/// The least time over which a rate is measured.
const RATE_OVER: Duration = Duration::from_millis(5);
/// The expected bytes of a move per second: they decide how early a block that fills fast requests a split.
const MOVE_RATE: u64 = 300 << 20;
/// The least expected time of a move. A block that requests a split too early leaves emptier blocks.
const MOVE_LEAST: Duration = Duration::from_millis(3);
/// However fast it fills, a block requests no split below this many hundredths of its size.
const SPLIT_FROM: usize = 70;
/// A merged block requests no split before it has this part of its size more than after the merge: a block
/// that shrinks and grows in turns must not be merged and split in turns.
const HEAVIER: usize = 16;
/// A block that found no neighbour to merge with requests again at once when it has this part of its size
/// less.
const LIGHTER: usize = 32;
/// Most departed ranges whose targets a block remembers. The controller knows all.
const DEPARTED_MAX: usize = 64;
/// Work of one step of `sweep`: regions freed, and values.
const SWEEP_REGIONS: usize = 1;
const SWEEP_VALUES: usize = 32;

/// The progress of a departing range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// The range is copied and served.
    Copying,
    /// The range is read and not changed.
    Frozen,
    /// The range is not read any more.
    Handed,
}

/// A range that moves to another block.
pub(super) struct Export {
    start: u64,
    end: u64,
    phase: Phase,
    /// Where the search for the next region to send continues.
    cursor: u64,
    /// The part that is being prepared.
    begun: Option<Begun>,
}

impl Departed {
    /// Whether the departed range has a hash in this range.
    pub fn meets(&self, start: u64, end: u64) -> bool {
        self.start <= end && start <= self.end
    }
}

/// A departed range, and its target.
pub(super) struct Departed {
    start: u64,
    end: u64,
    /// Encoded arguments of `Moved`.
    moved: Box<[u8]>,
}

/// A part that is being prepared, a piece at a time.
struct Begun {
    what: Begin,
    /// Bytes that were read, and their checksum.
    done: usize,
    sum: Checksum,
}

enum Begin {
    /// A region that refers to no values. Its changes meanwhile are sent as a patch, like later ones, so that
    /// its bytes may be copied at different times. A new layout of the region ends its patches, and this
    /// part.
    Region { start: u64, end: u64, id: u32, bytes: Arc<[u8]> },
    /// A value, which does not change.
    Value { number: u32, bytes: Pin },
}

impl Begun {
    fn new(what: Begin) -> Begun {
        Begun { what, done: 0, sum: Checksum::default() }
    }

    /// Bytes of the part, which was not sent yet.
    fn unsent(&self) -> usize {
        match &self.what {
            Begin::Region { bytes, .. } => bytes.len(),
            Begin::Value { bytes, .. } => bytes.bytes().len(),
        }
    }
}

/// When to request a move, and the reasons not to.
#[derive(Default)]
pub(super) struct Asking {
    /// Whether a move was requested, and the request is not answered.
    asked: bool,
    /// No move is requested before this.
    after: Time,
    /// When the reason of the last refusal for lack of memory is forgotten, unless a request is under way.
    reason_until: Time,
    /// The pause after the next move that cannot begin.
    begin_rest: Duration,
    /// No merge is requested before this.
    merge_after: Time,
    /// The pause after the next refusal of a merge.
    merge_rest: Duration,
    /// Bytes taken when the last merge was refused.
    refused_with: usize,
    /// Bytes taken after the last merge into this block.
    merged_with: Option<usize>,
    /// Whether the block has ever held more than its mark for merges: an empty block that was requested in
    /// advance stays.
    was_fuller: bool,
    /// When the block last requested nothing.
    looked: Time,
    /// Bytes taken at the last measurement of the rate.
    taken: usize,
    measured: Time,
    /// Growth in bytes per second.
    rate: u64,
    /// When the counts of operations were last reduced.
    pub cooled: Time,
    /// The weight at which no split would divide the block into lighter parts.
    indivisible: Option<usize>,
    /// The keys that fill such a block.
    hot: Option<Arc<str>>,
}

impl Asking {
    /// A move is over: no merge for a while, however light the block becomes.
    fn rest(&mut self, now: Time) {
        (self.merge_after, self.refused_with) = (now + MERGE_REST, 0);
    }

    fn measure(&mut self, now: Time, taken: usize) {
        let over = now.since(self.measured);
        if over < RATE_OVER {
            return;
        }
        let grown = taken.saturating_sub(self.taken) as u128;
        let rate = (grown * 1_000_000_000 / over.as_nanos().max(1)) as u64;
        // The rate follows a burst at once and forgets it slowly.
        self.rate = rate.max(self.rate / 8 * 7);
        (self.taken, self.measured) = (taken, now);
    }
}

/// The bytes taken at which a block of `size` bytes requests a split if it grows by `rate` bytes per second:
/// early enough that the move ends before the block is full, and at its high mark at the latest.
pub fn splits_from(size: usize, rate: u64, marks: Marks) -> usize {
    // The prefix may request a high mark below the earliest split.
    let latest = marks.split_at(size);
    let earliest = latest.min(size / 100 * SPLIT_FROM);
    let takes = MOVE_LEAST.as_nanos() as u64 + size as u64 / 2 * 1_000_000_000 / MOVE_RATE;
    let comes = (rate as u128 * takes as u128 / 1_000_000_000) as usize;
    size.saturating_sub(size / RESERVE_FRACTION + comes).clamp(earliest, latest)
}

impl KvBlock {
    /// Whether a hash of this block's range can be used: otherwise the answer.
    pub(super) fn admit_hash(&self, hash: u64, change: bool) -> Result<(), Answer> {
        self.need_arrived(hash, change)?;
        if hash < self.start || hash > self.end || self.empty_handed {
            return Err(self.departed_to(hash).unwrap_or_else(elsewhere));
        }
        let Some(export) = &self.export else { return Ok(()) };
        let least = if change { Phase::Frozen } else { Phase::Handed };
        let moves = hash >= export.start && hash <= export.end;
        if change && Bug::MoveWritesFrozen.active() || !change && Bug::MoveServesLate.active() {
            return Ok(());
        }
        if moves && export.phase >= least { Err(waits()) } else { Ok(()) }
    }

    /// Whether no range with this hash is being sent here. Until everything has arrived the other block
    /// serves the range, so that only a caller with an old map comes here: it is redirected. From then on the
    /// range may belong to this block at any moment, and the caller waits.
    ///
    /// A `change`, or a read in a request that is recorded for retries, is redirected by `Moved` alone, which
    /// is recorded: a delayed copy of a request that was answered `WrongRange` could run here after the move.
    /// It waits if this block does not remember the target of the range.
    pub(super) fn need_arrived(&self, hash: u64, change: bool) -> Result<(), Answer> {
        let import = self.import.as_ref().filter(|import| import.holds(hash));
        let Some(import) = import.filter(|_| !Bug::MoveServesEarly.active()) else { return Ok(()) };
        if import.is_whole() || Bug::ImportMakesReadersWait.active() {
            return Err(waits());
        }
        let unknown = || if change { waits() } else { elsewhere() };
        Err(self.departed_to(hash).unwrap_or_else(unknown))
    }

    /// The answer for a hash of a departed range that this block remembers.
    fn departed_to(&self, hash: u64) -> Option<Answer> {
        let gone = self.departed.iter().find(|gone| gone.start <= hash && hash <= gone.end)?;
        Some(Answer { status: Status::Moved, args: gone.moved.to_vec(), ..Answer::ok(0) })
    }

    /// The last hash up to which all hashes from `hash` on can be read now.
    pub(super) fn readable_from(&self, hash: u64) -> u64 {
        match &self.export {
            Some(export) if export.phase == Phase::Handed && export.start > hash => {
                export.start - 1
            }
            _ => self.end,
        }
    }

    /// Frees some of the departed data, so that no operation waits for all of it.
    pub(super) fn sweep_departed(&mut self, block: &mut Backing) -> bool {
        for _ in 0..SWEEP_VALUES.min(self.table.leaving_values.len()) {
            let value = self.table.leaving_values.pop().expect("counted");
            self.table.heap.free_value(block, value);
        }
        if !self.table.leaving_values.is_empty() {
            return true;
        }
        for _ in 0..SWEEP_REGIONS {
            let Some(id) = self.table.leaving.pop() else { return false };
            let region = self.table.heap.regions.get(id);
            if region.large > 0 {
                let values = values_of(block, region);
                self.table.leaving_values = values.into_iter().map(|(_, value)| value).collect();
            }
            if Bug::MoveDropsExtents.active() {
                self.table.drop_extents_of(block, id);
            }
            self.table.heap.forget_region(block, id);
        }
        true
    }

    fn wants_split(&mut self, block: &Backing, taken: usize) -> Option<Wish> {
        let asking = &mut self.asking;
        let pressed = *self.table.overflow.relief() == Relief::Wanted;
        let grown = asking.merged_with.map_or(0, |with| with + self.size / HEAVIER);
        let grown = grown.min(self.marks.split_at(self.size));
        if !pressed && taken < splits_from(self.size, asking.rate, self.marks).max(grown) {
            asking.indivisible = None;
            return None;
        }
        let step = self.size / 64;
        if asking.indivisible.is_some_and(|weight| taken.abs_diff(weight) < step) {
            return None;
        }
        let middle = self.middle(block);
        self.asking.indivisible = middle.is_none().then_some(taken);
        self.asking.hot = middle.is_none().then(|| self.hot_keys(block));
        middle.map(|start| Wish::Split { start })
    }

    fn wants_merge(&self, now: Time, taken: usize) -> Option<Wish> {
        let whole = self.start == 0 && self.end == u64::MAX;
        let asking = &self.asking;
        let rested = now >= asking.merge_after || self.is_lighter(taken);
        let idle = !whole && asking.was_fuller && rested && self.fills.is_empty();
        (idle && taken <= self.marks.merge_at(self.size)).then_some(Wish::Merge)
    }

    /// Whether the block is so much lighter than at its last refused merge that it may find a neighbour now.
    fn is_lighter(&self, taken: usize) -> bool {
        taken + self.size / LIGHTER <= self.asking.refused_with
    }

    fn in_range(&self) -> impl Iterator<Item = (u64, u64, u32)> + '_ {
        let (start, end) = self.export.as_ref().map_or((1, 0), |export| (export.start, export.end));
        let first =
            if start <= end { self.table.map.place_of(start) } else { self.table.map.len() };
        (first..self.table.map.len())
            .map(|place| {
                (self.table.map.start(place), self.end_of(place), self.table.map.region(place))
            })
            .take_while(move |(from, ..)| *from <= end)
    }

    pub(super) fn end_of(&self, place: usize) -> u64 {
        self.table.map.end(place, self.end)
    }

    /// The region to send next: the first from the cursor on that has changed, then from the start.
    fn next_region(&self) -> Option<(u64, u64, u32)> {
        let cursor = self.export.as_ref()?.cursor;
        let changed = |(.., id): &(u64, u64, u32)| self.table.heap.regions.get(*id).unsent() > 0;
        let mut all = self.in_range().filter(changed).peekable();
        let first = all.peek().copied();
        all.find(|(start, ..)| *start >= cursor).or(first)
    }

    /// The changes of a region since it was sent.
    fn patch(&mut self, block: &Backing, start: u64, end: u64, id: u32) -> Parcel {
        let region = self.table.heap.regions.get_mut(id);
        let patches = region.unsent.take_patches();
        let contents = region.contents();
        let mut runs = Vec::with_capacity(2 * patches.bytes());
        for run in patches.runs(contents.len()) {
            (run.start as u32).put(&mut runs);
            (run.len() as u32).put(&mut runs);
            runs.extend_from_slice(block.slice(region.at + run.start..region.at + run.end));
        }
        Parcel::Patch { start, end, length: contents.len() as u32, runs: runs.into() }
    }

    /// Ends an export, and everything is as before.
    fn forget_export(&mut self, block: &mut Backing) {
        for (.., id) in self.in_range().collect::<Vec<_>>() {
            self.table.heap.regions.get_mut(id).unsent.forget_patches();
        }
        self.export = None;
        self.table.heap.values.end_copies();
        self.calm = self.is_calm();
        // During an export, empty regions are kept.
        self.table.drop_empty_regions(block);
    }

    pub(super) fn is_calm(&self) -> bool {
        let frozen = self.export.as_ref().is_some_and(|export| export.phase >= Phase::Frozen);
        !frozen && self.import.is_none() && !self.empty_handed
    }
}

impl Movable for KvBlock {
    fn wish(&mut self, block: &Backing, now: Time) -> Option<Wish> {
        let taken = self.table.heap.taken();
        self.asking.measure(now, taken);
        self.cool(now);
        if now >= self.asking.reason_until && !Bug::ReasonOutlivesNeed.active() {
            self.table.overflow.set_lacking(None);
        }
        let busy = self.export.is_some() || self.import.is_some() || self.asking.asked;
        if busy || now < self.asking.after || self.empty_handed {
            return None;
        }
        if !self.table.leaving.is_empty() || !self.table.leaving_values.is_empty() {
            // Departed data still counts, which is no reason to split the rest as well.
            self.table.overflow.set_relief(Relief::Coming);
            self.asking.looked = now;
            return None;
        }
        self.asking.was_fuller |= taken > self.marks.merge_at(self.size);
        let split = self.wants_split(block, taken);
        if split.is_none() {
            // The block has room, or a split would give it none.
            self.table.overflow.set_relief(match (&self.asking.hot, self.asking.indivisible) {
                (Some(keys), Some(_)) => Relief::Indivisible(keys.clone()),
                _ => Relief::Possible,
            });
        }
        let Some(wish) = split.or_else(|| self.wants_merge(now, taken)) else {
            self.asking.looked = now;
            return None;
        };
        self.asking.asked = true;
        if matches!(wish, Wish::Split { .. })
            && !matches!(self.table.overflow.relief(), Relief::Denied(..))
        {
            self.table.overflow.set_relief(Relief::Coming);
        }
        Some(wish)
    }

    fn can_leave(&self) -> bool {
        let busy = self.export.is_some() || self.import.is_some() || self.asking.asked;
        // Departed data is freed first, because it uses room.
        let swept = self.table.leaving.is_empty() && self.table.leaving_values.is_empty();
        !busy && !self.empty_handed && swept
    }

    fn wish_at(&self) -> Option<Time> {
        let busy = self.export.is_some() || self.import.is_some() || self.asking.asked;
        if busy || self.empty_handed {
            return None;
        }
        let Asking { after, merge_after, looked, was_fuller, .. } = self.asking;
        let part = self.start > 0 || self.end < u64::MAX;
        let taken = self.table.heap.taken();
        let light = taken <= self.marks.merge_at(self.size);
        let forgotten = self.table.overflow.is_lacking() && !Bug::ReasonOutlivesNeed.active();
        let reason = forgotten.then_some(self.asking.reason_until);
        let at = match self.table.overflow.relief() {
            Relief::None | Relief::Indivisible(_) | Relief::Possible
                if part && was_fuller && light =>
            {
                if self.is_lighter(taken) {
                    after
                } else {
                    merge_after.max(after)
                }
            }
            Relief::None | Relief::Indivisible(_) | Relief::Possible => return reason,
            _ => after,
        };
        let at = at.max(looked + ASK_AGAIN);
        Some(reason.map_or(at, |until| at.min(until)))
    }

    fn refused(&mut self, now: Time, wish: Wish, status: Status, why: String) {
        self.asking.asked = false;
        match wish {
            Wish::Split { .. } => {
                self.asking.after = now + ASK_AGAIN;
                // After `Busy`, or without a controller, writers wait for another answer.
                let (relief, lacking) = match status {
                    Status::Busy | Status::Unavailable => (Relief::Coming, None),
                    Status::OutOfMemory => (Relief::Coming, Some(why)),
                    status => (Relief::Denied(status, why), None),
                };
                self.table.overflow.set_relief(relief);
                self.table.overflow.set_lacking(lacking);
                self.asking.reason_until = now + REASON_LASTS;
            }
            Wish::Merge => {
                let rest = self.asking.merge_rest.max(MERGE_REST);
                self.asking.merge_after = now + rest;
                self.asking.merge_rest = (2 * rest).min(MERGE_REST_MAX);
                self.asking.refused_with = self.table.heap.taken();
            }
            // The block itself did not request it.
            Wish::Relocate => {}
        }
    }

    fn begin_export(&mut self, block: &mut Backing, start: u64, end: u64) -> Result<(), Answer> {
        assert!(self.export.is_none(), "INV-19: one move at a time");
        if self.import.is_some() || start < self.start || end != self.end {
            // The controller has ended this move since, and has begun another one.
            return Err(Answer::refuse(Status::Busy, "the block takes part in another move"));
        }
        self.table.divide_at(block, start)?;
        self.asking.begin_rest = Duration::ZERO;
        self.table.overflow.set_lacking(None);
        self.table.heap.values.begin_copies();
        self.export =
            Some(Export { start, end, phase: Phase::Copying, cursor: start, begun: None });
        let moving: Vec<u32> = self.in_range().map(|(.., id)| id).collect();
        for id in moving {
            self.table.heap.regions.get_mut(id).unsent = Unsent::all();
        }
        Ok(())
    }

    fn prepare(&mut self, block: &mut Backing, most: usize) -> Prepared {
        let Some(export) = &mut self.export else { return Prepared::Nothing };
        if let Some(begun) = export.begun.take() {
            return self.go_on(block, begun, most);
        }
        let copies = self.table.heap.values.copies_mut().expect("an export has copies");
        if let Some(dropped) = copies.take_dropped(DROPS_MAX) {
            return Prepared::Parcel(Parcel::Drops(dropped));
        }
        if let Some(number) = copies.next_queued() {
            let place = self.table.heap.values.place(number);
            let copies = self.table.heap.values.copies_mut().expect("an export has copies");
            copies.sent(number, place.len());
            let value = Begin::Value { number, bytes: block.pin(place) };
            return self.go_on(block, Begun::new(value), most);
        }
        let Some((start, end, id)) = self.next_region() else { return Prepared::Nothing };
        let export = self.export.as_mut().expect("the regions of an export were just read");
        export.cursor = end.wrapping_add(1);
        let region = self.table.heap.regions.get(id);
        let small = region.unsent() <= region.contents().len() / 2;
        if !region.unsent.is_all() && region.large == 0 && small {
            return Prepared::Parcel(self.patch(block, start, end, id));
        }
        let values = match region.large {
            0 => Vec::new(),
            _ => values_of(block, region),
        };
        let copies = self.table.heap.values.copies_mut().expect("an export has copies");
        if copies.queue_missing(values.iter().map(|(_, value)| *value)) {
            self.export.as_mut().expect("as above").cursor = start;
            return Prepared::Partly;
        }
        let region = self.table.heap.regions.get_mut(id);
        // The other block has numbers of its own for values: a region that refers to values is sent whole.
        region.unsent.sent(values.is_empty() && region.count > 0);
        if region.count > 0 && values.is_empty() {
            let bytes = std::iter::repeat_n(0, region.contents().len()).collect();
            let region = Begin::Region { start, end, id, bytes };
            return self.go_on(block, Begun::new(region), most);
        }
        let bytes: Arc<[u8]> = match region.count {
            0 => Arc::new([]),
            _ => block.slice(region.contents()).into(),
        };
        let (values, checksum) = (values.len() as u32, checksum(&bytes));
        Prepared::Parcel(Parcel::Region { start, end, values, checksum, bytes })
    }

    fn unsent(&self) -> u64 {
        let regions = self.in_range().map(|(.., id)| self.table.heap.regions.get(id));
        let (regions, values) = regions.fold((0, 0), |(regions, values), region| {
            (regions + region.unsent(), values + region.large)
        });
        let sent = self.table.heap.values.copies().map_or(0, Copies::bytes);
        let begun = self.export.as_ref().and_then(|export| export.begun.as_ref());
        let begun = begun.map_or(0, Begun::unsent);
        (regions + values.saturating_sub(sent) + begun) as u64
    }

    fn freeze(&mut self, _now: Time) {
        self.set_phase(Phase::Frozen);
    }

    fn thaw(&mut self) {
        self.set_phase(Phase::Copying);
    }

    fn hand_over(&mut self) {
        self.set_phase(Phase::Handed);
    }

    fn totals(&self) -> Totals {
        let regions = self.in_range().map(|(.., id)| self.table.heap.regions.get(id));
        regions.fold(Totals::default(), |sum, region| Totals {
            entries: sum.entries + region.count as u64,
            bytes: sum.bytes + (region.live + region.large) as u64,
        })
    }

    fn depart(&mut self, now: Time, moved: Vec<u8>) {
        let export = self.export.take().expect("INV-19: only what was handed over departs");
        assert_eq!(export.phase, Phase::Handed, "INV-19: what departs is not read any more");
        let first = self.table.map.place_of(export.start);
        let gone = self.table.map.split_off(first);
        for id in &gone {
            self.table.length -= self.table.heap.regions.get(*id).count as u64;
        }
        self.table.leaving.extend(gone);
        let (start, end) = (export.start, export.end);
        self.departed.truncate(DEPARTED_MAX - 1);
        self.departed.insert(0, Departed { start, end, moved: moved.into() });
        match start == self.start {
            true => self.empty_handed = true,
            false => self.end = start - 1,
        }
        self.table.heap.values.end_copies();
        self.table.overflow.set_relief(Relief::Possible);
        let (measured, merge_after) = (now, now + MERGE_REST);
        let cooled = self.asking.cooled;
        self.asking =
            Asking { measured, merge_after, cooled, was_fuller: true, ..Asking::default() };
        self.calm = self.is_calm();
    }

    fn cancel_export(&mut self, block: &mut Backing, now: Time) {
        // A move that could not begin is requested again, too.
        let mut rest = ASK_AGAIN;
        if self.export.is_some() {
            self.forget_export(block);
        } else {
            rest = self.asking.begin_rest.max(BEGIN_AGAIN);
            self.asking.begin_rest = (2 * rest).min(BEGIN_AGAIN_MAX);
        }
        self.asking.asked = false;
        self.asking.after = now + rest;
        self.asking.rest(now);
        self.table.overflow.set_relief(Relief::Possible);
    }

    fn did_not_fit(&mut self) {
        self.table.overflow.set_relief(Relief::Wanted);
    }

    fn begin_import(&mut self, move_id: u64, start: u64, end: u64) -> Result<(), Answer> {
        self.start_import(move_id, start, end)
    }

    fn end_import(&mut self, block: &mut Backing, now: Time, move_id: u64, commit: bool) {
        let had = (self.start, self.end);
        self.finish_import(block, move_id, commit);
        self.asking.rest(now);
        self.asking.was_fuller = true;
        if had != (self.start, self.end) {
            // Content that has arrived by the move is no growth.
            let taken = self.table.heap.taken();
            self.asking.merged_with = Some(taken);
            (self.asking.taken, self.asking.measured, self.asking.rate) = (taken, now, 0);
        }
    }

    fn imports(&self, move_id: u64) -> Option<(u64, u64)> {
        self.import.as_ref().and_then(|import| import.of(move_id))
    }

    fn takes(&self, op: Op) -> Option<Arrival> {
        match op {
            Op::MoveRegion | Op::MovePatch | Op::MoveValue => Some(Arrival::InPieces),
            Op::MoveDrops | Op::MoveDone => Some(Arrival::Whole),
            _ => None,
        }
    }

    fn sweep(&mut self, block: &mut Backing) -> bool {
        self.sweep_departed(block)
    }
}

impl KvBlock {
    /// Prepares another piece of a part.
    fn go_on(&mut self, block: &Backing, mut begun: Begun, most: usize) -> Prepared {
        let from = begun.done;
        let whole = match &mut begun.what {
            Begin::Region { id, bytes, .. } => {
                let region = self.table.heap.regions.get(*id);
                if !region.unsent.is_patched() {
                    return Prepared::Partly; // The region has a new layout: the part begins again.
                }
                let to = bytes.len().min(from.saturating_add(most));
                let piece = block.slice(region.at + from..region.at + to);
                let copy = Arc::get_mut(bytes).expect("it was not sent yet");
                copy[from..to].copy_from_slice(piece);
                begun.sum.add(&copy[from..to]);
                begun.done = to;
                bytes.len()
            }
            Begin::Value { bytes, .. } => {
                let bytes = bytes.bytes();
                begun.done = bytes.len().min(from.saturating_add(most));
                begun.sum.add(&bytes[from..begun.done]);
                bytes.len()
            }
        };
        if begun.done < whole {
            let export = self.export.as_mut().expect("a part of an export");
            export.begun = Some(begun);
            return Prepared::Partly;
        }
        let checksum = begun.sum.value();
        Prepared::Parcel(match begun.what {
            Begin::Region { start, end, bytes, .. } => {
                Parcel::Region { start, end, values: 0, checksum, bytes }
            }
            Begin::Value { number, bytes } => Parcel::Value { number, checksum, bytes },
        })
    }

    fn set_phase(&mut self, phase: Phase) {
        let export = self.export.as_mut().expect("a range is on its way");
        assert!(export.phase != Phase::Handed, "INV-19: what was handed over is not taken back");
        export.phase = phase;
        self.calm = self.is_calm();
    }
}

/// The answer for a hash of another block.
fn elsewhere() -> Answer {
    Answer::refuse(Status::WrongRange, "the key belongs to another block")
}

/// The answer for a hash that is about to belong to another block, or to this one.
fn waits() -> Answer {
    let payload = Payload::None;
    Answer { status: Status::Busy, value: RETRY_FROZEN_US, args: Vec::new(), payload }
}
