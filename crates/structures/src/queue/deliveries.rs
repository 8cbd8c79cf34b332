//! Deliveries of a block's items: which were delivered, which are reserved, and how many were taken for good.

use super::items::ItemLog;
use super::reserved::Reserved;
use crate::{Answer, Bytes, Payload};
use honeycomb_block::Backing;
use honeycomb_types::Time;
use honeycomb_wire::notice::Change;
use honeycomb_wire::queue::{AckAction, Counts, GetArgs, Items};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Items of at least this size are kept for retries in place; smaller ones are copied.
const PIN_FROM: usize = 16 * 1024;

/// Items that empty the block are copied up to this size.
const COPY_LAST_MAX: usize = 1 << 20;

/// Items that can be delivered together: a list of extents alone.
pub(super) struct Run {
    pub items: Range<usize>,
    /// How often they had been delivered before.
    pub deliveries: u32,
    /// The run is a list of extents.
    pub is_list: bool,
    /// They had been delivered before and were returned.
    returned: bool,
}

/// The progress of the consumers.
#[derive(Default)]
pub(super) struct Deliveries {
    /// The first item that was never delivered.
    head: usize,
    reserved: Reserved,
    taken: u64,
    taken_bytes: u64,
}

impl Deliveries {
    /// The next items to deliver, if any.
    #[inline]
    pub fn next_run(&self, items: &ItemLog, block: &impl Bytes, args: &GetArgs) -> Option<Run> {
        if let Some((item, deliveries)) = self.reserved.first_returned() {
            let is_list = items.is_list(block, item);
            return Some(Run { items: item..item + 1, deliveries, is_list, returned: true });
        }
        let count = items.count();
        if self.head == count {
            return None;
        }
        let start = items.start_of(block, self.head);
        let is_list = items.is_list(block, self.head);
        let most = if is_list { 1 } else { args.items as usize };
        let last = count.min(self.head + most);
        let mut next = self.head + 1;
        while next < last {
            let (end, is_list) = items.end_and_sort(block, next);
            if is_list || end - start > args.bytes as usize {
                break;
            }
            next += 1;
        }
        Some(Run { items: self.head..next, deliveries: 0, is_list, returned: false })
    }

    /// The part of the directory that contains the places of the next items; `None` if there are none.
    pub fn next_places(&self, items: &ItemLog, args: &GetArgs) -> Option<Range<usize>> {
        let (first, most) = match self.reserved.first_returned() {
            Some((item, _)) => (item, 1),
            None => (self.head, args.items as usize),
        };
        let last = items.count().min(first + most);
        (first < last).then(|| items.places(first.saturating_sub(1)..last))
    }

    /// The numbers, the lengths and the delivery count of a run.
    pub fn describe(&self, items: &ItemLog, block: &impl Bytes, run: &Run) -> Items {
        let mut start = items.start_of(block, run.items.start);
        let lengths = run.items.clone().map(|item| {
            let end = items.end_of(block, item);
            let length = (end - start) as u32;
            start = end;
            length
        });
        let lengths = lengths.collect();
        Items { first: items.number(run.items.start), deliveries: run.deliveries + 1, lengths }
    }

    /// Delivers items: taken permanently, or reserved. `open` if the block accepts more items.
    pub fn give(
        &mut self,
        items: &ItemLog,
        block: &mut Backing,
        now: Time,
        args: &GetArgs,
        run: Run,
        open: bool,
    ) -> Answer {
        let bytes = items.bytes_of(block, &run.items);
        let described = self.describe(items, block, &run);
        // Items that empty the block are not pinned, so that the block can start again at once. Otherwise a
        // queue that is filled and emptied in turn would need a new block for every turn.
        let last = run.items.end == items.count() && open;
        let copied = bytes.len() < PIN_FROM || (last && bytes.len() <= COPY_LAST_MAX);
        let payload = match copied {
            true => Payload::Bytes(Arc::from(block.slice(bytes.clone()))),
            false => Payload::Pinned(block.pin(bytes.clone())),
        };
        let count = run.items.len() as u64;
        if args.reserve_ms == 0 {
            self.pass(items, &run);
            self.release(items, count, bytes.len() as u64);
        } else {
            self.reserve(items, now, args.reserve_ms, &run);
        }
        Answer { args: described.encode(), ..Answer::ok(count) }.with(payload)
    }

    /// A run is delivered.
    fn pass(&mut self, items: &ItemLog, run: &Run) {
        if run.returned {
            return self.reserved.take_returned(run.items.start);
        }
        let (head, count) = (self.head, items.count());
        let next = head == run.items.start && run.items.end <= count;
        assert!(next, "INV-22: items {:?} are delivered at {head} of {count}", run.items);
        self.head = run.items.end;
    }

    /// Delivers a run as reserved.
    pub fn reserve(&mut self, items: &ItemLog, now: Time, reserve_ms: u32, run: &Run) {
        self.pass(items, run);
        let until = now + Duration::from_millis(reserve_ms as u64);
        for item in run.items.clone() {
            self.reserved.reserve(item, until, run.deliveries + 1);
        }
    }

    /// Counts items as taken permanently.
    fn release(&mut self, items: &ItemLog, count: u64, bytes: u64) {
        self.taken += count;
        self.taken_bytes += bytes;
        let (taken, put) = (self.taken(), (items.through(), items.put_bytes()));
        let covered = taken.0 <= put.0 && taken.1 <= put.1;
        // Another server has counted the items of a migrated block, so that products do not assert it.
        debug_assert!(covered, "INV-22: {taken:?} items and bytes are taken of {put:?}");
    }

    /// The item with this number, if it is out with this delivery count.
    pub fn held(&self, items: &ItemLog, number: u64, deliveries: u32) -> Option<usize> {
        items.item(number).filter(|item| self.reserved.is_out(*item, deliveries))
    }

    /// Settles, returns or extends an item that is out; returns the change for subscribers.
    pub fn acknowledge(
        &mut self,
        items: &ItemLog,
        block: &Backing,
        (item, deliveries): (usize, u32),
        action: AckAction,
        until: Time,
    ) -> Option<Change> {
        match action {
            AckAction::Done => {
                self.reserved.settle(item);
                self.release(items, 1, items.weight_of(block, item));
                Some(Change::Space { items: 1 })
            }
            AckAction::GiveBack => {
                self.reserved.give_back(item);
                Some(Change::Data { items: 1 })
            }
            AckAction::Extend => {
                self.reserved.reserve(item, until, deliveries);
                None
            }
        }
    }

    /// Returns the items whose time has passed, and their number.
    pub fn expire(&mut self, now: Time) -> u64 {
        self.reserved.expire(now)
    }

    /// When the next item returns by itself.
    pub fn due(&self) -> Option<Time> {
        self.reserved.due()
    }

    /// Whether no item is out with a consumer.
    pub fn none_out(&self) -> bool {
        self.reserved.none_out()
    }

    /// Whether every item was delivered and none can be returned.
    #[inline]
    pub fn is_spent(&self, items: &ItemLog) -> bool {
        self.head == items.count()
            && self.reserved.none_out()
            && self.reserved.first_returned().is_none()
            && items.is_settled()
    }

    /// Items and bytes that were taken permanently.
    #[inline]
    pub fn taken(&self) -> (u64, u64) {
        (self.taken, self.taken_bytes)
    }

    /// The totals of the block, of a queue that was closed or not.
    pub fn counts(&self, items: &ItemLog, closed: bool) -> Counts {
        Counts {
            taken: self.taken,
            bytes_put: items.put_bytes(),
            bytes_taken: self.taken_bytes,
            reserved: self.reserved.count() as u64,
            closed,
        }
    }

    /// The items that are still in the queue, in order: delivered and unsettled ones first.
    pub fn left(&self, items: &ItemLog) -> impl Iterator<Item = usize> + use<> {
        self.reserved.held().chain(self.head..items.count())
    }

    /// Whether an item is still in the queue.
    pub fn is_left(&self, items: &ItemLog, item: usize) -> bool {
        (self.head..items.count()).contains(&item) || self.reserved.is_held(item)
    }

    /// The first item that can still be delivered or settled, or one past the last delivered item.
    pub fn first_left(&self) -> usize {
        self.reserved.held().next().unwrap_or(self.head).min(self.head)
    }

    /// The block starts again empty.
    pub fn begin_anew(&mut self, items: &ItemLog) {
        let (taken, through) = (self.taken, items.through());
        debug_assert_eq!(taken, through, "INV-22: a block begins anew with items left");
        self.head = 0;
    }

    /// Bytes of the records beside the block.
    pub fn bytes(&self) -> usize {
        self.reserved.bytes()
    }

    /// The first item that was never delivered.
    pub fn head(&self) -> usize {
        self.head
    }

    /// The reservations, for a block at another server (`Reserved::list`).
    pub fn reservations(&self, now: Time) -> Vec<(usize, u64, u32)> {
        self.reserved.list(now)
    }

    /// Adopts the progress at another block.
    pub fn restore(
        &mut self,
        now: Time,
        head: usize,
        (taken, taken_bytes): (u64, u64),
        reservations: Vec<(usize, u64, u32)>,
    ) {
        (self.head, self.taken, self.taken_bytes) = (head, taken, taken_bytes);
        self.reserved.restore(now, reservations);
    }
}
