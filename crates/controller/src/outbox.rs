//! Replies and requests to servers, held until the changes that they depend on are logged.
//!
//! A round of the loop reads requests, applies them, and puts replies and requests here. At its end, one
//! commit writes all changes of the round as one group. A message that reports a change, or could reveal one,
//! is held until the group is on disk: for a job, this includes its own changes and shared ones (expired
//! leases, joining and lost servers). Growth, reports and all messages that depend on no pending change are
//! sent at once, however slow the disk. If the log cannot be written, replies to changes become refusals, and
//! requests to servers wait for new files.

use crate::service::{ControllerService, PeerState, Siblings};
use crate::store::{RENEW_AGAIN, Store, StoreError};
use honeycomb_transport::{ConnId, Net, ReplyPayload};
use honeycomb_types::{Bug, JobId, Time};
use honeycomb_wire::{Op, ReplyHeader, RequestHeader, Status};
use std::collections::{HashMap, HashSet};

/// Maximum number of answers to clients that wait for the disk or for memory servers; further requests get
/// `Busy`. Requests to memory servers are not counted: each belongs to such an answer, or to a block.
const HELD_MAX: usize = 16_384;

/// The kind of changes that an answer depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rests {
    /// No logged state.
    Nothing,
    /// State that was read; it may include an earlier change that is not on disk yet.
    Sight,
    /// A change that must be in the log, but not yet on disk: growth.
    Growth,
    /// A change that must be on disk.
    Change,
}

/// An outgoing message.
pub(crate) enum OutgoingMessage {
    /// An answer.
    Reply { to: ConnId, request: u64, body: Vec<u8>, rests: Rests },
    /// A refusal, which depends on the state that was read.
    Refuse { to: ConnId, request: u64, status: Status, text: String },
    /// A request from this controller to a memory server.
    Ask { to: ConnId, number: u64, op: Op, body: Vec<u8> },
}

/// The last groups of the log with changes that are not on disk, by job.
#[derive(Default)]
pub(crate) struct UnsyncedGroups {
    /// The last group with changes that do not belong to a single job.
    shared: u64,
    jobs: HashMap<JobId, u64>,
    /// Jobs with changes in this round; `None` for shared changes.
    round: HashSet<Option<JobId>>,
    /// Last group on disk when the held messages were last inspected.
    safe: u64,
}

impl UnsyncedGroups {
    /// Notes a change that messages must wait for, caused by this job or by none.
    pub(crate) fn change(&mut self, job: Option<JobId>) {
        self.round.insert(job);
    }

    /// Assigns the changes of this round to the last group for which messages wait, if messages must wait for
    /// any of these changes.
    fn settle(&mut self, any: bool, waited: u64) {
        assert!(waited >= self.shared, "INV-26: group {waited} follows {}", self.shared);
        for job in self.round.drain().filter(|_| any) {
            match job {
                Some(job) => drop(self.jobs.insert(job, waited)),
                None => self.shared = waited,
            }
        }
    }

    /// Whether a message that depends on this group can be sent.
    fn is_safe(&self, group: u64) -> bool {
        group <= self.safe || Bug::ReplyBeforeSync.active()
    }

    /// A message that depends on a group is sent, and the log has this last group on disk.
    fn says(group: u64, on_disk: u64) {
        assert!(
            group <= on_disk,
            "INV-26: a message rests on group {group}, and {on_disk} is on disk"
        );
    }

    /// Notes the last group on disk; answers whether it has advanced.
    fn advance(&mut self, safe: u64) -> bool {
        assert!(safe >= self.safe, "INV-26: group {safe} is on disk, and {} was before", self.safe);
        let news = std::mem::replace(&mut self.safe, safe) != safe;
        if news {
            // Under steady load some group is always pending, so that finished jobs are removed here.
            self.jobs.retain(|_, group| *group > safe);
        }
        news
    }

    /// The last group with changes visible to this job that is not on disk.
    fn seen_by(&self, job: JobId) -> u64 {
        self.jobs.get(&job).copied().unwrap_or_default().max(self.shared)
    }
}

impl ControllerService {
    /// Writes the changes of this round, and sends the messages whose changes are on disk.
    pub(crate) fn settle(&mut self, net: &mut Net, now: Time) {
        let groups =
            |store: &Option<Store>| store.as_ref().map_or((0, 0), |s| (s.waited(), s.safe()));
        let (before, _) = groups(&self.store);
        let written = self.write(now);
        let (waited, safe) = groups(&self.store);
        assert!(waited >= before, "INV-26: group {waited} is waited for, and {before} was before");
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
                    assert!(group <= waited, "INV-26: a message waits for {group} after {waited}");
                    self.say_when_safe(net, group, out);
                }
            }
            Err(why) => {
                let ControllerService { held, out, joining, peers, siblings, .. } = self;
                let mut stays = |out: &OutgoingMessage| match out {
                    OutgoingMessage::Reply {
                        to,
                        request,
                        rests: Rests::Change | Rests::Growth,
                        ..
                    } => {
                        let text = format!("{why}; the change may have been made");
                        let (to, request, status) = (*to, *request, Status::LogFailed);
                        say(
                            net,
                            peers,
                            siblings,
                            &OutgoingMessage::Refuse { to, request, status, text },
                        );
                        false
                    }
                    OutgoingMessage::Ask { to, op: Op::QueueAhead, .. }
                        if !joining.contains(to) =>
                    {
                        say(net, peers, siblings, out);
                        false
                    }
                    // The request waits for new files, which contain all changes.
                    OutgoingMessage::Ask { .. } => true,
                    _ => {
                        say(net, peers, siblings, out);
                        false
                    }
                };
                // A message that waits for new files keeps waiting: only at the first failure are there other
                // messages.
                if held.front().is_some_and(|(group, _)| *group != u64::MAX) {
                    held.retain(|(_, out)| stays(out));
                    held.iter_mut().for_each(|(group, _)| *group = u64::MAX);
                }
                let stay = out.drain(..).filter(|out| stays(out));
                held.extend(stay.map(|out| (u64::MAX, out)));
                debug_assert!(held.iter().all(is_paused), "INV-26: an answer waits for new files");
                self.held_for_clients = 0;
            }
        }
        self.wait = false;
        self.records.clear();
    }

    fn say_when_safe(&mut self, net: &mut Net, group: u64, out: OutgoingMessage) {
        if !self.marks.is_safe(group) {
            if let OutgoingMessage::Reply { to, .. } | OutgoingMessage::Refuse { to, .. } = &out
                && self.peers.get(to).is_some_and(|peer| peer.server.is_none())
            {
                self.held_for_clients += 1;
            }
            self.held.push_back((group, out));
            let (clients, all) = (self.held_for_clients, self.held.len());
            assert!(clients <= all, "INV-33: {clients} of {all} held messages are for clients");
            return;
        }
        UnsyncedGroups::says(group, self.store.as_ref().map_or(u64::MAX, Store::safe));
        if let OutgoingMessage::Reply { to, .. } = &out {
            self.joining.retain(|conn| conn != to);
        }
        say(net, &mut self.peers, &mut self.siblings, &out);
    }

    /// Whether the maximum number of answers to clients is waiting.
    pub(crate) fn is_behind(&self) -> bool {
        self.held_for_clients + self.deferred() >= HELD_MAX
    }

    /// The group that must be on disk before the message is sent; 0 for none.
    fn rests_on(&self, out: &OutgoingMessage, waited: u64) -> u64 {
        let job = |to| self.peers.get(to).and_then(|peer| peer.scope.job);
        match out {
            OutgoingMessage::Reply { rests: Rests::Nothing | Rests::Growth, .. } => 0,
            OutgoingMessage::Reply { to, .. } | OutgoingMessage::Refuse { to, .. } => {
                job(to).map_or(waited, |job| self.marks.seen_by(job))
            }
            // A block that is opened for a lost change has no owner and is freed; the block after a queue's
            // tail is soft state, and so is the tier of a block. The server must know its own number first.
            OutgoingMessage::Ask {
                to,
                op: Op::OpenBlock | Op::QueueAhead | Op::LendBlocks | Op::LowerBlock,
                ..
            } if !self.joining.contains(to) => 0,
            OutgoingMessage::Ask { .. } => waited,
        }
    }

    fn write(&mut self, now: Time) -> Result<(), String> {
        let changed = !self.marks.round.is_empty();
        assert_eq!(changed, self.wait, "INV-26: a commit waits exactly if messages wait for it");
        let Some(store) = &mut self.store else { return Ok(()) };
        if store.trouble().is_none() {
            let written = store.commit(now, &mut self.catalog, &self.records, self.wait);
            let written = written.and_then(|()| match store.is_long() && now >= self.renew_at {
                true => {
                    self.renew_at = now + RENEW_AGAIN;
                    match store.renew(now, &mut self.catalog, &self.answers) {
                        // The old files still work: retry later, without an effect on requests.
                        Err(e) if store.trouble().is_none() => {
                            eprintln!(
                                "honeycomb: cannot renew the controller's log, retrying: {e}"
                            );
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
                eprintln!("honeycomb: the controller's log can be written again");
                let safe = store.safe();
                debug_assert!(
                    self.held.iter().all(|(group, _)| *group == u64::MAX || *group <= safe),
                    "INV-26: a message waits for a group after {safe}, with which new files begin"
                );
                self.held.iter_mut().for_each(|(group, _)| *group = 0);
                Ok(())
            }
            Err(StoreError::Stopped { why }) => Err(why),
            Err(e) => Err(e.to_string()),
        }
    }

    /// The reason why no change is accepted, if any.
    pub(crate) fn trouble(&self) -> Option<String> {
        let why = self.store.as_ref()?.trouble()?;
        Some(format!("the controller cannot write its log: {why}"))
    }

    pub(crate) fn reply(&mut self, to: ConnId, request: u64, body: Vec<u8>, rests: Rests) {
        self.out.push(OutgoingMessage::Reply { to, request, body, rests });
    }

    pub(crate) fn refuse(&mut self, to: ConnId, request: u64, status: Status, text: String) {
        self.out.push(OutgoingMessage::Refuse { to, request, status, text });
    }
}

/// Whether a held message is a request to a server that waits for new files.
fn is_paused((group, out): &(u64, OutgoingMessage)) -> bool {
    *group == u64::MAX && matches!(out, OutgoingMessage::Ask { .. })
}

/// Logs that changes are refused.
pub(crate) fn changes_nothing(why: &str) {
    eprintln!("honeycomb: the controller refuses changes until its log can be written: {why}");
}

fn say(
    net: &mut Net,
    peers: &mut HashMap<ConnId, PeerState>,
    siblings: &mut Siblings,
    out: &OutgoingMessage,
) {
    if let OutgoingMessage::Reply { to, .. } | OutgoingMessage::Refuse { to, .. } = out
        && let Some(PeerState { origin: Some(origin), .. }) = peers.get(to)
    {
        let (header, body) = match out {
            OutgoingMessage::Reply { request, body, .. } => {
                (ReplyHeader::new(Status::Ok, *request, 0), body.clone())
            }
            OutgoingMessage::Refuse { request, status, text, .. } => {
                (ReplyHeader::new(*status, *request, 0), text.clone().into_bytes())
            }
            OutgoingMessage::Ask { .. } => {
                unreachable!("requests go only to servers, over their own links")
            }
        };
        siblings.answer(*origin, header, body);
        peers.remove(to);
        return;
    }
    match out {
        OutgoingMessage::Reply { to, request, body, .. } => {
            let header = ReplyHeader::new(Status::Ok, *request, 0);
            net.reply(*to, header, body, ReplyPayload::Copy(&[]));
        }
        OutgoingMessage::Refuse { to, request, status, text } => {
            net.refuse(*to, *request, *status, text)
        }
        OutgoingMessage::Ask { to, number, op, body } => {
            let server = peers.get(to).is_none_or(|peer| peer.server.is_some());
            assert!(server, "INV-28: request {number} goes to {to:?}, which is no memory server");
            let header = RequestHeader { request: *number, ..RequestHeader::new(*op) };
            net.request(*to, header, body, ReplyPayload::Copy(&[]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The giver decides whether a reply can be sent, and the taker asserts it with the log's own count.
    #[cfg(feature = "bug-bank")]
    #[test]
    #[should_panic(expected = "INV-26: a message rests on group 4, and 3 is on disk")]
    fn reply_before_the_sync_of_its_change_is_caught() {
        let mut marks = UnsyncedGroups::default();
        marks.change(Some(JobId(7)));
        marks.settle(true, 4);
        marks.advance(3);
        let group = marks.seen_by(JobId(7));
        assert!(!marks.is_safe(group), "the reply is held");
        Bug::arm(Some(Bug::ReplyBeforeSync));
        let safe = marks.is_safe(group);
        Bug::arm(None);
        assert!(safe, "the planted bug sends it");
        UnsyncedGroups::says(group, 3);
    }

    /// Regression: jobs whose changes were on disk were retained until no group at all was pending.
    #[test]
    fn marks_of_jobs_are_kept_for_as_long_as_they_say_something() {
        let mut marks = UnsyncedGroups::default();
        for group in 1..100 {
            marks.change(Some(JobId(group)));
            marks.settle(true, group);
            assert!(marks.advance(group - 1) || group == 1);
            assert_eq!(marks.seen_by(JobId(group)), group);
            assert_eq!(marks.jobs.len(), 1, "only the job that is not on disk");
        }
    }
}
