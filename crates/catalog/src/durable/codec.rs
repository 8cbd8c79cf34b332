//! Bytes of records: little-endian numbers, and strings preceded by their length.

use std::fmt;

/// A record that contradicts its type and version.
///
/// Its frame had the right checksum: these are not bytes damaged by a disk, but the work of a defect or of
/// another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecord {
    /// A description of the missing or wrong part.
    pub what: String,
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for BadRecord {}

pub(crate) fn bad<T>(what: impl Into<String>) -> Result<T, BadRecord> {
    Err(BadRecord { what: what.into() })
}

/// Appends fields to a buffer.
pub(crate) struct Writer<'a>(pub(crate) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(crate) fn u8(&mut self, v: u8) {
        self.0.push(v);
    }

    pub(crate) fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    pub(crate) fn str(&mut self, v: &str) {
        self.u32(v.len() as u32);
        self.0.extend_from_slice(v.as_bytes());
    }
}

/// Reads fields from a record's body.
pub(crate) struct RecordReader<'a>(pub(crate) &'a [u8]);

impl<'a> RecordReader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], BadRecord> {
        match self.0.split_at_checked(n) {
            Some((taken, rest)) => {
                self.0 = rest;
                Ok(taken)
            }
            None => bad("a record ends within a field"),
        }
    }

    pub(crate) fn u8(&mut self) -> Result<u8, BadRecord> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn bool(&mut self) -> Result<bool, BadRecord> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            n => bad(format!("a boolean is {n}")),
        }
    }

    pub(crate) fn u32(&mut self) -> Result<u32, BadRecord> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes were taken")))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, BadRecord> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes were taken")))
    }

    /// The length of a list whose items take at least `least` bytes each: an impossible length is refused
    /// before anything is allocated.
    pub(crate) fn count(&mut self, least: usize) -> Result<usize, BadRecord> {
        let n = self.u32()? as usize;
        if n.saturating_mul(least) > self.0.len() {
            return bad(format!("a list of {n} items does not fit into its record"));
        }
        Ok(n)
    }

    pub(crate) fn str(&mut self) -> Result<&'a str, BadRecord> {
        let n = self.count(1)?;
        std::str::from_utf8(self.take(n)?).or_else(|_| bad("a text is not UTF-8"))
    }

    pub(crate) fn end(self) -> Result<(), BadRecord> {
        if self.0.is_empty() { Ok(()) } else { bad("a record has more bytes than fields") }
    }
}
