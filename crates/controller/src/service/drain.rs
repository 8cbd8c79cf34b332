//! Requests of operators and servers to drain a server, and the stop of the cluster.

use super::{ClientRequest, ControllerService, RefusedRequest, refusal, unexpected};
use crate::translate;
use honeycomb_catalog::{Command, Reply};
use honeycomb_types::{ServerId, Time};
use honeycomb_wire::Field;
use honeycomb_wire::messages::{
    DrainServerReply, DrainServerRequest, LeaveServerReply, ReleaseRequest, StopClusterRequest,
};

impl ControllerService {
    pub(super) fn drain_server(
        &mut self,
        asked: ClientRequest<'_>,
    ) -> Result<Vec<u8>, RefusedRequest> {
        let q: DrainServerRequest = asked.read()?;
        let (actor, cancel) = (asked.actor, q.cancel);
        let command = Command::DrainServer { actor, address: &q.address, cancel };
        self.apply(asked.now, command).map_err(refusal)?;
        Ok(DrainServerReply {}.encode())
    }

    /// One step of stopping the cluster; answers the progress.
    pub(super) fn stop_cluster(
        &mut self,
        asked: ClientRequest<'_>,
    ) -> Result<Vec<u8>, RefusedRequest> {
        let StopClusterRequest { discard } = asked.read()?;
        let command = Command::StopCluster { actor: asked.actor, discard };
        match self.apply(asked.now, command).map_err(refusal)? {
            Reply::Stopping(progress) => Ok(translate::stop_progress(progress).encode()),
            other => unexpected(asked.op, &other),
        }
    }

    pub(super) fn leave_server(
        &mut self,
        now: Time,
        server: ServerId,
    ) -> Result<Vec<u8>, RefusedRequest> {
        self.apply(now, Command::LeaveServer { server }).map_err(refusal)?;
        Ok(LeaveServerReply {}.encode())
    }
}

pub(super) fn release(stay: bool) -> Vec<u8> {
    ReleaseRequest { stay }.encode()
}
