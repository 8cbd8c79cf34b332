//! Read-ahead for iterators: requests the next part while Python still processes the current one.

use crate::buffer::WritableBuffer;
use crate::convert::checked;
use crate::face::fork_generation;
use crate::structures::{NativeFile, NativeKv, PageEntries, page};
use honeycomb_client::{ReadAhead, ScanAhead};
use pyo3::prelude::*;
use std::sync::Mutex;

/// A request in advance until it is taken, and the process that made it.
struct RequestAhead<T> {
    ahead: Mutex<Option<T>>,
    made_in: u64,
}

impl<T> RequestAhead<T> {
    fn new(ahead: T) -> RequestAhead<T> {
        RequestAhead { ahead: Mutex::new(Some(ahead)), made_in: fork_generation() }
    }

    /// Returns nothing if it was taken before, or if another process made the request.
    fn take(&self) -> Option<T> {
        let ours = self.made_in == fork_generation();
        let mut ahead = self.ahead.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        ahead.take().filter(|_| ours)
    }
}

/// A part of a scan, requested in advance.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeScanAhead {
    kv: Py<NativeKv>,
    ahead: RequestAhead<ScanAhead>,
    keys_only: bool,
}

impl NativeScanAhead {
    pub fn new(kv: Py<NativeKv>, ahead: ScanAhead, keys_only: bool) -> NativeScanAhead {
        NativeScanAhead { kv, ahead: RequestAhead::new(ahead), keys_only }
    }
}

#[pymethods]
impl NativeScanAhead {
    /// The entries, and the cursor of the next part; None in a process that did not request them.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<PageEntries<'py>>> {
        let Some(ahead) = self.ahead.take() else { return Ok(None) };
        let found = py.detach(|| self.kv.get().kv.scan_taken(ahead));
        Ok(Some(page(py, &checked(py, found)?, self.keys_only)))
    }
}

/// Bytes of a file, requested in advance.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeReadAhead {
    file: Py<NativeFile>,
    ahead: RequestAhead<ReadAhead>,
    length: usize,
}

impl NativeReadAhead {
    pub fn new(file: Py<NativeFile>, ahead: ReadAhead, length: usize) -> NativeReadAhead {
        NativeReadAhead { file, ahead: RequestAhead::new(ahead), length }
    }
}

#[pymethods]
impl NativeReadAhead {
    /// Copies the bytes into a buffer and returns their number. Returns 0 in a process that did not request
    /// them, if the buffer is shorter than the request, and if there were no bytes.
    fn take_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut buffer = WritableBuffer::named("buffer", buffer)?;
        let bytes = buffer.slice_mut();
        let Some(ahead) = self.ahead.take().filter(|_| bytes.len() >= self.length) else {
            return Ok(0);
        };
        let read = py.detach(|| self.file.get().file.read_taken(ahead, bytes));
        checked(py, read)
    }
}
