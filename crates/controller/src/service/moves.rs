//! Moves: requests of source blocks, and requests to target servers (`crates/catalog/src/moves.rs`).

use super::{ControllerService, RefusedRequest, malformed, refusal, unexpected};
use crate::translate;
use honeycomb_catalog::{Command, Effect, Reply};
use honeycomb_types::{BlockAt, MoveId, StructureId, Time, Way};
use honeycomb_wire::messages::*;
use honeycomb_wire::{Field, Op, Status};

impl ControllerService {
    pub(super) fn serve_move(
        &mut self,
        now: Time,
        op: Op,
        args: &[u8],
    ) -> Result<Vec<u8>, RefusedRequest> {
        let command = match op {
            Op::BeginMove => {
                let q = BeginMoveRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), BlockAt::of(q.block, q.epoch));
                let Some(way) = Way::from_code(q.way) else {
                    return Err((
                        Status::InvalidArgument,
                        format!("unknown kind of move {}", q.way),
                    ));
                };
                Command::BeginMove { structure, at, start: q.start, way }
            }
            Op::CommitMove => {
                let q = CommitMoveRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), BlockAt::of(q.block, q.epoch));
                let (id, target) = (MoveId(q.move_id), BlockAt::of(q.target, q.target_epoch));
                Command::CommitMove { structure, at, id, target, bytes: q.bytes }
            }
            _ => {
                let q = CancelMoveRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), BlockAt::of(q.block, q.epoch));
                Command::CancelMove { structure, at, id: MoveId(q.move_id) }
            }
        };
        match self.apply(now, command).map_err(refusal)? {
            Reply::Moving { id, entry } => {
                self.await_open([entry.at]);
                let entry = translate::entry(&entry);
                Ok(BeginMoveReply { move_id: id.0, entry }.encode())
            }
            Reply::Moved { version, entry } => {
                let entry = translate::entry(&entry);
                Ok(CommitMoveReply { version: version.0, entry }.encode())
            }
            Reply::Done => Ok(CancelMoveReply {}.encode()),
            other => unexpected(op, &other),
        }
    }

    /// Cancels a move whose target could not be prepared. The request of its source is refused.
    pub(super) fn give_up_import(&mut self, now: Time, effect: &Effect) {
        let (server, at, id) = match *effect {
            Effect::OpenBlock { server, at, importing, .. } => (server, at, importing),
            Effect::BeginImport { server, at, id, .. } => (server, at, id),
            _ => return,
        };
        if id != MoveId::NONE {
            let _ = self.apply(now, Command::ImportRefused { server, at, id });
        }
    }
}

pub(super) fn evacuate(at: BlockAt) -> Vec<u8> {
    EvacuateRequest { block: at.block.0, epoch: at.epoch.0 }.encode()
}

pub(super) fn begin_import(at: BlockAt, id: MoveId, start: u64, end: u64) -> Vec<u8> {
    let (block, epoch, move_id) = (at.block.0, at.epoch.0, id.0);
    BeginImportRequest { block, epoch, move_id, start, end }.encode()
}

pub(super) fn end_import(at: BlockAt, id: MoveId, commit: bool) -> Vec<u8> {
    let (block, epoch, move_id) = (at.block.0, at.epoch.0, id.0);
    EndImportRequest { block, epoch, move_id, commit }.encode()
}

#[cfg(test)]
mod tests {
    use super::super::server_requests::loss_of;
    use super::*;
    use honeycomb_types::*;

    fn open(importing: MoveId) -> Effect {
        Effect::OpenBlock {
            server: ServerId(1),
            at: BlockAt::default(),
            job: JobId(1),
            prefix: PrefixId(1),
            structure: StructureId(1),
            generation: Generation(1),
            kind: Kind::Kv,
            start: 0,
            end: u64::MAX,
            max_items: 0,
            max_bytes: 0,
            first: true,
            marks: Marks::default(),
            importing,
            tier: honeycomb_types::TierIx::MEMORY,
            capacity: 65_536,
            journal: None,
        }
    }

    #[test]
    fn a_move_to_a_server_that_is_gone_loses_nothing() {
        let status = |effect: &Effect| loss_of(effect).map(|(status, _)| status);
        assert_eq!(status(&open(MoveId::NONE)), Some(Status::DataLost));
        assert_eq!(status(&open(MoveId(7))), Some(Status::Busy));
        let (server, at, id) = (ServerId(1), BlockAt::default(), MoveId(7));
        let begin = Effect::BeginImport { server, at, id, start: 0, end: 9 };
        assert_eq!(status(&begin), Some(Status::Busy));
        assert_eq!(status(&Effect::FreeBlock { server, at }), None);
    }
}
