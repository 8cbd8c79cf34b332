//! Stalls of the controller: leases freeze while no request could be read.
//!
//! A stall moves no stamp and no timer. The end of a lease is computed on demand, from the stalls since its
//! last renewal.

use honeycomb_types::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// Number of stalls that are recorded one by one. Beyond that, neighbours are merged; a lease renewed between
/// two merged stalls gets a little more than its due, never less.
const REMEMBERED: usize = 1024;

/// The end of each stall, and the total length of all stalls up to and including it.
#[derive(Debug, Default)]
pub(crate) struct Stalls(VecDeque<(Time, Duration)>);

impl Stalls {
    /// A stall of this length ends now.
    pub(crate) fn add(&mut self, now: Time, length: Duration) {
        let (last, before) = self.0.back().copied().unwrap_or((Time::ZERO, Duration::ZERO));
        assert!(last <= now, "INV-27: a stall ends at {now}, before one that ended at {last}");
        self.0.push_back((now, before + length));
        if self.0.len() > REMEMBERED {
            // The later of two neighbours represents both; the last one has no later neighbour.
            let mut kept = self.0.len().is_multiple_of(2);
            self.0.retain(|_| {
                kept = !kept;
                kept
            });
        }
    }

    /// The total stall since this time.
    pub(crate) fn since(&self, time: Time) -> Duration {
        let Some((last, sum)) = self.0.back() else { return Duration::ZERO };
        if *last <= time {
            return Duration::ZERO;
        }
        let earlier = self.0.partition_point(|(end, _)| *end <= time);
        let before = earlier.checked_sub(1).map_or(Duration::ZERO, |at| self.0[at].1);
        // Of the first stall, only the part after this time counts.
        let (end, with_first) = self.0[earlier];
        *sum - with_first + (with_first - before).min(end.since(time))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<(Time, Duration)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_count_for_what_was_renewed_before_their_end_and_merging_takes_nothing_away() {
        let ms = Duration::from_millis;
        let mut stalls = Stalls::default();
        assert_eq!(stalls.since(Time::ZERO), Duration::ZERO);
        let mut each = Vec::new();
        for n in 1..=5000u64 {
            let (end, length) = (Time::from_millis(n * 1000), ms(50 + n % 400));
            stalls.add(end, length);
            each.push((end, length));
            for renewed in [0, n * 500 + 1, n * 1000 - 999, n * 1000 - 30, n * 1000] {
                let renewed = Time::from_millis(renewed);
                let due = each.iter().rev().take_while(|(end, _)| *end > renewed);
                let due: Duration =
                    due.map(|(end, length)| (*length).min(end.since(renewed))).sum();
                let got = stalls.since(renewed);
                assert!(got >= due && got <= due + ms(30_000), "{n}: {got:?} of {due:?}");
                assert!(n > REMEMBERED as u64 || got == due);
            }
        }
        assert!(stalls.0.len() <= REMEMBERED);
        assert_eq!(stalls.since(Time::from_millis(5_000_000)), Duration::ZERO);
    }
}
