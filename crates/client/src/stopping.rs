//! The end of a cluster. Its jobs end, prefixes with `flush_to` or `persist` are flushed, and the caller
//! waits as long as these flushes make progress. The controller does one step for each `StopCluster` request
//! and replies with its progress. Ending the process is the caller's part.

use crate::{Client, Error};
use honeycomb_types::limits::{FLUSH_LOOK_FIRST, FLUSH_LOOK_MAX};
use honeycomb_wire::messages::{StopClusterReply, StopClusterRequest};
use honeycomb_wire::{Op, Status};
use std::time::Duration;

/// How long a cluster that is being stopped waits for flushes that fail, unless the caller says otherwise.
pub const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// Flushes that do not fail may take this many times longer to write a block: a slow store is not a
/// dead one.
const WRITING_FACTOR: u32 = 4;

/// The progress of stopping a cluster.
pub type StopProgress = StopClusterReply;

/// How the wait for the end of a cluster ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// All jobs have ended, and no data waits to be written.
    Complete,
    /// No block was written for too long.
    Stalled,
    /// The caller has ended the wait.
    Interrupted,
}

/// When the last block was written.
struct StallWatch {
    left: u64,
    bytes: u64,
    quiet: Duration,
}

impl StallWatch {
    fn new() -> StallWatch {
        StallWatch { left: u64::MAX, bytes: 0, quiet: Duration::ZERO }
    }

    /// Whether nothing has been written for too long, after another `pause`.
    fn is_over(&mut self, progress: &StopProgress, pause: Duration, patience: Duration) -> bool {
        let left =
            progress.jobs + progress.flushes + progress.parts.saturating_sub(progress.parts_done);
        let written = left < self.left || progress.bytes > self.bytes;
        self.quiet = if written { Duration::ZERO } else { self.quiet + pause };
        (self.left, self.bytes) = (left.min(self.left), progress.bytes);
        let patience = if progress.failing > 0 { patience } else { patience * WRITING_FACTOR };
        !written && self.quiet >= patience
    }
}

impl Client {
    /// Ends all jobs of the cluster and waits until all data with `flush_to` or `persist` is
    /// flushed. No job can be registered from then on. Needs the cluster's token.
    ///
    /// The wait goes on while blocks are written. If flushes fail and none is written for
    /// `patience`, the result is `Stalled`: the memory stays, the flushes go on, and the call may
    /// be repeated. `discard` flushes nothing and gives up flushes in progress. `look` gets the
    /// progress, and ends the wait by returning `false`.
    pub fn stop_cluster(
        &self,
        discard: bool,
        patience: Duration,
        look: &mut dyn FnMut(&StopProgress) -> bool,
    ) -> Result<(Stopped, StopProgress), Error> {
        let clock = self.clock();
        let mut waits = StallWatch::new();
        let (mut pause, mut paused): (Duration, Duration) = (FLUSH_LOOK_FIRST, Duration::ZERO);
        loop {
            let progress: StopProgress =
                self.ask(Op::StopCluster, &StopClusterRequest { discard })?;
            let flushes = if discard { 0 } else { progress.flushes };
            if progress.jobs == 0 && flushes == 0 {
                return Ok((Stopped::Complete, progress));
            }
            if waits.is_over(&progress, paused, patience) {
                return Ok((Stopped::Stalled, progress));
            }
            if !look(&progress) {
                return Ok((Stopped::Interrupted, progress));
            }
            let before = clock.now();
            clock.sleep_until(before + pause);
            paused = clock.now().since(before);
            pause = (pause * 2).min(FLUSH_LOOK_MAX);
        }
    }

    /// As `stop_cluster`, but an incomplete end is an error that names the directories:
    /// `NotFlushed` while their data is still in memory, `DataLost` if a server was lost before it
    /// had written its part.
    pub fn stop_cluster_whole(
        &self,
        discard: bool,
        patience: Duration,
        look: &mut dyn FnMut(&StopProgress) -> bool,
    ) -> Result<StopProgress, Error> {
        let (stopped, progress) = self.stop_cluster(discard, patience, look)?;
        let places = progress.unflushed.join("; ");
        match stopped {
            _ if progress.lost > 0 && progress.flushes == 0 => {
                let text = format!(
                    "{} that {} to be flushed was lost with a memory server: {places}",
                    counted(progress.lost, "prefix", "prefixes"),
                    if progress.lost == 1 { "was" } else { "were" },
                );
                Err(Error::new(Status::DataLost, text))
            }
            Stopped::Complete => Ok(progress),
            Stopped::Stalled | Stopped::Interrupted => {
                let stalled = match stopped {
                    Stopped::Stalled => {
                        format!(" and made no progress for {} s", patience.as_secs_f64())
                    }
                    _ => String::new(),
                };
                let text = format!(
                    "the cluster is not stopped: {} not complete{stalled} ({places}). Its memory \
                     is kept and the flushes go on; stop it again when the store answers, or \
                     discard the unwritten data",
                    counted(progress.flushes, "flush is", "flushes are"),
                );
                Err(Error::new(Status::NotFlushed, text))
            }
        }
    }
}

fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(flushes: u64, failing: u64, parts: u64, parts_done: u64) -> StopProgress {
        StopProgress { flushes, failing, parts, parts_done, ..StopProgress::default() }
    }

    #[test]
    fn a_wait_lasts_while_blocks_are_written_and_ends_when_flushes_fail_for_too_long() {
        let (second, patience) = (Duration::from_secs(1), Duration::from_secs(3));
        let mut waits = StallWatch::new();
        // 20 s of progress, a block each 2 s.
        for step in 0..20 {
            assert!(!waits.is_over(&progress(1, 0, 10, step / 2), second, patience), "{step}");
        }
        // The time of a failure counts from the last block that was written.
        assert!(!waits.is_over(&progress(1, 1, 10, 9), second, patience));
        assert!(waits.is_over(&progress(1, 1, 10, 9), second, patience));
        // A slow store that does not fail gets more time.
        let mut waits = StallWatch::new();
        for step in 0..12 {
            assert!(!waits.is_over(&progress(1, 0, 10, 0), second, patience), "{step}");
        }
        assert!(waits.is_over(&progress(1, 0, 10, 0), second, patience));
        // Without patience the wait ends at the first failure.
        let mut waits = StallWatch::new();
        assert!(!waits.is_over(&progress(1, 1, 10, 0), Duration::ZERO, Duration::ZERO));
        assert!(waits.is_over(&progress(1, 1, 10, 0), Duration::ZERO, Duration::ZERO));
    }
}
