//! When a block requests a split or a merge, and the reasons not to.

use super::cut::SplitPoint;
use super::heap::RESERVE_FRACTION;
use super::overflow::Relief;
use super::ownership::Ownership;
use super::table::Table;
use crate::moves::MoveRequest;
use honeycomb_block::Backing;
use honeycomb_types::{Bug, Marks, Time};
use honeycomb_wire::Status;
use std::sync::Arc;
use std::time::Duration;

/// The time after a split, a merge or a refusal before a block requests a merge: a block that has just shrunk
/// may grow again.
const MERGE_REST: Duration = Duration::from_millis(250);
/// The longest such time, after many refusals in a row.
const MERGE_REST_MAX: Duration = Duration::from_secs(8);
/// The longest such time after a cancelled move. The target of a merge that did not fit keeps a larger
/// capacity for longer (`KEPT_FOR_MOVE`).
const CANCELLED_REST_LONGEST: Duration = Duration::from_secs(1);
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
const MOVE_RATE: u64 = 100 << 20;
/// The least expected time of a move. A block that requests a split too early leaves emptier blocks.
const MOVE_LEAST: Duration = Duration::from_millis(3);
/// However fast it fills, a block requests no split below this many hundredths of its size.
const SPLIT_FROM: usize = 70;
/// The marks of a store's blocks are within this part below the high mark ...
const SPREAD_FRACTION: usize = 4;
/// ... and differ by the hashes at which their ranges start, times an odd number of many bits.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
/// A merged block requests no split before it has this part of its size more than after the merge: a block
/// that shrinks and grows in turns must not be merged and split in turns.
const HEAVIER: usize = 16;
/// A block merges when it has this part less than the most since its range was last divided: it may have been
/// lighter than the low mark then, and grow.
const SHRUNK: usize = 8;
/// A block that found no neighbour to merge with requests again at once when it has this part of its size
/// less.
const LIGHTER: usize = 32;
/// Operations count half as much after this time.
const HALVES_AFTER: Duration = Duration::from_secs(1);
/// After a long time without a call, the counts are halved at most this often: a block that is only read is
/// inspected rarely.
const HALVINGS_MAX: u64 = 3;

/// The requests of a block for moves.
#[derive(Default)]
pub(super) struct MovePlanner {
    marks: Marks,
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
    /// Most bytes taken since a part of the range has moved away.
    fullest: usize,
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
    /// The time for which a move that is requested now waits for others.
    pub delay: Duration,
    /// When the counts of operations were last reduced.
    cooled: Time,
    /// The weight at which no split would divide the block into lighter parts.
    indivisible: Option<usize>,
    /// The keys that fill such a block.
    hot: Option<Arc<str>>,
}

/// The bytes taken at which a block of `size` bytes requests a split if it grows by `rate` bytes per second
/// and the move waits for others for `delay`: early enough that it ends before the block is full, and at
/// `latest` at the latest.
pub fn splits_from(size: usize, rate: u64, delay: Duration, latest: usize) -> usize {
    // The prefix may request a high mark below the earliest split.
    let earliest = latest.min(size / 100 * SPLIT_FROM);
    let moves = Duration::from_nanos(size as u64 / 2 * 1_000_000_000 / MOVE_RATE);
    let takes = (MOVE_LEAST + delay + moves).as_nanos() as u64;
    let comes = (rate as u128 * takes as u128 / 1_000_000_000) as usize;
    size.saturating_sub(size / RESERVE_FRACTION + comes).clamp(earliest, latest)
}

/// The bytes taken at which a block of `size` bytes requests a split at the latest. The ranges of a store
/// receive equal shares of new entries, so at one common mark all blocks would split at the same time, once
/// in each doubling. The mark of a block that has a part of the hashes is therefore lower, by an amount that
/// differs from range to range: the splits are spread over two fifths of a doubling, and those of the next
/// one over more, because they begin at different levels.
fn split_mark(marks: Marks, size: usize, range: &Ownership) -> usize {
    let high = marks.split_at(size);
    if !range.is_part() {
        return high;
    }
    let part = range.start().wrapping_mul(SPREAD) >> (u64::BITS - 8);
    high - high / SPREAD_FRACTION * part as usize / 256
}

impl MovePlanner {
    /// The requests of a block that splits and merges at these marks.
    pub fn new(marks: Marks) -> MovePlanner {
        MovePlanner { marks, ..MovePlanner::default() }
    }

    pub fn marks(&self) -> Marks {
        self.marks
    }

    /// Whether a move was requested, and the request is not answered.
    pub fn has_asked(&self) -> bool {
        self.asked
    }

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

    /// Notes the growth, and forgets old operations and reasons. Before each inspection.
    pub fn observe(&mut self, table: &mut Table, now: Time) {
        self.measure(now, table.heap.taken());
        self.cool(table, now);
        if now >= self.reason_until && !Bug::ReasonOutlivesNeed.active() {
            table.overflow.set_lacking(None);
        }
    }

    /// Reduces the weight of operations that were counted long ago.
    fn cool(&mut self, table: &Table, now: Time) {
        let passed = now.since(self.cooled);
        if passed < HALVES_AFTER {
            return;
        }
        let halvings = (passed.as_millis() / HALVES_AFTER.as_millis()) as u64;
        self.cooled = now;
        for region in table.heap.regions.iter() {
            region.load.set(region.load.get() >> halvings.min(HALVINGS_MAX));
        }
    }

    /// Whether a move can be requested now.
    pub fn may_ask(&self, now: Time) -> bool {
        !self.asked && now >= self.after
    }

    /// Departed data still counts, which is no reason to split the rest as well.
    pub fn wait_for_discards(&mut self, table: &mut Table, now: Time) {
        table.overflow.set_relief(Relief::Coming);
        self.looked = now;
    }

    /// The move to request, of a block that takes part in none. `idle` if no payload is arriving.
    pub fn move_request(
        &mut self,
        table: &mut Table,
        range: &Ownership,
        block: &Backing,
        now: Time,
        idle: bool,
    ) -> Option<MoveRequest> {
        let (size, taken) = (table.heap.capacity.most(), table.heap.taken());
        self.was_fuller |= taken > self.marks.merge_at(size);
        self.fullest = self.fullest.max(taken);
        let split = self.wants_split(table, range, block, taken);
        if split.is_none() {
            // The block has room, or a split would give it none.
            table.overflow.set_relief(match (&self.hot, self.indivisible) {
                (Some(keys), Some(_)) => Relief::Indivisible(keys.clone()),
                _ => Relief::Possible,
            });
        }
        let merge =
            || (idle && self.wants_merge(range, now, taken, size)).then_some(MoveRequest::Merge);
        let Some(request) = split.or_else(merge) else {
            self.looked = now;
            return None;
        };
        self.asked = true;
        let denied = matches!(table.overflow.relief(), Relief::Denied(..));
        if matches!(request, MoveRequest::Split { .. }) && !denied {
            table.overflow.set_relief(Relief::Coming);
        }
        Some(request)
    }

    fn wants_split(
        &mut self,
        table: &Table,
        range: &Ownership,
        block: &Backing,
        taken: usize,
    ) -> Option<MoveRequest> {
        // A block grows in place before it is divided for lack of room.
        let grows = table.heap.capacity.may_grow();
        let size = if grows { table.heap.capacity.most() } else { table.heap.size() };
        let pressed = !grows && *table.overflow.relief() == Relief::Wanted;
        let grown = self.merged_with.map_or(0, |with| with + size / HEAVIER);
        let (mark, high) = (split_mark(self.marks, size, range), self.marks.split_at(size));
        if !pressed && taken < splits_from(size, self.rate, self.delay, mark).max(grown.min(high)) {
            self.indivisible = None;
            return None;
        }
        let step = size / 64;
        if self.indivisible.is_some_and(|weight| taken.abs_diff(weight) < step) {
            return None;
        }
        let point = SplitPoint::new(table, range);
        let middle = point.middle(block);
        self.indivisible = middle.is_none().then_some(taken);
        self.hot = middle.is_none().then(|| point.hot_keys(block));
        middle.map(|start| MoveRequest::Split { start })
    }

    fn wants_merge(&self, range: &Ownership, now: Time, taken: usize, size: usize) -> bool {
        let rested = now >= self.merge_after || self.is_lighter(taken, size);
        range.is_part() && rested && self.is_light(taken, size)
    }

    /// Whether the block has become light enough for a merge.
    fn is_light(&self, taken: usize, size: usize) -> bool {
        let shrunk = taken + self.fullest / SHRUNK <= self.fullest;
        self.was_fuller && shrunk && taken <= self.marks.merge_at(size)
    }

    /// Whether the block is so much lighter than at its last refused merge that it may find a neighbour now.
    fn is_lighter(&self, taken: usize, size: usize) -> bool {
        taken + size / LIGHTER <= self.refused_with
    }

    /// When `move_request` may have changed although the block has not, if it has requested no move.
    pub fn move_request_due(&self, table: &Table, range: &Ownership) -> Option<Time> {
        let (size, taken) = (table.heap.capacity.most(), table.heap.taken());
        let light = self.is_light(taken, size);
        let forgotten = table.overflow.is_lacking() && !Bug::ReasonOutlivesNeed.active();
        let reason = forgotten.then_some(self.reason_until);
        let at = match table.overflow.relief() {
            Relief::None | Relief::Indivisible(_) | Relief::Possible
                if range.is_part() && light =>
            {
                if self.is_lighter(taken, size) {
                    self.after
                } else {
                    self.merge_after.max(self.after)
                }
            }
            Relief::None | Relief::Indivisible(_) | Relief::Possible => return reason,
            _ => self.after,
        };
        let at = at.max(self.looked + ASK_AGAIN);
        Some(reason.map_or(at, |until| at.min(until)))
    }

    /// Requests no merge for a time that doubles with each call.
    fn pause_merges(&mut self, now: Time) {
        let rest = self.merge_rest.max(MERGE_REST);
        self.merge_after = now + rest;
        self.merge_rest = (2 * rest).min(MERGE_REST_MAX);
    }

    /// The controller has refused a request.
    pub fn refused(
        &mut self,
        table: &mut Table,
        now: Time,
        request: MoveRequest,
        status: Status,
        why: String,
    ) {
        self.asked = false;
        match request {
            MoveRequest::Split { .. } => {
                self.after = now + ASK_AGAIN;
                // After `Busy`, or without a controller, writers wait for another answer.
                let (relief, lacking) = match status {
                    Status::Busy | Status::Unavailable => (Relief::Coming, None),
                    Status::OutOfMemory => (Relief::Coming, Some(why)),
                    status => (Relief::Denied(status, why), None),
                };
                table.overflow.set_relief(relief);
                table.overflow.set_lacking(lacking);
                self.reason_until = now + REASON_LASTS;
            }
            MoveRequest::Merge => {
                self.pause_merges(now);
                self.refused_with = table.heap.taken();
            }
            // The block itself did not request it.
            MoveRequest::Relocate => {}
        }
    }

    /// A range begins to move away.
    pub fn begun(&mut self, table: &mut Table) {
        self.begin_rest = Duration::ZERO;
        table.overflow.set_lacking(None);
    }

    /// A range has moved away.
    pub fn departed(&mut self, table: &mut Table, now: Time) {
        table.overflow.set_relief(Relief::Possible);
        *self = MovePlanner {
            marks: self.marks,
            measured: now,
            merge_after: now + MERGE_REST,
            cooled: self.cooled,
            was_fuller: true,
            ..MovePlanner::default()
        };
    }

    /// A move was cancelled, which had begun or not: it is requested again, too.
    pub fn cancelled(&mut self, table: &mut Table, now: Time, begun: bool) {
        let mut rest = ASK_AGAIN;
        if !begun {
            rest = self.begin_rest.max(BEGIN_AGAIN);
            self.begin_rest = (2 * rest).min(BEGIN_AGAIN_MAX);
        }
        self.asked = false;
        self.after = now + rest;
        (self.merge_rest, self.refused_with) = (self.merge_rest.min(CANCELLED_REST_LONGEST), 0);
        self.pause_merges(now);
        table.overflow.renew(Relief::Possible);
    }

    /// A move to this block is over; `grown` if the block has adopted its content.
    pub fn arrived(&mut self, table: &Table, now: Time, grown: bool) {
        self.rest(now);
        self.was_fuller = true;
        if grown {
            // Content that has arrived by the move is no growth.
            let taken = table.heap.taken();
            self.merged_with = Some(taken);
            (self.taken, self.measured, self.rate) = (taken, now, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 32 << 20;

    /// The content of a store at each split of a block in two equal halves, in blocks, while the store is
    /// filled evenly.
    fn splits(marks: Marks, most: f64) -> Vec<f64> {
        let mark = |start: u64, halvings: u32| {
            let end = start + (u64::MAX >> halvings);
            split_mark(marks, SIZE, &Ownership::new(start, end)) as f64 / SIZE as f64
        };
        // Blocks by the content of the store at which they split.
        let mut blocks = vec![(mark(0, 0), 0, 0)];
        let mut splits = Vec::new();
        while let Some((at, start, halvings)) = blocks.pop().filter(|(at, ..)| *at < most) {
            splits.push(at);
            let half = mark(start, halvings) / 2.0;
            for start in [start, start + (1 << (u64::BITS - 1 - halvings))] {
                let lacks = (mark(start, halvings + 1) - half) * f64::from(2 << halvings);
                blocks.push((at + lacks, start, halvings + 1));
            }
            blocks.sort_by(|a, b| b.0.total_cmp(&a.0));
        }
        splits
    }

    #[test]
    fn splits_of_an_evenly_filled_store_are_spread() {
        let marks = Marks::default();
        let high = marks.split_at(SIZE) as f64 / SIZE as f64;
        let splits = splits(marks, high * 512.0);
        for doubling in 3..9 {
            let sixteenth = |at: f64| ((at / high).log2() - f64::from(doubling)) * 16.0;
            let mut counts = [0; 16];
            let of_this =
                splits.iter().map(|at| sixteenth(*at)).filter(|n| (0.0..16.0).contains(n));
            of_this.for_each(|n| counts[n as usize] += 1);
            let (most, all) =
                (counts.iter().max().copied().unwrap_or(0), counts.iter().sum::<usize>());
            assert!(all >= 1 << (doubling - 1), "{all} splits in doubling {doubling}");
            assert!(most * 4 <= all, "doubling {doubling}: {counts:?}");
        }
    }

    #[test]
    fn block_requests_earlier_if_its_move_waits_and_never_below_the_least_level() {
        let latest = Marks::default().split_at(SIZE);
        let from = |ms| splits_from(SIZE, 8 << 20, Duration::from_millis(ms), latest);
        assert!(from(1000) < from(200) && from(200) < from(0) && from(0) <= latest);
        assert_eq!(from(100_000), SIZE / 100 * SPLIT_FROM);
    }

    #[test]
    fn mark_is_at_most_a_quarter_below_the_high_mark_and_equal_to_it_for_a_whole_store() {
        let marks = Marks::default();
        let high = marks.split_at(SIZE);
        assert_eq!(split_mark(marks, SIZE, &Ownership::new(0, u64::MAX)), high);
        for start in (0..64).map(|bit| 1u64 << bit) {
            let mark = split_mark(marks, SIZE, &Ownership::new(start, u64::MAX));
            assert!(high - high / SPREAD_FRACTION < mark && mark <= high, "{mark} of {SIZE}");
        }
    }
}
