//! The frequent calls of structures, which run no Python code.
//!
//! Each class is the base of a Python class (`face.rs`), and its docstrings are part of that class's
//! documentation. Rare cases and errors are left to Python: `_missing`, `_empty`, `honeycomb._check`.

use crate::batch::{exception, listed};
use crate::buffer::{BytesRoom, Data, WritableBuffer};
use crate::convert::checked;
use crate::face::{Face, Native};
use crate::queue::{NativeQueue, put_waiting, take_waiting};
use crate::structures::{NativeFile, NativeKv, READ_ASKED};
use honeycomb_client::{Error, Room};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyList, PyMapping, PyTuple};
use pyo3::{PyClass, PyErr, intern};

/// The calls of a key-value store.
#[pyclass(extends = Face, subclass, frozen, mapping, module = "honeycomb.kv")]
pub struct KvCalls;

/// The calls of a file.
#[pyclass(extends = Face, subclass, frozen, module = "honeycomb.file")]
pub struct FileCalls;

/// The calls of a queue.
#[pyclass(extends = Face, subclass, frozen, module = "honeycomb.queue")]
pub struct QueueCalls;

fn wrong(kind: &str) -> PyErr {
    PyTypeError::new_err(format!("_open() did not open {kind}"))
}

/// The exception that a method of the Python class makes for `about`.
fn explained<C: PyClass>(slf: &Bound<'_, C>, method: &str, about: &Bound<'_, PyAny>) -> PyErr {
    match slf.as_any().call_method1(method, (about,)) {
        Ok(exception) => PyErr::from_value(exception),
        Err(e) => e,
    }
}

/// The native store of a Python object.
pub fn kv(slf: &Bound<'_, KvCalls>) -> PyResult<Py<NativeKv>> {
    match Face::native(slf.as_super())? {
        Native::Kv(kv) => Ok(kv),
        _ => Err(wrong("a key-value store")),
    }
}

fn file(slf: &Bound<'_, FileCalls>) -> PyResult<Py<NativeFile>> {
    match Face::native(slf.as_super())? {
        Native::File(file) => Ok(file),
        _ => Err(wrong("a file")),
    }
}

fn queue(slf: &Bound<'_, QueueCalls>) -> PyResult<Py<NativeQueue>> {
    match Face::native(slf.as_super())? {
        Native::Queue(queue) => Ok(queue),
        _ => Err(wrong("a queue")),
    }
}

fn found<'py>(
    slf: &Bound<'py, KvCalls>,
    key: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let (py, kv) = (slf.py(), kv(slf)?);
    let (key, kv) = (Data::key(key)?, &kv.get().kv);
    let (key, mut room) = (key.slice(), BytesRoom::default());
    let found = py.detach(|| kv.get_with(key, &mut room));
    Ok(checked(py, found)?.then(|| room.finish(py)))
}

fn stored<T: Send>(
    slf: &Bound<'_, KvCalls>,
    key: &Bound<'_, PyAny>,
    value: &Bound<'_, PyAny>,
    store: impl FnOnce(&honeycomb_client::Kv, &[u8], &[u8]) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let (py, kv) = (slf.py(), kv(slf)?);
    let (key, value) = (Data::key(key)?, Data::named("values", value)?);
    let (key, value, kv) = (key.slice(), value.slice(), &kv.get().kv);
    let stored = py.detach(|| store(kv, key, value));
    checked(py, stored)
}

/// Stores entries: a mapping, or pairs of key and value.
fn stored_many<T: Send>(
    slf: &Bound<'_, KvCalls>,
    entries: &Bound<'_, PyAny>,
    store: impl FnOnce(&honeycomb_client::Kv, &[(&[u8], &[u8])]) -> Vec<Result<T, Error>> + Send,
) -> PyResult<Vec<Result<T, Error>>> {
    let (py, kv) = (slf.py(), kv(slf)?);
    let pairs = match entries.cast::<PyMapping>() {
        Ok(mapping) => mapping.items()?.into_any(),
        Err(_) => entries.clone(),
    };
    let pairs = pairs.try_iter()?.map(|pair| {
        let (key, value) = pair_of(&pair?)?;
        Ok((Data::key(&key)?, Data::named("values", &value)?))
    });
    let pairs = pairs.collect::<PyResult<Vec<_>>>()?;
    let pairs: Vec<_> = pairs.iter().map(|(key, value)| (key.slice(), value.slice())).collect();
    let kv = &kv.get().kv;
    Ok(py.detach(|| store(kv, &pairs)))
}

fn deleted(slf: &Bound<'_, KvCalls>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
    let (py, kv) = (slf.py(), kv(slf)?);
    let (key, kv) = (Data::key(key)?, &kv.get().kv);
    let key = key.slice();
    let deleted = py.detach(|| kv.delete(key));
    checked(py, deleted)
}

#[pymethods]
impl KvCalls {
    #[new]
    #[pyo3(signature = (*_args, **_named))]
    fn new(
        _args: &Bound<'_, PyTuple>,
        _named: Option<&Bound<'_, PyDict>>,
    ) -> PyClassInitializer<KvCalls> {
        PyClassInitializer::from(Face::unopened()).add_subclass(KvCalls)
    }

    fn __getitem__<'py>(
        slf: &Bound<'py, KvCalls>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        found(slf, key)?.ok_or_else(|| explained(slf, "_missing", key))
    }

    fn __setitem__(
        slf: &Bound<'_, KvCalls>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        stored(slf, key, value, honeycomb_client::Kv::set)
    }

    fn __delitem__(slf: &Bound<'_, KvCalls>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        match deleted(slf, key)? {
            true => Ok(()),
            false => Err(explained(slf, "_missing", key)),
        }
    }

    fn __contains__(slf: &Bound<'_, KvCalls>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (py, kv) = (slf.py(), kv(slf)?);
        let key = match Data::key(key) {
            // An object that is not bytes-like is never a key.
            Err(e) if e.is_instance_of::<PyTypeError>(py) => return Ok(false),
            key => key?,
        };
        let (key, kv) = (key.slice(), &kv.get().kv);
        let there = py.detach(|| kv.exists(key));
        Ok(checked(py, there)?.is_some())
    }

    /// The value, or ``default``.
    #[pyo3(signature = (key, default = None))]
    fn get<'py>(
        slf: &Bound<'py, KvCalls>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(found(slf, key)?.map(Bound::into_any).or(default))
    }

    /// Reads the value into ``buffer`` and returns its length; ``None`` without such a key.
    /// Raises :class:`~honeycomb.errors.InvalidArgument` if the buffer is too short.
    fn get_into(
        slf: &Bound<'_, KvCalls>,
        key: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<Option<usize>> {
        let (py, kv) = (slf.py(), kv(slf)?);
        let (key, mut buffer) = (Data::key(key)?, WritableBuffer::named("buffer", buffer)?);
        let (key, bytes, kv) = (key.slice(), buffer.slice_mut(), &kv.get().kv);
        let found = py.detach(|| kv.get_into(key, bytes));
        checked(py, found)
    }

    /// Stores an entry. Returns whether it replaced one.
    ///
    /// Raises :class:`~honeycomb.errors.ValueTooLarge` and :class:`~honeycomb.errors.KeyTooLarge`. A block
    /// that fills up is split. If no block is available for the split, or for a large value, raises
    /// :class:`~honeycomb.errors.OutOfMemory` or :class:`~honeycomb.errors.QuotaExceeded`. If nearly all
    /// keys of the block share one ``{tag}``, the block cannot be split, and the call raises
    /// :class:`~honeycomb.errors.BlockFull`. The client's timeout applies to each piece of a large value.
    fn put(
        slf: &Bound<'_, KvCalls>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        stored(slf, key, value, honeycomb_client::Kv::put)
    }

    /// ``kv[key] = value``: as :meth:`put`, but it does not say whether an entry was replaced. If the entry
    /// is in a lower tier, this is several times faster, because nothing is read.
    fn set(
        slf: &Bound<'_, KvCalls>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        stored(slf, key, value, honeycomb_client::Kv::set)
    }

    /// Stores an entry whose value is the concatenation of several parts.
    fn _put_parts(
        slf: &Bound<'_, KvCalls>,
        key: &Bound<'_, PyAny>,
        parts: Vec<Data<'_>>,
    ) -> PyResult<bool> {
        let (py, kv) = (slf.py(), kv(slf)?);
        let parts: Vec<&[u8]> = parts.iter().map(Data::slice).collect();
        let (key, kv) = (Data::key(key)?, &kv.get().kv);
        let key = key.slice();
        let stored = py.detach(|| kv.put_parts(key, &parts));
        checked(py, stored)
    }

    /// The values of many keys, in the order of the keys; ``None`` for keys without an entry.
    ///
    /// Sends one request to each block that owns some of the keys, and all requests run concurrently:
    /// thousands of keys take about as long as one. Each key is read like :meth:`get`; reads of different
    /// keys are not ordered. The client's timeout applies to each request.
    ///
    /// If some keys cannot be read, raises the error of the first. Its ``failures`` has the errors of all
    /// failed keys by their index, and its ``results`` the values of the others.
    fn multi_get<'py>(
        slf: &Bound<'py, KvCalls>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, kv) = (slf.py(), kv(slf)?);
        let keys = keys.try_iter()?.map(|key| Data::key(&key?)).collect::<PyResult<Vec<_>>>()?;
        let keys: Vec<&[u8]> = keys.iter().map(Data::slice).collect();
        let kv = &kv.get().kv;
        let values = py.detach(|| kv.multi_get_values(&keys));
        let mut failed = false;
        let shown = values.iter().map(|value| match value {
            Ok(Some(value)) => PyBytes::new(py, value).into_any().unbind(),
            Ok(None) => py.None(),
            Err(e) => {
                failed = true;
                exception(py, e)
            }
        });
        let shown: Vec<Py<PyAny>> = shown.collect();
        let list = PyList::new(py, shown)?;
        if failed { raised(&list) } else { Ok(list.into_any()) }
    }

    /// Stores many entries (a mapping, or pairs of key and value), each independently. Returns how many of
    /// them replaced an entry. Of equal keys, the last value stays. Requests, errors and ``failures`` are
    /// those of :meth:`multi_get`: if some entries fail, the others are stored.
    fn multi_put(slf: &Bound<'_, KvCalls>, entries: &Bound<'_, PyAny>) -> PyResult<usize> {
        counted(slf.py(), stored_many(slf, entries, honeycomb_client::Kv::multi_put)?)
    }

    /// Stores many entries, as :meth:`set` does each.
    fn _set_many(slf: &Bound<'_, KvCalls>, entries: &Bound<'_, PyAny>) -> PyResult<()> {
        let results = stored_many(slf, entries, honeycomb_client::Kv::multi_set)?;
        counted(slf.py(), results.into_iter().map(|set| set.map(|()| false)).collect()).map(drop)
    }

    /// Removes many entries, each independently. Returns how many of them existed. Requests, errors and
    /// ``failures`` are those of :meth:`multi_get`.
    fn multi_delete(slf: &Bound<'_, KvCalls>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (py, kv) = (slf.py(), kv(slf)?);
        let keys = keys.try_iter()?.map(|key| Data::key(&key?)).collect::<PyResult<Vec<_>>>()?;
        let keys: Vec<&[u8]> = keys.iter().map(Data::slice).collect();
        let kv = &kv.get().kv;
        counted(py, py.detach(|| kv.multi_delete(&keys)))
    }

    /// Stores an entry if the key has none; otherwise raises :class:`~honeycomb.errors.KeyExists`.
    fn add(
        slf: &Bound<'_, KvCalls>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (py, kv) = (slf.py(), kv(slf)?);
        let (key, value) = (Data::key(key)?, Data::named("values", value)?);
        let (key, value, kv) = (key.slice(), value.slice(), &kv.get().kv);
        let stored = py.detach(|| kv.insert(key, value));
        checked(py, stored)
    }

    /// Removes an entry. Returns whether it existed.
    fn delete(slf: &Bound<'_, KvCalls>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        deleted(slf, key)
    }
}

/// The two objects of a pair.
fn pair_of<'py>(pair: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    if let Ok(tuple) = pair.cast::<PyTuple>()
        && tuple.len() == 2
    {
        return Ok((tuple.get_item(0)?, tuple.get_item(1)?));
    }
    let objects = pair.try_iter()?.collect::<PyResult<Vec<_>>>()?;
    let count = objects.len();
    let pair: [Bound<'py, PyAny>; 2] = objects.try_into().map_err(|_| {
        PyValueError::new_err(format!("an entry is a pair of key and value, not {count} objects"))
    })?;
    Ok(pair.into())
}

/// The number of operations that found an entry, or the error of the first that failed.
fn counted(py: Python<'_>, results: Vec<Result<bool, Error>>) -> PyResult<usize> {
    if results.iter().all(Result::is_ok) {
        return Ok(results.into_iter().flatten().filter(|found| *found).count());
    }
    raised(&listed(py, results, |found| found.into_py_any(py))?)?.extract()
}

/// Raises the first error of a list, with all of them and the other results.
fn raised<'py>(results: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyAny>> {
    results.py().import("honeycomb._batch")?.call_method1("checked", (results,))
}

/// A whole number of bytes, 0 or more.
fn bytes_count(name: &str, unit: &str, number: &Bound<'_, PyAny>) -> PyResult<u64> {
    if let Ok(number) = number.extract() {
        return Ok(number);
    }
    let py = number.py();
    let unit = [("unit", unit)].into_pyobject(py)?;
    let unit = PyDict::from_sequence(unit.as_any())?;
    let whole = py.import("honeycomb._check")?.getattr("whole")?;
    whole.call((name, number, 0), Some(&unit))?.extract()
}

#[pymethods]
impl FileCalls {
    #[new]
    #[pyo3(signature = (*_args, **_named))]
    fn new(
        _args: &Bound<'_, PyTuple>,
        _named: Option<&Bound<'_, PyDict>>,
    ) -> PyClassInitializer<FileCalls> {
        PyClassInitializer::from(Face::unopened()).add_subclass(FileCalls)
    }

    /// Appends ``data`` of any length in one piece and returns its offset. Readers see all of it or nothing.
    ///
    /// More than :attr:`append_limit` bytes are written to blocks of their own, which one change adds to the
    /// file. Raises :class:`~honeycomb.errors.Sealed`, :class:`~honeycomb.errors.OutOfMemory` or
    /// :class:`~honeycomb.errors.QuotaExceeded` if the file cannot grow, and
    /// :class:`~honeycomb.errors.LimitExceeded` if ``data`` is larger than the whole cluster. After these,
    /// nothing was appended.
    fn append(slf: &Bound<'_, FileCalls>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (py, file) = (slf.py(), file(slf)?);
        let data = Data::named("data", data)?;
        let (bytes, file) = (data.slice(), &file.get().file);
        let appended = py.detach(|| file.append(bytes));
        checked(py, appended)
    }

    /// Appends ``data`` of any length in several appends and returns the offset of the first.
    ///
    /// Appends of other writers may be placed between the pieces. If an append fails, the earlier pieces
    /// remain in the file.
    fn write_all(slf: &Bound<'_, FileCalls>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (py, file) = (slf.py(), file(slf)?);
        let data = Data::named("data", data)?;
        let (bytes, file) = (data.slice(), &file.get().file);
        let written = py.detach(|| file.write_all(bytes));
        checked(py, written)
    }

    /// The bytes at ``offset``, at most ``size`` of them (``None``: up to the current end of the file).
    /// The result is shorter where the file ends, and empty at or after its end.
    #[pyo3(signature = (offset = None, size = None), text_signature = "($self, offset=0, \
        size=None)")]
    fn read<'py>(
        slf: &Bound<'py, FileCalls>,
        offset: Option<&Bound<'py, PyAny>>,
        size: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (py, file) = (slf.py(), file(slf)?);
        let offset = offset.map_or(Ok(0), |n| bytes_count("offset", "bytes", n))?;
        let all = "bytes (None for all up to the end)";
        let size = size.map(|n| bytes_count("size", all, n)).transpose()?;
        let (file, mut room) = (&file.get().file, BytesRoom::default());
        let read = py.detach(|| {
            // A large requested size may far exceed the file, so request the size of the file first.
            let size = match size {
                Some(size) if size <= READ_ASKED => size,
                size => size.unwrap_or(u64::MAX).min(file.size()?.saturating_sub(offset)),
            };
            let buffer = room.room(size as usize);
            file.read_into(offset, buffer)
        });
        let read = checked(py, read)?;
        Ok(room.finish_short(py, read))
    }

    /// Reads into ``buffer`` and returns the number of bytes read; 0 at the end. May fill less than the
    /// whole buffer before the end of the file.
    fn readinto(
        slf: &Bound<'_, FileCalls>,
        offset: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let (py, file) = (slf.py(), file(slf)?);
        let offset = bytes_count("offset", "bytes", offset)?;
        let mut buffer = WritableBuffer::named("buffer", buffer)?;
        let (bytes, file) = (buffer.slice_mut(), &file.get().file);
        let read = py.detach(|| file.read_into(offset, bytes));
        checked(py, read)
    }

    /// The size of the file, in bytes.
    fn size(slf: &Bound<'_, FileCalls>) -> PyResult<u64> {
        let (py, file) = (slf.py(), file(slf)?);
        let size = py.detach(|| file.get().file.size());
        checked(py, size)
    }
}

/// A timeout in seconds; `None` waits without limit.
fn timeout(wait: Option<&Bound<'_, PyAny>>) -> PyResult<Option<f64>> {
    let Some(wait) = wait else { return Ok(None) };
    match wait.cast_exact::<PyFloat>() {
        Ok(seconds) if seconds.value() >= 0.0 => Ok(Some(seconds.value())),
        _ => {
            let py = wait.py();
            let checked = py.import("honeycomb._check")?;
            checked.call_method1(intern!(py, "timeout"), (wait,))?.extract()
        }
    }
}

#[pymethods]
impl QueueCalls {
    #[new]
    #[pyo3(signature = (*_args, **_named))]
    fn new(
        _args: &Bound<'_, PyTuple>,
        _named: Option<&Bound<'_, PyDict>>,
    ) -> PyClassInitializer<QueueCalls> {
        PyClassInitializer::from(Face::unopened()).add_subclass(QueueCalls)
    }

    /// Puts ``item`` at the end of the queue.
    ///
    /// Waits for room up to ``timeout`` seconds and then raises :class:`~honeycomb.errors.QueueFull`.
    /// Raises :class:`~honeycomb.errors.QueueClosed` after :meth:`close`,
    /// :class:`~honeycomb.errors.ValueTooLarge` above :attr:`item_limit`, and
    /// :class:`~honeycomb.errors.OutOfMemory` or :class:`~honeycomb.errors.QuotaExceeded` if the
    /// queue cannot grow.
    #[pyo3(signature = (item, timeout = None))]
    fn put(
        slf: &Bound<'_, QueueCalls>,
        item: &Bound<'_, PyAny>,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let queue = queue(slf)?;
        let (item, wait) = (Data::named("items", item)?, self::timeout(timeout)?);
        let (item, queue) = (item.slice(), &queue.get().queue);
        put_waiting(slf.py(), wait, |left| queue.put(item, left))
    }

    /// ``put(item, 0)``.
    fn put_nowait(slf: &Bound<'_, QueueCalls>, item: &Bound<'_, PyAny>) -> PyResult<()> {
        let queue = queue(slf)?;
        let item = Data::named("items", item)?;
        let (item, queue) = (item.slice(), &queue.get().queue);
        put_waiting(slf.py(), Some(0.0), |left| queue.put(item, left))
    }

    /// Takes the first item.
    ///
    /// Waits for an item up to ``timeout`` seconds and then raises
    /// :class:`~honeycomb.errors.QueueEmpty`. Raises :class:`~honeycomb.errors.QueueClosed` if the
    /// queue is closed and every item has been taken.
    #[pyo3(signature = (timeout = None))]
    fn get<'py>(
        slf: &Bound<'py, QueueCalls>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (py, queue) = (slf.py(), queue(slf)?);
        let wait = self::timeout(timeout)?;
        match take_waiting(py, wait, |left| queue.get().queue.get_many(1, left))?.first() {
            Some(item) => Ok(PyBytes::new(py, item)),
            None => Err(explained(slf, "_empty", &wait.into_pyobject(py)?)),
        }
    }

    /// ``get(0)``.
    fn get_nowait<'py>(slf: &Bound<'py, QueueCalls>) -> PyResult<Bound<'py, PyBytes>> {
        let zero = PyFloat::new(slf.py(), 0.0);
        QueueCalls::get(slf, Some(zero.as_any()))
    }
}
