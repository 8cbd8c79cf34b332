//! Dies at a chosen request, for tests of the state after a crash.
//!
//! Builds with debug assertions read the environment variable `HONEYCOMB_DIE_AT`: one or more items
//! of the form `point:operation:count`, separated by commas. An item is active after those before
//! it were reached. At the last one the process aborts, as abruptly as by SIGKILL: it sends, writes
//! and drops nothing more. Examples:
//!
//! ```text
//! HONEYCOMB_DIE_AT=sending:CommitMove:1                        the source, before it requests the commit
//! HONEYCOMB_DIE_AT=handled:BeginImport:1,answered:MoveDone:1   the target, in its first merge
//! ```
//!
//! Other builds have no failpoints: `reached` is a constant there. An invalid value also ends the
//! process, because a test without a kill would pass.

use honeycomb_wire::Op;

/// A point in the life of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(debug_assertions), allow(dead_code))]
pub enum Point {
    /// It is about to be sent; requests queued before it are not sent either.
    Sending,
    /// It has been sent to the peer, with all requests queued before it.
    Sent,
    /// Its reply has arrived and has not been used yet.
    Heard,
    /// It has arrived completely (a large payload excepted) and has not been processed yet.
    Handling,
    /// The thread that read it has handled it; no part of a reply has been sent.
    Handled,
    /// The reply is known and its effects are complete; no part of it has been sent.
    Answering,
    /// The reply has been sent to the peer.
    Answered,
}

#[cfg(debug_assertions)]
impl Point {
    /// Whether it is in the life of a request that this process sends.
    fn own(self) -> bool {
        matches!(self, Point::Sending | Point::Sent | Point::Heard)
    }
}

/// Counts a request, one that this process sends (`own`) or receives. If it is the last awaited
/// one, returns the point at which `die` must be called.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn reached(_own: bool, _op: Op) -> Option<Point> {
    None
}

#[cfg(debug_assertions)]
pub use armed::reached;

/// Ends the process as by SIGKILL, after one line on standard error.
#[cold]
pub fn die(point: Point, op: Op) -> ! {
    eprintln!(
        "honeycomb: HONEYCOMB_DIE_AT: process {} ends here, {point:?} {}",
        std::process::id(),
        op.name()
    );
    std::process::abort()
}

#[cfg(debug_assertions)]
mod armed {
    use super::{Point, die};
    use honeycomb_wire::Op;
    use std::collections::VecDeque;
    use std::sync::{LazyLock, Mutex};

    #[derive(Debug, PartialEq, Eq)]
    struct PlannedFault {
        point: Point,
        op: Op,
        left: u32,
    }

    static STEPS: LazyLock<Option<Mutex<VecDeque<PlannedFault>>>> = LazyLock::new(|| {
        let text = std::env::var("HONEYCOMB_DIE_AT").ok()?;
        let steps = parse(&text).unwrap_or_else(|why| {
            eprintln!("honeycomb: HONEYCOMB_DIE_AT={text}: {why}");
            std::process::abort()
        });
        eprintln!("honeycomb: HONEYCOMB_DIE_AT={text}: this process will die on purpose");
        Some(Mutex::new(steps))
    });

    /// As in other builds, but with failpoints.
    pub fn reached(own: bool, op: Op) -> Option<Point> {
        let steps = STEPS.as_ref()?;
        let point = count(&mut steps.lock().expect("nobody panics with it"), own, op)?;
        match point {
            Point::Sending | Point::Handling => die(point, op),
            later => Some(later),
        }
    }

    fn count(steps: &mut VecDeque<PlannedFault>, own: bool, op: Op) -> Option<Point> {
        let step = steps.front_mut().filter(|step| step.op == op && step.point.own() == own)?;
        step.left -= 1;
        if step.left > 0 {
            return None;
        }
        let PlannedFault { point, .. } =
            steps.pop_front().expect("the caller has looked at the first step");
        steps.is_empty().then_some(point)
    }

    fn parse(text: &str) -> Result<VecDeque<PlannedFault>, String> {
        text.split(',').map(step).collect()
    }

    fn step(text: &str) -> Result<PlannedFault, String> {
        let [point, op, left] = text.split(':').collect::<Vec<_>>()[..] else {
            return Err(format!("`{text}` is not point:operation:count"));
        };
        let point = match point {
            "sending" => Point::Sending,
            "sent" => Point::Sent,
            "heard" => Point::Heard,
            "handling" => Point::Handling,
            "handled" => Point::Handled,
            "answering" => Point::Answering,
            "answered" => Point::Answered,
            _ => return Err(format!("there is no point `{point}`")),
        };
        let op = Op::ALL.into_iter().find(|known| known.name() == op);
        let op = op.ok_or_else(|| format!("no operation in `{text}`"))?;
        let left = left.parse().ok().filter(|&left| left > 0);
        Ok(PlannedFault {
            point,
            op,
            left: left.ok_or_else(|| format!("no count from 1 in `{text}`"))?,
        })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn steps_are_reached_in_turn() {
            let mut steps = parse("handled:BeginImport:1,sent:MoveDone:2").unwrap();
            assert_eq!(count(&mut steps, true, Op::MoveDone), None, "not its turn");
            assert_eq!(count(&mut steps, true, Op::BeginImport), None, "not on this side");
            assert_eq!(count(&mut steps, false, Op::BeginImport), None, "not the last step");
            assert_eq!(count(&mut steps, true, Op::MoveDone), None);
            assert_eq!(count(&mut steps, true, Op::MoveDone), Some(Point::Sent));
            assert_eq!(count(&mut steps, true, Op::MoveDone), None, "once");
        }

        #[test]
        fn what_says_nothing_is_refused() {
            for text in ["", "sent", "sent:MoveDone", "sent:MoveDone:0", "sent:Moved:1", "x:Ping:1"]
            {
                assert!(parse(text).is_err(), "{text}");
            }
        }
    }
}
