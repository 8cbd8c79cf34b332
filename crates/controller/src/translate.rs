//! Translates the catalog's answers to message bodies.

use honeycomb_catalog as catalog;
use honeycomb_types::{AnnouncedKind, JobId, Kind, Router, TierClass, Time, Verbs, flush_object};
use honeycomb_wire::custom::kind_info;
use honeycomb_wire::messages::*;
use honeycomb_wire::{Field, Grant, GrantKey, Status};

use crate::service::{RefusedRequest, Requests};
use crate::status::status_of;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The lifetime of a grant: long enough that reopening is rare, short enough that unused grants expire.
const GRANT_MS: u64 = 3_600_000;

pub(crate) fn options(o: &PrefixOptions) -> catalog::PrefixOptions<'_> {
    catalog::PrefixOptions {
        lease_ms: o.lease_ms,
        pinned: o.pinned,
        owner_verbs: Verbs(o.owner_verbs),
        job_verbs: Verbs(o.job_verbs),
        high_mark: o.high_mark,
        low_mark: o.low_mark,
        flush_to: &o.flush_to,
        loading: o.loading,
        persist: o.persist,
        acknowledge: o.acknowledge,
        max_blocks: o.max_blocks,
    }
}

pub(crate) fn journal_at(at: &catalog::JournalAt) -> JournalAt {
    JournalAt {
        directory: at.directory.to_string(),
        tag: at.tag.to_string(),
        job_name: at.job_name.to_string(),
        address: at.address.to_string(),
        name: at.name.to_string(),
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

/// The reply to creating, opening and reopening a structure, which have the same form. The grant expires with
/// the caller's token, if not before.
pub(crate) fn opened(
    o: &catalog::Opened,
    key: &GrantKey,
    now: Time,
    token_expires_ms: u64,
    suspects: &[catalog::Suspect],
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
        kind: o.kind.code(),
        verbs: o.verbs.0,
        grant: key.issue(&grant),
        map: map(&o.map),
        max_items: o.max_items,
        max_bytes: o.max_bytes,
        edge: o.edge as u8,
        suspects: suspects.iter().map(suspect).collect(),
    }
    .encode()
}

fn suspect(s: &catalog::Suspect) -> Suspect {
    Suspect { address: s.address.to_string(), silent_ms: s.silent_ms }
}

pub(crate) fn kinds(kinds: &[(Arc<AnnouncedKind>, u32)]) -> Vec<u8> {
    let kinds = kinds.iter().map(|(kind, servers)| kind_info(kind, *servers)).collect();
    ListKindsReply { kinds }.encode()
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
        quota_blocks: j.quota,
        hints: JobHints {
            flags: j.hints.flags(),
            tasks: j.hints.tasks,
            bytes: j.hints.bytes,
            bytes_per_s: j.hints.bytes_per_s,
        },
        expected_bytes: j.expected.bytes,
        expected_bytes_per_s: j.expected.bytes_per_s,
    }
}

pub(crate) fn hints(h: &JobHints) -> Result<catalog::Hints, RefusedRequest> {
    let JobHints { flags, tasks, bytes, bytes_per_s } = *h;
    let hints = catalog::Hints { tasks, bytes, bytes_per_s, ..catalog::Hints::default() };
    hints.with_flags(flags).ok_or_else(|| {
        (Status::InvalidArgument, format!("unknown flags {flags:#x} in the hints of a job"))
    })
}

pub(crate) fn claim(q: &RegisterJobRequest) -> catalog::Claim<'_> {
    let JobHolder { host, scope, process, started } = &q.holder;
    let (scope, process, started) = (*scope, *process, *started);
    let over = Some(JobId(q.over)).filter(|job| job.0 != 0);
    catalog::Claim { host, scope, process, started, over, adopt: q.adopt }
}

pub(crate) fn holder(holder: catalog::Holder) -> JobHolder {
    let catalog::Holder { host, scope, process, started } = holder;
    JobHolder { host: host.into(), scope, process, started }
}

pub(crate) fn bills(bills: &[catalog::BillInfo]) -> Vec<u8> {
    let tiers = |b: &catalog::BillInfo| {
        let tiers = (0u8..).zip(&b.spent.tiers);
        let used = tiers.filter(|(tier, t)| *tier == 0 || **t != catalog::TierSpent::default());
        let bill = |(tier, t): (u8, &catalog::TierSpent)| TierBill {
            tier,
            held_byte_ms: t.held,
            used_byte_ms: t.used,
            came_bytes: t.came,
        };
        used.map(bill).collect()
    };
    let bill = |b: &catalog::BillInfo| JobBill {
        job: b.job.0,
        name: b.name.to_string(),
        ended: b.ended,
        age_ms: b.age_ms,
        peak_bytes: b.spent.peak,
        moved_bytes: b.spent.moved,
        tiers: tiers(b),
    };
    JobCostReply { bills: bills.iter().map(bill).collect() }.encode()
}

pub(crate) fn weights(
    expected: &catalog::Estimate,
    weights: &[catalog::Weight],
    tiers: &[catalog::TierWeight],
) -> Vec<u8> {
    let sum: u64 = weights.iter().map(|w| w.weight).sum::<u64>().max(1);
    let weight = |w: &catalog::Weight| ServerWeight {
        server: w.server.0,
        weight_permille: ((w.weight as u128 * 1000 + sum as u128 / 2) / sum as u128) as u16,
        free: w.free,
        cpu_permille: w.cpu_permille,
    };
    let tier = |t: &catalog::TierWeight| TierWeight {
        tier: t.class.map_or(0, TierClass::code),
        weight_permille: t.weight as u16,
        free: t.free,
        bytes_per_s: t.bytes_per_s,
    };
    JobWeightsReply {
        expected_bytes: expected.bytes,
        expected_bytes_per_s: expected.bytes_per_s,
        weights: weights.iter().map(weight).collect(),
        tiers: tiers.iter().map(tier).collect(),
    }
    .encode()
}

pub(crate) fn quota_of(
    job: u64,
    level: u8,
    name: &str,
) -> Result<catalog::QuotaOf<'_>, RefusedRequest> {
    match level {
        0 => Ok(catalog::QuotaOf::Tenant(name)),
        1 => Ok(catalog::QuotaOf::Job(JobId(job))),
        2 => Ok(catalog::QuotaOf::Prefix(JobId(job), name)),
        n => {
            let text =
                format!("the level of a quota must be 0 (tenant), 1 (job) or 2 (prefix), not {n}");
            Err((Status::InvalidArgument, text))
        }
    }
}

pub(crate) fn flush_state(state: &catalog::FlushState) -> (u8, String) {
    match state {
        catalog::FlushState::None => (0, String::new()),
        catalog::FlushState::Writing => (1, String::new()),
        catalog::FlushState::Failing(why) => (2, why.to_string()),
        catalog::FlushState::Done => (3, String::new()),
        catalog::FlushState::Lost(why) => (4, why.to_string()),
        catalog::FlushState::NoCut(why) => (5, why.to_string()),
    }
}

pub(crate) fn stop_progress(progress: catalog::StopProgress) -> StopClusterReply {
    let catalog::StopProgress { jobs, flushes, failing, lost, parts, done, bytes, unflushed } =
        progress;
    let named = unflushed.iter().map(|place| format!("{}: {}", place.directory, place.why));
    let unflushed = named.collect();
    StopClusterReply { jobs, flushes, failing, lost, parts, parts_done: done, bytes, unflushed }
}

pub(crate) fn flushed_structure(s: &catalog::FlushedStructure) -> FlushedStructure {
    FlushedStructure {
        name: s.name.to_string(),
        kind: s.kind.code(),
        sealed: s.sealed,
        max_items: s.max_items,
        max_bytes: s.max_bytes,
        parts: s.parts.iter().flat_map(|part| flushed_objects(s.kind, part)).collect(),
    }
}

/// The names of the custom kinds of these structures, each once.
pub(crate) fn kind_names(structures: &[catalog::FlushedStructure]) -> Vec<KindName> {
    let custom = structures.iter().filter(|s| !s.kind_name.is_empty());
    let names: BTreeMap<u8, &str> = custom.map(|s| (s.kind.code(), &*s.kind_name)).collect();
    names.into_iter().map(|(kind, name)| KindName { kind, name: name.to_owned() }).collect()
}

/// The objects of a block. The first positions of later objects are known for structures that count
/// positions: bytes of a file, items of a queue.
fn flushed_objects(
    kind: Kind,
    part: &catalog::FlushedPart,
) -> impl Iterator<Item = FlushedPart> + use<'_> {
    let counted = part.start != u64::MAX && kind.router().is_some_and(Router::grows);
    let mut start = part.start;
    part.objects.iter().enumerate().map(move |(i, written)| {
        let catalog::Written { bytes, items, crc } = *written;
        let (name, from) = (flush_object(&part.name, i), start);
        start += if counted { items } else { 0 };
        FlushedPart { name, start: from, bytes, items, crc }
    })
}

fn structure_info(s: &catalog::StructureInfo) -> StructureInfo {
    StructureInfo {
        structure: s.structure.0,
        name: s.name.to_string(),
        kind: s.kind.code(),
        blocks: s.blocks,
        bytes_used: s.bytes_used,
        sealed: s.sealed,
    }
}

pub(crate) fn prefix_info(p: &catalog::PrefixInfo) -> PrefixInfo {
    let (flush, flush_message) = flush_state(&p.flush);
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
        high_mark: p.marks.high(),
        low_mark: p.marks.low(),
        flush_to: p.flush_to.to_string(),
        flush,
        flush_message,
        max_blocks: p.max_blocks,
        held_blocks: p.held_blocks,
        persist: p.persist,
        acknowledge: p.acknowledge,
    }
}

fn server_info(s: &catalog::ServerInfo) -> ServerInfo {
    ServerInfo {
        server: s.server.0,
        address: s.address.to_string(),
        alive: s.alive,
        silent_ms: s.silent_ms,
        shards: s.shards,
        block_size: s.block_size,
        blocks: s.blocks,
        free: s.free,
        bytes_used: s.bytes_used,
        bytes_resident: s.bytes_resident,
        connections: s.connections,
        requests: s.requests,
        forwarded: s.forwarded,
        bytes_owed: s.bytes_owed,
        cpu_permille: s.cpu_permille,
        tiers: s.tiers.iter().map(tier_use).collect(),
        alarms: s.alarms.iter().map(tier_alarm).collect(),
        drain: s.drain as u8,
        drain_waits: s.drain_waits.to_string(),
    }
}

fn tier_alarm(alarm: &catalog::TierAlarm) -> TierAlarm {
    TierAlarm {
        tier: alarm.tier.0,
        kind: alarm.kind.code(),
        why: alarm.why.to_string(),
        age_ms: alarm.age_ms,
        tried_ms: alarm.tried_ms,
    }
}

fn tier_use(tier: &catalog::TierUse) -> TierUse {
    TierUse {
        class: tier.class.code(),
        blocks: tier.blocks,
        used: tier.used,
        bytes_written: tier.traffic.written,
        bytes_read: tier.traffic.read,
    }
}

/// The change of a quota in a request.
pub(crate) fn quota_change(q: &SetQuotaRequest) -> catalog::QuotaChange {
    let given = |blocks: u64| Some(blocks).filter(|blocks| *blocks != u64::MAX);
    catalog::QuotaChange {
        max_blocks: given(q.max_blocks),
        soft_blocks: given(q.soft_blocks),
        weight: Some(q.weight).filter(|weight| *weight != 0),
    }
}

fn memory_share(info: &catalog::ShareInfo) -> MemoryShare {
    let catalog::ShareInfo { name, tenant, share, credits } = info;
    MemoryShare {
        name: name.to_string(),
        tenant: *tenant,
        weight: share.weight as u32,
        blocks: share.held,
        entitled: share.entitled,
        credits: credits.cast_unsigned(),
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
        flushing: s.flushing,
        flush_failing: s.flush_failing,
        flushed: s.flushed,
        flush_lost: s.flush_lost,
        flush_error: s.flush_error.to_string(),
        tiers: s.tiers.iter().map(tier_use).collect(),
        alarms: s.alarms,
        servers: s.servers.iter().map(server_info).collect(),
        policy: s.policy.name().to_owned(),
        shares: s.shares.iter().map(memory_share).collect(),
        advice: s.advice.what as u8,
        advice_servers: s.advice.servers,
        advice_address: s.advice.address.to_string(),
        advice_why: s.advice.why.to_string(),
        advice_ms: s.advice.age_ms,
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
