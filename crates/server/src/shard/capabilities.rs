//! The capabilities of a block's structure, as the shard uses them (`honeycomb_structures::Structure`).

use super::BlockSlot;
use honeycomb_block::Backing;
use honeycomb_structures::{
    Answer, DeltaBytes, Enlarge, Growth, LowerTierChanges, LowerTierReads, Rest, Snapshot,
    Streaming,
};
use honeycomb_types::Time;
use honeycomb_wire::Status;

impl BlockSlot {
    /// The structure's `Streaming`, and the block's memory. Only for an operation that streams its payload.
    pub(super) fn streaming(&mut self) -> (&mut dyn Streaming, &mut Backing) {
        let streaming = self.structure.streaming();
        (streaming.expect("checked when the kind was registered"), &mut self.backing)
    }

    /// The structure's `Growth`, and the block's memory. Only for a structure with messages in its inbox.
    pub(super) fn growth(&mut self) -> (&mut dyn Growth, &mut Backing) {
        let growth = self.structure.growth();
        (
            growth.expect("a kind grows, or does not: it did when the message arrived"),
            &mut self.backing,
        )
    }

    /// The structure's `Enlarge`, and the block's memory. Only for a structure with such a message.
    pub(super) fn enlarge(&mut self) -> (&mut dyn Enlarge, &mut Backing) {
        let enlarge = self.structure.enlarge();
        (
            enlarge.expect("a kind has a capacity, or does not: it did when the message arrived"),
            &mut self.backing,
        )
    }

    /// When the structure's timer is due.
    pub(super) fn deadline(&mut self) -> Option<Time> {
        self.structure.waits()?.deadline()
    }

    /// Whether no data can be added to the block any more; `None` while earlier payloads are still arriving.
    /// A block of a kind without `Growth` is always final.
    pub(super) fn is_final(&mut self) -> Option<bool> {
        self.structure.growth().map_or(Some(true), |growth| growth.is_final())
    }

    /// The content of the block, to be written elsewhere. A kv's block returns only the hashes in `range`,
    /// ends included. The items of a custom kind are checked when they are written.
    pub(super) fn snapshot(&self, range: (u64, u64)) -> Result<Snapshot, Answer> {
        let content = self.structure.content().ok_or_else(|| {
            let text = format!("structures of kind {} cannot be flushed", self.owner.kind.name());
            Answer::refuse(Status::WrongKind, text)
        })?;
        Ok(self.kind.flushed(content.snapshot(range), self.backing.len()))
    }

    /// Whether the block could be demoted. A block of which any byte may change stays in memory if nothing
    /// could read it in a lower tier.
    pub(super) fn rests(&self) -> Rest {
        let Some(content) = self.structure.content() else { return Rest::Busy };
        match content.rests() {
            Rest::Whole(_) if content.lower_tier_reads().is_none() => Rest::Busy,
            rests => rests,
        }
    }

    /// Whether any byte of the block may change.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.rests(), Rest::Whole(_))
    }

    /// The structure's changes of a `Rest::Whole` block in a lower tier.
    pub(super) fn lower_tier_changes(&mut self) -> Option<&mut dyn LowerTierChanges> {
        self.structure.content_mut()?.lower_tier_changes()
    }

    /// The bytes of its deltas.
    pub(super) fn deltas(&mut self) -> DeltaBytes {
        self.lower_tier_changes().map_or(DeltaBytes::default(), |changes| changes.deltas())
    }

    /// The structure's operations on a `Rest::Whole` block in a lower tier.
    pub(super) fn lower_tier_reads(&self) -> Option<&dyn LowerTierReads> {
        self.structure.content()?.lower_tier_reads()
    }
}
