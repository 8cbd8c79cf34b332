//! The rights that an operation needs, by the table of the block's kind, and whether its caller has them.

use crate::refusals::{expired, revoked, wrong_epoch};
use crate::shard::{BlockOwner, CallerAccess};
use honeycomb_structures::{Answer, Attributes, Registered, Route, Routed};
use honeycomb_types::{Bug, LaneId, Verbs};
use honeycomb_wire::custom::split_args;
use honeycomb_wire::{Grant, Op, RequestHeader, Status, key_hash};

/// Parts of moves come from other memory servers.
pub(crate) fn peers_only(access: &CallerAccess) -> Result<(), Answer> {
    if access.peer {
        return Ok(());
    }
    let text = "only memory servers move blocks; the request needs the cluster's token";
    Err(Answer::refuse(Status::PermissionDenied, text))
}

/// Operations that are the same for all kinds. A kind that reports no changes refuses `Subscribe` itself.
fn of_any_kind(op: Op) -> Option<Attributes> {
    if !matches!(op, Op::Subscribe | Op::AckResults | Op::NextBlock) {
        return None;
    }
    Some(Attributes { verbs: op.info().verbs, ..Attributes::PLAIN })
}

/// Checks the grant of a request. Every data request passes here (INV-28).
pub(crate) fn authorize(
    owner: &BlockOwner,
    kind: &Registered,
    access: &CallerAccess,
    header: &RequestHeader,
    clock_ms: u64,
) -> Result<Attributes, Answer> {
    let Some(grant) = &access.grant else {
        let text = "this connection has not presented the grant that the request names";
        return Err(Answer::refuse(Status::PermissionDenied, text));
    };
    let own = grant.job == owner.job
        && grant.prefix == owner.prefix
        && grant.structure == owner.structure;
    if !own && !Bug::EpochUnchecked.active() && !Bug::JobUnchecked.active() {
        // Answered as for a block without an owner: the caller must not learn that it belongs to another job.
        return Err(wrong_epoch(header.at));
    }
    if grant.generation < owner.generation && !Bug::GenerationUnchecked.active() {
        return Err(revoked());
    }
    if clock_ms >= grant.expires_ms && !Bug::GrantNeverEnds.active() {
        return Err(expired());
    }
    let code = header.op.code();
    if (code >> 8) as u8 != owner.kind.code() {
        return of_another_kind(owner, grant, header.op);
    }
    let attributes = attributes_of(kind, header, code as u8)?;
    if !grant.verbs.contains(attributes.verbs) && !Bug::VerbsUnchecked.active() {
        return Err(not_allowed(grant, attributes.verbs));
    }
    Ok(attributes)
}

/// An operation that applies to every kind, or to another kind than the block's. The protocol defines the
/// rights that it needs, if any definition exists.
fn of_another_kind(owner: &BlockOwner, grant: &Grant, op: Op) -> Result<Attributes, Answer> {
    let verbs = op.info().verbs;
    if !grant.verbs.contains(verbs) {
        return Err(not_allowed(grant, verbs));
    }
    of_any_kind(op).ok_or_else(|| {
        Answer::refuse(Status::WrongKind, format!("the structure is a {}", owner.kind))
    })
}

fn not_allowed(grant: &Grant, verbs: Verbs) -> Answer {
    let text =
        format!("the operation needs permission to {verbs}; the grant allows {}", grant.verbs);
    Answer::refuse(Status::PermissionDenied, text)
}

/// The attributes of the requested operation in the kind's table. For operations of the protocol the codec
/// has already compared the header with them; custom operations are unknown to it.
fn attributes_of(
    kind: &Registered,
    header: &RequestHeader,
    number: u8,
) -> Result<Attributes, Answer> {
    let Some(attributes) = kind.operation(number) else {
        let text = format!("a {} has no operation {number:#04x}", kind.spec().name);
        return Err(Answer::refuse(Status::UnknownOpcode, text));
    };
    if attributes.mutates != (header.lane != LaneId(0)) {
        let text = match attributes.mutates {
            true => "a mutation must name its lane and sequence",
            false => "only a mutation has a lane",
        };
        return Err(Answer::refuse(Status::BadFrame, text));
    }
    if header.payload_len != 0 && !attributes.payload {
        return Err(Answer::refuse(Status::BadFrame, "the operation takes no payload"));
    }
    Ok(*attributes)
}

/// Whether a custom operation that is routed by a key belongs to this block.
pub(crate) fn routed_here(
    owner: &BlockOwner,
    header: &RequestHeader,
    route: Route,
    args: &[u8],
) -> Result<(), Answer> {
    if route != Route::Key || !matches!(header.op, Op::Custom(_)) {
        return Ok(());
    }
    let (Routed::Key(key), _) = split_args(route, args)? else { return Ok(()) };
    let hash = key_hash(key);
    if (owner.start..=owner.end).contains(&hash) {
        return Ok(());
    }
    Err(Answer::refuse(Status::WrongRange, "the key is outside this block's range"))
}
