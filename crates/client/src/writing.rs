//! A value on its way into extents, without I/O: which piece is written to which block, and when a
//! block has to be asked for (ADR 0018).
//!
//! The value is cut into pieces of like length, each of which becomes an extent. A piece whose answer
//! was lost is simply written again, because an extent that no put names goes by itself.

use crate::call::Routing;
use crate::error::Error;
use crate::route;
use honeycomb_types::{BlockAt, BlockId};
use honeycomb_wire::Status;
use honeycomb_wire::extents::ExtentRef;
use honeycomb_wire::messages::MapEntry;

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask the controller for a block that has room for so many bytes and is none of these.
    Ask {
        /// Bytes of the longest piece that is missing.
        bytes: usize,
        /// Blocks that refused a piece.
        full: Vec<u64>,
    },
    /// Write pieces to a block, side by side or one after the other.
    Put {
        /// The block.
        at: BlockAt,
        /// Those that are missing and have room there, as far as is known; at least one.
        pieces: Vec<usize>,
    },
    /// Every piece is an extent: a put may name them.
    Done(Vec<ExtentRef>),
}

/// One value that becomes extents.
#[derive(Debug)]
pub struct Writing {
    lengths: Vec<usize>,
    written: Vec<Option<ExtentRef>>,
    full: Vec<BlockAt>,
    /// What the controller answered to the last question, until it is made use of.
    given: Option<(BlockAt, u64)>,
}

impl Writing {
    /// A value of so many bytes, more than none, in pieces of at most `most`.
    pub fn new(length: usize, most: usize) -> Writing {
        let longest = length.div_ceil(length.div_ceil(most));
        let starts = (0..length).step_by(longest);
        let lengths: Vec<usize> = starts.map(|start| longest.min(length - start)).collect();
        let written = vec![None; lengths.len()];
        Writing { lengths, written, full: Vec::new(), given: None }
    }

    /// The pieces of the value.
    pub fn pieces<'a>(&self, value: &'a [u8]) -> Vec<&'a [u8]> {
        value.chunks(self.lengths[0]).collect()
    }

    /// Those that are written.
    pub fn written(&self) -> impl Iterator<Item = &ExtentRef> {
        self.written.iter().flatten()
    }

    /// What to do next. At most `at_once` pieces are for one block.
    pub fn next(&mut self, routing: &Routing, at_once: usize) -> Next {
        let missing: Vec<usize> =
            (0..self.lengths.len()).filter(|i| self.written[*i].is_none()).collect();
        let Some(longest) = missing.iter().map(|i| self.lengths[*i]).max() else {
            return Next::Done(self.written().copied().collect());
        };
        let fits = |(at, free): &(BlockAt, u64)| *free >= longest as u64 && !self.full.contains(at);
        let Some((at, free)) = self.given.take().or(routing.extents.filter(fits)) else {
            let full = self.full.iter().map(|at| at.block.0).collect();
            return Next::Ask { bytes: longest, full };
        };
        let fit = (free / longest as u64).clamp(1, at_once as u64) as usize;
        Next::Put { at, pieces: missing.into_iter().take(fit).collect() }
    }

    /// The controller has answered the question.
    pub fn given(&mut self, routing: &mut Routing, entries: &[MapEntry]) -> Result<(), Error> {
        let entry = entries.first().ok_or_else(|| {
            Error::new(Status::BadFrame, "ExtentBlocks was answered without a block")
        })?;
        routing.learn_servers(entries);
        self.given = Some((route::at(entry), entry.end));
        routing.extents = self.given;
        Ok(())
    }

    /// A piece was written to a block under this id, or was not. `Err` ends it all.
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
                self.written[piece] = Some(ExtentRef { at, id, len: len as u32 });
                if let Some((current, free)) = &mut routing.extents
                    && *current == at
                {
                    *free = free.saturating_sub(len as u64);
                }
                Ok(())
            }
            // Another one has room, or is made.
            Err(e) if matches!(e.status, Status::BlockFull | Status::ExtentGone) => {
                if !self.full.contains(&at) {
                    self.full.push(at);
                }
                routing.extents = routing.extents.filter(|(current, _)| *current != at);
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}

impl Routing {
    /// Notes where the servers are that have these blocks of extents.
    pub fn learn_servers(&mut self, entries: &[MapEntry]) {
        for entry in entries {
            self.servers.insert(BlockId(entry.block).server().0, entry.address.clone());
        }
    }

    /// Whether it is known where the servers are that have these extents.
    pub fn knows_servers(&self, list: &[ExtentRef]) -> bool {
        list.iter().all(|extent| self.servers.contains_key(&extent.at.block.server().0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use honeycomb_types::Epoch;
    use honeycomb_wire::messages::PartitionMap;

    fn routing() -> Routing {
        Routing::new(PartitionMap { version: 1, router: 3, block_size: 800, entries: Vec::new() })
    }

    fn entry(block: u64, free: u64) -> MapEntry {
        MapEntry { start: 0, end: free, block, epoch: 1, address: "a:1".into() }
    }

    fn at(block: u64) -> BlockAt {
        BlockAt { block: BlockId(block), epoch: Epoch(1) }
    }

    #[test]
    fn pieces_are_alike_and_none_is_too_long() {
        for length in [1, 99, 100, 101, 150, 199, 200, 201, 999, 1000, 1001] {
            let value: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let writing = Writing::new(length, 100);
            let pieces = writing.pieces(&value);
            assert_eq!(pieces.len(), length.div_ceil(100));
            assert_eq!(pieces.concat(), value);
            let lengths: Vec<usize> = pieces.iter().map(|piece| piece.len()).collect();
            assert_eq!(lengths, writing.lengths);
            assert!(lengths.iter().all(|length| *length <= 100 && 2 * length + 1 >= lengths[0]));
        }
    }

    #[test]
    fn what_has_no_room_goes_elsewhere_and_what_is_written_stays() {
        let (mut writing, mut routing) = (Writing::new(250, 100), routing());
        let ask = |full: &[u64]| Next::Ask { bytes: 84, full: full.to_vec() };
        assert_eq!(writing.next(&routing, 8), ask(&[]));
        writing.given(&mut routing, &[entry(1, 170)]).unwrap();
        let put = |block, pieces: &[usize]| Next::Put { at: at(block), pieces: pieces.to_vec() };
        assert_eq!(writing.next(&routing, 8), put(1, &[0, 1]));
        writing.wrote(&mut routing, at(1), 0, Ok(7)).unwrap();
        let full = Error::new(Status::BlockFull, "full");
        writing.wrote(&mut routing, at(1), 1, Err(full)).unwrap();
        assert_eq!(writing.next(&routing, 8), ask(&[1]));
        // What the controller gives is tried, whatever is believed of its room.
        writing.given(&mut routing, &[entry(2, 10)]).unwrap();
        assert_eq!(writing.next(&routing, 8), put(2, &[1]));
        writing.wrote(&mut routing, at(2), 1, Ok(3)).unwrap();
        writing.given(&mut routing, &[entry(3, 800)]).unwrap();
        assert_eq!(writing.next(&routing, 8), put(3, &[2]));
        writing.wrote(&mut routing, at(3), 2, Ok(1)).unwrap();
        let extent = |block, id, len| ExtentRef { at: at(block), id, len };
        let list = vec![extent(1, 7, 84), extent(2, 3, 84), extent(3, 1, 82)];
        assert_eq!(writing.next(&routing, 8), Next::Done(list));
    }

    #[test]
    fn an_error_that_says_nothing_of_room_ends_it() {
        let (mut writing, mut routing) = (Writing::new(250, 100), routing());
        let lost = Error::new(Status::DataLost, "lost");
        let ended = writing.wrote(&mut routing, at(1), 0, Err(lost)).unwrap_err();
        assert_eq!(ended.status, Status::DataLost);
    }
}
