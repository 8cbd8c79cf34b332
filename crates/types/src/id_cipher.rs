//! Ids as jobs see them: a keyed permutation of the counters from which they are assigned.
//!
//! A plain counter would show each job how many prefixes or structures all others create between
//! two of its own. A permutation keeps ids unique without a table; the key belongs to the cluster.

/// Kinds of ids. Each has its own permutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdOf {
    /// A job.
    Job = 1,
    /// A prefix.
    Prefix = 2,
    /// A structure.
    Structure = 3,
}

/// Bits of a counter; the controller shard of an id is in the bits above.
const BITS: u32 = 48;
const HALF: u32 = BITS / 2;
const MASK: u64 = (1 << HALF) - 1;
/// Four rounds of a Feistel network with a pseudorandom function are a pseudorandom permutation (Luby and
/// Rackoff, 1988).
const ROUNDS: u64 = 4;

/// Permutes counters of 48 bits. The default one leaves them unchanged, for tests.
#[derive(Clone, Copy, Default)]
pub struct IdCipher {
    key: Option<(u64, u64)>,
}

impl std::fmt::Debug for IdCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.key.is_some() { "IdCipher(keyed)" } else { "IdCipher(plain)" })
    }
}

impl IdCipher {
    /// The permutations of this key, which only the controller may know.
    pub fn new(key: [u8; 16]) -> IdCipher {
        let (a, b) = key.split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        IdCipher { key: Some((word(a), word(b))) }
    }

    /// Whether ids equal the counters.
    pub fn is_plain(&self) -> bool {
        self.key.is_none()
    }

    /// The id for a counter.
    pub fn seal(&self, of: IdOf, counter: u64) -> u64 {
        assert!(counter >> BITS == 0, "an id's counter has 48 bits");
        let Some(key) = self.key else { return counter };
        let (mut left, mut right) = (counter >> HALF, counter & MASK);
        for round in 0..ROUNDS {
            let mixed = siphash(key, (of as u64) << 40 | round << 32 | right) & MASK;
            (left, right) = (right, left ^ mixed);
        }
        left << HALF | right
    }
}

/// SipHash-1-3 of one word.
fn siphash((k0, k1): (u64, u64), word: u64) -> u64 {
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    for m in [word, 8 << 56] {
        v[3] ^= m;
        sip_round(&mut v);
        v[0] ^= m;
    }
    v[2] ^= 0xff;
    for _ in 0..3 {
        sip_round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn siphash_is_that_of_its_reference() {
        // SipHash-1-3 of the standard library, which hashes 8 bytes in this way.
        use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hasher};
        let mut hasher = BuildHasherDefault::<DefaultHasher>::default().build_hasher();
        hasher.write(&0x1234_5678_9abc_def0u64.to_le_bytes());
        assert_eq!(siphash((0, 0), 0x1234_5678_9abc_def0), hasher.finish());
    }

    #[test]
    fn counters_become_ids_that_are_all_different_and_within_48_bits() {
        let cipher = IdCipher::new(*b"0123456789abcdef");
        let mut seen = BTreeSet::new();
        for counter in (0..100_000).chain((1 << 48) - 1000..1 << 48) {
            let id = cipher.seal(IdOf::Prefix, counter);
            assert!(id >> 48 == 0 && seen.insert(id), "{counter}");
        }
        assert_eq!(IdCipher::default().seal(IdOf::Job, 7), 7);
    }

    #[test]
    fn ids_of_consecutive_counters_are_not_near_each_other_in_any_bit() {
        for (of, other) in [(IdOf::Job, IdOf::Prefix), (IdOf::Structure, IdOf::Job)] {
            let cipher = IdCipher::new(*b"fedcba9876543210");
            let mut changed = [0u32; 48];
            for counter in 0..10_000 {
                let id = cipher.seal(of, counter);
                assert_ne!(id, cipher.seal(other, counter));
                let differs = id ^ cipher.seal(of, counter + 1);
                (0..48).for_each(|bit| changed[bit] += (differs >> bit & 1) as u32);
            }
            // Half of the draws, within six standard deviations.
            assert!(changed.iter().all(|n| (4700..5300).contains(n)), "{changed:?}");
        }
    }
}
