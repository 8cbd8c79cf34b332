//! Items that were delivered and are not acknowledged: at-least-once delivery.
//!
//! An item is out until its holder settles it, returns it, or its time passes. A returned item is delivered
//! again before all others. Each delivery is counted, and only the holder of the latest count may settle the
//! item. So a holder that is too late cannot settle an item that another consumer works on.

use honeycomb_types::{Bug, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

struct Delivered {
    until: Time,
    deliveries: u32,
}

#[derive(Default)]
pub(super) struct Reserved {
    out: BTreeMap<usize, Delivered>,
    /// Delivery counts of the returned items.
    returned: BTreeMap<usize, u32>,
    /// When each item that is out returns by itself. Exactly one entry per item, because a work queue settles
    /// items long before their time, as long as it runs.
    due: BTreeSet<(Time, usize)>,
}

impl Reserved {
    /// Marks an item as out, or extends its time.
    pub fn reserve(&mut self, item: usize, until: Time, deliveries: u32) {
        self.settle(item);
        assert!(deliveries > 0, "INV-22: item {item} is out, and was never delivered");
        let back = self.returned.get(&item);
        assert!(
            back.is_none(),
            "INV-22: item {item} is out, and returned after {back:?} deliveries"
        );
        self.out.insert(item, Delivered { until, deliveries });
        self.due.insert((until, item));
        let (out, due) = (self.out.len(), self.due.len());
        assert_eq!(out, due, "INV-22: {out} items are out, and {due} have a time");
    }

    /// Whether an item is out with this delivery count.
    pub fn is_out(&self, item: usize, deliveries: u32) -> bool {
        let any = Bug::QueueAcksStale.active();
        self.out.get(&item).is_some_and(|out| out.deliveries == deliveries || any)
    }

    /// Settles an item; returns its delivery count if it was out.
    pub fn settle(&mut self, item: usize) -> Option<u32> {
        let Delivered { until, deliveries } = self.out.remove(&item)?;
        let timed = self.due.remove(&(until, item));
        assert!(timed, "INV-22: item {item} is out without a time");
        Some(deliveries)
    }

    /// Returns an item.
    pub fn give_back(&mut self, item: usize) {
        if let Some(deliveries) = self.settle(item) {
            let before = self.returned.insert(item, deliveries);
            assert!(before.is_none(), "INV-22: item {item} is returned twice");
        }
    }

    /// The first returned item, and its delivery count.
    pub fn first_returned(&self) -> Option<(usize, u32)> {
        self.returned.first_key_value().map(|(item, deliveries)| (*item, *deliveries))
    }

    /// Removes a returned item, which is delivered again or taken.
    pub fn take_returned(&mut self, item: usize) {
        let deliveries = self.returned.remove(&item);
        assert!(
            deliveries.is_some(),
            "INV-22: item {item} is delivered again, and is not returned"
        );
    }

    /// The returned items, with no time left, and then the items that are out, with the remaining
    /// microseconds; each with its delivery count.
    pub fn list(&self, now: Time) -> Vec<(usize, u64, u32)> {
        let left = |out: &Delivered| (out.until.since(now).as_micros() as u64).max(1);
        let out = self.out.iter().map(|(item, out)| (*item, left(out), out.deliveries));
        let returned = self.returned.iter().map(|(item, deliveries)| (*item, 0, *deliveries));
        out.chain(returned).collect()
    }

    /// Replaces the content by the list of another block.
    pub fn restore(&mut self, now: Time, list: Vec<(usize, u64, u32)>) {
        *self = Reserved::default();
        for (item, left, deliveries) in list {
            // The list is another server's: an item that it names twice counts once.
            if self.out.contains_key(&item) || self.returned.contains_key(&item) {
                continue;
            }
            let deliveries = deliveries.max(1);
            match left {
                0 => drop(self.returned.insert(item, deliveries)),
                left => self.reserve(item, now + Duration::from_micros(left), deliveries),
            }
        }
    }

    pub fn none_out(&self) -> bool {
        self.out.is_empty()
    }

    /// Whether an item is out or returned.
    pub fn is_held(&self, item: usize) -> bool {
        self.out.contains_key(&item) || self.returned.contains_key(&item)
    }

    /// Items that are out or returned, in order.
    pub fn held(&self) -> impl Iterator<Item = usize> + use<> {
        let all: BTreeSet<usize> = self.out.keys().chain(self.returned.keys()).copied().collect();
        all.into_iter()
    }

    /// Items that are out.
    pub fn count(&self) -> usize {
        self.out.len()
    }

    /// Returns the items whose time has passed, and their number.
    pub fn expire(&mut self, now: Time) -> u64 {
        let mut returned = 0;
        while let Some((_, item)) = self.due.first().copied().filter(|(until, _)| *until <= now) {
            returned += 1;
            if Bug::QueueLosesReturned.active() {
                self.settle(item);
            } else {
                self.give_back(item);
            }
        }
        returned
    }

    /// When the next item returns by itself.
    pub fn due(&self) -> Option<Time> {
        self.due.first().map(|(until, _)| *until)
    }

    pub fn bytes(&self) -> usize {
        self.out.len() * (size_of::<(usize, Delivered)>() + size_of::<(Time, usize)>())
            + self.returned.len() * size_of::<(usize, u32)>()
    }
}
