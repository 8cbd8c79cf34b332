//! Requests: their admission, the operations that are not answered yet, and the places where results are
//! recorded.

use super::agenda::Agenda;
use super::blocks::Blocks;
use super::outbox::Outbox;
use super::pending::AllPending;
use super::request::{Request, generation_of, record_hash, verdict_of};
use super::tiers::Tiers;
use super::{BlockSlot, CallerAccess, Shard};
use crate::authorize::authorize;
use crate::refusals::{in_progress, refusal_of, revoked, unknown_block, wrong_epoch};
use honeycomb_structures::{Answer, Attributes, LaneVerdict, Outcome, Payload, Ticket, Waits};
use honeycomb_types::limits::WAIT_MAX_MS;
use honeycomb_types::{BlockAt, Bug, Generation, LaneId, Sequence, SessionId, Time};
use honeycomb_wire::{Mutates, RequestHeader};

/// A mutation that is not answered yet, and where its result must be recorded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub ticket: Ticket,
    pub at: BlockAt,
    pub session: SessionId,
    pub lane: LaneId,
    pub sequence: Sequence,
    pub hash: Option<u64>,
    /// Whether the result is recorded; the result of a read, or of a part of a move, is not.
    pub mutates: bool,
    /// The generation of its grant.
    pub generation: Generation,
    /// Whether the wait ends because the grant expires, and not because the requested time is over.
    pub until_grant_ends: bool,
    /// Whether the payload is still arriving, or waits for earlier payloads: the operation cannot be
    /// withdrawn.
    pub filling: bool,
}

impl BlockSlot {
    /// Records the result of a mutation for retries.
    fn record(
        &mut self,
        session: SessionId,
        lane: LaneId,
        sequence: Sequence,
        hash: Option<u64>,
        answer: &Answer,
    ) {
        if answer.executed() {
            self.lanes.record(session, lane, sequence, hash, answer);
        } else {
            self.lanes.abandon(session, lane);
        }
    }
}

/// Whether bytes of an answer may be in a lower tier.
fn below(slot: &BlockSlot, answer: &Answer) -> bool {
    slot.backing.floor() > 0 && matches!(answer.payload, Payload::Block(_) | Payload::Parts(_))
}

/// The parts of a shard that admit requests, and keep those without an answer.
pub struct RequestWork<'a> {
    pub(super) blocks: &'a mut Blocks,
    pub(super) agenda: &'a mut Agenda,
    pub(super) pending: &'a mut AllPending,
    pub(super) tiers: &'a mut Tiers,
    pub(super) out: &'a mut Outbox,
}

impl<'a> RequestWork<'a> {
    /// Withdraws the parked operations of a caller that is gone, unless they are in progress.
    pub fn hang_up(&mut self, tickets: &[Ticket]) {
        for ticket in tickets {
            if let Some(pending) = self.pending.get(*ticket) {
                self.give_up_waiting(pending);
            }
        }
        self.tiers.hang_up(tickets);
    }

    /// Ends a subscription whose connection is closed.
    pub fn unsubscribe(&mut self, at: BlockAt, ticket: Ticket) {
        if let Some(slot) = self.blocks.at(at)
            && slot.watchers.remove(ticket)
            && let Some(changes) = slot.structure.changes()
        {
            changes.watch(false);
        }
    }

    /// The place of the next bytes of a payload that is arriving; `None` if the block was freed meanwhile.
    pub fn fill(self, ticket: Ticket) -> Option<&'a mut [u8]> {
        let at = self.pending.get(ticket)?.at;
        let (streaming, backing) = self.blocks.at(at)?.streaming();
        Some(streaming.fill(backing, ticket))
    }

    /// Notes that `n` bytes of the part returned by `fill` were written.
    pub fn filled(&mut self, ticket: Ticket, n: usize) {
        if let Some(pending) = self.pending.get(ticket)
            && let Some(slot) = self.blocks.at(pending.at)
        {
            slot.streaming().0.filled(ticket, n);
        }
    }

    /// Makes a complete payload visible. `Outbox::completed` returns the answer.
    fn commit(&mut self, now: Time, ticket: Ticket) {
        let Some(pending) = self.pending.get(ticket) else { return };
        assert!(pending.filling, "INV-07: {ticket:?} is committed, and no payload of it arrives");
        let Some(slot) = self.blocks.at(pending.at) else { return };
        let (streaming, backing) = slot.streaming();
        if let Outcome::Done(answer) = streaming.commit(backing, now, ticket) {
            self.finish(pending, answer);
        }
        self.agenda.changed(pending.at);
    }

    /// Cancels the request of a payload whose connection is closed.
    fn abort(&mut self, now: Time, ticket: Ticket) {
        let Some(pending) = self.pending.remove(ticket) else { return };
        assert!(pending.filling, "INV-07: {ticket:?} is aborted, and no payload of it arrives");
        if let Some(slot) = self.blocks.at(pending.at) {
            let (streaming, backing) = slot.streaming();
            streaming.abort(backing, now, ticket);
            if pending.mutates {
                slot.lanes.abandon(pending.session, pending.lane);
            }
            self.agenda.changed(pending.at);
        }
    }

    /// Withdraws a waiting operation. False if it is in progress.
    fn give_up_waiting(&mut self, pending: Pending) -> bool {
        let Some(slot) = self.blocks.at(pending.at) else { return false };
        let cancelled = |waits: &mut dyn Waits| waits.cancel(pending.ticket);
        if pending.filling || !slot.structure.waits().is_some_and(cancelled) {
            return false;
        }
        if pending.mutates {
            slot.lanes.abandon(pending.session, pending.lane);
        }
        let removed = self.pending.remove(pending.ticket);
        assert!(removed.is_some(), "INV-16: {:?} is withdrawn twice", pending.ticket);
        // Operations that waited behind it may be able to run, or were answered.
        self.agenda.changed(pending.at);
        true
    }

    /// Answers the operations of a block that wait under an older grant.
    pub(super) fn revoke_waiting(&mut self, at: BlockAt, current: Generation) {
        let old = |p: &&Pending| p.at == at && p.generation < current;
        let old: Vec<Pending> = self.pending.iter().filter(old).copied().collect();
        for pending in old {
            if self.give_up_waiting(pending) {
                self.out.completed.push((pending.ticket, revoked()));
            }
        }
    }

    /// Locates the block, checks the grant, and looks up an earlier result: the index of the block and the
    /// attributes of the operation if the structure is to run the request; otherwise the answer.
    pub(super) fn admit(
        &mut self,
        now: Time,
        clock_ms: u64,
        access: &CallerAccess,
        header: &RequestHeader,
    ) -> Result<(usize, Attributes), Answer> {
        let index = self.blocks.index(header.at.block).ok_or_else(|| unknown_block(header.at))?;
        let slot = self.blocks.get_mut(index).ok_or_else(|| wrong_epoch(header.at))?;
        if slot.owner.at.epoch != header.at.epoch && !Bug::EpochUnchecked.active() {
            return Err(wrong_epoch(header.at));
        }
        let attributes = authorize(&slot.owner, &slot.kind, access, header, clock_ms)?;
        let (owner, grant) = (&slot.owner, access.grant.as_ref().expect("authorized by one"));
        let (of, given) = ((owner.job, owner.structure), (grant.job, grant.structure));
        assert_eq!(of, given, "INV-28: a block serves a grant of another structure");
        let (least, given) = (owner.generation, grant.generation);
        assert!(
            given >= least,
            "INV-29: a grant of {given:?} is served, and {least:?} is the least"
        );
        if attributes.mutates {
            self.recall(index, now, access, header)?;
        }
        Ok((index, attributes))
    }

    /// Looks up an earlier result. A repeated request whose first attempt still waits replaces that attempt:
    /// the caller has lost the connection for its answer.
    fn recall(
        &mut self,
        index: usize,
        now: Time,
        access: &CallerAccess,
        header: &RequestHeader,
    ) -> Result<(), Answer> {
        let slot = self.blocks.found_mut(index);
        let mut verdict = verdict_of(slot, now, access, header);
        if verdict == LaneVerdict::InProgress {
            let earlier = self.pending.iter().find(|p| {
                let this = (header.at, access.session, header.lane, header.sequence);
                (p.at, p.session, p.lane, p.sequence) == this
            });
            let (lane, sequence) = (header.lane, header.sequence);
            assert!(
                earlier.is_some() || Bug::EpochUnchecked.active(),
                "INV-16: {sequence:?} of {lane:?} is in progress, and not pending"
            );
            if let Some(earlier) = earlier.copied()
                && self.give_up_waiting(earlier)
            {
                let text = "the request was repeated on another connection";
                self.out.completed.push((earlier.ticket, in_progress(text)));
                let slot = self.blocks.found_mut(index);
                verdict = verdict_of(slot, now, access, header);
            }
        }
        refusal_of(verdict)
    }

    /// Keeps an operation until it is answered.
    pub(super) fn park(&mut self, pending: Pending) {
        self.pending.push(pending);
    }

    /// A pending operation is answered.
    pub(super) fn finish(&mut self, pending: Pending, answer: Answer) {
        let removed = self.pending.remove(pending.ticket);
        assert!(removed.is_some(), "INV-16: {:?} is answered twice", pending.ticket);
        if pending.mutates
            && let Some(slot) = self.blocks.at(pending.at)
        {
            slot.record(pending.session, pending.lane, pending.sequence, pending.hash, &answer);
        }
        self.out.completed.push((pending.ticket, answer));
    }
}

impl Pending {
    /// The operation of a request that the structure has accepted.
    pub fn of(clock_ms: u64, request: &Request<'_>, hash: Option<u64>, filling: bool) -> Pending {
        let Request { access, header, ticket, attributes, .. } = *request;
        let wait_ms = header.deadline_ms.min(WAIT_MAX_MS) as u64;
        let ends_first = access.grant.is_some_and(|grant| grant.expires_ms < clock_ms + wait_ms);
        Pending {
            ticket,
            at: header.at,
            session: access.session,
            lane: header.lane,
            sequence: header.sequence,
            hash,
            mutates: attributes.mutates,
            generation: access.grant.map_or(Generation(0), |grant| grant.generation),
            until_grant_ends: ends_first && !filling,
            filling,
        }
    }
}

impl Shard {
    /// Its admission of requests, and those without an answer.
    pub fn requests(&mut self) -> RequestWork<'_> {
        let Shard { blocks, agenda, pending, tiers, out, .. } = self;
        RequestWork { blocks, agenda, pending, tiers, out }
    }

    /// Ends the arrival of a payload: it is complete and becomes visible, so that `Outbox::completed` returns
    /// the answer; or its connection is closed, and its request is cancelled.
    pub fn end_payload(&mut self, now: Time, ticket: Ticket, complete: bool) {
        let mut requests = self.requests();
        if complete {
            requests.commit(now, ticket);
        } else {
            requests.abort(now, ticket);
        }
        self.consequences(now);
    }

    /// Records the result for retries and returns the answer, at the block of this index.
    pub(super) fn conclude(
        &mut self,
        now: Time,
        index: usize,
        request: &Request<'_>,
        outcome: Outcome,
    ) -> Outcome {
        let Request { access, header, ticket, attributes, .. } = *request;
        let slot = self.blocks.found_mut(index);
        match outcome {
            Outcome::Done(answer) if !attributes.mutates => {
                let outcome = if below(slot, &answer) {
                    let generation = generation_of(access);
                    let mut tiers = self.tiers();
                    let answer = tiers.reads().resolve(now, index, ticket, generation, answer);
                    answer.map_or(Outcome::Parked, Outcome::Done)
                } else {
                    Outcome::Done(answer)
                };
                // Extent operations have no lane, because repeating them is harmless. Some change the block.
                if header.op.mutates() != Mutates::No {
                    self.after(now, header.at);
                }
                outcome
            }
            Outcome::Done(answer) => {
                let answer = slot.patiently(now, answer);
                let hash = record_hash(slot, request);
                slot.record(access.session, header.lane, header.sequence, hash, &answer);
                self.after_one(now, index);
                Outcome::Done(answer)
            }
            Outcome::Parked => {
                let hash = record_hash(slot, request);
                let pending = Pending::of(self.clock_ms(now), request, hash, false);
                self.requests().park(pending);
                self.after(now, header.at);
                Outcome::Parked
            }
        }
    }
}
