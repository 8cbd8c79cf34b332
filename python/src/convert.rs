//! Conversion of Rust's results to Python's objects.

use honeycomb_client::Error;
use honeycomb_client::cost::{Cost, TierCost, tier_name};
use honeycomb_types::{AlarmKind, TierClass};
use honeycomb_wire::Status;
use honeycomb_wire::messages::{
    ClusterStatusReply, JobBill, JobInfo, PrefixInfo, ServerInfo, StructureInfo, TierUse,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// The exception of `honeycomb.errors` for this status.
pub fn raise(py: Python<'_>, status: &str, message: &str) -> PyErr {
    let made = py
        .import("honeycomb.errors")
        .and_then(|errors| errors.getattr("from_status")?.call1((status, message)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(e) => e,
    }
}

/// A result, with its error as an exception.
pub fn checked<T>(py: Python<'_>, result: Result<T, Error>) -> PyResult<T> {
    result.map_err(|e| raise_error(py, &e))
}

/// An error as an exception, with the code of a structure's own refusal.
pub fn raise_error(py: Python<'_>, e: &Error) -> PyErr {
    let raised = raise(py, e.status.name(), &e.message);
    if e.status == Status::Refused
        && let Err(failed) = raised.value(py).setattr("code", e.code)
    {
        return failed;
    }
    raised
}

macro_rules! dict {
    ($py:expr, $value:expr, $($field:ident),+ $(,)?) => {{
        let dict = PyDict::new($py);
        $( dict.set_item(stringify!($field), $value.$field.clone())?; )+
        dict
    }};
}

pub fn job_info<'py>(py: Python<'py>, j: &JobInfo) -> PyResult<Bound<'py, PyDict>> {
    let dict = dict!(
        py,
        j,
        job,
        name,
        prefixes,
        pinned,
        structures,
        blocks,
        bytes_used,
        age_ms,
        quota_blocks,
        expected_bytes,
        expected_bytes_per_s,
    );
    dict.set_item("latency_sensitive", j.hints.flags & 1 == 0)?;
    dict.set_item("tasks", j.hints.tasks)?;
    dict.set_item("capacity", j.hints.bytes)?;
    dict.set_item("peak_throughput", j.hints.bytes_per_s)?;
    Ok(dict)
}

/// The fields of `honeycomb.Cost`.
pub fn job_cost<'py>(py: Python<'py>, b: &JobBill, cost: &Cost) -> PyResult<Bound<'py, PyDict>> {
    let dict = dict!(py, b, job, name, ended, peak_bytes, moved_bytes);
    dict.set_item("age", b.age_ms as f64 / 1e3)?;
    fn by_tier<'py, T: IntoPyObject<'py>>(
        py: Python<'py>,
        cost: &Cost,
        of: impl Fn(&TierCost) -> T,
    ) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (code, tier) in cost.tiers.iter().enumerate() {
            dict.set_item(tier_name(code), of(tier))?;
        }
        Ok(dict)
    }
    dict.set_item("gb_seconds", by_tier(py, cost, |tier| tier.gb_seconds)?)?;
    dict.set_item("used_gb_seconds", by_tier(py, cost, |tier| tier.used_gb_seconds)?)?;
    dict.set_item("came_bytes", by_tier(py, cost, |tier| tier.came_bytes)?)?;
    dict.set_item("money", cost.money)?;
    dict.set_item("money_by_tier", by_tier(py, cost, |tier| tier.money)?)?;
    dict.set_item("money_at_peak", cost.money_at_peak)?;
    Ok(dict)
}

fn structure_info<'py>(py: Python<'py>, s: &StructureInfo) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(py, s, structure, name, kind, blocks, bytes_used, sealed))
}

pub fn prefix_info<'py>(py: Python<'py>, p: &PrefixInfo) -> PyResult<Bound<'py, PyDict>> {
    let dict = dict!(
        py,
        p,
        prefix,
        name,
        parents,
        lease_ms,
        remaining_ms,
        pinned,
        state,
        readers_left,
        committed,
        high_mark,
        low_mark,
        flush_to,
        flush,
        flush_message,
        max_blocks,
        held_blocks,
        persist,
        acknowledge,
    );
    let structures = PyList::empty(py);
    for s in &p.structures {
        structures.append(structure_info(py, s)?)?;
    }
    dict.set_item("structures", structures)?;
    Ok(dict)
}

fn tiers<'py>(py: Python<'py>, tiers: &[TierUse]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for tier in tiers {
        let dict = dict!(py, tier, blocks, used, bytes_written, bytes_read);
        let class = TierClass::from_code(tier.class).map_or("unknown", TierClass::name);
        dict.set_item("class", class)?;
        list.append(dict)?;
    }
    Ok(list)
}

fn server_info<'py>(py: Python<'py>, s: &ServerInfo) -> PyResult<Bound<'py, PyDict>> {
    let dict = dict!(
        py,
        s,
        server,
        address,
        alive,
        silent_ms,
        shards,
        block_size,
        blocks,
        free,
        bytes_used,
        bytes_resident,
        connections,
        requests,
        forwarded,
        bytes_owed,
        drain,
        drain_waits,
        cpu_permille,
    );
    dict.set_item("tiers", tiers(py, &s.tiers)?)?;
    let alarms = PyList::empty(py);
    for alarm in &s.alarms {
        let dict = dict!(py, alarm, tier, why, age_ms, tried_ms);
        let kind = AlarmKind::from_code(alarm.kind).map_or("unknown", AlarmKind::name);
        dict.set_item("kind", kind)?;
        alarms.append(dict)?;
    }
    dict.set_item("alarms", alarms)?;
    Ok(dict)
}

pub fn status<'py>(py: Python<'py>, s: &ClusterStatusReply) -> PyResult<Bound<'py, PyDict>> {
    let dict = dict!(
        py,
        s,
        uptime_ms,
        jobs,
        prefixes,
        pinned,
        structures,
        blocks,
        free,
        reserved,
        quarantined,
        bytes_allocated,
        bytes_used,
        bytes_resident,
        bytes_metadata,
        requests,
        flushing,
        flush_failing,
        flushed,
        flush_lost,
        flush_error,
        requests_leases,
        requests_blocks,
        requests_reports,
        alarms,
    );
    let servers = PyList::empty(py);
    for server in &s.servers {
        servers.append(server_info(py, server)?)?;
    }
    dict.set_item("tiers", tiers(py, &s.tiers)?)?;
    dict.set_item("servers", servers)?;
    Ok(dict)
}
