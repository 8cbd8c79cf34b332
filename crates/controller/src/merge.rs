//! Merges the answers of all shards of a controller.

use honeycomb_catalog::DrainState;
use honeycomb_wire::messages::{
    ClusterStatusReply, JobCostReply, ListJobsReply, ServerInfo, StopClusterReply,
};
use honeycomb_wire::{Field, Malformed, Op};

/// The answer of the whole controller. With `narrow`, a job's token gets totals only.
pub(crate) fn whole(op: Op, parts: &[Vec<u8>], narrow: bool) -> Result<Vec<u8>, Malformed> {
    if op == Op::DrainServer {
        return Ok(Vec::new());
    }
    if op == Op::StopCluster {
        let mut all = StopClusterReply::default();
        for part in parts {
            add_stop(&mut all, StopClusterReply::decode(part)?);
        }
        return Ok(all.encode());
    }
    if op == Op::ListJobs {
        let mut jobs = Vec::new();
        for part in parts {
            jobs.extend(ListJobsReply::decode(part)?.jobs);
        }
        // Ids do not show the order (INV-54).
        jobs.sort_by(|a, b| (b.age_ms, &a.name).cmp(&(a.age_ms, &b.name)));
        return Ok(ListJobsReply { jobs }.encode());
    }
    if op == Op::JobCost {
        let mut bills = Vec::new();
        for part in parts {
            bills.extend(JobCostReply::decode(part)?.bills);
        }
        bills.sort_by_key(|bill| (!bill.ended, bill.job));
        return Ok(JobCostReply { bills }.encode());
    }
    let mut parts = parts.iter().map(|part| ClusterStatusReply::decode(part));
    let mut all = parts.next().unwrap_or(Ok(ClusterStatusReply::default()))?;
    for part in parts {
        add(&mut all, part?);
    }
    if narrow {
        // The answer to a job's token is the same as that of a single shard.
        all.servers.clear();
        all.flush_error.clear();
        all.shares.clear();
        all.advice_address.clear();
        all.advice_why.clear();
    }
    Ok(all.encode())
}

fn add_stop(all: &mut StopClusterReply, part: StopClusterReply) {
    for (sum, more) in [
        (&mut all.jobs, part.jobs),
        (&mut all.flushes, part.flushes),
        (&mut all.failing, part.failing),
        (&mut all.lost, part.lost),
        (&mut all.parts, part.parts),
        (&mut all.parts_done, part.parts_done),
        (&mut all.bytes, part.bytes),
    ] {
        *sum += more;
    }
    all.unflushed.extend(part.unflushed);
}

/// Every shard has all servers as members, and each counts the blocks that it has allocated. A block that is
/// not free for one shard is not free.
fn add(all: &mut ClusterStatusReply, part: ClusterStatusReply) {
    let out = part.blocks.saturating_sub(part.free);
    all.blocks = all.blocks.max(part.blocks);
    all.free = all.free.saturating_sub(out);
    for (sum, more) in [
        (&mut all.jobs, part.jobs),
        (&mut all.prefixes, part.prefixes),
        (&mut all.pinned, part.pinned),
        (&mut all.structures, part.structures),
        (&mut all.reserved, part.reserved),
        (&mut all.quarantined, part.quarantined),
        (&mut all.bytes_allocated, part.bytes_allocated),
        (&mut all.bytes_used, part.bytes_used),
        (&mut all.bytes_metadata, part.bytes_metadata),
        (&mut all.requests, part.requests),
        (&mut all.requests_leases, part.requests_leases),
        (&mut all.requests_blocks, part.requests_blocks),
        (&mut all.requests_reports, part.requests_reports),
        (&mut all.flushing, part.flushing),
        (&mut all.flush_failing, part.flush_failing),
        (&mut all.flushed, part.flushed),
        (&mut all.flush_lost, part.flush_lost),
    ] {
        *sum += more;
    }
    // Servers with tiers are members of one shard only.
    if all.tiers.is_empty() {
        all.tiers = part.tiers;
    }
    all.alarms += part.alarms;
    all.shares.extend(part.shares);
    all.uptime_ms = all.uptime_ms.max(part.uptime_ms);
    all.bytes_resident = all.bytes_resident.max(part.bytes_resident);
    if all.flush_error.is_empty() {
        all.flush_error = part.flush_error;
    }
    for server in part.servers {
        match all.servers.iter_mut().find(|known| known.address == server.address) {
            Some(known) => add_server(known, &server),
            None => all.servers.push(server),
        }
    }
}

fn add_server(known: &mut ServerInfo, part: &ServerInfo) {
    known.free = known.free.saturating_sub(part.blocks.saturating_sub(part.free));
    known.bytes_used += part.bytes_used;
    known.alive &= part.alive;
    known.silent_ms = known.silent_ms.max(part.silent_ms);
    // A server with tiers is a member of one shard only.
    known.alarms.extend_from_slice(&part.alarms);
    add_drain(known, part);
}

/// A server is released when all shards release it, and recalled when one shard recalls it.
fn add_drain(known: &mut ServerInfo, part: &ServerInfo) {
    let (draining, recalled) = (DrainState::Draining as u8, DrainState::Recalled as u8);
    let (own, other) = (known.drain, part.drain);
    known.drain = match () {
        () if own == other => own,
        () if own == recalled || other == recalled => recalled,
        () => draining,
    };
    // A shard that has released the server has no reason to wait.
    if own != known.drain {
        known.drain_waits.clear();
    }
    if other == known.drain && !part.drain_waits.is_empty() && known.drain_waits != part.drain_waits
    {
        if !known.drain_waits.is_empty() {
            known.drain_waits.push_str("; ");
        }
        known.drain_waits.push_str(&part.drain_waits);
    }
    known.cpu_permille = known.cpu_permille.max(part.cpu_permille);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_released_when_all_shards_release_it() {
        let server = |drain: DrainState, waits: &str| ServerInfo {
            drain: drain as u8,
            drain_waits: waits.into(),
            ..ServerInfo::default()
        };
        use DrainState::{Draining, Recalled, Released, Serving};
        for (one, other, all) in [
            (server(Draining, "a"), server(Released, "b"), server(Draining, "a")),
            (server(Released, "b"), server(Draining, "a"), server(Draining, "a")),
            (server(Draining, "a"), server(Draining, "b"), server(Draining, "a; b")),
            (server(Released, "b"), server(Released, "b"), server(Released, "b")),
            (server(Recalled, "c"), server(Serving, ""), server(Recalled, "c")),
            (server(Serving, ""), server(Draining, "a"), server(Draining, "a")),
            (server(Serving, ""), server(Serving, ""), server(Serving, "")),
        ] {
            let mut known = one;
            add_drain(&mut known, &other);
            assert_eq!(known, all);
        }
    }

    #[test]
    fn what_two_shards_have_given_out_is_free_to_nobody() {
        let server = |server, free, bytes_used| ServerInfo {
            server,
            address: "a:1".into(),
            alive: true,
            blocks: 10,
            free,
            bytes_used,
            ..ServerInfo::default()
        };
        let part = |shard: u32, free, used| ClusterStatusReply {
            jobs: 1,
            blocks: 10,
            free,
            bytes_used: used,
            servers: vec![server(shard << 24 | 1, free, used)],
            ..ClusterStatusReply::default()
        };
        let parts = [part(0, 7, 5), part(1, 6, 9)].map(|part| part.encode());
        let seen = |narrow| {
            ClusterStatusReply::decode(&whole(Op::ClusterStatus, &parts, narrow).unwrap()).unwrap()
        };
        let all = seen(false);
        assert_eq!((all.jobs, all.blocks, all.free, all.bytes_used), (2, 10, 3, 14));
        assert_eq!(all.servers, [server(1, 3, 14)]);
        assert_eq!(seen(true).servers, []);
    }
}
