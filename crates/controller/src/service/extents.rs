//! Blocks for the extents of large values, and the addresses of their servers.

use super::{ClientRequest, ControllerService, RefusedRequest, refusal, unexpected};
use crate::translate;
use honeycomb_catalog::{Command, Reply};
use honeycomb_types::{BlockId, JobId, ServerId, StructureId};
use honeycomb_wire::messages::{
    ExtentBlocksReply, ExtentBlocksRequest, LocateServerReply, LocateServerRequest,
};
use honeycomb_wire::{Field, Op, Status};

/// Whether a request of a changing operation only reads: it lists the present blocks.
pub(super) fn only_asks(op: Op, args: &[u8]) -> bool {
    op == Op::ExtentBlocks && ExtentBlocksRequest::decode(args).is_ok_and(|q| q.bytes == 0)
}

impl ControllerService {
    pub(super) fn extent_blocks(
        &mut self,
        asked: ClientRequest<'_>,
    ) -> Result<Vec<u8>, RefusedRequest> {
        let ClientRequest { now, actor, .. } = asked;
        let q = asked.read::<ExtentBlocksRequest>()?;
        let full: Vec<BlockId> = q.full.iter().map(|block| BlockId(*block)).collect();
        let (job, structure) = (JobId(q.job), StructureId(q.structure));
        let (bytes, full, value) = (q.bytes, &full[..], q.value);
        let command = Command::ExtentBlocks { actor, job, structure, bytes, full, value };
        match self.apply(now, command).map_err(refusal)? {
            Reply::Extents(entries) => {
                // The client may use any block of a list, so that only a new block is awaited.
                if bytes > 0 {
                    self.await_open(entries.iter().map(|entry| entry.at));
                }
                let entries = entries.iter().map(translate::entry).collect();
                Ok(ExtentBlocksReply { entries }.encode())
            }
            other => unexpected(Op::ExtentBlocks, &other),
        }
    }

    pub(super) fn locate_server(
        &mut self,
        asked: ClientRequest<'_>,
    ) -> Result<Vec<u8>, RefusedRequest> {
        let server = ServerId(asked.read::<LocateServerRequest>()?.server);
        let address = self.catalog.address_of(server).ok_or_else(|| {
            (Status::NotFound, format!("memory server {server} does not exist or was lost"))
        })?;
        Ok(LocateServerReply { address: address.to_string() }.encode())
    }
}
