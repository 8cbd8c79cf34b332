//! The native part of the Python package: the Rust client with Python types.
//!
//! Every call that may wait releases the GIL. Errors become exceptions of `honeycomb.errors`.

mod ahead;
mod batch;
mod buffer;
mod calls;
mod client;
mod convert;
mod custom;
mod driver;
mod face;
mod options;
mod queue;
mod structures;
mod waiting;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use honeycomb_types::{PrefixId, Verbs};
use honeycomb_wire::token::Caveat;

/// Narrows a token offline: to a task (0 for none), to verbs, and to an expiry time in milliseconds on the
/// controller's clock.
#[pyfunction]
#[pyo3(signature = (token, task_prefix, verbs, expires_ms=None))]
fn attenuate<'py>(
    py: Python<'py>,
    token: &[u8],
    task_prefix: u64,
    verbs: u16,
    expires_ms: Option<u64>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut caveats = vec![Caveat::Verbs(Verbs(verbs))];
    if task_prefix != 0 {
        caveats.push(Caveat::Task(PrefixId(task_prefix)));
    }
    caveats.extend(expires_ms.map(Caveat::Expires));
    let mut token = token.to_vec();
    for caveat in caveats {
        token = honeycomb_wire::attenuate(&token, caveat)
            .map_err(|e| convert::raise(py, "InvalidArgument", &e.to_string()))?;
    }
    Ok(PyBytes::new(py, &token))
}

/// The 64-bit hash by which a key is routed.
#[pyfunction]
fn key_hash(key: &[u8]) -> u64 {
    honeycomb_wire::key_hash(key)
}

/// The address of the key-value store of the bucket at this path.
#[pyfunction]
fn bucket_store(path: &str) -> String {
    honeycomb_client::bucket::store_of(path)
}

/// The version of this build.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<face::Face>()?;
    module.add_class::<calls::KvCalls>()?;
    module.add_class::<calls::FileCalls>()?;
    module.add_class::<calls::QueueCalls>()?;
    module.add_class::<ahead::NativeScanAhead>()?;
    module.add_class::<ahead::NativeReadAhead>()?;
    module.add_class::<client::NativeClient>()?;
    module.add_class::<driver::NativeDriver>()?;
    module.add_class::<structures::NativeFile>()?;
    module.add_class::<structures::NativeView>()?;
    module.add_class::<buffer::NativeRun>()?;
    module.add_class::<structures::NativeKv>()?;
    module.add_class::<custom::NativeCustom>()?;
    module.add_class::<queue::NativeQueue>()?;
    module.add_class::<queue::NativeDelivery>()?;
    module.add_class::<waiting::NativeListener>()?;
    module.add_class::<waiting::NativeInterrupt>()?;
    module.add_function(wrap_pyfunction!(attenuate, module)?)?;
    module.add_function(wrap_pyfunction!(bucket_store, module)?)?;
    module.add_function(wrap_pyfunction!(key_hash, module)?)?;
    module.add_function(wrap_pyfunction!(face::count_fork, module)?)?;
    module.add_function(wrap_pyfunction!(face::fork_generation, module)?)?;
    module.add_function(wrap_pyfunction!(version, module)?)?;
    Ok(())
}
