//! The membership of a simulated memory server in each controller shard: with an id of that shard,
//! over a separate link. As in `crates/server/src/link.rs`.

use crate::controller::Said;
use crate::net::Node;
use crate::server::SimServer;
use crate::world::{Event, World};
use honeycomb_catalog::BlockUsage;
use honeycomb_server::{BlockMessage, Effect, MoveWord};
use honeycomb_structures::{Capacity, Successor};
use honeycomb_types::limits::{ACTIVITY_INTERVAL, REPORT_INTERVAL};
use honeycomb_types::{BlockAt, BlockId, Bug, JobId, PrefixId, ServerId, Time};
use honeycomb_wire::Status;
use honeycomb_wire::messages::HeldBlock;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A server whose request to join has no reply repeats it after this time.
const REJOIN: Duration = Duration::from_millis(200);

/// A membership.
#[derive(Default)]
pub struct Member {
    /// The id with which it joined; 0 before that.
    pub id: ServerId,
    /// Its connection to the controller shard, once it has joined over it.
    pub link: Option<u64>,
    /// The controller shard knows it and all its held blocks.
    pub ready: bool,
    /// The controller shard has released it, over the present connection.
    pub released: bool,
    /// It has reported its held blocks; later messages wait in `later` until that is known.
    telling: bool,
    later: Vec<Effect>,
    /// Blocks whose report of taken items is not confirmed.
    unheard: BTreeSet<BlockAt>,
    /// The same, for reports over the present connection.
    taken: BTreeSet<BlockAt>,
    /// The connection of its last request to join.
    pub attempt: u64,
    /// Blocks with an unanswered request for a successor.
    pub growing: BTreeSet<BlockAt>,
    /// Blocks with an unanswered request for a larger capacity.
    enlarging: BTreeSet<BlockAt>,
    /// Blocks with an unanswered request to begin a move.
    moving: BTreeSet<BlockAt>,
    /// Unanswered effects that are sent again over the next connection.
    repeated: Vec<Effect>,
    /// Usage for its next report.
    usage: Vec<BlockUsage>,
    /// Sessions' tasks that were active, and when last.
    active: BTreeMap<(JobId, PrefixId), Time>,
    next_report: Time,
    next_activity: Time,
}

impl Member {
    /// The process has ended. Others still know its id and its last connection.
    pub fn end(&mut self) {
        *self = Member { id: self.id, attempt: self.attempt, ..Member::default() };
    }
}

/// The controller shard that made a prefix.
fn controller_of(prefix: PrefixId) -> u64 {
    prefix.0 >> 48
}

impl SimServer {
    /// Its membership in the controller shard of this id, which may be another server's.
    pub fn member(&mut self, id: ServerId) -> &mut Member {
        &mut self.members[id.controller() as usize]
    }

    /// Whether a controller shard knows it by this id.
    pub fn is(&self, id: ServerId) -> bool {
        self.members.iter().any(|member| member.id == id)
    }

    /// The controller shard at the other end of a link.
    pub fn controller_at(&self, link: u64) -> Option<usize> {
        self.members.iter().position(|member| member.link == Some(link))
    }

    fn member_at(&mut self, at: BlockAt) -> &mut Member {
        self.member(at.block.server())
    }

    /// It has joined under a new id: all blocks that it held for that controller shard are gone.
    pub fn joined(&mut self, now: Time, link: u64, id: ServerId, now_ms: u64) {
        let member = self.member(id);
        let Member { attempt, next_report, next_activity, .. } = *member;
        let active = std::mem::take(&mut member.active);
        *member = Member {
            id,
            link: Some(link),
            ready: true,
            attempt,
            active,
            next_report,
            next_activity,
            ..Member::default()
        };
        let controller = u64::from(id.controller());
        self.generations.retain(|prefix, _| controller_of(*prefix) != controller);
        for shard in &mut self.shards {
            shard.owners().reset(id);
        }
        // As in `crates/server`: the travel time of the reply is the error.
        self.adjust(now_ms as i64 - now.as_millis() as i64, Duration::from_secs(60), now);
    }

    /// The controller's clock was sent in reply to a report: half of the round trip is the error.
    pub fn set_clock(&mut self, sent: Time, now: Time, now_ms: u64) {
        let here = (sent.as_millis() + now.as_millis()) / 2;
        let error = now.since(sent) / 2 + Duration::from_millis(2);
        self.adjust(now_ms as i64 - here as i64, error, now);
    }

    fn adjust(&mut self, offset_ms: i64, error: Duration, now: Time) {
        self.clock = (offset_ms, error, now);
        for shard in &mut self.shards {
            shard.set_clock_offset(offset_ms);
        }
    }

    /// It is the member that it was, and reports the blocks that it holds for that controller
    /// shard.
    pub fn rejoined(&mut self, now: Time, link: u64, id: ServerId, now_ms: u64) -> Vec<HeldBlock> {
        let member = self.member(id);
        (member.link, member.telling) = (Some(link), true);
        // The new report is more recent.
        member.usage.clear();
        self.adjust(now_ms as i64 - now.as_millis() as i64, Duration::from_secs(60), now);
        let mut held: Vec<HeldBlock> =
            self.shards.iter().flat_map(|shard| shard.reports().holdings()).collect();
        held.retain(|held| BlockId(held.block).server() == id);
        held
    }

    /// A controller shard knows its held blocks, and it continues. Returns the effects that waited
    /// for that.
    pub fn known(&mut self, now: Time, controller: usize) -> Vec<Effect> {
        let member = &mut self.members[controller];
        member.ready = true;
        let later = std::mem::take(&mut member.later);
        for at in std::mem::take(&mut member.unheard) {
            self.shard(at).receive(now, at, BlockMessage::TakenReceived);
        }
        later
    }

    /// A link is gone: requests that wait for a reply over it fail.
    pub fn unlink(&mut self, now: Time, controller: usize) {
        let member = &mut self.members[controller];
        member.link = None;
        (member.ready, member.telling, member.released) = (false, false, false);
        for effect in std::mem::take(&mut member.later) {
            match effect {
                Effect::Taken { at, .. } => drop(member.unheard.insert(at)),
                effect if effect.is_retained() => member.later.push(effect),
                _ => {}
            }
        }
        let repeated = std::mem::take(&mut member.repeated);
        if !Bug::CancelNotRepeated.active() {
            member.later.extend(repeated);
        }
        let taken = std::mem::take(&mut member.taken);
        member.unheard.extend(taken);
        let (growing, moving) =
            (std::mem::take(&mut member.growing), std::mem::take(&mut member.moving));
        let enlarging = std::mem::take(&mut member.enlarging);
        for at in growing {
            self.deny_growth(now, at);
        }
        for at in enlarging {
            self.deny_capacity(now, at);
        }
        for at in moving {
            self.move_word(now, at, MoveWord::Unanswered);
        }
    }

    /// Keeps an effect for a controller shard until it is reachable again. Requests from before a
    /// shard's report of held blocks are in that report.
    pub fn keep(&mut self, now: Time, effect: Effect) {
        let controller = effect.controller() as usize;
        let member = &mut self.members[controller];
        match effect {
            Effect::Grow { at, .. } => self.deny_growth(now, at),
            Effect::Enlarge { at, .. } => self.deny_capacity(now, at),
            Effect::BeginMove { at, .. } => {
                let text = "the controller cannot be reached".to_owned();
                self.move_word(now, at, MoveWord::Refused(Status::Unavailable, text));
            }
            Effect::CommitMove { at, .. } => self.move_word(now, at, MoveWord::NotAsked),
            // It is requested again.
            Effect::LocateServer { .. } => {}
            effect if effect.is_retained() || member.telling => member.later.push(effect),
            Effect::Taken { at, .. } => drop(member.unheard.insert(at)),
            _ => {}
        }
    }

    /// The controller's reply about a move.
    pub fn move_word(&mut self, now: Time, at: BlockAt, word: MoveWord) {
        // A late reply on the commit of an earlier move does not answer the request for the next
        // move.
        if !matches!(word, MoveWord::Committed(_) | MoveWord::NotCommitted(..)) {
            self.member_at(at).moving.remove(&at);
        }
        self.shard(at).on_exports(now, |work| work.move_word(at, word));
    }

    fn deny_growth(&mut self, now: Time, at: BlockAt) {
        let text = "the controller cannot be reached".to_owned();
        let denied = Successor::Denied(Status::Unavailable, text);
        self.shard(at).receive(now, at, BlockMessage::Successor(denied));
    }

    fn deny_capacity(&mut self, now: Time, at: BlockAt) {
        let text = "the controller cannot be reached".to_owned();
        let denied = Capacity::Denied(Status::Unavailable, text);
        self.shard(at).receive(now, at, BlockMessage::Capacity(denied));
    }

    /// Records a message to a controller shard.
    pub fn saying(&mut self, said: &Said) {
        match *said {
            Said::Asked(Effect::Grow { at, .. }) => drop(self.member_at(at).growing.insert(at)),
            Said::Asked(Effect::Enlarge { at, .. }) => {
                self.member_at(at).enlarging.insert(at);
            }
            Said::Asked(Effect::BeginMove { at, .. }) => drop(self.member_at(at).moving.insert(at)),
            Said::Asked(Effect::Taken { at, .. }) => drop(self.member_at(at).taken.insert(at)),
            Said::Asked(
                ref effect @ (Effect::CancelMove { at, .. }
                | Effect::BlockFailed { at, .. }
                | Effect::Return { at, .. }),
            ) => self.member_at(at).repeated.push(effect.clone()),
            _ => {}
        }
    }

    /// The controller has received an effect that would be sent again.
    pub fn heard(&mut self, controller: usize, effect: &Effect) {
        self.members[controller].repeated.retain(|repeated| repeated != effect);
    }

    /// The controller's message for a block.
    pub fn receive(&mut self, now: Time, at: BlockAt, message: BlockMessage) {
        let member = self.member_at(at);
        match message {
            BlockMessage::Successor(_) => member.growing.remove(&at),
            BlockMessage::Capacity(_) => member.enlarging.remove(&at),
            BlockMessage::TakenReceived => member.taken.remove(&at),
            _ => false,
        };
        self.shard(at).receive(now, at, message);
    }

    /// The report to a controller shard, if it is due.
    pub fn report(&mut self, now: Time, controller: usize) -> Option<Said> {
        let member = &mut self.members[controller];
        if !member.ready {
            return None;
        }
        let active = !member.active.is_empty() && now >= member.next_activity;
        if now < member.next_report && !active {
            return None;
        }
        member.next_report = now + REPORT_INTERVAL;
        member.next_activity = now + ACTIVITY_INTERVAL;
        let seen = std::mem::take(&mut member.active);
        let ago = |at: Time| now.since(at).as_millis() as u32;
        let active = seen.into_iter().map(|((job, prefix), at)| (job, prefix, ago(at))).collect();
        let SimServer { shards, members, .. } = self;
        for shard in shards {
            shard.owners().usage(|at, bytes_used| {
                let member = &mut members[at.block.server().controller() as usize];
                member.usage.push(BlockUsage { at, bytes_used });
            });
        }
        let usage = std::mem::take(&mut members[controller].usage);
        Some(Said::Report { sent: now, usage, active })
    }

    /// Activity of a session with a task.
    pub fn seen(&mut self, now: Time, job: JobId, prefix: PrefixId) {
        self.members[job.controller() as usize].active.insert((job, prefix), now);
    }
}

impl World {
    /// A server learns that a link is closed.
    pub fn link_closed(&mut self, server: usize, link: u64) {
        let now = self.local(Node::Server(server));
        let sim = &mut self.servers[server];
        // The reply to a request to join may still be on its way: it is lost with its connection.
        let closes = |m: &Member| m.link == Some(link) || m.link.is_none() && m.attempt == link;
        let Some(ix) = sim.members.iter().position(closes) else { return };
        let life = sim.life;
        sim.unlink(now, ix);
        let messages = sim.settle();
        self.send_all(server, messages);
        self.rejoin(server, life, ix);
    }

    /// A server without a link to a controller shard requests to join, repeatedly.
    pub fn rejoin(&mut self, server: usize, life: u64, ix: usize) {
        let sim = &self.servers[server];
        if sim.life != life || !sim.alive || sim.members[ix].link.is_some() {
            return;
        }
        // The earlier connection, if there was one, is closed.
        let earlier = sim.members[ix].attempt;
        let at = self.arrival(Node::Server(server), Node::Controller, earlier);
        self.schedule_at(at, Event::LinkLost { server, link: earlier });
        let link = self.new_link();
        self.servers[server].members[ix].attempt = link;
        let at = self.arrival(Node::Server(server), Node::Controller, link);
        let lent = self.offers(server, ix);
        self.schedule_at(at, Event::Join { server, life, link, controller: ix, lent });
        self.schedule(REJOIN, Event::Rejoin { server, life, controller: ix });
    }
}
