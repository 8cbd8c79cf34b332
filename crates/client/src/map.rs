//! Sealed files in place: their blocks are mapped from the servers' memory on the same machine.

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

/// Largest page size of any machine, in bytes.
const PAGE_MOST: u64 = 64 * 1024;

/// All bytes of a sealed file, readable in place. They stay unchanged and available while this
/// value lives, even if the file is removed.
#[derive(Debug)]
pub struct FileView {
    bytes: MappedBytes,
    /// The reason why the bytes are a copy, if they are.
    why: Option<Error>,
}

#[derive(Debug)]
enum MappedBytes {
    /// The memory of the servers.
    Shared(View),
    /// A private copy.
    Read(Vec<u8>),
}

impl FileView {
    /// Whether this is the servers' own memory. Otherwise it is a copy, and `reason` says why.
    pub fn shared(&self) -> bool {
        matches!(self.bytes, MappedBytes::Shared(_))
    }

    /// Why the memory is not shared: `NotShared`, with the reason given by the server or the
    /// system.
    pub fn reason(&self) -> Option<&Error> {
        self.why.as_ref()
    }

    /// Length of the file in bytes.
    pub fn len(&self) -> usize {
        match &self.bytes {
            MappedBytes::Shared(view) => view.len(),
            MappedBytes::Read(bytes) => bytes.len(),
        }
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file as one run of bytes, if it is a copy, if it has one block, or if all blocks but the
    /// last end at a page boundary (4096 bytes; this holds if every append has a multiple of that
    /// size). `segments` works in every case.
    pub fn contiguous(&self) -> Option<&[u8]> {
        match &self.bytes {
            MappedBytes::Shared(view) => view.contiguous(),
            MappedBytes::Read(bytes) => Some(bytes),
        }
    }

    /// The file in order, as runs of bytes: one for each block, or a single one.
    pub fn segments(&self) -> Vec<&[u8]> {
        match &self.bytes {
            MappedBytes::Shared(view) => view.parts().collect(),
            MappedBytes::Read(bytes) if bytes.is_empty() => Vec::new(),
            MappedBytes::Read(bytes) => vec![bytes],
        }
    }
}

impl File {
    /// Returns the whole of a sealed file without copying it, if this process is on its servers'
    /// machine and reaches them over Unix sockets. Otherwise the file is read over the network into
    /// this process's memory, with the same content: `FileView::shared` distinguishes the two.
    ///
    /// The first map of a block makes its server copy the block aside, at about a third of a
    /// millisecond per MiB; later maps, by any client, need no copy. Mapped memory counts for the
    /// job until every view of it is dropped, including views of removed files.
    ///
    /// Errors: `NotSealed` for a file that may still grow, and all errors of a read, such as an
    /// expired lease or revoked permissions.
    pub fn map(&self) -> Result<FileView, Error> {
        let (size, sealed) = self.size_and_seal()?;
        if !sealed {
            let text = format!("{}: only a sealed file can be mapped", self.structure().address());
            return Err(Error::new(Status::NotSealed, text));
        }
        let why = match self.map_blocks(size) {
            Ok(view) => return Ok(FileView { bytes: MappedBytes::Shared(view), why: None }),
            // An older server does not know the operation.
            Err(e) if matches!(e.status, Status::NotShared | Status::UnknownOpcode) => e,
            Err(e) => return Err(e),
        };
        let address = self.structure().address();
        let refuse = |status, why: &str| Err(Error::new(status, format!("{address}: {why}")));
        let room = usize::try_from(size).map(|size| Vec::<u8>::new().try_reserve_exact(size));
        if !matches!(room, Ok(Ok(()))) {
            let why = format!("this process has no memory for the {size} bytes of the file");
            return refuse(Status::OutOfMemory, &why);
        }
        let mut bytes = vec![0; size as usize];
        let got = self.read_into(0, &mut bytes)? as u64;
        if got != size {
            let why = format!("only {got} bytes of the sealed file's {size} could be read");
            return refuse(Status::Internal, &why);
        }
        Ok(FileView { bytes: MappedBytes::Read(bytes), why: Some(why) })
    }

    fn map_blocks(&self, size: u64) -> Result<View, Error> {
        let not_shared = |why: String| Error::new(Status::NotShared, why);
        let unmapped = |e: io::Error| not_shared(format!("it cannot be mapped: {e}"));
        // Addresses only: each block but the last is nearly full and ends within a page.
        let pages = 2 + size / (BLOCK_SIZE_MIN / 2);
        let addresses = size.saturating_add(pages.saturating_mul(PAGE_MOST));
        let mut view = View::reserve(addresses as usize).map_err(unmapped)?;
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
            position = position.saturating_add(length);
            view.push(file.as_fd(), length as usize).map_err(unmapped)?;
        }
        Ok(view)
    }
}
