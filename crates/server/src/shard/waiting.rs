//! Operations that are not answered yet, and the places where their results are recorded.

use super::request::{Request, generation_of, record_hash, verdict_of};
use super::{BlockSlot, CallerAccess, Shard};
use crate::refusals::{in_progress, refusal_of, revoked};
use honeycomb_structures::{Answer, LaneVerdict, Outcome, Payload, Ticket, Waits};
use honeycomb_types::limits::WAIT_MAX_MS;
use honeycomb_types::{BlockAt, Bug, Generation, LaneId, Sequence, SessionId, Time};
use honeycomb_wire::{Mutates, RequestHeader};

/// A mutation that is not answered yet, and where its result must be recorded.
#[derive(Clone, Copy)]
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

impl Shard {
    /// Withdraws a parked operation whose caller is gone, unless the operation is in progress.
    pub fn hang_up(&mut self, ticket: Ticket) {
        if let Some(pending) = self.pending.get(ticket) {
            self.give_up_waiting(pending);
        }
    }

    /// Withdraws a waiting operation. False if it is in progress.
    pub(super) fn give_up_waiting(&mut self, pending: Pending) -> bool {
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
        // Operations that waited behind it may be able to run.
        self.arm(
            self.blocks
                .index(pending.at.block)
                .expect("a pending operation waits at a block of this shard"),
        );
        true
    }

    pub(super) fn revoke_waiting(&mut self, at: BlockAt, current: Generation) {
        let old = |p: &&Pending| p.at == at && p.generation < current;
        let old: Vec<Pending> = self.pending.iter().filter(old).copied().collect();
        for pending in old {
            if self.give_up_waiting(pending) {
                self.out.completed.push((pending.ticket, revoked()));
            }
        }
    }

    /// Looks up an earlier result. A repeated request whose first attempt still waits replaces that attempt:
    /// the caller has lost the connection for its answer.
    pub(super) fn recall(
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

    /// Records the result for retries and returns the answer, at the block of this index.
    pub(super) fn conclude(
        &mut self,
        now: Time,
        index: usize,
        request: &Request<'_>,
        outcome: Outcome,
    ) -> Outcome {
        let Request { access, header, attributes, .. } = *request;
        let slot = self.blocks.found_mut(index);
        match &outcome {
            Outcome::Done(_) if !attributes.mutates => {
                let outcome = match outcome {
                    Outcome::Done(answer) if below(slot, &answer) => {
                        let generation = generation_of(access);
                        match self.tier_work().reads().resolve(
                            now,
                            index,
                            request.ticket,
                            generation,
                            answer,
                        ) {
                            Some(answer) => Outcome::Done(answer),
                            None => Outcome::Parked,
                        }
                    }
                    outcome => outcome,
                };
                // Extent operations have no lane, because repeating them is harmless. Some change the block.
                if header.op.mutates() != Mutates::No {
                    self.after(now, header.at);
                }
                return outcome;
            }
            Outcome::Done(_) => {
                let Outcome::Done(answer) = outcome else { unreachable!("matched above") };
                let answer = slot.patiently(now, answer);
                let hash = record_hash(slot, request);
                slot.record(access.session, header.lane, header.sequence, hash, &answer);
                self.after_one(now, index);
                return Outcome::Done(answer);
            }
            Outcome::Parked => {
                let hash = record_hash(slot, request);
                let pending = self.pending(now, request, hash);
                self.pending.push(pending);
                self.after(now, header.at);
            }
        }
        outcome
    }

    pub(super) fn pending(&self, now: Time, request: &Request<'_>, hash: Option<u64>) -> Pending {
        let Request { access, header, ticket, attributes, .. } = *request;
        Pending {
            ticket,
            at: header.at,
            session: access.session,
            lane: header.lane,
            sequence: header.sequence,
            hash,
            mutates: attributes.mutates,
            generation: generation_of(access),
            until_grant_ends: self.grant_ends_first(now, access, header),
            filling: false,
        }
    }

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

    fn grant_ends_first(&self, now: Time, access: &CallerAccess, header: &RequestHeader) -> bool {
        let wait_ms = header.deadline_ms.min(WAIT_MAX_MS) as u64;
        access.grant.is_some_and(|grant| grant.expires_ms < self.clock_ms(now) + wait_ms)
    }
}
