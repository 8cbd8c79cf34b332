//! Randomness: from the operating system, or from a seed for repeatable runs.

/// A stream of random numbers (SplitMix64). Good for ids, jitter and schedules; secrets come from
/// the operating system directly (`Entropy::secret`).
#[derive(Clone, Debug)]
pub struct Entropy(u64);

impl Entropy {
    /// A stream that is seeded by the operating system.
    pub fn system() -> Entropy {
        let bytes = Entropy::secret();
        Entropy(u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")))
    }

    /// A stream that is determined by one number.
    pub fn seeded(seed: u64) -> Entropy {
        Entropy(seed)
    }

    /// Thirty-two unpredictable bytes from the operating system.
    #[allow(clippy::disallowed_methods)]
    pub fn secret() -> [u8; 32] {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
        bytes
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }

    /// Whether an event of this many in a million happens.
    pub fn chance(&mut self, per_million: u64) -> bool {
        self.below(1_000_000) < per_million
    }
}
