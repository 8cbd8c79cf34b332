//! Appends of more than an eighth of a block, which are atomic too (ADR 0058).
//!
//! The bytes are written to private blocks, as to a file that begins there. One change of the controller
//! adds these blocks to the file. They serve when the blocks before them have sealed: the client requests
//! that, and learns its offset from it. A block that is gone before the change costs only the work: the
//! bytes are written again.

use crate::error::Error;
use crate::file::File;
use crate::large::TRIES;
use crate::placing::{PlaceStep, Placing, after_commit, unknown};
use crate::route::Target;
use crate::structure::{Args, Exchange};
use crate::transport::Sink;
use honeycomb_types::Epoch;
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::{Op, Status};

impl File {
    /// Appends more bytes than any block is certain to take.
    pub(crate) fn append_large(&self, bytes: &[u8]) -> Result<u64, Error> {
        let (mut last, mut late) = (String::new(), false);
        // A server that is lost answers no more. The next blocks are on another one.
        let mut is_gone = |e: &Error| match e.status {
            Status::ExtentGone | Status::OutcomeUnknown => true,
            Status::DeadlineExceeded => !std::mem::replace(&mut late, true),
            _ => false,
        };
        for _ in 0..TRIES {
            let private = File(self.structure().begin_append(bytes.len() as u64)?);
            let blocks = match self.fill(&private, bytes) {
                Ok(blocks) => blocks,
                Err(e) if is_gone(&e) => {
                    last = e.message;
                    continue;
                }
                Err(e) => return Err(e),
            };
            match self.structure().commit_append(blocks[0].at()) {
                Ok(epoch) => return self.place(blocks, epoch),
                Err(e) if e.status == Status::WrongEpoch => last = e.message,
                Err(e) if matches!(e.status, Status::Unavailable | Status::LogFailed) => {
                    return Err(unknown(e));
                }
                Err(e) => return Err(e),
            }
        }
        let (address, length) = (self.structure().address(), bytes.len());
        let text = format!(
            "{address}: an append of {length} bytes lost its blocks in each of {TRIES} tries \
             (last: {last})"
        );
        Err(Error::new(Status::Busy, text))
    }

    /// Writes the bytes to private blocks. All of these but the last one are sealed then.
    fn fill(&self, private: &File, bytes: &[u8]) -> Result<Vec<MapEntry>, Error> {
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

    /// Lets the blocks before the private ones seal, and returns the offset of the append.
    fn place(&self, private: Vec<MapEntry>, epoch: Epoch) -> Result<u64, Error> {
        let structure = self.structure();
        let mut placing = Placing::new(private, epoch);
        loop {
            match structure.with_routing(|routing| placing.next(routing)) {
                PlaceStep::Done(offset) => return offset,
                PlaceStep::Refresh => {
                    structure.refresh(structure.deadline()).map_err(after_commit)?;
                }
                PlaceStep::Check(at) => placing.checked(structure.commit_append(at).map(drop))?,
                PlaceStep::Continue(tail) => {
                    let replied = structure.run(Exchange {
                        op: Op::FileContinue,
                        target: Target::Block(tail),
                        args: Args::Fixed(&[]),
                        payload: &[],
                        sink: Sink::None,
                        wait_until: None,
                    });
                    let tail = replied.as_ref().map_or(tail, |replied| replied.entry.at());
                    let result = replied.as_ref().map_err(Error::clone);
                    let result = result.map(|replied| (replied.header.value, &replied.args[..]));
                    structure.with_routing(|routing| placing.continued(routing, tail, result))?;
                }
            }
        }
    }
}
