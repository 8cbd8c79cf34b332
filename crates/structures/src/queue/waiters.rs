//! Requests that wait at a queue, for items or for room. First come, first served.

use super::arrivals::ArrivalOrder;
use crate::Ticket;
use honeycomb_types::{Bug, Time};
use honeycomb_wire::queue::GetArgs;

/// Most waiting requests at one block, of each kind.
const WAITERS_MAX: usize = 65_536;

/// A get that waits for items.
pub(super) struct Getter {
    pub ticket: Ticket,
    pub until: Time,
    pub args: GetArgs,
}

/// A put that waits for room, with its payload.
pub(super) struct Putter {
    pub ticket: Ticket,
    pub until: Time,
    pub lengths: Vec<u32>,
    pub payload: Box<[u8]>,
}

impl Putter {
    fn bytes(&self) -> usize {
        size_of::<Putter>() + 4 * self.lengths.len() + self.payload.len()
    }
}

#[derive(Default)]
pub(super) struct Waiters {
    getters: ArrivalOrder<Getter>,
    putters: ArrivalOrder<Putter>,
    /// Bytes of the waiting puts, with their payloads.
    bytes: usize,
    /// The time before which no work is due.
    due: Option<Time>,
}

impl Waiters {
    fn due_by(&mut self, until: Time) {
        self.due = Some(self.due.map_or(until, |due| due.min(until)));
    }

    /// Adds a get; false if too many wait.
    pub fn add_getter(&mut self, getter: Getter) -> bool {
        if self.getters.len() >= WAITERS_MAX {
            return false;
        }
        self.due_by(getter.until);
        self.getters.push(getter.ticket, getter);
        true
    }

    /// Adds a put; false if too many wait, or their payloads would exceed `most` bytes.
    pub fn add_putter(&mut self, putter: Putter, most: usize) -> bool {
        if self.putters.len() >= WAITERS_MAX || self.bytes + putter.bytes() > most {
            return false;
        }
        self.bytes += putter.bytes();
        self.due_by(putter.until);
        self.putters.push(putter.ticket, putter);
        true
    }

    /// A put waits no longer.
    fn leaves(&mut self, putter: &Putter) {
        let (all, bytes) = (self.bytes, putter.bytes());
        assert!(all >= bytes, "INV-33: a put of {bytes} bytes leaves, and {all} are counted");
        self.bytes -= bytes;
    }

    pub fn anybody_puts(&self) -> bool {
        !self.putters.is_empty()
    }

    pub fn first_getter(&self) -> Option<&Getter> {
        self.getters.first()
    }

    pub fn take_getter(&mut self) -> Option<Getter> {
        self.getters.pop()
    }

    /// Items and bytes of the put that has waited longest.
    pub fn first_putter(&self) -> Option<(u64, u64)> {
        self.putters.first().map(|p| (p.lengths.len() as u64, p.payload.len() as u64))
    }

    pub fn take_putter(&mut self) -> Option<Putter> {
        let putter = self.putters.pop()?;
        self.leaves(&putter);
        Some(putter)
    }

    /// Removes a waiting request. False if it does not wait here. If it was ahead of others, work is due at
    /// once.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        if Bug::QueueFeedsTheDead.active() {
            return self.getters.contains(ticket);
        }
        if self.getters.remove(ticket).is_some() {
            return true;
        }
        let Some((putter, first)) = self.putters.remove(ticket) else { return false };
        self.leaves(&putter);
        if first && self.anybody_puts() {
            // The next put may have room.
            self.due_by(Time::ZERO);
        }
        true
    }

    /// Removes the requests whose time is up; returns them, each with whether it is a put.
    pub fn expire(&mut self, now: Time) -> Vec<(Ticket, bool)> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let getters = self.getters.take_if(|getter| getter.until <= now);
        let mut late: Vec<_> = getters.into_iter().map(|(ticket, _)| (ticket, false)).collect();
        for (ticket, putter) in self.putters.take_if(|putter| putter.until <= now) {
            self.leaves(&putter);
            late.push((ticket, true));
        }
        let getters = self.getters.iter().map(|getter| getter.until);
        self.due = getters.chain(self.putters.iter().map(|putter| putter.until)).min();
        late
    }

    /// When work may be due: the time of a request is up, or a request that was ahead of others has left.
    pub fn due(&self) -> Option<Time> {
        self.due
    }

    pub fn bytes(&self) -> usize {
        let lines = self.getters.overhead() + self.putters.overhead();
        self.bytes + self.getters.len() * size_of::<Getter>() + lines
    }
}
