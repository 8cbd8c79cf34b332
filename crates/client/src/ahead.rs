//! Reads whose request is sent before anybody wants the answer: what comes next of a scan or a file is on
//! its way while the caller works on what it has. No thread: the answer waits in the socket.

use crate::error::Error;
use crate::file::File;
use crate::kv::{Kv, ScanPage};
use crate::structure::Under;
use crate::transport::Sink;

/// A part of a scan that was asked for; see `Kv::scan_ahead`.
pub struct ScanAhead {
    args: Vec<u8>,
    cursor: u64,
    under: Option<Under>,
}

/// A range of a file that was asked for; see `File::read_ahead`.
pub struct ReadAhead {
    position: u64,
    length: u32,
    under: Option<Under>,
}

impl Kv {
    /// Asks for a part of a scan without awaiting it; `scan_taken` takes it. The part is what `scan`
    /// would have answered at some time in between.
    pub fn scan_ahead(
        &self,
        cursor: u64,
        prefix: &[u8],
        keys_only: bool,
        max_bytes: u32,
    ) -> ScanAhead {
        let args = Kv::scan_args(cursor, prefix, keys_only, max_bytes);
        let under = self.0.set_out(Kv::scan_exchange(cursor, &args, Sink::None));
        ScanAhead { args, cursor, under }
    }

    /// The part that was asked for. When it does not come, or was asked for too long ago, it is asked for
    /// again.
    pub fn scan_taken(&self, ahead: ScanAhead) -> Result<ScanPage, Error> {
        let ScanAhead { args, cursor, under } = ahead;
        let mut payload = Vec::new();
        let exchange = Kv::scan_exchange(cursor, &args, Sink::Vec(&mut payload));
        let replied = self.0.arrive(under, exchange)?;
        self.scan_page(&replied, &payload)
    }
}

impl File {
    /// Asks for bytes without awaiting them; `read_taken` takes them.
    pub fn read_ahead(&self, position: u64, length: usize) -> ReadAhead {
        let length = length.min(File::PIECE) as u32;
        let under = self.0.set_out(File::read_exchange(position, length, Sink::None));
        ReadAhead { position, length, under }
    }

    /// The bytes that were asked for, into a buffer that is as long as that or longer; how many there are.
    /// None do not say that there are none now. When they do not come they are asked for again.
    pub fn read_taken(&self, ahead: ReadAhead, buffer: &mut [u8]) -> Result<usize, Error> {
        let ReadAhead { position, length, under } = ahead;
        let exchange = File::read_exchange(position, length, Sink::Slice(buffer));
        Ok(self.0.arrive(under, exchange)?.header.payload_len as usize)
    }
}
