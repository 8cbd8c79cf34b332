//! Writes a value as extents, without I/O: assigns pieces to blocks and decides when to request
//! another block (ADR 0018).
//!
//! The value is divided into pieces of equal length, each of which becomes an extent. A piece whose
//! reply was lost is simply written again, because an extent that no put names is freed
//! automatically.
//!
//! If there are more extents than one list names, lists of them are written as extents, level by level, until
//! one list names all (ADR 0059).

use crate::call::{ExtentRoom, Routing};
use crate::error::Error;
use honeycomb_types::limits::{
    LARGE_FRACTION, LIST_LEVELS_MAX, REPORT_INTERVAL, extents_per_list, extents_per_value,
};
use honeycomb_types::{BlockAt, BlockId, Time};
use honeycomb_wire::Status;
use honeycomb_wire::extents::{ExtentRef, ListHead, put_list};
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
    /// All of it is in extents: a put may store this list.
    Done(Vec<u8>),
}

/// How a value is divided.
#[derive(Clone, Copy, Debug)]
pub struct Division {
    /// Bytes of a piece at most.
    pub piece: usize,
    /// References in a list that is an extent at most, with its head; 3 or more.
    pub list: usize,
    /// References in the list of the value at most, with its head; 2 or more.
    pub top: usize,
}

impl Division {
    /// The largest parts that a store or queue with blocks of this size accepts.
    pub fn of(block_size: u64) -> Division {
        Division {
            piece: (block_size / LARGE_FRACTION) as usize,
            list: extents_per_list(block_size) as usize,
            top: extents_per_value(block_size) as usize,
        }
    }
}

/// The lists of one level: extents that name the extents below.
#[derive(Debug)]
struct Level {
    /// Levels of lists below the next one.
    above: u32,
    lists: Vec<Vec<u8>>,
    /// The extents that they name.
    extents: Vec<ExtentRef>,
}

/// A value that is being written as extents.
#[derive(Debug)]
pub struct Writing {
    division: Division,
    /// Bytes of the value.
    bytes: u64,
    /// The lists that are being written, after the pieces.
    level: Option<Level>,
    lengths: Vec<usize>,
    /// Bytes of the value in each of them.
    below: Vec<u64>,
    written: Vec<Option<ExtentRef>>,
    full: Vec<BlockAt>,
    /// The block from the controller's last reply, until it is used.
    given: Option<ExtentRoom>,
}

impl Writing {
    /// A value of this length (not 0).
    pub fn new(length: usize, division: Division) -> Writing {
        let most = division.piece;
        assert!(length > 0 && most > 0, "INV-39: {length} bytes in extents of {most}");
        let longest = length.div_ceil(length.div_ceil(most));
        let starts = (0..length).step_by(longest);
        let lengths: Vec<usize> = starts.map(|start| longest.min(length - start)).collect();
        let cut = lengths.iter().sum::<usize>();
        assert_eq!(cut, length, "INV-39: the pieces of a value are not the value");
        let written = vec![None; lengths.len()];
        Writing::of(division, lengths, written)
    }

    /// A value whose pieces are these extents.
    pub fn naming(extents: Vec<ExtentRef>, division: Division) -> Writing {
        let lengths = extents.iter().map(|extent| extent.len as usize).collect();
        Writing::of(division, lengths, extents.into_iter().map(Some).collect())
    }

    fn of(division: Division, lengths: Vec<usize>, written: Vec<Option<ExtentRef>>) -> Writing {
        let below: Vec<u64> = lengths.iter().map(|length| *length as u64).collect();
        let (bytes, full) = (below.iter().sum(), Vec::new());
        Writing { division, bytes, level: None, lengths, below, written, full, given: None }
    }

    /// The lists that are being written; `None` while pieces of the value are.
    pub fn lists(&self) -> Option<&[Vec<u8>]> {
        self.level.as_ref().map(|level| &level.lists[..])
    }

    /// Begins with the lists of the next level, or returns the list of the value.
    fn ascend(&mut self) -> Option<Vec<u8>> {
        let extents: Vec<ExtentRef> = self.written.iter().flatten().copied().collect();
        assert_eq!(extents.len(), self.lengths.len(), "INV-39: a list names some of the extents");
        let level = self.level.as_ref().map_or(0, |level| level.above);
        let head = |bytes| (level > 0).then_some(ListHead { level, bytes });
        let heads = usize::from(level > 0);
        let Division { list, top, .. } = self.division;
        if heads + extents.len() <= top {
            return Some(put_list(head(self.bytes), &extents));
        }
        assert!(level < LIST_LEVELS_MAX, "INV-63: {} bytes need another level", self.bytes);
        let lists = extents.len().div_ceil(list - heads);
        let each = extents.len().div_ceil(lists);
        let below: Vec<u64> = self.below.chunks(each).map(|some| some.iter().sum()).collect();
        let named = extents.chunks(each).zip(&below);
        let lists: Vec<Vec<u8>> = named.map(|(some, bytes)| put_list(head(*bytes), some)).collect();
        (self.lengths, self.below) = (lists.iter().map(Vec::len).collect(), below);
        self.written = vec![None; lists.len()];
        self.level = Some(Level { above: level + 1, lists, extents });
        None
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

    /// The extents that are written and may have no owner yet.
    pub fn written(&self) -> impl Iterator<Item = &ExtentRef> {
        let below = self.level.iter().flat_map(|level| &level.extents);
        below.chain(self.written.iter().flatten())
    }

    /// The next step. At most `at_once` pieces are for one block, and they count as its content
    /// from now on.
    pub fn next(&mut self, routing: &mut Routing, now: Time, at_once: usize) -> WriteStep {
        let missing: Vec<usize> =
            (0..self.lengths.len()).filter(|i| self.written[*i].is_none()).collect();
        let Some(longest) = missing.iter().map(|i| self.lengths[*i] as u64).max() else {
            return match self.ascend() {
                Some(list) => WriteStep::Done(list),
                None => self.next(routing, now, at_once),
            };
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
            // An extent that a list names is gone: the value is written again.
            Err(e) if e.status == Status::ExtentGone && self.level.is_some() => Err(e),
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

    use honeycomb_types::limits::EXTENT_REF;
    use honeycomb_wire::extents::{extents, value_length};
    use honeycomb_wire::messages::PartitionMap;

    fn routing() -> Routing {
        Routing::new(PartitionMap { version: 1, router: 3, block_size: 800, entries: Vec::new() })
    }

    fn entry(block: u64, free: u64) -> MapEntry {
        MapEntry { start: 0, end: free, block, epoch: 1, address: "a:1".into() }
    }

    const DIVISION: Division = Division { piece: 100, list: 4, top: 3 };

    fn at(block: u64) -> BlockAt {
        BlockAt::of(block, 1)
    }

    #[test]
    fn pieces_are_alike_and_none_is_too_long() {
        for length in [1, 99, 100, 101, 150, 199, 200, 201, 999, 1000, 1001] {
            let value: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let writing = Writing::new(length, DIVISION);
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
        let (mut writing, mut routing, now) = (Writing::new(250, DIVISION), routing(), Time::ZERO);
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
        let list = put_list(None, &[extent(1, 7, 84), extent(2, 3, 84), extent(3, 1, 82)]);
        assert_eq!(writing.next(&mut routing, now, 8), WriteStep::Done(list));
    }

    /// The controller knows a block's content only from the last report: the client that has filled
    /// a block since excludes it in its request.
    #[test]
    fn what_was_just_filled_is_not_asked_for_again() {
        let (mut first, mut routing, now) = (Writing::new(250, DIVISION), routing(), Time::ZERO);
        first.given(&mut routing, now, &[entry(1, 170)]).unwrap();
        assert!(matches!(first.next(&mut routing, now, 8), WriteStep::Put { .. }));
        first.wrote(&mut routing, at(1), 0, Ok(1)).unwrap();
        first.wrote(&mut routing, at(1), 1, Ok(2)).unwrap();
        let ask = |bytes, full: &[u64]| WriteStep::Ask { bytes, full: full.to_vec() };
        assert_eq!(first.next(&mut routing, now, 8), ask(82, &[1]));
        assert_eq!(Writing::new(250, DIVISION).next(&mut routing, now, 8), ask(84, &[1]));
        // By then the controller has a newer report, and old extents may have been freed.
        let later = now + 2 * REPORT_INTERVAL;
        assert_eq!(Writing::new(250, DIVISION).next(&mut routing, later, 8), ask(84, &[]));
    }

    /// Writes all of a value to one block of any room, with the content of each extent.
    fn write_all(writing: &mut Writing, value: &[u8], content: &mut Vec<Vec<u8>>) -> Vec<u8> {
        let mut routing = routing();
        let pieces: Vec<Vec<u8>> = match writing.lists() {
            None if !value.is_empty() => writing.cut(&[value]).iter().map(|p| p.concat()).collect(),
            _ => Vec::new(),
        };
        loop {
            match writing.next(&mut routing, Time::ZERO, 3) {
                WriteStep::Done(list) => return list,
                WriteStep::Ask { .. } => {
                    writing.given(&mut routing, Time::ZERO, &[entry(1, 1 << 30)]).unwrap();
                }
                WriteStep::Put { at, pieces: some } => {
                    for i in some {
                        content.push(
                            writing
                                .lists()
                                .map_or_else(|| pieces[i].clone(), |lists| lists[i].clone()),
                        );
                        let id = content.len() as u64;
                        writing.wrote(&mut routing, at, i, Ok(id)).unwrap();
                    }
                }
            }
        }
    }

    /// The value that a list names, with the number of references in each list.
    fn read_all(list: &[u8], content: &[Vec<u8>], depth: u32, lengths: &mut Vec<usize>) -> Vec<u8> {
        let (head, named) = (ListHead::of(list), extents(list).unwrap());
        assert_eq!(head.map_or(0, |head| head.level), depth);
        lengths.push(list.len() / EXTENT_REF);
        let parts = named.iter().map(|extent| {
            let part = &content[extent.id as usize - 1];
            assert_eq!(part.len(), extent.len as usize);
            match depth {
                0 => part.clone(),
                _ => read_all(part, content, depth - 1, lengths),
            }
        });
        let value = parts.collect::<Vec<_>>().concat();
        assert_eq!(value_length(list), value.len() as u64);
        value
    }

    #[test]
    fn lists_of_extents_are_extents_where_one_list_does_not_name_all() {
        // Three references, then two behind a head to lists of four, then to lists of three lists.
        for (length, level) in [(300, 0), (301, 1), (800, 1), (801, 2), (2000, 2), (2400, 2)] {
            let value: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let mut content = Vec::new();
            let mut writing = Writing::new(length, DIVISION);
            let list = write_all(&mut writing, &value, &mut content);
            let mut lengths = Vec::new();
            let found = read_all(&list, &content, level, &mut lengths);
            assert_eq!(found, value, "{length}");
            assert!(lengths[0] <= DIVISION.top && lengths.iter().all(|n| *n <= DIVISION.list));
            assert_eq!(writing.written().count() > 3, level > 0, "all that has no owner is kept");
            // The same pieces elsewhere have lists of the same lengths.
            let pieces = content.iter().take(length.div_ceil(100));
            let pieces =
                pieces.map(|piece| ExtentRef { at: at(5), id: 1, len: piece.len() as u32 });
            let mut again = Writing::naming(pieces.collect(), DIVISION);
            let other = write_all(&mut again, &[], &mut Vec::new());
            assert_eq!((other.len(), value_length(&other)), (list.len(), length as u64));
        }
    }

    /// The block that answers has the list's place, so it is not left: an extent that the list names is gone.
    #[test]
    fn list_whose_extents_are_gone_ends_it() {
        let (mut routing, named) = (routing(), |id| ExtentRef { at: at(1), id, len: 100 });
        let mut writing = Writing::naming((1..9).map(named).collect(), DIVISION);
        assert!(matches!(writing.next(&mut routing, Time::ZERO, 8), WriteStep::Ask { .. }));
        assert_eq!(writing.lists().map(<[_]>::len), Some(2));
        let gone = Error::new(Status::ExtentGone, "gone");
        let ended = writing.wrote(&mut routing, at(1), 0, Err(gone)).unwrap_err();
        assert_eq!(ended.status, Status::ExtentGone);
    }

    #[test]
    fn an_error_that_says_nothing_of_room_ends_it() {
        let (mut writing, mut routing) = (Writing::new(250, DIVISION), routing());
        let lost = Error::new(Status::DataLost, "lost");
        let ended = writing.wrote(&mut routing, at(1), 0, Err(lost)).unwrap_err();
        assert_eq!(ended.status, Status::DataLost);
    }
}
