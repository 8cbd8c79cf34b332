//! Many ranges of a block in one answer.

use super::FileSegment;
use crate::moved;
use crate::{Answer, Part, Payload};
use honeycomb_block::Backing;
use honeycomb_types::limits::{MANY_BYTES_MAX, READ_RANGES_MAX};
use honeycomb_wire::Status;
use honeycomb_wire::batch::{ReadManyArgs, put_range};

/// An answer has at least this much room, however little was requested: an empty answer must not look like
/// the end of the file.
const ROOM_MIN: usize = 4096;
/// Bytes of a range's length in the answer.
const LENGTH: usize = 4;

impl FileSegment {
    /// Answers the ranges in order, as many as fit; the client requests the rest again. Only the first may be
    /// cut because it does not fit. A range that begins where the file continues in another block ends the
    /// answer; as the first one it is answered `Moved`.
    pub fn read_many(&self, block: &Backing, args: &[u8]) -> Answer {
        let ReadManyArgs { bytes, ranges } = match ReadManyArgs::decode(args) {
            Ok(many) => many,
            Err(e) => return e.into(),
        };
        if ranges.len() > READ_RANGES_MAX {
            let message = format!("{} ranges; the limit is {READ_RANGES_MAX}", ranges.len());
            return Answer::refuse(Status::InvalidArgument, message);
        }
        let most = (bytes as usize).clamp(ROOM_MIN, MANY_BYTES_MAX);
        let committed = self.length();
        // Bytes of ranges in a lower tier are left out; the caller, which has them, inserts them.
        let (mut out, mut parts, mut left_out) = (Vec::new(), Vec::new(), 0);
        let mut answered = 0;
        for (offset, length) in ranges {
            if offset >= committed
                && let Some(successor) = self.tail.successor()
            {
                if answered == 0 {
                    return moved(committed, successor);
                }
                break;
            }
            // INV-23: a read sees committed bytes only.
            let there = (length as u64).min(committed.saturating_sub(offset)) as usize;
            let length = out.len() + left_out + LENGTH;
            let room = most.saturating_sub(length);
            if answered > 0 && (there > room || length > most) {
                break;
            }
            let there = there.min(room);
            let from = offset.min(committed) as usize;
            let range = from..from + there;
            answered += 1;
            if there == 0 || from >= block.floor() {
                put_range(&mut out, if there == 0 { &[] } else { block.slice(range) });
                continue;
            }
            out.extend_from_slice(&(there as u32).to_le_bytes());
            left_out += there;
            parts.extend([Part::Bytes(std::mem::take(&mut out)), Part::Block(range)]);
        }
        let payload = match (out.is_empty(), parts.is_empty()) {
            (true, true) => Payload::None,
            (false, true) => Payload::Bytes(out.into()),
            (_, false) => {
                parts.push(Part::Bytes(out));
                Payload::Parts(parts)
            }
        };
        Answer::ok(answered).with(payload)
    }
}
