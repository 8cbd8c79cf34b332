//! Many ranges of a block in one answer.

use super::{FileBlock, Seal};
use crate::next::moved;
use crate::{Answer, Part, Payload};
use honeycomb_block::Backing;
use honeycomb_types::limits::{MANY_BYTES_MAX, READ_RANGES_MAX};
use honeycomb_wire::Status;
use honeycomb_wire::batch::{ReadManyArgs, put_range};

/// An answer has room for this much, however little was asked for: nothing must not look like the
/// end of the file.
const ROOM_MIN: usize = 4096;
/// Bytes of a range's length in the answer.
const LENGTH: usize = 4;

impl FileBlock {
    /// Answers the ranges in their order, as many as there is room for; the rest is asked again.
    /// Only the first may be cut for want of room. One that begins where the file goes on elsewhere
    /// ends the answer, and as the first one is `Moved`.
    pub(super) fn read_many(&self, block: &Backing, args: &[u8]) -> Answer {
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
        // Bytes of ranges that are below memory are left out, and put in by who has them.
        let (mut out, mut parts, mut left_out) = (Vec::new(), Vec::new(), 0);
        let mut answered = 0;
        for (offset, length) in ranges {
            if offset >= committed
                && let Some(Seal::Continues(successor)) = &self.seal
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
