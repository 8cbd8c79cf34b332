//! The cost of the first touch of new memory on this host.

use honeycomb_env::Clock;
use memmap2::{Advice, MmapMut};
use std::io;
use std::time::Duration;

/// Smallest page of all supported machines.
const PAGE: usize = 4096;
/// Bytes that are touched for one figure.
const SAMPLE: usize = 64 << 20;
const MIB: usize = 1 << 20;

/// A new mapping of private memory, as the blocks of a server have it.
pub struct Untouched {
    pages: MmapMut,
    /// Bytes of it that have been touched.
    touched: usize,
}

impl Untouched {
    /// Maps memory in huge pages, if the system has them.
    pub fn map(bytes: usize) -> io::Result<Untouched> {
        Untouched::advised(bytes, Advice::HugePage)
    }

    fn advised(bytes: usize, advice: Advice) -> io::Result<Untouched> {
        let pages = MmapMut::map_anon(bytes)?;
        // Only a hint: a kernel without huge pages refuses it.
        let _ = pages.advise(advice);
        Ok(Untouched { pages, touched: 0 })
    }

    /// Touches the next bytes, each page once.
    pub fn touch(&mut self, bytes: usize) {
        let end = self.touched + bytes;
        assert!(end <= self.pages.len(), "{end} of {} bytes", self.pages.len());
        for at in (self.touched.next_multiple_of(PAGE)..end).step_by(PAGE) {
            self.pages[at] = 1;
        }
        std::hint::black_box(&mut self.pages[..]);
        self.touched = end;
    }
}

/// The cost of touching a MiB of new memory.
#[derive(Clone, Copy, Debug)]
pub struct TouchCost {
    /// In huge pages, if the system has them.
    pub huge: Duration,
    /// In small pages.
    pub small: Duration,
}

impl TouchCost {
    /// Touches 64 MiB of each kind.
    pub fn measure() -> io::Result<TouchCost> {
        let cost = |advice| {
            let clock = Clock::start();
            let mut memory = Untouched::advised(SAMPLE, advice)?;
            let began = clock.now();
            memory.touch(SAMPLE);
            Ok::<_, io::Error>(clock.now().since(began) / (SAMPLE / MIB) as u32)
        };
        Ok(TouchCost { huge: cost(Advice::HugePage)?, small: cost(Advice::NoHugePage)? })
    }

    /// For the first line of a report.
    pub fn show(&self) -> String {
        let ms = |cost: Duration| cost.as_secs_f64() * 1000.0;
        let (huge, small) = (ms(self.huge), ms(self.small));
        format!(
            "touching a MiB of new memory takes {huge:.2} ms in huge pages, {small:.2} in small"
        )
    }
}
