//! Sealed files in place: their blocks mapped where they lie, on the servers' machine.

use crate::error::Error;
use crate::file::File;
use crate::route::Target;
use crate::structure::{Args, Exchange};
use crate::transport::Sink;
use honeycomb_block::View;
use honeycomb_types::limits::BLOCK_SIZE_MIN;
use honeycomb_wire::{Op, Status};
use std::io;
use std::os::fd::AsFd;

/// Bytes of the largest page of any machine.
const PAGE_MOST: u64 = 64 * 1024;

/// All bytes of a sealed file, to be read in place. They do not change and do not go away while this
/// lives, whatever becomes of the file.
#[derive(Debug)]
pub struct FileView {
    bytes: Bytes,
    /// Why they are a copy, if they are.
    why: Option<Error>,
}

#[derive(Debug)]
enum Bytes {
    /// The memory of the servers.
    Shared(View),
    /// A copy of ours.
    Read(Vec<u8>),
}

impl FileView {
    /// Whether this is the servers' own memory. It is a copy otherwise, and `reason` says why.
    pub fn shared(&self) -> bool {
        matches!(self.bytes, Bytes::Shared(_))
    }

    /// Why the memory is not shared: `NotShared`, with what the server or the system said.
    pub fn reason(&self) -> Option<&Error> {
        self.why.as_ref()
    }

    /// Bytes of the file.
    pub fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Shared(view) => view.len(),
            Bytes::Read(bytes) => bytes.len(),
        }
    }

    /// Whether the file has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file as one run of bytes: when it has one block, when all blocks but the last end with a
    /// page (4096 bytes, which is so when everything appended to it has a multiple of that), and when
    /// it is a copy. `segments` has it in every case.
    pub fn contiguous(&self) -> Option<&[u8]> {
        match &self.bytes {
            Bytes::Shared(view) => view.contiguous(),
            Bytes::Read(bytes) => Some(bytes),
        }
    }

    /// The file in order, in runs of bytes: one for each block, or a single one.
    pub fn segments(&self) -> Vec<&[u8]> {
        match &self.bytes {
            Bytes::Shared(view) => view.parts().collect(),
            Bytes::Read(bytes) if bytes.is_empty() => Vec::new(),
            Bytes::Read(bytes) => vec![bytes],
        }
    }
}

impl File {
    /// The whole of a sealed file without copying it, where this process is on the machine of its
    /// servers and reaches them over Unix sockets. Everywhere else it is read over the network into
    /// memory of this process, with the same result: `FileView::shared` tells which it was.
    ///
    /// The first map of a block makes its server copy it aside, which takes it about a third of a
    /// millisecond for each MiB; later ones, by any client, cost no copy. Mapped memory counts for
    /// the job until every view of it is dropped, those of files that are gone included.
    ///
    /// Errors: `NotSealed` for a file that may still grow, and what reading it may answer: a lease
    /// that is over, permissions that were taken back.
    pub fn map(&self) -> Result<FileView, Error> {
        let (size, sealed) = self.size_and_seal()?;
        if !sealed {
            let text = format!("{}: only a sealed file can be mapped", self.structure().address());
            return Err(Error::new(Status::NotSealed, text));
        }
        let why = match self.map_blocks(size) {
            Ok(view) => return Ok(FileView { bytes: Bytes::Shared(view), why: None }),
            // A server that is older does not know the operation.
            Err(e) if matches!(e.status, Status::NotShared | Status::UnknownOpcode) => e,
            Err(e) => return Err(e),
        };
        let mut bytes = vec![0; size as usize];
        let got = self.read_into(0, &mut bytes)?;
        debug_assert_eq!(got as u64, size, "a sealed file has what it had");
        bytes.truncate(got);
        Ok(FileView { bytes: Bytes::Read(bytes), why: Some(why) })
    }

    fn map_blocks(&self, size: u64) -> Result<View, Error> {
        let not_shared = |why: String| Error::new(Status::NotShared, why);
        let unmapped = |e: io::Error| not_shared(format!("it cannot be mapped: {e}"));
        // Addresses only: each block but the last is nearly full, and ends within a page.
        let pages = 2 + size / (BLOCK_SIZE_MIN / 2);
        let mut view = View::reserve((size + pages * PAGE_MOST) as usize).map_err(unmapped)?;
        let mut position = 0;
        while position < size {
            let mut file = None;
            let replied = self.structure().run(Exchange {
                op: Op::FileMap,
                target: Target::Offset(position),
                args: Args::Fixed(&[]),
                payload: &[],
                sink: Sink::Descriptor(&mut file),
                wait_until: None,
            })?;
            let length = replied.header.value;
            let file = file.ok_or_else(|| not_shared("the reply has no memory attached".into()))?;
            if replied.entry.start != position || length == 0 {
                return Err(not_shared(format!("no block begins at byte {position}")));
            }
            position += length;
            view.push(file.as_fd(), length as usize).map_err(unmapped)?;
        }
        Ok(view)
    }
}
