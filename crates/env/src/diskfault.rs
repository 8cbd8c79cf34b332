//! Deliberate faults of a disk, for tests with real processes.
//!
//! Builds with debug assertions read the environment variable `HONEYCOMB_DISK_FAULTS`: names and
//! numbers, separated by commas. `seed` determines the faults; the other numbers are rates per
//! million requests.
//!
//! ```text
//! HONEYCOMB_DISK_FAULTS=seed=7,once=5000,write=1000,slow=2000,lost=20
//!
//! once     a read fails or gives a wrong byte, and gives the right ones when its thread repeats it
//! write    a write fails
//! slow     a request takes 5 to 50 ms more
//! lost     a page is damaged as it is written: every read gives a wrong byte until it is written again
//! ```
//!
//! Other builds have no faults: `faulty` returns the volume unchanged. An invalid value ends the
//! process, because a test without faults would pass. Each read of a damaged page prints a line on standard
//! error. A loss without such a line is a defect.

/// The volume, with the faults that the environment requests.
#[cfg(not(debug_assertions))]
pub fn faulty(volume: std::sync::Arc<dyn crate::Volume>) -> std::sync::Arc<dyn crate::Volume> {
    volume
}

#[cfg(debug_assertions)]
pub use armed::faulty;

#[cfg(debug_assertions)]
mod armed {
    use crate::{Entropy, VOLUME_ALIGN, Volume};
    use std::collections::{BTreeSet, HashSet};
    use std::io;
    use std::ops::Range;
    use std::sync::{Arc, Mutex, MutexGuard};
    use std::thread::ThreadId;
    use std::time::Duration;

    const NAME: &str = "HONEYCOMB_DISK_FAULTS";

    /// Faults per million requests.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Rates {
        seed: u64,
        once: u64,
        write: u64,
        slow: u64,
        lost: u64,
    }

    struct FaultState {
        rng: Entropy,
        /// Reads that failed once: thread, position and length. Another thread that reads the same bytes
        /// meanwhile repeats nothing.
        again: HashSet<(ThreadId, u64, usize)>,
        /// First bytes of pages that give wrong bytes.
        damaged: BTreeSet<u64>,
    }

    struct Faulty {
        volume: Arc<dyn Volume>,
        rates: Rates,
        state: Mutex<FaultState>,
    }

    /// As in other builds, but with faults.
    pub fn faulty(volume: Arc<dyn Volume>) -> Arc<dyn Volume> {
        let Ok(text) = std::env::var(NAME) else { return volume };
        let rates = parse(&text).unwrap_or_else(|why| {
            eprintln!("honeycomb: {NAME}={text}: {why}");
            std::process::abort()
        });
        eprintln!("honeycomb: {NAME}={text}: the disks of this process fail on purpose");
        Arc::new(Faulty::new(volume, rates))
    }

    fn parse(text: &str) -> Result<Rates, String> {
        let mut rates = Rates::default();
        for part in text.split(',') {
            let (name, number) =
                part.split_once('=').ok_or_else(|| format!("`{part}` has no number"))?;
            let number = number.parse().map_err(|_| format!("`{number}` is not a number"))?;
            *match name {
                "seed" => &mut rates.seed,
                "once" => &mut rates.once,
                "write" => &mut rates.write,
                "slow" => &mut rates.slow,
                "lost" => &mut rates.lost,
                _ => return Err(format!("there is no fault `{name}`")),
            } = number;
        }
        Ok(rates)
    }

    fn failed(what: &str, at: u64) -> io::Error {
        io::Error::other(format!("{NAME}: the {what} at {at} fails on purpose"))
    }

    impl Faulty {
        fn new(volume: Arc<dyn Volume>, rates: Rates) -> Faulty {
            let (again, damaged) = Default::default();
            let state = FaultState { rng: Entropy::seeded(rates.seed), again, damaged };
            Faulty { volume, rates, state: Mutex::new(state) }
        }

        fn state(&self) -> MutexGuard<'_, FaultState> {
            self.state.lock().unwrap_or_else(|e| e.into_inner())
        }

        #[allow(clippy::disallowed_methods)] // A slow disk makes its thread wait.
        fn maybe_slow(&self) {
            let mut state = self.state();
            let slow = state.hits(self.rates.slow).then(|| 5 + state.rng.below(46));
            drop(state);
            if let Some(ms) = slow {
                std::thread::sleep(Duration::from_millis(ms));
            }
        }
    }

    impl FaultState {
        fn hits(&mut self, rate: u64) -> bool {
            rate > 0 && self.rng.below(1_000_000) < rate
        }
    }

    impl Volume for Faulty {
        fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
            self.maybe_slow();
            self.volume.read(at, into)?;
            let mut state = self.state();
            if let Some(page) = state.damaged.range(at..at + into.len() as u64).next() {
                eprintln!("honeycomb: {NAME}: damaged page {page} was read");
                into[(page - at) as usize] ^= 0x80;
                return Ok(());
            }
            let read = (std::thread::current().id(), at, into.len());
            if state.again.remove(&read) || !state.hits(self.rates.once) {
                return Ok(());
            }
            state.again.insert(read);
            if state.rng.below(2) == 0 {
                return Err(failed("read", at));
            }
            let byte = state.rng.below(into.len() as u64) as usize;
            into[byte] ^= 1;
            Ok(())
        }

        fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
            self.maybe_slow();
            let mut state = self.state();
            let fails = state.hits(self.rates.write);
            let lost = state.hits(self.rates.lost);
            let pages = (bytes.len() / VOLUME_ALIGN) as u64;
            let page = at + state.rng.below(pages.max(1)) * VOLUME_ALIGN as u64;
            let written = at..at + bytes.len() as u64;
            if !fails {
                state.damaged.retain(|page| !written.contains(page));
            }
            if lost && !fails {
                state.damaged.insert(page);
            }
            drop(state);
            if fails {
                return Err(failed("write", at));
            }
            self.volume.write(at, bytes)
        }

        fn discard(&self, range: Range<u64>) -> io::Result<()> {
            self.volume.discard(range)
        }

        fn is_direct(&self) -> bool {
            self.volume.is_direct()
        }

        fn width(&self) -> usize {
            self.volume.width()
        }
    }

    #[cfg(test)]
    #[allow(clippy::unwrap_used)]
    mod tests {
        use super::*;
        use crate::MemoryVolume;

        /// Memory at an offset that is valid for a volume.
        #[repr(align(4096))]
        struct Page([u8; VOLUME_ALIGN]);

        #[test]
        fn faults_of_each_kind_come_and_only_damage_stays() {
            let text = "seed=3,once=200000,write=200000,lost=100000";
            let volume = Faulty::new(Arc::new(MemoryVolume::new()), parse(text).unwrap());
            let (mut failed, mut twice, mut refused) = (0, 0, 0);
            for n in 0..300u64 {
                let at = n * VOLUME_ALIGN as u64;
                let bytes = Page([n as u8; VOLUME_ALIGN]);
                if volume.write(at, &bytes.0).is_err() {
                    refused += 1;
                    continue;
                }
                let mut read = Page([0; VOLUME_ALIGN]);
                let mut wrong =
                    || volume.read(at, &mut read.0).is_err() || read.0 != [n as u8; VOLUME_ALIGN];
                if wrong() {
                    failed += 1;
                    twice += u32::from(wrong());
                }
            }
            assert!(failed > 20 && twice > 5 && twice < failed && refused > 20);
            assert_eq!(twice as usize, volume.state().damaged.len());
        }

        /// A thread that read the same bytes in between was taken for the repetition, so that the repetition
        /// could fail as well, and the soak lost a structure on a sound disk.
        #[test]
        fn read_that_failed_once_succeeds_when_its_thread_repeats_it() {
            let rates = parse("seed=3,once=1000000").unwrap();
            let volume = Faulty::new(Arc::new(MemoryVolume::new()), rates);
            let written = Page([7; VOLUME_ALIGN]);
            volume.write(0, &written.0).unwrap();
            let wrong = || {
                let mut read = Page([0; VOLUME_ALIGN]);
                volume.read(0, &mut read.0).is_err() || read.0 != written.0
            };
            assert!(wrong());
            std::thread::scope(|scope| assert!(scope.spawn(wrong).join().unwrap()));
            assert!(!wrong());
        }

        #[test]
        fn what_says_nothing_is_refused() {
            for text in ["", "once", "once=x", "never=1"] {
                assert!(parse(text).is_err(), "{text}");
            }
        }
    }
}
