//! The options objects of `honeycomb/_options.py`, read by the names of their fields.

use honeycomb_client::{IfExists, JobOptions};
use honeycomb_wire::messages::PrefixOptions;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// An object of the Python class `PrefixOptions`.
pub type OfPrefix<'py> = Bound<'py, PyAny>;
/// An object of the Python class `JobOptions`.
pub type OfJob<'py> = Bound<'py, PyAny>;

/// A field of an options object. The error of a value of the wrong type names the field.
fn field<'py, T: FromPyObjectOwned<'py>>(options: &Bound<'py, PyAny>, name: &str) -> PyResult<T> {
    let py = options.py();
    options.getattr(name)?.extract::<T>().map_err(|e| {
        let error: PyErr = e.into();
        match error.is_instance_of::<PyTypeError>(py) {
            true => PyTypeError::new_err(format!("argument '{name}': {}", error.value(py))),
            false => error,
        }
    })
}

/// The options of a new prefix.
pub fn of_prefix(options: &OfPrefix<'_>) -> PyResult<PrefixOptions> {
    Ok(PrefixOptions {
        lease_ms: field(options, "lease_ms")?,
        pinned: field(options, "pinned")?,
        owner_verbs: field(options, "owner_verbs")?,
        job_verbs: field(options, "job_verbs")?,
        high_mark: field(options, "high_mark")?,
        low_mark: field(options, "low_mark")?,
        flush_to: field(options, "flush_to")?,
        max_blocks: field(options, "max_blocks")?,
        loading: false,
        persist: field(options, "persist")?,
        acknowledge: field(options, "acknowledge")?,
    })
}

/// The options of a new job that this process holds.
pub fn of_job(options: &OfJob<'_>, if_exists: IfExists) -> PyResult<JobOptions> {
    Ok(JobOptions {
        tenant: field(options, "tenant")?,
        lease_ms: field(options, "lease_ms")?,
        quota_blocks: field(options, "quota_blocks")?,
        latency_sensitive: field(options, "latency_sensitive")?,
        tasks: field(options, "tasks")?,
        capacity: field(options, "capacity")?,
        peak_throughput: field(options, "peak_throughput")?,
        if_exists,
        held: true,
    })
}
