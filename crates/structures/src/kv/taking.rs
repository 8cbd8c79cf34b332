//! Taking a value that is too large for its block: it is read first, and then deleted if it is unchanged.
//!
//! A value in the key's block is taken by a delete that returns it. A value in blocks of its own is read
//! first, which changes nothing, and then deleted by the list that was read. No list ever names the same
//! extents again, so only one of several readers deletes the value, and a value that was put meanwhile stays.

use super::bare;
use super::store::Store;
use crate::Answer;
use crate::adopting::read_list;
use honeycomb_block::Backing;
use honeycomb_wire::Status;
use honeycomb_wire::notice::Change;

impl Store {
    /// `KvDeleteExtents`: deletes an entry if its value is this list.
    pub fn delete_extents(
        &mut self,
        block: &mut Backing,
        key: &[u8],
        list: &[u8],
    ) -> Result<Answer, Answer> {
        read_list(self.size(), list)?;
        let hash = self.admit_change(key)?;
        let Some(hit) = self.table.find(block, hash, key) else {
            return Err(bare(Status::KeyNotFound));
        };
        if !self.table.has_list(block, &hit, list) {
            return Err(Answer { value: 1, ..bare(Status::CompareFailed) });
        }
        self.table.remove(block, &hit);
        self.events.changed(|| Change::Delete { key: key.into() });
        Ok(Answer::ok(0))
    }
}
