//! Replies and requests to servers, held until what they rest on is on the log.
//!
//! A round of the loop takes requests, applies them, and puts what is to be said here. At its end one
//! commit writes all that has changed as one group. What tells of a change, or could show one, is held
//! until its group is on the disk: for a job, changes of its own and those that are nobody's alone
//! (ends of leases, servers that come and go). Growth, reports and whatever else rests on nothing that
//! is under way is said at once, however slow the disk. When the log cannot be written, replies to changes become
//! refusals, and what servers were to do waits for new files.

use crate::service::{ControllerService, Peer, Siblings};
use crate::store::{RENEW_AGAIN, Store, StoreError};
use honeycomb_transport::{ConnId, Net, ReplyPayload};
use honeycomb_types::{JobId, Time};
use honeycomb_wire::{Op, ReplyHeader, RequestHeader, Status};
use std::collections::{HashMap, HashSet};

/// Answers to clients that wait for the disk, or for memory servers, at a time; a client that asks more is
/// told `Busy`. What is asked of memory servers is not counted: it belongs to one of those answers, or
/// to a block.
const HELD_MAX: usize = 16_384;

/// What an answer rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rests {
    /// Nothing that the log has.
    Nothing,
    /// What was there; it may be a change of before that is not on the disk yet.
    Sight,
    /// A change that has to be on the log, and not yet on the disk: growth.
    Growth,
    /// A change that has to be on the disk.
    Change,
}

/// What is to be said.
pub(crate) enum Out {
    /// An answer.
    Reply { to: ConnId, request: u64, body: Vec<u8>, rests: Rests },
    /// A refusal, which rests on what was seen.
    Refuse { to: ConnId, request: u64, status: Status, text: String },
    /// A request of ours to a memory server.
    Ask { to: ConnId, number: u64, op: Op, body: Vec<u8> },
}

/// Up to which group of the log changes go that are not on the disk.
#[derive(Default)]
pub(crate) struct Marks {
    /// Changes that are not of one job alone.
    shared: u64,
    jobs: HashMap<JobId, u64>,
    /// Whose changes this round has.
    round: HashSet<Option<JobId>>,
    /// What is held was looked at when this group was on the disk.
    safe: u64,
}

impl Marks {
    /// Something changes that has to be waited for, at the wish of this job or of none.
    pub(crate) fn change(&mut self, job: Option<JobId>) {
        self.round.insert(job);
    }

    /// The changes of this round, if there were any to wait for, are in the last group that is waited
    /// for.
    fn settle(&mut self, any: bool, waited: u64) {
        for job in self.round.drain().filter(|_| any) {
            match job {
                Some(job) => drop(self.jobs.insert(job, waited)),
                None => self.shared = waited,
            }
        }
    }

    /// Notes up to where the disk is. Whether that is news.
    fn advance(&mut self, safe: u64) -> bool {
        let news = std::mem::replace(&mut self.safe, safe) != safe;
        if news {
            // Under steady load there is never a moment at which nothing is waited for.
            self.jobs.retain(|_, group| *group > safe);
        }
        news
    }

    /// What somebody of this job may see that is not on the disk.
    fn seen_by(&self, job: JobId) -> u64 {
        self.jobs.get(&job).copied().unwrap_or_default().max(self.shared)
    }
}

impl ControllerService {
    /// Writes what this round has changed, and says what may be said.
    pub(crate) fn settle(&mut self, net: &mut Net, now: Time) {
        let groups =
            |store: &Option<Store>| store.as_ref().map_or((0, 0), |s| (s.waited(), s.safe()));
        let (before, _) = groups(&self.store);
        let written = self.write(now);
        let (waited, safe) = groups(&self.store);
        self.marks.settle(waited > before, waited);
        match written {
            Ok(()) => {
                if self.marks.advance(safe) {
                    self.held_for_clients = 0;
                    for (group, out) in std::mem::take(&mut self.held) {
                        self.say_when_safe(net, group, out);
                    }
                }
                for out in std::mem::take(&mut self.out) {
                    let group = self.rests_on(&out, waited);
                    self.say_when_safe(net, group, out);
                }
            }
            Err(why) => {
                let ControllerService { held, out, joining, peers, siblings, .. } = self;
                let mut stays = |out: &Out| match out {
                    Out::Reply { to, request, rests: Rests::Change | Rests::Growth, .. } => {
                        let text = format!("{why}; the change may have been made");
                        let (to, request, status) = (*to, *request, Status::LogFailed);
                        say(net, peers, siblings, &Out::Refuse { to, request, status, text });
                        false
                    }
                    Out::Ask { to, op: Op::QueueAhead, .. } if !joining.contains(to) => {
                        say(net, peers, siblings, out);
                        false
                    }
                    // Until there are new files, which have everything.
                    Out::Ask { .. } => true,
                    _ => {
                        say(net, peers, siblings, out);
                        false
                    }
                };
                // What stayed once stays: only the first failure finds anything else here.
                if held.front().is_some_and(|(group, _)| *group != u64::MAX) {
                    held.retain(|(_, out)| stays(out));
                    held.iter_mut().for_each(|(group, _)| *group = u64::MAX);
                }
                let stay = out.drain(..).filter(|out| stays(out));
                held.extend(stay.map(|out| (u64::MAX, out)));
                self.held_for_clients = 0;
            }
        }
        self.wait = false;
        self.records.clear();
    }

    fn say_when_safe(&mut self, net: &mut Net, group: u64, out: Out) {
        if group > self.marks.safe {
            if let Out::Reply { to, .. } | Out::Refuse { to, .. } = &out
                && self.peers.get(to).is_some_and(|peer| peer.server.is_none())
            {
                self.held_for_clients += 1;
            }
            return self.held.push_back((group, out));
        }
        if let Out::Reply { to, .. } = &out {
            self.joining.retain(|conn| conn != to);
        }
        say(net, &mut self.peers, &mut self.siblings, &out);
    }

    /// Whether clients wait for as many answers as a controller keeps.
    pub(crate) fn is_behind(&self) -> bool {
        self.held_for_clients + self.deferred() >= HELD_MAX
    }

    /// The group that has to be on the disk before something is said; 0 for none.
    fn rests_on(&self, out: &Out, waited: u64) -> u64 {
        let job = |to| self.peers.get(to).and_then(|peer| peer.scope.job);
        match out {
            Out::Reply { rests: Rests::Nothing | Rests::Growth, .. } => 0,
            Out::Reply { to, .. } | Out::Refuse { to, .. } => {
                job(to).map_or(waited, |job| self.marks.seen_by(job))
            }
            // A block that is opened for a change that is lost is nobody's, and is freed; what is
            // ahead of a queue's tail is soft, and so is where a block is. The server has to know its own number first.
            Out::Ask {
                to,
                op: Op::OpenBlock | Op::QueueAhead | Op::LendBlocks | Op::LowerBlock,
                ..
            } if !self.joining.contains(to) => 0,
            Out::Ask { .. } => waited,
        }
    }

    fn write(&mut self, now: Time) -> Result<(), String> {
        let Some(store) = &mut self.store else { return Ok(()) };
        if store.trouble().is_none() {
            let written = store.commit(now, &mut self.catalog, &self.records, self.wait);
            let written = written.and_then(|()| match store.is_long() && now >= self.renew_at {
                true => {
                    self.renew_at = now + RENEW_AGAIN;
                    match store.renew(now, &mut self.catalog, &self.answers) {
                        // The old files still take everything: tried again, and nobody need know.
                        Err(e) if store.trouble().is_none() => {
                            eprintln!("honeycomb: the controller's log cannot be renewed: {e}");
                            Ok(())
                        }
                        other => other,
                    }
                }
                false => Ok(()),
            });
            let Err(e) = written else { return Ok(()) };
            self.renew_at = now;
            changes_nothing(&e.to_string());
        }
        if now < self.renew_at {
            return Err(self.trouble().unwrap_or_default());
        }
        self.renew_at = now + RENEW_AGAIN;
        let renewed = store.renew(now, &mut self.catalog, &self.answers);
        match renewed {
            Ok(()) => {
                eprintln!("honeycomb: the controller's log is written again");
                self.held.iter_mut().for_each(|(group, _)| *group = 0);
                Ok(())
            }
            Err(StoreError::Stopped { why }) => Err(why),
            Err(e) => Err(e.to_string()),
        }
    }

    /// Why nothing can be changed, if that is so.
    pub(crate) fn trouble(&self) -> Option<String> {
        let why = self.store.as_ref()?.trouble()?;
        Some(format!("the controller cannot write its log: {why}"))
    }

    pub(crate) fn reply(&mut self, to: ConnId, request: u64, body: Vec<u8>, rests: Rests) {
        self.out.push(Out::Reply { to, request, body, rests });
    }

    pub(crate) fn refuse(&mut self, to: ConnId, request: u64, status: Status, text: String) {
        self.out.push(Out::Refuse { to, request, status, text });
    }
}

/// Tells the operator that nothing goes on.
pub(crate) fn changes_nothing(why: &str) {
    eprintln!("honeycomb: the controller changes nothing until its log can be written: {why}");
}

fn say(net: &mut Net, peers: &mut HashMap<ConnId, Peer>, siblings: &mut Siblings, out: &Out) {
    if let Out::Reply { to, .. } | Out::Refuse { to, .. } = out
        && let Some(Peer { origin: Some(origin), .. }) = peers.get(to)
    {
        let (header, body) = match out {
            Out::Reply { request, body, .. } => {
                (ReplyHeader::new(Status::Ok, *request, 0), body.clone())
            }
            Out::Refuse { request, status, text, .. } => {
                (ReplyHeader::new(*status, *request, 0), text.clone().into_bytes())
            }
            Out::Ask { .. } => unreachable!("only servers are asked, over their own links"),
        };
        siblings.answer(*origin, header, body);
        peers.remove(to);
        return;
    }
    match out {
        Out::Reply { to, request, body, .. } => {
            let header = ReplyHeader::new(Status::Ok, *request, 0);
            net.reply(*to, header, body, ReplyPayload::Copy(&[]));
        }
        Out::Refuse { to, request, status, text } => net.refuse(*to, *request, *status, text),
        Out::Ask { to, number, op, body } => {
            let header = RequestHeader { request: *number, ..RequestHeader::new(*op) };
            net.request(*to, header, body, ReplyPayload::Copy(&[]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jobs whose changes were on the disk long since were kept until nothing at all was waited for.
    #[test]
    fn marks_of_jobs_are_kept_for_as_long_as_they_say_something() {
        let mut marks = Marks::default();
        for group in 1..100 {
            marks.change(Some(JobId(group)));
            marks.settle(true, group);
            assert!(marks.advance(group - 1) || group == 1);
            assert_eq!(marks.seen_by(JobId(group)), group);
            assert_eq!(marks.jobs.len(), 1, "the one that is not on the disk");
        }
    }
}
