//! Bytes that name their writer, number, version and length.
//!
//! Every value, item and record is decided by the seed of its run, its writer, its number and its version,
//! so that a reader needs no copy. The first bytes repeat these, for the report of a mismatch.

use honeycomb_env::Entropy;
use honeycomb_types::sizes;

/// Bytes of the head, which names the rest; shorter values have none.
const HEAD: usize = 32;

/// The origin of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    pub seed: u64,
    pub writer: u64,
    pub number: u64,
    pub version: u64,
}

impl Name {
    fn mixed(self) -> u64 {
        let mut mixed = 0;
        for part in [self.seed, self.writer, self.number, self.version] {
            mixed = Entropy::seeded(mixed ^ part).next_u64();
        }
        mixed
    }

    /// How many bytes they are, in blocks of this size.
    pub fn length(self, block: usize, least: usize, most: usize) -> usize {
        sizes::size(self.mixed(), block, least, most)
    }

    /// So many of them.
    pub fn bytes(self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        if length >= HEAD {
            let head = [self.seed << 16 | self.writer, self.number, self.version, length as u64];
            head.iter().for_each(|part| bytes.extend(part.to_le_bytes()));
        }
        let mut noise = Entropy::seeded(self.mixed() ^ length as u64);
        while bytes.len() < length {
            bytes.extend(noise.next_u64().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }

    /// Checks that `got` are these bytes; the error names their origin.
    pub fn check(self, what: &str, length: usize, got: &[u8]) -> Result<(), String> {
        let due = self.bytes(length);
        if got == due {
            return Ok(());
        }
        let first = due.iter().zip(got).position(|(a, b)| a != b);
        let first = first.unwrap_or(due.len().min(got.len()));
        let said = match got.get(..HEAD) {
            Some(head) => {
                let part = |n: usize| {
                    u64::from_le_bytes(head[8 * n..8 * n + 8].try_into().expect("eight bytes"))
                };
                format!(
                    "they say: writer {}, number {}, version {}, {} bytes",
                    part(0) & 0xffff,
                    part(1),
                    part(2),
                    part(3)
                )
            }
            None => "too few to name their writer".into(),
        };
        Err(format!(
            "{what}: {} bytes were read instead of {length} of writer {}, number {}, version {}; \
             they differ from byte {first} on; {said}",
            got.len(),
            self.writer,
            self.number,
            self.version
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_others_are_named() {
        let name = Name { seed: 7, writer: 3, number: 11, version: 2 };
        assert_eq!(name.check("value", 100, &name.bytes(100)), Ok(()));
        let other = Name { version: 1, ..name };
        let told = name.check("value", 100, &other.bytes(100)).expect_err("another version");
        assert!(told.contains("differ from byte 16") && told.contains("version 1, 100 bytes"));
        let mut torn = name.bytes(100);
        torn[99] ^= 1;
        assert!(name.check("value", 100, &torn).expect_err("torn").contains("from byte 99"));
        assert!(name.check("value", 10, &[]).expect_err("missing").contains("0 bytes were read"));
    }
}
