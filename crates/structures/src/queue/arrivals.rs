//! A queue of waiting requests: first come, first served, and each can be removed without a search.

use crate::Ticket;
use hashbrown::HashMap;
use honeycomb_types::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Requests in the order of their arrival. When a connection ends, hundreds of them may be removed from the
/// middle, and each waits until a time of its own: neither visits the others.
pub(super) struct ArrivalOrder<T> {
    by_arrival: BTreeMap<u64, Waiting<T>>,
    arrivals: HashMap<Ticket, u64>,
    /// When each request stops waiting, with its arrival.
    ends: BTreeSet<(Time, u64)>,
    next: u64,
}

struct Waiting<T> {
    ticket: Ticket,
    until: Time,
    request: T,
}

impl<T> Default for ArrivalOrder<T> {
    fn default() -> ArrivalOrder<T> {
        let (by_arrival, arrivals) = (BTreeMap::new(), HashMap::new());
        ArrivalOrder { by_arrival, arrivals, ends: BTreeSet::new(), next: 0 }
    }
}

impl<T> ArrivalOrder<T> {
    /// Bytes of a waiting request in the three indexes, without what it owns.
    pub const BYTES: usize = size_of::<(u64, Waiting<T>, Ticket, u64, Time, u64)>();

    pub fn len(&self) -> usize {
        self.by_arrival.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_arrival.is_empty()
    }

    pub fn push(&mut self, ticket: Ticket, until: Time, request: T) {
        let before = self.arrivals.insert(ticket, self.next);
        assert!(before.is_none(), "INV-22: {ticket:?} waits twice");
        self.by_arrival.insert(self.next, Waiting { ticket, until, request });
        self.ends.insert((until, self.next));
        self.next += 1;
    }

    pub fn first(&self) -> Option<&T> {
        self.by_arrival.first_key_value().map(|(_, waiting)| &waiting.request)
    }

    pub fn pop(&mut self) -> Option<(Ticket, T)> {
        let (arrival, _) = self.by_arrival.first_key_value()?;
        Some(self.take(*arrival))
    }

    /// Removes a request; returns it and whether it was the first.
    pub fn remove(&mut self, ticket: Ticket) -> Option<(T, bool)> {
        let arrival = *self.arrivals.get(&ticket)?;
        let first = self.by_arrival.first_key_value().is_some_and(|(first, _)| *first == arrival);
        let (named, request) = self.take(arrival);
        assert_eq!(named, ticket, "INV-22: another request has the place of {ticket:?}");
        Some((request, first))
    }

    pub fn contains(&self, ticket: Ticket) -> bool {
        self.arrivals.contains_key(&ticket)
    }

    /// The time at which the next request stops waiting.
    pub fn next_end(&self) -> Option<Time> {
        self.ends.first().map(|(until, _)| *until)
    }

    /// Removes the requests that wait until now or less, in the order of their arrival.
    pub fn take_late(&mut self, now: Time) -> Vec<(Ticket, T)> {
        let late = self.ends.iter().take_while(|(until, _)| *until <= now);
        let mut late: Vec<u64> = late.map(|(_, arrival)| *arrival).collect();
        late.sort_unstable();
        late.into_iter().map(|arrival| self.take(arrival)).collect()
    }

    /// Removes the requests of a sort, in order. It visits all of them.
    pub fn take_if(&mut self, mut of: impl FnMut(&T) -> bool) -> Vec<(Ticket, T)> {
        let found = self.by_arrival.iter().filter(|(_, waiting)| of(&waiting.request));
        let found: Vec<u64> = found.map(|(arrival, _)| *arrival).collect();
        found.into_iter().map(|arrival| self.take(arrival)).collect()
    }

    fn take(&mut self, arrival: u64) -> (Ticket, T) {
        let waiting = self.by_arrival.remove(&arrival);
        let Waiting { ticket, until, request } = waiting.expect("a request with this arrival");
        self.arrivals.remove(&ticket);
        self.ends.remove(&(until, arrival));
        let counts = [self.arrivals.len(), self.ends.len()];
        assert_eq!(counts, [self.len(); 2], "INV-22: the three indexes have the same requests");
        (ticket, request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(of: u64) -> ArrivalOrder<u64> {
        let mut line = ArrivalOrder::default();
        // Neither tickets nor ends grow with the arrivals.
        (0..of).for_each(|n| line.push(Ticket(of - n), Time(100 - n), n));
        line
    }

    #[test]
    fn requests_that_leave_from_anywhere_keep_the_others_in_order() {
        let mut line = line(10);
        assert_eq!(line.remove(Ticket(10)), Some((0, true)));
        assert_eq!(line.remove(Ticket(5)), Some((5, false)));
        assert_eq!(line.remove(Ticket(5)), None);
        assert!(!line.contains(Ticket(5)) && line.contains(Ticket(4)));
        assert_eq!(line.take_if(|n| n % 4 == 3), [(Ticket(7), 3), (Ticket(3), 7)]);
        line.push(Ticket(5), Time(7), 99);
        assert_eq!(line.len(), 7);
        let served = std::iter::from_fn(|| line.pop().map(|(_, request)| request));
        assert_eq!(served.collect::<Vec<_>>(), [1, 2, 4, 6, 8, 9, 99]);
        assert!(line.is_empty() && line.first().is_none() && line.next_end().is_none());
    }

    #[test]
    fn late_requests_leave_in_the_order_of_their_arrival() {
        let mut line = line(10);
        assert_eq!(line.next_end(), Some(Time(91)));
        assert_eq!(line.take_late(Time(90)), []);
        assert_eq!(line.take_late(Time(93)), [(Ticket(3), 7), (Ticket(2), 8), (Ticket(1), 9)]);
        assert_eq!(line.next_end(), Some(Time(94)));
        line.remove(Ticket(4));
        assert_eq!((line.next_end(), line.len()), (Some(Time(95)), 6));
    }
}
