//! Servers that are taken out, as operators and the servers themselves ask for it.

use super::{Asked, ControllerService, Refusal, refusal};
use honeycomb_catalog::Command;
use honeycomb_types::{ServerId, Time};
use honeycomb_wire::Field;
use honeycomb_wire::messages::{
    DrainServerReply, DrainServerRequest, LeaveServerReply, ReleaseRequest,
};

impl ControllerService {
    pub(super) fn drain_server(&mut self, asked: Asked<'_>) -> Result<Vec<u8>, Refusal> {
        let q: DrainServerRequest = asked.read()?;
        let (actor, cancel) = (asked.actor, q.cancel);
        let command = Command::DrainServer { actor, address: &q.address, cancel };
        self.apply(asked.now, command).map_err(refusal)?;
        Ok(DrainServerReply {}.encode())
    }

    pub(super) fn leave_server(&mut self, now: Time, server: ServerId) -> Result<Vec<u8>, Refusal> {
        self.apply(now, Command::LeaveServer { server }).map_err(refusal)?;
        Ok(LeaveServerReply {}.encode())
    }
}

pub(super) fn release(stay: bool) -> Vec<u8> {
    ReleaseRequest { stay }.encode()
}
