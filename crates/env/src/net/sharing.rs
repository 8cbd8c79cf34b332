//! Whether several jobs are served by a loop, and how long their turns are then.

use crate::budget::{SHARED_TURN, Share, TURN};
use honeycomb_types::Bug;
use std::sync::Arc;

/// A loop counts as shared for so many rounds after it has served another job than before: some
/// milliseconds of turns, in which a client that sends one request after the other sends its next one.
const SHARED_FOR: u64 = 128;

/// The job that was served last, and the round until which others are expected.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    last: Option<Arc<Share>>,
    until: u64,
}

impl Sharing {
    /// A request of the job with this share was served.
    pub fn served(&mut self, round: u64, share: &Arc<Share>) {
        match &self.last {
            Some(last) if Arc::ptr_eq(last, share) => return,
            Some(_) => self.until = round + SHARED_FOR,
            None => {}
        }
        self.last = Some(share.clone());
    }

    /// The work that a job may be served in this round.
    pub fn turn(&self, round: u64) -> usize {
        match round < self.until && !Bug::SharedTurnsStayLong.active() {
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
        let mut sharing = Sharing::default();
        (0..500).for_each(|round| sharing.served(round, &a));
        assert_eq!(sharing.turn(500), TURN, "one job has long turns");
        sharing.served(500, &b);
        (500..520).for_each(|round| sharing.served(round, &b));
        assert_eq!(sharing.turn(500), SHARED_TURN);
        assert_eq!(sharing.turn(500 + SHARED_FOR - 1), SHARED_TURN);
        assert_eq!(sharing.turn(500 + SHARED_FOR), TURN);
        sharing.served(900, &a);
        assert_eq!(sharing.turn(901), SHARED_TURN);
    }
}
