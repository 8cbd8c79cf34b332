//! The last part of a large append, without I/O: its private blocks are committed, and serve when the blocks
//! before them have sealed (ADR 0058). The client requests these seals, until the map lists a private block.
//! Usually two are left: the tail of the file and its successor.

use crate::call::Routing;
use crate::error::Error;
use crate::route;
use honeycomb_types::{BlockAt, Epoch};
use honeycomb_wire::Status;
use honeycomb_wire::messages::MapEntry;

/// Blocks that are sealed before the map is refreshed, because other clients may have added many blocks, and
/// before the client checks whether its private blocks still have their names.
const HOPS_UNCHECKED: u32 = 2;

/// The next step.
#[derive(Debug)]
pub enum PlaceStep {
    /// Refresh the map.
    Refresh,
    /// Commit once more by the name of this private block.
    Check(BlockAt),
    /// Let the file continue behind this block, the last one of the map.
    Continue(BlockAt),
    /// The offset of the append is known, or cannot be known.
    Done(Result<u64, Error>),
}

/// The names of the private blocks, which change if a drain moves the blocks to other servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Unchecked,
    FirstGone,
    Known,
    /// The first and the last are gone: only the next block of the file may show one of the others.
    Gone,
    Lost,
}

/// A large append that was committed.
#[derive(Debug)]
pub struct Placing {
    private: Vec<MapEntry>,
    /// Blocks of a greater epoch were allocated after the commit.
    epoch: Epoch,
    hops: u32,
    refreshed: bool,
    names: Names,
}

impl Placing {
    /// An append that fills these private blocks, with their starts in it.
    pub fn new(private: Vec<MapEntry>, epoch: Epoch) -> Placing {
        assert!(!private.is_empty(), "INV-62: a large append has no blocks");
        Placing { private, epoch, hops: 0, refreshed: false, names: Names::Unchecked }
    }

    /// The next step. After `Refresh`, `checked` and `continued`, the next one follows.
    pub fn next(&mut self, routing: &Routing) -> PlaceStep {
        if let Some(offset) = self.offset(routing) {
            return PlaceStep::Done(Ok(offset));
        }
        if self.hops == HOPS_UNCHECKED && !std::mem::replace(&mut self.refreshed, true) {
            return PlaceStep::Refresh;
        }
        let last = self.private.len() - 1;
        match self.names {
            Names::Unchecked if self.hops > HOPS_UNCHECKED => {
                return PlaceStep::Check(self.private[0].at());
            }
            Names::FirstGone => return PlaceStep::Check(self.private[last].at()),
            Names::Lost => {
                let why = "its blocks have moved to other servers";
                return PlaceStep::Done(Err(unknown(Error::new(Status::WrongEpoch, why))));
            }
            Names::Unchecked | Names::Known | Names::Gone => {}
        }
        match routing.map.entries.last() {
            Some(tail) => PlaceStep::Continue(tail.at()),
            None => {
                let why = "the map of the file names no block";
                PlaceStep::Done(Err(unknown(Error::new(Status::BadFrame, why))))
            }
        }
    }

    /// The start of the append, once the map lists one of its blocks.
    fn offset(&self, routing: &Routing) -> Option<u64> {
        let start = |entry: &MapEntry| {
            let ours = self.private.iter().find(|ours| ours.at() == entry.at())?;
            entry.start.checked_sub(ours.start)
        };
        routing.map.entries.iter().rev().find_map(start)
    }

    /// The controller has replied to `Check`. An error ends the append.
    pub fn checked(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        self.names = match result {
            Ok(()) => Names::Known,
            Err(e) if e.status != Status::WrongEpoch => return Err(after_commit(e)),
            Err(_) if self.names == Names::Unchecked && self.private.len() > 1 => Names::FirstGone,
            Err(_) => Names::Gone,
        };
        Ok(())
    }

    /// The last block of the map has sealed at a length, and its arguments name its successor; or it has not.
    /// An error ends the append.
    pub fn continued(
        &mut self,
        routing: &mut Routing,
        tail: BlockAt,
        result: Result<(u64, &[u8]), Error>,
    ) -> Result<(), Error> {
        match result {
            Ok((length, args)) => {
                let moved = route::successor(args).map_err(unknown)?;
                route::correct(&mut routing.map, tail, length, &moved);
            }
            // It was empty, and was freed when another client let the file continue: the map is a newer one.
            Err(e) if e.status == Status::UnknownBlock => {}
            // The file was sealed behind the private blocks: the newer map lists them.
            Err(e) if e.status == Status::Sealed && self.offset(routing).is_some() => return Ok(()),
            // The file was sealed before the private blocks, which were freed: the map lists none of them
            // under a later name.
            Err(e) if e.status == Status::Sealed && self.is_before(routing) => return Err(e),
            Err(e) => return Err(after_commit(e)),
        }
        self.hops += 1;
        self.names = match self.names {
            // If the file was sealed before them, one of the next blocks shows that.
            Names::Gone if self.is_before(routing) => Names::Gone,
            Names::Gone => Names::Lost,
            _ => Names::Unchecked,
        };
        Ok(())
    }

    /// Whether no block of the map was allocated after the commit.
    fn is_before(&self, routing: &Routing) -> bool {
        routing.map.entries.iter().all(|entry| entry.epoch <= self.epoch.0)
    }
}

/// The error of an append that was committed, and whose offset is unknown.
pub fn after_commit(mut e: Error) -> Error {
    match e.status {
        Status::LeaseExpired | Status::DataLost | Status::Removed => {
            e.message.push_str("; the append may have taken effect before that");
            e
        }
        _ => unknown(e),
    }
}

/// The error of an append of which nobody knows whether it was committed.
pub fn unknown(e: Error) -> Error {
    let text = format!("whether the append took effect is unknown: {}", e.message);
    Error::new(Status::OutcomeUnknown, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use honeycomb_types::Router;
    use honeycomb_wire::data::MovedArgs;
    use honeycomb_wire::messages::PartitionMap;

    fn entry(start: u64, block: u64, epoch: u64) -> MapEntry {
        MapEntry { start, end: u64::MAX, block, epoch, address: "a:1".into() }
    }

    fn file(entries: Vec<MapEntry>) -> Routing {
        let router = Router::Offset as u8;
        Routing::new(PartitionMap { version: 1, router, block_size: 65_536, entries })
    }

    fn goes_on(placing: &mut Placing, routing: &mut Routing, length: u64, next: MapEntry) {
        let PlaceStep::Continue(tail) = placing.next(routing) else { panic!("{placing:?}") };
        let args = MovedArgs { version: 1, entry: next }.encode();
        placing.continued(routing, tail, Ok((length, &args))).unwrap();
    }

    fn gone() -> Error {
        Error::new(Status::WrongEpoch, "gone")
    }

    fn sealed() -> Error {
        Error::new(Status::Sealed, "the file is sealed")
    }

    /// An append of two private blocks, and a file of one block.
    fn of_two_blocks() -> (Placing, Routing) {
        let private = vec![entry(0, 7, 3), entry(60_000, 8, 4)];
        (Placing::new(private, Epoch(5)), file(vec![entry(0, 1, 1)]))
    }

    #[test]
    fn offset_is_known_when_the_blocks_before_have_sealed() {
        let (mut placing, mut routing) = of_two_blocks();
        goes_on(&mut placing, &mut routing, 10, entry(0, 2, 2));
        goes_on(&mut placing, &mut routing, 0, entry(0, 7, 3));
        assert!(matches!(placing.next(&routing), PlaceStep::Done(Ok(10))));
    }

    /// A drain has moved the first block. The last one still shows the offset.
    #[test]
    fn block_that_kept_its_name_shows_the_offset_of_one_that_has_moved() {
        let (mut placing, mut routing) = of_two_blocks();
        goes_on(&mut placing, &mut routing, 10, entry(0, 2, 2));
        goes_on(&mut placing, &mut routing, 20, entry(0, 3, 2));
        assert!(matches!(placing.next(&routing), PlaceStep::Refresh));
        goes_on(&mut placing, &mut routing, 5, entry(0, 17, 9));
        let PlaceStep::Check(first) = placing.next(&routing) else { panic!("{placing:?}") };
        assert_eq!(first.block.0, 7);
        placing.checked(Err(gone())).unwrap();
        let PlaceStep::Check(last) = placing.next(&routing) else { panic!("{placing:?}") };
        assert_eq!(last.block.0, 8);
        placing.checked(Ok(())).unwrap();
        goes_on(&mut placing, &mut routing, 60_000, entry(0, 8, 4));
        assert!(matches!(placing.next(&routing), PlaceStep::Done(Ok(35))));
    }

    #[test]
    fn append_whose_blocks_have_all_moved_ends_as_unknown() {
        let mut placing = Placing::new(vec![entry(0, 7, 3)], Epoch(5));
        let mut routing = file(vec![entry(0, 1, 1)]);
        for (block, epoch) in [(2, 2), (17, 9)] {
            goes_on(&mut placing, &mut routing, 10, entry(0, block, epoch));
        }
        assert!(matches!(placing.next(&routing), PlaceStep::Refresh));
        goes_on(&mut placing, &mut routing, 10, entry(0, 18, 9));
        assert!(matches!(placing.next(&routing), PlaceStep::Check(_)));
        placing.checked(Err(gone())).unwrap();
        goes_on(&mut placing, &mut routing, 10, entry(0, 19, 9));
        let PlaceStep::Done(Err(e)) = placing.next(&routing) else { panic!("{placing:?}") };
        assert_eq!(e.status, Status::OutcomeUnknown);
    }

    /// The tail was empty and was freed, and the newer map ends with the private block, which is sealed: the
    /// append was reported as refused, and was visible.
    #[test]
    fn seal_behind_the_private_blocks_is_none_of_the_append() {
        let mut placing = Placing::new(vec![entry(0, 7, 3)], Epoch(5));
        let mut routing = file(vec![entry(0, 1, 1), entry(40, 2, 2)]);
        let PlaceStep::Continue(tail) = placing.next(&routing) else { panic!("{placing:?}") };
        routing.map.entries = vec![entry(0, 1, 1), entry(40, 7, 3)];
        placing.continued(&mut routing, tail, Err(sealed())).unwrap();
        assert!(matches!(placing.next(&routing), PlaceStep::Done(Ok(40))));
    }

    /// Both names are gone because the file was sealed before them. Blocks in between were taken for their
    /// later names, and the outcome was unknown.
    #[test]
    fn seal_before_the_private_blocks_is_found_behind_earlier_successors() {
        let (mut placing, mut routing) = of_two_blocks();
        goes_on(&mut placing, &mut routing, 10, entry(0, 2, 1));
        goes_on(&mut placing, &mut routing, 20, entry(0, 3, 1));
        assert!(matches!(placing.next(&routing), PlaceStep::Refresh));
        goes_on(&mut placing, &mut routing, 5, entry(0, 4, 2));
        for _ in 0..2 {
            assert!(matches!(placing.next(&routing), PlaceStep::Check(_)));
            placing.checked(Err(gone())).unwrap();
        }
        goes_on(&mut placing, &mut routing, 5, entry(0, 5, 2));
        let PlaceStep::Continue(tail) = placing.next(&routing) else { panic!("{placing:?}") };
        let ended = placing.continued(&mut routing, tail, Err(sealed())).unwrap_err();
        assert_eq!(ended.status, Status::Sealed);
    }

    /// The private blocks are freed with the end of a file, unless they serve under later names.
    #[test]
    fn seal_is_certain_only_before_later_blocks() {
        for (epoch, due) in [(4, Status::Sealed), (9, Status::OutcomeUnknown)] {
            let mut placing = Placing::new(vec![entry(0, 7, 3)], Epoch(5));
            let mut routing = file(vec![entry(0, 1, epoch)]);
            let tail = routing.map.entries[0].at();
            let ended = placing.continued(&mut routing, tail, Err(sealed())).unwrap_err();
            assert_eq!(ended.status, due);
        }
    }
}
