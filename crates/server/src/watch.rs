//! The subscriptions to a block's changes.

use honeycomb_structures::{Answer, Ticket};
use honeycomb_types::Generation;
use honeycomb_types::limits::WATCHERS_PER_BLOCK_MAX;
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::notice::{Change, Filter, Notice};
use honeycomb_wire::{Grant, Status};

/// Outgoing notices: subscription, number within the block, notice.
type Out = Vec<(Ticket, u64, Notice)>;

/// One subscription.
pub(crate) struct Watcher {
    /// Its ticket, which is part of every notice.
    pub ticket: Ticket,
    /// Bits of the kinds of changes.
    pub kinds: u16,
    /// The keys to which it applies.
    pub filter: Filter,
    /// The grant that allows it.
    pub grant: Grant,
}

/// The subscriptions to one block. Changes are numbered from 1 in the order in which they can be
/// seen, from the first subscription on (INV-24: never before a reader would see them).
#[derive(Default)]
pub(crate) struct Watchers {
    all: Vec<Watcher>,
    changes: u64,
}

impl Watchers {
    /// Adds a subscription; returns the number of the last change before it. `unreported` changes happened
    /// while there was none.
    pub fn add(&mut self, watcher: Watcher, unreported: u64) -> Result<u64, Answer> {
        self.changes = self.changes.max(unreported);
        if self.all.len() >= WATCHERS_PER_BLOCK_MAX {
            let text = format!("a block has at most {WATCHERS_PER_BLOCK_MAX} subscriptions");
            return Err(Answer::refuse(Status::LimitExceeded, text));
        }
        debug_assert!(
            self.all.iter().all(|other| other.ticket != watcher.ticket),
            "INV-24: {:?} subscribes twice",
            watcher.ticket
        );
        self.all.push(watcher);
        Ok(self.changes)
    }

    /// Removes a subscription; returns whether it was the last.
    pub fn remove(&mut self, ticket: Ticket) -> bool {
        self.all.retain(|watcher| watcher.ticket != ticket);
        self.all.is_empty()
    }

    /// Notifies the subscriptions of a change. If the grant of a subscription has expired, the subscription
    /// ends.
    pub fn changed(&mut self, change: Change, clock_ms: u64, out: &mut Out) {
        self.changes += 1;
        let number = self.changes;
        self.all.retain(|watcher| {
            if watcher.kinds & change.kind() == 0 || !watcher.filter.takes(&change) {
                return true;
            }
            if clock_ms >= watcher.grant.expires_ms {
                let text = "the grant has expired".to_owned();
                out.push((watcher.ticket, number, Notice::Ended(Status::GrantExpired, text)));
                return false;
            }
            out.push((watcher.ticket, number, Notice::Changed(change.clone())));
            true
        });
    }

    /// The block was sealed: later changes happen in its successor. Subscriptions stay, because data may
    /// still be taken from the block.
    pub fn hand_over(&mut self, length: u64, successor: &MovedArgs, out: &mut Out) {
        for watcher in &self.all {
            self.hand_over_to(watcher.ticket, length, successor, out);
        }
    }

    /// Notifies one subscription of the successor.
    pub fn hand_over_to(&self, ticket: Ticket, length: u64, successor: &MovedArgs, out: &mut Out) {
        debug_assert!(
            self.all.iter().any(|watcher| watcher.ticket == ticket),
            "INV-24: {ticket:?} gets a notice, and does not subscribe"
        );
        out.push((ticket, self.changes, Notice::Handover { length, to: successor.clone() }));
    }

    /// Ends all subscriptions.
    pub fn end(&mut self, status: Status, text: &str, out: &mut Out) {
        for watcher in self.all.drain(..) {
            out.push((watcher.ticket, self.changes, Notice::Ended(status, text.into())));
        }
    }

    /// Ends the subscriptions whose grants are older than this (INV-29).
    pub fn revoke(&mut self, generation: Generation, out: &mut Out) {
        let number = self.changes;
        self.all.retain(|watcher| {
            let good = watcher.grant.generation >= generation;
            if !good {
                let text = "the permissions of the prefix changed".to_owned();
                out.push((watcher.ticket, number, Notice::Ended(Status::GrantRevoked, text)));
            }
            good
        });
    }
}
