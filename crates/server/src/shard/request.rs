//! A request in its stages, except for the structure's own work.

use super::{BlockSlot, CallerAccess};
use crate::watch::Watcher;
use honeycomb_structures::{
    Answer, Attributes, LaneVerdict, Operation, Payload, Route, Routed, Ticket,
};
use honeycomb_types::limits::WAIT_MAX_MS;
use honeycomb_types::{Generation, LaneId, SessionId, Time};
use honeycomb_wire::custom::split_args;
use honeycomb_wire::notice::SubscribeArgs;
use honeycomb_wire::{Grant, RequestHeader, Status, flags, key_hash};
use std::time::Duration;

/// A request that was admitted to its structure.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub access: &'a CallerAccess,
    pub header: &'a RequestHeader,
    pub args: &'a [u8],
    pub ticket: Ticket,
    pub attributes: Attributes,
}

impl<'a> Request<'a> {
    /// A part of a move, to which no grant and no table applies.
    pub fn of_a_peer(
        access: &'a CallerAccess,
        header: &'a RequestHeader,
        args: &'a [u8],
        ticket: Ticket,
    ) -> Request<'a> {
        let op = header.op;
        assert!(access.peer, "INV-28: {op:?} runs without a grant, and not for a memory server");
        Request { access, header, args, ticket, attributes: Attributes::PLAIN }
    }
}

/// The hash that a record carries.
pub(super) fn record_hash(slot: &BlockSlot, request: &Request<'_>) -> Option<u64> {
    let Request { header, args, attributes, .. } = *request;
    if attributes.route != Route::Key {
        return slot.structure.record_hash(header.op, args);
    }
    match split_args(attributes.route, args) {
        Ok((Routed::Key(key), _)) => Some(key_hash(key)),
        _ => None,
    }
}

pub(super) fn generation_of(access: &CallerAccess) -> Generation {
    access.grant.expect("authorized by one").generation
}

/// The operation of a request. It waits no longer than its grant is valid: a client that wants to wait longer
/// repeats it with another grant (`Pending::until_grant_ends`).
pub(super) fn operation<'a>(now: Time, clock_ms: u64, request: &Request<'a>) -> Operation<'a> {
    let Request { access, header, args, ticket, attributes } = *request;
    let good_ms = access.grant.map_or(0, |grant| grant.expires_ms.saturating_sub(clock_ms));
    let asked_ms = if attributes.waits { header.deadline_ms.min(WAIT_MAX_MS) } else { 0 };
    let wait = Duration::from_millis(good_ms.min(asked_ms as u64));
    Operation { now, ticket, op: header.op, args, wait_until: now + wait }
}

/// The next block of the structure, if it continues in another block.
pub(super) fn next_block(slot: &BlockSlot, args: &[u8]) -> Answer {
    if !args.is_empty() {
        return Answer::refuse(Status::BadFrame, "NextBlock takes no arguments");
    }
    match slot.stage.continuation() {
        None => Answer::ok(0),
        Some((length, successor)) => {
            let (status, args) = (Status::Moved, successor.encode());
            Answer { status, value: length, args, payload: Payload::None }
        }
    }
}

pub(super) fn acknowledge(slot: &mut BlockSlot, session: SessionId, args: &[u8]) -> Answer {
    match honeycomb_wire::data::acks(args) {
        Ok(acks) => {
            let known =
                acks.iter().filter(|(lane, up_to)| slot.lanes.forget(session, *lane, *up_to));
            Answer::ok(known.count() as u64)
        }
        Err(e) => e.into(),
    }
}

pub(super) fn subscribe(slot: &mut BlockSlot, ticket: Ticket, grant: Grant, args: &[u8]) -> Answer {
    let SubscribeArgs { kinds, filter, .. } = match SubscribeArgs::decode(args) {
        Ok(args) => args,
        Err(e) => return e.into(),
    };
    let Some(changes) = slot.structure.changes() else {
        let name = &slot.kind.spec().name;
        let text = format!("cannot subscribe: blocks of kind '{name}' report no changes");
        return Answer::refuse(Status::WrongKind, text);
    };
    let unreported = changes.unreported();
    match slot.watchers.add(Watcher { ticket, kinds, filter, grant }, unreported) {
        Ok(number) => {
            changes.watch(true);
            Answer::ok(number)
        }
        Err(refusal) => refusal,
    }
}

/// Only the next mutation of a lane runs (INV-16).
pub(super) fn verdict_of(
    slot: &mut BlockSlot,
    now: Time,
    access: &CallerAccess,
    header: &RequestHeader,
) -> LaneVerdict {
    debug_assert_ne!(header.lane, LaneId(0), "INV-16: {:?} has no lane", header.op);
    slot.lanes.expire(now);
    slot.lanes.begin(
        now,
        access.session,
        header.lane,
        header.sequence,
        header.acked(),
        header.flags & flags::RETRY != 0,
        access.window,
    )
}
