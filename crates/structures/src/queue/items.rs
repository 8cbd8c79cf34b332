//! The items of a block, and the directory of their ends.

use crate::adopting::{is_list, list_of};
use crate::pieces::{Piece, Pieces};
use crate::{Bytes, Ticket};
use honeycomb_block::Backing;
use honeycomb_types::Bug;
use honeycomb_wire::extents::value_length;
use std::ops::Range;

/// Bytes of an entry in the directory.
pub(super) const PLACE: usize = 4;
/// A bit of the end of an item, and of its length: the item is a list of extents in its stored form. A block
/// has fewer bytes.
pub(super) const LIST: u32 = 1 << 31;

/// Items in the order in which they were put, numbered from 0 within the block. Their bytes grow from the
/// start of the block, and the directory of their ends grows from the end of its capacity.
pub(super) struct ItemLog {
    /// The end of the directory.
    size: usize,
    /// The items' bytes; each payload in progress with the lengths of its items.
    pieces: Pieces<Vec<u32>>,
    /// Items that passed through the block before it last started again empty.
    base: u64,
    /// Items in the directory.
    count: usize,
    /// Directory entries promised to payloads in progress, and the bytes that these items have elsewhere.
    promised: usize,
    promised_elsewhere: u64,
    /// Bytes of the items that were ever put, including those in extents.
    put_bytes: u64,
    /// Of the items that are left, the bytes in extents, less those of their lists.
    elsewhere: u64,
}

/// The counters of a log, as another block has sent them.
#[derive(Clone, Copy)]
pub(super) struct ItemCounts {
    pub committed: u64,
    pub base: u64,
    pub count: u64,
    pub put_bytes: u64,
    /// The end of the directory.
    pub size: u64,
}

impl ItemLog {
    /// A log in the first `size` bytes of a block.
    pub fn new(size: usize) -> ItemLog {
        ItemLog {
            size,
            pieces: Pieces::new(),
            base: 0,
            count: 0,
            promised: 0,
            promised_elsewhere: 0,
            put_bytes: 0,
            elsewhere: 0,
        }
    }

    /// Takes more bytes of the block. The directory moves to their end.
    pub fn enlarge(&mut self, block: &mut Backing, size: usize) {
        assert!(size >= self.size, "INV-60: a log of {} bytes gets {size}", self.size);
        let all = 0..self.count;
        let from = self.places(all.clone());
        self.size = size;
        if !from.is_empty() && !Bug::DirectoryStays.active() {
            let to = self.places(all);
            block.copy_within(from, to.start);
        }
    }

    /// Bytes of the block that it uses.
    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Items that were ever put into the block.
    #[inline]
    pub fn through(&self) -> u64 {
        self.base + self.count as u64
    }

    /// Bytes of the items that were ever put into the block.
    pub fn put_bytes(&self) -> u64 {
        self.put_bytes
    }

    /// The number of an item since the block was opened.
    pub fn number(&self, item: usize) -> u64 {
        self.base + item as u64
    }

    /// The item with a number since the block was opened; `None` if it is gone.
    pub fn item(&self, number: u64) -> Option<usize> {
        number.checked_sub(self.base).map(|item| item as usize)
    }

    /// Items in the directory.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Items and bytes that were ever put, including payloads that are still arriving.
    pub fn amount(&self) -> (u64, u64) {
        let arriving = (self.pieces.tail() - self.pieces.committed()) as u64;
        let bytes = self.put_bytes + arriving + self.promised_elsewhere;
        (self.through() + self.promised as u64, bytes)
    }

    /// The directory entries of some items.
    pub fn places(&self, items: Range<usize>) -> Range<usize> {
        self.size - PLACE * items.end..self.size - PLACE * items.start
    }

    /// The end of an item, and whether it is a list of extents.
    #[inline]
    pub fn end_and_sort(&self, block: &impl Bytes, item: usize) -> (usize, bool) {
        let place = block.slice(self.places(item..item + 1));
        let place = u32::from_le_bytes(place.try_into().expect("a place has four bytes"));
        ((place & !LIST) as usize, place & LIST != 0)
    }

    #[inline]
    pub fn end_of(&self, block: &impl Bytes, item: usize) -> usize {
        self.end_and_sort(block, item).0
    }

    /// Whether an item is a list of extents.
    #[inline]
    pub fn is_list(&self, block: &impl Bytes, item: usize) -> bool {
        self.end_and_sort(block, item).1
    }

    /// The bytes that an item counts: its bytes for the consumer, which may be in extents, and at least its
    /// bytes in this block.
    pub fn weight_of(&self, block: &impl Bytes, item: usize) -> u64 {
        let bytes = self.bytes_of(block, &(item..item + 1));
        let extra =
            if self.is_list(block, item) { extra_of(block.slice(bytes.clone())) } else { 0 };
        bytes.len() as u64 + extra
    }

    /// Of the items that are left or arriving, the bytes in extents, less those of their lists.
    #[inline]
    pub fn elsewhere(&self) -> u64 {
        self.elsewhere + self.promised_elsewhere
    }

    /// A list was taken permanently.
    pub fn list_taken(&mut self, block: &impl Bytes, item: usize) {
        let bytes = self.bytes_of(block, &(item..item + 1));
        let extra = extra_of(block.slice(bytes));
        assert!(self.elsewhere >= extra, "INV-22: {extra} bytes elsewhere are gone and never came");
        self.elsewhere -= extra;
    }

    #[inline]
    pub fn start_of(&self, block: &impl Bytes, item: usize) -> usize {
        item.checked_sub(1).map_or(0, |before| self.end_of(block, before))
    }

    #[inline]
    pub fn bytes_of(&self, block: &impl Bytes, items: &Range<usize>) -> Range<usize> {
        if items.is_empty() {
            return 0..0;
        }
        self.start_of(block, items.start)..self.end_of(block, items.end - 1)
    }

    /// Bytes used by items, the directory and promises.
    pub fn used(&self) -> usize {
        self.pieces.tail() + PLACE * (self.count + self.promised)
    }

    /// Bytes from the first on that hold its items: the directory of them grows from the end of these.
    pub fn extent(&self) -> usize {
        if self.count == 0 { 0 } else { self.size }
    }

    /// Whether no payloads are arriving.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.pieces.is_settled()
    }

    /// Whether no more payloads are accepted for now.
    pub fn is_full(&self) -> bool {
        self.pieces.is_full()
    }

    /// Bytes of all items.
    pub fn committed(&self) -> usize {
        self.pieces.committed()
    }

    /// Bytes of the records beside the block.
    pub fn bytes(&self) -> usize {
        self.pieces.bytes()
    }

    /// Adds items, for which there is room; returns the number of the first. `None` if they wait for payloads
    /// that are still arriving. The length of a single item in its stored form has `LIST`.
    pub fn append(
        &mut self,
        block: &mut Backing,
        ticket: Ticket,
        lengths: &[u32],
        payload: &[u8],
    ) -> Option<u64> {
        let start = self.pieces.tail();
        let kept = if self.pieces.is_settled() { Vec::new() } else { lengths.to_vec() };
        if self.pieces.append(block, ticket, payload, kept).is_some() {
            self.promised += lengths.len();
            self.promised_elsewhere += extra_of_piece(lengths, payload);
            return None;
        }
        Some(self.list(block, start, lengths))
    }

    /// Adds items with committed bytes to the directory; returns the number of the first.
    fn list(&mut self, block: &mut Backing, start: usize, lengths: &[u32]) -> u64 {
        let (first, promised) = (self.through(), self.pieces.committed());
        assert!(start <= promised, "INV-22: items at {start} are listed before they are committed");
        let mut end = start;
        for length in lengths {
            end += (length & !LIST) as usize;
            let place = self.places(self.count..self.count + 1);
            let marked = end as u32 | length & LIST;
            block.slice_mut(place).copy_from_slice(&marked.to_le_bytes());
            self.count += 1;
        }
        assert!(end <= promised, "INV-22: items end at {end}, and {promised} bytes are committed");
        let extra = extra_of_piece(lengths, block.slice(start..end));
        self.put_bytes += (end - start) as u64 + extra;
        self.elsewhere += extra;
        first
    }

    /// Makes room for items that will arrive piece by piece.
    pub fn promise(&mut self, ticket: Ticket, length: usize, lengths: Vec<u32>) {
        self.promised += lengths.len();
        self.pieces.place(ticket, length, lengths);
    }

    /// The part of a promise that is still to be filled.
    pub fn rest(&mut self, ticket: Ticket) -> Range<usize> {
        self.pieces.rest(ticket)
    }

    pub fn filled(&mut self, ticket: Ticket, n: usize) {
        self.pieces.filled(ticket, n);
    }

    /// A promised payload is complete: `advance` adds its items.
    pub fn complete(&mut self, ticket: Ticket) {
        self.pieces.complete(ticket);
    }

    /// A promised payload does not arrive.
    pub fn abort(&mut self, block: &mut Backing, ticket: Ticket) {
        let lengths = self.pieces.abort(block, ticket);
        self.arrives(lengths.len());
    }

    /// Promised items arrive, or are given up.
    fn arrives(&mut self, items: usize) {
        let promised = self.promised;
        assert!(promised >= items, "INV-22: {items} items arrive, and {promised} were promised");
        self.promised -= items;
    }

    /// Adds the first payload to the directory if it is complete; returns the number of its first item.
    pub fn advance(&mut self, block: &mut Backing) -> Option<(Piece<Vec<u32>>, u64)> {
        let piece = self.pieces.advance()?;
        self.arrives(piece.with.len());
        let bytes = block.slice(piece.start..piece.start + piece.length);
        self.promised_elsewhere -= extra_of_piece(&piece.with, bytes);
        let first = self.list(block, piece.start, &piece.with);
        Some((piece, first))
    }

    /// Starts again empty. The caller has checked that no item is left, and that no reader needs the bytes.
    pub fn begin_anew(&mut self) {
        assert_eq!(self.promised, 0, "INV-22: a block begins anew while items arrive");
        debug_assert_eq!(self.elsewhere, 0, "INV-22: a block begins anew with lists of extents");
        self.base += self.count as u64;
        self.count = 0;
        self.pieces.restart();
    }

    /// The counters, for a block at another server.
    pub fn counts(&self) -> ItemCounts {
        ItemCounts {
            committed: self.pieces.committed() as u64,
            base: self.base,
            count: self.count as u64,
            put_bytes: self.put_bytes,
            size: self.size as u64,
        }
    }

    /// An empty log whose directory ends where that of another block did, which has sent it.
    pub fn like(counts: &ItemCounts) -> ItemLog {
        ItemLog::new(counts.size as usize)
    }

    /// Whether the counters of another block can be those of a log of this size, with the directory that
    /// has arrived: its ends ascend, the last one is the end of the bytes, and lists have the length of one.
    pub fn fits(&self, block: &impl Bytes, counts: &ItemCounts) -> bool {
        let (size, committed) = (self.size as u64, counts.committed);
        if committed > size || counts.count > (size - committed) / PLACE as u64 {
            return false;
        }
        let mut ends = block.slice(self.places(0..counts.count as usize)).rchunks_exact(PLACE);
        let last = ends.try_fold(0, |before, end| {
            let marked = u32::from_le_bytes(end.try_into().expect("a place has four bytes"));
            let end = marked & !LIST;
            let length = end.checked_sub(before)?;
            (marked & LIST == 0 || is_list(length as usize)).then_some(end)
        });
        last.is_some_and(|last| last as u64 == committed)
    }

    /// Adopts counters that fit; the bytes and the directory are in the block.
    pub fn restore(&mut self, counts: &ItemCounts) {
        self.pieces.restore(counts.committed as usize);
        (self.base, self.count) = (counts.base, counts.count as usize);
        self.put_bytes = counts.put_bytes;
    }

    /// Counts the bytes in extents of the items that are left.
    pub fn count_elsewhere(&mut self, block: &impl Bytes, left: impl Iterator<Item = usize>) {
        let lists = left.filter(|item| self.is_list(block, *item));
        let bytes = lists.map(|item| self.bytes_of(block, &(item..item + 1)));
        self.elsewhere = bytes.map(|bytes| extra_of(block.slice(bytes))).sum();
    }
}

/// The bytes of the value of a stored list, less those of the list.
fn extra_of(stored: &[u8]) -> u64 {
    if Bug::ItemListUncounted.active() {
        return 0;
    }
    value_length(list_of(stored)).saturating_sub(stored.len() as u64)
}

/// The same, of items that are put together: a list is put alone.
fn extra_of_piece(lengths: &[u32], bytes: &[u8]) -> u64 {
    match lengths {
        [length] if length & LIST != 0 => extra_of(bytes),
        _ => 0,
    }
}
