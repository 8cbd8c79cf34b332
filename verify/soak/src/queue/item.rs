//! Self-describing items: eight bytes identify the producer and the item, and determine the rest.

use honeycomb_env::Entropy;

/// Bytes of the smallest item: its head.
pub const HEAD: usize = 8;
/// Maximum number of producers that a head can distinguish.
pub const PRODUCERS_MAX: u64 = 1 << 4;
/// Incarnations of one producer.
pub const INCARNATIONS_MAX: u64 = 1 << 8;
/// Items of one producer.
pub const NUMBERS_MAX: u64 = 1 << 20;
/// Bytes of the largest item, and one more.
const LENGTHS: u64 = 1 << 17;

/// An item's first eight bytes: producer (4 bits), incarnation (8), number (20), length (17) and a
/// checksum of those (15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Head(pub u64);

impl Head {
    /// The head of a producer's item.
    pub fn new(producer: u64, incarnation: u64, number: u64, length: usize) -> Head {
        assert!(producer < PRODUCERS_MAX && incarnation < INCARNATIONS_MAX);
        assert!(number < NUMBERS_MAX && (HEAD as u64..LENGTHS).contains(&(length as u64)));
        let said = producer | incarnation << 4 | number << 12 | (length as u64) << 32;
        Head(said | check(said) << 49)
    }

    pub fn producer(self) -> u64 {
        self.0 & 0xf
    }

    pub fn incarnation(self) -> u64 {
        self.0 >> 4 & 0xff
    }

    pub fn number(self) -> u64 {
        self.0 >> 12 & 0xf_ffff
    }

    pub fn length(self) -> usize {
        (self.0 >> 32 & 0x1_ffff) as usize
    }

    fn is_sound(self) -> bool {
        check(self.0 & ((1 << 49) - 1)) == self.0 >> 49
    }
}

impl std::fmt::Display for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (producer, incarnation) = (self.producer(), self.incarnation());
        write!(f, "item {} of producer {producer}.{incarnation}", self.number())
    }
}

fn check(said: u64) -> u64 {
    Entropy::seeded(said).next_u64() >> 49
}

/// The length of a producer's item: mostly a few bytes, sometimes a few KiB, rarely the maximum of
/// the queue (100 KiB in a block of 1 MiB).
pub fn length_of(seed: u64, producer: u64, number: u64, limit: usize) -> usize {
    let mut draw = Entropy::seeded(seed ^ producer << 40 ^ number);
    let (least, below) = match draw.below(1000) {
        0..600 => (HEAD, 64),
        600..900 => (64, 1024),
        900..999 => (1024, 6 * 1024),
        _ => (100 * 1024, 100 * 1024 + 64),
    };
    (least + draw.below((below - least) as u64) as usize).min(limit)
}

/// All bytes of an item.
pub fn write(head: Head, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&head.0.to_le_bytes());
    let mut body = Entropy::seeded(head.0);
    while out.len() < head.length() {
        out.extend_from_slice(&body.next_u64().to_le_bytes());
    }
    out.truncate(head.length());
}

/// Returns the head of an item if all its bytes are as written; the error names the damage.
pub fn read(item: &[u8]) -> Result<Head, String> {
    let Some(first) = item.first_chunk::<HEAD>() else {
        return Err(format!("an item has {} bytes, fewer than any item that was put", item.len()));
    };
    let head = Head(u64::from_le_bytes(*first));
    if !head.is_sound() {
        return Err(format!("an item of {} bytes has a damaged head: {:#x}", item.len(), head.0));
    }
    if item.len() != head.length() {
        return Err(format!(
            "{head} was put with {} bytes and delivered with {}",
            head.length(),
            item.len()
        ));
    }
    let mut body = Entropy::seeded(head.0);
    for (i, chunk) in item[HEAD..].chunks(8).enumerate() {
        if *chunk != body.next_u64().to_le_bytes()[..chunk.len()] {
            return Err(format!("{head} is damaged near its byte {}", HEAD + 8 * i));
        }
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_read_as_it_was_written_and_no_bit_can_change() {
        for (number, length) in [(0, 8), (NUMBERS_MAX - 1, 9), (77, 300)] {
            let head = Head::new(15, 255, number, length);
            let mut item = Vec::new();
            write(head, &mut item);
            assert_eq!((read(&item), item.len()), (Ok(head), length));
            assert_eq!((head.producer(), head.incarnation()), (15, 255));
            assert_eq!((head.number(), head.length()), (number, length));
            for bit in 0..8 * length {
                item[bit / 8] ^= 1 << (bit % 8);
                assert!(read(&item).is_err(), "bit {bit} of {length} bytes");
                item[bit / 8] ^= 1 << (bit % 8);
            }
        }
        assert!(read(&[0; 7]).is_err());
    }

    #[test]
    fn lengths_are_of_all_kinds() {
        let lengths: Vec<usize> = (0..20_000).map(|n| length_of(5, 1, n, 131_068)).collect();
        let large = lengths.iter().filter(|l| **l >= 100 * 1024).count();
        assert!((5..50).contains(&large), "{large} of 100 KiB");
        assert!(lengths.contains(&HEAD) && lengths.iter().all(|l| *l >= HEAD));
        assert!((0..20_000).all(|n| length_of(5, 1, n, 8188) <= 8188));
    }
}
