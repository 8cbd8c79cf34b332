//! Python's bytes-like objects as slices, bytes objects that are filled in place, and mapped files as
//! buffers. This is the bindings' only `unsafe` code, each use with its proof.
#![allow(unsafe_code)]

use honeycomb_client::{FileView, Room};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use pyo3::{ffi, intern};
use std::ffi::c_int;
use std::sync::Arc;

/// Values of at least this size have their own pages, which fault in faster as large pages.
const OWN_PAGES: usize = 4 << 20;
/// The size of a large page.
const LARGE_PAGE: usize = 2 << 20;
/// Values up to this size are first received into a separate buffer: copying them costs less than acquiring
/// the GIL in between.
const BESIDE: usize = 1024;

/// A caller's bytes, without a copy.
pub enum Data<'py> {
    /// A bytes object: immutable.
    Bytes(Bound<'py, PyBytes>),
    /// Text, as its UTF-8 encoding, which the object caches.
    Text(Bound<'py, PyString>),
    /// Any other object with the buffer protocol.
    Buffer(PyUntypedBuffer),
}

impl<'py> FromPyObject<'_, 'py> for Data<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Data::Bytes(bytes.to_owned()));
        }
        let buffer = PyUntypedBuffer::get(&object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is not contiguous"));
        }
        Ok(Data::Buffer(buffer))
    }
}

impl<'py> Data<'py> {
    /// A bytes-like object, not text; the error contains `name`.
    pub fn named(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Data<'py>> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Data::Bytes(bytes.clone()));
        }
        if let Ok(buffer) = PyUntypedBuffer::get(object)
            && buffer.is_c_contiguous()
        {
            return Ok(Data::Buffer(buffer));
        }
        check(object, intern!(object.py(), "data"), name)?.extract()
    }

    /// A key: bytes, or text, encoded as UTF-8.
    pub fn key(object: &Bound<'py, PyAny>) -> PyResult<Data<'py>> {
        match object.cast::<PyString>() {
            Ok(text) => {
                if let Err(e) = text.to_str() {
                    let py = object.py();
                    let error = e.into_value(py);
                    let named = py.import("honeycomb._check")?.getattr("not_utf8")?;
                    return Err(PyErr::from_value(named.call1(("a key", error))?));
                }
                Ok(Data::Text(text.clone()))
            }
            Err(_) => Data::named("keys", object),
        }
    }

    /// The bytes.
    pub fn slice(&self) -> &[u8] {
        match self {
            Data::Bytes(bytes) => bytes.as_bytes(),
            Data::Text(text) => text.to_str().expect("`Data::key` encoded it").as_bytes(),
            // SAFETY: the buffer is contiguous, and its exporter keeps the memory in place while
            // the view is held, which is as long as `self`. An empty buffer may have no memory, but a
            // slice needs a valid pointer. If another thread writes into the buffer during the call,
            // torn bytes are sent, as with any write(2) from a shared buffer.
            Data::Buffer(buffer) if buffer.len_bytes() > 0 => unsafe {
                std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes())
            },
            Data::Buffer(_) => &[],
        }
    }
}

/// Checks an argument with `honeycomb._check`: returns the object to use in its place, or the error that
/// names it.
pub fn check<'py>(
    object: &Bound<'py, PyAny>,
    how: &Bound<'py, PyString>,
    name: &str,
) -> PyResult<Bound<'py, PyAny>> {
    object.py().import("honeycomb._check")?.call_method1(how, (name, object))
}

/// A caller's writable buffer.
pub struct WritableBuffer(PyUntypedBuffer);

impl<'py> FromPyObject<'_, 'py> for WritableBuffer {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        WritableBuffer::named("buffer", &object)
    }
}

impl WritableBuffer {
    /// A bytes-like object that can be written; the error contains `name`.
    pub fn named(name: &str, object: &Bound<'_, PyAny>) -> PyResult<WritableBuffer> {
        let buffer = match PyUntypedBuffer::get(object) {
            Ok(buffer) if !buffer.readonly() => buffer,
            _ => {
                check(object, intern!(object.py(), "target"), name)?;
                return Err(PyTypeError::new_err(format!("{name} is not writable")));
            }
        };
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is not contiguous"));
        }
        Ok(WritableBuffer(buffer))
    }

    /// The bytes.
    pub fn slice_mut(&mut self) -> &mut [u8] {
        if self.0.len_bytes() == 0 {
            return &mut [];
        }
        // SAFETY: the buffer is writable and contiguous (checked), its memory stays in place while
        // the view is held, and `&mut self` allows one slice at a time. Python code that reads
        // the buffer meanwhile sees bytes in any order, as with any read(2) into a shared buffer.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast::<u8>(), self.0.len_bytes()) }
    }
}

/// A bytes object of this length without other references, and its uninitialized memory.
fn unfilled(py: Python<'_>, length: usize) -> PyResult<(Py<PyBytes>, *mut u8)> {
    // SAFETY: without a source, Python makes the object with `length` bytes (and a zero after them) as
    // the allocator returned them, or returns null with an exception set, which
    // `from_owned_ptr_or_err` handles. The object is bytes, so it has a pointer to its bytes. Python
    // shares the empty bytes object, but nothing can be written to it.
    unsafe {
        let made = ffi::PyBytes_FromStringAndSize(std::ptr::null(), length as ffi::Py_ssize_t);
        let made = Bound::from_owned_ptr_or_err(py, made)?.cast_into_unchecked::<PyBytes>();
        let pointer = ffi::PyBytes_AsString(made.as_ptr()).cast::<u8>();
        Ok((made.unbind(), pointer))
    }
}

/// Requests large pages from the kernel for fresh memory that is about to be filled: one fault per 2 MiB.
fn want_large_pages(start: *mut u8, length: usize) {
    let from = (start as usize).next_multiple_of(LARGE_PAGE);
    let to = (start as usize + length) / LARGE_PAGE * LARGE_PAGE;
    if length < OWN_PAGES || from >= to {
        return;
    }
    let inner = start.wrapping_add(from - start as usize).cast();
    // SAFETY: the range is within memory that the caller has just allocated. The advice changes
    // neither its contents nor its access. A kernel that rejects it returns an error, which is ignored.
    let _ = unsafe { rustix::mm::madvise(inner, to - from, rustix::mm::Advice::LinuxHugepage) };
}

/// A bytes object that is made when the length of a value is known, and filled from the network.
pub struct BytesRoom {
    /// A short value, which is copied into an object at the end.
    beside: [u8; BESIDE],
    used: usize,
    /// The object itself, for a longer value.
    object: Option<Py<PyBytes>>,
}

impl Default for BytesRoom {
    fn default() -> BytesRoom {
        BytesRoom { beside: [0; BESIDE], used: 0, object: None }
    }
}

impl BytesRoom {
    /// The object; empty bytes if no room was requested.
    pub fn finish<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        match self.object.take() {
            Some(bytes) => bytes.into_bound(py),
            None => PyBytes::new(py, &self.beside[..self.used]),
        }
    }

    /// An object of the first `filled` bytes.
    pub fn finish_short<'py>(&mut self, py: Python<'py>, filled: usize) -> Bound<'py, PyBytes> {
        match self.object.take() {
            Some(whole) if filled == whole.as_bytes(py).len() => whole.into_bound(py),
            Some(whole) => PyBytes::new(py, &whole.as_bytes(py)[..filled]),
            None => PyBytes::new(py, &self.beside[..filled]),
        }
    }
}

impl Room for BytesRoom {
    fn room(&mut self, length: usize) -> &mut [u8] {
        if length <= BESIDE {
            (self.object, self.used) = (None, length);
            return &mut self.beside[..length];
        }
        let (object, pointer) =
            Python::attach(|py| unfilled(py, length).expect("memory for a value can be allocated"));
        self.object = Some(object);
        want_large_pages(pointer, length);
        // SAFETY: the object was just made with its own `length` bytes of memory, and this is the
        // only reference to it until `finish`, which needs `self` again: no other code can read the
        // bytes while they are written. Python never moves an object. The initial bytes are those that
        // the allocator left, and users of the slice only write it: a reply fills it completely, or
        // the call fails and the object is dropped unread, or `finish_short` truncates it.
        unsafe { std::slice::from_raw_parts_mut(pointer, length) }
    }
}

/// Bytes of a mapped file that Python reads in place: all bytes, or one run. It keeps the file mapped.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeRun {
    view: Arc<FileView>,
    /// The index of the run; `None` for the whole file if it is contiguous.
    run: Option<usize>,
}

impl NativeRun {
    /// The whole file, if it is one run of bytes.
    pub fn whole(view: &Arc<FileView>) -> Option<NativeRun> {
        view.contiguous().map(|_| NativeRun { view: view.clone(), run: None })
    }

    /// All runs, in order.
    pub fn each(view: &Arc<FileView>) -> Vec<NativeRun> {
        let runs = 0..view.segments().len();
        runs.map(|run| NativeRun { view: view.clone(), run: Some(run) }).collect()
    }

    fn bytes(&self) -> &[u8] {
        match self.run {
            None => self.view.contiguous().expect("`whole` checked that it is contiguous"),
            Some(run) => self.view.segments()[run],
        }
    }
}

#[pymethods]
impl NativeRun {
    /// The buffer protocol. Raises `BufferError` for a request of a writable buffer.
    ///
    /// # Safety
    /// Python calls this with a `Py_buffer` to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = slf.get().bytes();
        let (start, length) = (bytes.as_ptr().cast_mut().cast(), bytes.len() as isize);
        // SAFETY: Python passes `buffer` to be filled. The bytes neither move nor change while this
        // object exists (`FileView`), and the buffer holds a reference to it. The buffer is read-only, so
        // no code writes through the pointer.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(buffer, slf.as_ptr(), start, length, 1, flags) };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}
