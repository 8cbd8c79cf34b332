//! A queue block whose bytes are in a lower tier, or to be written elsewhere.
//!
//! The metadata of its items stays in memory: their number, and which were delivered. To deliver or take
//! items, the whole block is read back, because its items are adjacent and the next request needs the
//! following ones. The block is demoted again unchanged if nothing was put. So a consumer reads each block
//! once, and an emptied block is never written again.

use super::QueueSegment;
use crate::adopting::list_of;
use crate::queue::items::{LIST, PLACE};
use crate::{Answer, Bytes, Fetched, LowerTierReads, Rest, Snapshot};
use honeycomb_wire::Op;
use honeycomb_wire::queue::GetArgs;
use std::ops::Range;

impl QueueSegment {
    /// The items. Items that were delivered and not acknowledged are still in the queue.
    pub fn snapshot(&self) -> Snapshot {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for item in self.deliveries.left(&self.items) {
            match runs.last_mut().filter(|run| run.end == item) {
                Some(run) => run.end = item + 1,
                None => runs.push(item..item + 1),
            }
        }
        let size = self.items.size();
        Snapshot::items(self.items.extent(), move |bytes, out| {
            let end_of = |item: usize| {
                let place = &bytes[size - PLACE * (item + 1)..size - PLACE * item];
                u32::from_le_bytes(place.try_into().expect("a place has four bytes"))
            };
            for item in runs.iter().cloned().flatten() {
                let (start, end) = (item.checked_sub(1).map_or(0, end_of), end_of(item));
                let stored = &bytes[(start & !LIST) as usize..(end & !LIST) as usize];
                let item = if end & LIST != 0 { list_of(stored) } else { stored };
                out.item(&[&(item.len() as u32 | end & LIST).to_le_bytes(), item])?;
            }
            Ok(())
        })
    }

    /// Whether the block could be demoted, if it does not migrate. It is busy while a request waits that the
    /// next change may serve: for an item that returns, or for room. Such a request cannot wait for a disk.
    pub fn rests(&self) -> Rest {
        let served = self.waiters.anybody_puts() || self.waiters.first_getter().is_some();
        let (settled, empty) = (self.items.is_settled(), self.items.count() == 0);
        match settled && (empty && !self.waiters.anybody_puts() || !served) {
            true => Rest::Whole(self.items.extent()),
            false => Rest::Busy,
        }
    }
}

impl LowerTierReads for QueueSegment {
    fn needs_bytes(&self, op: Op) -> bool {
        match op {
            // A get at an empty block waits, or continues in another block.
            Op::QueueGet | Op::QueueGetExtents => self.items.count() > 0,
            Op::QueueClose => false,
            _ => true,
        }
    }

    fn read(&self, bytes: &Fetched, op: Op, args: &[u8], _payload: &[u8]) -> Answer {
        match op {
            Op::QueuePeek => {
                let wanted = GetArgs::decode_peek(args)
                    .map(|args| self.deliveries.next_places(&self.items, &args));
                match wanted {
                    // Bytes are missing, and the operation runs again.
                    Ok(Some(places)) if !bytes.wants(&places) => Answer::ok(0),
                    _ => self.peek(bytes, args).unwrap_or_else(|refusal| refusal),
                }
            }
            Op::QueueLists => {
                super::large::lists(self, bytes, args).unwrap_or_else(|refusal| refusal)
            }
            Op::QueueLength => self.counts(args),
            other => unreachable!("{} changes a block, or is none of a queue's", other.name()),
        }
    }
}
