//! The answers of a shard to requests that it does not run.

use honeycomb_structures::{Answer, LaneVerdict};
use honeycomb_types::BlockAt;
use honeycomb_types::limits::RETRY_WINDOW_MS;
use honeycomb_wire::Status;
use honeycomb_wire::busy::UNDER_WAY;

/// Retry delay of a request whose earlier attempt is still in progress, in microseconds.
const IN_PROGRESS_RETRY_US: u64 = 500;

pub(crate) fn revoked() -> Answer {
    let text = "the permissions of the prefix changed after this grant was issued";
    Answer::refuse(Status::GrantRevoked, text)
}

pub(crate) fn expired() -> Answer {
    Answer::refuse(Status::GrantExpired, "the grant has expired")
}

pub(crate) fn refusal_of(verdict: LaneVerdict) -> Result<(), Answer> {
    Err(match verdict {
        LaneVerdict::Run => return Ok(()),
        LaneVerdict::Replay(answer) => answer,
        LaneVerdict::Resume(next) => {
            let text = format!("resume the lane at sequence {}", next.0);
            Answer { value: next.0, ..Answer::refuse(Status::Resume, text) }
        }
        LaneVerdict::InProgress => Answer {
            value: IN_PROGRESS_RETRY_US | UNDER_WAY,
            ..Answer::refuse(Status::Busy, "an earlier attempt of this request is in progress")
        },
        LaneVerdict::Waits => in_progress("the preceding mutation of the lane is in progress"),
        LaneVerdict::OutcomeUnknown => Answer::refuse(
            Status::OutcomeUnknown,
            format!("the result of this mutation was discarded after {} s", RETRY_WINDOW_MS / 1000),
        ),
        LaneVerdict::Busy => Answer {
            value: 10_000,
            ..Answer::refuse(Status::Busy, "too many results of the lane are not acknowledged")
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
