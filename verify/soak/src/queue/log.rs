//! A client's observations, in a file that outlives the client.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Bytes of a record.
const RECORD: usize = 16;

/// One action or observation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A producer is about to put so many items, starting at this number, in one request.
    Try { first: u64, items: u32 },
    /// They were put: the server has confirmed it.
    Put { first: u64, items: u32 },
    /// A consumer is about to send a request, at this time of the machine's monotonic clock in
    /// nanoseconds.
    Asked { at: u64 },
    /// The reply has arrived; its items follow.
    Answered { at: u64 },
    /// An item, taken for good.
    Got { head: u64 },
    /// An item to be acknowledged, and the number of its delivery.
    Reserved { head: u64, deliveries: u32 },
    /// The reply to its acknowledgement: whether that delivery still held it.
    Acknowledged { head: u64, deliveries: u32, held: bool },
    /// It is about to be returned.
    GivingBack { head: u64, deliveries: u32 },
    /// A client ends regularly.
    Finished,
}

impl Record {
    fn fields(self) -> (u32, u32, u64) {
        match self {
            Record::Try { first, items } => (1, items, first),
            Record::Put { first, items } => (2, items, first),
            Record::Asked { at } => (3, 0, at),
            Record::Answered { at } => (4, 0, at),
            Record::Got { head } => (5, 0, head),
            Record::Reserved { head, deliveries } => (6, deliveries, head),
            Record::Acknowledged { head, deliveries, held: false } => (7, deliveries, head),
            Record::Acknowledged { head, deliveries, held: true } => (8, deliveries, head),
            Record::GivingBack { head, deliveries } => (9, deliveries, head),
            Record::Finished => (10, 0, 0),
        }
    }

    fn of(kind: u32, extra: u32, value: u64) -> Option<Record> {
        let (head, deliveries) = (value, extra);
        Some(match kind {
            1 => Record::Try { first: value, items: extra },
            2 => Record::Put { first: value, items: extra },
            3 => Record::Asked { at: value },
            4 => Record::Answered { at: value },
            5 => Record::Got { head },
            6 => Record::Reserved { head, deliveries },
            7 => Record::Acknowledged { head, deliveries, held: false },
            8 => Record::Acknowledged { head, deliveries, held: true },
            9 => Record::GivingBack { head, deliveries },
            10 => Record::Finished,
            _ => return None,
        })
    }
}

/// A log that is being written. Appended records are in the file when `append` returns, whatever
/// happens to this process then.
pub struct Log {
    file: File,
    bytes: Vec<u8>,
}

impl Log {
    /// Begins a log; the file must not exist.
    pub fn create(path: &Path) -> io::Result<Log> {
        let file = OpenOptions::new().append(true).create_new(true).open(path)?;
        Ok(Log { file, bytes: Vec::new() })
    }

    /// Adds records.
    pub fn append(&mut self, records: impl IntoIterator<Item = Record>) -> io::Result<()> {
        self.bytes.clear();
        for record in records {
            let (kind, extra, value) = record.fields();
            self.bytes.extend_from_slice(&kind.to_le_bytes());
            self.bytes.extend_from_slice(&extra.to_le_bytes());
            self.bytes.extend_from_slice(&value.to_le_bytes());
        }
        self.file.write_all(&self.bytes)
    }
}

/// The complete records of a log; none if its client was killed before it created the file. The
/// last record may be torn if the client was killed while writing it.
pub fn read(path: &Path) -> Result<Vec<Record>, String> {
    let bytes = match std::fs::read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        other => other.map_err(|e| format!("{}: {e}", path.display()))?,
    };
    let mut records = Vec::with_capacity(bytes.len() / RECORD);
    for chunk in bytes.chunks_exact(RECORD) {
        let part = |at: usize| u32::from_le_bytes(chunk[at..at + 4].try_into().expect("four"));
        let value = u64::from_le_bytes(chunk[8..].try_into().expect("eight"));
        let record = Record::of(part(0), part(4), value)
            .ok_or_else(|| format!("{}: a record of no kind", path.display()))?;
        records.push(record);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_up_to_where_it_was_torn() {
        let path = std::env::temp_dir().join(format!("soak-log-{}", std::process::id()));
        assert_eq!(read(&path), Ok(Vec::new()));
        let records = [
            Record::Try { first: 1, items: 2 },
            Record::Put { first: 1, items: 2 },
            Record::Asked { at: 3 },
            Record::Answered { at: 4 },
            Record::Got { head: 5 },
            Record::Reserved { head: 6, deliveries: 7 },
            Record::Acknowledged { head: 8, deliveries: 1, held: false },
            Record::Acknowledged { head: 9, deliveries: 1, held: true },
            Record::GivingBack { head: 10, deliveries: 2 },
            Record::Finished,
        ];
        let mut log = Log::create(&path).unwrap();
        log.append(records).unwrap();
        assert!(Log::create(&path).is_err());
        log.file.write_all(&[9; RECORD - 1]).unwrap();
        let found = read(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found.unwrap(), records);
    }
}
