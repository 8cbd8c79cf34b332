//! A queue of waiting requests: first come, first served, and each can be removed in constant time.

use crate::Ticket;
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// Requests in the order of their arrival. When a connection ends, hundreds of them may be removed from the
/// middle, each without a search.
pub(super) struct ArrivalOrder<T> {
    by_arrival: BTreeMap<u64, (Ticket, T)>,
    arrivals: HashMap<Ticket, u64>,
    next: u64,
}

impl<T> Default for ArrivalOrder<T> {
    fn default() -> ArrivalOrder<T> {
        ArrivalOrder { by_arrival: BTreeMap::new(), arrivals: HashMap::new(), next: 0 }
    }
}

impl<T> ArrivalOrder<T> {
    pub fn len(&self) -> usize {
        self.by_arrival.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_arrival.is_empty()
    }

    /// Bytes of the line, without those of its requests.
    pub fn overhead(&self) -> usize {
        self.len() * size_of::<(u64, Ticket, Ticket, u64)>()
    }

    pub fn push(&mut self, ticket: Ticket, request: T) {
        let before = self.arrivals.insert(ticket, self.next);
        assert!(before.is_none(), "INV-22: {ticket:?} waits twice");
        self.by_arrival.insert(self.next, (ticket, request));
        self.next += 1;
    }

    pub fn first(&self) -> Option<&T> {
        self.by_arrival.first_key_value().map(|(_, (_, request))| request)
    }

    pub fn pop(&mut self) -> Option<T> {
        let (_, (ticket, request)) = self.by_arrival.pop_first()?;
        self.arrivals.remove(&ticket);
        assert_eq!(self.arrivals.len(), self.by_arrival.len(), "both have the same requests");
        Some(request)
    }

    /// Removes a request; returns it and whether it was the first.
    pub fn remove(&mut self, ticket: Ticket) -> Option<(T, bool)> {
        let arrival = self.arrivals.remove(&ticket)?;
        let first = self.by_arrival.first_key_value().is_some_and(|(first, _)| *first == arrival);
        let (named, request) =
            self.by_arrival.remove(&arrival).expect("both have the same requests");
        assert_eq!(named, ticket, "INV-22: another request has the place of {ticket:?}");
        Some((request, first))
    }

    pub fn contains(&self, ticket: Ticket) -> bool {
        self.arrivals.contains_key(&ticket)
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_arrival.values().map(|(_, request)| request)
    }

    /// Removes the late requests, in order.
    pub fn take_if(&mut self, mut late: impl FnMut(&T) -> bool) -> Vec<(Ticket, T)> {
        let of = self.by_arrival.values().filter(|(_, request)| late(request));
        let of: Vec<Ticket> = of.map(|(ticket, _)| *ticket).collect();
        let take = |ticket| (ticket, self.remove(ticket).expect("the arrival was just found").0);
        of.into_iter().map(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(of: u64) -> ArrivalOrder<u64> {
        let mut line = ArrivalOrder::default();
        // Tickets do not grow with the arrivals.
        (0..of).for_each(|n| line.push(Ticket(of - n), n));
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
        line.push(Ticket(5), 99);
        assert_eq!(line.len(), 7);
        let mut served = Vec::new();
        while let Some(request) = line.pop() {
            served.push(request);
        }
        assert_eq!(served, [1, 2, 4, 6, 8, 9, 99]);
        assert!(line.is_empty() && line.first().is_none());
    }
}
