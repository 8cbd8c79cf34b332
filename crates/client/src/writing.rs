//! Writes a value as extents, without I/O: assigns pieces to blocks and decides when to request
//! another block (ADR 0018).
//!
//! The value is divided into pieces of equal length, each of which becomes an extent. A piece whose
//! reply was lost is simply written again, because an extent that no put names is freed
//! automatically.

use crate::call::{ExtentRoom, Routing};
use crate::error::Error;
use honeycomb_types::limits::REPORT_INTERVAL;
use honeycomb_types::{BlockAt, BlockId, Time};
use honeycomb_wire::Status;
use honeycomb_wire::extents::ExtentRef;
use honeycomb_wire::messages::MapEntry;

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub enum WriteStep {
    /// Ask the controller for a block, other than the full ones, that has this much space.
    Ask {
        /// Bytes of the longest missing piece.
        bytes: usize,
        /// Blocks that refused a piece or have just been filled.
        full: Vec<u64>,
    },
    /// Write pieces to a block, concurrently or one after the other.
    Put {
        /// The block.
        at: BlockAt,
        /// The missing pieces that fit into the block, as far as is known; at least one.
        pieces: Vec<usize>,
    },
    /// Every piece is an extent: a put may name them.
    Done(Vec<ExtentRef>),
}

/// A value that is being written as extents.
#[derive(Debug)]
pub struct Writing {
    lengths: Vec<usize>,
    written: Vec<Option<ExtentRef>>,
    full: Vec<BlockAt>,
    /// The block from the controller's last reply, until it is used.
    given: Option<ExtentRoom>,
}

impl Writing {
    /// A value of this length (not 0), in pieces of at most `most` bytes.
    pub fn new(length: usize, most: usize) -> Writing {
        assert!(length > 0 && most > 0, "INV-39: {length} bytes in extents of {most}");
        let longest = length.div_ceil(length.div_ceil(most));
        let starts = (0..length).step_by(longest);
        let lengths: Vec<usize> = starts.map(|start| longest.min(length - start)).collect();
        let cut = lengths.iter().sum::<usize>();
        assert_eq!(cut, length, "INV-39: the pieces of a value are not the value");
        let written = vec![None; lengths.len()];
        Writing { lengths, written, full: Vec::new(), given: None }
    }

    /// Cuts a value that consists of several parts into the pieces.
    pub fn cut<'a>(&self, parts: &[&'a [u8]]) -> Vec<Vec<&'a [u8]>> {
        let mut parts = parts.iter().copied();
        let mut rest: &[u8] = &[];
        let piece = |length: &usize| {
            let (mut left, mut piece) = (*length, Vec::with_capacity(1));
            while left > 0 {
                if rest.is_empty() {
                    rest = parts.next().expect("the parts are as long as the value");
                    continue;
                }
                let (some, more) = rest.split_at(left.min(rest.len()));
                piece.push(some);
                (left, rest) = (left - some.len(), more);
            }
            piece
        };
        let pieces = self.lengths.iter().map(piece).collect();
        let more = rest.len() + parts.map(<[u8]>::len).sum::<usize>();
        assert_eq!(more, 0, "INV-39: no piece has the last {more} bytes of a value");
        pieces
    }

    /// The extents that are written.
    pub fn written(&self) -> impl Iterator<Item = &ExtentRef> {
        self.written.iter().flatten()
    }

    /// The next step. At most `at_once` pieces are for one block, and they count as its content
    /// from now on.
    pub fn next(&mut self, routing: &mut Routing, now: Time, at_once: usize) -> WriteStep {
        let missing: Vec<usize> =
            (0..self.lengths.len()).filter(|i| self.written[*i].is_none()).collect();
        let Some(longest) = missing.iter().map(|i| self.lengths[*i] as u64).max() else {
            return WriteStep::Done(self.written().copied().collect());
        };
        let current = routing.extents.filter(|room| !self.full.contains(&room.at));
        let room = self.given.take().or(current.filter(|room| room.free >= longest));
        let Some(ExtentRoom { at, free, .. }) = room else {
            // The controller learns from reports how full a block is, and might return one that has
            // just been filled. Extents written earlier may have been freed since, so that it has
            // space again.
            let full = current.filter(|room| now < room.written + 2 * REPORT_INTERVAL);
            self.full.extend(full.map(|room| room.at));
            let full = self.full.iter().map(|at| at.block.0).collect();
            return WriteStep::Ask { bytes: longest as usize, full };
        };
        let fit = (free / longest).clamp(1, at_once as u64) as usize;
        let pieces: Vec<usize> = missing.into_iter().take(fit).collect();
        // Counted before they are sent, because other threads of this process may write to the
        // block at the same time. However long that takes, the block has no space for another piece
        // of this value.
        if let Some(room) = routing.extents.as_mut().filter(|room| room.at == at) {
            let sent: usize = pieces.iter().map(|i| self.lengths[*i]).sum();
            room.free = room.free.saturating_sub(sent as u64);
            room.written = now;
            if room.free < longest {
                self.leave(at);
            }
        }
        WriteStep::Put { at, pieces }
    }

    /// Marks a block as full for this value.
    fn leave(&mut self, at: BlockAt) {
        if !self.full.contains(&at) {
            self.full.push(at);
        }
    }

    /// Takes the controller's reply to the request for a block.
    pub fn given(
        &mut self,
        routing: &mut Routing,
        now: Time,
        entries: &[MapEntry],
    ) -> Result<(), Error> {
        let entry = entries.first().ok_or_else(|| {
            Error::new(Status::BadFrame, "the reply to ExtentBlocks names no block")
        })?;
        routing.learn_servers(entries);
        self.given = Some(ExtentRoom { at: entry.at(), free: entry.end, written: now });
        routing.extents = self.given;
        Ok(())
    }

    /// Records that a piece was written to a block under this id, or why not. `Err` ends the whole
    /// value.
    pub fn wrote(
        &mut self,
        routing: &mut Routing,
        at: BlockAt,
        piece: usize,
        result: Result<u64, Error>,
    ) -> Result<(), Error> {
        match result {
            Ok(id) => {
                let len = self.lengths[piece];
                let before = self.written[piece];
                assert!(
                    before.is_none(),
                    "INV-39: piece {piece} is written to {at:?}, and {before:?}"
                );
                self.written[piece] = Some(ExtentRef { at, id, len: len as u32 });
                Ok(())
            }
            // Another block has space, or is created.
            Err(e) if matches!(e.status, Status::BlockFull | Status::ExtentGone) => {
                self.leave(at);
                routing.extents = routing.extents.filter(|current| current.at != at);
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}

impl Routing {
    /// Records the servers that have these blocks of extents.
    pub fn learn_servers(&mut self, entries: &[MapEntry]) {
        for entry in entries {
            self.servers.insert(BlockId(entry.block).server().0, entry.address.clone());
        }
    }

    /// Whether the addresses of the servers with these extents are known.
    pub fn knows_servers(&self, list: &[ExtentRef]) -> bool {
        list.iter().all(|extent| self.servers.contains_key(&extent.at.block.server().0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use honeycomb_wire::messages::PartitionMap;

    fn routing() -> Routing {
        Routing::new(PartitionMap { version: 1, router: 3, block_size: 800, entries: Vec::new() })
    }

    fn entry(block: u64, free: u64) -> MapEntry {
        MapEntry { start: 0, end: free, block, epoch: 1, address: "a:1".into() }
    }

    fn at(block: u64) -> BlockAt {
        BlockAt::of(block, 1)
    }

    #[test]
    fn pieces_are_alike_and_none_is_too_long() {
        for length in [1, 99, 100, 101, 150, 199, 200, 201, 999, 1000, 1001] {
            let value: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let writing = Writing::new(length, 100);
            // The parts may be of any lengths, including empty ones.
            let (first, rest) = value.split_at(length / 3);
            let scattered: Vec<&[u8]> = [first, &[]].into_iter().chain(rest.chunks(7)).collect();
            assert_eq!(writing.cut(&[&value]).len(), length.div_ceil(100));
            let whole = |parts: &[&[u8]]| -> Vec<Vec<u8>> {
                writing.cut(parts).iter().map(|piece| piece.concat()).collect()
            };
            assert_eq!(whole(&scattered), whole(&[&value]));
            assert_eq!(whole(&scattered).concat(), value);
            let lengths: Vec<usize> = whole(&[&value]).iter().map(Vec::len).collect();
            assert_eq!(lengths, writing.lengths);
            assert!(lengths.iter().all(|length| *length <= 100 && 2 * length + 1 >= lengths[0]));
        }
    }

    #[test]
    fn what_has_no_room_goes_elsewhere_and_what_is_written_stays() {
        let (mut writing, mut routing, now) = (Writing::new(250, 100), routing(), Time::ZERO);
        let ask = |full: &[u64]| WriteStep::Ask { bytes: 84, full: full.to_vec() };
        assert_eq!(writing.next(&mut routing, now, 8), ask(&[]));
        writing.given(&mut routing, now, &[entry(1, 170)]).unwrap();
        let put =
            |block, pieces: &[usize]| WriteStep::Put { at: at(block), pieces: pieces.to_vec() };
        assert_eq!(writing.next(&mut routing, now, 8), put(1, &[0, 1]));
        writing.wrote(&mut routing, at(1), 0, Ok(7)).unwrap();
        let full = Error::new(Status::BlockFull, "full");
        writing.wrote(&mut routing, at(1), 1, Err(full)).unwrap();
        assert_eq!(writing.next(&mut routing, now, 8), ask(&[1]));
        // The block from the controller is tried even if it is believed to be full.
        writing.given(&mut routing, now, &[entry(2, 10)]).unwrap();
        assert_eq!(writing.next(&mut routing, now, 8), put(2, &[1]));
        writing.wrote(&mut routing, at(2), 1, Ok(3)).unwrap();
        writing.given(&mut routing, now, &[entry(3, 800)]).unwrap();
        assert_eq!(writing.next(&mut routing, now, 8), put(3, &[2]));
        writing.wrote(&mut routing, at(3), 2, Ok(1)).unwrap();
        let extent = |block, id, len| ExtentRef { at: at(block), id, len };
        let list = vec![extent(1, 7, 84), extent(2, 3, 84), extent(3, 1, 82)];
        assert_eq!(writing.next(&mut routing, now, 8), WriteStep::Done(list));
    }

    /// The controller knows a block's content only from the last report: the client that has filled
    /// a block since excludes it in its request.
    #[test]
    fn what_was_just_filled_is_not_asked_for_again() {
        let (mut first, mut routing, now) = (Writing::new(250, 100), routing(), Time::ZERO);
        first.given(&mut routing, now, &[entry(1, 170)]).unwrap();
        assert!(matches!(first.next(&mut routing, now, 8), WriteStep::Put { .. }));
        first.wrote(&mut routing, at(1), 0, Ok(1)).unwrap();
        first.wrote(&mut routing, at(1), 1, Ok(2)).unwrap();
        let ask = |bytes, full: &[u64]| WriteStep::Ask { bytes, full: full.to_vec() };
        assert_eq!(first.next(&mut routing, now, 8), ask(82, &[1]));
        assert_eq!(Writing::new(250, 100).next(&mut routing, now, 8), ask(84, &[1]));
        // By then the controller has a newer report, and old extents may have been freed.
        let later = now + 2 * REPORT_INTERVAL;
        assert_eq!(Writing::new(250, 100).next(&mut routing, later, 8), ask(84, &[]));
    }

    #[test]
    fn an_error_that_says_nothing_of_room_ends_it() {
        let (mut writing, mut routing) = (Writing::new(250, 100), routing());
        let lost = Error::new(Status::DataLost, "lost");
        let ended = writing.wrote(&mut routing, at(1), 0, Err(lost)).unwrap_err();
        assert_eq!(ended.status, Status::DataLost);
    }
}
