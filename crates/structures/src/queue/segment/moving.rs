//! How a queue block migrates: its items and their directory, its reservations with the remaining time, and
//! the reported state of its bound and seal.

use super::QueueSegment;
use crate::Answer;
use crate::growth::TailImage;
use crate::migration::{Migrate, broken};
use crate::queue::items::{ItemCounts, ItemLog};
use hashbrown::HashSet;
use honeycomb_block::Backing;
use honeycomb_types::{Bug, Time};
use honeycomb_wire::{Field, Reader};
use std::ops::Range;

/// Most items, and most bytes, that a block accepts as counted by another block. Sums of such counts with
/// those of the block's own operations do not overflow.
const COUNTED: u64 = 1 << 62;
/// Most deliveries of an item that a block accepts as counted by another block.
const DELIVERIES: u32 = 1 << 31;

impl Migrate for QueueSegment {
    /// Items that were taken permanently are not moved.
    fn front_start(&self, block: &Backing) -> usize {
        match self.deliveries.first_left() {
            first if first < self.items.count() => self.items.start_of(block, first),
            _ => self.items.committed(),
        }
    }

    fn front_end(&self) -> usize {
        self.items.committed()
    }

    fn back(&self) -> Range<usize> {
        self.items.places(0..self.items.count())
    }

    fn is_settled(&self) -> bool {
        self.items.is_settled()
    }

    fn image(&self, now: Time) -> Vec<u8> {
        let mut out = Vec::new();
        let ItemCounts { committed, base, count, put_bytes, size } = self.items.counts();
        let (taken, taken_bytes) = self.deliveries.taken();
        let head = self.deliveries.head() as u64;
        for number in [committed, base, count, head, put_bytes, taken, taken_bytes, size] {
            number.put(&mut out);
        }
        let ahead = self.bound.ahead();
        ahead.is_some().put(&mut out);
        let (items, bytes) = ahead.unwrap_or_default();
        items.put(&mut out);
        bytes.put(&mut out);
        self.tail.put(&mut out);
        let reserved = self.deliveries.reservations(now);
        (reserved.len() as u64).put(&mut out);
        for (item, left, deliveries) in reserved {
            (item as u64).put(&mut out);
            left.put(&mut out);
            deliveries.put(&mut out);
        }
        out
    }

    fn restore(&mut self, block: &Backing, now: Time, image: &[u8]) -> Result<(), Answer> {
        let image = QueueImage::get(image)?;
        if image.counts.size > self.tail.capacity.bytes() as u64 {
            return Err(broken("the items need more bytes than the block has"));
        }
        let log = ItemLog::like(&image.counts);
        image.check(&log, block)?;
        let QueueImage { counts, head, taken, ahead, tail, mut reserved } = image;
        if Bug::RelocateForgetsReserved.active() {
            reserved.clear();
        }
        self.items = log;
        self.items.restore(&counts);
        self.deliveries.restore(now, head as usize, taken, reserved);
        self.items.count_elsewhere(block, self.deliveries.left(&self.items));
        self.bound.restore_ahead(ahead);
        self.tail.restore(tail);
        Ok(())
    }

    fn resume(&mut self, block: &mut Backing, now: Time, new: bool) {
        if new && !Bug::SealLeftBehind.active() {
            // The report may not have arrived.
            self.report_seal();
        }
        self.settle(block, now, false);
    }

    fn dismiss(&mut self, answer: &Answer) {
        while let Some((ticket, _)) = self.waiters.take_getter() {
            self.events.answer(ticket, answer.clone());
        }
        while let Some((ticket, _)) = self.waiters.take_putter() {
            self.events.answer(ticket, answer.clone());
        }
    }
}

/// The state of another block, as it was sent.
struct QueueImage {
    counts: ItemCounts,
    /// The first item that was never delivered.
    head: u64,
    /// Items and bytes that were taken permanently.
    taken: (u64, u64),
    /// Items and bytes in earlier blocks, if they are known.
    ahead: Option<(u64, u64)>,
    tail: TailImage,
    /// As `Reserved::list` returns them.
    reserved: Vec<(usize, u64, u32)>,
}

impl QueueImage {
    fn get(image: &[u8]) -> Result<QueueImage, Answer> {
        let mut from = Reader::new(image);
        let mut numbers = [0u64; 8];
        for number in &mut numbers {
            *number = u64::get(&mut from)?;
        }
        let [committed, base, count, head, put_bytes, taken, taken_bytes, size] = numbers;
        let counts = ItemCounts { committed, base, count, put_bytes, size };
        let known = bool::get(&mut from)?;
        let ahead = (u64::get(&mut from)?, u64::get(&mut from)?);
        let tail = TailImage::get(&mut from)?;
        let mut reserved = Vec::new();
        for _ in 0..u64::get(&mut from)? {
            let item = u64::get(&mut from)? as usize;
            reserved.push((item, u64::get(&mut from)?, u32::get(&mut from)?));
        }
        from.finish()?;
        let (taken, ahead) = ((taken, taken_bytes), known.then_some(ahead));
        Ok(QueueImage { counts, head, taken, ahead, tail, reserved })
    }

    /// Refuses a state that the operations of a queue cannot lead to, with the directory in the block: they
    /// rely on all of this.
    fn check(&self, log: &ItemLog, block: &Backing) -> Result<(), Answer> {
        let ItemCounts { base, count, put_bytes, .. } = self.counts;
        let (ahead, ahead_bytes) = self.ahead.unwrap_or_default();
        if [base, put_bytes, ahead, ahead_bytes].into_iter().any(|counted| counted > COUNTED) {
            return Err(broken("a queue has counted more items or bytes than there can be"));
        }
        if !log.fits(block, &self.counts) || self.head > count {
            return Err(broken("the counters of the block do not fit its items"));
        }
        let head = self.head as usize;
        let (mut held, mut left) = (HashSet::new(), 0);
        for item in head..count as usize {
            left += log.weight_of(block, item);
        }
        for &(item, _, deliveries) in &self.reserved {
            if item >= head || !held.insert(item) {
                return Err(broken("an item is reserved twice, or was never delivered"));
            }
            if !(1..=DELIVERIES).contains(&deliveries) {
                return Err(broken("an item was delivered more often than it can be, or never"));
            }
            left += log.weight_of(block, item);
        }
        let (taken, taken_bytes) = self.taken;
        let items = taken.checked_add(held.len() as u64) == Some(base + self.head);
        if !items || taken_bytes.checked_add(left) != Some(put_bytes) {
            return Err(broken("the items that were taken and those that are left are not all"));
        }
        Ok(())
    }
}
