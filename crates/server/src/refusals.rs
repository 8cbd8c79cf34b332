//! What a shard answers when it does not run a request.

use honeycomb_structures::{Answer, LaneVerdict};
use honeycomb_types::BlockAt;
use honeycomb_types::limits::RETRY_WINDOW_MS;
use honeycomb_wire::Status;
use honeycomb_wire::busy::UNDER_WAY;

/// What a request has to wait whose earlier try is still under way, in microseconds.
const IN_PROGRESS_RETRY_US: u64 = 500;

pub(crate) fn revoked() -> Answer {
    let text = "the permissions of the prefix changed after this grant was issued";
    Answer::refuse(Status::GrantRevoked, text)
}

pub(crate) fn expired() -> Answer {
    Answer::refuse(Status::GrantExpired, "the grant is past its time")
}

pub(crate) fn refusal_of(verdict: LaneVerdict) -> Result<(), Answer> {
    Err(match verdict {
        LaneVerdict::Run => return Ok(()),
        LaneVerdict::Replay(answer) => answer,
        LaneVerdict::Resume(next) => {
            let text = format!("the lane continues at {}", next.0);
            Answer { value: next.0, ..Answer::refuse(Status::Resume, text) }
        }
        LaneVerdict::InProgress => Answer {
            value: IN_PROGRESS_RETRY_US | UNDER_WAY,
            ..Answer::refuse(Status::Busy, "an earlier try of this request is under way")
        },
        LaneVerdict::Waits => in_progress("the mutation before it in its lane is under way"),
        LaneVerdict::OutcomeUnknown => Answer::refuse(
            Status::OutcomeUnknown,
            format!("the record of this mutation is gone after {} s", RETRY_WINDOW_MS / 1000),
        ),
        LaneVerdict::Busy => Answer {
            value: 10_000,
            ..Answer::refuse(Status::Busy, "too many results wait to be acknowledged")
        },
    })
}

pub(crate) fn in_progress(text: &str) -> Answer {
    Answer { value: IN_PROGRESS_RETRY_US, ..Answer::refuse(Status::Busy, text) }
}

pub(crate) fn unknown_block(at: BlockAt) -> Answer {
    Answer::refuse(Status::UnknownBlock, format!("this server has no block {}", at.block))
}

pub(crate) fn wrong_epoch(at: BlockAt) -> Answer {
    let text = format!("block {} is not held under epoch {}", at.block, at.epoch);
    Answer::refuse(Status::WrongEpoch, text)
}
