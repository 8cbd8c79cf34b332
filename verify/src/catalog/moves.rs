//! Splits and merges: the replies to the blocks of key-value stores.

use super::reference::{Moving, moved};
use super::{CatalogModel, Verdict, agree, require};
use honeycomb_catalog::{CatalogError, Reply};
use honeycomb_types::{BlockAt, MoveId, StructureId, Way};

impl CatalogModel {
    /// The latest move.
    pub fn last_move(&self) -> Option<MoveId> {
        self.cluster.begun.iter().map(|moving| moving.id).max()
    }

    /// The source and the target of a move.
    pub fn parties(&self, id: MoveId) -> Option<(BlockAt, BlockAt)> {
        let moving = self.cluster.begun.iter().find(|moving| moving.id == id);
        moving.map(|moving| (moving.source, moving.target))
    }

    pub(super) fn begin_move(
        &mut self,
        structure: StructureId,
        at: BlockAt,
        start: u64,
        way: Way,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        self.cluster.hear(at.block.server());
        let found = self.cluster.find(structure);
        let Some(place) = found.filter(|&place| self.cluster.file(place).held().contains(&at))
        else {
            return require(reply.is_err(), || format!("a move of {at:?}, which is not held"));
        };
        let expected = self.cluster.giving(place, at, start, way);
        agree("a move", reply, &expected)?;
        let (Ok(Reply::Moving { id, entry }), Ok(giving)) = (reply, expected) else {
            return Ok(());
        };
        require(giving.is(*id, entry), || {
            format!("{entry:?} is given in {id:?}, and should be {giving:?} (INV-20)")
        })?;
        let (start, since) = (giving.start, self.cluster.now);
        let moving = Moving { id: *id, structure, source: at, target: entry.at, start, way, since };
        let fresh = self.cluster.give(place, moving);
        require(fresh, || "two moves have one name (INV-20)".into())
    }

    pub(super) fn commit_move(
        &mut self,
        structure: StructureId,
        at: BlockAt,
        id: MoveId,
        target: BlockAt,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        self.cluster.hear(at.block.server());
        let Some(place) = self.cluster.find(structure) else {
            return agree("a commit", reply, &Err::<(), _>("UnknownStructure"));
        };
        let Some(expected) = self.cluster.commit_move(place, at, id, target) else {
            return Ok(());
        };
        agree("a commit", reply, &expected)?;
        let (is, due) = (reply.as_ref().ok().map(moved), expected.ok().map(Some));
        require(is == due, || format!("a commit was answered {is:?}, not {due:?} (INV-20)"))
    }
}
