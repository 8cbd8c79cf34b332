//! Values that are too large for a block: lists of extents in blocks of their own (ADR 0018).
//!
//! The entry of such a value stores the owner of the extents and their list. `adopting.rs` parks a put of a
//! list until the put owns its extents. When the entry moves, both move with it, and the extents stay.
//!
//! Operations that need the value itself at the block (to return, compare or combine the old value) are
//! refused with `ValueTooLarge`.

use super::bare;
use super::store::{Incoming, Store};
use super::table::Hit;
use crate::adopting::{Adopting, admit_list, read_list};
use crate::{Adopted, Answer, Operation};
use honeycomb_block::Backing;
use honeycomb_types::{Bug, Time};
use honeycomb_wire::extents::{PutExtents, StoredWhen};
use honeycomb_wire::notice::Change;
use honeycomb_wire::{Status, key_hash};

/// `KvPutExtents`: parks the put until it owns its extents.
pub(super) fn begin(
    adopting: &mut Adopting,
    store: &Store,
    block: &Backing,
    operation: &Operation<'_>,
    payload: &[u8],
) -> Result<(), Answer> {
    let PutExtents { when, key, list } = PutExtents::decode(operation.args, payload)?;
    let list = admit_list(store.size(), list)?;
    if let StoredWhen::Still(old) = when {
        read_list(store.size(), old)?;
    }
    let admitted = store.admit_change(key).and_then(|hash| {
        let found = store.table.find(block, hash, key);
        store.admit_when(block, when, found.as_ref())
    });
    match admitted {
        Ok(()) => adopting.park(operation, payload, list),
        Err(refusal) => Err(adopting.refuse(list, refusal)),
    }
}

/// Completes a put whose adoption was decided.
pub(super) fn complete(
    adopting: &mut Adopting,
    store: &mut Store,
    block: &mut Backing,
    now: Time,
    adopted: Adopted,
) {
    adopting.complete(now, adopted, |put, stored| store.put_list(block, put, stored).map(Some));
}

impl Store {
    /// Stores a list, in its stored form.
    fn put_list(
        &mut self,
        block: &mut Backing,
        PutExtents { when, key, .. }: PutExtents<'_>,
        stored: &[u8],
    ) -> Result<Answer, Answer> {
        self.admit_change(key)?;
        let hash = key_hash(key);
        let old = self.table.find(block, hash, key);
        self.admit_when(block, when, old.as_ref())?;
        let there = old.is_some() as u64;
        self.write(block, hash, key, old, Incoming::Extents(stored))?;
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
