//! Requests that wait at a queue, for items or for room. First come, first served.

use super::arrivals::ArrivalOrder;
use crate::Ticket;
use honeycomb_types::{Bug, Time};
use honeycomb_wire::queue::GetArgs;

/// Most waiting requests at one block, of each kind.
const WAITERS_MAX: usize = 65_536;

/// A put that waits for room, with its payload.
pub(super) struct Putter {
    pub lengths: Vec<u32>,
    pub payload: Box<[u8]>,
}

impl Putter {
    fn bytes(&self) -> usize {
        ArrivalOrder::<Putter>::BYTES + 4 * self.lengths.len() + self.payload.len()
    }
}

#[derive(Default)]
pub(super) struct Waiters {
    getters: ArrivalOrder<GetArgs>,
    /// Number of getters that move on when the block continues in another one.
    passing: usize,
    putters: ArrivalOrder<Putter>,
    /// Bytes of the waiting puts, with their payloads.
    bytes: usize,
    /// Whether a request that was ahead of others has left: the next one may have room.
    freed: bool,
}

impl Waiters {
    /// Adds a get; false if too many wait.
    pub fn add_getter(&mut self, ticket: Ticket, until: Time, args: GetArgs) -> bool {
        if self.getters.len() >= WAITERS_MAX {
            return false;
        }
        self.passing += usize::from(!args.stay);
        self.getters.push(ticket, until, args);
        true
    }

    /// Adds a put; false if too many wait, or they would exceed `most` bytes with their payloads.
    pub fn add_putter(&mut self, ticket: Ticket, until: Time, putter: Putter, most: usize) -> bool {
        if self.putters.len() >= WAITERS_MAX || self.bytes + putter.bytes() > most {
            return false;
        }
        self.bytes += putter.bytes();
        self.putters.push(ticket, until, putter);
        true
    }

    /// A get waits no longer.
    fn getter_leaves(&mut self, args: &GetArgs) {
        let passes = usize::from(!args.stay);
        assert!(self.passing >= passes, "INV-22: a get leaves that was not counted");
        self.passing -= passes;
    }

    /// A put waits no longer.
    fn putter_leaves(&mut self, putter: &Putter) {
        let (all, bytes) = (self.bytes, putter.bytes());
        assert!(all >= bytes, "INV-33: a put of {bytes} bytes leaves, and {all} are counted");
        self.bytes -= bytes;
    }

    pub fn anybody_puts(&self) -> bool {
        !self.putters.is_empty()
    }

    pub fn first_getter(&self) -> Option<&GetArgs> {
        self.getters.first()
    }

    pub fn take_getter(&mut self) -> Option<(Ticket, GetArgs)> {
        let (ticket, args) = self.getters.pop()?;
        self.getter_leaves(&args);
        Some((ticket, args))
    }

    /// Removes the gets that move on with the queue, in order. Without any, it visits no other.
    pub fn take_passing(&mut self) -> Vec<Ticket> {
        if self.passing == 0 {
            return Vec::new();
        }
        let taken = self.getters.take_if(|args| !args.stay);
        let counted = std::mem::take(&mut self.passing);
        assert_eq!(taken.len(), counted, "INV-22: the gets that pass on are counted");
        taken.into_iter().map(|(ticket, _)| ticket).collect()
    }

    /// Items and bytes of the put that has waited longest.
    pub fn first_putter(&self) -> Option<(u64, u64)> {
        self.putters.first().map(|p| (p.lengths.len() as u64, p.payload.len() as u64))
    }

    pub fn take_putter(&mut self) -> Option<(Ticket, Putter)> {
        let (ticket, putter) = self.putters.pop()?;
        self.putter_leaves(&putter);
        Some((ticket, putter))
    }

    /// Removes a waiting request. False if it does not wait here. If it was ahead of others, work is due at
    /// once.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        if Bug::QueueFeedsTheDead.active() {
            return self.getters.contains(ticket);
        }
        if let Some((args, _)) = self.getters.remove(ticket) {
            self.getter_leaves(&args);
            return true;
        }
        let Some((putter, first)) = self.putters.remove(ticket) else { return false };
        self.putter_leaves(&putter);
        self.freed |= first && self.anybody_puts();
        true
    }

    /// Removes the requests whose time is up; returns them, each with whether it is a put. Visits no other.
    pub fn expire(&mut self, now: Time) -> Vec<(Ticket, bool)> {
        self.freed = false;
        let mut late = Vec::new();
        for (ticket, args) in self.getters.take_late(now) {
            self.getter_leaves(&args);
            late.push((ticket, false));
        }
        for (ticket, putter) in self.putters.take_late(now) {
            self.putter_leaves(&putter);
            late.push((ticket, true));
        }
        late
    }

    /// When work may be due: the time of a request is up, or a request that was ahead of others has left.
    pub fn due(&self) -> Option<Time> {
        if self.freed {
            return Some(Time::ZERO);
        }
        [self.getters.next_end(), self.putters.next_end()].into_iter().flatten().min()
    }

    pub fn bytes(&self) -> usize {
        self.bytes + self.getters.len() * ArrivalOrder::<GetArgs>::BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn getter(stay: bool) -> GetArgs {
        GetArgs { items: 1, bytes: 1, reserve_ms: 0, stay }
    }

    #[test]
    fn gets_that_pass_on_leave_in_order_and_the_others_stay() {
        let mut waiters = Waiters::default();
        for n in 0..6 {
            assert!(waiters.add_getter(Ticket(n), Time(10 + n), getter(n % 2 == 0)));
        }
        assert!(waiters.cancel(Ticket(1)));
        assert_eq!(waiters.expire(Time(13)), [0, 2, 3].map(|n| (Ticket(n), false)));
        assert_eq!(waiters.take_passing(), [Ticket(5)]);
        assert_eq!((waiters.take_passing(), waiters.due()), (vec![], Some(Time(14))));
        assert_eq!(waiters.take_getter().map(|(ticket, _)| ticket), Some(Ticket(4)));
        assert_eq!((waiters.due(), waiters.bytes()), (None, 0));
    }

    #[test]
    fn put_that_leaves_its_place_makes_work_due_at_once() {
        let mut waiters = Waiters::default();
        for n in 0..3 {
            let putter = Putter { lengths: vec![1], payload: [0; 1].into() };
            assert!(waiters.add_putter(Ticket(n), Time(10), putter, 1 << 20));
        }
        assert!(waiters.cancel(Ticket(1)));
        assert_eq!(waiters.due(), Some(Time(10)), "nobody has moved up");
        assert!(waiters.cancel(Ticket(0)));
        assert_eq!(waiters.due(), Some(Time::ZERO));
        assert_eq!(waiters.expire(Time(1)), []);
        assert_eq!(waiters.due(), Some(Time(10)));
    }
}
