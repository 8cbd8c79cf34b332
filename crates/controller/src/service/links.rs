//! Requests and reports of memory servers, and the loss of a server.

use super::{ControllerService, RefusedRequest, malformed, refusal, unexpected};
use crate::translate;
use honeycomb_catalog::{BlockUsage, Command, Reply, Report, Seal, TierAlarm, TierTraffic};
use honeycomb_transport::{ConnId, Net};
use honeycomb_types::limits::TIERS_MAX;
use honeycomb_types::{AlarmKind, BlockAt, JobId, PrefixId, ServerId, StructureId, TierIx, Time};
use honeycomb_wire::messages::*;
use honeycomb_wire::{Field, Op};
use std::collections::BTreeSet;

impl ControllerService {
    pub(super) fn serve_link(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        op: Op,
        args: &[u8],
    ) -> Result<Vec<u8>, RefusedRequest> {
        let server = self.peers[&from].server.expect("checked with the actor");
        match op {
            Op::Inventory => {
                let q = InventoryRequest::decode(args).map_err(malformed)?;
                self.inventory(now, server, &q).inspect_err(|_| net.close(from))?;
                Ok(InventoryReply {}.encode())
            }
            Op::LeaveServer => {
                LeaveServerRequest::decode(args).map_err(malformed)?;
                self.leave_server(now, server)
            }
            Op::Report => {
                let q = ReportRequest::decode(args).map_err(malformed)?;
                self.report(now, server, &q).inspect_err(|_| net.close(from))?;
                Ok(ReportReply { now_ms: now.as_millis() }.encode())
            }
            Op::GrowStructure => {
                let q = GrowStructureRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), BlockAt::of(q.block, q.epoch));
                match self.apply(now, Command::GrowStructure { structure, at }).map_err(refusal)? {
                    Reply::Grown { version, entry } => {
                        self.await_open([entry.at]);
                        let entry = translate::entry(&entry);
                        Ok(GrowStructureReply { version: version.0, entry }.encode())
                    }
                    other => unexpected(op, &other),
                }
            }
            Op::GrowBlock => {
                let q = GrowBlockRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), BlockAt::of(q.block, q.epoch));
                let command = Command::GrowBlock { structure, at, bytes: q.bytes };
                match self.apply(now, command).map_err(refusal)? {
                    Reply::Capacity { bytes } => Ok(GrowBlockReply { capacity: bytes }.encode()),
                    other => unexpected(op, &other),
                }
            }
            Op::QueueTaken => {
                let q = QueueTakenRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), BlockAt::of(q.block, q.epoch));
                let (items, bytes) = (q.items, q.bytes);
                let command = Command::QueueTaken { structure, at, items, bytes };
                self.apply(now, command).map_err(refusal)?;
                Ok(QueueTakenReply {}.encode())
            }
            Op::ReturnBlock => {
                let q = ReturnBlockRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), BlockAt::of(q.block, q.epoch));
                let successor = BlockAt::of(q.successor, q.successor_epoch);
                let command = Command::ReturnBlock { structure, at, successor };
                self.apply(now, command).map_err(refusal)?;
                Ok(ReturnBlockReply {}.encode())
            }
            Op::RaiseBlock => {
                let q = RaiseBlockRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), BlockAt::of(q.block, q.epoch));
                self.apply(now, Command::RaiseBlock { structure, at }).map_err(refusal)?;
                Ok(RaiseBlockReply {}.encode())
            }
            Op::TierChanged => {
                let q = TierChangedRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), BlockAt::of(q.block, q.epoch));
                let tier = TierIx(q.tier);
                let command = Command::TierChanged { structure, at, tier };
                self.apply(now, command).map_err(refusal)?;
                Ok(TierChangedReply {}.encode())
            }
            Op::BlockFailed => {
                let q = BlockFailedRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), BlockAt::of(q.block, q.epoch));
                self.apply(now, Command::BlockFailed { structure, at }).map_err(refusal)?;
                Ok(BlockFailedReply {}.encode())
            }
            Op::RetireBlock => {
                let q = RetireBlockRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), BlockAt::of(q.block, q.epoch));
                self.apply(now, Command::RetireBlock { structure, at }).map_err(refusal)?;
                Ok(RetireBlockReply {}.encode())
            }
            _ => {
                let q = SealBlockRequest::decode(args).map_err(malformed)?;
                let (structure, at) = (StructureId(q.structure), BlockAt::of(q.block, q.epoch));
                let seal = Seal { length: q.length, bytes: q.bytes, last: q.last };
                let command = Command::SealBlock { structure, at, seal };
                match self.apply(now, command).map_err(refusal)? {
                    Reply::Sealed { version } => Ok(SealBlockReply { version: version.0 }.encode()),
                    other => unexpected(op, &other),
                }
            }
        }
    }

    fn report(
        &mut self,
        now: Time,
        server: ServerId,
        q: &ReportRequest,
    ) -> Result<(), RefusedRequest> {
        let usage: Vec<BlockUsage> = q
            .usage
            .iter()
            .map(|u| BlockUsage { at: BlockAt::of(u.block, u.epoch), bytes_used: u.bytes_used })
            .collect();
        let traffic: Vec<TierTraffic> = (q.tiers.iter().take(TIERS_MAX))
            .map(|t| TierTraffic { written: t.written, read: t.read })
            .collect();
        // Alarms of an unknown kind are ignored.
        let alarm = |a: &honeycomb_wire::messages::TierAlarm| {
            let kind = AlarmKind::from_code(a.kind)?;
            let (tier, why) = (TierIx(a.tier), a.why.as_str().into());
            Some(TierAlarm { tier, kind, why, age_ms: a.age_ms, tried_ms: a.tried_ms })
        };
        let most = TIERS_MAX * AlarmKind::ALL.len();
        let alarms: Vec<TierAlarm> = q.alarms.iter().take(most).filter_map(alarm).collect();
        let report = Report {
            bytes_resident: q.bytes_resident,
            connections: q.connections,
            requests: q.requests,
            forwarded: q.forwarded,
            bytes_owed: q.bytes_owed,
            cpu_permille: q.cpu_permille,
            traffic: &traffic,
            alarms: &alarms,
            usage: &usage,
        };
        self.apply(now, Command::ServerReport { server, report }).map_err(refusal)?;
        for active in &q.active {
            let (job, prefix) = (JobId(active.job), PrefixId(active.prefix));
            let ago_ms = active.ago_ms;
            self.apply(now, Command::RenewPrefixById { job, prefix, ago_ms }).map_err(refusal)?;
        }
        Ok(())
    }

    /// Cleans up after servers that the catalog has declared lost, with a link or without. Replies that wait
    /// for them are sent, and the connection of a server that was only paused is closed, so that it joins
    /// again.
    pub(crate) fn drop_former(&mut self, net: &mut Net, now: Time) {
        let linked = self.links.keys().copied();
        let asked = self.errands.values().map(|errand| errand.server);
        let opening = self.opening.keys().map(|at| at.block.server());
        let probed = self.probes.servers();
        let mut gone: BTreeSet<ServerId> =
            linked.chain(asked).chain(opening).chain(probed).collect();
        gone.retain(|server| !self.catalog.is_member(*server));
        for server in gone {
            if let Some(link) = self.links.get(&server) {
                net.close(*link);
            }
            self.lose(now, server);
        }
    }

    pub(super) fn lose(&mut self, now: Time, server: ServerId) {
        self.links.remove(&server);
        self.probes.end(server);
        self.opening.retain(|at, _| at.block.server() != server);
        // The catalog may already have declared it lost.
        let _ = self.apply(now, Command::ServerLost { server });
        let member = self.catalog.is_member(server);
        assert!(!member, "INV-56: server {server} is lost, and the catalog has it as a member");
        self.errands_of_a_lost(server);
        self.dispatch(now, None);
        let ended = self.errands.values().all(|errand| errand.server != server);
        assert!(ended, "INV-16: a request waits for the lost server {server:?}");
    }
}
