//! From the catalog's answers to message bodies.

use honeycomb_catalog as catalog;
use honeycomb_types::{Time, Verbs};
use honeycomb_wire::messages::*;
use honeycomb_wire::{Field, Grant, GrantKey, Status};

use crate::service::Requests;
use crate::status::status_of;

/// How long a grant is good: long enough that opening again is rare, short enough that a forgotten
/// one ends.
const GRANT_MS: u64 = 3_600_000;

pub(crate) fn options(o: &PrefixOptions) -> catalog::PrefixOptions {
    catalog::PrefixOptions {
        lease_ms: o.lease_ms,
        pinned: o.pinned,
        owner_verbs: Verbs(o.owner_verbs),
        job_verbs: Verbs(o.job_verbs),
    }
}

pub(crate) fn entry(e: &catalog::MapEntry) -> MapEntry {
    MapEntry {
        start: e.start,
        end: e.end,
        block: e.at.block.0,
        epoch: e.at.epoch.0,
        address: e.address.to_string(),
    }
}

fn map(m: &catalog::PartitionMap) -> PartitionMap {
    PartitionMap {
        version: m.version.0,
        router: m.router as u8,
        block_size: m.block_size,
        entries: m.entries.iter().map(entry).collect(),
    }
}

/// The reply to creating, opening and reopening a structure: they are one in form. The grant ends
/// with the token that asked for it, if not before.
pub(crate) fn opened(
    o: &catalog::Opened,
    key: &GrantKey,
    now: Time,
    token_expires_ms: u64,
) -> Vec<u8> {
    let grant = Grant {
        job: o.job,
        prefix: o.prefix,
        structure: o.structure,
        verbs: o.verbs,
        generation: o.generation,
        expires_ms: (now.as_millis() + GRANT_MS).min(token_expires_ms),
    };
    OpenStructureReply {
        structure: o.structure.0,
        prefix: o.prefix.0,
        kind: o.kind as u8,
        verbs: o.verbs.0,
        grant: key.issue(&grant),
        map: map(&o.map),
        max_items: o.max_items,
        max_bytes: o.max_bytes,
        edge: o.edge as u8,
    }
    .encode()
}

pub(crate) fn job_info(j: &catalog::JobInfo) -> JobInfo {
    JobInfo {
        job: j.job.0,
        name: j.name.to_string(),
        prefixes: j.prefixes,
        pinned: j.pinned,
        structures: j.structures,
        blocks: j.blocks,
        bytes_used: j.bytes_used,
        age_ms: j.age_ms,
    }
}

fn structure_info(s: &catalog::StructureInfo) -> StructureInfo {
    StructureInfo {
        structure: s.structure.0,
        name: s.name.to_string(),
        kind: s.kind as u8,
        blocks: s.blocks,
        bytes_used: s.bytes_used,
        sealed: s.sealed,
    }
}

pub(crate) fn prefix_info(p: &catalog::PrefixInfo) -> PrefixInfo {
    PrefixInfo {
        prefix: p.prefix.0,
        name: p.name.to_string(),
        parents: p.parents.iter().map(|parent| parent.0).collect(),
        lease_ms: p.lease_ms,
        remaining_ms: p.remaining_ms,
        pinned: p.pinned,
        state: p.state as u8,
        structures: p.structures.iter().map(structure_info).collect(),
        readers_left: p.readers_left,
        committed: p.committed,
    }
}

fn server_info(s: &catalog::ServerInfo) -> ServerInfo {
    ServerInfo {
        server: s.server.0,
        address: s.address.to_string(),
        alive: s.alive,
        shards: s.shards,
        block_size: s.block_size,
        blocks: s.blocks,
        free: s.free,
        bytes_used: s.bytes_used,
        bytes_resident: s.bytes_resident,
        connections: s.connections,
        requests: s.requests,
        forwarded: s.forwarded,
    }
}

pub(crate) fn status(s: &catalog::ClusterStatus, requests: &Requests) -> ClusterStatusReply {
    ClusterStatusReply {
        uptime_ms: s.uptime_ms,
        jobs: s.jobs,
        prefixes: s.prefixes,
        pinned: s.pinned,
        structures: s.structures,
        blocks: s.blocks,
        free: s.free,
        reserved: s.reserved,
        quarantined: s.quarantined,
        bytes_allocated: s.bytes_allocated,
        bytes_used: s.bytes_used,
        bytes_resident: s.bytes_resident,
        bytes_metadata: s.bytes_metadata,
        requests: requests.all,
        requests_leases: requests.leases,
        requests_blocks: requests.blocks,
        requests_reports: requests.reports,
        servers: s.servers.iter().map(server_info).collect(),
    }
}

pub(crate) fn renewed(results: &[Result<u32, catalog::CatalogError>]) -> Vec<RenewResult> {
    let results = results.iter().map(|result| match result {
        Ok(lease_ms) => {
            RenewResult { status: Status::Ok as u16, lease_ms: *lease_ms, message: String::new() }
        }
        Err(e) => RenewResult { status: status_of(e) as u16, lease_ms: 0, message: e.to_string() },
    });
    results.collect()
}
