//! The content of a log's block: its records, to be flushed, and its bytes in a lower tier.
//!
//! The bookkeeping of the block stays in memory. Reads request the index entries and the records that they
//! need, and an append or a trim needs the whole block in memory.

use crate::block::LogBlock;
use crate::ops;
use crate::records::{ENTRY, Records, is_idle, no_more, nothing_yet};
use honeycomb_structures::{
    Answer, Content, Fetched, LowerTierReads, Op, Operation, Rest, Snapshot, Ticket, Time,
};

impl Records {
    /// Bytes from the first on that hold records: their index grows from the end of the block.
    fn extent(&self) -> usize {
        if self.trimmed == self.next_number { 0 } else { self.size }
    }
}

impl Content for LogBlock {
    /// The records that are not trimmed, each with its length u32, as items of a flush.
    fn snapshot(&self, _range: (u64, u64)) -> Snapshot {
        let Records { size, base, trimmed, next_number, .. } = *self.records.content();
        let records = trimmed - base..next_number - base;
        Snapshot::items(self.records.content().extent(), move |bytes, out| {
            let end_of = |record: u64| {
                let end = size - record as usize * ENTRY;
                let entry = bytes[end - ENTRY..end].try_into().expect("four bytes");
                u32::from_le_bytes(entry) as usize
            };
            for record in records.clone() {
                let start = record.checked_sub(1).map_or(0, end_of);
                let record = &bytes[start..end_of(record)];
                out.item(&[&(record.len() as u32).to_le_bytes(), record])?;
            }
            Ok(())
        })
    }

    fn rests(&self) -> Rest {
        let records = self.records.content();
        match records.give_back_at.is_none() && self.records.is_resident() {
            true => Rest::Whole(records.extent()),
            false => Rest::Busy,
        }
    }

    fn lower_tier_reads(&self) -> Option<&dyn LowerTierReads> {
        Some(self)
    }

    /// All bytes of the block are in memory again when it comes back.
    fn demoted(&mut self) {
        self.records.content_mut().given_back = 0;
    }
}

impl LowerTierReads for LogBlock {
    fn read(&self, bytes: &Fetched, op: Op, args: &[u8], _payload: &[u8]) -> Answer {
        let (now, ticket) = (Time::ZERO, Ticket(0));
        let operation = Operation { now, ticket, op, args, wait_until: now };
        let records = self.records.content();
        let answered = match operation.number() {
            ops::READ => records.read(bytes, &operation),
            ops::SCAN => records.scan(bytes, &operation),
            ops::FOLLOW => records.scan(bytes, &operation).map(records_or_wait),
            ops::STATS => no_more(args).map(|()| records.stats(bytes)),
            other => unreachable!("operation {other} changes a block, or is none of a log's"),
        };
        answered.unwrap_or_else(|refusal| refusal)
    }
}

/// A page, or the reply for a caller that has to wait for its first record.
fn records_or_wait(page: Answer) -> Answer {
    if is_idle(&page) { nothing_yet() } else { page }
}
