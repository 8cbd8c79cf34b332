//! The encoding of the log's arguments and replies, for the block and for its callers. All numbers are
//! little-endian.

use honeycomb_structures::{Answer, Status};

/// Longest tag, in bytes.
pub const TAG_MAX: usize = 255;

/// The arguments of `scan` and `follow`: most records u32, most bytes u32, and the tag that records must
/// have; an empty tag matches every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanArgs<'a> {
    /// Most records of one reply.
    pub records: u32,
    /// Most bytes of one reply, including the frame around each record. The first record may exceed it.
    pub bytes: u32,
    /// The tag that records must have; empty to match every record.
    pub tag: &'a [u8],
}

impl<'a> ScanArgs<'a> {
    /// The encoded arguments.
    pub fn encode(&self) -> Vec<u8> {
        let numbers = [self.records.to_le_bytes(), self.bytes.to_le_bytes()];
        [numbers.as_flattened(), self.tag].concat()
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Result<ScanArgs<'a>, Answer> {
        let refused = || Answer::refuse(Status::BadFrame, "most records u32, most bytes u32, tag");
        let (records, rest) = bytes.split_first_chunk().ok_or_else(refused)?;
        let (limit, tag) = rest.split_first_chunk().ok_or_else(refused)?;
        if tag.len() > TAG_MAX {
            return Err(refused());
        }
        let (records, bytes) = (u32::from_le_bytes(*records), u32::from_le_bytes(*limit));
        Ok(ScanArgs { records, bytes, tag })
    }
}

/// The reply of `scan` and `follow`. The value is the number at which the page begins. The arguments are
/// the start of the next page, relative to it (u64), and whether the log has no record after the page (u8).
/// The payload has the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The start of the next page, relative to this page's number.
    pub next: u64,
    /// Whether the log has no record after the page.
    pub end: bool,
}

impl Page {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [&self.next.to_le_bytes()[..], &[self.end as u8]].concat()
    }

    /// Reads the arguments of an answer.
    pub fn decode(bytes: &[u8]) -> Option<Page> {
        let (next, rest) = bytes.split_first_chunk()?;
        let [end @ (0 | 1)] = rest else { return None };
        Some(Page { next: u64::from_le_bytes(*next), end: *end == 1 })
    }
}

/// A record of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number.
    pub number: u64,
    /// Its tag.
    pub tag: Vec<u8>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Bytes of a page before the tag and the bytes of each record: the number relative to the page's (u32),
/// the length of the tag u8, the length of the record u32.
pub(crate) const FRAME: usize = 9;

pub(crate) fn put_record(out: &mut Vec<u8>, delta: u32, tag: &[u8], bytes: &[u8]) {
    out.extend_from_slice(&delta.to_le_bytes());
    out.push(tag.len() as u8);
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(tag);
    out.extend_from_slice(bytes);
}

/// Decodes the payload of a page that begins at a number. `None` if the payload is invalid.
pub fn page_records(from: u64, mut payload: &[u8]) -> Option<Vec<Record>> {
    let mut records = Vec::new();
    while !payload.is_empty() {
        let (frame, rest) = payload.split_first_chunk::<FRAME>()?;
        let delta = u32::from_le_bytes(*frame.first_chunk()?);
        let length = u32::from_le_bytes(*frame.last_chunk()?) as usize;
        let (tag, rest) = rest.split_at_checked(frame[4] as usize)?;
        let (bytes, rest) = rest.split_at_checked(length)?;
        records.push(Record {
            number: from + delta as u64,
            tag: tag.to_vec(),
            bytes: bytes.to_vec(),
        });
        payload = rest;
    }
    Some(records)
}

/// The statistics of one block: records u64, their bytes u64, records ever appended u64, used bytes of the
/// block u64, sealed u8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stats {
    /// Records that are not trimmed.
    pub records: u64,
    /// Bytes of these records, including tags.
    pub bytes: u64,
    /// Records that were ever appended to the block.
    pub appended: u64,
    /// Bytes of the block in use, including the index.
    pub used: u64,
    /// Whether the log continues in another block.
    pub sealed: bool,
}

impl Stats {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let numbers = [self.records, self.bytes, self.appended, self.used].map(u64::to_le_bytes);
        [numbers.as_flattened(), &[self.sealed as u8]].concat()
    }

    /// Reads the arguments of an answer.
    pub fn decode(bytes: &[u8]) -> Option<Stats> {
        let (numbers, [sealed @ (0 | 1)]) = bytes.split_at_checked(32)? else { return None };
        let at =
            |i: usize| numbers[8 * i..].first_chunk().map(|number| u64::from_le_bytes(*number));
        Some(Stats {
            records: at(0)?,
            bytes: at(1)?,
            appended: at(2)?,
            used: at(3)?,
            sealed: *sealed == 1,
        })
    }
}
