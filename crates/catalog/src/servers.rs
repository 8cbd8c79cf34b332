//! Memory servers as members: join, report and loss; and the status of the cluster.

use crate::pool::{CoreRoom, Presence, Server};
use crate::tier_weights::Flow;
use crate::tombstones::Cause;
use crate::{
    Actor, Catalog, CatalogError, ClusterStatus, Effect, Loss, NewServer, PartitionMap, Reply,
    Report, ServerInfo, Suspect, TierAlarm, TierUse,
};
use honeycomb_types::limits::{BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, SERVER_SILENCE, TIERS_MAX};
use honeycomb_types::{
    BlockAt, BlockId, BlockUnits, Bug, Generation, PrefixId, ServerId, TierSpec, Time,
};
use std::sync::Arc;
use std::time::Duration;

impl Effect {
    /// Makes servers refuse grants for blocks of a prefix that are older than this (INV-29).
    pub fn revoke(&mut self, prefix: PrefixId, current: Generation) {
        if let Effect::OpenBlock { prefix: of, generation, .. } = self
            && *of == prefix
        {
            *generation = current.max(*generation);
        }
    }

    /// The server that receives the request.
    pub fn server(&self) -> ServerId {
        match *self {
            Effect::OpenBlock { server, .. }
            | Effect::FreeBlock { server, .. }
            | Effect::SetGeneration { server, .. }
            | Effect::QueueAhead { server, .. }
            | Effect::LowerBlock { server, .. }
            | Effect::FlushBlock { server, .. }
            | Effect::CopyBlock { server, .. }
            | Effect::EndCopies { server, .. }
            | Effect::CutBlock { server, .. }
            | Effect::ThawBlock { server, .. }
            | Effect::CommitFlush { server, .. }
            | Effect::SweepObjects { server, .. }
            | Effect::BeginImport { server, .. }
            | Effect::EndImport { server, .. }
            | Effect::Lots { server, .. }
            | Effect::Evacuate { server, .. }
            | Effect::Release { server, .. } => server,
        }
    }
}

fn check_new(new: &NewServer<'_>) -> Result<(), CatalogError> {
    let refuse = |what, given, allowed| Err(CatalogError::InvalidArgument { what, given, allowed });
    if new.address.is_empty() || new.address.len() > 300 {
        let allowed = "host:port, at most 300 bytes";
        return refuse("the length of a server's address", new.address.len() as u64, allowed);
    }
    if new.shards == 0 || new.shards == u8::MAX {
        let allowed = "a server has from 1 to 254 cores";
        return refuse("a server's number of shards", new.shards as u64, allowed);
    }
    let below = new.tiers.iter().map(|tier| tier.blocks as u64).sum::<u64>();
    let names = BlockUnits::of(new.block_size).names(new.blocks_per_shard);
    let blocks = u64::from(names) + below;
    if blocks > BlockId::MAX_INDEX as u64 + 1 {
        let allowed = "a shard has at most 2^24 blocks";
        return refuse("a shard's number of blocks", blocks, allowed);
    }
    if new.tiers.len() > TIERS_MAX {
        let allowed = "a server has at most 8 lower tiers";
        return refuse("a server's number of tiers", new.tiers.len() as u64, allowed);
    }
    if !new.block_size.is_power_of_two()
        || !(BLOCK_SIZE_MIN..=BLOCK_SIZE_MAX).contains(&new.block_size)
    {
        let allowed = "it must be a power of two from 64 KiB to 1 GiB";
        return refuse("the block size", new.block_size, allowed);
    }
    Ok(())
}

impl Catalog {
    pub(crate) fn join_server(
        &mut self,
        new: NewServer<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        check_new(&new)?;
        // One address is one process, and a process that joins again has dropped its blocks: in both cases
        // the earlier member is lost.
        let same = self.pool.servers().filter(|(_, server)| {
            *server.address == *new.address || server.incarnation == new.incarnation
        });
        let earlier: Vec<ServerId> = same.map(|(id, _)| id).collect();
        self.check_kinds(new.kinds, &earlier)?;
        let others = self.pool.servers().count() - earlier.len();
        if others > 0 && new.block_size != self.block_size {
            let (given, cluster) = (new.block_size, self.block_size);
            return Err(CatalogError::BlockSizeDiffers { given, cluster });
        }
        self.lose_servers(&earlier, Loss::Reset, effects);
        self.announce_kinds(new.kinds);
        self.block_size = new.block_size;
        self.silence = self.silence.min(self.now + SERVER_SILENCE);
        Ok(Reply::Joined(self.pool.join(new, self.now)))
    }

    /// Records a message of a server, which ends its suspicion unless it still has to report its blocks.
    pub(crate) fn heard_from(&mut self, id: ServerId) {
        let telling = self.is_telling(id);
        let Some(server) = self.pool.server_mut(id) else { return };
        server.last_seen = self.now;
        if server.is_suspected() && !telling {
            server.presence = Presence::Here;
            self.silence = self.silence.min(self.now + SERVER_SILENCE);
            // Allocations that found no room elsewhere may find some there.
            self.pressure.came = true;
            self.pool.stir(id);
        }
    }

    /// The connection to a server closed, and its process may still run: it is suspected until it reconnects.
    pub(crate) fn server_unlinked(&mut self, id: ServerId) -> Result<Reply, CatalogError> {
        let server = self.pool.server_mut(id).ok_or(CatalogError::UnknownServer { server: id })?;
        if server.presence == Presence::Here {
            server.presence = Presence::Suspected;
        }
        Ok(Reply::Done)
    }

    /// The silence after which a server is lost.
    pub(crate) fn server_loss(&self) -> Duration {
        Duration::from_millis(self.config.server_loss_ms.into())
    }

    /// Recomputes when the silence of a server next has consequences.
    pub(crate) fn watch_silence(&mut self) {
        let loss = self.server_loss();
        let first = self.pool.servers().map(|(_, server)| server.silent_at(loss)).min();
        self.silence = first.unwrap_or(Time::NEVER);
    }

    /// Whether a member is suspected to be lost.
    pub fn is_suspected(&self, server: ServerId) -> bool {
        self.pool.server(server).is_some_and(Server::is_suspected)
    }

    /// The suspected servers of a map.
    pub fn suspects_of(&self, map: &PartitionMap) -> Vec<Suspect> {
        let suspected = self.pool.servers().filter(|(_, server)| server.is_suspected());
        let named = suspected
            .filter(|(id, _)| map.entries.iter().any(|entry| entry.at.block.server() == *id));
        named.map(|(_, server)| self.suspect(server)).collect()
    }

    pub(crate) fn suspect(&self, server: &Server) -> Suspect {
        Suspect { address: server.address.clone(), silent_ms: self.silent_ms(server) }
    }

    fn silent_ms(&self, server: &Server) -> u64 {
        self.now.since(server.last_seen).as_millis() as u64
    }

    pub(crate) fn server_report(
        &mut self,
        id: ServerId,
        report: Report<'_>,
    ) -> Result<Reply, CatalogError> {
        let unknown = CatalogError::UnknownServer { server: id };
        self.heard_from(id);
        let server = self.pool.server_mut(id).ok_or(unknown)?;
        server.bytes_resident = report.bytes_resident;
        server.connections = report.connections;
        server.requests = report.requests;
        server.forwarded = report.forwarded;
        server.bytes_owed = report.bytes_owed;
        let now = self.now;
        server.load.heard(report.cpu_permille, self.now);
        if server.flows.len() != report.traffic.len() {
            server.flows = vec![Flow::default(); report.traffic.len()].into();
        }
        for (flow, traffic) in server.flows.iter_mut().zip(report.traffic) {
            flow.heard(traffic.written.saturating_add(traffic.read), now);
        }
        // Reports arrive four times a second: a vector of the right size is overwritten.
        match server.traffic.len() == report.traffic.len() {
            true => server.traffic.copy_from_slice(report.traffic),
            false => server.traffic = report.traffic.into(),
        }
        if !(server.alarms.is_empty() && report.alarms.is_empty()) {
            server.alarms = report.alarms.into();
        }
        for usage in report.usage.iter().filter(|usage| usage.at.block.server() == id) {
            if self.pool.held(usage.at).is_some() {
                self.pool.touch(usage.at.block, now);
            }
            self.uses(usage.at, usage.bytes_used);
        }
        self.write_bills();
        // The server may now be able to lend blocks that it could not lend before.
        self.pool.stir(id);
        self.look_at_marks();
        Ok(Reply::Done)
    }

    /// Records the bytes of data in a block.
    pub(crate) fn uses(&mut self, at: BlockAt, bytes: u64) {
        if let Some((s, change)) = self.pool.usage(at, bytes) {
            let j = self.structures[s].job;
            self.accrue(j);
            let job = &mut self.jobs[j];
            job.bytes_used = job
                .bytes_used
                .checked_add_signed(change)
                .expect("a job's usage is the sum of its blocks'");
        }
    }

    pub(crate) fn server_lost(
        &mut self,
        server: ServerId,
        how: Loss,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        self.lose_servers(&[server], how, effects);
        Ok(Reply::Done)
    }

    /// Ends the membership of servers. Every structure that had data there is lost; its blocks elsewhere are
    /// freed. The target of a split has no data of its own: the split is cancelled. A private chain is ended.
    /// Nothing happens for servers that are lost already.
    pub(crate) fn lose_servers(&mut self, ids: &[ServerId], how: Loss, effects: &mut Vec<Effect>) {
        let before = effects.len();
        let mut gone = Vec::new();
        for &id in ids {
            let Some(server) = self.pool.server_mut(id) else { continue };
            let (owners, address) = (server.owners(), server.address.clone());
            gone.push((id, address.clone()));
            for s in owners {
                self.end_chains(s, |chain| chain.is_on(ids), effects);
                if self.cancel_splits_to(s, ids, effects) {
                    continue;
                }
                let n = self.structures[s].prefix;
                self.dag.nodes[n].data_lost = true;
                self.dag.dirty.mark(n);
                let path: Arc<str> = self.dag.path_of(n).into();
                let cause = Cause::Lost { server: address.clone(), how };
                self.end_structure(s, cause, &path, effects);
            }
        }
        // The bookkeeping is that of any free; the lost servers themselves receive no request.
        let freed = effects.split_off(before);
        effects.extend(freed.into_iter().filter(|effect| !ids.contains(&effect.server())));
        for &id in ids.iter().filter(|_| !Bug::DeadStayMembers.active()) {
            self.pool.leave(id);
        }
        self.drains_left(ids);
        self.lose_flushes(&gone, how, effects);
        self.servers_left(ids, effects);
    }

    pub(crate) fn block_opened(
        &mut self,
        server: ServerId,
        at: BlockAt,
    ) -> Result<Reply, CatalogError> {
        self.heard_from(server);
        if at.block.server() == server {
            self.pool.opened(at);
        }
        Ok(Reply::Done)
    }

    pub(crate) fn block_freed(
        &mut self,
        server: ServerId,
        at: BlockAt,
    ) -> Result<Reply, CatalogError> {
        self.heard_from(server);
        if at.block.server() == server {
            self.pool.confirm(at);
        }
        Ok(Reply::Done)
    }

    pub(crate) fn cluster_status(&self, actor: Actor) -> Result<Reply, CatalogError> {
        if let Some(job) = actor.job {
            self.admit(actor, job)?;
        }
        let whole = self.whole();
        // Of memory that is available, whole blocks are shown.
        let (.., reserved) = self.pool.room();
        let reserved = reserved / whole;
        let mut status = ClusterStatus {
            uptime_ms: self.now.since(self.started.unwrap_or(self.now)).as_millis() as u64,
            jobs: self.jobs.len() as u64,
            prefixes: self.live_prefixes,
            pinned: self.jobs.iter().map(|(_, job)| job.pinned).sum(),
            structures: self.structures.len() as u64,
            reserved,
            bytes_metadata: self.bytes_metadata(),
            flushing: self.flushes.under_way(),
            flush_failing: self.flushes.failing(),
            flushed: self.flushes.done,
            flush_lost: self.flushes.lost,
            // The error names a job and its directory.
            flush_error: match actor.job {
                None => self.flushes.error(),
                Some(_) => Box::default(),
            },
            policy: self.policy.kind(),
            advice: self.advice(actor.job.is_none()),
            ..ClusterStatus::default()
        };
        if actor.job.is_none() && status.policy.is_fair() {
            status.shares = self.shares_in_blocks();
            status.shares.retain(|info| info.share.held > 0);
        }
        for (id, server) in self.pool.servers() {
            let total = server.total as u64;
            let quarantined = server.quarantined_in_memory() as u64;
            // Room for all controller shards: blocks lent to other shards are not counted as out.
            let free = if server.is_away() { 0 } else { server.free() as u64 };
            let allocated =
                total - quarantined.min(total) - free.min(total - quarantined.min(total));
            status.bytes_allocated += allocated * self.units().bytes();
            let (total, free) = (total / whole, free / whole);
            status.blocks += total;
            status.quarantined += self.in_blocks(quarantined);
            status.free += free;
            status.bytes_used += server.bytes_used;
            status.bytes_resident += server.bytes_resident;
            let used = |n: usize, spec: &TierSpec| {
                let CoreRoom { total, out, .. } = server.below(n);
                let (blocks, used) = (total as u64, out.min(total) as u64);
                let traffic = server.traffic.get(n).copied().unwrap_or_default();
                TierUse { class: spec.class, blocks, used, traffic }
            };
            let tiers: Vec<TierUse> =
                server.tiers.iter().enumerate().map(|(n, spec)| used(n, spec)).collect();
            tiers.iter().for_each(|tier| status.add(tier));
            let ago = self.now.since(server.last_seen).as_millis() as u64;
            let aged = |alarm: &TierAlarm| TierAlarm {
                age_ms: alarm.age_ms + ago,
                tried_ms: alarm.tried_ms + ago,
                ..alarm.clone()
            };
            let alarms: Vec<TierAlarm> = server.alarms.iter().map(aged).collect();
            status.alarms += alarms.len() as u32;
            if actor.job.is_none() {
                status.servers.push(ServerInfo {
                    server: id,
                    address: server.address.clone(),
                    alive: server.presence == Presence::Here,
                    // At least 1, because 0 means not suspected.
                    silent_ms: if server.is_suspected() { ago.max(1) } else { 0 },
                    shards: server.shards(),
                    block_size: self.block_size,
                    blocks: total,
                    free,
                    bytes_used: server.bytes_used,
                    bytes_resident: server.bytes_resident,
                    connections: server.connections,
                    requests: server.requests,
                    forwarded: server.forwarded,
                    bytes_owed: server.bytes_owed,
                    cpu_permille: server.load.cpu_permille(),
                    tiers,
                    alarms,
                    drain: self.drains.state(id),
                    drain_waits: self.drain_waits(id),
                });
            }
        }
        Ok(Reply::Status(status))
    }
}
