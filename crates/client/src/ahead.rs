//! Reads whose request is sent before the caller needs the result: the next part of a scan or a
//! file is in transit while the caller processes the last one. There is no thread: the reply waits
//! in the socket.

use crate::error::Error;
use crate::file::{File, read_length};
use crate::kv::{Kv, ScanPage};
use crate::structure::Under;
use crate::transport::Sink;

/// A part of a scan that was requested ahead; see `Kv::scan_ahead`.
pub struct ScanAhead {
    args: Vec<u8>,
    cursor: u64,
    under: Option<Under>,
}

/// A range of a file that was requested ahead; see `File::read_ahead`.
pub struct ReadAhead {
    position: u64,
    length: u32,
    under: Option<Under>,
}

impl Kv {
    /// Requests a part of a scan without awaiting it; `scan_taken` returns it. The part equals the
    /// result of `scan` at some moment in between.
    pub fn scan_ahead(
        &self,
        cursor: u64,
        prefix: &[u8],
        keys_only: bool,
        max_bytes: u32,
    ) -> Result<ScanAhead, Error> {
        self.check_key(prefix)?;
        let args = Kv::scan_args(cursor, prefix, keys_only, max_bytes);
        let under = self.0.set_out(Kv::scan_exchange(cursor, &args, Sink::None));
        Ok(ScanAhead { args, cursor, under })
    }

    /// Returns the part that was requested. If it does not arrive, or was requested too long ago,
    /// it is requested again.
    pub fn scan_taken(&self, ahead: ScanAhead) -> Result<ScanPage, Error> {
        let ScanAhead { args, cursor, under } = ahead;
        let mut payload = Vec::new();
        let exchange = Kv::scan_exchange(cursor, &args, Sink::Vec(&mut payload));
        let replied = self.0.arrive(under, exchange)?;
        self.scan_page(&replied, &payload)
    }
}

impl File {
    /// Requests bytes without awaiting them; `read_taken` returns them.
    pub fn read_ahead(&self, position: u64, length: usize) -> ReadAhead {
        let length = length.min(File::PIECE) as u32;
        let under = self.0.set_out(File::read_exchange(position, length, Sink::None));
        ReadAhead { position, length, under }
    }

    /// Copies the requested bytes into a buffer of at least their length and returns their number.
    /// Zero does not mean that there are none now. If the bytes do not arrive, they are requested
    /// again.
    pub fn read_taken(&self, ahead: ReadAhead, buffer: &mut [u8]) -> Result<usize, Error> {
        let ReadAhead { position, length, under } = ahead;
        let exchange = File::read_exchange(position, length, Sink::Slice(buffer));
        read_length(&self.0.arrive(under, exchange)?, length as usize)
    }
}
