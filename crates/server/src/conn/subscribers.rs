//! The connections of subscriptions, and the notices that their clients have missed.

use hashbrown::HashMap;
use honeycomb_structures::Ticket;
use honeycomb_transport::{ConnId, Net, ReplyPayload};
use honeycomb_types::BlockAt;
use honeycomb_types::limits::NOTICE_BACKLOG_MAX;
use honeycomb_wire::notice::{Notice, SubscribeArgs};
use honeycomb_wire::{ReplyHeader, Status};

struct Subscriber {
    conn: ConnId,
    /// The client's number for it.
    number: u32,
    at: BlockAt,
    /// The number of the last notice.
    last: u64,
    /// The number of notices that were skipped because earlier ones were not read, and the number of the last
    /// one.
    missed: u64,
    last_missed: u64,
}

/// The subscribers of a shard.
#[derive(Default)]
pub(super) struct Subscribers {
    by_ticket: HashMap<Ticket, Subscriber>,
    /// The number of subscribers with missed notices that were not reported yet.
    behind: usize,
}

impl Subscribers {
    /// `args` are those of the request, which the shard has accepted.
    pub(super) fn add(&mut self, conn: ConnId, at: BlockAt, args: &[u8], ticket: Ticket) {
        let number = SubscribeArgs::decode(args).expect("the shard has read it").subscription;
        let subscriber = Subscriber { conn, number, at, last: 0, missed: 0, last_missed: 0 };
        let before = self.by_ticket.insert(ticket, subscriber);
        assert!(before.is_none(), "INV-24: {ticket:?} subscribes twice");
    }

    /// Whether any subscribers have unreported missed notices.
    pub(super) fn are_behind(&self) -> bool {
        self.behind > 0
    }

    /// Removes the subscribers of a connection; returns their blocks and tickets.
    pub(super) fn hang_up(&mut self, conn: ConnId) -> Vec<(BlockAt, Ticket)> {
        let gone = self.by_ticket.extract_if(|_, s| s.conn == conn);
        let gone = gone.map(|(ticket, s)| {
            let (all, own, at) = (self.behind, usize::from(s.missed > 0), s.at);
            assert!(all >= own, "INV-24: {at:?} has a gap, and no subscriber is behind");
            self.behind = all - own;
            (at, ticket)
        });
        gone.collect()
    }

    /// Pushes a notice. If its subscriber does not read, the notice is only counted; the count is sent as
    /// soon as the subscriber has read the pending notices. The last notice of a subscription is never
    /// skipped.
    pub(super) fn notify(&mut self, net: &mut Net, ticket: Ticket, number: u64, notice: Notice) {
        let Some(subscriber) = self.by_ticket.get_mut(&ticket) else { return };
        let (last, at) = (subscriber.last, subscriber.at);
        assert!(last <= number, "INV-24: notice {number} of {at:?} comes after {last}");
        subscriber.last = number;
        let ends = matches!(notice, Notice::Ended(..));
        let needed = ends || matches!(notice, Notice::Handover { .. });
        if !needed && net.backlog(subscriber.conn) > NOTICE_BACKLOG_MAX {
            self.behind += usize::from(subscriber.missed == 0);
            subscriber.missed += 1;
            subscriber.last_missed = number;
            return;
        }
        if subscriber.missed > 0 {
            assert!(self.behind > 0, "INV-24: {at:?} has a gap, and no subscriber is behind");
            self.behind -= 1;
            subscriber.tell_gap(net);
        }
        subscriber.push(net, number, &notice);
        if ends {
            self.by_ticket.remove(&ticket);
        }
    }

    /// Reports missed notices to subscribers that have read the pending ones.
    pub(super) fn tell_gaps(&mut self, net: &mut Net) {
        if self.behind == 0 {
            return;
        }
        debug_assert_eq!(
            self.by_ticket.values().filter(|s| s.missed > 0).count(),
            self.behind,
            "INV-24: each subscriber with a gap is counted once"
        );
        for subscriber in self.by_ticket.values_mut().filter(|s| s.missed > 0) {
            if net.backlog(subscriber.conn) <= NOTICE_BACKLOG_MAX / 2 {
                self.behind -= 1;
                subscriber.tell_gap(net);
            }
        }
    }
}

impl Subscriber {
    fn push(&self, net: &mut Net, number: u64, notice: &Notice) {
        let header = ReplyHeader::new(Status::Notice, 0, number);
        net.reply(self.conn, header, &notice.encode(self.number), ReplyPayload::Copy(&[]));
    }

    fn tell_gap(&mut self, net: &mut Net) {
        self.push(net, self.last_missed, &Notice::Gap(self.missed));
        self.missed = 0;
    }
}
