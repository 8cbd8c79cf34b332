//! The links to all controller shards, on one thread, and the ledger of their shares of this server.
//!
//! A server is a member of each controller shard, under a number of that shard's own, with blocks of its own
//! (ADR 0021). The memberships are independent: a shard that loses this server, or restarts, affects only its
//! own link. The first shard reports the number of shards.

use crate::flush::Flusher;
use crate::link::{Hindrance, Identity, Link, UsageCounters};
use crate::lots::Lots;
use crate::notes::{LinkNote, Note};
use crate::shard::Effect;
use honeycomb_env::Clock;
use honeycomb_transport::{ConnId, Mailbox, Net, Service};
use honeycomb_types::{BlockAt, BlockId, BlockUnits, JobId, ServerId, StructureId, Time};
use honeycomb_wire::messages::{ActivePrefix, BlockUsage};
use honeycomb_wire::{ReplyHeader, RequestHeader};
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender};

/// The outcome of a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The server has no blocks left, and has ended.
    Released,
    /// It cannot be drained, for this reason.
    Refused(String),
}

/// Parts of large values of a store that must leave this server, which is draining: the receiver writes the
/// values anew (`honeycomb_client::Client::carry_values`). Repeated every `EXTENTS_LEAVE_TELL` while the
/// server drains. If none arrives for `EXTENTS_LEAVE_FOR`, the server stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValuesLeave {
    /// The job.
    pub job: JobId,
    /// The store.
    pub structure: StructureId,
    /// The block with the parts, which accepts nothing any more.
    pub at: BlockAt,
}

/// The channels from a server to the process that runs it.
pub(crate) struct ProcessChannels {
    /// The end of a drain, or the reason of its refusal.
    pub departure: Sender<Departure>,
    /// Values that must leave the server. Reports are repeated, so a report that does not fit may be dropped.
    pub values: SyncSender<ValuesLeave>,
}

pub(crate) struct LinkService {
    identity: Arc<Identity>,
    clock: Clock,
    shards: Vec<Mailbox<Note>>,
    flusher: Flusher,
    links: Vec<Link>,
    /// Number of links created so far.
    added: u64,
    lots: Lots,
    /// Receives one message when the server has joined all controller shards, and before that the obstacles.
    joined: Option<Sender<Result<ServerId, Hindrance>>>,
    /// Channels that are not read in a process that runs more than this server.
    channels: ProcessChannels,
    stopped: bool,
}

impl LinkService {
    pub(crate) fn new(
        identity: Identity,
        clock: Clock,
        shards: Vec<Mailbox<Note>>,
        flusher: Flusher,
        joined: Sender<Result<ServerId, Hindrance>>,
        channels: ProcessChannels,
    ) -> LinkService {
        let units = BlockUnits::of(identity.block_size).units(identity.blocks_per_shard);
        let lots = Lots::new(shards.len(), units);
        let (identity, joined, links) = (Arc::new(identity), Some(joined), Vec::new());
        let stopped = false;
        let mut service = LinkService {
            identity,
            clock,
            shards,
            flusher,
            links,
            added: 0,
            lots,
            joined,
            channels,
            stopped,
        };
        service.add();
        service
    }

    fn add(&mut self) {
        let controller = self.links.len() as u16;
        let (shards, flusher) = (self.shards.clone(), self.flusher.clone());
        // A late answer to a request of an earlier link with this number is not taken for one of this link.
        self.added += 1;
        let (identity, first) = (self.identity.clone(), self.added << 32);
        let mut link = Link::new(controller, identity, self.clock, shards, flusher, first);
        link.leaving().wanted = self.links.first_mut().is_some_and(|first| first.leaving().wanted);
        self.links.push(link);
    }

    fn link_of(&mut self, conn: ConnId) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.conn() == Some(conn))
    }

    /// Creates as many links as there are controller shards. A controller that was restarted without a log
    /// may have another number of shards.
    fn adjust(&mut self, net: &mut Net) {
        let wanted = self.links[0].controllers() as usize;
        while self.links.len() < wanted {
            self.add();
        }
        while self.links.len() > wanted {
            let gone = self.links.pop().expect("there are more than wanted");
            let controller = self.links.len() as u16;
            if let Some(conn) = gone.conn() {
                net.close(conn);
            }
            self.lots.clear(controller);
            for shard in &self.shards {
                gone.post(shard, Note::Left(controller));
            }
        }
    }

    /// Ends the server when every controller shard has released it.
    fn depart(&mut self) {
        let wanted = self.links[0].controllers() as usize;
        if self.links.len() < wanted || !self.links.iter_mut().all(|link| link.leaving().released) {
            return;
        }
        for shard in &self.shards {
            self.links[0].post(shard, Note::Stop);
        }
        self.stopped = true;
        let _ = self.channels.departure.send(Departure::Released);
    }

    fn tell_joined(&mut self) {
        let Some(joined) = &self.joined else { return };
        for link in &mut self.links {
            if let Some(hindrance) = link.take_hindrance() {
                let _ = joined.send(Err(hindrance));
            }
        }
        let wanted = self.links[0].controllers() as usize;
        if self.links.len() == wanted && self.links.iter().all(|link| link.ready().is_some()) {
            let _ = joined.send(Ok(self.links[0].ready().expect("all are")));
            self.joined = None;
        }
    }
}

/// Takes the elements that belong to a controller shard.
fn part<T>(all: &mut Vec<T>, controller: u16, of: impl Fn(&T) -> u16) -> Vec<T> {
    if all.iter().all(|one| of(one) == controller) {
        return std::mem::take(all);
    }
    all.extract_if(.., |one| of(one) == controller).collect()
}

impl Service for LinkService {
    type Note = LinkNote;

    fn on_request(
        &mut self,
        net: &mut Net,
        _now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
        _payload: &[u8],
    ) {
        let LinkService { links, lots, .. } = self;
        if let Some(link) = links.iter_mut().find(|link| link.conn() == Some(from)) {
            link.on_request(net, from, header, args, lots);
        }
        self.depart();
    }

    fn on_reply(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &ReplyHeader,
        args: &[u8],
    ) {
        let LinkService { links, lots, .. } = self;
        if let Some(link) = links.iter_mut().find(|link| link.conn() == Some(from)) {
            link.on_reply(net, now, from, header, args, lots);
        }
        self.adjust(net);
        self.tell_joined();
        for link in &mut self.links {
            if let Some(why) = link.leaving().refusal.take() {
                let _ = self.channels.departure.send(Departure::Refused(why));
            }
        }
    }

    fn on_close(&mut self, _net: &mut Net, now: Time, conn: ConnId) {
        if let Some(link) = self.link_of(conn) {
            link.on_close(now);
        }
    }

    fn on_note(&mut self, net: &mut Net, now: Time, note: LinkNote) {
        match note {
            LinkNote::Effects(effects) => {
                for effect in effects {
                    if let Effect::ValuesLeave { job, structure, at } = effect {
                        let _ = self.channels.values.try_send(ValuesLeave { job, structure, at });
                        continue;
                    }
                    if let Some(link) = self.links.get_mut(effect.controller() as usize) {
                        link.effect(net, effect);
                    }
                }
            }
            LinkNote::Report {
                shard,
                connections,
                requests,
                forwarded,
                bytes_owed,
                cpu,
                mut usage,
                mut active,
            } => {
                let counters = UsageCounters { connections, requests, forwarded, bytes_owed, cpu };
                for (controller, link) in (0..).zip(&mut self.links) {
                    let of = |usage: &BlockUsage| BlockId(usage.block).server().controller();
                    let usage = part(&mut usage, controller, of);
                    let of = |active: &ActivePrefix| JobId(active.job).controller();
                    let active = part(&mut active, controller, of);
                    link.usage(net, now, shard, counters, usage, active);
                }
            }
            LinkNote::Holdings { controller, shard, round, blocks } => {
                if let Some(link) = self.links.get_mut(controller as usize) {
                    link.holdings(net, shard, round, blocks);
                }
            }
            LinkNote::Done { errand, outcome } => {
                if let Some(link) = self.links.get_mut(errand.controller as usize) {
                    link.done(net, errand, outcome);
                }
            }
            LinkNote::Leave => self.links.iter_mut().for_each(|link| link.leave(net)),
            LinkNote::Stop => self.stopped = true,
        }
    }

    fn on_tick(&mut self, net: &mut Net, now: Time) -> Option<Time> {
        let next = self.links.iter_mut().map(|link| link.on_tick(net, now)).min();
        self.tell_joined();
        next
    }

    fn finished(&self) -> bool {
        self.stopped
    }
}
