//! Bytes that are appended to a block: a committed run, followed by pieces that are still being filled or
//! wait for those before them.
//!
//! Places are assigned in the order of reservation, without gaps (INV-23): when a piece is cancelled, the
//! later ones move down, before any sender knows their places.

use crate::Ticket;
use honeycomb_block::Backing;
use std::collections::VecDeque;
use std::ops::Range;

/// Pieces that may be outstanding at a time.
pub(crate) const PIECES_MAX: usize = 4096;

/// Bytes behind the committed ones.
#[derive(Debug)]
pub(crate) struct Piece<T> {
    pub ticket: Ticket,
    pub start: usize,
    pub length: usize,
    /// Data that the structure keeps with the piece.
    pub with: T,
    filled: usize,
    /// Complete, and visible as soon as everything before it is.
    complete: bool,
}

/// The bytes of a block that grows at its end.
#[derive(Debug)]
pub(crate) struct Pieces<T> {
    committed: usize,
    /// In order of place, without gaps, the first at `committed`.
    list: VecDeque<Piece<T>>,
}

impl<T> Pieces<T> {
    pub fn new() -> Pieces<T> {
        Pieces { committed: 0, list: VecDeque::new() }
    }

    /// Bytes visible to readers.
    pub fn committed(&self) -> usize {
        self.committed
    }

    /// Where the next piece begins.
    pub fn tail(&self) -> usize {
        self.list.back().map_or(self.committed, |piece| piece.start + piece.length)
    }

    /// Whether no pieces are outstanding.
    pub fn is_settled(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether no more pieces are accepted for now.
    pub fn is_full(&self) -> bool {
        self.list.len() >= PIECES_MAX
    }

    /// Bytes of the records beside the block.
    pub fn bytes(&self) -> usize {
        self.list.len() * size_of::<Piece<T>>()
    }

    /// Writes bytes at the tail. `None` if they are committed at once, because nothing is outstanding.
    /// Otherwise they become a complete piece, which waits for the others, with `with`.
    pub fn append(
        &mut self,
        block: &mut Backing,
        ticket: Ticket,
        bytes: &[u8],
        with: T,
    ) -> Option<&mut T> {
        let start = self.tail();
        block.slice_mut(start..start + bytes.len()).copy_from_slice(bytes);
        if self.list.is_empty() {
            self.committed += bytes.len();
            return None;
        }
        self.place(ticket, bytes.len(), with);
        let piece = self.list.back_mut().expect("the piece was just placed");
        (piece.filled, piece.complete) = (bytes.len(), true);
        Some(&mut piece.with)
    }

    /// Writes bytes at the tail as a complete piece, which only `advance` commits.
    pub fn hold(&mut self, block: &mut Backing, ticket: Ticket, bytes: &[u8], with: T) {
        let start = self.tail();
        block.slice_mut(start..start + bytes.len()).copy_from_slice(bytes);
        self.place(ticket, bytes.len(), with);
        let piece = self.list.back_mut().expect("the piece was just placed");
        (piece.filled, piece.complete) = (bytes.len(), true);
    }

    /// Where the first piece ends.
    pub fn first_end(&self) -> Option<usize> {
        self.list.front().map(|piece| piece.start + piece.length)
    }

    /// The bytes of the run of complete pieces from the first on: at least one, if it is complete, and then
    /// as many as fit into `most` bytes. They stay in place: only pieces after an open piece move.
    pub fn complete_run(&self, most: usize) -> Range<usize> {
        let mut end = self.committed;
        for piece in self.list.iter().take_while(|piece| piece.complete) {
            if end > self.committed && piece.start + piece.length - self.committed > most {
                break;
            }
            end = piece.start + piece.length;
        }
        self.committed..end
    }

    /// Reserves a place at the tail.
    pub fn place(&mut self, ticket: Ticket, length: usize, with: T) {
        let start = self.tail();
        self.list.push_back(Piece { ticket, start, length, with, filled: 0, complete: false });
    }

    fn piece_mut(&mut self, ticket: Ticket) -> &mut Piece<T> {
        let found = self.list.iter_mut().find(|piece| piece.ticket == ticket);
        found.expect("the shard names reservations that are open")
    }

    /// The part that is still to be filled.
    pub fn rest(&mut self, ticket: Ticket) -> Range<usize> {
        let piece = self.piece_mut(ticket);
        piece.start + piece.filled..piece.start + piece.length
    }

    pub fn filled(&mut self, ticket: Ticket, n: usize) {
        let piece = self.piece_mut(ticket);
        piece.filled += n;
        assert!(piece.filled <= piece.length, "more was filled than was reserved");
    }

    /// Marks a piece as complete.
    pub fn complete(&mut self, ticket: Ticket) {
        let piece = self.piece_mut(ticket);
        assert_eq!(
            piece.filled, piece.length,
            "INV-07: a payload is committed before it has arrived"
        );
        piece.complete = true;
    }

    /// Commits the first piece if it is complete.
    pub fn advance(&mut self) -> Option<Piece<T>> {
        if !self.list.front()?.complete {
            return None;
        }
        let piece = self.list.pop_front().expect("the front was just seen");
        assert_eq!(piece.start, self.committed, "INV-23: places have no gaps");
        assert_eq!(piece.filled, piece.length, "INV-07: acknowledged only when complete");
        self.committed += piece.length;
        Some(piece)
    }

    /// Cancels an open piece and closes the gap; returns the data kept with it.
    pub fn abort(&mut self, block: &mut Backing, ticket: Ticket) -> T {
        let at = self.list.iter().position(|p| p.ticket == ticket && !p.complete);
        let at = at.expect("the shard aborts reservations that are open");
        let tail = self.tail();
        let gone = self.list.remove(at).expect("the position was just found");
        // INV-23: no sender knows the later places yet, so closing the gap changes no answer. No pin reads
        // these bytes: pins are for committed ones.
        block.copy_within(gone.start + gone.length..tail, gone.start);
        for piece in self.list.range_mut(at..) {
            piece.start -= gone.length;
        }
        gone.with
    }

    /// Adopts so many committed bytes, which are in the block.
    pub fn restore(&mut self, committed: usize) {
        assert!(self.list.is_empty(), "no pieces are outstanding");
        self.committed = committed;
    }

    /// Forgets the committed bytes: the block starts again empty.
    pub fn restart(&mut self) {
        assert!(self.list.is_empty(), "no pieces are outstanding");
        self.committed = 0;
    }
}
