//! Python's interface to files and key-value stores.

use crate::ahead::{NativeReadAhead, NativeScanAhead};
use crate::batch::{self, BatchOperation};
use crate::buffer::{Data, NativeRun};
use crate::client::Closed;
use crate::convert::checked;
use crate::custom::NativeCustom;
use crate::face::Native;
use crate::queue::NativeQueue;
use crate::waiting::{NativeListener, filter, until};
use honeycomb_client::{Any, Atomic, File, FileView, Kv, ScanPage, Swap};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::sync::Arc;
use std::time::Duration;

/// Largest read, in bytes, that does not request the size of the file first.
pub const READ_ASKED: u64 = 1 << 20;

pub type PageEntries<'py> = (Vec<(Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>)>, Option<u64>);

/// A mapped file. Each of its runs keeps it mapped.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeView(Arc<FileView>);

#[pymethods]
impl NativeView {
    /// Whether the view is the servers' own memory.
    #[getter]
    fn shared(&self) -> bool {
        self.0.shared()
    }

    /// Why the view is not shared.
    #[getter]
    fn reason(&self) -> Option<&str> {
        self.0.reason().map(|e| e.message.as_str())
    }

    /// Size of the file, in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.len()
    }

    /// The whole file as one run of bytes, if it is contiguous.
    fn whole(&self) -> Option<NativeRun> {
        NativeRun::whole(&self.0)
    }

    /// The file in runs of bytes.
    fn runs(&self) -> Vec<NativeRun> {
        NativeRun::each(&self.0)
    }
}

/// An open file. Safe to share between threads; every call releases the GIL.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeFile {
    /// The file.
    pub file: File,
    /// Whether its client was closed.
    pub closed: Closed,
}

#[pymethods]
impl NativeFile {
    /// The most bytes of an append that needs no blocks of its own.
    #[getter]
    fn append_limit(&self) -> usize {
        self.file.append_limit()
    }

    /// The bytes of many ranges, each an offset and a length; shorter only at the end of the file.
    fn read_ranges<'py>(
        &self,
        py: Python<'py>,
        ranges: Vec<(u64, usize)>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let read = py.detach(|| self.file.read_ranges(&ranges));
        Ok(checked(py, read)?.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// All bytes of a sealed file, in the servers' memory if possible, otherwise as a copy.
    fn map(&self, py: Python<'_>) -> PyResult<NativeView> {
        let view = py.detach(|| self.file.map());
        Ok(NativeView(Arc::new(checked(py, view)?)))
    }

    /// Requests bytes in advance.
    fn read_ahead(slf: &Bound<'_, NativeFile>, offset: u64, size: usize) -> NativeReadAhead {
        let file = &slf.get().file;
        let ahead = slf.py().detach(|| file.read_ahead(offset, size));
        NativeReadAhead::new(slf.clone().unbind(), ahead, size)
    }

    /// Makes the file immutable and returns its final size.
    fn seal(&self, py: Python<'_>) -> PyResult<u64> {
        let sealed = py.detach(|| self.file.seal());
        checked(py, sealed)
    }

    /// Waits until the file is sealed or has `size` bytes. Returns false if `wait` seconds pass first.
    fn wait_until(&self, py: Python<'_>, size: Option<u64>, wait: Option<f64>) -> PyResult<bool> {
        until(py, wait, |left| self.file.wait_until(size, left))
    }

    /// A listener for kinds of changes.
    fn listen(&self, py: Python<'_>, kinds: u16) -> PyResult<NativeListener> {
        NativeListener::open(py, self.file.structure(), kinds, filter(None, None))
    }

    /// Whether the file is sealed.
    fn sealed(&self, py: Python<'_>) -> PyResult<bool> {
        let sealed = py.detach(|| self.file.sealed());
        checked(py, sealed)
    }
}

/// An open key-value store. Safe to share between threads; every call releases the GIL.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeKv {
    /// The store.
    pub kv: Arc<Kv>,
    /// Whether its client was closed.
    pub closed: Closed,
}

#[pymethods]
impl NativeKv {
    /// The most bytes of a value.
    #[getter]
    fn value_limit(&self) -> usize {
        self.kv.value_limit()
    }

    /// The most bytes of a value that is stored in its key's own block.
    #[getter]
    fn plain_limit(&self) -> usize {
        self.kv.plain_limit()
    }

    /// Deletes a key and returns its value, or None.
    fn pop<'py>(&self, py: Python<'py>, key: Data<'_>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let key = key.slice();
        let taken = py.detach(|| self.kv.take(key));
        Ok(checked(py, taken)?.map(|value| PyBytes::new(py, &value)))
    }

    /// Replaces the value of a key that has one; returns the old one.
    fn update<'py>(
        &self,
        py: Python<'py>,
        key: Data<'_>,
        value: Data<'_>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (key, value) = (key.slice(), value.slice());
        let old = py.detach(|| self.kv.update(key, value));
        Ok(PyBytes::new(py, &checked(py, old)?))
    }

    /// Stores a value; returns the old one, or None.
    fn upsert<'py>(
        &self,
        py: Python<'py>,
        key: Data<'_>,
        value: Data<'_>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let (key, value) = (key.slice(), value.slice());
        let old = py.detach(|| self.kv.upsert(key, value));
        Ok(checked(py, old)?.map(|value| PyBytes::new(py, &value)))
    }

    /// Stores `new` if the value is `expected` (None: absent). Returns whether it was stored, and the value
    /// found if it was not.
    fn compare_and_swap<'py>(
        &self,
        py: Python<'py>,
        key: Data<'_>,
        expected: Option<Data<'_>>,
        new: Data<'_>,
    ) -> PyResult<(bool, Option<Bound<'py, PyBytes>>)> {
        let (key, new) = (key.slice(), new.slice());
        let expected = expected.as_ref().map(Data::slice);
        let swapped = py.detach(|| self.kv.compare_and_swap(key, expected, new));
        Ok(match checked(py, swapped)? {
            Swap::Done => (true, None),
            Swap::Found(found) => (false, found.map(|value| PyBytes::new(py, &value))),
        })
    }

    /// A part of all entries, and the cursor of the next part; None at the end.
    fn scan<'py>(
        &self,
        py: Python<'py>,
        cursor: u64,
        prefix: Data<'_>,
        keys_only: bool,
        max_bytes: u32,
    ) -> PyResult<PageEntries<'py>> {
        let prefix = prefix.slice();
        let page = py.detach(|| self.kv.scan(cursor, prefix, keys_only, max_bytes));
        Ok(self::page(py, &checked(py, page)?, keys_only))
    }

    /// Requests such a part in advance.
    fn scan_ahead(
        slf: &Bound<'_, NativeKv>,
        cursor: u64,
        prefix: Data<'_>,
        keys_only: bool,
        max_bytes: u32,
    ) -> PyResult<NativeScanAhead> {
        let (kv, prefix) = (&slf.get().kv, prefix.slice());
        let ahead = slf.py().detach(|| kv.scan_ahead(cursor, prefix, keys_only, max_bytes));
        let ahead = checked(slf.py(), ahead)?;
        Ok(NativeScanAhead::new(slf.clone().unbind(), ahead, keys_only))
    }

    /// Runs operations independently. Returns the result of each, or its exception.
    fn batch<'py>(
        &self,
        py: Python<'py>,
        ops: Vec<BatchOperation<'py>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let ops = batch::ops(&ops)?;
        let done = py.detach(|| self.kv.batch(&ops));
        batch::listed(py, done, |done| batch::done(py, done))
    }

    /// Runs all operations or none. Returns their results; or the index of the failed operation, its
    /// exception, whether a comparison failed and returned the value it found, and that value.
    fn atomic<'py>(&self, py: Python<'py>, ops: Vec<BatchOperation<'py>>) -> PyResult<Py<PyAny>> {
        let ops = batch::ops(&ops)?;
        let ended = py.detach(|| self.kv.atomic(&ops));
        match checked(py, ended)? {
            Atomic::Applied(done) => {
                let done = done.into_iter().map(Ok).collect();
                let list = batch::listed(py, done, |done| batch::done(py, done))?;
                Ok(list.into_any().unbind())
            }
            Atomic::Refused { index, error, found } => {
                let told = found.is_some();
                let found = batch::bytes_or_none(py, found.flatten());
                let refused = (index, batch::exception(py, &error), told, found);
                Ok(refused.into_pyobject(py)?.into_any().unbind())
            }
        }
    }

    /// Combines the value of a key with an operand and returns the new value.
    fn accumulate(
        &self,
        py: Python<'_>,
        function: u8,
        key: Data<'_>,
        operand: Data<'_>,
    ) -> PyResult<Py<PyAny>> {
        let function = batch::function_of(function)?;
        let (key, operand) = (key.slice(), operand.slice());
        let value = py.detach(|| self.kv.accumulate(key, function, operand));
        batch::accumulated(py, checked(py, value)?)
    }

    /// The number of a key, or None.
    fn number(&self, py: Python<'_>, key: Data<'_>) -> PyResult<Py<PyAny>> {
        let key = key.slice();
        let number = py.detach(|| self.kv.number(key));
        batch::number(py, checked(py, number)?)
    }

    /// The top list of a key, or None.
    fn top(&self, py: Python<'_>, key: Data<'_>) -> PyResult<Option<Py<PyAny>>> {
        let key = key.slice();
        let top = py.detach(|| self.kv.top(key));
        checked(py, top)?.map(|items| batch::top(py, &items)).transpose()
    }

    /// Waits until a key has a value. Returns false if `wait` seconds pass first.
    fn wait_for(&self, py: Python<'_>, key: Data<'_>, wait: Option<f64>) -> PyResult<bool> {
        let key = key.slice();
        until(py, wait, |left: Duration| self.kv.wait_for(key, left))
    }

    /// A listener for kinds of changes of all keys, of one key, or of keys with a prefix.
    fn listen(
        &self,
        py: Python<'_>,
        kinds: u16,
        key: Option<Vec<u8>>,
        prefix: Option<Vec<u8>>,
    ) -> PyResult<NativeListener> {
        NativeListener::open(py, self.kv.structure(), kinds, filter(key, prefix))
    }

    /// The number of entries.
    fn length(&self, py: Python<'_>) -> PyResult<u64> {
        let length = py.detach(|| self.kv.length());
        checked(py, length)
    }
}

/// A part of a scan as Python objects.
pub fn page<'py>(py: Python<'py>, page: &ScanPage, keys_only: bool) -> PageEntries<'py> {
    let entry = |(key, value): &(Vec<u8>, Vec<u8>)| {
        let value = (!keys_only).then(|| PyBytes::new(py, value));
        (PyBytes::new(py, key), value)
    };
    (page.entries.iter().map(entry).collect(), page.next)
}

/// Opens a structure of any kind, by its identity if given, otherwise by its address.
pub fn wrap(
    py: Python<'_>,
    client: &honeycomb_client::Client,
    closed: &Closed,
    job: honeycomb_types::JobId,
    address: &str,
    identity: Option<honeycomb_types::StructureId>,
) -> PyResult<Native> {
    let opened = py.detach(|| match identity {
        Some(id) => client.open_same(job, id, address),
        None => client.open_any(job, address),
    });
    let closed = closed.clone();
    Ok(match checked(py, opened)? {
        Any::File(file) => Native::File(Py::new(py, NativeFile { file, closed })?),
        Any::Queue(queue) => Native::Queue(Py::new(py, NativeQueue { queue, closed })?),
        Any::Kv(kv) => Native::Kv(Py::new(py, NativeKv { kv: Arc::new(kv), closed })?),
        Any::Custom(custom) => Native::Custom(Py::new(py, NativeCustom { custom, closed })?),
    })
}
