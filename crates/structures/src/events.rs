//! The events of a block that the shard has not taken yet.

use crate::{Answer, Changes, Event, Ticket};
use honeycomb_wire::notice::Change;
use std::collections::VecDeque;

/// Events in order, and whether subscribers want changes.
#[derive(Default)]
pub(crate) struct Events {
    pending: VecDeque<Event>,
    watched: bool,
    /// The number of changes that were not reported because the block was not watched, since it adopted a
    /// part of another one: subscribers of the other block arrive late.
    unreported: Option<u64>,
}

impl Events {
    pub fn push(&mut self, event: Event) {
        self.pending.push_back(event);
    }

    /// Answers a parked operation.
    pub fn answer(&mut self, ticket: Ticket, answer: Answer) {
        self.push(Event::Answered(ticket, answer));
    }

    /// Reports a change to subscribers.
    #[inline]
    pub fn changed(&mut self, change: impl FnOnce() -> Change) {
        if self.watched {
            self.push(Event::Changed(change()));
        } else if let Some(unreported) = &mut self.unreported {
            *unreported += 1;
        }
    }

    /// From now on counts the changes that are not reported.
    pub fn count_unreported(&mut self) {
        self.unreported.get_or_insert(0);
    }

    pub fn pop(&mut self) -> Option<Event> {
        self.pending.pop_front()
    }
}

impl Changes for Events {
    fn watch(&mut self, watched: bool) {
        self.watched = watched;
    }

    fn unreported(&self) -> u64 {
        self.unreported.unwrap_or(0)
    }
}
