//! Requests to the controller.

use crate::error::Error;
use crate::pool::{ConnectionPool, ShardAddress};
use crate::socket::Wait;
use crate::transport::{ExchangeFailure, Sink};
use honeycomb_types::Time;
use honeycomb_types::limits::CONTROL_ANSWERS_TIME;
use honeycomb_wire::{Field, MayWait, Mutates, Op, RequestHeader, Status, flags};
use std::time::Duration;

/// The pause between two tries while the controller cannot be reached.
const PAUSE: Duration = Duration::from_millis(20);

/// How long a client that has not yet reached any node retries a port without a listener. A
/// controller that is just starting is found in this time; a wrong address is reported soon after,
/// and a name without an address at once. A controller that was reached before is restarting, and
/// the client waits for it up to the deadline.
const FIRST_CONTACT: Duration = Duration::from_secs(1);

/// How long a change is repeated: half of the time for which controllers keep results.
const AGAIN_MAX: Duration = Duration::from_secs(CONTROL_ANSWERS_TIME.as_secs() / 2);

/// Sends a request to the controller, and repeats it until the deadline while the controller is
/// unreachable: it may be restarting. A change takes effect once, however often it is sent. If no
/// reply arrived at all, the error says that it may have taken effect.
pub(crate) fn ask<Q: Field, R: Field>(
    pool: &ConnectionPool,
    controller: &ShardAddress,
    op: Op,
    body: &Q,
    deadline: Time,
) -> Result<R, Error> {
    let clock = pool.clock();
    let began = clock.now();
    let stranger_until = began + FIRST_CONTACT;
    pool.enter();
    let body = body.encode();
    // The controller recognises a repeated change by its number, even after a restart.
    let change = op.mutates() == Mutates::Once;
    let deadline = if change { deadline.min(began + AGAIN_MAX) } else { deadline };
    let mut header = RequestHeader::new(op);
    if change {
        header.request = pool.number_of_change();
    }
    let (mut effect, mut refusal) = (false, None);
    loop {
        match try_once(pool, controller, header, &body, deadline) {
            Ok(args) => return Ok(R::decode(&args)?),
            Err(ExchangeFailure::Refused(e)) if e.status != Status::Busy => return Err(e),
            Err(ExchangeFailure::Nobody { known, why })
                if !pool.has_connected() && (!known || clock.now() + PAUSE >= stranger_until) =>
            {
                return Err(unavailable(op, &controller.0, &why, false));
            }
            Err(failure) => {
                let busy = op.may_wait() == MayWait::Memory
                    && matches!(failure, ExchangeFailure::Refused(_));
                let (sent, why) = match failure {
                    ExchangeFailure::Nobody { why, .. } => (false, why),
                    ExchangeFailure::Lost { sent, why } => (sent, why),
                    ExchangeFailure::Interrupted => {
                        (true, "a signal interrupted the wait".to_owned())
                    }
                    ExchangeFailure::Late { sent } => (sent, "no reply arrived in time".to_owned()),
                    ExchangeFailure::Gone { sent, reason } => (sent, reason.message),
                    ExchangeFailure::Refused(e) => {
                        refusal = Some(e.message.clone());
                        (false, e.message)
                    }
                };
                if sent && change {
                    effect = true;
                    header.flags |= flags::RETRY;
                }
                if clock.now() + PAUSE >= deadline && busy {
                    let text = format!("{} did not finish in time (last: {why})", op.name());
                    return Err(Error::new(Status::DeadlineExceeded, text));
                }
                if clock.now() + PAUSE >= deadline {
                    let why = with_refusal(&why, refusal.as_deref());
                    return Err(unavailable(op, &controller.0, &why, effect));
                }
                clock.sleep_until(clock.now() + PAUSE);
            }
        }
    }
}

/// The reason in the error of a request whose last try got no reply: an earlier refusal explains more.
fn with_refusal(why: &str, refusal: Option<&str>) -> String {
    match refusal {
        Some(text) if text != why => format!("{why}; before, it was refused: {text}"),
        _ => why.to_owned(),
    }
}

fn unavailable(op: Op, controller: &str, why: &str, effect: bool) -> Error {
    let effect = if effect { "; it may have taken effect" } else { "" };
    let text =
        format!("{} could not reach the controller at {controller}: {why}{effect}", op.name());
    Error::new(Status::Unavailable, text)
}

fn try_once(
    pool: &ConnectionPool,
    controller: &ShardAddress,
    header: RequestHeader,
    body: &[u8],
    deadline: Time,
) -> Result<Vec<u8>, ExchangeFailure> {
    // The controller itself is the only source of this information, so no idle check is needed.
    let mut wait = Wait { deadline, idle: &mut || Ok(()), interruptible: false };
    let mut transport = pool.take(controller, &mut wait)?;
    let mut args = Vec::new();
    let reply = match transport.exchange(header, body, &[], &mut wait, &mut args, Sink::None) {
        Ok(reply) => reply,
        Err(refused @ ExchangeFailure::Refused(_)) => return Err(refused),
        Err(failure) => {
            pool.forget(&controller.0);
            return Err(failure);
        }
    };
    pool.give(controller, transport);
    match reply.status {
        Status::Ok => Ok(args),
        status => Err(ExchangeFailure::Refused(Error::refused(status, &args))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A creation that waited for a suspected server was refused until shortly before its deadline, and the
    /// reply to its last try came too late, on a busy machine: the error did not name the server any more.
    #[test]
    fn reason_of_the_last_refusal_stays_when_the_last_try_gets_no_reply() {
        let (late, refused) = ("no reply arrived in time", "memory server s:1 is suspected");
        let why = with_refusal(late, Some(refused));
        assert!(why.starts_with(late) && why.ends_with(refused), "{why}");
        assert_eq!(with_refusal(refused, Some(refused)), refused, "once is enough");
        assert_eq!(with_refusal(late, None), late);
    }
}
