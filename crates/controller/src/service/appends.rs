//! Appends that are too large for a block of a file.

use super::{ClientRequest, ControllerService, RefusedRequest, refusal, unexpected};
use crate::translate;
use honeycomb_catalog::{Command, Reply};
use honeycomb_types::{BlockAt, JobId, StructureId};
use honeycomb_wire::messages::{
    BeginAppendReply, BeginAppendRequest, CommitAppendReply, CommitAppendRequest, DropAppendReply,
    DropAppendRequest,
};
use honeycomb_wire::{Field, Op};

impl ControllerService {
    pub(super) fn begin_append(
        &mut self,
        asked: ClientRequest<'_>,
    ) -> Result<Vec<u8>, RefusedRequest> {
        let ClientRequest { now, actor, .. } = asked;
        let BeginAppendRequest { job, structure, bytes } = asked.read()?;
        let (job, structure) = (JobId(job), StructureId(structure));
        let command = Command::BeginAppend { actor, job, structure, bytes };
        match self.apply(now, command).map_err(refusal)? {
            Reply::Grown { entry, .. } => {
                self.await_open([entry.at]);
                Ok(BeginAppendReply { entry: translate::entry(&entry) }.encode())
            }
            other => unexpected(Op::BeginAppend, &other),
        }
    }

    pub(super) fn commit_append(
        &mut self,
        asked: ClientRequest<'_>,
    ) -> Result<Vec<u8>, RefusedRequest> {
        let ClientRequest { now, actor, .. } = asked;
        let CommitAppendRequest { job, structure, block, epoch } = asked.read()?;
        let (job, structure) = (JobId(job), StructureId(structure));
        let first = BlockAt::of(block, epoch);
        let command = Command::CommitAppend { actor, job, structure, first };
        match self.apply(now, command).map_err(refusal)? {
            Reply::Appended { epoch } => Ok(CommitAppendReply { epoch: epoch.0 }.encode()),
            other => unexpected(Op::CommitAppend, &other),
        }
    }

    pub(super) fn drop_append(
        &mut self,
        asked: ClientRequest<'_>,
    ) -> Result<Vec<u8>, RefusedRequest> {
        let ClientRequest { now, actor, .. } = asked;
        let DropAppendRequest { job, structure, block, epoch } = asked.read()?;
        let (job, structure) = (JobId(job), StructureId(structure));
        let first = BlockAt::of(block, epoch);
        match self.apply(now, Command::DropAppend { actor, job, structure, first }) {
            Ok(Reply::Done) => Ok(DropAppendReply {}.encode()),
            Ok(other) => unexpected(Op::DropAppend, &other),
            Err(e) => Err(refusal(e)),
        }
    }
}
