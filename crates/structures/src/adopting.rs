//! Puts of values that are too large for a block: lists of extents in blocks of their own (ADR 0018).
//!
//! A put of a list is parked until the blocks of the extents have confirmed its ownership (`Event::Adopt`,
//! `Adopts::adopted`): only the block that stores a list may drop the extents that it names. From then on
//! this block is responsible for them: if the value is deleted, or the put is refused later, the block drops
//! them (`Event::DropExtents`).
//!
//! A stored list begins with its owner (`EXTENT_OWNER` bytes): the put that wrote the extents. When the value
//! moves, both move with it, and the extents stay.

use crate::{Adopted, Answer, Event, Operation, Ticket, large_limit};
use honeycomb_types::Time;
use honeycomb_types::limits::{EXTENT_OWNER, EXTENT_REF, extents_per_value, kv_value_max};
use honeycomb_wire::Status;
use honeycomb_wire::extents::{ExtentRef, ListHead, PutExtents, extents, value_length};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Puts that may wait for their extents at a time.
const ADOPTING_MAX: usize = 256;
/// Retry delay of a put over that limit, here or at the shard, in microseconds.
const ADOPTING_RETRY_US: u64 = 5_000;

/// A put that owns its extents is retried for this time if its block cannot accept it, because its range is
/// frozen for a move or about to move.
const STORE_WITHIN: Duration = Duration::from_secs(1);
const STORE_AGAIN: Duration = Duration::from_millis(2);

/// A put that waits for its extents, and then perhaps for its block.
struct Waiting {
    /// Arguments of the put, as received.
    args: Box<[u8]>,
    payload: Box<[u8]>,
    /// The put owns the extents as this owner, and is retried until this time.
    adopted: Option<(u64, Time)>,
}

/// The waiting puts of a block, and its events about extents.
#[derive(Default)]
pub(crate) struct Adopting {
    waiting: BTreeMap<Ticket, Waiting>,
    /// When the puts that own their extents are retried.
    again: Option<Time>,
    said: VecDeque<Event>,
}

impl Waiting {
    fn put(&self) -> PutExtents<'_> {
        PutExtents::decode(&self.args, &self.payload).expect("the request was decoded on arrival")
    }
}

impl Adopting {
    /// When `ready` has puts to retry.
    pub fn due(&self) -> Option<Time> {
        self.again
    }

    /// Whether any puts wait, or any events are pending.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty() || !self.said.is_empty()
    }

    /// Parks a put of these extents until it owns them.
    pub fn park(
        &mut self,
        operation: &Operation<'_>,
        payload: &[u8],
        list: Vec<ExtentRef>,
    ) -> Result<(), Answer> {
        if self.waiting.len() >= ADOPTING_MAX {
            let text =
                format!("{ADOPTING_MAX} puts of large values are in progress in this block; retry");
            let busy = Answer::refuse(Status::Busy, text);
            return Err(Answer { value: ADOPTING_RETRY_US, ..busy });
        }
        let (args, payload) = (operation.args.into(), payload.into());
        let waiting = Waiting { args, payload, adopted: None };
        self.waiting.insert(operation.ticket, waiting);
        self.said.push_back(Event::Adopt(operation.ticket, list));
        Ok(())
    }

    /// The number of parked puts for which `of` is true, and the sum of the weights of their lists.
    pub fn parked(
        &self,
        of: impl Fn(&PutExtents<'_>) -> bool,
        weight: impl Fn(&[u8]) -> u64,
    ) -> (u64, u64) {
        let puts = self.waiting.values().map(Waiting::put).filter(of);
        puts.fold((0, 0), |(items, bytes), put| (items + 1, bytes + weight(put.list)))
    }

    /// Refuses a put that is not parked: its extents are dropped, unless the caller repeats it with the same
    /// extents, at this block or another one.
    pub fn refuse(&mut self, list: Vec<ExtentRef>, refusal: Answer) -> Answer {
        if refusal.executed() && refusal.status != Status::Moved {
            self.said.push_back(Event::DropExtents(0, list));
        }
        refusal
    }

    /// Drops the extents of a stored list.
    pub fn drops(&mut self, owner: u64, list: &[u8]) {
        let list = extents(list).expect("the request was decoded on arrival");
        self.said.push_back(Event::DropExtents(owner, list));
    }

    /// Completes a put that owns its extents now, or whose adoption was refused. `store` stores the list, in
    /// its stored form, after it has repeated all checks, because the state may have changed since the put
    /// arrived; `Ok(None)` if the block answers the put later.
    pub fn complete(
        &mut self,
        now: Time,
        Adopted { ticket, owner, outcome }: Adopted,
        store: impl FnOnce(PutExtents<'_>, &[u8]) -> Result<Option<Answer>, Answer>,
    ) {
        let Some(mut waiting) = self.waiting.remove(&ticket) else { return };
        let (_, until) = *waiting.adopted.get_or_insert((owner, now + STORE_WITHIN));
        let stored = match outcome {
            Ok(()) => {
                let put = waiting.put();
                store(put, &[&owner.to_le_bytes()[..], put.list].concat())
            }
            // No request was sent to a server: the caller repeats the put with the same extents.
            Err((Status::Busy, why)) => {
                let busy = Answer::refuse(Status::Busy, why);
                let busy = Answer { value: ADOPTING_RETRY_US, ..busy };
                return self.said.push_back(Event::Answered(ticket, busy));
            }
            Err((status, why)) => Err(Answer::refuse(status, why)),
        };
        // A range that has moved to another block does not return.
        if matches!(&stored, Err(passing) if passing.status == Status::Busy) && now < until {
            self.again = Some(now + STORE_AGAIN);
            self.waiting.insert(ticket, waiting);
            return;
        }
        if stored.is_err() {
            self.drops(owner, waiting.put().list);
        }
        if let Some(answer) = stored.unwrap_or_else(Some) {
            self.said.push_back(Event::Answered(ticket, answer));
        }
    }

    /// The puts that own their extents and are retried now.
    pub fn ready(&mut self, now: Time) -> Vec<Adopted> {
        if self.again.is_none_or(|again| again > now) {
            return Vec::new();
        }
        self.again = None;
        let ready = self.waiting.iter().filter_map(|(ticket, waiting)| {
            let (owner, _) = waiting.adopted?;
            Some(Adopted { ticket: *ticket, owner, outcome: Ok(()) })
        });
        ready.collect()
    }

    /// The next event about extents.
    pub fn event(&mut self) -> Option<Event> {
        self.said.pop_front()
    }

    /// Heap bytes of these records.
    pub fn bytes(&self) -> usize {
        let bytes = |w: &Waiting| size_of::<Waiting>() + w.args.len() + w.payload.len();
        self.waiting.values().map(bytes).sum()
    }
}

/// The event that drops the extents of a stored list.
pub(crate) fn dropped(stored: &[u8]) -> Event {
    let (owner, list) = stored.split_first_chunk::<EXTENT_OWNER>().expect("an owner, then a list");
    let list = extents(list).expect("the request was decoded on arrival");
    Event::DropExtents(u64::from_le_bytes(*owner), list)
}

/// The list in its stored form.
pub(crate) fn list_of(stored: &[u8]) -> &[u8] {
    &stored[EXTENT_OWNER..]
}

/// Whether the stored form of a list can have so many bytes.
pub(crate) fn is_list(length: usize) -> bool {
    let list = length.checked_sub(EXTENT_OWNER);
    list.is_some_and(|list| list > 0 && list.is_multiple_of(EXTENT_REF))
}

/// The extents of a list, if there are not too many for a value in a block of this size.
pub(crate) fn read_list(size: usize, payload: &[u8]) -> Result<Vec<ExtentRef>, Answer> {
    let most = extents_per_value(size as u64) as usize;
    if payload.len() > most * EXTENT_REF {
        let count = payload.len() / EXTENT_REF;
        let text = format!("a list of {count} extents; the limit is {most}");
        return Err(Answer::refuse(Status::ValueTooLarge, text));
    }
    Ok(extents(payload)?)
}

/// The extents of a list that can be stored as a value.
pub(crate) fn admit_list(size: usize, payload: &[u8]) -> Result<Vec<ExtentRef>, Answer> {
    let (list, longest) = (read_list(size, payload)?, large_limit(size));
    if list.is_empty() || list.iter().any(|e| e.len == 0 || e.len as usize > longest) {
        let text = format!("each extent of a value has 1 to {longest} bytes");
        return Err(Answer::refuse(Status::InvalidArgument, text));
    }
    let (bytes, most) = (value_length(payload), kv_value_max(size as u64));
    if ListHead::of(payload).is_some() && bytes > most {
        let text = format!("a value of {bytes} bytes; the limit is {most}");
        return Err(Answer::refuse(Status::ValueTooLarge, text));
    }
    Ok(list)
}
