//! Items that are too large for a block: lists of extents in blocks of their own (ADR 0018, 0057).
//!
//! Such an item is in the log like any other, in the stored form of its list. A consumer reserves it, reads
//! the extents, and then acknowledges it: the block drops the extents at the acknowledgement. An ordinary get
//! is refused while such an item is next.

use super::{QueueSegment, RETRY_AHEAD_US, RETRY_LARGE_US, check_reserve, empty};
use crate::adopting::{Adopting, admit_list, dropped, list_of};
use crate::queue::deliveries::Deliveries;
use crate::queue::items::{ItemLog, LIST, PLACE};
use crate::{Answer, Bytes, Operation, Payload, Ticket, busy};
use honeycomb_block::Backing;
use honeycomb_types::Bug;
use honeycomb_types::limits::EXTENT_OWNER;
use honeycomb_wire::extents::{PutExtents, StoredWhen, value_length};
use honeycomb_wire::queue::{GetArgs, GetExtentsArgs, LargeItem, put_large_item};
use honeycomb_wire::{Field, Malformed, Status};

/// Most bytes of a reply to `QueueLists`, unless a single item is larger.
const LISTS_BYTES: usize = 1 << 20;
/// Delay of a replacement while the bytes of the block may not change, in microseconds.
const RETRY_REPLACE_US: u64 = 2000;

/// The items of a block, of which some are in extents, and the progress of their consumers.
struct LargeItems<'a> {
    items: &'a ItemLog,
    deliveries: &'a Deliveries,
}

impl<'a> LargeItems<'a> {
    fn of(segment: &'a QueueSegment) -> LargeItems<'a> {
        LargeItems { items: &segment.items, deliveries: &segment.deliveries }
    }

    /// The list that an item is; `None` for another item.
    fn list<'b>(&self, block: &'b impl Bytes, item: usize) -> Option<&'b [u8]> {
        let bytes = self.items.bytes_of(block, &(item..item + 1));
        self.items.is_list(block, item).then(|| list_of(block.slice(bytes)))
    }

    /// The item that a put replaces: `None` if it replaces none, and the refusal if another item is there by
    /// now.
    fn replaced(
        &self,
        block: &impl Bytes,
        put: &PutExtents<'_>,
    ) -> Result<Option<Result<usize, Answer>>, Answer> {
        let old = match put.when {
            StoredWhen::Always if put.key.is_empty() => return Ok(None),
            StoredWhen::Still(old) => old,
            _ => {
                return Err(malformed(
                    "a put into a queue is of mode 0, or of mode 2 with an item",
                ));
            }
        };
        if value_length(old) != value_length(put.list) || old.len() != put.list.len() {
            return Err(malformed("an item is replaced by as many extents, with as many bytes"));
        }
        let found = self.items.item(u64::decode(put.key)?);
        let found = found.filter(|item| self.deliveries.is_left(self.items, *item));
        let found = found.filter(|item| self.list(block, *item) == Some(old));
        let gone = || Answer::refuse(Status::KeyNotFound, "the item is gone, or has other extents");
        Ok(Some(found.ok_or_else(gone)))
    }

    /// One page of lists from a number on, and the number of the first on the next page; 0 for none. Of a
    /// block in a lower tier, the operation runs again when the bytes are present.
    fn page(&self, block: &impl Bytes, from: u64) -> (Vec<u8>, u64) {
        let mut page = Vec::new();
        if !block.wants(&self.items.places(0..self.items.count())) {
            return (page, 0);
        }
        let lists = self
            .deliveries
            .left(self.items)
            .filter(|item| self.items.number(*item) >= from && self.items.is_list(block, *item));
        for item in lists {
            let number = self.items.number(item);
            if page.len() >= LISTS_BYTES {
                return (page, number);
            }
            let bytes = self.items.bytes_of(block, &(item..item + 1));
            if block.wants(&bytes) {
                put_large_item(number, list_of(block.slice(bytes)), &mut page);
            }
        }
        (page, 0)
    }
}

/// The refusal of a get that cannot return the next item, which is in extents.
pub fn refuse() -> Answer {
    Answer::refuse(Status::ValueTooLarge, "the next item is in extents: QueueGetExtents returns it")
}

/// The bytes that an item counts when it is stored (`ItemLog::weight_of`).
fn weight(list: &[u8]) -> u64 {
    value_length(list).max((EXTENT_OWNER + list.len()) as u64)
}

/// `QueuePutExtents`: parks the put until it owns its extents.
pub fn begin(
    adopting: &mut Adopting,
    segment: &mut QueueSegment,
    block: &Backing,
    operation: &Operation<'_>,
    payload: &[u8],
) -> Result<(), Answer> {
    let put = PutExtents::decode(operation.args, payload)?;
    let replaced = LargeItems::of(segment).replaced(block, &put)?;
    let list = admit_list(segment.tail.capacity.most(), put.list)?;
    let admitted = match replaced {
        Some(found) => found.map(drop),
        None => admit(segment, put.list),
    };
    if let Err(refusal) = admitted {
        return Err(adopting.refuse(list, refusal));
    }
    if put.when == StoredWhen::Always && segment.bound.is_bounded() {
        // The parked puts take their room first.
        let (items, bytes) = adopting.parked(|put| put.when == StoredWhen::Always, weight);
        match segment.admits(items + 1, bytes + weight(put.list)) {
            Some(true) => {}
            None => return Err(busy(RETRY_AHEAD_US)),
            Some(false) if operation.wait_until > operation.now => {
                return Err(busy(RETRY_LARGE_US));
            }
            // The caller may wait longer, with the same extents.
            Some(false) => return Err(segment.bound.full()),
        }
    }
    adopting.park(operation, payload, list)
}

/// Refuses an item that the block or the queue could never accept, or has no room for now.
fn admit(segment: &mut QueueSegment, list: &[u8]) -> Result<(), Answer> {
    segment.tail_open()?;
    segment.bound.admit(1, weight(list))?;
    let bytes = EXTENT_OWNER + list.len();
    segment.tail.request().wrote(bytes + PLACE);
    segment.make_room(&[bytes as u32], bytes)
}

/// Stores a list, in its stored form. `None` if the put is answered when the payloads before it are complete.
/// `fixed` if the bytes of the block may not change.
pub fn store(
    segment: &mut QueueSegment,
    block: &mut Backing,
    ticket: Ticket,
    put: &PutExtents<'_>,
    stored: &[u8],
    fixed: bool,
) -> Result<Option<Answer>, Answer> {
    if let Some(found) = LargeItems::of(segment).replaced(block, put)? {
        let item = found?;
        let bytes = segment.items.bytes_of(block, &(item..item + 1));
        assert_eq!(bytes.len(), stored.len(), "INV-39: a list is replaced by one of its length");
        if fixed || block.is_pinned(&bytes) {
            return Err(busy(RETRY_REPLACE_US));
        }
        let old = block.slice(bytes.clone()).to_vec();
        block.slice_mut(bytes).copy_from_slice(stored);
        segment.events.push(dropped(&old));
        return Ok(Some(Answer::ok(1)));
    }
    admit(segment, put.list)?;
    if segment.within_bound(1, weight(put.list)) != Some(true) {
        return Err(busy(RETRY_LARGE_US));
    }
    let first = segment.items.append(block, ticket, &[stored.len() as u32 | LIST], stored);
    Ok(first.map(|first| {
        segment.entered(first, 1);
        Answer::ok(first)
    }))
}

/// `QueueGetExtents`: reserves the next item if it is in extents, or only names them.
pub fn reserve(
    segment: &mut QueueSegment,
    block: &Backing,
    operation: &Operation<'_>,
) -> Result<Answer, Answer> {
    let GetExtentsArgs { reserve_ms, stay } = GetExtentsArgs::decode(operation.args)?;
    check_reserve(reserve_ms)?;
    let args = GetArgs { items: 1, bytes: 0, reserve_ms, stay };
    let Some(run) = segment.deliveries.next_run(&segment.items, block, &args) else {
        return Err(segment.exhausted(stay).unwrap_or_else(empty));
    };
    if !run.is_list {
        return Err(empty());
    }
    let list = list_of(block.slice(segment.items.bytes_of(block, &run.items)));
    let number = segment.items.number(run.items.start);
    let deliveries = run.deliveries + u32::from(reserve_ms > 0);
    if reserve_ms > 0 {
        segment.deliveries.reserve(&segment.items, operation.now, reserve_ms, &run);
    }
    let item = LargeItem { number, deliveries };
    Ok(Answer { args: item.encode(), ..Answer::ok(1) }.with(Payload::Bytes(list.into())))
}

/// An item in extents is taken permanently: its extents are dropped.
pub fn taken(segment: &mut QueueSegment, block: &Backing, item: usize) {
    let bytes = segment.items.bytes_of(block, &(item..item + 1));
    if !Bug::ItemListKept.active() {
        segment.events.push(dropped(block.slice(bytes)));
    }
    segment.items.list_taken(block, item);
}

/// `QueueLists`: the items in extents, from a number on.
pub fn lists(segment: &QueueSegment, block: &impl Bytes, args: &[u8]) -> Result<Answer, Answer> {
    let (page, next) = LargeItems::of(segment).page(block, u64::decode(args)?);
    Ok(Answer::ok(next).with(Payload::Bytes(page.into())))
}

/// The refusal of a list that is longer than a payload that arrives whole.
pub fn refuse_long(length: usize) -> Answer {
    let text = format!("a list of extents of {length} bytes names more extents than a value has");
    Answer::refuse(Status::ValueTooLarge, text)
}

fn malformed(why: &'static str) -> Answer {
    Malformed { at: 0, why }.into()
}
