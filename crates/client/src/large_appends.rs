//! Appends of more than an eighth of a block, which are atomic too (ADR 0058).
//!
//! The bytes are written to private blocks, as to a file that begins there. One change of the controller
//! adds these blocks to the file. They serve when the blocks before them have sealed: the client requests
//! that, and learns its offset from it. A block that is gone before the change costs only the work: the
//! bytes are written again.

use crate::error::Error;
use crate::file::File;
use crate::large::TRIES;
use crate::route::Target;
use crate::structure::{Args, Exchange};
use crate::transport::Sink;
use honeycomb_types::{BlockAt, Epoch};
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::{Op, Status};

/// Blocks that are sealed without a check that the private blocks still have their names: usually the tail
/// and its successor.
const HOPS_UNCHECKED: usize = 2;

impl File {
    /// Appends more bytes than any block is certain to take.
    pub(crate) fn append_large(&self, bytes: &[u8]) -> Result<u64, Error> {
        let (mut gone, mut late) = (None, false);
        for _ in 0..TRIES {
            let blocks = match self.fill(bytes) {
                Ok(blocks) => blocks,
                // A server that is lost answers no more. The next blocks are on another one.
                Err(e)
                    if is_gone(&e)
                        || e.status == Status::DeadlineExceeded
                            && !std::mem::replace(&mut late, true) =>
                {
                    gone = Some(e);
                    continue;
                }
                Err(e) => return Err(not_committed(e)),
            };
            match self.structure().commit_append(blocks[0].at()) {
                Ok(epoch) => return self.place(&blocks, epoch),
                Err(e) if e.status == Status::WrongEpoch => gone = Some(e),
                Err(e) if matches!(e.status, Status::Unavailable | Status::LogFailed) => {
                    return Err(unknown(e));
                }
                Err(e) => return Err(e),
            }
        }
        let (address, last) =
            (self.structure().address(), gone.map_or(String::new(), |e| e.message));
        let length = bytes.len();
        let text = format!(
            "{address}: an append of {length} bytes lost its blocks in each of {TRIES} tries \
             (last: {last})"
        );
        Err(Error::new(Status::Busy, text))
    }

    /// Writes the bytes to private blocks. All of these but the last one are sealed then.
    fn fill(&self, bytes: &[u8]) -> Result<Vec<MapEntry>, Error> {
        let private = File(self.structure().begin_append(bytes.len() as u64)?);
        let written = private.write_all(bytes);
        let blocks = private.structure().entries();
        let refused = match written {
            Ok(0) => return Ok(blocks),
            Ok(start) => {
                let text = format!("private blocks begin with {start} other bytes (INV-62)");
                Error::new(Status::BadFrame, text)
            }
            Err(e) => e,
        };
        self.structure().drop_append(blocks[0].at());
        Err(refused)
    }

    /// Seals the blocks before the private ones, and returns the offset of the first of these. Blocks of a
    /// greater epoch were allocated after the commit.
    fn place(&self, private: &[MapEntry], epoch: Epoch) -> Result<u64, Error> {
        let structure = self.structure();
        let offset = || structure.with_routing(|routing| routing.offset_of(private));
        for hop in 0.. {
            if hop == HOPS_UNCHECKED {
                // Others may have added many blocks since this client saw the map.
                structure.refresh(structure.deadline()).map_err(after_commit)?;
            }
            if let Some(offset) = offset() {
                return Ok(offset);
            }
            let gone = hop > HOPS_UNCHECKED && !self.is_linked(private)?;
            let before = structure.with_routing(|routing| routing.is_before(epoch));
            match self.pass_on() {
                // The file was sealed before the private blocks, which were freed: they are not among
                // the blocks of the map, under whatever names.
                Err(e) if e.status == Status::Sealed && before => return Err(e),
                Err(e) if e.status == Status::Sealed => return Err(unknown(e)),
                Err(e) => return Err(after_commit(e)),
                Ok(()) if gone => {
                    let why = "its blocks have moved to other servers";
                    let unknown = || unknown(Error::new(Status::WrongEpoch, why));
                    return offset().ok_or_else(unknown);
                }
                Ok(()) => {}
            }
        }
        unreachable!("an error ends the loop")
    }

    /// Whether the first or the last private block still has the name of the commit.
    fn is_linked(&self, private: &[MapEntry]) -> Result<bool, Error> {
        for entry in [&private[0], &private[private.len() - 1]] {
            match self.structure().commit_append(entry.at()) {
                Ok(_) => return Ok(true),
                Err(e) if e.status == Status::WrongEpoch => {}
                Err(e) => return Err(after_commit(e)),
            }
        }
        Ok(false)
    }

    /// Lets the file continue behind the last block that is known.
    fn pass_on(&self) -> Result<(), Error> {
        let structure = self.structure();
        let tail = structure.with_map(|map| map.entries.last().map(MapEntry::at));
        let tail: BlockAt = tail.expect("a map has an entry");
        let replied = structure.run(Exchange {
            op: Op::FileContinue,
            target: Target::Block(tail),
            args: Args::Fixed(&[]),
            payload: &[],
            sink: Sink::None,
            wait_until: None,
        });
        match replied {
            Ok(replied) => {
                let (tail, length) = (replied.entry.at(), replied.header.value);
                structure.with_routing(|routing| routing.passed_on(tail, length, &replied.args))
            }
            // It was empty, and was freed when another client sealed it: the map is a newer one.
            Err(e) if e.status == Status::UnknownBlock => Ok(()),
            Err(e) => Err(e),
        }
    }
}

/// Whether private blocks were lost before the bytes in them could be committed.
fn is_gone(e: &Error) -> bool {
    matches!(e.status, Status::ExtentGone | Status::OutcomeUnknown)
}

/// The error of an append that was not committed, whatever became of its private blocks.
fn not_committed(mut e: Error) -> Error {
    e.message = e.message.replace("it may have taken effect", "the append has not taken effect");
    e
}

/// The error of an append that was committed, and whose offset is unknown.
fn after_commit(mut e: Error) -> Error {
    match e.status {
        Status::LeaseExpired | Status::DataLost | Status::Removed => {
            e.message.push_str("; the append may have taken effect before that");
            e
        }
        _ => unknown(e),
    }
}

fn unknown(e: Error) -> Error {
    let text = format!("whether the append took effect is unknown: {}", e.message);
    Error::new(Status::OutcomeUnknown, text)
}
