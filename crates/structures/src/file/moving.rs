//! How a file block moves: its bytes, and its seal.

use super::{FileBlock, FileSeal};
use crate::carry::{Carry, Cart, broken};
use crate::{Answer, Event};
use honeycomb_block::Backing;
use honeycomb_types::{Bug, Time};
use honeycomb_wire::{Field, Reader};
use std::ops::Range;

const OPEN: u8 = 0;
const CONTINUES: u8 = 1;
const FINAL: u8 = 2;

impl Carry for FileBlock {
    fn cart(&self) -> &Cart {
        &self.cart
    }

    fn cart_mut(&mut self) -> &mut Cart {
        &mut self.cart
    }

    fn front_start(&self, _block: &Backing) -> usize {
        0
    }

    fn front_end(&self) -> usize {
        self.pieces.committed()
    }

    fn back(&self) -> Range<usize> {
        self.size..self.size
    }

    fn is_settled(&self) -> bool {
        self.pieces.is_settled()
    }

    fn image(&self, _now: Time) -> Vec<u8> {
        let mut out = Vec::new();
        self.length().put(&mut out);
        self.next.may_have().put(&mut out);
        match &self.seal {
            None => OPEN.put(&mut out),
            Some(FileSeal::Final) => FINAL.put(&mut out),
            Some(FileSeal::Continues(successor)) => {
                CONTINUES.put(&mut out);
                successor.put(&mut out);
            }
        }
        out
    }

    fn restore(&mut self, _now: Time, image: &[u8]) -> Result<(), Answer> {
        let mut from = Reader::new(image);
        let (length, may_have) = (u64::get(&mut from)?, bool::get(&mut from)?);
        let seal = match u8::get(&mut from)? {
            OPEN => None,
            FINAL => Some(FileSeal::Final),
            CONTINUES => Some(FileSeal::Continues(Vec::get(&mut from)?)),
            _ => return Err(broken("the block has an unknown kind of seal")),
        };
        from.finish()?;
        if length > self.size as u64 {
            return Err(broken("the content is longer than a block"));
        }
        self.pieces.restore(length as usize);
        self.seal = seal;
        if may_have {
            self.next.ask_again();
        }
        Ok(())
    }

    fn resume(&mut self, _block: &mut Backing, _now: Time, new: bool) {
        if !new || Bug::SealLeftBehind.active() {
            return;
        }
        let length = self.length();
        let successor = match &self.seal {
            None => return,
            Some(FileSeal::Continues(successor)) => Some(successor.clone()),
            Some(FileSeal::Final) => None,
        };
        self.events.push_back(Event::Sealed { length, bytes: length, successor });
    }

    /// The only waiting requests of a file have arriving payloads, and these are complete.
    fn dismiss(&mut self, _answer: &Answer) {}
}
