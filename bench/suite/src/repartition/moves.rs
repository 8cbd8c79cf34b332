//! Times of the splits of a store's blocks.
//!
//! They are measured from outside, independently of the servers' implementation. A split begins when the
//! controller has allocated a block that the store's map does not contain, and ends when the map contains it.
//! Both are polled every millisecond, which is the maximum error.

use super::super::cluster::Cluster;
use honeycomb::failure::CommandResult;
use honeycomb_client::Client;
use honeycomb_env::Clock;
use honeycomb_types::{JobId, Time};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Interval of polls.
const EVERY: Duration = Duration::from_millis(1);

/// One split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Time when a block was allocated for it.
    pub begun: Time,
    /// Time when the map contained that block.
    pub ended: Time,
}

/// Splits of one store, which must be the only structure of its cluster.
#[derive(Default)]
pub struct Splits(Mutex<State>);

#[derive(Default)]
struct State {
    /// Times of allocations of blocks that the map does not contain yet.
    under_way: VecDeque<Time>,
    done: Vec<Split>,
    named: usize,
}

impl Splits {
    /// Whether a split is running.
    pub fn under_way(&self) -> bool {
        !self.state().under_way.is_empty()
    }

    /// The finished splits.
    pub fn done(&self) -> Vec<Split> {
        self.state().done.clone()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Polls until `stop` is set.
    pub fn watch(
        &self,
        cluster: &Cluster,
        client: &Client,
        job: JobId,
        path: &str,
        clock: Clock,
        stop: &AtomicBool,
    ) -> CommandResult {
        let admin = cluster.client(cluster.token());
        while !stop.load(Relaxed) {
            let now = clock.now();
            let status = admin.status()?;
            let taken = (status.blocks - status.free).saturating_sub(status.quarantined) as usize;
            let named = client.open_kv(job, path)?.structure().blocks();
            self.state().look(now, clock.now(), taken, named);
            clock.sleep_until(now + EVERY);
        }
        Ok(())
    }
}

impl State {
    /// Records one poll: the number of allocated blocks, and slightly later the number in the map.
    fn look(&mut self, before: Time, after: Time, taken: usize, named: usize) {
        if self.named == 0 {
            self.named = named;
            return;
        }
        while self.named < named {
            self.named += 1;
            let begun = self.under_way.pop_front().unwrap_or(before);
            self.done.push(Split { begun, ended: after });
        }
        self.named = named;
        // Fewer blocks than before without a new one in the map: a split was cancelled.
        let open = taken.saturating_sub(named);
        self.under_way.truncate(open);
        self.under_way.resize(open, before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    fn look(state: &mut State, ms: u64, taken: usize, named: usize) {
        state.look(at(ms), at(ms), taken, named);
    }

    #[test]
    fn a_split_is_from_the_taking_of_a_block_until_the_map_names_it() {
        let mut state = State::default();
        for (ms, taken, named) in
            [(0, 1, 1), (5, 1, 1), (10, 2, 1), (40, 2, 1), (50, 2, 2), (60, 2, 2)]
        {
            look(&mut state, ms, taken, named);
            assert_eq!(state.under_way.len(), usize::from((10..50).contains(&ms)), "at {ms}");
        }
        assert_eq!(state.done, [Split { begun: at(10), ended: at(50) }]);
        // Two splits at a time; the next one begins while one is running.
        for (ms, taken, named) in [(70, 4, 2), (80, 4, 3), (85, 5, 3), (90, 5, 5)] {
            look(&mut state, ms, taken, named);
        }
        let told: Vec<(Time, Time)> = state.done[1..].iter().map(|s| (s.begun, s.ended)).collect();
        assert_eq!(told, [(at(70), at(80)), (at(70), at(90)), (at(85), at(90))]);
        assert!(state.under_way.is_empty());
    }

    #[test]
    fn one_that_was_over_between_two_looks_counts() {
        let mut state = State::default();
        look(&mut state, 0, 1, 1);
        look(&mut state, 1, 2, 2);
        assert_eq!(state.done, [Split { begun: at(1), ended: at(1) }]);
    }

    #[test]
    fn one_that_was_cancelled_does_not() {
        let mut state = State::default();
        for (ms, taken) in [(0, 1), (1, 2), (2, 1), (3, 1)] {
            look(&mut state, ms, taken, 1);
        }
        assert!(state.under_way.is_empty() && state.done.is_empty());
        look(&mut state, 4, 2, 1);
        look(&mut state, 9, 2, 2);
        assert_eq!(state.done, [Split { begun: at(4), ended: at(9) }]);
    }
}
