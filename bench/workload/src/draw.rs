//! Seeded random numbers for the distributions of `rand_distr`.

use honeycomb_env::Entropy;
use rand_core::TryRng;
use rand_distr::{Distribution, LogNormal, Zipf};
use std::convert::Infallible;

/// A stream of random numbers from one seed.
#[derive(Clone, Debug)]
pub struct Draw(Entropy);

impl Draw {
    /// The stream of a seed.
    pub fn seeded(seed: u64) -> Draw {
        Draw(Entropy::seeded(seed))
    }

    /// A uniform number from 0 to 1, excluding 1.
    pub fn even(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A uniform number between two numbers.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.even()
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// A log-normal number with this median; `spread` is the standard deviation of the logarithm.
    pub fn around(&mut self, median: f64, spread: f64) -> f64 {
        let normal = LogNormal::new(median.ln(), spread);
        normal.expect("a median above 0 and a finite spread").sample(&mut self.0.adapted())
    }

    /// A Zipf-distributed rank from 0 to `ranks`, excluding `ranks`: rank r has a frequency proportional to
    /// 1 / (r + 1)^skew.
    pub fn zipf(&mut self, ranks: &Ranks) -> u64 {
        ranks.0.sample(&mut self.0.adapted()) as u64 - 1
    }
}

/// The distribution that `Draw::zipf` samples.
#[derive(Clone, Debug)]
pub struct Ranks(Zipf<f64>);

impl Ranks {
    /// So many ranks; `ranks` and `skew` must be above 0.
    pub fn new(ranks: u64, skew: f64) -> Ranks {
        Ranks(Zipf::new(ranks as f64, skew).expect("some ranks and a skew above 0"))
    }
}

struct Adapted<'a>(&'a mut Entropy);

trait Adapt {
    fn adapted(&mut self) -> Adapted<'_>;
}

impl Adapt for Entropy {
    fn adapted(&mut self) -> Adapted<'_> {
        Adapted(self)
    }
}

impl TryRng for Adapted<'_> {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.0.next_u64() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.0.next_u64())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.0.next_u64().to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}
