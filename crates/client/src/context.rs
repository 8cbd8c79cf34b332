//! State that everything of one client shares: connections, the controller's address, the deadline.

use crate::buffers::Buffers;
use crate::control;
use crate::error::Error;
use crate::pool::{ConnectionPool, ShardAddress};
use honeycomb_types::Time;
use honeycomb_wire::{Field, Op};
use std::time::Duration;

pub(crate) struct Context {
    pub pool: ConnectionPool,
    pub controller: ShardAddress,
    /// Time within which every call ends.
    pub timeout: Duration,
    /// For replies about many keys.
    pub buffers: Buffers,
}

impl Context {
    /// When a call that begins now ends at the latest.
    pub fn deadline(&self) -> Time {
        self.pool.clock().now() + self.timeout
    }

    /// Sends a request to the controller and returns its reply.
    pub fn ask<Q: Field, R: Field>(&self, op: Op, body: &Q, deadline: Time) -> Result<R, Error> {
        control::ask(&self.pool, &self.controller, op, body, deadline)
    }
}
