//! A volume with the timing of a slower disk, so that benchmarks see the same disk everywhere.

use crate::{Clock, Volume};
use honeycomb_types::Time;
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

/// The speed of a simulated disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskShape {
    /// Bytes per second, for all reads and writes together; more than 0.
    pub bytes_per_s: u64,
    /// Extra time of each request. The extra times of several requests overlap.
    pub request: Duration,
}

/// A volume on which no request ends earlier than on a disk of this shape.
///
/// The bytes of requests are transferred one after the other, in order of arrival; a request waits
/// on its caller's thread. This time includes the volume's own time; if the volume is slower than
/// the shape, its own time applies.
#[derive(Debug)]
pub struct Shaped<V> {
    volume: V,
    shape: DiskShape,
    clock: Clock,
    /// The time at which the bytes of all requests so far have been transferred.
    passed: Mutex<Time>,
}

impl<V: Volume> Shaped<V> {
    /// Limits a volume to a shape.
    pub fn new(volume: V, shape: DiskShape, clock: Clock) -> Shaped<V> {
        Shaped { volume, shape, clock, passed: Mutex::new(Time::ZERO) }
    }

    /// Queues this many bytes; returns the earliest end of the request.
    fn enter(&self, bytes: usize) -> Time {
        let nanos = bytes as u128 * 1_000_000_000 / u128::from(self.shape.bytes_per_s.max(1));
        let takes = Duration::from_nanos(nanos.min(u128::from(u64::MAX)) as u64);
        let mut passed = self.passed.lock().unwrap_or_else(|e| e.into_inner());
        *passed = self.clock.now().max(*passed) + takes;
        *passed + self.shape.request
    }

    fn within<T>(&self, bytes: usize, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let ends = self.enter(bytes);
        let done = work();
        self.clock.sleep_until(ends);
        done
    }
}

impl<V: Volume> Volume for Shaped<V> {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.within(into.len(), || self.volume.read(at, into))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.within(bytes.len(), || self.volume.write(at, bytes))
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
    use crate::{MemoryVolume, VOLUME_ALIGN};

    fn shaped(bytes_per_s: u64, request: Duration) -> (Shaped<MemoryVolume>, Clock) {
        let clock = Clock::start();
        (Shaped::new(MemoryVolume::new(), DiskShape { bytes_per_s, request }, clock), clock)
    }

    /// Two pages at an address that is a multiple of one.
    fn paged() -> (Vec<u8>, usize) {
        let bytes = vec![5; 3 * VOLUME_ALIGN];
        let from = bytes.as_ptr().align_offset(VOLUME_ALIGN);
        (bytes, from)
    }

    #[test]
    fn requests_take_their_bytes_one_after_the_other_and_their_delay_together() {
        // 8 KiB at 1 MiB/s are 7.8 ms.
        let (disk, clock) = shaped(1 << 20, Duration::from_millis(50));
        std::thread::scope(|scope| {
            for turn in 0..8 {
                let disk = &disk;
                scope.spawn(move || {
                    let (bytes, from) = paged();
                    let bytes = &bytes[from..from + 2 * VOLUME_ALIGN];
                    disk.write(turn * 2 * VOLUME_ALIGN as u64, bytes).unwrap();
                });
            }
        });
        let took = clock.now().since(Time::ZERO);
        assert!(took >= Duration::from_micros(8 * 7812 + 50_000), "{took:?}");
        let after = *disk.passed.lock().unwrap();
        // The extra times overlapped: they do not delay the bytes.
        assert!(clock.now().since(after) >= Duration::from_millis(50), "{after:?}");
    }

    #[test]
    fn what_it_keeps_and_what_fails_is_the_volumes() {
        let (disk, clock) = shaped(1 << 30, Duration::from_millis(3));
        let (mut bytes, from) = paged();
        let page = from..from + VOLUME_ALIGN;
        disk.write(4096, &bytes[page.clone()]).unwrap();
        bytes[page.clone()].fill(0);
        disk.read(4096, &mut bytes[page.clone()]).unwrap();
        assert!(bytes[page.clone()].iter().all(|b| *b == 5));
        disk.discard(0..8192).unwrap();
        assert_eq!(disk.volume.taken(), 0);
        disk.volume.fail_reads(1);
        let before = clock.now();
        assert!(disk.read(4096, &mut bytes[page]).is_err());
        assert!(
            clock.now().since(before) >= Duration::from_millis(3),
            "a failure takes its time too"
        );
        assert!(disk.is_direct());
    }
}
