//! Files and key-value stores as Python sees them.

use crate::batch::{self, Asked};
use crate::buffer::{BytesRoom, Data, NativeRun, Target};
use crate::convert::checked;
use crate::custom::NativeCustom;
use crate::queue::NativeQueue;
use crate::waiting::{NativeListener, filter, until};
use honeycomb_client::{Any, Atomic, Error, File, FileView, Kv, Swap};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::sync::Arc;
use std::time::Duration;

/// Largest single read: what a caller may want at once without saying how the memory is found.
const READ_MAX: usize = 1 << 40;

type Page<'py> = (Vec<(Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>)>, Option<u64>);

/// A mapped file. Its runs keep it mapped, each for itself.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeView(Arc<FileView>);

#[pymethods]
impl NativeView {
    /// Whether it is the servers' own memory.
    #[getter]
    fn shared(&self) -> bool {
        self.0.shared()
    }

    /// Why it is not.
    #[getter]
    fn reason(&self) -> Option<&str> {
        self.0.reason().map(|e| e.message.as_str())
    }

    /// Bytes of the file.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.len()
    }

    /// The whole file as one run of bytes, if it is one.
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
pub struct NativeFile(pub File);

#[pymethods]
impl NativeFile {
    /// The most bytes that one append takes.
    #[getter]
    fn append_limit(&self) -> usize {
        self.0.append_limit()
    }

    /// Appends atomically; returns the offset.
    fn append(&self, py: Python<'_>, data: Data<'_>) -> PyResult<u64> {
        let bytes = data.slice();
        let appended = py.detach(|| self.0.append(bytes));
        checked(py, appended)
    }

    /// Appends in as many pieces as needed; returns the offset of the first.
    fn write_all(&self, py: Python<'_>, data: Data<'_>) -> PyResult<u64> {
        let bytes = data.slice();
        let written = py.detach(|| self.0.write_all(bytes));
        checked(py, written)
    }

    /// Up to `size` bytes from an offset; fewer only at the end.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        size: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let read = py.detach(|| {
            // What is asked for may be far more than what is there: ask first when it is large.
            let size = if size > 1 << 20 {
                size.min(READ_MAX).min(self.0.size()?.saturating_sub(offset) as usize)
            } else {
                size
            };
            let mut bytes = vec![0; size];
            let length = self.0.read_into(offset, &mut bytes)?;
            bytes.truncate(length);
            Ok::<_, Error>(bytes)
        });
        Ok(PyBytes::new(py, &checked(py, read)?))
    }

    /// Reads into a buffer from an offset; returns how many bytes there were.
    fn read_into(&self, py: Python<'_>, offset: u64, mut buffer: Target) -> PyResult<usize> {
        let bytes = buffer.slice_mut();
        let read = py.detach(|| self.0.read_into(offset, bytes));
        checked(py, read)
    }

    /// Many ranges, each an offset and a length; short only at the end.
    fn read_ranges<'py>(
        &self,
        py: Python<'py>,
        ranges: Vec<(u64, usize)>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let read = py.detach(|| self.0.read_ranges(&ranges));
        Ok(checked(py, read)?.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// All bytes of a sealed file, where they lie when that can be.
    fn map(&self, py: Python<'_>) -> PyResult<NativeView> {
        let view = py.detach(|| self.0.map());
        Ok(NativeView(Arc::new(checked(py, view)?)))
    }

    /// Bytes appended so far.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let size = py.detach(|| self.0.size());
        checked(py, size)
    }

    /// Makes it immutable; returns its final size.
    fn seal(&self, py: Python<'_>) -> PyResult<u64> {
        let sealed = py.detach(|| self.0.seal());
        checked(py, sealed)
    }

    /// Waits until it is sealed or has `size` bytes; false when `wait` seconds passed first.
    fn wait_until(&self, py: Python<'_>, size: Option<u64>, wait: Option<f64>) -> PyResult<bool> {
        until(py, wait, |left| self.0.wait_until(size, left))
    }

    /// A listener for kinds of changes.
    fn listen(&self, py: Python<'_>, kinds: u16) -> PyResult<NativeListener> {
        NativeListener::open(py, self.0.structure(), kinds, filter(None, None))
    }

    /// Whether it was sealed.
    fn sealed(&self, py: Python<'_>) -> PyResult<bool> {
        let sealed = py.detach(|| self.0.sealed());
        checked(py, sealed)
    }
}

/// An open key-value store. Safe to share between threads; every call releases the GIL.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeKv(pub Kv);

#[pymethods]
impl NativeKv {
    /// The most bytes that one value may have.
    #[getter]
    fn value_limit(&self) -> usize {
        self.0.value_limit()
    }

    /// The most bytes of a value that lies in its key's own block.
    #[getter]
    fn plain_limit(&self) -> usize {
        self.0.plain_limit()
    }

    /// The value of a key, or None.
    fn get<'py>(&self, py: Python<'py>, key: Data<'_>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let key = key.slice();
        let mut room = BytesRoom::default();
        let found = py.detach(|| self.0.get_with(key, &mut room));
        Ok(checked(py, found)?.then(|| room.finish(py)))
    }

    /// The value of a key into a buffer: its length, or None.
    fn get_into(
        &self,
        py: Python<'_>,
        key: Data<'_>,
        mut buffer: Target,
    ) -> PyResult<Option<usize>> {
        let (key, bytes) = (key.slice(), buffer.slice_mut());
        let found = py.detach(|| self.0.get_into(key, bytes));
        checked(py, found)
    }

    /// Stores a value; whether one was replaced.
    #[pyo3(signature = (key, value, only_if_absent=false))]
    fn put(
        &self,
        py: Python<'_>,
        key: Data<'_>,
        value: Data<'_>,
        only_if_absent: bool,
    ) -> PyResult<bool> {
        let (key, value) = (key.slice(), value.slice());
        let stored = py.detach(|| match only_if_absent {
            true => self.0.insert(key, value).map(|()| false),
            false => self.0.put(key, value),
        });
        checked(py, stored)
    }

    /// Deletes a key; whether there was one.
    fn delete(&self, py: Python<'_>, key: Data<'_>) -> PyResult<bool> {
        let key = key.slice();
        let deleted = py.detach(|| self.0.delete(key));
        checked(py, deleted)
    }

    /// Deletes a key and returns its value, or None.
    fn pop<'py>(&self, py: Python<'py>, key: Data<'_>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let key = key.slice();
        let taken = py.detach(|| self.0.take(key));
        Ok(checked(py, taken)?.map(|value| PyBytes::new(py, &value)))
    }

    /// The length of the value of a key, or None.
    fn exists(&self, py: Python<'_>, key: Data<'_>) -> PyResult<Option<u64>> {
        let key = key.slice();
        let found = py.detach(|| self.0.exists(key));
        checked(py, found)
    }

    /// Replaces the value of a key that has one; returns the old one.
    fn update<'py>(
        &self,
        py: Python<'py>,
        key: Data<'_>,
        value: Data<'_>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (key, value) = (key.slice(), value.slice());
        let old = py.detach(|| self.0.update(key, value));
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
        let old = py.detach(|| self.0.upsert(key, value));
        Ok(checked(py, old)?.map(|value| PyBytes::new(py, &value)))
    }

    /// Stores `new` when the value is `expected` (None: absent). Whether it did, and what was found
    /// when it did not.
    fn compare_and_swap<'py>(
        &self,
        py: Python<'py>,
        key: Data<'_>,
        expected: Option<Data<'_>>,
        new: Data<'_>,
    ) -> PyResult<(bool, Option<Bound<'py, PyBytes>>)> {
        let (key, new) = (key.slice(), new.slice());
        let expected = expected.as_ref().map(Data::slice);
        let swapped = py.detach(|| self.0.compare_and_swap(key, expected, new));
        Ok(match checked(py, swapped)? {
            Swap::Done => (true, None),
            Swap::Found(found) => (false, found.map(|value| PyBytes::new(py, &value))),
        })
    }

    /// A part of all entries, and where the next begins; None at the end.
    fn scan<'py>(
        &self,
        py: Python<'py>,
        cursor: u64,
        prefix: Data<'_>,
        keys_only: bool,
        max_bytes: u32,
    ) -> PyResult<Page<'py>> {
        let prefix = prefix.slice();
        let page = py.detach(|| self.0.scan(cursor, prefix, keys_only, max_bytes));
        let page = checked(py, page)?;
        let entries = page
            .entries
            .iter()
            .map(|(key, value)| {
                let value = (!keys_only).then(|| PyBytes::new(py, value));
                (PyBytes::new(py, key), value)
            })
            .collect();
        Ok((entries, page.next))
    }

    /// The values of many keys, in order: bytes, None, or the exception of a key that failed.
    fn multi_get<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Data<'py>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let keys: Vec<&[u8]> = keys.iter().map(Data::slice).collect();
        let values = py.detach(|| self.0.multi_get(&keys));
        batch::listed(py, values, |value| Ok(batch::bytes_or_none(py, value)))
    }

    /// Runs operations, each on its own; what each answered, or its exception.
    fn batch<'py>(&self, py: Python<'py>, ops: Vec<Asked<'py>>) -> PyResult<Bound<'py, PyList>> {
        let ops = batch::ops(&ops)?;
        let done = py.detach(|| self.0.batch(&ops));
        batch::listed(py, done, |done| batch::done(py, done))
    }

    /// Runs operations, all or none: what each answered; or the index of the one that failed, its
    /// exception, whether it is a comparison that told what it found, and what that is.
    fn atomic<'py>(&self, py: Python<'py>, ops: Vec<Asked<'py>>) -> PyResult<Py<PyAny>> {
        let ops = batch::ops(&ops)?;
        let ended = py.detach(|| self.0.atomic(&ops));
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

    /// Combines the value of a key with an operand; what it is now.
    fn accumulate(
        &self,
        py: Python<'_>,
        function: u8,
        key: Data<'_>,
        operand: Data<'_>,
    ) -> PyResult<Py<PyAny>> {
        let function = batch::function_of(function)?;
        let (key, operand) = (key.slice(), operand.slice());
        let value = py.detach(|| self.0.accumulate(key, function, operand));
        batch::accumulated(py, checked(py, value)?)
    }

    /// The number of a key, or None.
    fn number(&self, py: Python<'_>, key: Data<'_>) -> PyResult<Py<PyAny>> {
        let key = key.slice();
        let number = py.detach(|| self.0.number(key));
        batch::number(py, checked(py, number)?)
    }

    /// The top list of a key, or None.
    fn top(&self, py: Python<'_>, key: Data<'_>) -> PyResult<Option<Py<PyAny>>> {
        let key = key.slice();
        let top = py.detach(|| self.0.top(key));
        checked(py, top)?.map(|items| batch::top(py, &items)).transpose()
    }

    /// Waits until a key has a value; false when `wait` seconds passed first.
    fn wait_for(&self, py: Python<'_>, key: Data<'_>, wait: Option<f64>) -> PyResult<bool> {
        let key = key.slice();
        until(py, wait, |left: Duration| self.0.wait_for(key, left))
    }

    /// A listener for kinds of changes of all keys, one, or those with a prefix.
    fn listen(
        &self,
        py: Python<'_>,
        kinds: u16,
        key: Option<Vec<u8>>,
        prefix: Option<Vec<u8>>,
    ) -> PyResult<NativeListener> {
        NativeListener::open(py, self.0.structure(), kinds, filter(key, prefix))
    }

    /// The number of entries.
    fn length(&self, py: Python<'_>) -> PyResult<u64> {
        let length = py.detach(|| self.0.length());
        checked(py, length)
    }
}

/// A structure of any kind, as its Python class.
pub fn wrap(
    py: Python<'_>,
    client: &honeycomb_client::Client,
    job: honeycomb_types::JobId,
    address: &str,
) -> PyResult<Py<PyAny>> {
    let opened = py.detach(|| client.open_any(job, address));
    Ok(match checked(py, opened)? {
        Any::File(file) => Py::new(py, NativeFile(file))?.into_any(),
        Any::Queue(queue) => Py::new(py, NativeQueue(queue))?.into_any(),
        Any::Kv(kv) => Py::new(py, NativeKv(kv))?.into_any(),
        Any::Custom(custom) => Py::new(py, NativeCustom(custom))?.into_any(),
    })
}
