//! Memory servers: joining, rejoining, and reports of their blocks.

use crate::service::{
    ControllerService, RefusedRequest, ServerRequest, malformed, message_of, refusal,
};
use honeycomb_catalog::{CatalogError, Command, Effect, HeldBlock, NewServer, Reply, Seal};
use honeycomb_transport::{ConnId, Net};
use honeycomb_types::{
    BlockAt, Generation, ServerId, StructureId, TierClass, TierIx, TierSpec, Time,
};
use honeycomb_wire::custom::announced_kind;
use honeycomb_wire::messages::{
    HeldBlock as ReportedBlock, InventoryRequest, JoinServerReply, JoinServerRequest, TierInfo,
};
use honeycomb_wire::{Field, Status};

impl ControllerService {
    pub(crate) fn join(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        args: &[u8],
    ) -> Result<Vec<u8>, RefusedRequest> {
        let q = JoinServerRequest::decode(args).map_err(malformed)?;
        if q.term > self.term {
            // INV-25: another controller has taken over; this one must have no further effects.
            self.fence(q.term);
            let text =
                format!("this controller has the old term {}: another has taken over", self.term);
            return Err((Status::PermissionDenied, text));
        }
        let kinds = q.kinds.iter().map(announced_kind).collect::<Result<Vec<_>, String>>();
        let kinds = kinds.map_err(|why| (Status::InvalidArgument, why))?;
        let tiers = q.tiers.iter().map(tier_spec).collect::<Result<Vec<_>, RefusedRequest>>()?;
        let new = NewServer {
            address: &q.address,
            incarnation: q.incarnation,
            shards: q.shards,
            blocks_per_shard: q.blocks_per_shard,
            tiers: &tiers,
            block_size: q.block_size,
            flush_root: &q.flush_root,
            kinds: &kinds,
        };
        let admitted = self.admit_server(net, now, new, ServerId(q.server));
        let (server, known) = admitted.map_err(refusal)?;
        if !q.lent.is_empty() {
            // A server that has lent fewer blocks than it holds for this shard contradicts itself.
            let lent = Command::Lent { server, lent: &q.lent };
            self.apply(now, lent).inspect_err(|_| net.close(from)).map_err(refusal)?;
        }
        let peer = self.peers.get_mut(&from).expect("greeted");
        let joined = peer.server.is_some();
        assert!(!joined, "INV-16: server {server} joins over the link of another one");
        peer.server = Some(server);
        let before = self.links.insert(server, from);
        assert!(before.is_none(), "INV-16: server {server} joins, and has the link {before:?}");
        self.probes.end(server);
        if !known {
            // The new server may replace an earlier server at the same address, which is then lost.
            self.drop_former(net, now);
        }
        Ok(JoinServerReply {
            server: server.0,
            known,
            token_key: self.token_key.0.to_vec(),
            grant_key: self.grant_key.0.to_vec(),
            now_ms: now.as_millis(),
            term: self.term,
        }
        .encode())
    }

    /// The number of a server, and whether it keeps its earlier number because it is still that member.
    fn admit_server(
        &mut self,
        net: &mut Net,
        now: Time,
        new: NewServer<'_>,
        member: ServerId,
    ) -> Result<(ServerId, bool), CatalogError> {
        if member != ServerId(0) {
            match self.apply(now, Command::RejoinServer { server: new, member }) {
                Ok(_) => {
                    if let Some(old) = self.links.remove(&member) {
                        net.close(old);
                    }
                    return Ok((member, true));
                }
                Err(CatalogError::UnknownServer { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        match self.apply(now, Command::JoinServer { server: new })? {
            Reply::Joined(server) => Ok((server, false)),
            other => unreachable!("joining answers with a number, not {other:?}"),
        }
    }

    pub(crate) fn inventory(
        &mut self,
        now: Time,
        server: ServerId,
        q: &InventoryRequest,
    ) -> Result<(), RefusedRequest> {
        let held: Vec<HeldBlock> = q.blocks.iter().map(held_block).collect();
        let last = q.last;
        self.apply(now, Command::Inventory { server, held: &held, last }).map_err(refusal)?;
        if last {
            self.repeat_errands(now, server);
        }
        Ok(())
    }

    /// Repeats the unanswered requests that were sent to a server over an earlier connection: these may be
    /// lost. All of them are idempotent; requests over the present connection are still in flight. Five kinds
    /// of requests are not repeated: parts of flushes, which the catalog has requested again; borrowed
    /// blocks, which the server has reported; drains and evacuations, which the catalog decides again;
    /// demotions and promotions, which ended with the server's report, so that their room may already belong
    /// to another block; and the opening of blocks that were freed meanwhile, which no structure would own.
    fn repeat_errands(&mut self, now: Time, server: ServerId) {
        let Some(link) = self.links.get(&server).copied() else { return };
        let unheard = |errand: &ServerRequest| errand.server == server && errand.link != Some(link);
        let mut asked: Vec<u64> =
            self.errands.iter().filter(|(_, e)| unheard(e)).map(|(n, _)| *n).collect();
        asked.sort_unstable();
        for number in asked {
            if self.asks_again(&self.errands[&number].effect) {
                let mut errand = self.errands.remove(&number).expect("listed just now");
                errand.link = Some(link);
                let (_, op, body) = message_of(&errand.effect);
                self.ask_server(now, number, errand, op, body);
            } else {
                self.drop_errand(number);
            }
        }
        debug_assert!(
            !self.errands.values().any(unheard),
            "INV-16: a request to server {server} was sent over an earlier connection only"
        );
    }

    fn asks_again(&self, effect: &Effect) -> bool {
        match effect {
            Effect::OpenBlock { at, .. } => self.is_opening(*at),
            Effect::FlushBlock { .. }
            | Effect::CopyBlock { .. }
            | Effect::CutBlock { .. }
            | Effect::ThawBlock { .. }
            | Effect::Lots { .. }
            | Effect::LowerBlock { .. }
            | Effect::Evacuate { .. }
            | Effect::Release { .. } => false,
            _ => true,
        }
    }
}

/// The catalog's form of a block in a server's report.
pub fn held_block(held: &ReportedBlock) -> HeldBlock {
    let seal = Seal { length: held.length, bytes: held.bytes, last: held.state == 2 };
    HeldBlock {
        at: BlockAt::of(held.block, held.epoch),
        structure: StructureId(held.structure),
        generation: Generation(held.generation),
        bytes_used: held.bytes_used,
        sealed: (held.state != 0).then_some(seal),
        successor: (held.next != 0).then(|| BlockAt::of(held.next, held.next_epoch)),
        taken: (held.taken_items, held.taken_bytes),
        tiers: (TierIx(held.tier), TierIx(held.to)),
        capacity: held.capacity,
    }
}

/// The catalog's form of a tier in a server's report.
fn tier_spec(tier: &TierInfo) -> Result<TierSpec, RefusedRequest> {
    let class = TierClass::from_code(tier.class)
        .ok_or_else(|| (Status::InvalidArgument, format!("unknown tier class {}", tier.class)))?;
    Ok(TierSpec { class, blocks: tier.blocks })
}
