//! How a queue block moves: its items and their directory, its reservations with the remaining time, and the
//! reported state of its bound and seal.

use super::{PLACE, QueueBlock, QueueBounds, QueueSeal};
use crate::carry::{Carry, Cart, broken};
use crate::{Answer, Event};
use honeycomb_block::Backing;
use honeycomb_types::{Bug, Time};
use honeycomb_wire::{Field, Reader};
use std::ops::Range;

const OPEN: u8 = 0;
const CONTINUES: u8 = 1;
const FINAL: u8 = 2;

impl Carry for QueueBlock {
    fn cart(&self) -> &Cart {
        &self.cart
    }

    fn cart_mut(&mut self) -> &mut Cart {
        &mut self.cart
    }

    /// Items that were taken permanently are not moved.
    fn front_start(&self, block: &Backing) -> usize {
        match self.reserved.held().next().unwrap_or(self.head).min(self.head) {
            first if first < self.count => self.start_of(block, first),
            _ => self.pieces.committed(),
        }
    }

    fn front_end(&self) -> usize {
        self.pieces.committed()
    }

    fn back(&self) -> Range<usize> {
        self.size - PLACE * self.count..self.size
    }

    fn is_settled(&self) -> bool {
        self.pieces.is_settled()
    }

    fn image(&self, now: Time) -> Vec<u8> {
        let mut out = Vec::new();
        let out = &mut out;
        for number in [
            self.pieces.committed() as u64,
            self.base,
            self.count as u64,
            self.head as u64,
            self.put_bytes,
            self.taken,
            self.taken_bytes,
        ] {
            number.put(out);
        }
        self.ahead.is_some().put(out);
        let (items, bytes) = self.ahead.unwrap_or_default();
        items.put(out);
        bytes.put(out);
        self.next.may_have().put(out);
        match &self.seal {
            None => OPEN.put(out),
            Some(QueueSeal::Final) => FINAL.put(out),
            Some(QueueSeal::Continues(successor)) => {
                CONTINUES.put(out);
                successor.put(out);
            }
        }
        let reserved = match Bug::RelocateForgetsReserved.active() {
            true => Vec::new(),
            false => self.reserved.list(now),
        };
        (reserved.len() as u64).put(out);
        for (item, left, deliveries) in reserved {
            (item as u64).put(out);
            left.put(out);
            deliveries.put(out);
        }
        std::mem::take(out)
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
        let may_have = bool::get(&mut from)?;
        let seal = match u8::get(&mut from)? {
            OPEN => None,
            FINAL => Some(QueueSeal::Final),
            CONTINUES => Some(QueueSeal::Continues(Vec::get(&mut from)?)),
            _ => return Err(broken("the block has an unknown kind of seal")),
        };
        let size = self.size as u64;
        let fits = committed <= size && count <= (size - committed) / PLACE as u64 && head <= count;
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
        self.pieces.restore(committed as usize);
        (self.base, self.count, self.head) = (base, count as usize, head as usize);
        (self.put_bytes, self.taken, self.taken_bytes) = (put_bytes, taken, taken_bytes);
        self.ahead = (known || self.bounds == QueueBounds::NONE).then_some(ahead);
        self.seal = seal;
        self.reserved.restore(now, reserved);
        if may_have {
            self.next.ask_again();
        }
        Ok(())
    }

    fn resume(&mut self, block: &mut Backing, now: Time, new: bool) {
        if new && !Bug::SealLeftBehind.active() {
            // The report may not have arrived.
            let (length, bytes) = (self.through(), self.put_bytes);
            let successor = match &self.seal {
                None => None,
                Some(QueueSeal::Continues(successor)) => Some(Some(successor.clone())),
                Some(QueueSeal::Final) => Some(None),
            };
            if let Some(successor) = successor {
                self.events.push_back(Event::Sealed { length, bytes, successor });
            }
        }
        self.settle(block, now);
    }

    fn dismiss(&mut self, answer: &Answer) {
        while let Some(getter) = self.waiters.take_getter() {
            self.events.push_back(Event::Answered(getter.ticket, answer.clone()));
        }
        while let Some(putter) = self.waiters.take_putter() {
            self.events.push_back(Event::Answered(putter.ticket, answer.clone()));
        }
    }
}
