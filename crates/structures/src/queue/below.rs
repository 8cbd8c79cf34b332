//! A queue block whose bytes are in a lower tier, or to be written elsewhere.
//!
//! The metadata of its items stays in memory: their number, and which were delivered. To deliver or take
//! items, the whole block is read back, because its items are adjacent and the next request needs the
//! following ones. The block is demoted again unchanged if nothing was put. So a consumer reads each block
//! once, and an emptied block is never written again.

use super::{PLACE, QueueBlock};
use crate::{Answer, Bytes, Content, Fetched, LowerTierReads, Rest, Snapshot};
use honeycomb_wire::Op;
use honeycomb_wire::queue::GetArgs;
use std::ops::Range;

impl Content for QueueBlock {
    /// The items. Items that were delivered and not acknowledged are still in the queue.
    fn snapshot(&self, _range: (u64, u64)) -> Snapshot {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for item in self.reserved.held().chain(self.head..self.count) {
            match runs.last_mut().filter(|run| run.end == item) {
                Some(run) => run.end = item + 1,
                None => runs.push(item..item + 1),
            }
        }
        let size = self.size;
        Snapshot::items(self.extent(), move |bytes, out| {
            let end_of = |item: usize| {
                let place = &bytes[size - PLACE * (item + 1)..size - PLACE * item];
                u32::from_le_bytes(place.try_into().expect("a place has four bytes")) as usize
            };
            for item in runs.iter().cloned().flatten() {
                let start = item.checked_sub(1).map_or(0, end_of);
                let item = &bytes[start..end_of(item)];
                out.item(&[&(item.len() as u32).to_le_bytes(), item])?;
            }
            Ok(())
        })
    }

    /// A block is busy while a request waits that the next change may serve: for an item that returns, or for
    /// room. Such a request cannot wait for a disk.
    fn rests(&self) -> Rest {
        let served = self.waiters.anybody_puts() || self.waiters.first_getter().is_some();
        let settled = self.pieces.is_settled() && self.cart.stays();
        match settled && (self.count == 0 && !self.waiters.anybody_puts() || !served) {
            true => Rest::Whole(self.extent()),
            false => Rest::Busy,
        }
    }

    fn lower_tier_reads(&self) -> Option<&dyn LowerTierReads> {
        Some(self)
    }
}

impl LowerTierReads for QueueBlock {
    fn needs_bytes(&self, op: Op) -> bool {
        match op {
            // A get at an empty block waits, or continues in another block.
            Op::QueueGet => self.count > 0,
            Op::QueueClose => false,
            _ => true,
        }
    }

    fn read(&self, bytes: &Fetched, op: Op, args: &[u8], _payload: &[u8]) -> Answer {
        match op {
            Op::QueuePeek => self.peek_fetched(bytes, args),
            Op::QueueLength => self.counts(args),
            other => unreachable!("{} changes a block, or is none of a queue's", other.name()),
        }
    }
}

impl QueueBlock {
    /// Bytes from the first on that hold its items: the directory of them grows from the end of the block.
    fn extent(&self) -> usize {
        if self.count == 0 { 0 } else { self.size }
    }

    fn peek_fetched(&self, bytes: &Fetched, args: &[u8]) -> Answer {
        let there = GetArgs::decode_peek(args).is_ok_and(|args| self.reach_run(bytes, &args));
        match there {
            true => self.peek(bytes, args).unwrap_or_else(|refusal| refusal),
            // Its arguments are refused, or bytes are missing and the operation runs again.
            false => GetArgs::decode_peek(args).map_or_else(Answer::from, |_| Answer::ok(0)),
        }
    }

    /// Whether the part of the directory was read that contains the places of the next items.
    fn reach_run(&self, bytes: &Fetched, args: &GetArgs) -> bool {
        let (first, most) = match self.reserved.first_returned() {
            Some((item, _)) => (item, 1),
            None => (self.head, args.items as usize),
        };
        let last = self.count.min(first + most);
        if first >= last {
            return true;
        }
        bytes.wants(&(self.place_of(last - 1).start..self.place_of(first.saturating_sub(1)).end))
    }
}
