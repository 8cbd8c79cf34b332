//! A keyed hash for the catalog's tables.
//!
//! Names come from tenants, so the hash is keyed against chosen collisions; the key comes from
//! outside, so that a replayed command log rebuilds tables of the same shape (INV-35). Not a
//! cryptographic hash.

/// The key of one catalog's tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashKey {
    a: u64,
    b: u64,
}

fn fold(x: u64, y: u64) -> u64 {
    let wide = x as u128 * y as u128;
    wide as u64 ^ (wide >> 64) as u64
}

fn spread(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl HashKey {
    pub(crate) fn new(seed: u64) -> HashKey {
        let a = spread(seed);
        HashKey { a, b: spread(a) }
    }

    pub(crate) fn id(self, id: u64) -> u64 {
        fold(id ^ self.a, 0x9E37_79B9_7F4A_7C15 ^ self.b)
    }

    /// Hash of a name that belongs to `owner`: a parent, a prefix or the job table.
    pub(crate) fn name(self, owner: u64, name: &str) -> u64 {
        let mut state = fold(owner ^ self.a, name.len() as u64 ^ self.b);
        let (chunks, rest) = name.as_bytes().as_chunks::<8>();
        for chunk in chunks {
            state = fold(u64::from_le_bytes(*chunk) ^ self.a, state ^ self.b);
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        fold(u64::from_le_bytes(last) ^ self.b, state ^ self.a)
    }
}
