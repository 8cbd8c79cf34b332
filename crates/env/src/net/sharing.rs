//! Whether several jobs are served by a loop, and how long their turns are then.

use crate::budget::{SHARED_TURN, Share, TURN};
use honeycomb_types::{Bug, Time};
use std::sync::Arc;
use std::time::Duration;

/// A loop counts as shared for so long after it has served another job than before. A client that sends
/// one request after the other has its next one there by then.
const SHARED_FOR: Duration = Duration::from_millis(10);

/// The job that was served last, and until when others are expected.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    last: Option<Arc<Share>>,
    until: Time,
}

impl Sharing {
    /// A request of a job with this share was served.
    pub fn served(&mut self, now: Time, share: &Arc<Share>) {
        match &self.last {
            Some(last) if Arc::ptr_eq(last, share) => return,
            Some(_) => self.until = now + SHARED_FOR,
            None => {}
        }
        self.last = Some(share.clone());
    }

    /// What a job may be served in a round.
    pub fn turn(&self, now: Time) -> usize {
        match now < self.until && !Bug::SharedTurnsStayLong.active() {
            true => SHARED_TURN,
            false => TURN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_short_while_another_job_was_served_lately() {
        let (a, b) = (Arc::new(Share::default()), Arc::new(Share::default()));
        let (mut sharing, ms) = (Sharing::default(), Time::from_millis);
        (0..50).for_each(|at| sharing.served(ms(at), &a));
        assert_eq!(sharing.turn(ms(50)), TURN, "one job has long turns");
        sharing.served(ms(50), &b);
        assert_eq!((sharing.turn(ms(50)), sharing.turn(ms(59))), (SHARED_TURN, SHARED_TURN));
        (51..58).for_each(|at| sharing.served(ms(at), &b));
        assert_eq!(sharing.turn(ms(60)), TURN);
        sharing.served(ms(70), &a);
        assert_eq!(sharing.turn(ms(79)), SHARED_TURN);
    }
}
