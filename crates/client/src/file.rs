//! Files: append-only bytes, shared by any number of writers and readers (paper, 5.1).

use crate::error::Error;
use crate::route::Target;
use crate::structure::{Args, Exchange, Replied, Structure};
use crate::transport::Sink;
use honeycomb_types::limits::LARGE_FRACTION;
use honeycomb_wire::notice::{Filter, kinds};
use honeycomb_wire::{Op, Status};
use std::time::Duration;

/// An open file.
///
/// Linearizable per file: an append that has returned is in every read that begins later, by any
/// client. Data is lost with its server (`memory`). Safe to share between threads.
pub struct File(pub(crate) Structure);

impl File {
    /// Most bytes of one request to read.
    pub(crate) const PIECE: usize = 16 << 20;
    /// Maximum bytes that fill up a block at once: enough to make the round trip negligible, and no
    /// more, because other writers wait meanwhile.
    const FILL: usize = 1 << 20;

    /// The properties that every structure has.
    pub fn structure(&self) -> &Structure {
        &self.0
    }

    /// Maximum bytes of an append that needs no blocks of its own: an eighth of a block. A longer one
    /// costs two requests to the controller, and a few to servers.
    pub fn append_limit(&self) -> usize {
        (self.0.block_size() / LARGE_FRACTION) as usize
    }

    /// Appends bytes of any length, contiguously and atomically, and returns their offset. Concurrent
    /// appenders never overwrite each other. More than an eighth of a block is written to blocks of its
    /// own, which one change adds to the file; if that fails before the change, nothing is appended.
    /// Bytes that not even the empty cluster could hold are `LimitExceeded`.
    ///
    /// Exactly once in effect: a lost reply is recovered by repeating the request under the same
    /// number. When that is not possible, the error is `OutcomeUnknown` or `DeadlineExceeded`.
    pub fn append(&self, bytes: &[u8]) -> Result<u64, Error> {
        match bytes.len() <= self.append_limit() {
            true => Ok(self.append_piece(bytes)?.0),
            false => self.append_large(bytes),
        }
    }

    /// Appends a piece; returns its offset in the file, and its offset in the block that stored it.
    fn append_piece(&self, bytes: &[u8]) -> Result<(u64, u64), Error> {
        let replied = self.0.run(Exchange {
            op: Op::FileAppend,
            target: Target::Tail,
            args: Args::Fixed(&[]),
            payload: &[bytes],
            sink: Sink::None,
            wait_until: None,
        })?;
        Ok((replied.entry.start + replied.header.value, replied.header.value))
    }

    /// Appends bytes of any length as several appends, in order; appends of other writers may come
    /// between them. Returns the offset of the first.
    pub fn write_all(&self, bytes: &[u8]) -> Result<u64, Error> {
        let (limit, block) = (self.append_limit(), self.0.block_size());
        let most = limit.max(File::FILL);
        let (mut first, mut rest) = (None, bytes);
        // Free bytes of the block that stored the last piece: a block accepts an append above the
        // limit if it has space for it. A block of unknown fill, such as the next one, gets a piece
        // that any block accepts.
        let mut left = 0;
        loop {
            let length = if left == 0 { limit } else { left.min(most) };
            let (piece, behind) = rest.split_at(length.min(rest.len()));
            let whole = !piece.is_empty() || rest.is_empty();
            assert!(whole, "INV-33: a piece of {length} bytes of {} is empty", rest.len());
            let (offset, within) = match self.append_piece(piece) {
                // Other writers appended meanwhile.
                Err(e) if e.status == Status::ValueTooLarge && piece.len() > limit => {
                    left = 0;
                    continue;
                }
                appended => appended?,
            };
            let first = *first.get_or_insert(offset);
            rest = behind;
            if rest.is_empty() {
                return Ok(first);
            }
            left = (block - (within + piece.len() as u64).min(block)) as usize;
        }
    }

    /// Reads into a buffer from an offset; returns the number of bytes. It is less than the
    /// buffer's length only at the end of the data appended so far.
    pub fn read_into(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        let mut done = 0;
        while done < buffer.len() {
            let got = self.read_piece(offset + done as u64, &mut buffer[done..])?;
            if got == 0 {
                break;
            }
            done += got;
            let room = buffer.len();
            assert!(done <= room, "INV-23: {done} bytes were read into {room}");
        }
        Ok(done)
    }

    /// Sends one request: reads the range as far as one block has it.
    fn read_piece(&self, position: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        let want = buffer.len().min(File::PIECE);
        let sink = Sink::Slice(&mut buffer[..want]);
        let replied = self.0.run(File::read_exchange(position, want as u32, sink))?;
        read_length(&replied, want)
    }

    pub(crate) fn read_exchange(
        position: u64,
        length: u32,
        sink: Sink<'_>,
    ) -> Exchange<'static, '_> {
        let (target, args) = (Target::Offset(position), Args::Read { position, length });
        Exchange { op: Op::FileRead, target, args, payload: &[], sink, wait_until: None }
    }

    /// Bytes appended so far.
    pub fn size(&self) -> Result<u64, Error> {
        Ok(self.size_and_seal()?.0)
    }

    /// Whether it was sealed.
    pub fn sealed(&self) -> Result<bool, Error> {
        Ok(self.size_and_seal()?.1)
    }

    pub(crate) fn size_and_seal(&self) -> Result<(u64, bool), Error> {
        let replied = self.0.run(Exchange {
            op: Op::FileSize,
            target: Target::Tail,
            args: Args::Fixed(&[]),
            payload: &[],
            sink: Sink::None,
            wait_until: None,
        })?;
        let sealed = replied.args.first() == Some(&1);
        Ok((replied.entry.start + replied.header.value, sealed))
    }

    /// Waits until the file is sealed, or until it has at least `size` bytes if that is given.
    /// Returns false if `wait` elapsed first, or a signal interrupted the thread.
    pub fn wait_until(&self, size: Option<u64>, wait: Duration) -> Result<bool, Error> {
        let wanted = if size.is_some() { kinds::APPEND | kinds::SEAL } else { kinds::SEAL };
        self.0.wait_until(wanted, Filter::All, wait, || {
            let (now, sealed) = self.size_and_seal()?;
            Ok(sealed || size.is_some_and(|size| now >= size))
        })
    }

    /// Makes the file immutable for good; returns its final size. Sealing twice is allowed.
    pub fn seal(&self) -> Result<u64, Error> {
        let replied = self.0.run(Exchange {
            op: Op::FileSeal,
            target: Target::Tail,
            args: Args::Fixed(&[]),
            payload: &[],
            sink: Sink::None,
            wait_until: None,
        })?;
        Ok(replied.entry.start + replied.header.value)
    }
}

/// The number of bytes that a read returned; at most as many as were requested.
pub(crate) fn read_length(replied: &Replied, requested: usize) -> Result<usize, Error> {
    let got = replied.header.payload_len as usize;
    if got > requested {
        let text = format!("the reply to a read of {requested} bytes has {got} bytes");
        return Err(Error::new(Status::BadFrame, text));
    }
    Ok(got)
}
