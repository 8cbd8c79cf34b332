//! Counts the contents of a log from outside, to show how many records one sync writes.

use super::frame::{self, FrameKind};
use super::{log_name, numbers};
use std::path::Path;

/// Counts of the log files of a data directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCensus {
    /// Groups: rounds of the controller with changes.
    pub groups: u64,
    /// Records in the groups: each is the new state of one catalog entry, or a retained answer.
    pub records: u64,
    /// Completed syncs, as recorded by later groups.
    pub syncs: u64,
}

impl LogCensus {
    /// The difference to an earlier count.
    pub fn since(&self, earlier: &LogCensus) -> LogCensus {
        LogCensus {
            groups: self.groups.saturating_sub(earlier.groups),
            records: self.records.saturating_sub(earlier.records),
            syncs: self.syncs.saturating_sub(earlier.syncs),
        }
    }
}

/// Counts the log files of a data directory. The controller may be writing: an incomplete group at the end is
/// not counted.
pub fn census(data: &Path) -> Result<LogCensus, String> {
    let said = |e: std::io::Error| format!("{}: {e}", data.display());
    let entries = std::fs::read_dir(data).map_err(said)?;
    let names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let mut found = LogCensus::default();
    for file in numbers(&names, "log-") {
        // A file that has disappeared was replaced by a snapshot.
        let Ok(bytes) = std::fs::read(data.join(log_name(file))) else { continue };
        let Ok((frames, _)) = frame::read_file(&bytes, file) else { continue };
        let mut synced = 0;
        for frame in frames.iter().filter(|frame| frame.kind == FrameKind::Group) {
            found.groups += u64::from(!frame.body.is_empty());
            found.records += records(frame.body);
            // Each group records how many bytes were synced when it was written.
            found.syncs += u64::from(frame.synced > synced);
            synced = synced.max(frame.synced);
        }
    }
    Ok(found)
}

fn records(mut body: &[u8]) -> u64 {
    let mut count = 0;
    while let Some(length) = body.first_chunk::<4>().map(|b| u32::from_le_bytes(*b) as usize)
        && let Some(rest) = body.get(6 + length..)
    {
        (body, count) = (rest, count + 1);
    }
    count
}
