//! How a queue block migrates: its items and their directory, its reservations with the remaining time, and
//! the reported state of its bound and seal.

use super::QueueSegment;
use crate::Answer;
use crate::growth::TailImage;
use crate::migration::{Migrate, broken};
use crate::queue::items::ItemCounts;
use honeycomb_block::Backing;
use honeycomb_types::{Bug, Time};
use honeycomb_wire::{Field, Reader};
use std::ops::Range;

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
        let ItemCounts { committed, base, count, put_bytes } = self.items.counts();
        let (taken, taken_bytes) = self.deliveries.taken();
        let head = self.deliveries.head() as u64;
        for number in [committed, base, count, head, put_bytes, taken, taken_bytes] {
            number.put(&mut out);
        }
        let ahead = self.bound.ahead();
        ahead.is_some().put(&mut out);
        let (items, bytes) = ahead.unwrap_or_default();
        items.put(&mut out);
        bytes.put(&mut out);
        self.tail.put(&mut out);
        let reserved = match Bug::RelocateForgetsReserved.active() {
            true => Vec::new(),
            false => self.deliveries.reservations(now),
        };
        (reserved.len() as u64).put(&mut out);
        for (item, left, deliveries) in reserved {
            (item as u64).put(&mut out);
            left.put(&mut out);
            deliveries.put(&mut out);
        }
        out
    }

    fn restore(&mut self, now: Time, image: &[u8]) -> Result<(), Answer> {
        let mut from = Reader::new(image);
        let mut numbers = [0u64; 7];
        for number in &mut numbers {
            *number = u64::get(&mut from)?;
        }
        let [committed, base, count, head, put_bytes, taken, taken_bytes] = numbers;
        let known = bool::get(&mut from)?;
        let ahead = (u64::get(&mut from)?, u64::get(&mut from)?);
        let tail = TailImage::get(&mut from)?;
        let counts = ItemCounts { committed, base, count, put_bytes };
        let fits = self.items.fits(&counts) && head <= count;
        let through = base.checked_add(count);
        if !fits || through.is_none_or(|through| taken > through) || taken_bytes > put_bytes {
            return Err(broken("the counters of the block are inconsistent"));
        }
        let mut reserved = Vec::new();
        for _ in 0..u64::get(&mut from)? {
            let item = u64::get(&mut from)?;
            if item >= head {
                return Err(broken("an item is reserved but was never delivered"));
            }
            reserved.push((item as usize, u64::get(&mut from)?, u32::get(&mut from)?));
        }
        from.finish()?;
        self.items.restore(&counts);
        self.deliveries.restore(now, head as usize, (taken, taken_bytes), reserved);
        self.bound.restore_ahead(known.then_some(ahead));
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
        while let Some(getter) = self.waiters.take_getter() {
            self.events.answer(getter.ticket, answer.clone());
        }
        while let Some(putter) = self.waiters.take_putter() {
            self.events.answer(putter.ticket, answer.clone());
        }
    }
}
