//! Blocks that clients of the same machine map: requests, copies, and the transfer of the memory.

use super::{CallerAccess, ShardService, busy, ok};
use crate::lend::LendJob;
use honeycomb_block::Shared;
use honeycomb_transport::{ConnId, Net};
use honeycomb_types::limits::LENT_WAITING_MAX;
use honeycomb_types::{BlockAt, Time};
use honeycomb_wire::{RequestHeader, Status};

impl ShardService {
    /// Passes a sealed block's memory to a client that may read it. The first time the block is copied, and
    /// the request is checked again after that: the block may have another owner by then.
    pub(super) fn lend(
        &mut self,
        net: &mut Net,
        from: ConnId,
        header: &RequestHeader,
        access: &CallerAccess,
        length: u64,
    ) {
        let refuse = |net: &mut Net, text: &str| {
            net.refuse(from, header.request, Status::NotShared, text);
        };
        if !net.passes(from) {
            return refuse(net, "a block can be mapped only over a Unix socket");
        }
        if length == 0 {
            return refuse(net, "the block is empty and cannot be mapped");
        }
        let job = access.grant.expect("authorized by one").job;
        if let Some(why) = self.shard.lending().overdrawn(job) {
            return refuse(net, &why);
        }
        if let Some(shared) = self.shard.lending().shared(header.at) {
            return match shared.reader() {
                Ok(file) => net.pass(from, ok(header.request, length), file),
                Err(e) => {
                    refuse(net, &format!("cannot pass the block's memory to the client: {e}"))
                }
            };
        }
        if let Some(waiting) = self.copying.get_mut(&header.at) {
            if waiting.len() >= LENT_WAITING_MAX {
                return busy(
                    net,
                    from,
                    header.request,
                    "too many requests wait for a copy of the block",
                );
            }
            return waiting.push((from, *header));
        }
        let bytes = self.shard.pin(header.at, 0..length as usize);
        let shard = self.outgoing.own();
        if !self.helpers.lender.give(LendJob { at: header.at, bytes, shard }) {
            return refuse(net, "the server is shutting down");
        }
        self.copying.insert(header.at, vec![(from, *header)]);
    }

    /// The copy of a block is complete: the waiting requests are answered.
    pub(super) fn copied(
        &mut self,
        net: &mut Net,
        now: Time,
        at: BlockAt,
        copy: Result<Shared, String>,
    ) {
        let frozen =
            copy.and_then(|c| self.shard.lending().freeze(at, c).map_err(|e| e.to_string()));
        let waiting = self.copying.remove(&at);
        assert!(waiting.is_some(), "INV-33: {at:?} was copied, and no request waits for it");
        for (from, header) in waiting.unwrap_or_default() {
            if self.peers.get_mut(from).is_none() {
                continue;
            }
            match &frozen {
                Ok(()) => self.data_request(net, now, from, &header, &[], &[]),
                Err(e) => {
                    let text = format!("cannot copy the block: {e}");
                    net.refuse(from, header.request, Status::NotShared, &text);
                }
            }
        }
    }
}
