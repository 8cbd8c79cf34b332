//! Items that were given out and are not acknowledged: at-least-once delivery.
//!
//! An item is out until its holder settles it, gives it back, or lets its time pass; then it is
//! returned, and goes out again before all others. Each time that it goes out counts, and only who
//! names the latest count holds it, so that a holder who was too late cannot settle what somebody
//! else works on.

use honeycomb_types::{Bug, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

struct Out {
    until: Time,
    deliveries: u32,
}

#[derive(Default)]
pub(super) struct Reserved {
    out: BTreeMap<usize, Out>,
    /// Deliveries of each item that came back.
    returned: BTreeMap<usize, u32>,
    /// When to look at an item; stale entries are recognised by their time.
    due: BinaryHeap<Reverse<(Time, usize)>>,
}

impl Reserved {
    /// An item goes out, or stays out until another time.
    pub fn reserve(&mut self, item: usize, until: Time, deliveries: u32) {
        self.out.insert(item, Out { until, deliveries });
        self.due.push(Reverse((until, item)));
    }

    /// Whether an item is out under this delivery.
    pub fn is_out(&self, item: usize, deliveries: u32) -> bool {
        let any = Bug::QueueAcksStale.active();
        self.out.get(&item).is_some_and(|out| out.deliveries == deliveries || any)
    }

    /// An item is done with.
    pub fn settle(&mut self, item: usize) {
        self.out.remove(&item);
    }

    /// An item comes back.
    pub fn give_back(&mut self, item: usize) {
        if let Some(out) = self.out.remove(&item) {
            self.returned.insert(item, out.deliveries);
        }
    }

    /// The first item that came back, and how often it was given out.
    pub fn first_returned(&self) -> Option<(usize, u32)> {
        self.returned.first_key_value().map(|(item, deliveries)| (*item, *deliveries))
    }

    /// That item goes out again, or is taken.
    pub fn take_returned(&mut self, item: usize) {
        self.returned.remove(&item);
    }

    pub fn none_out(&self) -> bool {
        self.out.is_empty()
    }

    /// Items that are out.
    pub fn count(&self) -> usize {
        self.out.len()
    }

    /// Items whose time has passed come back; how many.
    pub fn expire(&mut self, now: Time) -> u64 {
        let mut returned = 0;
        while let Some(Reverse((until, item))) = self.due.peek().copied() {
            if until > now {
                break;
            }
            self.due.pop();
            // Settled, given back or extended since: another entry stands for it, or none.
            if self.out.get(&item).is_none_or(|out| out.until != until) {
                continue;
            }
            returned += 1;
            if Bug::QueueLosesReturned.active() {
                self.out.remove(&item);
            } else {
                self.give_back(item);
            }
        }
        if self.out.is_empty() {
            self.due.clear();
        }
        returned
    }

    pub fn due(&self) -> Option<Time> {
        self.due.peek().map(|Reverse((until, _))| *until)
    }

    pub fn bytes(&self) -> usize {
        self.out.len() * size_of::<(usize, Out)>()
            + self.returned.len() * size_of::<(usize, u32)>()
            + self.due.len() * size_of::<(Time, usize)>()
    }
}
