//! Many ranges of a file at a time.

use crate::error::Error;
use crate::file::File;
use crate::many::run_many;
use crate::route::{Target, route};
use crate::structure::{Args, Exchange};
use crate::transport::Sink;
use honeycomb_types::limits::{ARGS_MAX, MANY_BYTES_MAX, READ_RANGES_MAX};
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::{Op, Status, batch};

/// Ranges of more bytes are read by plain reads, straight into their buffers.
const PLAIN_FROM: usize = MANY_BYTES_MAX / 4;
/// Bytes of a range in a reply besides its own.
const LENGTH: usize = 4;
/// Bytes of a range in the arguments of a request; two counts precede the ranges.
const RANGE: usize = 12;
const _: () = assert!(8 + RANGE * READ_RANGES_MAX <= ARGS_MAX);

/// The rest of one range that is still to be read.
struct PendingRange {
    /// The index of the caller's range.
    index: usize,
    at: u64,
    length: usize,
}

impl File {
    /// Reads many ranges, each an offset and a length, and returns their bytes in the same order. A
    /// result is shorter only at the end of the file. Ranges may overlap and be in any order.
    ///
    /// Ranges in one block share a request, of at most 1 MiB of replies; all requests are in
    /// progress together. The deadline applies to each of them. Each range is read as by
    /// `read_into`; nothing orders the reads. An error in one fails the call.
    pub fn read_ranges(&self, ranges: &[(u64, usize)]) -> Result<Vec<Vec<u8>>, Error> {
        let mut out: Vec<Vec<u8>> = vec![Vec::new(); ranges.len()];
        let mut wanted = Vec::new();
        let mut size = None;
        for (index, &(at, length)) in ranges.iter().enumerate() {
            if length > PLAIN_FROM {
                // The requested length may be far more than the file has.
                let size = match size {
                    Some(size) => size,
                    None => *size.insert(self.size()?),
                };
                let mut buffer = vec![0; (length as u64).min(size.saturating_sub(at)) as usize];
                let got = self.read_into(at, &mut buffer)?;
                buffer.truncate(got);
                out[index] = buffer;
            } else if length > 0 {
                wanted.push(PendingRange { index, at, length });
            }
        }
        while !wanted.is_empty() {
            wanted = self.read_round(wanted, &mut out)?;
        }
        debug_assert!(
            out.iter().zip(ranges).all(|(bytes, (_, length))| bytes.len() <= *length),
            "INV-23: more bytes of a range were read than were requested"
        );
        Ok(out)
    }

    /// Requests all remaining ranges; returns those that remain afterwards.
    fn read_round(
        &self,
        mut wanted: Vec<PendingRange>,
        out: &mut [Vec<u8>],
    ) -> Result<Vec<PendingRange>, Error> {
        debug_assert!(
            wanted.iter().all(|wanted| 0 < wanted.length && wanted.length <= PLAIN_FROM),
            "INV-23: a range is empty, or too long for a request with others"
        );
        wanted.sort_by_key(|wanted| wanted.at);
        let groups = group(&wanted, |at| self.0.with_map(|map| route(map, at).cloned()));
        let ranges: Vec<Vec<(u64, u32)>> = groups
            .iter()
            .map(|group| group.iter().map(|w| (w.at, w.length as u32)).collect())
            .collect();
        let mut payloads: Vec<Vec<u8>> = vec![Vec::new(); groups.len()];
        let exchanges = ranges.iter().zip(&mut payloads).map(|(ranges, payload)| Exchange {
            op: Op::FileReadMany,
            target: Target::Offset(ranges[0].0),
            args: Args::ReadMany { ranges, bytes: MANY_BYTES_MAX as u32 },
            payload: &[],
            sink: Sink::Vec(payload),
            wait_until: None,
        });
        let replies = run_many(&self.0, exchanges.collect());
        let mut left = Vec::new();
        for ((group, reply), payload) in groups.into_iter().zip(replies).zip(&payloads) {
            let answered = reply?.header.value as usize;
            if answered == 0 || answered > group.len() {
                let text = format!("the reply covers {answered} of {} ranges", group.len());
                return Err(Error::new(Status::BadFrame, text));
            }
            let answers = batch::ranges(payload, answered)?;
            for (at, want) in group.iter().enumerate() {
                let got = answers.get(at).copied();
                if got.is_some_and(|got| got.len() > want.length) {
                    let text = "the reply has more bytes for a range than were requested";
                    return Err(Error::new(Status::BadFrame, text));
                }
                let bytes = got.unwrap_or_default();
                out[want.index].extend_from_slice(bytes);
                let (index, length) = (want.index, want.length - bytes.len());
                // No bytes at all mean the end of the file; fewer than requested may only mean the
                // end of the block.
                if length > 0 && got.is_none_or(|got| !got.is_empty()) {
                    left.push(PendingRange { index, at: want.at + bytes.len() as u64, length });
                }
            }
        }
        Ok(left)
    }
}

/// Divides the ranges, in order of offset, into requests: each for one block and within the limits.
fn group(
    wanted: &[PendingRange],
    entry_of: impl Fn(Target) -> Option<MapEntry>,
) -> Vec<&[PendingRange]> {
    debug_assert!(
        wanted.is_sorted_by_key(|wanted| wanted.at),
        "INV-23: {} ranges are divided before they are in order",
        wanted.len()
    );
    let mut groups = Vec::new();
    let mut rest = wanted;
    while let Some(first) = rest.first() {
        let end = entry_of(Target::Offset(first.at)).map_or(u64::MAX, |entry| entry.end);
        let (mut count, mut bytes) = (0, 0);
        for wanted in rest.iter().take(READ_RANGES_MAX) {
            bytes += LENGTH + wanted.length;
            if count > 0 && (wanted.at > end || bytes > MANY_BYTES_MAX) {
                break;
            }
            count += 1;
        }
        assert!(count > 0, "INV-33: a request for a range at {} has no range", first.at);
        let (group, more) = rest.split_at(count);
        groups.push(group);
        rest = more;
    }
    groups
}
