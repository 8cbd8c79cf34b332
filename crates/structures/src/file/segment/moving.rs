//! How a file block migrates: its bytes, and its seal.

use super::FileSegment;
use crate::Answer;
use crate::growth::TailImage;
use crate::migration::{Migrate, broken};
use honeycomb_block::Backing;
use honeycomb_types::{Bug, Time};
use honeycomb_wire::{Field, Reader};
use std::ops::Range;

impl Migrate for FileSegment {
    fn front_start(&self, _block: &Backing) -> usize {
        0
    }

    fn front_end(&self) -> usize {
        self.pieces.committed()
    }

    /// None.
    fn back(&self) -> Range<usize> {
        0..0
    }

    fn is_settled(&self) -> bool {
        self.pieces.is_settled()
    }

    fn image(&self, _now: Time) -> Vec<u8> {
        let mut out = Vec::new();
        self.length().put(&mut out);
        self.tail.put(&mut out);
        out
    }

    fn restore(&mut self, _block: &Backing, _now: Time, image: &[u8]) -> Result<(), Answer> {
        let mut from = Reader::new(image);
        let length = u64::get(&mut from)?;
        let tail = TailImage::get(&mut from)?;
        from.finish()?;
        if length > self.tail.capacity.bytes() as u64 {
            return Err(broken("the content is longer than a block"));
        }
        self.pieces.restore(length as usize);
        self.tail.restore(tail);
        Ok(())
    }

    fn resume(&mut self, _block: &mut Backing, _now: Time, new: bool) {
        if new && !Bug::SealLeftBehind.active() {
            self.report_seal();
        }
    }

    /// The only waiting requests of a file have arriving payloads, and these are complete.
    fn dismiss(&mut self, _answer: &Answer) {}
}
