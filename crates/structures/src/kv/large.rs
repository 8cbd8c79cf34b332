//! Values that are too large for a block: lists of extents in blocks of their own (ADR 0018).
//!
//! The entry of such a value stores the owner of the extents (`EXTENT_OWNER` bytes: the put that wrote them)
//! and their list. When the entry moves, both move with it, and the extents stay. A put of a list is parked
//! until the blocks of the extents have confirmed its ownership (`Event::Adopt`, `Adopts::adopted`): only the
//! block of an entry may drop the extents that it names. From then on this block is responsible for them: if
//! the entry is deleted, or the put is refused later, the block drops them (`Event::DropExtents`).
//!
//! Operations that need the value itself at the block (to return, compare or combine the old value) are
//! refused with `ValueTooLarge`.

use super::bare;
use super::store::{Incoming, Store};
use super::table::{Hit, Table};
use crate::{Answer, Event, Operation, Ticket, large_limit};
use honeycomb_block::Backing;
use honeycomb_types::limits::{EXTENT_OWNER, EXTENT_REF, extents_per_value};
use honeycomb_types::{Bug, Time};
use honeycomb_wire::extents::{ExtentRef, PutExtents, StoredWhen, extents};
use honeycomb_wire::notice::Change;
use honeycomb_wire::{Status, key_hash};
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
pub(super) struct Adopting {
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
    /// When `retry` is due.
    pub fn due(&self) -> Option<Time> {
        self.again
    }

    /// Whether any puts wait, or any events are pending.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty() || !self.said.is_empty()
    }

    /// `KvPutExtents`: parks the put until it owns its extents.
    pub fn begin(
        &mut self,
        store: &Store,
        block: &Backing,
        operation: &Operation<'_>,
        payload: &[u8],
    ) -> Result<(), Answer> {
        let PutExtents { when, key, list: named } = PutExtents::decode(operation.args, payload)?;
        let list = read_list(store.size(), named)?;
        admit_list(store.size(), &list)?;
        if let StoredWhen::Still(old) = when {
            read_list(store.size(), old)?;
        }
        let hash = match store.admit_change(key) {
            Ok(hash) => hash,
            // The caller repeats the put with the same extents, at this block or another one.
            Err(passing) if !passing.executed() || passing.status == Status::Moved => {
                return Err(passing);
            }
            Err(refusal) => return self.refuse_list(list, refusal),
        };
        let found = store.table.find(block, hash, key);
        if let Err(refusal) = store.admit_when(block, when, found.as_ref()) {
            return self.refuse_list(list, refusal);
        }
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

    fn refuse_list(&mut self, list: Vec<ExtentRef>, refusal: Answer) -> Result<(), Answer> {
        self.said.push_back(Event::DropExtents(0, list));
        Err(refusal)
    }

    /// Completes a put that owns its extents now, or whose adoption was refused.
    pub fn complete(
        &mut self,
        store: &mut Store,
        block: &mut Backing,
        now: Time,
        ticket: Ticket,
        owner: u64,
        outcome: Result<(), (Status, String)>,
    ) {
        let Some(mut waiting) = self.waiting.remove(&ticket) else { return };
        let (_, until) = *waiting.adopted.get_or_insert((owner, now + STORE_WITHIN));
        let stored = match outcome {
            Ok(()) => store.put_list(block, waiting.put(), owner),
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
            let list = extents(waiting.put().list).expect("the request was decoded on arrival");
            self.said.push_back(Event::DropExtents(owner, list));
        }
        let answer = stored.unwrap_or_else(|refusal| refusal);
        self.said.push_back(Event::Answered(ticket, answer));
    }

    /// Retries puts that own their extents.
    pub fn retry(&mut self, store: &mut Store, block: &mut Backing, now: Time) {
        if self.again.is_none_or(|again| again > now) {
            return;
        }
        self.again = None;
        let ready = self.waiting.iter();
        let ready = ready.filter_map(|(ticket, w)| Some((*ticket, w.adopted?.0)));
        for (ticket, owner) in ready.collect::<Vec<_>>() {
            self.complete(store, block, now, ticket, owner, Ok(()));
        }
    }

    /// The next event about extents.
    pub fn event(&mut self, table: &mut Table) -> Option<Event> {
        if let Some(stored) = table.dropped.pop() {
            let (owner, list) =
                stored.split_first_chunk::<EXTENT_OWNER>().expect("an owner, then a list");
            let list = extents(list).expect("the request was decoded on arrival");
            return Some(Event::DropExtents(u64::from_le_bytes(*owner), list));
        }
        self.said.pop_front()
    }

    /// Heap bytes of these records.
    pub fn bytes(&self) -> usize {
        let bytes = |w: &Waiting| size_of::<Waiting>() + w.args.len() + w.payload.len();
        self.waiting.values().map(bytes).sum()
    }
}

/// The list in the stored form of an entry.
pub(super) fn list_of(stored: &[u8]) -> &[u8] {
    &stored[EXTENT_OWNER..]
}

/// Whether the stored form of a list can have so many bytes.
pub(super) fn is_list(length: usize) -> bool {
    let list = length.checked_sub(EXTENT_OWNER);
    list.is_some_and(|list| list > 0 && list.is_multiple_of(EXTENT_REF))
}

impl Store {
    /// Stores the list, after all checks are repeated, because the state may have changed since the put
    /// arrived.
    fn put_list(
        &mut self,
        block: &mut Backing,
        put: PutExtents<'_>,
        owner: u64,
    ) -> Result<Answer, Answer> {
        let PutExtents { when, key, list } = put;
        self.admit_change(key)?;
        let hash = key_hash(key);
        let old = self.table.find(block, hash, key);
        self.admit_when(block, when, old.as_ref())?;
        let there = old.is_some() as u64;
        let stored = [&owner.to_le_bytes()[..], list].concat();
        self.write(block, hash, key, old, Incoming::Extents(&stored))?;
        // Subscribers get no notice of a value that was only moved to other servers.
        if !matches!(when, StoredWhen::Still(_)) {
            self.events.changed(|| Change::Put { key: key.into() });
        }
        Ok(Answer::ok(there))
    }

    /// Refuses a put whose condition does not hold for the key's present value.
    fn admit_when(
        &self,
        block: &Backing,
        when: StoredWhen<'_>,
        found: Option<&Hit>,
    ) -> Result<(), Answer> {
        match (when, found) {
            (StoredWhen::Always, _) | (StoredWhen::Absent, None) => Ok(()),
            (StoredWhen::Absent, Some(_)) => Err(bare(Status::KeyExists)),
            (StoredWhen::Still(_), None) => Err(bare(Status::KeyNotFound)),
            (StoredWhen::Still(list), Some(hit))
                if self.table.has_list(block, hit, list) || Bug::CarriedOverAnother.active() =>
            {
                Ok(())
            }
            (StoredWhen::Still(_), Some(_)) => {
                Err(Answer { value: 1, ..bare(Status::CompareFailed) })
            }
        }
    }
}

/// The extents of a list, if they can form a value.
pub(super) fn read_list(size: usize, payload: &[u8]) -> Result<Vec<ExtentRef>, Answer> {
    let most = extents_per_value(size as u64) as usize;
    if payload.len() > most * EXTENT_REF {
        let count = payload.len() / EXTENT_REF;
        let text = format!("a value of {count} extents; the limit is {most}");
        return Err(Answer::refuse(Status::ValueTooLarge, text));
    }
    Ok(extents(payload)?)
}

fn admit_list(size: usize, list: &[ExtentRef]) -> Result<(), Answer> {
    let longest = large_limit(size);
    if list.is_empty() || list.iter().any(|e| e.len == 0 || e.len as usize > longest) {
        let text = format!("each extent of a value has 1 to {longest} bytes");
        return Err(Answer::refuse(Status::InvalidArgument, text));
    }
    Ok(())
}
