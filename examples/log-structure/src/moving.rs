//! How a log's block moves to another server: its records from the front, their index from the end, and the
//! counts beside them.

use crate::records::{ENTRY, Records};
use honeycomb_structures::{Answer, Backing, Migrate, Status, Time, received_successor};
use std::ops::Range;

/// The counts of a block, each in eight bytes: `base`, `next_number`, `trimmed`, `tail`, `given_back`.
const COUNTS: usize = 5;
/// Most records that a block accepts as counted by another block. Positions are signed.
const COUNTED: u64 = 1 << 62;

impl Migrate for Records {
    fn front_start(&self, block: &Backing) -> usize {
        self.end_below(block, self.trimmed)
    }

    fn front_end(&self) -> usize {
        self.tail
    }

    fn back(&self) -> Range<usize> {
        self.size - self.index_bytes()..self.size
    }

    /// Records arrive whole.
    fn is_settled(&self) -> bool {
        true
    }

    fn image(&self, _now: Time) -> Vec<u8> {
        let (tail, given_back) = (self.tail as u64, self.given_back as u64);
        let counts = [self.base, self.next_number, self.trimmed, tail, given_back];
        let mut out = counts.map(u64::to_le_bytes).as_flattened().to_vec();
        out.push(self.next.may_have().into());
        out.push(self.sealed.is_some().into());
        out.extend_from_slice(self.sealed.as_deref().unwrap_or_default());
        out
    }

    fn restore(&mut self, block: &Backing, _now: Time, image: &[u8]) -> Result<(), Answer> {
        let broken = || Answer::refuse(Status::BadFrame, "the state of the block is damaged");
        let (counts, rest) = image.split_at_checked(8 * COUNTS).ok_or_else(broken)?;
        let count = |i: usize| {
            u64::from_le_bytes(counts[8 * i..8 * i + 8].try_into().expect("eight bytes"))
        };
        let [base, next_number, trimmed, tail, given_back] = std::array::from_fn(count);
        let [may_have, sealed, successor @ ..] = rest else { return Err(broken()) };
        if !(Counts { base, next_number, trimmed, tail, given_back }).fit(block, self.size) {
            return Err(broken());
        }
        let sealed = (*sealed == 1).then(|| received_successor(successor.to_vec())).transpose()?;
        (self.base, self.next_number, self.trimmed) = (base, next_number, trimmed);
        (self.tail, self.given_back) = (tail as usize, given_back as usize);
        self.sealed = sealed;
        if *may_have == 1 {
            self.next.ask_again();
        }
        Ok(())
    }

    fn resume(&mut self, _block: &mut Backing, _now: Time, new: bool) {
        if new {
            self.report_again();
        }
    }

    fn dismiss(&mut self, answer: &Answer) {
        self.end_followers(answer);
    }
}

/// The counts of another block, whose index and records have arrived.
struct Counts {
    base: u64,
    next_number: u64,
    trimmed: u64,
    tail: u64,
    given_back: u64,
}

impl Counts {
    /// Whether a block of this size can have these counts with the index at its end: records end in ascending
    /// order, the last one at the tail, and each has its tag. Bytes of trimmed records were not sent, and a
    /// block without records may have lost its index in a lower tier.
    fn fit(&self, block: &Backing, size: usize) -> bool {
        let Counts { base, next_number, trimmed, tail, given_back } = *self;
        let ordered = base <= trimmed && trimmed <= next_number && next_number <= COUNTED;
        let room = (size as u64).checked_sub(tail).map(|room| room / ENTRY as u64);
        if !ordered || room.is_none_or(|room| next_number - base > room) {
            return false;
        }
        let index = size - (next_number - base) as usize * ENTRY..size;
        let ends = block.slice(index).rchunks_exact(ENTRY);
        let ends = ends.map(|end| u32::from_le_bytes(end.try_into().expect("four bytes")) as u64);
        let (mut start, mut freed) = (0, 0);
        for (number, end) in (base..).zip(ends) {
            let tag = || block.slice(start as usize..start as usize + 1)[0] as u64;
            let whole = || start < end && (number < trimmed || tag() < end - start);
            if end > tail || trimmed < next_number && !whole() {
                return false;
            }
            start = end;
            freed = if number < trimmed { end } else { freed };
        }
        given_back <= freed && (trimmed == next_number || start == tail)
    }
}
