//! How a log's block moves to another server: its records from the front, their index from the end, and the
//! counts beside them.

use crate::records::{ENTRY, Records};
use honeycomb_structures::{Answer, Backing, Migrate, Status, Time, received_successor};
use std::ops::Range;

/// The counts of a block, each in eight bytes: `base`, `next_number`, `trimmed`, `tail`, `given_back`.
const COUNTS: usize = 5;

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

    fn restore(&mut self, _now: Time, image: &[u8]) -> Result<(), Answer> {
        let broken = || Answer::refuse(Status::BadFrame, "the state of the block is damaged");
        let (counts, rest) = image.split_at_checked(8 * COUNTS).ok_or_else(broken)?;
        let count = |i: usize| {
            u64::from_le_bytes(counts[8 * i..8 * i + 8].try_into().expect("eight bytes"))
        };
        let [base, next_number, trimmed, tail, given_back] = std::array::from_fn(count);
        let [may_have, sealed, successor @ ..] = rest else { return Err(broken()) };
        let size = self.size as u64;
        let fits = base <= trimmed
            && trimmed <= next_number
            && given_back <= tail
            && tail <= size
            && next_number - base <= (size - tail) / ENTRY as u64;
        if !fits {
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
